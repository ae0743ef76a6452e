"""Random numbers for many trials of an audit at once, each trial from its own place of a Philox sequence."""

from __future__ import annotations

from typing import Any

from numba import njit
from numpy.typing import NDArray

NORMAL, EXPONENTIAL = 0, 1


@njit(cache=True, nogil=True, error_model="numpy")
def fill(
    rng: Any,
    counter: NDArray[Any],
    flags: NDArray[Any],
    counters: NDArray[Any],
    states: NDArray[Any],
    law: int,
    out: NDArray[Any],
) -> None:
    """Row i of ``out`` from the stream whose place is counters[i] and states[i], which move on.

    ``counter`` and ``flags`` are the memory of ``rng`` (audit.streams.place). Every number is the one that the same
    method of a Generator in that place would return.
    """
    for i in range(out.shape[0]):
        for a in range(4):
            counter[a] = counters[i, a]
        for a in range(12):
            flags[a] = states[i, a]
        if law == NORMAL:
            for j in range(out.shape[1]):
                out[i, j] = rng.standard_normal()
        else:
            for j in range(out.shape[1]):
                out[i, j] = rng.standard_exponential()
        for a in range(4):
            counters[i, a] = counter[a]
        for a in range(12):
            states[i, a] = flags[a]
