"""Two neighbouring datasets, and what is known about telling them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit._validate import invalid
from dptoolkit.adjacency import Adjacency
from dptoolkit.types import Array

# Scores of many outputs at once: (trials, features) -> (trials,). Larger means "the first dataset".
Score = Callable[[Array], Array]


@dataclass(frozen=True)
class Counted:
    """A dataset as its distinct rows and how often each occurs, so that audits run on few rows instead of n."""

    X: Array
    y: Array
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.X.ndim != 2 or not len(self.X) == len(self.y) == len(self.counts):
            shapes = f"X {self.X.shape}, y {self.y.shape}, counts {self.counts.shape}"
            raise invalid("dataset", shapes, "(m, d), (m,) and (m,)")
        if (self.counts < 0).any():
            raise invalid("counts", int(self.counts.min()), ">= 0")

    @property
    def n(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    def expand(self) -> tuple[Array, Array]:
        """(X, y) with every row written out."""
        return np.repeat(self.X, self.counts, axis=0), np.repeat(self.y, self.counts)


def counted(X: Any, y: Any) -> Counted:
    """The distinct rows of (X, y), compared exactly, in the order of their first occurrence."""
    dense = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=float)
    both = np.column_stack([dense, np.asarray(y, dtype=float)])
    _, first, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    counts = np.bincount(inverse.ravel(), minlength=len(first))[order]
    rows = both[np.sort(first)]
    return Counted(rows[:, :-1], rows[:, -1], counts)


@dataclass(frozen=True)
class Pair:
    """Two datasets that differ in one record under ``adjacency``.

    ``scores`` gives, by adversary, the statistic known to be best; an adversary without one gets a learned statistic.
    ``reach`` gives, by adversary, the share of a tight guarantee's epsilon that the exact attack on this pair attains:
    where it is near 1, an audit that stays far below the claim means too much noise. No entry means not known.
    ``records`` says whether arrays have one row for each record. Sums and scores, which are computed from all records,
    do not, so the number of entries that differ says nothing about neighbours.
    ``size`` is the number of records that may differ: 1 for neighbours, more for a group.
    """

    first: Any
    second: Any
    adjacency: Adjacency | None = None
    description: str = "two datasets"
    scores: Mapping[str, Score] = field(default_factory=dict)
    reach: Mapping[str, float] = field(default_factory=dict)
    records: bool = True
    size: int = 1

    def __iter__(self) -> Iterator[Any]:
        return iter((self.first, self.second))


# From what the accountant charges for to what a user gets: of equal adversaries the first, who sees more, is taken.
_ORDER = ("releases", "gradients", "iterates", "final", "support", "step")


def strongest(pair: Pair) -> str:
    """The adversary of the largest reach among those whose best statistic the pair knows.

    Where no reach is known it is the one who sees most. A reach within 1 % of the largest counts as equal.

    Privacy
    -------
    Reads what is known about the pair, not its datasets.
    """
    known = [name for name in _ORDER if name in pair.scores]
    if not known:
        return "final"
    shares = {name: pair.reach[name] for name in known if name in pair.reach}
    if not shares:
        return known[0]
    most = max(shares.values())
    return next(name for name, share in shares.items() if share >= 0.99 * most)


def check_neighbours(pair: Pair) -> None:
    """Refuse counted datasets that differ in more than ``pair.size`` records, or in their number of records."""
    a, b = pair.first, pair.second
    if not (isinstance(a, Counted) and isinstance(b, Counted)):
        return
    if a.n != b.n or a.X.shape[1] != b.X.shape[1]:
        raise invalid("pair", f"n={a.n}, d={a.X.shape[1]} and n={b.n}, d={b.X.shape[1]}", "of equal n and d")
    change = _difference(a, b)
    changed = sum(abs(c) for c in change.values()) // 2
    if changed > pair.size:
        raise invalid("pair", f"{changed} records differ", f"neighbours: {_records(pair.size)} may differ")
    zeroed = any(not any(record[:-1]) for record, c in change.items() if c)
    if pair.adjacency is Adjacency.ZERO_OUT and any(change.values()) and not zeroed:
        raise invalid("pair", "no zero row among the two records that differ", "zero-out neighbours")


def _records(size: int) -> str:
    return "one record" if size == 1 else f"{size} records"


def grouped(pair: Pair, size: int) -> Pair:
    """The pair with ``size`` records changed instead of one, as often as the changed record; see Guarantee.group.

    The others come from the row that occurs most often in both datasets. Scores for the final model stay, as it moves
    the same way, only further; the other adversaries' are of one record, and are left out.
    """
    a, b = pair.first, pair.second
    if not (isinstance(a, Counted) and isinstance(b, Counted)):
        raise invalid("pair", type(a).__name__, "one of counted datasets", "Change the records in your own datasets.")
    change, ours = _difference(a, b), _counts(a)
    differ = sum(abs(c) for c in change.values()) // 2
    if differ != 1:
        raise invalid("pair", f"{differ} records differ", "one whose datasets differ in one record")
    common = {key: count - max(change.get(key, 0), 0) for key, count in ours.items()}
    most = max(common, key=lambda key: common[key])
    if common[most] < size - 1:
        raise invalid("size of the group", size, f"<= {common[most] + 1}, the records of the pair that can change")
    common[most] -= size - 1

    def with_group(sign: int) -> Counted:
        changed = next(key for key, c in change.items() if c == sign)
        counts = common | {changed: common.get(changed, 0) + size}
        rows = np.array([key for key, count in counts.items() if count > 0])
        kept = np.array([count for count in counts.values() if count > 0], dtype=np.int64)
        return Counted(rows[:, :-1].copy(), rows[:, -1].copy(), kept)

    scores = {name: score for name, score in pair.scores.items() if name == "final"}
    text = f"{pair.description}; {size} records changed together"
    return Pair(with_group(1), with_group(-1), pair.adjacency, text, scores, {}, pair.records, size)


def _counts(data: Counted) -> dict[tuple[float, ...], int]:
    """How often each record occurs; a row that is listed twice counts as one."""
    total: dict[tuple[float, ...], int] = {}
    for row, label, count in zip(data.X.tolist(), data.y.tolist(), data.counts.tolist(), strict=True):
        key = (*row, label)
        total[key] = total.get(key, 0) + count
    return total


def _difference(a: Counted, b: Counted) -> dict[tuple[float, ...], int]:
    one, two = _counts(a), _counts(b)
    change = {key: one.get(key, 0) - two.get(key, 0) for key in (one | two)}
    return {key: c for key, c in change.items() if c}
