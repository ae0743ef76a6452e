"""Which data sets count as neighbours."""

from __future__ import annotations

import enum
from typing import Any

from dptoolkit._validate import invalid


class Adjacency(str, enum.Enum):
    """The neighbouring relation under which a sensitivity, and so a guarantee, is stated.

    REPLACE_ONE: both data sets have n records and differ in one of them.
    ZERO_OUT: one record's contribution is replaced by nothing while n stays public; this is add/remove
    for mechanisms that treat n as known.
    """

    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"

    def __str__(self) -> str:
        return self.value

    @property
    def contributions(self) -> int:
        """How many bounded contributions differ between neighbours: the old and the new record's, or one record's."""
        return 2 if self is Adjacency.REPLACE_ONE else 1

    @classmethod
    def parse(cls, value: Any, name: str = "adjacency") -> Adjacency:
        """An Adjacency from itself or from its string."""
        try:
            return cls(value)
        except ValueError:
            raise invalid(name, value, "one of 'replace-one', 'zero-out'") from None
