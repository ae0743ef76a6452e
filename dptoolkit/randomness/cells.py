"""The table of cells from which rounded normal and Laplace noise is drawn, and why its law is exact.

**The table.** Cells i = 0, ..., 254 are the intervals [i/32, (i + 1)/32), the last column stands for the tail from
255/32 on. f(x) is exp(-x^2/2), or exp(-x). With a whole number lam, cell i has the weight W_i = ceil(lam f(i/32)), the
tail W_255 = 2^64 minus all others. Columns of equal weight 2^56 hold at most two cells each (the alias method), all in
whole numbers: a cell's parts add up to W_i exactly.

**A try.** Column and part give cell i with probability W_i / 2^64. In it x is uniform, so that its density is
32 W_i / 2^64. It is kept if a uniform U is below lam f(x) / W_i, which is at most 1 as f falls and W_i is a ceiling.
So kept numbers have the density (32 lam / 2^64) f(x): the same constant in every cell.

**The tail of a normal.** j is the number of heads before the first tail of a fair coin, and x is uniform in
255/32 + [j, j + 1): density W_255 2^-(j+1) / 2^64. It is kept with the chance 32 lam 2^(j+1) f(x) / W_255, which makes
the same density. That is at most 1: W_255 >= 64 lam f(255/32) for j = 0, and f(x + 1) <= f(x) exp(-7.9) for the others.

**The tail of an exponential number** is 255/32 plus another one. It is entered with the chance 32 lam f(255/32) /
W_255, at most 1 as W_255 is not less. Together that is (32 lam / 2^64) f(255/32): the same constant times the mass of f
beyond 255/32.

**Rounding.** With X = 2^55 cell + p + theta, where p are the 55 digits of a word and theta in [0, 1) all that were not
drawn, x = X / 2^60, and the answer is floor(M x + 1/2) with a fair sign. The kernel computes T = M (2^55 cell + p) +
2^59 in whole numbers; if T mod 2^60 + M <= 2^60, no theta changes floor((T + M theta) / 2^60). Otherwise it is hard.

**Every decision is that of all digits.** The 32 digits that choose a part of a column decide unless they are equal to
its border's and that has more. ``quick`` is the largest whole number with quick / 2^32 <= lam f((i + 1)/32) / W_i, the
smallest chance in the cell, so u < quick keeps x whatever follows. Otherwise the chance is computed in double: x with a
relative error below 2^-51.9, x^2/2 <= 32 with an absolute one below 2^-45.6, log(lam/W_i) below 2^-48, exp below 2^-50
for a library that errs by four units, together below 2^-45; digits of U beyond 53 and of x beyond 55 less than 2^-52.
The margin is 2^-40, and what is closer is hard. Hard tries are decided by randomness/exact.py with the same words and
further digits, so that nothing is drawn again, which would change the law.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dptoolkit.randomness import exact
from dptoolkit.randomness.exact import Digits, Source

NORMAL, EXPONENTIAL = 0, 1
CELLS, WIDTH, LAST = 256, Fraction(1, 32), 255
# Digits of f for the table. With more, no weight would differ: a test computes them with 400.
_PRECISION = 160
_COLUMN = 2**56
MARGIN = 2.0**-40


def exponent(law: int, x: Fraction) -> Fraction:
    """-log f(x)."""
    return x * x / 2 if law == NORMAL else x


@dataclass(frozen=True, eq=False)
class Table:
    """Cells and columns of one law; ``weights`` are whole numbers that add up to 2^64."""

    law: int
    scale: int
    weights: tuple[int, ...]
    keep: NDArray[np.uint64]
    alias: NDArray[np.int64]
    quick: NDArray[np.uint64]
    logs: NDArray[np.float64]
    tail: int

    def factor(self, cell: int) -> Fraction:
        """lam / W of a cell: times f(x) it is the chance that x is kept."""
        return Fraction(self.scale, self.weights[cell])

    @property
    def constant(self) -> NDArray[np.uint64]:
        """Limits for a quick decision that none meets, so that all tries take the same time."""
        return np.zeros(CELLS, np.uint64)


@lru_cache(maxsize=2)
def table(law: int, precision: int = _PRECISION) -> Table:
    """The table of a law, computed in whole numbers."""
    f = [exact.exp_minus(exponent(law, i * WIDTH), precision) for i in range(CELLS)]
    # The tail's weight in units of lam f(255/32).
    share = 64 if law == NORMAL else 32
    scale = (1 << (64 + precision)) // (sum(high for _, high in f[:LAST]) + share * f[LAST][1])
    while (weights := _weights(f, scale, precision))[LAST] < _ceiling(f[LAST], share * scale, precision):
        scale -= 1
    keep, alias = _columns(weights)
    quick = [(f[i + 1][0] * scale << 32) // (weights[i] << precision) for i in range(LAST)] + [0]
    logs = [math.log(Fraction(scale, weights[i])) for i in range(LAST)] + [0.0]
    tail = -1 if law == NORMAL else (f[LAST][0] * scale * 32 << 32) // (weights[LAST] << precision)
    return Table(law, scale, weights, keep, alias, np.array(quick, np.uint64), np.array(logs), tail)


def _weights(f: list[exact.Interval], scale: int, precision: int) -> tuple[int, ...]:
    cells = [_ceiling(bounds, scale, precision) for bounds in f[:LAST]]
    return (*cells, 2**64 - sum(cells))


def _ceiling(bounds: exact.Interval, scale: int, precision: int) -> int:
    """ceil(scale * f), which its lower and its upper bound must agree on."""
    low, high = (-((-bound * scale) >> precision) for bound in bounds)
    if low != high:
        raise ArithmeticError("the table of cells needs more digits")
    return high


def _columns(weights: tuple[int, ...]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """(how much of column c belongs to cell c, the cell of the rest): the alias method in whole numbers."""
    left, keep, alias = list(weights), [0] * CELLS, list(range(CELLS))
    small = [i for i in range(CELLS) if left[i] < _COLUMN]
    large = [i for i in range(CELLS) if left[i] >= _COLUMN]
    while small:
        i, j = small.pop(), large[-1]
        keep[i], alias[i] = left[i], j
        left[j] -= _COLUMN - left[i]
        if left[j] < _COLUMN:
            small.append(large.pop())
    for i in large:
        keep[i] = _COLUMN
    return np.array(keep, np.uint64), np.array(alias, np.int64)


# --- one try, decided exactly ----------------------------------------------------------------------------------

REJECTED, TAIL = "rejected", "tail"


@dataclass(frozen=True)
class Kept:
    """A number that was kept: base + width * place, and its sign."""

    base: Fraction
    width: Fraction
    place: Digits
    negative: bool

    def rounded(self, multiplier: int) -> int:
        """The nearest integer to multiplier times the number."""
        size = exact.nearest(multiplier, self.base, self.width, self.place)
        return -size if self.negative else size


def one_try(cells: Table, words: tuple[int, int, int], carried: int, source: Source) -> Kept | str:
    """The try of the kernel with these words, whatever digits it needs: the specification of the kernel.

    ``carried`` is the number of cells that an exponential number is away from 0. TAIL says that 255 more are.
    """
    a, b, c = words
    border = exact.rational(Fraction(int(cells.keep[a & 255]), _COLUMN))
    part = Digits(source, ((a >> 8) & 0xFFFFFF) << 8 | (b >> 55) & 0xFF, 32)
    cell = a & 255 if exact.below(part, border) else int(cells.alias[a & 255])
    uniform, place = Digits(source, (a >> 32) << 64 | c, 96), Digits(source, b & (2**55 - 1), 55)
    return in_cell(cells, cell, uniform, place, bool(b >> 63), carried, source)


def in_cell(
    cells: Table, cell: int, uniform: Digits, place: Digits, negative: bool, carried: int, source: Source
) -> Kept | str:
    """A try whose cell is known: kept if ``uniform`` is below the chance at ``place`` in it."""
    if cell < LAST:
        kept = Kept(cell * WIDTH, WIDTH, place, negative)
        if not _is_kept(cells, kept, cells.factor(cell), uniform):
            return REJECTED
        return Kept((cell + carried) * WIDTH, WIDTH, place, negative)
    start = LAST * WIDTH
    if cells.law == EXPONENTIAL:
        chance = exact.scaled_exp(32 * cells.factor(LAST), lambda _: (start, start))
        return TAIL if exact.below(uniform, chance) else REJECTED
    heads = 0
    while source.below(2):
        heads += 1
    kept = Kept(start + heads, Fraction(1), place, negative)
    return kept if _is_kept(cells, kept, 2 ** (heads + 6) * cells.factor(LAST), uniform) else REJECTED


def _is_kept(cells: Table, kept: Kept, factor: Fraction, uniform: Digits) -> bool:
    def exponents(precision: int) -> tuple[Fraction, Fraction]:
        # The chance falls with x: the lower end of x bounds the exponent from below.
        bits = precision + 8
        x = kept.base + kept.width * Fraction(kept.place.to(bits), 1 << bits)
        return exponent(cells.law, x), exponent(cells.law, x + kept.width / (1 << bits))

    return exact.below(uniform, exact.scaled_exp(factor, exponents))


Decision = Callable[[Table, tuple[int, int, int], int, Source], Kept | str]
