"""The frame of every fit: validate, plan, reserve, run, record, once for all solvers; results and their margins."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dptoolkit import losses, marks
from dptoolkit._validate import flag, invalid
from dptoolkit.accounting import Gaussian, Guarantee, Ledger, account
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.ledger import Reservation
from dptoolkit.accounting.report import as_html
from dptoolkit.adjacency import Adjacency
from dptoolkit.data import check_rows
from dptoolkit.data.blocks import BlockedRows
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Run, trace_interval
from dptoolkit.solvers.frame.secure import FAST, SECURE, UNSEEDED, noise_kind, not_secure, secured
from dptoolkit.solvers.frame.settings import Settings, build, describe, keywords
from dptoolkit.types import Array

SEEDED_NOTE = (
    "reproducible from its seed, so not a release: whoever knows or guesses the seed takes the noise off again. "
    "Fit without a seed what others will see"
)


@dataclass(frozen=True, repr=False)
class FitResult:
    """A fitted model.

    Attributes
    ----------
    coef : ndarray
        The weights of the features; (classes, d) for several classes.
    intercept : float or ndarray
        The intercept; 0 without one.
    guarantee : Guarantee or None
        What this fit guarantees; None for a fit without privacy.
    plan : Plan or None
        What the fit released; None for a fit without privacy.
    history : mapping of str to object
        Public facts of the run: noise scales, chosen vertices, iterates if requested. With ``diagnostics=True`` it also
        holds quantities that are NOT private, under the key "not_private".
    """

    coef: Array
    intercept: float | Array
    guarantee: Guarantee | None
    plan: Plan | None
    history: Mapping[str, Any]

    def plot(self, path: str | Path, names: Sequence[str] | None = None) -> None:
        """The largest weights, to a PNG, SVG or PDF file; ``names`` are those of the features.

        Parameters
        ----------
        path : str or Path
            A file ending in .png, .svg or .pdf.
        names : sequence of str or None, default None
            The names of the features.
        """
        from dptoolkit import plots

        plots.save(plots.weights(self, names), path)

    def __repr__(self) -> str:
        nonzero = int(np.count_nonzero(self.coef))
        head = f"<FitResult: {nonzero:,} of {self.coef.size:,} coefficients are not zero"
        return f"{head}; not private>" if self.plan is None else f"{head};\n {self.plan!r}>"

    def _repr_html_(self) -> str:
        return as_html(repr(self) if self.guarantee is None else f"{self!r}\n\n{self.guarantee}")


def fit(
    settings: Settings,
    X: Any,
    y: Any,
    *,
    label_values: Any = None,
    n_features: int | None = None,
    rng: Any = None,
    randomness: str | None = None,
    ledger: Ledger | None = None,
    trace: Any = False,
    diagnostics: Any = False,
) -> FitResult:
    """One private fit.

    Privacy
    -------
    The event is that of the plan, which is made without data. A ledger refuses it, or is charged for it, before the
    data are used. Marked rows (``marks``) have a void guarantee, and no ledger takes them.
    """
    if isinstance(X, BlockedRows):
        return fit_blocks(settings, X, y, label_values, n_features, rng, randomness, ledger, trace, diagnostics)
    rows = settings.validated_rows(X, n_features)
    labels = settings.labels(y, rows.shape[0], label_values)
    plan = planned(settings, *rows.shape, randomness, rng)
    every, diagnose = trace_interval(trace), flag("diagnostics", diagnostics)
    is_void = marks.is_marked(X, y)
    source = noise_source(rng, ledger, is_secure=is_secure(plan))
    reservation = reserve(ledger, plan, is_void)
    run = plan.settings.bind(plan, rows, labels)
    weights, history = run.fit(fit_stream(plan, source), every)
    result = result_of(plan, source, is_void, run, weights, history, diagnose)
    record(reservation)
    return result


def fit_blocks(
    settings: Settings, X: BlockedRows, y: Any, label_values: Any, n_features: int | None, rng: Any,
    randomness: str | None, ledger: Ledger | None, trace: Any, diagnostics: Any,
) -> FitResult:  # fmt: skip
    """``fit`` for rows in blocks, which may lie in other processes.

    Privacy
    -------
    As for ``fit``: blocks answer with exact sums, and the noise is drawn here, once.
    """
    if flag("diagnostics", diagnostics):
        raise invalid("diagnostics", True, "False where X is in blocks", "They need all records in one place.")
    if noise_kind(randomness, rng) == SECURE:
        charged = "The ledger must have been made with allow_fast_noise=True." if ledger is not None else ""
        raise not_secure("where X is in blocks", needs=charged)
    every = trace_interval(trace)
    settings.check_blocks()
    blocks = X.checked(settings, y, n_features, label_values)
    plan = planned(settings, *blocks.shape, randomness, rng)
    source = noise_source(rng, ledger, is_secure=is_secure(plan))
    # Bound before the ledger is charged: this touches no record, and may refuse.
    run = plan.settings.bind_blocks(plan, blocks)
    reservation = reserve(ledger, plan, is_void=False)
    weights, history = run.fit(fit_stream(plan, source), every)
    result = result_of(plan, source, False, run, weights, history, diagnose=False)
    record(reservation)
    return result


def planned(settings: Settings, n: int, d: int, randomness: Any = None, rng: Any = None) -> Plan:
    """The plan of a fit, with the noise that ``noise_kind`` chooses.

    Privacy
    -------
    Touches no data. Noise from a seed can be drawn again by whoever guesses it, so it is never called secure.
    """
    kind = noise_kind(randomness, rng)
    plan = settings.plan(n, d)
    # Where no noise is asked for there is none to make secure.
    return plan if randomness is None and not plan.has_noise else secured(plan, kind)


def result_of(
    plan: Plan, source: Source, is_void: bool, run: Run, weights: Array, history: dict[str, Any], diagnose: bool
) -> FitResult:
    """The result of what a run's ``fit`` returned."""
    if diagnose:
        history["not_private"] = run.diagnose(weights, history)
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


DATA_PARAMETERS = """X : array-like or sparse matrix of shape (n, d)
    One row per record.
y : array-like of shape (n,)
    The labels."""
# The arguments of every private solver besides X, y and its settings.
_FRAME = ("label_values", "n_features", "rng", "randomness", "ledger", "trace", "diagnostics")
_FRAME_PARAMETERS = f"""label_values : tuple of float, or None, default None
    The two labels of a binary loss if they are not 0 and 1, the positive one last, for example (-1, 1). They are a
    public convention, never inferred from the data.
n_features : int or None, default None
    Public number of features: a narrower X gets columns of zeros, a wider one is refused. Give it if X was read from a
    sparse file, whose width is its largest column.
rng : int, numpy.random.Generator or None, default None
    A seed, a Generator, or None for fresh entropy. Never publish a fit that was made with a seed: whoever guesses it
    can remove the noise. Another plan draws other noise from the same seed. A Generator advances with every fit and may
    be shared by threads, but not copied: two fits of one plan with copies have the same noise.
randomness : {{"secure", "fast"}} or None, default None
    "secure" draws noise that is exact in every digit from a cryptographic generator, and adds it to sums of integers.
    The bits of such a release reveal no more than its guarantee states. It takes no ``rng``, and settings without it
    raise an error. "fast" draws noise in doubles, which the attack of docs/secure-noise.md can undo. None is
    "{UNSEEDED}", and "fast" where ``rng`` is given.
ledger : Ledger or None, default None
    The ledger to charge before the data are used; it may refuse. A fit that fails later stays charged.
trace : bool or int, default False
    True keeps every iterate, a number k every k-th, in history["iterates"] as (step, support, values). Iterates are
    released anyway, so this costs no privacy.
diagnostics : bool, default False
    Whether to add facts that are computed from the data to history["not_private"]; they are NOT private."""


def _docstring(kind: type[Settings]) -> str:
    words, heading, privacy = inspect.cleandoc(kind.__doc__ or "").partition("Privacy\n-------\n")
    parameters = "\n".join(["Parameters", "----------", DATA_PARAMETERS, describe(kind), _FRAME_PARAMETERS])
    contents = "The model, the guarantee of this fit, its plan, and public facts of the run (``history``)."
    returns = f"Returns\n-------\nFitResult\n    {contents}"
    return "\n\n".join(part for part in (words.strip(), parameters, returns, heading + privacy) if part)


def bind(plan: Plan, X: Any, y: Any, counts: Any = None) -> Run:
    """The solver of a plan with these data in place: each call run(rng, trace=False) of the result is one fit.

    Validation and clipping are done here, once, by the plan's public bounds; the solvers themselves run what this
    returns.

    Parameters
    ----------
    plan : Plan
        What to fit; see ``solvers.plan``.
    X : array-like or sparse matrix of shape (n, d)
        One row per record, or one row per distinct record.
    y : array-like of shape (n,)
        The labels.
    counts : array-like of int, or None, default None
        How often each row occurs; None for once. In all there must be the plan's n rows.

    Privacy
    -------
    Every call of what is returned spends the plan's event; no ledger is charged. It is meant for audits.
    """
    # A run outlives this call, and may be asked for fits after X was changed: its rows are its own.
    rows = plan.settings.validated_rows(check_rows(X))
    times = check_counts(plan, rows.shape, counts)
    if times is not None and plan.secure is not None:
        # With other counts a record may stand at another place, where a product with a dense matrix may round its
        # margin otherwise. The products of a CSR matrix add up each row alone.
        rows = rows.as_sparse()
    return plan.settings.bind(plan, rows, plan.settings.labels(y, rows.shape[0]), times)


def check_counts(plan: Plan, shape: tuple[int, int], counts: Any) -> NDArray[np.int64] | None:
    """The checked counts of the rows, None if each occurs once; in all they must be the plan's n rows of d features."""
    if not plan.is_one_fit:
        raise invalid("plan", f"a {type(plan).__name__}", "the plan of one fit", "Its part is: plan.part.")
    times = None if counts is None else np.array(counts)
    if times is not None and not (times.shape == shape[:1] and times.dtype.kind in "iu" and (times >= 0).all()):
        raise invalid("counts", type(counts).__name__, f"{shape[0]} integers >= 0, one for every row of X")
    n = shape[0] if times is None else int(times.sum())
    if (n, shape[1]) != (plan.n, plan.d):
        size = f"{n} rows of {shape[1]} features"
        raise invalid("X", size, f"the {plan.n} rows of {plan.d} features of the plan for {plan.solver}")
    return None if times is None else times.astype(np.int64)


def is_secure(plan: Any) -> bool:
    """Whether a ledger may take the plan's noise unasked: it is secure, or there is none at all."""
    return plan.secure is not None or not plan.has_noise


def noise_source(rng: Any, ledger: Ledger | None, name: str = "rng", *, is_secure: bool = False) -> Source:
    """The source of a fit's noise, from which nothing is drawn yet; a ledger may refuse a seed, or noise in doubles.

    ``name`` is what errors call ``rng``; ``is_secure`` says that the noise of the fit is secure.

    Privacy
    -------
    A ledger's total holds for releases whose noise nobody knows. Whoever guesses a seed can repeat the fit and its
    noise. Of noise in doubles the last digits can show which data it was added to.
    """
    source = Source.of(rng)
    if not isinstance(ledger, Ledger):
        return source
    if source.reproducible and not ledger.allow_seeds:
        raise invalid(
            name,
            "a seed, or a Generator made from one",
            "unpredictable where a ledger is charged",
            f"Leave {name} out, or use Ledger(..., allow_seeds=True) for tests on data that are not private.",
        )
    if not (is_secure or source.reproducible or ledger.allow_fast_noise or UNSEEDED == FAST):
        repair = f"Leave randomness and {name} out, or make the ledger with allow_fast_noise=True."
        raise invalid("randomness", FAST, "'secure' where a ledger is charged", repair)
    return source


def fit_stream(plan: Plan, source: Source) -> np.random.Generator:
    """The Generator of one fit of this plan, unrelated to that of any other plan, even from the same seed.

    A plan without noise has nothing to protect, and draws the same batches as the solver without privacy. A run with
    secure noise takes no Generator: its key is its own.
    """
    if plan.secure is not None:
        return source.generator
    return source.stream(plan.fingerprint) if plan.has_noise else source.generator


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


def charge(ledger: Ledger | None, event: Event, label: str, adjacency: Adjacency, is_void: bool) -> Reservation | None:
    """The reservation of the event in the ledger, made before the data are used; None without a ledger.

    The ledger raises if its budget is too small, and no budget covers marked rows. The charge stays even if the fit
    fails before ``record``.
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


# --- solvers without privacy ----------------------------------------------------------------------------------

Function = TypeVar("Function", bound=Callable[..., Any])

# The parameters that several of these solvers have.
_TEXTS = {
    "loss": f"{losses.described(losses.SCALAR)}.",
    "sparsity": "Number of features that are kept, not counting an intercept.",
    "steps": "Number of iterations.",
    "step_size": "Length of a step.",
    "batch_size": "Number of rows of a batch.",
    "l2": "Weight of a term l2/2 |w|^2.",
    "fit_intercept": "Add a column of ones.",
    "rng": "A seed, a Generator, or None for fresh entropy, from which batches are drawn.",
    "trace": 'True keeps every iterate, a number k every k-th, in history["iterates"] as (step, support, values).',
    "label_values": "The two labels of a binary loss if they are not 0 and 1, the positive one last.",
}
_END = """Returns
-------
FitResult
    The model; its ``guarantee`` and ``plan`` are None.

Privacy
-------
NOT private: no record is bounded and no noise is drawn, so one record can change the whole model."""


def without_privacy(**texts: str) -> Callable[[Function], Function]:
    """Complete the docstring of a solver without privacy, by its signature; ``texts`` describe its own parameters."""

    def complete(function: Function) -> Function:
        described = _TEXTS | texts
        lines = ["Parameters", "----------", DATA_PARAMETERS]
        for name, parameter in list(inspect.signature(function).parameters.items())[2:]:
            kind = "int, numpy.random.Generator or None" if name == "rng" else parameter.annotation
            default = "" if parameter.default is parameter.empty else f", default {parameter.default!r}"
            text = textwrap.fill(described[name], 112, initial_indent="    ", subsequent_indent="    ")
            lines += [f"{name} : {kind}{default}", text]
        function.__doc__ = "\n\n".join([inspect.cleandoc(function.__doc__ or ""), "\n".join(lines), _END])
        return function

    return complete


def plain_result(weights: NDArray[np.float64], history: dict[str, Any], fit_intercept: bool) -> FitResult:
    """The result of a fit without a plan; an intercept's weight is the last."""
    coef, intercept = (weights[:-1], float(weights[-1])) if fit_intercept else (weights, 0.0)
    return FitResult(coef, intercept, None, None, history)


def margins(result: FitResult, X: Any, n_features: int | None = None) -> Array:
    """The margins of new rows under a fitted model; rows are prepared as the fit's were.

    They are positive for label 1 of two, (rows, classes) for several, and the predictions themselves for regression.

    Parameters
    ----------
    result : FitResult
        The fitted model.
    X : array-like or sparse matrix of shape (n, d)
        New rows.
    n_features : int or None, default None
        The public width: a narrower X gets columns of zeros.

    Privacy
    -------
    A model is public: what is computed from it and from other rows gives nothing away about the rows of the fit.
    """
    rows = check_rows(X, n_features)
    width = result.coef.shape[-1]
    if rows.shape[1] != width:
        raise invalid("X.shape", rows.shape, f"(rows, {width})", "n_features adds columns of zeros.")
    preparation = result.history.get("preparation")
    if preparation is None:
        return np.asarray(rows.matrix @ result.coef.T + result.intercept)
    return np.asarray(preparation.margins(preparation.in_units(rows), result.coef, result.intercept))
