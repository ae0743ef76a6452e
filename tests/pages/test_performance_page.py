"""docs/performance.md says what the saved run of the suite says, and the suite leaves no solver out."""

from __future__ import annotations

import json

import pytest

from benchmarks import accounting_grid
from benchmarks.__main__ import SECTIONS, jobs
from benchmarks.suite import memory, page
from benchmarks.suite.cases import RIVALS, WITHOUT_RIVAL, arguments
from dptoolkit import solvers


@pytest.fixture(scope="module")
def saved():
    return json.loads(page.SAVED.read_text(encoding="utf-8"))


def test_page_and_saved_run_agree():
    assert page.PAGE.read_text(encoding="utf-8") == page.rendered(), "run: python -m benchmarks --page"
    assert page.PLOT.exists()


def test_another_run_gives_another_page(saved):
    changed = [row | {"whole": [2 * one for one in row["whole"]]} if "whole" in row else row for row in saved["rows"]]
    assert page.render(saved["about"], changed) != page.rendered()


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
def test_every_private_solver_has_arguments_a_memory_and_a_rival_or_a_place_among_those_without(saved):
    assert set(RIVALS) | set(WITHOUT_RIVAL) == set(solvers.PRIVATE)
    for name in solvers.PRIVATE:
        solvers.plan(name, n=2000, d=300, **arguments(name, (2000, 300), 1.0))
    sections = {name: [row for row in saved["rows"] if row["section"] == name] for name, *_ in SECTIONS}
    quick = "--quick" in saved["about"]["command"]
    measured = {row["solver"].split(",")[0] for row in sections["memory"]}
    assert measured == set(memory.QUICK if quick else solvers.PRIVATE)
    assert not [row for row in sections["memory"] if "failed" in row]
    assert {row["solver"].split(",")[0] for row in sections["fits"]} == set(RIVALS)


def test_all_fits_slower_than_plain_are_named(saved):
    fits = [row for row in saved["rows"] if row["section"] == "fits"]
    named = page.rendered().split("## Fits")[0].split("## Slower than plain NumPy")[1]
    exceptions = [row for row in fits if min(page.ratio(row, "whole"), page.ratio(row, "iterations")) < 1]
    assert sum(line.startswith("| ") for line in named.splitlines()) == (len(exceptions) + 2 if exceptions else 0)
    for row in exceptions:
        assert f"| {row['shape']} | {row['solver']} | {row['epsilon']:g} |" in named


def test_one_core_races_one_core_and_two_race_two(saved):
    for name, _, cores in SECTIONS:
        assert {row["cores"] for row in saved["rows"] if row["section"] == name} == {cores}
    assert {section for section, *_ in jobs(quick=True, only=[])} == {name for name, *_ in SECTIONS}


def test_the_page_on_calibration_says_what_was_saved():
    grid, page_text = accounting_grid, accounting_grid.PAGE.read_text(encoding="utf-8")
    assert page_text == grid.rendered(grid.saved()), "run: python -m benchmarks.accounting_grid --page"
    assert {tuple(one[name] for name in grid.Setting._fields) for one in grid.saved()} <= set(grid.settings())


def test_the_grid_of_calibrations_has_the_ends_of_every_range_and_every_pair_of_levels():
    found = accounting_grid.settings()
    assert {s.rate for s in found} >= {1e-4, 1.0}
    assert {s.steps for s in found} >= {1, 100_000}
    assert {s.epsilon for s in found} >= {0.1, 10.0}
    assert {s.delta for s in found} >= {1e-9, 1e-3}
    assert {(s.rate, s.epsilon) for s in found} >= {(r, e) for r in (1e-4, 1e-2, 0.3, 1.0) for e in (0.1, 1.0, 10.0)}
