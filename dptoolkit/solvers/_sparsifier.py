"""Private Frank-Wolfe whose smallest weights are dropped (the Sparsifier of Khanna, Lu and Raff 2023, made sound).

The number of weights to keep depends on the data. The paper takes the number of non-zeros of a non-private solution,
clipped and with geometric noise. Integer noise hides integers only, so here the clipping bounds are rounded inwards
first. Two other ways spend no budget: a fixed public number, and a public threshold on the private weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, positive, real, whole
from dptoolkit.accounting import Composed, Repeated
from dptoolkit.accounting.events import Event
from dptoolkit.data import Rows
from dptoolkit.mechanisms.randomness import Generators
from dptoolkit.randomness import geometric_noise
from dptoolkit.solvers.engine.secure_vertices import CountNoise, selection_noise
from dptoolkit.solvers.engine.vertices import BallSettings, ResolvedBall, VertexRun, frank_wolfe_path
from dptoolkit.solvers.frame.fit import private_solver
from dptoolkit.solvers.frame.plan import GEOMETRIC, Plan, Release, smallest_noise
from dptoolkit.solvers.frame.run import Run, Trace, Trials, one_after_another, written_out
from dptoolkit.solvers.frame.secure import SecurePlan, SecureRelease, secure_stream
from dptoolkit.solvers.frame.settings import setting
from dptoolkit.types import Array

if TYPE_CHECKING:
    from dptoolkit.published import Published

_COUNTS = ("geometric", "fixed", "threshold")


@dataclass(frozen=True, kw_only=True)
class Sparsifier(BallSettings):
    """Private Frank-Wolfe of which only the largest weights are kept.

    Privacy
    -------
    Queries: the clipped count, an integer of sensitivity floor(beta) - ceil(alpha) under either adjacency, with
    two-sided geometric noise; and the selections of ``dp_frank_wolfe``. Event: TwoSidedGeometric(count_share * epsilon,
    span) composed with the selections. With tight calibration the count is charged by its own privacy-loss
    distribution, and what it does not use goes to the selections. Keeping the largest weights is post-processing.
    Public: n, d, all arguments.
    """

    solver: ClassVar[str] = "sparsifier"

    loss: str = setting(f"{losses.described(losses.SCALAR)}.", default="logistic")
    count: str = setting(
        'How the number of weights to keep is found: "geometric", the paper\'s private count of the non-zeros of a '
        'non-private solution; "fixed", the public ``number``; "threshold", all private weights of absolute '
        "value at least ``threshold``. The last two cost no privacy.",
        default="geometric",
    )
    count_share: float = setting("Share of epsilon for the private count.", default=0.1)
    alpha: float | None = setting("Lower bound of the count, rounded up; by default sqrt(d).", default=None)
    beta: float | None = setting("Upper bound of the count, rounded down; by default 2 sqrt(d).", default=None)
    rho: float = setting(
        "The paper's precision parameter: round(rho * count) weights are kept. It has nothing to do with zCDP.",
        default=1.0,
    )
    number: int | None = setting('Public number of weights to keep, for count="fixed".', default=None)
    threshold: float | None = setting(
        'Smallest absolute value of a weight to keep, public, for count="threshold".',
        default=None,
    )
    count_steps: int = setting(
        "Number of steps of the non-private Frank-Wolfe whose non-zeros are counted.",
        default=1000,
    )

    def resolved(self, n: int, d: int) -> ResolvedSparsifier:
        """See ``Settings``."""
        one_of("count", self.count, _COUNTS)
        values = self._checked()
        if self.count == "fixed":
            number = whole("number", self.number, low=1, repair="It is the public number of weights to keep.")
            if number > d:
                raise invalid("number", number, f"<= d={d}")
        elif self.count == "threshold":
            positive("threshold", self.threshold)
        else:
            values |= self._count_checked(d)
        return self.settled(ResolvedSparsifier, **values)

    def _count_checked(self, d: int) -> dict[str, Any]:
        repair = "It is the share of the private count; count='fixed' needs none."
        real("count_share", self.count_share, low=0.0, high=1.0, open_low=True, open_high=True, repair=repair)
        if math.isinf(self.epsilon):
            raise invalid("epsilon", self.epsilon, "finite for a private count", "Or use count='fixed'.")
        low = real("alpha", math.sqrt(d) if self.alpha is None else self.alpha, low=0.0, open_high=True)
        high = real("beta", 2 * math.sqrt(d) if self.beta is None else self.beta, low=low, open_high=True)
        if min(math.floor(high), d) <= math.ceil(low):
            bound = f"at least one integer above alpha={low:g}, and at most d={d}"
            raise invalid("beta", high, bound, "Or use count='fixed'.")
        positive("rho", self.rho)
        whole("count_steps", self.count_steps, low=1)
        return {"alpha": low, "beta": min(high, float(d))}


@dataclass(frozen=True, kw_only=True)
class ResolvedSparsifier(ResolvedBall, Sparsifier):
    """The settings of ``sparsifier`` in a plan; of alpha, beta, number and threshold it has what ``count`` needs."""

    @property
    def span(self) -> tuple[int, int]:
        """The integers between which a private count is clipped."""
        assert self.alpha is not None and self.beta is not None, 'only count="geometric" has a span'
        return math.ceil(self.alpha), math.floor(self.beta)

    @property
    def epsilons(self) -> tuple[float, float]:
        """(epsilon of the count, epsilon of the selections), as the paper splits them."""
        return self.count_share * self.epsilon, (1 - self.count_share) * self.epsilon

    def releases(self, n: int, d: int, paper: Published | None) -> tuple[Release, ...]:
        """The vertices and, for a private count, that count."""
        vertices = Release("vertex of the L1 ball", self.selection_law, self.score_range(n), 0.0, self.steps)
        counting = self._count_release() if self.count == "geometric" else None
        scale = paper.scales["score"] if paper else self._smallest(vertices, counting)
        vertices = replace(vertices, scale=scale)
        return (vertices,) if counting is None else (vertices, counting)

    def _count_release(self) -> Release:
        lower, upper = self.span
        return Release("number of weights", GEOMETRIC, upper - lower, (upper - lower) / self.epsilons[0], 1)

    def _smallest(self, vertices: Release, counting: Release | None) -> float:
        """The scale of the selections when the count, if any, is paid from the same budget."""
        unit = replace(vertices, sensitivity=1.0)

        def event(multiplier: float) -> Event:
            selections = Repeated(replace(unit, scale=multiplier).event, vertices.count)
            return selections if counting is None else Composed(selections, counting.event)

        return vertices.sensitivity * smallest_noise(event, self.epsilon, self.delta)

    def published(self, n: int, d: int) -> Published:
        """Theorem 3 where the count is the paper's; without a private count, Algorithm 1."""
        from dptoolkit import published

        model = n, self.steps, self.l1_radius, self.lipschitz
        if self.count != "geometric":
            return published.lasso_frank_wolfe(*model, self.epsilon, self.delta, self.adjacency, rounds=self.steps)
        return published.sparsifier(*model, *self.span, *self.epsilons, self.delta)

    def secured(self, plan: Plan) -> Plan:
        """See ``Resolved``; the count, an integer already, has exact noise of the same law."""
        parts: list[SecureRelease] = [selection_noise(plan, plan.releases[0])]
        parts += [CountNoise(release.scale, round(release.sensitivity)) for release in plan.releases[1:]]
        return replace(plan, secure=SecurePlan(tuple(parts)))

    def bind(self, plan: Plan, rows: Rows, y: Array, counts: Any = None) -> SparsifierRun:
        """See ``Resolved``."""
        return SparsifierRun(plan, *self.bounds.clip(*written_out(rows, y, counts)))


sparsifier = private_solver(Sparsifier)


class SparsifierRun(Run):
    """The sparsifier on bounded data; the exact count is computed once.

    Privacy
    -------
    A call releases the vertices of ``dp_frank_wolfe`` and, for a private count, that count with its noise.
    """

    def __init__(self, plan: Plan[ResolvedSparsifier], rows: Rows, y: Array) -> None:
        self.plan, self.settings, self.vertices = plan, plan.settings, VertexRun(plan, rows, y)
        self._number, self.size = self._rule(rows, y), self.vertices.size

    def one(self, rng: np.random.Generator, trace: bool) -> Trace:
        """See ``Run``; on sparse rows a fit of Frank-Wolfe is a path of its own."""
        with self._stream(rng) as stream:
            return self._one(stream, trace)

    def _stream(self, rng: Any) -> AbstractContextManager[Any]:
        """Where the noise of both releases comes from: one stream for a fit with secure noise."""
        return nullcontext(rng) if self.plan.secure is None else secure_stream(rng)

    def _one(self, rng: Any, trace: bool) -> Trace:
        w, history, vertices, _ = self.vertices(rng, trace)
        number, count = self._number(w, rng)
        releases = None if vertices is None else np.append(vertices, count)
        return Trace(self._largest(w, number), history | {"number": number}, releases)

    def at_once(self, trace: bool) -> bool:
        """See ``Run``; where Frank-Wolfe makes its fits together."""
        return self.vertices.at_once(trace)

    def fits(self, streams: Generators, trace: bool = False) -> Trials:
        """See ``Run``; the releases are the vertices, then the noisy count."""
        if not self.at_once(trace):
            return one_after_another(self, streams, trace)
        found = self.vertices.fits(streams, trace)
        numbers = [streams.of(i, partial(self._number, w)) for i, w in enumerate(found.weights)]
        weights = np.array([self._largest(w, number) for w, (number, _) in zip(found.weights, numbers, strict=True)])

        def history(i: int) -> dict[str, Any]:
            return found.history(i) | {"number": numbers[i][0]}

        if found.releases is None:
            return Trials(weights, history=history)
        counts = np.array([count for _, count in numbers], dtype=float).reshape(len(streams), -1)
        return Trials(weights, np.concatenate([found.releases, counts], axis=1), history=history)

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """See ``Run``; iterates are those of Frank-Wolfe, before weights are dropped."""
        with self._stream(rng) as stream:
            w, history = self.vertices.fit(stream, every)
            number, _ = self._number(w, stream)
        return self._largest(w, number), history | {"number": number}

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """Objective and duality gap of the bounded records; NOT private."""
        return self.vertices.diagnose(weights, history)

    def _largest(self, w: Array, number: int) -> Array:
        """The weights with all but the ``number`` largest set to zero; an intercept stays."""
        from dptoolkit.kernels.threshold import largest

        free = self.plan.d
        keep, out = largest(w[:free], number), np.zeros(len(w))
        out[keep], out[free:] = w[keep], w[free:]
        return out

    def _rule(self, rows: Rows, y: Array) -> Callable[[Array, np.random.Generator], tuple[int, list[int]]]:
        """A function (private weights, rng) -> (how many weights to keep, the noisy counts that it released)."""
        settings, free = self.settings, self.plan.d
        if settings.count == "fixed":
            return lambda w, rng: (int(settings.number or 0), [])
        if settings.count == "threshold":
            return lambda w, rng: (int(np.count_nonzero(np.abs(w[:free]) >= settings.threshold)), [])
        exact, _ = frank_wolfe_path(rows, y, settings.loss_row, settings.l1_radius, settings.count_steps)
        nonzeros = int(np.count_nonzero(exact[:free]))

        def count(w: Array, rng: np.random.Generator) -> tuple[int, list[int]]:
            c = noisy_count(nonzeros, self.plan, rng)
            return round(min(settings.rho * c, free)), [c]

        return count


def noisy_count(nonzeros: int, plan: Plan[ResolvedSparsifier], rng: Any) -> int:
    """clip(clip(count) + noise): an integer in the settings' span.

    Privacy
    -------
    One call is the plan's release of the count: the noise is drawn by that release.
    """
    lower, upper = plan.settings.span
    mechanism, clipped = plan.releases[1].mechanism, min(max(nonzeros, lower), upper)
    if plan.secure is None:
        noisy = mechanism.release(clipped, rng)
    else:
        noisy = clipped + geometric_noise(rng, mechanism.epsilon, mechanism.sensitivity)
    return min(max(noisy, lower), upper)
