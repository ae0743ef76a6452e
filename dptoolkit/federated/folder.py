"""A client on its own disk: its records, its key, and every reply that it has sent.

A process that answers a round may be a new one for every message, and may be killed at any moment. What a client has
answered is therefore a matter of its folder alone:

    terms.json   the terms of the run, and which client this is
    key          32 secret bytes
    X*.npy, y.npy  the validated records
    state.json   how many rounds were answered
    round-1.npz  the reply of round 1, and so on
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import marks
from dptoolkit._validate import invalid, whole
from dptoolkit.accounting import Ledger
from dptoolkit.accounting.ledger.journal import Guard, needs_locks
from dptoolkit.data import Rows
from dptoolkit.federated.client import Client, Key, Message
from dptoolkit.federated.terms import Terms, noise_scales, plan_with_noise, readable
from dptoolkit.solvers.frame.fit import is_secure, noise_source
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.secure import noise_kind
from dptoolkit.types import Array

_ORIGINAL = "The original may have answered other rounds with the same key. Make a new run."


@dataclass(frozen=True)
class Request:
    """What a server asks of a client: whether it takes part (round 0), or the reply of a round from a model.

    Attributes
    ----------
    run : str
        The name of the run.
    fingerprint : str
        That of the plan.
    round : int
        The number of the round, 0 to ask whether the client takes part, and -1 after the last.
    support : ndarray
        Places of the weights that are not 0.
    values : ndarray
        These weights.
    """

    run: str
    fingerprint: str
    round: int
    support: NDArray[np.int64]
    values: Array


class ClientFolder:
    """A client whose state is in a folder; any number of processes may open it, and answer one at a time.

    Parameters
    ----------
    path : path-like
        The folder, which ``ClientFolder.create`` made.

    Privacy
    -------
    A reply is on the disk, whole, before ``answer`` returns it, and so is the fact that its round was answered. From
    then on the round gets these bytes, whatever model is sent with it: equal noise at two models would cancel. A reply
    that is not there any more is not computed again. A process that is killed earlier has sent nothing, so the next one
    may compute the round at any model. The ledger is charged for ALL rounds before the first is computed, once: its
    entry carries the names of the run and of the folder.

    A copy or a backup of the folder, which would lack rounds that the original has answered, is stopped thrice. It is
    refused where the key has another inode or another time of change than when the folder was made: no program that
    copies can choose that time. It is refused where the file LEDGER.replies has a reply that the folder lacks, or
    another reply to the same round; a reply is noted there before it is sent. And if nothing of this notices a copy,
    as with the snapshot of a machine that holds the ledger too, it draws other noise for another model: its message is
    a further release, which no ledger knows, but the noise of the two does not cancel.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        needs_locks()
        self.path = Path(path)
        record, where = self._read("terms.json"), f"{self.path / 'terms.json'}:"
        with readable(where):
            self.terms = Terms.from_json(json.dumps(record["terms"]), where)
            self.number, self._shape = record["client"], tuple(record["shape"])
            self._ledger_path, self._id, self._is_seeded = record["ledger"], record["id"], record.get("seeded") is True
            if type(self.number) is not int or not 0 <= self.number < len(self.terms.sizes):
                raise invalid("client", self.number, f"a number from 0 to {len(self.terms.sizes) - 1}")
            for name, value in (("id", self._id), ("plan", record["plan"]), ("ledger", self._ledger_path or "")):
                if not isinstance(value, str):
                    raise invalid(name, value, "text")
            self.plan: Plan = plan_with_noise(self.terms, self.number, record["scales"])
        if self.plan.fingerprint != record["plan"]:
            repair = "Use the version of dptoolkit that made the folder."
            raise invalid("folder", str(path), "one whose plan this program makes again", repair)

    # --- making one ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        terms: Terms,
        number: int,
        X: Any,
        y: Any,
        *,
        label_values: Any = None,
        ledger: str | os.PathLike[str] | None = None,
        rng: Any = None,
        allow_seeds: bool = False,
    ) -> ClientFolder:
        """A new folder for client ``number`` of a run, with its records; nothing is charged and nothing is sent yet.

        Parameters
        ----------
        path : path-like
            A folder that does not exist yet.
        terms : Terms
            The terms of the run. The noise is calibrated here, and not taken from them.
        number : int
            The number of the client, from 0.
        X : array-like or sparse matrix
            Its records.
        y : array-like
            Their labels.
        label_values : (float, float) or None, default None
            The two labels of a binary loss if they are not 0 and 1, the positive one last.
        ledger : path-like or None, default None
            The file of the ledger that is charged before the first round.
        rng : None, int or numpy.random.Generator, default None
            None for a key from the operating system. A seed is for tests: its noise can be drawn again.
        allow_seeds : bool, default False
            Whether a ledger takes a seed.

        Privacy
        -------
        Validates and stores records. Nothing leaves the client.
        """
        needs_locks()
        place, number = Path(path), whole("client", number)
        if number >= len(terms.sizes):
            raise invalid("client", number, f"< {len(terms.sizes)}, the number of clients in the terms")
        if os.path.lexists(place):
            raise invalid(
                "folder", str(path), "one that does not exist yet", "One folder is for one run of one client."
            )
        if marks.is_marked(X, y):
            raise invalid("X", "marked", "rows that a guarantee covers", marks.REASON)
        settings = terms.plan.clients[number].settings
        rows = settings.validated_rows(X, terms.d)
        if rows.shape[0] != terms.sizes[number]:
            bound = f"the {terms.sizes[number]} records of client {number} in the terms"
            raise invalid("X", f"{rows.shape[0]} records", bound, "The noise is for so many records.")
        labels = settings.labels(y, rows.shape[0], label_values)
        book = None if ledger is None else Ledger.open(ledger, allow_seeds=allow_seeds)
        noise_kind(terms.randomness, rng)
        source = noise_source(rng, book, is_secure=is_secure(terms.plan.clients[number]))
        # From a seed every client gets the key that it has in a fit in one process, where they are made in order.
        key = [Key.of(source, f"{terms.fingerprint} {i}") for i in range(number + 1)][-1]
        own = terms.plan.clients[number]
        record = {
            "client": number, "id": secrets.token_hex(8), "shape": list(rows.shape), "plan": own.fingerprint,
            "ledger": None if ledger is None else os.path.abspath(ledger), "terms": json.loads(terms.to_json()),
            "scales": noise_scales(terms, number), "seeded": not source.fresh,
        }  # fmt: skip
        _fill(place, record, key.to_bytes(), rows, labels)
        return cls(place)

    # --- answering ----------------------------------------------------------------------------------

    @property
    def answered(self) -> int:
        """The number of rounds that were answered."""
        return int(self._state()["answered"])

    @property
    def is_over(self) -> bool:
        """Whether the server has said that the run is over."""
        return (self.path / "over").exists()

    def reopen(self) -> None:
        """Forget that the run is over, for a server that has lost its model; it gets the replies that it got before.

        Privacy
        -------
        Releases nothing, and returns no round.
        """
        with self._locked():
            (self.path / "over").unlink(missing_ok=True)

    def answer(self, request: Request) -> Message:
        """The reply to a request: weights for a round, and none for round 0 and at the end.

        Parameters
        ----------
        request : Request
            What the server asks for: its run, its plan, the round, and the model to start from.

        Privacy
        -------
        Releases ``local_steps`` steps of the plan for a round that was not answered before, and nothing else.
        """
        if request.run != self.terms.run:
            repair = f"Client {self.number} of run {self.terms.run} answers no other. A new run needs a new folder."
            raise invalid("run", request.run, self.terms.run, repair)
        if request.fingerprint != self.terms.fingerprint:
            repair = f"Client {self.number} has agreed to the plan {self.terms.fingerprint[:12]}."
            raise invalid("plan", request.fingerprint[:12], "the plan of the client", repair)
        asked = whole("round", request.round, low=-1)
        with self._locked():
            if asked == 0:
                self._check_budget()
            elif asked < 0:
                _write_synced(self.path / "over", b"")
            else:
                return self._reply(asked, request.support, request.values)
        return Message(self.number, asked, np.zeros(0, dtype=np.int64), np.zeros(0))

    def _reply(self, asked: int, support: Any, values: Any) -> Message:
        answered = self.answered
        # A reply that a killed process stored without counting it is the reply all the same.
        if asked <= answered:
            return self._stored(asked)
        if asked == answered + 1 and self._reply_file(asked).exists():
            message = self._stored(asked)
        else:
            client = self._client(answered)
            # Refused here, before anything is charged: rounds out of order, and models of another shape.
            client.check_request(asked, support, values)
            self._refuse_behind(answered)
            self._charge()
            message = client.reply(asked, support, values)
            _write_synced(self._reply_file(asked), _packed(message))
        self._note(message)
        self._count(asked)
        return message

    def _client(self, answered: int) -> Client:
        rows, labels = self._records()
        key = Key.from_bytes((self.path / "key").read_bytes(), self._is_seeded)
        client = Client(self.number, self.plan, rows, labels, key)
        client.reserve()
        if answered:
            client.resume(self._stored(answered))
        return client

    def _stored(self, number: int) -> Message:
        """The reply of a round that was answered, from the disk."""
        try:
            with np.load(io.BytesIO(self._reply_file(number).read_bytes()), allow_pickle=False) as kept:
                support, values, check = kept["support"], kept["values"], bytes(kept["check"])
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            check, support, values = b"", np.zeros(0, dtype=np.int64), np.zeros(0)
        message = Message(self.number, number, support, values)
        if check != _check(message):
            repair = (
                "It was sent, and is not computed again, since its noise at another model would cancel. Restore it."
            )
            raise invalid("round", number, f"one whose reply is still in {self.path}", repair)
        return message

    # --- the ledger ---------------------------------------------------------------------------------

    def _ledger(self) -> Ledger | None:
        if self._ledger_path is None:
            return None
        # Seeds were refused, or allowed, when the folder was made.
        return Ledger.open(self._ledger_path, allow_seeds=True)

    @property
    def _label(self) -> str:
        return f"{self.plan.solver}, run {self.terms.run}, client {self.number}, folder {self._id}"

    def _is_charged(self, ledger: Ledger) -> bool:
        return any(entry.label == self._label for entry in ledger.entries)

    def _check_budget(self) -> None:
        """Refuse to take part if the ledger would refuse the first round."""
        ledger = self._ledger()
        if ledger is not None and not self._is_charged(ledger):
            ledger.check(self.plan.event, adjacency=self.plan.adjacency)

    def _charge(self) -> None:
        """Charge all rounds, unless an earlier process has done so."""
        ledger = self._ledger()
        if ledger is not None and not self._is_charged(ledger):
            with self._replies() as (replies, write):
                replies.setdefault(self._id, {})
                write()
            ledger.spend(self.plan.event, label=self._label, adjacency=self.plan.adjacency)

    # --- replies, noted beside the ledger -----------------------------------------------------------

    @contextmanager
    def _replies(self) -> Iterator[tuple[dict[str, dict[str, str]], Callable[[], None]]]:
        """({folder: {round: digest of its reply}}, what writes it): the file LEDGER.replies, locked with the ledger."""
        path = Path(f"{self._ledger_path}.replies")
        with Guard(str(self._ledger_path)).turn():
            try:
                replies = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
                if not all(number.isdigit() for own in replies.values() for number in own):
                    raise ValueError
            except (OSError, ValueError, AttributeError, TypeError):
                repair = "It says which rounds were answered. Restore it."
                raise invalid("ledger", str(path), "the file of replies that goes with the ledger", repair) from None
            yield replies, lambda: _write_synced(path, json.dumps(replies).encode())

    def _refuse_behind(self, answered: int) -> None:
        """Refuse a folder that lacks a reply which was noted beside the ledger, or may have been."""
        ledger = self._ledger()
        if ledger is None:
            return
        with self._replies() as (replies, _):
            own = replies.get(self._id)
        if own is None and self._is_charged(ledger):
            repair = "It says which rounds were answered. Restore it, or make a new run."
            raise invalid("ledger", f"{ledger.path}.replies", f"with the replies of the folder {self.path}", repair)
        if own is not None and any(int(number) > answered for number in own):
            raise invalid("folder", str(self.path), "one with all replies that its ledger knows", _ORIGINAL)

    def _note(self, message: Message) -> None:
        """Note a reply before it is sent; refuse if another reply to its round was noted, by a copy of the folder."""
        if self._ledger_path is None:
            return
        digest = _check(message).hex()
        with self._replies() as (replies, write):
            own = replies.setdefault(self._id, {})
            if own.setdefault(str(message.round), digest) == digest:
                write()
                return
        raise invalid("folder", str(self.path), "one with all replies that its ledger knows", _ORIGINAL)

    # --- files --------------------------------------------------------------------------------------

    def _reply_file(self, number: int) -> Path:
        return self.path / f"round-{number}.npz"

    def _read(self, name: str) -> dict[str, Any]:
        try:
            record = json.loads((self.path / name).read_text(encoding="utf-8"))
            assert isinstance(record, dict)
            return record
        except (OSError, ValueError, AssertionError):
            repair = "Make one with dptoolkit federated join; a folder that has lost a file cannot be used again."
            raise invalid("folder", str(self.path), f"the folder of a client, with {name}", repair) from None

    def _state(self) -> dict[str, Any]:
        state = self._read("state.json")
        if state.get("made") != _made(self.path):
            bound = "the original, not a copy or a backup, with links and permissions as they were made"
            raise invalid("folder", str(self.path), bound, _ORIGINAL)
        if type(state.get("answered")) is not int or state["answered"] < 0:
            place = self.path / "state.json"
            raise invalid("answered", state.get("answered"), f"a number of rounds in {place}", "Make a new run.")
        return state

    def _count(self, answered: int) -> None:
        if answered != (state := self._state())["answered"]:
            _write_synced(self.path / "state.json", json.dumps(state | {"answered": answered}).encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder alone: two processes that answer one round at two models would use the same noise."""
        import fcntl

        with (self.path / "key").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _records(self) -> tuple[Rows, Array]:
        def mapped(name: str) -> Any:
            return np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)

        labels = np.array(mapped("y"))
        if (self.path / "X.npy").exists():
            return Rows(np.array(mapped("X")), False), labels
        from scipy import sparse

        parts = tuple(np.array(mapped(f"X-{name}")) for name in ("data", "indices", "indptr"))
        return Rows(sparse.csr_matrix(parts, shape=self._shape), True), labels


def _fill(place: Path, record: dict[str, Any], key: bytes, rows: Rows, labels: Array) -> None:
    """Make the folder under another name, and rename it when it is complete."""
    draft = place.with_name(f".{place.name}.{os.getpid()}.new")
    try:
        draft.mkdir(mode=0o700)
        if rows.is_sparse:
            for name in ("data", "indices", "indptr"):
                np.save(draft / f"X-{name}.npy", getattr(rows.matrix, name))
        else:
            np.save(draft / "X.npy", rows.matrix)
        np.save(draft / "y.npy", labels)
        with open(os.open(draft / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
            os.fsync(file.fileno())
        state = {"answered": 0, "made": _made(draft)}
        _write_synced(draft / "state.json", json.dumps(state).encode())
        _write_synced(draft / "terms.json", json.dumps(record).encode())
        os.rename(draft, place)
        _settle(place.absolute().parent)
    except OSError as problem:
        raise invalid("folder", str(place), "a place where a folder can be made", f"{problem}.") from None


def _made(folder: Path) -> list[int]:
    """Numbers by which a copy differs from the original.

    These are the inodes of the key and of the folder, as links share the key's, and the time in nanoseconds at which
    the key's inode was changed. Inodes are used again, and in two new file systems files get the same ones; programs
    that copy or unpack can set any time but this. It stays when the folder is renamed, and when the key is read or
    locked. A link to the key, or other permissions, give it another time, and so another folder must be made.
    """
    key = (folder / "key").stat()
    return [key.st_ino, folder.stat().st_ino, key.st_ctime_ns]


def _write_synced(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; it is on the disk when this returns."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    _settle(path.parent)


def _settle(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _packed(message: Message) -> bytes:
    buffer = io.BytesIO()
    check = np.frombuffer(_check(message), dtype=np.uint8)
    np.savez(buffer, support=message.support, values=message.values, check=check)
    return buffer.getvalue()


def _check(message: Message) -> bytes:
    """A digest of the reply and its round, by which a damaged or misplaced file is noticed."""
    head = f"{message.client} {message.round} {message.support.dtype} {message.values.dtype}".encode()
    return hashlib.sha256(head + message.support.tobytes() + message.values.tobytes()).digest()
