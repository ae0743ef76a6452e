"""Verdicts on Khanna, Lu and Raff 2023: Laplace selections, a noisy count, and their sum."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dptoolkit.accounting import published
from paper_checks.verdict import Verdict, bound, judge


def algorithm_1(**at: Any) -> Verdict:
    """Private LASSO with Laplace noise, as printed."""
    return judge(published.lasso_frank_wolfe(**at))


def algorithm_1_gumbel(**at: Any) -> Verdict:
    """The same scale in the exponential mechanism, which the cited analysis is about."""
    printed = published.lasso_frank_wolfe(**at)
    assert printed.repaired is not None
    return judge(dataclasses.replace(printed, releases=printed.repaired, attains=printed.repaired))


def algorithm_2_count(features: int, epsilon: float, rounded: bool = False) -> Verdict:
    """The private count with the clipping bounds of the experiments, sqrt(p) and 2 sqrt(p)."""
    root = math.sqrt(features)
    return judge(published.sparsifier_count(root, 2 * root, epsilon, rounded))


def theorem_3(features: int, **at: Any) -> Verdict:
    """Count and model together."""
    root = math.sqrt(features)
    return judge(published.sparsifier(lower=root, upper=2 * root, **at))


def max_abs_scaling(n: int, ordinary: float) -> Verdict:
    """How far one record moves the mean gradient when features are scaled by their largest value."""
    real, promised = published.max_abs_scaling(n, ordinary)
    return bound(promised, real, "change of a mean gradient entry")


def theorem_5(**at: Any) -> Verdict:
    """Multinomial private LASSO."""
    return judge(published.multinomial(**at))
