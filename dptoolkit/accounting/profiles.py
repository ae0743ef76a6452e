"""Ordered pairs of distributions, described by their hockey-stick divergences in both directions.

H_a(P||Q) = sup over events A of P(A) - a Q(A); as a function of a it determines the pair up to what privacy can see.
A pair DOMINATES a mechanism if its divergence is at least the mechanism's for every a and every ordered pair of
neighbours; dominating pairs compose (Zhu, Dong and Wang 2022, arXiv:2106.08567, Theorem 10). A pair is ATTAINED if
some neighbours reach it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from dptoolkit.accounting import gaussian as gaussian_profile
from dptoolkit.accounting._numeric import log_sum_exp
from dptoolkit.errors import ANY_METHOD, UnsupportedEvent
from dptoolkit.types import Array

Curve = Callable[[Array], Array]


class Tails(NamedTuple):
    """P(L > x), Q(L > x), P(L <= x), Q(L <= x) of the privacy loss L = log dP/dQ."""

    p_above: Array
    q_above: Array
    p_below: Array
    q_below: Array


@dataclass(frozen=True)
class DominatingPair:
    """An ordered pair (P, Q).

    ``above(x)`` is H_{exp(x)}(P

    Q) and ``below(x)`` is H_{exp(x)}(Q

    P), both for x >= 0: each curve tends to 0 where the divergence is small, so no digits are lost in a difference such
    as 1 - a. ``tails`` is known for explicit pairs only. ``atom`` is a loss value that carries mass, or 0: a grid that
    contains it is exact there. ``mean`` is the mean of the finite part of the loss under P, where it has a formula.
    ``identical`` says that P is Q, so that nothing is released: a divergence that merely underflows to 0 does not say
    so.
    """

    above: Curve
    below: Curve
    tails: Callable[[Array], Tails] | None = None
    infinite_mass: float = 0.0
    atom: float = 0.0
    symmetric: bool = True
    mean: float | None = None
    identical: bool = False

    def swapped(self) -> DominatingPair:
        """The pair (Q, P)."""
        if self.symmetric:
            return self
        tails = self.tails
        mirror = None if tails is None else (lambda x: _flip(tails(-x)))
        # Only sampling makes pairs that are not symmetric. There Q is a part of the mixture, so backwards no loss is
        # infinite.
        return replace(self, above=self.below, below=self.above, tails=mirror, infinite_mass=0.0)


def _flip(t: Tails) -> Tails:
    return Tails(t.q_below, t.p_below, t.q_above, t.p_above)


def gaussian(mu: float) -> DominatingPair:
    """N(mu, 1) against N(0, 1)."""

    def curve(x: Array) -> Array:
        return np.asarray(gaussian_profile.curve(mu, x))

    def tails(x: Array) -> Tails:
        p, q = mu / 2 - x / mu, -mu / 2 - x / mu
        return Tails(ndtr(p), ndtr(q), ndtr(-p), ndtr(-q))

    return DominatingPair(curve, curve, tails, mean=mu * mu / 2)


def laplace(epsilon: float) -> DominatingPair:
    """Laplace noise of scale 1/epsilon around 0 and around 1."""

    def curve(x: Array) -> Array:
        return np.maximum(-np.expm1(np.minimum((x - epsilon) / 2, 0.0)), 0.0)

    def tails(x: Array) -> Tails:
        inside = (x >= -epsilon) & (x < epsilon)
        p_low = np.where(inside, 0.5 * np.exp(-(epsilon - np.clip(x, -epsilon, epsilon)) / 2), x >= epsilon)
        q_high = np.where(inside, 0.5 * np.exp(-(epsilon + np.clip(x, -epsilon, epsilon)) / 2), x < -epsilon)
        return Tails(1 - p_low, q_high, p_low, 1 - q_high)

    return DominatingPair(curve, curve, tails, atom=epsilon, mean=epsilon + math.expm1(-epsilon))


# Losses from here on may overflow or underflow as exponentials.
_LARGEST_EXPONENT = 600.0


def discrete(losses: Array, p: Array, infinite_mass: float = 0.0, atom: float = 0.0) -> DominatingPair:
    """A symmetric pair of finitely many losses: P puts ``p`` on ``losses``, Q the same on their negatives."""
    order = np.argsort(losses)
    losses, p = losses[order], p[order]
    q = p[::-1]
    p_up, q_up = _suffix_sums(p), _suffix_sums(q)
    p_down, q_down = _suffix_sums(p[::-1])[::-1], _suffix_sums(q[::-1])[::-1]
    # Between the losses i-1 and i the divergence is d_i + (1 - exp(x - loss_i)) s_i, s_i = exp(loss_i) Q(L >= loss_i),
    # and d_(i-1) = d_i + (1 - exp(loss_(i-1) - loss_i)) s_i: sums of positive terms, in which nothing cancels.
    if losses[-1] < _LARGEST_EXPONENT:
        s = np.append(np.exp(losses), 0.0) * q_up
    else:
        with np.errstate(divide="ignore"):
            log_q = np.log(p) - losses
        s = np.append(np.exp(losses + np.logaddexp.accumulate(log_q[::-1])[::-1]), 0.0)
    d = np.append(_suffix_sums(-np.expm1(-np.diff(losses)) * s[1:-1]), 0.0)
    ends = np.append(losses, np.inf)

    def curve(x: Array) -> Array:
        i = np.searchsorted(losses, x, side="right")
        return np.minimum(d[i] - np.expm1(x - ends[i]) * s[i], 1.0 - infinite_mass) + infinite_mass

    def tails(x: Array) -> Tails:
        i = np.searchsorted(losses, x, side="right")
        return Tails(p_up[i] + infinite_mass, q_up[i], p_down[i], q_down[i] + infinite_mass)

    return DominatingPair(curve, curve, tails, infinite_mass=infinite_mass, atom=atom, mean=float(p @ losses))


def _suffix_sums(mass: Array) -> Array:
    return np.append(np.cumsum(mass[::-1])[::-1], 0.0)


def randomized_response(epsilon: float, categories: int = 2, infinite_mass: float = 0.0) -> DominatingPair:
    """The worst pair of an (epsilon, infinite_mass)-DP mechanism, or randomised response among more answers."""
    rest = categories - 2
    odds = math.exp(-epsilon)
    truth = (1 - infinite_mass) / (1 + odds * (1 + rest))
    masses = np.array([truth, truth * odds, truth * odds * rest])
    losses = np.array([epsilon, -epsilon, 0.0])
    keep = 3 if rest else 2
    return discrete(losses[:keep], masses[:keep], infinite_mass, atom=epsilon)


def two_sided_geometric(epsilon: float, sensitivity: int) -> DominatingPair:
    """Integer noise P(X=k) proportional to q^|k|, q = exp(-epsilon/sensitivity), around 0 and around sensitivity."""
    if sensitivity > _MOST_OUTCOMES:
        raise UnsupportedEvent(
            f"sensitivity={sensitivity}: must be at most {_MOST_OUTCOMES} for method 'pld', which sums every outcome.",
            ANY_METHOD,
        )
    k = np.arange(sensitivity + 1, dtype=float)
    # Not powers of q, whose relative error would grow with k.
    powers = np.exp(-epsilon * (k / sensitivity))
    masses = math.tanh(0.5 * epsilon / sensitivity) * powers
    masses[[0, -1]] = powers[[0, -1]] / (1 + math.exp(-epsilon / sensitivity))
    losses = _away_from_0(epsilon * ((sensitivity - 2 * k) / sensitivity))
    return discrete(np.clip(losses, -epsilon, epsilon), masses, atom=epsilon)


def _away_from_0(losses: Array) -> Array:
    """Losses with their round-off added, so that none is too small.

    Between a loss that was rounded down and the true one, delta would lack the whole mass of that loss.
    """
    return losses * (1 + 1e-15)


# Outcomes of integer noise that are summed one by one, and standard deviations beyond which no float is left.
_MOST_OUTCOMES = 2**21
_FARTHEST = 39.0


def discrete_gaussian(sigma: float, sensitivity: int) -> DominatingPair:
    """Integer noise P(X=k) proportional to exp(-k^2/(2 sigma^2)), around 0 and around sensitivity, summed exactly.

    The likelihood ratio is monotone, so the best event is a half-line for every shift, and its divergence grows with
    the shift: the pair of the whole sensitivity dominates the pairs of smaller shifts. Outcome k has the loss D (D -
    2k) / (2 sigma^2), so the losses are D / sigma^2 apart.
    """
    reach = math.ceil(_FARTHEST * sigma) + 1 if sigma < _MOST_OUTCOMES else _MOST_OUTCOMES
    if 2 * reach + sensitivity > _MOST_OUTCOMES:
        raise UnsupportedEvent(
            f"sigma={sigma!r}, sensitivity={sensitivity!r}: must have at most {_MOST_OUTCOMES} outcomes to sum for "
            "method 'pld'.",
            ANY_METHOD,
        )
    step, rho = sensitivity / sigma / sigma, 0.5 * (sensitivity / sigma) ** 2
    if not math.isfinite(step * sensitivity):
        return non_private()
    # From the largest outcome, which has the smallest loss, down.
    k = np.arange(sensitivity + reach, -reach - 1, -1, dtype=float)
    losses = _away_from_0(step * (0.5 * sensitivity - k))
    log_p, log_q = -0.5 * (k / sigma) ** 2, -0.5 * ((k - sensitivity) / sigma) ** 2
    log_total = float(log_sum_exp(log_p))
    p, q = np.exp(log_p - log_total), np.exp(log_q - log_total)
    p_up, q_up, p_down, q_down = _suffix_sums(p), _suffix_sums(q), *(_suffix_sums(m[::-1])[::-1] for m in (p, q))
    # Between the losses i-1 and i the divergence is d_i + (1 - exp(x - loss_i)) s_i, s_i = exp(loss_i) Q(L >= loss_i),
    # and d_(i-1) = d_i + (1 - exp(-step)) s_i: sums of positive terms, in which nothing cancels.
    s = np.append(np.exp(losses + np.logaddexp.accumulate((log_q - log_total)[::-1])[::-1]), 0.0)
    d = -math.expm1(-step) * np.append(_suffix_sums(s[1:-1]), 0.0)
    ends = np.append(losses, np.inf)

    def curve(x: Array) -> Array:
        i = np.searchsorted(losses, x, side="right")
        return np.minimum(d[i] - np.expm1(x - ends[i]) * s[i], 1.0)

    def tails(x: Array) -> Tails:
        i = np.searchsorted(losses, x, side="right")
        return Tails(p_up[i], q_up[i], p_down[i], q_down[i])

    return DominatingPair(curve, curve, tails, atom=step / 2, mean=rho)


def bounded_range(epsilon: float) -> DominatingPair:
    """The pair that dominates every epsilon-bounded-range mechanism (the exponential mechanism).

    A bounded-range loss lies in [t - epsilon, t] for some t, so it is dominated by the two-point loss on the ends
    (Dong, Durfee and Rogers 2020, arXiv:1909.13830). Its divergence (1 - e^(t-epsilon))(1 - e^(x-t))/(1 - e^(-epsilon))
    is largest at t = (x + epsilon)/2, which gives the curve here; a largest of convex curves is convex.
    """

    def curve(x: Array) -> Array:
        return np.expm1(np.minimum((x - epsilon) / 2, 0.0)) ** 2 / -math.expm1(-epsilon)

    return DominatingPair(curve, curve)


def identical() -> DominatingPair:
    """Two equal distributions: nothing is released."""
    return replace(discrete(np.zeros(1), np.ones(1)), identical=True)


def non_private(share: float = 1.0) -> DominatingPair:
    """Two distributions that have nothing in common, or only the mass 1 - ``share``."""
    return discrete(np.zeros(1), np.array([1.0 - share]), infinite_mass=share)
