"""Federated softmax regression on mnist, ten clients of two digits each: accuracy and time of every solver.

    python -m benchmarks.federated --data FOLDER           # about two minutes on a quiet core
    python -m benchmarks.federated --data FOLDER --rounds 10

Client i has half of the records of digit i and half of those of digit i + 1, so that their numbers differ. Rows are
scaled to norm 1, each on its own. The accuracy is that of the public test set, which chose none of the settings.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from dptoolkit import datasets, federated

SETTINGS: dict[str, Any] = {
    "loss": "softmax", "classes": 10, "sparsity": 2000, "local_steps": 10, "step_size": 1.0, "fit_intercept": True,
}  # fmt: skip
BUDGET: dict[str, Any] = {"grad_norm": 1.0, "delta": 1e-5}
RATE = 128 / 6000


def digits(home: str | None, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Dense rows of norm 1, and labels."""
    data = datasets.load("mnist", split, data_home=home)
    X = np.asarray(data.X.todense() if hasattr(data.X, "todense") else data.X, dtype=float)
    return X / np.linalg.norm(X, axis=1, keepdims=True), data.y


def two_digits_each(X: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ten clients; client i has the first half of digit i and the second half of digit i + 1."""
    halves = [np.array_split(np.flatnonzero(y == digit), 2) for digit in range(10)]
    parts = [np.concatenate([halves[i][0], halves[(i + 1) % 10][1]]) for i in range(10)]
    return [(X[part], y[part]) for part in parts]


def runs(rounds: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """(name, solver, arguments)."""
    batches, private = {"rate": RATE, "rounds": rounds}, []
    for epsilon in (6.0, 4.0):
        budget = BUDGET | batches | {"epsilon": epsilon}
        late, fixed = budget | {"threshold": "server"}, budget | {"sampling": "without-replacement"}
        private += [
            (f"dp_fed_sgd_ht, Poisson, epsilon {epsilon:g}", federated.dp_fed_sgd_ht, budget),
            (f"  threshold at the server, epsilon {epsilon:g}", federated.dp_fed_sgd_ht, late),
            (f"dp_fed_sgd_ht, fixed batches, epsilon {epsilon:g}", federated.dp_fed_sgd_ht, fixed),
        ]
    full = BUDGET | {"rounds": rounds, "epsilon": 4.0}
    return [
        ("fed_sgd_ht", federated.fed_sgd_ht, batches),
        *private,
        ("dp_fed_gd_ht, epsilon 4", federated.dp_fed_gd_ht, full),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FOLDER", help="folder with the real sets; default: DPTOOLKIT_DATA")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    clients, (X, y) = two_digits_each(*digits(options.data, "train")), digits(options.data, "test")
    print("records of the clients:", ", ".join(str(len(labels)) for _, labels in clients))
    print(f"{'':<42} accuracy  CPU s  wall s")
    for name, solver, arguments in runs(options.rounds):
        cpu, wall = time.process_time(), time.perf_counter()
        result = solver(clients, rng=0, **SETTINGS, **arguments)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        found = np.argmax(X @ result.coef.T + result.intercept, axis=1)
        print(f"{name:<42} {np.mean(found == y):8.3f}  {cpu:5.1f}  {wall:6.1f}", flush=True)


if __name__ == "__main__":
    main()
