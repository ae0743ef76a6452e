"""The worst pair we know for multinomial Frank-Wolfe.

At small weights a record of class c has gradient (1/K - [k = c]) x_j, half of what the plan allows for K = 2. Two kinds
of pairs are tried, and the one that attains more of the guarantee is returned. One is the same row in class 0 or 1.
The other, for single vertices, is a row of alternating signs or its negative, both in class 0, among other records that
make the positive vertices of class 0 the only likely ones: then one record reaches 1 - 1/K of the range. These others
have smaller entries where the record's are positive, which moves the odds to where the rounds together leak most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs.odds import rounds_advantage, rounds_epsilon
from dptoolkit.audit.pairs.pair import Array, Counted, Pair
from dptoolkit.audit.pairs.replay import Later, Replay
from dptoolkit.audit.pairs.selection import DELTA, check_plan, vertex_reach, vertex_scores
from dptoolkit.solvers.plan import Plan

# A total variation of at least this share of the largest counts as good.
_NEARLY = 0.9
# Gaps and numbers of other records that are tried.
_GAPS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
_OTHERS = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 130, 200, 320, 500, 800, 1300, 2000)


def dp_multinomial_frank_wolfe(plan: Plan) -> Pair:
    """The better of the pairs above, with the best number of other records; all further rows are zero."""
    check_plan(plan, "dp_multinomial_frank_wolfe")
    kinds = ("class", "sign") if plan.settings.selection == "vertex" and plan.d > 1 else ("class",)
    options = [
        (kind, count, gap) for count in _OTHERS if count < plan.n for kind in kinds
        for gap in (_GAPS if kind == "sign" and count else (0.0,))
    ]  # fmt: skip
    replays = [_replay(plan, *option) for option in options]
    best = _best([_attained(replay) for replay in replays])
    kind, count, gap = options[best]
    first, second = _pair(plan, kind, count, gap)
    scores = vertex_scores(replays[best])
    change = "a record of class 0 or 1" if kind == "class" else "a record of alternating signs or its negative"
    if plan.adjacency is Adjacency.ZERO_OUT:
        change = change.split(" or ")[0] + " or a zero row"
    description = f"{change}, all features at their bound, {count} records of class 0, zero rows"
    return Pair(first, second, plan.adjacency, description, scores, Later(vertex_reach, replays[best], scores))


class _Shares(NamedTuple):
    """What a pair attains of the guarantee's total variation and of its epsilon."""

    variation: float
    epsilon: float


def _attained(replay: Replay) -> _Shares:
    """Both shares, if every round had the first round's odds.

    The odds are those of the vertices whose scores the record moves by more than half of the largest move.
    """
    plan, start = replay.plan, np.zeros((1, replay.groups, replay.size))
    one, two = (scores[0, 0] for scores in replay.raw_scores(start))
    move = np.concatenate([one - two, two - one])
    event = move > 0.5 * move.max()

    def odds(scores: Array) -> float:
        both = np.concatenate([scores, -scores])
        return float(logsumexp(both[event]) - logsumexp(both[~event]))

    first, second, rounds = odds(one), odds(two), replay.steps * replay.groups
    return _Shares(
        rounds_advantage(first, second, rounds) / plan.guarantee.delta(0.0),
        rounds_epsilon(first, second, rounds, DELTA) / plan.guarantee.epsilon(DELTA),
    )


def _best(shares: list[_Shares]) -> int:
    """The largest share of epsilon among those whose total variation, which finds missing noise, is nearly the largest.

    Of equal ones it is the first, with the fewest records, since runs take longer with more.
    """
    variation = max(share.variation for share in shares)
    epsilons = [share.epsilon if share.variation >= _NEARLY * variation else 0.0 for share in shares]
    return next(i for i, epsilon in enumerate(epsilons) if epsilon >= 0.98 * max(epsilons))


def _replay(plan: Plan, kind: str, count: int, gap: float = 0.0) -> Replay:
    # With two classes a class pair's scores are equal within each half.
    return Replay(plan, *_pair(plan, kind, count, gap), halves=kind == "class" and plan.settings.classes == 2)


def _pair(plan: Plan, kind: str, count: int, gap: float) -> tuple[Counted, Counted]:
    """``gap``: how many noise scales the vertices that the record raises lie below those that it lowers."""
    bound = plan.settings.feature_bound
    ones, zero = np.full(plan.d, bound), np.zeros(plan.d)
    x = ones if kind == "class" else np.where(np.arange(plan.d) % 2 == 0, bound, -bound)
    other, label = (x, 1.0) if kind == "class" else (-x, 0.0)
    if plan.adjacency is Adjacency.ZERO_OUT:
        other, label = zero, 0.0
    counts = np.array([1, count, plan.n - 1 - count])
    others = ones.copy()
    if gap:
        each = plan.settings.l1_radius * (1 - 1 / plan.settings.classes) / plan.n
        others[x > 0] = max(bound - gap * plan.noise / (count * each), -bound)
    return (
        Counted(np.array([x, others, zero]), np.array([0.0, 0.0, 0.0]), counts),
        Counted(np.array([other, others, zero]), np.array([label, 0.0, 0.0]), counts),
    )
