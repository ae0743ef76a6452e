"""Private sparse models as scikit-learn estimators, and private preparation of rows.

scikit-learn is an extra: it is imported on first use, and its absence is said in one line with the repair.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import missing

if TYPE_CHECKING:
    from dptoolkit.estimators.base import load
    from dptoolkit.estimators.classifiers import (
        PrivateIHTClassifier,
        PrivateLassoClassifier,
        PrivateObjectivePerturbationClassifier,
        PrivateSparseClassifier,
        PrivateStochasticIHTClassifier,
    )
    from dptoolkit.estimators.preparation import ClipRows, MaxAbsScaling, ScaleToBounds, UnsafeWarning
    from dptoolkit.estimators.regressors import (
        PrivateIHTRegressor,
        PrivateLassoRegressor,
        PrivateSparseRegressor,
        PrivateStochasticIHTRegressor,
    )
    from dptoolkit.estimators.search import PrivateSearchCV
    from dptoolkit.estimators.wrappers import TuningWarning

_HOMES = {
    "ClipRows": "preparation", "MaxAbsScaling": "preparation", "ScaleToBounds": "preparation",
    "UnsafeWarning": "preparation", "TuningWarning": "wrappers", "load": "base",
    "PrivateIHTClassifier": "classifiers", "PrivateLassoClassifier": "classifiers",
    "PrivateObjectivePerturbationClassifier": "classifiers", "PrivateSparseClassifier": "classifiers",
    "PrivateStochasticIHTClassifier": "classifiers", "PrivateIHTRegressor": "regressors",
    "PrivateLassoRegressor": "regressors", "PrivateSparseRegressor": "regressors",
    "PrivateStochasticIHTRegressor": "regressors", "PrivateSearchCV": "search",
}  # fmt: skip
__all__ = [
    "ClipRows", "MaxAbsScaling", "PrivateIHTClassifier", "PrivateIHTRegressor", "PrivateLassoClassifier",
    "PrivateLassoRegressor", "PrivateObjectivePerturbationClassifier", "PrivateSearchCV", "PrivateSparseClassifier",
    "PrivateSparseRegressor", "PrivateStochasticIHTClassifier", "PrivateStochasticIHTRegressor", "ScaleToBounds",
    "TuningWarning", "UnsafeWarning", "load",
]  # fmt: skip

# For what a notebook shows of an estimator, scikit-learn parses the docstring of its class, and warns of sections that
# it does not know. Every docstring of ours has this one.
warnings.filterwarnings("ignore", message="Unknown section Privacy", category=UserWarning)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dptoolkit.estimators' has no attribute {name!r}")
    try:
        # validate_data is the newest name that we use: it came with 1.6.
        from sklearn.utils.validation import validate_data  # noqa: F401
    except ImportError:
        raise missing("scikit-learn 1.6 or newer", "sklearn", f"for {name}") from None
    return getattr(importlib.import_module(f"dptoolkit.estimators.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
