"""The papers' own constants and conditions. Everything here takes them from this one place."""

from __future__ import annotations

from dptoolkit.accounting import published
from dptoolkit.accounting.published import WASTE, Published, tie_pair
from dptoolkit.accounting.published.ties import PartialResponse

__all__ = ["WASTE", "PartialResponse", "Published", "published", "tie_pair"]
