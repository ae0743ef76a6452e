"""Gaussian steps on batches without replacement: triangles, the game, blocks and the adversary.

The references here share no code with what they test: densities on a grid of the plane, sums in 40 digits, and a
recursion by direct sums in extended precision.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest

from dptoolkit.accounting import (
    Composed,
    Gaussian,
    Geometric,
    Laplace,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedGeometric,
    TruncatedNegativeBinomial,
    account,
    calibrate,
    methods,
    pld,
    triangles,
)
from dptoolkit.accounting.pld import adversary, blocks, game, trees
from dptoolkit.accounting.pld.curve import Composition
from dptoolkit.accounting.pld.trees import Batch, Node

WOR = "without-replacement"


def steps(z: float, rate: float, count: int):
    return Repeated(Subsampled(Gaussian(z), WOR, rate), count)


def joined_epsilon(event, delta: float) -> float:
    """What one joined pair per step gives: the answer without blocks."""
    return Composition(pld.answers.directions(event, pld.dominating)[0], delta).epsilon(delta).value


def forget() -> None:
    """Clear all answers and blocks that are kept."""
    kept = (methods.best_epsilon, methods.best_delta, methods._epsilons, blocks._fixed_blocks, blocks._random_blocks)
    for answers in kept:
        if hasattr(answers, "cache_clear"):
            answers.cache_clear()
    pld.answers._RECENT.event = pld.answers._RECENT.answered = None


@pytest.fixture(autouse=True)
def _fresh():
    """No test sees blocks that another one built with a fault planted."""
    forget()
    yield
    forget()


# --- triangles, against densities on a grid of the plane ----------------------------------------------


class Plane:
    """Mixtures of unit normal laws in the plane, as masses of small squares: divergences from sums, to about 1e-7."""

    def __init__(self, reach: float = 8.0, width: float = 0.05) -> None:
        axis = np.arange(-reach, reach + width, width)
        self.x, self.y, self.square = *np.meshgrid(axis, axis), width * width

    def law(self, weights, centres):
        parts = zip(weights, centres, strict=True)
        total = sum(w * np.exp(-0.5 * ((self.x - a) ** 2 + (self.y - b) ** 2)) for w, (a, b) in parts)
        return (total * self.square / (2 * math.pi)).ravel()

    def pair(self, rate: float, x, other, z):
        return tuple(self.law((1 - rate, rate), (z, centre)) for centre in (x, other))


def hockey_stick(p, q, alphas):
    return np.array([np.maximum(p - a * q, 0.0).sum() for a in alphas])


def corners(a: float, b: float, c: float):
    """x, x' and z with |x-x'| = a, |x-z| = b, |x'-z| = c, around 0."""
    height = (a * a + b * b - c * c) / (2 * a)
    points = np.array([[0.0, 0.0], [a, 0.0], [height, math.sqrt(max(b * b - height * height, 0.0))]])
    return points - points.mean(axis=0)


def upper_curve(mu: float, rate: float, alphas, cells: int = 12):
    """The largest divergence that the cells and their mirror images allow."""
    alphas = np.asarray(alphas)
    x = np.concatenate([[0.0], np.abs(np.log(alphas))])
    order = np.argsort(x)
    place = np.argsort(order)
    both = [[curve[place][1:] for curve in cell] for cell in triangles.cell_curves(mu, rate, cells, x[order])]
    above = [up if forward else down for forward in (True, False) for up, down in both]
    below = [down if forward else up for forward in (True, False) for up, down in both]
    return np.max(
        [np.where(alphas >= 1, u, 1 - alphas + alphas * v) for u, v in zip(above, below, strict=True)], axis=0
    )


ALPHAS = np.exp(np.linspace(-1.2, 1.2, 25))


def random_triangle(rng, mu: float):
    while True:
        a, b, c = mu * rng.uniform(0.02, 1.0, 3)
        if a < b + c and b < a + c and c < a + b:
            return corners(a, b, c)


def dominated(mu: float, rate: float, trials: int = 12) -> float:
    """The largest excess of a random triangle's divergence over the cells'."""
    rng, plane, bound = np.random.default_rng(3), Plane(), upper_curve(mu, rate, ALPHAS)
    return max(
        float(np.max(hockey_stick(*plane.pair(rate, *random_triangle(rng, mu)), ALPHAS) - bound)) for _ in range(trials)
    )


@pytest.mark.parametrize(("mu", "rate"), [(0.6, 0.3), (2.0, 0.1)])
def test_cells_dominate_every_triangle(mu, rate):
    assert dominated(mu, rate) <= 1e-7


def test_cells_with_their_curves_exchanged_do_not(monkeypatch):
    """A reflected profile: V from the near end and U from the far end of a cell."""
    honest = triangles.cell_curves

    def reflected(mu, rate, cells, x):
        pairs = honest(mu, rate, cells, x)
        ups, downs = zip(*pairs, strict=True)
        return list(zip((*ups[1:], downs[-1]), (downs[0], *downs[:-1]), strict=True))

    monkeypatch.setattr(triangles, "cell_curves", reflected)
    bound = upper_curve(2.0, 0.1, ALPHAS, cells=2)
    shown = [hockey_stick(*Plane().pair(0.1, *corners(2.0, 2.0, c)), ALPHAS) for c in (1e-3, 1.999)]
    assert np.max(np.max(shown, axis=0) - bound) > 1e-4


def test_a_batch_of_two_out_of_four_records_is_dominated():
    """Real batches: all six of them, any symmetric query with values in a disc, one record replaced."""
    mu, plane, rng = 1.5, Plane(), np.random.default_rng(5)
    bound = upper_curve(mu, 0.5, ALPHAS)
    for _ in range(8):
        angle, radius = rng.uniform(0, 2 * math.pi, 10), mu / 2 * np.sqrt(rng.uniform(0, 1, 10))
        points = list(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))
        common = {batch: points.pop() for batch in itertools.combinations((1, 2, 3), 2)}
        with_old, with_new = ([*common.values(), *(points.pop() for _ in range(3))] for _ in range(2))
        p, q = (plane.law([1 / 6] * 6, centres) for centres in (with_old, with_new))
        assert np.max(hockey_stick(p, q, ALPHAS) - bound) <= 1e-7


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_order_within_the_family(mu):
    x = np.linspace(0.0, 1.0, 9)
    bases = mu * np.linspace(0.1, 1.0, 7)
    forward, backward = (
        np.array([getattr(triangles.Triangle(mu, base, 0.05), way)(x).divergence for base in bases])
        for way in ("forward", "backward")
    )
    assert np.all(np.diff(forward, axis=0) <= 1e-15) and np.all(np.diff(backward, axis=0) >= -1e-15)
    assert forward[-1] == pytest.approx(backward[-1], rel=1e-9)


def exact_divergence(mu: float, base: float, rate: float, x: float, backward: bool):
    """H_{exp(x)} in 30 digits: the same integral with a third of the step, its inner end by bisection."""
    with mp.workdps(30):
        mu, base, rate, x = map(mp.mpf, (mu, base, rate, x))
        to_z, cosine = (base, base / (2 * mu)) if backward else (mu, 1 - (base / mu) ** 2 / 2)
        half = mp.acos(cosine) / 2
        (s_z, b_z), (s_o, b_o) = ((d * mp.cos(half), d * mp.sin(half)) for d in (to_z, mu))
        k_z, k_o = mp.expm1(x) * (1 - rate) / rate, mp.exp(x)
        step = min(mp.mpf("0.25"), mp.mpf("0.4") / mu) / 2
        total = mp.mpf(0)
        for i in range(int(mp.floor((-11 - b_o) / step)), int(mp.ceil((11 + b_z) / step)) + 1):
            y = i * step
            at_z, at_o = k_z * mp.exp(b_z * y - to_z**2 / 2), k_o * mp.exp(-b_o * y - mu**2 / 2)
            t = max(mp.log(at_z) / s_z if at_z > 0 else -mp.inf, mp.log(at_o) / s_o)
            for _ in range(9):
                one, two = at_z * mp.exp(-s_z * t), at_o * mp.exp(-s_o * t)
                t += mp.log(one + two) * (one + two) / (s_z * one + s_o * two)
            total += mp.npdf(y) * mp.ncdf(-t) - k_z * mp.npdf(y - b_z) * mp.ncdf(-t - s_z)
            total -= k_o * mp.npdf(y + b_o) * mp.ncdf(-t - s_o)
        return rate * total * step


@pytest.mark.parametrize(
    ("mu", "share", "rate", "x"),
    [
        (0.02, 0.3, 0.2, 0.0),
        (0.5, 0.1, 0.01, 0.02),
        (1.0, 0.5, 0.001, 0.1),
        (2.0, 0.9, 0.3, 1.5),
        (3.0, 0.4, 0.01, 2.0),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_computed_divergences_are_upper_bounds_and_close(mu, share, rate, x, backward):
    triangle = triangles.Triangle(mu, share * mu, rate)
    event = (triangle.backward if backward else triangle.forward)(np.array([x]))
    exact = float(exact_divergence(mu, share * mu, rate, x, backward))
    padded = float(triangles._padded(event, rate)[0])
    assert abs(float(event.divergence[0]) - exact) <= 0.2 * (padded - float(event.divergence[0]))
    assert exact <= padded <= exact * (1 + 1e-8) + 2e-13 * rate * float(event.own[0]) + 2e-20 * rate


# --- the game: direct sums in extended precision, and two steps in the plane ----------------------------


def direct(laws: game.Laws, window: game.Window, count: int):
    """The recursion by direct sums of extended numbers, without tilt."""
    h, reach, end, _ = window
    masses, curves = laws.masses.astype(np.longdouble), laws.curves.astype(np.longdouble)
    value = curves.max(axis=0)
    places = np.minimum(np.arange(reach, 0, -1), end)
    for _ in range(count - 1):
        left = np.exp(-np.longdouble(h) * np.arange(reach, 0, -1)) * value[places]
        around = np.concatenate([left, value, np.full(reach, value[-1])])
        value = np.max([curves[i] + np.convolve(around, p, "valid")[: end + 1] for i, p in enumerate(masses)], axis=0)
    return value


def small_game(tilt: float = 0.0):
    """Three cells, six steps, and an array that ends where the divergence is below the round-off."""
    s = game.Steps(Batch(0.8, 0.2), 6)
    window = game.Window(s.h, s.reach(1e-18), 420, tilt)
    return blocks._cells(s, window, 3), window


@pytest.mark.parametrize("tilt", [0.0, 3.0])
def test_the_array_is_never_below_the_recursion_and_close(tilt):
    laws, window = small_game(tilt)
    exact = direct(laws, window, 6)
    found = list(game.values(laws, window, 6, lower=False))[-1][1]
    assert np.all(found >= exact)
    assert np.all(found[exact > 1e-9] <= exact[exact > 1e-9] * (1 + 1e-3))


def test_without_the_floor_the_array_is_below_it_somewhere(monkeypatch):
    laws, window = small_game()
    exact = direct(laws, window, 6)
    monkeypatch.setattr(game, "_round_off", lambda *_: 0.0)
    found = list(game.values(laws, window, 6, lower=False))[-1][1]
    assert np.any(found < exact)


def two_steps(mu: float, rate: float) -> float:
    """The largest excess over W_2 of an adversary in the plane: any triangle first, then A, its mirror image or E."""
    plane, rng = Plane(width=0.08), np.random.default_rng(7)
    fine = np.exp(np.linspace(-7, 7, 1401))
    fixed = [corners(mu, mu, 1e-9), corners(mu, mu, mu)]
    pairs = [plane.pair(rate, *fixed[0]), plane.pair(rate, *fixed[0])[::-1], plane.pair(rate, *fixed[1])]
    second = np.max([hockey_stick(p, q, fine) for p, q in pairs], axis=0)
    s = game.Steps(Batch(mu, rate), 6)
    window = game.Window(s.h, s.reach(1e-10), math.ceil(1.5 / s.h), 0.0)
    array = list(game.values(blocks._cells(s, window, 12), window, 2, lower=False))[-1][1]
    worst = -1.0
    for triangle in [*fixed, *(random_triangle(rng, mu) for _ in range(4))]:
        p, q = plane.pair(rate, *triangle)
        for place in range(0, window.end, max(window.end // 8, 1)):
            value = float(p @ np.interp(math.exp(window.losses[place]) * q / p, fine, second))
            worst = max(worst, value - float(array[place]))
    return worst


def test_two_steps_in_the_plane_stay_below_the_value_of_the_game():
    assert two_steps(1.5, 0.3) <= 2e-6


def test_a_wrong_reflection_is_found(monkeypatch):
    """Losses below 0 that count as nothing."""
    laws, window = small_game()
    exact = direct(laws, window, 6)
    silent = replace_left(laws)
    found = list(game.values(silent, window, 6, lower=False))[-1][1]
    assert np.any(found < exact)


def replace_left(laws: game.Laws) -> game.Laws:
    masses = laws.masses.copy()
    masses[:, masses.shape[1] // 2 + 1 :] = 0.0
    return laws._replace(masses=masses)


# --- the reference values -------------------------------------------------------------------------------

# z, rate, steps, delta; a lower bound by an adaptive adversary or by exact inversion for a fixed triangle, and an upper
# bound with coarser cells and blocks: all from an independent program.
SETTINGS = [
    (1.0, 0.1, 50, 1e-5, 5.1775, 5.2117),
    (1.0, 0.3, 10, 1e-3, 4.5750, 4.5959),
    (1.0, 0.5, 20, 1e-5, 15.1562, 15.2139),
    (1.5, 0.02, 300, 1e-7, 1.3880, 1.4060),
    (2.0, 0.05, 400, 1e-6, 2.5600, 2.5986),
    (4.0, 0.1, 500, 1e-5, 2.3420, 2.3624),
    (2.5, 0.01, 1000, 1e-5, 0.47260, 0.48181),
    (1.0, 0.01, 1, 1e-5, 0.1990, 0.19954),
    (0.5, 0.002, 200, 1e-5, 3.467, 3.4965),
    (2.5, 0.01, 500, 1e-9, 0.52418, 0.52877),
    (2.5, 0.01, 500, 1e-12, 0.64129, 0.6518),
    (1.0, 0.02, 200, 1e-9, 3.3245, 3.3552),
    (1.0, 0.02, 200, 1e-12, 4.4288, 4.587),
    *(
        pytest.param(*setting, marks=pytest.mark.slow)
        for setting in (
            (1.0, 0.01, 1000, 1e-5, 1.8659, 1.9337),
            (5.0, 0.01, 2000, 1e-6, 0.35933, 0.36332),
            (0.7, 0.005, 500, 1e-5, 2.0881, 2.1348),
            (0.957, 256 / 20242, 1581, 1e-5, 3.3529, 3.4814),
            (1.0, 0.001, 10_000, 1e-5, 0.51642, 0.53202),
        )
    ),
]


@pytest.mark.parametrize(("z", "rate", "count", "delta", "lower", "upper"), SETTINGS)
def test_reference_values(z, rate, count, delta, lower, upper):
    event = steps(z, rate, count)
    found = account(event).epsilon(delta)
    assert lower <= found <= upper and found <= joined_epsilon(event, delta)
    bounds = account(event).bounds(delta)
    assert bounds.upper == found and 0.985 * lower <= bounds.lower <= found
    assert found <= 1.021 * bounds.lower


# --- random settings -------------------------------------------------------------------------------------


def random_settings(seed: int, trials: int, longest: int):
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        z, rate = float(np.exp(rng.uniform(-0.6, 1.8))), float(np.exp(rng.uniform(-5, -0.2)))
        count = int(np.exp(rng.uniform(math.log(4), math.log(longest))))
        yield steps(z, rate, count), 10 ** float(rng.uniform(-11.5, -2))


def check_random(seed: int, trials: int, longest: int) -> None:
    for event, delta in random_settings(seed, trials, longest):
        found, before = account(event).epsilon(delta), joined_epsilon(event, delta)
        lower = pld.lower_epsilon(event, delta)
        assert lower <= found <= before * (1 + 2e-4), (event, delta, lower, found, before)
        assert account(event).delta(found) <= delta, (event, delta)


def test_random_settings_lie_between_the_adversary_and_the_joined_pair():
    check_random(11, 12, 60)


@pytest.mark.slow
def test_many_random_settings_lie_between_the_adversary_and_the_joined_pair():
    check_random(12, 150, 600)


def test_more_delta_more_noise_and_fewer_steps_cost_less():
    event = steps(1.2, 0.1, 30)
    by_delta = [account(event).epsilon(d) for d in np.geomspace(1e-13, 0.1, 40)]
    assert np.all(np.diff(by_delta) <= 0)
    by_noise = [account(steps(z, 0.1, 30)).epsilon(1e-5) for z in (0.8, 0.9, 1.0, 1.2, 1.25, 2.0)]
    assert np.all(np.diff(by_noise) < 0)
    by_count = [account(steps(1.2, 0.1, count)).epsilon(1e-5) for count in (1, 2, 3, 4, 5, 8, 20, 21, 60)]
    assert np.all(np.diff(by_count) > 0)


def test_below_the_last_decade_the_joined_pair_answers():
    event = steps(1.2, 0.1, 30)
    assert account(event).epsilon(1e-14) == pytest.approx(joined_epsilon(event, 1e-14), rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (8.0, 1e-6)])
def test_calibrated_noise_ends_on_the_private_side(epsilon, delta):
    noise = calibrate(lambda z: steps(z, 0.1, 50), epsilon, delta)
    assert account(steps(noise, 0.1, 50)).epsilon(delta) <= epsilon
    assert account(steps(noise * (1 - 5e-5), 0.1, 50)).epsilon(delta) > epsilon
    assert joined_epsilon(steps(noise, 0.1, 50), delta) > 1.01 * epsilon


# --- which releases are such steps -----------------------------------------------------------------------


def batches(event):
    return [node.batch for node in trees.directions(event, pld.dominating)[0]]


def test_only_single_gaussian_releases_without_replacement_are_steps():
    assert batches(steps(2.0, 0.1, 9)) == [Batch(0.5, 0.1)]
    several = (
        Subsampled(Repeated(Gaussian(2.0), 2), WOR, 0.1),
        Subsampled(Composed(Gaussian(2.0), Gaussian(3.0)), WOR, 0.1),
        Subsampled(Gaussian(2.0), "poisson", 0.1, "replace-one"),
        Subsampled(Laplace(2.0), WOR, 0.1),
        Subsampled(Gaussian(2.0), WOR, 1.0),
    )
    for event in several:
        assert batches(Repeated(event, 9)) == [None]


def merged_batch_is_joined() -> bool:
    """Two releases from one batch may depend on each other, so they get no less than the joined pair's epsilon."""
    event = Repeated(Subsampled(Composed(Gaussian(2.0), Gaussian(2.0)), WOR, 0.1), 40)
    return account(event).epsilon(1e-5) >= joined_epsilon(event, 1e-5) * (1 - 1e-9)


def test_several_releases_from_one_batch_are_joined(monkeypatch):
    assert merged_batch_is_joined()
    monkeypatch.setattr(trees, "_batch", lambda part: Batch(trees.mu(trees.as_single(part)), part.rate))
    forget()
    assert not merged_batch_is_joined()


def mixed_kinds_cost_enough() -> bool:
    """Steps of two kinds cost at least what the adversary shows of one kind alone."""
    event = Composed(steps(6.0, 0.1, 30), steps(1.0, 0.1, 30))
    return account(event).epsilon(1e-5) >= adversary.lower_epsilon(Batch(1.0, 0.1), 30, 1e-5)


def test_steps_of_two_kinds_have_blocks_of_their_own(monkeypatch):
    event = Composed(steps(6.0, 0.1, 30), steps(1.0, 0.1, 30))
    assert account(event).epsilon(1e-5) < joined_epsilon(event, 1e-5)
    assert mixed_kinds_cost_enough()
    honest = blocks.in_blocks

    def one_recursion(nodes, decade, detail=blocks.FINE):
        return honest((replace(nodes[0], count=sum(n.count for n in nodes)),), decade, detail)

    monkeypatch.setattr(blocks, "in_blocks", one_recursion)
    forget()
    assert not mixed_kinds_cost_enough()


def blocks_cost_enough(monkeypatch) -> bool:
    monkeypatch.setattr(blocks, "_longest", lambda *_: 10)
    forget()
    return account(steps(1.0, 0.2, 45)).epsilon(1e-5) >= adversary.lower_epsilon(Batch(1.0, 0.2), 45, 1e-5)


def test_all_blocks_are_composed(monkeypatch):
    """45 steps as five blocks of 9; then with one of the blocks dropped."""
    assert blocks_cost_enough(monkeypatch)
    honest = blocks._fixed_blocks.__wrapped__

    def dropped(*arguments):
        first, *rest = honest(*arguments)
        return (Node(first.count - 1, first.pair), *rest)

    monkeypatch.setattr(blocks, "_fixed_blocks", dropped)
    assert not blocks_cost_enough(monkeypatch)


def test_blocks_have_all_steps():
    for count in (4, 50, 101):
        found = blocks._fixed_blocks(Batch(0.5, 0.1), blocks.COARSE, count, 1e-6)
        assert sum(n.count for n in found) == math.ceil(count / 768)
    assert blocks._fixed_blocks(Batch(0.5, 0.1), blocks.COARSE, 3, 1e-6) is None


def test_events_without_batches_have_no_blocks():
    for event in (Repeated(Laplace(2.0), 50), Repeated(Subsampled(Gaussian(2.0), "poisson", 0.1), 50)):
        tree = trees.directions(event, pld.dominating)[0]
        assert blocks.in_blocks(tree, 5) is None and not pld.has_batches(event)


# --- random rounds ---------------------------------------------------------------------------------------


def test_a_number_of_rounds_that_is_almost_fixed_costs_the_fixed_number():
    step = Subsampled(Gaussian(1.2), WOR, 0.1)
    fixed = account(Repeated(step, 30)).epsilon(1e-5)
    random = account(RandomRounds(step, TruncatedGeometric(1 - 1e-12, 30))).epsilon(1e-5)
    assert fixed * (1 - 1e-4) <= random <= fixed * (1 + 2e-3)


@pytest.mark.parametrize("inner", [1, 2])
def test_random_rounds_lie_between_a_fixed_triangle_and_the_joined_pair(inner):
    step = Repeated(Subsampled(Gaussian(1.5), WOR, 0.1), inner)
    event = Repeated(RandomRounds(step, Geometric(0.8)), 5)
    found = account(event).epsilon(1e-5)
    assert pld.lower_epsilon(event, 1e-5) <= found < 0.99 * joined_epsilon(event, 1e-5)


def test_rounds_beyond_the_last_one_that_is_computed_count_in_full(monkeypatch):
    """With every W_k at 0.1, N rounds show 0.1 of P(0 < N <= last) and all of the rest, of which nothing is known."""
    asked = []

    def flat(laws, window, count, *, lower):
        asked.append(count)
        return ((k, np.full(window.end + 1, 0.1)) for k in range(1, count + 1))

    monkeypatch.setattr(blocks, "values", flat)
    law = Geometric(0.9)
    (node,) = blocks._random_blocks(Batch(0.5, 0.05), blocks.FINE, 1, law, 1, 1e-3)
    rest = law.tail(asked[0])
    assert rest > 1e-7
    assert float(node.pair.above(np.zeros(1))[0]) >= 0.1 * (law.tail(0) - rest) + rest


def test_rounds_whose_tail_cancels_are_joined():
    event = Repeated(RandomRounds(Subsampled(Gaussian(1.5), WOR, 0.1), TruncatedNegativeBinomial(1.0, 0.1)), 5)
    assert account(event).epsilon(1e-5) == pytest.approx(joined_epsilon(event, 1e-5), rel=1e-9)


# --- the adversary ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "rate"), [(0.4, 0.1), (1.0, 0.02), (2.0, 0.3)])
def test_merging_outcomes_loses_little_and_adds_nothing(mu, rate):
    h = rate * min(mu, 1.0) / 12
    reach = math.ceil(8.0 / h)
    grid = h * np.arange(-reach, reach + 1)
    pair = triangles.sampling.poisson_zero_out(triangles.profiles.gaussian(mu), rate)
    for one in (pair, pair.swapped()):
        masses = adversary.merged(one.tails(grid), h)
        curve = adversary._curve(masses, game.Window(h, reach, reach // 4, 0.0))
        true = one.above(grid[reach : reach + len(curve)])
        assert masses.sum() <= 1 and np.all(curve <= true * (1 + 1e-9) + 1e-15)
        assert curve[0] >= 0.99 * true[0]


def test_the_adversary_is_better_than_either_triangle_alone():
    event, delta = steps(1.0, 0.1, 50), 1e-5
    adaptive = pld.lower_epsilon(event, delta)
    fixed = pld.answers._lower_epsilon_of_tree(trees.directions(event, pld.attained)[0], delta)
    assert fixed < adaptive <= account(event).epsilon(delta) and adaptive >= 5.16


def test_delta_and_epsilon_agree_where_the_curves_of_two_decades_differ():
    """delta = 10^-3.505 ends a decade: epsilon is on the next one's curve, and delta must look there too."""
    event = Repeated(Subsampled(Gaussian(0.458424817), "without-replacement", 0.008215732783887987), 7932)
    guarantee, delta = account(event), 0.00031234730521075064
    assert guarantee.delta(guarantee.epsilon(delta)) <= delta * (1 + 1e-6)


def test_calibrating_random_rounds_warns_of_nothing():
    """The moments of a geometric number of rounds are infinite at large tilts, and infinity minus infinity warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noise = calibrate(
            lambda z: RandomRounds(Subsampled(Gaussian(z), "without-replacement", 0.0134), Geometric(2 / 3)),
            epsilon=2.448,
            delta=4.67e-11,
        )
    assert noise > 0
