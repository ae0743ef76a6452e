"""Clients with secure noise: exact batches and sums, a stream for every round, and one release for each."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, federated
from dptoolkit.accounting import Ledger
from dptoolkit.errors import InvalidValue
from dptoolkit.federated.client import Client, Key
from dptoolkit.federated.secure import SecureSoftmaxSteps
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.frame.fit import bind
from tests.statistics import assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large", "ignore:delta=")

SGD, GD = "dp_fed_sgd_ht", "dp_fed_gd_ht"
KINDS = [
    (SGD, {"loss": "logistic", "rate": 0.25}), (SGD, {"loss": "softmax", "classes": 3, "rate": 0.25}),
    (SGD, {"loss": "softmax", "classes": 3, "rate": 0.25, "sampling": "without-replacement"}),
    (GD, {"loss": "huber"}), (GD, {"loss": "softmax", "classes": 3, "fit_intercept": True}),
]  # fmt: skip
COMMON = {"sparsity": 4, "rounds": 2, "local_steps": 2, "step_size": 1.0, "grad_norm": 0.5, "epsilon": 2.0,
          "delta": 1e-6}  # fmt: skip


def clients(loss, sizes=(64, 48), d=8, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6)
        y = rng.integers(0, 3, n) if loss == "softmax" else (X[:, 0] > 0) * 1.0
        found.append((X, y))
    return found


@pytest.mark.parametrize(("name", "settings"), KINDS, ids=str)
def test_every_clients_guarantee_says_so(name, settings):
    data = clients(settings["loss"])
    solve = getattr(federated, name)
    books = [Ledger(epsilon=3.0, delta=1e-5) for _ in data]
    fit = solve(data, randomness="secure", ledgers=books, **COMMON | settings)
    again = solve(data, randomness="secure", **COMMON | settings)
    assert (fit.coef != again.coef).any() and all(len(book.entries) == 1 for book in books)
    for guarantee, plan in zip(fit.guarantees, fit.plan.clients, strict=True):
        assert "ChaCha20" in str(guarantee) and "time is not protected" in str(guarantee)
        fast = federated.plan(name, sizes=[64, 48], d=8, **COMMON | settings).clients[0]
        assert plan.secure is not None and 1 < plan.sensitivity / (fast.sensitivity * 64 / plan.n) < 1.001
    assert "ChaCha20" in str(fit.plan) and "ChaCha20" in fit.plan.to_json()
    with pytest.raises(InvalidValue, match="rng='given'"):
        solve(data, randomness="secure", rng=1, **COMMON | settings)
    with pytest.raises(InvalidValue, match="without noise"):
        solve(data, randomness="secure", **COMMON | settings | {"epsilon": math.inf})


@pytest.mark.parametrize(("name", "settings"), KINDS, ids=str)
def test_a_round_is_answered_once(name, settings):
    """A second request gets the bytes of the first; the next round has noise of its own."""
    plan = federated.plan(name, sizes=[64], d=8, randomness="secure", **COMMON | settings).clients[0]
    ((X, y),) = clients(settings["loss"], (64,))
    rows, labels = plan.settings.validated_rows(X), plan.settings.labels(y, 64)
    client = Client(0, plan, rows, labels, Key(np.random.default_rng(0)))
    client.reserve()
    start = np.zeros(0, np.int64), np.zeros(0)
    one, two = client.reply(1, *start), client.reply(1, np.array([3]), np.array([5.0]))
    assert one is two
    other = Client(1, plan, rows, labels, Key(np.random.default_rng(0)))
    other.reserve()
    # The same key of doubles: secure noise has a key of its own.
    assert other.reply(1, *start).values.tobytes() != one.values.tobytes()
    assert client.reply(2, *start).values.tobytes() != one.values.tobytes()


# --- softmax --------------------------------------------------------------------------------------------------------


def softmax_run(X, y, name=SGD, factor=1.0, **settings):
    base = COMMON | {"loss": "softmax", "classes": 3, "sparsity": 3 * X.shape[1], "step_size": 1.0}
    base |= {"rate": 0.25} if name == SGD else {}
    plan = federated.plan(name, sizes=[X.shape[0]], d=X.shape[1], randomness="secure", **base | settings).clients[0]
    return bind(plan.with_noise(factor=factor), X, y)


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
def test_every_record_adds_its_own_integers_whatever_the_batch_is(layout):
    ((X, y),) = clients("softmax", (32,))
    X[0], X[1], X[2] = 1e300, 5e-324, 0.0
    run = softmax_run(layout(X), y)
    assert isinstance(run, SecureSoftmaxSteps)
    w = np.random.default_rng(1).standard_normal(24) * 0.3
    alone = np.array([run.sums(w, np.array([i])) for i in range(32)])
    for batch in (np.arange(32), np.array([5, 1, 0, 31, 2]), np.zeros(0, np.int64)):
        np.testing.assert_array_equal(run.sums(w, batch), alone[batch].sum(axis=0))
    changed = X.copy()
    changed[7] = 0.3
    other = softmax_run(layout(changed), y)
    keep = np.delete(np.arange(32), 7)
    np.testing.assert_array_equal(other.sums(w, keep), run.sums(w, keep))


def test_a_replaced_record_moves_the_integers_by_at_most_the_sensitivity():
    """Opposite residuals and rows of full length: exactly within, and nine tenths of it are reached."""
    ((X, y),) = clients("softmax", (32,))
    X *= 1e3
    run, worst = softmax_run(X, y), 0.0
    noise = run._secure
    for size in (0.0, 0.01, 100.0):
        w = np.random.default_rng(2).standard_normal(24) * size
        vectors = [[int(v) for v in run.sums(w, np.array([i]))] for i in range(32)]
        cap = (Fraction(0.5) / noise.grids.unit) ** 2
        for one in vectors:
            square = sum(v * v for v in one)
            assert square <= cap
            worst = max(worst, float(square / cap))
    assert worst > 0.81


def test_the_noise_of_a_step_has_its_law():
    """Noise spy on all records and all weights: releases minus exact sums are round(M Z)."""
    ((X, y),) = clients("softmax", (32,), d=60)
    run = softmax_run(X, y, GD, rounds=20, local_steps=1)
    trace = run(SecureStream.seeded(1), True)
    w, z, everyone = np.zeros(180), [], np.arange(32)
    for released, after in zip(trace.releases, trace.iterates, strict=True):
        z.append((run._secure.integers(released) - run.sums(w, everyone)) / run._units)
        w = after
    assert_ks(np.concatenate(z), "norm")
    rejected(assert_ks, 0.8 * np.concatenate(z), "norm")


@pytest.mark.parametrize(("name", "settings"), [(GD, {"loss": "softmax", "classes": 3}), (GD, {"loss": "logistic"}),
                                                (SGD, {"loss": "logistic", "rate": 1.0})], ids=str)  # fmt: skip
def test_the_attack_finds_nothing_in_a_message(name, settings):
    """The first message of one local step, all weights kept, by an attacker who knows the grid."""
    rng = np.random.default_rng(7)
    X = rng.integers(-8, 9, (64, 40)) / 64
    y = rng.integers(0, 3 if settings["loss"] == "softmax" else 2, 64) * 1.0
    other = X.copy()
    other[0] = -X[0]
    width = 40 * settings.get("classes", 1)
    arguments = COMMON | settings | {"rounds": 1, "local_steps": 1, "sparsity": width, "epsilon": 0.5, "grad_norm": 8.0}
    plan = federated.plan(name, sizes=[64], d=40, randomness="secure", **arguments).clients[0]
    runs = {id(data): bind(plan, data, y) for data in (X, other)}
    quiet = {id(data): bind(plan.with_noise(factor=0.0), data, y)(None, False).weights for data in (X, other)}
    whole = plan.secure.first.integers
    report = audit.floating_point_attack(
        lambda data, rng: whole(runs[id(data)](None, False).weights), (X, other), trials=40, rng=1,
        exact=lambda data: whole(quiet[id(data)]), scale=1.0, grid=1.0,
    )  # fmt: skip
    assert report.certain == 0 and report.both == 40


def test_the_audit_finds_a_third_of_the_noise_and_no_violation_of_the_plan():
    arguments = COMMON | {"loss": "squared", "rate": 0.5, "rounds": 1, "local_steps": 1, "epsilon": 8.0, "delta": 1e-5,
                          "sparsity": 1}  # fmt: skip
    secure = federated.plan(SGD, sizes=[60], d=2, randomness="secure", **arguments).attacked()
    pair = getattr(audit.pairs, SGD)(federated.plan(SGD, sizes=[60], d=2, **arguments).attacked())
    how = {"trials": 700, "alpha": 1e-6, "adversary": audit.strongest(pair), "delta": 1e-5}
    assert secure.secure is not None
    assert not audit.evidence(secure, pair, secure.guarantee, **how).refuted
    assert audit.evidence(secure.with_noise(factor=1 / 3), pair, secure.guarantee, **how).refuted
