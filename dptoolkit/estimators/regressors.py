"""Private regressors: one class a method. Labels are clipped to a public bound.

Every class lists all its parameters, as fields and in its docstring, because scikit-learn reads them from the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dptoolkit.estimators.base import PrivateRegressor, stochastic_options, stochastic_solver


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSparseRegressor(PrivateRegressor):
    """A private sparse linear model that needs bounds and a budget: ``solvers.dp_pipeline`` for numbers.

    Features that stand out of the noise are kept, and the number and length of steps follow from the budget. There is
    always an intercept; predictions stay within ``label_bound``.

    Parameters
    ----------
    epsilon : float, default 2.0
        Budget of the whole fit, at ``delta``.
    delta : float, default 1e-5
        Budget of the whole fit.
    row_norm : float
        Public L2 bound of a row, in the unit of X; longer rows are scaled down. It must be given.
    label_bound : float
        Public bound of |y|, in the unit of y; larger labels are clipped. It must be given.
    sparsity : int or None, default None
        Number of features that are kept in the end; None keeps all that stand out.
    adjacency : str, default "replace-one"
        Which datasets are neighbours: "replace-one" or "zero-out".
    random_state : int, RandomState, Generator or None, default None
        A seed makes a fit reproducible, so that it is not a release; ``guarantee_`` says so. None is fresh entropy.
    verbose : bool or int, default False
        Show on stderr which step of the fit is running, and afterwards the plan's outlook; no record is shown.

    Attributes
    ----------
    guarantee_ : what the fit guarantees.
    plan_ : what the fit released, with which noise.
    coef_, intercept_, n_features_in_, feature_names_in_, n_iter_ : as in scikit-learn.
    model_ : the ``dptoolkit.models.Model`` behind it.

    Privacy
    -------
    See ``solvers.dp_pipeline``. Public: n, d, all parameters.
    """

    row_norm: float | None = None
    label_bound: float | None = None
    sparsity: int | None = None

    def _solver(self) -> str | None:
        return None


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateIHTRegressor(PrivateRegressor):
    """A private sparse linear model by noisy gradients and hard thresholding: ``solvers.dp_ight``, squared loss.

    Parameters
    ----------
    epsilon, delta, row_norm, label_bound, adjacency, random_state
        As for ``PrivateSparseRegressor``.
    sparsity : int or None, default None
        Number of features that are kept; None keeps all.
    fit_intercept : bool, default True
        Add a column of ones, bounded and charged like any other.
    steps : int or None, default None
        Number of iterations; None leaves it to the rule (docs/rules.md).
    step_size : float or None, default None
        Length of a step; None leaves it to the rule.

    Privacy
    -------
    See ``solvers.dp_ight``. Public: n, d, all parameters.
    """

    row_norm: float | None = None
    label_bound: float | None = None
    sparsity: int | None = None
    steps: int | None = None
    step_size: float | None = None
    fit_intercept: bool = True

    def _solver(self) -> str:
        return "dp_ight"


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLassoRegressor(PrivateRegressor):
    """A private linear model with weights in an L1 ball, by Frank-Wolfe: ``solvers.dp_frank_wolfe``, squared loss.

    Parameters
    ----------
    epsilon, delta, label_bound, adjacency, random_state
        As for ``PrivateSparseRegressor``.
    feature_bound : float
        Public bound of |X_ij|, in the unit of X; larger entries are clipped. It must be given.
    l1_radius : float or None, default None
        Radius of the L1 ball: the largest sum of |coefficients|. The noise grows with its square. None leaves it to the
        rule (docs/rules.md).
    steps : int or None, default None
        Number of vertices that are chosen, and so the most features that are used; None leaves it to the rule.
    fit_intercept : bool, default True
        Add a column that is constant at a tenth of ``feature_bound``.

    Privacy
    -------
    See ``solvers.dp_frank_wolfe``. Public: n, d, all parameters.
    """

    feature_bound: float | None = None
    label_bound: float | None = None
    l1_radius: float | None = None
    steps: int | None = None
    fit_intercept: bool = True

    def _solver(self) -> str:
        return "dp_frank_wolfe"


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateStochasticIHTRegressor(PrivateRegressor):
    """A private sparse linear model by noisy gradients of random batches: ``solvers.dp_sgd_ht`` and its relatives.

    Parameters
    ----------
    epsilon, delta, row_norm, label_bound, sparsity, fit_intercept, adjacency, random_state
        As for ``PrivateIHTRegressor``.
    method, batch_size, steps, epochs, step_size
        As for ``PrivateStochasticIHTClassifier``.

    Privacy
    -------
    See ``solvers.dp_sgd_ht``, ``dp_svrg_ht`` and ``dp_scsg_ht``. Public: n, d, all parameters.
    """

    row_norm: float | None = None
    label_bound: float | None = None
    sparsity: int | None = None
    method: str = "sgd"
    batch_size: int | None = None
    steps: int | None = None
    epochs: int = 5
    step_size: float | None = None
    fit_intercept: bool = True

    def _solver(self) -> str:
        return stochastic_solver(self.method)

    def _options(self, n: int) -> dict[str, Any]:
        return stochastic_options(self, n) | {"label_bound": self.label_bound}
