"""Selection is the exponential mechanism exactly, whatever whole-number weights are kept."""

from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import selection as kernel
from dptoolkit.randomness import IntegerSelection, SecureStream, unit_for
from tests.randomness.planted import Planted
from tests.statistics import assert_chi2, rejected

SCORES = np.array([5, -3, 0, 8, -8, 2, 1, 7])
UNIT = 0.21


def law(scores, unit, two_sided):
    scores = np.concatenate([scores, -scores]) if two_sided else scores
    weights = np.exp(unit * (scores - scores.max()))
    return weights / weights.sum()


def frequencies(selection, stream, trials):
    d = len(selection._scores)
    counts = np.zeros(2 * d if selection.two_sided else d)
    for _ in range(trials):
        index, sign = selection.select(stream)
        counts[index + (d if sign < 0 else 0)] += 1
    return counts


@pytest.mark.parametrize("two_sided", [True, False])
def test_the_law(two_sided):
    counts = frequencies(IntegerSelection(SCORES, UNIT, two_sided), SecureStream.seeded(1), 15_000)
    assert_chi2(counts, law(SCORES, UNIT, two_sided))
    rejected(assert_chi2, counts, law(SCORES, 0.9 * UNIT, two_sided))
    rejected(assert_chi2, counts[::-1], law(SCORES, UNIT, two_sided))


@pytest.mark.parametrize("two_sided", [True, False])
def test_scores_that_change_one_by_one(two_sided):
    """Weights are changed one at a time, also beyond the headroom and far below it."""
    start = np.array([900, 10, -900, 3, 0, 0, 0, 0])
    selection, stream, rng = IntegerSelection(start, UNIT, two_sided), SecureStream.seeded(2), np.random.default_rng(3)
    for k in rng.permutation(np.repeat(np.arange(8), 30)):
        selection.update(int(k), int(rng.integers(-1500, 1500)))
    for k, score in enumerate(SCORES):
        selection.update(k, int(score))
    for g, total in enumerate(selection._groups):
        width = selection._width
        assert total == sum(int(w) for w in selection._weights[g * width : (g + 1) * width])
    assert_chi2(frequencies(selection, stream, 15_000), law(SCORES, UNIT, two_sided))


def coarse(weigh=None):
    """A selection with weights of few digits, so that their rounding shows."""
    selection = IntegerSelection(SCORES, UNIT)
    selection._digits = 9
    selection._weigh_all()
    if weigh is not None:
        for k in range(len(SCORES)):
            selection._weights[k] = weigh(int(selection._weights[k]))
        width = selection._width
        parts = [sum(int(w) for w in selection._weights[g : g + width]) for g in range(0, len(SCORES), width)]
        selection._groups[:] = parts
    return selection


def test_any_weights_that_are_large_enough_give_the_same_law():
    stream = SecureStream.seeded(4)
    for weigh in (None, lambda w: 3 * w + 5):
        assert_chi2(frequencies(coarse(weigh), stream, 12_000), law(SCORES, UNIT, True))
    # The twin: weights that are too small would need chances above 1, and their candidates are chosen too seldom.
    low = frequencies(coarse(lambda w: (w + 1) // 2), stream, 12_000)
    rejected(assert_chi2, low, law(SCORES, UNIT, True))


@pytest.mark.parametrize("score", [0, 1000, 3_000_000])
def test_weights_are_at_least_the_true_ones(score):
    """Of scores that are up to 300 orders of magnitude apart: 1 at least, so that none is impossible."""
    scores = np.array([3_000_000, score])
    selection = IntegerSelection(scores, 2.3e-4)
    with mpmath.workprec(300):
        unit = mpmath.mpf(2.3e-4)
        gap, sum_ = selection._top - score, selection._top + score
        true = (mpmath.exp(-unit * gap) + mpmath.exp(-unit * sum_)) * 2**selection._digits
        assert true <= int(selection._weights[1]) <= true * (1 + mpmath.mpf(2) ** -35) + 1


def test_a_candidate_of_probability_1e_300_is_chosen_where_all_digits_say_so():
    selection = IntegerSelection(np.array([3_000_000, 0]), 2.3e-4)
    words = np.array([0, 2**63 - 1], np.uint64)
    assert selection.decide(1, words, Planted("", 0)) == (1, -1)
    assert selection.decide(1, words, Planted("", 1)) is None
    assert selection.decide(1, np.array([0, 2**63 + 1], np.uint64), Planted("", 0)) == (1, 1)
    assert selection.decide(1, np.array([1, 0], np.uint64), Planted("", 0)) is None


@pytest.mark.parametrize("two_sided", [True, False])
def test_the_kernel_decides_as_exact_arithmetic_does(two_sided):
    selection, stream = IntegerSelection(SCORES, UNIT, two_sided), SecureStream.seeded(5)
    selection._digits = 4
    selection._weigh_all()
    kept = 0
    for _ in range(400):
        words = stream.words(3)
        how, index, against, used = kernel.select(
            words, selection._scores, selection._top, UNIT, two_sided, selection._scale, selection._weights,
            selection._groups, selection._width,
        )  # fmt: skip
        total = sum(int(group) for group in selection._groups)
        t = int(words[0]) & (2 ** (total - 1).bit_length() - 1)
        if t >= total:
            assert how == kernel.WORDS_USED_UP
            continue
        place = int(np.searchsorted(np.cumsum(selection._weights.astype(object)), t, side="right"))
        theirs = selection.decide(place, words[1:], stream)
        ours = selection._signed(index, against) if how == kernel.CHOSEN else None
        assert ours == theirs
        kept += theirs is not None
    assert kept > 40


def test_hard_cases():
    """A uniform number, or a sign's, that agrees with its chance in all digits that the kernel sees."""
    selection = IntegerSelection(np.array([10, 4]), UNIT)
    with mpmath.workprec(300):
        unit = mpmath.mpf(UNIT)
        parts = [mpmath.exp(-unit * (selection._top - s * 4)) for s in (1, -1)]
        chance = int(sum(parts) * 2**selection._digits / int(selection._weights[1]) * 2**128)
        e = mpmath.exp(-2 * unit * 4)
        against = int(e / (1 + e) * 2**128)

    def select(words):
        return kernel.select(
            np.array(words, np.uint64), selection._scores, selection._top, UNIT, True, selection._scale,
            selection._weights, selection._groups, selection._width,
        )[0]  # fmt: skip

    first = int(selection._weights[0])
    assert select([first, chance >> 64, 0]) == kernel.HARD and select([first, 0, against >> 64]) == kernel.HARD
    assert select([first, 2**60, 2**63]) == kernel.CHOSEN
    for value, place, expected in ((chance, 0, {(1, -1): 1, None: 0}), (against, 1, {(1, -1): 1, (1, 1): 0})):
        for outcome, below in expected.items():
            digits = bin((value & (2**64 - 1)) + (-1 if below else 1))[2:].zfill(64)
            words = np.array([0, 0], np.uint64)
            words[place] = value >> 64
            assert selection.decide(1, words, Planted(digits, 0)) == outcome


def test_the_largest_after_gumbel_noise_one_after_the_other():
    scores, unit, stream = np.array([3, 1, 0, -2]), 0.5, SecureStream.seeded(6)
    pairs = list(itertools.permutations(range(4), 2))
    weights = np.exp(unit * scores)
    expected = [weights[a] / weights.sum() * weights[b] / (weights.sum() - weights[a]) for a, b in pairs]
    counts = dict.fromkeys(pairs, 0)
    for _ in range(4000):
        counts[tuple(IntegerSelection(scores, unit, False).top(stream, 2))] += 1
    assert_chi2(list(counts.values()), expected)
    rejected(assert_chi2, list(counts.values()), np.ones(12))
    every = IntegerSelection(scores, unit, False)
    assert sorted(every.top(stream, 4)) == [0, 1, 2, 3]
    with pytest.raises(InvalidValue, match="count"):
        every.top(stream, 1)


def test_hard_selections_without_return_use_their_own_words(monkeypatch):
    """Where the kernel leaves every try to exact arithmetic, the same words choose the same candidates."""
    scores, unit = np.random.default_rng(9).integers(-50, 50, 30), 0.1
    tops = [IntegerSelection(scores, unit, False).top(SecureStream.seeded(seed), 12) for seed in range(20)]

    def undecided(words, scores, top, unit, scale, weights, groups, width, chosen, filled):
        total = int(groups.sum())
        mask = (1 << (total - 1).bit_length()) - 1
        for used in range(0, len(words) - kernel.PER_TRY + 1, kernel.PER_TRY):
            place = int(words[used]) & mask
            if place < total:
                return kernel.HARD, int(kernel.find(np.uint64(place), weights, groups, width)), used, filled
        return kernel.WORDS_USED_UP, 0, len(words), filled

    monkeypatch.setattr(kernel, "take", undecided)
    exact = [IntegerSelection(scores, unit, False).top(SecureStream.seeded(seed), 12) for seed in range(20)]
    assert exact == tops


def test_scores_far_apart_cost_few_words_without_return(monkeypatch):
    """Where every selection needs weights made anew, words in vain do not grow with the selections that are left."""
    drawn, words = [], SecureStream.words
    monkeypatch.setattr(SecureStream, "words", lambda stream, count: drawn.append(count) or words(stream, count))
    selection = IntegerSelection(-np.arange(200) * 10**6, 1.0, two_sided=False)
    assert selection.top(SecureStream.seeded(3), 200) == list(range(200))
    # Some 100 words a selection; blocks for all that is left would take 2,000.
    assert sum(drawn) < 200 * 900
    with pytest.raises(InvalidValue, match="All of them have been chosen"):
        selection.select(SecureStream.seeded(3))


def test_a_stale_offset_costs_tries_and_not_the_law():
    """All scores fall far below those for which weights were made: weights are made anew, the law is the same."""
    selection, stream = IntegerSelection(SCORES + 300, UNIT, False), SecureStream.seeded(7)
    for k, score in enumerate(SCORES):
        selection.update(k, int(score))
    assert_chi2(frequencies(selection, stream, 4000), law(SCORES, UNIT, False))


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 1e3])
@pytest.mark.parametrize("width", [1, 3, 2**40 + 1])
def test_units_keep_the_budget_and_use_it(epsilon, width):
    unit = unit_for(epsilon, width)
    assert Fraction(unit) * width <= Fraction(epsilon)
    assert Fraction(np.nextafter(unit, np.inf)) * width > Fraction(epsilon)


def test_many_candidates_and_one():
    stream = SecureStream.seeded(8)
    assert IntegerSelection([7], 1e-9, False).select(stream) == (0, 1)
    many = np.zeros(200_000, np.int64)
    many[77_777] = 100
    assert IntegerSelection(many, 1.0).select(stream) == (77_777, 1)
    many[77_777] = -100
    assert IntegerSelection(many, 1.0).select(stream) == (77_777, -1)


def test_bad_input():
    for bad in ([], [1.5, 2.0], [[1, 2]], [2**62]):
        with pytest.raises(InvalidValue, match="scores"):
            IntegerSelection(bad, 1.0)
    with pytest.raises(InvalidValue, match="two_sided"):
        IntegerSelection([1, 2], 1.0).top(SecureStream.seeded(0), 1)
    with pytest.raises(InvalidValue, match="score"):
        IntegerSelection([1, 2], 1.0).update(0, 2**61 + 1)
