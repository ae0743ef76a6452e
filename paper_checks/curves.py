"""Figures of papers: the error of several methods against epsilon, tuned with equal effort, at two kinds of noise.

Every method has a grid of the same number of settings. The setting is chosen at each epsilon by the mean error on data
sets that are used for nothing else, and the chosen one is run on the data sets that are reported. All methods see the
same data. The choice is not charged to epsilon, as in the papers; a curve with the choice charged stands beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paper_checks.findings import ALPHA, Comparison, Finding, holm
from paper_checks.seeds import Rng

Array = NDArray[np.float64]
PUBLISHED, TIGHT = "published noise", "tight noise"
SIGN, STUDENT = "sign", "paired t"
# A setting chosen privately, by dptoolkit.tuning, inside the same epsilon and delta.
CHARGED = "choice charged"


@dataclass(frozen=True)
class Method:
    """A method of a figure.

    Attributes
    ----------
    name : str
        Its name in the figure.
    fit : callable
        ``fit(data, epsilon, noise, setting, generator)`` returns the weights.
    grid : sequence
        The settings to choose from.
    noises : tuple of str
        The kinds of noise that it has: a method whose paper prints no constant has tight noise only.
    private : bool
        Whether epsilon matters to it.
    charged : callable, str or None
        ``charged(data, epsilon, generator)`` returns weights whose setting is chosen privately within epsilon, with
        tight noise; or it is the reason why there is no such choice. None for methods without tight noise.
    """

    name: str
    fit: Callable[[Any, float, str, Any, np.random.Generator], Array]
    grid: Sequence[Any]
    noises: tuple[str, ...] = (PUBLISHED, TIGHT)
    private: bool = True
    charged: Callable[[Any, float, np.random.Generator], Array] | str | None = None


@dataclass(frozen=True)
class Figure:
    """Errors of methods, by noise and name, each with one row per data set and one column per epsilon.

    ``uncharged`` has the methods whose choice cannot be charged, and why.
    """

    budgets: Sequence[float]
    errors: Mapping[tuple[str, str], Array]
    chosen: Mapping[tuple[str, str], Sequence[Any]]
    uncharged: Mapping[str, str] = field(default_factory=dict)

    def curve(self, noise: str, name: str) -> Array:
        """The errors of a method; with tight noise where the method has no other."""
        return self.errors[(noise if (noise, name) in self.errors else TIGHT), name]

    def means(self, noise: str, name: str) -> list[float]:
        """The mean error at every epsilon."""
        return [float(value) for value in self.curve(noise, name).mean(axis=0)]


def measure(
    methods: Sequence[Method],
    budgets: Sequence[float],
    make: Callable[[np.random.Generator], Any],
    error: Callable[[Any, Array], float],
    rng: Rng,
    repetitions: int,
    tuning: int = 2,
    make_tuning: Callable[[np.random.Generator], Any] | None = None,
) -> Figure:
    """The figure on data sets from ``make``, after the choice of settings on ``tuning`` others.

    Where rows are drawn from one file, ``make_tuning`` gives data sets without the rows that are reported.
    """
    assert len({len(method.grid) for method in methods}) == 1, "every method has a grid of the same size"
    cases = [(method, noise, epsilon) for method in methods for noise in method.noises for epsilon in budgets]

    def run(case: tuple[Method, str, float], data: Any, setting: Any, name: str, number: int) -> float:
        method, noise, epsilon = case
        draw = rng(name, f"{method.name} {noise} {epsilon:g} {setting}", number)
        return error(data, method.fit(data, epsilon, noise, setting, draw))

    others = [(make_tuning or make)(rng("tuning data", repetition=number)) for number in range(tuning)]
    settings = []
    for case in cases:
        scores = [np.mean([run(case, data, setting, "tuning data", number) for number, data in enumerate(others)])
                  for setting in case[0].grid]  # fmt: skip
        settings.append(case[0].grid[int(np.argmin(scores))])
    others.clear()
    # One data set at a time is in memory.
    table = np.empty((repetitions, len(cases)))
    charged = {method.name: method.charged for method in methods if callable(method.charged)}
    beside = {name: np.empty((repetitions, len(budgets))) for name in charged}
    for number in range(repetitions):
        data = make(rng("data", repetition=number))
        table[number] = [run(case, data, chosen, "data", number) for case, chosen in zip(cases, settings, strict=True)]
        for name, fit in charged.items():
            for place, epsilon in enumerate(budgets):
                draw = rng(CHARGED, f"{name} {epsilon:g}", number)
                beside[name][number, place] = error(data, fit(data, epsilon, draw))
    errors, chosen_by = {}, {}
    for start in range(0, len(cases), len(budgets)):
        method, noise, _ = cases[start]
        errors[noise, method.name] = table[:, start : start + len(budgets)]
        chosen_by[noise, method.name] = settings[start : start + len(budgets)]
    for name, values in beside.items():
        errors[TIGHT, f"{name}, {CHARGED}"], chosen_by[TIGHT, f"{name}, {CHARGED}"] = values, ["private"] * len(budgets)
    return Figure(budgets, errors, chosen_by, {m.name: m.charged for m in methods if isinstance(m.charged, str)})


def with_charged(found: Finding, figure: Figure) -> Finding:
    """The finding with rows on what the private choice costs. They are shown only: papers charge no choice."""
    rows = []
    for (noise, name), errors in figure.errors.items():
        own = name.removesuffix(f", {CHARGED}")
        if own == name:
            continue
        for epsilon, mean, free in zip(figure.budgets, errors.mean(axis=0), figure.means(noise, own), strict=True):
            words = f"{mean:.3g} against {free:.3g} with the choice not charged"
            rows.append(Comparison(f"{CHARGED}, {noise}, epsilon {epsilon:g}: {own}", "", words, True))
    rows += [Comparison(f"{CHARGED}: {name}", "", reason, True) for name, reason in figure.uncharged.items()]
    return replace(found, rows=(*found.rows, *rows))


def order(
    figure: Figure,
    best: str,
    rivals: Mapping[str, Sequence[str]],
    noises: Sequence[str] = (PUBLISHED, TIGHT),
    forms: Mapping[str, Sequence[str]] | None = None,
    test: str = SIGN,
    axis: str = "epsilon",
) -> Finding:
    """Whether ``best`` has the lowest error at every epsilon, by paired tests with Holm's correction.

    ``rivals`` maps every rival to the curves that are readings of it, ``forms`` every kind of noise to the readings of
    ``best``. Order kept: established for and against every reading at every epsilon, with every kind of noise. Order
    reversed: at some epsilon the opposite is established for every reading of both, with every kind of noise. If it is
    for some of them only, the order depends on reading. Else it is a tie. ``test`` is the sign test, or Student's t on
    differences of logarithms where data sets are too few for signs.
    """
    places, tests, rows = [], [], []
    forms = forms or dict.fromkeys(noises, [best])
    pairs = [
        (noise, form, rival, reading)
        for noise in noises
        for form in forms[noise]
        for rival, curves in rivals.items()
        for reading in curves
    ]
    for noise, form, rival, reading in pairs:
        first, second = figure.curve(noise, form), figure.curve(noise, reading)
        for place, epsilon in enumerate(figure.budgets):
            wins = int(np.sum(first[:, place] < second[:, place]))
            total = int(np.sum(first[:, place] != second[:, place]))
            means = f"{first[:, place].mean():.3g} against {second[:, place].mean():.3g}"
            label = f"{noise}, {axis} {epsilon:g}: {form} below {reading}, {means}"
            below = 2 * wins > total if test == SIGN else first[:, place].mean() < second[:, place].mean()
            places.append((rival, epsilon, label, f"{wins} of {total}", bool(below)))
            tests.append(_p_value(first[:, place], second[:, place], test))
    against: dict[tuple[str, float], int] = {}
    for (rival, epsilon, label, count, below), certain in zip(places, holm(tests), strict=True):
        rows.append(Comparison(label, "every data set", count, certain and below))
        against[rival, epsilon] = against.get((rival, epsilon), 0) + int(certain and not below)
    kept = sum(row.agrees for row in rows)
    cases = sum(len(forms[noise]) for noise in noises)
    every = any(count == cases * len(rivals[rival]) for (rival, _), count in against.items())
    otherwise = "order reversed" if every else "depends on reading" if any(against.values()) else "tie"
    words = (f"{best} is established as lowest in {kept} of {len(rows)} comparisons, the opposite in "
             f"{sum(against.values())} ({test} tests, Holm at {ALPHA:.0%})")  # fmt: skip
    return Finding("order kept" if kept == len(rows) else otherwise, words, tuple(rows))


def _p_value(first: Array, second: Array, test: str) -> float:
    """Two-sided, on paired errors. Without any difference it is 1."""
    unlike = first != second
    if not unlike.any():
        return 1.0
    if test == SIGN:
        return float(stats.binomtest(int(np.sum(first < second)), int(unlike.sum())).pvalue)
    return float(stats.ttest_rel(np.log(first), np.log(second)).pvalue)


def paired(pairs: Sequence[tuple[str, Array, Array]], detail: str = "") -> Finding:
    """Whether the first of every pair (label, first, second) is the smaller one, by sign tests over repetitions.

    For orders where the paper leaves open what would decide, such as batch sizes or the data: the opposite is "not
    reached here" and never "order reversed". Order kept: established in every pair, with Holm's correction. Depends on
    reading: established in some, and the opposite in others. Else it is a tie.
    """
    wins = [int(np.sum(first < second)) for _, first, second in pairs]
    totals = [int(np.sum(first != second)) for _, first, second in pairs]
    tests = [float(stats.binomtest(won, total).pvalue) if total else 1.0
             for won, total in zip(wins, totals, strict=True)]  # fmt: skip
    rows, against = [], 0
    for (label, first, second), won, total, certain in zip(pairs, wins, totals, holm(tests), strict=True):
        means = f"{first.mean():.3g} against {second.mean():.3g}, smaller in {won} of {total}"
        rows.append(Comparison(label, "smaller in every repetition", means, certain and 2 * won > total))
        against += int(certain and 2 * won < total)
    kept = sum(row.agrees for row in rows)
    otherwise = "tie" if not against else "depends on reading" if kept else "not reached here"
    words = f"established in {kept} of {len(rows)} comparisons, the opposite in {against}"
    words += f" (sign tests, Holm at {ALPHA:.0%})"
    return Finding("order kept" if kept == len(rows) else otherwise, words, tuple(rows), detail)


def close(figure: Figure, method: str, baseline: str, factor: float) -> Finding:
    """Whether a method's mean error is within ``factor`` of the baseline's at every epsilon, with published noise."""
    rows = tuple(
        Comparison(f"epsilon {epsilon:g}: {method} / {baseline}", f"<= {factor:g}", own / least, own / least <= factor)
        for epsilon, own, least in zip(
            figure.budgets, figure.means(PUBLISHED, method), figure.means(PUBLISHED, baseline), strict=True
        )
    )
    ratios = ", ".join(f"{float(row.computed):.2g}" for row in rows)
    words = f"published noise: mean error {ratios} times that of {baseline}"
    return Finding("met" if all(row.agrees for row in rows) else "not reached here", words, rows)


def needed_budget(figure: Figure, methods: Sequence[str], level: float) -> dict[str, float]:
    """For each method the smallest epsilon whose mean error is below ``level``, with tight noise; infinite if none."""
    found = {}
    for name in methods:
        below = [
            epsilon for epsilon, mean in zip(figure.budgets, figure.means(TIGHT, name), strict=True) if mean < level
        ]
        found[name] = min(below, default=float("inf"))
    return found
