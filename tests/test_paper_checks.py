"""The paper checks: every verdict is the expected one, and a changed one is noticed."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from types import SimpleNamespace

import pytest

from dptoolkit import published
from paper_checks import audits
from paper_checks.__main__ import ROOT, main
from paper_checks.audits import Audited
from paper_checks.claims import load, paper_folders
from paper_checks.items import BadClaims
from paper_checks.run import Row, Settings, Unit, run, units
from paper_checks.store import check_apart
from paper_checks.verdict import KINDS, VERDICTS, Verdict, bound, judge, overall, size, worst

PAPER = "wang_gu_2020_kt"


@pytest.fixture(autouse=True)
def _reports_into_a_folder_of_their_own(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


def _record(paper: str, **other) -> dict:
    return {"paper": paper, "claim": "c", "as_expected": True, "kind": "item", **other}


@pytest.fixture
def copied(tmp_path):
    """A copy of one paper's folder, and a function that edits its claims, or its check.py."""
    folder = tmp_path / PAPER
    shutil.copytree(ROOT / PAPER, folder)

    def edit(old, new, file="claims.toml"):
        path = folder / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return tmp_path, edit


# The paper whose check is short stands for all in ``make test``; ``make check`` is the same run of every paper.
SHORT = "wang_gu_2019_ight"
PAPERS = [folder.name for folder in paper_folders(ROOT, [])]


# One by one, so that they can be run side by side.
@pytest.mark.parametrize(
    "paper", [name if name == SHORT else pytest.param(name, marks=pytest.mark.slow) for name in PAPERS]
)
def test_every_paper_is_as_expected(capsys, paper):
    assert main([paper]) == 0
    out = capsys.readouterr().out
    assert out.startswith(paper) and "all as expected" in out and "NO:" not in out and " > " in out
    assert max(map(len, out.splitlines())) <= 120


def test_all_papers_are_checked_if_none_is_named(monkeypatch, capsys):
    def rows(root, papers, settings, *rest):
        return [(unit, _record(unit.paper), 0.0) for unit in units(papers, settings.tier)]

    monkeypatch.setattr("paper_checks.__main__.run", rows)
    monkeypatch.setattr("paper_checks.__main__.write_pages", lambda *arguments: None)
    names = lambda rows, _: " ".join(dict.fromkeys(row["paper"] for row in rows))  # noqa: E731
    monkeypatch.setattr("paper_checks.__main__.table", names)
    assert main([]) == 0
    assert capsys.readouterr().out.split() == [folder.name for folder in paper_folders(ROOT, [])]


def test_five_papers_each_with_claims_a_check_and_a_page():
    folders = paper_folders(ROOT, [])
    assert len(folders) == 5
    for folder in folders:
        assert (folder / "README.md").exists()
        assert all(len(path.read_text(encoding="utf-8").splitlines()) < 200 for path in folder.glob("*.py"))
        text = (folder / "README.md").read_text(encoding="utf-8")
        for claim in load(folder).claims:
            assert f"`{claim.id}`" in text, f"{folder.name}/README.md does not mention {claim.id}"


def test_json_parses_and_has_every_point(capsys):
    assert main([PAPER, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    points = sum(len(claim.points) for claim in load(ROOT / PAPER).claims)
    judged = sum(item.judged and item.tier == "fast" for item in load(ROOT / PAPER).items)
    assert len(rows) == points + judged and {row["paper"] for row in rows} == {PAPER}
    assert all(row["verdict"] in VERDICTS and row["as_expected"] is True for row in rows)
    rows = [row for row in rows if row["kind"] == "claim"]
    assert all(row["verdict"] in KINDS for row in rows)
    assert any(row["upper"] == "inf" for row in rows)
    with_audits = [row for row in rows if row["audited"] is not None]
    audited = {row["at"]["epsilon"]: row for row in with_audits if row["claim"] == "lemma-2.6"}
    flips = {row["at"]["n"]: row for row in with_audits if row["claim"] == "theorem-4.3"}
    assert len(with_audits) == len(audited) + len(flips)
    assert set(flips) == {101, 1001} and all(row["audited"] > row["audited_against"] == 1.0 for row in flips.values())
    assert set(audited) == {1.0, 10.0} and audited[10.0]["audited_against"] == 10.0
    assert 0 < audited[1.0]["audited"] < audited[1.0]["upper"] < 1 and audited[10.0]["audited"] > 10


def test_every_paper_has_audits_and_the_table_shows_what_they_refute(capsys):
    for folder in paper_folders(ROOT, []):
        points = [point for claim in load(folder).claims for point in claim.points]
        assert any(point.audited is not None for point in points), folder.name
        assert any(point.refuted and point.tier == "fast" for point in points), folder.name
    main([PAPER])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "epsilon=10 delta=0.01" in line]
    assert re.search(r"11\.92 +11\.\d+ > 10 +false", row)


@pytest.mark.parametrize(("claim", "item"), [("a claim", "a_claim.0"), ("claim", "Claim.0"), ("claim", "claim.0")])
def test_units_whose_results_would_be_one_file_are_refused(tmp_path, capsys, claim, item):
    folder, out = tmp_path / SHORT, tmp_path / "out"
    shutil.copytree(ROOT / SHORT, folder)
    text = (folder / "claims.toml").read_text(encoding="utf-8")
    assert text.count('id = "IGHT-P3"') == text.count('id = "theorem-5.2"') == 1
    # The first point of a claim is the unit "claim.0".
    text = text.replace('id = "theorem-5.2"', f'id = "{claim}"').replace('id = "IGHT-P3"', f'id = "{item}"')
    (folder / "claims.toml").write_text(text, encoding="utf-8")
    assert main([SHORT, "--out", str(out)], tmp_path) == 2
    assert "must have results in two files" in capsys.readouterr().err
    assert not list(out.rglob("*.json"))


def test_every_result_has_a_file_of_its_own():
    for paper in map(load, paper_folders(ROOT, [])):
        check_apart(paper.name, (unit.name for unit in units([paper], "slow")))


NOISE = 'GaussianNoise(record.scales["query"], sensitivity)'


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("new", "words"),
    [
        # Less noise than printed is found: by the accounting's own number, whatever the claim says.
        ('GaussianNoise(0.5 * record.scales["query"], sensitivity)', "above the truth 0.750"),
        # More noise than printed: the claim is no longer refuted, and the audit is weaker than it should be.
        ('GaussianNoise(2.0 * record.scales["query"], sensitivity)', "expected more than the claimed 10"),
        ('GaussianNoise(2.0 * record.scales["query"], sensitivity)', "expected at least 0.35"),
    ],
)
def test_an_audit_that_contradicts_the_accounting_fails_the_run(copied, capsys, new, words):
    root, edit = copied
    edit(NOISE, new, "check.py")
    assert main([], root) == 1
    out = capsys.readouterr().out
    assert words in " ".join(out.split()) and "2 CHANGED" in out


def test_an_audit_is_held_to_the_truth_and_to_what_its_pair_reaches():
    claim = load(ROOT / PAPER).claims[0]
    point = dataclasses.replace(claim.points[0], verdict="open", factor=None, truth=None, audited=1.0)
    verdict = Verdict("open", lower=2.0, upper=3.0)

    def changes(found, **of_point):
        return Row(PAPER, claim, dataclasses.replace(point, **of_point), verdict, found).changes

    assert changes(Audited(1.9, 1.0, reach=2.0)) == []
    assert "that its pair reaches" in changes(Audited(2.1, 1.0, reach=2.0))[0]
    assert "above the truth 3" in changes(Audited(3.1, 1.0))[0]
    assert changes(Audited(3.1, 1.0, in_currency=False)) == []
    assert "above the truth" in changes(Audited(math.nan, 1.0))[0]
    assert "expected at least 1" in changes(Audited(0.9, 0.5))[0]
    assert changes(Audited(1.9, 1.9)) == [] and changes(Audited(1.9, 1.8), refuted=True) == []
    assert "more than the claimed 1.9" in changes(Audited(1.9, 1.9), refuted=True)[0]


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('verdict = "wasteful"', 'verdict = "holds"', "verdict wasteful, expected holds"),
        ('verdict = "false"', 'verdict = "holds"', "verdict false, expected holds"),
        ("factor = 1.2987", "factor = 1.32", "factor 1.298"),
        ("truth = 0.7510", "truth = 0.76", "truth 0.750"),
        (
            "{ epsilon = 8.0, delta = 1e-5 }",
            "{ epsilon = 9.0, delta = 1e-5 }",
            "verdict false, expected holds",
        ),
    ],
)
def test_a_changed_verdict_or_factor_fails_the_run(copied, capsys, old, new, word):
    root, edit = copied
    assert main([], root) == 0
    capsys.readouterr()
    edit(old, new)
    assert main([], root) == 1
    out = capsys.readouterr().out
    assert word in out and "1 CHANGED" in out


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("[[claim]]", "[[claim", "must be TOML"),
        ('check = "lemma_2_6"', 'check = "lemma_9"', "must be a function of check.py"),
        ('verdict = "wasteful"', 'verdict = "fine"', "must be one of false, open"),
        ("tolerance = 1e-3", "tolerance = 1e-3\ncolour = 1", "unknown colour"),
        ("tolerance = 1e-3", "", "missing tolerance"),
        ("{ epsilon = 1.0, delta = 1e-5 }", "{ epsilon = -1.0, delta = 1e-5 }", "epsilon=-1.0: must be > 0"),
        ("{ epsilon = 1.0, delta = 1e-5 }", "{ epsilon = 1.0, delt = 1e-5 }", "delt"),
        ("factor = 1.2987", 'tier = "endless"', "tier='endless'"),
        ('audit = "audit_lemma_2_6"', 'audit = "audit_lemma_9"', "audit='audit_lemma_9': must be a function"),
        ('audit = "audit_lemma_2_6"', "", "an audited point needs audit and trials"),
        ("trials = 20_000", "", "an audited point needs audit and trials"),
        ("audited = 10.5, refuted = true", "refuted = true", "refuted and trials need audited"),
    ],
)
def test_bad_claims_exit_2_with_one_line(copied, capsys, old, new, word):
    root, edit = copied
    edit(old, new)
    assert main([], root) == 2
    captured = capsys.readouterr()
    assert word in captured.err and captured.out == "" and len(captured.err.splitlines()) == 1


def test_one_claim_is_checked_with_its_statement_and_the_reason(capsys):
    assert main(["wang_gu_2020_kt", "lemma-2.6"]) == 0
    out = capsys.readouterr().out
    (claim,) = (claim for claim in load(ROOT / PAPER).claims if claim.id == "lemma-2.6")
    words = " ".join(out.split())
    assert claim.states in words and claim.note in words and "1 claims at" in out and "0 items" in out
    assert main(["wang_gu_2020_kt", "lemma-2.7"]) == 2
    assert "CLAIM lemma-2.7: must be a paper, an item of --list, or one of" in capsys.readouterr().err


def test_claims_are_listed_without_being_checked(monkeypatch, capsys):
    monkeypatch.setattr("paper_checks.__main__.run", None)
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    claims = [claim for folder in paper_folders(ROOT, []) for claim in load(folder).claims]
    assert all(f"{claim.id}: {claim.where}" in out for claim in claims)
    assert max(map(len, out.splitlines())) <= 120
    assert main(["--list", "--json", PAPER]) == 0
    paper = load(ROOT / PAPER)
    entries = [entry.id for entry in (*paper.claims, *paper.items)]
    assert [row["claim"] for row in json.loads(capsys.readouterr().out)] == entries


def test_unknown_names_exit_2(capsys):
    assert main(["no_such_paper"]) == 2
    assert "PAPER no_such_paper: must be one of khanna_2023_lasso" in capsys.readouterr().err
    with pytest.raises(SystemExit) as leave:
        main(["--tier", "endless"])
    assert leave.value.code == 2


def test_a_folder_without_a_check_is_refused(copied):
    root, _ = copied
    (root / PAPER / "check.py").unlink()
    with pytest.raises(BadClaims, match="check.py"):
        load(root / PAPER)


def test_tiers():
    paper = load(ROOT / "liang_2023_stochastic_ht")
    fast = [point for claim in paper.claims for point in claim.points if point.tier == "fast"]
    proof = [claim for claim in paper.claims if claim.id == "theorem-5.1-proof"]
    assert len(list(run(ROOT, [type(paper)(paper.name, tuple(proof))], Settings()))) == 2
    assert 0 < len(fast) < sum(len(claim.points) for claim in paper.claims)


def test_a_claim_is_as_bad_as_its_worst_point():
    assert worst(["holds", "vacuous", "false"]) == "false" and worst(["vacuous"]) == "vacuous"
    assert worst(["wasteful", "vacuous"]) == "wasteful"
    assert worst(["holds", "depends on reading"]) == "depends on reading"
    assert worst(["false", "depends on reading"]) == "false"


def test_a_claim_is_false_only_if_it_is_under_every_reading_of_the_text():
    assert overall([({}, "holds"), ({"epsilon": 1.0}, "false")]) == "false"
    points = [({"reading": "a"}, "holds"), ({"reading": "b"}, "holds"), ({"reading": "b"}, "false")]
    assert overall(points) == "depends on reading"
    assert overall([*points, ({"reading": "a"}, "false")]) == "false"
    assert overall(points[:2]) == "holds"
    # Two readings that differ in waste only are no dispute.
    assert overall([({"reading": "a"}, "holds"), ({"reading": "b"}, "wasteful")]) == "wasteful"
    # Two claims name readings: by the accountant that the paper names its noise is enough, and a letter may be lost.
    paper = load(ROOT / "liang_2023_stochastic_ht")
    found = {claim.id: overall((point.at, point.verdict) for point in claim.points) for claim in paper.claims}
    assert found["section-6.4"] == found["theorem-5.1-statement"] == "depends on reading"


def test_size_and_bound():
    assert [size(factor) for factor in (0.5, 1.0, 1.04, 1.06, math.inf)] == [
        "false", "holds", "holds", "wasteful", "wasteful",
    ]  # fmt: skip
    assert bound(1.0, 4.0).factor == 0.25 and bound(1.0, 4.0).kind == "false"


def test_what_holds_is_not_called_false_where_the_repaired_release_needs_more_noise():
    printed = published.lecture_heavy_tailed_iht(1000, 10, 1, 0.2, 1.0, 0.1, 0.99, 1e-5)
    assert printed.status == "holds" and printed.ratio < 1
    assert judge(printed).kind == "wasteful" and judge(printed).factor > 1


def test_judge_keeps_apart_false_and_vacuous():
    false = judge(published.ight_corollary_5_8(1000, 50, 1.0, 1.0, 1e-5))
    assert false.kind == "false" and false.truth == false.lower and false.factor < 1
    outside = judge(published.ight_remark_5_3_simple(1000, 50, 1.0, 12.0, 1e-5))
    assert outside.kind == "vacuous" and "epsilon <= log(1/delta)" in outside.detail


def test_ctrl_c_prints_what_is_finished(monkeypatch, capsys):
    def rows(*arguments):
        yield Unit("first", "c"), _record("first"), 0.0
        raise KeyboardInterrupt

    monkeypatch.setattr("paper_checks.__main__.run", rows)
    monkeypatch.setattr("paper_checks.__main__.table", lambda rows, _: " ".join(row["paper"] for row in rows))
    monkeypatch.setattr("paper_checks.__main__._ignore_interrupts", lambda: None)
    assert main([]) == 130
    assert capsys.readouterr() == ("first\n", "paper_checks: stopped. 1 results are kept; go on with --resume.\n")


def test_a_defect_is_not_a_changed_claim(monkeypatch, capsys):
    def rows(*arguments):
        raise RuntimeError("two\nlines")
        yield

    monkeypatch.delenv("DPTOOLKIT_TRACEBACK", raising=False)
    monkeypatch.setattr("paper_checks.__main__.run", rows)
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "RuntimeError: two lines" in captured.err and captured.err.count("\n") == 1


def test_events_that_the_accounting_lacks_are_audited_by_the_bare_claim(monkeypatch):
    record = published.multinomial(1000, 2, 3, 50, 10.0, 2.0, epsilon=8.0, delta=1e-5)
    monkeypatch.setattr(audits, "attack", lambda *given, **more: SimpleNamespace(epsilon_lower=1.0))
    found = audits.printed_noise(None, record, None, 10)
    assert (found.lower, found.claimed, found.reach) == (1.0, 8.0, record.lower)
