"""Named columns through the shell: labels and classes, text and missing cells, predictions for new records."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from dptoolkit import cli, models
from dptoolkit.cli import output
from dptoolkit.cli.output import in_shell

FIT = "--task classification --epsilon 8"
READ = [
    "--label", "readmitted", "--drop", "patient id", "--categories", "sex=f,m", "--categories",
    "smoking=never,former,current", "--missing", "bmi=25", "--missing", "smoking=never",
]  # fmt: skip
HEAD = 'patient id;"age, years";sex;readmitted;"blood pressure [mmHg]";smoking;bmi'


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line given as a string or as words, in a folder of its own; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "DELAY", 1e6)

    def _run(line: str | list[str], *more: str) -> tuple[int, str, str]:
        code = cli.main([*(line.split() if isinstance(line, str) else line), *more])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return _run


@pytest.fixture
def clinic(tmp_path):
    """A clinical table: the label in the middle, text columns, missing cells, semicolons and quoted names."""
    rng = np.random.default_rng(0)
    n = 2000
    age, sex, bmi = rng.integers(20, 90, n), rng.choice(["f", "m"], n), np.round(rng.normal(26, 4, n), 1)
    smoking, pressure = rng.choice(["never", "former", "current"], n), rng.integers(90, 190, n)
    sick = np.where(age / 20 + 2 * (sex == "f") + rng.normal(size=n) > 3.7, "yes", "no")
    rows = [
        f'P{4_000_000 + i};{age[i]};{sex[i]};{sick[i]};{pressure[i]};"{"NA" if i % 90 == 7 else smoking[i]}";'
        f"{'' if i % 50 == 3 else bmi[i]}"
        for i in range(n)
    ]
    (tmp_path / "clinic.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    return tmp_path


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "") and err.count("\n") == 1 and err.startswith("dptoolkit: ")
    for word in words:
        assert word in err, err


# --- labels and classes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [[], ["--label", "bmi"], ["--label", "7"], ["--label", "age, years"]])
def test_a_column_of_measurements_is_not_published_as_classes(run, tmp_path, label):
    rng = np.random.default_rng(0)
    rows = [f"{i % 2};{20 + i % 60};0;1;1;1;{bmi:.1f}" for i, bmi in enumerate(rng.normal(26, 4, 300))]
    (tmp_path / "hospital.csv").write_text("\n".join([HEAD, *rows]))
    refused(run(f"fit hospital.csv {FIT} --out m.json", *label), "--label ", "published", "--classes")
    assert [path.name for path in tmp_path.iterdir()] == ["hospital.csv"]


@pytest.mark.parametrize("label", ["outcome", "2"])
def test_the_label_goes_by_name_or_number_and_classes_are_named_before_the_fit(
    run, tmp_path, monkeypatch, capsys, label
):
    rows = [f"{i % 7},{'ill' if i % 3 else 'well'},{i % 5}" for i in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["a,outcome,b", *rows]))
    code, _, err = run(f"fit t.csv {FIT} --label {label} --seed 0 --out m.json")
    assert code == 0 and "published as the classes of the model: ill, well." in err and err.count("\n") == 1
    model = models.load("m.json")
    assert model.classes.tolist() == ["ill", "well"] and model.feature_names == ("a", "b")
    # Declared classes are not worth a word, and a label outside them is refused without being shown.
    assert run(f"fit t.csv {FIT} --label {label} --classes ill well --seed 0 --out n.json")[::2] == (0, "")
    refused(run(f"fit t.csv {FIT} --label {label} --classes ill dead --out o.json"), "classes")
    monkeypatch.setattr(models, "fit", lambda *a, **k: pytest.fail("the fit has begun"))
    with pytest.raises(pytest.fail.Exception, match="the fit has begun"):
        cli.main(f"fit t.csv {FIT} --label {label} --out p.json".split())
    assert "published as the classes of the model: ill, well." in capsys.readouterr().err


def test_the_last_column_is_the_label_where_none_is_named_and_that_is_said(run, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(f"{i % 7},{i % 2}" for i in range(400)))
    code, _, err = run(f"fit t.csv {FIT} --classes 0 1 --out m.json")
    assert code == 0 and err.count("\n") == 1 and "the label is --label b (the last column)" in err


@pytest.mark.parametrize(("options", "words"), [
    ("--label nobody", "--label nobody: must be a column of t.csv: 'a', 'b'"),
    ("--label b --drop c", "--drop c: must be a column"),
    ("--label b --categories a", "--categories a: must be COLUMN=A,B"),
    ("--label b --missing a=1 --missing 3", "one number, or COLUMN=VALUE"), ("--label b --missing x", "--missing x"),
    ("--label b --n-features 7", "7 features besides the label"), ("--label b --separator ;;", "--separator ;;"),
    ("--label b --drop a", "a feature besides the label"), ("--label b --categories c=x,y", "--categories c: must"),
])  # fmt: skip
def test_options_of_columns_that_do_not_fit_are_refused(run, tmp_path, options, words):
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(f"{i % 7},{i % 2}" for i in range(400)))
    refused(run(f"fit t.csv {FIT} {options} --out m.json"), words)
    assert not (tmp_path / "m.json").exists()


def test_options_of_columns_are_refused_for_libsvm_text(run, tmp_path):
    (tmp_path / "t.svm").write_text("1 1:1\n-1 1:2\n")
    refused(run(f"fit t.svm {FIT} --label y --out m.json"), "--label y: must be left out for LIBSVM text")


def test_a_table_by_another_suffix_is_told_how_to_be_named(run, tmp_path):
    (tmp_path / "t.txt").write_text("a,b\n1,2\n")
    refused(run(f"fit t.txt {FIT} --n-features 2 --out m.json"), "line 1", "Tables end in .csv, .tsv or .parquet.")


def test_text_labels_are_no_numbers_to_predict(run, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    line = "fit t.csv --task regression --epsilon 1 --row-norm 1 --label-bound 1 --label b --out m.json"
    refused(run(line), "--label b: must be a column of numbers")


# --- from a file to a model and predictions -------------------------------------------------------------------


def test_what_does_not_fit_is_named_by_column_with_the_flag_that_repairs_it(run, clinic):
    result = run(f"fit clinic.csv {FIT} --label readmitted --out m.json")
    refused(result, "text in 'patient id', 'sex', 'smoking'", "--drop 'patient id'", "--categories 'patient id'=A,B,C",
            "missing cells in 'bmi'", "--missing bmi=0", "never with a mean")  # fmt: skip
    assert "P400" not in result[2] and "former" not in result[2]


def test_a_clinical_table_becomes_a_model_that_predicts_records_without_labels(run, clinic):
    code, out, err = run(f"fit clinic.csv {FIT} --classes yes no --out model.json", *READ)
    assert code == 0 and "published" not in err and out.endswith("The model is in model.json\n")
    assert models.load("model.json").feature_names == (
        "age, years", "sex=f", "sex=m", "blood pressure [mmHg]", "smoking=never", "smoking=former", "smoking=current",
        "bmi",
    )  # fmt: skip
    score = json.loads(run("evaluate model.json clinic.csv --json")[1])
    assert score["records"] == 2000 and score["accuracy"] > score["largest_class"]
    with_label = run("predict model.json clinic.csv")
    assert with_label[::2] == (0, "") and set(with_label[1].split()) == {"yes", "no"}
    # New records: no label, no identifier, other columns between, another order and separator.
    lines = [line.split(";") for line in (clinic / "clinic.csv").read_text().splitlines()]
    lines[0] = ["id", '"age, years"', "sex", "readmitted", "blood pressure [mmHg]", "smoking", "bmi"]
    rows = [",".join((row[6], row[1], "extra", row[4], row[5], row[2])) for row in lines]
    (clinic / "new.csv").write_text("\n".join(rows) + "\n")
    assert run("predict model.json new.csv") == with_label
    (clinic / "short.csv").write_text("\n".join(",".join(row[1:4]) for row in lines))
    refused(run("predict model.json short.csv"), "It has no column 'blood pressure [mmHg]', nor 2 others")


def test_predictions_refuse_cells_that_the_model_does_not_know(run, clinic):
    assert run(f"fit clinic.csv {FIT} --classes yes no --out model.json", *READ)[0] == 0
    head = '"age, years",sex,blood pressure [mmHg],smoking,bmi\n'
    (clinic / "new.csv").write_text(head + "61,x4242,120,never,25\nold,f,120,never,25\n,f,,never,2\n")
    result = run("predict model.json new.csv")
    refused(result, "cells outside the categories in 'sex' (first in line 2): the model has", "text in 'age, years'",
            "--missing 'blood pressure [mmHg]'=0")  # fmt: skip
    assert "4242" not in result[2]


def test_a_model_without_names_takes_a_table_with_or_without_its_label(run, tmp_path):
    rows = [(i % 7 - 3, i % 5 - 2, i % 7 // 4) for i in range(400)]
    (tmp_path / "t.svm").write_text("".join(f"{y} 1:{a} 2:{b}\n" for a, b, y in rows))
    assert run(f"fit t.svm {FIT} --classes 0 1 --n-features 2 --seed 0 --out m.json")[0] == 0
    (tmp_path / "bare.csv").write_text("u,v\n" + "".join(f"{a},{b}\n" for a, b, _ in rows))
    (tmp_path / "last.csv").write_text("u,v,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in rows))
    (tmp_path / "first.csv").write_text("y,u,v\n" + "".join(f"{y},{a},{b}\n" for a, b, y in rows))
    (tmp_path / "bare.svm").write_text("".join(f"1:{a} 2:{b}\n" for a, b, _ in rows))
    tables = ("t.svm", "bare.csv", "last.csv", "first.csv --label y", "bare.svm")
    found = [run(f"predict m.json {name}") for name in tables]
    assert found[0][0] == 0 and all(result == found[0] for result in found)
    assert run("evaluate m.json first.csv --label y --json")[1] == run("evaluate m.json t.svm --json")[1]
    refused(run("evaluate m.json bare.csv"), "--label: must be given")


def test_a_model_that_knows_names_alone_finds_its_columns_by_them(run, tmp_path):
    """Such is the file of an estimator that was fitted to a frame."""
    X = np.random.default_rng(0).standard_normal((400, 2))
    y = np.where(X[:, 0] > 0, "up", "down")
    model = models.fit(X, y, task="classification", classes=["up", "down"], epsilon=50.0, feature_names=("a", "b"))
    models.save(model, tmp_path / "m.json")
    rows = [f"{kind},{b!r},note,{a!r}" for (a, b), kind in zip(X.tolist(), y.tolist(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["kind,b,text,a", *rows]))
    assert run("predict m.json t.csv")[1].split() == model.predict(X).tolist()
    refused(run("evaluate m.json t.csv"), "--label: must be given")
    accuracy = (model.predict(X) == y).mean()
    assert json.loads(run("evaluate m.json t.csv --label kind --json")[1])["accuracy"] == accuracy
    (tmp_path / "u.csv").write_text((tmp_path / "t.csv").read_text().replace(",note", "").replace(",text", ""))
    assert json.loads(run("evaluate m.json u.csv --json")[1])["accuracy"] == accuracy


def test_a_published_file_holds_no_record(run, tmp_path):
    """Every cell of a feature is a number of its own; none of them is in the file."""
    rng = np.random.default_rng(0)
    cells = rng.uniform(100_000, 999_999, (600, 3)).astype(int)
    rows = [f"P{900_000 + i},{a},{b},{i % 2},{c}" for i, (a, b, c) in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["id,a,b,y,c", *rows]))
    assert run(f"fit t.csv {FIT} --label y --drop id --classes 0 1 --out m.json")[0] == 0
    text = (tmp_path / "m.json").read_text()
    words = [word for row in rows for word in row.split(",") if len(word) > 1]
    assert not any(f'"{word}"' in text or f" {word}," in text for word in words)
    assert "t.csv" not in text and str(tmp_path) not in text
    assert set(json.loads(text)["columns"]) == {"label", "features", "categories", "missing"}


def test_a_table_is_chosen_from_privately_too(run, clinic):
    line = f"tune clinic.csv {FIT} --solver dp-ight --row-norm 1 --grid steps=2,4 --quiet --out m.json"
    code, _, err = run(line, *READ)
    assert code == 0 and err.count("published as the classes of the model: no, yes.") == 1
    assert run("predict m.json clinic.csv")[0] == 0


def test_parquet_is_read_where_polars_is_there(run, tmp_path):
    polars = pytest.importorskip("polars", reason="parquet files need polars")
    frame = polars.DataFrame({"a": [i % 7 for i in range(400)], "kind": ["u", "v"] * 200, "y": [0, 1] * 200})
    frame.write_parquet(tmp_path / "t.parquet")
    assert run(f"fit t.parquet {FIT} --label y --classes 0 1 --categories kind=u,v --out m.json")[::2] == (0, "")
    assert set(run("predict m.json t.parquet")[1].split()) <= {"0", "1"}


# --- words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "expected"), [
    ("row_norm=None: must be given for dp_ight. A bound.", "--row-norm: must be given for dp_ight. A bound."),
    ("rng=-1: must be >= 0.", "--seed -1: must be >= 0."),
    ("path='row_norm.svm', line 3: must be x. Give n_features.", "row_norm.svm, line 3: must be x. Give --n-features."),
    ("task='my task': must be a. It's a paper's row_norm.", "--task 'my task': must be a. It's a paper's --row-norm."),
    ("epsilon=0.0: must be > 0. Use math.inf for none.", "--epsilon 0.0: must be > 0. Use --epsilon inf for none."),
    ("other=1: must be 'row_norm'.", "other=1: must be 'row_norm'."),
])  # fmt: skip
def test_arguments_become_flags(message, expected):
    names = {key: f"--{key.replace('_', '-')}" for key in ("row_norm", "seed", "n_features", "task", "epsilon")}
    assert in_shell(message, names) == expected


def test_repairs_are_written_as_they_are_typed(run, tmp_path):
    (tmp_path / "t.csv").write_text("age,z,y\n" + "70,0.5,0\n30,-0.5,1\n" * 40)
    fit = "fit t.csv --task classification --classes 0 1 --epsilon 1 --out m.json"
    assert "'*=0:1' for indicators" in run(f"{fit} --bounds age=0:120")[2]
    assert "Names that are no column of the file: ['q']" in run(f"{fit} --bounds q=0:1 *=0:120")[2]
    assert "Its header is one cell. Give --separator if it has more." in run(f"{fit} --separator ;")[2]
    assert run("ledger new l --epsilon 3 --delta 1e-4")[0] == 0
    err = run(f"{fit} --ledger l --randomness fast")[2]
    assert "Leave --randomness out, or make the ledger with --allow-fast-noise." in err


def test_a_warning_of_scales_names_the_flag(run, tmp_path):
    (tmp_path / "t.csv").write_text("age,z,y\n" + "70,0.5,0\n30,-0.5,1\n" * 40)
    err = run("fit t.csv --task classification --classes 0 1 --epsilon 1 --seed 0 --out m.json")[2]
    assert "on scales that differ" in err and "bounds=" not in err
    assert "--bounds age=0:120 bmi=10:80 for dp_pipeline." in err


def test_the_order_of_probabilities_is_said(run, model_file):
    code, out, err = run("predict m.json t.csv --probabilities")
    assert code == 0 and err == "dptoolkit: note: one column per class, in this order: ill, well.\n"
    assert run("predict m.json t.csv --probabilities --quiet") == (0, out, "")
    fit = "fit t.csv --label age --drop outcome --task regression --epsilon 1 --row-norm 5 --label-bound 3 --out n.json"
    assert run(fit)[0] == 0
    refused(run("predict n.json t.csv --probabilities"), "--probabilities: must be left out for a regression model")


# --- what is in a model, and what was spent -------------------------------------------------------------------


@pytest.fixture
def model_file(run, tmp_path):
    """The file of a model of two classes, from named columns."""
    rows = [f"{i % 7 - 3},{'ill' if i % 7 > 3 else 'well'},{i % 5}" for i in range(900)]
    (tmp_path / "t.csv").write_text("\n".join(["age,outcome,weight kg", *rows]))
    assert run(f"fit t.csv {FIT} --label outcome --classes ill well --out m.json")[0] == 0
    return tmp_path / "m.json"


def test_show_prints_weights_by_name_the_guarantee_and_a_sentence(run, model_file):
    model = models.load(model_file)
    code, out, err = run("show m.json")
    assert (code, err) == (0, "") and str(model.guarantee) in out and "Label: outcome" in out
    for name, weight in zip(model.feature_names, model.coef[0], strict=True):
        assert [name, f"{weight:.4g}"] in [line.rsplit(maxsplit=1) for line in out.splitlines()]
    sentence = out.strip().splitlines()[-1]
    assert "fitted to 900 records with dptoolkit" in sentence and "(8, 1e-05)-differentially private" in sentence
    assert "replace-one" in sentence and "Assumptions: n = 900" in sentence
    record = json.loads(run("show m.json --json")[1])
    assert record["weights"] == {name: {"well": weight} for name, weight in
                                 sorted(zip(model.feature_names, model.coef[0].tolist(), strict=True),
                                        key=lambda pair: -abs(pair[1])) if weight}  # fmt: skip
    assert record["methods"] == sentence and record["label"] == "outcome" and record["classes"] == ["ill", "well"]
    assert "1 smaller weights" in run("show m.json --top 1")[1]
    refused(run("show m.json --top 0"), "--top 0: must be >= 1")
    refused(run("show t.csv"), "t.csv: must be a model")


def test_names_cannot_imitate_lines_of_the_summary(run, tmp_path):
    X = np.random.default_rng(0).standard_normal((400, 2))
    names, labels = ("a\nepsilon 0\x1b[2J", "b"), np.where(X[:, 0] > 0, "up\nx", "down")
    models.save(
        models.fit(X, labels, task="classification", classes=["up\nx", "down"], feature_names=names),
        tmp_path / "m.json",
    )
    out = run("show m.json")[1]
    assert "\x1b" not in out and "\nepsilon 0" not in out and "\nx" not in out and "a?epsilon 0?[2J" in out


def test_a_seeded_or_noiseless_model_is_not_called_private(run, model_file):
    for option, words in (("--seed 0", "must not be published"), ("--epsilon inf", "no guarantee")):
        assert run(f"fit t.csv {FIT} {option} --label outcome --classes ill well --out n.json")[0] == 0
        sentence = json.loads(run("show n.json --json")[1])["methods"]
        assert words in sentence and "differentially private for" not in sentence


def test_a_ledger_is_made_charged_and_shown(run, model_file, tmp_path):
    code, out, err = run("ledger new budget --epsilon 9 --delta 1e-5")
    assert (code, err) == (0, "") and "epsilon 9 at delta 1e-05" in out
    fit = f"fit t.csv {FIT} --label outcome --classes ill well --ledger budget --out n.json"
    assert run(fit)[0] == 0
    code, out, err = run("ledger show budget")
    assert (code, err) == (0, "") and "spent epsilon 8 of 9" in out and "Left: epsilon 1" in out
    assert max(map(len, out.splitlines())) <= 120
    record = json.loads(run("ledger show budget --json")[1])
    assert record["budget"] == {"epsilon": 9.0, "delta": 1e-5} and record["spent"] <= 8 and len(record["entries"]) == 1
    assert record["reserved"] == 0 and record["remaining"] == 9 - record["spent"]
    before = (tmp_path / "budget").read_bytes()
    refused(run("ledger new budget --epsilon 99 --delta 1e-5"), "FILE budget: must be a file that does not exist")
    refused(run(fit), "epsilon=", "after this release: must be <= 9")
    assert (tmp_path / "budget").read_bytes() == before


@pytest.mark.parametrize(("line", "words"), [
    ("ledger new b", "--epsilon: must be given"), ("ledger new b --epsilon 1", "--delta: must be given"),
    ("ledger new b --epsilon 0 --delta 1e-5", "--epsilon 0.0: must be > 0"), ("ledger make b", "WHAT make"),
    ("ledger new b --epsilon 1 --delta 2", "--delta 2.0"), ("ledger new no/b --epsilon 1 --delta 1e-5", "folder"),
    ("ledger show b", "FILE b: must be a file"), ("ledger show b --epsilon 3", "--epsilon 3.0: must be left out"),
    ("ledger show t.svm", "FILE t.svm"),
])  # fmt: skip
def test_bad_ledgers_are_refused_and_not_made(run, tmp_path, line, words):
    (tmp_path / "t.svm").write_text("1 1:1\n")
    refused(run(line), words)
    assert [path.name for path in tmp_path.iterdir()] == ["t.svm"]


# --- the shell agrees with itself -----------------------------------------------------------------------------


def test_a_plan_for_a_task_is_that_of_the_fit(run, model_file):
    code, out, _ = run("plan --task classification --n 900 --d 2 --epsilon 8 --classes ill well --json")
    assert code == 0
    record = json.loads(out)
    assert record.pop("guarantee")["epsilon"]["1e-05"] <= 8
    assert record == json.loads(model_file.read_text())["plan"]
    # Several classes, one fit each.
    several = "plan --task classification --solver dp-ight --row-norm 1 --n 900 --d 2 --epsilon 8 --classes a b c"
    assert json.loads(run(f"{several} --json")[1])["count"] == 3
    refused(run("plan dp_ight --solver dp-ight --task classification --n 9 --d 2 --epsilon 1"), "--solver")
    refused(run("plan --task regression --n 9 --d 2 --epsilon 1 --classes a b"), "--classes a b: must be left out")


@pytest.mark.parametrize("how", ["dp_ight", "--solver dp-ight", "--solver=dp_ight"])
def test_plan_takes_the_solver_either_way_and_has_a_default_delta(run, how):
    options = "--n 900 --d 20 --loss logistic --sparsity 5 --steps 4 --row-norm 1 --epsilon 2"
    code, out, _ = run(f"plan {how} {options}")
    assert code == 0 and out == run(f"plan {options} {how} --delta 1e-5")[1]


def test_what_data_lists_is_what_fit_takes(run):
    sets = json.loads(run("data list --json")[1])["sets"]
    assert {entry["task"] for entry in sets} == {"classification", "regression"}
    classes = {entry["name"]: entry["classes"] for entry in sets}
    assert (classes["news20"], classes["covtype.binary"], classes["digits"], classes["bodyfat"]) == (20, 2, 10, None)
    out = run("data describe a9a")[1]
    assert "fit: dptoolkit fit FILE --task classification --classes -1 1 --n-features 123 --epsilon E --out" in out
    assert json.loads(run("data describe mnist --json")[1])["fit"] is None


def test_audit_refuses_a_file_before_it_loads_anything(run, model_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "dptoolkit.audit", None)
    for name in ("m.json", "t.csv", "nothing.json"):
        refused(run(f"audit {name} --epsilon 1"), f"SOLVER {name}: must be the name of a solver", "dptoolkit show")


def test_demo_names_the_extra_that_it_needs(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused(run("demo"), "dptoolkit[demo]")


def test_every_command_has_help_and_json(run, capsys):
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        assert "--json" in capsys.readouterr().out
    names = "account plan fit predict evaluate show tune audit check data federated ledger demo completion"
    assert sorted(names.split()) == list(cli.COMMANDS)


# --- what a new user types -----------------------------------------------------------------------------------


def test_messages_name_what_can_be_typed(run, clinic):
    """A repair names a flag of this command, or a setting as --grid takes it."""
    fit = ["fit", "clinic.csv", "--epsilon", "8", *READ, "--out", "m.json"]
    (clinic / "comma.csv").write_text('a,b,y\n"1,5",2,0\n"2,5",3,1\n')
    decimal = run(f"fit comma.csv {FIT} --decimal , --out m.json")
    refused(decimal, "--decimal ,: must be different from the separator", "Give --separator if")
    refused(run(fit, "--task", "classification", "--categories", "sex=f"), "--categories sex=f", "two values or more")
    numbers = "fit comma.csv --task regression --epsilon 8 --row-norm 1 --label-bound 1 --drop a --out m.json"
    refused(run(f"{numbers} --classes no yes"), "--classes no yes: must be left out")
    refused(run("plan --task regression --n 9 --d 2 --epsilon 1 --classes 0 1 2"), "--classes 0 1 2: must be left out")
    ight = ["--solver", "dp-ight", "--row-norm", "200", "--task", "classification", "--out", "m.json"]
    tune = ["tune", *fit[1:-2], *ight]
    refused(run([*tune, "--grid", "stepsize=1,2"]), "--grid stepsize=1,2: must be setting=value", "'step_size'")
    refused(run([*tune, "--candidate", "stepsize=1"]), "--candidate stepsize=1: must be setting=value", "'step_size'")
    refused(run("ledger show gone.ledger"), "No such file or directory.")
    assert "Errno" not in run("ledger show gone.ledger")[2]


def test_a_wider_file_is_compared_with_the_model(run, tmp_path):
    """predict has no --n-features: the message must not recommend it."""
    (tmp_path / "two.svm").write_text("1 1:1 2:1\n-1 1:-1\n" * 20)
    (tmp_path / "wide.svm").write_text("1 1:1 7:1\n")
    assert run(f"fit two.svm {FIT} --classes -1 1 --n-features 2 --out m.json")[0] == 0
    result = run("predict m.json wide.svm")
    refused(result, "from 1 to 2", "2 is the public number of columns")
    assert "n_features" not in result[2]


def test_warnings_speak_of_the_file(run, clinic):
    code, _, err = run(["fit", "clinic.csv", *FIT.split(), *READ, "--classes", "no", "yes", "--out", "m.json"])
    assert code == 0 and "warning: the columns of the file are on scales" in err and "X:" not in err
    (clinic / "two.svm").write_text("1 1:1 2:1\n-1 1:-1\n" * 20)
    code, _, err = run(f"fit two.svm {FIT} --classes -1 1 --out m.json")
    assert code == 0 and "--n-features was not given: the width of X is inferred from the data" in err


@pytest.mark.parametrize("command", ["fit", "tune"])
def test_a_refusal_of_the_ledger_is_one_line(run, clinic, command):
    """Without --classes too: nothing is published, so no class is announced."""
    assert run("ledger new small.ledger --epsilon 0.5 --delta 1e-5")[0] == 0
    before = (clinic / "small.ledger").read_bytes()
    words = [command, "clinic.csv", *FIT.split(), *READ, "--ledger", "small.ledger", "--out", "m.json"]
    refused(run([*words, *(["--grid", "sparsity=1,2"] if command == "tune" else [])]), "must be <= 0.5", "Spent so far")
    assert (clinic / "small.ledger").read_bytes() == before and not (clinic / "m.json").exists()


def test_text_with_zero_bytes_is_no_table(run, tmp_path):
    """Such as UTF-16 without a mark, which is valid UTF-8: its names and labels would be published with the zeros."""
    for content in (b"a,b,y\n1,2,0\n3,4,\x001\n", "a,b,y\n1,2,0\n".encode("utf-16-le")):
        (tmp_path / "zero.csv").write_bytes(content)
        refused(run(f"fit zero.csv {FIT} --out m.json"), "must be UTF-8 text", "Save the file as UTF-8")


def test_evaluate_says_which_column_it_compares_with(run, tmp_path):
    """A model that does not know its label takes the only column that is left, and says so; never a feature."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    models.save(
        models.fit(X, X[:, 0], task="regression", row_norm=3.0, label_bound=3.0, feature_names=["a", "b"]),
        tmp_path / "m.json",
    )
    (tmp_path / "t.csv").write_text("b,other,a\n1,2,3\n2,1,4\n")
    code, out, err = run("evaluate m.json t.csv --json")
    assert code == 0 and json.loads(out)["records"] == 2
    assert err == "dptoolkit: note: the label is --label other (the only column that is not a feature of the model).\n"
    assert run("evaluate m.json t.csv --label other")[2] == ""
    for label in ("b", "1"):
        refused(run(f"evaluate m.json t.csv --label {label}"), f"--label {label}: must be another column than the fea")


def test_labels_of_libsvm_text_are_not_chosen_by_a_flag(run, tmp_path):
    (tmp_path / "numbers.svm").write_text("1.5 1:0.5\n2.5 1:1\n")
    result = run(f"fit numbers.svm {FIT} --n-features 1 --out m.json")
    refused(result, "the labels: must hold text or integers", "Use --task regression.")
    assert "--label," not in result[2]
