"""Probes: each sees its fault and passes the same thing done right. Only the size of noise is random: error 1e-9."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from dptoolkit import solvers
from dptoolkit.audit import probes
from dptoolkit.audit.claims import GaussianClaim, PureClaim
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms import GeometricNoise

ZEROS = (np.zeros((6, 4)), np.zeros(6))


def plan(name="dp_ight", **arguments):
    settings = {"n": 6, "d": 4, "loss": "squared", "sparsity": 2, "steps": 20, "step_size": 1.0, "epsilon": 1.0}
    return solvers.plan(name, delta=1e-6, grad_norm=1.0, **{**settings, **arguments})


def noisy(data, rng):
    return data + rng.standard_normal(3)


def test_given_generator_passes_solvers_and_callables():
    assert probes.given_generator(plan(), ZEROS).passed
    assert probes.given_generator(noisy, np.zeros(3)).passed


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        (lambda data, rng: data + np.random.default_rng(0).standard_normal(3), "never draws"),
        (lambda data, rng: data, "never draws"),
        (lambda data, rng: data + 0 * rng.standard_normal(3), "does not reach"),
        (lambda data, rng: data + np.random.standard_normal(3), "different outputs"),  # noqa: NPY002
        (lambda data, rng: noisy(data, rng) + np.random.default_rng().random(), "different outputs"),
    ],
    ids=["own-seed", "no-noise", "lost-noise", "global-state", "fresh-entropy"],
)
def test_given_generator_sees(mechanism, words):
    seen = probes.given_generator(mechanism, np.zeros(3))
    assert not seen.passed and words in seen.finding and "FAILED" in str(seen)


def test_fresh_fits():
    rng = np.random.default_rng(1)
    assert probes.fresh_fits(lambda: noisy(np.zeros(3), rng)).passed
    assert not probes.fresh_fits(lambda: noisy(np.zeros(3), np.random.default_rng(1))).passed


def test_fresh_steps_of_a_solver_have_the_planned_scale():
    p = plan(steps=80)
    assert probes.fresh_steps(p, ZEROS, p.noise).passed
    off = probes.fresh_steps(p, ZEROS, 2 * p.noise)
    assert not off.passed and "times as large" in off.finding


def test_fresh_steps_sees_one_repeated_draw():
    def released(data, rng):
        steps = rng.standard_normal((6, 3))
        steps[4] = steps[3]
        return steps

    seen = probes.fresh_steps(released, None)
    assert not seen.passed and "Steps 4 and 5" in seen.finding


def test_fresh_steps_sees_correlated_noise():
    # Noise that is mostly one draw: differences are too small by a factor 10, none is zero.
    def released(data, rng):
        return rng.standard_normal() * np.ones((40, 3)) + 0.1 * rng.standard_normal((40, 3))

    assert not probes.fresh_steps(released, None, scale=1.0).passed
    assert probes.fresh_steps(lambda data, rng: rng.standard_normal((40, 3)), None, scale=1.0).passed
    with pytest.raises(InvalidValue, match="several steps"):
        probes.fresh_steps(lambda data, rng: rng.standard_normal((1, 3)), None)


def test_noise_everywhere():
    def kept(data, rng, blind):
        noise = rng.standard_normal(4)
        j = 0 if blind else int(np.argmax(np.abs(noise)))
        return np.where(np.arange(4) == j, noise, 0.0)

    assert probes.noise_everywhere(plan(), ZEROS).passed
    assert probes.noise_everywhere(partial(kept, blind=False), None).passed
    seen = probes.noise_everywhere(partial(kept, blind=True), None)
    assert not seen.passed and "1, 2, 3 of 4" in seen.finding


def test_output_grid_sees_fractions_under_integer_noise():
    p = 0.3
    count = lambda value, rng: value + rng.geometric(p) - rng.geometric(p)  # noqa: E731
    assert not probes.output_grid(count, (3.3, 4.0)).passed
    assert probes.output_grid(count, (3, 4)).passed
    assert probes.output_grid(lambda c, rng: GeometricNoise(1.0, 1).release(c, rng), (3, 4)).passed


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4, -1e9])
def test_output_grid_passes_continuous_noise(offset):
    mechanism = lambda value, rng: offset + value + rng.standard_normal()  # noqa: E731
    assert probes.output_grid(mechanism, (0.0, 1.0)).passed


@pytest.mark.parametrize(("offset", "passes"), [(0.0, True), (2.0**26, False), (2.0**24, False), (2.0**12, True)])
def test_output_grid_sees_noise_rounded_to_float32(offset, passes):
    def mechanism(value, rng):
        return np.float32(np.float32(offset + value) + np.float32(rng.standard_normal()))

    assert probes.output_grid(mechanism, (4.0, 5.0)).passed == passes


def test_coins_epsilon_against_the_definition():
    p, q, count, delta = 0.6, 0.35, 30, 1e-4
    found = probes.coins_epsilon(p, q, count, delta)
    heads = np.arange(count + 1)
    a, b = stats.binom.pmf(heads, count, p), stats.binom.pmf(heads, count, q)
    divergence = max(np.maximum(a - math.exp(found) * b, 0).sum(), np.maximum(b - math.exp(found) * a, 0).sum())
    assert divergence == pytest.approx(delta, rel=1e-5)
    assert probes.coins_epsilon(0.5, 0.5, 10, 0.0) == 0
    assert probes.coins_epsilon(0.75, 0.25, 1, 0.0) == pytest.approx(math.log(3))
    assert probes.coins_epsilon(1.0, 0.0, 1, 0.1) == math.inf


def test_exact_composition_decides_at_the_claim():
    p = 1 / (1 + math.exp(-0.5))
    assert probes.exact_composition(p, 1 - p, 1, PureClaim(0.5001)).passed
    assert not probes.exact_composition(p, 1 - p, 1, PureClaim(0.4999)).passed
    assert not probes.exact_composition(p, 1 - p, 20, GaussianClaim(1.0)).passed


def test_a_plan_without_noise_is_seen():
    p = plan()
    silent = replace(p, releases=(replace(p.releases[0], scale=0.0),))
    assert not probes.given_generator(silent, ZEROS).passed
    assert not probes.noise_everywhere(silent, ZEROS).passed
