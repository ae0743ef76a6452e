"""A private choice of an estimator's parameters, compatible with scikit-learn's searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from dptoolkit._validate import invalid
from dptoolkit.accounting import Ledger
from dptoolkit.estimators.base import PrivateEstimator, fit_notes
from dptoolkit.estimators.inputs import as_rng, checked_data, checked_rows, refuse_arguments
from dptoolkit.estimators.parameters import attributes, documented, parameter
from dptoolkit.models import routes
from dptoolkit.models.routes import CLASSIFICATION, REGRESSION
from dptoolkit.solvers.frame.secure import UNSEEDED
from dptoolkit.solvers.registry import SOLVERS
from dptoolkit.tuning import models as choosing
from dptoolkit.tuning.choice import LOGARITHMIC


def _estimator_has(name: str) -> Callable[[Any], bool]:
    """Whether the estimator that is chosen has a method, so that this one has it too."""
    return lambda search: hasattr(search.estimator, name)


@documented
@dataclass(eq=False, repr=False)
class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):
    """The best of several settings of a private estimator, chosen within one budget: ``dptoolkit.tuning``.

    A random number of runs is made. Each draws a candidate, trains it on most of the rows, and scores it with noise on
    the others, which are never trained on. Only the best run is kept: there is no ``cv_results_``.
    """

    estimator: Any = parameter(
        "A classifier or regressor of dptoolkit. Its own epsilon, delta, random_state and randomness are not used.",
        kind="PrivateEstimator",
    )
    param_grid: Any = parameter(
        "The candidates, as for ``GridSearchCV``: all combinations of the values.",
        kind="dict of str to list, or list of dict",
    )
    _: KW_ONLY
    epsilon: float = parameter(
        "Privacy budget of the whole choice, at ``delta``: all runs, their scores, and which of them won.", default=2.0
    )
    delta: float = parameter("Privacy budget of the whole choice. It must be well below 1/n.", default=1e-5)
    expected_runs: float | None = parameter("The mean number of runs. None makes two for each candidate.", default=None)
    law: str = parameter('The law of the number of runs: "logarithmic" or "geometric".', default=LOGARITHMIC)
    validation: float = parameter("The share of rows that is held out for scores, by a fixed public rule.", default=0.2)
    score_bound: float | None = parameter(
        "For regression: what labels and predictions are clipped to in scores. None takes the estimator's "
        "``label_bound``.",
        default=None,
    )
    random_state: Any = parameter(
        "None draws fresh randomness. A seed makes the choice reproducible. A seeded choice must not be published, "
        "because whoever guesses the seed can remove the noise; ``guarantee_`` says so.",
        default=None,
        kind="int, RandomState, Generator or None",
    )
    randomness: str | None = parameter(
        '"secure" draws noise that is exact in every digit from a cryptographic generator, and takes no '
        '``random_state``. "fast" draws noise in doubles, whose last digits can give a record away. '
        f'None is "{UNSEEDED}", and "fast" where ``random_state`` is given. docs/secure-noise.md explains both.',
        default=None,
    )

    @classmethod
    def _attributes(cls) -> dict[str, tuple[str, str]]:
        return attributes(
            "classes_",
            "n_features_in_",
            "feature_names_in_",
            best_params_=("dict", "The candidate of the best run."),
            best_index_=("int", "The number of that candidate in ``candidates_``."),
            best_score_=(
                "float",
                "Its score on the held-out rows, with noise: the share of right labels, or minus the mean error.",
            ),
            best_estimator_=("PrivateEstimator", "The fitted estimator; its guarantee is that of the whole choice."),
            candidates_=("list of dict", "All candidates, in order."),
            guarantee_=("Guarantee", "What the choice guarantees, computed from what it released."),
            plan_=("TuningPlan", "What the choice released, and what it costs."),
        )

    @classmethod
    def _privacy(cls) -> str:
        return (
            "Event: ``BestOf`` one run (docs/tuning.md), planned without data. A ledger is charged for it once, before "
            "the data are used. Public: n, d, the classes, all parameters. How long a fit takes shows how many runs "
            "there were."
        )

    def fit(self, X: Any, y: Any, ledger: Ledger | None = None, **refused: Any) -> PrivateSearchCV:
        """Choose among the candidates and fit, within one budget.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            The records, one per row.
        y : array-like of shape (n,)
            The label of every record.
        ledger : Ledger or None, default None
            The ledger to charge, once, for the whole choice. It may refuse, before the data are used.
        **refused : Any
            Further arguments of scikit-learn, such as ``sample_weight``, which are refused.

        Returns
        -------
        PrivateSearchCV
            The fitted search itself.
        """
        refuse_arguments(self, refused)
        candidates = self._candidates()
        solver = self._solver(candidates)
        first = candidates[0]
        X, y = self._checked(X, y, getattr(first, "classes", None))
        for candidate in candidates:
            candidate._check_bounds()
        rng = as_rng(self.random_state, ledger, self.randomness)
        notes = fit_notes(self)
        own, common = self._options(candidates, len(y))
        choice = choosing.choose(
            X, y, own, task=first._task, solver=solver, classes=getattr(first, "classes", None),
            adjacency=first.adjacency, rng=rng, ledger=ledger,
            feature_names=getattr(self, "feature_names_in_", None), terms=choosing.terms_of(self), **common,
        )  # fmt: skip
        model = choice.model.with_notes(*notes)
        best = candidates[choice.number].set_params(epsilon=self.epsilon, delta=self.delta)
        best._take(model)
        self.candidates_ = list(ParameterGrid(self.param_grid))
        self.best_index_, self.best_params_ = choice.number, self.candidates_[choice.number]
        self.best_score_, self.best_estimator_ = choice.score, best
        self.plan_, self.guarantee_ = choice.plan, model.guarantee
        if first._task == CLASSIFICATION:
            self.classes_ = model.classes
        return self

    def _candidates(self) -> list[PrivateEstimator]:
        """An estimator for each candidate, unfitted; bad parameters are refused."""
        if not isinstance(self.estimator, PrivateEstimator):
            repair = "Prepare rows before the search: what a pipeline learns from them is not charged."
            raise invalid("estimator", type(self.estimator).__name__, "a private estimator of dptoolkit", repair)
        grid = list(ParameterGrid(self.param_grid))
        if not grid or not any(grid):
            raise invalid("param_grid", self.param_grid, "at least one parameter with a value")
        choosing.refuse_shared(grid)
        return [clone(self.estimator).set_params(**candidate) for candidate in grid]

    def _solver(self, candidates: list[PrivateEstimator]) -> str | None:
        solvers = {candidate._solver() for candidate in candidates}
        if len(solvers) > 1:
            names = ", ".join(sorted(map(str, solvers)))
            raise invalid("param_grid", names, "candidates of one solver", "Make a separate search for each solver.")
        return solvers.pop()

    def _options(self, candidates: list[PrivateEstimator], n: int) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
        """(the arguments of each candidate, those that all share)."""
        options = [candidate._options(n) for candidate in candidates]
        return choosing.own_and_shared(options, list(ParameterGrid(self.param_grid)))

    def _checked(self, X: Any, y: Any, classes: Any) -> tuple[Any, NDArray[Any]]:
        numeric = self.estimator._task == REGRESSION
        X, y = checked_data(self, X, y, is_numeric=numeric, classes=classes, ensure_min_samples=2)
        if not numeric and not get_tags(self).classifier_tags.multi_class and type_of_target(y) == "multiclass":
            repair = "Only binary classification is supported. The type of the target is multiclass."
            raise invalid("y", "several classes", "of two classes for this estimator", repair)
        return X, y

    def _best(self, X: Any) -> Any:
        """The fitted estimator, for rows with the columns of the fit."""
        check_is_fitted(self)
        checked_rows(self, X, reset=False)
        return self.best_estimator_

    def predict(self, X: Any) -> NDArray[Any]:
        """What the best estimator predicts.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.
        """
        return self._best(X).predict(X)

    @available_if(_estimator_has("predict_proba"))
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.
        """
        return self._best(X).predict_proba(X)

    @available_if(_estimator_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of the probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.
        """
        return self._best(X).predict_log_proba(X)

    @available_if(_estimator_has("decision_function"))
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The margin of every row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            New rows, with the columns of the fit.
        """
        return self._best(X).decision_function(X)

    def score(self, X: Any, y: Any) -> float:
        """The accuracy, or R^2, on these rows; computed without noise, so not private for the people in them.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n, d)
            Rows, with the columns of the fit.
        y : array-like of shape (n,)
            Their labels.
        """
        return float(self._best(X).score(X, y))

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = own.estimator_type
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        if tags.classifier_tags is not None and isinstance(self.estimator, PrivateEstimator):
            # Several classes need a solver that fits all of them in one model: fits of one class against the rest are
            # not planned as one choice.
            solver = routes.solver_name(CLASSIFICATION, self.estimator._solver())
            tags.classifier_tags.multi_class = SOLVERS[solver].several is not None
        tags.target_tags.required = True
        tags.input_tags.sparse = own.input_tags.sparse
        return tags
