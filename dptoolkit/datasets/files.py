"""The unpacked content of a file, plain or compressed, up to a limit."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from dptoolkit._validate import invalid, whole
from dptoolkit.errors import DpToolkitError

_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
SUFFIXES = ("", *_OPENERS)
# The largest text that is read unless the caller allows more: reading needs a few times its size in memory, and a
# compressed file of a few kilobytes can unpack to terabytes.
MAX_BYTES = 2 * 2**30
_PIECE = 2**20


def read_bytes(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The unpacked content of a file; .gz, .xz and .bz2 are known by their suffix.

    Raises InvalidValue, with the name of the file, for one that cannot be opened, is damaged, was cut off, or unpacks
    to more than ``max_bytes``. No more than that is ever unpacked.
    """
    limit = whole("max_bytes", max_bytes, low=1)
    path = Path(path)
    try:
        with path.open("rb") as packed:
            content = _unpacked(packed, path, limit)
    except DpToolkitError:
        raise
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise invalid("path", str(path), "a file that can be read", f"{reason}.") from None
    if len(content) > limit:
        repair = "Raise max_bytes if this is no mistake, and memory allows several times as much."
        raise invalid("path", str(path), f"a file with at most {limit:,} bytes when unpacked", repair)
    return content


def _unpacked(packed: IO[bytes], path: Path, limit: int) -> bytes:
    """Up to one byte more than the limit, read in pieces, as one large read would reserve all the memory at once."""
    opener = _OPENERS.get(path.suffix)
    if opener is None:
        return _pieces(packed, limit)
    try:
        with opener(packed) as file:
            return _pieces(file, limit)
    except (EOFError, OSError, lzma.LZMAError, zlib.error):
        repair = "It is damaged, cut off, or something else by that name."
        raise invalid("path", str(path), f"a {path.suffix} file that unpacks to its end", repair) from None


def _pieces(file: Any, limit: int) -> bytes:
    pieces, size = [], 0
    while size <= limit and (piece := file.read(min(_PIECE, limit + 1 - size))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
