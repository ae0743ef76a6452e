"""dp_pipeline on large tables: whether it descends along second moments is decided on public numbers; what it releases
is what the plan charges; and its model is that of the stages in plain doubles."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit import losses, models, solvers
from dptoolkit.accounting import gaussian
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_rows, with_intercept
from dptoolkit.solvers import _pipeline_moments
from dptoolkit.solvers._pipeline import MomentsRun, has_moments
from dptoolkit.solvers._pipeline_stages import DESCENT, EIGENVALUE, MEANS, SCALE, Preparation, column_means
from dptoolkit.solvers._pipeline_tables import TableMap
from dptoolkit.solvers.engine import preconditioned
from dptoolkit.solvers.engine.preconditioned import BoundedRecords, preconditioner, second_moments
from dptoolkit.solvers.frame import rules
from tests.kernels.test_tables import squares
from tests.solvers.capture import Spy
from tests.solvers.test_pipeline_tables import LOWER, UPPER, make_plan, maps, table
from tests.strategies import neighbours

pytestmark = [
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning"),
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning"),
]
KINDS = {
    "two classes": {},
    "three classes": {"loss": "softmax", "classes": 3},
    "numbers": {"loss": "squared", "label_bound": 2.0},
}


@pytest.fixture
def always(monkeypatch):
    """Second moments are released whatever n is, so that small tables take the path of large ones."""
    monkeypatch.setattr(rules, "WORTH", 0)


def labels(kind, y, seed=0):
    if kind == "three classes":
        return y + (np.random.default_rng(seed).random(len(y)) < 0.3)
    return 3 * y - 1.5 if kind == "numbers" else y


def inner_run(plan, X, y):
    """The run of the stages after the map of the table, which is that of the bounds alone."""
    settings = plan.settings
    own = settings.units.labels(settings.labels(y, len(y)))
    return MomentsRun(plan, TableMap(settings.bounds, settings.row_norm), check_rows(X), own)


# --- the rule -----------------------------------------------------------------------------------------------


@given(n=st.integers(10, 10**8), d=st.integers(1, 2000), epsilon=st.floats(0.05, 8))
def test_the_choice_is_a_function_of_public_numbers(n, d, epsilon):
    plan = make_plan(n, d, epsilon, bounds=(0.0, 7.0))
    time = plan.settings.margin_noise / plan.releases[DESCENT].scale
    mu = rules.budget_mu(epsilon, 1e-5) * math.sqrt(rules.EIGENVALUE_SHARE * plan.settings.table_stages(n, d).rest)
    curvature = rules.residual_curvature(losses.get("logistic"), 0.25)
    assert has_moments(plan) == rules.is_preconditioned(time, curvature, d + 1, math.sqrt(2) / (n * mu) * (1 + 1e-12))


def test_the_plan_is_made_without_data_and_a_fit_follows_it():
    few, many = make_plan(5_000), make_plan(500_000)
    assert not has_moments(few) and has_moments(many)
    for seed in (0, 1):
        X, y = table(seed, 300)
        result = solvers.dp_pipeline(X, y, epsilon=2.0, delta=1e-5, bounds=(LOWER, UPPER), rng=seed)
        assert result.plan.releases == make_plan(300).releases


def test_the_plan_says_in_words_which_descent_it_takes_and_why():
    assert "plain descent, at most" in str(make_plan(5_000))
    text = str(make_plan(500_000))
    assert "descent along released second moments, 40 passes" in text and "500,000" in text
    assert "sparsity" in str(make_plan(500_000, sparsity=2))


def test_without_bounds_or_with_sparsity_there_are_no_second_moments():
    assert not has_moments(make_plan(10**7, bounds=None))
    assert not has_moments(make_plan(10**7, sparsity=2))


def test_a_named_solver_is_never_overruled():
    for name in ("objective_perturbation", "dp_dual_averaging"):
        assert models.plan(10**6, 4, task="classification", solver=name, row_norm=1.0).solver == name
    chosen = models.plan(10**6, 4, task="classification", bounds=(LOWER, UPPER), epsilon=1.0)
    assert chosen.solver == "dp_pipeline" and has_moments(chosen)


# --- the guarantee --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", [str(a) for a in Adjacency])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_all_stages_together_cost_the_budget_and_no_more(epsilon, kind, adjacency):
    plan = make_plan(2_000_000, epsilon=epsilon, adjacency=adjacency, **KINDS[kind])
    assert has_moments(plan)
    spent = plan.guarantee.epsilon(1e-5)
    assert 0.9999 * epsilon <= spent <= epsilon
    squares = sum(r.count * (r.sensitivity / r.scale) ** 2 for r in plan.releases)
    assert math.sqrt(squares) <= gaussian.mu(epsilon, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_moves_the_whole_fit_by_no_more_than_is_charged(always, kind):
    """Along the released values of one fit, the squared shifts of all queries over their noise are within mu^2."""
    rng, reached = np.random.default_rng(0), {"moments": 0.0, "gradient": 0.0}
    X, y = table(1, 40)
    y = labels(kind, y)
    plan = make_plan(40, epsilon=4.0, **KINDS[kind])
    steps = plan.settings.moments_schedule(plan)[0]
    for trial in range(12):
        other, other_y = X.copy(), y.copy()
        # Away from the others in direction and label, or anywhere.
        far = np.array([0.0, -3.0, 10.0, 0.0]) if trial < 6 else LOWER + (UPPER - LOWER) * rng.random(4)
        other[0] = X[0] * 0 + far
        other_y[0] = y[rng.integers(40)]
        one, two = inner_run(plan, X, y), inner_run(plan, other, other_y)
        trace = one(np.random.default_rng(trial), trace=True)
        preparation, shape = trace.history["preparation"], (-1, plan.d + 1)
        iterates = trace.iterates.reshape(steps, *shape) if kind == "three classes" else trace.iterates
        columns = np.append(preparation.kept, plan.d)
        moved = []
        rows = [run._written_over(run._mapped(), preparation) for run in (one, two)]
        means = [run._column_means(run._mapped()) for run in (one, two)]
        moved.append(np.linalg.norm(means[0] - means[1]) / plan.releases[MEANS].scale)
        moments = [second_moments(r, one.share) for r in rows]
        moved.append(np.linalg.norm(moments[0] - moments[1]) / plan.releases[EIGENVALUE].scale)
        reached["moments"] = max(reached["moments"], moved[-1] * plan.releases[EIGENVALUE].scale * 40 / math.sqrt(2))
        records = [run._records(r) for run, r in zip((one, two), rows, strict=True)]
        for w in [np.zeros_like(iterates[0]), *iterates[:-1]]:
            gradients = [own.mean_gradient(w[..., columns]) for own in records]
            shift = np.linalg.norm(gradients[0] - gradients[1])
            assert shift <= plan.releases[DESCENT].sensitivity * (1 + 1e-12)
            reached["gradient"] = max(reached["gradient"], shift / plan.releases[DESCENT].sensitivity)
            moved.append(shift / (plan.releases[DESCENT].scale * math.sqrt(steps)))
        charged = [plan.releases[place] for place in (DESCENT, MEANS, EIGENVALUE)]
        limit = math.sqrt(sum((r.sensitivity / r.scale) ** 2 for r in charged))
        assert np.linalg.norm(moved) <= limit * (1 + 1e-9)
    # Orthogonal records reach all of it (tests/solvers/engine); the intercept keeps prepared ones from that.
    assert reached["moments"] > 0.4
    if kind == "two classes":
        assert reached["gradient"] > 0.9


def test_the_noise_of_k_minus_1_steps_would_be_noticed(always):
    """A twin: with the noise of fewer steps, the shifts of all steps together exceed what is charged."""
    plan = make_plan(40, epsilon=4.0)
    steps = plan.settings.moments_schedule(plan)[0]
    main = plan.releases[DESCENT]
    shifts = [main.sensitivity / (main.scale * math.sqrt(steps - 1))] * steps
    assert np.linalg.norm(shifts) > main.sensitivity / main.scale * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_draw_has_the_scale_of_the_plan(always, kind):
    X, y = table(0, 300)
    y = labels(kind, y)
    plan = make_plan(300, epsilon=8.0, **KINDS[kind])
    run, spy = inner_run(plan, X, y), Spy(3)
    trace = run(spy, trace=True)
    drawn, steps = spy.of("standard_normal"), trace.history["steps"]
    preparation = trace.history["preparation"]
    mapped = run._mapped()
    means = trace.releases[0, : plan.d]
    assert (means - run._column_means(mapped)) / plan.releases[MEANS].scale == pytest.approx(drawn[0], abs=1e-6)
    rows = run._written_over(mapped, preparation)
    exact, width = second_moments(rows, run.share), run.width
    length = math.ceil(len(exact) / width)
    seen = trace.releases[1 : 1 + length].ravel()[: len(exact)]
    assert (seen - exact) / plan.releases[EIGENVALUE].scale == pytest.approx(drawn[1], abs=1e-6)
    gradient = run._unfold(preparation, run._records(rows).mean_gradient(np.zeros(run._records(rows).shape)).ravel())
    noise = (trace.releases[1 + length] - gradient) / (plan.releases[DESCENT].scale * math.sqrt(steps))
    assert noise[noise != 0] == pytest.approx(drawn[2].ravel(), abs=1e-6)
    slopes = 0 if kind == "numbers" else rules.HALVINGS
    assert len(drawn) == 2 + steps + slopes
    assert len(trace.releases) == 1 + length + steps + slopes


@given(seed=st.integers(0, 1000))
def test_rows_in_single_precision_are_never_longer_than_1(seed):
    rng = np.random.default_rng(seed)
    X = LOWER + (UPPER - LOWER) * rng.random((50, 4)) ** rng.integers(1, 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "WORTH", 0)
        plan = make_plan(50)
        run = inner_run(plan, X, (rng.random(50) < 0.5).astype(float))
        preparation = run(rng).history["preparation"]
        mapped = run._mapped()
        assert check_rows(mapped[:, :-1].astype(float)).row_norms().max() <= 1
        assert check_rows(run._written_over(mapped, preparation).matrix.astype(float)).row_norms().max() <= 1


@st.composite
def single_fits(draw, kind):
    """(run on a table, run on its neighbour, preparation, weights): what comes before them was released."""
    pair = draw(neighbours("regression" if kind == "numbers" else "binary"))
    dense = [own if pair.form == "dense" else own.toarray() for own in (pair.X, pair.X2)]
    table_map, (n, d) = draw(maps(dense[0])), dense[0].shape
    more = KINDS[kind] | ({"row_norm": table_map.norm or 1.0} if kind == "numbers" else {})
    plan = make_plan(n, d, bounds=table_map.bounds, **more)
    table_map = replace(table_map, norm=plan.settings.row_norm)
    numbers = st.lists(st.floats(-1, 1), min_size=d, max_size=d).map(np.array)
    preparation = Preparation.of(draw(numbers) + 0.5, draw(st.sampled_from([0.0, 0.1])), plan.settings.units)
    own = plan.settings.units.labels
    runs = [
        MomentsRun(plan, table_map, check_rows(X), own(plan.settings.labels(y, n)))
        for X, y in ((pair.X, pair.y), (pair.X2, pair.y2))
    ]
    width = (plan.settings.classes or 1, len(preparation.kept) + 1)
    weights = np.array(draw(st.lists(st.floats(-100, 100), min_size=math.prod(width), max_size=math.prod(width))))
    return *runs, preparation, weights.reshape(width if kind == "three classes" else -1)


def check_single(one, two, preparation, weights):
    """Rows in single precision are at most 1 long, in exact fractions; all sums move by no more than planned."""
    plan, sums = one.plan, []
    for run in (one, two):
        mapped = run._mapped()
        assert all(squares(row) <= 1 for row in mapped[:, :-1])
        means = run._column_means(mapped)
        rows = run._written_over(mapped, preparation)
        assert rows.matrix.dtype == np.float32 and all(squares(row) <= 1 for row in rows.matrix)
        sums.append((means, second_moments(rows, run.share), run._records(rows).mean_gradient(weights)))
    for first, second, place in zip(*sums, (MEANS, EIGENVALUE, DESCENT), strict=True):
        assert np.linalg.norm(first - second) <= plan.releases[place].sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_row_in_single_precision_is_at_most_1_long_and_moves_sums_as_planned(kind, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "WORTH", 0)
        check_single(*data.draw(single_fits(kind)))


def single_pair():
    """Rows of two entries, most of which rounding to the nearest single precision makes longer than 1."""
    rng = np.random.default_rng(0)
    X, other = rng.uniform(-1, 1, (2, 60, 2))
    plan = make_plan(60, 2, bounds=(-1.0, 1.0))
    runs = [MomentsRun(plan, TableMap(plan.settings.bounds), check_rows(own), np.zeros(60)) for own in (X, X.copy())]
    runs[1].raw.matrix[0] = other[0]
    return *runs, Preparation.of(np.array([0.5, 0.3]), 0.0, plan.settings.units), np.array([1.0, -2.0, 0.5])


def test_rounding_to_the_nearest_would_be_noticed(always, monkeypatch):
    """A twin: entries are not made smaller before they are rounded."""
    check_single(*single_pair())
    monkeypatch.setattr(_pipeline_moments, "_DOWN", 1.0)
    with pytest.raises(AssertionError):
        check_single(*single_pair())


@given(st.integers(1, 60), st.integers(0, 10**6))
def test_no_record_of_a_regression_has_a_longer_gradient_than_its_bound(width, seed):
    """In exact fractions; on rows in single precision, which are of any length up to 1."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((40, width))
    rows = (rows / np.linalg.norm(rows, axis=1)[:, None] * rng.uniform(0.1, 0.999, (40, 1))).astype(np.float32)
    settings = make_plan(40, width, loss="squared", label_bound=1.0, bounds=(-1.0, 1.0), grad_norm=0.1).settings
    own = Rows(rows, False)
    caps = settings.residual_caps(Rows(rows.astype(np.float64), False))
    # A residual is as large as it may be, and there is one record that counts at a time.
    for k, row in enumerate(rows):
        gradient = BoundedRecords(own, np.full(40, -1e3), settings.loss_row, caps, np.eye(40)[k]).mean_gradient(
            row * 0.0
        )
        length = squares(gradient)
        assert Fraction(1 - 1e-12) * Fraction(0.1) ** 2 <= length <= Fraction(0.1) ** 2


def test_caps_that_are_not_applied_would_be_noticed(always, monkeypatch):
    """A twin: residuals are not clipped, which lie between -1 and 1, and grad_norm is 1/4."""
    one, two, preparation, _ = single_pair()
    for run, label in ((one, 0.0), (two, 1.0)):
        run.y[0] = label
    weights = np.array([0.0, 0.0, 0.0])
    check_single(one, two, preparation, weights)
    records = MomentsRun._records
    monkeypatch.setattr(MomentsRun, "_records", lambda run, rows: replace(records(run, rows), caps=np.full(60, 9.0)))
    with pytest.raises(AssertionError):
        check_single(one, two, preparation, weights)


# --- the model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_it_is_what_the_stages_give_in_plain_doubles(always, kind):
    X, y = table(2, 400)
    y = labels(kind, y)
    plan = make_plan(400, epsilon=8.0, **KINDS[kind])
    quiet = plan.with_noise(plan.releases[0].scale * 1e-9, *(r.scale * 1e-9 for r in plan.releases[1:]))
    settings, (steps, _) = plan.settings, plan.settings.moments_schedule(plan)
    run = inner_run(quiet, X, y)
    run.plan, run.noise = plan, [r.scale * 1e-9 for r in plan.releases]
    trace = run(np.random.default_rng(0))
    preparation = trace.history["preparation"]
    rows = TableMap(settings.bounds, settings.row_norm)(check_rows(X))
    share = np.full(400, 1 / 400)
    assert preparation.means == pytest.approx(column_means(rows, share), rel=1e-5)
    prepared = with_intercept(preparation.features(rows), preparation.level)
    P = preconditioner(
        second_moments(prepared, share), prepared.shape[1],
        rules.residual_curvature(settings.loss_row, settings.grad_norm), trace.history["ridge"],
    )  # fmt: skip
    caps = prepared.caps(settings.grad_norm) if kind == "numbers" else np.full(400, settings.grad_norm)
    records = BoundedRecords(prepared, run.y, settings.loss_row, caps, share)
    w = np.zeros(records.shape)
    for _ in range(steps):
        w = w - records.mean_gradient(w) @ P
    assert trace.weights == pytest.approx(preparation.model(w) * trace.history["scale"], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_learns_and_predicts_as_plain_descent_does(always, monkeypatch, kind):
    X, y = table(3, 4000)
    y = labels(kind, y)
    more = {"epsilon": 4.0, "delta": 1e-5, "bounds": (LOWER, UPPER), "rng": 0, **KINDS[kind]}
    along = solvers.dp_pipeline(X, y, **more)
    monkeypatch.setattr(rules, "WORTH", math.inf)
    plain = solvers.dp_pipeline(X, y, **more)
    assert has_moments(along.plan) and not has_moments(plain.plan)

    def error(result):
        margins = solvers.margins(result, X)
        if kind == "numbers":
            return float(np.mean((margins - y) ** 2) / np.var(y))
        return float(
            np.mean(
                (margins.argmax(axis=1) if margins.ndim == 2 and margins.shape[1] > 1 else margins.ravel() > 0) != y
            )
        )

    assert error(along) <= error(plain) + 0.03
    assert error(along) < (0.7 if kind == "numbers" else 0.4)


def test_counts_stand_for_repeated_records(always):
    X, y = table(4, 60)
    plan = make_plan(90, epsilon=8.0)
    counts = np.repeat([1, 2], 30)
    together = solvers.bind(plan, X, y, counts)(np.random.default_rng(0))
    apart = solvers.bind(plan, np.repeat(X, counts, axis=0), np.repeat(y, counts))(np.random.default_rng(0))
    assert together.weights == pytest.approx(apart.weights, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("noise", [{"rng": 3}, {"randomness": "secure"}], ids=["fast", "secure"])
@pytest.mark.parametrize("path", ["along moments", "plain"])
def test_a_fit_reads_x_where_it_is_and_never_writes_to_it(path, noise, monkeypatch):
    if path == "along moments":
        monkeypatch.setattr(rules, "WORTH", 0)
    X, y = table(7, 400)
    given_X, kept = X.copy(), X.copy()
    seen = []
    original = TableMap.blocks
    monkeypatch.setattr(TableMap, "blocks", lambda self, rows: seen.append(rows.matrix) or original(self, rows))
    first = solvers.dp_pipeline(given_X, y, epsilon=4.0, delta=1e-5, bounds=(LOWER, UPPER), **noise)
    second = models.fit(
        given_X, y, task="classification", classes=(0.0, 1.0), bounds=(LOWER, UPPER), epsilon=4.0, **noise
    )
    np.testing.assert_array_equal(given_X, kept)
    assert len(seen) >= 2 and all(np.shares_memory(matrix, given_X) for matrix in seen)
    assert not any(matrix.flags.writeable for matrix in seen)
    # What is released holds nothing of X.
    for array in (first.coef, second.coef, *(own for own in first.history.values() if isinstance(own, np.ndarray))):
        assert not np.shares_memory(array, given_X)


def test_a_run_that_outlives_its_call_has_rows_of_its_own(always):
    X, y = table(8, 60)
    run = solvers.bind(make_plan(60, epsilon=8.0), X, y)
    before = run(np.random.default_rng(0)).weights
    X[:] = 0.0
    np.testing.assert_array_equal(run(np.random.default_rng(0)).weights, before)


@pytest.mark.parametrize("path", ["along moments", "plain"])
def test_rows_in_single_precision_give_the_model_of_the_same_numbers_in_doubles(path, monkeypatch):
    if path == "along moments":
        monkeypatch.setattr(rules, "WORTH", 0)
    X, y = table(9, 400)
    single = X.astype(np.float32)
    results = [
        solvers.dp_pipeline(form, y, epsilon=4.0, delta=1e-5, bounds=(LOWER, UPPER), rng=0)
        for form in (single, single.astype(np.float64))
    ]
    np.testing.assert_array_equal(results[0].coef, results[1].coef)


def test_features_that_are_left_out_leave_the_others_as_they_are(always):
    """Prepared rows move together in the memory of the mapped ones, over many blocks."""
    plan = make_plan(50, epsilon=8.0)
    X, y = table(10, 50)
    run = inner_run(plan, X, y)
    for kept in ([True] * 4, [True, False, True, True], [False, False, False, True], [False] * 4):
        weights = np.where(kept, [0.5, 1.0, 2.0, 3.0], 0.0)
        preparation = Preparation(np.full(4, 0.5), weights, rules.LEVEL)
        mapped = run._mapped()
        expected = preparation(Rows(mapped[:, :-1].astype(np.float64), False)).matrix
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(preconditioned, "_BLOCK", 16)
            rows = run._written_over(mapped, preparation)
        assert rows.matrix.flags.c_contiguous and np.shares_memory(rows.matrix, mapped)
        np.testing.assert_allclose(rows.matrix, expected, rtol=1e-6)
        assert (np.square(rows.matrix.astype(np.float64)).sum(axis=1) <= 1).all()


def test_the_scale_is_found_by_the_planned_halvings(always):
    plan = make_plan(300, epsilon=8.0)
    result = solvers.bind(plan, *table(0, 300))(np.random.default_rng(0))
    assert len(result.history["slopes"]) == rules.HALVINGS == plan.releases[SCALE].count


def test_a_model_along_second_moments_is_saved_and_read_again(always, tmp_path):
    X, y = table(5, 500)
    model = models.fit(X, y, task="classification", classes=(0.0, 1.0), bounds=(LOWER, UPPER), epsilon=4.0, rng=0)
    assert has_moments(model.plan)
    models.save(model, tmp_path / "model.json")
    assert np.array_equal(models.load(tmp_path / "model.json").predict(X), model.predict(X))


def test_diagnostics_are_those_of_the_prepared_rows(always):
    X, y = table(6, 300)
    result = solvers.dp_pipeline(X, y, epsilon=4.0, delta=1e-5, bounds=(LOWER, UPPER), rng=0, diagnostics=True)
    margins = solvers.margins(result, X).ravel()
    expected = losses.get("logistic").objective(margins, y)
    assert result.history["not_private"]["objective"] == pytest.approx(expected, rel=1e-6)
