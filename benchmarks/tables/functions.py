"""Functions whose minimum is known, and the rows that are drawn from them.

Three groups: one minimum inside the box, several minima, and a minimum at the edge of the box.
`rows` counts training and test rows together; `noise` is a share of the standard deviation of the
values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from .rows import Rows, generator

Group = Literal["single", "several", "edge"]
Value = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Function:
    """A function of a batch `[rows, inputs]`, its box, and its global minimizers in the box."""

    name: str
    group: Group
    about: str
    value: Value
    low: np.ndarray
    high: np.ndarray
    minimizers: np.ndarray
    rows: int
    noise: float = 0.0

    @property
    def inputs(self) -> int:
        return len(self.low)

    @property
    def minimum(self) -> float:
        """The least value in the box."""
        return float(self.value(self.minimizers)[0])

    def inside(self, x: np.ndarray) -> bool:
        """Whether a point is in the box."""
        return bool(np.all(x >= self.low) and np.all(x <= self.high))

    def sample(self) -> Rows:
        """The rows of the task: uniform in the box, with noise."""
        random = generator(self.name)
        x = random.uniform(self.low, self.high, (self.rows, self.inputs))
        exact = self.value(x)
        y = exact + self.noise * exact.std() * random.standard_normal(self.rows)
        return Rows(x, y[:, None], [f"x{i + 1}" for i in range(self.inputs)], ["y"])

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the values without noise over the rows of the task."""
        x = generator(self.name).uniform(self.low, self.high, (self.rows, self.inputs))
        return float(self.value(x).std())


def rotation(n: int, seed: int) -> np.ndarray:
    """A random rotation or reflection."""
    q, r = np.linalg.qr(np.random.default_rng([seed, n]).standard_normal((n, n)))
    return q * np.sign(np.diag(r))


def center(n: int, size: float, seed: int) -> np.ndarray:
    """A point off the middle of the box, so that no method gains by guessing the middle."""
    return size * np.random.default_rng([seed, n]).choice([-1.0, 1.0], n) * np.linspace(0.3, 1.0, n)


def rosenbrock(x: np.ndarray) -> np.ndarray:
    a, b = x[:, :-1], x[:, 1:]
    return np.sum(100 * (b - a**2) ** 2 + (1 - a) ** 2, axis=1)


def rotated(n: int, eigenvalues: np.ndarray, c: np.ndarray, shape: Value, seed: int) -> Value:
    """`shape` of the coordinates `sqrt(eigenvalue) * (Q (x - c))`."""
    q = rotation(n, seed) * np.sqrt(eigenvalues)
    return lambda x: shape((x - c) @ q)


def square(z: np.ndarray) -> np.ndarray:
    return np.sum(z**2, axis=1)


def quartic(z: np.ndarray) -> np.ndarray:
    return np.sum(z**4, axis=1)


def log_bowl(z: np.ndarray) -> np.ndarray:
    return np.log1p(square(z))


def cone(z: np.ndarray) -> np.ndarray:
    return np.sqrt(1 + square(z))


def well(z: np.ndarray) -> np.ndarray:
    return -np.exp(-0.5 * square(z))


def cosh_bowl(z: np.ndarray) -> np.ndarray:
    return np.sum(np.cosh(z), axis=1)


def banana(x: np.ndarray) -> np.ndarray:
    # The three terms are a smooth change of variables, so there is one stationary point.
    a, b, c = x.T
    return (a - 0.3) ** 2 + 20 * (b - a**2) ** 2 + 5 * (c - a * b) ** 2


def powell(x: np.ndarray) -> np.ndarray:
    a, b, c, d = x.T
    return (a + 10 * b) ** 2 + 5 * (c - d) ** 2 + (b - 2 * c) ** 4 + 10 * (a - d) ** 4


def cubic_valley(x: np.ndarray) -> np.ndarray:
    a, b = x.T
    return 100 * (b - a**3) ** 2 + (1 - a) ** 2


def branin(x: np.ndarray) -> np.ndarray:
    a, b = x.T
    return (b - branin_valley(a)) ** 2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(a) + 10


def branin_valley(a: np.ndarray) -> np.ndarray:
    return 5.1 / (4 * np.pi**2) * a**2 - 5 / np.pi * a + 6


def camel(x: np.ndarray) -> np.ndarray:
    a, b = x.T
    return (4 - 2.1 * a**2 + a**4 / 3) * a**2 + a * b + (-4 + 4 * b**2) * b**2


def rastrigin(z: np.ndarray) -> np.ndarray:
    return 10 * z.shape[1] + np.sum(z**2 - 10 * np.cos(2 * np.pi * z), axis=1)


def styblinski(x: np.ndarray) -> np.ndarray:
    return 0.5 * np.sum(x**4 - 16 * x**2 + 5 * x, axis=1)


def ackley(z: np.ndarray) -> np.ndarray:
    root = np.sqrt(np.mean(z**2, axis=1))
    return 20 - 20 * np.exp(-0.2 * root) + np.e - np.exp(np.mean(np.cos(2 * np.pi * z), axis=1))


def two_wells(z: np.ndarray) -> np.ndarray:
    a, others = z[:, 0], z[:, 1:]
    return (a**2 - 1) ** 2 + 0.3 * a + np.sum((others - 0.5 * a[:, None]) ** 2, axis=1)


def least_root(coefficients: Sequence[float]) -> float:
    """The least real root of a polynomial."""
    roots = np.roots(coefficients)
    return float(min(r.real for r in roots if abs(r.imag) < 1e-9))


def increasing(x: np.ndarray) -> np.ndarray:
    a, b, c = x.T
    return a + 0.5 * np.exp(b) + 2 * np.arctan(2 * c)


def decay_2(x: np.ndarray) -> np.ndarray:
    a, b = x.T
    return np.exp(-a) * (1 + 0.5 * b**2)


def decay_4(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * np.array([0.5, 1.0, 1.5, 2.0])) @ np.array([1.0, 2.0, 1.0, 0.5])


def box(n: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    return np.full(n, float(low)), np.full(n, float(high))


def bowls() -> list[Function]:
    """One minimum, inside the box."""
    found = []

    def add(
        name: str, about: str, value: Value, half: float, c: np.ndarray, rows: int, noise: float = 0.0
    ) -> None:
        low, high = box(len(c), -half, half)
        found.append(Function(name, "single", about, value, low, high, c[None], rows, noise))

    def add_rotated(
        name: str,
        about: str,
        shape: Value,
        eigenvalues: np.ndarray,
        half: float,
        rows: int,
        noise: float = 0.0,
    ) -> None:
        n = len(eigenvalues)
        c = center(n, 0.5 * half, seed=n)
        add(name, about, rotated(n, eigenvalues, c, shape, seed=n), half, c, rows, noise)

    for n in (2, 4):
        # In 4 dimensions there is a second, local minimum of 3.70 at (-0.776, 0.613, 0.382, 0.146);
        # the values reach 7,000, so that rows hardly show it.
        add(f"rosenbrock-{n}", "Rosenbrock", rosenbrock, 2, np.ones(n), 2000)
        add(f"rosenbrock-{n}-noise", "Rosenbrock", rosenbrock, 2, np.ones(n), 2000, 0.01)
    add_rotated("quartic-6", "rotated quartic", quartic, np.logspace(0, 0.5, 6), 2, 3000)
    add_rotated(
        "quadratic-3", "rotated quadratic, condition 1,000", square, np.logspace(0, 3, 3), 1, 200, 0.1
    )
    add_rotated(
        "quadratic-20", "rotated quadratic, condition 100", square, np.logspace(0, 2, 20), 1, 5000, 0.01
    )
    add_rotated(
        "quadratic-20-many",
        "rotated quadratic, condition 100",
        square,
        np.logspace(0, 2, 20),
        1,
        100_000,
        0.01,
    )
    add_rotated(
        "log-bowl-8", "log(1 + quadratic), condition 100", log_bowl, np.logspace(0, 2, 8), 1, 1000, 0.05
    )
    add_rotated("cone-5", "sqrt(1 + quadratic), condition 1,000", cone, np.logspace(0, 3, 5), 1, 400, 0.05)
    add_rotated("well-10", "-exp(-quadratic), condition 10", well, np.logspace(-1, 0, 10), 1, 2000, 0.05)
    add_rotated("cosh-4", "sum of cosh, rotated", cosh_bowl, np.array([1.0, 2.0, 4.0, 8.0]), 1.5, 500, 0.01)
    add("banana-3", "curved valley", banana, 1.5, np.array([0.3, 0.09, 0.027]), 300, 0.02)
    add("powell-4", "Powell's singular function", powell, 2, np.zeros(4), 2000, 0.01)
    add("cubic-valley-2", "Leon's function, flat valley", cubic_valley, 1.5, np.ones(2), 1000)
    return found


def several() -> list[Function]:
    """Several minima inside the box."""

    def function(
        name: str,
        about: str,
        value: Value,
        low: Sequence[float],
        high: Sequence[float],
        minimizers,
        rows: int,
        noise=0.0,
    ) -> Function:
        return Function(
            name, "several", about, value, np.array(low), np.array(high), np.array(minimizers), rows, noise
        )

    branin_x = np.array([-np.pi, np.pi, 3 * np.pi])
    camel_x = np.array([0.08984201310, -0.71265640302])
    shift_2, shift_3 = np.array([0.7, -0.4]), np.array([0.9, -0.6, 0.4])
    tilt = least_root([4, 0, -4, 0.3])
    q = rotation(5, seed=5)
    wells_x = tilt * np.array([1, 0.5, 0.5, 0.5, 0.5])
    styblinski_x = least_root([4, 0, -32, 5])
    return [
        function(
            "branin-2",
            "Branin",
            branin,
            [-5, 0],
            [10, 15],
            np.stack([branin_x, branin_valley(branin_x)], axis=1),
            1000,
        ),
        function("camel-2", "six-hump camel", camel, [-2, -1], [2, 1], [camel_x, -camel_x], 1000),
        function(
            "rastrigin-2",
            "Rastrigin, shifted",
            lambda x: rastrigin(x - shift_2),
            [-5.12] * 2,
            [5.12] * 2,
            [shift_2],
            2000,
        ),
        function(
            "styblinski-4", "Styblinski-Tang", styblinski, [-5] * 4, [5] * 4, [[styblinski_x] * 4], 3000
        ),
        function(
            "two-wells-5",
            "two wells, rotated",
            lambda x: two_wells(x @ q),
            [-2] * 5,
            [2] * 5,
            [q @ wells_x],
            2000,
            0.02,
        ),
        function(
            "ackley-3", "Ackley, shifted", lambda x: ackley(x - shift_3), [-4] * 3, [4] * 3, [shift_3], 2000
        ),
    ]


def edges() -> list[Function]:
    """No minimum inside the box: the least value is at its edge."""

    def function(
        name: str, about: str, value: Value, low, high, minimizer, rows: int, noise: float
    ) -> Function:
        return Function(name, "edge", about, value, low, high, np.array([minimizer]), rows, noise)

    def outside(shape: Value, c: np.ndarray, eigenvalues: np.ndarray) -> tuple[Value, np.ndarray]:
        # Along the axes, so that the least value in the box is at the nearest point of the box.
        return (lambda x: shape((x - c) * np.sqrt(eigenvalues))), np.clip(c, -1, 1)

    near, near_x = outside(square, np.array([1.6, 0.3]), np.array([1.0, 5.0]))
    far, far_x = outside(cone, np.array([1.5, -1.4, 0.2, 0.0, -0.5]), np.logspace(0, 1, 5))
    return [
        function(
            "increasing-3", "increasing in every input", increasing, *box(3, -1, 1), [-1.0] * 3, 500, 0.05
        ),
        function("outside-2", "quadratic, minimizer outside", near, *box(2, -1, 1), near_x, 400, 0.02),
        function(
            "outside-5", "sqrt(1 + quadratic), minimizer outside", far, *box(5, -1, 1), far_x, 1000, 0.02
        ),
        function(
            "decay-2",
            "exponential decay",
            decay_2,
            np.array([0.0, -1.0]),
            np.array([4.0, 1.0]),
            [4.0, 0.0],
            300,
            0.02,
        ),
        function("decay-4", "sum of exponential decays", decay_4, *box(4, 0, 3), [3.0] * 4, 1000, 0.02),
    ]


FUNCTIONS: list[Function] = bowls() + several() + edges()
