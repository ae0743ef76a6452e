"""Real SuperLink and SuperNodes on this machine: the bits of one process, a clear end after a kill, nothing left.

Every run takes about a minute of processes that start: the first test is the fast one, the others are slow.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest

from dptoolkit.federated.folder import ClientFolder
from tests.federated.remote import agreed, folders, in_process

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="Flower is not installed: pip install 'dptoolkit[flower]'"
)
# What every Python program does first: note down, and refuse, connections to other machines.
WATCH = """
import os, sys

def _watch(event, arguments):
    if event not in ("socket.connect", "socket.getaddrinfo"):
        return
    if event == "socket.connect":
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "unix"
    else:
        host = arguments[0]
    host = host.decode() if isinstance(host, bytes) else str(host)
    own = host in ("127.0.0.1", "localhost", "::1", "unix", "0.0.0.0", "None", "")
    with open(os.environ["WATCHED"], "a") as file:
        file.write(f"{'own' if own else 'OTHER'} {event} {host}\\n")
    if not own:
        raise OSError("no connection to other machines in this test")

sys.addaudithook(_watch)
"""


class Machines:
    """Programs of one test, all of which carry a mark in their environment."""

    def __init__(self, place):
        self.place, self.mark, self.started = place, uuid.uuid4().hex, []
        (place / "watch").mkdir()
        (place / "watch" / "sitecustomize.py").write_text(WATCH)
        path = os.pathsep.join([str(place / "watch"), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        self.env = os.environ | {"PYTHONPATH": path, "WATCHED": str(place / "watched"), "DPTOOLKIT_MARK": self.mark}

    def start(self, name, *arguments):
        with (self.place / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "dptoolkit", "federated", *map(str, arguments)], env=self.env, stdout=out,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def text(self, name):
        return (self.place / f"{name}.out").read_text()

    def processes(self):
        """(pid, command line) of every live process with the mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def stop(self):
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def kill_all(self):
        """What must not be needed."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def until(is_so, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


@pytest.fixture
def machines(tmp_path):
    found = Machines(tmp_path)
    try:
        yield found
        found.stop()
        until(lambda: not found.processes(), 30, f"left running: {found.processes()}")
    finally:
        found.kill_all()


def start_federation(machines, terms, wait=180, timeout=120):
    """(server, clients): three clients and a server, all as users start them."""
    place = machines.place
    (place / "terms.json").write_text(terms.to_json())
    port = free_port()
    own = folders(place, terms)
    clients = [
        machines.start(f"client-{i}", "client", folder.path, "--server", f"127.0.0.1:{port}", "--log", place / "log")
        for i, folder in enumerate(own)
    ]
    return start_server(machines, "server", port, wait, timeout), clients, own, port


def start_server(machines, name, port, wait=180, timeout=120):
    place = machines.place
    out = place / "model.json"
    return machines.start(
        name, "server", place / "terms.json", "--out", out, "--port", port, "--wait", wait, "--timeout", timeout,
        "--log", place / "log",
    )  # fmt: skip


def free_port():
    from dptoolkit.federated.flower.processes import free_port

    return free_port()


def model(place):
    record = json.loads((place / "model.json").read_text())["coef"]
    weights = np.zeros(record["shape"])
    weights[record["places"]] = record["values"]
    return weights


def test_three_clients_and_three_rounds_give_the_bits_of_one_process(machines):
    terms = agreed()
    server, clients, own, _ = start_federation(machines, terms)
    assert server.wait(300) == 0, machines.text("server")
    assert [client.wait(60) for client in clients] == [0, 0, 0], machines.text("client-0")
    assert model(machines.place).tobytes() == in_process().coef.tobytes()
    assert [folder.answered for folder in own] == [3, 3, 3]
    assert "The run is over: 3 rounds were answered" in machines.text("client-2")
    until(lambda: not machines.processes(), 30, f"left running: {machines.processes()}")
    watched = (machines.place / "watched").read_text()
    assert "own socket.connect 127.0.0.1" in watched, "the watch works"
    assert "OTHER" not in watched, watched


@pytest.mark.slow
def test_a_killed_client_app_changes_no_bit(machines):
    terms = agreed()
    server, clients, own, port = start_federation(machines, terms)
    until(lambda: own[1].answered >= 1, 240, "round 1")

    def apps():
        return {p for p, line in machines.processes().items() if "flwr-clientapp" in line and is_of(p, own[1].path)}

    earlier = apps()
    (victim, *_) = until(lambda: apps() - earlier, 120, "the next ClientApp of client 1")
    # Somewhere between its start and its reply. Flower starts another if it had not taken its message yet.
    time.sleep(random.random())
    os.kill(victim, signal.SIGKILL)
    code = server.wait(300)
    if code != 0:
        words = machines.text("server").strip().splitlines()[-1]
        assert code == 2 and "Stopped at round" in words and "client 1" in words, words
        again = start_server(machines, "again", port)
        assert again.wait(300) == 0, machines.text("again")
    assert [client.wait(60) for client in clients] == [0, 0, 0]
    assert model(machines.place).tobytes() == in_process().coef.tobytes()


def is_of(pid, folder):
    """Whether a ClientApp is one of the client's: a parent of it has the folder on its command line."""
    while pid > 1:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text()
            if str(folder) in line:
                return True
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(status.rpartition(")")[2].split()[1])
    return False


@pytest.mark.slow
def test_a_killed_super_node_ends_the_run_and_the_next_run_gives_the_same_bits(machines):
    terms = agreed()
    server, clients, own, port = start_federation(machines, terms)
    until(lambda: own[1].answered >= 1, 240, "round 1")
    (pid,) = [p for p, line in machines.processes().items() if "flower-supernode" in line and str(own[1].path) in line]
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    assert clients[1].wait(60) == 2 and "SuperNode ended with code -9" in machines.text("client-1")
    assert server.wait(180) == 2 and time.monotonic() - killed < 150
    words = machines.text("server").strip().splitlines()[-1]
    assert "Stopped at round" in words and "client 1" in words, words
    assert not (machines.place / "model.json").exists()
    answered = ClientFolder(own[1].path).answered
    assert answered >= 1
    again = start_server(machines, "again", port)
    late = machines.start(
        "late", "client", own[1].path, "--server", f"127.0.0.1:{port}", "--log", machines.place / "log"
    )
    assert again.wait(300) == 0, machines.text("again")
    assert [client.wait(60) for client in (clients[0], late, clients[2])] == [0, 0, 0]
    assert model(machines.place).tobytes() == in_process().coef.tobytes()
