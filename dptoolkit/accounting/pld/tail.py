"""The tail of the law of a sum of losses: delta at an epsilon, and epsilon at a delta."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptoolkit.types import Array

# Terms this many logs below the scale of a sum are lost to underflow.
_LARGEST_LOG = 600.0
# Points of the largest block of a window.
_MOST_IN_BLOCK = 256


class _Block(NamedTuple):
    """A few neighbouring points of the window, from ``start`` on, with their tail sums."""

    start: int
    losses: Array
    q: Array
    d: Array


class Tail:
    """Tail sums of a tilted law: delta at any loss of the window, epsilon at any delta in it.

    Every sum is kept relative to its own grid point: with l_i the loss and m_j the tilted mass,
    delta(l_i) = exp(log_norm - tilt l_i) sum_{j>=i} m_j exp(-tilt (l_j - l_i)) (1 - exp(-(l_j - l_i))), so that nothing
    overflows however wide the window is.

    By parts, with q_i = sum_{j>=i} m_j exp(-(tilt + 1)(l_j - l_i)) and s_i = sum_{j>=i} q_j exp(-tilt (l_j - l_i)), the
    sum in delta(l_i) is d_i = (1 - e^-step) exp(-tilt step) s_{i+1}. In this form no term cancels: where the mass is at
    the largest loss, a difference of two sums would be all round-off.

    A question is about one point, so q and s are kept where blocks of points begin, and the sums inside a block are
    taken when they are asked for.
    """

    def __init__(
        self,
        step: float,
        first: int,
        mass: Array,
        tilt: float,
        log_norm: float,
        floor: float,
        outside: float,
        infinite: float,
        lower: bool,
    ) -> None:
        self._mass = np.maximum(mass - floor, 0.0) if lower else np.maximum(mass, 0.0) + floor
        self._step, self._first, self._tilt, self._log_norm, self._lower = step, first, tilt, log_norm, lower
        self._outside = outside
        self.infinite, self.points = infinite, len(mass)
        # A lower bound, less what may have wrapped around, does not fall from point to point: it is one block.
        self._size = self.points if lower else math.gcd(self.points, _MOST_IN_BLOCK)
        self._q, self._s = self._at_block_starts()
        self._last: _Block | None = None

    def _at_block_starts(self) -> tuple[Array, Array]:
        """q and s at the beginning of every block, and 0 behind the last one."""
        size, steep, slow = self._size, (self._tilt + 1) * self._step, self._tilt * self._step
        places = np.arange(size)
        # A unit of mass at place k of a block adds sum_{j<=k} exp(-slow j - steep (k - j)) to s at the block's start.
        weights = np.exp(-slow * places) * np.expm1(-self._step * (places + 1.0)) / math.expm1(-self._step)
        blocks = self._mass.reshape(-1, size)
        # Sums rather than products, which BLAS gives to threads that wait longer than they work.
        q = np.append(discounted(np.einsum("ij,j->i", blocks, np.exp(-steep * places)), steep * size), 0.0)
        own = np.einsum("ij,j->i", blocks, weights) + math.exp(-steep) * weights[-1] * q[1:]
        return q, np.append(discounted(own, slow * size), 0.0)

    def _block(self, number: int) -> _Block:
        """The points of one block: its own sums, and what the blocks behind it add."""
        start = number * self._size
        if self._last is None or self._last.start != start:
            losses = self._loss(start + np.arange(self._size))
            mass = self._mass[start : start + self._size]
            q = discounted(np.append(mass, self._q[number + 1]), (self._tilt + 1) * self._step)
            s = discounted(np.append(q[:-1], self._s[number + 1]), self._tilt * self._step)
            self._last = _Block(start, losses, q[:-1], self._delta_sum(s[1:], losses))
        return self._last

    def _delta_sum(self, s: Array, losses: Array) -> Array:
        """d at points with these losses, from s one point further up."""
        d = -math.expm1(-self._step) * math.exp(-self._tilt * self._step) * s
        if self._lower:
            # Mass that wrapped around may have landed anywhere, so the lower bound subtracts it.
            return np.asarray(d - 2 * self._outside)
        return np.asarray(d + self._outside * np.exp(-self._tilt * (self._loss(self.points - 1) - losses)))

    def _loss(self, places: Array | NDArray[np.intp] | int) -> Array:
        return np.asarray(self._step * (self._first + places))

    @property
    def first_loss(self) -> float:
        return float(self._loss(0))

    def delta_at(self, epsilon: float) -> float:
        """delta at an epsilon that is not below the window."""
        i = math.floor(epsilon / self._step) + 1 - self._first
        if i >= self.points:
            i = self.points - 1
            epsilon = float(self._loss(i))
        i = max(i, 0)
        block = self._block(i // self._size)
        i -= block.start
        log_scale = self._log_norm - self._tilt * block.losses[i]
        if log_scale > _LARGEST_LOG:
            return 1.0
        # Between points i-1 and i delta is exp(log_scale_i) (d_i + (1 - exp(epsilon - l_i)) q_i).
        value = block.d[i] - math.expm1(epsilon - block.losses[i]) * block.q[i]
        if value <= 0:
            return 0.0
        return math.exp(min(log_scale + math.log(value), 0.0))

    def epsilon_at(self, delta: float) -> float | None:
        """The point where delta is reached; None if it lies below the window."""
        ends = self._loss(self._size * np.arange(1, len(self._q)) - 1)
        number = _after_the_last(self._exceeds(ends, self._delta_sum(self._s[1:], ends), delta))
        while number < len(ends):
            block = self._block(number)
            i = _after_the_last(self._exceeds(block.losses, block.d, delta))
            if i < self._size:
                return self._epsilon_below(block, i, delta) if number or i else None
            # The block's own sums, which are rounded differently, say that even its last point exceeds delta.
            number += 1
        return math.inf

    def _epsilon_below(self, block: _Block, i: int, delta: float) -> float:
        """The point between the block's place i, where delta is kept, and the point before, where it is not."""
        previous, at = float(self._loss(block.start + i - 1)), float(block.losses[i])
        room = math.exp(min(math.log(delta) - (self._log_norm - self._tilt * at), 700.0)) - block.d[i]
        if room >= block.q[i]:
            return previous
        return min(max(at + math.log1p(-max(room, 0.0) / block.q[i]), previous), at)

    def _exceeds(self, losses: Array, d: Array, delta: float) -> NDArray[np.bool_]:
        """Whether delta at these points is above ``delta``."""
        log_scale = self._log_norm - self._tilt * losses
        with np.errstate(divide="ignore"):
            exceeds = log_scale + np.log(np.maximum(d, 0.0)) > math.log(delta)
        # Points so far below the answer have lost terms of their sums to underflow, and count as exceeding.
        return exceeds if self._lower else exceeds | (log_scale > math.log(delta) + _LARGEST_LOG)


def _after_the_last(flags: NDArray[np.bool_]) -> int:
    """The place behind the last one that is set."""
    places = np.flatnonzero(flags)
    return int(places[-1]) + 1 if len(places) else 0


def discounted(mass: Array, decay: float) -> Array:
    """sum_{j >= i} mass_j exp(-decay (j - i)), by doubling."""
    total = mass.copy()
    reach = 1
    while reach < len(mass) and decay * reach < 745:
        total[:-reach] += math.exp(-decay * reach) * total[reach:]
        reach *= 2
    return total
