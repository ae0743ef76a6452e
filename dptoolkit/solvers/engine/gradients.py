"""The mean gradient of bounded records, with the noise drawn while it is computed."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.losses import Loss
from dptoolkit.solvers.engine.draws import fill_normals
from dptoolkit.types import Array

T = TypeVar("T")
# With fewer stored entries than this a second thread costs more time than it saves.
_WORTH_A_THREAD = 200_000


class Point(NamedTuple):
    """Sparse weights, ``values`` on ``support``, and the noise with which the mean gradient there is released."""

    support: Any
    values: Array
    scale: float


def few_columns(count: int, rows: Rows) -> bool:
    """Whether the margins of ``count`` weights are quicker from their columns than by a pass along the rows.

    A pass neither copies columns nor jumps about in the margins. Memory is read in lines of eight numbers, so that in
    dense rows every eighth column costs as much as all columns.
    """
    return (2 if rows.is_sparse else 8) * count <= rows.shape[1]


def worth_a_thread(rows: Rows) -> bool:
    """Whether the rows are large CSR data, for which a second thread is worth its cost."""
    return rows.is_sparse and rows.matrix.nnz > _WORTH_A_THREAD


def half_of_rows(rows: Rows) -> int:
    """The row at which sums over large CSR data begin anew, in the middle of the entries; 0 for other data."""
    if not worth_a_thread(rows):
        return 0
    return int(np.searchsorted(rows.matrix.indptr, rows.matrix.nnz // 2))


def compiled_rows(rows: Rows) -> Any:
    """The arrays of CSR rows as kernels take them."""
    return rows.cached("kernel arrays", lambda: kernel_arrays(rows.matrix))


def processors() -> int:
    """How many processors this process may use: the number of threads of everything that runs in threads."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def in_threads(calls: Sequence[Callable[[], T]]) -> list[T]:
    """What the calls return, made in as many threads as this process may use processors."""
    workers = min(processors(), len(calls))
    if workers == 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            return [future.result() for future in futures]
        finally:
            # After a failure or an interrupt no further call is started.
            for future in futures:
                future.cancel()


class MeanGradient:
    """(1/n) sum_i clip(residual_i) x_i at sparse weights, for bounded rows, dense or CSR.

    ``caps`` bounds each record's |residual|. A sum over large CSR data is that over one half of the entries plus that
    over the other: one extra thread, if there is a processor for it, draws the noise and then adds up the second half.
    So the result does not depend on the number of threads.
    """

    def __init__(
        self, rows: Rows, y: Array, loss: Loss, margin_bound: float = math.inf, caps: Array | None = None
    ) -> None:
        self.rows, self.y, self.loss, self.margin_bound, self.caps = rows, y, loss, margin_bound, caps
        n, d = rows.shape
        self._transposed = rows.transpose()
        self._arrays = compiled_rows(rows) if rows.is_sparse else None
        self._columns = kernel_arrays(self._transposed) if rows.is_sparse else None
        self._margins, self._r, self._noise, self._gradient = np.zeros(n), np.zeros(n), np.zeros(d), np.zeros(d)
        self.half = half_of_rows(rows)
        self._lower = np.zeros(d if self.half else 0)
        self._pool = ThreadPoolExecutor(1) if self.half and processors() > 1 else None

    def margins(self, support: Any, values: Array) -> Array:
        """X w for the w with ``values`` on ``support``; overwritten by the next call."""
        if not few_columns(len(support), self.rows):
            w = self._dense(support, values)
            if self._arrays is None:
                return np.asarray(self.rows.matrix @ w)
            from dptoolkit.kernels.sums import row_sums

            assert self._columns is not None
            row_sums(*self._columns, w, self._margins, 0, self.rows.shape[1])
            return self._margins
        if self._columns is None:
            return np.asarray(self.rows.matrix[:, support] @ values)
        from dptoolkit.kernels.threshold import support_margins

        support_margins(*self._columns, support, values, self._margins)
        return self._margins

    def _dense(self, support: Any, values: Array) -> Array:
        w = np.zeros(self.rows.shape[1])
        w[support] = values
        return w

    def objective(self, support: Any, values: Array) -> float:
        """The mean loss of the bounded records; NOT private."""
        return self.loss.objective(self.margins(support, values), self.y)

    def noisy(self, support: Any, values: Array, scale: float, rng: np.random.Generator | None) -> Array:
        """The mean gradient plus N(0, scale^2) on every coordinate; exact for scale 0. The next call may overwrite it.

        Privacy
        -------
        One call with scale > 0 is Gaussian(scale / sensitivity); the sensitivity is the plan's.
        """
        draw = self._pool.submit(self._draw, scale, rng) if self._pool is not None else None
        gradient = self.sums(self.residuals(self.margins(support, values)))
        # On a busy machine the other thread may not have started yet: do not wait for it.
        is_noisy = self._draw(scale, rng) if draw is None or draw.cancel() else draw.result()
        if is_noisy:
            _add(gradient, self._noise, scale)
        return gradient

    def sums(self, r: Array) -> Array:
        """X^T r; overwritten by the next call."""
        if self._arrays is None:
            return np.asarray(self._transposed @ r)
        n, gradient, lower = self.rows.shape[0], self._gradient, self._lower
        if self._pool is not None:
            other = self._pool.submit(self._sum_rows, r, self.half, n, lower)
            self._sum_rows(r, 0, self.half, gradient)
            if other.cancel():
                self._sum_rows(r, self.half, n, lower)
            else:
                other.result()
        else:
            self._sum_rows(r, 0, self.half or n, gradient)
            if self.half:
                self._sum_rows(r, self.half, n, lower)
        if self.half:
            gradient += lower
        return gradient

    def _sum_rows(self, r: Array, first: int, last: int, out: Array) -> None:
        from dptoolkit.kernels.sums import row_sums

        assert self._arrays is not None
        row_sums(*self._arrays, r, out, first, last)

    def residuals(self, margins: Array) -> Array:
        """Each record's clipped residual, over n, at these margins; overwritten by the next call."""
        from dptoolkit.kernels.threshold import mean_residuals

        caps = np.zeros(0) if self.caps is None else self.caps
        mean_residuals(self.loss.id, margins, self.y, float(self.margin_bound), caps, self._r)
        return self._r

    def _draw(self, scale: float, rng: np.random.Generator | None) -> bool:
        return rng is not None and _fill(self._noise, scale, rng)


def _fill(noise: Array, scale: float, rng: np.random.Generator) -> bool:
    """Fill ``noise`` with standard normals; False, with nothing drawn, where their ``scale`` is 0."""
    if scale == 0:
        return False
    fill_normals(rng, noise)
    return True


def _add(total: Array, values: Array, factor: float) -> None:
    from dptoolkit.kernels.sums import add_scaled

    add_scaled(total, values, factor)


# LANES sums are taken at a time (kernels/sums.py). Fewer than FEW of them are computed by a kernel without idle
# lanes, which is quicker.
LANES, FEW = 16, 5


def lanes(runs: int) -> int:
    """The number of columns in which the numbers of so many runs lie side by side, at least ``runs``."""
    return LANES if FEW <= runs <= LANES else runs


class MeanGradients:
    """The mean gradients of several runs on the same rows: one pass over X serves up to LANES of them.

    ``terms`` has a MeanGradient for every run, for its labels, loss and clipping; runs of one plan may share it. On CSR
    rows every number is that of the run's own MeanGradient, bit for bit, because each sum is taken in the same order.
    On dense rows a matrix product takes the place of products with vectors, whose sums round differently.

    Privacy
    -------
    Row k of what ``noisy`` returns depends on the weights, noise scale and stream of run k alone.
    """

    def __init__(self, rows: Rows, terms: Sequence[MeanGradient]) -> None:
        self.rows, self.loss_row = rows, terms
        n, d = rows.shape
        self._arrays = kernel_arrays(rows.transpose()) if rows.is_sparse else None
        self._pool = ThreadPoolExecutor(1) if terms[0]._pool is not None else None
        self._noise = np.zeros((len(terms) if self._pool is not None else 1, d))
        self._r, self._gradients = np.zeros((n, lanes(len(terms)))), np.zeros((len(terms), d))
        self._residuals = np.zeros((len(terms), n))

    def noisy(
        self, going: Sequence[int], points: Sequence[Point], rngs: Sequence[np.random.Generator]
    ) -> Iterator[Array]:
        """For each of the runs numbered in ``going``: its mean gradient plus its noise, as MeanGradient.noisy."""
        # One vector of noise at a time fits into the cache. A second thread draws the next ones meanwhile, as far as it
        # gets.
        jobs = list(zip(itertools.cycle(self._noise), (point.scale for point in points), rngs, strict=False))
        ahead = [self._pool.submit(_fill, *job) for job in jobs] if self._pool is not None else None
        for k, gradient in enumerate(self._sums(going, points)):
            is_noisy = _fill(*jobs[k]) if ahead is None or ahead[k].cancel() else ahead[k].result()
            if is_noisy:
                _add(gradient, jobs[k][0], jobs[k][1])
            yield gradient

    def _sums(self, going: Sequence[int], points: Sequence[Point]) -> Array:
        """The mean gradients without noise, in one pass over X."""
        residuals, gradients = self._residuals[: len(going)], self._gradients[: len(going)]
        for out, k, margins in zip(residuals, going, self._margins(going, points), strict=True):
            out[:] = self.loss_row[k].residuals(margins)
        if self._arrays is None:
            return np.matmul(residuals, self.rows.matrix, out=gradients)
        from dptoolkit.kernels.sums import block_feature_sums, interleave

        interleave(residuals, self._r)
        block_feature_sums(*self._arrays, self.loss_row[0].half, self._r, gradients)
        return gradients

    def _margins(self, going: Sequence[int], points: Sequence[Point]) -> Iterator[Array]:
        """X w of every point: in one pass if there are many weights, else from the columns of its support."""
        sparse = self.rows.is_sparse
        together = [k for k, point in enumerate(points) if not sparse or not few_columns(len(point.support), self.rows)]
        from_pass = dict(zip(together, self._pass_along_rows([points[k] for k in together]), strict=True))
        for k, (number, point) in enumerate(zip(going, points, strict=True)):
            yield from_pass[k] if k in from_pass else self.loss_row[number].margins(point.support, point.values)

    def _pass_along_rows(self, points: Sequence[Point]) -> Iterator[Array]:
        if not points:
            return iter(())
        (n, d), matrix = self.rows.shape, self.rows.matrix
        by_run: Array = np.zeros((len(points), d))
        for k, point in enumerate(points):
            by_run[k, point.support] = point.values
        if self._arrays is not None:
            from dptoolkit.kernels.sums import block_feature_sums, interleave

            block, margins = np.zeros((d, self._r.shape[1])), np.empty((len(points), n))
            interleave(by_run, block)
            block_feature_sums(*compiled_rows(self.rows), 0, block, margins)
            return iter(margins)
        weights = by_run.T
        features = np.flatnonzero(weights.any(axis=1))
        if 2 * len(features) <= len(weights):
            matrix, weights = matrix[:, features], weights[features]
        return iter(np.ascontiguousarray((matrix @ weights).T))
