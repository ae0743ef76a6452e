"""Worst pairs for solvers that choose by noisy scores, each made from a plan, and for one noisy maximum alone.

Frank-Wolfe: all rows are multiples of the all-ones row, so all features have the same gradient and every selection is a
choice between two halves of the vertices; one record moves its odds by the whole range. Rows that pull one way put the
odds where the composition of all rounds leaks most: at even odds a guarantee's epsilon at a small delta is not reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs.odds import LogOdds, rounds_advantage, rounds_epsilon
from dptoolkit.audit.pairs.pair import Array, Counted, Pair, Score
from dptoolkit.audit.pairs.replay import FinalScore, IterateScore, Replay, VertexScore, Walk, drawn_reach
from dptoolkit.solvers.base import Plan

_DELTA = 1e-5
# Rows that pull one way are not added beyond this many units of log odds, nor are more numbers of rows tried than this.
_LARGEST_PULL = 4.0
_NUMBERS_TRIED = 80


def dp_frank_wolfe(plan: Plan, pulling: int | None = None) -> Pair:
    """A record with all features at their bound and an extreme label, against the opposite label or a zero row.

    ``pulling`` more such records (default: the number for which the weaker of two shares of the guarantee is largest,
    that of its delta at epsilon 0 and that of its epsilon at delta 1e-5) hold the odds of the two halves of the
    vertices off balance; negative numbers pull the other way. All other rows are zero.
    """
    _check(plan, "dp_frank_wolfe")
    number = _best_pull(plan) if pulling is None else pulling
    first, second = _halves(plan, number)
    replay = Replay(plan, first, second, halves=True)
    scores = _vertex_scores(replay)
    description = f"{_record(plan)}, {abs(number)} rows that pull, zero rows"
    return Pair(first, second, plan.adjacency, description, scores, _vertex_reach(replay, scores))


def _check(plan: Plan, solver: str) -> None:
    if plan.solver != solver:
        raise invalid("plan.solver", plan.solver, repr(solver))
    if plan.noise == 0:
        raise invalid("plan.noise", plan.noise, "> 0", "A fit without noise cannot be audited.")
    if plan.settings.get("fit_intercept"):
        raise invalid("fit_intercept", True, "False for this pair", "All rows would share the intercept's feature.")


def _record(plan: Plan) -> str:
    other = "the opposite label" if plan.adjacency is Adjacency.REPLACE_ONE else "a zero row"
    return f"one record with all features at their bound against {other}"


def _vertex_scores(replay: Replay) -> dict[str, Score]:
    vertices = VertexScore(replay)
    scores: dict[str, Score] = {"releases": vertices, "step": vertices, "final": FinalScore(replay)}
    return scores | ({"iterates": IterateScore(replay)} if replay.groups == 1 and not replay.classes else {})


def _vertex_reach(replay: Replay, scores: dict[str, Score]) -> dict[str, float]:
    found = drawn_reach(replay, _of_walks(replay, scores), _DELTA)
    return found | ({"iterates": found["releases"]} if "iterates" in scores and found else {})


def _of_walks(replay: Replay, scores: dict[str, Score]) -> dict[str, Callable[[Walk], Array]]:
    def final(walk: Walk) -> Array:
        weights = walk.weights.transpose(0, 2, 1) if replay.groups > 1 else walk.weights
        return scores["final"](weights.reshape(len(weights), -1))

    return {"releases": lambda walk: walk.first - walk.second, "final": final}


def _labels(plan: Plan) -> tuple[float, float]:
    """The two extreme labels of the plan's loss: the largest residual there is, and the smallest."""
    s = plan.settings
    if s["loss"] == "logistic":
        return 0.0, 1.0
    # Huber: beyond every margin by 1, where the residual is at its bound.
    size = s["feature_bound"] * s["l1_radius"] + 1.0 if s["label_bound"] is None else s["label_bound"]
    return -size, size


def _halves(plan: Plan, pulling: int) -> tuple[Counted, Counted]:
    if abs(pulling) > plan.n - 1:
        raise invalid("pulling", pulling, f"at most n - 1 = {plan.n - 1} in size")
    ones, zero = np.full(plan.d, plan.settings["feature_bound"]), np.zeros(plan.d)
    low, high = _labels(plan)
    rest = (low if pulling > 0 else high, 0.0)
    counts = np.array([1, abs(pulling), plan.n - 1 - abs(pulling)])
    other = (zero, 0.0) if plan.adjacency is Adjacency.ZERO_OUT else (ones, high)
    return tuple(  # type: ignore[return-value]
        Counted(np.array([x, ones, zero]), np.array([label, *rest]), counts) for x, label in ((ones, low), other)
    )


def _best_pull(plan: Plan) -> int:
    """The number of pulling rows with the largest weaker share; rounds are taken to have the first one's odds."""
    count, gap = int(plan.settings["steps"]), LogOdds(plan.settings["noise"], plan.d)
    first, second = (_gap(plan, data) for data in _halves(plan, 0))
    each = _gap(plan, _halves(plan, 1)[0]) - first if plan.n > 1 else 0.0
    most = min(plan.n - 1, int(_LARGEST_PULL / each)) if each > 0 else 0
    tried = np.unique(np.rint(np.linspace(-most, most, _NUMBERS_TRIED)).astype(int)).tolist()
    if 0 not in tried:
        tried.append(0)
    epsilon, advantage = plan.guarantee.epsilon(_DELTA), plan.guarantee.delta(0.0)

    def weaker(number: int) -> float:
        odds = [float(gap(np.array(g + number * each))) for g in (first, second)]
        shares = (
            rounds_epsilon(odds[0], odds[1], count, _DELTA) / epsilon,
            rounds_advantage(odds[0], odds[1], count) / advantage,
        )
        return min(shares)

    return int(max(sorted(tried, key=abs), key=weaker))


def _gap(plan: Plan, data: Counted) -> float:
    """How far, in noise scales, the first selection's two halves are apart."""
    zero = Replay(plan, data, data)
    scores = next(iter(zero.raw_scores(np.zeros((1, zero.groups, zero.size)))))
    return float(-2 * scores[0, 0, 0])


def selection(mechanism: Any, candidates: int = 10) -> Pair:
    raise NotImplementedError
