"""Items of the paper checks: each verdict can change, a stopped run loses nothing, reports show what was found."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from paper_checks import curves, findings, html, pages, rates, report, seeds
from paper_checks.__main__ import ROOT, main
from paper_checks.claims import load, paper_folders, selected
from paper_checks.items import BadClaims, find
from paper_checks.progress import Progress
from paper_checks.records import of_item
from paper_checks.report import counted
from paper_checks.run import Settings, Unit, compute, run, units
from paper_checks.shared import Shared
from paper_checks.store import Store
from paper_checks.tables import Table
from paper_checks.verdict import VERDICTS, WORDS

PAPERS = [load(folder) for folder in paper_folders(ROOT, [])]
ITEMS = [(paper, item) for paper in PAPERS for item in paper.items]
# The twins of a paper's items look at the same shared runs.
SHARED = {paper.name: Shared(seeds.source(0, paper.name, "shared runs")) for paper in PAPERS}
JUDGED = [(paper, item) for paper, item in ITEMS if item.judged and not item.data]


@pytest.fixture(autouse=True)
def _reports_into_a_folder_of_their_own(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
    monkeypatch.delenv("DPTOOLKIT_DATA", raising=False)


@pytest.fixture
def copied(tmp_path):
    """A copy of one paper's folder, and a function that edits a file of it."""
    folder = tmp_path / "wang_gu_2019_ight"
    shutil.copytree(ROOT / "wang_gu_2019_ight", folder)

    def edit(old, new, file="claims.toml"):
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return tmp_path, edit


# --- every verdict can change ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "item"),
    [pytest.param(*both, id=both[1].id, marks=[pytest.mark.slow] * (both[1].tier == "full")) for both in JUDGED],
)
@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
def test_another_published_value_or_formula_moves_the_verdict(paper, item):
    rng = seeds.source(0, paper.name, item.id)
    found = find(item, paper.tables, rng, None, item.twin, SHARED[paper.name])
    assert found.verdict in WORDS and found.verdict != item.verdict, found.computed


PLANTED = [
    ("wang_gu_2019_ight", '"DP-IGHT" = [0.1168, 0.0956, 0.0841, 0.0797, 0.0762]',
     '"DP-IGHT" = [0.1168, 0.0956, 0.0841, 0.0797, 0.0862]', "tables.toml", "IGHT-P4", "inconsistent"),
    ("wang_gu_2019_ight", "with = { constant = 6.0 }\ntwin = { constant = 5.8 }",
     "with = { constant = 5.7 }\ntwin = { constant = 5.8 }", "claims.toml", "IGHT-R5.3c", "bound broken"),
    ("wang_gu_2019_ight", "1 / (math.sqrt(1 + share) - 1) ** 2", "2 / (math.sqrt(1 + share) - 1) ** 2", "statements.py",
     "IGHT-R5.3c", "bound broken"),
]  # fmt: skip


@pytest.mark.parametrize(("paper", "old", "new", "file", "name", "verdict"), PLANTED)
def test_a_planted_fault_in_the_files_fails_the_run(copied, capsys, paper, old, new, file, name, verdict):
    root, edit = copied
    assert main([name, "--json"], root) == 0
    capsys.readouterr()
    edit(old, new, file)
    assert main([name], root) == 1
    out = capsys.readouterr().out
    assert f"verdict: {verdict}" in out and f"NO: verdict {verdict}, expected" in out and "1 CHANGED" in out


# --- the kinds of checks ---------------------------------------------------------------------------------------------


def test_recomputed_numbers_bounds_conditions_and_readings():
    assert findings.recomputed([("a", 1.0, 1.004)], 0.005).verdict == "met"
    assert findings.recomputed([("a", 1.0, 1.006)], 0.005, "misprint").verdict == "misprint"
    assert findings.upper_bound([("a", 2.0, 2.0), ("b", 3.0, 1.0)]).verdict == "bound met"
    assert findings.upper_bound([("a", 2.0, 2.1), ("b", 3.0, 1.0)]).verdict == "bound broken"
    assert findings.conditions([("a", 1, 2, True)], "").verdict == "met"
    assert findings.conditions([("a", 1, 2, True), ("b", 1, 0, False)], "").verdict == "condition not met"
    both = [("a", 1, 1, True), ("b", 1, 2, False)]
    assert findings.readings(both, "", "worse").verdict == "depends on reading"
    assert findings.readings(both[:1], "", "worse").verdict == "met"
    assert findings.readings(both[1:], "", "worse").verdict == "worse"


def test_orders_of_growth():
    first, second = {"n": -1.0, "s": 1.5}, {"n": -2.0, "s": 2.0}
    assert findings.quotient(first, second) == {"n": 1.0, "s": -0.5}
    assert findings.product(first, {"n": 1.0}) == {"s": 1.5}
    assert findings.same_order("x", {"n": 1.0}, {"n": 1.0}).verdict == "met"
    assert findings.same_order("x", {"n": 1.0}, {"n": 1.0, "K": 2.0}).verdict == "inconsistent"


def _table(ours, theirs, spread=0.01):
    columns = tuple(f"epsilon {k}" for k in range(len(ours)))
    deviation = {"ours": (spread,) * len(ours), "theirs": (spread,) * len(ours)}
    return Table("T", columns, {"ours": tuple(ours), "theirs": tuple(theirs)}, deviation, {})


def test_tables_against_themselves():
    table = _table([1.0, 2.0], [1.1, 2.1])
    assert findings.lowest(table, "ours", ["theirs"]).verdict == "order kept"
    assert findings.lowest(table.planted("ours", 1, 2.2), "ours", ["theirs"]).verdict == "inconsistent"
    rows = findings.established(table, "ours", "theirs", 10)
    assert findings.order_established(rows).verdict == "order kept"
    # Read as standard errors the same brackets are sqrt(10) times as wide, and the wrong side never counts.
    wide = _table([1.0, 2.0], [1.1, 2.1], 0.02)
    assert findings.order_established(findings.established(wide, "ours", "theirs", 10)).verdict == "order kept"
    errors = findings.established(wide, "ours", "theirs", 10, "standard errors")
    assert findings.order_established(errors).verdict == "tie"
    other = findings.order_established(findings.established(table, "theirs", "ours", 10))
    assert other.verdict == "tie" and not any(row.agrees for row in other.rows)


def test_the_count_of_algorithm_2_is_what_a_simulation_gives():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("counts", ROOT / "khanna_2023_lasso" / "counts.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    law = module.law(12.0, 54, 5.0)
    assert sum(law.values()) == pytest.approx(1)
    rng, root = np.random.default_rng(0), np.sqrt(54)
    rate = 1 - np.exp(-5.0 / root)
    draws = np.clip(12 + rng.geometric(rate, 200_000) - rng.geometric(rate, 200_000), root, 2 * root)
    for value, chance in law.items():
        share = np.mean(np.isclose(draws, value))
        assert abs(share - chance) < 5 * np.sqrt(chance * (1 - chance) / 200_000) + 1e-9


# --- seeds, tiers, selection, listing --------------------------------------------------------------------------------


def test_seeds_come_from_named_axes():
    def first(*axes, **named):
        return seeds.generator(0, *axes, **named).random()

    base = first("p", "i", "d", "s", 0)
    assert base == first("p", "i", "d", "s", 0) == seeds.source(0, "p", "i")("d", "s").random()
    others = [first("q", "i", "d", "s", 0), first("p", "j", "d", "s", 0), first("p", "i", "e", "s", 0),
              first("p", "i", "d", "t", 0), first("p", "i", "d", "s", 1), first("p", "id", "", "s", 0)]  # fmt: skip
    assert len({base, *others}) == 7


def test_items_are_counted_and_every_other_one_has_its_reason(capsys):
    assert main(["--list"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "all: 198 of 207 items judged" in out
    for paper, item in ITEMS:
        assert f"{item.id}: {item.where}" in out
        assert item.judged or f"not judged: {item.pending}" in out
        assert item.id.startswith(f"{paper.key}-")
    totals = [counted(paper) for paper in PAPERS]
    assert sum(sum(judged.values()) for judged, _ in totals) == 198
    reasons = sum((pending for _, pending in totals), Counter())
    assert all(
        re.match("full tier, not built yet|no data|no federated|nothing to|a statement|its orders|the same ", word)
        for word in reasons
    )


def test_items_and_papers_are_named_in_any_way():
    assert [paper.name for paper in selected(ROOT, ["KT"])] == ["wang_gu_2020_kt"]
    (paper,) = selected(ROOT, ["SHT-T5b"])
    assert [item.id for item in paper.items] == ["SHT-T5b"] and paper.claims == ()
    (paper,) = selected(ROOT, ["IGHT-5.2"])
    assert [claim.id for claim in paper.claims] == ["theorem-5.2"] and paper.items == ()
    both = selected(ROOT, ["LASSO-C1", "IGHT", "theorem-5.2"])
    assert [len(paper.items) for paper in both] == [1, 0]


def test_data_that_are_not_here_are_no_verdict_and_no_change(tmp_path, capsys):
    assert main(["LASSO-T2b", "--tier", "full", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "verdict: no data" in out and "not found: colon-cancer" in out and "all as expected" in out
    assert main(["--list", "--data", str(tmp_path), "LASSO"]) == 0
    assert "Needs colon-cancer" in " ".join(capsys.readouterr().out.split())
    assert main(["--data", str(tmp_path / "nowhere")]) == 2
    assert "must be a folder that exists" in capsys.readouterr().err
    assert main(["--workers", "0"]) == 2 and "--workers 0: must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('id = "IGHT-P4"', 'id = "IGHT-P4"\ncolour = 1', "unknown colour"),
        ('id = "IGHT-P4"', 'id = "IGHT-P4"\npending = "later"', "must not be pending"),
        ('published = "lowest at all five epsilons"\n', "", "missing published"),
        ('verdict = "order kept"', 'verdict = "holds"', "verdict='holds': must be one of met"),
        ('check = "printed.lowest_error"', 'check = "printed.nothing"', "must be a function of printed.py"),
        ('check = "printed.lowest_error"', 'check = "nowhere.nothing"', "there is no nowhere.py"),
        ('tier = "full"', 'tier = "endless"', "tier='endless'"),
        ('id = "IGHT-P4"', 'id = "IGHT-P3"', "IGHT-P3: must be there once"),
    ],
)
def test_bad_items_exit_2_with_one_line(copied, capsys, old, new, words):
    root, edit = copied
    edit(old, new)
    assert main(["--list"], root) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.out == "" and len(captured.err.splitlines()) == 1


def test_a_table_that_is_not_there_is_named(copied, capsys):
    root, edit = copied
    edit(
        'with = { table = "T3" }\ntwin = { plant = ["DP-IGHT", 4',
        'with = { table = "T9" }\ntwin = { plant = ["DP-IGHT", 4',
    )
    assert main(["IGHT-P4"], root) == 2
    assert "table='T9': must be one of T2, T3" in capsys.readouterr().err
    edit('"DP-IGHT" = [0.1168, 0.0956,', '"DP-IGHT" = [0.0956,', "tables.toml")
    with pytest.raises(ValueError, match="has 4 cells, must have 5"):
        load(root / "wang_gu_2019_ight")


def test_what_is_asked_for_by_name_and_not_checked_is_explained(tmp_path, monkeypatch, capsys):
    assert main(["LASSO-T2b"]) == 2
    assert capsys.readouterr() == ("", "paper_checks: LASSO-T2b: is checked with --tier full.\n")
    assert main(["IGHT-T2", "SHT-P4", "--tier", "full", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "IGHT-T2: is not judged: no data: E2006" in captured.err
    assert "SHT-P4: is checked with --tier slow." in captured.err
    # What can be checked is, and the rest is still explained.
    assert main(["IGHT-P4", "LASSO-T2b"]) == 0
    captured = capsys.readouterr()
    assert "1 items" in captured.out and "LASSO-T2b: is checked with --tier full." in captured.err
    monkeypatch.setattr("paper_checks.__main__._NAME", "dptoolkit")
    assert main(["LASSO-T2b", "SHT-P4"]) == 2
    err = capsys.readouterr().err
    assert "LASSO-T2b: is checked with --full." in err and "by python -m paper_checks --tier slow." in err
    assert not (tmp_path / "report").exists()


def test_a_claim_with_later_points_only_names_its_tier(copied, capsys):
    root, edit = copied
    text = (root / "wang_gu_2019_ight" / "claims.toml").read_text(encoding="utf-8")
    (old,) = re.findall(r'id = "corollary-5.6".*?(point = \[.*?\n\])', text, re.DOTALL)
    edit(old, old.replace(" },\n", ', tier = "full" },\n'))
    assert main(["wang_gu_2019_ight", "corollary-5.6"], root) == 2
    assert "corollary-5.6: is checked with --tier full." in capsys.readouterr().err


def test_a_folder_for_reports_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper", "/proc/x"):
        assert main(["IGHT-P4", "--out", str(folder)]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.startswith(
            f"paper_checks: --out {folder}: must be a folder that can"
        )
        assert captured.err.count("\n") == 1


# --- results per unit: a stopped run loses nothing -------------------------------------------------------------------

NAMES = ["IGHT-P3", "IGHT-P4", "IGHT-T3b", "IGHT-R5.3c", "IGHT-F1x", "KT-4.7p"]


def _report(folder):
    return (folder / "report.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_run_that_is_stopped_and_resumed_writes_the_same_report(tmp_path, monkeypatch, capsys, stop):
    assert main([*NAMES, "--out", str(tmp_path / "whole")]) == 0
    calls = []

    def stopping(paper, unit, settings):
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(unit)
        return compute(paper, unit, settings)

    monkeypatch.setattr("paper_checks.run.compute", stopping)
    monkeypatch.setattr("paper_checks.__main__._ignore_interrupts", lambda: None)
    cut = ["--out", str(tmp_path / "cut")]
    assert main([*NAMES, *cut]) == 130
    assert f"{stop} results are kept; go on with --resume" in capsys.readouterr().err
    assert not (tmp_path / "cut" / "report.json").exists()
    first = list(calls)
    monkeypatch.setattr("paper_checks.run.compute", lambda *given: (calls.append(given[1]), compute(*given))[1])
    assert main([*NAMES, *cut, "--resume"]) == 0
    assert _report(tmp_path / "cut") == _report(tmp_path / "whole")
    # Nothing was computed twice.
    assert len(calls) == len(set(calls)) == len(units(selected(ROOT, NAMES), "fast")) and calls[:stop] == first
    calls.clear()
    assert main([*NAMES, *cut]) == 0 and len(calls) == 6


def test_records_of_other_code_seeds_or_halves_of_files_are_computed_anew(copied):
    root, edit = copied
    paper, unit = load(root / "wang_gu_2019_ight"), Unit("wang_gu_2019_ight", "IGHT-P4")
    record, spent = compute(paper, unit, Settings())

    def store(seed=0):
        return Store(root / "results", root, seed, None)

    store().save(unit.paper, unit.name, record, *spent)
    assert store().load(unit.paper, unit.name)["record"] == record
    assert store(seed=1).load(unit.paper, unit.name) is None
    assert [path.name for path in (root / "results" / unit.paper).iterdir()] == ["IGHT-P4.json"]
    edit("0.0762]", "0.0763]", "tables.toml")
    assert store().load(unit.paper, unit.name) is None
    store().save(unit.paper, unit.name, record, *spent)
    path = root / "results" / unit.paper / "IGHT-P4.json"
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert store().load(unit.paper, unit.name) is None


@pytest.mark.slow
def test_processes_give_the_same_records():
    papers = selected(ROOT, NAMES)
    one, two = ({unit: record for unit, record, _ in run(ROOT, papers, Settings(workers=n))} for n in (1, 2))
    assert one == two and len(one) == 6


def test_progress_is_a_fraction(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        progress = Progress(8, stream)
        progress.step("IGHT-P3")
        progress.step("IGHT-P4")
        progress.close()
    assert "2 of 8 (25%), last IGHT-P4" in screen.getvalue() and screen.getvalue().endswith("\r")
    assert file.getvalue() == ""
    clock = iter(range(0, 1000, 11))
    monkeypatch.setattr("paper_checks.progress.time.monotonic", lambda: next(clock))
    Progress(8, file).step("IGHT-P3")
    assert file.getvalue() == "paper_checks: 1 of 8 (12%), last IGHT-P3\n"


# --- the reports -----------------------------------------------------------------------------------------------------


def _page():
    papers = selected(ROOT, ["IGHT-P3", "IGHT-R5.3d", "LEC-F2", "LEC-16.4", "SHT-T5b"])
    records = [record for _, record, _ in run(ROOT, papers, Settings())]
    return pages.Page(pages.summary(records), papers, "python -m paper_checks", "2026-01-02")


def test_the_pages_show_every_entry_and_need_no_other_file():
    page = _page()
    text, words = html.page(page), pages.markdown(page)
    for entry in page.entries:
        assert entry["claim"] in words and f'id="{entry["paper"]}-{entry["claim"]}"' in text
        assert f">{entry['verdict']}</span>" in text and f"**{entry['verdict']}**" in words
    assert not re.search(r"<script|<link|src=|https?://", text)
    anchors = set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= anchors
    assert all(VERDICTS[word].meaning.split('"')[0] in text.replace("&#x27;", "'") for word in VERDICTS)
    assert text.count("<svg") >= 2 and "logarithmic" not in text.split("<svg")[1].split("</svg>")[0]
    # Rows of a table have the same number of cells, whatever the text holds.
    rows = [line for line in words.splitlines() if line.startswith("| ") and "meaning" not in line]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {4, 6}


def test_a_changed_verdict_is_on_the_front_page():
    paper = next(paper for paper in PAPERS if paper.key == "IGHT")
    item = next(item for item in paper.items if item.id == "IGHT-P4")
    found = find(item, paper.tables, seeds.source(0, paper.name, item.id), None, item.twin)
    record = of_item(paper, item, found)
    assert record["changes"] == ["verdict inconsistent, expected order kept"]
    page = pages.Page(pages.summary([record]), [paper], "command", "today")
    assert "1 verdicts have changed" in html.page(page) and "CHANGED: IGHT-P4" in pages.markdown(page)


def test_text_of_a_paper_cannot_break_the_page():
    page = _page()
    entry = {**page.entries[-1], "states": "<b>a & b</b> | c", "rows": []}
    page = pages.Page([entry], page.papers, "a <command>", "today")
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in html.page(page) and "a &lt;command&gt;" in html.page(page)


def test_numbers_that_json_lacks_are_strings_and_pictures_take_numbers_only():
    rows = [{"label": "a", "published": "inf", "computed": 1.0, "agrees": True}] * 3
    assert html.picture(rows) == ""
    rows = [{"label": "a" * 60, "published": 1e-3, "computed": float(k + 1), "agrees": True} for k in range(3)]
    assert "logarithmic axis" in html.picture(rows) and "a" * 60 not in html.picture(rows)


def test_a_reader_sees_words_where_a_number_has_no_digits():
    for lower, upper, words in (("nan", "nan", "-"), ("inf", "inf", "infinite"), (1.5, "inf", "1.5 or more"),
                                ("nan", "inf", "no bound"), (2.0, 2.0, "2"), ("nan", 2.0, "<= 2")):  # fmt: skip
        assert report.truth({"lower": lower, "upper": upper}) == words
    shown = report.values({"published": "nan", "computed": "inf"})
    assert shown == ("not a number", "infinite")
    assert report.values({"published": 3.0, "computed": "lower"}) == ("3", "lower")


def test_the_pages_show_no_numbers_without_digits():
    papers = selected(ROOT, ["IGHT-5.6p", "KT-4.7p", "KT-R4.4", "LEC-TITLE"])
    records = [record for _, record, _ in run(ROOT, papers, Settings())]
    page = pages.Page(pages.summary(records), papers, "python -m paper_checks", "2026-01-02")
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", html.page(page), flags=re.DOTALL)
    for words in (text, pages.markdown(page)):
        assert not re.search(r"(?<![\w_])(nan|inf|None)(?!\w)", words)


def test_the_values_of_a_row_are_named_by_the_kind_of_check():
    papers = selected(ROOT, ["SHT-5.3a", "IGHT-P4", "IGHT-R5.3c", "SHT-R5.4"])
    records = [record for _, record, _ in run(ROOT, papers, Settings())]
    (needed,) = (record for record in records if record["claim"] == "SHT-5.3a")
    # The condition's least k is what is needed; what the paper has is smaller.
    assert all(row["published"] == 15_877 and row["computed"] in (200, 1000) for row in needed["rows"])
    page = pages.Page(pages.summary(records), papers, "python -m paper_checks", "2026-01-02")
    cards = {
        entry["claim"]: card for entry, card in zip(page.entries, html.page(page).split("class=card")[1:], strict=True)
    }
    for name, first, second in (
        ("SHT-5.3a", "needed", "there"),
        ("IGHT-P4", "its printed mean", "lowest of the others"),
        ("IGHT-R5.3c", "bound", "true value"),
        ("SHT-R5.4", "published", "true or measured"),
    ):
        assert f"<th>{first}</th><th>{second}</th>" in cards[name]
        assert name == "SHT-R5.4" or f"diamond: {first}; dot: {second}" in cards[name]


def test_a_count_has_room_beside_its_verdict():
    (style,) = re.findall(r"\.counts li\{([^}]*)\}", html._STYLE)
    assert "flex-wrap:wrap" in style and re.search(r"gap:\S*\.6rem", style.replace(".2rem ", ""))


def test_the_page_in_the_folder_shows_the_expected_verdicts():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"Written by `python -m paper_checks --tier full --data FOLDER` on 20\d\d-\d\d-\d\d", text)
    for _, item in ITEMS:
        if item.judged and item.tier != "slow":
            (line,) = (
                line for line in text.splitlines() if line.startswith(f"| {item.id.replace('*', chr(92) + '*')} |")
            )
            assert line.endswith(f"**{item.verdict}** |"), item.id
        else:
            assert re.search(rf"{re.escape(item.id)}[,.]", text), item.id


def test_the_cells_in_the_folder_are_those_of_every_item_on_a_table():
    text = (ROOT / "CELLS.md").read_text(encoding="utf-8")
    for _, item in ITEMS:
        if item.judged and item.where.startswith("Table") and item.verdict != "no data":
            assert f"## {item.id}: {item.where}, {item.verdict}\n\n| cell |" in text, item.id
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_cells_of_tables_are_shown_beside_the_printed_ones():
    paper, item = next((paper, item) for paper, item in ITEMS if item.id == "IGHT-T3")
    rows = (findings.Comparison("a|b", 0.25, float("inf"), False), findings.Comparison("c", "", "d", True))
    entries = pages.summary([of_item(paper, item, findings.Finding(item.verdict, "words", rows))])
    shown = pages.cells(pages.Page(entries, [paper], "command", "today"))
    assert "| a\\|b | 0.25 | infinite | no |\n| c |  | d | yes |\n" in shown
    # What is not on a table, or has no numbers, has no cells.
    for other in ({"where": "Section 6"}, {"rows": []}):
        assert "IGHT-T3" not in pages.cells(pages.Page([entries[0] | other], [paper], "command", "today"))


def test_the_head_of_the_page_in_the_folder_counts_its_rows():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = Counter(re.findall(r"\*\*([a-z ]+)\*\* \|$", text, re.MULTILINE))
    counts = {word: int(count) for word, count in re.findall(r"^\| ([a-z ]+) \| (\d+) \| ", text, re.MULTILINE)}
    assert counts == rows and f"{rows.total()} claims and items of {len(PAPERS)} sources" in text
    assert pages.Page([], PAPERS, "", "").tests in text


def test_the_front_page_has_ten_findings():
    ranks = [entry.rank for paper in PAPERS for entry in (*paper.claims, *paper.items) if entry.rank]
    assert sorted(ranks) == list(range(1, len(ranks) + 1)) and len(ranks) >= 10
    assert all(entry.finding for paper in PAPERS for entry in (*paper.claims, *paper.items) if entry.rank)


def _ranked():
    """The records of the entries with a finding, by their name."""
    found = {}
    for paper in PAPERS:
        for entry in (*paper.claims, *paper.items):
            if entry.rank:
                ((_, record, _), *more) = run(ROOT, selected(ROOT, [paper.name, entry.id]), Settings())
                found[entry.id] = [record, *(other for _, other, _ in more)]
    return found


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.DeltaWarning")
def test_the_numbers_of_the_findings_are_those_of_their_entries():
    found = _ranked()
    words = {name: own[0]["finding"] for name, own in found.items()}

    def point(name, **at):
        (own,) = (row for row in found[name] if at.items() <= row["at"].items())
        return own

    transfer = point("theorem-4.3", n=101, regularization=1.0)
    assert f"the answers reach {transfer['lower']:.0f} with 101 records" in words["theorem-4.3"]
    assert f"a claimed (1, 1e-5) is {point('corollary-5.8', epsilon=1.0)['lower']:.2f}." in words["corollary-5.8"]
    assert "more than 2" in words["corollary-5.8"] and all(1 / row["factor"] > 2 for row in found["corollary-5.8"])
    classes = point("theorem-5", classes=3, features=1000)
    assert f"is at least {classes['lower']:.1f} for 3 classes and 1000 features" in words["theorem-5"]
    synthetic = found["LASSO-T2f"][0]["rows"]
    for row in synthetic:
        (printed, _), (ours, _) = (map(float, row[key].split(" / ")) for key in ("published", "computed"))
        assert ours - printed >= 30 if "own noise" in row["label"] else abs(ours - printed) < 6
    assert "is 30 points below what their own noise gives" in words["LASSO-T2f"]
    bits = [row["computed"] for row in found["LASSO-A2i"][0]["rows"] if "bits" in row["label"]]
    assert "less than 0.001 bit" in words["LASSO-A2i"] and max(bits) < 0.001
    assert f"sizes it is {found['SHT-4.2c'][0]['rows'][0]['computed']:.1f} k sigma^2" in words["SHT-4.2c"]
    assert "no batch size" in words["SHT-4.1c"] and "in 0 of 30 cases" in found["SHT-4.1c"][0]["computed"]
    assert "within 0.0015 of log 2" in words["SHT-T5a"] and "20 of 20" in found["SHT-T5a"][0]["computed"]
    assert "injects ten times" in words["SHT-R5.2"] and "injected variance 10 times" in found["SHT-R5.2"][0]["computed"]
    assert "is 0.006 to 0.16" in words["KT-R4.10b"] and "0.0059 to 0.16" in found["KT-R4.10b"][0]["computed"]
    assert "up to 4;" in words["LASSO-C2"] and "to 4 at" in found["LASSO-C2"][0]["computed"]
    assert "of order kappa." in words["SHT-5.3c"] and "kappa^1.00" in found["SHT-5.3c"][0]["computed"]
    # The page shows each beside the verdict that was found.
    assert all(row["as_expected"] for own in found.values() for row in own)


def test_a_finding_about_a_changed_verdict_is_not_on_the_front_page():
    paper = next(paper for paper in PAPERS if paper.key == "SHT")
    item = next(item for item in paper.items if item.id == "SHT-T5a")
    for verdict, shown in ((item.verdict, True), ("met", False)):
        record = of_item(paper, item, findings.Finding(verdict, "computed"))
        page = pages.Page(pages.summary([record]), [paper], "command", "today")
        assert (item.finding in pages.markdown(page)) == (item.finding in html.page(page)) == shown


def test_a_check_without_data_is_refused_by_name():
    paper = next(paper for paper in PAPERS if paper.key == "IGHT")
    item = next(item for item in paper.items if not item.judged)
    with pytest.raises(BadClaims, match="is not checked here"):
        find(item, paper.tables, seeds.source(0, paper.name, item.id), None)


def test_the_guide_explains_every_verdict():
    text = (ROOT.parent / "docs" / "papers.md").read_text(encoding="utf-8")
    assert all(f"| {word} | {entry.meaning} |" in text for word, entry in VERDICTS.items())


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 4, 9])
def test_a_run_that_is_killed_and_resumed_writes_the_same_report(tmp_path, stop):
    names = [
        "KT-P4",
        "KT-P5",
        "KT-R4.8",
        "KT-4.5a",
        "KT-4.3m",
        "IGHT-5.4a",
        "IGHT-R5.7",
        "IGHT-P5",
        "LASSO-P7",
        "LASSO-B43",
    ]

    def command(folder, *more):
        return [sys.executable, "-m", "paper_checks", *names, "--out", str(tmp_path / folder), *more]

    subprocess.run(command("whole"), cwd=ROOT.parent, check=True, capture_output=True)
    with subprocess.Popen(
        command("cut"), cwd=ROOT.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        while child.poll() is None and len(list((tmp_path / "cut").glob("results/*/*.json"))) < stop:
            pass
        child.kill()
    subprocess.run(command("cut", "--resume"), cwd=ROOT.parent, check=True, capture_output=True)
    assert _report(tmp_path / "cut") == _report(tmp_path / "whole")


def test_small_plans_of_audits_do_not_warn_readers(capsys, recwarn):
    assert main(["khanna_2023_lasso", "algorithm-1-gumbel"]) == 0
    assert not [warning for warning in recwarn if "Plan" in warning.category.__name__]


# --- orders of growth -----------------------------------------------------------------------------------------------


def _grown(exponent, spread, rng):
    """Errors of a known order along 16 to 256, with relative noise."""
    values = [16.0, 32.0, 64.0, 128.0, 256.0]
    errors = np.array(values) ** exponent * np.exp(spread * rng.standard_normal((10, 5)))
    return values, errors


def test_an_error_of_a_larger_order_is_not_called_bounded():
    rng = np.random.default_rng(0)
    for exponent, printed, verdict in (
        (-2.0, -2.0, "bound met"),
        (-2.5, -2.0, "bound met"),
        (-1.7, -2.0, "not reached here"),
    ):
        values, errors = _grown(exponent, 0.05, rng)
        growth = rates.Growth("n", values, errors, [7 * value**printed for value in values])
        assert rates.upper_orders([growth], 0.1).verdict == verdict
        assert abs(growth.exponent - exponent) < growth.margin < 0.1 and growth.allowed == pytest.approx(printed)


def test_a_bound_that_is_not_approached_is_compared_by_its_value():
    values, errors = _grown(1.0, 0.0, np.random.default_rng(0))
    growth = rates.Growth("d", values, errors, [300.0] * 5)
    assert rates.upper_orders([growth], 0.1).verdict == "not reached here"
    assert rates.below([growth], 1.0).verdict == "bound met" and rates.below([growth], 0.5).verdict != "bound met"


def test_thresholding_on_a_quadratic_keeps_the_largest_entries_and_converges():
    draws = [np.random.default_rng(seed) for seed in range(3)]
    assert np.all(rates.noisy_thresholding(draws, 50, 4, 4, 0.0, 40) < 1e-20)
    assert rates.hard_threshold(np.array([1.0, -3.0, 2.0]), 2).tolist() == [0.0, -3.0, 2.0]


# --- figures --------------------------------------------------------------------------------------------------------


def _figure(shift, repetitions=18):
    """Errors of two methods on the same data sets: "a" lies ``shift`` below "b" at the second epsilon."""
    rng = np.random.default_rng(0)
    data = rng.random((repetitions, 2))
    lower = data - np.array([0.5, shift]) + 0.01 * rng.standard_normal((repetitions, 2))
    both = {
        (noise, name): value
        for noise in (curves.PUBLISHED, curves.TIGHT)
        for name, value in (("a", lower), ("b", data))
    }
    return curves.Figure([1.0, 2.0], both, {})


@pytest.mark.parametrize(("shift", "verdict"), [(0.5, "order kept"), (0.0, "tie"), (-0.5, "order reversed")])
def test_an_order_must_be_established_at_every_epsilon(shift, verdict):
    assert curves.order(_figure(shift), "a", {"b": ["b"]}).verdict == verdict
    # Five data sets cannot establish anything.
    assert curves.order(_figure(shift, 5), "a", {"b": ["b"]}).verdict == "tie"


def test_a_reading_that_disagrees_does_not_reverse_an_order():
    figure, other = _figure(-0.5), _figure(0.5)
    errors = dict(figure.errors) | {
        (noise, "c"): other.curve(noise, "b") + 1 for noise in (curves.PUBLISHED, curves.TIGHT)
    }
    several = curves.Figure(figure.budgets, errors, {})
    assert curves.order(several, "a", {"rival": ["b", "c"]}).verdict == "depends on reading"
    assert curves.order(several, "a", {"b": ["b"], "c": ["c"]}).verdict == "order reversed"


def test_an_order_that_is_refuted_under_one_reading_and_found_under_none_does_not_depend_on_reading():
    # Below "b" at no epsilon and like "c": nothing says that some reading makes the order true.
    figure = _figure(-0.5)
    rng = np.random.default_rng(1)
    errors = {(noise, name): value for (noise, name), value in figure.errors.items()}
    for noise in (curves.PUBLISHED, curves.TIGHT):
        errors[noise, "a"] = errors[noise, "b"] + 0.5
        errors[noise, "c"] = errors[noise, "a"] + 0.01 * rng.standard_normal((18, 2))
    several = curves.Figure(figure.budgets, errors, {})
    found = curves.order(several, "a", {"rival": ["b", "c"]})
    assert found.verdict == "not reached here" and "lowest in 0 of 8 comparisons, the opposite in 4" in found.computed


def test_settings_are_chosen_on_other_data_sets_than_those_reported():
    seen = []

    def fit(data, epsilon, noise, setting, draw):
        seen.append((data, setting))
        return np.array([setting * epsilon])

    method = curves.Method("m", fit, [3.0, 1.0, 2.0], (curves.TIGHT,))
    made = iter(range(100))
    figure = curves.measure([method], [1.0, 4.0], lambda draw: next(made), lambda data, weights: float(weights[0]),
                            seeds.source(0, "p", "i"), repetitions=4, tuning=2)  # fmt: skip
    assert figure.chosen[curves.TIGHT, "m"] == [1.0, 1.0] and figure.errors[curves.TIGHT, "m"].shape == (4, 2)
    assert {data for data, setting in seen if setting != 1.0} == {0, 1}
    assert {data for data, _ in seen} == set(range(6))
