"""What all estimators share: scikit-learn's checks, one private fit, prediction, files."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dptoolkit import models
from dptoolkit._validate import invalid
from dptoolkit.accounting import Ledger
from dptoolkit.data.column_bounds import ColumnBounds, label_names
from dptoolkit.estimators.inputs import as_rng, checked_data, checked_rows, refuse_arguments
from dptoolkit.estimators.parameters import attributes, parameter
from dptoolkit.estimators.wrappers import wrapper_note
from dptoolkit.models import Model, files
from dptoolkit.models.notes import PREPARED_NOTE
from dptoolkit.models.routes import CLASSIFICATION, REGRESSION, solver_name
from dptoolkit.solvers.frame.secure import UNSEEDED
from dptoolkit.solvers.frame.settings import public_bound
from dptoolkit.solvers.registry import SOLVERS

# JSON has no infinity, which is the epsilon of a fit without privacy.
_INFINITE = "inf"
# Public bounds that an estimator must be given: any default would clip somebody's data without a word.
_BOUNDS = {
    "row_norm": "the largest L2 norm of a row",
    "feature_bound": "the largest |entry| of X",
    "label_bound": "the largest |label|",
}


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """The fit and the files of every estimator; a derived class names its solvers and adds their parameters."""

    _task: ClassVar[str]
    # The solvers that the estimator may run; the first one is the default.
    _solvers: ClassVar[tuple[str, ...]]

    epsilon: float = parameter("Privacy budget of the whole fit, at ``delta``. Several classes share it.", default=2.0)
    delta: float = parameter("Privacy budget of the whole fit. It must be well below 1/n.", default=1e-5)
    adjacency: str = parameter(
        'Which data sets are neighbours: "replace-one", where one record is replaced by another, or "zero-out", where '
        "the contribution of one record is left out.",
        default="replace-one",
    )
    random_state: Any = parameter(
        "None draws fresh randomness. A seed makes a fit reproducible. A seeded fit must not be published, because "
        "whoever guesses the seed can remove the noise; ``guarantee_`` says so.",
        default=None,
        kind="int, RandomState, Generator or None",
    )
    randomness: str | None = parameter(
        '"secure" draws noise that is exact in every digit from a cryptographic generator, and takes no '
        '``random_state``. "fast" draws noise in doubles, whose last digits can give a record away. '
        f'None is "{UNSEEDED}", and "fast" where ``random_state`` is given. docs/secure-noise.md explains both.',
        default=None,
    )
    verbose: Any = parameter(
        "Whether to show on stderr which step of the fit is running, and afterwards the outlook of the plan. No record "
        "is shown.",
        default=False,
        kind="bool or int",
    )
    model_: Model = field(init=False, repr=False)
    coef_: Any = field(init=False, repr=False)

    @classmethod
    def _attributes(cls) -> dict[str, tuple[str, str]]:
        """The attributes of the fitted estimator, for its docstring."""
        own = attributes()
        return own if cls._task == CLASSIFICATION else {name: own[name] for name in own if name != "classes_"}

    @classmethod
    def _privacy(cls) -> str:
        """What a fit gives away, for the docstring."""
        names, public = list(cls._solvers), "n, d, all parameters"
        if cls._task == CLASSIFICATION:
            names += [row.several[0] for row in map(SOLVERS.get, cls._solvers) if row and row.several]
            public = "n, d, the classes, all parameters"
        which = " or ".join(f"``solvers.{name}``" for name in dict.fromkeys(names))
        return (
            f"A fit releases what {which} releases, whose Privacy section states query, sensitivity and event. The "
            f"plan is made without data, and ``guarantee_`` is computed from its event. Public: {public}."
        )

    def _solver(self) -> str:
        """The name of the solver."""
        return self._solvers[0]

    def _options(self, n: int) -> dict[str, Any]:
        """The solver's arguments, for n rows."""
        general = {entry.name for base in (PrivateClassifier, PrivateRegressor) for entry in fields(base)}
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in general}

    def _fit(self, X: Any, y: Any, ledger: Ledger | None, classes: Any = None) -> None:
        """One private fit of checked data: sets every attribute that all estimators have."""
        X, y = checked_data(self, X, y, is_numeric=self._task == REGRESSION, classes=classes)
        self._check_bounds()
        rng = as_rng(self.random_state, ledger, self.randomness)
        notes = fit_notes(self)
        model = models.fit(
            X, y, task=self._task, solver=self._solver(), classes=classes, epsilon=self.epsilon, delta=self.delta,
            adjacency=self.adjacency, rng=rng, randomness=self.randomness, ledger=ledger,
            feature_names=getattr(self, "feature_names_in_", None), verbose=self.verbose,
            **self._options(X.shape[0]),
        )  # fmt: skip
        self._take(model.with_notes(*notes))

    def _check_bounds(self) -> None:
        """Refuse a fit without the public bounds of the estimator; none of them has a default."""
        for entry in fields(self):
            # Bounds of every column also bound rows.
            if entry.name == "row_norm" and getattr(self, "bounds", None) is not None:
                continue
            if entry.name in _BOUNDS and entry.default is None:
                public_bound(entry.name, getattr(self, entry.name), _BOUNDS[entry.name])

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
        return self._current().margins(checked_rows(self, X, reset=False))

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

    classes: Any = parameter(
        "The public class labels. None publishes the labels that occur in y: a ``models.ClassesWarning`` names them, "
        "and ``guarantee_`` says so. Labels with fractions, and more than 20 labels, must be declared here.",
        default=None,
        kind="sequence or None",
    )

    def fit(self, X: Any, y: Any, ledger: Ledger | None = None, **refused: Any) -> PrivateClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The records, one per row.
        y : array-like of shape (n,)
            The class of every record: a number or a string.
        ledger : Ledger or None, default None
            The ledger to charge for the fit. It may refuse the fit, before the data are used.
        **refused : Any
            Further arguments of scikit-learn, such as ``sample_weight``, which are refused.

        Returns
        -------
        PrivateClassifier
            The fitted estimator itself; ``guarantee_`` is what the fit guarantees.

        Raises
        ------
        BudgetExceeded
            If the ledger's budget is too small for the fit; nothing is spent then.

        Privacy
        -------
        Everything is released by the solver's plan, which is made without data; the Privacy section of the class names
        the solver. ``sample_weight`` is refused, because no plan accounts for it. Without ``classes``, the labels that
        occur in y are published, and a warning names them; more than 20 labels, or labels with fractions, are refused.
        """
        refuse_arguments(self, refused)
        self._fit(X, y, ledger, self.classes)
        return self

    def _take(self, model: Model) -> None:
        super()._take(model)
        self.coef_, self.intercept_, self.classes_ = model.coef, model.intercept, model.classes

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The margin of every row, positive for the second class; with more classes, one column per class.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.

        Privacy
        -------
        Only the released model is used, so nothing more is given away about the rows of the fit. The answer is not
        private for the people in the rows of X.
        """
        margins = self._margins(X)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class, one column per class in the order of ``classes_``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.

        Privacy
        -------
        Only the released model is used, so nothing more is given away about the rows of the fit. The answer is not
        private for the people in the rows of X.
        """
        check_is_fitted(self)
        return self._current().probabilities(checked_rows(self, X, reset=False))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of the probabilities of ``predict_proba``.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.

        Privacy
        -------
        Only the released model is used, so nothing more is given away about the rows of the fit. The answer is not
        private for the people in the rows of X.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of every row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.

        Privacy
        -------
        Only the released model is used, so nothing more is given away about the rows of the fit. The answer is not
        private for the people in the rows of X.
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
    """A linear regression with a guarantee."""

    _task: ClassVar[str] = REGRESSION

    def fit(self, X: Any, y: Any, ledger: Ledger | None = None, **refused: Any) -> PrivateRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The records, one per row.
        y : array-like of shape (n,)
            The regression target of every record.
        ledger : Ledger or None, default None
            The ledger to charge for the fit. It may refuse the fit, before the data are used.
        **refused : Any
            Further arguments of scikit-learn, such as ``sample_weight``, which are refused.

        Returns
        -------
        PrivateRegressor
            The fitted estimator itself; ``guarantee_`` is what the fit guarantees.

        Raises
        ------
        BudgetExceeded
            If the ledger's budget is too small for the fit; nothing is spent then.

        Privacy
        -------
        Everything is released by the solver's plan, which is made without data; the Privacy section of the class names
        the solver. ``sample_weight`` is refused, because no plan accounts for it.
        """
        refuse_arguments(self, refused)
        self._fit(X, y, ledger)
        return self

    def _take(self, model: Model) -> None:
        super()._take(model)
        self.coef_, self.intercept_ = model.coef[0], float(model.intercept[0])

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The predicted target of every row.

        Privacy
        -------
        Only the released model is used, so nothing more is given away about the rows of the fit. The answer is not
        private for the people in the rows of X.
        """
        return self._margins(X)[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # See PrivateClassifier; labels beyond label_bound are also clipped.
        tags.regressor_tags.poor_score = True
        return tags


def fit_notes(estimator: Any) -> tuple[str, ...]:
    """The notes that the guarantee of every estimator carries, after a warning if another estimator fits it."""
    note = wrapper_note(estimator)
    return (PREPARED_NOTE,) if note is None else (PREPARED_NOTE, note)


def load(path: str | Path) -> Any:
    """The fitted estimator in a file that ``save`` wrote; a file that was changed is refused."""
    import dptoolkit.estimators as known

    model, extra = files.read(path)
    own = extra if isinstance(extra, dict) else {}
    name, params = own.get("class"), own.get("params")
    if name not in known.__all__ or not str(name).startswith("Private") or not isinstance(params, dict):
        repair = "Read it with dptoolkit.models.load."
        raise invalid("path", str(path), "the file of an estimator of dptoolkit", repair)
    kind = getattr(known, name)
    params = {key: math.inf if value == _INFINITE else value for key, value in params.items()}
    if not set(params) <= set(inspect.signature(kind).parameters) or kind._task != model.task:
        raise invalid("path", str(path), f"the file of a {name}", "Its parameters are those of another class.")
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


def _plain(name: str, value: Any) -> Any:
    """A parameter as JSON; the state of a generator is not kept."""
    if name == "random_state" and not isinstance(value, (int, np.integer)):
        return None
    if name == "bounds" and value is not None:
        return _plain_bounds(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return _plain(name, value.item())
    if isinstance(value, float) and math.isinf(value):
        return _INFINITE
    return list(value) if isinstance(value, (tuple, set)) else value


def _plain_bounds(bounds: Any) -> Any:
    """Bounds of columns as JSON, in the form in which they were given."""
    if isinstance(bounds, ColumnBounds):
        return bounds.to_list()
    if hasattr(bounds, "items"):
        return {str(name): np.asarray(pair, dtype=float).tolist() for name, pair in bounds.items()}
    lower, upper = bounds
    names = [label_names(bound) for bound in bounds]
    if (order := next((own for own in names if own is not None), None)) is not None:
        # Labels are kept: the bounds of another fit are put in order by them again.
        pairs = [
            bound if own is None else dict(zip(own, bound, strict=True))
            for own, bound in zip(names, bounds, strict=True)
        ]
        return {name: [float(one[name] if isinstance(one, dict) else one) for one in pairs] for name in order}
    return [np.asarray(bound, dtype=float).tolist() for bound in (lower, upper)]
