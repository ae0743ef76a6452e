"""Lower bounds from two outcomes: what an observer learns who sees one bit of every release.

Post-processing never adds to a privacy loss, so a release of which only one bit is looked at bounds epsilon from below.
Noisy-max between two candidates has no more than two outcomes. The best of several runs is looked at through the bit
"some run is in A", where A is a half-line of the privacy loss of one run.

With n releases that show the bit with probability p on one side and q on the other, the number of ones is binomial, and
any set B of numbers gives delta(x) >= P(B) - e^x Q(B), so epsilon at delta is at least log((P(B) - delta) / Q(B)). B is
one of the sets of the largest losses. Every bit and every B give a bound by themselves, so a coarse choice costs
tightness only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dptoolkit.accounting._numeric import log_binomial
from dptoolkit.accounting.profiles import DominatingPair
from dptoolkit.accounting.rounds import RunCountLaw
from dptoolkit.types import Array

# Candidates for the bit, and the most releases whose sums are computed.
_BITS, _MOST = 65, 20_000
# Bounds on the relative errors of probabilities, and of each release of a sum of binomial ones. Smaller deltas are not
# looked at, because a complement is only known to 1e-16.
_ERROR, _STEP_ERROR, _LEAST_DELTA = 1e-9, 1e-12, 1e-13
# A probability that underflowed.
_LEAST = 1e-300


class Bits(NamedTuple):
    """Probabilities of bits on both sides, and of their complements, which are computed without cancellation."""

    p: Array
    q: Array
    not_p: Array
    not_q: Array


def lower_epsilon(bits: Bits, count: int, delta: float) -> float:
    """The largest epsilon that some of the bits show at ``delta`` after ``count`` releases, in either order."""
    if count > _MOST or delta < _LEAST_DELTA:
        return 0.0
    best = 0.0
    for i in range(len(bits.p)):
        one, other = (bits.p[i], bits.not_p[i]), (bits.q[i], bits.not_q[i])
        best = max(best, _one_order(one, other, count, delta), _one_order(other, one, count, delta))
    return best


def _one_order(p: tuple[float, float], q: tuple[float, float], count: int, delta: float) -> float:
    if not (min(*p, *q) > 0 and max(*p, *q) < 1):
        return 0.0
    k = np.arange(count + 1, dtype=float)
    log_p, log_q = (log_binomial(count, k) + k * math.log(m[0]) + (count - k) * math.log(m[1]) for m in (p, q))
    order = np.argsort(log_q - log_p)
    # Q's sums may underflow, so they stay logarithms.
    above_p, log_above_q = np.cumsum(np.exp(log_p[order])), np.logaddexp.accumulate(log_q[order])
    error = _ERROR + count * _STEP_ERROR
    rest = above_p * (1 - error) - delta
    useful = rest > 0
    if not np.any(useful):
        return 0.0
    return max(float(np.max(np.log(rest[useful]) - log_above_q[useful])) - error, 0.0)


def noisy_max(epsilon: float, noise: str, delta: float) -> Bits:
    """Two candidates whose gap goes from g to g + epsilon, in units of the noise, for several g."""
    reach = epsilon + math.log(1 / max(delta, 1e-300)) + 2
    gaps = np.unique(np.concatenate([np.linspace(-reach, reach, _BITS), np.linspace(-epsilon, 0, _BITS)]))
    wins, loses = (lambda g: _gap_law(g, noise)), (lambda g: _gap_law(-g, noise))
    return Bits(wins(gaps + epsilon), wins(gaps), loses(gaps + epsilon), loses(gaps))


def _gap_law(gap: Array, noise: str) -> Array:
    """The probability that the first candidate wins: the law of the difference of two noises."""
    far = np.abs(gap)
    tail = np.exp(-far) * (0.5 if noise == "exponential" else (2 + far) / 4)
    return np.where(gap < 0, tail, 1 - tail)


def best_of(pair: DominatingPair, runs: RunCountLaw) -> Bits | None:
    """The bits "some run has a loss above x" and "some run has a loss of at most x", for several x."""
    if pair.tails is None:
        return None
    x = np.concatenate([-np.geomspace(50, 1e-3, _BITS // 2), np.zeros(1), np.geomspace(1e-3, 50, _BITS // 2)])
    tails = pair.tails(x)
    p, q = (tails.p_above, tails.p_below), (tails.q_above, tails.q_below)
    log_none_p, log_none_q = (_log_none(runs, np.concatenate(m), np.concatenate(m[::-1])) for m in (p, q))
    none_p, none_q = (np.clip(np.exp(m), 0.0, 1.0) for m in (log_none_p, log_none_q))
    some_p, some_q = (-np.expm1(np.minimum(m, 0.0)) for m in (log_none_p, log_none_q))
    return Bits(some_p, some_q, none_p, none_q)


def _log_none(runs: RunCountLaw, share: Array, rest: Array) -> Array:
    """log P(no run is in a set that one run is in with probability ``share``, and not in it with ``rest``).

    The smaller of the two is used, because 1 minus the other would be known to 1e-16 only.
    """
    with np.errstate(divide="ignore"):
        log_rest = np.where(share < 0.5, np.log1p(-np.minimum(share, 0.5)), np.log(np.maximum(rest, _LEAST)))
        return np.asarray(runs.log_pgf(log_rest))
