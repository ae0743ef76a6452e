"""Figures of papers: the error of several methods against epsilon, tuned with equal effort, at two kinds of noise.

Every method has a grid of the same number of settings. The setting is chosen at each epsilon by the mean error on data
sets that are used for nothing else, and the chosen one is run on the data sets that are reported. All methods see the
same data. The choice is not charged to epsilon, as in the papers; a curve with the choice charged stands beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paper_checks.charts import LINE, OPEN, REFERENCE, Chart, alike, intervals, mean_curve, shown_name, within
from paper_checks.family import RULE, decide, sign, student
from paper_checks.findings import Comparison, Finding
from paper_checks.seeds import Rng

Array = NDArray[np.float64]
PUBLISHED, TIGHT = "published noise", "tight noise"
SIGN, STUDENT = "sign", "paired t"
_TESTS = {SIGN: sign, STUDENT: student}
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

    def charts(
        self,
        y_label: str = "relative error",
        both: Sequence[str] = (),
        x_label: str = "epsilon",
        log: bool = True,
        most: float = math.inf,
    ) -> tuple[Chart, ...]:
        """A panel for every kind of noise, all with the same axes, logarithmic where that helps and ``log`` allows it.

        Methods of ``OPEN`` are in every panel. Of ``both``, those with tight noise only are drawn beside the published
        noise of the others too. ``most`` is the largest possible value, where intervals end; the smallest is 0.
        """
        noises = {noise for noise, name in self.errors if name not in OPEN}
        panels = [
            within(self._panel(noise, y_label, both, x_label), 0.0, most)
            for noise in (PUBLISHED, TIGHT)
            if noise in noises
        ]
        return alike(panels, log)

    def _panel(self, noise: str, y_label: str, both: Sequence[str], x_label: str) -> Chart:
        beside = [name for name in (*OPEN, *both) if (TIGHT, name) in self.errors and (noise, name) not in self.errors]
        shown = [name for name in dict.fromkeys(name for _, name in self.errors)
                 if (noise, name) in self.errors or name in beside]  # fmt: skip
        drawn = tuple(
            mean_curve(shown_name(name), self.budgets, self.curve(noise, name).T, REFERENCE if name in OPEN else LINE)
            for name in shown
        )
        note = intervals(max(map(len, self.errors.values())))
        if other := [name for name in beside if name not in OPEN]:
            note += f" With tight noise here too, as none is printed: {', '.join(other)}."
        claimed = ", as claimed" if noise == PUBLISHED and x_label == "epsilon" else ""
        return Chart(noise, x_label + claimed, y_label, drawn, note=note)


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
    """Whether ``best`` has the lowest error at every epsilon, by paired tests under the rule of ``family``.

    ``rivals`` maps every rival to the curves that are readings of it, ``forms`` every kind of noise to the readings of
    ``best``. Order kept: established against every reading at every epsilon, with every kind of noise. Order reversed:
    at some epsilon the opposite is established for every reading of both, with every kind of noise. Depends on reading:
    the opposite is established for some of them, and the order itself in other comparisons. Not reached here: the
    opposite for some of them, and the order nowhere. Else it is a tie. ``test`` is the sign test, or Student's t on
    differences of logarithms where data sets are too few for signs.
    """
    forms = forms or dict.fromkeys(noises, [best])
    places = [
        (noise, form, rival, reading, place)
        for noise in noises
        for form in forms[noise]
        for rival, curves in rivals.items()
        for reading in curves
        for place in range(len(figure.budgets))
    ]
    pairs = [(figure.curve(noise, form)[:, place], figure.curve(noise, reading)[:, place])
             for noise, form, _, reading, place in places]  # fmt: skip
    tests = [_TESTS[test](*pair) for pair in pairs]
    found, rows = decide(tests), []
    against: dict[tuple[str, int], int] = {}
    for number, (noise, form, rival, reading, place) in enumerate(places):
        means = "{:.3g} against {:.3g}".format(*(values.mean() for values in pairs[number]))
        label = f"{noise}, {axis} {figure.budgets[place]:g}: {form} below {reading}, {means}"
        rows.append(Comparison(label, "lower", tests[number].effect, found.kept or found.lower[number]))
        against[rival, place] = against.get((rival, place), 0) + int(found.higher[number])
    kept = sum(row.agrees for row in rows)
    cases = sum(len(forms[noise]) for noise in noises)
    every = any(count == cases * len(rivals[rival]) for (rival, _), count in against.items())
    some = "depends on reading" if kept else "not reached here"
    otherwise = "order reversed" if every else some if any(against.values()) else "tie"
    words = (f"{best} is established as lowest in {kept} of {len(rows)} comparisons, the opposite in "
             f"{sum(against.values())} ({test} tests, {RULE})")  # fmt: skip
    return Finding("order kept" if found.kept else otherwise, words, tuple(rows))


def paired(pairs: Sequence[tuple[str, Array, Array]], detail: str = "") -> Finding:
    """Whether the first of every pair (label, first, second) is the smaller one, by sign tests over repetitions.

    For orders where the paper leaves open what would decide, such as batch sizes or the data: the opposite is "not
    reached here" and never "order reversed". Order kept: established in every pair. Depends on reading: established in
    some, and the opposite in others. Else it is a tie.
    """
    tests = [sign(first, second) for _, first, second in pairs]
    found = decide(tests)
    rows = tuple(
        Comparison(label, "lower", f"{first.mean():.3g} against {second.mean():.3g}, {test.effect}", found.kept or low)
        for (label, first, second), test, low in zip(pairs, tests, found.lower, strict=True)
    )
    kept, against = sum(row.agrees for row in rows), sum(found.higher)
    otherwise = "tie" if not against else "depends on reading" if kept else "not reached here"
    words = f"established in {kept} of {len(rows)} comparisons, the opposite in {against} (sign tests, {RULE})"
    return Finding("order kept" if found.kept else otherwise, words, rows, detail)


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
