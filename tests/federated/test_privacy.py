"""What one client gives away: sensitivity, every draw of noise, the event of its plan, and the published noise."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from dptoolkit import federated, losses, published, solvers
from dptoolkit.accounting import Gaussian, Repeated, Subsampled, account
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.solvers.engine.initial import NOTHING
from tests.solvers.capture import Spy
from tests.statistics import assert_ks, rejected
from tests.strategies import neighbours

ROUNDING = 1 + 1e-11
NAMES = ("dp_fed_sgd_ht", "dp_fed_gd_ht")
SHARED = {"rounds": 3, "local_steps": 2, "step_size": 0.5, "grad_norm": 1.3, "epsilon": 4.0, "delta": 1e-5}


def task(loss):
    return "3 classes" if losses.get(loss).task == losses.MULTICLASS else losses.get(loss).task


def plan_for(name, loss, n, d, **more):
    arguments = {"rounds": 1, "local_steps": 1, "step_size": 1.0, "grad_norm": 1.3, "threshold": "server",
                 "epsilon": math.inf, "sparsity": 1}  # fmt: skip
    arguments |= {"classes": 3} if task(loss) == "3 classes" else {}
    arguments |= {"rate": 1.0, "sampling": "without-replacement"} if name == "dp_fed_sgd_ht" else {}
    return federated.plan(name, sizes=[n], d=d, loss=loss, **arguments | more).clients[0]


def gradient(plan, X, y, w):
    """The mean gradient of all records of a client at w, by the code that makes its steps: one of length 1."""
    run = solvers.bind(plan, X, y)
    support = np.flatnonzero(w)
    places, values = run.advance(np.random.default_rng(0), (support, w[support]), 1)
    end = np.zeros(len(w))
    end[places] = values
    return w - end


# --- sensitivity ---------------------------------------------------------------------------------------


@given(data=st.data())
@pytest.mark.parametrize("zero_out", [False, True])
@pytest.mark.parametrize("loss", losses.LOSSES)
def test_one_record_moves_a_clients_gradient_by_at_most_the_sensitivity(loss, zero_out, data):
    """Dense and CSR, whatever the entries; rows have no bound, gradients are clipped as a whole."""
    pair = data.draw(neighbours(task(loss), zero_out))
    n, d = pair.X.shape
    intercept = not zero_out and data.draw(st.booleans())
    for name in NAMES:
        relation = "zero-out" if zero_out else "replace-one"
        more = {"sampling": "poisson"} if zero_out and name == "dp_fed_sgd_ht" else {}
        plan = plan_for(name, loss, n, d, fit_intercept=intercept, adjacency=relation, **more)
        assert plan.sensitivity == pytest.approx((1 if zero_out else 2) * 1.3 / n, rel=1e-12)
        w = np.array(
            data.draw(st.lists(st.floats(-2, 2), min_size=plan.settings.width(d), max_size=plan.settings.width(d)))
        )
        one, two = gradient(plan, pair.X, pair.y, w), gradient(plan, pair.X2, pair.y2, w)
        # The difference of w and the next weights has an error of some last bits of w.
        assert np.linalg.norm(one - two) <= plan.sensitivity * ROUNDING + 1e-14


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", losses.LOSSES)
def test_some_record_moves_it_by_nearly_that(loss, name, intercept, layout):
    rows = np.array([[30.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    low, high = (-50.0, 50.0) if task(loss) == "regression" else (0.0, 1.0)
    plan = plan_for(name, loss, 3, 2, fit_intercept=intercept)
    w = np.zeros(plan.settings.width(2))
    if task(loss) == "3 classes":
        # Class 2 has no probability, and the other two have a half.
        w[2] = -5.0
    one, two = (gradient(plan, layout(rows), np.array([label, low, high]), w) for label in (low, high))
    assert np.linalg.norm(one - two) >= 0.9 * plan.sensitivity
    # The twin: with the bound of a record that is removed the same pair is beyond it.
    assert np.linalg.norm(one - two) > 1.3 / 3


@pytest.mark.parametrize("loss", ["squared", "softmax"])
def test_a_batch_is_divided_by_its_expected_size(loss):
    """A Poisson batch that holds few records, or none, must not weigh them more."""
    X, y = np.full((8, 1), 1e6), np.ones(8)
    plan = plan_for("dp_fed_sgd_ht", loss, 8, 1, rate=0.25, sampling="poisson")
    run, found = solvers.bind(plan, X, y), set()
    for seed in range(60):
        _, values = run.advance(np.random.default_rng(seed), NOTHING, 1)
        found.add(round(float(np.linalg.norm(values)) / 1.3 * 2, 9))
    assert found <= {float(k) for k in range(9)} and {0.0, 1.0, 2.0, 3.0} <= found


# --- noise ---------------------------------------------------------------------------------------------


def empty(sizes, d, loss="squared"):
    return [(np.zeros((n, d)), np.zeros(n)) for n in sizes]


def test_every_call_of_the_kernel_gets_the_clients_noise():
    """Scale, expected batch size and number of steps of every call, in the order of rounds and clients."""
    sizes, seen, real = (40, 8, 20), [], kernel.sgd_steps

    def watched(rng, batches, rows, batch, step_size, l2, scale, shares, places, *rest):
        seen.append((len(batches), batch, step_size, l2, scale, shares.tolist()))
        return real(rng, batches, rows, batch, step_size, l2, scale, shares, places, *rest)

    data = [(np.ones((n, 3)), np.ones(n)) for n in sizes]
    with mock.patch.object(kernel, "sgd_steps", watched):
        result = federated.dp_fed_sgd_ht(data, **SHARED, loss="squared", sparsity=2, rate=0.25, randomness="fast")
    wanted = [(2, 0.25 * n, 0.5, 0.0, plan.noise, [1.0]) for n, plan in zip(sizes, result.plan.clients, strict=True)]
    assert seen == wanted * 3
    assert len({scale for *_, scale, _ in seen}) == 3, "unequal clients have unequal noise"


def normal(x):
    return stats.norm.cdf(x)


@pytest.mark.parametrize("name", NAMES)
def test_on_empty_records_the_model_is_the_planned_noise(name):
    """The law of all coordinates, at alpha 1e-6; nine tenths of the noise would be noticed."""
    d, sizes = 20_000, (10, 30)
    more = {"rate": 0.5} if name == "dp_fed_sgd_ht" else {}
    result = getattr(federated, name)(empty(sizes, d), **SHARED, loss="squared", sparsity=d, rng=0, **more)
    shares, noise = np.array(result.plan.weights), np.array(result.plan.noise)
    deviation = 0.5 * math.sqrt(6 * float((shares**2 * noise**2).sum()))
    assert np.count_nonzero(result.coef) == d
    assert_ks(result.coef / deviation, normal)
    rejected(assert_ks, 0.9 * result.coef / deviation, normal)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("loss", "name"), [
    ("squared", "dp_fed_gd_ht"), ("softmax", "dp_fed_gd_ht"), ("softmax", "dp_fed_sgd_ht"),
])  # fmt: skip
def test_every_draw_is_in_the_model(loss, name, intercept):
    """A generator that keeps what it hands out: all of it, at the plan's scale, is what moves the weights.

    Compiled steps, those of the other losses on batches, do not ask Python for numbers: see the tests above.
    """
    d, sizes, spy = 4, (6, 9), Spy(1)
    classes = {"classes": 3} if loss == "softmax" else {}
    more = {"rate": 0.5} if name == "dp_fed_sgd_ht" else {}
    arguments = SHARED | classes | more | {"fit_intercept": intercept}
    width = (d + intercept) * (3 if classes else 1)
    # Without an intercept empty records have no gradient; with one, weights that stay at 0 would have.
    arguments |= {"step_size": 1e-9} if intercept else {}
    data = [(np.zeros((n, d)), np.zeros(n)) for n in sizes]
    result = getattr(federated, name)(data, **arguments, loss=loss, sparsity=d * (3 if classes else 1), rng=spy)
    draws = spy.of("standard_normal")
    assert [z.shape for z in draws] == [(width,)] * (2 * 3 * 2), "one vector a client, round and step"
    total = np.zeros(width)
    for k, z in enumerate(draws):
        # Two steps of client 0, then two of client 1, in every round.
        client = (k // 2) % 2
        total -= arguments["step_size"] * result.plan.weights[client] * result.plan.noise[client] * z
    model = total.reshape(d + intercept, -1).T
    np.testing.assert_allclose(result.coef, model[:, :d] if classes else model[0, :d], rtol=1e-6)


# --- the event -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampling", "adjacency"), [
    ("poisson", "replace-one"), ("poisson", "zero-out"), ("without-replacement", "replace-one"),
])  # fmt: skip
def test_a_clients_epsilon_is_that_of_its_event(sampling, adjacency):
    """Rounds * local_steps noisy batches, noise z C / b on the mean, sensitivity 2 C / b when a record is replaced."""
    plan = federated.plan("dp_fed_sgd_ht", sizes=[600, 45], d=7, loss="logistic", sparsity=2, rate=0.1,
                          sampling=sampling, adjacency=adjacency, **SHARED)  # fmt: skip
    for client, one in zip(plan.clients, plan.guarantees, strict=True):
        b = client.settings.batch_size
        rate = 0.1 if sampling == "poisson" else b / client.n
        z = client.noise * b / 1.3
        inner = Gaussian(z / 2 if adjacency == "replace-one" else z)
        event = Repeated(Subsampled(inner, sampling, rate, adjacency), 6)
        assert one.epsilon(1e-5) == pytest.approx(account(event).epsilon(1e-5), rel=1e-9)
        assert 3.99 < one.epsilon(1e-5) <= 4.0


def test_a_full_gradients_epsilon_is_exact():
    plan = federated.plan("dp_fed_gd_ht", sizes=[600, 45], d=7, loss="logistic", sparsity=2, **SHARED)
    for client, one in zip(plan.clients, plan.guarantees, strict=True):
        z = client.noise * client.n / 1.3
        assert one.epsilon(1e-5) == pytest.approx(account(Repeated(Gaussian(z / 2), 6)).epsilon(1e-5), rel=1e-12)


def test_local_steps_cost_as_much_as_rounds():
    """K hidden local steps are charged K times: no gain of hidden states is claimed."""
    few = federated.plan("dp_fed_sgd_ht", sizes=[600], d=7, loss="logistic", sparsity=2, rate=0.1, **SHARED)
    many = SHARED | {"rounds": 2, "local_steps": 3}
    other = federated.plan("dp_fed_sgd_ht", sizes=[600], d=7, loss="logistic", sparsity=2, rate=0.1, **many)
    assert few.clients[0].event == other.clients[0].event and few.noise == other.noise


def test_the_same_noise_for_all_is_worst_for_the_smallest_client():
    """Fixed batches of 128 at z = 1.834, 400 steps: epsilon by number of records, in the order of their rates."""
    epsilons = [
        account(Repeated(Subsampled(Gaussian(1.834 / 2), "poisson", 128 / n, "replace-one"), 400)).epsilon(1e-5)
        for n in (12_000, 6_000, 3_000)
    ]
    assert epsilons == sorted(epsilons) and epsilons[2] > 2.5 * epsilons[0]


# --- the published noise -------------------------------------------------------------------------------

# claimed epsilon, rounds, batch of 6,000 records, z of TensorFlow Privacy, epsilon of Poisson batches under zero-out,
# and under replace-one, and the range of that of fixed batches under replace-one; 10 local steps, delta 1e-5.
PUBLISHED = [
    (4, 20, 64, 0.726, 2.59, 2.88, (0, 21.4)), (4, 50, 64, 0.781, 2.74, 3.40, (0, 24.9)),
    (4, 100, 32, 0.703, 2.62, 3.07, (0, 28.8)), (4, 100, 64, 0.843, 2.92, 4.08, (24.3, 27.0)),
    (4, 100, 128, 1.163, 3.16, 5.42, (16.3, 19.1)), (4, 100, 600, 4.215, 3.24, 7.04, (7.68, 8.82)),
    (4, 100, 6000, 40.99, 3.25, 7.30, (7.29, 7.31)), (6, 50, 64, 0.672, 4.30, 5.01, (0, 39.2)),
    (6, 100, 64, 0.723, 4.47, 5.70, (0, 44.2)), (6, 100, 600, 2.960, 4.97, 10.8, (0, 15.3)),
    (6, 100, 6000, 28.24, 4.99, 11.5, (11.4, 11.6)),
]  # fmt: skip


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: "-".join(map(str, row[:3])))
def test_the_published_noise_and_its_epsilon_under_tensorflow_privacys_assumptions(row):
    claimed, rounds, b, z, zero_out, replaced, _ = row
    found = published.tensorflow_noise(b / 6000, 10 * rounds, claimed, 1e-5)
    assert found == pytest.approx(z, rel=1e-3)
    for relation, multiplier, wanted in (("zero-out", found, zero_out), ("replace-one", found / 2, replaced)):
        event = Repeated(Subsampled(Gaussian(multiplier), "poisson", b / 6000, relation), 10 * rounds)
        assert account(event).epsilon(1e-5) == pytest.approx(wanted, abs=0.006 * wanted)


def check_both_readings(claimed, rounds, b, limits):
    n = 6000
    plan = federated.plan("dp_fed_sgd_ht", sizes=[n], d=7, loss="logistic", sparsity=2, rate=b / n, rounds=rounds,
                          local_steps=10, step_size=0.1, grad_norm=1.0, epsilon=float(claimed), delta=1e-5,
                          sampling="without-replacement", calibration="published")  # fmt: skip
    (one,) = plan.guarantees
    assert limits[0] <= one.epsilon(1e-5) <= limits[1] * 1.001
    program, paper = plan.clients[0].published.conditions
    assert program.holds and not paper.holds and paper.left == pytest.approx(one.epsilon(1e-5), rel=1e-9)
    assert one.claimed.epsilon == claimed and "TensorFlow Privacy" in str(plan) and "FAILS" in str(plan)
    assert "the paper's definitions" in str(plan)


def test_published_noise_states_the_claim_and_both_readings():
    check_both_readings(4, 100, 6000, (7.29, 7.31))


@pytest.mark.slow
@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: "-".join(map(str, row[:3])))
def test_the_published_noise_by_the_papers_own_definitions(row):
    check_both_readings(*row[:3], row[-1])


def test_published_noise_of_full_gradients_and_of_poisson_batches():
    shared = SHARED | {"calibration": "published", "loss": "squared", "sparsity": 2}
    full = federated.plan("dp_fed_gd_ht", sizes=[600], d=7, **shared).clients[0]
    z = published.tensorflow_noise(1.0, 6, 4.0, 1e-5)
    assert full.noise == pytest.approx(z * 1.3 / 600) and full.guarantee.epsilon(1e-5) > 7
    coins = federated.plan("dp_fed_sgd_ht", sizes=[600], d=7, rate=1.0, **shared).clients[0]
    assert coins.noise == pytest.approx(full.noise)
