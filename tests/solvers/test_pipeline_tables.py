"""dp_pipeline on tables with public bounds: every stage moves by no more than planned and some by that much, its noise
is the plan's, gates look at public numbers alone, and prediction prepares rows as the fit did."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from dptoolkit import solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_rows
from dptoolkit.data.column_bounds import ColumnBounds
from dptoolkit.errors import InvalidValue
from dptoolkit.kernels import tables
from dptoolkit.solvers._pipeline_ranks import BinCounts, Histogram, Ranks, histograms_sensitivity
from dptoolkit.solvers._pipeline_stages import column_means, means_sensitivity
from dptoolkit.solvers._pipeline_tables import (
    HISTOGRAMS,
    MEAN_ROW,
    TableMap,
    centre,
    mean_row_sensitivity,
    planned,
    table_stages,
)
from dptoolkit.solvers.engine.preconditioned import moments_sensitivity, second_moments
from dptoolkit.solvers.frame import rules
from tests.kernels.test_tables import squares
from tests.solvers.capture import Spy
from tests.strategies import Pair, neighbours

ROUNDING = 1 + 1e-10
REPLACE, ZERO = Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT
pytestmark = [
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning"),
    pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning"),
]
LOWER = np.array([0.0, -3.0, 10.0, 0.0])
UPPER = np.array([120.0, 5.0, 1000.0, 1.0])


def table(seed, n):
    """Columns in units, one of them heavy-tailed, and an indicator; the label depends on three of them."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [rng.uniform(20, 90, n), rng.normal(1, 1, n), 10 + rng.exponential(30, n), rng.random(n) < 0.3]
    ).astype(float)
    score = (X[:, 0] - 55) / 20 + X[:, 1] + (np.log(X[:, 2]) - 3.3) + X[:, 3] - 1.3
    return X, (score + 0.4 * rng.standard_normal(n) > 0).astype(float)


def make_plan(n, d=4, epsilon=2.0, delta=1e-5, bounds=(LOWER, UPPER), **more):
    return solvers.plan("dp_pipeline", n=n, d=d, epsilon=epsilon, delta=delta, bounds=bounds, **more)


# --- bounds -----------------------------------------------------------------------------------------------


def test_numeric_columns_follow_from_their_bounds_or_are_given():
    assert ColumnBounds.of((LOWER, UPPER), 4).numeric == (0, 1, 2)
    assert ColumnBounds.of((0, 1), 3).numeric == ()
    assert ColumnBounds.of((0, 1), 3, numeric=[2, 0]).numeric == (0, 2)
    assert ColumnBounds.of((0, 255), 2, numeric=()).numeric == ()
    assert ColumnBounds.of(([1.0, 0.0], [1.0, 2.0]), 2).numeric == (1,), "a column with one value has no ranks"


def test_bounds_by_name_may_have_one_entry_for_all_others():
    names = ("age", "sex", "smoker")
    named = ColumnBounds.of({"*": (0, 1), "age": (18, 99)}, 3, names=names)
    assert named == ColumnBounds.of(([18, 0, 0], [99, 1, 1]), 3)
    assert ColumnBounds.of(named, 3) == named
    assert ColumnBounds.of({"*": (0, 1), "age": (18, 99)}, 3, numeric=["sex"], names=names).numeric == (1,)


def test_bounds_may_be_a_frame_whose_labels_of_rows_are_of_no_account():
    """A frame maps the names of its columns to labelled pairs, whose first value is the lower bound."""
    pandas = pytest.importorskip("pandas")
    expected = ColumnBounds.of(([18, 0], [99, 1]), 2)
    pairs = {"smoker": [0, 1], "age": [18, 99]}
    for labels in (["lower", "upper"], [1, 0], [5, 5], None):
        frame = pandas.DataFrame(pairs, index=labels)
        assert ColumnBounds.of(frame, 2, names=("age", "smoker")) == expected
        assert ColumnBounds.of(frame.to_dict("series"), 2, names=("age", "smoker")) == expected
    assert ColumnBounds.of(pandas.Series(pairs), 2, names=("age", "smoker")) == expected


def test_labelled_bounds_are_read_by_their_labels_and_not_by_place():
    pandas = pytest.importorskip("pandas")
    names = ("age", "smoker", "bmi")
    expected = ColumnBounds.of(([18, 0, 10], [99, 1, 80]), 3)
    lower, upper = (
        pandas.Series({"smoker": 0, "bmi": 10, "age": 18}),
        pandas.Series({"bmi": 80, "age": 99, "smoker": 1}),
    )
    assert ColumnBounds.of((lower, upper), 3, names=names) == expected
    assert ColumnBounds.of((0, upper), 3, names=names) == ColumnBounds.of((0, [99, 1, 80]), 3)
    # Without names of columns, the order is that of the lower bound's labels.
    assert ColumnBounds.of((lower, upper), 3) == ColumnBounds.of(([0, 10, 18], [1, 80, 99]), 3)
    plain = pandas.Series([18, 0, 10])
    assert ColumnBounds.of((plain, [99, 1, 80]), 3, names=names) == expected, "labels that are no text name nothing"


def test_labels_of_bounds_that_contradict_the_columns_or_each_other_are_refused():
    pandas = pytest.importorskip("pandas")
    lower, upper = pandas.Series({"a": 0, "b": 1}), pandas.Series({"b": 3, "a": 2})
    for pair, names, words in (
        ((lower, upper), ("a", "c"), "labels of a bound.*'c'"),
        ((lower, upper.rename({"a": "c"})), None, "the same for the lower and the upper"),
        ((lower, upper.rename({"a": "c"})), ("a", "b"), "names of the columns"),
        ((lower, [3, 2]), ("a", "b"), "beside one without"),
        ((lower, upper.rename({"a": 5})), ("a", "b"), "two kinds"),
        ((pandas.Series([0, 1], index=["a", "a"]), 5), ("a", "b"), "a label twice"),
        ((pandas.Series([0, 1]), pandas.Series([5, 6]).sort_values(ascending=False)), None, "two orders"),
    ):
        with pytest.raises(InvalidValue, match=words):
            ColumnBounds.of(pair, 2, names=names)


@pytest.mark.parametrize("pairs", [[(0, 1), (18, 99)], [(18, 99), (18, 99)]])
def test_a_list_of_one_pair_per_column_is_not_read_as_lower_and_upper(pairs):
    """With two columns both readings are possible, and other libraries write bounds in the other one."""
    with pytest.raises(InvalidValue, match="one pair per column"):
        ColumnBounds.of(pairs, 2)
    lower, upper = pairs
    assert ColumnBounds.of((lower, upper), 2) == ColumnBounds.of([list(lower), list(upper)], 2)


@pytest.mark.parametrize(("wrong", "words"), [
    ((0, math.inf), "finite"), ((math.nan, 1), "finite"), ((2, 1), "lower <= upper"), (([0, 0], 1), "shape"),
    (5, "bounds"), (("a", "b"), "bounds"), ({"a": (0, 1)}, "without names"), ((True, None), "bounds"),
    ([(0, 1), (0, 1), (0, 1), (0, 1)], "bounds"), (np.zeros((4, 2)), "bounds"), ("12", "bounds"),
])  # fmt: skip
def test_bad_bounds_are_refused(wrong, words):
    with pytest.raises(InvalidValue, match=words):
        make_plan(100, bounds=wrong)


@pytest.mark.parametrize(("given", "words"), [
    ({"a": (0, 1), "b": (0, 1)}, "Columns without bounds: \\['c'\\]"),
    ({"a": (0, 1), "d": (0, 1), "*": (0, 1)}, "no column of X: \\['d'\\]"),
    ({"a": 3, "*": (0, 1)}, "pair"),
])  # fmt: skip
def test_names_of_bounds_must_be_those_of_the_columns(given, words):
    with pytest.raises(InvalidValue, match=words):
        ColumnBounds.of(given, 3, names=("a", "b", "c"))


@pytest.mark.parametrize("numeric", [[4], [-1], "age", ["age"], 3, [0.5]])
def test_bad_numeric_columns_are_refused(numeric):
    with pytest.raises(InvalidValue, match="numeric"):
        make_plan(100, numeric=numeric)
    with pytest.raises(InvalidValue, match="numeric"):
        solvers.plan("dp_pipeline", n=100, d=4, epsilon=1.0, delta=1e-5, numeric=[0])
    with pytest.raises(InvalidValue, match="bounds differ"):
        ColumnBounds.of((1, 1), 2, numeric=[0])


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.tuples(finite, finite).map(sorted), st.lists(finite, min_size=1, max_size=5))
def test_scaled_values_lie_within_minus_one_and_one_whatever_the_bounds(bounds, values):
    """Cells outside, at the bounds, as large as doubles are; bounds that are equal."""
    low, high = bounds
    both = ColumnBounds.of((low, high), 1)
    cells = np.array([*values, low, high, 0.0])[:, None]
    scaled = both.scaled(cells)
    assert np.isfinite(scaled).all() and (np.abs(scaled) <= 1).all()
    assert not both.is_nonnegative or (scaled >= 0).all()
    if low <= 0 <= high:
        assert scaled[-1] == 0
    if both.numeric:
        (edges,) = both.edges(16)
        assert edges[0] <= scaled.min() and scaled.max() <= edges[-1]


# --- sensitivities ----------------------------------------------------------------------------------------


def both_sides(pair, query, adjacency):
    """The query on both data sets: one record replaced, or left out; ``times`` is how often each record occurs."""
    n = pair.X.shape[0]
    ones = np.ones(n, dtype=np.int64)
    if adjacency is REPLACE:
        return query(check_rows(pair.X), ones), query(check_rows(pair.X2), ones)
    gone = ones.copy()
    gone[pair.index] = 0
    return query(check_rows(pair.X), ones), query(check_rows(pair.X), gone)


def counted(plan, rows, times, edges):
    run = plan.settings.bind(plan, rows, np.zeros(rows.shape[0]))
    run.counts = times
    return np.concatenate(run._counts(edges))


@given(neighbours("binary"), st.sampled_from([REPLACE, ZERO]), st.floats(0, 1e3), st.floats(1e-3, 1e3), st.data())
def test_counts_move_by_no_more_than_planned_for_any_partition(pair, adjacency, below, above, data):
    """The bins of later rounds depend on earlier releases, so the bound has to hold for every partition."""
    n, d = pair.X.shape
    plan = make_plan(n, d, bounds=(-below, above), adjacency=adjacency, epsilon=math.inf)
    release = planned(plan, HISTOGRAMS)
    edges = [
        np.unique(np.append(own, data.draw(st.lists(st.floats(own[0], own[-1]), max_size=4))))
        for own in plan.settings.bounds.edges(rules.BINS)
    ]
    first, second = both_sides(pair, lambda rows, times: counted(plan, rows, times, edges), adjacency)
    assert first.sum() == n * d, "every record is in one bin of each column"
    assert np.linalg.norm(first - second) <= release.sensitivity * ROUNDING


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "csr"])
def test_counts_reach_what_is_planned(dense):
    low, high = np.zeros((1, 3)), np.full((1, 3), 1e300)
    first, second = (np.vstack([np.zeros((4, 3)), row]) for row in (low, high))
    plan = make_plan(5, 3, bounds=(0, 1e300), epsilon=math.inf)
    edges = plan.settings.bounds.edges(rules.BINS)
    rows = [check_rows(X if dense else sparse.csr_matrix(X)) for X in (first, second)]
    one, two = (counted(plan, own, np.ones(5, dtype=np.int64), edges) for own in rows)
    assert np.linalg.norm(one - two) >= 0.9999 * planned(plan, HISTOGRAMS).sensitivity
    gone = counted(plan, rows[0], np.array([1, 1, 1, 1, 0]), edges)
    assert np.linalg.norm(one - gone) >= 0.9999 * histograms_sensitivity(ZERO, 3)


def ranks_of(bounds, draw):
    """Ranks that some noise might have given."""
    out = []
    for edges in bounds.edges(rules.BINS):
        steps = np.array(draw(st.lists(st.floats(0, 1), min_size=len(edges) - 1, max_size=len(edges) - 1)))
        shares = steps / steps.sum() if steps.sum() > 0 else np.full(len(steps), 1 / len(steps))
        below = np.concatenate([[0.0], np.cumsum(shares)])
        out.append((edges, np.minimum(below / below[-1], 1.0)))
    return tuple(out)


@given(neighbours("binary"), st.sampled_from([REPLACE, ZERO]), st.booleans(), st.booleans(),
       st.sampled_from([None, 0.1, 1.5]), st.data())  # fmt: skip
def test_the_mean_row_moves_by_no_more_than_planned(pair, adjacency, has_ranks, nonnegative, norm, data):
    n, d = pair.X.shape
    bounds = ColumnBounds.of((0.0 if nonnegative else -2.0, 3.0), d)
    own = TableMap(bounds, norm, ranks_of(bounds, data.draw) if has_ranks else ())
    first, second = both_sides(pair, lambda rows, times: own.mean(rows, times / n), adjacency)
    allowed = mean_row_sensitivity(adjacency, n, nonnegative and not has_ranks)
    assert np.linalg.norm(first - second) <= allowed * ROUNDING
    rows = own(check_rows(pair.X))
    assert (rows.row_norms() <= 1).all()


EXTREME = [(-2.0, 3.0), (0.0, 2.0), (-1.7e308, 1.7e308), (0.0, 5e-324), (-1e300, 1e-300), (1e300, 1.5e300), (5.0, 5.0)]


@st.composite
def maps(draw, X, pairs=EXTREME):
    """A map of the rows X with a centre: any released vector, or one of the rows themselves, which becomes zero."""
    d = X.shape[1]
    bounds = ColumnBounds.of(draw(st.sampled_from(pairs)), d)
    has_ranks = draw(st.booleans()) and bounds.numeric
    norm = draw(st.sampled_from([None, 1e-140, 0.1, 1.5, 1e140]))
    own = TableMap(bounds, norm, ranks_of(bounds, draw) if has_ranks else ())
    entries = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 5e-324, 1e-160, -1e160, 1e300]))
    row = own(check_rows(X)).matrix[draw(st.integers(0, len(X) - 1))]
    middle = draw(st.one_of(st.lists(entries, min_size=d, max_size=d).map(np.array), st.just(row.copy())))
    return replace(own, centre=middle)


@given(neighbours("binary"), st.sampled_from([REPLACE, ZERO]), st.data())
def test_centred_rows_are_never_longer_than_1_and_their_means_move_by_no_more_than_planned(pair, adjacency, data):
    """The lengths are looked up in exact fractions."""
    own = data.draw(maps(pair.X if pair.form == "dense" else pair.X.toarray()))
    check_mapped(own, pair, adjacency)


def check_mapped(own, pair, adjacency):
    n = len(pair.y)
    for X in (pair.X, pair.X2):
        made = own(check_rows(X)).matrix
        assert all(squares(row) <= 1 for row in made)
        # A row is changed by its own entries alone: it is the same without the others.
        for k, row in enumerate(made):
            np.testing.assert_array_equal(own(check_rows(X).take([k])).matrix[0], row)
    queries = [
        (column_means, means_sensitivity(adjacency, n)),
        (lambda rows, share: share @ rows.matrix, mean_row_sensitivity(adjacency, n, False)),
        (second_moments, moments_sensitivity(adjacency, n)),
    ]
    for query, allowed in queries:
        first, second = both_sides(pair, lambda rows, times, query=query: query(own(rows), times / n), adjacency)
        assert np.linalg.norm(first - second) <= allowed * ROUNDING


def test_rows_that_are_not_bounded_again_after_centring_would_be_noticed(monkeypatch):
    """A twin: the second of the two bounds of each block is left out."""
    X = np.array([[3.0, 0.0], [-2.0, -2.0]])
    own = TableMap(ColumnBounds.of((-2.0, 3.0), 2), centre=np.array([-0.5, 0.3]))
    pair = Pair(X[:1], np.zeros(1), X[1:], np.zeros(1), 0, "dense")
    check_mapped(own, pair, REPLACE)
    bound, calls = tables.bound, []
    monkeypatch.setattr(tables, "bound", lambda *own: calls.append(own) or (len(calls) % 2 and bound(*own)))
    with pytest.raises(AssertionError):
        check_mapped(own, pair, REPLACE)


def test_a_map_that_looks_at_other_rows_would_be_noticed(monkeypatch):
    """A twin: rows are divided by the longest of the block, so that their norms are at most 1 as well."""
    X = np.array([[3.0, 0.0], [1.0, 1.0], [-2.0, 1.0]])
    own = TableMap(ColumnBounds.of((-2.0, 3.0), 2), centre=np.array([-0.5, 0.3]))
    pair = Pair(X, np.zeros(3), X, np.zeros(3), 0, "dense")
    check_mapped(own, pair, REPLACE)

    def by_the_longest(block, norm, is_clip):
        block /= np.linalg.norm(block, axis=1).max() * (1 + 1e-12)

    monkeypatch.setattr(tables, "bound", by_the_longest)
    with pytest.raises(AssertionError):
        check_mapped(own, pair, REPLACE)


@pytest.mark.parametrize(("low", "expected"), [(0.0, math.sqrt(2)), (-1.0, 2.0)])
def test_the_mean_row_reaches_what_is_planned(low, expected):
    """Orthogonal rows where all entries are non-negative; opposite ones where they are not."""
    bounds, n = ColumnBounds.of((low, 2.0), 2), 4
    end = [0.0, 2.0] if low == 0 else [-2.0, 0.0]
    share = np.full(n, 1 / n)
    one, two = (check_rows(np.vstack([np.ones((n - 1, 2)), row])) for row in ([2.0, 0.0], end))
    moved = np.linalg.norm(TableMap(bounds).mean(one, share) - TableMap(bounds).mean(two, share))
    allowed = mean_row_sensitivity(REPLACE, n, bounds.is_nonnegative)
    assert allowed == expected / n and 0.9999 * allowed <= moved <= allowed * ROUNDING


def test_the_smaller_bound_is_for_rows_without_ranks_only():
    """Ranks are signed even where all bounds are non-negative."""
    few, many = make_plan(40, bounds=(0, UPPER)), make_plan(4000, bounds=(0, UPPER))
    assert planned(few, HISTOGRAMS) is None and planned(many, HISTOGRAMS) is not None
    assert planned(few, MEAN_ROW).sensitivity == math.sqrt(2) / 40
    assert planned(many, MEAN_ROW).sensitivity == 2 / 4000
    assert planned(make_plan(40), MEAN_ROW).sensitivity == 2 / 40, "one bound is below 0"


# --- ranks and centring -----------------------------------------------------------------------------------


def bin_counts(values, edges):
    """The counts of one column."""
    own = BinCounts([edges])
    own.add(values[:, None].copy(), np.ones(len(values)))
    return own.totals()[0]


def rank(values, ranks):
    """The ranks of one column."""
    block = values[:, None].copy()
    Ranks((0,), (ranks,))(block)
    return block[:, 0]


def released(values, edges, rounds, noise=0.0):
    """The histogram of a column after some rounds without noise."""
    own = Histogram(edges)
    for number in range(rounds):
        own.add(bin_counts(values, own.edges))
        if number + 1 < rounds:
            own.part(noise)
    return own


@pytest.mark.parametrize("width", [1.0, 10.0, 100.0])
def test_ranks_are_shares_below_even_where_bounds_are_far_too_wide(width):
    values = np.random.default_rng(0).uniform(0.2, 1.0, 20_000) / width
    true = 2 * np.argsort(np.argsort(values)) / len(values) - 1
    own = released(values, np.linspace(0, 1, rules.BINS + 1), rules.ROUNDS)
    assert np.abs(rank(values, own.ranks(0.0)) - true).mean() < 0.08
    once = released(values, np.linspace(0, 1, rules.BINS + 1), 1)
    assert width == 1 or np.abs(rank(values, once.ranks(0.0)) - true).mean() > 0.1, "one release would not do"
    assert rank(np.array([-9.0, 9.0]), own.ranks(0.0)).tolist() == [-1.0, 1.0], "values outside count as the nearest"


def test_a_release_counts_every_record_once_at_every_depth():
    values = np.random.default_rng(1).exponential(0.002, 5000)
    own = released(values, np.linspace(0, 1, rules.BINS + 1), 3)
    counts = bin_counts(values, own.edges)
    assert counts.sum() == 5000 and len(counts) > 2 * rules.BINS
    # With no noise, all releases agree: the sums divided by their number are the counts of the finest bins.
    borders, below = own.ranks(0.0)
    np.testing.assert_allclose(np.diff(below), counts / 5000, atol=1e-12)
    assert (np.diff(borders) > 0).all()


def test_noise_alone_gives_straight_ranks():
    own = Histogram(np.linspace(-1, 1, rules.BINS + 1))
    own.add(np.full(rules.BINS, -1.0))
    borders, below = own.ranks(5.0)
    np.testing.assert_allclose(below, np.linspace(0, 1, rules.BINS + 1), atol=1e-12)


def test_a_short_mean_is_not_subtracted_and_a_noisy_one_is_shrunk():
    assert centre(np.full(4, 0.2), 0.0, 0.25) is None
    np.testing.assert_allclose(centre(np.full(4, 0.2), 0.0, 0.0), np.full(4, 0.2))
    np.testing.assert_allclose(centre(np.full(4, 0.5), 0.0, 0.25), np.full(4, 0.5))
    np.testing.assert_allclose(centre(np.full(4, 0.5), 0.25, 0.25), np.full(4, 0.5 * 0.75))
    assert centre(np.full(4, 0.5), 0.5, 0.0) is None


# --- plan -------------------------------------------------------------------------------------------------


@given(st.floats(1e-3, 50.0), st.sampled_from([1e-12, 1e-5, 0.01]), st.integers(1, 10**7), st.integers(1, 400),
       st.sampled_from(["replace-one", "zero-out"]))  # fmt: skip
def test_the_guarantee_is_at_most_the_budget_and_uses_it_up(epsilon, delta, n, d, adjacency):
    plan = make_plan(n, d, epsilon=epsilon, delta=delta, adjacency=adjacency, bounds=(0, 7))
    assert epsilon * (1 - 1e-6) <= plan.guarantee.epsilon(delta) <= epsilon


def test_a_stage_is_left_out_for_public_reasons_and_its_budget_is_kept():
    plan, small, flat = make_plan(5000), make_plan(20), make_plan(5000, bounds=(0, 1))
    assert [r.query for r in plan.releases[-2:]] == [HISTOGRAMS, MEAN_ROW]
    assert plan.settings.table_stages(5000, 4).remarks == ()
    assert {HISTOGRAMS, MEAN_ROW}.isdisjoint(r.query for r in small.releases)
    assert "no histograms of columns" in str(small) and "no centring of rows" in str(small)
    assert "no column is numeric" in str(flat) and planned(flat, MEAN_ROW) is not None
    # What is left out costs nothing: the noise of the other stages is that of a plan without bounds.
    plain = solvers.plan("dp_pipeline", n=20, d=4, epsilon=2.0, delta=1e-5)
    assert [r.scale for r in small.releases] == [r.scale for r in plain.releases]
    shares = [table_stages(plan.settings.bounds, n, 4, 0.5, REPLACE).rest for n in (10, 60, 5000)]
    assert shares[0] == 1 and shares[1:] == sorted(shares[1:], reverse=True) and shares[2] == pytest.approx(0.85)


def test_a_plan_is_made_again_from_its_json():
    for numeric in (None, [1]):
        plan = make_plan(500, numeric=numeric)
        record = json.loads(plan.to_json())
        again = solvers.plan("dp_pipeline", n=500, d=4, **record["settings"])
        assert again == plan and again.fingerprint == plan.fingerprint
    assert make_plan(500, numeric=[1]).fingerprint != make_plan(500).fingerprint
    assert make_plan(500, bounds=(LOWER, UPPER + 1)).fingerprint != make_plan(500).fingerprint


def test_without_bounds_a_plan_names_none():
    plan = solvers.plan("dp_pipeline", n=500, d=4, epsilon=2.0, delta=1e-5)
    assert not {"bounds", "numeric"} & set(plan.settings.to_dict()) and "bounds=" not in str(plan)


# --- the run ----------------------------------------------------------------------------------------------


def test_every_release_has_the_planned_noise():
    """The spy sees what is drawn, in order; the releases are the exact queries plus these draws times the scales."""
    X, y = table(0, 300)
    plan = make_plan(300, epsilon=8.0)
    run = solvers.bind(plan, X, y)
    spy = Spy(3)
    trace = run(spy, trace=True)
    counts, mean = planned(plan, HISTOGRAMS), planned(plan, MEAN_ROW)
    drawn, width, at = spy.of("standard_normal"), 5, 0
    histograms = [Histogram(edges) for edges in plan.settings.bounds.edges(rules.BINS)]
    for number in range(rules.ROUNDS):
        exact = run._counts([own.edges for own in histograms])
        slot = run._slot(number)
        rows = math.ceil(3 * slot / width)
        slots = trace.releases[at : at + rows].ravel()[: 3 * slot].reshape(3, slot)
        seen = np.concatenate([own[: len(part)] for own, part in zip(slots, exact, strict=True)])
        at += rows
        np.testing.assert_allclose((seen - np.concatenate(exact)) / counts.scale, drawn[number], atol=1e-9)
        for own, part in zip(histograms, np.split(seen, np.cumsum([len(e) for e in exact])[:-1]), strict=True):
            own.add(part)
            if number + 1 < rules.ROUNDS:
                own.part(counts.scale)
    made = trace.history["preparation"].table
    first = TableMap(plan.settings.bounds, None, made.ranks)
    exact = first.mean(check_rows(X), np.full(300, 1 / 300))
    np.testing.assert_allclose((trace.releases[at, :4] - exact) / mean.scale, drawn[rules.ROUNDS], atol=1e-9)
    for (borders, below), own in zip(made.ranks, histograms, strict=True):
        np.testing.assert_array_equal(below, own.ranks(counts.scale)[1])
        np.testing.assert_array_equal(borders, own.edges)
    np.testing.assert_array_equal(trace.history["mean_row"], trace.releases[at, :4])
    # Then come the other stages: column means, eigenvalue, steps and slopes.
    assert len(drawn) == rules.ROUNDS + 1 + 2 + trace.history["steps"] + rules.HALVINGS


def test_counts_of_rows_stand_for_repeated_rows():
    X, y = table(1, 40)
    times = np.arange(40) % 3
    plan = make_plan(int(times.sum()), epsilon=20.0)
    one = solvers.bind(plan, X, y, times)(np.random.default_rng(0))
    two = solvers.bind(plan, np.repeat(X, times, axis=0), np.repeat(y, times))(np.random.default_rng(0))
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-9)


def test_dense_and_sparse_tables_give_the_same_model():
    X, y = table(2, 2000)
    X[X[:, 3] == 0, 1] = 0.0
    results = [
        solvers.dp_pipeline(form, y, epsilon=2.0, delta=1e-5, rng=5, bounds=(LOWER, UPPER))
        for form in (X, sparse.csr_matrix(X))
    ]
    np.testing.assert_array_equal(results[0].coef, results[1].coef)
    np.testing.assert_array_equal(solvers.margins(results[0], X), solvers.margins(results[1], sparse.csr_matrix(X)))


def other_forms(X, folder):
    """(name, the same whole numbers in memory of another layout, order of bytes or type)."""
    kept = X.copy()
    kept.flags.writeable = False
    shifted = np.frombuffer(b"\0" + X.tobytes(), dtype=np.float64, offset=1).reshape(X.shape)
    wide = np.zeros((2 * len(X), 9))
    wide[::2, 1::2] = X
    np.save(folder / "X.npy", X)
    yield from (("read-only", kept), ("unaligned", shifted), ("strided", wide[::2, 1::2]), ("backwards", X[::-1][::-1]))
    yield from (("columns first", np.asfortranarray(X)), ("map", np.load(folder / "X.npy", mmap_mode="r")))
    yield from ((kind, X.astype(kind)) for kind in (">f8", ">f4", "<f2", "<i2", ">i8", "g", "O"))
    yield from ((kind, getattr(sparse, f"{kind}_matrix")(X)) for kind in ("csr", "csc", "coo", "lil"))
    single = sparse.csr_array(X.astype(np.float32))
    single.indices, single.indptr = single.indices.astype(np.int64), single.indptr.astype(np.int64)
    yield "csr of single precision", single


@pytest.mark.parametrize("worth", [0, math.inf], ids=["along moments", "plain"])
def test_the_same_numbers_in_any_form_give_the_same_model_to_the_last_bit(monkeypatch, tmp_path, worth):
    monkeypatch.setattr(rules, "WORTH", worth)
    X, y = table(12, 300)
    X = np.rint(X)
    expected = solvers.dp_pipeline(X, y, epsilon=4.0, delta=1e-5, bounds=(LOWER, UPPER), rng=5)
    for name, form in other_forms(X, tmp_path):
        found = solvers.dp_pipeline(form, y, epsilon=4.0, delta=1e-5, bounds=(LOWER, UPPER), rng=5)
        np.testing.assert_array_equal(found.coef, expected.coef, name)
        np.testing.assert_array_equal(solvers.margins(found, form), solvers.margins(expected, X), name)
    # The twin: one number of one record is another.
    X[0, 1] += 1
    found = solvers.dp_pipeline(X, y, epsilon=4.0, delta=1e-5, bounds=(LOWER, UPPER), rng=5)
    assert (found.coef != expected.coef).any()


def test_bounds_make_units_irrelevant_and_the_model_good():
    X, y = table(3, 4000)
    unit = np.array([1000.0, 1.0, 1e-3, 1.0])
    results = [
        solvers.dp_pipeline(X * by, y, epsilon=1.0, delta=1e-5, rng=1, bounds=(LOWER * by, UPPER * by))
        for by in (np.ones(4), unit)
    ]
    test, truth = table(4, 4000)
    errors = [
        np.mean((solvers.margins(result, test * by) > 0) != truth)
        for result, by in zip(results, (np.ones(4), unit), strict=True)
    ]
    assert max(errors) < 0.16
    raw = solvers.dp_pipeline(X, y, epsilon=1.0, delta=1e-5, rng=1)
    assert np.mean((solvers.margins(raw, test) > 0) != truth) > 0.25


def test_new_rows_are_clipped_to_the_bounds():
    X, y = table(5, 1000)
    result = solvers.dp_pipeline(X, y, epsilon=2.0, delta=1e-5, rng=1, bounds=(LOWER, UPPER))
    far = np.array([[1e300, -1e300, 1e9, 1.0]])
    np.testing.assert_array_equal(solvers.margins(result, far), solvers.margins(result, np.clip(far, LOWER, UPPER)))
    for bad in (math.nan, math.inf):
        with pytest.raises(InvalidValue):
            solvers.margins(result, np.array([[bad, 0.0, 20.0, 1.0]]))
        with pytest.raises(InvalidValue):
            solvers.dp_pipeline(np.full((9, 4), bad), np.ones(9), epsilon=1.0, delta=1e-5, bounds=(LOWER, UPPER))


@pytest.mark.parametrize("epsilon", [1.0, 1e4, math.inf])
def test_one_record_one_column_and_no_noise_are_corners_that_work(epsilon):
    result = solvers.dp_pipeline([[7.0]], [1.0], epsilon=epsilon, delta=1e-5, rng=0, bounds=(0, 10))
    assert np.isfinite(solvers.margins(result, [[3.0]])).all()
    several = solvers.dp_pipeline([[7.0, 1.0]] * 3, [0, 1, 2], epsilon=epsilon, delta=1e-5, rng=0, bounds=(1, 10),
                                  loss="softmax", classes=3)  # fmt: skip
    assert np.isfinite(solvers.margins(several, [[1e300, -1e300]])).all()


@pytest.mark.parametrize(("place", "border"), [(0, -math.inf), (-1, math.inf), (0, math.nan)])
def test_a_stored_map_with_a_border_that_is_no_number_is_refused(place, border):
    """A value between an infinite border and the next would have no rank."""
    bounds = ColumnBounds.of((-2.0, 3.0), 1)
    own = TableMap(bounds, None, tuple((edges, np.linspace(0, 1, len(edges))) for edges in bounds.edges(4)))
    record = own.to_dict()
    assert np.array_equal(TableMap.from_dict(record, bounds, None).ranks, own.ranks)
    record["borders"][0][place] = border
    with pytest.raises(InvalidValue, match="contradicts its bounds"):
        TableMap.from_dict(record, bounds, None)


# --- a table that changes while it is read ------------------------------------------------------------------


def fit_while(monkeypatch, at, value, **more):
    """A fit of a table whose record 7 is changed before pass ``at`` over the rows, and the number of passes."""
    X, y = table(11, 400)
    original, passes = Rows.dense_blocks, []

    def other_thread(rows, columns=None):
        if np.shares_memory(rows.matrix, X):
            passes.append(columns)
            if len(passes) == at:
                X[7] = value
        return original(rows, columns)

    monkeypatch.setattr(Rows, "dense_blocks", other_thread)
    result = solvers.dp_pipeline(X, y, epsilon=4.0, delta=1e-5, bounds=(LOWER, UPPER), **more)
    return result, len(passes)


PATHS = pytest.mark.parametrize("worth", [0, math.inf], ids=["along moments", "plain"])
NOISE = pytest.mark.parametrize("noise", [{"rng": 3}, {"randomness": "secure"}], ids=["fast", "secure"])


@PATHS
@NOISE
@pytest.mark.parametrize("at", [1, 2, 3])
def test_nan_that_is_written_during_a_fit_is_refused(monkeypatch, worth, noise, at):
    """It would pass through every clip and make all sums NaN: one record would decide the whole release."""
    monkeypatch.setattr(rules, "WORTH", worth)
    with pytest.raises(InvalidValue, match="X was changed while it was read"):
        fit_while(monkeypatch, at, math.nan, **noise)
    # The twin: a kernel that reports nothing lets the fit go on, and its sums are NaN.
    scale = tables.scale
    monkeypatch.setattr(tables, "scale", lambda *numbers: scale(*numbers) or True)
    result, _ = fit_while(monkeypatch, at, math.nan, rng=3)
    assert np.isnan(result.history["mean_row"]).all() or np.isnan(result.history["preparation"].means).all()


@PATHS
@NOISE
@pytest.mark.parametrize("value", [math.inf, -math.inf, 1.7e308, 5e-324])
def test_other_numbers_that_are_written_during_a_fit_are_clipped_to_the_bounds(monkeypatch, worth, noise, value):
    monkeypatch.setattr(rules, "WORTH", worth)
    _, passes = fit_while(monkeypatch, 0, value, **noise)
    for at in range(1, passes + 1):
        result, _ = fit_while(monkeypatch, at, value, **noise)
        assert np.isfinite(result.coef).all() and np.isfinite(result.history["mean_row"]).all()
        assert np.isfinite(result.history["preparation"].means).all()


# --- regression -------------------------------------------------------------------------------------------


def test_regression_needs_no_row_norm_with_bounds_and_is_linear_in_the_columns():
    X, _ = table(6, 4000)
    target = (X[:, 0] - 55) / 50 + (X[:, 1] - 1) / 4
    fit = {"loss": "squared", "label_bound": 1.5, "delta": 1e-5, "rng": 2, "bounds": (LOWER, UPPER)}
    result = solvers.dp_pipeline(X, target, epsilon=1.0, **fit)
    assert result.plan.settings.row_norm == math.sqrt(4 / 3)
    test, _ = table(7, 2000)
    truth = (test[:, 0] - 55) / 50 + (test[:, 1] - 1) / 4
    errors = solvers.margins(result, test) - truth
    assert np.mean(errors**2) < 0.1 * truth.var()
    made = result.history["preparation"].table
    assert all(len(borders) == 2 for borders, _ in made.ranks), "values are moved and scaled, and not ranked"
    with pytest.raises(InvalidValue, match="row_norm"):
        solvers.plan("dp_pipeline", n=9, d=4, epsilon=1.0, delta=1e-5, loss="squared", label_bound=1.0)


def test_the_spread_of_a_column_holds_nearly_all_values():
    values = np.random.default_rng(8).normal(0.34, 0.01, 10_000)
    own = released(values, np.linspace(0, 1, rules.BINS + 1), rules.ROUNDS)
    (low, high), below = own.spread(0.0)
    assert below.tolist() == [0, 1] and 0.31 < low < 0.33 and 0.35 < high < 0.37
    point = released(np.full(100, 0.3), np.linspace(0, 1, rules.BINS + 1), rules.ROUNDS)
    assert np.isfinite(rank(np.array([0.2, 0.3]), point.spread(0.0))).all()


def test_a_hopeless_regression_of_a_table_warns():
    more = {"loss": "squared", "label_bound": 1.0, "epsilon": 1.0}
    with pytest.warns(solvers.HopelessPlanWarning, match="What helps"):
        make_plan(60, **more)
    assert not make_plan(2000, **more).outlook.is_hopeless
