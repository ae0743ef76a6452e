"""Preparation of rows by public numbers, as transformers, and the one way of the papers that is not private."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dptoolkit import marks
from dptoolkit._validate import flag, invalid
from dptoolkit.data import Rows, check_rows, clip_rows
from dptoolkit.estimators.inputs import checked_rows
from dptoolkit.solvers.frame.settings import public_bound


class UnsafeWarning(UserWarning):
    """What is fitted to these rows has no guarantee."""


class _Preparation(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A transformer that learns nothing: ``fit`` checks the parameters and notes the columns."""

    def fit(self, X: Any, y: Any = None) -> _Preparation:
        """Check the parameters and the shape of X; nothing is learnt from its entries.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The rows.
        y : object, default None
            Ignored.
        """
        self._change(check_rows(checked_rows(self, X, reset=True)))
        return self

    def transform(self, X: Any) -> Any:
        """The prepared rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The rows to transform.
        """
        if marks.is_marked(X):
            self._refuse_frames()
        fresh = not hasattr(self, "n_features_in_")
        return marks.like(X, self._change(check_rows(checked_rows(self, X, reset=fresh))).matrix)

    def _change(self, rows: Rows) -> Rows:
        raise NotImplementedError

    def _refuse_frames(self) -> None:
        """Refuse to turn marked rows into the frame that set_output asks for, which has no place for the mark."""
        own = getattr(self, "_sklearn_output_config", {})
        kind = own.get("transform", get_config()["transform_output"])
        if kind != "default":
            repair = "A frame would lose the mark that voids the guarantee of what is fitted to these rows."
            raise invalid("set_output", kind, '"default" for marked rows', repair)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.requires_fit = False
        return tags


class ClipRows(_Preparation):
    """Rows scaled down, where they are longer, to a public L2 norm.

    Parameters
    ----------
    row_norm : float or None, default None
        The public bound, in the unit of X. It must be given.

    Privacy
    -------
    Each row is changed on its own by a public number: neighbours stay neighbours, and nothing is released.
    """

    def __init__(self, row_norm: float | None = None) -> None:
        self.row_norm = row_norm

    def _change(self, rows: Rows) -> Rows:
        return clip_rows(rows, public_bound("row_norm", self.row_norm, "the largest L2 norm of a row"))


class ScaleToBounds(_Preparation):
    """Columns clipped to public bounds and moved to [-1, 1].

    Parameters
    ----------
    lower : float, sequence of float, or mapping of str to float, default None
        The public lower bounds of the columns, in their units: one number for all columns, one per column, or a mapping
        from the name of every column to its number. They must be given. A mapping, or a pandas Series with names, needs
        an X with named columns. A sparse X needs lower = -upper, so that zeros stay zeros.
    upper : float, sequence of float, or mapping of str to float, default None
        The public upper bounds of the columns, given in the same way.

    Privacy
    -------
    Each entry is changed on its own by public numbers: neighbours stay neighbours, and nothing is released.
    """

    def __init__(self, lower: Any = None, upper: Any = None) -> None:
        self.lower = lower
        self.upper = upper

    def _change(self, rows: Rows) -> Rows:
        lower, upper = self._bounds(rows.shape[1])
        if not rows.is_sparse:
            # Halves first: the difference of two large bounds may overflow.
            half = upper / 2 - lower / 2
            return rows.with_values((np.clip(rows.matrix, lower, upper) - (lower / 2 + upper / 2)) / half)
        if (lower != -upper).any():
            repair = "Zeros would not stay zeros: make X dense, or choose bounds that are symmetric around 0."
            raise invalid("lower", self.lower, "-upper for a sparse X", repair)
        which = rows.matrix.indices
        return rows.with_values(np.clip(rows.matrix.data, lower[which], upper[which]) / upper[which])

    def _bounds(self, d: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        names = getattr(self, "feature_names_in_", None)
        lower, upper = (_by_column(name, getattr(self, name), d, names) for name in ("lower", "upper"))
        if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
            raise invalid("lower, upper", (self.lower, self.upper), "finite, lower below upper in every column")
        return lower, upper


def _by_column(name: str, bound: Any, d: int, columns: Any) -> NDArray[np.float64]:
    """A bound as one number per column: given once for all, in the order of the columns, or by their names."""
    expected = f"one number, {d} numbers, one per column, or a mapping from every column's name to its number"
    if bound is None:
        repair = "It is public, in the unit of each column: for example lower=[0, 0], upper=[120, 300] for two columns."
        raise invalid(name, None, "given", repair)
    if hasattr(bound, "items") and all(isinstance(key, str) for key in dict(bound.items())):
        bound = _by_name(name, dict(bound.items()), columns)
    try:
        values = np.asarray(bound, dtype=np.float64)
    except (TypeError, ValueError):
        raise invalid(name, bound, expected) from None
    if values.ndim == 0:
        return np.full(d, float(values))
    # NumPy would repeat a single number, or a single row of numbers, without a word.
    if values.shape != (d,):
        raise invalid(name, f"an array of shape {values.shape}", expected)
    return values


def _by_name(name: str, bounds: dict[str, Any], columns: Any) -> list[Any]:
    """The bounds in the order of the columns, whose names must be exactly those of the mapping."""
    if columns is None:
        repair = "X has no names of columns: give a table, or the bounds in the order of its columns."
        raise invalid(name, "a mapping", "numbers for an X without names", repair)
    for one, other, words in (
        (columns, bounds, "Columns without a bound"),
        (bounds, columns, "Names that are no column of X"),
    ):
        lost = [entry for entry in one if entry not in other]
        if lost:
            raise invalid(name, f"a mapping of {len(bounds)} names", "one number per column", f"{words}: {lost[:5]}.")
    return [bounds[column] for column in columns]


class MaxAbsScaling(  # type: ignore[call-arg]
    OneToOneFeatureMixin, TransformerMixin, BaseEstimator, auto_wrap_output_keys=None
):
    """Columns divided by their largest absolute entry IN THE DATA, as some papers do. This is not private.

    It exists to repeat those papers. Rows that come out of it are marked, and an estimator that is fitted to them has
    a void guarantee, with an infinite epsilon. ``ScaleToBounds`` is the private way.

    Parameters
    ----------
    unsafe : bool, default False
        Must be True: nothing is done by accident.

    Privacy
    -------
    NOT private: every record can change a divisor, and no noise hides it.
    """

    # By which estimators in the same pipeline know that their rows were marked, if another step has copied them.
    marks_rows = True

    def __init__(self, unsafe: bool = False) -> None:
        self.unsafe = unsafe

    def fit(self, X: Any, y: Any = None) -> MaxAbsScaling:
        """Learn the largest absolute entry of every column.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The rows.
        y : object, default None
            Ignored.
        """
        if not flag("unsafe", self.unsafe):
            repair = "It learns a bound from the data. Use ScaleToBounds, or unsafe=True and no guarantee."
            raise invalid("unsafe", self.unsafe, "True", repair)
        words = f"MaxAbsScaling: {marks.REASON}. What is fitted to them has no guarantee."
        warnings.warn(words, UnsafeWarning, stacklevel=2)
        rows = check_rows(checked_rows(self, X, reset=True))
        entries = abs(rows.matrix).max(axis=0)
        largest = np.asarray(entries.toarray() if sparse.issparse(entries) else entries).ravel()
        self.max_abs_ = np.where(largest > 0, largest, 1.0)
        return self

    def transform(self, X: Any) -> Any:
        """The scaled rows, with a mark that voids the guarantee of what is fitted to them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The rows to scale.
        """
        check_is_fitted(self)
        rows = check_rows(checked_rows(self, X, reset=False))
        if not rows.is_sparse:
            return marks.marked(rows.matrix / self.max_abs_)
        return marks.marked(rows.with_values(rows.matrix.data / self.max_abs_[rows.matrix.indices]).matrix)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
