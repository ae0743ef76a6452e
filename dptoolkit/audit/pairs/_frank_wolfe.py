"""Worst pairs for solvers that choose by noisy scores, each made from a plan, and for one noisy maximum alone.

For Frank-Wolfe all rows are multiples of the all-ones row. So all features have the same gradient, every selection is a
choice between two halves of the vertices, and one record moves its odds by the whole range. Further rows that pull in
one direction move the odds to where the composition of all rounds leaks most: at even odds the guarantee's epsilon at a
small delta is not reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, whole
from dptoolkit.accounting import account
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.theory import control
from dptoolkit.audit.theory.odds import LogOdds, favoured_wins, rounds_advantage, rounds_epsilon
from dptoolkit.audit.theory.replay import FinalScore, IterateScore, Later, Replay, VertexScore, Walk, drawn_reach
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# The settings of the audit's preset.
PRESETS: dict[str, dict[str, Any]] = {
    "dp_frank_wolfe": {"n": 100, "d": 4, "loss": "logistic", "steps": 10, "l1_radius": 0.1, "feature_bound": 1.0},
}

# The delta at which the reach of a pair is computed.
DELTA = 1e-5
# Rows that pull move the log odds by at most the first number; at most the second number of row counts is tried.
_LARGEST_PULL = 4.0
_NUMBERS_TRIED = 80
# The 0.95 quantile of the standard normal law.
_NORMAL_95 = 1.6448536
# Runs by which pairs are compared.
_COMPARED = 400


def dp_frank_wolfe(plan: Plan, pulling: int | None = None) -> Pair:
    """A record with all features at their bound and an extreme label, against the opposite label or a zero row.

    ``pulling`` more such records shift the odds between the two halves of the vertices; a negative number shifts them
    the other way. All other rows are zero. The default is chosen by what the pair attains of the guarantee's delta at
    epsilon 0 and of its epsilon at delta 1e-5: the number for which the smaller of these two shares is largest.

    Where gradients depend on the weights, and with an intercept, a control coordinate is tried too, under replace-one
    and with Gumbel noise: see ``control``.
    """
    check_plan(plan, "dp_frank_wolfe", intercept=True)
    found = None
    if control.applies(plan) and pulling is None:
        found = _controlled(plan)
    if plan.settings.fit_intercept:
        if found is None:
            raise invalid("fit_intercept", True, "False under zero-out and with Laplace noise", "No pair is known.")
        return found[1]
    number = _best_pull(plan) if pulling is None else pulling
    first, second = _halves(plan, number)
    replay = Replay(plan, first, second, halves=True)
    if found is not None and found[0] > quick_reach(replay):
        return found[1]
    scores = vertex_scores(replay)
    description = f"{_record(plan)}, {abs(number)} rows that pull, zero rows"
    return Pair(first, second, plan.adjacency, description, scores, Later(vertex_reach, replay, scores))


def _controlled(plan: Plan) -> tuple[float, Pair]:
    """What the best control coordinate shows, and its pair: the push for a middling pull, and then the pull."""
    labels = extreme_labels(plan)
    made: dict[control.Control, tuple[float, Replay]] = {}

    def shown(design: control.Control) -> float:
        if design not in made:
            replay = Replay(plan, *control.datasets(plan, design, labels))
            made[design] = quick_reach(replay), replay
        return made[design][0]

    best = max((control.Control(push, -1.0) for push in control.PUSHES), key=shown)
    best = max((best._replace(pull=pull) for pull in control.PULLS), key=shown)
    first, second = control.datasets(plan, best, labels)
    scores = vertex_scores(made[best][1])
    description = f"opposite records of one label beside a control coordinate, pushed by {best.push:g} noise scales"
    reach = Later(vertex_reach, made[best][1], scores)
    return made[best][0], Pair(first, second, plan.adjacency, description, scores, reach)


def quick_reach(replay: Replay) -> float:
    """The share of epsilon, or of the total variation if that is smaller, that all releases show, from few runs."""
    epsilon = drawn_reach(replay.plan, replay.walk, {"releases": log_ratio}, DELTA, _COMPARED)["releases"]
    ratio = log_ratio(replay.walk(_COMPARED, np.random.default_rng(0), 0.0))
    variation = float(np.mean(-np.expm1(-np.maximum(ratio, 0.0))))
    return min(epsilon, variation / replay.plan.guarantee.delta(0.0))


def check_plan(plan: Plan, solver: str, *, intercept: bool = False) -> None:
    """Refuse plans of other solvers, and those for which no pair of this kind is known: with an intercept, if so."""
    if plan.solver != solver:
        raise invalid("plan.solver", plan.solver, repr(solver))
    if plan.noise == 0:
        raise invalid("plan.noise", plan.noise, "> 0", "A fit without noise cannot be audited.")
    if plan.settings.width(plan.d) > plan.d and not intercept:
        raise invalid("fit_intercept", True, "False for this pair", "All rows would share the intercept's feature.")


def _record(plan: Plan) -> str:
    other = "the opposite label" if plan.adjacency is Adjacency.REPLACE_ONE else "a zero row"
    return f"one record with all features at their bound against {other}"


def vertex_scores(replay: Replay) -> dict[str, Score]:
    """The scores by adversary: of the chosen vertices, or of the weights that they make."""
    vertices = VertexScore(replay)
    scores: dict[str, Score] = {"releases": vertices, "step": vertices, "final": FinalScore(replay)}
    return scores | ({"iterates": IterateScore(replay)} if replay.groups == 1 else {})


def vertex_reach(replay: Replay, scores: dict[str, Score]) -> dict[str, float]:
    """The share of the guarantee that these scores attain; empty where drawing runs would take too long."""
    if not replay.affordable:
        return {}

    def final(walk: Walk) -> Array:
        weights = walk.weights.transpose(0, 2, 1) if replay.groups > 1 else walk.weights
        return scores["final"](weights.reshape(len(weights), -1))

    shares = drawn_reach(replay.plan, replay.walk, {"releases": log_ratio, "final": final}, DELTA, replay.affordable)
    return shares | ({"iterates": shares["releases"]} if "iterates" in scores else {})


def log_ratio(walk: Walk) -> Array:
    """The best statistic of all that was released."""
    return walk.first - walk.second


def extreme_labels(plan: Plan) -> tuple[float, float]:
    """The labels with the largest and with the smallest residual of the plan's loss."""
    s = plan.settings
    if s.loss_row.task == losses.BINARY:
        return 0.0, 1.0
    # For the Huber loss the label is 1 beyond every margin, where the residual is at its bound.
    size = s.feature_bound * s.l1_radius + 1.0 if s.label_bound is None else s.label_bound
    return -size, size


def _halves(plan: Plan, pulling: int) -> tuple[Counted, Counted]:
    if abs(pulling) > plan.n - 1:
        raise invalid("pulling", pulling, f"at most n - 1 = {plan.n - 1} in size")
    ones, zero = np.full(plan.d, plan.settings.feature_bound), np.zeros(plan.d)
    low, high = extreme_labels(plan)
    rest = (low if pulling > 0 else high, 0.0)
    counts = np.array([1, abs(pulling), plan.n - 1 - abs(pulling)])

    def with_record(x: Array, label: float) -> Counted:
        return Counted(np.array([x, ones, zero]), np.array([label, *rest]), counts)

    other = with_record(zero, 0.0) if plan.adjacency is Adjacency.ZERO_OUT else with_record(ones, high)
    return with_record(ones, low), other


def _best_pull(plan: Plan) -> int:
    """The default of ``pulling`` in ``dp_frank_wolfe``, computed as if every round had the first round's odds."""
    count, to_odds = int(plan.settings.steps), LogOdds(plan.settings.law, plan.d)
    first, second = (_gap(plan, data) for data in _halves(plan, 0))
    each = _gap(plan, _halves(plan, 1)[0]) - first if plan.n > 1 else 0.0
    most = min(plan.n - 1, int(_LARGEST_PULL / each)) if each > 0 else 0
    numbers = {0, *np.rint(np.linspace(-most, most, _NUMBERS_TRIED)).astype(int).tolist()}
    guarantee = plan.guarantee
    epsilon, advantage = guarantee.epsilon(DELTA), guarantee.delta(0.0)

    def weaker(number: int) -> float:
        one, two = (float(to_odds(np.array(gap + number * each))) for gap in (first, second))
        return min(rounds_epsilon(one, two, count, DELTA) / epsilon, rounds_advantage(one, two, count) / advantage)

    return max(sorted(numbers, key=abs), key=weaker)


def _gap(plan: Plan, data: Counted) -> float:
    """How far, in noise scales, the first selection's negative vertices are above the positive ones."""
    replay = Replay(plan, data, data)
    scores = next(replay.raw_scores(np.zeros((1, replay.groups, replay.size))))
    return float(-2 * scores[0, 0, 0])


def selection(mechanism: NoisyMaximum, candidates: int = 10, trials: int = 100_000, share: float | None = None) -> Pair:
    """Two score vectors for ``mechanism.select``: a few candidates rise by half the range while all others fall by it.

    How many candidates rise, and how far below the others they start, is chosen such that ``trials`` (half of them on
    each vector) give the largest lower bound on epsilon on average at 95 %: rarer events have larger ratios but occur
    less often. With ``share`` the likeliest event whose log ratio is at least that share of epsilon is chosen.
    """
    if mechanism.scale == 0:
        raise invalid("mechanism.scale", 0.0, "> 0", "A choice without noise cannot be audited.")
    candidates = whole("candidates", candidates, low=2)
    epsilon = mechanism.score_range / mechanism.scale
    favoured, offset = _best_event(mechanism.noise, epsilon, candidates, trials, share)
    raised = np.arange(candidates) < favoured
    quarter = np.where(raised, mechanism.score_range / 4, -mechanism.score_range / 4)
    base = np.where(raised, offset * mechanism.scale, 0.0)
    odds = [event_odds(mechanism.noise, offset + half, favoured, candidates - favoured) for half in _both(epsilon)]
    attained = rounds_epsilon(odds[0], odds[1], 1, DELTA) / account(mechanism.event).epsilon(DELTA)
    score = EventScore(favoured)
    keys = ("final", "releases", "step")
    description = f"scores of {candidates} candidates; {favoured} of them, {offset:.3g} scales below, rise"
    return Pair(
        base + quarter, base - quarter, None, description, dict.fromkeys(keys, score), dict.fromkeys(keys, attained),
        records=False,
    )  # fmt: skip


@dataclass(frozen=True)
class EventScore:
    """1 if the chosen index is one of the first ``favoured``, else 0."""

    favoured: int

    def __call__(self, features: Array) -> Array:
        return (np.asarray(features).reshape(len(features)) < self.favoured).astype(float)


def _both(epsilon: float) -> tuple[float, float]:
    return epsilon / 2, -epsilon / 2


def event_odds(noise: str, gap: float, favoured: int, others: int) -> float:
    """Log odds that a favoured candidate is chosen; both probabilities are computed, as 1 - p would lose digits."""
    win = favoured_wins(noise, gap, favoured, others)
    return math.log(win) - math.log(favoured_wins(noise, -gap, others, favoured))


def _best_event(noise: str, epsilon: float, candidates: int, trials: int, share: float | None) -> tuple[int, float]:
    best, choice = -math.inf, (1, 0.0)
    for favoured in {1, 2, candidates // 2, candidates - 1} & set(range(1, candidates)):
        for offset in np.linspace(-12.0, 4.0, 161).tolist():
            one, two = (favoured_wins(noise, offset + half, favoured, candidates - favoured) for half in _both(epsilon))
            if min(one, two) * trials < 1:
                continue
            ratio = math.log(one / two)
            if share is None:
                value = ratio - _NORMAL_95 * math.sqrt(2 / trials * (1 / one + 1 / two))
            else:
                value = one if ratio >= share * epsilon else -math.inf
            if value > best:
                best, choice = value, (favoured, offset)
    if best == -math.inf:
        raise invalid("share", share, f"attained by an event that {trials} trials see", "Ask for less.")
    return choice
