"""Intervals of whole numbers hold what they claim to hold, and decisions agree with mpmath's 200 digits."""

from __future__ import annotations

import random
from fractions import Fraction

import mpmath
import pytest

from dptoolkit.randomness import exact
from dptoolkit.randomness.exact import Digits
from tests.randomness.planted import Planted

mpmath.mp.prec = 700


def true_value(x: Fraction):
    return mpmath.mpf(x.numerator) / x.denominator


def holds(bounds, value, precision, width):
    low, high = bounds
    return low <= value * mpmath.mpf(2) ** precision <= high and high - low <= width


def test_exponentials():
    draw = random.Random(1)
    for _ in range(300):
        x = Fraction(draw.getrandbits(draw.randint(1, 60)), 1 << draw.randint(0, 64))
        for precision in (1, 64, 200):
            assert holds(exact.exp_minus(x, precision), mpmath.exp(-true_value(x)), precision, 2), (x, precision)
    assert exact.exp_minus(Fraction(0), 64)[0] <= 2**64 <= exact.exp_minus(Fraction(0), 64)[1]
    assert exact.exp_minus(Fraction(10**300), 64) == (0, 1)


@pytest.mark.parametrize("steps", [0, 1, 32, 137, 255])
def test_normal_tails(steps):
    value = mpmath.erfc(mpmath.mpf(steps) / 32 / mpmath.sqrt(2))
    for precision in (20, 128, 300):
        assert holds(exact.normal_tail(steps, precision), value, precision, 3)


def test_powers_sums_and_conditional_chances():
    part, whole = Fraction(1, 7), Fraction(2, 5)
    value = true_value((whole - part) / (1 - part))
    assert holds(exact.conditional(exact.rational(whole), exact.rational(part))(128), value, 128, 3)
    for power in (0, 1, 2, 97, 10**6):
        bounds = exact.complement_power(exact.rational(Fraction(1, 99_991)), power)(128)
        assert holds(bounds, (1 - mpmath.mpf(1) / 99_991) ** power, 128, 3)
    two = exact.scaled_exp(Fraction(3, 2), lambda _: (Fraction(1), Fraction(1)))
    value = 3 * mpmath.exp(-1)
    assert holds(exact.total(two, two)(90), value, 90, 4)


def test_digits_are_drawn_once():
    digits = Digits(Planted("10110"), 0b11, 2)
    assert [digits.to(k) for k in (2, 1, 4, 7, 5, 2)] == [0b11, 0b1, 0b1110, 0b1110110, 0b11101, 0b11]


@pytest.mark.parametrize("then", [0, 1])
def test_a_decision_looks_at_as_many_digits_as_it_takes(then):
    """A uniform number that agrees with the chance in 1,000 digits and then does not."""
    value = mpmath.exp(-mpmath.mpf(1) / 3)
    with mpmath.workprec(2000):
        digits = bin(int(mpmath.floor(mpmath.exp(-mpmath.mpf(1) / 3) * mpmath.mpf(2) ** 1000)))[2:].zfill(1000)
    assert abs(int(digits, 2) / mpmath.mpf(2) ** 1000 - value) < mpmath.mpf(2) ** -690
    chance = exact.scaled_exp(Fraction(1), lambda _: (Fraction(1, 3), Fraction(1, 3)))
    assert exact.below(Digits(Planted(digits, then)), chance) is (then == 0)


@pytest.mark.parametrize("then, nearest", [(0, 4), (1, 5)])
def test_a_rounding_looks_at_as_many_digits_as_it_takes(then, nearest):
    """3 * place is 4.5 - 3 * 2^-k, for as long as the digits say so: 1.5 = 1.0111...1."""
    place = Digits(Planted("0" if not then else "1" * 500, then))
    base = Fraction(3, 2) - Fraction(1, 2**40)
    assert exact.nearest(3, base, Fraction(1, 2**39), place) == nearest


def test_bounds_that_never_close_are_an_error(monkeypatch):
    monkeypatch.setattr(exact, "_MOST", 512)
    with pytest.raises(ArithmeticError):
        exact.below(Digits(Planted()), lambda p: (0, 1 << p))
