"""Private multinomial (softmax) regression by Frank-Wolfe (Khanna, Lu and Raff 2023, Algorithm 3, made sound).

The default chooses ONE of the 2Kd vertices +-l1_radius e_k e_j^T per step, so the dimension enters only through a
logarithm. The paper chooses one vertex for every column: d selections per step, all of which one record can move. That
version is an option, and is charged for every one of its selections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, progress
from dptoolkit._validate import invalid, one_of, whole
from dptoolkit.data import Rows
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers.engine.bounds import EntryBounds, score_range
from dptoolkit.solvers.engine.secure_multinomial import SecureMultinomialRun, secured_multinomial
from dptoolkit.solvers.engine.vertex_paths import add_feature, without_empty_rows
from dptoolkit.solvers.engine.vertices import RULED_RADIUS, RULED_STEPS, ResolvedSelection, SelectionSettings
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.plan import SYMMETRIC_MAXIMUM, Plan, Release, with_smallest_noise
from dptoolkit.solvers.frame.run import Run, Trials, written_out
from dptoolkit.solvers.frame.settings import PUBLISHED, class_labels, setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

# The Lipschitz constant that the paper proves (Theorem 4) and puts in its noise.
_PAPER_LIPSCHITZ = 2.0
# Up to this many columns a product with a sparse matrix is made column by column.
_FEW = 2


@dataclass(frozen=True, kw_only=True)
class DpMultinomialFrankWolfe(SelectionSettings):
    """Private softmax regression with weights in an L1 ball; ``coef`` has shape (classes, d).

    Labels are the integers 0, ..., classes-1.

    Privacy
    -------
    Query: the score of every vertex. An entry x_j (p_k - y_k) of one record's gradient is at most L = feature_bound
    times the largest residual, 1 - 1/classes at zero weights and less than 1 everywhere. So a score moves by at most 2
    l1_radius L/n (replace-one; half for zero-out) and the range is twice that. Event: the selection, steps times
    ("vertex") or steps * d times ("columns": one record moves all columns). A column's residuals add up to 0, and its
    vertices come in pairs of opposite scores. So for three or more classes and Gumbel noise, a column can be charged
    for the sum of the two largest moves instead of twice the largest, by zCDP (``SymmetricMaximum``, which has the
    proof), and L is feature_bound times half of the two largest residuals together: 1/2 at zero weights. A plan is
    charged in this way where that needs less noise. With tight calibration L is taken at the public weights
    (``MatrixNoise``), so the noise shrinks with it and the event stays. Public: n, d, classes, all arguments, all
    vertices.
    """

    solver: ClassVar[str] = "dp_multinomial_frank_wolfe"

    classes: int = setting("Public number of classes.")
    l1_radius: float | None = setting(RULED_RADIUS, default=None)  # type: ignore[assignment]
    steps: int | None = setting(RULED_STEPS, default=None)  # type: ignore[assignment]
    selection: str = setting(
        '"vertex", one entry of the weight matrix a step, in the entrywise L1 ball; or "columns", one entry of every '
        "column a step, each column in its own L1 ball (the paper's version, with noise for all its selections).",
        default="vertex",
    )

    @property
    def loss_row(self) -> losses.Loss:
        """The softmax loss."""
        return losses.get("softmax")

    def resolved(self, n: int, d: int) -> ResolvedMultinomial:
        """See ``Settings``."""
        classes = whole("classes", self.classes, low=2)
        one_of("selection", self.selection, ("vertex", "columns"))
        if self.selection == "columns" and (self.l1_radius is None or self.steps is None):
            name = "steps" if self.steps is None else "l1_radius"
            raise invalid(name, None, "given for selection='columns'", "There is a rule only for selection='vertex'.")
        own = replace(self, **self._ruled(self.steps, self.l1_radius, n, classes * d))
        return own.settled(ResolvedMultinomial, **own._selection_checked())

    def labels(self, y: Any, n: int, label_values: Any = None) -> Array:
        """One-hot labels."""
        return class_labels(y, n, self.classes, label_values)

    @property
    def class_count(self) -> int | None:
        """See ``Settings``."""
        return self.classes


@dataclass(frozen=True, kw_only=True)
class ResolvedMultinomial(ResolvedSelection, DpMultinomialFrankWolfe):
    """The settings of ``dp_multinomial_frank_wolfe`` in a plan."""

    l1_radius: float
    steps: int

    @property
    def bounds(self) -> EntryBounds:
        """The public bounds of one record's gradient."""
        return EntryBounds(self.loss_row, self.feature_bound, None, self.fit_intercept)

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The chosen vertices: one per step, or one for every column."""
        if paper is not None:
            return (replace(self._silent(n, d, self.selection_law), scale=paper.scales["score"]),)
        laws = [self.selection_law]
        if self.selection == "columns" and self.law == "gumbel" and self.classes > 2:
            laws.append(SYMMETRIC_MAXIMUM)
        made = [with_smallest_noise(self._silent(n, d, law), self.epsilon, self.delta) for law in laws]
        # Both bounds hold. The one with less noise at large weights, spread over all classes as most iterates' are,
        # wins.
        return (min(made, key=lambda release: release.scale * float(self._law(release, d).shares(self._spread(d))[0])),)

    def _silent(self, n: int, d: int, law: str) -> Release:
        count = self.steps * (self.width(d) if self.selection == "columns" else 1)
        spread = score_range(self.adjacency, self.l1_radius, self.lipschitz(d, law), n)
        return Release(f"{self.selection} of the L1 ball", law, spread, 0.0, count)

    def _spread(self, d: int) -> Array:
        return np.full((1, self.classes, self.width(d)), self.l1_radius / self.classes)

    def lipschitz(self, d: int, law: str) -> float:
        """The largest L in the ball, see Privacy; with published noise, as in the paper, anywhere."""
        if self.calibration == PUBLISHED:
            return self.bounds.entry(self.l1_radius)
        margins = np.zeros(self.classes)
        # With all weights in one class its margin is largest; by columns each of them has a ball of its own. The limit
        # of two residuals is largest there too: it grows with each sum of two margins, and no other weights have larger
        # ones.
        margins[0] = self.feature_bound * self.l1_radius * (self.width(d) if self.selection == "columns" else 1)
        return self.feature_bound * float(_limit(law)(margins))

    def noise_law(self, plan: Plan) -> MatrixNoise:
        """The noise of a selection at public weights."""
        return self._law(plan.releases[0], plan.d)

    def _law(self, release: Release, d: int) -> MatrixNoise:
        largest, adaptive = self.lipschitz(d, release.law), self.calibration != PUBLISHED
        return MatrixNoise(release.scale, self.feature_bound, largest, adaptive, _limit(release.law))

    def published(self, n: int, d: int) -> Published:
        """The noise of Theorem 5; steps + 1, as the printed loop makes one step less than the number in its noise."""
        from dptoolkit import published

        ball, budget = self.l1_radius * self.feature_bound, (self.epsilon, self.delta)
        return published.multinomial(n, self.steps + 1, self.classes, self.width(d), ball, _PAPER_LIPSCHITZ, *budget)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``."""
        return secured_multinomial(plan)

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> Run:
        """See ``Resolved``."""
        bounded_rows, _ = self.bounds.clip(rows, np.zeros(0))
        kind = MultinomialRun if plan.secure is None or plan.noise == 0 else SecureMultinomialRun
        return kind(plan, bounded_rows, y, counts)

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """(coef, intercept) of every class; see ``SelectionSettings``."""
        if not self.fit_intercept:
            return weights, np.zeros(self.classes)
        return weights[:, :-1], weights[:, -1] * self.bounds.level


dp_multinomial_frank_wolfe = private_solver(DpMultinomialFrankWolfe)


def _limit(law: str) -> Callable[[Array], Array]:
    """The largest residual at margins of given sizes, or half of the two largest together, whichever the law is for."""
    return losses.softmax_pair_limit if law == SYMMETRIC_MAXIMUM else losses.softmax_limit


@dataclass(frozen=True)
class MatrixNoise:
    """The noise of a selection at public weights W: ``scale``, or less where one record moves the scores by less.

    A record's margin of class k is at most feature_bound |W_k|_1 in size, which bounds its residuals. ``lipschitz`` is
    what ``scale`` is for, and ``limit`` the bound by margins that it comes from.
    """

    scale: float
    feature_bound: float
    lipschitz: float
    adaptive: bool
    limit: Callable[[Array], Array] = losses.softmax_limit

    def shares(self, weights: Array) -> Array:
        """The share of the scale at each of many (classes, features) matrices."""
        if not self.adaptive:
            return np.ones(len(weights))
        entries = self.feature_bound * self.limit(self.feature_bound * np.abs(weights).sum(axis=2))
        # Written so that NaN counts as the largest.
        return np.where(entries < self.lipschitz, entries / self.lipschitz, 1.0)

    def __call__(self, weights: Array) -> Array:
        """The noise scale at each of many (classes, features) matrices."""
        return self.scale * self.shares(weights)


class MultinomialRun(Run):
    """Private softmax regression on bounded data and one-hot labels; ``counts`` says how often each record occurs.

    The vertex +e_k e_j^T has the number k d + j, and its negative K d + k d + j; in a column they are k and K + k.

    Privacy
    -------
    A call releases one vertex per step, or one of every column, by noisy scores with the plan's noise at these weights.
    """

    def __init__(
        self, plan: Plan[ResolvedMultinomial], rows: Rows, labels: Array, counts: NDArray[np.int64] | None = None
    ) -> None:
        settings = plan.settings
        self.plan, self.settings, self.all = plan, settings, (rows, labels, counts)
        self.rows, self.y = without_empty_rows(rows, labels)
        self.times = None if counts is None else without_empty_rows(rows, counts.astype(float))[1][:, None]
        self.loss, self._transposed = settings.loss_row, self.rows.transpose()
        self.width, self.mechanism, self.noise_at = rows.shape[1], plan.releases[0].mechanism, settings.noise_law(plan)
        self.size = settings.classes * (2 * len(self.y) + 4 * self.width)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; the releases are the chosen vertices."""
        settings, steps, runs = self.settings, self.settings.steps, len(streams)
        weights: Array = np.zeros((runs, settings.classes, self.width))
        groups = self.width if settings.selection == "columns" else 1
        margins = np.zeros((runs, len(self.y), settings.classes))
        vertices = np.empty((runs, steps, groups))
        iterates = np.empty((runs, steps if trace else 0, settings.classes * self.width))
        scales = []
        for t in (number + 1 for number in progress.steps(steps)):
            shares = self.noise_at.shares(weights)
            scales.append(self.noise_at.scale * shares)
            vertices[:, t - 1] = self._step(weights, margins, t, shares, streams)
            if trace:
                iterates[:, t - 1] = weights.reshape(runs, -1)
        released = vertices[:, :, 0] if settings.selection == "vertex" else vertices
        kept = (released, iterates) if trace else (None, None)
        return Trials(weights, *kept, history=lambda i: {"noise_scale": [float(scale[i]) for scale in scales]})

    def _step(self, weights: Array, margins: Array, t: int, shares: Array, rng: Generators) -> NDArray[np.intp]:
        """One step of every run: the chosen vertices. ``weights`` and their ``margins`` are updated in place."""
        gradient, radius, mu = self._gradient(margins), self.settings.l1_radius, 2 / (t + 2)
        runs, size = len(weights), weights[0].size
        if self.settings.selection == "vertex":
            picks = _pick(gradient.reshape(runs, size), radius, self.mechanism, shares, rng)[:, None]
            places = picks[:, 0] % size
            pushes = mu * np.where(picks[:, 0] < size, radius, -radius)
            weights *= 1 - mu
            weights.reshape(runs, size)[np.arange(runs), places] += pushes
            # Only one weight has grown, so the margins are updated without a pass over all rows.
            margins *= 1 - mu
            classes, features = np.divmod(places, self.width)
            self._add_features(margins, classes, features, pushes)
            return picks
        count = self.settings.classes
        columns = (gradient[:, :, j] for j in range(self.width))
        picks = np.stack([_pick(column, radius, self.mechanism, shares, rng) for column in columns], axis=1)
        weights *= 1 - mu
        pushes = mu * np.where(picks < count, radius, -radius)
        weights[np.arange(runs)[:, None], picks % count, np.arange(self.width)] += pushes
        margins[:] = _products(self.rows.matrix, weights.swapaxes(1, 2))
        return picks

    def _gradient(self, margins: Array) -> Array:
        """The mean gradients (runs, classes, width)."""
        residuals = self.loss.residual(margins, self.y)
        if self.times is not None:
            residuals *= self.times
        return _products(self._transposed, residuals).swapaxes(1, 2) / self.plan.n

    def _add_features(self, margins: Array, classes: Any, features: Any, pushes: Array) -> None:
        """Add pushes[i] times feature features[i] to the margins of class classes[i], in run i."""
        if self.rows.is_sparse:
            for i, (k, j, push) in enumerate(zip(classes, features, pushes, strict=True)):
                add_feature(margins[i, :, k], self._transposed, j, push)
        else:
            margins[np.arange(len(margins)), :, classes] += pushes[:, None] * self._transposed[features]

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        rows, labels, counts = self.all
        rows, labels = written_out(rows, labels, counts)
        return {"objective": self.loss.objective(np.asarray(rows.matrix @ weights.T), labels)}


def _products(matrix: Any, columns: Array) -> Array:
    """matrix @ columns[i] for every run i; each product is computed alone, so that it is the same to the last bit."""
    if not hasattr(matrix, "indptr"):
        return np.asarray(matrix @ columns)
    runs, size, width = columns.shape
    block = columns.swapaxes(0, 1).reshape(size, runs * width)
    if runs * width <= _FEW:
        # SciPy's product with a vector adds in the same order as its product with a block, and for so narrow a block it
        # takes less time.
        product = np.stack([matrix @ column for column in np.ascontiguousarray(block.T)], axis=1)
    else:
        product = np.asarray(matrix @ block)
    return product.reshape(-1, runs, width).swapaxes(0, 1)


def _pick(gradient: Array, radius: float, mechanism: NoisyMaximum, shares: Array, rng: Generators) -> NDArray[np.intp]:
    """The vertex that the noisy scores choose, for every run."""
    return mechanism.select_rows(-radius * np.concatenate([gradient, -gradient], axis=1), rng, shares)
