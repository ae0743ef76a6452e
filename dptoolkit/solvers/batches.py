"""What the stochastic solvers share: sampling schemes, bounded CSR rows and the iterate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, whole
from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT, Event, Gaussian, Subsampled
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, kernel_arrays
from dptoolkit.losses import Loss
from dptoolkit.solvers.base import Array, Plan, check_counts

SCHEMES = (WITHOUT_REPLACEMENT, POISSON)
# Radii at which the adaptive noise is tabulated: this many a unit up to the furthest; beyond it is the plan's.
_GRID, _FURTHEST = 16, 40
# The radius is looked up by this part larger, so that no rounding of |w| finds the entry before.
_ROUNDING = 1e-10
# A table of shares with the one entry 1.
FULL_NOISE = np.ones(1), 0.0


def check_batch(name: str, size: Any, n: int) -> int:
    """1 <= size <= n."""
    b = whole(name, size, low=1)
    if b > n:
        raise invalid(name, b, f"<= n={n}", "A batch is a part of the data.")
    return b


def check_sampling(sampling: Any, adjacency: Any) -> tuple[str, Adjacency]:
    """A scheme and the adjacency it is used under; combinations without a sound guarantee are refused."""
    scheme = one_of("sampling", sampling, SCHEMES)
    if adjacency is None:
        return scheme, Adjacency.REPLACE_ONE if scheme == WITHOUT_REPLACEMENT else Adjacency.ZERO_OUT
    relation = Adjacency.parse(adjacency)
    # Subsampled holds the rule; building one raises where the pair is not defined.
    Subsampled(Gaussian(1.0), scheme, 0.5, relation)
    return scheme, relation


def batch_event(multiplier: float, scheme: str, rate: float, relation: Adjacency) -> Event:
    """One Gaussian release on a fresh batch."""
    return Subsampled(Gaussian(multiplier), scheme, rate, relation)


def batch_sizes(rng: np.random.Generator, scheme: str, n: int, size: int, count: int) -> NDArray[np.int64]:
    """Realised sizes of ``count`` batches: ``size`` each, or binomial, which amounts to a coin for every row."""
    if scheme == WITHOUT_REPLACEMENT:
        return np.full(count, size, dtype=np.int64)
    return rng.binomial(n, size / n, size=count).astype(np.int64)


def factor(relation: Adjacency) -> float:
    """How many times a record's bound a sum of records moves."""
    return 2.0 if relation is Adjacency.REPLACE_ONE else 1.0


def noise_shares(settings: Mapping[str, Any], relation: Adjacency = Adjacency.REPLACE_ONE) -> tuple[Array, float]:
    """(shares, places per unit of |w|): at a public w a gradient's noise is shares[ceil(places |w|)] of the plan's."""
    if not settings["adaptive"] or settings["loss"] != "logistic" or settings["grad_norm"] is not None:
        return FULL_NOISE
    around_zero = settings.get("sampling") == POISSON or relation is Adjacency.ZERO_OUT
    return _logistic_shares(around_zero), _GRID * settings["row_norm"] * (1 + _ROUNDING)


@cache
def _logistic_shares(around_zero: bool) -> Array:
    """What one record can move at radius row_norm |w|, over what it can move at any w, on a grid of radii.

    A gradient is at most row_norm sigmoid(radius), and one replaced by another, in all the data or in a batch of fixed
    size, moves the sum by at most row_norm logistic_diameter(radius). Where a record may be left out, by Poisson
    sampling or by zeroing it, the ball around 0 counts. The last entry is 1: it serves every larger radius.
    """
    radii = np.arange(_GRID * _FURTHEST + 1) / _GRID
    found = expit(radii) if around_zero else [losses.logistic_diameter(r) / 2 for r in radii]
    return np.maximum.accumulate(np.append(found, 1.0))


def share_at(shares: tuple[Array, float], norm: float) -> float:
    """The share of the noise at |w| = ``norm``; the last, which is 1, beyond the table and for what is no number."""
    table, places = shares
    place = norm * places
    return float(table[math.ceil(place)] if place < len(table) - 1 else table[-1])


def check_sparse_rows(X: Any) -> Rows:
    """X as CSR rows. Dense input is converted first of all, so that it gives the same fit bit for bit."""
    rows = check_rows(X)
    return rows if rows.is_sparse else Rows(sparse.csr_matrix(rows.matrix), True)


@dataclass
class BatchData:
    """Bounded CSR rows with their labels and clipping."""

    rows: Rows
    y: Array
    loss: Loss
    margin_bound: float
    caps: Array | None

    def __post_init__(self) -> None:
        values, indices, indptr = kernel_arrays(self.rows.matrix)
        # Signed, for these kernels calculate with it.
        self._arrays = values, indices, indptr.view(np.int64)
        self._all_caps = np.full(self.rows.shape[0], np.inf) if self.caps is None else self.caps

    def records(self) -> Any:
        """The rows as the kernels take them, with a permutation of the rows from which batches are drawn."""
        from dptoolkit.kernels.stochastic import Records

        order = np.arange(self.rows.shape[0], dtype=np.int64)
        return Records(self.loss.id, *self._arrays, self.y, self.margin_bound, self._all_caps, order)


def check_batches(plan: Plan, X: Any, y: Any, counts: Any) -> tuple[Rows, Array]:
    """The plan's n rows, each written out, and their labels: batches are drawn from rows, not from counts."""
    rows = check_sparse_rows(X)
    labels = check_labels(y, rows.shape[0], losses.get(plan.settings["loss"]))
    times = check_counts(plan, rows.shape, counts)
    if times is None:
        return rows, labels
    which = np.repeat(np.arange(len(times)), times)
    return Rows(rows.matrix[which], True), labels[which]


class Iterate:
    """Weights kept as (support, values); nothing of length d."""

    def __init__(self, places: int) -> None:
        self.support, self.values = np.zeros(places, dtype=np.int64), np.zeros(places)
        self.filled = 0

    def snapshot(self) -> tuple[NDArray[np.int64], Array]:
        """(support, values), sorted by coordinate."""
        order = np.argsort(self.support[: self.filled])
        return self.support[: self.filled][order], self.values[: self.filled][order]

    def dense(self, width: int) -> Array:
        """The weights as a vector."""
        w = np.zeros(width)
        w[self.support[: self.filled]] = self.values[: self.filled]
        return w
