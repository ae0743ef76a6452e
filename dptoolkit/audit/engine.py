"""Trials: play the game in one thread or many, on random streams that depend on the trial's number alone.

Outputs are a function of (seed, trial). So a checkpoint holds the outputs so far, and an audit that was killed reads
them and repeats the analysis.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import sys
import time
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit._validate import invalid
from dptoolkit.audit.content import check_unchanged, fingerprint
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.streams import Streams, seek
from dptoolkit.distributed.executors import Executor, InProcesses, InThisProcess, InThreads
from dptoolkit.errors import MissingDependency
from dptoolkit.types import Array

Bits = NDArray[np.int8]
# Trials handed to a worker at a time: a fixed number, so that results cannot depend on the workers.
_CHUNK = 1024
# Seconds of expected work above which starting processes is worth its cost.
_WORTH_PROCESSES = 8.0


class Target(ABC):
    """What is attacked: gives the outputs of trials, one row each, from their numbers and secret bits (1 = first)."""

    # Whether trials run in threads; otherwise they run in processes, if that is worth it.
    threads: ClassVar[bool] = False
    # The last exception that a run raised, and which parts of an output are not examined; empty if there are none.
    last_error: str = ""
    unseen: str = ""

    @abstractmethod
    def run(self, bits: Bits, first: int, streams: Streams) -> Array:
        """Outputs of trials first, first + 1, ...; a row of nothing but NaN for a run that failed."""


@dataclass
class CallableTarget(Target):
    """Any ``mechanism(dataset, rng) -> output``: a number, an array, a dict of them, a fitted model, a FitResult."""

    mechanism: Callable[[Any, np.random.Generator], Any]
    pair: Pair
    encode: Callable[[Any], Any] | None = None
    last_error: str = field(default="", compare=False)
    # The keys of the first output; no field, since they are not known before a run.
    labels = None

    def run(self, bits: Bits, first: int, streams: Streams) -> Array:
        """See ``Target``. A mechanism that changes its dataset is refused: later trials would run on other data."""
        datasets = [_plain(data) for data in (self.pair.second, self.pair.first)]
        generator, before = streams.generator(), fingerprint(datasets)
        outputs = []
        for i, bit in enumerate(bits):
            seek(generator, first + i)
            outputs.append(self._one(datasets[bit], generator))
        check_unchanged(datasets, before)
        return _stack(outputs)

    def draws(self, streams: Streams) -> bool:
        """Whether a run on either dataset moves the Generator that it is given."""
        draw = False
        for data in (self.pair.second, self.pair.first):
            generator = streams.generator()
            before = repr(generator.bit_generator.state)
            self._one(_plain(data), generator)
            draw = draw or repr(generator.bit_generator.state) != before
        return draw

    def _one(self, data: Any, generator: np.random.Generator) -> Array | None:
        try:
            output = self.mechanism(data, generator)
        # Any exception is caught, since an adversary sees that a run failed; so is an attempt to leave the interpreter.
        except (Exception, SystemExit) as problem:
            self.last_error = f"{type(problem).__name__}: {problem}"
            return None
        output = output if self.encode is None else self.encode(output)
        self.unseen = self.unseen or _unseen(output)
        self._check_labels(_labels(output))
        return flatten(output)

    def _check_labels(self, labels: Any) -> None:
        """Refuse outputs whose keys vary: an adversary sees them too, but numbers alone are looked at here."""
        if self.labels is None:
            self.labels = (labels,)
        elif self.labels != (labels,):
            repair = "Keys are part of the output. Give encode=, which makes a fixed number of numbers of an output."
            raise invalid("output of the mechanism", "of other keys than before", "of the same keys every time", repair)


def _labels(output: Any) -> Any:
    """The keys of dicts, and the index and columns of frames, wherever they are in an output; None without any."""
    if isinstance(output, dict):
        return [(repr(key), _labels(output[key])) for key in sorted(output, key=repr)]
    if hasattr(output, "to_numpy"):
        return [repr(list(getattr(output, name))) for name in ("index", "columns") if hasattr(output, name)]
    if isinstance(output, (list, tuple)):
        inside = [_labels(part) for part in output]
        return inside if any(part is not None for part in inside) else None
    return None


def _unseen(output: Any) -> str:
    """What of fitted models in an output is not looked at, in words; "" if there are none."""
    if hasattr(output, "coef_"):
        found = {name for name in getattr(output, "__dict__", {}) if name.endswith("_")} - {"coef_", "intercept_"}
        others = ", ".join(sorted(found)) or "its other attributes"
        return f"coef_ and intercept_ of a model are looked at, not {others}"
    if hasattr(output, "coef") and hasattr(output, "intercept"):
        return "coef and intercept of a fit are looked at, not its history"
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return next((words for words in map(_unseen, parts) if words), "")


def _plain(data: Any) -> Any:
    return data.expand() if isinstance(data, Counted) else data


def flatten(output: Any) -> Array:
    """An output as one vector of numbers."""
    if hasattr(output, "coef_"):
        output = [output.coef_, getattr(output, "intercept_", 0.0)]
    elif hasattr(output, "coef") and hasattr(output, "intercept"):
        output = [output.coef, output.intercept]
    elif isinstance(output, dict):
        output = [output[key] for key in sorted(output, key=repr)]
    if isinstance(output, (list, tuple)):
        return np.concatenate([flatten(part) for part in output]) if output else np.zeros(0)
    try:
        if np.iscomplexobj(output):
            raise TypeError
        return np.asarray(output, dtype=float).ravel()
    except (TypeError, ValueError):
        raise invalid("output of the mechanism", output, "numbers", "Give encode=, output -> numbers.") from None


def _stack(outputs: list[Array | None]) -> Array:
    """Rows of equal length; failures become NaN."""
    lengths = {len(row) for row in outputs if row is not None}
    if len(lengths) > 1:
        repair = "Give encode=, output -> a fixed number of numbers."
        raise invalid("output of the mechanism", f"{min(lengths)} to {max(lengths)} numbers", "of one size", repair)
    width = lengths.pop() if lengths else 1
    return np.array([np.full(width, np.nan) if row is None else row for row in outputs]).reshape(len(outputs), width)


class Game:
    """Plays trials of one purpose and seed on a target."""

    def __init__(
        self, target: Target, seed: int, purpose: str, n_jobs: int | None, executor: Executor | None = None
    ) -> None:
        self.target, self.streams = target, Streams(seed, purpose)
        # How many numbers an output has; None until a run succeeds.
        self.width: int | None = None
        self._jobs, self._executor, self._alone = n_jobs, executor, False
        self._seconds_each = 0.0

    def alone(self) -> None:
        """Play in this thread only."""
        self._alone = True

    def play(self, first: int, count: int) -> tuple[Bits, Array]:
        """(bits, outputs) of the trials first, ..., first + count - 1."""
        bits = self.streams.bits(first, count)
        began = time.perf_counter()
        pieces = [(first + a, bits[a : a + _CHUNK]) for a in range(0, count, _CHUNK)]
        outputs = self._map(pieces)
        self._seconds_each = (time.perf_counter() - began) / max(count, 1)
        widths = {piece.shape[1] for piece in outputs if not np.isnan(piece).all()}
        widths |= set() if self.width is None else {self.width}
        if len(widths) > 1:
            raise invalid("output of the mechanism", f"{sorted(widths)} numbers", "of one size", "Give encode=.")
        self.width = widths.pop() if widths else None
        width = outputs[0].shape[1] if self.width is None else self.width
        return bits, np.concatenate([_fit(piece, width) for piece in outputs])

    def portion(self, seconds: float) -> int:
        """About how many trials take this long, but enough for all workers; without limit until a run has succeeded."""
        if self.width is None:
            return sys.maxsize
        workers = self._jobs or os.cpu_count() or 1
        if self._alone or self._executor is not None:
            workers = 1 if self._executor is None or self._alone else self._executor.workers
        return max(workers * _CHUNK, int(seconds / max(self._seconds_each, 1e-9)))

    def _map(self, pieces: list[tuple[int, Bits]]) -> list[Array]:
        return self._place(pieces).all(functools.partial(_played, self.target, self.streams), pieces)

    def _place(self, pieces: list[tuple[int, Bits]]) -> Executor:
        """Where these trials run: where the caller says, else in threads or processes if that is worth it."""
        here = InThisProcess()
        if self._alone or len(pieces) == 1:
            return here
        if self._executor is not None:
            return self._executor
        jobs = self._jobs or os.cpu_count() or 1
        if jobs == 1:
            return here
        if self.target.threads:
            return InThreads(jobs)
        work = self._seconds_each * sum(len(bits) for _, bits in pieces)
        if self._jobs is None and work < _WORTH_PROCESSES:
            return here
        try:
            processes = InProcesses(jobs)
        except MissingDependency:
            return here
        return processes if processes.can_send(self.target) else here


def _played(target: Target, streams: Streams, piece: tuple[int, Bits]) -> Array:
    """The outputs of a piece of the trials, which depend on the piece alone."""
    first, bits = piece
    return target.run(bits, first, streams)


def _fit(piece: Array, width: int) -> Array:
    """The piece with rows of ``width`` numbers: a piece in which every run failed does not know the width."""
    return piece if piece.shape[1] == width else np.full((len(piece), width), math.nan)


def identity(thing: Any, depth: int = 8) -> Any:
    """A description that tells one audit's mechanism, pair or claim from another's, and is equal in every process.

    So it holds no addresses and no order of sets. Things that are equal have equal identities. Datasets count by their
    content; of mechanisms different ones may have equal identities, since a type that is not listed here counts by its
    name alone.
    """
    name = type(thing).__qualname__
    if isinstance(thing, (str, int, float, bytes, type(None), Enum)):
        return repr(thing)
    if isinstance(thing, np.ndarray):
        if thing.dtype.hasobject:
            return fingerprint(thing)
        return thing.shape, str(thing.dtype), hashlib.sha256(np.ascontiguousarray(thing).tobytes()).hexdigest()
    # The depth is limited because a function may refer to itself.
    parts = None if depth == 0 else _parts(thing)
    return name if parts is None else (name, [identity(part, depth - 1) for part in parts])


def _is_store(thing: Any) -> bool:
    return isinstance(thing, (list, dict, set, np.ndarray))


def _parts(thing: Any) -> list[Any] | None:
    """The parts that identify a thing; None for types that are not known here."""
    if sparse.issparse(thing):
        rows = sparse.csr_matrix(thing, copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return [repr(thing.shape), rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)]
    if isinstance(thing, (tuple, list)):
        return list(thing)
    if isinstance(thing, Mapping):
        return [part for key in sorted(thing, key=str) for part in (str(key), thing[key])]
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, types.FunctionType):
        # Containers in a closure may change while a mechanism runs (counters, logs), so they are left out.
        inside = [c.cell_contents for c in thing.__closure__ or () if not _is_store(c.cell_contents)]
        constants = [c for c in thing.__code__.co_consts if isinstance(c, (str, int, float))]
        return [thing.__module__, thing.__qualname__, thing.__code__.co_code, constants, inside, thing.__defaults__]
    if isinstance(thing, Pair):
        # The datasets by their content, whatever they are.
        rest = [f.name for f in dataclasses.fields(thing) if f.name not in ("first", "second")]
        return [fingerprint((thing.first, thing.second)), *(getattr(thing, name) for name in rest)]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, f.name) for f in dataclasses.fields(thing) if f.compare]
    return None


class Checkpoint:
    """Outputs on disk in the order of the trials: a line that says which audit they belong to, then numbers."""

    def __init__(self, path: Path, owner: str) -> None:
        if path.is_dir() or not path.parent.is_dir():
            raise invalid("resume", str(path), "a file in a folder that exists")
        self._path, self._owner = path, owner
        self._width, self._rows, self._begin = 0, 0, 0
        if path.exists() and path.stat().st_size:
            self._open()

    def _open(self) -> None:
        with self._path.open("rb") as file:
            try:
                header = json.loads(file.readline())
                owner, self._width, self._begin = header["owner"], header["width"], file.tell()
            except (ValueError, KeyError, TypeError):
                problem = invalid("resume", str(self._path), "a checkpoint of an audit", "Give another file name.")
                raise problem from None
        if owner != self._owner:
            raise invalid("resume", str(self._path), "a checkpoint of this audit", "It belongs to another: rename it.")
        # An incomplete last row, from an audit that was killed, is cut off and played again.
        self._rows = (self._path.stat().st_size - self._begin) // (8 * self._width)
        with self._path.open("rb+") as file:
            file.truncate(self._begin + 8 * self._width * self._rows)

    def available(self, first: int) -> int:
        """How many trials from ``first`` on are in the file."""
        return max(self._rows - first, 0)

    def outputs(self, first: int, count: int) -> Array:
        """Outputs of trials that are in the file."""
        offset = self._begin + 8 * self._width * first
        return np.fromfile(self._path, count=count * self._width, offset=offset).reshape(count, self._width)

    def append(self, outputs: Array) -> None:
        """Save the outputs of the next trials."""
        if not self._width:
            self._width = outputs.shape[1]
            header = json.dumps({"owner": self._owner, "width": self._width}).encode() + b"\n"
            self._path.write_bytes(header)
            self._begin = len(header)
        with self._path.open("ab") as file:
            outputs.astype(float).tofile(file)
        self._rows += len(outputs)
