"""One curve, delta against epsilon: a composition on the coarsest grid that is good at one delta."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dptoolkit.accounting.pld import composition
from dptoolkit.accounting.pld.composition import LOG_OUTSIDE, Focus, Sum, View, grid_error, too_many
from dptoolkit.accounting.pld.grid import Leaf, Span, connect_the_dots, rounded, span_of
from dptoolkit.accounting.pld.smooth import smooth_epsilon
from dptoolkit.accounting.pld.tail import Tail
from dptoolkit.accounting.pld.trees import Node, leaves, most_steps, steps_of

# How much the grid may add to epsilon, relative to epsilon or to the spread of the loss, whichever is larger. For the
# upper bound this error grows with the square of the step, for the lower bound with the step.
_TOLERANCE = 5e-5
_LOWER_TOLERANCE = 1e-3
# Two grids agree if their answers differ by at most this much, relatively.
AGREEMENT = 1e-4
# Shares of the tilt at which the law of the sum is computed, one after the other, until its window holds the answer.
_TILTS = (*(0.5**k for k in range(12)), 0.0)
# The largest delta that has a curve of its own.
_FIRST_DECADE = 0.1
# With more releases than this the result would consist of round-off. Where the round-off is larger than the second
# number, another method may be better.
_MOST_STEPS = 1e13
_SHARP_ROUND_OFF = 1e-4
# Relative round-off of a largest loss that was found on a grid.
_LOSS_ROUND_OFF = 1e-15
# Points of the largest grid that is kept for another question.
_MOST_KEPT = 2**20
# Points of the first grid on each side of loss 0.
_FIRST_POINTS = 256
# The log of the least rough delta, and roughly the log of Chernoff's bound on delta over delta.
_LEAST_LOG = -690.0
_CHERNOFF_EXCESS = 3.0
# A quick look requires a value below this share of delta. Then the curve of another grid, which may be used later, is
# below delta too.
_SURELY = 0.95
# A quick look has at most this many points on each side of loss 0, and a step of at least this many steps of the other
# grid.
_QUICK_POINTS, _QUICK_STEPS = 2048, 4
# -log of a probability so small that 1 minus it is 1 in floats.
_LOG_ONE = 40.0
# Share of delta that the lower bound gives to Hoeffding's inequality.
_HOEFFDING_SHARE = 1e-3


class Answer(NamedTuple):
    """A sound upper bound, whether the grid was fine enough for it to be as good as the pairs allow, and its step.

    ``refined`` says that a curve's own grid was not fine enough where it was read, and finer ones were tried.
    """

    value: float
    sharp: bool
    step: float = 0.0
    refined: bool = False


class Resolution(NamedTuple):
    """A finer grid than a curve's own: its step, and the loss above which everything counts as infinite."""

    step: float
    largest_loss: float


class _Spans:
    """How far the grids of a tree's pairs reach, such that little of ``delta`` is left beyond their ends."""

    def __init__(self, nodes: tuple[Node, ...], delta: float, largest_loss: float = math.inf) -> None:
        tail = delta * 1e-6 / max(steps_of(nodes), 1.0)
        self._nodes = nodes
        spans = {id(n.pair): span_of(n.pair, tail) for n in leaves(nodes) if n.pair is not None}
        self._spans = {key: replace(span, above=min(span.above, largest_loss)) for key, span in spans.items()}
        self.reach = max(max(s.above, s.below) for s in self._spans.values())

    def sum_at(self, step: float, discretise: Callable[[Span, float], Leaf]) -> Sum:
        return Sum(self._nodes, step, lambda pair, h: discretise(self._spans[id(pair)], h))

    def aligned(self, step: float) -> float:
        """The largest step up to ``step`` for which the main atom, or else the upper end of the grid, is a grid point.

        Mass beyond the end of a grid counts as infinite. Grids with different ends would differ by more than their
        steps, and not by a multiple of the square of the step.
        """
        atom = max(s.pair.atom for s in self._spans.values()) or max(s.above for s in self._spans.values())
        return atom / math.ceil(atom / step) if atom > step else step


def rough_epsilon(nodes: tuple[Node, ...], delta: float) -> float:
    """Roughly epsilon at ``delta``: a search's start, never a bound.

    Where the law around the best tilt is not nearly normal, as for a few steps on small batches, it comes from a coarse
    grid. What that grid adds, which is estimated from another one, is taken off.
    """
    smooth = smooth_epsilon(nodes, delta)
    if smooth is not None:
        return smooth
    spans = _Spans(nodes, delta)
    coarse = spans.sum_at(spans.aligned(spans.reach / _FIRST_POINTS), connect_the_dots)
    total = spans.sum_at(coarse.step / 2, connect_the_dots)
    view, slack = total.look_at(delta, spans.reach), delta - total.infinite
    tail = total.tail(total.focus(view, delta), lower=False) if slack > 0 else None
    epsilon = None if tail is None else tail.epsilon_at(slack)
    if epsilon is None or not math.isfinite(epsilon):
        epsilon = view.epsilon
    return max(epsilon - grid_error(coarse, total, view.tilt), 0.0)


def _added(total: Sum, view: View) -> float:
    """About what a grid adds to epsilon.

    Connecting the dots spreads a loss over two grid points and so adds h^2/6 to its second moment under a mixture of
    both laws, which is h^2 (1 + tilt) / 12 of epsilon for every step. In the plans of all solvers, on grids fine enough
    for an answer, it was 0.3 to 1.3 times that.
    """
    return total.steps * total.step**2 * (1 + view.tilt) / 12


def rough_view(nodes: tuple[Node, ...], delta: float) -> View:
    """Where ``delta`` is roughly reached, and the best tilt there, in the same way."""
    return _rough(nodes, delta)[1]


def _rough(nodes: tuple[Node, ...], delta: float) -> tuple[Sum, View]:
    spans = _Spans(nodes, delta)
    total = spans.sum_at(spans.aligned(spans.reach / _FIRST_POINTS), connect_the_dots)
    return total, total.look_at(delta, spans.reach)


def rough_delta(nodes: tuple[Node, ...], epsilon: float) -> float:
    """Roughly delta at ``epsilon``, by Chernoff's inequality on a coarse grid: a search's start, never a bound."""
    estimate = cut = 1e-12
    # The grid must reach to where little of delta is left: the smaller delta is found to be, the further.
    for _ in range(4 if steps_of(nodes) <= _MOST_STEPS else 0):
        spans = _Spans(nodes, cut)
        total = spans.sum_at(spans.aligned(spans.reach / _FIRST_POINTS), connect_the_dots)
        _, log_delta = total.look_from(epsilon, spans.reach)
        estimate = math.exp(min(max(log_delta - _CHERNOFF_EXCESS, _LEAST_LOG), 0.0))
        if estimate >= cut:
            break
        cut = estimate
    return estimate


def surely_keeps(nodes: tuple[Node, ...], epsilon: float, delta: float, step: float) -> bool:
    """Whether one grid, coarser than one of this step, shows that delta at ``epsilon`` is well below ``delta``.

    This is a quick look for that direction of the neighbours which mostly has the smaller delta. False decides nothing:
    delta may still be below.
    """
    if delta == 0 or steps_of(nodes) > _MOST_STEPS:
        return False
    spans = _Spans(nodes, delta)
    total = spans.sum_at(spans.aligned(max(_QUICK_STEPS * step, spans.reach / _QUICK_POINTS)), connect_the_dots)
    tilt, log_delta = total.look_from(epsilon, spans.reach)
    # Losses on the grid, and their sums, are rounded products: the curve is read at a slightly smaller epsilon.
    point = epsilon * (1 - _LOSS_ROUND_OFF)
    if total.infinite + total.chernoff_delta(tilt, point) <= _SURELY * delta:
        return True
    tail = total.tail(Focus(tilt, epsilon, LOG_OUTSIDE + max(log_delta - math.log(delta), 0.0)), lower=False)
    return tail is not None and tail.first_loss <= point and tail.infinite + tail.delta_at(point) <= _SURELY * delta


class Composition:
    """A tree on the coarsest grid that is good at one delta: one curve, read in both directions."""

    def __init__(
        self,
        nodes: tuple[Node, ...],
        delta: float,
        *,
        lower: bool = False,
        tolerance: float = _TOLERANCE,
        points: int = _FIRST_POINTS,
        resolution: Resolution | None = None,
    ) -> None:
        steps = steps_of(nodes)
        if steps > _MOST_STEPS:
            raise too_many(steps)
        self.nodes, self._delta, self._lower, self._sharp = nodes, delta, lower, True
        self._tolerance, self._points = tolerance, points
        # Whether a window was too large for the grid it was asked for, and had to take a coarser one.
        self.coarsened = False
        self._hopeless = delta if lower else min(delta * math.sqrt(10), 1.0)
        if resolution is None:
            self._spans = _Spans(nodes, delta)
            self._sum, self._view = self._fine_enough()
        else:
            self._spans = _Spans(nodes, delta, resolution.largest_loss)
            self._sum = self._spans.sum_at(self._spans.aligned(resolution.step), connect_the_dots)
            self._view = self._sum.look_at(delta, self._spans.reach)
        if lower:
            step = min(self._sum.step, _LOWER_TOLERANCE * self._view.size / self._hoeffding(1.0, delta))
            self._sum = self._spans.sum_at(self._spans.aligned(max(step, 8 * self._smallest_step)), rounded)
        self.infinite = self._sum.infinite
        self._at_zero = self.infinite + self._at_most_at_zero()
        self._tails: dict[int, Tail] = {}

    @property
    def reusable(self) -> bool:
        """Whether it is small enough to be kept, and gives the same answers whatever it was asked before."""
        return self._sharp and all(t.points <= _MOST_KEPT for t in self._tails.values())

    @property
    def _smallest_step(self) -> float:
        return self._spans.reach * 8 / composition.MAX_POINTS

    def _fine_enough(self) -> tuple[Sum, View]:
        """The sum on a grid whose error, estimated from the grid with twice the step, is within the tolerance."""
        coarse = self._spans.sum_at(self._spans.aligned(self._spans.reach / self._points), connect_the_dots)
        view = coarse.look_at(self._delta, self._spans.reach)
        if coarse.infinite >= self._hopeless:
            return coarse, view
        predicted = self._spans.aligned(self._predicted_step(coarse, view))
        # Where most losses are smaller than a step, the error does not yet fall with the square of it.
        regular = coarse.spread >= coarse.step * math.sqrt(coarse.steps)
        if regular and self._smallest_step < predicted < coarse.step:
            fine = self._spans.sum_at(predicted, connect_the_dots)
            view = fine.look_near(self._delta, view)
            if grid_error(coarse, fine, view.tilt) <= self._tolerance * view.size:
                return fine, view
        while True:
            fine = self._spans.sum_at(coarse.step / 2, connect_the_dots)
            view = fine.look_at(self._delta, self._spans.reach)
            excess = grid_error(coarse, fine, view.tilt) / (self._tolerance * view.size)
            if excess <= 1 or fine.step <= self._smallest_step:
                self._sharp = excess <= 1
                return fine, view
            shrink = max(0.6 / math.sqrt(excess), 1 / 32) if math.isfinite(excess) else 0.25
            step = max(coarse.step * shrink, 2 * self._smallest_step)
            coarse = fine if shrink > 0.4 else self._spans.sum_at(self._spans.aligned(step), connect_the_dots)

    def _predicted_step(self, coarse: Sum, view: View) -> float:
        """The step at which a third of the tolerance is added to epsilon."""
        return coarse.step * math.sqrt(self._tolerance * view.size / (3 * _added(coarse, view)))

    def _tail(self, index: int) -> Tail:
        """The law of the sum at the tilt of ``index``: each next tilt is smaller and reaches further down."""
        if index not in self._tails:
            focus = self._focus(index)
            tail = self._sum.tail(focus, lower=self._lower)
            while tail is None:
                self._sharp, self.coarsened = False, True
                self._sum = self._spans.sum_at(self._sum.step * 1.5, rounded if self._lower else connect_the_dots)
                if self._sum.step > 1e3 * self._spans.reach:
                    raise too_many(self._sum.steps)
                tail = self._sum.tail(self._focus(index), lower=self._lower)
            self._sharp = self._sharp and self._sum.round_off(focus.tilt, 2**16) < _SHARP_ROUND_OFF
            self._tails[index] = tail
        return self._tails[index]

    def _focus(self, index: int) -> Focus:
        if index == 0 and not self._lower:
            return self._sum.focus(self._view, self._delta)
        return self._sum.centred(self._sum.permitted(self._view.tilt * _TILTS[index]))

    @property
    def step(self) -> float:
        return self._sum.step

    @property
    def cells(self) -> float:
        """Grid steps up to the largest loss of a pair."""
        return self._spans.reach / self._sum.step

    def resolves(self, epsilon: float) -> bool:
        """Whether the grid is fine enough at ``epsilon``, judged by how much the curve bends within a few of its steps.

        Between two grid points the curve is a chord. A chord across a bend is too high by up to an eighth of the second
        difference, and this, divided by how fast the curve falls, is the error of epsilon. The estimate that the grid
        was chosen by does not see such an error where rare large losses lie beside small ones, because it weighs a
        loss by its size.
        """
        if not 0 <= epsilon < math.inf or self.infinite >= self._hopeless or self._surely_one(epsilon):
            return True
        before, left, right, after = (self._value(epsilon + place * self.step) for place in (-1.5, -0.5, 0.5, 1.5))
        error = max(before - 2 * left + right, left - 2 * right + after, 0.0) / 8
        return error <= AGREEMENT * right or error * self.step <= AGREEMENT * epsilon * (left - right)

    def delta(self, epsilon: float) -> Answer:
        """The bound on delta at epsilon."""
        if self.infinite >= self._hopeless or self._surely_one(epsilon):
            return Answer(1.0, True)
        value = self._value(epsilon)
        return Answer(value, self._sharp, self._sum.step)

    def _surely_one(self, epsilon: float) -> bool:
        """Whether delta rounds to 1, because hardly any loss is near ``epsilon`` or below it.

        It is decided by Chernoff's inequality, which avoids computing the law of the sum at ever smaller tilts. 1 is a
        sound bound in any case. The first two rates are about the best for a normal law. Where the least losses are
        far below the mean, the moment grows fast beyond rate 1/2.
        """
        point = epsilon + _LOG_ONE
        above, variance = self._sum.mean - point, self._sum.spread**2
        return above > 0 and any(
            self._sum.log_mgf(-rate) + rate * point < -_LOG_ONE
            for rate in (above / variance, 0.3 * above / variance, min(0.5, 0.1 * above / variance))
        )

    def _value(self, epsilon: float) -> float:
        # Losses on the grid, and their sums, are rounded products: the curve is read at a slightly smaller epsilon.
        epsilon *= 1 - _LOSS_ROUND_OFF
        tail, below_window = self._tail(0), 0.0
        for index in range(1, len(_TILTS)):
            if tail.first_loss <= epsilon:
                break
            tail = self._tail(index)
        else:
            # Without tilt the mass below the window is known to be small; all of it is added.
            below_window = math.exp(-LOG_OUTSIDE) if tail.first_loss > epsilon else 0.0
        value = tail.infinite + tail.delta_at(epsilon) + below_window
        if self._lacks_curve_above and value > self._hopeless:
            # Not below the decade's largest delta, so that the curve falls there too.
            value = min(value, max(self._untilted_value(epsilon), self._hopeless))
        # Not 0 where it underflows: below the largest loss delta is positive.
        return min(max(value, math.ulp(0.0)), self._at_zero, 1.0)

    @property
    def _lacks_curve_above(self) -> bool:
        """Whether this is the first decade's curve, which larger deltas are read from too.

        There a tilted window's lower end is mostly mass from outside it, and the law without tilt is exact.
        """
        return self._delta >= _FIRST_DECADE

    def _untilted_value(self, epsilon: float) -> float:
        tail = self._tail(len(_TILTS) - 1)
        below_window = math.exp(-LOG_OUTSIDE) if tail.first_loss > epsilon else 0.0
        return tail.infinite + tail.delta_at(epsilon) + below_window

    def epsilon(self, delta: float) -> Answer:
        """The smallest epsilon found where the bound on delta is at most ``delta``."""
        if self.infinite >= min(delta, self._hopeless):
            return Answer(math.inf, True)
        if self._at_zero <= delta:
            return Answer(0.0, self._sharp)
        # If the answer lies below the window, the window's first loss is a bound, and a smaller tilt centres it lower.
        best = math.inf
        for index in range(len(_TILTS)):
            bound, inside = self._epsilon_of_tail(index, delta)
            best = min(best, bound)
            if inside:
                break
        if self._lacks_curve_above and delta > self._hopeless:
            best = min(best, self._epsilon_of_tail(len(_TILTS) - 1, delta)[0])
        value = self._settled(max(best, 0.0) * (1 + 2 * _LOSS_ROUND_OFF), delta)
        return Answer(value, self._sharp, self._sum.step)

    def _epsilon_of_tail(self, index: int, delta: float) -> tuple[float, bool]:
        """The bound of one tail, and whether it lies inside its window."""
        tail = self._tail(index)
        slack = delta - tail.infinite
        answer = tail.epsilon_at(slack) if slack > 0 else math.inf
        return (tail.first_loss, False) if answer is None else (answer, True)

    def _settled(self, epsilon: float, delta: float) -> float:
        """The first of a few points at and above epsilon where the curve is at most delta, whatever was rounded."""
        step = math.ulp(epsilon)
        while math.isfinite(epsilon) and self._value(epsilon) > delta:
            if step > epsilon + 1e-6:
                return math.inf
            epsilon, step = epsilon + step, 2 * step
        return epsilon

    def lower_epsilon(self, delta: float) -> float:
        """The bound from below on epsilon at delta."""
        slack = delta * (1 + _HOEFFDING_SHARE) - self.infinite
        if slack <= 0:
            return math.inf
        if self._at_zero <= delta:
            return 0.0
        for index in range(len(_TILTS)):
            answer = self._tail(index).epsilon_at(slack)
            if answer is not None:
                return max(answer - self._hoeffding(self._sum.step, delta), 0.0)
        return 0.0

    def _at_most_at_zero(self) -> float:
        """A bound on delta at epsilon 0 but for the infinite mass: 1 - e^-x <= |x|, whose mean the moments bound."""
        if any(n.runs is not None for n in self.nodes):
            return math.inf
        return math.hypot(self._sum.mean, self._sum.spread)

    def _hoeffding(self, step: float, delta: float) -> float:
        """How far the true loss may be below its rounded version, except with probability share * delta."""
        log_inverse = math.log(2 / (_HOEFFDING_SHARE * delta))
        return 2 * step * math.sqrt(most_steps(self.nodes, log_inverse) * log_inverse / 2)
