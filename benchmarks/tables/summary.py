"""From the results of jobs to the figures of every task and the counts that matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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

BAD_R2 = 0.9
"""R² of a sensor without noise below which the program must say that the fit is bad."""

NEAR_MINIMUM = 0.001
"""A true value this close to the best one, in standard deviations of y, counts as equal."""


def summarize(results: list[Result]) -> dict[str, Any]:
    """Every task with the figures of every method, one per split, and the counts that matter."""
    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(result["task"], []).append(result)
    tasks = {name: of_task(TASKS[name], by_task[name]) for name in TASKS if name in by_task}
    return {
        "programs": sorted({r["program"] for r in results if r.get("program")}),
        "failures": [
            {k: r[k] for k in ("task", "split", "method", "status", "error")}
            for r in results
            if r["status"] != "done"
        ],
        "counts": counts(tasks),
        "tasks": tasks,
    }


def of_task(task: Task, results: list[Result]) -> dict[str, Any]:
    """What a task is, and lists of figures per method by split; `None` where a job gave none."""
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
        found["forward_r2"] = column(worst)
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
        found["messages"] = sorted({message for r in results for message in r.get("messages", [])})
    notes = sorted({r["note"] for r in results if r.get("note")})
    if notes:
        found["notes"] = notes
    return found


def excess(result: Result, least: float) -> float | None:
    """The true value where a method puts the minimum, less the least value in the box."""
    truth = (result.get("minimum") or {}).get("truth")
    return None if truth is None else truth - least


def worst(result: Result) -> float | None:
    """R² of the target of a fitted map that is fitted worst."""
    values = result.get("forward_r2") or [None]
    return None if None in values else min(values)


def says_free_model(result: Result) -> bool:
    """Whether the program said that a model without a guarantee fits better."""
    return any("model without a guarantee" in message for message in result.get("messages", []))


def counts(tasks: dict[str, Any]) -> dict[str, Any]:
    """The figures that the comparison is made for, of tasks that the program was run on."""
    found: dict[str, Any] = {}
    fitted = {name: t for name, t in tasks.items() if "bilip" in t["methods"]}
    for group in ("single", "several", "edge"):
        functions = {name: t for name, t in fitted.items() if t.get("group") == group}
        if functions:
            found[group] = of_functions(functions)
    if "single" in found:
        found["single"] |= beside_peers({n: t for n, t in fitted.items() if t.get("group") == "single"})
    tables = {name: t for name, t in fitted.items() if t["kind"] == "table"}
    if tables:
        found["tables"] = of_tables(tables)
    maps = [t["methods"]["bilip"] for t in fitted.values() if t["kind"] == "calibration"]
    if maps:
        pairs = [pair for m in maps for pair in zip(m["forward_r2"], m["exit_codes"], strict=True)]
        bad = (r2 is not None and r2 < BAD_R2 and code == DONE for r2, code in pairs)
        found["calibration"] = {"bad_unsaid": share(bad)}
    covered = {method: of_intervals(tasks, method) for method in ("bilip", "gp")}
    found["coverage"] = {method: figures for method, figures in covered.items() if figures}
    return found


def of_functions(functions: dict[str, Any]) -> dict[str, Any]:
    """How often the minimum of the program is no worse than the best row, and what its exit code says."""
    held, codes = [], []
    for t in functions.values():
        bilip = t["methods"]["bilip"]
        rows = [t["best_row"].get(str(split)) for split in bilip["splits"]]
        held += [
            value is not None and row is not None and value <= row
            for value, row in zip(bilip["excess"], rows, strict=True)
        ]
        codes += bilip["exit_codes"]
    return {
        "at_most_best_row": share(held),
        "exit_1": share(code == NOT_MET for code in codes),
        "above_best_row_unsaid": share(not ok and code == DONE for ok, code in zip(held, codes, strict=True)),
    }


def beside_peers(functions: dict[str, Any]) -> dict[str, Any]:
    """How often the median of the program is no worse than that of the best alternative."""
    orders = {name: against_peers(t) for name, t in functions.items() if set(t["methods"]) & set(PEERS)}
    return {
        "at_most_best_alternative": share(order == "below" for order in orders.values()),
        "at_most_or_near": share(order in ("below", "near") for order in orders.values()),
        "above_best_alternative": sorted(name for name, order in orders.items() if order == "above"),
    }


def of_intervals(tasks: dict[str, Any], method: str) -> dict[str, Any] | None:
    """Coverage over all tasks and splits, if the method has intervals."""
    lists = [t["methods"].get(method, {}).get("coverage", []) for t in tasks.values()]
    covered = [c for some in lists for c in some if c is not None]
    if not covered:
        return None
    mean = significant(sum(covered) / len(covered))
    return {"mean": mean, "least": min(covered), "splits": len(covered)}


def against_peers(task: dict[str, Any]) -> str:
    """Whether the median of the program is `below`, `near` or `above` that of the best alternative."""
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
        mine = middle(t["methods"]["bilip"]["r2"], larger=True)
        peers = [middle(t["methods"][m]["r2"], larger=True) for m in PEERS if m in t["methods"]]
        peers = [p for p in peers if p is not None]
        return None if mine is None or not peers else max(peers) - mine

    gaps = {name: behind(t) for name, t in tables.items()}
    silent, pairs = [], 0
    for name, t in tables.items():
        bilip, quadratic = t["methods"]["bilip"], t["methods"].get("quadratic")
        if quadratic is None:
            continue
        reference = dict(zip(quadratic["splits"], quadratic["r2"], strict=True))
        for i, split in enumerate(bilip["splits"]):
            if bilip["r2"][i] is None or reference.get(split) is None:
                continue
            pairs += 1
            said = bilip["exit_codes"][i] != DONE or bilip["says_free_model"][i]
            if bilip["r2"][i] < reference[split] - FAR_R2 and not said:
                silent.append(
                    {"task": name, "split": split, "r2": bilip["r2"][i], "quadratic": reference[split]}
                )
    return {
        "near_best_alternative": share(gap is not None and gap <= NEAR_R2 for gap in gaps.values()),
        "behind_best_alternative": {
            n: significant(g) for n, g in gaps.items() if g is not None and g > NEAR_R2
        },
        "far_below_quadratic_unsaid": {"count": len(silent), "of": pairs, "where": silent},
    }


def share(holds: Iterable[bool]) -> dict[str, int]:
    held = list(holds)
    return {"count": sum(held), "of": len(held)}


def middle(values: Iterable[float | None], larger: bool = False) -> float | None:
    """The median, where a job without a figure counts as worse than all others.

    `larger` says whether larger figures are better.
    """
    worst = -math.inf if larger else math.inf
    values = [worst if value is None else value for value in values]
    found = median(values) if values else worst
    return found if math.isfinite(found) else None


def first(values: Iterable[Any]) -> Any:
    return next((v for v in values if v is not None), None)


def significant(value: Any) -> Any:
    """A number with six significant digits."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
