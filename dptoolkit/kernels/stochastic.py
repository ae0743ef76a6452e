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

Hidden coordinates: where the data have no feature, a_j is noise alone, and most of these means are never needed. They
are independent and have one law, so all rankings of them by |a_j| are equally likely. How many lie in which layer of
|a_j| is drawn (one multinomial), and each layer is a bucket whose members have neither name nor mean. A skip that
visits a member for the first time draws its mean from the layer's law, gives it the next free number and keeps both for
the epoch. That is exact, since a visit depends on the bucket's ceiling and not on the mean: the mean of a member that
was not visited has influenced nothing. Members without a name are alike, so it does not matter which of them is
visited, and a coordinate is chosen, uniformly, only for those that are kept (solvers.snapshots).

Constructs that compile slowly are avoided: room is allocated by NumPy, before the compiled code (``sgd_steps`` calls
``compiled_sgd_steps``); min, max, int and powers are written out. The rules that keep the first fit short:

- an element of an array is read once, as each place that names it costs some milliseconds;
- a helper is called from few places;
- there are no tuples of four values or of arrays, and no slices;
- few variables are assigned at two places, as every ``x if c else y`` does, since each costs a pass over the kernel;
- what only some fits need is an argument that is None in the others: its branches are left out before compilation.

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
# A uniform number below this is drawn again on its own scale, where it has all its bits. With a much smaller cut-off,
# quantiles of numbers just above it would be coarse, and the last bits of a weight would reveal how many coordinates
# have data.
_SHORT = 2.0**-5
# A bound, with a factor 2 to spare, on the rounding error of a sum of products, per product and per unit of the two
# vectors' norms; also on that of a residual.
_BLUR = 4e-16


# A helper is compiled into its callers, and is plain Python when called from Python. A compiled entry point for every
# helper, which unpacks arrays from their Python objects, would double what is compiled before the first fit.
# Neither helpers nor steps allocate or return an array, so that counting of references is switched off, which saves a
# fifth of the compiled code; whoever calls them holds the arrays meanwhile. They contain no expressions of whole
# arrays, so that Numba's pass that looks for those is off too.
OPTIONS: Any = {"error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
helper = register_jitable(no_rewrites=True, **OPTIONS)


def part(function: Any) -> Any:
    """A helper that a kernel calls at one place, where it is written out before types are inferred.

    An ordinary helper is optimised twice, alone and in the kernel, and takes each array as seven arguments. Writing it
    out avoids that, but costs a time that grows with the square of its size, so that few parts are in other parts, and
    ``bring_forward``, which two kernels call, is none. The attributes make Numba treat the function as one with
    ``inline="always"``, while Python can still call it; where they mean nothing it is a helper like any other.
    """
    helper(function)
    function.targetoptions, function.py_func = {"inline": "always"}, function
    return function


class Records(NamedTuple):
    """Bounded rows in CSR form, with what their gradients need; ``order`` has the row of every record, in any order.

    Rows that occur several times are stored once, and their gradient is computed once a batch. For this tally[0] counts
    each row's records in a batch (all zero between batches), and tally[1] lists the rows of the batch; it is None where
    every row occurs once. Kernels take it once more as an argument of its own, since branches that no fit needs
    are left out before members of a tuple have types.
    """

    loss: int
    data: NDArray[Any]
    indices: NDArray[Any]
    indptr: NDArray[Any]
    y: NDArray[Any]
    margin_bound: float
    caps: NDArray[Any]
    order: NDArray[Any]
    tally: Any = None


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


@part
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


@part
def uniform_below(rng: Any, n: int) -> int:
    """A uniform integer in 0..n-1, without bias; Generator.integers does the same but compiles a second longer."""
    while True:
        draw: Any = np.int64(rng.random() * _UNIT)
        rest: int = draw % n
        # Draws from the incomplete last block below 2^53 are rejected: they would favour small numbers.
        if draw - rest <= 9007199254740992 - n:
            return rest


@part
def spread_evenly(half: int, n: int) -> int:
    """A uniform number of 26 bits as a uniform integer in 0..n-1, or -1 for the few that would favour some of these.

    By a product in place of a division (Lemire 2019); n is at most 2^26.
    """
    product = half * n
    rest = product & 67108863
    if rest < n and rest < 67108864 % n:
        return -1
    return product >> 26


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
    low = u < 0.5
    long = lengthened(rng, u if low else u - 0.5)
    return math.log(long) if low else math.log1p(-long)


@helper
def coin(rng: Any, chance: float) -> bool:
    """True with this probability, however small it is: a small one is reduced by 5 bits at a time."""
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
def touch(t: Entries, count: int, key: int) -> int:
    """The entry of ``key``; a new one becomes number ``count``, with weights and value 0.

    With a ``count`` of -1 there is no new one: the result is negative where the coordinate has no entry.
    """
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
def bring_forward(rng: Any, order: NDArray[Any], size: int) -> None:
    """Put ``size`` records, uniform without replacement, at the front of the order.

    The random numbers are most of its time, so that each gives two places, 26 bits each.
    """
    n, other = order.shape[0], -1
    for a in range(size):
        b = uniform_below(rng, n - a) if n > 67108864 else -1
        while b < 0:
            half, other = other, -1
            if half < 0:
                draw: Any = np.int64(rng.random() * _UNIT)
                half, other = draw >> 27, draw & 67108863
            b = spread_evenly(half, n - a)
        b += a
        i = order[b]
        order[b] = order[a]
        order[a] = i


@part
def draw_records(rng: Any, order: NDArray[Any], size: int) -> int:
    """Draw ``size`` records, uniform without replacement: those of the order from the returned place on.

    Either they or the others are brought to the front, whichever are fewer.
    """
    n = order.shape[0]
    bring_forward(rng, order, size if 2 * size <= n else n - size)
    return 0 if 2 * size <= n else n - size


@part
def gather(order: NDArray[Any], begin: int, size: int, tally: Any) -> int:
    """Count the records of each row among ``size`` of the order from ``begin`` on; list these rows; returns how many.

    There is nothing to do if every row occurs once. The order stays, so that later batches are those of the same
    records without counting.
    """
    if tally is None:
        return size
    rows: Any = np.int64(0)
    for a in range(begin, begin + size):
        i = order[a]
        if tally[0, i] == 0:
            tally[1, rows] = i
            rows += 1
        tally[0, i] += 1
    return rows


@part
def gathered(order: NDArray[Any], begin: int, tally: Any, a: int) -> tuple[int, float]:
    """(row, number of its records) of the a-th row of a batch that was gathered; they are forgotten."""
    if tally is None:
        return order[begin + a], 1.0
    i = tally[1, a]
    times = 1.0 * tally[0, i]
    tally[0, i] = 0
    return i, times


@part
def next_batch(rng: Any, rows: Records, tally: Any, size: int, others: int, t: Entries) -> int:
    """Bring ``size`` records forward and gather their rows; returns how many.

    The entries become empty, with slots in use for the features of these rows and ``others``.
    """
    order, indptr, slots = rows.order, rows.indptr, 2 * others
    bring_forward(rng, order, size)
    different = gather(order, 0, size, tally)
    for a in range(different):
        i = order[a] if tally is None else tally[1, a]
        slots += 2 * (indptr[i + 1] - indptr[i])
    mask, most = t.marks[1], t.table.shape[0] - 1
    while mask < slots and mask < most:
        mask = 2 * mask + 1
    t.marks[0], t.marks[1] = t.marks[0] + t.keys.shape[0], mask
    return different


@part
def touch_weights(
    t: Entries,
    support: NDArray[Any],
    weights: NDArray[Any],
    filled: int,
    snap_support: NDArray[Any],
    snap_weights: NDArray[Any],
    free: int,
    protected: int,
) -> tuple[int, float, float]:
    """Enter the weights, of which there are ``filled``, the snapshot and the protected coordinates.

    Returns (number of entries, |w - snapshot|, |w| + |snapshot|).
    """
    before, old, snapped = t.before, t.old, snap_support.shape[0]
    count: Any = np.int64(0)
    for a in range(filled + snapped + protected):
        if a < filled:
            key = support[a]
        elif a < filled + snapped:
            key = snap_support[a - filled]
        else:
            key = free + a - filled - snapped
        e = touch(t, count, key)
        count += e == count
        if a < filled:
            before[e] = weights[a]
        elif a < filled + snapped:
            old[e] = snap_weights[a - filled]
    size = distance(weights, weights, filled, True) + distance(snap_weights, snap_weights, snapped, True)
    return count, distance(before, old, count, False), size


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


@part
def residual_change(loss: int, margin: float, old_margin: float, y: float, margin_bound: float, cap: float) -> float:
    """The clipped residual minus that at the old margin.

    For the squared loss, if only margins are clipped, the label cancels and is left out of the computation: next to a
    large label a small difference of margins would be lost, or would be rounded to the label's last bit.
    """
    if loss == SQUARED and cap == math.inf:
        y = 0.0
    change = clipped_residual(loss, margin, y, margin_bound, cap) - clipped_residual(
        loss, old_margin, y, margin_bound, cap
    )
    # The difference of two margins that both overflowed.
    if loss == SQUARED and math.isnan(change):
        change = 0.0
    return change


@part
def add_gradient(t: Entries, count: int, rows: Records, tally: Any, size: int, reduced: bool) -> int:
    """Add the batch's gradient sum, less that at the snapshot if ``reduced``; returns the number of entries.

    ``size`` is the number of rows that were gathered.
    """
    before, old = t.before, t.old
    places, data = t.places, rows.data
    for a in range(size):
        i, times = gathered(rows.order, 0, tally, a)
        low, high = rows.indptr[i], rows.indptr[i + 1]
        label, cap = rows.y[i], rows.caps[i]
        margin = old_margin = 0.0
        for b in range(low, high):
            e = touch(t, count, np.int64(rows.indices[b]))
            count += e == count
            places[b - low] = e
            x = data[b]
            margin += x * before[e]
            old_margin += x * old[e]
        if reduced:
            r = residual_change(rows.loss, margin, old_margin, label, rows.margin_bound, cap)
        else:
            r = clipped_residual(rows.loss, margin, label, rows.margin_bound, cap)
        for b in range(low, high):
            t.values[places[b - low]] += times * r * data[b]
    return count


@njit(cache=True, nogil=True, **OPTIONS)
def add_records(rng: Any, rows: Records, tally: Any, size: int, w: NDArray[Any], out: NDArray[Any]) -> None:
    """Add the gradients at w of ``size`` records, uniform without replacement, to ``out``.

    One pass, no copy of the rows; the order of the records changes. All rows are read in their own order, which is
    faster.
    """
    data, indices, order = rows.data, rows.indices, rows.order
    begin = draw_records(rng, order, size)
    for a in range(gather(order, begin, size, tally)):
        i, times = gathered(order, begin, tally, a)
        if tally is None and size == order.shape[0]:
            i = a
        low, high = rows.indptr[i], rows.indptr[i + 1]
        margin = 0.0
        for b in range(low, high):
            margin += data[b] * w[indices[b]]
        r = clipped_residual(rows.loss, margin, rows.y[i], rows.margin_bound, rows.caps[i])
        for b in range(low, high):
            out[indices[b]] += times * r * data[b]


# --- the k largest values -----------------------------------------------------------------------------


@helper
def offer(top: Top, size: int, key: int, value: float) -> int:
    """Put (key, value) among the ``size`` values so far if it belongs there; returns the new size."""
    keys, values, limit = top.keys, top.values, len(top.keys)
    grows = size < limit
    if not grows and abs(value) <= abs(values[0]):
        return size
    # A free place moves up from the end of the heap, or down from its front, past what does not belong beyond it.
    i = size if grows else 0
    while True:
        other = (i - 1) >> 1 if grows else 2 * i + 1
        if other < 0 or other >= limit:
            break
        near = values[other]
        if not grows and other + 1 < limit:
            sibling = values[other + 1]
            if abs(sibling) < abs(near):
                other, near = other + 1, sibling
        if abs(near) <= abs(value) if grows else abs(value) <= abs(near):
            break
        keys[i], values[i] = keys[other], near
        i = other
    keys[i], values[i] = key, value
    return size + 1 if grows else size


@helper
def next_weight(weight: float, mean: float, noisy: float, step_size: float, shrink: float) -> float:
    """shrink weight - step_size (mean + noisy), where only ``noisy`` depends on the data; 0 where this is NaN."""
    value = shrink * weight - step_size * (mean + noisy)
    return 0.0 if math.isnan(value) else value


@part
def offer_touched(
    rng: Any,
    spread: float,
    batch: float,
    step_size: float,
    shrink: float,
    means: Any,
    t: Entries,
    count: int,
    free: int,
    top: Top,
) -> tuple[int, int]:
    """Turn the touched gradient sums into noisy means and these into next values, and offer those that compete.

    Returns (how many compete, size).
    """
    values, limit = t.values, top.keys.shape[0]
    inside: Any = np.int64(0)
    size: Any = np.int64(0)
    for e in range(count):
        key, noisy, mean = t.keys[e], values[e] / batch, 0.0
        if spread > 0.0:
            noisy += spread * rng.standard_normal()
        if means is not None:
            mean = means[key]
        value = next_weight(t.before[e], mean, noisy, step_size, shrink)
        values[e] = value
        if key < free:
            inside += 1
            if size < limit or abs(value) > abs(top.values[0]):
                size = offer(top, size, key, value)
    return inside, size


@part
def write_back(
    t: Entries, top: Top, size: int, free: int, protected: int, support: NDArray[Any], weights: NDArray[Any]
) -> int:
    """The new iterate: the top and the protected coordinates. Returns its number of places."""
    for a in range(size):
        support[a], weights[a] = top.keys[a], top.values[a]
    for j in range(free, free + protected):
        # It has an entry from ``touch_weights``.
        support[size], weights[size] = j, t.values[touch(t, -1, j)]
        size += 1
    return size


@helper
def write_dense(support: NDArray[Any], weights: NDArray[Any], filled: int, out: NDArray[Any]) -> None:
    """The iterate as a vector."""
    for j in range(out.shape[0]):
        out[j] = 0.0
    for a in range(filled):
        out[support[a]] = weights[a]


# --- plain steps ---------------------------------------------------------------------------------------


@part
def share_at(shares: NDArray[Any], shares_per_unit: float, norm: float) -> float:
    """The share of the noise at |w| = ``norm``, as in NoiseLaw.share; for NaN the last share, which is the largest."""
    place, last = norm * shares_per_unit, len(shares) - 1
    share: float = shares[math.ceil(place) if place < last else last]
    return share


@part
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
        while True:
            key = uniform_below(rng, free)
            if touch(t, count, key) == count:
                break
        count += 1
        size = offer(top, size, key, next_weight(0.0, 0.0, noisy if rng.random() < 0.5 else -noisy, step_size, 1.0))
    return size


def sgd_steps(
    rng: Any,
    sizes: NDArray[Any],
    rows: Records,
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    shares: NDArray[Any],
    shares_per_unit: float,
    free: int,
    protected: int,
    sparsity: int,
    support: NDArray[Any],
    weights: NDArray[Any],
    filled: int,
    iterates: Any = None,
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
        rng,
        sizes,
        rows,
        rows.tally,
        batch,
        step_size,
        l2,
        scale,
        shares,
        shares_per_unit,
        free,
        protected,
        *room,
        *nothing,
        support,
        weights,
        filled,
        iterates,
    )


@njit(cache=True, nogil=True, **OPTIONS)
def compiled_sgd_steps(
    rng: Any,
    sizes: NDArray[Any],
    rows: Records,
    tally: Any,
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    shares: NDArray[Any],
    shares_per_unit: float,
    free: int,
    protected: int,
    t: Entries,
    top: Top,
    no_support: NDArray[Any],
    no_weights: NDArray[Any],
    support: NDArray[Any],
    weights: NDArray[Any],
    filled: int,
    iterates: Any,
) -> int:
    """``sgd_steps`` in room that the caller has made."""
    shrink, sparsity = 1.0 - step_size * l2, top.keys.shape[0]
    for step in range(sizes.shape[0]):
        batch_rows = next_batch(rng, rows, tally, sizes[step], filled + protected + sparsity, t)
        count, norm, _ = touch_weights(t, support, weights, filled, no_support, no_weights, free, protected)
        count = add_gradient(t, count, rows, tally, batch_rows, False)
        spread = scale * share_at(shares, shares_per_unit, norm)
        inside, size = offer_touched(rng, spread, batch, step_size, shrink, None, t, count, free, top)
        if spread > 0.0:
            size = offer_iid(rng, spread, step_size, free, inside, t, count, top, size)
        filled = write_back(t, top, size, free, protected, support, weights)
        if iterates is not None:
            write_dense(support, weights, filled, iterates[step])
    return filled


def sgd_trials(
    rng: Any,
    counter: NDArray[Any],
    flags: NDArray[Any],
    first: int,
    bits: NDArray[Any],
    one: Records,
    two: Records,
    rate: float,
    sizes: NDArray[Any],
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    shares: NDArray[Any],
    shares_per_unit: float,
    free: int,
    protected: int,
    sparsity: int,
    start_support: NDArray[Any],
    start_weights: NDArray[Any],
    finals: NDArray[Any],
    iterates: Any = None,
) -> None:
    """Trials first, first + 1, ...: a fit on ``one`` where the bit is 1, on ``two`` where it is 0.

    Each starts from the weights ``start_weights`` on ``start_support``, which are empty for zeros. ``counter`` and
    ``flags`` are the memory of ``rng``, a Philox generator: each trial starts at its own place, exactly as
    audit.streams.seek does it. Batch sizes are ``sizes``, or with a positive ``rate`` binomial, drawn first. ``finals``
    gets a row of weights a trial; ``iterates``, if given, those of every step.
    """
    # Batches of a random size have at most all rows.
    largest = sizes if rate == 0.0 else np.array([one.order.shape[0]])
    others, width = 2 * sparsity + 2 * protected, free + protected
    longer = max(one, two, key=lambda rows: int(np.diff(rows.indptr).max(initial=1)))
    room = make_room(longer, largest, others, width, sparsity)
    places = np.empty(sparsity + protected, np.int64), np.empty(sparsity + protected)
    compiled_sgd_trials(
        rng,
        counter,
        flags,
        first,
        bits,
        one,
        one.tally,
        two,
        two.tally,
        rate,
        sizes,
        batch,
        step_size,
        l2,
        scale,
        shares,
        shares_per_unit,
        free,
        protected,
        *room,
        np.empty(0, np.int64),
        np.empty(0),
        start_support,
        start_weights,
        *places,
        finals,
        iterates,
    )


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def compiled_sgd_trials(
    rng: Any,
    counter: NDArray[Any],
    flags: NDArray[Any],
    first: int,
    bits: NDArray[Any],
    one: Records,
    one_tally: Any,
    two: Records,
    two_tally: Any,
    rate: float,
    sizes: NDArray[Any],
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    shares: NDArray[Any],
    shares_per_unit: float,
    free: int,
    protected: int,
    t: Entries,
    top: Top,
    no_support: NDArray[Any],
    no_weights: NDArray[Any],
    start_support: NDArray[Any],
    start_weights: NDArray[Any],
    support: NDArray[Any],
    weights: NDArray[Any],
    finals: NDArray[Any],
    iterates: Any,
) -> None:
    """``sgd_trials`` in room that the caller has made."""
    n, orders = one.order.shape[0], (two.order.copy(), one.order.copy())
    begun = start_support.shape[0]
    for i in range(bits.shape[0]):
        counter[0], counter[1], counter[2], counter[3] = 0, first + i, 0, 0
        flags[0], flags[10] = 4, 0
        rows, tally = (one, one_tally) if bits[i] == 1 else (two, two_tally)
        rows.order[:] = orders[bits[i]]
        if rate > 0.0:
            for step in range(sizes.shape[0]):
                sizes[step] = rng.binomial(n, rate)
        for a in range(begun):
            support[a], weights[a] = start_support[a], start_weights[a]
        if iterates is not None:
            filled = compiled_sgd_steps(
                rng,
                sizes,
                rows,
                tally,
                batch,
                step_size,
                l2,
                scale,
                shares,
                shares_per_unit,
                free,
                protected,
                t,
                top,
                no_support,
                no_weights,
                support,
                weights,
                begun,
                iterates[i],
            )
        else:
            filled = compiled_sgd_steps(
                rng,
                sizes,
                rows,
                tally,
                batch,
                step_size,
                l2,
                scale,
                shares,
                shares_per_unit,
                free,
                protected,
                t,
                top,
                no_support,
                no_weights,
                support,
                weights,
                begun,
                None,
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
    upper = coin(rng, (down if down < up else up) / (up + down)) != (down < up)
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


class Hidden(NamedTuple):
    """What is known of hidden means: those of the first known[b] members of bucket b have been drawn.

    Each other one is scale |Z| with either sign, where P(|Z| > .) is uniform between chances[b] and chances[b+1]; when
    it is drawn it takes the next number, unused[0].
    """

    known: NDArray[Any]
    unused: NDArray[Any]
    chances: NDArray[Any]
    scale: float


class Means(NamedTuple):
    """The means of an epoch, in buckets: bucket b is ranked[starts[b]:starts[b+1]], of |means| up to heights[b].

    The mean of member j is values[j], unless it is still hidden; ``hidden`` is None where all are known, and kernels
    take it once more, as they do the tally of ``Records``. heights[b+1] is about the smallest |mean| of bucket b; an
    empty bucket stands between the last that is known and the first layer.
    """

    values: NDArray[Any]
    ranked: NDArray[Any]
    starts: NDArray[Any]
    heights: NDArray[Any]
    hidden: Any = None


@part
def choose_level(number: float, spread: float, starts: NDArray[Any], heights: NDArray[Any]) -> float:
    """A level that about ``number`` coordinates exceed. Any level is correct; this one is cheap."""
    low, high = 0.0, heights[0] + 10.0 * spread
    for _ in range(64):
        if starts[-1] <= number or high - low <= 0.02 * spread:
            break
        middle = 0.5 * (low + high)
        # The expected number above the middle; for a bucket, from the mean of its largest and smallest probability.
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
def draw_mean(rng: Any, m: Means, hidden: Hidden, b: int) -> int:
    """Draw the mean of a hidden member of bucket b, which becomes known; returns its number."""
    j: int = hidden.unused[0]
    known, low, height = hidden.known[b], hidden.chances[b], m.heights[b]
    hidden.unused[0], hidden.known[b] = j + 1, known + 1
    chance = low + (hidden.chances[b + 1] - low) * lengthened(rng, rng.random())
    size = hidden.scale * abs(tail_quantile(0.5 * chance))
    # Rounding must not lift it above the height, which bounds the chance of a visit.
    size = size if size < height else height
    m.values[j] = size if rng.random() < 0.5 else -size
    m.ranked[m.starts[b] + known] = j
    return j


@part
def offer_means(
    rng: Any, level: float, spread: float, step_size: float, m: Means, hidden: Any, t: Entries, top: Top, size: int
) -> int:
    """Offer all untouched coordinates, of noisy gradients N(a_j, spread^2), that exceed the level and can enter.

    Returns the new size. The law is the same for any level, if ``complete_below`` follows where ``falls_short``.
    Without noise the means are offered, bucket by bucket, until none can enter; the level does not matter.
    """
    starts, limit = m.starts, top.keys.shape[0]
    if spread > 0.0 and size == limit:
        # A little lower, so that rounding excludes no coordinate that could enter.
        reached = abs(top.values[0]) / step_size * (1.0 - 1e-14)
        if reached > level:
            level = reached
    ceiling = log_miss = 1.0
    for b in range(starts.shape[0] - 1):
        height, place, end = m.heights[b], starts[b], starts[b + 1]
        if spread > 0.0:
            ceiling = chance_above(level, height, spread)
            if ceiling <= 0.0:
                continue
            log_miss = -math.inf
            if ceiling < 1.0:
                log_miss = math.log1p(-ceiling)
            elif ceiling > 1.0:
                ceiling = 1.0
        while True:
            skip = 0.0
            if spread > 0.0:
                # Skip to the next member whose coin of probability ``ceiling`` shows heads.
                skip = log_uniform(rng) / log_miss
            elif size == limit and not step_size * height > abs(top.values[0]):
                break
            if not skip < end - place:
                break
            place += np.int64(skip)
            if hidden is None or place < starts[b] + hidden.known[b]:
                j = m.ranked[place]
            else:
                j = draw_mean(rng, m, hidden, b)
            place += 1
            mean, noisy = m.values[j], 0.0
            if spread > 0.0 and not coin(rng, chance_above(level, mean, spread) / ceiling):
                continue
            if touch(t, -1, j) < 0:
                if spread > 0.0:
                    noisy = noise_above(rng, level, mean, spread)
                size = offer(top, size, j, next_weight(0.0, mean, noisy, step_size, 1.0))
    return size


@part
def falls_short(top: Top, size: int, reach: float) -> bool:
    """Whether values that are at most ``reach`` can still enter."""
    return size < len(top.keys) or abs(top.values[0]) < reach * (1.0 - 1e-13)


@part
def complete_below(
    rng: Any,
    level: float,
    spread: float,
    step_size: float,
    free: int,
    m: Means,
    hidden: Any,
    t: Entries,
    count: int,
    top: Top,
    size: int,
) -> int:
    """Offer all other untouched coordinates, drawn from their law below the level, in O(d); returns the new size.

    It is called when fewer than k values reach the level, so all untouched coordinates that do are in the top; they get
    entries, so that they are not drawn again.
    """
    for a in range(size):
        count += touch(t, count, top.keys[a]) == count
    if hidden is not None:
        for b in range(m.starts.shape[0] - 1):
            while hidden.known[b] < m.starts[b + 1] - m.starts[b]:
                draw_mean(rng, m, hidden, b)
    for j in range(free):
        if touch(t, -1, j) < 0:
            noisy = noise_within(rng, level, m.values[j], spread)
            size = offer(top, size, j, next_weight(0.0, m.values[j], noisy, step_size, 1.0))
    return size


@part
def reduced_share(slope: float, grain: float, apart: float, size: float, places: int) -> float:
    """min(1, slope |w - snapshot| + rounding), but 0 where the two are equal, and 1 where a number is NaN.

    ``size`` is |w| + |snapshot|, over ``places`` entries. A margin has a rounding error of at most _BLUR * size an
    entry, which can move the difference of two gradients however near w and the snapshot are. ``grain`` is the same for
    the rounding of the residuals, as a share of their bound. Equal weights have margins that are equal bit for bit.
    """
    share = 0.0
    if apart != 0.0 or not slope < math.inf:
        share = slope * (apart + _BLUR * (places + 2.0) * size) + grain
        if not share < 1.0:
            share = 1.0
    return share


class Progress(NamedTuple):
    """Where the steps of an epoch are, so that they can be left and taken up again.

    ``places`` is (step, places of the iterate, number of entries, size of the top); ``sizes`` is (level, the spread
    that it was chosen for, spread of this step).
    """

    places: NDArray[Any]
    sizes: NDArray[Any]


def reduced_steps(
    rng: Any,
    sizes: NDArray[Any],
    rows: Records,
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    slope: float,
    grain: float,
    free: int,
    protected: int,
    sparsity: int,
    means: Means,
    support: NDArray[Any],
    weights: NDArray[Any],
    filled: int,
    iterates: Any = None,
) -> int:
    """One lazy variance-reduced step per batch size, from the snapshot, which is the iterate on entry.

    ``means`` is the noisy snapshot gradient, with its buckets. The noise is ``scale`` times ``reduced_share``; slope
    infinity means ``scale`` always. Other arguments as in ``sgd_steps``.
    """
    room = make_room(rows, sizes, 3 * sparsity + 3 * protected, free + protected, sparsity)
    snapshot = support[:filled].copy(), weights[:filled].copy()
    progress = make_progress(filled)
    # The rare steps that few values reach are completed by a kernel of their own, which is compiled when it is needed.
    while compiled_reduced_steps(
        rng,
        sizes,
        rows,
        rows.tally,
        batch,
        step_size,
        l2,
        scale,
        slope,
        grain,
        free,
        protected,
        means,
        means.hidden,
        *room,
        *snapshot,
        support,
        weights,
        progress,
        iterates,
    ):
        compiled_completion(
            rng, step_size, free, protected, means, means.hidden, *room, support, weights, progress, iterates
        )
    return int(progress.places[1])


def make_progress(filled: int) -> Progress:
    """Before the first step, from an iterate of so many places."""
    return Progress(np.array([0, filled, 0, 0], np.int64), np.zeros(3))


@njit(cache=True, nogil=True, **OPTIONS)
def compiled_reduced_steps(
    rng: Any,
    sizes: NDArray[Any],
    rows: Records,
    tally: Any,
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    slope: float,
    grain: float,
    free: int,
    protected: int,
    means: Means,
    hidden: Any,
    t: Entries,
    top: Top,
    snap_support: NDArray[Any],
    snap_weights: NDArray[Any],
    support: NDArray[Any],
    weights: NDArray[Any],
    progress: Progress,
    iterates: Any,
) -> bool:
    """``reduced_steps`` in room that the caller has made, with a copy of the snapshot.

    Returns True in the midst of a step that ``compiled_completion`` has to complete, and False after the last.
    """
    shrink, sparsity = 1.0 - step_size * l2, top.keys.shape[0]
    number = 1.15 * sparsity + 4.0 * math.sqrt(sparsity) + 8.0
    places, levels = progress.places, progress.sizes
    filled, level, level_spread = places[1], levels[0], levels[1]
    for step in range(places[0], sizes.shape[0]):
        batch_rows = next_batch(rng, rows, tally, sizes[step], filled + snap_support.shape[0] + protected + sparsity, t)
        count, apart, reach = touch_weights(t, support, weights, filled, snap_support, snap_weights, free, protected)
        spread = scale * reduced_share(slope, grain, apart, reach, count)
        count = add_gradient(t, count, rows, tally, batch_rows, True)
        _, size = offer_touched(rng, spread, batch, step_size, shrink, means.values, t, count, free, top)
        if spread > 0.0 and abs(spread - level_spread) > 0.005 * spread:
            level, level_spread = choose_level(number, spread, means.starts, means.heights), spread
        size = offer_means(rng, level, spread, step_size, means, hidden, t, top, size)
        if spread > 0.0 and falls_short(top, size, step_size * level):
            places[0], places[2], places[3] = step, count, size
            levels[0], levels[1], levels[2] = level, level_spread, spread
            return True
        filled = write_back(t, top, size, free, protected, support, weights)
        if iterates is not None:
            write_dense(support, weights, filled, iterates[step])
    places[1] = filled
    return False


@njit(cache=True, nogil=True, **OPTIONS)
def compiled_completion(
    rng: Any,
    step_size: float,
    free: int,
    protected: int,
    means: Means,
    hidden: Any,
    t: Entries,
    top: Top,
    support: NDArray[Any],
    weights: NDArray[Any],
    progress: Progress,
    iterates: Any,
) -> None:
    """Complete the step at which ``compiled_reduced_steps`` stopped: all other values are below its level."""
    step, count, size = progress.places[0], progress.places[2], progress.places[3]
    level, spread = progress.sizes[0], progress.sizes[2]
    size = complete_below(rng, level, spread, step_size, free, means, hidden, t, count, top, size)
    filled = write_back(t, top, size, free, protected, support, weights)
    if iterates is not None:
        write_dense(support, weights, filled, iterates[step])
    progress.places[0], progress.places[1] = step + 1, filled


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


def reduced_trials(
    rng: Any,
    counter: NDArray[Any],
    flags: NDArray[Any],
    first: int,
    bits: NDArray[Any],
    one: Records,
    two: Records,
    how: Epochs,
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    slope: float,
    grain: float,
    free: int,
    protected: int,
    sparsity: int,
    finals: NDArray[Any],
    counts: NDArray[Any],
    snapshots: NDArray[Any],
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
        rng,
        counter,
        flags,
        first,
        bits,
        one,
        one.tally,
        two,
        two.tally,
        how,
        batch,
        step_size,
        l2,
        scale,
        slope,
        grain,
        free,
        protected,
        *room,
        finals,
        counts,
        snapshots,
        iterates,
    )


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def compiled_reduced_trials(
    rng: Any,
    counter: NDArray[Any],
    flags: NDArray[Any],
    first: int,
    bits: NDArray[Any],
    one: Records,
    one_tally: Any,
    two: Records,
    two_tally: Any,
    how: Epochs,
    batch: float,
    step_size: float,
    l2: float,
    scale: float,
    slope: float,
    grain: float,
    free: int,
    protected: int,
    room: Entries,
    top: Top,
    finals: NDArray[Any],
    counts: NDArray[Any],
    snapshots: NDArray[Any],
    iterates: NDArray[Any],
) -> None:
    """``reduced_trials`` in room that the caller has made."""
    sparsity = top.keys.shape[0]
    support, weights = np.empty(sparsity + protected, np.int64), np.empty(sparsity + protected)
    n, width, w = one.order.shape[0], finals.shape[1], np.empty(finals.shape[1])
    orders = two.order.copy(), one.order.copy()
    # One bucket, all of it known.
    ranked, starts, heights = np.arange(free), np.array([0, free]), np.empty(2)
    progress = Progress(np.empty(4, np.int64), np.empty(3))
    for i in range(bits.shape[0]):
        counter[0], counter[1], counter[2], counter[3] = 0, first + i, 0, 0
        flags[0], flags[10] = 4, 0
        rows, tally = (one, one_tally) if bits[i] == 1 else (two, two_tally)
        rows.order[:] = orders[bits[i]]
        for e in range(counts.shape[1]):
            counts[i, e] = rng.geometric(how.stop) - 1 if how.stop > 0.0 else how.steps
        filled = 0
        for e in range(counts.shape[1]):
            size, count = how.snapshot, counts[i, e]
            if how.snapshot_rate > 0.0:
                size = rng.binomial(n, how.snapshot_rate)
            write_dense(support, weights, filled, w)
            gradient = np.zeros(width)
            add_records(rng, rows, tally, size, w, gradient)
            spread = how.scale * share_at(how.shares, how.shares_per_unit, distance(weights, weights, filled, True))
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
            means = Means(gradient, ranked, starts, heights, None)
            progress.places[0], progress.places[1], progress.sizes[0], progress.sizes[1] = 0, filled, 0.0, 0.0
            snap_support, snap_weights = support[:filled].copy(), weights[:filled].copy()
            while compiled_reduced_steps(
                rng,
                sizes,
                rows,
                tally,
                batch,
                step_size,
                l2,
                scale,
                slope,
                grain,
                free,
                protected,
                means,
                None,
                room,
                top,
                snap_support,
                snap_weights,
                support,
                weights,
                progress,
                inner,
            ):
                compiled_completion(
                    rng, step_size, free, protected, means, None, room, top, support, weights, progress, inner
                )
            filled = progress.places[1]
            for t in range(iterates.shape[2]):
                for j in range(width):
                    iterates[i, e, t, j] = inner[min(t, count - 1), j] if count > 0 else w[j]
        write_dense(support, weights, filled, finals[i])
