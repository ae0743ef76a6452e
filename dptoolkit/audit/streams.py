"""One counter-based random stream for every trial, so that a result depends neither on threads nor on order.

Trial i of a purpose ("pilot", "trials", ...) always starts at the same place of the same Philox sequence. A stream is
2^64 blocks long, so trials never overlap; purposes have different keys.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.mechanisms.randomness import Generators, exclusive
from dptoolkit.types import Array

# Secret bits of the trials are drawn so many at a time.
_BITS_A_BLOCK = 4096


class Place(NamedTuple):
    """The live memory of a Philox generator: where it is in its sequence. A kernel may write here; see ``seek``."""

    counter: NDArray[np.uint64]
    flags: NDArray[np.int32]


class Streams:
    """The streams of one purpose under one seed."""

    def __init__(self, seed: int, purpose: str) -> None:
        self.seed, self.purpose = seed, purpose
        words = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(2, np.uint64)
        self._key = np.asarray(words, dtype=np.uint64)

    def generator(self, trial: int = 0) -> np.random.Generator:
        """A new Generator at the start of a trial's stream."""
        return np.random.Generator(np.random.Philox(key=self._key, counter=_start(trial)))

    def bits(self, first: int, count: int) -> NDArray[np.int8]:
        """The secret bits of trials first, ..., first + count - 1: fair coins, each fixed by its trial's number."""
        low, high = first // _BITS_A_BLOCK, -(-(first + count) // _BITS_A_BLOCK)
        other = Streams(self.seed, self.purpose + "/bits")
        blocks = [other.generator(b).integers(0, 2, _BITS_A_BLOCK, dtype=np.int8) for b in range(low, high)]
        start = first - low * _BITS_A_BLOCK
        return np.concatenate(blocks or [np.zeros(0, np.int8)])[start : start + count]


def _start(trial: int) -> NDArray[np.uint64]:
    return np.array([0, trial, 0, 0], dtype=np.uint64)


def seek(generator: np.random.Generator, trial: int, memory: Place | None = None) -> None:
    """Move a generator made by ``Streams.generator`` to the start of another trial: cheaper than making one.

    With its ``memory`` it is cheaper still.
    """
    if memory is not None:
        counter, flags = memory
        counter[0], counter[1], counter[2], counter[3] = 0, trial, 0, 0
        flags[0], flags[10] = 4, 0
        return
    bits: Any = generator.bit_generator
    state = bits.state
    state["state"]["counter"] = _start(trial)
    state["buffer_pos"], state["has_uint32"], state["uinteger"] = 4, 0, 0
    bits.state = state


def place(generator: np.random.Generator) -> Place | None:
    """The memory of a Philox generator, for kernels that seek by themselves; None if NumPy lays it out unexpectedly.

    Layout: pointer to the counter, pointer to the key, int buffer_pos, four buffered words, int has_uint32.
    """
    bits: Any = generator.bit_generator
    try:
        base = bits.ctypes.state_address
        counter = np.ctypeslib.as_array((ctypes.c_uint64 * 4).from_address(ctypes.c_uint64.from_address(base).value))
        flags = np.ctypeslib.as_array((ctypes.c_int32 * 12).from_address(base + 16))
    except (AttributeError, TypeError):
        return None
    seek(generator, 12345)
    generator.random()
    state = bits.state
    is_usual = list(counter) == list(state["state"]["counter"]) and flags[0] == state["buffer_pos"] == 1
    return Place(counter, flags) if is_usual and flags[10] == 0 else None


class TrialStreams(Generators):
    """The streams of several trials as one: each trial gets the numbers that its own Generator would give it.

    ``generator`` is one of Streams, whose ``memory`` (see ``place``) takes the place of each trial in turn.
    """

    def __init__(self, generator: np.random.Generator, memory: Place, trials: NDArray[Any]) -> None:
        self._generator, self._memory = generator, memory
        self._counters = np.zeros((len(trials), 4), np.uint64)
        self._counters[:, 1] = trials
        # As ``seek`` leaves it: nothing is buffered.
        self._states = np.zeros((len(trials), 12), np.int32)
        self._states[:, 0] = 4

    def __len__(self) -> int:
        return len(self._counters)

    def standard_normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normals."""
        from dptoolkit.kernels.streams import NORMAL

        return self._fill(NORMAL, shape)

    def standard_exponential(self, shape: tuple[int, ...]) -> Array:
        """Standard exponentials."""
        from dptoolkit.kernels.streams import EXPONENTIAL

        return self._fill(EXPONENTIAL, shape)

    def _fill(self, law: int, shape: tuple[int, ...]) -> Array:
        from dptoolkit.kernels.streams import fill

        out = np.empty((len(self), math.prod(self._own(shape))))
        with exclusive(self._generator):
            fill(self._generator, *self._memory, self._counters, self._states, law, out)
        return out.reshape(shape)

    def of(self, trial: int, draw: Callable[[np.random.Generator], Any]) -> Any:
        """What ``draw`` returns for the Generator of one trial, whose place moves on."""
        counter, flags = self._memory
        counter[:], flags[:] = self._counters[trial], self._states[trial]
        numbers = draw(self._generator)
        self._counters[trial], self._states[trial] = counter, flags
        return numbers

    def among(self, parts: Sequence[int], draw: Callable[[Generators], Any]) -> Any:
        """What ``draw`` returns for the streams of some trials, whose places move on."""
        which = np.asarray(parts)
        some = TrialStreams(self._generator, self._memory, which)
        some._counters, some._states = self._counters[which], self._states[which]
        numbers = draw(some)
        self._counters[which], self._states[which] = some._counters, some._states
        return numbers
