"""Broken mechanisms: sums, batches, choices, selections and randomness, each with one fault that is known."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dptoolkit import solvers
from dptoolkit.accounting import ExponentialMechanism, Gaussian, Repeated, Subsampled, gaussian
from dptoolkit.accounting.events import POISSON
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import probes
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.claims import ApproxClaim, GaussianClaim, PureClaim
from dptoolkit.audit.pair import Pair
from dptoolkit.audit.probes import Probe
from dptoolkit.mechanisms import NoisyMaximum
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

Rng = np.random.Generator


ONE = Pair(np.array([1.0, 0.0, 0.0, 0.0]), np.zeros(4), Adjacency.ZERO_OUT, "a record of 1, or 0")
_BOTH = Pair(np.array([1.0, 0.0, 0.0, 0.0]), np.array([-1.0, 0.0, 0.0, 0.0]), Adjacency.REPLACE_ONE, "1, or -1")
_LARGE = Pair(np.array([50.0, *np.zeros(9)]), np.zeros(10), Adjacency.ZERO_OUT, "a record of 50, or 0")
_SMALL = np.tile([0.1, -0.1], 10)
_OUTLIER = Pair(np.array([1.0, *_SMALL]), np.array([0.0, *_SMALL]), Adjacency.ZERO_OUT, "1, or 0, among small ones")
_SKEWED = Pair(np.array([1.0, *abs(_SMALL)]), np.array([0.0, *abs(_SMALL)]), Adjacency.ZERO_OUT, "1, or 0, among 0.1s")


def noisy_sum(data: Array, rng: Rng, scale: float) -> float:
    """The sum of the records plus Gaussian noise."""
    return float(data.sum() + scale * rng.standard_normal())


def _clipped_sum(data: Array, rng: Rng, scale: float) -> float:
    return noisy_sum(np.clip(data, -1, 1), rng, scale)


def _sum_with_location(data: Array, rng: Rng) -> float:
    return float(data.sum() + rng.normal(4.0))


def _laplace_sum(data: Array, rng: Rng, scale: float) -> float:
    return float(data.sum() + rng.laplace(0.0, scale))


def _mean(data: Array, rng: Rng, scale: float) -> float:
    return float(data.mean() + scale / len(data) * rng.standard_normal())


def _mean_of_noisy_sum(data: Array, rng: Rng, scale: float) -> float:
    return float((data.sum() + scale / len(data) * rng.standard_normal()) / len(data))


def _mean_then_clip(data: Array, rng: Rng, scale: float) -> float:
    return float(np.clip(data.mean(), -1, 1) + scale / len(data) * rng.standard_normal())


def _clip_then_mean(data: Array, rng: Rng, scale: float) -> float:
    return _mean(np.clip(data, -1, 1), rng, scale)


def _normalised_sum(data: Array, rng: Rng, scale: float) -> float:
    return noisy_sum(data / np.abs(data).max(), rng, scale)


def _sum_with_own_bound(data: Array, rng: Rng, scale: float) -> float:
    return noisy_sum(data, rng, scale * float(np.abs(data).max()))


def _count(count: int, rng: Rng, low: float, high: float) -> float:
    """The count, clipped, plus integer noise: private for integer bounds only."""
    p = -math.expm1(-1.0 / (high - low))
    return float(np.clip(count, low, high) + rng.geometric(p) - rng.geometric(p))


def _sum_in(data: Array, rng: Rng, kind: type) -> float:
    return float(kind(data.sum()) + kind(rng.standard_normal()))


_MANY = Pair(np.array([2.0**26, 4.0, 1.0]), np.array([2.0**26, 4.0, 0.0]), Adjacency.ZERO_OUT, "large, and 1 more")
SUMS = (
    Broken("half the noise", "The noise has half of the scale that the claim needs.",
           partial(noisy_sum, scale=0.5), ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0)),
    Broken("variance for scale", "The variance is passed where the sampler takes the standard deviation.",
           partial(noisy_sum, scale=0.5**2), ONE, GaussianClaim(2.0), partial(noisy_sum, scale=0.5)),
    Broken("scale as location", "In normal(scale) the scale is taken for the location: the real scale is 1.",
           _sum_with_location, ONE, GaussianClaim(0.25), partial(noisy_sum, scale=4.0)),
    Broken("Laplace without sensitivity", "The Laplace scale is 1/epsilon instead of sensitivity/epsilon.",
           partial(_laplace_sum, scale=1.0), _BOTH, PureClaim(1.0), partial(_laplace_sum, scale=2.0),
           arguments={"trials": 6000, "power": None}),
    Broken("forgotten clip", "Records are assumed to obey a bound that nothing enforces.",
           partial(noisy_sum, scale=1.0), _LARGE, GaussianClaim(1.0), partial(_clipped_sum, scale=1.0)),
    Broken("divided by n twice", "Noise made for a mean is added to the sum, then everything is divided by n.",
           partial(_mean_of_noisy_sum, scale=1.0), ONE, GaussianClaim(1.0), partial(_mean, scale=1.0)),
    Broken("clip after averaging", "The mean is clipped instead of every record.",
           partial(_mean_then_clip, scale=1.0), _LARGE, GaussianClaim(1.0), partial(_clip_then_mean, scale=1.0)),
    Broken("normalised by the maximum", "Records are divided by the data's own maximum, so one record moves them all.",
           partial(_normalised_sum, scale=1.0), _SKEWED, GaussianClaim(1.0), partial(noisy_sum, scale=1.0)),
    Broken("bound from the data", "The bound that the noise is for is learned from the data: the noise names it.",
           partial(_sum_with_own_bound, scale=1.0), _OUTLIER, GaussianClaim(1.0), partial(noisy_sum, scale=1.0)),
    Broken("integer noise on fractions", "Geometric noise on a count clipped to fractional bounds, as in Theorem 3 of "
           "the sparse private LASSO: the fraction passes through.",
           partial(_count, low=6.4, high=12.8), Pair(6, 7), PureClaim(1.0), partial(_count, low=7, high=12),
           probe=partial(probes.output_grid, pair=(6, 8))),
    Broken("noise rounded away", "In single precision the noise next to a large sum rounds to 0.",
           partial(_sum_in, kind=np.float32), _MANY, GaussianClaim(1.0), partial(_sum_in, kind=np.float64)),
)  # fmt: skip


# --- Faults of batches and budgets ----------------------------------------------------------------------------


def _batch_sums(data: Array, rng: Rng, shuffled: bool) -> Array:
    """One epoch of ten batches at rate 1/10, each sum with noise 0.5."""
    where = rng.permutation(len(data)) % 10
    inside = where == np.arange(10)[:, None] if shuffled else rng.random((10, len(data))) < 0.1
    return np.asarray(inside @ data + 0.5 * rng.standard_normal(10))


def _batch_ratio(outputs: Array) -> Array:
    """The log-likelihood ratio of Poisson batches with and without a record of 1."""
    return np.asarray(np.log(0.9 + 0.1 * np.exp((outputs - 0.5) / 0.25)).sum(axis=1))


def _batch_mean(data: Array, rng: Rng, realised: bool) -> float:
    """The mean of a Poisson batch at rate 1/2 of about eight records; noise for the expected size 4."""
    batch = data[rng.random(len(data)) < 0.5]
    return float(batch.sum() / (max(len(batch), 1) if realised else 4) + rng.standard_normal() / 4)


@dataclass(frozen=True)
class Leaky:
    """The Gaussian mechanism, but with probability ``failure`` the data themselves: a stability test that fails."""

    mu: float
    failure: float

    def __call__(self, data: Array, rng: Rng) -> float:
        return float(data.sum()) if rng.random() < self.failure else noisy_sum(data, rng, 1 / self.mu)

    def exact(self) -> Probe:
        """The exact delta at epsilon 1 against what is claimed there."""
        delta = self.failure + (1 - self.failure) * float(gaussian.delta(self.mu, 1.0))
        text = f"The exact delta at epsilon 1 is {delta:.4g}, claimed 1e-05."
        return Probe("exact delta", delta <= 1e-5, text)


BATCHES = (
    Broken("shuffled batches as Poisson", "Batches of a shuffled epoch, which hold every record once, are accounted "
           "for as Poisson samples.",
           partial(_batch_sums, shuffled=True), Pair(np.eye(1, 10)[0], np.zeros(10), Adjacency.ZERO_OUT),
           Repeated(Subsampled(Gaussian(0.5), POISSON, 0.1), 10), partial(_batch_sums, shuffled=False),
           arguments={"attack": _batch_ratio, "trials": 16_000, "power": None}),
    Broken("realised batch size", "The sum of a Poisson batch is divided by its realised size, the noise by the "
           "expected one.",
           partial(_batch_mean, realised=True), Pair(np.array([1.0, *-np.ones(7)]), -np.ones(7)),
           Subsampled(Gaussian(1.0), POISSON, 0.5), partial(_batch_mean, realised=False),
           arguments={"trials": 10_000, "power": None}),
    Broken("delta spent twice", "All of delta calibrates the noise, and a test that may fail spends it again.",
           Leaky(gaussian.mu(1.0, 1e-5), 1e-5), ONE, ApproxClaim(1.0, 1e-5), Leaky(gaussian.mu(1.0, 5e-6), 5e-6),
           probe=Leaky.exact),
)  # fmt: skip


# --- Faults where a choice depends on the data and is not accounted for ---------------------------------------


def _descend(data: Array, rng: Rng, stop: bool) -> tuple[float, int]:
    """Ten noisy steps towards the mean, 1-GDP together; with ``stop`` fewer, once the true loss is small."""
    w, steps = 0.0, 0
    while steps < 10 and not (stop and float(np.mean((data - w) ** 2)) < 0.1):
        w -= 0.5 * (w - float(data.mean()) + math.sqrt(10) / len(data) * rng.standard_normal())
        steps += 1
    return w, steps


def _best_run(data: Array, rng: Rng, runs: int) -> float:
    """The best by the true score of several runs, each 1-GDP."""
    values = [noisy_sum(data, rng, 1.0) for _ in range(runs)]
    return min(values, key=lambda value: abs(value - data.sum()))


def _iterates(data: Array, rng: Rng, best: bool) -> float:
    """Twenty releases, 1-GDP together; returns their mean, or the one that the data like best."""
    values = data.sum() + math.sqrt(20) * rng.standard_normal(20)
    return float(values[np.argmin(np.abs(values - data.sum()))] if best else values.mean())


def _thresholded(data: Array, rng: Rng, everywhere: bool) -> Array:
    """The largest entry of the columns' sums; noise on all of them before the choice, or on the chosen one only."""
    noise = math.sqrt(2) * rng.standard_normal((data.shape[1],))
    total: Array = data.sum(axis=0) + float(everywhere) * noise
    out = np.zeros(data.shape[1])
    j = int(np.argmax(np.abs(total)))
    out[j] = total[j] + (0.0 if everywhere else noise[j])
    return out


def rows(*columns: int) -> Array:
    """One-hot rows of four columns."""
    return np.asarray(np.eye(4)[list(columns)])


CHOICES = (
    Broken("early stopping on the data", "Training stops when the true loss is small: the number of steps tells.",
           partial(_descend, stop=True), Pair(np.array([1.0, *np.zeros(4)]), np.zeros(5), Adjacency.ZERO_OUT),
           GaussianClaim(1.0), partial(_descend, stop=False)),
    Broken("uncharged tuning", "The best of 20 runs by its true score is published, and one run is charged.",
           partial(_best_run, runs=20), ONE, GaussianClaim(1.0), partial(_best_run, runs=1)),
    Broken("best iterate by true loss", "All iterates are charged, but the data choose the one that is returned.",
           partial(_iterates, best=True), ONE, GaussianClaim(1.0), partial(_iterates, best=False)),
    Broken("noise on the support only", "Coordinates are chosen by exact values, and only those get noise.",
           partial(_thresholded, everywhere=False), Pair(rows(0, 1, 0), rows(0, 1, 1), Adjacency.REPLACE_ONE),
           GaussianClaim(1.0), partial(_thresholded, everywhere=True)),
)  # fmt: skip


# --- Faults of private selections -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Selections:
    """How often the first half of the candidates wins in ``count`` noisy maxima of scores of range 1."""

    noise: str
    epsilon: float
    count: int

    def __call__(self, scores: Array, rng: Rng) -> int:
        choice = NoisyMaximum(1 / self.epsilon, 1.0, self.noise)
        return sum(choice.select(scores, rng) < len(scores) / 2 for _ in range(self.count))

    def first_half(self) -> float:
        """P(the first two of four candidates win) at scores 1/4, 1/4, -1/4, -1/4, exactly."""
        from scipy.integrate import quad

        gap, law = 0.5 * self.epsilon, _LAWS[self.noise]
        return float(quad(lambda x: 2 * law[0](x) * law[1](x) * law[1](x + gap) ** 2, -60, 60, points=[-gap, 0],
                          limit=400, epsabs=1e-13)[0])  # fmt: skip

    def exact(self) -> Probe:
        """The exact loss of all selections together, compared with that of as many exponential mechanisms."""
        p, event = self.first_half(), Repeated(ExponentialMechanism(self.epsilon), self.count)
        return probes.exact_composition(p, 1 - p, self.count, event, delta=1e-5)


# Density and distribution function of the noise.
_LAWS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "laplace": (lambda x: 0.5 * math.exp(-abs(x)), lambda x: 0.5 * math.exp(x) if x < 0 else 1 - 0.5 * math.exp(-x)),
    "gumbel": (lambda x: math.exp(-x - math.exp(-x)), lambda x: math.exp(-math.exp(-x))),
}


def plan_of(name: str, **arguments: Any) -> Plan:
    """A plan at delta 1e-5; without the warning that its model is no better than a coin, as nobody wants the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", solvers.HopelessPlanWarning)
        return solvers.plan(name, delta=1e-5, **arguments)


def _nonzeros(outputs: Array) -> Array:
    return np.asarray((outputs != 0).sum(axis=1), dtype=float)


@dataclass(frozen=True)
class _ExactCount:
    """The sparsifier as printed: it keeps as many weights as the exact, non-private path has."""

    plan: Plan

    def __call__(self, data: tuple[Array, Array], rng: Rng) -> Array:
        X, y = data
        s: Any = self.plan.settings
        path = solvers.frank_wolfe(X, y, loss=s.loss, l1_radius=s.l1_radius, steps=s.count_steps)
        settings = replace(s, count="fixed", number=int(np.count_nonzero(path.coef)))
        return solvers.bind(replace(self.plan, settings=settings), X, y)(rng).weights


def halves(shift: float) -> Array:
    """Two scores that lie ``shift`` on both sides of 0."""
    return shift * np.array([1.0, -1.0])


_sparsifier = plan_of("sparsifier", n=4, d=4, l1_radius=4.0, steps=25, epsilon=3.0, count_share=1 / 3,
                    feature_bound=1.0, alpha=2.0, beta=4.0, count_steps=25)  # fmt: skip
SELECTIONS = (
    Broken("Laplace selection as exponential mechanism", "Laplace noisy-max is charged epsilon^2/8, which holds for "
           "Gumbel noise: a few per cent of epsilon, too little for sampling to see.",
           Selections("laplace", 0.1, 50),
           Pair(np.repeat(halves(0.25), 2), np.repeat(halves(-0.25), 2), records=False),
           Repeated(ExponentialMechanism(0.1), 50), Selections("gumbel", 0.1, 50), probe=Selections.exact),
    Broken("permute-and-flip as bounded range", "Selection by exponential noise is charged as bounded range; it has "
           "twice that range.",
           Selections("exponential", 0.5, 10), Pair(halves(0.25), halves(-0.25), records=False),
           Repeated(ExponentialMechanism(0.5), 10), Selections("gumbel", 0.5, 10), arguments={"power_against": 1.5}),
    Broken("count without noise", "The sparsifier's printed code counts again after adding noise: the exact number of "
           "weights is published.",
           _ExactCount(_sparsifier), Pair((rows(0, 1, 2, 3), np.ones(4)), (rows(0, 1, 2, 0), np.ones(4))),
           _sparsifier.guarantee, _sparsifier, arguments={"attack": _nonzeros}),
)  # fmt: skip


# --- Faults of where randomness comes from --------------------------------------------------------------------


def _seeded_sum(data: Array, rng: Rng) -> float:
    return noisy_sum(data, np.random.default_rng(0), 1.0)


def _sum_seeded_by_data(data: Array, rng: Rng) -> float:
    return noisy_sum(data, np.random.default_rng(abs(int(1e6 * data.sum()))), 1.0)


def _sum_with_global_noise(data: Array, rng: Rng) -> float:
    return float(data.sum() + np.random.standard_normal())  # noqa: NPY002


class _Model:
    """A model that keeps its seed, and starts from it again in every fit."""

    def __init__(self, fresh: bool) -> None:
        self.fresh, self.rng = fresh, np.random.default_rng(7)

    def fit(self, data: Array) -> float:
        return noisy_sum(data, self.rng if self.fresh else np.random.default_rng(7), 1.0)


def _fit_again(model: _Model) -> Probe:
    return probes.fresh_fits(partial(model.fit, ONE.first))


def _noisy_sums(data: Array, rng: Rng, fresh: bool) -> Array:
    """Ten noisy sums for 1-GDP together; one draw serves all of them unless ``fresh``."""
    noise = rng.standard_normal((10, 1))
    return np.asarray(data.sum() + math.sqrt(10) * (noise if fresh else noise[:1] + np.zeros((10, 1))))


_own = partial(probes.given_generator, data=ONE.first)
RANDOMNESS = (
    Broken("fixed seed", "A seed inside the mechanism makes its noise a constant.",
           _seeded_sum, ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0), probe=_own),
    Broken("seed from the data", "The seed is a function of the data, so the output is one too.",
           _sum_seeded_by_data, ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0), probe=_own),
    Broken("global random state", "Noise comes from NumPy's global state, which other code may seed, not from the "
           "Generator that was given.",
           _sum_with_global_noise, ONE, GaussianClaim(1.0), partial(noisy_sum, scale=1.0), probe=_own),
    Broken("seed reused in every fit", "A model starts from its seed again in every fit: all fits share their noise.",
           _Model(fresh=False), ONE, GaussianClaim(1.0), _Model(fresh=True), probe=_fit_again),
    Broken("noise reused across steps", "The noise is drawn before the loop and added in every step.",
           partial(_noisy_sums, fresh=False), ONE, GaussianClaim(1.0), partial(_noisy_sums, fresh=True),
           probe=partial(probes.fresh_steps, data=np.zeros(4), scale=math.sqrt(10))),
)  # fmt: skip
