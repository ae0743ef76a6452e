"""Attacks: how an output becomes a score, where a larger score means "the first dataset", and a score a guess.

The statistic behind a score is known in advance, or learned. A learned attack uses past trials only, and is learned
again as their number grows. The tests stay valid because every guess follows a rule that was fixed before its trial.
``floating_point_attack`` is another kind: it needs no statistics, as it is certain or says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.audit.floating_point import FloatingPointReport, floating_point_attack
from dptoolkit.audit.pair import Score
from dptoolkit.audit.statistics import Guesses, lower_bound
from dptoolkit.types import Array

__all__ = [
    "Attack", "Bits", "Features", "FloatingPointReport", "Rule", "best_tails", "fixed_attack", "floating_point_attack",
    "learn", "threshold",
]  # fmt: skip
Bits = NDArray[np.int8]

# Shares of the scores that form a tail. A tail with fewer than _FEWEST guesses is not considered; what it achieves is
# bounded with confidence _SURE.
_TAILS = (0.003, 0.006, 0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
_FEWEST, _SURE = 50, 0.99
# Outputs with at most this many values are scored by their frequencies.
_FEW = 64
# Beyond this many features only their means and variances are learned, and no squares.
_FULL_COVARIANCE, _SQUARES = 200, 40
# In units of a feature's usual size, what is larger counts as this: its square is still finite.
_HUGE = 1e100


@dataclass(frozen=True)
class Attack:
    """A statistic of outputs, and the score of a run that failed, since an adversary sees a failure too."""

    name: str
    statistic: Score
    failed: float = math.inf

    def scores(self, outputs: Array) -> Array:
        """Scores of many outputs, one per row; a row of nothing but NaN is a failure."""
        is_failure = np.isnan(outputs).all(axis=1)
        values = np.full(len(outputs), self.failed)
        if not is_failure.all():
            scores = np.asarray(self.statistic(outputs[~is_failure]), dtype=float)
            if scores.shape != (len(outputs) - int(is_failure.sum()),):
                bound = f"one number for each of {len(outputs) - int(is_failure.sum())} outputs"
                raise invalid("attack", f"scores of shape {scores.shape}", bound)
            values[~is_failure] = scores
        return np.nan_to_num(values, nan=self.failed, posinf=1e300, neginf=-1e300)


def fixed_attack(statistic: Score, name: str, outputs: Array, bits: Bits) -> Attack:
    """The attack with a known statistic; only the score of a failure, or where the statistic is NaN, is learned."""
    return Attack(name, statistic, _failure(np.isnan(outputs).any(axis=1), bits))


def learn(outputs: Array, bits: Bits) -> Attack:
    """The best of a few statistics, judged by fitting on one half of past trials and guessing on the other.

    The winner is then fitted on all past trials.
    """
    is_failure = np.isnan(outputs).all(axis=1)
    good, worlds = outputs[~is_failure], bits[~is_failure]
    failure_score = _failure(is_failure, bits)
    if len(good) < 8 or worlds.min() == worlds.max():
        return Attack("failures", lambda x: np.zeros(len(x)), failure_score)
    features = Features.of(good)
    past = features(good)
    makers = _makers(past)
    name = max(makers, key=lambda key: _judge(makers[key], past, worlds))
    statistic = makers[name](past, worlds)
    return Attack(name, lambda x: statistic(features(x)), failure_score)


@dataclass(frozen=True)
class Features:
    """Outputs as numbers of usual size, and which of them are missing.

    ``units`` are the usual sizes of the numbers, as powers of two, so that squares neither vanish nor overflow; what is
    infinite is huge in these units. ``gaps`` are the places at which NaN was seen: each has a feature of its own, 1
    where it is missing, and the usual number takes its place in ``middles``.
    """

    units: Array
    middles: Array
    gaps: NDArray[np.intp]

    @classmethod
    def of(cls, outputs: Array) -> Features:
        """From past outputs, of which no row is all NaN."""
        sizes = np.where(np.isfinite(outputs) & (outputs != 0), np.abs(outputs), np.nan)
        units = np.array([_power_of_two(column[~np.isnan(column)]) for column in sizes.T])
        missing = np.isnan(outputs)
        gaps = np.flatnonzero(missing.any(axis=0))
        scaled, middles = _scaled(outputs, units), np.zeros(outputs.shape[1])
        for j in gaps:
            known = scaled[~missing[:, j], j]
            middles[j] = np.median(known) if len(known) else 0.0
        return cls(units, middles, gaps)

    def __call__(self, outputs: Array) -> Array:
        missing = np.isnan(outputs)
        values = np.where(missing, self.middles, _scaled(outputs, self.units))
        return values if len(self.gaps) == 0 else np.hstack([values, missing[:, self.gaps]])


def _power_of_two(sizes: Array) -> float:
    """The power of two below the median; 1 without any."""
    return math.ldexp(1.0, math.frexp(float(np.quantile(sizes, 0.5, method="nearest")))[1] - 1) if len(sizes) else 1.0


def _scaled(outputs: Array, units: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(outputs / units, -_HUGE, _HUGE)


def _failure(is_failure: Any, bits: Bits) -> float:
    return math.inf if 2 * int(bits[is_failure].sum()) >= int(is_failure.sum()) else -math.inf


Maker = Callable[[Array, Bits], Score]


def _makers(outputs: Array) -> dict[str, Maker]:
    makers: dict[str, Maker] = {"difference": _difference}
    if len(np.unique(outputs[:1000], axis=0)) <= _FEW:
        makers["frequencies"] = _frequencies
    if 1 < outputs.shape[1] <= _FULL_COVARIANCE and len(outputs) > 10 * outputs.shape[1]:
        makers["discriminant"] = _discriminant
    if outputs.shape[1] <= _SQUARES and len(outputs) > 400:
        makers["squares"] = _with_squares
    return makers


def _judge(maker: Maker, outputs: Array, bits: Bits) -> float:
    """The share of right guesses on the halves that the statistic was not fitted on."""
    half = np.arange(len(outputs)) % 2 == 0
    right = 0
    for part in (half, ~half):
        if bits[part].min() == bits[part].max():
            return 0.0
        statistic = maker(outputs[part], bits[part])
        rule = threshold(np.asarray(statistic(outputs[part]), dtype=float), bits[part])
        right += int((rule.guess(np.asarray(statistic(outputs[~part]), dtype=float)) == bits[~part]).sum())
    return right / len(outputs)


def _difference(outputs: Array, bits: Bits) -> Score:
    """Difference of the means over the variance, feature by feature."""
    first, second = outputs[bits == 1], outputs[bits == 0]
    spread = 0.5 * (first.var(axis=0) + second.var(axis=0))
    direction = np.where(spread > 0, (first.mean(axis=0) - second.mean(axis=0)) / np.where(spread > 0, spread, 1), 0.0)
    return lambda x: np.asarray(x @ direction)


def _discriminant(outputs: Array, bits: Bits) -> Score:
    """Fisher's discriminant with a little shrinkage towards the diagonal."""
    first, second = outputs[bits == 1], outputs[bits == 0]
    covariance = np.atleast_2d(0.5 * (np.cov(first.T) + np.cov(second.T)))
    scale = np.diag(covariance).copy()
    shrunk = 0.95 * covariance + np.diag(0.05 * scale + 1e-12 * (scale.max() or 1.0))
    direction = np.linalg.solve(shrunk, first.mean(axis=0) - second.mean(axis=0))
    return lambda x: np.asarray(x @ direction)


def _with_squares(outputs: Array, bits: Bits) -> Score:
    """The discriminant of standardised features, their squares, and which are zero; it detects changes of spread."""
    centre, scale = outputs.mean(axis=0), outputs.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)

    def features(x: Array) -> Array:
        z = (x - centre) / scale
        return np.hstack([z, np.minimum(z * z, 25.0), x == 0])

    inner = _discriminant(features(outputs), bits)
    return lambda x: inner(features(x))


def _frequencies(outputs: Array, bits: Bits) -> Score:
    """The log-ratio of how often each value occurred in the two worlds; a value never seen says nothing."""
    values, inverse = np.unique(outputs, axis=0, return_inverse=True)
    counts = [np.bincount(inverse.ravel()[bits == world], minlength=len(values)) for world in (0, 1)]
    ratio = np.log((counts[1] + 0.5) / (counts[0] + 0.5))
    table = dict(zip(map(bytes, np.ascontiguousarray(values)), ratio, strict=True))

    def statistic(x: Array) -> Array:
        return np.array([table.get(bytes(row), 0.0) for row in np.ascontiguousarray(x)])

    return statistic


# --- guessing ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """Guess "first" for scores from ``high`` up, "second" below ``low``, and nothing in between."""

    low: float
    high: float

    @property
    def sides(self) -> int:
        """How many of the two worlds are ever guessed."""
        return (self.low > -math.inf) + (self.high < math.inf)

    def guess(self, scores: Array) -> Bits:
        """1, 0, or -1 for no guess."""
        return np.where(scores >= self.high, 1, np.where(scores < self.low, 0, -1)).astype(np.int8)

    def play(self, scores: Array, bits: Bits) -> Guesses:
        """The number of guesses, and of right ones, by the rule on these trials."""
        guesses = self.guess(scores)
        return Guesses(len(bits), int((guesses >= 0).sum()), int((guesses == bits).sum()))


def threshold(scores: Array, bits: Bits) -> Rule:
    """A rule that always guesses: at the median of past scores, or elsewhere if that was clearly better.

    The best threshold on few trials fits their noise, the median does not.
    """
    cuts = np.unique(np.quantile(scores, [0.5, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9], method="nearest"))
    middle = np.quantile(scores, 0.5, method="nearest")
    # "Above the median" and "at least the median" are the same for continuous scores, but not for scores of few values.
    options = [middle, np.nextafter(middle, np.inf), *cuts, *np.nextafter(cuts, np.inf)]
    right = np.array([int(((scores >= cut) == (bits == 1)).sum()) for cut in options])
    best = int(np.argmax(right[:2]))
    if right.max() > right[best] + 2 * math.sqrt(len(scores)):
        best = int(np.argmax(right))
    return Rule(float(options[best]), float(options[best]))


def best_tails(scores: Array, bits: Bits, trials: int, value: Callable[[Guesses, int], float]) -> tuple[float, Rule]:
    """(expected value, rule) of a rule that guesses on the tails of the scores only, where the odds are best.

    Each rule is judged by ``value(guesses, sides)`` of the guesses expected in the next ``trials`` trials, which use a
    lower bound on its share of right guesses.
    """
    best = (-math.inf, Rule(-math.inf, math.inf))
    for low_share, high_share in [(0.0, s) for s in _TAILS] + [(s, 0.0) for s in _TAILS] + [(s, s) for s in _TAILS]:
        low = float(np.quantile(scores, low_share, method="nearest")) if low_share else -math.inf
        high = float(np.quantile(scores, 1 - high_share, method="nearest")) if high_share else math.inf
        rule = Rule(min(low, high), high)
        record = rule.play(scores, bits)
        if record.made < _FEWEST:
            continue
        expected = value(_coming(record, trials), rule.sides)
        if expected > best[0]:
            best = (expected, rule)
    return best


def _coming(record: Guesses, trials: int) -> Guesses:
    # The best of many rules was partly lucky. So it is credited only with a lower bound on its share of right guesses.
    p = lower_bound(record.correct, record.made, _SURE)
    number = int(trials * record.made / record.trials)
    return Guesses(trials, number, int(number * p))
