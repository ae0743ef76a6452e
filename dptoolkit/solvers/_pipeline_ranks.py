"""The ranks of numeric columns, from noisy histograms: a value becomes the share of records below it.

For regression, where a prediction is to be linear in the columns, values are moved and scaled instead, such that nearly
all of them lie in [-1, 1].

A histogram has equal bins between the public bounds of its column. It is released a few times. Where a bin holds a
large share of the records, because the bounds are too wide, the next release divides it again. Elsewhere the releases
are averaged, which costs nothing: one release with noise s is as good as R averaged ones with noise sqrt(R) s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dptoolkit.adjacency import Adjacency
from dptoolkit.solvers.frame import rules
from dptoolkit.types import Array


def histograms_sensitivity(adjacency: Adjacency, columns: int) -> float:
    """How far one record moves the counts of all bins of so many columns in L2.

    Every record lies in exactly one bin of each column. Replacing it takes 1 from one bin and adds 1 to another, or
    changes nothing: the squared distance is at most 2 per column, and 1 where a record is left out.
    """
    return math.sqrt(adjacency.contributions * columns)


class BinCounts:
    """How many values of some columns lie in each bin between a column's edges, added up block by block.

    A value on an edge is in the bin above it. Values outside the edges count in the first or in the last bin.

    Privacy
    -------
    NOT private. Over several columns, one record moves the counts in L2 by at most ``histograms_sensitivity``.
    """

    def __init__(self, edges: Sequence[Array]) -> None:
        self._starts = _starts(edges)
        self._edges = np.concatenate(edges)
        self._counts = np.zeros(len(self._edges))

    def add(self, block: Array, times: Array) -> None:
        """Add the rows of a block, C-contiguous doubles with one column for each of the edges, ``times`` as often."""
        from dptoolkit.kernels.tables import count_bins

        count_bins(block, times, self._starts, self._edges, self._counts)

    def totals(self) -> list[Array]:
        """The counts of the bins of every column."""
        # An array of edges has one more entry than bins.
        return [part[:-1] for part in np.split(self._counts, self._starts[1:-1])]


def _starts(arrays: Sequence[Array]) -> NDArray[np.int64]:
    """Where each of several arrays starts when they stand one after another, and where the last ends."""
    return np.cumsum([0, *(len(own) for own in arrays)], dtype=np.int64)


class Histogram:
    """Equal bins of an interval: the sum of their noisy counts, and how often each was released.

    ``inner`` holds the histograms of the bins that were divided, by place. A bin that was divided is not released any
    more, but its parts are.
    """

    def __init__(self, borders: Array) -> None:
        self.borders = borders
        self.sums, self.releases = np.zeros(len(borders) - 1), np.zeros(len(borders) - 1, dtype=np.int64)
        self.inner: dict[int, Histogram] = {}

    @property
    def edges(self) -> Array:
        """The borders of all bins that the next release counts."""
        return np.sort(np.concatenate([self.borders, *(own.edges[1:-1] for own in self.inner.values())]))

    def add(self, counts: Array) -> None:
        """Add the noisy counts of a release, which are those of the bins between ``edges``."""
        start = 0
        for place in range(len(self.sums)):
            inner = self.inner.get(place)
            stop = start + (1 if inner is None else len(inner.edges) - 1)
            if inner is None:
                self.sums[place] += counts[start]
                self.releases[place] += 1
            else:
                inner.add(counts[start:stop])
            start = stop

    def shares(self, noise: float) -> Array:
        """The share of each bin: bins that do not stand out of the noise are empty; equal shares if all are."""
        means = self.sums / self.releases
        kept = np.where(means > rules.CUT * noise / np.sqrt(self.releases), means, 0.0)
        total = kept.sum()
        return np.asarray(kept / total if total > 0 else np.full(len(kept), 1 / len(kept)))

    def part(self, noise: float, outer: float = 1.0) -> None:
        """Divide every bin that holds a large share of all records; ``outer`` is the share of this histogram."""
        for place, share in enumerate(outer * self.shares(noise)):
            if place in self.inner:
                self.inner[place].part(noise, share)
            elif share > rules.PARTED_SHARE:
                parts = np.linspace(self.borders[place], self.borders[place + 1], rules.BINS + 1)
                # Bins of the smallest doubles cannot be divided.
                if (np.diff(parts) > 0).all():
                    self.inner[place] = Histogram(parts)

    def leaves(self, noise: float) -> Array:
        """The share of every bin between ``edges``, of the records of this histogram."""
        shares = self.shares(noise)
        parts = [
            share * self.inner[place].leaves(noise) if place in self.inner else np.array([share])
            for place, share in enumerate(shares)
        ]
        return np.concatenate(parts)

    def ranks(self, noise: float) -> tuple[Array, Array]:
        """(borders of all bins, share of records below each of them), by which ``rank`` interpolates."""
        below = np.concatenate([[0.0], np.cumsum(self.leaves(noise))])
        return self.edges, np.minimum(below / below[-1], 1.0)

    def spread(self, noise: float) -> tuple[Array, Array]:
        """Two values between which nearly all records lie, in the form of ``ranks``: a straight line between them."""
        borders, below = self.ranks(noise)
        # Strictly increasing shares, so that the value of a share is one.
        ends = np.interp([rules.SPREAD_TAIL, 1 - rules.SPREAD_TAIL], below + np.arange(len(below)) * 1e-12, borders)
        if not ends[0] < ends[1]:
            ends = borders[[0, -1]]
        return ends, np.array([0.0, 1.0])


class Ranks:
    """Values become twice the share of records below them, less 1; straight lines between the borders.

    ``ranks`` are (borders, share of records below each of them) for each of the columns.

    Privacy
    -------
    Each value is changed on its own by released numbers. Values outside the borders count as the nearest one.
    """

    def __init__(self, columns: Sequence[int], ranks: Sequence[tuple[Array, Array]]) -> None:
        self._columns, self._starts = np.array(columns, dtype=np.int64), _starts([borders for borders, _ in ranks])
        self._borders, self._below = (np.concatenate([pair[k] for pair in ranks]) for k in (0, 1))
        # After the last border of a column there is no line.
        self._slopes = np.concatenate([np.append(np.diff(below) / np.diff(borders), 0.0) for borders, below in ranks])

    def __call__(self, block: Array) -> None:
        """Change these columns of a block, C-contiguous doubles, where they are."""
        from dptoolkit.kernels.tables import rank

        rank(block, self._columns, self._starts, self._borders, self._below, self._slopes)
