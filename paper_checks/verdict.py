"""A verdict on one claim at one choice of parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from paper_checks.constants import WASTE, Published


@dataclass(frozen=True)
class Word:
    """What a verdict means, what it speaks of, and how it reads: "good", "plain" or "bad" for the claim."""

    meaning: str
    about: str
    tone: str


# The one table of verdicts. Those about privacy go from worst to best; a claim is as bad as its worst point.
VERDICTS: Mapping[str, Word] = MappingProxyType({
    "false": Word("a pair of neighbours loses more than is claimed, or a number in the proof is larger than stated: "
                  "computed exactly, or certified by a lower bound", "privacy", "bad"),
    "open": Word("our upper bound is above the claim and our lower bound below it: not decided", "privacy",
                 "plain"),
    "wasteful": Word("the printed noise gives what is claimed, with noise to spare; the factor is shown", "privacy",
                     "good"),
    "holds": Word("the printed noise gives what is claimed, and about that much is needed", "privacy", "good"),
    "vacuous": Word('the statement promises nothing that could be checked, for example "for some constant"', "privacy",
                    "plain"),
    "met": Word("recomputed or measured within the stated tolerance", "statement", "good"),
    "better": Word("measured beyond the tolerance on the favourable side", "statement", "good"),
    "worse": Word("measured beyond the tolerance on the unfavourable side", "statement", "bad"),
    "order kept": Word("the stated order of methods or settings is the order found", "statement", "good"),
    "order reversed": Word("the opposite order is established", "statement", "bad"),
    "tie": Word("these numbers alone do not establish a difference, which is not the same as no difference",
                "statement", "plain"),
    "bound met": Word("an upper bound is nowhere exceeded on the grid that is shown", "statement", "good"),
    "bound broken": Word("an upper bound with explicit constants is exceeded in an example that is shown", "statement",
                         "bad"),
    "inconsistent": Word("the paper contradicts itself or the source it quotes, by arithmetic on what is printed",
                         "statement", "bad"),
    "not attainable": Word("no setting inside the stated grid, data and split reaches the number", "statement", "bad"),
    "not reached here": Word("our runs do not reach the number, and the paper leaves open what would decide it",
                             "statement", "plain"),
    "misprint": Word("a slip in the text: what is meant is clear, and nothing else of the paper depends on it",
                     "statement", "plain"),
    "constant only": Word("two printed formulas, or a formula and its derivation, differ by a factor that the paper "
                          "treats as constant", "statement", "plain"),
    "condition not met": Word("a sufficient condition of a theorem does not hold at the sizes of the experiments; "
                              "unless the note says so the paper does not claim that it does", "statement", "plain"),
    "depends on reading": Word("found under one reading of the text, or in some comparisons, and not under another; "
                               "all are shown", "statement", "plain"),
    "no data": Word("the data that would decide are not available; no verdict on the paper", "statement", "plain"),
})  # fmt: skip
KINDS = tuple(word for word, entry in VERDICTS.items() if entry.about == "privacy")
WORDS = tuple(word for word, entry in VERDICTS.items() if entry.about == "statement")


_DEPENDS = "depends on reading"
_FROM_WORST = (KINDS[0], _DEPENDS, *KINDS[1:])


def worst(kinds: Iterable[str]) -> str:
    """The verdict on several points or claims: that of the worst one, and vacuous only if every one is."""
    return min(kinds, key=_FROM_WORST.index)


def overall(points: Iterable[tuple[Mapping[str, object], str]]) -> str:
    """The verdict on a whole privacy claim, from where each point is and its verdict: that of its worst point.

    If the points name readings of the text, the claim is false only if it is under each of them.
    """
    kinds: dict[object, list[str]] = {}
    for at, kind in points:
        kinds.setdefault(at.get("reading"), []).append(kind)
    found = {worst(own) for own in kinds.values()}
    return _DEPENDS if KINDS[0] in found and len(found) > 1 else worst(found)


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
