"""Rows of a task, and how they are split."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

TEST_SHARE = 0.2


@dataclass(frozen=True)
class Rows:
    """A table: inputs `[rows, inputs]`, targets `[rows, targets]`, and the names of the columns."""

    x: np.ndarray
    y: np.ndarray
    inputs: list[str]
    targets: list[str]

    def __len__(self) -> int:
        return len(self.x)

    def take(self, which: np.ndarray) -> Rows:
        return Rows(self.x[which], self.y[which], self.inputs, self.targets)


def generator(name: str, *more: int) -> np.random.Generator:
    """Random numbers that depend on a name and on further numbers alone."""
    return np.random.default_rng([zlib.crc32(name.encode()), *more])


def split(rows: Rows, name: str, number: int) -> tuple[Rows, Rows]:
    """Training and test rows of a split; the same for every method."""
    order = generator(name, 1, number).permutation(len(rows))
    test = max(1, round(TEST_SHARE * len(rows)))
    return rows.take(np.sort(order[test:])), rows.take(np.sort(order[:test]))
