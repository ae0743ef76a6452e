"""Algorithm 1 and the printed program of Appendix B, written anew, and what they do on small problems."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import datasets, solvers
from paper_checks.family import RULE, decide, sign
from paper_checks.findings import Comparison, Finding, beside_wording, readings
from paper_checks.measure import accuracy, auc
from paper_checks.seeds import Rng
from paper_checks.tables import Table

Array = NDArray[np.float64]
_RADIUS = 10.0


def laplace_scale(n: int, steps: int, epsilon: float, delta: float) -> float:
    """The printed noise on vertex scores, L = 1."""
    return _RADIUS * math.sqrt(8 * steps * math.log(1 / delta)) / (n * epsilon)


def private_lasso(
    X: Array, y: Array, steps: int, scale: float, rng: np.random.Generator, choose: str = "smallest"
) -> Array:
    """Frank-Wolfe on the L1 ball with Laplace noise on vertex scores; ``choose`` the smallest or the largest."""
    n, p = X.shape
    w = np.zeros(p)
    for t in range(1, steps + 1):
        gradient = X.T @ (1 / (1 + np.exp(-(X @ w))) - y) / n
        scores = np.concatenate([gradient, -gradient]) * _RADIUS + rng.laplace(0, scale, 2 * p)
        best = int(np.argmin(scores) if choose == "smallest" else np.argmax(scores))
        w *= 1 - 2 / (t + 2)
        w[best % p] += 2 / (t + 2) * (_RADIUS if best < p else -_RADIUS)
    return w


def ascent(rng: Rng, choose: str) -> Finding:
    """Accuracy of the private program with the printed choice, against Algorithm 1's, on the paper's generator."""
    found = {}
    for name in (choose, "smallest"):
        values = []
        for repetition in range(3):
            draw = rng("khanna", repetition=repetition)
            data = datasets.make_khanna(n=5000, rng=draw)
            X, y = np.asarray(data.X), data.y
            w = private_lasso(X[:4000], y[:4000], 200, laplace_scale(4000, 200, 1.0, 1 / 4000), draw, name)
            values.append(accuracy(X[4000:], y[4000:], w))
        found[name] = float(np.mean(values))
    rows = tuple(
        Comparison(f"{name} score chosen: accuracy", "above 0.5", value, value > 0.5) for name, value in found.items()
    )
    words = f"accuracy {found[choose]:.2f} with the {choose} score, {found['smallest']:.2f} with the smallest"
    return Finding("met" if found[choose] > 0.5 else "misprint", words, rows)


def noise_of_table_2(rng: Rng, table: Table, cases: list[list[int]], tolerance: float) -> Finding:
    """Few iterations with their own noise, and with the noise for 1000: which is near the printed SYNTHETIC row?

    A case is a number of training rows, of iterations, and of iterations that the noise is for. It must have about as
    many nonzero weights as are printed.
    """
    column = table.columns.index("SYNTHETIC")
    wanted, *printed = [table.mean[f"Private LASSO {what}"][column] for what in ("nonzeros", "accuracy", "AUC")]
    rows: list[tuple[str, Any, Any, bool]] = []
    for n, steps, charged in cases:
        name = "own noise" if charged == steps else f"noise for {charged} iterations"
        nonzeros, *means = _measured(rng, n, steps, laplace_scale(n, charged, 1.0, 1 / n), name)
        alike = abs(nonzeros - wanted) <= 1
        near = all(abs(value - target) <= tolerance for value, target in zip(means, printed, strict=True))
        label = f"{n:,} rows, {name}, {steps} iterations, {nonzeros:.1f} nonzeros: accuracy / AUC"
        rows.append((label, f"{printed[0]:g} / {printed[1]:g}", f"{means[0]:.1f} / {means[1]:.1f}", alike and near))
    words = "; ".join(f"{', '.join(row[0].split(', ')[:2])}: {row[2]}" for row in rows)
    return readings(rows, words, "not reached here")


def _measured(
    rng: Rng, n: int, steps: int, scale: float, solver: str, sets: int = 8, fits: int = 3
) -> tuple[float, float, float]:
    """Mean number of nonzeros, accuracy and AUC in percent over data sets and noise; 2,000 test rows."""
    values = []
    for number in range(sets):
        data = datasets.make_khanna(n=n + 2000, rng=rng("khanna", repetition=number))
        X, y = np.asarray(data.X), data.y
        for fit in range(fits):
            w = private_lasso(X[:n], y[:n], steps, scale, rng("khanna", solver, fits * number + fit))
            values.append((float(np.count_nonzero(w)), 100 * accuracy(X[n:], y[n:], w), 100 * auc(X[n:], y[n:], w)))
    nonzeros, accuracies, areas = np.mean(values, axis=0)
    return float(nonzeros), float(accuracies), float(areas)


def conditioning(rng: Rng, numbers: list[int], tolerance: float, correlation: float = 0.0) -> Finding:
    """Condition numbers of the Hessian on the first features of the synthetic data, at zero and at the truth.

    ``correlation`` mixes the first feature into all others, for data that are worse conditioned.
    """
    data = datasets.make_khanna(n=10_000, rng=rng("khanna"))
    X, truth = np.asarray(data.X), np.asarray(data.truth)
    X = math.sqrt(1 - correlation) * X + math.sqrt(correlation) * X[:, :1]
    rows = []
    for name, w in (("zero weights", 0 * truth), ("the true weights", truth)):
        slope = 1 / (1 + np.exp(-(X @ w)))
        for number in numbers:
            part = X[:, :number]
            spectrum = np.linalg.eigvalsh((part.T * (slope * (1 - slope))) @ part / len(X))
            value = float(spectrum[-1] / spectrum[0])
            rows.append(Comparison(f"{number} features, {name}", f"above {tolerance:g}", value, value > tolerance))
    values = [float(row.computed) for row in rows]
    words = f"condition numbers {min(values):.0f} to {max(values):.0f} on the synthetic data"
    return Finding("met" if all(row.agrees for row in rows) else "not reached here", words, tuple(rows))


def admm(rng: Rng, repetitions: int, epsilon: float, level: float) -> Finding:
    """How many of the eight true features are among the eight largest weights of our private ADMM."""
    hits = []
    for repetition in range(repetitions):
        draw = rng("khanna", repetition=repetition)
        data = datasets.make_khanna(n=10_000, rng=draw)
        fit = solvers.dp_admm(
            data.X, data.y, loss="logistic", epsilon=epsilon, delta=1e-5, row_norm=4.0, rng=int(draw.integers(2**31))
        )
        hits.append(int(np.sum(_largest(fit.coef, 8) < 8)))
    mean = float(np.mean(hits))
    # Its own noise is no reading that was run: what could not be replicated is not contradicted by another program.
    return beside_wording(
        [(f"such data allow no sparse private result: true features of 8, {repetitions} data sets", "not replicated",
          mean, mean < level)],
        "the cited program with its own noise could not be replicated",
        f"{mean:.1f} of 8 true features among the eight largest weights at ({epsilon:g}, 1e-5) with our noise",
    )  # fmt: skip


def _largest(weights: Array, count: int) -> NDArray[np.intp]:
    """The places of the largest weights; fewer than ``count`` if others are 0, which no cut keeps."""
    order = np.argsort(-np.abs(weights), kind="stable")[:count]
    return order[weights[order] != 0]


def precision_and_recall(rng: Rng, shares: list[float], repetitions: int) -> Finding:
    """Precision and recall of the kept weights when 10 rho of them are kept, for rho in ``shares``."""
    table = []
    for repetition in range(repetitions):
        draw = rng("khanna", repetition=repetition)
        data = datasets.make_khanna(n=4000, rng=draw)
        w = private_lasso(np.asarray(data.X), data.y, 150, laplace_scale(4000, 150, 1.0, 1 / 4000), draw)
        kept = [_largest(w, round(10 * share)) for share in shares]
        table.append([(np.mean(places < 8), np.sum(places < 8) / 8) for places in kept])
    values = np.array(table)
    names = "precision, largest rho against smallest", "recall, smallest rho against largest"
    tests = [sign(values[:, -1, 0], values[:, 0, 0]), sign(values[:, 0, 1], values[:, -1, 1])]
    found = decide(tests)
    rows = tuple(Comparison(name, "lower", test.effect, found.kept or yes)
                 for name, test, yes in zip(names, tests, found.lower, strict=True))  # fmt: skip
    words = "; ".join(f"rho {s:g}: {a:.2f} / {b:.2f}" for s, (a, b) in zip(shares, values.mean(axis=0), strict=True))
    return Finding("order kept" if found.kept else "tie", f"precision / recall {words} ({RULE})", rows)


def colon(rng: Rng, data_home: str | None, table: Table, tolerance: float) -> Finding:
    """Sparsifier and Private LASSO on COLON with the printed noise, both scalings, twelve splits of 49 and 13 rows."""
    data = datasets.load("colon-cancer", data_home=data_home)
    column = table.columns.index("COLON")
    rows = []
    for scaling in ("as in the file", "divided by the largest value"):
        X = np.asarray(data.X.todense()) if hasattr(data.X, "todense") else np.asarray(data.X)
        X = X / np.abs(X).max(axis=0) if scaling != "as in the file" else X
        for method, steps, epsilon, kept in (("Sparsifier", 1000, 0.95, 68), ("Private LASSO", 67, 1.0, 2000)):
            scale = laplace_scale(49, steps, epsilon, 1 / 49)
            best = max(_colon_fit(X, data.y, steps - 1, scale, kept, rng(scaling, method, k)) for k in range(12))
            printed = table.mean[f"{method} accuracy"][column]
            rows.append(
                Comparison(f"{method}, {scaling}: best of 12 splits", printed, best, best >= printed - tolerance)
            )
    words = f"at most {max(float(row.computed) for row in rows):.1f} % in any split and scaling"
    return Finding("met" if any(row.agrees for row in rows) else "not reached here", words, tuple(rows))


def _colon_fit(
    X: Array, y: Array, steps: int, scale: float, kept: int, rng: np.random.Generator, fits: int = 8
) -> float:
    """Mean accuracy in percent of several fits on one split."""
    order = rng.permutation(len(y))
    train, test = order[:49], order[49:]
    values = []
    for _ in range(fits):
        w = private_lasso(X[train], y[train], steps, scale, rng)
        w[np.argsort(-np.abs(w))[kept:]] = 0.0
        values.append(100 * accuracy(X[test], y[test], w))
    return float(np.mean(values))
