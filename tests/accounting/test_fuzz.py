"""Random events against exact small cases: an epsilon that is too small, by any method, is found here.

For every event, method and delta: the exact delta of a pair that neighbours attain is at most the delta at the epsilon
that the accountant reports, the accountant's own delta there is at most the one asked for, and its delta at any epsilon
is at least the exact one. The checks are deterministic: fixed seeds, no error rate. The reference has a relative error
below 1e-9; it is granted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import mpmath as mp
import numpy as np
import pytest

from dptoolkit.accounting import (
    METHODS,
    ApproxDp,
    BestOf,
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    NoisyMax,
    Poisson,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedGeometric,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    ZCdp,
    account,
    composition,
    methods,
    pld,
    selection,
)
from dptoolkit.accounting.events import adjacency_of
from dptoolkit.accounting.rounds import RunCountLaw
from dptoolkit.errors import DpToolkitError, UnsupportedEvent
from tests.accounting.reference import TooLarge, exact_delta, gaussian_delta, gaussian_deltas

# Events of the quick and of the slow tier, of the slow one on the grid that users get, and of one test.
QUICK, SLOW, FINE, CHUNK = 40, 2000, 200, 100
# A coarser grid is looser and must be as sound; it is also thirty times faster where the events differ much in size.
QUICK_POINTS, FUZZ_POINTS = 2**14, 2**17
REFERENCE_ERROR = 1e-9
SMALLEST = 1e-290


class Draw:
    """Random events, small enough for an exact answer and large enough to reach every branch."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def log_uniform(self, low: float, high: float) -> float:
        return float(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def runs(self) -> RunCountLaw:
        gamma = self.log_uniform(1e-3, 0.9)
        return [
            lambda: Geometric(1 - gamma),
            lambda: TruncatedGeometric(1 - gamma, self.whole(1, 30)),
            lambda: Poisson(self.log_uniform(1e-2, 30.0)),
            lambda: TruncatedNegativeBinomial(float(self.rng.choice([-0.5, 0.0, 0.3, 1.0, 3.0])), gamma),
        ][self.whole(0, 3)]()

    def discrete(self) -> Event:
        epsilon = self.log_uniform(1e-3, 60.0)
        return [
            lambda: PureDp(epsilon),
            lambda: RandomizedResponse(epsilon, self.whole(2, 60)),
            lambda: TwoSidedGeometric(epsilon, self.whole(1, 3)),
            lambda: ApproxDp(epsilon, self.log_uniform(1e-16, 1e-2)),
            lambda: NoisyMax(epsilon, str(self.rng.choice(["laplace", "exponential"]))),
            lambda: ExponentialMechanism(epsilon),
        ][self.whole(0, 5)]()

    def sampled(self, event: Event) -> Event:
        rate = 1 - self.log_uniform(1e-6, 0.5) if self.chance(0.3) else self.log_uniform(1e-3, 0.9)
        scheme, adjacency = [
            ("poisson", None),
            ("poisson", "replace-one"),
            ("without-replacement", None),
        ][self.whole(0, 2)]
        return Subsampled(event, scheme, rate, adjacency)

    def tuned(self, event: Event) -> Event:
        runs = self.runs()
        return BestOf(event, runs if isinstance(runs, (Poisson, TruncatedNegativeBinomial)) else Poisson(2.0))

    def part(self) -> Event:
        event = self.discrete()
        if self.chance(0.3):
            event = self.sampled(event)
        if self.chance(0.2):
            event = self.tuned(event) if self.chance(0.3) else RandomRounds(event, self.runs())
        return Repeated(event, self.whole(2, 4)) if self.chance(0.3) else event

    def gaussian(self) -> Event:
        noise = self.log_uniform(0.3, 100.0)
        return [
            lambda: Repeated(Gaussian(noise), self.whole(1, 1000)),
            lambda: self.sampled(Gaussian(noise)),
            lambda: RandomRounds(Gaussian(noise), self.runs()),
            lambda: Repeated(RandomRounds(Gaussian(10 * noise), self.runs()), self.whole(2, 200)),
            lambda: Laplace(self.log_uniform(0.002, 100.0)),
            lambda: ZCdp(self.log_uniform(1e-6, 10.0)),
        ][self.whole(0, 5)]()

    def event(self) -> Event:
        if self.chance(0.45):
            return self.gaussian()
        parts = [self.part() for _ in range(self.whole(1, 3))]
        try:
            adjacency_of(Composed(*parts))
        except UnsupportedEvent:
            # One adjacency in all.
            parts = parts[:1]
        return parts[0] if len(parts) == 1 else Composed(*parts)

    def delta(self) -> float:
        return self.log_uniform(1e-18, 0.5)

    def method(self) -> str | None:
        return None if self.chance(0.5) else str(self.rng.choice(list(METHODS)))


def _affordable(event: Event, method: str | None, delta: float) -> bool:
    """The recursion for selections takes minutes for many large ones."""
    if method != "bounded-range":
        return True
    one = event.event if isinstance(event, Repeated) else event
    return isinstance(one, ExponentialMechanism) and selection.recursion_cost(one.epsilon, 4, delta) < 1e7


def drawn(seed: int, count: int) -> Iterator[list[str]]:
    """The faults of ``count`` random events that the method supports and the reference can do."""
    draw = Draw(seed)
    while count:
        event, method, delta, epsilon = draw.event(), draw.method(), draw.delta(), draw.log_uniform(1e-4, 1e3)
        try:
            if not _affordable(event, method, delta):
                continue
            exact_delta(event, 1.0)
            yield faults(event, method, delta, epsilon)
        except (UnsupportedEvent, TooLarge):
            continue
        count -= 1


def faults(event: Event, method: str | None, delta: float, epsilon: float) -> list[str]:
    """What is wrong with the answers about one event."""
    guarantee, found = account(event, method), []
    reported = guarantee.epsilon(delta)
    where = f"{event!r}, method={method}, delta={delta!r}: epsilon {reported!r}"
    if math.isfinite(reported):
        truth = exact_delta(event, reported)
        if truth > delta * (1 + REFERENCE_ERROR) + SMALLEST:
            found.append(f"{where} is too small: delta there is {truth:.6g}")
        own = guarantee.delta(reported)
        if own > delta:
            found.append(f"{where} is not on the private side of our own delta {own!r}")
    claimed, truth = guarantee.delta(epsilon), exact_delta(event, epsilon)
    if truth > claimed * (1 + REFERENCE_ERROR) + SMALLEST:
        found.append(f"{event!r}, method={method}: delta({epsilon!r}) = {claimed:.6g} is too small, it is {truth:.6g}")
    return found


@pytest.fixture
def coarse_grid(monkeypatch):
    yield from _with_points(monkeypatch, FUZZ_POINTS)


@pytest.fixture
def coarsest_grid(monkeypatch):
    yield from _with_points(monkeypatch, QUICK_POINTS)


def _with_points(monkeypatch: pytest.MonkeyPatch, points: int) -> Iterator[None]:
    forget()
    monkeypatch.setattr(pld.composition, "MAX_POINTS", points)
    yield
    forget()


def forget() -> None:
    for answers in (methods.best_epsilon, methods.best_delta):
        answers.cache_clear()


def check(seed: int, count: int) -> None:
    found = [fault for event in drawn(seed, count) for fault in event]
    assert not found, f"{len(found)} faults:\n" + "\n".join(found)


@pytest.mark.parametrize("seed", range(QUICK // 20))
def test_random_events_are_never_told_too_little(seed, coarsest_grid):
    check(seed, 20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1000 + SLOW // CHUNK))
def test_two_thousand_random_events_are_never_told_too_little(seed, coarse_grid):
    check(seed, CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5000, 5000 + FINE // 20))
def test_random_events_are_never_told_too_little_on_the_grid_of_every_day(seed):
    check(seed, 20)


def test_an_epsilon_one_step_too_low_is_a_fault(monkeypatch):
    """A planted fault: the answer of the grid point below, as the tail sums gave it when they cancelled."""
    event = RandomizedResponse(11.0)
    assert not faults(event, "pld", 1e-5, 1.0)
    honest = METHODS["pld"]
    monkeypatch.setitem(METHODS, "pld", type(honest)(lambda e, d: honest.epsilon(e, d) * 0.996, honest.delta))
    assert any("too small" in fault for fault in faults(event, "pld", 1e-5, 1.0))
    assert any("private side" in fault for fault in faults(event, "pld", 1e-5, 1.0))


@pytest.mark.parametrize("mu", [0.05, 0.7, 3.0, 20.0])
def test_the_two_references_for_a_gaussian_agree(mu):
    for epsilon in (0.0, 0.01, 1.0, 5.0, 40.0, 300.0):
        exact = gaussian_delta(mu, epsilon)
        assert gaussian_deltas(np.array([mu]), epsilon)[0] == pytest.approx(exact, rel=1e-10, abs=0)


# --- the cases that were wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (RandomizedResponse(11.0), 1e-5), (Laplace(0.005), 1e-5), (RandomizedResponse(14.4455, 50), 1e-5),
        (TwoSidedGeometric(27.1138, 2), 1e-5), (Composed(PureDp(11.4438), PureDp(0.0261)), 1e-5),
        (Subsampled(PureDp(12.0), "poisson", 0.999998), 1e-5), (RandomizedResponse(500.0), 1e-12),
        (Composed(RandomizedResponse(30.0), ExponentialMechanism(2.0)), 1e-7), (Laplace(0.001), 1e-15),
    ],
    ids=str,
)  # fmt: skip
def test_mass_at_the_largest_loss_is_seen(event, delta):
    """The difference of two tail sums cancelled there, and delta read as 0."""
    assert not faults(event, None, delta, 1.0)
    assert not faults(event, "pld", delta, 1.0)


@pytest.mark.parametrize(
    ("event", "exact"),
    [
        (RandomizedResponse(11.0), 11 + math.log1p(-1e-5 * (1 + math.exp(-11)))),
        (RandomizedResponse(14.4455, 50), 14.4455 + math.log1p(-1e-5 * (1 + 49 * math.exp(-14.4455)))),
        (Laplace(0.005), 200 + 2 * math.log1p(-1e-5)),
    ],
    ids=str,
)
def test_mass_at_the_largest_loss_costs_what_it_is_and_no_grid_step_more(event, exact):
    """By the tail sums themselves: a bound that is wide of the answer would hide that they cancel."""
    assert exact <= account(event, "pld").epsilon(1e-5) * (1 + 1e-12) <= exact * (1 + 1e-8)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 3.0])
@pytest.mark.parametrize("gamma", [1e-3, 0.0637465, 0.999])
def test_random_rounds_from_truncated_laws_at_tiny_deltas(eta, gamma, coarse_grid):
    """log E[z^N] near z = 1 rounded above 0, and the mass at infinite loss below it."""
    event = RandomRounds(Gaussian(26.7103), TruncatedNegativeBinomial(eta, gamma))
    assert not faults(event, None, 1e-15, 1.0)


def test_two_hundred_truncated_geometrics_at_a_tiny_delta(coarse_grid):
    event = Repeated(RandomRounds(Gaussian(60.0), TruncatedGeometric(0.8, 20)), 200)
    assert not faults(event, None, 1e-13, 2.0)


@pytest.mark.parametrize("gamma", [1e-9, 0.3, 1 - 1e-9])
@pytest.mark.parametrize("log_z", [-1e-20, -1e-12, 1e-15])
def test_a_generating_function_keeps_its_digits_next_to_one(gamma, log_z):
    """log E[z^N] is E[N] log z there, of the sign of log z: a rounded one made the mass at infinity negative."""
    laws = [TruncatedNegativeBinomial(eta, gamma) for eta in (-0.5, 0.0, 1.0, 3.0)]
    for runs in [*laws, Geometric(gamma), TruncatedGeometric(gamma, 50), Poisson(3.0)]:
        assert runs.log_pgf(np.asarray(log_z)) == pytest.approx(runs.mean * log_z, rel=1e-2, abs=0)


def test_the_tilted_mean_is_bounded_from_above():
    for runs in (Geometric(0.9), TruncatedGeometric(0.9, 7), Poisson(3.0), TruncatedNegativeBinomial(-0.5, 0.01)):
        assert runs.mean <= runs.tilted_mean(0.0) <= runs.mean * (1 + 1e-5)
        assert runs.tilted_mean(1e-3) > runs.mean
    assert Geometric(0.9).tilted_mean(1.0) == math.inf


# --- the ends of the range ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 10**5, 10**11])
def test_optimal_composition_keeps_its_digits(count):
    """The mass of the outcome next to the mean, in 60 digits: gammaln loses 2e-4 of it at 10^11; never below."""
    epsilon0 = 0.3
    lie = math.exp(-epsilon0) / (1 + math.exp(-epsilon0))
    centre = int(count * lie)
    got = composition._log_binomial_mass(count, centre, np.zeros(1), lie, 1 - lie)[0]
    with mp.workdps(60):
        q = 1 / (1 + mp.exp(mp.mpf(epsilon0)))
        choices = mp.loggamma(count + 1) - mp.loggamma(centre + 1) - mp.loggamma(count - centre + 1)
        exact = choices + centre * mp.log(q) + (count - centre) * mp.log(1 - q)
        assert 0 <= float(got - exact) < 1e-12


@pytest.mark.parametrize("count", [10**16, 10**22])
def test_more_responses_than_memory_are_summed_in_blocks(count, monkeypatch):
    """The answer lies between that of the Gaussian limit and that of zCDP, both less than 1e-5 away."""
    monkeypatch.setattr(composition, "_MOST_OUTCOMES", 2**14)
    epsilon = account(Repeated(PureDp(1e-3), count)).epsilon(1e-5)
    limit = account(Gaussian(1 / (1e-3 * math.sqrt(count)))).epsilon(1e-5)
    assert limit * (1 - 1e-6) < epsilon < account(Repeated(PureDp(1e-3), count), "zcdp").epsilon(1e-5) * (1 + 1e-5)


def test_blocks_only_add(monkeypatch):
    exact = composition.optimal(0.01, 10**5, 1e-6)
    monkeypatch.setattr(composition, "_MOST_OUTCOMES", 500)
    assert exact < composition.optimal(0.01, 10**5, 1e-6) < exact * 1.05


@pytest.mark.parametrize(
    "event",
    [
        Repeated(Subsampled(Gaussian(1.0), "poisson", 1e-10), 10**22),
        RandomRounds(Gaussian(26.7), Geometric(1 - 1e-8)),
        RandomRounds(Gaussian(26.7), Geometric(1 - 1.2e-16)),
        RandomRounds(Gaussian(1e3), TruncatedGeometric(1 - 1e-8, 10**9)),
        RandomRounds(PureDp(1e-5), TruncatedNegativeBinomial(1.0, 1e-9)),
        RandomRounds(Gaussian(26.7), TruncatedNegativeBinomial(1.0, 1 - 1e-8)),
    ],
    ids=str,
)
def test_rounds_without_end_are_accounted_for_or_refused_in_words(event, coarse_grid):
    assert account(event).epsilon(1e-5) > 0
    try:
        assert account(event, "pld").epsilon(1e-5) > 0
    except DpToolkitError as refusal:
        assert "rdp" in str(refusal)


@pytest.mark.parametrize("event", [Gaussian(1.0), PureDp(1e-3), Subsampled(Gaussian(1.0), "poisson", 0.1)], ids=str)
def test_a_count_beyond_all_floats_is_refused(event):
    with pytest.raises(DpToolkitError, match=r"count=about 10\^400"):
        account(Repeated(event, 10**400)).epsilon(1e-5)


def test_the_smaller_direction_is_not_chased(monkeypatch):
    """delta is the larger of the two directions: one that is surely below needs no grid of its own."""
    made = []
    honest = pld.answers.Composition
    monkeypatch.setattr(pld.answers, "Composition", lambda *a, **k: made.append(1) or honest(*a, **k))
    pld.delta(Repeated(Subsampled(Gaussian(2.0), "poisson", 1e-4), 10), 0.01)
    assert len(made) <= 4


def test_renyi_is_not_asked_after_the_grid_has_won(monkeypatch):
    event = Composed(Subsampled(Gaussian(2.0), "poisson", 0.01), Subsampled(Gaussian(3.0), "poisson", 0.02))
    asked = []
    honest = METHODS["rdp"]
    spied = type(honest)(lambda e, d: asked.append(d) or honest.epsilon(e, d), honest.delta)
    monkeypatch.setitem(METHODS, "rdp", spied)
    forget()
    account(event).epsilon(1e-5)
    assert not asked
