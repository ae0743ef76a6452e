"""The server's loop without a network: the same bits as in one process, and one clear error for every fault."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit.errors import FederationAborted, InvalidValue
from dptoolkit.federated.client import Message
from dptoolkit.federated.flower import apps
from dptoolkit.federated.rounds import Answer
from dptoolkit.federated.server import Server
from dptoolkit.federated.terms import agree
from tests.federated.remote import Wire, agreed, coordinator, folders, in_process
from tests.federated.test_fit import LOSSES, SGD, D


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_clients_elsewhere_give_the_bits_of_one_process(loss, intercept, tmp_path):
    more = LOSSES[loss] | {"loss": loss, "fit_intercept": intercept}
    terms = agreed(**more)
    wire = Wire(dict(enumerate(folders(tmp_path, terms, loss), 7)))
    weights = coordinator(terms, wire).fit()
    wanted = in_process(**more)
    coef, intercepts = terms.plan.settings.model(weights)
    assert coef.tobytes() == wanted.coef.tobytes() and np.all(intercepts == wanted.intercept)
    assert all(folder.is_over and folder.answered == 3 for folder in wire.folders.values())


def test_a_run_that_is_started_again_arrives_at_the_same_model(tmp_path):
    terms = agreed()
    own = dict(enumerate(folders(tmp_path, terms)))
    with pytest.raises(FederationAborted, match="Stopped at round 2: client 1: Node Unavailable"):
        coordinator(terms, Wire(own, {8: "error"})).fit()
    wire = Wire(own)
    weights = coordinator(terms, wire).fit()
    np.testing.assert_array_equal(weights, in_process().coef)


# Sendings 1 to 3 find the clients, 4 to 6 are round 1, 7 to 9 round 2.
FAULTS = [
    ({2: "lose"}, "finding the clients: no machine of client 1 after 120 seconds"),
    ({2: "die"}, "finding the clients: no machine of client 1"), ({2: "error"}, "no machine of client 1"),
    ({5: "lose"}, "round 1: no message of client 1 within 120 seconds"),
    ({5: "lose", 6: "drop"}, "round 1: no message of client 1, 2 within"),
    ({8: "drop"}, "round 2: no message of client 1"),
    ({8: "die"}, "round 2: no message of client 1"), ({8: "error"}, "round 2: client 1: Node Unavailable"),
    ({8: "double"}, "round 2: client 1 has answered twice"),
    ({8: "refuse to send"}, "round 2: client 1 could not be asked"),
]  # fmt: skip


@pytest.mark.parametrize(("faults", "words"), FAULTS)
def test_a_client_that_fails_is_named(faults, words, tmp_path):
    terms = agreed()
    wire = Wire(dict(enumerate(folders(tmp_path, terms))), faults)
    with pytest.raises(FederationAborted, match=words):
        coordinator(terms, wire).fit()
    assert wire.time <= 125, "within the time that was given"


@given(
    faults=st.dictionaries(
        st.integers(1, 12), st.sampled_from(["lose", "drop", "late", "double", "die", "error"]), max_size=3
    ),
    timeout=st.sampled_from([10.0, 120.0]),
)
def test_whatever_happens_the_result_is_right_or_there_is_none(faults, timeout, tmp_path_factory):
    """And a second run with the same clients gives the same bits, as no round was released twice."""
    terms, wanted = shared()
    own = dict(enumerate(folders(tmp_path_factory.mktemp("clients"), terms)))
    wire = Wire(own, faults)
    try:
        assert coordinator(terms, wire, timeout=timeout).fit().tobytes() == wanted
    except FederationAborted as problem:
        assert "client" in str(problem)
    again = Wire(own)
    assert coordinator(terms, again).fit().tobytes() == wanted
    contents = {(m.client, m.round): set() for m in wire.log + again.log}
    for m in wire.log + again.log:
        contents[m.client, m.round].add((m.support.tobytes(), m.values.tobytes()))
    assert all(len(found) == 1 for found in contents.values())


def test_a_client_on_two_machines_is_refused(tmp_path):
    terms = agreed()
    a, b, c = folders(tmp_path, terms)
    with pytest.raises(FederationAborted, match="client 1 is there twice, on machines 1 and 3. Stop one of them"):
        coordinator(terms, Wire({0: a, 1: b, 2: c, 3: b})).fit()


def test_a_machine_that_is_gone_is_not_missed_when_its_client_is_back(tmp_path):
    """A restarted machine is listed under two addresses for a while, and the old one does not answer."""
    terms = agreed()
    a, b, c = folders(tmp_path, terms)
    wire = Wire({0: a, 1: b, 2: c, 3: b}, {2: "die"})
    np.testing.assert_array_equal(coordinator(terms, wire).fit(), in_process().coef)


def test_a_client_of_another_run_is_told_so(tmp_path):
    terms = agreed()
    with pytest.raises(
        FederationAborted, match="finding the clients: run='.*': must be .* A new run needs a new folder"
    ):
        coordinator(agreed(), Wire(dict(enumerate(folders(tmp_path, terms))))).fit()


def test_a_client_with_another_plan_is_told_so(tmp_path):
    terms, other = agreed(), agreed(step_size=0.25)
    wire = Wire(dict(enumerate(folders(tmp_path, terms))))
    with pytest.raises(FederationAborted, match="finding the clients: plan='.*': must be the plan of the client"):
        coordinator(replace(other, run=terms.run), wire).fit()


def test_a_client_that_is_not_in_the_plan_is_refused(tmp_path):
    terms = agreed()
    own = folders(tmp_path, terms)
    small = agree("dp_fed_sgd_ht", sizes=[30, 12], d=D, randomness="fast", **SGD)
    wire = Wire(dict(enumerate(own)))
    wire._answer = lambda name, node, request: Answer(name, Message(node, 0, *terms_start()))
    with pytest.raises(FederationAborted, match="client 2 of 2: it is not in the plan"):
        coordinator(small, wire).fit()


def terms_start():
    return np.zeros(0, dtype=np.int64), np.zeros(0)


@pytest.mark.parametrize(("message", "words"), [
    (Message(0, 1, np.array([0]), np.array([1.0])), "client 1 has sent a message of client 0 for round 1"),
    (Message(1, 2, np.array([0]), np.array([1.0])), "client 1 has sent a message of client 1 for round 2"),
    (Message(1, 1, np.array([99]), np.array([1.0])), "message of client 1='with other places'"),
    (Message(1, 1, np.array([0]), np.array([1.0, 2.0])), "message of client 1='of another shape or type'"),
    (Message(1, 1, np.array([0]), np.array([np.inf])), "message of client 1='with NaN or infinity'"),
])  # fmt: skip
def test_a_wrong_message_is_refused_and_its_client_named(message, words, tmp_path):
    terms = agreed()
    wire = Wire(dict(enumerate(folders(tmp_path, terms))))
    honest = wire._answer
    wire._answer = lambda name, node, request: (
        Answer(name, message) if (node, request.round) == (1, 1) else honest(name, node, request)
    )
    with pytest.raises(FederationAborted, match=f"round 1: .*{words}"):
        coordinator(terms, wire).fit()


def test_the_model_is_kept_before_any_client_is_told_that_the_run_is_over(tmp_path):
    """If it cannot be kept, clients still wait for another run, which arrives at the same model."""
    terms = agreed()
    wire = Wire(dict(enumerate(folders(tmp_path, terms))))

    def full(weights):
        assert not any(folder.is_over for folder in wire.folders.values())
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        coordinator(terms, wire, keep=full).fit()
    assert not any(folder.is_over for folder in wire.folders.values())
    kept = []
    weights = coordinator(terms, Wire(wire.folders), keep=lambda found: kept.append(found.copy())).fit()
    np.testing.assert_array_equal(kept, [weights])
    assert all(folder.is_over for folder in wire.folders.values())


def test_a_client_whose_run_is_over_takes_part_again_if_it_is_told_to(tmp_path):
    terms = agreed()
    own = dict(enumerate(folders(tmp_path, terms)))
    weights = coordinator(terms, Wire(own)).fit()
    for folder in own.values():
        folder.reopen()
        folder.reopen()
        assert not folder.is_over and folder.answered == 3
    np.testing.assert_array_equal(coordinator(terms, Wire(own)).fit(), weights)
    assert all(folder.is_over for folder in own.values())


@pytest.mark.parametrize("problem", [None, OSError("the network is gone")])
def test_a_flower_server_writes_the_model_before_clients_are_told_and_it_stays(problem, tmp_path):
    terms = agreed()
    (tmp_path / "terms.json").write_text(terms.to_json())
    outcome, seen = tmp_path / "outcome.json", []

    class Ending(apps.Coordinator):
        def find_clients(self):
            self.places = {}

        def _round(self, number, server):
            return [Message(i, number, np.array([i]), np.array([1.0])) for i in range(3)]

        def _say_over(self):
            seen.append(json.loads(outcome.read_text())["status"])
            if problem:
                raise problem

    with (
        mock.patch.object(apps, "Coordinator", Ending),
        mock.patch.object(apps, "KEEP", 0.0),
        pytest.raises(OSError, match="gone") if problem else nullcontext(),
    ):
        apps.fit(None, str(tmp_path / "terms.json"), str(outcome), 1.0, 1.0)
    record = json.loads(outcome.read_text())
    assert seen == ["completed"] and record["status"] == "completed" and record["places"] == [0, 1, 2]
    assert Path(f"{outcome}.over").exists()


NO_NUMBERS = ["0", None, [0], 1.5, 1.0, True, np.array([1, 2]), np.int64(1), {}]


@pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
def test_a_machine_whose_client_is_no_number_is_named(number, tmp_path):
    terms = agreed()
    wire = Wire(dict(enumerate(folders(tmp_path, terms), 7)))
    honest = wire._answer
    wire._answer = lambda name, node, request: (
        Answer(name, Message(number, 0, *terms_start())) if node == 8 else honest(name, node, request)
    )
    with pytest.raises(FederationAborted, match="finding the clients: machine 8 has sent no number of a client"):
        coordinator(terms, wire).fit()


@pytest.mark.parametrize("where", ["client", "round"])
@pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
def test_a_message_of_a_round_without_numbers_is_refused_and_its_client_named(number, where, tmp_path):
    terms = agreed()
    wire = Wire(dict(enumerate(folders(tmp_path, terms))))
    honest, facts = wire._answer, {"client": 1, "round": 1} | {where: number}
    message = Message(facts["client"], facts["round"], np.array([0]), np.array([1.0]))
    wire._answer = lambda name, node, request: (
        Answer(name, message) if (node, request.round) == (1, 1) else honest(name, node, request)
    )
    with pytest.raises(FederationAborted, match="round 1: client 1 has sent a message without the numbers of a client"):
        coordinator(terms, wire).fit()


@pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
def test_the_server_averages_no_message_without_numbers(number):
    for client, round_number in ((number, 1), (1, number)):
        server = Server([0.5, 0.5], 6, 6, 3)
        with pytest.raises(InvalidValue, match="messages='one without the numbers of a client and a round'"):
            server.combine([Message(0, 1, *terms_start()), Message(client, round_number, *terms_start())])
        assert server.round == 0


class Envelope:
    """A Flower message with these facts."""

    def __init__(self, **facts):
        empty = SimpleNamespace(numpy=lambda: np.zeros(0))
        self.content = {"facts": facts, "model": {"support": empty, "values": empty}}
        self.metadata = SimpleNamespace(reply_to_message_id="one")

    def has_error(self):
        return False


@pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
def test_a_flower_message_without_numbers_is_one_of_another_program(number):
    for facts in ({"client": number, "round": 1}, {"client": 1, "round": number}, {"round": 1}, {"client": 1}):
        answer = apps.GridTransport._answer(Envelope(problem="", **facts))
        assert answer.message is None and answer.problem == "refused: it has sent a message of another program"
    answer = apps.GridTransport._answer(Envelope(problem="", client=1, round=2))
    assert (answer.message.client, answer.message.round) == (1, 2)


@pytest.mark.parametrize("problem", [EOFError, MemoryError, OverflowError, OSError, SyntaxError, ValueError])
def test_a_flower_message_that_cannot_be_unpacked_is_one_of_another_program(problem):
    envelope = Envelope(problem="", client=1, round=2)

    def broken():
        raise problem("a record of the sender")

    envelope.content["model"]["values"] = SimpleNamespace(numpy=broken)
    assert apps.GridTransport._answer(envelope).problem == "refused: it has sent a message of another program"


@cache
def shared():
    """The terms that all examples of the property test use, and the bits that they must give."""
    return agreed(), in_process().coef.tobytes()
