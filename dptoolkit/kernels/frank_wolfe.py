"""Frank-Wolfe over the L1 ball, many steps in one call, on sparse rows and on dense ones.

On sparse rows the iterate is w = scale * v, so shrinking costs nothing. A step checks the rows that contain the chosen
feature, and touches the entries of the few whose dithered residual changes. The vertex is drawn from the exponential
mechanism exactly: feature j has weight 2 cosh(sharpness g_j), weights are summed in groups of about sqrt(d), and a draw
walks over the groups, then over one group. The 53 bits of one uniform number cannot represent very small probabilities:
features that have them are drawn by an occasional pass over all features (``draw``), so that every vertex has its exact
probability. Most gradients change a little at most steps. So a feature keeps a weight that is somewhat too large, until
its gradient outgrows it. A feature drawn by kept weights is accepted with probability exact weight / kept weight
(``accepted_feature``): the law is that of the exact weights.

Rows that do not contain the chosen feature keep their residual until the caller starts the next block. For the squared
loss with few features the gradient is scale * q - p with q = X^T X v from rows of X^T X, so nothing is stale.

Constructs that compile slowly are avoided: arrays are allocated by the caller (``Sampler``) and copied in loops (a
slice assignment also compiles the text of its error message, 3 s), and Laplace noise has separate functions.

Long because a compiled kernel notices edits in its own file only: every helper that it calls is here.
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
# Weights are kept relative to exp(offset); beyond this they are rebuilt with a new offset.
_LARGEST_EXPONENT = 500.0
# Likewise when all weights together have become this small: the offset is then far too high, and weights of small
# probability would be rounded away.
_SMALLEST_TOTAL = 1e-20
# A group's sum that has fallen to less than this part of its largest value is summed again, as it may be mostly the
# rounding error of what was subtracted.
_LOST = 1e-3
# Features that together have at most this probability are not drawn by the walk: one draw in 1 / _RARE is for them.
_RARE = 2.0**-12
# A group's sum is enlarged by this part, more than its rounding error; a draw that falls into the addition is repeated.
_SLACK = 1e-9
# A kept weight is that of the exponent plus a cover. The cover is _COVER, or the most that one row can change an
# exponent if that is larger, but at most _LARGEST_COVER; a fresh weight is accepted with probability at least
# exp(-cover). A feature is covered up to this part of it, so that no rounding error makes an exact weight the larger
# one.
_COVER, _LARGEST_COVER, _COVERED = 0.25, 1.0, 0.999
# Two units count as equal if they change no exponent by more than this, which is less than the rest of the cover.
_SAME = 1e-4
# A selection that rejects so many features has weights that are far too large; all are computed again.
_PATIENCE = 32
# Coins of a smaller probability than this are drawn with as many more random bits as they need.
_SHORT = 2.0**-20

# A helper is compiled into its callers, and is plain Python when called from Python. A compiled entry point for every
# helper, which unpacks arrays from their Python objects, would double what is compiled before the first fit.
helper = register_jitable(error_model="numpy", no_cfunc_wrapper=True)


class Sampler(NamedTuple):
    """Room for the weights of all features and for the list of those that need another.

    Group g holds the features j with j >> shift == g. ``peaks`` has the largest value of each group's sum since it was
    last summed, ``covered`` the |total| up to which a feature's weight is large enough. ``frame`` is what the weights
    are computed for: the exponent of a total of 1, and the offset.
    """

    shift: int
    weights: NDArray[np.float64]
    sums: NDArray[np.float64]
    peaks: NDArray[np.float64]
    covered: NDArray[np.float64]
    listed: NDArray[np.int64]
    frame: NDArray[np.float64]


def sampler(d: int, shift: int | None = None) -> Sampler:
    """Room for d features, by default in groups of about sqrt(d): a power of 2, which spares a division a weight."""
    shift = round(math.log2(d) / 2) if shift is None else shift
    groups = ((d - 1) >> shift) + 1
    return Sampler(
        shift, np.zeros(d), np.zeros(groups), np.zeros(groups), np.zeros(d), np.zeros(d, np.int64), np.zeros(2)
    )


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
def residual_limit(loss: int, margin: float, label: float) -> float:
    """The largest |residual| where |margin| and |label| are at most these numbers, as in losses.py."""
    if loss == LOGISTIC:
        return 1.0 / (1.0 + math.exp(-margin))
    if loss == HINGE:
        return min(1.0, (1.0 + margin) / _WIDTH)
    if loss == HUBER:
        return min(1.0, margin + label)
    return margin + label if loss == SQUARED else math.nan


@helper
def weight(exponent: float, offset: float, echo: float) -> float:
    """exp(|exponent| - offset) + exp(-|exponent| - offset); ``echo`` is exp(-2 offset)."""
    size = abs(exponent)
    e = math.exp(size - offset)
    # A division is cheaper than a second exponential, while echo is far from underflow.
    return e + echo / e if echo > 1e-260 else e * (1.0 + math.exp(-2.0 * size))


@helper
def rebuild(totals: NDArray[Any], unit: float, cover: float, room: Sampler) -> float:
    """Compute all weights and group sums for exponents unit |total| + cover; returns the offset."""
    largest, width = 0.0, _COVERED * cover / unit
    for j in range(totals.shape[0]):
        size = abs(totals[j])
        if size > largest:
            largest = size
    for g in range(room.sums.shape[0]):
        room.sums[g] = 0.0
    offset = unit * largest + cover
    echo = math.exp(-2.0 * offset)
    for j in range(totals.shape[0]):
        size = abs(totals[j])
        room.weights[j] = weight(unit * size + cover, offset, echo)
        room.sums[j >> room.shift] += room.weights[j]
        room.covered[j] = size + width
    for g in range(room.sums.shape[0]):
        room.peaks[g] = room.sums[g]
    return offset


@helper
def reweight(totals: NDArray[Any], unit: float, cover: float, offset: float, number: int, room: Sampler) -> bool:
    """New weights for the uncovered of the first ``number`` listed; False if one is too large: rebuild all."""
    echo, width = math.exp(-2.0 * offset), _COVERED * cover / unit
    for a in range(number):
        k = room.listed[a]
        size = abs(totals[k])
        if size <= room.covered[k]:
            continue
        exponent = unit * size + cover
        if exponent - offset > _LARGEST_EXPONENT:
            return False
        new = weight(exponent, offset, echo)
        room.sums[k >> room.shift] += new - room.weights[k]
        room.weights[k] = new
        room.covered[k] = size + width
    return True


@helper
def settle(room: Sampler) -> float:
    """The sum of all weights, once a step; groups whose sum has nearly vanished are first summed again.

    Within one step a sum never exceeds its value before plus its value after, so its rounding error is at most about
    1 / _LOST roundings of its value.
    """
    sums, peaks, weights = room.sums, room.peaks, room.weights
    total = 0.0
    for g in range(sums.shape[0]):
        if sums[g] > peaks[g]:
            peaks[g] = sums[g]
        elif sums[g] < _LOST * peaks[g]:
            fresh, last = 0.0, (g + 1) << room.shift
            if last > weights.shape[0]:
                last = weights.shape[0]
            for j in range(g << room.shift, last):
                fresh += weights[j]
            sums[g] = peaks[g] = fresh
        total += sums[g]
    return total


@helper
def draw_feature(target: float, room: Sampler) -> int:
    """The feature at which the weights, added up in order, pass ``target``; -1 in the addition to a group's sum."""
    sums, weights = room.sums, room.weights
    g = 0
    while g < sums.shape[0] - 1 and target >= sums[g]:
        target -= sums[g]
        g += 1
    target *= 1.0 + _SLACK
    j, last = g << room.shift, (g + 1) << room.shift
    if last > weights.shape[0]:
        last = weights.shape[0]
    while j < last and target >= weights[j]:
        target -= weights[j]
        j += 1
    return j if j < last else -1


@helper
def coin(rng: Any, chance: float) -> bool:
    """True with this probability, however small it is: a small one is reduced by 20 bits at a time."""
    while chance < _SHORT:
        if chance <= 0.0 or rng.random() >= _SHORT:
            return False
        chance /= _SHORT
    return rng.random() < chance


@helper
def rare_feature(rng: Any, light: float, room: Sampler) -> int:
    """A feature of weight below ``light``, each with its probability / _RARE, by one pass over all; otherwise -1.

    The pass keeps one of the light features so far, each with probability proportional to its weight. Coins are tossed
    for the less likely side, so that no probability is rounded away.
    """
    weights, feature, before, total = room.weights, -1, 0.0, 0.0
    for j in range(weights.shape[0]):
        w = weights[j]
        total += w
        if 0.0 < w < light:
            if w <= before:
                if coin(rng, w / (before + w)):
                    feature = j
            elif not coin(rng, before / (before + w)):
                feature = j
            before += w
    return feature if coin(rng, before / total / _RARE) else -1


@helper
def draw(rng: Any, total: float, room: Sampler) -> int:
    """A feature in proportion to its weight; ``total`` is what ``settle`` returns.

    Light features, of probability below _RARE / d each, are drawn by ``rare_feature`` only, which is called in one of
    1 / _RARE draws. The others are drawn by the walk, whose rounding errors are small next to their probabilities.
    """
    light = _RARE / room.weights.shape[0] * total
    u = rng.random()
    if u < _RARE:
        j = rare_feature(rng, light, room)
        if j >= 0:
            return j
        u = rng.random()
    else:
        u = (u - _RARE) / (1.0 - _RARE)
    while True:
        j = draw_feature(u * total, room)
        # Not ">= light", which is never true for a weight that is NaN.
        if j >= 0 and not room.weights[j] < light:
            return j
        u = rng.random()


@helper
def accepted_feature(
    rng: Any,
    totals: NDArray[Any],
    unit: float,
    cover: float,
    offset: float,
    found: int,
    room: Sampler,
    work: NDArray[Any],
) -> tuple[int, float]:
    """Draw a feature by its weight at exponent unit |total|, by rejection from larger kept weights; and the offset.

    The first ``found`` listed features get new weights before; all of them if it is -1. Whatever the weights of a try
    are, the probability that it accepts feature j is j's exact weight over a number that is the same for all j. So the
    law does not depend on them, nor on how they change after a rejection: the rejected feature, whose weight may be
    much too large, gets a new one.
    """
    tries = 0
    while True:
        total = 0.0
        if found >= 0 and tries != _PATIENCE and reweight(totals, unit, cover, offset, found, room):
            total = settle(room)
        if total < _SMALLEST_TOTAL:
            offset, found = rebuild(totals, unit, cover, room), totals.shape[0]
            total = settle(room)
        work[3] += found
        j = draw(rng, total, room)
        chance = weight(unit * totals[j], offset, math.exp(-2.0 * offset)) / room.weights[j]
        # Not "chance >= 1", which is never true for a weight that is NaN.
        if not chance < 1.0 or coin(rng, chance):
            return j, offset
        room.listed[0], room.covered[j], found = j, -1.0, 1
        tries += 1


@helper
def draw_sign(rng: Any, exponent: float) -> float:
    """+1 or -1 with odds exp(-exponent) : exp(exponent), so that the sign against the gradient is the likelier."""
    e = math.exp(-2.0 * abs(exponent))
    against = not coin(rng, e / (1.0 + e))
    return -1.0 if against == (exponent >= 0) else 1.0


@helper
def exponential(rng: Any) -> float:
    """A standard exponential with a complete tail: a Generator's ends at 44, so above 16 it is 16 plus a fresh one."""
    e, start = rng.standard_exponential(), 0.0
    while e > 16.0:
        start += 16.0
        e = rng.standard_exponential()
    return start + e


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def laplace_vertex(rng: Any, gradient: NDArray[Any], sharpness: float) -> tuple[int, float]:
    """The vertex with the smallest <s, sharpness gradient> after Laplace noise, 2d draws."""
    best, feature, sign = math.inf, 0, 1.0
    for j in range(gradient.shape[0]):
        score = sharpness * gradient[j]
        plus = score + exponential(rng) - exponential(rng)
        minus = -score + exponential(rng) - exponential(rng)
        if plus < best:
            best, feature, sign = plus, j, 1.0
        if minus < best:
            best, feature, sign = minus, j, -1.0
    return feature, sign


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def exponential_vertex(rng: Any, gradient: NDArray[Any], sharpness: float, room: Sampler) -> tuple[int, float]:
    """A vertex drawn by the exponential mechanism from weights that are computed for this draw."""
    rebuild(gradient, sharpness, 0.0, room)
    j = draw(rng, settle(room), room)
    return j, draw_sign(rng, sharpness * gradient[j])


# --- sparse rows, both ways --------------------------------------------------------------------------------------


class Matrix(NamedTuple):
    """Rows and, after them, columns of a matrix whose entries are at most 1 in size; in single precision."""

    data: NDArray[np.float32]
    indices: NDArray[Any]
    indptr: NDArray[np.uint64]
    t_data: NDArray[np.float32]
    t_indices: NDArray[np.uint32]
    t_indptr: NDArray[np.uint64]


# --- dithered residuals ------------------------------------------------------------------------------------------
# A row's residual is rounded to one of levels + 1 values between -limit and limit, up or down by its number theta: the
# mean over theta is the residual. So a row's entries are touched only when its margin crosses one of two thresholds.


class Grid(NamedTuple):
    """The levels of residuals. Margins and weights are in units of ``reach``, the largest margin in the ball."""

    loss: int
    limit: float
    levels: int
    reach: float


class Dither(NamedTuple):
    """The rows' state: for each the scaled margin, the two thresholds between which its level stays, and the level.

    ``totals`` is X^T (level - levels / 2), so that the gradient X^T r is a multiple of it. ``crossed`` is room for row
    numbers.
    """

    state: NDArray[np.float32]
    theta: NDArray[np.float32]
    totals: NDArray[np.float64]
    crossed: NDArray[np.uint32]


def dither(m: int, d: int) -> Dither:
    """Room for m rows of d features; ``start`` before the first step."""
    return Dither(np.empty((m, 4), np.float32), np.empty(m, np.float32), np.empty(d), np.empty(m, np.uint32))


def start(dither: Dither, theta: NDArray[np.float32], levels: Any, totals: Any) -> None:
    """All rows at margin 0, on these levels, of which ``totals`` is the sum; see ``start_levels``."""
    dither.theta[:], dither.totals[:] = theta, totals
    # Thresholds that any step crosses, as ``set_level`` gives a row with margin 0.
    dither.state[:] = 0.0, np.inf, np.inf, 0.0
    dither.state[:, 3] = levels


@helper
def level_of(grid: Grid, margin: float, y: float, theta: float) -> float:
    """The level of a row's residual, from 0 to grid.levels: residual -limit + level 2 limit / count."""
    # Not math.floor, which makes an integer of NaN.
    share = (residual(grid.loss, margin, y) / grid.limit + 1.0) / 2.0
    return clipped(np.floor(share * grid.levels + theta), 0.0, float(grid.levels))


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def start_levels(grid: Grid, y: NDArray[Any], theta: NDArray[Any], out: NDArray[Any]) -> None:
    """out = level - levels / 2 of every row at margin 0."""
    for i in range(y.shape[0]):
        out[i] = level_of(grid, 0.0, y[i], theta[i]) - grid.levels / 2


@helper
def margin_at(loss: int, r: float, y: float) -> float:
    """The smallest margin at which the residual is r or more: the inverse of ``residual``, infinite beyond its ends."""
    if loss == LOGISTIC:
        p = r + y
        if p <= 0.0:
            return -math.inf
        return math.inf if p >= 1.0 else math.log(p / (1.0 - p))
    if loss in (HINGE, HUBER):
        low = -y if loss == HINGE else -1.0
        high = 1.0 - y if loss == HINGE else 1.0
        if r <= low:
            return -math.inf
        if r > high:
            return math.inf
        return _WIDTH * r + 2.0 * y - 1.0 if loss == HINGE else r + y
    return r + y if loss == SQUARED else math.nan


@helper
def set_level(grid: Grid, dither: Dither, i: int, level: float, y: float) -> None:
    """Put row i on a level, with the thresholds of its margin; outermost levels have one threshold only.

    A row at margin 0 gets thresholds that any step crosses, so that real ones are computed only for rows that move.
    """
    state, theta, height = dither.state, dither.theta[i], 2.0 * grid.limit / grid.levels
    state[i, 3] = level
    if state[i, 0] == 0.0:
        state[i, 1] = np.inf
        return
    state[i, 1] = -np.inf
    state[i, 2] = np.inf
    if level > 0.0:
        state[i, 1] = margin_at(grid.loss, (level - theta) * height - grid.limit, y) / grid.reach
    if level < grid.levels:
        state[i, 2] = margin_at(grid.loss, (level + 1.0 - theta) * height - grid.limit, y) / grid.reach


@helper
def push_rows(
    grid: Grid,
    matrix: Matrix,
    y: NDArray[Any],
    dither: Dither,
    number: int,
    scale: float,
    room: Sampler,
    work: NDArray[Any],
) -> int:
    """New levels for the first ``number`` crossed rows; returns how many features may no longer be covered, listed.

    Some are listed more than once. If the rows have more entries than there are features, all features are looked at.
    """
    d, found, entries = dither.totals.shape[0], 0, np.int64(0)
    totals, covered, listed, indptr = dither.totals, room.covered, room.listed, matrix.indptr
    for a in range(number):
        i = dither.crossed[a]
        entries += np.int64(indptr[i + 1] - indptr[i])
    few = entries < d
    for a in range(number):
        i = dither.crossed[a]
        level = level_of(grid, grid.reach * scale * dither.state[i, 0], y[i], dither.theta[i])
        change = level - dither.state[i, 3]
        set_level(grid, dither, i, level, y[i])
        if change == 0.0:
            continue
        work[1] += 1
        work[2] += np.int64(indptr[i + 1] - indptr[i])
        if few:
            for b in range(indptr[i], indptr[i + 1]):
                k = matrix.indices[b]
                total = totals[k] + change * matrix.data[b]
                totals[k] = total
                if abs(total) > covered[k]:
                    listed[found] = k
                    found += 1
        else:
            for b in range(indptr[i], indptr[i + 1]):
                totals[matrix.indices[b]] += change * matrix.data[b]
    for k in range(0 if few else d):
        if abs(totals[k]) > covered[k]:
            listed[found] = k
            found += 1
    return found


@helper
def move_rows(
    matrix: Matrix, dither: Dither, j: int, sign: float, step: int, scale: float, v: NDArray[Any], work: NDArray[Any]
) -> tuple[float, int]:
    """Step to a vertex: v and the margins of the rows with feature j; (scale of v, rows that cross a threshold)."""
    mu = 2.0 / (step + 2.0)
    scale *= 1.0 - mu
    growth = mu * sign / scale
    v[j] += growth
    t_data, t_indices, state, crossed = matrix.t_data, matrix.t_indices, dither.state, dither.crossed
    start, end = matrix.t_indptr[j], matrix.t_indptr[j + 1]
    push, shrunk, number = np.float32(growth), np.float32(scale), 0
    for a in range(start, end):
        i = t_indices[a]
        u = state[i, 0] + push * t_data[a]
        state[i, 0] = u
        margin = shrunk * u
        # One branch, hardly ever taken: the processor predicts it well, so that it is faster than code without one.
        if (margin < state[i, 1]) | (margin >= state[i, 2]):
            crossed[number] = i
            number += 1
    work[0] += np.int64(end - start)
    return scale, number


@helper
def all_rows(scale: float, moved: bool, state: NDArray[Any], crossed: NDArray[Any]) -> int:
    """How many of all rows are beyond a threshold, listed as ``move_rows`` does; all of them if the grid has moved.

    A margin of 0 stays 0 while weights shrink, and so does its level.
    """
    shrunk, number = np.float32(scale), 0
    for i in range(state.shape[0]):
        margin = shrunk * state[i, 0]
        if moved | ((state[i, 0] != 0.0) & ((margin < state[i, 1]) | (margin >= state[i, 2]))):
            crossed[number] = i
            number += 1
    return number


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def dithered_block(
    rng: Any,
    grid: Grid,
    matrix: Matrix,
    y: NDArray[Any],
    first: int,
    count: int,
    sharpness: float,
    scale: float,
    moved: bool,
    v: NDArray[Any],
    dither: Dither,
    vertices: NDArray[Any],
    room: Sampler,
    work: NDArray[Any],
) -> float:
    """``count`` steps from step number ``first`` with dithered residuals; updates v and the rows' state in place.

    All rows are put on their level first; ``moved`` says that the grid is not that of the block before. Rows that the
    last step takes beyond a threshold are left to the next block. Weights are reach scale v / feature bound, and
    ``sharpness`` is reach / (n noise scale). ``work`` counts rows checked, rows pushed, entries touched and features
    weighted. Returns the new scale of v.
    """
    d, totals, unit, offset = v.shape[0], dither.totals, sharpness * (2.0 * grid.limit / grid.levels), room.frame[1]
    # ``clipped`` is not used: with constant arguments Numba would compile it again.
    cover = _COVER if unit < _COVER else _LARGEST_COVER if unit > _LARGEST_COVER else unit
    number = all_rows(scale, moved, dither.state, dither.crossed)
    work[0] += y.shape[0]
    for step in range(first, first + count):
        found = push_rows(grid, matrix, y, dither, number, scale, room, work)
        # Noise is proportional to the limit of residuals, so that the unit mostly changes only by rounding between
        # blocks, for which the cover has room. No exponent is further above the offset than the largest one.
        if step == first and not abs(unit - room.frame[0]) * (offset + _LARGEST_EXPONENT) < _SAME * unit:
            found, room.frame[0] = -1, unit
        j, offset = accepted_feature(rng, totals, unit, cover, offset, found, room, work)
        sign = draw_sign(rng, unit * totals[j])
        vertices[step - first] = j if sign > 0 else d + j
        scale, number = move_rows(matrix, dither, j, sign, step, scale, v, work)
    room.frame[1] = offset
    return scale


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def dithered_laplace_block(
    rng: Any,
    grid: Grid,
    matrix: Matrix,
    y: NDArray[Any],
    first: int,
    count: int,
    sharpness: float,
    scale: float,
    moved: bool,
    v: NDArray[Any],
    dither: Dither,
    vertices: NDArray[Any],
    room: Sampler,
    work: NDArray[Any],
) -> float:
    """``dithered_block`` with Laplace noise on every vertex instead of the exponential mechanism."""
    d, number = v.shape[0], all_rows(scale, moved, dither.state, dither.crossed)
    work[0] += y.shape[0]
    for step in range(first, first + count):
        push_rows(grid, matrix, y, dither, number, scale, room, work)
        work[3] += d
        j, sign = laplace_vertex(rng, dither.totals, sharpness * (2.0 * grid.limit / grid.levels))
        vertices[step - first] = j if sign > 0 else d + j
        scale, number = move_rows(matrix, dither, j, sign, step, scale, v, work)
    return scale


# --- the exponential mechanism in whole numbers ----------------------------------------------------------------
# Where entries have few binary digits and levels are whole numbers, totals are exact: multiples of a power of two. A
# kept weight is then any whole number that is at least the true one, 2^DIGITS (exp(-unit (top - |total|)) +
# exp(-unit (top + |total|))). A try takes j with probability weight / sum of weights, which are whole numbers, and
# keeps it with chance true weight / weight: the product is the true weight times a factor that all j share. So the law
# is exact whatever is kept. Decisions in double have a margin; closer ones are left to the caller, with their words.
# What is computed in double errs by less than 2^-44 of itself: differences of totals are exact or rounded once, and an
# exponent is at most _FAR.

DIGITS, _SCALE = 56, 2.0**56
# The sum of all weights after they are computed anew, and beyond which it might grow too large for 64 bits.
_FRESH_TOTAL, _LARGEST_TOTAL = 2.0**48, 2.0**61
# Every weight is 1 at least. Below so many times their number the sum is too small: too many tries would be in vain.
_LEAST_SHARE = 64.0
_ENLARGED, _MARGIN, _TINY, _SIGN_MARGIN = 1.0 + 2.0**-36, 2.0**-36, 2.0**-50, 2.0**-40
_FAR, _APART = 80.0, 20.0
_TO_DOUBLE, _WORD_UNIT = np.uint64(11), 2.0**-53
# The places of ``Progress``, and what it says is to be done next, or why a call ended.
PLACE, STEP, PHASE, NUMBER, FOUND, TRIES, FEATURE, STATE = 0, 1, 2, 3, 4, 5, 6, 7
PUSH, DRAW, HARD, KEPT, KEPT_AGAINST = 0, 1, 2, 3, 4


class WholeSampler(NamedTuple):
    """Room for whole weights of all features, and for the list of those that need another; see ``Sampler``.

    ``frame`` is what the weights are computed for: the exponent of a total of 1, and the top.
    """

    shift: int
    weights: NDArray[np.uint64]
    sums: NDArray[np.uint64]
    covered: NDArray[np.float64]
    listed: NDArray[np.int64]
    shares: NDArray[np.float64]
    frame: NDArray[np.float64]


def whole_sampler(d: int, shift: int | None = None) -> WholeSampler:
    """Room for d features, in groups as ``sampler`` has them."""
    shift = round(math.log2(d) / 2) if shift is None else shift
    groups, integers = ((d - 1) >> shift) + 1, np.uint64
    return WholeSampler(
        shift, np.zeros(d, integers), np.zeros(groups, integers), np.zeros(d), np.zeros(d, np.int64), np.zeros(d),
        np.zeros(2),
    )  # fmt: skip


@helper
def true_share(size: float, unit: float, top: float) -> float:
    """exp(-unit (top - size)) + exp(-unit (top + size)), to 2^-44 of itself or to 2^-115."""
    exponent = unit * (top - size)
    if exponent > _FAR:
        return 0.0
    e = math.exp(-exponent)
    # Where it is left out, the second is less than 2^-57 of the first.
    return e + math.exp(-unit * (top + size)) if unit * size < _APART else e


@helper
def whole_rebuild(totals: NDArray[Any], unit: float, width: float, room: WholeSampler) -> None:
    """All weights, each good for totals up to ``width`` larger, and the sums of groups."""
    largest, together = 0.0, 0.0
    for j in range(totals.shape[0]):
        size = abs(totals[j])
        if size > largest:
            largest = size
    peak = largest + width
    for j in range(totals.shape[0]):
        room.covered[j] = abs(totals[j]) + width
        room.shares[j] = true_share(room.covered[j], unit, peak)
        together += room.shares[j]
    room.frame[1] = peak + math.log(_SCALE / _FRESH_TOTAL * together) / unit
    factor = _ENLARGED * _SCALE * math.exp(-unit * (room.frame[1] - peak))
    for g in range(room.sums.shape[0]):
        room.sums[g] = np.uint64(0)
    for j in range(totals.shape[0]):
        room.weights[j] = np.uint64(1) + np.uint64(factor * room.shares[j])
        room.sums[j >> room.shift] += room.weights[j]


@helper
def whole_reweight(totals: NDArray[Any], unit: float, width: float, number: int, room: WholeSampler) -> bool:
    """New weights for the uncovered of the first ``number`` listed; False if they are too large: rebuild all."""
    top, grown = room.frame[1], 0.0
    for a in range(number):
        k = room.listed[a]
        size = abs(totals[k])
        if size <= room.covered[k]:
            continue
        size += width
        if size > top:
            return False
        new = np.uint64(1) + np.uint64(_ENLARGED * _SCALE * true_share(size, unit, top))
        grown += float(new)
        if grown > _LARGEST_TOTAL:
            return False
        # Unsigned integers may pass through 0: the sum is right again after both.
        room.sums[k >> room.shift] += new - room.weights[k]
        room.weights[k] = new
        room.covered[k] = size
    return True


@helper
def whole_total(room: WholeSampler) -> Any:
    """The sum of all weights, exactly."""
    total = np.uint64(0)
    for g in range(room.sums.shape[0]):
        total += room.sums[g]
    return total


@helper
def whole_feature(t: Any, room: WholeSampler) -> int:
    """The feature at which the weights, added up in order, pass ``t``, which is less than their sum."""
    sums, weights, g = room.sums, room.weights, 0
    while t >= sums[g]:
        t -= sums[g]
        g += 1
    j = g << room.shift
    while t >= weights[j]:
        t -= weights[j]
        j += 1
    return j


@helper
def whole_draw(
    words: NDArray[Any],
    progress: NDArray[Any],
    totals: NDArray[Any],
    unit: float,
    width: float,
    room: WholeSampler,
    work: NDArray[Any],
) -> None:
    """Tries until one is kept, is hard, or the words are used up; ``progress`` then says which.

    A feature that is not kept, whose weight may be much too large, gets a new one. Words of a hard try are those from
    PLACE on.
    """
    d = totals.shape[0]
    progress[PHASE] = DRAW
    while True:
        found, total = progress[FOUND], np.uint64(0)
        if found >= 0 and progress[TRIES] != _PATIENCE and whole_reweight(totals, unit, width, found, room):
            total = whole_total(room)
        if float(total) < _LEAST_SHARE * d or float(total) > _LARGEST_TOTAL:
            whole_rebuild(totals, unit, width, room)
            total, found = whole_total(room), d
        work[3] += found
        progress[FOUND] = 0
        mask = total - np.uint64(1)
        for shift in range(6):
            mask |= mask >> np.uint64(1 << shift)
        while True:
            if progress[PLACE] + 3 > words.shape[0]:
                return
            t = words[progress[PLACE]] & mask
            progress[PLACE] += 1
            if t < total:
                break
        j = whole_feature(t, room)
        progress[FEATURE] = j
        first, second = words[progress[PLACE]], words[progress[PLACE] + 1]
        size = abs(totals[j])
        chance = _SCALE * true_share(size, unit, room.frame[1]) / float(room.weights[j])
        above = float(np.int64(first >> _TO_DOUBLE)) * _WORD_UNIT - chance
        e = math.exp(-2.0 * unit * size)
        other = float(np.int64(second >> _TO_DOUBLE)) * _WORD_UNIT - e / (1.0 + e)
        if abs(above) <= _MARGIN * chance + _TINY or (above < 0.0 and abs(other) <= _SIGN_MARGIN):
            progress[PHASE] = HARD
            return
        progress[PLACE] += 2
        if above < 0.0:
            progress[PHASE] = KEPT_AGAINST if other < 0.0 else KEPT
            return
        whole_rejected(progress, room)


@helper
def whole_rejected(progress: NDArray[Any], room: WholeSampler) -> None:
    """The feature of the last try is to get a new weight."""
    j = progress[FEATURE]
    room.listed[0], room.covered[j] = j, -1.0
    progress[FOUND] = 1
    progress[TRIES] += 1


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def whole_block(
    words: NDArray[Any],
    progress: NDArray[Any],
    grid: Grid,
    matrix: Matrix,
    y: NDArray[Any],
    first: int,
    count: int,
    unit: float,
    scale: float,
    moved: bool,
    v: NDArray[Any],
    dither: Dither,
    vertices: NDArray[Any],
    room: WholeSampler,
    work: NDArray[Any],
) -> float:
    """``dithered_block`` with exact selections, from ``words``.

    It ends when all steps are made, when the words are used up (PHASE is DRAW), or at a decision that is HARD. Call it
    again with more words, or with the decision as the PHASE; ``progress`` says where it goes on. A feature is chosen
    with the sign against its total, KEPT, or with that of its total, KEPT_AGAINST.
    """
    d, totals = v.shape[0], dither.totals
    width = (_COVER if unit < _COVER else _LARGEST_COVER if unit > _LARGEST_COVER else unit) / unit
    while progress[STEP] < count:
        step = first + progress[STEP]
        if progress[PHASE] == PUSH:
            number = progress[NUMBER]
            if progress[STEP] == 0:
                number = all_rows(scale, moved, dither.state, dither.crossed)
                work[0] += y.shape[0]
            progress[FOUND] = push_rows(grid, matrix, y, dither, number, scale, room, work)
            progress[TRIES] = 0
            if room.frame[0] != unit:
                progress[FOUND], room.frame[0] = -1, unit
            progress[PHASE] = DRAW
        if progress[PHASE] == DRAW:
            whole_draw(words, progress, totals, unit, width, room, work)
            if progress[PHASE] == DRAW or progress[PHASE] == HARD:
                break
        j = progress[FEATURE]
        against = progress[PHASE] == KEPT_AGAINST
        sign = -1.0 if (totals[j] >= 0.0) != against else 1.0
        vertices[progress[STEP]] = j if sign > 0 else d + j
        scale, number = move_rows(matrix, dither, j, sign, step, scale, v, work)
        progress[NUMBER] = number
        progress[STEP] += 1
        progress[PHASE] = PUSH
    return scale


# --- squared loss, few features ----------------------------------------------------------------------------------


@helper
def gram_row(matrix: Matrix, j: int, out: NDArray[Any]) -> int:
    """Row j of X^T X, added to ``out``; returns the number of entries touched."""
    entries = np.int64(0)
    for a in range(matrix.t_indptr[j], matrix.t_indptr[j + 1]):
        i, x = matrix.t_indices[a], float(matrix.t_data[a])
        for b in range(matrix.indptr[i], matrix.indptr[i + 1]):
            out[matrix.indices[b]] += x * matrix.data[b]
        entries += np.int64(matrix.indptr[i + 1] - matrix.indptr[i])
    return int(entries)


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def gram_block(
    rng: Any,
    laplace: bool,
    matrix: Matrix,
    first: int,
    count: int,
    reach: float,
    sharpness: float,
    scale: float,
    v: NDArray[Any],
    q: NDArray[Any],
    p: NDArray[Any],
    gram: NDArray[Any],
    known: NDArray[Any],
    gradient: NDArray[Any],
    vertices: NDArray[Any],
    room: Sampler,
    work: NDArray[Any],
) -> float:
    """``count`` exact steps for the squared loss, gradient scale q - p with q = reach X^T X v and p = X^T y.

    Rows of X^T X are computed when their feature is chosen first, and kept in ``gram``; ``known`` says which are there.
    """
    d = v.shape[0]
    for step in range(first, first + count):
        for k in range(d):
            gradient[k] = scale * q[k] - p[k]
        if laplace:
            j, sign = laplace_vertex(rng, gradient, sharpness)
        else:
            j, sign = exponential_vertex(rng, gradient, sharpness, room)
        vertices[step - first] = j if sign > 0 else d + j
        mu = 2.0 / (step + 2.0)
        scale *= 1.0 - mu
        growth = mu * sign / scale
        v[j] += growth
        if not known[j]:
            known[j] = True
            work[2] += gram_row(matrix, j, gram[j])
        for k in range(d):
            q[k] += growth * reach * gram[j, k]
        work[3] += d
    return scale


# --- dense rows ------------------------------------------------------------------------------------------------
# The caller draws the noise, because passing a Generator to a compiled function costs more than the steps of a small
# problem. Margins are updated with the iterate, u <- (1 - mu) u +- mu radius x_j, so a step passes over the rows once.


@helper
def choose(gradient: NDArray[Any], scale: float, noise: NDArray[Any]) -> int:
    """The vertex of the largest noisy score: j for +e_j, with score -gradient_j; d + j for -e_j, with gradient_j."""
    d = gradient.shape[0]
    best, highest = 0, -np.inf
    for j in range(d):
        up = scale * noise[j] - gradient[j]
        if up > highest:
            best, highest = j, up
    for j in range(d):
        down = scale * noise[d + j] + gradient[j]
        if down > highest:
            best, highest = d + j, down
    return best


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
def dense_steps(
    matrix: NDArray[Any],
    y: NDArray[Any],
    loss: int,
    noise: NDArray[Any],
    first: int,
    radius: float,
    n: int,
    scale: float,
    adaptive: bool,
    feature_bound: float,
    label_bound: float,
    lipschitz: float,
    w: NDArray[Any],
    u: NDArray[Any],
    gradient: NDArray[Any],
    scales: NDArray[Any],
    vertices: NDArray[Any],
    iterates: NDArray[Any],
) -> None:
    """One step for each row of ``noise``, for each of many fits; updates their weights w and margins u in place.

    The first axis of ``noise`` and of what follows ``gradient``, and of w and u, is the fit. ``scale`` multiplies the
    noise; if ``adaptive``, it is first multiplied by the gradient bound at |w|_1 over ``lipschitz``. ``gradient`` is
    work space. Iterates are kept if ``iterates`` has room.
    """
    m, d = matrix.shape
    for fit in range(noise.shape[0]):
        for step in range(noise.shape[1]):
            norm = 0.0
            for j in range(d):
                norm += abs(w[fit, j])
                gradient[j] = 0.0
            for i in range(m):
                # Divided before the summation, so that no sum of bounded entries overflows.
                r = residual(loss, u[fit, i], y[i]) * (radius / n)
                for j in range(d):
                    gradient[j] += r * matrix[i, j]
            noise_scale = scale
            if adaptive:
                limit = residual_limit(loss, feature_bound * min(norm, radius), label_bound)
                noise_scale = scale * min(feature_bound * limit / lipschitz, 1.0)
            vertex = choose(gradient, noise_scale, noise[fit, step])
            scales[fit, step], vertices[fit, step] = noise_scale, vertex
            mu = 2.0 / (first + step + 2.0)
            feature = vertex % d
            push = mu * radius if vertex < d else -mu * radius
            for j in range(d):
                w[fit, j] *= 1.0 - mu
            w[fit, feature] += push
            for i in range(m):
                u[fit, i] = (1.0 - mu) * u[fit, i] + push * matrix[i, feature]
            if iterates.shape[1] > 0:
                for j in range(d):
                    iterates[fit, step, j] = w[fit, j]
