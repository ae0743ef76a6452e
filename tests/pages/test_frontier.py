"""The league table: the page shows the saved results, and everything that should take part does."""

from __future__ import annotations

import pytest

from benchmarks.frontier import BUDGETS, FEW, TUNED_ON, best_setting, read
from benchmarks.lib import report
from benchmarks.lib.methods import METHODS, changed
from benchmarks.lib.problems import CHOSEN_ON, CHOSEN_ON_ALSO, CLASSES, JUDGED_ON, NUMBERS
from dptoolkit import solvers
from dptoolkit.solvers.frame import rules

RESULTS = {part: read(part) for part in ("tune", "league", "whole", "grid")}


def test_the_page_shows_the_saved_results():
    assert report.on_page() == report.tables(), "run python -m benchmarks.frontier --part report"


def test_every_private_solver_takes_part_on_every_set_that_it_is_for():
    private = {name for name in solvers.__all__ if name.startswith("dp_")}
    private |= {"objective_perturbation", "knowledge_transfer", "two_stage", "peeling_iht", "sparsifier"}
    assert private == {*METHODS} - {"diffprivlib"}
    assert {one["method"] for one in RESULTS["league"]} == {*METHODS}
    assert {one["set"] for one in RESULTS["league"]} == {*CHOSEN_ON, *JUDGED_ON, *CLASSES, *NUMBERS}
    saved = report.Saved("league")
    for name in (*CHOSEN_ON, *JUDGED_ON, *CLASSES, *NUMBERS):
        for budget in BUDGETS:
            found = saved.find(name, "dp_pipeline", budget, tuned=False)
            assert found is not None and len(found["errors"]) >= 5 and found["n"] <= FEW


def test_nobody_is_tuned_on_what_is_judged_and_all_try_as_many_settings():
    assert {one["set"] for one in RESULTS["tune"]} <= {*TUNED_ON} == {*CHOSEN_ON, *CHOSEN_ON_ALSO}
    assert not {*TUNED_ON} & {*JUDGED_ON}
    for method in METHODS.values():
        for settings in method.settings.values():
            assert len(settings) == 5 and (not method.rule or settings[0] == {})


def test_results_are_counted_once():
    for part, results in RESULTS.items():
        keys = [str([one[k] for k in ("set", "n", "method", "setting", "epsilon", "delta")]) for one in results]
        assert len(keys) == len({*keys}), part


def test_every_failure_has_its_reason():
    assert {*report.failures()} == {*report.REASONS}
    assert report.within(0.125, 0.1) and not report.within(0.126, 0.1)
    assert report.within(0.02, 0.01) and not report.within(0.0201, 0.01)


def test_the_best_setting_is_that_of_the_least_share_of_the_plain_error():
    settings = METHODS["dp_pipeline"].settings["binary"]
    errors = dict(zip(map(str, settings), (0.2, 0.1, 0.3, 0.4, 0.5), strict=True))
    tuned = [{"method": "dp_pipeline", "kind": "binary", "setting": setting, "plain": 0.5, "errors": [error, error]}
             for setting in settings for error in [errors[str(setting)]]]  # fmt: skip
    assert best_setting("dp_pipeline", "binary", tuned) == settings[1]
    assert best_setting("dp_pipeline", "classes", tuned) is None


def test_changed_constants_are_put_back():
    before = rules.MARGIN_NOISE
    with pytest.raises(RuntimeError), changed({"MARGIN_NOISE": 1.6}):
        assert rules.MARGIN_NOISE == 1.6
        raise RuntimeError
    assert before == rules.MARGIN_NOISE
