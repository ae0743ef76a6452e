"""One fault of a private mechanism, and the test that finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dptoolkit.audit.probes import Probe
from dptoolkit.audit.suite import assert_private
from dptoolkit.errors import PrivacyViolation

Rng = np.random.Generator


@dataclass(frozen=True)
class Finding:
    """Whether a fault was caught, after how many trials (0 for a probe), and the finding in words."""

    caught: bool
    trials: int
    text: str


@dataclass(frozen=True)
class Broken:
    """One fault: what is wrong, the pair on which it shows, the claim of its author, and the correct mechanism.

    Most faults show in the distribution of outputs, which an audit tests; ``probe``, applied to a mechanism, is for
    those that do not. ``arguments`` go to ``assert_private``.
    """

    name: str
    fault: str
    mechanism: Any
    pair: Any
    claim: Any
    correct: Any = None
    probe: Callable[[Any], Probe] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def examine(self, mechanism: Any, alpha: float = 1e-6, rng: int = 0) -> Finding:
        """Test ``mechanism`` (the broken one or its correct twin) by the probe, or else by an audit at ``alpha``."""
        if self.probe is not None:
            answer = self.probe(mechanism)
            return Finding(not answer.passed, 0, str(answer))
        try:
            report = assert_private(mechanism, self.pair, self.claim, alpha=alpha, rng=rng, **self.arguments)
        except PrivacyViolation as violation:
            report = violation.report
        return Finding(report.violated, report.stopped_at or report.trials, report.summary())
