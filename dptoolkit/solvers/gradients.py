"""The mean gradient of bounded records, with the noise drawn while it is computed."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from dptoolkit.data import Array, Rows, kernel_arrays
from dptoolkit.losses import Loss

# Below this many stored entries neither a second thread nor compiled sums are worth their cost.
_WORTH_A_THREAD = 200_000
# Parts of X^T r that the threads take one by one, so that both end at about the same time.
_PARTS = 16


class Point(NamedTuple):
    """Sparse weights, ``values`` on ``support``, and the noise with which the mean gradient there is released."""

    support: Any
    values: Array
    scale: float


def few_columns(count: int, rows: Rows) -> bool:
    """Whether the margins of ``count`` weights are quicker from their columns than by a pass along the rows.

    A pass neither copies columns nor jumps about in the margins. A dense row is read in lines of eight numbers, so that
    every eighth column costs as much as all of them.
    """
    return (2 if rows.is_sparse else 8) * count <= rows.shape[1]


class MeanGradient:
    """(1/n) sum_i clip(residual_i) x_i at sparse weights, for bounded rows, dense or CSR.

    ``caps`` bounds each record's |residual|. On large CSR data one extra thread draws the noise and then helps with the
    sums. Every feature's sum is computed by a single thread, so the result does not depend on the number of threads or
    processors.
    """

    def __init__(
        self, rows: Rows, y: Array, loss: Loss, margin_bound: float = math.inf, caps: Array | None = None
    ) -> None:
        self.rows, self.y, self.loss, self.margin_bound, self.caps = rows, y, loss, margin_bound, caps
        n, d = rows.shape
        self._transposed = rows.transpose()
        self._arrays = kernel_arrays(self._transposed) if rows.is_sparse else None
        self._margins, self._r, self._noise, self._gradient = np.zeros(n), np.zeros(n), np.zeros(d), np.zeros(d)
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[tuple[int, int]] = []
        if self._arrays is not None and len(self._arrays[0]) > _WORTH_A_THREAD:
            ends = np.searchsorted(self._arrays[2], np.linspace(0, len(self._arrays[0]), _PARTS + 1)[1:-1]).tolist()
            self._parts = list(zip([0, *ends], [*ends, d], strict=True))
            self._pool = ThreadPoolExecutor(1) if (os.cpu_count() or 1) > 1 else None

    def margins(self, support: Any, values: Array) -> Array:
        """X w for the w with ``values`` on ``support``; overwritten by the next call."""
        if not few_columns(len(support), self.rows):
            w = self._dense(support, values)
            if not self._parts:
                return np.asarray(self.rows.matrix @ w)
            from dptoolkit.kernels.threshold import feature_sums

            feature_sums(*kernel_arrays(self.rows.matrix), w, self._margins, 0, self.rows.shape[0])
            return self._margins
        if self._arrays is None:
            return np.asarray(self.rows.matrix[:, support] @ values)
        from dptoolkit.kernels.threshold import support_margins

        support_margins(*self._arrays, support, values, self._margins)
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
        if self._pool is not None:
            gradient, noise = self._in_two_threads(self._pool, support, values, scale, rng)
        else:
            gradient, noise = self._sums(self._residuals(support, values)), self._draw(scale, rng)
        if noise is not None:
            gradient += noise
        return gradient

    def _sums(self, r: Array) -> Array:
        if not self._parts:
            return np.asarray(self._transposed @ r)
        gradient = self._gradient
        self._sum_parts(iter(self._parts), r, gradient)
        return gradient

    def _residuals(self, support: Any, values: Array) -> Array:
        return self.residuals(self.margins(support, values))

    def residuals(self, margins: Array) -> Array:
        """Each record's clipped residual, over n, at these margins; overwritten by the next call."""
        from dptoolkit.kernels.threshold import mean_residuals

        caps = np.zeros(0) if self.caps is None else self.caps
        mean_residuals(self.loss.id, margins, self.y, float(self.margin_bound), caps, self._r)
        return self._r

    def _in_two_threads(
        self, pool: ThreadPoolExecutor, support: Any, values: Array, scale: float, rng: np.random.Generator | None
    ) -> tuple[Array, Array | None]:
        gradient = self._gradient
        draw = pool.submit(self._draw, scale, rng)
        r = self._residuals(support, values)
        # Both threads take their next part from one iterator; taking is atomic.
        parts = iter(self._parts)
        other = pool.submit(self._sum_parts, parts, r, gradient)
        self._sum_parts(parts, r, gradient)
        # On a busy machine the other thread may not have started yet: do not wait for it.
        noise = self._draw(scale, rng) if draw.cancel() else draw.result()
        if not other.cancel():
            other.result()
        return gradient, noise

    def _sum_parts(self, parts: Iterator[tuple[int, int]], r: Array, gradient: Array) -> None:
        from dptoolkit.kernels.threshold import feature_sums

        assert self._arrays is not None
        for first, last in parts:
            feature_sums(*self._arrays, r, gradient, first, last)

    def _draw(self, scale: float, rng: np.random.Generator | None) -> Array | None:
        return None if rng is None or not _fill(self._noise, scale, rng) else self._noise


def _fill(noise: Array, scale: float, rng: np.random.Generator) -> bool:
    """Fill ``noise`` with N(0, scale^2); False, with nothing drawn, for scale 0."""
    if scale == 0:
        return False
    rng.standard_normal(out=noise)
    noise *= scale
    return True


# So many sums are taken at a time (kernels/threshold.py); fewer than FEW are quicker without idle lanes.
LANES, FEW = 16, 5


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
        self.rows, self.terms = rows, terms
        n, d = rows.shape
        lanes = LANES if FEW <= len(terms) <= LANES else len(terms)
        self._arrays = kernel_arrays(rows.transpose()) if rows.is_sparse else None
        # Without parts a MeanGradient leaves its sums to SciPy, which adds up in another order than our kernels.
        self._compiled = bool(terms[0]._parts)
        self._pool = ThreadPoolExecutor(1) if self._compiled and (os.cpu_count() or 1) > 1 else None
        self._noise = np.zeros((len(terms) if self._pool is not None else 1, d))
        self._r, self._gradients = np.zeros((n, lanes)), np.zeros((len(terms), d))
        self._residuals = np.zeros((len(terms), n))

    def noisy(
        self, going: Sequence[int], points: Sequence[Point], rngs: Sequence[np.random.Generator]
    ) -> Iterator[Array]:
        """For each of the runs numbered ``going`` its mean gradient plus its noise, as MeanGradient.noisy."""
        # One noise at a time stays in the cache; a second thread draws ahead, as far as it gets.
        jobs = list(zip(itertools.cycle(self._noise), (point.scale for point in points), rngs, strict=False))
        ahead = [self._pool.submit(_fill, *job) for job in jobs] if self._pool is not None else None
        for k, gradient in enumerate(self._sums(going, points)):
            is_noisy = _fill(*jobs[k]) if ahead is None or ahead[k].cancel() else ahead[k].result()
            if is_noisy:
                gradient += jobs[k][0]
            yield gradient

    def _sums(self, going: Sequence[int], points: Sequence[Point]) -> Array:
        """The mean gradients without noise, in one pass over X."""
        residuals, gradients = self._residuals[: len(going)], self._gradients[: len(going)]
        for out, k, margins in zip(residuals, going, self._margins(going, points), strict=True):
            out[:] = self.terms[k].residuals(margins)
        if self._arrays is None:
            return np.matmul(residuals, self.rows.matrix, out=gradients)
        if not self._compiled:
            gradients[:] = (self.rows.transpose() @ residuals.T).T
            return gradients
        from dptoolkit.kernels.threshold import block_feature_sums, interleave

        interleave(residuals, self._r)
        block_feature_sums(*self._arrays, self._r, gradients, 0, self.rows.shape[1])
        return gradients

    def _margins(self, going: Sequence[int], points: Sequence[Point]) -> Iterator[Array]:
        """X w of every point: in one pass if there are many weights, else from the columns of its support."""
        sparse = self.rows.is_sparse
        together = [k for k, point in enumerate(points) if not sparse or not few_columns(len(point.support), self.rows)]
        passed = dict(zip(together, self._pass_along_rows([points[k] for k in together]), strict=True))
        for k, (number, point) in enumerate(zip(going, points, strict=True)):
            yield passed[k] if k in passed else self.terms[number].margins(point.support, point.values)

    def _pass_along_rows(self, points: Sequence[Point]) -> Iterator[Array]:
        if not points:
            return iter(())
        (n, d), matrix = self.rows.shape, self.rows.matrix
        by_run: Array = np.zeros((len(points), d))
        for k, point in enumerate(points):
            by_run[k, point.support] = point.values
        if self._compiled:
            from dptoolkit.kernels.threshold import block_feature_sums, interleave

            block, margins = np.zeros((d, self._r.shape[1])), np.empty((len(points), n))
            interleave(by_run, block)
            block_feature_sums(*kernel_arrays(matrix), block, margins, 0, n)
            return iter(margins)
        weights = by_run.T
        if not self.rows.is_sparse:
            used = np.flatnonzero(weights.any(axis=1))
            if 2 * len(used) <= len(weights):
                matrix, weights = matrix[:, used], weights[used]
        return iter(np.ascontiguousarray((matrix @ weights).T))
