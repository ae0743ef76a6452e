"""Audits of Frank-Wolfe on CSR rows, whose residuals are dithered; every audit has a twin that it must catch.

The worst pair for dithering is not that of the exact scores. A residual that is rounded to the limit has all of it from
the first step on, so a record against its mirror image, with the same label, moves the scores by the whole range at
every step. That holds for theta on one side; the guarantee is for every theta, so theta is given to the adversary.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import log_expit

from dptoolkit import audit, solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import pairs
from dptoolkit.audit.pair import Pair
from dptoolkit.errors import PrivacyViolation
from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.solvers.engine import vertex_paths
from dptoolkit.solvers.engine.vertices import VertexNoise

ALPHA = 1e-7
RELATIONS = list(Adjacency)
LAWS = {"gumbel": "dithered_block", "laplace": "dithered_laplace_block"}
LOSSES = {"logistic": {}, "huber": {}, "hinge": {}, "squared": {"label_bound": 1.0}}


def plan_of(**more):
    arguments = {
        "n": 40, "d": 3, "loss": "logistic", "l1_radius": 1.0, "steps": 8, "feature_bound": 1.0, "epsilon": 3.0,
        "delta": 1e-5,
    }  # fmt: skip
    return solvers.plan("dp_frank_wolfe", **arguments | more)


@pytest.fixture
def calls(monkeypatch):
    """How often the dithered kernels are called; the squared loss is dithered with few features too."""
    seen = []

    def watch(name):
        real = getattr(kernel, name)
        monkeypatch.setattr(kernel, name, lambda *arguments: (seen.append(name), real(*arguments))[1])

    for name in LAWS.values():
        watch(name)
    monkeypatch.setattr(vertex_paths, "LARGEST_GRAM", 0)
    return seen


# --- the usual pair as CSR rows, theta drawn ----------------------------------------------------------


def as_csr(pair):
    (X, y), (X2, y2) = (data.expand() for data in (pair.first, pair.second))
    return replace(pair, first=(sparse.csr_matrix(X), y), second=(sparse.csr_matrix(X2), y2))


@pytest.mark.every(3)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_rows_stay_within_the_guarantee(loss, adjacency, law, calls):
    plan = plan_of(loss=loss, adjacency=adjacency, law=law, l1_radius=0.1, **LOSSES[loss])
    report = examined(plan, as_csr(pairs.dp_frank_wolfe(plan)), plan, adversary="releases")
    assert report.epsilon_lower <= report.epsilon_claimed
    assert len(calls) >= 1000 and set(calls) == {LAWS[law]}


@pytest.mark.every(3)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_third_of_the_noise_is_found_on_sparse_rows(loss, law, calls):
    plan = plan_of(loss=loss, law=law, l1_radius=0.1, **LOSSES[loss])
    with pytest.raises(PrivacyViolation):
        examined(plan.with_noise(factor=1 / 3), as_csr(pairs.dp_frank_wolfe(plan)), plan, adversary="releases")
    assert set(calls) == {LAWS[law]}


def examined(mechanism, pair, plan, trials=1500, **more):
    return audit.assert_private(
        mechanism, pair, plan.guarantee, trials=trials, power=None, alpha=ALPHA, confidence=1 - ALPHA, **more
    )


# --- the mirrored pair, theta given -------------------------------------------------------------------


class Given(np.random.Generator):
    """A Generator whose single-precision numbers, which only theta is made of, are all the same."""

    def __init__(self, generator, theta):
        super().__init__(generator.bit_generator)
        self.theta = theta

    def random(self, size=None, dtype=np.float64, out=None):
        if dtype != np.float32:
            return super().random(size, dtype, out)
        return np.full(size, self.theta, np.float32)


class Fit:
    """The vertices of a fit of ``plan`` at a given theta; each of the two data sets is prepared once."""

    def __init__(self, plan, theta, pair):
        self.theta, self.runs = theta, {id(data): solvers.bind(plan, *data) for data in (pair.first, pair.second)}

    def __call__(self, data, rng):
        return self.runs[id(data)](Given(rng, self.theta)).history["vertices"]


def mirrored(plan):
    """One record of ones, whose label is 0, against minus that record or a zero row; all others are zero rows.

    The pair's score is the exact log likelihood ratio if the residual is at its limit in all steps.
    """
    n, d = plan.n, plan.d
    # By how many noise scales a record at the limit moves the scores of s and -s apart.
    odds = plan.releases[0].sensitivity / plan.noise / plan.adjacency.contributions
    X, y = np.zeros((n, d)), np.zeros(n)
    X[0] = plan.settings.feature_bound
    other = X * (-1.0 if plan.adjacency is Adjacency.REPLACE_ONE else 0.0)

    def score(vertices):
        # Positive residual at positive features: negative vertices are favoured by the first data set.
        against = np.count_nonzero(np.asarray(vertices) >= d, axis=1)
        with_it = plan.settings.steps - against
        away = -odds if plan.adjacency is Adjacency.REPLACE_ONE else 0.0
        return sum(k * (log_expit(s * odds) - log_expit(s * away)) for k, s in ((against, 1), (with_it, -1)))

    return Pair(
        (sparse.csr_matrix(X), y), (sparse.csr_matrix(other), y), plan.adjacency, "a record against its mirror image",
        {"final": score},
    )  # fmt: skip


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_the_guarantee_holds_for_a_given_theta_and_is_attained(adjacency, calls):
    """At radius 1 the residual is 1/2 at zero weights, 68 % of the limit; rounded up it is all of it, at every step."""
    plan = plan_of(adjacency=adjacency)
    assert vertex_paths.level_count(plan) >= 2
    pair = mirrored(plan)
    report = examined(Fit(plan, 0.999, pair), pair, plan, trials=12_000)
    assert 0.6 * report.epsilon_claimed <= report.epsilon_lower <= report.epsilon_claimed
    assert len(calls) >= 12_000


def half_the_noise(plan, monkeypatch):
    return plan.with_noise(factor=0.5)


def beyond_the_limit(plan, monkeypatch):
    real = VertexNoise.residual_limit
    monkeypatch.setattr(VertexNoise, "residual_limit", lambda law, norm: 2 * real(law, norm))
    monkeypatch.setattr(vertex_paths, "level_count", lambda plan: 2)
    return plan


@pytest.mark.parametrize("fault", [half_the_noise, beyond_the_limit])
@pytest.mark.parametrize("adjacency", RELATIONS)
def test_faults_are_found_at_a_given_theta(adjacency, fault, calls, monkeypatch):
    plan = plan_of(adjacency=adjacency)
    broken, pair = fault(plan, monkeypatch), mirrored(plan)
    with pytest.raises(PrivacyViolation):
        examined(Fit(broken, 0.999, pair), pair, plan, trials=12_000)
    assert calls
