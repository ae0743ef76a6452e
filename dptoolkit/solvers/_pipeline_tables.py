"""How dp_pipeline prepares a table by public bounds of its columns, before its other stages.

    1 columns are clipped to their bounds and moved to [-1, 1]
    2 numeric columns become ranks, by noisy histograms; for regression, they are moved and scaled to fill [-1, 1]
    3 rows are scaled to norm 1 (for regression, clipped to a public norm); their mean is released with noise and, where
      it is long, subtracted, and rows are scaled again

Whether a stage is worth its part of the budget is decided on public numbers, when the plan is made. A stage that is
left out spends nothing, and its part is left to the other stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows
from dptoolkit.data.column_bounds import ColumnBounds
from dptoolkit.errors import InvalidValue
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.solvers._pipeline_ranks import BinCounts, Histogram, Ranks, histograms_sensitivity
from dptoolkit.solvers._pipeline_secure import SecureStages
from dptoolkit.solvers._pipeline_stages import Preparation
from dptoolkit.solvers.frame import rules
from dptoolkit.solvers.frame.plan import GAUSSIAN, Plan, Release
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another
from dptoolkit.solvers.frame.secure import secure_stream
from dptoolkit.types import Array

# The names of the releases in the plan.
HISTOGRAMS, MEAN_ROW = "column histograms, counts", "mean row"


# --- the plan -------------------------------------------------------------------------------------------------


class TableStages(NamedTuple):
    """The releases of a table's preparation, the part of mu^2 left to the other stages, and remarks in words."""

    releases: tuple[Release, ...] = ()
    rest: float = 1.0
    remarks: tuple[str, ...] = ()


def mean_row_sensitivity(adjacency: Adjacency, n: int, nonnegative: bool) -> float:
    """How far one record moves the mean of rows of norm at most 1 in L2.

    Two such rows are at most 2 apart; two non-negative ones, whose product is not negative, at most sqrt(2).
    """
    if adjacency is Adjacency.ZERO_OUT:
        return 1 / n
    return (math.sqrt(2) if nonnegative else 2.0) / n


def table_stages(bounds: ColumnBounds, n: int, d: int, mu: float, adjacency: Adjacency) -> TableStages:
    """The stages that a table of n rows and d columns gets with a total of mu.

    Privacy
    -------
    Touches no data: whether a stage is done is decided on n, d, mu, the bounds and constants.
    """
    releases, remarks, rest = [], [], 1.0
    numeric = len(bounds.numeric)
    counts = _release(HISTOGRAMS, histograms_sensitivity(adjacency, numeric), mu, rules.RANKS_SHARE, rules.ROUNDS)
    # The noise of an entry if all rounds count the same bins.
    noise = counts.scale / math.sqrt(rules.ROUNDS) / n
    has_ranks = numeric > 0 and noise <= rules.RANKS_NOISE
    if has_ranks:
        releases.append(counts)
        rest -= rules.RANKS_SHARE
    elif numeric == 0:
        remarks.append("no histograms of columns: no column is numeric by its bounds")
    else:
        remarks.append(
            f"no histograms of columns: the noise of a bin would be {noise:.2g} of the records, and at most "
            f"{rules.RANKS_NOISE:g} is of use; the other stages share their part of the budget"
        )
    nonnegative = bounds.is_nonnegative and not has_ranks
    mean = _release(MEAN_ROW, mean_row_sensitivity(adjacency, n, nonnegative), mu, rules.CENTRE_SHARE)
    length = mean.scale * math.sqrt(d)
    if length <= rules.CENTRE_NOISE:
        releases.append(mean)
        rest -= rules.CENTRE_SHARE
    else:
        remarks.append(
            f"no centring of rows: the noise of their mean would be {length:.2g} long, and no mean is longer than 1; "
            "the other stages share its part of the budget"
        )
    return TableStages(tuple(releases), rest, tuple(remarks))


def _release(query: str, sensitivity: float, mu: float, share: float, count: int = 1) -> Release:
    return Release(query, GAUSSIAN, sensitivity, stage_scale(sensitivity, mu, share, count), count)


def stage_scale(sensitivity: float, mu: float, share: float, count: int = 1) -> float:
    """The noise of a stage that releases ``count`` times and spends this share of mu^2 in all."""
    # One part in 1e12 more, so that rounding cannot put the sum of the stages above the budget.
    return sensitivity / mu * math.sqrt(count / share) * (1 + 1e-12)


# --- the map --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableMap:
    """How the rows of a table are prepared, by public bounds and released numbers.

    ``norm`` is the public norm to which rows are clipped, and by which they are divided; None scales them to norm 1.
    ``ranks`` has an entry for each numeric column, or none at all. ``centre`` is subtracted from rows, if there is one.
    """

    bounds: ColumnBounds
    norm: float | None = None
    ranks: tuple[tuple[Array, Array], ...] = ()
    centre: Array | None = None

    def __call__(self, rows: Rows) -> Rows:
        """Prepared rows, of norm at most 1; always dense, because ranks and centring leave few zeros.

        Privacy
        -------
        Each row is changed on its own by public and released numbers: neighbours stay neighbours.
        """
        out = np.empty(rows.shape)
        # Block by block, so that the table is read once and temporary arrays stay in the cache.
        for some, part in self.blocks(rows):
            out[some] = part
        return Rows(out, False, rows.is_marked)

    def mean(self, rows: Rows, share: Array) -> Array:
        """sum_i share_i x_i over prepared rows.

        Privacy
        -------
        NOT private. One record moves it in L2 by at most ``mean_row_sensitivity``.
        """
        total = np.zeros(rows.shape[1])
        for some, part in self.blocks(rows):
            total += share[some] @ part
        return total

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the released numbers; bounds and norm are those of the plan."""
        return {
            "borders": [borders.tolist() for borders, _ in self.ranks],
            "below": [below.tolist() for _, below in self.ranks],
            "centre": None if self.centre is None else self.centre.tolist(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], bounds: ColumnBounds, norm: float | None) -> TableMap:
        """The map of what ``to_dict`` wrote; a record that fits no table of these bounds is refused."""
        ranks = tuple(
            (np.array(borders, dtype=np.float64), np.array(below, dtype=np.float64))
            for borders, below in zip(record["borders"], record["below"], strict=True)
        )
        centre = None if record["centre"] is None else np.array(record["centre"], dtype=np.float64)
        is_fine = len(ranks) in (0, len(bounds.numeric)) and (centre is None or centre.shape == (len(bounds.lower),))
        for borders, below in ranks:
            is_fine &= borders.ndim == 1 and borders.shape == below.shape and len(borders) > 1
            # A line to an infinite border has no slope.
            is_fine = is_fine and bool(np.isfinite(borders).all())
            is_fine = is_fine and bool((np.diff(borders) > 0).all() and (np.diff(below) >= 0).all())
            is_fine = is_fine and bool(below[0] == 0 and below[-1] == 1)
        if not is_fine or not (centre is None or np.isfinite(centre).all()):
            raise InvalidValue("Its preparation of the table contradicts its bounds.")
        return cls(bounds, norm, ranks, centre)

    def blocks(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        """Prepared rows, some at a time; the next block is written over the array of the last."""
        from dptoolkit.kernels.tables import bound

        ranks = Ranks(self.bounds.numeric, self.ranks) if self.ranks else None
        # Rows of norm 1, or at most 1 where lengths of rows count.
        is_clip = self.norm is not None
        for some, values in rows.dense_blocks():
            self.bounds.scale(values)
            if ranks is not None:
                ranks(values)
            if self.norm is not None:
                values /= self.norm
            bound(values, 1.0, is_clip)
            if self.centre is not None:
                values -= self.centre
                bound(values, 1.0, is_clip)
            yield some, values


@dataclass(frozen=True)
class TablePreparation(Preparation):
    """``Preparation`` of the rows that ``table`` makes of a table's rows."""

    table: TableMap = field(kw_only=True)

    def in_units(self, rows: Rows) -> Rows:
        """See ``Preparation``."""
        return self.table(rows)


# --- the run --------------------------------------------------------------------------------------------------


class TableRun(Run):
    """The preparation of a table, and a run of the other stages on what comes of it; each call is a fit.

    ``inner(plan, table, rows, y, counts)`` is the run of the other stages, on what the map ``table`` makes of the rows.

    Privacy
    -------
    A call releases what ``table_stages`` lists and what the inner run does, each with the planned noise.
    """

    def __init__(self, plan: Plan, rows: Rows, y: Array, counts: Any, inner: Callable[..., Any]) -> None:
        self.plan, self.rows, self.y, self.counts, self.inner = plan, rows, y, counts, inner
        self.bounds: ColumnBounds = plan.settings.bounds
        times = np.ones(rows.shape[0]) if counts is None else np.asarray(counts, dtype=float)
        self.share, self._times = times / plan.n, times
        self.secure = None if plan.secure is None else SecureStages(plan)
        self.width = (plan.settings.classes or 1) * (plan.d + 1)
        self.size = 8 * rows.shape[0] * (plan.d + 1) + 2**14

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``."""
        if self.secure is None:
            return self._one(rng, trace)
        with secure_stream(rng) as stream:
            return self._one(stream, trace)

    def _one(self, rng: Any, trace: bool) -> Trace:
        table = TableMap(self.bounds, self.plan.settings.row_norm)
        kept: list[Array] = []  # What is released, in order; for a trace.
        if (release := planned(self.plan, HISTOGRAMS)) is not None:
            histograms, counts = self._histograms(release, rng)
            read = Histogram.ranks if table.norm is None else Histogram.spread
            table = replace(table, ranks=tuple(read(own, release.scale) for own in histograms))
            kept += [_in_slots(own, self._slot(number)) for number, own in enumerate(counts)]
        facts: dict[str, Any] = {}
        if (release := planned(self.plan, MEAN_ROW)) is not None:
            mean = self._mean_row(table, release, rng)
            # The length of a row counts in regression, so a short mean is subtracted too.
            least = rules.CENTRED_FROM if table.norm is None else 0.0
            table = replace(table, centre=centre(mean, release.scale, least))
            kept.append(mean)
            facts["mean_row"] = mean
        result: Trace = self.inner(self.plan, table, self.rows, self.y, self.counts).one(rng, trace)
        history = result.history | facts
        history["preparation"] = TablePreparation(**vars(history["preparation"]), table=table)
        releases = result.releases
        if releases is not None:
            releases = np.concatenate([*(in_rows(part, self.width) for part in kept), releases])
        return result._replace(history=history, releases=releases)

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; every fit has its own ranks, and so its own rows."""
        return False

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; the releases are the histograms, the mean row, and those of the other stages."""
        return one_after_another(self, streams, trace)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """See ``Run``; NOT private."""
        table = history["preparation"].table
        facts: dict[str, Any] = self.inner(self.plan, table, self.rows, self.y, self.counts).diagnose(weights, history)
        return facts

    @staticmethod
    def _slot(number: int) -> int:
        """The most bins of a column in a round: every round before divides as many as can hold a large share."""
        return rules.BINS + number * math.floor(1 / rules.PARTED_SHARE) * (rules.BINS - 1)

    def _noisy_counts(self, exact: Array, release: Release, rng: Any) -> Array:
        if self.secure is not None:
            return self.secure.counts(HISTOGRAMS, exact, rng)
        return np.asarray(exact + release.scale * rng.standard_normal(len(exact)))

    def _histograms(self, release: Release, rng: Any) -> tuple[list[Histogram], list[list[Array]]]:
        """The histograms of all numeric columns, and the noisy counts of each column in every round."""
        histograms, rounds = [Histogram(edges) for edges in self.bounds.edges(rules.BINS)], []
        before: tuple[list[Array], list[Array]] | None = None
        for number in range(release.count):
            edges = [own.edges for own in histograms]
            exact = self._counts(edges, before)
            before = edges, exact
            noisy = self._noisy_counts(np.concatenate(exact), release, rng)
            rounds.append(np.split(noisy, np.cumsum([len(own) for own in exact])[:-1]))
            for histogram, counts in zip(histograms, rounds[-1], strict=True):
                histogram.add(counts)
                if number + 1 < release.count:
                    histogram.part(release.scale)
        return histograms, rounds

    def _counts(self, edges: list[Array], before: tuple[list[Array], list[Array]] | None = None) -> list[Array]:
        """The counts of the bins of every numeric column; ``before`` is (edges, counts) of the last round.

        Bins that are the same as before hold the same records, and are not counted again.
        """
        new = list(range(len(edges)))
        if before is not None:
            new = [k for k, own in enumerate(edges) if not np.array_equal(own, before[0][k])]
        if len(new) == 0:
            return list(before[1]) if before is not None else []
        columns = [self.bounds.numeric[k] for k in new]
        own, times = self.bounds.take(columns), np.ones(len(self._times)) if self.counts is None else self.counts
        counts = BinCounts([edges[k] for k in new])
        for some, values in self.rows.dense_blocks(columns):
            own.scale(values)
            counts.add(values, np.asarray(times[some], dtype=np.float64))
        found = dict(zip(new, counts.totals(), strict=True))
        return [found[k] if k in found else before[1][k] for k in range(len(edges))]  # type: ignore[index]

    def _mean_row(self, table: TableMap, release: Release, rng: Any) -> Array:
        """The noisy mean of the rows as ``table`` prepares them."""
        if self.secure is not None:
            blocks = ((Rows(part, False), self._times[some]) for some, part in table.blocks(self.rows))
            return self.secure.row_sum(MEAN_ROW, blocks, rng)
        return table.mean(self.rows, self.share) + release.scale * rng.standard_normal(self.plan.d)


def planned(plan: Plan, query: str) -> Release | None:
    """The release of this name in a plan; None if the plan has none."""
    return next((release for release in plan.releases if release.query == query), None)


def centre(mean: Array, noise: float, least: float) -> Array | None:
    """What is subtracted from rows: the noisy mean row, shrunk; None where its squared length is ``least`` or less.

    |mean|^2 - d noise^2 estimates the squared length of the mean without bias. The factor is James and Stein's.

    Privacy
    -------
    Computed from a release and its public noise.
    """
    square, expected = float(mean @ mean), len(mean) * noise * noise
    if square - expected <= least:
        return None
    return np.asarray(mean * (1 - expected / square))


def _in_slots(parts: list[Array], slot: int) -> Array:
    """Arrays one after another, each with zeros at its end up to ``slot`` numbers."""
    out = np.zeros((len(parts), slot))
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out.ravel()


def in_rows(values: Array, width: int) -> Array:
    """These numbers, one after another, in rows of ``width``; zeros fill the last one."""
    rows = np.zeros((math.ceil(len(values) / width), width))
    rows.ravel()[: len(values)] = values
    return rows
