"""Peeling whose releases an attacker cannot undo: integer sums, exact selections, rounded noise on the values.

Privacy
-------
In units of a public grid g = g_x g_r, and divided by -step_size/m, a step's vector is A - S: A the public iterate,
rounded, S the exact integer sum of x_q r_q over the records (data/grids.py). One record moves an entry of S by at most
D = contributions * cap_r * cap_x, an integer, at the public iterate. So the scores |A_j - S_j| move against each other
by at most 2 D, and the values on a public support of s features by sqrt(s) D in L2. Selections are exact with
unit * 2 D <= epsilon, and values get round(M Z) with M >= multiplier * sqrt(s) D, compared as fractions: the plan's
events, exactly. What a record contributes depends on that record, its place and public numbers alone: no row is left
out, and no code is chosen by the number of entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import progress
from dptoolkit._validate import invalid
from dptoolkit.data import Rows, kernel_arrays
from dptoolkit.data.grids import Grids, entries_on_grid, exact_sum, residuals_on_grid
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import IntegerSelection, SecureStream, rounded_normals
from dptoolkit.randomness.sampling import LARGEST_MULTIPLIER
from dptoolkit.solvers.engine.secure_vertices import SelectionNoise, check_exact
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another, written_out
from dptoolkit.solvers.frame.secure import SecurePlan, SecureRelease, secure_stream
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.solvers._peeling import ResolvedPeeling

# The iterate and the scores in grid units; both and their sum fit into 64 bits.
_LARGEST_CENTRE = 2**60


@dataclass(frozen=True)
class PeeledNoise(SecureRelease):
    """The public facts of rounded noise on the values of a support of ``sparsity`` features."""

    sensitivity: float
    scale: float
    sparsity: int
    change: int
    grids: Grids
    growth: float = 1.0

    def __post_init__(self) -> None:
        if self.multiplier(self.change) > LARGEST_MULTIPLIER:
            raise invalid("noise", self.scale, "at most 2^52 units of the grid of sums", "Use a larger epsilon.")

    def multiplier(self, change: int) -> int:
        """M where one record moves an entry by at most ``change`` grid units: per sqrt(s) * change it is the plan's."""
        root = Fraction(math.isqrt(self.sparsity << 80) + 1, 2**40)
        per_sensitivity = Fraction(self.scale) / Fraction(self.sensitivity) * (1 + Fraction(1, 2**40))
        return math.ceil(per_sensitivity * root * change)

    def with_noise(self, scale: float) -> PeeledNoise:
        """See ``SecureRelease``."""
        return replace(self, scale=scale)

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        grids = self.grids
        return {
            "row_grid": grids.row_unit, "residual_grid": grids.residual_unit,
            "noise_units": self.multiplier(self.change), "sensitivity_growth": self.growth,
        }  # fmt: skip

    def __str__(self) -> str:
        grids, units = self.grids, self.multiplier(self.change)
        return (
            f"grid of entries {grids.row_unit:.3g} ({grids.row_bits} bits), of residuals at most "
            f"{grids.residual_unit:.3g} ({grids.residual_bits} bits); noise of a sum: {units:,} grid units"
        )


def grids_at(plan: Plan[ResolvedPeeling], l1_norm: float) -> Grids:
    """The grids of a step at public weights of this |w|_1, at most sqrt(s) radius."""
    settings, values = plan.settings, plan.releases[1]
    largest = math.sqrt(settings.sparsity) * settings.radius
    limits = (settings.bounds.residual_limit(norm) for norm in (largest, min(l1_norm, largest)))
    # As many bits at every step: the noise is in proportion to what one record can do.
    ratio = values.scale / values.sensitivity * math.sqrt(settings.sparsity) * plan.adjacency.contributions
    return _grids(settings.block(plan.n), settings.feature_bound, *limits, ratio)


@functools.lru_cache(maxsize=256)
def _grids(m: int, bound: float, largest: float, limit: float, ratio: float) -> Grids:
    """The bits are those at the ``largest`` limit.

    Chosen anew for a smaller one, they may differ where the ratio is next to a power of two, as products of doubles are
    rounded: entries, which are on one grid in all steps, would then be twice as large as the step's noise is for.
    """
    return replace(Grids.choose(m, bound, largest, ratio * bound * largest), limit=limit)


def entry_change(plan: Plan[ResolvedPeeling], grids: Grids) -> int:
    """D: the most that one record moves an entry of the integer sum."""
    return plan.adjacency.contributions * grids.residual_cap(grids.limit) * grids.entry_cap


def secured_peeling(plan: Plan[ResolvedPeeling]) -> Plan:
    """The plan with the facts of its secure noise; refused where it has none.

    Privacy
    -------
    From public numbers alone.
    """
    choice, values = plan.releases
    check_exact(choice)
    settings, grids = plan.settings, grids_at(plan, math.inf)
    finest = grids_at(plan, 0.0)
    if (
        Fraction(settings.radius) * settings.block(plan.n)
        > _LARGEST_CENTRE * Fraction(settings.step_size) * finest.unit
    ):
        repair = "The iterate is too large for the grid of the gradients: use longer steps or a smaller radius."
        bound = "large enough that radius * n / step_size is at most 2^60 grid units"
        raise invalid("step_size", settings.step_size, bound, repair)
    text = f"entries with {grids.row_bits} bits, residuals with {grids.residual_bits}"
    parts = (
        SelectionNoise(choice.sensitivity, choice.scale, text),
        PeeledNoise(values.sensitivity, values.scale, settings.sparsity, entry_change(plan, grids), grids),
    )
    return replace(plan, secure=SecurePlan(parts))


class SecurePeelingRun(Run):
    """Peeling on bounded data with secure noise; see ``PeelingRun``.

    Privacy
    -------
    See the module. A call releases the peeled vector of every step, before projection.
    """

    def __init__(
        self, plan: Plan[ResolvedPeeling], rows: Rows, y: Array, counts: NDArray[np.int64] | None = None
    ) -> None:
        self.plan, self.settings, self.all = plan, plan.settings, (rows, y, counts)
        assert plan.secure is not None
        choice, values = plan.secure.parts
        assert isinstance(choice, SelectionNoise) and isinstance(values, PeeledNoise)
        self.choice, self.values = choice, values
        self.block = self.settings.block(plan.n)
        self.times = None if counts is None else counts.astype(float)
        whole = entries_on_grid(rows, grids_at(plan, math.inf))
        size, count = (self.block, self.settings.steps) if self.settings.data == "split" else (rows.shape[0], 1)
        self.parts = [(whole.take(slice(i * size, (i + 1) * size)), y[i * size : (i + 1) * size]) for i in range(count)]
        self.size = (2 + self.settings.sparsity) * size + 4 * plan.d

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def one(self, rng: Any, trace: bool) -> Trace:
        """See ``Run``; the releases are the peeled vectors, before projection."""
        settings, steps, d = self.settings, self.settings.steps, self.plan.d
        support, values = np.zeros(0, np.intp), np.zeros(0)
        vectors, iterates = np.zeros((2, steps if trace else 0, d))
        shares = []
        with secure_stream(rng) as stream:
            for t in progress.steps(steps):
                norm = float(np.abs(values).sum())
                shares.append(float(settings.noise_shares(self.plan.n, values[None])[0]))
                support, peeled = self.peel(t, support, values, norm, stream)
                values = _projected(peeled, settings.radius)
                if trace:
                    vectors[t, support], iterates[t, support] = peeled, values
        w = np.zeros(d)
        w[support] = values
        choice, blur = self.plan.releases
        scales = {"selection_scale": choice.scale, "value_scale": blur.scale}
        history = {name: [scale * share for share in shares] for name, scale in scales.items()}
        return Trace(w, history, *((vectors, iterates) if trace else (None, None)))

    def peel(
        self, t: int, support: NDArray[np.intp], values: Array, norm: float, stream: SecureStream
    ) -> tuple[NDArray[np.intp], Array]:
        """(support, values) of one step from the iterate that is ``values`` on ``support``.

        Privacy
        -------
        The plan's two releases, once each round.
        """
        settings, grids = self.settings, grids_at(self.plan, norm)
        scores = self.centre(support, values, grids) - self.sums(t, support, values, grids)
        change = entry_change(self.plan, grids)
        selection = IntegerSelection(np.abs(scores), self.choice.unit(2 * change), two_sided=False)
        chosen = selection.top(stream, settings.sparsity)
        found = np.sort(np.array(chosen, dtype=np.intp))
        noisy = scores[found] + rounded_normals(stream, self.values.multiplier(change), len(found))
        return found, self.real(noisy, grids)

    def centre(self, support: NDArray[np.intp], values: Array, grids: Grids) -> NDArray[np.int64]:
        """A: the public iterate in grid units, over step_size/m."""
        out = np.zeros(self.plan.d, np.int64)
        units = values / grids.row_unit / grids.residual_unit
        out[support] = np.rint(units * (self.block / self.settings.step_size)).astype(np.int64)
        return out

    def sums(self, t: int, support: NDArray[np.intp], values: Array, grids: Grids) -> NDArray[np.int64]:
        """S: the exact sum of the records' gradients in grid units; NOT private."""
        rows, y = self.parts[t % len(self.parts)]
        residuals = residuals_on_grid(_margins(rows, support, values * grids.row_unit) - y, grids)
        return _summed(rows, residuals if self.times is None else residuals * self.times)

    def real(self, whole: NDArray[np.int64], grids: Grids) -> Array:
        """Released integers as entries of the step's vector: post-processing."""
        return np.asarray(whole * grids.row_unit * grids.residual_unit * (self.settings.step_size / self.block))

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the truncated records; NOT private."""
        rows, y = written_out(*self.all)
        return {"objective": self.settings.loss_row.objective(np.asarray(rows.matrix @ weights), y)}


def _margins(rows: Rows, support: NDArray[np.intp], values: Array) -> Array:
    """X w for weights that are ``values`` on ``support``: each a sum over the record's own entries, in one order."""
    if not rows.is_sparse:
        return np.asarray(rows.transpose()[support].T @ values)
    from dptoolkit.kernels.threshold import support_margins

    columns = rows.cached("columns", lambda: kernel_arrays(rows.transpose()))
    out = np.empty(rows.shape[0])
    support_margins(*columns, support, values, out)
    return out


def _summed(rows: Rows, r: Array) -> NDArray[np.int64]:
    """``exact_sum``, which is the same in any order, by the kernel that is quickest on sparse rows."""
    if not rows.is_sparse:
        return exact_sum(rows, r)
    from dptoolkit.kernels.sums import row_sums

    arrays = rows.cached("rows", lambda: kernel_arrays(rows.matrix))
    out = np.empty(rows.shape[1])
    row_sums(*arrays, r, out, 0, rows.shape[0])
    return out.astype(np.int64)


def _projected(w: Array, radius: float) -> Array:
    """The vector, scaled down to the radius if it is longer."""
    norm = math.sqrt(float(np.square(w).sum()))
    return w if norm <= radius else np.asarray(w * (radius / norm))
