"""Stochastic hard thresholding whose steps do not touch the coordinates that cannot matter.

After a mini-batch gradient only the coordinates in A = support(w) u support(snapshot) u features of the batch have a
mean that depends on the batch. The others have a known mean and independent Gaussian noise, of which only the values
that enter the top k matter; those are drawn, the others are not. The law of the new iterate is exactly that of adding
noise to all d coordinates and thresholding.

Noise is added to the gradient before anything else is (``next_weight``); the public parts, which are the weights, their
L2 term and the snapshot's mean, come after it. If a gradient were first added to large weights, it would be rounded to
their last bit, which may be more than the noise hides. The same order is used outside A, so that both kinds of
coordinates have the same last bits.

Plain steps (``sgd_steps``): outside A all noisy gradients are iid N(0, s^2). Their order statistics are drawn from the
top down, each at a uniformly random unused place, until one falls below the k-th largest so far. Cost
O(|A| + k log k), nothing of length d.

Variance-reduced steps (``reduced_steps``): outside A coordinate j is N(a_j, s^2). The means a are fixed for an epoch,
and are put into buckets by |a_j| once an epoch. Given a level t, the coordinates with |value| > t are found by
thinning: geometric skips visit each member of a bucket with the bucket's largest probability of exceeding t, and a
visited member is accepted with its own probability over that largest one. If fewer than k values in all reach the
level, the others are drawn from their law given that they are below it. Cost O(|A| + k log k + buckets) a step.

Constructs that compile slowly are avoided: room is allocated by NumPy, before the compiled code (``sgd_steps`` calls
``compiled_sgd_steps``); min, max, int and powers are written out. Each would be compiled before the first fit.

Long because a kernel and all helpers that it calls must be in one file: Numba's cache does not notice edits
elsewhere.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import register_jitable
from numpy.typing import NDArray

SQUARED, LOGISTIC, HUBER, HINGE = 0, 1, 2, 4
# The smoothed hinge is rounded over this much of its margin (losses.HINGE_WIDTH).
_WIDTH = 0.5
_SQRT_2 = math.sqrt(2.0)
_DENSITY = 1 / math.sqrt(2 * math.pi)
# Doubles from a Generator are multiples of 2^-53.
_UNIT = 2.0**53
# A uniform number below this is drawn again on its own scale, where it has all its bits.
_SHORT = 2.0**-20
# A bound, with a factor 2 to spare, on the rounding error of a sum of products, per product and per unit of the two
# vectors' norms; also on that of a residual.
_BLUR = 4e-16


# A helper is compiled into its callers, and is plain Python when called from Python. A compiled entry point for every
# helper, which unpacks arrays from their Python objects, would double what is compiled before the first fit.
helper = register_jitable(error_model="numpy", no_cfunc_wrapper=True)


class Records(NamedTuple):
    """Bounded rows in CSR form, with what their gradients need; ``order`` is a permutation of the rows."""

    loss: int
    data: NDArray[Any]
    indices: NDArray[Any]
    indptr: NDArray[Any]
    y: NDArray[Any]
    margin_bound: float
    caps: NDArray[Any]
    order: NDArray[Any]


class Entries(NamedTuple):
    """The touched coordinates: entry e is coordinate keys[e], with weight before[e], and old[e] at the snapshot.

    values[e] is its gradient sum, until ``offer_touched`` replaces it by the next weight.

    ``table`` is an open hash table of base + e; numbers below the base of the current step count as empty, so the table
    is never cleared. ``marks`` is (base, mask): of the table the slots 0..mask are in use, a power of two that is at
    least twice the number of entries. ``places`` holds the entries of one row.
    """

    marks: NDArray[Any]
    table: NDArray[Any]
    keys: NDArray[Any]
    before: NDArray[Any]
    old: NDArray[Any]
    values: NDArray[Any]
    places: NDArray[Any]


class Top(NamedTuple):
    """The largest values so far and their coordinates: a heap with the smallest |value| in front."""

    keys: NDArray[Any]
    values: NDArray[Any]


@helper
def clipped(value: float, low: float, high: float) -> float:
    """The value, or the end of the range that it exceeds. NaN stays NaN, which min and max do not promise."""
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
def clipped_residual(loss: int, margin: float, y: float, margin_bound: float, cap: float) -> float:
    """The residual after clipping the margin and then the residual; 0 for a margin that overflowed to NaN."""
    if math.isnan(margin):
        return 0.0
    return clipped(residual(loss, clipped(margin, -margin_bound, margin_bound), y), -cap, cap)


# --- uniform integers, normal tails ------------------------------------------------------------------


@helper
def uniform_below(rng: Any, n: int) -> int:
    """A uniform integer in 0..n-1, without bias; Generator.integers does the same but compiles a second longer."""
    fair = 9007199254740992 // n * n
    draw: Any = np.int64(rng.random() * _UNIT)
    while draw >= fair:
        draw = np.int64(rng.random() * _UNIT)
    return draw % n


@helper
def lengthened(rng: Any, u: float) -> float:
    """A uniform number u with as many bits as it needs: one below _SHORT is _SHORT times a fresh one, and so on."""
    scale = 1.0
    while u < _SHORT and scale > 1e-290:
        scale *= _SHORT
        u = rng.random()
    # 0 has no logarithm, and becomes 1e-300: numbers this small need not be told apart.
    long = scale * u
    return long if long > 1e-300 else 1e-300


@helper
def log_uniform(rng: Any) -> float:
    """log U for a uniform U, with all its digits both for U near 0 and for U near 1."""
    u = rng.random()
    return math.log(lengthened(rng, u)) if u < 0.5 else math.log1p(-lengthened(rng, u - 0.5))


@helper
def coin(rng: Any, chance: float) -> bool:
    """True with this probability, however small it is: a small one is reduced by 20 bits at a time."""
    while chance < _SHORT:
        if chance <= 0.0 or rng.random() >= _SHORT:
            return False
        chance /= _SHORT
    return rng.random() < chance


@helper
def tail(x: float) -> float:
    """P(Z > x)."""
    return 0.5 * math.erfc(x / _SQRT_2)


@helper
def tail_quantile(p: float) -> float:
    """The x with P(Z > x) = p: a starting value, then Newton steps on the logarithm, which converge far out too."""
    small = 1.0 - p if 1.0 - p < p else p
    if small < 1e-300:
        small = 1e-300
    q = math.sqrt(-2.0 * math.log(small))
    x = q - (2.515517 + q * (0.802853 + q * 0.010328)) / (1.0 + q * (1.432788 + q * (0.189269 + q * 0.001308)))
    for _ in range(2):
        above = tail(x)
        x += math.log(above / small) * above / (_DENSITY * math.exp(-0.5 * x * x))
    return x if p <= 0.5 else -x


# --- touched coordinates ---------------------------------------------------------------------------


def make_entries(capacity: int, longest: int | None = None) -> Entries:
    """Room for ``capacity`` coordinates and for rows of ``longest`` entries; memory that is never used stays untouched.

    The first slots in use are few, so that the table stays in the cache while batches are small.
    """
    slots = 512
    while slots < 2 * capacity:
        slots *= 2
    marks, table = np.array([1, 511], np.int64), np.zeros(slots, np.int64)
    keys, places = np.empty(capacity, np.int64), np.empty(longest or capacity, np.int64)
    return Entries(marks, table, keys, np.empty(capacity), np.empty(capacity), np.empty(capacity), places)


def make_room(rows: Records, sizes: NDArray[Any], others: int, width: int, sparsity: int) -> tuple[Entries, Top]:
    """Room for the features of the largest batch and for ``others``, and for the largest values."""
    longest = int(np.diff(rows.indptr).max(initial=1))
    capacity = min(width, longest * int(sizes.max(initial=0)) + others)
    return make_entries(capacity, longest), Top(np.empty(sparsity, np.int64), np.empty(sparsity))


@helper
def first_slot(key: int, mask: int) -> int:
    """The slot at which the search for ``key`` begins."""
    slot: Any = np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20))
    return slot & mask


@helper
def find(t: Entries, key: int) -> int:
    """Slot of ``key``: where it is, or the empty slot where it belongs."""
    table, keys, base, mask = t.table, t.keys, t.marks[0], t.marks[1]
    slot = first_slot(key, mask)
    while table[slot] >= base and keys[table[slot] - base] != key:
        slot = (slot + 1) & mask
    return slot


@helper
def is_touched(t: Entries, key: int) -> bool:
    """Whether the coordinate has an entry."""
    return t.table[find(t, key)] >= t.marks[0]


@helper
def touch(t: Entries, count: int, key: int) -> int:
    """The entry of ``key``; a new one becomes number ``count``, with weights and value 0."""
    slot, base = find(t, key), t.marks[0]
    if t.table[slot] < base:
        t.table[slot] = base + count
        t.keys[count], t.before[count], t.old[count], t.values[count] = key, 0.0, 0.0, 0.0
    return t.table[slot] - base


@helper
def next_batch(rng: Any, rows: Records, size: int, others: int, t: Entries) -> None:
    """Put ``size`` rows, uniform without replacement, at the front of the order.

    The entries become empty, with slots in use for the features of these rows and ``others``.
    """
    order, indptr, slots = rows.order, rows.indptr, 2 * others
    n = order.shape[0]
    for a in range(size):
        b = a + uniform_below(rng, n - a)
        i = order[b]
        order[b] = order[a]
        order[a] = i
        slots += 2 * (indptr[i + 1] - indptr[i])
    t.marks[0] += t.keys.shape[0]
    while t.marks[1] < slots and t.marks[1] + 1 < t.table.shape[0]:
        t.marks[1] = 2 * t.marks[1] + 1


@helper
def touch_weights(
    t: Entries, support: NDArray[Any], weights: NDArray[Any], snap_support: NDArray[Any],
    snap_weights: NDArray[Any], free: int, protected: int,
) -> tuple[int, float]:
    """Enter the weights, the snapshot and the protected coordinates; returns (number of entries, |w - snapshot|)."""
    count: Any = np.int64(0)
    for a in range(support.shape[0]):
        e = touch(t, count, support[a])
        count += e == count
        t.before[e] = weights[a]
    for a in range(snap_support.shape[0]):
        e = touch(t, count, snap_support[a])
        count += e == count
        t.old[e] = snap_weights[a]
    for j in range(free, free + protected):
        count += touch(t, count, j) == count
    return count, distance(t.before, t.old, count)


@helper
def distance(one: NDArray[Any], two: NDArray[Any], count: int) -> float:
    """The norm of one - two over the first ``count`` entries; 0 only where they are equal."""
    square, largest = 0.0, 0.0
    for e in range(count):
        gap = abs(one[e] - two[e])
        square += gap * gap
        if gap > largest:
            largest = gap
    if square < 1e-280 and largest > 0.0:
        # Squares that underflow: in units of the largest.
        square = 0.0
        for e in range(count):
            gap = (one[e] - two[e]) / largest
            square += gap * gap
        return largest * math.sqrt(square)
    return math.sqrt(square)


@helper
def residual_change(
    loss: int, margin: float, old_margin: float, y: float, margin_bound: float, cap: float
) -> float:
    """The clipped residual minus that at the old margin.

    For the squared loss, if only margins are clipped, the label cancels and is left out of the computation: next to a
    large label a small difference of margins would be lost, or would be rounded to the label's last bit.
    """
    if loss == SQUARED and cap == math.inf:
        new = 0.0 if math.isnan(margin) else clipped(margin, -margin_bound, margin_bound)
        old = 0.0 if math.isnan(old_margin) else clipped(old_margin, -margin_bound, margin_bound)
        change = new - old
        return 0.0 if math.isnan(change) else change
    return clipped_residual(loss, margin, y, margin_bound, cap) - clipped_residual(
        loss, old_margin, y, margin_bound, cap
    )


@helper
def add_gradient(t: Entries, count: int, rows: Records, size: int, reduced: bool) -> int:
    """Add the batch's gradient sum, less that at the snapshot if ``reduced``; returns the number of entries."""
    marks, table, keys, before, old, values, places = t
    loss, data, indices, indptr, y, margin_bound, caps, order = rows
    base, mask = marks[0], marks[1]
    for a in range(size):
        i = order[a]
        low, high = indptr[i], indptr[i + 1]
        margin, old_margin = 0.0, 0.0
        for b in range(low, high):
            # ``touch`` is inlined here: a call for every entry would spend more time on reference counts of the arrays.
            key = np.int64(indices[b])
            slot = first_slot(key, mask)
            while table[slot] >= base and keys[table[slot] - base] != key:
                slot = (slot + 1) & mask
            if table[slot] < base:
                table[slot] = base + count
                keys[count], before[count], old[count], values[count] = key, 0.0, 0.0, 0.0
                count += 1
            e = table[slot] - base
            places[b - low] = e
            margin += data[b] * before[e]
            old_margin += data[b] * old[e]
        if reduced:
            r = residual_change(loss, margin, old_margin, y[i], margin_bound, caps[i])
        else:
            r = clipped_residual(loss, margin, y[i], margin_bound, caps[i])
        for b in range(low, high):
            values[places[b - low]] += r * data[b]
    return count


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def add_rows(rows: Records, batch: NDArray[Any], w: NDArray[Any], out: NDArray[Any]) -> None:
    """Add the gradients of the chosen rows at w to ``out``: one pass, no copy of the rows."""
    loss, data, indices, indptr, y, margin_bound, caps, _ = rows
    for a in range(batch.shape[0]):
        i = batch[a]
        margin = 0.0
        for b in range(indptr[i], indptr[i + 1]):
            margin += data[b] * w[indices[b]]
        r = clipped_residual(loss, margin, y[i], margin_bound, caps[i])
        for b in range(indptr[i], indptr[i + 1]):
            out[indices[b]] += r * data[b]


# --- the k largest values -----------------------------------------------------------------------------


@helper
def offer(top: Top, size: int, key: int, value: float) -> int:
    """Put (key, value) among the ``size`` values so far if it belongs there; returns the new size."""
    keys, values = top.keys, top.values
    limit = keys.shape[0]
    if size < limit:
        i = size
        while i > 0 and abs(values[(i - 1) // 2]) > abs(value):
            keys[i], values[i] = keys[(i - 1) // 2], values[(i - 1) // 2]
            i = (i - 1) // 2
        keys[i], values[i] = key, value
        return size + 1
    if abs(value) <= abs(values[0]):
        return size
    i = 0
    while 2 * i + 1 < limit:
        child = 2 * i + 1
        if child + 1 < limit and abs(values[child + 1]) < abs(values[child]):
            child += 1
        if abs(value) <= abs(values[child]):
            break
        keys[i], values[i] = keys[child], values[child]
        i = child
    keys[i], values[i] = key, value
    return size


@helper
def next_weight(weight: float, mean: float, noisy: float, step_size: float, shrink: float) -> float:
    """shrink weight - step_size (mean + noisy), where only ``noisy`` depends on the data; 0 where this is NaN."""
    value = shrink * weight - step_size * (mean + noisy)
    return 0.0 if math.isnan(value) else value


@helper
def offer_touched(
    rng: Any, spread: float, batch: float, step_size: float, shrink: float, means: NDArray[Any], t: Entries, count: int,
    free: int, top: Top,
) -> tuple[int, int]:
    """Turn the touched gradient sums into noisy means and these into next values, and offer those that compete.

    Returns (how many compete, size).
    """
    keys, before, values, smallest, limit = t.keys, t.before, t.values, top.values, top.keys.shape[0]
    inside: Any = np.int64(0)
    size: Any = np.int64(0)
    for e in range(count):
        noisy = values[e] / batch
        if spread > 0.0:
            noisy += spread * rng.standard_normal()
        values[e] = next_weight(before[e], means[keys[e]] if means.shape[0] > 0 else 0.0, noisy, step_size, shrink)
        if keys[e] < free:
            inside += 1
            if size < limit or abs(values[e]) > abs(smallest[0]):
                size = offer(top, size, keys[e], values[e])
    return inside, size


@helper
def write_back(
    t: Entries, top: Top, size: int, free: int, protected: int, support: NDArray[Any], weights: NDArray[Any]
) -> int:
    """The new iterate: the top and the protected coordinates. Returns its number of places."""
    for a in range(size):
        support[a], weights[a] = top.keys[a], top.values[a]
    for j in range(protected):
        support[size + j], weights[size + j] = free + j, t.values[t.table[find(t, free + j)] - t.marks[0]]
    return size + protected


@helper
def write_dense(support: NDArray[Any], weights: NDArray[Any], filled: int, out: NDArray[Any]) -> None:
    """The iterate as a vector."""
    for j in range(out.shape[0]):
        out[j] = 0.0
    for a in range(filled):
        out[support[a]] = weights[a]


# --- plain steps ---------------------------------------------------------------------------------------


@helper
def share_at(shares: NDArray[Any], shares_per_unit: float, norm: float) -> float:
    """The share of the noise at |w| = ``norm``, as in NoiseLaw.share; for NaN the last share, which is the largest."""
    place, last = norm * shares_per_unit, shares.shape[0] - 1
    return shares[math.ceil(place)] if place < last else shares[last]


@helper
def offer_iid(
    rng: Any, spread: float, step_size: float, free: int, inside: int, t: Entries, count: int, top: Top, size: int
) -> int:
    """Offer the largest of the ``free - inside`` untouched coordinates, whose noisy gradients are N(0, spread^2).

    Returns the new size.
    """
    limit = top.keys.shape[0]
    log_below = 0.0
    # At most ``limit`` of them can enter, since they come in falling order.
    for i in range(limit if limit < free - inside else free - inside):
        # log P(|Z| < this order statistic)
        log_below += log_uniform(rng) / (free - inside - i)
        noisy = spread * tail_quantile(-0.5 * math.expm1(log_below))
        if size == limit and step_size * noisy <= abs(top.values[0]):
            break
        key = uniform_below(rng, free)
        while is_touched(t, key):
            key = uniform_below(rng, free)
        count += touch(t, count, key) == count
        size = offer(top, size, key, next_weight(0.0, 0.0, noisy if rng.random() < 0.5 else -noisy, step_size, 1.0))
    return size


def sgd_steps(
    rng: Any, sizes: NDArray[Any], rows: Records, batch: float, step_size: float, l2: float, scale: float,
    shares: NDArray[Any], shares_per_unit: float, free: int, protected: int, sparsity: int, support: NDArray[Any],
    weights: NDArray[Any], filled: int, iterates: Any = None,
) -> int:
    """One lazy step of DP-SGD-HT per batch size.

    ``support`` and ``weights`` hold the iterate in their first ``filled`` places; returns the new ``filled``.
    Coordinates 0..free-1 compete for ``sparsity`` places, ``protected`` more at the end are always kept. The batch sum
    is divided by ``batch``, the EXPECTED size, whatever the realised ``sizes``. At |w| the noise is ``scale`` times
    shares[ceil(|w| shares_per_unit)], the last share beyond the end. ``iterates``, if given, gets a row of weights a
    step; without it nothing of the kind is compiled.
    """
    room = make_room(rows, sizes, 2 * sparsity + 2 * protected, free + protected, sparsity)
    nothing = np.empty(0, np.int64), np.empty(0)
    return compiled_sgd_steps(
        rng, sizes, rows, batch, step_size, l2, scale, shares, shares_per_unit, free, protected, *room, *nothing,
        support, weights, filled, iterates,
    )


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def compiled_sgd_steps(
    rng: Any, sizes: NDArray[Any], rows: Records, batch: float, step_size: float, l2: float, scale: float,
    shares: NDArray[Any], shares_per_unit: float, free: int, protected: int, t: Entries, top: Top,
    no_support: NDArray[Any], no_weights: NDArray[Any], support: NDArray[Any], weights: NDArray[Any], filled: int,
    iterates: Any,
) -> int:
    """``sgd_steps`` in room that the caller has made."""
    shrink, sparsity = 1.0 - step_size * l2, top.keys.shape[0]
    for step in range(sizes.shape[0]):
        batch_size = sizes[step]
        next_batch(rng, rows, batch_size, filled + protected + sparsity, t)
        count, norm = touch_weights(t, support[:filled], weights[:filled], no_support, no_weights, free, protected)
        count = add_gradient(t, count, rows, batch_size, False)
        spread = scale * share_at(shares, shares_per_unit, norm)
        inside, size = offer_touched(rng, spread, batch, step_size, shrink, no_weights, t, count, free, top)
        if spread > 0.0:
            size = offer_iid(rng, spread, step_size, free, inside, t, count, top, size)
        filled = write_back(t, top, size, free, protected, support, weights)
        if iterates is not None:
            write_dense(support, weights, filled, iterates[step])
    return filled


def sgd_trials(
    rng: Any, counter: NDArray[Any], flags: NDArray[Any], first: int, bits: NDArray[Any], one: Records, two: Records,
    rate: float, sizes: NDArray[Any], batch: float, step_size: float, l2: float, scale: float, shares: NDArray[Any],
    shares_per_unit: float, free: int, protected: int, sparsity: int, finals: NDArray[Any], iterates: Any = None,
) -> None:
    """Trials first, first + 1, ...: a fit on ``one`` where the bit is 1, on ``two`` where it is 0.

    ``counter`` and ``flags`` are the memory of ``rng``, a Philox generator: each trial starts at its own place, exactly
    as audit.streams.seek does it. Batch sizes are ``sizes``, or with a positive ``rate`` binomial, drawn first.
    ``finals`` gets a row of weights a trial; ``iterates``, if given, those of every step.
    """
    # Batches of a random size have at most all rows.
    largest = sizes if rate == 0.0 else np.array([one.order.shape[0]])
    others, width = 2 * sparsity + 2 * protected, free + protected
    longer = max(one, two, key=lambda rows: int(np.diff(rows.indptr).max(initial=1)))
    room = make_room(longer, largest, others, width, sparsity)
    places = np.empty(sparsity + protected, np.int64), np.empty(sparsity + protected)
    compiled_sgd_trials(
        rng, counter, flags, first, bits, one, two, rate, sizes, batch, step_size, l2, scale, shares, shares_per_unit,
        free, protected, *room, np.empty(0, np.int64), np.empty(0), *places, finals, iterates,
    )


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def compiled_sgd_trials(
    rng: Any, counter: NDArray[Any], flags: NDArray[Any], first: int, bits: NDArray[Any], one: Records, two: Records,
    rate: float, sizes: NDArray[Any], batch: float, step_size: float, l2: float, scale: float, shares: NDArray[Any],
    shares_per_unit: float, free: int, protected: int, t: Entries, top: Top, no_support: NDArray[Any],
    no_weights: NDArray[Any], support: NDArray[Any], weights: NDArray[Any], finals: NDArray[Any], iterates: Any,
) -> None:
    """``sgd_trials`` in room that the caller has made."""
    n = one.order.shape[0]
    for i in range(bits.shape[0]):
        counter[0], counter[1], counter[2], counter[3] = 0, first + i, 0, 0
        flags[0], flags[10] = 4, 0
        rows = one if bits[i] == 1 else two
        for a in range(n):
            rows.order[a] = a
        if rate > 0.0:
            for step in range(sizes.shape[0]):
                sizes[step] = rng.binomial(n, rate)
        if iterates is not None:
            filled = compiled_sgd_steps(
                rng, sizes, rows, batch, step_size, l2, scale, shares, shares_per_unit, free, protected, t, top,
                no_support, no_weights, support, weights, 0, iterates[i],
            )
        else:
            filled = compiled_sgd_steps(
                rng, sizes, rows, batch, step_size, l2, scale, shares, shares_per_unit, free, protected, t, top,
                no_support, no_weights, support, weights, 0, None,
            )
        write_dense(support, weights, filled, finals[i])


# --- variance-reduced steps ---------------------------------------------------------------------------


@helper
def chance_above(level: float, mean: float, spread: float) -> float:
    """P(|mean + spread Z| > level)."""
    return tail((level - mean) / spread) + tail((level + mean) / spread)


@helper
def noise_above(rng: Any, level: float, mean: float, spread: float) -> float:
    """spread Z given that mean + spread Z lies outside [-level, level]."""
    up, down = tail((level - mean) / spread), tail((level + mean) / spread)
    # The lower tail is the upper tail of the mirror image. The coin is tossed for the less likely tail, which keeps all
    # its digits.
    upper = not coin(rng, down / (up + down)) if down < up else coin(rng, up / (up + down))
    z = tail_quantile((up if upper else down) * lengthened(rng, rng.random()))
    return spread * z if upper else -spread * z


@helper
def noise_within(rng: Any, level: float, mean: float, spread: float) -> float:
    """spread Z given that mean + spread Z lies in [-level, level].

    Z is drawn by its tail probability, which has all its digits in both tails.
    """
    # Mirrored so that the interval is [-left, right] with left >= 0, in units of the spread.
    sign, centre = (1.0, mean) if mean >= 0 else (-1.0, -mean)
    left, right = (level + centre) / spread, (level - centre) / spread
    end = tail(left)
    if right <= 0.0:
        start = tail(-right)
        return -sign * spread * tail_quantile(end + (start - end) * lengthened(rng, rng.random()))
    below, above = math.erf(left / _SQRT_2), math.erf(right / _SQRT_2)
    if coin(rng, above / (below + above)):
        sign, end = -sign, tail(right)
    return -sign * spread * tail_quantile(end + (0.5 - end) * lengthened(rng, rng.random()))


@helper
def expected_above(level: float, spread: float, starts: NDArray[Any], heights: NDArray[Any]) -> float:
    """About how many coordinates exceed the level: for a bucket, the mean of its largest and smallest probability."""
    total, upper = 0.0, chance_above(level, heights[0], spread)
    for b in range(starts.shape[0] - 1):
        lower = chance_above(level, heights[b + 1], spread)
        total += (starts[b + 1] - starts[b]) * 0.5 * (upper + lower)
        upper = lower
    return total


@helper
def choose_level(number: float, spread: float, starts: NDArray[Any], heights: NDArray[Any]) -> float:
    """A level that about ``wanted`` coordinates exceed. Any level is correct; this one is cheap."""
    low, high = 0.0, heights[0] + 10.0 * spread
    for _ in range(64):
        if high - low <= 0.02 * spread:
            break
        middle = 0.5 * (low + high)
        if expected_above(middle, spread, starts, heights) > number:
            low = middle
        else:
            high = middle
    return low


@helper
def offer_means(
    rng: Any, level: float, spread: float, step_size: float, free: int, means: NDArray[Any], ranked: NDArray[Any],
    starts: NDArray[Any], heights: NDArray[Any], t: Entries, count: int, top: Top, size: int,
) -> int:
    """Offer all untouched coordinates, of noisy gradients N(a_j, spread^2), that can enter; returns the new size.

    Bucket b is ranked[starts[b]:starts[b+1]], with means of at most heights[b]. The law is the same for any level.
    """
    if size == top.keys.shape[0]:
        # A little lower, so that rounding excludes no coordinate that could enter.
        reached = abs(top.values[0]) / step_size * (1.0 - 1e-14)
        level = reached if reached > level else level
    for b in range(starts.shape[0] - 1):
        ceiling = chance_above(level, heights[b], spread)
        ceiling = 1.0 if ceiling > 1.0 else ceiling
        if ceiling <= 0.0:
            continue
        log_miss = math.log1p(-ceiling) if ceiling < 1.0 else -math.inf
        place = starts[b]
        while True:
            # Skip to the next member whose coin of probability ``ceiling`` shows heads.
            skip = log_uniform(rng) / log_miss
            if not skip < starts[b + 1] - place:
                break
            place += np.int64(skip)
            j = ranked[place]
            place += 1
            hit = coin(rng, chance_above(level, means[j], spread) / ceiling)
            if hit and not is_touched(t, j):
                noisy = noise_above(rng, level, means[j], spread)
                size = offer(top, size, j, next_weight(0.0, means[j], noisy, step_size, 1.0))
    if size < top.keys.shape[0] or abs(top.values[0]) < step_size * level * (1.0 - 1e-13):
        size = complete_below(rng, level, spread, step_size, free, means, t, count, top, size)
    return size


@helper
def complete_below(
    rng: Any, level: float, spread: float, step_size: float, free: int, means: NDArray[Any], t: Entries, count: int,
    top: Top, size: int,
) -> int:
    """Offer all other untouched coordinates, drawn from their law below the level, in O(d); returns the new size.

    It is called when fewer than k values reach the level, so all untouched coordinates that do are in the top; they get
    entries, so that they are not drawn again.
    """
    for a in range(size):
        count += touch(t, count, top.keys[a]) == count
    for j in range(free):
        if not is_touched(t, j):
            noisy = noise_within(rng, level, means[j], spread)
            size = offer(top, size, j, next_weight(0.0, means[j], noisy, step_size, 1.0))
    return size


@helper
def offer_exact(
    step_size: float, means: NDArray[Any], ranked: NDArray[Any], starts: NDArray[Any], heights: NDArray[Any],
    t: Entries, top: Top, size: int,
) -> int:
    """For steps without noise: offer the untouched means, bucket by bucket, until none can enter; returns the size."""
    for b in range(starts.shape[0] - 1):
        for a in range(starts[b], starts[b + 1]):
            if size == top.keys.shape[0] and step_size * heights[b] <= abs(top.values[0]):
                return size
            if not is_touched(t, ranked[a]):
                size = offer(top, size, ranked[a], next_weight(0.0, means[ranked[a]], 0.0, step_size, 1.0))
    return size


@helper
def reduced_share(slope: float, grain: float, apart: float, size: float, places: int) -> float:
    """min(1, slope |w - snapshot| + rounding), but 0 where the two are equal, and 1 where a number is NaN.

    ``size`` is |w| + |snapshot|, over ``places`` entries. A margin has a rounding error of at most _BLUR * size an
    entry, which can move the difference of two gradients however near w and the snapshot are. ``grain`` is the same for
    the rounding of the residuals, as a share of their bound. Equal weights have margins that are equal bit for bit.
    """
    if apart == 0.0 and slope < math.inf:
        return 0.0
    share = slope * (apart + _BLUR * (places + 2.0) * size) + grain
    return share if share < 1.0 else 1.0


def reduced_steps(
    rng: Any, sizes: NDArray[Any], rows: Records, batch: float, step_size: float, l2: float, scale: float, slope: float,
    grain: float, free: int, protected: int, sparsity: int, means: NDArray[Any], ranked: NDArray[Any],
    starts: NDArray[Any], heights: NDArray[Any], support: NDArray[Any], weights: NDArray[Any], filled: int,
    iterates: Any = None,
) -> int:
    """One lazy variance-reduced step per batch size, from the snapshot, which is the iterate on entry.

    ``means`` is the noisy snapshot gradient; buckets as in ``offer_means``. The noise is ``scale`` times
    ``reduced_share``; slope infinity means ``scale`` always. Other arguments as in ``sgd_steps``.
    """
    room = make_room(rows, sizes, 3 * sparsity + 3 * protected, free + protected, sparsity)
    snapshot = support[:filled].copy(), weights[:filled].copy()
    return compiled_reduced_steps(
        rng, sizes, rows, batch, step_size, l2, scale, slope, grain, free, protected, means, ranked, starts, heights,
        *room, *snapshot, np.zeros(max(sparsity + protected, filled)), support, weights, filled, iterates,
    )


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def compiled_reduced_steps(
    rng: Any, sizes: NDArray[Any], rows: Records, batch: float, step_size: float, l2: float, scale: float, slope: float,
    grain: float, free: int, protected: int, means: NDArray[Any], ranked: NDArray[Any], starts: NDArray[Any],
    heights: NDArray[Any], t: Entries, top: Top, snap_support: NDArray[Any], snap_weights: NDArray[Any],
    nothing: NDArray[Any], support: NDArray[Any], weights: NDArray[Any], filled: int, iterates: Any,
) -> int:
    """``reduced_steps`` in room that the caller has made, with a copy of the snapshot and zeros of its length."""
    shrink, sparsity = 1.0 - step_size * l2, top.keys.shape[0]
    snap_norm = distance(snap_weights, nothing, filled)
    number = 1.15 * sparsity + 4.0 * math.sqrt(sparsity) + 8.0
    level, level_spread = 0.0, 0.0
    for step in range(sizes.shape[0]):
        batch_size = sizes[step]
        next_batch(rng, rows, batch_size, filled + snap_support.shape[0] + protected + sparsity, t)
        count, apart = touch_weights(t, support[:filled], weights[:filled], snap_support, snap_weights, free, protected)
        norm = distance(weights, nothing, filled)
        spread = scale * reduced_share(slope, grain, apart, norm + snap_norm, count)
        count = add_gradient(t, count, rows, batch_size, True)
        _, size = offer_touched(rng, spread, batch, step_size, shrink, means, t, count, free, top)
        if spread > 0.0:
            if abs(spread - level_spread) > 0.005 * spread:
                level, level_spread = choose_level(number, spread, starts, heights), spread
            size = offer_means(rng, level, spread, step_size, free, means, ranked, starts, heights, t, count, top, size)
        else:
            size = offer_exact(step_size, means, ranked, starts, heights, t, top, size)
        filled = write_back(t, top, size, free, protected, support, weights)
        if iterates is not None:
            write_dense(support, weights, filled, iterates[step])
    return filled


class Epochs(NamedTuple):
    """The epochs of variance-reduced trials: ``steps`` inner steps each, or with a positive ``stop`` geometric - 1.

    With positive rates the sizes of snapshots and batches are binomial. The noise of a snapshot is as in ``sgd_steps``.
    """

    steps: int
    stop: float
    snapshot: int
    snapshot_rate: float
    batch_rate: float
    scale: float
    shares: NDArray[Any]
    shares_per_unit: float


@helper
def draw_rows(rng: Any, keys: NDArray[Any], size: int, batch: NDArray[Any]) -> None:
    """As solvers.variance_reduced.uniform_rows: the rows of the smallest of one uniform number a row."""
    n = keys.shape[0]
    for i in range(n):
        keys[i] = rng.random() if size < n else 0.0
    border = np.partition(keys, size - 1)[size - 1] if 0 < size < n else 0.0
    count = 0
    for i in range(n):
        if count < size and keys[i] <= border:
            batch[count] = i
            count += 1


def reduced_trials(
    rng: Any, counter: NDArray[Any], flags: NDArray[Any], first: int, bits: NDArray[Any], one: Records, two: Records,
    how: Epochs, batch: float, step_size: float, l2: float, scale: float, slope: float, grain: float, free: int,
    protected: int, sparsity: int, finals: NDArray[Any], counts: NDArray[Any], snapshots: NDArray[Any],
    iterates: NDArray[Any],
) -> None:
    """Trials first, first + 1, ... as in ``sgd_trials``, of few coordinates, which are one bucket.

    ``counts`` and ``snapshots`` get the number of inner steps and the noisy gradient of every epoch, ``iterates`` the
    weights after as many inner steps as it has room for; the last are repeated where there are fewer.
    """
    # Batches of a random size have at most all rows.
    largest = np.array([int(batch) if how.batch_rate == 0.0 else one.order.shape[0]])
    longer = max(one, two, key=lambda rows: int(np.diff(rows.indptr).max(initial=1)))
    room = make_room(longer, largest, 3 * sparsity + 3 * protected, free + protected, sparsity)
    compiled_reduced_trials(
        rng, counter, flags, first, bits, one, two, how, batch, step_size, l2, scale, slope, grain, free, protected,
        *room, finals, counts, snapshots, iterates,
    )


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def compiled_reduced_trials(
    rng: Any, counter: NDArray[Any], flags: NDArray[Any], first: int, bits: NDArray[Any], one: Records, two: Records,
    how: Epochs, batch: float, step_size: float, l2: float, scale: float, slope: float, grain: float, free: int,
    protected: int, room: Entries, top: Top, finals: NDArray[Any], counts: NDArray[Any], snapshots: NDArray[Any],
    iterates: NDArray[Any],
) -> None:
    """``reduced_trials`` in room that the caller has made."""
    sparsity = top.keys.shape[0]
    support, weights = np.empty(sparsity + protected, np.int64), np.empty(sparsity + protected)
    nothing = np.zeros(sparsity + protected)
    n, width = one.order.shape[0], finals.shape[1]
    rows_drawn, keys, w = np.empty(n, np.int64), np.empty(n), np.empty(width)
    ranked, starts, heights = np.arange(free), np.array([0, free]), np.empty(2)
    for i in range(bits.shape[0]):
        counter[0], counter[1], counter[2], counter[3] = 0, first + i, 0, 0
        flags[0], flags[10] = 4, 0
        rows = one if bits[i] == 1 else two
        for a in range(n):
            rows.order[a] = a
        for e in range(counts.shape[1]):
            counts[i, e] = rng.geometric(how.stop) - 1 if how.stop > 0.0 else how.steps
        filled = 0
        for e in range(counts.shape[1]):
            size, count = how.snapshot, counts[i, e]
            if how.snapshot_rate > 0.0:
                size = rng.binomial(n, how.snapshot_rate)
            draw_rows(rng, keys, size, rows_drawn)
            write_dense(support, weights, filled, w)
            gradient = np.zeros(width)
            add_rows(rows, rows_drawn[:size], w, gradient)
            spread = how.scale * share_at(how.shares, how.shares_per_unit, distance(weights, nothing, filled))
            for j in range(width):
                gradient[j] /= how.snapshot
                if spread > 0.0:
                    gradient[j] += spread * rng.standard_normal()
                snapshots[i, e, j] = gradient[j]
            heights[0], heights[1] = 0.0, math.inf
            for j in range(free):
                heights[0], heights[1] = max(heights[0], abs(gradient[j])), min(heights[1], abs(gradient[j]))
            sizes = np.empty(count, np.int64)
            for t in range(count):
                sizes[t] = rng.binomial(n, how.batch_rate) if how.batch_rate > 0.0 else batch
            inner = np.empty((count, width))
            filled = compiled_reduced_steps(
                rng, sizes, rows, batch, step_size, l2, scale, slope, grain, free, protected, gradient, ranked, starts,
                heights, room, top, support[:filled].copy(), weights[:filled].copy(), nothing, support, weights, filled,
                inner,
            )
            for t in range(iterates.shape[2]):
                for j in range(width):
                    iterates[i, e, t, j] = inner[min(t, count - 1), j] if count > 0 else w[j]
        write_dense(support, weights, filled, finals[i])
