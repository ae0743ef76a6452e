"""Statistical assertions with a stated error rate.

A correct sampler fails with probability at most ``alpha`` over the seed, which is fixed in the ordinary run.
Each use has a twin that must fail (``rejected``): a test that cannot see 10% too little noise is no test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

ALPHA = 1e-6
# Below this expected count the chi-square approximation is poor; rarer cells are pooled.
_SMALLEST_CELL = 5.0


def assert_ks(sample: Any, cdf: Callable[[Any], Any], alpha: float = ALPHA) -> None:
    """The sample follows the continuous distribution ``cdf`` (Kolmogorov-Smirnov, exact p-value)."""
    result = stats.kstest(np.asarray(sample, dtype=float).ravel(), cdf)
    _decide("Kolmogorov-Smirnov", result.statistic, result.pvalue, alpha)


def assert_chi2(counts: Any, probabilities: Any, alpha: float = ALPHA) -> None:
    """Observed cell counts follow ``probabilities`` (Pearson's chi-square, rare cells pooled)."""
    counts, probabilities = np.asarray(counts, dtype=float).ravel(), np.asarray(probabilities, dtype=float).ravel()
    total = counts.sum()
    expected = total * probabilities / probabilities.sum()
    impossible = counts[probabilities == 0].sum()
    assert impossible == 0, f"{impossible:.0f} draws in cells of probability 0"
    order = np.argsort(expected)
    cells, start, weight = [], 0, 0.0
    for i, index in enumerate(order):
        weight += expected[index]
        if weight >= _SMALLEST_CELL:
            cells.append(order[start : i + 1])
            start, weight = i + 1, 0.0
    if start < len(order) and cells:
        cells[-1] = np.concatenate([cells[-1], order[start:]])
    assert len(cells) >= 2, f"{total:.0f} draws fill {len(cells)} cell(s): draw more"
    seen, wanted = np.array([counts[c].sum() for c in cells]), np.array([expected[c].sum() for c in cells])
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    _decide(f"chi-square, {len(cells)} cells", statistic, float(stats.chi2.sf(statistic, len(cells) - 1)), alpha)


def assert_binomial(successes: int, trials: int, probability: float, alpha: float = ALPHA) -> None:
    """``successes`` of ``trials`` follow a binomial law (exact, two-sided)."""
    result = stats.binomtest(int(successes), int(trials), probability)
    _decide("binomial", result.statistic, result.pvalue, alpha)


def rejected(check: Callable[..., None], *arguments: Any, **options: Any) -> None:
    """The twin: the same check on a defective sampler must fail."""
    with pytest.raises(AssertionError):
        check(*arguments, **options)


def _decide(name: str, statistic: float, pvalue: float, alpha: float) -> None:
    assert pvalue >= alpha, f"{name}: statistic {statistic:.6g}, p-value {pvalue:.3g} < alpha {alpha:g}"
