"""The content of a dataset as one number: two fingerprints are equal if the datasets hold the same.

An audit runs a mechanism many times on one dataset, and takes it that nothing in it has changed. Bytes alone do not
tell: an array of objects holds addresses, and the blocks of a frame are laid out anew when it is read. So a dataset is
walked through, whatever it is: arrays, sparse matrices, frames of pandas and polars, containers, and objects of any
class by their attributes and what pickle would keep of them. What cannot be read that way is refused.

A fingerprint holds no addresses and no order of sets, so it is the same in every process.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import sparse

from dptoolkit._validate import invalid
from dptoolkit.data import Rows

# What has one text for each value.
_PLAIN = (str, bytes, int, float, complex, type(None), types.EllipsisType, Enum, decimal.Decimal, Fraction,
          datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, np.dtype, range, slice)  # fmt: skip
# Tools of a program, which are no data: they count by their kind.
_TOOLS = (type(threading.Lock()), type(threading.RLock()), types.ModuleType)
_NAMED = (type, types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType,
          types.MethodDescriptorType, np.ufunc)  # fmt: skip


def fingerprint(data: Any) -> str:
    """The content of a dataset as a hash; refused if it cannot be read.

    Privacy
    -------
    For test data only. A hash of data is not private.
    """
    try:
        return _Walk().digest(data)
    except RecursionError:
        repair = "Give arrays or flat lists."
        raise invalid("dataset", "too deeply nested", "one whose content can be read", repair) from None


def check_unchanged(data: Any, before: str) -> None:
    """Refuse a mechanism after whose runs a dataset has another fingerprint than before."""
    if fingerprint(data) != before:
        raise invalid(
            "mechanism",
            "changes the dataset that it is given",
            "one that leaves it as it is",
            "Every later run would be on other data. Let it work on a copy. A cache that it fills counts as a change.",
        )


class _Walk:
    """One walk through a dataset; an object that is met again is named by the number of its first meeting."""

    def __init__(self) -> None:
        # The objects are kept: the address of one that is gone could be another's.
        self._met: dict[int, tuple[int, Any]] = {}

    def digest(self, thing: Any) -> str:
        found = hashlib.sha256()
        self._read(thing, found.update)
        return found.hexdigest()

    def _read(self, thing: Any, write: Callable[[bytes], None]) -> None:
        write(f"<{type(thing).__module__}.{type(thing).__qualname__}".encode())
        if isinstance(thing, _PLAIN) or (isinstance(thing, np.generic) and not thing.dtype.hasobject):
            write(repr(thing).encode("utf-8", "surrogatepass"))
        elif id(thing) in self._met:
            write(f"met {self._met[id(thing)][0]}".encode())
        elif not isinstance(thing, _TOOLS):
            self._met[id(thing)] = len(self._met), thing
            if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
                write(repr((thing.shape, thing.dtype.descr)).encode())
                write(np.ascontiguousarray(np.asarray(thing)).tobytes())
            for part in self._parts(thing):
                self._read(part, write)
        write(b">")

    def _parts(self, thing: Any) -> Iterable[Any]:
        """What an object consists of, in an order that its content decides."""
        if sparse.issparse(thing):
            return _sparse_parts(thing)
        if isinstance(thing, Rows):
            # What was derived from the matrix is no part of it.
            return [thing.matrix]
        if isinstance(thing, np.ndarray):
            return [*_array_parts(thing), *_attributes(thing)]
        root = type(thing).__module__.partition(".")[0]
        if root in _FRAMES and (parts := _FRAMES[root](thing)) is not None:
            return parts
        if isinstance(thing, (set, frozenset)):
            # A set may hold what was met before: each member has a walk of its own.
            return [*sorted(_Walk().digest(member) for member in thing), *_attributes(thing)]
        if isinstance(thing, (list, tuple, Mapping, bytearray)):
            inside = [bytes(thing)] if isinstance(thing, bytearray) else _members(thing)
            return [len(thing), *inside, *_attributes(thing)]
        return _object_parts(thing)


def _members(thing: Any) -> list[Any]:
    return [part for item in thing.items() for part in item] if isinstance(thing, Mapping) else list(thing)


def _array_parts(thing: Any) -> list[Any]:
    parts: list[Any] = []
    if isinstance(thing, np.ma.MaskedArray):
        parts = [np.ma.getmaskarray(thing), thing.fill_value]
        thing = thing.data
    if thing.dtype.hasobject:
        parts += [thing.shape, str(thing.dtype), *thing.ravel().tolist()]
    return parts


def _sparse_parts(thing: Any) -> list[Any]:
    """Entries in one order, duplicates added up and zeros left out: the matrix, not the way it is stored."""
    if thing.dtype.hasobject or thing.ndim != 2:
        return [thing.shape, *_attributes(thing)]
    rows = sparse.csr_matrix(thing, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return [thing.shape, rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)]


def _pandas_parts(thing: Any) -> list[Any] | None:
    """The columns of a frame or the values of a series or index, with their names and types."""
    kind = type(thing).__name__
    if hasattr(thing, "iloc") and getattr(thing, "ndim", 0) == 2:
        columns = [thing.iloc[:, k].array for k in range(thing.shape[1])]
        return [thing.columns, thing.index, dict(thing.attrs), *columns]
    if hasattr(thing, "iloc") and hasattr(thing, "array"):
        return [thing.name, thing.index, dict(thing.attrs), thing.array]
    if hasattr(thing, "to_numpy") and hasattr(thing, "dtype"):
        # An index or one of pandas' own arrays; those of objects hold what pandas takes for missing too.
        names = list(getattr(thing, "names", ()))
        categories = getattr(thing.dtype, "categories", None)
        return [str(thing.dtype), None if categories is None else list(categories), names, thing.to_numpy()]
    return [] if kind in ("NAType", "NaTType") else None


def _polars_parts(thing: Any) -> list[Any] | None:
    """The columns of a frame or the values of a series, with their names and types, and which are missing."""
    if hasattr(thing, "get_columns"):
        return [thing.shape, *thing.get_columns()]
    if hasattr(thing, "is_null") and hasattr(thing, "to_list"):
        plain = thing.dtype.is_numeric() and not thing.dtype.is_decimal() and thing.null_count() == 0
        return [thing.name, str(thing.dtype), thing.to_numpy() if plain else thing.to_list()]
    return None


_FRAMES: dict[str, Callable[[Any], list[Any] | None]] = {"pandas": _pandas_parts, "polars": _polars_parts}


def _attributes(thing: Any) -> list[Any]:
    """What a class keeps beside what it is derived from: attributes, those in slots too."""
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(thing, name):
                found[name] = getattr(thing, name)
    return [part for name in sorted(found) for part in (name, found[name])]


def _object_parts(thing: Any) -> list[Any]:
    """What pickle would keep of an object, and all its attributes."""
    if isinstance(thing, _NAMED):
        return [f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', repr(thing))}"]
    if isinstance(thing, types.FunctionType):
        inside = [cell.cell_contents for cell in thing.__closure__ or ()]
        own = [thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        return [thing.__module__, thing.__qualname__, thing.__code__.co_code, inside, *own]
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if hasattr(thing, "__array__"):
        return [np.array(thing), *_attributes(thing)]
    return [*_kept_by_pickle(thing), *_attributes(thing)]


def _kept_by_pickle(thing: Any) -> list[Any]:
    try:
        kept = thing.__reduce_ex__(4)
        return [kept] if isinstance(kept, str) else [*kept[:3], *(list(rest or ()) for rest in kept[3:5])]
    # A class may refuse in its own way.
    except Exception as problem:
        kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
        raise invalid(
            "dataset",
            f"an object of {kind} in it",
            "one whose content can be read before and after a run",
            "A mechanism that changes its data could not be noticed. Give arrays, frames or what can be pickled, and "
            f"let the mechanism open the rest. ({type(problem).__name__})",
        ) from None
