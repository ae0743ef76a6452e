"""Federated fits in process: what is averaged, who is charged, who is refused, and that nothing depends on order."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import pickle
import threading
import warnings
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import federated, marks, solvers
from dptoolkit.accounting import Gaussian, Ledger, Repeated, Subsampled, account
from dptoolkit.errors import BudgetExceeded, InvalidValue, UnsupportedEvent
from dptoolkit.federated.client import Client, Key, Message
from dptoolkit.federated.plan import worst
from dptoolkit.federated.server import Server
from dptoolkit.federated.settings import DERIVED, ResolvedFedSgd
from dptoolkit.solvers.engine.initial import NOTHING
from tests.statistics import assert_ks

D = 6
SHARED = {"sparsity": 3, "rounds": 3, "local_steps": 2, "step_size": 0.5, "grad_norm": 1.0}
BUDGET = {"epsilon": 4.0, "delta": 1e-4}
SGD = SHARED | BUDGET | {"loss": "squared", "rate": 0.3}
LOSSES = {"squared": {}, "logistic": {}, "huber": {}, "hinge": {}, "softmax": {"classes": 3}}


def labels(loss, n, rng):
    if loss == "softmax":
        return rng.integers(0, 3, n).astype(float)
    return rng.standard_normal(n) if loss in ("squared", "huber") else (rng.random(n) < 0.5).astype(float)


def clients(loss="squared", sizes=(30, 12, 21), seed=0, d=D):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((n, d)), labels(loss, n, rng)) for n in sizes]


# --- the model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("threshold", ["iterative", "server"])
@pytest.mark.parametrize("sampling", ["poisson", "without-replacement", None])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_fitted_on_dense_and_on_sparse_clients(loss, sampling, threshold, intercept):
    data = clients(loss)
    solve = federated.dp_fed_gd_ht if sampling is None else federated.dp_fed_sgd_ht
    how = {} if sampling is None else {"rate": 0.3, "sampling": sampling}
    arguments = SHARED | BUDGET | LOSSES[loss] | how
    arguments |= {"loss": loss, "threshold": threshold, "fit_intercept": intercept, "rng": 1}
    dense = solve(data, **arguments)
    mixed = solve([(sparse.csr_matrix(X) if i else X, y) for i, (X, y) in enumerate(data)], **arguments)
    assert dense.coef.shape == ((3, D) if loss == "softmax" else (D,))
    assert np.shape(dense.intercept) == ((3,) if loss == "softmax" else ())
    assert 0 < np.count_nonzero(dense.coef) <= 3
    assert np.any(np.asarray(dense.intercept) != 0) == intercept
    np.testing.assert_allclose(mixed.coef, dense.coef, rtol=0, atol=1e-12)
    assert dense.guarantee.epsilon(1e-4) == pytest.approx(4.0, rel=1e-3)


def test_without_noise_and_threshold_one_step_is_the_gradient_step_on_all_records():
    """One local step, "server", all records: the weighted average of models is one step of the centralised method."""
    data = clients()
    X, y = np.vstack([X for X, _ in data]), np.concatenate([y for _, y in data])
    wanted = -0.5 * X.T @ (0 * y - y) / len(y)
    result = federated.fed_sgd_ht(
        data, loss="squared", sparsity=D, rounds=1, local_steps=1, step_size=0.5, rate=1.0, threshold="server", rng=0
    )
    np.testing.assert_allclose(result.coef, wanted, rtol=1e-12)
    assert result.guarantee is None and result.guarantees is None and result.plan is None
    assert "not private" in repr(result)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_an_infinite_budget_and_a_wide_clip_give_the_solver_without_privacy(loss):
    data, more = clients(loss), LOSSES[loss] | {"rate": 0.4, "loss": loss, "rng": 5}
    plain = federated.fed_sgd_ht(data, **{k: v for k, v in SHARED.items() if k != "grad_norm"}, **more)
    silent = federated.dp_fed_sgd_ht(data, **SHARED | {"grad_norm": 1e6, "epsilon": math.inf}, **more)
    np.testing.assert_array_equal(plain.coef, silent.coef)
    assert silent.guarantee.epsilon(1e-5) == math.inf


def reference(X, y, w, b, step, sparsity):
    """One step without noise on all records, clipped to norm 1."""
    gradients = (X @ w - y)[:, None] * X
    norms = np.linalg.norm(gradients, axis=1)
    w = w - step * (gradients * np.minimum(1, 1 / norms)[:, None]).sum(axis=0) / b
    kept = np.argsort(-np.abs(w), kind="stable")[:sparsity]
    return np.where(np.isin(np.arange(len(w)), kept), w, 0.0)


@pytest.mark.parametrize("solve", [federated.dp_fed_sgd_ht, federated.dp_fed_gd_ht])
@pytest.mark.parametrize("threshold", ["iterative", "server"])
def test_the_rounds_are_the_specification(solve, threshold):
    """Local steps, the weighted average, the server's threshold: written out in NumPy, without noise."""
    data, weights = clients(), [1.0, 2.0, 5.0]
    how = {"rate": 1.0} if solve is federated.dp_fed_sgd_ht else {}
    result = solve(data, **SHARED | {"epsilon": math.inf}, loss="squared", threshold=threshold, weights=weights,
                   trace=True, rng=0, **how)  # fmt: skip
    w = np.zeros(D)
    for _, support, values in result.history["iterates"]:
        total = np.zeros(D)
        for (X, y), share in zip(data, np.array(weights) / 8, strict=True):
            v = w
            for _ in range(2):
                v = reference(X, y, v, len(y), 0.5, 3 if threshold == "iterative" else D)
            total += share * v
        kept = np.sort(np.argsort(-np.abs(total), kind="stable")[:3])
        w = np.where(np.isin(np.arange(D), kept), total, 0.0)
        np.testing.assert_array_equal(support, kept)
        np.testing.assert_allclose(values, w[kept], rtol=1e-10)
    np.testing.assert_allclose(result.coef, w, rtol=1e-10)


def test_clients_of_one_record_take_part():
    data = [*clients(), (np.ones((1, D)), np.ones(1))]
    for sampling in ("poisson", "without-replacement"):
        result = federated.dp_fed_sgd_ht(data, **SGD, sampling=sampling, rng=0)
        assert len(result.guarantees) == 4 and np.isfinite(result.coef).all()
        assert result.plan.clients[3].settings.batch_size == (0.3 if sampling == "poisson" else 1)


@pytest.mark.parametrize("loss", ["squared", "huber", "softmax"])
def test_huge_entries_spoil_nothing(loss):
    data = clients("softmax")
    data[0][0][0], data[1][0][0] = 1e308, -1e160
    assert np.isfinite(federated.dp_fed_gd_ht(data, **SHARED | BUDGET | LOSSES[loss], loss=loss, rng=0).coef).all()
    assert np.isfinite(federated.dp_fed_sgd_ht(data, **SGD | LOSSES[loss] | {"loss": loss}, rng=0).coef).all()


def test_the_model_starts_where_it_is_told():
    start = [2.0, 0, 0, -1.0, 0, 0]
    same = federated.dp_fed_gd_ht(clients(), **SHARED | {"step_size": 1e-100} | BUDGET, loss="squared", initial=start)
    np.testing.assert_allclose(same.coef, start, atol=1e-90)
    with pytest.raises(InvalidValue, match="initial='4 weights that are not 0': must be at most sparsity=3"):
        federated.plan("dp_fed_gd_ht", sizes=[5], d=D, **SHARED | BUDGET, loss="squared", initial=[1, 1, 1, 1, 0, 0])


# --- plans ---------------------------------------------------------------------------------------------


def test_the_plan_of_a_fit_is_made_without_data():
    result = federated.dp_fed_sgd_ht(clients(), **SGD, rng=0)
    plan = federated.plan("dp_fed_sgd_ht", sizes=[30, 12, 21], d=D, **SGD)
    assert plan == result.plan and plan.fingerprint == result.plan.fingerprint and str(plan) == str(result.plan)
    assert plan.sizes == (30, 12, 21) and plan.weights == pytest.approx((30 / 63, 12 / 63, 21 / 63))
    assert plan.to_json().count('"solver"') == 4
    others = [plan.with_noise(factor=1.1), federated.plan("dp_fed_sgd_ht", sizes=[12, 30, 21], d=D, **SGD),
              federated.plan("dp_fed_sgd_ht", sizes=[30, 12, 21], d=D, **SGD, weights=[1, 1, 1])]  # fmt: skip
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_the_signature_has_every_setting_that_can_be_given():
    parameters = list(inspect.signature(federated.dp_fed_sgd_ht).parameters)
    contract = ["clients", "loss", "sparsity", "rounds", "local_steps", "step_size", "grad_norm", "rate", "epsilon",
                "delta", "sampling", "threshold", "weights", "rng"]  # fmt: skip
    assert set(contract) <= set(parameters) and not DERIVED & set(parameters)
    text = inspect.getdoc(federated.dp_fed_sgd_ht)
    assert all(f"\n{name} : " in text for name in parameters) and "\nPrivacy\n-------\n" in text
    with pytest.raises(TypeError, match="unexpected argument 'batch_size'. It takes .*rate"):
        federated.plan("dp_fed_sgd_ht", sizes=[5], d=2, **SGD, batch_size=3)
    with pytest.raises(TypeError, match="Did you mean 'rounds'"):
        federated.plan("dp_fed_sgd_ht", sizes=[5], d=2, **SGD, round=3)


def test_unequal_clients_are_listed_and_the_worst_is_the_federations():
    plan = federated.plan("dp_fed_sgd_ht", sizes=[40, 100, 10], d=D, **SGD | {"sampling": "without-replacement"})
    rates = [client.releases[0].sampling.rate for client in plan.clients]
    assert rates == [12 / 40, 30 / 100, 3 / 10]
    odd = federated.plan("dp_fed_sgd_ht", sizes=[40, 7, 1], d=D, **SGD | {"sampling": "without-replacement"})
    assert [client.releases[0].sampling.rate for client in odd.clients] == [0.3, 2 / 7, 1.0]
    epsilons = [one.epsilon(1e-4) for one in odd.guarantees]
    assert max(epsilons) <= 4.0 and min(epsilons) > 3.99, "each client's noise is calibrated for itself"
    # The same noise for all: the client with the largest rate is worst, at every delta.
    lines = [line.split() for line in str(odd).splitlines() if line[:1].isdigit()]
    assert [line[:2] for line in lines[:3]] == [["0", "40"], ["1", "7"], ["2", "1"]]
    assert all(line[-1] == "4" for line in lines[:3])
    for delta in (1e-2, 1e-4, 1e-8):
        assert odd.guarantee.epsilon(delta) == max(one.epsilon(delta) for one in odd.guarantees)
    assert odd.guarantee.delta(2.0) == max(one.delta(2.0) for one in odd.guarantees)
    assert "the worst of 3 clients" in str(odd.guarantee)


@pytest.mark.parametrize("name", ["dp_fed_sgd_ht", "dp_fed_gd_ht"])
def test_a_group_of_records_has_the_worst_clients_group_guarantee(name):
    """Not that of one record, which is smaller."""
    more = {"rate": 0.3} if name == "dp_fed_sgd_ht" else {}
    plan = federated.plan(name, sizes=[60, 20, 7], d=D, **SHARED, **BUDGET, loss="squared", **more)
    for size in (1, 3):
        group, own = plan.guarantee.group(size), [one.group(size) for one in plan.guarantees]
        assert group.epsilon(1e-4) == max(one.epsilon(1e-4) for one in own)
        assert group.delta(2.0) == max(one.delta(2.0) for one in own)
    assert plan.guarantee.group(3).epsilon(1e-4) > 2 * plan.guarantee.epsilon(1e-4)


def test_every_answer_of_the_federation_covers_every_client():
    """Also where the worst client's event, at the delta that was asked for, is of another kind than the others'."""
    full, coins = account(Gaussian(0.5)), account(Repeated(Subsampled(Gaussian(0.5), "poisson", 0.1), 20))
    alpha = np.array([0.0, 0.01, 0.2, 0.7])
    for both in ((full, coins), (coins, full)):
        one = worst(both, 1e-3)
        assert one.rho == math.inf
        assert (one.tradeoff(alpha) <= np.minimum(full.tradeoff(alpha), coins.tradeoff(alpha))).all()
        low, high = one.bounds(1e-9)
        assert high == max(each.epsilon(1e-9) for each in both) and low == max(each.bounds(1e-9)[0] for each in both)
        # Another event in its place, as in the power of an audit, and another method are obeyed.
        assert replace(one, event=Gaussian(1.0)).epsilon(1e-5) == account(Gaussian(1.0)).epsilon(1e-5)
        assert replace(one, forced_method="rdp").epsilon(1e-5) == max(
            account(each.event, "rdp").epsilon(1e-5) for each in both
        )


def test_a_clients_noise_that_is_too_small_shows_in_the_federations_guarantee():
    plan = federated.plan("dp_fed_gd_ht", sizes=[40, 30], d=D, **SHARED | BUDGET, loss="squared")
    weak = federated.FederatedPlan((plan.clients[0], plan.clients[1].with_noise(factor=0.5)), plan.weights, 3)
    assert weak.guarantee.epsilon(1e-4) == weak.guarantees[1].epsilon(1e-4) > 2 * plan.guarantee.epsilon(1e-4)
    assert weak.guarantee.event == weak.guarantees[1].event
    assert "number 1" in str(weak.guarantee)


# --- randomness ----------------------------------------------------------------------------------------


def test_a_seed_repeats_the_fit_and_says_so():
    first, again = (federated.dp_fed_sgd_ht(clients(), **SGD, rng=3) for _ in range(2))
    np.testing.assert_array_equal(first.coef, again.coef)
    assert all("not a release" in " ".join(one.notes) for one in (*first.guarantees, first.guarantee))
    fresh = [federated.dp_fed_sgd_ht(clients(), **SGD) for _ in range(2)]
    assert (fresh[0].coef != fresh[1].coef).any()
    assert not any("not a release" in " ".join(one.notes) for one in fresh[0].guarantees)


def streams(solve, data, **arguments):
    """What every client draws first in every round: {(client, round): number}."""
    found, real = {}, Client.reply

    def watched(self, round_number, support, values):
        found[self.number, round_number] = self._key.stream(round_number).random()
        return real(self, round_number, support, values)

    with mock.patch.object(Client, "reply", watched):
        solve(data, **arguments)
    return found


@pytest.mark.parametrize("seed", [7, None])
def test_no_client_round_or_plan_shares_a_stream(seed):
    """Equal noise of two clients, or of two models, would cancel in a difference."""
    equal = [clients()[0]] * 3
    runs = [
        streams(federated.dp_fed_sgd_ht, equal, **SGD | more, rng=seed)
        for more in ({}, {"weights": [1, 2, 3]}, {"epsilon": 5.0}, {"step_size": 0.51})
    ]
    numbers = [number for run in runs for number in run.values()]
    assert all(len(run) == 9 for run in runs) and len(set(numbers)) == len(numbers)
    if seed is not None:
        assert streams(federated.dp_fed_sgd_ht, equal, **SGD, rng=seed) == runs[0]


def test_a_clients_stream_depends_on_its_number_and_not_on_who_comes_later():
    key = [Key.of(solvers.frame.fit.Source.of(4), f"x {i}") for i in (0, 1)]
    assert key[0].stream(1).random() != key[1].stream(1).random() != key[1].stream(2).random()
    assert key[0].stream(1).random() == key[0].stream(1).random()


# --- ledgers -------------------------------------------------------------------------------------------


def test_every_client_has_its_own_ledger():
    books = [Ledger(10.0, 1e-3), None, Ledger(10.0, 1e-3)]
    result = federated.dp_fed_sgd_ht(clients(), **SGD, ledgers=books)
    for i in (0, 2):
        assert books[i].guarantee.epsilon(1e-4) == pytest.approx(result.guarantees[i].epsilon(1e-4), rel=1e-9)
        assert not books[i].reserved and books[i].entries[0].label == "dp_fed_sgd_ht"


def test_all_are_refused_if_one_ledger_is_short_and_no_data_are_used():
    books = [Ledger(10.0, 1e-3), Ledger(1.0, 1e-3), Ledger(10.0, 1e-3)]
    unused = mock.patch.object(ResolvedFedSgd, "bind", side_effect=AssertionError("data were used"))
    with unused, pytest.raises(BudgetExceeded, match=r"ledgers\[1\]: "):
        federated.dp_fed_sgd_ht(clients(), **SGD, ledgers=books)
    assert all(not book.entries for book in books)


@pytest.mark.parametrize("problem", [UnsupportedEvent("no rule"), KeyboardInterrupt()])
def test_nobody_is_charged_if_a_ledger_fails_in_another_way(problem):
    ledgers = [Ledger(epsilon=5.0, delta=1e-4) for _ in range(3)]
    with mock.patch.object(ledgers[2], "reservation", side_effect=problem), pytest.raises(type(problem)):
        federated.dp_fed_sgd_ht(clients(), ledgers=ledgers, **SGD)
    assert [ledger.remaining() for ledger in ledgers] == [5.0] * 3


def test_charges_come_before_the_data_and_stay_when_a_fit_fails():
    books = [Ledger(10.0, 1e-3) for _ in range(3)]
    with mock.patch.object(ResolvedFedSgd, "bind", side_effect=RuntimeError("power cut")), pytest.raises(RuntimeError):
        federated.dp_fed_sgd_ht(clients(), **SGD, ledgers=books)
    assert all(len(book.reserved) == 1 for book in books)


def test_ledgers_refuse_seeds_and_what_no_budget_covers():
    books = [Ledger(10.0, 1e-3) for _ in range(3)]
    with pytest.raises(InvalidValue, match="rng='a seed"):
        federated.dp_fed_sgd_ht(clients(), **SGD, ledgers=books, rng=0)
    marked = clients()
    marked[1] = (marked[1][0].view(marks.MarkedArray), marked[1][1])
    with pytest.raises(InvalidValue, match=r"ledgers\[1\]: .*No budget covers"):
        federated.dp_fed_sgd_ht(marked, **SGD, ledgers=books)
    assert all(not book.entries for book in books)
    for wrong in (books[0], books[:2], [*books[:2], "ledger"]):
        with pytest.raises(InvalidValue, match="ledgers"):
            federated.dp_fed_sgd_ht(clients(), **SGD, ledgers=wrong)


def test_marked_rows_void_the_guarantee_of_their_client_and_so_the_federations():
    data = clients()
    data[1] = (data[1][0].view(marks.MarkedArray), data[1][1])
    result = federated.dp_fed_sgd_ht(data, **SGD, rng=0)
    epsilons = [one.epsilon(1e-4) for one in result.guarantees]
    assert epsilons[1] == math.inf and max(epsilons[0], epsilons[2]) < 4.01
    assert result.guarantee.epsilon(1e-4) == math.inf and "VOID" in str(result.guarantee)


# --- bad input -----------------------------------------------------------------------------------------


def broken_clients():
    good = clients("logistic")
    X, y = good[1]
    return {
        "other width": ([good[0], (X[:, :4], y)], r"clients\[1\]: X.shape=\(12, 4\): must be \(rows, 6\)"),
        "empty": ([good[0], (X[:0], y[:0])], r"clients\[1\]: X.shape=\(0, 6\): must be at least"),
        "other labels": ([good[0], (X, y + 1)], r"clients\[1\]: y='an array with other labels'"),
        "labels too few": ([good[0], (X, y[:3])], r"clients\[1\]: y.shape"),
        "missing entries": ([(X * np.nan, y), good[0]], r"clients\[0\]: X"),
        "no pair": ([good[0], X], r"clients\[1\]='ndarray': must be a tuple"),
        "no clients": ([], r"clients=\[\]: must be a list of \(X, y\), at least one"),
        "one array": (X, "clients='ndarray': must be a list"),
    }


@pytest.mark.parametrize("case", broken_clients())
def test_bad_data_name_the_client_and_charge_nobody(case):
    data, message = broken_clients()[case]
    books = [Ledger(10.0, 1e-3)] * len(data)
    for solve, more in ((federated.dp_fed_sgd_ht, {"ledgers": books}), (federated.dp_fed_gd_ht, {})):
        arguments = SHARED | BUDGET | ({"rate": 0.3} if solve is federated.dp_fed_sgd_ht else {})
        with pytest.raises(InvalidValue, match=message):
            solve(data, **arguments, loss="logistic", **more)
    plain = {name: value for name, value in SHARED.items() if name != "grad_norm"}
    with pytest.raises(InvalidValue, match=message):
        federated.fed_sgd_ht(data, **plain, loss="logistic", rate=0.3)
    assert all(not book.entries for book in books)


def test_large_weights_do_not_overflow_and_none_becomes_nothing():
    sizes = {"sizes": [20, 20], "d": D}
    assert federated.plan("dp_fed_sgd_ht", **sizes, weights=[1e308, 1e308], **SGD).weights == (0.5, 0.5)
    with pytest.raises(InvalidValue, match=r"weights\[0\]=1e-320: must be more than nothing next to 1e\+308"):
        federated.plan("dp_fed_sgd_ht", **sizes, weights=[1e-320, 1e308], **SGD)


def test_a_client_may_be_given_by_an_iterator():
    data = clients()
    results = [federated.dp_fed_sgd_ht(given, **SGD, rng=1) for given in (data, [iter(pair) for pair in data])]
    np.testing.assert_array_equal(results[0].coef, results[1].coef)


@pytest.mark.parametrize("initial", [[(math.nan, 1.0)], [(0, 1e400)], [(0, 1j)], [1j] * D, ["1"] * D])
def test_a_model_to_start_from_has_finite_real_weights(initial):
    with warnings.catch_warnings(), pytest.raises(InvalidValue, match="initial='list': must be None or 6 finite"):
        warnings.simplefilter("error")
        federated.plan("dp_fed_sgd_ht", sizes=[20], d=D, initial=initial, **SGD)


def test_classes_are_public():
    data = clients("softmax")
    with pytest.raises(InvalidValue, match="classes=None: must be"):
        federated.plan("dp_fed_sgd_ht", sizes=[5], d=2, **SGD | {"loss": "softmax"})
    with pytest.raises(InvalidValue, match=r"clients\[\d\]: y='labels outside the classes'"):
        federated.dp_fed_sgd_ht(data, **SGD | {"loss": "softmax", "classes": 2})


@pytest.mark.parametrize(("change", "message"), [
    ({"rate": 0.0}, "rate=0.0"), ({"rate": 1.5}, "rate=1.5"), ({"rounds": 0}, "rounds=0"),
    ({"local_steps": 0}, "local_steps=0"), ({"threshold": "client"}, "threshold='client'"),
    ({"sampling": "all"}, "sampling='all'"), ({"sparsity": 7}, "sparsity=7: must be <= d=6"),
    ({"grad_norm": None}, "grad_norm=None: must be given"), ({"grad_norm": -1.0}, "grad_norm=-1.0"),
    ({"step_size": 0.0}, "step_size=0.0"), ({"weights": [1.0, 0.0, 1.0]}, r"weights\[1\]=0.0"),
    ({"weights": [1.0]}, "weights='1 numbers': must be 3"), ({"delta": 0.0}, "delta=0.0"),
    ({"row_norm": 0.0}, "row_norm=0.0"), ({"loss": "absolute"}, "loss='absolute'"),
    ({"sampling": "without-replacement", "adjacency": "zero-out"}, "zero-out"), ({"sizes": []}, "sizes"),
    ({"sizes": [3, 0, 3]}, r"sizes\[1\]=0"), ({"sizes": 3}, "sizes=3"),
])  # fmt: skip
def test_bad_arguments_are_named(change, message):
    arguments = {"sizes": [30, 12, 21], "d": D} | SGD | change
    with pytest.raises(InvalidValue, match=message):
        federated.plan("dp_fed_sgd_ht", **arguments)


def test_the_smallest_client_warns_for_all():
    with pytest.warns(solvers.DeltaWarning, match="1/n=0.2") as seen:
        federated.plan("dp_fed_gd_ht", sizes=[6, 5, 7], d=D, **SHARED, loss="squared", epsilon=1.0, delta=0.5)
    assert len(seen) == 1


# --- client and server ---------------------------------------------------------------------------------


def one_client(number=0):
    plan = federated.plan("dp_fed_sgd_ht", sizes=[30], d=D, **SGD).clients[0]
    rows = plan.settings.validated_rows(clients()[0][0])
    client = Client(number, plan, rows, clients()[0][1], Key(np.random.default_rng(1)))
    client.reserve()
    return client


def test_a_round_is_answered_once_whatever_model_comes_with_the_second_request():
    client = one_client()
    first = client.reply(1, *NOTHING)
    assert client.reply(1, np.array([0]), np.array([5.0])) is first
    second = client.reply(2, first.support, first.values)
    assert second.round == 2 and client.reply(2, *NOTHING) is second
    for number, message in ((1, "must be 3, the next of client 0"), (4, "must be <= 3. Client 0 answers no more")):
        with pytest.raises(InvalidValue, match=message):
            client.reply(number, *NOTHING)


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_and_its_key_have_no_twin_with_the_same_noise(twin):
    for unique in (one_client(), Key(np.random.default_rng(1))):
        with pytest.raises(TypeError, match="would draw the same noise"):
            twin(unique)


def test_a_forked_client_does_not_answer():
    """Parent and child would answer a round at two models with the same noise."""
    client = one_client()
    with mock.patch("os.getpid", lambda: -1), pytest.raises(InvalidValue, match="make the client where it answers"):
        client.reply(1, *NOTHING)
    assert client.reply(1, *NOTHING).round == 1


def test_a_second_thread_waits_until_a_round_is_answered():
    """Without a lock two threads that ask for one round would get the same noise at two models."""
    client, free = one_client(), []
    make = client._make

    def watched():
        other = threading.Thread(target=lambda: free.append(client._lock.acquire(blocking=False)))
        other.start()
        other.join()
        return make()

    client._make = watched
    client.reply(1, *NOTHING)
    assert free == [False]


def test_a_key_is_of_one_client():
    plan, key = federated.plan("dp_fed_sgd_ht", sizes=[30], d=D, **SGD).clients[0], Key(np.random.default_rng(1))
    rows = plan.settings.validated_rows(clients()[0][0])
    Client(0, plan, rows, clients()[0][1], key)
    with pytest.raises(InvalidValue, match="that of client 0': must be one of client 1's own"):
        Client(1, plan, rows, clients()[0][1], key)


@pytest.mark.parametrize("change", [{"sizes": [31]}, {"sizes": [3000]}, {"d": D + 1}])
def test_a_client_has_the_records_that_its_plan_is_for(change):
    """The noise of a mean over 3,000 records would not hide one of 30."""
    plan = federated.plan("dp_fed_gd_ht", **{"sizes": [30], "d": D} | change, loss="squared", **SHARED, **BUDGET)
    X, y = clients()[0]
    rows = plan.clients[0].settings.validated_rows(X)
    with pytest.raises(InvalidValue, match="rows of client 0='30 rows of 6 features"):
        Client(0, plan.clients[0], rows, y, Key(np.random.default_rng(1)))


def test_no_ledger_covers_a_client_with_marked_rows():
    plan, (X, y) = federated.plan("dp_fed_sgd_ht", sizes=[30], d=D, **SGD).clients[0], clients()[0]
    rows, ledger = replace(plan.settings.validated_rows(X), is_marked=True), Ledger(epsilon=100.0, delta=1e-3)
    with pytest.raises(InvalidValue, match="No budget covers this fit"):
        Client(0, plan, rows, y, Key(np.random.default_rng(1)), ledger).reserve()
    assert ledger.remaining() == 100.0


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["dp_fed_sgd_ht", "dp_fed_gd_ht"])
def test_a_hostile_model_makes_no_client_say_more_than_its_message(name, loss, intercept):
    """Margins overflow or not, depending on the records: neither a warning nor an error may tell."""
    more = {"rate": 0.5} if name == "dp_fed_sgd_ht" else {}
    arguments = SHARED | BUDGET | LOSSES[loss] | more | {"fit_intercept": intercept}
    plan = federated.plan(name, sizes=[30], d=D, loss=loss, **arguments).clients[0]
    X, y = clients(loss)[0]
    rows, own = plan.settings.validated_rows(1e10 * X), plan.settings.labels(y, 30)
    client = Client(0, plan, rows, own, Key(np.random.default_rng(1)))
    client.reserve()
    with pytest.raises(InvalidValue, match="with 4 weights': must be with at most sparsity=3"):
        client.reply(1, np.arange(4), np.ones(4))
    with np.errstate(all="raise"):
        message = client.reply(1, np.arange(3), np.array([1e300, -1e300, 1.7e308]))
    np.testing.assert_array_equal(message.values[:3], [1e300, -1e300, 1.7e308])


def test_a_client_answers_nothing_before_it_has_charged():
    client = one_client()
    client.cancel()
    with pytest.raises(InvalidValue, match="Client 0 has charged nothing"):
        client.reply(1, *NOTHING)


@pytest.mark.parametrize(("support", "values"), [
    ([0], [math.nan]), ([0], [math.inf]), ([6], [1.0]), ([-1], [1.0]), ([1, 0], [1.0, 1.0]), ([0, 0], [1.0, 1.0]),
    ([0], [1.0, 2.0]), ([0.5], [1.0]), ([0], ["a"]), ([[0]], [[1.0]]),
])  # fmt: skip
def test_a_client_and_the_server_refuse_models_of_another_shape(support, values):
    client = one_client()
    with pytest.raises(InvalidValue, match="model for client 0"):
        client.reply(1, support, values)
    message = Message(0, 1, np.array(support), np.array(values))
    with pytest.raises(InvalidValue, match="message of client 0"):
        Server([1.0], D, D, 3).combine([message])


def test_messages_are_added_in_the_order_of_the_clients():
    rng = np.random.default_rng(0)
    messages = [Message(i, 1, np.arange(D), rng.standard_normal(D) * 10.0**i) for i in range(3)]
    results = []
    for order in itertools.permutations(messages):
        server = Server([0.1, 0.3, 0.6], D, D, 4)
        results.append(server.combine(order)[1].tobytes())
        assert server.round == 1
    assert len(set(results)) == 1
    rounded = {
        sum(order[1:], order[0]).tobytes()
        for order in itertools.permutations([w * m.values for w, m in zip([0.1, 0.3, 0.6], messages, strict=True)])
    }
    assert len(rounded) > 1, "in another order the last bits differ"


@pytest.mark.parametrize(("numbers", "rounds", "message"), [
    ((0, 1), (1, 1), "none of client 2"), ((0, 1, 1), (1, 1, 1), "two of client 1"), ((0, 1, 7), (1, 1, 1), "client 7"),
    ((0, 1, 2), (1, 2, 1), "client 1 for round 2': must be for round 1"), ((), (), "none of client 0, 1, 2"),
])  # fmt: skip
def test_the_server_refuses_incomplete_rounds_and_changes_nothing(numbers, rounds, message):
    server = Server([0.2, 0.3, 0.5], D, D, 4)
    with pytest.raises(InvalidValue, match=message):
        server.combine([Message(i, r, *NOTHING) for i, r in zip(numbers, rounds, strict=True)])
    assert server.round == 0 and len(server.model[0]) == 0


def test_equal_weights_are_kept_by_their_place():
    server = Server([1.0], 5, 4, 2)
    support, values = server.combine([Message(0, 1, np.arange(5), np.array([1.0, -2.0, 1.0, 1.0, 0.5]))])
    assert support.tolist() == [0, 1, 4] and values.tolist() == [1.0, -2.0, 0.5]


def test_an_average_of_many_clients_has_less_noise():
    """Noise on empty records: the average of four equal clients has half the deviation, at alpha 1e-6."""
    d, data = 4000, [(np.zeros((10, 4000)), np.zeros(10))] * 4
    result = federated.dp_fed_gd_ht(data, **SHARED | BUDGET | {"sparsity": d}, loss="squared", rng=0)
    deviation = 0.5 * math.sqrt(6 / 4) * result.plan.noise[0]
    assert_ks(result.coef / deviation, lambda x: 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))
