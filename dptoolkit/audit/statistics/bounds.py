"""From guesses to bounds: the largest member of a claim's family that they refute.

Three statistics. All guesses: one binomial against (1 + delta(0)) / 2. The excess of confident guesses, right ones over
e^eps wrong ones, against delta(eps). The odds of confident guesses, which bound the epsilon of any mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dptoolkit.audit.claims import Claim
from dptoolkit.audit.statistics import Guesses, anytime_lower, excess
from dptoolkit.audit.statistics import lower_bound as binomial_lower
from dptoolkit.audit.statistics import p_value as binomial_p_value

ADVANTAGE, ODDS, TAIL = "all guesses", "odds of confident guesses", "excess of confident guesses"


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon, an upper bound on what this attack could show, and the evidence for both."""

    epsilon: float
    upper: float
    factor: float
    guesses: Guesses
    statistic: str


@dataclass(frozen=True)
class Confident:
    """Guesses by a rule that abstains; ``epsilon`` is where their excess is evaluated, 0 where their odds are used."""

    guesses: Guesses
    epsilon: float
    sides: int


def bound(
    claim: Claim,
    delta: float,
    counts: Guesses,
    tail: Confident | None,
    correct: NDArray[np.bool_],
    confidence: float,
    sequential: bool = False,
) -> Bound:
    """The bound by the statistic that was chosen before the trials it counts.

    With ``sequential`` it holds at all times at once, so that the audit may stop at any of them.
    """
    if tail is not None:
        method = _from_odds if claim.any_mechanism else _from_excess
        return method(claim, delta, tail, confidence)
    if sequential:
        p_low = anytime_lower(correct, confidence)
    else:
        p_low = binomial_lower(counts.correct, counts.made, confidence)
    factor = claim.factor_at(max(0.0, 2 * p_low - 1))
    p_high = 1 - binomial_lower(counts.made - counts.correct, counts.made, confidence)
    upper = epsilon_at(claim, claim.factor_at(max(0.0, 2 * p_high - 1)), delta)
    return Bound(epsilon_at(claim, factor, delta), upper, factor, counts, ADVANTAGE)


def p_value(claim: Claim, delta: float, counts: Guesses, tail: Confident | None) -> float:
    """The probability of evidence like this or stronger if the claim is true, by the same statistic as the bound."""
    if tail is None:
        return binomial_p_value(counts.correct, counts.made, (1 + claim.delta(0.0)) / 2)
    if claim.any_mechanism:
        e = claim.epsilon(delta)
        return _odds_p_value(tail.guesses, e, claim.delta(e))
    limit = claim.delta(tail.epsilon)
    return _smallest_error(lambda level: tail.guesses.excess_lower(tail.epsilon, tail.sides, level) > limit)


def _from_excess(claim: Claim, delta: float, tail: Confident, confidence: float) -> Bound:
    g = tail.guesses
    factor = claim.factor_at(g.excess_lower(tail.epsilon, tail.sides, confidence), tail.epsilon)
    upper = claim.factor_at(
        -g.swapped().excess_lower(-tail.epsilon, tail.sides, confidence) * math.exp(tail.epsilon), tail.epsilon
    )
    return Bound(epsilon_at(claim, factor, delta), epsilon_at(claim, upper, delta), factor, g, TAIL)


def _smallest_error(refuted: Callable[[float], bool]) -> float:
    """The smallest error 1 - confidence at which ``refuted(confidence)`` is true, rounded up."""
    low, high = -30.0, 0.0
    if not refuted(1 - 10.0**-0.01):
        return 1.0
    while high - low > 0.01:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if refuted(1 - 10.0**middle) else (middle, high)
    return float(10.0**high)


def _from_odds(claim: Claim, delta: float, tail: Confident, confidence: float) -> Bound:
    odds = tail.guesses
    epsilon = odds.odds_lower(delta, confidence)
    p_high = 1 - binomial_lower(odds.made - odds.correct, odds.made, confidence)
    upper = math.log(p_high / (1 - p_high)) if p_high < 1 else math.inf
    e = claim.epsilon(delta)
    return Bound(epsilon, max(upper, epsilon), epsilon / e if e > 0 else math.inf, odds, ODDS)


def _odds_p_value(odds: Guesses, epsilon: float, delta: float) -> float:
    """The smallest error, to two per cent from above, at which the odds refute the claim.

    A tenth of the error is for delta, as in ``Guesses.odds_lower``. The share is fixed, since one chosen by the outcome
    could double the error.
    """
    p = 1 / (1 + math.exp(-epsilon))
    if delta <= 0:
        return binomial_p_value(odds.correct, odds.made, p)

    def refuted(error: float) -> bool:
        spare = min(excess(odds.trials, delta, 0.1 * error), odds.correct)
        return binomial_p_value(odds.correct - spare, odds.made - spare, p) <= 0.9 * error

    low, high = -15.0, 0.0
    while high - low > 0.008:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if refuted(10.0**middle) else (middle, high)
    return float(10.0**high)


def above(estimate: Bound, claimed: float) -> Bound:
    """The bound, raised to the claimed epsilon: for a claim that is refuted with at most the bound's own error."""
    epsilon = max(estimate.epsilon, claimed)
    return replace(estimate, epsilon=epsilon, upper=max(estimate.upper, epsilon), factor=max(estimate.factor, 1.0))


def epsilon_at(claim: Claim, factor: float, delta: float) -> float:
    """The epsilon of a member of the claim's family."""
    return claim.weakened(factor).epsilon(delta) if factor > 0 else 0.0
