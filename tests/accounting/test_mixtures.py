"""Mixtures of Gaussians and truncated Poisson batches, against integrals and against explicit neighbours."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import binom

from dptoolkit.accounting import (
    Composed,
    Gaussian,
    MixtureOfGaussians,
    Repeated,
    SampledGroup,
    ShiftedZCdp,
    Subsampled,
    TruncatedPoisson,
    ZCdp,
    account,
    mixtures,
    sampling,
    truncation,
)
from dptoolkit.accounting.events import from_dict
from dptoolkit.accounting.rules import rules_of
from dptoolkit.accounting.structure import scaled
from dptoolkit.errors import InvalidValue, UnsupportedEvent

LOSSES = np.array([0.0, 0.05, 0.3, 1.0, 2.5])
GRID = np.linspace(-30, 30, 60_001)


def divergence(p, q, x):
    """H_(e^x) of two mixtures of unit Gaussians, given as (weights, centres), by a fine sum over a grid."""
    density = [sum(w * np.exp(-0.5 * (GRID - c) ** 2) for w, c in zip(*m, strict=True)) for m in (p, q)]
    return np.maximum(density[0] - math.exp(x) * density[1], 0).sum() * (GRID[1] - GRID[0]) / math.sqrt(2 * math.pi)


MIXTURES = [
    ((0.0, 1.0, 2.0), (0.2, 0.6, 0.2)), ((1.0, 3.0), (0.5, 0.5)), ((0.0, 0.1, 5.0), (0.9, 0.0999, 1e-4)),
    ((0.0, 2.0), (0.3, 0.7)), ((2.0,), (1.0,)), ((0.5, 0.5, 0.0), (0.1, 0.2, 0.7)),
]  # fmt: skip


@pytest.mark.parametrize(("shifts", "chances"), MIXTURES, ids=str)
def test_mixtures_are_exact_in_both_orders(shifts, chances):
    pair = mixtures.gaussian_mixture(np.array(shifts), np.array(chances))
    for x in LOSSES:
        p, q = (chances, shifts), ((1.0,), (0.0,))
        for curve, exact in ((pair.above, divergence(p, q, x)), (pair.below, divergence(q, p, x))):
            value = float(curve(np.array([x]))[0])
            assert value == pytest.approx(exact, rel=1e-6, abs=1e-9)


def test_mixtures_that_have_another_name():
    group = account(Repeated(SampledGroup(2.0, 0.1, 2), 20))
    same = account(Repeated(MixtureOfGaussians(2.0, (0, 1, 2), (0.81, 0.18, 0.01)), 20))
    poisson, again = Subsampled(Gaussian(2.0), "poisson", 0.3), MixtureOfGaussians(4.0, (2, 0), (0.3, 0.7))
    for one, other in ((group, same), (account(poisson), account(again)),
                       (account(Gaussian(2.0)), account(MixtureOfGaussians(2.0, (1,), (1,))))):  # fmt: skip
        assert other.epsilon(1e-6) == pytest.approx(one.epsilon(1e-6), rel=2e-4)
    assert account(MixtureOfGaussians(1.0, (0.0,), (1.0,))).epsilon(0) == 0
    assert account(MixtureOfGaussians(0.0, (0.0, 1.0), (0.9, 0.1))).delta(50.0) == pytest.approx(0.1)
    assert account(MixtureOfGaussians(math.inf, (1.0,), (1.0,))).epsilon(0) == 0
    assert account(MixtureOfGaussians(1e-200, (0.0, 1.0), (0.9, 0.1))).delta(50.0) == pytest.approx(0.1)
    assert account(MixtureOfGaussians(1e-3, (1.0, 2.0), (0.5, 0.5))).epsilon(1e-6) > 1e5


@pytest.mark.parametrize(
    ("shifts", "chances"),
    [
        ((), ()),
        ((1.0,), (0.5,)),
        ((1.0, 2.0), (1.0,)),
        ((-1.0,), (1.0,)),
        ((math.inf,), (1.0,)),
        ((math.nan,), (1.0,)),
        ((1.0,), (1.5,)),
    ],
)
def test_mixtures_that_are_none_are_refused(shifts, chances):
    with pytest.raises(InvalidValue, match="sensitivities|probabilities"):
        MixtureOfGaussians(1.0, shifts, chances)


# --- truncated batches: explicit neighbours in one dimension, every sample and every choice listed --------


def batch_law(records, rate, size):
    """(probability, batch) of a Poisson sample of which a uniform choice keeps ``size``."""
    for chosen in itertools.product((False, True), repeat=records):
        sample = [i for i, c in enumerate(chosen) if c]
        chance = rate ** len(sample) * (1 - rate) ** (records - len(sample))
        kept = list(itertools.combinations(sample, min(size, len(sample))))
        for batch in kept:
            yield chance / len(kept), batch


def outputs(values, rate, size):
    """The mixture of Gaussians that a data set's batch sums lead to."""
    centres: dict[float, float] = {}
    for chance, batch in batch_law(len(values), rate, size):
        total = math.fsum(values[i] for i in batch)
        centres[total] = centres.get(total, 0.0) + chance
    return list(centres.values()), list(centres)


NEIGHBOURS = {
    # Norm bound 1: absent, contributing nothing, or replaced; with others on the opposite side, on the same side, at 0.
    "zero-out": [([1, *others], swap) for others in ([-1, -1, -1], [1, 1, 1], [0, 0, 0], [-1, 0.5, 1])
                 for swap in ([*others], [0, *others])],
    "replace-one": [([1, *others], [-1, *others]) for others in ([-1, -1, -1], [1, 1, 1], [0, 0, 0], [-1, 0.5, 1])],
}  # fmt: skip


@pytest.mark.parametrize("adjacency", list(NEIGHBOURS))
@pytest.mark.parametrize(("rate", "size"), [(0.5, 2), (0.9, 1), (1.0, 2), (0.3, 3), (0.2, 4)])
@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_truncated_batches_dominate_explicit_neighbours(adjacency, rate, size, mu):
    """mu: norm bound over noise. Our multiplier is per sensitivity: two norm bounds under replace-one."""
    z = 1 / mu if adjacency == "zero-out" else 0.5 / mu
    own = rules_of(event := TruncatedPoisson(z, rate, 4, size, adjacency))
    bound, floor = own.dominating(event), own.attained(event)
    reached = np.zeros(len(LOSSES))
    for first, second in NEIGHBOURS[adjacency]:
        (w, c), (v, d) = outputs(first, rate, size), outputs(second, rate, size)
        p, q = (w, [mu * x for x in c]), (v, [mu * x for x in d])
        for order in ((p, q), (q, p)):
            exact = np.array([divergence(*order, x) for x in LOSSES])
            assert np.all(exact <= np.maximum(bound.above(LOSSES), bound.below(LOSSES)) * (1 + 1e-6) + 1e-8)
            reached = np.maximum(reached, exact)
    assert np.all(np.maximum(floor.above(LOSSES), floor.below(LOSSES)) <= reached * (1 + 1e-6) + 1e-8)


def test_a_truncation_that_moves_one_norm_bound_only_is_refuted():
    """The broken twin: a full batch in which the record pushes another one out moves by two norm bounds."""
    (w, c), (v, d) = outputs([1, -1, -1, -1], 1.0, 2), outputs([-1, -1, -1], 1.0, 2)
    cut = truncation.truncation(1.0, 4, 2)
    twin = sampling.replace_one(sampling.gaussian_pair(1.0), cut.rate)
    assert divergence((w, c), (v, d), 0.0) > float(twin.above(np.zeros(1))[0]) * 1.3


@settings(max_examples=60, deadline=None)
@given(records=st.integers(1, 400), size=st.integers(1, 60), rate=st.floats(1e-6, 1.0))
def test_truncation_probabilities(records, size, rate):
    cut = truncation.truncation(rate, records, size)
    k = np.arange(records)
    weights = binom.pmf(k, records - 1, rate)
    full = weights[k >= size].sum()
    assert cut.probability >= full * (1 - 1e-9) and 0 <= cut.rate <= rate
    assert cut.probability == pytest.approx(full, rel=1e-6, abs=1e-15)
    if full > 1e-12:
        assert cut.rate == pytest.approx(rate * (weights * size / (k + 1))[k >= size].sum() / full, rel=1e-6)
    kept = rate * (weights * np.minimum(1, size / (k + 1))).sum()
    assert truncation.kept_rate(rate, records, size) <= kept * (1 + 1e-9)


def test_truncation_that_never_happens_is_poisson_sampling():
    poisson = account(Repeated(Subsampled(Gaussian(1.0), "poisson", 0.01), 100))
    for size in (200, 10_001):
        rare = account(Repeated(TruncatedPoisson(1.0, 0.01, 10_000, size), 100))
        assert rare.epsilon(1e-6) == pytest.approx(poisson.epsilon(1e-6), rel=1e-3)
    replaced = account(Repeated(TruncatedPoisson(0.7, 0.02, 100, 100, "replace-one"), 50))
    poisson = account(Repeated(Subsampled(Gaussian(0.7), "poisson", 0.02, "replace-one"), 50))
    assert replaced.epsilon(1e-6) == pytest.approx(poisson.epsilon(1e-6), rel=1e-4)


def test_ends_of_truncation():
    assert account(TruncatedPoisson(1.0, 0.0, 10, 2)).epsilon(0) == 0
    assert account(TruncatedPoisson(math.inf, 0.5, 10, 2)).epsilon(0) == 0
    assert account(TruncatedPoisson(0.0, 0.5, 10, 2)).delta(50.0) == pytest.approx(0.5)
    assert account(TruncatedPoisson(0.0, 0.5, 10, 2)).bounds(0.01).lower <= math.inf
    assert account(TruncatedPoisson(1.0, 1.0, 0, 1)).epsilon(1e-5) > 4
    assert account(TruncatedPoisson(1.0, 1.0, 4, 9, "replace-one")).epsilon(1e-5) == pytest.approx(
        account(Gaussian(1.0)).epsilon(1e-5), rel=1e-6
    )
    assert account(TruncatedPoisson(1.0, 1e-9, 10**9, 10**6)).epsilon(1e-6) == 0
    assert math.isfinite(account(TruncatedPoisson(1.0, 0.5, 10**9, 10**6)).epsilon(1e-6))


EVENTS = [
    MixtureOfGaussians(2.0, (0.0, 1.0, 3.0), (0.7, 0.2, 0.1)),
    TruncatedPoisson(2.0, 0.3, 20, 5),
    TruncatedPoisson(1.0, 0.3, 20, 5, "replace-one"),
    ShiftedZCdp(0.05, 0.01),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_json_order_and_counts(event):
    assert from_dict(json.loads(json.dumps(event.to_dict()))) == event
    one, three = account(event), account(Repeated(event, 3))
    assert one.epsilon(1e-6) < three.epsilon(1e-6) and one.epsilon(1e-3) < one.epsilon(1e-6)
    assert three.delta(three.epsilon(1e-6)) <= 1e-6
    lower, upper = three.bounds(1e-6)
    assert lower <= upper <= account(Repeated(event, 3), "rdp").epsilon(1e-6) * (1 + 1e-9)


@pytest.mark.parametrize("scheme", ["poisson", "without-replacement"])
@pytest.mark.parametrize("event", [TruncatedPoisson(0.1, 0.3, 1000, 10), SampledGroup(0.1, 1.0, 10)], ids=str)
def test_a_sample_of_what_counts_all_records_is_refused(event, scheme):
    """A group of ten in a Poisson sample of rate 0.01 is found with probability 0.096, not 0.01."""
    for inside in (event, Repeated(event, 2), Composed(Gaussian(1.0), event)):
        with pytest.raises(UnsupportedEvent, match="must not be inside of Subsampled"):
            Subsampled(inside, scheme, 0.01)
    assert account(SampledGroup(0.1, 0.01, 10)).delta(1.0) > 0.0956


def test_a_shifted_zcdp_is_no_better_than_its_rho():
    assert account(ShiftedZCdp(0.1, 0.0)).epsilon(1e-6) == pytest.approx(account(ZCdp(0.1)).epsilon(1e-6), rel=1e-2)
    assert account(ShiftedZCdp(0.1, 0.2)).epsilon(1e-6) > account(ZCdp(0.1)).epsilon(1e-6) + 0.19


def test_normal_tails_agree():
    """The tails of a mixture, by which lower bounds are computed, against the normal distribution."""
    pair = mixtures.gaussian_mixture(np.array([0.0, 1.0, 2.0]), np.array([0.2, 0.6, 0.2]))
    t = 0.7
    loss = math.log(0.2 + 0.6 * math.exp(t - 0.5) + 0.2 * math.exp(2 * t - 2))
    tails = pair.tails(np.array([loss]))
    assert tails.q_above[0] == pytest.approx(ndtr(-t)) and tails.q_below[0] == pytest.approx(ndtr(t))
    assert tails.p_above[0] == pytest.approx(0.2 * ndtr(-t) + 0.6 * ndtr(1 - t) + 0.2 * ndtr(2 - t))


noises = st.floats(0.3, 20.0)
mixtures_drawn = st.builds(
    lambda scale, shifts: MixtureOfGaussians(
        scale, tuple(c for c, _ in shifts), tuple(p / math.fsum(q for _, q in shifts) for _, p in shifts)
    ),
    noises,
    st.lists(st.tuples(st.floats(0.0, 4.0), st.floats(0.01, 1.0)), min_size=1, max_size=5),
)
truncated_drawn = st.builds(
    TruncatedPoisson,
    noises,
    st.floats(1e-4, 1.0),
    st.integers(0, 5000),
    st.integers(1, 300),
    st.sampled_from(["zero-out", "replace-one"]),
)


@settings(max_examples=10, deadline=None)
@given(event=st.one_of(mixtures_drawn, truncated_drawn), delta=st.sampled_from([1e-3, 1e-6]))
def test_drawn_events_keep_the_algebra(event, delta):
    """More noise and a larger delta are never worse, a bracket holds, and delta at epsilon is what was asked for."""
    assert from_dict(json.loads(json.dumps(event.to_dict()))) == event
    here, less = account(event), account(scaled(event, 1.5))
    epsilon = here.epsilon(delta)
    assert here.delta(epsilon) <= delta and here.epsilon(10 * delta) <= epsilon <= less.epsilon(delta) * (1 + 1e-9)
    lower, upper = here.bounds(delta)
    assert lower <= upper * (1 + 1e-9) and epsilon <= account(event, "rdp").epsilon(delta) * (1 + 1e-6) + 1e-9
    pair = rules_of(event).dominating(event)
    x = np.linspace(0, 3, 200)
    for curve in (pair.above(x), pair.below(x)):
        # Convex in e^x, falling, and at most 1: a dominating pair is one.
        slopes = np.diff(curve) / np.diff(np.exp(x))
        assert np.all(curve <= 1 + 1e-9) and np.all(slopes <= 1e-12) and np.all(np.diff(slopes) >= -1e-9)
