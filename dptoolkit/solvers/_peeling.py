"""Iterative hard thresholding with private selection (peeling), for heavy-tailed sparse regression.

Algorithms 5 and 6 of Wang's lecture 16 (after Cai, Wang and Zhang 2019): a gradient step on truncated data, a private
choice of the s largest entries, noise on their values, projection on an L2 ball. Here the true sensitivity is used for
every radius. The s entries are chosen with one draw of Gumbel noise, which has the law of s exponential mechanisms one
after the other, and values get Gaussian noise. By default all steps use all data, which takes sqrt(steps) times less
noise than splitting them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import invalid, magnitude, one_of, whole
from dptoolkit.accounting import Composed, ExponentialMechanism, Gaussian, Repeated
from dptoolkit.accounting.events import Event
from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.data.blocks import CheckedBlocks, Summand
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine.bounds import EntryBounds
from dptoolkit.solvers.engine.draws import top_rows
from dptoolkit.solvers.engine.secure_peeling import SecurePeelingRun, secured_peeling
from dptoolkit.solvers.engine.vertex_paths import without_empty_rows
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.plan import (
    GAUSSIAN,
    GUMBEL_MAXIMUM,
    LAPLACE,
    LAPLACE_MAXIMUM,
    Plan,
    Release,
    smallest_noise,
)
from dptoolkit.solvers.frame.run import Run, Trials, written_out
from dptoolkit.solvers.frame.settings import PUBLISHED, Resolved, Settings, check_sparsity, public_bound, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

# From this many stored entries on, compiled sums are quicker than SciPy's.
_WORTH_COMPILING = 20_000
# The error of two roundings, relative to the number.
_LAST_BITS = 2.0**-52


@dataclass(frozen=True, kw_only=True)
class PeelingIht(Settings):
    """Private sparse linear regression by peeling, for data with heavy tails.

    Privacy
    -------
    Query: v = w - step_size * mean gradient. One record's x_j (<x, w> - y) is at most feature_bound (feature_bound
    |w|_1 + label_bound) =: e, so an entry of v moves by at most 2 step_size e/m (replace-one; half for zero-out), m the
    number of rows used. The s indices are chosen by |v|, scores of range twice that; the values move by sqrt(s) times
    it in L2. Event: s ExponentialMechanisms and one Gaussian a step, all steps composed; with "split" one step only, as
    a record lies in one block fixed in advance. The plan's noise is for |w|_1 = sqrt(sparsity) radius, the largest in
    the ball; with tight calibration it shrinks with e at the public w, and the event stays. Projection is
    post-processing. Public: n, d, all arguments, all iterates.
    """

    solver: ClassVar[str] = "peeling_iht"
    takes_blocks: ClassVar[bool] = True

    sparsity: int = setting("Number of features that are kept.")
    steps: int = setting("Number of iterations.")
    step_size: float = setting("Length of a step.")
    radius: float = setting("Radius of the L2 ball on which the iterate is projected.")
    feature_bound: float | None = setting("Public bound at which entries of X are truncated.", default=None)
    label_bound: float | None = setting("Public bound at which labels are truncated.", default=None)
    data: str | None = setting(
        '"full": every step uses all rows (default); "split": step t uses the t-th of ``steps`` consecutive blocks '
        "(default of the published calibration).",
        default=None,
    )

    @property
    def loss_row(self) -> losses.Loss:
        """The squared loss."""
        return losses.get("squared")

    @property
    def reads_single(self) -> bool:
        """See ``Settings``."""
        return True

    def resolved(self, n: int, d: int) -> ResolvedPeeling:
        """See ``Settings``."""
        check_sparsity(self.sparsity, d)
        steps = whole("steps", self.steps, low=1)
        default = "split" if self.calibration == PUBLISHED else "full"
        data = one_of("data", self.data or default, ("full", "split"))
        if data == "split" and steps > n:
            raise invalid("steps", steps, f"<= n={n} when the data are split", "Use data='full'.")
        return self.settled(
            ResolvedPeeling,
            step_size=magnitude("step_size", self.step_size),
            data=data,
            radius=magnitude("radius", self.radius),
            feature_bound=public_bound("feature_bound", self.feature_bound, "where entries of X are truncated"),
            label_bound=public_bound("label_bound", self.label_bound, "where labels are truncated"),
        )


@dataclass(frozen=True, kw_only=True)
class ResolvedPeeling(Resolved, PeelingIht):
    """The settings of ``peeling_iht`` in a plan."""

    feature_bound: float
    label_bound: float
    data: str

    @property
    def iterations(self) -> int:
        """See ``Resolved``."""
        return self.steps

    @property
    def label_limit(self) -> float | None:
        """See ``Resolved``."""
        return self.label_bound

    @property
    def bounds(self) -> EntryBounds:
        """The public bounds of one record's gradient."""
        return EntryBounds(self.loss_row, self.feature_bound, self.label_bound)

    def block(self, n: int) -> int:
        """How many rows a step uses."""
        return n // self.steps if self.data == "split" else n

    def entry_change(self, n: int, l1_norm: Any = None) -> Any:
        """How far an entry of v moves at weights of that |w|_1, or of many; by default at the largest, sqrt(s) radius.

        The last term is for rounding: v is the iterate plus a step, rounded to the last bit of entries as large as the
        radius.
        """
        entry = self.bounds.entry(math.sqrt(self.sparsity) * self.radius if l1_norm is None else l1_norm)
        return self.adjacency.contributions * (self.step_size * entry / self.block(n)) + _LAST_BITS * self.radius

    def noise_shares(self, n: int, w: Array) -> Array:
        """The share of the plan's noise at each row of public weights: how far an entry can move there, over the most.

        Weights of zero may be left out.
        """
        if self.calibration == PUBLISHED:
            return np.ones(len(w))
        changes, largest = self.entry_change(n, np.abs(w).sum(axis=1)), self.entry_change(n)
        # Written so that NaN counts as the largest.
        return np.where(changes < largest, changes / largest, 1.0)

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The support and the values on it, once a step; once in all if the data are split into one block a step."""
        change, s = self.entry_change(n), self.sparsity
        rounds = 1 if self.data == "split" else self.steps
        if paper is not None:
            scale = paper.scales["selection"]
            return (
                Release("support", LAPLACE_MAXIMUM, 2 * change, scale, s * rounds),
                Release("values on the support", LAPLACE, change, scale, s * rounds),
            )
        noise = smallest_noise(lambda noise: _rounds_event(noise, s, rounds), self.epsilon, self.delta)
        each, spread = _per_selection(noise, s), change * math.sqrt(s)
        scale = 2 * change / each if each < math.inf else 0.0
        return (
            Release("support", GUMBEL_MAXIMUM, 2 * change, scale, s * rounds),
            Release("values on the support", GAUSSIAN, spread, noise * spread, rounds),
        )

    def published(self, n: int, d: int) -> Published:
        """The noise of Algorithm 6."""
        from dptoolkit import published

        feature, label = self.feature_bound, self.label_bound
        if feature != label:
            bound = f"equal to feature_bound={feature:g} with calibration='published'"
            raise invalid("label_bound", label, bound, "The paper has one bound for both.")
        model = n, self.steps, self.sparsity, self.radius, feature, self.step_size
        return published.lecture_heavy_tailed_iht(*model, self.epsilon, self.delta)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``."""
        return secured_peeling(plan)

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> Run:
        """See ``Resolved``."""
        if self.data == "split":
            rows, y = written_out(rows, y, counts)
            counts = None
        kind = PeelingRun if plan.secure is None else SecurePeelingRun
        return kind(plan, *self.bounds.clip(rows, y), counts)

    def bind_blocks(self, plan: Plan, blocks: CheckedBlocks) -> PeelingRun:
        """See ``Resolved``."""
        if self.data == "split":
            raise invalid("data", "split", "'full' where X is in blocks", "Steps would need parts of blocks.")
        return BlockedPeelingRun(plan, blocks)


peeling_iht = private_solver(PeelingIht)


def _rounds_event(noise: float, s: int, rounds: int) -> Event:
    """The event of all rounds: half of each round's rho is for the s selections, half for the s values."""
    return Repeated(Composed(Repeated(ExponentialMechanism(_per_selection(noise, s)), s), Gaussian(noise)), rounds)


def _per_selection(noise: float, s: int) -> float:
    """The epsilon of each of s selections that together cost as much rho as one Gaussian of that noise."""
    return math.sqrt(4 / s) / noise if noise > 0 else math.inf


class PeelingRun(Run):
    """Peeling on bounded data.

    Privacy
    -------
    A call releases the peeled vector of every step, before projection: the plan's two releases, once each round, with
    the share of their noise that the public iterate asks for.
    """

    def __init__(
        self, plan: Plan[ResolvedPeeling], rows: Rows, y: Array, counts: NDArray[np.int64] | None = None
    ) -> None:
        settings = plan.settings
        self.plan, self.settings, self.all = plan, settings, (rows, y, counts)
        self.block = settings.block(plan.n)
        self.parts = self._parts(rows, y, np.ones(len(y)) if counts is None else counts.astype(float))
        self.size = max((2 + settings.sparsity) * len(part.target) for part in self.parts) + 4 * plan.d

    def _parts(self, rows: Rows, y: Array, times: Array) -> list[Part]:
        """The blocks that the steps take in turn."""
        m = rows.shape[0] if self.settings.data == "full" else self.block
        count = self.settings.steps if self.settings.data == "split" else 1
        blocks = [slice(i * m, (i + 1) * m) for i in range(count)]
        return [_part(rows.take(block), y[block], times[block]) for block in blocks]

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; the releases are the peeled vectors, before projection."""
        settings, steps, d, runs = self.settings, self.settings.steps, self.plan.d, len(streams)
        vectors, iterates = np.empty((2, runs, steps if trace else 0, d))
        # The iterate has few nonzeros, and only their features are read.
        support, values, row = np.zeros((runs, 0), np.intp), np.zeros((runs, 0)), np.arange(runs)[:, None]
        shares = []
        for t in progress.steps(steps):
            part = self.parts[t % len(self.parts)]
            v = part.sums(support, values)
            v *= -settings.step_size
            v /= self.block
            v[row, support] += values
            shares.append(settings.noise_shares(self.plan.n, values))
            vector, support = peel_rows(v, self.plan, shares[-1], streams)
            values = _project(vector[row, support], settings.radius)
            if trace:
                vectors[:, t], iterates[:, t] = vector, _dense(d, support, values)
        w = _dense(d, support, values)
        choice, blur = self.plan.releases

        def history(i: int) -> dict[str, Any]:
            scales = {"selection_scale": choice.scale, "value_scale": blur.scale}
            return {name: [scale * float(share[i]) for share in shares] for name, scale in scales.items()}

        return Trials(w, *((vectors, iterates) if trace else (None, None)), history=history)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the truncated records; NOT private."""
        rows, y = written_out(*self.all)
        return {"objective": self.settings.loss_row.objective(np.asarray(rows.matrix @ weights), y)}


class Part(NamedTuple):
    """The rows that a step uses, transposed, without empty ones; ``times`` is how often each occurs.

    ``columns`` and ``rows`` are the transposed and the plain arrays of large CSR rows, as kernels take them.
    """

    transposed: Any
    target: Array
    times: Array
    columns: Any = None
    rows: Any = None

    def margins(self, support: NDArray[np.intp], values: Array) -> Array:
        """(runs, rows): those of weights that are ``values`` on ``support``, in every run."""
        if self.columns is not None:
            from dptoolkit.kernels.threshold import support_margins

            out = np.empty((len(support), len(self.target)))
            for which, w, margins in zip(support, values, out, strict=True):
                support_margins(*self.columns, which, w, margins)
            return out
        if hasattr(self.transposed, "indptr"):
            w = _dense(self.transposed.shape[0], support, values)
            return np.asarray(self.transposed.T @ w.T).T
        return np.asarray(values[:, None, :] @ self.transposed[support])[:, 0]

    def sums(self, support: NDArray[np.intp], values: Array) -> Array:
        """(runs, features): the sum of all records' gradients at these weights, in every run.

        Privacy
        -------
        NOT private: exact.
        """
        return self.gradients(self.margins(support, values) - self.target)

    def gradients(self, r: Array) -> Array:
        """(runs, features): the sums of r_i x_i in every run; each is computed alone. The caller may change them."""
        weights = r * self.times
        if self.rows is not None:
            from dptoolkit.kernels.sums import row_sums

            out = np.empty((len(r), self.transposed.shape[0]))
            for one, sums in zip(weights, out, strict=True):
                row_sums(*self.rows, one, sums, 0, len(self.target))
            return out
        if hasattr(self.transposed, "indptr"):
            return np.asarray(self.transposed @ weights.T).T
        return np.asarray(self.transposed @ weights[:, :, None])[:, :, 0]


@dataclass(frozen=True)
class GradientSum(Summand):
    """The sum of the gradients of a block's records, at sparse weights.

    Privacy
    -------
    NOT private. Each record is clipped by the settings' public bounds alone.
    """

    settings: ResolvedPeeling

    def prepared(self, rows: Rows, labels: Array) -> Part:
        """See ``Summand``."""
        clipped, y = self.settings.bounds.clip(rows, labels)
        return _part(clipped, y, np.ones(len(y)))

    def term(self, prepared: Part, *public: Any) -> Array:
        """See ``Summand``; ``public`` is (support, values) of every run."""
        return prepared.sums(*public)


class BlockedPart(NamedTuple):
    """The ``Part`` of a step that uses all blocks."""

    blocks: CheckedBlocks
    summand: GradientSum

    def sums(self, support: NDArray[np.intp], values: Array) -> Array:
        """See ``Part``.

        Privacy
        -------
        NOT private: exact.
        """
        total: Array = self.blocks.total(self.summand, support, values)
        return total


class BlockedPeelingRun(PeelingRun):
    """``PeelingRun`` on blocks, which are asked for the sum of their gradients at every step.

    Privacy
    -------
    The releases are those of ``PeelingRun``.
    """

    def __init__(self, plan: Plan[ResolvedPeeling], blocks: CheckedBlocks) -> None:
        self.plan, self.settings, self.block = plan, plan.settings, plan.settings.block(plan.n)
        self.parts = [BlockedPart(blocks, GradientSum(plan.settings))]  # type: ignore[list-item]


def _part(rows: Rows, y: Array, times: Array) -> Part:
    nonempty, target = without_empty_rows(rows, y)
    transposed = nonempty.transpose() if nonempty.is_sparse else nonempty.matrix.T
    part = Part(transposed, target, without_empty_rows(rows, times)[1])
    if not nonempty.is_sparse or nonempty.matrix.nnz < _WORTH_COMPILING:
        return part
    return part._replace(columns=kernel_arrays(transposed), rows=kernel_arrays(nonempty.matrix))


def _dense(d: int, support: NDArray[np.intp], values: Array) -> Array:
    """Rows of weights that are ``values`` on ``support``."""
    w = np.zeros((len(support), d))
    np.put_along_axis(w, support, values, axis=1)
    return w


def peel(v: Array, plan: Plan[ResolvedPeeling], rng: np.random.Generator) -> Array:
    """The plan's s entries of v, chosen and blurred privately; zero elsewhere.

    Privacy
    -------
    One call is the plan's two releases, once each round.
    """
    return np.asarray(peel_rows(v[None], plan, np.ones(1), Generators(rng))[0][0])


def peel_rows(v: Array, plan: Plan[ResolvedPeeling], shares: Array, rng: Generators) -> tuple[Array, NDArray[np.intp]]:
    """(what ``peel`` gives for every row of v, each with its own Generator, and the indices of the entries).

    Run i gets shares[i] times the plan's noise.
    """
    choice, values = plan.releases
    s, mechanism, sizes = plan.settings.sparsity, choice.mechanism, np.abs(v)
    if choice.law == GUMBEL_MAXIMUM:
        indices = top_rows(mechanism, sizes, s, rng, shares)
    else:
        # Laplace noise has no one-shot form, so it is drawn again for every selection.
        indices = np.array([rng.of(i, functools.partial(mechanism.peel, row, s)) for i, row in enumerate(sizes)])
    out, row = np.zeros(v.shape), np.arange(len(v))[:, None]
    blur = shares[:, None] * values.mechanism.release(np.zeros(indices.shape), rng)
    out[row, indices] = v[row, indices] + blur
    return out, np.sort(indices, axis=1)


def _project(w: Array, radius: float) -> Array:
    """Each row, scaled down to the radius if it is longer."""
    norms = np.sqrt(np.square(w).sum(axis=1, keepdims=True))
    return np.asarray(np.where(norms <= radius, w, w * (radius / np.maximum(norms, radius))))
