"""Bounds hold whatever window, tilt or start a search has chosen; only how tight and how fast they are may change."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dptoolkit.accounting import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    account,
    calibrate,
    composition,
    selection,
)
from dptoolkit.accounting.pld import composition as sums
from dptoolkit.accounting.pld import curve
from dptoolkit.accounting.pld import tail as tails
from dptoolkit.accounting.pld.grid import connect_the_dots
from dptoolkit.accounting.pld.tail import Tail
from dptoolkit.accounting.pld.trees import directions, dominating
from dptoolkit.errors import InvalidValue, UnsupportedEvent

EPSILON0, COUNT = 0.2, 50


def _tail(share: float, epsilon: float, log_outside: float):
    nodes = directions(Repeated(PureDp(EPSILON0), COUNT), dominating)[0]
    spans = curve._Spans(nodes, 1e-9)
    total = spans.sum_at(spans.aligned(EPSILON0 / 16), connect_the_dots)
    tilt, _ = total.look_from(epsilon, spans.reach)
    return total.tail(sums.Focus(share * tilt, epsilon, log_outside), lower=False)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("epsilon", [2.0, 5.0, 8.0])
@pytest.mark.parametrize("log_outside", [0.0, 1.0, 4.0])
def test_a_window_that_is_too_small_never_loses_mass(share, epsilon, log_outside):
    tail = _tail(share, epsilon, log_outside)
    exact = composition.optimal_delta(EPSILON0, COUNT, epsilon, 0.0)
    assert tail.infinite + tail.delta_at(epsilon) >= exact * (1 - 1e-12)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("epsilon", [2.0, 5.0, 8.0])
def test_a_window_with_room_is_tight(share, epsilon):
    tail = _tail(share, epsilon, 25.0)
    exact = composition.optimal_delta(EPSILON0, COUNT, epsilon, 0.0)
    assert tail.infinite + tail.delta_at(epsilon) <= exact * (1 + 1e-6)


EVENTS = [
    Repeated(Subsampled(Gaussian(0.7), "poisson", 0.001), 1000),
    Repeated(Subsampled(Gaussian(8.0), "poisson", 0.1), 1000),
    Repeated(Subsampled(Laplace(1.0), "poisson", 0.02), 100),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("share", [0.8, 0.95, 0.999, 1.0])
def test_a_direction_that_is_skipped_is_not_the_worse_one(event, share):
    """A quick look says yes only where the whole curve says so too."""
    for tree in directions(event, dominating):
        own = curve.Composition(tree, 1e-5).epsilon(1e-5)
        if curve.surely_keeps(tree, share * own.value, 1e-5, own.step):
            assert curve.Composition(tree, 1e-5).delta(share * own.value).value <= 1e-5


def test_a_direction_with_room_is_skipped():
    tree = directions(EVENTS[0], dominating)[1]
    own = curve.Composition(tree, 1e-5).epsilon(1e-5)
    assert curve.surely_keeps(tree, 1.2 * own.value, 1e-5, own.step)


@pytest.mark.parametrize("make", [
    lambda z: Repeated(ExponentialMechanism(1 / z), 1000),
    lambda z: Composed(Repeated(ExponentialMechanism(1 / z), 10), Gaussian(2 * z)),
    lambda z: Repeated(Subsampled(Gaussian(z), "poisson", 0.01), 100),
])  # fmt: skip
@pytest.mark.parametrize("guess", [0.1, 1.0, 50.0])
def test_a_search_by_one_method_finds_what_all_methods_find(make, guess):
    """The first guess decides which method searches, and must not decide the noise by more than the tolerance.

    Two grids differ by up to a part in ten thousand of epsilon, and noise falls about like its inverse.
    """
    noise = calibrate(make, 2.0, 1e-6, guess=guess)
    assert account(make(noise)).epsilon(1e-6) <= 2.0
    assert account(make(noise * (1 - 2e-4))).epsilon(1e-6) > 2.0


def test_a_search_that_a_large_fixed_part_makes_hopeless_takes_few_steps():
    calls = []

    def make(scale):
        calls.append(scale)
        return Composed(Repeated(ExponentialMechanism(1 / scale), 1000), PureDp(10.0))

    with pytest.raises(InvalidValue, match="reachable"):
        calibrate(make, 100.0, 1e-6, method="zcdp")
    assert len(calls) < 60


def test_what_one_thread_remembers_is_not_seen_by_another():
    alone = [account(event, "pld").epsilon(1e-6) for event in EVENTS]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda k: account(EVENTS[k % 3], "pld").epsilon(1e-6), range(6)))
    assert together == alone * 2
    assert all(math.isfinite(value) for value in alone)


@pytest.mark.parametrize("fixed", [1.0, 1.0 - 1e-9])
def test_a_search_that_ends_on_a_slope_does_not_trust_it_across_a_jump(fixed):
    noise = calibrate(lambda z: PureDp(2.0 if z < 7 else fixed), 1.0, 0.0)
    assert 7.0 <= noise <= 7.0 * (1 + 1e-3)


def test_a_search_for_very_much_noise_tries_the_most_before_it_gives_up():
    noise = calibrate(lambda z: Composed(PureDp(1.0), Laplace(z)), 1 + 1e-9, 0.0)
    assert noise == pytest.approx(1e9, rel=1e-4)


def test_a_sum_that_is_too_wide_for_a_fine_grid_is_refused_and_not_looked_for_for_ever():
    """On the coarser grids that are tried, the moment generating function ends below the tilt of the fine one."""
    rounds = RandomRounds(Repeated(RandomizedResponse(11.12, 3), 68_075), Geometric(0.9))
    event = Composed(rounds, Repeated(RandomizedResponse(2.568, 10), 29_342), Repeated(PureDp(0.0027), 785))
    with pytest.raises(UnsupportedEvent, match="must be fewer"):
        account(event, "pld").epsilon(1e-5)


@pytest.mark.parametrize("inner", [PureDp(1.0), ExponentialMechanism(1.0)], ids=str)
@pytest.mark.parametrize("scheme", ["poisson", "without-replacement"])
def test_the_largest_loss_of_a_sampled_release_is_the_most_it_costs(inner, scheme):
    """It lay between two points of every grid, so that epsilon was up to a twentieth more, and grew with delta."""
    event = Subsampled(inner, scheme, 0.1)
    epsilons = [account(event, "pld").epsilon(10.0**-k) for k in range(12, 1, -1)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] <= math.log1p(0.1 * math.expm1(1.0)) * (1 + 1e-6)


# --- sums in blocks, and chords ----------------------------------------------------------------------


def _random_tail(rng: np.random.Generator, block: int, monkeypatch: pytest.MonkeyPatch) -> Tail:
    monkeypatch.setattr(tails, "_MOST_IN_BLOCK", block)
    points, step, tilt = 768, float(10 ** rng.uniform(-4, 0.5)), float(rng.choice([0.0, 10 ** rng.uniform(-2, 2)]))
    mass = np.exp(-0.5 * np.linspace(-8, 8, points) ** 2 * rng.uniform(0, 20))
    first = int(rng.integers(-points, points // 4))
    log_norm = tilt * step * (first + points // 2) - 5
    return Tail(step, first, mass / mass.sum(), tilt, log_norm, 1e-18, 1e-12, 0.0, lower=False)


@pytest.mark.parametrize("seed", range(20))
def test_sums_in_blocks_are_the_sums(seed, monkeypatch):
    """One block of all points takes every sum directly."""
    whole, blocks = (_random_tail(np.random.default_rng(seed), size, monkeypatch) for size in (768, 32))
    rng = np.random.default_rng(seed + 100)
    reach = whole.points * whole._step
    for share in rng.uniform(0.0, 1.1, 40):
        epsilon = whole.first_loss + share * reach
        assert blocks.delta_at(epsilon) == pytest.approx(whole.delta_at(epsilon), rel=1e-12, abs=1e-300)
    for delta in 10.0 ** rng.uniform(-14, -0.1, 40):
        one, other = whole.epsilon_at(delta), blocks.epsilon_at(delta)
        assert one == other or one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize(("epsilon0", "count"), [(0.1, 20), (0.7, 5), (0.03, 60)])
def test_chords_of_the_recursion_are_above_what_a_finer_grid_proves(epsilon0, count, monkeypatch):
    """A grid with four times the cells proves less everywhere, and is as sound."""
    deltas, epsilons = [1e-3, 3.3e-6, 1e-9], [0.31 * epsilon0, 1.7 * epsilon0, 2.55 * epsilon0]
    ours = [selection.adaptive(epsilon0, count, d) for d in deltas]
    ours_at = [selection.adaptive_delta(epsilon0, count, e) for e in epsilons]
    assert all(selection.adaptive_delta(epsilon0, count, e) <= d for d, e in zip(deltas, ours, strict=True))
    assert all(selection.keeps(epsilon0, count, e, d) for d, e in zip(deltas, ours, strict=True))
    assert not any(selection.keeps(epsilon0, count, e * (1 - 1e-6), d) for d, e in zip(deltas, ours, strict=True))
    monkeypatch.setattr(selection, "_CELLS", 256)
    finer = [selection.adaptive(epsilon0, count, d) for d in deltas]
    assert all(a <= b <= 1.02 * a for a, b in zip(finer, ours, strict=True))
    assert all(
        a <= b for a, b in zip([selection.adaptive_delta(epsilon0, count, e) for e in epsilons], ours_at, strict=True)
    )


def test_between_two_points_of_the_recursion_both_answers_are_on_the_chord():
    """The chord of a convex function is above it; anything below the chord would not be proved."""
    epsilon0, count, delta = 0.2, 10, 1e-6
    points = selection._recursion_points(epsilon0, count, delta, selection._CELLS)
    x, value = selection._recursion(epsilon0, count, points, selection._CELLS)
    for i in range(20, int(np.flatnonzero(value <= 1e-5)[0]), 7):
        middle, height = float(np.logaddexp(x[i], x[i + 1]) - math.log(2)), float(value[i] + value[i + 1]) / 2
        assert selection._between(x, value, middle) == pytest.approx(height, rel=1e-9)
        assert selection.adaptive_delta(epsilon0, count, middle) == pytest.approx(height, rel=1e-3)
        assert selection._between(x, value, float(x[i])) == pytest.approx(value[i], rel=1e-12)
    for i in np.flatnonzero((value > 2e-7) & (value < 1e-6))[:5]:
        middle, height = float(np.logaddexp(x[i], x[i + 1]) - math.log(2)), float(value[i] + value[i + 1]) / 2
        assert selection.adaptive(epsilon0, count, height) == pytest.approx(middle, rel=1e-5)


def test_the_answer_for_selections_has_no_steps():
    """It was the next grid point, so that a search for noise met jumps of a thousandth."""
    epsilons = [selection.adaptive(0.1 * (1 + 1e-3 * k), 30, 1e-6) for k in range(20)]
    rises = np.diff(epsilons)
    assert np.all(rises > 0)
    assert np.max(rises) < 3 * np.min(rises)


def test_a_search_whose_first_method_is_not_the_best_goes_on_with_the_best():
    """At the start Renyi is ahead, at the end the grid."""

    def make(z):
        return Composed(Repeated(ExponentialMechanism(0.03), 50), Gaussian(z))

    noises = [calibrate(make, 1.0, 1e-5, guess=guess) for guess in (0.2, 5.0, 200.0)]
    assert max(noises) <= min(noises) * (1 + 1e-4)
    assert account(make(min(noises) * (1 - 2e-4))).epsilon(1e-5) > 1.0


@pytest.mark.parametrize("ask", [lambda g: g.delta(0.0), lambda g: g.delta(1e-3), lambda g: g.epsilon(9.9e-4)])
def test_a_grid_that_cannot_get_finer_is_not_asked_for_again(monkeypatch, ask):
    # Rare huge losses: a window of this event is too large for its grid, so every finer grid ended as coarse as before
    # and was tried again without end. The work is counted in windows; no clock is read.
    windows: list[float] = []
    of_sum = sums.Sum.tail

    def counted(self, focus, *, lower):
        windows.append(self.step)
        assert len(windows) <= 80, "the search for a finer grid does not end"
        return of_sum(self, focus, lower=lower)

    monkeypatch.setattr(sums, "MAX_POINTS", 2**17)
    monkeypatch.setattr(sums.Sum, "tail", counted)
    event = Repeated(Subsampled(Gaussian(0.06), "without-replacement", 1.01e-9), 10**6)
    answer = ask(account(event))
    assert windows
    assert 0 < answer < 1e3
