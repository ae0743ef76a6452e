"""A short run for Liang et al. 2023: the noise floor of Theorem 4.2 on a quadratic."""

from __future__ import annotations

import math

import numpy as np

from paper_checks.findings import Finding, upper_bound
from paper_checks.seeds import Rng


def noise_floor(rng: Rng, k: int, dimensions: list[int], constant: float) -> Finding:
    """E|x_t - x*|^2 / (k sigma^2) of noisy hard thresholding at step 1/6, kappa = 1, k* = 1, against eq. (3)."""
    beta = 2 / math.sqrt(k - 1)
    theta = (1 + beta) * (1 - 1 / 12)
    bound = constant * (1 + beta) / (6 * (1 - theta))
    rows = [(f"d {d:,}, k {k:,}", bound, _floor(rng("quadratic", repetition=d), d, k)) for d in dimensions]
    slope = (rows[-1][2] - rows[0][2]) / math.log(dimensions[-1] / dimensions[0])
    return upper_bound(
        rows, f"The floor grows by {slope:.3f} k sigma^2 per unit of log d; the bound does not contain d."
    )


def _floor(rng: np.random.Generator, d: int, k: int, steps: int = 100, burn: int = 60) -> float:
    x = np.zeros(d)
    truth = np.zeros(d)
    truth[0] = 50.0
    total = 0.0
    for step in range(steps):
        x = x - (x - truth + rng.standard_normal(d)) / 6
        cut = np.partition(np.abs(x), d - k)[d - k]
        x[np.abs(x) < cut] = 0.0
        total += float(np.sum((x - truth) ** 2)) if step >= burn else 0.0
    return total / (steps - burn) / k
