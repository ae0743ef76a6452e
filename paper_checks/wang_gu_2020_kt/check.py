"""Verdicts on Wang and Gu 2020: one pair of data sets flips the teacher's support."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit import solvers
from dptoolkit.audit import pairs
from dptoolkit.mechanisms import GaussianNoise
from paper_checks.audits import Audited, printed_noise
from paper_checks.constants import Published, published
from paper_checks.verdict import Verdict, judge

# Two features, one of them chosen, unit labels: what the support flip needs.
_PAIR: dict[str, Any] = {"sparsity": 1, "dimension": 2, "grad_bound": 1.0}


def lemma_2_6(**at: Any) -> Verdict:
    """The classical Gaussian mechanism for every epsilon."""
    return judge(published.kt_lemma_2_6(**at))


def audit_lemma_2_6(trials: int, sensitivity: float, **at: Any) -> Audited:
    """One number that moves by the sensitivity."""
    record = published.kt_lemma_2_6(sensitivity=sensitivity, **at)
    noise = GaussianNoise(record.scales["query"], sensitivity)
    return printed_noise(noise.release, record, (sensitivity, 0.0), trials)


def theorem_4_3(**at: Any) -> Verdict:
    """Knowledge transfer; lambda by the paper's own rule unless it is given."""
    return judge(_printed(**at))


def _printed(n: int, epsilon: float, delta: float, regularization: float | None = None) -> Published:
    ridge = _ridge(n, epsilon, delta) if regularization is None else regularization
    return published.kt_theorem_4_3(n, n, regularization=ridge, epsilon=epsilon, delta=delta, **_PAIR)


def _ridge(n: int, epsilon: float, delta: float) -> float:
    return published.transfer_regularization(n, epsilon=epsilon, delta=delta, **_PAIR)


def audit_theorem_4_3(
    trials: int, n: int, epsilon: float, delta: float, regularization: float | None = None
) -> Audited:
    """The paper's teacher and noise on the pair that flips its support.

    The public features are orthogonal, of exactly the operator norm that the theorem takes.
    """
    record = _printed(n, epsilon, delta, regularization)
    base = solvers.plan(
        "knowledge_transfer", n=n, d=2, sparsity=1, loss="squared", row_norm=1.0, feature_bound=1.0, label_bound=1.0,
        l2=regularization or _ridge(n, epsilon, delta), features=math.sqrt(n) * np.eye(n, 2), epsilon=epsilon,
        delta=delta, calibration="published",
    )  # fmt: skip
    plan = base.with_noise(record.scales["answer"])
    return printed_noise(plan, record, pairs.knowledge_transfer(plan), trials, "releases")


def corollary_4_7(n: int, epsilon: float, delta: float) -> Verdict:
    """Knowledge transfer without the ridge, at the sparse eigenvalue that the pair really has."""
    eigenvalue = published.flip_eigenvalue(n)
    return judge(published.kt_corollary_4_7(n, n, eigenvalue=eigenvalue, epsilon=epsilon, delta=delta, **_PAIR))
