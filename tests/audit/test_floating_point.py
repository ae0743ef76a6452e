"""The floating-point attack tells neighbours apart with certainty where noise is computed in doubles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.audit import floating_point
from dptoolkit.audit.floating_point import _on_grid, reachable
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import GaussianNoise, LaplaceNoise

D = 40


def neighbours(n=200, d=D, seed=0):
    """Two data sets that differ in their first row."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1)[:, None]
    other, y = X.copy(), (rng.random(n) < 0.5).astype(float)
    other[0] = -X[0]
    return (X, y), (other, y)


def one_step(epsilon, n=200, d=D, **settings):
    settings = {"loss": "logistic", "sparsity": d, "steps": 1, "row_norm": 1.0, "delta": 1e-6} | settings
    return solvers.plan("dp_ight", n=n, d=d, epsilon=epsilon, **settings)


@pytest.mark.filterwarnings("ignore:.*noise is too large")
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("settings", [{}, {"adversary": "final"}, {"adversary": "final", "step_size": 0.7}])
def test_noise_in_doubles_is_broken_at_any_epsilon(epsilon, settings):
    """The failing twin of all secure noise: at least 90 % of fits give their data set away, and no claim is wrong."""
    settings = dict(settings)
    adversary = settings.pop("adversary", "step")
    report = audit.floating_point_attack(
        one_step(epsilon, **settings), neighbours(), trials=200, adversary=adversary, rng=1
    )
    assert report.certain >= 0.9 and report.wrong == 0 and report.neither == 0, str(report)


@pytest.mark.filterwarnings("ignore:.*noise is too large")
def test_sparse_large_data_and_dropped_weights_are_broken_too():
    first, second = neighbours(600, 120)
    pair = tuple((sparse.csr_matrix(X), y) for X, y in (first, second))
    for adversary, settings in (("step", {"steps": 5}), ("final", {"sparsity": 60})):
        plan = one_step(0.5, 600, 120, **settings)
        report = audit.floating_point_attack(plan, pair, trials=60, adversary=adversary, rng=2)
        assert report.certain >= 0.9 and report.wrong == 0, str(report)


@pytest.mark.parametrize("mechanism", [GaussianNoise(3.7, 1.0), LaplaceNoise(2.3, 1.0)])
def test_any_function_that_releases_doubles_can_be_attacked(mechanism):
    def release(value, rng):
        return mechanism.release(value, rng)

    value = np.linspace(0.0, 1.0, D)
    report = audit.attacks.floating_point_attack(
        release, (value, value + 0.01), exact=lambda v: v, scale=mechanism.scale, rng=3
    )
    assert report.certain >= 0.9 and report.wrong == 0
    assert "certain in" in str(report) and "release" in str(report)


def test_numbers_that_were_never_noisy_integers_are_caught_by_the_grid():
    """The positive control: noise on a grid that is coarser than the data leaves the data's low bits in the clear."""
    value = np.arange(5) / 64

    def release(fine):
        return lambda v, rng: v + rng.integers(-1000, 1000, len(v)) * fine

    known = {"exact": lambda v: v, "scale": 1.0, "rng": 4, "trials": 50}
    leaking = audit.floating_point_attack(release(1 / 8), (value, value + 1 / 64), grid=1 / 8, **known)
    assert leaking.certain == 1.0 and leaking.wrong == 0
    safe = audit.floating_point_attack(release(1 / 64), (value, value + 1 / 64), grid=1 / 64, **known)
    assert safe.certain == 0.0 and safe.both == 50


def test_what_the_program_made_is_alwaysreachable():
    """Never wrong means: values, noises and sums of all sizes, cancelling or not, are recognised."""
    rng = np.random.default_rng(5)
    value = rng.standard_normal(4000) * 10.0 ** rng.integers(-12, 12, 4000)
    for scale in (1.0, 0.3, 1e-9, 7e8, 5e-300):
        x = rng.standard_normal(4000) * 10.0 ** rng.integers(-3, 3, 4000)
        assert reachable(value + scale * x, value, np.asarray(scale), None).all()
    # And most of what it did not make is not, where the noise is larger than the value.
    other = rng.standard_normal(4000)
    assert reachable(other, np.full(4000, 0.1), np.asarray(1.3), None).mean() < 0.95


def test_an_attacker_who_tries_one_noise_alone_excludes_too_much(monkeypatch):
    """The broken twin: where many noises lead to a sum, the nearest one often is no product of scale and a double."""
    # The last bit of the sum is 256 times that of the noise.
    value, scale = np.full(2000, 1.0), np.asarray(2.0**-7 * 1.99)
    sums = value + scale * (1 + np.random.default_rng(6).random(2000)) / 2
    assert reachable(sums, value, scale, None).all()
    monkeypatch.setattr(floating_point, "_neighbours", lambda centre, each_side=4: [(centre, False)])
    assert not reachable(sums, value, scale, None).all()


def test_the_grid_is_checked_without_rounding():
    one = np.array([1.0])
    assert _on_grid(np.array([1.0 + 2.0**-40]), one, 2.0**-40).all()
    assert not _on_grid(np.array([1.0 + 2.0**-41]), one, 2.0**-40).any()
    # The difference of these two rounds to 2^60, which is on the grid; exactly it is 2^60 - 1/4, which is not.
    assert not _on_grid(np.array([2.0**60]), np.array([0.25]), 1.0).any()


@pytest.mark.filterwarnings("ignore:.*noise is too large")
def test_bad_input():
    pair, known = neighbours(), {"exact": lambda v: v, "scale": 1.0}
    with pytest.raises(InvalidValue, match="adversary"):
        audit.floating_point_attack(one_step(1.0, steps=2), pair, adversary="final")
    with pytest.raises(InvalidValue, match="exact and scale"):
        audit.floating_point_attack(lambda v, rng: v, (1.0, 2.0))
    point = solvers.plan(
        "objective_perturbation", n=200, d=D, loss="logistic", l2=0.1, epsilon=1.0, delta=1e-6, row_norm=1.0
    )
    with pytest.raises(InvalidValue, match="that fixes the other noise"):
        audit.floating_point_attack(point, pair, trials=1)
    taught = solvers.plan(
        "knowledge_transfer", n=200, d=D, loss="logistic", sparsity=3, epsilon=1.0, delta=1e-6, row_norm=1.0
    )
    with pytest.raises(InvalidValue, match="a fixed query plus noise"):
        audit.floating_point_attack(taught, pair, trials=1)
    with pytest.raises(InvalidValue, match="power of two"):
        audit.floating_point_attack(lambda v, rng: v, (1.0, 2.0), grid=0.3, **known)
    with pytest.raises(InvalidValue, match="mechanism"):
        audit.floating_point_attack("dp_ight", (1.0, 2.0), **known)
    with pytest.raises(InvalidValue, match="trials"):
        audit.floating_point_attack(lambda v, rng: v, (1.0, 2.0), trials=0, **known)
