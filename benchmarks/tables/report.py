"""From the results of jobs to one file of figures and one page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from .calibration import Calibration
from .functions import Function
from .job import Result
from .program import DONE, NOT_MET
from .tasks import METHODS, TASKS, Task

PEERS = METHODS[1:]

NEAR_R2 = 0.03
"""R² this close to that of the best alternative counts as equal."""

FAR_R2 = 0.05
"""R² this far below that of quadratic regression must be said by the program."""

NEAR_MINIMUM = 0.001
"""A true value this close to the best one, as a share of the standard deviation of y, counts as equal."""


def write(folder: Path) -> None:
    """Writes `results.json` and `README.md`."""
    results = [json.loads(file.read_text()) for file in sorted((folder / "jobs").glob("*/*.json"))]
    if not results:
        raise SystemExit(f"{folder}: no results; python -m tables run --out {folder}")
    machine = json.loads((folder / "machine.json").read_text())
    summary = summarize(results) | {"machine": machine}
    (folder / "results.json").write_text(json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
    (folder / "README.md").write_text(page(summary))


def summarize(results: list[Result]) -> dict[str, Any]:
    """Every task with the figures of every method, one per split, and the counts that matter."""
    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(result["task"], []).append(result)
    tasks = {name: of_task(TASKS[name], by_task[name]) for name in TASKS if name in by_task}
    return {
        "programs": sorted({r["program"] for r in results if r.get("program")}),
        "failures": [
            {k: r[k] for k in ("task", "split", "method", "status", "error")} for r in results if r["status"] != "done"
        ],
        "counts": counts(tasks),
        "tasks": tasks,
    }


def of_task(task: Task, results: list[Result]) -> dict[str, Any]:
    """A task: what it is, and lists of figures per method, ordered by split; `None` where a job gave no figure."""
    methods = {}
    for method in METHODS:
        mine = sorted((r for r in results if r["method"] == method), key=lambda r: r["split"])
        if mine:
            methods[method] = of_method(task, mine)
    done = [r for r in results if r["status"] == "done"]
    about = {"kind": task.kind, "about": task.source.about}
    about |= {key: first(r.get(key) for r in done) for key in ("rows", "inputs")}
    if isinstance(task.source, Function):
        function = task.source
        best = {r["split"]: r["best_row"] for r in done}
        about |= {
            "group": function.group,
            "noise": function.noise,
            "minimum": function.minimum,
            "spread": significant(function.spread),
            "best_row": {str(split): significant(best[split] - function.minimum) for split in sorted(best)},
        }
    if isinstance(task.source, Calibration):
        about |= {"model": task.source.model, "unit": task.source.unit}
    return about | {"methods": methods}


def of_method(task: Task, results: list[Result]) -> dict[str, Any]:
    def column(figure: Callable[[Result], Any]) -> list[Any]:
        return [significant(figure(r)) for r in results]

    found: dict[str, Any] = {
        "splits": [r["split"] for r in results],
        "seconds": column(lambda r: r.get("seconds")),
    }
    if isinstance(task.source, Calibration):
        found |= {key: column(lambda r, key=key: r.get(key)) for key in ("rms", "largest")}
    else:
        found["r2"] = column(lambda r: r.get("r2"))
    if isinstance(task.source, Function):
        least = task.source.minimum
        found["excess"] = column(lambda r: excess(r, least))
        found["outside"] = [not r["minimum"]["in_rows"] if r.get("minimum") else None for r in results]
        found["minimize_seconds"] = column(lambda r: r.get("minimize_seconds"))
    if any("interval" in r for r in results):
        found["coverage"] = column(lambda r: r.get("interval", {}).get("coverage"))
        found["width"] = column(lambda r: r.get("interval", {}).get("width"))
    if results[0]["method"] == "bilip":
        found["exit_codes"] = [r.get("exit_code") for r in results]
        found["says_free_model"] = [says_free_model(r) for r in results]
    notes = sorted({r["note"] for r in results if r.get("note")})
    if notes:
        found["notes"] = notes
    return found


def excess(result: Result, least: float) -> float | None:
    """How much the true value where a method puts the minimum is above the least value in the box."""
    truth = (result.get("minimum") or {}).get("truth")
    return None if truth is None else truth - least


def says_free_model(result: Result) -> bool:
    """Whether the program warned that a model without bounds fits better."""
    return any("free_model" in message or "free model" in message for message in result.get("messages", []))


def counts(tasks: dict[str, Any]) -> dict[str, Any]:
    """The figures that the comparison is made for."""
    functions = {name: t for name, t in tasks.items() if t["kind"] == "function" and "bilip" in t["methods"]}
    found: dict[str, Any] = {}
    single = {name: t for name, t in functions.items() if t["group"] == "single"}
    if single:
        pairs = [
            (t["best_row"].get(str(split)), value)
            for t in single.values()
            for split, value in zip(t["methods"]["bilip"]["splits"], t["methods"]["bilip"]["excess"])
        ]
        compared = {name: against_peers(t) for name, t in single.items() if set(t["methods"]) & set(PEERS)}
        found["single"] = {
            "at_most_best_row": share(value is not None and row is not None and value <= row for row, value in pairs),
            "at_most_best_alternative": share(order == "below" for order in compared.values()),
            "at_most_or_near": share(order in ("below", "near") for order in compared.values()),
            "above_best_alternative": sorted(name for name, order in compared.items() if order == "above"),
        }
    for group in ("single", "several", "edge"):
        codes = [c for t in functions.values() if t["group"] == group for c in t["methods"]["bilip"]["exit_codes"]]
        if codes:
            found.setdefault(group, {})["exit_1"] = share(code == NOT_MET for code in codes)
    tables = {name: t for name, t in tasks.items() if t["kind"] == "table" and "bilip" in t["methods"]}
    if tables:
        found["tables"] = of_tables(tables)
    for method in ("bilip", "gp"):
        covered = [c for t in tasks.values() for c in t["methods"].get(method, {}).get("coverage", []) if c is not None]
        if covered:
            found.setdefault("coverage", {})[method] = {
                "mean": significant(sum(covered) / len(covered)),
                "least": min(covered),
                "splits": len(covered),
            }
    return found


def against_peers(task: dict[str, Any]) -> str:
    """Whether the median true value of the program is `below` that of the best alternative, `near` it or `above`."""
    mine = middle(task["methods"]["bilip"]["excess"])
    peers = [middle(task["methods"][m]["excess"]) for m in PEERS if m in task["methods"]]
    best = min((p for p in peers if p is not None), default=None)
    if mine is None or best is None:
        return "above" if mine is None else "below"
    if mine <= best:
        return "below"
    return "near" if mine <= best + NEAR_MINIMUM * task["spread"] else "above"


def of_tables(tables: dict[str, Any]) -> dict[str, Any]:
    def behind(t: dict[str, Any]) -> float | None:
        mine = middle(t["methods"]["bilip"]["r2"])
        peers = [middle(t["methods"][m]["r2"]) for m in PEERS if m in t["methods"]]
        peers = [p for p in peers if p is not None]
        return None if mine is None or not peers else max(peers) - mine

    gaps = {name: behind(t) for name, t in tables.items()}
    silent, pairs = [], 0
    for name, t in tables.items():
        bilip, quadratic = t["methods"]["bilip"], t["methods"].get("quadratic")
        if quadratic is None:
            continue
        reference = dict(zip(quadratic["splits"], quadratic["r2"]))
        for i, split in enumerate(bilip["splits"]):
            if bilip["r2"][i] is None or reference.get(split) is None:
                continue
            pairs += 1
            said = bilip["exit_codes"][i] != DONE or bilip["says_free_model"][i]
            if bilip["r2"][i] < reference[split] - FAR_R2 and not said:
                silent.append({"task": name, "split": split, "r2": bilip["r2"][i], "quadratic": reference[split]})
    return {
        "near_best_alternative": share(gap is not None and gap <= NEAR_R2 for gap in gaps.values()),
        "behind_best_alternative": {n: significant(g) for n, g in gaps.items() if g is not None and g > NEAR_R2},
        "far_below_quadratic_unsaid": {"count": len(silent), "of": pairs, "where": silent},
    }


def share(holds: Iterable[bool]) -> dict[str, int]:
    held = list(holds)
    return {"count": sum(held), "of": len(held)}


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known; nothing where at most half of the jobs gave a figure."""
    values = list(values)
    known = [v for v in values if v is not None]
    return median(known) if len(known) > len(values) / 2 else None


def first(values: Iterable[Any]) -> Any:
    return next((v for v in values if v is not None), None)


def significant(value: Any) -> Any:
    """A number with six significant digits."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def page(summary: dict[str, Any]) -> str:
    """The page, as Markdown."""
    tasks, machine = summary["tasks"], summary["machine"]
    splits = max((len(m["splits"]) for t in tasks.values() for m in t["methods"].values()), default=0)
    parts = [
        "# `bilip fit` beside four alternatives",
        "Written by `python -m tables report` of `benchmarks/tables`, which says what the tasks and the methods are. "
        f"Default settings of the program; medians over {splits} split{'s' * (splits != 1)} into 80 % training and "
        "20 % test rows, the same for every method.",
        on(machine, summary["programs"]),
        "## Counts",
        counted(summary["counts"]),
    ]
    groups = {
        "single": "One minimum, inside the box",
        "several": "Several minima",
        "edge": "Minimum at the edge of the box",
    }
    functions = {name: t for name, t in tasks.items() if t["kind"] == "function"}
    if functions:
        parts += [
            "## Functions",
            "True value, without noise, of the function where a method puts the minimum, less the least value in the "
            "box. *Best row*: the training row with the smallest measured value. † outside the box of the training "
            "rows in most splits; there a value may be negative. Exit codes are those of `bilip fit`: 0 the result "
            "holds up, 1 the program says that it does not.",
        ]
        for group, title in groups.items():
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
            "Root mean square error of the inputs found for held-out readings: by `bilip invert` with the model named, "
            "by alternatives fitted from readings to inputs.",
            figures(calibrations, "rms", larger=False, codes=True),
        ]
    if any("coverage" in m for t in tasks.values() for m in t["methods"].values()):
        parts += ["## Coverage of intervals of 90 %", "Share of the test rows inside.", covered(tasks)]
    parts += ["## Seconds of the fit", figures(tasks, "seconds", larger=False, bold=False)]
    if summary["failures"]:
        lines = [f"- {f['task']} split {f['split']} {f['method']}: {f['error']}" for f in summary["failures"]]
        parts += ["## Without a result", "\n".join(lines)]
    notes = sorted({n for t in tasks.values() for m in ("gp", "trees") for n in t["methods"].get(m, {}).get("notes", [])})
    if notes:
        parts += ["## Notes of the methods", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def on(machine: dict[str, Any], programs: list[str]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    mixed = " **Results of several builds are mixed: run with `--again`.**" if len(programs) > 1 else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['jobs']} jobs at a time with {machine['threads']} "
        f"threads each; Python {machine['python']}, {packages}; {'; '.join(programs) or 'without the program'}.{mixed}"
    )


def counted(counts: dict[str, Any]) -> str:
    def of(value: dict[str, int]) -> str:
        return f"{value['count']} of {value['of']} ({100 * value['count'] / max(value['of'], 1):.0f} %)"

    lines = []
    single = counts.get("single", {})
    if single:
        lines += [
            ("one minimum: true value at most that of the best row (function and split)", of(single["at_most_best_row"])),
            ("one minimum: median at most that of the best alternative", of(single["at_most_best_alternative"])),
            ("the same, or within 0.1 % of the standard deviation of y", of(single["at_most_or_near"])),
            ("one minimum: false alarms (exit code 1)", of(single["exit_1"])),
        ]
    for group, what in (("several", "several minima"), ("edge", "minimum at the edge")):
        if group in counts:
            lines.append((f"{what}: exit code 1", of(counts[group]["exit_1"])))
    if "tables" in counts:
        tables = counts["tables"]
        lines += [
            (f"tables: median R² within {NEAR_R2} of the best alternative", of(tables["near_best_alternative"])),
            (
                f"tables: R² more than {FAR_R2} below quadratic regression, and not said (table and split)",
                of(tables["far_below_quadratic_unsaid"]),
            ),
        ]
    for method, value in counts.get("coverage", {}).items():
        lines.append((f"coverage of 90 % intervals, {method}", f"{value['mean']:.3f}, least {value['least']:.3f}"))
    return table(["", "figure"], lines) if lines else "None: the program was not run."


def minima(tasks: dict[str, Any]) -> str:
    rows = []
    for name, t in tasks.items():
        values = {m: middle(t["methods"][m]["excess"]) for m in METHODS if m in t["methods"]}
        outside = {m: sum(o is True for o in t["methods"][m]["outside"]) for m in values}
        inside = [v for m, v in values.items() if v is not None and 2 * outside[m] <= len(t["methods"][m]["splits"])]
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
        values = {m: middle(t["methods"][m].get(key, [])) for m in METHODS if m in t["methods"]}
        known = [v for v in values.values() if v is not None]
        best = (max if larger else min)(known) if known and bold else None
        # Of R², what matters is how far it is from 1.
        shown = {m: f"{v:.4f}" if larger and v is not None else short(v) for m, v in values.items()}
        cells = [
            f"**{shown[m]}**" if best is not None and values.get(m) == best else shown.get(m, "") for m in METHODS
        ]
        label = f"{name} ({t['unit']})" if "unit" in t and key == "rms" else name
        rows.append([label, t["rows"], t["inputs"], *cells] + ([exit_codes(t["methods"].get("bilip"))] if codes else []))
    return table(["task", "rows", "inputs", *METHODS] + (["exit codes"] if codes else []), rows)


def covered(tasks: dict[str, Any]) -> str:
    rows = []
    for name, t in tasks.items():
        cells = [short(middle(t["methods"].get(m, {}).get("coverage", []))) for m in ("bilip", "gp")]
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
