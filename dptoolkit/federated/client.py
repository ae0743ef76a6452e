"""One client: it owns its plan, its records and its random key, gets a model, and replies with one message.

The server decides nothing but the model that a round starts from. How much noise is added, how many steps are made and
how many rounds are answered is the client's plan.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.accounting import Ledger
from dptoolkit.accounting.ledger import Reservation
from dptoolkit.data import Rows
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.engine.initial import LARGEST, NOTHING, Start, are_places
from dptoolkit.solvers.frame.fit import record, reserve
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# The length of a client's key.
KEY_BYTES = 32


@dataclass(frozen=True)
class Message:
    """What a client sends in a round: the weights that are not 0 and their places. It holds nothing else.

    Losses, accuracies, batch sizes and times would be further releases, which no noise hides.

    Attributes
    ----------
    client : int
        The number of the client.
    round : int
        The number of the round.
    support : ndarray
        The places of the weights that are not 0.
    values : ndarray
        These weights.
    """

    client: int
    round: int
    support: NDArray[np.int64]
    values: Array

    @property
    def is_numbered(self) -> bool:
        """Whether client and round are integers; from elsewhere they may be anything."""
        return type(self.client) is int and type(self.round) is int


class LocalSteps(Protocol):
    """What makes a client's steps: bounded records with the noise of a plan."""

    def advance(self, rng: np.random.Generator, start: Start, steps: int) -> Start:
        """The weights after ``steps`` steps from ``start``, both as (support, values)."""


class _Unique:
    """Something of which a second copy would draw the same noise at another model, and so take the noise off."""

    def __copy__(self) -> NoReturn:
        self._refuse("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse("copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse("pickled or sent to another process")

    def _refuse(self, what: str) -> NoReturn:
        why = "both would draw the same noise, and the difference of two messages would have none"
        raise TypeError(f"A {type(self).__name__} of a federation cannot be {what}: {why}. Make it where it is needed.")


class Key(_Unique):
    """The secret from which a client draws its batches and its noise: another stream for every round and model.

    ``is_seeded`` says that the key can be made again from a seed. Its streams depend on the round alone, so that a fit
    can be repeated where the last bits of a model differ.

    Privacy
    -------
    Two clients with one key would draw the same noise, and the difference of their messages would have none. So a key
    is taken once, and cannot be copied. Even if it were, two models would not meet the same noise: a stream is made of
    HMAC-SHA-256 of the round and the model under the key. A seeded key hides nothing from who guesses the seed.
    """

    def __init__(self, source: np.random.Generator, shared: bool = False, is_seeded: bool = False) -> None:
        # A Generator of the caller's own kind knows how it draws: it is used as it is, by all clients in turn.
        self._shared, self._is_seeded = source if shared else None, is_seeded
        self._kind: Any = type(source.bit_generator)
        self._words = () if shared else tuple(np.frombuffer(source.bytes(KEY_BYTES), dtype="<u4").tolist())
        self._owner: int | None = None

    def taken(self, number: int) -> Key:
        """The key, for client ``number`` alone."""
        if self._owner is not None:
            repair = "Two clients with one key draw the same noise: make another Key."
            raise invalid("key", f"that of client {self._owner}", f"one of client {number}'s own", repair)
        self._owner = number
        return self

    @classmethod
    def of(cls, source: Source, text: str) -> Key:
        """The key of the client that ``text`` names, from the argument ``rng`` of a fit."""
        if source.fresh:
            return cls(np.random.default_rng())
        child = source.stream(hashlib.sha256(text.encode()).hexdigest())
        return cls(child, shared=child is source.generator, is_seeded=True)

    @classmethod
    def from_bytes(cls, secret: bytes, is_seeded: bool = False) -> Key:
        """The key that ``to_bytes`` wrote, for the client that keeps it on its disk.

        Privacy
        -------
        Refuses fewer or more bytes than a key has: anybody can draw the noise of an empty key.
        """
        if len(secret) != KEY_BYTES:
            raise invalid("key", f"{len(secret)} bytes", f"the {KEY_BYTES} bytes of a key", "Its file is damaged.")
        key = cls(np.random.default_rng(0), is_seeded=is_seeded)
        key._words = tuple(np.frombuffer(secret, dtype="<u4").tolist())
        return key

    def to_bytes(self) -> bytes:
        """The 32 bytes of the key, which are as secret as the records."""
        if self._shared is not None or self._kind is not np.random.PCG64:
            raise invalid("key", self._kind.__name__, "one that a process can keep on its disk", "Leave rng out.")
        return np.array(self._words, dtype="<u4").tobytes()

    def stream(self, round_number: int, start: Start = NOTHING) -> np.random.Generator:
        """The Generator of one round that starts from a model."""
        if self._shared is not None:
            return self._shared
        if self._is_seeded:
            sequence = np.random.SeedSequence(self._words, spawn_key=(round_number,))
        else:
            support, values = start
            model = support.astype("<i8").tobytes() + values.astype("<f8").tobytes()
            # The number of weights says where places end, so that no two requests have one text.
            text = f"{round_number} {len(support)} ".encode() + model
            words = hmac.digest(np.array(self._words, dtype="<u4").tobytes(), text, "sha256")
            sequence = np.random.SeedSequence(np.frombuffer(words, dtype="<u4").tolist())
        return np.random.Generator(self._kind(sequence))


class Member(_Unique):
    """One participant of a federation: it answers every round once, in order.

    ``settings`` are those of its fit, on d features; ``steps`` makes its local steps, and is made when the first round
    begins. Threads may share a member. A copy or a forked process, which could answer a round for the second time with
    the same noise, is refused.
    """

    def __init__(self, number: int, settings: Any, d: int, steps: Callable[[], Any], key: Key) -> None:
        self.number, self.settings = number, settings
        self._width, self._free, self._make, self._key = settings.width(d), settings.free(d), steps, key.taken(number)
        self._lock, self._process = threading.RLock(), os.getpid()
        self._steps: LocalSteps | None = None
        self._last: Message | None = None

    def resume(self, last: Message) -> None:
        """Go on after ``last``, the message of this client that an earlier process stored."""
        if self._last is not None or last.client != self.number:
            raise invalid("last", f"of client {last.client}", f"the stored message of client {self.number}, given once")
        self._last = last

    def reply(self, round_number: int, support: Any, values: Any) -> Message:
        """The message of a round that starts from the weights ``values`` on ``support``.

        Parameters
        ----------
        round_number : int
            The number of the round, from 1 on.
        support : (m,) array of int
            Places of the weights that are not 0.
        values : (m,) array
            These weights.

        Returns
        -------
        Message
            The weights after the client's local steps.
        """
        with self._lock:
            return self._answer(round_number, support, values)

    def check_request(self, round_number: int, support: Any, values: Any) -> Start:
        """The model of a request for the next round; a request for another, or with a misshapen model, is refused.

        Parameters
        ----------
        round_number : int
            The number of the round.
        support : (m,) array of int
            Places of the weights that are not 0.
        values : (m,) array
            These weights.

        Returns
        -------
        tuple of ndarray
            (support, values).

        Privacy
        -------
        Touches no data: what is refused depends on the request and on the rounds that were answered.
        """
        rounds, asked = self.settings.rounds, whole("round", round_number, low=1)
        last = 0 if self._last is None else self._last.round
        if asked > rounds:
            raise invalid("round", asked, f"<= {rounds}", f"Client {self.number} answers no more rounds.")
        if asked != last + 1:
            raise invalid("round", asked, f"{last + 1}, the next of client {self.number}", "Rounds come in order.")
        name = f"model for client {self.number}"
        start = check_weights(name, support, values, self._width)
        kept = int(np.count_nonzero(start[0] < self._free))
        if kept > self.settings.sparsity:
            raise invalid(name, f"with {kept} weights", f"with at most sparsity={self.settings.sparsity} of them")
        return start

    def _answer(self, round_number: int, support: Any, values: Any) -> Message:
        if os.getpid() != self._process:
            repair = "Both processes would answer with the same noise: make the client where it answers."
            where = f"used there, not in process {os.getpid()}"
            raise invalid("client", f"{self.number} of process {self._process}", where, repair)
        asked = whole("round", round_number, low=1)
        if self._last is not None and asked == self._last.round:
            return self._last
        start = self.check_request(asked, support, values)
        # A hostile model makes margins overflow; whether it does depends on the records, so nobody must be told.
        with np.errstate(all="ignore"):
            if self._steps is None:
                self._steps = self._make()
            end = self._steps.advance(self._key.stream(asked, start), start, self.settings.local_steps)
        self._last = Message(self.number, asked, *end)
        return self._last


class Client(Member):
    """One participant of a private federation: it owns its plan, its records, its key and its ledger.

    Parameters
    ----------
    number : int
        The number of the client, from 0.
    plan : Plan
        What the client releases in all rounds.
    rows : Rows
        Its validated records, as many as the plan is for.
    labels : ndarray
        Their labels.
    key : Key
        The source of its noise, which no other client has.
    ledger : Ledger or None, default None
        The ledger to charge before the first round; it may refuse.
    is_void : bool, default False
        Whether no guarantee covers the records; rows that are marked are never covered.

    Privacy
    -------
    ``reply`` makes ``local_steps`` of the releases of the plan, each with the plan's noise; over all rounds they are
    the plan's event, which ``reserve`` charges before the first. A round is answered once: a second request for it
    gets the first reply, whatever model it carries, because equal noise at two models would cancel. No other round is
    answered out of order, and none beyond the plan's.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        rows: Rows,
        labels: Array,
        key: Key,
        ledger: Ledger | None = None,
        is_void: bool = False,
    ) -> None:
        # The plan's noise is for a mean over so many records.
        if rows.shape != (plan.n, plan.d) or len(labels) != plan.n:
            size = f"{rows.shape[0]} rows of {rows.shape[1]} features with {len(labels)} labels"
            raise invalid(f"rows of client {number}", size, f"the {plan.n} records of {plan.d} features of its plan")
        super().__init__(number, plan.settings, plan.d, lambda: plan.settings.bind(plan, rows, labels), key)
        self.plan, self._ledger, self._is_void = plan, ledger, is_void or rows.is_marked
        self._reservation: Reservation | None = None
        self._is_charged = False

    def reserve(self) -> None:
        """Charge the ledger for all rounds; it raises, and charges nothing, if the budget is short."""
        with self._lock:
            self._reservation = reserve(self._ledger, self.plan, self._is_void)
            self._is_charged = True

    def cancel(self) -> None:
        """Return the charge, as no round was answered and none will be."""
        with self._lock:
            if self._reservation is not None and self._last is None:
                self._reservation.cancel()
            self._is_charged = False

    def _answer(self, round_number: int, support: Any, values: Any) -> Message:
        """See ``Member``; all rounds must have been charged, and the last confirms the charge."""
        if not self._is_charged:
            raise invalid("round", round_number, "asked after reserve()", f"Client {self.number} has charged nothing.")
        message = super()._answer(round_number, support, values)
        if message.round == self.settings.rounds:
            record(self._reservation)
        return message


def check_weights(name: str, support: Any, values: Any, width: int) -> Start:
    """(support, values) of ``width`` weights, in memory of their own: increasing places, finite values.

    Privacy
    -------
    The places come from a server or a client that may be hostile, and go to kernels that trust them. A place that does
    not exist would count as a coordinate with data, and one of those without data would get no noise for it. So places
    are compared as integers of 64 bits, which hold all of them, and are never subtracted: differences wrap around.
    """
    try:
        places, weights = np.array(support), np.array(values)
    except (TypeError, ValueError, OverflowError):
        places = weights = np.array(None)
    fits = places.ndim == 1 and places.shape == weights.shape and (places.dtype.kind in "iu" or places.size == 0)
    if not fits or weights.dtype.kind not in "fiu":
        raise invalid(name, "of another shape or type", f"places and weights of a model with {width} weights")
    numbers = places.astype(np.int64) if places.size else np.zeros(0, dtype=np.int64)
    # An unsigned number that no place can be must not become one.
    if (places.dtype.kind == "u" and (places > LARGEST).any()) or not are_places(numbers, width):
        raise invalid(name, "with other places", f"increasing places below {width}")
    with np.errstate(over="ignore"):
        doubles = weights.astype(np.float64)
    if not np.isfinite(doubles).all():
        raise invalid(name, "with NaN or infinity", "finite")
    return numbers, doubles
