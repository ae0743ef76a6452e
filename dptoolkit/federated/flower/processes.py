"""Flower's programs as child processes: without telemetry, in groups of their own, and gone when the work is done."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, missing, positive, whole
from dptoolkit.errors import FederationAborted, InvalidValue
from dptoolkit.federated.fit import FederatedResult
from dptoolkit.federated.folder import ClientFolder
from dptoolkit.federated.terms import Terms

# Seconds until a program that was told to end is killed, until a server must listen, and between two looks.
_MERCY, _START, _POLL = 5.0, 120.0, 0.2
# Seconds that a client goes on after it was told that the run is over.
_FAREWELL = 3.0
_APP = "federation"
_PYPROJECT = f"""[project]
name = "dptoolkit-{_APP}"
version = "1.0.0"

[tool.flwr.app]
publisher = "dptoolkit"

[tool.flwr.app.components]
serverapp = "{_APP}.server:app"
clientapp = "{_APP}.client:app"

[tool.flwr.app.config]
terms = ""
outcome = ""
wait = 120.0
timeout = 120.0
"""


def serve(
    terms: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    wait: float = 300.0,
    timeout: float = 300.0,
    certificates: Sequence[str] | None = None,
    log: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda words: None,
    keep: Callable[[FederatedResult], None] = lambda result: None,
) -> FederatedResult:
    """Run the server of a federation: it waits for all clients, makes all rounds, and stops.

    Parameters
    ----------
    terms : path-like
        The file with the terms.
    host : str, default "127.0.0.1"
        The address to listen at. Any but those of this machine itself needs ``certificates``.
    port : int, default 0
        The port to listen at; 0 for any that is free.
    wait : float, default 300.0
        Seconds until all clients must have appeared.
    timeout : float, default 300.0
        Seconds that a round may take.
    certificates : sequence of str or None, default None
        Three PEM files: the server's certificate, its private key, and the certificate of the authority.
    log : path-like or None, default None
        Folder for what Flower prints; by default it is thrown away.
    say : callable, optional
        What is called with words on the progress; the first have the address.
    keep : callable, optional
        What is called with the result before clients are told that the run is over, for example to write it to a file.

    Returns
    -------
    FederatedResult
        The model, with the guarantees of the plan. What each client really charged is in its own ledger.

    Raises
    ------
    FederationAborted
        If a client is missing, doubled, late or at fault.
    """
    needs_flower()
    positive("wait", wait), positive("timeout", timeout)
    place, port = os.path.abspath(terms), whole("port", port) or free_port(host)
    plan = Terms.read(place).plan
    secure = _server_options(host, certificates)
    with tempfile.TemporaryDirectory(prefix="dptoolkit-") as home:
        app, outcome = _app(Path(home)), Path(home) / "outcome.json"
        environment = quiet_environment(home, f"{host}:{port}", certificates)
        link = ["flower-superlink", "--host", host, "--port", str(port), "--disable-runtime-dependency-installation"]
        with running([*link, *secure], environment, log, "superlink") as server:
            _until(lambda: _listens(host, port), server, _START, "the SuperLink does not listen")
            say(f"listening at {host}:{port}")
            settings = f"terms={_toml(place)} outcome={_toml(str(outcome))} wait={float(wait)} timeout={float(timeout)}"
            submit = ["flwr", "run", str(app), "t", "--format", "json", "--run-config", settings]
            with running(submit, environment, log, "submit") as started:
                _until(lambda: started.poll() is not None or outcome.exists(), server, _START, "the run does not start")
                if started.poll():
                    raise FederationAborted("Flower refused the run. Give log=, a folder, to see what it prints.")
            say(f"waiting for {len(plan.clients)} clients")
            longest = wait + timeout * plan.settings.rounds + _START
            _until(outcome.exists, server, longest, "the server did not end in time")
            record = json.loads(outcome.read_text(encoding="utf-8"))
            if record["status"] != "completed":
                raise FederationAborted(record["problem"])
            result = _result(plan, record)
            keep(result)
            Path(f"{outcome}.kept").touch()
            # Clients that cannot be told are left alone.
            with contextlib.suppress(FederationAborted):
                _until(Path(f"{outcome}.over").exists, server, _START, "clients were not told that the run is over")
    return result


def _result(plan: Any, record: dict[str, Any]) -> FederatedResult:
    """The result that a ServerApp has written."""
    weights = np.zeros(plan.settings.width(plan.d))
    weights[record["places"]] = [float.fromhex(value) for value in record["values"]]
    coef, intercept = plan.settings.model(weights)
    history = {"rounds": plan.settings.rounds}
    return FederatedResult(coef, intercept, plan.guarantees, plan.guarantee, plan, history)


def attend(
    folder: str | os.PathLike[str],
    address: str,
    *,
    authority: str | None = None,
    log: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda words: None,
    again: bool = False,
) -> int:
    """Take part in a run: answer the server's requests until it says that the run is over.

    Parameters
    ----------
    folder : path-like
        The client's folder.
    address : str
        "host:port" of the server.
    authority : str or None, default None
        The PEM file of the authority that signed the server's certificate. Only servers on this machine need none.
    log : path-like or None, default None
        Folder for what Flower prints; by default it is thrown away.
    say : callable, optional
        What is called with words on the progress.
    again : bool, default False
        Whether to take part although the server has said that the run is over, as it has lost its model.

    Returns
    -------
    int
        The number of rounds that were answered.

    Privacy
    -------
    What is sent, and what is charged, is decided by ``ClientFolder``, in processes that Flower starts.
    """
    needs_flower()
    client = ClientFolder(folder)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise invalid("address", address, "host:port of the server")
    if authority is None:
        _refuse_plain("address", address, host)
    secure = ["--insecure"] if authority is None else ["--root-certificates", _file("authority", authority)]
    if again:
        client.reopen()
    while not client.is_over:
        with tempfile.TemporaryDirectory(prefix="dptoolkit-") as home:
            node = ["flower-supernode", *secure, "--superlink", address, "--host", "127.0.0.1"]
            node += ["--port", str(free_port()), "--node-config", f"folder={_toml(os.path.abspath(folder))}"]
            with running(node, quiet_environment(home), log, f"supernode-{client.number}") as process:
                say(f"client {client.number} of run {client.terms.run} takes part, with the server at {address}")
                _accompany(process, client)
    return client.answered


def _accompany(process: subprocess.Popen[bytes], client: ClientFolder) -> None:
    """Wait until the run is over, or until a server that was started again does not know the SuperNode any more."""
    while not client.is_over:
        if process.poll() is not None:
            if process.returncode == 0:
                return
            raise FederationAborted(f"Flower's SuperNode ended with code {process.returncode}. See its log.")
        time.sleep(_POLL)
    # The reply that says so is still on its way.
    time.sleep(_FAREWELL)


# --- programs ------------------------------------------------------------------------------------------


def quiet_environment(home: str, address: str = "", certificates: Sequence[str] | None = None) -> dict[str, str]:
    """The environment of Flower's programs: no telemetry, no look for updates, and all files below ``home``."""
    if address:
        secure = "insecure = true" if certificates is None else f"root-certificates = {_toml(certificates[2])}"
        text = f'[superlink]\ndefault = "t"\n\n[superlink.t]\naddress = "{address}"\n{secure}\n'
        Path(home, "config.toml").write_text(text, encoding="utf-8")
    own = {"FLWR_HOME": home, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    # The programs start others by their names.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    return os.environ | own | {"PATH": path}


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: dict[str, str], log: str | os.PathLike[str] | None = None, name: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a group of its own, within the block; then it and all that it has started are ended."""
    with contextlib.ExitStack() as stack:
        out: Any = subprocess.DEVNULL
        if log is not None:
            Path(log).mkdir(parents=True, exist_ok=True)
            out = stack.enter_context(Path(log, f"{name}.log").open("ab"))
        program = Path(sys.executable).with_name(command[0])
        full = [str(program) if program.exists() else command[0], *command[1:]]
        process = subprocess.Popen(
            full, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )  # fmt: skip
        try:
            yield process
        finally:
            _end(process)


def _end_with_parent() -> None:
    """In a new process: be killed when the program that started it is, so that nothing is left running."""
    import ctypes

    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a group: asked first, killed after a while; programs that the first one has started may outlive it."""
    _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + _MERCY
    while time.monotonic() < deadline and (process.poll() is None or _signal(process, 0)):
        time.sleep(_POLL / 4)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Whether there was anybody to signal."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def _until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if process.poll() is not None and not is_so():
            raise FederationAborted(f"Flower's SuperLink ended with code {process.returncode}. See its log.")
        if time.monotonic() > deadline:
            raise FederationAborted(f"After {seconds:g} seconds {otherwise}.")
        time.sleep(_POLL)


def needs_flower() -> None:
    """Raise an error if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise missing("flwr", "flower", "for federations on several machines (Python 3.11 or newer)")


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at."""
    try:
        with socket.socket() as one:
            one.bind((host, 0))
            return int(one.getsockname()[1])
    except OSError as problem:
        raise invalid("host", host, "an address of this machine", f"{problem}.") from None


def _listens(host: str, port: int) -> bool:
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex((host, port)) == 0


def _app(home: Path) -> Path:
    """The folder of an app that Flower packs and sends to every node: two names of what is installed there."""
    place = home / "app"
    package = place / _APP
    package.mkdir(parents=True)
    (place / "pyproject.toml").write_text(_PYPROJECT, encoding="utf-8")
    (package / "__init__.py").write_text('"""A federation of dptoolkit."""\n', encoding="utf-8")
    for name in ("server", "client"):
        text = f"from dptoolkit.federated.flower.apps import {name}_app\n\napp = {name}_app()\n"
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return place


def _server_options(host: str, certificates: Sequence[str] | None) -> list[str]:
    if certificates is None:
        _refuse_plain("host", host, host)
        return ["--insecure"]
    if len(certificates) != 3:
        raise invalid("certificates", list(certificates), "three files: certificate, key and authority")
    names = ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile")
    return [
        part for name, path in zip(names, certificates, strict=True) for part in (name, _file("certificates", path))
    ]


def _refuse_plain(name: str, value: str, host: str) -> None:
    """Refuse to talk to other machines in plain text, where anybody could send models and messages."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host.strip("[]")).is_loopback:
            return
    if host != "localhost":
        raise invalid(name, value, "on this machine, such as 127.0.0.1", "Other machines need certificates.")


def _file(name: str, path: str) -> str:
    if not Path(path).is_file():
        raise invalid(name, path, "a PEM file")
    return os.path.abspath(path)


def _toml(text: str) -> str:
    """Text as Flower reads it in a setting."""
    if any(c in text for c in "\"'\\\n") or not text.isprintable():
        raise InvalidValue(f"{text!r}: must be a path without quotes and backslashes, which Flower cannot read.")
    return f'"{text}"'
