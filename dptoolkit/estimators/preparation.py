"""Preparation of rows by public numbers, as transformers, and the one way of the papers that is not private."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dptoolkit._validate import flag, invalid, magnitude
from dptoolkit.data import Rows, check_rows, clip_rows
from dptoolkit.estimators.base import discreet
from dptoolkit.estimators.marks import marked, reason_of

_UNSAFE = "rows were scaled by their own largest entries, which every record can change and no noise hides"


def _checked(transformer: Any, X: Any, reset: bool = True) -> Any:
    """X as scikit-learn checks it; no error shows an entry."""
    with discreet():
        return validate_data(transformer, X, accept_sparse="csr", dtype=np.float64, reset=reset)


class UnsafeWarning(UserWarning):
    """What is fitted to these rows has no guarantee."""


class _Preparation(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """A transformer that learns nothing: ``fit`` checks the parameters and notes the columns."""

    def fit(self, X: Any, y: Any = None) -> _Preparation:
        """Check the parameters and the shape of X; nothing is learnt from its entries."""
        self._change(check_rows(_checked(self, X)))
        return self

    def transform(self, X: Any) -> Any:
        """The prepared rows."""
        reason = reason_of(X)
        fresh = not hasattr(self, "n_features_in_")
        return marked(self._change(check_rows(_checked(self, X, reset=fresh))).matrix, reason)

    def _change(self, rows: Rows) -> Rows:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.requires_fit = False
        return tags


class ClipRows(_Preparation):
    """Rows scaled down, where they are longer, to a public L2 norm.

    Parameters
    ----------
    row_norm : float, default 1.0
        The public bound.

    Privacy
    -------
    Each row is changed on its own by a public number: neighbours stay neighbours, and nothing is released.
    """

    def __init__(self, row_norm: float = 1.0) -> None:
        self.row_norm = row_norm

    def _change(self, rows: Rows) -> Rows:
        return clip_rows(rows, magnitude("row_norm", self.row_norm))


class ScaleToBounds(_Preparation):
    """Columns clipped to public bounds and moved to [-1, 1].

    Parameters
    ----------
    lower : float or sequence of one number a column, default -1.0
        The public lower bounds of the columns. A sparse X needs lower = -upper, so that zeros stay zeros.
    upper : float or sequence of one number a column, default 1.0
        The public upper bounds of the columns.

    Privacy
    -------
    Each entry is changed on its own by public numbers: neighbours stay neighbours, and nothing is released.
    """

    def __init__(self, lower: Any = -1.0, upper: Any = 1.0) -> None:
        self.lower = lower
        self.upper = upper

    def _change(self, rows: Rows) -> Rows:
        lower, upper = self._bounds(rows.shape[1])
        if not rows.is_sparse:
            # Halves first: the difference of two large bounds may overflow.
            half = upper / 2 - lower / 2
            return Rows((np.clip(rows.matrix, lower, upper) - (lower / 2 + upper / 2)) / half, False)
        if (lower != -upper).any():
            repair = "Zeros would not stay zeros: make X dense, or choose bounds around 0."
            raise invalid("lower", self.lower, "-upper for a sparse X", repair)
        which = rows.matrix.indices
        return rows.with_values(np.clip(rows.matrix.data, lower[which], upper[which]) / upper[which])

    def _bounds(self, d: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        try:
            lower, upper = (np.broadcast_to(np.asarray(b, dtype=np.float64), (d,)) for b in (self.lower, self.upper))
        except (TypeError, ValueError):
            bound = f"one number, or {d} numbers, one a column"
            raise invalid("lower, upper", (self.lower, self.upper), bound) from None
        if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
            raise invalid("lower, upper", (self.lower, self.upper), "finite, lower below upper in every column")
        return lower, upper


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

    def __init__(self, unsafe: bool = False) -> None:
        self.unsafe = unsafe

    def fit(self, X: Any, y: Any = None) -> MaxAbsScaling:
        """Learn the largest absolute entry of every column."""
        if not flag("unsafe", self.unsafe):
            repair = "It learns a bound from the data. Use ScaleToBounds, or unsafe=True and no guarantee."
            raise invalid("unsafe", self.unsafe, "True", repair)
        words = f"MaxAbsScaling: {_UNSAFE}. What is fitted to them has no guarantee."
        warnings.warn(words, UnsafeWarning, stacklevel=2)
        rows = check_rows(_checked(self, X))
        entries = abs(rows.matrix).max(axis=0)
        largest = np.asarray(entries.toarray() if sparse.issparse(entries) else entries).ravel()
        self.max_abs_ = np.where(largest > 0, largest, 1.0)
        return self

    def transform(self, X: Any) -> Any:
        """The scaled rows, with a mark that voids the guarantee of what is fitted to them."""
        check_is_fitted(self)
        rows = check_rows(_checked(self, X, reset=False))
        if not rows.is_sparse:
            return marked(rows.matrix / self.max_abs_, _UNSAFE)
        return marked(rows.with_values(rows.matrix.data / self.max_abs_[rows.matrix.indices]).matrix, _UNSAFE)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
