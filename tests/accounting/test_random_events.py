"""Epsilons of random events: not above those of an earlier version, and not below what neighbours attain.

``random_epsilons.json`` holds what the version before predicted grids said of the events that
``benchmarks.compare_accounts`` draws from the seeds 0, 1, ....
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.compare_accounts import ALLOWED, drawn
from dptoolkit.accounting import account
from dptoolkit.accounting.pld import lower_epsilon

EARLIER: list[float] = json.loads(Path(__file__).with_name("random_epsilons.json").read_text(encoding="utf-8"))


def fault(seed: int, share: float = 1.0) -> str | None:
    """What is wrong with ``share`` times the epsilon of a seed; None if nothing is."""
    kind, event, delta = drawn(seed)
    epsilon, earlier = share * account(event).epsilon(delta), EARLIER[seed]
    if epsilon != earlier and not epsilon <= earlier * (1 + ALLOWED):
        return f"seed {seed} ({kind}): epsilon {epsilon} is above {earlier}, that of an earlier version"
    lower = lower_epsilon(event, delta) if kind in ("poisson", "laplace", "gaussian") else 0.0
    if epsilon < lower * (1 - 1e-9):
        return f"seed {seed} ({kind}): epsilon {epsilon} is below {lower}, which neighbours attain"
    return None


@pytest.mark.parametrize("seed", [0, 3, 4, 5, 7, 12, 97, 136])
def test_epsilons_are_neither_above_the_earlier_ones_nor_below_what_is_attained(seed):
    assert fault(seed) is None


@pytest.mark.slow
def test_epsilons_of_all_seeds():
    assert [found for seed in range(len(EARLIER)) if (found := fault(seed))] == []


@pytest.mark.parametrize("share", [0.9, 1.001])
def test_an_epsilon_too_small_or_too_large_is_a_fault(share):
    seed = next(s for s in range(5, 100, 8) if 0 < EARLIER[s] < math.inf)
    assert fault(seed, share) is not None
