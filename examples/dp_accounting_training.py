"""A program for dp_accounting that computes with dptoolkit: one line differs, the accountant.

    python examples/dp_accounting_training.py

The noise of a training with Poisson batches, found by dp_accounting's own calibration, and what a whole pipeline of
selections, statistics and training spends. What their own accountants say stands beside it.
"""

from __future__ import annotations

import sys

import dp_accounting
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dptoolkit.accounting.google import Accountant

RATE, STEPS, EPSILON, DELTA = 0.01, 1_000, 1.0, 1e-6


def training(noise_multiplier: float) -> dp_event.DpEvent:
    """What DP-SGD releases."""
    step = dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(noise_multiplier))
    return dp_event.SelfComposedDpEvent(step, STEPS)


def noise(make_fresh_accountant=Accountant) -> float:  # <- the one line: it was PLDAccountant
    """The smallest noise multiplier whose training is (EPSILON, DELTA)-DP."""
    return float(
        dp_accounting.calibrate_dp_mechanism(
            make_fresh_accountant,
            training,
            EPSILON,
            DELTA,
            tol=1e-3,
            bracket_interval=dp_accounting.ExplicitBracketInterval(0.5, 4.0),
        )
    )


def spent(noise_multiplier: float, accountant) -> float:
    """Epsilon of a histogram, a tree of sums and the training."""
    accountant.compose(dp_event.LaplaceDpEvent(20.0))
    accountant.compose(dp_event.MixtureOfGaussiansDpEvent(8.0, [0.0, 1.0, 2.0], [0.81, 0.18, 0.01]), 10)
    accountant.compose(training(noise_multiplier))
    return float(accountant.get_epsilon(DELTA))


def main() -> int:
    ours, theirs = noise(), noise(PLDAccountant)
    print(f"noise multiplier for epsilon {EPSILON:g} at delta {DELTA:g}: {ours:.4f} (PLDAccountant: {theirs:.4f})")
    accountant = Accountant()
    print(f"a pipeline spends {spent(ours, accountant):.4f} (PLDAccountant: {spent(ours, PLDAccountant()):.4f})")
    print(f"\n{accountant.guarantee}\n\n{accountant.guarantee.sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
