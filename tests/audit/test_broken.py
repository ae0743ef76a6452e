"""The auditor against mechanisms known to be wrong: every fault is caught, every correct twin passes.

A correct mechanism is refuted with probability at most 1e-6 over the seed, which is fixed here, so the outcome is too.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from dptoolkit.audit import assert_private
from dptoolkit.audit.broken import BROKEN
from dptoolkit.errors import PrivacyViolation

ALPHA = 1e-6
FAULTS = [pytest.param(b, id=name.replace(" ", "-")) for name, b in BROKEN.items()]
TWINS = [pytest.param(b, id=name.replace(" ", "-")) for name, b in BROKEN.items() if b.correct is not None]
SAMPLED = [b for b in BROKEN.values() if b.probe is None]


@pytest.mark.parametrize("broken", FAULTS)
def test_fault_is_caught(broken):
    if broken.probe is None:
        with pytest.raises(PrivacyViolation, match="Audit: violation"):
            assert_private(broken.mechanism, broken.pair, broken.claim, alpha=ALPHA, **broken.arguments)
    else:
        seen = broken.probe(broken.mechanism)
        assert not seen.passed, seen


@pytest.mark.parametrize("broken", TWINS)
def test_correct_twin_passes(broken):
    found = broken.examine(broken.correct, alpha=ALPHA)
    assert not found.caught, found.text


def test_every_fault_is_described():
    assert len(BROKEN) >= 20
    assert len({b.fault for b in BROKEN.values()}) == len(BROKEN)
    for name, broken in BROKEN.items():
        assert name == broken.name
        assert broken.fault.endswith(".") and len(broken.fault.split()) >= 5 and broken.fault[0].isupper()


def test_production_code_is_among_what_is_attacked():
    solvers = {b.name.split(":")[0] for b in SAMPLED if ":" in b.name}
    assert solvers == {"dp_ight", "dp_frank_wolfe", "dp_sgd_ht", "peeling_iht"}
    assert sum(":" in b.name for b in SAMPLED) >= 6


def test_another_seed_catches_the_same_gross_faults():
    for name in ("half the noise", "noise on the support only", "dp_ight: count ignored"):
        broken = BROKEN[name]
        found = broken.examine(broken.mechanism, rng=1)
        assert found.caught and found.trials < 1000, found.text


def test_importing_the_faults_warns_of_nothing():
    """Who asks for mechanisms known to be wrong is not told that their models are hopeless."""
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", "import dptoolkit.audit.broken"], check=True)
