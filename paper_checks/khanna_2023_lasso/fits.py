"""Fits on one data set for Figures 1 to 5 of Khanna, Lu and Raff 2023: Two stage, and settings chosen privately."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import solvers
from paper_checks.charged import private_choice
from paper_checks.khanna_2023_lasso.problems import Split
from paper_checks.khanna_2023_lasso.runs import COUNT_EPSILON, SPARSIFIER, STEPS
from paper_checks.measure import accuracy

Array = NDArray[Any]
_VOTES, _BLOCKS = 0.6, 20


def error(rows: tuple[Array, Array], weights: Array) -> float:
    """The share of labels that are predicted wrongly."""
    return 1 - accuracy(*rows, weights)


def two_stages(data: Split, kept: int, epsilon: float, setting: float, draw: np.random.Generator) -> Array:
    """Two stage with a multiple of the least ridge at which any noise gives the second stage its share of epsilon.

    Where a step reads a part of the rows, so do its blocks: its epsilon is that of this part.
    """
    n = len(data.y)
    least = data.row_norm**2 / 4 / (n * math.expm1((1 - _VOTES) * epsilon))
    fit = solvers.two_stage(
        data.X, data.y, loss="logistic", sparsity=kept, blocks=_BLOCKS, row_norm=data.row_norm, l2=setting * least,
        vote_share=_VOTES, epsilon=epsilon, delta=1 / data.train, rng=draw,
    )  # fmt: skip
    return np.asarray(fit.coef)


def privately(data: Split, name: str, settings: Sequence[float], epsilon: float, draw: np.random.Generator) -> Array:
    """Sparsifier or IGHT with its setting chosen privately inside the same (epsilon, delta)."""
    common: dict[str, Any] = {"loss": "logistic", "epsilon": epsilon, "delta": 1 / data.train}
    if name == SPARSIFIER:
        return private_choice(
            "sparsifier", [{"l1_radius": radius} for radius in settings], data.X, data.y, draw, steps=STEPS - 1,
            feature_bound=1.0, count_share=COUNT_EPSILON / epsilon, **common,
        )  # fmt: skip
    return private_choice(
        "dp_ight", [{"step_size": length} for length in settings], data.X, data.y, draw, steps=STEPS,
        sparsity=int(name.split()[-2]), row_norm=data.row_norm, **common,
    )  # fmt: skip
