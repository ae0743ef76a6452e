"""The iterations of private Frank-Wolfe on prepared rows: one for each layout, loss and ``refresh``.

Sparse rows: dithered residuals, unless the textbook iteration is asked for (refresh=1); the squared loss with few
features keeps rows of X^T X and is exact. Dense rows: the textbook iteration, in one compiled call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import progress
from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.mechanisms.noise import laplace
from dptoolkit.mechanisms.randomness import Generators, exclusive
from dptoolkit.mechanisms.selection import gumbel
from dptoolkit.solvers.engine.gradients import lanes
from dptoolkit.solvers.frame.run import Trace, Trials
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.losses import Loss
    from dptoolkit.solvers.engine.vertices import ResolvedBall
    from dptoolkit.solvers.frame.plan import Plan

WorkCounters = NDArray[np.int64]
# run(rng, trace, work): one fit, which adds to ``work``, in this order (DensePath makes many at once):
WORK = ("rows checked", "rows pushed", "entries touched", "features weighted")
Path = Callable[[np.random.Generator, bool, WorkCounters], Trace]
_DRAWS = {"gumbel": gumbel, "laplace": laplace}
# The noise of dense steps is drawn for several selections at a time, up to this many numbers.
_LARGEST_DRAW = 2**16
# Up to this many features the squared loss keeps X^T X, 32 MB.
LARGEST_GRAM = 2048
# Dithering may cost this share of the statistical error of n rows, and this share of the noise (``level_count``).
_PER_ROOT, _PER_NOISE = 150.0, 0.39
_MOST_LEVELS = 2**20


def vertex_path(plan: Plan[ResolvedBall], rows: Rows, y: Array) -> Path:
    """The path for rows that obey the plan's bounds.

    Privacy
    -------
    Each run is the plan's release of vertices. ``work``, which it counts up, is NOT private.
    """
    settings = plan.settings
    if not rows.is_sparse:
        return DensePath(plan, *without_empty_rows(rows, y))
    if settings.loss_row.linear and rows.shape[1] <= LARGEST_GRAM:
        return _gram_path(plan, rows, y)
    return _textbook_path(plan, rows, y) if settings.refresh == 1 else DitheredPath(plan, rows, y)


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


def watched_parts(parts: Sequence[tuple[int, int]], count: int) -> Iterable[tuple[int, int]]:
    """The blocks of ``count`` steps, each of which progress shows by its first step."""
    return progress.counted(parts, (first for first, _ in parts), count)


def reachable(norm: float, radius: float, first: int, count: int) -> float:
    """The largest |w|_1 during ``count`` selections from step ``first``, given |w|_1 before them.

    After step t the distance of |w|_1 to the radius is at least 1 - mu_t = t/(t+2) times what it was before.
    """
    last = first + count - 1
    return max(norm, radius - (radius - norm) * (first * (first + 1) / (last * (last + 1))))


def level_count(plan: Plan[ResolvedBall]) -> int:
    """The number of steps between the levels of dithered residuals: a power of two, from public numbers alone.

    Dithering with levels h apart has a standard error of at most h/(2 sqrt(n)) in a mean gradient over the feature
    bound. h is at most the natural size of residuals, or as much less as keeps that error a small part either of the
    statistical error of n rows or of the noise, whichever is easier.
    """
    settings = plan.settings
    noise_at, root = settings.noise_law(plan), math.sqrt(plan.n)
    limit = noise_at.residual_limit(settings.l1_radius)
    label = settings.label_bound
    size = 1.0 if label is None or not settings.loss_row.linear else label
    sharpness = settings.l1_radius * settings.feature_bound / (plan.n * plan.noise)
    fine = limit * min(_PER_ROOT / (size * root), _PER_NOISE * sharpness * root)
    return int(min(2.0 ** (1 + math.ceil(math.log2(max(fine, 1.0)))), _MOST_LEVELS))


class CsrAndCsc(NamedTuple):
    """Rows as the kernels want them, without the empty ones: ``matrix``, and which rows are in."""

    matrix: Any
    filled: Any


def both_sides(rows: Rows, bound: float) -> CsrAndCsc:
    """Sparse rows whose entries are at most ``bound``, divided by it and rounded to single precision, both ways.

    Neither the division nor the rounding takes an entry beyond 1, as both are monotone and 1 is a float.
    """
    from dptoolkit.kernels import frank_wolfe as kernel

    filled = np.diff(rows.matrix.indptr) > 0
    # Rows without entries are left out of ``indptr``; the other arrays do not mention them.
    indptr = rows.matrix.indptr[np.append(filled, True)]
    # In double precision: in single precision a bound below 1e-45 would be 0, and one above 3.4e38 infinite.
    entries = (rows.matrix.data if bound == 1 else rows.matrix.data / np.float64(bound)).astype(np.float32)
    size = len(indptr) - 1, rows.shape[1]
    matrix = type(rows.matrix)((entries, rows.matrix.indices, indptr), shape=size, copy=False)
    arrays: Any = (*kernel_arrays(matrix), *kernel_arrays(matrix.tocsc()))
    return CsrAndCsc(kernel.Matrix(*arrays), filled)


def _sides(plan: Plan[ResolvedBall], rows: Rows) -> CsrAndCsc:
    bound = plan.settings.feature_bound
    return rows.cached(("both sides", bound), lambda: both_sides(rows, bound))


class DitherStart(NamedTuple):
    """Where a dithered fit begins, at weights 0: every row's theta and level, and X^T (level - levels / 2).

    The first block puts every row on its level. What it is given decides how many rows it has to push, nothing else.
    """

    theta: NDArray[np.float32]
    levels: Any
    totals: Any


class DitheredPath:
    """The iteration with dithered residuals, whose fits begin with a pass over X; fits on the same rows share it."""

    def __init__(self, plan: Plan[ResolvedBall], rows: Rows, y: Array) -> None:
        settings = plan.settings
        self.plan, self.noise_at, self.d = plan, settings.noise_law(plan), rows.shape[1]
        self.matrix, self.filled = self._arranged(rows)
        self.y, self.reach, self.count = y[self.filled], settings.l1_radius * settings.feature_bound, self._levels()
        self.parts = blocks(settings.steps, settings.refresh)
        # Memory of earlier runs, as new memory costs as much as many steps. A run takes one from this list, so that no
        # two threads share one, and starts it anew.
        self._idle: list[Any] = []

    def _arranged(self, rows: Rows) -> CsrAndCsc:
        return _sides(self.plan, rows)

    def _levels(self) -> int:
        return level_count(self.plan)

    def __call__(self, rng: np.random.Generator, trace: bool, work: WorkCounters) -> Trace:
        """One fit."""
        return self.finish(rng, DitherStart(self.theta(rng), self.count / 2, 0.0), trace, work)

    def grid(self, norm: float) -> Any:
        """The levels of residuals at weights with |w|_1 <= ``norm``."""
        from dptoolkit.kernels import frank_wolfe as kernel

        return kernel.Grid(self.plan.settings.loss_row.id, self.noise_at.residual_limit(norm), self.count, self.reach)

    def theta(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Drawn for every row of the data, whatever it holds: a number belongs to a place in X, not to a record."""
        return rng.random(self.plan.n, dtype=np.float32)[self.filled]

    def start_levels(self, theta: NDArray[np.float32], out: Array) -> None:
        """out = every row's level at weights 0, in the first block, less half of the levels."""
        from dptoolkit.kernels import frank_wolfe as kernel

        norm = reachable(0.0, self.plan.settings.l1_radius, *self.parts[0])
        kernel.start_levels(self.grid(norm), self.y, theta, out)

    def finish(self, rng: np.random.Generator, start: DitherStart, trace: bool, work: WorkCounters) -> Trace:
        """All steps of the fit that begins with ``start``, whose theta came from the same stream."""
        from dptoolkit.kernels import frank_wolfe as kernel

        settings, n = self.plan.settings, self.plan.n
        dithered = kernel.dithered_laplace_block if settings.law == "laplace" else kernel.dithered_block
        try:
            dither, v, room = self._idle.pop()
        except IndexError:
            dither, v, room = kernel.dither(len(self.y), self.d), np.empty(self.d), kernel.sampler(self.d)
        kernel.start(dither, *start)
        v[:], room.frame[:], scale, radius = 0.0, 0.0, 1.0, settings.l1_radius
        scales: list[float] = []
        vertices, before = np.empty(settings.steps, dtype=np.int64), None
        for first, steps in watched_parts(self.parts, settings.steps):
            norm = reachable(radius * scale * float(np.abs(v).sum()), radius, first, steps)
            noise_scale, grid = self.noise_at.at_norm(norm), self.grid(norm)
            moved = before is None or grid.limit != before.limit
            with exclusive(rng):
                scale = dithered(
                    rng, grid, self.matrix, self.y, first, steps, self.reach / (n * noise_scale), scale, moved, v,
                    dither, vertices[first - 1 : first - 1 + steps], room, work,
                )  # fmt: skip
            scales += [noise_scale] * steps
            before = grid
        w = radius * scale * v
        self._idle.append((dither, v, room))
        return vertex_trace(w, scales, vertices, trace)


def dithered_starts(paths: Sequence[DitheredPath], rngs: Sequence[np.random.Generator]) -> list[DitherStart]:
    """The start of every fit, on its first levels, by one pass over the ``matrix`` that all paths have.

    Each sum is taken in the order of the rows, as the first block of a fit alone does: it is the same to the last bit.

    Privacy
    -------
    Start k depends on the labels, the public settings and the stream of fit k alone.
    """
    from dptoolkit.kernels import sums as kernel

    matrix, m, d = paths[0].matrix, len(paths[0].y), paths[0].d
    changes, totals = np.empty((len(paths), m)), np.empty((len(paths), d))
    thetas = [path.theta(rng) for path, rng in zip(paths, rngs, strict=True)]
    for path, theta, out in zip(paths, thetas, changes, strict=True):
        path.start_levels(theta, out)
    side_by_side = np.zeros((m, lanes(len(paths))))
    kernel.interleave(changes, side_by_side)
    kernel.block_feature_sums(matrix.t_data, matrix.t_indices, matrix.t_indptr, m, side_by_side, totals)
    return [
        DitherStart(theta, change + path.count / 2, total)
        for path, theta, change, total in zip(paths, thetas, changes, totals, strict=True)
    ]


def _gram_path(plan: Plan[ResolvedBall], rows: Rows, y: Array) -> Path:
    from dptoolkit.kernels import frank_wolfe as kernel

    settings, n, d = plan.settings, plan.n, rows.shape[1]
    noise_at, radius = settings.noise_law(plan), settings.l1_radius
    matrix, _ = _sides(plan, rows)
    reach, by_laplace = radius * settings.feature_bound, settings.law == "laplace"
    target = np.asarray(rows.matrix.T @ y) / settings.feature_bound
    parts = blocks(settings.steps, settings.refresh)

    def run(rng: np.random.Generator, trace: bool, work: WorkCounters) -> Trace:
        v, q, scale, gradient, room = np.zeros(d), np.zeros(d), 1.0, np.empty(d), kernel.sampler(d)
        gram, known = np.zeros((d, d)), np.zeros(d, dtype=np.bool_)
        scales, vertices = [], np.empty(settings.steps, dtype=np.int64)
        for first, steps in watched_parts(parts, settings.steps):
            norm = radius * scale * float(np.abs(v).sum())
            noise_scale = noise_at.at_norm(reachable(norm, radius, first, steps))
            with exclusive(rng):
                scale = kernel.gram_block(
                    rng, by_laplace, matrix, first, steps, reach, reach / (n * noise_scale), scale, v, q, target, gram,
                    known, gradient, vertices[first - 1 : first - 1 + steps], room, work,
                )  # fmt: skip
            scales += [noise_scale] * steps
        return vertex_trace(radius * scale * v, scales, vertices, trace)

    return run


class Residuals:
    """Exact gradients of sparse rows along a path of weights, which begins at 0 and moves by one feature at a time."""

    def __init__(self, rows: Rows, y: Array, loss: Loss) -> None:
        self.columns, self.y, self.loss, self.margins = rows.transpose(), y, loss, np.zeros(len(y))

    def gradient(self, w: Array) -> Array:
        """The sum of all records' gradients at the weights that were moved to, which are ``w``.

        Privacy
        -------
        NOT private: exact.
        """
        return np.asarray(self.columns @ self.loss.residual(self.margins, self.y))

    def move(self, shrink: float, j: int, weight: float) -> None:
        """The weights are multiplied by ``shrink``, and feature j gets ``weight`` more."""
        self.margins *= shrink
        add_feature(self.margins, self.columns, j, weight)


def _textbook_path(plan: Plan[ResolvedBall], rows: Rows, y: Array) -> Path:
    """All residuals and all gradients exact at every step; two passes over the data a step."""
    return textbook_path(plan, rows.shape[1], lambda: Residuals(rows, y, plan.settings.loss_row))


def textbook_path(plan: Plan[ResolvedBall], d: int, start: Callable[[], Any]) -> Path:
    """The textbook iteration on d features; each fit gets its gradients from a ``start()``, such as ``Residuals``.

    Privacy
    -------
    Each run is the plan's release of vertices.
    """
    from dptoolkit.kernels import frank_wolfe as kernel

    settings = plan.settings
    noise_at, radius, by_laplace = settings.noise_law(plan), settings.l1_radius, settings.law == "laplace"

    def run(rng: np.random.Generator, trace: bool, work: WorkCounters) -> Trace:
        w, data, room = np.zeros(d), start(), kernel.sampler(d)
        scales, vertices = [], np.empty(settings.steps, dtype=np.int64)
        for t in (number + 1 for number in progress.steps(settings.steps)):
            gradient = data.gradient(w)
            scales.append(noise_at(w))
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
            data.move(1 - mu, j, mu * sign * radius)
        return vertex_trace(w, scales, vertices, trace)

    return run


def add_feature(margins: Array, columns: Any, j: int, weight: float) -> None:
    """margins += weight x_j, for rows of which ``columns`` is the transpose."""
    if hasattr(columns, "indptr"):
        column = slice(columns.indptr[j], columns.indptr[j + 1])
        margins[columns.indices[column]] += weight * columns.data[column]
    else:
        margins += weight * columns[j]


def vertex_trace(w: Array, scales: list[float], vertices: Any, trace: bool) -> Trace:
    """The trace of a fit whose releases are its vertices."""
    history = {"noise_scale": scales, "vertices": vertices}
    return Trace(w, history, vertices.astype(float) if trace else None)


class DensePath:
    """The textbook iteration on dense rows: all residuals and all gradients at every step, of many fits at once.

    ``size`` is about how many numbers a fit keeps at a time.
    """

    def __init__(self, plan: Plan[ResolvedBall], rows: Rows, y: Array) -> None:
        settings, noise_at = plan.settings, plan.settings.noise_law(plan)
        self.plan, self.rows, self.y, self.draw = plan, rows, y, _DRAWS[settings.law]
        steps, d = settings.steps, rows.shape[1]
        label = math.inf if settings.label_bound is None else settings.label_bound
        self.bounds = noise_at.scale, noise_at.adaptive, noise_at.bounds.feature_bound, label, noise_at.lipschitz
        at_once = min(steps, max(1, _LARGEST_DRAW // (2 * d)))
        self.parts = [(first, min(at_once, steps - first)) for first in range(0, steps, at_once)]
        self.size = len(y) + d * (2 * at_once + steps)

    def __call__(self, rng: np.random.Generator, trace: bool, work: WorkCounters) -> Trace:
        """One fit: the case of one."""
        return self.fits(Generators(rng), trace).one(0)

    def fits(self, streams: Generators, trace: bool) -> Trials:
        """See ``Run``."""
        from dptoolkit.kernels import frank_wolfe as kernel

        settings, runs, d = self.plan.settings, len(streams), self.rows.shape[1]
        w, u, gradient, steps = np.zeros((runs, d)), np.zeros((runs, len(self.y))), np.empty(d), settings.steps
        scales, vertices = np.empty((runs, steps)), np.empty((runs, steps), dtype=np.int64)
        iterates = np.empty((runs, steps if trace else 0, d))
        for first, count in progress.counted(self.parts, (first + 1 for first, _ in self.parts), steps):
            part = slice(first, first + count)
            noise = self.draw(streams, 1.0, (runs, count, 2 * d))
            kernel.dense_steps(
                self.rows.matrix, self.y, settings.loss_row.id, noise, first + 1, settings.l1_radius, self.plan.n,
                *self.bounds, w, u, gradient, scales[:, part], vertices[:, part], iterates[:, part],
            )  # fmt: skip

        def history(i: int) -> dict[str, Any]:
            return {"noise_scale": scales[i].tolist(), "vertices": vertices[i]}

        return Trials(w, vertices.astype(float) if trace else None, iterates if trace else None, history=history)
