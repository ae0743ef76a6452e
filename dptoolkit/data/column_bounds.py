"""Public bounds of the columns of a table: what a user declares about every column, in its unit, without the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.data.rows import Rows
from dptoolkit.types import Array

# The name that stands for every column that a mapping does not name.
OTHERS = "*"
_FORMS = "(lower, upper), each one number or one per column, or a mapping from the name of a column to such a pair"


@dataclass(frozen=True)
class ColumnBounds:
    """The lower and upper bound of every column, and which columns are numeric.

    A column is numeric where its values have an order and a unit. By default these are all columns whose bounds are not
    exactly 0 and 1: indicators and pixels in [0, 1] are used as they are.

    Attributes
    ----------
    lower : tuple of float
        The public lower bound of every column, in its unit.
    upper : tuple of float
        The public upper bound of every column.
    numeric : tuple of int
        The places of the numeric columns.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    numeric: tuple[int, ...]

    @classmethod
    def of(cls, bounds: Any, d: int, numeric: Any = None, names: Sequence[str] | None = None) -> ColumnBounds:
        """Checked bounds of d columns, in whatever form they are given.

        Parameters
        ----------
        bounds : ColumnBounds, tuple or mapping
            Bounds of each column: (lower, upper), or a mapping of names to such pairs. In a mapping, the name "*"
            stands for every column that is not named; without it, every column must be named. A lower and an upper
            bound that are labelled with text, such as two Series of pandas, are put in order by their labels, which
            must be the names of the columns.
        d : int
            Number of columns.
        numeric : sequence of int or str, or None, default None
            Numeric columns, by place or name. None takes the columns whose bounds are not exactly 0 and 1.
        names : sequence of str or None, default None
            Names of the columns, which a mapping needs. Without them, bounds with labels are taken in the order of the
            labels of the lower bound.

        Privacy
        -------
        Touches no data. Everything that is given is public.
        """
        if isinstance(bounds, ColumnBounds):
            bounds, numeric = (bounds.lower, bounds.upper), bounds.numeric if numeric is None else numeric
        if hasattr(bounds, "items"):
            bounds = _by_name(dict(bounds.items()), names)
        _refuse_pairs(bounds)
        try:
            lower, upper = bounds
        except (TypeError, ValueError):
            raise invalid("bounds", _shown(bounds), _FORMS) from None
        lower, upper = _in_order(lower, upper, names)
        low, high = _per_column(lower, d), _per_column(upper, d)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise invalid("bounds", "bounds with NaN or infinity", "finite", "Give a bound that no value can exceed.")
        if (low > high).any():
            which = _named(int(np.argmax(low > high)), names)
            raise invalid("bounds", f"a lower bound above the upper one in {which}", "lower <= upper in every column")
        return cls(tuple(low.tolist()), tuple(high.tolist()), _numeric(low, high, numeric, names))

    @property
    def is_nonnegative(self) -> bool:
        """Whether every column that ``scaled`` returns is at least 0."""
        return min(self.lower) >= 0

    def scaled(self, matrix: Array) -> Array:
        """Every column clipped to its bounds and moved to [-1, 1], so that 0 stays 0 where it is within the bounds.

        A column without range becomes 0.

        Privacy
        -------
        Each entry is changed on its own by public numbers: neighbours stay neighbours, and nothing is released.
        """
        low, high, zero, size = self._numbers
        return np.asarray((np.clip(matrix, low, high) - zero) / size)

    def scale(self, block: Array) -> None:
        """``scaled``, where the block is: a C-contiguous array of doubles, in which NaN is refused.

        Privacy
        -------
        As for ``scaled``. Rows were checked to be finite, but a fit that reads X in place would read what another
        thread writes meanwhile. Infinity and other numbers are clipped to the bounds; NaN would pass through every clip
        and make each sum of doubles NaN, so that the effect of one record had no bound.
        """
        from dptoolkit.kernels import tables

        if not tables.scale(block, *self._numbers):
            repair = "X was changed while it was read: give a copy of X, or wait until the call returns."
            raise invalid("X", "an array with NaN", "finite throughout the call", repair)

    @cached_property
    def _numbers(self) -> tuple[Array, Array, Array, Array]:
        """(lower bounds, upper bounds, the values that become 0, what differences from them are divided by)."""
        low, high = np.array(self.lower), np.array(self.upper)
        return (low, high, *_zero_and_size(low, high))

    def take(self, columns: Sequence[int]) -> ColumnBounds:
        """The bounds of these columns, none of which counts as numeric."""
        return ColumnBounds(tuple(self.lower[j] for j in columns), tuple(self.upper[j] for j in columns), ())

    def outside(self, rows: Rows) -> NDArray[np.int64]:
        """How many values of each column lie outside its bounds.

        Privacy
        -------
        NOT private: for warnings to the person who holds the data.
        """
        low, high = np.array(self.lower), np.array(self.upper)
        if not rows.is_sparse:
            from dptoolkit.kernels.tables import count_outside

            counts = np.zeros(len(low), np.int64)
            for _, block in rows.dense_blocks():
                count_outside(block, low, high, counts)
            return counts
        matrix = rows.matrix
        out = (matrix.data < low[matrix.indices]) | (matrix.data > high[matrix.indices])
        stored = np.bincount(matrix.indices, minlength=len(low))
        zeros = np.where((low > 0) | (high < 0), rows.shape[0] - stored, 0)
        return np.asarray(np.bincount(matrix.indices, out, minlength=len(low)).astype(np.int64) + zeros)

    def edges(self, parts: int) -> list[Array]:
        """The borders of ``parts`` equal parts of every numeric column, in the unit of ``scaled``."""
        which = list(self.numeric)
        low, high = np.array(self.lower)[which], np.array(self.upper)[which]
        zero, size = _zero_and_size(low, high)
        return [np.linspace(a, b, parts + 1) for a, b in zip((low - zero) / size, (high - zero) / size, strict=True)]

    def to_list(self) -> list[list[float]]:
        """JSON-ready: [lower, upper]."""
        return [list(self.lower), list(self.upper)]

    def __str__(self) -> str:
        return f"of {len(self.lower)} columns, {len(self.numeric)} numeric"


def _zero_and_size(low: Array, high: Array) -> tuple[Array, Array]:
    """The value that becomes 0 and what differences from it are divided by; no difference can overflow."""
    zero = np.clip(0.0, low, high)
    size = np.maximum(high - zero, zero - low)
    return zero, np.where(size > 0, size, 1.0)


def _per_column(bound: Any, d: int) -> NDArray[np.float64]:
    try:
        if np.asarray(bound).dtype.kind not in "biuf":
            raise TypeError
        values = np.asarray(bound, dtype=np.float64)
    except (TypeError, ValueError):
        raise invalid("bounds", _shown(bound), _FORMS) from None
    if values.ndim == 0:
        return np.full(d, float(values))
    # NumPy would repeat a single number, or a single row of numbers, without a word.
    if values.shape != (d,):
        repair = f"There are {d} columns. Give (lower, upper), not one pair per column."
        raise invalid("bounds", f"an array of shape {values.shape}", _FORMS, repair)
    return values


def _by_name(bounds: dict[Any, Any], names: Sequence[str] | None) -> tuple[list[Any], list[Any]]:
    """(lower, upper) in the order of the columns; every name must be a column's, and every column be covered."""
    if not names:
        repair = "X has no names of columns: give a table, or (lower, upper) in the order of the columns."
        raise invalid("bounds", "a mapping", "(lower, upper) for an X without names", repair)
    unknown = [name for name in bounds if name not in set(names) and name != OTHERS]
    if unknown:
        repair = f"Names that are no column of X: {unknown[:5]}."
        raise invalid("bounds", f"a mapping of {len(bounds)} names", "a mapping from names of columns", repair)
    lost = [name for name in names if name not in bounds and OTHERS not in bounds]
    if lost:
        repair = f"Columns without bounds: {lost[:5]}. The name '*' stands for all others: '*': (0, 1) for indicators."
        raise invalid("bounds", f"a mapping of {len(bounds)} names", "bounds of every column", repair)
    pairs = [bounds[name] if name in bounds else bounds[OTHERS] for name in names]
    for name, pair in zip(names, pairs, strict=True):
        if np.shape(pair) != (2,):
            raise invalid(f"bounds[{name!r}]", _shown(pair), "a pair (lower, upper)")
    # A column of a frame of bounds has labels of its own, so a pair is read in its order.
    lower, upper = zip(*(tuple(pair) for pair in pairs), strict=True)
    return list(lower), list(upper)


def label_names(bound: Any) -> tuple[str, ...] | None:
    """The labels of a bound per column, such as a Series of pandas, if all of them are text; None without such labels.

    Labels of two kinds, or one label twice, are refused.
    """
    index = getattr(bound, "index", None)
    if index is None or callable(index) or np.ndim(bound) != 1:
        return None
    labels = list(index)
    if not any(isinstance(label, str) for label in labels):
        return None
    if not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
        raise invalid("bounds", "a bound with labels of two kinds, or a label twice", "one label, a name, per column")
    return tuple(labels)


def _in_order(lower: Any, upper: Any, names: Sequence[str] | None) -> tuple[Any, Any]:
    """Both bounds in the order of the columns, by their labels where they have labels of text."""
    pair = (lower, upper)
    labels = [label_names(bound) for bound in pair]
    given = [own for own in labels if own is not None]
    if not given:
        _refuse_two_orders(lower, upper)
        return pair
    # A bound that is one number holds for all columns; a list beside labels could be in either order.
    if any(own is None and np.ndim(bound) > 0 for own, bound in zip(labels, pair, strict=True)):
        repair = "Label both bounds with the names of the columns, or neither of them."
        raise invalid("bounds", "a bound with labels beside one without", _FORMS, repair)
    order = given[0] if not names else tuple(names)
    for own in given:
        if set(own) != set(order):
            lost, unknown = [[x for x in one if x not in other][:5] for one, other in ((order, own), (own, order))]
            expected = "the names of the columns" if names else "the same for the lower and the upper bound"
            repair = f"Not among the labels: {lost}. Labels that should not be there: {unknown}."
            raise invalid("bounds", "labels of a bound", expected, repair)
    lower, upper = (
        bound if own is None else np.asarray(bound)[[own.index(name) for name in order]]
        for own, bound in zip(labels, pair, strict=True)
    )
    return lower, upper


def _refuse_two_orders(lower: Any, upper: Any) -> None:
    """Refuse Series whose labels are the same numbers in two orders: read by place, one would belong to no column."""
    one, two = (getattr(bound, "index", None) for bound in (lower, upper))
    if one is None or two is None or callable(one) or callable(two):
        return
    first, second = list(one), list(two)
    if first != second and len(first) == len(second) and set(first) == set(second):
        repair = "Sort both by their labels, or give arrays in the order of the columns."
        raise invalid("bounds", "a lower and an upper bound with labels in two orders", "one order", repair)


def _refuse_pairs(bounds: Any) -> None:
    """Refuse a list of two tuples of two: other libraries write (lower, upper) of each of two columns so."""
    if type(bounds) is list and len(bounds) == 2 and all(type(own) is tuple and len(own) == 2 for own in bounds):
        repair = "Write ([lower, lower], [upper, upper]) in the order of the columns."
        raise invalid("bounds", bounds, "(lower, upper), not a list of one pair per column", repair)


def _numeric(low: Array, high: Array, given: Any, names: Sequence[str] | None) -> tuple[int, ...]:
    """The places of the numeric columns, in order."""
    if given is None:
        return tuple(np.flatnonzero((low < high) & ~((low == 0) & (high == 1))).tolist())
    if isinstance(given, str) or not isinstance(given, (Sequence, np.ndarray, set, frozenset)):
        raise invalid("numeric", given, "a sequence of columns", "Give their places, from 0 on, or their names.")
    places = {_place(column, len(low), names) for column in given}
    for place in places:
        if low[place] == high[place]:
            repair = "It has one value only: leave it out of numeric."
            raise invalid("numeric", _named(place, names), "a column whose bounds differ", repair)
    return tuple(sorted(places))


def _place(column: Any, d: int, names: Sequence[str] | None) -> int:
    if not isinstance(column, str):
        place = whole("numeric", column, low=0)
        if place >= d:
            raise invalid("numeric", place, f"the place of a column, below {d}")
        return place
    if names is None or column not in names:
        raise invalid("numeric", column, "the name of a column of X")
    return list(names).index(column)


def _named(place: int, names: Sequence[str] | None) -> str:
    return f"column {place}" if not names else f"column {names[place]!r}"


def _shown(value: Any) -> Any:
    """A value that is short enough for an error, or its type."""
    return value if len(repr(value)) <= 60 else type(value).__name__


def is_by_name(bounds: Any) -> bool:
    """Whether bounds are given by the names of columns."""
    return isinstance(bounds, Mapping) or hasattr(bounds, "items")
