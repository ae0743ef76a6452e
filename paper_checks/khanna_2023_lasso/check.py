"""Verdicts on Khanna, Lu and Raff 2023: Laplace selections, a noisy count, and their sum."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from dptoolkit import solvers
from dptoolkit.accounting import Composed, Repeated
from dptoolkit.accounting.events import Event, NoisyMax, flatten
from dptoolkit.audit import ApproxClaim, Claim, Pair, PureClaim, pairs
from dptoolkit.audit.theory.replay import exact_count
from dptoolkit.mechanisms import GeometricNoise
from dptoolkit.solvers import Plan
from paper_checks.audits import Audited, attack, frank_wolfe, printed_noise
from paper_checks.constants import published, tie_pair
from paper_checks.verdict import Verdict, bound, judge


def algorithm_1(**at: Any) -> Verdict:
    """Private LASSO with Laplace noise, as printed."""
    return judge(published.lasso_frank_wolfe(**at))


def algorithm_1_gumbel(**at: Any) -> Verdict:
    """The same scale in the exponential mechanism, which the cited analysis is about."""
    record = published.lasso_frank_wolfe(**at)
    assert record.repaired is not None
    return judge(dataclasses.replace(record, releases=record.repaired, attains=record.repaired))


def algorithm_2_count(features: int, epsilon: float, rounded: bool = False) -> Verdict:
    """The private count with the clipping bounds of the experiments, sqrt(p) and 2 sqrt(p)."""
    root = math.sqrt(features)
    return judge(published.sparsifier_count(root, 2 * root, epsilon, rounded))


def theorem_3(features: int, **at: Any) -> Verdict:
    """Count and model together."""
    root = math.sqrt(features)
    return judge(published.sparsifier(lower=root, upper=2 * root, **at))


def max_abs_scaling(n: int, ordinary: float) -> Verdict:
    """How far one record moves the mean gradient when features are scaled by their largest value."""
    real, promise = published.max_abs_scaling(n, ordinary)
    return bound(promise, real, "change of a mean gradient entry")


def theorem_5(**at: Any) -> Verdict:
    """Multinomial private LASSO."""
    return judge(published.multinomial(**at))


def audit_algorithm_1(
    trials: int, n: int, steps: int, l1_radius: float, lipschitz: float, law: str = "laplace", **at: Any
) -> Audited:
    """Ties of all vertices."""
    record = published.lasso_frank_wolfe(n, steps, l1_radius, lipschitz, **at)
    return frank_wolfe(record, n, steps - 1, l1_radius, lipschitz, trials, law)


def audit_algorithm_1_gumbel(**at: Any) -> Audited:
    """The same with Gumbel noise."""
    return audit_algorithm_1(law="gumbel", **at)


def audit_algorithm_2_count(trials: int, features: int, epsilon: float, rounded: bool = False) -> Audited:
    """A count at its lower and at its upper bound."""
    root = math.sqrt(features)
    record = published.sparsifier_count(root, 2 * root, epsilon, rounded)
    lower = _audit_count(record, root, rounded, PureClaim(epsilon), trials)
    return Audited(lower, epsilon, record.upper)


def _audit_count(record: published.Published, root: float, rounded: bool, claim: Claim, trials: int) -> float:
    """Integer noise on a count that was clipped to [root, 2 root], which need not be integers."""
    noise = GeometricNoise(1 / record.scales["count"], 1)

    def release(count: float, rng: np.random.Generator) -> float:
        return (round(count) if rounded else count) + noise.release(0, rng)

    # Bounds that are not integers show in the fractional part, whatever the noise.
    fraction = None if rounded or root == round(root) else lambda counts: np.isclose(counts[:, 0] % 1, root % 1)
    return attack(release, (root, 2 * root), claim, trials, attack=fraction).epsilon_lower


def audit_theorem_3(
    trials: int, features: int, epsilon_count: float, epsilon_model: float, delta: float, as_coded: bool = False,
    **model: Any,
) -> Audited:  # fmt: skip
    """One record that moves the count and every selection; the count alone where that is enough."""
    root, claimed = math.sqrt(features), epsilon_count + epsilon_model
    record = published.sparsifier(
        lower=root, upper=2 * root, epsilon_count=epsilon_count, epsilon_model=epsilon_model, delta=delta, **model
    )
    if root != round(root):
        return Audited(_audit_count(record, root, False, ApproxClaim(claimed, delta), trials), claimed)
    plan = _sparsifier_plan(record, features, epsilon_count, **model)
    pair = pairs.sparsifier(plan)
    if as_coded:
        report = attack(_as_coded(plan, pair), (0, 1), ApproxClaim(claimed, delta), trials)
        return Audited(report.epsilon_lower, claimed)
    return printed_noise(plan, record, pair, trials, "releases", _sparsifier_law(record, features))


def _sparsifier_plan(
    record: published.Published, features: int, epsilon_count: float, n: int, steps: int, l1_radius: float,
    lipschitz: float,
) -> Plan:  # fmt: skip
    plan = solvers.plan(
        "sparsifier", n=n, d=features, steps=steps - 1, loss="huber", l1_radius=l1_radius, feature_bound=lipschitz,
        epsilon=epsilon_count + 1.0, count_share=epsilon_count / (epsilon_count + 1.0), delta=1e-9,
        calibration="published",
    )  # fmt: skip
    return plan.with_noise(record.scales["score"], record.scales["count"])


def _sparsifier_law(record: published.Published, features: int) -> Event:
    """The count, and ties of all vertices: 2 p of them, where the pair for the verdict has four."""
    parts = []
    for part, times in flatten(record.event):
        parts.append(Repeated(tie_pair(features, part.epsilon) if isinstance(part, NoisyMax) else part, times))
    return Composed(*parts)


def _as_coded(plan: Plan, pair: Pair) -> Any:
    """The printed program, on the number of a data set of the pair: the model is cut to the exact count."""
    settings: Any = plan.settings
    uncut = dataclasses.replace(plan, settings=dataclasses.replace(settings, count="fixed", number=plan.d))
    counts = [exact_count(plan, data) for data in pair]
    runs = [solvers.bind(uncut, data.X, data.y, data.counts) for data in pair]
    return lambda which, rng: _largest(runs[which](rng).weights, counts[which])


def _largest(weights: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The ``count`` largest weights, the others 0."""
    first = np.argsort(-np.abs(weights), kind="stable")[:count]
    out = np.zeros_like(weights)
    out[first] = weights[first]
    return out


def audit_max_abs_scaling(trials: int, n: int, ordinary: float) -> Audited:
    """Frank-Wolfe at epsilon 1 on features scaled by their largest value, which one record decides."""
    claimed, delta = 1.0, 1e-6
    plan = solvers.plan(
        "dp_frank_wolfe", n=n, d=1, steps=10, loss="logistic", l1_radius=1.0, feature_bound=1.0, epsilon=claimed,
        delta=delta,
    )  # fmt: skip
    X, y = np.full((n, 1), ordinary), np.ones(n)
    large = X.copy()
    large[0] = 1.0
    pair = tuple((features / np.abs(features).max(axis=0), y) for features in (X, large))
    # Before they are scaled the two differ in one record; the scaling, which is part of what is attacked, changes all.
    report = attack(plan, pair, ApproxClaim(claimed, delta), trials, neighbours="as given")
    return Audited(report.epsilon_lower, claimed, in_currency=False)


def audit_theorem_5(
    trials: int, n: int, steps: int, classes: int, features: int, l1_radius: float, lipschitz: float, **at: Any
) -> Audited:
    """A record of one class or another: at small weights half of what its softmax can move."""
    record = published.multinomial(n, steps, classes, features, l1_radius, lipschitz, **at)
    base = solvers.plan(
        "dp_multinomial_frank_wolfe", n=n, d=features, steps=steps - 1, classes=classes, l1_radius=l1_radius,
        feature_bound=1.0, selection="columns", epsilon=1.0, delta=1e-9, calibration="published",
    )  # fmt: skip
    plan = base.with_noise(record.scales["score"])
    return printed_noise(plan, record, pairs.dp_multinomial_frank_wolfe(plan), trials, "releases")
