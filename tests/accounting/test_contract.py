"""What every event owes under every method: counts, order, monotonicity, and never less than known neighbours reach."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from dptoolkit import solvers
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
    Ledger,
    Logarithmic,
    NoisyMax,
    ObjectivePerturbation,
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
    calibrate,
    events,
    pld,
)
from dptoolkit.errors import BudgetExceeded, DpToolkitError, UnsupportedEvent

DELTA = 1e-5
WOR, POI = "without-replacement", "poisson"
SAMPLED_OBJECTIVE = Subsampled(ObjectivePerturbation(2.0, 0.2), WOR, 0.1)
# One of every class, under every sampling scheme and adjacency.
EVENTS = [
    Gaussian(4.0), Laplace(5.0), TwoSidedGeometric(0.2, 3), RandomizedResponse(0.3), RandomizedResponse(0.3, 4),
    ExponentialMechanism(0.2), NoisyMax(0.2), NoisyMax(0.2, "exponential"), PureDp(0.2), ApproxDp(0.2, 1e-9),
    ZCdp(0.02), ObjectivePerturbation(4.0, 0.2), ObjectivePerturbation(4.0, 0.2, True, "zero-out"),
    ObjectivePerturbation(4.0, 0.0, False, "zero-out"), SAMPLED_OBJECTIVE,
    Subsampled(ObjectivePerturbation(2.0, 0.1, True, "zero-out"), POI, 0.1),
    Subsampled(Gaussian(1.5), POI, 0.05), Subsampled(Gaussian(1.5), POI, 0.05, "replace-one"),
    Subsampled(Gaussian(1.5), WOR, 0.05), Subsampled(Laplace(1.0), POI, 0.1), Subsampled(PureDp(1.0), WOR, 0.1),
    Subsampled(ExponentialMechanism(1.0), WOR, 0.1), Subsampled(ApproxDp(1.0, 1e-9), POI, 0.1),
    RandomRounds(Gaussian(9.0), Geometric(0.6)), RandomRounds(Laplace(9.0), TruncatedGeometric(0.8, 7)),
    RandomRounds(Subsampled(Gaussian(2.0), WOR, 0.05), Poisson(3.0)), BestOf(Gaussian(20.0), Logarithmic(0.2)),
    BestOf(ZCdp(0.001), TruncatedNegativeBinomial(1.0, 0.3)), BestOf(Gaussian(30.0), Poisson(5.0)),
]  # fmt: skip
# The recursion has a test of its own; here it would only be slow.
USED = [name for name in METHODS if name != "bounded-range"]
# Seconds for one epsilon, as every order is integrated. The same event by other methods, and the other sampled
# objective by this one, always run.
LONG = {(SAMPLED_OBJECTIVE, "rdp")}
PAIRS = [
    pytest.param(event, method, marks=[pytest.mark.slow] if (event, method) in LONG else [])
    for event in EVENTS
    for method in USED
]


def epsilon(event: Event, method: str | None = None, delta: float = DELTA) -> float:
    return account(event, method).epsilon(delta)


def supported(event: Event, method: str) -> None:
    try:
        epsilon(event, method)
    except UnsupportedEvent as problem:
        pytest.skip(f"no {method} for it, and it says so: {str(problem)[:60]}")


@pytest.mark.parametrize(("event", "method"), PAIRS, ids=str)
def test_a_count_is_that_many_events_and_none_is_forgotten(event, method):
    supported(event, method)
    once, many = epsilon(event, method), epsilon(Repeated(event, 6), method)
    assert many == epsilon(Composed(*[event] * 6), method)
    assert many == epsilon(Composed(event, Repeated(Composed(event, Repeated(event, 4)), 1)), method)
    assert once < many
    assert epsilon(Repeated(event, 0), method) == 0.0


@pytest.mark.every(2)
@pytest.mark.parametrize(("event", "method"), PAIRS, ids=str)
def test_more_releases_cost_more_and_more_delta_costs_less(event, method):
    supported(event, method)
    by_count = [epsilon(Repeated(event, n), method) for n in (1, 2, 5, 40)]
    by_delta = [epsilon(event, method, d) for d in (1e-12, 1e-8, 1e-4, 1e-2)]
    assert by_count == sorted(by_count)
    assert by_delta == sorted(by_delta, reverse=True)


@pytest.mark.parametrize(("event", "method"), PAIRS, ids=str)
def test_no_method_goes_below_what_known_neighbours_reach(event, method):
    """The strongest check of soundness here: the two sides share no formula but the pair itself."""
    supported(event, method)
    for count in (1, 30):
        try:
            lower = pld.lower_epsilon(Repeated(event, count), DELTA)
        except UnsupportedEvent:
            pytest.skip("no explicit pair is known")
        assert lower <= epsilon(Repeated(event, count), method) * (1 + 1e-9)


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_delta_and_epsilon_invert_each_other(event):
    guarantee = account(Repeated(event, 3))
    for delta in (1e-3, 1e-7):
        value = guarantee.epsilon(delta)
        # Both are upper bounds, each on a grid of its own; where the profile is steep the second may be far lower.
        assert guarantee.delta(value) <= delta * 1.01


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_order_does_not_matter(event):
    other = Gaussian(8.0)
    assert epsilon(Composed(event, other, event)) == pytest.approx(epsilon(Composed(other, event, event)), rel=1e-9)


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_events_and_ledgers_survive_json(event):
    assert events.from_dict(json.loads(json.dumps(event.to_dict()))) == event
    ledger = Ledger(50.0, 1e-5)
    ledger.spend(event, 2, "one")
    ledger.spend(Repeated(Gaussian(math.inf), 2))
    assert Ledger.from_json(ledger.to_json()) == ledger


NOISY = {
    "gaussian": lambda z: Repeated(Gaussian(z), 20),
    "laplace": lambda z: Repeated(Laplace(z), 20),
    "selection": lambda z: Repeated(ExponentialMechanism(1 / z), 20),
    "noisy max": lambda z: NoisyMax(1 / z),
    "poisson": lambda z: Repeated(Subsampled(Gaussian(z), POI, 0.02), 200),
    "poisson, replace-one": lambda z: Repeated(Subsampled(Gaussian(z), POI, 0.02, "replace-one"), 200),
    "without replacement": lambda z: Repeated(Subsampled(Gaussian(z), WOR, 0.02), 200),
    "random rounds": lambda z: Repeated(RandomRounds(Subsampled(Gaussian(z), WOR, 0.05), Geometric(0.8)), 10),
}


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_less_noise_always_costs_more_from_hardly_any_to_hardly_none(name, method):
    """Down to noise so small that epsilon is in the thousands: an overflow there once read as epsilon 0."""
    found = [epsilon(NOISY[name](z), method) for z in (100.0, 10.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.03)]
    assert found == sorted(found)
    assert found[-1] > 20


@pytest.mark.parametrize("name", NOISY)
def test_calibrated_noise_keeps_the_budget_and_no_more_than_needed(name):
    noise = calibrate(NOISY[name], 1.5, 1e-6)
    assert epsilon(NOISY[name](noise), None, 1e-6) <= 1.5
    assert epsilon(NOISY[name](noise * (1 - 1e-3)), None, 1e-6) > 1.5


def test_one_absolute_scale_costs_more_under_replace_one_than_under_zero_out():
    """Replace-one doubles the sensitivity, so the same noise is half the multiplier."""
    zero_out = Repeated(Subsampled(Gaussian(2.0), POI, 0.02), 300)
    replaced = Repeated(Subsampled(Gaussian(1.0), POI, 0.02, "replace-one"), 300)
    fixed_size = Repeated(Subsampled(Gaussian(1.0), WOR, 0.02), 300)
    assert epsilon(zero_out) < epsilon(replaced) < epsilon(fixed_size)


@pytest.mark.parametrize("method", [None, *USED])
def test_nothing_costs_nothing_and_no_noise_costs_everything(method):
    assert epsilon(Composed(), method) == 0.0
    bare = [Gaussian(0.0), PureDp(math.inf)] if method not in ("gaussian",) else [Gaussian(0.0)]
    assert all(epsilon(e, method) == math.inf for e in bare)
    assert epsilon(Subsampled(Gaussian(1.0), POI, 0.0), method) == 0.0


def test_sampling_everything_is_no_sampling():
    for scheme in (POI, WOR):
        assert epsilon(Subsampled(Gaussian(2.0), scheme, 1.0)) == pytest.approx(epsilon(Gaussian(2.0)), rel=1e-3)


def test_known_values():
    """Values from the literature and from other programs, each with its source."""
    assert epsilon(Repeated(Gaussian(400.0), 10_000)) == pytest.approx(0.9263, abs=5e-5)  # exact, GDP
    thousand = Repeated(ExponentialMechanism(0.1), 1000)
    assert epsilon(thousand, "rdp", 1e-6) == pytest.approx(8.84, abs=0.02)  # dp_accounting, composed one by one: 8.85
    multiplier = calibrate(lambda z: Repeated(Subsampled(Gaussian(z), POI, 0.01), 1000), 1.0, 1e-5)
    assert multiplier == pytest.approx(1.4146, rel=1e-3)  # dp_accounting's PLD with a grid of 1e-4
    n, b = 20_242, 256
    # An independent, coarser computation of one pair composed in both directions; blocks of steps need less noise.
    for target, joined, blocks in ((2.0, 1.415, 1.2786), (4.0, 0.957, 0.8915), (8.0, 0.716, 0.6850)):
        noise = calibrate(lambda z: Repeated(Subsampled(Gaussian(z), WOR, b / n), 20 * n // b), target, 1e-5)
        assert noise == pytest.approx(blocks, rel=2e-3)
        assert 0.9 * joined < noise < 0.96 * joined


def test_pure_mechanisms_have_their_epsilon_at_delta_zero():
    for event in (Laplace(4.0), TwoSidedGeometric(0.25), RandomizedResponse(0.25), ExponentialMechanism(0.25)):
        assert epsilon(event, None, 0.0) == pytest.approx(0.25)
        assert epsilon(Repeated(event, 4), None, 0.0) == pytest.approx(1.0)
    assert epsilon(Gaussian(1.0), None, 0.0) == math.inf


BAD = [
    lambda: Gaussian(-1.0), lambda: Gaussian(math.nan), lambda: Gaussian("1"), lambda: Gaussian(True),
    lambda: Subsampled(Gaussian(1.0), POI, 1.5), lambda: Subsampled(Gaussian(1.0), "bernoulli", 0.5),
    lambda: Subsampled(Gaussian(1.0), WOR, 0.5, "zero-out"), lambda: Subsampled(2.0, POI, 0.5),
    lambda: Repeated(Gaussian(1.0), -1), lambda: Repeated(Gaussian(1.0), 2.0), lambda: Composed("x"),
    lambda: ApproxDp(1.0, 1.0), lambda: TwoSidedGeometric(1.0, 0), lambda: NoisyMax(1.0, "gumbel"),
    lambda: Geometric(1.0), lambda: RandomRounds(Gaussian(1.0), 3), lambda: BestOf(Gaussian(1.0), Geometric(0.5)),
    lambda: account("x"), lambda: account(Gaussian(1.0), "magic"), lambda: account(Gaussian(1.0)).epsilon(1.0),
    lambda: account(Gaussian(1.0)).epsilon(-1e-9), lambda: account(Gaussian(1.0)).delta(math.nan),
    lambda: account(Subsampled(Gaussian(1.0), POI, 0.1), adjacency="replace-one"),
    lambda: account(Composed(Subsampled(Gaussian(1.0), POI, 0.1), Subsampled(Gaussian(1.0), WOR, 0.1))),
    lambda: account(BestOf(ApproxDp(0.1, 1e-6), Poisson(2.0))).epsilon(1e-5), lambda: Ledger(epsilon=1.0),
    lambda: calibrate(lambda _: Gaussian(1.0), 1.0, 1e-5), lambda: calibrate(lambda z: PureDp(z), 1.0, 1e-5),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_input_is_one_clear_error(index):
    with pytest.raises(DpToolkitError) as caught:
        BAD[index]()
    assert "must" in str(caught.value) or "Check that" in str(caught.value) or "one guarantee" in str(caught.value)


@pytest.mark.parametrize("count", [1, 50, 10**9])
@pytest.mark.parametrize("epsilon", [0.0, 5e-324, 1e-300, 1e-160, 1e-12, 1e3, 1e100, 1e200, 1e308, math.inf])
def test_selections_at_the_ends_of_floating_point(epsilon, count):
    """No overflow, no NaN, and at delta 0 neither more nor less than the epsilons add up to."""
    guarantee = account(Repeated(ExponentialMechanism(epsilon), count))
    assert guarantee.epsilon(0.0) == pytest.approx(epsilon * count, rel=1e-12)
    assert 0 <= guarantee.epsilon(1e-6) <= epsilon * count
    if epsilon >= 1e3:
        assert guarantee.epsilon(1e-6) >= 0.9 * epsilon and guarantee.delta(1.0) == 1.0
    # Below that a total variation underflows, and methods answer that are coarser.
    if 1e-200 <= epsilon * count <= 1e-6:
        assert guarantee.delta(0.0) <= 1.01 * epsilon * count


def test_a_ledger_has_one_adjacency():
    ledger = Ledger(10.0, 1e-5)
    ledger.spend(Gaussian(6.0))
    assert ledger.adjacency is None and ledger.guarantee.adjacency is None
    ledger.spend(Gaussian(6.0), adjacency="zero-out")
    before = ledger.to_json()
    assert str(ledger.adjacency) == str(ledger.guarantee.adjacency) == "zero-out" and "zero-out" in str(ledger)
    for release in (
        lambda: ledger.spend(Gaussian(9.0), adjacency="replace-one"),
        lambda: ledger.check(Gaussian(9.0), adjacency="replace-one"),
        lambda: ledger.spend(Subsampled(Gaussian(9.0), WOR, 0.1)),
    ):
        with pytest.raises(DpToolkitError, match="adjacency='replace-one': must be 'zero-out'.*one ledger per"):
            release()
    with pytest.raises(DpToolkitError, match="adjacency='replace-one': must be 'zero-out', which the event"):
        ledger.spend(Subsampled(Gaussian(9.0), POI, 0.1), adjacency="replace-one")
    assert ledger.to_json() == before
    ledger.spend(Subsampled(Gaussian(9.0), POI, 0.1))
    ledger.spend(Gaussian(9.0))
    assert [e.adjacency and str(e.adjacency) for e in ledger.entries] == [None, "zero-out", "zero-out", None]
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_ledger_files_without_adjacency_still_load():
    ledger = Ledger(10.0, 1e-5)
    ledger.spend(Gaussian(6.0), 2, "mean")
    ledger.spend(Subsampled(Gaussian(9.0), WOR, 0.1))
    record = json.loads(ledger.to_json())
    for entry in record["entries"]:
        del entry["adjacency"]
    assert Ledger.from_json(json.dumps(record)) == ledger
    record["entries"][0]["adjacency"] = "zero-out"
    with pytest.raises(DpToolkitError, match="adjacency='replace-one': must be 'zero-out'"):
        Ledger.from_json(json.dumps(record))


def test_a_ledger_refuses_before_it_spends():
    ledger = Ledger(1.0, 1e-5)
    ledger.spend(Gaussian(6.0), label="mean")
    with pytest.raises(BudgetExceeded, match="must be <= 1"):
        ledger.spend(Gaussian(2.0))
    assert [(e.count, e.label) for e in ledger.entries] == [(1, "mean")]
    ledger.spend(Gaussian(20.0), 2)
    ledger.spend(Gaussian(20.0))
    assert ledger.entries[-1].count == 3
    assert ledger.guarantee.epsilon(1e-5) <= 1.0
    assert 0 <= ledger.remaining() < 0.4


# --- the surface ------------------------------------------------------------------------------------


def test_accounting_works_where_numba_and_its_peers_are_not_installed(root):
    code = (
        "import sys\n"
        "for name in ('numba', 'llvmlite', 'dp_accounting', 'sklearn'): sys.modules[name] = None\n"
        "from dptoolkit.accounting import *\n"
        "noise = calibrate(lambda z: Repeated(Subsampled(Gaussian(z), 'poisson', 0.1), 10), 1.0, 1e-5)\n"
        "ledger = Ledger(epsilon=1.0, delta=1e-5)\n"
        "ledger.spend(Subsampled(Gaussian(noise), 'poisson', 0.1), count=10)\n"
        "print(ledger.guarantee.epsilon(1e-5) <= 1.0, len(str(ledger)) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr


def test_the_delta_that_was_asked_for_is_printed():
    guarantee = replace(account(Gaussian(3.0)), asked_delta=2e-6)
    assert guarantee.deltas == (1e-3, 1e-5, 2e-6, 1e-7, 1e-9)
    assert "\n2e-06  " in str(guarantee)
    assert guarantee.to_dict()["epsilon"]["2e-06"] == guarantee.epsilon(2e-6)
    usual = account(Gaussian(3.0))
    assert usual.deltas == replace(usual, asked_delta=1e-5).deltas == (1e-3, 1e-5, 1e-7, 1e-9)
    assert list(usual.to_dict()["epsilon"]) == ["0.001", "1e-05", "1e-07", "1e-09"]
    with pytest.raises(DpToolkitError, match="delta=2"):
        replace(usual, asked_delta=2.0)


def test_a_budget_or_a_plan_asks_for_its_delta():
    ledger = Ledger(epsilon=1.0, delta=3e-6)
    ledger.spend(Gaussian(10.0))
    assert ledger.guarantee.asked_delta == 3e-6 and "\n3e-06  " in str(ledger.guarantee)
    assert Ledger().guarantee.asked_delta is None
    public = {"n": 100, "d": 5, "loss": "logistic", "sparsity": 2, "steps": 2, "row_norm": 1.0}
    plan = solvers.plan("dp_ight", epsilon=1.0, delta=3e-6, **public)
    assert plan.guarantee.asked_delta == 3e-6 and "\n3e-06  " in str(plan)
    assert solvers.plan("dp_ight", epsilon=math.inf, **public).guarantee.asked_delta is None


@pytest.mark.parametrize("epsilon", [1e-300, 1e-22, 1e-2])
def test_a_release_without_noise_beside_tiny_ones_gives_everything_away(epsilon):
    event = Composed(Gaussian(0.0), Repeated(PureDp(epsilon), 1000))
    assert pld.lower_epsilon(event, 1e-4) == math.inf
    assert account(event).bounds(1e-4) == (math.inf, math.inf)


@pytest.mark.parametrize("guess", [1e-3, 4.2, 300.0])
@pytest.mark.parametrize("near", [False, True])
def test_a_guess_changes_the_time_and_not_the_noise(guess, near):
    def event(z):
        return Composed(ObjectivePerturbation(z, 0.0123, True, "replace-one"), Gaussian(20 * z))

    noise, wanted = calibrate(event, 1.0, 1e-6, guess=guess, near=near), calibrate(event, 1.0, 1e-6)
    assert noise == pytest.approx(wanted, rel=2e-5)
    assert account(event(noise)).epsilon(1e-6) <= 1.0
