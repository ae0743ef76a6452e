"""A check whether two datasets are neighbours, where their form allows one.

An audit of datasets that differ in many records refutes a correct claim, and an audit of equal datasets can find
nothing: both look like results. The check understands arrays, sparse matrices, frames, and tuples, lists or dicts of
them with one row for each record, such as (X, y).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit._validate import invalid, one_of
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.content import fingerprint
from dptoolkit.audit.pair import Pair, check_neighbours

CHECKED, AS_GIVEN = "checked", "as given"
# The types of what pandas calls missing, besides NaN and None.
_MISSING = ("NAType", "NaTType")
_OVERRIDE = (
    "The claim is about datasets that differ in one record. If these do, but not in a form of one row for each record, "
    "give neighbours='as given'."
)


def check(pair: Pair, neighbours: str) -> None:
    """Refuse a pair whose rows show that it is not one of neighbours, unless ``neighbours`` is "as given"."""
    if one_of("neighbours", neighbours, (CHECKED, AS_GIVEN)) == AS_GIVEN:
        return
    check_neighbours(pair)
    first, second = columns(pair.first), columns(pair.second)
    if not pair.records or first is None or second is None:
        return
    if [c.shape[1] for c in first] != [c.shape[1] for c in second]:
        widths = " and ".join(str([c.shape[1] for c in side]) for side in (first, second))
        raise invalid("pair", f"rows of {widths} numbers", "datasets of the same columns", _OVERRIDE)
    _check_rows(pair, first, second)


def _check_rows(pair: Pair, first: list[Any], second: list[Any]) -> None:
    sizes = first[0].shape[0], second[0].shape[0]
    public = pair.adjacency is not None
    if abs(sizes[0] - sizes[1]) > (0 if public else pair.size):
        rule = f"of one size, as {pair.adjacency} neighbours are" if public else "neighbours: at most one more"
        raise invalid("pair", f"{sizes[0]:,} and {sizes[1]:,} records", rule, _OVERRIDE)
    difference = _changed(first, second)
    if difference > pair.size:
        rule = "one record may differ" if pair.size == 1 else f"{pair.size} records may differ"
        raise invalid("pair", f"{difference:,} records differ", f"neighbours: {rule}", _OVERRIDE)
    if difference == 0:
        raise invalid("pair", "the same records", "neighbours that differ", f"Nothing could be found. {_OVERRIDE}")
    if pair.adjacency is Adjacency.ZERO_OUT and not _zeroed(first[0], second[0]):
        raise invalid("pair", "neither of the rows that differ is zero", "zero-out neighbours", _OVERRIDE)


def columns(data: Any) -> list[Any] | None:
    """A dataset as tables of as many rows as it has records; None if it is not understood."""
    if isinstance(data, Mapping):
        return _side_by_side([data[key] for key in sorted(data, key=str)])
    if isinstance(data, (tuple, list)):
        return _side_by_side(list(data)) or _listed(data)
    table = _table(data)
    return None if table is None else [table]


def _side_by_side(parts: list[Any]) -> list[Any] | None:
    tables = [_table(part) for part in parts]
    if not tables or any(t is None for t in tables) or len({t.shape[0] for t in tables if t is not None}) > 1:
        return None
    return tables


def _listed(data: Any) -> list[Any] | None:
    """A list of numbers or words is a list of records; a tuple of them may be anything."""
    if isinstance(data, list) and data and all(isinstance(x, (bool, int, float, str, np.generic)) for x in data):
        return [np.array(data, dtype=object).reshape(-1, 1)]
    return None


def _table(part: Any) -> Any:
    """Rows of a matrix, sparse or not; None for what has no rows."""
    if sparse.issparse(part):
        return part.tocsr() if part.ndim == 2 else None
    if not isinstance(part, np.ndarray):
        # Frames and series of any library: they know their shape and how to become an array.
        if not (hasattr(part, "to_numpy") and hasattr(part, "shape")):
            return None
        part = np.asarray(part.to_numpy())
    if part.ndim == 0 or part.dtype.names:
        return None
    table = part.reshape(len(part), math.prod(part.shape[1:]))
    return _comparable(table) if table.dtype == object else table


def _comparable(table: NDArray[Any]) -> NDArray[Any]:
    """Objects as what can be compared and counted: missing values of any library as NaN, others by their content."""

    def plain(entry: Any) -> Any:
        if isinstance(entry, (str, bytes, bool, int, float, np.generic)):
            return entry
        return math.nan if entry is None or type(entry).__name__ in _MISSING else fingerprint(entry)

    # One by one: NumPy would take apart what is a list.
    out: NDArray[Any] = np.empty(table.shape, dtype=object)
    for place, entry in np.ndenumerate(table):
        out[place] = plain(entry)
    return out


def _changed(first: list[Any], second: list[Any]) -> int:
    """How many records differ: compared row by row, or without regard to their order if that gives fewer."""
    if first[0].shape[0] == second[0].shape[0]:
        in_place = int(np.logical_or.reduce([_unequal(a, b) for a, b in zip(first, second, strict=True)]).sum())
        if in_place <= 1:
            return in_place
    one, two = Counter(_records(first)), Counter(_records(second))
    return max(sum((one - two).values()), sum((two - one).values()))


def _unequal(a: Any, b: Any) -> NDArray[np.bool_]:
    """Which rows of two tables of one shape differ; NaN is equal to NaN."""
    if sparse.issparse(a) or sparse.issparse(b):
        gap = (sparse.csr_matrix(a) != sparse.csr_matrix(b)).tocsr()
        return np.asarray(np.diff(gap.indptr) > 0)
    both_missing = (a != a) & (b != b)
    return np.asarray(((a != b) & ~both_missing).any(axis=1), dtype=bool)


def _records(tables: list[Any]) -> list[tuple[Any, ...]]:
    parts: list[list[Any]] = []
    for table in tables:
        if sparse.issparse(table):
            table = table.tocsr(copy=True)
            table.sum_duplicates()
            table.eliminate_zeros()
            ends = zip(table.indptr[:-1], table.indptr[1:], strict=True)
            parts.append([(tuple(table.indices[a:b].tolist()), tuple(table.data[a:b].tolist())) for a, b in ends])
        else:
            parts.append([tuple("nan" if x != x else x for x in row) for row in table.tolist()])
    return list(zip(*parts, strict=True))


def _zeroed(a: Any, b: Any) -> bool:
    """Whether one of the two tables has a zero row where they differ."""
    places = np.flatnonzero(_unequal(a, b))
    if len(places) != 1:
        # Only labels differ, or the order does.
        return True
    return any(not _dense(table[places[0]]).any() for table in (a, b))


def _dense(row: Any) -> NDArray[Any]:
    return row.toarray() if sparse.issparse(row) else np.asarray(row)
