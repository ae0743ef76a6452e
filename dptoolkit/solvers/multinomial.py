"""Private multinomial (softmax) regression by Frank-Wolfe (Khanna, Lu and Raff 2023, Algorithm 3, made sound).

The default chooses ONE of the 2Kd vertices +-l1_radius e_k e_j^T per step, so the dimension enters only through a
logarithm. The paper chooses one vertex for every column: d selections a step, all of which one record can move. That
version is an option, and is charged for every one of its selections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, whole
from dptoolkit.data import Rows
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.solvers.base import Array, Trace, private_solver, with_smallest_noise, written_out
from dptoolkit.solvers.bounds import EntryBounds, score_range
from dptoolkit.solvers.l1_frank_wolfe import RULED_RADIUS, RULED_STEPS, SelectionSettings
from dptoolkit.solvers.plan import Plan, Release
from dptoolkit.solvers.settings import class_labels, setting
from dptoolkit.solvers.vertex_paths import add_feature, without_empty_rows

if TYPE_CHECKING:
    from dptoolkit.accounting.published import Published

# The Lipschitz constant that the paper proves (Theorem 4) and puts in its noise.
_PAPER_LIPSCHITZ = 2.0


@dataclass(frozen=True, kw_only=True)
class DpMultinomialFrankWolfe(SelectionSettings):
    """Private softmax regression with weights in an L1 ball; ``coef`` has shape (classes, d).

    Labels are the integers 0, ..., classes-1.

    Privacy
    -------
    Query: the score of every vertex. An entry x_j (yhat_k - y_k) of one record's gradient is at most feature_bound, so
    a score moves by at most 2 l1_radius feature_bound/n (replace-one; half for zero-out) and the range is twice that.
    Event: the selection, steps times ("vertex") or steps * d times ("columns": one record moves all columns). Public:
    n, d, classes, all arguments, all vertices.
    """

    solver: ClassVar[str] = "dp_multinomial_frank_wolfe"

    classes: int = setting("Number of classes, public.")
    l1_radius: float | None = setting(RULED_RADIUS, default=None)  # type: ignore[assignment]
    steps: int | None = setting(RULED_STEPS, default=None)  # type: ignore[assignment]
    selection: str = setting(
        '"vertex", one entry of the weight matrix a step, in the entrywise L1 ball; or "columns", one entry of every '
        "column a step, each column in its own L1 ball (the paper's version, with noise for all its selections).",
        default="vertex",
    )

    @property
    def terms(self) -> losses.Loss:
        """The softmax loss."""
        return losses.get("softmax")

    @property
    def bounds(self) -> EntryBounds:
        """The public bounds of one record's gradient."""
        assert self.feature_bound is not None
        return EntryBounds(self.terms, self.feature_bound, None, self.fit_intercept)

    def checked(self, n: int, d: int) -> DpMultinomialFrankWolfe:
        """See ``Settings``."""
        classes = whole("classes", self.classes, low=2)
        one_of("selection", self.selection, ("vertex", "columns"))
        if self.selection == "columns" and (self.l1_radius is None or self.steps is None):
            name = "steps" if self.steps is None else "l1_radius"
            raise invalid(name, None, "given for selection='columns'", "A rule is known for selection='vertex' alone.")
        return self._filled(n, classes * d)._selection_checked()

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The chosen vertices: one a step, or one for every column."""
        assert self.steps is not None and self.l1_radius is not None
        count = self.steps * (self._columns(d) if self.selection == "columns" else 1)
        spread = score_range(self.relation, self.l1_radius, self.bounds.entry(self.l1_radius), n)
        silent = Release(f"{self.selection} of the L1 ball", self.selection_law, spread, 0.0, count)
        if paper is not None:
            return (replace(silent, scale=paper.scales["score"]),)
        return (with_smallest_noise(silent, self.epsilon, self.delta),)

    def _columns(self, d: int) -> int:
        return d + 1 if self.fit_intercept else d

    def published(self, n: int, d: int) -> Published:
        """The noise of Theorem 5; steps + 1, as the printed loop makes one step less than the number in its noise."""
        from dptoolkit.accounting import published

        assert self.feature_bound is not None and self.steps is not None and self.l1_radius is not None
        ball, budget = self.l1_radius * self.feature_bound, (self.epsilon, self.delta)
        return published.multinomial(n, self.steps + 1, self.classes, self._columns(d), ball, _PAPER_LIPSCHITZ, *budget)

    def labels(self, y: Any, n: int, label_values: Any = None) -> Array:
        """One-hot labels."""
        return class_labels(y, n, self.classes, label_values)

    def prepare(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> MultinomialRun:
        """See ``Settings``."""
        rows, y = written_out(rows, y, counts)
        bounded_rows, _ = self.bounds.clip(rows, np.zeros(0))
        return MultinomialRun(plan, bounded_rows, y)

    def model(self, weights: Array) -> tuple[Array, float | Array]:
        """(coef, intercept) of every class: the intercept's column is constant at ``feature_bound``."""
        if not self.fit_intercept:
            return weights, np.zeros(self.classes)
        assert self.feature_bound is not None
        return weights[:, :-1], weights[:, -1] * self.feature_bound


dp_multinomial_frank_wolfe = private_solver(DpMultinomialFrankWolfe)


class MultinomialRun:
    """Private softmax regression on bounded data and one-hot labels.

    The vertex +e_k e_j^T has the number k d + j, and its negative K d + k d + j; in a column they are k and K + k.

    Privacy
    -------
    A call releases one vertex a step, or one of every column, by noisy scores with the plan's noise.
    """

    def __init__(self, plan: Plan, rows: Rows, labels: Array) -> None:
        settings = plan.settings
        assert isinstance(settings, DpMultinomialFrankWolfe)
        self.plan, self.settings, self.all = plan, settings, (rows, labels)
        self.rows, self.y = without_empty_rows(rows, labels)
        self.loss, self._transposed = settings.terms, self.rows.transpose()
        self.width, self.mechanism = rows.shape[1], plan.releases[0].mechanism

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit; its releases are the chosen vertices."""
        settings, steps = self.settings, self.settings.steps
        assert steps is not None
        weights: Array = np.zeros((settings.classes, self.width))
        groups = self.width if settings.selection == "columns" else 1
        margins = np.zeros((len(self.y), settings.classes))
        vertices, iterates = np.empty((steps, groups)), np.empty((steps if trace else 0, weights.size))
        for t in range(1, steps + 1):
            vertices[t - 1], weights = self._step(weights, margins, t, rng)
            if trace:
                iterates[t - 1] = weights.reshape(-1)
        history: dict[str, Any] = {"noise_scale": [self.plan.noise] * steps}
        if not trace:
            return Trace(weights, history)
        return Trace(weights, history, vertices[:, 0] if settings.selection == "vertex" else vertices, iterates)

    def _step(self, weights: Array, margins: Array, t: int, rng: np.random.Generator) -> tuple[list[int], Array]:
        """(picks, next weights); ``margins`` are those of the weights, and follow them."""
        gradient = np.asarray(self._transposed @ self.loss.residual(margins, self.y)).T / self.plan.n
        step, radius, mechanism = np.zeros_like(weights), self.settings.l1_radius, self.mechanism
        assert radius is not None
        if self.settings.selection == "vertex":
            picks = [_pick(step.reshape(-1), gradient.reshape(-1), radius, mechanism, rng)]
        else:
            picks = [_pick(step[:, j], gradient[:, j], radius, mechanism, rng) for j in range(self.width)]
        mu = 2 / (t + 2)
        weights = (1 - mu) * weights + mu * step
        if self.settings.selection == "vertex":
            # Only one weight has grown, so the margins are updated without a pass over all rows.
            k, j = divmod(picks[0] % weights.size, self.width)
            margins *= 1 - mu
            add_feature(margins[:, k], self._transposed, j, mu * step[k, j])
        else:
            margins[:] = self.rows.matrix @ weights.T
        return picks, weights

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history); iterates are of the flattened weights."""
        return self(rng, trace=every > 0).fit(every)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        rows, labels = self.all
        return {"objective": self.loss.objective(np.asarray(rows.matrix @ weights.T), labels)}


def _pick(target: Array, gradient: Array, radius: float, mechanism: NoisyMaximum, rng: np.random.Generator) -> int:
    """Set the entry of ``target`` that the noisy scores choose to +-radius; returns the choice."""
    vertex = mechanism.select(-radius * np.concatenate([gradient, -gradient]), rng)
    size = len(gradient)
    target[vertex % size] = radius if vertex < size else -radius
    return vertex
