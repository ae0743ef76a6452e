"""What all estimators share: checks in scikit-learn's manner, one private fit, prediction, files."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dptoolkit import models
from dptoolkit._validate import invalid
from dptoolkit.accounting import Gaussian, Guarantee, Ledger, account
from dptoolkit.estimators.marks import reason_of
from dptoolkit.models import Model, files
from dptoolkit.models.notes import SEARCH_NOTE, VOID
from dptoolkit.models.routes import CLASSIFICATION, REGRESSION, solver_name

_WEIGHTS = (
    "sample_weight: must be left out. A weight multiplies what one record can do, and the noise is made for records "
    "that count once; weights that depend on the data would also be released."
)


class TuningWarning(UserWarning):
    """A search or a cross-validation fits private models again and again: every fit spends its whole budget."""


class Caveats(NamedTuple):
    """Notes that a guarantee must carry: why it covers nothing, if so, and that a search fits again and again."""

    void_reason: str | None
    is_searched: bool

    @classmethod
    def of(cls, estimator: Any, X: Any, ledger: Ledger | None) -> Caveats:
        """The caveats of a fit to X, before X is checked, which may lose its mark; a search is warned of."""
        caveats = cls(reason_of(X), is_in_a_search())
        if caveats.void_reason is not None and ledger is not None:
            raise invalid("ledger", "a Ledger", "left out", f"No budget covers this fit: {caveats.void_reason}.")
        if caveats.is_searched:
            warn_of_tuning(estimator)
        return caveats

    def stated(self, model: Model) -> Model:
        """The model with a guarantee that says so."""
        own = model.with_notes(SEARCH_NOTE) if self.is_searched else model
        return own if self.void_reason is None else replace(own, guarantee=void(own.guarantee, self.void_reason))


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """The fit and the files of every estimator; a derived class says which solver runs, with which options.

    scikit-learn reads parameters from the signature of ``__init__``, which must do nothing but keep them: that is what
    a dataclass writes. Fields of a derived class are the options of its solver.
    """

    _task: ClassVar[str]

    epsilon: float = 2.0
    delta: float = 1e-5
    adjacency: str = "replace-one"
    random_state: Any = None
    verbose: Any = False
    model_: Model = field(init=False, repr=False)
    coef_: Any = field(init=False, repr=False)

    def _solver(self) -> str | None:
        """The name of the solver; None for the task's own."""
        raise NotImplementedError

    def _options(self, n: int) -> dict[str, Any]:
        """The solver's arguments, for n rows."""
        general = {entry.name for base in (PrivateClassifier, PrivateRegressor) for entry in fields(base)}
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in general}

    def _fit(self, X: Any, y: Any, ledger: Ledger | None, classes: Any = None) -> None:
        """One private fit of checked data: sets every attribute that all estimators have."""
        caveats = Caveats.of(self, X, ledger)
        X, y = self._checked(X, y)
        model = models.fit(
            X, y, task=self._task, solver=self._solver(), classes=classes, epsilon=self.epsilon, delta=self.delta,
            adjacency=self.adjacency, rng=as_rng(self.random_state), ledger=ledger,
            feature_names=getattr(self, "feature_names_in_", None), verbose=self.verbose,
            **self._options(X.shape[0]),
        )  # fmt: skip
        self._take(caveats.stated(model))

    def _checked(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        """X and y, checked together; numbers in X, and no word about what a record holds in any error."""
        with discreet():
            return validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=self._task == REGRESSION)

    def _take(self, model: Model) -> None:
        """The attributes of a fitted estimator."""
        self.model_ = model
        self.guarantee_, self.plan_, self.n_iter_ = model.guarantee, model.plan, model.steps
        self.n_features_in_ = model.n_features
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, dtype=object)

    def _margins(self, X: Any) -> NDArray[np.float64]:
        """The margins of new rows, with the coefficients as they are now."""
        check_is_fitted(self)
        with discreet():
            X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return self._current().margins(X)

    def _current(self) -> Model:
        coef = self.coef_.toarray() if sparse.issparse(self.coef_) else np.asarray(self.coef_)
        intercept = np.atleast_1d(np.asarray(self.intercept_, dtype=np.float64))
        return replace(self.model_, coef=np.atleast_2d(coef), intercept=intercept)

    def sparsify(self) -> PrivateEstimator:
        """Turn ``coef_`` into a CSR matrix, which is smaller where most coefficients are 0."""
        check_is_fitted(self)
        self.coef_ = sparse.csr_matrix(np.atleast_2d(self.coef_) if not sparse.issparse(self.coef_) else self.coef_)
        return self

    def densify(self) -> PrivateEstimator:
        """Turn ``coef_`` back into an array."""
        check_is_fitted(self)
        if sparse.issparse(self.coef_):
            dense = self.coef_.toarray()
            self.coef_ = dense if self._task == CLASSIFICATION else dense[0]
        return self

    def save(self, path: str | Path) -> None:
        """Write the fitted model as JSON, with its guarantee; ``dptoolkit.estimators.load`` reads it back."""
        check_is_fitted(self)
        params = {name: _plain(name, value) for name, value in self.get_params().items()}
        files.save(self._current(), path, {"class": type(self).__name__, "params": params})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """A linear classifier with a guarantee, for two classes or more."""

    _task: ClassVar[str] = CLASSIFICATION

    classes: Any = None

    def fit(self, X: Any, y: Any, ledger: Ledger | None = None, **refused: Any) -> PrivateClassifier:
        """Fit the model.

        Parameters
        ----------
        X : (n, d) array or scipy.sparse matrix
            One row a record.
        y : (n,) array
            Their classes: numbers or strings.
        ledger : Ledger or None, default None
            It is charged for the fit, or refuses it, before the data are used.

        Returns
        -------
        self
            The fitted estimator; ``guarantee_`` is what the fit guarantees.

        Raises
        ------
        BudgetExceeded
            If the ledger cannot pay for the fit; nothing is spent then.

        Privacy
        -------
        Everything is released by the solver's plan, which is made without data; the Privacy section of the class names
        the solver. ``sample_weight`` is refused, as no plan accounts for it.
        """
        refuse_arguments(self, refused)
        self._fit(X, y, ledger, self.classes)
        return self

    def _checked(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        X, y = super()._checked(X, y)
        check_classification_targets(y)
        return X, y

    def _take(self, model: Model) -> None:
        super()._take(model)
        self.coef_, self.intercept_, self.classes_ = model.coef, model.intercept, model.classes

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The margin of every row, positive for the second class; with more classes, one column a class.

        Privacy
        -------
        The model is public: what is computed from it gives nothing away about the rows of the fit. The answer is about
        the rows of X, for whom nothing is hidden.
        """
        margins = self._margins(X)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class, one column a class in the order of ``classes_``.

        Privacy
        -------
        The model is public: what is computed from it gives nothing away about the rows of the fit. The answer is about
        the rows of X, for whom nothing is hidden.
        """
        check_is_fitted(self)
        with discreet():
            X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return self._current().probabilities(X)

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of the probabilities of ``predict_proba``.

        Privacy
        -------
        The model is public: what is computed from it gives nothing away about the rows of the fit. The answer is about
        the rows of X, for whom nothing is hidden.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of every row.

        Privacy
        -------
        The model is public: what is computed from it gives nothing away about the rows of the fit. The answer is about
        the rows of X, for whom nothing is hidden.
        """
        check_is_fitted(self)
        margins = self.decision_function(X)
        which = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.asarray(self.classes_)[which]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # With the few hundred rows of a test, the noise of a real budget is larger than what there is to learn.
        tags.classifier_tags.poor_score = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """A linear model of numbers with a guarantee."""

    _task: ClassVar[str] = REGRESSION

    def fit(self, X: Any, y: Any, ledger: Ledger | None = None, **refused: Any) -> PrivateRegressor:
        """Fit the model.

        Parameters, errors and privacy are those of ``PrivateClassifier.fit``, but ``y`` are numbers, which are clipped
        to ``label_bound``.
        """
        refuse_arguments(self, refused)
        self._fit(X, y, ledger)
        return self

    def _take(self, model: Model) -> None:
        super()._take(model)
        self.coef_, self.intercept_ = model.coef[0], float(model.intercept[0])

    def predict(self, X: Any) -> NDArray[np.float64]:
        """A number for every row.

        Privacy
        -------
        The model is public: what is computed from it gives nothing away about the rows of the fit. The answer is about
        the rows of X, for whom nothing is hidden.
        """
        return self._margins(X)[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # See PrivateClassifier; labels beyond label_bound are also clipped.
        tags.regressor_tags.poor_score = True
        return tags


def load(path: str | Path) -> Any:
    """The fitted estimator in a file that ``save`` wrote; a file that was changed is refused."""
    import dptoolkit.estimators as known

    model, extra = files.read(path)
    name = (extra or {}).get("class")
    if name not in known.__all__ or not str(name).startswith("Private"):
        repair = "Read it with dptoolkit.models.load."
        raise invalid("path", str(path), "the file of an estimator of dptoolkit", repair)
    kind, params = getattr(known, name), dict((extra or {}).get("params") or {})
    if not set(params) <= set(inspect.signature(kind).parameters) or kind._task != model.task:
        raise invalid("path", str(path), f"the file of a {name}", "Its parameters are those of something else.")
    estimator = kind(**params)
    _check_budget(estimator, model, path)
    estimator._take(model)
    return estimator


def _check_budget(estimator: PrivateEstimator, model: Model, path: str | Path) -> None:
    """Refuse parameters that state another solver or budget than the plan, against which the event was checked."""
    if solver_name(model.task, estimator._solver()) != model.solver:
        repair = f"It was fitted by {model.solver}, which that class does not run."
        raise invalid("path", str(path), f"the file of a {type(estimator).__name__}", repair)
    budget = estimator.epsilon, estimator.delta
    if not files.is_stated_budget(model.plan, *budget) or str(estimator.adjacency) != str(model.plan.adjacency):
        stated = f"epsilon={budget[0]!r}, delta={budget[1]!r}, adjacency={estimator.adjacency!r}"
        repair = f"Its parameters state {stated}, which is not the budget of its plan."
        raise invalid("path", str(path), f"the file of a {type(estimator).__name__}", repair)


def void(guarantee: Guarantee, reason: str) -> Guarantee:
    """A guarantee that says that there is none, and why: epsilon is infinite."""
    notes = (*guarantee.notes, f"{VOID}{reason}")
    return replace(account(Gaussian(0.0), adjacency=guarantee.adjacency), notes=notes)


def refuse_arguments(estimator: Any, refused: dict[str, Any]) -> None:
    """Raise the error that explains why ``fit`` does not take these arguments, if there are any."""
    if refused.pop("sample_weight", None) is not None:
        raise ValueError(_WEIGHTS)
    if refused:
        raise TypeError(f"{type(estimator).__name__}.fit() got an unexpected argument {next(iter(refused))!r}.")


# Words of the messages that show entries, and what is said in their place: name, value, bound, repair. scikit-learn's
# own tests look for some of its words.
_SHOWN = {
    "could not convert": ("X or y", "an array with text", "numbers", "Encode text by a public table first."),
    "Expected 2D array": ("X", "an array of another shape", "(n, d)", "Reshape your data: one row a record."),
    "Complex data not supported": ("X or y", "complex", "real", "Complex data not supported: give their parts."),
}


@contextmanager
def discreet() -> Iterator[None]:
    """scikit-learn's checks without those of its messages, and NumPy's, that show entries of the data."""
    try:
        yield
    except ValueError as problem:
        for start, message in _SHOWN.items():
            if start in str(problem):
                raise invalid(*message) from None
        raise


def as_rng(random_state: Any) -> Any:
    """scikit-learn's random_state as a solver's rng; None is fresh entropy, and never NumPy's global state."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**62))
    return random_state


def is_in_a_search() -> bool:
    """Whether this fit was called by scikit-learn's model selection, at any depth."""
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("sklearn.model_selection"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def warn_of_tuning(estimator: Any) -> None:
    """Warn of what a search or a cross-validation by scikit-learn costs."""
    warnings.warn(
        f"{type(estimator).__name__} is fitted inside a search or a cross-validation. On private data that is not "
        f"free: each of its fits spends epsilon {estimator.epsilon:g}, and scores on held-out records are released "
        "without any noise. Choose on public data, let the default rules choose, or use "
        "dptoolkit.estimators.PrivateSearchCV, which makes the choice inside one budget.",
        TuningWarning,
        stacklevel=5,
    )


def _plain(name: str, value: Any) -> Any:
    """A parameter as JSON; the state of a generator is not kept."""
    if name == "random_state" and not isinstance(value, (int, np.integer)):
        return None
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, (tuple, set)) else value
