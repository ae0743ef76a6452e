"""What the tests of clients on their own disks share: terms, folders, and a transport with faults."""

from __future__ import annotations

from dataclasses import dataclass, field

from dptoolkit import federated
from dptoolkit.errors import DpToolkitError
from dptoolkit.federated.folder import ClientFolder
from dptoolkit.federated.rounds import REFUSED, Answer, Coordinator
from dptoolkit.federated.terms import agree
from tests.federated.test_fit import SGD, D, clients


def agreed(**changes):
    return agree("dp_fed_sgd_ht", sizes=[30, 12, 21], d=D, **SGD | {"randomness": "fast"} | changes)


def folders(place, terms, loss="squared", seed=1, **how):
    return [
        ClientFolder.create(place / f"client-{i}", terms, i, X, y, rng=seed, **how)
        for i, (X, y) in enumerate(clients(loss))
    ]


def in_process(seed=1, **changes):
    arguments = SGD | changes
    return federated.dp_fed_sgd_ht(clients(arguments["loss"]), **arguments, rng=seed)


@dataclass
class Wire:
    """A transport to folders in this process, with a clock of its own.

    ``faults`` has, for the number of a sending, what happens to it: "lose" the request, "drop" the answer, "late",
    "double" the answer, "die" (the machine is gone for good) or "error".
    """

    folders: dict
    faults: dict = field(default_factory=dict)
    time: float = 0.0

    def __post_init__(self):
        self.sent, self.waiting, self.dead = 0, [], set()
        self.log = []

    def nodes(self):
        return list(self.folders)

    def send(self, requests, seconds):
        return [self._send(node, request) for node, request in requests]

    def _send(self, node, request):
        self.sent += 1
        name, fault = f"message {self.sent}", self.faults.get(self.sent)
        if fault == "die":
            self.dead.add(node)
        if fault == "refuse to send":
            return None
        if fault == "lose" or node in self.dead:
            return name
        answer = self._answer(name, node, request)
        if fault == "error":
            answer = Answer(name, problem="Node Unavailable")
        when = self.time + (1e9 if fault == "drop" else 50.0 if fault == "late" else 0.0)
        self.waiting += [(when, answer)] * (2 if fault == "double" else 1)
        return name

    def _answer(self, name, node, request):
        try:
            message = ClientFolder(self.folders[node].path).answer(request)
        except DpToolkitError as problem:
            return Answer(name, problem=f"{REFUSED}{problem}")
        self.log.append(message)
        return Answer(name, message)

    def receive(self, names):
        ready = [answer for when, answer in self.waiting if when <= self.time]
        self.waiting = [(when, answer) for when, answer in self.waiting if when > self.time]
        return ready

    def pause(self, seconds):
        self.time += seconds


def coordinator(terms, wire, **how):
    return Coordinator(terms.run, terms.plan, wire, clock=lambda: wire.time, pause=wire.pause, **how)
