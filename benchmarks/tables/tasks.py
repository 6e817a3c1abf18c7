"""All tasks by name: functions, public tables, calibrations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from .calibration import CALIBRATIONS, Calibration
from .functions import FUNCTIONS, Function
from .public import TABLES, PublicTable
from .rows import Rows

METHODS = ("bilip", "quadratic", "mlp", "gp", "trees")
"""The program, and what it is compared with."""

Kind = Literal["function", "table", "calibration"]


@dataclass(frozen=True)
class Task:
    """Something to fit. `source` knows its rows and what their errors mean."""

    kind: Kind
    source: Function | PublicTable | Calibration

    @property
    def name(self) -> str:
        return self.source.name

    @cached_property
    def rows(self) -> Rows:
        return self.source.sample()

    @property
    def split_name(self) -> str:
        """Tasks of the same rows share their splits, too."""
        return self.source.device if isinstance(self.source, Calibration) else self.name

    @property
    def methods(self) -> tuple[str, ...]:
        """A sensor is calibrated by alternatives once, not once per model of the program."""
        again = isinstance(self.source, Calibration) and self.source.model != "bilipnet"
        return METHODS[:1] if again else METHODS

    def missing(self) -> str | None:
        """Why the rows are not at hand, if they are not."""
        return self.source.missing() if isinstance(self.source, PublicTable) else None


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *(Task("function", f) for f in FUNCTIONS),
        *(Task("table", t) for t in TABLES),
        *(Task("calibration", c) for c in CALIBRATIONS),
    )
}
