"""The private count of Algorithm 2: its exact law, and Table 1 against it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from paper_checks.findings import Comparison, Finding, readings, recomputed
from paper_checks.tables import Table

_ROUNDINGS: dict[str, Callable[[float], float]] = {"up": math.ceil, "down": math.floor, "to nearest": round}


def law(true: float, features: int, epsilon: float) -> dict[float, float]:
    """The law of the clipped noisy count, with the bounds sqrt(p) and 2 sqrt(p) of the experiments."""
    low, high = math.sqrt(features), 2 * math.sqrt(features)
    q = math.exp(-epsilon / (high - low))
    start = min(max(true, low), high)
    chances: dict[float, float] = {}
    reach = math.ceil(high - low) + 1
    for noise in range(-reach, reach + 1):
        value = min(max(start + noise, low), high)
        chances[value] = chances.get(value, 0.0) + (1 - q) / (1 + q) * q ** abs(noise)
    tail = q ** (reach + 1) / (1 + q)
    for end in (low, high):
        chances[end] = chances.get(end, 0.0) + tail
    return chances


def _moments(chances: dict[float, float], rounding: Callable[[float], float]) -> tuple[float, float]:
    mean = sum(chance * rounding(value) for value, chance in chances.items())
    return mean, sum(chance * (rounding(value) - mean) ** 2 for value, chance in chances.items())


def _rounded_up(chances: dict[float, float]) -> dict[float, float]:
    """The law of the number of weights that are kept: fractions of a weight are not seen."""
    kept: dict[float, float] = {}
    for value, chance in chances.items():
        kept[math.ceil(value)] = kept.get(math.ceil(value), 0.0) + chance
    return kept


def information(features: list[int], epsilon: float, tolerance: float, top: float = 2.0) -> Finding:
    """How much the number of kept weights tells of the true count: its law at the smallest and the largest one.

    As a private choice of the sparsity it must lie between its bounds, sqrt(p) and ``top`` sqrt(p).
    """
    rows: list[tuple[str, Any, Any, bool]] = []
    for p in features:
        small, large = (_rounded_up(law(true, p, epsilon)) for true in (0.0, float(p)))
        # The information about which of the two it is, if both are as likely.
        bits = 0.0
        for part, other in ((small, large), (large, small)):
            bits += sum(c / 2 * math.log2(2 * c / (c + other.get(value, 0.0))) for value, c in part.items() if c)
        between = max(
            sum(chance for value, chance in part.items() if min(part) < value < max(part)) for part in (small, large)
        )
        rows.append((f"p = {p}: bits of 1 ({between:.1%} of draws between the bounds)", 1.0, bits, bits >= tolerance))
    worst = max(row[2] for row in rows)
    inside = min(
        sum(c for value, c in law(true, p, epsilon).items() if 1 - 1e-9 <= value / math.sqrt(p) <= top + 1e-9)
        for p in features for true in (0.0, float(p))
    )  # fmt: skip
    label = f"as a choice of the sparsity between sqrt(p) and {top:g} sqrt(p): share of draws between"
    rows.append((label, 1.0, inside, inside >= 1 - 1e-9))
    return readings(
        rows, f"at most {worst:.1g} bit about the true count; a coin between sqrt(p) and 2 sqrt(p)", "worse"
    )


def spread(features: int, epsilon: float, tolerance: float) -> Finding:
    """The standard deviation of the count over half the range between its bounds: 1 is a fair coin between them."""
    chances = law(1.5 * math.sqrt(features), features, epsilon)
    _, variance = _moments(chances, lambda value: value)
    share = math.sqrt(variance) / (math.sqrt(features) / 2)
    row = Comparison(
        f"p = {features}, epsilon_1 = {epsilon:g}: deviation / half range", "wide", share, share >= tolerance
    )
    words = f"standard deviation {share:.2f} times half the range; a fair coin between the bounds has 1"
    return Finding("met" if row.agrees else "not reached here", words, (row,))


def variances(features: list[int], epsilon: float, order: str) -> Finding:
    """The variance of double-geometric noise against Laplace noise of the same epsilon and sensitivity sqrt(p)."""
    rows = []
    for p in features:
        rate = epsilon / math.sqrt(p)
        geometric, laplace = 1 / (2 * math.sinh(rate / 2) ** 2), 2 / rate**2
        holds = geometric < laplace if order == "lower" else geometric > laplace
        rows.append(Comparison(f"p = {p}: variance, Laplace and double geometric", laplace, geometric, holds))
    gain = [float(row.published) - float(row.computed) for row in rows]
    words = f"lower by {min(gain):.3f} to {max(gain):.3f}, of {float(rows[0].published):,.0f} at p = {features[0]}"
    return Finding("met" if all(row.agrees for row in rows) else "order reversed", words, tuple(rows))


def _fits(
    table: Table, epsilon: float, rounding: Callable[[float], float]
) -> tuple[float, list[tuple[str, float, float]]]:
    """Chi-square of the printed Sparsifier counts against Algorithm 2, and each printed mean with its expectation."""
    total, rows = 0.0, []
    for number, name in enumerate(table.columns):
        if name == "KDDCUP'99":
            # The number of features of this row is not known (LASSO-T1c).
            continue
        chances = law(table.mean["non-private"][number], table.facts["features"][number], epsilon)
        mean, variance = _moments(chances, rounding)
        printed = table.mean["Sparsifier"][number]
        total += (printed - mean) ** 2 / (variance / table.facts["trials"])
        rows.append((name, printed, mean))
    return total, rows


def sparsifier_counts(table: Table, epsilon: float, tolerance: float) -> Finding:
    """The printed counts of Sparsifier against the law of Algorithm 2, rounded in the way that fits best."""
    found = {name: _fits(table, epsilon, rounding) for name, rounding in _ROUNDINGS.items()}
    name, (total, rows) = min(found.items(), key=lambda entry: entry[1][0])
    p = float(stats.chi2.sf(total, len(rows)))
    others = ", ".join(f"{other} {value[0]:.1f}" for other, value in found.items())
    comparisons = tuple(Comparison(label, printed, mean, True) for label, printed, mean in rows)
    words = f"chi-square {total:.1f} on {len(rows)} (p = {p:.2f}), rounded {name}"
    return Finding(
        "met" if p >= tolerance else "inconsistent", words, comparisons, f"Chi-squares by rounding: {others}."
    )


def line_58(table: Table, tolerance: float, other_counts: list[float] | None = None) -> Finding:
    """Whether the printed counts are the clipped true counts, which line 58 of the printed program would give.

    ``other_counts`` stand in for the printed ones, to see whether the verdict would notice.
    """
    printed = other_counts or table.mean["Sparsifier"]
    rows = []
    for number, name in enumerate(table.columns[1:], 1):
        root = math.sqrt(table.facts["features"][number])
        clipped = min(max(table.mean["non-private"][number], root), 2 * root)
        rows.append((name, printed[number], clipped))
    found = recomputed(rows, tolerance)
    agree = sum(row.agrees for row in found.rows)
    words = f"{agree} of {len(rows)} printed counts are within {tolerance:g} of the clipped true count"
    # If most were, the experiments would have run the line as printed, and their counts would carry no noise.
    return Finding("misprint" if 2 * agree < len(rows) else "inconsistent", words, found.rows)


def ratios(table: Table, second_table: Table, tolerance: float) -> Finding:
    """The ratio columns of Table 1 against its own counts, and Sparsifier's against the counts of Table 2."""
    own, other = [], []
    for number, name in enumerate(table.columns):
        base = table.mean["non-private"][number]
        for method in ("Private LASSO", "Sparsifier"):
            own.append((f"{name}, {method}", table.mean[f"{method} ratio"][number], table.mean[method][number] / base))
        # A printed ratio times the non-private count, within the rounding of both, is the count behind it.
        count, there = table.mean["Sparsifier ratio"][number] * base, second_table.mean["Sparsifier nonzeros"][number]
        label = f"{name}, Sparsifier: count of Table 2, ratio times non-private count"
        other.append(Comparison(label, there, count, abs(there - count) <= 0.5 + tolerance * base))
    first = recomputed(own, tolerance)
    agree, fit = sum(row.agrees for row in first.rows), sum(row.agrees for row in other)
    return Finding(
        "met" if agree == len(own) else "depends on reading" if fit == len(other) else "inconsistent",
        f"{agree} of {len(own)} are ratios of Table 1's counts; {fit} of {len(other)} of Sparsifier's fit Table 2's",
        (*first.rows, *other),
    )


def features_of_kddcup(table: Table, features: int) -> Finding:
    """Whether the printed counts of the KDDCUP'99 row are possible with the stated number of features."""
    rows = (
        Comparison("Private LASSO: nonzeros at most p", features, table.mean["Private LASSO"][0],
                   table.mean["Private LASSO"][0] <= features),
        Comparison("Sparsifier: nonzeros at most 2 sqrt(p)", 2 * math.sqrt(features), table.mean["Sparsifier"][0],
                   table.mean["Sparsifier"][0] <= math.ceil(2 * math.sqrt(features))),
    )  # fmt: skip
    possible = all(row.agrees for row in rows)
    words = "possible" if possible else f"more nonzero weights than {features} features allow"
    return Finding("met" if possible else "inconsistent", words, rows, marks=("largest possible", "printed"))


def uniform_draws(table: Table, column: str, selections: list[int], tolerance: float) -> Finding:
    """The number of different coordinates in uniformly random selections, against the printed count."""
    number = table.columns.index(column)
    p, printed = table.facts["features"][number], table.mean["Private LASSO"][number]
    rows = []
    for count in selections:
        empty = (1 - 1 / p) ** count
        mean = p * (1 - empty)
        variance = p * (p - 1) * (1 - 2 / p) ** count + p * empty - (p * empty) ** 2
        z = (printed - mean) / math.sqrt(variance / table.facts["trials"])
        rows.append((f"{count} selections among {p} (z = {z:.1f})", printed, mean, abs(z) <= tolerance))
    alike = all(row[3] for row in rows)
    words = f"{np.mean([row[2] for row in rows]):.1f} coordinates if selections ignored the data, {printed:g} printed"
    return Finding("tie" if alike else "met", words, tuple(Comparison(*row) for row in rows))
