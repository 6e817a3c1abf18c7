"""The four alternatives, with the same settings for every task, and their minimizers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

GP_ROWS = 1500
"""Rows of a Gaussian process at most: its cost grows with their cube."""

GP_FIRST_ROWS = 500
"""Rows on which its length scales are found before they are refined on all."""

GP_REFINEMENTS = 30
"""Steps of that; after 10, intervals were still too narrow."""

Predict = Callable[[np.ndarray], np.ndarray]
"""From points `[rows, inputs]` to a value each."""


@dataclass(frozen=True)
class Fitted:
    """A fitted alternative of one target."""

    predict: Predict
    smooth: bool
    """Whether a gradient method can minimize it."""
    rows: int
    """Rows that it was fitted to."""
    note: str = ""
    deviation: Predict | None = None
    """Standard deviation of a new measurement, if it has one."""


def quadratic(x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Fitted:
    """All terms up to the second order; the ridge is chosen by leave-one-out validation."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    model = make_pipeline(
        StandardScaler(),
        PolynomialFeatures(2, include_bias=False),
        StandardScaler(),
        RidgeCV(alphas=np.logspace(-8, 4, 25)),
    ).fit(x, y)
    return Fitted(model.predict, True, len(x), f"ridge {model[-1].alpha_:.1e}")


def mlp(x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Fitted:
    """Two hidden layers of 128 units, Adam, stopped early on a tenth of the rows."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPRegressor(
        hidden_layer_sizes=(128, 128),
        batch_size=int(np.clip(len(x) // 20, 16, 200)),
        max_iter=1000,
        early_stopping=True,
        n_iter_no_change=40,
        tol=1e-5,
        random_state=int(random.integers(2**31)),
    )
    model = TransformedTargetRegressor(make_pipeline(StandardScaler(), network), transformer=StandardScaler())
    model.fit(x, y)
    return Fitted(model.predict, True, len(x), f"{model.regressor_[-1].n_iter_} epochs")


def gp(x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Fitted:
    """A Matérn-5/2 kernel with a length scale per input, and white noise."""
    from scipy.optimize import minimize as scipy_minimize
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-12)
    chosen = random.permutation(len(x))[:GP_ROWS]
    first = chosen[:GP_FIRST_ROWS]
    z = (x - mean) / scale

    def briefly(objective, start, bounds):
        found = scipy_minimize(
            objective, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": GP_REFINEMENTS}
        )
        return found.x, found.fun

    # The limits keep the condition of the matrix of 1,500 rows below 1e15.
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * Matern(
        np.full(x.shape[1], np.sqrt(x.shape[1])), (1e-2, 1e3), nu=2.5
    ) + WhiteKernel(1e-2, (1e-7, 10))
    process = GaussianProcessRegressor(
        kernel, normalize_y=True, n_restarts_optimizer=1, random_state=int(random.integers(2**31))
    )
    process.fit(z[first], y[first])
    if len(chosen) > len(first):
        process = GaussianProcessRegressor(process.kernel_, normalize_y=True, optimizer=briefly)
        process.fit(z[chosen], y[chosen])

    def deviation(at: np.ndarray) -> np.ndarray:
        return process.predict((at - mean) / scale, return_std=True)[1]

    note = f"a sample of {len(chosen)} rows" if len(chosen) < len(x) else ""
    return Fitted(lambda at: process.predict((at - mean) / scale), True, len(chosen), note, deviation)


def trees(x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Fitted:
    """XGBoost, or the trees of scikit-learn where it is not installed, stopped early."""
    seed = int(random.integers(2**31))
    try:
        import xgboost
    except ImportError:
        import sklearn
        from sklearn.ensemble import HistGradientBoostingRegressor

        model = HistGradientBoostingRegressor(
            learning_rate=0.05,
            max_iter=2000,
            early_stopping=True,
            validation_fraction=0.1,
            n_iter_no_change=50,
            random_state=seed,
        )
        model.fit(x, y)
        return Fitted(model.predict, False, len(x), f"HistGradientBoosting {sklearn.__version__}")
    order = random.permutation(len(x))
    held_out = max(1, len(x) // 10)
    model = xgboost.XGBRegressor(
        n_estimators=2000,
        learning_rate=0.05,
        max_depth=6,
        subsample=0.8,
        early_stopping_rounds=50,
        random_state=seed,
        n_jobs=None,
    )
    test, train = order[:held_out], order[held_out:]
    model.fit(x[train], y[train], eval_set=[(x[test], y[test])], verbose=False)
    return Fitted(lambda at: model.predict(at).astype(float), False, len(x), f"XGBoost {xgboost.__version__}")


ALTERNATIVES: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator], Fitted]] = {
    "quadratic": quadratic,
    "mlp": mlp,
    "gp": gp,
    "trees": trees,
}


def fit(method: str, x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> Fitted:
    """Fits an alternative to one target."""
    with warnings.catch_warnings():
        # Of lengths at their limits and of epochs used up; neither changes what is measured.
        warnings.simplefilter("ignore")
        return ALTERNATIVES[method](x, y, random)


def minimize(fitted: Fitted, x: np.ndarray, y: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The minimizer of an alternative in the box of the training rows, as far as it can be found."""
    low, high = x.min(axis=0), x.max(axis=0)
    width = np.maximum(high - low, 1e-300)

    def value(unit: np.ndarray) -> np.ndarray:
        return fitted.predict(low + unit * width)

    unit = (x - low) / width
    search = by_gradient if fitted.smooth else by_chance
    best = search(value, unit, y, random)
    return np.clip(low + best * width, low, high)


def by_gradient(value: Predict, rows: np.ndarray, y: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """L-BFGS-B from the best rows, predicted and measured, and from random points."""
    from scipy.optimize import minimize as scipy_minimize

    n = rows.shape[1]
    step = 1e-4
    steps = step * np.concatenate([np.zeros((1, n)), np.eye(n), -np.eye(n)])
    predicted = value(rows)
    scale = max(float(predicted.std()), 1e-300)

    def objective(at: np.ndarray) -> tuple[float, np.ndarray]:
        around = value(at + steps) / scale
        return float(around[0]), (around[1 : n + 1] - around[n + 1 :]) / (2 * step)

    # Many: a Gaussian process of a curved valley has several minima along it.
    anywhere = random.uniform(size=(2000, n))
    starts = np.concatenate(
        [
            rows[np.argsort(predicted)[:16]],
            rows[np.argsort(y)[:8]],
            anywhere[np.argsort(value(anywhere))[:12]],
            anywhere[:12],
        ]
    )
    found = [
        scipy_minimize(
            objective,
            start,
            jac=True,
            bounds=[(0, 1)] * n,
            method="L-BFGS-B",
            options={"ftol": 1e-14, "gtol": 1e-9},
        )
        for start in starts
    ]
    # A line search may end above its start where a network has kinks.
    points = np.concatenate([np.stack([f.x for f in found]), starts])
    return points[np.argmin(value(points))]


def by_chance(value: Predict, rows: np.ndarray, y: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The best of the rows and of random points, improved by random steps around the best few."""
    n = rows.shape[1]
    points = np.concatenate([rows, random.uniform(size=(20_000, n))])
    values = value(points)
    for radius in (0.2, 0.1, 0.05, 0.02, 0.01, 0.005):
        best = np.argsort(values, kind="stable")[:10]
        near = np.repeat(points[best], 200, axis=0)
        near = np.clip(near + radius * random.standard_normal(near.shape), 0, 1)
        points = np.concatenate([points[best], near])
        values = np.concatenate([values[best], value(near)])
    return points[np.argmin(values)]
