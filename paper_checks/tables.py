"""Printed tables, transcribed in tables.toml beside the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Table:
    """One printed table: a mean per method and column, deviations where they are printed.

    ``facts`` holds whatever else the paper prints about it.
    """

    id: str
    columns: tuple[Any, ...]
    mean: Mapping[str, tuple[float, ...]]
    deviation: Mapping[str, tuple[float, ...]]
    facts: Mapping[str, Any]

    def planted(self, method: str, column: int | str, value: float) -> Table:
        """The table with another value in one cell, or in "all" of a method, to see whether a verdict would notice."""
        row = [value] * len(self.columns) if column == "all" else list(self.mean[method])
        if isinstance(column, int):
            row[column] = value
        return replace(self, mean={**self.mean, method: tuple(row)})

    def column(self, number: int) -> dict[str, float]:
        """The means of one column, by method."""
        return {method: row[number] for method, row in self.mean.items()}


def read(entries: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of a parsed tables.toml, by id."""
    return {name: _table(name, entry) for name, entry in entries.items()}


def _table(name: str, entry: Mapping[str, Any]) -> Table:
    columns = tuple(entry["columns"])
    mean, deviation = (_rows(entry.get(part, {}), len(columns), name) for part in ("mean", "deviation"))
    facts = {key: value for key, value in entry.items() if key not in ("columns", "mean", "deviation")}
    return Table(name, columns, mean, deviation, facts)


def _rows(entry: Mapping[str, Sequence[float]], width: int, name: str) -> dict[str, tuple[float, ...]]:
    for method, row in entry.items():
        if len(row) != width:
            raise ValueError(f"table {name}, row {method}: has {len(row)} cells, must have {width}")
    return {method: tuple(map(float, row)) for method, row in entry.items()}
