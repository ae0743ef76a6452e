"""Figure 1 of Wang and Gu 2019: relative error against epsilon on the paper's synthetic data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dptoolkit import datasets, solvers
from paper_checks.curves import PUBLISHED, TIGHT, Figure, Method, close, measure, needed_budget, order
from paper_checks.findings import Comparison, Finding
from paper_checks.rates import Array
from paper_checks.seeds import Rng

_DELTA = 0.01
CLIPPED, PLAIN = "Frank-Wolfe, clipped residuals", "Frank-Wolfe, plain loss"
RIVALS = {"Frank-Wolfe": [CLIPPED, PLAIN], "Two stage": ["Two stage"]}


def figure_1(rng: Rng, task: str, budgets: list[float], repetitions: int, size: int = 1000) -> Figure:
    """All four methods with n = d = ``size``. Frank-Wolfe's loss and radius are not stated: two readings."""
    sparsity = 10 if size == 1000 else 30
    loss = "squared" if task == "regression" else "logistic"
    # Rows have norm 2 s*; the Lipschitz constant of the logistic loss is that norm.
    norm = 2.0 * sparsity

    def make(draw: np.random.Generator) -> Any:
        return datasets.make_ight(n=size, d=size, sparsity=sparsity, task=task, rng=draw)

    def plain(data: Any, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        return np.asarray(solvers.ight(data.X, data.y, loss=loss, sparsity=sparsity, steps=60, step_size=setting).coef)

    def thresholding(data: Any, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        steps, step = setting
        bound = {"grad_norm": norm} if task == "regression" else {"row_norm": norm}
        fit = solvers.dp_ight(data.X, data.y, loss=loss, sparsity=sparsity, steps=steps, step_size=step, **bound,
                              epsilon=epsilon, delta=_DELTA, calibration=_calibration(noise), rng=draw)  # fmt: skip
        return np.asarray(fit.coef)

    def vertices(data: Any, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        # With plain residuals the Lipschitz constant needs a bound on labels, here one that few of them exceed. For
        # logistic regression the readings differ in the radius instead, which the paper does not state either.
        steps, clipped = setting
        oracle = float(np.abs(data.truth).sum())
        if task != "regression":
            model: dict[str, Any] = {"loss": "logistic", "l1_radius": oracle if clipped else float(sparsity)}
        elif clipped:
            model = {"loss": "huber", "l1_radius": oracle}
        else:
            model = {"loss": "squared", "l1_radius": oracle, "label_bound": 6.0}
        fit = solvers.dp_frank_wolfe(data.X, data.y, steps=steps, feature_bound=2.0, epsilon=epsilon, delta=_DELTA,
                                     calibration=_calibration(noise), law="laplace" if noise == PUBLISHED else None,
                                     rng=draw, **model)  # fmt: skip
        return np.asarray(fit.coef)

    def stages(data: Any, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        # The smallest ridge whose price leaves half of the budget of the second stage, times a factor.
        curvature = norm**2 * (1.0 if task == "regression" else 0.25)
        l2 = setting * curvature / (size * math.expm1(epsilon / 4))
        fit = solvers.two_stage(data.X, data.y, loss="huber" if task == "regression" else "logistic", sparsity=sparsity,
                                blocks=20, row_norm=norm, l2=l2, epsilon=epsilon, delta=_DELTA, rng=draw)  # fmt: skip
        return np.asarray(fit.coef)

    sizes = (0.3, 0.6, 1.2) if task == "regression" else (1.0, 2.0, 4.0)
    counts = (5, 10, 20, 40, 80, 160)
    methods = [
        Method("IGHT", plain, [factor * step for factor in (0.5, 1) for step in sizes], (TIGHT,)),
        Method("DP-IGHT", thresholding, [(steps, step) for steps in (5, 15) for step in sizes]),
        Method(CLIPPED, vertices, [(steps, True) for steps in counts]),
        Method(PLAIN, vertices, [(steps, False) for steps in counts]),
        Method("Two stage", stages, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], (TIGHT,)),
    ]
    return measure(methods, budgets, make, _relative_error, rng, repetitions)


def _calibration(noise: str) -> str:
    return "published" if noise == PUBLISHED else "tight"


def _relative_error(data: Any, weights: Array) -> float:
    return float(np.linalg.norm(weights - data.truth) / np.linalg.norm(data.truth))


def lowest(rng: Rng, task: str, budgets: list[float], best: str, repetitions: int, size: int = 1000) -> Finding:
    """Whether DP-IGHT has the lowest error of the private methods at every epsilon."""
    rivals = RIVALS if best == "DP-IGHT" else {"DP-IGHT": ["DP-IGHT"]}
    figure = figure_1(rng, task, budgets, repetitions, size)
    return replace(order(figure, best, rivals), charts=figure.charts(both=RIVALS["Two stage"]))


def near(
    rng: Rng, task: str, budgets: list[float], factor: float, repetitions: int, method: str = "DP-IGHT"
) -> Finding:
    """Whether DP-IGHT with the published noise is close to IGHT."""
    figure = figure_1(rng, task, budgets, repetitions)
    return replace(close(figure, method, "IGHT", factor), charts=figure.charts(both=RIVALS["Two stage"]))


def needed(rng: Rng, budgets: list[float], level: float, repetitions: int) -> Finding:
    """The smallest epsilon at which any private method has a relative error below ``level``."""
    figure = figure_1(rng, "regression", budgets, repetitions)
    found = needed_budget(figure, ["DP-IGHT", CLIPPED, PLAIN, "Two stage"], level)
    least = min(found.values())
    rows = tuple(Comparison(f"{name}: smallest epsilon below {level:g}", f"> {budgets[0]:g}", value, value > budgets[0])
                 for name, value in found.items())  # fmt: skip
    words = f"relative error below {level:g} from epsilon {least:g} on, with tight noise"
    charts = figure.charts(both=RIVALS["Two stage"])
    return Finding("met" if least > budgets[0] else "not reached here", words, rows, charts=charts)
