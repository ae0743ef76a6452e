"""Figures that items share column by column, the choice charged privately beside them, and the order of units."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paper_checks import charged, columns, curves, run, seeds
from paper_checks.__main__ import ROOT
from paper_checks.claims import load, paper_folders
from paper_checks.curves import CHARGED, PUBLISHED, TIGHT, Method
from paper_checks.findings import Finding
from paper_checks.khanna_2023_lasso import outcomes
from paper_checks.khanna_2023_lasso import runs as lasso_runs
from paper_checks.run import Settings, Unit
from paper_checks.shared import Shared

pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")


def _shared():
    return Shared(seeds.source(0, "p", "shared runs"))


def _methods(calls):
    def fit(data, epsilon, noise, setting, draw):
        calls.append((epsilon, setting))
        return data + setting / epsilon * draw.standard_normal(3)

    def plain(data, epsilon, noise, setting, draw):
        calls.append(("plain", setting))
        return data + setting

    def chosen(data, epsilon, draw):
        return data + 5 / epsilon * draw.standard_normal(3)

    return [
        Method("ours", fit, [1.0, 2.0], charged=chosen), Method("theirs", fit, [2.0, 3.0], (TIGHT,), charged="no way"),
        Method("open", plain, [0.1, 0.2], (TIGHT,), private=False),
    ]  # fmt: skip


def _figure(shared, budgets, calls):
    return columns.shared_figure(
        shared, "a figure", _methods(calls), budgets, lambda draw: draw.standard_normal(3),
        lambda data, weights: float(np.linalg.norm(weights - data)), 4,
    )  # fmt: skip


def test_items_take_columns_of_one_figure_and_nothing_is_made_twice():
    shared, calls = _shared(), []
    first = _figure(shared, [1.0, 4.0], calls)
    made = len(calls)
    assert made and sum(name == "plain" for name, _ in calls) == 2 * 2 + 4
    second = _figure(shared, [4.0], calls)
    assert len(calls) == made
    for key, errors in second.errors.items():
        np.testing.assert_array_equal(errors[:, 0], first.errors[key][:, 1])
    # Without privacy the columns are the same one.
    assert (first.curve(TIGHT, "open")[:, 0] == first.curve(TIGHT, "open")[:, 1]).all()
    _figure(shared, [2.0], calls)
    assert len(calls) > made


def test_a_shared_figure_is_what_measure_gives():
    shared = _shared()
    found = _figure(shared, [1.0, 4.0], [])
    own = curves.measure(_methods([])[:2], [1.0, 4.0], lambda draw: draw.standard_normal(3),
                         lambda data, weights: float(np.linalg.norm(weights - data)), shared.source.of("a figure"),
                         4)  # fmt: skip
    for key, errors in own.errors.items():
        np.testing.assert_array_equal(found.errors[key], errors)
    back = columns.of_part(json.loads(json.dumps(columns.as_part(own))))
    assert back.uncharged == {"theirs": "no way"} and back.chosen[PUBLISHED, "ours"] == own.chosen[PUBLISHED, "ours"]


def test_the_choice_that_is_charged_is_shown_and_changes_no_verdict():
    figure = _figure(_shared(), [1.0, 4.0], [])
    before = Finding("tie", "words")
    after = curves.with_charged(before, figure)
    assert (after.verdict, after.computed) == ("tie", "words")
    labels = [row.label for row in after.rows]
    assert labels == [f"{CHARGED}, tight noise, epsilon {e}: ours" for e in (1, 4)] + [f"{CHARGED}: theirs"]
    assert "against" in after.rows[0].computed and after.rows[-1].computed == "no way"
    # A ranking sees only the curves that it names.
    ranked = curves.order(figure, "ours", {"theirs": ["theirs"]})
    assert not any(CHARGED in row.label for row in ranked.rows)


def test_a_private_choice_keeps_the_budget_and_makes_one_plan_for_all_data_sets():
    charged._plan.cache_clear()
    candidates = [{"steps": 2, "step_size": size} for size in (0.5, 1.0)]
    common = {"epsilon": 2.0, "delta": 1e-3, "loss": "logistic", "sparsity": 2, "row_norm": 2.0}
    for seed in range(3):
        draw = np.random.default_rng(seed)
        X = draw.uniform(-1, 1, (60, 5))
        weights = charged.private_choice("dp_ight", candidates, X, (X[:, 0] > 0).astype(float), draw, **common)
        assert weights.shape == (5,) and np.count_nonzero(weights) <= 2
    assert charged._plan.cache_info().misses == 1
    plan = charged._plan("dp_ight", json.dumps(candidates), 60, 5, json.dumps(common, sort_keys=True))
    assert 1.9 < plan.guarantee.epsilon(1e-3) <= 2.0 and plan.run_epsilon < 2.0


def test_runs_of_lasso_come_back_from_parts():
    values = {name: np.arange(4.0) + place for place, name in enumerate("abc")}
    scores = {(PUBLISHED, "m"): lasso_runs.Scores(values["a"], values["b"], values["c"], 7)}
    found = lasso_runs.Runs(5, 60, np.array([3, 4]), scores)
    back = lasso_runs.of_part(json.loads(json.dumps(lasso_runs.as_part(found))))
    assert (back.features, back.train, back.plain.tolist()) == (5, 60, [3, 4])
    one = back.scores[PUBLISHED, "m"]
    np.testing.assert_array_equal([one.nonzeros, one.accuracy, one.auc], list(values.values()))
    assert one.iterations == 7
    key = (TIGHT, "m")
    shown = outcomes.Outcome({key: np.ones((2, 1, 3))}, {key: np.full((2, 1), 0.25)}, {key: [2.0]})
    again = outcomes.of_part(json.loads(json.dumps(outcomes.as_part(shown))))
    assert again.weights[key].shape == (2, 1, 3) and again.errors[key][1, 0] == 0.25 and again.chosen[key] == [2.0]


def test_workers_begin_with_the_longest_items():
    papers = {paper.name: paper for paper in (load(folder) for folder in paper_folders(ROOT, []))}
    todo = run.units(papers.values(), "full")
    order = run._longest_first(papers, todo)
    costs = {item.id: item.cost for paper in papers.values() for item in paper.items}
    assert sorted(order, key=str) == sorted(todo, key=str)
    assert order[0].id == max(costs, key=costs.__getitem__)
    # The rest stays in the order of the files, and items on runs that another makes come after it.
    rest = [unit for unit in todo if not costs.get(unit.id)]
    assert order[-len(rest) :] == rest and Unit("khanna_2023_lasso", "LASSO-T1e") in rest


def test_a_data_set_of_one_part_and_one_with_a_part_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("DPTOOLKIT_DATA", raising=False)
    folder = tmp_path / "gisette"
    folder.mkdir()
    assert not run.available("gisette", str(tmp_path))
    (folder / "gisette_scale.t").write_text("1 1:1\n", encoding="utf-8")
    # Its only part is the test part.
    assert run.available("gisette", str(tmp_path))
    rcv1 = tmp_path / "rcv1_sub"
    rcv1.mkdir()
    assert not run.available("rcv1_sub", str(tmp_path)) and not run.available("no such set", str(tmp_path))
    assert Settings().data_home is None and not run.available("gisette", None)
