"""Noisy maxima against exact probabilities: softmax, integrals, enumeration. Twins with 90% of the noise are caught."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from dptoolkit.accounting import ExponentialMechanism, NoisyMax, Repeated
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import NoisyMaximum, SymmetricMaximum
from tests.statistics import assert_chi2, rejected

DRAWS = 20_000
NOISES = ("gumbel", "laplace", "exponential")
LAWS = {
    "gumbel": (lambda x: np.exp(-x - np.exp(-x)), lambda x: np.exp(-np.exp(-x))),
    "laplace": (lambda x: np.exp(-np.abs(x)) / 2, lambda x: np.where(x < 0, np.exp(x) / 2, 1 - np.exp(-x) / 2)),
    "exponential": (lambda x: np.exp(-x) * (x >= 0), lambda x: -np.expm1(-np.maximum(x, 0.0))),
}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)
SCORES = [np.array([0.0, 1.5]), np.array([2.0, 0.0, 1.0])]


def winning_probabilities(scores, noise, scale):
    """P(i has the largest noisy score), by integration over its value; exact for any number of candidates."""
    density, below = LAWS[noise]
    scores = np.asarray(scores) / scale
    # Kinks of the densities lie at the scores; between them, pieces short enough for Gauss-Legendre. Gumbel noise below
    # -5 and any noise above 40 is too rare to matter.
    ends = np.unique(np.concatenate([np.arange(scores.min() - 40, scores.max() + 40, 0.5), scores]))
    middle, half = (ends[1:] + ends[:-1]) / 2, np.diff(ends) / 2
    x = middle[:, None] + half[:, None] * NODES
    with np.errstate(over="ignore", invalid="ignore"):
        others = np.array([below(x - s) for s in scores])
        found = []
        for i, s in enumerate(scores):
            integrand = np.nan_to_num(density(x - s)) * np.delete(others, i, axis=0).prod(axis=0)
            found.append(float((integrand * WEIGHTS * half[:, None]).sum()))
    return np.array(found)


def sampled(mechanism, scores, seed):
    rng = np.random.default_rng(seed)
    return np.bincount([mechanism.select(scores, rng) for _ in range(DRAWS)], minlength=len(scores))


@pytest.mark.parametrize("scores", SCORES, ids=len)
@pytest.mark.parametrize("noise", NOISES)
def test_law_of_one_selection(noise, scores):
    scale = 1.3
    exact = winning_probabilities(scores, noise, scale)
    assert exact.sum() == pytest.approx(1, abs=1e-7)
    counts = sampled(NoisyMaximum(scale, 1.0, noise), scores, 4)
    assert_chi2(counts, exact)
    rejected(assert_chi2, counts, winning_probabilities(scores, noise, 0.9 * scale))


def test_gumbel_is_softmax():
    scores, scale = np.array([0.0, 1.0, -0.5, 2.0, 2.0]), 0.8
    weights = np.exp(scores / scale)
    counts = sampled(NoisyMaximum(scale, 1.0), scores, 6)
    assert_chi2(counts, weights / weights.sum())
    twin = np.exp(scores / (0.9 * scale))
    rejected(assert_chi2, counts, twin / twin.sum())
    exact = winning_probabilities(scores[:3], "gumbel", scale)
    np.testing.assert_allclose(exact, weights[:3] / weights[:3].sum(), atol=1e-6)


def test_exponential_is_permute_and_flip():
    """Candidates in random order, each taken with probability exp((score - best)/scale)."""
    scores, scale = np.array([2.0, 0.0, 1.0]), 1.3
    taken = np.exp((scores - scores.max()) / scale)
    law = np.zeros(3)
    for order in itertools.permutations(range(3)):
        left = 1 / 6
        for i in order:
            law[i] += left * taken[i]
            left *= 1 - taken[i]
    np.testing.assert_allclose(winning_probabilities(scores, "exponential", scale), law, atol=1e-7)


# --- several winners ----------------------------------------------------------------------------------


def ordered_law(scores, count, first_law):
    """P of every ordered choice, each time among what is left."""
    law = {}
    for order in itertools.permutations(range(len(scores)), count):
        left, probability = list(range(len(scores))), 1.0
        for i in order:
            probability *= first_law(scores[left])[left.index(i)]
            left.remove(i)
        law[order] = probability
    return law


def counted(choose, law):
    seen = [tuple(int(i) for i in choose()) for _ in range(DRAWS)]
    return [seen.count(order) for order in law]


def softmax(scores, scale):
    weights = np.exp(scores / scale)
    return weights / weights.sum()


@pytest.mark.parametrize("method", ["top", "peel"])
def test_one_shot_gumbel_has_the_law_of_peeling(method):
    """Exhaustive over ordered pairs of four candidates."""
    scores, scale, rng = np.array([1.0, 0.0, 0.5, -1.0]), 0.7, np.random.default_rng(8)
    mechanism = NoisyMaximum(scale, 1.0)
    law = ordered_law(scores, 2, lambda s: softmax(s, scale))
    assert sum(law.values()) == pytest.approx(1)
    counts = counted(lambda: getattr(mechanism, method)(scores, 2, rng), law)
    assert_chi2(counts, list(law.values()))
    rejected(assert_chi2, counts, list(ordered_law(scores, 2, lambda s: softmax(s, 0.9 * scale)).values()))


def test_peeling_with_laplace_noise_draws_anew():
    scores, scale, rng = np.array([1.0, 0.0, 0.5]), 0.9, np.random.default_rng(9)
    mechanism = NoisyMaximum(scale, 1.0, "laplace")

    def exact(s, b=scale):
        return winning_probabilities(s, "laplace", b) if len(s) > 1 else np.ones(1)

    law = ordered_law(scores, 2, exact)
    counts = counted(lambda: mechanism.peel(scores, 2, rng), law)
    assert_chi2(counts, list(law.values()))
    # One-shot Laplace noise has another law: that is why top() refuses it.
    noise = rng.laplace(scale=scale, size=(DRAWS, 3))
    order = np.argsort(-(scores + noise), axis=1)[:, :2]
    one_shot = [int((order == o).all(axis=1).sum()) for o in law]
    rejected(assert_chi2, one_shot, list(law.values()))
    with pytest.raises(InvalidValue, match="noise='laplace': must be 'gumbel'.*peel"):
        mechanism.top(scores, 2, rng)


def test_top_of_all_is_a_permutation():
    for method in ("top", "peel"):
        chosen = getattr(NoisyMaximum(1.0, 1.0), method)(np.zeros(5), 5, 0)
        assert sorted(chosen) == list(range(5))


# --- privacy of one selection, exactly ----------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES)
def test_epsilon_of_the_event_bounds_the_exact_loss(noise):
    """One score moves up by D, the others down by D: range 2D. No outcome's probability moves by more than a factor
    exp(range / scale), and some moves by nearly that."""
    scale, shift = 1.0, 0.4
    epsilon = NoisyMaximum(scale, 2 * shift, noise).event.epsilon
    assert epsilon == pytest.approx(0.8)
    worst = 0.0
    for base in (np.zeros(2), np.array([0.0, 6.0, 6.0]), np.array([0.0, 0.3, 3.0])):
        move = np.full(len(base), -shift)
        move[0] = shift
        for ends in ((0.5, -0.5), (1, 0), (0, -1)):
            up, down = (winning_probabilities(base + end * move, noise, scale) for end in ends)
            worst = max(worst, np.abs(np.log(up / down)).max())
    assert worst <= epsilon + 1e-6
    assert worst >= 0.9 * epsilon


def test_events():
    assert NoisyMaximum(2.0, 3.0).event == ExponentialMechanism(1.5)
    assert NoisyMaximum(2.0, 3.0, "laplace").event == NoisyMax(1.5, "laplace")
    assert NoisyMaximum(2.0, 3.0, "exponential").event == NoisyMax(1.5, "exponential")
    assert NoisyMaximum(2.0, 3.0).top_event(4) == Repeated(ExponentialMechanism(1.5), 4)
    assert math.isinf(NoisyMaximum(0.0, 1.0).event.epsilon)


def test_no_noise_is_the_maximum():
    for noise in NOISES:
        mechanism = NoisyMaximum(0.0, 1.0, noise)
        assert mechanism.select(np.array([0.0, 2.0, 1.0]), 0) == 1
        assert mechanism.peel(np.array([0.0, 2.0, 1.0]), 3, 0).tolist() == [1, 2, 0]


@pytest.mark.parametrize("scores", [[], [[1.0]], [np.nan, 1.0], [np.inf, 1.0]])
def test_bad_scores(scores):
    with pytest.raises(InvalidValue, match="scores=.*must be"):
        NoisyMaximum(1.0, 1.0).select(np.array(scores), 0)


def test_bad_arguments():
    for arguments in ((-1.0, 1.0), (1.0, 0.0), (1.0, 1.0, "gauss")):
        with pytest.raises(InvalidValue, match="must be"):
            NoisyMaximum(*arguments)
    for count in (0, 4, 1.5):
        with pytest.raises(InvalidValue, match="count=.*must be"):
            NoisyMaximum(1.0, 1.0).top(np.zeros(3), count, 0)


# --- candidates and their negatives -------------------------------------------------------------------

ORDERS = np.array([1.01, 1.5, 2.0, 4.0, 16.0, 100.0])


def symmetric(values):
    return np.concatenate([values, -values])


def divergences(scores, change):
    """Renyi divergences of the exact laws with and without the change, at ORDERS."""
    before, after = (x - logsumexp(x) for x in (scores, scores + change))
    return np.array([logsumexp(s * after + (1 - s) * before) / (s - 1) for s in ORDERS])


def two_largest(v):
    return float(np.sort(np.abs(v))[-2:].sum())


@st.composite
def symmetric_changes(draw):
    """(scores, changes) of K candidates; the changes add up to 0, and a few candidates may be ahead."""
    K = draw(st.integers(2, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    g, v = draw(st.sampled_from([0.0, 0.3, 3.0])) * rng.standard_normal((2, K))
    g[: draw(st.integers(0, min(K, 3)))] += draw(st.sampled_from([0.0, 2.0, 30.0]))
    v = v if draw(st.booleans()) else np.eye(K)[0] * draw(st.floats(0.01, 4))
    return g, v - v.mean()


@given(symmetric_changes())
def test_symmetric_candidates_are_charged_for_the_two_that_move_most(drawn):
    """By the exact laws of all 2K candidates, in both directions."""
    g, v = drawn
    if two_largest(v) < 1e-6:
        return
    rho = SymmetricMaximum(1.0, two_largest(v)).event.rho
    for change in (symmetric(v), -symmetric(v)):
        assert (divergences(symmetric(g), change) <= rho * ORDERS * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("K", [2, 5, 10])
def test_the_charge_for_symmetric_candidates_is_attained(K):
    """Two candidates far ahead of all others, which need five classes to have scores that add up to 0."""
    v = 0.01 * (np.eye(K)[0] - np.eye(K)[1])
    g = np.zeros(K)
    if K > 2:
        g[:2], g[2:] = 40.0, -80.0 / (K - 2)
    rho = SymmetricMaximum(1.0, two_largest(v)).event.rho
    found = divergences(symmetric(g), symmetric(v))[2] / ORDERS[2]
    assert 0.99 * rho <= found <= rho
    # Twins: charged for the largest alone, or at a tenth less noise.
    assert found > SymmetricMaximum(1.0, float(np.abs(v).max())).event.rho
    assert divergences(symmetric(g), symmetric(v / 0.9))[2] / ORDERS[2] > 1.1 * rho


def test_changes_that_do_not_add_up_to_0_are_not_covered():
    """The proof needs it: one candidate of three that moves alone shows more."""
    v = 0.01 * np.eye(3)[0]
    rho = SymmetricMaximum(1.0, two_largest(v)).event.rho
    assert divergences(np.zeros(6), symmetric(v))[2] / ORDERS[2] > 1.3 * rho


def test_symmetric_candidates_are_chosen_one_at_a_time():
    mechanism = SymmetricMaximum(1.0, 1.0)
    assert SymmetricMaximum(0.0, 1.0).event.rho == math.inf
    assert mechanism.select(symmetric(np.array([1000.0, 0.0])), 0) == 0
    for refused in (mechanism.top, mechanism.peel):
        with pytest.raises(InvalidValue, match="count"):
            refused(np.zeros(4), 2, 0)
    with pytest.raises(InvalidValue, match="noise"):
        SymmetricMaximum(1.0, 1.0, "laplace")
