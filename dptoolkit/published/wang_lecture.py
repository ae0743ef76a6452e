"""Wang, "Lecture 16: differentially private empirical risk minimization IV".

Private Frank-Wolfe, iterative hard thresholding, peeling, heavy-tailed sparse regression and objective
perturbation. Every theorem is stated for 0 < epsilon, delta < 1; the notes prove with replaced records.
"""

from __future__ import annotations

import math
from functools import partial

from dptoolkit._validate import nonnegative, positive, whole
from dptoolkit.accounting import gaussian
from dptoolkit.accounting.events import (
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    ObjectivePerturbation,
    PureDp,
    Repeated,
)
from dptoolkit.adjacency import Adjacency
from dptoolkit.published.khanna_2023 import selections
from dptoolkit.published.record import (
    Budget,
    Condition,
    Published,
    at_least,
    below,
    gaussians,
    log_inverse,
    sensitivity,
)
from dptoolkit.published.ties import tie_pair

_NOTES = "Wang, lecture 16, {}"


def lecture_frank_wolfe(
    n: int, steps: int, l1_radius: float, lipschitz: float, epsilon: float, delta: float,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Theorem 16.2: Laplace scale 2 |C| L sqrt(8 T log(1/delta)) / (n epsilon), T selections."""
    adjacency = Adjacency.parse(adjacency)
    unit = positive("l1_radius", l1_radius) * positive("lipschitz", lipschitz) / whole("n", n, low=1)
    root = math.sqrt(8 * whole("steps", steps, low=1) * log_inverse(delta))
    scale = 2 * unit * root / positive("epsilon", epsilon)
    return selections(
        "DP Frank-Wolfe, Theorem 16.2", _NOTES.format("Theorem 16.2"), {"score": scale},
        Budget(epsilon, delta), adjacency, 2 * sensitivity(unit, adjacency) / scale, steps, tied=2,
        conditions=_small_epsilon(epsilon),
    )  # fmt: skip


def lecture_dp_iht(
    n: int, steps: int, grad_norm: float, epsilon: float, delta: float, constant: float,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Theorem 16.4: variance c T log(1/delta) / (n epsilon)^2 "for some constant c".

    The Lipschitz constant is not in the formula, so no c serves every loss; ``lecture_dp_iht_constant`` is
    the smallest that serves the given one.
    """
    adjacency, n, steps = Adjacency.parse(adjacency), whole("n", n, low=1), whole("steps", steps, low=1)
    root = math.sqrt(positive("constant", constant) * steps * log_inverse(delta))
    scale = root / (n * positive("epsilon", epsilon))
    multiplier = scale * n / sensitivity(positive("grad_norm", grad_norm), adjacency)
    smallest = lecture_dp_iht_constant(epsilon, delta, grad_norm, adjacency)
    event_at = partial(gaussians, multiplier, steps)
    return Published(
        "DP-IHT, Theorem 16.4", _NOTES.format("Theorem 16.4"), {"gradient": scale}, Budget(epsilon, delta),
        adjacency,
        releases=event_at, attains=event_at, conditions=_small_epsilon(epsilon),
        missing=(at_least("c >= the smallest sufficient constant", constant, smallest),),
        vacuous="the constant is left open and the Lipschitz constant is missing",
    )  # fmt: skip


def lecture_dp_iht_constant(
    epsilon: float, delta: float, grad_norm: float = 1.0, adjacency: str | Adjacency = Adjacency.REPLACE_ONE
) -> float:
    """The smallest c of Theorem 16.4 for gradients of norm <= grad_norm."""
    shift = sensitivity(positive("grad_norm", grad_norm), Adjacency.parse(adjacency))
    return (positive("epsilon", epsilon) * shift / gaussian.mu(epsilon, delta)) ** 2 / log_inverse(delta)


def lecture_peeling(sparsity: int, change: float, epsilon: float, delta: float) -> Published:
    """Algorithm 5: Laplace scale 2 change sqrt(3 s log(1/delta)) / epsilon on s selections and s values.

    ``change`` bounds how far an entry of the vector moves between neighbours.
    """
    return _peeling("Peeling, Algorithm 5", "Algorithm 5", sparsity, change, change, epsilon, delta)


def lecture_heavy_tailed_iht(
    n: int, steps: int, sparsity: int, radius: float, feature_bound: float, step_size: float,
    epsilon: float, delta: float,
) -> Published:  # fmt: skip
    """Algorithm 6: peeling on blocks of m = n/T records with ``change`` 2 K^2 C eta (sqrt(s) + 1) / m.

    The real change is 2 K^2 eta (C sqrt(s) + 1) / m, and is reached in every entry outside the support at
    once. Blocks are disjoint and fixed in advance, so a record is charged for one of them only.
    """
    printed_change, real = heavy_tailed_change(n, steps, sparsity, radius, feature_bound, step_size)
    return _peeling(
        "Heavy-tailed DP-IHT, Theorem 16.6", "Theorem 16.6", sparsity, printed_change, real, epsilon, delta,
        conditions=_small_epsilon(epsilon), missing=(at_least("C >= 1", radius, 1.0),),
    )  # fmt: skip


def heavy_tailed_change(
    n: int, steps: int, sparsity: int, radius: float, feature_bound: float, step_size: float
) -> tuple[float, float]:
    """(printed, real) largest change of an entry in one step of Algorithm 6."""
    root = math.sqrt(whole("sparsity", sparsity, low=1))
    block = whole("n", n, low=1) // whole("steps", steps, low=1)
    unit = 2 * positive("feature_bound", feature_bound) ** 2 * positive("step_size", step_size) / block
    return unit * positive("radius", radius) * (root + 1), unit * (radius * root + 1)


def objective_perturbation(
    lipschitz: float, epsilon: float, delta: float, smoothness: float = 0.0, regularization: float = 1.0,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Theorem 16.8: a Gaussian linear term of variance 10 L^2 log(1/delta) / epsilon^2.

    Claimed: (epsilon/2 + log(1 + 2 beta/lambda), delta). Linear losses are in the class, and for them the
    minimiser is the noise plus a shift, so their Gaussian pair is a lower bound. With smoothness 0 it is also
    the upper bound.
    """
    adjacency, log_term = Adjacency.parse(adjacency), log_inverse(delta)
    scale = positive("lipschitz", lipschitz) * math.sqrt(10 * log_term) / positive("epsilon", epsilon)
    claim = Budget(epsilon / 2 + _jacobian(2 * smoothness, regularization), delta)
    multiplier = scale / sensitivity(lipschitz, adjacency)
    linear = partial(gaussians, multiplier, 1)
    general = partial(_perturbed_minimum, multiplier, _jacobian(smoothness, regularization), adjacency)
    return Published(
        "Objective perturbation, Theorem 16.8", _NOTES.format("Theorem 16.8"), {"linear term": scale}, claim,
        adjacency, releases=general if smoothness else linear, attains=linear,
    )  # fmt: skip


def objective_perturbation_pure(
    lipschitz: float, epsilon: float, smoothness: float = 0.0, regularization: float = 1.0,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE,
) -> Published:  # fmt: skip
    """Theorem 16.8: a term of density ~ exp(-epsilon |b| / 2L), claimed epsilon + log(1 + 2 beta/lambda)."""
    adjacency = Adjacency.parse(adjacency)
    scale = 2 * positive("lipschitz", lipschitz) / positive("epsilon", epsilon)
    shift = sensitivity(lipschitz, adjacency) / scale
    return Published(
        "Objective perturbation, Theorem 16.8 (pure)", _NOTES.format("Theorem 16.8"), {"linear term": scale},
        Budget(epsilon + _jacobian(2 * smoothness, regularization), 0.0), adjacency,
        releases=partial(_pure_minimum, shift, _jacobian(smoothness, regularization)),
        attains=partial(_pure_minimum, shift, 0.0),
    )  # fmt: skip


def _small_epsilon(epsilon: float) -> tuple[Condition, ...]:
    return (below("epsilon < 1", epsilon, 1.0),)


def _peeling(
    name: str, where: str, sparsity: int, change: float, real: float, epsilon: float, delta: float,
    conditions: tuple[Condition, ...] = (), missing: tuple[Condition, ...] = (),
) -> Published:  # fmt: skip
    s = whole("sparsity", sparsity, low=1)
    scale = 2 * positive("change", change) * math.sqrt(3 * s * log_inverse(delta)) / positive("epsilon", epsilon)
    one = real / scale
    return Published(
        name, _NOTES.format(where), {"selection": scale, "value": scale}, Budget(epsilon, delta),
        Adjacency.REPLACE_ONE, releases=partial(_peeled, s, one), attains=partial(_tied_peeling, s, one),
        repaired=partial(_gumbel_peeling, s, one), conditions=conditions, missing=missing,
    )  # fmt: skip


def _peeled(sparsity: int, change: float, factor: float) -> Event:
    """Entries move by ``change`` scales: the range of the selection is twice that."""
    values = Repeated(Laplace(factor / change), sparsity)
    return Composed(Repeated(NoisyMax(2 * change / factor, "laplace"), sparsity), values)


def _tied_peeling(sparsity: int, change: float, factor: float) -> Event:
    """The tie pair: all places but the last are certain, four entries tie for the last, and every value moves."""
    return Composed(tie_pair(2, 2 * change / factor), Repeated(Laplace(factor / change), sparsity))


def _gumbel_peeling(sparsity: int, change: float, factor: float) -> Event:
    """Gumbel noise for the selections, Gaussian noise of the same scale for the values."""
    values = Gaussian(factor / (change * math.sqrt(sparsity)))
    return Composed(Repeated(ExponentialMechanism(2 * change / factor), sparsity), values)


def _jacobian(curvature: float, regularization: float) -> float:
    """log(1 + curvature/lambda): how much a rank-one Hessian can change the density of the minimiser."""
    return math.log1p(nonnegative("smoothness", curvature) / positive("regularization", regularization))


def _perturbed_minimum(multiplier: float, jacobian: float, adjacency: Adjacency, factor: float) -> Event:
    """Generalised linear losses that are not linear, of slopes of both signs: see ``accounting.objective``."""
    return ObjectivePerturbation(multiplier * factor, jacobian, False, adjacency)


def _pure_minimum(shift: float, jacobian: float, factor: float) -> Event:
    return PureDp(shift / factor + jacobian)
