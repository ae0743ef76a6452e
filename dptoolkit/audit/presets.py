"""Presets for audits: for every private solver a small plan for which its worst pair shows much of the guarantee.

The settings of a preset are chosen for the pair, so they stand beside it in the pair's module.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dptoolkit import solvers
from dptoolkit._validate import invalid, one_of
from dptoolkit.accounting import gaussian
from dptoolkit.audit import pairs
from dptoolkit.audit.claims import Claim, GaussianClaim, ReleaseClaim, as_claim
from dptoolkit.audit.pair import Pair
from dptoolkit.solvers.frame.plan import UNBOUNDED, Plan
from dptoolkit.solvers.frame.settings import PUBLISHED, TIGHT
from dptoolkit.solvers.registry import SOLVERS


class _Presets(Mapping[str, Mapping[str, Any]]):
    """The settings of every solver's preset, n and d included; each is read from the module of the solver's pair.

    The caller gives epsilon, delta and calibration.
    """

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        own: Mapping[str, Any] = _pair_module(name).PRESETS[name]
        return own

    def __iter__(self) -> Iterator[str]:
        return iter(SOLVERS)

    def __len__(self) -> int:
        return len(SOLVERS)


PRESETS: Mapping[str, Mapping[str, Any]] = _Presets()


def _pair_module(name: str) -> Any:
    return importlib.import_module(SOLVERS[name].pair)


def plan(name: str, epsilon: float, delta: float, *, published: bool = False) -> Plan:
    """The plan of a solver's preset."""
    one_of("solver", name, tuple(SOLVERS))
    settings = PRESETS[name]
    if published:
        settings = getattr(_pair_module(name), "PUBLISHED_PRESETS", {}).get(name, settings)
    calibration = PUBLISHED if published else TIGHT
    return solvers.plan(name, epsilon=epsilon, delta=delta, calibration=calibration, **settings)


def pair(preset: Plan) -> Pair:
    """The worst pair we know for a plan."""
    worst: Pair = getattr(pairs, preset.solver)(preset)
    return worst


def claim(preset: Plan) -> Claim:
    """The claim of a plan: its guarantee or, with published noise, what the paper claims for that noise.

    A paper claims one point (epsilon, delta). As the mechanism is known, the claim is tested as a whole profile: that
    of the same mechanism with the noise that (epsilon, delta) needs, the member of its family with that epsilon.
    """
    own = as_claim(preset.guarantee)
    if preset.guarantee.claimed is None:
        return own
    assert isinstance(own, ReleaseClaim)
    epsilon, delta = preset.guarantee.claimed.epsilon, preset.guarantee.claimed.delta
    if preset.releases[0].law == UNBOUNDED:
        # One Gaussian release that guarantees nothing: its family is that of Gaussian mechanisms.
        return GaussianClaim(gaussian.mu(epsilon, delta))
    return member(own, epsilon, delta)


def member(own: ReleaseClaim, epsilon: float, delta: float) -> ReleaseClaim:
    """The member of a claim's family with this epsilon at ``delta``, from the side of less privacy."""
    low, high = 0.0, 1.0
    while own.weakened(high).epsilon(delta) < epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise invalid("epsilon", epsilon, "reached by the family of the claim")
    while high - low > 1e-4 * high:
        middle = math.sqrt(low * high) if low > 0 else 0.5 * high
        low, high = (middle, high) if own.weakened(middle).epsilon(delta) < epsilon else (low, middle)
    return own.weakened(high)
