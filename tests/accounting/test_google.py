"""The bridge to dp_accounting, our numbers against its numbers, and its three known gaps."""

from __future__ import annotations

import math

import pytest

from dptoolkit.accounting import (
    ApproxDp,
    BestOf,
    Composed,
    ExponentialMechanism,
    Gaussian,
    Geometric,
    Laplace,
    Logarithmic,
    NoisyMax,
    ObjectivePerturbation,
    Poisson,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    Subsampled,
    TruncatedNegativeBinomial,
    TwoSidedGeometric,
    ZCdp,
    _google_events,
    account,
    google,
)
from dptoolkit.errors import DpToolkitError, UnsupportedEvent

dp_accounting = pytest.importorskip("dp_accounting", reason="the bridge needs dp-accounting")
from dp_accounting import NeighboringRelation, dp_event  # noqa: E402
from dp_accounting.pld import PLDAccountant  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402

POI, WOR = "poisson", "without-replacement"
ROUND_TRIPS = [
    Gaussian(2.0), Laplace(3.0), TwoSidedGeometric(0.5, 4), RandomizedResponse(0.7, 3), ZCdp(0.1), Gaussian(0.0),
    Repeated(Gaussian(2.0), 7), Composed(Gaussian(2.0), Repeated(Laplace(1.0), 3)),
    Subsampled(Gaussian(1.0), POI, 0.1), Repeated(Subsampled(Gaussian(1.0), POI, 0.1, "replace-one"), 9),
    Subsampled(Laplace(1.0), POI, 0.1), Subsampled(Composed(Gaussian(1.0), Repeated(Gaussian(2.0), 3)), POI, 0.1),
    Laplace(math.inf), RandomizedResponse(30.0), BestOf(Gaussian(3.0), Poisson(4.0)),
    BestOf(Gaussian(3.0), Logarithmic(0.25)),
]  # fmt: skip


@pytest.mark.parametrize("event", ROUND_TRIPS, ids=str)
def test_events_come_back_as_they_went(event):
    accountant = "rdp" if isinstance(event, (ZCdp, BestOf)) else "pld"
    back = google.from_google(google.to_google(event, accountant), google.relation(event, accountant))
    ours, again = account(event).epsilon(1e-5), account(back).epsilon(1e-5)
    assert again == pytest.approx(ours, rel=1e-6)


GRID = [
    Repeated(Gaussian(3.0), 5), Repeated(Laplace(4.0), 20), Repeated(TwoSidedGeometric(0.3, 2), 10),
    Repeated(PureDp(0.2), 20), Repeated(Subsampled(Gaussian(0.8), POI, 0.01), 100),
    Repeated(Subsampled(Gaussian(1.4146), POI, 0.01), 1000), Repeated(Subsampled(Gaussian(4.0), POI, 0.2), 50),
    Repeated(Subsampled(Gaussian(0.7), POI, 0.02, "replace-one"), 200), Subsampled(Gaussian(0.5), POI, 0.1),
    Repeated(Subsampled(Laplace(1.0), POI, 0.05), 100), Repeated(TwoSidedGeometric(1.0, 50), 3),
    Composed(Repeated(Gaussian(5.0), 3), Repeated(Laplace(6.0), 4), Repeated(Subsampled(Gaussian(1.0), POI, 0.05), 30)),
]  # fmt: skip


@pytest.mark.every(5)
@pytest.mark.parametrize("event", GRID, ids=str)
@pytest.mark.parametrize("delta", [1e-4, 1e-7])
def test_our_epsilon_is_within_a_part_in_a_thousand_of_their_pld_or_below_it(event, delta):
    theirs = google.epsilon(event, delta, "pld", value_discretization_interval=1e-4)
    ours = account(event, "pld").epsilon(delta)
    assert ours <= theirs * 1.001
    # Below is fine as long as it is not below what neighbours reach, but for the round-off of exact methods.
    assert account(event).bounds(delta).lower <= ours


@pytest.mark.parametrize("event", [GRID[0], Repeated(Subsampled(Gaussian(2.0), POI, 0.05), 100)], ids=str)
def test_our_rdp_is_no_looser_than_theirs(event):
    assert account(event, "rdp").epsilon(1e-6) <= google.epsilon(event, 1e-6, "rdp") * 1.001


def test_selections_and_responses_are_counted_by_the_bridge():
    thousand = Repeated(ExponentialMechanism(0.1), 1000)
    assert google.epsilon(thousand, 1e-6, "rdp") == pytest.approx(8.85, abs=0.02)
    hundred = Repeated(RandomizedResponse(0.1), 100)
    exact = account(Repeated(PureDp(0.1), 100)).epsilon(1e-6)
    assert google.epsilon(hundred, 1e-6, "pld") == pytest.approx(exact, rel=2e-3)


REFUSED = [
    (ApproxDp(1.0, 1e-6), "pld"), (RandomRounds(Gaussian(1.0), Geometric(0.5)), "pld"), (ZCdp(0.1), "pld"),
    (ObjectivePerturbation(4.0, 0.2), "pld"), (ObjectivePerturbation(4.0, 0.2, True, "zero-out"), "rdp"),
    (Subsampled(Gaussian(1.0), WOR, 0.1), "pld"), (Subsampled(Gaussian(1.0), WOR, 0.1), "rdp"),
    (Subsampled(Gaussian(1.0), POI, 0.1, "replace-one"), "rdp"), (ExponentialMechanism(0.1), "pld"),
    (Repeated(NoisyMax(0.1), 10**6), "pld"), (Subsampled(Laplace(1.0), POI, 0.1), "rdp"),
    (Subsampled(PureDp(1.0), POI, 0.1), "rdp"), (Subsampled(Laplace(1.0), POI, 0.1, "replace-one"), "pld"),
    (BestOf(Gaussian(1.0), Poisson(0.5)), "rdp"), (BestOf(Gaussian(1.0), TruncatedNegativeBinomial(-0.5, 0.1)), "rdp"),
    (Composed(PureDp(0.1), Subsampled(Gaussian(1.0), POI, 0.1)), "pld"), (Composed(PureDp(0.1), Laplace(1.0)), "pld"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "accountant"), REFUSED, ids=str)
def test_what_cannot_be_mapped_soundly_is_refused(event, accountant):
    with pytest.raises(UnsupportedEvent, match="must"):
        google.to_google(event, accountant)


def test_sampled_and_unsampled_releases_may_be_mixed_under_replace_one():
    mixed = Composed(Gaussian(2.0), Repeated(Subsampled(Gaussian(1.0), POI, 0.1, "replace-one"), 5), PureDp(0.1))
    assert account(mixed).epsilon(1e-5) == pytest.approx(google.epsilon(mixed, 1e-5), rel=1e-3)


def test_their_multiplier_is_per_norm_bound():
    record = dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0))
    assert google.from_google(record) == Subsampled(Gaussian(2.0), POI, 0.1)
    assert google.from_google(record, NeighboringRelation.REPLACE_ONE) == Subsampled(
        Gaussian(1.0), POI, 0.1, "replace-one"
    )


@pytest.mark.parametrize("record", [dp_event.UnsupportedDpEvent(), dp_event.DpEvent()], ids=str)
def test_unknown_records_are_refused(record):
    with pytest.raises(UnsupportedEvent, match="must"):
        google.from_google(record)


# --- what dp_accounting 0.6 gets wrong: when one of these passes, the detour above can go -------------


@pytest.mark.skipif(
    not hasattr(dp_event, "ExponentialMechanismDpEvent"), reason="this version has no ExponentialMechanismDpEvent"
)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="their RDP accountant forgets the count of selections")
def test_upstream_rdp_counts_selections():
    event = dp_event.SelfComposedDpEvent(dp_event.ExponentialMechanismDpEvent(0.1), 1000)
    assert RdpAccountant().compose(event).get_epsilon(1e-6) > 1.0


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="their PLD accountant forgets the count")
def test_upstream_pld_counts_responses():
    event = dp_event.RandomizedResponseDpEvent(0.5, 2)
    once = PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(event).get_epsilon(1e-6)
    many = PLDAccountant(NeighboringRelation.REPLACE_ONE).compose(event, 100).get_epsilon(1e-6)
    assert many > 2 * once


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="their RDP accountant ignores replace-one")
def test_upstream_rdp_knows_replace_one():
    gaussian = dp_event.GaussianDpEvent(2.0)
    kept, replaced = (
        RdpAccountant(neighboring_relation=r).compose(gaussian).get_epsilon(1e-5)
        for r in (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE)
    )
    assert replaced > 1.5 * kept


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match="pip install dptoolkit"):
        google.to_google(Gaussian(1.0))


def test_infinite_noise_is_nothing():
    assert isinstance(google.to_google(Gaussian(math.inf)), dp_event.NoOpDpEvent)


@pytest.mark.parametrize("shape", [-0.5, 0.0, 1.0, 3.0])
def test_numbers_of_runs_are_never_clipped(shape):
    """A mean of 1e15 became 3.6e10. More runs give away more, so the mean is reached or refused."""
    for mean in (1.0, 1.5, 1e6, 1e15, 1e60):
        assert mean <= _google_events.runs(mean, shape).mean <= mean * (1 + 1e-9)
    for mean in (0.5, 1e306, math.inf):
        with pytest.raises(DpToolkitError, match="mean"):
            _google_events.runs(mean, shape)
