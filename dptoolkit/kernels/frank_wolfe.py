"""Frank-Wolfe over the L1 ball, many steps in one call, on sparse rows and on dense ones.

On sparse rows a step touches the rows that contain the chosen feature, and the features of those rows. The iterate is
w = scale * v, so shrinking costs nothing. The vertex is drawn from the exponential mechanism exactly: feature j has
weight 2 cosh(sharpness g_j), weights are summed in groups of about sqrt(d), and a draw walks over the groups, then over
one group. The 53 bits of one uniform number cannot represent very small probabilities: features that have them are
drawn by an occasional pass over all features (``draw``), so that every vertex has its exact probability.

Bounded-residual losses keep the residuals of untouched rows ("lazy rows") until the caller refreshes them. For the
squared loss the gradient is scale * q - p with q = X^T X v kept up to date, so nothing is stale; weights are kept for
an older scale, and a draw from them is corrected by rejection, which is exact.

Constructs that compile slowly are avoided: arrays are allocated by the caller (``Sampler``) and copied in loops (a
slice assignment also compiles the text of its error message, 3 s), and Laplace noise has separate functions.
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
# Weights are kept relative to exp(offset); beyond this they are rebuilt with a new offset.
_LARGEST_EXPONENT = 500.0
# Likewise when all weights together have become this small: the offset is then far too high, and weights of small
# probability would be rounded away.
_SMALLEST_TOTAL = 1e-20
# A group's sum that has fallen to less than this part of its largest value is summed again, as it may be mostly the
# rounding error of what was subtracted.
_LOST = 1e-3
# Rejection: the largest exponent by which a stale weight may be off before all are rebuilt.
_LARGEST_DRIFT = 1.0
# Features that together have at most this probability are not drawn by the walk: one draw in 1 / _RARE is for them.
_RARE = 2.0**-12
# A group's sum is enlarged by this part, more than its rounding error; a draw that falls into the addition is repeated.
_SLACK = 1e-9
# A coin whose probability is below this gets as many more random bits as it needs.
_SHORT = 2.0**-20


class Sampler(NamedTuple):
    """Room for the weights of all features and for the list of those that a step has changed.

    Group g holds the features j with j >> shift == g. ``peaks`` has the largest value of each group's sum since it was
    last summed, ``stamp`` the last step that changed a feature.
    """

    shift: int
    weights: NDArray[np.float64]
    sums: NDArray[np.float64]
    peaks: NDArray[np.float64]
    changed: NDArray[np.int64]
    stamp: NDArray[np.int64]


def sampler(d: int, shift: int | None = None) -> Sampler:
    """Room for d features, by default in groups of about sqrt(d): a power of 2, which spares a division a weight."""
    shift = round(math.log2(d) / 2) if shift is None else shift
    groups = ((d - 1) >> shift) + 1
    return Sampler(
        shift, np.zeros(d), np.zeros(groups), np.zeros(groups), np.zeros(d, np.int64), np.zeros(d, np.int64)
    )


@njit(cache=True, nogil=True, error_model="numpy")
def clipped(value: float, low: float, high: float) -> float:
    """The value, or the end of the range that it exceeds. NaN stays NaN, which min and max do not promise."""
    if value < low:
        return low
    return high if value > high else value


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def residual_limit(loss: int, margin: float, label: float) -> float:
    """The largest |residual| where |margin| and |label| are at most these numbers, as in losses.py."""
    if loss == LOGISTIC:
        return 1.0 / (1.0 + math.exp(-margin))
    if loss == HINGE:
        return min(1.0, (1.0 + margin) / _WIDTH)
    if loss == HUBER:
        return min(1.0, margin + label)
    return margin + label if loss == SQUARED else math.nan


@njit(cache=True, nogil=True, error_model="numpy")
def weight(exponent: float, offset: float, echo: float) -> float:
    """exp(|exponent| - offset) + exp(-|exponent| - offset); ``echo`` is exp(-2 offset)."""
    size = abs(exponent)
    e = math.exp(size - offset)
    # A division is cheaper than a second exponential, while echo is far from underflow.
    return e + echo / e if echo > 1e-260 else e * (1.0 + math.exp(-2.0 * size))


@njit(cache=True, nogil=True, error_model="numpy")
def rebuild(gradient: NDArray[Any], sharpness: float, room: Sampler) -> float:
    """Compute all weights and group sums for ``gradient``; returns the offset."""
    offset = 0.0
    for j in range(gradient.shape[0]):
        size = sharpness * abs(gradient[j])
        if size > offset:
            offset = size
    for g in range(room.sums.shape[0]):
        room.sums[g] = 0.0
    echo = math.exp(-2.0 * offset)
    for j in range(gradient.shape[0]):
        room.weights[j] = weight(sharpness * gradient[j], offset, echo)
        room.sums[j >> room.shift] += room.weights[j]
    for g in range(room.sums.shape[0]):
        room.peaks[g] = room.sums[g]
    return offset


@njit(cache=True, nogil=True, error_model="numpy")
def reweight(gradient: NDArray[Any], sharpness: float, offset: float, touched: int, room: Sampler) -> bool:
    """New weights for the first ``touched`` changed features; False if one is too large and all must be rebuilt."""
    echo = math.exp(-2.0 * offset)
    for a in range(touched):
        k = room.changed[a]
        exponent = sharpness * gradient[k]
        if abs(exponent) - offset > _LARGEST_EXPONENT:
            return False
        new = weight(exponent, offset, echo)
        room.sums[k >> room.shift] += new - room.weights[k]
        room.weights[k] = new
    return True


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def coin(rng: Any, chance: float) -> bool:
    """True with this probability, however small it is: a small one is reduced by 20 bits at a time."""
    while chance < _SHORT:
        if chance <= 0.0 or rng.random() >= _SHORT:
            return False
        chance /= _SHORT
    return rng.random() < chance


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def draw_sign(rng: Any, exponent: float) -> float:
    """+1 or -1 with odds exp(-exponent) : exp(exponent), so that the sign against the gradient is the likelier."""
    e = math.exp(-2.0 * abs(exponent))
    against = not coin(rng, e / (1.0 + e))
    return -1.0 if against == (exponent >= 0) else 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def exponential(rng: Any) -> float:
    """A standard exponential with a complete tail: a Generator's ends at 44, so above 16 it is 16 plus a fresh one."""
    e, start = rng.standard_exponential(), 0.0
    while e > 16.0:
        start += 16.0
        e = rng.standard_exponential()
    return start + e


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def lazy_move(
    loss: int, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], t_data: NDArray[Any],
    t_indices: NDArray[Any], t_indptr: NDArray[Any], y: NDArray[Any], j: int, growth: float, scale: float, step: int,
    u: NDArray[Any], r: NDArray[Any], gradient: NDArray[Any], room: Sampler,
) -> int:
    """After a change of v_j, update the rows with feature j; returns the number of features of changed gradient."""
    changed, stamp, touched = room.changed, room.stamp, 0
    for a in range(t_indptr[j], t_indptr[j + 1]):
        i = t_indices[a]
        u[i] += growth * t_data[a]
        new = residual(loss, scale * u[i], y[i])
        change = new - r[i]
        r[i] = new
        for b in range(indptr[i], indptr[i + 1]):
            k = indices[b]
            gradient[k] += change * data[b]
            if stamp[k] != step:
                stamp[k] = step
                changed[touched] = k
                touched += 1
    return touched


@njit(cache=True, nogil=True, error_model="numpy")
def lazy_block(
    rng: Any, loss: int, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any],
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any], y: NDArray[Any],
    first: int, count: int, radius: float, sharpness: float, scale: float, v: NDArray[Any], u: NDArray[Any],
    r: NDArray[Any], gradient: NDArray[Any], vertices: NDArray[Any], room: Sampler,
) -> float:
    """``count`` steps from step number ``first`` with lazy rows; updates v, u = X v, r, gradient = X^T r in place.

    ``sharpness`` is radius / (n * noise scale). Returns the new scale of v.
    """
    d = v.shape[0]
    offset = rebuild(gradient, sharpness, room)
    for step in range(first, first + count):
        total = settle(room)
        if total < _SMALLEST_TOTAL:
            offset = rebuild(gradient, sharpness, room)
            total = settle(room)
        j = draw(rng, total, room)
        sign = draw_sign(rng, sharpness * gradient[j])
        vertices[step - first] = j if sign > 0 else d + j
        mu = 2.0 / (step + 2.0)
        scale *= 1.0 - mu
        growth = mu * sign * radius / scale
        v[j] += growth
        touched = lazy_move(
            loss, data, indices, indptr, t_data, t_indices, t_indptr, y, j, growth, scale, step, u, r, gradient, room
        )
        if not reweight(gradient, sharpness, offset, touched, room):
            offset = rebuild(gradient, sharpness, room)
    return scale


@njit(cache=True, nogil=True, error_model="numpy")
def lazy_laplace_block(
    rng: Any, loss: int, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any],
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any], y: NDArray[Any],
    first: int, count: int, radius: float, sharpness: float, scale: float, v: NDArray[Any], u: NDArray[Any],
    r: NDArray[Any], gradient: NDArray[Any], vertices: NDArray[Any], room: Sampler,
) -> float:
    """``lazy_block`` with Laplace noise on every vertex instead of the exponential mechanism."""
    d = v.shape[0]
    for step in range(first, first + count):
        j, sign = laplace_vertex(rng, gradient, sharpness)
        vertices[step - first] = j if sign > 0 else d + j
        mu = 2.0 / (step + 2.0)
        scale *= 1.0 - mu
        growth = mu * sign * radius / scale
        v[j] += growth
        lazy_move(
            loss, data, indices, indptr, t_data, t_indices, t_indptr, y, j, growth, scale, step, u, r, gradient, room
        )
    return scale


@njit(cache=True, nogil=True, error_model="numpy")
def squared_move(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], t_data: NDArray[Any], t_indices: NDArray[Any],
    t_indptr: NDArray[Any], j: int, growth: float, step: int, q: NDArray[Any], room: Sampler,
) -> int:
    """After a change of v_j, update q = X^T X v. Returns the number of features whose q has changed."""
    changed, stamp, touched = room.changed, room.stamp, 0
    for a in range(t_indptr[j], t_indptr[j + 1]):
        i = t_indices[a]
        change = growth * t_data[a]
        for b in range(indptr[i], indptr[i + 1]):
            k = indices[b]
            q[k] += change * data[b]
            if stamp[k] != step:
                stamp[k] = step
                changed[touched] = k
                touched += 1
    return touched


@njit(cache=True, nogil=True, error_model="numpy")
def squared_block(
    rng: Any, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any],
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any],
    first: int, count: int, radius: float, sharpness: float, scale: float, v: NDArray[Any],
    q: NDArray[Any], p: NDArray[Any], gradient: NDArray[Any], vertices: NDArray[Any], room: Sampler,
) -> float:
    """``count`` exact steps for the squared loss; updates v and q = X^T X v in place, p = X^T y is fixed.

    The weights are those of the gradient at an older scale, ``base``: base q - p. A draw from them is accepted with
    probability exp(-sign sharpness (scale - base) q_j - sharpness |scale - base| max|q|), which makes it an exact draw
    for the gradient scale q - p.
    """
    d = v.shape[0]
    base, largest, offset, stale = scale, 0.0, 0.0, True
    for step in range(first, first + count):
        total = settle(room)
        while True:
            if stale or total < _SMALLEST_TOTAL or sharpness * abs(scale - base) * largest > _LARGEST_DRIFT:
                base, largest, stale = scale, 0.0, False
                for k in range(d):
                    gradient[k] = base * q[k] - p[k]
                    largest = max(largest, abs(q[k]))
                offset = rebuild(gradient, sharpness, room)
                total = settle(room)
            drift = sharpness * (scale - base)
            j = draw(rng, total, room)
            sign = draw_sign(rng, sharpness * gradient[j])
            if drift == 0.0 or math.log(1.0 - rng.random()) <= -sign * drift * q[j] - abs(drift) * largest:
                break
        vertices[step - first] = j if sign > 0 else d + j
        mu = 2.0 / (step + 2.0)
        scale *= 1.0 - mu
        growth = mu * sign * radius / scale
        v[j] += growth
        touched = squared_move(data, indices, indptr, t_data, t_indices, t_indptr, j, growth, step, q, room)
        for a in range(touched):
            k = room.changed[a]
            largest = max(largest, abs(q[k]))
            gradient[k] = base * q[k] - p[k]
        stale = not reweight(gradient, sharpness, offset, touched, room)
    return scale


@njit(cache=True, nogil=True, error_model="numpy")
def squared_laplace_block(
    rng: Any, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any],
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any],
    first: int, count: int, radius: float, sharpness: float, scale: float, v: NDArray[Any],
    q: NDArray[Any], p: NDArray[Any], gradient: NDArray[Any], vertices: NDArray[Any], room: Sampler,
) -> float:
    """``squared_block`` with Laplace noise on every vertex instead of the exponential mechanism."""
    d = v.shape[0]
    for step in range(first, first + count):
        for k in range(d):
            gradient[k] = scale * q[k] - p[k]
        j, sign = laplace_vertex(rng, gradient, sharpness)
        vertices[step - first] = j if sign > 0 else d + j
        mu = 2.0 / (step + 2.0)
        scale *= 1.0 - mu
        growth = mu * sign * radius / scale
        v[j] += growth
        squared_move(data, indices, indptr, t_data, t_indices, t_indptr, j, growth, step, q, room)
    return scale


# --- dense rows ------------------------------------------------------------------------------------------------
# The caller draws the noise, because passing a Generator to a compiled function costs more than the steps of a small
# problem. Margins are updated with the iterate, u <- (1 - mu) u +- mu radius x_j, so a step passes over the rows once.


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def dense_steps(
    matrix: NDArray[Any], y: NDArray[Any], loss: int, noise: NDArray[Any], first: int, radius: float, n: int,
    scale: float, adaptive: bool, feature_bound: float, label_bound: float, lipschitz: float, w: NDArray[Any],
    u: NDArray[Any], gradient: NDArray[Any], scales: NDArray[Any], vertices: NDArray[Any], iterates: NDArray[Any],
) -> None:
    """One step for each row of ``noise``; updates the weights w and the margins u in place.

    ``scale`` multiplies the noise; if ``adaptive``, it is first multiplied by the gradient bound at |w|_1 over
    ``lipschitz``. ``gradient`` is work space. Iterates are kept if ``iterates`` has rows.
    """
    m, d = matrix.shape
    for step in range(noise.shape[0]):
        norm = 0.0
        for j in range(d):
            norm += abs(w[j])
            gradient[j] = 0.0
        for i in range(m):
            # Divided before the summation, so that no sum of bounded entries overflows.
            r = residual(loss, u[i], y[i]) * (radius / n)
            for j in range(d):
                gradient[j] += r * matrix[i, j]
        noise_scale = scale
        if adaptive:
            limit = residual_limit(loss, feature_bound * min(norm, radius), label_bound)
            noise_scale = scale * min(feature_bound * limit / lipschitz, 1.0)
        vertex = choose(gradient, noise_scale, noise[step])
        scales[step], vertices[step] = noise_scale, vertex
        mu = 2.0 / (first + step + 2.0)
        feature = vertex % d
        push = mu * radius if vertex < d else -mu * radius
        for j in range(d):
            w[j] *= 1.0 - mu
        w[feature] += push
        for i in range(m):
            u[i] = (1.0 - mu) * u[i] + push * matrix[i, feature]
        if iterates.shape[0] > 0:
            iterates[step, :] = w
