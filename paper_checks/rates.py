"""Orders of growth: the exponents of measured errors beside those of the printed expressions.

A theorem of the form "error = O(expression)" leaves its constant open, so one error decides nothing. Here the error is
measured along one size at a time, over at least a factor 16 where the size allows it, and the exponent of its growth is
compared with that of the printed expression over the same range, logarithms included. A finite range cannot break an
O(): an exponent above the printed one is reported as "not reached here".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paper_checks.charts import POINTS, REFERENCE, Chart, Curve, geometric_curve, intervals, mean_curve
from paper_checks.findings import Comparison, Finding, Order, value_of

Array = NDArray[np.float64]
# One-sided confidence of an exponent. About a hundred of them are compared, each with the tolerance on top.
CONFIDENCE = 0.999


@dataclass(frozen=True)
class Growth:
    """Errors along one size: ``errors`` has one row per repetition and one column per entry of ``values``.

    ``printed`` is the printed expression at each of them, with any constant.
    """

    size: str
    values: Sequence[float]
    errors: Array
    printed: Sequence[float]

    @property
    def exponent(self) -> float:
        """The measured exponent: the mean over repetitions of the least-squares slope of the logarithms."""
        return float(self._slopes.mean())

    @property
    def margin(self) -> float:
        """How much larger the exponent may be, at ``CONFIDENCE``, by Student's t over repetitions."""
        count = len(self._slopes)
        quantile = float(stats.t.ppf(CONFIDENCE, count - 1))
        return quantile * float(self._slopes.std(ddof=1)) / math.sqrt(count)

    @property
    def allowed(self) -> float:
        """The exponent of the printed expression over this range."""
        return float(slopes(self.values, np.array([self.printed], dtype=float))[0])

    @property
    def _slopes(self) -> Array:
        return slopes(self.values, self.errors)

    def comparison(self, tolerance: float) -> Comparison:
        """Whether the error grows at most as the printed expression does."""
        low, high = min(self.values), max(self.values)
        label = f"{self.size} = {low:g} to {high:g}: exponent"
        agrees = self.exponent <= self.allowed + self.margin + tolerance
        return Comparison(label, f"<= {self.allowed:.2f}", f"{self.exponent:.2f} +- {self.margin:.2f}", bool(agrees))

    def chart(self, constant: float | None = None) -> Chart:
        """The measured errors, and a line of the printed exponent through their middle.

        With a ``constant`` the line is ``constant`` times the printed expression instead, which then is the bound.
        """
        # What is judged: the slope of logarithms, or the mean error.
        measured = (geometric_curve("measured", self.values, self.errors.T) if constant is None
                    else mean_curve("measured", self.values, self.errors.T, POINTS))  # fmt: skip
        x = tuple(float(value) for value in self.values)
        if constant is None:
            middle = float(np.mean(np.log(measured.ys)))
            steps = np.log(x) - np.mean(np.log(x))
            line = Curve("printed exponent, through the middle", x,
                         tuple(float(y) for y in np.exp(middle + self.allowed * steps)), kind=REFERENCE)  # fmt: skip
            title = f"{self.size}: exponent {self.exponent:.2f} measured, {self.allowed:.2f} printed"
        else:
            bound = tuple(constant * float(value) for value in self.printed)
            words = "printed expression" if constant == 1 else f"{constant:g} times the printed expression"
            line, title = Curve(words, x, bound, kind=REFERENCE), f"{self.size}: error and bound"
        note = intervals(len(self.errors)) + (" The means are geometric." if constant is None else "")
        return Chart(title, self.size.split(": ")[-1].split(",")[0], "error", (measured, line), True, True, note=note)


def slopes(values: Sequence[float], errors: Array) -> Array:
    """The least-squares slope of log error on log value, of every row of ``errors``."""
    x = np.log(np.asarray(values, dtype=float))
    x = x - x.mean()
    return np.asarray(np.log(errors) @ x / (x @ x))


def upper_orders(growths: Iterable[Growth], tolerance: float, detail: str = "") -> Finding:
    """An error of a printed order, along every size: bound met, or not reached here."""
    kept = list(growths)
    rows = tuple(growth.comparison(tolerance) for growth in kept)
    shown = ", ".join(f"{growth.size} {growth.exponent:.2f} ({growth.allowed:.2f})" for growth in kept)
    verdict = "bound met" if all(row.agrees for row in rows) else "not reached here"
    pictures = tuple(growth.chart() for growth in kept)
    return Finding(verdict, f"measured exponents (printed): {shown}", rows, detail, charts=pictures)


def below(growths: Iterable[Growth], constant: float, detail: str = "") -> Finding:
    """An error that is at most ``constant`` times the printed expression everywhere: bound met, or not reached here.

    For an expression that the error is far below in all cases, where exponents decide nothing: an error may grow faster
    than a bound that it does not come near.
    """
    rows, pictures = [], []
    for growth in growths:
        pictures.append(growth.chart(constant))
        ratios = growth.errors.mean(axis=0) / np.asarray(growth.printed, dtype=float)
        low, high = min(growth.values), max(growth.values)
        label = f"{growth.size} = {low:g} to {high:g}: largest mean error / printed expression"
        rows.append(Comparison(label, f"<= {constant:g}", float(ratios.max()), bool(ratios.max() <= constant)))
    words = f"mean error / printed expression: at most {max(float(row.computed) for row in rows):.3g}"
    verdict = "bound met" if all(row.agrees for row in rows) else "not reached here"
    return Finding(verdict, words, tuple(rows), detail, charts=tuple(pictures))


def grow(
    measure: Callable[..., Array],
    base: Mapping[str, float],
    ranges: Mapping[str, Sequence[float]],
    printed: Callable[..., float],
) -> list[Growth]:
    """Errors along each size of ``ranges``, the others as in ``base``.

    ``measure(**sizes)`` returns one error per repetition, ``printed(**sizes)`` the printed expression.
    """
    growths = []
    for size, values in ranges.items():
        settings = [dict(base) | {size: value} for value in values]
        errors = np.stack([measure(**sizes) for sizes in settings], axis=1)
        growths.append(Growth(size, values, errors, [printed(**sizes) for sizes in settings]))
    return growths


def expression(exponents: Order, log_steps: Callable[..., float] | None = None) -> Callable[..., float]:
    """The printed expression as a function of sizes: a product of powers.

    ``log_d`` is the logarithm of the size ``d``, ``log_inverse_delta`` that of 1/``delta``, and ``log`` the value of
    ``log_steps`` at the sizes, where a theorem has a logarithm of many of them.
    """

    def value(**sizes: float) -> float:
        known = dict(sizes)
        if "d" in sizes:
            known["log_d"] = math.log(sizes["d"])
        if "delta" in sizes:
            known["log_inverse_delta"] = math.log(1 / sizes["delta"])
        if log_steps is not None:
            known["log"] = log_steps(**sizes)
        return value_of(exponents, **known)

    return value


# --- the quadratic of the theorems -----------------------------------------------------------------------------------


def noisy_thresholding(
    draws: Iterable[np.random.Generator],
    d: int,
    true_sparsity: int,
    sparsity: int,
    noise: float,
    steps: int,
    step_size: float = 0.5,
    size: float = 1.0,
) -> Array:
    """Squared errors of noisy hard thresholding on the quadratic |theta - theta*|^2/2, one per generator.

    Its condition number is 1, so a theorem's assumptions hold with the best constants, and n and epsilon enter through
    the printed noise alone. The gradient theta - theta* gets normal noise of deviation ``noise`` on every coordinate.
    The entries of theta* are +-``size``.
    """
    errors = []
    for draw in draws:
        truth = np.zeros(d)
        truth[draw.choice(d, true_sparsity, replace=False)] = size * draw.choice([-1.0, 1.0], true_sparsity)
        theta = np.zeros(d)
        for _ in range(steps):
            theta = theta - step_size * (theta - truth + noise * draw.standard_normal(d))
            theta = hard_threshold(theta, sparsity)
        errors.append(float(np.sum((theta - truth) ** 2)))
    return np.array(errors)


def hard_threshold(vector: Array, sparsity: int) -> Array:
    """The vector with all but its ``sparsity`` largest entries set to 0."""
    if sparsity >= len(vector):
        return vector
    kept = np.argpartition(-np.abs(vector), sparsity)[:sparsity]
    out = np.zeros_like(vector)
    out[kept] = vector[kept]
    return out
