"""The plan of a federation: one plan for every client, and what the server does with their messages."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, positive, unheard, whole
from dptoolkit.accounting import Guarantee
from dptoolkit.accounting.group import GroupGuarantee
from dptoolkit.accounting.pld import Bracket
from dptoolkit.accounting.report import Printed, at_most, delta_text, number, table
from dptoolkit.accounting.tradeoff import TradeoffBounds
from dptoolkit.adjacency import Adjacency
from dptoolkit.losses import BINARY
from dptoolkit.solvers.engine.initial import InitialModel
from dptoolkit.solvers.frame.outlook import HopelessPlanWarning
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.secure import FAST, SecurePlan, secured
from dptoolkit.solvers.frame.settings import DeltaWarning

# A coordinate counts as kept for certain if it exceeds everything that noise can do by this many standard deviations.
_CERTAIN = 40.0
# For binary losses, which need small weights, fewer must do.
_LEAD = 8.0
# The largest value of x sigmoid(-x): a logistic gradient reaches its bound C at weights up to this over C.
_STEEPEST = 0.278


@dataclass(frozen=True, repr=False)
class FederationGuarantee(Guarantee):
    """The worst of the clients' guarantees, at every delta and at every epsilon.

    A record is at one client only, and what other clients send does not depend on it: so the guarantee of the record
    is that of its client, and the largest of all covers every record. ``event`` is that of the worst client at the
    delta that was asked for.
    """

    clients: tuple[Guarantee, ...] = field(default=())

    def epsilon(self, delta: float) -> float:
        """The largest epsilon of a client at ``delta``."""
        return max(one.epsilon(delta) for one in self.different)

    def delta(self, epsilon: float) -> float:
        """The largest delta of a client at ``epsilon``."""
        return max(one.delta(epsilon) for one in self.different)

    def bounds(self, delta: float) -> Bracket:
        """(lower, upper) bounds on the largest epsilon of a client; see ``Guarantee``."""
        each = [one.bounds(delta) for one in self.different]
        return Bracket(max(low for low, _ in each), max(high for _, high in each))

    def tradeoff(self, alpha: Any) -> Any:
        """The smallest of the clients' missed-detection rates; see ``Guarantee``."""
        return functools.reduce(np.minimum, (one.tradeoff(alpha) for one in self.different))

    def tradeoff_bounds(self, alpha: Any) -> TradeoffBounds:
        """The smallest of the clients' bounds: a test may attack the record of any client."""
        each = [one.tradeoff_bounds(alpha) for one in self.different]
        return TradeoffBounds(*(functools.reduce(np.minimum, ends) for ends in zip(*each, strict=True)))

    def group(self, size: int) -> GroupGuarantee:
        """What holds for any ``size`` records of ONE client that change together."""
        return FederationGroup(self, size)

    @property
    def rho(self) -> float:
        """The largest of the clients' zCDP parameters, infinite if one of them has none."""
        return max(one.rho for one in self.different)

    def method_at(self, delta: float) -> str:
        """The method behind ``epsilon(delta)``, which is that of the worst client there."""
        return max(self.different, key=lambda one: one.epsilon(delta)).method_at(delta)

    @property
    def different(self) -> list[Guarantee]:
        """One guarantee for every different event: clients with equal rates have equal events.

        ``dataclasses.replace`` may have put another event in place of the clients': then it is the only one.
        """
        own = {one.event: one for one in self.clients}
        if self.event not in own:
            own = {self.event: Guarantee(self.event, adjacency=self.adjacency)}
        return [replace(one, forced_method=self.forced_method) for one in own.values()]


@dataclass(frozen=True, repr=False)
class FederationGroup(GroupGuarantee):
    """The worst of the clients' guarantees for ``size`` records of one client that change together.

    Privacy
    -------
    Adjacency: that of ``GroupGuarantee``, between datasets of one client. Records of a group at several clients have
    the clients' events composed, which this is not.
    """

    guarantee: FederationGuarantee

    def epsilon(self, delta: float) -> float:
        """The largest epsilon of a client's group at ``delta``."""
        return max(one.group(self.size).epsilon(delta) for one in self.guarantee.different)

    def delta(self, epsilon: float) -> float:
        """The largest delta of a client's group at ``epsilon``."""
        return max(one.group(self.size).delta(epsilon) for one in self.guarantee.different)


def worst(guarantees: Sequence[Guarantee], delta: float) -> FederationGuarantee:
    """The guarantee of a federation; ``delta`` decides whose event it shows.

    Privacy
    -------
    Parallel composition: clients' records are disjoint. Somebody with records at two clients has the guarantee of both
    events composed, which this is not.
    """
    epsilons = {one.event: one.epsilon(delta) for one in guarantees}
    place = max(range(len(guarantees)), key=lambda i: (epsilons[guarantees[i].event], -i))
    first = guarantees[place]
    note = (
        f"the worst of {len(guarantees)} clients (number {place}); a person with records at two clients has both of "
        "their events composed"
    )
    return FederationGuarantee(
        first.event, first.forced_method, first.adjacency, (*first.notes, note), first.claimed, first.asked_delta,
        tuple(guarantees),
    )  # fmt: skip


@dataclass(frozen=True)
class FederatedPlan(Printed):
    """Everything about a private federated fit that is fixed before any data are seen.

    Attributes
    ----------
    clients : tuple of Plan
        The plan of every client: its noise, event and guarantee.
    weights : tuple of float
        The shares of the clients in the average.
    sparsity : int
        The number of features of the average that the server keeps.
    """

    clients: tuple[Plan, ...]
    weights: tuple[float, ...]
    sparsity: int

    @property
    def solver(self) -> str:
        """The name of the solver."""
        return self.clients[0].solver

    @property
    def settings(self) -> Any:
        """The settings that all clients share; batch sizes are those of the first."""
        return self.clients[0].settings

    @property
    def sizes(self) -> tuple[int, ...]:
        """The public number of records of every client."""
        return tuple(client.n for client in self.clients)

    @property
    def d(self) -> int:
        """The number of features."""
        return self.clients[0].d

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of every number in the plan, between datasets of one client."""
        return self.clients[0].adjacency

    @property
    def calibration(self) -> str:
        """The origin of the noise: "tight" or "published"."""
        return self.clients[0].calibration

    @property
    def noise(self) -> tuple[float, ...]:
        """The absolute noise of every client, on a coordinate of its mean gradient."""
        return tuple(client.noise for client in self.clients)

    @property
    def sensitivity(self) -> tuple[float, ...]:
        """How far one record moves the mean gradient of every client."""
        return tuple(client.sensitivity for client in self.clients)

    @property
    def secure(self) -> SecurePlan | None:
        """The public facts of the first client's secure noise; None for noise in floating point."""
        return self.clients[0].secure

    @property
    def is_private(self) -> bool:
        """Whether every client adds noise."""
        return all(client.noise > 0 for client in self.clients)

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """The guarantee of every client, computed from its event."""
        return tuple(client.guarantee for client in self.clients)

    @property
    def guarantee(self) -> FederationGuarantee:
        """The federation's: the worst client's."""
        return worst(self.guarantees, self.delta)

    @property
    def delta(self) -> float:
        """The delta at which clients are compared: the one that was asked for, or 1e-5."""
        return float(self.settings.delta) or 1e-5

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything in the plan, by which fits of different plans draw from unrelated streams."""
        parts = [*(client.fingerprint for client in self.clients), repr(self.weights), repr(self.sparsity)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def with_noise(self, *, factor: float) -> FederatedPlan:
        """The same plan with ``factor`` times the noise of every client; guarantees are those of the new noise.

        Parameters
        ----------
        factor : float
            What the noise of every client is multiplied by.
        """
        return replace(self, clients=tuple(client.with_noise(factor=factor) for client in self.clients))

    def attacked(self, client: int | None = None, rounds: int = 1) -> Plan:
        """The plan of one client as an audit attacks it, by default of the worst: what it sends in ``rounds`` rounds.

        The adversary is the server, so it chooses the model that a round starts from: one whose first weight (for
        softmax, the first weights of two classes) is so large that thresholds keep it, and which has no other. Full
        gradients of scalar losses push that weight themselves, and start at 0. In later rounds the client's own message
        is sent back. The noise is that of the whole plan; event and guarantee are those of ``rounds`` rounds.

        Parameters
        ----------
        client : int or None, default None
            The number of the client.
        rounds : int, default 1
            The number of messages, at most all.

        Returns
        -------
        Plan
            For ``audit.audit``; see ``audit.pairs``.

        Privacy
        -------
        Touches no data.
        """
        epsilons = [one.epsilon(self.delta) for one in self.guarantees] if client is None else []
        place = int(np.argmax(epsilons)) if client is None else whole("client", client)
        if place >= len(self.clients):
            raise invalid("client", place, f"< {len(self.clients)}, the number of clients")
        if whole("rounds", rounds, low=1) > self.settings.rounds:
            raise invalid("rounds", rounds, f"<= {self.settings.rounds}, the rounds of the plan")
        plan = self.clients[place]
        settings: Any = plan.settings
        steps = rounds * settings.local_steps
        settings = replace(settings, rounds=rounds, steps=steps, initial=_hostile(plan, steps))
        releases = tuple(replace(release, count=steps) for release in plan.releases)
        return Plan(settings, plan.n, plan.d, releases, secure=plan.secure)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {
            "solver": self.solver, "d": self.d, "sizes": list(self.sizes), "weights": list(self.weights),
            "sparsity": self.sparsity, "clients": [client.to_dict() for client in self.clients],
        }  # fmt: skip

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def __repr__(self) -> str:
        return (
            f"<FederatedPlan for {self.solver}: {len(self.clients)} clients, d={self.d:,}, "
            f"{self.settings.rounds} rounds of {self.settings.local_steps} steps, {self.adjacency}, {self.calibration}>"
        )

    def __str__(self) -> str:
        s = self.settings
        head = (
            f"Plan for {self.solver}: {len(self.clients)} clients, d={self.d:,}, {s.rounds} rounds of {s.local_steps} "
            f"local steps, {self.adjacency}, calibration {self.calibration}\n"
            f"loss={s.loss}, sparsity={self.sparsity} (threshold {s.threshold}), step_size={s.step_size}, "
            f"grad_norm={s.grad_norm}"
        )
        if s.has_batches:
            head += f", rate={s.rate}, sampling={s.sampling}"
        noise = [] if self.secure is None else [f"Client 0. {self.secure}"]
        clients = client_table(self.clients, self.guarantees, self.weights, self.delta)
        return "\n\n".join([head, clients, *noise, str(self.guarantee)])


def _hostile(plan: Plan, steps: int) -> InitialModel | None:
    """The model by which a server learns most of one record of a client: it keeps what the record moves."""
    settings: Any = plan.settings
    if settings.hostile is not None:
        return settings.hostile
    step, spread = settings.step_size, settings.step_size * plan.noise * math.sqrt(steps)
    # More than all steps together can move a weight, by gradients and by noise.
    far = 2 * steps * step * (settings.grad_norm + _CERTAIN * plan.noise)
    if settings.is_multiclass:
        return InitialModel([(0, far), (1, far)])
    if not settings.has_batches:
        return None
    if settings.loss_row.task != BINARY:
        return InitialModel([(0, far)])
    # A large weight would make the residual of one of the two labels vanish.
    near = _LEAD * spread
    return InitialModel([(0, near)]) if settings.grad_norm * (near + spread) < _STEEPEST else None


def client_table(
    clients: Sequence[Plan], guarantees: Sequence[Guarantee], weights: Sequence[float], delta: float
) -> str:
    """One line for every client: its records, its batch, its noise and its epsilon."""
    found: dict[Any, str] = {}
    rows = []
    for i, (plan, one, weight) in enumerate(zip(clients, guarantees, weights, strict=True)):
        if one.event not in found:
            found[one.event] = at_most(one.epsilon(delta))
        settings = plan.settings
        rows.append([
            str(i), f"{plan.n:,}", number(weight), number(settings.batch_size) if settings.has_batches else "all",
            number(plan.noise / plan.sensitivity), number(plan.noise), found[one.event],
        ])  # fmt: skip
    header = ["client", "records", "weight", "batch", "noise / sensitivity", "noise", f"epsilon at {delta_text(delta)}"]
    return table(header, rows)


def plan_of(settings: Any, sizes: Sequence[int], d: int, weights: Any, randomness: str = FAST) -> FederatedPlan:
    """The plan of a federation whose clients have these settings and numbers of records, with noise of this kind.

    Privacy
    -------
    Touches no data: numbers of records and weights are public. The noise of a client is calibrated for its own number
    of records.
    """
    smallest = min(range(len(sizes)), key=lambda i: sizes[i])
    made: dict[int, Plan] = {sizes[smallest]: secured(settings.plan(sizes[smallest], d), randomness)}
    # The smallest client has said what there is to warn of.
    with unheard(DeltaWarning, HopelessPlanWarning):
        for n in sizes:
            if n not in made:
                made[n] = secured(settings.plan(n, d), randomness)
    return FederatedPlan(tuple(made[n] for n in sizes), shares(weights, sizes), int(settings.sparsity))


def shares(weights: Any, sizes: Sequence[int]) -> tuple[float, ...]:
    """The clients' shares in the average, which add up to 1: by default their shares of all records."""
    if weights is None:
        return tuple(n / sum(sizes) for n in sizes)
    repair = "For example their numbers of records, which is the default."
    try:
        given = list(weights)
    except TypeError:
        raise invalid("weights", weights, f"None or {len(sizes)} numbers > 0", repair) from None
    if len(given) != len(sizes):
        raise invalid("weights", f"{len(given)} numbers", f"{len(sizes)}, one for every client", repair)
    repair = "A client without a weight would spend its budget for nothing: leave it out."
    values = [positive(f"weights[{i}]", value, repair) for i, value in enumerate(given)]
    # The sum of large weights may overflow: then relative to the largest.
    scaled = values if math.isfinite(sum(values)) else [value / max(values) for value in values]
    found = tuple(value / sum(scaled) for value in scaled)
    for i, share in enumerate(found):
        if share == 0:
            raise invalid(f"weights[{i}]", values[i], f"more than nothing next to {max(values)}", repair)
    return found


def check_sizes(sizes: Any) -> list[int]:
    """The clients' numbers of records."""
    try:
        given = list(sizes)
    except TypeError:
        raise invalid("sizes", sizes, "the numbers of records, one for every client") from None
    if not given:
        raise invalid("sizes", sizes, "at least one client")
    return [whole(f"sizes[{i}]", n, low=1) for i, n in enumerate(given)]
