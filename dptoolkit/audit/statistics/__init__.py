"""Exact tests and bounds for the secret-bit game.

A trial draws a fair secret bit, runs the mechanism on the dataset the bit points to, and guesses the bit from the
output. A claim with profile delta(.) bounds any guesser: P(correct) <= e^eps P(wrong) + delta(eps) for every eps >= 0.
At eps = 0, without abstaining, that is P(correct) <= (1 + delta(0)) / 2: one binomial, no union bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, betaincinv, logsumexp

from dptoolkit.types import Array


def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """The exact (Clopper-Pearson) one-sided lower confidence bound for a probability."""
    if successes <= 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, 1 - confidence))


def p_value(successes: int, trials: int, probability: float) -> float:
    """P(at least ``successes``) when each trial succeeds with at most ``probability``."""
    if successes <= 0:
        return 1.0
    return 1.0 if probability >= 1 else float(bdtrc(successes - 1, trials, probability))


def excess(trials: int, delta: float, error: float) -> int:
    """A number that Bin(trials, delta) exceeds with probability at most ``error``."""
    if delta <= 0:
        return 0
    count = int(trials * delta)
    while bdtrc(count, trials, delta) > error:
        count += 1
    return count


@dataclass(frozen=True)
class Guesses:
    """The counts of a guesser: in ``trials`` games it made ``made`` guesses, of which ``correct`` were right."""

    trials: int
    made: int
    correct: int

    def __add__(self, other: Guesses) -> Guesses:
        return Guesses(self.trials + other.trials, self.made + other.made, self.correct + other.correct)

    def swapped(self) -> Guesses:
        """The same guesses, each reversed."""
        return Guesses(self.trials, self.made, self.made - self.correct)

    def excess_lower(self, epsilon: float, sides: int, confidence: float) -> float:
        """A lower bound on delta(epsilon), for any mechanism, from a rule that guesses one or both worlds.

        P(correct) <= e^eps P(wrong) + delta sides / 2: two Clopper-Pearson bounds, half of the error each.
        """
        level = 1 - (1 - confidence) / 2
        right = lower_bound(self.correct, self.trials, level)
        wrong = 1 - lower_bound(self.trials - (self.made - self.correct), self.trials, level)
        return 2 / sides * (right - math.exp(epsilon) * wrong)

    def odds_lower(self, delta: float, confidence: float) -> float:
        """A lower bound on epsilon at ``delta``, for any mechanism.

        Correct guesses up to probability e^eps P(wrong) are binomial, given the number of guesses. Any further correct
        guesses have probability at most delta, so they are few; a tenth of the error is for the event that they are
        more than ``spare``.
        """
        error = 1 - confidence
        spare = excess(self.trials, delta, 0.1 * error)
        rest = max(self.correct - spare, 0)
        p = lower_bound(rest, self.made - min(spare, self.correct), 1 - (0.9 if delta > 0 else 1.0) * error)
        return max(0.0, math.log(p / (1 - p))) if 0 < p < 1 else 0.0


# --- betting ---------------------------------------------------------------------------------------------

# Alternatives to a success probability p: p + (1-p) 2^(-j/2). One of them is near any truth above p.
_ALTERNATIVES = 2.0 ** (-np.arange(1, 25) / 2)


def coin_log_wealth(successes: NDArray[np.int64], trials: NDArray[np.int64], probability: float) -> Array:
    """log wealth after ``trials`` bets that P(success) exceeds ``probability``.

    A mixture over alternatives q > p of the likelihood ratio of q against p: a supermartingale if every success has
    conditional probability at most p, so wealth >= 1/alpha ever happens with probability at most alpha.
    """
    if probability >= 1:
        return np.zeros(len(trials))
    q = probability + (1 - probability) * _ALTERNATIVES
    gain, loss = np.log(q / probability), np.log1p(-_ALTERNATIVES)
    each = np.multiply.outer(successes, gain) + np.multiply.outer(trials - successes, loss)
    return np.asarray(logsumexp(each, axis=1) - math.log(len(q)))


def anytime_lower(correct: NDArray[np.bool_], confidence: float) -> float:
    """A lower bound for P(success) that holds at all times at once, so a stopped sequence may be used.

    The largest p that some wealth, at the times looked at, refutes.
    """
    n = len(correct)
    if n == 0:
        return 0.0
    times = np.unique(np.geomspace(1, n, 400).astype(np.int64))
    wins = np.cumsum(correct, dtype=np.int64)[times - 1]
    target = -math.log(1 - confidence)
    if wins[-1] == 0 or float(coin_log_wealth(wins, times, 1e-12).max()) < target:
        return 0.0
    low, high = 1e-12, 1.0
    while high - low > 1e-7:
        middle = 0.5 * (low + high)
        refuted = float(coin_log_wealth(wins, times, middle).max()) >= target
        low, high = (middle, high) if refuted else (low, middle)
    return low


# --- the whole trade-off ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TradeOff:
    """False-negative rate against false-positive rate over all thresholds, with a simultaneous band."""

    false_positive: Array
    false_negative: Array
    width: tuple[float, float]

    @property
    def lower(self) -> tuple[Array, Array]:
        """The curve moved towards the origin by the band: with the stated confidence the truth is above it."""
        return self.false_positive + self.width[0], self.false_negative + self.width[1]


def trade_off(scores: Array, bits: NDArray[np.int8], confidence: float, points: int = 201) -> TradeOff:
    """The empirical trade-off of thresholds on the score; DKW bands for both error rates, half of the error each."""
    first, second = np.sort(scores[bits == 1]), np.sort(scores[bits == 0])
    if len(first) == 0 or len(second) == 0:
        return TradeOff(np.array([0.0, 1.0]), np.array([1.0, 0.0]), (1.0, 1.0))
    thresholds = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, points), method="nearest")
    positive = 1 - np.searchsorted(second, thresholds, side="left") / len(second)
    negative = np.searchsorted(first, thresholds, side="left") / len(first)
    width = [math.sqrt(math.log(4 / (1 - confidence)) / (2 * len(sample))) for sample in (second, first)]
    return TradeOff(np.append(positive, 0.0), np.append(negative, 1.0), (width[0], width[1]))
