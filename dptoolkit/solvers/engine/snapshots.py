"""Snapshots of the variance-reduced solvers: the noisy mean gradient, and what an epoch of lazy steps needs of it.

The snapshot gradient is noise alone where the data have no feature, and of that noise an epoch uses little: what
reaches the top k. Those coordinates are hidden: ``ranked_means`` draws how many of them lie in which layer of |noise|,
the kernel draws one when a step looks at it, and ``Numbering`` chooses a coordinate for it when it is kept. The law is
that of drawing all (kernels/stochastic.py says why), at the cost of the features that the data have.

Privacy
-------
Which features occur in the data decides what is drawn in which way, but the law of all iterates is the same whatever is
hidden; so is the release, with its sensitivity and its event.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit.data import Rows
from dptoolkit.mechanisms.randomness import exclusive
from dptoolkit.solvers.engine.batches import BatchData, Iterate, batch_sizes
from dptoolkit.types import Array

# A batch of at most one row in so many is drawn in a time that does not depend on the number of rows.
FEW_ROWS = 50
# Up to this many coordinates are one bucket.
ONE_BUCKET = 32
# Up to this many stored entries one compiled pass over the chosen rows is faster than copying them for scipy.
_FEW_ENTRIES = 200_000
# Means that agree in their exponent and the first six bits of their fraction share a cell; the last cell takes all that
# are smaller.
_LOW_BITS = 46
_CELLS = 4096
# Fewer coordinates without data than this are not worth a structure of their own.
_FEW_HIDDEN = 4096
# Coordinates that are expected in the first layer of those without data, all of which are drawn.
_FIRST_LAYER = 32


def few_entries(data: BatchData) -> bool:
    """Whether one compiled pass over the chosen rows is the fastest."""
    return bool(data.rows.matrix.nnz <= _FEW_ENTRIES)


@dataclass
class Numbering:
    """Numbers of the competing coordinates: first those with data, then the others that the iterate has, then the rest.

    The rest has numbers only while an epoch runs. Without ``features`` all coordinates are their own numbers.
    """

    free: int
    features: NDArray[np.int64] | None = None
    others: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def known(self) -> int:
        """How many coordinates have a number, and a mean from the beginning of an epoch."""
        return self.free if self.features is None else len(self.features) + len(self.others)

    def named(self, iterate: Iterate) -> Iterate:
        """The iterate with coordinates in place of numbers."""
        if self.features is None:
            return iterate
        result, m = Iterate(len(iterate.support)), len(self.features)
        result.filled, result.values = iterate.filled, iterate.values
        numbers = iterate.support[: iterate.filled]
        names = np.where(numbers < m, self.features[np.minimum(numbers, m - 1)], numbers)
        other = (numbers >= m) & (numbers < self.free)
        names[other] = self.others[numbers[other] - m]
        result.support[: iterate.filled] = names
        return result

    def settle(self, iterate: Iterate, rng: np.random.Generator) -> None:
        """After an epoch: a coordinate for each number that is new in the iterate, and numbers for the next epoch.

        All coordinates without data that had no number were alike in this epoch, so a uniform choice among them, made
        now, has the law of one that was made before it.
        """
        if self.features is None:
            return
        m, known, numbers = len(self.features), self.known, iterate.support[: iterate.filled]
        other = np.flatnonzero((numbers >= m) & (numbers < self.free))
        old = numbers[other] < known
        coordinates = np.empty(len(other), np.int64)
        coordinates[old] = self.others[numbers[other[old]] - m]
        coordinates[~old] = self._fresh(rng, int((~old).sum()))
        self.others = coordinates
        numbers[other] = m + np.arange(len(other))

    def _fresh(self, rng: np.random.Generator, count: int) -> list[int]:
        """Different coordinates, uniform among those without data and without a number."""
        assert self.features is not None
        taken, fresh = set(self.others.tolist()), list[int]()
        # The number of coordinates without data before each feature.
        before = self.features - np.arange(len(self.features)) if count else self.features
        while len(fresh) < count:
            rank = int(rng.integers(self.free - len(self.features)))
            coordinate = rank + int(np.searchsorted(before, rank, side="right"))
            if coordinate not in taken:
                taken.add(coordinate)
                fresh.append(coordinate)
        return fresh


def numbered(data: BatchData, free: int, kept_count: int) -> tuple[BatchData, Numbering]:
    """The records by numbers of their features, where at least half of the coordinates have no data."""
    matrix = data.rows.matrix
    width = matrix.shape[1]
    if free < _FEW_HIDDEN:
        return data, Numbering(free)
    occurs = np.zeros(width, dtype=bool)
    occurs[matrix.indices] = True
    features = np.flatnonzero(occurs[:free])
    if free - len(features) < max(len(features), 4 * kept_count, _FEW_HIDDEN) or len(features) == 0:
        return data, Numbering(free)
    numbers = np.empty(width, matrix.indices.dtype)
    numbers[features] = np.arange(len(features))
    numbers[free:] = np.arange(free, width)
    # The order of the features stays, and with it that of every sum.
    rows = sparse.csr_matrix((matrix.data, numbers[matrix.indices], matrix.indptr), shape=matrix.shape)
    return replace(data, rows=Rows(rows, True)), Numbering(free, features)


def snapshot_gradient(
    data: BatchData,
    records: Any,
    big: int,
    sampling: str,
    support: NDArray[np.int64],
    values: Array,
    scale: float,
    rng: np.random.Generator,
    numbering: Numbering,
) -> Array:
    """The mean gradient of a fresh batch at the snapshot, divided by the EXPECTED batch size, plus noise.

    It has the known coordinates and the protected ones; the others have no data. ``records`` are those of ``data``.

    Privacy
    -------
    One call is the plan's snapshot release.
    """
    n, w = data.n, np.zeros(data.rows.shape[1])
    size = int(batch_sizes(rng, sampling, n, big, 1)[0])
    w[support] = values
    few = few_entries(data)
    total = _few_sum(records, size, w, rng) if few else _batch_sum(data, uniform_rows(rng, n, size, big), w)
    known, free = numbering.known, numbering.free
    gradient = (total if known == free else np.append(total[:known], total[free:])) / big
    if scale > 0:
        gradient += scale * rng.standard_normal(len(gradient))
    return gradient


def uniform_rows(rng: np.random.Generator, n: int, size: int, expected: int) -> NDArray[np.int64]:
    """``size`` of n rows, uniform without replacement, in increasing order.

    If more than one row in fifty is ``expected``, they are the rows of the smallest of n uniform numbers, which is
    faster than a sample. Equal numbers, which have a chance of n^2/2^54, go by place.
    """
    if size in (0, n):
        return np.arange(size)
    if expected * FEW_ROWS <= n:
        return np.sort(rng.choice(n, size=size, replace=False))
    keys = rng.random(n)
    return np.flatnonzero(keys <= np.partition(keys, size - 1)[size - 1])[:size]


def _few_sum(records: Any, size: int, w: Array, rng: np.random.Generator) -> Array:
    """The sum of the gradients at w of ``size`` records, uniform without replacement; their order changes."""
    from dptoolkit.kernels import stochastic as kernel

    total = np.zeros(len(w))
    with exclusive(rng):
        kernel.add_records(rng, records, records.tally, size, w, total)
    return total


def _batch_sum(data: BatchData, chosen: NDArray[np.int64], w: Array) -> Array:
    """The sum of the chosen records' gradients at w."""
    matrix, y, caps = data.rows.matrix, data.y, data.caps
    batch = chosen if data.counts is None else data.which[chosen]
    if len(batch) < len(y) or data.counts is not None:
        matrix, y = matrix[batch], y[batch]
        caps = None if caps is None else caps[batch]
    r = data.loss.clipped_residual(np.asarray(matrix @ w), y, data.margin_bound, caps)
    return np.asarray(matrix.T @ r)


def buckets(means: Array) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """(coordinates bucket by bucket, the buckets' borders, largest |mean| of each and, last, the smallest of all).

    The size of a bucket is a fifth of the number of means in it and above it, at least 32, so that the few large means,
    which decide, lie in small buckets. Means are sorted by their leading bits only, which is O(d); a full sort would
    cost more than the inner steps.
    """
    size = np.abs(means)
    if len(size) <= ONE_BUCKET:
        return np.arange(len(size)), np.array([0, len(size)]), np.array([size.max(), size.min()])
    bits = size.view(np.int64)
    cells = np.minimum((bits.max() - bits) >> _LOW_BITS, _CELLS - 1)
    above = np.concatenate([[0], np.cumsum(np.bincount(cells, minlength=_CELLS))])
    ends = [0]
    while above[ends[-1]] < len(means):
        start = int(above[ends[-1]])
        ends.append(int(np.searchsorted(above, min(len(means), start + max(32, start // 4)))))
    # A stable sort of one-byte numbers is a counting sort, which is fast.
    bucket = np.repeat(np.arange(len(ends), dtype=np.uint8), np.diff([*ends, _CELLS]))
    ranked = np.argsort(bucket[cells], kind="stable")
    starts = above[ends].astype(np.int64)
    return ranked, starts, np.append(np.maximum.reduceat(size[ranked], starts[:-1]), size.min())


def ranked_means(gradient: Array, known: int, free: int, scale: float, rng: np.random.Generator) -> Any:
    """The means of an epoch as the kernels take them: known ones in buckets, then hidden ones in layers.

    ``gradient`` has the known coordinates and the protected ones. A hidden coordinate is scale Z. A layer has those
    with P(|Z| > .) between two chances; how many they are is multinomial. The first layer, which has no upper end, is
    drawn.
    """
    from dptoolkit.kernels import stochastic as kernel

    ranked, starts, heights = buckets(gradient[:known])
    if known == free:
        return kernel.Means(gradient, ranked, starts, heights)
    chances = layers(free - known)
    counts = rng.multinomial(free - known, np.diff(chances))
    # Doubles from a Generator are multiples of 2^-53: further bits, as gaps between small ones would tell the number of
    # features that the data have.
    uniform = np.maximum(rng.random(counts[0]) + 2.0**-53 * rng.random(counts[0]), 1e-300)
    first = [scale * kernel.tail_quantile(chance) for chance in (0.5 * chances[1] * uniform).tolist()]
    # A little higher, so that rounding lifts no mean above its height.
    tops = [scale * kernel.tail_quantile(0.5 * chance) * (1 + 1e-12) for chance in chances[1:-1]]
    highest = max([*first, *tops])
    drawn = known + len(first)
    values, places = np.empty(free + len(gradient) - known), np.empty(free, np.int64)
    values[:known], values[free:] = gradient[:known], gradient[known:]
    values[known:drawn] = np.array(first) * np.where(rng.random(len(first)) < 0.5, 1.0, -1.0)
    places[:known], places[known:drawn] = ranked, np.arange(known, drawn)
    heights[0] = max(heights[0], highest)
    hidden = kernel.Hidden(
        np.concatenate([np.diff(starts), [0, len(first)], np.zeros(len(counts) - 1, np.int64)]),
        np.array([drawn]),
        np.concatenate([np.zeros(len(starts)), chances]),
        scale,
    )
    return kernel.Means(
        values, places, np.concatenate([starts, [known], known + np.cumsum(counts)]),
        np.concatenate([heights, [highest], tops, [0.0]]), hidden,
    )  # fmt: skip


def layers(count: int) -> Array:
    """P(|Z| > .) at the borders of the layers of ``count`` hidden coordinates, from 0 to 1.

    The expected size of a layer is a fifth of the number in it and above it, at least that of the first.
    """
    expected = [0, _FIRST_LAYER]
    while expected[-1] < count:
        expected.append(expected[-1] + max(_FIRST_LAYER, expected[-1] // 4))
    return np.minimum(np.array(expected) / count, 1.0)
