"""The frame of every private fit: validate, plan, reserve, run, record, once for all solvers."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dptoolkit import marks
from dptoolkit._validate import flag, invalid, whole
from dptoolkit.accounting import Gaussian, Guarantee, Ledger, Repeated, account, calibrate, gaussian
from dptoolkit.accounting.calibrate import SMALLEST
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.ledger import Reservation
from dptoolkit.accounting.report import as_html
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import Rows
from dptoolkit.errors import DpToolkitError
from dptoolkit.mechanisms.rng import Generators, Source
from dptoolkit.solvers.plan import Plan, Release
from dptoolkit.solvers.settings import Settings, build, describe, keywords

Array = NDArray[np.float64]
SEEDED_NOTE = (
    "reproducible from its seed, so not a release: whoever knows or guesses the seed takes the noise off again. "
    "Fit without a seed what others will see"
)


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

    def plot(self, path: str | Path, names: Sequence[str] | None = None) -> None:
        """The largest weights, to a PNG, SVG or PDF file; ``names`` are those of the features."""
        from dptoolkit import plots

        plots.save(plots.weights(self, names), path)

    def __repr__(self) -> str:
        nonzero = int(np.count_nonzero(self.coef))
        head = f"<FitResult: {nonzero:,} of {self.coef.size:,} coefficients are not zero"
        return f"{head}; not private>" if self.plan is None else f"{head};\n {self.plan!r}>"

    def _repr_html_(self) -> str:
        return as_html(repr(self) if self.guarantee is None else f"{self!r}\n\n{self.guarantee}")


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

    def fit(self, every: int) -> tuple[Array, dict[str, Any]]:
        """(weights, history), with every ``every``-th iterate and the last in the history; none for 0."""
        if every == 0 or self.iterates is None:
            return self.weights, self.history
        return self.weights, self.history | {"iterates": sparse_iterates(self.iterates, every)}


def sparse_iterates(iterates: Array, every: int) -> list[tuple[int, NDArray[np.intp], Array]]:
    """(step, support, values) of every ``every``-th iterate and of the last."""
    steps = sorted({*range(every, len(iterates) + 1, every), len(iterates)})
    supports = [np.flatnonzero(iterates[t - 1]) for t in steps]
    return [(t, support, iterates[t - 1][support]) for t, support in zip(steps, supports, strict=True)]


class Trials(NamedTuple):
    """Many runs at once, as arrays whose first axis is the trial; None for what was not asked for or is not kept.

    ``counts`` are the inner steps of every epoch of a variance-reduced run; its releases are the snapshot gradients.
    """

    weights: Array
    releases: Array | None = None
    iterates: Array | None = None
    counts: NDArray[np.int64] | None = None


class ManyRuns(Protocol):
    """A run that can make many fits at once; a call makes one by the same code, so audits attack what users run.

    ``size`` is about how many numbers one fit holds in memory.
    """

    size: int

    def fits(self, rng: Generators, trace: bool = False) -> Trials:
        """As many fits as ``rng`` has parts, each with the numbers of its own part."""


def equal(keys: Sequence[Hashable]) -> list[list[int]]:
    """The places of equal keys, grouped: fits with equal keys depend on the same data and can be made together."""
    places: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    return list(places.values())


def in_order(parts: Sequence[tuple[Sequence[int] | NDArray[np.intp], Trials]]) -> Trials:
    """The fits of several parts, each with the places of its fits, as one, in the order of the places."""
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    fields: Any = zip(*(fits for _, fits in parts), strict=True)
    arrays: list[Any] = [None if field[0] is None else np.concatenate(field)[order] for field in fields]
    return Trials(*arrays)


def by_key(
    keys: Sequence[Hashable], rng: Generators, make: Callable[[list[int], Generators], Trials]
) -> Trials:
    """The fits whose keys are equal made together, by ``make`` from their places and their streams; all in order."""
    parts = [(places, rng.among(places, functools.partial(make, places))) for places in equal(keys)]
    return in_order(parts)


class Run(Protocol):
    """A private solver with its plan and its bounded data in place: a call runs the iteration of one fit."""

    def __call__(self, rng: np.random.Generator, trace: bool = False) -> Trace:
        """One fit with everything it released, for audits."""

    def fit(self, rng: np.random.Generator, every: int = 0) -> tuple[Array, dict[str, Any]]:
        """(weights, history), with (step, support, values) of every ``every``-th iterate in history["iterates"]."""

    def diagnose(self, weights: Array, history: Mapping[str, Any]) -> dict[str, Any]:
        """Facts about the fit that are computed from the data; NOT private."""


def fit(
    settings: Settings, X: Any, y: Any, *, label_values: Any = None, n_features: int | None = None, rng: Any = None,
    ledger: Ledger | None = None, trace: Any = False, diagnostics: Any = False,
) -> FitResult:
    """One private fit.

    Privacy
    -------
    The event is that of the plan, which is made without data. A ledger refuses it, or is charged for it, before the
    data are used. Marked rows (``marks``) have a void guarantee, and no ledger takes them.
    """
    rows = settings.rows(X, n_features)
    labels = settings.labels(y, rows.shape[0], label_values)
    plan = settings.plan(*rows.shape)
    every, diagnose = trace_interval(trace), flag("diagnostics", diagnostics)
    is_void = marks.is_marked(X, y)
    source = noise_source(rng, ledger)
    reservation = reserve(ledger, plan, is_void)
    run = plan.settings.prepare(plan, rows, labels)
    weights, history = run.fit(fit_stream(plan, source), every)
    if diagnose:
        history["not_private"] = run.diagnose(weights, history)
    record(reservation)
    coef, intercept = plan.settings.model(weights)
    return FitResult(coef, intercept, fit_guarantee(plan, source, is_void), plan, history)


def private_solver(kind: type[Settings]) -> Callable[..., FitResult]:
    """The public function of a settings class: its fields are the keywords, its docstring is the function's."""

    def solve(X: Any, y: Any, **arguments: Any) -> FitResult:
        frame = {name: arguments.pop(name) for name in _FRAME if name in arguments}
        return fit(build(kind, arguments), X, y, **frame)

    solve.__name__ = solve.__qualname__ = kind.solver
    solve.__module__ = kind.__module__
    own = inspect.signature(fit).parameters
    parameters = [own["X"], own["y"], *keywords(kind), *(own[name] for name in _FRAME)]
    solve.__signature__ = inspect.Signature(parameters, return_annotation="FitResult")  # type: ignore[attr-defined]
    solve.__doc__ = _docstring(kind)
    return solve


DATA_PARAMETERS = "X : (n, d) array or scipy.sparse matrix\n    One row a record.\ny : (n,) array\n    Their labels."
# The arguments of every private solver besides X, y and its settings.
_FRAME = ("label_values", "n_features", "rng", "ledger", "trace", "diagnostics")
_FRAME_PARAMETERS = """label_values : (float, float) or None, default None
    The two labels of a binary loss if they are not 0 and 1, the positive one last, for example (-1, 1). They are a
    public convention, never inferred from the data.
n_features : int or None, default None
    Public number of features: a narrower X gets columns of zeros, a wider one is refused. Give it if X was read from a
    sparse file, whose width is its largest column.
rng : None, int or numpy.random.Generator, default None
    Fresh entropy, a seed or a Generator. A fit from a seed is reproducible, so it is not a release; another plan draws
    other noise from the same seed. A Generator advances with every fit and may be shared by threads, but not copied:
    two fits of one plan with copies have the same noise.
ledger : Ledger or None, default None
    Refuses the fit, or is charged for it, before the data are used; a fit that fails later stays charged.
trace : bool or int, default False
    True keeps every iterate, a number k every k-th, in history["iterates"] as (step, support, values). Iterates are
    released anyway, so this costs no privacy.
diagnostics : bool, default False
    Add facts that are computed from the data to history["not_private"]; they are NOT private."""


def _docstring(kind: type[Settings]) -> str:
    summary, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    parameters = "\n".join(["Parameters", "----------", DATA_PARAMETERS, describe(kind), _FRAME_PARAMETERS])
    contents = "The model, the guarantee of this fit, its plan, and public facts of the run (``history``)."
    returns = f"Returns\n-------\nFitResult\n    {contents}"
    return "\n\n".join(part for part in (summary, parameters, returns, rest) if part)


def prepare(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """The solver of a plan with these data in place: each call run(rng, trace=False) of the result is one fit.

    Validation and clipping are done here, once, by the plan's public bounds; the solvers themselves run what this
    returns.

    Parameters
    ----------
    plan : Plan
        What to fit; see ``solvers.plan``.
    X : (n, d) array or scipy.sparse matrix
        One row a record, or one row for every distinct record.
    y : (n,) array
        Their labels.
    counts : (n,) array of int or None, default None
        How often each row occurs; None for once. In all there must be the plan's n rows.

    Privacy
    -------
    Every call of what is returned spends the plan's event; no ledger is charged. It is meant for audits.
    """
    rows = plan.settings.rows(X)
    times = check_counts(plan, rows.shape, counts)
    return plan.settings.prepare(plan, rows, plan.settings.labels(y, rows.shape[0]), times)


def check_counts(plan: Plan, shape: tuple[int, int], counts: Any) -> NDArray[np.int64] | None:
    """The checked counts of the rows, None if each occurs once; in all they must be the plan's n rows of d features."""
    times = None if counts is None else np.array(counts)
    if times is not None and not (times.shape == shape[:1] and times.dtype.kind in "iu" and (times >= 0).all()):
        raise invalid("counts", type(counts).__name__, f"{shape[0]} integers >= 0, one for every row of X")
    n = shape[0] if times is None else int(times.sum())
    if (n, shape[1]) != (plan.n, plan.d):
        size = f"{n} rows of {shape[1]} features"
        raise invalid("X", size, f"the {plan.n} rows of {plan.d} features of the plan for {plan.solver}")
    return None if times is None else times.astype(np.int64)


def written_out(rows: Rows, y: Array, counts: NDArray[np.int64] | None) -> tuple[Rows, Array]:
    """The rows and labels with every record repeated as often as it occurs."""
    if counts is None:
        return rows, y
    which = np.repeat(np.arange(len(counts)), counts)
    return rows.take(which), y[which]


def trace_interval(trace: Any) -> int:
    """The number of steps between two iterates that are kept; 0 if none are."""
    if isinstance(trace, (bool, np.bool_)):
        return int(trace)
    return whole("trace", trace, low=1, repair="Or True for every iterate, False for none.")


def smallest_noise(make_event: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """The calibrated noise, 0 for an infinite budget. The search starts at the noise by zCDP, which is cheap."""
    if math.isinf(epsilon):
        return 0.0
    try:
        guess = calibrate(make_event, epsilon, delta, method="zcdp", relative_tolerance=0.01)
    except DpToolkitError:
        guess = None
    # Where sampling alone keeps the budget, a tiny noise is used all the same, because a plan without noise counts as a
    # release of all records.
    return calibrate(make_event, epsilon, delta, guess=guess) or SMALLEST


def with_smallest_noise(release: Release, epsilon: float, delta: float) -> Release:
    """The release with the smallest noise that keeps the budget, if nothing else is released."""
    multiplier = _smallest_multiplier(replace(release, query="", sensitivity=1.0, scale=1.0), epsilon, delta)
    return replace(release, scale=release.sensitivity * multiplier)


@functools.lru_cache(maxsize=128)
def _smallest_multiplier(unit: Release, epsilon: float, delta: float) -> float:
    """The noise of a release of sensitivity 1. It is remembered: a search takes milliseconds, and fits are repeated."""
    return smallest_noise(lambda m: Repeated(replace(unit, scale=m).event, unit.count), epsilon, delta)


def gaussian_multiplier(steps: int, epsilon: float, delta: float) -> float:
    """The noise multiplier for ``steps`` Gaussian releases: exact."""
    if math.isinf(epsilon):
        return 0.0
    # Raised by one part in 1e12, so that rounding cannot put the sum of the steps above the budget.
    return math.sqrt(steps) / gaussian.mu(epsilon, delta) * (1 + 1e-12)


def noise_source(rng: Any, ledger: Ledger | None, name: str = "rng") -> Source:
    """The source of a fit's noise, from which nothing is drawn yet; a ledger that does not allow seeds refuses one.

    ``name`` is what errors call ``rng``.

    Privacy
    -------
    A ledger's total holds for releases whose noise nobody knows. Whoever guesses a seed can repeat the fit and its
    noise.
    """
    source = Source.of(rng)
    if source.reproducible and isinstance(ledger, Ledger) and not ledger.allow_seeds:
        raise invalid(
            name, "a seed, or a Generator made from one", "unpredictable where a ledger is charged",
            f"Leave {name} out, or use Ledger(..., allow_seeds=True) for tests on data that are not private.",
        )
    return source


def fit_stream(plan: Plan, source: Source) -> np.random.Generator:
    """The Generator of one fit of this plan, unrelated to that of any other plan, even from the same seed.

    A plan without noise has nothing to protect, and draws the same batches as the solver without privacy.
    """
    return source.stream(plan.fingerprint) if all(r.scale > 0 for r in plan.releases) else source.generator


def fit_guarantee(plan: Plan, source: Source, is_void: bool) -> Guarantee:
    """The plan's guarantee, with a note if the noise came from a seed; void if the rows or labels are marked."""
    return stated(plan.guarantee, source, is_void)


def stated(guarantee: Guarantee, source: Source, is_void: bool) -> Guarantee:
    """The guarantee of a plan as that of a fit.

    Privacy
    -------
    A void guarantee has an infinite epsilon: what is known of the rows besides the plan's event has no bound.
    """
    if source.reproducible:
        guarantee = replace(guarantee, notes=(*guarantee.notes, SEEDED_NOTE))
    if not is_void:
        return guarantee
    notes = (*guarantee.notes, f"{marks.VOID}{marks.REASON}")
    return replace(account(Gaussian(0.0), adjacency=guarantee.adjacency), notes=notes)


def reserve(ledger: Ledger | None, plan: Plan, is_void: bool) -> Reservation | None:
    """Charge the ledger for a fit of the plan; see ``charge``."""
    return charge(ledger, plan.event, plan.solver, plan.adjacency, is_void)


def charge(
    ledger: Ledger | None, event: Event, label: str, adjacency: Adjacency, is_void: bool
) -> Reservation | None:
    """The reservation of the event in the ledger, made before the data are used; None without a ledger.

    The ledger raises if it cannot pay, and no budget covers marked rows. The charge stays even if the fit fails before
    ``record``.
    """
    if ledger is None:
        return None
    if not isinstance(ledger, Ledger):
        raise invalid("ledger", ledger, "a dptoolkit.accounting.Ledger or None")
    if is_void:
        raise invalid("ledger", "a Ledger", "left out", f"No budget covers this fit: {marks.REASON}.")
    return ledger.reservation(event, label=label, adjacency=adjacency)


def record(reservation: Reservation | None) -> None:
    """Confirm the reservation of a fit that is finished."""
    if reservation is not None:
        reservation.confirm()
