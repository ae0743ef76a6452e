"""``dptoolkit tune``: what it costs comes first, the file carries the whole choice, and bad input is one line."""

from __future__ import annotations

import json
import shlex

import pytest

from dptoolkit import cli, models
from dptoolkit.accounting import BestOf, Ledger
from dptoolkit.cli import output
from tests.cli.test_models import data  # noqa: F401

TUNE = "tune two.svm --task classification --epsilon 2 --delta 1e-6 --classes -1 1 --n-features 6 --row-norm 1"
IGHT = f"{TUNE} --solver dp-ight --sparsity 3"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch, data):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "DELAY", 1e6)

    def _run(line: str) -> tuple[int, str, str]:
        code = cli.main(shlex.split(line))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return _run


def test_a_model_is_chosen_within_the_budget(run, tmp_path):
    code, out, err = run(f'{IGHT} --candidate "steps=5 step_size=1" --candidate "steps=10 step-size=4" --out m.json')
    assert code == 0 and out.startswith("Chosen of 2 candidates: steps=") and out.endswith("The model is in m.json\n")
    assert err.startswith("dptoolkit: A run has") and "has a rule for step_size, steps" in err and err.count("\n") == 1
    model = models.load(tmp_path / "m.json")
    assert isinstance(model.guarantee.event, BestOf)
    assert 1.98 < model.guarantee.epsilon(1e-6) <= 2.0
    code, out, _ = run("evaluate m.json two.svm --json")
    assert code == 0 and json.loads(out)["accuracy"] > 0.8


def test_numbers_and_the_default_solver(run, tmp_path):
    fixed = "tune numbers.csv --label y --task regression --epsilon 4 --row-norm 2 --label-bound 1 --quiet --json"
    code, out, err = run(f"{fixed} --grid sparsity=1,6 --out m.json")
    found = json.loads(out)
    assert (code, err) == (0, "") and found["solver"] == "dp_pipeline"
    assert found["candidates"] == [{"sparsity": 1}, {"sparsity": 6}] and found["chosen"] in found["candidates"]
    assert models.load(tmp_path / "m.json").guarantee.epsilon(1e-5) <= 4.0


def test_a_plan_runs_nothing_and_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("dptoolkit.tuning.tune", lambda *a, **k: pytest.fail("the data were used"))
    before = set(tmp_path.iterdir())
    code, out, err = run(f"{IGHT} --grid step_size=1,4 --grid steps=5,10 --plan")
    assert (code, err) == (0, "") and "times the noise" in out and "leaving that out is free" in out
    code, out, _ = run(f"{IGHT} --grid steps=5 --grid steps=10 --plan --json")
    found = json.loads(out)
    assert found["candidates"] == [{"steps": 5}, {"steps": 10}] and found["rule_for"] == ["steps"]
    assert found["price"] > 1 and set(tmp_path.iterdir()) == before


def test_a_ledger_is_charged_once_for_the_whole_choice(run, tmp_path):
    Ledger.open(tmp_path / "budget", epsilon=2.5, delta=1e-6)
    line = f"{IGHT} --grid step_size=1,4 --ledger budget --quiet --out m.json"
    assert run(line)[0] == 0
    event = models.load(tmp_path / "m.json").guarantee.event
    assert [(entry.event, entry.count) for entry in Ledger.open(tmp_path / "budget").entries] == [(event, 1)]
    (tmp_path / "m.json").unlink()
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize(("line", "words"), [
    (f"{IGHT} --out m.json", "at least one setting"), (f"{IGHT} --grid steps=5,10", "--out: must be given"),
    (f"{IGHT} --candidate stepps=5 --out m.json", "Settings are"),
    (f"{IGHT} --candidate steps --out m.json", "setting=value"), (f"{IGHT} --grid steps --out m.json", "setting=value"),
    (f"{IGHT} --grid steps=5,x --out m.json", "of type int"), (f"{IGHT} --grid epsilon=1,2 --out m.json", "for all"),
    (f"{IGHT} --grid fit_intercept=perhaps --out m.json", "--fit-intercept"),
    (f"{IGHT} --grid steps=5,10 --expected-runs 1 --out m.json", "--expected-runs"),
    (f"{IGHT} --grid steps=5,10 --law fixed --out m.json", "law"),
    (f"{IGHT} --grid steps=5,10 --validation 2 --out m.json", "validation"),
    (f"{IGHT} --grid steps=5,10 --out no/m.json", "can be written"),
    (f"{IGHT} --grid steps=5,10 --ledger none --out m.json", "ledger"),
    (f"{IGHT} --grid steps=0,10 --out m.json", "steps"), (f"{TUNE} --solver no --grid steps=1 --out m.json", "solver"),
    ("tune three.svm --task classification --epsilon 2 --row-norm 1 --solver dp-ight --grid steps=5,9 --out m.json",
     "private choice"),
])  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(run, tmp_path, line, words):
    before = set(tmp_path.iterdir())
    code, out, err = run(line)
    assert (code, out) == (2, "") and words in err and err.count("\n") == 1
    assert set(tmp_path.iterdir()) == before
