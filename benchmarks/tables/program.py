"""The program `bilip`, called as a user calls it."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import subprocess
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .rows import Rows

DONE, NOT_MET = 0, 1
"""Exit codes: the result holds up; there is one, and the program says that it does not."""

PROGRESS = re.compile(r"\d+/\d+ ")
"""How a line about progress begins."""


class ProgramError(Exception):
    """The program gave no result; the message is its own."""


@dataclass(frozen=True)
class Fit:
    """What came of `bilip fit`."""

    model: Path
    exit_code: int
    seconds: float
    summary: dict[str, Any]
    messages: list[str] = field(default_factory=list)
    """Warnings and reasons, from the summary and from standard error."""

    def minimizer(self, inputs: list[str]) -> tuple[np.ndarray, float] | None:
        """Where the program says that the minimum is, and its value there."""
        answer = self.summary.get("answer") or self.summary.get("minimum")
        if not answer or answer.get("x") is None:
            return None
        x = answer["x"]
        x = [x[name] for name in inputs] if isinstance(x, dict) else x
        return np.array([float(v) for v in x]), float(answer.get("value", "nan"))


@dataclass(frozen=True)
class Program:
    """An executable."""

    path: Path

    def call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a command; everything but exit codes 0 and 1 is an error."""
        command = [str(self.path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode not in (DONE, NOT_MET):
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ProgramError(f"bilip {arguments[0]}: exit code {done.returncode}: {last[0]}")
        return done

    @cached_property
    def identity(self) -> str:
        """The version and a hash of the executable, which tell builds apart."""
        version = self.call("--version").stdout.strip()
        return f"{version}, sha256 {hashlib.sha256(self.path.read_bytes()).hexdigest()[:12]}"

    @cached_property
    def has_intervals(self) -> bool:
        return "--interval" in self.call("eval", "--help").stdout

    def fit(self, data: Path, rows: Rows, model: Path, *options: str) -> Fit:
        """Fits the rows of a table with default settings and these options."""
        write_csv(data, rows.inputs + rows.targets, np.hstack([rows.x, rows.y]))
        clock = time.perf_counter()
        done = self.call("fit", data, "--target", ",".join(rows.targets), *options, "--json", "-o", model)
        seconds = time.perf_counter() - clock
        try:
            summary = json.loads(done.stdout)
        except json.JSONDecodeError as error:
            raise ProgramError(f"bilip fit --json: {error}") from error
        return Fit(model, done.returncode, seconds, summary, messages(summary, done.stderr))

    def evaluate(self, fit: Fit, x: np.ndarray, inputs: list[str], *options: str) -> dict[str, np.ndarray]:
        """Columns of `bilip eval` at points."""
        return self.apply("eval", fit, x, inputs, *options)[0]

    def invert(self, fit: Fit, y: np.ndarray, targets: list[str]) -> tuple[dict[str, np.ndarray], int]:
        """Columns of `bilip invert` for readings, and its exit code."""
        return self.apply("invert", fit, y, targets)

    def apply(
        self, verb: str, fit: Fit, values: np.ndarray, names: list[str], *options: str
    ) -> tuple[dict[str, np.ndarray], int]:
        given, found = fit.model.with_suffix(".given.csv"), fit.model.with_suffix(".found.csv")
        write_csv(given, names, values)
        done = self.call(verb, fit.model, "-i", given, "-o", found, *options)
        return read_csv(found), done.returncode


def messages(summary: dict[str, Any], standard_error: str) -> list[str]:
    """Warnings of the summary, then the lines of standard error that are no progress."""
    said = [*(summary.get("warnings") or []), *(summary.get("doubts") or [])]
    listed = [w if isinstance(w, str) else json.dumps(w) for w in said]
    lines = [line.split("\r")[-1].strip() for line in standard_error.splitlines()]
    return listed + [line for line in lines if line and not PROGRESS.match(line)]


def write_csv(path: Path, names: list[str], values: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([repr(float(v)) for v in row] for row in values)


def read_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    return {name: np.array([float(line[i]) for line in lines]) for i, name in enumerate(header)}
