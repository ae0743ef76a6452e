"""Readers of LIBSVM and csv text, of idx and npz arrays, packed or not, up to a number of bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dptoolkit._validate import invalid, whole
from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.types import Array

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
        repair = "If the file is right, give a larger max_bytes; reading needs several times as much memory."
        raise invalid("path", str(path), f"a file with at most {limit:,} bytes when uncompressed", repair)
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
        repair = "It is damaged, incomplete, or not such a file."
        raise invalid("path", str(path), f"a {path.suffix} file that can be uncompressed", repair) from None


def _pieces(file: Any, limit: int) -> bytes:
    pieces, size = [], 0
    while size <= limit and (piece := file.read(min(_PIECE, limit + 1 - size))):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


# --- Readers of LIBSVM text, of numbers with separators and of idx files, plain or compressed -----------------
#
# A file is read as a whole or refused as a whole. An error names the file, the line and what was expected there; the
# line
# itself is never shown, as it may be somebody's record.

Places = NDArray[np.int64]

# The largest width without n_features: one wrong digit in a file must not ask for gigabytes of coefficients.
_WIDEST_FROM_DATA = 100_000_000
_WIDEST = int(np.iinfo(np.int32).max)
_PAIRS = "one label, then column:value pairs of plain numbers, as in LIBSVM text"
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WIDTH_FROM_DATA = (
    "n_features was not given: the width of X is inferred from the data, where one record can change it. Give the "
    "public number of columns for private fits."
)
_MARK = b"\xef\xbb\xbf"  # what some editors write before UTF-8 text


class WidthWarning(UserWarning):
    """The number of features was inferred from the data, which is not private."""


def read_libsvm(
    path: str | Path, n_features: int | None = None, max_bytes: int = MAX_BYTES, has_labels: bool | None = True
) -> tuple[Any, Any]:
    """Read a LIBSVM text file: ``label column:value column:value ...``, columns counted from 1.

    Columns may come in any order, each at most once in a row. Text after ``#`` is a remark; blank lines are skipped.
    NaN, infinity, ``qid:`` and files without a row are refused.

    Parameters
    ----------
    path : str or Path
        The file, plain or ending in .gz, .xz or .bz2.
    n_features : int or None, default None
        The public width of X: a column beyond it is an error. None uses the largest column in the file, with a
        WidthWarning.
    max_bytes : int, default 2_147_483_648
        Files that are larger than this when uncompressed are refused.
    has_labels : bool or None, default True
        Whether every line begins with a label. With False there are no labels, and y is None; None looks at the first
        line.

    Returns
    -------
    tuple
        ``(X, y)``: a CSR matrix, and the labels or None.

    Privacy
    -------
    Reading releases nothing, except through the width: without ``n_features`` one record can change the number of
    columns, and so the length of everything that is fitted to X, and no noise hides that. Give ``n_features`` for
    private fits. Errors name a line number and what was expected there, never what the line holds.
    """
    limit = _WIDEST_FROM_DATA if n_features is None else _width(n_features)
    text = _without_remarks(read_text(path, max_bytes))
    if has_labels is None:
        has_labels = b":" not in next(iter(text.split(None, 1)), b"")
    lines = _lines(text if has_labels else _with_labels(text, path), b":", path)
    starts, counts = _rows_of_pairs(lines)
    numbers = _numbers(lines, _PAIRS)
    pairs = np.delete(numbers, starts).reshape(-1, 2)
    columns = _columns(pairs[:, 0], lines, starts, limit, n_features is None)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    width = n_features if n_features is not None else int(columns.max(initial=-1)) + 1
    X = sparse.csr_matrix((np.ascontiguousarray(pairs[:, 1]), columns, indptr), shape=(len(counts), width))
    X.sort_indices()
    if not X.has_canonical_format:
        raise lines.fault(_twice(X, lines, starts), "a row of LIBSVM text with each column at most once")
    if n_features is None:
        warnings.warn(_WIDTH_FROM_DATA, WidthWarning, stacklevel=2)
    return X, numbers[starts] if has_labels else None


def _with_labels(text: bytes, path: str | Path) -> bytes:
    """The text with a label of 0 before every record. A blank line may be a record without entries: it is refused."""
    records = text.rstrip().split(b"\n")
    for number, record in enumerate(records, 1):
        if not record.strip():
            raise fault(path, number, "a record", "Write 0 before every record, as a label, if one has no entries.")
    return b"\n".join(b"0 " + record for record in records)


def _width(n_features: Any) -> int:
    width = whole("n_features", n_features, low=1, repair="It is the public number of columns.")
    if width > _WIDEST:
        raise invalid("n_features", width, f"<= {_WIDEST}")
    return width


# --- lines and the numbers in them ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Lines:
    """The places of the numbers in a text, and of the separators between them.

    ``spaced`` is the text with blanks for separators, ``begins`` is where lines begin, ``numbers`` and ``marks`` are
    where numbers begin and separators are, ``number_counts`` and ``mark_counts`` are how many each line has.
    """

    path: str
    spaced: bytes
    blank: NDArray[np.bool_]
    begins: Places
    numbers: Places
    marks: Places
    number_counts: Places
    mark_counts: Places
    above: int = 0  # lines of the file that come before the text

    @property
    def filled(self) -> NDArray[np.bool_]:
        """Which lines hold anything."""
        return (self.number_counts > 0) | (self.mark_counts > 0)

    def fault(self, place: int, expected: str, repair: str = "") -> InvalidValue:
        """The error for what stands at a place of the text."""
        line = int(np.searchsorted(self.begins, place, side="right")) + self.above
        return fault(self.path, line, expected, repair)


def fault(path: str | Path, line: int, expected: str, repair: str = "") -> InvalidValue:
    """The error for a line of a file; the caller raises it."""
    tail = f" {repair}" if repair else ""
    return InvalidValue(f"path={str(path)!r}, line {line}: must be {expected}.{tail}")


def read_text(path: str | Path, max_bytes: int) -> bytes:
    """The unpacked text of a file, without the mark that some editors write before UTF-8."""
    return read_bytes(path, max_bytes).removeprefix(_MARK)


def _without_remarks(text: bytes) -> bytes:
    if b"#" not in text:
        return text
    return b"\n".join(line.split(b"#", 1)[0] for line in text.split(b"\n"))


def _lines(text: bytes, separator: bytes, path: str | Path, above: int = 0) -> _Lines:
    """The layout of a text, computed with arrays: a Python loop over the numbers would take longer than parsing."""
    codes = np.frombuffer(text or b"\n", dtype=np.uint8)
    spaced = text.replace(separator, b" ")
    # Other control characters count as blanks here, but not for the parser, which will stop at them.
    blank = np.frombuffer(spaced or b"\n", dtype=np.uint8) <= ord(" ")
    numbers = np.flatnonzero(~blank & np.concatenate([[True], blank[:-1]]))
    marks = np.flatnonzero(codes == separator[0])
    begins = np.concatenate([[0], np.flatnonzero(codes == ord("\n")) + 1])
    lines = _Lines(
        str(path), spaced, blank, begins, numbers, marks, _by_line(numbers, begins), _by_line(marks, begins), above
    )
    if not len(numbers):
        raise invalid("path", str(path), "a file with at least one row", "It has no rows.")
    return lines


def _by_line(places: Places, begins: Places) -> Places:
    """How many of the places each line has."""
    return np.diff(np.append(np.searchsorted(places, begins), len(places)))


def _numbers(lines: _Lines, expected: str) -> Array:
    """All numbers of the text, after a check that every piece of text is one finite number."""
    with warnings.catch_warnings():
        # NumPy stops at text that is not a number; some versions only warn.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            numbers = np.fromstring(lines.spaced, dtype=np.float64, sep=" ")
        except ValueError:
            numbers = np.zeros(0)
    # NumPy also reads "1-2" as two numbers, so the number of values is compared with the number of pieces of text.
    if len(numbers) != len(lines.numbers):
        raise _unreadable(lines, expected)
    if not np.isfinite(numbers).all():
        place = lines.numbers[np.flatnonzero(~np.isfinite(numbers))[0]]
        raise lines.fault(place, "finite numbers", "Replace NaN and infinity by a public constant.")
    return np.asarray(numbers)


def _unreadable(lines: _Lines, expected: str) -> InvalidValue:
    """The error for the first piece of text that is no number."""
    for piece in re.finditer(rb"[^ \t\n\r\f\v]+", lines.spaced):
        if _NUMBER.fullmatch(piece[0]) is None and piece[0].lower().lstrip(b"+-") not in _NOT_FINITE:
            repair = "Groups of rows (qid) are not read here." if piece[0] == b"qid" else ""
            return lines.fault(piece.start(), expected, repair)
    return invalid("path", lines.path, expected)


_NOT_FINITE = (b"nan", b"inf", b"infinity")


# --- LIBSVM --------------------------------------------------------------------------------------------------


def _rows_of_pairs(lines: _Lines) -> tuple[Places, Places]:
    """(which numbers are labels, pairs a row), after a check that every line is a label and then pairs."""
    wrong = lines.filled & (lines.number_counts != 1 + 2 * lines.mark_counts)
    if wrong.any():
        raise lines.fault(lines.begins[np.flatnonzero(wrong)[0]], _PAIRS)
    starts = np.cumsum(lines.number_counts)[lines.filled] - lines.number_counts[lines.filled]
    # Every line has the right count of numbers; now the colon of a pair must touch both of its numbers.
    values = np.delete(lines.numbers, starts)[1::2]
    apart = (values != lines.marks + 1) | lines.blank[lines.marks - 1]
    if apart.any():
        raise lines.fault(lines.marks[np.flatnonzero(apart)[0]], _PAIRS)
    return starts, lines.mark_counts[lines.filled]


def _columns(values: Array, lines: _Lines, starts: Places, limit: int, from_data: bool) -> NDArray[np.int32]:
    """Zero-based columns from one-based ones that were read as floats."""
    if not len(values):
        return np.zeros(0, dtype=np.int32)
    if values.min() < 1 or values.max() > limit or not np.array_equal(values, np.trunc(values)):
        wrong = (values < 1) | (values > limit) | (values != np.trunc(values))
        place = np.delete(lines.numbers, starts)[::2][np.flatnonzero(wrong)[0]]
        declared = f"{limit} is the public number of columns that was declared."
        repair = "Give n_features to read more columns." if from_data else declared
        raise lines.fault(place, f"a row of LIBSVM text with columns that are integers from 1 to {limit}", repair)
    return (values - 1).astype(np.int32)


def _twice(X: Any, lines: _Lines, starts: Places) -> int:
    """The place of the first row that has a column twice; the columns of X are sorted."""
    same = np.flatnonzero(np.diff(X.indices) == 0)
    rows = np.searchsorted(X.indptr, same, side="right") - 1
    inside = same + 1 < X.indptr[rows + 1]
    return int(lines.numbers[starts[rows[inside][0]]])


# --- numbers with separators, and idx ------------------------------------------------------------------------


def read_numbers(path: str | Path, n_columns: int, max_bytes: int = MAX_BYTES) -> Array:
    """All rows of a comma-separated file of numbers with a header of ``n_columns`` names; ``read_csv`` is for others.

    Privacy
    -------
    Reading releases nothing. Errors tell a line number and what was expected there, never what the line holds.
    """
    header, _, body = read_text(path, max_bytes).partition(b"\n")
    names, width = header.split(b","), whole("n_columns", n_columns, low=1)
    if header and (len(names) != width or any(_NUMBER.fullmatch(name.strip()) for name in names)):
        raise fault(path, 1, f"a header of {width} names, as in a csv file", "The first line must hold names.")
    return numbers_of(body, width, b",", path, above=1)


def numbers_of(body: bytes, width: int, separator: bytes, path: str | Path, above: int) -> Array:
    """(rows, width) of text that is all numbers; ``above`` lines of the file come before it."""
    lines = _lines(body, separator, path, above)
    expected = f"{width} numbers with {separator.decode()!r} between them, as the header of the csv file says"
    wrong = lines.filled & ((lines.number_counts != width) | (lines.mark_counts != width - 1))
    if wrong.any():
        raise lines.fault(lines.begins[np.flatnonzero(wrong)[0]], expected)
    cells = lines.numbers.reshape(-1, width)
    marks = lines.marks.reshape(len(cells), width - 1)
    apart = (marks < cells[:, :-1]) | (marks > cells[:, 1:])
    if apart.any():
        raise lines.fault(marks[apart][0], expected)
    return _numbers(lines, expected).reshape(-1, width)


def read_idx(path: str | Path, max_bytes: int = MAX_BYTES) -> NDArray[np.uint8]:
    """The array of bytes in an idx file (the format of MNIST)."""
    content = read_bytes(path, max_bytes)
    dimensions = content[3] if len(content) >= 4 else 0
    head = 4 + 4 * dimensions
    if content[:3] != b"\0\0\x08" or not dimensions or len(content) < head:
        raise invalid("path", str(path), "an idx file of unsigned bytes, with its whole head")
    shape = tuple(int(size) for size in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4))
    if len(content) - head != math.prod(shape):
        raise invalid("path", str(path), f"an idx file with {math.prod(shape)} entries, as its head says")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def read_npz(path: str | Path, names: list[str], max_bytes: int = MAX_BYTES) -> list[NDArray[Any]]:
    """The arrays of numbers with these names in an npz file; nothing in it is executed."""
    content = read_bytes(path, max_bytes)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            if sum(member.file_size for member in members.infolist()) > max_bytes:
                raise invalid("path", str(path), f"a file with at most {max_bytes:,} bytes when uncompressed")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except DpToolkitError:
        raise
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        # Also where the content is an array of its own, which has no names.
        raise invalid("path", str(path), f"an npz file with the arrays {', '.join(names)}") from None
