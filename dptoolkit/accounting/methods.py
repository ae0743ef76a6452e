"""The ways to account for an event, and the choice among them: the tightest sound bound known here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from dptoolkit.accounting import composition, gaussian, pld, rdp, selection, zcdp
from dptoolkit.accounting._numeric import sum_up
from dptoolkit.accounting.events import BestOf, Event, PureDp, RandomRounds, flatten
from dptoolkit.accounting.rules import rules_of
from dptoolkit.accounting.structure import (
    all_gaussian,
    delta_left,
    delta_with_failures,
    has_best_of,
    has_bounds,
    has_selection,
    pure_epsilon,
    spent_delta,
    split_failure,
    total_mu,
    total_rho,
    without_failures,
)
from dptoolkit.errors import ANY_METHOD, UnsupportedEvent

# The recursion for selections is the tightest method and the slowest: above this cost account() uses it only if
# method="bounded-range" asks for it. A delta needs up to twice the points of the epsilon that it verifies, and must not
# be refused where that epsilon was affordable.
_RECURSION_COST, _DELTA_COST = 5e7, 1.5e8


@dataclass(frozen=True)
class Method:
    """One way to account: epsilon at a delta, and delta at an epsilon.

    ``searched`` is epsilon without the verification against ``delta`` (see ``_verified``): as sound, and faster. None
    where there is no such verification. ``path`` lists estimates of epsilon for a search for noise, each more exact and
    slower than the one before; only the last one is a bound, or close to one.
    """

    epsilon: Callable[[Event, float], float]
    delta: Callable[[Event, float], float]
    searched: Callable[[Event, float], float] | None = None
    path: tuple[Callable[[Event, float], float], ...] = ()


# --- composition theorems -------------------------------------------------------------------------


def _single(event: Event, method: str) -> tuple[Event, int]:
    parts = flatten(event)
    if not parts:
        return PureDp(0.0), 0
    if len(parts) > 1:
        raise UnsupportedEvent(
            f"the event has {len(parts)} different parts: must be one event, repeated, for method {method!r}.",
            ANY_METHOD,
        )
    return parts[0]


def _step_bounds(event: Event, delta0: float) -> tuple[float, float]:
    """(epsilon, delta) of one application, for the composition theorems; delta at most ``delta0``."""
    if has_bounds(event):
        rest, failure_delta = split_failure(event)
        pure = pure_epsilon(rest)
        assert pure is not None
        return pure, failure_delta
    return unverified_epsilon(event, delta0), delta0


def _basic(event: Event, delta: float) -> float:
    parts = flatten(event)
    total = sum(count for part, count in parts if not has_bounds(part))
    failures = spent_delta(event)
    if failures > delta:
        return math.inf
    # Rounded down, since rounding may have made the quotient too large.
    share = (delta - failures) / total * (1 - 1e-15) if total else 0.0
    if total and share == 0:
        return math.inf
    return sum_up((count, _step_bounds(part, share)[0]) for part, count in parts)


def _basic_delta(event: Event, epsilon: float) -> float:
    if not all(has_bounds(part) for part, _ in flatten(event)):
        return _delta_by_search(_basic, event, epsilon)
    failures = spent_delta(event)
    return failures if failures < 1 and _basic(event, failures) <= epsilon else 1.0


def _on_lattice(epsilon_at: Callable[[Event, float], float], event: Event, delta: float) -> float:
    """epsilon at the next lattice delta downwards, unless every part has bounds of its own; see _delta_by_search."""
    if all(has_bounds(part) for part, _ in flatten(event)):
        return epsilon_at(event, delta)
    return epsilon_at(event, _lattice_delta(_lattice_index(delta)))


def _advanced(event: Event, delta: float) -> float:
    part, count = _single(event, "advanced")
    epsilon0, delta0 = _step_bounds(part, delta / (2 * max(count, 1)))
    return composition.advanced(epsilon0, count, delta, delta0)


def _optimal(event: Event, delta: float) -> float:
    part, count = _single(event, "optimal")
    epsilon0, delta0 = _step_bounds(part, delta / (2 * max(count, 1)))
    epsilon = composition.optimal(epsilon0, count, delta, delta0)
    # Half of delta is left for the composition. A few steps that have no bounds of their own do better with all of it.
    return epsilon if has_bounds(part) else min(epsilon, _basic(event, delta))


def _selections(event: Event) -> tuple[float, int]:
    part, count = _single(event, "bounded-range")
    bounded_range = rules_of(part).bounded_range
    if count and bounded_range is None:
        raise UnsupportedEvent(f"event={part!r}: must be ExponentialMechanism for method 'bounded-range'.")
    return (0.0 if bounded_range is None else bounded_range(part)), count


def _roughly_selected(event: Event, delta: float, *, cells: int) -> float:
    return selection.rough_adaptive(*_selections(event), delta, cells)


def _optimal_delta(event: Event, epsilon: float) -> float:
    part, count = _single(event, "optimal")
    if not has_bounds(part):
        return _delta_by_search(_optimal, event, epsilon)
    epsilon0, delta0 = _step_bounds(part, 0.0)
    return composition.optimal_delta(epsilon0, count, epsilon, delta0)


def _verified(method: Method) -> Method:
    """The method with a verified epsilon: its own delta at that epsilon is at most the requested one, to the last bit.

    Epsilon and delta are each sound. But each chooses its best order or grid separately, so that delta(epsilon(d)) may
    come out a little above d, which would contradict the guarantee just given. Where it does, epsilon is computed again
    for a smaller delta.
    """
    return Method(
        lambda event, d: _on_the_private_side(method.epsilon, method.delta, event, d),
        method.delta,
        method.epsilon,
        method.path or (method.epsilon,),
    )


def _on_the_private_side(
    epsilon_at: Callable[[Event, float], float], delta_at: Callable[[Event, float], float], event: Event, delta: float
) -> float:
    target, factor = delta, 1.0
    while True:
        epsilon = epsilon_at(event, target)
        if math.isinf(epsilon):
            return epsilon
        own_delta = delta_at(event, epsilon)
        if own_delta <= delta:
            return epsilon
        if target == 0:
            return math.inf
        # Reduce the target by the excess, then by its square, fourth power and so on: this ends within a few rounds, at
        # delta 0 at the latest.
        target *= min(delta / own_delta, 1 - 1e-15) ** factor
        factor *= 2


def _allowing_failures(method: Method) -> Method:
    """The method, extended to parts that may fail: the total delta is 1 - P(no failure) (1 - delta of the rest)."""

    def epsilon(event: Event, delta: float) -> float:
        rest, log_success = without_failures(event)
        rest_delta = delta_left(log_success, delta)
        return method.epsilon(rest, rest_delta) if log_success == 0 or rest_delta > 0 else math.inf

    def delta(event: Event, epsilon: float) -> float:
        rest, log_success = without_failures(event)
        return delta_with_failures(log_success, method.delta(rest, epsilon))

    return Method(epsilon, delta)


def _differs(event: Event) -> float:
    """A bound on the total variation distance, which is delta at epsilon 0, for events with the best of several runs.

    Let t be the distance of one run. By the coupling lemma each run can be drawn together with its neighbour's such
    that the two differ with probability at most t. The number N of runs does not depend on the data, so it is the same
    for both. If no pair of runs differs, the best ones are the same. So the outputs differ with probability at most
    E[1 - (1 - t)^N] <= E[N] t. For releases one after the other, also of a random number, distances add up in the same
    way. A Renyi divergence of the best of several runs has a floor, log E[N] / (order - 1), however much noise there
    is; this bound has none. Batches of such releases are not looked at.
    """
    total = 0.0
    for part, count in flatten(event):
        if isinstance(part, BestOf):
            mean, one = part.runs.mean, _distance(part.event)
        elif isinstance(part, RandomRounds):
            mean, one = part.rounds.mean, _differs(part.event)
        else:
            mean, one = 1.0, math.inf if has_best_of(part) else _distance(part)
        total += count * mean * one * (1 + 1e-12)
    return total


def _distance(event: Event) -> float:
    try:
        return best_delta(event, 0.0)[0]
    except UnsupportedEvent:
        return math.inf


def _rdp_epsilon(event: Event, delta: float) -> float:
    return 0.0 if has_best_of(event) and _differs(event) <= delta else rdp.epsilon(event, delta)


def _rdp_delta(event: Event, epsilon: float) -> float:
    own = rdp.delta(event, epsilon)
    return min(own, _differs(event)) if has_best_of(event) else own


METHODS: dict[str, Method] = {
    # Each method's delta at its own epsilon is at most the delta asked for: by one curve for both, or by verification.
    "gaussian": Method(
        lambda e, d: gaussian.epsilon(total_mu(e), d),
        lambda e, x: gaussian.delta(total_mu(e), x),
        path=(lambda e, d: gaussian.epsilon(total_mu(e), d),),
    ),
    "pld": Method(
        pld.epsilon, pld.delta, path=tuple(partial(pld.forward_epsilon, effort=effort) for effort in pld.Effort)
    ),
    "rdp": _verified(_allowing_failures(Method(_rdp_epsilon, _rdp_delta))),
    "zcdp": _verified(
        _allowing_failures(
            Method(lambda e, d: zcdp.to_epsilon(total_rho(e), d), lambda e, x: zcdp.to_delta(total_rho(e), x))
        )
    ),
    "bounded-range": _verified(
        Method(
            lambda e, d: selection.adaptive(*_selections(e), d),
            lambda e, x: selection.adaptive_delta(*_selections(e), x),
            path=(
                *(partial(_roughly_selected, cells=cells) for cells in selection.ROUGH_CELLS),
                lambda e, d: selection.adaptive(*_selections(e), d),
            ),
        )
    ),
    "optimal": _verified(Method(lambda e, d: _on_lattice(_optimal, e, d), _optimal_delta)),
    "advanced": _verified(
        Method(
            lambda e, d: _advanced(e, _lattice_delta(_lattice_index(d))), lambda e, x: _delta_by_search(_advanced, e, x)
        )
    ),
    "basic": _verified(Method(lambda e, d: _on_lattice(_basic, e, d), _basic_delta)),
}


# A lattice of deltas: the floats whose last 32 bits are 0, 2^20 in every factor of two.
_LATTICE_BITS = 32


def _lattice_index(delta: float) -> int:
    """The number of the largest delta of the lattice that is not above ``delta``."""
    return int(np.float64(delta).view(np.int64)) >> _LATTICE_BITS


def _lattice_delta(index: int) -> float:
    return float(np.int64(index << _LATTICE_BITS).view(np.float64))


def _delta_by_search(epsilon_at: Callable[[Event, float], float], event: Event, epsilon: float) -> float:
    """The smallest delta of the lattice whose epsilon(delta) is at most ``epsilon``."""
    if epsilon_at(event, 0.0) <= epsilon:
        return 0.0
    low, high = _lattice_index(1e-300), _lattice_index(1.0)
    if epsilon_at(event, _lattice_delta(low)) <= epsilon:
        return _lattice_delta(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_at(event, _lattice_delta(middle)) > epsilon else (low, middle)
    return _lattice_delta(high)


# --- choosing ------------------------------------------------------------------------------------


def _exact_method(event: Event) -> str | None:
    """The method that is exact for the event's shape, if there is one."""
    if all_gaussian(event):
        return "gaussian"
    parts = flatten(event)
    return "optimal" if len(parts) == 1 and rules_of(parts[0][0]).generic else None


def is_exact(event: Event) -> bool:
    """Whether some neighbours attain what account() says: Gaussians, and any mechanisms of one (epsilon, delta)."""
    # A row with a separate attained pair says that its dominating pair is not attained.
    return _exact_method(event) is not None and all(rules_of(part).attained is None for part, _ in flatten(event))


def _candidates(event: Event, affordable: Callable[[float, int], bool]) -> list[list[str]]:
    """The methods to try, in groups: a later group is tried only if no answer so far is finite and sharp."""
    exact = _exact_method(event)
    if exact is not None:
        return [[exact]]
    parts = flatten(event)
    # "basic" adds the largest losses: it is the only finite answer at delta 0, also where failures leave no more of
    # delta than that, and the best one at tiny deltas.
    first = ["pld", "basic"] if all(has_bounds(part) for part, _ in parts) else ["pld"]
    if not has_selection(event) and not has_best_of(event):
        # "pld" composes the mechanisms' own pairs, so a Renyi divergence can only be looser, unless the grid is too
        # coarse: with events of very different size on one grid, or with too many events.
        return [first, ["rdp", "zcdp"]]
    (part, count), bounded_range = parts[0], rules_of(parts[0][0]).bounded_range
    if len(parts) == 1 and bounded_range is not None and affordable(bounded_range(part), count):
        first.append("bounded-range")
    return [["rdp", "zcdp", *reversed(first)]]


def unverified_epsilon(event: Event, delta: float, method: str | None = None) -> float:
    """A sound epsilon without the verification against delta: for searches, which verify their last answer only."""
    if method is None:
        return best_epsilon(event, delta, False)[0]
    return (METHODS[method].searched or METHODS[method].epsilon)(event, delta)


def likely_method(event: Event, delta: float) -> str:
    """The method that is likely to be the best at other noises too; searches follow it, and compare all at the end."""
    first = _candidates(event, partial(_affordable, delta=delta))[0]
    if "bounded-range" in first:
        return "bounded-range"
    if "rdp" not in first:
        return first[0]

    def estimate(name: str) -> pld.Answer:
        if name == "pld":
            # With the error of a rough look added: where two methods are about equal, the other one is quicker.
            return pld.Answer(_ROUGHLY_ABOVE * pld.forward_epsilon(event, delta, pld.Effort.ROUGH), True)
        return _epsilon_by(name, event, delta, False)

    return _answers([first], estimate, math.inf)[0][1]


def path_of(name: str, event: Event) -> tuple[Callable[[Event, float], float], ...]:
    """The method's path for events like this one."""
    path = METHODS[name].path
    # Coarse blocks of steps on batches are far closer to the answer than the moments of single steps. Without them a
    # coarse grid shows no more than those moments.
    return path if name != "pld" else path[1:] if pld.has_batches(event) else path[:2] + path[-1:]


def _affordable(epsilon0: float, count: int, delta: float) -> bool:
    """Whether the recursion for selections is quick enough to be used although nobody asked for it."""
    return delta > 0 and selection.recursion_cost(epsilon0, count, delta) <= _RECURSION_COST


@lru_cache(maxsize=4096)
def best_epsilon(event: Event, delta: float, verified: bool = True) -> tuple[float, str]:
    """The smallest epsilon that a method proves at ``delta``, and the method."""
    searched = _epsilons(event, delta, False)
    if not verified:
        return searched[0]
    # The unverified answer mostly passes the verification as it is. Then only the winner has to be verified.
    epsilon, name = searched[0]
    if name in _delta_candidates(event, epsilon) and _keeps(name, event, epsilon, delta):
        return epsilon, name
    # Verification never makes an epsilon smaller. So the other methods matter only if the winner's verified epsilon is
    # above one of theirs.
    epsilon = _epsilon_by(name, event, delta, True).value
    if epsilon > min((value for value, _ in searched[1:]), default=math.inf):
        epsilon, name = _epsilons(event, delta, True)[0]
    if name in _delta_candidates(event, epsilon):
        return epsilon, name
    return _on_the_private_side(
        lambda e, d: best_epsilon(e, d, False)[0], lambda e, x: best_delta(e, x)[0], event, delta
    ), name


@lru_cache(maxsize=4096)
def _epsilons(event: Event, delta: float, verified: bool) -> tuple[tuple[float, str], ...]:
    """(epsilon, method) of every method that was tried, the smallest epsilon first."""
    groups, answers = _candidates(event, partial(_affordable, delta=delta)), [math.inf]

    def evaluate(name: str) -> pld.Answer | None:
        if name == "pld" and _surely_loses(event, delta, min(answers)):
            return None
        answer = _epsilon_by(name, event, delta, verified)
        answers.append(answer.value)
        return answer

    return _answers(groups, evaluate, math.inf)


# If epsilon on a coarse grid, or by a rough look, is above another method's by these factors, then epsilon on a fine
# grid is above it too. The last number is the error that rough looks have where methods are compared.
_SURELY_ABOVE, _FAR_ABOVE, _ROUGHLY_ABOVE = 1.002, 1.06, 1.02


def _surely_loses(event: Event, delta: float, epsilon: float) -> bool:
    """Whether a coarse look shows that privacy-loss distributions have nothing better than ``epsilon``.

    For selections they mostly lose to a Renyi divergence, because their pair must dominate every bounded-range
    mechanism.
    """
    if math.isinf(epsilon) or epsilon == 0:
        return False
    if pld.forward_epsilon(event, delta, pld.Effort.ROUGH) > _FAR_ABOVE * epsilon:
        return True
    return pld.forward_epsilon(event, delta, pld.Effort.COARSE) > _SURELY_ABOVE * epsilon


def _epsilon_by(name: str, event: Event, delta: float, verified: bool) -> pld.Answer:
    if name == "pld":
        return pld.epsilon_answer(event, delta, verified=verified)
    epsilon_at = METHODS[name].epsilon if verified else METHODS[name].searched or METHODS[name].epsilon
    return pld.Answer(epsilon_at(event, delta), True)


def _keeps(name: str, event: Event, epsilon: float, delta: float) -> bool:
    """Whether the method's own delta at epsilon is at most ``delta``."""
    if name == "pld":
        return pld.keeps(event, epsilon, delta)
    if name == "bounded-range":
        return selection.keeps(*_selections(event), epsilon, delta)
    return METHODS[name].delta(event, epsilon) <= delta


def _delta_candidates(event: Event, epsilon: float) -> list[str]:
    """The methods of all groups, so that the method whose verified epsilon is the smallest is among them."""

    def affordable(epsilon0: float, count: int) -> bool:
        return selection.delta_cost(epsilon0, count, epsilon) <= _DELTA_COST

    return [name for group in _candidates(event, affordable) for name in group]


@lru_cache(maxsize=4096)
def best_delta(event: Event, epsilon: float) -> tuple[float, str]:
    """The smallest delta that a method proves at ``epsilon``, and the method."""

    def evaluate(name: str) -> pld.Answer:
        if name == "pld":
            return pld.delta_answer(event, epsilon)
        return pld.Answer(METHODS[name].delta(event, epsilon), True)

    return _answers([_delta_candidates(event, epsilon)], evaluate, 1.0)[0]


def _answers(
    groups: list[list[str]], evaluate: Callable[[str], pld.Answer | None], useless: float
) -> tuple[tuple[float, str], ...]:
    """(value, method) of the groups up to the first whose answers are sharp and below ``useless``, the smallest first.

    A method for which ``evaluate`` returns None is left out. So is one that refuses the event, and then the next group
    is tried as well: what is left of the group may be far from the best.
    """
    results: list[tuple[float, str]] = []
    refused: list[UnsupportedEvent] = []
    for group in groups:
        sharp = True
        for name in group:
            try:
                answer = evaluate(name)
            except UnsupportedEvent as problem:
                refused.append(problem)
                sharp = False
                continue
            if answer is not None:
                results.append((answer.value, name))
                sharp = sharp and answer.sharp
        if results and sharp and min(results)[0] < useless:
            break
    if not results:
        raise _nothing_applies(refused)
    return tuple(sorted(results))


def _nothing_applies(refused: list[UnsupportedEvent]) -> UnsupportedEvent:
    """One error for an event that every method refuses. Advice to take another method would lead in a circle."""
    reasons = list(dict.fromkeys(problem.reason for problem in refused))
    if len(reasons) == 1:
        return refused[0]
    return UnsupportedEvent(
        f"no method applies to the event. {' '.join(reasons)}",
        "Describe the part by a bound that you know of it: PureDp(epsilon), ApproxDp(epsilon, delta) or ZCdp(rho).",
    )
