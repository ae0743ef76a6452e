"""Secure hard thresholding: the same model, integer sums, and nothing for the floating-point attack to find."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers, tuning
from dptoolkit.accounting import Ledger
from dptoolkit.adjacency import Adjacency
from dptoolkit.data.grids import exact_sum, residuals_on_grid
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers.engine import descent, secure
from tests.pins import cases
from tests.statistics import assert_binomial, assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large")


def bound(X, y, **settings):
    """The secure run on these data."""
    return solvers.bind(make(*X.shape, randomness="secure", **settings), X, y)


def example(n=300, d=12, seed=0, dense=True):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6)
    y = (X[:, 0] + 0.3 * rng.standard_normal(n) > 0).astype(float)
    return (X if dense else sparse.csr_matrix(X)), y


def make(n=300, d=12, **settings):
    base = {"loss": "logistic", "sparsity": 4, "steps": 6, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    if settings.get("loss") == "squared" and "grad_norm" not in settings:
        base |= {"label_bound": 1.0, "margin_bound": 1.0}
    return solvers.plan("dp_ight", n=n, d=d, **(base | settings))


CASES = [
    {}, {"adjacency": "zero-out"}, {"fit_intercept": True}, {"grad_norm": 0.1}, {"adaptive": False},
    {"loss": "squared"}, {"loss": "squared", "row_norm": None, "grad_norm": 0.3, "step_size": 0.5}, {"loss": "huber"},
]  # fmt: skip


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_event_is_that_of_the_plan_and_the_noise_is_not_less(settings):
    plan = make(**settings)
    charged = make(randomness="secure", **settings)
    noise = charged.secure.first
    assert charged.event.to_dict() == plan.event.to_dict() or charged.guarantee.epsilon(1e-6) == pytest.approx(
        plan.guarantee.epsilon(1e-6), rel=1e-9
    )
    assert 1 < charged.sensitivity / plan.sensitivity < 1.001 and charged.noise >= plan.noise
    for share in np.unique(noise.law.shares)[::50]:
        scale = float(charged.noise * share)
        assert noise.multiplier(scale) * noise.grids.unit >= Fraction(scale) * plan.n
    for text in (str(charged.secure), str(charged), str(charged.guarantee), charged.to_json()):
        assert "ChaCha20" in text
    assert "time is not protected" in str(charged.guarantee) and "rounding adds" in str(charged)
    assert plan.secure is None and "randomness" not in plan.to_dict() and charged.fingerprint != plan.fingerprint


def test_published_noise_keeps_its_scale():
    plan, charged = make(calibration="published"), make(calibration="published", randomness="secure")
    assert charged.noise == plan.noise and charged.guarantee.epsilon(1e-6) > plan.guarantee.epsilon(1e-6)


@pytest.mark.parametrize("settings", CASES, ids=str)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "csr"])
def test_gradients_are_those_of_the_fast_path(settings, dense):
    """Without noise both paths give the same steps, up to the grid."""
    X, y = example(dense=dense)
    plan = make(**settings)
    run = bound(X, y, **settings)
    fast = solvers.bind(plan.with_noise(factor=0.0), X, y)(np.random.default_rng(0), True)
    gradient = run._mean_gradient()
    w = np.random.default_rng(1).standard_normal(run.width) * 0.1
    first = gradient.noisy(np.zeros(0, np.intp), np.zeros(0), run.noise_at(np.zeros(0)), Silent())
    np.testing.assert_allclose(first, fast.releases[0], atol=3 * gradient.noise.grids.residual_unit)
    later = gradient.noisy(np.arange(run.width), w, run.noise_at(w), Silent())
    assert np.isfinite(later).all() and np.abs(later).max() > 0


class Silent:
    """A stream that is asked for noise, and gives words that make it zero."""

    def words(self, count):
        return np.zeros(count, np.uint64)

    def below(self, end):
        return 0


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_a_replaced_record_moves_the_integers_by_at_most_the_sensitivity(settings):
    """Exact, in Python's integers, at several weights; single records, so that the rest cancels."""
    charged, rng = make(randomness="secure", **settings), np.random.default_rng(2)
    noise = charged.secure.first
    X, y = example(seed=3)
    X[:20] *= 1e6
    X[20:30] = 0.0
    y = np.where(np.arange(300) % 7 == 0, 1 - y, y)
    run = solvers.bind(charged, X, y)
    gradient = run._mean_gradient()
    unit, worst = noise.grids.unit * noise.grids.n**-1, 0.0
    for size in (0.0, 1e-3, 0.3, 5.0):
        w = rng.standard_normal(run.width) * size
        scale = run.noise_at(w)
        residuals = gradient._doubles.residuals(gradient.margins(np.arange(run.width), w)) * 300
        whole = residuals_on_grid(residuals, noise.grids, noise.limit(scale), gradient.lengths)
        rows = gradient._doubles.rows.matrix
        vectors = [[int(a) * int(r) for a in row] for row, r in zip(rows, whole, strict=True)]
        allowed = Fraction(charged.sensitivity) * Fraction(scale) / Fraction(charged.noise) / unit
        for one, two in rng.integers(0, 300, (150, 2)):
            other = [0] * run.width if charged.adjacency is Adjacency.ZERO_OUT else vectors[two]
            square = sum((a - b) ** 2 for a, b in zip(vectors[one], other, strict=True))
            assert square <= allowed**2
            worst = max(worst, math.sqrt(square / allowed**2))
    assert worst > 0.2


def test_every_record_is_rounded_on_its_own():
    """The integers of all other records stay the same to the last bit, whatever one record becomes."""
    for dense in (True, False):
        X, y = example(200, 15, 4, dense)
        for other in (0.0, 1e300, 5e-324, 0.3):
            changed = X.copy() if dense else X.tolil()
            changed[7] = other
            changed = changed if dense else sparse.csr_matrix(changed)
            seen = []
            for data in (X, changed):
                gradient = bound(data, y)._mean_gradient()
                w = np.random.default_rng(5).standard_normal(15)
                margins = gradient.margins(np.arange(15), w)
                seen.append(residuals_on_grid(gradient._doubles.residuals(margins) * 200, gradient.noise.grids).copy())
            keep = np.arange(200) != 7
            np.testing.assert_array_equal(seen[0][keep], seen[1][keep])


def test_with_counts_a_record_has_one_margin_wherever_it_stands():
    """Products with a dense matrix round the margins of equal rows otherwise at other places; see the twin."""
    x, w, whole = *np.random.default_rng(6).standard_normal((2, 37)), np.arange(37)

    def margins(n, is_counted):
        plan = make(n, 37, randomness="secure")
        data = (x[None], [0], [n]) if is_counted else (np.tile(x, (n, 1)), [0] * n)
        return set(solvers.bind(plan, *data)._mean_gradient().margins(whole, w).tolist())

    assert len(set().union(*(margins(n, True) for n in range(1, 12)))) == 1
    if len(set().union(*(margins(n, False) for n in range(1, 12)))) == 1:
        pytest.skip("the linear algebra of this machine rounds equal rows in the same way")


def test_the_noise_of_a_step_has_its_law():
    """Noise spy: releases minus exact sums are round(M Z) for the M of the step's public scale."""
    X, y = example(400, 500)
    run = bound(X, y, steps=40, sparsity=5)
    trace = run(SecureStream.seeded(1), True)
    gradient, z = run._mean_gradient(), []
    w = np.zeros(500)
    for t in range(40):
        scale = trace.history["noise_scale"][t]
        margins = gradient.margins(np.flatnonzero(w), w[np.flatnonzero(w)])
        grids = gradient.noise.grids
        whole = residuals_on_grid(gradient._doubles.residuals(margins) * 400, grids, gradient.noise.limit(scale))
        sums = trace.releases[t] * 400 / grids.residual_unit / grids.row_unit
        noise = np.rint(sums).astype(np.int64) - exact_sum(gradient._doubles.rows, whole)
        z.append(noise / gradient.noise.multiplier(scale))
        w = trace.iterates[t]
    assert_ks(np.concatenate(z), "norm")
    rejected(assert_ks, 0.9 * np.concatenate(z), "norm")


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_attack_finds_nothing(epsilon):
    X, y = example(200, 20)
    other = X.copy()
    other[0] = -X[0]
    settings = {"steps": 1, "sparsity": 20, "epsilon": epsilon}
    pair = (X, y), (other, y)
    safe = audit.floating_point_attack(make(200, 20, randomness="secure", **settings), pair, trials=100, rng=1)
    assert safe.certain == 0 and safe.both == 100
    # The same plan on the fast path is broken.
    fast = audit.floating_point_attack(make(200, 20, **settings), pair, trials=100, rng=1)
    assert fast.certain > 0.7 and fast.wrong == 0
    # Who takes the doubles for products of doubles is right as often as wrong.
    runs = {id(data): bound(data, y, **settings) for data in (X, other)}
    quiet = {
        id(data): solvers.bind(make(200, 20, randomness="secure", **settings).with_noise(factor=0.0), data, y)
        for data in (X, other)
    }
    naive = audit.floating_point_attack(
        lambda data, rng: runs[id(data)](None, True).releases[0], (X, other), trials=300, rng=2,
        exact=lambda data: quiet[id(data)](None, True).releases[0], scale=runs[id(X)].noise_at(np.zeros(0)),
    )  # fmt: skip
    assert_binomial(naive.right, max(naive.right + naive.wrong, 1), 0.5)


def test_the_attack_sees_noise_that_only_claims_to_be_secure(monkeypatch):
    """Twin: a run that draws doubles under a plan that says secure. Its releases are on no grid."""
    X, y = example(200, 20)
    other = X.copy()
    other[0] = -X[0]
    plan = make(200, 20, randomness="secure", steps=1, sparsity=20)

    def doubles(self, support, values, scale, stream):
        exact = secure.released_mean(exact_sum(self._doubles.rows, np.ones(200)), self.noise.grids, 200)
        return exact + scale * np.random.default_rng().standard_normal(len(exact))

    monkeypatch.setattr(descent, "SMALL", 0)
    monkeypatch.setattr(secure.SecureMeanGradient, "noisy", doubles)
    report = audit.floating_point_attack(plan, ((X, y), (other, y)), trials=20, rng=1)
    assert report.both == 0 and report.neither == 20


def test_fits_differ_and_learn():
    X, y = example(5000, 12)
    plan = make(5000, 12, steps=30)
    settings = {"loss": "logistic", "sparsity": 4, "steps": 30, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    results = [solvers.dp_ight(X, y, randomness="secure", **settings) for _ in range(3)]
    models = [result.coef for result in results]
    assert results[0].plan.secure is not None and "secure noise" in str(results[0].guarantee)
    assert len({tuple(model) for model in models}) == 3
    fast = [solvers.bind(plan, X, y).fit(np.random.default_rng(k))[0] for k in range(3)]
    for w in models:
        assert np.argmax(np.abs(w)) == 0 and w[0] == pytest.approx(np.mean([f[0] for f in fast]), rel=0.2)
    shown = solvers.dp_ight(X, y, randomness="secure", diagnostics=True, trace=True, **settings)
    assert shown.history["not_private"]["objective"] < math.log(2) and len(shown.history["iterates"]) == 30
    fits = bound(X, y, steps=30).fits(Generators(*(np.random.default_rng(0) for _ in range(2))), True)
    assert fits.weights.shape == (2, 12) and (fits.releases[0] != fits.releases[1]).all()


def test_what_is_not_covered_is_refused():
    X, y = example()
    budget = {"epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(InvalidValue, match="without noise"):
        make(randomness="secure", epsilon=math.inf)
    with pytest.raises(InvalidValue, match="rng='given'"):
        solvers.dp_ight(X, y, loss="logistic", sparsity=3, steps=2, row_norm=1.0, randomness="secure", rng=0, **budget)
    with pytest.raises(InvalidValue, match="randomness='safe'"):
        make(randomness="safe")


# Solvers by noisy gradients, which are tested here and in files of their own.
DESCENDING = {"dp_ight", "dp_dual_averaging", "dp_pipeline"}
STOCHASTIC = {"dp_sgd_ht", "dp_svrg_ht", "dp_scsg_ht"}
# Solvers that select features or release minimisers, whose secure noise has tests of its own.
SELECTING = {
    "dp_frank_wolfe", "sparsifier", "objective_perturbation", "peeling_iht", "two_stage", "dp_multinomial_frank_wolfe",
    "dp_admm", "knowledge_transfer",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(cases.SOLVERS) - DESCENDING - STOCHASTIC - SELECTING))
def test_other_solvers_are_not_secure(name):
    """Other solvers may inherit its settings, but their runs draw noise in doubles: no plan may call that secure."""
    with pytest.raises(InvalidValue, match=f"'fast' for {name}"):
        solvers.plan(name, n=300, d=12, randomness="secure", **cases.BUDGET | cases.SOLVERS[name])


def test_candidates_share_their_noise():
    settings = {"loss": "logistic", "sparsity": 4, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(InvalidValue, match="randomness='a setting of candidates'"):
        tuning.plan("dp_ight", [{"steps": 2}, {"steps": 3, "randomness": "secure"}], n=300, d=12, **settings)
    plan = tuning.plan("dp_ight", [{"steps": 2}, {"steps": 3}], n=300, d=12, randomness="secure", **settings)
    assert all(one.secure is not None for one in (*plan.plans, plan)) and "ChaCha20" in str(plan.guarantee)
    fast = tuning.plan("dp_ight", [{"steps": 2}, {"steps": 3}], n=300, d=12, **settings)
    assert fast.secure is None and plan.guarantee.epsilon(1e-6) <= 1.0 and "ChaCha20" not in str(fast.guarantee)


def test_what_the_grids_cannot_hold_is_refused_by_the_plan():
    """Not by the fit, which a ledger would have paid for."""
    plan = make(n=1)
    # Just below the largest noise of the grids; with the charge for rounding it is above that of the sampler.
    large = plan.with_noise(2.0**29 * (1 - 2.0**-20))
    with pytest.raises(InvalidValue, match="noise=.*2\\^52 units.*larger epsilon"):
        plan.settings.secured(large)
    with pytest.raises(InvalidValue, match="noise=.*2\\^52 units.*larger epsilon"):
        make(randomness="secure").with_noise(factor=2.0**16)
    # On a grid of rows that is coarser than 1 the intercept's column would become zeros.
    make(randomness="secure", fit_intercept=True, row_norm=1e6)
    with pytest.raises(InvalidValue, match="row_norm=10000000.0.*fit_intercept"):
        make(randomness="secure", fit_intercept=True, row_norm=1e7)
    make(randomness="secure", row_norm=1e7)


def test_many_fits_need_no_seeds():
    X, y = example()
    plan = make(randomness="secure")
    with pytest.raises(InvalidValue, match="seeds.*secure"):
        solvers.fit_many(plan, X, y, seeds=[1, 2])
    one, two = solvers.fit_many(plan, X, y, runs=2)
    assert (one.coef != two.coef).any()


def test_very_many_records_are_rounded_by_numbers_of_their_own():
    """Residuals that all lie between the same two grid points: rounded to the nearest, their errors would add up."""
    X, y = example()
    run = bound(X, y)
    gradient = run._mean_gradient()
    stream = SecureStream.seeded(3)
    theta = secure._uniforms(stream, 300)
    assert (theta >= 0).all() and (theta < 1).all() and len(np.unique(theta)) == 300
    quiet = gradient.noise.with_noise(0.0)
    many = dataclasses.replace(quiet, grids=dataclasses.replace(quiet.grids, n=2**23))
    assert many.grids.needs_dither
    gradient.noise = many
    w, scale = np.full(12, 0.1), run.noise_at(np.full(12, 0.1))
    one, two = (gradient.noisy(np.arange(12), w, 0.0 * scale, SecureStream.seeded(k)) for k in (1, 2))
    assert (one != two).any() and np.abs(one - two).max() < 300 * many.grids.residual_unit / 300


def test_a_refused_fit_spends_nothing():
    X, y = example()
    ledger = Ledger(epsilon=3.0, delta=1e-5)
    with pytest.raises(InvalidValue):
        solvers.dp_ight(X, y, loss="logistic", sparsity=3, steps=2, row_norm=1.0, epsilon=1.0, delta=1e-6, rng=0,
                        randomness="secure", ledger=ledger)  # fmt: skip
    assert len(ledger.entries) == 0
    solvers.dp_ight(X, y, loss="logistic", sparsity=3, steps=2, row_norm=1.0, epsilon=1.0, delta=1e-6,
                    randomness="secure", ledger=ledger)  # fmt: skip
    assert len(ledger.entries) == 1
