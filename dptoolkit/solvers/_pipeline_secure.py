"""The stages of dp_pipeline with secure noise: every release is a vector of whole numbers plus rounded noise.

Privacy
-------
Each release is S + round(M Z) in units of a public grid. What S is made of, and what rounding costs:

- column means and the mean row: rows of norm at most 1 on a grid, their norm checked in whole numbers, added up
  exactly. Rounded absolute values are not negative, so two of them are still at most sqrt(2) apart. No charge.
- histograms: counts, which are whole numbers already. No charge.
- the eigenvalue: pairs s on a grid with |s| <= 1 in whole numbers, whose products are added up exactly. The larger
  eigenvalue of the two by two matrix is computed in whole numbers, rounded down to a unit of 2^-30 of what one record
  can add; rounding adds at most one unit to the distance of two of them.
- gradients: as in engine/secure.py and engine/secure_softmax.py; the bound of a gradient is ``grad_norm``. No charge.
- second moments: as in engine/secure_preconditioned.py. No charge.
- slopes: each record's value is rounded and clipped to the whole numbers within its public range. No charge.

Each record's numbers depend on that record, its place and earlier releases alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses
from dptoolkit._validate import invalid
from dptoolkit.data import Rows, product
from dptoolkit.data.grids import Grids, exact_sum, rows_on_grid
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.randomness.sampling import LARGEST_MULTIPLIER
from dptoolkit.solvers.engine.bounds import constant
from dptoolkit.solvers.engine.descent import ClippedRecords, Steps
from dptoolkit.solvers.engine.secure import SecureIhtRun, SecureNoise
from dptoolkit.solvers.engine.secure_preconditioned import (
    SecurePreconditionedRun,
    moment_bits,
    moment_sums,
    noisy_moments,
)
from dptoolkit.solvers.engine.secure_softmax import SecureSoftmaxRun
from dptoolkit.solvers.frame.plan import Plan, Release
from dptoolkit.solvers.frame.secure import SecurePlan, SecureRelease, not_secure
from dptoolkit.types import Array

# A factor on noise and sensitivities for the last bits of doubles.
_UP = 1 + 2.0**-40
# The unit of counts, of the eigenvalue of a sum, and of slopes, as powers of 1/2; fewer where n is large.
_COUNT_BITS, _EIGENVALUE_BITS, _SLOPE_BITS, _PAIR_BITS, _SUM_BITS = 20, 30, 20, 20, 52


@dataclass(frozen=True)
class SecureSum(SecureRelease):
    """The public facts of secure noise on a sum of whole numbers, over ``size``; ``unit`` is what one of them counts.

    ``scale`` is the noise of what is released, that is, of the sum over ``size``.
    """

    what: str
    unit: float
    size: float
    scale: float
    growth: float = _UP

    def __post_init__(self) -> None:
        if self.multiplier(self.scale) > LARGEST_MULTIPLIER:
            raise invalid("noise", self.scale, "at most 2^52 units of the grid of sums", "Use a larger epsilon.")

    def multiplier(self, scale: float) -> int:
        """M of noise of this scale, rounded up."""
        return math.ceil(Fraction(scale) * Fraction(self.size) / Fraction(self.unit) * Fraction(_UP))

    def released(self, sums: NDArray[np.int64], scale: float, stream: SecureStream) -> Array:
        """The sums with rounded noise of at least ``scale``, over the size, in real units.

        Privacy
        -------
        Gaussian(M / sensitivity) in units of the grid. What is returned is computed from the noisy integers alone.
        """
        return np.asarray((sums + rounded_normals(stream, self.multiplier(scale), len(sums))) * self.unit / self.size)

    def with_noise(self, scale: float) -> SecureSum:
        """See ``SecureRelease``."""
        return replace(self, scale=scale)

    def to_dict(self) -> dict[str, Any]:
        """See ``SecureRelease``."""
        units = self.multiplier(self.scale)
        return {"grid": self.unit, "noise_units": units, "sensitivity_growth": self.growth}

    def integers(self, values: Array) -> Array:
        """See ``SecureRelease``."""
        whole = np.rint(values * self.size / self.unit)
        return np.where(whole * self.unit / self.size == values, whole, np.nan)

    def __str__(self) -> str:
        return f"{self.what}: grid {self.unit:.3g}; noise of a sum: {self.multiplier(self.scale):,} grid units"


# --- the plan -------------------------------------------------------------------------------------------------


class StageNames(NamedTuple):
    """The names of the releases in the plan, by what is added up."""

    rows: tuple[str, ...]
    counts: str
    eigenvalue: str
    slope: str
    moments: str


def secured(plan: Plan, steps: int, names: StageNames) -> Plan:
    """The plan with secure noise; ``steps`` is the most that the descent may take.

    Privacy
    -------
    Sensitivity and scale of each release grow by the same factor, so that the event is that of the plan.
    """
    parts: list[SecureRelease] = [_gradients(plan, steps)]
    parts += [_part(plan, release, names) for release in plan.releases[1:]]
    charged = [
        replace(release, sensitivity=release.sensitivity * part.growth, scale=release.scale * part.growth)
        for release, part in zip(plan.releases, parts, strict=True)
    ]
    noises = [part.with_noise(release.scale) for part, release in zip(parts, charged, strict=True)]
    return replace(plan, releases=tuple(charged), secure=SecurePlan(tuple(noises)))


def _gradients(plan: Plan, steps: int) -> SecureNoise:
    """The facts of the descent, before rounding is charged."""
    scale = plan.releases[0].scale
    grids = Grids.choose(plan.n, 1.0, plan.settings.grad_norm, scale * math.sqrt(steps) * plan.n)
    return SecureNoise(grids, grids.charged_sensitivity(1.0), False, constant(scale), plan.n)


def _part(plan: Plan, release: Release, names: StageNames) -> SecureSum:
    """The facts of another release, before rounding is charged."""
    n, scale, query = plan.n, release.scale, release.query
    if query in names.rows:
        return SecureSum(query, Grids.of_rows(n, 1.0, scale * n).row_unit, n, scale)
    if query == names.counts:
        return SecureSum(query, 2.0**-_COUNT_BITS, 1, scale)
    if query == names.eigenvalue:
        unit = 2.0**-_EIGENVALUE_BITS
        # One unit more than the sum's own change, which is at most 1.
        return SecureSum(query, unit, n, scale, (1 + unit) * _UP)
    if query == names.moments:
        return SecureSum(query, 4.0 ** -moment_bits(n), n, scale)
    if query == names.slope:
        largest = math.log2(Fraction(release.sensitivity) * n)
        bits = min(_SLOPE_BITS, _SUM_BITS - n.bit_length())
        return SecureSum(query, math.ldexp(1.0, math.ceil(largest) - bits), n, scale)
    raise not_secure(f"for the {query} of {plan.solver}")


# --- the stages -----------------------------------------------------------------------------------------------


class SecureStages:
    """The noisy numbers of every stage, from whole numbers, for a plan that ``secured`` made.

    Privacy
    -------
    Each method is one release of the plan, as the module says.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.secure is not None
        self.plan, self.n = plan, plan.n
        # All parts but the first, which is that of gradients, are a SecureSum.
        self._noise: dict[str, tuple[Release, Any]]
        self._noise = {r.query: (r, part) for r, part in zip(plan.releases, plan.secure.parts, strict=True)}

    def row_sum(self, query: str, blocks: Any, stream: SecureStream) -> Array:
        """The noisy mean of rows of norm at most 1, which come in blocks (Rows, counts)."""
        release, part = self._noise[query]
        total: Any = 0
        for rows, counts in blocks:
            total = total + exact_sum(rows_on_grid(rows, self.grids(query)), counts)
        return part.released(total, release.scale, stream)

    def grids(self, query: str) -> Grids:
        """The grids of a release that is a mean of rows."""
        _, part = self._noise[query]
        return Grids(self.n, 1.0, 1.0, round(-math.log2(part.unit)), 0)

    def counts(self, query: str, exact: Array, stream: SecureStream) -> Array:
        """Noisy counts."""
        release, part = self._noise[query]
        return part.released(np.rint(exact / part.unit).astype(np.int64), release.scale, stream)

    def eigenvalue(self, query: str, rows: Rows, direction: Array, counts: Array, stream: SecureStream) -> float:
        """The noisy eigenvalue of ``plane_eigenvalue``."""
        release, part = self._noise[query]
        first, mixed, second, bits = pair_products(rows, direction, counts)
        whole = larger_eigenvalue(first, mixed, second, bits, _EIGENVALUE_BITS)
        return float(part.released(np.array([whole]), release.scale, stream)[0])

    def moments(self, query: str, rows: Rows, counts: Array, stream: SecureStream) -> Array:
        """The noisy second moments of rows of norm at most 1, packed."""
        release, part = self._noise[query]
        sums = moment_sums(rows, counts, self.n)
        return noisy_moments(sums, rows.shape[1], part.multiplier(release.scale), stream) * part.unit / self.n

    def preconditioned(self, records: Any, matrix: Array, steps: int, counts: Array) -> SecurePreconditionedRun:
        """The descent along second moments: all steps give away what one release of the plan does.

        The rows of the records are rounded to the grid where they are.
        """
        noise = self.plan.secure.first  # type: ignore[union-attr]
        own = noise.with_noise(noise.law.scale * math.sqrt(steps))
        is_unit = self.plan.settings.loss_row.task != losses.REGRESSION
        return SecurePreconditionedRun(records, matrix, steps, own, counts, is_unit, over=True)

    def slope(self, query: str, values: Array, ends: tuple[float, float], scale: float, counts: Array,
              stream: SecureStream) -> Array:  # fmt: skip
        """The noisy mean of one value per record, each between -ends[0] and ends[1], with noise of this scale."""
        _, part = self._noise[query]
        unit = Fraction(part.unit)
        low, high = (math.floor(Fraction(end) / unit) for end in ends)
        with np.errstate(invalid="ignore"):
            whole = np.nan_to_num(np.clip(np.rint(values / part.unit), -low, high), nan=0.0)
        total = int((whole * counts).astype(np.int64).sum())
        return np.asarray(part.released(np.array([total]), scale, stream)[0])

    def descent(self, rows: Rows, y: Array, iteration: Steps, counts: Any) -> SecureIhtRun | SecureSoftmaxRun:
        """The descent on prepared rows: ``iteration.steps`` steps give away what one release of the plan does."""
        settings, noise = self.plan.settings, self.plan.secure.first  # type: ignore[union-attr]
        own = noise.with_noise(noise.law.scale * math.sqrt(iteration.steps))
        if settings.loss_row.task == losses.MULTICLASS:
            return SecureSoftmaxRun(rows, y, None, iteration, own, counts)
        # Rows of a classifier have norm 1, and the residual is clipped; those of numbers may be shorter, and the
        # gradient is.
        caps = np.ones(rows.shape[0]) if settings.loss_row.task == losses.REGRESSION else None
        return SecureIhtRun(ClippedRecords(rows, y, settings.loss_row, math.inf, caps, counts), iteration, own)


def pair_products(rows: Rows, direction: Array, counts: Array) -> tuple[int, int, int, int]:
    """(sum of s_1^2, of s_1 s_2, of s_2^2, bits): s = (<|x|, direction>, intercept's entry) in units of 2^-bits.

    Privacy
    -------
    NOT private. Each pair is rounded on its own, and its squares add up to at most 4^bits, exactly.
    """
    from dptoolkit.kernels.grids import rows_on_grid as on_grid

    n = int(counts.sum())
    bits = min(_PAIR_BITS, (_SUM_BITS - n.bit_length()) // 2)
    along = product(abs(rows.matrix), np.append(direction, 0.0)[:, None])[:, 0]
    last = rows.matrix[:, [-1]].toarray().ravel() if rows.is_sparse else rows.matrix[:, -1]
    pairs, out = np.stack([along, last], axis=1), np.empty(2 * len(along))
    starts = np.arange(0, 2 * len(along) + 1, 2, dtype=np.uint64)
    on_grid(np.ascontiguousarray(pairs).reshape(-1), starts, 2.0**bits, 4**bits, 0, out)
    one, two = out[0::2], out[1::2]
    first, mixed, second = (
        int((counts * a * b).astype(np.int64).sum()) for a, b in ((one, one), (one, two), (two, two))
    )
    return first, mixed, second, bits


def larger_eigenvalue(first: int, mixed: int, second: int, bits: int, digits: int) -> int:
    """The larger eigenvalue of ((first, mixed), (mixed, second)) / 4^bits in units of 2^-digits, rounded down.

    (a + c + sqrt((a - c)^2 + 4 b^2)) / 2, in whole numbers: floors of floors are floors.
    """
    more = 1 << max(digits, 2 * bits)
    square = (first - second) ** 2 + 4 * mixed * mixed
    doubled = (first + second) * more + math.isqrt(square * more * more)
    return doubled * 2**digits // (2 * more * 4**bits)
