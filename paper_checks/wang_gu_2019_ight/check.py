"""Verdicts on Wang and Gu 2019: every noise is Gaussian, so every number is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit import solvers
from dptoolkit.audit.pairs import Counted, Pair
from paper_checks.audits import Audited, hard_thresholding, printed_noise
from paper_checks.constants import published
from paper_checks.verdict import Verdict, judge

# Records, and the step, of the audit of logistic regression: so many that noise hardly moves the weights, and a step so
# long that every margin is far from 0 after the first.
_MANY, _LONG_STEP, _TILT = 1_000_000, 1e5, 0.02


def theorem_5_2(**at: Any) -> Verdict:
    """rho-zCDP from variance T G^2 / (n^2 rho)."""
    return judge(published.ight_theorem_5_2(**at))


def remark_5_3(**at: Any) -> Verdict:
    """(epsilon, delta) through the conversion of Lemma 3.4."""
    return judge(published.ight_remark_5_3(**at))


def remark_5_3_simple(**at: Any) -> Verdict:
    """(epsilon, delta) from the rounded variance of the same remark."""
    return judge(published.ight_remark_5_3_simple(**at))


def corollary_5_6(**at: Any) -> Verdict:
    """Linear regression."""
    return judge(published.ight_corollary_5_6(**at))


def corollary_5_8(**at: Any) -> Verdict:
    """Logistic regression."""
    return judge(published.ight_corollary_5_8(**at))


def audit_theorem_5_2(trials: int, **at: Any) -> Audited:
    """An audit of Theorem 5.2, stated in rho."""
    return _clipped(published.ight_theorem_5_2(**at), trials, **at)


def audit_remark_5_3(trials: int, **at: Any) -> Audited:
    """An audit of Remark 5.3."""
    return _clipped(published.ight_remark_5_3(**at), trials, **at)


def audit_remark_5_3_simple(trials: int, **at: Any) -> Audited:
    """An audit of Remark 5.3 with its rounded variance."""
    return _clipped(published.ight_remark_5_3_simple(**at), trials, **at)


def _clipped(record: published.Published, trials: int, n: int, steps: int, grad_norm: float, **unused: Any) -> Audited:
    return hard_thresholding(record, n, steps, grad_norm, trials)


def audit_corollary_5_8(trials: int, n: int, steps: int, row_norm: float, epsilon: float, delta: float) -> Audited:
    """Two rows that are misclassified by far, with gradients that are all but opposite.

    After one step all other records have a large first weight; both rows have a little of that feature, and the second
    one with opposite signs. The printed noise is proportional to 1/n, so n is free.
    """
    base = solvers.plan(
        "dp_ight", n=_MANY, d=2, sparsity=2, steps=steps, loss="logistic", row_norm=row_norm,
        step_size=_LONG_STEP / row_norm**2, epsilon=1.0, delta=1e-9, calibration="published",
    )  # fmt: skip
    record = published.ight_corollary_5_8(n, steps, row_norm, epsilon, delta)
    plan = base.with_noise(record.scales["gradient"] * n / _MANY)
    across = math.sqrt(1 - _TILT**2)
    counts, labels = np.array([1, _MANY - 1]), np.array([0.0, 1.0])
    first, second = (
        Counted(row_norm * np.array([[_TILT, side], [1.0, 0.0]]), labels, counts) for side in (across, -across)
    )
    scores = {"final": lambda weights: -weights[:, 1]}
    return printed_noise(plan, record, Pair(first, second, plan.adjacency, "opposite rows", scores), trials)
