"""The settings of clients that train the paper's network: those of the linear models, with other steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dptoolkit._validate import invalid, whole
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_rows
from dptoolkit.federated import cnn
from dptoolkit.federated.settings import (
    DpFedGdHt,
    DpFedSgdHt,
    FedSgdHt,
    Participation,
    ResolvedFedGd,
    ResolvedFedSgd,
    ResolvedOpenSgd,
)
from dptoolkit.federated.softmax import SoftmaxSteps
from dptoolkit.solvers._sgd import Batches
from dptoolkit.solvers.engine.initial import InitialModel, Start
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.secure import not_secure
from dptoolkit.solvers.frame.settings import setting
from dptoolkit.types import Array

# The last biases of the model by which a server learns most of one record: two classes are likely, the others not.
_HOSTILE = 3.0


@dataclass(frozen=True, kw_only=True)
class CnnParticipation(Participation):
    """What all clients of a federation that trains the network have in common."""

    # No arguments: the network has a loss, classes and biases of its own, and images have no row bound.
    fixed: ClassVar[frozenset[str]] = frozenset({"loss", "classes", "row_norm", "fit_intercept"})

    loss: str = setting("The cross-entropy of ten classes.", default="softmax")
    classes: int | None = setting("Ten.", default=cnn.CLASSES)
    sparsity: int = setting("Number of the 44,426 weights, biases included, that are kept.")
    grad_norm: float = setting("Public L2 bound to which each record's gradient is clipped, over all layers together.")
    initial: Any = setting(
        "Public model to start from: 44,426 weights, of which at most ``sparsity`` are not 0.", default=None
    )
    initial_seed: int = setting(
        "Public seed of the weights to start from, of which the largest are kept; for ``initial=None``.", default=0
    )

    def free(self, d: int) -> int:
        """See ``Participation``; biases compete like all others."""
        return cnn.SIZE

    def width(self, d: int) -> int:
        """See ``Participation``."""
        return cnn.SIZE

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """All weights as ``coef``; ``cnn.scores`` predicts."""
        return weights, 0.0

    def start(self) -> Start:
        """See ``Participation``."""
        from dptoolkit.kernels.threshold import largest

        if self.initial is not None:
            return super().start()
        weights = cnn.initial_weights(self.initial_seed)
        places = largest(weights, self.sparsity)
        return places.astype("int64"), weights[places]

    @property
    def hostile(self) -> InitialModel:
        """See ``Participation``; a blank image has no activations then, and the gradient of the last biases alone."""
        values = [_HOSTILE] * 2 + [-_HOSTILE] * (cnn.CLASSES - 2)
        return InitialModel([(cnn.LAST_BIASES + k, value) for k, value in enumerate(values)])

    def validated_rows(self, X: Any, n_features: int | None = None) -> Rows:
        """See ``Settings``; pixels are dense."""
        rows = check_rows(X, n_features)
        return Rows(rows.matrix.toarray(), False, rows.is_marked) if rows.is_sparse else rows

    def participating(self, d: int) -> dict[str, Any]:
        """See ``Participation``."""
        if d != cnn.PIXELS:
            raise invalid("d", d, f"{cnn.PIXELS}, the pixels of an image of {cnn.SIDE} x {cnn.SIDE}")
        whole("initial_seed", self.initial_seed)
        if Adjacency.parse(self.adjacency) is not Adjacency.REPLACE_ONE:
            # A blank image has a gradient too, so it is not nothing.
            raise invalid("adjacency", str(self.adjacency), "'replace-one' for the network")
        return super().participating(d)

    def softmax_run(
        self, plan: Plan, rows: Rows, y: Array, counts: Any, steps: int, size: float, sampling: str
    ) -> SoftmaxSteps:
        """The steps of a client that trains the network; NaN for all its records."""
        from dptoolkit.solvers.frame.run import written_out

        rows, y = written_out(rows, y, counts)
        iteration = Batches(steps, size, self.step_size, self.sparsity, 0.0, sampling, False)
        return cnn.CnnSteps(rows, y, self.grad_norm, iteration, plan.noise, self.start())

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``.

        Privacy
        -------
        Refused: a network's gradients are not sums of integers.
        """
        raise not_secure(f"for {self.solver}")  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class DpFedSgdHtCnn(CnnParticipation, DpFedSgdHt):
    """Private federated learning of the paper's network: clients make noisy mini-batch steps on its sparse weights.

    Privacy
    -------
    Query, sensitivity and event of a client are those of ``dp_fed_sgd_ht``: (1/b) sum over a secret batch of gradients,
    each clipped to C = grad_norm over all 44,426 weights, with noise on all of them. Adjacency: replace-one, of one
    record of ONE client. Public: all arguments, the clients' numbers of records, all messages, and the weights to start
    from.
    """

    solver: ClassVar[str] = "dp_fed_sgd_ht_cnn"

    def resolved(self, n: int, d: int) -> ResolvedFedSgdCnn:
        """See ``Settings``."""
        return self.settled(ResolvedFedSgdCnn, **self.batched(n, d))


@dataclass(frozen=True, kw_only=True)
class ResolvedFedSgdCnn(DpFedSgdHtCnn, ResolvedFedSgd):
    """The settings of a client of ``dp_fed_sgd_ht_cnn`` in a plan."""

    adjacency: Adjacency
    steps: int
    batch_size: float


@dataclass(frozen=True, kw_only=True)
class FedSgdHtCnn(CnnParticipation, FedSgdHt):
    """The settings of ``fed_sgd_ht_cnn``, which clips nothing unless told so, and draws no noise.

    Privacy
    -------
    NOT private.
    """

    solver: ClassVar[str] = "fed_sgd_ht_cnn"

    grad_norm: float = setting("Infinite: nothing is clipped.", default=math.inf)

    def resolved(self, n: int, d: int) -> ResolvedOpenSgdCnn:
        """See ``Settings``."""
        return self.settled(ResolvedOpenSgdCnn, **self.batched(n, d))


@dataclass(frozen=True, kw_only=True)
class ResolvedOpenSgdCnn(FedSgdHtCnn, ResolvedOpenSgd):
    """The settings of a client of ``fed_sgd_ht_cnn``, with everything filled in."""


@dataclass(frozen=True, kw_only=True)
class DpFedGdHtCnn(CnnParticipation, DpFedGdHt):
    """Private federated learning of the paper's network with full gradients: ``dp_fed_sgd_ht_cnn`` without batches.

    Privacy
    -------
    Query, sensitivity and event of a client are those of ``dp_fed_gd_ht``, with gradients clipped to C = grad_norm over
    all 44,426 weights and noise on all of them. Adjacency: replace-one. Public: as for ``dp_fed_sgd_ht_cnn``.
    """

    solver: ClassVar[str] = "dp_fed_gd_ht_cnn"

    def resolved(self, n: int, d: int) -> ResolvedFedGdCnn:
        """See ``Settings``."""
        return self.settled(ResolvedFedGdCnn, **self.participating(d))


@dataclass(frozen=True, kw_only=True)
class ResolvedFedGdCnn(DpFedGdHtCnn, ResolvedFedGd):
    """The settings of a client of ``dp_fed_gd_ht_cnn`` in a plan."""

    adjacency: Adjacency
    steps: int
