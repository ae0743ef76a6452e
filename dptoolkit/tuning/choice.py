"""The plan of a private choice among settings of one solver, and the score by which runs are compared."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit import solvers
from dptoolkit._validate import invalid, one_of, positive, real, unheard, warn
from dptoolkit.accounting import BestOf, Composed, Guarantee, account, structure
from dptoolkit.accounting.events import Event
from dptoolkit.accounting.report import Printed, number, table
from dptoolkit.accounting.rounds import TruncatedNegativeBinomial
from dptoolkit.errors import InvalidValue
from dptoolkit.losses import REGRESSION, Loss
from dptoolkit.models.notes import choice_notes
from dptoolkit.randomness import SecureStream, rounded_normals
from dptoolkit.solvers import FitResult, Plan, Release, margins
from dptoolkit.solvers.frame.plan import GAUSSIAN, gaussian_multiplier
from dptoolkit.solvers.frame.secure import FAST, SECURE, SecurePlan
from dptoolkit.solvers.frame.settings import check_budget, public_bound
from dptoolkit.types import Array


@dataclass(frozen=True)
class Score:
    """The mean over rows of one number per row: 1 for a right label, or minus the clipped error of a prediction.

    ``bound`` is for regression: labels and predictions are clipped to it.
    """

    loss: Loss
    bound: float | None = None

    def __post_init__(self) -> None:
        if self.loss.task == REGRESSION:
            public_bound("score_bound", self.bound, "the largest |label|, which also bounds predictions")

    @property
    def width(self) -> float:
        """The length of the interval of one row's number, which includes 0, the number of a row that is left out."""
        return 1.0 if self.bound is None else 2.0 * self.bound

    def sensitivity(self, rows: int) -> float:
        """How far one record of the scored rows can move the score.

        Privacy
        -------
        Each row's number is in [0, 1], or in [-2 bound, 0]; one record changes one of ``rows`` numbers, whether
        it is replaced or left out. So the mean moves by at most the interval's length over ``rows``.
        """
        return self.width / rows

    def of(self, model: FitResult, X: Any, y: Array) -> float:
        """The exact score; NOT private unless X and y are public."""
        mean = float(np.mean(self.each(model, X, y)))
        return mean if self.bound is None else -mean

    def each(self, model: FitResult, X: Any, y: Array) -> Array:
        """What every row contributes: 1 for a right label, or the clipped error, from 0 to ``width``."""
        outputs = margins(model, X)
        if self.bound is not None:
            error = np.clip(outputs, -self.bound, self.bound) - np.clip(y, -self.bound, self.bound)
            # A model that overflowed predicts nothing: its rows count as the worst.
            return np.where(np.isnan(error), self.width, np.abs(error))
        right = outputs.argmax(axis=1) == y.argmax(axis=1) if outputs.ndim == 2 else (outputs > 0) == (y > 0.5)
        return right.astype(np.float64)

    def noisy(self, model: FitResult, X: Any, y: Array, scale: float, stream: SecureStream) -> float:
        """The score with rounded noise of at least ``scale``: a sum of whole numbers, one per row.

        Privacy
        -------
        In units of a public grid a row contributes from 0 to at most ``width``, rounded down, so replacing one changes
        the sum by at most that: the stated sensitivity holds exactly.
        """
        unit = math.ldexp(1.0, math.ceil(math.log2(self.width)) - _SCORE_BITS)
        whole = np.minimum(np.rint(self.each(model, X, y) / unit), math.floor(Fraction(self.width) / Fraction(unit)))
        noise = math.ceil(Fraction(scale) * len(y) / Fraction(unit) * (1 + Fraction(1, 2**40)))
        total = int(whole.astype(np.int64).sum()) + int(rounded_normals(stream, noise, 1)[0])
        return (total if self.bound is None else -total) * unit / len(y)


# --- The plan of a private choice, made without data: candidates, runs, noise, and what the choice costs ------
#
# One run draws a candidate at random, trains it on the training rows, and scores it with noise on the others. A random
# number of runs is made, and only the best is released. Papernot and Steinke 2022 (arXiv:2110.03620) bound what that
# gives away in terms of one run; the accounting knows it as the event ``BestOf``.


GEOMETRIC, LOGARITHMIC = "geometric", "logarithmic"
# The seed by which rows are held out. It is fixed, as the choice of rows must not depend on the data.
_SPLIT_SEED = 20_220
# Digits of a row's contribution to a score with secure noise.
_SCORE_BITS = 20
# The share of the budget that a choice may leave unused, so that the search for a run's epsilon is short.
_UNUSED = 0.004


def grid(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """All combinations of the values given for each setting, as candidates.

    Parameters
    ----------
    **values : iterable of object
        The values of each setting, by name.
    """
    columns = {name: list(entries) for name, entries in values.items()}
    return [dict(zip(columns, row, strict=True)) for row in itertools.product(*columns.values())]


@dataclass(frozen=True, repr=False)
class TuningPlan(Printed):
    """Everything about a private choice that is fixed before the data are seen.

    ``plans`` has the plan of one run of each candidate, on the training rows; ``score`` is the release of a run's
    score, None if it is computed on public rows; ``runs`` is the law of the number of runs; ``full`` is the plan of the
    first candidate without a choice: all rows, the whole budget.
    """

    candidates: tuple[Mapping[str, Any], ...]
    plans: tuple[Plan, ...]
    score: Release | None
    scoring: Score
    runs: TruncatedNegativeBinomial
    n: int
    epsilon: float
    delta: float
    full: Plan

    @property
    def training(self) -> int:
        """The number of rows that each run trains on."""
        return self.plans[0].n

    @property
    def run_event(self) -> Event:
        """The event of one run, whichever candidate it draws."""
        return one_run([plan.event for plan in self.plans], None if self.score is None else self.score.event)

    @property
    def event(self) -> Event:
        """The event of the whole choice."""
        return BestOf(self.run_event, self.runs)

    @property
    def guarantee(self) -> Guarantee:
        """Computed from ``event``."""
        guarantee = account(self.event, adjacency=self.plans[0].adjacency)
        return replace(guarantee, notes=choice_notes(self.n, self.secure), asked_delta=self.delta)

    @property
    def secure(self) -> SecurePlan | None:
        """The facts of the runs' secure noise, those of the first candidate; None for noise in doubles."""
        return self.plans[0].secure

    @property
    def run_epsilon(self) -> float:
        """The epsilon, at the same delta, that each run is planned with."""
        return float(self.plans[0].settings.epsilon)

    @property
    def price(self) -> float:
        """How many times as much noise a run has as the first candidate would have without a choice."""
        return self.plans[0].noise / self.full.noise

    @property
    def chance(self) -> float:
        """The probability that a given candidate is drawn at all, so that it can win."""
        miss = 1 - 1 / len(self.plans)
        return 1.0 if miss == 0 else -math.expm1(float(self.runs.log_pgf(np.asarray(math.log(miss)))))

    @property
    def fingerprint(self) -> str:
        """A hash of everything in the plan; two different choices draw from unrelated streams."""
        record = {"plans": [plan.fingerprint for plan in self.plans], "event": self.event.to_dict(), "n": self.n}
        return hashlib.sha256(json.dumps(record, sort_keys=True, default=repr).encode()).hexdigest()

    def held_out(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The numbers of the rows to train on and of those to score on, by a fixed public rule."""
        order = np.random.default_rng(_SPLIT_SEED).permutation(self.n)
        return np.sort(order[: self.training]), np.sort(order[self.training :])

    def __repr__(self) -> str:
        budget = f"epsilon {self.epsilon:g} at delta {self.delta:g}"
        return f"<TuningPlan for {self.plans[0].solver}: {len(self.plans)} candidates, n={self.n:,}, {budget}>"

    def __str__(self) -> str:
        rows = [
            [", ".join(f"{k}={v}" for k, v in c.items()), number(p.noise), "hopeless" if _is_hopeless(p) else ""]
            for c, p in zip(self.candidates, self.plans, strict=True)
        ]
        where = "public rows" if self.score is None else f"{self.n - self.training:,} held-out rows"
        noise = "" if self.score is None else f", with noise {number(self.score.scale)}"
        head = (
            f"Private choice for {self.plans[0].solver}: n={self.n:,}, {len(self.plans)} candidates, "
            f"{self.runs.mean:.3g} runs expected; each candidate is drawn at least once with probability "
            f"{self.chance:.2f}\nEach run trains on {self.training:,} rows at epsilon {self.run_epsilon:.3g} of "
            f"{self.epsilon:.3g} and is scored on {where}{noise}."
        )
        return "\n\n".join([head, table(["candidate", "noise", "outlook"], rows), self.advice(), str(self.guarantee)])

    def cost(self) -> str:
        """A sentence on what the choice costs, compared with making none."""
        return (
            f"A run has {self.price:.2f} times the noise that the same settings have with all rows and the whole "
            f"budget. That is as if {100 * (1 - 1 / self.price):.0f} % of the rows were thrown away."
        )

    def advice(self) -> str:
        """The cost, and what costs nothing."""
        rule = "Where the solver has a rule for a setting that you would choose, leaving it to the rule is free."
        return f"{self.cost()} {rule}"


def plan(
    solver: str,
    candidates: Sequence[Mapping[str, Any]],
    *,
    n: int,
    d: int,
    epsilon: float,
    delta: float,
    expected_runs: float | None = None,
    law: str = LOGARITHMIC,
    validation: float | str = 0.2,
    score_bound: float | None = None,
    randomness: str | None = None,
    **settings: Any,
) -> TuningPlan:
    """The plan of a private choice among ``candidates``, settings of one solver.

    Parameters
    ----------
    solver : str
        The name of a private solver.
    candidates : sequence of mapping
        Settings that differ; ``grid`` makes all combinations.
    n : int
        Number of rows of the private data.
    d : int
        Number of features of the private data.
    epsilon : float
        The total budget, at ``delta``: choice, training and scores.
    delta : float
        The delta of the total budget.
    expected_runs : float or None, default None
        The mean number of runs, each of which draws a candidate at random. None means two per candidate.
    law : {"logarithmic", "geometric"}, default "logarithmic"
        The distribution of the number of runs, which is at least 1. At the same price the logarithmic one makes more
        runs.
    validation : float or str, default 0.2
        The share of rows that is held out for scores, or "public" if scores are computed on other, public rows.
    score_bound : float or None, default None
        For regression: a public bound to which labels and predictions are clipped in scores.
    randomness : {"secure", "fast"} or None, default None
        The noise of all runs and scores, and the generator of everything else; see the solver. None is "fast".
    **settings : Any
        Settings that all candidates share.

    Privacy
    -------
    Touches no data. A record is held out or trained on, by a public rule, so it enters a run by its score or by its
    training, never both: one run gives away the worse of the two. The choice is BestOf(run, law), at most the budget.
    """
    check_candidates(candidates)
    options = [dict(c) for c in candidates]
    epsilon = positive("epsilon", epsilon, "A choice without privacy needs no plan.")
    check_budget(epsilon, delta, n)
    held_out = _held_out_rows(n, validation)
    common = {"delta": delta} | settings
    if any("randomness" in option for option in options):
        raise invalid("randomness", "a setting of candidates", "the same for all of them", "Give it once, for all.")
    common["randomness"] = FAST if randomness is None else one_of("randomness", randomness, (SECURE, FAST))

    @cache
    def at(run_epsilon: float, rows: int) -> tuple[Plan, ...]:
        return tuple(solvers.plan(solver, n=rows, d=d, **(common | c | {"epsilon": run_epsilon})) for c in options)

    with unheard():
        full = solvers.plan(solver, n=n, d=d, **(common | options[0] | {"epsilon": epsilon}))
    scoring = _scoring(full, score_bound)
    runs = _runs(law, 2 * len(options) if expected_runs is None else expected_runs)

    def choice_at(run_epsilon: float) -> TuningPlan:
        plans = at(run_epsilon, n - held_out)
        _check_alike(plans)
        score = None if held_out == 0 else _score_release(plans, scoring.sensitivity(held_out))
        return TuningPlan(tuple(options), plans, score, scoring, runs, n, epsilon, delta, full)

    run_epsilon = _run_epsilon(lambda e: choice_at(e).event, epsilon, delta)
    with unheard(solvers.HopelessPlanWarning):
        choice = choice_at(run_epsilon)
    if all(_is_hopeless(candidate) for candidate in choice.plans):
        warn(
            f"{solver}: at epsilon {run_epsilon:.3g} for a run, every candidate has too much noise. {choice.advice()}",
            solvers.HopelessPlanWarning,
        )
    return choice


def check_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a choice among nothing."""
    if not candidates:
        raise invalid("candidates", candidates, "at least one mapping of settings", "For example [{'steps': 20}].")


def _check_alike(plans: Sequence[Plan]) -> None:
    """Refuse candidates for other neighbours or other labels than the first one's.

    Privacy
    -------
    The guarantee of the choice names one adjacency, so that all noise must be made for it. Labels are checked once, for
    the first candidate's loss: numbers would break the bounds of a loss for labels 0 and 1.
    """
    kinds = {
        "adjacency": lambda plan: str(plan.adjacency),
        "the labels of their loss": lambda plan: plan.settings.loss_row.task,
        "classes": lambda plan: plan.settings.class_count,
    }
    for name, kind in kinds.items():
        values = list(dict.fromkeys(kind(plan) for plan in plans))
        if len(values) > 1:
            raise invalid("candidates", values, f"alike in {name}", "Make a separate choice for each.")


def _is_hopeless(plan: Plan) -> bool:
    return plan.outlook is not None and plan.outlook.is_hopeless


def one_run(fits: Sequence[Event], score: Event | None) -> Event:
    """An event that is at least as bad as each candidate's fit, and as the score.

    A record is either trained on or scored, and which candidate a run draws is independent of the data and released
    with the model; so a run is as bad as the worst of these, not as their sum. Gaussian fits are bounded by the largest
    mu, fits with a zCDP bound by the largest rho. Others must be equal, and the score is added to them.
    """
    bound = structure.common_bound(fits if score is None else [*fits, score])
    if bound is not None:
        return bound
    if any(event != fits[0] for event in fits):
        raise InvalidValue(
            "candidates: must give away the same, or have Gaussian noise or a zCDP bound each, as one run stands for "
            "all of them. Vary settings that leave the noise alone (step_size, sparsity), or take another solver."
        )
    return fits[0] if score is None else Composed(fits[0], score)


def _held_out_rows(n: int, validation: float | str) -> int:
    if isinstance(validation, str):
        one_of("validation", validation, ("public",), "Or give a share of rows, for example 0.2.")
        return 0
    share = real("validation", validation, low=0.0, high=1.0, open_low=True, open_high=True, repair='Or "public".')
    rows = max(round(share * n), 1)
    if rows >= n:
        raise invalid("n", n, ">= 2 to hold rows out", 'Or validation="public".')
    return rows


def _scoring(plan: Plan, score_bound: float | None) -> Score:
    terms = plan.settings.loss_row
    if terms.task != REGRESSION:
        if score_bound is not None:
            raise invalid("score_bound", score_bound, f"None for the {terms.name} loss", "It is for regression.")
        return Score(terms)
    return Score(terms, score_bound)


def _score_release(plans: tuple[Plan, ...], sensitivity: float) -> Release:
    """The score of one run: as private as a fit by itself, or four times as noisy where the two are added up."""
    multiplier = gaussian_multiplier(1, plans[0].settings.epsilon, plans[0].settings.delta)
    if structure.common_bound([plan.event for plan in plans]) is None:
        multiplier *= 4
    return Release("score of a run", GAUSSIAN, sensitivity, sensitivity * multiplier, 1)


def _runs(law: str, expected: float) -> TruncatedNegativeBinomial:
    mean = real("expected_runs", expected, low=1.0, high=1e6, open_low=True, repair="With one candidate just fit it.")
    if one_of("law", law, (GEOMETRIC, LOGARITHMIC)) == GEOMETRIC:
        return TruncatedNegativeBinomial(1.0, 1 / mean)
    low, high = math.log(1e-9), 0.0
    for _ in range(200):
        middle = (low + high) / 2
        too_many = TruncatedNegativeBinomial(0.0, math.exp(middle)).mean > mean
        low, high = (middle, high) if too_many else (low, middle)
    return TruncatedNegativeBinomial(0.0, math.exp(low if high == 0 else high))


def _run_epsilon(event_at: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """An epsilon of a run whose choice keeps the budget and leaves at most _UNUSED of it."""
    run_epsilon = epsilon / 2
    with unheard():
        for _ in range(60):
            total = account(event_at(run_epsilon)).epsilon(delta)
            if (1 - _UNUSED) * epsilon <= total <= epsilon:
                return run_epsilon
            # The total is about proportional to the epsilon of a run; aim at the middle of what is accepted.
            run_epsilon *= min(max((1 - _UNUSED / 2) * epsilon / total, 0.1), 2.0)
    raise invalid("expected_runs", "these", "fewer for this budget", "Or use a larger epsilon.")
