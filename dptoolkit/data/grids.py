"""Sums that are exact: rows and residuals become whole numbers on public grids, so that every partial sum is one.

**Why.** A sum of doubles depends on the order of its terms. Replacing one record of a million can move it by more than
the sensitivity says, because the rounding of all other terms changes with it; and an attacker can read off the last
bits. On grids g_x (entries of rows) and g_r (residuals), both powers of two, a product is a multiple of g = g_x g_r.

**Sums are exact.** If n * max|r| * max|x| <= 2^53, in units of the grids, every partial sum of products, in any order,
with or without fused operations, threads or BLAS, is an integer of at most 2^53 in size, and each operation is exact.
The bits of the grids are chosen so: n 2^(b_r + b_x) <= 2^52.

**Rows cost nothing.** A row on the grid is made from that row alone, so rounding gives another data set whose
neighbours are the same. Only its bound must hold, and that is checked in whole numbers: the squares of a row add up to
at most floor((R / g_x)^2). Rounding to the nearest may lengthen a row (10,000 entries of 0.6 g_x become 1.7 times as
long); such a row is rounded towards zero instead. Margins must be computed from the rounded rows as well.

**Residuals cost nothing where a ball bounds them.** After rounding and clipping at floor(limit / g_r), |r| g_r <=
limit, so |r x| <= limit R: the zero-out sensitivity limit R and the replace-one sensitivity 2 limit R hold exactly.

**Where a diameter bounds them they cost 2 g_r R.** Rounding and clipping move a residual by at most g_r (rounding by
half of it, the clip to a whole number of g_r by less than g_r, and never both beyond the limit). So
|r_q x - r_q' x'| <= |r x - r' x'| + 2 g_r R. ``charged_diameter`` and ``charged_sensitivity`` add it.

**Each record on its own.** Rounding turns the last bit of a residual into g_r. So the residual of a record must depend
on that record, its index, public numbers and data-independent randomness alone, to the last bit: no code path may be
chosen by the number of entries, the largest entry, or whether any row was clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, magnitude, nonnegative, whole
from dptoolkit.data.rows import Rows
from dptoolkit.types import Array

# The size of all partial sums, and of one product: 44 bits are more than any noise leaves visible.
_SUM_BITS, _PRODUCT_BITS = 52, 44
# Noise is at most 2^40 grid units where the grid can be coarser, so that nearly all roundings of noise are certain.
_NOISE_BITS, _MOST_NOISE = 40, 52
# The fewest bits of a residual that leave a model unharmed, and of a product with them.
_FEWEST, _LEAST_PRODUCT = 10, 23
# Entries of rows have at most 24 bits: they stay exact in single precision.
_ROW_BITS, _RESIDUAL_BITS = 24, 22
# Beyond so many records a rounding to the nearest that many of them share may add up to a visible bias.
DITHERED = 2**22
# Sensitivities are doubles that were computed with a few roundings.
_ROUNDINGS = 2.0**-40


@dataclass(frozen=True)
class Grids:
    """Public grids of rows and residuals for sums over at most ``n`` records.

    Attributes
    ----------
    n : int
        The largest number of records of a sum.
    row_norm : float
        R, the joint L2 bound of a row with its intercept.
    limit : float
        The largest |residual| of any query of the plan, including differences of two residuals.
    row_bits : int
        log2 of the number of grid units of a row in the next power of two above R.
    residual_bits : int
        log2 of the number of grid units of a residual in the next power of two above the limit.

    Privacy
    -------
    Everything here is computed from public numbers.
    """

    n: int
    row_norm: float
    limit: float
    row_bits: int
    residual_bits: int

    @classmethod
    def choose(cls, n: int, row_norm: float, limit: float, noise: float) -> Grids:
        """The finest grids whose sums are exact and whose noise is not too many units.

        Parameters
        ----------
        n : int
            Number of records of which a sum may consist: all of them, also for batches.
        row_norm, limit : float
            Public bounds of a row, R, and of |residual|.
        noise : float
            Standard deviation of the noise of the SUM, before rounding is charged.

        Returns
        -------
        Grids
            The grids.
        """
        whole("n", n, low=1)
        magnitude("row_norm", row_norm)
        magnitude("limit", limit)
        ratio = Fraction(nonnegative("noise", noise)) / (Fraction(row_norm) * Fraction(limit))
        above = _ceil_log2(ratio) if ratio > 0 else -_NOISE_BITS
        bits = min(_SUM_BITS - _ceil_log2(Fraction(n)), _PRODUCT_BITS, max(_NOISE_BITS - above, _LEAST_PRODUCT))
        residual_bits = min(bits * 45 // 100, _RESIDUAL_BITS)
        if residual_bits < _FEWEST:
            repair = "Fit on a part of the records, or use randomness='fast'."
            raise invalid("n", n, "at most 2^29 records for exact sums", repair)
        if bits + above > _MOST_NOISE:
            raise invalid(
                "noise", noise, f"at most 2^29 times row_norm * limit = {row_norm * limit:g}", "Use a larger epsilon."
            )
        return cls(n, float(row_norm), float(limit), min(bits - residual_bits, _ROW_BITS), residual_bits)

    @classmethod
    def of_rows(cls, n: int, row_norm: float, noise: float) -> Grids:
        """Grids for sums of rows themselves, whose residuals are the number 1.

        Parameters
        ----------
        n : int
            Number of records of which a sum may consist.
        row_norm : float
            The public bound of a row.
        noise : float
            Standard deviation of the noise of the SUM, before rounding is charged.
        """
        whole("n", n, low=1)
        ratio = Fraction(nonnegative("noise", noise)) / Fraction(magnitude("row_norm", row_norm))
        above = _ceil_log2(ratio) if ratio > 0 else -_NOISE_BITS
        bits = min(_SUM_BITS - _ceil_log2(Fraction(n)), _ROW_BITS, max(_NOISE_BITS - above, _FEWEST))
        if bits < _FEWEST:
            raise invalid("n", n, "at most 2^42 records for exact sums", "Fit on a part of the records.")
        return cls(n, float(row_norm), 1.0, bits, 0)

    @cached_property
    def row_unit(self) -> float:
        """g_x."""
        return math.ldexp(1.0, _ceil_log2(Fraction(self.row_norm)) - self.row_bits)

    @cached_property
    def residual_unit(self) -> float:
        """g_r."""
        return math.ldexp(1.0, _ceil_log2(Fraction(self.limit)) - self.residual_bits)

    @cached_property
    def unit(self) -> Fraction:
        """g = g_x g_r, the grid of sums, as a fraction: for extreme bounds it is no normal double."""
        return Fraction(self.row_unit) * Fraction(self.residual_unit)

    @cached_property
    def row_cap(self) -> int:
        """The largest sum of squares of a row in grid units, floor((R / g_x)^2)."""
        return math.floor((Fraction(self.row_norm) / Fraction(self.row_unit)) ** 2)

    @property
    def entry_cap(self) -> int:
        """floor(R / g_x): the largest |entry| in grid units, where R bounds entries and not norms."""
        return math.floor(Fraction(self.row_norm) / Fraction(self.row_unit))

    def residual_cap(self, limit: float) -> int:
        """floor(limit / g_r): the largest |residual| in grid units for a public limit, at most that of the plan.

        Parameters
        ----------
        limit : float
            A public bound of |residual|.
        """
        if not 0 <= limit <= self.limit:
            raise invalid("limit", limit, f"from 0 to {self.limit:g}, the largest of the plan")
        return math.floor(Fraction(limit) / Fraction(self.residual_unit))

    def multiplier(self, noise: float | Fraction) -> int:
        """M = ceil(noise / g): the standard deviation of the SUM's noise in grid units, rounded up.

        Parameters
        ----------
        noise : float or Fraction
            Standard deviation of the noise of the SUM.
        """
        nonnegative("noise", float(noise))
        return math.ceil(Fraction(noise) / self.unit)

    @property
    def needs_dither(self) -> bool:
        """Whether so many records may share a rounding error that residuals should be rounded by random thetas."""
        return self.n > DITHERED

    def charged_diameter(self, diameter: Any, d: int) -> Any:
        """The diameter of a set of gradients of rows with |x| <= 1, after their residuals were rounded.

        2 g_r for the rounding of both records, and a relative max(2^-30, d 2^-50) for errors of the floating-point
        residuals themselves: margins are sums of d products.

        Parameters
        ----------
        diameter : float or array
            The diameter without rounding, or several.
        d : int
            The number of features.
        """
        return diameter * (1 + max(2.0**-30, d * 2.0**-50)) + 2 * self.residual_unit

    def charged_sensitivity(self, sensitivity: float, d: int | None = None) -> float:
        """The planned sensitivity of a mean with everything that rounding adds; ``d`` where a diameter bounds it.

        With ball bounds rounding adds nothing but the last bits of the sensitivity itself. With a diameter, 2 limit at
        most, it is multiplied by charged_diameter(2 limit) / (2 limit).

        Parameters
        ----------
        sensitivity : float
            The planned sensitivity of a mean.
        d : int or None, default None
            The number of features, if a diameter bounds the sensitivity; None for a ball.
        """
        growth = 1.0 if d is None else self.charged_diameter(2 * self.limit, d) / (2 * self.limit)
        return sensitivity * growth * (1 + _ROUNDINGS)


def _ceil_log2(value: Fraction) -> int:
    """The smallest k with value <= 2^k."""
    k = value.numerator.bit_length() - value.denominator.bit_length()
    # value lies in (2^(k-1), 2^(k+1)).
    return k if value <= Fraction(2) ** k else k + 1


def rows_on_grid(rows: Rows, grids: Grids, fit_intercept: bool = False) -> Rows:
    """The rows in units of g_x, whole numbers in doubles; ``fit_intercept`` says that the last column is one.

    Parameters
    ----------
    rows : Rows
        Rows that are clipped to ``grids.row_norm``.
    grids : Grids
        The public grids.
    fit_intercept : bool, default False
        Whether the last column is the intercept.

    Privacy
    -------
    Each row is changed on its own, by public numbers; afterwards its squares add up to at most ``grids.row_cap``,
    exactly. Rows must be clipped to the bound before: a longer one becomes a row of zeros. Entries that become 0 stay
    stored, so that the structure of sparse rows is that of the data.
    """
    key = "on grid", grids.row_unit, grids.row_cap, bool(fit_intercept)
    made: Rows = rows.cached(key, lambda: rows.with_values(_on_grid(rows, grids, fit_intercept)))
    return made


def _on_grid(rows: Rows, grids: Grids, fit_intercept: bool) -> NDArray[Any]:
    from dptoolkit.kernels.grids import rows_on_grid as kernel

    values, starts = _flat(rows)
    out = np.empty_like(values)
    kernel(values, starts, 1.0 / grids.row_unit, grids.row_cap, int(fit_intercept), out)
    return out if rows.is_sparse else out.reshape(rows.matrix.shape)


def entries_on_grid(rows: Rows, grids: Grids) -> Rows:
    """The rows in units of g_x, whole numbers in doubles, where ``grids.row_norm`` bounds entries and not norms.

    Parameters
    ----------
    rows : Rows
        Rows whose entries are clipped to ``grids.row_norm``.
    grids : Grids
        The public grids.

    Privacy
    -------
    Each entry is rounded on its own, by public numbers; afterwards it is at most ``grids.entry_cap`` in size, exactly.
    Entries that become 0 stay stored.
    """

    def make() -> Rows:
        values = rows.matrix.data if rows.is_sparse else rows.matrix
        cap = float(grids.entry_cap)
        # In double precision, and with 0 for -0.
        whole_entries = np.clip(np.rint(values.astype(np.float64) / grids.row_unit), -cap, cap) + 0.0
        return rows.with_values(whole_entries)

    made: Rows = rows.cached(("entries on grid", grids.row_unit, grids.entry_cap), make)
    return made


def directions_on_grid(rows: Rows, grids: Grids) -> tuple[Rows, Array]:
    """(rows over their norms on the grid, norms): for gradients that are clipped as a whole, to ``grad_norm``.

    A record's gradient is then (residual * norm) times its direction, and the product is put on the grid and clipped at
    floor(grad_norm / g_r): ``grids`` must be those of row_norm 1 and limit grad_norm. The intercept is an entry like
    any other here.

    Parameters
    ----------
    rows : Rows
        The rows.
    grids : Grids
        The grids of row_norm 1 and limit grad_norm.

    Privacy
    -------
    Each row is changed on its own. A direction has integer norm at most that of 1, so |gradient| <= grad_norm, exactly.
    Norms are not for release.
    """
    from dptoolkit.kernels.grids import directions

    if grids.row_norm != 1.0:
        raise invalid("grids.row_norm", grids.row_norm, "1, as directions have that norm")
    values, starts = _flat(rows)
    out, lengths = np.empty(len(values)), np.empty(rows.shape[0])
    directions(values, starts, out, lengths)
    unit = rows.with_values(out if rows.is_sparse else out.reshape(rows.matrix.shape))
    return unit.with_values(_on_grid(unit, grids, False)), lengths


def _flat(rows: Rows) -> tuple[NDArray[Any], NDArray[np.uint64]]:
    """(entries one after the other, where each row starts)."""
    if rows.is_sparse:
        return rows.matrix.data, rows.matrix.indptr.astype(np.uint64)
    n, d = rows.shape
    return np.ascontiguousarray(rows.matrix).reshape(-1), np.arange(0, (n + 1) * d, d, dtype=np.uint64)


def residuals_on_grid(
    r: Array, grids: Grids, limit: float | None = None, lengths: Array | None = None, theta: Array | None = None
) -> Array:
    """Residuals in units of g_r, whole numbers in doubles, clipped at floor(limit / g_r).

    Parameters
    ----------
    r : array
        Residuals, or differences of two; NaN becomes 0. Do not divide them by n.
    grids : Grids
        The grids of the plan.
    limit : float or None, default None
        The public limit at the current weights; None for the plan's.
    lengths : array or None, default None
        Norms of the rows, from ``directions_on_grid``: they are multiplied with.
    theta : array or None, default None
        For each record a number in [0, 1) that was drawn for its place, independently of the data; residuals are
        rounded down after adding it. None rounds to the nearest. See ``Grids.needs_dither``.

    Returns
    -------
    array
        Whole numbers.

    Privacy
    -------
    Each residual is changed on its own. Afterwards |residual| g_r <= limit, exactly.
    """
    cap = float(grids.residual_cap(grids.limit if limit is None else limit))
    return capped_residuals(r, grids, cap, lengths, theta)


def capped_residuals(r: Array, grids: Grids, cap: float, lengths: Array | None, theta: Array | None = None) -> Array:
    """``residuals_on_grid`` for a limit in grid units.

    Parameters
    ----------
    r : array
        Residuals, or differences of two; NaN becomes 0.
    grids : Grids
        The grids of the plan.
    cap : float
        The public limit in grid units, from ``Grids.residual_cap``.
    lengths : array or None
        Norms of the rows, which residuals are multiplied with.
    theta : array or None, default None
        Thresholds of the rounding; None rounds to the nearest.

    Privacy
    -------
    See ``residuals_on_grid``.
    """
    from dptoolkit.kernels.grids import residuals_on_grid as kernel

    out, none = np.empty(len(r)), np.zeros(0)
    kernel(np.ascontiguousarray(r, dtype=np.float64), none if lengths is None else lengths,
           none if theta is None else theta, 1.0 / grids.residual_unit, cap, out)  # fmt: skip
    return out


def exact_sum(rows: Rows, r: Array) -> NDArray[np.int64]:
    """X^T r as integers, for rows and residuals on their grids: the same to the last bit in any order.

    Parameters
    ----------
    rows : Rows
        Rows on their grid.
    r : ndarray
        Residuals on their grid.

    Privacy
    -------
    NOT private: noise is added to it, in integers, before anything is divided by n.
    """
    # The transpose is a view: making one costs more than the product.
    return np.asarray(rows.matrix.T @ r).astype(np.int64)


def released_mean(sums: NDArray[Any], grids: Grids, size: float) -> Array:
    """A noisy sum in grid units as a mean over ``size`` records in real units: post-processing.

    Units are applied one after the other, since their product may be too small for a double.

    Parameters
    ----------
    sums : ndarray
        Noisy sums in grid units.
    grids : Grids
        The public grids.
    size : float
        The number of records that the mean divides by.
    """
    return np.asarray(sums * grids.row_unit * grids.residual_unit / size)
