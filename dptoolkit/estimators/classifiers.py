"""Private classifiers: one class a method.

Every class lists all its parameters, as fields and in its docstring, because scikit-learn reads them from the class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dptoolkit.estimators.base import PrivateClassifier, stochastic_options, stochastic_solver


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSparseClassifier(PrivateClassifier):
    """A private sparse classifier that needs a budget and nothing else: ``solvers.dp_pipeline``.

    Rows are scaled to norm 1, features that stand out of the noise are kept and weighted, and the number and length of
    steps follow from the budget. More than two classes are one softmax model.

    Parameters
    ----------
    epsilon : float, default 2.0
        Budget of the whole fit, at ``delta``.
    delta : float, default 1e-5
        Budget of the whole fit.
    row_norm : float, default 1.0
        Public L2 bound of a row. Every row is scaled to norm 1 here, so that it changes nothing. Bring columns in
        different units to one scale first (``ScaleToBounds``); a ``models.ScalesWarning`` says where that was not done.
    sparsity : int or None, default None
        Number of features that are kept in the end; None keeps all that stand out.
    classes : sequence or None, default None
        The public set of labels. None declares the set of labels in y to be public: a ``models.ClassesWarning`` names
        them, and ``guarantee_`` says so. Labels with fractions, or more than 20 of them, must be declared here.
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
    coef_, intercept_ : of rows that are prepared as ``model_.preparations`` says; ``decision_function`` does that.
    classes_, n_features_in_, feature_names_in_, n_iter_ : as in scikit-learn.
    model_ : the ``dptoolkit.models.Model`` behind it.

    Privacy
    -------
    See ``solvers.dp_pipeline``. Public: n, d, the classes, all parameters.
    """

    row_norm: float = 1.0
    sparsity: int | None = None

    def _solver(self) -> str | None:
        return None


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateIHTClassifier(PrivateClassifier):
    """A private sparse classifier by noisy gradients and hard thresholding: ``solvers.dp_ight``, logistic loss.

    Parameters
    ----------
    epsilon, delta, classes, adjacency, random_state
        As for ``PrivateSparseClassifier``.
    row_norm : float
        Public L2 bound of a row, in the unit of X; longer rows are scaled down. It must be given.
    sparsity : int or None, default None
        Number of features that are kept; None keeps all.
    steps : int or None, default None
        Number of iterations; None leaves it to the rule (docs/rules.md).
    step_size : float or None, default None
        Length of a step; None leaves it to the rule.
    fit_intercept : bool, default True
        Add a column of ones, bounded and charged like any other.

    Privacy
    -------
    See ``solvers.dp_ight``. Public: n, d, the classes, all parameters.
    """

    row_norm: float | None = None
    sparsity: int | None = None
    steps: int | None = None
    step_size: float | None = None
    fit_intercept: bool = True

    def _solver(self) -> str:
        return "dp_ight"


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLassoClassifier(PrivateClassifier):
    """A private classifier with weights in an L1 ball, by Frank-Wolfe: ``solvers.dp_frank_wolfe``, logistic loss.

    More than two classes are one softmax model, ``solvers.dp_multinomial_frank_wolfe``.

    Parameters
    ----------
    epsilon, delta, classes, adjacency, random_state
        As for ``PrivateSparseClassifier``.
    feature_bound : float
        Public bound of |X_ij|, in the unit of X; larger entries are clipped. It must be given.
    l1_radius : float or None, default None
        Radius of the L1 ball: the largest sum of |coefficients|; None leaves it to the rule (docs/rules.md).
    steps : int or None, default None
        Number of vertices that are chosen, and so the most features that are used; None leaves it to the rule.
    fit_intercept : bool, default True
        Add a column that is constant at a tenth of ``feature_bound``.

    Privacy
    -------
    See ``solvers.dp_frank_wolfe``. Public: n, d, the classes, all parameters.
    """

    feature_bound: float | None = None
    l1_radius: float | None = None
    steps: int | None = None
    fit_intercept: bool = True

    def _solver(self) -> str:
        return "dp_frank_wolfe"


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateStochasticIHTClassifier(PrivateClassifier):
    """A private sparse classifier by noisy gradients of random batches: ``solvers.dp_sgd_ht`` and its relatives.

    Parameters
    ----------
    epsilon, delta, classes, adjacency, random_state
        As for ``PrivateSparseClassifier``.
    row_norm, sparsity, step_size, fit_intercept
        As for ``PrivateIHTClassifier``.
    method : str, default "sgd"
        "sgd", or with snapshots of the gradient "svrg" (of all rows) or "scsg" (of a batch).
    batch_size : int or None, default None
        Number of records in a batch; None leaves it to the rule of "sgd" (docs/rules.md), and is a tenth for others.
    steps : int or None, default None
        Number of batches of "sgd"; None leaves it to the rule.
    epochs : int, default 5
        Number of snapshots of "svrg" and "scsg".

    Privacy
    -------
    See ``solvers.dp_sgd_ht``, ``dp_svrg_ht`` and ``dp_scsg_ht``. Public: n, d, the classes, all parameters.
    """

    row_norm: float | None = None
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
        return stochastic_options(self, n)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateObjectivePerturbationClassifier(PrivateClassifier):
    """A private classifier that minimises the logistic loss with a random term: ``solvers.objective_perturbation``.

    Parameters
    ----------
    epsilon, delta, classes, adjacency, random_state
        As for ``PrivateSparseClassifier``.
    row_norm : float
        Public L2 bound of a row, in the unit of X; longer rows are scaled down. It must be given.
    l2 : float or None, default None
        Weight of |w|^2/2 beside the mean loss; None leaves it to the rule (docs/rules.md).
    constraint : str or None, default None
        "l2" or "l1" for weights in a ball of that norm; None for all weights.
    radius : float or None, default None
        Radius of the ball.
    fit_intercept : bool, default True
        Add a column of ones, bounded and charged like any other.

    Privacy
    -------
    See ``solvers.objective_perturbation``. Public: n, d, the classes, all parameters.
    """

    row_norm: float | None = None
    l2: float | None = None
    constraint: str | None = None
    radius: float | None = None
    fit_intercept: bool = True

    def _solver(self) -> str:
        return "objective_perturbation"
