"""Worst pairs for gradient hard thresholding: the kept coordinate or opposite rows, whichever shows more."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit.accounting import Gaussian
from dptoolkit.audit import layout
from dptoolkit.audit.pair import Counted, Pair, Score
from dptoolkit.audit.theory import kept, opposite
from dptoolkit.audit.theory.batched import batched
from dptoolkit.audit.theory.likelihood import BatchRatio, GradientRatio, IterateRatio, Projection, gradients
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# The settings of the audit's presets.
_CLIPPED: dict[str, Any] = {"loss": "squared", "grad_norm": 1.0, "step_size": 1.0}
PRESETS: dict[str, dict[str, Any]] = {
    "dp_ight": {"n": 200, "d": 20, "sparsity": 5, "steps": 20, **_CLIPPED},
    "dp_sgd_ht": {"n": 200, "d": 4, "sparsity": 2, "steps": 10, "batch_size": 160, **_CLIPPED},
}


def dp_ight(plan: Plan) -> Pair:
    """The kept coordinate for ``dp_ight``, or opposite rows where the final model shows more of them.

    Scores: for "final" the direction in which the two datasets move the weights; for "gradients", "step" and "iterates"
    the exact likelihood ratio. With clipped gradients of unbounded labels the pair attains the guarantee; elsewhere
    ``reach`` is estimated from runs of the solver. Plans of ``dp_dual_averaging`` are taken too.
    """
    kept.expect_solver(plan, "dp_ight", "dp_dual_averaging", "dp_fed_gd_ht")
    records = kept.records_of(plan, 1.0)
    pushing = kept.number_pushing(plan, records)
    first, second = kept.pair_of(plan, records, pushing)
    text = f"kept coordinate: one record of {plan.n}, {pushing} push the same coordinate"
    if kept.is_saturated(plan) or plan.noise == 0:
        pair = _with_scores(plan, first, second, text, -kept.direction(plan, records))
        return _replaced(pair, _saturated_reach(plan, pushing))
    found = opposite.measure(plan, first, second)
    if opposite.applies(plan):
        design = opposite.best_design(plan)
        others = opposite.datasets(plan, design)
        measured = opposite.measure(plan, *others)
        if measured.mu > found.mu:
            (first, second), found = others, measured
            text = f"opposite rows: one record of {plan.n} at {design.angle:g} degrees to the way of the others"
    pair = _with_scores(plan, first, second, text, found.direction)
    return _replaced(pair, _measured_reach(plan, pair, found.mu))


def _with_scores(plan: Plan, first: Counted, second: Counted, text: str, direction: Array) -> Pair:
    both = [gradients(plan, data.X, data.y, data.counts) for data in (first, second)]
    every = GradientRatio(*both)
    scores: dict[str, Score] = {"final": Projection(direction), "gradients": every, "releases": every, "step": every}
    return Pair(first, second, plan.adjacency, text, scores | {"iterates": IterateRatio(*both)})


def _replaced(pair: Pair, reach: dict[str, float]) -> Pair:
    return Pair(pair.first, pair.second, pair.adjacency, pair.description, pair.scores, reach)


def _saturated_reach(plan: Plan, pushing: int) -> dict[str, float]:
    if plan.noise == 0:
        return {}
    push = kept.gradient_bound(plan) * pushing / plan.n
    stays = kept.keeps_all(plan) or push >= kept.LEAD * plan.noise
    return dict.fromkeys(("gradients", "releases", *(("iterates", "final") if stays else ())), 1.0)


def _measured_reach(plan: Plan, pair: Pair, final: float) -> dict[str, float]:
    """The reach by adversary: noisy gradients are Gaussian, so mu^2 is the expected sum of (difference / noise)^2.

    The final weights are taken for Gaussian too: the mu of their mean difference is estimated, within about 2 %.
    """
    every, on_support = _pilot(plan, pair)
    mu = {"gradients": every, "releases": every, "iterates": on_support, "final": min(final, every)}
    return {name: kept.share(Gaussian(1 / value), plan) if value > 0 else 0.0 for name, value in mu.items()}


def _pilot(plan: Plan, pair: Pair) -> tuple[float, float]:
    """mu of all noisy gradients, and of their coordinates that stay in the model, from a few runs of the solver."""
    path = kept.few_runs(plan, pair.first, pair.second).reshape(kept.PILOT, -1, layout.width(plan))
    one, two = (gradients(plan, data.X, data.y, data.counts) for data in (pair.first, pair.second))
    squares = np.zeros(2)
    for w, support in zip(kept.before_steps(plan, path[:, :-1]), (path != 0).swapaxes(0, 1), strict=True):
        difference = one.mean(w) - two.mean(w)
        for k, part in enumerate((difference, difference * support)):
            squares[k] += float(np.mean((part**2).sum(axis=1) / plan.settings.noise_law(plan)(w) ** 2))
    return math.sqrt(squares[0]), math.sqrt(squares[1])


def dp_sgd_ht(plan: Plan) -> Pair:
    """The pair for ``dp_sgd_ht``: the canary, and n - 1 other records that are all alike.

    The score for "iterates" is the likelihood ratio summed over the steps, a mixture in each of them.
    """
    kept.expect_solver(plan, "dp_sgd_ht", "dp_fed_sgd_ht")
    return batched(plan, BatchRatio, plan.settings.batch_size)
