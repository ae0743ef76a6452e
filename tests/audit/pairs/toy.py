"""The worst pair and the preset of the small solver in tests/solvers/toy.py."""

from __future__ import annotations

import numpy as np

from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.theory.likelihood import Projection

PRESETS = {"dp_means": {"n": 50, "d": 2, "row_norm": 1.0}}


def dp_means(plan):
    """One record at the row bound, of class 1 or, in the neighbouring data, of class 0; all other rows are zero."""
    X = np.vstack([plan.settings.row_norm * np.eye(1, plan.d), np.zeros((1, plan.d))])
    first, second = (Counted(X, np.array([label, 0.0]), np.array([1, plan.n - 1])) for label in (1.0, 0.0))
    scores = {"final": Projection(np.eye(1, plan.d)[0])}
    return Pair(first, second, plan.adjacency, "one record changes its class", scores)
