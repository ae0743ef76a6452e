"""Coordinate owners: how the largest noisy entries of a vector are found when nobody can hold all of it. A simulation.

With very many features the vectors that workers send to one process cost more than the work (docs/clusters.md). Then
each owner can hold a range of the coordinates: it adds up the workers' gradients there, adds the noise of its own
range, and returns its ``s`` largest entries alone. No solver runs this yet; a test compares it with one process.

An entry that is among the s largest of all has fewer than s entries before it, hence fewer than s in its own range, so
its owner returns it. The noise of a chunk of coordinates comes from a stream that the fit's secret key, the round and
the number of the chunk determine, and a chunk has one owner: the merged entries are those of one process, bit for bit,
for any number of owners.

Privacy
-------
The release is that of one process, which keeps the s largest entries of the same noisy vector; what owners return
beyond them stays inside, as gradients do. The key is secret and belongs to one fit. An owner that is lost may be
replaced only by one that draws the same noise for the same exact sums, added in the same order: two different sums with
the same noise reveal their difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.types import Array

# The number of coordinates whose noise has a stream of its own. It is part of what a key gives.
CHUNK = 1 << 16


class Largest(NamedTuple):
    """Entries of a vector, by the size of their values, the largest first; of equal ones the first place."""

    places: NDArray[np.int64]
    values: Array


def chunk_noise(key: bytes, step: int, chunk: int, count: int) -> Array:
    """Standard normals of the first ``count`` coordinates of a chunk, in one step of the fit that has this key."""
    words = hashlib.blake2b(f"{step}:{chunk}".encode(), key=key, digest_size=32).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(words, "big"))).standard_normal(count)


def ranges(d: int, owners: int, chunk: int = CHUNK) -> list[tuple[int, int]]:
    """(first, last) coordinate of every owner: whole chunks, and nothing for owners that are too many."""
    count = -(-whole("d", d, low=1) // chunk)
    borders = [min(count * k // whole("owners", owners, low=1) * chunk, d) for k in range(owners)] + [d]
    return [(first, last) for first, last in zip(borders, borders[1:], strict=False) if first < last]


def noisy_range(exact: Array, first: int, scale: float, key: bytes, step: int, chunk: int = CHUNK) -> Array:
    """The exact entries of an owner's range, which begins at ``first``, with noise of this scale on each.

    Privacy
    -------
    All ranges together are one release with Gaussian noise of this scale. Each chunk is drawn by one owner.
    """
    if first % chunk:
        raise invalid("first", first, f"a multiple of {chunk}", "A chunk has one owner.")
    noise = [chunk_noise(key, step, k, size) for k, size in _chunks(first, len(exact), chunk)]
    return np.asarray(exact + scale * np.concatenate(noise))


def _chunks(first: int, count: int, chunk: int) -> Iterator[tuple[int, int]]:
    """(number, coordinates) of the chunks of a range."""
    for begin in range(first, first + count, chunk):
        yield begin // chunk, min(chunk, first + count - begin)


def largest_of(values: Array, s: int, first: int = 0) -> Largest:
    """The s largest entries of a range; all of them if there are fewer."""
    return _kept(np.arange(first, first + len(values)), values, s)


def merged(parts: Sequence[Largest], s: int) -> Largest:
    """The s largest of what the owners returned, in any order: the s largest of all."""
    return _kept(np.concatenate([part.places for part in parts]), np.concatenate([part.values for part in parts]), s)


def _kept(places: NDArray[np.int64], values: Array, s: int) -> Largest:
    order = np.lexsort((places, -np.abs(values)))[:s]
    return Largest(places[order], values[order])
