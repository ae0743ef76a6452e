"""Faults of private selections."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import solvers
from dptoolkit.accounting import ExponentialMechanism, Repeated
from dptoolkit.audit import probes
from dptoolkit.audit.broken.choices import rows
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.pairs.pair import Pair
from dptoolkit.audit.probes import Probe
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.solvers.plan import Plan

Array = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True)
class Selections:
    """How often the first half of the candidates wins in ``count`` noisy maxima of scores of range 1."""

    noise: str
    epsilon: float
    count: int

    def __call__(self, scores: Array, rng: Rng) -> int:
        choice = NoisyMaximum(1 / self.epsilon, 1.0, self.noise)
        return sum(choice.select(scores, rng) < len(scores) / 2 for _ in range(self.count))

    def first_half(self) -> float:
        """P(the first two of four candidates win) at scores 1/4, 1/4, -1/4, -1/4, exactly."""
        from scipy.integrate import quad

        gap, law = 0.5 * self.epsilon, _LAWS[self.noise]
        return float(quad(lambda x: 2 * law[0](x) * law[1](x) * law[1](x + gap) ** 2, -60, 60, points=[-gap, 0],
                          limit=400, epsabs=1e-13)[0])  # fmt: skip

    def exact(self) -> Probe:
        """The exact loss of all selections together, compared with that of as many exponential mechanisms."""
        p, event = self.first_half(), Repeated(ExponentialMechanism(self.epsilon), self.count)
        return probes.exact_composition(p, 1 - p, self.count, event, delta=1e-5)


# Density and distribution function of the noise.
_LAWS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "laplace": (lambda x: 0.5 * math.exp(-abs(x)), lambda x: 0.5 * math.exp(x) if x < 0 else 1 - 0.5 * math.exp(-x)),
    "gumbel": (lambda x: math.exp(-x - math.exp(-x)), lambda x: math.exp(-math.exp(-x))),
}


def plan_of(name: str, **arguments: Any) -> Plan:
    """A plan at delta 1e-5; without the warning that its model is no better than a coin, as nobody wants the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
        return solvers.plan(name, delta=1e-5, **arguments)


def _nonzeros(outputs: Array) -> Array:
    return np.asarray((outputs != 0).sum(axis=1), dtype=float)


@dataclass(frozen=True)
class _ExactCount:
    """The sparsifier as printed: it keeps as many weights as the exact, non-private path has."""

    plan: Plan

    def __call__(self, data: tuple[Array, Array], rng: Rng) -> Array:
        X, y = data
        s: Any = self.plan.settings
        path = solvers.frank_wolfe(X, y, loss=s.loss, l1_radius=s.l1_radius, steps=s.count_steps)
        settings = replace(s, count="fixed", number=int(np.count_nonzero(path.coef)))
        return solvers.prepare(replace(self.plan, settings=settings), X, y)(rng).weights


def halves(shift: float) -> Array:
    """Two scores that lie ``shift`` on both sides of 0."""
    return shift * np.array([1.0, -1.0])


_sparsifier = plan_of("sparsifier", n=4, d=4, l1_radius=4.0, steps=25, epsilon=3.0, count_share=1 / 3,
                    feature_bound=1.0, alpha=2.0, beta=4.0, count_steps=25)  # fmt: skip
SELECTIONS = (
    Broken("Laplace selection as exponential mechanism", "Laplace noisy-max is charged epsilon^2/8, which holds for "
           "Gumbel noise: a few per cent of epsilon, too little for sampling to see.",
           Selections("laplace", 0.1, 50),
           Pair(np.repeat(halves(0.25), 2), np.repeat(halves(-0.25), 2), records=False),
           Repeated(ExponentialMechanism(0.1), 50), Selections("gumbel", 0.1, 50), probe=Selections.exact),
    Broken("permute-and-flip as bounded range", "Selection by exponential noise is charged as bounded range; it has "
           "twice that range.",
           Selections("exponential", 0.5, 10), Pair(halves(0.25), halves(-0.25), records=False),
           Repeated(ExponentialMechanism(0.5), 10), Selections("gumbel", 0.5, 10), arguments={"power_against": 1.5}),
    Broken("count without noise", "The sparsifier's printed code counts again after adding noise: the exact number of "
           "weights is published.",
           _ExactCount(_sparsifier), Pair((rows(0, 1, 2, 3), np.ones(4)), (rows(0, 1, 2, 0), np.ones(4))),
           _sparsifier.guarantee, _sparsifier, arguments={"attack": _nonzeros}),
)  # fmt: skip
