"""Short runs for Wang and Gu 2019: convergence, the oracle, the sign of the labels, steps against Frank-Wolfe."""

from __future__ import annotations

import math

import numpy as np

from dptoolkit import solvers
from paper_checks.family import RULE, decide, sign
from paper_checks.findings import Comparison, Finding
from paper_checks.measure import gaussian_regression, iterate_errors, linear_convergence
from paper_checks.seeds import Rng


def convergence(rng: Rng, step_size: float, tolerance: float) -> Finding:
    """Plain hard thresholding on five Gaussian designs, with a little more sparsity than the truth."""
    curves = []
    for repetition in range(5):
        X, y, truth = gaussian_regression(rng("normal rows", repetition=repetition), 400, 600, 5, 0.3)
        curves.append((f"data {repetition}", iterate_errors(X, y, truth, 10, 60, step_size)))
    return linear_convergence(curves, tolerance)


def oracle(rng: Rng, sparsity: int, repetitions: int) -> Finding:
    """Squared error of hard thresholding over that of least squares on the true support."""
    n, d, true = 400, 800, 8
    ratios = []
    for repetition in range(repetitions):
        X, y, truth = gaussian_regression(rng("normal rows", repetition=repetition), n, d, true, 1.0)
        support = np.flatnonzero(truth)
        least = np.linalg.lstsq(X[:, support], y, rcond=None)[0]
        best = float(np.sum((least - truth[support]) ** 2))
        fit = solvers.ight(X, y, loss="squared", sparsity=sparsity, steps=100, step_size=0.4)
        ratios.append(float(np.sum((fit.coef - truth) ** 2)) / best)
    bound = 2 * math.log(d)
    ratio = float(np.mean(ratios))
    row = Comparison(
        f"mean of {repetitions} data sets", f"between 1 and 2 log d = {bound:.1f}", ratio, 0.99 <= ratio <= bound
    )
    words = f"squared error {ratio:.2f} times that of the oracle"
    return Finding("met" if row.agrees else "not reached here", words, (row,))


def printed_labels(rng: Rng, sign: float) -> Finding:
    """Labels with P(y = 1) = 1/(1 + exp(sign <x, theta>)): does a logistic fit estimate theta, or its negative?"""
    n, d, sparsity = 4000, 40, 5
    draw = rng("uniform rows")
    X = draw.uniform(-2, 2, (n, d))
    theta = np.zeros(d)
    theta[draw.choice(d, sparsity, replace=False)] = draw.uniform(0.5, 1, sparsity) * draw.choice([-1, 1], sparsity)
    y = (draw.random(n) < 1 / (1 + np.exp(sign * (X @ theta)))).astype(float)
    fit = solvers.ight(X, y, loss="logistic", sparsity=sparsity, steps=200, step_size=2.0)
    size = np.linalg.norm(theta)
    errors = {name: float(np.linalg.norm(fit.coef - target) / size) for name, target in (("+", theta), ("-", -theta))}
    rows = tuple(
        Comparison(f"relative error against {name}theta*", wanted, errors[name], abs(errors[name] - wanted) < 0.5)
        for name, wanted in (("+", 0.0), ("-", 2.0))
    )
    words = f"relative error {errors['+']:.2f} against theta*, {errors['-']:.2f} against -theta*"
    return Finding("met" if errors["+"] < errors["-"] else "misprint", words, rows)


def steps_to_accuracy(rng: Rng, repetitions: int, ight_step: float) -> Finding:
    """Steps until the excess loss is a hundredth of that at zero: hard thresholding against Frank-Wolfe, no noise."""
    counts = []
    for repetition in range(repetitions):
        X, y, truth = gaussian_regression(rng("normal rows", repetition=repetition), 200, 300, 5, 0.1)
        first = _steps(X, y, "ight", sparsity=5, step_size=ight_step)
        second = _steps(X, y, "frank_wolfe", l1_radius=float(np.abs(truth).sum()))
        counts.append((first, second))
    medians = [int(np.median(column)) for column in zip(*counts, strict=True)]
    test = sign(*np.array(counts).T)
    kept = decide([test]).kept
    row = Comparison("steps of hard thresholding against Frank-Wolfe's", "lower", test.effect, kept)
    words = f"median {medians[0]} steps against {medians[1]}; {test.effect} ({RULE})"
    return Finding("order kept" if kept else "tie", words, (row,))


_MOST = 400


def _steps(X: np.ndarray, y: np.ndarray, solver: str, **settings: float) -> int:
    fit = getattr(solvers, solver)(X, y, loss="squared", steps=_MOST, trace=True, **settings)
    start = float(np.mean(y**2)) / 2
    for number, places, values in fit.history["iterates"]:
        if float(np.mean((X[:, places] @ values - y) ** 2)) / 2 <= 0.01 * start:
            return int(number)
    return _MOST + 1
