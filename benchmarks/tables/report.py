"""The page of a folder of results, and its figures in one file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .summary import BAD_R2, FAR_R2, NEAR_R2, middle, summarize
from .tasks import METHODS

GROUPS = {
    "single": "One minimum, inside the box",
    "several": "Several minima",
    "edge": "Minimum at the edge of the box",
}


def write(folder: Path) -> None:
    """Writes `results.json` and `README.md`."""
    results = [json.loads(file.read_text()) for file in sorted((folder / "jobs").glob("*/*.json"))]
    if not results:
        raise SystemExit(f"{folder}: no results; python -m tables run --out {folder}")
    machine = json.loads((folder / "machine.json").read_text())
    summary = summarize(results) | {"machine": machine}
    (folder / "results.json").write_text(json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
    (folder / "README.md").write_text(page(summary))


def page(summary: dict[str, Any]) -> str:
    """The page, as Markdown."""
    tasks, machine = summary["tasks"], summary["machine"]
    splits = max((len(m["splits"]) for t in tasks.values() for m in t["methods"].values()), default=0)
    parts = [
        "# `bilip fit` beside four alternatives",
        "Written by `python -m tables report` of `benchmarks/tables`, which says what the tasks and the "
        f"methods are. Default settings of the program; medians over {splits} split{'s' * (splits != 1)} "
        "into 80 % training and 20 % test rows, the same for every method.",
        on(machine, summary["programs"]),
        "## Counts",
        counted(summary["counts"]),
    ]
    functions = {name: t for name, t in tasks.items() if t["kind"] == "function"}
    if functions:
        parts += [
            "## Functions",
            "True value, without noise, of the function where a method puts the minimum, less the least "
            "value in the box. *Best row*: the training row with the smallest measured value. † outside the "
            "box of the training rows in most splits; there a value may be negative. Exit codes are those "
            "of `bilip fit`: 0 the result holds up, 1 the program says that it does not.",
        ]
        for group, title in GROUPS.items():
            some = {name: t for name, t in functions.items() if t["group"] == group}
            if some:
                parts += [f"### {title}", minima(some)]
        parts += ["### R² on the test rows of the functions", figures(functions, "r2", larger=True)]
    tables = {name: t for name, t in tasks.items() if t["kind"] == "table"}
    if tables:
        parts += ["## Public tables", "R² on the test rows.", figures(tables, "r2", larger=True, codes=True)]
    calibrations = {name: t for name, t in tasks.items() if t["kind"] == "calibration"}
    if calibrations:
        parts += [
            "## Calibration",
            "Root mean square error of the inputs found for held-out readings (of an arm, of the position "
            "that it then reaches): by `bilip invert` with the model named, by alternatives fitted from "
            "readings to inputs.",
            figures(calibrations, "rms", larger=False, codes=True),
        ]
    if any("coverage" in m for t in tasks.values() for m in t["methods"].values()):
        parts += ["## Coverage of intervals of 90 %", "Share of the test rows inside.", covered(tasks)]
    parts += ["## Seconds of the fit", figures(tasks, "seconds", larger=False, bold=False)]
    if summary["failures"]:
        lines = [f"- {f['task']} split {f['split']} {f['method']}: {f['error']}" for f in summary["failures"]]
        parts += ["## Without a result", "\n".join(lines)]
    notes = sorted(
        {n for t in tasks.values() for m in ("gp", "trees") for n in t["methods"].get(m, {}).get("notes", [])}
    )
    if notes:
        parts += ["## Notes of the methods", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def on(machine: dict[str, Any], programs: list[str]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    mixed = " **Results of several builds are mixed: run with `--again`.**" if len(programs) > 1 else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores; jobs × threads: {machine['jobs']} × "
        f"{machine['threads']}; Python {machine['python']}, {packages}; "
        f"{'; '.join(programs) or 'without the program'}.{mixed}"
    )


def counted(counts: dict[str, Any]) -> str:
    def of(value: dict[str, int]) -> str:
        return f"{value['count']} of {value['of']} ({100 * value['count'] / max(value['of'], 1):.0f} %)"

    lines = []
    single = counts.get("single")
    if single:
        lines += [
            (
                "one minimum: true value at most that of the best row (function and split)",
                of(single["at_most_best_row"]),
            ),
            (
                "one minimum: median at most that of the best alternative",
                of(single["at_most_best_alternative"]),
            ),
            ("the same, or within 0.1 % of the standard deviation of y", of(single["at_most_or_near"])),
            ("one minimum: false alarms (exit code 1)", of(single["exit_1"])),
        ]
    for group, what in (("several", "several minima"), ("edge", "minimum at the edge")):
        if group in counts:
            lines.append((f"{what}: exit code 1", of(counts[group]["exit_1"])))
    for group, what in GROUPS.items():
        if group in counts:
            unsaid = of(counts[group]["above_best_row_unsaid"])
            lines.append((f"{what.lower()}: above the best row, and exit code 0", unsaid))
    if "tables" in counts:
        tables = counts["tables"]
        lines += [
            (
                f"tables: median R² within {NEAR_R2} of the best alternative",
                of(tables["near_best_alternative"]),
            ),
            (
                f"tables: R² more than {FAR_R2} below quadratic regression, and not said (table and split)",
                of(tables["far_below_quadratic_unsaid"]),
            ),
        ]
    if "calibration" in counts:
        what = f"calibration: R² of the forward map below {BAD_R2}, and exit code 0 (task and split)"
        lines.append((what, of(counts["calibration"]["bad_unsaid"])))
    for method, value in counts.get("coverage", {}).items():
        lines.append(
            (f"coverage of 90 % intervals, {method}", f"{value['mean']:.3f}, least {value['least']:.3f}")
        )
    return table(["", "figure"], lines) if lines else "None: the program was not run."


def minima(tasks: dict[str, Any]) -> str:
    rows = []
    for name, t in tasks.items():
        values = {m: middle(t["methods"][m]["excess"]) for m in METHODS if m in t["methods"]}
        outside = {m: sum(o is True for o in t["methods"][m]["outside"]) for m in values}
        inside = [
            v for m, v in values.items() if v is not None and 2 * outside[m] <= len(t["methods"][m]["splits"])
        ]
        best = min(inside, default=None)
        cells = []
        for method in METHODS:
            value = values.get(method)
            text = short(value)
            if value is not None and 2 * outside[method] > len(t["methods"][method]["splits"]):
                text += " †"
            elif value is not None and value == best:
                text = f"**{text}**"
            cells.append(text)
        codes = exit_codes(t["methods"].get("bilip"))
        noise = f"{100 * t['noise']:g} %" if t["noise"] else ""
        rows.append([name, t["rows"], noise, short(middle(t["best_row"].values())), *cells, codes])
    return table(["function", "rows", "noise", "best row", *METHODS, "exit codes"], rows)


def figures(tasks: dict[str, Any], key: str, larger: bool, codes: bool = False, bold: bool = True) -> str:
    """The medians of a figure, methods side by side."""
    rows = []
    for name, t in tasks.items():
        values = {m: middle(t["methods"][m].get(key, []), larger) for m in METHODS if m in t["methods"]}
        known = [v for v in values.values() if v is not None]
        best = (max if larger else min)(known) if known and bold else None
        # Of R², what matters is how far it is from 1.
        shown = {m: f"{v:.4f}" if larger and v is not None else short(v) for m, v in values.items()}
        cells = [
            f"**{shown[m]}**" if best is not None and values.get(m) == best else shown.get(m, "")
            for m in METHODS
        ]
        label = f"{name} ({t['unit']})" if "unit" in t and key == "rms" else name
        rows.append(
            [label, t["rows"], t["inputs"], *cells]
            + ([exit_codes(t["methods"].get("bilip"))] if codes else [])
        )
    return table(["task", "rows", "inputs", *METHODS] + (["exit codes"] if codes else []), rows)


def covered(tasks: dict[str, Any]) -> str:
    rows = []
    for name, t in tasks.items():
        cells = [
            short(middle(t["methods"].get(m, {}).get("coverage", []), larger=True)) for m in ("bilip", "gp")
        ]
        if any(cells):
            rows.append([name, *cells])
    return table(["task", "bilip", "gp"], rows)


def exit_codes(bilip: dict[str, Any] | None) -> str:
    """`0 ×4, 1 ×1`."""
    if bilip is None:
        return ""
    counted = Counter("none" if code is None else str(code) for code in bilip["exit_codes"])
    return ", ".join(f"{code} ×{count}" for code, count in sorted(counted.items()))


def short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def table(header: list[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join("" if c is None else str(c) for c in row) + " |" for row in rows]
    return "\n".join(lines)
