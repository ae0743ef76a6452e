"""The kept coordinate: for hard thresholding, one record on a coordinate that the other records keep in the model.

The records are a canary x = L e_1, whose label gives its gradient the largest size, and pushing records on the same
coordinate with the opposite label. They push the coordinate into the top s, so that thresholding hides nothing of the
canary. In the neighbouring dataset the canary has the opposite label (replace-one) or is a zero row (zero-out).

Where gradients are clipped, labels lie so far out that every gradient stays at its bound, whatever the weights. Then
steps do not contract, and the last iterate shows as much as all noisy gradients together. A logistic canary's gradient
moves by exactly its row when the label flips; there pushing records are few, so that the weights stay small, where the
adaptive noise is smallest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.accounting import Gaussian, account
from dptoolkit.accounting.events import Event
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.theory.likelihood import gradients
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# The delta at which the epsilon of a pair is compared with that of the guarantee.
_DELTA = 1e-5
# Standard deviations by which a pushed coordinate must lead after one step to count as kept.
LEAD = 5.0
# Trials from which the reach of a pair is estimated where there is no formula for it, and by which pairs are compared.
PILOT, COMPARED = 256, 64
# Runs on each dataset by which a score is measured.
_SCORED = 400


class Records(NamedTuple):
    """The kinds of record: the canary with its two labels, the pushing records and the rest."""

    row: Array
    low: float
    high: float
    pusher: Array
    pusher_label: float


# --- records -------------------------------------------------------------------------------------------


def expect_solver(plan: Plan, *solvers: str) -> None:
    """Refuse plans of other solvers, and those for which no pair of this kind is known."""
    if plan.solver not in solvers:
        raise invalid("plan.solver", plan.solver, " or ".join(map(repr, solvers)))
    if plan.settings.loss_row.task == losses.MULTICLASS:
        raise invalid("plan.settings.loss", plan.settings.loss, "another than 'softmax'", "No worst pair is known yet.")
    check_zero_out(plan)


def check_zero_out(plan: Plan) -> None:
    """Refuse zero-out with an intercept."""
    if plan.adjacency is Adjacency.ZERO_OUT and plan.settings.fit_intercept:
        repair = "A zero row still moves the intercept, so zero-out neighbours with one are not two datasets."
        raise invalid("fit_intercept", True, "False under zero-out", repair)


def is_binary(plan: Plan) -> bool:
    """Whether labels are 0 and 1."""
    return plan.settings.loss_row.task == losses.BINARY


def number_of_steps(plan: Plan) -> int:
    """The number of thresholdings, or of those that the adversary looks at."""
    settings = plan.settings
    return settings.epochs * layout.most_inner_steps(plan) if layout.is_reduced(plan) else settings.steps


def keeps_all(plan: Plan) -> bool:
    """Whether nothing of the first coordinate is thresholded away: all are kept, or its initial weight is so large."""
    sparsity = plan.settings.sparsity
    if sparsity is None or sparsity >= plan.d:
        return True
    start = layout.start(plan)
    return bool(start[0] > _moved(plan)) if start.any() else False


def _moved(plan: Plan) -> float:
    """More than all steps together move a weight, by gradients and by noise."""
    bound, steps = gradient_bound(plan), number_of_steps(plan)
    return steps * float(plan.settings.step_size) * (bound + 40 * max(r.scale for r in plan.releases))


def is_saturated(plan: Plan) -> bool:
    """Whether labels can lie so far out that gradients stay at their bound for all weights."""
    return not is_binary(plan) and plan.settings.label_bound is None


def gradient_bound(plan: Plan) -> float:
    """The bound on one record's gradient."""
    return float(plan.settings.bounds.gradient)


def records_of(plan: Plan, strength: float) -> Records:
    """A canary along e_1, and records that push the other way with ``strength`` times a full gradient."""
    limit = plan.settings.row_norm
    length = 1.0 if limit is None else limit
    row = length * np.eye(1, plan.d)[0]
    low, high = labels_of(plan, length)
    if strength < 1 and is_saturated(plan) and plan.settings.grad_norm is not None:
        # A tiny row with a huge label: its gradient is label times row, short of the bound and nearly constant.
        tiny = 1e-6 * length
        label = min(strength * gradient_bound(plan) / tiny, high)
        return Records(row, low, high, tiny / length * row, label)
    return Records(row, low, high, strength * row, high)


def labels_of(plan: Plan, length: float) -> tuple[float, float]:
    """Labels that make the gradient of a record point along its row, and against it."""
    if is_binary(plan):
        return 0.0, 1.0
    if plan.settings.label_bound is not None:
        return -plan.settings.label_bound, plan.settings.label_bound
    bound, furthest = gradient_bound(plan), _moved(plan) + float(np.abs(layout.start(plan)).max())
    far = 1e3 * (length * furthest + bound / length + 1.0)
    return -far, far


def pair_of(plan: Plan, records: Records, pushing: int) -> tuple[Counted, Counted]:
    """The canary, ``pushing`` records, and zero rows; and its neighbour."""
    zero, rest = np.zeros(plan.d), plan.n - 1 - pushing
    # Zero rows pull an intercept, so half of them pull it each way.
    ends = (0.0, 1.0) if is_binary(plan) else (0.0, 0.0)
    rows = [records.row, records.row, records.pusher, zero, zero]
    labels = [records.low, records.high, records.pusher_label, *ends]
    common = [0, 0, pushing, rest - rest // 2, rest // 2]
    first, second = common.copy(), common.copy()
    first[0] += 1
    second[3 if plan.adjacency is Adjacency.ZERO_OUT else 1] += 1
    return as_counted(plan, rows, labels, first), as_counted(plan, rows, labels, second)


def as_counted(plan: Plan, rows: list[Array], labels: list[float], counts: list[int]) -> Counted:
    """These rows with their labels, each ``counts`` times; equal ones are merged and those of count 0 left out."""
    times: dict[tuple[float, ...], int] = {}
    for row, label, count in zip(rows, labels, counts, strict=True):
        if count > 0:
            key = (*row.tolist(), label)
            times[key] = times.get(key, 0) + count
    both = np.array(list(times)).reshape(len(times), plan.d + 1)
    return Counted(both[:, :-1].copy(), both[:, -1].copy(), np.array(list(times.values()), dtype=np.int64))


def number_pushing(plan: Plan, records: Records) -> int:
    """How many records of dp_ight push. At bounded gradients all of them; elsewhere just enough, as they contract."""
    if keeps_all(plan):
        return 0
    if is_saturated(plan) or plan.noise == 0:
        return plan.n - 1
    w = np.zeros((1, layout.width(plan)))
    alone = gradients(plan, records.pusher[None, :], [records.pusher_label])
    push = float(np.linalg.norm(alone.mean(w))) / plan.n
    noise_at = plan.settings.noise_law(plan)
    return min(plan.n - 1, math.ceil(LEAD * float(noise_at(w)[0]) / push))


def direction(plan: Plan, records: Records) -> Array:
    """The canary's row with its intercept: the first dataset's weights move against it."""
    row = np.append(records.row, 1.0) if plan.settings.fit_intercept else records.row
    return np.asarray(row / np.linalg.norm(row))


# --- what the pairs give away --------------------------------------------------------------------------


def _epsilon(event: Event) -> float:
    return account(event).epsilon(_DELTA)


def share(event: Event, plan: Plan) -> float:
    """The epsilon of an event over the plan's."""
    whole = plan.guarantee.epsilon(_DELTA)
    return _epsilon(event) / whole if 0 < whole < math.inf else math.nan


def few_runs(plan: Plan, first: Counted, second: Counted, runs: int = PILOT) -> Array:
    """The iterates of a few runs on each dataset, as an adversary sees them."""
    from dptoolkit.audit.targets import PlanTarget

    bits = np.arange(runs, dtype=np.int8) % 2
    return PlanTarget(plan, Pair(first, second), "iterates").run(bits, 0, Streams(0, "pairs"))


def measured_reach(plan: Plan, pair: Pair, adversaries: tuple[str, ...]) -> dict[str, float]:
    """The share of the guarantee that the pair's scores show, each taken for Gaussian: within about 5 %.

    The distance of a score's means is estimated from runs that get the same noise on both datasets, its spread from
    both together.
    """
    from dptoolkit.audit.targets import PlanTarget

    shares = {}
    for name in adversaries:
        target, streams = PlanTarget(plan, pair, name), Streams(0, "pairs")
        runs = [target.run(np.full(_SCORED, bit, dtype=np.int8), 0, streams) for bit in (1, 0)]
        one, two = (pair.scores[name](outputs) for outputs in runs)
        spread = math.sqrt((float(np.var(one)) + float(np.var(two))) / 2)
        mu = float(np.mean(one) - np.mean(two)) / spread if spread > 0 else 0.0
        shares[name] = share(Gaussian(1 / mu), plan) if mu > 0 else 0.0
    return shares


def before_steps(plan: Plan, path: Array) -> list[Array]:
    """The weights before every step, from those after all but the last: (trials, steps, width) to a list."""
    return [np.tile(layout.start(plan), (len(path), 1)), *path.swapaxes(0, 1)]
