"""Figure 3 of Liang et al. 2023: federated accuracy on MNIST, ten clients of two digits each.

The paper prints neither rounds, batches, step lengths nor clipping, and the figure has no numbers. So what is checked
is the order of the methods, at settings of ours: 10 local steps, batches of a share 128/6000, gradients clipped to 1.
Curves with the noise of the paper's accountant stand beside those with the noise that the stated budget needs.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import datasets, federated
from dptoolkit.accounting import Gaussian, Repeated, Subsampled, account
from paper_checks.charts import LINE, REFERENCE, Chart, course
from paper_checks.findings import Comparison, Finding
from paper_checks.shared import Part, Shared

Array = NDArray[np.float64]
RATE, DELTA = 128 / 6000, 1e-5
OPEN, SGD, GD = "FedSGD-HT", "DP-FedSGD-HT", "DP-FedGD-HT"
TIGHT, PUBLISHED = "tight", "published"
# Weights that are kept, length of a step and suffix of the solver's name: softmax regression, and the paper's network.
MODELS: dict[str, tuple[int, float, str]] = {"softmax": (2000, 1.0, ""), "network": (10_000, 0.3, "_cnn")}


def order(
    shared: Shared,
    model: str,
    epsilon: float,
    rounds: int,
    methods: list[str],
    tolerance: float,
    margin: float = 0.0,
) -> Finding:
    """Accuracy after the last round; met if the last but one is better than the last by more than ``tolerance``.

    One seed establishes no order, so the verdict is never "order kept": a gap is met, a tie, or not reached here.
    ``margin`` is added to the first of the methods, and is 0 but for a planted fault.
    """
    if MODELS[model][2] and importlib.util.find_spec("torch") is None:
        return Finding("no data", "PyTorch is not installed: pip install 'dptoolkit[torch]'")
    curves = {m: curve(shared, model, m, epsilon, TIGHT, rounds) for m in methods}
    ends = {m: found[-1] + (margin if m == methods[0] else 0.0) for m, found in curves.items()}
    better, worse = methods[-2:]
    gap = ends[better] - ends[worse]
    rows = [Comparison(f"{m}, {_budget(m, epsilon)}", "", _course(curves[m]), True) for m in methods]
    rows += [
        Comparison(f"{m}, {_published_budget(m, epsilon, rounds)}", "",
                   _course(curve(shared, model, m, epsilon, PUBLISHED, rounds)), True)
        for m in methods if m != OPEN
    ]  # fmt: skip
    rows.append(Comparison(f"{better} minus {worse}", f"> {tolerance:g}", f"{gap:+.3f}", gap > tolerance))
    verdict = "met" if gap > tolerance else "tie" if gap >= -tolerance else "not reached here"
    words = ", ".join(f"{m} {end:.3f}" for m, end in ends.items()) + f" after {rounds} rounds"
    detail = f"{model}, accuracy on the test set, one seed; settings are ours."
    return Finding(verdict, words, tuple(rows), detail, charts=_charts(shared, model, epsilon, rounds, methods))


def _charts(shared: Shared, model: str, epsilon: float, rounds: int, methods: list[str]) -> tuple[Chart, ...]:
    """Accuracy against rounds: tight noise, and the noise of the paper's accountant."""
    charts = []
    for noise in (PUBLISHED, TIGHT):
        drawn = []
        for m in methods:
            found = curve(shared, model, m, epsilon, TIGHT if m == OPEN else noise, rounds)
            drawn.append(course(m, [[*enumerate(found, start=1)]], REFERENCE if m == OPEN else LINE))
        note = f"One run: no interval. {OPEN} has no noise."
        if noise == PUBLISHED:
            budgets = (f"{m}: {_published_budget(m, epsilon, rounds)}." for m in methods if m != OPEN)
            note = " ".join([note, *budgets])
        charts.append(Chart(f"{noise} noise", "rounds", "accuracy", tuple(drawn), note=note, shared=True))
    return tuple(charts)


def vanishes(shared: Shared, epsilon: float, rounds: int, tolerance: float, margin: float = 0.0) -> Finding:
    """Whether the two private methods are equally good where the problem is convex."""
    found = order(shared, "softmax", epsilon, rounds, [OPEN, SGD, GD], tolerance)
    gap = curve(shared, "softmax", SGD, epsilon, TIGHT, rounds)[-1]
    gap += margin - curve(shared, "softmax", GD, epsilon, TIGHT, rounds)[-1]
    words = f"with a convex model {SGD} is {gap:+.3f} better than {GD}"
    return replace(found, verdict="met" if abs(gap) <= tolerance else "not reached here", computed=words)


def curve(shared: Shared, model: str, method: str, epsilon: float, calibration: str, rounds: int) -> tuple[float, ...]:
    """The accuracy on the test set after every round, from runs that all items share."""
    budget = "no privacy" if method == OPEN else f"epsilon {epsilon:g} {calibration}"
    # Batches and noise of all methods come from one seed.
    seed = int(shared.source.of("figure 3")("mnist").integers(2**31))

    def make() -> Part:
        return {"accuracy": _accuracies(model, method, epsilon, calibration, rounds, shared.data_home, seed)}

    name = f"federated {model} {method} {budget} {rounds} rounds"
    return tuple(shared.part(name, make, data=("mnist",))["accuracy"])


def _accuracies(
    model: str, method: str, epsilon: float, calibration: str, rounds: int, data_home: str | None, seed: int
) -> list[float]:
    kept, step, suffix = MODELS[model]
    common: dict[str, Any] = {"sparsity": kept, "rounds": rounds, "local_steps": 10, "step_size": step, "rng": seed}
    if model == "softmax":
        common |= {"loss": "softmax", "classes": 10, "fit_intercept": True}
    if method != GD:
        common["rate"] = RATE
    clients, (X, y) = _clients(model, data_home), _digits(model, "test", data_home)
    if method == OPEN:
        result = getattr(federated, f"fed_sgd_ht{suffix}")(clients, **common, trace=True)
    else:
        name = f"dp_fed_{'sgd' if method == SGD else 'gd'}_ht{suffix}"
        budget = {"epsilon": epsilon, "delta": DELTA, "grad_norm": 1.0, "calibration": calibration}
        result = getattr(federated, name)(clients, **common, **budget, trace=True)
    return [_accuracy(model, places, values, X, y) for _, places, values in result.history["iterates"]]


def _accuracy(model: str, places: Any, values: Array, X: Array, y: Array) -> float:
    if model == "softmax":
        weights = np.zeros((X.shape[1] + 1) * 10)
        weights[places] = values
        table = weights.reshape(-1, 10)
        found = X @ table[:-1] + table[-1]
    else:
        from dptoolkit.federated import cnn

        weights = np.zeros(cnn.SIZE)
        weights[places] = values
        found = cnn.scores(weights, X)
    return float(np.mean(found.argmax(axis=1) == y))


@functools.cache
def _digits(model: str, split: str, data_home: str | None) -> tuple[Array, Array]:
    """Rows of norm 1 for softmax; for the network pixels with the usual public mean and deviation."""
    data = datasets.load("mnist", split, data_home=data_home)
    X = np.asarray(data.X.toarray() if hasattr(data.X, "toarray") else data.X, dtype=float)
    return ((X - 0.1307) / 0.3081 if model == "network" else X / np.linalg.norm(X, axis=1, keepdims=True)), data.y


def _clients(model: str, data_home: str | None) -> list[tuple[Array, Array]]:
    """Client i has the first half of digit i and the second half of digit i + 1."""
    X, y = _digits(model, "train", data_home)
    halves = [np.array_split(np.flatnonzero(y == digit), 2) for digit in range(10)]
    parts = [np.concatenate([halves[i][0], halves[(i + 1) % 10][1]]) for i in range(10)]
    return [(X[part], y[part]) for part in parts]


def _budget(method: str, epsilon: float) -> str:
    return "no noise" if method == OPEN else f"tight noise, epsilon {epsilon:g}"


def _published_budget(method: str, epsilon: float, rounds: int) -> str:
    """What the noise of the paper's accountant gives, by its own assumptions and by the paper's."""
    from dptoolkit import published

    rate = RATE if method == SGD else 1.0
    noise = published.tensorflow_noise(rate, 10 * rounds, epsilon, DELTA)

    def true(multiplier: float, adjacency: str) -> float:
        event = Gaussian(multiplier)
        batch = Subsampled(event, "poisson", rate, adjacency)  # type: ignore[arg-type]
        return account(Repeated(batch, 10 * rounds)).epsilon(DELTA)

    own, ours = true(noise, "zero-out"), true(noise / 2, "replace-one")
    words = f"epsilon {own:.2f} by its own assumptions, {ours:.2f} for replaced records"
    return f"published noise, claimed {epsilon:g}: {words}"


def _course(accuracies: tuple[float, ...]) -> str:
    """A few points of a curve."""
    last = len(accuracies)
    shown = sorted({max(1, last // 4), max(1, last // 2), last})
    return ", ".join(f"round {k}: {accuracies[k - 1]:.3f}" for k in shown)
