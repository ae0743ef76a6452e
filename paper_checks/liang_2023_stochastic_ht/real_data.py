"""The runs behind Tables 4 and 5, Figures 1 and 2 and the sentences on them: fits, losses and curves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dptoolkit import solvers
from paper_checks.charged import private_choice
from paper_checks.curves import PUBLISHED, Array
from paper_checks.liang_2023_stochastic_ht.problems import (
    BUDGETS,
    CHOSEN_AT,
    COMPARED,
    DELTA,
    FEW,
    GD,
    L2,
    RCV1,
    REPETITIONS,
    SCSG,
    SGD,
    SOLVERS,
    SPARSITY,
    TRIALS,
    Problem,
    Setting,
    arguments,
    grid,
    loss,
    plan,
    problem,
)
from paper_checks.shared import Part, Shared


def private(shared: Shared, name: str, method: str, noise: str) -> Part:
    """Of a private method: settings, true epsilons, held-out losses and, at the budgets of the figures, curves."""
    return shared.part(f"{name} {method} {noise}", lambda: _private(shared, name, method, noise), (name,))


def _private(shared: Shared, name: str, method: str, noise: str) -> Part:
    at = problem(name, shared.source, shared.data_home)
    chosen = {epsilon: _chosen(shared, at, method, noise, epsilon) for epsilon in sorted(set(CHOSEN_AT.values()))}
    found: Part = {}
    for epsilon in BUDGETS:
        setting = chosen[CHOSEN_AT[epsilon]]
        one = plan(method, noise, epsilon, setting, at)
        compared = epsilon in COMPARED
        seeds = _seeds(shared, at, "fits to report", REPETITIONS if compared else FEW)
        every = max(1, len_of_run(method, setting, at.n) // 40) if compared else False
        fits = solvers.fit_many(one, at.prepared, at.fitted.y, seeds=seeds, trace=every)
        found[f"{epsilon:g}"] = {
            "setting": list(setting), "true": one.guarantee.epsilon(DELTA),
            "losses": [float(loss(at.report, fit.coef)) for fit in fits],
            "curves": [curve(at, method, setting, fit) for fit in fits] if compared else [],
        }  # fmt: skip
    return found


def _chosen(shared: Shared, at: Problem, method: str, noise: str, epsilon: float) -> Setting:
    """The setting with the smallest mean loss on the rows for the choice."""
    settings = grid(method)
    plans = [plan(method, noise, epsilon, setting, at) for setting in settings]
    fits = solvers.fit_many(plans, at.prepared, at.fitted.y, seeds=_seeds(shared, at, "fits to choose", TRIALS))
    return settings[int(np.argmin([np.mean([loss(at.choice, fit.coef) for fit in own]) for own in fits]))]


def _seeds(shared: Shared, at: Problem, use: str, count: int) -> list[int]:
    return [int(shared.source(at.name, use, repetition).integers(2**32)) for repetition in range(count)]


def charged(shared: Shared, name: str) -> Part:
    """Held-out losses of DP-GD-HT with tight noise, its setting chosen privately inside the same (epsilon, delta)."""
    return shared.part(f"{name} {GD} choice charged", lambda: _charged(shared, name), (name,))


def _charged(shared: Shared, name: str) -> Part:
    at = problem(name, shared.source, shared.data_home)
    candidates = [arguments(GD, setting, at.n) for setting in grid(GD)]

    def losses(epsilon: float) -> list[float]:
        found = []
        for repetition in range(FEW):
            draw = shared.source(name, f"choice charged {epsilon:g}", repetition)
            weights = private_choice(
                SOLVERS[GD], candidates, at.fitted.X, at.fitted.y, draw, epsilon=epsilon, delta=DELTA,
                loss="logistic", sparsity=SPARSITY[name], row_norm=1.0,
            )  # fmt: skip
            found.append(float(loss(at.report, weights)))
        return found

    return {f"{epsilon:g}": losses(epsilon) for epsilon in COMPARED}


def open_fits(shared: Shared, name: str, method: str) -> Part:
    """Of SCSG-HT or SVRG-HT without privacy: the setting, held-out losses and curves."""
    return shared.part(f"{name} {method}", lambda: _open_fits(shared, name, method), (name,))


def _open_fits(shared: Shared, name: str, method: str) -> Part:
    at = problem(name, shared.source, shared.data_home)

    def fit(setting: Setting, draw: np.random.Generator, trace: bool = False) -> Any:
        return solvers.scsg_ht(at.prepared, at.fitted.y, loss="logistic", sparsity=SPARSITY[name], rng=draw,
                               trace=trace, **arguments(method, setting, at.n))  # fmt: skip

    def score(setting: Setting) -> float:
        draws = (shared.source(name, f"{method} {setting}", trial) for trial in range(TRIALS))
        return float(np.mean([loss(at.choice, fit(setting, draw).coef) for draw in draws]))

    best = min(grid(method), key=score)
    fits = [fit(best, shared.source(name, method, repetition), True) for repetition in range(REPETITIONS)]
    return {
        "setting": list(best), "losses": [float(loss(at.report, one.coef)) for one in fits],
        "curves": [curve(at, method, best, one) for one in fits],
    }  # fmt: skip


def scaled(shared: Shared, epsilon: float, factors: list[float]) -> Part:
    """DP-SCSG-HT on RCV1 with multiples of its published noise: the true epsilon and the loss of the best setting."""
    return shared.part(f"{RCV1} multiples {epsilon:g} {factors}", lambda: _scaled(shared, epsilon, factors), (RCV1,))


def _scaled(shared: Shared, epsilon: float, factors: list[float]) -> Part:
    at = problem(RCV1, shared.source, shared.data_home)
    settings, found = grid(SCSG), {}
    for factor in factors:
        plans = [plan(SCSG, PUBLISHED, epsilon, setting, at).with_noise(factor=factor) for setting in settings]
        seeds = _seeds(shared, at, f"noise times {factor:g}", TRIALS)
        fits = solvers.fit_many(plans, at.prepared, at.fitted.y, seeds=seeds)
        best = int(np.argmin([np.mean([loss(at.choice, fit.coef) for fit in own]) for own in fits]))
        found[f"{factor:g}"] = {
            "setting": list(settings[best]), "true": plans[best].guarantee.epsilon(DELTA),
            "loss": float(np.mean([loss(at.report, fit.coef) for fit in fits[best]])),
        }  # fmt: skip
    return found


# --- curves ----------------------------------------------------------------------------------------------------------


def len_of_run(method: str, setting: Setting, n: int) -> int:
    """The number of points of a full trace: steps, or snapshots."""
    given = arguments(method, setting, n)
    return int(given["steps"] if "steps" in given else given["epochs"])


def curve(at: Problem, method: str, setting: Setting, fit: Any) -> list[list[float]]:
    """Passes over the rows, thresholdings and objective along a fit: f(x) is the loss on the fitted rows + penalty."""
    given = arguments(method, setting, at.n)
    points = [[0.0, 0.0, float(np.log(2.0))]]
    for place, (steps, weights) in enumerate(_iterates(fit, at.fitted.X.shape[1]), start=1):
        if method == GD:
            passes = float(steps)
        elif method == SGD:
            passes = steps * given["batch_size"] / at.n
        else:
            passes = (place * given["snapshot_size"] + 2 * steps * given["batch_size"]) / at.n
        value = float(loss(at.fitted, weights)) + L2 / 2 * float(weights @ weights)
        points.append([passes, float(steps), value])
    return points


def _iterates(fit: Any, d: int) -> Iterator[tuple[int, Array]]:
    for steps, places, values in fit.history["iterates"]:
        weights = np.zeros(d)
        weights[places] = values
        yield int(steps), weights
