"""Iterative hard thresholding with private selection (peeling), for heavy-tailed sparse regression.

Algorithms 5 and 6 of Wang's lecture 16 (after Cai, Wang and Zhang 2019): a gradient step on truncated data, a private
choice of the s largest entries, noise on their values, projection on an L2 ball. The true sensitivity is used for every
radius, the choice is one-shot Gumbel (the same law as s peeled exponential mechanisms), values get Gaussian noise, and
by default all steps use all data, which costs sqrt(steps) less noise than splitting it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, one_of, positive, whole
from dptoolkit.accounting import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    Ledger,
    NoisyMax,
    Repeated,
    published,
)
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.published import Published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows, clip_entries
from dptoolkit.losses import get as get_loss
from dptoolkit.mechanisms import GaussianNoise, LaplaceNoise, NoisyMaximum, as_generator
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
    check_sparsity,
    make_plan,
    public_bound,
    record,
    reserve,
    smallest_noise,
    usable,
)
from dptoolkit.solvers.records import planned_records, without_empty_rows


def plan_peeling_iht(
    *, n: int, d: int, sparsity: int, steps: int, step_size: float, radius: float, epsilon: float, delta: float = 0.0,
    feature_bound: float | None = None, label_bound: float | None = None, data: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT,
) -> Plan:
    """The plan of ``peeling_iht`` for n rows and d features; see there for the arguments."""
    n, d = check_size(n, d)
    s, steps = check_sparsity(sparsity, d), whole("steps", steps, low=1)
    step_size, radius = positive("step_size", step_size), positive("radius", radius)
    feature = public_bound("feature_bound", feature_bound, "where entries of X are truncated")
    label = public_bound("label_bound", label_bound, "where labels are truncated")
    check_calibration(calibration)
    data = one_of("data", data or ("split" if calibration == PUBLISHED else "full"), ("full", "split"))
    if data == "split" and steps > n:
        raise invalid("steps", steps, f"<= n={n} when the data are split", "Use data='full'.")
    relation = Adjacency.parse(adjacency)
    epsilon, delta = check_budget(epsilon, delta, n)
    block = n // steps if data == "split" else n
    # |x_j (<x, w> - y)| <= feature (feature sqrt(s) radius + label) for an s-sparse w in the ball.
    entry = step_size * feature * (feature * math.sqrt(s) * radius + label) / block
    change = usable("support", (2.0 if relation is Adjacency.REPLACE_ONE else 1.0) * entry)
    rounds = 1 if data == "split" else steps
    paper = _published(calibration, n, steps, s, radius, feature, label, step_size, epsilon, delta)
    releases = (
        _laplace_releases(change, s, rounds, paper.scales["selection"]) if paper
        else _tight_releases(change, s, rounds, epsilon, delta)
    )
    settings = {
        "sparsity": s, "steps": steps, "step_size": step_size, "radius": radius, "feature_bound": feature,
        "label_bound": label, "data": data, "block": block,
    }  # fmt: skip
    return make_plan("peeling_iht", n, d, relation, calibration, releases, settings, paper)


def _tight_releases(change: float, s: int, rounds: int, epsilon: float, delta: float) -> tuple[Release, Release]:
    """Half of each round's rho for the s selections (range 2 change), half for the s values (L2 change sqrt(s))."""

    def event(noise: float) -> Event:
        return Repeated(Composed(Repeated(ExponentialMechanism(_per_selection(noise, s)), s), Gaussian(noise)), rounds)

    noise = smallest_noise(event, epsilon, delta)
    each = _per_selection(noise, s)
    scale = 2 * change / each if each < math.inf else 0.0
    spread = change * math.sqrt(s)
    return (
        Release("support", "gumbel", 2 * change, scale, ExponentialMechanism(each), s * rounds),
        Release("values on the support", "gaussian", spread, noise * spread, Gaussian(noise), rounds),
    )


def _per_selection(noise: float, s: int) -> float:
    """The epsilon of each of s selections that together cost as much rho as one Gaussian of that noise."""
    return math.sqrt(4 / s) / noise if noise > 0 else math.inf


def _laplace_releases(change: float, s: int, rounds: int, scale: float) -> tuple[Release, Release]:
    return (
        Release("support", "laplace", 2 * change, scale, NoisyMax(2 * change / scale, "laplace"), s * rounds),
        Release("values on the support", "laplace", change, scale, Laplace(scale / change), s * rounds),
    )


def _published(
    calibration: str, n: int, steps: int, s: int, radius: float, feature: float, label: float, step_size: float,
    epsilon: float, delta: float,
) -> Published | None:
    if calibration != PUBLISHED:
        return None
    if math.isinf(epsilon):
        raise invalid("epsilon", epsilon, "finite with calibration='published'")
    if feature != label:
        bound = f"equal to feature_bound={feature:g} with calibration='published'"
        raise invalid("label_bound", label, bound, "The paper has one K.")
    return published.lecture_heavy_tailed_iht(n, steps, s, radius, feature, step_size, epsilon, delta)


def peeling_iht(
    X: Any, y: Any, *, sparsity: int, steps: int, step_size: float, radius: float, epsilon: float, delta: float = 0.0,
    feature_bound: float | None = None, label_bound: float | None = None, data: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT, rng: Any = None,
    ledger: Ledger | None = None,
) -> FitResult:
    """Private sparse linear regression by peeling, for data with heavy tails.

    Parameters (others as in ``dp_ight``)
    ----------
    radius : the iterate is projected on the L2 ball of this radius.
    feature_bound, label_bound : entries of X and labels are truncated there; both public.
    data : "full", every step uses all rows (default); "split", step t uses the t-th of ``steps`` consecutive blocks.

    Privacy
    -------
    Query: v = w - step_size * mean gradient. One record's x_j (<x, w> - y) is at most feature_bound (feature_bound
    sqrt(sparsity) radius + label_bound) =: e, so an entry of v moves by at most 2 step_size e/m (replace-one; half for
    zero-out), m the number of rows used. The s indices are chosen by |v|, scores of range twice that; the values move
    by sqrt(s) times it in L2. Event: s ExponentialMechanisms and one Gaussian a step, all steps composed; with "split"
    one step only, as a record lies in one block fixed in advance. Projection is post-processing. Public: n, d, all
    arguments.
    """
    rows = check_rows(X)
    n, d = rows.shape
    check_labels(y, n, get_loss("squared"))
    plan = plan_peeling_iht(
        n=n, d=d, sparsity=sparsity, steps=steps, step_size=step_size, radius=radius, epsilon=epsilon, delta=delta,
        feature_bound=feature_bound, label_bound=label_bound, data=data, adjacency=adjacency, calibration=calibration,
    )  # fmt: skip
    generator = as_generator(rng)
    reserve(ledger, plan)
    w, history, _, _ = prepare_peeling_iht(plan, rows, y)(generator, False)
    record(ledger, plan)
    return FitResult(w, 0.0, plan.guarantee, plan, history)


def prepare_peeling_iht(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """``peeling_iht`` with its plan and data in place; its releases are the peeled vectors, before projection.

    Privacy
    -------
    Nothing is released before a run; each run is ``plan.event``. ``counts`` says how often each row occurs.
    """
    settings, (support, values) = plan.settings, plan.releases
    rows, y = planned_records(plan, X, y, counts)
    bounded = clip_entries(rows, settings["feature_bound"])
    labels = np.clip(check_labels(y, plan.n, get_loss("squared")), -settings["label_bound"], settings["label_bound"])
    parts = _blocks(bounded, labels, settings)
    steps, step_size, radius = settings["steps"], settings["step_size"], settings["radius"]
    scales = {"selection_scale": support.scale, "value_scale": values.scale}

    def run(rng: np.random.Generator, trace: bool = False) -> Trace:
        w = np.zeros(plan.d)
        peeled, iterates = (np.empty((steps, plan.d)), np.empty((steps, plan.d))) if trace else (None, None)
        for t in range(steps):
            transposed, target = parts[t % len(parts)]
            # The iterate has few non-zeros: only their features are read.
            filled = np.flatnonzero(w)
            r = np.asarray(transposed[filled].T @ w[filled]) - target
            v = w - step_size * np.asarray(transposed @ r) / settings["block"]
            released = peel(v, plan, rng)
            w = _project(released, radius)
            if peeled is not None and iterates is not None:
                peeled[t], iterates[t] = released, w
        return Trace(w, dict(scales), peeled, iterates)

    return run


def _blocks(rows: Rows, y: Array, settings: Any) -> list[tuple[Any, Array]]:
    """(transposed rows, labels) of every block that the steps take in turn."""
    m = settings["block"]
    count = settings["steps"] if settings["data"] == "split" else 1
    parts = [(Rows(rows.matrix[i * m : (i + 1) * m], rows.is_sparse), y[i * m : (i + 1) * m]) for i in range(count)]
    filled = (without_empty_rows(*part) for part in parts)
    return [(part.transpose() if part.is_sparse else part.matrix.T, labels) for part, labels in filled]


def peel(v: Array, plan: Plan, rng: np.random.Generator) -> Array:
    """The plan's s entries of v, chosen and blurred privately; zero elsewhere.

    Privacy
    -------
    One call is the plan's two releases, once each round.
    """
    support, values = plan.releases
    s = plan.settings["sparsity"]
    choice = NoisyMaximum(support.scale, support.sensitivity, support.law)
    # Laplace noise has no one-shot form: it must be drawn anew for every selection.
    chosen = choice.top(np.abs(v), s, rng) if support.law == "gumbel" else choice.peel(np.abs(v), s, rng)
    blur = GaussianNoise if values.law == "gaussian" else LaplaceNoise
    out = np.zeros_like(v)
    out[chosen] = blur(values.scale, values.sensitivity).release(v[chosen], rng)
    return out


def _project(w: Array, radius: float) -> Array:
    norm = float(np.linalg.norm(w))
    return w if norm <= radius else w * (radius / norm)
