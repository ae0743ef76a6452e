"""LASSO without noise on the data sets of Figures 1 to 5: the line that charts compare private methods with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paper_checks.curves import TIGHT
from paper_checks.khanna_2023_lasso import paths
from paper_checks.khanna_2023_lasso.fits import error
from paper_checks.khanna_2023_lasso.outcomes import Outcome, as_part, of_part
from paper_checks.khanna_2023_lasso.problems import Split
from paper_checks.khanna_2023_lasso.related import RADII
from paper_checks.khanna_2023_lasso.runs import STEPS
from paper_checks.seeds import Source
from paper_checks.shared import Shared

# Its name in charts, which say that it has no noise.
NAME = "LASSO"
SYNTHETIC, KDDCUP = "synthetic", "KDDCUP'99"
_WIDEST = 150  # features; parts of KDDCUP'99 have fewer, by which categories they hold


def without_noise(
    shared: Shared, label: str, make: Callable[[np.random.Generator], Split], repetitions: int
) -> Outcome:
    """What ``measured`` gives on the data sets of the figures, made once for all of them."""
    rng = shared.source.of("figures")
    data = ("kddcup99",) if label == KDDCUP else ()
    name = f"figures without noise, {label}, {repetitions} sets"
    return of_part(shared.part(name, lambda: as_part(measured(make, rng, repetitions)), data=data))


def measured(make: Callable[[np.random.Generator], Split], rng: Source, repetitions: int) -> Outcome:
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
    return Outcome({(TIGHT, NAME): np.array(weights)}, {(TIGHT, NAME): np.array(errors)}, {(TIGHT, NAME): []})
