"""Noise joins the gradient before anything large does, and the noise of near iterates covers what rounding adds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse, stats

from dptoolkit import losses, solvers
from dptoolkit.kernels import frank_wolfe
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.solvers.engine.bounds import constant
from dptoolkit.solvers.engine.snapshots import ranked_means
from tests.statistics import assert_binomial, assert_ks, rejected

# The doubles next to this are 16 apart.
LARGE = 1e17
# Two gradients on both sides of half that gap, 1/2000 of the noise apart.
NEAR, SPREAD = (8.001, 7.999), 4.0


def records(X, y, loss=kernel.SQUARED, margin_bound=math.inf, cap=math.inf):
    M, n = sparse.csr_matrix(X), len(y)
    arrays = M.data, M.indices.view(np.uint32), M.indptr.astype(np.int64)
    return kernel.Records(loss, *arrays, np.asarray(y, float), margin_bound, np.full(n, cap), np.arange(n))


def sgd_step(gradient, seed, scale):
    """One step from LARGE that shrinks nothing and adds ``gradient``, that of one clipped record."""
    support, weights = np.zeros(1, np.int64), np.array([LARGE])
    rows = records([[-1.0]], [0.0], cap=gradient)
    rng, one = np.random.default_rng(seed), np.array([1])
    kernel.sgd_steps(rng, one, rows, 1.0, 1.0, 0.0, *constant(scale).arguments, 1, 0, 1, support, weights, 1)
    return weights[0]


def reduced_step(gradient, seed, scale):
    """The same from a snapshot at 0: a step without data leads to LARGE, the next one adds the difference."""
    support, weights = np.zeros(1, np.int64), np.zeros(1)
    rows = records([[-1.0]], [gradient / 2], cap=gradient / 2)
    means, rng = ranked_means(np.array([-LARGE / 2]), 1, 1, 0.0, None), np.random.default_rng(seed)
    arguments = rows, 1.0, 1.0, 0.0
    # At half of LARGE the residual is at its lower end, at the snapshot at its upper one.
    kernel.reduced_steps(rng, np.array([0, 1]), *arguments, scale, math.inf, 0.0, 1, 0, 1, means, support, weights, 0)
    return weights[0]


def weights_first(gradient, seed, scale):
    """The broken twin: the gradient is put on the lattice of the weights, the noise afterwards."""
    return (LARGE + gradient) + scale * np.random.default_rng(seed).standard_normal()


def apart(step):
    """How often two gradients with the same noise lead to different weights."""
    return sum(step(NEAR[0], seed, SPREAD) != step(NEAR[1], seed, SPREAD) for seed in range(400))


def hidden(step):
    assert apart(step) <= 40


@pytest.mark.parametrize("step", [sgd_step, reduced_step])
def test_noise_hides_what_lies_below_the_last_bit_of_the_weights(step):
    """Differences of 1/2000 of the noise: 0.05 % of all noise values tell them apart, 40 of 400 with probability 0."""
    hidden(step)
    rejected(hidden, weights_first)


@pytest.mark.parametrize("l2", [0.0, 1.0, 1e8, 1e17])
def test_the_noise_of_touched_and_untouched_is_one(l2):
    """A record at weights as large as an L2 term makes them: what it touches looks like what it does not."""
    d, draws, step, noise = 6, 4000, 1.0, constant(0.5).arguments
    rows, rng = records([[1.0, 0, 0, 0, 0, 0]], [0.0]), np.random.default_rng(1)
    seen = np.empty((draws, d))
    for i in range(draws):
        support, weights = np.arange(d), np.zeros(d)
        weights[5] = 1.0
        kernel.sgd_steps(rng, np.array([1]), rows, 1.0, step, l2, *noise, d, 0, d, support, weights, d)
        seen[i, support] = weights
    for j in range(5):
        assert_ks(seen[:, j] / 0.5, stats.norm.cdf, 1e-6 / 5)


def test_untouched_values_have_the_bits_of_touched_ones():
    """Both are -step_size times a double. Drawn in units of the weights, a third of them would be no such product."""
    step, d, noise = 0.3, 4, constant(1.0).arguments
    rows, rng = records(np.zeros((1, d)), [0.0]), np.random.default_rng(2)
    for i in range(300):
        support, weights = np.zeros(d, np.int64), np.zeros(d)
        kernel.sgd_steps(rng, np.array([1]), rows, 1.0, step, 0.0, *noise, d, 0, d, support, weights, 0)
        assert all(products(step, value) for value in weights), i
    plain = np.random.default_rng(3).standard_normal(300)
    assert sum(not products(step, value) for value in plain) > 30


def products(step, value):
    """Whether some double times ``step`` is ``value``."""
    near = value / step
    return any(step * x == value for x in (np.nextafter(near, -np.inf), near, np.nextafter(near, np.inf)))


# --- near the snapshot ----------------------------------------------------------------------------------


def moved(rows, w, s):
    """The change of gradient(w) - gradient(s) that one of the rows makes against nothing at all."""
    values = np.zeros(len(w))
    t = kernel.make_entries(64)
    kept = np.arange(len(w))
    count, apart, _ = kernel.touch_weights(t, kept, w, len(w), kept, s, len(w), 0)
    count = kernel.add_gradient(t, count, rows, None, 1, True)
    values[t.keys[:count]] = t.values[:count]
    return values, apart, count


MODES = {
    "logistic": {"loss": "logistic", "row_norm": 1.0},
    "logistic, small gradients": {"loss": "logistic", "row_norm": 1.0, "grad_norm": 1e-12},
    "squared": {"loss": "squared", "row_norm": 1.0, "label_bound": 1e10, "margin_bound": 1e-3},
    "squared, wide": {"loss": "squared", "row_norm": 1.0, "label_bound": 1.0, "margin_bound": 1e3},
    "huber": {"loss": "huber", "row_norm": 1.0},
    "hinge": {"loss": "hinge", "row_norm": 1.0},
    "hinge, small gradients": {"loss": "hinge", "row_norm": 1.0, "grad_norm": 1e-12},
}


# The hash of a coordinate runs as plain Python here, and is meant to overflow.
@pytest.mark.filterwarnings("ignore:overflow encountered in scalar multiply:RuntimeWarning")
@pytest.mark.parametrize("distance", [1e-3, 1e-8, 1e-12, 1e-15, 1e-17, 1e-100, 1e-170])
@pytest.mark.parametrize("mode", MODES)
def test_the_noise_near_a_snapshot_covers_rounding(mode, distance):
    """|gradient(w) - gradient(s)| as the kernel computes it, against what its noise is for, from 1e-3 to 1e-170."""
    plan = solvers.plan(
        "dp_scsg_ht", n=100, d=3, sparsity=3, epochs=1, snapshot_size=50, batch_size=10, epsilon=math.inf, **MODES[mode]
    )
    slope, grain, bound = plan.settings.slope, plan.settings.grain, plan.sensitivity * 10 / 2
    rng, loss = np.random.default_rng(4), losses.get(MODES[mode]["loss"])
    worst = 0.0
    for _ in range(300):
        x = rng.standard_normal(3)
        x /= np.linalg.norm(x) * (1 + 1e-13)
        s = rng.standard_normal(3) * 10.0 ** rng.integers(-20, 2)
        w = s + distance * rng.standard_normal(3)
        y = float(rng.integers(0, 2)) if loss.task == losses.BINARY else float(rng.choice([0.0, 1e10, 1.0]))
        y = min(y, MODES[mode].get("label_bound", math.inf))
        cap = MODES[mode].get("grad_norm", math.inf)
        margin_bound = MODES[mode].get("margin_bound", math.inf)
        found, apart, count = moved(records([x], [y], loss.id, margin_bound, cap), w, s)
        size = float(np.linalg.norm(w) + np.linalg.norm(s))
        share = kernel.reduced_share(slope, grain, apart, size, count)
        assert (apart == 0) == np.array_equal(w, s)
        # Two records may move it by this much each, in opposite directions: the shares are over twice the bound.
        allowed = share * bound * (2 if plan.settings.sampling == "without-replacement" else 1)
        assert np.linalg.norm(found) <= allowed * (1 + 1e-12)
        if apart > 0:
            worst = max(worst, float(np.linalg.norm(found)) / allowed)
    assert worst <= 1 + 1e-12


def test_a_small_distance_is_not_none():
    """Squares of 1e-170 underflow; the noise must not."""
    w = np.array([3e-170, 4e-170, math.nan])
    assert kernel.distance(w, np.zeros(3), 2, False) == pytest.approx(5e-170)
    assert kernel.distance(w, w, 2, True) == pytest.approx(5e-170)
    assert kernel.distance(np.array([5e-324]), np.zeros(1), 1, False) == 5e-324
    assert math.isnan(kernel.distance(w, np.zeros(3), 3, False)) and kernel.distance(w, w, 2, False) == 0.0
    assert kernel.reduced_share(0.5, 0.0, math.nan, 1.0, 3) == 1.0
    assert kernel.reduced_share(math.inf, 0.0, 0.0, 1.0, 3) == 1.0
    assert kernel.reduced_share(0.5, 0.0, 0.0, 1.0, 3) == 0.0


# --- tails ----------------------------------------------------------------------------------------------


class Script:
    """A generator whose uniform numbers are given."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


def test_small_uniforms_get_more_bits():
    short = kernel._SHORT
    assert kernel.lengthened(Script(), 0.5) == 0.5
    assert kernel.lengthened(Script(0.25), short / 2) == 0.25 * short
    assert kernel.lengthened(Script(0.0, 0.75), 0.0) == 0.75 * short**2
    assert 0 < kernel.lengthened(Script(*[0.0] * 999), 0.0) <= 1e-290


@pytest.mark.parametrize("kernels", [kernel, frank_wolfe], ids=["stochastic", "frank_wolfe"])
def test_coins_of_any_probability(kernels):
    """A small chance is as many zero bits, some at a time; the 53 bits of one number alone would never show it."""
    tell, short = kernels.coin, kernels._SHORT
    tiny = short / 2
    assert tell(Script(*[tiny] * 5, 0.0), short**5 * 0.5) and not tell(Script(*[tiny] * 4, 0.5), short**5)
    assert not tell(Script(*[tiny] * 4, 0.5, 0.7), short**4 * 0.5)
    assert not tell(Script(), 0.0) and tell(Script(0.999), 1.0)


def test_law_of_coins():
    rng = np.random.default_rng(5)
    assert_binomial(sum(kernel.coin(rng, 2.0**-12) for _ in range(400_000)), 400_000, 2.0**-12)
    rejected(assert_binomial, sum(kernel.coin(rng, 2.0**-11) for _ in range(400_000)), 400_000, 2.0**-12)


@pytest.mark.parametrize(("level", "mean"), [(1.0, 0.0), (50.0, 0.3), (1.0, 6.0), (2.0, -1.9), (0.2, 0.1)])
def test_noise_within_a_level(level, mean):
    rng, law = np.random.default_rng(6), stats.truncnorm(-level - mean, level - mean)
    draws = [kernel.noise_within(rng, level, mean, 1.0) for _ in range(20_000)]
    assert_ks(draws, law.cdf)
    assert np.abs(np.array(draws) + mean).max() <= level * (1 + 1e-12)


@pytest.mark.parametrize("mean", [0.0, 1.5, -0.5])
def test_noise_above_a_level(mean):
    rng, level = np.random.default_rng(7), 2.0
    draws = np.array([kernel.noise_above(rng, level, mean, 1.0) for _ in range(20_000)]) + mean
    up, down = stats.norm.sf(level - mean), stats.norm.sf(level + mean)
    assert_binomial(int((draws > 0).sum()), len(draws), up / (up + down))
    assert np.abs(draws).min() >= level * (1 - 1e-12)
    assert_ks(stats.norm.sf(draws[draws > 0] - mean) / up, stats.uniform.cdf)
