"""The functions have the minima that are taken for true, and sensors their reference values."""

import unittest

import numpy as np
from scipy.optimize import minimize

from tables.calibration import CALIBRATIONS, arm, thermistor, thermocouple_k
from tables.functions import FUNCTIONS, Function
from tables.rows import generator, split


def gradient(f: Function, x: np.ndarray) -> np.ndarray:
    """Central differences."""
    steps = 1e-5 * (f.high - f.low) * np.eye(f.inputs)
    return (f.value(x + steps) - f.value(x - steps)) / (2e-5 * (f.high - f.low))


class Minima(unittest.TestCase):
    def test_known_minima_have_their_published_values(self):
        published = {
            "branin-2": 0.39788735772973816,
            "camel-2": -1.0316284534898774,
            "styblinski-4": -156.66466281508568,
            "rastrigin-2": 0.0,
            "ackley-3": 0.0,
            "rosenbrock-4": 0.0,
            "powell-4": 0.0,
            "log-bowl-8": 0.0,
            "well-10": -1.0,
        }
        found = {f.name: f.minimum for f in FUNCTIONS}
        for name, value in published.items():
            self.assertAlmostEqual(found[name], value, delta=1e-9, msg=name)

    def test_minimizers_are_in_the_box_and_equally_low(self):
        for f in FUNCTIONS:
            with self.subTest(f.name):
                values = f.value(f.minimizers)
                self.assertTrue(all(f.inside(x) for x in f.minimizers))
                self.assertLess(np.ptp(values), 1e-9)

    def test_the_gradient_vanishes_at_a_minimizer_or_points_into_the_box(self):
        for f in FUNCTIONS:
            if f.name.startswith(("ackley", "cone")):
                continue  # Ackley has a kink there; the cone's curvature is that of the step.
            for x in f.minimizers:
                with self.subTest(f.name):
                    slope = gradient(f, x) * (f.high - f.low) / f.spread
                    at_low, at_high = x <= f.low + 1e-12, x >= f.high - 1e-12
                    self.assertTrue(np.all(slope[at_low] > 0))
                    self.assertTrue(np.all(slope[at_high] < 0))
                    self.assertLess(np.abs(slope[~at_low & ~at_high]).max(initial=0), 1e-6)
                    self.assertEqual(bool(np.any(at_low | at_high)), f.group == "edge")

    def test_no_point_of_the_box_is_lower(self):
        for f in FUNCTIONS:
            with self.subTest(f.name):
                random = generator(f.name, 99)
                points = random.uniform(f.low, f.high, (20_000, f.inputs))
                near = f.minimizers[0] + 0.01 * (f.high - f.low) * random.standard_normal((2000, f.inputs))
                points = np.concatenate([points, np.clip(near, f.low, f.high)])
                self.assertGreaterEqual(f.value(points).min(), f.minimum - 1e-12 * f.spread)

    def test_functions_of_one_minimum_have_no_second_one_in_the_box(self):
        for f in FUNCTIONS:
            # Rosenbrock's function has a second, shallow minimum from 4 dimensions on.
            if f.group != "single" or f.name.startswith("rosenbrock-4") or f.name.endswith("-many"):
                continue
            with self.subTest(f.name):
                for start in generator(f.name, 98).uniform(f.low, f.high, (8, f.inputs)):
                    found = minimize(
                        lambda x, f=f: float(f.value(x[None])[0]) / f.spread,
                        start,
                        bounds=list(zip(f.low, f.high, strict=True)),
                        method="L-BFGS-B",
                        options={"maxfun": 100_000, "maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
                    )
                    self.assertLess(found.fun - f.minimum / f.spread, 1e-4)

    def test_rosenbrock_in_four_dimensions_has_the_second_minimum_that_is_documented(self):
        f = next(f for f in FUNCTIONS if f.name == "rosenbrock-4")
        found = minimize(lambda x: f.value(x[None])[0], [-0.776, 0.613, 0.382, 0.146], options={"gtol": 1e-8})
        self.assertAlmostEqual(found.fun, 3.7014, places=3)
        self.assertLess(np.abs(found.x - [-0.776, 0.613, 0.382, 0.146]).max(), 2e-3)


class Rows(unittest.TestCase):
    def test_splits_are_the_same_every_time_and_share_no_row(self):
        rows = next(f for f in FUNCTIONS if f.name == "banana-3").sample()
        train, test = split(rows, "banana-3", 0)
        again, _ = split(rows, "banana-3", 0)
        other, _ = split(rows, "banana-3", 1)
        self.assertEqual((len(train), len(test)), (240, 60))
        self.assertTrue(np.array_equal(train.x, again.x))
        self.assertFalse(np.array_equal(train.x, other.x))
        self.assertFalse({tuple(x) for x in train.x} & {tuple(x) for x in test.x})

    def test_noise_is_a_share_of_the_standard_deviation(self):
        f = next(f for f in FUNCTIONS if f.name == "quadratic-20")
        rows = f.sample()
        noise = rows.y[:, 0] - f.value(rows.x)
        self.assertAlmostEqual(noise.std() / f.spread, f.noise, delta=0.05 * f.noise)


class Sensors(unittest.TestCase):
    def test_a_thermocouple_gives_the_voltages_of_the_tables(self):
        # NIST ITS-90 tables of type K, rounded to 1 microvolt.
        tables = {-200: -5.891, -100: -3.554, 0: 0.0, 100: 4.096, 500: 20.644, 1000: 41.276, 1372: 54.886}
        found = thermocouple_k(np.array(list(tables), dtype=float))
        self.assertLess(np.abs(found - list(tables.values())).max(), 0.00051)

    def test_a_thermistor_has_its_nominal_resistance(self):
        self.assertAlmostEqual(float(thermistor(np.array(25.0))), 10_000, delta=1e-6)

    def test_sensors_are_monotone_and_the_arm_is_invertible(self):
        for c in CALIBRATIONS:
            with self.subTest(c.name):
                if len(c.inputs) == 1:
                    steps = np.diff(c.forward(np.linspace(c.low, c.high, 2000))[:, 0])
                    self.assertTrue(np.all(steps > 0) or np.all(steps < 0))
                    self.assertEqual(bool(steps[0] < 0), "decreasing" in c.about)
        q = next(c for c in CALIBRATIONS if c.name == "arm-bilipnet").sample().x[:50]
        steps = 1e-6 * np.eye(3)
        for x in q:
            jacobian = (arm(x + steps) - arm(x - steps)) / 2e-6
            self.assertGreater(np.linalg.det(jacobian), 1e4)


if __name__ == "__main__":
    unittest.main()
