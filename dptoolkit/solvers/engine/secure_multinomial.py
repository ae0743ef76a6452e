"""Softmax regression by Frank-Wolfe with exact selections: integer scores, integer weights, ChaCha20.

Privacy
-------
The score of a vertex is a sum of one integer per record, its residual on a grid times its entry on a grid, at public
weights W. For an ordinary selection residuals are clipped in integers, so that the range of the scores is
2 contributions cap_r cap_x, exactly. For a symmetric selection, which is charged for the two largest moves of a column
together, the moves must add up to 0: all residuals of a record but the largest are rounded, and the largest becomes
minus their sum. Two of them together grow by at most K/2 grid units. Their bound, 2 limit(W)/g_r + K + 1, is checked in
integers, and a record beyond it counts as zero. A selection with unit * range <= range/scale of the plan is the plan's
event, exactly; what rounding adds to the range is a factor on sensitivity and scale alike.

What a record contributes depends on that record, its place and public numbers alone: no row is left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import progress
from dptoolkit.data import Rows
from dptoolkit.data.grids import Grids, entries_on_grid, residuals_on_grid
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import IntegerSelection, SecureStream
from dptoolkit.solvers.engine.secure_vertices import SelectionNoise, check_exact
from dptoolkit.solvers.engine.vertex_paths import add_feature
from dptoolkit.solvers.frame.plan import SYMMETRIC_MAXIMUM, Plan
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another, written_out
from dptoolkit.solvers.frame.secure import SecurePlan, not_secure, secure_stream
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._multinomial_frank_wolfe import ResolvedMultinomial

# Of a symmetric selection two residuals together, and what rounding adds to them, stay within the grid's limit.
_PAIR = 2.5


@functools.lru_cache(maxsize=256)
def _grids(n: int, bound: float, limit: float) -> Grids:
    return Grids.choose(n, bound, limit, 0.0)


def is_symmetric(plan: Plan) -> bool:
    """Whether a selection is charged for the two largest moves together."""
    return plan.releases[0].law == SYMMETRIC_MAXIMUM


def grids_at(plan: Plan[ResolvedMultinomial], limit: float) -> Grids:
    """The grids where ``limit`` bounds a residual, or half of two together."""
    settings = plan.settings
    return _grids(plan.n, settings.feature_bound, limit * _PAIR if is_symmetric(plan) else limit)


def pair_cap(grids: Grids, limit: float, classes: int) -> int:
    """The most that two residuals of one record have together, in grid units, after rounding."""
    return math.floor(2 * Fraction(limit) / Fraction(grids.residual_unit)) + classes + 1


def integer_range(plan: Plan[ResolvedMultinomial], grids: Grids, limit: float) -> int:
    """What the plan's range is in grid units at public weights with this limit of residuals."""
    times = plan.adjacency.contributions * grids.entry_cap
    if is_symmetric(plan):
        return times * pair_cap(grids, limit, plan.settings.classes)
    return 2 * times * grids.residual_cap(grids.limit)


def secured_multinomial(plan: Plan[ResolvedMultinomial]) -> Plan:
    """The plan with exact selections and rounding charged; refused where there are none.

    Privacy
    -------
    Sensitivity and scale grow by the same factor, so that the event is that of the plan. From public numbers alone.
    """
    (release,) = plan.releases
    settings, growth = plan.settings, 1.0
    if not is_symmetric(plan):
        check_exact(release)
    limit = settings.lipschitz(plan.d, release.law) / settings.feature_bound
    grids = grids_at(plan, limit)
    if is_symmetric(plan):
        cap = pair_cap(grids, limit, settings.classes)
        if plan.n * cap * grids.entry_cap > 2**53:
            raise not_secure(f"for {settings.classes} classes and n={plan.n}", "Use selection='vertex'.")
        growth = float(cap * Fraction(grids.residual_unit) / (2 * Fraction(limit))) * (1 + 2.0**-40)
        growth = max(growth, 1.0)
    charged = replace(release, sensitivity=release.sensitivity * growth, scale=release.scale * growth)
    text = f"entries with {grids.row_bits} bits, residuals with {grids.residual_bits}"
    part = SelectionNoise(charged.sensitivity, charged.scale, text, growth)
    return replace(plan, releases=(charged,), secure=SecurePlan((part,)))


def zero_sum_residuals(r: Array, grids: Grids, cap: int) -> Array:
    """Each row of residuals in units of g_r: whole numbers that add up to 0; two of them have at most ``cap`` together.

    Privacy
    -------
    Each row is changed on its own. A row that has more than ``cap``, or a NaN, becomes zeros.
    """
    whole = np.rint(r / grids.residual_unit)
    whole[~np.isfinite(whole).all(axis=1)] = 0.0
    largest = np.argmax(np.abs(r), axis=1)
    row = np.arange(len(r))
    whole[row, largest] = 0.0
    whole[row, largest] = -whole.sum(axis=1)
    top_two = np.sort(np.abs(whole), axis=1)[:, -2:].sum(axis=1)
    whole[top_two > cap] = 0.0
    return whole + 0.0


class SecureMultinomialRun(Run):
    """Private softmax regression with exact selections; see ``MultinomialRun``.

    Privacy
    -------
    See the module. A call releases one vertex per step, or one of every column.
    """

    def __init__(
        self, plan: Plan[ResolvedMultinomial], rows: Rows, labels: Array, counts: NDArray[np.int64] | None = None
    ) -> None:
        settings = plan.settings
        self.plan, self.settings, self.all, self.y = plan, settings, (rows, labels, counts), labels
        assert plan.secure is not None
        self.noise, self.noise_at = plan.secure.first, settings.noise_law(plan)
        self.times = None if counts is None else counts.astype(float)[:, None]
        self.largest = self.noise_at.lipschitz / settings.feature_bound
        self.unit = grids_at(plan, self.largest).row_unit
        self.rows = entries_on_grid(rows, grids_at(plan, self.largest))
        self._transposed, self.width = self.rows.transpose(), rows.shape[1]
        self.size = settings.classes * (2 * len(labels) + 4 * self.width)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def one(self, rng: Any, trace: bool) -> Trace:
        """See ``Run``; the releases are the chosen vertices."""
        settings, steps = self.settings, self.settings.steps
        weights, margins = np.zeros((settings.classes, self.width)), np.zeros((len(self.y), settings.classes))
        vertices = np.empty((steps, self.width if settings.selection == "columns" else 1))
        iterates, scales = [], []
        with secure_stream(rng) as stream:
            for t in (number + 1 for number in progress.steps(steps)):
                scales.append(float(self.noise_at(weights[None])[0]))
                vertices[t - 1] = self._step(weights, margins, t, stream)
                if trace:
                    iterates.append(weights.ravel().copy())
        released = vertices[:, 0] if settings.selection == "vertex" else vertices
        kept = (released, np.array(iterates)) if trace else (None, None)
        return Trace(weights, {"noise_scale": scales}, *kept)

    def limit(self, weights: Array) -> float:
        """The largest residual at public weights, or half of the two largest together."""
        norms = self.settings.feature_bound * np.abs(weights).sum(axis=1)
        return min(float(self.noise_at.limit(norms)), self.largest)

    def scores(self, margins: Array, limit: float) -> NDArray[np.int64]:
        """(classes, features): what every +e_k e_j scores, in integers; NOT private."""
        grids, residuals = grids_at(self.plan, limit), self.settings.loss_row.residual(margins, self.y)
        if is_symmetric(self.plan):
            whole = zero_sum_residuals(residuals, grids, pair_cap(grids, limit, self.settings.classes))
        else:
            whole = residuals_on_grid(residuals.ravel(), grids).reshape(residuals.shape)
        if self.times is not None:
            whole = whole * self.times
        return -np.asarray(self._transposed @ whole).T.astype(np.int64)

    def exponent(self, limit: float) -> float:
        """The exponent of a score of 1."""
        unit = self.noise.unit(integer_range(self.plan, grids_at(self.plan, limit), limit))
        return float(unit if self.noise_at.adaptive else unit * min(limit / self.largest, 1.0))

    def _step(self, weights: Array, margins: Array, t: int, stream: SecureStream) -> Array:
        """One step: the chosen vertices. ``weights`` and their ``margins`` are updated in place."""
        limit, radius, mu = self.limit(weights), self.settings.l1_radius, 2 / (t + 2)
        scores, unit = self.scores(margins, limit), self.exponent(limit)
        if self.settings.selection == "vertex":
            place, sign = IntegerSelection(np.ascontiguousarray(scores).ravel(), unit).select(stream)
            k, j = divmod(place, self.width)
            weights *= 1 - mu
            weights[k, j] += mu * sign * radius
            margins *= 1 - mu
            add_feature(margins[:, k], self._transposed, j, mu * sign * radius * self.unit)
            return np.array([place if sign > 0 else weights.size + place])
        chosen = [IntegerSelection(np.ascontiguousarray(column), unit).select(stream) for column in scores.T]
        classes, signs = (np.array(part) for part in zip(*chosen, strict=True))
        weights *= 1 - mu
        weights[classes, np.arange(self.width)] += mu * signs * radius
        margins[:] = np.asarray(self.rows.matrix @ (weights.T * self.unit))
        return np.where(signs > 0, classes, self.settings.classes + classes)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        rows, labels = written_out(*self.all)
        return {"objective": self.settings.loss_row.objective(np.asarray(rows.matrix @ weights.T), labels)}
