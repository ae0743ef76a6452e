"""What every test run shares: where compiled kernels go, how hypothesis draws, which tests are slow, what may warn."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import compiled

ROOT = Path(__file__).resolve().parent.parent
SLOW = bool(os.environ.get("DPTOOLKIT_SLOW"))

compiled.set_up(ROOT, os.environ.get("PYTEST_XDIST_WORKER", "alone"))

# Compilation and the first import take seconds: no deadline, no complaint about slow generation.
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", derandomize=True, max_examples=3, **_COMMON)
settings.register_profile("ci", derandomize=True, max_examples=12, **_COMMON)
settings.register_profile("nightly", derandomize=False, max_examples=300, **_COMMON)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
settings.load_profile(PROFILE)
# Hypothesis also tries constants of the modules that are loaded by then, and these are not the same in every worker.
# There is no setting for it; where Hypothesis has other names, draws depend on the order of the tests again.
with contextlib.suppress(ImportError, AttributeError):
    from hypothesis.internal.conjecture import providers

    if PROFILE != "nightly":
        providers._get_local_constants = providers.Constants

# Folders and files whose subject is what users are shown, warnings included. Everywhere else plans are tiny on purpose,
# and that their noise is too large for data of that size is not news.
SHOWN = ("demo", "estimators", "pages", "test_examples.py", "test_newcomer.py")
TINY_PLANS = "ignore::dptoolkit.solvers.HopelessPlanWarning"
# The shell prints our warnings in words of its own, which an error would prevent; a warning that it does not catch is
# still seen, in the summary.
SHELL, PRINTED = "cli", "default::UserWarning"


def _expected(item: pytest.Item) -> str | None:
    """The filter of the item's folder, if there is one."""
    place = Path(item.path).relative_to(ROOT / "tests").parts[0]
    return PRINTED if place == SHELL else None if place in SHOWN else TINY_PLANS


def _left_out(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that ``make check-full`` runs and ``make test`` does not."""
    seen: Counter[str] = Counter()
    for item in items:
        kept = item.get_closest_marker("every")
        if kept is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % kept.args[0]:
                yield item
            seen[test] += 1
        if item.get_closest_marker("slow"):
            yield item


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (words := _expected(item)) is not None:
            # In front of the test's own filters, which have the last word.
            item.add_marker(pytest.mark.filterwarnings(words), append=False)
    if not SLOW:
        for item in list(_left_out(items)):
            item.add_marker(pytest.mark.skip(reason="slow: make check-full runs it"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, Warning):
        report.sections.append(("a warning that no test expects is an error", _repair(type(call.excinfo.value))))
    return report


def _repair(kind: type) -> str:
    """What to do about a warning that failed a test."""
    name, full = kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}"
    return (
        f"If {name} is right, correct the code that it is about.\n"
        f"If the test is about the warning: with pytest.warns({name}).\n"
        f"If the test provokes it on purpose, on that test or module: @pytest.mark.filterwarnings('ignore::{full}').\n"
        "CONTRIBUTING.md has more, in its section Warnings."
    )


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


# --- DPTOOLKIT_TEST_TIMES=times.jsonl: the processor time of every test ---------------------------------------------

_TIMES = os.environ.get("DPTOOLKIT_TEST_TIMES")


def _processor_time() -> float:
    """Of this process and of those that it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


class _Times:
    """Writes one line of JSON per test: its name, its processor time, and how much of that was compilation."""

    def __init__(self, path: str) -> None:
        from numba.core import event

        self.path, self.compiling = path, 0.0
        times = self

        class Compilation(event.TimingListener):
            def on_start(self, found: event.Event) -> None:
                self._ts = _processor_time() if self._depth == 0 else self._ts
                self._depth += 1

            def on_end(self, found: event.Event) -> None:
                self._depth -= 1
                times.compiling += _processor_time() - self._ts if self._depth == 0 else 0.0

        event.register("numba:compile", Compilation())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began, compiled_before = _processor_time(), self.compiling
        result = yield
        line = [item.nodeid, round(_processor_time() - began, 4), round(self.compiling - compiled_before, 4)]
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return result


def pytest_configure(config: pytest.Config) -> None:
    if _TIMES:
        config.pluginmanager.register(_Times(_TIMES))
