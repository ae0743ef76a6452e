"""The recursion of ``selection`` for adaptive selections, compiled; imported on use, because Numba loads slowly."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

# Points that are taken through all candidates at once: their four arrays stay in the fastest cache.
_TILE = 512


@njit(cache=True, nogil=True, error_model="numpy")
def _raise_to(best, m0, f0, w0, m1, f1, w1, m2, f2, w2, m3, f3, w3):  # type: ignore[no-untyped-def]
    """best = max(best, f0 m0 + w0, ...). Arrays and not offsets, so that the loop can be compiled to vectors."""
    for j in range(best.shape[0]):
        a, b = f0[j] * m0 + w0[j], f1[j] * m1 + w1[j]
        c, d = f2[j] * m2 + w2[j], f3[j] * m3 + w3[j]
        a = a if a > b else b
        c = c if c > d else d
        a = a if a > c else c
        best[j] = a if a > best[j] else best[j]


@njit(cache=True, nogil=True, error_model="numpy")
def adaptive_values(
    at_high: NDArray[np.float64], fallen: NDArray[np.float64], count: int, points: int, beyond: float
) -> NDArray[np.float64]:
    """V_count on a grid of ``points`` losses 0, h, 2h, ...; ``at_high[i]`` is the mass at loss i h of candidate i.

    ``fallen`` holds exp(-h) - 1, exp(-2h) - 1, .... Beyond the last point the value is ``beyond``, or what it is at
    the last point if ``beyond`` is negative. Every product and sum is rounded as in ``selection._recursion_step``, so
    that both give the same bits.
    """
    cells = at_high.shape[0] - 1
    value, wide, fall = np.zeros(points), np.empty(points + 2 * cells), np.empty(points + cells)
    for number in range(count):
        # V_k is 0 from k ranges on, so the first steps need few points.
        n = min(points, (number + 1) * cells + 1)
        for j in range(cells):
            wide[cells - 1 - j] = -fallen[j] + (1 + fallen[j]) * value[min(j + 1, n - 1)]
        for j in range(n):
            wide[cells + j] = value[j]
        for j in range(cells):
            wide[cells + n + j] = value[n - 1] if beyond < 0 else beyond
        for j in range(n + cells):
            fall[j] = wide[j] - wide[j + cells]
        for first in range(0, n, _TILE):
            last = min(first + _TILE, n)
            best = value[first:last]
            best[:] = 0.0
            for i in range(0, cells + 1, 4):
                # Four candidates at a time, so that the largest value is loaded and stored less often. The last ones
                # may be taken twice.
                i0, i1, i2, i3 = i, min(i + 1, cells), min(i + 2, cells), min(i + 3, cells)
                _raise_to(best, at_high[i0], fall[cells - i0 + first :], wide[2 * cells - i0 + first :],
                          at_high[i1], fall[cells - i1 + first :], wide[2 * cells - i1 + first :],
                          at_high[i2], fall[cells - i2 + first :], wide[2 * cells - i2 + first :],
                          at_high[i3], fall[cells - i3 + first :], wide[2 * cells - i3 + first :])  # fmt: skip
    return value
