"""Validation and clipping: the user's arrays become rows and labels that obey public bounds.

Validation comes first and spends nothing; then rows are clipped to PUBLIC bounds, each on its own. No bound is ever
learnt from data.

Long because the rows that pass validation and all that solvers ask of them, dense and sparse, are one class.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import marks
from dptoolkit._validate import invalid, magnitude, real, whole
from dptoolkit.losses import Loss
from dptoolkit.tables import check_kinds, columns_with_gaps, missing_entries
from dptoolkit.types import Array


@dataclass(frozen=True)
class Rows:
    """A validated design matrix, (n, d): a float64 array, or a canonical CSR matrix of float64 or float32 entries.

    Where a solver reads X in blocks and never changes it, an array may also be float32, and be the caller's own, which
    nobody can write to by way of these rows (``check_rows`` with ``copy=False``).

    An array may be a stack, with one more axis in front: a matrix for each of many fits. What is derived from it
    (clipped entries, the transpose, a solver's own layout) is kept for the next user. ``is_marked`` says that no
    guarantee covers what is fitted to these rows (``marks``); rows that are made of them have the same mark.
    """

    matrix: Any
    is_sparse: bool
    is_marked: bool = False
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.matrix.shape[-2]), int(self.matrix.shape[-1])

    @property
    def is_single(self) -> bool:
        """Whether the entries are in single precision."""
        return bool(self.matrix.dtype == np.float32)

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of ``make()``, computed at the first call with this key and then shared; nobody may change it."""
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_derived": {}}

    def transpose(self) -> Any:
        """The transpose, row-major: a row of it is a feature."""
        return self.cached("transpose", self._transposed)

    def _transposed(self) -> Any:
        return self.matrix.T.tocsr() if self.is_sparse else np.ascontiguousarray(self.matrix.swapaxes(-1, -2))

    def row_norms(self) -> Array:
        """L2 norm of each row, without overflow for entries near the largest double."""
        largest, relative = self._norm_parts()
        with np.errstate(over="ignore"):
            return np.asarray(largest * relative)

    def caps(self, bound: float) -> Array:
        """bound / norm of each row, infinite for rows of zeros: a factor of at most that keeps a row within ``bound``.

        It is a part in 1e13 less, so that rounding cannot leave a row above the bound, and is computed without the norm
        itself, which loses digits where entries are near the smallest doubles.
        """
        largest, relative = self._norm_parts()
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return np.asarray(np.where(largest > 0, bound / relative / largest * (1 - 1e-13), np.inf))

    def _norm_parts(self) -> tuple[Array, Array]:
        """(largest |entry|, norm / largest): their product is the norm, and neither overflows."""
        largest = self.largest_entries()
        safe = np.where(largest > 0, largest, 1.0)
        if not self.is_sparse:
            return largest, np.sqrt(np.sum((self.matrix / safe[..., None]) ** 2, axis=-1))
        relative = np.zeros(len(largest))
        for rows, entries, counts in self._blocks():
            ratios = self.matrix.data[entries] / np.repeat(safe[rows], counts)
            relative[rows] = np.sqrt(_by_row(np.add, ratios * ratios, counts))
        return largest, relative

    def largest_entries(self) -> Array:
        """The largest |entry| of each row."""
        if not self.is_sparse:
            return np.asarray(np.max(np.abs(self.matrix), axis=-1, initial=0.0))
        out = np.zeros(self.matrix.shape[0])
        for rows, entries, counts in self._blocks():
            out[rows] = _by_row(np.maximum, np.abs(self.matrix.data[entries]), counts)
        return out

    def dense_blocks(self, columns: list[int] | None = None) -> Iterator[tuple[slice, Array]]:
        """(which rows, their entries as C-contiguous doubles), so many rows at a time that they stay in the cache.

        ``columns`` are the columns to take; None takes all. The array is a copy of entries, which may be changed, and
        which the next block is written over.
        """
        n, width = self.shape[0], self.shape[1] if columns is None else len(columns)
        size = min(max(_BLOCK_ENTRIES // max(width, 1), 1), n)
        room = np.empty((size, width))
        for start in range(0, n, size):
            some = slice(start, min(start + size, n))
            block, part = self.matrix[some], room[: some.stop - start]
            if columns is not None:
                block = block[:, columns]
            part[...] = block.toarray() if self.is_sparse else block
            yield some, part

    def with_matrix(self, matrix: Any) -> Rows:
        """Rows that were made of these: dense or sparse as they are, and with the same mark."""
        return Rows(matrix, self.is_sparse, self.is_marked)

    def with_values(self, values: Array) -> Rows:
        """The same rows with other entries; a CSR matrix shares its indices, which nobody changes."""
        if not self.is_sparse:
            return self.with_matrix(values)
        matrix = self.matrix
        return self.with_matrix(type(matrix)((values, matrix.indices, matrix.indptr), shape=matrix.shape, copy=False))

    def as_sparse(self) -> Rows:
        """The same rows as a canonical CSR matrix."""
        if self.is_sparse:
            return self
        from scipy import sparse

        return Rows(_canonical_csr(sparse.csr_matrix(self.matrix)), True, self.is_marked)

    def take(self, which: Any) -> Rows:
        """The rows at these places: numbers, a mask or a slice."""
        return self.with_matrix(self.matrix[which])

    def columns(self, which: NDArray[Any]) -> Rows:
        """The rows on these features alone."""
        part = self.matrix[:, which]
        return self.with_matrix(part if self.is_sparse else np.ascontiguousarray(part))

    def _blocks(self) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
        """(rows, their stored entries, entries per row) of a CSR matrix, so that temporary arrays stay small."""
        indptr = self.matrix.indptr
        borders = np.unique(np.searchsorted(indptr, np.arange(_BLOCK, indptr[-1], _BLOCK)))
        for first, last in itertools.pairwise([0, *borders[borders > 0].tolist(), len(indptr) - 1]):
            yield slice(first, last), slice(indptr[first], indptr[last]), np.diff(indptr[first : last + 1])


def product(matrix: Any, columns: Array) -> Array:
    """matrix @ columns for (..., width, k) columns; each of many products has the numbers that it has alone.

    A CSR matrix is multiplied with all columns side by side, as SciPy knows two axes only.

    Privacy
    -------
    NOT private: what it returns is exact.
    """
    if columns.ndim == 2 or isinstance(matrix, np.ndarray):
        return np.asarray(matrix @ columns)
    many, width, k = columns.shape
    side_by_side = matrix @ columns.transpose(1, 0, 2).reshape(width, many * k)
    return np.asarray(side_by_side).reshape(-1, many, k).transpose(1, 0, 2)


# The number of entries that are processed at a time, which fit into the cache; of blocks of doubles, into that of a
# core.
_BLOCK = 1 << 16
_BLOCK_ENTRIES = 1 << 17


def _by_row(reduce: np.ufunc, values: Array, counts: NDArray[Any]) -> Array:
    """``reduce`` over each row of ``counts`` entries; 0 for empty rows."""
    out, filled = np.zeros(len(counts)), counts > 0
    if filled.any():
        out[filled] = reduce.reduceat(values, (np.cumsum(counts) - counts)[filled])
    return out


def kernel_arrays(matrix: Any) -> tuple[Array, NDArray[Any], NDArray[Any]]:
    """(data, indices, indptr) of a CSR matrix in the types the kernels are compiled for.

    With unsigned integers Numba needs no check for negative indices, which a canonical matrix never has.
    """
    kind = np.uint32 if matrix.indices.dtype.itemsize == 4 else np.uint64
    return matrix.data, matrix.indices.view(kind), matrix.indptr.astype(np.uint64)


def prepare(
    X: Any,
    n_features: int | None = None,
    *,
    dtype: Any = None,
    row_norm: float | None = None,
    feature_bound: float | None = None,
) -> Rows:
    """X validated once, for any number of fits: every solver takes the result in place of X.

    It holds its own copy of X, so that changes of X do not reach it. What the first fit derives from it by public
    bounds (clipped rows, the transpose) is kept, and later fits with the same bounds use it without another copy.
    ``dptoolkit.data.store`` saves the result for other processes.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n, d)
        One row per record.
    n_features : int or None, default None
        Public number of features: a narrower X gets columns of zeros, a wider one is refused.
    dtype : type, dtype or None, default None
        numpy.float64 or numpy.float32. numpy.float32 keeps the entries of sparse rows in single precision, rounded
        towards zero, which takes two thirds of the memory. Solvers that would copy such rows at every step refuse them.
        None keeps the type of X.
    row_norm : float or None, default None
        Public L2 bound to which rows are clipped here. Only the clipped rows are kept; fits with this bound use them as
        they are.
    feature_bound : float or None, default None
        The same for a public bound of |X_ij|.

    Returns
    -------
    Rows
        The validated rows.

    Privacy
    -------
    Nothing is released, and nothing is learnt from the records: each is clipped and rounded on its own. Bounds are
    still those of each fit's plan, which clips again where a row is longer.
    """
    rows = check_rows(X, n_features)
    kind = rows.matrix.dtype if dtype is None else np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise invalid("dtype", str(kind), "float64 or float32")
    if kind == np.float64 and rows.is_single:
        raise invalid("dtype", "float64", "float32 for rows in single precision", "Prepare the original X again.")
    if kind == np.float64 and rows.is_sparse and hasattr(X, "tocsr"):
        rows = rows.with_matrix(rows.matrix.copy())
    if row_norm is not None:
        rows = clip_rows(rows, magnitude("row_norm", row_norm))
    if feature_bound is not None:
        rows = clip_entries(rows, magnitude("feature_bound", feature_bound))
    # Converted after clipping: an entry too large for single precision may be within its range once clipped.
    return _single(rows) if kind == np.float32 and not rows.is_single else rows


def _single(rows: Rows) -> Rows:
    """The rows in single precision, none of their entries larger than before."""
    if not rows.is_sparse:
        repair = "NumPy's products would copy dense float32 rows to float64 at every step."
        raise invalid("dtype", "float32", "float64 for dense rows", repair)
    largest = float(np.finfo(np.float32).max)
    if any(np.abs(rows.matrix.data[entries]).max(initial=0.0) > largest for _, entries, _ in rows._blocks()):
        raise invalid("X", "a matrix with larger entries", f"at most {largest:.3g} in size for dtype float32")
    values = np.empty(rows.matrix.nnz, np.float32)
    for _, entries, _ in rows._blocks():
        values[entries] = stored(rows.matrix.data[entries], np.float32)
    matrix = rows.matrix
    single = type(matrix)((values, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)
    # Entries below the smallest float32 have become zero.
    single.eliminate_zeros()
    return rows.with_matrix(single)


def stored(values: Any, dtype: Any) -> NDArray[Any]:
    """Doubles as they are stored: as they are, or rounded towards zero to single precision, never to a larger size."""
    doubles = np.asarray(values, dtype=np.float64)
    if np.dtype(dtype) == np.float64:
        return doubles
    with np.errstate(over="ignore"):
        nearest = doubles.astype(np.float32)
    larger = np.abs(nearest.astype(np.float64)) > np.abs(doubles)
    return np.where(larger, np.nextafter(nearest, np.float32(0.0)), nearest)


def check_rows(X: Any, n_features: int | None = None, *, copy: bool = True) -> Rows:
    """X as Rows: two-dimensional, real, finite, n and d at least 1; CSR is made canonical BEFORE any norm is taken.

    Rows that ``prepare`` returned were checked there.

    Parameters
    ----------
    X : array-like, sparse matrix or Rows
        The design matrix, (n, d): one row per record.
    n_features : int or None, default None
        The public width: a narrower X gets columns of zeros, a wider one is refused.
    copy : bool, default True
        Whether the rows hold their own copy of a dense X. False takes a C-contiguous array of float64 or float32 as it
        is, read-only: for a fit that reads X in blocks and keeps nothing of it. X must not be changed meanwhile.

    Privacy
    -------
    Nothing is released but the shape, n and d, which are public. Give ``n_features`` where X was read from a sparse
    file: its width is the largest column in the data, so that one record would decide the shape of the model. An error
    says that some entry is not finite, in a table in which columns, never in which record or what it is.
    """
    if isinstance(X, Rows):
        if n_features is None or n_features == X.shape[1]:
            return X
        width = whole("n_features", n_features, low=1)
        wider: Rows = X.cached(("width", width), lambda: _widened(X, width))
        return wider
    # A plain array of numbers has neither names nor types of columns that could be refused.
    if type(X) is not np.ndarray or X.dtype.kind not in "biuf":
        check_kinds(X)
    is_marked = marks.is_marked(X)
    if hasattr(X, "tocsr"):
        rows = Rows(_canonical_csr(marks.plain(X)), True, is_marked)
    else:
        array = _view(X) if not copy and _is_clean(X) else _table_array(X)
        if array.ndim != 2:
            raise invalid("X.shape", array.shape, "(n, d)", "Pass one row per record.")
        rows = Rows(array, False, is_marked)
    n, d = rows.shape
    if n < 1 or d < 1:
        raise invalid("X.shape", rows.shape, "at least (1, 1)")
    if n_features is not None:
        rows = _widened(rows, whole("n_features", n_features, low=1))
    if not _is_finite(rows.matrix.data if rows.is_sparse else rows.matrix):
        raise missing_entries(X)
    return rows


def _is_clean(X: Any) -> bool:
    """Whether X is an array that needs no conversion; a subclass may mean more than its entries."""
    kinds = (np.dtype(np.float64), np.dtype(np.float32))
    return type(X) is np.ndarray and X.dtype in kinds and X.ndim == 2 and X.flags.c_contiguous and X.flags.aligned


def _view(X: NDArray[Any]) -> NDArray[Any]:
    """The same entries, which cannot be written to by this name."""
    view = X.view()
    view.flags.writeable = False
    return view


def _is_finite(values: NDArray[Any]) -> bool:
    """Whether all entries are finite, looked up in parts, so that no array of the size of X is made."""
    flat = values.reshape(-1)
    return all(bool(np.isfinite(flat[k : k + _BLOCK]).all()) for k in range(0, len(flat), _BLOCK))


def _widened(rows: Rows, width: int) -> Rows:
    n, d = rows.shape
    if d > width:
        repair = "It is the public width of the data."
        raise invalid("X", "a matrix with more columns", f"at most n_features={width} wide", repair)
    if d == width:
        return rows
    if not rows.is_sparse:
        return rows.with_matrix(np.hstack([rows.matrix, np.zeros((n, width - d))]))
    matrix = rows.matrix
    return rows.with_matrix(type(matrix)((matrix.data, matrix.indices, matrix.indptr), shape=(n, width)))


def _table_array(X: Any) -> Array:
    """``_real_array`` of rows; where it fails for missing entries alone, as those of pandas' integers, it says so."""
    try:
        return _real_array("X", X, "a real (n, d) array or scipy.sparse matrix")
    except ValueError:
        if columns_with_gaps(X):
            raise missing_entries(X) from None
        raise


def _real_array(name: str, value: Any, bound: str) -> Array:
    """A float64 copy; text, complex numbers, dates and masked entries are refused, where NumPy would convert them."""
    try:
        array = np.asarray(value)
        plain = array.dtype.kind in "biuf" or (array.dtype.kind == "O" and not _holds_text(array))
        if not plain or np.ma.is_masked(value):
            raise TypeError
        return np.array(array, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError):
        raise invalid(name, type(value).__name__, bound) from None


def _holds_text(array: NDArray[Any]) -> bool:
    return any(isinstance(entry, (str, bytes)) for entry in array.flat)


def _canonical_csr(X: Any, dtype: Any = np.float64) -> Any:
    if getattr(X, "dtype", None) is not None and X.dtype.kind == "c":
        raise invalid("X.dtype", X.dtype, "real")
    # Convert to floats first: scipy adds up duplicates in the type of the entries, where 100 + 100 is -56 for bytes.
    try:
        matrix = X.astype(dtype, copy=False).tocsr()
    except (TypeError, ValueError, OverflowError):
        raise invalid("X", "a sparse matrix that does not hold numbers", "real") from None
    if matrix.ndim != 2:
        raise invalid("X.shape", matrix.shape, "(n, d)")
    # A new object on the same arrays, because scipy remembers whether a matrix was canonical, not whether it still is.
    matrix = type(matrix)((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
    try:
        matrix.check_format(full_check=True)
    except ValueError as problem:
        raise invalid("X", "a CSR matrix with wrong indices", f"well-formed: {problem}") from None
    if matrix.has_canonical_format and matrix.data.all():
        return matrix
    # The sum over duplicate entries is the value; scipy sums them only when asked. The caller's matrix stays as it is.
    matrix = matrix.copy()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def check_labels(y: Any, n: int, loss: Loss, label_values: Any = None) -> Array:
    """Labels of the loss's task as floats: regression any finite number; binary returned as 0 and 1.

    ``label_values`` are the two labels of a binary task, (negative, positive), by default (0, 1).

    Privacy
    -------
    The two labels are a public convention and are never inferred from the data, where one record could change the
    meaning of all others. Each record is read on its own. A label outside the convention is refused, and not shown.
    """
    values = check_label_values(label_values, loss)
    labels = _real_array("y", y, "real numbers, one per row")
    if labels.shape != (n,):
        raise invalid("y.shape", labels.shape, f"({n},), one label per row of X")
    if not np.isfinite(labels).all():
        raise invalid("y", "an array with NaN or infinity", "finite")
    if values is None:
        return labels
    if not np.isin(labels, values).all():
        bound = f"{values[0]:g} or {values[1]:g} for loss {loss.name!r}"
        repair = "For other labels give label_values, for example (-1, 1)."
        raise invalid("y", "an array with other labels", bound, repair)
    return (labels == values[1]).astype(np.float64)


def check_label_values(label_values: Any, loss: Loss) -> tuple[float, float] | None:
    """(negative, positive) of a binary loss, None for the others, whose labels are numbers."""
    if loss.task != "binary":
        if label_values is not None:
            raise invalid("label_values", label_values, f"None for loss {loss.name!r}", "It is for two classes.")
        return None
    if label_values is None:
        return 0.0, 1.0
    try:
        low, high = (real("label", value, open_high=True) for value in label_values)
        if not low < high:
            raise ValueError
    except (TypeError, ValueError):
        raise invalid("label_values", label_values, "two numbers, the smaller first: (negative, positive)") from None
    return low, high


def check_classes(y: Any, n: int, classes: int) -> Array:
    """Class labels 0, ..., classes-1 as a one-hot (n, classes) array.

    Privacy
    -------
    The number of classes is public and never inferred from the data. Each label is read on its own; one outside the
    classes is refused, and not shown.
    """
    labels = _real_array("y", y, f"integers 0 to {classes - 1}, one per row")
    if labels.shape != (n,):
        raise invalid("y.shape", labels.shape, f"({n},), one label per row of X")
    if not np.isin(labels, np.arange(classes)).all():
        raise invalid("y", "labels outside the classes", f"integers 0 to {classes - 1}")
    return np.eye(classes)[labels.astype(int)]


def clip_rows(rows: Rows, row_norm: float) -> Rows:
    """Each row scaled down, if need be, to L2 norm at most ``row_norm``; short rows are unchanged bit for bit.

    Privacy
    -------
    Each row is changed on its own by a public number: neighbours stay neighbours, and nothing is released.
    """
    largest, relative = rows._norm_parts()
    with np.errstate(over="ignore"):
        long = largest * relative > row_norm
    if not long.any():
        return rows
    # Divided by the largest entry first, as row_norm / norm alone loses some or all digits for huge rows.
    divisor, factor = np.ones_like(largest), np.ones_like(largest)
    divisor[long] = largest[long]
    # Reduced by one part in 1e13, so that rounding, also that of a long sum, cannot leave a row above the bound.
    factor[long] = row_norm / relative[long] * (1 - 1e-13)
    return _scale_rows(rows, divisor, factor)


def unit_rows(rows: Rows, norm: float = 1.0) -> Rows:
    """Each row scaled, down or up, to L2 norm ``norm``, never above it; rows of zeros stay so.

    Privacy
    -------
    Each row is changed on its own by a public number: neighbours stay neighbours, and nothing is released.
    """
    largest, relative = rows._norm_parts()
    filled = largest > 0
    divisor, factor = np.ones_like(largest), np.ones_like(largest)
    # Divided by the largest entry first, and a part in 1e13 less: see clip_rows.
    divisor[filled] = largest[filled]
    factor[filled] = norm / relative[filled] * (1 - 1e-13)
    return _scale_rows(rows, divisor, factor)


def _scale_rows(rows: Rows, divisor: Array, factor: Array) -> Rows:
    if not rows.is_sparse:
        return rows.with_matrix(rows.matrix / divisor[..., None] * factor[..., None])
    values = np.empty_like(rows.matrix.data)
    for some, entries, counts in rows._blocks():
        new_entries = rows.matrix.data[entries] / np.repeat(divisor[some], counts) * np.repeat(factor[some], counts)
        values[entries] = stored(new_entries, values.dtype)
    return rows.with_values(values)


def clip_entries(rows: Rows, feature_bound: float) -> Rows:
    """Every entry clipped to [-feature_bound, feature_bound].

    Privacy
    -------
    Each row is changed on its own by a public number: neighbours stay neighbours, and nothing is released.
    """
    values = rows.matrix.data if rows.is_sparse else rows.matrix
    # As doubles: NumPy compares a float32 with the bound rounded to float32, which may be above it.
    if values.size == 0 or (float(values.max()) <= feature_bound and float(values.min()) >= -feature_bound):
        return rows
    bound = stored(feature_bound, values.dtype)[()]
    return rows.with_values(np.clip(values, -bound, bound))


def with_intercept(rows: Rows, level: float) -> Rows:
    """One more column, constant at ``level``, at the end; its size counts towards the row's bound.

    Privacy
    -------
    Each row is changed on its own by a public number: neighbours stay neighbours, and nothing is released.
    """
    if not rows.is_sparse:
        column = np.full((*rows.matrix.shape[:-1], 1), level)
        return rows.with_matrix(np.concatenate([rows.matrix, column], axis=-1))
    from scipy import sparse

    dtype = rows.matrix.dtype
    column = np.full((rows.shape[0], 1), stored(level, dtype))
    return rows.with_matrix(_canonical_csr(sparse.hstack([rows.matrix, column], dtype=dtype), dtype))


def joint_norm(row_norm: float, intercept: bool) -> float:
    """The L2 bound of a row after an intercept column of ones was added."""
    return math.hypot(row_norm, 1.0) if intercept else row_norm
