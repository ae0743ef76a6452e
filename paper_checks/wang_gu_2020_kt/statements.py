"""Statements of Wang and Gu 2020 that arithmetic decides: orders of growth, and factors at the paper's own sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from paper_checks.findings import (
    Comparison,
    Finding,
    beside_wording,
    conditions,
    product,
    quotient,
    readings,
    same_order,
    short,
)

# The two synthetic settings: rows, features, true sparsity.
_SIZES = ((800, 1000, 10), (4000, 5000, 50))
_DELTA = 0.01


def gradient_bound(loss: str) -> Finding:
    """The largest gradient entry at the minimiser as one label grows: is there a bound for all private data?"""
    # One feature equal to 1, ridge 1, labels 0 and y: the minimiser of the squared loss is y/4, and its residual 3/4 y.
    sizes = [3 / 4 * label if loss == "squared" else 1.0 for label in (1e1, 1e4, 1e7)]
    rows: list[tuple[str, Any, Any, bool]] = [
        ("for all data sets, as privacy needs: labels up to 1e7", "a bound gamma", sizes[-1], sizes[-1] <= sizes[0])
    ]
    words = f"{loss} loss: largest gradient entry {', '.join(map(short, sizes))} with labels 1e1, 1e4, 1e7"
    return beside_wording(rows, "for the data at hand: finitely many records have a largest gradient", words)


def improvement_of_4_7(
    printed: Mapping[str, float], with_ridge: Mapping[str, float], without: Mapping[str, float]
) -> Finding:
    """The quotient of the bounds of Theorem 4.5 and Corollary 4.7."""
    return same_order("bound of 4.5 over bound of 4.7", printed, quotient(with_ridge, without))


def exponent_of_k(printed: Mapping[str, float], bound: Mapping[str, float], gamma: Mapping[str, float]) -> Finding:
    """Corollary 4.7 with the gamma that Corollary 4.9 implies, against Remark 4.11 and Table 1."""
    derived = product(bound, gamma, gamma)
    return same_order("Corollary 4.7 for linear regression", printed, derived)


def quoted_rate(quoted: Mapping[str, float], source: Mapping[str, float]) -> Finding:
    """The rate of DP-IGHT as quoted, against the paper that it is quoted from."""
    return same_order("rate of DP-IGHT for logistic regression, without logarithms", quoted, source)


def noise_at_m_n(beta: float) -> Finding:
    """The variance of Remark 4.11 over that of Corollary 4.7 with m = n, at the covariance bound of the experiments."""
    ratio = 1 / beta
    row = Comparison(f"variance of Remark 4.11 / Corollary 4.7 at beta~ = {beta:g}", 1.0, ratio, abs(ratio - 1) < 1e-9)
    words = f"the remark has {ratio:.3g} times the variance: the factor beta~ is missing"
    return Finding("met" if row.agrees else "constant only", words, (row,))


def against_dp_ight(sizes: list[list[int]], epsilons: list[float]) -> Finding:
    """The improvement factor over DP-IGHT, K~^2/(K^2 n epsilon), at the sizes of the experiments with K = 1.

    Rows uniform on (-1, 1)^d have K~^2 = d/3 on average and d at most. The remark prints this factor, the introduction
    the same with sqrt(log d).
    """
    rows: list[tuple[str, Any, Any, bool]] = []
    for place, logs in (("Remark 4.10", False), ("introduction", True)):
        for n, d, _ in sizes:
            for epsilon in epsilons:
                for name, square in (("d/3", d / 3), ("d", float(d))):
                    factor = square * (math.sqrt(math.log(d)) if logs else 1.0) / (n * epsilon)
                    label = f"{place}, n {n}, d {d}, epsilon {epsilon:g}, K~^2 = {name}"
                    rows.append((label, "above 1", factor, factor > 1))
    spans = [f"{place}: {min(own):.2g} to {max(own):.2g}" for place in ("Remark 4.10", "introduction")
             if (own := [row[2] for row in rows if row[0].startswith(place)])]  # fmt: skip
    return readings(
        rows, f"factor of {'; of the '.join(spans)}; above 1 in {sum(row[3] for row in rows)} of {len(rows)}", "worse"
    )


def against_frank_wolfe(sizes: list[list[int]], epsilons: list[float]) -> Finding:
    """The improvement factor over Frank-Wolfe, (n epsilon)^(1/3)/(K s*)^2, at the experiments' sizes, K = 1."""
    rows: list[tuple[str, Any, Any, bool]] = []
    for n, _, sparsity in sizes:
        for epsilon in epsilons:
            factor = (n * epsilon) ** (1 / 3) / sparsity**2
            rows.append((f"n {n}, s* {sparsity}, epsilon {epsilon:g}", "above 1", factor, factor > 1))
    values = [row[2] for row in rows]
    return conditions(
        rows,
        f"factor {min(values):.2g} to {max(values):.2g}; above 1 only if n epsilon > (K s*)^6",
        "A factor below 1 means that Frank-Wolfe's bound is the smaller one, constants and logarithms aside.",
    )


def favourable_factor(sizes: list[list[int]]) -> Finding:
    """The improvement factor without ridge, K~^2/(K^2 s*), at the sizes of the experiments with K = 1."""
    rows = [
        Comparison(f"d {d}, s* {s}, K~^2 = {name}", "above 1", square / s, square / s > 1)
        for _, d, s in sizes
        for name, square in (("d/3", d / 3), ("d", float(d)))
    ]
    values = [float(row.computed) for row in rows]
    words = f"factor {min(values):.0f} to {max(values):.0f}"
    return Finding("met" if all(row.agrees for row in rows) else "worse", words, tuple(rows))


def growing_sparsity(fixed_power: float, ridge_power: float) -> Finding:
    """What s >= C kappa^2 s* asks for when lambda^2 moves like a power of n epsilon, beside s = s*.

    kappa = beta-bar/lambda, so the least s grows like that power with the other sign. The bound is a rate in s*.
    """
    rows: list[tuple[str, Any, Any, bool]] = [
        (f"s >= C kappa^2 s* with {name}: power of n epsilon in s", 0, 0.0 - power, power == 0)
        for name, power in (("kappa fixed, as lambda is", fixed_power), ("the rule for lambda", ridge_power))
    ]
    words = (
        f"the least s grows like (n epsilon)^{-ridge_power:g}: the bound is a rate only where s is of the order of s*"
    )
    return readings(rows, words, "inconsistent")


def lambda_grid(largest: float, epsilons: list[float], grid_power: float) -> Finding:
    """Whether the grid for lambda contains the rule of Corollary 4.9 with constant 1, at n = 800, d = 1000, s = 10."""
    n, d, sparsity = _SIZES[0]
    rows: list[tuple[str, Any, Any, bool]] = []
    for epsilon in epsilons:
        logs = math.sqrt(math.log(d) * math.log(1 / _DELTA))
        top = largest * (math.sqrt(sparsity) * logs / (n * epsilon)) ** grid_power
        # gamma between K, the least it can be for unit residuals, and K^2 sqrt(s*), which Corollary 4.9 implies.
        for name, gamma in (("K", 1.0), ("K^2 sqrt(s*)", math.sqrt(sparsity))):
            rule = math.sqrt(gamma * math.sqrt(sparsity) * logs / (n * epsilon))
            rows.append((f"epsilon {epsilon:g}, gamma = {name}: grid up to, rule", top, rule, rule <= top))
    inside = sum(row[3] for row in rows)
    return readings(
        rows,
        f"the rule with constant 1 is inside the grid in {inside} of {len(rows)} cases",
        "inconsistent",
        "The grid is for lambda and falls like 1/(n epsilon); the theorem fixes lambda^2, which falls like that.",
    )


def baselines(values: Mapping[str, float], halved: list[str], tolerance: float) -> Finding:
    """Non-private errors on one data set in three papers, in the same unit."""
    unit = {name: value * (2 if name in halved else 1) for name, value in values.items()}
    factor = max(unit.values()) / min(unit.values())
    rows = tuple(Comparison(name, values[name], value, True) for name, value in unit.items())
    words = (
        f"mean squared errors {', '.join(f'{name} {value:.3g}' for name, value in unit.items())}: a factor {factor:.1f}"
    )
    return Finding("met" if factor <= tolerance else "no data", words, rows)


def noise_of_both_tables(halves: list[int], rows_before: int, deltas: list[float]) -> Finding:
    """Noise of DP-IGHT in this paper's RCV1 table over that in its own paper, by the printed formula."""
    rows: list[tuple[str, Any, Any, bool]] = []
    for n in halves:
        ratio = rows_before / n * math.sqrt(math.log(1 / deltas[1]) / math.log(1 / deltas[0]))
        rows.append(
            (f"DP-IGHT trained on {n:,} rows", "errors 0.1179 and 0.1168", f"{ratio:.2f} times the noise", ratio < 2)
        )
    return readings(rows, "; ".join(f"{row[2]} if {row[0]}" for row in rows), "inconsistent")


def uniform_rows_exceed(rng: Any, slack: float, tolerance: float) -> Finding:
    """How often |X~ v|^2 exceeds m beta~ |v|^2 for uniform rows, m = 800, and one fixed direction of 20 entries."""
    draws, m, sparsity = 1000, 800, 20
    draw = rng("uniform rows")
    v = draw.standard_normal(sparsity)
    v /= np.linalg.norm(v)
    ratios = np.array([float(np.sum((draw.uniform(-1, 1, (m, sparsity)) @ v) ** 2)) for _ in range(draws)]) / (m / 3)
    share = float(np.mean(ratios > slack))
    top = float(np.quantile(ratios, 0.999))
    row = Comparison(f"share of {draws} draws above {slack:g} times the bound", 0.0, share, share <= tolerance)
    words = f"exceeded in {share:.0%} of draws; {top:.2f} times the bound covers 99.9 % of them"
    return Finding("met" if row.agrees else "constant only", words, (row,))
