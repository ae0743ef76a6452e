"""What tables of other libraries (pandas, polars, pyarrow and others) say about their columns: names and types."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from dptoolkit._validate import invalid


def column_names(X: Any) -> tuple[str, ...] | None:
    """The names of the columns of a table (pandas, polars, pyarrow and others); None if they are not all text.

    Privacy
    -------
    Names of columns are public.
    """
    # A pyarrow table has its names in column_names, and arrays in columns.
    names = getattr(X, "column_names", None)
    names = getattr(X, "columns", None) if names is None else names
    if names is None or callable(names):
        return None
    listed = list(names)
    return tuple(map(str, listed)) if listed and all(isinstance(name, str) for name in listed) else None


def check_names(names: Any, expected: Any) -> None:
    """Refuse a table whose columns are not those of the fit, in their order; None for what has no names."""
    if names is None or expected is None or list(names) == list(expected):
        return
    if sorted(names) == sorted(expected):
        repair = "The same columns are there in another order: select them in the order of the fit."
    else:
        lost = [name for name in expected if name not in set(names)]
        repair = f"Columns of the fit that X does not have: {_listed(lost)}." if lost else "X has further columns."
    raise invalid("X", "a table with other feature names", f"of the {len(expected)} columns of the fit", repair)


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def check_kinds(X: Any) -> None:
    """Refuse a table that is not in memory, columns of one name, and columns of dates and of text, by name.

    NumPy would turn dates into numbers of nanoseconds. Two columns of one name cannot be told apart in a model.

    Privacy
    -------
    Only the names and the types of columns are looked at, which are public.
    """
    if callable(getattr(X, "collect", None)) and not hasattr(X, "__array__"):
        raise invalid("X", type(X).__name__, "a table in memory", "Call X.collect() first.")
    kinds: Any = getattr(X, "dtypes", getattr(X, "dtype", None))
    listed = list(kinds) if hasattr(kinds, "__iter__") else [kinds]
    names = column_names(X)
    twice = [name for name, count in Counter(names or ()).items() if count > 1]
    if twice:
        where = f"columns of one name: {_listed(twice)}"
        raise invalid("X", where, "of columns with names of their own", "Rename them.")
    for is_refused, words, repair in ((_is_temporal, "dates or times", DATES), (_is_text, "text", TEXT)):
        places = [place for place, kind in enumerate(listed) if is_refused(kind)]
        if places:
            where = f"a table of {words}" if names is None else f"{words} in {_listed([names[j] for j in places])}"
            raise invalid("X", where, "numbers", repair)


DATES = "Turn dates into numbers with a public origin and unit, for example days since 2020-01-01."
TEXT = "Encode categories by a fixed public list, for example OneHotEncoder(categories=[...])."


def _is_temporal(kind: Any) -> bool:
    is_temporal = getattr(kind, "is_temporal", None)
    return (
        getattr(kind, "kind", None) in ("m", "M")
        or str(kind).startswith("period[")
        or (callable(is_temporal) and bool(is_temporal()))
    )


def _is_text(kind: Any) -> bool:
    """Whether a type of pandas or polars holds nothing but text; a column of objects may hold numbers."""
    categories = getattr(getattr(kind, "categories", None), "dtype", None)
    if str(kind) == "category" and categories is not None:
        return _is_text(categories) or getattr(categories, "kind", "") == "O"
    return str(kind).partition("[")[0] in ("str", "string", "String") or str(kind).startswith(("Categorical", "Enum"))


# What to do about entries that are missing. A mean or a median of the column would be a release that nobody counts, and
# how many records are left after some were dropped depends on the data, while n is taken to be public.
MISSING_ENTRIES = (
    "Replace missing entries by a public constant, for example 0 or the middle of the column's public bounds. A mean "
    "or a median that is learnt from the records is a release that no guarantee counts."
)


def missing_entries(X: Any) -> ValueError:
    """The error for entries that are missing or infinite; it names the columns of a table. The caller raises it.

    Privacy
    -------
    The error is for the person who holds the data. It names columns, and no record.
    """
    found = columns_with_gaps(X)
    where = f"NaN or infinity in {_listed(found)}" if found else "an array with NaN or infinity"
    return invalid("X", where, "finite", MISSING_ENTRIES)


def columns_with_gaps(X: Any) -> list[str]:
    """The names of the columns of a table in which an entry is missing or infinite; empty for what has no names."""
    return [name for name in column_names(X) or () if _has_gap(np.asarray(X[name]))]


def _has_gap(column: Any) -> bool:
    if column.dtype.kind == "O":
        return any(_is_gap(entry) for entry in column.flat)
    return column.dtype.kind == "f" and not bool(np.isfinite(column).all())


def _is_gap(entry: Any) -> bool:
    """Whether an entry is None, the NA of pandas, NaN or infinite."""
    is_number = isinstance(entry, (float, np.floating))
    return entry is None or type(entry).__name__ == "NAType" or (is_number and not math.isfinite(entry))
