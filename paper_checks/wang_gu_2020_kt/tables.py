"""Table 3 of Wang and Gu 2020, test errors on RCV1, beside runs on a stand-in.

The paper draws 20,000 features and halves the training rows at random: one half is private, the other public. It does
not say whether the other methods got one half or all rows, nor how beta~ was estimated, so there are readings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit import solvers
from paper_checks import rcv1
from paper_checks.charged import private_choice
from paper_checks.constants import published
from paper_checks.curves import PUBLISHED, STUDENT, TIGHT, Method, order, with_charged
from paper_checks.findings import Finding
from paper_checks.rates import Array
from paper_checks.rcv1 import SPARSITY, Split
from paper_checks.seeds import Rng
from paper_checks.tables import Table
from paper_checks.transfer import published_student

_DELTA, _FEATURES = 1e-5, 20_000
HALF, ALL = "DP-IGHT, private half", "DP-IGHT, all rows"
NORM, DIAGONAL, RULE, SOUND = (
    "DPSL-KT, ridge from the grid", "DPSL-KT, beta~ the largest variance", "DPSL-KT, ridge of Theorem 4.5",
    "DPSL-KT, sound teacher",
)  # fmt: skip
_CURVES = {"Frank-Wolfe": ["Frank-Wolfe"], "Two stage": ["Two stage"], "DP-IGHT": [HALF, ALL]}


def rcv1_errors(
    rng: Rng, table: Table, budgets: list[float], factor: float, repetitions: int, data_home: str | None = None
) -> Finding:
    """All cells, and the order of the methods by paired Student's tests over splits."""
    methods = [
        rcv1.hard_thresholding(HALF, _DELTA, half=True), rcv1.hard_thresholding(ALL, _DELTA), rcv1.vertices(_DELTA),
        rcv1.two_stages(_DELTA), *(_printed(form) for form in (NORM, DIAGONAL, RULE)), _sound(),
    ]  # fmt: skip
    data = rcv1.splits(data_home, halved=True, features=_FEATURES)
    figure, baseline = rcv1.run(rng, methods, budgets, data, repetitions, redrawn=True)
    readings = [NORM, DIAGONAL, RULE]
    found = rcv1.cells(table, figure, baseline, {**_CURVES, "DPSL-KT": [*readings, SOUND]}, factor, _true_epsilon)
    ranking = order(figure, "DPSL-KT", _CURVES, forms={PUBLISHED: readings, TIGHT: [SOUND]}, test=STUDENT)
    words, rows = f"{found.computed}; {ranking.computed}", (*found.rows, *ranking.rows)
    return with_charged(Finding(found.verdict, words, rows, charts=rcv1.pictures(table, figure, baseline)), figure)


def _true_epsilon(epsilon: float) -> float:
    return published.ight_corollary_5_8(20_242, 15, 1.0, epsilon, _DELTA).upper


def _printed(form: str) -> Method:
    """The printed mechanism. mu is 0 on these rows, where many features never occur, so there is no form without."""

    def fit(data: Split, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        constant, student_steps = setting
        X, y, public = data.X[: data.private], data.y[: data.private], data.X[data.private :]
        unit = math.sqrt(SPARSITY * math.log(_FEATURES) * math.log(1 / _DELTA)) / (len(y) * epsilon)
        ridge = math.sqrt(constant * unit) if form == RULE else constant * unit
        norm = _covariance_norm(public)
        covariance = float(public.multiply(public).mean(axis=0).max()) if form == DIAGONAL else norm
        return published_student(
            X, y, public, linear=False, sparsity=SPARSITY, ridge=ridge, modulus=ridge, covariance=covariance,
            step=256.0, student_step=1 / norm, student_steps=student_steps, epsilon=epsilon, delta=_DELTA, draw=draw,
        )  # fmt: skip

    # A student of few steps is less exact and less noisy: the paper has "large enough" numbers of steps.
    return Method(form, fit, [(c, steps) for c in (0.1, 1.0, 10.0) for steps in (5, 50)], (PUBLISHED,))


def _covariance_norm(public: Any) -> float:
    """The largest eigenvalue of the second moments of the public rows."""
    vector = np.ones(public.shape[1])
    size = 0.0
    for _ in range(20):
        vector = public.T @ (public @ vector) / public.shape[0]
        size = float(np.linalg.norm(vector))
        vector /= size
    return size


def _sound() -> Method:
    """Knowledge transfer with a teacher whose change is bounded, and tight noise; at most ``SPARSITY`` features."""

    def fit(data: Split, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        kept, share = setting
        found = solvers.knowledge_transfer(
            data.X[: data.private], data.y[: data.private], loss="logistic", sparsity=kept, row_norm=1.0,
            selection_share=share, epsilon=epsilon, delta=_DELTA, rng=draw,
        )  # fmt: skip
        return np.asarray(found.coef)

    grid = [(kept, share) for kept in (20, 50, 100) for share in (0.4, 0.7)]

    def chosen(data: Split, epsilon: float, draw: np.random.Generator) -> Array:
        candidates = [{"sparsity": kept, "selection_share": share} for kept, share in grid]
        X, y = data.X[: data.private], data.y[: data.private]
        return private_choice("knowledge_transfer", candidates, X, y, draw, epsilon=epsilon, delta=_DELTA,
                              loss="logistic", row_norm=1.0)  # fmt: skip

    return Method(SOUND, fit, grid, (TIGHT,), charged=chosen)
