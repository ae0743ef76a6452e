"""Real schedulers and workers on loopback, in process groups of their own, all of which are gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Without the address Dask answers HTTP on all interfaces, also without a dashboard.
LOOPBACK = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")
# Seconds for a process to come up: a loaded machine takes long.
UP = 120.0
# What every process writes to DPTOOLKIT_ADDRESSES: the addresses beyond loopback that it tried to reach.
WATCH = """\
import os, sys
def watch(event, args):
    if event not in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        return
    place = args[1] if event != "socket.getaddrinfo" else args[0]
    host = place[0] if isinstance(place, tuple) else place
    host = host.decode() if isinstance(host, bytes) else host
    if host is None or str(host).startswith(("127.", "/", "::1", "localhost", "\\0")) or host == "":
        return
    with open(os.environ["DPTOOLKIT_ADDRESSES"], "a") as file:
        file.write(f"{event} {host}\\n")
sys.addaudithook(watch)
"""
# A worker's Python that does not have the package.
WITHOUT = """\
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dptoolkit":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Cluster:
    """A scheduler and workers, each with a nanny."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, f"tcp://127.0.0.1:{free_port()}"
        self.addresses = folder / "addresses.txt"
        self.addresses.touch()
        self.watch = self._site("watch", WATCH)
        self.started: list[subprocess.Popen[bytes]] = []
        port = self.address.rpartition(":")[2]
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", port)
        self.wait_for(self._answers)
        self.nannies: list[subprocess.Popen[bytes]] = []

    def _site(self, name: str, source: str) -> str:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(source)
        return str(folder)

    def without_package(self) -> str:
        """A folder that hides the package from a process which has it in front of its path."""
        return self._site("without", WATCH + WITHOUT)

    def worker(self, path: str | None = None) -> subprocess.Popen[bytes]:
        nanny = self._start(
            "worker", self.address, "--nthreads", "1", "--host", "127.0.0.1", "--memory-limit", "0",
            "--local-directory", str(self.folder), path=path,
        )  # fmt: skip
        self.nannies.append(nanny)
        return nanny

    def _start(self, role: str, *options: str, path: str | None = None) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(part for part in (path, self.watch, str(ROOT)) if part)
        env = os.environ | {"PYTHONPATH": paths, "DPTOOLKIT_ADDRESSES": str(self.addresses)}
        log = (self.folder / f"{role}-{len(self.started)}.log").open("wb")
        command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *LOOPBACK, *options]
        process = subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.started.append(process)
        return process

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2]))),
        ):
            return True
        return False

    def wait_for(self, condition: Any) -> None:
        """Until the condition holds; the time is a bound on a broken machine, not a measurement."""
        end = time.monotonic() + UP
        while not condition():
            assert time.monotonic() < end, self.logs()
            assert self.scheduler.poll() is None, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def stop(self) -> None:
        for process in self.started:
            kill_group(process)
        for process in self.started:
            process.wait(timeout=30)

    def listening(self) -> set[str]:
        """The hosts on which our processes accept connections."""
        import psutil

        sockets = [own for pid in self.left_over() for own in psutil.Process(pid).net_connections(kind="inet")]
        return {own.laddr.ip for own in sockets if own.status == psutil.CONN_LISTEN}

    def left_over(self) -> list[int]:
        """Processes of ours that still run: every one has the folder in its command line or in its environment."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and str(self.addresses).encode() in (place / "environ").read_bytes():
                    found.append(int(place.name))
        return found


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and to all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A scheduler with so many workers; nothing of it is left afterwards."""
    own = Cluster(folder)
    try:
        for _ in range(workers):
            own.worker()
        own.wait_for(lambda: own_workers(own) >= workers)
        yield own
    finally:
        own.stop()
    end = time.monotonic() + 30
    while (left := own.left_over()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, "processes were left running"
    assert own.addresses.read_text() == "", "an address beyond loopback was asked for"


def own_workers(own: Cluster) -> int:
    """How many workers have registered, by the scheduler's log."""
    return (own.folder / "scheduler-0.log").read_text(errors="replace").count("Register worker")
