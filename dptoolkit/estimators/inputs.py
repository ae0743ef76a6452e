"""What users give to estimators and transformers, checked by scikit-learn's conventions; no error shows an entry."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from dptoolkit import marks
from dptoolkit._validate import invalid
from dptoolkit.accounting import Ledger
from dptoolkit.estimators.wrappers import is_after_marking
from dptoolkit.models.fitting import label_array
from dptoolkit.solvers.frame.fit import noise_source
from dptoolkit.solvers.frame.secure import noise_kind
from dptoolkit.tables import (
    DATES,
    MISSING_ENTRIES,
    TEXT,
    check_kinds,
    check_names,
    column_names,
    missing_entries,
)

# What entries of the rows of a fit may be; all others become the first. A fit that needs doubles converts them itself.
_KINDS = [np.float64, np.float32]
_WEIGHTS = (
    "sample_weight: must be left out. A weight multiplies the influence of a record, and the noise is calibrated for "
    "records that count once; weights that depend on the data would also be released."
)
_LABELS_MISSING = (
    "Every record needs a label. Leave out records without a label before the number of records becomes public."
)
# Words of the messages that show entries, or recommend what no guarantee covers, and what is said in their place: name,
# value, bound, repair. scikit-learn's own tests look for some of its words.
_SHOWN = {
    "could not convert": ("X or y", "an array with text", "numbers", TEXT),
    "Expected 2D array": ("X", "an array of another shape", "(n, d)", "Reshape your data: one row per record."),
    "Complex data not supported": ("X or y", "complex", "real", "Complex data not supported: give their parts."),
    "Input y contains": ("y", "an array with NaN or infinity", "finite", _LABELS_MISSING),
}


@contextmanager
def discreet(X: Any) -> Iterator[None]:
    """scikit-learn's checks without those of its messages, and NumPy's, that show entries of the data."""
    try:
        yield
    except ValueError as problem:
        if "Input X contains" in str(problem):
            raise missing_entries(X) from None
        for start, message in _SHOWN.items():
            if start in str(problem):
                raise invalid(*message) from None
        raise
    except TypeError as problem:
        if "not 'datetime." in str(problem):
            raise invalid("X", "an array with dates or times", "numbers", DATES) from None
        raise


def checked_rows(estimator: Any, X: Any, reset: bool) -> Any:
    """X as scikit-learn checks it; ``reset`` notes its columns, otherwise they must be those that were noted.

    Names are taken here as well, because scikit-learn does not know the tables of every library and version: columns
    in another order would be taken for those of the fit.

    Privacy
    -------
    Nothing is released but the number and the names of columns, which are public. No error shows an entry.
    """
    check_kinds(X)
    _refuse_masked("X", X)
    names = column_names(X)
    with discreet(X), _names_are_known(names):
        rows = validate_data(estimator, marks.plain(X), accept_sparse="csr", dtype=np.float64, reset=reset)
    _note_names(estimator, names, reset)
    return rows


def checked_data(
    estimator: Any, X: Any, y: Any, *, is_numeric: bool, classes: Any = None, **how: Any
) -> tuple[Any, Any]:
    """X and y as scikit-learn checks them together, with the mark that they came with, or lost in a pipeline.

    Privacy
    -------
    No error shows an entry or a label. Labels are only read by what was declared about them: regression targets are
    numbers, and classes that were not declared must be discrete.
    """
    check_kinds(X)
    _refuse_masked("X", X)
    _refuse_masked("y", y)
    names = column_names(X)
    if not is_numeric:
        _refuse_mixed_labels(y)
    with discreet(X), _names_are_known(names):
        rows, labels = validate_data(
            estimator, marks.plain(X), y, accept_sparse="csr", dtype=_KINDS, y_numeric=is_numeric, **how
        )
        if not is_numeric and classes is None:
            check_classification_targets(labels)
    _note_names(estimator, names, reset=True)
    rows = marks.marked(rows) if is_after_marking() else marks.like(X, rows)
    return rows, marks.like(y, labels)


def _refuse_masked(name: str, values: Any) -> None:
    """Refuse a masked array with masked entries, whose numbers scikit-learn would take for data."""
    if np.ma.is_masked(values):
        repair = MISSING_ENTRIES if name == "X" else _LABELS_MISSING
        raise invalid(name, "an array with masked entries", "without any", repair)


def _refuse_mixed_labels(y: Any) -> None:
    """Refuse text beside numbers, where scikit-learn fails in a sort, and NumPy turns a list into text."""
    if isinstance(y, (list, tuple)):
        is_row = not any(isinstance(entry, (list, tuple, np.ndarray)) for entry in y)
    else:
        is_row = getattr(getattr(y, "dtype", None), "kind", None) == "O" and y.ndim == 1
    if is_row:
        label_array("y", y)


@contextmanager
def _names_are_known(names: Any) -> Iterator[None]:
    """scikit-learn's checks without its warning that a table has no names, where it does not find them."""
    if names is None:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        yield


def _note_names(estimator: Any, names: tuple[str, ...] | None, reset: bool) -> None:
    if not reset:
        check_names(names, getattr(estimator, "feature_names_in_", None))
    elif names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)


def refuse_arguments(estimator: Any, refused: dict[str, Any]) -> None:
    """Raise the error that explains why ``fit`` does not take these arguments, if there are any."""
    if refused.pop("sample_weight", None) is not None:
        raise ValueError(_WEIGHTS)
    if refused:
        raise TypeError(f"{type(estimator).__name__}.fit() got an unexpected argument {next(iter(refused))!r}.")


def as_rng(random_state: Any, ledger: Ledger | None, randomness: Any = None) -> Any:
    """scikit-learn's random_state as a solver's rng; None is fresh entropy, and never NumPy's global state.

    A ledger that takes no seeds, and secure noise, refuse one here, where the argument has its own name.
    """
    is_number = isinstance(random_state, numbers.Integral) and not isinstance(random_state, bool)
    is_seed = is_number and int(random_state) >= 0
    kinds = (np.random.RandomState, np.random.Generator)
    if random_state is not None and not is_seed and not isinstance(random_state, kinds):
        bound = "None, an integer >= 0, a numpy.random.Generator or a RandomState"
        raise invalid("random_state", random_state, bound)
    rng = int(random_state.randint(2**62)) if isinstance(random_state, np.random.RandomState) else random_state
    noise_kind(randomness, rng, "random_state")
    # Whether the ledger takes the noise itself is asked when it is known.
    noise_source(rng, ledger, "random_state", is_secure=True)
    return rng
