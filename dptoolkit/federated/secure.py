"""A client's steps with the softmax loss and secure noise: exact batches, integer sums, rounded noise.

Privacy
-------
A record's gradient is x r^T, with one residual r per class: both are whole numbers on public grids, and their norms
are checked in whole numbers (solvers/engine/secure_softmax.py), so that its norm is at most grad_norm, exactly. Margins
are sums over the entries of one record, in their own order, whatever the batch is: rows are kept in CSR form, since the
product of a dense matrix may round a row in a way that depends on how many there are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit.data import Rows
from dptoolkit.data.grids import directions_on_grid, released_mean
from dptoolkit.federated.softmax import SoftmaxSteps
from dptoolkit.randomness import rounded_normals
from dptoolkit.solvers._sgd import Batches
from dptoolkit.solvers.engine.batches import check_sparse_rows
from dptoolkit.solvers.engine.initial import NOTHING, Start
from dptoolkit.solvers.engine.secure import SecureNoise
from dptoolkit.solvers.engine.secure_softmax import residuals_on_grid
from dptoolkit.solvers.engine.secure_steps import Records, Scheme
from dptoolkit.solvers.frame.run import Trace
from dptoolkit.solvers.frame.secure import secure_stream
from dptoolkit.types import Array


class SecureSoftmaxSteps(SoftmaxSteps):
    """``SoftmaxSteps`` with secure noise; ``rate`` is the chance of a record in a Poisson batch, None for a fixed size.

    Privacy
    -------
    A step releases S + round(M Z) on every entry, S the exact integer sum of the gradients of a fresh batch, or of all
    records: at most the event of the secured plan. A numpy Generator is not used.
    """

    def __init__(
        self, rows: Rows, labels: Array, caps: Array | None, iteration: Batches, noise: SecureNoise,
        rate: float | None, start: Start = NOTHING,
    ) -> None:  # fmt: skip
        # Gradients of a federation are always clipped to grad_norm: rows are directions.
        assert caps is not None
        whole, self._lengths = directions_on_grid(check_sparse_rows(rows.matrix), noise.grids)
        super().__init__(whole, labels, None, iteration, noise.law.scale, start)
        n = len(labels)
        size = n if math.isnan(iteration.batch_size) else iteration.batch_size
        self._secure, self._scheme, self._units = noise, Scheme.of(n, size, rate), noise.multiplier(noise.law.scale)

    def sums(self, weights: Array, batch: NDArray[np.int64]) -> NDArray[np.int64]:
        """The gradients of the records of a batch in grid units, added up; NOT private."""
        X, grids = self.rows.matrix[batch], self._secure.grids
        margins = np.asarray(X @ (weights.reshape(self.shape) * grids.row_unit))
        r = residuals_on_grid(margins, self.labels[batch], self._lengths[batch], grids)
        return np.asarray(X.T @ r).ravel().astype(np.int64)

    def _noisy_gradients(self, stream: Any, steps: int) -> Any:
        """One function a step, from weights to their noisy mean gradient on a fresh batch."""
        records, size = Records(stream, self._scheme), self._secure.size

        def noisy(weights: Array) -> Array:
            total = self.sums(weights, records.draw())
            return released_mean(total + rounded_normals(stream, self._units, len(total)), self._secure.grids, size)

        return [noisy] * steps

    def advance(self, rng: Any, start: Start, steps: int) -> Start:
        """See ``SoftmaxSteps``."""
        with secure_stream(rng) as stream:
            return super().advance(stream, start, steps)  # type: ignore[arg-type]

    def one(self, rng: Any, trace: bool) -> Trace:
        """See ``SoftmaxSteps``; a SecureStream, for tests and audits, is used as it is."""
        with secure_stream(rng) as stream:
            return super().one(stream, trace)  # type: ignore[arg-type]
