"""Lower bounds: what known neighbours attain, by a pair at every step or by an adversary who knows more."""

from __future__ import annotations

import math

from dptoolkit.accounting import selection, two_outcomes
from dptoolkit.accounting.events import BestOf, Event, flatten
from dptoolkit.accounting.pld import answers
from dptoolkit.accounting.pld.answers import Bracket, epsilon
from dptoolkit.accounting.pld.curve import Composition
from dptoolkit.accounting.pld.trees import Node, attained, directions, total_variation
from dptoolkit.accounting.rules import rules_of
from dptoolkit.accounting.structure import is_gaussian, merged
from dptoolkit.errors import UnsupportedEvent


def lower_epsilon(event: Event, delta: float) -> float:
    """A lower bound on epsilon at ``delta``: some neighbours attain it, so no analysis can prove less."""
    special = _by_adversary(event, delta)
    try:
        by_pairs = answers.lower_epsilon(event, delta)
    except UnsupportedEvent:
        if special is None:
            raise
        return special
    return by_pairs if special is None else max(by_pairs, special)


def bracket(event: Event, delta: float) -> Bracket:
    """Lower and upper bound on epsilon at ``delta``."""
    return Bracket(lower_epsilon(event, delta), epsilon(event, delta))


def _by_adversary(event: Event, delta: float) -> float | None:
    """A lower bound for one kind of release, repeated, where more is known than a pair; None where nothing is."""
    parts = flatten(event)
    if len(parts) != 1 or delta == 0:
        return None
    ((part, count),) = parts
    own = rules_of(part)
    if own.bounded_range is not None:
        return selection.lower_adaptive(own.bounded_range(part), count, delta)
    bits = own.bits(part, delta) if own.bits is not None else _best_of_bits(part)
    return None if bits is None else two_outcomes.lower_epsilon(bits, count, delta)


def _best_of_bits(part: Event) -> two_outcomes.Bits | None:
    """Bits of the best of several runs of one release, or of Gaussians, which are one."""
    if not isinstance(part, BestOf):
        return None
    runs = flatten(part.event)
    if all(is_gaussian(run) for run, _ in runs) and runs:
        return two_outcomes.best_of(attained(merged(runs)), part.runs)
    return two_outcomes.best_of(attained(runs[0][0]), part.runs) if len(runs) == 1 and runs[0][1] == 1 else None


# Of a profile from below: the deltas relative to the largest one, in groups that share a grid.
_PROFILE_SHARES = ((0.3, (0.9, 0.75, 0.6, 0.5, 0.4, 0.3, 0.22, 0.15)), (0.02, (0.1, 0.06, 0.03, 0.01)),
                   (1e-4, (1e-3, 1e-4)))  # fmt: skip


def lower_profiles(event: Event) -> tuple[tuple[tuple[float, float], ...], ...]:
    """For each order of ONE attained pair points (epsilon, delta) at which its divergence is at least delta."""
    return tuple(_lower_profile(tree) for tree in directions(event, attained))


def _lower_profile(tree: tuple[Node, ...]) -> tuple[tuple[float, float], ...]:
    if any(n.pair is not None and n.count > 0 and n.pair.infinite_mass == 1 for n in tree):
        return ((math.inf, 1.0),)
    start, points = min(total_variation(tree), 1.0), list[tuple[float, float]]()
    for middle, shares in _PROFILE_SHARES if start > 0 else ():
        curve = Composition(tree, middle * start, lower=True)
        points += [(curve.lower_epsilon(share * start), share * start) for share in shares]
    # A divergence falls in epsilon: what it is at a later point, it is at least at an earlier one.
    return tuple(sorted((max(e for e, d in points if d >= delta), delta) for _, delta in points))
