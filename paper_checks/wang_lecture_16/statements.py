"""Statements of Wang's lecture 16 on norms, widths, selections and assumptions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import integrate, stats

from paper_checks.findings import Comparison, Finding, readings, upper_bound
from paper_checks.seeds import Rng


def duality(rng: Rng, q: float) -> Finding:
    """<x, y> against |x|_p |y|_q for p = 1, 2, 3, and for the group-L1 ball, on random vectors and the extremal one."""
    draw = rng("vectors")
    rows = []
    for p in (1.0, 2.0, 3.0):
        dual = math.inf if p == 1 else q * p / (p - 1)
        x = draw.standard_normal((200, 30))
        # The vector that reaches equality for the dual exponent, first of all.
        y = np.sign(x) * np.abs(x) ** (p - 1)
        products = np.sum(x * y, axis=1)
        bounds = np.linalg.norm(x, p, axis=1) * np.linalg.norm(y, dual, axis=1)
        rows.append(
            (f"p = {p:g}, 200 extremal pairs: largest <x, y>/(|x|_p |y|_q)", 1.0, float((products / bounds).max()))
        )
    x, y = draw.standard_normal((2, 200, 6, 5))
    groups = np.sum(x * y, axis=(1, 2)) / (
        np.linalg.norm(x, axis=2).sum(axis=1) * np.linalg.norm(y, axis=2).max(axis=1)
    )
    rows.append(("group-L1 ball, 200 random pairs", 1.0, float(groups.max())))
    return upper_bound(rows)


def width_of_l1_ball(constant: float, dimensions: list[int]) -> Finding:
    """E max |z_i| of d normal variables against constant sqrt(log(2 d))."""
    rows = [
        (f"d = {d:,}: 2 d vertices", constant * math.sqrt(math.log(2 * d)), _expected_largest(d, 1)) for d in dimensions
    ]
    return upper_bound(rows, "Exact by quadrature; the diameter of the ball is 1.")


def _expected_largest(count: int, degrees: int) -> float:
    """The expectation of the largest of ``count`` chi variables with ``degrees`` degrees of freedom."""
    law = stats.chi(degrees)
    top = float(law.isf(1e-14 / count)) + 1

    def tail(x: float) -> float:
        return float(-math.expm1(count * math.log1p(-law.sf(x)))) if law.sf(x) < 1 else 1.0

    return float(integrate.quad(tail, 0, top, limit=400, points=[float(law.isf(min(1.0, 1 / count)) or 0.1)])[0])


def width_of_groups(pairs: list[list[int]], tolerance: float, power: float = 0.5) -> Finding:
    """E of the largest norm of a group of k normal variables, d/k groups, against the printed sqrt(k log(d/k)).

    ``power`` is the printed exponent of k, and another one for a planted fault.
    """
    rows: list[Comparison] = []
    for d, k in pairs:
        printed = k**power * math.sqrt(math.log(d / k))
        width = _expected_largest(d // k, k)
        rows.append(Comparison(f"d {d:,}, groups of {k}", printed, width, abs(printed - width) <= tolerance * width))
    ratios = [float(row.computed) / float(row.published) for row in rows if float(row.published) > 0]
    equal = all(row.agrees for row in rows)
    order = bool(ratios) and max(ratios) < 3
    single = "; not 0 for a single group" if len(ratios) < len(rows) else ""
    words = f"width / printed value: {min(ratios):.2f} to {max(ratios):.2f}{single}"
    return Finding("met" if equal else "misprint" if order else "bound broken", words, tuple(rows))


def ridge_of_16_9(factor: float, epsilons: list[float]) -> Finding:
    """epsilon/2 + ln(1 + 2 beta/lambda) of Theorem 16.8 with lambda = factor beta/epsilon, against epsilon."""
    rows = []
    for epsilon in epsilons:
        spent = epsilon / 2 + math.log1p(2 * epsilon / factor)
        rows.append(Comparison(f"epsilon {epsilon:g}", epsilon, spent, spent <= epsilon * (1 + 1e-9)))
    values = [float(row.computed) / float(row.published) for row in rows]
    words = f"Theorem 16.8 gives {min(values):.2f} to {max(values):.2f} times epsilon"
    return Finding("met" if all(row.agrees for row in rows) else "constant only", words, tuple(rows))


def smoothness(norm: str, dimensions: list[int]) -> Finding:
    """The smoothness of the squared loss with features of +-1, in the named norm, as d grows.

    The Hessian of one record is 2 x x^T. Its smoothness with respect to a norm is 2 |x|^2 in the dual norm.
    """
    dual = {"L1": np.inf, "L2": 2}[norm]
    sizes = [2 * float(np.linalg.norm(1.0 - 2.0 * (np.arange(d) % 2), dual)) ** 2 for d in dimensions]
    rows = [
        Comparison(f"d = {d:,}: beta", "a constant", round(size, 6), size <= sizes[0] * (1 + 1e-9))
        for d, size in zip(dimensions, sizes, strict=True)
    ]
    words = f"beta = {', '.join(f'{float(row.computed):g}' for row in rows)} for d = {', '.join(map(str, dimensions))}"
    return Finding("met" if all(row.agrees for row in rows) else "misprint", words, tuple(rows))


def linear_step(dimensions: list[int], power: float) -> Finding:
    """Multiplications of the linear step over the L1 ball: all k = 2 d vertices by d entries, against one pass.

    Both find the same vertex; the printed O(k d) is an upper bound that one pass of d comparisons undercuts.
    """
    rows = []
    for d in dimensions:
        gradient = np.cos(np.arange(d) * 0.7)
        vertices = np.vstack([np.eye(d), -np.eye(d)])
        slow = int(np.argmin(vertices @ gradient))
        place = int(np.argmax(np.abs(gradient)))
        fast = place + (d if gradient[place] > 0 else 0)
        cost = float(d) if slow == fast else math.inf
        rows.append((f"d = {d}: operations", (2.0 * d * d) ** (power / 2), cost))
    return upper_bound(
        rows, "The vertices of the L1 ball have one entry each, so one pass over the gradient is enough."
    )


def _wrong(gap: float, k: int, law: str) -> float:
    """The probability that one of k - 1 scores that are ``gap`` behind wins, with noise of scale 1."""
    if law == "gumbel":
        return (k - 1) * math.exp(-gap) / (1 + (k - 1) * math.exp(-gap))

    # The best one wins if its noise plus the gap is above all others; the integral is over that noise.
    above = _GRID + gap
    log_cdf = np.where(above < 0, above - math.log(2), np.log1p(-0.5 * np.exp(-np.abs(above))))
    return 1 - float(integrate.trapezoid(0.5 * np.exp(-np.abs(_GRID) + (k - 1) * log_cdf), _GRID))


_GRID = np.linspace(-40, 60, 20_001)


def selection_error(constant: float, counts: list[int]) -> Finding:
    """The largest expected regret of a noisy choice among k, over the gap of the best, against constant scale log k."""
    rows = []
    for law in ("gumbel", "laplace"):
        for k in counts:
            gaps = np.linspace(0.3, 2 * math.log(k) + 4, 30)
            regret = max(gap * _wrong(float(gap), k, law) for gap in gaps)
            rows.append((f"{law}, k = {k:,}", constant * math.log(k), float(regret)))
    return upper_bound(rows, "In units of the noise's scale, which is of order 1/epsilon: log k, not a power of k.")


def selection_quantile(constant: float, counts: list[int], taus: list[float]) -> Finding:
    """The regret that is exceeded with probability tau, Laplace noise, against constant log k log(1/tau)."""
    rows = []
    for k in counts:
        for tau in taus:
            low, high = 0.0, 4 * (math.log(k) + math.log(1 / tau))
            for _ in range(30):
                middle = (low + high) / 2
                low, high = (middle, high) if _wrong(middle, k, "laplace") > tau else (low, middle)
            rows.append((f"k = {k:,}, tau = {tau:g}", constant * math.log(k) * math.log(1 / tau), high))
    return upper_bound(rows, "In units of the noise's scale; for the worst gap. log k + log(1/tau) would do.")


def clipped_labels(rng: Rng, bound: float, tail: float, tolerance: float) -> Finding:
    """The slope of a regression on labels clipped to [-bound, bound], from many records: does its error vanish?"""
    draw = rng("heavy tails")
    rows: list[tuple[str, Any, Any, bool]] = []
    errors: dict[str, list[float]] = {}
    for name, slope in (("t errors", 2.0), ("errors in [-1, 1]", 1.0)):
        errors[name] = []
        for n in (20_000, 200_000):
            x = draw.uniform(-1, 1, n)
            y = slope * x + (draw.standard_t(tail, n) if name == "t errors" else draw.uniform(-1, 1, n))
            errors[name].append(abs(float(np.sum(x * np.clip(y, -bound, bound)) / np.sum(x * x)) - slope))
    for name, label in (
        (
            "errors in [-1, 1]",
            f"data with |y| <= 2, which K = {bound:g} bounds if it is 2 or more, as the theorem assumes",
        ),
        ("t errors", f"t({tail:g}) errors clipped at {bound:g}"),
    ):
        few, many = errors[name]
        label = f"{label}: error of the slope, 20,000 and 200,000 records"
        rows.append((label, "vanishes", f"{few:.3f}, {many:.3f}", many < tolerance))
    words = f"with a fixed K the slope keeps an error of {errors['t errors'][1]:.2f} (true slope 2)"
    return readings(rows, words, "inconsistent")
