"""Places of weights that come from elsewhere: nothing but increasing numbers below the width ever reaches a kernel."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dptoolkit import federated, losses
from dptoolkit.accounting import Ledger
from dptoolkit.errors import InvalidValue
from dptoolkit.federated.client import Message, check_weights
from dptoolkit.federated.flower import apps
from dptoolkit.federated.folder import ClientFolder, Request
from dptoolkit.federated.server import Server
from dptoolkit.solvers._sgd import Batches, SgdRun
from dptoolkit.solvers.engine.batches import BatchData, Iterate, check_sparse_rows
from dptoolkit.solvers.engine.bounds import constant
from tests.federated.remote import agreed
from tests.federated.test_fit import clients

WIDTH = 50
TOP = 2**63
# Differences of neighbours wrap around in the integers of NumPy: none of these increases, and all of them seem to.
WRAPPING = {
    "uint64, beyond": np.array([0, TOP + 10**6, 5], dtype=np.uint64),
    "uint64, falling": np.array([3, 1, 4], dtype=np.uint64),
    "uint64, doubled": np.array([3, 1, 3], dtype=np.uint64),
    "uint64, many": np.array([0, *(TOP + 3 * np.arange(48, dtype=np.uint64)), 1], dtype=np.uint64),
    "uint32": np.array([7, 2, 9], dtype=np.uint32),
    "uint8": np.array([7, 2, 9], dtype=np.uint8),
    "int64": np.array([0, TOP - 1, -2, 5]),
    "int8": np.array([0, 127, -2, 5], dtype=np.int8),
}
INTEGERS = [np.dtype(f"{order}{kind}{size}") for order in "<>" for kind in "iu" for size in (1, 2, 4, 8)]
EXTREME = [0, 1, WIDTH - 1, WIDTH, -1, -2]
EXTREME += [
    sign * 2**bits + more for sign in (1, -1) for bits in (7, 8, 15, 16, 31, 32, 62, 63, 64) for more in (-1, 0, 1)
]


@st.composite
def places(draw):
    """Integers of any kind, from the ends of its range and from where real places are."""
    kind = draw(st.sampled_from(INTEGERS))
    low, high = (0, WIDTH - 1) if draw(st.booleans()) else (np.iinfo(kind).min, np.iinfo(kind).max)
    near = [number for number in EXTREME if low <= number <= high]
    numbers = draw(st.lists(st.sampled_from(near) | st.integers(low, high), max_size=6))
    return np.array(sorted(set(numbers)) if draw(st.booleans()) else numbers, dtype=kind)


def fit(found):
    """Whether these are places of a model, in integers without end."""
    numbers = found.tolist()
    return numbers == sorted(set(numbers)) and all(0 <= number < WIDTH for number in numbers)


@given(found=places())
@example(found=WRAPPING["uint64, beyond"])
@example(found=WRAPPING["int64"])
def test_places_are_taken_as_they_are_or_refused(found):
    weights = np.ones(len(found))
    if fit(found):
        support, values = check_weights("model", found, weights, WIDTH)
        assert support.dtype == np.int64 and support.tolist() == found.tolist() and values.tolist() == weights.tolist()
        assert support.dtype.isnative and not np.shares_memory(support, found)
    else:
        with pytest.raises(InvalidValue, match="model='with other places': must be increasing places below 50"):
            check_weights("model", found, weights, WIDTH)


def by_differences(found):
    """The broken twin: integers of NumPy wrap around when they are subtracted, and only the ends are bounded."""
    return found[0] >= 0 and found[-1] < WIDTH and (np.diff(found) > 0).all()


@pytest.mark.parametrize("name", WRAPPING)
def test_differences_that_wrap_around_would_let_these_places_in(name):
    found = WRAPPING[name]
    assert by_differences(found) and not fit(found)
    with pytest.raises(InvalidValue, match="with other places"):
        check_weights("model", found, np.ones(len(found)), WIDTH)


@pytest.mark.parametrize(("support", "values", "words"), [
    ([0, 1], [1.0], "of another shape or type"), ([[0]], [[1.0]], "of another shape or type"),
    (0, 1.0, "of another shape or type"), ([0.0], [1.0], "of another shape or type"),
    ([True], [1.0], "of another shape or type"), (["0"], [1.0], "of another shape or type"),
    ([None], [1.0], "of another shape or type"), ([0], [1j], "of another shape or type"),
    ([0], ["1"], "of another shape or type"), ([0], [None], "of another shape or type"),
    ([0], [True], "of another shape or type"), ([[0], [0, 1]], [1.0], "of another shape or type"),
    ([0], [[1.0], [1.0, 2.0]], "of another shape or type"), (None, None, "of another shape or type"),
    ([2**70], [1.0], "of another shape or type"), ([0], [2**70], "of another shape or type"),
    (np.zeros(1, "M8[s]"), [1.0], "of another shape or type"),
    (np.zeros(1, "i8,i8"), [1.0], "of another shape or type"),
    ([0], [np.nan], "with NaN or infinity"), ([0], [-np.inf], "with NaN or infinity"),
    ([0], np.array([1e300], dtype=np.longdouble) ** 2, "with NaN or infinity"),
])  # fmt: skip
def test_weights_of_another_kind_are_refused(support, values, words):
    with pytest.raises(InvalidValue, match=f"model='{words}'"):
        check_weights("model", support, values, WIDTH)


# --- a client --------------------------------------------------------------------------------------------

CANARY = {"sparsity": 3, "rounds": 1, "local_steps": 1, "step_size": 1.0, "grad_norm": 1.0, "rate": 0.9,
          "threshold": "server", "epsilon": 1.0, "delta": 1e-5}  # fmt: skip


def folder_with_ledger(place, terms, X, y):
    ledger = Ledger.open(place / "ledger", 9.0, 1e-3, allow_fast_noise=True)
    return ClientFolder.create(place / "client", terms, 0, X, y, ledger=ledger.path), ledger


@pytest.mark.parametrize("name", WRAPPING)
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_server_cannot_fill_the_untouched_coordinates_with_places_that_do_not_exist(loss, name, tmp_path):
    """Were they counted as coordinates with data, those without would get no noise, and a batch's features show."""
    X = np.zeros((40, WIDTH))
    X[:, :4] = np.random.default_rng(0).standard_normal((40, 4))
    X[0] = np.eye(WIDTH)[40]
    more = {"classes": 2} if loss == "softmax" else {}
    terms = federated.agree("dp_fed_sgd_ht", sizes=[40], d=WIDTH, randomness="fast", loss=loss, **CANARY, **more)
    folder, ledger = folder_with_ledger(tmp_path, terms, X, np.arange(40) % 2)
    found = WRAPPING[name]
    for asked in (lambda one: folder.answer(one), lambda one: ClientFolder(folder.path).answer(one)):
        with pytest.raises(InvalidValue, match="model for client 0='with other places'"):
            asked(Request(terms.run, terms.fingerprint, 1, found, np.full(len(found), 1e-300)))
    assert not ledger.entries and folder.answered == 0


class Wired:
    """An array of a Flower message."""

    def __init__(self, content):
        self.content = content

    def numpy(self):
        return self.content


@pytest.mark.parametrize("name", WRAPPING)
def test_flower_requests_with_such_places_are_refused_in_words(name, tmp_path):
    terms, found = agreed(), WRAPPING[name]
    X, y = clients()[0]
    folder, ledger = folder_with_ledger(tmp_path, terms, X, y)
    facts = {"run": terms.run, "plan": terms.fingerprint, "round": 1}
    content = {"facts": facts, "model": {"support": Wired(found), "values": Wired(np.ones(len(found)))}}
    with mock.patch.object(apps, "_content", lambda facts, support, values: (facts, support, values)):
        reply, support, values = apps.answer(content, str(folder.path))
    assert reply["problem"].startswith("model for client 0='with other places'")
    assert support.size == values.size == 0 and not ledger.entries and folder.answered == 0


@pytest.mark.parametrize("name", WRAPPING)
def test_a_message_with_such_places_is_refused_and_its_client_named(name):
    server, found = Server([0.5, 0.5], WIDTH, WIDTH, 5), WRAPPING[name]
    nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    with pytest.raises(InvalidValue, match="message of client 1='with other places'"):
        server.combine([Message(0, 1, *nothing), Message(1, 1, found, np.ones(len(found)))])
    assert server.round == 0


# --- what holds the model for the kernels ----------------------------------------------------------------

BAD_STARTS = {
    "negative": [-1], "beyond": [WIDTH], "far beyond": [2**62], "doubled": [3, 3], "falling": [4, 3],
    "too many": [0, 1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_STARTS)
def test_an_iterate_and_a_run_refuse_places_that_the_kernels_have_no_room_for(name):
    found = np.array(BAD_STARTS[name])
    start = found, np.ones(len(found))
    with pytest.raises(InvalidValue, match="start="):
        Iterate(3, start, WIDTH)
    X, y = np.random.default_rng(0).standard_normal((12, WIDTH)), np.zeros(12)
    data = BatchData(check_sparse_rows(X), y, losses.get("squared", losses.SCALAR), np.inf, None)
    how = Batches(2, 4, 0.1, 3, 0.0, "without-replacement", False)
    with pytest.raises(InvalidValue, match="start="):
        SgdRun(data, how, constant(0.0), start)
    with pytest.raises(InvalidValue, match="start="):
        SgdRun(data, how, constant(0.0)).advance(np.random.default_rng(0), start, 1)
