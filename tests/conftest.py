"""What every test run shares: where compiled kernels go, how hypothesis draws, which tests are slow."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent


def _kernels_digest() -> str:
    """Numba's cache does not notice an edit in another file, so every state of the kernels has a cache of its own."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "dptoolkit" / "kernels").glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


# Numba reads this when it is imported, which no test module has done yet. Each worker has a folder of its own: two
# processes that write to one index at the same time lose entries, and tests ask whether a kernel is found again.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ["NUMBA_CACHE_DIR"] = str(ROOT / ".numba_cache" / _kernels_digest() / _WORKER)

# Compilation and the first import take seconds: no deadline, no complaint about slow generation.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, max_examples=25, **_COMMON)
settings.register_profile("nightly", derandomize=False, max_examples=300, **_COMMON)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(PROFILE)
# Hypothesis also tries constants of the modules that are loaded by then, and these are not the same in every worker.
# There is no setting for it; where Hypothesis has other names, draws depend on the order of the tests again.
with contextlib.suppress(ImportError, AttributeError):
    from hypothesis.internal.conjecture import providers

    if PROFILE == "ci":
        providers._get_local_constants = providers.Constants


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("DPTOOLKIT_SLOW"):
        return
    skip = pytest.mark.skip(reason="slow: make check-full runs it")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT
