"""Audits of somebody else's mechanisms: diffprivlib's Laplace, Gaussian and LogisticRegression.

    pip install 'dptoolkit[peers]'                    # diffprivlib 0.6.6 takes scikit-learn below 1.7
    python examples/audit_diffprivlib.py              # about four minutes on 2 cores

An audit takes any callable (dataset, rng) -> output. diffprivlib draws from a seed of its own, which is drawn here from
the audit's Generator: a fixed seed would be refused.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from dptoolkit import audit
from dptoolkit.accounting import gaussian

EPSILON, DELTA = 1.0, 1e-5


def seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def laplace(value: float, rng: np.random.Generator) -> float:
    from diffprivlib.mechanisms import Laplace

    return Laplace(epsilon=EPSILON, sensitivity=1.0, random_state=seed(rng)).randomise(value)


def gaussian_noise(value: float, rng: np.random.Generator) -> float:
    from diffprivlib.mechanisms import GaussianAnalytic

    return GaussianAnalytic(epsilon=EPSILON, delta=DELTA, sensitivity=1.0, random_state=seed(rng)).randomise(value)


def logistic_regression(data: Any, rng: np.random.Generator) -> Any:
    from diffprivlib.models import LogisticRegression

    X, y = data
    model = LogisticRegression(epsilon=EPSILON, data_norm=1.0, fit_intercept=False, random_state=seed(rng))
    return model.fit(X, y).coef_


def flipped_label() -> tuple[Any, Any]:
    """Four records at the norm bound; one label differs."""
    X = np.array([[1.0], [1.0], [1.0], [1.0]])
    return (X, np.array([1, 1, 0, 0])), (X, np.array([0, 1, 0, 0]))


def main() -> int:
    """Print a report a mechanism; 1 if a claim is refuted."""
    try:
        import diffprivlib  # noqa: F401
    except ImportError as problem:
        print(f"diffprivlib cannot be imported: {problem}. pip install 'dptoolkit[peers]'", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    how: dict[str, Any] = {"source": "diffprivlib's documentation"}
    mu = gaussian.mu(EPSILON, DELTA)
    reports = {
        "Laplace": audit.audit(laplace, (1.0, 0.0), audit.PureClaim(EPSILON), trials=100_000, **how),
        "GaussianAnalytic": audit.audit(gaussian_noise, (1.0, 0.0), audit.GaussianClaim(mu), trials=100_000, **how),
        "LogisticRegression": audit.audit(
            logistic_regression, flipped_label(), audit.PureClaim(EPSILON), trials=6_000, **how
        ),
    }
    for name, report in reports.items():
        print(f"{name}\n{report}\n")
    return int(any(report.violated for report in reports.values()))


if __name__ == "__main__":
    sys.exit(main())
