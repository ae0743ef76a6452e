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
    from dptoolkit.estimators.linear import (
        PrivateIHTClassifier,
        PrivateIHTRegressor,
        PrivateLassoClassifier,
        PrivateLassoRegressor,
        PrivateObjectivePerturbationClassifier,
        PrivateSparseClassifier,
        PrivateSparseRegressor,
        PrivateStochasticIHTClassifier,
        PrivateStochasticIHTRegressor,
    )
    from dptoolkit.estimators.preparation import ClipRows, MaxAbsScaling, ScaleToBounds, UnsafeWarning
    from dptoolkit.estimators.search import PrivateSearchCV
    from dptoolkit.estimators.wrappers import TuningWarning

__all__ = [
    "ClipRows", "MaxAbsScaling", "PrivateIHTClassifier", "PrivateIHTRegressor", "PrivateLassoClassifier",
    "PrivateLassoRegressor", "PrivateObjectivePerturbationClassifier", "PrivateSearchCV", "PrivateSparseClassifier",
    "PrivateSparseRegressor", "PrivateStochasticIHTClassifier", "PrivateStochasticIHTRegressor", "ScaleToBounds",
    "TuningWarning", "UnsafeWarning", "load",
]  # fmt: skip

# What is not in ``linear``, by module.
_HOMES = {
    "ClipRows": "preparation", "MaxAbsScaling": "preparation", "PrivateSearchCV": "search",
    "ScaleToBounds": "preparation", "TuningWarning": "wrappers", "UnsafeWarning": "preparation", "load": "base",
}  # fmt: skip

# For what a notebook shows of an estimator, scikit-learn parses the docstring of its class, and warns of sections that
# it does not know. Every docstring of ours has this one.
warnings.filterwarnings("ignore", message="Unknown section Privacy", category=UserWarning)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dptoolkit.estimators' has no attribute {name!r}")
    try:
        # validate_data is the newest name that we use: it came with 1.6.
        from sklearn.utils.validation import validate_data  # noqa: F401
    except ImportError:
        raise missing("scikit-learn 1.6 or newer", "sklearn", f"for {name}") from None
    return getattr(importlib.import_module(f"dptoolkit.estimators.{_HOMES.get(name, 'linear')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
