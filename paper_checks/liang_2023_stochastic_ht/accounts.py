"""Lemmas of Liang et al. 2023 on Renyi divergences, and the conditions of Theorem 4.1 at the sizes of its tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import optimize

from dptoolkit.accounting import Composed, Gaussian, gaussian, rdp, rounds
from paper_checks.constants import published
from paper_checks.findings import Finding, conditions, recomputed, upper_bound
from paper_checks.measure import post_processing
from paper_checks.seeds import Rng


def remark_3_1(factor: float) -> Finding:
    """rho + factor log(1/delta)/(order - 1), at its best order, against the exact epsilon of Gaussian mechanisms."""
    rows = []
    for noise in (0.5, 2.0, 10.0):
        for delta in (1e-2, 1e-5, 1e-8):
            log = factor * math.log(1 / delta)
            # The divergence of order a is a/(2 noise^2); this is the minimum over a.
            printed = 1 / (2 * noise**2) + 2 * math.sqrt(log / (2 * noise**2))
            best = rdp.epsilon(Gaussian(noise), delta)
            label = f"noise {noise:g}, delta {delta:g} (best conversion {best:.4g})"
            rows.append((label, printed, gaussian.epsilon(1 / noise, delta)))
    return upper_bound(rows, "The true value is that of the Gaussian mechanism, which every conversion must cover.")


def lemma_3_2(constant: float) -> Finding:
    """constant rate^2 order / noise^2 against the known bound for such batches, inside the conditions."""
    rows = []
    for rate in (0.001, 0.01, 0.05):
        for noise in (math.sqrt(1.5), 2.0, 4.0):
            top = math.log(1 / (rate * (1 + noise**2)))
            for order in sorted({2.0, math.floor(top)}) if top >= 2 else ():
                printed = constant * rate**2 * order / noise**2
                known = rdp.subsampled_gaussian(noise, rate, np.array([order]), "without-replacement")[0]
                rows.append((f"rate {rate:g}, noise {noise:.3g}, order {order:g}", printed, float(known)))
    return upper_bound(
        rows, "The known bound is an upper bound itself, so where it is below the lemma the lemma is true."
    )


def lemma_3_3(rule: str, tolerance: float) -> Finding:
    """The divergence of two Gaussians, one after the other, against the printed rule."""
    rows = []
    orders = np.array([1.5, 2.0, 8.0, 32.0])
    for first, second in ((1.0, 1.0), (0.7, 5.0)):
        both = rdp.composed(Composed(Gaussian(first), Gaussian(second)), orders)
        single = [rdp.gaussian(noise, orders) for noise in (first, second)]
        printed = {"sum": single[0] + single[1], "largest": np.maximum(*single)}[rule]
        rows += [
            (f"noise {first:g} and {second:g}, order {order:g}", float(p), float(b))
            for order, p, b in zip(orders, printed, both, strict=True)
        ]
    return recomputed(rows, tolerance, "bound broken")


def lemma_3_4(rng: Rng, gain: float) -> Finding:
    """The Renyi divergence of order 2 after maps of the outcomes, against that before."""
    rows = []
    for repetition in range(5):
        _, ratio = post_processing(rng("random laws", repetition=repetition), gain)
        rows.append((f"laws {repetition}: largest divergence after / before", 1.0, ratio))
    return upper_bound(rows)


def theorem_4_1_sizes(sizes: list[int], epochs: int, epsilons: list[float], delta: float) -> Finding:
    """Whether any batch size meets the conditions of Theorem 4.1 at the reported number of passes.

    The noise per sensitivity grows with the batch, so the smallest batch with enough noise leaves the most room under
    the condition on the order.
    """
    rows: list[tuple[str, Any, Any, bool]] = []
    for n in sizes:
        for epsilon in epsilons:
            order = 1 + 2 * math.log(1 / delta) / epsilon
            batch = max(1, math.ceil(1.5 * n * epsilon / (10 * order * epochs)))
            steps = max(1, math.ceil(epochs * n / batch))
            holds = batch <= n and published.sgd_ht_theorem_4_1(n, batch, steps, 1.0, epsilon, delta).conditions_hold
            room = math.log(n**3 * epsilon / (n**2 * batch * epsilon + 10 * order * steps * batch**3))
            rows.append((f"n {n:,}, epsilon {epsilon:g}: order, room", order, room, holds))
    count = sum(row[3] for row in rows)
    return conditions(rows, f"a batch size meets both conditions in {count} of {len(rows)} cases")


def chernoff_factor(exponent: str, count: int, ratio: float, delta: float) -> Finding:
    """The C that the printed exponent of the tail gives, against the exact tail of the geometric law."""
    gamma = ratio / (1 + ratio)
    per_epoch = -math.expm1(math.log1p(-delta / 2) / count)
    power = {"C - 1 - ln C": lambda c: c - 1 - math.log(c), "C": lambda c: c}[exponent]
    printed = float(optimize.brentq(lambda c: power(c) + math.log(per_epoch), 1.0, 1000.0))
    exact = rounds.exact_factor(gamma, count, delta)
    total = rounds.total_factor(gamma, count, delta)
    return upper_bound(
        [(f"J = {count}, B/b = {ratio:g}, delta {delta:g}: factor C", printed, exact)],
        f"All inner steps together are at most {total:.3g} times their mean with the same probability.",
    )
