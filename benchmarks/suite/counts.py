"""Counted work, which does not depend on the machine: entries of X that are read, random numbers, compilations.

Ordinary tests hold these numbers; the suite shows them beside the times. Sparse products and our own kernels are
counted; a product of dense arrays is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.core import event
from scipy.sparse import _sparsetools

from dptoolkit.kernels import curvature, dual, frank_wolfe, stochastic, sums, threshold

# The multiplier of PCG64, a linear congruential generator of 128 bits.
_MULTIPLIER, _ALL = 0x2360ED051FC65DA44385DF649FCCF645, 2**128 - 1


class Work:
    """Entries of X read, by the function that read them, and the kernels that were compiled."""

    def __init__(self) -> None:
        self.entries: Counter[str] = Counter()
        self.compilations = 0

    def read(self, *names: str) -> int:
        """Entries read by the functions named; by all of them without a name."""
        return sum(count for name, count in self.entries.items() if not names or name in names)


def _sums(data: Any, indices: Any, indptr: Any, r: Any, out: Any, first: int, last: int) -> int:
    return int(indptr[last] - indptr[first])


def _all(data: Any, *rest: Any) -> int:
    return len(data)


def _swept(loss: int, data: Any, *rest: Any) -> int:
    return len(data)


def _margins(data: Any, indices: Any, indptr: Any, support: Any, *rest: Any) -> int:
    return int((indptr[support + 1] - indptr[support]).sum())


def _small_fit(rng: Any, normals: Any, records: Any, how: Any, *rest: Any) -> int:
    return int(how.steps * records.X.size)


def _batches(rng: Any, sizes: Any, rows: Any, *rest: Any) -> int:
    """The number of entries that the rows of all batches have on average."""
    return round(float(sizes.sum()) * len(rows.data) / max(1, len(rows.y)))


def _dense_steps(matrix: Any, y: Any, loss: Any, noise: Any, *rest: Any) -> int:
    return int(noise.shape[0] * noise.shape[1] * matrix.size)


def _product(rows: int, columns: int, indptr: Any, *rest: Any) -> int:
    return int(indptr[-1])


def _block_product(rows: int, columns: int, vectors: int, indptr: Any, *rest: Any) -> int:
    return int(indptr[-1])


# Where an entry of X is read, and how many a call reads, from its arguments.
_READERS: tuple[tuple[Any, str, Callable[..., int]], ...] = (
    (sums, "row_sums", _sums), (sums, "block_feature_sums", _all),
    (threshold, "support_margins", _margins), (threshold, "iht_fit", _small_fit),
    (frank_wolfe, "dense_steps", _dense_steps), (curvature, "curvature_product", _all), (dual, "sweep", _swept),
    (stochastic, "sgd_steps", _batches), (stochastic, "reduced_steps", _batches),
    (_sparsetools, "csr_matvec", _product), (_sparsetools, "csc_matvec", _product),
    (_sparsetools, "csr_matvecs", _block_product), (_sparsetools, "csc_matvecs", _block_product),
)  # fmt: skip
# Kernels that count for themselves: the last argument is an array of counters (solvers/engine/vertex_paths.py WORK).
_COUNTING = ("dithered_block", "dithered_laplace_block", "gram_block")
_TOUCHED = 2


@contextmanager
def counted() -> Iterator[Work]:
    """The work done in a ``with`` block, by this process and all its threads."""
    work, originals = Work(), []

    def watch(module: Any, name: str, count: Callable[..., int]) -> None:
        real = getattr(module, name)

        def watched(*arguments: Any) -> Any:
            work.entries[name] += count(*arguments)
            return real(*arguments)

        originals.append((module, name, real))
        setattr(module, name, watched)

    def watch_counter(name: str) -> None:
        real = getattr(frank_wolfe, name)

        def watched(*arguments: Any) -> Any:
            before = int(arguments[-1][_TOUCHED])
            result = real(*arguments)
            work.entries[name] += int(arguments[-1][_TOUCHED]) - before
            return result

        originals.append((frank_wolfe, name, real))
        setattr(frank_wolfe, name, watched)

    for reader in _READERS:
        watch(*reader)
    for name in _COUNTING:
        watch_counter(name)
    try:
        with event.install_recorder("numba:compile") as recorder:
            yield work
    finally:
        for module, name, real in originals:
            setattr(module, name, real)
    work.compilations = sum(1 for _, one in recorder.buffer if one.is_start)


def place(rng: np.random.Generator) -> tuple[int, int]:
    """The place of a PCG64 generator in its stream: its state, and the increment that names the stream."""
    state = rng.bit_generator.state["state"]
    return int(state["state"]), int(state["inc"])


def draws(before: tuple[int, int], after: tuple[int, int]) -> int:
    """The 64-bit numbers drawn between two places of one stream; a normal takes about 1.01 of them.

    The lowest k bits of the state repeat with period 2^k, so that the distance is found bit by bit.
    """
    (state, increment), (goal, other) = before, after
    if increment != other:
        raise ValueError("the places are of two streams")
    distance, bit, multiplier = 0, 1, _MULTIPLIER
    while state != goal:
        if (state ^ goal) & bit:
            state = (state * multiplier + increment) & _ALL
            distance |= bit
        bit <<= 1
        increment = (multiplier + 1) * increment & _ALL
        multiplier = multiplier * multiplier & _ALL
    return distance
