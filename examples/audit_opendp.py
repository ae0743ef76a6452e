"""Audits of somebody else's mechanisms: OpenDP's Laplace and Gaussian noise on a sum of bounded numbers.

    pip install 'dptoolkit[peers]'
    python examples/audit_opendp.py [--trials 20000]

An audit takes any callable (dataset, rng) -> output. OpenDP draws from the system's generator, which no seed reaches:
a trial cannot be repeated, and the report says so. What is claimed is OpenDP's own map from the distance of two
datasets to epsilon or rho, so the report names it as the source.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dptoolkit import audit

# Ten numbers between 0 and 1; in the neighbour one of them is replaced, as far as the bounds allow.
FIRST = np.array([1.0, *np.full(9, 0.5)])
SECOND = np.array([0.0, *np.full(9, 0.5)])


def noisy_sum(kind: str, scale: float) -> Any:
    """OpenDP's clamped sum of ten numbers with noise; one record replaced is a symmetric distance of 2."""
    import opendp.prelude as dp

    dp.enable_features("contrib", "idealized-numerics")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(FIRST)), dp.symmetric_distance()
    total = space >> dp.t.then_clamp((0.0, 1.0)) >> dp.t.then_sum()
    noise = dp.m.then_laplace if kind == "laplace" else dp.m.then_gaussian
    return total >> noise(scale=scale)


class Mechanism:
    """An OpenDP measurement as an audit's mechanism."""

    def __init__(self, measurement: Any) -> None:
        self.measurement = measurement

    def __call__(self, data: np.ndarray, rng: np.random.Generator) -> float:
        return float(self.measurement(data.tolist()))


def reports(trials: int) -> dict[str, audit.AuditReport]:
    """One audit for each kind of noise, against the claim of OpenDP's own map."""
    laplace, gaussian = noisy_sum("laplace", 1.0), noisy_sum("gaussian", 2.0)
    how: dict[str, Any] = {"trials": trials, "n_jobs": 1, "alpha": 1e-6}
    return {
        "Laplace": audit.audit(
            Mechanism(laplace), (FIRST, SECOND), audit.PureClaim(laplace.map(2)), source="OpenDP's privacy map", **how
        ),
        "Gaussian": audit.audit(
            Mechanism(gaussian), (FIRST, SECOND), audit.ZcdpClaim(gaussian.map(2)), source="OpenDP's privacy map", **how
        ),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print a report for each mechanism; 1 if a claim is refuted, 2 without OpenDP."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20_000)
    trials = parser.parse_args(argv).trials
    try:
        import opendp.prelude  # noqa: F401
    except ImportError as problem:
        print(f"opendp cannot be imported: {problem}. pip install 'dptoolkit[peers]'", file=sys.stderr)
        return 2
    found = reports(trials)
    for name, report in found.items():
        print(f"{name}\n{report}\n")
    return int(any(report.violated for report in found.values()))


if __name__ == "__main__":
    sys.exit(main())
