"""The private choice itself: runs on the private rows, of which only the best is released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptoolkit import marks, progress
from dptoolkit._validate import invalid
from dptoolkit.accounting import Guarantee, Ledger
from dptoolkit.accounting.rounds import TruncatedNegativeBinomial
from dptoolkit.data import Rows
from dptoolkit.solvers import FitResult, settings_class
from dptoolkit.solvers.frame.fit import charge, noise_source, record, stated
from dptoolkit.solvers.frame.settings import build
from dptoolkit.tuning.choice import TuningPlan
from dptoolkit.tuning.choice import plan as make_plan


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
    kind = settings_class(solver)
    probe = _probe(kind, candidates, arguments)
    rows = probe.validated_rows(X, n_features)
    labels = probe.labels(y, rows.shape[0], label_values)
    if public is not None:
        if arguments.setdefault("validation", "public") != "public":
            raise invalid("validation", arguments["validation"], '"public" where public rows are given')
        scored_rows = probe.validated_rows(public[0], rows.shape[1])
        scored_labels = probe.labels(public[1], scored_rows.shape[0], label_values)
    elif arguments.get("validation") == "public":
        raise invalid("public", None, 'a pair (X, y) of public data for validation="public"')
    plan = make_plan(solver, candidates, n=rows.shape[0], d=rows.shape[1], **arguments)
    source = noise_source(rng, ledger)
    is_void = marks.is_marked(X, y)
    first = plan.plans[0]
    reservation = charge(ledger, plan.event, f"choice for {first.solver}", first.adjacency, is_void)
    if public is None:
        train, held_out = plan.held_out()
        scored_rows, scored_labels = rows.take(held_out), labels[held_out]
        rows, labels = rows.take(train), labels[train]
    # Progress of the runs, one after the other, would show how many there are.
    with progress.watched(None):
        best = _best_run(plan, rows, labels, scored_rows, scored_labels, source.stream(plan.fingerprint))
    record(reservation)
    guarantee = stated(plan.guarantee, source, is_void)
    _, _, which, model = best
    return TuningResult(replace(model, guarantee=guarantee), plan.candidates[which], best[0], plan, guarantee)


def _probe(kind: Any, candidates: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> Any:
    """Settings of the first candidate, for what they say about rows and labels."""
    if not candidates:
        raise invalid("candidates", candidates, "at least one mapping of settings", "For example [{'steps': 20}].")
    own = {name: value for name, value in arguments.items() if name in kind.__dataclass_fields__}
    return build(kind, {"epsilon": 1.0} | own | dict(candidates[0]))


def number_of_runs(runs: TruncatedNegativeBinomial, rng: np.random.Generator) -> int:
    """One draw of the number of runs: the law is geometric (eta = 1) or logarithmic (eta = 0), on 1, 2, ..."""
    return int(rng.geometric(runs.gamma) if runs.eta == 1 else rng.logseries(1 - runs.gamma))


def _best_run(
    plan: TuningPlan, rows: Rows, labels: Any, scored_rows: Rows, scored_labels: Any, rng: np.random.Generator
) -> tuple[float, float, int, FitResult]:
    """(noisy score, tie breaker, number of the candidate, model) of the best run.

    Privacy
    -------
    The number of runs and the candidates drawn are independent of the data. A run's model is the candidate's release,
    its score the score's. Ties are broken by a random number that is part of the run, so that runs are fully ordered,
    as the bound requires.
    """
    runs: dict[int, Any] = {}
    best: tuple[float, float, int, FitResult] | None = None
    for _ in range(number_of_runs(plan.runs, rng)):
        which = int(rng.integers(len(plan.plans)))
        candidate = plan.plans[which]
        if which not in runs:
            runs[which] = candidate.settings.bind(candidate, rows, labels)
        weights, history = runs[which].fit(rng, 0)
        coef, intercept = candidate.settings.model(weights)
        model = FitResult(coef, intercept, None, candidate, history)
        score = plan.scoring.of(model, scored_rows.matrix, scored_labels)
        if plan.score is not None:
            score = float(plan.score.mechanism.release(score, rng))
        run = (score, float(rng.random()), which, model)
        if best is None or run[:2] > best[:2]:
            best = run
    assert best is not None
    return best
