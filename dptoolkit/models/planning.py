"""The plan of a model, from public numbers alone: what ``models.fit`` with the same arguments will release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dptoolkit import solvers
from dptoolkit._validate import invalid, whole
from dptoolkit.models import routes
from dptoolkit.models.joint import JointPlan, joint_plan
from dptoolkit.models.routes import CLASSIFICATION
from dptoolkit.solvers import Plan
from dptoolkit.solvers.frame.fit import planned
from dptoolkit.solvers.frame.secure import FAST, noise_kind
from dptoolkit.solvers.frame.settings import build


def plan(
    n: int, d: int, *, task: str, solver: str | None = None, classes: int | None = None, epsilon: float = 2.0,
    delta: float = 1e-5, adjacency: str = "replace-one", randomness: str | None = None, **options: Any,
) -> Plan:  # fmt: skip
    """The plan that ``models.fit`` makes for n records of d features.

    Parameters
    ----------
    n : int
        The number of records.
    d : int
        The number of features.
    task : {"classification", "regression"}
        What is predicted.
    solver : str or None, default None
        The name of a solver. None uses the best one that needs no tuning.
    classes : int or None, default None
        The number of classes. None means 2; for regression it must be None.
    epsilon : float, default 2.0
        The budget of the whole fit, at ``delta``.
    delta : float, default 1e-5
        The delta of the budget.
    adjacency : {"replace-one", "zero-out"}, default "replace-one"
        Which datasets are neighbours.
    randomness : {"secure", "fast"} or None, default None
        The noise of the fit, as in ``models.fit`` without ``rng``.
    **options : Any
        The solver's own arguments, such as bounds, row_norm, sparsity or label_bound. Bounds by name are those of all d
        columns, in their order.

    Returns
    -------
    Plan
        A JointPlan if the solver fits each class against the rest.

    Privacy
    -------
    Touches no data. All arguments are public.
    """
    name = routes.solver_name(task, solver)
    if task != CLASSIFICATION and classes is not None:
        raise invalid("classes", classes, f"left out for {task}")
    count = None if task != CLASSIFICATION else whole("classes", 2 if classes is None else classes, low=2)
    solver_name, times = routes.solver_for(name, count)
    own = routes.declared_bounds(options, whole("d", d, low=1), None)
    arguments = routes.arguments(task, name, d, count, own) | {"delta": delta, "adjacency": adjacency}

    if times == 1:
        settings = build(solvers.settings_class(solver_name), {"epsilon": epsilon} | arguments)
        return planned(settings, n, d, randomness)
    return class_plan(solver_name, times, n, d, epsilon, arguments, noise_kind(randomness, None))


def class_plan(
    solver: str, count: int, n: int, d: int, epsilon: float, arguments: Mapping[str, Any], randomness: str
) -> JointPlan:
    """The plan of ``count`` fits by a solver, one for each class against the rest, with epsilon for all of them.

    ``randomness`` is "secure" or "fast". Without noise there is none to make secure.

    Privacy
    -------
    Touches no data. All arguments are public.
    """
    kind = FAST if math.isinf(epsilon) else randomness

    def part(share: float) -> Plan:
        return solvers.plan(solver, n=n, d=d, epsilon=share, randomness=kind, **arguments)

    return joint_plan(part, count, epsilon, arguments["delta"])
