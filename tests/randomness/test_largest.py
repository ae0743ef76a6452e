"""Lazy noises have the law of all noises drawn at once, and skips that of independent events."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest
from scipy import stats

from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import rounded as kernel
from dptoolkit.randomness import LargestNoises, SecureStream, cells, events, exact, largest, largest_noises
from dptoolkit.randomness.cells import Kept
from dptoolkit.randomness.exact import Digits
from tests.randomness.planted import Planted
from tests.statistics import assert_binomial, assert_chi2, assert_ks, rejected


def all_noises(stream, multiplier, size, wanted):
    """All levels, and the noises by place."""
    noises, out, seen = LargestNoises(stream, multiplier, size, wanted), np.full(size, 2**62), []
    while not noises.done:
        above = noises.bound
        places, values = noises.descend()
        assert (np.diff(places) > 0).all() and (out[places] == 2**62).all()
        assert (np.abs(values) <= above).all() and (np.abs(values) >= noises.bound).all()
        out[places] = values
        seen.append(len(places))
    assert sum(seen) == size
    return out, seen


def test_millions_of_coordinates():
    """The number of noises above the first level is binomial, and their sizes are those of a normal's tail."""
    size, multiplier, stream = 20_000_000, 2**34, SecureStream.seeded(1)
    level = largest.levels(size, 100)[0]
    chance = float(2 * stats.norm.sf(level / 32))
    found, sizes, places = 0, [], []
    for _ in range(60):
        where, values = LargestNoises(stream, multiplier, size, 100).descend()
        found += len(where)
        sizes.append(np.abs(values) / multiplier)
        places.append(where)
    sample = np.concatenate(sizes)

    def cdf(x):
        return 1 - stats.norm.sf(x) / stats.norm.sf(level / 32)

    assert_binomial(found, 60 * size, chance)
    assert_ks(sample, cdf)
    assert_ks(np.concatenate(places) / size, stats.uniform.cdf)
    # The twins: a level that is 1/32 off, nine tenths of the noise, places of the first half alone.
    rejected(assert_binomial, found, 60 * size, float(2 * stats.norm.sf((level + 1) / 32)))
    rejected(assert_ks, 0.9 * sample, cdf)
    rejected(assert_ks, np.concatenate(places) / size / 2, stats.uniform.cdf)


def test_all_levels_together_are_all_noises():
    stream, levels = SecureStream.seeded(2), largest.levels(3000, 3)
    assert len(levels) >= 3 and levels[-1] == 0 and sorted(levels, reverse=True) == levels
    draws = [all_noises(stream, 5, 3000, 3) for _ in range(30)]
    sample = np.concatenate([values for values, _ in draws])
    reach = np.arange(-25, 26)
    borders = stats.norm.cdf(np.append(reach - 0.5, 25.5) / 5)
    seen = np.bincount(np.clip(sample, -25, 25) + 25, minlength=51)
    probabilities = np.diff(borders)
    assert_chi2(seen, probabilities)
    # Each level has the number of coordinates that it should have.
    tails = [math.erfc(level / 32 / math.sqrt(2)) for level in levels]
    assert_chi2(np.sum([count for _, count in draws], axis=0), np.diff([0.0, *tails]))
    # The twin: a second level with the chance of the first, as if none had been seen before.
    rejected(assert_chi2, np.sum([count for _, count in draws], axis=0), [*tails[:-1], 1 - sum(tails[:-1])])


def test_the_largest_are_those_of_all_noises():
    """Small multipliers, where noises tie and where one below the level rounds to the same number as one above it.

    Law of the set of places: by symmetry every place is in it equally often but for ties, which go to the smaller one.
    The expected law comes from as many full draws.
    """
    stream, rng, size, count, trials = SecureStream.seeded(3), np.random.default_rng(4), 128, 1, 4000
    ours = np.zeros((size, 9))
    for _ in range(trials):
        (place,), (noise,) = largest_noises(stream, 2, size, count)
        ours[place, min(abs(noise), 8)] += 1
    full = np.abs(np.rint(2 * rng.standard_normal((60_000, size)))).astype(int)
    best = np.argmax(full, axis=1)
    theirs = np.zeros((size, 9))
    np.add.at(theirs, (best, np.minimum(full[np.arange(len(full)), best], 8)), 1)
    # Quarters of the places and sizes: enough counts in every cell for the chi-square of two samples.
    quarter = lambda table: table.reshape(4, 32, 9).sum(axis=1)[:, 3:].ravel()  # noqa: E731
    assert ours[:, :3].sum() + theirs[:, :3].sum() < 10
    pvalue = stats.chi2_contingency(np.array([quarter(ours), quarter(theirs)]) + 0.5).pvalue
    assert pvalue > 1e-6
    assert len(largest.levels(size, count)) > 1


def test_a_level_that_is_left_too_early_gives_other_places():
    """The broken twin: a noise of exactly the bound may tie with one that was not drawn, which has a smaller place."""

    def first_places(rule):
        stream, found = SecureStream.seeded(5), []
        for _ in range(3000):
            noises = LargestNoises(stream, 1, 128, 1)
            places, values = noises.descend()
            while not noises.done and int(rule(np.abs(values), noises.bound).sum()) < 1:
                more = noises.descend()
                places, values = np.concatenate([places, more[0]]), np.concatenate([values, more[1]])
            found.append(int(places[np.lexsort((places, -np.abs(values)))[0]]))
        return np.mean(found)

    strict, loose = first_places(np.greater), first_places(np.greater_equal)
    # Ties are won by small places; where they are not seen, places are further back.
    assert loose - strict > 1.5


def test_hard_values_are_decided_with_their_own_words():
    table, level = cells.table(cells.NORMAL), 100
    sums = np.cumsum(np.array(table.weights[level:], np.uint64), dtype=np.uint64)
    mask, stream, decided = np.uint64(2 ** int(sums[-1]).bit_length() - 1), SecureStream.seeded(6), 0
    for _ in range(1500):
        words, out = stream.words(3), np.zeros(1, np.int64)
        place, _, is_hard = kernel.rounded_in_cells(words, out, 0, 1000, level, sums, mask, table.logs, cells.MARGIN)
        theirs = largest._one_value(table, level, sums, mask, words, stream)
        assert is_hard or (theirs.rounded(1000) if isinstance(theirs, Kept) else None) == (out[0] if place else None)
        decided += isinstance(theirs, Kept) and not is_hard
    assert decided > 500
    # The last column, and a chance that agrees in all digits that the kernel sees.
    last = np.array([int(sums[-1]) - 1, 0, 0], np.uint64)
    assert kernel.rounded_in_cells(last, out, 0, 1000, level, sums, mask, table.logs, cells.MARGIN)[2]
    with mpmath.workprec(200):
        x = mpmath.mpf(level) / 32
        chance = int(mpmath.exp(-x * x / 2) * table.scale / table.weights[level] * 2**64)
    near = np.array([0, 0, min(chance, 2**64 - 1)], np.uint64)
    assert kernel.rounded_in_cells(near, out, 0, 1000, level, sums, mask, table.logs, cells.MARGIN)[2]


# --- skips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [Fraction(1, 1000), Fraction(0.3), Fraction(9, 10)])
def test_events_are_independent_and_of_their_chance(chance):
    stream, size = SecureStream.seeded(7), 1000
    draws = [events(stream, chance, size) for _ in range(300)]
    assert all((np.diff(draw) > 0).all() for draw in draws)
    places = np.concatenate(draws)
    assert_binomial(len(places), 300 * size, float(chance))
    assert_chi2(np.bincount(places // 100, minlength=10), np.ones(10))
    gaps = np.concatenate([np.diff(draw) for draw in draws])
    assert_binomial(int((gaps == 1).sum()), len(gaps), float(chance))
    rejected(assert_binomial, len(places), 300 * size, float(chance) * 0.6)


def test_chances_at_the_ends():
    stream = SecureStream.seeded(8)
    assert len(events(stream, Fraction(0), 10)) == 0 and events(stream, Fraction(1), 4).tolist() == [0, 1, 2, 3]
    assert len(events(stream, Fraction(1, 2), 0)) == 0


@pytest.mark.parametrize("gap", [1, 7, 40_000])
@pytest.mark.parametrize("then", [0, 1])
def test_a_gap_that_64_digits_do_not_decide(gap, then):
    """U agrees with (1 - p)^gap in 64 digits: the kernel calls it hard, further digits decide it."""
    chance = Fraction(1, 30_011)
    bounds, rate = exact.rational(chance), math.log1p(-float(chance))
    with mpmath.workprec(300):
        digits = int(mpmath.floor((1 - mpmath.mpf(1) / 30_011) ** gap * mpmath.mpf(2) ** 200))
    word, rest = digits >> 136, bin(digits & (2**136 - 1))[2:].zfill(136)
    found = kernel.skips(np.array([word], np.uint64), rate, 0, 10**6, np.empty(1, np.int64), 0)
    assert found == (0, 0, 0, True)
    # Below the power the gap is at least that; above it is one less.
    changed = bin(int(rest, 2) + (1 if then else -1))[2:].zfill(136)
    assert largest.exact_gap(Digits(Planted(changed, then), word, 64), bounds, 10**6) == gap - then


def test_gaps_are_those_of_exact_arithmetic():
    stream, bounds = SecureStream.seeded(9), partial(exact.normal_tail, 100)
    rate = math.log1p(-Fraction(sum(bounds(160)), 2 << 160))
    for word in stream.words(150):
        out = np.empty(1, np.int64)
        found, _, position, is_hard = kernel.skips(np.array([word]), rate, 0, 5000, out, 0)
        theirs = largest.exact_gap(Digits(stream, int(word), 64), bounds, 5000)
        assert not is_hard and (int(out[0]) if found else 5000) == theirs
    # The smallest words have too few digits.
    assert kernel.skips(np.array([5], np.uint64), rate, 0, 10**9, np.empty(1, np.int64), 0)[3]
    assert largest.exact_gap(Digits(Planted(), 0, 64), bounds, 30) == 30


def test_bad_input():
    stream = SecureStream.seeded(10)
    for bad in ((2**53, 10, 1), (1, 10, 0), (1, -1, 1)):
        with pytest.raises(InvalidValue):
            LargestNoises(stream, *bad)
    with pytest.raises(InvalidValue, match="count"):
        largest_noises(stream, 1, 3, 4)
