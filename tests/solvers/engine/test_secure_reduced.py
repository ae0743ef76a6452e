"""Secure variance reduction: differences on their own grid, exact numbers of steps, the law of lazy inner steps."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from scipy import sparse

from dptoolkit import audit, solvers
from dptoolkit.audit import presets
from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import secure_steps as kernel
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.solvers.engine.batches import Iterate
from dptoolkit.solvers.engine.secure_reduced import SecureEpochs, failures
from dptoolkit.solvers.engine.secure_steps import Scheme, Stepper
from dptoolkit.solvers.engine.snapshots import buckets
from tests.solvers.engine.test_secure_steps import assert_alike, example, outcomes
from tests.statistics import assert_chi2, assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large", "ignore:delta=")

N, D = 32, 8
CASES = [
    {}, {"sampling": "poisson"}, {"fit_intercept": True}, {"grad_norm": 0.1}, {"adaptive": False},
    {"loss": "squared", "label_bound": 1.0, "margin_bound": 1.0}, {"loss": "huber"},
    {"loss": "squared", "row_norm": None, "grad_norm": 0.3},
]  # fmt: skip


@lru_cache
def make(items=(), name="dp_svrg_ht", n=N, d=D, randomness="secure"):
    base = {"loss": "logistic", "sparsity": d, "epochs": 2, "batch_size": n, "step_size": 1.0, "row_norm": 1.0,
            "l2": 1.0, "epsilon": 1.0, "delta": 1e-6, "option": "II"}  # fmt: skip
    return solvers.plan(name, n=n, d=d, randomness=randomness, **base | dict(items))


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_event_is_that_of_the_plan_and_the_noise_is_not_less(settings):
    items = (*settings.items(), ("batch_size", 8), ("epochs", 1))
    plan, charged = make(items, randomness="fast"), make(items)
    assert charged.guarantee.epsilon(1e-6) == pytest.approx(plan.guarantee.epsilon(1e-6), rel=1e-9)
    for one, two, part in zip(plan.releases, charged.releases, charged.secure.parts, strict=True):
        assert two.scale / one.scale == pytest.approx(two.sensitivity / one.sensitivity, rel=1e-12)
        assert two.sensitivity == pytest.approx(one.sensitivity * part.growth, rel=1e-12) and 1 < part.growth < 1.01
    assert "differences on a grid" in str(charged) and "batches are drawn exactly" in str(charged.guarantee)
    with pytest.raises(InvalidValue, match="2\\^51 units"):
        charged.with_noise(factor=2.0**20)


def differences(X, y, w, s, settings, factor=0.0):
    """The plan, the sum of all differences in grid units, the multiplier at w and s, and how far off integers it is."""
    plan = make(tuple(settings.items()), d=X.shape[1], n=X.shape[0])
    run = solvers.bind(plan.with_noise(factor=factor), X, y)
    epochs = SecureEpochs(SecureStream.seeded(0), run.data, run._rows, run.iteration, run._parts, (None, None))
    iterate = Iterate(run.kept_count, (np.arange(len(w)), w), len(w))
    means = kernel.Means(np.zeros(run.width), *buckets(np.zeros(epochs._free)))
    stepper = epochs._stepper
    stepper.advance(iterate, 1, means, (np.arange(len(s)), s))
    out, unit = -iterate.dense(run.width), float(stepper._floats[kernel.UNIT])
    whole = out * plan.secure.first.size / unit / plan.secure.first.grids.row_unit
    return plan, np.rint(whole), int(stepper._ints[kernel.MULTIPLIER]), np.abs(whole - np.rint(whole)).max()


@pytest.mark.parametrize("layout", [np.array, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("settings", CASES, ids=str)
def test_every_record_adds_its_own_integers(settings, layout):
    X, y = example(N, D, seed=1)
    X[0], X[1], X[2] = 1e300, 5e-324, 0.0
    rng = np.random.default_rng(2)
    w, s = rng.standard_normal((2, D + bool(settings.get("fit_intercept")))) * 0.5
    _, total, _, off = differences(layout(X), y, w, s, settings)
    assert off == 0
    empty = differences(layout(0 * X), y, w, s, settings)[1]
    alone = empty.copy()
    for i in range(N):
        one = np.zeros_like(X)
        one[i] = X[i]
        alone += differences(layout(one), y, w, s, settings)[1] - empty
    np.testing.assert_array_equal(total, alone)
    # At the snapshot itself all differences are 0, and with noise that follows the weights there is none.
    _, nothing, units, _ = differences(layout(X), y, s, s, settings, factor=1.0 if not settings else 0.0)
    assert not nothing.any() and units == 0


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_a_replaced_record_moves_the_integers_by_at_most_the_sensitivity(settings):
    """Whatever w and s are: the integers move by at most the noise in units, over the plan's noise multiplier."""
    width, worst = D + bool(settings.get("fit_intercept")), 0.0
    zero_out = settings.get("sampling") == "poisson"
    # Half of the right angle between the two rows: small steps differ most at 45 degrees, large ones at nearly 90.
    for size, angle in ((1e-6, 0.25), (1e-2, 0.25), (0.5, 0.25), (60.0, 0.45)):
        X, y = example(N, D, seed=4)
        w = np.eye(width)[0] * size
        s = -w
        X[0, :] = 0.0
        X[0, :2] = 50.0 * math.cos(math.pi * angle), 50.0 * math.sin(math.pi * angle)
        y[0] = 0.0
        other = X.copy()
        if zero_out:
            X[0] = 50.0 * np.eye(D)[0]
        other[0] = 0.0 if zero_out else X[0] * np.where(np.arange(D) == 1, -1.0, 1.0)
        plan, one, _, _ = differences(X, y, w, s, settings)
        _, two, _, _ = differences(other, y, w, s, settings)
        _, _, units, _ = differences(X, y, w, s, settings, factor=1.0)
        inner = plan.releases[0]
        allowed = Fraction(units) * Fraction(inner.sensitivity) / Fraction(inner.scale)
        square = sum((int(a) - int(b)) ** 2 for a, b in zip(one, two, strict=True))
        assert square <= allowed**2
        worst = max(worst, math.sqrt(square / allowed**2))
    # With an intercept the column of ones does not differ.
    assert worst > (0.4 if "fit_intercept" in settings else 0.9)


def test_numbers_of_steps_are_geometric():
    stream, gamma = SecureStream.seeded(3), Fraction(0.8)
    draws = np.array([failures(stream, gamma) for _ in range(4000)])
    reach = np.arange(31)
    law = np.append(0.2 * 0.8**reach, 0.8**31)
    assert_chi2(np.bincount(np.minimum(draws, 31), minlength=32), law)
    rejected(assert_chi2, np.bincount(np.minimum(draws + 1, 31), minlength=32), law)


# --- the law of lazy inner steps --------------------------------------------------------------------------------------


def reduced_stepper(stream, d=60, multiplier=3):
    """Inner steps with unit grids on rows that touch the first coordinates, at w = 0 with a snapshot of ones there."""
    rng = np.random.default_rng(5)
    matrix = sparse.csr_matrix(np.pad(rng.integers(0, 2, (6, 4)) * 1.0, [(0, 0), (0, d - 4)]))
    rows = kernel.Rows(0, matrix.data, matrix.indices.astype(np.uint32), matrix.indptr.astype(np.int64), np.zeros(6),
                       np.zeros(0), np.arange(6), math.inf, math.inf)  # fmt: skip
    how = kernel.How(True, 3, 0.0, False, 1.0, 1.0, 1.0, 1.0, d, 0, 4.0, 0)
    law = kernel.Law(np.ones(1, np.int64), np.ones(1), 1.0, 0.0, multiplier - 0.5, 8.0, 1.0, 3, math.inf, 0.0)
    means = np.round(rng.standard_normal(d) * 4)
    return Stepper(stream, how, law, rows, Scheme(6, 3), 2), matrix, means


def test_a_lazy_inner_step_has_the_law_of_drawing_all_noises():
    """Buckets of different means, small multipliers with ties, and steps that have to be completed."""
    d, trials = 60, 5000
    stream = SecureStream.seeded(6)
    steps, matrix, means = reduced_stepper(stream, d)
    packed, snapshot = kernel.Means(means, *buckets(means)), (np.arange(4), np.ones(4))
    assert len(packed.starts) > 2
    lazy, served, real = {}, [], steps._serve
    steps._serve = lambda status: (served.append(status), real(status))
    for _ in range(trials):
        iterate = Iterate(2)
        steps.advance(iterate, 1, packed, snapshot)
        if iterate.filled == 2:
            key = outcomes(iterate.support, iterate.values, d)
            lazy[key] = lazy.get(key, 0) + 1

    def dense(multiplier, shift=0.0):
        rng, found = np.random.default_rng(7), {}
        for row in rounded_normals(SecureStream.seeded(8), multiplier, 2 * trials * d).reshape(-1, d):
            batch = matrix[rng.choice(6, 3, replace=False)].toarray()
            # Residuals of squared losses: the margin at 0 less that at the snapshot of ones.
            total = row - (batch * batch[:, :4].sum(axis=1)[:, None]).sum(axis=0)
            values = -(means + total + shift * (np.arange(d) >= 4))
            best = np.lexsort((np.arange(d), -np.abs(values)))[:2]
            key = outcomes(best, values[best], d)
            found[key] = found.get(key, 0) + 1
        return found

    assert_alike(lazy, dense(3))
    rejected(assert_alike, lazy, dense(2))
    rejected(assert_alike, lazy, dense(3, shift=0.5))
    assert served.count(kernel.COMPLETE) > 20


# --- fits -------------------------------------------------------------------------------------------------------------


def test_the_noise_of_snapshots_and_steps_has_its_law():
    """Noise spy: everything is kept, so that all releases of an epoch can be computed from the trace."""
    X, y = example(N, 150, seed=9)
    settings = {"l2": 0.0, "option": "I", "batch_size": 4, "snapshot_size": N, "epochs": 6}
    plan = make(tuple(settings.items()), "dp_scsg_ht", d=150)
    run = solvers.bind(plan, X, y)
    trace = run(SecureStream.seeded(1), True)
    noise, snapshots, w, z, place = run._parts[1], trace.history["snapshots"], np.zeros(150), [], 0
    assert trace.iterates.shape[0] == trace.history["inner_steps"].sum()
    for gradient, count in zip(snapshots, trace.history["inner_steps"].tolist(), strict=True):
        total = np.zeros(150)
        units, cap = noise.at(noise.law(w))
        kernel.add_records_on_grid(
            *run._rows, np.arange(N), noise.grids.row_unit, noise.grids.residual_unit, cap, 0, w, total
        )
        whole = noise.integers(gradient)
        assert not np.isnan(whole).any()
        z.append((whole - total) / units)
        w = trace.iterates[place + count - 1] if count else w
        place += count
    assert_ks(np.concatenate(z), "norm")
    rejected(assert_ks, 0.7 * np.concatenate(z), "norm")


@pytest.mark.parametrize("name", ["dp_svrg_ht", "dp_scsg_ht"])
def test_fits_differ_and_learn(name):
    X, y = example(2000, 12)
    more = {"snapshot_size": 800} if name == "dp_scsg_ht" else {}
    settings = {"loss": "logistic", "sparsity": 3, "epochs": 4, "batch_size": 100, "step_size": 2.0, "row_norm": 1.0,
                "epsilon": 4.0, "delta": 1e-6, "randomness": "secure", **more}  # fmt: skip
    one, two = (getattr(solvers, name)(X, y, trace=1, **settings) for _ in range(2))
    assert (one.coef != two.coef).any() and len(one.history["iterates"]) == 4
    assert np.argmax(np.abs(one.coef)) == 0 and "secure noise" in str(one.guarantee)


def test_the_audit_finds_a_third_of_the_noise_and_no_violation_of_the_plan():
    arguments = presets.PRESETS["dp_svrg_ht"] | {"delta": 1e-5, "epsilon": 8.0}
    plan = solvers.plan("dp_svrg_ht", randomness="secure", **arguments)
    pair = presets.pair(solvers.plan("dp_svrg_ht", **arguments))
    how = {"trials": 700, "alpha": 1e-6, "adversary": audit.strongest(pair), "delta": 1e-5}
    assert not audit.evidence(plan, pair, plan.guarantee, **how).refuted
    assert audit.evidence(plan.with_noise(factor=1 / 3), pair, plan.guarantee, **how).refuted
