"""One fault of a private mechanism, and how it is looked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit.audit.probes import Probe
from dptoolkit.audit.suite import assert_private
from dptoolkit.errors import PrivacyViolation

Array = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True)
class Found:
    """Whether a fault was seen, in how many trials (0 for a probe), and what was seen."""

    caught: bool
    trials: int
    text: str


@dataclass(frozen=True)
class Broken:
    """One fault: what is wrong, on which pair it shows, what its author claims, and the same thing done right.

    Distributions show most faults; ``probe``, applied to a mechanism, those that they do not. ``arguments`` go to
    ``assert_private``.
    """

    name: str
    fault: str
    mechanism: Any
    pair: Any
    claim: Any
    correct: Any = None
    probe: Callable[[Any], Probe] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def examine(self, mechanism: Any, alpha: float = 1e-6, rng: int = 0) -> Found:
        """What the probe, or else an audit with false-alarm probability ``alpha``, says of the mechanism or twin."""
        if self.probe is not None:
            seen = self.probe(mechanism)
            return Found(not seen.passed, 0, str(seen))
        try:
            report = assert_private(mechanism, self.pair, self.claim, alpha=alpha, rng=rng, **self.arguments)
        except PrivacyViolation as violation:
            report = violation.report
        return Found(report.violated, report.stopped_at or report.trials, report.summary())
