"""The demo: its numbers are those of account() and of real fits, its files are complete, its plots are readable."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from dptoolkit import cli, demo, plots, solvers
from dptoolkit.accounting import ExponentialMechanism, Gaussian, Repeated, Subsampled, account
from dptoolkit.accounting.report import at_least, at_most
from dptoolkit.demo import sections
from dptoolkit.demo import sections as compositions
from dptoolkit.demo import sections as fits

# The demo shows how errors fall with the budget, so it begins where the noise is too large.
pytestmark = pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")


@pytest.fixture(autouse=True)
def without_progress(monkeypatch):
    """No line of the clock among the lines that are counted, however slow the machine is."""
    monkeypatch.setattr(cli.output, "DELAY", 1e6)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The demo at three counts, one fit a budget and fewer trials: the full one differs in nothing but more of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compositions, "COUNTS", (1, 10, 2000))
        patch.setattr(compositions, "TABLE_COUNTS", (1, 10, 2000))
        patch.setattr(fits, "SEEDS", 1)
        patch.setattr(sections, "TRIALS", 20_000)
        return demo.run(tmp_path_factory.mktemp("demo") / "new" / "report")


def test_counts_go_from_one_to_ten_thousand():
    counts = compositions.COUNTS
    assert list(counts) == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, 10_000)
    assert set(compositions.TABLE_COUNTS) <= set(counts)


STEPS = {
    "Gaussian steps, full batch": Gaussian(50.0),
    "Gaussian steps, Poisson batches": Subsampled(Gaussian(1.5), "poisson", 0.01),
    "Gaussian steps, batches without replacement": Subsampled(Gaussian(1.5), "without-replacement", 0.01),
    "Selections": ExponentialMechanism(0.1),
}


@pytest.mark.parametrize("title", STEPS)
def test_tables_hold_what_account_says(report, title):
    (table,) = [t for t in report.tables if t.caption.startswith(f"{title} (")]
    expected = [("basic", "basic"), ("advanced", "advanced"), ("optimal", "optimal"), ("RDP", "rdp"), ("PLD", "pld")]
    for column, method in expected:
        at = list(table.header).index(column)
        for row in table.rows:
            event = Repeated(STEPS[title], int(row[0].replace(",", "")))
            assert row[at] == at_most(account(event, method).epsilon(1e-5))


@pytest.mark.parametrize("title", [t for t in STEPS if "batches" in t])
def test_zcdp_charges_the_unsampled_step(report, title):
    (table,) = [t for t in report.tables if t.caption.startswith(f"{title} (")]
    at = list(table.header).index("zCDP, unsampled")
    assert table.rows[1][at] == at_most(account(Repeated(Gaussian(1.5), 10), "zcdp").epsilon(1e-5))


def test_the_recursion_is_left_out_where_it_is_long(report):
    (table,) = [t for t in report.tables if t.caption.startswith("Selections")]
    assert table.header[-1] == "optimal selection"
    assert [row[-1] == "-" for row in table.rows] == [False, False, True]


@pytest.mark.parametrize("title", ["A private model: odd or even digits", "Sparse linear regression, n = d = 1000"])
def test_fits_get_better_with_budget_and_never_spend_more_than_it(report, title):
    (section,) = [s for s in report.sections if s.title == title]
    errors, *guarantees = section.tables
    assert len(errors.rows) == 5
    for column in range(1, len(errors.header) - 1):
        assert float(errors.rows[-1][column]) < float(errors.rows[0][column])
    for table in guarantees:
        for row in table.rows:
            assert (float(row[4]) <= float(row[0])) != ("published" in table.caption), row


def test_the_published_noise_is_shown_with_what_it_gives(report):
    (table,) = [t for t in report.tables if t.caption.startswith("DP-IGHT, published")]
    given = {row[0]: row[4] for row in table.rows}
    plan = solvers.plan(
        "dp_ight", n=1400, d=64, loss="logistic", sparsity=30, steps=20, step_size=1.0, row_norm=3.0,
        fit_intercept=True, epsilon=1.0, delta=1e-5, calibration="published",
    )  # fmt: skip
    assert given["1"] == at_most(plan.guarantee.epsilon(1e-5)) == "2.397"


def test_the_audits_stand_between_what_is_claimed_and_what_is_computed(report):
    (table,) = [t for t in report.tables if t.caption.startswith("DP-IGHT, epsilon at delta")]
    tight, published = table.rows
    assert [row[:3] for row in table.rows] == [["tight", "4", "4"], ["published", "4", "4.844"]]
    assert 3.5 < float(tight[3]) <= 4 < float(published[3]) <= 4.844
    assert (tight[-1], published[-1]) == ("no violation found by this attack", "violation")


def test_an_audit_of_the_demo_gives_the_same_numbers_again(report, monkeypatch):
    monkeypatch.setattr(sections, "TRIALS", 20_000)
    (table,) = [t for t in report.tables if t.caption.startswith("DP-IGHT, epsilon at delta")]
    assert sections._fit_and_audit("tight", False).row() == table.rows[0]


def test_both_trade_offs_are_drawn_with_band_and_claim(report):
    (figure,) = [p.figure for p in report.pictures if p.name == "audits"]
    assert len(figure.axes) == 2
    below = []
    for axes in figure.axes:
        names = ["measured", "claim", "blind guess"]
        assert [line.get_label() for line in axes.lines] == names and len(axes.patches) == 1
        assert {text.get_text() for text in axes.get_legend().get_texts()} == {*names, "band, 0.9999 confidence"}
        measured, claim = (np.asarray(line.get_xydata()) for line in axes.lines[:2])
        order = np.argsort(measured[:, 0])
        at = np.interp([0.2, 0.4], measured[order, 0], measured[order, 1])
        below.append(np.interp([0.2, 0.4], *claim.T) - at)
    assert (np.abs(below[0]) < 0.03).all() and (below[1] > 0.03).all()


def test_every_picture_is_written_and_shown(report):
    shown = re.findall(r'<img src="data:image/png;base64,([^"]+)"', (report.folder / "index.html").read_text("utf-8"))
    linked = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (report.folder / "report.md").read_text(encoding="utf-8"))
    assert linked == [f"{p.name}.png" for p in report.pictures] and len(shown) == len(linked)
    for content, name in zip(shown, linked, strict=True):
        head = (report.folder / name).read_bytes()[:24]
        assert base64.b64decode(content) == (report.folder / name).read_bytes()
        width, height = struct.unpack(">II", head[16:])
        assert head.startswith(b"\x89PNG")
        assert width >= 900
        assert height >= 700


def test_both_reports_hold_every_table(report):
    page = (report.folder / "index.html").read_text(encoding="utf-8")
    notes = (report.folder / "report.md").read_text(encoding="utf-8")
    for table in report.tables:
        assert f"<caption>{table.caption}</caption>" in page
        assert f"**{table.caption}**" in notes
        for row in table.rows:
            assert "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" in page
            assert f"| {' | '.join(row)} |" in notes
    assert all(table.caption in report.text() for table in report.tables)


def test_the_same_numbers_give_the_same_picture(report, tmp_path):
    picture = report.pictures[0]
    plots.save(picture.figure, tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (report.folder / f"{picture.name}.png").read_bytes()


@pytest.mark.parametrize("name", ["digits", "synthetic", "composition"])
def test_each_line_has_its_name_apart_from_the_others_and_on_the_paper(report, name):
    (figure,) = [p.figure for p in report.pictures if p.name == name]
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_position()[0] > 1 and text.get_text()]  # right of the plot
        dotted = [line for line in axes.lines if line.get_linestyle() == ":"]  # chance, named on its left
        assert len(names) == len(axes.lines) - len(dotted)
        heights = sorted(name.get_position()[1] for name in names)
        letters = names[0].get_fontsize() / 72 * figure.dpi / axes.bbox.height
        assert all(high - low > letters for low, high in zip(heights, heights[1:], strict=False))
        assert all(name.get_window_extent().x1 < figure.bbox.x1 for name in names)


@pytest.mark.parametrize("value", [4.84385, 0.0123456, 123.456, 3.0, 0.0, math.inf])
def test_printed_bounds_are_still_bounds(value):
    assert float(at_least(value)) <= value <= float(at_most(value))
    assert at_least(value) == at_most(value) or float(at_most(value)) - float(at_least(value)) < 2e-3 * value


def test_apart_keeps_the_order_and_moves_no_more_than_needed():
    assert plots.apart([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert plots.apart([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert plots.apart([0.1, 0.5, 0.52, 0.9], 0.1) == pytest.approx([0.1, 0.46, 0.56, 0.9])
    assert plots.apart([], 0.1) == []


def test_the_command_runs_the_demo(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "SECTIONS", (lambda: demo.Section("A", "b", [demo.Table("c", ["d"], [["1"]])], []),))
    assert cli.main(["demo", "--out", str(tmp_path / "r"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tables"] == [{"caption": "c", "header": ["d"], "rows": [["1"]]}]
    assert sorted(record["files"]) == sorted(str(path) for path in (tmp_path / "r").iterdir())


def test_without_matplotlib_nothing_is_written(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["demo", "--out", str(tmp_path / "r")]) == 2
    assert "pip install 'dptoolkit[demo]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_scikit_learn_nothing_is_written(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert cli.main(["demo", "--out", str(tmp_path / "r")]) == 2
    assert "pip install 'dptoolkit[demo]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused(capsys, tmp_path):
    (tmp_path / "r").write_text("mine")
    assert cli.main(["demo", "--out", str(tmp_path / "r")]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert (tmp_path / "r").read_text() == "mine"


def _section(name):
    return lambda: demo.Section(name, "b", [demo.Table("c", ["d"], [["1"]])], [])


def test_a_stopped_demo_leaves_its_finished_sections(monkeypatch, capsys, tmp_path):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "SECTIONS", (_section("First"), stop, _section("Third")))
    assert cli.main(["demo", "--out", str(tmp_path / "r")]) == 130
    captured = capsys.readouterr()
    progress, last = captured.err.splitlines()[:-1], captured.err.splitlines()[-1]
    assert captured.out == "" and "1 of 3 sections are finished" in last
    assert [line.split(":")[1] for line in progress] == [" section 1 of 3", " section 2 of 3"]
    page = (tmp_path / "r" / "report.md").read_text()
    assert "First" in page and "Third" not in page


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(monkeypatch, capsys, tmp_path):
    def work():
        raise AssertionError("the work has begun")

    monkeypatch.setattr(demo, "SECTIONS", (work,))
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "r", Path("/proc/self")):
        assert cli.main(["demo", "--out", str(out)]) == 2
        captured = capsys.readouterr()
        assert "must be a folder that can be written to" in captured.err
        assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert (tmp_path / "file").read_text() == "mine"
