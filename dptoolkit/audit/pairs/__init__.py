"""Neighbouring datasets for audits: for every private solver the worst pair we know, made from its plan."""

from __future__ import annotations

from dptoolkit.audit.pairs.pair import Counted, Pair, counted

__all__ = ["Counted", "Pair", "counted"]
