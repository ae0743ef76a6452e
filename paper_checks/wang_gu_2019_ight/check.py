"""Verdicts on Wang and Gu 2019: every noise is Gaussian, so every number is exact."""

from __future__ import annotations

from typing import Any

from dptoolkit.accounting import published
from paper_checks.verdict import Verdict, judge


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
