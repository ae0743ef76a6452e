"""What a resumed run keeps: never a record of other data, and no less because a style sheet has changed."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paper_checks import store as stores
from paper_checks.__main__ import ROOT, main
from paper_checks.claims import selected
from paper_checks.files import available, mark
from paper_checks.run import Settings, Unit, compute
from paper_checks.shared import Shared
from paper_checks.store import PRESENTATION, Store

_FILES = ("rcv1_sub/rcv1_sub_train.binary.xz", "rcv1_sub/rcv1_sub_test.binary.xz")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of papers whose item IGHT-P4 needs rcv1_sub, and a folder for its files, still empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPTOOLKIT_DATA", raising=False)
    shutil.copytree(ROOT / "wang_gu_2019_ight", tmp_path / "wang_gu_2019_ight")
    path = tmp_path / "wang_gu_2019_ight" / "claims.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('id = "IGHT-P4"', 'id = "IGHT-P4"\ndata = ["rcv1_sub"]'), encoding="utf-8")
    (tmp_path / "data" / "rcv1_sub").mkdir(parents=True)
    return tmp_path


def _put(place, words, time=None):
    for name in _FILES:
        path = place / "data" / name
        path.write_text(words, encoding="utf-8")
        if time is not None:
            os.utime(path, ns=(time, time))


@pytest.fixture
def computed(monkeypatch):
    """The units that are computed, in order."""
    units = []
    monkeypatch.setattr("paper_checks.run.compute", lambda *given: (units.append(given[1].id), compute(*given))[1])
    return units


def _run(place, *more):
    assert main(["IGHT-P3", "IGHT-P4", "--resume", *more], place) == 0
    (record,) = (
        row for row in json.loads((place / "report/papers/report.json").read_text()) if row["item"] == "IGHT-P4"
    )
    return record["verdict"]


def test_a_record_without_data_is_computed_anew_when_they_have_arrived(place, computed):
    assert _run(place, "--data", "data") == "no data" and computed == ["IGHT-P3", "IGHT-P4"]
    # It is asked again each time, for nothing was computed.
    assert _run(place, "--data", "data") == "no data" and computed[2:] == ["IGHT-P4"]
    _put(place, "x")
    assert _run(place, "--data", "data") == "order kept" and computed[3:] == ["IGHT-P4"]
    assert _run(place, "--data", "data") == "order kept" and len(computed) == 4


def test_a_record_of_other_files_is_computed_anew_and_a_moved_folder_is_the_same(place, computed):
    _put(place, "x", time=10**18)
    _run(place, "--data", "data")
    shutil.copytree(place / "data", place / "moved")
    _run(place, "--data", "moved")
    assert computed == ["IGHT-P3", "IGHT-P4"]
    for words, time in (("xy", 10**18), ("xy", 2 * 10**18)):
        _put(place, words, time=time)
        computed.clear()
        _run(place, "--data", "data")
        # Items that need no data are kept.
        assert computed == ["IGHT-P4"]
    (place / "data" / _FILES[1]).unlink()
    assert mark(["rcv1_sub"], str(place / "data")) != mark(["rcv1_sub"], str(place / "moved"))


def test_data_named_by_the_environment_are_marked_too(place, monkeypatch):
    assert mark(["rcv1_sub"], None) == "rcv1_sub not here" and not available("rcv1_sub", None)
    _put(place, "x")
    monkeypatch.setenv("DPTOOLKIT_DATA", str(place / "data"))
    assert mark(["rcv1_sub"], None) == mark(["rcv1_sub"], str(place / "data")) and available("rcv1_sub", None)


def test_shared_runs_are_made_anew_for_other_files(place):
    def made():
        store = Store(place / "results", place, 0, str(place / "data"))
        calls = []
        shared = Shared(None, folder=place / "shared", fingerprint=store.fingerprint("wang_gu_2019_ight"),
                        with_data=lambda data: store.fingerprint("wang_gu_2019_ight", data))  # fmt: skip
        shared.part("with", lambda: (calls.append("with"), {})[1], ("rcv1_sub",))
        shared.part("without", lambda: (calls.append("without"), {})[1])
        return calls

    _put(place, "x", time=10**18)
    assert made() == ["with", "without"] and made() == []
    _put(place, "y", time=2 * 10**18)
    assert made() == ["with"]


def test_every_item_that_reads_data_names_them():
    import inspect

    for paper in selected(ROOT, []):
        for item in paper.items:
            if item.judged and "data_home" in inspect.signature(item.check).parameters:
                assert item.data, item.id


# --- code ------------------------------------------------------------------------------------------------------------


def _imports(path):
    """The modules of paper_checks that a file imports, by file name; those for type checks only do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = {inner.lineno for node in ast.walk(tree)
             if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) for inner in node.body}  # fmt: skip
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.lineno not in lines:
            assert node.module and not node.level, path
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {f"{name.split('.')[1]}.py" for name in names if name.startswith("paper_checks.")}


def test_nothing_that_computes_imports_what_only_shows():
    files = [path for path in ROOT.rglob("*.py") if not (path.parent == ROOT and path.name in PRESENTATION)]
    assert len(files) > 40
    for path in files:
        assert not _imports(path) & set(PRESENTATION), path
    # The guard sees such an import.
    assert {"pages.py", "report.py", "run.py"} <= _imports(ROOT / "__main__.py")
    assert all((ROOT / name).exists() for name in PRESENTATION)


def test_a_changed_style_sheet_keeps_records_and_changed_code_does_not(tmp_path, monkeypatch):
    shutil.copytree(ROOT, tmp_path / "paper_checks", ignore=shutil.ignore_patterns("*_*_*", "__pycache__"))
    monkeypatch.setattr(stores, "_HERE", tmp_path / "paper_checks")

    def fingerprint():
        return Store(tmp_path, ROOT, 0, None).fingerprint("wang_gu_2019_ight")

    first = fingerprint()
    for name in PRESENTATION:
        with (tmp_path / "paper_checks" / name).open("a", encoding="utf-8") as file:
            file.write("# another colour\n")
    assert fingerprint() == first
    with (tmp_path / "paper_checks" / "findings.py").open("a", encoding="utf-8") as file:
        file.write("# another rule\n")
    assert fingerprint() != first


def test_time_of_the_processor_is_kept_beside_that_of_the_clock(place):
    (paper,) = selected(ROOT, ["IGHT-P4"])
    _, spent = compute(paper, Unit(paper.name, "IGHT-P4"), Settings())
    assert spent.cpu >= 0 and spent.seconds > 0
    _run(place)
    kept = json.loads((place / "report/papers/results/wang_gu_2019_ight/IGHT-P3.json").read_text())
    assert kept["cpu_seconds"] >= 0 and kept["seconds"] > 0


# --- files that are not ours, a full disk, two runs at once -----------------------------------------------------------

_FOREIGN = ["", "{", "[]", "3", "null", '"x"', '{"fingerprint": 3}']


def _changed(text, remove=(), **other):
    content = json.loads(text) | other
    return json.dumps({key: value for key, value in content.items() if key not in remove})


def test_a_record_that_is_not_a_whole_file_of_this_unit_is_computed_anew(place, computed):
    _run(place)
    path = place / "report/papers/results/wang_gu_2019_ight/IGHT-P3.json"
    whole = path.read_text()
    texts = [*_FOREIGN, _changed(whole, ["record"]), _changed(whole, ["seconds"]), _changed(whole, record={}),
             _changed(whole, record=[]), _changed(whole, seconds=None),
             # Of the same run, but of another item.
             _changed(whole, unit="wang_gu_2019_ight IGHT-P4")]  # fmt: skip
    for text in texts:
        path.write_text(text)
        computed.clear()
        _run(place)
        assert "IGHT-P3" in computed, text
        assert json.loads(path.read_text())["record"] == json.loads(whole)["record"]
    path.write_bytes(bytes(range(256)))
    computed.clear()
    _run(place)
    assert "IGHT-P3" in computed


def test_a_shared_part_that_is_not_a_whole_file_of_this_part_is_made_anew(tmp_path):
    def value(number):
        return Shared(None, folder=tmp_path, fingerprint="f").part("one", lambda: {"value": number})["value"]

    assert value(1) == value(2) == 1
    (path,) = tmp_path.glob("*.json")
    whole = path.read_text()
    texts = [*_FOREIGN, _changed(whole, ["part"]), _changed(whole, part=3), _changed(whole, name="o ne")]
    for number, text in enumerate(texts, 10):
        path.write_text(text)
        assert value(number) == number and value(0) == number, text


def test_a_full_disk_is_one_line_leaves_no_half_of_a_file_and_is_no_changed_claim(place, capsys, monkeypatch):
    real = Path.write_text

    def full(path, text, **more):
        real(path, text[:10], **more)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = place / "report/papers"
    for name in ("IGHT-P4.json", "report.html"):
        monkeypatch.setattr(Path, "write_text", lambda path, text, name=name, **more: (
            full if name in path.name else real)(path, text, **more))  # fmt: skip
        assert main(["IGHT-P3", "IGHT-P4", "--data", "data"], place) == 2
        assert "--out report/papers: No space left on device. Make room and go on with --resume." in (
            capsys.readouterr().err
        )
        assert not list(out.rglob("*.new"))
    monkeypatch.setattr(Path, "write_text", real)
    assert main(["IGHT-P3", "IGHT-P4", "--data", "data", "--resume"], place) == 0


def test_a_second_run_into_the_same_folder_is_refused_while_the_first_lasts(place, capsys):
    out = place / "report/papers"
    out.mkdir(parents=True)
    # A lock belongs to a process, so another one must hold it.
    hold = f"""
from pathlib import Path
from paper_checks.files import alone
with alone(Path({str(out)!r})):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT.parent
    ) as other:
        assert other.stdout.readline() == "held\n"
        assert main(["IGHT-P3"], place) == 2
        assert "another run writes there; wait for it, or name another folder" in capsys.readouterr().err
        other.communicate("\n")
    assert main(["IGHT-P3"], place) == 0


def test_a_reader_who_leaves_does_not_change_the_exit_code(tmp_path):
    command = [sys.executable, "-m", "paper_checks", "IGHT-P3", "--out", str(tmp_path)]
    read, write = os.pipe()
    os.close(read)
    found = subprocess.run(command, cwd=ROOT.parent, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert found.returncode == 0 and "Traceback" not in found.stderr and (tmp_path / "report.html").exists()


# --- a killed run ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.05, 0.2, 0.6])
def test_a_run_killed_at_any_moment_and_resumed_gives_the_same_records(tmp_path, wait):
    names = ["KT-P4", "KT-4.5a", "KT-4.3m", "KT-T2s", "IGHT-5.4a", "IGHT-P5", "LASSO-P7", "LASSO-B43"]

    def command(folder, *more):
        return [sys.executable, "-m", "paper_checks", *names, "--out", str(tmp_path / folder), *more]

    subprocess.run(command("whole"), cwd=ROOT.parent, check=True, capture_output=True)
    with subprocess.Popen(
        command("cut"), cwd=ROOT.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        # From the first record on, at a moment that nothing in the run is tied to.
        while child.poll() is None and not list((tmp_path / "cut").glob("results/*/*.json")):
            pass
        try:
            child.wait(wait)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
    subprocess.run(command("cut", "--resume"), cwd=ROOT.parent, check=True, capture_output=True)
    whole, cut = ((tmp_path / name / "report.json").read_text() for name in ("whole", "cut"))
    assert whole == cut
