"""Wang and Gu 2019, "Differentially private iterative gradient hard thresholding for sparse learning".

T steps on the mean gradient, each with Gaussian noise of the same scale. Gaussians compose exactly, so what
the noise gives is exact. The paper defines neighbours by replacing a record, where the mean gradient moves by
2 grad_norm / n.
"""

from __future__ import annotations

import math
from functools import partial

from dptoolkit._validate import positive, real, whole
from dptoolkit.accounting.zcdp import from_epsilon_loose
from dptoolkit.adjacency import Adjacency
from dptoolkit.published.record import Budget, Condition, Published, at_most, gaussians, log_inverse, sensitivity

_PAPER = "Wang and Gu 2019, {}"


def ight_theorem_5_2(
    n: int, steps: int, grad_norm: float, rho: float, adjacency: str | Adjacency = Adjacency.REPLACE_ONE
) -> Published:
    """Variance T G^2 / (n^2 rho), said to be rho-zCDP: 2 rho under replace-one, rho/2 under zero-out."""
    scale = _scale(n, steps, grad_norm, rho)
    return _published("Theorem 5.2", scale, Budget(rho=rho), n, steps, grad_norm, adjacency)


def ight_remark_5_3(
    n: int, steps: int, grad_norm: float, epsilon: float, delta: float,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Theorem 5.2 with the rho whose Bun-Steinke conversion is (epsilon, delta)."""
    log_inverse(delta)
    rho = from_epsilon_loose(positive("epsilon", epsilon), delta)
    scale = _scale(n, steps, grad_norm, rho)
    return _published("Remark 5.3", scale, Budget(epsilon, delta), n, steps, grad_norm, adjacency)


def ight_remark_5_3_simple(
    n: int, steps: int, grad_norm: float, epsilon: float, delta: float,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Variance 6 T G^2 log(1/delta) / (n epsilon)^2, an upper bound for epsilon <= log(1/delta)."""
    log_term = log_inverse(delta)
    scale = _scale(n, steps, grad_norm, positive("epsilon", epsilon) ** 2 / (6 * log_term))
    conditions = (at_most("epsilon <= log(1/delta)", epsilon, log_term),)
    return _published(
        "Remark 5.3, second form", scale, Budget(epsilon, delta), n, steps, grad_norm, adjacency, conditions
    )


def ight_corollary_5_8(
    n: int, steps: int, row_norm: float, epsilon: float, delta: float,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Logistic regression: variance T K^2 log(1/delta) / (n epsilon)^2, K the largest L2 norm of a row.

    That is rho = epsilon^2 / log(1/delta), whose conversion by the paper's own Lemma 3.4 is
    2 epsilon + epsilon^2/log(1/delta). The shift 2K/n is reached where the sigmoid saturates.
    """
    rho = positive("epsilon", epsilon) ** 2 / log_inverse(delta)
    scale = _scale(n, steps, row_norm, rho)
    return _published("Corollary 5.8", scale, Budget(epsilon, delta), n, steps, row_norm, adjacency)


def ight_corollary_5_6(
    n: int, steps: int, row_norm: float, sparsity: int, parameter_norm: float, noise_std: float,
    epsilon: float, delta: float, label_bound: float = math.inf, constant: float = 1.0,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Linear regression: variance 2 c T K^2 (sqrt(2s) |theta*| + nu log n)^2 log(1/delta) / (n epsilon)^2.

    ``parameter_norm`` and ``noise_std`` belong to the unknown truth and ``constant`` is a symbol the paper
    never defines, so the noise is not a function of public parameters. At theta = 0 a label y moves the mean
    gradient by K |y| / n, so labels without a public bound leave no guarantee.
    """
    s, log_term = whole("sparsity", sparsity, low=1), log_inverse(delta)
    spread = math.sqrt(2 * s) * positive("parameter_norm", parameter_norm)
    spread += positive("noise_std", noise_std) * math.log(whole("n", n, low=1))
    rho = positive("epsilon", epsilon) ** 2 / (2 * positive("constant", constant) * log_term)
    scale = _scale(n, steps, positive("row_norm", row_norm) * spread, rho)
    label = real("label_bound", label_bound, low=0.0, open_low=True)
    return _published(
        "Corollary 5.6", scale, Budget(epsilon, delta), n, steps, row_norm * label, adjacency,
        missing=(at_most("largest label <= sqrt(2s) |theta*| + nu log n", label, spread),),
        vacuous="the noise is a function of the unknown theta*, its noise level and an undefined symbol",
    )  # fmt: skip


def _scale(n: int, steps: int, norm: float, rho: float) -> float:
    n, steps = whole("n", n, low=1), whole("steps", steps, low=1)
    return math.sqrt(steps / positive("rho", rho)) * positive("grad_norm", norm) / n


def _published(
    where: str, scale: float, claim: Budget, n: int, steps: int, norm: float, adjacency: str | Adjacency,
    conditions: tuple[Condition, ...] = (), missing: tuple[Condition, ...] = (), vacuous: str = "",
) -> Published:  # fmt: skip
    adjacency = Adjacency.parse(adjacency)
    multiplier = scale * n / sensitivity(norm, adjacency)
    event_at = partial(gaussians, multiplier, steps)
    return Published(
        f"DP-IGHT, {where}", _PAPER.format(where), {"gradient": scale}, claim, adjacency,
        releases=event_at, attains=event_at, conditions=conditions, missing=missing, vacuous=vacuous,
    )  # fmt: skip
