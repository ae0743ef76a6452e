"""Verdicts on Wang's lecture 16."""

from __future__ import annotations

from typing import Any

from dptoolkit.accounting import published
from paper_checks.verdict import Verdict, bound, judge


def theorem_16_2(**at: Any) -> Verdict:
    """DP Frank-Wolfe."""
    return judge(published.lecture_frank_wolfe(**at))


def theorem_16_4(**at: Any) -> Verdict:
    """DP-IHT with a constant that is left open."""
    return judge(published.lecture_dp_iht(**at))


def algorithm_5(**at: Any) -> Verdict:
    """Peeling."""
    return judge(published.lecture_peeling(**at))


def algorithm_6_change(**at: Any) -> Verdict:
    """The largest change of an entry that Algorithm 6 hands to peeling."""
    printed, real = published.heavy_tailed_change(**at)
    return bound(printed, real, "largest change of an entry in one step")


def theorem_16_6(**at: Any) -> Verdict:
    """Heavy-tailed private sparse regression."""
    return judge(published.lecture_heavy_tailed_iht(**at))


def theorem_16_8(**at: Any) -> Verdict:
    """Objective perturbation with a Gaussian term."""
    return judge(published.objective_perturbation(**at))


def theorem_16_8_pure(**at: Any) -> Verdict:
    """Objective perturbation with a term of density exp(-epsilon |b| / 2L)."""
    return judge(published.objective_perturbation_pure(**at))
