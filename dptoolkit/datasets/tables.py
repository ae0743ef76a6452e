"""Tables of records with named columns: csv text by the standard library, and parquet by polars or pandas.

A file is read as a whole or refused as a whole. Errors name columns, kinds of cells and lines, and never show a cell.
"""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, one_of
from dptoolkit._validate import missing as not_installed
from dptoolkit.datasets import readers
from dptoolkit.datasets.columns import COMMA, DATE, NUMBER, TEXT, Columns, Layout, Unfit, kind_of, labels_of, layout
from dptoolkit.datasets.readers import MAX_BYTES
from dptoolkit.errors import InvalidValue
from dptoolkit.types import Array

# Which columns are wanted of a file with these names.
Choice = Callable[[tuple[str, ...]], Columns]
SEPARATORS = (",", ";", "\t", "|")
# Rows whose cells are kept as text at a time.
_CHUNK = 20_000


class Table(NamedTuple):
    """A table that was read from a file.

    Attributes
    ----------
    X : ndarray
        The rows.
    y : ndarray or None
        The labels; None where no label was named.
    names : tuple of str
        The names of the columns of X.
    """

    X: Array
    y: NDArray[Any] | None
    names: tuple[str, ...]


def read_csv(
    path: str | Path, label: str | int | None = None, *, features: Sequence[str | int] | None = None,
    drop: Sequence[str | int] = (), categories: Mapping[str, Sequence[str]] | None = None,
    missing: float | Mapping[str, float | str] | None = None, separator: str | None = None, decimal: str = ".",
    max_bytes: int = MAX_BYTES,
) -> Table:  # fmt: skip
    """Read a csv file with a header of names.

    Cells may be quoted. Text columns need a public list of categories, and missing cells a public constant: neither is
    ever inferred from the records, as an inferred list or mean would be a release without noise.

    Parameters
    ----------
    path : str or Path
        The file: UTF-8 text, plain or ending in .gz, .xz or .bz2.
    label : str, int or None, default None
        The column of labels, by name or by number from 1. None if there is none.
    features : sequence of str or int, or None, default None
        The columns to use, in this order. None uses all columns except ``label`` and ``drop``.
    drop : sequence of str or int, default ()
        Columns to leave out, such as identifiers.
    categories : mapping of str to sequence of str, or None, default None
        The public values of text columns. Such a column becomes one column of zeros and ones per category, named
        "column=category". A cell outside the list is an error. An empty category stands for missing cells.
    missing : float, mapping of str to float or str, or None, default None
        The public constant for missing cells (empty, NA, N/A, <NA>, NaN, null, None, ?, a dash, and others that are
        usual), one number for all columns or a value per column. For a column with categories the value is one of
        them. Without it a missing cell is an error.
    separator : str or None, default None
        The character between cells. None takes it from the header: the most frequent of comma, semicolon, tab and bar.
    decimal : str, default "."
        The decimal mark, "." or ",".
    max_bytes : int, default 2_147_483_648
        Files that are larger than this when uncompressed are refused.

    Returns
    -------
    Table
        ``(X, y, names)``: a float64 array, the labels (numbers if all are numbers, otherwise text; None without
        ``label``), and the names of the columns of X.

    Raises
    ------
    InvalidValue
        If the file cannot be read as such a table. The message names columns, kinds of cells and line numbers.

    Privacy
    -------
    Reading releases nothing, and each record is converted on its own by public rules: no category, constant or bound is
    inferred from the records. The names of the columns are public. Whether labels are numbers or text depends on all
    records; the set of labels is public in a fit without ``classes``. An error tells which kind of cell was found in
    which column and line, never the cell.
    """
    wanted = _columns(label, features, drop, categories, missing)
    return read(path, wanted, separator=separator, decimal=decimal, max_bytes=max_bytes)[0]


def read_parquet(
    path: str | Path, label: str | int | None = None, *, features: Sequence[str | int] | None = None,
    drop: Sequence[str | int] = (), categories: Mapping[str, Sequence[str]] | None = None,
    missing: float | Mapping[str, float | str] | None = None,
) -> Table:  # fmt: skip
    """Read a parquet file with polars or pandas (extra ``parquet``).

    Parameters, results and errors are those of ``read_csv``; errors count records from 1 in place of lines.

    Parameters
    ----------
    path : str or Path
        The file.
    label : str, int or None, default None
        The column of labels, by name or by number from 1. None if there is none.
    features : sequence of str or int, or None, default None
        The columns to use, in this order. None uses all columns except ``label`` and ``drop``.
    drop : sequence of str or int, default ()
        Columns to leave out, such as identifiers.
    categories : mapping of str to sequence of str, or None, default None
        The public values of text columns, as for ``read_csv``.
    missing : float, mapping of str to float or str, or None, default None
        The public constant for missing cells, as for ``read_csv``.

    Privacy
    -------
    As for ``read_csv``.
    """
    return _from_parquet(Path(path), _columns(label, features, drop, categories, missing))[0]


def read(
    path: str | Path, wanted: Columns | Choice, *, separator: str | None = None, decimal: str = ".",
    max_bytes: int = MAX_BYTES,
) -> tuple[Table, Columns]:  # fmt: skip
    """(the table, its columns by name), by the suffix of the file: parquet, or else csv.

    ``wanted`` are the columns, or a function that chooses them from the names in the file, which are public.

    Privacy
    -------
    As for ``read_csv``.
    """
    if is_parquet(path):
        return _from_parquet(Path(path), wanted)
    text = _decoded(path, max_bytes)
    header, above, mark = _header(text, path, separator)
    place = layout(_chosen(wanted, header), header, str(path))
    one_of("decimal", decimal, (".", ","))
    if decimal == mark:
        repair = f"Give separator if it is not {mark!r}, or write numbers with a point."
        raise invalid("decimal", decimal, "different from the separator", repair)
    table = _plain(text, place, len(header), above, mark, decimal, path)
    if table is None:
        table = _from_cells(_rows(text, path, mark, len(header)), place, decimal, path)
    return table, place.columns


def _chosen(wanted: Columns | Choice, header: Sequence[str]) -> Columns:
    return wanted if isinstance(wanted, Columns) else wanted(tuple(header))


def is_parquet(path: str | Path) -> bool:
    """Whether a file is read as parquet, by its suffix."""
    return Path(path).suffix.lower() in (".parquet", ".pq")


def is_table(path: str | Path) -> bool:
    """Whether a file has named columns, by its suffix: csv, tsv or parquet, and not LIBSVM text."""
    return is_parquet(path) or bool({".csv", ".tsv", ".tab"} & {suffix.lower() for suffix in Path(path).suffixes})


def _columns(label: Any, features: Any, drop: Any, categories: Any, missing: Any) -> Columns:
    for name, value in (("features", features), ("drop", drop)):
        if isinstance(value, str):
            raise invalid(name, value, "a list of columns", f"Write [{value!r}].")
    listed = {}
    for name, values in (categories or {}).items():
        if isinstance(values, str):
            raise invalid("categories", values, f"a list of values for {name!r}", f"Write [{values!r}].")
        listed[name] = tuple(map(str, values))
    return Columns(label, None if features is None else tuple(features), tuple(drop), listed, missing)


# --- csv ------------------------------------------------------------------------------------------------------


def _decoded(path: str | Path, max_bytes: int) -> str:
    content = readers.read_text(path, max_bytes)
    # UTF-16 without a mark at its beginning is valid UTF-8, with zero bytes that no text has.
    place = content.find(b"\0")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as problem:
        text, place = "", problem.start
    if place >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise readers.fault(path, line, "UTF-8 text", "Save the file as UTF-8, as editors and spreadsheets offer.")
    return text


def _header(text: str, path: str | Path, separator: str | None) -> tuple[list[str], int, str]:
    """(names, number of lines that they take, separator)."""
    if separator is not None and (len(separator) != 1 or separator in '"\r\n.'):
        raise invalid("separator", separator, "one character, such as ';'")
    mark = separator if separator is not None else _sniffed(text.lstrip("\r\n").partition("\n")[0])
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True, skipinitialspace=mark != "\t")
    try:
        header = [name.strip() for name in next(filter(None, lines), [])]
    except csv.Error:
        raise readers.fault(path, 1, "a header of names, as in a csv file", "A quote in it is not closed.") from None
    if not header:
        raise invalid("path", str(path), "a file with at least one row", "It has no rows.")
    # A file without a header: the first record would be published as the names of the columns.
    if any(NUMBER.fullmatch(name) or kind_of(name) == COMMA for name in header):
        repair = f"The first line must hold names; {len(header)} columns were found."
        raise readers.fault(path, 1, "a header of names, as in a csv file", repair)
    return header, lines.line_num, mark


def _sniffed(line: str) -> str:
    """The separator of a header: the most frequent mark outside quotes."""
    bare = re.sub(r'"[^"]*"', "", line)
    counts = {mark: bare.count(mark) for mark in SEPARATORS}
    best = max(counts, key=lambda mark: counts[mark])
    if counts[best] and list(counts.values()).count(counts[best]) > 1:
        raise invalid("separator", None, "given, as two are equally frequent in the header", "For example ';'.")
    return best


def _plain(text: str, place: Layout, width: int, above: int, mark: str, decimal: str, path: str | Path) -> Table | None:
    """The table of a file that holds nothing but numbers, read with arrays; None if a cell needs a closer look."""
    is_simple = decimal == "." and not any(column.categories for column in place.features)
    body = text.split("\n", above)[above] if text.count("\n") >= above else ""
    if not is_simple or '"' in body:
        return None
    try:
        numbers = readers.numbers_of(body.encode(), width, mark.encode(), path, above)
    except InvalidValue:
        return None
    X = np.ascontiguousarray(numbers[:, [column.place for column in place.features]])
    return Table(X, None if place.label is None else numbers[:, place.label], place.names)


def _rows(text: str, path: str | Path, mark: str, width: int) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row below the header; blank lines are skipped."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True, skipinitialspace=mark != "\t")
    next(filter(None, rows))
    while True:
        line = rows.line_num + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error:
            repair = "A quote is not closed, or a quote inside a cell is not doubled."
            raise readers.fault(path, line, "a row of a csv file", repair) from None
        if not cells or (len(cells) == 1 and not cells[0].strip()):
            continue
        if len(cells) != width:
            expected = f"{width} cells with {mark!r} between them, as in the header"
            raise readers.fault(path, line, expected, f"It has {len(cells)}.")
        yield line, cells


def _from_cells(rows: Iterator[tuple[int, list[str]]], place: Layout, decimal: str, path: str | Path) -> Table:
    """The table of rows of text, converted a chunk at a time."""
    unfit, parts = Unfit(), []
    labels: list[str] = []
    lines: list[int] = []
    used = [column.place for column in place.features]
    chunk: list[list[str]] = [[] for _ in used]

    def convert() -> None:
        if chunk[0]:
            own = lines[-len(chunk[0]) :]
            parts.append(np.concatenate([
                column.numbers(cells, decimal, unfit, own) for column, cells in zip(place.features, chunk, strict=True)
            ], axis=1))  # fmt: skip
        for cells in chunk:
            cells.clear()

    for line, cells in rows:
        for column, at in zip(chunk, used, strict=True):
            column.append(cells[at].strip())
        if place.label is not None:
            labels.append(cells[place.label].strip())
        lines.append(line)
        if len(chunk[0]) >= _CHUNK:
            convert()
    convert()
    if not parts:
        raise invalid("path", str(path), "a file with at least one row", "It has no rows.")
    title = None if place.columns.label is None else str(place.columns.label)
    y = None if title is None else labels_of(labels, decimal, title, unfit, lines)
    unfit.raise_if_any(str(path), title)
    return Table(np.concatenate(parts), y, place.names)


# --- parquet --------------------------------------------------------------------------------------------------


def _from_parquet(path: Path, wanted: Columns | Choice) -> tuple[Table, Columns]:
    frame = _frame(path)
    names = list(map(str, frame.columns))
    place, unfit, parts = layout(_chosen(wanted, names), names, str(path)), Unfit("record"), []
    if not len(frame):
        raise invalid("path", str(path), "a file with at least one row", "It has no rows.")
    count = range(1, len(frame) + 1)
    for column in place.features:
        values = _series(frame, names[column.place])
        if isinstance(values, list):
            parts.append(column.numbers(values, ".", unfit, count))
        elif values is None:
            unfit.note(column.name, DATE, 1)
        else:
            parts.append(column.filled(values, unfit))
    title = None if place.columns.label is None else str(place.columns.label)
    y = None
    if title is not None:
        values = _series(frame, title)
        if values is None:
            unfit.note(title, TEXT, 1)
        words = values if isinstance(values, list) else ["" if v != v else repr(v) for v in np.asarray(values).tolist()]
        y = labels_of(words, ".", title, unfit, count) if values is not None else None
    unfit.raise_if_any(str(path), title)
    return Table(np.concatenate(parts, axis=1), y, place.names), place.columns


def _frame(path: Path) -> Any:
    """The frame in a parquet file, by polars or, where that is not installed, by pandas."""
    if not path.is_file():
        raise invalid("path", str(path), "a file that can be read", "No such file.")
    try:
        return _reader()(path)
    except ImportError as problem:
        raise not_installed("polars, or pandas with pyarrow,", "parquet", "to read parquet files") from problem
    except InvalidValue:
        raise
    except Exception:
        # What the readers raise may show parts of the file.
        raise invalid("path", str(path), "a parquet file", "It is damaged, or not a parquet file.") from None


def _reader() -> Any:
    try:
        return importlib.import_module("polars").read_parquet
    except ImportError:
        return importlib.import_module("pandas").read_parquet


def _series(frame: Any, name: str) -> Array | list[str] | None:
    """A column as numbers with NaN for missing ones, or as text; None for dates and anything else."""
    column = frame[name]
    if hasattr(column, "to_list") and hasattr(column.dtype, "is_numeric"):
        return _polars_series(column)
    kind = getattr(column.dtype, "kind", "O")
    if kind in "biuf":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    values = column.astype(object).where(column.notna(), None).tolist()
    return _words(values)


def _polars_series(column: Any) -> Array | list[str] | None:
    polars = importlib.import_module("polars")
    if column.dtype.is_numeric() or column.dtype == polars.Boolean:
        return np.asarray(column.cast(polars.Float64).fill_null(np.nan).to_numpy())
    if column.dtype == polars.Null:
        return np.full(len(column), np.nan)
    return _words(column.to_list())


def _words(values: list[Any]) -> list[str] | None:
    """Text, with "" for missing entries; None if an entry is neither."""
    if not all(value is None or isinstance(value, str) for value in values):
        return None
    return ["" if value is None else value.strip() for value in values]
