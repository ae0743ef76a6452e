"""The private linear classifiers and regressors: one pair of classes per method.

Every parameter is written once. A method is a class of parameters and names its solvers; a public bound is a class of
one parameter. An estimator is a method, the bounds that it needs, and a task. Its constructor has the parameters of
these classes, from right to left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dptoolkit._validate import one_of
from dptoolkit.estimators.base import PrivateClassifier, PrivateRegressor
from dptoolkit.estimators.parameters import documented, parameter

# Methods and bounds are parts of estimators, not estimators themselves.
__all__ = [
    "PrivateIHTClassifier", "PrivateIHTRegressor", "PrivateLassoClassifier", "PrivateLassoRegressor",
    "PrivateObjectivePerturbationClassifier", "PrivateSparseClassifier", "PrivateSparseRegressor",
    "PrivateStochasticIHTClassifier", "PrivateStochasticIHTRegressor",
]  # fmt: skip

# --- Public bounds --------------------------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False, repr=False)
class RowNorm:
    """The public bound of a row."""

    row_norm: float | None = parameter(
        "Public bound on the L2 norm of a row, in the unit of X. Longer rows are scaled down. It must be given.",
        default=None,
    )


@dataclass(kw_only=True, eq=False, repr=False)
class FeatureBound:
    """The public bound of an entry of X."""

    feature_bound: float | None = parameter(
        "Public bound on |X_ij|, in the unit of X. Larger entries are clipped. It must be given.", default=None
    )


@dataclass(kw_only=True, eq=False, repr=False)
class LabelBound:
    """The public bound of a label, which regressors need."""

    label_bound: float | None = parameter(
        "Public bound on |y|, in the unit of y. Larger labels are clipped. It must be given.", default=None
    )


# --- Methods --------------------------------------------------------------------------------------------------

# Descriptions that several methods share.
_SPARSITY = "Number of features that the model keeps. None keeps all."
_STEP_SIZE = "Length of a step. None leaves it to the rule."
_INTERCEPT = "Whether to add a column of ones to X. It is bounded and charged like any other column."


@dataclass(kw_only=True, eq=False, repr=False)
class Pipeline:
    """Preparation, descent and scale in one plan."""

    _solvers: ClassVar[tuple[str, ...]] = ("dp_pipeline",)

    sparsity: int | None = parameter(
        "Number of features that the model keeps. None keeps all features that stand out of the noise.", default=None
    )
    bounds: Any = parameter(
        "Public bounds of the columns of a table, in their units, chosen without the data: (lower, upper), each one "
        'number or one per column, or a mapping from the name of a column to such a pair, in which the name "*" stands '
        "for all columns that are not named. Two labelled Series are read by their labels. Columns in any units are "
        "then prepared by private ranks and centring, at a part of the budget. Bounds up to a hundred times too wide "
        "cost little; beyond that the error rises. None uses rows as they are, which suits text.",
        default=None,
        kind="tuple, mapping of str to tuple, or None",
    )
    numeric: Any = parameter(
        "Columns that become ranks, by name or place. None takes all whose bounds are not exactly 0 and 1. With () no "
        "column does, which is better for the pixels of an image.",
        default=None,
        kind="sequence of str or int, or None",
    )


@dataclass(kw_only=True, eq=False, repr=False)
class Thresholding:
    """Noisy gradients of all records, of which the largest weights are kept."""

    _solvers: ClassVar[tuple[str, ...]] = ("dp_ight",)

    sparsity: int | None = parameter(_SPARSITY, default=None)
    steps: int | None = parameter("Number of iterations. None leaves it to the rule (docs/rules.md).", default=None)
    step_size: float | None = parameter(_STEP_SIZE, default=None)
    fit_intercept: bool = parameter(_INTERCEPT, default=True)


@dataclass(kw_only=True, eq=False, repr=False)
class Lasso:
    """Frank-Wolfe steps in an L1 ball."""

    _solvers: ClassVar[tuple[str, ...]] = ("dp_frank_wolfe",)

    l1_radius: float | None = parameter(
        "Radius of the L1 ball, which is the largest sum of |coefficients|. For regression the noise grows with its "
        "square. None leaves it to the rule (docs/rules.md).",
        default=None,
    )
    steps: int | None = parameter(
        "Number of vertices that are chosen, and so the largest number of features that the model uses. None leaves it "
        "to the rule.",
        default=None,
    )
    fit_intercept: bool = parameter(
        "Whether to add a column to X that is constant at a tenth of ``feature_bound``.", default=True
    )


@dataclass(kw_only=True, eq=False, repr=False)
class Stochastic:
    """Noisy gradients of random batches, of which the largest weights are kept."""

    _solvers: ClassVar[tuple[str, ...]] = ("dp_sgd_ht", "dp_svrg_ht", "dp_scsg_ht")
    # Parts of the records: a batch of "svrg" and "scsg", a snapshot of "scsg". The number of records is public.
    _batches: ClassVar[int] = 10
    _snapshots: ClassVar[int] = 2

    sparsity: int | None = parameter(_SPARSITY, default=None)
    method: str = parameter(
        'The method: "sgd", or a method with snapshots of the gradient, which are computed from all records for '
        '"svrg" and from a batch for "scsg".',
        default="sgd",
    )
    batch_size: int | None = parameter(
        'Number of records in a batch. None leaves it to the rule of "sgd" (docs/rules.md); for the other methods it '
        "is a tenth of the records.",
        default=None,
    )
    steps: int | None = parameter('Number of batches of "sgd". None leaves it to the rule.', default=None)
    epochs: int = parameter('Number of snapshots of "svrg" and "scsg".', default=5)
    step_size: float | None = parameter(_STEP_SIZE, default=None)
    fit_intercept: bool = parameter(_INTERCEPT, default=True)

    def _solver(self) -> str:
        names = {name.removeprefix("dp_").removesuffix("_ht"): name for name in self._solvers}
        return names[one_of("method", self.method, tuple(names))]

    def _options(self, n: int) -> dict[str, Any]:
        """The solver's arguments for n records."""
        options: dict[str, Any] = super()._options(n)  # type: ignore[misc]
        method = options.pop("method")
        del options["epochs" if method == "sgd" else "steps"]
        if method != "sgd" and options["batch_size"] is None:
            options["batch_size"] = max(1, n // self._batches)
        if method == "scsg":
            options["snapshot_size"] = max(options["batch_size"], n // self._snapshots)
        return options


@dataclass(kw_only=True, eq=False, repr=False)
class ObjectivePerturbation:
    """The minimiser of the loss with a random linear term."""

    _solvers: ClassVar[tuple[str, ...]] = ("objective_perturbation",)

    l2: float | None = parameter(
        "Weight of |w|^2/2 beside the mean loss. None leaves it to the rule (docs/rules.md).", default=None
    )
    constraint: str | None = parameter(
        '"l2" or "l1" for weights in a ball of that norm. None allows all weights.', default=None
    )
    radius: float | None = parameter("Radius of the ball, if there is a ``constraint``.", default=None)
    fit_intercept: bool = parameter(_INTERCEPT, default=True)


# --- Classifiers ----------------------------------------------------------------------------------------------


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSparseClassifier(Pipeline, RowNorm, PrivateClassifier):
    """A private sparse classifier that needs a privacy budget and nothing else: ``solvers.dp_pipeline``.

    Rows are scaled to norm 1, features that stand out of the noise are kept and weighted, and the number and length of
    steps follow from the budget. More than two classes are fitted as one softmax model.
    """

    row_norm: float = parameter(
        "Public bound on the L2 norm of a row. It changes nothing here, because every row is scaled to norm 1. Declare "
        "``bounds`` of columns in different units; a ``models.ScalesWarning`` is shown where that was not done.",
        default=1.0,
    )


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateIHTClassifier(Thresholding, RowNorm, PrivateClassifier):
    """A private sparse classifier by noisy gradients and hard thresholding: ``solvers.dp_ight``, logistic loss."""


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLassoClassifier(Lasso, FeatureBound, PrivateClassifier):
    """A private classifier with weights in an L1 ball, by Frank-Wolfe: ``solvers.dp_frank_wolfe``, logistic loss.

    More than two classes are fitted as one softmax model, by ``solvers.dp_multinomial_frank_wolfe``.
    """


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateStochasticIHTClassifier(Stochastic, RowNorm, PrivateClassifier):
    """A private sparse classifier by noisy gradients of random batches: ``solvers.dp_sgd_ht`` and related solvers."""


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateObjectivePerturbationClassifier(ObjectivePerturbation, RowNorm, PrivateClassifier):
    """A private classifier that minimises the logistic loss with a random term: ``solvers.objective_perturbation``."""


# --- Regressors -----------------------------------------------------------------------------------------------


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSparseRegressor(Pipeline, LabelBound, RowNorm, PrivateRegressor):
    """A private sparse linear regression that needs public bounds and a budget: ``solvers.dp_pipeline``.

    Features that stand out of the noise are kept, and the number and length of steps follow from the budget. There is
    always an intercept, and predictions stay within ``label_bound``.
    """


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateIHTRegressor(Thresholding, LabelBound, RowNorm, PrivateRegressor):
    """A private sparse linear regression by noisy gradients and hard thresholding: ``solvers.dp_ight``."""


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLassoRegressor(Lasso, LabelBound, FeatureBound, PrivateRegressor):
    """A private linear regression with weights in an L1 ball, by Frank-Wolfe: ``solvers.dp_frank_wolfe``."""


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class PrivateStochasticIHTRegressor(Stochastic, LabelBound, RowNorm, PrivateRegressor):
    """A private sparse linear regression by noisy gradients of random batches: ``solvers.dp_sgd_ht`` and others."""
