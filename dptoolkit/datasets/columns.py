"""Columns of a table of records: which are features, which is the label, and how their cells become numbers.

Every rule here is public and looks at one record alone. Categories and the constants for missing cells are given by the
caller and never learnt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, real
from dptoolkit.errors import InvalidValue
from dptoolkit.types import Array

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# Cells that stand for nothing, in small letters: as people, spreadsheets, R, pandas ("<na>"), C ("-nan") and databases
# ("\\n") write them.
_MISSING = frozenset((
    "", "na", "n/a", "n.a.", "#n/a", "#na", "#null!", "<na>", "nan", "-nan", "null", "\\n", "none", "?", ".", "-", "--",
    "---",
))  # fmt: skip
# These may also be the names of classes, such as + and -.
_MISSING_LABELS = _MISSING - {"none", "-", "--", "---"}
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{1,4}([-/.])[0-9]{1,2}\1[0-9]{1,4}([ T].*)?")
_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_UNIT = re.compile(rf"{NUMBER.pattern}\s*[^\W\d_%°]*[%°]?[^\d]*")

TEXT, MISSING, DATE, UNIT, COMMA, POINT, INFINITE, OTHER, BLANK = (
    "text", "missing cells", "dates", "numbers with a unit", "numbers with a comma", "numbers with a point",
    "infinite numbers", "cells outside the categories", "missing cells beside categories",
)  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """What is public about the columns of a table.

    ``label`` is the column of labels, None if there is none. ``features`` are the columns that are used, in this order;
    None stands for all others than ``label`` and ``drop``. Columns go by name or by number, counted from 1.
    ``categories`` lists the values of text columns: such a column becomes one column of zeros and ones per category.
    An empty category stands for missing cells. ``missing`` is the number that stands for every missing cell, or one
    value per column: a number, or one of the column's categories.
    """

    label: str | int | None = None
    features: tuple[str | int, ...] | None = None
    drop: tuple[str | int, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: float | Mapping[str, float | str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; ``from_dict`` reads it back."""
        missing = dict(self.missing) if isinstance(self.missing, Mapping) else self.missing
        return {
            "label": self.label,
            "features": None if self.features is None else list(self.features),
            "categories": {name: list(values) for name, values in self.categories.items()},
            "missing": missing,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Columns:
        """The columns that ``to_dict`` described."""
        features = None if record["features"] is None else tuple(record["features"])
        categories = {str(name): tuple(map(str, values)) for name, values in record["categories"].items()}
        return cls(record["label"], features, (), categories, record["missing"])


@dataclass(frozen=True)
class Column:
    """One feature column: its place in the file, its name, its categories, and the value for missing cells."""

    place: int
    name: str
    categories: tuple[str, ...] | None
    fill: float | str | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of X that it becomes."""
        return (self.name,) if self.categories is None else tuple(f"{self.name}={value}" for value in self.categories)

    def numbers(self, cells: Sequence[str], decimal: str, unfit: Unfit, lines: Sequence[int]) -> Array:
        """(cells, columns of X) of a column of text; cells that do not fit are noted and become NaN."""
        if self.categories is not None:
            return self._indicators(cells, unfit, lines)
        quick = _quick(cells) if decimal == "." else None
        if quick is not None:
            return quick[:, None]
        return np.array([[self._number(cell, decimal, unfit, line)] for cell, line in zip(cells, lines, strict=True)])

    def _number(self, cell: str, decimal: str, unfit: Unfit, line: int) -> float:
        value = as_number(cell, decimal)
        if value is not None:
            return value
        kind = kind_of(cell, decimal)
        if kind == MISSING and self.fill is not None:
            return float(self.fill)
        unfit.note(self.name, kind, line)
        return math.nan

    def _indicators(self, cells: Sequence[str], unfit: Unfit, lines: Sequence[int]) -> Array:
        assert self.categories is not None
        places = {value: number for number, value in enumerate(self.categories)}
        table = np.zeros((len(cells), len(places)))
        for row, (cell, line) in enumerate(zip(cells, lines, strict=True)):
            place = places.get(cell)
            if place is None and kind_of(cell) == MISSING:
                place = places.get("" if self.fill is None else str(self.fill))
                if place is None:
                    unfit.note(self.name, BLANK, line)
            elif place is None:
                unfit.note(self.name, OTHER, line)
            if place is not None:
                table[row, place] = 1.0
        return table

    def filled(self, values: Array, unfit: Unfit) -> Array:
        """(cells, 1) of a column that holds numbers already, NaN for missing ones."""
        if self.categories is not None:
            # Numbers are compared with categories as they are written: 1, not 1.0.
            words = ["" if math.isnan(v) else str(int(v)) if v.is_integer() else str(v) for v in values.tolist()]
            return self._indicators(words, unfit, range(1, len(words) + 1))
        absent, infinite = np.isnan(values), np.isinf(values)
        if absent.any() and self.fill is None:
            unfit.note(self.name, MISSING, int(np.flatnonzero(absent)[0]) + 1)
        if infinite.any():
            unfit.note(self.name, INFINITE, int(np.flatnonzero(infinite)[0]) + 1)
        return np.where(absent, math.nan if self.fill is None else float(self.fill), values)[:, None]


def _quick(cells: Sequence[str]) -> Array | None:
    """The numbers of a column whose cells are all plain, finite numbers; None if some need a closer look."""
    joined = "".join(cells)
    if "_" in joined or not joined.isascii():
        return None
    try:
        values = np.array(cells, dtype=np.float64)
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def as_number(cell: str, decimal: str = ".") -> float | None:
    """The finite number in a cell, None if there is none."""
    text = cell if decimal == "." else cell.replace(".", "_").replace(decimal, ".")
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def kind_of(cell: str, decimal: str = ".") -> str:
    """What a cell that is no number holds, in words that do not show it."""
    if cell.lower() in _MISSING:
        return MISSING
    if decimal != "." and "." in cell and NUMBER.fullmatch(cell):
        return POINT
    if _INFINITE.fullmatch(cell) or NUMBER.fullmatch(cell):
        return INFINITE
    for kind, pattern in ((COMMA, _COMMA), (DATE, _DATE), (UNIT, _UNIT)):
        if pattern.fullmatch(cell):
            return kind
    return TEXT


def labels_of(cells: Sequence[str], decimal: str, name: str, unfit: Unfit, lines: Sequence[int]) -> NDArray[Any]:
    """Labels as numbers where all of them are, and as text otherwise; missing ones are noted."""
    for cell, line in zip(cells, lines, strict=True):
        if cell.lower() in _MISSING_LABELS:
            unfit.note(name, MISSING, line)
            break
    numbers = [as_number(cell, decimal) for cell in cells]
    return np.array(cells, dtype=str) if None in numbers else np.array(numbers, dtype=np.float64)


# --- from the header to the layout ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The columns of one file: where its features and its label are."""

    features: tuple[Column, ...]
    label: int | None
    columns: Columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of X."""
        return tuple(name for column in self.features for name in column.names)


def layout(columns: Columns, header: Sequence[str], path: str) -> Layout:
    """Where the columns are in a file with this header; names that it does not have are refused.

    Names of columns are public, so errors show them.
    """
    label = None if columns.label is None else _place("label", columns.label, header, path)
    dropped = {_place("drop", name, header, path) for name in columns.drop}
    if columns.features is None:
        places = [place for place in range(len(header)) if place != label and place not in dropped]
    else:
        places = [_place("features", name, header, path) for name in columns.features]
        if label in places:
            raise invalid("label", columns.label, "another column than the features")
        if len(set(places)) < len(places):
            raise invalid("features", list(columns.features), "different columns")
    for place in (*places, *([] if label is None else [label])):
        _check_name(header, place, path)
    if not places:
        repair = "No column is left." if len(header) > 1 else "Its header is one cell. Give separator if it has more."
        raise invalid("path", path, "a table with a feature besides the label", repair)
    names = [header[place] for place in places]
    for what, own in (("categories", columns.categories), ("missing", _constants(columns.missing))):
        for name in own:
            if name not in names:
                raise invalid(what, name, f"about one of {_listed(names)}", "It is not a feature of this table.")
    features = tuple(_column(columns, place, header[place]) for place in places)
    title = None if label is None else header[label]
    known = Columns(title, tuple(names), (), dict(columns.categories), columns.missing)
    return Layout(features, label, known)


def _place(what: str, name: str | int, header: Sequence[str], path: str) -> int:
    """The place of a column, by its name or else by its number, from 1."""
    if name in header:
        if header.count(str(name)) > 1:
            raise invalid(what, name, "the name of a single column", "Rename the columns.")
        return header.index(str(name))
    number = int(name) if str(name).isdecimal() else 0
    if not 1 <= number <= len(header):
        raise invalid(what, name, f"a column of {path}: {_listed(header)}", "A number counts columns from 1.")
    return number - 1


def _check_name(header: Sequence[str], place: int, path: str) -> None:
    name = header[place]
    if not name:
        repair = f"Name it in the header, or drop column {place + 1}; spreadsheets and pandas write row numbers there."
        raise InvalidValue(f"path={path!r}, column {place + 1}: must have a name. {repair}")
    if header.count(name) > 1:
        raise InvalidValue(f"path={path!r}, column {name!r}: must have a unique name. Rename the other columns.")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12:,} more"


def _constants(missing: Any) -> Mapping[str, float | str]:
    return missing if isinstance(missing, Mapping) else {}


def _column(columns: Columns, place: int, name: str) -> Column:
    categories = columns.categories.get(name)
    own = _constants(columns.missing).get(name)
    if categories is not None:
        values = tuple(map(str, categories))
        if not values or len(set(values)) < len(values):
            raise invalid("categories", f"{len(values)} for {name!r}", "different values, at least one")
        if own is not None and str(own) not in values:
            raise invalid("missing", own, f"one of the categories of {name!r}")
        return Column(place, name, values, None if own is None else str(own))
    fill = columns.missing if own is None and not isinstance(columns.missing, Mapping) else own
    if fill is not None:
        fill = real("missing", fill, low=-math.inf, open_low=True, high=math.inf, open_high=True)
    return Column(place, name, None, fill)


# --- cells that do not fit ------------------------------------------------------------------------------------

# What to do about a kind of cells, in the words of Python; {name} is the first such column.
ADVICE: Mapping[str, str] = {
    TEXT: "list its public categories, categories={{{name}: ['a', 'b', 'c']}}, or leave it out, drop=[{name}]",
    MISSING: "fill them with a public constant, missing={{{name}: 0}}, never with a mean of the data, or leave the "
    "column out, drop=[{name}]",
    DATE: "turn them into numbers, such as days since a public date, or leave the column out, drop=[{name}]",
    UNIT: "write the numbers alone, with the unit in the column's name, or leave the column out, drop=[{name}]",
    COMMA: "decimal=',' reads decimal commas; thousands must be written without a mark",
    POINT: "decimal=',' takes a comma for the decimal mark, in all columns; thousands must be written without a mark",
    INFINITE: "replace them by a public bound",
    OTHER: "list all public categories, categories={{{name}: [...]}}",
    BLANK: "name the category that stands for them, missing={{{name}: 'a'}}, or list an empty one, "
    "categories={{{name}: ['a', 'b', '']}}",
}
LABEL_ADVICE = "records without a label cannot be used: leave them out of the file"
_SHOWN = 5


class Unfit:
    """Cells that are not what their column must hold: which columns, of which kind, and the first line of each."""

    def __init__(self, place_name: str = "line") -> None:
        self.place_name = place_name
        self.found: dict[str, dict[str, int]] = {}

    def note(self, column: str, kind: str, line: int) -> None:
        """Keep the first line of every column and kind."""
        self.found.setdefault(kind, {}).setdefault(column, line)

    def raise_if_any(self, path: str, label: str | None) -> None:
        """Raise an error that names all columns, and shows no cell."""
        if self.found:
            raise UnfitColumns(path, self.found, label, self.place_name)


class UnfitColumns(InvalidValue):
    """A table has columns that do not hold numbers; ``words`` says which, and what to do about them."""

    def __init__(self, path: str, found: Mapping[str, Mapping[str, int]], label: str | None, place_name: str) -> None:
        self.path, self.found, self.label, self.place_name = path, found, label, place_name
        super().__init__(f"path={path!r}: {self.words(ADVICE)}")

    def words(self, advice: Mapping[str, str], written: Callable[[str], str] = repr) -> str:
        """The columns by kind, with advice; no cell is shown. ``written`` says how a column is written in advice."""
        parts = []
        for kind, columns in self.found.items():
            features = {name: line for name, line in columns.items() if name != self.label}
            if kind == MISSING:
                # A text column needs categories first; what stands for its missing cells is one of them.
                features = {name: line for name, line in features.items() if name not in self.found.get(TEXT, {})}
            if features:
                first = next(iter(features))
                shown = ", ".join(repr(name) for name in list(features)[:_SHOWN])
                more = f" and {len(features) - _SHOWN} more" if len(features) > _SHOWN else ""
                at = f"{self.place_name} {min(features.values())}"
                parts.append(f"{kind} in {shown}{more} (first in {at}): {advice[kind].format(name=written(first))}")
            if self.label is not None and self.label in columns:
                parts.append(
                    f"{kind} in the label {self.label!r} ({self.place_name} {columns[self.label]}): {LABEL_ADVICE}"
                )
        return "must hold numbers in all columns that are used. Found " + "; ".join(parts) + "."
