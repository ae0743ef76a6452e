"""Pairs for selection solvers: neighbours within the bounds, prepared runs are the solver, likelihoods are exact.

Simulations are compared with closed forms at an error rate of 1e-6 (tests/statistics.py), each with a twin that fails.
"""

from __future__ import annotations

import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit

from dptoolkit import audit, solvers
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import as_claim
from dptoolkit.audit.pair import check_neighbours
from dptoolkit.audit.pairs._frank_wolfe import event_odds
from dptoolkit.audit.pairs._multinomial_frank_wolfe import _balanced
from dptoolkit.audit.pairs._sparsifier import CountLaw
from dptoolkit.audit.streams import Streams
from dptoolkit.audit.targets import PlanTarget
from dptoolkit.audit.theory import odds
from dptoolkit.audit.theory.replay import Replay, exact_count, noise_scale
from dptoolkit.errors import InvalidValue, PrivacyViolation
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.frame.fit import fit_stream
from dptoolkit.solvers.frame.plan import SYMMETRIC_MAXIMUM
from tests.statistics import ALPHA, assert_binomial, assert_chi2, rejected

BUDGET = {"epsilon": 1.0, "delta": 1e-5}
L1 = {"l1_radius": 0.1, "steps": 10, "feature_bound": 1.0}
SPLIT = {"epsilon": 1.5, "count_share": 1 / 3, "delta": 1e-5, "count_steps": 60}
PEEL = BUDGET | {"sparsity": 2, "steps": 4, "step_size": 0.1, "radius": 0.01, "feature_bound": 1.0, "label_bound": 1.0}
PLANS = {
    "logistic": ("dp_frank_wolfe", L1 | BUDGET | {"loss": "logistic"}),
    "huber": ("dp_frank_wolfe", L1 | BUDGET | {"loss": "huber", "l1_radius": 1.0}),
    "squared": ("dp_frank_wolfe", L1 | BUDGET | {"loss": "squared", "label_bound": 1.0}),
    "laplace": ("dp_frank_wolfe", L1 | BUDGET | {"loss": "huber", "law": "laplace"}),
    "published": ("dp_frank_wolfe", L1 | BUDGET | {"loss": "logistic", "calibration": "published"}),
    "sparsifier": ("sparsifier", L1 | SPLIT | {"loss": "logistic"}),
    "sparsifier, huber": ("sparsifier", L1 | SPLIT | {"loss": "huber"}),
    "sparsifier, fixed": ("sparsifier", L1 | SPLIT | {"count": "fixed", "number": 2, "epsilon": 1.0}),
    "vertex": ("dp_multinomial_frank_wolfe", L1 | BUDGET | {"classes": 3}),
    "columns": ("dp_multinomial_frank_wolfe", L1 | BUDGET | {"classes": 2, "selection": "columns"}),
    "three columns": ("dp_multinomial_frank_wolfe", L1 | BUDGET | {"classes": 3, "selection": "columns"}),
    "ten columns": ("dp_multinomial_frank_wolfe", L1 | BUDGET | {"classes": 10, "selection": "columns", "steps": 4}),
    "peeling": ("peeling_iht", PEEL),
    "peeling, wide": ("peeling_iht", PEEL | {"radius": 10.0}),
    "peeling, split": ("peeling_iht", PEEL | {"data": "split"}),
    "peeling, published": ("peeling_iht", PEEL | {"calibration": "published"}),
}
RELATIONS = ["replace-one", "zero-out"]


def make(name, n=60, d=6, **more):
    solver, arguments = PLANS[name]
    return solvers.plan(solver, n=n, d=d, **arguments | more)


def outputs(plan, data, runs, adversary, seed=0):
    """What an adversary sees of ``runs`` runs, which audits make at once."""
    target = PlanTarget(plan, SimpleNamespace(first=data, second=data), adversary)
    return target.run(np.ones(runs, np.int8), 0, Streams(seed, "outputs"))


# --- the data -----------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("name", PLANS)
def test_pairs_are_neighbours_within_the_bounds(name, adjacency):
    if adjacency == "zero-out" and "published" in name:
        pytest.skip("the paper's relation is replace-one")
    plan = make(name, adjacency=adjacency)
    pair = getattr(pairs, plan.solver)(plan)
    check_neighbours(pair)
    assert pair.adjacency is plan.adjacency
    assert not np.array_equal(pair.first.X, pair.second.X) or not np.array_equal(pair.first.y, pair.second.y)
    for data in pair:
        assert (data.n, data.X.shape[1]) == (plan.n, plan.d)
        assert np.abs(data.X).max() <= plan.settings.feature_bound
        if getattr(plan.settings, "label_bound", None) is not None:
            assert np.abs(data.y).max() <= plan.settings.label_bound
    assert {"releases", "step"} <= set(pair.scores) <= {"releases", "step", "final", "iterates"}


def test_what_no_pair_is_for_is_refused():
    with pytest.raises(InvalidValue, match="plan.solver"):
        pairs.dp_frank_wolfe(make("peeling"))
    with pytest.raises(InvalidValue, match="fit_intercept"):
        pairs.dp_frank_wolfe(make("logistic", fit_intercept=True, adjacency="zero-out"))
    with pytest.raises(InvalidValue, match="noise"):
        pairs.dp_frank_wolfe(make("logistic", epsilon=math.inf))
    with pytest.raises(InvalidValue, match="pulling"):
        pairs.dp_frank_wolfe(make("logistic"), pulling=60)
    with pytest.raises(InvalidValue, match="scale"):
        pairs.selection(NoisyMaximum(0.0, 1.0))
    with pytest.raises(InvalidValue, match="candidates"):
        pairs.selection(NoisyMaximum(1.0, 1.0), candidates=1)


# --- prepared runs are the solver ---------------------------------------------------------------------


def arguments_of(name):
    solver, arguments = PLANS[name]
    return getattr(solvers, solver), arguments


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_the_solver_is_the_prepared_run(name, intercept, layout):
    solver, arguments = arguments_of(name)
    if intercept and solver is solvers.peeling_iht:
        pytest.skip("has no intercept")
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((20, 5)), np.arange(20) % 2
    X[4] = 0.0
    more = {"fit_intercept": True} if intercept else {}
    result = solver(layout(X), y, rng=5, **arguments, **more)
    plan = solvers.plan(solver.__name__, n=20, d=5, **arguments, **more)
    for trace in (False, True):
        run = solvers.bind(plan, layout(X), y)
        again, w = fit_stream(plan, Source.of(5)), run(fit_stream(plan, Source.of(5)), trace).weights
        np.testing.assert_array_equal(run(again, trace).weights, w, err_msg="a run changed what was prepared")
        np.testing.assert_array_equal(np.atleast_2d(w)[:, :5], np.atleast_2d(result.coef))
        assert plan == result.plan


@pytest.mark.parametrize("name", ["logistic", "sparsifier", "vertex", "columns", "peeling"])
def test_a_trace_costs_nothing_and_changes_nothing(name):
    plan = make(name)
    data = getattr(pairs, plan.solver)(plan).first
    run = solvers.bind(plan, data.X, data.y, data.counts)
    without, with_it = run(np.random.default_rng(0), False), run(np.random.default_rng(0), True)
    assert without.releases is None and without.iterates is None
    np.testing.assert_array_equal(without.weights, with_it.weights)
    steps = plan.settings.steps
    shape = {"sparsifier": (steps + 1,), "columns": (steps, 6), "peeling": (steps, 6)}.get(name, (steps,))
    assert with_it.releases.shape == shape
    if with_it.iterates is not None:
        assert with_it.iterates.shape == (steps, with_it.weights.size)
        np.testing.assert_array_equal(with_it.iterates[-1], with_it.weights.ravel())


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("name", ["logistic", "sparsifier", "vertex", "peeling", "peeling, split"])
def test_counts_are_rows_written_out(name, layout):
    plan = make(name)
    data = getattr(pairs, plan.solver)(plan).first
    X, y = data.expand()
    few, many = solvers.bind(plan, layout(data.X), data.y, data.counts), solvers.bind(plan, layout(X), y)
    for seed in range(5):
        one, two = (run(np.random.default_rng(seed), True) for run in (few, many))
        np.testing.assert_allclose(one.releases, two.releases, rtol=1e-12)


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("name", PLANS)
def test_data_without_a_feature_can_be_run(name, layout):
    plan = make(name)
    trace = solvers.bind(plan, layout(np.zeros((60, 6))), np.zeros(60))(np.random.default_rng(0), True)
    assert np.isfinite(trace.weights).all()


def test_data_of_another_size_are_refused():
    plan = make("logistic")
    with pytest.raises(InvalidValue, match="X='59 rows of 6 features': must be the 60 rows of 6 features of the plan"):
        solvers.bind(plan, np.zeros((59, 6)), np.zeros(59))
    for counts in ([30, 29], [30, -30, 60], [30.0, 30.0], [60]):
        with pytest.raises(InvalidValue, match="counts|X="):
            solvers.bind(plan, np.zeros((2, 6)), np.zeros(2), np.array(counts))
    with pytest.raises(InvalidValue, match="y.shape"):
        solvers.bind(plan, np.zeros((2, 6)), np.zeros(3), np.array([30, 30]))


# --- exact probabilities ------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["gumbel", "laplace", "exponential"])
@pytest.mark.parametrize(("gap", "favoured", "others"), [(-1.5, 1, 4), (0.7, 3, 3), (0.2, 5, 2)])
def test_favoured_wins_is_the_frequency(noise, gap, favoured, others):
    mechanism, rng, draws = NoisyMaximum(2.0, 1.0, noise), np.random.default_rng(0), 20_000
    scores = np.where(np.arange(favoured + others) < favoured, 2.0 * gap, 0.0)
    wins = sum(mechanism.select(scores, rng) < favoured for _ in range(draws))
    expected = odds.favoured_wins(noise, gap, favoured, others)
    assert_binomial(wins, draws, expected)
    rejected(assert_binomial, wins, draws, odds.favoured_wins(noise, gap + 0.4, favoured, others))
    assert expected + odds.favoured_wins(noise, -gap, others, favoured) == pytest.approx(1.0, abs=1e-12)


def test_favoured_wins_with_many_candidates():
    """With 400 on each side the largest Laplace draws are as Gumbel ones: the odds are e^gap."""
    assert odds.favoured_wins("laplace", 1.0, 400, 400) == pytest.approx(float(expit(1.0)), abs=2e-3)


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("name", ["logistic", "huber", "squared", "laplace"])
def test_first_selection_has_the_computed_odds_and_reaches_the_plan(name, adjacency):
    """Both datasets, by simulation of the solver; the log odds move by all that the plan's event allows."""
    plan = make(name, epsilon=8.0, adjacency=adjacency)
    pair = pairs.dp_frank_wolfe(plan)
    replay = pair.scores["releases"].replay
    computed, runs = replay.first_odds(), 20_000
    for data, odd in zip(pair, computed, strict=True):
        vertex = outputs(plan, data, runs, "step")[:, 0]
        favoured = int((vertex >= plan.d).sum())
        assert_binomial(favoured, runs, float(expit(odd)))
        rejected(assert_binomial, favoured, runs, float(expit(odd + 0.15)))
        assert_chi2(np.bincount(vertex.astype(int) % plan.d, minlength=plan.d), np.full(plan.d, 1 / plan.d))
    moved, event = computed[0] - computed[1], plan.releases[0].event.epsilon
    if name == "laplace":
        # Six against six candidates: more than two would give, less than twice the range.
        assert 0.8 * event < moved < 1.2 * event
    else:
        assert 0.999 * event < moved <= event * (1 + 1e-9)


def test_composition_of_the_pair_is_exact_where_rounds_are_alike():
    """Huber residuals at their bound do not depend on the weights: reach is the exact binomial composition's."""
    plan = make("huber")
    pair = pairs.dp_frank_wolfe(plan)
    one, two = pair.scores["releases"].replay.first_odds()
    exact = odds.rounds_epsilon(one, two, 10, 1e-5) / plan.guarantee.epsilon(1e-5)
    assert exact > 0.92
    assert pair.reach["releases"] == pytest.approx(exact, abs=0.02)
    balanced = pairs.dp_frank_wolfe(plan, pulling=0)
    assert balanced.reach["releases"] < pair.reach["releases"] - 0.05


def test_rounds_epsilon_by_hand():
    """One round: P = (p, 1 - p) against (q, 1 - q)."""
    p, q = float(expit(1.0)), float(expit(-0.5))
    wanted = max(math.log((p - 0.01) / q), math.log((1 - q - 0.01) / (1 - p)))
    assert odds.rounds_epsilon(1.0, -0.5, 1, 0.01) == pytest.approx(wanted, rel=1e-9)
    assert odds.rounds_advantage(1.0, -0.5, 1) == pytest.approx(p - q)
    assert odds.rounds_epsilon(0.3, 0.3, 5, 1e-5) == 0.0


# --- one selection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidates", [4, 10])
@pytest.mark.parametrize("noise", ["gumbel", "laplace", "exponential"])
def test_selection_pair(noise, candidates):
    """Scores move by half the range at most; simulation has the computed odds; their ratio is what reach says."""
    mechanism = NoisyMaximum(2.0, 2.0, noise)
    pair = pairs.selection(mechanism, candidates)
    assert np.abs(pair.first - pair.second).max() <= mechanism.score_range / 2 + 1e-12
    assert pair.reach["step"] >= 0.97
    score, rng, runs = pair.scores["step"], np.random.default_rng(0), 20_000
    favoured = score.favoured
    logs = []
    for scores in pair:
        gap = (scores[0] - scores[-1]) / mechanism.scale
        p = odds.favoured_wins(noise, gap, favoured, candidates - favoured)
        chosen = np.array([[mechanism.select(scores, rng)] for _ in range(runs)])
        assert_binomial(int(score(chosen).sum()), runs, p)
        rejected(assert_binomial, int(score(chosen).sum()), runs, p * 1.5)
        assert event_odds(noise, gap, favoured, candidates - favoured) == pytest.approx(math.log(p / (1 - p)))
        logs.append(math.log(p))
    assert 0.96 <= logs[0] - logs[1] <= 1.0 + 1e-9
    assert p * 100_000 > 500, "often enough for 1e5 trials"


def test_rare_events_reach_a_share():
    mechanism = NoisyMaximum(10.0, 1.0)
    usual, rare = pairs.selection(mechanism), pairs.selection(mechanism, share=0.97)
    assert usual.reach["step"] < 0.9 < 0.97 <= rare.reach["step"]
    with pytest.raises(InvalidValue, match="share"):
        pairs.selection(mechanism, share=0.999999, trials=1000)


# --- scores -------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("name", [name for name in PLANS if "published" not in name])
def test_larger_scores_mean_the_first_dataset(name, adjacency):
    """At a large epsilon every adversary's mean score is larger on the first dataset, by 5 standard errors."""
    large = {"epsilon": 10.0, "count_share": 0.4} if "sparsifier" in name else {"epsilon": 8.0}
    if name == "sparsifier, fixed":
        large["epsilon"] = 6.0
    plan = make(name, adjacency=adjacency, **large)
    pair = getattr(pairs, plan.solver)(plan)
    # Six selections per step, of which one record moves each a little: more runs until that shows.
    runs = 3000 if name == "columns" else 1000
    for adversary, score in pair.scores.items():
        a, b = (score(outputs(plan, data, runs, adversary, seed)) for seed, data in enumerate(pair))
        assert np.isfinite(a).all() and a.shape == (runs,)
        assert (a.mean() - b.mean()) / math.sqrt((a.var() + b.var() + 1e-300) / runs) > 5, adversary


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "name", ["logistic", "squared", "laplace", "vertex", "columns", "ten columns", "peeling", "sparsifier"]
)
def test_releases_are_scored_by_their_likelihood_ratio(name):
    """Under the second dataset E[ratio] = 1, under the first E[1/ratio] = 1: only the true ratio has both.

    The bound is 6 standard errors; twice the log ratio misses it.
    """
    large = {"epsilon": 4.0, "count_share": 0.25} if name == "sparsifier" else {"epsilon": 4.0}
    plan = make(name, **large)
    pair = getattr(pairs, plan.solver)(plan)
    runs = 2000 if "columns" in name else 4000
    score = pair.scores["releases"]
    ratios = [score(outputs(plan, data, runs, "releases", seed)) for seed, data in enumerate(pair)]
    for ratio in (np.exp(-ratios[0]), np.exp(ratios[1])):
        error = ratio.std() / math.sqrt(len(ratio))
        # Rows that differ a little within a half are scored as equal in the sparsifier's pair.
        assert abs(ratio.mean() - 1) < 6 * error + (0.01 if name == "sparsifier" else 0.0)
    wrong = np.exp(-2.0 * ratios[0])
    assert abs(wrong.mean() - 1) > 6 * wrong.std() / math.sqrt(len(wrong))


def test_halves_are_the_exact_likelihood():
    plan = make("logistic", epsilon=4.0)
    pair = pairs.dp_frank_wolfe(plan)
    vertices = outputs(plan, pair.first, 200, "releases")
    exact = Replay(plan, pair.first, pair.second).log_ratio(vertices.astype(int))
    np.testing.assert_allclose(pair.scores["releases"](vertices), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["logistic", "huber", "squared", "laplace", "vertex", "columns"])
def test_replayed_runs_have_the_solvers_weights_and_noise(name):
    """On data without symmetry and at a radius where weights matter."""
    plan = make(name, n=8, d=3, l1_radius=2.0)
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (8, 3)), np.arange(8) % 2
    data = pairs.Counted(X, y.astype(float), np.ones(8, dtype=int))
    replay, run = Replay(plan, data, pairs.Counted(-X, data.y, data.counts)), solvers.bind(plan, X, y)
    for _ in range(5):
        trace = run(rng, True)
        vertices = trace.releases.astype(int).reshape(1, -1)
        weights = replay.walk_of(vertices).weights[0]
        weights = weights.T if name == "columns" else weights.reshape(trace.weights.shape)
        np.testing.assert_allclose(weights, trace.weights, rtol=1e-12, atol=1e-15)
        before = replay.walk_of(vertices[:, : -replay.groups]).weights
        assert noise_scale(plan, before).item() == pytest.approx(trace.history["noise_scale"][-1], rel=1e-12)


def test_peeled_vectors_are_released_before_projection():
    plan = make("peeling")
    data = pairs.peeling_iht(plan).first
    trace = solvers.bind(plan, data.X, data.y, data.counts)(np.random.default_rng(0), True)
    norms = np.linalg.norm(trace.releases, axis=1, keepdims=True)
    assert (norms > 1.5 * plan.settings.radius).any()
    projected = trace.releases * np.minimum(1.0, plan.settings.radius / norms)
    np.testing.assert_allclose(trace.iterates, projected, rtol=1e-12)


def test_iterates_tell_the_vertices():
    plan = make("logistic")
    pair = pairs.dp_frank_wolfe(plan)
    iterates, releases = (pair.scores[name](outputs(plan, pair.first, 300, name)) for name in ("iterates", "releases"))
    np.testing.assert_allclose(iterates, releases)


def test_final_weights_are_decoded_exactly_with_one_feature():
    """One feature: the law of the final weight is a sum over 2^T paths, listed here."""
    plan = make("huber", d=1, steps=6)
    pair = pairs.dp_frank_wolfe(plan)
    one, two = (float(expit(o)) for o in pair.scores["releases"].replay.first_odds())
    paths = np.array(np.meshgrid(*[[0, 1]] * 6)).reshape(6, -1).T
    signs = np.where(paths == 1, -1, 1)
    sums = signs @ np.arange(2, 8)
    favoured = (signs == -1).sum(axis=1)
    p, q = (u**favoured * (1 - u) ** (6 - favoured) for u in (one, two))
    for value in np.unique(sums):
        weight = np.array([[value * 2.0 / (7 * 8)]])
        wanted = math.log(p[sums == value].sum() / q[sums == value].sum())
        assert float(pair.scores["final"](weight)[0]) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["logistic", "sparsifier", "vertex", "peeling"])
def test_pairs_travel_to_other_processes(name):
    plan = make(name)
    pair = getattr(pairs, plan.solver)(plan)
    again = pickle.loads(pickle.dumps(pair))
    for adversary, score in pair.scores.items():
        seen = outputs(plan, pair.first, 20, adversary)
        np.testing.assert_array_equal(score(seen), again.scores[adversary](seen))


# --- the sparsifier's count, the reach of each pair ---------------------------------------------------


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize("loss", [{"loss": "logistic"}, {"loss": "huber"}, {"loss": "squared", "label_bound": 1.0}])
def test_one_record_moves_the_count_from_end_to_end(loss, adjacency):
    plan = make("sparsifier", n=80, d=16, adjacency=adjacency, **loss)
    pair = pairs.sparsifier(plan)
    lower, upper = plan.settings.span
    assert exact_count(plan, pair.first) <= lower
    assert exact_count(plan, pair.second) >= upper
    counts = [outputs(plan, data, 4000, "releases")[:, -1].astype(int) for data in pair]
    law = pair.scores["releases"]
    values = np.arange(lower, upper + 1)
    q = math.exp(-0.5 / (values[-1] - values[0]))
    first = (1 - q) / (1 + q) * q ** (values - values[0]).astype(float)
    first[[0, -1]] /= 1 - q
    for seen, mass in zip(counts, (first, first[::-1]), strict=True):
        assert_chi2(np.bincount(seen, minlength=values[-1] + 1)[values[0] :], mass)
    np.testing.assert_allclose(law.ratio, np.log(first / first[::-1]), rtol=1e-9)
    assert law.ratio[0] == pytest.approx(0.5), "the ends have the whole epsilon of the count"
    np.testing.assert_allclose(np.exp(CountLaw(plan, 1, 16).first), first, rtol=1e-12)
    assert first.sum() == pytest.approx(1.0)


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "least"), [
    ("logistic", 0.88), ("huber", 0.92), ("squared", 0.84), ("sparsifier", 0.75), ("peeling", 0.85),
    ("peeling, split", 0.85), ("vertex", 0.75), ("columns", 0.8), ("three columns", 0.7), ("ten columns", 0.7),
    ("peeling, wide", 0.7), ("laplace", 0.5),
])  # fmt: skip
def test_reach(name, least):
    plan = make(name, n=200)
    reach = getattr(pairs, plan.solver)(plan).reach
    assert least <= reach["releases"] < 1.02
    assert 0 < reach.get("final", 0.5) <= reach["releases"] * 1.02


@pytest.mark.parametrize("name", ["three columns", "ten columns"])
def test_columns_keep_their_guarantee_and_a_third_of_the_noise_is_found(name):
    """One sequential test with a false-alarm rate of 1e-6."""
    plan = make(name, n=100, d=4, steps=2, epsilon=8.0, delta=1e-6)
    assert plan.releases[0].law == SYMMETRIC_MAXIMUM
    pair, how = pairs.dp_multinomial_frank_wolfe(plan), {"trials": 4000, "power": None, "alpha": ALPHA}
    audit.assert_private(plan, pair, as_claim(plan.guarantee), adversary="releases", **how)
    with pytest.raises(PrivacyViolation):
        less = plan.with_noise(factor=1 / 3)
        audit.assert_private(less, pair, as_claim(plan.guarantee), adversary="releases", **how)


def test_rows_that_hold_the_intercept_are_shared_evenly():
    assert _balanced(10, [5, 0], 3) == [0, 5, 5]
    assert _balanced(10, [5, 4], 3) == [1, 2, 7]
    assert _balanced(3, [5, 4], 3) == [0, 0, 3]
    assert _balanced(11, [1, 0], 4) == [2, 3, 3, 3]
