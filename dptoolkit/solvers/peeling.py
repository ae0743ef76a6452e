"""Iterative hard thresholding with private selection (peeling), for heavy-tailed sparse regression.

Algorithms 5 and 6 of Wang's lecture 16 (after Cai, Wang and Zhang 2019): a gradient step on truncated data, a private
choice of the s largest entries, noise on their values, projection on an L2 ball. The true sensitivity is used for every
radius, the choice is one-shot Gumbel (the same law as s peeled exponential mechanisms), values get Gaussian noise, and
by default all steps use all data, which costs sqrt(steps) less noise than splitting it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, magnitude, one_of, whole
from dptoolkit.accounting import Composed, ExponentialMechanism, Gaussian, Repeated
from dptoolkit.accounting.events import Event
from dptoolkit.data import Rows
from dptoolkit.solvers.base import Array, Trace, private_solver, smallest_noise, written_out
from dptoolkit.solvers.bounds import EntryBounds
from dptoolkit.solvers.gradients import few_columns
from dptoolkit.solvers.plan import GAUSSIAN, GUMBEL_MAXIMUM, LAPLACE, LAPLACE_MAXIMUM, Plan, Release
from dptoolkit.solvers.settings import PUBLISHED, Settings, check_sparsity, public_bound, setting
from dptoolkit.solvers.vertex_paths import without_empty_rows

if TYPE_CHECKING:
    from dptoolkit.accounting.published import Published

# The error of two roundings, relative to the number.
_LAST_BITS = 2.0**-52


@dataclass(frozen=True, kw_only=True)
class PeelingIht(Settings):
    """Private sparse linear regression by peeling, for data with heavy tails.

    Privacy
    -------
    Query: v = w - step_size * mean gradient. One record's x_j (<x, w> - y) is at most feature_bound (feature_bound
    sqrt(sparsity) radius + label_bound) =: e, so an entry of v moves by at most 2 step_size e/m (replace-one; half for
    zero-out), m the number of rows used. The s indices are chosen by |v|, scores of range twice that; the values move
    by sqrt(s) times it in L2. Event: s ExponentialMechanisms and one Gaussian a step, all steps composed; with "split"
    one step only, as a record lies in one block fixed in advance. Projection is post-processing. Public: n, d, all
    arguments.
    """

    solver: ClassVar[str] = "peeling_iht"

    sparsity: int = setting("Number of features that are kept.")
    steps: int = setting("Number of iterations.")
    step_size: float = setting("Length of a step.")
    radius: float = setting("The iterate is projected on the L2 ball of this radius.")
    feature_bound: float | None = setting("Public bound at which entries of X are truncated.", default=None)
    label_bound: float | None = setting("Public bound at which labels are truncated.", default=None)
    data: str | None = setting(
        '"full", every step uses all rows (default); "split", step t uses the t-th of ``steps`` consecutive blocks '
        "(default of the published calibration).",
        default=None,
    )

    @property
    def terms(self) -> losses.Loss:
        """The squared loss."""
        return losses.get("squared")

    @property
    def bounds(self) -> EntryBounds:
        """The public bounds of one record's gradient."""
        assert self.feature_bound is not None
        return EntryBounds(self.terms, self.feature_bound, self.label_bound)

    def block(self, n: int) -> int:
        """How many rows a step uses."""
        return n // self.steps if self.data == "split" else n

    def checked(self, n: int, d: int) -> PeelingIht:
        """See ``Settings``."""
        check_sparsity(self.sparsity, d)
        steps = whole("steps", self.steps, low=1)
        default = "split" if self.calibration == PUBLISHED else "full"
        data = one_of("data", self.data or default, ("full", "split"))
        if data == "split" and steps > n:
            raise invalid("steps", steps, f"<= n={n} when the data are split", "Use data='full'.")
        return replace(
            self, step_size=magnitude("step_size", self.step_size), radius=magnitude("radius", self.radius), data=data,
            feature_bound=public_bound("feature_bound", self.feature_bound, "where entries of X are truncated"),
            label_bound=public_bound("label_bound", self.label_bound, "where labels are truncated"),
        )  # fmt: skip

    def entry_change(self, n: int) -> float:
        """How far an entry of v moves: an s-sparse w in the ball has |w|_1 <= sqrt(s) radius.

        The last term is for rounding: v is the iterate plus a step, rounded to the last bit of entries as large as the
        radius.
        """
        entry = self.bounds.entry(math.sqrt(self.sparsity) * self.radius)
        return self.relation.contributions * (self.step_size * entry / self.block(n)) + _LAST_BITS * self.radius

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
        from dptoolkit.accounting import published

        feature, label = self.feature_bound, self.label_bound
        assert feature is not None
        if feature != label:
            bound = f"equal to feature_bound={feature:g} with calibration='published'"
            raise invalid("label_bound", label, bound, "The paper has one K.")
        model = n, self.steps, self.sparsity, self.radius, feature, self.step_size
        return published.lecture_heavy_tailed_iht(*model, self.epsilon, self.delta)

    def prepare(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> PeelingRun:
        """See ``Settings``."""
        return PeelingRun(plan, *self.bounds.clip(*written_out(rows, y, counts)))


peeling_iht = private_solver(PeelingIht)


def _rounds_event(noise: float, s: int, rounds: int) -> Event:
    """Half of each round's rho for the s selections, half for the s values."""
    return Repeated(Composed(Repeated(ExponentialMechanism(_per_selection(noise, s)), s), Gaussian(noise)), rounds)


def _per_selection(noise: float, s: int) -> float:
    """The epsilon of each of s selections that together cost as much rho as one Gaussian of that noise."""
    return math.sqrt(4 / s) / noise if noise > 0 else math.inf


class PeelingRun:
    """Peeling on bounded data.

    Privacy
    -------
    A call releases the peeled vector of every step, before projection: the plan's two releases, once each round.
    """

    def __init__(self, plan: Plan, rows: Rows, y: Array) -> None:
        settings = plan.settings
        assert isinstance(settings, PeelingIht)
        self.plan, self.settings, self.all = plan, settings, (rows, y)
        self.block = settings.block(plan.n)
        self.parts = self._parts(rows, y)

    def _parts(self, rows: Rows, y: Array) -> list[tuple[Any, Array]]:
        """(transposed rows, labels) of every block that the steps take in turn."""
        m = self.block
        count = self.settings.steps if self.settings.data == "split" else 1
        blocks = [slice(i * m, (i + 1) * m) for i in range(count)]
        filled = (without_empty_rows(rows.take(block), y[block]) for block in blocks)
        return [(part.transpose() if part.is_sparse else part.matrix.T, labels) for part, labels in filled]

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit; its releases are the peeled vectors, before projection."""
        settings, steps, d = self.settings, self.settings.steps, self.plan.d
        w: Array
        w, (vectors, iterates) = np.zeros(d), np.empty((2, steps if trace else 0, d))
        for t in range(steps):
            transposed, target = self.parts[t % len(self.parts)]
            filled = np.flatnonzero(w)
            few = few_columns(len(filled), self.all[0])
            r = np.asarray(transposed[filled].T @ w[filled] if few else w @ transposed) - target
            v = w - settings.step_size * np.asarray(transposed @ r) / self.block
            vector = peel(v, self.plan, rng)
            w = _project(vector, settings.radius)
            if trace:
                vectors[t], iterates[t] = vector, w
        support, values = self.plan.releases
        history = {"selection_scale": support.scale, "value_scale": values.scale}
        return Trace(w, history, vectors, iterates) if trace else Trace(w, history)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history)."""
        return self(rng, trace=every > 0).fit(every)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the truncated records; NOT private."""
        rows, y = self.all
        return {"objective": self.settings.terms.objective(np.asarray(rows.matrix @ weights), y)}


def peel(v: Array, plan: Plan, rng: np.random.Generator) -> Array:
    """The plan's s entries of v, chosen and blurred privately; zero elsewhere.

    Privacy
    -------
    One call is the plan's two releases, once each round.
    """
    support, values = plan.releases
    assert isinstance(plan.settings, PeelingIht)
    s, choice = plan.settings.sparsity, support.mechanism
    # Laplace noise has no one-shot form, so it is drawn again for every selection.
    indices = choice.top(np.abs(v), s, rng) if support.law == GUMBEL_MAXIMUM else choice.peel(np.abs(v), s, rng)
    out = np.zeros_like(v)
    out[indices] = values.mechanism.release(v[indices], rng)
    return out


def _project(w: Array, radius: float) -> Array:
    norm = float(np.linalg.norm(w))
    return w if norm <= radius else w * (radius / norm)
