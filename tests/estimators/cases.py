"""Estimators and data that the tests of this folder share."""

from __future__ import annotations

import numpy as np

from dptoolkit import datasets, estimators

CLASSIFIERS = [
    estimators.PrivateSparseClassifier(random_state=0),
    estimators.PrivateIHTClassifier(random_state=0),
    estimators.PrivateLassoClassifier(random_state=0),
    estimators.PrivateStochasticIHTClassifier(random_state=0),
    estimators.PrivateObjectivePerturbationClassifier(random_state=0),
]
REGRESSORS = [
    estimators.PrivateSparseRegressor(random_state=0),
    estimators.PrivateIHTRegressor(random_state=0),
    estimators.PrivateLassoRegressor(random_state=0),
    estimators.PrivateStochasticIHTRegressor(random_state=0),
]
MORE_METHODS = [
    estimators.PrivateStochasticIHTClassifier(method="svrg", random_state=0),
    estimators.PrivateStochasticIHTClassifier(method="scsg", random_state=0),
    estimators.PrivateStochasticIHTRegressor(method="svrg", random_state=0),
]
TRANSFORMERS = [estimators.ClipRows(), estimators.ScaleToBounds(), estimators.MaxAbsScaling(unsafe=True)]


def name(estimator: object) -> str:
    """The id of a test."""
    return type(estimator).__name__


_KHANNA = datasets.make_khanna(4000, 12, scale=3.0, rng=0)
ROWS, BINARY = _KHANNA.X, _KHANNA.y
_MARGIN = ROWS @ _KHANNA.truth / np.linalg.norm(_KHANNA.truth)
NUMBERS = np.clip(_MARGIN, -1, 1)
# Three classes in equal parts along the same direction, with names.
THREE = np.array(["low", "middle", "top"])[np.digitize(_MARGIN, np.quantile(_MARGIN, [1 / 3, 2 / 3]))]
