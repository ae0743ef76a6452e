"""What a part of the report consists of: words, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Cells are text."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure that is saved as <name>.png."""

    name: str
    caption: str
    figure: Any


@dataclass(frozen=True)
class Section:
    """One subject of the report."""

    title: str
    words: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]
