"""LASSO without noise on the data sets of Figures 1 to 5: the line that charts compare private methods with."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from paper_checks.curves import TIGHT
from paper_checks.khanna_2023_lasso import paths
from paper_checks.khanna_2023_lasso.problems import Split
from paper_checks.khanna_2023_lasso.related import RADII, Outcome, error
from paper_checks.khanna_2023_lasso.runs import STEPS
from paper_checks.seeds import Source

# Its name in charts, which say that it has no noise.
NAME = "LASSO"
_WIDEST = 150  # features; parts of KDDCUP'99 have fewer, by which categories they hold


@functools.cache
def without_noise(make: Callable[[np.random.Generator], Split], rng: Source, repetitions: int) -> Outcome:
    """Weights and test errors of Sparsifier's iteration without noise and without a cut, one column for all epsilons.

    The radius is chosen among Sparsifier's on the validation rows of the same data set. Nothing is judged by it.
    """
    weights, errors = [], []
    for number in range(repetitions):
        data = make(rng("data", repetition=number))
        inside, scales = np.ones((len(RADII), len(data.y)), bool), np.zeros(len(RADII))
        draw = rng(solver="no noise")
        path = paths.frank_wolfe(data.X, data.y, inside, np.array(RADII), scales, STEPS - 1, draw)
        best = min(path.weights[STEPS - 1], key=lambda w: error(data.validation, w))
        weights.append([np.pad(best, (0, max(_WIDEST - len(best), 0)))])
        errors.append([error(data.test, best)])
    return Outcome({(TIGHT, NAME): np.array(weights)}, {(TIGHT, NAME): np.array(errors)}, {})
