"""``opacus.Accountant``: Opacus' interface, with the answers of ``account``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opacus.accountants import IAccountant, register_accountant

from dptoolkit._validate import nonnegative, probability, whole
from dptoolkit.accounting.events import POISSON, Composed, Event, Gaussian, Repeated, SampledGroup, Subsampled
from dptoolkit.accounting.guarantee import Guarantee, account
from dptoolkit.adjacency import Adjacency

NAME = "dptoolkit"


class Accountant(IAccountant):
    """Counts the steps of an Opacus optimizer and answers with the tightest sound bound known here.

    Every step is Gaussian noise on the clipped gradients of a Poisson sample, as Opacus draws it with
    ``poisson_sampling=True`` (its default). Several batches whose gradients are accumulated before one step are such
    samples each: a record may be in all of them, and then counts several times.

    ``history`` holds (noise multiplier, sample rate, number of steps), as in Opacus' accountants, and a fourth number
    where a step has more than one batch.

    Privacy
    -------
    Touches no data. Adjacency: one record's gradient is added or left out (zero-out). With ``poisson_sampling=False``
    the batches are not independent samples, and no guarantee follows from the sample rate.
    """

    def __init__(self) -> None:
        super().__init__()

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Counts one step on one batch."""
        self._add(noise_multiplier, sample_rate, 1)

    def _add(self, noise_multiplier: float, sample_rate: float, batches: int) -> None:
        noise = nonnegative("noise_multiplier", noise_multiplier)
        rate = probability("sample_rate", sample_rate)
        kind = (noise, rate) if batches == 1 else (noise, rate, whole("batches", batches, low=1))
        last = self.history[-1] if self.history else None
        if last is not None and (last[0], last[1], *last[3:]) == kind:
            self.history[-1] = (noise, rate, last[2] + 1, *kind[2:])
        else:
            self.history.append((noise, rate, 1, *kind[2:]))

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """The function that an optimizer calls after every step.

        Opacus multiplies the rate by the number of accumulated batches, as if no record were in two of them. Here the
        number is kept, so that a record which is in several batches counts several times.
        """

        def count(optimizer: Any) -> None:
            self._add(optimizer.noise_multiplier, sample_rate, optimizer.accumulated_iterations)

        return count

    @property
    def guarantee(self) -> Guarantee:
        """All steps so far as a guarantee: its table, its trade-off curve, its event."""
        return account(Composed(*map(_steps, self.history)), adjacency=Adjacency.ZERO_OUT)

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """The smallest epsilon known to hold at ``delta``; options of Opacus' own accountants are ignored."""
        return self.guarantee.epsilon(delta)

    def __len__(self) -> int:
        return sum(entry[2] for entry in self.history)

    @classmethod
    def mechanism(cls) -> str:
        return NAME


def _steps(entry: tuple[Any, ...]) -> Event:
    """The event of one entry of the history."""
    noise, rate, steps, *batches = entry
    one: Event = Subsampled(Gaussian(noise), POISSON, rate, Adjacency.ZERO_OUT)
    return Repeated(SampledGroup(noise, rate, batches[0]) if batches else one, steps)


register_accountant(NAME, Accountant, force=True)
