"""Fits whose setting is chosen privately, inside the same (epsilon, delta): the second result beside a tuned method.

Papers tune on data that no budget is charged for, and so do the figures here. What the choice would cost is shown by
``dptoolkit.tuning``: a random number of runs, each trained on four fifths of the rows and scored on the others with
noise, of which the best is released.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dptoolkit import tuning
from dptoolkit.tuning.search import tune_by
from paper_checks.rates import Array

# Expected runs: about as many as a grid has settings. More would reach each setting more surely and cost more noise.
_RUNS = 6.0
TWO_STAGE = (
    "not possible: the ridge sets what objective perturbation gives away, so one event cannot stand for all settings"
)

TOO_LONG = "left out at this size, for its running time"


def private_choice(
    solver: str, candidates: Sequence[Mapping[str, Any]], X: Any, y: Array, draw: np.random.Generator, **common: Any
) -> Array:
    """Weights of the best of a private choice among ``candidates``; ``common`` has the budget and shared settings.

    Privacy
    -------
    The plan is made of public numbers and of the radius or bounds in ``common``. Papers take some of these from the
    truth, for every method alike; then they are public by assumption.
    """
    n, d = X.shape
    plan = _plan(solver, json.dumps(list(candidates)), n, d, json.dumps(common, sort_keys=True))
    return np.asarray(tune_by(plan, X, y, rng=draw).model.coef)


@functools.lru_cache(maxsize=64)
def _plan(solver: str, candidates: str, n: int, d: int, common: str) -> tuning.TuningPlan:
    """One plan for all data sets of the same size, settings and epsilon."""
    return tuning.plan(solver, json.loads(candidates), n=n, d=d, expected_runs=_RUNS, **json.loads(common))
