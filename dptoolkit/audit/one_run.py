"""Lower bounds on epsilon from the counts of an attack, by methods from the literature; to compare with our audits.

``steinke`` and ``f_dp`` are for one run with many canaries, each included by a fair coin, and guesses of those coins.
Both hold for any guessing strategy, and both stay below the truth however many canaries there are: guesses about one
output are not independent trials. ``clopper_pearson`` and ``bayesian`` are for many runs and one test fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from dptoolkit._validate import delta_value, invalid, real, whole
from dptoolkit.accounting import gaussian

# Epsilons are found to this precision, on the safe side.
_PRECISION = 1e-6
_LARGEST_EPSILON = 60.0


def steinke(correct: int, guesses: int, canaries: int, confidence: float = 0.95, delta: float = 0.0) -> float:
    """Lower bound on epsilon from ``correct`` of ``guesses`` guesses about ``canaries`` canaries.

    Steinke, Nasr and Jagielski 2023, Theorem 5.2 and Proposition 5.7: if the mechanism is (epsilon, delta)-DP, then

        P(at least v correct) <= beta(v) + 2 m delta alpha,   beta(v) = P(Bin(r, e^eps/(1+e^eps)) >= v),
        alpha = max over i = 1, ..., m of (beta(v - i) - beta(v)) / i:

    a pure mechanism lets each guess be right with odds e^eps at most, whatever the others; a mechanism that is only
    (epsilon, delta)-DP gives away each canary with probability at most 2 delta besides, and giving away i of them makes
    i more guesses right. The bound is the largest epsilon at which this probability is at most 1 - confidence.
    """
    from scipy import stats

    v, r, m = _counts(correct, guesses, canaries)
    error, delta = 1 - _level(confidence), delta_value(delta)

    def chance(epsilon: float) -> float:
        q = float(expit(epsilon))
        # Far below the binomial's mean, beta is 1 and only the divisor grows, so those terms are left out.
        never = r * q - 12 * math.sqrt(r * q * (1 - q)) - 12
        sizes = np.arange(min(v, max(v - math.floor(never), 1)) + 1)
        beta = stats.binom.sf(v - sizes - 1, r, q)
        alpha = float(np.max((beta[1:] - beta[0]) / sizes[1:], initial=0.0))
        return min(float(beta[0]) + 2 * m * delta * alpha, 1.0)

    return _largest(lambda epsilon: chance(epsilon) <= error)


def f_dp(correct: int, guesses: int, canaries: int, confidence: float = 0.95, delta: float = 1e-5) -> float:
    """Lower bound on epsilon at ``delta`` of a mechanism that is Gaussian (mu-GDP for some mu), from the same counts.

    Mahloujifar, Melis and Chaudhuri 2024: take one canary at random. Let p_i be the probability of i correct guesses;
    of it, the canary's guess is right with part i/m and wrong with part (r - i)/m. Given all other canaries, "its
    guess is right and more than i are right in all" and "its guess is wrong and at least i are right" differ by that
    canary's coin alone, so the trade-off curve bounds one by the other, h(x) = Phi(Phi^-1(x) + mu):

        sum over j > i of p_j j/m  <=  h( sum over j >= i of p_j (r - j)/m )

    Going down from the count v that was seen, with probability 1 - confidence placed on v, this forces a least
    probability on every smaller count. If right and wrong parts together exceed r/m, what they sum to, mu is refuted.
    Takes about a second for 1e5 canaries.
    """
    v, r, m = _counts(correct, guesses, canaries)
    error, delta = 1 - _level(confidence), delta_value(delta)
    largest = gaussian.mu(_LARGEST_EPSILON, delta) if delta > 0 else 10.0

    mu = _largest(lambda mu: _forced(v, r, m, error, mu), largest)
    return gaussian.epsilon(mu, delta) if mu > 0 else 0.0


def _forced(v: int, r: int, m: int, error: float, mu: float) -> bool:
    """Whether mu-GDP would need more than all probability to see ``v`` correct guesses with probability ``error``."""
    right, wrong, before = v / m * error, (r - v) / m * error, math.inf
    for i in range(v - 1, -1, -1):
        # h^-1(x) = Phi(Phi^-1(x) - mu): the least that being wrong at least i times must have.
        addition = max(0.0, float(ndtr(ndtri(min(right, 1.0)) - mu)) - wrong)
        # i right and r - i wrong guesses come together.
        right, wrong = right + i / (r - i) * addition, wrong + addition
        if right + wrong > r / m:
            return True
        # Stop once the additions fall and would not matter even if they stayed as large; not refuting is safe.
        if addition < before and addition * i < 1e-9 * error:
            return False
        before = addition
    return False


def clopper_pearson(
    true_positives: int, positives: int, false_positives: int, negatives: int, delta: float, confidence: float = 0.95
) -> float:
    """Lower bound on epsilon from one test on many runs: two exact binomial bounds, each at half the error.

    (epsilon, delta)-DP bounds P1(A) <= e^epsilon P0(A) + delta for A "the test says yes", for A "it says no", and with
    the datasets exchanged. The largest of the four epsilons at the ends of the two intervals is returned; they are
    about the same two probabilities, so no further correction is due.
    """
    error = (1 - _level(confidence)) / 2
    tpr = _interval(true_positives, positives, error / 2)
    fpr = _interval(false_positives, negatives, error / 2)
    pairs = [(tpr[0], fpr[1]), (fpr[0], tpr[1]), (1 - tpr[1], 1 - fpr[0]), (1 - fpr[1], 1 - tpr[0])]
    return max(0.0, *(_log_ratio(high, low, delta_value(delta)) for high, low in pairs))


def bayesian(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    delta: float,
    confidence: float = 0.95,
    draws: int = 400_000,
    seed: int = 0,
) -> float:
    """Lower end of a one-sided credible interval for the epsilon of one test (Zanella-Beguelin and others 2023).

    The two rates have independent Beta posteriors under Jeffreys priors; epsilon is the largest of the four as in
    ``clopper_pearson``. It is a statement about this test and this prior: credible, not a confidence bound. Above the
    truth in about 5 % of audits at 95 % where the test's yes, or its no, leaks more; in 12 % where both leak the same.
    """
    delta, level = delta_value(delta), _level(confidence)
    rng = np.random.default_rng(seed)
    tpr = _posterior(rng, true_positives, positives, draws)
    fpr = _posterior(rng, false_positives, negatives, draws)
    epsilon = np.zeros(draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        for high, low in ((tpr, fpr), (fpr, tpr), (1 - tpr, 1 - fpr), (1 - fpr, 1 - tpr)):
            epsilon = np.fmax(epsilon, np.log((high - delta) / low))
    return float(np.quantile(epsilon, 1 - level))


def _counts(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    v, r, m = whole("correct", correct), whole("guesses", guesses), whole("canaries", canaries, low=1)
    if not v <= r <= m:
        raise invalid("correct, guesses, canaries", (v, r, m), "in this order, none larger than the next")
    return v, r, m


def _level(confidence: float) -> float:
    return real("confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True)


def _interval(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Clopper-Pearson: each end is wrong with probability ``error`` at most."""
    from scipy import stats

    k, n = whole("successes", successes), whole("trials", trials, low=1)
    if k > n:
        raise invalid("successes", k, f"<= {n}, the number of trials")
    low = float(stats.beta.ppf(error, k, n - k + 1)) if k > 0 else 0.0
    return low, float(stats.beta.isf(error, k + 1, n - k)) if k < n else 1.0


def _posterior(rng: np.random.Generator, successes: int, trials: int, draws: int) -> NDArray[np.float64]:
    k, n = whole("successes", successes), whole("trials", trials, low=1)
    if k > n:
        raise invalid("successes", k, f"<= {n}, the number of trials")
    return rng.beta(k + 0.5, n - k + 0.5, draws)


def _log_ratio(high: float, low: float, delta: float) -> float:
    return math.log((high - delta) / low) if high > delta and low > 0 else 0.0


def _largest(refuted: Callable[[float], bool], high: float = _LARGEST_EPSILON) -> float:
    """The largest value that is refuted, 0 if none is; a value is refuted if all smaller ones are."""
    if not refuted(0.0):
        return 0.0
    low = 0.0
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
