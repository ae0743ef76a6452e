"""Hard thresholding whose releases an attacker cannot undo: integer sums on public grids, rounded noise, ChaCha20.

``secured`` turns the plan of a fit into one that charges for rounding and says so; ``SecureIhtRun`` is its run.

Privacy
-------
A step releases S + round(M Z): S the exact integer sum of the records' gradients in grid units (data/grids.py), M a
public integer, at least the planned noise of the sum over the grid. Its event is that of the plan, whose sensitivity
includes the charge for rounding. Weights, thresholds and models are computed from it afterwards. Each record's integer
vector depends on that record, its place and public numbers alone: rows are rounded one by one, and its margin is a sum
over the record's own entries, in an order that the public support and layout decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid
from dptoolkit.data.grids import (
    Grids,
    capped_residuals,
    directions_on_grid,
    released_mean,
    rows_on_grid,
)
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.randomness.sampling import CONSTANT_TIME, LARGEST_MULTIPLIER
from dptoolkit.solvers.engine.bounds import NoiseLaw
from dptoolkit.solvers.engine.descent import ClippedRecords, IhtRun, ResolvedThresholding, Steps
from dptoolkit.solvers.engine.gradients import MeanGradient
from dptoolkit.solvers.engine.initial import NOTHING, Start
from dptoolkit.solvers.frame.plan import GAUSSIAN, Plan, Release
from dptoolkit.solvers.frame.run import Trace, Trials, one_after_another
from dptoolkit.solvers.frame.secure import SecurePlan, SecureRelease, secure_stream
from dptoolkit.types import Array


@dataclass(frozen=True)
class SecureNoise(SecureRelease):
    """The public facts of secure noise on a mean gradient.

    ``growth`` is the factor by which rounding enlarges the sensitivity; ``has_diameter`` whether the noise shrinks with
    the diameter of the gradients, and not with the largest of them; ``law`` is the noise at public weights, and
    ``size`` the number of records that a mean divides by: all, or the expected size of a batch.
    """

    grids: Grids
    growth: float
    has_diameter: bool
    law: NoiseLaw
    size: float
    # What ``at`` found so far: a fit meets few scales, and exact fractions take their time.
    _known: dict[float, tuple[int, float]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Refused here, by every plan, and not by the sampler of a fit that a ledger has paid for.
        if self.multiplier(self.law.scale) > LARGEST_MULTIPLIER:
            raise invalid("noise", self.law.scale, "at most 2^52 units of the grid of sums", "Use a larger epsilon.")

    def multiplier(self, scale: float) -> int:
        """M of a mean's noise of this scale: that of the sum in grid units, rounded up."""
        return self.grids.multiplier(Fraction(scale) * Fraction(self.size))

    def limit(self, scale: float) -> float:
        """The largest |residual| at weights whose noise has this scale, where that is what the noise shrinks with."""
        largest = self.grids.limit
        return largest if self.has_diameter or self.law.scale == 0 else min(largest * (scale / self.law.scale), largest)

    def at(self, scale: float) -> tuple[int, float]:
        """(noise of a sum, largest |residual|), in grid units, where the noise of a mean has this scale."""
        found = self._known.get(scale)
        if found is None:
            found = self.multiplier(scale), float(self.grids.residual_cap(self.limit(scale)))
            self._known[scale] = found
        return found

    def with_noise(self, scale: float) -> SecureNoise:
        """See ``SecureRelease``."""
        return replace(self, law=replace(self.law, scale=scale))

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        grids = self.grids
        return {
            "row_grid": grids.row_unit, "residual_grid": grids.residual_unit,
            "noise_units": self.multiplier(self.law.scale), "sensitivity_growth": self.growth,
        }  # fmt: skip

    def integers(self, means: Array) -> Array:
        """See ``SecureRelease``; a mean of integers.

        What ``released_mean`` does not make of the nearest integer, to the last bit, is not on the grid.
        """
        whole = np.rint(means * self.size / self.grids.residual_unit / self.grids.row_unit)
        return np.where(released_mean(whole, self.grids, self.size) == means, whole, np.nan)

    def __str__(self) -> str:
        grids, units = self.grids, self.multiplier(self.law.scale)
        return (
            f"grid of rows {grids.row_unit:.3g} ({grids.row_bits} bits), of residuals {grids.residual_unit:.3g} "
            f"({grids.residual_bits} bits); noise of a sum: {units:,} grid units"
        )


def secured(plan: Plan, settings: ResolvedThresholding, law: NoiseLaw) -> Plan:
    """The plan with secure noise and rounding charged, for one that releases a noisy mean gradient of all records.

    ``law`` is the plan's noise at public weights.

    Privacy
    -------
    Sensitivity and scale grow by the same factor, so that the event is that of the plan; with published noise the scale
    stays, and the event changes. From public numbers alone.
    """
    (release,) = plan.releases
    assert release.sampling is None
    has_diameter = not law.is_constant and plan.adjacency.contributions == 2
    charged, noise = charged_release(plan, settings, release, law, plan.n, has_diameter)
    return replace(plan, releases=(charged,), secure=SecurePlan((noise,)))


def charged_release(
    plan: Plan, settings: ResolvedThresholding, release: Release, law: NoiseLaw, size: float, has_diameter: bool
) -> tuple[Release, SecureNoise]:
    """A release of noisy mean gradients with rounding charged, and the facts of its secure noise.

    ``law`` is its noise at public weights, ``size`` what a sum over records is divided by. ``has_diameter`` says that
    the diameter of the gradients, and not the largest of them, bounds the sensitivity at some weights.

    Privacy
    -------
    Sensitivity and scale grow by the same factor; with published noise the scale stays. From public numbers alone. A
    sum may be over all records, whatever ``size`` is: a Poisson batch may be all of them.
    """
    assert release.law == GAUSSIAN
    # The grids come from the noise before rounding is charged.
    grids = gradient_grids(plan, settings, residual_limit(settings), release.scale * size)
    width = plan.d + int(settings.fit_intercept) if has_diameter else None
    growth = grids.charged_sensitivity(1.0, width)
    scale = release.scale if plan.published is not None else release.scale * growth
    charged = replace(release, sensitivity=release.sensitivity * growth, scale=scale)
    shares = law.shares if width is None else charged_shares(law.shares, grids, width)
    return charged, SecureNoise(grids, growth, has_diameter, NoiseLaw(scale, shares, law.places), size)


def residual_limit(settings: ResolvedThresholding) -> float:
    """The largest |residual|; with grad_norm, where rows are directions, the largest residual times the row's norm."""
    bounds = settings.bounds
    if bounds.grad_norm is not None:
        return bounds.gradient
    label = np.inf if bounds.label_bound is None else bounds.label_bound
    return bounds.loss.residual_norm(bounds.largest_margin, float(label))


def gradient_grids(plan: Plan, settings: ResolvedThresholding, limit: float, noise: float) -> Grids:
    """Grids for sums of gradients with residuals of at most ``limit`` and noise of this scale on a sum."""
    bounds = settings.bounds
    grids = Grids.choose(plan.n, bounds.joint_norm if bounds.grad_norm is None else 1.0, limit, noise)
    if settings.fit_intercept and bounds.grad_norm is None and grids.row_unit > 1:
        repair = "The grid of longer rows is coarser than the intercept's ones, which become zeros: rescale the rows."
        raise invalid("row_norm", bounds.row_norm, f"less than {2**grids.row_bits:,} with fit_intercept", repair)
    return grids


def charged_shares(shares: Array, grids: Grids, d: int) -> Array:
    """The diameter at each radius as a share of the largest, both with the charge for rounding; the last stays 1."""
    largest = 2 * grids.limit
    charged = grids.charged_diameter(shares * largest, d) / grids.charged_diameter(largest, d)
    # A unit in the last place more: each was rounded a few times.
    return np.append(np.minimum(charged[:-1] * (1 + 2.0**-50), 1.0), 1.0)


class SecureMeanGradient:
    """The mean gradient of bounded records in integers, with rounded noise; see ``MeanGradient``.

    Privacy
    -------
    One call of ``noisy`` is Gaussian(M / sensitivity) in grid units, at most the plan's event.
    """

    def __init__(self, data: ClippedRecords, noise: SecureNoise, fit_intercept: bool) -> None:
        self.noise, self.lengths = noise, None
        if data.caps is None:
            rows = rows_on_grid(data.rows, noise.grids, fit_intercept)
        else:
            rows, self.lengths = directions_on_grid(data.rows, noise.grids)
        self._data = data
        self._doubles = MeanGradient(rows, data.y, data.loss, data.margin_bound)

    def margins(self, support: Any, values: Array) -> Array:
        """X w of the rows on the grid."""
        margins = self._doubles.margins(support, values * self.noise.grids.row_unit)
        return margins if self.lengths is None else margins * self.lengths

    def objective(self, support: Any, values: Array) -> float:
        """The mean loss of the bounded records; NOT private."""
        return self._data.loss.objective(self.margins(support, values), self._data.y)

    def noisy(self, support: Any, values: Array, scale: float, stream: SecureStream) -> Array:
        """The mean gradient plus rounded noise of at least ``scale`` on every coordinate.

        Privacy
        -------
        See the class. What is returned is computed from the noisy integers alone.
        """
        grids, n = self.noise.grids, len(self._data.y)
        # The kernel divides by n, which is undone: the residual is the same function of its record as before.
        residuals = self._doubles.residuals(self.margins(support, values)) * n
        # Equal rounding errors of very many records would add up: each is rounded by a number for its place.
        theta = _uniforms(stream, n) if grids.needs_dither else None
        units, cap = self.noise.at(scale)
        whole = capped_residuals(residuals, grids, cap, self.lengths, theta)
        # Exact in any order, so that the pass of the fast path may take it.
        sums = self._doubles.sums(whole).astype(np.int64)
        return released_mean(sums + rounded_normals(stream, units, len(sums)), grids, n)


def _uniforms(stream: SecureStream, count: int) -> Array:
    """Numbers in [0, 1): they need no exact law, as any number that does not depend on the data will do."""
    return np.asarray((stream.words(count) >> np.uint64(11)) * 2.0**-53)


def _small_records(data: ClippedRecords, noise: SecureNoise, fit_intercept: bool) -> Any:
    """The records as ``grid_steps`` takes them. Rows of zeros stay: nothing depends on how many there are."""
    from dptoolkit.kernels.threshold import GridRecords

    grids, lengths = noise.grids, np.zeros(0)
    if data.caps is None:
        rows = rows_on_grid(data.rows, grids, fit_intercept)
    else:
        rows, lengths = directions_on_grid(data.rows, grids)
    X = rows.matrix.toarray() if rows.is_sparse else rows.matrix
    counts = np.ones(len(data.y)) if data.counts is None else data.counts.astype(np.float64)
    return GridRecords(data.loss.id, np.ascontiguousarray(X, np.float64), data.y, counts, float(data.margin_bound),
                       lengths, grids.row_unit, grids.residual_unit, float(grids.n))  # fmt: skip


class SecureIhtRun(IhtRun):
    """``IhtRun`` with secure noise: every fit draws from a stream of its own, unless it is given one.

    Privacy
    -------
    The event of a fit is that of the secured plan. A numpy Generator is not used.
    """

    def __init__(self, data: ClippedRecords, iteration: Steps, noise: SecureNoise, start: Start = NOTHING) -> None:
        self._noise, self._small = noise, None
        super().__init__(data, iteration, noise.law, start)

    def advance(self, rng: Any, start: Start, steps: int) -> Start:
        """See ``IhtRun``; every call draws from a stream of its own, unless it is given one."""
        with secure_stream(rng) as stream:
            return super().advance(stream, start, steps)  # type: ignore[arg-type]

    def one(self, rng: Any, trace: bool) -> Trace:
        """See ``Run``; a SecureStream, for tests and audits, is used as it is."""
        with secure_stream(rng) as stream:
            if self._small is not None:
                return self._in_few_calls(stream, trace)
            return self._step_by_step(stream, trace)  # type: ignore[arg-type]

    def _compiled_form(self) -> None:
        """None, so that what draws doubles in one call is not used; the records on the grid are kept beside it."""
        self._small = _small_records(self._data, self._noise, self.iteration.fit_intercept)

    def _in_few_calls(self, stream: SecureStream, trace: bool) -> Trace:
        """All steps that share one noise in one call, with the noise of several of them drawn ahead."""
        from dptoolkit.kernels.threshold import grid_steps

        steps, width, how = self.iteration.steps, self.width, self.schedule()
        w, total, step, support = np.zeros(width), np.zeros(width), np.empty(width), np.empty(width, np.int64)
        places, scales = np.zeros(steps, np.int64), self._noise.law.scale * self._noise.law.shares
        releases, iterates = np.empty((2, steps if trace else 0, width))
        state = w, support, total, step, places, releases, iterates
        # So few numbers that all draws take the same time; at other noise what was drawn ahead would be lost.
        ahead = max(1, CONSTANT_TIME // width) if self.noise_at.is_constant else 1
        none: NDArray[np.int64] = np.empty((0, width), np.int64)
        t, filled = grid_steps(self._small, how, 0, 0, none, -1, 0.0, *state)
        while t < steps:
            units, cap = self._noise.at(float(scales[places[t]]))
            rows = min(ahead, steps - t)
            noise = rounded_normals(stream, units, rows * width).reshape(rows, width)
            t, filled = grid_steps(self._small, how, t, filled, noise, places[t], cap, *state)
        return Trace(w, {"noise_scale": scales[places].tolist()}, *((releases, iterates) if trace else ()))

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    @property
    def shared(self) -> None:
        """Nothing: fits that share passes add up doubles."""
        return None

    def _mean_gradient(self) -> Any:
        return SecureMeanGradient(self._data.expanded(), self._noise, self.iteration.fit_intercept)
