"""The runs behind the tables and figures of sparse private LASSO, on small problems, and verdicts that can change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dptoolkit import solvers
from paper_checks import seeds
from paper_checks.__main__ import ROOT
from paper_checks.claims import load
from paper_checks.items import _table
from paper_checks.khanna_2023_lasso import cells, figures, outcomes, paths, plain, problems, ranks, related
from paper_checks.khanna_2023_lasso import rates as lasso_rates
from paper_checks.khanna_2023_lasso import runs as lasso_runs
from paper_checks.khanna_2023_lasso.runs import BORROWED, DENSE, OWN, PUBLISHED, SPARSIFIER, TIGHT, Runs, Scores

# Delta is 1/n, as in the paper, and the plans of tests are small.
pytestmark = [
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning"),
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning"),
]
PAPER = load(ROOT / "khanna_2023_lasso")
TABLES = PAPER.tables


def _rows(n=300, p=8, seed=0):
    draw = np.random.default_rng(seed)
    X = draw.uniform(-1, 1, (n, p))
    return X, (X[:, 0] - 0.7 * X[:, 1] > 0).astype(float), draw


def test_a_path_without_noise_is_frank_wolfe_on_the_rows_of_the_trial():
    X, y, draw = _rows()
    inside = lasso_runs.splits(len(y), 3, draw)
    assert (inside.sum(axis=1) == 240).all() and not (inside[0] == inside[1]).all()
    path = paths.frank_wolfe(X, y, inside, 5.0, np.zeros(3), 40, draw, keep=(10,))
    assert sorted(path.weights) == [10, 40] and len(path.nonzeros) == 40
    for part, w in zip(inside, path.weights[40], strict=True):
        w_plain = np.zeros(8)
        for t in range(1, 41):
            gradient = X[part].T @ (1 / (1 + np.exp(-(X[part] @ w_plain))) - y[part]) / part.sum()
            best = int(np.argmax(np.abs(gradient)))
            w_plain *= 1 - 2 / (t + 2)
            w_plain[best] -= 2 / (t + 2) * 5.0 * np.sign(gradient[best])
        np.testing.assert_allclose(w, w_plain, atol=1e-9)


@pytest.mark.parametrize(("law", "mean", "variance"), [(paths.LAPLACE, 0.0, 2.0), (paths.GUMBEL, 0.5772, np.pi**2 / 6)])
def test_noise_has_its_law(law, mean, variance):
    noise = paths._noise(np.random.default_rng(0), law, (400, 500), np.dtype(np.float32))
    # Five standard errors: error rate 1e-6.
    assert abs(noise.mean() - mean) < 5 * np.sqrt(variance / 200_000)
    assert noise.var() == pytest.approx(variance, rel=0.05)


def test_the_scales_are_the_printed_one_and_the_smallest():
    plan = solvers.plan("dp_frank_wolfe", n=8000, d=100, loss="logistic", l1_radius=10.0, feature_bound=1.0, steps=1000,
                        epsilon=1.0, delta=1 / 8000, calibration="published", law="laplace")  # fmt: skip
    assert lasso_runs.noise_scale(PUBLISHED, 8000, 100, 1000, 1.0) == pytest.approx(plan.releases[0].scale)
    fewer = solvers.plan("dp_frank_wolfe", n=8000, d=100, loss="logistic", l1_radius=10.0, feature_bound=1.0, steps=40,
                         epsilon=1.0, delta=1 / 8000)  # fmt: skip
    assert lasso_runs.noise_scale(TIGHT, 8000, 100, 41, 1.0) == pytest.approx(fewer.releases[0].scale)


def test_hard_thresholding_keeps_the_number_of_each_trial_and_follows_the_gradient():
    X, y, draw = _rows()
    kept = np.array([2, 5])
    w = paths.hard_thresholding(X, y, 10.0, np.array([2.0, 2.0]), kept, np.zeros(2), 50, draw)
    assert np.count_nonzero(w, axis=1).tolist() == [2, 5]
    plain = solvers.ight(X, y, loss="logistic", sparsity=2, steps=50, step_size=2.0)
    np.testing.assert_allclose(w[0], plain.coef, atol=1e-4)


def test_a_cut_keeps_the_largest_and_fewer_iterations_match_the_nonzeros():
    np.testing.assert_array_equal(lasso_runs.cut(np.array([[3.0, -4.0, 1.0]]), np.array([2])), [[3.0, -4.0, 0.0]])
    X, y, draw = _rows(p=60)
    given = problems.Problem(X.astype(np.float32), y, 240)
    steps = lasso_runs.fewer(given, PUBLISHED, 9.0, draw)
    # At this noise selections are uniform: 9 of 60 features are 9 or 10 draws, and T makes T - 1.
    assert 8 <= steps <= 13


def test_connections_become_features_of_norm_one():
    X = problems.kddcup_features(
        np.array([[0, kind, 24, 9, k, *[0] * 36] for k, kind in enumerate([1, 2, 1], 1)], float)
    )
    assert X.shape == (3, 38 + 2 + 1 + 1)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1)
    y = np.array([1.0] * 50 + [0.0] * 50)
    rows = problems.kddcup_rows(y, np.random.default_rng(0), 20, 30)
    assert len(set(rows)) == 30 and y[rows].sum() == 20


def test_settings_for_connections_are_chosen_on_rows_that_are_never_reported(monkeypatch):
    count = 60_000
    records = np.zeros((4 * count, 41))
    records[:, 4] = np.arange(1, 4 * count + 1)
    y = (np.arange(4 * count) // 2 % 2).astype(float)
    monkeypatch.setattr(problems, "connections", lambda home: (records, y))
    monkeypatch.setattr(problems, "kddcup_features", lambda rows: rows)
    problems.kddcup_parts.cache_clear()
    parts = [problems.kddcup_parts(None, half)(np.random.default_rng(half)) for half in (0, 1)]
    problems.kddcup_parts.cache_clear()
    reported, others = ({*part.X[:, 4], *part.validation[0][:, 4], *part.test[0][:, 4]} for part in parts)
    assert len(reported) == len(others) == 12_000 and not reported & others
    # And the choice takes them.
    seen = []

    def make(label):
        def made(draw):
            seen.append(label)
            X = draw.uniform(-1, 1, (40, 3))
            rows = X, (X[:, 0] > 0).astype(float)
            return problems.Split(*rows, rows, rows, 40, 3.0)

        return made

    monkeypatch.setattr(related, "fitted", lambda data, rng, jobs: [np.ones(3) for _ in jobs])
    related.outcome(make("reported"), seeds.source(0, "p", "i"), (8.0,), 3, (8,), make_tuning=make("others"))
    assert seen == ["others"] * 2 + ["reported"] * 3


# --- verdicts on made runs -------------------------------------------------------------------------------------------


def _made(columns=("SPLICE", "MUSHROOM"), own=-2.0, borrowed=5.0, offset=0.0, plain=None):
    """Runs that meet the tables but for ``offset``; Sparsifier is ahead by ``own`` and ``borrowed`` points."""
    draw, made = np.random.default_rng(0), {}
    for column in columns:
        number = TABLES["T1"].columns.index(column)
        printed = {name: TABLES["T2"].mean[name][number] for name in TABLES["T2"].mean}
        base = draw.normal(0, 0.3, 40) + printed["Sparsifier accuracy"] + offset

        def scores(name, gap, base=base, number=number, printed=printed):
            area = base + printed["Sparsifier AUC"] - printed["Sparsifier accuracy"] - gap
            counts = TABLES["T1"].mean[name][number] + draw.normal(0, 0.5, 40)
            return Scores(counts, base - gap, area + draw.normal(0, 0.1, 40), 30)

        found = {
            (PUBLISHED, SPARSIFIER): scores("Sparsifier", 0.0),
            (PUBLISHED, OWN): scores("Sparsifier", own),
            (PUBLISHED, BORROWED): scores("Sparsifier", borrowed),
            (PUBLISHED, DENSE): scores("Private LASSO", 0.0),
        }
        count = TABLES["T1"].mean["non-private"][number] if plain is None else plain
        made[column, problems.FILE] = Runs(60, 2000, np.full(4, count), found)
    return made


def _planted(name):
    """The table of an item with the values of its twin."""
    (item,) = (item for item in PAPER.items if item.id == name)
    return _table(PAPER.tables, item.arguments["table"], item.twin["plant"], name)


def test_counts_agree_or_do_not():
    table = TABLES["T1"]
    assert cells.compare_plain(_made(), table, 0.25).verdict == "met"
    assert cells.compare_plain(_made(), table.planted("non-private", 2, 15), 0.25).verdict == "depends on reading"
    assert cells.compare_plain(_made(plain=90), table, 0.25).verdict == "not reached here"
    assert cells.compare_private(_made(), table, 0.0).verdict == "met"
    wrong = table.planted("Private LASSO", 2, 57.0)
    assert cells.compare_private(_made(), wrong, 0.0).verdict == "depends on reading"
    # The twins of the tables: other printed values.
    assert cells.compare_plain(_made(), _planted("LASSO-T1e"), 0.25).verdict == "not reached here"
    assert cells.compare_private(_made(), _planted("LASSO-T1f"), 0.02).verdict == "not reached here"
    assert cells.compare_scores(_made(borrowed=30.0), _planted("LASSO-T2a"), 3.0).verdict == "not reached here"
    # A stand-in gets no verdict.
    assert cells.compare_plain(_made(("SPLICE", "GISETTE")), table.planted("non-private", 9, 3), 0.25).verdict == "met"


def test_cells_of_table_2_are_near_or_not():
    found = cells.compare_scores(_made(borrowed=30.0), TABLES["T2"], 3.0)
    assert found.verdict == "depends on reading" and len(found.rows) == 6
    assert cells.compare_scores(_made(), TABLES["T2"], 100.0).verdict == "met"
    assert cells.compare_scores(_made(offset=50.0), TABLES["T2"], 3.0).verdict == "not reached here"


def test_significance_and_iterations_are_paired_tests():
    both = [OWN, BORROWED]
    found = ranks.judge_significance(_made(), TABLES["T2"], both)
    assert "own noise, scaled values: better in 0, worse in 4 of 4" in found.computed
    assert "noise for 1000, scaled values: better in 4, worse in 0 of 4" in found.computed
    assert found.verdict == "depends on reading"
    assert ranks.judge_iterations(_made(), TABLES["T2"], OWN).verdict == "order reversed"
    assert ranks.judge_iterations(_made(), TABLES["T2"], BORROWED).verdict == "order kept"
    assert ranks.judge_iterations(_made(own=0.0), TABLES["T2"], OWN).verdict == "tie"


def test_density_compares_three_counts():
    assert ranks.judge_density(_made(), "denser, then sparser").verdict == "met"
    assert ranks.judge_density(_made(plain=500), "denser, then sparser").verdict == "not reached here"
    assert ranks.judge_density(_made(), "sparser, then denser").verdict == "not reached here"


# --- figures ---------------------------------------------------------------------------------------------------------


def _outcome(ahead=True):
    """Sparsifier finds the support and a low error, or nothing; the others the opposite."""
    names = [SPARSIFIER, *(name(size) for name in (related.ight, related.stages) for size in (8, 15))]
    good, bad = np.zeros(100), np.zeros(100)
    good[:8], bad[50:70] = 1.0, 1.0
    weights, errors = {}, {}
    for noise in (PUBLISHED, TIGHT):
        for name in names:
            best = (name == SPARSIFIER) == ahead
            weights[noise, name] = np.tile(good if best else bad, (21, 2, 1))
            errors[noise, name] = np.full((21, 2), 0.1 if best else 0.3)
    return outcomes.Outcome(weights, errors, {})


def test_figures_rank_the_methods():
    for name in ("zeros", "f1", "error"):
        assert figures.judge_best(_outcome(), name, SPARSIFIER, [1.0, 2.0]).verdict == "order kept"
        assert figures.judge_best(_outcome(ahead=False), name, SPARSIFIER, [1.0, 2.0]).verdict == "not reached here"
    assert figures.judge_best(_outcome(), "error", related.ight(8), [1.0, 2.0]).verdict == "not reached here"
    assert figures.judge_lost(_outcome(), [1.0, 2.0], 1.0).verdict == "met"
    assert figures.judge_lost(_outcome(ahead=False), [1.0, 2.0], 1.0).verdict == "not reached here"
    assert figures.judge_lost(_outcome(), [1.0, 2.0], 1.0, first=92).verdict == "not reached here"
    assert figures.judge_kddcup(_outcome(), SPARSIFIER, [1.0, 2.0]).verdict == "order kept"
    assert figures.judge_kddcup(_outcome(ahead=False), SPARSIFIER, [1.0, 2.0]).verdict == "not reached here"


def test_settings_are_chosen_on_other_data_and_every_method_is_fitted():
    def make(draw):
        X = draw.uniform(-1, 1, (400, 20))
        y = (X[:, 0] > 0).astype(float)
        return problems.Split(X[:200], y[:200], (X[200:300], y[200:300]), (X[300:], y[300:]), 200, 3.0)

    found = related.outcome(make, seeds.source(0, "p", "i"), (8.0,), 2, (8,), tuning=1, charged=1)
    assert found.errors[TIGHT, related.stages(8)].shape == (2, 1) and (PUBLISHED, related.stages(8)) not in found.errors
    for key, weights in found.weights.items():
        if "charged" in key[1]:
            continue
        assert weights.shape == (2, 1, 20) and found.chosen[key][0] > 0, key
    # Of the two data sets the first is also fitted with the choice charged; Two stage cannot be.
    beside = {name: errors.shape for (_, name), errors in found.errors.items() if "charged" in name}
    assert beside == {f"{name}, choice charged": (1, 1) for name in (SPARSIFIER, related.ight(8))}
    assert (np.count_nonzero(found.weights[TIGHT, f"{related.ight(8)}, choice charged"], axis=-1) <= 8).all()
    # Without noise the one true feature is found, on the same data sets.
    alone = plain.measured(make, seeds.source(0, "p", "i"), 2)
    assert np.all(alone.weights[TIGHT, plain.NAME][:, 0, 0] > 0)
    assert np.all(alone.errors[TIGHT, plain.NAME] < found.errors[TIGHT, related.stages(8)])


def test_gumbel_noise_is_finite_where_an_exponential_variable_is_rounded_to_zero():
    class Zeros:
        def standard_exponential(self, shape, kind):
            return np.zeros(shape, kind)

    noise = paths._noise(Zeros(), paths.GUMBEL, (3, 2), np.dtype(np.float32))
    assert noise.shape == (3, 2) and np.all(noise == np.float32(-np.log(np.float32(1e-8))))


# --- rates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "bound met"), (1.1, "not reached here")])
def test_along_the_radius_the_excess_risk_is_compared_with_the_bound_itself(factor, verdict, monkeypatch):
    def bound(n, epsilon, p, radius):
        return radius ** (4 / 3) * math.log(n * p / 1e-5) / (n * epsilon) ** (2 / 3)

    # As steep in the radius as is seen: errors are far below the bound in small balls.
    monkeypatch.setattr(lasso_rates, "_excess", lambda shared, repetitions, **at: np.full(
        repetitions, bound(**at) * factor * min(1.0, at["radius"] / 8) ** 3))  # fmt: skip
    exponents = {"n": -2 / 3, "epsilon": -2 / 3, "radius": 4 / 3, "log": 1.0}
    sizes = ["n", "epsilon", "radius", "p"]
    found = lasso_rates.corollary_3(None, exponents, sizes, 6, 0.1, constant=1.0)
    assert found.verdict == verdict and len(found.rows) == len(found.charts) == 4
