"""The power of the sequential test: the probability that it finds a planted fault.

The bets are learned by the same code as in an audit, from trials drawn from the fault. Given the bets, log wealth is a
sum of independent terms whose mean and variance are known exactly from the laws of the fault, so a few such runs give
the probability to many digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dptoolkit.accounting import gaussian, pld
from dptoolkit.accounting.structure import scaled, total_rho
from dptoolkit.audit.attacks import threshold
from dptoolkit.audit.claims import ApproxClaim, Claim, GaussianClaim, PureClaim, ReleaseClaim, RenyiClaim, ZcdpClaim
from dptoolkit.audit.statistics import coin_log_wealth, fault_models
from dptoolkit.audit.statistics.betting import FIRST, LESSONS, MEMORY, Wealth
from dptoolkit.audit.statistics.fault_models import Worlds
from dptoolkit.audit.streams import Streams
from dptoolkit.errors import UnsupportedEvent
from dptoolkit.types import Array

# Runs of learning. Each has its own bets; the randomness after that is computed, not sampled.
_RUNS = 16
# A factor on the trials for what the model leaves out: learning the attack, and sums that are not quite normal.
_MARGIN = 1.1
# More than this many trials counts as "never": the model's sums are too inaccurate there.
_NEVER = 1e11


# --- planted faults ------------------------------------------------------------------------------------


def faults(claim: Claim, factor: float) -> tuple[Worlds, ...]:
    """Mechanisms for which the claim would be tight, with their noise divided by ``factor``.

    For a claim that is not about one mechanism these are the usual ones: Laplace noise and randomised response for
    epsilon-DP, Gaussian noise for (epsilon, delta), zCDP and a Renyi curve. The profile that such a claim implies is
    larger than that of any of these mechanisms, and the test must find the fault of a real one.
    """
    if isinstance(claim, PureClaim):
        epsilon = factor * claim.epsilon_claimed
        return fault_models.LaplaceWorlds(epsilon), fault_models.response(epsilon)
    mu = _gaussian_mu(claim)
    if mu is not None:
        return (fault_models.GaussianWorlds(factor * mu),)
    if isinstance(claim, ReleaseClaim):
        return (_released(claim, factor),)
    weak = claim.weakened(factor)
    return (fault_models.from_profile(weak.delta, weak.delta, _top(weak)),)


def _gaussian_mu(claim: Claim) -> float | None:
    """mu of the Gaussian mechanism that the claim would be tight for; None where that is another mechanism."""
    if isinstance(claim, GaussianClaim):
        return claim.mu
    if isinstance(claim, ZcdpClaim):
        return math.sqrt(2 * claim.rho)
    if isinstance(claim, RenyiClaim):
        # The least noise whose curve stays below the claimed one.
        return min(math.sqrt(2 * v / a) for a, v in zip(claim.orders, claim.values, strict=True))
    if isinstance(claim, ApproxClaim):
        return gaussian.mu(claim.epsilon_claimed, claim.delta_claimed)
    return claim.gaussian_mu if isinstance(claim, ReleaseClaim) else None


def _released(claim: ReleaseClaim, factor: float) -> Worlds:
    """The event with less noise: the two laws of its own pair in both orders, not the worse order twice."""
    weak, event = claim.weakened(factor), scaled(claim.guarantee.event, factor)
    try:
        return fault_models.from_profile(*pld.divergences(event), _top(weak))
    except UnsupportedEvent:
        pass
    try:
        return fault_models.GaussianWorlds(math.sqrt(2 * total_rho(event)))
    except UnsupportedEvent:
        return fault_models.from_profile(weak.delta, weak.delta, _top(weak))


def _top(claim: Claim) -> float:
    top = claim.epsilon(claim.reference_delta or 1e-5)
    return top if 0 < top < math.inf else 1.0


# --- the test against a fault --------------------------------------------------------------------------


@dataclass
class _Learned:
    """Bets of one run: by epoch, mean and variance of log wealth a trial, and the share of right guesses."""

    growth: list[float] = field(default_factory=list)
    variance: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def first_epochs(self, epochs: int) -> tuple[Array, Array, Array]:
        """Growth, variance and right guesses of the first epochs."""
        return np.array(self.growth[:epochs]), np.array(self.variance[:epochs]), np.array(self.right[:epochs])


class SequentialTest:
    """The sequential test of a claim at ``alpha``, played against a fault."""

    def __init__(self, claim: Claim, fault: Worlds, alpha: float) -> None:
        self._fault, self._wealth = fault, Wealth(claim, alpha)
        # Half of the money is on each of two strategies, so one of them alone must reach 2/alpha.
        self._target = math.log(2 / alpha)
        self._allowed = (1 + min(claim.delta(0.0), 1.0)) / 2
        self._runs = [_Learned() for _ in range(_RUNS)]
        self._bits: list[NDArray[np.int8]] = [np.zeros(0, np.int8)] * _RUNS
        self._scores: list[Array] = [np.zeros(0)] * _RUNS

    def power(self, trials: int) -> float:
        """A lower bound on the probability that ``trials`` trials refute the claim."""
        lengths = _epochs(trials)
        self._learn(len(lengths))
        wins = _wins_needed(trials - FIRST, self._allowed, self._target)
        mean = float(np.mean([self._one(run, lengths, wins) for run in self._runs]))
        return min(mean, self._together(lengths, wins))

    def _one(self, run: _Learned, lengths: Array, wins: float) -> float:
        """The probability of a find for one run's bets, from the better of the two strategies."""
        growth, variance, right = run.first_epochs(len(lengths))
        bets = _exceeds(float(lengths @ growth) - self._target, float(lengths @ variance))
        return max(bets, _exceeds(float(lengths @ right) - wins, float(lengths @ (right * (1 - right)))))

    def _together(self, lengths: Array, least: float) -> float:
        """The probability of a find if what runs learn has a normal law; a few runs would not show rare bad luck."""
        runs = [run.first_epochs(len(lengths)) for run in self._runs]
        growth, variance, right = (np.array(x) for x in zip(*runs, strict=True))
        ends, wins = growth @ lengths, right @ lengths
        bets = _exceeds(float(ends.mean()) - self._target, float((variance @ lengths).mean() + ends.var(ddof=1)))
        spread = float(((right * (1 - right)) @ lengths).mean() + wins.var(ddof=1))
        return max(bets, _exceeds(float(wins.mean()) - least, spread))

    def _draw(self, run: int, count: int) -> tuple[Array, NDArray[np.int8]]:
        """The first scores and bits of a run; block k of them has a stream of its own."""
        streams = Streams(run, "power")
        while len(self._bits[run]) < count:
            have = len(self._bits[run])
            bits = streams.bits(have, max(have, 1024))
            scores = self._fault.draw(bits, streams.generator(have))
            self._bits[run] = np.concatenate([self._bits[run], bits])
            self._scores[run] = np.concatenate([self._scores[run], scores])
        return self._scores[run][:count], self._bits[run][:count]

    def _learn(self, epochs: int) -> None:
        """Learn bets as an audit does: whenever the trials have doubled in number, from as many as an audit keeps."""
        for number, run in enumerate(self._runs):
            while len(run.growth) < epochs:
                past = FIRST * 2 ** len(run.growth)
                scores, bits = self._draw(number, min(past, LESSONS))
                self._wealth.learn(scores, bits)
                edges, factors = self._wealth.bets
                chance = _cells(self._fault.below(edges))
                mean = float(chance @ factors)
                run.growth.append(mean)
                run.variance.append(float(chance @ (factors - mean) ** 2))
                rule = threshold(scores[:MEMORY], bits[:MEMORY])
                probabilities = self._fault.below(np.array([rule.high]))
                run.right.append(float(0.5 * (probabilities[0, 0] + 1 - probabilities[1, 0])))


def _exceeds(mean: float, variance: float) -> float:
    """P(X >= 0) for a normal X."""
    return float(ndtr(mean / math.sqrt(variance))) if variance > 0 else float(mean >= 0)


def _cells(below: Array) -> Array:
    """Probabilities of (bin, secret bit) from the laws at the edges, in the order of the bets' cells."""
    bounds = np.concatenate([np.zeros((2, 1)), below, np.ones((2, 1))], axis=1)
    return np.asarray(0.5 * np.diff(bounds, axis=1).T.reshape(-1))


def _epochs(trials: int) -> Array:
    """The number of trials that each set of bets plays: as many as came before it; the last set plays all the rest."""
    lengths: list[float] = []
    total = FIRST
    while total < trials:
        last = total >= LESSONS
        lengths.append(trials - total if last else min(total, trials - total))
        total += int(lengths[-1])
    return np.array(lengths)


def _wins_needed(games: int, chance: float, target: float) -> float:
    """The fewest right guesses in so many games for which the log wealth of betting on them reaches ``target``."""
    low, high = int(games * chance), games + 1
    while high - low > 1:
        middle = (low + high) // 2
        rich = float(coin_log_wealth(np.array([middle]), np.array([games]), chance)[0]) >= target
        low, high = (low, middle) if rich else (middle, high)
    return high


def trials_needed(claim: Claim, factor: float, alpha: float, power: float) -> float:
    """Trials with which the sequential test finds every planted fault with probability ``power``; inf for never."""
    try:
        return _cached_trials(claim, factor, alpha, power)
    except TypeError:
        # A claim that cannot be hashed cannot be cached.
        return _cached_trials.__wrapped__(claim, factor, alpha, power)


@lru_cache(maxsize=256)
def _cached_trials(claim: Claim, factor: float, alpha: float, power: float) -> float:
    return max(_smallest(SequentialTest(claim, fault, alpha).power, power) for fault in faults(claim, factor))


def _smallest(power_of: Callable[[int], float], power: float) -> float:
    low, high = FIRST, 2 * FIRST
    while power_of(high) < power:
        low, high = high, 2 * high
        if high > _NEVER:
            return math.inf
    while high - low > max(1, 0.002 * high):
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return math.ceil(_MARGIN * high)
