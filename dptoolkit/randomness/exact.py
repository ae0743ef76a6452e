"""Decisions about real numbers that are never wrong: intervals of whole numbers, and digits that are drawn as needed.

A sampler asks whether a uniform number is below a chance, or to which integer a real number rounds. Both have
infinitely many digits. Almost always the first sixty decide; where they do not, the functions here draw and compute
more until they do. Nothing is floating point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

# Integers lo <= value * 2^p <= hi, for any precision p that is asked for.
Interval = tuple[int, int]
Bounds = Callable[[int], Interval]
# Binary digits that are drawn at a time, and beyond which a decision is not thinkable: 2^-_MOST is no chance at all.
_DIGITS, _MOST = 64, 1 << 20


class Source(Protocol):
    """Whatever gives whole numbers of random bits: a SecureStream."""

    def below(self, end: int) -> int: ...


class Digits:
    """A uniform number in [0, 1), of which the first ``bits`` binary digits are known: ``value`` / 2^bits.

    Digits that were drawn stay: every later question is about the same number.
    """

    def __init__(self, source: Source, value: int = 0, bits: int = 0) -> None:
        self._source, self.value, self.bits = source, value, bits

    def to(self, bits: int) -> int:
        """The first ``bits`` digits as a whole number; those that are missing are drawn."""
        if bits > self.bits:
            more = bits - self.bits
            self.value = (self.value << more) | self._source.below(1 << more)
            self.bits = bits
        return self.value >> (self.bits - bits)


def below(uniform: Digits, bounds: Bounds) -> bool:
    """Whether the uniform number is below the number in ``bounds``, decided exactly.

    At precision p the number U lies in [v, v + 1) / 2^p, and the chance c in [lo, hi] / 2^p. So v + 1 <= lo proves
    U < c, and v >= hi proves U >= c; in between more digits are drawn. U = c has probability 0.
    """
    precision = max(uniform.bits, _DIGITS)
    while precision < _MOST:
        low, high = bounds(precision)
        value = uniform.to(precision)
        if value + 1 <= low:
            return True
        if value >= high:
            return False
        precision += _DIGITS
    raise ArithmeticError("a decision needs more digits than any can need: the bounds do not close")


def nearest(multiplier: int, base: Fraction, width: Fraction, place: Digits) -> int:
    """floor(multiplier * (base + width * place) + 1/2), the nearest integer, decided exactly.

    The real number lies in [x, x + step), so that the floor of both ends, the upper one excluded, is the answer as soon
    as they agree.
    """
    bits = place.bits
    while bits < _MOST:
        bits += _DIGITS
        step = multiplier * width / (1 << bits)
        low = multiplier * base + place.to(bits) * step + Fraction(1, 2)
        first, last = math.floor(low), math.ceil(low + step) - 1
        if first == last:
            return first
    raise ArithmeticError("a rounding needs more digits than any can need")


def rational(value: Fraction) -> Bounds:
    """Bounds of a fraction."""

    def bounds(precision: int) -> Interval:
        scaled, rest = divmod(value.numerator << precision, value.denominator)
        return scaled, scaled + (rest > 0)

    return bounds


def exp_minus(exponent: Fraction, precision: int) -> Interval:
    """Integers lo <= exp(-exponent) * 2^precision <= hi, hi - lo <= 2, for exponent >= 0.

    With y = exponent / 2^s < 1/256, exp(y) is a sum of positive terms: cut off terms give a lower bound, rounded up
    ones plus twice the next an upper bound, since every term is less than half of the one before. The inverse is then
    squared s times, rounded down and up. Each squaring at most doubles the error, and the working precision has enough
    digits for that.
    """
    if exponent * 1000 > 694 * (precision + 1):
        # ln 2 < 0.694: the value is below 2^-precision.
        return 0, 1
    s = math.floor(exponent).bit_length() + 8
    bits = precision + 2 * s + 24
    scaled = (exponent.numerator << bits) // (exponent.denominator << s)
    low, high = _exp_small(scaled, bits)[0], _exp_small(scaled + 1, bits)[1]
    unit = 1 << (2 * bits)
    low, high = unit // high, -(-unit // low)
    for _ in range(s):
        low, high = (low * low) >> bits, -((-high * high) >> bits)
    cut = bits - precision
    return low >> cut, -((-high) >> cut)


def _exp_small(y: int, bits: int) -> Interval:
    """Bounds of exp(y / 2^bits) * 2^bits for 0 <= y / 2^bits < 1/128."""
    one = 1 << bits
    low = high = below_term = above_term = one
    k = 1
    while above_term > 1:
        below_term = ((below_term * y) >> bits) // k
        above_term = -((-above_term * y) >> bits)
        above_term = -(-above_term // k)
        low, high, k = low + below_term, high + above_term, k + 1
    return low, high + 2 * above_term


def scaled_exp(factor: Fraction, exponent: Callable[[int], tuple[Fraction, Fraction]]) -> Bounds:
    """Bounds of factor * exp(-t) for a t >= 0 that is known to lie between the two fractions exponent(precision)."""

    def bounds(precision: int) -> Interval:
        extra = max(factor.numerator.bit_length() - factor.denominator.bit_length(), 0) + 8
        nearest_t, furthest_t = exponent(precision + extra)
        low, high = exp_minus(furthest_t, precision + extra)[0], exp_minus(nearest_t, precision + extra)[1]
        up = factor.denominator << extra
        return (low * factor.numerator) // up, -(-(high * factor.numerator) // up)

    return bounds


def total(*parts: Bounds) -> Bounds:
    """Bounds of a sum."""
    return lambda p: (sum(part(p)[0] for part in parts), sum(part(p)[1] for part in parts))


def complement_power(chance: Bounds, power: int) -> Bounds:
    """Bounds of (1 - chance)^power: by squaring, rounded down and up, with digits to spare for every step."""

    def bounds(precision: int) -> Interval:
        bits = precision + 2 * power.bit_length() + 8
        one = 1 << bits
        low_chance, high_chance = chance(bits)
        base_low, base_high = max(one - high_chance, 0), min(one - low_chance, one)
        low = high = one
        for digit in bin(power)[2:]:
            low, high = (low * low) >> bits, -((-high * high) >> bits)
            if digit == "1":
                low, high = (low * base_low) >> bits, -((-high * base_high) >> bits)
        cut = bits - precision
        return low >> cut, -((-high) >> cut)

    return bounds


def conditional(whole: Bounds, part: Bounds) -> Bounds:
    """Bounds of (whole - part) / (1 - part), the chance of ``whole`` where its ``part`` did not happen."""

    def bounds(precision: int) -> Interval:
        bits = precision + 16
        (whole_low, whole_high), (part_low, part_high), one = whole(bits), part(bits), 1 << bits
        # It rises with whole and falls with part.
        low = ((whole_low - part_high) << precision) // (one - part_high)
        high = -(-((whole_high - part_low) << precision) // (one - part_low))
        return max(low, 0), high

    return bounds


@lru_cache(maxsize=64)
def normal_tail(steps: int, precision: int) -> Interval:
    """Bounds of P(|Z| >= steps / 32) * 2^precision for a standard normal Z.

    With a = steps / 32 it is 1 - sqrt(2/pi) exp(-a^2/2) (a + a^3/3 + a^5/15 + ...), whose k-th term is a^2 / (2k + 1)
    times the one before. All are positive; from the first one with a^2 / (2k + 1) < 1/2 on the rest is at most twice
    the next term. pi is Machin's sum of arc tangents.
    """
    bits = precision + 64
    a = Fraction(steps, 32)
    square, one = a * a, 1 << bits
    below_term = (a.numerator << bits) // a.denominator
    above_term = below_term + 1
    low, high, k = below_term, above_term, 0
    # The series may reach exp(32), times which an error of exp(-a^2/2) counts: 64 more digits cover both.
    while above_term > 1 or 2 * square >= 2 * k + 1:
        k += 1
        up, down = square.numerator, square.denominator * (2 * k + 1)
        below_term, above_term = below_term * up // down, -(-above_term * up // down)
        low, high = low + below_term, high + above_term
    high += 2 * above_term
    density_low, density_high = exp_minus(square / 2, bits)
    pi_low, pi_high = _pi(bits)
    # sqrt(2/pi) * 2^bits
    root_low, root_high = math.isqrt((2 << (3 * bits)) // pi_high), math.isqrt((2 << (3 * bits)) // pi_low + 1) + 1
    inside_low = (low * density_low * root_low) >> (2 * bits)
    inside_high = -((-high * density_high * root_high) >> (2 * bits))
    cut = bits - precision
    return max((one - inside_high) >> cut, 0), -((inside_low - one) >> cut)


@lru_cache(maxsize=8)
def _pi(bits: int) -> Interval:
    """Bounds of pi * 2^bits: 16 arctan(1/5) - 4 arctan(1/239)."""
    guard = bits + 16
    value = 16 * _arctan_inverse(5, guard) - 4 * _arctan_inverse(239, guard)
    # Each of the at most guard terms was cut off by less than 1, and the sum ends with less than 1: 20 (guard + 1).
    error = 20 * (guard + 2)
    return (value - error) >> 16, -((-value - error) >> 16)


def _arctan_inverse(x: int, bits: int) -> int:
    power = (1 << bits) // x
    sum_, k, sign = 0, 1, 1
    while power:
        sum_ += sign * (power // k)
        power, k, sign = power // (x * x), k + 2, -sign
    return sum_
