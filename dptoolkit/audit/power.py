"""How often the sequential test finds a planted fault: the test that is run, not a formula for another one.

The bets are learned by the code that audits use, from trials drawn from the fault. Given the bets, log wealth is a sum
of independent terms whose mean and variance are known exactly from the laws of the fault, so a few such runs give the
probability of a find to many digits.
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
from dptoolkit.audit import worlds
from dptoolkit.audit.attacks import threshold
from dptoolkit.audit.betting import FIRST, LESSONS, MEMORY, Wealth
from dptoolkit.audit.claims import GDP, RDP, ZCDP, ApproxDP, Claim, PureDP, Released
from dptoolkit.audit.statistics import coin_log_wealth
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.worlds import Worlds
from dptoolkit.errors import UnsupportedEvent

Array = NDArray[np.float64]
# Runs of learning. Each one has its own bets; the rest of the randomness is worked out.
_RUNS = 16
# A share of trials added for what the model leaves out: an attack that is learned, sums that are not quite normal.
_MARGIN = 1.1
# More than this many trials is "never": by then the sums of the model are too coarse to tell.
_NEVER = 1e11


# --- planted faults ------------------------------------------------------------------------------------


def faults(claim: Claim, factor: float) -> tuple[Worlds, ...]:
    """Mechanisms that the claim would be tight for, with their noise divided by ``factor``.

    A claim that is not about one mechanism gets the usual ones: Laplace noise and randomised response for epsilon-DP,
    Gaussian noise for (epsilon, delta), zCDP and a Renyi curve. The profile that such a claim implies is larger than
    that of any of them, and a test is to be judged by what is there to be found.
    """
    if isinstance(claim, PureDP):
        epsilon = factor * claim.epsilon_claimed
        return worlds.LaplaceWorlds(epsilon), worlds.response(epsilon)
    mu = _gaussian_mu(claim)
    if mu is not None:
        return (worlds.GaussianWorlds(factor * mu),)
    if isinstance(claim, Released):
        return (_released(claim, factor),)
    weak = claim.weakened(factor)
    return (worlds.from_profile(weak.delta, weak.delta, _top(weak)),)


def _gaussian_mu(claim: Claim) -> float | None:
    """mu of the Gaussian mechanism that the claim would be tight for; None where that is another mechanism."""
    if isinstance(claim, GDP):
        return claim.mu
    if isinstance(claim, ZCDP):
        return math.sqrt(2 * claim.rho)
    if isinstance(claim, RDP):
        # The least noise whose curve stays below the claimed one.
        return min(math.sqrt(2 * v / a) for a, v in zip(claim.orders, claim.values, strict=True))
    if isinstance(claim, ApproxDP):
        return gaussian.mu(claim.epsilon_claimed, claim.delta_claimed)
    return claim.gaussian_mu if isinstance(claim, Released) else None


def _released(claim: Released, factor: float) -> Worlds:
    """What the event releases with less noise: both orders of its own pair, not the worse of them twice."""
    weak, event = claim.weakened(factor), scaled(claim.guarantee.event, factor)
    try:
        return worlds.from_profile(*pld.divergences(event), _top(weak))
    except UnsupportedEvent:
        pass
    try:
        return worlds.GaussianWorlds(math.sqrt(2 * total_rho(event)))
    except UnsupportedEvent:
        return worlds.from_profile(weak.delta, weak.delta, _top(weak))


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

    def known(self, epochs: int) -> tuple[Array, Array, Array]:
        """Growth, variance and right guesses of the first epochs."""
        return np.array(self.growth[:epochs]), np.array(self.variance[:epochs]), np.array(self.right[:epochs])


class Test:
    """The sequential test of a claim at ``alpha``, played against a fault."""

    def __init__(self, claim: Claim, fault: Worlds, alpha: float) -> None:
        self._fault, self._wealth = fault, Wealth(claim, alpha)
        # Half of the money is on each of two strategies, so either has to double it once more.
        self._target = math.log(2 / alpha)
        self._allowed = (1 + min(claim.delta(0.0), 1.0)) / 2
        self._runs = [_Learned() for _ in range(_RUNS)]
        self._bits = [np.zeros(0, np.int8)] * _RUNS
        self._scores = [np.zeros(0)] * _RUNS

    def power(self, trials: int) -> float:
        """A lower bound on the probability that ``trials`` trials refute the claim."""
        lengths = _epochs(trials)
        self._learn(len(lengths))
        needed = _wins_needed(trials - FIRST, self._allowed, self._target)
        alone = float(np.mean([self._one(run, lengths, needed) for run in self._runs]))
        return min(alone, self._together(lengths, needed))

    def _one(self, run: _Learned, lengths: Array, needed: float) -> float:
        """The probability of a find for one run's bets, from the better of the two strategies."""
        growth, variance, right = run.known(len(lengths))
        bets = _exceeds(float(lengths @ growth) - self._target, float(lengths @ variance))
        return max(bets, _exceeds(float(lengths @ right) - needed, float(lengths @ (right * (1 - right)))))

    def _together(self, lengths: Array, needed: float) -> float:
        """The same with what the runs learned taken for normal: a few runs do not show their rare bad luck."""
        growth, variance, right = (np.array(x) for x in zip(*(r.known(len(lengths)) for r in self._runs), strict=True))
        ends, wins = growth @ lengths, right @ lengths
        bets = _exceeds(float(ends.mean()) - self._target, float((variance @ lengths).mean() + ends.var(ddof=1)))
        spread = float(((right * (1 - right)) @ lengths).mean() + wins.var(ddof=1))
        return max(bets, _exceeds(float(wins.mean()) - needed, spread))

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
        """Learn as an audit does: whenever the trials have doubled, each part from no more than it remembers."""
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
                cut = self._fault.below(np.array([rule.high]))
                run.right.append(float(0.5 * (cut[0, 0] + 1 - cut[1, 0])))


def _exceeds(mean: float, variance: float) -> float:
    """P(X >= 0) for a normal X."""
    return float(ndtr(mean / math.sqrt(variance))) if variance > 0 else float(mean >= 0)


def _cells(below: Array) -> Array:
    """Probabilities of (bin, secret bit) from the laws at the edges, in the order of the bets' cells."""
    whole = np.concatenate([np.zeros((2, 1)), below, np.ones((2, 1))], axis=1)
    return np.asarray(0.5 * np.diff(whole, axis=1).T.reshape(-1))


def _epochs(trials: int) -> Array:
    """Trials played by each set of bets: as many as there were before, the last ones for ever."""
    lengths: list[float] = []
    done = FIRST
    while done < trials:
        last = done >= LESSONS
        lengths.append(trials - done if last else min(done, trials - done))
        done += int(lengths[-1])
    return np.array(lengths)


def _wins_needed(games: int, allowed: float, target: float) -> float:
    """The fewest right guesses of so many with which betting on the coin makes log wealth ``target``."""
    low, high = int(games * allowed), games + 1
    while high - low > 1:
        middle = (low + high) // 2
        rich = float(coin_log_wealth(np.array([middle]), np.array([games]), allowed)[0]) >= target
        low, high = (low, middle) if rich else (middle, high)
    return high


def trials_needed(claim: Claim, factor: float, alpha: float, power: float) -> float:
    """Trials with which the sequential test finds every planted fault with probability ``power``; inf for never."""
    try:
        return _kept(claim, factor, alpha, power)
    except TypeError:
        # A claim that cannot be hashed is worked out every time.
        return _kept.__wrapped__(claim, factor, alpha, power)


@lru_cache(maxsize=256)
def _kept(claim: Claim, factor: float, alpha: float, power: float) -> float:
    return max(_smallest(Test(claim, fault, alpha).power, power) for fault in faults(claim, factor))


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
