"""What a user of a table with a number as label would pick: private methods, and models without privacy for scale.

Private methods get the same public bounds of columns and labels and the same (epsilon, delta), and their defaults.
Their predictions are clipped to the public bounds of the labels.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from benchmarks.lib.contenders import DELTA, Predict
from benchmarks.lib.numbers import NumberTable
from dptoolkit.estimators import ScaleToBounds


def _units(table: NumberTable) -> tuple[float, float]:
    """(middle, half) of the public range of the labels."""
    return (table.least + table.most) / 2, (table.most - table.least) / 2


def _clipped(table: NumberTable, predict: Predict) -> Predict:
    return lambda rows: np.clip(np.asarray(predict(rows)), table.least, table.most)


def ours(table: NumberTable, epsilon: float, seed: int) -> Predict:
    """dptoolkit's default, from bounds and budget alone."""
    from dptoolkit import models

    middle, half = _units(table)
    model = models.fit(
        table.X, table.y - middle, task="regression", bounds=(table.lower, table.upper), label_bound=half,
        epsilon=epsilon, delta=DELTA, rng=seed,
    )  # fmt: skip
    return _clipped(table, lambda rows: middle + model.predict(rows))


def perturbed(table: NumberTable, epsilon: float, seed: int) -> Predict:
    """dptoolkit's objective perturbation with the Huber loss, on columns and labels scaled to [-1, 1] by the bounds."""
    from dptoolkit import models

    middle, half = _units(table)
    scale = ScaleToBounds(table.lower, table.upper).fit(table.X)
    model = models.fit(
        scale.transform(table.X), np.clip((table.y - middle) / half, -1, 1), task="regression",
        solver="objective_perturbation", row_norm=float(np.sqrt(table.X.shape[1])), epsilon=epsilon, delta=DELTA,
        rng=seed,
    )  # fmt: skip
    return _clipped(table, lambda rows: middle + half * model.predict(scale.transform(rows)))


def diffprivlib(table: NumberTable, epsilon: float, seed: int) -> Predict:
    """diffprivlib's linear regression, with delta = 0, on columns and labels scaled to [-1, 1] by the bounds."""
    from diffprivlib.models import LinearRegression

    middle, half = _units(table)
    scale = ScaleToBounds(table.lower, table.upper).fit(table.X)
    model = LinearRegression(epsilon=epsilon, bounds_X=(-1.0, 1.0), bounds_y=(-1.0, 1.0), random_state=seed)
    model.fit(scale.transform(table.X), np.clip((table.y - middle) / half, -1, 1))
    return _clipped(table, lambda rows: middle + half * model.predict(scale.transform(rows)))


def boosting(table: NumberTable, epsilon: float, seed: int) -> Predict:
    """interpret's differentially private explainable boosting machine for numbers."""
    privacy = importlib.import_module("interpret.privacy")
    model = privacy.DPExplainableBoostingRegressor(
        epsilon=epsilon, delta=DELTA, privacy_bounds=np.column_stack([table.lower, table.upper]),
        privacy_target_min=table.least, privacy_target_max=table.most, random_state=seed, n_jobs=1,
        feature_types=["continuous"] * table.X.shape[1],
    )  # fmt: skip
    model.fit(table.X, table.y)
    return _clipped(table, model.predict)


def ridge(table: NumberTable, epsilon: float, seed: int) -> Predict:
    """scikit-learn's ridge regression on standardised columns; not private."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    predict: Predict = make_pipeline(StandardScaler(), Ridge()).fit(table.X, table.y).predict
    return predict


def trees(table: NumberTable, epsilon: float, seed: int) -> Predict:
    """scikit-learn's histogram gradient boosting; not private."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    predict: Predict = HistGradientBoostingRegressor(random_state=seed).fit(table.X, table.y).predict
    return predict


PRIVATE: dict[str, Any] = {
    "dptoolkit": ours, "objective perturbation": perturbed, "diffprivlib": diffprivlib, "DP-EBM": boosting,
}  # fmt: skip
OPEN: dict[str, Any] = {"ridge regression": ridge, "boosted trees": trees}
