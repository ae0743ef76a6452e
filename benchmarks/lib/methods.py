"""Fits of dp_pipeline with constants of its rules changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.lib.problems import Problem
from dptoolkit import solvers
from dptoolkit.solvers.frame import rules

# Constants of the rules and their values.
Setting = dict[str, float]


@contextmanager
def changed(constants: Setting) -> Iterator[None]:
    """The rules with other constants."""
    before = {name: getattr(rules, name) for name in constants}
    for name, value in constants.items():
        setattr(rules, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(rules, name, value)


@dataclass(frozen=True)
class Fits:
    """Margins of the test rows and the number of features of several fits."""

    margins: list[Any]
    features: list[int]


def pipeline_fits(problem: Problem, setting: Setting, seeds: int, **more: Any) -> Fits:
    """Fits of dp_pipeline from the seeds 0, 1, ...; ``more`` are the budget and other arguments."""
    n, d = problem.X.shape
    arguments: dict[str, Any] = {"loss": "logistic"}
    if problem.kind == "classes":
        arguments = {"loss": "softmax", "classes": problem.classes}
    elif problem.kind == "numbers":
        arguments = {"loss": "squared", "row_norm": 1.0, "label_bound": 1.0}
    with changed(setting):
        plan = solvers.plan("dp_pipeline", n=n, d=d, **arguments | more)
        results = solvers.fit_many(plan, problem.rows, problem.y, seeds=range(seeds))
    return Fits(
        [solvers.margins(result, problem.X_test, n_features=d) for result in results],
        [int(np.count_nonzero(np.atleast_2d(result.coef).any(axis=0))) for result in results],
    )
