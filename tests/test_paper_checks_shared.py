"""Runs that items share: made once and kept; and what Tables 4 and 5 and Figures 1 and 2 of SHT would say of others."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paper_checks import curves, family, seeds
from paper_checks.__main__ import ROOT
from paper_checks.claims import load
from paper_checks.items import find
from paper_checks.liang_2023_stochastic_ht import problems, real_data
from paper_checks.run import Settings, run
from paper_checks.shared import Shared
from paper_checks.store import Store

PAPER = load(ROOT / "liang_2023_stochastic_ht")
ITEMS = {item.id: item for item in PAPER.items if item.judged and item.data}
ON_RUNS = [name for name, item in ITEMS.items() if item.check.__module__.endswith(("comparisons", "real_tables"))]


# --- parts -----------------------------------------------------------------------------------------------------------


def _made(shared, value=1.0):
    calls = []

    def make():
        calls.append(value)
        return {"value": value, "pair": (1, 2)}

    return shared.part("a name/of a part", make), len(calls)


@pytest.mark.parametrize("kept", [False, True])
def test_a_part_is_made_once(tmp_path, kept):
    shared = Shared(seeds.source(0, "p", "i"), folder=tmp_path if kept else None)
    assert _made(shared)[1] == 1 and _made(shared)[1] == 0
    # Another process finds the file.
    other = Shared(seeds.source(0, "p", "i"), folder=tmp_path if kept else None)
    part, count = _made(other, 2.0)
    assert (part["value"], count) == ((1.0, 0) if kept else (2.0, 1))


def test_parts_of_other_code_and_halves_of_files_are_made_anew(tmp_path):
    source = seeds.source(0, "p", "i")
    first, _ = _made(Shared(source, folder=tmp_path, fingerprint="one"))
    # Tuples come back as lists, in the process that made them too.
    assert first["pair"] == [1, 2]
    assert _made(Shared(source, folder=tmp_path, fingerprint="two"))[1] == 1
    assert _made(Shared(source, folder=tmp_path, fingerprint="two"))[1] == 0
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert _made(Shared(source, folder=tmp_path, fingerprint="two"))[1] == 1
    assert json.loads(path.read_text(encoding="utf-8"))["fingerprint"] == "two"


def test_parts_whose_names_look_alike_have_files_of_their_own(tmp_path):
    names = ["a 1", "a_1", "A 1", "a.1", "\u00e9", "e\u0301", "x" * 300, "x" * 301]
    for name in names:
        Shared(None, folder=tmp_path).part(name, lambda name=name: {"name": name})
    assert [Shared(None, folder=tmp_path).part(name, dict) for name in names] == [{"name": name} for name in names]
    assert len({path.name.casefold() for path in tmp_path.glob("*.json")}) == len(names)


@pytest.mark.parametrize("resume", [False, True])
def test_only_a_resumed_run_takes_parts_of_an_earlier_one(tmp_path, resume):
    store = Store(tmp_path, ROOT, 0, None)
    store.shared_folder.mkdir(parents=True)
    list(run(ROOT, [], Settings(), store, resume))
    assert store.shared_folder.exists() == resume


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4185, 16193])
def test_all_methods_have_as_many_settings_and_the_stochastic_ones_as_many_gradients(n):
    grids = {method: problems.grid(method) for method in (*problems.SOLVERS, "SCSG-HT", "SVRG-HT")}
    assert {len(grid) for grid in grids.values()} == {6}
    for method in ("DP-SGD-HT", "DP-SCSG-HT", "SCSG-HT", "SVRG-HT"):
        for setting in grids[method]:
            given = problems.arguments(method, setting, n)
            if "steps" in given:
                rows = given["steps"] * given["batch_size"]
            else:
                assert given["snapshot_size"] % given["batch_size"] == 0
                rows = 3 * given["epochs"] * given["snapshot_size"]
            assert rows == pytest.approx(problems.PASSES * n, rel=0.01)


def test_points_of_a_curve_count_gradients_of_snapshots_and_of_inner_steps():
    X = np.eye(64)
    rows = problems.Rows(X, np.ones(64))
    at = problems.Problem("p", rows, rows, rows, X)

    class Fit:
        history = {"iterates": [(4, np.array([0]), np.array([0.0])), (8, np.array([1]), np.array([2.0]))]}

    # n = 64, B = 32, b = 8: an outer loop costs 32 + 2 * 4 * 8 = 96 gradients, one and a half passes.
    points = real_data.curve(at, "DP-SCSG-HT", problems.Setting(1.0, 8), Fit())
    assert [point[:2] for point in points] == [[0, 0], [1.5, 4], [3.0, 8]]
    expected = (63 * np.log(2) + np.log1p(np.exp(-2.0))) / 64 + 1e-5 / 2 * 4
    assert points[0][2] == points[1][2] == pytest.approx(np.log(2)) and points[2][2] == pytest.approx(expected)


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_paired_orders_are_kept_tied_dependent_or_not_reached():
    rng = np.random.default_rng(0)
    low, high = rng.random(18), 2 + rng.random(18)
    assert curves.paired([("a", low, high), ("b", low, high + 1)]).verdict == "order kept"
    assert curves.paired([("a", low, high), ("b", high, low)]).verdict == "depends on reading"
    assert curves.paired([("a", high, low), ("b", high, low)]).verdict == "not reached here"
    assert curves.paired([("a", low, high), ("b", low, low)]).verdict == "tie"
    # Six repetitions establish nothing.
    assert curves.paired([("a", low[:6], high[:6])]).verdict == "tie"


def _as_published(order):
    """Runs whose losses are the printed ones plus ``order``, with curves that fall in that order."""
    shared = Shared(seeds.source(0, PAPER.name, "fake"))
    rng, count = np.random.default_rng(0), problems.REPETITIONS
    speeds = {"DP-GD-HT": 0.02, "DP-SGD-HT": 0.3, "DP-SCSG-HT": 0.4, "SCSG-HT": 0.4, "SVRG-HT": 0.3}

    def curve(method):
        times = np.linspace(0.0, 100.0 if method == "DP-GD-HT" else 21.0, 40)
        return [[t, t, float(0.1 + 0.59 * np.exp(-speeds[method] * t))] for t in times]

    for data, name in ((problems.RCV1, "T4"), (problems.XRAY, "T5")):
        table = PAPER.tables[name]
        for method in problems.SOLVERS:
            for noise in (curves.PUBLISHED, curves.TIGHT):
                shared._made[f"{data} {method} {noise}"] = {
                    f"{epsilon:g}": {
                        "setting": [1.0, 8], "true": epsilon, "curves": [curve(method)] * count,
                        "losses": list(table.mean[method][column] + order[method] + 1e-4 * rng.random(count)),
                    }
                    for column, epsilon in enumerate(problems.BUDGETS)
                }  # fmt: skip
        shared._made[f"{data} DP-GD-HT choice charged"] = {"4": [0.6], "6": [0.5]}
        for method in ("SCSG-HT", "SVRG-HT"):
            losses = [table.mean["SCSG-HT"][0]] * count
            shared._made[f"{data} {method}"] = {"losses": losses, "curves": [curve(method)] * count}
    found = {f"{factor:g}": {"true": 1.0, "loss": 0.165} for factor in ITEMS["SHT-T4n"].arguments["factors"]}
    shared._made[f"{problems.RCV1} multiples 4 {ITEMS['SHT-T4n'].arguments['factors']}"] = found
    return shared


@pytest.mark.parametrize("name", ON_RUNS)
def test_runs_like_the_papers_would_give_the_favourable_verdict_and_the_twin_another(name):
    item, rng = ITEMS[name], seeds.source(0, PAPER.name, name)
    shared = _as_published({"DP-GD-HT": 0.0006, "DP-SGD-HT": 0.0003, "DP-SCSG-HT": 0.0})
    with family.counted() as made:
        found = find(item, PAPER.tables, rng, None, shared=shared)
    assert found.verdict in ("order kept", "met"), found
    assert not family.problem(item.tests, made)
    if item.verdict in ("order kept", "met"):
        assert find(item, PAPER.tables, rng, None, item.twin, shared).verdict != found.verdict
    else:
        assert found.verdict != item.verdict


def test_all_items_on_shared_runs_are_there():
    assert len(ON_RUNS) == 15
