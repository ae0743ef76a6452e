"""The papers' own constants and conditions. Everything here takes them from this one place."""

from __future__ import annotations

from dptoolkit import published
from dptoolkit.published import WASTE, Published, tie_pair
from dptoolkit.published.ties import PartialResponse

__all__ = ["WASTE", "PartialResponse", "Published", "published", "tie_pair"]
