"""Lazy steps of stochastic hard thresholding with secure noise: integer sums, rounded normals, exact random choices.

A step is that of kernels/stochastic.py: a batch, its gradient on the coordinates that the batch or the weights touch,
noise on these, and of all other coordinates only those noises that can enter the top. Here every sum is an integer in
units of public grids (data/grids.py), every noise is round(M Z) with the exact law of randomness/cells.py, and batches
are exact too.

**A state that can be left.** Random words come in blocks, and a decision that doubles cannot make is made by the caller
with the SAME words (randomness/exact.py). So ``advance`` returns a status and is called again: ``ints`` and ``floats``
hold where it is. What the caller decided comes back in ints[NUMBER], with ints[PENDING] set.

**Untouched coordinates.** Their values are step_size (mean + unit N), N = round(M Z), with known public means in
buckets of at most heights[b]. T is a level of |value| that is public or the smallest of a full top, which is
independent of the noises to come. In bucket b a value can reach T only if |Z| >= c/32, c the largest whole number for
which every smaller |Z| gives less than T. Where |Z| >= c/32 happens is found by skips, with the chance of a normal; a
coordinate where it does gets a noise of the cells from c on. So the law is that of drawing all noises and hiding those
that cannot reach T. If in the end fewer than k values reach T, the caller draws the hidden ones (``COMPLETE``).

**Ties.** Integers tie. Of two equal |values| that of the smaller coordinate is larger, everywhere, so that the order in
which they are offered, which depends on the batch, does not matter. Values that are 0 are no weights.

Long because a kernel and all helpers that it calls must be in one file: Numba's cache does not notice edits elsewhere.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, register_jitable
from numpy.typing import NDArray

SQUARED, LOGISTIC, HUBER, HINGE = 0, 1, 2, 4
_WIDTH, _SQRT_2 = 0.5, math.sqrt(2.0)
# As in kernels/stochastic.py: a bound on the rounding error of a sum of products, per product and unit of norms.
_BLUR = 4e-16
_SMALLEST_UNIT = 2.0**-900
# What ``advance`` returns: all steps are made; more words are needed; a decision for the caller; room for ``found``.
DONE, WORDS, HARD_RECORD, HARD_NORMAL, HARD_GAP, HARD_CELL, COMPLETE, ROOM = range(8)
# The phases of a step.
BATCH, NOISE, HIDDEN, CLOSE = range(4)
# Places of ``ints`` and of ``floats``.
(STEP, PHASE, USED, POSITION, CHOSEN, COUNT, SIZE, FILLED, BUCKET, LEVEL, VISITED, PENDING, NUMBER, FOUND, MULTIPLIER,
 INTS) = range(16)  # fmt: skip
UNIT, CAP, REACH, USUAL, USUAL_SPREAD, FLOATS = range(6)
# Words of a try, and constants of the samplers of kernels/rounded.py.
PER_TRY, LAST = 3, 255
_COLUMN, _LAST, _ZERO, _ONE = (np.uint64(k) for k in (255, 255, 0, 1))
_TO_DIGITS, _DIGITS, _TO_SPARE, _SPARE, _BYTE = (np.uint64(k) for k in (8, 2**24 - 1, 55, 255, 8))
_TO_TOP, _REST = np.uint64(24), np.uint64(2**24 - 1)
_TO_U, _TO_LOW, _MORE_U = np.uint64(32), np.uint64(43), np.uint64(21)
_PLACE, _TO_SIGN = np.uint64(2**55 - 1), np.uint64(63)
_CELL_BITS, _CELL_HIGH, _HALF, _WHOLE = np.uint64(55), np.uint64(9), np.uint64(2**59), np.uint64(2**60)
_TO_INTEGER, _HIGH = np.uint64(60), np.uint64(4)
_U_UNIT, _PLACE_UNIT, _WORD_UNIT, _TO_DOUBLE = 2.0**-53, 2.0**-55, 2.0**-64, np.uint64(11)
_SMALL = np.uint64(2**24)

OPTIONS: Any = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
helper = register_jitable(no_rewrites=True, **OPTIONS)


class Rows(NamedTuple):
    """Rows on their grid, in CSR form; ``lengths`` is empty, or rows are directions and it has their norms.

    ``which`` has the row of every record; ``clip`` bounds residual times length, before a difference is taken.
    """

    loss: int
    data: NDArray[Any]
    indices: NDArray[Any]
    indptr: NDArray[Any]
    y: NDArray[Any]
    lengths: NDArray[Any]
    which: NDArray[Any]
    margin_bound: float
    clip: float


class Sampler(NamedTuple):
    """The table of cells: ``prefix`` are sums of the weights before each cell, rates[c] is log P(|Z| < c/32)."""

    keep: NDArray[Any]
    alias: NDArray[Any]
    quick: NDArray[Any]
    logs: NDArray[Any]
    prefix: NDArray[Any]
    rates: NDArray[Any]
    margin: float


class Law(NamedTuple):
    """Noise and grid at public weights.

    Plain steps: place ceil(|w| places), or the last, has the multiplier and the cap of residuals in units of ``unit``.
    Reduced steps: the share of ``reduced_share`` times ``noise``, the noise of a sum in units of rows, on a grid with
    ``bits`` bits for the largest difference at a share, which is ``limit`` times share/reach or ``limit``.
    """

    multipliers: NDArray[Any]
    caps: NDArray[Any]
    unit: float
    places: float
    noise: float
    limit: float
    reach: float
    bits: int
    slope: float
    grain: float


class How(NamedTuple):
    """The iteration: ``size`` records a batch, or for 0 skips of ``rate``, to records that are out if ``complement``.

    Sums are divided by ``divisor``. A ``salt`` that is not 0 gives every record and step a number for its rounding.
    """

    reduced: bool
    size: int
    rate: float
    complement: bool
    divisor: float
    step_size: float
    shrink: float
    row_unit: float
    free: int
    protected: int
    number: float
    salt: int


class Entries(NamedTuple):
    """The touched coordinates, as in kernels/stochastic.py: an open hash table of the keys and what they hold."""

    marks: NDArray[Any]
    table: NDArray[Any]
    keys: NDArray[Any]
    before: NDArray[Any]
    old: NDArray[Any]
    values: NDArray[Any]
    places: NDArray[Any]


class Means(NamedTuple):
    """Known means in buckets, as in kernels/stochastic.py; ``values`` and ``ranked`` are empty if all means are 0."""

    values: NDArray[Any]
    ranked: NDArray[Any]
    starts: NDArray[Any]
    heights: NDArray[Any]


class Top(NamedTuple):
    """The largest values so far and their coordinates: a heap with the smallest in front."""

    keys: NDArray[Any]
    values: NDArray[Any]


class Room(NamedTuple):
    """Room for a batch, the noises of the touched coordinates, the others that are found, and levels of the buckets.

    ``iterates`` gets a row of weights a step, unless it has none.
    """

    chosen: NDArray[Any]
    noises: NDArray[Any]
    found: NDArray[Any]
    levels: NDArray[Any]
    iterates: NDArray[Any]


class Weights(NamedTuple):
    """The iterate, sorted by coordinate, and the snapshot of reduced steps, which is empty for plain ones."""

    support: NDArray[Any]
    values: NDArray[Any]
    old_support: NDArray[Any]
    old_values: NDArray[Any]


def make_entries(capacity: int, longest: int) -> Entries:
    """Room for ``capacity`` coordinates and for rows of ``longest`` entries; memory is touched when it is used."""
    slots = 512
    while slots < 2 * capacity:
        slots *= 2
    marks, table = np.array([1, 511], np.int64), np.zeros(slots, np.int64)
    keys, places = np.empty(capacity, np.int64), np.empty(max(longest, 1), np.int64)
    return Entries(marks, table, keys, np.empty(capacity), np.empty(capacity), np.empty(capacity), places)


# --- random numbers from words -------------------------------------------------------------------------------------


@intrinsic
def high_product(typing, a, b):  # type: ignore[no-untyped-def]
    """The upper 64 of the 128 bits of a * b."""

    def build(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        wide = ir.IntType(128)
        one, two = (builder.zext(value, wide) for value in arguments)
        shifted = builder.lshr(builder.mul(one, two), ir.Constant(wide, 64))
        return builder.trunc(shifted, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), build


@helper
def nearest(m: Any, cell: Any, p: Any) -> Any:
    """round(m (2^55 cell + p + theta) / 2^60) if it is the same for every theta in [0, 1), unseen digits; else -1."""
    steps = m * cell
    low, high = m * p, high_product(m, p)
    total = low + (steps << _CELL_BITS)
    high += (steps >> _CELL_HIGH) + (_ONE if total < low else _ZERO)
    low = total + _HALF
    high += _ONE if low < total else _ZERO
    if (low & (_WHOLE - _ONE)) + m > _WHOLE:
        return -1
    return np.int64((high << _HIGH) | (low >> _TO_INTEGER))


@helper
def draw_normals(words: NDArray[Any], ints: NDArray[Any], sampler: Sampler, out: NDArray[Any], count: int) -> int:
    """round(M Z) into places ints[POSITION], ... of ``out`` up to ``count``, as ``kernels.rounded.rounded``.

    Returns DONE, WORDS or HARD_NORMAL; ints[POSITION] is the place that comes next.
    """
    place, used, end, m = ints[POSITION], ints[USED], words.shape[0] - PER_TRY, np.uint64(ints[MULTIPLIER])
    keep, alias, quick = sampler.keep, sampler.alias, sampler.quick
    status = DONE
    if ints[PENDING]:
        out[place] = ints[NUMBER]
        ints[PENDING] = 0
        place += 1
    while place < count:
        if used > end:
            status = WORDS
            break
        a, b = words[used], words[used + 1]
        column = a & _COLUMN
        digits = (((a >> _TO_DIGITS) & _DIGITS) << _BYTE) | ((b >> _TO_SPARE) & _SPARE)
        kept = keep[column]
        top = kept >> _TO_TOP
        cell = column
        if digits >= top:
            if digits == top and kept & _REST != _ZERO:
                status = HARD_NORMAL
                break
            cell = np.uint64(alias[column])
        u, p, after = a >> _TO_U, b & _PLACE, used + 2
        if cell == _LAST:
            status = HARD_NORMAL
            break
        if u >= quick[cell]:
            x = (float(np.int64(cell)) + float(np.int64(p)) * _PLACE_UNIT) / 32.0
            chance = math.exp(sampler.logs[cell] - 0.5 * x * x)
            uniform = float(np.int64((u << _MORE_U) | (words[used + 2] >> _TO_LOW))) * _U_UNIT
            if abs(uniform - chance) <= sampler.margin:
                status = HARD_NORMAL
                break
            after = used + 3
            if uniform > chance:
                used = after
                continue
        size = nearest(m, cell, p)
        if size < 0:
            status = HARD_NORMAL
            break
        out[place] = -size if b >> _TO_SIGN else size
        place += 1
        used = after
    ints[POSITION], ints[USED] = place, used
    return status


@helper
def draw_in_cells(words: NDArray[Any], ints: NDArray[Any], sampler: Sampler, level: int) -> int:
    """round(M Z) of a Z in the cells from ``level`` on into ints[NUMBER], as ``kernels.rounded.rounded_in_cells``."""
    m, prefix = np.uint64(ints[MULTIPLIER]), sampler.prefix
    # All cells together weigh 2^64, which is 0 here, and then every word is one of theirs.
    total = _ZERO - prefix[level]
    mask = total - _ONE
    for shift in range(6):
        mask |= mask >> np.uint64(1 << shift)
    while True:
        used = ints[USED]
        if used + PER_TRY > words.shape[0]:
            return WORDS
        t, b, c = words[used] & mask, words[used + 1], words[used + 2]
        if t >= total and level > 0:
            ints[USED] = used + PER_TRY
            continue
        t += prefix[level]
        low, high = level, LAST
        while low < high:
            middle = (low + high + 1) // 2
            if prefix[middle] <= t:
                low = middle
            else:
                high = middle - 1
        if low == LAST:
            return HARD_CELL
        p = b & _PLACE
        x = (float(low) + float(np.int64(p)) * _PLACE_UNIT) / 32.0
        gap = float(np.int64(c >> _TO_DOUBLE)) * _U_UNIT - math.exp(sampler.logs[low] - 0.5 * x * x)
        if abs(gap) <= sampler.margin:
            return HARD_CELL
        if gap < 0.0:
            size = nearest(m, np.uint64(low), p)
            if size < 0:
                return HARD_CELL
            ints[NUMBER] = -size if b >> _TO_SIGN else size
            ints[USED] = used + PER_TRY
            return DONE
        ints[USED] = used + PER_TRY


@helper
def draw_gap(words: NDArray[Any], ints: NDArray[Any], rate: float, most: int) -> int:
    """floor(log U / rate), at most ``most``, into ints[NUMBER], as ``kernels.rounded.skips`` computes it."""
    used = ints[USED]
    if used >= words.shape[0]:
        return WORDS
    w = words[used]
    if w < _SMALL:
        return HARD_GAP
    size = float(np.int64(w >> _ONE)) * 2.0
    log = math.log((size + 1.0) * _WORD_UNIT)
    gap = log / rate
    error = (2.0**-48 * (1.0 - log) + 2.0 / size) / -rate
    if gap - error >= most:
        ints[NUMBER] = most
    elif math.floor(gap - error) != math.floor(gap + error):
        return HARD_GAP
    else:
        ints[NUMBER] = np.int64(math.floor(gap))
    ints[USED] = used + 1
    return DONE


@helper
def draw_batch(
    words: NDArray[Any], ints: NDArray[Any], size: int, rate: float, complement: bool, chosen: NDArray[Any]
) -> int:
    """The places of the records of a batch into ``chosen``, whose number goes to ints[CHOSEN].

    ``size``, ``rate`` and ``complement`` are those of ``How``. Of batches of a fixed size ``chosen`` always holds every
    record once. A word gives a uniform number below m by the upper half of its product with m; words that would favour
    some of these numbers are drawn again (Lemire 2019).
    """
    n, place = chosen.shape[0], ints[POSITION]
    if size > 0:
        while place < size and size < n:
            used = ints[USED]
            if used >= words.shape[0]:
                ints[POSITION] = place
                return WORDS
            ints[USED] = used + 1
            m = np.uint64(n - place)
            low = words[used] * m
            if low < m and low < (_ZERO - m) % m:
                continue
            other = place + np.int64(high_product(words[used], m))
            record = chosen[other]
            chosen[other] = chosen[place]
            chosen[place] = record
            place += 1
        ints[CHOSEN] = size
        return DONE
    count = ints[CHOSEN] if place > 0 or ints[PENDING] else 0
    while place < n:
        if ints[PENDING] == 0:
            status = draw_gap(words, ints, rate, n - place)
            if status != DONE:
                ints[POSITION], ints[CHOSEN] = place, count
                return HARD_RECORD if status == HARD_GAP else status
        ints[PENDING] = 0
        after = place + ints[NUMBER]
        if complement:
            for i in range(place, after):
                chosen[count] = i
                count += 1
        elif after < n:
            chosen[count] = after
            count += 1
        place = after + 1
    ints[CHOSEN] = count
    return DONE


# --- gradients in integers ------------------------------------------------------------------------------------------


@helper
def clipped(value: float, low: float, high: float) -> float:
    """The value, or the end of the range that it exceeds; NaN stays NaN."""
    if value < low:
        return low
    return high if value > high else value


@helper
def residual(loss: int, margin: float, y: float) -> float:
    """d loss / d margin of one row, as in losses.py; NaN for a loss that has no branch here."""
    if loss == LOGISTIC:
        e = math.exp(-abs(margin))
        return (1.0 if margin >= 0 else e) / (1.0 + e) - y
    if loss == HINGE:
        sign = 2.0 * y - 1.0
        return -sign * clipped((1.0 - sign * margin) / _WIDTH, 0.0, 1.0)
    if loss == HUBER:
        return clipped(margin - y, -1.0, 1.0)
    return margin - y if loss == SQUARED else math.nan


@helper
def record_residual(rows: Rows, i: int, margin: float, y: float) -> float:
    """The residual of row i after clipping its margin, times the length of the row, clipped as well; 0 for NaN."""
    r = residual(rows.loss, clipped(margin, -rows.margin_bound, rows.margin_bound), y)
    if rows.lengths.shape[0] > 0:
        r = clipped(r * rows.lengths[i], -rows.clip, rows.clip)
    return 0.0 if math.isnan(r) else r


@helper
def on_grid(r: float, unit: float, cap: float, salt: int, place: int) -> float:
    """r in units of a power of two: whole, at most ``cap`` in size; to the nearest, or by a number of its place.

    The number depends on the salt, which is public to the records, and on the place alone.
    """
    x = r / unit
    if salt != 0 and abs(x) < 2.0**52:
        # Mixed as in splitmix64.
        z = np.uint64(salt) + np.uint64(place) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        q = math.floor(x + float(np.int64((z ^ (z >> np.uint64(31))) >> _TO_DOUBLE)) * _U_UNIT) * 1.0
    else:
        q = np.rint(x)
    if math.isnan(q):
        return 0.0
    return clipped(q, -cap, cap)


@helper
def touch(t: Entries, count: int, key: int) -> int:
    """The entry of ``key``; a new one becomes number ``count``. A count of -1 makes none: the result is negative."""
    table, keys = t.table, t.keys
    base, mask = t.marks[0], t.marks[1]
    slot: Any = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while True:
        e: int = table[slot] - base
        if e < 0 or keys[e] == key:
            break
        slot = (slot + 1) & mask
    if e < 0 <= count:
        e = count
        table[slot], keys[e] = base + e, key
        t.before[e] = t.old[e] = t.values[e] = 0.0
    return e


@helper
def distance(one: NDArray[Any], two: NDArray[Any], count: int, alone: bool) -> float:
    """The norm of one - two over the first ``count`` entries, or of one ``alone``; 0 only where all of these are 0."""
    unit = 1.0
    while True:
        square = largest = 0.0
        for e in range(count):
            gap = one[e]
            if not alone:
                gap -= two[e]
            gap = abs(gap) / unit
            square += gap * gap
            if gap > largest:
                largest = gap
        if not (square < 1e-280 and largest > 0.0):
            return unit * math.sqrt(square)
        # Squares that underflow: again, in units of the largest.
        unit = largest


@helper
def touch_weights(ints: NDArray[Any], how: How, rows: Rows, chosen: NDArray[Any], t: Entries, w: Weights) -> int:
    """Empty the entries, with slots for the features of the batch; enter weights, snapshot and protected coordinates.

    They are entered by coordinate, whatever the batch is, so that sums over them are public numbers.
    """
    filled, snapped = ints[FILLED], w.old_support.shape[0]
    slots = 2 * (filled + snapped + how.protected)
    for a in range(ints[CHOSEN]):
        i = rows.which[chosen[a]]
        slots += 2 * (rows.indptr[i + 1] - rows.indptr[i])
    mask, most = t.marks[1], t.table.shape[0] - 1
    while mask < slots and mask < most:
        mask = 2 * mask + 1
    t.marks[0], t.marks[1] = t.marks[0] + t.keys.shape[0], mask
    count: Any = np.int64(0)
    for a in range(filled + snapped + how.protected):
        if a < filled:
            key = w.support[a]
        elif a < filled + snapped:
            key = w.old_support[a - filled]
        else:
            key = how.free + a - filled - snapped
        e = touch(t, count, key)
        count += e == count
        if a < filled:
            t.before[e] = w.values[a]
        elif a < filled + snapped:
            t.old[e] = w.old_values[a - filled]
    return count


@helper
def set_law(ints: NDArray[Any], floats: NDArray[Any], how: How, law: Law, t: Entries, count: int, w: Weights) -> None:
    """The multiplier of the noise, the grid of the residuals and their cap, at the public weights."""
    filled = ints[FILLED]
    norm = distance(w.values, w.values, filled, True)
    if not how.reduced:
        place, last = norm * law.places, law.multipliers.shape[0] - 1
        index = np.int64(math.ceil(place)) if place < last else last
        ints[MULTIPLIER], floats[UNIT], floats[CAP] = law.multipliers[index], law.unit, law.caps[index]
        return
    snapped = w.old_support.shape[0]
    apart = distance(t.before, t.old, count, False)
    size = norm + distance(w.old_values, w.old_values, snapped, True)
    share = 0.0
    if apart != 0.0 or not law.slope < math.inf:
        # As ``reduced_share`` of kernels/stochastic.py.
        share = law.slope * (apart + _BLUR * (count + 2.0) * size) + law.grain
        if not share < 1.0:
            share = 1.0
    limit = law.limit * (share / law.reach if share < law.reach else 1.0)
    fraction, exponent = math.frexp(limit)
    unit = math.ldexp(1.0, exponent - (1 if fraction == 0.5 else 0) - law.bits)
    # Below it the roundings of this function are no longer small parts: such a difference is released as zeros.
    if limit == 0.0 or unit < _SMALLEST_UNIT:
        ints[MULTIPLIER], floats[UNIT], floats[CAP] = 0, 1.0, 0.0
        return
    # A part in 2^50 more: the product is rounded.
    multiplier = np.int64(math.ceil(law.noise * share / unit * (1.0 + 2.0**-50)))
    ints[MULTIPLIER], floats[UNIT], floats[CAP] = multiplier, unit, math.floor(limit / unit)


@helper
def add_gradient(
    ints: NDArray[Any], floats: NDArray[Any], how: How, rows: Rows, chosen: NDArray[Any], t: Entries, count: int
) -> int:
    """Add the batch's integer gradients, or differences to those at the snapshot; returns the number of entries."""
    data, places, unit, cap, salt = rows.data, t.places, floats[UNIT], floats[CAP], how.salt
    if salt != 0:
        salt += ints[STEP] * 0x632BE5AB
    for a in range(ints[CHOSEN]):
        i = rows.which[chosen[a]]
        low, high = rows.indptr[i], rows.indptr[i + 1]
        margin = old_margin = 0.0
        for b in range(low, high):
            e = touch(t, count, np.int64(rows.indices[b]))
            count += e == count
            places[b - low] = e
            margin += data[b] * t.before[e]
            old_margin += data[b] * t.old[e]
        length = how.row_unit
        if rows.lengths.shape[0] > 0:
            length *= rows.lengths[i]
        y = rows.y[i]
        # Where nothing but margins is clipped, the label of a difference of squared residuals cancels.
        if how.reduced and rows.loss == SQUARED and rows.lengths.shape[0] == 0:
            y = 0.0
        r = record_residual(rows, i, margin * length, y)
        if how.reduced:
            r -= record_residual(rows, i, old_margin * length, y)
        q = on_grid(r, unit, cap, salt, chosen[a])
        for b in range(low, high):
            t.values[places[b - low]] += q * data[b]
    return count


@njit(cache=True, nogil=True, **OPTIONS)
def add_records_on_grid(
    loss: int,
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    y: NDArray[Any],
    lengths: NDArray[Any],
    which: NDArray[Any],
    margin_bound: float,
    clip: float,
    chosen: NDArray[Any],
    row_unit: float,
    unit: float,
    cap: float,
    salt: int,
    w: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Add the integer gradients at w of the records ``chosen`` to ``out``, of length d; the first are ``Rows``."""
    rows = Rows(loss, data, indices, indptr, y, lengths, which, margin_bound, clip)
    for a in range(chosen.shape[0]):
        i = which[chosen[a]]
        low, high = indptr[i], indptr[i + 1]
        margin, length = 0.0, row_unit
        for b in range(low, high):
            margin += data[b] * w[indices[b]]
        if lengths.shape[0] > 0:
            length *= lengths[i]
        q = on_grid(record_residual(rows, i, margin * length, y[i]), unit, cap, salt, chosen[a])
        for b in range(low, high):
            out[indices[b]] += q * data[b]


@njit(cache=True, nogil=True, **OPTIONS)
def choose_records(
    words: NDArray[Any], ints: NDArray[Any], size: int, rate: float, complement: bool, chosen: NDArray[Any]
) -> int:
    """``draw_batch`` alone."""
    return draw_batch(words, ints, size, rate, complement, chosen)


# --- the largest values ---------------------------------------------------------------------------------------------


@helper
def is_less(value: float, key: int, other: float, other_key: int) -> bool:
    """Whether the first is left out before the second: by |value|, and of equal ones the larger coordinate."""
    return abs(value) < abs(other) or (abs(value) == abs(other) and key > other_key)


@helper
def offer(top: Top, size: int, key: int, value: float) -> int:
    """Put (key, value) among the ``size`` values so far if it belongs there; returns the new size."""
    keys, values, limit = top.keys, top.values, len(top.keys)
    grows = size < limit
    if not grows and not is_less(values[0], keys[0], value, key):
        return size
    # A free place moves up from the end of the heap, or down from its front, past what does not belong beyond it.
    i = size if grows else 0
    while True:
        other = (i - 1) >> 1 if grows else 2 * i + 1
        if other < 0 or other >= limit:
            break
        if not grows and other + 1 < limit and is_less(values[other + 1], keys[other + 1], values[other], keys[other]):
            other += 1
        if is_less(values[other], keys[other], value, key) == grows:
            break
        keys[i], values[i] = keys[other], values[other]
        i = other
    keys[i], values[i] = key, value
    return size + 1 if grows else size


@helper
def next_weight(floats: NDArray[Any], how: How, weight: float, mean: float, total: int) -> float:
    """shrink weight - step_size (mean + the noisy sum as a mean), 0 where this is NaN; only ``total`` is a release."""
    noisy = float(total) * how.row_unit * floats[UNIT] / how.divisor
    value = how.shrink * weight - how.step_size * (mean + noisy)
    return 0.0 if math.isnan(value) else value


@helper
def offer_touched(
    ints: NDArray[Any], floats: NDArray[Any], how: How, t: Entries, m: Means, top: Top, noises: NDArray[Any]
) -> None:
    """Noise on the touched sums, which become next values, of which those that compete are offered."""
    size, limit, noisy = np.int64(0), top.keys.shape[0], ints[MULTIPLIER] > 0
    for e in range(ints[COUNT]):
        key, total = t.keys[e], np.int64(t.values[e])
        if noisy:
            total += noises[e]
        mean = m.values[key] if m.values.shape[0] > 0 else 0.0
        value = next_weight(floats, how, t.before[e], mean, total)
        t.values[e] = value
        if key < how.free and (size < limit or abs(value) >= abs(top.values[0])):
            size = offer(top, size, key, value)
    ints[SIZE] = size


@helper
def chance_above(level: float, mean: float, spread: float) -> float:
    """P(|mean + spread Z| > level)."""
    return 0.5 * (math.erfc((level - mean) / spread / _SQRT_2) + math.erfc((level + mean) / spread / _SQRT_2))


@helper
def usual_level(number: float, spread: float, starts: NDArray[Any], heights: NDArray[Any]) -> float:
    """A level that about ``number`` coordinates exceed. Any level is correct; this one is cheap."""
    low, high = 0.0, heights[0] + 10.0 * spread
    for _ in range(64):
        if starts[-1] <= number or high - low <= 0.02 * spread:
            break
        middle = 0.5 * (low + high)
        expected, upper, start = 0.0, 0.0, starts[0]
        for b in range(starts.shape[0]):
            lower, end = chance_above(middle, heights[b], spread), starts[b]
            expected += (end - start) * 0.5 * (upper + lower)
            upper, start = lower, end
        if expected > number:
            low = middle
        else:
            high = middle
    return low


@helper
def set_reach(ints: NDArray[Any], floats: NDArray[Any], how: How, m: Means, top: Top) -> None:
    """The level T of |value| above which all untouched coordinates are found; 0 where all of them are drawn."""
    ints[BUCKET], ints[POSITION], ints[VISITED], ints[LEVEL], ints[FOUND] = 0, m.starts[0], 0, -1, 0
    floats[REACH] = 0.0
    if ints[MULTIPLIER] == 0:
        return
    spread = ints[MULTIPLIER] * how.row_unit * floats[UNIT] / how.divisor
    if abs(spread - floats[USUAL_SPREAD]) > 0.005 * spread:
        floats[USUAL], floats[USUAL_SPREAD] = usual_level(how.number, spread, m.starts, m.heights), spread
    floats[REACH] = how.step_size * floats[USUAL]
    if ints[SIZE] == top.keys.shape[0] and abs(top.values[0]) > floats[REACH]:
        floats[REACH] = abs(top.values[0])


@helper
def bucket_level(ints: NDArray[Any], floats: NDArray[Any], how: How, height: float) -> int:
    """The largest c such that |Z| < c/32 leaves |value| below T in a bucket of this height; 0 draws all of it.

    |Z| < c/32 rounds to at most M c/32 + 1/2 <= x - 1/2, x being the units of noise from the height to T, less a part
    in 1e12 for rounding errors.
    """
    x = (floats[REACH] * (1.0 - 1e-12) / how.step_size - height) * how.divisor / how.row_unit / floats[UNIT]
    level = 32.0 * (x - 1.0) / ints[MULTIPLIER]
    if not level >= 1.0:
        return 0
    whole: Any = np.int64(math.floor(level)) if level < LAST else LAST
    return whole


@helper
def offer_hidden(
    words: NDArray[Any], ints: NDArray[Any], floats: NDArray[Any], how: How, sampler: Sampler, t: Entries, m: Means,
    top: Top, found: NDArray[Any], levels: NDArray[Any],
) -> int:  # fmt: skip
    """Offer the untouched coordinates that can reach T, bucket by bucket; ``found`` lists them, for COMPLETE."""
    size, limit = ints[SIZE], top.keys.shape[0]
    while ints[BUCKET] < m.starts.shape[0] - 1:
        b = ints[BUCKET]
        place, end = ints[POSITION], m.starts[b + 1]
        if ints[MULTIPLIER] == 0:
            # Values are known. Later buckets are lower.
            if m.values.shape[0] == 0 or (size == limit and how.step_size * m.heights[b] < abs(top.values[0])):
                break
        elif ints[LEVEL] < 0:
            levels[b] = ints[LEVEL] = bucket_level(ints, floats, how, m.heights[b])
        level = ints[LEVEL]
        while place < end:
            if ints[VISITED] == 0 and level > 0:
                if ints[PENDING] == 0:
                    status = draw_gap(words, ints, sampler.rates[level], end - place)
                    if status != DONE:
                        ints[POSITION], ints[SIZE] = place, size
                        return status
                ints[PENDING] = 0
                place += ints[NUMBER]
                if place >= end:
                    break
            key = m.ranked[place] if m.ranked.shape[0] > 0 else place
            if touch(t, -1, key) < 0:
                if ints[MULTIPLIER] == 0:
                    ints[NUMBER] = 0
                elif ints[PENDING] == 0:
                    status = ROOM
                    if ints[FOUND] < found.shape[0]:
                        status = draw_in_cells(words, ints, sampler, level)
                    if status != DONE:
                        ints[POSITION], ints[SIZE], ints[VISITED] = place, size, 1
                        return status
                ints[PENDING] = 0
                mean = m.values[key] if m.values.shape[0] > 0 else 0.0
                size = offer(top, size, key, next_weight(floats, how, 0.0, mean, ints[NUMBER]))
                if floats[REACH] > 0.0:
                    found[ints[FOUND]] = key
                    ints[FOUND] += 1
            ints[VISITED] = 0
            place += 1
        ints[BUCKET], ints[POSITION], ints[LEVEL] = b + 1, end, -1
    ints[SIZE] = size
    return DONE


@helper
def sift_down(top: Top, i: int, end: int) -> None:
    """Restore the heap of coordinates, the largest in front, below place i of the first ``end``."""
    keys, values = top.keys, top.values
    key, value = keys[i], values[i]
    while 2 * i + 1 < end:
        child = 2 * i + 1
        if child + 1 < end and keys[child + 1] > keys[child]:
            child += 1
        if keys[child] <= key:
            break
        keys[i], values[i] = keys[child], values[child]
        i = child
    keys[i], values[i] = key, value


@helper
def close(ints: NDArray[Any], how: How, t: Entries, top: Top, w: Weights, iterates: NDArray[Any]) -> None:
    """The new iterate: the values of the top that are not 0, by coordinate, and the protected coordinates."""
    size, filled = ints[SIZE], np.int64(0)
    for a in range(size // 2 - 1, -1, -1):
        sift_down(top, a, size)
    for a in range(size - 1, 0, -1):
        key, value = top.keys[a], top.values[a]
        top.keys[a], top.values[a] = top.keys[0], top.values[0]
        top.keys[0], top.values[0] = key, value
        sift_down(top, 0, a)
    for a in range(size):
        if top.values[a] != 0.0:
            w.support[filled], w.values[filled] = top.keys[a], top.values[a]
            filled += 1
    for j in range(how.free, how.free + how.protected):
        w.support[filled], w.values[filled] = j, t.values[touch(t, -1, j)]
        filled += 1
    ints[FILLED] = filled
    if iterates.shape[0] > 0:
        row = iterates[ints[STEP]]
        for j in range(row.shape[0]):
            row[j] = 0.0
        for a in range(filled):
            row[w.support[a]] = w.values[a]


@helper
def make_steps(
    words: NDArray[Any], ints: NDArray[Any], floats: NDArray[Any], last: int, how: How, law: Law, rows: Rows,
    sampler: Sampler, t: Entries, means: Means, top: Top, w: Weights, room: Room,
) -> int:  # fmt: skip
    """Steps up to number ``last``, as far as the words and certain decisions go; returns a status."""
    while ints[STEP] < last:
        phase = ints[PHASE]
        if phase == BATCH:
            status = draw_batch(words, ints, how.size, how.rate, how.complement, room.chosen)
            if status != DONE:
                return status
            count = touch_weights(ints, how, rows, room.chosen, t, w)
            set_law(ints, floats, how, law, t, count, w)
            ints[COUNT] = add_gradient(ints, floats, how, rows, room.chosen, t, count)
            ints[SIZE] = ints[POSITION] = 0
            ints[PHASE] = NOISE
        elif phase == NOISE:
            if ints[MULTIPLIER] > 0:
                status = draw_normals(words, ints, sampler, room.noises, ints[COUNT])
                if status != DONE:
                    return status
            offer_touched(ints, floats, how, t, means, top, room.noises)
            set_reach(ints, floats, how, means, top)
            ints[PHASE] = HIDDEN
        elif phase == HIDDEN:
            status = offer_hidden(words, ints, floats, how, sampler, t, means, top, room.found, room.levels)
            if status != DONE:
                return status
            ints[PHASE] = CLOSE
            if floats[REACH] > 0.0 and (ints[SIZE] < top.keys.shape[0] or abs(top.values[0]) < floats[REACH]):
                return COMPLETE
        else:
            close(ints, how, t, top, w, room.iterates)
            ints[POSITION] = 0
            ints[STEP] += 1
            ints[PHASE] = BATCH
    return DONE


@njit(cache=True, nogil=True, **OPTIONS)
def advance(
    words: NDArray[Any],
    ints: NDArray[Any],
    floats: NDArray[Any],
    last: int,
    whole: NDArray[Any],
    real: NDArray[Any],
    multipliers: NDArray[Any],
    caps: NDArray[Any],
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    y: NDArray[Any],
    lengths: NDArray[Any],
    which: NDArray[Any],
    keep: NDArray[Any],
    alias: NDArray[Any],
    quick: NDArray[Any],
    logs: NDArray[Any],
    prefix: NDArray[Any],
    rates: NDArray[Any],
    marks: NDArray[Any],
    table: NDArray[Any],
    keys: NDArray[Any],
    before: NDArray[Any],
    old: NDArray[Any],
    values: NDArray[Any],
    places: NDArray[Any],
    means: NDArray[Any],
    ranked: NDArray[Any],
    starts: NDArray[Any],
    heights: NDArray[Any],
    top_keys: NDArray[Any],
    top_values: NDArray[Any],
    support: NDArray[Any],
    weights: NDArray[Any],
    old_support: NDArray[Any],
    old_weights: NDArray[Any],
    chosen: NDArray[Any],
    noises: NDArray[Any],
    found: NDArray[Any],
    levels: NDArray[Any],
    iterates: NDArray[Any],
) -> int:
    """``make_steps`` with the members of all tuples one by one, as ``flat`` orders them.

    For tuples Numba finds out the types again in every call, which takes longer than a step.
    """
    how = How(
        whole[0] != 0, whole[1], real[0], whole[2] != 0, real[1], real[2], real[3], real[4], whole[3], whole[4],
        real[5], whole[5],
    )  # fmt: skip
    law = Law(multipliers, caps, real[6], real[7], real[8], real[9], real[10], whole[6], real[11], real[12])
    rows = Rows(whole[7], data, indices, indptr, y, lengths, which, real[13], real[14])
    sampler = Sampler(keep, alias, quick, logs, prefix, rates, real[15])
    return make_steps(
        words, ints, floats, last, how, law, rows, sampler, Entries(marks, table, keys, before, old, values, places),
        Means(means, ranked, starts, heights), Top(top_keys, top_values),
        Weights(support, weights, old_support, old_weights), Room(chosen, noises, found, levels, iterates),
    )  # fmt: skip


def flat(how: How, law: Law, rows: Rows, sampler: Sampler) -> tuple[Any, ...]:
    """The arguments of ``advance`` that are the same in all of its calls."""
    whole = np.array(
        [how.reduced, how.size, how.complement, how.free, how.protected, how.salt, law.bits, rows.loss], np.int64
    )
    real = np.array([
        how.rate, how.divisor, how.step_size, how.shrink, how.row_unit, how.number, law.unit, law.places, law.noise,
        law.limit, law.reach, law.slope, law.grain, rows.margin_bound, rows.clip, sampler.margin,
    ])  # fmt: skip
    return whole, real, law.multipliers, law.caps, *rows[1:7], *sampler[:6]
