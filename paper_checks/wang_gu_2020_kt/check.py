"""Verdicts on Wang and Gu 2020: one pair of data sets flips the teacher's support."""

from __future__ import annotations

from typing import Any

from dptoolkit.accounting import published
from dptoolkit.mechanisms import GaussianNoise
from paper_checks.audits import Audited, printed_noise
from paper_checks.verdict import Verdict, judge

# Two features, one of them chosen, unit labels: what the support flip needs.
_PAIR: dict[str, Any] = {"sparsity": 1, "dimension": 2, "grad_bound": 1.0}


def lemma_2_6(**at: Any) -> Verdict:
    """The classical Gaussian mechanism for every epsilon."""
    return judge(published.kt_lemma_2_6(**at))


def audit_lemma_2_6(trials: int, sensitivity: float, **at: Any) -> Audited:
    """One number that moves by the sensitivity."""
    printed = published.kt_lemma_2_6(sensitivity=sensitivity, **at)
    noise = GaussianNoise(printed.scales["query"], sensitivity)
    return printed_noise(noise.release, printed, (sensitivity, 0.0), trials)


def theorem_4_3(n: int, epsilon: float, delta: float, regularization: float | None = None) -> Verdict:
    """Knowledge transfer; lambda by the paper's own rule unless it is given."""
    if regularization is None:
        regularization = published.transfer_regularization(n, epsilon=epsilon, delta=delta, **_PAIR)
    return judge(
        published.kt_theorem_4_3(n, n, regularization=regularization, epsilon=epsilon, delta=delta, **_PAIR)
    )


def corollary_4_7(n: int, epsilon: float, delta: float) -> Verdict:
    """Knowledge transfer without the ridge, at the sparse eigenvalue that the pair really has."""
    eigenvalue = published.flip_eigenvalue(n)
    return judge(
        published.kt_corollary_4_7(n, n, eigenvalue=eigenvalue, epsilon=epsilon, delta=delta, **_PAIR)
    )
