"""Lazy steps with secure noise: the driver of kernels/secure_steps.py, which is called until all steps are made.

Privacy
-------
A step releases S + round(M Z) on every coordinate, S the exact integer sum of the batch's gradients in grid units, and
the threshold's result is computed from it. Coordinates that cannot enter the result are not drawn; the law of the
result is that of drawing all. Batches, noises and places come from one SecureStream, with exact laws. Which coordinates
have data, and how many, decides what is drawn in which way, and shows in the run time alone.
"""

from __future__ import annotations

import bisect
import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit.accounting.events import POISSON
from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.data.grids import DITHERED, directions_on_grid, rows_on_grid
from dptoolkit.losses import Loss
from dptoolkit.randomness import SecureStream, cells, exact
from dptoolkit.randomness.exact import Digits
from dptoolkit.randomness.largest import exact_gap, values_between
from dptoolkit.randomness.sampling import CONSTANT_TIME
from dptoolkit.solvers.engine.batches import BatchData, Iterate
from dptoolkit.solvers.frame.plan import Release
from dptoolkit.types import Array

# Words that are drawn at a time: few for the first steps, which may be all, and at most so many that they fit into the
# cache.
_FIRST, _MOST = 1 << 11, 1 << 14
# Digits of a chance, whose logarithm is then a correct double.
_DIGITS = 160
_NONE = np.zeros(0)
BATCH_REMARKS = ("batches are drawn exactly, from the generator of the noise",)


@lru_cache(maxsize=2)
def sampler(is_constant: bool) -> Any:
    """The table of cells as the kernel takes it; ``is_constant`` makes all tries take the same time."""
    from dptoolkit.kernels.secure_steps import Sampler

    table = cells.table(cells.NORMAL)
    prefix = np.cumsum([0, *table.weights[:-1]], dtype=np.uint64)
    quick = table.constant if is_constant else table.quick
    return Sampler(table.keep, table.alias, quick, table.logs, prefix, _rates(), cells.MARGIN)


@lru_cache(maxsize=1)
def _rates() -> Array:
    """log P(|Z| < c/32) for every c, 0 for none: correct to 2^-51 of itself, by the smaller of the two chances."""
    rates = [-math.inf]
    for level in range(1, cells.CELLS):
        above = Fraction(sum(exact.normal_tail(level, _DIGITS)), 2 << _DIGITS)
        rates.append(math.log1p(-above) if above < Fraction(1, 2) else math.log(1 - above))
    return np.array(rates)


def rows_for(data: BatchData, grids: Any, fit_intercept: bool, clip: float) -> Any:
    """The records as the kernel takes them: rows on the grid or, with caps, directions and their lengths."""
    rows, lengths = data.rows, _NONE
    if data.caps is None:
        rows = rows_on_grid(data.rows, grids, fit_intercept)
    else:
        rows, lengths = directions_on_grid(data.rows, grids)
    return kernel_rows(rows, data.y, lengths, data.which, data.loss, data.margin_bound, clip)


def kernel_rows(
    rows: Rows, y: Array, lengths: Array, which: NDArray[np.int64], loss: Loss, margin_bound: float, clip: float
) -> Any:
    """Rows on their grid as the kernel takes them."""
    from dptoolkit.kernels import secure_steps as kernel

    values, indices, indptr = kernel_arrays(rows.matrix)
    return kernel.Rows(
        loss.id, values, indices, indptr.view(np.int64), y, lengths, which, float(margin_bound), float(clip)
    )


def rate_of(release: Release) -> float | None:
    """The chance of a record in a Poisson batch of the release; None for batches of fixed size."""
    sampling = release.sampling
    return sampling.rate if sampling is not None and sampling.scheme == POISSON else None


@dataclass(frozen=True)
class Scheme:
    """How batches of n records are drawn: ``size`` of them without replacement, or each with probability ``rate``."""

    n: int
    size: int
    rate: float = 1.0

    @classmethod
    def of(cls, n: int, size: float, rate: float | None) -> Scheme:
        """Batches of a fixed size, or with a ``rate`` Poisson batches; a rate of 1 is a batch of all records."""
        if rate is None:
            return cls(n, int(size))
        return cls(n, n) if rate >= 1 else cls(n, 0, rate)

    @property
    def complement(self) -> bool:
        """Whether the records that are NOT in the batch are drawn, as they are fewer."""
        return self.size == 0 and self.rate > 0.5

    @property
    def chance(self) -> Fraction:
        """The chance of the records that are drawn: that of the plan's event, to the last bit."""
        return 1 - Fraction(self.rate) if self.complement else Fraction(self.rate)

    @property
    def log_miss(self) -> float:
        """log(1 - chance); 0 if it is not used."""
        return 0.0 if self.size else math.log1p(-self.chance)


class Records:
    """Fresh batches of records, drawn exactly from a stream."""

    def __init__(self, stream: SecureStream, scheme: Scheme) -> None:
        from dptoolkit.kernels import secure_steps as kernel

        self._stream, self._scheme = stream, scheme
        self._words, self._ints = np.zeros(0, np.uint64), np.zeros(kernel.INTS, np.int64)
        self._chosen = np.arange(scheme.n)

    def draw(self) -> NDArray[np.int64]:
        """The places of the records of a batch, in any order; they are overwritten by the next."""
        from dptoolkit.kernels import secure_steps as kernel

        scheme, ints = self._scheme, self._ints
        ints[kernel.POSITION] = ints[kernel.PENDING] = 0
        how = scheme.size, scheme.log_miss, scheme.complement
        while (status := kernel.choose_records(self._words, ints, *how, self._chosen)) != kernel.DONE:
            used = int(ints[kernel.USED])
            if status == kernel.WORDS:
                self._words, ints[kernel.USED] = self._stream.words(min(scheme.n + 8, _MOST)), 0
            else:
                place = int(ints[kernel.POSITION])
                digits = Digits(self._stream, int(self._words[used]), 64)
                ints[kernel.NUMBER] = exact_gap(digits, exact.rational(scheme.chance), scheme.n - place)
                ints[kernel.PENDING], ints[kernel.USED] = 1, used + 1
        return self._chosen[: int(ints[kernel.CHOSEN])]


@dataclass
class Stepper:
    """Lazy steps of one fit: everything that they change, and the stream from which they draw.

    ``how``, ``law`` and ``rows`` are those of the kernel; ``kept_count`` is the number of weights that compete and are
    kept.
    """

    stream: SecureStream
    how: Any
    law: Any
    rows: Any
    scheme: Scheme
    kept_count: int
    words: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64), init=False)

    def __post_init__(self) -> None:
        from dptoolkit.kernels import secure_steps as kernel

        how, rows = self.how, self.rows
        self._width = how.free + how.protected
        lengths = np.diff(rows.indptr)
        longest = int(lengths.max(initial=1))
        fixed = longest * self.scheme.size if self.scheme.size else len(rows.indices)
        others = 3 * (self.kept_count + how.protected)
        self._entries = kernel.make_entries(min(self._width, fixed + others), longest)
        self._noises = np.empty(len(self._entries.keys), np.int64)
        self._top = kernel.Top(np.empty(self.kept_count, np.int64), np.empty(self.kept_count))
        self._found = np.empty(4 * int(how.number) + 64, np.int64)
        self._chosen = np.arange(self.scheme.n) if self.scheme.size else np.empty(self.scheme.n, np.int64)
        self._ints, self._floats = np.zeros(kernel.INTS, np.int64), np.zeros(kernel.FLOATS)
        self._fixed, self._block = kernel.flat(how, self.law, rows, sampler(self._width <= CONSTANT_TIME)), _FIRST
        self._nothing = kernel.Means(_NONE, np.zeros(0, np.int64), np.array([0, how.free]), np.zeros(2))

    def advance(
        self, iterate: Iterate, steps: int, means: Any = None, snapshot: Any = None, iterates: Array | None = None
    ) -> None:
        """Make ``steps`` steps from the iterate, which is changed.

        Reduced steps have ``means``, the noisy snapshot gradient in buckets, and the ``snapshot`` (support, values).

        Privacy
        -------
        ``steps`` of the plan's releases. The iterate must be public, or follow from releases that are charged.
        """
        from dptoolkit.kernels import secure_steps as kernel

        iterate.sort()
        self._means = self._nothing if means is None else means
        old = (np.zeros(0, np.int64), _NONE) if snapshot is None else snapshot
        weights = kernel.Weights(iterate.support, iterate.values, *old)
        kept = np.empty((0, self._width)) if iterates is None else iterates
        self._levels = np.zeros(len(self._means.starts), np.int64)
        ints = self._ints
        ints[kernel.STEP], ints[kernel.PHASE], ints[kernel.POSITION] = 0, kernel.BATCH, 0
        ints[kernel.FILLED] = iterate.filled
        # Another bucket, another usual level.
        self._floats[kernel.USUAL_SPREAD] = 0.0
        while True:
            status = kernel.advance(
                self.words, ints, self._floats, steps, *self._fixed, *self._entries, *self._means, *self._top, *weights,
                self._chosen, self._noises, self._found, self._levels, kept,
            )  # fmt: skip
            if status == kernel.DONE:
                break
            self._serve(int(status))
        iterate.filled = int(ints[kernel.FILLED])

    def close(self) -> None:
        """Overwrite the words that are left."""
        self.words[:] = 0

    def _serve(self, status: int) -> None:
        """What the kernel asked for: words, room, or a decision with the words that it has seen."""
        from dptoolkit.kernels import secure_steps as kernel

        if status == kernel.WORDS:
            # Those that are left, at most two, were looked at by nobody.
            self.words[:] = 0
            self.words = self.stream.words(self._block)
            self._ints[kernel.USED], self._block = 0, min(2 * self._block, _MOST)
        elif status == kernel.ROOM:
            self._found = np.concatenate([self._found, np.empty_like(self._found)])
        elif status == kernel.COMPLETE:
            self._complete()
        elif status in (kernel.HARD_RECORD, kernel.HARD_GAP):
            self._decide_gap(status == kernel.HARD_RECORD)
        else:
            self._decide_noise(status == kernel.HARD_CELL)

    def _decide_gap(self, of_records: bool) -> None:
        from dptoolkit.kernels import secure_steps as kernel

        ints = self._ints
        place, used = int(ints[kernel.POSITION]), int(ints[kernel.USED])
        if of_records:
            chance, end = exact.rational(self.scheme.chance), self.scheme.n
        else:
            chance = partial(exact.normal_tail, int(ints[kernel.LEVEL]))
            end = int(self._means.starts[ints[kernel.BUCKET] + 1])
        ints[kernel.NUMBER] = exact_gap(Digits(self.stream, int(self.words[used]), 64), chance, end - place)
        ints[kernel.PENDING], ints[kernel.USED] = 1, used + 1

    def _decide_noise(self, in_cells: bool) -> None:
        from dptoolkit.kernels import secure_steps as kernel

        ints, table = self._ints, cells.table(cells.NORMAL)
        used = int(ints[kernel.USED])
        a, b, c = (int(word) for word in self.words[used : used + kernel.PER_TRY])
        if in_cells:
            outcome = try_in_cells(int(ints[kernel.LEVEL]), (a, b, c), self.stream)
        else:
            outcome = cells.one_try(table, (a, b, c), 0, self.stream)
        ints[kernel.USED] = used + kernel.PER_TRY
        if isinstance(outcome, cells.Kept):
            ints[kernel.NUMBER] = outcome.rounded(int(ints[kernel.MULTIPLIER]))
            ints[kernel.PENDING] = 1

    def _complete(self) -> None:
        """Too few values reached the level: the noises of all other coordinates, which are below it; O(d), and rare."""
        from dptoolkit.kernels import secure_steps as kernel

        ints, how, means = self._ints, self.how, self._means
        is_known = np.zeros(self._width, dtype=bool)
        is_known[self._entries.keys[: ints[kernel.COUNT]]] = True
        is_known[self._found[: ints[kernel.FOUND]]] = True
        size = int(ints[kernel.SIZE])
        keys, values = [self._top.keys[:size].copy()], [self._top.values[:size].copy()]
        for b in range(len(means.starts) - 1):
            level = int(self._levels[b])
            if level == 0:
                continue
            places = np.arange(means.starts[b], means.starts[b + 1])
            members = places if len(means.ranked) == 0 else means.ranked[places]
            members = members[~is_known[members]]
            noise = values_between(self.stream, int(ints[kernel.MULTIPLIER]), 0, level, len(members))
            mean = means.values[members] if len(means.values) else 0.0
            # Number for number what ``next_weight`` of the kernel computes.
            noisy = noise * how.row_unit * self._floats[kernel.UNIT] / how.divisor
            value = how.shrink * 0.0 - how.step_size * (mean + noisy)
            keys.append(members)
            values.append(np.where(np.isnan(value), 0.0, value))
        kept = largest_of(np.concatenate(keys), np.concatenate(values), self.kept_count)
        ints[kernel.SIZE] = len(kept[0])
        self._top.keys[: len(kept[0])], self._top.values[: len(kept[0])] = kept


def try_in_cells(level: int, words: tuple[int, int, int], stream: SecureStream) -> cells.Kept | str:
    """A try of the kernel's ``draw_in_cells`` with these words, whatever digits it needs: its specification."""
    table, (t, b, c) = cells.table(cells.NORMAL), words
    before = sum(table.weights[:level])
    total = 2**64 - before
    t &= (1 << (total - 1).bit_length()) - 1
    if t >= total:
        return cells.REJECTED
    cell = bisect.bisect_right(list(itertools.accumulate(table.weights)), before + t)
    uniform, place = Digits(stream, c, 64), Digits(stream, b & (2**55 - 1), 55)
    return cells.in_cell(table, cell, uniform, place, bool(b >> 63), 0, stream)


def largest_of(keys: NDArray[np.int64], values: Array, count: int) -> tuple[NDArray[np.int64], Array]:
    """The ``count`` values that are largest in size; of equal ones those of the smaller keys."""
    size = np.abs(values)
    if count < len(size):
        border = np.partition(size, len(size) - count)[len(size) - count]
        near = np.flatnonzero(size >= border)
        chosen = near[np.lexsort((keys[near], -size[near]))[:count]]
        return keys[chosen], values[chosen]
    return keys, values


def how_of(
    scheme: Scheme, iteration: Any, row_unit: float, width: int, stream: SecureStream, divisor: float, reduced: bool
) -> Any:
    """The iteration as the kernel takes it; ``iteration`` has step_size, l2, sparsity and fit_intercept."""
    from dptoolkit.kernels import secure_steps as kernel

    protected, sparsity = int(iteration.fit_intercept), iteration.sparsity
    # The number of untouched coordinates that reach the usual level: seldom too few, so that seldom all are drawn.
    number = 1.15 * sparsity + 4 * math.sqrt(sparsity) + 8
    # Equal rounding errors of very many records would add up: each is rounded by a number for its place.
    salt = 1 + stream.below(1 << 62) if scheme.n > DITHERED else 0
    return kernel.How(
        reduced, scheme.size, scheme.log_miss, scheme.complement, float(divisor), float(iteration.step_size),
        1.0 - iteration.step_size * iteration.l2, row_unit, width - protected, protected, number, salt,
    )  # fmt: skip


def plain_law(noise: Any) -> Any:
    """The noise and the caps of residuals at every share of a ``SecureNoise``, as the kernel takes them.

    Privacy
    -------
    Multipliers are rounded up, by more than products of doubles err; caps down.
    """
    from dptoolkit.kernels import secure_steps as kernel

    grids, law = noise.grids, noise.law
    most = noise.multiplier(law.scale)
    units = float(Fraction(law.scale) * Fraction(noise.size) / grids.unit)
    multipliers = np.minimum(np.ceil(units * law.shares * (1 + 2.0**-50)), most).astype(np.int64)
    limits = np.full(len(law.shares), grids.limit) if noise.has_diameter else np.minimum(law.shares, 1.0) * grids.limit
    caps = np.floor(limits / grids.residual_unit)
    return kernel.Law(multipliers, caps, grids.residual_unit, law.places, 0.0, 0.0, 1.0, 0, math.inf, 0.0)
