"""Rounded normal and Laplace noise has exactly the law that it claims, hard cases included."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import rounded as kernel
from dptoolkit.randomness import SecureStream, cells, rounded_laplace, rounded_normals, sampling
from dptoolkit.randomness.cells import EXPONENTIAL, LAST, NORMAL, REJECTED, TAIL, Kept, in_cell, one_try
from dptoolkit.randomness.exact import Digits
from tests.randomness.planted import Planted
from tests.statistics import assert_binomial, assert_chi2, assert_ks, rejected

LAWS = [NORMAL, EXPONENTIAL]
DRAW = {NORMAL: rounded_normals, EXPONENTIAL: rounded_laplace}
CONTINUOUS = {NORMAL: stats.norm, EXPONENTIAL: stats.laplace}


def probabilities(law, multiplier, reach):
    """Of -reach, ..., reach, each end with all that is beyond."""
    borders = (np.arange(reach + 1) + 0.5) / multiplier
    above = CONTINUOUS[law].sf(borders)
    upper = np.append(above[:-1] - above[1:], above[-1])
    return np.concatenate([upper[::-1], [1 - 2 * above[0]], upper])


def counts(sample, reach):
    return np.bincount(np.clip(sample, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)


def check(sample, law, multiplier):
    """Chi-square against the exact law, and of the signs."""
    reach = min(int(8 * multiplier), 400)
    assert_chi2(counts(sample, reach), probabilities(law, multiplier, reach))
    assert_binomial(int((sample > 0).sum()), int((sample != 0).sum()), 0.5)


def check_inside(sample, multiplier):
    """Where exponential numbers lie inside of their cells: the same law in every cell, whatever its weight."""
    each = multiplier // 32
    borders = np.exp(-np.arange(33) / 32 / 32)
    assert_chi2(np.bincount(np.abs(sample) % each * 32 // each, minlength=32), borders[:-1] - borders[1:])


# --- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
def test_the_table_is_right_in_whole_numbers(law):
    table = cells.table(law)
    again = cells.table.__wrapped__(law, 400)
    assert table.weights == again.weights and table.scale == again.scale and (table.quick == again.quick).all()
    assert sum(table.weights) == 2**64
    parts = [int(keep) for keep in table.keep]
    for column, other in enumerate(table.alias):
        if other != column:
            parts[other] += 2**56 - int(table.keep[column])
    assert parts == list(table.weights)
    assert all(chance <= 1 for chance in largest_chances(table))
    # The twin: a weight that is one too small would need a chance above 1.
    low = dataclasses.replace(table, weights=tuple(w - (i == 40) for i, w in enumerate(table.weights)))
    assert not all(chance <= 1 for chance in largest_chances(low))


def largest_chances(table):
    with mpmath.workprec(400):
        f = [mpmath.exp(-float(cells.exponent(table.law, i * cells.WIDTH))) for i in range(256)]
        inside = [table.scale * f[i] / table.weights[i] for i in range(255)]
        return [*inside, (64 if table.law == NORMAL else 32) * table.scale * f[255] / table.weights[255]]


@pytest.mark.parametrize("law", LAWS)
def test_quick_decisions_are_below_the_smallest_chance_of_their_cell(law):
    table = cells.table(law)
    with mpmath.workprec(400):
        for i in range(255):
            smallest = mpmath.exp(-float(cells.exponent(law, (i + 1) * cells.WIDTH))) * table.scale / table.weights[i]
            assert int(table.quick[i]) <= smallest * 2**32 < int(table.quick[i]) + 1
            assert abs(table.logs[i] - mpmath.log(mpmath.mpf(table.scale) / table.weights[i])) < 2**-48


# --- the law -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [1, 3, 20])
@pytest.mark.parametrize("law", LAWS)
def test_the_law(law, multiplier):
    sample = DRAW[law](SecureStream.seeded(multiplier), multiplier, 1_000_000)
    check(sample, law, multiplier)
    # The twins: nine tenths of the noise.
    rejected(check, sample, law, 0.9 * multiplier)
    # Rounding down instead of to the nearest.
    rejected(check, sample - (sample > 0), law, multiplier)


@pytest.mark.parametrize("law", LAWS)
def test_few_numbers_at_a_time_have_the_same_law(law):
    """They are drawn in constant time, without quick decisions."""
    stream = SecureStream.seeded(7)
    check(np.concatenate([DRAW[law](stream, 5, 4000) for _ in range(25)]), law, 5)


@pytest.mark.parametrize("law", LAWS)
def test_large_multipliers(law):
    """The whole law, and the low byte, which a stuck or missing digit would show."""
    multiplier = 2**38 + 1
    sample = DRAW[law](SecureStream.seeded(8), multiplier, 300_000)
    assert_ks(sample[:100_000] / multiplier, CONTINUOUS[law].cdf)
    assert_chi2(np.bincount(sample & 255, minlength=256), np.ones(256))
    rejected(assert_chi2, np.bincount((sample | 1) & 255, minlength=256), np.ones(256))
    rejected(assert_ks, 0.9 * sample[:100_000] / multiplier, CONTINUOUS[law].cdf)


BROKEN = {
    "every try is kept": lambda t: {"quick": np.full(256, 2**32, np.uint64)},
    "chances are 2 % too large": lambda t: {"logs": t.logs + 0.02},
    "columns lead to other cells": lambda t: {"alias": t.alias[::-1].copy()},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_faults_are_seen(fault, monkeypatch):
    """The broken twins of the law. Faults inside of a cell are seen where noise is finer than a cell."""
    for law, table in [(law, cells.table(law)) for law in LAWS]:
        broken = dataclasses.replace(table, **BROKEN[fault](table))
        monkeypatch.setattr(cells, "table", lambda _, broken=broken: broken)
        if law == NORMAL:
            rejected(check, rounded_normals(SecureStream.seeded(9), 3, 3_000_000), law, 3)
        else:
            sample = rounded_laplace(SecureStream.seeded(9), 2**20, 3_000_000)
            rejected(lambda x: (check_inside(x, 2**20), assert_ks(x[:100_000] / 2**20, stats.laplace.cdf)), sample)


# --- hard cases --------------------------------------------------------------------------------------------


def forced(law, decide, count=60_000):
    """Noise with a margin so wide that two in a hundred tries are hard."""
    return sampling._draw(SecureStream.seeded(11), SIZES[law], count, law, margin=2.0**-5, decide=decide)


SIZES = {NORMAL: 3, EXPONENTIAL: 2**20}
CHECKS = {NORMAL: lambda sample: check(sample, NORMAL, 3), EXPONENTIAL: lambda sample: check_inside(sample, 2**20)}


@pytest.mark.parametrize("law", LAWS)
def test_hard_cases_keep_the_law(law):
    seen = []

    def decide(*arguments):
        seen.append(arguments)
        return one_try(*arguments)

    CHECKS[law](forced(law, decide))
    assert len(seen) > 500
    # The twin: a fallback that is skipped, and the number drawn again.
    rejected(CHECKS[law], forced(law, lambda *_: REJECTED, 2_000_000))


def bare_try(law, words, multiplier=1, margin=cells.MARGIN, exponent=None, **change):
    """(noise or None, whether it is hard) of one try by the kernel."""
    table, out, carry = dataclasses.replace(cells.table(law), **change), np.zeros(1, np.int64), np.zeros(1, np.int64)
    place, _, is_hard = kernel.rounded(
        np.array(words, np.uint64), out, 0, multiplier, table.keep, table.alias, table.quick, table.logs, table.tail,
        law if exponent is None else exponent, margin, carry,
    )  # fmt: skip
    return (TAIL if carry[0] else int(out[0]) if place else None), is_hard


def compared(law, stream, tries, **change):
    """How many tries the kernel decides otherwise than exact arithmetic with the same words."""
    different = 0
    for _ in range(tries):
        words = [int(word) for word in stream.words(3)]
        ours, is_hard = bare_try(law, words, 1000, **change)
        theirs = one_try(cells.table(law), tuple(words), 0, stream)
        expected = theirs.rounded(1000) if isinstance(theirs, Kept) else (TAIL if theirs == TAIL else None)
        different += not is_hard and ours != expected
    return different


@pytest.mark.parametrize("law", LAWS)
def test_the_kernel_decides_as_exact_arithmetic_does(law):
    none = np.zeros(256, np.uint64)
    assert compared(law, SecureStream.seeded(12), 1500) == 0
    assert compared(law, SecureStream.seeded(13), 1500, quick=none) == 0
    # The twin: the exponent of the other law.
    assert compared(law, SecureStream.seeded(13), 300, quick=none, exponent=1 - law) > 10


def words_in(cell, place, uniform, negative=0):
    """Words of a try in the main part of a column; ``uniform`` has 96 digits."""
    return [uniform >> 64 << 32 | cell, negative << 63 | place, uniform & (2**64 - 1)]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("cell", [0, 3, 60])
def test_a_chance_that_agrees_in_96_digits(law, cell):
    """The kernel calls it hard; further digits decide it, as mpmath does."""
    table, place = cells.table(law), 2**54 + 12_345
    with mpmath.workprec(400):
        x = (cell + (mpmath.mpf(place) + mpmath.mpf(1) / 3) / 2**55) / 32
        chance = table.scale / mpmath.mpf(table.weights[cell]) * mpmath.exp(-x * x / 2 if law == NORMAL else -x)
        uniform = int(mpmath.floor(chance * mpmath.mpf(2) ** 96))
        following = bin(int(mpmath.floor(chance * mpmath.mpf(2) ** 160)) & (2**64 - 1))[2:].zfill(64)
    words = words_in(cell, place, uniform)
    assert (words[0] >> 8) & 0xFFFFFF == 0 and int(table.keep[cell]) >> 24 > 0
    assert bare_try(law, words, quick=np.zeros(256, np.uint64)) == (None, True)
    # The digits of x, 0.010101..., are drawn where the chance is computed, and before those of U.
    for then, kept in ((0, True), (1, False)):
        source = Interleaved("01" * 400, following, then)
        uniform_digits, place_digits = Digits(source.uniform, uniform, 96), Digits(source.place, place, 55)
        outcome = in_cell(table, cell, uniform_digits, place_digits, False, 0, source.place)
        assert isinstance(outcome, Kept) is kept
    # Nearby tries are decided by the kernel.
    for shift, kept in ((-(2**60), True), (2**60, False)):
        ours, is_hard = bare_try(law, words_in(cell, place, uniform + shift), quick=np.zeros(256, np.uint64))
        assert not is_hard and (ours is not None) is kept


class Interleaved:
    """Planted digits of x and of U."""

    def __init__(self, place, uniform, then):
        # U agrees with the chance in 160 digits; then it is below it, or above.
        uniform = bin(int(uniform, 2) - 1)[2:].zfill(64) if then == 0 else bin(int(uniform, 2) + 1)[2:].zfill(64)
        self.place, self.uniform = Planted(place), Planted(uniform, then)


@pytest.mark.parametrize("multiplier", [7, 1000, 2**40 + 7, 2**52 - 1])
@pytest.mark.parametrize("negative", [0, 1])
def test_a_rounding_that_55_digits_do_not_decide(multiplier, negative):
    """multiplier * x is just below a half for the digits that were drawn; those that follow decide."""
    base = multiplier // 7 * 2
    half = Fraction(2 * base + 1, 2)
    whole = int(half * 2**60 / multiplier)
    cell, place = whole >> 55, whole & (2**55 - 1)
    assert Fraction(multiplier * whole, 2**60) < half < Fraction(multiplier * (whole + 1), 2**60)
    words = words_in(cell, place, 0, negative)
    assert bare_try(NORMAL, words, multiplier) == (None, True)
    sign = -1 if negative else 1
    for then, expected in ((0, base), (1, base + 1)):
        outcome = one_try(cells.table(NORMAL), tuple(words), 0, Planted("", then))
        assert outcome.rounded(multiplier) == sign * expected
    # One unit before and after, the kernel decides (where a unit of x is less than one of the result).
    if multiplier < 2**50:
        for step, expected in ((-1, base), (1, base + 1)):
            words = words_in((whole + step) >> 55, (whole + step) & (2**55 - 1), 0, negative)
            assert bare_try(NORMAL, words, multiplier) == (sign * expected, False)


@pytest.mark.parametrize("law", LAWS)
def test_a_column_whose_border_is_hit(law):
    """32 digits equal to those of the border of a column: the digits that follow choose the cell."""
    table = cells.table(law)
    column = next(c for c in range(256) if table.keep[c] & np.uint64(2**24 - 1) and table.alias[c] != c and c < 255)
    top = int(table.keep[column]) >> 24
    words = [(top >> 8) << 8 | column, (top & 255) << 55, 0]
    assert bare_try(law, words) == (None, True)
    for then, cell in ((0, column), (1, int(table.alias[column]))):
        outcome = one_try(table, tuple(words), 0, Planted("", then))
        assert outcome.base == cell * cells.WIDTH
    for digits, cell in ((top - 1, column), (top + 1, int(table.alias[column]))):
        words = [(digits >> 8) << 8 | column, (digits & 255) << 55, 0]
        assert bare_try(law, words, 32) == (cell, False)


def tail_draws(stream, count, first=0):
    """x > 255/32 of the tail of normals; ``first`` heads too many in a broken twin."""
    table, found = cells.table(NORMAL), []
    while len(found) < count:
        outcome = in_cell(table, LAST, Digits(stream), Digits(stream), False, 0, stream)
        if isinstance(outcome, Kept):
            found.append(float(outcome.base + first + Fraction(outcome.place.to(53), 2**53)))
    return np.array(found)


def test_the_tail_of_a_normal():
    start = 255 / 32

    def cdf(x):
        return 1 - np.exp(stats.norm.logsf(x) - stats.norm.logsf(start))

    sample = tail_draws(SecureStream.seeded(14), 300)
    assert_ks(sample, cdf)
    rejected(assert_ks, sample + 1, cdf)
    rejected(assert_ks, start + 0.5 * (sample - start), cdf)


def test_the_tail_of_an_exponential_number():
    """One in 3,000 is beyond 255/32, and what is beyond is exponential again."""
    sample = np.abs(rounded_laplace(SecureStream.seeded(15), 2**40, 2_000_000)) / 2**40
    far = sample[sample >= 255 / 32] - 255 / 32
    assert_binomial(len(far), len(sample), float(np.exp(-255 / 32)))
    assert_ks(far, stats.expon.cdf)
    check_inside(rounded_laplace(SecureStream.seeded(17), 2**20, 2_000_000), 2**20)
    rejected(assert_ks, 0.7 * far, stats.expon.cdf)


def test_no_noise_and_bad_input():
    stream = SecureStream.seeded(16)
    assert rounded_normals(stream, 0, 3).tolist() == [0, 0, 0] and len(rounded_normals(stream, 5, 0)) == 0
    for bad in (-1, 2.0, 2**52 + 1):
        with pytest.raises(InvalidValue, match="multiplier"):
            rounded_normals(stream, bad, 3)
    with pytest.raises(InvalidValue, match="count"):
        rounded_laplace(stream, 1, -1)
