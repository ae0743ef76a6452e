"""Audits for test suites and sweeps: sized in advance, with a stated false-alarm probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, real, whole
from dptoolkit.accounting import gaussian
from dptoolkit.accounting.report import Printed, number, table
from dptoolkit.audit.claims import ApproxClaim, Claim, GaussianClaim, as_claim
from dptoolkit.audit.pair import Pair
from dptoolkit.audit.report import AuditReport
from dptoolkit.audit.run import audit, claim_of
from dptoolkit.audit.statistics.betting import FIRST, SEQUENTIAL
from dptoolkit.audit.statistics.power import trials_needed
from dptoolkit.audit.streams import Streams
from dptoolkit.errors import PrivacyViolation

# More trials than this are played only if the caller asks for them: a test suite should not run for an hour.
_UNASKED = 1_000_000
_REFUSED = {
    "seconds": "Give trials=, or power_against= for fewer trials; audit.audit(seconds=...) plays for a given time.",
    "mode": "It is always sequential; audit.audit(mode='fixed') bounds epsilon from a fixed number of trials.",
}


def trials_for(claim: Any, power_against: float = 2.0, alpha: float = 1e-6, power: float = 0.999) -> int:
    """Trials after which ``assert_private`` finds noise ``power_against`` times too small with probability ``power``.

    The number is for a pair on which the claim is tight. It is computed for the test that is run, played against a
    mechanism for which the claim would be tight, with that much less noise: Gaussian noise for (epsilon, delta), zCDP
    and Renyi curves, the harder of Laplace noise and randomised response for epsilon-DP, the released mechanisms for a
    Guarantee. A bare (epsilon, delta) takes many more trials than a claim about the whole profile; an error is raised
    where no number of trials would do. No pair is tight for the whole profile where records are sampled, so that it
    takes up to twice as many there: 400 to 1,044 in 24 audits of ``dp_sgd_ht`` for which the number is 719.
    """
    goal = as_claim(claim)
    factor, alpha, power = _levels(power_against, alpha, power)
    count = trials_needed(goal, factor, alpha, power)
    if math.isinf(count):
        raise invalid(
            "claim",
            str(goal),
            f"one for which this test can detect noise {factor:g} times too small",
            _better_claim(goal, factor, alpha, power) or "Give a larger power_against.",
        )
    return int(count)


def _levels(power_against: Any, alpha: Any, power: Any) -> tuple[float, float, float]:
    return (
        real("power_against", power_against, low=1.0, open_low=True, open_high=True),
        real("alpha", alpha, low=0.0, high=1.0, open_low=True, open_high=True),
        real("power", power, low=0.0, high=1.0, open_low=True, open_high=True),
    )


def _better_claim(goal: Claim, factor: float, alpha: float, power: float) -> str:
    """The claim to use instead of (epsilon, delta), and how many trials it takes; "" for other claims."""
    if not isinstance(goal, ApproxClaim) or goal.epsilon_claimed <= 0:
        return ""
    mu = gaussian.mu(goal.epsilon_claimed, goal.delta_claimed)
    count = trials_needed(GaussianClaim(mu), factor, alpha, power)
    return (
        "(epsilon, delta) is one point of a privacy profile. Give what the mechanism is: GaussianClaim, ZcdpClaim, an "
        f"event or a Guarantee; for Gaussian noise audit.GaussianClaim({mu:.6g}), which takes {count:,.0f} trials."
    )


def _promise(goal: Claim, trials: Any, factor: float, alpha: float, power: float | None) -> tuple[int, str]:
    """The number of trials, and in words what power they have; refuse too few trials for the power asked for."""
    if power is None:
        if trials is None:
            raise invalid("power", power, "a probability where trials is left out", "Give trials, power or both.")
        return whole("trials", trials, low=2 * FIRST), "no power is promised"
    factor, alpha, power = _levels(factor, alpha, power)
    what = f"noise {factor:g} times too small found with probability {power:g}"
    least = trials_for(goal, factor, alpha, power)
    repair = f"{_better_claim(goal, factor, alpha, power)} Use power=None to run without a promise.".lstrip()
    if trials is None and least > _UNASKED:
        raise invalid("claim", str(goal), f"one that {_UNASKED:,} trials can test", f"To have {what} takes "
                      f"trials={least}. {repair}")  # fmt: skip
    count = least if trials is None else whole("trials", trials, low=2 * FIRST)
    if count < least:
        raise invalid("trials", count, f">= {least}, to have {what} where {goal} is claimed", repair)
    promise = what.replace("found", "would be found")
    return count, f"where the pair is tight and its score known, or the output one number, {promise}"


def assert_private(
    mechanism: Any,
    pair: Any,
    claim: Any = None,
    *,
    alpha: float = 1e-6,
    power_against: float = 2.0,
    power: float | None = 0.999,
    trials: int | None = None,
    **arguments: Any,
) -> AuditReport:
    """Raise PrivacyViolation if an audit refutes the claim; for test suites.

    The audit plays ``trials_for`` trials and stops as soon as it has its evidence. Noise that is ``power_against``
    times too small is found with probability ``power`` where the pair is tight for the claim and its score is known:
    from the pair, from ``attack=``, or because the output is one number. A score that must be learned first, among tens
    of coordinates, takes more trials, and nothing is promised for it.

    Parameters
    ----------
    mechanism : Plan or callable
        What is attacked: a plan, or any callable ``(dataset, rng) -> output``.
    pair : Pair or tuple
        Two neighbouring datasets.
    claim : Claim, Guarantee, Event, tuple of float or None, default None
        What is claimed of the mechanism. None tests the plan's own guarantee.
    alpha : float, default 1e-6
        The probability, over the choice of the seed, with which a correct mechanism fails.
    power_against : float, default 2.0
        The factor by which the noise is too small in the fault that must be found.
    power : float or None, default 0.999
        The probability of finding that fault. None promises nothing and accepts any number of trials.
    trials : int or None, default None
        Number of trials, which must be enough for the power. None uses the smallest such number. A claim that needs
        more than a million trials is refused unless they are requested here.
    **arguments : Any
        Further arguments of ``audit``, except ``seconds`` and ``mode``: the run time follows from the power.

    Returns
    -------
    AuditReport
        The report of an audit that did not refute the claim.

    Raises
    ------
    PrivacyViolation
        If the claim is refuted; its message is the report.

    Privacy
    -------
    For test data only: see ``audit``.
    """
    for name, repair in _REFUSED.items():
        if name in arguments:
            raise invalid(name, arguments[name], "left out of assert_private", repair)
    goal = claim_of(mechanism, claim)
    count, promise = _promise(goal, trials, power_against, alpha, power)
    report = audit(mechanism, pair, goal, trials=count, alpha=alpha, mode=SEQUENTIAL, **arguments)
    report = replace(report, notes=(*report.notes, f"false-alarm probability {alpha:g}; {promise}"))
    if report.violated:
        raise PrivacyViolation(report)
    return report


@dataclass(frozen=True, repr=False)
class Sweep(Printed):
    """Audits of one mechanism on several pairs. ``e_value`` is their mean, valid however the audits depend."""

    reports: tuple[AuditReport, ...]

    @property
    def e_value(self) -> float:
        """Against the claim, for all pairs together."""
        return float(np.mean([r.e_value for r in self.reports]))

    @property
    def violated(self) -> bool:
        """Whether the mean e-value reaches 1/alpha, which has error at most alpha for any number of pairs."""
        return self.e_value >= 1 / min(r.alpha for r in self.reports)

    def __repr__(self) -> str:
        return f"<Sweep: {str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        rows = [[r.pair, number(r.epsilon_lower), number(r.epsilon_claimed), number(r.e_value)] for r in self.reports]
        verdict = "violation" if self.violated else "no violation found by this attack"
        head = f"{len(rows)} pairs, mean e-value {number(self.e_value)}: {verdict}"
        return f"{head}\n\n" + table(["pair", "epsilon at least", "claimed", "e-value"], rows)


def sweep(mechanism: Any, pairs: Iterable[Any], claim: Any = None, **arguments: Any) -> Sweep:
    """Audit a mechanism on every pair.

    Parameters
    ----------
    mechanism : Plan or callable
        What is attacked: a plan, or any callable ``(dataset, rng) -> output``.
    pairs : iterable of Pair
        The pairs, each as for ``audit``.
    claim : Claim, Guarantee, Event, tuple of float or None, default None
        What is claimed of the mechanism. None tests the plan's own guarantee.
    **arguments : Any
        Further arguments of ``audit``, the same for every pair.

    Returns
    -------
    Sweep
        All reports, with one verdict whose error is at most alpha for any number of pairs.

    Privacy
    -------
    For test data only: see ``audit``.
    """
    reports = tuple(audit(mechanism, pair, claim, **arguments) for pair in pairs)
    if not reports:
        raise invalid("pairs", (), "at least one pair")
    return Sweep(reports)


@dataclass(frozen=True)
class BestPair:
    """The best pair of a search, its parameters, its share of right guesses, and how many pairs were tried."""

    pair: Pair
    parameters: tuple[float, ...]
    score: float
    tried: int


def search(
    mechanism: Any,
    make_pair: Callable[..., Any],
    grid: Sequence[Sequence[float]],
    claim: Any = None,
    *,
    trials: int = 2000,
    rounds: int = 2,
    rng: int = 0,
    **arguments: Any,
) -> BestPair:
    """The pair make_pair(*parameters) with the most right guesses: on a grid, then in smaller steps around the best.

    The search has its own random streams, so the pair can be audited with any seed: those trials are fresh.

    Parameters
    ----------
    mechanism : Plan or callable
        What is attacked: a plan, or any callable ``(dataset, rng) -> output``.
    make_pair : callable
        Makes a pair, as for ``audit``, from the parameters.
    grid : sequence of sequence of float
        The values of each parameter that are tried first.
    claim : Claim, Guarantee, Event, tuple of float or None, default None
        What is claimed of the mechanism. None tests the plan's own guarantee.
    trials : int, default 2000
        Number of trials per pair.
    rounds : int, default 2
        How often the steps around the best parameters are halved.
    rng : int, default 0
        The seed of the search.
    **arguments : Any
        Further arguments of ``audit``.

    Returns
    -------
    BestPair
        The pair, its parameters and its share of right guesses.

    Privacy
    -------
    For test data only: see ``audit``.
    """
    goal = claim_of(mechanism, claim)
    seeds = Streams(rng, "search").generator()
    scores: dict[tuple[float, ...], float] = {}

    def score(parameters: tuple[float, ...]) -> float:
        if parameters not in scores:
            seed = int(seeds.integers(2**62))
            report = audit(mechanism, make_pair(*parameters), goal, trials=trials, rng=seed, **arguments)
            scores[parameters] = report.guesses.correct / report.guesses.made if report.guesses.made else 0.0
        return scores[parameters]

    axes = [np.asarray(values, dtype=float) for values in grid]
    best = max(_product(axes), key=score)
    steps = [0.5 * float(np.diff(np.sort(v)).min()) if len(v) > 1 else 0.0 for v in axes]
    for _ in range(whole("rounds", rounds)):
        near = [
            tuple(b + (sign * h if i == k else 0.0) for i, b in enumerate(best))
            for k, h in enumerate(steps)
            for sign in (-1, 1)
            if h > 0
        ]
        best = max([best, *near], key=score)
        steps = [0.5 * h for h in steps]
    pair = make_pair(*best)
    return BestPair(pair if isinstance(pair, Pair) else Pair(*pair), best, scores[best], len(scores))


def _product(axes: Sequence[np.ndarray]) -> list[tuple[float, ...]]:
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    return [tuple(map(float, point)) for point in points]
