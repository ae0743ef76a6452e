"""Empirical privacy audits: attack a mechanism on two neighbouring datasets and bound its privacy loss from below."""

from __future__ import annotations

import importlib
from typing import Any

from dptoolkit.audit import pairs, presets
from dptoolkit.audit.claims import (
    ApproxClaim,
    Claim,
    GaussianClaim,
    ProfileClaim,
    PureClaim,
    RenyiClaim,
    ZcdpClaim,
    pld_claim,
)
from dptoolkit.audit.floating_point import floating_point_attack
from dptoolkit.audit.pairs import Pair, strongest
from dptoolkit.audit.report import AuditReport
from dptoolkit.audit.run import audit, evidence
from dptoolkit.audit.suite import assert_private, search, sweep, trials_for

__all__ = [
    "ApproxClaim", "AuditReport", "Claim", "GaussianClaim", "Pair", "ProfileClaim", "PureClaim", "RenyiClaim",
    "ZcdpClaim", "assert_private", "audit", "evidence", "floating_point_attack", "pairs", "pld_claim", "presets",
    "search", "strongest", "sweep", "trials_for",
]  # fmt: skip

# Seldom used, and costly to import: loaded when they are asked for.
_LATER = ("broken", "one_run", "probes")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
