"""Readers of LIBSVM text, comma-separated text and idx files, plain or compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit._validate import invalid

Array = NDArray[np.float64]
_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
SUFFIXES = ("", *_OPENERS)


def read_bytes(path: str | Path) -> bytes:
    """The unpacked content; .gz, .xz and .bz2 are known by their suffix."""
    path = Path(path)
    opener = _OPENERS.get(path.suffix)
    if opener is None:
        return path.read_bytes()
    with opener(path) as file:
        return bytes(file.read())


def read_libsvm(path: str | Path, n_features: int | None = None) -> tuple[Any, Array]:
    """(X, y) of a LIBSVM text file, ``label column:value column:value ...`` with columns from 1; X is CSR.

    n_features : the width; by default the largest column in the file, which for a test file may be too small.
    """
    text = _without_comments(read_bytes(path))
    counts = np.array([line.count(b":") for line in text.split(b"\n") if line.strip()], dtype=np.int64)
    numbers = _numbers(text.replace(b":", b" "))
    if numbers is None or len(numbers) != len(counts) + 2 * counts.sum():
        raise _unreadable(path, "one label, then column:value pairs")
    starts = np.cumsum(1 + 2 * counts) - (1 + 2 * counts)
    pairs = np.delete(numbers, starts).reshape(-1, 2)
    columns = _columns(pairs[:, 0], n_features, path)
    width = n_features if n_features is not None else int(columns.max(initial=-1)) + 1
    indptr = np.concatenate([[0], np.cumsum(counts)])
    X = sparse.csr_matrix((np.ascontiguousarray(pairs[:, 1]), columns, indptr), shape=(len(counts), width))
    X.sort_indices()
    if not X.has_canonical_format:
        raise _unreadable(path, "each column at most once in a row")
    return X, numbers[starts]


def _without_comments(text: bytes) -> bytes:
    if b"#" not in text:
        return text
    return b"\n".join(line.split(b"#", 1)[0] for line in text.split(b"\n"))


def _numbers(text: bytes) -> Array | None:
    """All numbers of a text with white space between them; None if there is anything else."""
    with warnings.catch_warnings():
        # NumPy stops at what it cannot read, with a warning only.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text.decode("ascii"), dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None


def _columns(values: Array, n_features: int | None, path: str | Path) -> NDArray[np.int32]:
    """Zero-based columns from one-based ones that were read as floats."""
    limit = np.iinfo(np.int32).max if n_features is None else n_features
    if len(values) == 0:
        return np.zeros(0, dtype=np.int32)
    if values.min() < 1 or values.max() > limit or not np.array_equal(values, np.trunc(values)):
        raise _unreadable(path, f"columns that are integers from 1 to {limit}")
    return (values - 1).astype(np.int32)


def _unreadable(path: str | Path, expected: str) -> Exception:
    return invalid("path", str(path), f"a LIBSVM text file with {expected}")


def read_csv(path: str | Path) -> Array:
    """All rows of a numeric comma-separated file with one header line."""
    header, _, body = read_bytes(path).partition(b"\n")
    width = header.count(b",") + 1
    numbers = _numbers(body.replace(b",", b" "))
    if numbers is None or len(numbers) % width:
        raise invalid("path", str(path), f"a csv file of numbers, {width} in every row, with a header")
    return numbers.reshape(-1, width)


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """The array of bytes in an idx file (the format of MNIST)."""
    content = read_bytes(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise invalid("path", str(path), "an idx file of unsigned bytes")
    dimensions = content[3]
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4))
    head = 4 + 4 * dimensions
    if len(content) - head != math.prod(shape):
        raise invalid("path", str(path), f"an idx file with {math.prod(shape)} entries, as its head says")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)
