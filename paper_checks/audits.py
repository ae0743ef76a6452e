"""Audits of printed noise: what guessing between two neighbouring data sets shows about a paper's release.

An audit bounds the noise from above, by how often guesses are right, and says what the known pair of neighbours reaches
at that noise (``Published.attains``). That is a lower bound on the truth whatever the accounting says, so the two check
each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from dptoolkit import solvers
from dptoolkit.accounting import Repeated, account
from dptoolkit.accounting.events import Event, ExponentialMechanism, RandomizedResponse, flatten
from dptoolkit.audit import ApproxClaim, AuditReport, audit, pairs
from dptoolkit.audit.claims import as_claim
from paper_checks.constants import PartialResponse, Published

# An audit of a true claim contradicts it with probability one in a million; the seed is fixed besides.
CONFIDENCE = 1 - 1e-6
SEED = 0


@dataclass(frozen=True)
class Audited:
    """An audited lower bound beside the claimed number.

    ``reach`` is what the pair reaches at the printed noise by exact accounting: more means less noise than printed.
    Claims about something else than privacy are audited in epsilon, so not in the currency of the claim.
    """

    lower: float
    claimed: float
    reach: float = math.inf
    in_currency: bool = True


def attack(mechanism: Any, pair: Any, claim: Any, trials: int, **arguments: Any) -> AuditReport:
    """An audit that gives the same numbers every time."""
    if isinstance(pair, pairs.Pair):
        # What share of a tight guarantee the pair reaches takes longer than the audit, and is not asked here.
        pair = replace(pair, reach={})
    return audit(mechanism, pair, claim, trials=trials, confidence=CONFIDENCE, rng=SEED, **arguments)


def printed_noise(
    mechanism: Any, record: Published, pair: Any, trials: int, adversary: str = "final", law: Event | None = None
) -> Audited:
    """Audit a mechanism with the printed noise. ``law`` is what ``pair`` reaches, ``record.attains`` by default."""
    assert record.attains is not None
    event = record.attains(1.0) if law is None else law
    # Repeated randomised responses are composed exactly by this method alone.
    responses = {type(part) for part, _ in flatten(event)} == {RandomizedResponse}
    if any(isinstance(part, PartialResponse) for part, _ in flatten(event)):
        # The accounting has no method for these; the record's own lower bound is exact.
        claim = ApproxClaim(record.claim.epsilon, record.claim.delta)
        found = attack(mechanism, pair, claim, trials, adversary=adversary)
        return Audited(found.epsilon_lower, record.claim.epsilon, record.lower)
    own = account(event, "optimal" if responses else None)
    report = attack(mechanism, pair, as_claim(own), trials, adversary=adversary, delta=record.claim.delta or None)
    if record.claim.rho is not None:
        return Audited(own.rho * report.noise_factor**2, record.claim.rho, own.rho)
    return Audited(report.epsilon_lower, record.claim.epsilon, own.epsilon(record.claim.delta))


def hard_thresholding(record: Published, n: int, steps: int, grad_norm: float, trials: int) -> Audited:
    """Gradient hard thresholding with clipped gradients: one record on a coordinate that all others keep."""
    base = solvers.plan(
        "dp_ight", n=n, d=10, sparsity=3, steps=steps, loss="squared", step_size=1.0, grad_norm=grad_norm, epsilon=1.0,
        delta=1e-9, adjacency=record.adjacency,
    )  # fmt: skip
    plan = base.with_noise(record.scales["gradient"])
    return printed_noise(plan, record, pairs.dp_ight(plan), trials)


def frank_wolfe(
    record: Published, n: int, rounds: int, l1_radius: float, lipschitz: float, trials: int, law: str = "laplace"
) -> Audited:
    """Frank-Wolfe on two features with a loss that is linear where it is used: all four vertices tie."""
    base = solvers.plan(
        "dp_frank_wolfe", n=n, d=2, steps=rounds, loss="huber", l1_radius=l1_radius, feature_bound=lipschitz,
        epsilon=1.0, delta=1e-9, law=law, calibration="published",
    )  # fmt: skip
    plan = base.with_noise(record.scales["score"])
    pair_law = None if law == "laplace" else _gumbel_ties(record)
    return printed_noise(plan, record, pairs.dp_frank_wolfe(plan, pulling=0), trials, "releases", pair_law)


def _gumbel_ties(record: Published) -> Event:
    """The law of the tie pair with Gumbel noise: half the range is the log odds of the vertices that are ahead."""
    assert record.repaired is not None
    ((part, count),) = flatten(record.repaired(1.0))
    assert isinstance(part, ExponentialMechanism)
    return Repeated(RandomizedResponse(part.epsilon / 2), count)
