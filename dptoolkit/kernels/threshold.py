"""Hard thresholding: a whole fit on small data in one call, and the parts of a step on large sparse rows.

Small data are dense rows with weights (their counts over n), so that a dataset of few distinct rows costs only as much
as those. ``iht_trials`` and ``iht_fits``, which audits use, call the same ``iht_fit`` as a fit does. For large data
there are margins from the support's columns only, residuals, and the s largest entries.

Long because a kernel and all helpers that it calls must be in one file: Numba's cache does not notice edits elsewhere.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

SQUARED, LOGISTIC, HUBER, HINGE = 0, 1, 2, 4
# The smoothed hinge is rounded over this much of its margin (losses.HINGE_WIDTH).
_WIDTH = 0.5


class Records(NamedTuple):
    """Bounded dense rows with what their gradients need; ``weights`` is counts / n."""

    loss: int
    X: NDArray[Any]
    y: NDArray[Any]
    weights: NDArray[Any]
    margin_bound: float
    caps: NDArray[Any]


class Schedule(NamedTuple):
    """The settings of a step; its noise is scale * shares[ceil(shares_per_unit |w|)], the last share beyond the end.

    Coordinates 0..free-1 compete for ``sparsity`` places; those after them are always kept. ``accumulate``: a step
    starts from the sum of all steps, not from what the last threshold left of it.
    """

    steps: int
    step_size: float
    scale: float
    shares: NDArray[Any]
    shares_per_unit: float
    free: int
    sparsity: int
    accumulate: bool = False


@njit(cache=True, nogil=True, error_model="numpy")
def clipped(value: float, low: float, high: float) -> float:
    """The value, or the end of the range that it exceeds. NaN stays NaN, which min and max do not promise."""
    if value < low:
        return low
    return high if value > high else value


@njit(cache=True, nogil=True, error_model="numpy")
def decay(size: float) -> float:
    """exp(-size) for 0 <= size < 600, to 2 units in the last place; 3e-261 for all that is larger, and for NaN.

    Unlike that of the C library it has no branches and no calls, so that a loop over records is compiled to vectors.
    2^k exp(rest) with k the nearest whole number; k is read off the low bits of its sum with 1.5 * 2^52. Beyond 600 it
    stays constant, so that its quotients by n are still normal numbers: subnormal ones are slow.
    """
    x = -size if size < 600.0 else -600.0
    total = x * 1.4426950408889634 + 6755399441055744.0
    k = total - 6755399441055744.0
    z = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    tail = 1 / 40320 + z * (1 / 362880 + z * (1 / 3628800 + z * (1 / 39916800 + z * (1 / 479001600))))
    series = 1 / 2 + z * (1 / 6 + z * (1 / 24 + z * (1 / 120 + z * (1 / 720 + z * (1 / 5040 + z * tail)))))
    power = np.int64((np.float64(total).view(np.int64) + 1023) << 52).view(np.float64)
    return (1.0 + (z + z * z * series)) * power


@njit(cache=True, nogil=True, error_model="numpy")
def residual(loss: int, margin: float, y: float) -> float:
    """d loss / d margin of one row, as in losses.py; NaN for a loss that has no branch here."""
    if loss == LOGISTIC:
        e = decay(abs(margin))
        return (1.0 if margin >= 0 else e) / (1.0 + e) - y
    if loss == HINGE:
        sign = 2.0 * y - 1.0
        return -sign * clipped((1.0 - sign * margin) / _WIDTH, 0.0, 1.0)
    if loss == HUBER:
        return clipped(margin - y, -1.0, 1.0)
    return margin - y if loss == SQUARED else math.nan


@njit(cache=True, nogil=True, error_model="numpy")
def clipped_residual(loss: int, margin: float, y: float, margin_bound: float, cap: float) -> float:
    """The residual after clipping the margin and then the residual; 0 for a margin that overflowed to NaN."""
    if math.isnan(margin):
        return 0.0
    return clipped(residual(loss, clipped(margin, -margin_bound, margin_bound), y), -cap, cap)


# --- small data: a fit in one call ---------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def keep_largest(values: NDArray[Any], free: int, count: int, support: NDArray[Any]) -> int:
    """Put the places of the ``count`` largest |values[:free]|, ties to the smaller index, into ``support``.

    Returns their number. ``support`` is used as a heap with the smallest in front; of equal values the one with the
    larger index counts as smaller. A NaN takes up a place and is not kept (as in ``largest``).
    """
    if count >= free:
        for j in range(free):
            support[j] = j
        return free
    limit = count
    for j in range(free):
        if math.isnan(values[j]):
            limit -= 1
    size = 0
    for j in range(free):
        v = abs(values[j])
        if size < limit:
            if math.isnan(v):
                continue
            i = size
            while i > 0 and abs(values[support[(i - 1) // 2]]) >= v:
                support[i] = support[(i - 1) // 2]
                i = (i - 1) // 2
            support[i] = j
            size += 1
        elif limit > 0 and v > abs(values[support[0]]):
            sift_down(values, support, limit, j)
    return size


@njit(cache=True, nogil=True, error_model="numpy")
def sift_down(values: NDArray[Any], support: NDArray[Any], size: int, j: int) -> None:
    """Put place ``j``, the largest index so far, into the heap instead of the one in front."""
    v, i = abs(values[j]), 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size:
            one, two = abs(values[support[child]]), abs(values[support[child + 1]])
            if two < one or (two == one and support[child + 1] > support[child]):
                child += 1
        if v <= abs(values[support[child]]):
            break
        support[i] = support[child]
        i = child
    support[i] = j


@njit(cache=True, nogil=True, error_model="numpy")
def mean_gradient(records: Records, w: NDArray[Any], support: NDArray[Any], filled: int, out: NDArray[Any]) -> None:
    """out = sum_i weights_i * clipped residual_i * x_i at the w that is zero outside ``support[:filled]``."""
    loss, X, y, weights, margin_bound, caps = records
    m, width = X.shape
    for j in range(width):
        out[j] = 0.0
    for i in range(m):
        margin = 0.0
        for a in range(filled):
            margin += X[i, support[a]] * w[support[a]]
        r = clipped_residual(loss, margin, y[i], margin_bound, caps[i]) * weights[i]
        for j in range(width):
            out[j] += r * X[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def share_at(shares: NDArray[Any], shares_per_unit: float, norm: float) -> float:
    """The share of the noise at |w| = ``norm``, as in NoiseLaw.share; for NaN the last share, which is the largest."""
    place, last = norm * shares_per_unit, shares.shape[0] - 1
    return shares[math.ceil(place)] if place < last else shares[last]


@njit(cache=True, nogil=True, error_model="numpy")
def support_norm(w: NDArray[Any], support: NDArray[Any], filled: int) -> float:
    """|w|_2 of the w that is zero outside ``support[:filled]``, also where its squares underflow."""
    square, largest = 0.0, 0.0
    for a in range(filled):
        square += w[support[a]] ** 2
        if abs(w[support[a]]) > largest:
            largest = abs(w[support[a]])
    if square < 1e-280 and largest > 0.0:
        # In units of the largest.
        square = 0.0
        for a in range(filled):
            square += (w[support[a]] / largest) ** 2
        return largest * math.sqrt(square)
    return math.sqrt(square)


@njit(cache=True, nogil=True, error_model="numpy")
def iht_fit(
    rng: Any,
    normals: NDArray[Any],
    records: Records,
    how: Schedule,
    w: NDArray[Any],
    support: NDArray[Any],
    step: NDArray[Any],
    scales: NDArray[Any],
    releases: NDArray[Any],
    iterates: NDArray[Any],
) -> None:
    """The whole iteration from w = 0, which is overwritten with the result; ``scales`` gets every step's noise.

    ``support`` and ``step`` are scratch of the width of w. ``releases`` and ``iterates``, if they have rows, get the
    noisy gradient and the weights of every step. The normals of a step are drawn for all coordinates, in order; if
    ``normals`` has rows, they were drawn before, and each step takes its row.
    """
    width, filled = w.shape[0], 0
    total = np.zeros(width)
    for j in range(width):
        w[j] = 0.0
    for t in range(how.steps):
        spread = how.scale * share_at(how.shares, how.shares_per_unit, support_norm(w, support, filled))
        scales[t] = spread
        mean_gradient(records, w, support, filled, step)
        if spread > 0.0:
            for j in range(width):
                step[j] += spread * (normals[t, j] if normals.shape[0] > 0 else rng.standard_normal())
        if releases.shape[0] > 0:
            # Not a slice, whose assignment compiles the text of its error message.
            for j in range(width):
                releases[t, j] = step[j]
        for j in range(width):
            start = total[j] if how.accumulate else w[j]
            total[j] = start - how.step_size * step[j]
            w[j] = 0.0
        filled = keep_largest(total, how.free, how.sparsity, support)
        for j in range(how.free, width):
            support[filled] = j
            filled += 1
        for a in range(filled):
            w[support[a]] = total[support[a]]
        if iterates.shape[0] > 0:
            for j in range(width):
                iterates[t, j] = w[j]


@njit(cache=True, nogil=True, error_model="numpy")
def iht_trials(
    rng: Any,
    counter: NDArray[Any],
    flags: NDArray[Any],
    first: int,
    bits: NDArray[Any],
    one: Records,
    two: Records,
    how: Schedule,
    weights: NDArray[Any],
    releases: NDArray[Any],
    iterates: NDArray[Any],
) -> None:
    """Trials first, first + 1, ...: a fit on ``one`` where the bit is 1, on ``two`` where it is 0.

    ``counter`` and ``flags`` are the memory of ``rng``, a Philox generator: each trial starts at its own place, exactly
    as audit.streams.seek does it. ``releases`` and ``iterates`` have one entry a trial, or none at all.
    """
    width, nothing = weights.shape[1], np.empty((0, 0))
    support, step, scales = np.empty(width, np.int64), np.empty(width), np.empty(how.steps)
    for i in range(bits.shape[0]):
        counter[0], counter[1], counter[2], counter[3] = 0, first + i, 0, 0
        flags[0], flags[10] = 4, 0
        release = releases[i] if releases.shape[0] > 0 else nothing
        iterate = iterates[i] if iterates.shape[0] > 0 else nothing
        records = one if bits[i] == 1 else two
        iht_fit(rng, nothing, records, how, weights[i], support, step, scales, release, iterate)


@njit(cache=True, nogil=True, error_model="numpy")
def iht_fits(
    rng: Any,
    normals: NDArray[Any],
    records: Records,
    how: Schedule,
    weights: NDArray[Any],
    releases: NDArray[Any],
    iterates: NDArray[Any],
) -> None:
    """A fit for every matrix of ``records.X``, with its row of caps and its normals; ``rng`` rests. See iht_trials."""
    width, nothing = weights.shape[1], np.empty((0, 0))
    support, step, scales = np.empty(width, np.int64), np.empty(width), np.empty(how.steps)
    loss, X, y, shares, margin_bound, caps = records
    for i in range(weights.shape[0]):
        release = releases[i] if releases.shape[0] > 0 else nothing
        iterate = iterates[i] if iterates.shape[0] > 0 else nothing
        own = Records(loss, X[i], y, shares, margin_bound, caps[i])
        iht_fit(rng, normals[i], own, how, weights[i], support, step, scales, release, iterate)


@njit(cache=True, nogil=True, error_model="numpy")
def iht_relabelled(rng: Any, records: Records, labels: NDArray[Any], how: Schedule, weights: NDArray[Any]) -> None:
    """A fit for every row of ``labels``, which take the place of those of the records; without noise ``rng`` rests."""
    width, nothing = weights.shape[1], np.empty((0, 0))
    support, step, scales = np.empty(width, np.int64), np.empty(width), np.empty(how.steps)
    loss, X, _, shares, margin_bound, caps = records
    for i in range(labels.shape[0]):
        own = Records(loss, X, labels[i], shares, margin_bound, caps)
        iht_fit(rng, nothing, own, how, weights[i], support, step, scales, nothing, nothing)


# --- small data on grids: integer sums, and noise that was drawn for them -------------------------------------


class GridRecords(NamedTuple):
    """Dense rows and what their gradients need, in units of public grids (data/grids.py).

    ``X`` holds whole numbers of ``row_unit``. ``lengths`` has the norms of rows that were divided by them, or nothing.
    ``counts`` says how often each row occurs.
    """

    loss: int
    X: NDArray[Any]
    y: NDArray[Any]
    counts: NDArray[Any]
    margin_bound: float
    lengths: NDArray[Any]
    row_unit: float
    residual_unit: float
    n: float


@njit(cache=True, nogil=True, error_model="numpy")
def grid_sums(
    records: GridRecords, w: NDArray[Any], support: NDArray[Any], filled: int, cap: float, out: NDArray[Any]
) -> None:
    """out = the sum of all records' gradients in grid units: whole numbers below 2^53, so that every order is exact.

    Each record's part depends on that record, the weights and ``cap`` alone.
    """
    loss, X, y, counts, margin_bound, lengths, row_unit, residual_unit, _ = records
    m, width = X.shape
    for j in range(width):
        out[j] = 0.0
    for i in range(m):
        margin = 0.0
        for a in range(filled):
            margin += X[i, support[a]] * w[support[a]]
        margin *= row_unit
        if lengths.shape[0] > 0:
            margin *= lengths[i]
        r = clipped_residual(loss, margin, y[i], margin_bound, math.inf)
        if lengths.shape[0] > 0:
            r *= lengths[i]
        q = np.rint(r / residual_unit)
        # NaN counts as nothing: a length may be infinite where the residual is 0.
        q = 0.0 if math.isnan(q) else clipped(q, -cap, cap) * counts[i]
        for j in range(width):
            out[j] += q * X[i, j]


@njit(cache=True, nogil=True, error_model="numpy")
def grid_steps(
    records: GridRecords,
    how: Schedule,
    first: int,
    filled: int,
    noise: NDArray[Any],
    drawn: int,
    cap: float,
    w: NDArray[Any],
    support: NDArray[Any],
    total: NDArray[Any],
    step: NDArray[Any],
    places: NDArray[Any],
    releases: NDArray[Any],
    iterates: NDArray[Any],
) -> tuple[int, int]:
    """Steps first, first + 1, ... of ``iht_fit`` on grids, as far as the rows of ``noise`` go.

    They are whole numbers that were drawn for the share number ``drawn``, whose residuals are at most ``cap``: where
    the public weights call for another share it stops. Returns (the next step, the size of the support);
    places[step] is the share that it needs. ``w``, ``support`` and ``total`` hold the state.
    """
    width, n = w.shape[0], records.n
    for t in range(first, how.steps):
        place, last = support_norm(w, support, filled) * how.shares_per_unit, how.shares.shape[0] - 1
        places[t] = math.ceil(place) if place < last else last
        row = t - first
        if row == noise.shape[0] or places[t] != drawn:
            return t, filled
        grid_sums(records, w, support, filled, cap, step)
        for j in range(width):
            released = np.int64(step[j]) + noise[row, j]
            step[j] = float(released) * records.row_unit * records.residual_unit / n
        if releases.shape[0] > 0:
            for j in range(width):
                releases[t, j] = step[j]
        for j in range(width):
            start = total[j] if how.accumulate else w[j]
            total[j] = start - how.step_size * step[j]
            w[j] = 0.0
        filled = keep_largest(total, how.free, how.sparsity, support)
        for j in range(how.free, width):
            support[filled] = j
            filled += 1
        for a in range(filled):
            w[support[a]] = total[support[a]]
        if iterates.shape[0] > 0:
            for j in range(width):
                iterates[t, j] = w[j]
    return how.steps, filled


# --- large data: the parts of a step -------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def support_margins(
    t_data: NDArray[Any],
    t_indices: NDArray[Any],
    t_indptr: NDArray[Any],
    support: NDArray[Any],
    values: NDArray[Any],
    margins: NDArray[Any],
) -> None:
    """margins = X w for a w with few non-zeros, from the rows of X^T that belong to its support."""
    margins[:] = 0.0
    for a in range(support.shape[0]):
        j = support[a]
        value = values[a]
        for b in range(t_indptr[j], t_indptr[j + 1]):
            margins[t_indices[b]] += value * t_data[b]


@njit(cache=True, nogil=True, error_model="numpy")
def mean_residuals(
    loss: int, margins: NDArray[Any], y: NDArray[Any], margin_bound: float, caps: NDArray[Any], out: NDArray[Any]
) -> None:
    """out = Loss.clipped_residual / n in one pass; empty ``caps`` for none."""
    n = margins.shape[0]
    if loss == LOGISTIC and margin_bound == math.inf:
        # The same numbers, in loops that are compiled to vectors.
        for i in range(n):
            e = decay(abs(margins[i]))
            r = (1.0 if margins[i] >= 0 else e) / (1.0 + e) - y[i]
            out[i] = 0.0 if math.isnan(margins[i]) else r
        if caps.shape[0] > 0:
            for i in range(n):
                out[i] = clipped(out[i], -caps[i], caps[i])
        for i in range(n):
            out[i] /= n
        return
    for i in range(n):
        cap = caps[i] if caps.shape[0] > 0 else math.inf
        out[i] = clipped_residual(loss, margins[i], y[i], margin_bound, cap) / n


@njit(cache=True, nogil=True, error_model="numpy")
def grid_residuals(
    loss: int,
    margins: NDArray[Any],
    y: NDArray[Any],
    inverse: float,
    caps: NDArray[Any],
    counts: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """out = residual * inverse as whole numbers, of size at most the record's cap, times its count; NaN becomes 0.

    Each number depends on its own record alone.
    """
    n = margins.shape[0]
    if loss == LOGISTIC:
        # The same numbers, in a loop that is compiled to vectors.
        for i in range(n):
            e = decay(abs(margins[i]))
            out[i] = (1.0 if margins[i] >= 0 else e) / (1.0 + e) - y[i]
    else:
        for i in range(n):
            out[i] = residual(loss, margins[i], y[i])
    for i in range(n):
        q = np.rint(out[i] * inverse)
        q = 0.0 if math.isnan(margins[i]) or math.isnan(q) else q
        # Adding 0 turns -0 into 0.
        out[i] = clipped(q, -caps[i], caps[i]) * counts[i] + 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def reaching(values: NDArray[Any], level: float, out: NDArray[Any]) -> int:
    """Put the places of |values| >= level into ``out``, in order, as far as it has room; returns how many are there."""
    count, room = 0, out.shape[0]
    for j in range(values.shape[0]):
        if abs(values[j]) >= level:
            if count == room:
                break
            out[count] = j
            count += 1
    return count


def largest(values: NDArray[np.float64], count: int, guess: float = math.inf) -> NDArray[np.intp]:
    """Indices of the ``count`` largest |values|, in increasing order; ties at the border go to the smaller index.

    NumPy's partition outside Numba is faster than any compiled quickselect here. ``guess`` changes nothing but the
    time: if at least ``count`` values reach it, and not many more, only those are compared.
    """
    if count >= len(values):
        return np.arange(len(values))
    candidates = np.empty(min(len(values), 4 * count + 1), np.intp)
    size = reaching(values, guess, candidates)
    if not count <= size < len(candidates):
        return _largest(np.abs(values), count)
    candidates = candidates[:size]
    return np.asarray(candidates[_largest(np.abs(values[candidates]), count)])


def _largest(size: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    border = np.partition(size, len(size) - count)[len(size) - count]
    candidates = np.flatnonzero(size >= border)
    if len(candidates) == count:
        return candidates
    above = candidates[size[candidates] > border]
    level = candidates[size[candidates] == border][: count - len(above)]
    return np.sort(np.concatenate([above, level]))
