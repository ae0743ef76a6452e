"""The mean gradient of bounded records, with the noise drawn while it is computed."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.kernels import reference
from dptoolkit.losses import Loss
from dptoolkit.solvers.base import Array

# Below this many stored entries a second thread costs more than it saves.
_WORTH_A_THREAD = 200_000
# Share of X^T r that the noise-drawing thread also computes, so that both threads end together.
_HELPER_SHARE = 0.35


class MeanGradient:
    """(1/n) sum_i clip(residual_i) x_i at sparse weights, for bounded rows, dense or CSR.

    ``caps`` bounds each record's |residual|. On large CSR data one extra thread draws the noise and computes part of
    the features; every feature's sum is computed whole by one thread, so the result does not depend on the threads.
    """

    def __init__(
        self, rows: Rows, y: Array, loss: Loss, margin_bound: float = math.inf, caps: Array | None = None
    ) -> None:
        self.rows, self.y, self.loss, self.margin_bound, self.caps = rows, y, loss, margin_bound, caps
        n, d = rows.shape
        self._transposed = rows.transpose()
        self._arrays = kernel_arrays(self._transposed) if rows.is_sparse else None
        self._margins, self._noise = np.zeros(n), np.zeros(d)
        self._pool: ThreadPoolExecutor | None = None
        if self._arrays is not None and len(self._arrays[0]) > _WORTH_A_THREAD and (os.cpu_count() or 1) > 1:
            self._pool = ThreadPoolExecutor(1)
            self._border = int(np.searchsorted(self._arrays[2], _HELPER_SHARE * len(self._arrays[0])))

    def margins(self, support: Any, values: Array) -> Array:
        """X w for the w with ``values`` on ``support``; overwritten by the next call."""
        if self._arrays is None:
            return np.asarray(self.rows.matrix[:, support] @ values)
        from dptoolkit.kernels.threshold import support_margins

        support_margins(*self._arrays, support, values, self._margins)
        return self._margins

    def objective(self, support: Any, values: Array) -> float:
        """The mean loss of the bounded records; NOT private."""
        return losses.value(self.loss, self.margins(support, values), self.y)

    def noisy(self, support: Any, values: Array, scale: float, rng: np.random.Generator | None) -> Array:
        """The mean gradient plus N(0, scale^2) on every coordinate; exact for scale 0.

        Privacy
        -------
        One call with scale > 0 is Gaussian(scale / sensitivity); the sensitivity is the plan's.
        """
        r = reference.clipped_residual(self.loss, self.margins(support, values), self.y, self.margin_bound, self.caps)
        r = r / self.rows.shape[0]
        if self._pool is None:
            gradient = np.asarray(self._transposed @ r)
            noise = self._draw(scale, rng)
        else:
            gradient, noise = self._in_two_threads(r, scale, rng)
        if noise is not None:
            gradient += noise
        return gradient

    def _in_two_threads(
        self, r: Array, scale: float, rng: np.random.Generator | None
    ) -> tuple[Array, Array | None]:
        from dptoolkit.kernels.threshold import feature_sums

        assert self._pool is not None and self._arrays is not None
        arrays = self._arrays
        gradient = np.empty(len(self._noise))

        def first_part() -> Array | None:
            noise = self._draw(scale, rng)
            feature_sums(*arrays, r, gradient, 0, self._border)
            return noise

        other = self._pool.submit(first_part)
        feature_sums(*arrays, r, gradient, self._border, len(gradient))
        return gradient, other.result()

    def _draw(self, scale: float, rng: np.random.Generator | None) -> Array | None:
        if scale == 0 or rng is None:
            return None
        rng.standard_normal(out=self._noise)
        self._noise *= scale
        return self._noise
