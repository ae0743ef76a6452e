"""Secure batches: exact integer sums, exact batches, and the law of lazy steps is that of drawing all noises."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from dptoolkit import audit, solvers
from dptoolkit.accounting import Ledger
from dptoolkit.audit import presets
from dptoolkit.kernels import secure_steps as kernel
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.solvers.engine import secure_steps
from dptoolkit.solvers.engine.batches import Iterate
from dptoolkit.solvers.engine.secure_steps import Records, Scheme, Stepper
from tests.statistics import assert_binomial, assert_chi2, assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore:.*noise is too large", "ignore:delta=")

N, D = 64, 12
LAYOUTS = {"dense": np.array, "csr": sparse.csr_matrix}


def example(n=N, d=D, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6)
    return X, (X[:, 0] + 0.3 * rng.standard_normal(n) > 0).astype(float)


def make(name="dp_sgd_ht", n=N, d=D, **settings):
    """A plan on batches of all records, unless other ones are asked for."""
    base = {"loss": "logistic", "sparsity": 4, "steps": 6, "batch_size": n, "step_size": 1.0, "row_norm": 1.0,
            "epsilon": 1.0, "delta": 1e-6}  # fmt: skip
    if settings.get("loss") == "squared" and "grad_norm" not in settings:
        base |= {"label_bound": 1.0, "margin_bound": 1.0}
    return solvers.plan(name, n=n, d=d, **(base | settings))


CASES = [
    {}, {"sampling": "poisson"}, {"sampling": "poisson", "adjacency": "replace-one"}, {"fit_intercept": True},
    {"grad_norm": 0.1}, {"adaptive": False}, {"loss": "squared"}, {"loss": "huber"},
    {"loss": "squared", "row_norm": None, "grad_norm": 0.3, "sampling": "poisson"},
]  # fmt: skip


# --- plans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_event_is_that_of_the_plan_and_the_noise_is_not_less(settings):
    plan, charged = make(batch_size=16, **settings), make(batch_size=16, randomness="secure", **settings)
    noise = charged.secure.first
    assert charged.guarantee.epsilon(1e-6) == pytest.approx(plan.guarantee.epsilon(1e-6), rel=1e-9)
    assert 1 < charged.sensitivity / plan.sensitivity < 1.001 and charged.noise >= plan.noise
    # A charge for rounding where a diameter bounds the sensitivity, and only there.
    charges = not settings.get("sampling") and "grad_norm" not in settings and settings.get("adaptive", True)
    assert (noise.growth > 1 + 2**-20) == (charges and settings.get("loss") != "huber")
    law = secure_steps.plain_law(noise)
    for i in range(0, len(law.multipliers), 50):
        scale = Fraction(charged.noise) * Fraction(float(noise.law.shares[i]))
        assert int(law.multipliers[i]) * noise.grids.unit >= scale * 16 * (1 - Fraction(1, 2**45))
    for text in (str(charged), str(charged.guarantee), charged.to_json()):
        assert "ChaCha20" in text
    assert "batches are drawn exactly" in str(charged.guarantee) and "time is not protected" in str(charged.guarantee)


# --- sums -----------------------------------------------------------------------------------------------------------


@lru_cache
def summing(n, d, items):
    """The plan whose step keeps all coordinates, and takes the weights away."""
    settings = dict(items)
    return make(n=n, d=d, randomness="secure", **settings | {"sparsity": d, "steps": 1, "l2": 1.0})


def sums(X, y, w, settings, layout="csr"):
    """The integer gradient sums of all records at w, by a step without noise that keeps everything but the weights."""
    plan = summing(*X.shape, tuple(settings.items()))
    run = solvers.bind(plan.with_noise(factor=0.0), LAYOUTS[layout](X), y)
    # Poisson batches that are all records.
    run.scheme = Scheme(len(y), len(y))
    support = np.flatnonzero(w)
    places, values = run.advance(SecureStream.seeded(0), (support, w[support]), 1)
    out = np.zeros(run.width)
    out[places] = -values
    return plan, plan.secure.first.integers(out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("settings", CASES, ids=str)
def test_every_record_adds_its_own_integers(settings, layout):
    """Sums are those of single records to the last bit, whatever the others are: long, tiny, empty."""
    X, y = example(16, seed=1)
    X[0], X[1], X[2], X[3] = 1e300, 5e-324, 0.0, -0.0
    w = np.random.default_rng(2).standard_normal(D + bool(settings.get("fit_intercept"))) * 0.5
    _, total = sums(X, y, w, settings, layout)
    _, empty = sums(0 * X, y, w, settings, layout)
    assert not np.isnan(total).any()
    alone = empty.copy()
    for i in range(16):
        one = np.zeros_like(X)
        one[i] = X[i]
        alone += sums(one, y, w, settings, layout)[1] - empty
    np.testing.assert_array_equal(total, alone)


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_a_replaced_record_moves_the_integers_by_at_most_the_sensitivity(settings):
    """Exact, in Python's integers; opposite records of full length reach nine tenths of it."""
    zero_out, worst = settings.get("sampling") == "poisson" and "adjacency" not in settings, 0.0
    width, far = D + bool(settings.get("fit_intercept")), 50.0
    for size in (0.0, 0.3, 40.0):
        for across in (False, True):
            X, y = example(seed=4)
            w = np.eye(width)[0] * size
            # Across, margins are large and of one sign while most of the two rows is opposite.
            X[0] = far * (0.2 * np.eye(D)[0] + 0.98 * np.eye(D)[1] if across else np.eye(D)[0])
            y[0] = 0.0 if settings.get("loss", "logistic") == "logistic" else -far
            other, labels = X.copy(), y.copy()
            if zero_out:
                other[0] = 0.0
            elif y[0] < 0:
                labels[0] = far
            elif across and settings.get("fit_intercept"):
                # The column of ones has opposite gradients, too.
                other[0, 0], labels[0] = -X[0, 0], 1.0
            elif across:
                other[0, 1] = -X[0, 1]
            else:
                other[0] = -X[0]
            (plan, one), (_, two) = sums(X, y, w, settings), sums(other, labels, w, settings)
            noise = plan.secure.first
            share = Fraction(float(noise.law.share(float(np.linalg.norm(w)))))
            allowed = Fraction(plan.sensitivity) * N * share / noise.grids.unit
            square = sum((int(a) - int(b)) ** 2 for a, b in zip(one, two, strict=True))
            assert square <= allowed**2
            worst = max(worst, math.sqrt(square / allowed**2))
    assert worst > 0.9


@given(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), st.sampled_from([1.0, 0.37]), st.booleans())
def test_a_residual_is_on_its_grid_and_within_its_cap(values, cap, dithered):
    for place, r in enumerate(values):
        with np.errstate(over="ignore"):
            q = kernel.on_grid(r * 1e-9, 2.0**-16, math.floor(cap * 2**16), 12345 if dithered else 0, place)
        assert q == int(q) and abs(q) <= cap * 2**16
        assert abs(q) == math.floor(cap * 2**16) or abs(q * 2.0**-16 - r * 1e-9) <= 2.0**-16
    assert kernel.on_grid(math.nan, 2.0**-16, 5.0, 0, 1) == 0.0 and kernel.on_grid(math.inf, 1.0, 5.0, 7, 1) == 5.0


# --- batches --------------------------------------------------------------------------------------------------------


def stepper(scheme, stream, **changes):
    """Steps on a small set whose rows touch the first coordinates, with unit grids."""
    setting = {"d": 40, "sparsity": 2, "number": 3.0, "multiplier": 3} | changes
    rng = np.random.default_rng(5)
    matrix = sparse.csr_matrix(np.pad(rng.integers(-3, 4, (scheme.n, 4)) * 1.0, [(0, 0), (0, setting["d"] - 4)]))
    rows = kernel.Rows(
        0, matrix.data, matrix.indices.astype(np.uint32), matrix.indptr.astype(np.int64), np.ones(scheme.n),
        np.zeros(0), np.arange(scheme.n), math.inf, math.inf,
    )  # fmt: skip
    how = kernel.How(False, scheme.size, scheme.log_miss, scheme.complement, 1.0, 1.0, 1.0, 1.0, setting["d"], 0,
                     setting["number"], 0)  # fmt: skip
    law = kernel.Law(np.array([setting["multiplier"]]), np.array([4.0]), 1.0, 0.0, 0.0, 0.0, 1.0, 0, math.inf, 0.0)
    return Stepper(stream, how, law, rows, scheme, setting["sparsity"]), matrix


@pytest.mark.parametrize("scheme", [Scheme(20, 6), Scheme.of(20, 6, 0.3), Scheme.of(20, 16, 0.8)], ids=str)
def test_batches_have_their_law(scheme):
    """Every record equally often, every pair as often as it should be, sizes fixed or binomial."""
    records = Records(SecureStream.seeded(6), scheme)
    trials = 2000
    seen = np.zeros((trials, 20), bool)
    for row in seen:
        chosen = records.draw()
        assert len(np.unique(chosen)) == len(chosen)
        row[chosen] = True
    assert_chi2(seen.sum(axis=0), np.ones(20)) if scheme.size else None
    rate = scheme.size / 20 if scheme.size else scheme.rate
    for i in (0, 7, 19):
        assert_binomial(int(seen[:, i].sum()), trials, rate)
    both = rate * (scheme.size - 1) / 19 if scheme.size else rate**2
    assert_binomial(int((seen[:, 3] & seen[:, 12]).sum()), trials, both)
    rejected(assert_binomial, int(seen[:, 0].sum()), trials, 1.25 * rate)
    sizes = seen.sum(axis=1)
    if scheme.size:
        assert (sizes == scheme.size).all()
    else:
        assert_chi2(np.bincount(sizes, minlength=21), stats.binom.pmf(np.arange(21), 20, rate))
        rejected(assert_chi2, np.bincount(sizes, minlength=21), stats.binom.pmf(np.arange(21), 20, 0.9 * rate))


def test_words_that_doubles_cannot_decide_are_decided_exactly():
    """Gaps: the smallest words have too few digits for the kernel; the same word gives the exact answer."""

    class Planted(SimpleNamespace):
        def words(self, count):
            block = self.stream.words(count)
            block[::2] = 5
            return block

        def below(self, end):
            return self.stream.below(end)

    # A uniform number of 5 / 2^64 is a gap of 42,000, which is beyond the end.
    records = Records(Planted(stream=SecureStream.seeded(7)), Scheme.of(20, 6, 1e-3))
    assert len(records.draw()) == 0
    with pytest.MonkeyPatch.context() as patch:
        # The twin: what is hard is not decided by the same word.
        patch.setattr(secure_steps, "exact_gap", lambda digits, chance, most: 0)
        assert len(Records(Planted(stream=SecureStream.seeded(7)), Scheme.of(20, 6, 1e-3)).draw()) > 0
    # The steps have their own way to ask for it.
    steps, _ = stepper(Scheme.of(20, 6, 1e-3), Planted(stream=SecureStream.seeded(7)))
    served = []
    real = steps._serve
    steps._serve = lambda status: (served.append(status), real(status))
    steps.advance(Iterate(2), 1)
    assert kernel.HARD_RECORD in served and kernel.HARD_GAP in served


# --- the law of lazy steps ------------------------------------------------------------------------------------------


def outcomes(keys, values, d):
    """Classes of the result of a step: which third of the coordinates leads, and by how much."""
    order = np.lexsort((keys, -np.abs(values)))
    key, second = keys[order[0]], keys[order[-1]]
    third = lambda k: 0 if k < 4 else 1 + (k - 4) * 3 // (d - 4)  # noqa: E731
    return third(key), third(second), int(min(abs(values[order[0]]), 15))


def lazy_outcomes(trials, seed, shift=0, margin=None, monkeypatch=None, **changes):
    stream = SecureStream.seeded(seed)
    if margin is not None or shift:
        table = secure_steps.sampler(True)
        rates = table.rates if not shift else np.append(table.rates[shift:], [table.rates[-1]] * shift)
        margin = table.margin if margin is None else margin
        monkeypatch.setattr(secure_steps, "sampler", lambda _: table._replace(margin=margin, rates=rates))
    steps, _ = stepper(Scheme(6, 3), stream, **changes)
    found, served = {}, []
    real = steps._serve
    steps._serve = lambda status: (served.append(status), real(status))
    for _ in range(trials):
        iterate = Iterate(2)
        steps.advance(iterate, 1)
        kept = iterate.support[: iterate.filled], iterate.values[: iterate.filled]
        assert (np.diff(kept[0]) > 0).all() and (kept[1] != 0).all()
        if len(kept[0]) == 2:
            key = outcomes(*kept, changes.get("d", 40))
            found[key] = found.get(key, 0) + 1
    return found, served


def dense_outcomes(trials, seed, smaller=True, d=40, multiplier=3):
    """All noises drawn, then the largest."""
    stream, rng = SecureStream.seeded(seed), np.random.default_rng(seed)
    _, matrix = stepper(Scheme(6, 3), stream, d=d)
    found = {}
    noise = rounded_normals(stream, multiplier, trials * d).reshape(trials, d)
    for row in noise:
        batch = rng.choice(6, 3, replace=False)
        # Residuals of weights 0 and labels 1 are -1.
        values = -(row - np.asarray(matrix[batch].sum(axis=0)).ravel()).astype(float)
        keys = np.arange(d)
        best = np.lexsort((keys if smaller else -keys, -np.abs(values)))[:2]
        if (values[best] != 0).all():
            key = outcomes(keys[best], values[best], d)
            found[key] = found.get(key, 0) + 1
    return found


def assert_alike(one, two):
    keys = sorted({*one, *two}, key=lambda k: -(one.get(k, 0) + two.get(k, 0)))
    common = [k for k in keys if one.get(k, 0) + two.get(k, 0) >= 20]
    table = np.array([[found.get(k, 0) for k in common] + [sum(found.get(k, 0) for k in keys if k not in common) + 1]
                      for found in (one, two)])  # fmt: skip
    assert stats.chi2_contingency(table).pvalue > 1e-6


def test_a_lazy_step_has_the_law_of_drawing_all_noises(monkeypatch):
    """Small multipliers, where integers tie; levels that few reach, so that steps have to be completed."""
    dense = dense_outcomes(12_000, 8)
    lazy, served = lazy_outcomes(6000, 9)
    assert served.count(kernel.COMPLETE) > 50
    assert_alike(lazy, dense)
    # Twins: ties that go to the larger coordinate, a level that is 6/32 off, a tenth less noise.
    rejected(assert_alike, lazy, dense_outcomes(12_000, 8, smaller=False))
    rejected(assert_alike, lazy_outcomes(6000, 9, shift=6, monkeypatch=monkeypatch)[0], dense)
    rejected(assert_alike, lazy, dense_outcomes(12_000, 8, multiplier=2))


def test_many_coordinates_and_decisions_by_exact_arithmetic(monkeypatch):
    """With a margin of 2^-5 many tries are decided by exact arithmetic, with the words that the kernel saw."""
    lazy, served = lazy_outcomes(800, 10, margin=2.0**-5, monkeypatch=monkeypatch, d=200, multiplier=20, number=12.0)
    assert served.count(kernel.HARD_NORMAL) > 100 and served.count(kernel.HARD_CELL) > 100
    assert served.count(kernel.ROOM) == 0
    assert_alike(lazy, dense_outcomes(4000, 11, d=200, multiplier=20))


def test_cells_are_those_of_exact_arithmetic(monkeypatch):
    monkeypatch.setattr(kernel, "high_product", lambda a, b: np.uint64(int(a) * int(b) >> 64))
    stream, decided, ints = SecureStream.seeded(12), 0, np.zeros(kernel.INTS, np.int64)
    table = secure_steps.sampler(True)
    for level in (0, 1, 40, 120, 255):
        for _ in range(200):
            words = stream.words(3)
            ints[:] = 0
            ints[kernel.MULTIPLIER] = 1000
            with np.errstate(over="ignore"):
                status = kernel.draw_in_cells(words, ints, table, level)
            theirs = secure_steps.try_in_cells(level, tuple(int(w) for w in words), stream)
            if status == kernel.DONE:
                assert theirs.rounded(1000) == ints[kernel.NUMBER]
                decided += 1
            elif status == kernel.WORDS:
                assert theirs == "rejected"
    assert decided > 300


# --- fits -----------------------------------------------------------------------------------------------------------


def test_the_noise_of_a_step_has_its_law():
    """Noise spy: next weights minus exact steps are round(M Z) for the M of the public scale."""
    X, y = example(64, 200)
    settings = {"sparsity": 200, "steps": 30}
    run = solvers.bind(make(d=200, randomness="secure", **settings), X, y)
    iterates = run(SecureStream.seeded(1), True).iterates
    w, z = np.zeros(200), []
    for after in iterates:
        _, exact = sums(X, y, w, settings)
        noise, M = run.noise, run.noise.multiplier(run.noise.law(w))
        released = np.rint((w - after) * 64 / noise.grids.residual_unit / noise.grids.row_unit)
        z.append((released - exact) / M)
        w = after
    assert_ks(np.concatenate(z), "norm")
    rejected(assert_ks, 0.9 * np.concatenate(z), "norm")


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_attack_finds_nothing(epsilon):
    # Entries of few digits: the sum of doubles is exact, whatever the order of the batch is, which nobody knows.
    rng = np.random.default_rng(7)
    X, y = rng.integers(-8, 9, (64, 60)) / 64, rng.integers(0, 2, 64) * 1.0
    other = X.copy()
    other[0] = -X[0]
    settings = {"steps": 1, "sparsity": 60, "epsilon": epsilon, "d": 60}
    plans = {kind: make(randomness=kind, **settings) for kind in ("secure", "fast")}
    runs = {(kind, id(data)): solvers.bind(plan, data, y) for kind, plan in plans.items() for data in (X, other)}
    silent = {kind: plan.with_noise(factor=0.0) for kind, plan in plans.items()}
    quiet = {
        (kind, id(data)): solvers.bind(plan, data, y)(np.random.default_rng(0)).weights
        for kind, plan in silent.items()
        for data in (X, other)
    }
    whole = plans["secure"].secure.first.integers
    safe = audit.floating_point_attack(
        lambda data, rng: whole(runs["secure", id(data)](None).weights), (X, other), trials=100, rng=1,
        exact=lambda data: whole(quiet["secure", id(data)]), scale=1.0, grid=1.0,
    )  # fmt: skip
    assert safe.certain == 0 and safe.both == 100
    scale = plans["fast"].settings.noise_law(plans["fast"])(np.zeros(0))
    fast = audit.floating_point_attack(
        lambda data, rng: runs["fast", id(data)](rng).weights, (X, other), trials=100, rng=1,
        exact=lambda data: quiet["fast", id(data)], scale=scale,
    )  # fmt: skip
    assert fast.certain >= 0.9 and fast.wrong == 0


def test_fits_differ_learn_and_are_charged():
    X, y = example(3000, 12)
    settings = {"loss": "logistic", "sparsity": 4, "steps": 40, "batch_size": 200, "step_size": 2.0, "row_norm": 1.0,
                "epsilon": 2.0, "delta": 1e-6, "randomness": "secure"}  # fmt: skip
    ledger = Ledger(epsilon=3.0, delta=1e-5)
    one, two = solvers.dp_sgd_ht(X, y, **settings), solvers.dp_sgd_ht(X, y, trace=10, ledger=ledger, **settings)
    assert len(ledger.entries) == 1 and len(two.history["iterates"]) == 4
    assert (one.coef != two.coef).any() and "secure noise" in str(one.guarantee)
    for fit in (one, two):
        assert np.argmax(np.abs(fit.coef)) == 0 and np.count_nonzero(fit.coef) == 4
    for sampling in ("poisson", "without-replacement"):
        run = solvers.bind(make(n=3000, batch_size=200, sampling=sampling, randomness="secure"), X, y)
        same = [run.fit(SecureStream.seeded(3), every)[0] for every in (0, 1, 4)]
        assert (same[0] == same[1]).all() and (same[0] == same[2]).all()


def test_millions_of_features_take_no_vector_of_their_length():
    places = np.sort(np.random.default_rng(0).integers(0, 20_000_000, (200, 10)))
    X = sparse.csr_matrix((np.ones(2000), places.ravel(), np.arange(0, 2001, 10)), shape=(200, 20_000_000))
    run = solvers.bind(make(n=200, d=20_000_000, batch_size=20, steps=5, randomness="secure"), X, np.arange(200) % 2)
    stepper = run.stepper(SecureStream.seeded(1))
    assert max(a.nbytes for a in (*stepper._entries, stepper._noises, stepper._found)) < 1e6
    iterate = Iterate(4)
    stepper.advance(iterate, 5)
    assert iterate.filled == 4 and (np.diff(iterate.support) > 0).all()


AUDITED = {
    "dp_sgd_ht": {"n": 200, "d": 4, "sparsity": 2, "steps": 2, "step_size": 1.0, "epsilon": 8.0, "delta": 1e-5,
                  "loss": "squared", "grad_norm": 0.7, "batch_size": 200, "row_norm": None},
}  # fmt: skip


@pytest.mark.parametrize("name", AUDITED)
def test_the_audit_finds_a_third_of_the_noise_and_no_violation_of_the_plan(name):
    plan = solvers.plan(name, randomness="secure", **AUDITED[name])
    pair = presets.pair(solvers.plan(name, **AUDITED[name]))
    how = {"trials": 700, "alpha": 1e-6, "adversary": audit.strongest(pair), "delta": 1e-5}
    assert not audit.evidence(plan, pair, plan.guarantee, **how).refuted
    assert audit.evidence(plan.with_noise(factor=1 / 3), pair, plan.guarantee, **how).refuted
