"""Statements of Wang and Gu 2019 that arithmetic or exact accounting decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.integrate import trapezoid

from dptoolkit import solvers
from dptoolkit.accounting import (
    BestOf,
    Composed,
    Gaussian,
    Logarithmic,
    ObjectivePerturbation,
    ZCdp,
    account,
    calibrate,
    gaussian,
    zcdp,
)
from paper_checks.findings import Comparison, Finding, beside_wording, readings, recomputed, upper_bound

_RHOS = (1e-3, 1e-2, 0.1, 1.0, 10.0)
_DELTAS = (1e-2, 1e-5, 1e-8)


def lemma_3_4(coefficient: float) -> Finding:
    """rho + coefficient sqrt(rho log(1/delta)) against the exact epsilon of the Gaussian with that rho."""
    rows = []
    for rho in _RHOS:
        for delta in _DELTAS:
            printed = rho + coefficient * math.sqrt(rho * math.log(1 / delta))
            exact = gaussian.epsilon(math.sqrt(2 * rho), delta)
            best = zcdp.to_epsilon(rho, delta)
            rows.append((f"rho {rho:g}, delta {delta:g} (best conversion {best:.4g})", printed, exact))
    return upper_bound(rows, "The true value is that of the Gaussian mechanism, which every conversion must cover.")


def lemma_3_6(divisor: float, tolerance: float) -> Finding:
    """Sensitivity^2 / (divisor sigma^2) against the Renyi divergence of two Gaussians, integrated numerically."""
    rows = []
    grid = np.linspace(-60, 60, 600_001)
    for sigma in (0.5, 1.0, 4.0):
        for order in (1.5, 2.0, 8.0):
            logs = -(order * (grid - 1) ** 2 + (1 - order) * grid**2) / (2 * sigma**2)
            top = logs.max()
            total = float(trapezoid(np.exp(logs - top), grid))
            divergence = (math.log(total / (sigma * math.sqrt(2 * math.pi))) + top) / (order - 1)
            rows.append((f"sigma {sigma:g}, order {order:g}", 1 / (divisor * sigma**2), divergence / order))
    return recomputed(rows, tolerance, "bound broken", "rho is the divergence of order a divided by a.")


def lemma_3_7(rule: str, tolerance: float) -> Finding:
    """The zCDP of two Gaussians, one after the other, against the printed rule for rho_1 and rho_2."""
    rows = []
    for first, second in ((0.1, 0.1), (0.01, 2.0), (0.5, 3.0)):
        printed = {"sum": first + second, "largest": max(first, second)}[rule]
        pair = Composed(Gaussian(1 / math.sqrt(2 * first)), Gaussian(1 / math.sqrt(2 * second)))
        rows.append((f"Gaussians of rho {first:g} and {second:g}", printed, account(pair).rho))
        rows.append((f"any of rho {first:g} and {second:g}", printed, account(Composed(ZCdp(first), ZCdp(second))).rho))
    return recomputed(rows, tolerance, "bound broken")


def remark_5_3_forms(constant: float) -> Finding:
    """The second form of the variance against the first, for epsilon up to log(1/delta)."""
    rows = []
    for share in (1e-3, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0):
        # In units of T G^2 / (n^2 log(1/delta)), with epsilon = share log(1/delta).
        first = 1 / (math.sqrt(1 + share) - 1) ** 2
        rows.append((f"epsilon = {share:g} log(1/delta)", constant / share**2, first))
    return upper_bound(rows, "The supremum of the ratio is (1 + sqrt 2)^2 = 5.828, reached at epsilon = log(1/delta).")


_GRADIENTS = {
    "logistic": lambda margin: 1 / (1 + np.exp(-margin)),
    "squared": lambda margin: np.abs(margin),
    "huber": lambda margin: np.minimum(np.abs(margin), 1.0),
}


def remark_5_3_lipschitz(losses: list[str]) -> Finding:
    """The largest gradient of one record of norm 1 as the residual grows: bounded, or without a bound."""
    rows: list[tuple[str, Any, Any, bool]] = []
    for loss in losses:
        small, large = (float(_GRADIENTS[loss](np.linspace(-500, size, 1001)).max()) for size in (5e2, 5e5))
        rows.append((f"{loss} loss", "a tight bound", f"{small:g}, then {large:g}", large <= small * (1 + 1e-9)))
    return readings(
        rows,
        "bounded by K for the logistic loss; for the squared loss no bound that does not depend on the data",
        "bound broken",
        "Residuals up to 500, then 500,000. Public bounds on labels and weights would give one.",
    )


def tuning_cost(settings: list[int], epsilon: float, delta: float) -> Finding:
    """The epsilon of releasing the best of a number of private runs, when one run is at the claimed budget."""
    noise = calibrate(lambda z: Gaussian(z), epsilon, delta)
    rows: list[tuple[str, Any, Any, bool]] = []
    for count in settings:
        # A random number of runs with this mean, which is what a private choice among settings takes.
        gamma = _gamma(count)
        cost = epsilon if count == 1 else account(BestOf(Gaussian(noise), Logarithmic(gamma))).epsilon(delta)
        rows.append((f"{count} settings, choice included", epsilon, round(cost, 4), cost <= epsilon * (1 + 1e-6)))
    words = ", ".join(f"{row[2]:g} for {row[0].split(',')[0]}" for row in rows)
    return beside_wording(
        rows,
        "the budget is that of one run at settings that do not depend on the data",
        f"with a private choice the epsilon is at most {words}",
        "The choice is that of Papernot and Steinke. These are upper bounds: they show no loss.",
    )


def _gamma(mean: float) -> float:
    """The parameter of the logarithmic law with this mean."""
    low, high = 1e-12, 1 - 1e-12
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if Logarithmic(middle).mean > mean else (low, middle)
    return high


def exact_minimiser(tolerance: float, share: float, offset: float | None = None) -> Finding:
    """How much more noise objective perturbation needs when an approximate minimiser is certified and charged.

    ``offset`` is how far the certified point may be off, over the shift of the minimiser by one record; the plan's own
    if None.
    """
    settings: dict[str, Any] = {"loss": "logistic", "l2": 0.01, "row_norm": 1.0, "epsilon": 1.0, "delta": 1e-5}
    plan = solvers.plan("objective_perturbation", n=1000, d=20, **settings)
    first = plan.releases[0]
    jacobian = first.squeeze.jacobian if first.squeeze is not None else 0.0
    exact = calibrate(lambda z: ObjectivePerturbation(z, jacobian, signed=True), 1.0, 1e-5)
    charged = first.scale / first.sensitivity
    if offset is not None:
        law = lambda z: Composed(ObjectivePerturbation(z, jacobian, signed=True), Gaussian(2 * z / offset))  # noqa: E731
        charged = calibrate(law, 1.0, 1e-5)
    extra = charged / exact - 1
    row = Comparison(
        "noise for a certified approximate minimiser", f"at most {share:g} more", f"{extra:.4%} more", extra <= share
    )
    verdict = "met" if extra <= share + tolerance else "worse"
    return Finding(verdict, f"a certified approximate minimiser needs {extra:.2%} more noise than an exact one", (row,))


def supports(d: int, sparsity: int, per_second: float) -> Finding:
    """The number of supports that the exponential mechanism would score, and the time that takes."""
    count = math.comb(d, sparsity)
    years = count / per_second / (365.25 * 24 * 3600)
    row = Comparison(f"supports of {sparsity} among {d}", "intractable", f"{count:.3g}", years > 1)
    words = f"{count:.3g} supports: {years:.3g} years at {per_second:g} scores a second"
    return Finding("met" if years > 1 else "worse", words, (row,))


def remark_5_5_budget(constant: float) -> Finding:
    """How the printed variance depends on epsilon and delta, beside constant log(1/delta)/epsilon^2."""
    rows = []
    for delta in (1e-2, 1e-5, 1e-8):
        log = math.log(1 / delta)
        for epsilon in (0.1, 1.0, min(4.0, log)):
            root = math.sqrt(log + epsilon) - math.sqrt(log)
            # One step of sensitivity 2: the tight variance at the same epsilon and delta, in the same unit.
            tight = (2 / gaussian.mu(epsilon, delta)) ** 2
            label = f"epsilon {epsilon:g}, delta {delta:g} (tight noise: constant {tight * epsilon**2 / log:.3g})"
            rows.append((label, constant * log / epsilon**2, 1 / root**2))
    return upper_bound(rows, "In units of T G^2/n^2. The privacy term of the error is proportional to the variance.")
