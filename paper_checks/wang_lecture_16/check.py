"""Verdicts on Wang's lecture 16."""

from __future__ import annotations

from typing import Any

from dptoolkit import solvers
from dptoolkit.audit import pairs
from paper_checks.audits import Audited, frank_wolfe, hard_thresholding, printed_noise
from paper_checks.constants import published
from paper_checks.verdict import Verdict, bound, judge


def theorem_16_2(**at: Any) -> Verdict:
    """DP Frank-Wolfe."""
    return judge(published.lecture_frank_wolfe(**at))


def theorem_16_4(**at: Any) -> Verdict:
    """DP-IHT with a constant that is left open."""
    return judge(published.lecture_dp_iht(**at))


def algorithm_5(**at: Any) -> Verdict:
    """Peeling."""
    return judge(published.lecture_peeling(**at))


def algorithm_6_change(**at: Any) -> Verdict:
    """The largest change of an entry that Algorithm 6 hands to peeling."""
    value, real = published.heavy_tailed_change(**at)
    return bound(value, real, "largest change of an entry in one step")


def theorem_16_6(**at: Any) -> Verdict:
    """Heavy-tailed private sparse regression."""
    return judge(published.lecture_heavy_tailed_iht(**at))


def theorem_16_8(**at: Any) -> Verdict:
    """Objective perturbation with a Gaussian term."""
    return judge(published.objective_perturbation(**at))


def theorem_16_8_pure(**at: Any) -> Verdict:
    """Objective perturbation with a term of density exp(-epsilon |b| / 2L)."""
    return judge(published.objective_perturbation_pure(**at))


def audit_theorem_16_2(trials: int, n: int, steps: int, l1_radius: float, lipschitz: float, **at: Any) -> Audited:
    """Ties of all vertices."""
    record = published.lecture_frank_wolfe(n, steps, l1_radius, lipschitz, **at)
    return frank_wolfe(record, n, steps, l1_radius, lipschitz, trials)


def audit_theorem_16_4(trials: int, n: int, steps: int, grad_norm: float, **at: Any) -> Audited:
    """A kept coordinate, with the constant that the point gives."""
    record = published.lecture_dp_iht(n, steps, grad_norm, **at)
    return hard_thresholding(record, n, steps, grad_norm, trials)


def audit_algorithm_5(trials: int, sparsity: int, change: float, epsilon: float, delta: float) -> Audited:
    """Peeling in the first step of Algorithm 6, whose entries move by ``change``."""
    record = published.lecture_peeling(sparsity, change, epsilon, delta)
    # At w = 0 an entry moves by 2 step_size / n.
    return _peeling(record, {"n": 2, "steps": 1, "step_size": change, "radius": 1.0}, sparsity, trials)


def audit_theorem_16_6(trials: int, sparsity: int, feature_bound: float, **at: Any) -> Audited:
    """Ties at the last place, in the first block."""
    record = published.lecture_heavy_tailed_iht(sparsity=sparsity, feature_bound=feature_bound, **at)
    settings = {key: at[key] for key in ("n", "steps", "step_size", "radius")}
    return _peeling(record, settings, sparsity, trials, feature_bound)


def _peeling(
    record: published.Published, settings: dict[str, Any], sparsity: int, trials: int, bound: float = 1.0
) -> Audited:
    if sparsity != 1:
        # For more places the pair behind the lower bound is another one, which no data set of the solver gives.
        raise ValueError("sparsity: must be 1 for an audit")
    base = solvers.plan(
        "peeling_iht", d=4, sparsity=1, feature_bound=bound, label_bound=bound, epsilon=1.0, delta=1e-9,
        calibration="published", **settings,
    )  # fmt: skip
    plan = base.with_noise(record.scales["selection"], record.scales["value"])
    return printed_noise(plan, record, pairs.peeling_iht(plan), trials, "releases")
