"""An audit of a DP-SGD loop as people write it, in NumPy: right, and with two faults that people make.

    python examples/audit_dpsgd.py [--trials 20000]

The loop is that of Opacus: Poisson batches, gradients of records clipped, Gaussian noise on their sum, divided by the
expected batch size. The claim is what an accountant says for its rate, noise and steps. The pair is made for the loop:
the other records have zero gradients at the weights where it starts, and one record has a gradient at the clipping norm
that does not shrink. The adversary sees the weights after every step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import audit
from dptoolkit.accounting import Gaussian, Repeated, Subsampled
from dptoolkit.adjacency import Adjacency

Array = NDArray[np.float64]
RATE, NOISE, STEPS, CLIP, STEP_SIZE = 0.3, 1.0, 10, 1.0, 0.1


def train(data: tuple[Array, Array], rng: np.random.Generator, clip_each: bool = True, noise: float = NOISE) -> Array:
    """All weights of DP-SGD for least squares; ``clip_each`` False clips the batch's mean gradient instead."""
    X, y = data
    w, path, size = np.zeros(X.shape[1]), [], RATE * len(X)
    for _ in range(STEPS):
        batch = rng.random(len(X)) < RATE
        gradients = X[batch] * (X[batch] @ w - y[batch])[:, None]
        if clip_each:
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            total = (gradients * np.minimum(1.0, CLIP / np.maximum(norms, 1e-12))).sum(axis=0)
        else:
            total = gradients.sum(axis=0)
            total *= min(1.0, CLIP * max(batch.sum(), 1) / max(np.linalg.norm(total), 1e-12))
        w = w - STEP_SIZE * (total + noise * CLIP * rng.standard_normal(len(w))) / size
        path.append(w)
    return np.concatenate(path)


def pair() -> audit.Pair:
    """A record far beyond the clipping norm, or a zero row in its place; all other rows are zero."""
    X, y = np.zeros((20, 2)), np.zeros(20)
    X[0, 0], y[0] = 1.0, 1000.0
    empty = np.zeros((20, 2)), np.zeros(20)
    return audit.Pair(
        (X, y), empty, Adjacency.ZERO_OUT, "one record with a clipped gradient at every step, or none", {"final": ratio}
    )


def ratio(paths: Array) -> Array:
    """The log-likelihood ratio of the two datasets, from the sum that each step reveals."""
    w = paths.reshape(len(paths), STEPS, 2)[:, :, 0]
    moves = np.diff(w, axis=1, prepend=0.0)
    sums = moves * RATE * 20 / STEP_SIZE
    z = np.clip((2 * sums * CLIP - CLIP**2) / (2 * (NOISE * CLIP) ** 2), -50, 50)
    return np.asarray(np.log(1 - RATE + RATE * np.exp(z)).sum(axis=1))


MECHANISMS: dict[str, Any] = {
    "as Opacus does it": train,
    "half the noise": partial(train, noise=NOISE / 2),
    "the mean is clipped, not each record": partial(train, clip_each=False),
}


def reports(trials: int) -> dict[str, audit.AuditReport]:
    """An audit of each loop, at a false-alarm probability of 1e-6."""
    claim = Repeated(Subsampled(Gaussian(NOISE), "poisson", RATE), STEPS)
    how: dict[str, Any] = {"trials": trials, "mode": "sequential", "alpha": 1e-6, "n_jobs": 1}
    return {
        name: audit.audit(loop, pair(), claim, source="an accountant, for its rate, noise and steps", **how)
        for name, loop in MECHANISMS.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print one report for each loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20_000)
    for name, report in reports(parser.parse_args(argv).trials).items():
        print(f"{name}\n{report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
