"""A verdict on one claim at one choice of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dptoolkit.accounting.published import WASTE, Published

# From worst to best; a claim is as bad as its worst point, and vacuous only if every point is.
KINDS = ("false", "open", "wasteful", "holds", "vacuous")


@dataclass(frozen=True)
class Verdict:
    """What is true of a claim.

    Attributes
    ----------
    kind : str
        "holds"; "wasteful": holds with more noise than needed; "false": neighbours are known that break it;
        "vacuous": it promises nothing here; "open": neither proved nor refuted.
    factor : float
        Printed noise / needed noise. Above 1 it is waste. Below 1 it is too little, and for a false claim
        1/factor is how many times more is needed at least before the known neighbours stop breaking it. NaN
        where no noise helps.
    claimed : str
        The printed guarantee.
    lower, upper : float
        Bounds for the truth in the currency of the claim (epsilon at the claimed delta, or rho); NaN if not
        needed.
    corrected : mapping
        The smallest sufficient noise, by name.
    detail : str
        What a reader should know beside the numbers.
    """

    kind: str
    factor: float = math.nan
    claimed: str = ""
    lower: float = math.nan
    upper: float = math.nan
    corrected: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    @property
    def truth(self) -> float:
        """The bound that decides: what neighbours reach if the claim is false, what is proved otherwise."""
        return self.lower if self.kind == "false" else self.upper


def judge(published: Published) -> Verdict:
    """The verdict on a published constant, from exact accounting."""
    factor, detail = published.ratio, published.vacuous
    if published.vacuous:
        kind = "vacuous"
    elif not published.conditions_hold:
        kind = "vacuous"
        detail = "not met: " + "; ".join(c.text for c in published.conditions if not c.holds)
    elif published.status == "holds":
        if factor < 1:
            # The repaired release takes more noise here than the printed one, which is enough as it is.
            factor = replace(published, repaired=None).ratio
        kind = size(factor)
    else:
        kind = published.status
    if kind == "false":
        factor = 1 / published.shortfall
    # Once the claim is proved, the lower bound decides nothing, and it costs as much time as the upper one.
    needs_lower = kind in ("false", "open") or published.attains is published.releases
    lower = published.lower if needs_lower else math.nan
    return Verdict(kind, factor, str(published.claim), lower, published.upper, published.corrected, detail)


def size(factor: float) -> str:
    """The verdict on a quantity that is ``factor`` times what it must be: false, holds or wasteful."""
    if factor < 1 - 1e-9:
        return "false"
    return "wasteful" if factor > 1 + WASTE else "holds"


def bound(value: float, maximum: float, detail: str = "") -> Verdict:
    """The verdict on a printed bound of a quantity whose exact largest value is ``maximum``."""
    factor = value / maximum
    return Verdict(size(factor), factor, f"<= {value:.4g}", maximum, maximum, detail=detail)


def unsatisfiable(claimed: str, detail: str) -> Verdict:
    """The verdict on a theorem whose conditions nothing in its range meets."""
    return Verdict("vacuous", claimed=claimed, detail=detail)
