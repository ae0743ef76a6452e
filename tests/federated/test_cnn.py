"""The paper's network: its clipped gradients, its noise, and that a client treats it like any other model."""

from __future__ import annotations

import functools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit import audit, federated
from dptoolkit.audit.pair import Pair
from dptoolkit.audit.theory.likelihood import Projection
from dptoolkit.errors import InvalidValue, MissingDependency
from dptoolkit.federated import cnn
from dptoolkit.federated.folder import ClientFolder
from dptoolkit.federated.terms import agree
from tests.federated.remote import Wire, coordinator
from tests.statistics import assert_ks

SHARED = {"sparsity": 10_000, "rounds": 2, "local_steps": 2, "step_size": 0.1, "grad_norm": 0.7, "delta": 1e-5}
SGD = SHARED | {"rate": 0.5, "epsilon": 4.0}


def clients(sizes=(12, 9)):
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((n, cnn.PIXELS)), rng.integers(0, 10, n).astype(float)) for n in sizes]


# --- without PyTorch -----------------------------------------------------------------------------------


def test_the_network_has_the_papers_number_of_weights():
    assert cnn.SIZE == 44_426
    weights = cnn.initial_weights(0)
    assert weights.shape == (cnn.SIZE,) and not np.array_equal(weights, cnn.initial_weights(1))
    assert 0.19 < np.abs(weights[:150]).max() <= 0.2, "1/sqrt(25) in the first layer"


def test_a_plan_needs_neither_data_nor_torch():
    with mock.patch.dict("sys.modules", torch=None):
        plan = federated.plan("dp_fed_sgd_ht_cnn", sizes=[6000, 5631], d=784, **SGD)
    linear = federated.plan("dp_fed_sgd_ht", sizes=[6000, 5631], d=784, loss="squared", **SGD | {"sparsity": 10})
    assert plan.noise == linear.noise and plan.guarantee.epsilon(1e-5) == linear.guarantee.epsilon(1e-5)
    support, values = plan.settings.start()
    assert len(support) == 10_000 and np.all(np.diff(support) > 0)
    rest = np.delete(np.abs(cnn.initial_weights(0)), support)
    assert np.abs(values).min() >= rest.max()


def test_a_fit_without_torch_says_how_to_install_it():
    with mock.patch.dict("sys.modules", torch=None), pytest.raises(MissingDependency, match=r"dptoolkit\[torch\]"):
        federated.dp_fed_sgd_ht_cnn(clients(), **SGD, randomness="fast")


@pytest.mark.parametrize(("change", "words"), [
    ({"d": 783}, "d=783: must be 784"), ({"adjacency": "zero-out"}, "adjacency='zero-out': must be 'replace-one'"),
    ({"sparsity": 44_427}, "sparsity=44427"), ({"initial_seed": -1}, "initial_seed=-1"),
    ({"grad_norm": None}, "grad_norm=None: must be given"),
    ({"initial": [1.0]}, "initial='list': must be None or 44426"),
])  # fmt: skip
def test_bad_arguments_are_named(change, words):
    with pytest.raises(InvalidValue, match=words):
        federated.plan("dp_fed_sgd_ht_cnn", **{"sizes": [10], "d": 784} | SGD | change)


@pytest.mark.parametrize("name", ["loss", "classes", "row_norm", "fit_intercept"])
def test_what_the_network_fixes_is_no_argument(name):
    with pytest.raises(TypeError, match=f"unexpected argument '{name}'"):
        federated.plan("dp_fed_sgd_ht_cnn", sizes=[10], d=784, **SGD, **{name: None})


def test_secure_noise_is_refused():
    plan = federated.plan("dp_fed_sgd_ht_cnn", sizes=[10], d=784, **SGD).clients[0]
    with pytest.raises(InvalidValue, match="randomness='secure': must be 'fast' for dp_fed_sgd_ht_cnn"):
        plan.settings.secured(plan)


# --- gradients -----------------------------------------------------------------------------------------


@functools.cache
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'dptoolkit[torch]'")


def tensors(X, y):
    return torch().as_tensor(np.asarray(X), dtype=torch().float32), torch().as_tensor(np.asarray(y)).long()


def each_gradient(weights, X, y):
    """Every record's gradient, by vmap: the readable way."""
    images, classes = tensors(X, y)

    def loss(w, image, label):
        found = cnn.layer_outputs(w, image[None])[1][-1]
        return torch().nn.functional.cross_entropy(found, label[None])

    w = torch().as_tensor(weights, dtype=torch().float32)
    return torch().func.vmap(torch().func.grad(loss), in_dims=(None, 0, 0))(w, images, classes).double().numpy()


@pytest.mark.parametrize("bound", [0.1, 1.5, 1e9])
def test_one_backward_pass_gives_the_gradients_of_vmap(bound):
    torch()
    (X, y), weights = clients()[0], cnn.initial_weights(3)
    gradients = each_gradient(weights, X, y)
    norms = np.linalg.norm(gradients, axis=1)
    wanted = (gradients * np.minimum(1, bound / norms)[:, None]).sum(0)
    found = cnn.clipped_sum(weights, *tensors(X, y), bound)
    assert np.linalg.norm(found - wanted) <= 3e-5 * np.linalg.norm(wanted)


@given(
    seed=st.integers(0, 2**20), scale=st.sampled_from([0.0, 1.0, 1e4, 1e19, 1e38]), bound=st.sampled_from([0.1, 3.0])
)
def test_no_record_moves_the_sum_by_more_than_its_bound(seed, scale, bound):
    """Also one whose activations overflow."""
    torch()
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((3, cnn.PIXELS)), rng.integers(0, 10, 3)
    other, label = X.copy(), y.copy()
    other[1], label[1] = scale * rng.standard_normal(cnn.PIXELS), rng.integers(10)
    weights = cnn.initial_weights(seed) * rng.choice([0.0, 1.0, 30.0])
    sums = [cnn.clipped_sum(weights, *tensors(*one), bound) for one in ((X, y), (other, label))]
    assert all(np.isfinite(one).all() for one in sums)
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * bound


def worst_records(n):
    """Blank images of classes 0 and 1, half and half; the first is of class 0 or of class 1."""
    X, y = np.zeros((n, cnn.PIXELS)), np.arange(n) % 2.0
    return (X, y), (X, np.concatenate([[1.0], y[1:]]))


def attacked(epsilon=12.0, bound=0.7, n=8):
    federation = federated.plan(
        "dp_fed_gd_ht_cnn", sizes=[n], d=784, **SHARED | {"grad_norm": bound, "local_steps": 1, "epsilon": epsilon}
    )
    return federation.attacked()


@pytest.mark.parametrize("n", [2, 8])
def test_the_worst_pair_moves_the_mean_by_the_whole_sensitivity(n):
    torch()
    plan, (first, second) = attacked(n=n), worst_records(n)
    weights = np.zeros(cnn.SIZE)
    places, values = plan.settings.start()
    weights[places] = values
    means = []
    for X, y in (first, second):
        run = plan.settings.bind(plan, plan.settings.validated_rows(X), plan.settings.labels(y, n))
        means.append(run.mean_gradient(weights, None))
    moved = np.linalg.norm(means[0] - means[1])
    assert 0.99 * plan.sensitivity <= moved <= plan.sensitivity


@pytest.mark.slow
def test_an_audit_of_the_message_finds_half_the_noise_and_not_the_planned_one():
    torch()
    plan, (first, second) = attacked(), worst_records(8)
    along = np.zeros(cnn.SIZE)
    along[cnn.LAST_BIASES : cnn.LAST_BIASES + 2] = [0.5**0.5, -(0.5**0.5)]
    pair = Pair(first, second, plan.adjacency, "class 0 or 1: one blank image of 8", {"final": Projection(along)})
    how = {"trials": 400, "alpha": 1e-6, "adversary": "final"}
    assert not audit.evidence(plan, pair, **how).refuted
    assert audit.evidence(plan.with_noise(factor=0.5), pair, plan.guarantee, **how).refuted


def test_noise_of_the_plan_is_on_all_weights():
    """One step without a threshold, less its gradient, at alpha 1e-6."""
    torch()
    (X, y), n = clients()[0], 12
    arguments = SHARED | {"rounds": 1, "local_steps": 1, "threshold": "server", "epsilon": 4.0, "initial_seed": 5}
    plan = federated.plan("dp_fed_gd_ht_cnn", sizes=[n], d=784, **arguments).clients[0]
    run = plan.settings.bind(plan, plan.settings.validated_rows(X), plan.settings.labels(y, n))
    start = plan.settings.start()
    support, values = run.advance(np.random.default_rng(0), start, 1)
    assert len(support) == cnn.SIZE
    noise = (cnn.initial_weights(5) - values) / 0.1 - run.mean_gradient(cnn.initial_weights(5), None)
    from scipy.stats import norm

    assert_ks(noise / plan.noise, norm.cdf)


# --- as any other model --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dp_fed_sgd_ht_cnn", "dp_fed_gd_ht_cnn"])
def test_clients_elsewhere_give_the_bits_of_one_process(name, tmp_path):
    torch()
    data = clients()
    arguments = SHARED | {"epsilon": 4.0} | ({"rate": 0.5} if "sgd" in name else {})
    terms = agree(name, sizes=[12, 9], d=784, randomness="fast", **arguments)
    own = {i: ClientFolder.create(tmp_path / str(i), terms, i, *pair, rng=2) for i, pair in enumerate(data)}
    weights = coordinator(terms, Wire(own)).fit()
    wanted = getattr(federated, name)(data, **arguments, rng=2)
    assert weights.tobytes() == wanted.coef.tobytes() and np.count_nonzero(weights) == 10_000


def test_without_noise_the_network_learns():
    torch()
    rng = np.random.default_rng(1)
    y = np.arange(40) % 2.0
    X = 0.1 * rng.standard_normal((40, cnn.PIXELS)) + np.where(y[:, None] == 0, 1.0, -1.0)
    how = {"sparsity": 10_000, "rounds": 5, "local_steps": 5, "step_size": 0.1, "rate": 0.5, "rng": 0}
    result = federated.fed_sgd_ht_cnn([(X[:20], y[:20]), (X[20:], y[20:])], **how)
    assert np.mean(np.argmax(cnn.scores(result.coef, X), axis=1) == y) == 1.0
    assert result.guarantee is None
