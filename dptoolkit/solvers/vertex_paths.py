"""How private Frank-Wolfe walks over prepared rows: a path for each layout, loss and refresh, with the plan's noise.

Sparse rows: dithered residuals, unless the textbook iteration is asked for (refresh=1); the squared loss with few
features keeps rows of X^T X and is exact. Dense rows: the textbook iteration, in one compiled call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.mechanisms.noise import laplace
from dptoolkit.mechanisms.rng import exclusive
from dptoolkit.mechanisms.selection import gumbel
from dptoolkit.solvers.base import Array, Trace

if TYPE_CHECKING:
    from dptoolkit.solvers.plan import Plan

Work = NDArray[np.int64]
# run(rng, trace, work): one fit, which adds to ``work``, in this order:
WORK = ("rows checked", "rows pushed", "entries touched", "features weighted")
Path = Callable[[np.random.Generator, bool, Work], Trace]
_DRAWS = {"gumbel": gumbel, "laplace": laplace}
# Noise of dense steps is drawn for several selections at a time, this many numbers at most.
_LARGEST_DRAW = 2**16
# Up to this many features the squared loss keeps X^T X, 32 MB.
LARGEST_GRAM = 2048
# Dithering may cost this share of the statistical error of n rows, and this share of the noise (``level_count``).
_PER_ROOT, _PER_NOISE = 150.0, 0.39
_MOST_LEVELS = 2**20


def vertex_path(plan: Plan, rows: Rows, y: Array) -> Path:
    """The path for rows that obey the plan's bounds.

    Privacy
    -------
    Each run is the plan's release of vertices. ``work``, which it counts up, is NOT private.
    """
    settings = plan.settings
    if not rows.is_sparse:
        return _dense_path(plan, *without_empty_rows(rows, y))
    if settings.terms.linear and rows.shape[1] <= LARGEST_GRAM:
        return _gram_path(plan, rows, y)
    return _textbook_path(plan, rows, y) if settings.refresh == 1 else _dithered_path(plan, rows, y)


def without_empty_rows(rows: Rows, y: Array) -> tuple[Rows, Array]:
    """The rows that are not zero. Zero rows have gradient zero at all weights, so sums over rows do not change."""
    filled: NDArray[np.bool_] = np.diff(rows.matrix.indptr) > 0 if rows.is_sparse else rows.matrix.any(axis=1)
    if filled.all():
        return rows, y
    return rows.take(filled), y[filled]


def blocks(steps: int, refresh: float) -> list[tuple[int, int]]:
    """(first step, number of steps) between refreshes: a block ends when the weights have shrunk by ``refresh``.

    From step a to step b the weights shrink by a(a+1)/(b(b+1)): the number of blocks is logarithmic in the steps.
    """
    parts, first = [], 1
    while first <= steps:
        end = first + 1
        while end <= steps and first * (first + 1) > refresh * end * (end + 1):
            end += 1
        parts.append((first, end - first))
        first = end
    return parts


def reachable(norm: float, radius: float, first: int, count: int) -> float:
    """The largest |w|_1 during ``count`` selections from step ``first``, given |w|_1 before them.

    After step t the distance of |w|_1 to the radius is at least 1 - mu_t = t/(t+2) times what it was before.
    """
    last = first + count - 1
    return max(norm, radius - (radius - norm) * (first * (first + 1) / (last * (last + 1))))


def level_count(plan: Plan) -> int:
    """The number of steps between the levels of dithered residuals: a power of two, from public numbers alone.

    Dithering with levels h apart has a standard error of at most h/(2 sqrt(n)) in a mean gradient over the feature
    bound. h is at most the natural size of residuals, or as much less as keeps that error a small part either of the
    statistical error of n rows or of the noise, whichever is easier.
    """
    settings = plan.settings
    law, root = settings.noise_law(plan), math.sqrt(plan.n)
    limit = law.residual_limit(settings.l1_radius)
    size = settings.label_bound if settings.terms.linear else 1.0
    sharpness = settings.l1_radius * settings.feature_bound / (plan.n * plan.noise)
    fine = limit * min(_PER_ROOT / (size * root), _PER_NOISE * sharpness * root)
    return int(min(2.0 ** (1 + math.ceil(math.log2(max(fine, 1.0)))), _MOST_LEVELS))


class Sides(NamedTuple):
    """Rows as the kernels want them, without the empty ones: ``matrix``, its sums of columns, and which rows are in."""

    matrix: Any
    sums: Array
    filled: Any


def both_sides(rows: Rows, bound: float) -> Sides:
    """Sparse rows whose entries are at most ``bound``, divided by it and rounded to single precision, both ways.

    Neither the division nor the rounding takes an entry beyond 1, as both are monotone and 1 is a float.
    """
    from dptoolkit.kernels import frank_wolfe as kernel

    filled = np.diff(rows.matrix.indptr) > 0
    # Rows without entries are left out of the list of starts; nothing else knows of them.
    indptr = rows.matrix.indptr[np.append(filled, True)]
    entries = (rows.matrix.data if bound == 1 else rows.matrix.data / bound).astype(np.float32)
    size = len(indptr) - 1, rows.shape[1]
    matrix = type(rows.matrix)((entries, rows.matrix.indices, indptr), shape=size, copy=False)
    columns = matrix.tocsc()
    sums = np.zeros(size[1])
    some = np.diff(columns.indptr) > 0
    if some.any():
        sums[some] = np.add.reduceat(columns.data, columns.indptr[:-1][some], dtype=np.float64)
    arrays: Any = (*kernel_arrays(matrix), *kernel_arrays(columns))
    return Sides(kernel.Matrix(*arrays), sums, filled)


def _sides(plan: Plan, rows: Rows) -> Sides:
    bound = plan.settings.feature_bound
    return rows.once(("both sides", bound), lambda: both_sides(rows, bound))


def _dithered_path(plan: Plan, rows: Rows, y: Array) -> Path:
    from dptoolkit.kernels import frank_wolfe as kernel

    settings, n, d = plan.settings, plan.n, rows.shape[1]
    loss, law, radius = settings.terms, settings.noise_law(plan), settings.l1_radius
    matrix, sums, filled = _sides(plan, rows)
    dithered = kernel.dithered_laplace_block if settings.law == "laplace" else kernel.dithered_block
    reach, count = radius * settings.feature_bound, level_count(plan)
    y, parts = y[filled], blocks(settings.steps, settings.refresh)

    def run(rng: np.random.Generator, trace: bool, work: Work) -> Trace:
        # Drawn for every row of the data, whatever it holds: a number belongs to a place in X, not to a record.
        theta = rng.random(n, dtype=np.float32)[filled]
        state = np.zeros((len(y), 4), np.float32)
        dither = kernel.Dither(state, theta, np.zeros(d), sums, np.empty(len(y) + 1, np.uint32))
        v, scale, gradient, room = np.zeros(d), 1.0, np.empty(d), kernel.sampler(d)
        scales, vertices, limit = [], np.empty(settings.steps, dtype=np.int64), -1.0
        for first, steps in parts:
            norm = reachable(radius * scale * float(np.abs(v).sum()), radius, first, steps)
            noise_scale, before, limit = law.at_norm(norm), limit, law.residual_limit(norm)
            grid = kernel.Grid(loss.id, limit, count, reach)
            with exclusive(rng):
                scale = dithered(
                    rng, grid, matrix, y, first, steps, reach / (n * noise_scale), scale, limit != before, v, dither,
                    gradient, vertices[first - 1 : first - 1 + steps], room, work,
                )  # fmt: skip
            scales += [noise_scale] * steps
        return _trace(radius * scale * v, scales, vertices, trace)

    return run


def _gram_path(plan: Plan, rows: Rows, y: Array) -> Path:
    from dptoolkit.kernels import frank_wolfe as kernel

    settings, n, d = plan.settings, plan.n, rows.shape[1]
    law, radius = settings.noise_law(plan), settings.l1_radius
    matrix, _, filled = _sides(plan, rows)
    reach, by_laplace = radius * settings.feature_bound, settings.law == "laplace"
    target = np.asarray(rows.matrix.T @ y) / settings.feature_bound
    parts = blocks(settings.steps, settings.refresh)

    def run(rng: np.random.Generator, trace: bool, work: Work) -> Trace:
        v, q, scale, gradient, room = np.zeros(d), np.zeros(d), 1.0, np.empty(d), kernel.sampler(d)
        gram, known = np.zeros((d, d)), np.zeros(d, dtype=np.bool_)
        scales, vertices = [], np.empty(settings.steps, dtype=np.int64)
        for first, steps in parts:
            norm = radius * scale * float(np.abs(v).sum())
            noise_scale = law.at_norm(reachable(norm, radius, first, steps))
            with exclusive(rng):
                scale = kernel.gram_block(
                    rng, by_laplace, matrix, first, steps, reach, reach / (n * noise_scale), scale, v, q, target, gram,
                    known, gradient, vertices[first - 1 : first - 1 + steps], room, work,
                )  # fmt: skip
            scales += [noise_scale] * steps
        return _trace(radius * scale * v, scales, vertices, trace)

    return run


def _textbook_path(plan: Plan, rows: Rows, y: Array) -> Path:
    """All residuals and all gradients exact at every step; two passes over the data a step."""
    from dptoolkit.kernels import frank_wolfe as kernel

    settings, d = plan.settings, rows.shape[1]
    loss, law, radius = settings.terms, settings.noise_law(plan), settings.l1_radius
    transposed = rows.transpose()
    by_laplace = settings.law == "laplace"

    def run(rng: np.random.Generator, trace: bool, work: Work) -> Trace:
        w, margins, room = np.zeros(d), np.zeros(len(y)), kernel.sampler(d)
        scales, vertices = [], np.empty(settings.steps, dtype=np.int64)
        for t in range(1, settings.steps + 1):
            gradient = np.asarray(transposed @ loss.residual(margins, y))
            scales.append(law.at(w))
            sharpness = radius / (plan.n * scales[-1])
            with exclusive(rng):
                if by_laplace:
                    j, sign = kernel.laplace_vertex(rng, gradient, sharpness)
                else:
                    j, sign = kernel.exponential_vertex(rng, gradient, sharpness, room)
            vertices[t - 1] = j if sign > 0 else d + j
            mu = 2 / (t + 2)
            w *= 1 - mu
            w[j] += mu * sign * radius
            margins *= 1 - mu
            add_feature(margins, transposed, j, mu * sign * radius)
        return _trace(w, scales, vertices, trace)

    return run


def add_feature(margins: Array, transposed: Any, j: int, weight: float) -> None:
    """margins += weight x_j, for rows of which ``transposed`` is the transpose."""
    if hasattr(transposed, "indptr"):
        column = slice(transposed.indptr[j], transposed.indptr[j + 1])
        margins[transposed.indices[column]] += weight * transposed.data[column]
    else:
        margins += weight * transposed[j]


def _trace(w: Array, scales: list[float], vertices: Any, trace: bool) -> Trace:
    history = {"noise_scale": scales, "vertices": vertices}
    return Trace(w, history, vertices.astype(float) if trace else None)


def _dense_path(plan: Plan, rows: Rows, y: Array) -> Path:
    from dptoolkit.kernels import frank_wolfe as kernel

    settings = plan.settings
    d, loss, matrix, law = rows.shape[1], settings.terms, rows.matrix, settings.noise_law(plan)
    steps, radius, draw = settings.steps, settings.l1_radius, _DRAWS[settings.law]
    label = math.inf if settings.label_bound is None else settings.label_bound
    bounds = law.adaptive, law.bounds.feature_bound, label, law.lipschitz
    at_once = max(1, _LARGEST_DRAW // (2 * d))
    parts = [(first, min(at_once, steps - first)) for first in range(0, steps, at_once)]

    def run(rng: np.random.Generator, trace: bool, work: Work) -> Trace:
        w, u, gradient = np.zeros(d), np.zeros(len(y)), np.empty(d)
        scales, vertices = np.empty(steps), np.empty(steps, dtype=np.int64)
        iterates = np.empty((steps if trace else 0, d))
        for first, count in parts:
            part = slice(first, first + count)
            noise = draw(rng, 1.0, (count, 2 * d))
            kernel.dense_steps(
                matrix, y, loss.id, noise, first + 1, radius, plan.n, law.scale, *bounds, w, u, gradient, scales[part],
                vertices[part], iterates[part],
            )  # fmt: skip
        history = {"noise_scale": scales.tolist(), "vertices": vertices}
        return Trace(w, history, vertices.astype(float), iterates) if trace else Trace(w, history)

    return run
