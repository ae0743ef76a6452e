"""Tables on RCV1 of Wang and Gu 2019 and 2020, on a stand-in: other documents, same features, scaling and task.

Both papers print test errors of the same baselines, which are therefore here. What a paper leaves open, such as radii,
the private choice of features, or which rows the baselines were given, is chosen as favourably as the text allows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dptoolkit import datasets, solvers
from dptoolkit.accounting import ExponentialMechanism, Repeated, calibrate
from paper_checks import charts
from paper_checks.charged import private_choice
from paper_checks.charts import Chart
from paper_checks.curves import PUBLISHED, TIGHT, Figure, Method, measure
from paper_checks.findings import Comparison, Finding
from paper_checks.rates import Array
from paper_checks.seeds import Rng
from paper_checks.tables import Table

SPARSITY = 500
# Of two stages: blocks of records that vote, and the curvature of the logistic loss on rows of norm 1.
_BLOCKS, _CURVATURE = 100, 0.25
_BY_VOTES = "not possible: its votes and its ridge are steps of its own, which no solver joins"
_PARTS = 5  # one of as many parts of the training rows is held out where settings are chosen


class Split(NamedTuple):
    """Training rows, of which the first ``private`` are those of DPSL-KT and the others its public rows; test rows."""

    X: Any
    y: Array
    private: int
    X_test: Any
    y_test: Array

    def error(self, weights: Array) -> float:
        """The share of wrong labels on the test rows."""
        return float(np.mean((self.X_test @ weights > 0) != (self.y_test > 0.5)))


@functools.cache
def _files(data_home: str | None) -> tuple[Any, Array, Any, Array]:
    train, test = (datasets.load("rcv1_sub", part, data_home=data_home) for part in ("train", "test"))
    return train.X.tocsr(), np.asarray(train.y), test.X.tocsr(), np.asarray(test.y)


def splits(
    data_home: str | None, halved: bool, features: int | None = None
) -> tuple[Callable[[np.random.Generator], Split], Callable[[np.random.Generator], Split]]:
    """Draws splits to report, tested on the test file, and splits to choose settings on, tested on training rows.

    With ``halved`` rows and ``features`` are drawn at random; else every split that is reported is the same.
    """
    X, y, X_test, y_test = _files(data_home)

    def drawn(draw: np.random.Generator, keep: int) -> tuple[Split, Any]:
        order = draw.permutation(len(y)) if halved or keep < len(y) else np.arange(len(y))
        columns = slice(None) if features is None else np.sort(draw.choice(X.shape[1], features, replace=False))
        rows, rest = order[:keep], order[keep:]
        kept = X[rows][:, columns]
        private = keep // 2 if halved else keep
        return Split(kept, y[rows], private, X[rest][:, columns], y[rest]), columns

    def reported(draw: np.random.Generator) -> Split:
        split, columns = drawn(draw, len(y))
        return split._replace(X_test=X_test[:, columns], y_test=y_test)

    def held_out(draw: np.random.Generator) -> Split:
        return drawn(draw, len(y) - len(y) // _PARTS)[0]

    return reported, held_out


# --- the methods of both papers --------------------------------------------------------------------------------------


def plain() -> Method:
    """IGHT without noise, on all training rows."""

    def fit(data: Split, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        found = solvers.ight(data.X, data.y, loss="logistic", sparsity=SPARSITY, steps=60, step_size=setting)
        return np.asarray(found.coef)

    return Method("IGHT", fit, [64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0], (TIGHT,), private=False)


def hard_thresholding(name: str, delta: float, half: bool = False) -> Method:
    """DP-IGHT with the noise of its Corollary 5.8, or tight noise; on all training rows or on the private half."""

    def fit(data: Split, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        rows = data.private if half else len(data.y)
        steps, step = setting
        found = solvers.dp_ight(
            data.X[:rows], data.y[:rows], loss="logistic", sparsity=SPARSITY, steps=steps, step_size=step, row_norm=1.0,
            epsilon=epsilon, delta=delta, calibration=_calibration(noise), rng=draw,
        )  # fmt: skip
        return np.asarray(found.coef)

    grid = [(steps, step) for steps in (5, 15, 40) for step in (256.0, 1024.0)]

    def chosen(data: Split, epsilon: float, draw: np.random.Generator) -> Array:
        rows = data.private if half else len(data.y)
        candidates = [{"steps": steps, "step_size": step} for steps, step in grid]
        return private_choice("dp_ight", candidates, data.X[:rows], data.y[:rows], draw, epsilon=epsilon, delta=delta,
                              loss="logistic", sparsity=SPARSITY, row_norm=1.0)  # fmt: skip

    return Method(name, fit, grid, charged=chosen)


def vertices(delta: float) -> Method:
    """Frank-Wolfe with the Laplace noise of its paper, or tight noise. Its radius is not stated."""

    def fit(data: Split, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        steps, radius = setting
        found = solvers.dp_frank_wolfe(
            data.X, data.y, loss="logistic", l1_radius=radius, steps=steps, feature_bound=1.0, epsilon=epsilon,
            delta=delta, calibration=_calibration(noise), law="laplace" if noise == PUBLISHED else None, rng=draw,
        )  # fmt: skip
        return np.asarray(found.coef)

    grid = [(steps, radius) for steps in (20, 60, 250) for radius in (30.0, 100.0)]

    def chosen(data: Split, epsilon: float, draw: np.random.Generator) -> Array:
        candidates = [{"steps": steps, "l1_radius": radius} for steps, radius in grid]
        return private_choice("dp_frank_wolfe", candidates, data.X, data.y, draw, epsilon=epsilon, delta=delta,
                              loss="logistic", feature_bound=1.0)  # fmt: skip

    return Method("Frank-Wolfe", fit, grid, charged=chosen)


def two_stages(delta: float) -> Method:
    """A private choice of features, then objective perturbation on them, each with half of the budget.

    Neither paper says how features were chosen. Here every block of records votes for those with the largest mean
    gradient at zero. Fewer than ``SPARSITY`` of them may be kept, which helps.
    """

    def fit(data: Split, epsilon: float, noise: str, setting: Any, draw: np.random.Generator) -> Array:
        kept, factor = setting
        places = _chosen(data, kept, epsilon / 2, delta / 2, draw)
        # The least ridge at which any noise gives the second stage its share, times a factor.
        l2 = factor * _CURVATURE / (len(data.y) * math.expm1(epsilon / 4))
        found = solvers.objective_perturbation(
            data.X[:, places], data.y, loss="logistic", row_norm=1.0, l2=l2, epsilon=epsilon / 2, delta=delta / 2,
            rng=draw,
        )  # fmt: skip
        weights = np.zeros(data.X.shape[1])
        weights[places] = found.coef
        return weights

    return Method(
        "Two stage",
        fit,
        [(kept, factor) for kept in (20, 100, SPARSITY) for factor in (2.0, 8.0)],
        (TIGHT,),
        charged=_BY_VOTES,
    )


def _chosen(data: Split, kept: int, epsilon: float, delta: float, draw: np.random.Generator) -> Any:
    """The features with most votes, by Gumbel noise: one record changes one block's votes, a range of 2."""
    votes = np.zeros(data.X.shape[1])
    for block in range(_BLOCKS):
        gradient = np.abs(data.X[block::_BLOCKS].T @ (data.y[block::_BLOCKS] - 0.5))
        votes[np.argpartition(-gradient, kept)[:kept]] += 1
    scale = _selection_scale(kept, epsilon, delta)
    return np.argpartition(-(votes + scale * draw.gumbel(size=len(votes))), kept)[:kept]


@functools.cache
def _selection_scale(kept: int, epsilon: float, delta: float) -> float:
    return calibrate(lambda scale: Repeated(ExponentialMechanism(2.0 / scale), kept), epsilon, delta)


def _calibration(noise: str) -> str:
    return "published" if noise == PUBLISHED else "tight"


# --- the tables ------------------------------------------------------------------------------------------------------


def run(
    rng: Rng, methods: Sequence[Method], budgets: Sequence[float], data: Any, repetitions: int, redrawn: bool
) -> tuple[Figure, float]:
    """The private methods at every epsilon, and the mean error of IGHT, which has none."""
    reported, held_out = data

    def error(split: Split, weights: Array) -> float:
        return split.error(weights)

    figure = measure(methods, budgets, reported, error, rng, repetitions, tuning=1, make_tuning=held_out)
    sets = repetitions if redrawn else 1
    alone = measure([plain()], budgets[:1], reported, error, rng, sets, tuning=1, make_tuning=held_out)
    return figure, alone.means(TIGHT, "IGHT")[0]


def cells(
    table: Table, figure: Figure, baseline: float, curves: Mapping[str, Sequence[str]], factor: float,
    true: Callable[[float], float],
) -> Finding:  # fmt: skip
    """Every printed cell beside ours: within ``factor`` of the printed multiple of IGHT's error, or lower.

    ``curves`` maps a row of the table to the curves that are readings of it. A cell is reached if one reading reaches
    it with its published noise, or with tight noise where none is published. ``true`` is the epsilon that DP-IGHT's
    noise really gives.
    """
    rows = [Comparison("IGHT, no noise", table.mean["IGHT"][0], baseline, True)]
    reached = dict.fromkeys(curves, 0)
    for name, readings in curves.items():
        for place, (epsilon, printed) in enumerate(zip(figure.budgets, table.mean[name], strict=True)):
            limit = factor * printed / table.mean["IGHT"][place]
            best = False
            for curve in readings:
                for noise in (noise for noise in (PUBLISHED, TIGHT) if (noise, curve) in figure.errors):
                    own = figure.means(noise, curve)[place]
                    agrees = own / baseline <= limit
                    given = f" (truly {true(epsilon):.1f})" if noise == PUBLISHED and name == "DP-IGHT" else ""
                    rows.append(Comparison(f"{curve}, {noise}, epsilon {epsilon:g}{given}", printed, own, agrees))
                    first = noise == PUBLISHED or (PUBLISHED, curve) not in figure.errors
                    best = best or (agrees and first)
            reached[name] += best
    total = len(figure.budgets)
    words = ", ".join(f"{name} in {count} of {total}" for name, count in reached.items())
    every = all(count == total for count in reached.values())
    return Finding("met" if every else "not reached here", f"cells reached: {words}", tuple(rows))


def pictures(table: Table, figure: Figure, baseline: float) -> tuple[Chart, ...]:
    """Our errors against epsilon, and the printed cells; IGHT is the line to compare with."""
    errors = {**figure.errors, (TIGHT, "IGHT"): np.full((1, len(figure.budgets)), baseline)}
    ours = Figure(figure.budgets, errors, figure.chosen).charts("test error", both=["Two stage"])
    return charts.alike([*ours, charts.printed(table, table.mean, figure.budgets, "test error")])
