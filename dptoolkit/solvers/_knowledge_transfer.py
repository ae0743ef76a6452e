"""Knowledge transfer (DPSL-KT): a teacher answers public queries with noise, a sparse student learns from the answers.

Wang and Gu 2020. Their teacher is fitted without noise under a sparsity constraint, and one record can flip its
support: the noise of their Theorem 4.3 hides far too little. The teachers here move by no more than the noise is made
for: by default the support is chosen privately first, and the teacher is a ridge on that public support.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import invalid, magnitude, one_of, real, whole
from dptoolkit.accounting import Composed, Gaussian, Repeated, calibrate
from dptoolkit.accounting.events import Event
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows
from dptoolkit.mechanisms.stability import threshold
from dptoolkit.solvers import _knowledge_transfer_features as public_features
from dptoolkit.solvers._ight import DpIght, ResolvedIght
from dptoolkit.solvers._knowledge_transfer_features import GivenFeatures
from dptoolkit.solvers._knowledge_transfer_secure import SecureTransferRun, secured_transfer
from dptoolkit.solvers._knowledge_transfer_teachers import (
    DP_IGHT,
    IGHT,
    RIDGE,
    SUPPORT,
    TEACHERS,
    TESTED,
    Ridge,
    TransferRun,
    best_l2,
    scores_range,
)
from dptoolkit.solvers.engine.bounds import EntryBounds
from dptoolkit.solvers.engine.objective import ROUNDING
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.plan import (
    GAUSSIAN,
    GUMBEL_MAXIMUM,
    STABILITY_TEST,
    TOLERANCE,
    UNBOUNDED,
    Plan,
    Release,
    gaussian_multiplier,
    with_smallest_noise,
)
from dptoolkit.solvers.frame.run import written_out
from dptoolkit.solvers.frame.settings import PUBLISHED, Resolved, Settings, check_sparsity, public_bound, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

# The number of public rows for every feature. On a support it is so large that the noise is a tenth above that of
# orthogonal features; on all features it is what fits into memory.
_ROWS_ON_SUPPORT, _ROWS_ON_ALL = 100, 4
# The steps of the paper's own teacher.
_TEACHER_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class KnowledgeTransfer(Settings):
    """Private sparse regression by knowledge transfer: noisy answers of a teacher to public queries, and a student.

    Privacy
    -------
    Teacher "support": the support is the ``sparsity`` largest |mean gradient at 0|, entries clipped to feature_bound
    (or rows to row_norm); one record moves scores against each other by 2 R feature_bound/n (or sqrt(2) R row_norm/n),
    R the largest slope at 0, twice that for replace-one. Event: ``sparsity`` ExponentialMechanisms (one draw of Gumbel
    noise). The ridge teacher on that public support moves by at most (2L + 2 tau)/(n l2) (replace-one; L for
    zero-out), tau being its certified tolerance, and its answers by that times an upper bound of the operator norm of
    the public features. Event: Gaussian. "ridge": the same on all features, without a choice. "dp-ight": the teacher is
    ``dp_ight`` and private itself, so its answers need no noise. "propose-test-release": the largest scores are taken
    as they are if their noisy gap shows that one record does not change them. Event: Laplace, and the test's delta. The
    student sees public features and noisy answers only. All composed, to at most the budget. Public: n, d, all
    arguments, the features, the support.
    """

    solver: ClassVar[str] = "knowledge_transfer"

    loss: str = setting('"logistic", "huber" or "squared".')
    sparsity: int = setting("Number of features of the student, and of the support of a teacher.")
    row_norm: float | None = setting(
        "Public L2 bound of the rows that the teacher uses, on a support that of the chosen features; longer rows "
        "are scaled down. By default it follows from feature_bound.",
        default=None,
    )
    feature_bound: float | None = setting(
        "Public bound at which entries of X are clipped. Without it, rows are clipped to row_norm for the choice of "
        "the support too.",
        default=None,
    )
    label_bound: float | None = setting("Public bound at which labels are clipped, for the squared loss.", default=None)
    teacher: str | None = setting(
        'The teacher: "support" (default), a ridge on a support that is chosen privately; "ridge", a ridge on '
        'all features; "dp-ight"; or "propose-test-release". The published calibration uses the paper\'s own, '
        '"ight".',
        default=None,
    )
    l2: float | None = setting(
        "Weight of |w|^2/2 beside the MEAN loss of a ridge; by default it balances shrinkage and noise.", default=None
    )
    radius: float | None = setting(
        "Radius of an L2 ball to which a ridge is constrained; by default there is none.",
        default=None,
    )
    features: Any = setting(
        'Public rows: "gaussian", "uniform" on (-1, 1), "identity", or a matrix of d columns that does not depend on '
        'the records. By default "gaussian" on a support and "identity" on all features.',
        default=None,
    )
    m: int | None = setting(
        "Number of public rows; by default 100 per feature on a support, and 4 per feature on all features.",
        default=None,
    )
    feature_seed: int = setting("Public seed of the public features; it has nothing to do with the noise.", default=0)
    selection_share: float = setting(
        "Share of epsilon and delta that the choice of the support would need alone.", default=0.6
    )
    student_steps: int = setting("Number of hard-thresholding steps of the student.", default=100)
    steps: int | None = setting('Number of steps of the teachers "dp-ight" and "ight".', default=None)
    step_size: float | None = setting("Length of a step of these teachers.", default=None)
    grad_norm: float | None = setting('Public bound of a record\'s gradient, for the teacher "dp-ight".', default=None)

    # --- what follows from the choices ---------------------------------------------------------------------------

    @property
    def loss_row(self) -> losses.Loss:
        """The row of the loss table."""
        return losses.get(self.loss, ("logistic", "huber", "squared"))

    @property
    def on_support(self) -> bool:
        """Whether the student works on a public support of ``sparsity`` features."""
        return self.teacher in (SUPPORT, DP_IGHT, TESTED)

    @property
    def has_ridge(self) -> bool:
        """Whether the teacher is a ridge."""
        return self.teacher in (SUPPORT, RIDGE, TESTED)

    def feature_count(self, d: int) -> int:
        """The number of features that public rows have."""
        return self.sparsity if self.on_support else d

    def _ridge(self, n: int, d: int, row_norm: float, l2: float) -> Ridge:
        """A ridge teacher's public numbers."""
        adjacency = Adjacency.parse(self.adjacency)
        bounds = self.label_bound, self.radius
        return Ridge(self.loss_row, n, self.feature_count(d), row_norm, l2, *bounds, adjacency)

    def dp_ight(self) -> DpIght:
        """The settings of the private teacher; predictions are clipped like labels, and the noise is constant."""
        is_clipped = not self.loss_row.is_bounded and self.grad_norm is None
        return DpIght(
            epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency, loss=self.loss, sparsity=self.sparsity,
            row_norm=self.row_norm, grad_norm=self.grad_norm, label_bound=self.label_bound if is_clipped else None,
            margin_bound=self.label_bound if is_clipped else None, steps=self.steps, step_size=self.step_size,
            adaptive=False,
        )  # fmt: skip

    # --- checks and defaults -------------------------------------------------------------------------------------

    def resolved(self, n: int, d: int) -> ResolvedTransfer:
        """See ``Settings``."""
        losses.get(self.loss, losses.CURVED)
        check_sparsity(self.sparsity, d)
        real("selection_share", self.selection_share, low=0.0, high=1.0, open_low=True, open_high=True)
        whole("student_steps", self.student_steps, low=1)
        whole("feature_seed", self.feature_seed, low=0)
        settings = replace(self, teacher=self._teacher())
        settings._refuse_unused()
        bounds = settings._bounds(d)
        bounded = replace(settings, **bounds)
        l2 = bounded._l2(n, d, bounds["row_norm"])
        descent = bounded._descent(n, d, bounds["row_norm"], l2)
        return bounded.settled(ResolvedTransfer, l2=l2, **descent, **bounded._public_features(n, d))

    def _teacher(self) -> str:
        if self.calibration != PUBLISHED:
            why = "The paper's own teacher moves by its size when one record flips its support."
            return one_of("teacher", SUPPORT if self.teacher is None else self.teacher, TEACHERS, why)
        if self.teacher not in (None, IGHT):
            raise invalid("teacher", self.teacher, f"{IGHT!r} or None with calibration='published'")
        if self.adjacency != Adjacency.REPLACE_ONE:
            raise invalid("adjacency", str(self.adjacency), "'replace-one' with calibration='published'")
        return IGHT

    def _refuse_unused(self) -> None:
        ridge, is_iterated = self.has_ridge, self.teacher in (DP_IGHT, IGHT)
        uses = {
            "l2": (ridge or self.teacher == IGHT, "a ridge"), "radius": (ridge, "a ridge"),
            "steps": (is_iterated, "'dp-ight'"), "step_size": (is_iterated, "'dp-ight'"),
            "grad_norm": (self.teacher == DP_IGHT, "'dp-ight'"),
            "feature_bound": (self.teacher != DP_IGHT, "a ridge"),
            "label_bound": (not self.loss_row.is_bounded and self.grad_norm is None,
            "the squared loss without grad_norm"),
        }  # fmt: skip
        for name, (is_used, where) in uses.items():
            if getattr(self, name) is not None and not is_used:
                raise invalid(name, getattr(self, name), "None here", f"It works for {where}: leave it out.")

    def _bounds(self, d: int) -> dict[str, Any]:
        feature, norm, label = self.feature_bound, self.row_norm, self.label_bound
        if feature is not None:
            magnitude("feature_bound", feature)
            norm = math.sqrt(self.feature_count(d)) * feature * (1 + 1e-12) if norm is None else norm
        if self.teacher == IGHT and feature is None:
            feature = public_bound("feature_bound", feature, "the largest |entry| of a row, which the theorem is about")
        if not self.loss_row.is_bounded and self.grad_norm is None:
            label = public_bound("label_bound", label, "the largest |label|")
        if self.radius is not None:
            magnitude("radius", self.radius)
        norm = public_bound("row_norm", norm, "the L2 norm of a row on the teacher's features")
        return {"feature_bound": feature, "row_norm": norm, "label_bound": label}

    def _l2(self, n: int, d: int, row_norm: float) -> float | None:
        if self.l2 is not None:
            return magnitude("l2", self.l2)
        if self.teacher == DP_IGHT:
            return None
        if self.teacher == IGHT:
            from dptoolkit import published

            entry = (self.feature_bound or 0.0) * (self.label_bound or 1.0)
            return published.transfer_regularization(n, self.sparsity, max(d, 2), entry, self.epsilon, self.delta)
        rest = 1.0 if self.teacher == RIDGE else 1 - self.selection_share
        mu = rules.budget_mu(rest * self.epsilon, rest * self.delta)
        # A student that chooses among d features keeps those whose noise is largest, so its weights carry more noise
        # than those of a fixed support.
        noisy = self.sparsity if self.on_support else 2 * self.sparsity * math.log(1 + d / self.sparsity)
        l2 = best_l2(self._ridge(n, d, row_norm, 1.0), mu, noisy)
        return magnitude("l2", l2, "Give l2: where row_norm is extreme, no rule is known.")

    def _descent(self, n: int, d: int, row_norm: float, l2: float | None) -> dict[str, Any]:
        """The steps of a teacher that iterates."""
        if self.teacher == DP_IGHT:
            inner = self.dp_ight().resolved(n, d)
            return {"steps": inner.steps, "step_size": inner.step_size, "grad_norm": inner.grad_norm}
        if self.teacher != IGHT:
            return {}
        steps = _TEACHER_STEPS if self.steps is None else whole("steps", self.steps, low=1)
        longest = 1 / (self.loss_row.smoothness * row_norm**2 + (l2 or 0.0))
        step = longest if self.step_size is None else magnitude("step_size", self.step_size)
        return {"steps": steps, "step_size": step}

    def _public_features(self, n: int, d: int) -> dict[str, Any]:
        features, width = self.features, self.feature_count(d)
        if features is None:
            features = "gaussian" if self.on_support or self.teacher == IGHT else "identity"
        if not isinstance(features, str):
            own = GivenFeatures.of(features, d)
            if self.m not in (None, own.matrix.shape[0]):
                raise invalid("m", self.m, f"None or {own.matrix.shape[0]}, the rows of the given features")
            return {"features": own, "m": self._enough(own.matrix.shape[0])}
        one_of("features", features, public_features.NAMES, "Or give a matrix.")
        if features == "identity":
            if self.m not in (None, width):
                raise invalid("m", self.m, f"None or {width} for features='identity'", "It has a row for each feature.")
            return {"features": features, "m": width}
        usual = (_ROWS_ON_SUPPORT if self.on_support else _ROWS_ON_ALL) * width
        m = whole("m", (n if self.teacher == IGHT else usual) if self.m is None else self.m, low=1)
        self._enough(m)
        if m * width > public_features.MOST_ENTRIES:
            repair = f"{m} x {width} would be too large. Use fewer rows, features='identity', or a sparse matrix."
            raise invalid("m", m, f"<= {public_features.MOST_ENTRIES // width} for {width} features", repair)
        return {"features": features, "m": m}

    def _enough(self, m: int) -> int:
        if m < self.sparsity:
            repair = "Fewer public rows than features cannot determine the student."
            raise invalid("m", m, f">= sparsity={self.sparsity} public rows", repair)
        return m

    def to_dict(self) -> dict[str, Any]:
        """See ``Settings``; a given matrix is named by its hash, and must be given again."""
        record = super().to_dict()
        is_matrix = isinstance(self.features, GivenFeatures)
        return record | ({"features": repr(self.features)} if is_matrix else {})


@dataclass(frozen=True, kw_only=True)
class ResolvedTransfer(Resolved, KnowledgeTransfer):
    """The settings of ``knowledge_transfer`` in a plan.

    A teacher that is ``dp_ight`` has no l2, one that does not iterate has no steps and no step size.
    """

    row_norm: float
    teacher: str
    m: int

    @property
    def iterations(self) -> int:
        """See ``Resolved``."""
        return self.steps or 1

    @property
    def label_limit(self) -> float | None:
        """See ``Resolved``."""
        return self.label_bound

    @property
    def penalty(self) -> float:
        """The weight of |w|^2/2 beside the mean loss; 0 where the teacher has none."""
        return self.l2 or 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """See ``Settings``."""
        if self.teacher != IGHT:
            return ()
        return (
            "nothing that could be proved: one record can flip the support of the sparse teacher, which then moves by "
            "its own size, and Theorem 4.3 has no bound of that (docs/knowledge_transfer.md)",
        )

    def ridge(self, n: int, d: int) -> Ridge:
        """The ridge teacher's public numbers."""
        return self._ridge(n, d, self.row_norm, self.penalty)

    def private_teacher(self) -> ResolvedIght:
        """The settings of the private teacher, whose steps were filled in with the others."""
        return self.dp_ight().settled(ResolvedIght)

    def matrix(self, d: int, columns: NDArray[np.intp] | None = None) -> Any:
        """The public features, on a support those of its ``columns``."""
        if isinstance(self.features, GivenFeatures):
            whole_matrix = self.features.matrix
            return whole_matrix if columns is None else whole_matrix[:, columns]
        return public_features.draw(*self._draw(d))

    def norm(self, d: int) -> float:
        """An upper bound of the operator norm of the public features, whatever the support."""
        if isinstance(self.features, GivenFeatures):
            return self.features.norm
        return public_features.draw_norm(*self._draw(d))

    def _draw(self, d: int) -> tuple[str, int, int, int]:
        return self.features, self.m, self.feature_count(d), self.feature_seed

    # --- the releases --------------------------------------------------------------------------------------------

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The answers, and the choice of the support; or the private teacher's gradients."""
        if self.teacher == DP_IGHT:
            return self.private_teacher().releases(n, d, None)
        if paper is not None:
            paper_movement = 2 * math.sqrt(self.sparsity) * self._gamma() / (n * self.penalty)
            return (Release("answers", UNBOUNDED, self.norm(d) * paper_movement, paper.scales["answer"], 1),)
        choice = self._choice(n)
        movement = self.answers_movement(n, d)
        multiplier = _rest(tuple((r.event, r.count) for r in choice), self.epsilon, self.delta)
        return (Release("answers", GAUSSIAN, movement, movement * multiplier * ROUNDING, 1), *choice)

    def answers_movement(self, n: int, d: int, columns: NDArray[np.intp] | None = None) -> float:
        """How far one record moves the answers: to all public features, or to their ``columns``."""
        matrix = self.matrix(d, columns)
        norm = self.norm(d) if columns is None else public_features.operator_norm(matrix)
        return self.ridge(n, d).answers_movement(norm, public_features.squares(matrix))

    def _choice(self, n: int) -> tuple[Release, ...]:
        """How the support is chosen: nothing, top scores by Gumbel noise, or a test of the exact ones."""
        if self.teacher == RIDGE:
            return ()
        score_range = scores_range(
            self.loss_row, self.adjacency, n, self.row_norm, self.feature_bound, self.label_bound
        )
        epsilon, delta = self.selection_share * self.epsilon, self.selection_share * self.delta
        if self.teacher == SUPPORT:
            scale = score_range * _per_range(self.sparsity, epsilon, delta)
            return (Release("support", GUMBEL_MAXIMUM, score_range, scale, self.sparsity),)
        scale = 0.0 if math.isinf(epsilon) else score_range / epsilon * ROUNDING
        least = 0.0 if scale == 0 else threshold(score_range, scale, delta)
        return (Release("stability of the support", STABILITY_TEST, score_range, scale, 1, threshold=least),)

    def _gamma(self) -> float:
        """The paper's bound on the entries of a record's gradient at the minimiser."""
        assert self.feature_bound is not None, "the teacher of the published calibration has one"
        # Losses with bounded slopes have no bound of the labels; their value at 0 takes its place.
        label = math.sqrt(2 * math.log(2)) if self.label_bound is None else self.label_bound
        bounds = EntryBounds(self.loss_row, self.feature_bound, self.label_bound)
        return bounds.entry(math.sqrt(self.sparsity) * label / math.sqrt(self.penalty))

    def published(self, n: int, d: int) -> Published:
        """Theorem 4.3 at the covariance of the named features, or of the given ones."""
        from dptoolkit import published

        norm = public_features.COVARIANCE.get(self.features) if isinstance(self.features, str) else None
        covariance = self.norm(d) ** 2 / self.m if norm is None else norm
        return published.kt_theorem_4_3(
            n, self.m, self.sparsity, d, self._gamma(), self.penalty, self.epsilon, self.delta, covariance
        )

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``."""
        return secured_transfer(plan)

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> TransferRun:
        """See ``Resolved``."""
        kind = TransferRun if plan.secure is None else SecureTransferRun
        return kind(plan, *written_out(rows, y, counts))


knowledge_transfer = private_solver(KnowledgeTransfer)


@functools.lru_cache(maxsize=256)
def _per_range(selections: int, epsilon: float, delta: float) -> float:
    """The scale of Gumbel noise, per range, at which that many selections keep the budget."""
    return with_smallest_noise(Release("support", GUMBEL_MAXIMUM, 1.0, 0.0, selections), epsilon, delta).scale


@functools.lru_cache(maxsize=256)
def _rest(choice: tuple[tuple[Event, int], ...], epsilon: float, delta: float) -> float:
    """The noise per sensitivity of one Gaussian release with which all together keep the budget."""
    if not choice or math.isinf(epsilon):
        return gaussian_multiplier(1, epsilon, delta)
    choices = Composed(*(Repeated(event, count) for event, count in choice))

    def event(multiplier: float) -> Event:
        return Composed(choices, Gaussian(multiplier))

    guess = 2 * gaussian_multiplier(1, epsilon, delta)
    return calibrate(event, epsilon, delta, relative_tolerance=TOLERANCE, guess=guess)
