"""The worst pair we know for multinomial Frank-Wolfe.

At small weights a record of class c has gradient (1/K - [k = c]) x_j, half of what the plan allows for K = 2. Two kinds
of pairs are tried, and the one whose log likelihood ratio varies more is returned. One is the same row in class 0 or 1.
The other, for single vertices, is a row of alternating signs or its negative, both in class 0, among other records that
make the positive vertices of class 0 the only likely ones: then one record reaches 1 - 1/K of the range.
"""

from __future__ import annotations

import numpy as np

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs.pair import Counted, Pair
from dptoolkit.audit.pairs.replay import Later, Replay
from dptoolkit.audit.pairs.selection import check_plan, vertex_reach, vertex_scores
from dptoolkit.solvers.plan import Plan

# Numbers of other records that are tried.
_OTHERS = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 130, 200, 320, 500, 800, 1300, 2000)


def dp_multinomial_frank_wolfe(plan: Plan) -> Pair:
    """The better of the pairs above, with the best number of other records; all further rows are zero."""
    check_plan(plan, "dp_multinomial_frank_wolfe")
    kinds = ("class", "sign") if plan.settings.selection == "vertex" and plan.d > 1 else ("class",)
    options = [(kind, count) for count in _OTHERS if count < plan.n for kind in kinds]
    replays = [_replay(plan, kind, count) for kind, count in options]
    spreads = np.array([replay.first_spread() for replay in replays])
    # The fewest records that are nearly as good as the best number, since runs take longer with more.
    best = int(np.argmax(spreads >= 0.98 * spreads.max()))
    kind, count = options[best]
    first, second = _pair(plan, kind, count)
    scores = vertex_scores(replays[best])
    change = "a record of class 0 or 1" if kind == "class" else "a record of alternating signs or its negative"
    if plan.adjacency is Adjacency.ZERO_OUT:
        change = change.split(" or ")[0] + " or a zero row"
    description = f"{change}, all features at their bound, {count} records of class 0, zero rows"
    return Pair(first, second, plan.adjacency, description, scores, Later(vertex_reach, replays[best], scores))


def _replay(plan: Plan, kind: str, count: int) -> Replay:
    # With two classes a class pair's scores are equal within each half.
    return Replay(plan, *_pair(plan, kind, count), halves=kind == "class" and plan.settings.classes == 2)


def _pair(plan: Plan, kind: str, count: int) -> tuple[Counted, Counted]:
    bound = plan.settings.feature_bound
    ones, zero = np.full(plan.d, bound), np.zeros(plan.d)
    x = ones if kind == "class" else np.where(np.arange(plan.d) % 2 == 0, bound, -bound)
    other, label = (x, 1.0) if kind == "class" else (-x, 0.0)
    if plan.adjacency is Adjacency.ZERO_OUT:
        other, label = zero, 0.0
    counts = np.array([1, count, plan.n - 1 - count])
    return (
        Counted(np.array([x, ones, zero]), np.array([0.0, 0.0, 0.0]), counts),
        Counted(np.array([other, ones, zero]), np.array([label, 0.0, 0.0]), counts),
    )
