"""The comparison of two runs of the paper checks."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paper_seeds import compare, points
from paper_checks import charts


def _record(verdict="tie", agrees=True, columns=None, log=False):
    make = charts.geometric_curve if log else charts.mean_curve
    columns = [np.arange(1.0, 21.0)] if columns is None else columns
    chart = charts.Chart("panel", "epsilon", "error", (make("ours", [1.0], columns),))
    row = {"label": "cell", "published": 1, "computed": 2, "agrees": agrees}
    return {"verdict": verdict, "rows": [row], "charts": [charts.record(chart)]}


KEY = ("paper", "ITEM", "null")


def test_runs_that_agree_have_nothing_listed():
    found = compare({KEY: _record()}, {KEY: _record(columns=[np.arange(1.0, 21.0) + 0.1])})
    assert "1 of 1 verdicts" in found and "0 of 1 (0.0%) measured means" in found and "- 0 means are twice" in found
    assert found.endswith(":")


def test_another_verdict_another_row_and_a_mean_far_away_are_listed():
    found = compare({KEY: _record()}, {KEY: _record("met", False, [np.arange(1.0, 21.0) + 50])})
    assert "- ITEM: tie, then met." in found
    assert "- ITEM, cell: 2 (agrees), then 2 (does not)" in found
    assert "- ITEM, panel, ours, epsilon 1: 10.5, then 60.5" in found


def test_what_depends_on_no_seed_is_no_measured_mean():
    assert "0 of 0 measured means are" in compare({KEY: _record()}, {KEY: _record()})


@pytest.mark.parametrize("log", [False, True])
def test_one_mean_in_twenty_is_apart_by_more_than_its_interval(log):
    # 4,000 pairs of means of 20 values: the share has a deviation of 0.0035, so 0.03 to 0.07 is missed once in 1e7.
    draw = np.random.default_rng(0)

    def columns():
        values = draw.standard_normal((4000, 20))
        return list(np.exp(0.1 * values) if log else values)

    def record():
        make = charts.geometric_curve if log else charts.mean_curve
        chart = charts.Chart("panel", "epsilon", "error", (make("ours", list(range(4000)), columns()),))
        return {"charts": [charts.record(chart)]}

    apart = np.array([point.apart for point in points("ITEM", record(), record())])
    assert len(apart) == 4000
    assert 0.03 < np.mean(apart > 1) < 0.07 and np.mean(apart > 2) < 0.002
