"""Statements of Khanna, Lu and Raff 2023 that arithmetic or an explicit example decides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from paper_checks.findings import Comparison, Finding, readings, upper_bound
from paper_checks.seeds import Rng
from paper_checks.tables import Table

Array = NDArray[np.float64]


def lipschitz(constant: float) -> Finding:
    """The largest entry of a gradient of the cross-entropy, features at 1, as the margin grows."""
    rows = []
    for margin in (0.0, 2.0, 10.0, 40.0):
        rows.append((f"label 0, margin {margin:g}", constant, 1 / (1 + math.exp(-margin))))
    return upper_bound(rows, "Reached in the limit of a large margin on the wrong side: the constant is tight.")


def curvature(constant: float, radii: list[float]) -> Finding:
    """The curvature constant of one record with one feature of 1, against constant beta radius^2 with beta = 1/4."""
    rows = []
    for radius in radii:
        worst = 0.0
        for start in np.linspace(-radius, radius, 81):
            for end in (-radius, radius):
                for part in np.geomspace(1e-2, 1, 25):
                    worst = max(worst, _bregman(float(start), float(start + part * (end - start))) * 2 / part**2)
        rows.append((f"radius {radius:g}", constant * radius**2 / 4, worst))
    return upper_bound(rows, "The diameter 2 lambda enters, so 4 beta lambda^2 is a bound.", slack=1e-4)


def _bregman(first: float, second: float) -> float:
    """log(1 + e^second) - log(1 + e^first) - (second - first) times the derivative at first, without cancellation."""
    slope = 1 / (1 + math.exp(-first))
    step = second - first
    if abs(step) < 1e-3:
        bend = slope * (1 - slope)
        return bend * step**2 / 2 + bend * (1 - 2 * slope) * step**3 / 6
    return float(np.logaddexp(0, second) - np.logaddexp(0, first) - step * slope)


def sparsifier_bound(factor: float, features: list[int]) -> Finding:
    """The loss that a cut to sqrt(p) weights can add in the worst case, against factor L lambda min((p-a)/(a+1), 1)."""
    rows = []
    radius = 10.0
    for p in features:
        kept = math.ceil(math.sqrt(p))
        bound = factor * radius * min((p - kept) / (kept + 1), 1.0)
        # Equal weights on features of 1 and a large margin from elsewhere: the loss falls by what the cut takes away.
        rows.append((f"p = {p}, lambda = {radius:g}", bound, radius * (p - kept) / p))
    return upper_bound(
        rows, "The minimum is 1 for p of 6 and more: the bound is L lambda = 10, where zero weights have loss 0.69."
    )


def selections(stated: int, made: int) -> Finding:
    """T - 1 selections with the noise for T: how much noise is to spare."""
    factor = math.sqrt(stated / made)
    row = Comparison("noise for T over noise for the selections made", 1.0, factor, stated == made)
    words = f"{factor:.5f} times the noise that T - 1 selections need; the printed program makes T"
    return Finding("met" if row.agrees else "constant only", words, (row,))


def matrix_norms(constant: float, classes: int, features: int) -> Finding:
    """The dual norm of (y^ - y) x^T for a record that is misclassified by far, under three readings of the L1 norm."""
    residual = np.zeros(classes)
    residual[0], residual[1] = 1.0, -1.0
    gradient = np.outer(residual, np.ones(features))
    rows: list[tuple[str, Any, Any, bool]] = []
    for name, value in (
        ("sum of all entries: largest entry", np.abs(gradient).max()),
        ("largest row sum of the p x K gradient, as in the proof", np.abs(gradient.T).sum(axis=1).max()),
        ("largest row sum of the K x p gradient, W being K x p", np.abs(gradient).sum(axis=1).max()),
    ):
        rows.append((name, constant, float(value), value <= constant + 1e-12))
    return readings(rows, f"1, 2 or {features} by the reading of the norm", "bound broken")


def names_of_program(defined: list[str], called: list[str]) -> Finding:
    """Functions that the printed program calls and does not define; and a count clipped to sqrt(p) as an index."""
    missing = [name for name in called if name not in defined]
    clipped = np.clip(7, math.sqrt(54), 2 * math.sqrt(54))
    try:
        np.argpartition(np.arange(54.0), -1 * clipped)
        index = "accepted"
    except TypeError:
        index = "TypeError"
    rows = (
        Comparison("called and not defined", "none", ", ".join(missing) or "none", not missing),
        Comparison("a count clipped to [sqrt(54), 2 sqrt(54)] as an index", "accepted", index, index == "accepted"),
    )
    words = f"not defined: {', '.join(missing) or 'none'}; a float count gives {index}"
    return Finding("met" if not missing else "misprint", words, rows)


def start(rng: Rng, loss: str, constant: float = 2.0) -> Finding:
    """How far replacing one record moves a vertex score, at zero weights and at random ones, over lambda L/n.

    Features are at most 1 and labels 0 or 1.
    """
    p, radius = 20, 10.0
    rows: list[tuple[str, Any, Any, bool]] = []
    random = radius * rng("weights").dirichlet(np.ones(p))
    for name, w in (("zero weights", np.zeros(p)), ("random weights", random)):
        change = score_change(w, loss)
        rows.append((f"{name}: score change over lambda/n", constant, change, change <= constant))
    words = f"a score changes by at most {rows[0][2]:.3g} at zero weights and {rows[1][2]:.3g} at random ones"
    return readings(rows, f"{words}, in units of lambda/n; the noise is for {constant:g}", "bound broken")


def score_change(w: Array, loss: str) -> float:
    """The largest difference of an entry of the gradient between two records with features of +-1 and labels 0 or 1.

    Entry j of a record's gradient is x_j (s(<x, w>) - y), where s is the logistic function or, for the squared loss,
    the margin itself. The margin x_j w_j + ... differs from x_j w_j by at most the sum of the other |w_i|.
    """
    rest = np.abs(w).sum() - np.abs(w)
    most, least = [], []
    for sign in (1.0, -1.0):
        high, low = (np.asarray(expit(m) if loss == "logistic" else m) for m in (sign * w + rest, sign * w - rest))
        ends = (sign * high, sign * (high - 1), sign * low, sign * (low - 1))
        most.append(np.max(ends, axis=0))
        least.append(np.min(ends, axis=0))
    return float((np.max(most, axis=0) - np.min(least, axis=0)).max())


def majority(table: Table, column: str, share: float, tolerance: float) -> Finding:
    """Printed accuracies against that of always answering the larger class."""
    number = table.columns.index(column)
    rows = tuple(
        Comparison(f"{method}: accuracy", table.mean[f"{method} accuracy"][number], share,
                   abs(table.mean[f"{method} accuracy"][number] - share) <= tolerance)
        for method in ("Sparsifier", "Private LASSO")
    )  # fmt: skip
    words = f"always answering the larger class has {share:.2f} %"
    return Finding("tie" if all(row.agrees for row in rows) else "met", words, rows)


def below_majority(table: Table, column: str, positive: int, total: int) -> Finding:
    """Printed accuracies against the larger class's share, if it is that of the stated training rows or any other.

    Always answering the larger class is right for at least half of the rows, whatever the shares are.
    """
    number = table.columns.index(column)
    share = 100 * max(positive, total - positive) / total
    values = [table.mean[f"{method} accuracy"][number] for method in ("Sparsifier", "Private LASSO")]
    rows: list[tuple[str, Any, Any, bool]] = [
        (
            "test rows with other shares, equal ones at best: 50 % for either class",
            min(values),
            50.0,
            min(values) >= 50,
        ),
        (f"test rows with their shares: {share:.2f} % for the larger class", min(values), share, min(values) >= share),
    ]
    return readings(rows, f"{values[0]:g} and {values[1]:g} against {share:.2f} of the larger class", "worse")


def work_of_selection(features: list[int], storage: str, tolerance: float) -> Finding:
    """Products that a step spends on all vertices: one by one, as in Algorithm 1, over those of Appendix B."""
    rows = []
    for p in features:
        unit = sparse.identity(p, format="csc")
        vertices = sparse.vstack((unit, -unit), format="csc")
        stored = vertices.nnz if storage == "sparse" else vertices.shape[0] * vertices.shape[1]
        # Each of the 2p inner products of the printed inner loop has p terms.
        ratio = 2 * p * p / stored
        rows.append(
            Comparison(
                f"p = {p:,}: products, inner loop / {storage} matrix", f">= {tolerance:g}", ratio, ratio >= tolerance
            )
        )
    ratios = [float(row.computed) for row in rows]
    words = f"{min(ratios):,.0f} to {max(ratios):,.0f} times fewer products for the scores of all vertices"
    detail = (
        "Both then draw 2p random numbers, and both read X twice a step for the gradient, which this does not change."
    )
    return Finding("met" if all(row.agrees for row in rows) else "not reached here", words, tuple(rows), detail)
