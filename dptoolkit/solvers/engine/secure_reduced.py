"""Variance-reduced hard thresholding with secure noise: snapshots and lazy inner steps in integers.

Privacy
-------
A snapshot releases S + round(M Z), S the exact integer sum of the gradients of a fresh batch. An inner step releases
T + round(M_t Z), T the exact integer sum of the differences gradient(w) - gradient(s) of a fresh batch: the difference
of a record's two residuals is rounded and clipped as one number, on a grid g_t of its own, a public function of w and
s. The grid is the next power of two above the largest difference at w and s, L_t, over 2^b.

**What rounding costs.** Where the largest difference bounds the sensitivity (Poisson sampling) nothing: it is at most
L_t R, exactly. In batches of fixed size the sensitivity at w and s is the diameter of all differences, share 2 L R,
which is at least L_t R, as L_t = L min(1, 2 share). Rounding adds 2 g_t R <= 4 L_t R 2^-b, at most 2^(2-b) of the
sensitivity at every w and s. That, and a part for the errors of the differences themselves besides those in the share,
is charged by one factor. At w = s all differences are 0, and so is M_t.

Memory: one vector of d integers per epoch for the snapshot, and three of d numbers for its means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import progress
from dptoolkit._validate import invalid
from dptoolkit.accounting.events import WITHOUT_REPLACEMENT
from dptoolkit.data.grids import Grids, released_mean
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.randomness.exact import Digits, rational
from dptoolkit.randomness.largest import exact_gap
from dptoolkit.randomness.sampling import LARGEST_MULTIPLIER
from dptoolkit.solvers.engine.batches import BatchData, Iterate
from dptoolkit.solvers.engine.bounds import NoiseLaw
from dptoolkit.solvers.engine.secure import SecureNoise, charged_shares, gradient_grids, residual_limit
from dptoolkit.solvers.engine.secure_steps import BATCH_REMARKS, Records, Scheme, Stepper, how_of, rate_of, rows_for
from dptoolkit.solvers.engine.snapshots import buckets
from dptoolkit.solvers.frame.plan import Plan, Release
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another
from dptoolkit.solvers.frame.secure import SecurePlan, SecureRelease, secure_stream
from dptoolkit.types import Array

# Inner steps that one uniform number may stand for; more are so rare that a second number decides.
_MOST_STEPS = 1 << 40


@dataclass(frozen=True)
class SecureDifference(SecureRelease):
    """The public facts of secure noise on a mean of gradient differences; ``scale`` is the noise at the largest."""

    grids: Grids
    growth: float
    scale: float
    size: float
    # The share of the noise at which differences may be as large as anywhere: 1/2 where a diameter bounds them.
    reach: float

    def __post_init__(self) -> None:
        # Twice: on a grid for smaller differences the noise may have nearly twice as many units.
        if 2 * self.multiplier > LARGEST_MULTIPLIER:
            raise invalid("noise", self.scale, "at most 2^51 units of the grid of sums", "Use a larger epsilon.")

    @property
    def multiplier(self) -> int:
        """The noise of a sum of the largest differences, in grid units."""
        return self.grids.multiplier(Fraction(self.scale) * Fraction(self.size))

    def with_noise(self, scale: float) -> SecureDifference:
        """See ``SecureRelease``."""
        return replace(self, scale=scale)

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        return {
            "row_grid": self.grids.row_unit, "residual_bits": self.grids.residual_bits,
            "noise_units": self.multiplier, "sensitivity_growth": self.growth,
        }  # fmt: skip

    def __str__(self) -> str:
        return (
            f"differences on a grid with {self.grids.residual_bits} bits for the largest at the current weights; noise "
            f"of a sum: up to {self.multiplier:,} grid units"
        )


def difference_limit(settings: Any) -> float:
    """The largest |difference of two residuals| of a record; with grad_norm times the row's norm."""
    bounds, limit = settings.bounds, residual_limit(settings)
    if bounds.loss.signed:
        return limit
    return 2 * limit if bounds.label_bound is None else 2 * bounds.largest_margin


def charged_reduced(
    plan: Plan, settings: Any, inner: Release, outer: Release, law: NoiseLaw, reach: float, has_diameter: bool,
    grids: Grids,
) -> tuple[Release, Release, SecureDifference, SecureNoise]:  # fmt: skip
    """The releases of differences and snapshots with rounding charged, and the facts of their noise.

    ``law`` is that of snapshots; ``reach`` is the share of the inner noise at which differences are as large as
    anywhere, less than 1 where the diameter of all differences bounds the sensitivity; ``has_diameter`` says so of
    snapshots.

    Privacy
    -------
    See the module. Sensitivities and scales grow by the same factors; with published noise the scales stay.
    """
    width = plan.d + int(settings.fit_intercept)
    shape, published = settings.shape(plan.n), plan.published is not None
    errors = max(2.0**-30, width * 2.0**-50)
    growth = grids.charged_sensitivity(1.0) * (1.0 + 2.0 ** (2 - grids.residual_bits) + errors if reach < 1 else 1.0)
    charged = replace(
        inner, sensitivity=inner.sensitivity * growth, scale=inner.scale if published else inner.scale * growth
    )
    limit = residual_limit(settings)
    # The same rows; the grid of residuals is that of the largest gradient.
    own = replace(grids, limit=limit)
    more = own.charged_sensitivity(1.0, width if has_diameter else None)
    scale = outer.scale if published else outer.scale * more
    shares = charged_shares(law.shares, own, width) if has_diameter else law.shares
    noise = SecureNoise(own, more, has_diameter, NoiseLaw(scale, shares, law.places), shape.snapshot)
    widest = replace(grids, limit=difference_limit(settings))
    difference = SecureDifference(widest, growth, charged.scale, shape.batch, reach)
    return charged, replace(outer, sensitivity=outer.sensitivity * more, scale=scale), difference, noise


def secured_reduced(plan: Plan, settings: Any, law: NoiseLaw) -> Plan:
    """The plan of a variance-reduced solver with secure noise; ``law`` is the noise of its snapshots.

    Privacy
    -------
    See ``charged_reduced``. From public numbers alone.
    """
    inner, outer = plan.releases
    shape, fixed = settings.shape(plan.n), settings.sampling == WITHOUT_REPLACEMENT
    # Noise that does not follow the weights is for the largest differences: a ball bounds them.
    reach = 0.5 if fixed and settings.adaptive else 1.0
    # One grid of rows for all queries, from the largest noise before rounding is charged.
    noise = max(inner.scale * shape.batch, outer.scale * shape.snapshot)
    grids = gradient_grids(plan, settings, max(difference_limit(settings), residual_limit(settings)), noise)
    has_diameter = fixed and not law.is_constant
    steps, snapshots, *parts = charged_reduced(plan, settings, inner, outer, law, reach, has_diameter, grids)
    return replace(plan, releases=(steps, snapshots), secure=SecurePlan(tuple(parts), BATCH_REMARKS))


def failures(stream: SecureStream, failure: Fraction) -> int:
    """The number of failures before the first success, geometric, with exactly this chance of a failure."""
    total = 0
    while True:
        gap = exact_gap(Digits(stream, int(stream.words(1)[0]), 64), rational(1 - failure), _MOST_STEPS)
        total += gap
        if gap < _MOST_STEPS:
            return total


class SecureEpochs:
    """The epochs of one fit with secure noise.

    ``rates`` are the chances of a record in a Poisson snapshot and batch, None for fixed sizes.

    Privacy
    -------
    See the module. Batches, noises and numbers of steps come from one stream.
    """

    def __init__(
        self, stream: SecureStream, data: BatchData, rows: Any, iteration: Any, parts: tuple[Any, Any],
        rates: tuple[float | None, float | None],
    ) -> None:  # fmt: skip
        from dptoolkit.kernels import secure_steps as kernel

        shape, (self._difference, self._noise) = iteration.shape, parts
        n, self._width = data.n, data.rows.shape[1]
        difference, self._stream, self._rows = self._difference, stream, rows
        scheme = Scheme.of(n, shape.batch, rates[1])
        how = how_of(scheme, iteration, difference.grids.row_unit, self._width, stream, shape.batch, reduced=True)
        # Noise of a sum in units of rows, rounded up.
        units = float(Fraction(difference.scale) * shape.batch / Fraction(difference.grids.row_unit)) * (1 + 2.0**-50)
        law = kernel.Law(
            np.ones(1, np.int64), np.ones(1), 1.0, 0.0, units, difference.grids.limit, difference.reach,
            difference.grids.residual_bits, iteration.slope, iteration.grain,
        )  # fmt: skip
        self._records = Records(stream, Scheme.of(n, shape.snapshot, rates[0]))
        self._stepper = Stepper(stream, how, law, rows, scheme, iteration.sparsity)
        self._free, self._salt = how.free, how.salt

    def snapshot(self, support: NDArray[np.int64], values: Array) -> Array:
        """The noisy mean gradient of a fresh batch at the snapshot."""
        from dptoolkit.kernels.secure_steps import add_records_on_grid

        noise, rows = self._noise, self._rows
        units, cap = noise.at(noise.law(values))
        w, total = np.zeros(self._width), np.zeros(self._width)
        w[support] = values
        chosen = self._records.draw()
        salt = 1 + self._stream.below(1 << 62) if self._salt else 0
        add_records_on_grid(*rows, chosen, noise.grids.row_unit, noise.grids.residual_unit, cap, salt, w, total)
        sums = total.astype(np.int64) + rounded_normals(self._stream, units, self._width)
        return released_mean(sums, noise.grids, noise.size)

    def epoch(self, iterate: Iterate, count: int, iterates: Array | None = None) -> Array:
        """A snapshot and ``count`` inner steps from it; returns the noisy snapshot gradient."""
        from dptoolkit.kernels import secure_steps as kernel

        support, values = iterate.snapshot()
        gradient = self.snapshot(support, values)
        if count:
            means = kernel.Means(gradient, *buckets(gradient[: self._free]))
            self._stepper.advance(iterate, count, means, (support, values), iterates)
        return gradient


class SecureReducedRun(Run):
    """Variance-reduced hard thresholding with secure noise; batches, numbers of steps and noise have one stream a fit.

    ``iteration`` is that of the solver; ``clip`` bounds a record's gradient, where it is clipped as a whole.

    Privacy
    -------
    The event of a fit is that of the secured plan; see the module. A numpy Generator is not used.
    """

    def __init__(self, data: BatchData, iteration: Any, plan: Plan, clip: float) -> None:
        assert plan.secure is not None
        parts: Any = plan.secure.parts
        self._parts = parts
        self.data, self.iteration, self.shape = data, iteration, iteration.shape
        self.width = data.rows.shape[1]
        self.kept_count = iteration.sparsity + int(iteration.fit_intercept)
        self._rates = rate_of(plan.releases[1]), rate_of(plan.releases[0])
        self._law: Any = plan.releases[0].round_count_law
        self._rows = rows_for(data, parts[1].grids, iteration.fit_intercept, clip)

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; every lazy step depends on what its own fit drew before."""
        return False

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``."""
        return one_after_another(self, streams, trace)

    def one(self, rng: Any, trace: bool) -> Trace:
        """See ``Run``; a trace has all inner iterates, and in its history "snapshots" every noisy snapshot gradient.

        A SecureStream, for tests and audits, is used as it is.
        """
        if not trace:
            return Trace(*self.fit(rng))
        epochs: list[tuple[Array, Array]] = []
        w, history = self._fitted(rng, 0, lambda gradient, iterates: epochs.append((gradient, iterates)))
        gradients, inner = zip(*epochs, strict=True)
        return Trace(w, history | {"snapshots": np.array(gradients)}, None, np.concatenate(inner))

    def fit(self, rng: Any, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """See ``Run``; a step of the trace is an epoch."""
        return self._fitted(rng, every, None)

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """The objective of the bounded records; NOT private."""
        return {"objective": self.data.objective(weights)}

    def _counts(self, stream: SecureStream) -> NDArray[np.int64]:
        """The number of inner steps of every epoch, with the chance that the plan's event states."""
        if self._law is None:
            return np.full(self.shape.epochs, self.shape.steps, np.int64)
        return np.array([failures(stream, Fraction(self._law.gamma)) for _ in range(self.shape.epochs)])

    def _fitted(
        self, rng: Any, every: int, watch: Callable[[Array, Array], Any] | None
    ) -> tuple[Array, dict[str, Any]]:
        """(weights, history); ``watch`` is called in every epoch with the noisy snapshot gradient and all iterates."""
        iterate, iterates, total = Iterate(self.kept_count), list[Any](), 0
        with secure_stream(rng) as stream:
            counts = self._counts(stream)
            epochs = SecureEpochs(stream, self.data, self._rows, self.iteration, self._parts, self._rates)
            for epoch, count in zip(progress.steps(len(counts), "epoch"), counts.tolist(), strict=True):
                inner = None if watch is None else np.empty((count, self.width))
                gradient = epochs.epoch(iterate, count, inner)
                if watch is not None and inner is not None:
                    watch(gradient, inner)
                total += count
                if every and ((epoch + 1) % every == 0 or epoch + 1 == len(counts)):
                    iterates.append((total, *iterate.snapshot()))
        history: dict[str, Any] = {"inner_steps": counts, "thresholdings": total}
        return iterate.dense(self.width), history | {"iterates": iterates} if every else history
