"""The methods of Figure 2 of Wang and Gu 2020, and its synthetic data.

The text does not say which of its noises was run, so DPSL-KT has three readings: the noise of Theorem 4.3 with the
ridge from the printed grid, the same with the ridge of Theorem 4.5, and the noise of Corollary 4.7 without a ridge.
None of them has a finite epsilon (theorem-4.3, corollary-4.7). With tight noise it is ``solvers.knowledge_transfer``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dptoolkit import datasets, solvers
from paper_checks.charged import TOO_LONG, TWO_STAGE, private_choice
from paper_checks.curves import PUBLISHED, TIGHT, Method
from paper_checks.rates import Array
from paper_checks.transfer import published_student

_DELTA = 0.01
_VOTES, _CURVATURE = 0.6, 4.0  # of two stages: share of epsilon of its votes; smoothness at s* = 10, row_norm^2
_PUBLIC = 1 / 3  # beta~ of entries that are uniform on [-1, 1]
GRID, RULE, NONE, SOUND = (
    "DPSL-KT, ridge from the grid", "DPSL-KT, ridge of Theorem 4.5", "DPSL-KT, no ridge", "DPSL-KT, sound teacher"
)  # fmt: skip
CLIPPED, PLAIN = "Frank-Wolfe, clipped residuals", "Frank-Wolfe, plain loss"


class Size(NamedTuple):
    """Private rows, features, and entries of the truth, which all methods know."""

    n: int
    d: int
    sparsity: int


SMALL = Size(800, 1000, 10)


class Transfer(NamedTuple):
    """A private data set of the paper and public rows from the same law."""

    X: Array
    y: Array
    truth: Array
    public: Array


def maker(task: str, size: Size) -> Callable[[np.random.Generator], Transfer]:
    """Draws data sets of the paper."""

    def make(draw: np.random.Generator) -> Transfer:
        data = datasets.make_transfer(n=size.n, d=size.d, sparsity=size.sparsity, task=task, rng=draw)
        public = draw.uniform(-1, 1, (size.n, size.d))
        return Transfer(np.asarray(data.X), np.asarray(data.y), np.asarray(data.truth), public)

    return make


def methods(task: str, size: Size) -> list[Method]:
    """The methods of the figure."""
    n, d, s = size
    linear = task == "regression"
    loss = "squared" if linear else "logistic"
    base = 2.5 if linear else 10.0
    # Rows on the true support, and labels, grow with the root of s*.
    wide = math.sqrt(s / SMALL.sparsity)
    # At the base step 20 steps leave less than a thousandth of the distance to the minimiser.
    rounds = 50 if size == SMALL else 20
    bound = {"grad_norm": 10.0 * wide**2} if linear else {"row_norm": math.sqrt(d * _PUBLIC)}
    # A bound that few labels exceed, for the plain loss of Frank-Wolfe and for scores of regression.
    labels = 6.0 * wide
    scored = {"score_bound": labels} if linear else {}

    def plain(data: Transfer, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        return np.asarray(solvers.ight(data.X, data.y, loss=loss, sparsity=s, steps=60, step_size=setting).coef)

    def transferred(form: str) -> Any:
        def fit(data: Transfer, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
            unit = math.sqrt(s * math.log(d) * math.log(1 / _DELTA)) / (n * epsilon)
            ridge = setting * unit if form == GRID else math.sqrt(setting * unit) if form == RULE else 0.0
            step = base * setting if form == NONE else base
            # Without a ridge mu stands in its place: the curvature of the mean loss, at most beta~ or beta~/4.
            modulus = ridge if form != NONE else _PUBLIC if linear else _PUBLIC / 4
            return published_student(
                data.X, data.y, data.public, linear=linear, sparsity=s, ridge=ridge, modulus=modulus,
                covariance=_PUBLIC, step=step, student_step=2.5, epsilon=epsilon, delta=_DELTA, draw=draw,
                teacher_steps=rounds, student_steps=rounds,
            )  # fmt: skip

        return fit

    def sound(data: Transfer, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        fit = solvers.knowledge_transfer(
            data.X, data.y, loss="huber" if linear else "logistic", sparsity=s, feature_bound=1.0, row_norm=1.8 * wide,
            selection_share=setting, epsilon=epsilon, delta=_DELTA, rng=draw,
        )  # fmt: skip
        return np.asarray(fit.coef)

    def thresholding(data: Transfer, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        steps, step = setting
        fit = solvers.dp_ight(data.X, data.y, loss=loss, sparsity=s, steps=steps, step_size=step, epsilon=epsilon,
                              delta=_DELTA, calibration=_calibration(noise), rng=draw, **bound)  # fmt: skip
        return np.asarray(fit.coef)

    def model(data: Transfer, clipped: bool) -> dict[str, Any]:
        loss = {"loss": "huber"} if clipped else {"loss": "squared", "label_bound": labels}
        return {"l1_radius": float(np.abs(data.truth).sum()), "feature_bound": 1.0, **loss}

    def vertices(data: Transfer, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        steps, clipped = setting
        fit = solvers.dp_frank_wolfe(
            data.X, data.y, steps=steps, epsilon=epsilon, delta=_DELTA, calibration=_calibration(noise),
            law="laplace" if noise == PUBLISHED else None, rng=draw, **model(data, clipped),
        )  # fmt: skip
        return np.asarray(fit.coef)

    def stages(data: Transfer, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        # The multiples of the least ridge at which any noise gives the second stage its share of epsilon.
        least = _CURVATURE * wide**2 / (n * math.expm1((1 - _VOTES) * epsilon))
        fit = solvers.two_stage(
            data.X, data.y, loss="huber", l2=setting * least, row_norm=2.0 * wide, sparsity=s, blocks=8,
            vote_share=_VOTES, epsilon=epsilon, delta=_DELTA, rng=draw,
        )  # fmt: skip
        return np.asarray(fit.coef)

    sizes = (0.6, 1.2, 2.5) if linear else (0.3, 1.0, 3.0)
    pairs = [(steps, step) for steps in (2, 8) for step in sizes]
    shares = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    counts = (5, 10, 20, 40, 80, 160) if size == SMALL else (5, 10, 20, 40, 60, 80)

    def chosen_ight(data: Transfer, epsilon: float, draw: np.random.Generator) -> Array:
        candidates = [{"steps": steps, "step_size": step} for steps, step in pairs]
        return private_choice("dp_ight", candidates, data.X, data.y, draw, epsilon=epsilon, delta=_DELTA, loss=loss,
                              sparsity=s, **bound, **scored)  # fmt: skip

    def chosen_sound(data: Transfer, epsilon: float, draw: np.random.Generator) -> Array:
        return private_choice(
            "knowledge_transfer", [{"selection_share": share} for share in shares], data.X, data.y, draw,
            epsilon=epsilon, delta=_DELTA, loss="huber" if linear else "logistic", sparsity=s, feature_bound=1.0,
            row_norm=1.8 * wide, **scored,
        )  # fmt: skip

    def chosen_vertices(clipped: bool) -> Any:
        if size != SMALL:
            return TOO_LONG

        def fit(data: Transfer, epsilon: float, draw: np.random.Generator) -> Array:
            candidates = [{"steps": steps} for steps in counts]
            return private_choice("dp_frank_wolfe", candidates, data.X, data.y, draw, epsilon=epsilon, delta=_DELTA,
                                  **model(data, clipped), **scored)  # fmt: skip

        return fit

    found = [
        Method("IGHT", plain, [base * share for share in (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)], (TIGHT,), private=False),
        Method("DP-IGHT", thresholding, pairs, charged=chosen_ight),
        Method(GRID, transferred(GRID), [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0], (PUBLISHED,)),
        Method(RULE, transferred(RULE), [0.1, 0.3, 1.0, 3.0, 10.0, 30.0], (PUBLISHED,)),
        Method(NONE, transferred(NONE), [0.2, 0.4, 0.6, 0.8, 1.0, 1.2], (PUBLISHED,)),
        Method(SOUND, sound, shares, (TIGHT,), charged=chosen_sound),
    ]
    if linear:
        # With 50 features and epsilon 5 a ridge of 1.2 times the least leaves nothing for the votes.
        ridges = [1.1, 1.5, 2.0, 4.0, 8.0, 16.0] if size == SMALL else [1.5, 2.0, 3.0, 4.0, 8.0, 16.0]
        found += [
            Method(CLIPPED, vertices, [(steps, True) for steps in counts], charged=chosen_vertices(True)),
            Method(PLAIN, vertices, [(steps, False) for steps in counts], charged=chosen_vertices(False)),
            Method("Two stage", stages, ridges, (TIGHT,), charged=TWO_STAGE),
        ]
    return found


def _calibration(noise: str) -> str:
    return "published" if noise == PUBLISHED else "tight"


def relative_error(data: Any, weights: Array) -> float:
    """The distance from the truth over its norm."""
    return float(np.linalg.norm(weights - data.truth) / np.linalg.norm(data.truth))
