"""Two stages: a private choice of features by the votes of blocks of records, then objective perturbation on them.

Kifer, Smith and Thakurta 2012. Every block of records votes for the features of its own LASSO, which need not be
private: a record is in one block, so it changes one block's votes. The private choice of the features with most votes
makes the support public, and the second stage works in that many dimensions, whatever d is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, real, whole
from dptoolkit.accounting import Composed, Repeated, calibrate, gaussian
from dptoolkit.accounting.events import Event
from dptoolkit.data import Rows
from dptoolkit.losses import Loss
from dptoolkit.mechanisms.objective import Squeeze
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import IntegerSelection
from dptoolkit.solvers._objective_perturbation import (
    LINEAR_LAWS,
    PerturbedObjective,
    PerturbedRun,
    ResolvedPerturbed,
    events,
    first_guess,
)
from dptoolkit.solvers.engine.objective import ROUNDING
from dptoolkit.solvers.engine.secure_vertices import SelectionNoise
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.plan import GAUSSIAN_TERM, GUMBEL_MAXIMUM, TOLERANCE, Plan, Release, smallest_noise
from dptoolkit.solvers.frame.run import Run, Trials, group_equal, written_out
from dptoolkit.solvers.frame.secure import SecurePlan, secure_stream
from dptoolkit.solvers.frame.settings import Resolved, check_sparsity, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

# One record changes the votes of one block: some counts rise by 1, others fall by 1.
VOTE_RANGE = 2.0
# The second stages of this many supports are kept for later fits.
_MOST_SUPPORTS = 64


@dataclass(frozen=True, kw_only=True)
class TwoStage(PerturbedObjective):
    """Private sparse regression: features by the votes of blocks of records, weights by objective perturbation.

    Privacy
    -------
    Three releases. The support: record i is in block i mod ``blocks``, so under either adjacency neighbours differ in
    one block's set of at most ``sparsity`` features; each count moves by at most 1, some up and some down, a range of
    2. Event: ``sparsity`` ExponentialMechanisms of epsilon 2/scale (one draw of Gumbel noise, the largest kept). Then
    the two releases of ``objective_perturbation`` on the rows restricted to that public support and clipped to
    ``row_norm``. All composed, to at most the budget. Public: n, d, all arguments, the support.
    """

    solver: ClassVar[str] = "two_stage"

    sparsity: int = setting("Number of features that are kept.")
    blocks: int = setting(
        "Number of blocks of records, each of which votes for features; record i is in block i mod blocks."
    )
    vote_share: float = setting("Share of epsilon and delta that the votes would need alone.", default=0.5)

    def resolved(self, n: int, d: int) -> ResolvedTwoStage:
        """See ``Settings``."""
        check_sparsity(self.sparsity, d)
        blocks = whole("blocks", self.blocks, low=1)
        if blocks > n:
            raise invalid("blocks", blocks, f"<= n={n}", "Every block needs a record.")
        real("vote_share", self.vote_share, low=0.0, high=1.0, open_low=True, open_high=True)
        if self.constraint == "group-l1":
            repair = "The features that are kept have no public groups."
            raise invalid("constraint", self.constraint, "None, 'l2' or 'l1' for two_stage", repair)
        return self.settled(ResolvedTwoStage, **self._perturbed_checked(n))

    @property
    def linear_budget(self) -> tuple[float, float]:
        """The part of (epsilon, delta) that the votes leave."""
        return (1 - self.vote_share) * self.epsilon, (1 - self.vote_share) * self.delta


@dataclass(frozen=True, kw_only=True)
class ResolvedTwoStage(ResolvedPerturbed, TwoStage):
    """The settings of ``two_stage`` in a plan."""

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The linear term and the output noise on the support, and the votes that choose it."""
        votes = Release("votes", GUMBEL_MAXIMUM, VOTE_RANGE, 0.0, self.sparsity)
        if np.isinf(self.epsilon):
            return (*self.linear_releases(n, self.sparsity, 0.0), votes)
        sums, share = self.sums(n), self.vote_share
        sums.check_affordable((1 - share) * self.epsilon, "(1 - vote_share) * epsilon")
        law, squeeze = LINEAR_LAWS[self.law], self.squeeze(n)
        scale, multiplier = _noise(self.sparsity, share, law, squeeze, self.epsilon, self.delta)
        noise = sums.sensitivity(self.adjacency) * multiplier * ROUNDING
        linear = self.linear_releases(n, self.sparsity, noise)
        return (*linear, replace(votes, scale=scale * VOTE_RANGE))

    def published(self, n: int, d: int) -> Published:
        """Refused: the paper's selection is not this one."""
        return Resolved.published(self, n, d)

    def searched(self, d: int) -> int:
        """The number of weights of the second stage."""
        return self.width(self.sparsity)

    def secured(self, plan: Plan) -> Plan:
        """See ``ResolvedPerturbed``; votes are counts, so that their selection is exact."""
        charged, votes = super().secured(plan), plan.releases[2]
        assert charged.secure is not None
        part = SelectionNoise(votes.sensitivity, votes.scale, "votes are integers")
        return replace(charged, secure=SecurePlan((*charged.secure.parts, part)))

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> TwoStageRun:
        """See ``Resolved``."""
        kind = TwoStageRun if plan.secure is None else SecureTwoStageRun
        return kind(plan, *written_out(rows, y, counts))


two_stage = private_solver(TwoStage)


@functools.lru_cache(maxsize=256)
def _noise(
    selections: int, share: float, law: str, squeeze: Squeeze, epsilon: float, delta: float
) -> tuple[float, float]:
    """(scale of the votes per range, noise of the linear term per sensitivity).

    The votes alone would keep their share of the budget, all together keep the whole of it.
    """
    unit = Release("votes", GUMBEL_MAXIMUM, 1.0, 1.0, selections)

    def votes(scale: float) -> Event:
        return Repeated(replace(unit, scale=scale).event, selections)

    scale = smallest_noise(votes, share * epsilon, share * delta)

    def event(multiplier: float) -> Event:
        return Composed(votes(scale), events(law, squeeze, multiplier))

    guess = _joint_guess(share, law, squeeze, epsilon, delta)
    return scale, calibrate(event, epsilon, delta, relative_tolerance=TOLERANCE, guess=guess)


def _joint_guess(share: float, law: str, squeeze: Squeeze, epsilon: float, delta: float) -> float:
    """About the noise of the linear term beside votes with their share: were all Gaussian, squares of mu would add."""
    if law != GAUSSIAN_TERM:
        return first_guess(law, squeeze, (1 - share) * epsilon, (1 - share) * delta)
    votes = gaussian.mu(share * epsilon, share * delta) / gaussian.mu(epsilon, delta)
    return first_guess(law, squeeze, epsilon, delta) / math.sqrt(max(1 - votes * votes, 0.01))


class TwoStageRun(Run):
    """Both stages with the data in place; the exact votes are counted once.

    Privacy
    -------
    A call releases the chosen support and the noisy minimiser on it: the plan's three releases.
    """

    def __init__(self, plan: Plan[ResolvedTwoStage], rows: Rows, y: Array) -> None:
        settings = plan.settings
        self.plan, self.settings, self.rows, self.y = plan, settings, rows, y
        self.votes = count_votes(rows, y, settings.loss_row, settings.sparsity, settings.blocks)
        self._seconds: dict[bytes, PerturbedRun] = {}
        self.size = 2 * rows.shape[0] * settings.width(settings.sparsity) + 8 * plan.d

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; those on one support are made together. The release is the noisy minimiser on the support."""
        runs, supports = len(streams), self._supports(streams)
        weights, releases = np.zeros((2, runs, self.settings.width(self.plan.d)))
        for members in group_equal([columns.tobytes() for columns in supports]):
            columns = supports[members[0]]
            fit = streams.among(members, functools.partial(self._second(columns).fits, trace=True))
            weights[members], releases[members] = (
                self._full(columns, part) for part in (fit.weights, fit.releases[:, 0])
            )
        linear, output, votes_release = self.plan.releases

        def history(i: int) -> dict[str, Any]:
            return {"noise_scale": linear.scale, "output_scale": output.scale, "support": supports[i],
                    "vote_scale": votes_release.scale}  # fmt: skip

        return Trials(weights, *((releases[:, None], weights[:, None]) if trace else (None, None)), history=history)

    def _supports(self, streams: Generators) -> NDArray[np.intp]:
        """The features of every fit, chosen by their noisy votes, in order."""
        votes = np.broadcast_to(self.votes, (len(streams), len(self.votes)))
        chosen = self.plan.releases[2].mechanism.top_rows(votes, self.settings.sparsity, streams)
        return np.sort(chosen, axis=1)

    def _second(self, support: NDArray[np.intp]) -> PerturbedRun:
        """The second stage on these features; a run that is called often makes each once."""
        key = support.tobytes()
        second = self._seconds.get(key)
        if second is None:
            second = self.settings.perturbed_run(self.plan, self.rows.columns(support), self.y)
            if len(self._seconds) >= _MOST_SUPPORTS:
                self._seconds.clear()
            self._seconds[key] = second
        return second

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective without the linear term on the chosen support, and the exact votes; NOT private."""
        support = np.asarray(history["support"])
        second = self._second(support)
        columns = np.append(support, np.arange(self.plan.d, len(weights)))
        return second.diagnose(weights[columns], history) | {"votes": self.votes.copy()}

    def _full(self, support: NDArray[np.intp], weights: Array) -> Array:
        d, s = self.plan.d, len(support)
        out = np.zeros((len(weights), d + weights.shape[1] - s))
        out[:, support], out[:, d:] = weights[:, :s], weights[:, s:]
        return out


class SecureTwoStageRun(TwoStageRun):
    """``TwoStageRun`` with exact selections among integer votes; both stages of a fit draw from one stream.

    Privacy
    -------
    One record changes the votes of one block: the difference of two counts moves by at most 2, an integer. The
    selections are the plan's ExponentialMechanisms, exactly. For the second stage see ``ResolvedPerturbed.secured``.
    """

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``TwoStageRun``."""
        with ExitStack() as stack:
            opened = [streams.of(i, lambda rng: stack.enter_context(secure_stream(rng))) for i in range(len(streams))]
            return super().fits(Generators(*opened), trace)

    def _supports(self, streams: Generators) -> NDArray[np.intp]:
        assert self.plan.secure is not None
        choice, votes = self.plan.secure.parts[2], self.votes.astype(np.int64)
        assert isinstance(choice, SelectionNoise)
        unit = choice.unit(int(VOTE_RANGE))

        def top(stream: Any) -> list[int]:
            return sorted(IntegerSelection(votes, unit, two_sided=False).top(stream, self.settings.sparsity))

        return np.array([streams.of(i, top) for i in range(len(streams))], dtype=np.intp)


# --- the votes ------------------------------------------------------------------------------------


def count_votes(rows: Rows, y: Array, loss: Loss, sparsity: int, blocks: int) -> Array:
    """How many blocks have each feature among the ``sparsity`` largest of their LASSO.

    Privacy
    -------
    NOT private. One record changes one block's votes: each count by at most 1, between neighbours a range of 2.
    """
    counts = np.zeros(rows.shape[1])
    for block in range(blocks):
        features = lasso_features(rows.matrix[block::blocks], y[block::blocks], loss, sparsity)
        # A feature gets at most one vote from a block.
        counts[np.unique(features)[:sparsity]] += 1
    return counts


# The penalty falls by this factor, from where all weights are zero, until enough of them are not; how often at most,
# and how many steps are taken at each penalty.
_DECAY, _PENALTIES, _STEPS = 0.8, 40, 25


def lasso_features(matrix: Any, y: Array, loss: Loss, sparsity: int) -> NDArray[np.intp]:
    """At most ``sparsity`` features: the largest weights of the first LASSO of a falling penalty that has so many.

    By accelerated proximal gradients on columns of one length, warm from one penalty to the next. It never fails: what
    is too large for a float counts as zero.

    Privacy
    -------
    NOT private: one record can change all of them.
    """
    with np.errstate(all="ignore"):
        matrix = _normalised(matrix)
        n, d = matrix.shape
        slope = loss.residual(np.zeros(n), y)
        slope = np.where(np.isfinite(slope), slope, 0.0)
        penalty = float(np.max(np.abs(matrix.T @ slope), initial=0.0))
        if not 0 < penalty < np.inf:
            return np.zeros(0, dtype=np.intp)
        step = 1 / (loss.smoothness * _largest_eigenvalue(matrix))
        w = np.zeros(d)
        for _ in range(_PENALTIES):
            penalty *= _DECAY
            w = _proximal_steps(matrix, y, loss, w, penalty, step)
            if np.count_nonzero(w) >= sparsity:
                break
    size = np.where(np.isfinite(w), np.abs(w), 0.0)
    order = np.argsort(-size, kind="stable")[:sparsity]
    return np.asarray(order[size[order] > 0])


def _normalised(matrix: Any) -> Any:
    """Columns of length 1; columns of zeros, and those whose length is no number, become zero."""
    squares = matrix.multiply(matrix).sum(axis=0) if hasattr(matrix, "indptr") else np.square(matrix).sum(axis=0)
    norms = np.sqrt(np.asarray(squares).ravel())
    usable = (norms > 0) & np.isfinite(norms)
    factor = np.where(usable, 1 / np.where(usable, norms, 1.0), 0.0)
    return matrix.multiply(factor[None, :]).tocsr() if hasattr(matrix, "indptr") else matrix * factor


def _largest_eigenvalue(matrix: Any) -> float:
    """About the largest eigenvalue of M^T M, for columns of length 1: a tenth above the power iteration's, at least 1.

    Only the speed of a block's search depends on it.
    """
    v = np.ones(matrix.shape[1])
    size = 1.0
    for _ in range(20):
        v = matrix.T @ (matrix @ (v / max(float(np.linalg.norm(v)), 1e-300)))
        size = float(np.linalg.norm(v))
    return max(1.1 * size, 1.0)


def _proximal_steps(matrix: Any, y: Array, loss: Loss, w: Array, penalty: float, step: float) -> Array:
    point, momentum = w, 1.0
    for _ in range(_STEPS):
        v = point - step * (matrix.T @ loss.residual(matrix @ point, y))
        after = np.sign(v) * np.maximum(np.abs(v) - step * penalty, 0.0)
        next_momentum = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        point = after + (momentum - 1) / next_momentum * (after - w)
        w, momentum = after, next_momentum
    return w
