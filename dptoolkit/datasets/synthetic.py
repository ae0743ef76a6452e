"""Generators: the papers' own set-ups, and data shaped like RCV1 for speed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from dptoolkit._validate import invalid, one_of, positive, whole
from dptoolkit.datasets.dataset import BINARY, REGRESSION, Dataset
from dptoolkit.mechanisms.randomness import as_generator
from dptoolkit.types import Array

# Wang and Gu 2019, section 6: the variance of the errors of a regression.
_IGHT_NOISE_VARIANCE = 0.1
# Khanna, Lu and Raff 2023, section 4.2: the weights that are not zero.
_KHANNA_WEIGHTS = (10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 0.5)
# Column frequencies (rank + shift)^-power resemble those of RCV1: 0.4 n for the first, 0.1 n for the hundredth.
_RCV1_SHIFT, _RCV1_POWER = 40.0, 1.25
# The number of weights that are not zero.
_RCV1_SUPPORT = 100


def _support(rng: np.random.Generator, d: int, sparsity: int) -> NDArray[np.intp]:
    if sparsity > d:
        raise invalid("sparsity", sparsity, f"<= d={d}")
    return np.asarray(rng.choice(d, size=sparsity, replace=False))


def make_ight(n: int = 1000, d: int = 1000, sparsity: int = 10, task: str = REGRESSION, rng: Any = None) -> Dataset:
    """Section 6 of Wang and Gu 2019 (DP-IGHT).

    Rows are uniform on (-2, 2)^d, scaled down to L2 norm 2 * sparsity where they are longer. ``sparsity`` coefficients
    theta, at random places, are uniform on (-1, 1). Regression: y = <x, theta> + N(0, 0.1). Binary: the paper prints
    P(y = 1) = 1/(1 + exp(<x, theta>)), the reverse of the usual sign; the labels follow it, so what a logistic fit
    estimates, and what ``truth`` holds, is -theta.

    Parameters
    ----------
    n : int, default 1000
        Number of rows.
    d : int, default 1000
        Number of features.
    sparsity : int, default 10
        Number of coefficients that are not zero.
    task : {"regression", "binary"}, default "regression"
        What the labels are.
    rng : int, numpy.random.Generator or None, default None
        A seed, a Generator, or None for fresh entropy.
    """
    n, d, sparsity = whole("n", n, low=1), whole("d", d, low=1), whole("sparsity", sparsity, low=1)
    one_of("task", task, (REGRESSION, BINARY))
    generator = as_generator(rng)
    theta = np.zeros(d)
    theta[_support(generator, d, sparsity)] = generator.uniform(-1, 1, sparsity)
    X = generator.uniform(-2, 2, (n, d))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True) / (2 * sparsity), 1.0)
    words = f"Wang and Gu 2019, section 6, sparse {'linear' if task == REGRESSION else 'logistic'} regression"
    return _labelled(generator, X, theta, task, "ight", words)


def make_transfer(n: int = 800, d: int = 1000, sparsity: int = 10, task: str = REGRESSION, rng: Any = None) -> Dataset:
    """Section 5.1 of Wang and Gu 2020 (knowledge transfer); its second setting is n=4000, d=5000, sparsity=50.

    Rows are uniform on (-1, 1)^d and are not scaled. The paper does not say how the ``sparsity`` coefficients theta are
    drawn: here uniformly from (-1, 1), at random places, as in ``make_ight``. Regression: y = <x, theta> + N(0, 0.1).
    Binary: P(y = 1) = 1/(1 + exp(<x, theta>)) as printed, so that ``truth`` is -theta.

    Parameters
    ----------
    n : int, default 800
        Number of rows.
    d : int, default 1000
        Number of features.
    sparsity : int, default 10
        Number of coefficients that are not zero.
    task : {"regression", "binary"}, default "regression"
        What the labels are.
    rng : int, numpy.random.Generator or None, default None
        A seed, a Generator, or None for fresh entropy.
    """
    n, d, sparsity = whole("n", n, low=1), whole("d", d, low=1), whole("sparsity", sparsity, low=1)
    one_of("task", task, (REGRESSION, BINARY))
    generator = as_generator(rng)
    theta = np.zeros(d)
    theta[_support(generator, d, sparsity)] = generator.uniform(-1, 1, sparsity)
    words = f"Wang and Gu 2020, section 5.1, sparse {'linear' if task == REGRESSION else 'logistic'} regression"
    return _labelled(generator, generator.uniform(-1, 1, (n, d)), theta, task, "transfer", words)


def _labelled(rng: np.random.Generator, X: Array, theta: Array, task: str, name: str, words: str) -> Dataset:
    """Labels as Wang and Gu draw them: linear with normal noise, or logistic with the sign reversed."""
    margin = X @ theta
    if task == REGRESSION:
        y = margin + math.sqrt(_IGHT_NOISE_VARIANCE) * rng.standard_normal(len(X))
        return Dataset(X, y, task, f"{name}-linear", words, theta)
    labels = (rng.random(len(X)) < expit(-margin)).astype(float)
    return Dataset(X, labels, task, f"{name}-logistic", words, -theta)


def make_khanna(n: int = 10_000, p: int = 100, scale: float | str = "max", rng: Any = None) -> Dataset:
    """The correlated design of Wang and Zhang, as section 4.2 of Khanna, Lu and Raff 2023 gives it.

    Rows are N(0, S) with S_ij = 0.5^|i-j|, labels 1 where <x, w> > 0 for w = (10, 9, 8, 7, 6, 5, 4, 0.5, 0, ..., 0):
    there is no label noise, so only the direction of w can be found.

    Parameters
    ----------
    n : int, default 10_000
        Number of rows.
    p : int, default 100
        Number of features.
    scale : float or str, default "max"
        "max" divides each feature by its largest absolute value in the data, as the paper does. That divisor depends on
        every record, so a privacy guarantee does not cover it. A number divides by this public constant.
    rng : int, numpy.random.Generator or None, default None
        A seed, a Generator, or None for fresh entropy.
    """
    n, p = whole("n", n, low=1), whole("p", p, low=len(_KHANNA_WEIGHTS))
    generator = as_generator(rng)
    X = generator.standard_normal((n, p))
    for j in range(1, p):
        # Exactly the covariance above: each feature is half the one before it plus an independent part.
        X[:, j] = 0.5 * X[:, j - 1] + math.sqrt(0.75) * X[:, j]
    X /= np.abs(X).max(axis=0) if scale == "max" else positive("scale", scale, "Or use 'max'.")
    truth = np.zeros(p)
    truth[: len(_KHANNA_WEIGHTS)] = _KHANNA_WEIGHTS
    y = (X @ truth > 0).astype(float)
    return Dataset(X, y, BINARY, "khanna", "Khanna, Lu and Raff 2023, section 4.2, synthetic data", truth)


def make_heavy_tailed(
    n: int = 5000, d: int = 200, sparsity: int = 5, tail: float = 5.0, noise_tail: float = 3.0, noise: float = 0.5,
    rng: Any = None,
) -> Dataset:  # fmt: skip
    """Sparse linear regression with heavy tails, the setting of Algorithm 6 of Wang's lecture 16.

    Features have Student's t law with ``tail`` degrees of freedom, scaled to variance 1; y = <x, truth> + ``noise``
    times such a variable with ``noise_tail`` degrees. ``truth`` has ``sparsity`` entries of +-1/sqrt(sparsity).

    Parameters
    ----------
    n : int, default 5000
        Number of rows.
    d : int, default 200
        Number of features.
    sparsity : int, default 5
        Number of coefficients that are not zero.
    tail : float, default 5.0
        Degrees of freedom of the features, > 2.
    noise_tail : float, default 3.0
        Degrees of freedom of the errors, > 2.
    noise : float, default 0.5
        Standard deviation of the errors.
    rng : int, numpy.random.Generator or None, default None
        A seed, a Generator, or None for fresh entropy.
    """
    n, d, sparsity = whole("n", n, low=1), whole("d", d, low=1), whole("sparsity", sparsity, low=1)
    generator = as_generator(rng)
    truth = np.zeros(d)
    truth[_support(generator, d, sparsity)] = generator.choice([-1.0, 1.0], sparsity) / math.sqrt(sparsity)
    X = _student(generator, "tail", tail, (n, d))
    y = X @ truth + positive("noise", noise) * _student(generator, "noise_tail", noise_tail, (n,))
    return Dataset(X, y, REGRESSION, "heavy-tailed", f"Student t({tail:g}) features, t({noise_tail:g}) errors", truth)


def _student(rng: np.random.Generator, name: str, degrees: float, shape: tuple[int, ...]) -> Array:
    """Student's t scaled to variance 1."""
    if positive(name, degrees) <= 2:
        raise invalid(name, degrees, "> 2", "Below that the variance is infinite.")
    return np.asarray(rng.standard_t(degrees, shape) / math.sqrt(degrees / (degrees - 2)))


def make_rcv1_like(n: int = 20_242, d: int = 47_236, nonzeros: int = 75, rng: Any = None) -> Dataset:
    """Sparse rows with the shape of RCV1: unit L2 norm, about ``nonzeros`` entries per row, power-law columns.

    Made for speed. Labels are logistic in ``truth``, which has 100 entries (fewer if d is small) on frequent columns.

    Parameters
    ----------
    n : int, default 20_242
        Number of rows.
    d : int, default 47_236
        Number of features.
    nonzeros : int, default 75
        Mean number of entries per row, about.
    rng : int, numpy.random.Generator or None, default None
        A seed, a Generator, or None for fresh entropy.
    """
    n, d, nonzeros = whole("n", n, low=1), whole("d", d, low=1), whole("nonzeros", nonzeros, low=1)
    if nonzeros > d:
        raise invalid("nonzeros", nonzeros, f"<= d={d}")
    generator = as_generator(rng)
    order = generator.permutation(d)
    frequency = np.power(np.arange(d) + _RCV1_SHIFT, -_RCV1_POWER, dtype=np.float64)
    X = _power_law_rows(generator, n, nonzeros, frequency, order)
    frequent = order[: 5 * _RCV1_SUPPORT]
    support = generator.choice(frequent, size=min(_RCV1_SUPPORT, len(frequent)), replace=False)
    truth = np.zeros(d)
    truth[support] = 20 * generator.standard_normal(len(support))
    y = (generator.random(n) < expit(X @ truth)).astype(float)
    return Dataset(X, y, BINARY, "rcv1-like", "power-law columns, unit rows", truth)


def _power_law_rows(rng: np.random.Generator, n: int, nonzeros: int, frequency: Array, order: NDArray[np.intp]) -> Any:
    """CSR rows of norm 1; the column of rank k is order[k]."""
    # Lengths vary like those of texts. A column drawn twice in one row counts once, so a few more are drawn.
    spread = 0.65
    lengths = np.maximum(1, 1.1 * nonzeros * rng.lognormal(-(spread**2) / 2, spread, n)).astype(np.int64)
    cumulative = np.cumsum(frequency)
    ranks = np.searchsorted(cumulative, cumulative[-1] * rng.random(lengths.sum()), side="right")
    ranks = np.minimum(ranks, len(frequency) - 1)
    key = np.unique(np.repeat(np.arange(n), lengths) * len(frequency) + ranks)
    rows, ranks = key // len(frequency), key % len(frequency)
    values = np.log1p(frequency[0] / frequency[ranks]) * rng.lognormal(0.0, 0.4, len(key))
    values /= np.sqrt(np.bincount(rows, values * values, minlength=n))[rows]
    X = sparse.csr_matrix((values, (rows, order[ranks])), shape=(n, len(frequency)))
    X.sort_indices()
    return X
