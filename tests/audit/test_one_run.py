"""Lower bounds from counts: values known from elsewhere, monotone in what they should be, and right often enough."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri

from dptoolkit.accounting import gaussian
from dptoolkit.audit import one_run
from dptoolkit.errors import InvalidValue

DELTA = 1e-5
MU = gaussian.mu(1.0, DELTA)


@pytest.mark.parametrize(
    ("canaries", "steinke", "f_dp"),
    [(1_000, 0.110, 0.219), (10_000, 0.176, 0.301), (100_000, 0.203, 0.309), (1_000_000, 0.210, 0.308)],
)
def test_ideal_gaussian_canaries(canaries, steinke, f_dp):
    """Medians measured on an ideal Gaussian of epsilon 1; here the count is at its mean, one rounded median apart."""
    correct = round(canaries * ndtr(MU / 2))
    off = 0.012 if canaries <= 10_000 else 0.002
    assert one_run.steinke(correct, canaries, canaries, 0.95, DELTA) == pytest.approx(steinke, abs=off)
    assert one_run.f_dp(correct, canaries, canaries, 0.95, DELTA) == pytest.approx(f_dp, abs=off)


def published_p_value(m, r, v, epsilon, delta):
    """The program printed in the paper (Appendix D of arXiv 2305.08846)."""
    q = 1 / (1 + math.exp(-epsilon))
    beta, alpha, total = stats.binom.sf(v - 1, r, q), 0.0, 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return min(beta + alpha * delta * 2 * m, 1.0)


@pytest.mark.parametrize(("m", "r", "v"), [(100, 100, 80), (1000, 60, 55), (1000, 1000, 640)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_steinke_is_the_published_test(m, r, v, delta):
    epsilon = one_run.steinke(v, r, m, 0.95, delta)
    if epsilon > 0:
        assert published_p_value(m, r, v, epsilon, delta) <= 0.05 + 1e-9
    assert published_p_value(m, r, v, epsilon + 1e-4, delta) > 0.05


def test_f_dp_is_the_whole_recursion():
    """Without the shortcut that ends it early."""

    def forced(v, r, m, error, mu):
        right, wrong = v / m * error, (r - v) / m * error
        for i in range(v - 1, -1, -1):
            least = max(wrong, ndtr(ndtri(right) - mu))
            right, wrong = right + i / (r - i) * (least - wrong), least
            if right + wrong > r / m:
                return True
        return False

    for v, r, m in ((560, 1000, 1000), (70, 100, 1000), (2700, 5000, 5000)):
        mu = gaussian.mu(one_run.f_dp(v, r, m, 0.95, DELTA), DELTA)
        assert forced(v, r, m, 0.05, mu - 1e-4)
        assert not forced(v, r, m, 0.05, mu + 1e-4)


@pytest.mark.parametrize("bound", [one_run.steinke, one_run.f_dp])
def test_one_run_bounds_are_monotone(bound):
    by_correct = [bound(v, 200, 400, 0.95, DELTA) for v in (0, 100, 130, 160, 190, 200)]
    assert by_correct == sorted(by_correct) and by_correct[1] == 0.0 and by_correct[-1] > by_correct[-2]
    by_confidence = [bound(180, 200, 400, level, DELTA) for level in (0.5, 0.9, 0.99, 0.999999)]
    assert by_confidence == sorted(by_confidence, reverse=True)
    assert bound(180, 200, 10_000, 0.95, DELTA) <= bound(180, 200, 200, 0.95, DELTA)


def test_one_run_bounds_cover():
    """Canaries released by randomised response, or by a Gaussian each: above the truth in at most 5 % of runs.

    20 000 runs of a bound that is wrong with probability 0.05 exceed 0.0574 of them with probability below 1e-6.
    """
    rng = np.random.default_rng(0)
    m, runs = 400, 20_000
    for epsilon, chance, bound in (
        (1.0, 1 / (1 + math.exp(-1.0)), lambda v: one_run.steinke(v, m, m, 0.95, 0.0)),
        (1.0, float(ndtr(MU / 2)), lambda v: one_run.f_dp(v, m, m, 0.95, DELTA)),
    ):
        table = {v: bound(v) for v in range(m // 2 - 60, m + 1, 1) if stats.binom.pmf(v, m, chance) > 1e-9}
        counts = rng.binomial(m, chance, runs)
        above = np.mean([table.get(int(v), 0.0) > epsilon for v in counts])
        assert above <= 0.0574


def test_clopper_pearson_by_hand():
    low, high = stats.beta.ppf(0.0125, 600, 401), stats.beta.isf(0.0125, 401, 600)
    found = one_run.clopper_pearson(600, 1000, 400, 1000, DELTA, 0.95)
    assert found == pytest.approx(math.log((low - DELTA) / high), rel=1e-9)
    assert one_run.clopper_pearson(400, 1000, 600, 1000, DELTA, 0.95) == pytest.approx(found)
    assert one_run.clopper_pearson(500, 1000, 500, 1000, DELTA) == 0.0
    assert one_run.clopper_pearson(10, 10, 0, 10, 0.0) > one_run.clopper_pearson(10, 10, 0, 10, 0.01)


def exceeded(bound, up, down, audits, seed=1):
    """How often a bound from 300 runs on each side, with rates up and down, lies above log(up / down)."""
    rng = np.random.default_rng(seed)
    counts = zip(rng.binomial(300, up, audits).tolist(), rng.binomial(300, down, audits).tolist(), strict=True)
    return sum(bound(a, 300, b, 300, 0.0) > math.log(up / down) for a, b in counts)


@pytest.mark.parametrize(("up", "down"), [(1 / (1 + math.exp(-1)), 1 / (1 + math.e)), (0.3, 0.05)])
def test_clopper_pearson_covers(up, down):
    """Above the truth in at most 5 % of audits: a correct bound fails this with probability below 1e-6."""
    assert exceeded(one_run.clopper_pearson, up, down, 1500) <= stats.binom.isf(1e-6, 1500, 0.05)


def test_bayesian_is_calibrated_where_one_side_decides_and_only_there():
    """Near 5 % where the test's yes leaks more than its no; where both leak the same, the larger of two is taken."""

    def bound(*counts):
        return one_run.bayesian(*counts, draws=4000)

    assert 5 <= exceeded(bound, 0.3, 0.05, 500) <= stats.binom.isf(1e-6, 500, 0.06)
    assert exceeded(bound, 1 / (1 + math.exp(-1)), 1 / (1 + math.e), 500) >= 40


def test_bayesian_is_reproducible_and_ordered():
    first = one_run.bayesian(600, 1000, 400, 1000, DELTA)
    assert first == one_run.bayesian(600, 1000, 400, 1000, DELTA)
    assert one_run.clopper_pearson(600, 1000, 400, 1000, DELTA) < first < math.log(1.5)
    assert one_run.bayesian(600, 1000, 400, 1000, DELTA, 0.99) < first


@pytest.mark.parametrize("call", [
    lambda: one_run.steinke(5, 4, 10), lambda: one_run.f_dp(1, 12, 10), lambda: one_run.steinke(1, 2, 3, 1.5),
    lambda: one_run.clopper_pearson(3, 2, 0, 2, 0.0), lambda: one_run.bayesian(1, 2, 3, 2, 0.0),
    lambda: one_run.steinke(1.5, 2, 3), lambda: one_run.f_dp(1, 2, 3, 0.95, 1.0),
])  # fmt: skip
def test_bad_counts_are_refused(call):
    with pytest.raises(InvalidValue):
        call()
