"""A guarantee: a bound on what a release gives away, computed from its event on demand, and its text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dptoolkit._validate import delta_value, invalid, nonnegative, one_of
from dptoolkit.accounting import pld
from dptoolkit.accounting import tradeoff as guesses
from dptoolkit.accounting.events import Event, adjacency_of, as_event, flatten
from dptoolkit.accounting.group import GroupGuarantee
from dptoolkit.accounting.methods import METHODS, best_delta, best_epsilon, is_exact
from dptoolkit.accounting.report import Printed, at_least, at_most, delta_text, number, table
from dptoolkit.accounting.structure import assumptions, total_rho, words
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import UnsupportedEvent

# The deltas at which a printed guarantee shows epsilon, besides the one that was asked for.
TABLE_DELTAS = (1e-3, 1e-5, 1e-7, 1e-9)


def guarantee_table(guarantee: Guarantee) -> str:
    """Mechanisms with count, noise and sensitivity; epsilon at a few deltas with the method; assumptions."""
    adjacency = str(guarantee.adjacency) if guarantee.adjacency else "as the noise was planned for"
    mechanisms = [[*words(part), f"{count:,}"] for part, count in flatten(guarantee.event)]
    epsilons = [[delta_text(d), at_most(guarantee.epsilon(d)), guarantee.method_at(d)] for d in guarantee.deltas]
    parts = [
        f"Guarantee, adjacency: {adjacency}",
        table(["mechanism", "noise", "sensitivity", "count"], mechanisms or [["nothing released", "-", "-", "0"]]),
        table(["delta", "epsilon", "method"], epsilons),
    ]
    if guarantee.rho < float("inf"):
        parts[2] += f"\nzCDP: rho = {at_most(guarantee.rho)}"
    if guarantee.claimed is not None:
        parts.append(_claim_line(guarantee))
    if guarantee.assumptions:
        parts.append("Assumes\n" + "\n".join(f"- {text}" for text in guarantee.assumptions))
    return "\n\n".join(parts)


def _claim_line(guarantee: Guarantee) -> str:
    """A claim about this release next to what is computed; it is called false only if known neighbours break it."""
    assert guarantee.claimed is not None
    epsilon, delta, source, conditions = guarantee.claimed
    lower, upper = guarantee.bounds(delta)
    verdict = "is NOT certified"
    if upper <= epsilon:
        verdict = "holds"
    elif lower > epsilon:
        verdict = f"is FALSE (some neighbours reach {at_least(lower)})"
    claim = f"{source} claims epsilon {number(epsilon)} at delta {delta_text(delta)}"
    line = f"{claim}; this noise gives {at_most(upper)}: the claim {verdict}"
    return "\n".join([line, *(f"- its condition {text}" for text in conditions)])


# --- A guarantee: a bound on what a release gives away, computed from its event on demand ---------------------

# The delta of one-line answers for which the caller has named none.
REFERENCE_DELTA = 1e-5


class Claimed(NamedTuple):
    """A claim that somebody else makes for a release, and whether the conditions of that claim hold here."""

    epsilon: float
    delta: float
    source: str
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Guarantee(Printed):
    """What a release guarantees, computed from the event on demand. ``print`` shows it as a table.

    Attributes
    ----------
    event : Event
        What was released.
    forced_method : str or None, default None
        The method of all answers; None for the tightest.
    adjacency : Adjacency or None, default None
        Which datasets are neighbours; None if nobody has stated it.
    notes : tuple of str, default ()
        Further assumptions and warnings, which the table prints.
    claimed : Claimed or None, default None
        What somebody else claims for this release, such as a paper.
    asked_delta : float or None, default None
        The delta that the caller asked for, if any: the table lists it besides the usual ones.
    """

    event: Event
    forced_method: str | None = None
    adjacency: Adjacency | None = None
    notes: tuple[str, ...] = field(default=())
    claimed: Claimed | None = None
    asked_delta: float | None = None

    def __post_init__(self) -> None:
        if self.asked_delta is not None:
            delta_value(self.asked_delta)

    @property
    def deltas(self) -> tuple[float, ...]:
        """The deltas at which epsilon is printed, the largest first."""
        extra = () if self.asked_delta is None else (float(self.asked_delta),)
        return tuple(sorted({*TABLE_DELTAS, *extra}, reverse=True))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon known to hold at ``delta``.

        Parameters
        ----------
        delta : float
            The delta, in [0, 1).
        """
        delta = delta_value(delta)
        if self.forced_method is None:
            return best_epsilon(self.event, delta)[0]
        return METHODS[self.forced_method].epsilon(self.event, delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at ``epsilon``.

        Parameters
        ----------
        epsilon : float
            The epsilon, >= 0.
        """
        epsilon = nonnegative("epsilon", epsilon)
        if self.forced_method is None:
            return best_delta(self.event, epsilon)[0]
        return METHODS[self.forced_method].delta(self.event, epsilon)

    def bounds(self, delta: float) -> pld.Bracket:
        """(lower, upper) bounds on epsilon: upper is guaranteed, and no analysis can prove less than lower.

        Explicit neighbours attain the lower bound; it is 0 where none are known, as for the best of several runs of
        different releases. For ZCdp they are those of Gaussian noise with the same rho.

        Parameters
        ----------
        delta : float
            The delta, in [0, 1).
        """
        upper = self.epsilon(delta)
        if self.forced_method is None and is_exact(self.event):
            return pld.Bracket(upper, upper)
        try:
            lower = pld.lower_epsilon(self.event, delta_value(delta))
        except UnsupportedEvent:
            lower = 0.0
        if lower > upper * (1 + 1e-9):
            raise ArithmeticError(
                f"lower bound {lower} exceeds upper bound {upper} at delta={delta:g} for {self.event!r}: "
                "one of them is wrong. Please report this."
            )
        return pld.Bracket(min(lower, upper), upper)

    def tradeoff(self, alpha: Any) -> Any:
        """The missed-detection rate that no test at false-alarm rate ``alpha`` (a number or an array) can go below.

        The test is told the output and guesses which of two neighbouring data sets was used. It falls from at most 1 at
        alpha 0 to 0 at alpha 1. Without privacy it is 0; if nothing is released it is 1 - alpha.

        Parameters
        ----------
        alpha : float or array-like
            False-alarm rates, in [0, 1].
        """
        return guesses.tradeoff(self, alpha)

    def tradeoff_bounds(self, alpha: Any) -> guesses.TradeoffBounds:
        """(lower, upper) bounds on the smallest missed-detection rate: ``tradeoff``, and what some test attains.

        But for rounding both are equal for Gaussian noise, and for up to 256 mechanisms of one (epsilon, delta).
        Where no attained pair is known, upper is 1 - alpha, a blind guess.

        Parameters
        ----------
        alpha : float or array-like
            False-alarm rates, in [0, 1].
        """
        return guesses.bounds(self, alpha)

    @property
    def advantage(self) -> float:
        """The most by which any test's detection rate exceeds its false-alarm rate."""
        return guesses.advantage(self)

    def bayes_success(self, prior: float = 0.5) -> float:
        """The largest probability of guessing right whether the record was used; ``prior``: that before any output.

        Parameters
        ----------
        prior : float, default 0.5
            The probability, before any output, that the record was used.
        """
        return guesses.bayes_success(self, prior)

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence for people: how often a guess can be right, rounded up."""
        return guesses.sentence(self, self.adjacency)

    def group(self, size: int) -> GroupGuarantee:
        """What holds for any ``size`` records that change together, such as all those of one person.

        Parameters
        ----------
        size : int
            The number of records that change together.
        """
        return GroupGuarantee(self, size)

    @property
    def rho(self) -> float:
        """The zCDP parameter, infinite where none is known."""
        try:
            return total_rho(self.event)
        except UnsupportedEvent:
            return math.inf

    @property
    def method(self) -> str:
        """The method behind the answer at delta = 1e-5."""
        return self.method_at(REFERENCE_DELTA)

    def method_at(self, delta: float) -> str:
        """The method behind ``epsilon(delta)``.

        Parameters
        ----------
        delta : float
            The delta, in [0, 1).
        """
        return self.forced_method or best_epsilon(self.event, delta_value(delta))[1]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true of the mechanism for the guarantee to hold."""
        return tuple(dict.fromkeys(self.notes + tuple(assumptions(self.event))))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the event, the adjacency, epsilon at a few deltas, the assumptions."""
        return {
            "event": self.event.to_dict(),
            "adjacency": None if self.adjacency is None else self.adjacency.value,
            "method": self.method,
            "epsilon": {repr(d): _json_number(self.epsilon(d)) for d in self.deltas},
            "rho": _json_number(self.rho),
            "assumptions": list(self.assumptions),
            "claimed": self._claim_record(),
        }

    def _claim_record(self) -> dict[str, Any] | None:
        if self.claimed is None:
            return None
        record = self.claimed._asdict()
        return record | {"epsilon": _json_number(self.claimed.epsilon), "conditions": list(self.claimed.conditions)}

    def plot(self, path: str | Path) -> None:
        """The privacy profile beside other ways to account, to a PNG, SVG or PDF file.

        Parameters
        ----------
        path : str or Path
            A file ending in .png, .svg or .pdf.
        """
        from dptoolkit import plots

        plots.save(plots.profile(self), path)

    def __repr__(self) -> str:
        delta = REFERENCE_DELTA if self.asked_delta is None else self.asked_delta
        adjacency = "" if self.adjacency is None else f", {self.adjacency}"
        return f"<Guarantee: epsilon {_epsilon_words(self, delta)} at delta {delta_text(delta)}{adjacency}>"

    def __str__(self) -> str:
        return guarantee_table(self)


def _epsilon_words(guarantee: Guarantee, delta: float) -> str:
    """Epsilon in few digits; a text that is shown by debuggers must not raise."""
    try:
        return at_most(guarantee.epsilon(delta))
    except (UnsupportedEvent, ArithmeticError):
        return "unknown"


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


# --- account --------------------------------------------------------------------------------------------------


def account(event: Event, method: str | None = None, *, adjacency: Adjacency | str | None = None) -> Guarantee:
    """The guarantee of what ``event`` says was released.

    Parameters
    ----------
    event : Event
        What was released.
    method : str or None, default None
        None for the tightest sound bound, or one of "gaussian", "pld", "rdp", "zcdp", "bounded-range", "optimal",
        "advanced", "basic", for comparison.
    adjacency : Adjacency, str or None, default None
        The adjacency for which the noise multipliers are stated. Sampling and objective perturbation fix it; a
        contradiction raises an error.

    Returns
    -------
    Guarantee
        Epsilon at every delta, computed on demand.

    Privacy
    -------
    Touches no data. The bound holds under adaptive composition, for the adjacency of the event.
    """
    as_event("event", event)
    if method is not None:
        one_of("method", method, tuple(METHODS))
    fixed = adjacency_of(event)
    relation = None if adjacency is None else Adjacency.parse(adjacency)
    if fixed is not None and relation is not None and fixed is not relation:
        raise invalid(
            "adjacency",
            str(relation),
            f"'{fixed}', which the event fixes",
            "Give its Subsampled or ObjectivePerturbation the adjacency you mean.",
        )
    return Guarantee(event, method, relation or fixed)
