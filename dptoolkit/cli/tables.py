"""Tables of records that commands read: LIBSVM text, or csv and parquet with named columns."""

from __future__ import annotations

import argparse
import csv
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dptoolkit._validate import invalid
from dptoolkit.cli.output import in_one_line, stage
from dptoolkit.errors import InvalidValue

_DATA = "LIBSVM text; or .csv, .tsv or .parquet with named columns; text may be compressed (.gz, .xz, .bz2)"
_LABEL = "column of labels, by name or by number from 1"
# Options for named columns, which LIBSVM text does not have.
_NAMED = ("label", "drop", "categories", "missing", "separator", "decimal")


class Table(NamedTuple):
    """Rows, labels and, for named columns, their names and how they were read; None without such."""

    X: Any
    y: Any
    names: tuple[str, ...] | None
    columns: Any


def fit_table_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of commands that fit a model to a table."""
    _table_arguments(parser, f"{_LABEL}; default: the last column")
    group = parser.add_argument_group("columns of csv and parquet files")
    group.add_argument("--drop", nargs="+", action="extend", metavar="COLUMN", help="columns to leave out")
    categories = "public values of a text column, such as sex=female,male; once per column"
    group.add_argument("--categories", action="append", metavar="COLUMN=A,B,...", help=categories)
    _format_arguments(group)


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of commands that apply a model to a table; columns are found by the names that the model knows."""
    _table_arguments(parser, f"{_LABEL}; default: the label of the fit")
    _format_arguments(parser.add_argument_group("columns of csv and parquet files"))


def _table_arguments(parser: argparse.ArgumentParser, label: str) -> None:
    parser.add_argument("data", metavar="DATA", help=_DATA)
    parser.add_argument("--label", metavar="COLUMN", help=label)
    size = "largest size of the file, uncompressed; default 2 GiB"
    parser.add_argument("--max-bytes", type=int, metavar="N", help=size)


def _format_arguments(group: Any) -> None:
    missing = "public constant for missing cells, for all columns or per column, such as bmi=25"
    group.add_argument("--missing", action="append", metavar="[COLUMN=]VALUE", help=missing)
    separator = "character between cells, or tab; default: the most frequent one in the header"
    group.add_argument("--separator", metavar="CHARACTER", help=separator)
    group.add_argument("--decimal", metavar="MARK", help="decimal mark of csv files: . (default) or ,")


def read_table(args: argparse.Namespace, n_features: int | None) -> Table:
    """The table that the options name, with labels; ``n_features`` is its public width."""
    from dptoolkit.datasets import tables
    from dptoolkit.datasets.columns import Columns

    stage(f"reading {Path(args.data).name}")
    if not tables.is_table(args.data):
        return _libsvm(args, n_features, has_labels=True)
    drop, categories, missing = tuple(args.drop or ()), _categories(args.categories), _missing(args.missing)
    more = "" if args.label else " The last column is the label; --label NAME chooses another."

    def wanted(header: tuple[str, ...]) -> Columns:
        return Columns(args.label or header[-1], None, drop, categories, missing)

    table = _read(args, wanted, _FIT_ADVICE, more)
    if args.task == "regression" and table.y.dtype.kind not in "if":
        raise invalid("label", table.columns.label, "a column of numbers for --task regression", "It holds text.")
    if n_features is not None and table.X.shape[1] != n_features:
        bound = f"a table of {n_features} features besides the label, as given by --n-features"
        raise invalid("data", args.data, bound, f"It has {table.X.shape[1]}.")
    return table


def read_for_model(args: argparse.Namespace, model: Any, *, needs_labels: bool) -> Table:
    """The table that the options name, with the columns of the model; other columns of a named table are ignored."""
    from dptoolkit.datasets import tables

    stage(f"reading {Path(args.data).name}")
    if not tables.is_table(args.data):
        return _libsvm(args, model.n_features, has_labels=True if needs_labels else None)
    table = _read(args, lambda header: _columns_of_model(args, model, header, needs_labels), _MODEL_ADVICE)
    if table.X.shape[1] != model.n_features:
        bound = f"a table with the {model.n_features} features of the model"
        raise invalid("data", args.data, bound, f"It has {table.X.shape[1]}. {_LABEL_HINT}")
    return table


_LABEL_HINT = "Name the column of labels with --label."


def _columns_of_model(args: argparse.Namespace, model: Any, header: tuple[str, ...], needs_labels: bool) -> Any:
    """The columns that a model needs from a table with this header."""
    from dptoolkit.datasets.columns import Columns

    known = Columns() if model.columns is None else Columns.from_dict(model.columns)
    given = _missing(args.missing)
    known = known if given is None else replace(known, missing=given)
    if model.columns is None and model.feature_names is not None:
        known = replace(known, features=model.feature_names)
    label = known.label if args.label is None else args.label
    if known.features is None:
        # The model does not know names: the table has its features, and perhaps the label at the end.
        has_label = args.label is not None or len(header) == model.n_features + 1
        column = header[-1] if args.label is None else args.label
        if needs_labels and not has_label:
            raise invalid("label", None, "given for this table", _LABEL_HINT)
        own = {"label": column} if needs_labels else {"drop": (column,) if has_label else ()}
        return replace(known, **own)
    missing = [name for name in known.features if name not in header]
    if missing:
        repair = f"It has no column {missing[0]!r}" + (f", nor {len(missing) - 1} others." if missing[1:] else ".")
        raise invalid("data", args.data, "a table with the columns of the model", repair)
    if needs_labels and label is None:
        others = [name for name in header if name not in known.features]
        if len(others) != 1:
            raise invalid("label", None, "given for this table", _LABEL_HINT)
        label = others[0]
    return replace(known, label=label if needs_labels else None)


def _read(args: argparse.Namespace, wanted: Any, advice: Mapping[str, str], more: str = "") -> Table:
    from dptoolkit.datasets import columns, tables

    decimal, limit = args.decimal or ".", _limit(args)
    try:
        table, known = tables.read(args.data, wanted, separator=_separator(args), decimal=decimal, max_bytes=limit)
    except columns.UnfitColumns as problem:
        raise InvalidValue(f"{args.data}: {problem.words(advice, shlex.quote)}{more}") from None
    return Table(table.X, table.y, table.names, known)


def _libsvm(args: argparse.Namespace, n_features: int | None, has_labels: bool | None) -> Table:
    from dptoolkit.datasets import readers

    for name in _NAMED:
        if getattr(args, name, None) is not None:
            repair = "LIBSVM text has no named columns, and its label comes first. A csv file must be named .csv."
            raise invalid(name, getattr(args, name), "left out for LIBSVM text", repair)
    try:
        X, y = readers.read_libsvm(args.data, n_features, _limit(args), has_labels)
    except InvalidValue as problem:
        if "LIBSVM text" not in str(problem):
            raise
        raise InvalidValue(f"{problem} Tables end in .csv, .tsv or .parquet.") from None
    return Table(X, y, None, None)


def _limit(args: argparse.Namespace) -> int:
    from dptoolkit.datasets import readers as files

    return files.MAX_BYTES if args.max_bytes is None else args.max_bytes


def _separator(args: argparse.Namespace) -> str | None:
    return "\t" if args.separator in ("tab", "\\t") else args.separator


def _categories(words: list[str] | None) -> dict[str, tuple[str, ...]]:
    """{column: values} of COLUMN=A,B,...; a value with a comma is written in double quotes."""
    found = {}
    for word in words or ():
        name, sign, text = word.partition("=")
        values = next(csv.reader([text]), []) if sign else []
        if len(values) < 2 or not name:
            bound = "COLUMN=A,B,..., with two values or more"
            raise invalid("categories", word, bound, "For example --categories sex=female,male.")
        found[name] = tuple(value.strip() for value in values)
    return found


def _missing(words: list[str] | None) -> float | dict[str, float | str] | None:
    """One number for all columns, or {column: value}."""
    if not words:
        return None
    if len(words) == 1 and "=" not in words[0]:
        return _number(words[0])
    pairs = [word.partition("=") for word in words]
    if not all(sign and name for name, sign, _ in pairs):
        raise invalid("missing", " ".join(words), "one number, or COLUMN=VALUE for each column", "Write --missing 0.")
    return {name: _number_or_text(text) for name, _, text in pairs}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise invalid("missing", text, "a number, or COLUMN=VALUE", "For example --missing 0.") from None


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def classes_of(words: list[str] | None) -> list[Any] | None:
    """The labels of --classes: numbers if all of them are, and text otherwise."""
    if words is None:
        return None
    if len(set(words)) < 2:
        raise invalid("classes", words[0], "at least two labels", "For example --classes 0 1.")
    values = [_number_or_text(word) for word in words]
    return words if any(isinstance(value, str) for value in values) else values


def check_labels(table: Table, classes: Any, source: str) -> None:
    """Refuse a table with a label that is none of the classes; ``source`` is where those come from."""
    from dptoolkit.models import fitting

    try:
        fitting.codes(table.y, fitting.class_set(table.y, classes))
    except InvalidValue:
        label = "labels" if table.columns is None else f"--label {shlex.quote(str(table.columns.label))}"
        words = f"must hold only the classes {source}: {listed(classes)}. It holds others."
        raise InvalidValue(f"{label}: {words}") from None


def listed(labels: Any) -> str:
    """Labels as they are typed: 1, not 1.0."""
    return ", ".join(f"{label:g}" if isinstance(label, float) else in_one_line(label) for label in labels)


def _advice(**own: str) -> Mapping[str, str]:
    """What to do about kinds of cells, by flags; the names of kinds are those of ``datasets.columns``."""
    common = {
        "dates": "turn them into numbers, such as days since a public date",
        "numbers with a unit": "write only the numbers, with the unit in the name of the column",
        "numbers with a comma": "--decimal , reads decimal commas; thousands must be written without a mark",
        "numbers with a point": "--decimal , reads a comma as the decimal mark, in all columns; thousands must be "
        "written without a mark",
        "infinite numbers": "replace them by a public bound",
    }
    return common | {key.replace("_", " "): text for key, text in own.items()}


_FIT_ADVICE = _advice(
    text="list the public categories, --categories {name}=A,B,C, or leave the column out, --drop {name}",
    missing_cells="fill them with a public constant, --missing {name}=0, never with a mean of the data, or leave the "
    "column out, --drop {name}",
    dates="turn them into numbers, such as days since a public date, or leave the column out, --drop {name}",
    numbers_with_a_unit="write only the numbers, with the unit in the name of the column, or leave the column out, "
    "--drop {name}",
    cells_outside_the_categories="list all public categories, --categories {name}=...",
    missing_cells_beside_categories="name the category that stands for them, --missing {name}=A, or list an empty one "
    "at the end, --categories {name}=A,B,",
)
_MODEL_ADVICE = _advice(
    text="the model was fitted to numbers in this column",
    missing_cells="fill them with a constant, --missing {name}=0",
    cells_outside_the_categories="the model has only the categories of its fit",
    missing_cells_beside_categories="name the category that stands for them, --missing {name}=A",
)
