"""Vertices of an L1 ball chosen by exact selections: integer scores, integer weights, ChaCha20.

Privacy
-------
The score of a vertex is a sum of one integer per record. On sparse rows a record contributes (level - levels/2) times
its entry: entries, in units of feature_bound, have at most 24 binary digits, so that n * levels * 2^digits <= 2^52 and
all sums are exact in doubles, however they are added up and updated. Otherwise it contributes its residual on a grid
times its entry on a grid (data/grids.py). Both are clipped in integers. So the range of the scores between neighbours
is a public integer R, exactly, and a selection with exponents unit * score, unit * R <= epsilon compared as fractions,
is the plan's ExponentialMechanism(epsilon). Nothing is charged for rounding: a rounded row is another row, whose
neighbours are the same.

What a record contributes depends on that record, its place, theta and public numbers alone: no row is left out, no path
is chosen by the number of entries, and X^T X is not used.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import progress
from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.data.grids import Grids, entries_on_grid, exact_sum, residuals_on_grid
from dptoolkit.randomness import IntegerSelection, SecureStream, unit_for
from dptoolkit.randomness.selection import decided
from dptoolkit.solvers.engine.vertex_paths import (
    CsrAndCsc,
    DitheredPath,
    DitherStart,
    Path,
    WorkCounters,
    add_feature,
    level_count,
    reachable,
    vertex_trace,
    watched_parts,
)
from dptoolkit.solvers.frame.plan import GUMBEL_MAXIMUM, Plan, Release
from dptoolkit.solvers.frame.run import Trace
from dptoolkit.solvers.frame.secure import SecureRelease, not_secure, secure_stream
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers.engine.vertices import ResolvedBall

# Binary digits of sums, and of entries at most and at least.
_SUM_BITS, _MOST_BITS, _LEAST_BITS = 52, 24, 10
# Beyond it a selection is as good as deterministic; smaller exponents are more private.
_LARGEST_UNIT = 256.0
# Words that are drawn at a time.
_WORDS = 2048


@dataclass(frozen=True)
class SelectionNoise(SecureRelease):
    """The public facts of exact selections by integer scores.

    ``epsilon`` is that of one selection at ``scale``; ``grid`` says in words what the scores are made of.
    """

    score_range: float
    scale: float
    grid: str
    growth: float = 1.0

    @property
    def epsilon(self) -> float:
        """The epsilon of one selection, as its event has it."""
        return self.score_range / self.scale if self.scale > 0 else math.inf

    def unit(self, integer_range: int) -> float:
        """The exponent of a score of 1, for scores whose differences move by at most ``integer_range``."""
        return unit_for(min(self.epsilon, _LARGEST_UNIT * max(integer_range, 1)), max(integer_range, 1))

    def with_noise(self, scale: float) -> SelectionNoise:
        """See ``SecureRelease``."""
        return replace(self, scale=scale)

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        return {"selection": "integer scores and weights, exact probabilities", "grid": self.grid,
                "epsilon": self.epsilon, "sensitivity_growth": self.growth}  # fmt: skip

    def __str__(self) -> str:
        return f"selections with exact probabilities; {self.grid}"


@dataclass(frozen=True)
class CountNoise(SecureRelease):
    """The public facts of exact two-sided geometric noise on a count, which is an integer already."""

    scale: float
    span: int
    growth: float = 1.0

    def with_noise(self, scale: float) -> CountNoise:
        """See ``SecureRelease``."""
        return replace(self, scale=scale)

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        return {"count": "an integer with exact two-sided geometric noise", "sensitivity": self.span,
                "sensitivity_growth": self.growth}  # fmt: skip

    def __str__(self) -> str:
        return "a count with exact two-sided geometric noise"


def check_exact(release: Release) -> None:
    """Refuse a selection that has no exact sampler."""
    if release.law != GUMBEL_MAXIMUM:
        raise not_secure(f"for the law {release.law!r}", "Use law='gumbel', the exponential mechanism, which is exact.")


def selection_noise(plan: Plan[ResolvedBall], release: Release) -> SelectionNoise:
    """The facts of the plan's choice of vertices; refused where scores have no exact sums or selections no sampler."""
    check_exact(release)
    settings = plan.settings
    # Both layouts must be possible: a plan is made without data.
    grids = _grids(plan.n, settings.feature_bound, settings.bounds.residual_limit(settings.l1_radius))
    levels = secure_levels(plan)
    grid = (
        f"entries with {entry_bits(plan.n, levels)} bits and {levels:,} levels of residuals on sparse rows, with "
        f"{grids.row_bits} and {grids.residual_bits} bits on dense ones or with refresh=1"
    )
    return SelectionNoise(release.sensitivity, release.scale, grid)


def secure_levels(plan: Plan[ResolvedBall]) -> int:
    """The number of levels of dithered residuals: as few as leave entries their least number of digits."""
    return min(level_count(plan), 2 ** (_SUM_BITS - _LEAST_BITS - _ceil_log2(plan.n)))


def entry_bits(n: int, levels: int) -> int:
    """Binary digits of entries, for which n * levels * 2^digits <= 2^52."""
    return min(_MOST_BITS, _SUM_BITS - _ceil_log2(n) - _ceil_log2(levels))


def _ceil_log2(count: int) -> int:
    return (count - 1).bit_length()


@functools.lru_cache(maxsize=256)
def _grids(n: int, bound: float, limit: float) -> Grids:
    """Grids of entries, which do not depend on the limit, and of residuals."""
    return Grids.choose(n, bound, limit, 0.0)


def secure_vertex_path(plan: Plan[ResolvedBall], rows: Rows, y: Array) -> Path:
    """The path for rows that obey the plan's bounds; see ``vertex_path``.

    Privacy
    -------
    Each run is the plan's release of vertices, exactly. ``work``, which it counts up, is NOT private.
    """
    path = SecureDitheredPath if rows.is_sparse and plan.settings.refresh != 1 else SecureTextbookPath
    return path(plan, rows, y)


def _selection(plan: Plan) -> SelectionNoise:
    assert plan.secure is not None
    noise = plan.secure.first
    assert isinstance(noise, SelectionNoise)
    return noise


def _shared_range(plan: Plan, norm: float) -> float:
    """The part of the plan's range that is left at |w|_1 <= norm, where the plan's noise does not shrink with it."""
    law = plan.settings.noise_law(plan)
    return 1.0 if law.adaptive else min(law.bounds.entry(min(norm, law.radius)) / law.lipschitz, 1.0)


class SecureTextbookPath:
    """All residuals and all scores at every step, in integers; two passes over the data a step."""

    def __init__(self, plan: Plan[ResolvedBall], rows: Rows, y: Array) -> None:
        self.plan, self.y = plan, y
        settings = plan.settings
        self.noise, self.noise_at = _selection(plan), settings.noise_law(plan)
        self.rows = entries_on_grid(rows, self.grids(settings.l1_radius))

    def grids(self, norm: float) -> Grids:
        """The grids at weights with |w|_1 <= norm: those of residuals become finer with the largest residual."""
        settings = self.plan.settings
        return _grids(self.plan.n, settings.feature_bound, self.noise_at.residual_limit(norm))

    def scores(self, margins: Array, grids: Grids) -> NDArray[np.int64]:
        """What every +e_j scores, in integers; NOT private."""
        residuals = self.plan.settings.loss_row.residual(margins, self.y)
        return -exact_sum(self.rows, residuals_on_grid(residuals, grids))

    def unit(self, norm: float, grids: Grids) -> float:
        """The exponent of a score of 1 at weights with |w|_1 = norm."""
        moves = self.plan.adjacency.contributions * grids.residual_cap(grids.limit) * grids.entry_cap
        return self.noise.unit(2 * moves) * _shared_range(self.plan, norm)

    def __call__(self, rng: Any, trace: bool, work: WorkCounters) -> Trace:
        """One fit."""
        settings, d = self.plan.settings, self.rows.shape[1]
        columns, radius = self.rows.transpose(), settings.l1_radius
        w, margins = np.zeros(d), np.zeros(len(self.y))
        scales, vertices = [], np.empty(settings.steps, dtype=np.int64)
        with secure_stream(rng) as stream:
            for t in (number + 1 for number in progress.steps(settings.steps)):
                norm = float(np.abs(w).sum())
                grids = self.grids(norm)
                scales.append(self.noise_at.at_norm(norm))
                selection = IntegerSelection(self.scores(margins, grids), self.unit(norm, grids))
                j, sign = selection.select(stream)
                vertices[t - 1] = j if sign > 0 else d + j
                mu = 2 / (t + 2)
                w *= 1 - mu
                w[j] += mu * sign * radius
                margins *= 1 - mu
                add_feature(margins, columns, j, mu * sign * radius * grids.row_unit)
        return vertex_trace(w, scales, vertices, trace)


def whole_sides(rows: Rows, bound: float, bits: int) -> CsrAndCsc:
    """Sparse rows in units of ``bound``, rounded to ``bits`` binary digits, both ways; rows without entries stay.

    Privacy
    -------
    Each entry is rounded on its own, and is at most 1 in size afterwards: the entries are clipped to the bound.
    """
    from dptoolkit.kernels import frank_wolfe as kernel

    unit = 2.0**bits
    whole = np.clip(np.rint(rows.matrix.data / np.float64(bound) * unit), -unit, unit)
    entries = (whole / unit).astype(np.float32)
    matrix = type(rows.matrix)((entries, rows.matrix.indices, rows.matrix.indptr), shape=rows.shape, copy=False)
    arrays: Any = (*kernel_arrays(matrix), *kernel_arrays(matrix.tocsc()))
    return CsrAndCsc(kernel.Matrix(*arrays), np.ones(rows.shape[0], dtype=bool))


class SecureDitheredPath(DitheredPath):
    """The iteration with dithered residuals, whose totals are exact multiples of a power of two."""

    def __init__(self, plan: Plan[ResolvedBall], rows: Rows, y: Array) -> None:
        super().__init__(plan, rows, y)
        self.noise = _selection(plan)

    def _arranged(self, rows: Rows) -> CsrAndCsc:
        bound, bits = self.plan.settings.feature_bound, entry_bits(self.plan.n, self._levels())
        made: CsrAndCsc = rows.cached(("whole sides", bound, bits), lambda: whole_sides(rows, bound, bits))
        return made

    def _levels(self) -> int:
        return secure_levels(self.plan)

    def theta(self, rng: Any) -> NDArray[np.float32]:
        """See ``DitheredPath``; any number that does not depend on the data will do."""
        return np.asarray((rng.words(self.plan.n) >> np.uint64(40)) * 2.0**-24, dtype=np.float32)

    def unit(self, norm: float) -> float:
        """The exponent of a total of 1.

        Between neighbours a total moves by at most contributions * levels/2, and two of them against each other by
        twice that.
        """
        return self.noise.unit(self.plan.adjacency.contributions * self.count) * _shared_range(self.plan, norm)

    def __call__(self, rng: Any, trace: bool, work: WorkCounters) -> Trace:
        """One fit."""
        with secure_stream(rng) as stream:
            return self.finish(stream, DitherStart(self.theta(stream), self.count / 2, 0.0), trace, work)

    def finish(self, rng: Any, start: DitherStart, trace: bool, work: WorkCounters) -> Trace:
        """See ``DitheredPath``."""
        from dptoolkit.kernels import frank_wolfe as kernel

        settings, stream = self.plan.settings, rng
        try:
            dither, v, room = self._idle.pop()
        except IndexError:
            dither, v, room = kernel.dither(len(self.y), self.d), np.empty(self.d), kernel.whole_sampler(self.d)
        kernel.start(dither, *start)
        v[:], room.frame[:], scale, radius = 0.0, 0.0, 1.0, settings.l1_radius
        steps_of = _Steps(self, stream, dither, v, room, work)
        scales: list[float] = []
        vertices, before = np.empty(settings.steps, dtype=np.int64), None
        for first, steps in watched_parts(self.parts, settings.steps):
            norm = reachable(radius * scale * float(np.abs(v).sum()), radius, first, steps)
            grid = self.grid(norm)
            moved = before is None or grid.limit != before.limit
            part = vertices[first - 1 : first - 1 + steps]
            scale = steps_of.block(grid, self.unit(norm), first, scale, moved, part)
            scales += [self.noise_at.at_norm(norm)] * steps
            before = grid
        w = radius * scale * v
        self._idle.append((dither, v, room))
        return vertex_trace(w, scales, vertices, trace)


class _Steps:
    """Calls of the kernel for one fit: its words, and decisions that doubles cannot make."""

    def __init__(
        self, path: SecureDitheredPath, stream: SecureStream, dither: Any, v: Array, room: Any, work: WorkCounters
    ) -> None:
        self.path, self.stream, self.dither, self.v, self.room, self.work = path, stream, dither, v, room, work
        self.words: NDArray[np.uint64] = stream.words(_WORDS)
        from dptoolkit.kernels import frank_wolfe as kernel

        self.progress = np.zeros(kernel.STATE, np.int64)

    def block(self, grid: Any, unit: float, first: int, scale: float, moved: bool, vertices: Any) -> float:
        """All steps of a block; returns the new scale of v."""
        from dptoolkit.kernels import frank_wolfe as kernel

        state, path, count = self.progress, self.path, len(vertices)
        state[kernel.STEP], state[kernel.PHASE] = 0, kernel.PUSH
        while True:
            scale = kernel.whole_block(
                self.words, state, grid, path.matrix, path.y, first, count, unit, scale, moved, self.v, self.dither,
                vertices, self.room, self.work,
            )  # fmt: skip
            if state[kernel.STEP] == count:
                return float(scale)
            if state[kernel.PHASE] == kernel.HARD:
                self._decide(unit)
            else:
                # Words that are left were looked at by nobody.
                self.words, state[kernel.PLACE] = self.stream.words(_WORDS), 0

    def _decide(self, unit: float) -> None:
        """The try that the kernel could not decide, by the same words."""
        from dptoolkit.kernels import frank_wolfe as kernel

        state, room = self.progress, self.room
        j, place = int(state[kernel.FEATURE]), int(state[kernel.PLACE])
        size, top, exact = Fraction(abs(float(self.dither.totals[j]))), Fraction(float(room.frame[1])), Fraction(unit)
        factor = Fraction(1 << kernel.DIGITS, int(room.weights[j]))
        against = decided(
            factor, exact * (top - size), exact * (top + size), self.words[place : place + 2], self.stream
        )
        state[kernel.PLACE] += 2
        if against is None:
            state[kernel.PHASE] = kernel.DRAW
            kernel.whole_rejected(state, room)
        else:
            state[kernel.PHASE] = kernel.KEPT_AGAINST if against else kernel.KEPT
