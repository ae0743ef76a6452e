"""Knowledge transfer in integers: scores of a public range, exact selections, answers on a grid."""

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
from dptoolkit.randomness import SecureStream
from dptoolkit.solvers import _knowledge_transfer_secure as secure
from tests.statistics import assert_chi2, assert_ks, rejected

pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
LAYOUTS = pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])


def example(n=80, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d))
    return X, (X[:, 0] - X[:, 1] + 0.2 * rng.standard_normal(n) > 0).astype(float)


def make(n=80, d=5, **settings):
    base = {"loss": "logistic", "sparsity": 2, "feature_bound": 1.0, "epsilon": 2.0, "delta": 1e-6}
    if settings.get("row_norm") is not None:
        base.pop("feature_bound")
    return solvers.plan("knowledge_transfer", n=n, d=d, **(base | {"randomness": "secure"} | settings))


@pytest.mark.parametrize("settings", [{}, {"adjacency": "zero-out"}, {"row_norm": 1.0},
                                      {"loss": "squared", "label_bound": 2.0}], ids=str)  # fmt: skip
@LAYOUTS
def test_scores_move_by_at_most_the_integer_range_which_is_reached(settings, layout):
    plan, rng, worst = make(**settings), np.random.default_rng(1), 0.0
    allowed = secure.integer_range(plan, secure.score_grids(plan))
    label = 2.0 if settings.get("loss") == "squared" else 1.0
    X, y = example()
    X[:40, :2] = np.abs(X[:40, :2])
    y[:40] = label
    for trial in range(25):
        one, two, other_y = X.copy(), X.copy(), y.copy()
        one[3], two[3] = rng.standard_normal((2, 5)) * 10.0 ** rng.integers(-4, 4, 2)[:, None]
        if trial % 2:
            one[3], two[3] = [1, -1, 0, 0, 0], [-1, 1, 0, 0, 0]
        y[3] = other_y[3] = label
        if settings.get("adjacency") == "zero-out":
            two[3] = 0.0
        first, second = (solvers.bind(plan, layout(rows), labels).scores
                         for rows, labels in ((one, y), (two, other_y)))  # fmt: skip
        moves = [int(a) - int(b) for a, b in zip(first, second, strict=True)]
        assert max(moves) - min(moves) <= allowed
        worst = max(worst, (max(moves) - min(moves)) / allowed)
    assert worst > 0.9
    part = plan.secure.parts[1]
    assert Fraction(part.unit(allowed)) * allowed <= Fraction(part.epsilon)


def test_supports_and_answers_have_their_exact_law():
    X, y = example()
    run = solvers.bind(make(epsilon=0.4, m=20), X, y)
    unit = run.noise[1].unit(secure.integer_range(run.plan, secure.score_grids(run.plan)))
    pairs = {pair: k for k, pair in enumerate(itertools.combinations(range(5), 2))}
    counts, stream = np.zeros(len(pairs)), SecureStream.seeded(2)
    for support in run._supports(Generators(*[stream] * 2000), [{}]):
        counts[pairs[tuple(support.tolist())]] += 1

    def law(unit):
        p = np.exp(unit * run.scores.astype(float))
        p /= p.sum()
        return np.array([p[a] * p[b] / (1 - p[a]) + p[b] * p[a] / (1 - p[b]) for a, b in pairs])

    assert_chi2(counts, law(unit))
    rejected(assert_chi2, counts, law(3 * unit))
    trials, point = run.fits(Generators(*(SecureStream.seeded(k) for k in range(60))), True), run.noise[0]
    z = []
    for i in range(60):
        columns = trials.history(i)["support"]
        exact = np.asarray(run.settings.matrix(5, columns) @ run.ridge(columns))
        released = trials.releases[i, 0, -20:]
        assert np.isfinite(point.integers(released)).all()
        z.append((released - exact) / point.unit / point.multiplier())
    assert_ks(np.concatenate(z), "norm")
    rejected(assert_ks, 0.7 * np.concatenate(z), "norm")


@pytest.mark.parametrize("settings", [{"teacher": "ridge"}, {"row_norm": 1.0}, {"m": 20},
                                      {"features": np.eye(5)[[0, 1, 2, 3, 4, 0]]}], ids=str)  # fmt: skip
def test_the_charge(settings):
    plan, fast = make(**settings), make(**settings, randomness=None)
    point, m = plan.secure.first, plan.settings.m
    root = Fraction(math.isqrt(m * 4**40) + 1, 2**40)
    needed = Fraction(fast.sensitivity) + root * Fraction(point.unit)
    assert needed <= Fraction(plan.sensitivity) <= needed * (1 + Fraction(1, 10**9))
    assert plan.guarantee.epsilon(1e-6) == pytest.approx(fast.guarantee.epsilon(1e-6), rel=1e-9)
    if "features" in settings:
        run = solvers.bind(plan, *example())
        # A column that occurs once has a smaller norm than all of them, and a share of the noise.
        share = run._share(np.array([1, 2]))
        movement = plan.settings.answers_movement(80, 5, np.array([1, 2]))
        assert share < 1 and share * plan.sensitivity >= movement + math.sqrt(m) * point.unit


def test_the_attack_finds_nothing_but_breaks_the_fast_path():
    X, y = example(200, 30)
    other = X.copy()
    other[0] = -X[0]
    pair, report = ((X, y), (other, y)), {}
    for kind in ("secure", "fast"):
        plan = make(200, 30, teacher="ridge", row_norm=1.0, randomness=kind)
        runs = {id(rows): solvers.bind(plan, rows, labels) for rows, labels in pair}

        def answers(data, rng, runs=runs, kind=kind):
            stream = rng if kind == "fast" else SecureStream.seeded(int(rng.integers(2**62)))
            return runs[id(data[0])](stream, True).releases[0, -30:]

        exact = {key: np.asarray(run.settings.matrix(30) @ run.ridge(None)) for key, run in runs.items()}
        known = {"exact": lambda data, exact=exact: exact[id(data[0])], "scale": plan.noise}
        if kind == "secure":
            unit = plan.secure.first.unit
            known = {"exact": lambda data, exact=exact, unit=unit: np.rint(exact[id(data[0])] / unit), "scale": 1.0,
                     "grid": 1.0}  # fmt: skip
            report[kind] = audit.floating_point_attack(
                lambda data, rng, answers=answers, plan=plan: plan.secure.first.integers(answers(data, rng)),
                pair, trials=60, rng=1, **known,
            )  # fmt: skip
        else:
            report[kind] = audit.floating_point_attack(answers, pair, trials=60, rng=1, **known)
    assert report["secure"].certain == 0 and report["secure"].both == 60
    assert report["fast"].certain > 0.5 and report["fast"].wrong == 0


def test_an_audit_of_the_worst_pair(monkeypatch):
    numbers = iter(range(10**9))

    @contextmanager
    def stream(rng):
        yield SecureStream.seeded(next(numbers))

    monkeypatch.setattr(secure, "secure_stream", stream)
    plan = make(200, 3, loss="huber", sparsity=1, l2=0.1, epsilon=4.0, features="identity", feature_bound=0.5)
    pair = audit.pairs.knowledge_transfer(plan)
    game = {"trials": 1200, "confidence": 1 - 1e-6, "rng": 1, "adversary": max(pair.reach, key=pair.reach.get)}
    report = audit.audit(plan, pair, plan.guarantee, **game)
    weak = audit.audit(plan.with_noise(factor=0.4), pair, plan.guarantee, **game)
    assert not report.violated and weak.violated


def test_fits_differ_and_refusals():
    X, y = example(3000, 6)
    settings = {"loss": "logistic", "sparsity": 2, "feature_bound": 1.0, "epsilon": 4.0, "delta": 1e-6}
    one, two = (solvers.knowledge_transfer(X, y, randomness="secure", trace=True, **settings) for _ in range(2))
    assert (one.coef != two.coef).any() and set(np.flatnonzero(one.coef)) == {0, 1}
    plan = make(teacher="dp-ight", row_norm=1.0, steps=3)
    assert plan.secure.first.growth > 1 and "grid of rows" in str(plan)
    assert np.isfinite(solvers.bind(plan, *example())(None).weights).all()
    with pytest.raises(InvalidValue, match="randomness='secure'.*propose-test-release.*teacher='support'"):
        make(teacher="propose-test-release")
    with pytest.raises(InvalidValue, match="randomness='secure'.*'ight'"):
        make(calibration="published")
