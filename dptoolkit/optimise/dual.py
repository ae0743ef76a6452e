"""Sweeps over sparse rows towards the minimum of a regularised loss, in the dual: fast, without a bound on the error.

At the minimum of sum_i f(<x_i, w>, y_i) + (l2/2)|w|^2 + <linear, w> every row has a share a_i of the weights:

    w = -(linear + sum_i a_i x_i)/l2,   a_i = f'(<x_i, w>, y_i).

A sweep keeps the first true and makes the second true for one row after the other, with the other shares as they are:
dual coordinate ascent (Shalev-Shwartz and Zhang 2013). It needs one pass over the rows, and how ill-conditioned the
problem is hardly matters. The reason: take a direction in which the curvature of the loss is s times that of the
regulariser, and an error E along it. In random order, a row's share is set when a fraction t of the others has been, so
that dE/dt = -E(0) - s E, and the sweep multiplies the error by g(s) = e^-s - (1 - e^-s)/s. That is between -0.2985 and
0 for every s: a sweep overshoots, never by more than that. ``mix`` takes part of each sweep back, and a little of the
step before, as Chebyshev's method does for factors in that range: 0.065 a sweep, if there were many rows in an ideal
order; 0.1 to 0.4 is what is seen. A single row must bend the objective less than the regulariser does.

Privacy: nothing in here is private, and nothing rests on it. ``minimise`` certifies what it takes from here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dptoolkit.data import kernel_arrays
from dptoolkit.losses import Loss
from dptoolkit.types import Array

# Rows that are neighbours in memory are visited together, as a sweep in an order of single rows waits for memory: at
# most so many, and never so many that their joint curvature exceeds that of the regulariser. The order of those among
# themselves hardly matters; that of more would have to be random too.
_BLOCK = 32
# The factors g(s) of a sweep are between this and 0.
_OVERSHOT = -0.2985
_MIDDLE, _HALF = 1 - _OVERSHOT / 2, -_OVERSHOT / 2
_PART = 1 / _MIDDLE
_MOMENTUM = 2 / (1 + (1 - (_HALF / _MIDDLE) ** 2) ** 0.5) - 1


class Sweeps:
    """Where the sweeps are: the weights, and each row's share in them.

    Attributes
    ----------
    w : ndarray
        The weights after the last sweep.
    """

    def __init__(self, matrix: Any, y: Array, loss: Loss, l2: float, linear: Array) -> None:
        from dptoolkit.kernels import dual

        self._arrays, self._y, self._loss, self._l2 = kernel_arrays(matrix), y, loss.id, l2
        self._squares = np.empty(len(y))
        dual.row_squares(self._arrays[0], self._arrays[2], self._squares)
        bend = loss.smoothness * float(self._squares.max(initial=0.0))
        self._block = _BLOCK if _BLOCK * bend <= l2 else max(int(l2 / bend), 1)
        self._order = np.random.default_rng(0)
        self.w, self._shares = -linear / l2, np.zeros(len(y))
        # The states before the last sweep, and before the one preceding it.
        self._from, self._before = (self.w, self._shares), (self.w, self._shares)

    def sweep(self) -> float:
        """One step for every row; the length of its path, times l2."""
        from dptoolkit.kernels import dual

        self._before, self._from = self._from, (self.w, self._shares)
        self.w, self._shares = self.w.copy(), self._shares.copy()
        order = self._order.permutation(-(-len(self._y) // self._block))
        dual.sweep(
            self._loss, *self._arrays, self._squares, self._y, self._l2, order, self._block, self._shares, self.w
        )
        return self._l2 * float(np.linalg.norm(self.w - self._from[0]))

    def mix(self) -> None:
        """Take a part of the last sweep back, before the next one."""
        self.w, self._shares = (
            _mixed(*three) for three in zip(self._before, self._from, (self.w, self._shares), strict=True)
        )


def _mixed(before: Array, start: Array, end: Array) -> Array:
    part = start + _PART * (end - start)
    return np.asarray(part + _MOMENTUM * (part - before))
