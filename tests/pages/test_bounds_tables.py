"""What bounds of columns are worth: the pages show the saved results of benchmarks/bounds.py."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import bounds
from benchmarks.lib import tables

PAGES = {"tables": "dp_pipeline.md", "wide": "dp_pipeline.md", "pixels": "dp_pipeline.md", "numbers": "dp_pipeline.md",
         "floors": "dp_pipeline.md", "missing": "dp_pipeline.md", "rounds": "rules.md"}  # fmt: skip


def test_the_pages_show_the_saved_results():
    found = bounds.on_pages()
    assert {*found} == {*PAGES}
    for name, table in found.items():
        text = (bounds.DOCS / PAGES[name]).read_text()
        assert f"<!-- bounds: {name} -->\n{table}\n<!-- end -->" in text, (
            "run python -m benchmarks.bounds --part report"
        )


def test_every_result_is_saved_once_and_has_the_planned_seeds():
    keys = [(one["part"], one["key"]) for one in bounds.read()]
    assert len(keys) == len({*keys})
    seeds = {f"{name}, {rows}": count for name, rows, _, count in bounds.TABLES}
    for one in bounds.read():
        if one["part"] == "tables":
            assert len(one["with"]) == len(one["before"]) == seeds[one["key"]]


def test_three_ordered_classes_are_stated_as_measured():
    """LIMITATIONS.md and docs/rules.md name the accuracies of one softmax model and of a fit per class."""
    saved = {one["key"]: one for one in bounds.read() if one["part"] == "ordered"}
    for page in ("rules.md", "../LIMITATIONS.md"):
        text = (bounds.DOCS / page).read_text()
        for one in saved.values():
            for way in ("softmax", "a fit per class"):
                assert f"{np.mean(one[way]):.3f}" in text, (page, way)


@pytest.mark.parametrize("name", ["hospital", "hospital, three ordered classes"])
def test_the_made_up_hospital_is_the_same_in_every_run_and_lies_within_its_bounds(name, tmp_path):
    one, two = (tables.load(name, tmp_path) for _ in range(2))
    assert np.array_equal(one.X, two.X) and np.array_equal(one.y, two.y)
    assert one.X.shape == (50_000, 16) and len(one.lower) == len(one.upper) == 16
    assert ((one.lower != 0) | (one.upper != 1)).sum() == 12
    assert ((one.lower <= one.X) & (one.upper >= one.X)).mean() > 0.99
    shares = np.bincount(one.y.astype(int)) / len(one.y)
    assert shares.min() > 0.2


def test_the_true_scores_of_the_hospital_belong_to_its_test_rows(tmp_path):
    """The floor of the page is the error of these scores: a sign of the wrong rows would be a coin."""
    table = tables.load("hospital", tmp_path)
    chance = 1 / (1 + np.exp(-np.abs(tables.hospital_scores())))
    wrong = np.mean((tables.hospital_scores() > 0) != table.y_test)
    assert abs(wrong - np.mean(1 - chance)) < 5 * np.sqrt(np.mean(chance * (1 - chance)) / len(table.y_test))
