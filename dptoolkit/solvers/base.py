"""The frame of every private fit: validate, plan, reserve, run, record, once for all solvers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import invalid, whole
from dptoolkit.accounting import Guarantee, Ledger, calibrate
from dptoolkit.accounting.events import Event
from dptoolkit.data import Rows
from dptoolkit.errors import DpToolkitError
from dptoolkit.mechanisms import as_generator
from dptoolkit.solvers.plan import Plan
from dptoolkit.solvers.settings import Settings, build, describe, flag, keywords

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class FitResult:
    """A fitted model. ``guarantee`` and ``plan`` are None for non-private fits.

    ``history`` holds public facts of the run (noise scales, chosen vertices, iterates if asked for); with
    ``diagnostics=True`` it also holds quantities that are NOT private, under the key "not_private".
    """

    coef: Array
    intercept: float | Array
    guarantee: Guarantee | None
    plan: Plan | None
    history: Mapping[str, Any]

    def __repr__(self) -> str:
        nonzero = int(np.count_nonzero(self.coef))
        head = f"<FitResult: {nonzero:,} of {self.coef.size:,} coefficients are not zero"
        return f"{head}; not private>" if self.plan is None else f"{head};\n {self.plan!r}>"


class Trace(NamedTuple):
    """One run of a private solver on prepared data: what it returns and, if asked for, everything it released.

    ``weights`` are all weights, an intercept's last. ``releases`` is what the accountant charges, in order, one row a
    step: a noisy gradient, or the number of a chosen vertex. ``iterates`` are the weights after every step. Both are
    None unless the run was asked to keep them.
    """

    weights: Array
    history: dict[str, Any]
    releases: Array | None = None
    iterates: Array | None = None


class Trials(NamedTuple):
    """Many runs at once, as arrays whose first axis is the trial; what was not asked for, or is not kept, is None."""

    weights: Array
    releases: Array | None = None
    iterates: Array | None = None


class Run(Protocol):
    """A private solver with plan and data in place: a call does nothing but the iteration, as often as wanted."""

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit with everything it released, for audits."""

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history), with (step, support, values) of every ``every``-th iterate in history["iterates"]."""

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """What a look at the data says about the fit; NOT private."""


def fit(
    settings: Settings, X: Any, y: Any, *, rng: Any = None, ledger: Ledger | None = None, trace: Any = False,
    diagnostics: Any = False,
) -> FitResult:
    """One private fit.

    Privacy
    -------
    The event is the plan's, made without data. A ledger refuses it before the data are used, and is charged.
    """
    rows = settings.rows(X)
    labels = settings.labels(y, rows.shape[0])
    plan = settings.plan(*rows.shape)
    every, diagnose = trace_interval(trace), flag("diagnostics", diagnostics)
    generator = as_generator(rng)
    reserve(ledger, plan)
    run = plan.settings.prepare(plan, rows, labels)
    weights, history = run.fit(generator, every)
    if diagnose:
        history["not_private"] = run.diagnose(weights, history)
    record(ledger, plan)
    coef, intercept = plan.settings.model(weights)
    return FitResult(coef, intercept, plan.guarantee, plan, history)


def private_solver(kind: type[Settings]) -> Callable[..., FitResult]:
    """The public function of a settings class: its fields are the keywords, its docstring is the function's."""

    def solve(
        X: Any, y: Any, *, rng: Any = None, ledger: Ledger | None = None, trace: Any = False, diagnostics: Any = False,
        **arguments: Any,
    ) -> FitResult:
        frame = {"rng": rng, "ledger": ledger, "trace": trace, "diagnostics": diagnostics}
        return fit(build(kind, arguments), X, y, **frame)

    solve.__name__ = solve.__qualname__ = kind.solver
    solve.__module__ = kind.__module__
    own = inspect.signature(solve).parameters
    first, last = [own["X"], own["y"]], [own[name] for name in ("rng", "ledger", "trace", "diagnostics")]
    solve.__signature__ = inspect.Signature([*first, *keywords(kind), *last], return_annotation="FitResult")  # type: ignore[attr-defined]
    solve.__doc__ = _docstring(kind)
    return solve


_FRAME_PARAMETERS = """rng : None, int or numpy.random.Generator, default None
    Fresh entropy; a seed, which makes the fit reproducible and so not private; or a generator.
ledger : Ledger or None, default None
    Refuses before the data are used, and is charged for the fit.
trace : bool or int, default False
    Keep every iterate, or every so many-th, in history["iterates"] as (step, support, values). Iterates are released
    anyway, so this costs no privacy.
diagnostics : bool, default False
    Add what only a look at the data can say to history["not_private"]; it is NOT private."""


def _docstring(kind: type[Settings]) -> str:
    summary, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    data = "X : (n, d) array or scipy.sparse matrix\n    One row a record.\ny : (n,) array\n    Their labels."
    parameters = "\n".join(["Parameters", "----------", data, describe(kind), _FRAME_PARAMETERS])
    returns = "Returns\n-------\nFitResult"
    return "\n\n".join(part for part in (summary, parameters, returns, rest) if part)


def prepare(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """The solver of a plan on these data: run(rng, trace=False) is one fit, as often as wanted.

    Validation and clipping are done here, once, from the plan alone; the solvers themselves run what this returns.
    ``counts`` says how often each row occurs.

    Privacy
    -------
    Every call of what is returned spends the plan's event; no ledger is charged. It is meant for audits.
    """
    rows = plan.settings.rows(X)
    times = check_counts(plan, rows.shape, counts)
    return plan.settings.prepare(plan, rows, plan.settings.labels(y, rows.shape[0]), times)


def check_counts(plan: Plan, shape: tuple[int, int], counts: Any) -> NDArray[np.int64] | None:
    """How often each of the rows occurs, None for once; together they are the plan's n rows of d features."""
    times = None if counts is None else np.array(counts)
    if times is not None and not (times.shape == shape[:1] and times.dtype.kind in "iu" and (times >= 0).all()):
        raise invalid("counts", counts, f"{shape[0]} integers >= 0, one for every row of X")
    n = shape[0] if times is None else int(times.sum())
    if (n, shape[1]) != (plan.n, plan.d):
        given = f"{n} rows of {shape[1]} features"
        raise invalid("X", given, f"the {plan.n} rows of {plan.d} features of the plan for {plan.solver}")
    return None if times is None else times.astype(np.int64)


def written_out(rows: Rows, y: Array, counts: NDArray[np.int64] | None) -> tuple[Rows, Array]:
    """Every record as often as it occurs."""
    if counts is None:
        return rows, y
    which = np.repeat(np.arange(len(counts)), counts)
    return Rows(rows.matrix[which], rows.is_sparse), y[which]


def trace_interval(trace: Any) -> int:
    """How many steps lie between two iterates that are kept; 0 keeps none."""
    if isinstance(trace, (bool, np.bool_)):
        return int(trace)
    return whole("trace", trace, low=1, repair="Or True for every iterate, False for none.")


def smallest_noise(make_event: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The calibrated noise, 0 for an infinite budget. The search starts where zCDP, which is cheap, says."""
    if math.isinf(epsilon):
        return 0.0
    try:
        guess = calibrate(make_event, epsilon, delta, method="zcdp", relative_tolerance=0.01)
    except DpToolkitError:
        guess = 1.0
    return calibrate(make_event, epsilon, delta, guess=guess)


def gaussian_multiplier(steps: int, epsilon: float, delta: float) -> float:
    """The noise multiplier for ``steps`` Gaussian releases: exact."""
    from dptoolkit.accounting import gaussian

    if math.isinf(epsilon):
        return 0.0
    # One part in 1e12 more, so that rounding cannot put the sum of the steps above the budget.
    return math.sqrt(steps) / gaussian.mu(epsilon, delta) * (1 + 1e-12)


def reserve(ledger: Ledger | None, plan: Plan) -> None:
    """Refuse, before the data are used, what the ledger cannot pay for."""
    if ledger is not None:
        if not isinstance(ledger, Ledger):
            raise invalid("ledger", ledger, "a dptoolkit.accounting.Ledger or None")
        ledger.check(plan.event, adjacency=plan.adjacency)


def record(ledger: Ledger | None, plan: Plan) -> None:
    """Spend what was released."""
    if ledger is not None:
        ledger.spend(plan.event, label=plan.solver, adjacency=plan.adjacency)
