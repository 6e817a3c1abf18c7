"""Calibration: a device is measured at known inputs; readings are turned back into inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .rows import Rows, generator


@dataclass(frozen=True)
class Calibration:
    """An invertible map, the model that `bilip` fits to it, and what an error of the inverse means.

    `error(x, found)` is the error of every row in `unit`, for the true inputs and those found.
    """

    name: str
    device: str
    """What is measured: tasks of one device have the same rows and splits."""
    about: str
    model: str
    unit: str
    inputs: list[str]
    targets: list[str]
    low: np.ndarray
    high: np.ndarray
    forward: Callable[[np.ndarray], np.ndarray]
    error: Callable[[np.ndarray, np.ndarray], np.ndarray]
    rows: int = 1000

    def sample(self) -> Rows:
        """Rows without noise, uniform in the inputs."""
        x = generator(self.device).uniform(self.low, self.high, (self.rows, len(self.low)))
        return Rows(x, self.forward(x), self.inputs, self.targets)


# ITS-90 reference function of thermocouples of type K (NIST Monograph 175), mV from degrees Celsius:
# polynomials below and above 0, and above 0 an exponential term A exp(B (t - C)^2).
K_BELOW = [
    0.0,
    0.394501280250e-01,
    0.236223735980e-04,
    -0.328589067840e-06,
    -0.499048287770e-08,
    -0.675090591730e-10,
    -0.574103274280e-12,
    -0.310888728940e-14,
    -0.104516093650e-16,
    -0.198892668780e-19,
    -0.163226974860e-22,
]
K_ABOVE = [
    -0.176004136860e-01,
    0.389212049750e-01,
    0.185587700320e-04,
    -0.994575928740e-07,
    0.318409457190e-09,
    -0.560728448890e-12,
    0.560750590590e-15,
    -0.320207200030e-18,
    0.971511471520e-22,
    -0.121047212750e-25,
]
K_EXPONENTIAL = (0.118597600000e00, -0.118343200000e-03, 0.126968600000e03)


def thermocouple_k(t: np.ndarray) -> np.ndarray:
    """Voltage in mV at a temperature in degrees Celsius, from -270 to 1372."""
    a, b, c = K_EXPONENTIAL
    above = np.polynomial.polynomial.polyval(t, K_ABOVE) + a * np.exp(b * (t - c) ** 2)
    return np.where(t < 0, np.polynomial.polynomial.polyval(t, K_BELOW), above)


def thermistor(t: np.ndarray) -> np.ndarray:
    """Resistance in ohm of an NTC thermistor (10 kOhm, B = 3950 K) at degrees Celsius."""
    return 10_000 * np.exp(3950 * (1 / (t + 273.15) - 1 / 298.15))


LINKS = (400.0, 300.0, 150.0)


def arm(q: np.ndarray) -> np.ndarray:
    """Position in mm and orientation in rad of a planar arm, from its three joint angles in rad.

    The determinant of its Jacobian is l1 l2 sin(q2), so it is invertible where the elbow bends to one side.
    """
    angles = np.cumsum(q, axis=1)
    return np.stack([np.cos(angles) @ LINKS, np.sin(angles) @ LINKS, angles[:, 2]], axis=1)


def input_error(x: np.ndarray, found: np.ndarray) -> np.ndarray:
    return np.linalg.norm(found - x, axis=1)


def tool_error(q: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Distance in mm of where the arm goes with the angles found from where it should go."""
    return np.linalg.norm(arm(found)[:, :2] - arm(q)[:, :2], axis=1)


def sensor(
    name: str, about: str, target: str, value: Callable[[np.ndarray], np.ndarray], low: float, high: float
):
    """A sensor of a temperature, fitted by an invertible network and by a monotone layer."""
    ends = np.array([low]), np.array([high])
    return [
        Calibration(
            f"{name}-{model}", name, about, model, "°C", ["celsius"], [target], *ends, value, input_error
        )
        for model in ("bilipnet", "monlip")
    ]


def arms() -> list[Calibration]:
    low, high = np.radians([0.0, 20.0, -60.0]), np.radians([90.0, 120.0, 60.0])
    targets = ["x", "y", "angle"]

    def of_order(name: str, order: list[int]) -> Calibration:
        return Calibration(
            f"{name}-bilipnet",
            "arm",
            f"planar arm of three links, targets {', '.join(targets[i] for i in order)}",
            "bilipnet",
            "mm",
            ["q1", "q2", "q3"],
            [targets[i] for i in order],
            low,
            high,
            lambda q: arm(q)[:, order],
            tool_error,
            2000,
        )

    return [of_order("arm", [0, 1, 2]), of_order("arm-exchanged", [1, 0, 2])]


CALIBRATIONS: list[Calibration] = [
    *sensor("thermocouple-k", "thermocouple of type K, increasing", "millivolt", thermocouple_k, -200, 1372),
    *sensor(
        "thermistor-log",
        "thermistor, log R, decreasing",
        "log_ohm",
        lambda t: np.log(thermistor(t)),
        -20,
        120,
    ),
    *sensor("thermistor", "thermistor, R, decreasing", "ohm", thermistor, -20, 120),
    *arms(),
]
