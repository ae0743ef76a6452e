"""A worst pair for variance-reduced hard thresholding: a record whose gradient turns round after the snapshot.

Differences gradient(w) - gradient(snapshot) are largest, 2 G, where a clipped gradient is G one way at the snapshot and
G the other way at w: the record's label lies between its margins there. All other records push coordinate 0 with
gradients at their bound, so the weights move along it by a known amount. The canary's row is long, along (slant, 1)
or, in the second dataset, (slant, -1) in coordinates 0 and 1; the push carries its margin over the label in the first
inner step, and then its gradient has turned. On coordinate 1 the two datasets differ by nearly the full sensitivity of
the snapshot, and by that of every inner step but the first, which starts at the snapshot: nothing can differ there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import stats

from dptoolkit import losses
from dptoolkit.accounting import Composed
from dptoolkit.accounting.events import POISSON
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.theory.batched import batched, epoch_signals, repeated
from dptoolkit.audit.theory.kept import as_counted, expect_solver, few_runs, gradient_bound, share
from dptoolkit.audit.theory.likelihood import EpochRatio, SumRatio, gradients
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._scsg import ResolvedReduced

# Standard deviations by which coordinate 1 must lead the rest, and the push must exceed the noise, to count as certain.
_LEAD = 5.0
# What the random number of records in a Poisson snapshot may add to the variance of its noise.
_EXTRA = 0.03
# The label's place between the margins, as a share of the first step; and how many times their bound gradients are.
_PLACE, _BEYOND = 1e-3, 1e3


class _Slants(NamedTuple):
    """The canary's row is along (canary, +-1), the others' along (sqrt(1 - others^2), others)."""

    canary: float
    others: float


def pair(plan: Plan) -> Pair | None:
    """The pair with a turning gradient for ``dp_scsg_ht``; None where it does not apply.

    It needs clipped gradients of unbounded rows and labels, and noise that is small against the push. A gradient turns
    round once, so that inner steps show it in the first epoch alone. Scores: for "iterates" the exact likelihood ratio
    of coordinate 1; for "final", under replace-one in one epoch of a fixed number of steps, that of its last weight, a
    mixture over the batches that held the canary.
    """
    slants = _slants(plan) if _applies(plan) else None
    if slants is None:
        return None
    first, second, score = _datasets(plan, slants)
    text = f"turning gradient: one record of {plan.n}, all others push it over its label"
    scores: dict[str, Score] = {"iterates": score}
    once = plan.settings.epochs == 1 and plan.settings.option == "II"
    if once and plan.adjacency is Adjacency.REPLACE_ONE:
        scores["final"] = _final(plan, slants)
    return Pair(first, second, plan.adjacency, text, scores, {"iterates": _reach(plan, score, first, second)})


def dp_scsg_ht(plan: Plan) -> Pair:
    """The kept coordinate for variance-reduced solvers, as for ``dp_sgd_ht``; or the crossing pair, if that shows more.

    Gradients that stay at their bound do not change between snapshot and iterate, whatever the label. So the kept
    coordinate shows the privacy loss of the snapshots only, and nothing of the inner steps'.
    """
    expect_solver(plan, "dp_scsg_ht", "dp_svrg_ht")
    basic = batched(plan, EpochRatio, plan.settings.shape(plan.n).snapshot)
    crossing = pair(plan)
    if crossing is not None and crossing.reach["iterates"] > basic.reach.get("iterates", 0.0):
        return crossing
    return basic


dp_svrg_ht = dp_scsg_ht


def _applies(plan: Plan[ResolvedReduced]) -> bool:
    s = plan.settings
    unbounded = s.loss_row.task != losses.BINARY and s.grad_norm is not None and s.label_bound is None
    plain = s.row_norm is None and not s.fit_intercept and s.l2 == 0
    room = min(plan.d, s.sparsity) >= 2 and plan.n >= 2 and plan.noise > 0
    return unbounded and plain and room and layout.most_inner_steps(plan) >= 2


def _slants(plan: Plan[ResolvedReduced]) -> _Slants | None:
    """The smallest slants at which neither noise nor the canary's own moves undo the crossing; None if none exist."""
    s, bound = plan.settings, gradient_bound(plan)
    size, batch = s.shape(plan.n).snapshot, s.batch_size
    t = np.arange(1, s.epochs * layout.most_inner_steps(plan) + 1)
    # All quantities are in units of gradients, that is weights divided by the step size, after t steps.
    noise = _LEAD * np.sqrt(t**2 * plan.releases[1].scale ** 2 + t * plan.noise**2)
    lead = float(min(noise[0] / bound, _weak(plan))) if s.sparsity < plan.d else 0.0
    if lead >= 0.5:
        return None
    spread = _LEAD * math.sqrt((1 - size / plan.n) / size) if s.sampling == POISSON else 0.0
    push = t * bound * math.sqrt(1 - lead**2) * (1 - 1 / plan.n) * (1 - spread) - noise
    own = t * bound / size + 2 * bound / batch * stats.binom.isf(1e-6, t - 1, batch / plan.n)
    if (push <= 0).any():
        return None
    slant = float(np.max((t * bound * lead + noise + own) / push))
    return _Slants(slant, lead) if slant < 1 else None


def _weak(plan: Plan[ResolvedReduced]) -> float:
    """The push along coordinate 1 at which the random number of others in a snapshot adds little to the noise."""
    size = plan.settings.shape(plan.n).snapshot
    if plan.settings.sampling != POISSON or size == plan.n:
        return math.inf
    scale = plan.releases[1].scale / gradient_bound(plan)
    return math.sqrt(_EXTRA) * scale * math.sqrt(size / (1 - size / plan.n))


def _datasets(plan: Plan[ResolvedReduced], slants: _Slants) -> tuple[Counted, Counted, EpochRatio]:
    bound, step = gradient_bound(plan), plan.settings.step_size
    # The gradient before clipping has size |row|^2 times the distance of margin / |row| from label / |row|.
    distance = _PLACE * slants.canary * step * bound / math.hypot(slants.canary, 1.0)
    length = math.sqrt(_BEYOND * bound / distance)
    replaced = plan.adjacency is Adjacency.REPLACE_ONE
    canaries = [_along(plan, slants.canary, side, length) for side in (1.0, -1.0)]
    if not replaced:
        canaries[1] = np.zeros(plan.d)
    other = _along(plan, math.sqrt(1 - slants.others**2), slants.others, 1.0)
    steps = plan.settings.epochs * layout.most_inner_steps(plan)
    furthest = steps * step * (bound + 40 * max(r.scale for r in plan.releases))
    label = length * distance
    rows, labels = [*canaries, other], [label, label if replaced else 0.0, _BEYOND * (furthest + bound)]
    first, second = (as_counted(plan, rows, labels, [*one, plan.n - 1]) for one in ((1, 0), (0, 1)))
    along = np.eye(1, plan.d, 1)[0]
    return first, second, EpochRatio(gradients(plan, np.array(rows), labels), along)


def _along(plan: Plan[ResolvedReduced], zero: float, one: float, length: float) -> Array:
    row = np.zeros(plan.d)
    row[:2] = zero, one
    return np.asarray(length * row / np.linalg.norm(row))


def _final(plan: Plan[ResolvedReduced], slants: _Slants) -> SumRatio:
    """Score of the last weight of coordinate 1, which every step moves by the snapshot's gradient and by its own."""
    s, steps = plan.settings, layout.most_inner_steps(plan)
    size, batch, step, bound = s.shape(plan.n).snapshot, s.batch_size, s.step_size, gradient_bound(plan)
    own = bound / math.hypot(slants.canary, 1.0)
    presence, times = (grid.ravel() for grid in np.meshgrid((0, 1), np.arange(steps)))
    shifts = step * own * (presence * steps / size - 2 * times / batch)
    weights = stats.binom.pmf(presence, 1, size / plan.n) * stats.binom.pmf(times, steps - 1, batch / plan.n)
    spread = slants.others * bound * math.sqrt((1 - size / plan.n) / size) if s.sampling == POISSON else 0.0
    deviation = math.sqrt(steps**2 * (plan.releases[1].scale ** 2 + spread**2) + steps * plan.noise**2)
    absent = (1 - 1 / plan.n) if s.sampling == POISSON or size == plan.n else 1.0
    center = step * steps * slants.others * bound * absent
    return SumRatio(1, center, step * deviation, np.asarray(shifts), np.asarray(weights))


def _reach(plan: Plan[ResolvedReduced], score: EpochRatio, first: Counted, second: Counted) -> float:
    """The reach by accounting: both datasets give mixtures around one point, with shifts in opposite directions.

    That is the pair of Poisson sampling, for the snapshots and for every inner step.
    """
    snapshots, inner = epoch_signals(plan, score, few_runs(plan, first, second))
    rates = plan.settings.shape(plan.n).snapshot / plan.n, plan.settings.batch_size / plan.n
    found = (
        repeated(float(np.mean(snapshots)), rates[0], plan.adjacency, len(snapshots)),
        repeated(inner.mean, rates[1], plan.adjacency, round(inner.number)),
    )
    return share(Composed(*(event for event in found if event.count > 0)), plan)
