"""What a guarantee says about groups: k records that change together, such as all records of one person.

Datasets that differ in k records are joined by a chain of k neighbours. Two bounds follow, and the smaller one holds.

Any mechanism: if delta(e) is its profile, k steps of e each give k e and

    delta_k = (1 + e^e + ... + e^((k-1) e)) delta(e).

Noise for a bounded change: given all earlier outputs, a query moves along the chain by at most k times its sensitivity
and the scores of a selection by at most k times their range, so k records are one record of a mechanism with k times
less noise. That is so for additive noise and for selections, and for a number of rounds that is independent of the
data. It is not so for subsampling, where a group may be sampled in part. There Gaussian noise on Poisson samples has an
event of its own under zero-out, ``SampledGroup``, for records that all contribute or are all left out; the proof is in
``sampling``. Other samplings have the chain alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dptoolkit._validate import delta_value, nonnegative, whole
from dptoolkit.accounting import tradeoff as guesses
from dptoolkit.accounting._numeric import part_down, sum_up
from dptoolkit.accounting.events import POISSON, Composed, Event, RandomRounds, Repeated, SampledGroup, Subsampled
from dptoolkit.accounting.rules import inverse, rules_of
from dptoolkit.accounting.structure import all_gaussian, total_mu
from dptoolkit.adjacency import Adjacency
from dptoolkit.errors import InvalidValue, UnsupportedEvent

if TYPE_CHECKING:
    from dptoolkit.accounting.guarantee import Guarantee

# How many steps are tried for a delta, how many lower bounds for an epsilon, and how narrowly it is enclosed.
_PARTS, _ROUNDS, _NARROW = 8, 200, 1e-6
# A logarithm of up to a few hundred has an error of about 1e-13, so its exponential has a relative error of that size.
# This factor is larger, so that the computed sum is never below the true one.
_ROUNDING = 1 + 1e-12
# A smaller delta is replaced by this one: it may have been rounded to 0, and times a large factor it would count.
_LEAST_DELTA = 1e-300
# Sizes are whole numbers, but the accountants compute with floats, also with the square of a size.
_LARGEST_SIZE = 10**100


@dataclass(frozen=True, repr=False)
class GroupGuarantee:
    """The guarantee for any ``size`` records that change together.

    Privacy
    -------
    Adjacency: datasets that differ in at most ``size`` records, each changed as the adjacency of ``guarantee`` says.
    For Gaussian noise on Poisson samples under zero-out: the records of the group contribute in one of the two, and
    none of them in the other.
    """

    guarantee: Guarantee
    size: int

    def __post_init__(self) -> None:
        if whole("size of the group", self.size, low=1) > _LARGEST_SIZE:
            raise InvalidValue(f"size of the group: must be at most {_LARGEST_SIZE:.0e}. Check what it counts.")

    @property
    def event(self) -> Event | None:
        """The event whose guarantee for one record is the group's, with less noise mostly; None if there is none."""
        return self.guarantee.event if self.size == 1 else of_group(self.guarantee.event, self.size)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at ``epsilon``."""
        epsilon = nonnegative("epsilon", epsilon)
        if self.size == 1:
            return self.guarantee.delta(epsilon)
        return min(1.0, self._along_the_chain(epsilon), self._of_the_event(epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon known to hold at ``delta``, from above."""
        delta = delta_value(delta)
        if self.size == 1:
            return self.guarantee.epsilon(delta)
        return min(self._epsilon_of_the_event(delta), self._chain_epsilon(delta))

    @property
    def forced_method(self) -> str | None:
        """The method that the guarantee was asked for; None if all are compared."""
        return self.guarantee.forced_method

    def tradeoff(self, alpha: Any) -> Any:
        """The rate at which every test at false-alarm rate ``alpha`` misses that the group was used, at least.

        Parameters
        ----------
        alpha : float or array of float
            False-alarm rates.

        Returns
        -------
        float or array of float
            The smallest missed-detection rates, rounded down.
        """
        return guesses.tradeoff(self, alpha)

    @property
    def advantage(self) -> float:
        """The most by which a test's detection rate exceeds its false-alarm rate."""
        return guesses.advantage(self)

    def bayes_success(self, prior: float = 0.5) -> float:
        """The largest probability of a right guess whether the group was used, which is ``prior`` beforehand.

        Parameters
        ----------
        prior : float, default 0.5
            The probability, beforehand, that it was used.
        """
        return guesses.bayes_success(self, prior)

    def _other(self, event: Event) -> Guarantee:
        return replace(self.guarantee, event=event, notes=(), claimed=None)

    def _of_the_event(self, epsilon: float) -> float:
        event = self.event
        try:
            return 1.0 if event is None else self._other(event).delta(epsilon)
        except UnsupportedEvent:
            return 1.0

    def _epsilon_of_the_event(self, delta: float) -> float:
        event = self.event
        try:
            return math.inf if event is None else self._other(event).epsilon(delta)
        except UnsupportedEvent:
            return math.inf

    def _along_the_chain(self, epsilon: float) -> float:
        """The smallest delta by the chain, over steps of at most epsilon/k: shorter steps may have a smaller sum."""
        longest = part_down(epsilon, self.size)
        return min(self._sum(longest * part / _PARTS) for part in range(1, _PARTS + 1))

    def _sum(self, step: float) -> float:
        """(1 + e^step + ... + e^((k-1) step)) delta(step), in logarithms, as it may overflow."""
        single = self._single(step)
        if single == 0:
            return 0.0
        return min(1.0, _ROUNDING * math.exp(min(self._log_sum(step) + math.log(single), 0.0)))

    def _log_sum(self, step: float) -> float:
        """log(1 + e^step + ... + e^((k-1) step))."""
        total = self.size * step
        if step == 0:
            return math.log(self.size)
        return total - step + math.log(-math.expm1(-total)) - math.log(-math.expm1(-step))

    def _single(self, step: float) -> float:
        """delta of one record, which is 0 for pure steps only: others have a delta, even if no float is as small."""
        delta = self.guarantee.delta(step)
        return delta if delta >= _LEAST_DELTA or self.guarantee.epsilon(0.0) <= step else _LEAST_DELTA

    def _chain_epsilon(self, delta: float) -> float:
        """k times the smallest step whose sum is at most ``delta``, from above.

        A step that keeps delta is at least the epsilon of one record at delta / (1 + e^low + ...), for every low that
        is below it. So the lower bounds that follow from each other never pass the smallest such step, and the first
        one that has none above it says that there is none.
        """
        if delta == 0:
            return sum_up([(self.size, self.guarantee.epsilon(0.0))])
        share, low, gap = delta / self.size, 0.0, 0.0
        for _ in range(_ROUNDS):
            before, low = low, self._step(share)
            if math.isinf(low):
                return math.inf
            if self._sum(low) <= delta:
                return sum_up([(self.size, low)])
            # The next lower bounds approach the answer ever more slowly: a point ahead of them may be above it.
            gap = max(2 * (low - before), _NARROW * low)
            if before > 0 and self._sum(low + gap) <= delta:
                return sum_up([(self.size, self._between(low, low + gap, delta))])
            share = delta * math.exp(-self._log_sum(low))
        return math.inf

    def _between(self, low: float, high: float, delta: float) -> float:
        while high - low > _NARROW * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self._sum(middle) <= delta else (middle, high)
        return high

    def _step(self, delta: float) -> float:
        """The epsilon at ``delta`` or, just before it becomes infinite, at the smallest delta that has one."""
        if delta < _LEAST_DELTA:
            return self.guarantee.epsilon(0.0)
        if self.guarantee.epsilon(delta) < math.inf or self.guarantee.epsilon(2 * delta) == math.inf:
            return self.guarantee.epsilon(delta)
        low, high = delta, 2 * delta
        while high - low > 1e-12 * high:
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.guarantee.epsilon(middle) < math.inf else (middle, high)
        return self.guarantee.epsilon(high)

    def __repr__(self) -> str:
        return f"<GroupGuarantee for {self.size:,} records that change together, of {self.guarantee!r}>"

    def __str__(self) -> str:
        return f"the guarantee for {self.size:,} records that change together"


def of_group(event: Event, size: int) -> Event | None:
    """The event in which one record stands for ``size`` that change together; None where there is none."""
    if isinstance(event, Composed):
        parts = [of_group(part, size) for part in event.events]
        return None if None in parts else Composed(*(part for part in parts if part is not None))
    if isinstance(event, (Repeated, RandomRounds)):
        group = of_group(event.event, size)
        return None if group is None else replace(event, event=group)
    if isinstance(event, Subsampled):
        poisson = event.scheme == POISSON and event.adjacency is Adjacency.ZERO_OUT
        if not (poisson and all_gaussian(event.event)):
            return None
        return SampledGroup(inverse(total_mu(event.event)), event.rate, size)
    of = rules_of(event).group
    return None if of is None else of(event, size)
