"""How fast audits train, how much of a guarantee they show, and how soon they find half the noise.

    python -m benchmarks.audit                 # trainings a second of every solver, a minute or two
    python -m benchmarks.audit --save          # also into benchmarks/results/audit.jsonl
    python -m benchmarks.audit --shares        # and the shares, some four minutes more on 2 cores
    python -m benchmarks.audit --strict        # exit code 1 if a target is missed

Trainings a second are those of whole calls at the presets, with the preparation of the data. On one core they are
counted by the processor's time, so that other work on the machine does not matter; walls are as they are. The floor is
what drawing the random numbers of a training takes, and nothing else. Shares are epsilon_lower over the claimed epsilon
at delta 1e-5, with 95 % confidence; medians over seeds where it says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.race import Check, show, verdict
from benchmarks.lib.trainings import measure, report
from dptoolkit import audit, solvers
from dptoolkit.accounting import gaussian
from dptoolkit.audit import AuditReport, presets
from dptoolkit.audit.claims import as_claim
from dptoolkit.mechanisms import NoisyMaximum

DELTA = 1e-5
RESULTS = Path(__file__).parent / "results" / "audit.jsonl"
MU = gaussian.mu(1.0, DELTA)


def gaussian_mechanism(data: float, rng: np.random.Generator) -> float:
    """A sum of sensitivity 1 with just enough noise for (1, 1e-5)."""
    return data + rng.standard_normal() / MU


def main(argv: Sequence[str] | None = None) -> int:
    """Print every table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a target is missed")
    parser.add_argument("--shares", action="store_true", help="also measure how much of a guarantee audits reach")
    parser.add_argument("--save", action="store_true", help=f"save the trainings per second in {RESULTS.name}")
    options = parser.parse_args(argv)
    checks = _trainings(options.save)
    if options.shares:
        checks += [*_gaussian(), *_thresholding(), *_stochastic(), *_selections(), *_half_the_noise(), _throughput()]
    show("Targets", checks)
    return verdict(checks, options.strict)


def _trainings(save: bool) -> list[Check]:
    """Trainings a second of every solver at its preset."""
    rates = [measure(solver) for solver in presets.PRESETS]
    print("Trainings a second\n\n" + report(rates) + "\n", flush=True)
    if save:
        RESULTS.write_text("".join(json.dumps(asdict(rate)) + "\n" for rate in rates))
    return [Check(f"{rate.solver}, trainings a second of one core", rate.one, 10_000.0, True, "") for rate in rates]


def _share(subject: str, report: AuditReport, target: float) -> Check:
    print(f"  {subject}: {report.ratio:.3f} of {report.epsilon_claimed:.3g}, {report.trials:,} trials, "
          f"{report.seconds:.1f} s", flush=True)  # fmt: skip
    return Check(subject, report.ratio, target, True)


def _gaussian() -> list[Check]:
    few = [
        audit.audit(gaussian_mechanism, (1.0, 0.0), audit.GaussianClaim(MU), trials=10_000, rng=seed).ratio
        for seed in range(60)
    ]
    many = [
        audit.audit(gaussian_mechanism, (1.0, 0.0), audit.GaussianClaim(MU), trials=1_000_000, rng=seed).ratio
        for seed in range(5)
    ]
    # One exact binomial has medians of 0.831 and 0.983 in closed form, with no trial spent on learning.
    return [
        Check("Gaussian, 10,000 trials, median of 60 seeds", float(np.median(few)), 0.82, True),
        Check("Gaussian, 1,000,000 trials, median of 5 seeds", float(np.median(many)), 0.98, True),
    ]


def _preset(name: str, epsilon: float, adversary: str, trials: int) -> AuditReport:
    plan = presets.plan(name, epsilon, DELTA)
    return audit.audit(plan, presets.pair(plan), trials=trials, adversary=adversary)


def _thresholding() -> list[Check]:
    report = _preset("dp_ight", 1.0, "final", 1_000_000)
    return [
        _share("dp_ight, final model", report, 0.97),
        Check("dp_ight, that audit, seconds", report.seconds, 60.0, False, " s"),
    ]


def _stochastic() -> list[Check]:
    return [
        _share("dp_sgd_ht, rate 0.8, all iterates", _preset("dp_sgd_ht", 6.0, "iterates", 60_000), 0.95),
        _share("dp_sgd_ht, rate 0.8, final model", _preset("dp_sgd_ht", 6.0, "final", 60_000), 0.70),
        _share("dp_scsg_ht, Poisson batches, all iterates", _preset("dp_scsg_ht", 6.0, "iterates", 100_000), 0.95),
        _share("dp_svrg_ht, logistic loss, final model", _preset("dp_svrg_ht", 6.0, "final", 20_000), 0.70),
    ]


def _selections() -> list[Check]:
    checks = []
    for noise in ("laplace", "exponential"):
        mechanism = NoisyMaximum(1.0, 1.0, noise)
        report = audit.audit(_Select(mechanism), audit.pairs.selection(mechanism), audit.PureClaim(1.0), trials=500_000)
        checks.append(_share(f"one selection, {noise} noise", report, 0.97))
    report = _preset("dp_frank_wolfe", 4.0, "releases", 100_000)
    return [*checks, _share("dp_frank_wolfe, Gumbel noise, all vertices", report, 0.85)]


class _Select:
    def __init__(self, mechanism: NoisyMaximum) -> None:
        self.mechanism = mechanism

    def __call__(self, scores: Any, rng: np.random.Generator) -> int:
        return self.mechanism.select(scores, rng)


def _half_the_noise() -> list[Check]:
    """dp_ight with half the noise it claims: trials until the e-value reaches 1e6, over 100 seeds."""
    plan = presets.plan("dp_ight", 1.0, DELTA)
    half = plan.with_noise(factor=0.5)
    pair, claim = presets.pair(plan), as_claim(plan.guarantee)
    counts, began = [], time.perf_counter()
    for seed in range(100):
        report = audit.audit(half, pair, claim, trials=20_000, mode="sequential", alpha=1e-6, rng=seed)
        counts.append(report.stopped_at or 10**9)
    seconds = (time.perf_counter() - began) / len(counts)
    print(f"  half the noise in dp_ight: mean {np.mean(counts):,.0f} trainings, at most {max(counts):,} of 100 audits")
    return [
        Check("half the noise found, trainings at most", float(max(counts)), 7500.0, False, ""),
        Check("half the noise found, seconds an audit", seconds, 1.0, False, " s"),
    ]


def _throughput() -> Check:
    plan = presets.plan("dp_ight", 1.0, DELTA)
    pair = presets.pair(plan)
    best = max(audit.audit(plan, pair, trials=200_000, rng=seed).trainings_per_second for seed in range(3))
    X, y = pair.first.expand()
    began, count = time.perf_counter(), 50
    for seed in range(count):
        _plain_fit(X, y, plan, np.random.default_rng(seed))
    plain = count / (time.perf_counter() - began)
    print(f"  trainings a second: {best:,.0f}, plain NumPy {plain:,.0f}, {best / plain:,.0f}x")
    return Check("trainings a second, worst pair of dp_ight", best, 100_000.0, True, "")


def _plain_fit(X: Any, y: Any, plan: solvers.Plan, rng: np.random.Generator) -> Any:
    """Hard thresholding of the clipped squared loss, as one would write it in NumPy."""
    s, n = plan.settings, plan.n
    caps, w = s.grad_norm / np.linalg.norm(X, axis=1), np.zeros(plan.d)
    for _ in range(s.steps):
        r = np.clip(X @ w - y, -caps, caps)
        w = w - s.step_size * (X.T @ r / n + rng.normal(0.0, plan.noise, plan.d))
        w[np.argsort(np.abs(w))[: plan.d - s.sparsity]] = 0.0
    return w


if __name__ == "__main__":
    sys.exit(main())
