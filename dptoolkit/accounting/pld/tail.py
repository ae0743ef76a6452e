"""The tail of the law of a sum of losses: delta at an epsilon, and epsilon at a delta."""

from __future__ import annotations

import math

import numpy as np

from dptoolkit.accounting._numeric import Array

# Terms this many logs below the scale of a sum are lost to underflow.
_LARGEST_LOG = 600.0


class Tail:
    """Tail sums of a tilted law: delta at any loss of the window, epsilon at any delta in it.

    Every sum is kept relative to its own grid point: with l_i the loss and m_j the tilted mass,
    delta(l_i) = exp(log_norm - tilt l_i) sum_{j>=i} m_j exp(-tilt (l_j - l_i)) (1 - exp(-(l_j - l_i))), so that nothing
    overflows however wide the window is.
    """

    def __init__(
        self, step: float, first: int, mass: Array, tilt: float, log_norm: float, floor: float, outside: float,
        infinite: float, lower: bool,
    ) -> None:
        mass = np.maximum(mass - floor, 0.0) if lower else np.maximum(mass, 0.0) + floor
        self._losses = step * (first + np.arange(len(mass)))
        self._step, self._first, self._tilt, self._log_norm, self._lower = step, first, tilt, log_norm, lower
        self.infinite = infinite
        self._q = _discounted(mass, (tilt + 1) * step)
        # The sum of delta(l_i) by parts, sum_{j>i} exp(-tilt (l_j - l_i)) (1 - e^-step) q_j, has no term that cancels:
        # where the mass is at the largest loss, the difference of the two sums would be all round-off.
        later = np.append(self._q[1:], 0.0)
        self._d = -math.expm1(-step) * math.exp(-tilt * step) * _discounted(later, tilt * step)
        if lower:
            # Mass that wrapped around may have landed anywhere, so the lower bound subtracts it.
            self._d -= 2 * outside
        else:
            self._d += outside * np.exp(-tilt * (self._losses[-1] - self._losses))

    @property
    def points(self) -> int:
        return len(self._d)

    @property
    def first_loss(self) -> float:
        return float(self._losses[0])

    def delta_at(self, epsilon: float) -> float:
        """delta at an epsilon that is not below the window."""
        i = math.floor(epsilon / self._step) + 1 - self._first
        if i >= len(self._d):
            i = len(self._d) - 1
            epsilon = self._losses[i]
        i = max(i, 0)
        if self._log_norm - self._tilt * self._losses[i] > _LARGEST_LOG:
            return 1.0
        # Between points i-1 and i delta is exp(log_scale_i) (d_i + (1 - exp(epsilon - l_i)) q_i).
        value = self._d[i] - math.expm1(epsilon - self._losses[i]) * self._q[i]
        if value <= 0:
            return 0.0
        return math.exp(min(self._log_norm - self._tilt * self._losses[i] + math.log(value), 0.0))

    def epsilon_at(self, delta: float) -> float | None:
        """The point where delta is reached; None if it lies below the window."""
        log_scale = self._log_norm - self._tilt * self._losses
        with np.errstate(divide="ignore"):
            log_delta = log_scale + np.log(np.maximum(self._d, 0.0))
        exceeds = log_delta > math.log(delta)
        if not self._lower:
            # Points so far below the answer have lost terms of their sums to underflow, and count as exceeding.
            exceeds |= log_scale > math.log(delta) + _LARGEST_LOG
        above = np.flatnonzero(exceeds)
        if len(above) == 0:
            return None
        i = int(above[-1]) + 1
        if i == len(log_delta):
            return math.inf
        room = math.exp(min(math.log(delta) - log_scale[i], 700.0)) - self._d[i]
        if room >= self._q[i]:
            return float(self._losses[i - 1])
        inside = self._losses[i] + math.log1p(-max(room, 0.0) / self._q[i])
        return float(min(max(inside, self._losses[i - 1]), self._losses[i]))


def _discounted(mass: Array, decay: float) -> Array:
    """sum_{j >= i} mass_j exp(-decay (j - i)), by doubling."""
    total = mass.copy()
    reach = 1
    while reach < len(mass) and decay * reach < 745:
        total[:-reach] += math.exp(-decay * reach) * total[reach:]
        reach *= 2
    return total
