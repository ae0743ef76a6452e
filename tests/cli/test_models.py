"""Models through the shell: fit, predict, evaluate, data, completion; and bad input at every door."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from dptoolkit import cli, models
from dptoolkit.accounting import Ledger
from dptoolkit.cli import output
from dptoolkit.datasets import registry
from dptoolkit.datasets.catalogue import FILES, Source, Split
from tests import compiled

FIT = "--task classification --epsilon 2 --delta 1e-6 --classes -1 1 --n-features 6 --row-norm 1"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line given as one string, in a folder of its own; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "DELAY", 1e6)

    def _run(line: str) -> tuple[int, str, str]:
        code = cli.main(line.split())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return _run


@pytest.fixture
def data(tmp_path):
    """A LIBSVM file of two classes that are easy to tell apart, and one of three."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 6))
    y = np.where(X[:, 0] > 0, 1, -1)
    pairs = [" ".join(f"{j + 1}:{value:.4f}" for j, value in enumerate(row)) for row in X]
    (tmp_path / "two.svm").write_text("".join(f"{a} {b}\n" for a, b in zip(y, pairs, strict=True)))
    three = np.digitize(X[:, 0], [-0.4, 0.4])
    (tmp_path / "three.svm").write_text("".join(f"{a} {b}\n" for a, b in zip(three, pairs, strict=True)))
    head = ",".join([f"f{j}" for j in range(6)] + ["y"])
    rows = [",".join(f"{v:.4f}" for v in (*row, np.clip(row[0], -1, 1))) for row in X]
    (tmp_path / "numbers.csv").write_text("\n".join([head, *rows]) + "\n")
    return tmp_path


# --- the way through -----------------------------------------------------------------------------------------


def test_labels_of_a_file_do_not_command_the_terminal(run, data):
    """One line per record, whatever the classes are called."""
    X = np.random.default_rng(0).standard_normal((50, 6))
    odd = "yes\x1b[2J\nno"
    y = np.where(X[:, 0] > 0, odd, "no")
    model = models.fit(X, y, task="classification", classes=["no", odd], epsilon=8.0, rng=0)
    models.save(model, data / "m.json")
    code, out, _ = run("predict m.json two.svm")
    assert code == 0 and len(out.splitlines()) == 3000 and "\x1b" not in out and "yes?[2J?no" in out
    _, out, err = run("predict m.json two.svm --probabilities")
    assert "\x1b" not in err and "yes?[2J?no" in err
    code, out, err = run("evaluate m.json two.svm")
    assert code == 2 and "\x1b" not in err
    assert odd in json.loads(run("predict m.json two.svm --json")[1])["classes"]


def test_a_model_is_fitted_evaluated_and_used(run, data):
    code, out, err = run(f"fit two.svm {FIT} --out model.json")
    assert (code, err) == (0, "")
    assert "Guarantee, adjacency: replace-one" in out and out.endswith("The model is in model.json\n")
    model = models.load(data / "model.json")
    assert 1.99 < model.guarantee.epsilon(1e-6) <= 2.0
    code, out, err = run("evaluate model.json two.svm --json")
    scores = json.loads(out)
    assert (code, err, scores["records"]) == (0, "", 3000)
    assert scores["accuracy"] > 0.9 > scores["largest_class"]
    code, out, _ = run("predict model.json two.svm")
    assert code == 0 and set(out.split()) == {"-1", "1"} and len(out.split()) == 3000
    code, out, _ = run("predict model.json two.svm --probabilities --out shares.txt")
    assert (code, out) == (0, "")
    shares = np.loadtxt(data / "shares.txt")
    assert shares.shape == (3000, 2) and np.allclose(shares.sum(axis=1), 1)


def test_three_classes_and_another_solver(run, data):
    line = "fit three.svm --task classification --epsilon 4 --solver dp-ight --sparsity 2 --row-norm 2"
    code, out, err = run(line + " --n-features 6 --classes 0 1 2 --out m.json --json")
    record = json.loads(out)
    assert (code, err) == (0, "")
    assert record["classes"] == [0, 1, 2] and record["solver"] == "dp_ight" and record["d"] == 6
    assert record["guarantee"]["epsilon"]["1e-05"] <= 4
    assert json.loads(run("evaluate m.json three.svm --json")[1])["accuracy"] > 0.5


def test_numbers_from_a_csv_file_with_names(run, data):
    line = "fit numbers.csv --task regression --epsilon 4 --row-norm 3 --label-bound 1 --label y --out m.json"
    code, _, err = run(line)
    assert (code, err) == (0, "")
    assert models.load("m.json").feature_names == tuple(f"f{j}" for j in range(6))
    assert json.loads(run("evaluate m.json numbers.csv --json")[1])["r2"] > 0.3
    (data / "other.csv").write_text((data / "numbers.csv").read_text().replace("f3", "g3"))
    code, out, err = run("evaluate m.json other.csv")
    assert (code, out) == (2, "") and "It has no column 'f3'" in err


def test_a_seed_repeats_the_file_and_no_seed_does_not(run, data):
    for name, seed in (("a", "--seed 1"), ("b", "--seed 1"), ("c", ""), ("d", "")):
        assert run(f"fit two.svm {FIT} {seed} --out {name}.json")[0] == 0
    a, b, c, d = ((data / f"{name}.json").read_text() for name in "abcd")
    assert a == b and c != d
    assert "reproducible from its seed" in a and "reproducible from its seed" not in c


def test_a_ledger_pays_or_refuses(run, data):
    Ledger.open(data / "budget", 2.5, 1e-6)
    assert run(f"fit two.svm {FIT} --ledger budget --out a.json")[0] == 0
    code, out, err = run(f"fit two.svm {FIT} --ledger budget --out b.json")
    assert (code, out) == (2, "") and "budget" in err and not (data / "b.json").exists()
    code, _, err = run(f"fit two.svm {FIT} --ledger nothing --out b.json")
    assert code == 2 and "dptoolkit ledger new nothing" in err and not (data / "nothing").exists()


def test_a_width_that_was_not_given_is_warned_of_and_noted(run, data):
    code, out, err = run("fit two.svm --task classification --epsilon 2 --out m.json")
    assert code == 0
    assert "--n-features was not given" in err
    assert "the number of columns was read from the data" in out and "the set of classes was read" in out


def test_help_of_a_solver_lists_its_options(capsys):
    with pytest.raises(SystemExit):
        cli.main(["fit", "--solver", "dp-frank-wolfe", "--help"])
    text = capsys.readouterr().out
    assert "--l1-radius" in text and "examples:" in text and "--quiet" in text


# --- bad input -----------------------------------------------------------------------------------------------

FILES_AND_WORDS = {
    "1 1:0.5\n1 1:abc\n-1 2:1\n": "line 2", "1 1:1 2\n": "line 1", "1 1:1 1:2\n-1 1:1\n": "line 1",
    "1 999999999999:1\n": "line 1", "1 0:1\n": "line 1", "1 7:1\n-1 1:1\n": "line 1", "1 1:nan\n": "line 1",
    "": "two.svm", "# nothing\n\n": "two.svm", "1 1:1\n3 1:2\n": "It holds others", "1 1:1\n0 2:1\n": "It holds others",
    "\x00\x01\x02": "two.svm",
}  # fmt: skip


@pytest.mark.parametrize(("text", "word"), FILES_AND_WORDS.items(), ids=lambda value: repr(value)[:25])
def test_a_bad_file_is_one_line_and_nothing_is_written(run, tmp_path, text, word):
    (tmp_path / "two.svm").write_text(text)
    code, out, err = run(f"fit two.svm {FIT} --out model.json")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and word in err
    assert "abc" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["two.svm"]


@pytest.mark.parametrize(("line", "word"), [
    (f"fit two.svm {FIT} --out nowhere/m.json", "--out nowhere/m.json:"), (f"fit two.svm {FIT} --out .", "--out .:"),
    (f"fit missing.svm {FIT} --out m.json", "missing.svm"), (f"fit two.svm {FIT}", "--out"),
    (f"fit two.svm {FIT} --max-bytes 1000 --out m.json", "1,000 bytes"),
    ("fit two.svm --task ranking --epsilon 2 --out m.json", "--task ranking:"),
    ("fit two.svm --task classification --epsilon 0 --n-features 6 --out m.json", "> 0. Use --epsilon inf"),
    ("fit two.svm --task classification --epsilon nan --n-features 6 --out m.json", "--epsilon nan"),
    ("fit two.svm --task regression --epsilon 2 --row-norm 1 --n-features 6 --out m.json", "--label-bound: must be"),
    (f"fit two.svm {FIT} --solver dp-ight --sparsity 99 --out m.json", "--sparsity 99"),
    (f"fit two.svm {FIT} --solver dp-svrg-ht --out m.json", "must be given for dp_svrg_ht"),
    (f"fit two.svm {FIT} --solver dp-igth --out m.json", "--solver dp_igth:"),
    (f"fit two.svm {FIT} --sparsty 3 --out m.json", "Did you mean --sparsity"),
    (f"fit two.svm {FIT} --seed -1 --out m.json", "--seed -1"),
    (f"fit two.svm {FIT} --seed 1 --ledger two.svm --out m.json", "--seed 1: must be left out with --ledger"),
    (f"fit two.svm {FIT} --solver dp-ight --label-bound 3 --out m.json", "--label-bound 3.0: must be left out for"),
    ("fit two.svm --task classification --epsilon 1 --classes 1 --out m.json", "--classes 1: must be at least two"),
    ("predict two.svm two.svm", "a model as dptoolkit writes it"), ("evaluate nothing.json two.svm", "nothing.json"),
])  # fmt: skip
def test_bad_options_are_one_line_and_nothing_is_written(run, data, line, word):
    before = sorted(data.iterdir())
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and word in err
    assert sorted(data.iterdir()) == before


def test_a_small_file_that_unpacks_to_much_is_refused(run, tmp_path):
    with gzip.open(tmp_path / "bomb.svm.gz", "wb") as file:
        for _ in range(40):
            file.write(b" " * 2**20)
    code, out, err = run(f"fit bomb.svm.gz {FIT} --max-bytes 1000000 --out m.json")
    assert (code, out) == (2, "") and "at most 1,000,000 bytes when uncompressed" in err


def test_other_columns_and_labels_at_test_time_are_refused(run, data):
    assert run(f"fit two.svm {FIT} --out m.json")[0] == 0
    (data / "wide.svm").write_text("1 1:1\n1 9:1\n")
    (data / "label.svm").write_text("1 1:1\n5 2:1\n")
    for command in ("predict", "evaluate"):
        code, out, err = run(f"{command} m.json wide.svm")
        assert (code, out) == (2, "") and "line 2" in err
    code, out, err = run("evaluate m.json label.svm")
    assert (code, out) == (2, "") and "labels: must hold only the classes of the model: -1, 1." in err
    code, out, err = run("predict m.json wide.svm --out p.txt")
    assert code == 2 and not (data / "p.txt").exists()


def test_an_old_model_survives_a_fit_that_fails(run, data):
    (data / "m.json").write_text("old")
    (data / "two.svm").write_text("1 1:x\n")
    assert run(f"fit two.svm {FIT} --out m.json")[0] == 2
    assert (data / "m.json").read_text() == "old"


# --- data ----------------------------------------------------------------------------------------------------


def test_sets_are_listed_in_rows_that_fit_and_described(run):
    code, out, _ = run("data list")
    assert code == 0 and max(map(len, out.splitlines())) <= 120
    assert [line.split()[0] for line in out.splitlines()[2:]] == registry.names()
    code, out, _ = run("data describe a9a")
    assert code == 0 and "columns: 123" in out and "https://" in out
    for line, word in (("data describe a8a", "NAME a8a:"), ("data get", "NAME: must"), ("data fetch", "WHAT fetch:"),
                       ("data get a9a --split other", "--split other:"),
                       ("data get digits", "--split train:")):  # fmt: skip
        code, out, err = run(line)
        assert (code, out) == (2, "") and word in err


def test_a_set_is_found_in_the_folder(run, tmp_path, monkeypatch):
    monkeypatch.delenv(registry.DATA_VARIABLE, raising=False)
    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a.gz").write_bytes(b"")
    code, out, _ = run(f"data get a9a --data-home {tmp_path}")
    assert (code, out.strip()) == (0, str(tmp_path / "a9a" / "a9a.gz"))
    code, _, err = run(f"data get w8a --data-home {tmp_path}")
    assert code == 2 and "w8a/w8a" in err


def test_a_set_is_fetched_once_and_only_with_the_known_content(run, tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")
    site = tmp_path / "site"
    site.mkdir()
    (site / "a9a").write_bytes(b"1 1:1\n-1 3:1\n")
    digest = hashlib.sha256(b"1 1:1\n-1 3:1\n").hexdigest()
    monkeypatch.delenv(registry.DATA_VARIABLE, raising=False)
    monkeypatch.setenv("DPTOOLKIT_CACHE", str(tmp_path / "cache"))
    calls = []

    def retrieve(url, known_hash, fname, path):
        calls.append(url)
        path.mkdir(parents=True, exist_ok=True)
        shutil.copy(site / "a9a", path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    part = Split(("a9a/a9a",), ("",), (Source("https://example.org/a9a", digest),))
    monkeypatch.setitem(FILES, "a9a", dataclasses.replace(FILES["a9a"], train=part))
    assert registry.load("a9a").y.tolist() == [1.0, 0.0]
    assert run("data get a9a")[1].strip() == str(tmp_path / "cache" / "a9a" / "a9a")
    assert calls == ["https://example.org/a9a"]
    # Another content is refused, and does not stay.
    (tmp_path / "cache" / "a9a" / "a9a").write_bytes(b"1 1:2\n")
    code, out, err = run("data get a9a")
    assert (code, out) == (2, "") and "so it was removed" in err
    assert not (tmp_path / "cache" / "a9a" / "a9a").exists()


# --- completion and progress ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "expected"), [
    ("dptoolkit fi", "fit"), ("dptoolkit fit --eps", "--epsilon"), ("dptoolkit evaluate --js", "--json"),
])  # fmt: skip
def test_a_shell_completes_commands_and_options(run, tmp_path, words, expected):
    script = tmp_path / "complete.sh"
    script.write_text(run("completion bash")[1])
    line = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _dptoolkit"
    done = subprocess.run(["bash", "-c", line + "; echo ${COMPREPLY[@]}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_scripts_for_other_shells(run):
    assert "bashcompinit" in run("completion zsh")[1]
    assert "-a fit" in run("completion fish")[1]
    assert run("completion tcsh")[0] == 2


class Screen:
    """A stderr that counts as a terminal or not."""

    def __init__(self, terminal):
        self.text, self.terminal = "", terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "log"])
def test_progress_is_shown_until_the_end(monkeypatch, terminal):
    screen, seen = Screen(terminal), threading.Event()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(output, "DELAY", 0.001)
    with output.shown("fit", silent=False):
        output.stage("reading")
        for _ in range(10_000):
            if "fit: reading, " in screen.text or seen.wait(0.001):
                break
    assert "dptoolkit: fit: reading, " in screen.text
    assert screen.text.endswith("\r\033[K" if terminal else " s\n")


def test_quiet_shows_nothing(monkeypatch):
    screen = Screen(False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(output, "DELAY", 0.0)
    with output.shown("fit", silent=True):
        pass
    assert screen.text == ""


# --- a newcomer ----------------------------------------------------------------------------------------------

SECOND = """
import sys
from dptoolkit import cli
code = cli.main(sys.argv[1:])
from numba.core.dispatcher import Dispatcher
import dptoolkit.kernels.threshold as kernels
misses = sum(sum(k.stats.cache_misses.values()) for k in vars(kernels).values() if isinstance(k, Dispatcher))
assert misses == 0, misses
sys.exit(code)
"""


def test_a_second_process_fits_without_compiling(run, data, root):
    command = f"fit two.svm {FIT} --solver dp-ight --sparsity 3 --out m.json --quiet".split()
    assert run(" ".join(command))[0] == 0
    compiled.hand_over()
    done = subprocess.run(
        [sys.executable, "-c", SECOND, *command], cwd=data, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("line", "name"), [
    (f"fit two.svm {FIT} --out two.svm", "DATA"),
    (f"fit two.svm {FIT} --ledger budget --out ./budget", "--ledger"),
    (f"tune two.svm {FIT} --grid sparsity=1,2 --out two.svm", "DATA"),
    ("predict model.json two.svm --out model.json", "MODEL"),
    ("predict model.json two.svm --out two.svm", "DATA"),
    ("audit os:getpid --epsilon 1 --pair two.svm --resume two.svm", "--pair"),
])  # fmt: skip
def test_a_command_does_not_overwrite_what_it_reads(run, data, line, name):
    """Above all not the ledger: what was spent would be forgotten."""
    for file in ("budget", "model.json"):
        (data / file).write_text("old")
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    code, out, err = run(line)
    assert (code, out) == (2, "") and f"must be another file than that of {name}" in err
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before
