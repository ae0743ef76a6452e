"""Audits for test suites and sweeps: sized in advance, with a stated false-alarm probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from dptoolkit._validate import invalid, real, whole
from dptoolkit.accounting.report import number, table
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pairs.pair import Pair
from dptoolkit.audit.report import AuditReport
from dptoolkit.audit.run import SEQUENTIAL, audit, claim_of
from dptoolkit.audit.streams import Streams
from dptoolkit.errors import PrivacyViolation

# A betting player needs about as many trials as the test of fixed length that the formula is for, and some to learn.
_BETTING, _LEARNING = 1.0, 300


def trials_for(claim: Any, power_against: float = 2.0, alpha: float = 1e-6, power: float = 0.999) -> int:
    """Trials after which noise ``power_against`` times too small is found with probability ``power``.

    For a pair on which the claim is tight. A guesser is then right with probability (1 + TV)/2, where TV is delta(0) of
    the claim weakened by the factor: a matter of telling two coins apart.
    """
    goal = as_claim(claim)
    factor = real("power_against", power_against, low=1.0, open_low=True, open_high=True)
    gap = goal.weakened(factor).delta(0.0) - goal.delta(0.0)
    if not gap > 1e-4:
        raise invalid("power_against", factor, "large enough to change the claim", "Both allow the same guesses.")
    return _LEARNING + math.ceil(_BETTING * (float(-ndtri(alpha) - ndtri(1 - power)) / gap) ** 2)


def assert_private(
    mechanism: Any, pair: Any, claim: Any = None, *, alpha: float = 1e-6, power_against: float = 2.0,
    power: float = 0.999, trials: int | None = None, **arguments: Any,
) -> AuditReport:
    """Raise PrivacyViolation if an audit refutes the claim; for test suites.

    A correct mechanism fails with probability at most ``alpha``, over the choice of the seed. Where the pair is tight
    for the claim, noise too small by ``power_against`` is found with probability ``power``; the number of trials is
    chosen for that, and the audit stops as soon as it has its evidence. Other arguments as for ``audit``.
    """
    goal = claim_of(mechanism, claim)
    count = trials_for(goal, power_against, alpha, power) if trials is None else whole("trials", trials, low=200)
    report = audit(mechanism, pair, goal, trials=count, alpha=alpha, mode=SEQUENTIAL, **arguments)
    found = f"noise {power_against:g} times too small would be found with probability {power:g}"
    where = f"false-alarm probability {alpha:g}; where the pair is tight, {found}"
    report = replace(report, notes=(*report.notes, where))
    if report.violated:
        raise PrivacyViolation(report)
    return report


@dataclass(frozen=True)
class Sweep:
    """Audits of one mechanism on several pairs. ``e_value`` is their mean: evidence that holds however they depend."""

    reports: tuple[AuditReport, ...]

    @property
    def e_value(self) -> float:
        """Against the claim, for all pairs together."""
        return float(np.mean([r.e_value for r in self.reports]))

    @property
    def violated(self) -> bool:
        """Whether the mean e-value reaches 1/alpha: correct for the number of pairs."""
        return self.e_value >= 1 / min(r.alpha for r in self.reports)

    def __str__(self) -> str:
        rows = [[r.pair, number(r.epsilon_lower), number(r.epsilon_claimed), number(r.e_value)] for r in self.reports]
        found = "violation" if self.violated else "no violation found by this attack"
        head = f"{len(rows)} pairs, mean e-value {number(self.e_value)}: {found}"
        return f"{head}\n\n" + table(["pair", "epsilon at least", "claimed", "e-value"], rows)


def sweep(mechanism: Any, pairs: Iterable[Any], claim: Any = None, **arguments: Any) -> Sweep:
    """Audit a mechanism on every pair; other arguments as for ``audit``."""
    reports = tuple(audit(mechanism, pair, claim, **arguments) for pair in pairs)
    if not reports:
        raise invalid("pairs", (), "at least one pair")
    return Sweep(reports)


@dataclass(frozen=True)
class Found:
    """The pair that a search liked best, its parameters, and how many were tried."""

    pair: Pair
    parameters: tuple[float, ...]
    score: float
    tried: int


def search(
    mechanism: Any, make_pair: Callable[..., Any], grid: Sequence[Sequence[float]], claim: Any = None, *,
    trials: int = 2000, rounds: int = 2, rng: int = 0, **arguments: Any,
) -> Found:
    """The pair make_pair(*parameters) that is told apart best: a grid, then smaller steps around the best point.

    Works on trials of its own: audit the pair it finds with any seed, the trials are fresh.
    """
    goal = claim_of(mechanism, claim)
    seeds = Streams(rng, "search").generator()
    tried: dict[tuple[float, ...], float] = {}

    def score(parameters: tuple[float, ...]) -> float:
        if parameters not in tried:
            seed = int(seeds.integers(2**62))
            report = audit(mechanism, make_pair(*parameters), goal, trials=trials, rng=seed, **arguments)
            tried[parameters] = report.guesses.correct / report.guesses.made if report.guesses.made else 0.0
        return tried[parameters]

    axes = [np.asarray(values, dtype=float) for values in grid]
    best = max(_product(axes), key=score)
    steps = [0.5 * float(np.diff(np.sort(v)).min()) if len(v) > 1 else 0.0 for v in axes]
    for _ in range(whole("rounds", rounds)):
        near = [
            tuple(b + (sign * h if i == k else 0.0) for i, b in enumerate(best))
            for k, h in enumerate(steps) for sign in (-1, 1) if h > 0
        ]  # fmt: skip
        best = max([best, *near], key=score)
        steps = [0.5 * h for h in steps]
    pair = make_pair(*best)
    return Found(pair if isinstance(pair, Pair) else Pair(*pair), best, tried[best], len(tried))


def _product(axes: Sequence[np.ndarray]) -> list[tuple[float, ...]]:
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    return [tuple(map(float, point)) for point in points]

