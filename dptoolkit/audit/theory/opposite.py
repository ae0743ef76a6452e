"""Opposite rows: two canaries that mirror each other across the way along which all other records push the weights.

A label flip moves a logistic gradient by the row, half of what the bound allows. Two records z1 = L (cos t u + sin t v)
and z2 = L (cos t u - sin t v) of the same label move it by 2 s sin t L along v, where s is the residual at their common
margin L |w| cos t. The other records are along u, so the weights run along u, the residual grows towards its bound, and
nothing contracts along v: the last iterate shows the sum of all steps. Both coordinates of u and v stay in the model.

An intercept's entry cannot be turned round, but its gradient can, with the label: there the second record has the
other label and the row L (-cos t u + sin t v), and the others push with both labels so that the intercept stays.

The angle t, the number of records that push and the length of their rows are chosen by runs of the solver on both
datasets with the same noise: the mean difference of their last weights, over its spread, is what a final model shows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.theory.kept import as_counted, is_saturated, labels_of, number_of_steps
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# Angles in degrees, shares of the other records that push, and lengths of their rows as shares of the bound.
_ANGLES = (89.0, 85.0, 80.0, 75.0, 70.0, 65.0, 62.0, 58.0, 50.0, 35.0, 10.0)
_PUSHES = (1.0, 0.5, 0.25, 0.1)
_LENGTHS = (1.0, 0.7, 0.5, 0.2)
# Runs by which designs are compared, and by which the chosen one is measured; fewer where a run has many numbers.
_COMPARED, _MEASURED, _NUMBERS = 1024, 4096, 2_000_000


class Design(NamedTuple):
    """``angle`` of the canary's row to the way, in degrees; ``push`` and ``length`` of the records that push."""

    angle: float
    push: float
    length: float


class Measured(NamedTuple):
    """What the final weights show: the distance of their laws in standard deviations, and along which direction."""

    mu: float
    direction: Array


def applies(plan: Plan) -> bool:
    """Whether two coordinates can be kept, and gradients depend on the weights so that these rows may be better."""
    sparsity = plan.settings.sparsity
    room = plan.d >= 2 and (sparsity is None or sparsity >= 2) and plan.n >= 3
    return room and plan.noise > 0 and not is_saturated(plan)


def ways(plan: Plan) -> tuple[Array, Array]:
    """The way u of the weights, which moves two coordinates alike, and v across it."""
    u, v = np.zeros((2, plan.d))
    u[:2] = math.sqrt(0.5)
    v[:2] = math.sqrt(0.5), -math.sqrt(0.5)
    return u, v


def records(plan: Plan, design: Design) -> tuple[list[Array], list[float], list[int]]:
    """Rows, labels and counts: the canary, its replacement, and the others (the first two of count 0)."""
    u, v = ways(plan)
    norm, t = plan.settings.row_norm, math.radians(design.angle)
    low, high = labels_of(plan, norm)
    along, across = norm * math.cos(t) * u, norm * math.sin(t) * v
    pushing = max(1, math.floor(design.push * (plan.n - 1)))
    rest = plan.n - 1 - pushing
    # Zero rows pull an intercept, so half of them pull it each way.
    rows = [along + across, along - across, design.length * norm * u, 0 * u, 0 * u]
    labels, counts = [low, low, high, low, high], [0, 0, pushing, rest - rest // 2, rest // 2]
    if plan.adjacency is Adjacency.ZERO_OUT:
        rows[1] = 0 * u
    elif plan.settings.fit_intercept:
        rows[1], labels[1] = across - along, high
        back = pushing // 2
        rows, labels, counts = [*rows, -rows[2]], [*labels, low], [*counts, back]
        counts[2] = pushing - back
    return rows, labels, counts


def datasets(plan: Plan, design: Design) -> tuple[Counted, Counted]:
    """The two datasets of a design."""
    rows, labels, counts = records(plan, design)
    first, second = ([1, 0, *counts[2:]], [0, 1, *counts[2:]])
    return as_counted(plan, rows, labels, first), as_counted(plan, rows, labels, second)


def best_design(plan: Plan) -> Design:
    """The design whose final weights show most, found one parameter at a time."""
    best = Design(65.0, 1.0, 1.0)
    seen: dict[Design, float] = {}

    def shown(design: Design) -> float:
        if design not in seen:
            seen[design] = measure(plan, *datasets(plan, design), _COMPARED).mu
        return seen[design]

    grid: list[tuple[str, Any]] = [("angle", _ANGLES), ("push", _PUSHES), ("length", _LENGTHS), ("angle", _ANGLES)]
    for name, values in grid:
        best = max((best._replace(**{name: value}) for value in values), key=shown)
    return best


def measure(plan: Plan, first: Counted, second: Counted, runs: int = _MEASURED) -> Measured:
    """mu = sqrt(difference' covariance^-1 difference) of the final weights that may differ, from coupled runs.

    Both datasets get the same noise, so that their mean difference has a small error.
    """
    from dptoolkit.audit.targets import PlanTarget

    width = layout.width(plan)
    runs = max(64, min(runs, _NUMBERS // (width * number_of_steps(plan))))
    look = sorted({0, *range(min(2, plan.d)), *range(plan.d, width)})
    target, streams = PlanTarget(plan, Pair(first, second), "final"), Streams(0, "pairs")
    one, two = (target.run(np.full(runs, bit, dtype=np.int8), 0, streams)[:, look] for bit in (1, 0))
    difference = (one - two).mean(axis=0)
    covariance = 0.5 * (np.atleast_2d(np.cov(one.T)) + np.atleast_2d(np.cov(two.T)))
    covariance += 1e-12 * max(float(np.trace(covariance)), 1e-300) * np.eye(len(look))
    towards = np.linalg.solve(covariance, difference)
    direction = np.zeros(width)
    direction[look] = towards / max(float(np.linalg.norm(towards)), 1e-300)
    return Measured(math.sqrt(max(float(difference @ towards), 0.0)), direction)
