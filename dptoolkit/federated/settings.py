"""The settings of one client: those of dp_sgd_ht or dp_ight, whose steps it makes from models that a server sends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, magnitude, one_of, real, whole
from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_rows, with_intercept
from dptoolkit.federated.secure import SecureSoftmaxSteps
from dptoolkit.federated.softmax import SoftmaxSteps
from dptoolkit.losses import Loss
from dptoolkit.solvers._ight import DpIght, ResolvedIght
from dptoolkit.solvers._sgd import Batches, DpSgdHt, ResolvedSgd, SgdRun
from dptoolkit.solvers.engine.batches import SCHEMES, check_sampling
from dptoolkit.solvers.engine.bounds import GradientBounds
from dptoolkit.solvers.engine.descent import ClippedRecords, IhtRun
from dptoolkit.solvers.engine.initial import InitialModel, Start, start_of
from dptoolkit.solvers.engine.secure import SecureIhtRun, secured
from dptoolkit.solvers.engine.secure_steps import rate_of
from dptoolkit.solvers.frame.plan import Plan, Sampling
from dptoolkit.solvers.frame.run import Run, written_out
from dptoolkit.solvers.frame.settings import check_classes_setting, class_labels, public_bound, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

ITERATIVE, SERVER = "iterative", "server"


class ClippedGradients(GradientBounds):
    """Gradients that are clipped to ``grad_norm``, whatever the loss; rows need no bound then."""

    def check(self) -> None:
        """Refuse a client without a bound on its gradients."""
        public_bound("grad_norm", self.grad_norm, "the largest L2 norm of one record's gradient")
        if self.row_norm is not None:
            magnitude("row_norm", self.row_norm)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """What all clients of a federation have in common; the fields of a federated solver besides its budget."""

    # Whether a step uses a random batch of the records, whose settings are ``rate``, ``sampling`` and ``batch_size``.
    has_batches: ClassVar[bool] = False
    # Fields that are no arguments of the solver, as they have one value.
    fixed: ClassVar[frozenset[str]] = frozenset()

    loss: str = setting(f"{losses.described(tuple(losses.LOSSES))}; softmax has labels 0, ..., classes-1.")
    sparsity: int = setting(
        "Number of features that are kept; for softmax the number of weights, of all classes together. Intercepts are "
        "kept besides."
    )
    rounds: int = setting("Number of rounds: in each the server sends its model, and every client replies with one.")
    local_steps: int = setting("Number of steps of a client in a round; every one of them is charged.")
    step_size: float = setting("Length of a local step.")
    grad_norm: float = setting("Public L2 bound to which each record's gradient is clipped, its intercept included.")
    threshold: str = setting(
        '"iterative" thresholds after every local step and at the server; "server" at the server only.',
        default=ITERATIVE,
    )
    classes: int | None = setting("Number of classes, public, for softmax; ``coef`` is (classes, d).", default=None)
    row_norm: float | None = setting("Public L2 bound of a row; longer rows are scaled down.", default=None)
    fit_intercept: bool = setting("Add a column of ones, bounded and charged like any other.", default=False)
    adjacency: Adjacency | str | None = setting(
        'Which datasets of a client are neighbours: "replace-one" or "zero-out".', default=Adjacency.REPLACE_ONE
    )
    initial: Any = setting(
        "Public model to start from: d weights, then that of an intercept (softmax: classes weights of feature 0, of "
        "feature 1, ...). By default all weights are 0.",
        default=None,
    )

    @property
    def loss_row(self) -> Loss:
        """The row of the loss table."""
        return losses.get(self.loss)

    @property
    def is_multiclass(self) -> bool:
        """Whether there is a weight for every class."""
        return self.loss_row.task == losses.MULTICLASS

    @property
    def class_count(self) -> int | None:
        """See ``Settings``."""
        return self.classes

    @property
    def reads_single(self) -> bool:
        """See ``Settings``; softmax makes its products with NumPy and SciPy."""
        return not self.is_multiclass

    @property
    def bounds(self) -> GradientBounds:
        """The public bounds of one record's gradient."""
        return ClippedGradients(self.loss_row, self.row_norm, self.grad_norm, fit_intercept=self.fit_intercept)

    @property
    def outputs(self) -> int:
        """The number of weights of a feature."""
        return int(self.classes or 1)

    def free(self, d: int) -> int:
        """The number of weights that compete for a place; those of intercepts come after them."""
        return d * self.outputs

    def width(self, d: int) -> int:
        """The number of all weights."""
        return (d + 1 if self.fit_intercept else d) * self.outputs

    def start(self) -> Start:
        """The public model that the first round starts from, as (support, values)."""
        return start_of(self.initial)

    @property
    def hostile(self) -> InitialModel | None:
        """The model by which a server learns most of one record, where it depends on nothing else; None elsewhere."""
        return None

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """(coef, intercept) from all weights: those of feature 0 first, an intercept's last."""
        table = weights.reshape(-1, self.outputs).T
        coef, intercept = (table[:, :-1], table[:, -1]) if self.fit_intercept else (table, np.zeros(len(table)))
        return (coef, intercept) if self.is_multiclass else (coef[0], float(intercept[0]))

    def outlook(self, plan: Plan) -> None:
        """None: what a federation learns does not follow from one client's noise."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Further notes for the guarantee."""
        return (
            "it is for one record of this client, against the server and everybody else; that the client takes part, "
            "its number of records, rounds, local steps and weights are public",
        )

    def labels(self, y: Any, n: int, label_values: Any = None) -> Array:
        """See ``Settings``; one-hot for softmax."""
        if self.is_multiclass:
            return class_labels(y, n, self.classes, label_values)
        return super().labels(y, n, label_values)  # type: ignore[misc]

    def participating(self, d: int) -> dict[str, Any]:
        """The values of what follows from the others, after all are checked: steps, what a client keeps, its start."""
        check_classes_setting(self.loss_row, self.classes)
        one_of("threshold", self.threshold, (ITERATIVE, SERVER))
        steps = whole("rounds", self.rounds, low=1) * whole("local_steps", self.local_steps, low=1)
        sparsity, free = whole("sparsity", self.sparsity, low=1), self.free(d)
        if sparsity > free:
            what = "d * classes" if self.is_multiclass else "d"
            raise invalid("sparsity", sparsity, f"<= {what}={free}", "It counts the weights that are kept.")
        magnitude("step_size", self.step_size)
        self.bounds.check()
        initial = InitialModel.of(self.initial, self.width(d), free, sparsity)
        kept = sparsity if self.threshold == ITERATIVE else free
        return {"steps": steps, "sparsity": kept, "initial": initial, "adaptive": False}

    def softmax_run(
        self, plan: Plan, rows: Rows, y: Array, counts: Any, steps: int, size: float, sampling: str
    ) -> SoftmaxSteps:
        """The steps of a client with several classes, on batches of ``size``; NaN for all its records."""
        rows, y = written_out(rows, y, counts)
        bounded, _, caps = self.bounds.clip(rows, np.zeros(0))
        # ``adaptive`` is False, and so the noise is the plan's at any weights.
        iteration = Batches(steps, size, self.step_size, self.sparsity, 0.0, sampling, self.fit_intercept)
        if plan.secure is not None:
            rate = rate_of(plan.releases[0])
            return SecureSoftmaxSteps(bounded, y, caps, iteration, plan.secure.first, rate, start_of(self.initial))
        return SoftmaxSteps(bounded, y, caps, iteration, plan.noise, start_of(self.initial))


@dataclass(frozen=True, kw_only=True)
class DpFedSgdHt(Participation, DpSgdHt):
    """Private federated sparse learning: clients make noisy mini-batch steps, and a server averages their models.

    Privacy
    -------
    Query of a client, once a local step: (1/b) sum over a secret batch of gradients of at most C = grad_norm in L2, b
    the expected batch size. Sensitivity 2 C/b (replace-one) or C/b (zero-out), between datasets of ONE client that
    differ in one record. Event of client i: Repeated(Subsampled(Gaussian(scale_i / sensitivity_i), sampling, rate),
    rounds * local_steps). Every client draws its own batches and noise; its noise is calibrated for its own number of
    records. Thresholds, averages and what other clients send are computed from releases, and cost nothing. The server,
    the other clients and the public all see functions of these releases, so each client's guarantee holds against all
    of them; the federation's is the worst client's, because its records are at one client only. Public: n, d, all
    arguments, that is the clients' numbers of records, weights and rounds; all messages. The batches are not.
    """

    solver: ClassVar[str] = "dp_fed_sgd_ht"
    has_batches: ClassVar[bool] = True

    rate: float = setting(
        "Share of a client's records in a batch: the probability of each for Poisson sampling, and of fixed batches "
        "their size over n, rounded to at least one record."
    )
    sampling: str = setting(
        '"poisson", a coin for every record, or "without-replacement", batches of fixed size. Small batches need about '
        "half the noise with Poisson sampling. Sums are divided by the expected size.",
        default=POISSON,
    )
    # Filled in; no arguments of the public function.
    batch_size: float | None = setting("Expected number of records of a batch.", default=None)  # type: ignore[assignment]

    def resolved(self, n: int, d: int) -> ResolvedFedSgd:
        """See ``Settings``."""
        return self.settled(ResolvedFedSgd, **self.batched(n, d))

    def batched(self, n: int, d: int) -> dict[str, Any]:
        """The values of what follows from the others, for a client of n records."""
        sampling = one_of("sampling", self.sampling, SCHEMES)
        adjacency = check_sampling(sampling, self.adjacency)
        rate = real("rate", self.rate, low=0.0, high=1.0, open_low=True)
        size = rate * n if sampling == POISSON else max(1, round(rate * n))
        return self.participating(d) | {"adjacency": adjacency, "batch_size": size}

    def validated_rows(self, X: Any, n_features: int | None = None) -> Rows:
        """See ``Settings``; softmax takes dense rows as they are."""
        return check_rows(X, n_features) if self.is_multiclass else super().validated_rows(X, n_features)


@dataclass(frozen=True, kw_only=True)
class ResolvedFedSgd(DpFedSgdHt, ResolvedSgd):
    """The settings of a client of ``dp_fed_sgd_ht`` in a plan."""

    adjacency: Adjacency
    steps: int
    batch_size: float  # type: ignore[assignment]

    @property
    def has_lazy_steps(self) -> bool:  # type: ignore[override]
        """See ``Resolved``; softmax forms whole gradients."""
        return not self.is_multiclass

    def sampled(self, size: float, n: int) -> Sampling:
        """Fresh batches of n records."""
        return Sampling(self.sampling, self.rate if self.sampling == POISSON else size / n, self.adjacency)

    def published(self, n: int, d: int) -> Published:
        """The noise of Section 6.4: TensorFlow Privacy's for this rate and number of steps."""
        from dptoolkit import published

        rate = self.sampled(self.batch_size, n).rate
        return published.fed_sgd_ht_section_6_4(
            self.batch_size, rate, self.steps, self.grad_norm, self.epsilon, self.delta
        )

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> SgdRun | SoftmaxSteps:  # type: ignore[override]
        """See ``Resolved``."""
        if self.is_multiclass:
            return self.softmax_run(plan, rows, y, counts, self.steps, self.batch_size, self.sampling)
        return super().bind(plan, rows, y, counts)


class _Unbounded(ClippedGradients):
    """Gradients that nothing bounds."""

    def check(self) -> None:
        """Nothing is refused."""

    def clip(self, rows: Rows, labels: Array) -> tuple[Rows, Array, Array | None]:
        """The records as they are, with an intercept column if asked for.

        Privacy
        -------
        NOT private: one record can move the mean gradient however far.
        """
        return with_intercept(rows, 1.0) if self.fit_intercept else rows, labels, None


@dataclass(frozen=True, kw_only=True)
class FedSgdHt(DpFedSgdHt):
    """The settings of ``fed_sgd_ht``, which clips nothing and draws no noise; no plan is made of them.

    Privacy
    -------
    NOT private.
    """

    solver: ClassVar[str] = "fed_sgd_ht"

    epsilon: float = setting("Infinite: there is no budget.", default=math.inf)
    grad_norm: float = setting("Infinite: nothing is clipped.", default=math.inf)

    @property
    def bounds(self) -> GradientBounds:
        """None hold."""
        return _Unbounded(self.loss_row, fit_intercept=self.fit_intercept)

    def resolved(self, n: int, d: int) -> ResolvedOpenSgd:
        """See ``Settings``."""
        return self.settled(ResolvedOpenSgd, **self.batched(n, d))


@dataclass(frozen=True, kw_only=True)
class ResolvedOpenSgd(FedSgdHt, ResolvedFedSgd):
    """The settings of a client of ``fed_sgd_ht``, with everything filled in."""


@dataclass(frozen=True, kw_only=True)
class DpFedGdHt(Participation, DpIght):
    """Private federated sparse learning with full gradients: ``dp_fed_sgd_ht`` without batches.

    Privacy
    -------
    Query of a client, once a local step: the mean of all its gradients, each at most C = grad_norm in L2. Sensitivity
    2 C/n (replace-one) or C/n (zero-out), between datasets of ONE client that differ in one record. Event of client i:
    Repeated(Gaussian(scale_i / sensitivity_i), rounds * local_steps). Trust and composition are those of
    ``dp_fed_sgd_ht``. Public: n, d, all arguments, that is the clients' numbers of records, weights and rounds; all
    messages.
    """

    solver: ClassVar[str] = "dp_fed_gd_ht"

    def resolved(self, n: int, d: int) -> ResolvedFedGd:
        """See ``Settings``."""
        return self.settled(ResolvedFedGd, **self.participating(d))


@dataclass(frozen=True, kw_only=True)
class ResolvedFedGd(DpFedGdHt, ResolvedIght):
    """The settings of a client of ``dp_fed_gd_ht`` in a plan."""

    adjacency: Adjacency
    steps: int

    def published(self, n: int, d: int) -> Published:
        """The noise of Section 6.4: TensorFlow Privacy's for batches of all records."""
        from dptoolkit import published

        return published.fed_sgd_ht_section_6_4(n, 1.0, self.steps, self.grad_norm, self.epsilon, self.delta)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``."""
        return secured(plan, self, self.noise_law(plan))

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> Run:
        """See ``Resolved``."""
        if self.is_multiclass:
            return self.softmax_run(plan, rows, y, counts, self.steps, math.nan, WITHOUT_REPLACEMENT)
        bounded, labels, caps = self.bounds.clip(rows, y)
        data = ClippedRecords(bounded, labels, self.loss_row, math.inf, caps, counts)
        if plan.secure is not None:
            return SecureIhtRun(data, self.iteration, plan.secure.first, start_of(self.initial))
        return IhtRun(data, self.iteration, self.noise_law(plan), start_of(self.initial))


# Fields that follow from others, or that gradients clipped to grad_norm leave without a use.
DERIVED = frozenset({"steps", "batch_size", "label_bound", "margin_bound", "adaptive", "l2"})
