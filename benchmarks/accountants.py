"""The table of docs/accounting.md: epsilons by dp_accounting's accountants and by ours, and what neighbours attain.

python -m benchmarks.accountants
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import dp_accounting
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dptoolkit.accounting.google import Accountant
from dptoolkit.accounting.report import table

DELTA = 1e-6


def cases() -> list[tuple[str, Any, int, Any]]:
    """(name, event, how often, neighbouring relation) of every row."""
    one, special, add = (
        dp_accounting.NeighboringRelation[name] for name in ("REPLACE_ONE", "REPLACE_SPECIAL", "ADD_OR_REMOVE_ONE")
    )
    gaussian = dp_event.GaussianDpEvent
    return [
        ("Gaussian noise, multiplier 2, replace-one", gaussian(2.0), 1, one),
        ("10 times Laplace noise, multiplier 4, replace-one", dp_event.LaplaceDpEvent(4.0), 10, one),
        ("300 batches of 1 %, Gaussian, multiplier 2, replace-one",
         dp_event.SampledWithoutReplacementDpEvent(1000, 10, gaussian(2.0)), 300, one),
        ("100 randomised responses, noise parameter 0.5, replace-one",
         dp_event.RandomizedResponseDpEvent(0.5, 2), 100, one),
        ("a tree of 1,600 steps, multiplier 8.83, replace-special",
         dp_event.SingleEpochTreeAggregationDpEvent(8.83, 1600), 1, special),
        ("10 truncated batches, 20 of 100, rate 0.5, multiplier 1",
         dp_event.TruncatedSubsampledGaussianDpEvent(
             dataset_size=100, sampling_probability=0.5, truncated_batch_size=20, noise_multiplier=1.0), 10, add),
    ]  # fmt: skip


def epsilon(kind: Any, event: Any, count: int, relation: Any) -> str:
    """Epsilon by an accountant of that class, or that it refuses the event."""
    accountant = kind(neighboring_relation=relation)
    if not accountant.supports(event):
        return "refused"
    return f"{accountant.compose(event, count).get_epsilon(DELTA):.4g}"


def main() -> int:
    """Print the table."""
    warnings.simplefilter("ignore")
    rows = []
    for name, event, count, relation in cases():
        found = [epsilon(kind, event, count, relation) for kind in (PLDAccountant, RdpAccountant, Accountant)]
        attained = Accountant(relation).compose(event, count).guarantee.bounds(DELTA).lower
        rows.append([name, *found, f"{attained:.4g}"])
    print(table(["event, relation", "PLDAccountant", "RdpAccountant", "google.Accountant", "attained"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
