"""Sentences of Khanna, Lu and Raff 2023 on the number of iterations and on correlated features, on its generator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import datasets
from paper_checks.charts import Chart, intervals, mean_curve
from paper_checks.curves import PUBLISHED, TIGHT
from paper_checks.family import RULE, decide, wilcoxon
from paper_checks.findings import Comparison, Finding
from paper_checks.khanna_2023_lasso import paths
from paper_checks.khanna_2023_lasso.fits import error, two_stages
from paper_checks.khanna_2023_lasso.problems import Problem, Split
from paper_checks.khanna_2023_lasso.runs import EPSILON, RADIUS, cut, noise_scale, private_count, splits
from paper_checks.measure import accuracy
from paper_checks.seeds import Source

Array = NDArray[Any]
TRUE, FEATURES = 8, 100


def sweep(rng: Source, counts: list[int], most: int, repetitions: int) -> Finding:
    """Whether T = ``most`` with a cut beats every smaller T with the same cut, under three readings of the noise."""
    data = datasets.make_khanna(n=10_000, rng=rng("khanna"))
    given = Problem(np.asarray(data.X, np.float32), data.y, 8000)
    inside = splits(len(given.y), repetitions, rng("splits"))
    kept = private_count(TRUE, FEATURES, repetitions, rng("counts"))
    rows, tests, labels, drawn = [], [], [], []
    cases = {"own noise, published": (PUBLISHED, False), "own noise, tight": (TIGHT, False),
             f"noise for {most}, published": (PUBLISHED, True)}  # fmt: skip
    for name, (noise, borrowed) in cases.items():
        right = {
            steps: _cut_accuracy(
                given, inside, kept, noise, steps, most if borrowed else steps, rng(solver=f"{name} {steps}")
            )
            for steps in (*counts, most)
        }
        drawn.append(mean_curve(name, [*counts, most], [*right.values()]))
        for steps in counts:
            labels.append((name, steps, float(right[steps].mean()), float(right[most].mean())))
            tests.append(wilcoxon(right[steps], right[most]))
    found = decide(tests)
    held, beaten = dict.fromkeys(cases, True), dict.fromkeys(cases, False)
    for number, (name, steps, before, after) in enumerate(labels):
        held[name] &= found.kept or found.lower[number]
        beaten[name] |= found.higher[number]
        rows.append(Comparison(f"{name}: accuracy with T = {steps} against T = {most}, same cut", "lower",
                               f"{before:.1f} against {after:.1f}, {tests[number].effect}",
                               found.kept or found.lower[number]))  # fmt: skip
    words = "; ".join(f"{name}: {'ahead of all' if held[name] else 'behind some' if beaten[name] else 'not settled'}"
                      for name in cases)  # fmt: skip
    verdict = ("order kept" if all(held.values()) else "order reversed" if all(beaten.values())
               else "depends on reading" if any(held.values()) or any(beaten.values()) else "tie")  # fmt: skip
    chart = Chart("accuracy against T, same cut", "number of iterations T", "test accuracy in percent", tuple(drawn),
                  log_x=True, rule=(f"{most} printed", most), note=intervals(repetitions))  # fmt: skip
    words = f"T = {most} is, with {words} (Wilcoxon, {RULE})"
    return Finding(verdict, words, tuple(rows), charts=(chart,))


def _cut_accuracy(
    given: Problem, inside: Array, kept: Array, noise: str, steps: int, charged: int, draw: np.random.Generator
) -> Array:
    """Accuracies in percent on the test rows after ``steps`` iterations with the noise for ``charged``."""
    scale = noise_scale(noise, given.train, FEATURES, charged, EPSILON)
    law = paths.LAPLACE if noise == PUBLISHED else paths.GUMBEL
    path = paths.frank_wolfe(given.X, given.y, inside, RADIUS, np.full(len(inside), scale), steps - 1, draw, law)
    weights = cut(path.weights[steps - 1], kept)
    return np.array(
        [100 * accuracy(given.X[~part], given.y[~part], w) for part, w in zip(inside, weights, strict=True)]
    )


def incoherence(rng: Source, correlations: list[float], epsilon: float, repetitions: int, tolerance: float) -> Finding:
    """Whether Two stage fails at the first correlation of neighbouring features and works at the second."""
    means, hits = [], []
    for correlation in correlations:
        others = [_correlated(rng("tuning data", repetition=number), correlation) for number in range(2)]
        grid = [2.0, 8.0, 32.0, 128.0, 512.0]
        scores = [np.mean([error(data.validation, two_stages(data, TRUE, epsilon, ridge, rng("tuning", f"{ridge}", k)))
                           for k, data in enumerate(others)]) for ridge in grid]  # fmt: skip
        ridge, found = grid[int(np.argmin(scores))], []
        for number in range(repetitions):
            data = _correlated(rng("data", repetition=number), correlation)
            w = two_stages(data, TRUE, epsilon, ridge, rng("data", f"correlation {correlation}", number))
            found.append((error(data.test, w), np.count_nonzero(w[:TRUE])))
        means.append(np.array(found)[:, 0])
        hits.append(float(np.mean([count for _, count in found])))
    first, second = means
    gain = float(np.mean(first - second))
    test = wilcoxon(second, first)
    lower = decide([test]).kept and gain > tolerance
    rows = tuple(
        Comparison(f"correlation {value:g}: test error, {hit:.1f} of {TRUE} true features", "lower without",
                   float(mean.mean()), lower)
        for value, mean, hit in zip(correlations, means, hits, strict=True)
    )  # fmt: skip
    words = (f"test error {first.mean():.3f} at correlation {correlations[0]:g}, {second.mean():.3f} at "
             f"{correlations[1]:g}, {test.effect}")  # fmt: skip
    return Finding("met" if lower else "not reached here", words, rows)


def _correlated(draw: np.random.Generator, correlation: float) -> Split:
    """The paper's generator with another correlation of neighbouring features."""
    X = draw.standard_normal((12_000, FEATURES))
    for j in range(1, FEATURES):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1 - correlation**2) * X[:, j]
    X /= np.abs(X).max(axis=0)
    y = (X[:, :TRUE] @ np.array([10.0, 9, 8, 7, 6, 5, 4, 0.5]) > 0).astype(float)
    return Split(X[:8000], y[:8000], (X[8000:10_000], y[8000:10_000]), (X[10_000:], y[10_000:]), 8000, 3.0)
