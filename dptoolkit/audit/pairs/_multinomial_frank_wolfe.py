"""The worst pair we know for multinomial Frank-Wolfe.

At zero weights a record of class c has gradient (1/K - [k = c]) x_j, and residuals of 1 - 1/K are what the noise is
for. Two kinds of pairs are tried, and the one that shows more of the guarantee is returned. One is the same row in
class 0 or 1. The other is a row or its negative, both in class 0, which moves the scores of class 0 by the whole range.
For single vertices the row has alternating signs, among other records that make the positive vertices of class 0 the
only likely ones. These others have smaller entries where the record's are positive, which moves the odds to where the
rounds together leak most. By columns the row has all features at their bound. There both vertices of a class cannot be
made likely while others are not. But those of two classes can, from five classes on: other records of classes 0 and 1
do that, and the record moves the odds between the two. With fewer classes there are no others, and no vertex is
likelier than another.

The intercept's column is the same for a row and its negative; rows of all classes, as many of each, hold it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.pairs._frank_wolfe import DELTA, check_plan, quick_reach, vertex_reach, vertex_scores
from dptoolkit.audit.theory.kept import check_zero_out
from dptoolkit.audit.theory.odds import rounds_advantage, rounds_epsilon
from dptoolkit.audit.theory.replay import Later, Replay
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._multinomial_frank_wolfe import ResolvedMultinomial

# The settings of the audit's preset.
PRESETS: dict[str, dict[str, Any]] = {
    "dp_multinomial_frank_wolfe": {"n": 100, "d": 4, "classes": 3, "steps": 10, "l1_radius": 0.1, "feature_bound": 1.0},
}

# A total variation of at least this share of the largest counts as good.
_NEARLY = 0.9
# How many numbers of other records are compared by runs.
_FINALISTS = 4
# Gaps and numbers of other records that are tried.
_GAPS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
_MORE_RIVALS = (0.0, -0.1, 0.1, 0.3)
# From this many classes on the vertices of two of them can be ahead of all others; how many designs runs compare.
_TWO_LEAD, _COLUMN_FINALISTS = 5, 8
_OTHERS = (0, 1, 2, 3, 5, 8, 13, 20, 32, 50, 80, 130, 200, 320, 500, 800, 1300, 2000)


class Design(NamedTuple):
    """``kind``: "class" or "sign", what the record changes; ``others``: how many there are of class 0.

    ``gap``: how many noise scales the vertices that the record raises lie below those that it lowers. ``rivals``: how
    many others there are of class 1.
    """

    kind: str
    others: int = 0
    gap: float = 0.0
    rivals: int = 0


def dp_multinomial_frank_wolfe(plan: Plan) -> Pair:
    """The better of the pairs above, with the best number of other records; all further rows are zero."""
    check_plan(plan, "dp_multinomial_frank_wolfe", intercept=True)
    check_zero_out(plan)
    best, replay = _by_columns(plan) if plan.settings.selection == "columns" else _by_vertex(plan)
    first, second = _pair(plan, best)
    scores = vertex_scores(replay)
    change = "a record of class 0 or 1" if best.kind == "class" else "a record or its negative, of class 0"
    if plan.adjacency is Adjacency.ZERO_OUT:
        change = "a record of class 0 or a zero row"
    rivals = f" and {best.rivals} of class 1" if best.rivals else ""
    description = f"{change}, all features at their bound, {best.others} records of class 0{rivals}, zero rows"
    return Pair(first, second, plan.adjacency, description, scores, Later(vertex_reach, replay, scores))


def _by_vertex(plan: Plan[ResolvedMultinomial]) -> tuple[Design, Replay]:
    """The best design for single vertices, of those that attain most at first."""
    groups = [_designs(plan, kind) for kind in ("class", "sign")]
    replays = {design: _replay(plan, design) for group in groups for design in group}
    leaders = [group[_best([_attained(replays[design]) for design in group])] for group in groups if group]
    finalists = [design for leader in leaders for design in _with_more(leader, replays)]
    best = max(finalists, key=lambda design: quick_reach(replays[design])) if len(finalists) > 1 else finalists[0]
    return best, replays[best]


def _by_columns(plan: Plan[ResolvedMultinomial]) -> tuple[Design, Replay]:
    """The best design for columns, of those whose first step leaks most."""
    kinds = ("sign",) if plan.settings.fit_intercept else ("class", "sign")
    designs = [Design(kind) for kind in kinds]
    room = (plan.n - 1) // 2
    if plan.settings.classes >= _TWO_LEAD:
        numbers = [count for count in _OTHERS if 0 < count <= room]
        designs += [
            Design(kind, count, rivals=min(max(count + round(more * count), 0), plan.n - 1 - count))
            for kind in kinds
            for count in numbers
            for more in _MORE_RIVALS
        ]
    replays = {design: _replay(plan, design) for design in dict.fromkeys(designs)}
    finalists = sorted(replays, key=lambda design: -replays[design].first_spread())[:_COLUMN_FINALISTS]
    best = max(finalists, key=lambda design: quick_reach(replays[design])) if len(finalists) > 1 else finalists[0]
    return best, replays[best]


def _with_more(leader: Design, designs: Iterable[Design]) -> list[Design]:
    """The design, and with more others: they learn their class and push less than at first."""
    alike = [design for design in designs if leader._replace(others=design.others) == design]
    return [design for design in alike if design.others >= leader.others][:_FINALISTS]


def _designs(plan: Plan[ResolvedMultinomial], kind: str) -> list[Design]:
    """The designs of one kind that are tried."""
    numbers = [count for count in _OTHERS if count < plan.n]
    if kind == "class":
        # Another class would move an intercept.
        return [] if plan.settings.fit_intercept else [Design(kind, count) for count in numbers]
    return [Design(kind, count, gap) for count in numbers for gap in (_GAPS if count else (0.0,))]


class _Shares(NamedTuple):
    """The shares of the guarantee's total variation and of its epsilon that a pair attains."""

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


def _replay(plan: Plan[ResolvedMultinomial], design: Design) -> Replay:
    # With two classes a class pair's scores are equal within each half.
    halves = design.kind == "class" and plan.settings.classes == 2
    return Replay(plan, *_pair(plan, design), halves=halves)


def _pair(plan: Plan[ResolvedMultinomial], design: Design) -> tuple[Counted, Counted]:
    s = plan.settings
    ones, zero = np.full(plan.d, s.feature_bound), np.zeros(plan.d)
    plain = design.kind == "class" or s.selection == "columns"
    x = ones if plain else np.where(np.arange(plan.d) % 2 == 0, ones, -ones)
    other, label = (x, 1.0) if design.kind == "class" else (-x, 0.0)
    if plan.adjacency is Adjacency.ZERO_OUT:
        other, label = zero, 0.0
    rest = plan.n - 1 - design.others - design.rivals
    # Without an intercept the class of a zero row says nothing.
    classes = _balanced(rest, [design.others + 1, design.rivals], s.classes) if s.fit_intercept else [rest]
    labels = np.array([0.0, 1.0, *range(len(classes))])
    common = np.array([_others(plan, design, x), x, *[zero] * len(classes)])
    counts = np.array([1, design.others, design.rivals, *classes])

    def with_record(row: Array, y: float) -> Counted:
        return Counted(np.vstack([row, common]), np.append(y, labels), counts)

    return with_record(x, 0.0), with_record(other, label)


def _others(plan: Plan[ResolvedMultinomial], design: Design, x: Array) -> Array:
    """The row of the other records of class 0."""
    s, row = plan.settings, np.full(plan.d, plan.settings.feature_bound)
    if design.gap:
        pushed = design.others * s.l1_radius * (1 - 1 / s.classes) / plan.n
        row[x > 0] = max(s.feature_bound - design.gap * plan.noise / pushed, -s.feature_bound)
    return row


def _balanced(rest: int, taken: list[int], classes: int) -> list[int]:
    """How many of ``rest`` rows each class gets, so that all have as many where the first have some already."""
    have, given = taken + [0] * (classes - len(taken)), [0] * classes
    waiting = sorted(range(classes), key=lambda k: -have[k])
    while waiting:
        level = (rest - sum(given) + sum(have[k] for k in waiting)) // len(waiting)
        most = waiting.pop(0)
        # Who has more than the level gets nothing, and the others share what is left.
        given[most] = max(level - have[most], 0)
    return given
