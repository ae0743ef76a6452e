"""Secure noise in plans: which noise a fit has, and the public facts of it, one part for each release of a plan.

A solver with secure noise overrides ``Resolved.secured``, which returns the plan with ``Plan.secure``: a ``SecurePlan``
with one ``SecureRelease`` per release, in the order of the releases. Its run draws from ``secure_stream``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import invalid, one_of
from dptoolkit.errors import InvalidValue
from dptoolkit.randomness import GENERATOR, SecureStream
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers.frame.plan import Plan

SECURE, FAST = "secure", "fast"
# The noise of a fit where neither ``randomness`` nor a seed or Generator is given.
UNSEEDED = SECURE


def noise_kind(randomness: Any, rng: Any, name: str = "rng") -> str:
    """The noise of a fit, "secure" or "fast": what was asked for; if nothing, "fast" with a seed.

    ``name`` is what errors call ``rng``.

    Privacy
    -------
    Noise from a seed can be drawn again by whoever guesses it, so it is never called secure.
    """
    if randomness is None:
        return UNSEEDED if rng is None else FAST
    one_of("randomness", randomness, (SECURE, FAST))
    if randomness == SECURE and rng is not None:
        raise invalid(name, "given", "left out for randomness='secure'", "Its key comes from the operating system.")
    return str(randomness)


def not_secure(why: str, repair: str = "", needs: str = "") -> InvalidValue:
    """The error of settings that have no secure noise; ``why`` completes "randomness='secure': must be 'fast' ...".

    The way out is always named: nothing falls back to noise in doubles silently. ``repair`` names a better one,
    and ``needs`` what the way out needs.
    """
    way_out = "Give randomness='fast', and do not publish every digit of the result."
    way_out = f"{way_out} {needs}" if needs else way_out
    return invalid("randomness", SECURE, f"'fast' {why}", f"{repair} Or: {way_out}" if repair else way_out)


class SecureRelease(ABC):
    """The public facts of the secure noise of one release: its grid, its noise in units of it, its charge.

    ``growth`` is the factor by which rounding enlarges the sensitivity of the release; the sensitivity in the plan
    includes it.
    """

    growth: float

    @abstractmethod
    def with_noise(self, scale: float) -> SecureRelease:
        """The same grids with other noise; for audits, and without privacy if it is less than planned."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""

    @abstractmethod
    def __str__(self) -> str:
        """The grids and the noise in units of them, in one line."""

    def integers(self, values: Array) -> Array:
        """Released numbers as the integers, in grid units, that they were made of; NaN for what is on no grid.

        It is what an attacker who knows the grid does. Releases that are no numbers on a grid, such as selections,
        have none.
        """
        raise invalid("release", type(self).__name__, "a vector on a grid", "The attack compares such vectors.")


@dataclass(frozen=True)
class SecurePlan:
    """The public facts of a plan's secure noise: one part for every release, in the order of the releases.

    ``remarks`` are further notes of the guarantee, such as that batches come from the same generator. ``is_proved`` is
    False for a plan that was read from a file, which cannot prove how its noise was drawn.

    Privacy
    -------
    Everything here is computed from public numbers.
    """

    parts: tuple[SecureRelease, ...]
    remarks: tuple[str, ...] = ()
    is_proved: bool = True

    @property
    def first(self) -> Any:
        """The part of the main release."""
        return self.parts[0]

    def with_noise(self, scales: Sequence[float]) -> SecurePlan:
        """The same grids with one noise for every release."""
        return replace(self, parts=tuple(part.with_noise(s) for part, s in zip(self.parts, scales, strict=True)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a guarantee says about the noise: nothing for a file, whose own notes are marked as not checked."""
        if not self.is_proved:
            return ()
        return (
            f"secure noise ({GENERATOR}): integer sums and rounded noise, exact in every digit, so the assumption of "
            "real-valued noise holds; rounding is included in the sensitivity",
            *self.remarks,
            "time is not protected",
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description."""
        return {"kind": SECURE, "generator": GENERATOR, "releases": [part.to_dict() for part in self.parts]}

    def __str__(self) -> str:
        growth = max(part.growth for part in self.parts) - 1
        whose = "" if self.is_proved else ", as a file states"
        return "\n".join([
            f"Secure noise{whose}: {GENERATOR}", *(str(part) for part in self.parts),
            f"rounding adds {growth:.3g} of the sensitivity, which is included; time is not protected",
        ])  # fmt: skip


def secured(plan: Plan, kind: str) -> Plan:
    """The plan with noise of this kind; refused where there is none.

    Privacy
    -------
    A plan without noise hides nothing and is never called secure.
    """
    if kind == FAST:
        return plan
    if not plan.has_noise:
        raise invalid("randomness", SECURE, "'fast' for a plan without noise", "It hides nothing: give an epsilon.")
    charged = plan.settings.secured(plan)
    assert isinstance(charged.secure, SecurePlan) and len(charged.secure.parts) == len(charged.releases)
    return charged


@contextmanager
def secure_stream(rng: Any) -> Iterator[SecureStream]:
    """The stream of one fit: with a key of its own, whatever Generator the frame made.

    A SecureStream that is given, by tests and audits, is used as it is and stays open.
    """
    if isinstance(rng, SecureStream):
        yield rng
        return
    with SecureStream() as stream:
        yield stream
