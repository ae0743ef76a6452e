"""Frank-Wolfe over the L1 ball on sparse rows: many steps without a full pass over the data.

One step touches the rows that contain the chosen feature, and the features of those rows. The iterate is w = scale * v,
so shrinking costs nothing. The vertex is drawn from the exponential mechanism exactly: feature j has weight
2 cosh(sharpness g_j), weights are summed in groups of about sqrt(d), and a draw walks the groups, then one group.

Bounded-residual losses keep the residuals of untouched rows ("lazy rows") until the caller refreshes them. For the
squared loss the gradient is scale * q - p with q = X^T X v kept up to date, so nothing is stale; weights are kept for
an older scale, and a draw from them is corrected by rejection, which is exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

SQUARED, LOGISTIC, HUBER = 0, 1, 2
GUMBEL, LAPLACE = 0, 1
# Weights are kept relative to exp(offset); beyond this they are rebuilt with a new offset.
_LARGEST_EXPONENT = 500.0
# Likewise when all weights together have become this small: the offset is then far too high.
_SMALLEST_TOTAL = 1e-200
# A group's sum that has lost all but this part of itself is mostly the rounding error of what it lost: it is summed
# anew.
_LOST = 1e-3
# Rejection: the largest exponent by which a stale weight may be off before all are rebuilt.
_LARGEST_DRIFT = 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def residual(loss: int, margin: float, y: float) -> float:
    """d loss / d margin of one row (the same table as losses.residual)."""
    if loss == LOGISTIC:
        if margin >= 0:
            return 1.0 / (1.0 + math.exp(-margin)) - y
        e = math.exp(margin)
        return e / (1.0 + e) - y
    difference = margin - y
    if loss == HUBER:
        return min(max(difference, -1.0), 1.0)
    return difference


@njit(cache=True, nogil=True, error_model="numpy")
def weight(exponent: float, offset: float) -> float:
    """exp(|exponent| - offset) + exp(-|exponent| - offset)."""
    size = abs(exponent)
    return math.exp(size - offset) * (1.0 + math.exp(-2.0 * size))


@njit(cache=True, nogil=True, error_model="numpy")
def rebuild(gradient: NDArray[Any], sharpness: float, group: int, weights: NDArray[Any], sums: NDArray[Any]) -> float:
    """All weights and group sums for ``gradient``; returns the offset."""
    offset = 0.0
    for j in range(gradient.shape[0]):
        offset = max(offset, sharpness * abs(gradient[j]))
    sums[:] = 0.0
    for j in range(gradient.shape[0]):
        weights[j] = weight(sharpness * gradient[j], offset)
        sums[j // group] += weights[j]
    return offset


@njit(cache=True, nogil=True, error_model="numpy")
def replace_weight(
    k: int, new: float, group: int, weights: NDArray[Any], sums: NDArray[Any], peaks: NDArray[Any]
) -> None:
    """Put a new weight in place; ``peaks`` holds the largest value of each group's sum since it was last summed."""
    g = k // group
    sums[g] += new - weights[k]
    weights[k] = new
    if sums[g] > peaks[g]:
        peaks[g] = sums[g]
    elif sums[g] < _LOST * peaks[g]:
        total = 0.0
        for j in range(g * group, min((g + 1) * group, weights.shape[0])):
            total += weights[j]
        sums[g] = peaks[g] = total


@njit(cache=True, nogil=True, error_model="numpy")
def draw_feature(u: float, group: int, weights: NDArray[Any], sums: NDArray[Any]) -> int:
    """The feature at quantile u of the weights; -1 if they must be rebuilt first."""
    total = 0.0
    for g in range(sums.shape[0]):
        total += sums[g]
    if total < _SMALLEST_TOTAL:
        return -1
    target = u * total
    g = 0
    while g < sums.shape[0] - 1 and target >= sums[g]:
        target -= sums[g]
        g += 1
    j = g * group
    last = min(j + group, weights.shape[0]) - 1
    while j < last and target >= weights[j]:
        target -= weights[j]
        j += 1
    return j


@njit(cache=True, nogil=True, error_model="numpy")
def draw_sign(u: float, exponent: float) -> float:
    """+1 or -1 with odds exp(-exponent) : exp(exponent): against the gradient."""
    if exponent >= 0:
        return -1.0 if u * (1.0 + math.exp(-2.0 * exponent)) < 1.0 else 1.0
    return 1.0 if u * (1.0 + math.exp(2.0 * exponent)) < 1.0 else -1.0


@njit(cache=True, nogil=True, error_model="numpy")
def laplace_vertex(
    rng: Any, gradient: NDArray[Any], factor: float, shift: NDArray[Any], sharpness: float
) -> tuple[int, float]:
    """The vertex with the smallest <s, factor * gradient - shift> after Laplace noise, 2d draws."""
    best, chosen, sign = math.inf, 0, 1.0
    for j in range(gradient.shape[0]):
        score = sharpness * (factor * gradient[j] - shift[j])
        plus = score + rng.standard_exponential() - rng.standard_exponential()
        minus = -score + rng.standard_exponential() - rng.standard_exponential()
        if plus < best:
            best, chosen, sign = plus, j, 1.0
        if minus < best:
            best, chosen, sign = minus, j, -1.0
    return chosen, sign


@njit(cache=True, nogil=True, error_model="numpy")
def lazy_block(
    rng: Any, noise: int, loss: int, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any],
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any], y: NDArray[Any],
    first: int, count: int, radius: float, sharpness: float, scale: float, v: NDArray[Any], u: NDArray[Any],
    r: NDArray[Any], gradient: NDArray[Any], vertices: NDArray[Any],
) -> float:
    """``count`` steps from step number ``first`` with lazy rows; updates v, u = X v, r, gradient = X^T r in place.

    ``sharpness`` is radius / (n * noise scale). Returns the new scale of v.
    """
    d = v.shape[0]
    group = max(1, int(math.sqrt(d)))
    weights, sums = np.empty(d), np.empty((d + group - 1) // group)
    zero = np.zeros(d if noise == LAPLACE else 0)
    offset = rebuild(gradient, sharpness, group, weights, sums)
    peaks = sums.copy()
    changed, stamp = np.empty(d, np.int64), np.zeros(d, np.int64)
    for step in range(count):
        if noise == LAPLACE:
            j, sign = laplace_vertex(rng, gradient, 1.0, zero, sharpness)
        else:
            quantile = rng.random()
            j = draw_feature(quantile, group, weights, sums)
            if j < 0:
                offset = rebuild(gradient, sharpness, group, weights, sums)
                peaks[:] = sums
                j = draw_feature(quantile, group, weights, sums)
            sign = draw_sign(rng.random(), sharpness * gradient[j])
        vertices[step] = j if sign > 0 else d + j
        mu = 2.0 / (first + step + 2.0)
        scale *= 1.0 - mu
        growth = mu * sign * radius / scale
        v[j] += growth
        touched = 0
        for a in range(t_indptr[j], t_indptr[j + 1]):
            i = t_indices[a]
            u[i] += growth * t_data[a]
            new = residual(loss, scale * u[i], y[i])
            change = new - r[i]
            r[i] = new
            for b in range(indptr[i], indptr[i + 1]):
                k = indices[b]
                gradient[k] += change * data[b]
                if stamp[k] != step + 1:
                    stamp[k] = step + 1
                    changed[touched] = k
                    touched += 1
        if noise == GUMBEL:
            highest = 0.0
            for a in range(touched):
                k = changed[a]
                exponent = sharpness * gradient[k]
                highest = max(highest, abs(exponent) - offset)
                if highest > _LARGEST_EXPONENT:
                    break
                replace_weight(k, weight(exponent, offset), group, weights, sums, peaks)
            if highest > _LARGEST_EXPONENT:
                offset = rebuild(gradient, sharpness, group, weights, sums)
                peaks[:] = sums
    return scale


@njit(cache=True, nogil=True, error_model="numpy")
def squared_block(
    rng: Any, noise: int, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any],
    t_data: NDArray[Any], t_indices: NDArray[Any], t_indptr: NDArray[Any],
    first: int, count: int, radius: float, sharpness: float, scale: float, v: NDArray[Any],
    q: NDArray[Any], p: NDArray[Any], vertices: NDArray[Any],
) -> float:
    """``count`` exact steps for the squared loss; updates v and q = X^T X v in place, p = X^T y is fixed.

    Weights belong to the gradient at an older scale, ``base``: (base q - p). A draw from them is accepted with
    probability exp(-sign sharpness (scale - base) q_j - sharpness |scale - base| max|q|), which makes it a draw for
    scale q - p.
    """
    d = v.shape[0]
    group = max(1, int(math.sqrt(d)))
    weights, sums, gradient = np.empty(d), np.empty((d + group - 1) // group), np.empty(d)
    peaks = np.empty_like(sums)
    changed, stamp = np.empty(d, np.int64), np.zeros(d, np.int64)
    base, largest, offset, stale = scale, 0.0, 0.0, True
    for step in range(count):
        if noise == LAPLACE:
            j, sign = laplace_vertex(rng, q, scale, p, sharpness)
        else:
            while True:
                if stale or sharpness * abs(scale - base) * largest > _LARGEST_DRIFT:
                    base, largest, stale = scale, 0.0, False
                    for k in range(d):
                        gradient[k] = base * q[k] - p[k]
                        largest = max(largest, abs(q[k]))
                    offset = rebuild(gradient, sharpness, group, weights, sums)
                    peaks[:] = sums
                drift = sharpness * (scale - base)
                j = draw_feature(rng.random(), group, weights, sums)
                if j < 0:
                    stale = True
                    continue
                sign = draw_sign(rng.random(), sharpness * gradient[j])
                if drift == 0.0 or math.log(1.0 - rng.random()) <= -sign * drift * q[j] - abs(drift) * largest:
                    break
        vertices[step] = j if sign > 0 else d + j
        mu = 2.0 / (first + step + 2.0)
        scale *= 1.0 - mu
        growth = mu * sign * radius / scale
        v[j] += growth
        touched = 0
        for a in range(t_indptr[j], t_indptr[j + 1]):
            i = t_indices[a]
            change = growth * t_data[a]
            for b in range(indptr[i], indptr[i + 1]):
                k = indices[b]
                q[k] += change * data[b]
                if stamp[k] != step + 1:
                    stamp[k] = step + 1
                    changed[touched] = k
                    touched += 1
        if noise == GUMBEL:
            for a in range(touched):
                k = changed[a]
                largest = max(largest, abs(q[k]))
                gradient[k] = base * q[k] - p[k]
                exponent = sharpness * gradient[k]
                if abs(exponent) - offset > _LARGEST_EXPONENT:
                    stale = True
                    break
                replace_weight(k, weight(exponent, offset), group, weights, sums, peaks)
    return scale
