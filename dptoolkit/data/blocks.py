"""Records in blocks of rows, which may lie in other processes: a fit asks them for exact sums at public weights.

A solver that releases noisy sums over records needs the records for nothing else. So whoever holds a block of rows can
answer for it (``Block.ask``), and the fit adds up the answers (``CheckedBlocks.total``) and draws the noise, once.

Privacy
-------
What a block answers is exact, and NOT private: answers go to the process of the fit, which is trusted as it is with one
matrix. Noise is drawn there, after the last block has answered. So the release of a fit on blocks is that of the same
sum over one matrix, and its sensitivity and event are those of the plan. What is sent to a block is public: settings,
sizes, and weights that were released.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import sparse

from dptoolkit._validate import invalid, whole
from dptoolkit.data.rows import Rows
from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.types import Array

Self = TypeVar("Self", bound="BlockedRows")


class Summand(ABC):
    """What one block contributes to an exact sum over records, at public arguments.

    A subclass is a frozen dataclass of public values. It is sent to the block, and ``prepared`` is kept there from one
    question to the next; summands that are equal share it. A sum of integers may be returned as integers, whose total
    has no rounding.

    Privacy
    -------
    NOT private: a term is exact. The sensitivity of the total is that of the solver's query.
    """

    @abstractmethod
    def prepared(self, rows: Rows, labels: Array) -> Any:
        """The validated records of a block in the layout of ``term``: clipped to public bounds, each on its own."""

    @abstractmethod
    def term(self, prepared: Any, *public: Any) -> Array:
        """The block's part of the sum, in memory of its own; a function of the block and ``public`` alone."""


@dataclass(frozen=True)
class Check:
    """How the records of every block are validated: by a solver's settings, for a public width and public labels."""

    settings: Any
    n_features: int | None
    label_values: Any

    def __call__(self, X: Any, y: Any) -> tuple[Rows, Array]:
        rows = self.settings.validated_rows(X, self.n_features)
        return rows, self.settings.labels(y, rows.shape[0], self.label_values)


class Failure(NamedTuple):
    """Why a block has no answer, in words that hold no record."""

    reason: str


@dataclass
class Block:
    """The records of one block where they lie, with what was derived from them for the last question.

    Rows are kept sparse, because the order of sums over dense rows depends on the number of threads. A block that is
    pickled is its records alone, with the ``digest`` that was made of them, if any.
    """

    X: Any
    y: Any
    digest: str = ""
    _derived: dict[str, tuple[Any, Any]] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.X = self.X if sparse.issparse(self.X) else sparse.csr_matrix(np.asarray(self.X))

    def __repr__(self) -> str:
        return "<Block>"

    def __reduce__(self) -> Any:
        return Block, (self.X, self.y, self.digest)

    def with_digest(self) -> Block:
        """The block, with the SHA-256 digest of its records, by which other records in their place are noticed.

        Privacy
        -------
        NOT private: the digest stays with the process of the fit and its workers.
        """
        labels = np.asarray(self.y)
        found = hashlib.sha256(f"{self.X.shape} {labels.shape}".encode())
        for part in (self.X.data, self.X.indices, self.X.indptr):
            found.update(f" {part.dtype.str} ".encode())
            # Bytes as they lie in memory: a block may fill most of it.
            found.update(np.ascontiguousarray(part).view(np.uint8).data)
        found.update(f" {labels.dtype.str} ".encode() + labels.tobytes())
        self.digest = found.hexdigest()
        return self

    def ask(self, check: Check, summand: Summand | None = None, *public: Any) -> Any:
        """The block's term of a sum, or, without a summand, its shape after validation.

        Privacy
        -------
        NOT private: see ``Summand``.
        """
        # Two threads of one worker must not write to the same memory of a prepared block.
        with self._lock:
            rows, labels = self._kept("records", check, lambda: check(self.X, self.y))
            if summand is None:
                return rows.shape
            # What was prepared belongs to the records of one check.
            key = check, summand
            return summand.term(self._kept("prepared", key, lambda: summand.prepared(rows, labels)), *public)

    def _kept(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """What ``make`` returned for this key at an earlier question, else what it returns now."""
        if name not in self._derived or self._derived[name][0] != key:
            # Dropped first: the old and the new one need not fit into memory together.
            self._derived.pop(name, None)
            self._derived[name] = key, make()
        return self._derived[name][1]


def answer(block: Any, check: Check, summand: Summand | None, public: tuple[Any, ...]) -> Any:
    """``Block.ask``, or a Failure: nothing that a block raises may carry a record into a log.

    Privacy
    -------
    Our own errors never show a record; of any other only the type is kept.
    """
    if isinstance(block, Failure):
        return block
    try:
        return block.ask(check, summand, *public)
    except DpToolkitError as problem:
        return Failure(str(problem))
    except Exception as problem:
        return Failure(f"{type(problem).__name__} while it answered.")


def loaded(load: Callable[[], tuple[Any, Any]]) -> Block | Failure:
    """The block whose records ``load`` returns, or why there is none."""
    try:
        return Block(*load())
    except DpToolkitError as problem:
        return Failure(str(problem))
    except MemoryError:
        return Failure("it does not fit into memory.")
    except Exception as problem:
        return Failure(f"{type(problem).__name__} while it was read.")


def in_order(answers: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """Answers that arrive in any order, each with the number of its block, in the order of the blocks."""
    waiting: dict[int, Any] = {}
    due = 0
    for number, value in answers:
        waiting[number] = value
        while due in waiting:
            yield waiting.pop(due)
            due += 1


class BlockedRows(ABC):
    """Rows and labels in blocks. Solvers that support it take one in place of X, with None in place of y.

    Subclasses say where blocks lie: ``answers`` asks each of them.
    """

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The name of every block in messages."""

    @abstractmethod
    def answers(self, check: Check, summand: Summand | None, public: tuple[Any, ...]) -> Iterable[tuple[int, Any]]:
        """(number of the block, ``answer`` of the block) of every block, as they arrive."""

    def checked(self, settings: Any, y: Any, n_features: int | None, label_values: Any) -> CheckedBlocks:
        """The blocks after every record was validated where it lies. Spends nothing and releases nothing but sizes."""
        if y is not None:
            repair = "Labels are read together with the rows of their block."
            raise invalid("y", type(y).__name__, "None where X is in blocks", repair)
        width = None if n_features is None else whole("n_features", n_features, low=1)
        check = Check(settings, width, label_values)
        shapes = [self._answered(k, value) for k, value in enumerate(in_order(self.answers(check, None, ())))]
        for number, (_, d) in enumerate(shapes):
            if d != shapes[0][1]:
                bound = f"{shapes[0][1]} features wide, as block 0 is"
                raise invalid(self._named(number), f"{d} features", bound, "n_features adds columns of zeros.")
        return CheckedBlocks(self, check, (sum(n for n, _ in shapes), shapes[0][1]))

    def close(self) -> None:  # noqa: B027
        """End what was opened for these blocks; in this process nothing was."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *problem: Any) -> None:
        self.close()

    def _named(self, number: int) -> str:
        return f"block {number} ({self.names[number]})"

    def _answered(self, number: int, value: Any) -> Any:
        if isinstance(value, Failure):
            raise InvalidValue(f"{self._named(number)}: {value.reason} Nothing was released.")
        return value


@dataclass(frozen=True)
class CheckedBlocks:
    """Validated blocks: n rows of d features in all, whose exact sums can be asked for."""

    blocks: BlockedRows
    check: Check
    shape: tuple[int, int]

    def total(self, summand: Summand, *public: Any) -> Any:
        """The sum of all blocks' terms, added in the order of the blocks: the same bits wherever the blocks lie.

        Privacy
        -------
        NOT private: the caller adds the noise. If a block has no answer, nothing is returned.
        """
        terms = enumerate(in_order(self.blocks.answers(self.check, summand, public)))
        total: Any = None
        for number, term in terms:
            own = self.blocks._answered(number, term)
            if total is None:
                total = own
            else:
                total += own
        return total


class LocalBlocks(BlockedRows):
    """Blocks in this process: the reference for every other place.

    Parameters
    ----------
    parts : sequence of tuple
        (X, y) of every block.
    names : sequence of str or None, default None
        What messages call the blocks.
    """

    def __init__(self, parts: Sequence[tuple[Any, Any]], names: Sequence[str] | None = None) -> None:
        if not parts:
            raise invalid("parts", "[]", "at least one block")
        self._names = [f"{k + 1} of {len(parts)}" for k in range(len(parts))] if names is None else list(names)
        self._blocks = [loaded(functools.partial(tuple, part)) for part in parts]

    @classmethod
    def loading(cls, loads: Sequence[Callable[[], tuple[Any, Any]]], names: Sequence[str]) -> LocalBlocks:
        """Blocks that are read here and now; one that cannot be read is named when a fit asks for it."""
        own = cls.__new__(cls)
        own._names, own._blocks = list(names), [loaded(load) for load in loads]
        return own

    @property
    def names(self) -> Sequence[str]:
        """See ``BlockedRows``."""
        return self._names

    def answers(self, check: Check, summand: Summand | None, public: tuple[Any, ...]) -> Iterable[tuple[int, Any]]:
        """See ``BlockedRows``."""
        return ((k, answer(block, check, summand, public)) for k, block in enumerate(self._blocks))
