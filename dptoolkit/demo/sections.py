"""The sections of the demo: two models, the composition of releases, and audits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dptoolkit import datasets, plots, solvers
from dptoolkit.accounting import Event, ExponentialMechanism, Gaussian, Repeated, Subsampled, account
from dptoolkit.accounting.report import at_least, at_most, number
from dptoolkit.datasets import Dataset
from dptoolkit.solvers import FitResult, Plan, Release

if TYPE_CHECKING:
    from dptoolkit.audit import AuditReport


@dataclass(frozen=True)
class Table:
    """Cells are text."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure that is saved as <name>.png."""

    name: str
    caption: str
    figure: Any


@dataclass(frozen=True)
class Section:
    """One subject of the report."""

    title: str
    words: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]


# --- Private fits at several budgets: error against epsilon, with the guarantee of each fit -------------------

# Delta and number of seeds of all fits of the demo.
DELTA = 1e-5
SEEDS = 5
_LOOKS = {"dp_pipeline": 0, "DP-IGHT": 3, "DP-IGHT, published": 1, "Frank-Wolfe": 2, "no privacy": 5}


@dataclass(frozen=True)
class Series:
    """One private solver at every budget: arguments by epsilon, and the label in the plot."""

    name: str
    solver: str
    arguments: Callable[[float], dict[str, Any]]

    def fit(self, data: Dataset, epsilon: float, seed: int) -> FitResult:
        result: FitResult = getattr(solvers, self.solver)(
            data.X, data.y, epsilon=epsilon, delta=DELTA, rng=seed, **self.arguments(epsilon)
        )
        return result

    def plan(self, data: Dataset, epsilon: float) -> Plan:
        n, d = data.X.shape
        return solvers.plan(self.solver, n=n, d=d, epsilon=epsilon, delta=DELTA, **self.arguments(epsilon))


@dataclass(frozen=True)
class Study:
    """A data set, the solvers to try on it, a fit without privacy, and how the error is measured."""

    title: str
    words: str
    name: str
    measure: str
    epsilons: Sequence[float]
    data: Dataset
    series: Sequence[Series]
    baseline: FitResult
    error: Callable[[FitResult], float]
    chance: float | None = None

    def section(self) -> Section:
        """Tables of errors and guarantees, and a plot."""
        errors = {s.name: self._errors(s) for s in self.series}
        errors["no privacy"] = np.full((1, len(self.epsilons)), self.error(self.baseline))
        tables = [self._error_table(errors), *(self._guarantee_table(s) for s in self.series)]
        figure = self._figure(errors)
        return Section(self.title, self.words, tables, [Picture(self.name, self.measure, figure)])

    def _errors(self, series: Series) -> Any:
        """One row a repetition, one column a budget."""
        fits = [[series.fit(self.data, e, seed) for e in self.epsilons] for seed in range(SEEDS)]
        return np.asarray([[self.error(result) for result in row] for row in fits])

    def _error_table(self, errors: Mapping[str, Any]) -> Table:
        means = {name: table.mean(axis=0) for name, table in errors.items()}
        rows = [[f"{e:g}", *(f"{values[i]:.3f}" for values in means.values())] for i, e in enumerate(self.epsilons)]
        caption = f"{self.measure} at delta {DELTA:g}, mean of {SEEDS} fits"
        return Table(caption, ["epsilon", *errors], rows)

    def _guarantee_table(self, series: Series) -> Table:
        rows = [_guarantee_row(series.plan(self.data, e), e) for e in self.epsilons]
        header = ["asked for", "releases", "sensitivity", "noise scale", "epsilon it gives", "method", "adjacency"]
        return Table(f"{series.name}: what each fit guarantees at delta {DELTA:g}", header, rows)

    def _figure(self, errors: Mapping[str, Any]) -> Any:
        figure, (axes,) = plots.grid(1, 1, self.title)
        truth = self._true_epsilons()
        arrows = "; arrows: from claim to truth" if truth else ""
        detail = f"delta {DELTA:g}, mean of {SEEDS} fits; bands: twice its s.e.{arrows}"
        plots.describe(axes, self.measure, detail, "true epsilon", "error")
        plots.budgets(axes, self.epsilons, errors, _LOOKS, self.chance, truth)
        return figure

    def _true_epsilons(self) -> dict[str, list[float]]:
        """For every series with published noise, the epsilon that it really has at each budget."""
        plans = {series.name: [series.plan(self.data, e) for e in self.epsilons] for series in self.series}
        published = {name: found for name, found in plans.items() if found[0].calibration == "published"}
        return {name: [plan.guarantee.epsilon(DELTA) for plan in found] for name, found in published.items()}


def _guarantee_row(plan: Plan, epsilon: float) -> list[str]:
    guarantee = plan.guarantee

    def each(text: Callable[[Release], str]) -> str:
        return "; ".join(map(text, plan.releases))

    return [
        f"{epsilon:g}", each(lambda r: f"{r.count:,} x {r.law}"), each(lambda r: f"{r.sensitivity:.3g}"),
        each(lambda r: f"{r.scale:.3g}"),
        at_most(guarantee.epsilon(DELTA)), guarantee.method_at(DELTA), str(plan.adjacency),
    ]  # fmt: skip


def digits() -> Section:
    """Odd or even handwritten digits (scikit-learn): a model from the budget alone, beside the papers' methods."""
    digits_data = datasets.load("digits")
    # A pixel is 0 to 16 by design: the bound is public.
    X, y = np.asarray(digits_data.X) / 16, np.asarray(digits_data.y) % 2
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:1400], order[1400:]

    def error(result: FitResult) -> float:
        return float(np.mean((solvers.margins(result, X[test]) > 0) != (y[test] > 0)))

    ight = {"loss": "logistic", "sparsity": 30, "steps": 20, "step_size": 1.0, "row_norm": 3.0, "fit_intercept": True}
    ball = {"loss": "logistic", "l1_radius": 20.0, "steps": 60, "feature_bound": 1.0, "fit_intercept": True}
    data = Dataset(X[train], y[train], "binary", name="digits")
    chance = float(min(y[test].mean(), 1 - y[test].mean()))
    study = Study(
        "A private model: odd or even digits",
        "1,400 handwritten digits of 64 pixels (scikit-learn): is the digit odd? dp_pipeline is given the budget and "
        "nothing else; it has no setting to tune. DP-IGHT keeps 30 pixels and Frank-Wolfe weights of size 20 in all, "
        "with settings chosen by hand. Pixels are 0 to 16 by design, so the bounds are public. The tables below the "
        "picture say what each fit guarantees, computed from what it released. The published line has the noise that "
        "the paper prints for each epsilon. It stands at the epsilon that this noise really gives, and arrows lead "
        "there from the epsilon that is claimed.",
        "digits",
        "Share of wrong answers on 397 held-out digits",
        (0.25, 0.5, 1.0, 2.0, 4.0),
        data,
        (
            Series("dp_pipeline", "dp_pipeline", lambda _: {}),
            Series("DP-IGHT", "dp_ight", lambda _: ight),
            Series("DP-IGHT, published", "dp_ight", lambda _: ight | {"calibration": "published"}),
            Series("Frank-Wolfe", "dp_frank_wolfe", lambda _: ball),
        ),
        solvers.ight(data.X, data.y, loss="logistic", sparsity=30, steps=500, step_size=0.5, fit_intercept=True),
        error,
        chance,
    )
    return study.section()


def synthetic() -> Section:
    """The sparse linear regression of Wang and Gu 2019, section 6: n = d = 1000, 10 true features."""
    data = datasets.make_ight(rng=0)

    truth = np.asarray(data.truth)

    def error(result: FitResult) -> float:
        return float(np.linalg.norm(result.coef - truth) / np.linalg.norm(truth))

    def ight(epsilon: float) -> dict[str, Any]:
        # More budget buys more steps. Rows have norm 20 by design, so a feature has variance 0.4.
        steps = math.ceil(1.5 * math.log2(1 + epsilon))
        return {"loss": "squared", "sparsity": 10, "steps": steps, "step_size": 2.0, "grad_norm": 12.0}

    ball = {"loss": "squared", "l1_radius": 5.0, "steps": 15, "feature_bound": 1.1, "label_bound": 3.0}
    study = Study(
        "Sparse linear regression, n = d = 1000",
        "The first synthetic setting of Wang and Gu 2019: 1,000 records, 1,000 features, 10 of them real. Gradients "
        "are clipped at 12 for DP-IGHT; entries and labels at 1.1 and 3 for Frank-Wolfe. As many features as records "
        "is hard under privacy: only large budgets come near the fit without it.",
        "synthetic", "Relative error of the coefficients", (2.0, 4.0, 8.0, 16.0, 32.0), data,
        (Series("DP-IGHT", "dp_ight", ight), Series("Frank-Wolfe", "dp_frank_wolfe", lambda _: ball)),
        solvers.ight(data.X, data.y, loss="squared", sparsity=10, steps=30, step_size=1.25),
        error,
    )  # fmt: skip
    return study.section()


# --- How epsilon grows with the number of releases, by every way to account -----------------------------------
COUNTS = (*(m * 10**k for k in range(4) for m in (1, 2, 5)), 10_000)
TABLE_COUNTS = (1, 10, 100, 1_000, 10_000)
# The recursion for selections takes under a second up to here, half a minute at 10,000.
RECURSION_LIMIT = 1_000
# Noise multiplier and sampling rate of the sampled steps.
NOISE, RATE = 1.5, 0.01

Curves = Mapping[str, Sequence[float]]  # by the name of the line, one number for each count


@dataclass(frozen=True)
class Scenario:
    """A step that is repeated T times, and the lines to draw: name -> (step to charge, method)."""

    title: str
    detail: str
    lines: Mapping[str, tuple[Event, str]]

    def curves(self) -> Curves:
        """Epsilon after each of COUNTS, for each line."""
        return {name: _curve(*line) for name, line in self.lines.items()}


def _curve(step: Event, method: str) -> list[float]:
    counts = [c for c in COUNTS if method != "bounded-range" or c <= RECURSION_LIMIT]
    return [account(Repeated(step, count), method).epsilon(DELTA) for count in counts]


_CURVE_LOOKS = {
    "PLD": 0, "RDP": 1, "zCDP": 2, "zCDP, unsampled": 2, "optimal": 3, "advanced": 4, "basic": 5,
    "optimal selection": 6,
}  # fmt: skip


def _theorems(step: Event) -> dict[str, tuple[Event, str]]:
    return {name: (step, name) for name in ("basic", "advanced", "optimal")}


def _full_batch() -> Scenario:
    step = Gaussian(50.0)
    moments = {name: (step, name.lower()) for name in ("zCDP", "RDP", "PLD")}
    return Scenario("Gaussian steps, full batch", "noise multiplier 50", _theorems(step) | moments)


def _sampled(scheme: str, title: str) -> Scenario:
    step = Subsampled(Gaussian(NOISE), scheme, RATE)
    # No zCDP bound knows of sampling: charging the unsampled step is what it offers.
    moments = {"zCDP, unsampled": (step.event, "zcdp"), "RDP": (step, "rdp"), "PLD": (step, "pld")}
    return Scenario(title, f"rate {RATE:g}, noise multiplier {NOISE:g}", _theorems(step) | moments)


def _selections() -> Scenario:
    step = ExponentialMechanism(0.1)
    moments = {name: (step, name.lower()) for name in ("zCDP", "RDP", "PLD")}
    best = {"optimal selection": (step, "bounded-range")}
    return Scenario("Selections", "exponential mechanism, epsilon 0.1 each", _theorems(step) | moments | best)


def composition() -> Section:
    """Epsilon after T releases by basic, advanced and optimal composition, zCDP, RDP and PLD."""
    scenarios = (
        _full_batch(),
        _sampled("poisson", "Gaussian steps, Poisson batches"),
        _sampled("without-replacement", "Gaussian steps, batches without replacement"),
        _selections(),
    )
    results = [(scenario, scenario.curves()) for scenario in scenarios]
    return Section(
        "Epsilon after T releases",
        f"Every number is an epsilon that holds at delta {DELTA:g} for the same T releases: the lowest is the tightest "
        "proof. Basic, advanced and optimal composition know only the (epsilon, delta) of each step; zCDP, RDP and PLD "
        "know more about it. zCDP knows nothing of sampling, so it charges the unsampled step. Optimal selection is "
        f"the recursion for bounded-range mechanisms, computed up to T = {RECURSION_LIMIT:,}.",
        [_composition_table(scenario, curves) for scenario, curves in results],
        [Picture("composition", "Epsilon against the number of releases T", _composition_figure(results))],
    )


def _composition_table(scenario: Scenario, curves: Curves) -> Table:
    rows = [[f"{count:,}", *(_cell(curve, count) for curve in curves.values())] for count in TABLE_COUNTS]
    return Table(f"{scenario.title} ({scenario.detail}): epsilon at delta {DELTA:g}", ["T", *curves], rows)


def _cell(curve: Sequence[float], count: int) -> str:
    at = COUNTS.index(count)
    return at_most(curve[at]) if at < len(curve) else "-"


def _composition_figure(results: Sequence[tuple[Scenario, Curves]]) -> Any:
    figure, axes = plots.grid(2, 2, f"Epsilon after T releases, at delta {DELTA:g}: lower is a tighter proof")
    for ax, (scenario, curves) in zip(axes, results, strict=True):
        plots.describe(ax, scenario.title, scenario.detail, "T", "epsilon")
        plots.lines(ax, COUNTS, curves, _CURVE_LOOKS)
    return figure


# --- Claimed, computed and audited: DP-IGHT with noise that is computed, and with the noise that [...] --------

EPSILON, DELTA = 4.0, 1e-5
# A number of trials, not of seconds, so that the results are the same every time.
TRIALS = 60_000
CONFIDENCE = 0.9999


@dataclass(frozen=True)
class Audited:
    """A plan that is said to be (EPSILON, DELTA)-DP, and what an audit of it found."""

    name: str
    plan: Plan
    report: AuditReport

    def row(self) -> list[str]:
        """Cells of the table."""
        right = self.report.guesses.correct / self.report.guesses.made
        epsilon = at_most(self.plan.guarantee.epsilon(DELTA))
        return [self.name, number(EPSILON), epsilon, at_least(self.report.epsilon_lower), f"{100 * right:.1f} %",
                self.report.verdict]  # fmt: skip


def _fit_and_audit(name: str, published: bool) -> Audited:
    # Imported here: audits load solvers and optimisers, which the rest of the command does without.
    from dptoolkit.audit import audit, presets

    plan = presets.plan("dp_ight", EPSILON, DELTA, published=published)
    report = audit(
        plan, presets.pair(plan), presets.claim(plan), trials=TRIALS, confidence=CONFIDENCE, delta=DELTA, rng=0
    )
    return Audited(name, plan, report)


def audited() -> Section:
    """DP-IGHT at a claimed epsilon of 4: with tight noise, and with the paper's."""
    audits = (_fit_and_audit("tight", False), _fit_and_audit("published", True))
    header = ["noise", "claimed", "computed, at most", "audited, at least", "right guesses", "the audit says"]
    caption = f"DP-IGHT, epsilon at delta {DELTA:g}: claimed, computed and audited"
    return Section(
        "Claimed, computed, audited",
        f"An audit trains the same model {TRIALS:,} times, each time on one of two data sets that differ in one "
        "record, and guesses from the weights which one it was. The more guesses are right, the less privacy there can "
        f"be: that gives a lower bound on epsilon, here with confidence {CONFIDENCE:g}, from runs of the program "
        f"itself. Both models claim epsilon {EPSILON:g}. With tight noise the audit comes close to the claim from "
        "below. The noise that the paper prints is too small: the audit finds more than is claimed, and stays below "
        "what is computed. In the picture a curve below the dashed line means better guesses than the claim allows.",
        [Table(caption, header, [a.row() for a in audits])],
        [Picture("audits", "Errors of the best guesses against the least that the claim allows", _figure(audits))],
    )


def _figure(audits: tuple[Audited, ...]) -> Any:
    figure, axes = plots.grid(1, len(audits), f"How well two data sets are told apart, claimed epsilon {EPSILON:g}")
    for ax, a in zip(axes, audits, strict=True):
        detail = f"audited epsilon at least {at_least(a.report.epsilon_lower)}: {a.report.verdict}"
        plots.describe(ax, f"{a.name.capitalize()} noise", detail, "false positives", "false negatives")
        plots.trade_off_curve(ax, a.report)
    # The lines are named in legends: no room is needed beside the axes.
    figure.subplots_adjust(right=0.98, wspace=0.22)
    return figure
