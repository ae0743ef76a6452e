"""A mark on rows that were prepared in a way which no guarantee covers; it travels with them to the fit.

Privacy
-------
A guarantee counts what a fit releases. Rows that were scaled by numbers learnt from all records carry those numbers
too, which no fit counts. So the guarantee of a fit to marked rows is void. What derives other rows from marked ones
either keeps the mark or raises an error; the one exception is what NumPy or another library copies from a dense marked
array (``numpy.array``, a data frame, ``scipy.sparse.csr_matrix``). Estimators notice such a copy if it was made inside
the pipeline or the estimator of scikit-learn that fits them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

REASON = "rows were scaled by their own largest entries, which every record can change and no noise hides"
# How the note of a guarantee begins that covers nothing.
VOID = "VOID: "
_LOST = (
    "X: must be an array or a sparse matrix without a mark here. These sparse rows were scaled by their own largest "
    "entries, so no guarantee covers what is fitted to them, and this call would lose the mark that says so. Use the "
    "methods of X, whose results keep the mark, or stack and convert rows before MaxAbsScaling. X.without_mark() is "
    "the plain matrix, for comparisons that are not private."
)


class MarkedArray(np.ndarray):
    """A dense array with the mark; its slices, copies and casts have it, and so does what NumPy makes of it.

    What is made has memory of its own, or is a view of a marked array, so that ``numpy.asarray`` of it is known too.
    """

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _marked_result(super().__array_function__(func, types, args, kwargs))

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array.ndim == 0:
            return array[()]
        # What is computed in place stays where it is.
        return array if array is self else _marked_result(array)

    def __getitem__(self, which: Any) -> Any:
        return _marked_result(super().__getitem__(which))


class MarkedRows:
    """A sparse matrix with the mark: every method of the matrix, with results that are marked again.

    It is no ``scipy.sparse`` matrix, because functions such as ``scipy.sparse.vstack`` build a new matrix, without any
    mark, of whatever they recognise. They raise an error for this class.
    """

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix

    def without_mark(self) -> Any:
        """The plain matrix.

        Privacy
        -------
        NOT private: no guarantee covers what is fitted to these rows, and nothing says so any more.
        """
        return self._matrix

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._matrix, name)
        return _marking(value) if callable(value) else _marked_result(value)

    def __getitem__(self, which: Any) -> Any:
        # scikit-learn takes rows by X[rows, ...].
        if isinstance(which, tuple) and len(which) == 2 and which[1] is Ellipsis:
            which = which[0]
        return _marked_result(self._matrix[which])

    def __len__(self) -> int:
        return int(self._matrix.shape[0])

    def __matmul__(self, other: Any) -> Any:
        return _marked_result(self._matrix @ plain(other))

    def __mul__(self, other: Any) -> Any:
        return _marked_result(self._matrix * plain(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return _marked_result(self._matrix / plain(other))

    def __neg__(self) -> Any:
        return _marked_result(-self._matrix)

    def __abs__(self) -> Any:
        return _marked_result(abs(self._matrix))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(_LOST)

    def __repr__(self) -> str:
        return f"<marked: no guarantee covers what is fitted to it; {self._matrix!r}>"


def marked(X: Any) -> Any:
    """X, an array or a sparse matrix, with the mark."""
    return _marked_result(X if hasattr(X, "tocsr") else np.asarray(X))


def like(X: Any, other: Any) -> Any:
    """``other``, which was made of X, with the mark if X has it."""
    return marked(other) if is_marked(X) else other


def is_marked(*parts: Any) -> bool:
    """Whether any part, such as X and y, is known to be marked: itself, what it is a view of, or entries of it."""
    return any(map(_is_marked, parts))


def _is_marked(part: Any) -> bool:
    if isinstance(part, (list, tuple)):
        return any(_is_marked(entry) for entry in part if isinstance(entry, (np.ndarray, MarkedRows)))
    if isinstance(part, MarkedRows):
        return True
    # numpy.asarray makes a plain array on the memory of a marked one.
    while isinstance(part, np.ndarray):
        if isinstance(part, MarkedArray):
            return True
        part = part.base
    if hasattr(part, "tocsr"):
        # Not every format has an array of entries.
        return _is_marked(getattr(part, "data", None))
    return bool(getattr(part, "is_marked", False))


def plain(X: Any) -> Any:
    """X without the mark, as other libraries can read it; whoever calls this remembers the mark."""
    return X.without_mark() if isinstance(X, MarkedRows) else X


def _marked_result(value: Any) -> Any:
    """What was computed from marked rows, with the mark if it is an array or a sparse matrix."""
    if isinstance(value, MarkedArray) and type(value.base) is not np.ndarray:
        return value
    if isinstance(value, np.ndarray):
        # Its own memory, not a view: only then is a marked array the base of the plain arrays that numpy.asarray makes.
        own = MarkedArray(value.shape, value.dtype)
        own[...] = value
        return own
    if isinstance(value, (list, tuple)):
        entries = [_marked_result(entry) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    return MarkedRows(value) if hasattr(value, "tocsr") and not isinstance(value, MarkedRows) else value


def _marking(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        return _marked_result(method(*map(plain, arguments), **more))

    return call
