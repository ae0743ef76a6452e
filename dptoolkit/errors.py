"""The exceptions of dptoolkit: one small family, each also the built-in a caller would expect."""

from __future__ import annotations

from typing import Any


class DpToolkitError(Exception):
    """Base of every error that dptoolkit raises on purpose."""


class InvalidValue(DpToolkitError, ValueError):
    """A value outside its bound; the message gives name, value, bound and repair."""


# The advice of a method that refuses an event.
ANY_METHOD = "Leave method out: account() then uses the best method that applies, such as 'rdp' if 'pld' does not."


class UnsupportedEvent(DpToolkitError, ValueError):
    """An event, or a pair of event and method, for which no sound bound is known here.

    ``reason`` is the message without its advice: where every method refuses, the advice of one would name another.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason} {advice}".rstrip())
        self.reason = reason


class BudgetExceeded(DpToolkitError):
    """A release was refused because the budget of the ledger is too small; nothing was spent."""


class FederationAborted(DpToolkitError, RuntimeError):
    """A federated fit that was stopped: a client is missing, doubled, late or at fault; the message says which."""


class PrivacyViolation(DpToolkitError, AssertionError):
    """An audit refuted a claim; the message is the report, which is also the attribute ``report``."""

    def __init__(self, report: Any) -> None:
        super().__init__(str(report))
        self.report = report


class ClusterError(DpToolkitError, RuntimeError):
    """A cluster cannot be reached, is not like this process, or was lost; nothing was released."""


class MissingDependency(DpToolkitError, ImportError):
    """An optional package is needed; the message gives the install command."""
