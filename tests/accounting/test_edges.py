"""Ends of ranges in the accountant: delta 0, rate 0, budgets that need no noise, mixtures, and numbers in print."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from dptoolkit import published
from dptoolkit.accounting import (
    ApproxDp,
    BestOf,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    Ledger,
    Logarithmic,
    Poisson,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    ZCdp,
    account,
    calibrate,
    gaussian,
    google,
    pld,
    rdp,
    sampling,
)
from dptoolkit.accounting.guarantee import Claimed
from dptoolkit.accounting.pld.curve import Composition
from dptoolkit.accounting.pld.trees import directions, total_variation
from dptoolkit.accounting.report import at_least, at_most
from dptoolkit.errors import BudgetExceeded, InvalidValue, UnsupportedEvent
from dptoolkit.solvers.frame.plan import smallest_noise

POI, WOR = "poisson", "without-replacement"


# --- printed numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.00123449, 0.12341, 7.00001, 1e-300, 123456789.0])
def test_rho_is_printed_rounded_up(rho):
    (line,) = [line for line in str(account(ZCdp(rho))).splitlines() if line.startswith("zCDP: rho = ")]
    assert rho <= float(line.removeprefix("zCDP: rho = ")) <= rho * 1.001


def test_what_neighbours_reach_is_printed_rounded_down():
    guarantee = replace(account(Gaussian(1.0)), claimed=Claimed(1.0, 1e-5, "Somebody"))
    lower = guarantee.bounds(1e-5).lower
    (shown,) = re.findall(r"some neighbours reach ([0-9.]+)\)", str(guarantee))
    assert lower * 0.999 <= float(shown) <= lower


@pytest.mark.parametrize("value", [5e-324, 2.5e-323, 1.2345e-320, 2.2250738585072014e-308, 9.9999e307, 0.0])
def test_rounded_bounds_are_bounds_at_the_ends(value):
    assert float(at_least(value)) <= value <= float(at_most(value))


# --- events for dp_accounting -------------------------------------------------------------------------


@pytest.mark.parametrize("event", [PureDp(0.83), Repeated(PureDp(0.83), 20_000),
                                   Repeated(RandomizedResponse(0.3, 5), 9),
                                   BestOf(PureDp(0.2), Logarithmic(0.25))], ids=str)  # fmt: skip
def test_pure_mechanisms_reach_their_rdp_accountant_as_pure(event):
    pytest.importorskip("dp_accounting", reason="the bridge needs dp-accounting")
    assert "ZCDp" not in str(google.to_google(event, "rdp"))
    assert google.epsilon(event, 1e-6, "rdp") >= account(event, "rdp").epsilon(1e-6) * (1 - 1e-3)
    back = google.from_google(google.to_google(event, "rdp"), google.relation(event, "rdp"))
    assert account(back).epsilon(0.0) == pytest.approx(account(event).epsilon(0.0), rel=1e-6)


@pytest.mark.parametrize("event", [Composed(PureDp(0.83), Gaussian(2.0)), Composed(PureDp(0.83), ZCdp(0.1)),
                                   BestOf(Composed(PureDp(0.1), Gaussian(2.0)), Logarithmic(0.25)),
                                   Composed(PureDp(0.1), Subsampled(Gaussian(1.0), POI, 0.1))], ids=str)  # fmt: skip
def test_what_their_rdp_accountant_cannot_mix_is_refused(event):
    pytest.importorskip("dp_accounting", reason="the bridge needs dp-accounting")
    with pytest.raises(UnsupportedEvent, match="must not mix"):
        google.to_google(event, "rdp")


# --- delta 0 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 3.0])
def test_the_best_of_pure_runs_is_pure(eta):
    """Papernot and Steinke 2022: (2 + eta) epsilon, here also against the exact law of a worst pair of coins."""
    runs = TruncatedNegativeBinomial(eta, 0.05)
    guarantee = account(BestOf(Repeated(PureDp(0.25), 2), runs))
    assert guarantee.epsilon(0.0) == pytest.approx((2 + eta) * 0.5)
    assert guarantee.epsilon(1e-9) <= guarantee.epsilon(0.0)
    many = account(BestOf(Repeated(PureDp(0.02), 100), runs))
    assert many.epsilon(1e-3) == account(many.event, "rdp").epsilon(1e-3) < many.epsilon(0.0)
    assert _worst_loss(runs, 0.5) <= guarantee.epsilon(0.0)


def _worst_loss(runs, epsilon):
    """The largest loss over three-valued runs whose masses move by exp(+-epsilon), the best outcome winning."""
    worst = 0.0
    for top in np.geomspace(1e-6, 0.2, 20):
        for middle in np.geomspace(1e-6, 0.2, 20):
            for signs in ((1, 1), (1, -1), (-1, 1)):
                p = [top, middle]
                q = [top * math.exp(signs[0] * epsilon), middle * math.exp(signs[1] * epsilon)]
                if 1 - sum(q) < (1 - sum(p)) * math.exp(-epsilon):
                    continue
                for left, right in zip(_winner(runs, p), _winner(runs, q), strict=True):
                    worst = max(worst, abs(math.log(left / right)))
    return worst


def _winner(runs, masses):
    """P(best = first), P(best = second), P(neither), from the law of the number of runs."""
    below = [1.0, 1 - masses[0], 1 - masses[0] - masses[1]]
    values = [_generating(runs, x) for x in below]
    return values[0] - values[1], values[1] - values[2], values[2]


def _generating(runs, x):
    eta, gamma = runs.eta, runs.gamma
    if eta == 0:
        return math.log(1 - (1 - gamma) * x) / math.log(gamma)
    return ((1 - (1 - gamma) * x) ** -eta - 1) / (gamma**-eta - 1)


def test_a_random_number_of_pure_runs_that_may_be_none_is_not_pure():
    assert account(BestOf(PureDp(0.1), Poisson(3.0))).epsilon(0.0) == math.inf
    assert account(BestOf(Gaussian(5.0), Logarithmic(0.3))).epsilon(0.0) == math.inf
    assert account(Composed(BestOf(PureDp(0.1), Logarithmic(0.3)), PureDp(0.3))).epsilon(0.0) == pytest.approx(0.5)


def test_the_best_of_pure_runs_on_a_sample_is_amplified():
    event = Subsampled(BestOf(PureDp(0.5), Logarithmic(0.3)), WOR, 0.1)
    assert account(event).epsilon(0.0) == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))
    assert account(event).epsilon(1e-6) <= account(event).epsilon(0.0)


# --- mixtures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_rho_and_epsilon_delta_compose(delta):
    failing = Composed(ZCdp(0.02), Repeated(ApproxDp(0.3, delta / 10), 4))
    guarantee = account(failing)
    kept = -math.expm1(math.log1p(-delta) - 4 * math.log1p(-delta / 10))
    rest = account(Composed(ZCdp(0.02), Repeated(PureDp(0.3), 4)))
    assert guarantee.epsilon(delta) == pytest.approx(rest.epsilon(kept))
    assert guarantee.delta(guarantee.epsilon(delta)) <= delta * (1 + 1e-9)
    # A Gaussian of that rho is one of the mechanisms that are meant: what is exact for it is less.
    exact = account(Composed(Gaussian(5.0), Repeated(ApproxDp(0.3, delta / 10), 4)))
    assert exact.epsilon(delta) <= guarantee.epsilon(delta)


def test_failures_that_alone_exceed_delta_leave_nothing():
    event = Composed(ZCdp(0.02), ApproxDp(0.3, 1e-3))
    assert account(event).epsilon(1e-4) == account(event).epsilon(0.0) == math.inf
    assert account(event).epsilon(1e-3) == math.inf and account(event).delta(50.0) >= 1e-3
    assert account(Composed(ZCdp(0.0), ApproxDp(0.3, 1e-3))).epsilon(1e-2) <= 0.3 * (1 + 1e-12)
    ledger = Ledger(2.0, 1e-5)
    ledger.spend(ZCdp(0.02))
    ledger.spend(ApproxDp(0.1, 1e-6))
    assert 0 < ledger.remaining() < 2


def test_a_part_that_is_never_sampled_has_no_adjacency():
    never = Subsampled(Gaussian(1.0), POI, 0.0)
    for nothing in (never, Repeated(Subsampled(Gaussian(1.0), POI, 0.5), 0), RandomRounds(never, Geometric(0.5)),
                    Subsampled(Subsampled(Gaussian(1.0), POI, 0.5), WOR, 0.0)):  # fmt: skip
        assert account(nothing).adjacency is None and account(nothing).epsilon(0.0) == 0.0
        both = Composed(nothing, Subsampled(Gaussian(3.0), WOR, 0.1))
        assert account(both, adjacency="replace-one").epsilon(1e-5) == account(both).epsilon(1e-5) > 0
    with pytest.raises(UnsupportedEvent, match="mixes"):
        account(Composed(Subsampled(Gaussian(3.0), POI, 1e-9), Subsampled(Gaussian(3.0), WOR, 0.1)))
    ledger = Ledger(5.0, 1e-5)
    ledger.spend(never)
    ledger.spend(Subsampled(Gaussian(3.0), WOR, 0.1))
    assert str(ledger.adjacency) == "replace-one" and Ledger.from_json(ledger.to_json()) == ledger


# --- budgets that need no noise -----------------------------------------------------------------------


def test_a_budget_that_sampling_alone_keeps_needs_no_noise():
    def sampled(noise):
        return Subsampled(Gaussian(noise), POI, 1e-6)

    assert calibrate(sampled, 1.0, 1e-3) == 0.0
    assert account(sampled(0.0)).epsilon(1e-3) <= 1.0
    # A selection has no form without noise: the least noise that was accounted for.
    least = calibrate(lambda scale: Subsampled(ExponentialMechanism(1 / scale), WOR, 1e-6), 1.0, 1e-3)
    assert 0 < least <= 1e-11
    assert calibrate(sampled, 1.0, 1e-9) > 0.05
    # A solver's plan keeps a trace of noise: a release without any is reported as giving everything away.
    assert 0 < smallest_noise(sampled, 1.0, 1e-3) <= 1e-11


@pytest.mark.parametrize("make", [lambda _: Gaussian(5.0), lambda _: PureDp(0.0), lambda z: PureDp(z)])
def test_an_event_that_does_not_lose_less_with_more_noise_is_still_refused(make):
    with pytest.raises(InvalidValue, match="uses its argument"):
        calibrate(make, 5.0, 1e-3)


# --- flags --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["no", "False", 0, 1, None, 1.0, [True]])
def test_flags_are_true_or_false(value):
    numbers = {"n": 100, "steps": 5, "l1_radius": 1.0, "lipschitz": 1.0, "lower": 5.5, "upper": 11.2,
               "epsilon_count": 0.1, "epsilon_model": 1.0, "delta": 1e-5}  # fmt: skip
    for call in (
        lambda: published.sparsifier_count(1.0, 5.0, 0.1, rounded=value),
        lambda: published.sparsifier(**numbers, rounded=value),
        lambda: published.sparsifier(**numbers, as_coded=value),
    ):
        with pytest.raises(InvalidValue, match=r"(rounded|as_coded)=.*: must be True or False"):
            call()
    assert published.sparsifier_count(1.5, 5.0, 0.1, rounded=np.True_).status == "holds"


def test_laplace_noise_still_composes_with_selections():
    """A sibling of the mixtures above that worked before, and still does."""
    assert account(Composed(Laplace(2.0), BestOf(PureDp(0.1), Logarithmic(0.5)))).epsilon(1e-6) <= 0.7


# --- the smallest and the largest shifts ------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.0, 5e-324, 1e-310, 1e-200, 1e-160, 1e-20, 1e8, 1e300, math.inf])
def test_a_gaussian_profile_is_a_number_for_any_shift(mu):
    """delta(1e-160, 1.0) was not a number: 0 times infinity where the density underflows."""
    points = np.array([-1e3, -1.0, 0.0, 1e-300, 1e-20, 1.0, 1e3, math.inf])
    values = gaussian.delta(mu, points)
    assert ((values >= 0) & (values <= 1)).all()
    assert (np.diff(values) <= 1e-15).all()


# --- what is lost where epsilon is 0, or where losses underflow ----------------------------------------------


def test_a_delta_without_an_epsilon_is_charged_everywhere():
    """ApproxDp(0, delta) was taken for no release at all wherever it was composed, sampled or repeated."""
    lost = ApproxDp(0.0, 0.1)
    assert account(Composed(lost, Gaussian(1.0))).epsilon(1e-5) == math.inf
    assert account(Composed(lost, PureDp(1.0))).delta(1.0) >= 0.1
    assert account(Composed(lost, ApproxDp(0.0, 0.2))).delta(1.0) == pytest.approx(0.28, rel=1e-12)
    for scheme in (POI, WOR):
        assert account(Subsampled(lost, scheme, 0.5)).delta(1.0) >= 0.05
    ledger = Ledger(1.0, 1e-5)
    with pytest.raises(BudgetExceeded):
        ledger.spend(lost)


def test_losses_that_underflow_are_no_licence_for_any_number_of_them():
    """Total variations that cancel to 0 made 10^34 releases vanish; other methods answer for them now."""
    assert account(Repeated(TwoSidedGeometric(1e-17, 4), 10**34)).epsilon(1e-5) > 4
    assert account(Repeated(Subsampled(Gaussian(1e17), POI, 0.5, "replace-one"), 10**13)).delta(0.0) > 1e-12
    nothing = [Gaussian(math.inf), PureDp(0.0), Subsampled(Gaussian(math.inf), POI, 0.5)]
    nothing.append(Subsampled(PureDp(0.0), WOR, 0.1))
    assert all(account(Repeated(event, 10**6)).epsilon(0.0) == 0 for event in nothing)


def test_a_printed_delta_is_never_less_than_the_one_that_holds():
    delta = 1.0000004e-6
    text = str(replace(account(ApproxDp(1.0, delta)), asked_delta=delta))
    assert "1.0000004e-06" in text and "\n1e-06 " not in text


# --- large deltas: epsilon and delta are one answer ------------------------------------------------------


def _rarely_shown(noise):
    """100 steps of which each shows the record with probability 0.01, whatever the noise, if there is hardly any."""
    return Repeated(Subsampled(Gaussian(noise), POI, 0.01), 100)


def test_a_delta_above_that_at_epsilon_0_needs_no_epsilon():
    """Hardly any noise: the record is sampled at least once with probability 1 - 0.99^100 = 0.634."""
    for noise in (0.0, 0.03, 0.05):
        guarantee = account(_rarely_shown(noise))
        assert 1 - 0.99**100 <= guarantee.delta(0.0) <= (1 - 0.99**100) * (1 + 1e-6)
        assert guarantee.epsilon(0.9) == guarantee.epsilon(0.64) == 0 < guarantee.epsilon(0.63)
    assert account(_rarely_shown(0.0)).epsilon(0.63) == math.inf
    for event in (_rarely_shown(0.05), Composed(_rarely_shown(0.05), Laplace(5.0)), Repeated(Laplace(1.0), 5)):
        start = account(event).delta(0.0)
        assert account(event).epsilon(min(start * 1.0001, 0.9999)) == 0 < account(event).epsilon(start * 0.9)


def test_no_noise_where_sampling_alone_meets_the_budget():
    assert calibrate(_rarely_shown, 0.5, 0.9) == 0.0


def _distance(epsilons):
    """The total variation distance of binary randomised responses, enumerated."""
    p = q = np.ones(1)
    for epsilon in epsilons:
        truth = 1 / (1 + math.exp(-epsilon))
        p, q = np.outer(p, [truth, 1 - truth]).ravel(), np.outer(q, [1 - truth, truth]).ravel()
    return 0.5 * float(np.abs(p - q).sum())


def test_the_bound_on_the_total_variation_is_one():
    """Against enumerated outcomes, also for a random number of rounds, of which the output shows how many there were.

    It is below the sum of the distances, and the distance itself where only failures differ.
    """
    for epsilons in ([0.5] * 3, [2.0, 1.0, 0.1], [3.0] * 9, [1e-3] * 12):
        event = Composed(*map(RandomizedResponse, epsilons))
        (tree,) = directions(event, pld.dominating)
        assert _distance(epsilons) <= total_variation(tree) <= min(sum(map(math.tanh, np.divide(epsilons, 2))), 1.0)
    for rounds in (Geometric(0.3), Geometric(0.9), Poisson(3.0)):
        (tree,) = directions(RandomRounds(RandomizedResponse(1.0), rounds), pld.dominating)
        chances = [rounds.tail(k - 1) - rounds.tail(k) for k in range(1, 14)]
        exact = sum(chance * _distance([1.0] * k) for k, chance in enumerate(chances, 1))
        assert exact <= total_variation(tree) <= rounds.mean * math.tanh(0.5)
    (tree,) = directions(Composed(ApproxDp(0.0, 0.3), Repeated(ApproxDp(0.0, 0.1), 2)), pld.dominating)
    assert total_variation(tree) == pytest.approx(1 - 0.7 * 0.9**2, rel=1e-9)
    assert total_variation(tree) >= 1 - 0.7 * 0.9**2


@pytest.mark.parametrize("event", [Repeated(Laplace(0.0795), 10**7), Repeated(RandomizedResponse(3.0), 10**6)], ids=str)
def test_everything_is_lost_without_a_transform(event, monkeypatch):
    """Millions of large losses: Chernoff's inequality shows a delta of 1, where the law of their sum took 20 s."""

    def transform(*arguments):
        raise AssertionError("the law of the sum was computed")

    monkeypatch.setattr(Composition, "_tail", transform)
    guarantee = account(event)
    assert guarantee.advantage == guarantee.delta(7.0) == guarantee.bayes_success(0.5) == 1


def test_a_delta_of_1_is_one_to_the_last_bit():
    """Where delta is said to be 1 what is missing is below half a unit: against exact sums for responses."""
    for count in (10, 30, 60, 100, 200):
        event = Repeated(RandomizedResponse(2.0), count)
        with mpmath.workdps(60):
            lie = 1 / (1 + mpmath.exp(2))
            missing = 1 - mpmath.fsum(
                mpmath.binomial(count, j) * lie**j * (1 - lie) ** (count - j) * -mpmath.expm1(-2 * (count - 2 * j))
                for j in range(count // 2 + 1)
            )
        found = account(event, "pld").delta(0.0)
        assert 1 - found <= missing
        assert found < 1 or missing < 1e-3


# --- a batch of a batch: a divergence at thousands of orders, each by quadrature -----------------------------


@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_chords_between_orders_are_above_the_divergence(noise):
    """At orders that are not computed the bound is never below the divergence, and mostly close to it."""
    inner = Subsampled(Gaussian(noise), POI, 0.1, "replace-one")
    orders = np.arange(2.0, 4097.0)
    bound = rdp._by_chords(inner, orders)
    places = np.concatenate([np.arange(0, 64, 7), np.arange(64, 4095, 97)])
    exact = rdp.composed(inner, orders[places])
    assert np.all(bound[places] >= exact) and bound[places] == pytest.approx(exact, rel=1e-2)


def test_a_batch_of_a_batch_takes_few_quadratures(monkeypatch):
    """The theorem for batches needs every order up to 4096, which took a minute."""
    asked, original = [], sampling.poisson_replace_one_gaussian_rdp

    def counted(noise, rate, orders):
        asked.append(len(orders))
        return original(noise, rate, orders)

    monkeypatch.setattr(sampling, "poisson_replace_one_gaussian_rdp", counted)
    inner = Subsampled(Gaussian(0.51), POI, 0.1, "replace-one")
    event = Repeated(Subsampled(inner, WOR, 0.1), 10)
    found = account(event).epsilon(1e-5)
    assert sum(asked) < 1500
    # The same theorem at all orders up to 40, of which the best one is one, without chords.
    orders = np.arange(2.0, 41.0)
    direct = sampling.without_replacement_rdp(lambda a: rdp.composed(inner, a), math.inf, 0.1, orders)
    exact = rdp.to_epsilon(orders, 10 * direct, 1e-5)
    assert found <= exact * (1 + 1e-9)
    assert found >= 0.99 * exact


# --- the best of several runs, with much noise ---------------------------------------------------------------


def _best(noise):
    return BestOf(Gaussian(noise), TruncatedNegativeBinomial(1.0, 0.1))


def test_the_best_of_several_runs_has_no_floor():
    """Ten runs on average: the distance is at most ten times that of one run, Phi(mu/2) - Phi(-mu/2)."""
    for noise in (1e4, 1e6, 1e12):
        guarantee, once = account(_best(noise)), 10 * math.erf(0.5 / noise / math.sqrt(2))
        assert guarantee.epsilon(1e-3) == 0 and once <= guarantee.delta(0.0) <= once * (1 + 1e-9)
        assert guarantee.epsilon(0.9 * once) > 0
    noise = calibrate(_best, 0.001, 0.001)
    assert noise == pytest.approx(10 / math.sqrt(2 * math.pi) / 0.001, rel=1e-3)
    assert account(_best(noise)).epsilon(0.001) <= 0.001
    with pytest.raises(InvalidValue, match="must be reachable.*Some bounds stay above 0.*larger epsilon or delta"):
        calibrate(_best, 1e-5, 1e-15)


@pytest.mark.parametrize("noise", [1.0, 5.0, 30.0, 300.0, 1e5])
def test_what_the_best_of_several_runs_shows_is_within_the_bound(noise):
    """Whether the best run is above x, exactly: E[z^N] = 0.1 z / (1 - 0.9 z) for the number N of runs."""

    def none(x):
        share = mpmath.ncdf(x)
        return share / 10 / (1 - 9 * share / 10)

    for event in (_best(noise), Repeated(_best(noise), 3), Composed(_best(noise), PureDp(0.1))):
        guarantee = account(event)
        for x in (-1.0, 0.0, 1.0, 1.5, 2.5):
            with mpmath.workdps(40):
                shown = none(mpmath.mpf(x)) - none(mpmath.mpf(x) - 1 / mpmath.mpf(noise))
            assert guarantee.delta(0.0) >= shown
        for delta in (1e-9, 1e-3, 0.1):
            lower, upper = guarantee.bounds(delta)
            assert lower <= upper


def test_the_distance_of_runs_in_rounds_adds_up():
    runs = account(_best(1e5)).delta(0.0)
    for event, times in ((Repeated(_best(1e5), 7), 7), (RandomRounds(_best(1e5), Geometric(0.5)), Geometric(0.5).mean)):
        assert runs * times <= account(event).delta(0.0) <= runs * times * (1 + 1e-6)
