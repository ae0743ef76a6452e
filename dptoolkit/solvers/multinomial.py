"""Private multinomial (softmax) regression by Frank-Wolfe (Khanna, Lu and Raff 2023, Algorithm 3, made sound).

The default chooses ONE of the 2Kd vertices +-l1_radius e_k e_j^T per step, so the dimension enters only through a
logarithm.
The paper chooses one vertex for every column, d selections a step that one record can move all at once; that version is
an option and is charged for every one of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, positive, whole
from dptoolkit.accounting import Ledger, Repeated, published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_classes, check_rows, clip_entries, with_intercept
from dptoolkit.mechanisms import NoisyMaximum, as_generator
from dptoolkit.solvers.base import (
    PUBLISHED,
    TIGHT,
    Array,
    FitResult,
    Plan,
    Release,
    Run,
    Trace,
    check_budget,
    check_calibration,
    check_size,
    make_plan,
    public_bound,
    record,
    reserve,
    smallest_noise,
    usable,
)
from dptoolkit.solvers.l1_frank_wolfe import resolve_noise, selection_event
from dptoolkit.solvers.records import planned_records, without_empty_rows

# The Lipschitz constant that the paper proves (Theorem 4) and puts in its noise.
_PAPER_LIPSCHITZ = 2.0


def plan_dp_multinomial_frank_wolfe(
    *, n: int, d: int, classes: int, l1_radius: float, steps: int, epsilon: float, delta: float = 0.0,
    feature_bound: float | None = None, selection: str = "vertex", noise: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT, fit_intercept: bool = False,
) -> Plan:
    """The plan of ``dp_multinomial_frank_wolfe`` for n rows and d features; see there for the arguments."""
    n, d = check_size(n, d)
    classes, steps = whole("classes", classes, low=2), whole("steps", steps, low=1)
    radius = positive("l1_radius", l1_radius)
    bound = public_bound("feature_bound", feature_bound, "the largest |entry| of X")
    one_of("selection", selection, ("vertex", "columns"))
    check_calibration(calibration)
    noise = resolve_noise(noise, calibration)
    relation = Adjacency.parse(adjacency)
    epsilon, delta = check_budget(epsilon, delta, n)
    factor = 4.0 if relation is Adjacency.REPLACE_ONE else 2.0
    score_range = usable(f"{selection} of the L1 ball", factor * radius * bound / n)
    columns = d + 1 if fit_intercept else d
    count = steps * (columns if selection == "columns" else 1)
    paper = None
    if calibration == PUBLISHED:
        if math.isinf(epsilon):
            raise invalid("epsilon", epsilon, "finite with calibration='published'")
        # steps + 1: the printed loop makes one step less than the number in its noise.
        paper = published.multinomial(n, steps + 1, classes, columns, radius * bound, _PAPER_LIPSCHITZ, epsilon, delta)
        scale = paper.scales["score"]
    else:
        scale = score_range * smallest_noise(lambda m: Repeated(selection_event(m, noise), count), epsilon, delta)
    release = Release(
        f"{selection} of the L1 ball", noise, score_range, scale, selection_event(scale / score_range, noise), count
    )
    settings = {
        "classes": classes, "l1_radius": radius, "steps": steps, "feature_bound": bound, "selection": selection,
        "noise": noise, "fit_intercept": fit_intercept,
    }  # fmt: skip
    return make_plan("dp_multinomial_frank_wolfe", n, d, relation, calibration, (release,), settings, paper)


def dp_multinomial_frank_wolfe(
    X: Any, y: Any, *, classes: int, l1_radius: float, steps: int, epsilon: float, delta: float = 0.0,
    feature_bound: float | None = None, selection: str = "vertex", noise: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT, fit_intercept: bool = False,
    rng: Any = None, ledger: Ledger | None = None, diagnostics: bool = False,
) -> FitResult:
    """Private softmax regression with weights in an L1 ball; ``coef`` has shape (classes, d).

    Parameters (others as in ``dp_frank_wolfe``)
    ----------
    y : labels 0, ..., classes-1.  classes : their number, public.
    selection : "vertex", one entry of the weight matrix a step, in the entrywise L1 ball; or "columns", one entry of
    every
        column a step, each column in its own L1 ball (the paper's version, with noise for all its selections).

    Privacy
    -------
    Query: the score of every vertex. An entry x_j (yhat_k - y_k) of one record's gradient is at most feature_bound, so
    a score moves by at most 2 l1_radius feature_bound/n (replace-one; half for zero-out) and the range is twice that.
    Event:
    the selection, steps times ("vertex") or steps * d times ("columns": one record moves all columns). Public: n, d,
    classes, all arguments, all vertices.
    """
    rows = check_rows(X)
    n, d = rows.shape
    plan = plan_dp_multinomial_frank_wolfe(
        n=n, d=d, classes=classes, l1_radius=l1_radius, steps=steps, epsilon=epsilon, delta=delta,
        feature_bound=feature_bound, selection=selection, noise=noise, adjacency=adjacency, calibration=calibration,
        fit_intercept=fit_intercept,
    )  # fmt: skip
    check_classes(y, n, plan.settings["classes"])
    generator = as_generator(rng)
    reserve(ledger, plan)
    weights, history, _, _ = prepare_dp_multinomial_frank_wolfe(plan, rows, y)(generator, False)
    if diagnostics:
        bounded, labels = _bound_records(plan, rows, y)
        margins = np.asarray(bounded.matrix @ weights.T)
        history["not_private"] = {"objective": losses.value(losses.get("softmax"), margins, labels)}
    record(ledger, plan)
    intercept = weights[:, -1] * plan.settings["feature_bound"] if fit_intercept else np.zeros(classes)
    return FitResult(weights[:, :d], intercept, plan.guarantee, plan, history)


def prepare_dp_multinomial_frank_wolfe(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """``dp_multinomial_frank_wolfe`` with its plan and data in place; its releases are the chosen vertices.

    A vertex is k d + j for +e_k e_j^T and K d + k d + j for minus that; of a column, k and K + k.

    Privacy
    -------
    Nothing is released before a run; each run is ``plan.event``. ``counts`` says how often each row occurs.
    """
    return _private_path(plan, *_bound_records(plan, *planned_records(plan, X, y, counts)))


def _bound_records(plan: Plan, rows: Rows, y: Any) -> tuple[Rows, Array]:
    """Clipped rows, with the intercept column if asked for, and one-hot labels."""
    settings = plan.settings
    labels = check_classes(y, plan.n, settings["classes"])
    bounded = clip_entries(rows, settings["feature_bound"])
    return with_intercept(bounded, settings["feature_bound"]) if settings["fit_intercept"] else bounded, labels


def _private_path(plan: Plan, rows: Rows, labels: Array) -> Run:
    rows, labels = without_empty_rows(rows, labels)
    width, settings = rows.shape[1], plan.settings
    classes, radius, steps = settings["classes"], settings["l1_radius"], settings["steps"]
    mechanism = NoisyMaximum(plan.noise, plan.sensitivity, settings["noise"])
    transposed, loss = rows.transpose(), losses.get("softmax")
    groups = width if settings["selection"] == "columns" else 1

    def run(rng: np.random.Generator, trace: bool = False) -> Trace:
        weights = np.zeros((classes, width))
        chosen, iterates = (np.empty((steps, groups)), np.empty((steps, weights.size))) if trace else (None, None)
        margins = np.zeros((len(labels), classes))
        for t in range(1, steps + 1):
            gradient = np.asarray(transposed @ losses.residual(loss, margins, labels)).T / plan.n
            step = np.zeros_like(weights)
            if settings["selection"] == "vertex":
                picks = [_pick(step.reshape(-1), gradient.reshape(-1), radius, mechanism, rng)]
            else:
                picks = [_pick(step[:, j], gradient[:, j], radius, mechanism, rng) for j in range(width)]
            mu = 2 / (t + 2)
            weights = (1 - mu) * weights + mu * step
            if settings["selection"] == "vertex":
                # One weight has grown, so the margins follow without a pass over the rows.
                k, j = divmod(picks[0] % weights.size, width)
                margins *= 1 - mu
                _add_feature(margins[:, k], rows, transposed, j, mu * step[k, j])
            else:
                margins = np.asarray(rows.matrix @ weights.T)
            if chosen is not None and iterates is not None:
                chosen[t - 1], iterates[t - 1] = picks, weights.reshape(-1)
        history: dict[str, Any] = {"noise_scale": [plan.noise] * steps}
        if chosen is not None and settings["selection"] == "vertex":
            chosen = chosen[:, 0]
        return Trace(weights, history, chosen, iterates)

    return run


def _add_feature(margins: Array, rows: Rows, transposed: Any, j: int, weight: float) -> None:
    """margins += weight x_j."""
    if rows.is_sparse:
        column = slice(transposed.indptr[j], transposed.indptr[j + 1])
        margins[transposed.indices[column]] += weight * transposed.data[column]
    else:
        margins += weight * transposed[j]


def _pick(target: Array, gradient: Array, radius: float, mechanism: NoisyMaximum, rng: np.random.Generator) -> int:
    """Set the entry of ``target`` that the noisy scores choose to +-radius; returns the choice."""
    chosen = mechanism.select(-radius * np.concatenate([gradient, -gradient]), rng)
    size = len(gradient)
    target[chosen % size] = radius if chosen < size else -radius
    return chosen
