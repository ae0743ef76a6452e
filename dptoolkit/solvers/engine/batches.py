"""What the stochastic solvers share: sampling schemes, bounded CSR rows and the iterate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit._validate import invalid, one_of, whole
from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT, Gaussian, Subsampled
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_rows, kernel_arrays
from dptoolkit.losses import Loss
from dptoolkit.solvers.engine.bounds import NoiseLaw
from dptoolkit.solvers.engine.descent import ResolvedThresholding, ThresholdingSettings
from dptoolkit.solvers.engine.initial import NOTHING, Start, check_start
from dptoolkit.solvers.frame.plan import Sampling
from dptoolkit.solvers.frame.settings import check_l2, setting
from dptoolkit.types import Array

SCHEMES = (WITHOUT_REPLACEMENT, POISSON)


@dataclass(frozen=True, kw_only=True)
class BatchSettings(ThresholdingSettings):
    """Settings of hard thresholding on batches."""

    batch_size: int = setting("(Expected) number of rows of a batch.")
    l2: float = setting("Weight of a term l2/2 |w|^2, whose gradient is public and not clipped.", default=0.0)
    sampling: str = setting(
        'How batches are drawn: "without-replacement", of fixed size, under replace-one; or "poisson", each row '
        "independently, under zero-out (default) or replace-one. Sums are divided by the expected size, never by the "
        "realised one.",
        default=WITHOUT_REPLACEMENT,
    )
    adjacency: Adjacency | str | None = setting(
        'Which datasets are neighbours: "replace-one" or "zero-out"; by default "replace-one", or "zero-out" for '
        "Poisson sampling.",
        default=None,
    )

    @property
    def penalty(self) -> float:
        """The weight of the l2 term."""
        return self.l2

    def _batches_checked(self, n: int, d: int) -> dict[str, Any]:
        """The values of what was left out, after the shared settings are checked."""
        check_batch("batch_size", self.batch_size, n)
        check_l2(self.l2)
        return {"adjacency": check_sampling(self.sampling, self.adjacency)} | self._checked(d)

    def validated_rows(self, X: Any, n_features: int | None = None) -> Rows:
        """X as CSR rows. Dense input is converted first, so that it gives the same fit as sparse input bit for bit."""
        return check_sparse_rows(super().validated_rows(X, n_features))


@dataclass(frozen=True, kw_only=True)
class ResolvedBatches(ResolvedThresholding, BatchSettings):
    """Settings of hard thresholding on batches in a plan."""

    has_lazy_steps: ClassVar[bool] = True

    adjacency: Adjacency
    batch_size: int

    def sampled(self, size: int, n: int) -> Sampling:
        """Fresh batches of ``size`` of n rows."""
        return Sampling(self.sampling, size / n, self.adjacency)

    def batch_law(self, scale: float) -> NoiseLaw:
        """The noise of a batch gradient; the law differs for Poisson sampling, which may leave a record out."""
        return self.gradient_law(scale, self.sampling == POISSON)

    def refuse_other_sampling(self, theorem: str) -> None:
        """Refuse other sampling with published noise: the paper's theorems are for batches of fixed size."""
        if self.sampling != WITHOUT_REPLACEMENT:
            rule = "'without-replacement' with calibration='published'"
            raise invalid("sampling", self.sampling, rule, f"{theorem} is for it.")

    def bounded_batches(self, rows: Rows, y: Array, counts: NDArray[np.int64] | None = None) -> BatchData:
        """The records, each bounded on its own by public numbers."""
        bounded_rows, labels, caps = self.bounds.clip(rows, y)
        return BatchData(bounded_rows, labels, self.loss_row, self.bounds.largest_margin, caps, counts)


def check_batch(name: str, size: Any, n: int) -> int:
    """1 <= size <= n."""
    b = whole(name, size, low=1)
    if b > n:
        raise invalid(name, b, f"<= n={n}", "A batch cannot be larger than the data.")
    return b


def check_sampling(sampling: Any, adjacency: Any) -> Adjacency:
    """The adjacency that a scheme is used under; combinations without a sound guarantee are refused."""
    scheme = one_of("sampling", sampling, SCHEMES)
    # Subsampled holds the rule; building one raises where the pair is not defined.
    event = Subsampled(Gaussian(1.0), scheme, 0.5, None if adjacency is None else Adjacency.parse(adjacency))
    assert event.adjacency is not None
    return event.adjacency


def batch_sizes(rng: np.random.Generator, scheme: str, n: int, size: float, count: int) -> NDArray[np.int64]:
    """Realised sizes of ``count`` batches: ``size`` each, or binomial, which amounts to a coin for every row."""
    if scheme == WITHOUT_REPLACEMENT:
        return np.full(count, size, dtype=np.int64)
    return rng.binomial(n, size / n, size=count).astype(np.int64)


def check_sparse_rows(X: Any, n_features: int | None = None) -> Rows:
    """X as CSR rows."""
    rows = check_rows(X, n_features)
    if rows.is_sparse:
        return rows
    as_csr: Rows = rows.cached("csr", lambda: Rows(sparse.csr_matrix(rows.matrix), True, rows.is_marked))
    return as_csr


@dataclass
class BatchData:
    """Bounded CSR rows with their labels and clipping, and how many records each row stands for; None for one each."""

    rows: Rows
    y: Array
    loss: Loss
    margin_bound: float
    caps: Array | None
    counts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        values, indices, indptr = kernel_arrays(self.rows.matrix)
        # Signed, since these kernels do arithmetic with it.
        self._arrays = values, indices, indptr.view(np.int64)
        self._all_caps = np.full(self.rows.shape[0], np.inf) if self.caps is None else self.caps

    @property
    def n(self) -> int:
        """The number of records."""
        return self.rows.shape[0] if self.counts is None else int(self.counts.sum())

    @property
    def which(self) -> NDArray[np.int64]:
        """The row of each record."""
        row = np.arange(self.rows.shape[0], dtype=np.int64)
        return row if self.counts is None else np.repeat(row, self.counts)

    def records(self) -> Any:
        """The rows as the kernels take them, with the order of the records from which batches are drawn."""
        from dptoolkit.kernels.stochastic import Records

        tally = None if self.counts is None else np.zeros((2, len(self.counts)), np.int64)
        return Records(self.loss.id, *self._arrays, self.y, self.margin_bound, self._all_caps, self.which, tally)

    def alike(self, other: BatchData) -> bool:
        """Whether one compiled call can take both: either both count the records of their rows, or neither does."""
        return (self.counts is None) == (other.counts is None)

    def objective(self, weights: Array) -> float:
        """The mean loss of the bounded records, without any penalty; NOT private."""
        margins = np.asarray(self.rows.matrix @ weights)
        return (
            self.loss.objective(margins, self.y)
            if self.counts is None
            else self.loss.objective(margins[self.which], self.y[self.which])
        )


class Iterate:
    """Weights kept as (support, values); nothing of length d.

    ``start`` has places below ``width``, and no more than there is room for.
    """

    def __init__(self, kept_count: int, start: Start = NOTHING, width: int = 0) -> None:
        self.support, self.values = np.zeros(kept_count, dtype=np.int64), np.zeros(kept_count)
        support, values = check_start(start, width, kept_count)
        self.filled = len(support)
        self.support[: self.filled], self.values[: self.filled] = support, values

    def snapshot(self) -> tuple[NDArray[np.int64], Array]:
        """(support, values), sorted by coordinate."""
        order = np.argsort(self.support[: self.filled])
        return self.support[: self.filled][order], self.values[: self.filled][order]

    def sort(self) -> None:
        """Order the places by coordinate."""
        self.support[: self.filled], self.values[: self.filled] = self.snapshot()

    def dense(self, width: int) -> Array:
        """The weights as a vector."""
        w = np.zeros(width)
        w[self.support[: self.filled]] = self.values[: self.filled]
        return w
