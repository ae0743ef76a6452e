"""A client on its disk: a round is released once, whoever asks how often, and whenever its process is killed."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from functools import cache
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit.accounting import Ledger
from dptoolkit.errors import BudgetExceeded, InvalidValue
from dptoolkit.federated import folder as folder_module
from dptoolkit.federated.folder import ClientFolder, Request
from dptoolkit.federated.terms import Terms, agree
from dptoolkit.solvers.engine.initial import NOTHING
from tests.federated.remote import agreed, folders
from tests.federated.test_fit import SGD, D, clients

MODELS = [NOTHING, (np.array([0]), np.array([5.0])), (np.array([1, 4]), np.array([-1.0, 2.0]))]


def request(terms, number, model=NOTHING):
    return Request(terms.run, terms.fingerprint, number, *model)


def content(message):
    return message.round, message.support.tobytes(), message.values.tobytes()


@pytest.fixture
def terms():
    return agreed()


@pytest.fixture
def ledger(tmp_path):
    return Ledger.open(tmp_path / "a.ledger", 9.0, 1e-3, allow_fast_noise=True)


def made(place, terms, ledger=None, **how):
    X, y = clients()[1]
    path = None if ledger is None else ledger.path
    return ClientFolder.create(place / "client", terms, 1, X, y, ledger=path, **how)


# --- terms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [
    {}, {"weights": [1, 2, 3]}, {"initial": [(0, 1.5)]}, {"initial": np.arange(D) * (np.arange(D) < 3)},
    {"rate": np.float32(0.5)}, {"threshold": "server"}, {"calibration": "published"}, {"epsilon": 3},
    {"randomness": "secure"},
])  # fmt: skip
def test_everybody_makes_the_same_plan_of_the_terms(change, tmp_path):
    terms = agree("dp_fed_sgd_ht", sizes=[30, 12, 21], d=D, **SGD | {"randomness": "fast"} | change)
    (tmp_path / "terms.json").write_text(terms.to_json())
    again = Terms.read(tmp_path / "terms.json")
    assert again.plan.fingerprint == terms.fingerprint and again.run == terms.run
    assert made(tmp_path, again).plan == terms.plan.clients[1], "without calibrating again"


def test_two_runs_have_two_names(terms):
    assert agreed().run != terms.run and agreed().fingerprint == terms.fingerprint


def test_terms_without_noise_are_refused():
    with pytest.raises(InvalidValue, match="epsilon=inf: must be finite"):
        agreed(epsilon=np.inf)


@pytest.mark.parametrize(("text", "words"), [
    ("{", "must be the terms of a federation"), ("{}", "must be the terms"), ("[]", "must be the terms"),
    ('{"format": "dptoolkit-federation-1"}', "run is missing"),
])  # fmt: skip
def test_another_file_is_not_taken_for_terms(text, words, tmp_path):
    (tmp_path / "terms.json").write_text(text)
    with pytest.raises(InvalidValue, match=words):
        Terms.read(tmp_path / "terms.json")


@pytest.mark.parametrize("change", [
    {"weights": 3}, {"weights": "ab"}, {"weights": ["a"]}, {"sizes": ["a"]}, {"sizes": [True]}, {"sizes": [1.5]},
    {"sizes": []}, {"d": -1}, {"randomness": "x"}, {"solver": "dp_fed_sgd_ht_cnn"}, {"arguments": {}},
    {"arguments": {"foo": 1}}, {"arguments": {"steps": 1}}, {"arguments": {"epsilon": None}},
    {"arguments": {"rounds": "3"}}, {"arguments": {"initial": "x"}}, {"arguments": {"loss": 3}},
], ids=str)  # fmt: skip
def test_terms_that_make_no_plan_are_one_error_with_the_file(change, terms, tmp_path):
    record, path = json.loads(terms.to_json()), tmp_path / "given.json"
    more = change.get("arguments")
    if more:
        change = {"arguments": record["arguments"] | more}
    path.write_text(json.dumps(record | change))
    with pytest.raises(InvalidValue, match="given.json: "):
        _ = Terms.read(path).plan


@pytest.mark.parametrize("change", [
    {"client": 7}, {"client": -1}, {"client": "1"}, {"client": None}, {"client": True}, {"scales": []},
    {"scales": None}, {"scales": ["x"]}, {"scales": [1.0, 1.0]}, {"shape": 3}, {"shape": None}, {"ledger": 5},
    {"id": None}, {"terms": None}, {"plan": None}, "client", "scales", "shape", "ledger", "id", "plan", "terms",
], ids=str)  # fmt: skip
def test_a_folder_with_damaged_terms_is_one_error_with_the_file(change, terms, tmp_path):
    path = made(tmp_path, terms).path / "terms.json"
    record = json.loads(path.read_text())
    if isinstance(change, str):
        del record[change]
    path.write_text(json.dumps(record | (change if isinstance(change, dict) else {})))
    with pytest.raises(InvalidValue, match="client/terms.json"):
        ClientFolder(path.parent)


@pytest.mark.parametrize("answered", ["x", None, -1, 1.0, True, [1]], ids=repr)
def test_a_folder_with_a_damaged_count_is_one_error_with_the_file(answered, terms, tmp_path):
    folder = made(tmp_path, terms)
    path = folder.path / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"answered": answered}))
    with pytest.raises(InvalidValue, match="client/state.json"):
        _ = folder.answered
    with pytest.raises(InvalidValue, match="client/state.json"):
        folder.answer(request(terms, 1))


def test_a_plan_that_another_program_made_is_refused(terms):
    other = Terms.from_json(terms.to_json().replace(terms.fingerprint, "0" * 64))
    with pytest.raises(InvalidValue, match="Use the version of dptoolkit that wrote the terms"):
        assert other.plan


# --- once and never again ------------------------------------------------------------------------------


def test_a_round_gets_the_same_bytes_from_every_process_whatever_model_is_sent(terms, tmp_path):
    place = made(tmp_path, terms).path
    first = [ClientFolder(place).answer(request(terms, number)) for number in (1, 2)]
    for model in MODELS:
        for message in first:
            again = ClientFolder(place).answer(request(terms, message.round, model))
            assert content(again) == content(message)


class Killed(BaseException):
    """Stands for kill -9."""


def crashing(at):
    """Patches that kill the process at the ``at``-th of the moments that matter: charging, computing, storing."""
    count = [0]

    def around(function):
        def watched(*arguments, **named):
            for moment in ("before", "after"):
                count[0] += 1
                if count[0] == at:
                    raise Killed(moment)
                if moment == "before":
                    result = function(*arguments, **named)
            return result

        return watched

    class Dying(folder_module.Client):
        reply = around(folder_module.Client.reply)

    return [
        mock.patch.object(folder_module, "_write_synced", around(folder_module._write_synced)),
        mock.patch.object(folder_module, "Client", Dying),
        mock.patch.object(Ledger, "spend", around(Ledger.spend)),
        mock.patch.object(folder_module.os, "replace", around(folder_module.os.replace)),
    ]


def attempt(place, terms, number, model, at):
    """What left the client, None if it was killed or refused."""
    with ExitStack() as stack:
        for patch in crashing(at):
            stack.enter_context(patch)
        try:
            return ClientFolder(place).answer(request(terms, number, model))
        except (Killed, InvalidValue):
            return None


REQUESTS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, len(MODELS) - 1), st.integers(1, 26)), min_size=1, max_size=12
)


def releases_of(place, terms, requests):
    """The different contents that left the client, by round."""
    seen = {}
    for number, model, at in requests:
        message = attempt(place, terms, number, MODELS[model], at)
        if message is not None:
            assert message.round == number
            seen.setdefault(number, set()).add(content(message))
    return seen


@given(requests=REQUESTS)
def test_no_round_is_released_twice_however_often_the_process_is_killed(requests, tmp_path_factory):
    tmp_path, terms = tmp_path_factory.mktemp("client"), shared()
    ledger = Ledger.open(tmp_path / "a.ledger", 5.0, 1e-3, allow_fast_noise=True)
    place = made(tmp_path, terms, ledger).path
    seen = releases_of(place, terms, requests)
    assert all(len(contents) == 1 for contents in seen.values())
    assert sorted(seen) == list(range(1, len(seen) + 1)), "rounds come in order"
    assert len(ledger.entries) <= 1 and (not seen or ledger.entries[0].count == 1), "charged once, before the first"
    folder = ClientFolder(place)
    for number in range(1, 4):
        folder.answer(request(terms, number))
    assert len(ledger.entries) == 1


def test_a_client_that_stores_nothing_would_be_noticed(terms, tmp_path):
    """The twin of the test above: without the stored reply another model gets the same noise."""
    place = made(tmp_path, terms).path
    with mock.patch.object(ClientFolder, "_count", lambda self, answered: None):
        seen = {content(ClientFolder(place).answer(request(terms, 1)))}
        (place / "round-1.npz").unlink()
        seen.add(content(ClientFolder(place).answer(request(terms, 1, MODELS[1]))))
    assert len(seen) == 2


@pytest.mark.parametrize("damage", ["delete", "cut", "exchange"])
def test_a_reply_that_is_lost_is_not_computed_again(damage, terms, tmp_path):
    folder = made(tmp_path, terms)
    for number in (1, 2):
        folder.answer(request(terms, number))
    path = folder.path / "round-1.npz"
    if damage == "delete":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        path.write_bytes((folder.path / "round-2.npz").read_bytes())
    with pytest.raises(InvalidValue, match="round=1: must be one whose reply is still in .* not computed again"):
        folder.answer(request(terms, 1))


COPY = "must be the original, not a copy or a backup"


def test_a_copy_of_the_folder_answers_nothing_and_a_moved_one_does(terms, tmp_path):
    """The copy does not know what the original has answered in the meantime, and has the same key."""
    folder = made(tmp_path, terms)
    shutil.copytree(folder.path, tmp_path / "copy", copy_function=shutil.copy2)
    with pytest.raises(InvalidValue, match=COPY):
        ClientFolder(tmp_path / "copy").answer(request(terms, 1))
    folder.path.rename(tmp_path / "moved")
    assert ClientFolder(tmp_path / "moved").answer(request(terms, 1)).round == 1


def test_neither_a_folder_of_links_nor_one_whose_key_was_linked_answers(terms, tmp_path):
    folder = made(tmp_path, terms)
    shutil.copytree(folder.path, tmp_path / "copy", copy_function=os.link)
    for place in (tmp_path / "copy", folder.path):
        with pytest.raises(InvalidValue, match=f"{COPY}, with links and permissions as they were"):
            ClientFolder(place).answer(request(terms, 1))


def renumbered(made_by):
    """Numbers of a copy in a new file system, whose inodes are those of the original."""

    def numbers(folder):
        numbers.first = numbers.first or made_by(folder)
        return numbers.first[:2] + made_by(folder)[2:]

    numbers.first = None
    return numbers


def test_a_copy_with_the_inodes_of_the_original_answers_nothing(terms, tmp_path):
    """Inodes are used again, and two new file systems give the same ones: the time of the key's change differs."""
    with mock.patch.object(folder_module, "_made", renumbered(folder_module._made)):
        folder = made(tmp_path, terms)
        shutil.copytree(folder.path, tmp_path / "copy", copy_function=shutil.copy2)
        assert folder.answer(request(terms, 1)).round == 1
        with pytest.raises(InvalidValue, match=COPY):
            ClientFolder(tmp_path / "copy").answer(request(terms, 1, MODELS[1]))


def test_reading_locking_and_reopening_the_key_leave_the_folder_usable(terms, tmp_path):
    folder = made(tmp_path, terms)
    (folder.path / "key").read_bytes()
    for number in (1, 2, 3):
        assert ClientFolder(folder.path).answer(request(terms, number)).round == number


@pytest.fixture
def snapshots():
    """Copies that cannot be told from the original, such as snapshots of a whole disk."""
    with mock.patch.object(folder_module, "_made", lambda folder: [0, 0, 0]):
        yield


@pytest.mark.parametrize("before", [0, 1], ids=["before the first round", "after a round"])
@pytest.mark.parametrize("randomness", ["fast", "secure"])
def test_a_restored_snapshot_that_is_behind_its_ledger_answers_nothing(before, randomness, tmp_path, snapshots):
    terms = agreed(randomness=randomness)
    ledger = Ledger.open(tmp_path / "a.ledger", 9.0, 1e-3, allow_fast_noise=True)
    folder = made(tmp_path, terms, ledger)
    for number in range(1, before + 1):
        folder.answer(request(terms, number))
    shutil.copytree(folder.path, tmp_path / "copy")
    first = folder.answer(request(terms, before + 1))
    for model in MODELS:
        with pytest.raises(InvalidValue, match="must be one with all replies that its ledger knows.*Make a new run"):
            ClientFolder(tmp_path / "copy").answer(request(terms, before + 1, model))
    assert content(folder.answer(request(terms, before + 1, MODELS[1]))) == content(first)
    for number in range(before + 2, 4):
        folder.answer(request(terms, number))
    assert len(ledger.entries) == 1


def test_of_two_snapshots_that_answer_at_one_time_one_is_refused(terms, ledger, tmp_path, snapshots):
    """Both find that no reply was noted; the second to note one must not send its own."""
    folder = made(tmp_path, terms, ledger)
    shutil.copytree(folder.path, tmp_path / "copy")
    other, reply = ClientFolder(tmp_path / "copy"), folder_module.Client.reply

    def interrupted(self, *asked):
        message = reply(self, *asked)
        with mock.patch.object(folder_module.Client, "reply", reply):
            other.answer(request(terms, 1, MODELS[1]))
        return message

    with mock.patch.object(folder_module.Client, "reply", interrupted):
        for _ in range(2):
            with pytest.raises(InvalidValue, match="must be one with all replies that its ledger knows"):
                folder.answer(request(terms, 1))
    assert folder.answered == 0 and other.answered == 1


def test_without_the_notes_beside_the_ledger_a_charged_folder_answers_no_further_round(terms, ledger, tmp_path):
    folder = made(tmp_path, terms, ledger)
    first = folder.answer(request(terms, 1))
    notes = tmp_path / "a.ledger.replies"
    for text in ("{", "[]", '{"x": 1}', None):
        notes.unlink() if text is None else notes.write_text(text)
        with pytest.raises(InvalidValue, match="a.ledger.replies': must be .*Restore it"):
            folder.answer(request(terms, 2))
    assert content(folder.answer(request(terms, 1))) == content(first)


def test_a_copy_that_nothing_notices_draws_other_noise_at_another_model(tmp_path, snapshots):
    """Without a ledger: a difference of two messages must not be the difference of two gradients."""
    terms = agreed(threshold="server", rounds=1, local_steps=1, rate=1.0)
    folder = made(tmp_path, terms)
    shutil.copytree(folder.path, tmp_path / "copy")
    shutil.copytree(folder.path, tmp_path / "same")
    first, other, same = (
        ClientFolder(path).answer(request(terms, 1, model))
        for path, model in ((folder.path, NOTHING), (tmp_path / "copy", MODELS[1]), (tmp_path / "same", NOTHING))
    )
    assert content(same) == content(first)
    X, y = clients()[1]

    def gradient(w):
        each = (X @ w - y)[:, None] * X
        return np.mean(each / np.maximum(1, np.linalg.norm(each, axis=1))[:, None], axis=0)

    moved = 5.0 * np.eye(D)[0]
    exact = moved - 0.5 * (gradient(moved) - gradient(np.zeros(D)))
    assert np.all(np.abs(other.values - first.values - exact) > 1e-6), "equal noise would leave 1e-16"


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_refused_before_anything_is_charged(size, terms, ledger, tmp_path):
    folder = made(tmp_path, terms, ledger)
    (folder.path / "key").write_bytes(b"\0" * size)
    with (
        mock.patch.object(folder_module, "_made", lambda path: json.loads((path / "state.json").read_text())["made"]),
        pytest.raises(InvalidValue, match=f"key='{size} bytes': must be the 32 bytes of a key"),
    ):
        folder.answer(request(terms, 1))
    assert not ledger.entries


def test_a_second_process_waits_for_the_first(terms, tmp_path):
    import fcntl

    folder, held = made(tmp_path, terms), []

    def watched(path, content):
        with (folder.path / "key").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path.name)
        write(path, content)

    write = folder_module._write_synced
    with mock.patch.object(folder_module, "_write_synced", watched):
        folder.answer(request(terms, 1))
    assert held == ["round-1.npz", "state.json"]


# --- refused, charged ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "words"), [
    ({"run": "another"}, "run='another': must be .* A new run needs a new folder"),
    ({"fingerprint": "0" * 64}, "plan='000000000000': must be the plan of the client. Client 1 has agreed to"),
    ({"round": 2}, "round=2: must be 1, the next of client 1. Rounds come in order"),
    ({"round": 4}, "round=4: must be <= 3. Client 1 answers no more rounds"), ({"round": -2}, "round=-2"),
    ({"support": np.array([7]), "values": np.array([1.0])}, "model for client 1='with other places'"),
    ({"support": np.arange(4), "values": np.ones(4)}, "with 4 weights': must be with at most sparsity=3"),
    ({"support": np.array([0]), "values": np.array([np.nan])}, "with NaN or infinity"),
])  # fmt: skip
def test_a_bad_request_is_refused_and_charges_nothing(change, words, terms, ledger, tmp_path):
    folder = made(tmp_path, terms, ledger)
    asked = {
        "run": terms.run,
        "fingerprint": terms.fingerprint,
        "round": 1,
        "support": NOTHING[0],
        "values": NOTHING[1],
    }
    with pytest.raises(InvalidValue, match=words):
        folder.answer(Request(**asked | change))
    assert not ledger.entries and folder.answered == 0


def test_all_rounds_are_charged_before_the_first_and_only_once(terms, ledger, tmp_path):
    folder = made(tmp_path, terms, ledger)
    folder.answer(request(terms, 0))
    assert not ledger.entries, "to take part costs nothing"
    for number in (1, 1, 2, 3, 3):
        folder.answer(request(terms, number))
    (entry,) = ledger.entries
    assert entry.event == terms.plan.clients[1].event and terms.run in entry.label


def test_a_second_folder_of_the_run_is_charged_too(terms, ledger, tmp_path):
    """It has another key, and so its replies are further releases."""
    for place in (tmp_path / "a", tmp_path / "b"):
        place.mkdir()
        made(place, terms, ledger).answer(request(terms, 1))
    assert len(ledger.entries) == 2


def test_a_short_budget_is_known_before_anybody_is_charged(terms, tmp_path):
    ledger = Ledger.open(tmp_path / "poor", 1.0, 1e-5, allow_fast_noise=True)
    folder = made(tmp_path, terms, ledger)
    for number in (0, 1):
        with pytest.raises(BudgetExceeded):
            folder.answer(request(terms, number))
    assert folder.answered == 0


def test_a_seed_is_refused_where_a_ledger_is_charged(terms, ledger, tmp_path):
    with pytest.raises(InvalidValue, match="rng='a seed"):
        made(tmp_path, terms, ledger, rng=1)
    assert not (tmp_path / "client").exists()


@pytest.mark.parametrize(("change", "words"), [
    ({"number": 3}, "client=3: must be < 3"), ({"number": 0}, "X='12 records': must be the 30 records of client 0"),
    ({"X": np.zeros((12, D + 1))}, "at most n_features=6 wide"), ({"y": np.zeros(3)}, "y"),
    ({"X": np.full((12, D), np.nan)}, "X"),
])  # fmt: skip
def test_bad_records_are_refused_and_leave_no_folder(change, words, terms, tmp_path):
    X, y = clients()[1]
    arguments = {"path": tmp_path / "client", "terms": terms, "number": 1, "X": X, "y": y} | change
    with pytest.raises(InvalidValue, match=words):
        ClientFolder.create(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_for_one_run(terms, tmp_path):
    made(tmp_path, terms)
    with pytest.raises(InvalidValue, match="must be one that does not exist yet"):
        made(tmp_path, terms)
    with pytest.raises(InvalidValue, match="must be the folder of a client"):
        ClientFolder(tmp_path)


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_secure_noise_is_released_once_as_well(loss, tmp_path):
    """Its key is of the operating system, so a second computation would be another release."""
    terms = agreed(randomness="secure", loss=loss, **({"classes": 3} if loss == "softmax" else {}))
    X, y = clients(loss)[1]
    place = ClientFolder.create(tmp_path / "client", terms, 1, X, y).path
    assert ClientFolder(place).plan.secure is not None
    first = ClientFolder(place).answer(request(terms, 1))
    assert content(ClientFolder(place).answer(request(terms, 1, MODELS[1]))) == content(first)
    with pytest.raises(InvalidValue, match="rng='given': must be left out for randomness='secure'"):
        ClientFolder.create(tmp_path / "seeded", terms, 1, X, y, rng=1)


def test_key_and_records_are_for_the_owner_alone(terms, tmp_path):
    folder = made(tmp_path, terms)
    assert folder.path.stat().st_mode & 0o077 == 0 and (folder.path / "key").stat().st_mode & 0o077 == 0
    record = json.loads((folder.path / "terms.json").read_text())
    assert record["client"] == 1 and (folder.path / "key").read_bytes().hex() not in json.dumps(record)


def test_keys_from_a_seed_are_those_of_the_fit_in_one_process(terms, tmp_path):
    keys = {(folder.path / "key").read_bytes() for folder in folders(tmp_path, terms)}
    assert len(keys) == 3


@cache
def shared():
    """The terms that all examples of the property test use."""
    return agreed()
