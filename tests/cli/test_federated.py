"""``dptoolkit federated run``: one file for every client, one model, and one clear line for what is wrong."""

from __future__ import annotations

import json
import shlex
from unittest import mock

import numpy as np
import pytest

from dptoolkit import cli, federated
from dptoolkit.accounting import Ledger
from dptoolkit.cli import output
from dptoolkit.federated import ClientFolder, Request, Terms
from dptoolkit.federated.fit import FederatedResult

OWN = (
    "--loss logistic --label-values -1 1 --sparsity 2 --rounds 2 --local-steps 2 --step-size 1 --grad-norm 1 "
    "--epsilon 4 --delta 1e-4"
)
RUN = f"federated run a.svm b.svm --n-features 4 {OWN} --rate 0.5"


def write(path, n, seed, labels=(-1, 1), d=4):
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, d)), rng.choice(labels, n)
    with path.open("w") as file:
        for label, row in zip(y, X, strict=True):
            print(label, *(f"{j + 1}:{x:.6f}" for j, x in enumerate(row)), file=file)
    return np.round(X, 6), y


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "DELAY", 1e6)
    write(tmp_path / "a.svm", 20, 0), write(tmp_path / "b.svm", 8, 1)

    def _run(line):
        code = cli.main(shlex.split(line))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return _run


def test_the_model_and_every_clients_guarantee_are_written(run, tmp_path):
    code, out, err = run(f"{RUN} --seed 3 --json --out m.json")
    record = json.loads(out)
    assert (code, err) == (0, "") and json.loads((tmp_path / "m.json").read_text()).items() <= record.items()
    clients = [write(tmp_path / "x", n, seed) for n, seed in ((20, 0), (8, 1))]
    same = federated.dp_fed_sgd_ht(
        clients, loss="logistic", label_values=(-1, 1), sparsity=2, rounds=2, local_steps=2, step_size=1.0,
        grad_norm=1.0, epsilon=4.0, delta=1e-4, rate=0.5, rng=3,
    )  # fmt: skip
    places = np.flatnonzero(same.coef)
    assert record["coef"] == {"shape": [4], "places": places.tolist(), "values": same.coef[places].tolist()}
    assert len(record["guarantees"]) == 2 and record["plan"]["sizes"] == [20, 8]
    assert record["guarantee"]["epsilon"]["0.0001"] == pytest.approx(4.0, rel=1e-3)


def test_a_file_is_of_one_client(run, tmp_path):
    code, _, err = run(f"{RUN.replace('b.svm', './a.svm')} --out m.json")
    assert code == 2 and "DATA='./a.svm': must be given once. A record of two clients has both of" in err
    assert not (tmp_path / "m.json").exists()


def test_text_lists_the_clients(run):
    code, out, _ = run(f"{RUN} --out m.json")
    assert code == 0 and "epsilon at 0.0001" in out and out.endswith("The model is in m.json\n")


def test_a_plan_fits_nothing(run, tmp_path):
    code, out, _ = run(f"federated run a.svm b.svm --n-features 4 {OWN} --solver dp-fed-gd-ht --plan")
    assert code == 0 and "Plan for dp_fed_gd_ht: 2 clients" in out
    assert {path.name for path in tmp_path.iterdir()} == {"a.svm", "b.svm"}


def test_all_ledgers_are_charged_or_none(run, tmp_path):
    for name, epsilon in (("a", 9), ("b", 9), ("poor", 1)):
        run(f"ledger new {name}.ledger --epsilon {epsilon} --delta 1e-3")
    code, _, err = run(f"{RUN} --ledgers a.ledger poor.ledger --out m.json")
    assert code == 2 and err.count("\n") == 1 and "poor.ledger" in err and not (tmp_path / "m.json").exists()
    assert not Ledger.open(tmp_path / "a.ledger").entries
    assert run(f"{RUN} --ledgers a.ledger b.ledger --out m.json")[0] == 0
    assert all(len(Ledger.open(tmp_path / f"{name}.ledger").entries) == 1 for name in "ab")


@pytest.mark.parametrize(("line", "words"), [
    (f"{RUN}", "--out: must be given"), (f"{RUN} --out a.svm", "another file"),
    (RUN.replace(" run ", " walk ") + " --out m.json", "WHAT walk: must be"),
    (f"{RUN} --solver dp-ight --out m.json", "--solver dp-ight: must be"),
    (f"{RUN} --out m.json --rounds 0", "--rounds 0"), ("federated run a.svm", "required: --epsilon"),
    (f"{RUN} --out m.json --weights 1", "--weights"), (f"{RUN} --ledgers none.ledger x --out m.json", "ledger new"),
    (f"{RUN} --seed 1 --ledgers a.svm b.svm --out m.json", "--seed"), (f"{RUN} --out no/m.json", "--out"),
    (RUN.replace("-1 1", "0 1") + " --out m.json", "a.svm: y"),
    (RUN.replace("b.svm", "c.svm") + " --out m.json", "c.svm"),
    (RUN.replace("features 4", "features 2") + " --out m.json", "a.svm"),
])  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(run, tmp_path, line, words):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1 and words in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


# --- several machines ----------------------------------------------------------------------------------

AGREE = (
    f"federated agree --sizes 20 8 --n-features 4 {OWN.replace(' --label-values -1 1', '')} --rate 0.5 --out terms.json"
)
JOIN = "federated join terms.json b.svm --client 1 --folder b --label-values -1 1"


def test_the_terms_hold_no_data_and_a_client_makes_its_folder_of_them(run, tmp_path):
    code, out, err = run(AGREE)
    terms = Terms.read(tmp_path / "terms.json")
    assert (code, err) == (0, "") and f"The terms of run {terms.run} are in terms.json" in out
    assert terms.plan.sizes == (20, 8) and terms.plan.settings.loss == "logistic"
    assert run("ledger new b.ledger --epsilon 9 --delta 1e-3")[0] == 0
    code, out, _ = run(f"{JOIN} --ledger b.ledger")
    assert code == 0 and "Nothing is charged before its first round" in out
    folder = ClientFolder(tmp_path / "b")
    assert folder.number == 1 and folder.plan == terms.plan.clients[1]
    assert not Ledger.open(tmp_path / "b.ledger").entries
    folder.answer(Request(terms.run, terms.fingerprint, 1, np.zeros(0, dtype=int), np.zeros(0)))
    assert len(Ledger.open(tmp_path / "b.ledger").entries) == 1


@pytest.mark.parametrize(("line", "words"), [
    (AGREE.replace("--sizes 20 8 ", ""), "required: --sizes"),
    (AGREE.replace("--sizes 20 8", "--sizes 20 0"), "sizes[1]"),
    (AGREE.replace("--out terms.json", "--out no/terms.json"), "--out"), (f"{AGREE} --epsilon inf", "--epsilon inf"),
    (JOIN.replace("terms.json", "a.svm"), "a.svm: must be the terms of a federation"),
    (JOIN.replace("terms.json", "none.json"), "none.json"), (JOIN.replace("--client 1", "--client 2"), "--client 2"),
    (JOIN.replace("--client 1", "--client 0"), "b.svm: X='8 records': must be the 20 records of client 0"),
    (JOIN.replace(" --label-values -1 1", ""), "b.svm: y"), (f"{JOIN} --ledger none", "ledger new none"),
    (f"{JOIN} --seed 1 --ledger a.svm", "--seed 1: must be left out with --ledger"),
    (JOIN.replace("--folder b", "--folder ."), "--folder ."),
    (JOIN.replace("b.svm", "wide.svm"), "wide.svm"), ("federated server none.json --out m.json", "none.json"),
    ("federated client nowhere --server 127.0.0.1:1", "nowhere"), ("federated client b", "required: --server"),
])  # fmt: skip
def test_bad_input_of_several_machines_is_one_line_and_writes_nothing(run, tmp_path, line, words):
    write(tmp_path / "wide.svm", 8, 1, d=5)
    if "agree" not in line:
        run(AGREE)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with mock.patch("dptoolkit.federated.flower.processes.needs_flower"):
        code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1 and words in err, err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_machines_need_certificates(run):
    run(AGREE), run(JOIN)
    with mock.patch("dptoolkit.federated.flower.processes.needs_flower"):
        for line in ("server terms.json --host 0.0.0.0 --port 9 --out m.json", "client b --server 10.0.0.1:9092"):
            code, _, err = run(f"federated {line}")
            assert code == 2 and "Other machines need certificates" in err
        code, _, err = run("federated server terms.json --out m.json --certificates x y z")
        assert code == 2 and "--certificates x" in err


@pytest.mark.parametrize("again", [False, True])
def test_a_client_may_take_part_again(again, run):
    run(AGREE), run(JOIN)
    with mock.patch("dptoolkit.federated.flower.attend", return_value=2) as attend:
        code, out, _ = run(f"federated client b --server 127.0.0.1:9{' --again' if again else ''}")
    assert code == 0 and "2 rounds were answered" in out and attend.call_args.kwargs["again"] is again


def test_the_server_writes_its_model_before_it_says_that_the_run_is_over(run, tmp_path):
    run(AGREE)
    plan = Terms.read(tmp_path / "terms.json").plan
    result = FederatedResult(np.array([0.0, 1.5, 0.0, 0.0]), 0.0, plan.guarantees, plan.guarantee, plan, {"rounds": 2})

    def serve(terms, *, keep, **how):
        keep(result)
        assert json.loads((tmp_path / "m.json").read_text())["coef"]["values"] == [1.5]
        return result

    with mock.patch("dptoolkit.federated.flower.serve", serve):
        code, out, _ = run("federated server terms.json --out m.json")
    assert code == 0 and out.endswith("The model is in m.json\n")


def test_without_flower_the_error_says_how_to_install_it(run):
    run(AGREE), run(JOIN)
    with mock.patch("importlib.util.find_spec", lambda name: None):
        for line in ("server terms.json --out m.json", "client b --server 127.0.0.1:9092"):
            code, _, err = run(f"federated {line}")
            assert code == 2 and "pip install 'dptoolkit[flower]'" in err
