"""Wang and Gu 2020, "A knowledge transfer framework for differentially private sparse learning".

A teacher is fitted without noise under a sparsity constraint, answers m public queries with Gaussian noise,
and a student learns from the answers. The noise rests on strong convexity, which bounds how far the teacher
moves inside a FIXED support. One record can flip the support, and then the teacher moves by its own size.
"""

from __future__ import annotations

import math
from functools import partial

from dptoolkit._validate import positive, real, whole
from dptoolkit.adjacency import Adjacency
from dptoolkit.published.record import Budget, Published, at_least, at_most, gaussians, log_inverse

_PAPER = "Wang and Gu 2020, {}"


def kt_lemma_2_6(sensitivity: float, epsilon: float, delta: float) -> Published:
    """The classical Gaussian noise sqrt(2 log(1.25/delta)) sensitivity / epsilon, for every epsilon."""
    root = math.sqrt(2 * (math.log(1.25) + log_inverse(delta)))
    scale = root * positive("sensitivity", sensitivity) / positive("epsilon", epsilon)
    event_at = partial(gaussians, scale / sensitivity, 1)
    return Published(
        "Classical Gaussian mechanism, Lemma 2.6", _PAPER.format("Lemma 2.6"), {"query": scale},
        Budget(epsilon, delta), Adjacency.REPLACE_ONE, releases=event_at, attains=event_at,
        missing=(at_most("epsilon <= 1", epsilon, 1.0),),
    )  # fmt: skip


def kt_theorem_4_3(
    n: int, public_rows: int, sparsity: int, dimension: int, grad_bound: float, regularization: float,
    epsilon: float, delta: float, covariance_norm: float = 1.0, teacher_norm: float = math.inf,
) -> Published:  # fmt: skip
    """Variance 8 m beta s gamma^2 log(2.5/delta) / (n epsilon lambda)^2 on m public answers.

    ``grad_bound`` is gamma, the largest gradient entry of a record at the minimiser. What is guaranteed
    depends on a public bound ``teacher_norm`` on the teacher; without one, nothing is. The answers are taken
    at their nominal operator norm sqrt(m beta).
    """
    ridge = positive("regularization", regularization)
    flip = support_flip(n, ridge) if sparsity == 1 else 0.0
    return _transfer(
        "Theorem 4.3", n, public_rows, sparsity, dimension, grad_bound, ridge, flip, epsilon, delta,
        covariance_norm, teacher_norm,
    )  # fmt: skip


def kt_corollary_4_7(
    n: int, public_rows: int, sparsity: int, dimension: int, grad_bound: float, eigenvalue: float,
    epsilon: float, delta: float, covariance_norm: float = 1.0, teacher_norm: float = math.inf,
) -> Published:  # fmt: skip
    """Theorem 4.3 without the ridge, with the sparse eigenvalue mu of the PRIVATE data in place of lambda."""
    mu = positive("eigenvalue", eigenvalue)
    flip = support_flip(n, 0.0) if sparsity == 1 and mu <= flip_eigenvalue(n) else 0.0
    return _transfer(
        "Corollary 4.7", n, public_rows, sparsity, dimension, grad_bound, mu, flip, epsilon, delta,
        covariance_norm, teacher_norm,
    )  # fmt: skip


def support_flip(n: int, regularization: float) -> float:
    """How far the best 1-sparse ridge teacher moves on a pair that differs in one record, in units of gamma.

    Two features, labels gamma. With k = floor((n-1)/2), k + 1 records are e1 and k are e2 (a last one is 0 if
    n is even); the neighbour has it the other way round. The teacher fits the more frequent feature: it is
    (a, 0) and then (0, a), a = p / (p + lambda), p = (k + 1)/n, so it moves by sqrt(2) a. Every gradient
    entry at it is at most gamma.
    """
    share = ((whole("n", n, low=3) - 1) // 2 + 1) / n
    return math.sqrt(2) * share / (share + real("regularization", regularization, low=0.0))


def flip_eigenvalue(n: int) -> float:
    """The sparse eigenvalue (sparsity 1) of both data sets of ``support_flip``."""
    return ((whole("n", n, low=3) - 1) // 2) / n


def transfer_regularization(
    n: int, sparsity: int, dimension: int, grad_bound: float, epsilon: float, delta: float
) -> float:
    """lambda^2 = gamma sqrt(s log d log(1/delta)) / (n epsilon): Theorem 4.5 with its constant taken as 1."""
    inside = whole("sparsity", sparsity, low=1) * math.log(whole("dimension", dimension, low=2)) * log_inverse(delta)
    return math.sqrt(
        positive("grad_bound", grad_bound) * math.sqrt(inside) / (whole("n", n, low=1) * positive("epsilon", epsilon))
    )


def _transfer(
    where: str, n: int, public_rows: int, sparsity: int, dimension: int, grad_bound: float, convexity: float,
    flip: float, epsilon: float, delta: float, covariance_norm: float, teacher_norm: float,
) -> Published:  # fmt: skip
    n, m, s = (
        whole("n", n, low=3),
        whole("public_rows", public_rows, low=1),
        whole("sparsity", sparsity, low=1),
    )
    gamma, operator = (
        positive("grad_bound", grad_bound),
        math.sqrt(m * positive("covariance_norm", covariance_norm)),
    )
    movement = 2 * math.sqrt(s) * gamma / (n * convexity)
    root = math.sqrt(2 * (math.log(2.5) + log_inverse(delta)))
    scale = operator * movement * root / positive("epsilon", epsilon)
    diameter = 2 * real("teacher_norm", teacher_norm, low=0.0, open_low=True)
    return Published(
        f"Knowledge transfer, {where}", _PAPER.format(where), {"answer": scale}, Budget(epsilon, delta),
        Adjacency.REPLACE_ONE, releases=partial(gaussians, scale / (operator * diameter), 1),
        attains=partial(gaussians, scale / (operator * flip * gamma), 1) if flip else None,
        conditions=(
            # The paper leaves the constant open; 1 is the least demanding reading.
            at_least("m >= s log d", m, s * math.log(whole("dimension", dimension, low=2))),
        ),
        missing=(at_least("assumed movement of the teacher >= a support flip", movement, flip * gamma),),
    )  # fmt: skip
