"""The paper checks: every verdict is the expected one, and a changed one is noticed."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from dptoolkit.accounting import published
from paper_checks.__main__ import ROOT, main
from paper_checks.claims import BadClaims, load, paper_folders
from paper_checks.run import run
from paper_checks.verdict import KINDS, bound, judge, size

PAPER = "wang_gu_2020_kt"


@pytest.fixture
def copied(tmp_path):
    """A copy of one paper's folder, and a function that edits its claims."""
    folder = tmp_path / PAPER
    shutil.copytree(ROOT / PAPER, folder)

    def edit(old, new):
        path = folder / "claims.toml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return tmp_path, edit


def test_all_papers_as_expected(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "all as expected" in out and "NO:" not in out
    assert all(folder.name in out for folder in paper_folders(ROOT, []))


def test_five_papers_each_with_claims_a_check_and_a_page():
    folders = paper_folders(ROOT, [])
    assert len(folders) == 5
    for folder in folders:
        assert (folder / "README.md").exists()
        assert len((folder / "check.py").read_text(encoding="utf-8").splitlines()) < 150
        text = (folder / "README.md").read_text(encoding="utf-8")
        for claim in load(folder).claims:
            assert f"`{claim.id}`" in text, f"{folder.name}/README.md does not mention {claim.id}"


def test_json_parses_and_has_every_point(capsys):
    assert main([PAPER, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    points = sum(len(claim.points) for claim in load(ROOT / PAPER).claims)
    assert len(rows) == points and {row["paper"] for row in rows} == {PAPER}
    assert all(row["verdict"] in KINDS and row["as_expected"] is True for row in rows)
    assert any(row["upper"] == "inf" for row in rows)


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
        ("factor = 1.2987", 'tier = "slow"', "tier='slow'"),
    ],
)
def test_bad_claims_exit_2_with_one_line(copied, capsys, old, new, word):
    root, edit = copied
    edit(old, new)
    assert main([], root) == 2
    captured = capsys.readouterr()
    assert word in captured.err and captured.out == "" and len(captured.err.splitlines()) == 1


def test_unknown_names_exit_2(capsys):
    assert main(["no_such_paper"]) == 2
    assert "paper='no_such_paper': must be one of khanna_2023_lasso" in capsys.readouterr().err
    with pytest.raises(SystemExit) as leave:
        main(["--tier", "slow"])
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
    assert len(run([type(paper)(paper.name, tuple(proof))], "fast")) == 2
    assert 0 < len(fast) < sum(len(claim.points) for claim in paper.claims)


def test_size_and_bound():
    assert [size(factor) for factor in (0.5, 1.0, 1.04, 1.06, math.inf)] == [
        "false", "holds", "holds", "wasteful", "wasteful",
    ]  # fmt: skip
    assert bound(1.0, 4.0).factor == 0.25 and bound(1.0, 4.0).kind == "false"


def test_judge_keeps_apart_false_and_vacuous():
    false = judge(published.ight_corollary_5_8(1000, 50, 1.0, 1.0, 1e-5))
    assert false.kind == "false" and false.truth == false.lower and false.factor < 1
    outside = judge(published.ight_remark_5_3_simple(1000, 50, 1.0, 12.0, 1e-5))
    assert outside.kind == "vacuous" and "epsilon <= log(1/delta)" in outside.detail
