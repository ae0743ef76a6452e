"""Tables of records that commands read: LIBSVM text, or csv with a header."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from dptoolkit._validate import invalid
from dptoolkit.cli.progress import stage


class Table(NamedTuple):
    """Rows, labels and, for csv, the names of the columns."""

    X: Any
    y: Any
    names: tuple[str, ...] | None


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that reads a table."""
    parser.add_argument("data", metavar="DATA", help="LIBSVM text, or .csv with a header, the label last; also packed")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="refuse a file that unpacks to more, default 2 GiB")


def read_table(args: argparse.Namespace, n_features: int | None) -> Table:
    """The table that the options name; ``n_features`` is its public width."""
    from dptoolkit.datasets import files, readers

    stage(f"reading {Path(args.data).name}")
    limit = files.MAX_BYTES if args.max_bytes is None else args.max_bytes
    if ".csv" not in Path(args.data).suffixes:
        X, y = readers.read_libsvm(args.data, n_features, limit)
        return Table(X, y, None)
    table, names = readers.read_named_csv(args.data, limit)
    if table.shape[1] < 2:
        raise invalid("data", args.data, "a csv file with a feature and the label", "It has one column only.")
    if n_features is not None and table.shape[1] != n_features + 1:
        bound = f"a csv file of {n_features} features and the label"
        raise invalid("data", args.data, bound, f"Its header has {table.shape[1]} names.")
    return Table(table[:, :-1], table[:, -1], names[:-1])


def read_for_model(args: argparse.Namespace, model: Any) -> Table:
    """The table that the options name, with the columns of the model."""
    table = read_table(args, model.n_features)
    if table.names is not None and model.feature_names is not None and table.names != model.feature_names:
        which = next(k for k, (a, b) in enumerate(zip(table.names, model.feature_names, strict=True), 1) if a != b)
        raise invalid("data", args.data, "a table with the columns of the model", f"Column {which} has another name.")
    return table
