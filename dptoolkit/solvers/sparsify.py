"""Sparse private LASSO (Khanna, Lu and Raff 2023, Algorithm 2): private Frank-Wolfe, then only the k largest weights.

How many to keep is the private question. The paper counts the non-zeros of a NON-private solution, clips the count and
adds two-sided geometric noise; integer noise hides integers only, so the bounds are rounded inwards first. Two cheaper
answers spend nothing: a fixed public k, and a public threshold on the private weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dptoolkit import losses
from dptoolkit._validate import invalid, one_of, positive, real, whole
from dptoolkit.accounting import Composed, Ledger, Repeated, published
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.published import Published
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows, check_labels, check_rows
from dptoolkit.kernels.reference import hard_threshold
from dptoolkit.losses import Loss
from dptoolkit.mechanisms import GeometricNoise, as_generator
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
    record,
    reserve,
    smallest_noise,
    split_intercept,
)
from dptoolkit.solvers.l1_frank_wolfe import (
    bound_records,
    frank_wolfe_path,
    lipschitz_constant,
    plan_dp_frank_wolfe,
    private_path,
    selection_event,
)
from dptoolkit.solvers.records import planned_records

_COUNTS = ("geometric", "fixed", "threshold")


def plan_sparsifier(
    *, n: int, d: int, l1_radius: float, steps: int, epsilon2: float, delta: float = 0.0, epsilon1: float | None = None,
    loss: str = "logistic", feature_bound: float | None = None, label_bound: float | None = None,
    count: str = "geometric", alpha: float | None = None, beta: float | None = None, rho: float = 1.0,
    kept: int | None = None,
    threshold: float | None = None, count_steps: int = 1000, noise: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT, fit_intercept: bool = False,
    refresh: float = 0.25,
) -> Plan:
    """The plan of ``sparsifier`` for n rows and d features; see there for the arguments."""
    n, d = check_size(n, d)
    check_calibration(calibration)
    if epsilon1 is not None:
        positive("epsilon1", epsilon1)
    # Made with an infinite budget, then given its noise: the count and the selections share one budget.
    quiet = plan_dp_frank_wolfe(
        n=n, d=d, loss=loss, l1_radius=l1_radius, steps=steps, epsilon=math.inf, feature_bound=feature_bound,
        label_bound=label_bound, noise=noise or ("laplace" if calibration == PUBLISHED else "gumbel"),
        adjacency=adjacency, fit_intercept=fit_intercept, refresh=refresh,
    )  # fmt: skip
    settings = dict(quiet.settings) | _count_settings(
        count, d, epsilon1, alpha, beta, rho, kept, threshold, count_steps
    )
    check_budget(epsilon2, delta, n)
    counting = _count_release(settings)
    selection, paper = quiet.releases[0], None
    if calibration == PUBLISHED:
        lipschitz = lipschitz_constant(losses.get(loss), settings["l1_radius"], *_bounds(settings), calibration)
        selection = replace(selection, sensitivity=selection.sensitivity * lipschitz / settings["lipschitz"])
        settings |= {"lipschitz": lipschitz, "adaptive": False}
        paper = _published(n, settings, epsilon2, delta, quiet.adjacency)
        scale = paper.scales["score"]
    else:
        scale = selection.sensitivity * _multiplier(selection, counting, (epsilon1 or 0.0) + epsilon2, delta)
    event = selection_event(scale / selection.sensitivity, settings["noise"])
    selection = replace(selection, scale=scale, event=event)
    releases = (selection,) if counting is None else (selection, counting)
    return make_plan("sparsifier", n, d, quiet.adjacency, calibration, releases, settings, paper)


def _bounds(settings: dict[str, Any]) -> tuple[float, float | None]:
    return settings["feature_bound"], settings["label_bound"]


def _published(n: int, settings: dict[str, Any], epsilon2: float, delta: float, relation: Adjacency) -> Published:
    """Theorem 3 where the count is the paper's; without a private count there is Algorithm 1 alone to claim
    anything."""
    model = (n, settings["steps"], settings["l1_radius"], settings["lipschitz"])
    if settings["count"] != "geometric":
        return published.lasso_frank_wolfe(*model, epsilon2, delta, relation, rounds=settings["steps"])
    return published.sparsifier(*model, settings["lower"], settings["upper"], settings["epsilon1"], epsilon2, delta)


def _count_settings(
    count: str, d: int, epsilon1: float | None, alpha: float | None, beta: float | None, rho: float, kept: int | None,
    threshold: float | None, count_steps: int,
) -> dict[str, Any]:
    """How many weights to keep, with the paper's bounds rounded inwards to integers."""
    one_of("count", count, _COUNTS)
    if count == "fixed":
        k = whole("kept", kept, low=1, repair="It is the public number of weights to keep.")
        if k > d:
            raise invalid("kept", k, f"<= d={d}")
        return {"count": count, "kept": k}
    if count == "threshold":
        return {"count": count, "threshold": positive("threshold", threshold)}
    positive("epsilon1", epsilon1, "It pays for the private count; count='fixed' needs none.")
    low = real("alpha", math.sqrt(d) if alpha is None else alpha, low=0.0, open_high=True)
    high = real("beta", 2 * math.sqrt(d) if beta is None else beta, low=low, open_high=True)
    lower, upper = math.ceil(low), min(math.floor(high), d)
    if upper <= lower:
        bound = f"at least one integer above alpha={low:g}, and at most d={d}"
        raise invalid("beta", high, bound, "Or use count='fixed'.")
    return {
        "count": count, "lower": lower, "upper": upper, "rho": positive("rho", rho), "epsilon1": epsilon1,
        "count_steps": whole("count_steps", count_steps, low=1),
    }  # fmt: skip


def _count_release(settings: dict[str, Any]) -> Release | None:
    if settings["count"] != "geometric":
        return None
    span, epsilon = settings["upper"] - settings["lower"], settings["epsilon1"]
    event = GeometricNoise(epsilon, span).event
    return Release("number of weights", "two-sided geometric", span, span / epsilon, event, 1)


def _multiplier(selection: Release, counting: Release | None, epsilon: float, delta: float) -> float:
    """The noise per range for the selections when the count, if any, is paid from the same budget."""

    def event(multiplier: float) -> Event:
        made = Repeated(selection_event(multiplier, selection.law), selection.count)
        return made if counting is None else Composed(made, counting.event)

    return smallest_noise(event, epsilon, delta)


def sparsifier(
    X: Any, y: Any, *, l1_radius: float, steps: int, epsilon2: float, delta: float = 0.0, epsilon1: float | None = None,
    loss: str = "logistic", feature_bound: float | None = None, label_bound: float | None = None,
    count: str = "geometric", alpha: float | None = None, beta: float | None = None, rho: float = 1.0,
    kept: int | None = None,
    threshold: float | None = None, count_steps: int = 1000, noise: str | None = None,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, calibration: str = TIGHT, fit_intercept: bool = False,
    refresh: float = 0.25, rng: Any = None, ledger: Ledger | None = None,
) -> FitResult:
    """Private Frank-Wolfe of which only the largest weights are kept.

    Parameters (others as in ``dp_frank_wolfe``)
    ----------
    count : "geometric", the paper's private count of the non-zeros of a non-private solution; "fixed", a public number
        ``kept``; "threshold", all private weights of size at least ``threshold``. The last two cost nothing.
    epsilon1, epsilon2 : budget of the count and of the selections; the fit is (epsilon1 + epsilon2, delta)-DP. With
    tight
        calibration the count is charged by its own privacy-loss distribution, and what it does not use goes to the
        selections. epsilon1 is needed for the private count only.
    alpha, beta : the count is clipped to [ceil(alpha), floor(beta)]; defaults sqrt(d) and 2 sqrt(d).
    rho : the number kept is round(rho * count), the paper's precision parameter (no zCDP meant).
    count_steps : steps of the non-private Frank-Wolfe whose non-zeros are counted.

    Privacy
    -------
    Queries: the clipped count, an integer of sensitivity floor(beta) - ceil(alpha) under either adjacency, with
    two-sided geometric noise; and the selections of ``dp_frank_wolfe``. Event: TwoSidedGeometric(epsilon1, span)
    composed with the selections. Keeping the largest weights is post-processing. Public: n, d, all arguments.
    """
    rows = check_rows(X)
    n, d = rows.shape
    labels = check_labels(y, n, losses.get(loss))
    plan = plan_sparsifier(
        n=n, d=d, l1_radius=l1_radius, steps=steps, epsilon2=epsilon2, delta=delta, epsilon1=epsilon1, loss=loss,
        feature_bound=feature_bound, label_bound=label_bound, count=count, alpha=alpha, beta=beta, rho=rho, kept=kept,
        threshold=threshold, count_steps=count_steps, noise=noise, adjacency=adjacency, calibration=calibration,
        fit_intercept=fit_intercept, refresh=refresh,
    )  # fmt: skip
    generator = as_generator(rng)
    paid = reserve(ledger, plan)
    w, history, _, _ = prepare_sparsifier(plan, rows, labels)(generator, False)
    record(paid)
    coef, intercept = split_intercept(w, fit_intercept, plan.settings["feature_bound"])
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def prepare_sparsifier(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """``sparsifier`` with its plan and data in place; the releases of a run are the vertices, then the noisy count.

    Privacy
    -------
    Nothing is released before a run; each run is ``plan.event``. ``counts`` says how often each row occurs.
    """
    loss = losses.get(plan.settings["loss"])
    rows, y = planned_records(plan, X, y, counts)
    bounded, clipped = bound_records(rows, check_labels(y, plan.n, loss), plan.settings)
    path, number = private_path(plan, bounded, clipped, loss), _counter(plan, bounded, clipped, loss)
    protected = 1 if plan.settings["fit_intercept"] else 0

    def run(rng: np.random.Generator, trace: bool = False) -> Trace:
        w, history, vertices, _ = path(rng, trace)
        k, released = number(w, rng)
        releases = None if vertices is None else np.append(vertices, released)
        return Trace(hard_threshold(w, k, protected), history | {"kept": k}, releases)

    return run


def _counter(
    plan: Plan, rows: Rows, y: Array, loss: Loss
) -> Callable[[Array, np.random.Generator], tuple[int, list[int]]]:
    """(private weights, rng) -> (how many to keep, what that released): the exact count is taken once."""
    settings, free = plan.settings, plan.d
    if settings["count"] == "fixed":
        return lambda w, rng: (int(settings["kept"]), [])
    if settings["count"] == "threshold":
        return lambda w, rng: (int(np.count_nonzero(np.abs(w[:free]) >= settings["threshold"])), [])
    exact, _ = frank_wolfe_path(rows, y, loss, settings["l1_radius"], settings["count_steps"])
    nonzeros = int(np.count_nonzero(exact[:free]))

    def count(w: Array, rng: np.random.Generator) -> tuple[int, list[int]]:
        c = noisy_count(nonzeros, settings, rng)
        return round(min(settings["rho"] * c, free)), [c]

    return count


def noisy_count(nonzeros: int, settings: Any, rng: np.random.Generator) -> int:
    """clip(clip(count) + noise): an integer in [lower, upper].

    Privacy
    -------
    One call is TwoSidedGeometric(epsilon1, upper - lower).
    """
    lower, upper = settings["lower"], settings["upper"]
    mechanism = GeometricNoise(settings["epsilon1"], upper - lower)
    noisy = mechanism.release(min(max(nonzeros, lower), upper), rng)
    return min(max(noisy, lower), upper)
