"""The ledger under threads, processes, crashes and damaged files: the budget is never overrun, nothing is lost."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dptoolkit import solvers
from dptoolkit.accounting import (
    ApproxDp,
    Composed,
    Gaussian,
    Ledger,
    PureDp,
    Repeated,
    Subsampled,
    ZCdp,
    account,
)
from dptoolkit.accounting.events import from_dict
from dptoolkit.accounting.ledger import journal as journal_module
from dptoolkit.accounting.ledger.book import Entry
from dptoolkit.errors import BudgetExceeded, DpToolkitError, InvalidValue

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
locks = pytest.mark.skipif(journal_module.fcntl is None, reason="needs file locks")


ONE = PureDp(1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "spent.jsonl"


def tries(ledger, times, event=ONE):
    """How many of so many spends were granted."""
    granted = 0
    for _ in range(times):
        try:
            ledger.spend(event)
            granted += 1
        except BudgetExceeded:
            pass
    return granted


# --- threads ------------------------------------------------------------------------------------------


def in_threads(work, count=8):
    """What every thread returned; all start together, and change hands as often as the interpreter allows."""
    start, interval = threading.Barrier(count), sys.getswitchinterval()

    def run(number):
        start.wait()
        return work(number)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))
    finally:
        sys.setswitchinterval(interval)


# Everybody has asked before anybody records.
START = threading.Barrier(8)


class Unlocked(Ledger):
    """The planted fault: check in one turn and record in another, with room for others in between."""

    def spend(self, event, *_):
        self.check(event)
        START.wait(60)
        # Recorded in turn: without the lock a record may be lost, and the overrun with it.
        with self._turn(to_spend=True) as book:
            book.reserve(threading.get_ident(), Entry(event, 1))


@pytest.mark.parametrize("kind", ["memory", pytest.param("file", marks=locks)])
def test_eight_threads_do_not_overrun_a_budget_of_three(kind, path):
    ledger = Ledger(3.0, 1e-6) if kind == "memory" else Ledger.open(path, 3.0, 1e-6)
    noise = [4.0 + number / 10 for number in range(8)]
    granted = in_threads(lambda i: tries(ledger, 3, Gaussian(noise[i])))
    assert 0 < sum(granted) < 24 and sum(e.count for e in ledger.entries) == sum(granted)
    assert ledger.guarantee.epsilon(1e-6) <= 3.0


def test_the_planted_fault_overruns_it():
    ledger = Unlocked(3.0, 0.0)
    in_threads(lambda _: tries(ledger, 1))
    assert ledger.guarantee.epsilon(0.0) > 3.0


def test_no_spend_of_many_threads_is_lost():
    ledger = Ledger()
    in_threads(lambda i: [ledger.spend(Gaussian(5.0), label=str(i % 3)) for _ in range(250)])
    assert sum(e.count for e in ledger.entries) == 2000 and ledger.event == Composed(Repeated(Gaussian(5.0), 2000))


def test_threads_that_fit_stay_within_the_budget():
    X, y = np.eye(6), np.array([0.0, 1.0] * 3)
    ledger = Ledger(2.5, 1e-6, allow_seeds=True)

    def fit(number):
        try:
            return solvers.dp_ight(
                X, y, loss="logistic", sparsity=2, steps=2, row_norm=1.0, epsilon=1.0, delta=1e-6, ledger=ledger,
                rng=np.random.default_rng(number),
            )  # fmt: skip
        except BudgetExceeded:
            return None

    made = [result for result in in_threads(fit) if result is not None]
    # Five fits of epsilon 1 cost 2.40 together, six 2.65.
    assert len(made) == ledger.entries[0].count == 5 and ledger.guarantee.epsilon(1e-6) <= 2.5


# --- reservations -------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", pytest.param("file", marks=locks)])
def ledger(request, path):
    """A budget of 3, in memory and in a file."""
    return Ledger(3.0, 0.0) if request.param == "memory" else Ledger.open(path, 3.0, 0.0)


def test_a_reservation_counts_before_it_is_confirmed(ledger):
    paid = ledger.reservation(PureDp(2.0), label="fit", adjacency="zero-out")
    assert ledger.remaining() == 1.0 and len(ledger.reserved) == 1 and "PureDp" in str(ledger)
    with pytest.raises(BudgetExceeded, match="Spent so far: 2"):
        ledger.reservation(PureDp(2.0))
    with pytest.raises(InvalidValue, match="must be 'zero-out'"):
        ledger.spend(PureDp(0.1), adjacency="replace-one")
    paid.confirm()
    paid.confirm()
    assert ledger.remaining() == 1.0 and not ledger.reserved and len(ledger.entries) == 1
    with pytest.raises(InvalidValue, match="cancel of a reservation='confirmed': must be done while it is open"):
        paid.cancel()


def test_a_cancelled_reservation_leaves_nothing(ledger):
    ledger.spend(PureDp(1.0))
    before = ledger.to_json()
    with ledger.reservation(PureDp(2.0), adjacency="zero-out") as paid:
        paid.cancel()
    assert ledger.to_json() == before and ledger.adjacency is None and ledger.remaining() == 2.0
    for settle in (paid.cancel, paid.confirm):
        with pytest.raises(InvalidValue, match="'cancelled': must be done while it is open"):
            settle()
    ledger.spend(PureDp(2.0), adjacency="replace-one")
    assert ledger.remaining() == 0.0


def test_the_end_of_a_block_confirms_and_an_exception_leaves_it_spent(ledger):
    with ledger.reservation(PureDp(1.0)):
        pass
    assert not ledger.reserved
    with pytest.raises(KeyboardInterrupt), ledger.reservation(PureDp(1.0)):
        raise KeyboardInterrupt
    assert len(ledger.reserved) == 1 and ledger.remaining() == 1.0


def test_equal_releases_are_merged_whichever_way_they_came(ledger):
    ledger.spend(PureDp(0.5))
    with ledger.reservation(PureDp(0.5)):
        pass
    ledger.spend(PureDp(0.5), 2)
    assert [e.count for e in ledger.entries] == [4]


def test_a_fit_that_breaks_after_it_was_paid_for_is_spent(monkeypatch, ledger):
    from dptoolkit.solvers.engine import descent

    def breaks(*_):
        raise MemoryError

    monkeypatch.setattr(descent.IhtRun, "fit", breaks)
    with pytest.raises(MemoryError):
        solvers.dp_ight(
            np.eye(6), np.array([0.0, 1.0] * 3), loss="logistic", sparsity=2, steps=2, row_norm=1.0, epsilon=1.0,
            delta=1e-6, ledger=(book := Ledger(1.0, 1e-6, allow_seeds=True)), rng=np.random.default_rng(0),
        )  # fmt: skip
    assert len(book.reserved) == 1 and book.remaining() < 1e-4


# --- copies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_ledger_in_memory_is_not_copied(duplicate):
    with pytest.raises(InvalidValue, match=r"must not be pickled or copied.*Ledger.open\(path\)"):
        duplicate(Ledger(1.0, 1e-6))


def test_a_reservation_does_not_travel_without_its_ledger():
    with pytest.raises(InvalidValue, match="must not be pickled"):
        pickle.dumps(Ledger(1.0, 1e-6).reservation(PureDp(0.1)))


@locks
@pytest.mark.parametrize("duplicate", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_a_ledger_in_a_file_travels_as_its_path(duplicate, path):
    ledger = Ledger.open(path, 1.0, 0.0)
    other = duplicate(ledger)
    other.spend(PureDp(1.0))
    assert tries(ledger, 1) == 0 and ledger.remaining() == 0.0 and ledger == other
    sent = pickle.dumps(ledger)
    path.unlink()
    with pytest.raises(InvalidValue, match="must be a ledger's file that can be read and written"):
        pickle.loads(sent)
    Ledger.open(path, 1.0, 0.0)
    with pytest.raises(InvalidValue, match="must be the ledger that was sent here"):
        pickle.loads(sent)


def in_child(work):
    """What ``work`` returned in a forked child, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as problem:
            text = f"{type(problem).__name__}: {problem}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text


@forks
def test_a_forked_child_does_not_spend_from_its_copy():
    ledger = Ledger(1.0, 0.0)
    paid = ledger.reservation(PureDp(0.25))
    assert "InvalidValue" in (said := in_child(lambda: ledger.spend(PureDp(0.5)))) and "Ledger.open" in said
    assert "InvalidValue" in in_child(paid.confirm)
    assert in_child(ledger.remaining) == "0.75"


@forks
@locks
def test_a_forked_child_spends_from_the_same_file(path):
    ledger = Ledger.open(path, 1.0, 0.0)
    ledger.spend(PureDp(0.25))
    assert in_child(lambda: tries(ledger, 5, PureDp(0.25))) == "3"
    assert tries(ledger, 1, PureDp(0.25)) == 0 and ledger.remaining() == 0.0


@forks
@pytest.mark.parametrize("kind", ["memory", pytest.param("file", marks=locks)])
def test_a_child_forked_while_a_thread_holds_the_ledger_is_not_stuck(kind, path):
    ledger = Ledger(1.0, 0.0) if kind == "memory" else Ledger.open(path, 1.0, 0.0)
    held, done = threading.Event(), threading.Event()

    def hold():
        with ledger._turn():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # A file is the parent's for now: the child waits for it, and gets it although it was forked with it open.
        os.write(write, b"here")
        os.write(write, str(ledger.remaining()).encode())
        os._exit(0)
    os.close(write)
    assert os.read(read, 4) == b"here"
    done.set()
    thread.join()
    assert os.read(read, 10) == b"1.0"
    os.waitpid(child, 0)
    os.close(read)
    ledger.spend(PureDp(1.0))


# --- processes ----------------------------------------------------------------------------------------

_SPENDS = """
import sys
from dptoolkit.accounting import Ledger, PureDp
from dptoolkit.errors import BudgetExceeded
ledger = Ledger.open(sys.argv[1], 30.0, 0.0)
print("ready", flush=True)
sys.stdin.readline()
granted = 0
for _ in range(15):
    try:
        ledger.spend(PureDp(1.0), label=sys.argv[2])
        granted += 1
    except BudgetExceeded:
        pass
print(granted)
"""
_RESERVES = """
import sys
from dptoolkit.accounting import Ledger, PureDp
paid = Ledger.open(sys.argv[1], 3.0, 0.0).reservation(PureDp(2.0), label="fit")
print("reserved", flush=True)
sys.stdin.readline()
paid.confirm()
"""


def python(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@locks
def test_four_processes_do_not_overrun_a_file(path):
    workers = [python(_SPENDS, path, number) for number in range(4)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    granted = [int(worker.communicate()[0]) for worker in workers]
    ledger = Ledger.open(path)
    assert sum(granted) == sum(e.count for e in ledger.entries) == 30 and ledger.remaining() == 0.0
    assert {e.label: e.count for e in merged(ledger)} == {str(i): g for i, g in enumerate(granted) if g}
    assert len(path.read_text().splitlines()) == 31 and list(path.parent.iterdir()) == [path]


def merged(ledger):
    labels = {e.label for e in ledger.entries}
    return [Entry(PureDp(1.0), sum(e.count for e in ledger.entries if e.label == name), name) for name in labels]


@locks
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_killed_between_reserving_and_confirming_has_spent(path):
    worker = python(_RESERVES, path)
    assert worker.stdout.readline() == "reserved\n"
    worker.kill()
    worker.communicate()
    ledger = Ledger.open(path)
    assert ledger.remaining() == 1.0 and [e.label for e in ledger.reserved] == ["fit"]
    assert tries(ledger, 1, PureDp(1.5)) == 0 and tries(ledger, 1, PureDp(1.0)) == 1
    assert Ledger.from_json(path.read_text()) == ledger == Ledger.from_json(ledger.to_json())


# --- the file -----------------------------------------------------------------------------------------


@locks
def test_a_file_is_read_back_as_it_was(path):
    ledger = Ledger.open(path, 9.0, 1e-5)
    with ledger.reservation(Subsampled(Gaussian(9.0), "poisson", 0.1), 3, "steps"):
        ledger.spend(Composed(Gaussian(math.inf), ZCdp(0.01)), label="sum\n")
    ledger.reservation(Gaussian(50.0)).cancel()
    again = Ledger.open(os.fspath(path))
    assert again == ledger and again.budget == (9.0, 1e-5) and str(again.adjacency) == "zero-out"
    assert again.path == str(path) and str(path) in repr(again)
    assert [e.label for e in again.entries] == ["sum\n", "steps"]
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()[1:]] == [2, 3, 4, 5, 6]


@locks
def test_the_budget_of_a_file_stands(path):
    Ledger.open(path, 1.0, 1e-5)
    assert Ledger.open(path, 1.0, 1e-5).budget == Ledger.open(path).budget == (1.0, 1e-5)
    for other in ((2.0, 1e-5), (1.0, 1e-6), (0.5, 1e-5)):
        with pytest.raises(InvalidValue, match="the budget in .* cannot change"):
            Ledger.open(path, *other)
    with pytest.raises(InvalidValue, match="must be given together"):
        Ledger.open(path, 1.0)
    assert Ledger.open(path).budget == (1.0, 1e-5)


@locks
def test_a_mistyped_path_does_not_start_a_ledger_without_budget(path):
    with pytest.raises(InvalidValue, match="must be a file that exists. For a new ledger give epsilon and delta"):
        Ledger.open(path)
    for bad in ((0.0, 1e-5), (1.0, 1.0), ("1", 1e-5)):
        with pytest.raises(InvalidValue):
            Ledger.open(path, *bad)
    assert list(path.parent.iterdir()) == []


@locks
def test_what_cannot_be_written_is_refused_before_any_work(tmp_path, path):
    with pytest.raises(InvalidValue, match="must be a place where a file can be made"):
        Ledger.open(tmp_path / "nowhere" / "spent.jsonl", 1.0, 1e-5)
    with pytest.raises(InvalidValue, match="must be a ledger's file that can be read and written"):
        Ledger.open(tmp_path, 1.0, 1e-5)
    ledger = Ledger.open(path, 1.0, 1e-5, allow_seeds=True)
    if os.geteuid() != 0:
        path.chmod(0o400)
        with pytest.raises(InvalidValue, match="must be a ledger's file that can be read and written"):
            ledger.spend(Gaussian(9.0))
        path.chmod(0o600)
    path.rename(tmp_path / "moved")
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    with pytest.raises(InvalidValue, match="No such file"):
        solvers.dp_ight(
            np.eye(6), np.array([0.0, 1.0] * 3), loss="logistic", sparsity=2, steps=2, row_norm=1.0, epsilon=1.0,
            delta=1e-6, ledger=ledger, rng=rng,
        )  # fmt: skip
    assert rng.bit_generator.state == state


@locks
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "line 4: must end. Writing it was cut off.*delete this"),
        (lambda lines: [*lines, "{}"], "line 5: must end"),
        (lambda lines: [lines[0], *lines[2:]], "line 2: must carry the number 2. A line was lost"),
        (lambda lines: [*lines, lines[-1]], "line 5: must carry the number 5"),
        (lambda lines: [*lines[:-1], "spent\n"], "line 4: must be JSON"),
        (lambda lines: [*lines, "[" * 9000 + "\n"], "line 5: must be JSON.*nested too deeply"),
        (lambda lines: [*lines, '{"n": 5, "do": "spend"}\n'], "record 5 must be as the ledger writes it"),
        (lambda lines: [*lines, '{"n": 5, "do": "confirm", "of": 2}\n'], "record 5 must be as the ledger writes it"),
        (lambda lines: [*lines, '{"n": 5, "do": "forget", "of": 2}\n'], "do='forget': must be 'reserve'"),
        (lambda lines: [*lines, lines[-1].replace('"n": 4', '"n": 5, "foo": 1')], "record 5: field 'foo': must be one"),
        (lambda lines: [*lines, lines[-1].replace('"n": 4', '"n": 5, "of": 2')], "record 5: field 'of': must be one"),
        (lambda lines: [*lines, '{"n": 5, "do": "confirm", "of": 4, "count": 9}\n'], "record 5: field 'count'"),
        (lambda lines: [lines[0].replace('"budget"', '"foo": 7, "budget"'), *lines[1:]], "line 1: field 'foo'"),
        (lambda lines: [], "must be a ledger's file, with format"),
        (lambda lines: ["{}\n"], "must be a ledger's file, with format"),
        (lambda lines: ['{"format": "dptoolkit-ledger-file-1", "budget": 0}\n'], "budget=0: must be null for none"),
        (lambda lines: ['{"format": "dptoolkit-ledger-file-1"}\n'], "budget='nothing': must be null for none"),
    ],
)
def test_a_damaged_file_is_refused_with_words(path, damage, words):
    ledger = Ledger.open(path, 9.0, 0.0)
    for number in (1, 2, 3):
        ledger.spend(PureDp(0.5), label=str(number))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(damage(lines)))
    with pytest.raises(InvalidValue, match=words):
        Ledger.open(path)
    with pytest.raises(InvalidValue):
        ledger.spend(PureDp(0.1))


@locks
def test_a_file_that_lost_its_last_lines_is_noticed_by_whoever_had_read_them(path):
    ledger = Ledger.open(path, 9.0, 0.0)
    ledger.spend(PureDp(0.5))
    kept = path.read_bytes()
    ledger.spend(PureDp(0.5))
    path.write_bytes(kept)
    with pytest.raises(InvalidValue, match="must be the ledger that was opened.*may be lost"):
        ledger.spend(PureDp(0.1))


@locks
def test_another_ledger_in_its_place_is_refused(path):
    ledger = Ledger.open(path, 9.0, 0.0)
    ledger.spend(PureDp(9.0))
    path.unlink()
    Ledger.open(path, 9.0, 0.0)
    with pytest.raises(InvalidValue, match="must be the ledger that was opened"):
        ledger.spend(PureDp(1.0))


@locks
def test_a_line_that_does_not_fit_on_the_disk_leaves_the_file_as_it_was(path, monkeypatch):
    ledger = Ledger.open(path, 9.0, 0.0)
    before, write = path.read_bytes(), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, line, at: write(file, line[:20], at))
    with pytest.raises(InvalidValue, match="Nothing was recorded: the disk is full"):
        ledger.spend(PureDp(1.0))
    assert path.read_bytes() == before
    monkeypatch.undo()
    ledger.spend(PureDp(9.0))
    assert ledger.remaining() == 0.0


@locks
def test_what_could_not_be_read_back_is_not_written(path):
    class Home(PureDp):
        """An event that no reader knows."""

    ledger = Ledger.open(path, 9.0, 0.0)
    before = path.read_bytes()
    with pytest.raises(InvalidValue, match="must be one that from_dict reads back"):
        ledger.spend(Home(1.0))
    assert path.read_bytes() == before


def test_without_file_locks_open_says_so(monkeypatch, path):
    monkeypatch.setattr(journal_module, "fcntl", None)
    with pytest.raises(InvalidValue, match="must run on a system with fcntl file locks"):
        Ledger.open(path, 1.0, 1e-5)
    assert not path.exists()


# --- saved text ---------------------------------------------------------------------------------------


def saved(budget="null", entries="[]"):
    """The text of a ledger."""
    return '{"format": "dptoolkit-ledger-1", "budget": ' + budget + ', "entries": ' + entries + "}"


@pytest.mark.parametrize(
    "budget", ["0", '""', "[]", "{}", "false", '{"epsilon": null, "delta": null}', '{"epsilon": 1.0}', "1.0",
               '{"epsilon": 1.0, "delta": 1e-6, "gamma": 1}', '{"epsilon": 0, "delta": 1e-6}'],
)  # fmt: skip
def test_only_null_is_no_budget(budget):
    with pytest.raises(InvalidValue, match="budget=.*must be null for none|epsilon=0: must be"):
        Ledger.from_json(saved(budget=budget))


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "dptoolkit-ledger-1", "budget": null}',
        '{"format": "dptoolkit-ledger-1", "budget": null, "entries": ""}',
        '{"format": "dptoolkit-ledger-1", "budget": null, "entries": {}}',
        '{"format": "dptoolkit-ledger-1", "budget": null, "entries": [0]}',
        '{"format": "dptoolkit-ledger-1", "budget": {"epsilon": 1, "delta": 0}, "budget": null, "entries": []}',
        "[" * 2000, "[" * 2000 + "]" * 2000, "[" * 100_000, '{"a":' * 2000, "", "0",
    ],
)  # fmt: skip
def test_text_that_is_no_ledger_is_refused(text):
    with pytest.raises(InvalidValue, match="^text: must"):
        Ledger.from_json(text)


KNOWN = '{"event": {"type": "PureDp", "epsilon": 1.0}, "count": 2, "label": "", "adjacency": null}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (saved(entries="[" + KNOWN[:-1] + ', "foo": 1}]'), "text: record 2: field 'foo'"),
        (saved(entries="[" + KNOWN[:-1] + ', "do": "reserve"}]'), "text: record 2: field 'do'"),
        (saved(entries="[" + KNOWN + ", " + KNOWN.replace("label", "Label") + "]"), "text: record 3: field 'Label'"),
        (saved(entries="[" + KNOWN.replace('"epsilon": 1.0', '"epsilon": 1.0, "foo": 2') + "]"), "of PureDp.*foo"),
        (saved(entries="[" + KNOWN.replace('"PureDp", "epsilon": 1.0', '"Composed", "events": [], "foo": 2') + "]"),
         "of Composed.*foo"),
        (saved(entries="[]")[:-1] + ', "spent": 3}', "text: field 'spent'"),
        ('{"format": "dptoolkit-ledger-file-1", "budget": null, "spent": 3}\n', "text: line 1: field 'spent'"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_by_name(text, words):
    assert Ledger.from_json(saved(entries="[" + KNOWN + "]")).entries == (Entry(ONE, 2),)
    with pytest.raises(InvalidValue, match=words):
        Ledger.from_json(text)


@pytest.mark.parametrize("depth", [101, 200, 300, 400, 900, 2000])
def test_events_nested_too_deeply_are_our_error(depth):
    record, event = {"type": "Gaussian", "noise_multiplier": 1.0}, Gaussian(1.0)
    for _ in range(depth):
        record, event = {"type": "Repeated", "event": record, "count": 1}, Repeated(event, 1)
    nested = '{"type": "Repeated", "count": 1, "event": ' * depth + json.dumps(Gaussian(1.0).to_dict()) + "}" * depth
    text = saved(entries='[{"count": 1, "event": ' + nested + "}]")
    for work in (lambda: Ledger.from_json(text), lambda: account(event), lambda: account(from_dict(record)),
                 lambda: Ledger(1.0, 1e-5).spend(event)):  # fmt: skip
        with pytest.raises(DpToolkitError, match="nested"):
            work()


def test_what_is_nested_as_deeply_as_allowed_is_spent_and_saved():
    event = Subsampled(Gaussian(3.0), "poisson", 0.01)
    for number in range(98):
        event = Composed(event, Gaussian(200.0 + number))
    ledger = Ledger(9.0, 1e-5)
    ledger.spend(event)
    assert Ledger.from_json(ledger.to_json()) == ledger and 0 < ledger.remaining() < 9


# --- small things that would be found too late --------------------------------------------------------


def test_what_could_not_be_saved_is_not_spent():
    ledger = Ledger()
    with pytest.raises(InvalidValue, match="label=7: must be a string"):
        ledger.spend(Gaussian(1.0), label=7)
    assert not ledger.entries
    ledger.spend(Gaussian(1.0), np.int64(3))
    ledger.spend(Gaussian(1.0), 0)
    assert Ledger.from_json(ledger.to_json()) == ledger and ledger.entries[0].count == 3
    with pytest.raises(InvalidValue, match="count=0: must be >= 1"):
        ledger.reservation(Gaussian(1.0), 0)


# --- the work of a spend ------------------------------------------------------------------------------


@pytest.fixture
def accounted(monkeypatch):
    """How often the accountant was asked for an epsilon."""
    from dptoolkit.accounting.guarantee import Guarantee

    asked, epsilon = [], Guarantee.epsilon
    monkeypatch.setattr(Guarantee, "epsilon", lambda self, delta: asked.append(self.event) or epsilon(self, delta))
    return asked


def test_distinct_labels_do_not_add_work(accounted):
    ledger = Ledger(10.0, 1e-5)
    for number in range(2000):
        ledger.spend(Subsampled(Gaussian(2.0), "poisson", 0.01), label=str(number))
    assert not accounted and len(ledger.entries) == 2000
    assert len(ledger.event.events) == 1 and ledger.guarantee.epsilon(1e-5) <= 10.0


def test_different_sampled_spends_are_quick_far_from_the_budget_and_right_near_it(accounted):
    events = [Subsampled(Gaussian(2.0 + number / 10), "poisson", 0.05 + number / 1000) for number in range(12)]
    whole = account(Composed(*events)).epsilon(1e-5)
    accounted.clear()
    for budget, granted in ((50.0, 12), (whole * (1 + 1e-9), 12), (whole * 0.999, 11)):
        ledger = Ledger(budget, 1e-5)
        assert sum(tries(ledger, 1, event) for event in events) == granted
        assert budget < 50 or not accounted
        assert ledger.guarantee.epsilon(1e-5) <= budget


@pytest.mark.every(4)
@pytest.mark.parametrize("budget", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("delta", [0.0, 1e-9, 1e-3])
def test_the_quick_bound_never_admits_what_the_accountant_would_not(budget, delta):
    rng = np.random.default_rng([int(10 * budget), int(1e9 * delta)])
    makers = [
        lambda x: Gaussian(1 / x), lambda x: PureDp(x), lambda x: ZCdp(x * x), lambda x: ApproxDp(x, delta / 50),
        lambda x: Subsampled(Gaussian(0.2 / x), "poisson", 0.1), lambda x: Gaussian(math.inf),
    ]  # fmt: skip
    ledger = Ledger(budget, delta)
    for _ in range(25):
        event = makers[rng.integers(len(makers))](float(budget * 10 ** rng.uniform(-3, 0)))
        try:
            ledger.spend(event, int(rng.integers(1, 4)))
        except (BudgetExceeded, DpToolkitError):
            continue
        assert ledger.guarantee.epsilon(delta) <= budget


def test_counts_beyond_every_float_are_refused_not_lost():
    ledger = Ledger(1.0, 1e-5)
    with pytest.raises((BudgetExceeded, DpToolkitError)):
        ledger.spend(PureDp(1e-3), 10**400)
    assert not ledger.entries


def test_files_are_named_by_absolute_path(path, monkeypatch, tmp_path):
    if journal_module.fcntl is None:
        pytest.skip("needs file locks")
    monkeypatch.chdir(tmp_path)
    ledger = Ledger.open(path.name, 1.0, 0.0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledger.spend(PureDp(1.0))
    assert Path(ledger.path) == path and not list(Path.cwd().iterdir())
