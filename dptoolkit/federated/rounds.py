"""The server of a federation whose clients are elsewhere: it finds them, asks them round after round, and counts.

It knows nothing of how messages travel: a ``Transport`` does. A client is known by its own number, never by the address
of the machine that it runs on, which changes when a machine is restarted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np

from dptoolkit.errors import FederationAborted, InvalidValue
from dptoolkit.federated.client import Message
from dptoolkit.federated.folder import Request
from dptoolkit.federated.plan import FederatedPlan
from dptoolkit.federated.server import Server
from dptoolkit.solvers.engine.initial import NOTHING
from dptoolkit.types import Array


@dataclass(frozen=True)
class Answer:
    """What came back for one request: a message, or words that say why there is none.

    Attributes
    ----------
    request : str
        The name that ``Transport.send`` gave to the request.
    message : Message or None, default None
        The client's reply.
    problem : str, default ""
        Why there is no message.
    """

    request: str
    message: Message | None = None
    problem: str = ""


class Transport(Protocol):
    """How requests reach the machines of the clients, and how answers come back."""

    def nodes(self) -> Collection[int]:
        """The addresses of all machines that are connected now."""

    def send(self, requests: Sequence[tuple[int, Request]], seconds: float) -> list[str | None]:
        """Send a request to each address; the names of the requests, None for one that could not be sent.

        An answer that takes longer than ``seconds`` is not needed any more.
        """

    def receive(self, names: Collection[str]) -> list[Answer]:
        """The answers to these requests that have come in since the last call."""


@dataclass
class Coordinator:
    """Runs all rounds of a plan with clients behind a transport.

    Parameters
    ----------
    run : str
        The name of the run, which its clients know.
    plan : FederatedPlan
        The plan, which its clients have too.
    transport : Transport
        The way to the clients.
    wait : float, default 120.0
        Seconds until all clients must have appeared.
    timeout : float, default 120.0
        Seconds that a round may take.
    grace : float, default 2.0
        Seconds to wait for a second machine of a client once all clients are there.
    clock : callable, default time.monotonic
        The time in seconds.
    pause : callable, default time.sleep
        What is called between two looks at the transport, with the seconds to wait.
    poll : float, default 0.1
        Seconds between two looks.
    keep : callable or None, default None
        What is called with all weights after the last round, before clients are told that the run is over. If it
        raises, they are not told, and the run may be started again.

    Privacy
    -------
    It sees messages alone, which are releases of their clients.
    """

    run: str
    plan: FederatedPlan
    transport: Transport
    wait: float = 120.0
    timeout: float = 120.0
    grace: float = 2.0
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    poll: float = 0.1
    keep: Callable[[Array], None] | None = None
    places: dict[int, int] = field(default_factory=dict, init=False)

    def fit(self) -> Array:
        """All weights after the last round; ``FederationAborted`` says which client is at fault.

        A run that was aborted may be started again. Clients send the replies of rounds that they have answered once
        more, and so the new run arrives at the same models.
        """
        settings = self.plan.settings
        width = settings.width(self.plan.d)
        server = Server(self.plan.weights, width, settings.free(self.plan.d), self.plan.sparsity, settings.start())
        self.find_clients()
        for number in range(1, settings.rounds + 1):
            messages = self._round(number, server)
            try:
                server.combine(messages)
            except InvalidValue as problem:
                self._abort(f"round {number}", str(problem))
        weights = np.zeros(width)
        weights[server.model[0]] = server.model[1]
        if self.keep is not None:
            self.keep(weights)
        self._say_over()
        return weights

    def find_clients(self) -> None:
        """Ask every machine which client it is, until each client of the plan has been found on exactly one."""
        count, begin = len(self.plan.clients), self.clock()
        asked: dict[str, int] = {}
        open_names: set[str] = set()
        complete: float | None = None
        while True:
            new = [node for node in self.transport.nodes() if node not in asked.values()]
            names = self._ask(self._request(0), new, self.wait)
            asked |= names
            open_names |= set(names)
            for answer in self.transport.receive(open_names) if open_names else ():
                if answer.request in open_names:
                    open_names.discard(answer.request)
                    self._found(answer, asked[answer.request])
            now = self.clock()
            if len(self.places) == count:
                complete = now if complete is None else complete
                if not open_names or now - complete >= self.grace:
                    return
            if now - begin >= self.wait:
                absent = ", ".join(str(i) for i in range(count) if i not in self.places)
                what = f"no machine of client {absent} after {self.wait:g} seconds"
                self._abort("finding the clients", f"{what}. Start it, and this run again.")
            self.pause(self.poll)

    def _found(self, answer: Answer, node: int) -> None:
        message = answer.message
        if message is None:
            # A machine that was stopped may be listed for a while: it is missed only if its client is.
            if answer.problem.startswith(REFUSED):
                self._abort("finding the clients", answer.problem.removeprefix(REFUSED))
            return
        if not message.is_numbered:
            self._abort("finding the clients", f"machine {node} has sent no number of a client")
        number = message.client
        if not 0 <= number < len(self.plan.clients):
            self._abort("finding the clients", f"client {number} of {len(self.plan.clients)}: it is not in the plan")
        if number in self.places:
            what = f"client {number} is there twice, on machines {self.places[number]} and {node}"
            self._abort("finding the clients", f"{what}. Stop one of them.")
        self.places[number] = node

    def _round(self, number: int, server: Server) -> list[Message]:
        """One message of every client."""
        step, begin = f"round {number}", self.clock()
        request = Request(self.run, self.plan.fingerprint, number, *server.model)
        order = sorted(self.places)
        named = self._ask(request, [self.places[client] for client in order], self.timeout)
        owners = {name: next(c for c in order if self.places[c] == node) for name, node in named.items()}
        for client in order:
            if client not in owners.values():
                self._abort(step, f"client {client} could not be asked")
        found: dict[int, Message] = {}
        while True:
            for answer in self.transport.receive([name for name, c in owners.items() if c not in found]):
                # What nobody asked for in this round, such as a late reply of an earlier one, is nobody's answer.
                if answer.request not in owners:
                    continue
                client = owners[answer.request]
                if answer.message is None:
                    self._abort(step, f"client {client}: {answer.problem.removeprefix(REFUSED)}")
                if client in found:
                    self._abort(step, f"client {client} has answered twice")
                if not answer.message.is_numbered:
                    self._abort(step, f"client {client} has sent a message without the numbers of a client and a round")
                if (answer.message.client, answer.message.round) != (client, number):
                    what = f"a message of client {answer.message.client} for round {answer.message.round}"
                    self._abort(step, f"client {client} has sent {what}")
                found[client] = answer.message
            if len(found) == len(order):
                return list(found.values())
            if self.clock() - begin >= self.timeout:
                absent = ", ".join(str(client) for client in order if client not in found)
                self._abort(step, f"no message of client {absent} within {self.timeout:g} seconds")
            self.pause(self.poll)

    def _say_over(self) -> None:
        """Tell the clients that no round follows, and wait until they know; whoever does not answer is left alone."""
        begin, open_names = self.clock(), set(self._ask(self._request(-1), self.places.values(), self.timeout))
        while open_names and self.clock() - begin < min(self.timeout, LAST):
            open_names -= {answer.request for answer in self.transport.receive(open_names)}
            self.pause(self.poll)

    def _request(self, number: int) -> Request:
        return Request(self.run, self.plan.fingerprint, number, *NOTHING)

    def _ask(self, request: Request, nodes: Collection[int], seconds: float) -> dict[str, int]:
        """The address of every request that could be sent, by its name."""
        places = list(nodes)
        if not places:
            return {}
        names: list[Any] = self.transport.send([(node, request) for node in places], seconds)
        return {name: node for name, node in zip(names, places, strict=True) if name is not None}

    def _abort(self, step: str, why: str) -> NoReturn:
        raise FederationAborted(f"Stopped at {step}: {why}")


# Seconds that are spent at most on telling clients that the run is over.
LAST = 60.0
# How the problem of an answer begins in which a client says itself why it does not take part.
REFUSED = "refused: "
