"""Convergence theorems of Liang et al. 2023: their conditions at the sizes of the experiments, and their constants."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from paper_checks.findings import Comparison, Finding, conditions, order_text, quotient, readings, upper_bound
from paper_checks.rates import hard_threshold

# Features and kept features of the three tables.
_SIZES = {"RCV1": (47_236, 1000), "E2006-tfidf": (150_360, 200), "Chest X-ray": (784, 200)}


def boundary(constant: int) -> Finding:
    """theta_1 at the smallest k that Theorem 4.2 allows, in exact fractions, for several condition numbers.

    With k - k* = constant k* (12 kappa - 1)^2 the root of (k - k*)/k* is rational for constants that are squares.
    """
    root = math.isqrt(constant)
    rows = []
    for kappa in (1, 2, 10):
        beta = Fraction(2, root * (12 * kappa - 1))
        theta = (1 + beta) * (1 - Fraction(1, 12 * kappa))
        rows.append(Comparison(f"kappa {kappa}: theta_1", "below 1", str(theta), theta < 1))
    strict = all(row.agrees for row in rows)
    words = (
        "theta_1 < 1"
        if strict
        else "theta_1 = 1 exactly, so 1/(1 - theta_1) is infinite: the inequality must be strict"
    )
    return Finding("met" if strict else "misprint", words, tuple(rows))


def least_sparsity(theorem: str, kappa: float, scale: float) -> Finding:
    """The smallest k/k* that the condition of a theorem allows, against the k of the experiments with k* = 1."""
    ratio = 4 * (12 * kappa - 1) ** 2 + 1 if theorem == "4.2" else 4 * (64 * kappa**2 - 1) ** 2 + 1
    needed = scale * ratio
    rows = [(f"{name}, kappa {kappa:g}, k* = 1: k", needed, k, k >= needed) for name, (_, k) in _SIZES.items()]
    words = f"k must be at least {needed:,.0f} k* even for kappa = {kappa:g}"
    return conditions(rows, words, "Sufficient conditions; the paper does not claim that its experiments meet them.")


def kept_noise(factor: float) -> Finding:
    """E|pi_I(u)|^2 / (k sigma^2) for a step that is all noise, against the printed 3.

    I contains the k coordinates that the noisy step itself chose, so u is not independent of I. The mean of the k
    largest squares of d normal variables, ``kept``, has the closed form below. All d squares sum to d on average, so
    the d - k others sum to d - k kept. The support of the iterate before was chosen without looking at u: it holds a
    share k/d of these others, which adds k (1 - kept k/d). The support of x* would add more and is left out.
    """
    rows = []
    for name, (d, k) in _SIZES.items():
        quantile = stats.norm.isf(k / (2 * d))
        kept = 2 * d / k * (quantile * stats.norm.pdf(quantile) + stats.norm.sf(quantile))
        both = kept + 1 - kept * k / d
        rows.append((f"{name}: d {d:,}, k {k:,} ({kept:.2f} from the kept ones alone)", factor, float(both)))
    return upper_bound(
        rows, "The missing factor is of order log(d/k). The theorem itself is not refuted by this (SHT-4.2d)."
    )


def steps_of_theorem(n: int, epsilons: list[float], delta: float, passes: int, batch: int) -> Finding:
    """log(n^2 epsilon^2/log(1/delta))/log(1/theta_1) at kappa = 1 and k without bound, against the reported passes."""
    rate = math.log(12 / 11)
    reported = passes * n / batch
    rows = []
    for epsilon in epsilons:
        logarithm = math.log(n**2 * epsilon**2 / math.log(1 / delta))
        rows.append(
            Comparison(f"epsilon {epsilon:g}: steps", reported, logarithm / rate, reported <= 2 * logarithm / rate)
        )
    values = [float(row.computed) for row in rows]
    words = f"{min(values):.0f} to {max(values):.0f} steps at kappa = 1, against {reported:,.0f} ({passes} passes)"
    return Finding("met" if all(row.agrees for row in rows) else "constant only", words, tuple(rows))


def noise_of_a_step(snapshot: float, inner: float, steps: int) -> Finding:
    """Variance of SCSG against SGD, in units of alpha l^2/(n^2 epsilon), C = 1: sigma^2, and what is injected."""
    sigma = 2.0 * steps
    rows: list[tuple[str, Any, Any, bool]] = [
        ("sigma^2 of Theorem 5.1 at as many inner steps", 40.0 * steps, sigma, sigma < 40 * steps),
        ("injected per inner step: snapshot and inner", 40.0 * steps, (snapshot + inner) * sigma,
         (snapshot + inner) * sigma < 40 * steps),
    ]  # fmt: skip
    ratio = (snapshot + inner) * sigma / (40 * steps)
    return readings(
        rows,
        f"sigma^2 is {sigma / (40 * steps):.3g} times that of SGD, the injected variance {ratio:.3g} times",
        "worse",
        f"The injected variance is lower only if B J/b < T/{ratio:.3g}: with that many fewer inner steps.",
    )


def base_variance(printed: float, snapshot: float, inner: float) -> Finding:
    """The noise on a support of 3 k coordinates with the variances of Theorem 5.1, against the 7 k of eq. (7)."""
    there = 3 * (snapshot + inner)
    row = Comparison("noise on the support / (k sigma^2)", printed, there, there <= printed)
    words = f"{there:g} k sigma^2 with the variances of Theorem 5.1: {there / printed:.0f} times the printed term"
    return Finding("met" if row.agrees else "constant only", words, (row,))


def gain_of_scsg(power: float, kappas: list[float], share: float) -> Finding:
    """How the noise floor of SGD over that of SCSG grows with kappa, with theta_2 and gamma put in (beta to 0)."""
    ratios = []
    for kappa in kappas:
        rest = 64 * kappa**2 * share + 13 / 8
        gamma = share + (14 * kappa - 1) / (512 * kappa**3)
        ratios.append(2 * kappa / (7 * rest / (1024 * gamma * kappa**2)))
    slope = math.log(ratios[-1] / ratios[0]) / math.log(kappas[-1] / kappas[0])
    row = Comparison(f"power of kappa, from {kappas[0]:g} to {kappas[-1]:g}", power, slope, abs(slope - power) < 0.2)
    words = f"the floors' ratio grows like kappa^{slope:.2f}"
    return Finding("met" if row.agrees else "inconsistent", words, (row,))


def epoch_length(k: int, printed: float, tolerance: float) -> Finding:
    """1/beta = sqrt(k - k*)/(2 sqrt(k*)) at k* = 1, against the printed order sqrt(k)."""
    value = math.sqrt(k - 1) / 2
    row = Comparison(f"k = {k}, k* = 1: 1/beta over sqrt(k)", printed, value / math.sqrt(k), True)
    agrees = abs(value / math.sqrt(k) - printed) <= tolerance
    words = f"B/b is at most {value:.1f} at k = {k:,}, k* = 1, whatever n is"
    return Finding("met" if agrees else "inconsistent", words, (Comparison(row.label, printed, row.computed, agrees),))


def snapshot_size(statement: str, psi: float) -> Finding:
    """B/n as the theorem states it and as its proof has it, at a small psi and at its inverse; B counts rows, of n."""
    rule = {"max": max, "min": min}[statement]
    rows = []
    for value in (psi, 1 / psi):
        there, proved = rule(1.0, value), min(1.0, value)
        rows.append(Comparison(f"B/n at psi = {value:.3g}", there, proved, there == proved))
    words = f"B = {rows[0].computed:g} n in the proof, {rows[0].published:g} n in the statement"
    return Finding("met" if all(row.agrees for row in rows) else "misprint", words, tuple(rows))


def psi(b: int, epsilon: float, delta: float, k: int, epochs: int, factor: float, limit: float) -> Finding:
    """psi = sqrt(2 b epsilon sigma_0^2/(3 k alpha C J l^2)) with sigma_0 = l, at the sizes of RCV1."""
    order = 1 + 2 * math.log(2 / delta) / epsilon
    value = math.sqrt(2 * b * epsilon / (3 * k * order * factor * epochs))
    return upper_bound(
        [(f"b {b}, epsilon {epsilon:g}, k {k}, J {epochs}, C {factor:g}: psi", limit, value)],
        f"psi = {value:.4f}: B = {value * 20_242:.0f} of 20,242 rows. Read with k for kappa and J l^2 for J^2.",
    )


def hidden_symbols(quoted: dict[str, float], own: dict[str, float], constants: list[str]) -> Finding:
    """The bound of the stochastic methods against that of DP-GD-HT, with some symbols as constants and with all."""
    rest, left = ({name: power for name, power in order.items() if name not in constants} for order in (quoted, own))
    rows: list[tuple[str, Any, Any, bool]] = [
        (f"{', '.join(constants)} as constants", order_text(rest), order_text(left), not quotient(rest, left)),
        ("with all symbols", order_text(quoted), order_text(own), not quotient(quoted, own)),
    ]
    missing = order_text(quotient(quoted, own))
    return readings(
        rows, f"the bound lacks {'nothing' if missing == '1' else missing} of the one it matches", "inconsistent"
    )


def assumptions(bounded: float, radius: float) -> Finding:
    """Whether l-Lipschitz and rho-strongly convex can hold together at two distances r, in units of l/rho.

    f(x_1) - f(x_2) - <grad f(x_2), x_1 - x_2> is at least rho r^2/2 by the one and at most 2 l r by the other.
    """
    rows: list[tuple[str, Any, Any, bool]] = [
        (f"{name}, r = {r:g} l/rho: rho r^2/2 <= 2 l r", 2 * r, r**2 / 2, r**2 / 2 <= 2 * r)
        for name, r in (("on a bounded region", bounded), ("on R^d", radius))
    ]
    return readings(
        rows, "Assumptions 1 and 3(i) exclude each other beyond r = 4 l/rho: read on a bounded region", "inconsistent"
    )


def reference(k: int, k_star: int, entries: int) -> Finding:
    """beta = 2 sqrt(k*)/sqrt(k - k*) if x* is a sparser reference, and if it solves the problem at level k.

    The problem here is to be near a vector with that many entries that are not 0: the best x with k of them keeps the
    largest.
    """
    target = np.zeros(2 * k)
    target[:entries] = np.arange(1, entries + 1)
    best = hard_threshold(target, k)
    solved = int(np.count_nonzero(best))
    rows: list[tuple[str, Any, Any, bool]] = [
        (f"x* is a reference with k* = {k_star} of k = {k}: k - k*", "above 0", k - k_star, k > k_star),
        (f"x* solves the problem at level k = {k}, so k* = {solved}: k - k*", "above 0", k - solved, k > solved),
    ]
    return readings(rows, "beta is finite only if x* is sparser than k", "inconsistent")
