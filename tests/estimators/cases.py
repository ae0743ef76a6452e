"""Estimators and data that the tests of this folder share."""

from __future__ import annotations

import numpy as np

from dptoolkit import datasets, estimators

# Bounds of the data below; scikit-learn's own checks run on instances that have them.
ROW, ENTRY, LABEL = {"row_norm": 1.0}, {"feature_bound": 1.0}, {"label_bound": 1.0}
CLASSIFIERS = [
    estimators.PrivateSparseClassifier(random_state=0),
    estimators.PrivateIHTClassifier(**ROW, random_state=0),
    estimators.PrivateLassoClassifier(**ENTRY, random_state=0),
    estimators.PrivateStochasticIHTClassifier(**ROW, random_state=0),
    estimators.PrivateObjectivePerturbationClassifier(**ROW, random_state=0),
]
REGRESSORS = [
    estimators.PrivateSparseRegressor(**ROW, **LABEL, random_state=0),
    estimators.PrivateIHTRegressor(**ROW, **LABEL, random_state=0),
    estimators.PrivateLassoRegressor(**ENTRY, **LABEL, random_state=0),
    estimators.PrivateStochasticIHTRegressor(**ROW, **LABEL, random_state=0),
]
MORE_METHODS = [
    estimators.PrivateStochasticIHTClassifier(**ROW, method="svrg", random_state=0),
    estimators.PrivateStochasticIHTClassifier(**ROW, method="scsg", random_state=0),
    estimators.PrivateStochasticIHTRegressor(**ROW, **LABEL, method="svrg", random_state=0),
]
SEARCHES = [
    estimators.PrivateSearchCV(estimators.PrivateIHTClassifier(**ROW), {"step_size": [1.0, 4.0]}, random_state=0),
    estimators.PrivateSearchCV(estimators.PrivateSparseClassifier(), {"sparsity": [1, None]}, random_state=0),
    estimators.PrivateSearchCV(
        estimators.PrivateSparseRegressor(**ROW, **LABEL), {"sparsity": [1, None]}, random_state=0
    ),
]
TRANSFORMERS = [estimators.ClipRows(1.0), estimators.ScaleToBounds(-1.0, 1.0), estimators.MaxAbsScaling(unsafe=True)]


def iht_classifier(**more: object) -> estimators.PrivateIHTClassifier:
    """A classifier that is quick to fit, with the bound of the rows below."""
    return estimators.PrivateIHTClassifier(**ROW, **more)


def name(estimator: object) -> str:
    """The id of a test."""
    return type(estimator).__name__


_KHANNA = datasets.make_khanna(4000, 12, scale=3.0, rng=0)
ROWS, BINARY = _KHANNA.X, _KHANNA.y
_MARGIN = ROWS @ _KHANNA.truth / np.linalg.norm(_KHANNA.truth)
NUMBERS = np.clip(_MARGIN, -1, 1)
# Three classes in equal parts along the same direction, with names.
THREE = np.array(["low", "middle", "top"])[np.digitize(_MARGIN, np.quantile(_MARGIN, [1 / 3, 2 / 3]))]
