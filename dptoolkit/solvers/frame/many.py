"""fit_many: many private fits of the same data, which share the passes over X; each result is that of a single fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dptoolkit import marks
from dptoolkit._validate import flag, invalid, whole
from dptoolkit.accounting import Composed, Ledger, Repeated
from dptoolkit.accounting.ledger import Reservation
from dptoolkit.data import Rows, prepare
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.engine.gradients import LANES
from dptoolkit.solvers.frame.fit import (
    FitResult,
    charge,
    check_counts,
    fit_stream,
    is_secure,
    noise_source,
    record,
    result_of,
)
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Run, trace_interval
from dptoolkit.solvers.frame.secure import SECURE, noise_kind, secured
from dptoolkit.types import Array


class _Job(NamedTuple):
    """One fit: its plan, where its noise comes from, whether the data are marked, and the solver on them."""

    plan: Plan
    source: Source
    is_void: bool
    run: Run


def fit_many(
    plans: Any,
    X: Any,
    y: Any,
    *,
    seeds: Any = None,
    runs: Any = None,
    randomness: Any = None,
    label_values: Any = None,
    ledger: Ledger | None = None,
    trace: Any = False,
    diagnostics: Any = False,
) -> list[Any]:
    """Fits of a plan, or of each of several plans, on the same data: one for every seed, or ``runs`` with fresh noise.

    Plans may differ in everything but n and d: budget, step size, loss, solver. Fits of ``dp_ight`` and
    ``dp_dual_averaging`` with the same ``row_norm`` and ``fit_intercept`` are computed together; others one after
    another, on the same prepared data. Fits of ``dp_frank_wolfe`` to large sparse data with the same ``feature_bound``
    and ``fit_intercept`` share the pass that they begin with, and then run in as many threads as this process may use
    processors.

    Parameters
    ----------
    plans : Plan or sequence of Plan
        What to fit; see ``solvers.plan``. Several plans must differ.
    X : array-like, sparse matrix or Rows
        The design matrix, (n, d), with one row per record; or what ``data.prepare`` returned.
    y : array-like of shape (n,)
        The labels.
    seeds : sequence of int, or None, default None
        One fit of every plan per seed. Never publish such fits: whoever guesses a seed can remove the noise. Seeds must
        differ, because the same seed and plan is the same fit.
    runs : int or None, default None
        The number of fits of every plan, with fresh entropy. Give either ``seeds`` or ``runs``.
    randomness : {"secure", "fast"} or None, default None
        "secure" gives plans without secure noise such noise; "fast" takes plans as they are. None is what a solver
        makes of it: with ``seeds`` "fast".
    label_values : tuple of float, or None, default None
        The two labels of a binary loss if they are not 0 and 1, the positive one last.
    ledger : Ledger or None, default None
        The ledger to charge for all fits, in one reservation, before the data are used; it may refuse.
    trace : bool or int, default False
        True keeps every iterate, a number k every k-th, in history["iterates"].
    diagnostics : bool, default False
        Whether to add facts that are computed from the data to history["not_private"]; they are NOT private.

    Returns
    -------
    list of FitResult
        One result per seed or run; for several plans, one such list per plan. Coefficients, noise and history are those
        of a single fit with that seed: bit for bit on sparse and on small data. On dense data of more than 50,000
        entries sums are taken in another order, so that they round differently.

    Privacy
    -------
    The guarantee of a result is that of its own fit. Whoever sees several results, or the best of them, has seen what
    all fits released: Composed(Repeated(plan.event, runs) of every plan), which is what a ledger is charged for. Each
    fit has its own stream of noise, which depends on its seed and plan alone.
    """
    several = _checked_plans(plans)
    choices = _checked_seeds(seeds, runs)
    several = _with_noise_of_kind(several, randomness, choices[0])
    all_rows = prepare(X)
    data = [_checked_data(plan, all_rows, y, label_values) for plan in several]
    every, diagnose = trace_interval(trace), flag("diagnostics", diagnostics)
    # All fits have a seed or none has, so that the first one shows whether the ledger takes them. The others are made
    # after the ledger was asked, which may refuse a million fits at once.
    secure = all(is_secure(plan) for plan in several)
    noise_source(choices[0], ledger, is_secure=secure)
    is_void = marks.is_marked(X, y)
    reservation = _reserve(ledger, several, len(choices), is_void)
    sources = [[noise_source(seed, ledger, is_secure=secure) for seed in choices] for _ in several]
    solvers = [plan.settings.bind(plan, rows, labels) for plan, (rows, labels) in zip(several, data, strict=True)]
    jobs = [
        _Job(plan, source, is_void, run)
        for plan, own, run in zip(several, sources, solvers, strict=True)
        for source in own
    ]
    results: dict[int, FitResult] = {}
    for block in _blocks(jobs):
        for k, (weights, history) in zip(block, _fitted([jobs[k] for k in block], every), strict=True):
            results[k] = result_of(*jobs[k], weights, history, diagnose)
    record(reservation)
    width = len(choices)
    by_plan = [[results[k] for k in range(first, first + width)] for first in range(0, len(jobs), width)]
    return by_plan[0] if isinstance(plans, Plan) else by_plan


def _checked_plans(plans: Any) -> list[Plan]:
    """A list of different plans for the same n and d."""
    several = [plans] if isinstance(plans, Plan) else list(plans) if isinstance(plans, Sequence) else []
    if not several or not all(isinstance(plan, Plan) for plan in several):
        repair = "solvers.plan(name, n=, d=, ...) makes one."
        raise invalid("plans", type(plans).__name__, "a Plan or a sequence of Plans, at least one", repair)
    sizes = sorted({(plan.n, plan.d) for plan in several})
    if len(sizes) > 1:
        raise invalid("plans", f"plans for (n, d) = {sizes}", "for one n and d", "They are fitted to the same data.")
    if len({plan.fingerprint for plan in several}) < len(several):
        repair = "The same plan and seed would repeat the same fit; for more fits of a plan give more seeds or runs."
        raise invalid("plans", "a sequence with equal plans", "different", repair)
    return several


def _with_noise_of_kind(plans: list[Plan], randomness: Any, seed: int | None) -> list[Plan]:
    """The plans with secure noise where it is asked for; a plan that has it takes no seed."""
    if seed is not None and any(plan.secure is not None for plan in plans):
        raise invalid("seeds", "given", "left out for plans with secure noise", "Use runs=number: seeds repeat noise.")
    if noise_kind(randomness, seed, "seeds") != SECURE:
        return plans
    # A plan of several fits is refused with the data.
    return [plan if is_secure(plan) or not plan.is_one_fit else secured(plan, SECURE) for plan in plans]


def _checked_seeds(seeds: Any, runs: Any) -> list[int | None]:
    """A seed for every fit of a plan, None for fresh entropy."""
    if (seeds is None) == (runs is None):
        words = "neither" if seeds is None else "both"
        raise invalid(
            "seeds and runs",
            words,
            "one of them given",
            "seeds=range(16) makes reproducible fits; runs=16 uses fresh entropy.",
        )
    if runs is not None:
        return [None] * whole("runs", runs, low=1)
    try:
        values = list(seeds)
    except TypeError:
        raise invalid("seeds", seeds, "a sequence of integers >= 0", "For one fit: seeds=[0].") from None
    if not values:
        raise invalid("seeds", seeds, "at least one integer >= 0")
    numbers = [whole("seeds", seed, low=0) for seed in values]
    if len(set(numbers)) < len(numbers):
        raise invalid("seeds", seeds, "different", "The same seed and plan would repeat the same fit.")
    return list(numbers)


def _checked_data(plan: Plan, all_rows: Rows, y: Any, label_values: Any) -> tuple[Rows, Array]:
    rows = plan.settings.validated_rows(all_rows)
    check_counts(plan, rows.shape, None)
    return rows, plan.settings.labels(y, rows.shape[0], label_values)


def _reserve(ledger: Ledger | None, plans: Sequence[Plan], runs: int, is_void: bool) -> Reservation | None:
    """Charge the ledger for ``runs`` fits of every plan, in one step, or refuse all of them."""
    adjacencies = sorted({str(plan.adjacency) for plan in plans})
    if ledger is not None and len(adjacencies) > 1:
        raise invalid("plans", f"plans under {adjacencies}", "under one adjacency where a ledger is charged")
    event = Composed(*(Repeated(plan.event, runs) for plan in plans))
    label = ", ".join(dict.fromkeys(plan.solver for plan in plans))
    return charge(ledger, event, label, plans[0].adjacency, is_void)


def _blocks(jobs: Sequence[_Job]) -> Iterator[list[int]]:
    """The numbers of the jobs that are computed together, at most LANES each."""
    blocks: dict[Any, list[int]] = {}
    for k, job in enumerate(jobs):
        data = job.run.shared
        blocks.setdefault(("alone", k) if data is None else (type(job.run), id(data)), []).append(k)
    for block in blocks.values():
        yield from (block[first : first + LANES] for first in range(0, len(block), LANES))


def _fitted(jobs: Sequence[_Job], every: int) -> list[tuple[Array, dict[str, Any]]]:
    rngs = [fit_stream(job.plan, job.source) for job in jobs]
    if len(jobs) == 1:
        return [jobs[0].run.fit(rngs[0], every)]
    return jobs[0].run.fit_block([job.run for job in jobs], rngs, every)
