"""Rankings as hypotheses: how sure an item must be before it says that an order holds, or that the opposite does.

Many rankings are tested, and a few would come out wrong by chance. So the error is held over all items of all papers:
the probability that any item says something wrong about an order is at most ``LEVEL``. Three things are fixed before
anything is run: the number of items with tests is at most ``ITEMS``, each gets an equal part of ``LEVEL``, and its
``tests`` in claims.toml is the number of comparisons that it makes. A run that makes another number fails. No item's
verdict depends on which others are run. An item that was tested, and tested again with more repetitions because the
first result settled too little, could have erred both times: its ``looks`` in claims.toml is 2, and it counts as two
items.

**The rule.** A comparison i has two hypotheses of no effect, "the first is not lower" and "the first is not higher",
with one-sided p-values. Both may be true, if there is no difference. An item has m comparisons and says three kinds of
things, each with error rate ``SHARE`` = LEVEL / ITEMS / 3:

- kept: at least u of the m comparisons hold (all of them, u = m, unless a paper claims less): (m - u + 1) times the
  u-th smallest p-value of the first kind is at most SHARE. For u = m this is the largest p-value, without a correction;
- lower: single comparisons that are established, by Holm's method on the p-values of the first kind;
- higher: single comparisons whose opposite is established, by Holm's method on those of the second kind.

**Proof.** Let p-values be valid: P(p_i <= x) <= x if hypothesis i is true. Nothing is assumed about how they depend on
each other.

kept: it is wrong if fewer than u comparisons hold, that is, if at least m - u + 1 hypotheses are true. Take m - u + 1
true ones. If the u-th smallest p-value of all m is at most x, only m - u are left out by it, so one of those taken is
at most x. So P((m - u + 1) p_(u) <= SHARE) <= (m - u + 1) SHARE / (m - u + 1) = SHARE, by Bonferroni's inequality.

lower, higher: let k hypotheses be true. If Holm's method rejects one of them, then at the first of these at most m - k
have been rejected before, so its p-value is at most SHARE / k. By Bonferroni's inequality that has probability SHARE at
most.

An item errs with probability at most 3 SHARE in each of its looks, all looks of all items together at most
ITEMS * 3 SHARE = LEVEL, whichever are run. What a run says about an order must rest on these three and on nothing else.
That one printed mean is below another is arithmetic, which cannot err by chance.

The sign test is exact: its p-value is a binomial probability. So is Wilcoxon's signed-rank test, for differences whose
law is symmetric. Student's and Welch's tests are exact for normal errors (Welch's nearly). They are used where pairs
are too few for signs, or not printed. With these numbers 14 unanimous pairs are enough for "order kept", as 2**-14 is
below SHARE.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL, ITEMS = 0.01, 50
SHARE = LEVEL / ITEMS / 3
# How the rule is called where a test's result is shown.
RULE = f"1 % over {ITEMS} items"

Array = NDArray[Any]


@dataclass(frozen=True)
class Compared:
    """One comparison: the two one-sided p-values, and effect and uncertainty in words."""

    lower: float
    higher: float
    effect: str


@dataclass(frozen=True)
class Decision:
    """What the tests of an item establish: the whole order, and which comparisons and which opposites."""

    kept: bool
    lower: tuple[bool, ...]
    higher: tuple[bool, ...]


_MADE: ContextVar[list[tuple[int, int]] | None] = ContextVar("tests made", default=None)


@contextmanager
def counted() -> Iterator[list[tuple[int, int]]]:
    """Of every decision that is made inside: the number of its tests, and of how many parts of its item it is one."""
    made: list[tuple[int, int]] = []
    token = _MADE.set(made)
    try:
        yield made
    finally:
        _MADE.reset(token)


def decide(tests: Sequence[Compared], needed: int | None = None, parts: int = 1) -> Decision:
    """The three kinds of statements on the comparisons of one item; ``needed`` is u, all of them if not given.

    An item that decides several times, such as once for each reading, says in ``parts`` how often: they share its part.
    """
    _count(len(tests), parts)
    lower, higher = [test.lower for test in tests], [test.higher for test in tests]
    kept = at_least(lower, len(tests) if needed is None else needed, SHARE / parts)
    return Decision(kept, tuple(holm(lower, SHARE / parts)), tuple(holm(higher, SHARE / parts)))


def differ(p_values: Sequence[float]) -> list[bool]:
    """Of an item that has two-sided tests only, which differences are established: those of both directions."""
    _count(len(p_values), 1)
    return holm(p_values, 2 * SHARE)


def _count(tests: int, parts: int) -> None:
    made = _MADE.get()
    if made is not None:
        made.append((tests, parts))


def problem(expected: int, made: Sequence[tuple[int, int]]) -> str:
    """What is wrong with the tests of an item, or an empty string."""
    total = sum(tests for tests, _ in made)
    if total != expected:
        return f"makes {total} tests, and claims.toml fixes tests = {expected} beforehand"
    if sum(1 / parts for _, parts in made) > 1 + 1e-9:
        return f"decides {len(made)} times, so each must say parts = {len(made)}"
    return ""


def at_least(p_values: Sequence[float], needed: int, level: float = SHARE) -> bool:
    """Whether at least ``needed`` of the comparisons hold."""
    return bool(p_values) and (len(p_values) - needed + 1) * sorted(p_values)[needed - 1] <= level


def holm(p_values: Sequence[float], level: float = SHARE) -> list[bool]:
    """Which hypotheses Holm's method rejects."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


# --- tests -----------------------------------------------------------------------------------------------------------


def sign(first: Array, second: Array) -> Compared:
    """The sign test on pairs; pairs without a difference are left out."""
    wins, losses = int(np.sum(first < second)), int(np.sum(first > second))
    words = f"lower in {wins} of {wins + losses}{_difference(first, second)}"
    return Compared(_tail(wins, wins + losses), _tail(losses, wins + losses), words)


@functools.cache
def _tail(wins: int, pairs: int) -> float:
    """The probability of at least so many wins among pairs without a difference."""
    return sum(math.comb(pairs, count) for count in range(wins, pairs + 1)) / 2**pairs


def student(first: Array, second: Array) -> Compared:
    """Student's paired test on the logarithms."""
    words = _difference(first, second).removeprefix(", ")
    if not np.any(first != second):
        return Compared(1.0, 1.0, words)
    found = stats.ttest_rel(np.log(first), np.log(second))
    return _from_t(float(found.statistic), len(first) - 1, words)


def wilcoxon(first: Array, second: Array) -> Compared:
    """Wilcoxon's signed-rank test on pairs, exact with ties too; pairs without a difference are left out."""
    gains = np.asarray(first, float) - np.asarray(second, float)
    gains = gains[gains != 0]
    # Twice the ranks, which are whole numbers. Given the sizes, all signs are equally likely without a difference.
    ranks = np.rint(2 * stats.rankdata(np.abs(gains))).astype(int)
    law = np.ones(1)
    for rank in ranks:
        law = (np.pad(law, (0, rank)) + np.pad(law, (rank, 0))) / 2
    positive = int(ranks[gains > 0].sum())
    words = _difference(first, second).removeprefix(", ")
    return Compared(float(law[: positive + 1].sum()), float(law[positive:].sum()), words)


def welch(first: tuple[float, float], second: tuple[float, float], trials: int) -> Compared:
    """Welch's test on printed means and deviations (mean, deviation) of ``trials`` each."""
    (mean_1, deviation_1), (mean_2, deviation_2) = first, second
    found = stats.ttest_ind_from_stats(mean_1, deviation_1, trials, mean_2, deviation_2, trials, equal_var=False)
    t, p = float(found.statistic), float(found.pvalue)
    below, above = (p / 2, 1 - p / 2) if t < 0 else (1 - p / 2, p / 2)
    error = math.hypot(deviation_1, deviation_2) / math.sqrt(trials)
    return Compared(below, above, f"difference {mean_1 - mean_2:+.3g} +- {error:.2g}, p = {p:.2g}")


def _from_t(t: float, freedom: int, words: str) -> Compared:
    return Compared(float(stats.t.cdf(t, freedom)), float(stats.t.sf(t, freedom)), words)


def _difference(first: Array, second: Array) -> str:
    """The mean difference of pairs and its standard error; empty where some are infinite."""
    with np.errstate(invalid="ignore"):
        gains = np.asarray(first, float) - np.asarray(second, float)
    if len(gains) < 2 or not np.all(np.isfinite(gains)):
        return ""
    return f", difference {gains.mean():+.3g} +- {gains.std(ddof=1) / math.sqrt(len(gains)):.2g}"
