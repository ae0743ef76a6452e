"""The private choice itself: runs on the private rows, of which only the best is released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dptoolkit import marks, progress
from dptoolkit._validate import invalid
from dptoolkit.accounting import Guarantee, Ledger
from dptoolkit.accounting.rounds import TruncatedNegativeBinomial
from dptoolkit.data import Rows
from dptoolkit.randomness import SecureStream
from dptoolkit.randomness.rounds import geometric_rounds, logarithmic_rounds
from dptoolkit.solvers import FitResult, settings_class
from dptoolkit.solvers.frame.fit import charge, noise_source, record, stated
from dptoolkit.solvers.frame.run import Run
from dptoolkit.solvers.frame.secure import noise_kind
from dptoolkit.solvers.frame.settings import Settings, build
from dptoolkit.tuning.choice import TuningPlan, check_candidates
from dptoolkit.tuning.choice import plan as make_plan
from dptoolkit.types import Array


@dataclass(frozen=True)
class TuningResult:
    """The best run: its model, the candidate that it drew, its noisy score, and what the whole choice guarantees."""

    model: FitResult
    choice: Mapping[str, Any]
    score: float
    plan: TuningPlan
    guarantee: Guarantee

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.choice.items())
        return f"<TuningResult: {settings}; score {self.score:.3g} with noise; {self.model!r}>"


def tune(
    solver: str,
    candidates: Sequence[Mapping[str, Any]],
    X: Any,
    y: Any,
    *,
    public: tuple[Any, Any] | None = None,
    label_values: Any = None,
    n_features: int | None = None,
    rng: Any = None,
    randomness: str | None = None,
    ledger: Ledger | None = None,
    **arguments: Any,
) -> TuningResult:
    """Train and choose among ``candidates`` within one budget; see ``tuning.plan`` for the further arguments.

    Parameters
    ----------
    solver : str
        As in ``tuning.plan``.
    candidates : sequence of mapping
        As in ``tuning.plan``.
    X : array-like or sparse matrix of shape (n, d)
        The private rows.
    y : array-like of shape (n,)
        The labels.
    public : tuple of array-like, or None, default None
        Public data (X, y) for the scores; all private rows are then used for training.
    label_values : tuple of float, or None, default None
        As in every solver.
    n_features : int or None, default None
        As in every solver.
    rng : int, numpy.random.Generator or None, default None
        As in every solver; the number of runs and the candidates are drawn from it too.
    randomness : {"secure", "fast"} or None, default None
        As in every solver; with "secure" the number of runs, the candidates and the scores' noise are exact, too.
    ledger : Ledger or None, default None
        The ledger to charge before the data are used; it may refuse.
    **arguments : Any
        ``epsilon``, ``delta``, ``expected_runs``, ``law``, ``validation``, ``score_bound`` and the shared settings.

    Privacy
    -------
    The event is the plan's, ``BestOf`` one run, made without data; a ledger refuses it, or is charged for it, before
    the data are used. Marked rows (``marks``) have a void guarantee, and no ledger takes them; public rows may be
    marked. The number of runs is drawn independently of the data. It is not returned, but how long the call
    takes shows it: do not publish the time.
    """
    check_candidates(candidates)
    kind = settings_class(solver)
    # Settings of the first candidate, for what they say about rows and labels.
    own = {name: value for name, value in arguments.items() if name in kind.__dataclass_fields__}
    data = _records(build(kind, {"epsilon": 1.0} | own | dict(candidates[0])), X, y, label_values, n_features)
    scored = None
    if public is not None:
        if arguments.setdefault("validation", "public") != "public":
            raise invalid("validation", arguments["validation"], '"public" where public rows are given')
        scored = _records(data.settings, *public, label_values, data.rows.shape[1])
    elif arguments.get("validation") == "public":
        raise invalid("public", None, 'a pair (X, y) of public data for validation="public"')
    n, d = data.rows.shape
    arguments["randomness"] = noise_kind(randomness, rng)
    return _tuned(make_plan(solver, candidates, n=n, d=d, **arguments), data, scored, rng, ledger)


def tune_by(plan: TuningPlan, X: Any, y: Any, *, rng: Any = None, ledger: Ledger | None = None) -> TuningResult:
    """What ``tune`` does, by a plan that was made before and holds rows out; see there.

    Privacy
    -------
    As for ``tune``.
    """
    return _tuned(plan, _records(plan.plans[0].settings, X, y, None, None), None, rng, ledger)


class _Records(NamedTuple):
    """Checked rows and labels, the settings by which they were checked, and whether the rows are marked."""

    settings: Settings
    rows: Rows
    labels: Array
    is_void: bool

    def take(self, which: Any) -> _Records:
        return self._replace(rows=self.rows.take(which), labels=self.labels[which])


def _records(settings: Settings, X: Any, y: Any, label_values: Any, n_features: int | None) -> _Records:
    rows = settings.validated_rows(X, n_features)
    return _Records(settings, rows, settings.labels(y, rows.shape[0], label_values), marks.is_marked(X, y))


def _tuned(plan: TuningPlan, data: _Records, public: _Records | None, rng: Any, ledger: Ledger | None) -> TuningResult:
    """The best run by a plan; the ledger is charged before the first."""
    source, first = noise_source(rng, ledger, is_secure=plan.secure is not None), plan.plans[0]
    if plan.secure is not None and rng is not None:
        raise invalid(
            "rng", "given", "left out for a plan with secure noise", "Its key comes from the operating system."
        )
    reservation = charge(ledger, plan.event, f"choice for {first.solver}", first.adjacency, data.is_void)
    train, scored = data, public
    if scored is None:
        train, scored = (data.take(which) for which in plan.held_out())
    # Progress of the runs, one after the other, would show how many there are.
    records = train.rows, train.labels, scored.rows, scored.labels
    with progress.watched(None):
        if plan.secure is None:
            best = _best_run(plan, *records, source.stream(plan.fingerprint))
        else:
            with SecureStream() as stream:
                best = _best_run(plan, *records, stream)
    record(reservation)
    guarantee = stated(plan.guarantee, source, data.is_void)
    score, _, which, model = best
    return TuningResult(replace(model, guarantee=guarantee), plan.candidates[which], score, plan, guarantee)


def number_of_runs(runs: TruncatedNegativeBinomial, rng: np.random.Generator) -> int:
    """One draw of the number of runs: the law is geometric (eta = 1) or logarithmic (eta = 0), on 1, 2, ..."""
    return int(rng.geometric(runs.gamma) if runs.eta == 1 else rng.logseries(1 - runs.gamma))


class _FastDraws:
    """What a choice draws, from a Generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def runs(self, law: TruncatedNegativeBinomial) -> int:
        return number_of_runs(law, self.rng)

    def below(self, end: int) -> int:
        return int(self.rng.integers(end))

    def tie_breaker(self) -> float:
        return float(self.rng.random())

    def score(self, plan: TuningPlan, model: FitResult, X: Any, y: Array) -> float:
        score = plan.scoring.of(model, X, y)
        return score if plan.score is None else float(plan.score.mechanism.release(score, self.rng))


class _SecureDraws:
    """What a choice draws, from a SecureStream: every law is exact.

    Privacy
    -------
    The number of runs has the law of the plan, to the last digit of its ``gamma``.
    """

    def __init__(self, stream: SecureStream) -> None:
        self.rng = stream

    def runs(self, law: TruncatedNegativeBinomial) -> int:
        draw = geometric_rounds if law.eta == 1 else logarithmic_rounds
        return draw(self.rng, Fraction(law.gamma))

    def below(self, end: int) -> int:
        return self.rng.below(end)

    def tie_breaker(self) -> int:
        return self.rng.below(2**128)

    def score(self, plan: TuningPlan, model: FitResult, X: Any, y: Array) -> float:
        if plan.score is None:
            return plan.scoring.of(model, X, y)
        return plan.scoring.noisy(model, X, y, plan.score.scale, self.rng)


def _best_run(
    plan: TuningPlan, rows: Rows, labels: Array, scored_rows: Rows, scored_labels: Array, rng: Any
) -> tuple[float, float, int, FitResult]:
    """(noisy score, tie breaker, number of the candidate, model) of the best run.

    Privacy
    -------
    The number of runs and the candidates drawn are independent of the data. A run's model is the candidate's release,
    its score the score's. Ties are broken by a random number that is part of the run, so that runs are fully ordered,
    as the bound requires.
    """
    draws = _SecureDraws(rng) if isinstance(rng, SecureStream) else _FastDraws(rng)
    runs: dict[int, Run] = {}
    best: tuple[float, float, int, FitResult] | None = None
    for _ in range(draws.runs(plan.runs)):
        which = draws.below(len(plan.plans))
        candidate = plan.plans[which]
        if which not in runs:
            runs[which] = candidate.settings.bind(candidate, rows, labels)
        weights, history = runs[which].fit(rng, 0)
        coef, intercept = candidate.settings.model(weights)
        model = FitResult(coef, intercept, None, candidate, history)
        run = (draws.score(plan, model, scored_rows.matrix, scored_labels), draws.tie_breaker(), which, model)
        if best is None or run[:2] > best[:2]:
            best = run
    assert best is not None
    return best
