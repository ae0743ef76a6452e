"""What tables of other libraries (pandas, polars, pyarrow and others) say about their columns: names and types."""

from __future__ import annotations

from typing import Any

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
        repair = f"Columns of the fit that X does not have: {_listed(lost)}." if lost else "It has columns of its own."
    raise invalid("X", "a table with other feature names", f"of the {len(expected)} columns of the fit", repair)


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (", ..." if len(names) > most else "")


def check_kinds(X: Any) -> None:
    """Refuse columns of dates and of text by name; NumPy would turn dates into numbers of nanoseconds.

    Privacy
    -------
    Only the types of columns are looked at, which are public as their names are.
    """
    kinds: Any = getattr(X, "dtypes", getattr(X, "dtype", None))
    listed = list(kinds) if hasattr(kinds, "__iter__") else [kinds]
    names = column_names(X)
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
    return str(kind).partition("[")[0] in ("str", "string", "String")
