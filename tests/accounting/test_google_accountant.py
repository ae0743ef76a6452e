"""google.Accountant in the place of dp_accounting's own accountants: their rules, their values, and where they fail."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest

from dptoolkit.accounting import Gaussian, Repeated, Subsampled, ZCdp, account, google
from dptoolkit.errors import InvalidValue

dp_accounting = pytest.importorskip("dp_accounting", reason="the accountant needs dp-accounting")
from dp_accounting import NeighboringRelation, dp_event, privacy_accountant  # noqa: E402
from dp_accounting.pld import PLDAccountant  # noqa: E402
from dp_accounting.rdp import RdpAccountant  # noqa: E402

abstract = pytest.importorskip("dp_accounting.privacy_accountant_test", reason="this version ships no tests")

ADD, ONE, SPECIAL = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)
G, L = dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent
POI = dp_event.PoissonSampledDpEvent
MANY = dp_event.SelfComposedDpEvent


def later(monkeypatch: pytest.MonkeyPatch, name: str, **fields: object):
    """An event that only newer versions of dp_accounting have; where it is missing, one of the same name and fields."""
    import attr

    if not hasattr(dp_event, name):
        kind = attr.make_class(name, list(fields), bases=(dp_event.DpEvent,), frozen=True)
        monkeypatch.setattr(dp_event, name, kind, raising=False)
    return getattr(dp_event, name)(**fields)


class TestAbstract(abstract.PrivacyAccountantTest):
    """dp_accounting's own tests of any accountant."""

    def _make_test_accountants(self):
        return [google.Accountant(relation) for relation in NeighboringRelation]


# (event, count), relation, delta, epsilon: the values of dp_accounting's PLD tests; exact ones with a small tolerance.
PLD_VALUES = [
    ([(G(math.sqrt(3)), 1), (G(math.sqrt(3)), 2)], ADD, 0.126936, 1.0),
    ([(POI(0.2, G(0.5)), 1), (POI(0.2, G(0.5)), 2)], ADD, 0.15594, 1.0),
    ([(MANY(POI(0.2, G(0.5)), 3), 1)], ADD, 0.15594, 1.0),
    ([(L(1.0), 3), (L(2.0), 2)], ADD, 1e-14, 4.0),
    ([(POI(0.2, L(0.5)), 1), (POI(0.2, L(0.5)), 2)], ADD, 1e-14, 2.46964),
    ([(dp_event.DiscreteLaplaceDpEvent(1, 1), 3), (dp_event.DiscreteLaplaceDpEvent(0.5, 1), 2)], ADD, 0.0, 4.0),
    ([(dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.2, 0.6, 0.2]), 3),
      (dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 2.0, 3.0], [0.33, 0.34, 0.33]), 2)], ADD, 1e-6, 17.193115),
    ([(dp_event.RandomizedResponseDpEvent(4 / (3 + math.e), 4), 1)], ONE, 0.0, 1.0),
    ([(dp_event.RandomizedResponseDpEvent((4 - math.e) / 3, 4), 1)], SPECIAL, 0.0, 1.0),
    ([(dp_event.RandomizedResponseDpEvent(math.exp(-1), 2), 1)], SPECIAL, 0.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("events", "relation", "delta", "epsilon"), PLD_VALUES, ids=str)
def test_values_of_their_pld_tests(events, relation, delta, epsilon):
    accountant = google.Accountant(relation)
    for event, count in events:
        assert accountant.compose(event, count) is accountant
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, abs=1e-3)
    assert accountant.get_delta(accountant.get_epsilon(delta)) <= delta


def test_their_value_for_truncated_batches_is_not_exceeded():
    """Theirs is 17.904330: they bound a shift of two norm bounds by one of four."""
    accountant = google.Accountant()
    for records, count in ((4, 3), (3, 2)):
        accountant.compose(dp_event.TruncatedSubsampledGaussianDpEvent(records, 0.5, 2, 1.0), count)
    assert 17 < accountant.get_epsilon(1e-6) < 17.904330
    assert accountant.guarantee.bounds(1e-6).lower > 7


@pytest.mark.parametrize(("multiplier", "most"), [(1.13, 19.74), (8.83, 2.04)])
def test_trees_are_exact(multiplier, most):
    """Theirs are 19.74 and 2.04 by a Renyi divergence; eleven Gaussians of one record are one, exactly."""
    accountant = google.Accountant(SPECIAL).compose(dp_event.SingleEpochTreeAggregationDpEvent(multiplier, 1600))
    assert accountant.get_epsilon(1e-6) < most
    assert accountant.get_epsilon(1e-6) == account(Repeated(Gaussian(multiplier), 11)).epsilon(1e-6)
    several = google.Accountant(SPECIAL).compose(dp_event.SingleEpochTreeAggregationDpEvent(multiplier, [10, 1600, 7]))
    assert several.get_epsilon(1e-6) == accountant.get_epsilon(1e-6)
    # 2^53 leaves: the logarithm of a float would round.
    deep = google.from_google(dp_event.SingleEpochTreeAggregationDpEvent(1.0, 2**53), SPECIAL)
    assert deep == Repeated(Gaussian(1.0), 54)


RDP_VALUES = [
    MANY(POI(0.01, G(2.5)), 50), dp_event.ComposedDpEvent([G(3.14159), G(1.61803)]), dp_event.ZCDpEvent(0.05, 0.02),
    POI(1.0, dp_event.ComposedDpEvent([G(2.71828), G(6.28319)])), dp_event.RepeatAndSelectDpEvent(G(5.0), 4.0, 1.0),
    dp_event.RepeatAndSelectDpEvent(G(5.0), 4.0, math.inf), MANY(L(8.0), 30),
]  # fmt: skip


@pytest.mark.parametrize("event", RDP_VALUES, ids=str)
def test_no_looser_than_their_rdp(event):
    theirs = RdpAccountant().compose(event).get_epsilon(1e-6)
    assert google.Accountant().compose(event).get_epsilon(1e-6) <= theirs * 1.001


def test_supports():
    composed = dp_event.ComposedDpEvent([G(1.0), G(2.0)])
    without = dp_event.SampledWithoutReplacementDpEvent(1000, 10, composed)
    response = dp_event.RandomizedResponseDpEvent(0.3, 15)
    tree, mixture = dp_event.SingleEpochTreeAggregationDpEvent(1.0, 4), dp_event.MixtureOfGaussiansDpEvent(1, [1], [1])
    table = [
        (G(1.0), {ADD, ONE, SPECIAL}), (L(1.0), {ADD, ONE, SPECIAL}),
        (dp_event.ZCDpEvent(1.0, 2.0), {ADD, ONE, SPECIAL}), (MANY(composed, 3), {ADD, ONE, SPECIAL}),
        (POI(0.1, composed), {ADD, ONE, SPECIAL}),
        (POI(0.1, L(1.0)), {ADD, ONE, SPECIAL}), (without, {ONE}), (response, {ONE, SPECIAL}), (tree, {ONE, SPECIAL}),
        (mixture, {ADD, SPECIAL}), (dp_event.DiscreteLaplaceDpEvent(1.0, 2), {ADD, ONE, SPECIAL}),
        (dp_event.TruncatedSubsampledGaussianDpEvent(9, 0.5, 2, 1.0), {ADD, ONE, SPECIAL}),
        (dp_event.SampledWithReplacementDpEvent(1000, 10, G(1.0)), set()), (G(-1.0), set()), (G(math.nan), set()),
        (POI(1.5, G(1.0)), set()), (POI(0.1, dp_event.UnsupportedDpEvent()), set()),
        (dp_event.SampledWithoutReplacementDpEvent(10, 11, G(1.0)), set()), (dp_event.DpEvent(), set()),
    ]  # fmt: skip
    for event, relations in table:
        for relation in NeighboringRelation:
            accountant = google.Accountant(relation)
            assert accountant.supports(event) == (relation in relations), (event, relation)
            if relation not in relations:
                with pytest.raises(privacy_accountant.UnsupportedEventError, match="must"):
                    accountant.compose(event)
                assert accountant.get_epsilon(0) == 0, "a refused event was counted"


def test_what_sampling_changes_is_refused_inside_of_it():
    """What is stated for all records, or for a replaced record, does not hold for a sample or for a record left out.

    Truncated batches: of 1,000 records about 10 are left by a rate of 0.01, of which a batch of 10 at rate 0.3 is never
    cut down. The record is in it with probability 0.003, where 1,000 records to cut down would make it 0.0001.
    Responses: a record that is not sampled gives none, so that sampling hides nothing: delta(1) is 0.0214, not 0.
    """
    truncated = dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.3, 10, 0.1)
    response, tree = dp_event.RandomizedResponseDpEvent(0.5, 3), dp_event.SingleEpochTreeAggregationDpEvent(1.0, 2)
    zcdp, batch = dp_event.ZCDpEvent(0.1), dp_event.SampledWithoutReplacementDpEvent
    table = [
        (POI(0.01, truncated), set()), (POI(0.1, MANY(truncated, 1)), set()), (batch(1000, 10, truncated), set()),
        (POI(0.1, response), set()), (POI(0.1, tree), set()), (POI(0.1, dp_event.ComposedDpEvent([tree])), set()),
        (batch(100, 10, tree), set()), (batch(100, 10, response), {ONE}), (batch(100, 10, zcdp), {ONE}),
        (POI(0.1, batch(100, 10, G(1.0))), set()), (batch(100, 10, batch(100, 5, G(1.0))), set()),
        (batch(100, 10, batch(10, 5, G(1.0))), {ONE}), (POI(0.1, zcdp), {ADD}),
    ]  # fmt: skip
    for event, relations in table:
        found = {relation for relation in NeighboringRelation if google.Accountant(relation).supports(event)}
        assert found == relations, event


def test_events_that_no_method_takes_together_are_refused():
    """A sampled (epsilon, delta) has a privacy-loss distribution only, and zCDP only a Renyi divergence."""
    from dptoolkit.accounting import ApproxDp, _google_accountant

    assert _google_accountant._ways(Subsampled(ApproxDp(1.0, 1e-6), "poisson", 0.1)) == {"pld"}
    assert _google_accountant._ways(ZCdp(0.1)) == {"rdp"}
    accountant = google.Accountant().compose(dp_event.ZCDpEvent(0.1))
    accountant._counts[Subsampled(ApproxDp(1.0, 1e-6), "poisson", 0.1)] = 1
    assert not accountant.supports(G(1.0))


def test_newer_events(monkeypatch):
    """(epsilon, delta), selections, permute-and-flip and the discrete Gaussian, which 0.6 does not have."""
    make = partial(later, monkeypatch)
    both = google.Accountant()
    both.compose(make("EpsilonDeltaDpEvent", epsilon=1.0, delta=0.1))
    both.compose(make("EpsilonDeltaDpEvent", epsilon=2.0, delta=0.2))
    assert both.get_delta(3.0) == pytest.approx(0.28) and both.get_epsilon(0.28 + 1e-9) == pytest.approx(3.0)
    assert both.get_true_positive_rates(0.1) == pytest.approx(0.91938, abs=1e-3)
    assert both.get_gdp_parameter_estimate() == math.inf
    pure = google.Accountant()
    pure.compose(make("EpsilonDeltaDpEvent", epsilon=1.0, delta=0.0))
    pure.compose(make("EpsilonDeltaDpEvent", epsilon=2.0, delta=0.0))
    assert pure.get_delta(3.0) == 0 and pure.get_epsilon(0.0) == pytest.approx(3.0, rel=1e-15)
    assert pure.get_true_positive_rates(0.1) == pytest.approx(0.8286, abs=1e-3)
    rates = np.geomspace(0.005, 0.5, 20_000)
    assert pure.get_gdp_parameter_estimate(rates) == pytest.approx(2.358, abs=1e-3)
    nothing = google.Accountant().compose(make("EpsilonDeltaDpEvent", epsilon=0.0, delta=0.0))
    assert nothing.get_epsilon(0) == nothing.get_epsilon(1) == 0
    everything = google.Accountant().compose(make("EpsilonDeltaDpEvent", epsilon=1.0, delta=1.0))
    assert everything.get_epsilon(0.99) == math.inf and everything.get_delta(math.inf) == 1
    selections = google.Accountant().compose(make("ExponentialMechanismDpEvent", epsilon=0.1), 1000)
    assert selections.get_epsilon(1e-6) == pytest.approx(8.85, abs=0.2), "the count of selections is lost"
    flips = google.Accountant().compose(make("PermuteAndFlipDpEvent", epsilon=0.1), 10)
    assert flips.get_epsilon(0) == pytest.approx(1.0)
    discrete = {
        d: google.from_google(make("DiscreteGaussianDpEvent", sigma=10.0, sensitivity=1.5, dimension=d), r)
        for d, r in ((1, ADD), (None, ONE))
    }
    assert (discrete[1].sigma, discrete[1].sensitivity) == (10.0, 1)
    assert discrete[None].rho == pytest.approx(0.5 * 0.3**2)


ZERO_NOISE = [
    G(0), L(0), dp_event.DiscreteLaplaceDpEvent(0, 1), dp_event.MixtureOfGaussiansDpEvent(0, [1, 2], [0.5, 0.5]),
    dp_event.NonPrivateDpEvent(),
]  # fmt: skip
NOTHING = [
    POI(0, G(1)), POI(0, L(0)), dp_event.MixtureOfGaussiansDpEvent(0, [0], [1.0]), dp_event.NoOpDpEvent(),
    dp_event.TruncatedSubsampledGaussianDpEvent(9, 0.5, 0, 1.0),
    dp_event.TruncatedSubsampledGaussianDpEvent(9, 0, 2, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("event", ZERO_NOISE, ids=str)
def test_no_noise(event):
    accountant = google.Accountant().compose(event)
    assert accountant.get_delta(1.0) == 1 and accountant.get_epsilon(0.01) == math.inf
    assert accountant.get_true_positive_rates(0.1) == 1 and accountant.get_gdp_parameter_estimate() == math.inf


@pytest.mark.parametrize("event", NOTHING, ids=str)
def test_nothing_released(event):
    accountant = google.Accountant().compose(event)
    assert accountant.get_delta(0) == 0 and accountant.get_epsilon(0) == 0
    assert accountant.get_true_positive_rates(0.5) == 0.5
    assert accountant.get_gdp_parameter_estimate() == pytest.approx(0, abs=1e-9)


def test_sampled_without_noise_is_theirs_as_far_as_it_is_true():
    """They call a Poisson sample without noise not private at all; it gives itself away when it is sampled."""
    accountant = google.Accountant().compose(POI(0.1, G(0)))
    assert accountant.get_epsilon(0.05) == math.inf and accountant.get_delta(math.inf) == pytest.approx(0.1)
    assert accountant.get_epsilon(0.2) == 0


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_counts_that_are_none_are_refused(count):
    accountant = google.Accountant()
    with pytest.raises(ValueError, match="count"):
        accountant.compose(G(1.0), count)
    with pytest.raises(TypeError, match="DpEvent"):
        accountant.compose(Gaussian(1.0))
    assert accountant.get_epsilon(0) == 0 and isinstance(accountant.ledger, dp_event.NoOpDpEvent)


def test_gaussian_rates_are_exact():
    accountant = google.Accountant().compose(G(math.sqrt(3)), 3)
    assert accountant.get_true_positive_rates(0.1) == pytest.approx(0.38914, abs=1e-5)
    assert accountant.get_true_positive_rates(np.array([0.1, 0.2])).shape == (2,)
    few = accountant.get_true_positive_rates(0.1, deltas=np.array([1e-3, 1e-2, 0.1]))
    assert 0.38914 < few < 0.5
    assert accountant.get_gdp_parameter_estimate() == pytest.approx(1.0)
    by_rates = accountant.get_gdp_parameter_estimate(deltas=np.geomspace(1e-12, 0.9, 60))
    assert 1 <= by_rates < 1.1


@pytest.mark.parametrize("deltas", [None, [1e-3]])
@pytest.mark.parametrize("rate", [2.0, -0.1, math.nan, [0.1, 1.5], "x"])
def test_rates_that_are_none_are_refused(rate, deltas):
    """With and without deltas, and whether or not the answer has a formula that needs no rates."""
    for event in (G(1.0), L(1.0)):
        accountant = google.Accountant().compose(event)
        for ask in (accountant.get_true_positive_rates, accountant.get_gdp_parameter_estimate):
            with pytest.raises(InvalidValue, match="false_positive_rates"):
                ask(rate, deltas)


@pytest.mark.parametrize("event", [G(1.0), L(1.0)], ids=str)
def test_an_estimate_needs_a_rate_up_to_one_half(event):
    accountant = google.Accountant().compose(event)
    for bad in ([0.9], [0.0], []):
        with pytest.raises(InvalidValue, match="false_positive_rates.*above 0 and up to 0.5"):
            accountant.get_gdp_parameter_estimate(bad)
    some = accountant.get_gdp_parameter_estimate([0.1])
    assert accountant.get_gdp_parameter_estimate([0.0, 0.1, 0.9]) == some > 0
    square = np.array([[0.1, 0.2], [0.3, 0.4]])
    for deltas in (None, [1e-3, 0.1]):
        rates = accountant.get_true_positive_rates(square, deltas)
        assert rates.shape == (2, 2) and rates[1, 0] == accountant.get_true_positive_rates(0.3, deltas)


def test_negative_and_infinite_arguments():
    accountant = google.Accountant().compose(G(1.0))
    theirs = PLDAccountant().compose(G(1.0))
    assert accountant.get_delta(-1.0) == pytest.approx(theirs.get_delta(-1.0), rel=1e-3)
    assert accountant.get_delta(math.inf) == 0 and accountant.get_delta(-math.inf) == 1
    for bad in (math.nan, -0.1, 1.1, None):
        with pytest.raises(InvalidValue, match="target_delta"):
            accountant.get_epsilon(bad)
    with pytest.raises(InvalidValue, match="target_epsilon"):
        accountant.get_delta(math.nan)


def test_it_is_copied_pickled_and_keeps_the_ledger():
    accountant = google.Accountant(ONE).compose(POI(0.1, G(2.0)), 3)
    again, other = pickle.loads(pickle.dumps(accountant)), copy.deepcopy(accountant)
    other.compose(G(1.0))
    assert again.get_epsilon(1e-5) == accountant.get_epsilon(1e-5) < other.get_epsilon(1e-5)
    assert accountant.ledger == MANY(POI(0.1, G(2.0)), 3) and accountant.neighboring_relation is ONE
    assert accountant.guarantee.event.events[0].event == Subsampled(Gaussian(1.0), "poisson", 0.1, "replace-one")


# --- where theirs is too small: each has the number that they report (dp_accounting 0.6.0) --------------


@pytest.mark.parametrize(("event", "count", "theirs"), [
    (G(2.0), 1, 2.4191), (L(4.0), 10, 2.4990),
    (dp_event.SampledWithoutReplacementDpEvent(1000, 10, G(2.0)), 300, 0.8732),
], ids=str)  # fmt: skip
def test_replacing_a_record_doubles_the_sensitivity(event, count, theirs):
    """Their RDP accountant ignores the relation; what it says is below what known neighbours attain."""
    found = RdpAccountant(neighboring_relation=ONE).compose(event, count).get_epsilon(1e-6)
    if found == pytest.approx(theirs, abs=1e-3):
        ours = google.Accountant(ONE).compose(event, count).guarantee.bounds(1e-6)
        assert ours.lower > 1.4 * found
    else:
        assert found > theirs, "a newer version is looser or right; the docs' table names 0.6.0"


def test_responses_are_counted():
    """Their PLD accountant counts a repeated randomised response once."""
    event = dp_event.RandomizedResponseDpEvent(0.5, 2)
    theirs = PLDAccountant(ONE).compose(event, 100).get_epsilon(1e-6)
    assert google.Accountant(ONE).compose(event, 100).get_epsilon(1e-6) > 10 * theirs
