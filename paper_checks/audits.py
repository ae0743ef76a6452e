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
from dptoolkit.accounting.published import Published
from dptoolkit.audit import AuditReport, audit, pairs
from dptoolkit.audit.claims import as_claim

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
    mechanism: Any, printed: Published, pair: Any, trials: int, adversary: str = "final", law: Event | None = None
) -> Audited:
    """Audit a mechanism with the printed noise. ``law`` is what ``pair`` reaches, ``printed.attains`` by default."""
    assert printed.attains is not None
    event = printed.attains(1.0) if law is None else law
    # Repeated randomised responses are composed exactly by this method alone.
    responses = {type(part) for part, _ in flatten(event)} == {RandomizedResponse}
    own = account(event, "optimal" if responses else None)
    report = attack(mechanism, pair, as_claim(own), trials, adversary=adversary, delta=printed.claim.delta or None)
    if printed.claim.rho is not None:
        return Audited(own.rho * report.noise_factor**2, printed.claim.rho, own.rho)
    return Audited(report.epsilon_lower, printed.claim.epsilon, own.epsilon(printed.claim.delta))


def hard_thresholding(printed: Published, n: int, steps: int, grad_norm: float, trials: int) -> Audited:
    """Gradient hard thresholding with clipped gradients: one record on a coordinate that all others keep."""
    made = solvers.plan(
        "dp_ight", n=n, d=10, sparsity=3, steps=steps, loss="squared", step_size=1.0, grad_norm=grad_norm, epsilon=1.0,
        delta=1e-9, adjacency=printed.adjacency,
    )  # fmt: skip
    plan = made.with_noise(printed.scales["gradient"])
    return printed_noise(plan, printed, pairs.dp_ight(plan), trials)


def frank_wolfe(
    printed: Published, n: int, rounds: int, l1_radius: float, lipschitz: float, trials: int, law: str = "laplace"
) -> Audited:
    """Frank-Wolfe on two features with a loss that is linear where it is used: all four vertices tie."""
    made = solvers.plan(
        "dp_frank_wolfe", n=n, d=2, steps=rounds, loss="huber", l1_radius=l1_radius, feature_bound=lipschitz,
        epsilon=1.0, delta=1e-9, law=law, calibration="published",
    )  # fmt: skip
    plan = made.with_noise(printed.scales["score"])
    reached = None if law == "laplace" else _gumbel_ties(printed)
    return printed_noise(plan, printed, pairs.dp_frank_wolfe(plan, pulling=0), trials, "releases", reached)


def _gumbel_ties(printed: Published) -> Event:
    """With Gumbel noise half the range is the log odds of the half of the vertices that is ahead."""
    assert printed.repaired is not None
    ((part, count),) = flatten(printed.repaired(1.0))
    assert isinstance(part, ExponentialMechanism)
    return Repeated(RandomizedResponse(part.epsilon / 2), count)
