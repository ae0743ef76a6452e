"""Minimisers on a grid with integer noise: the charge for rounding, the law of the noise, nothing left to attack."""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.optimise import newton
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine.secure_points import PointNoise, power_below
from tests.statistics import assert_chi2, assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")


def example(n=200, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1)[:, None]
    return X, (X[:, 0] + 0.3 * rng.standard_normal(n) > 0).astype(float)


def perturbed(n=200, d=6, **settings):
    base = {"loss": "logistic", "row_norm": 1.0, "l2": 0.05, "epsilon": 1.0, "delta": 1e-6, "randomness": "secure"}
    return solvers.plan("objective_perturbation", n=n, d=d, **(base | settings))


# --- points on a grid -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.0, 0.75, 3.1e-7, 2.0**40, 5e200, 1e-200])
def test_the_grid_is_the_largest_power_of_two(value):
    unit = power_below(value, 30)
    assert math.frexp(unit)[0] == 0.5 and Fraction(unit) <= Fraction(value) / 2**30 < 2 * Fraction(unit)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12, 1e20, 1e40])
def test_a_point_moves_by_at_most_half_a_unit(size):
    """Two doubles an entry, of all sizes; the released number is the integer sum, rounded to a double at the end."""
    rng, noise = np.random.default_rng(1), PointNoise(2.0**-10, 1.0, 1.0, 1.0)
    theta = rng.standard_normal(200) * size
    remainder = theta * rng.uniform(-1, 1, 200) * 2.0**-54
    draws = rng.integers(-(2**41), 2**41, 200)
    released = noise.release(theta, remainder, draws)
    half = Fraction(1, 2) * (1 + Fraction(1, 2**20))
    for t, r, z, out in zip(theta, remainder, draws, released, strict=True):
        exact = (Fraction(t) + Fraction(r)) * 2**10
        nearby = [k for k in (math.floor(exact), math.ceil(exact)) if abs(k - exact) <= half]
        assert out in {float(k + int(z)) * 2.0**-10 for k in nearby}
    # A twin that leaves the second double out is further off.
    if size == 1e20:
        assert (noise.release(theta, 0 * remainder, draws) != released).any()


# --- objective perturbation -----------------------------------------------------------------------------------------


CASES = [{}, {"fit_intercept": True}, {"adjacency": "zero-out", "l2": 1e-3}, {"constraint": "l2", "radius": 2.0},
         {"epsilon": 1e-3, "l2": 5.0}, {"epsilon": 1e3}]  # fmt: skip


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_charge_covers_both_roundings(settings):
    """In fractions: what the plan adds to the sensitivity is at least what rounding the term and the point can do."""
    fast, plan = perturbed(randomness=None, **settings), perturbed(**settings)
    width = 6 + int(settings.get("fit_intercept", False))
    term, point = plan.secure.parts
    l2 = Fraction(fast.settings.l2) * 200
    # sqrt(width) from above, twice a half on either data set.
    root = Fraction(math.isqrt(width * 4**40) + 1, 2**40)
    needed = Fraction(fast.releases[1].sensitivity) + root * (Fraction(term.unit) / l2 + Fraction(point.unit))
    assert needed <= Fraction(plan.releases[1].sensitivity) <= needed * (1 + Fraction(1, 10**6))
    assert Fraction(plan.releases[1].sensitivity) < Fraction(fast.releases[1].sensitivity) * (1 + Fraction(1, 10**3))
    assert plan.releases[0] == fast.releases[0] and plan.event.to_dict().keys() == fast.event.to_dict().keys()
    assert plan.guarantee.epsilon(1e-6) == pytest.approx(fast.guarantee.epsilon(1e-6), rel=1e-9)
    # The noise that is drawn is not less than that of the events.
    assert term.multiplier() * Fraction(term.unit) >= Fraction(plan.releases[0].scale) * 200
    assert point.multiplier() * Fraction(point.unit) >= Fraction(plan.releases[1].scale)
    assert "grid of the linear term" in str(plan) and "rounding adds" in str(plan)


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
def test_terms_and_noises_have_their_law(layout):
    """Noise spy: the term is unit * round(M Z), and what is added to the certified point unit * round(M' Z)."""
    X, y = example()
    run, seen = solvers.bind(perturbed(fit_intercept=True), layout(X), y), []
    original = newton.minimise_rows

    def spied(problem, linears, tau):
        assert tau == pytest.approx(run.plan.secure.parts[1].planned * run.sums.l2 / 2, rel=1e-12)
        seen.append((linears.copy(), *original(problem, linears, tau)))
        return seen[-1][1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newton, "minimise_rows", spied)
        trials = run.fits(Generators(*(SecureStream.seeded(k) for k in range(250))), True)
    linears, theta, remainder = seen[0]
    term, point = run.plan.secure.parts
    whole = linears / term.unit
    np.testing.assert_array_equal(whole, np.rint(whole))
    assert_ks(whole.ravel() / term.multiplier(), "norm")
    rejected(assert_ks, 0.7 * whole.ravel() / term.multiplier(), "norm")
    added = (trials.releases[:, 0] - theta - remainder) / point.unit
    assert_ks(added.ravel() / point.multiplier(), "norm")
    assert np.isfinite(point.integers(trials.releases[:, 0])).all()


def released_with_one_term(plan, data, output):
    """A function of a data set: the release for a linear term that is the same for both data sets."""
    run = solvers.bind(plan, *data)
    width = run.matrix.shape[1]
    term = np.random.default_rng(4).standard_normal(width) * plan.releases[0].scale * plan.n
    theta, remainder = newton.minimise_rows(run.problem(np.zeros(width)), term[None], run.tau)
    assert not remainder.any()
    return theta[0], output(run, theta[0])


def test_the_attack_finds_nothing_but_breaks_the_fast_path():
    """The last addition, for an attacker who even knows the linear term."""
    d = 30
    X, y = example(300, d)
    other = X.copy()
    other[0] = -X[0]
    pair = (X, y), (other, y)
    report = {}
    for kind in ("secure", "fast"):
        plan = perturbed(300, d, randomness=kind)
        exact = {}
        for X_, y_ in pair:
            exact[id(X_)] = released_with_one_term(plan, (X_, y_), lambda run, theta: run)
        output = plan.releases[1]

        def release(data, rng, exact=exact, kind=kind, plan=plan, output=output):
            theta, _ = exact[id(data[0])]
            if kind == "fast":
                return theta + output.mechanism.release(np.zeros(d), rng)
            point = plan.secure.parts[1]
            stream = SecureStream.seeded(int(rng.integers(2**62)))
            return point.integers(point.release(theta, np.zeros(d), point.noise(d, stream)))

        def value(data, exact=exact, kind=kind, plan=plan):
            theta = exact[id(data[0])][0]
            return theta if kind == "fast" else np.rint(theta / plan.secure.parts[1].unit)

        grid = {"grid": 1.0} if kind == "secure" else {}
        report[kind] = audit.floating_point_attack(
            release, pair, exact=value, scale=output.scale, trials=100, rng=5, **grid
        )
    assert report["secure"].certain == 0 and report["secure"].both == 100
    assert report["fast"].certain > 0.2 and report["fast"].wrong == 0


@contextmanager
def seeded_streams(module):
    """Audits whose streams can be repeated."""
    numbers = iter(range(10**9))

    @contextmanager
    def stream(rng):
        yield SecureStream.seeded(next(numbers))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"dptoolkit.solvers.{module}.secure_stream", stream)
        yield


def test_an_audit_of_objective_perturbation():
    plan = perturbed(50, 2, loss="huber", epsilon=4.0, delta=1e-4, l2=0.3)
    pair = audit.pairs.objective_perturbation(plan)
    game = {"trials": 1200, "confidence": 1 - 1e-6, "rng": 1}
    with seeded_streams("_objective_perturbation"):
        report = audit.audit(plan, pair, plan.guarantee, **game)
        weak = audit.audit(plan.with_noise(factor=0.25), pair, plan.guarantee, **game)
    assert not report.violated and weak.violated


def test_fits_differ_and_the_gamma_term_is_refused():
    X, y = example(2000)
    settings = {"loss": "logistic", "row_norm": 1.0, "epsilon": 4.0, "delta": 1e-6, "randomness": "secure"}
    one, two = (solvers.objective_perturbation(X, y, **settings) for _ in range(2))
    assert (one.coef != two.coef).all() and np.argmax(one.coef) == 0
    with pytest.raises(InvalidValue, match="randomness='secure'.*gamma.*law='gaussian'"):
        perturbed(law="gamma")


# --- two stages -----------------------------------------------------------------------------------------------------


def staged(n=200, d=4, **settings):
    base = {"loss": "logistic", "row_norm": 1.0, "l2": 0.05, "epsilon": 2.0, "delta": 1e-6, "sparsity": 2, "blocks": 10}
    return solvers.plan("two_stage", n=n, d=d, **(base | {"randomness": "secure"} | settings))


def test_votes_are_chosen_by_their_exact_law():
    X, y = example(200, 4)
    run = solvers.bind(staged(), X, y)
    votes = run.votes = np.array([7.0, 3.0, 5.0, 0.0])
    unit = run.plan.secure.parts[2].unit(2)
    assert Fraction(unit) * 2 <= Fraction(run.plan.secure.parts[2].epsilon)
    pairs = {pair: k for k, pair in enumerate(itertools.combinations(range(4), 2))}
    stream, counts = SecureStream.seeded(8), np.zeros(len(pairs))
    for support in run._supports(Generators(*[stream] * 3000)):
        counts[pairs[tuple(support.tolist())]] += 1

    def law(unit):
        p = np.exp(unit * votes) / np.exp(unit * votes).sum()
        return np.array([p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b]) for a, b in pairs])

    assert_chi2(counts, law(unit))
    rejected(assert_chi2, counts, law(2 * unit))


def test_both_stages_of_a_fit():
    X, y = example(2000, 6)
    settings = {"loss": "logistic", "row_norm": 1.0, "epsilon": 4.0, "delta": 1e-6, "sparsity": 2, "blocks": 20}
    one, two = (solvers.two_stage(X, y, randomness="secure", diagnostics=True, **settings) for _ in range(2))
    assert (one.coef != two.coef).any() and 0 in one.history["support"]
    plan = staged(fit_intercept=True)
    fast = staged(fit_intercept=True, randomness=None)
    assert len(plan.secure.parts) == 3 and plan.releases[2] == fast.releases[2]
    # The weights of the second stage are those of the support and the intercept, whatever d is.
    term, point = plan.secure.parts[:2]
    needed = fast.releases[1].sensitivity + math.sqrt(3) * (term.unit / (200 * 0.05) + point.unit)
    assert plan.releases[1].sensitivity == pytest.approx(needed, rel=1e-9)
    with pytest.raises(InvalidValue, match="gamma"):
        staged(law="gamma")


# --- ADMM -----------------------------------------------------------------------------------------------------------


def split(n=200, d=6, **settings):
    base = {"loss": "logistic", "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6, "steps": 3, "randomness": "secure"}
    return solvers.plan("dp_admm", n=n, d=d, **(base | settings))


@pytest.mark.parametrize("settings", [{}, {"fit_intercept": True, "adjacency": "zero-out"}, {"radius": 2.0}], ids=str)
def test_minimisers_on_a_grid_are_charged_and_have_their_law(settings):
    plan, fast = split(**settings), split(**settings, randomness=None)
    width, point = 6 + int(settings.get("fit_intercept", False)), plan.secure.first
    root = Fraction(math.isqrt(width * 4**40) + 1, 2**40)
    needed = Fraction(fast.sensitivity) + root * Fraction(point.unit)
    assert needed <= Fraction(plan.sensitivity) <= needed * (1 + Fraction(1, 10**9))
    assert point.multiplier() * Fraction(point.unit) >= Fraction(plan.noise)
    assert plan.guarantee.epsilon(1e-6) == pytest.approx(fast.guarantee.epsilon(1e-6), rel=1e-9)
    X, y = example()
    run, seen = solvers.bind(plan, X, y), []
    assert run.tau == pytest.approx(solvers.bind(fast, X, y).tau, rel=1e-9)
    original = newton.minimise_rows

    def spied(problem, linears, tau):
        assert tau == run.tau
        seen.append(original(problem, linears, tau))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newton, "minimise_rows", spied)
        trials = run.fits(Generators(*(SecureStream.seeded(k) for k in range(40))), True)
    added = np.concatenate([(trials.releases[:, t] - sum(seen[t])).ravel() for t in range(3)]) / point.unit
    assert_ks(added / point.multiplier(), "norm")
    rejected(assert_ks, 0.6 * added / point.multiplier(), "norm")


def test_the_attack_on_minimisers():
    X, y = example(200, 30)
    other = X.copy()
    other[0] = -X[0]
    pair = (X, y), (other, y)
    safe = audit.floating_point_attack(split(200, 30, steps=1), pair, trials=60, rng=1)
    assert safe.certain == 0 and safe.both == 60
    fast = audit.floating_point_attack(split(200, 30, steps=1, randomness="fast"), pair, trials=60, rng=1)
    assert fast.certain > 0.5 and fast.wrong == 0


def test_an_audit_of_admm():
    plan = split(40, 2, loss="huber", epsilon=4.0, delta=1e-4, steps=2, rho=0.5, weight=0.01)
    pair = audit.pairs.dp_admm(plan)
    game = {"trials": 1200, "confidence": 1 - 1e-6, "rng": 1, "adversary": max(pair.reach, key=pair.reach.get)}
    with seeded_streams("_admm"):
        report = audit.audit(plan, pair, plan.guarantee, **game)
        weak = audit.audit(plan.with_noise(factor=0.4), pair, plan.guarantee, **game)
    assert not report.violated and weak.violated
    X, y = example(2000)
    fits = [solvers.dp_admm(X, y, loss="logistic", row_norm=1.0, epsilon=4.0, delta=1e-6, randomness="secure")
            for _ in range(2)]  # fmt: skip
    assert (fits[0].coef != fits[1].coef).any() and np.argmax(fits[0].coef) == 0
