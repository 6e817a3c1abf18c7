"""One job: a method is fitted to the training rows of a split and measured on the others."""

from __future__ import annotations

import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from . import alternatives
from .calibration import Calibration
from .functions import Function
from .program import Program
from .rows import Rows, generator, split
from .tasks import METHODS, TASKS, Task

INTERVAL = 0.9
NORMAL = 1.6448536269514722
"""A normal variable is within this many standard deviations with probability 0.9."""

Result = dict[str, Any]


def measure(task_name: str, number: int, method: str, bilip: Path | None) -> Result:
    """Runs a job; everything in the result can be written as JSON."""
    task = TASKS[task_name]
    train, test = split(task.rows, task.split_name, number)
    if method == "bilip":
        if bilip is None:
            raise ValueError("the method bilip needs --bilip PATH")
        program = Program(bilip)
        with TemporaryDirectory(prefix="bilip-tables-") as folder:
            found = by_program(program, task, train, test, Path(folder))
        found["program"] = program.identity
    else:
        random = generator(task.split_name, 2 + METHODS.index(method), number)
        found = by_alternative(method, task, train, test, random)
    if isinstance(task.source, Function):
        function = task.source
        best = train.x[np.argmin(train.y[:, 0])]
        found["best_row"] = float(function.value(best[None])[0])
    found |= {"rows": len(task.rows), "train_rows": len(train), "inputs": train.x.shape[1]}
    return without_infinities(found)


def by_program(program: Program, task: Task, train: Rows, test: Rows, folder: Path) -> Result:
    if isinstance(task.source, Calibration):
        return inverse_by_program(program, task.source, train, test, folder)
    fit = program.fit(folder / "train.csv", train, folder / "model.safetensors")
    target = train.targets[0]
    clock = time.perf_counter()
    columns = program.evaluate(fit, test.x, test.inputs)
    result = quality(test.y[:, 0], columns[target]) | {
        "seconds": fit.seconds,
        "predict_seconds": time.perf_counter() - clock,
        "exit_code": fit.exit_code,
        "messages": fit.messages,
        # The certificate is long, and the same for everybody who runs the command.
        "summary": {k: v for k, v in fit.summary.items() if k not in ("certificate", "output")},
    }
    if program.has_intervals:
        columns = program.evaluate(fit, test.x, test.inputs, "--interval", str(INTERVAL))
        low, high = columns.get(f"{target}_low"), columns.get(f"{target}_high")
        if low is not None and high is not None:
            result["interval"] = coverage(test.y[:, 0], low, high)
    if isinstance(task.source, Function):
        answer = fit.minimizer(train.inputs)
        if answer is not None:
            result["minimum"] = minimum(task.source, train, *answer)
    return result


def inverse_by_program(program: Program, task: Calibration, train: Rows, test: Rows, folder: Path) -> Result:
    fit = program.fit(folder / "train.csv", train, folder / "model.safetensors", "--model", task.model)
    forward = program.evaluate(fit, test.x, test.inputs)
    clock = time.perf_counter()
    columns, exit_code = program.invert(fit, test.y, test.targets)
    found = np.stack([columns[name] for name in task.inputs], axis=1)
    return inverse_quality(task, test, found) | {
        "seconds": fit.seconds,
        "predict_seconds": time.perf_counter() - clock,
        "exit_code": fit.exit_code,
        "invert_exit_code": exit_code,
        "messages": fit.messages,
        "forward_r2": [
            quality(test.y[:, k], forward[name])["r2"]
            for k, name in enumerate(test.targets)
            if name in forward
        ],
    }


def by_alternative(method: str, task: Task, train: Rows, test: Rows, random: np.random.Generator) -> Result:
    clock = time.perf_counter()
    if isinstance(task.source, Calibration):
        # An alternative has no inverse of its own: it is fitted the other way round.
        models = [alternatives.fit(method, train.y, x, random) for x in train.x.T]
        seconds = time.perf_counter() - clock
        found = np.stack([model.predict(test.y) for model in models], axis=1)
        return inverse_quality(task.source, test, found) | {"seconds": seconds, "note": models[0].note}
    y = train.y[:, 0]
    model = alternatives.fit(method, train.x, y, random)
    seconds = time.perf_counter() - clock
    predicted = model.predict(test.x)
    result = quality(test.y[:, 0], predicted) | {
        "seconds": seconds,
        "fitted_rows": model.rows,
        "note": model.note,
    }
    if model.deviation is not None:
        margin = NORMAL * model.deviation(test.x)
        result["interval"] = coverage(test.y[:, 0], predicted - margin, predicted + margin)
    if isinstance(task.source, Function):
        clock = time.perf_counter()
        x = alternatives.minimize(model, train.x, y, random)
        result["minimize_seconds"] = time.perf_counter() - clock
        result["minimum"] = minimum(task.source, train, x, float(model.predict(x[None])[0]))
    return result


def quality(measured: np.ndarray, predicted: np.ndarray) -> Result:
    """R² and root mean square error."""
    error = float(np.mean((measured - predicted) ** 2))
    return {"r2": 1 - error / float(measured.var()), "rmse": math.sqrt(error)}


def coverage(measured: np.ndarray, low: np.ndarray, high: np.ndarray) -> Result:
    """Share of the rows within their intervals, and the mean width in standard deviations."""
    inside = (measured >= low) & (measured <= high)
    return {"coverage": float(inside.mean()), "width": float(np.mean(high - low) / measured.std())}


def minimum(function: Function, train: Rows, x: np.ndarray, value: float) -> Result:
    """What the true function is at a minimizer that a method found."""
    with np.errstate(all="ignore"):
        truth = float(function.value(x[None])[0])
    return {
        "x": x.tolist(),
        "value": value,
        "truth": truth,
        "in_box": function.inside(x),
        "in_rows": bool(np.all(x >= train.x.min(axis=0)) and np.all(x <= train.x.max(axis=0))),
    }


def inverse_quality(task: Calibration, test: Rows, found: np.ndarray) -> Result:
    answered = np.all(np.isfinite(found), axis=1)
    error = task.error(test.x[answered], found[answered])
    return {
        "rms": math.sqrt(float(np.mean(error**2))) if answered.any() else None,
        "largest": float(error.max()) if answered.any() else None,
        "unanswered": int(len(answered) - answered.sum()),
    }


def without_infinities(value: Any) -> Any:
    """The same with `None` for what JSON cannot hold."""
    if isinstance(value, dict):
        return {k: without_infinities(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinities(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
