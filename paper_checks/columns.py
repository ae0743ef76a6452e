"""Figures that several items of a paper share: one part per epsilon, and one for methods without privacy.

An item takes the columns that it needs. The same data set, method, epsilon and setting draw the same numbers, whichever
item asks first and whichever epsilons it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paper_checks.curves import Array, Figure, Method, measure
from paper_checks.shared import Part, Shared


def shared_figure(
    shared: Shared,
    name: str,
    methods: Sequence[Method],
    budgets: Sequence[float],
    make: Callable[[np.random.Generator], Any],
    error: Callable[[Any, Array], float],
    repetitions: int,
    tuning: int = 2,
) -> Figure:
    """What ``curves.measure`` gives, from parts that are made once. Without privacy one column is all columns."""
    assert len({len(method.grid) for method in methods}) == 1, "every method has a grid of the same size"
    rng = shared.source.of(name)

    def part(label: str, own: Sequence[Method], epsilon: float) -> Figure:
        kept = shared.part(
            f"{name}, {repetitions} sets, {label}",
            lambda: as_part(measure(own, [epsilon], make, error, rng, repetitions, tuning)),
        )
        return of_part(kept)

    private, plain = ([m for m in methods if m.private is kind] for kind in (True, False))
    columns = [part(f"epsilon {epsilon:g}", private, epsilon) for epsilon in budgets]
    found = _joined(columns)
    if plain:
        found = _beside(_joined([part("no privacy", plain, budgets[0])] * len(budgets)), found)
    return Figure(budgets, found.errors, found.chosen, found.uncharged)


def _joined(columns: Sequence[Figure]) -> Figure:
    first = columns[0]
    errors = {key: np.hstack([column.errors[key] for column in columns]) for key in first.errors}
    chosen = {key: [column.chosen[key][0] for column in columns] for key in first.chosen}
    return Figure([column.budgets[0] for column in columns], errors, chosen, first.uncharged)


def _beside(first: Figure, second: Figure) -> Figure:
    return Figure(
        second.budgets, {**first.errors, **second.errors}, {**first.chosen, **second.chosen}, second.uncharged
    )


def as_part(figure: Figure) -> Part:
    """The figure as JSON can hold it."""
    curves = [[*key, errors.tolist(), list(figure.chosen[key])] for key, errors in figure.errors.items()]
    return {"budgets": list(figure.budgets), "curves": curves, "uncharged": dict(figure.uncharged)}


def of_part(part: Part) -> Figure:
    """The figure back; settings that were tuples are lists."""
    errors = {(noise, name): np.array(values) for noise, name, values, _ in part["curves"]}
    chosen = {(noise, name): settings for noise, name, _, settings in part["curves"]}
    return Figure(part["budgets"], errors, chosen, part["uncharged"])
