"""opacus.Accountant: with Opacus where it is installed, else with a stand-in of the same interface."""

from __future__ import annotations

import abc
import importlib.util
import math
import sys
import types

import pytest

from dptoolkit.accounting import Gaussian, Repeated, SampledGroup, Subsampled, account
from dptoolkit.errors import InvalidValue, MissingDependency

INSTALLED = importlib.util.find_spec("opacus") is not None and importlib.util.find_spec("torch") is not None


class StandIn(abc.ABC):
    """What this needs of Opacus' IAccountant."""

    @abc.abstractmethod
    def __init__(self) -> None:
        self.history: list[tuple] = []

    def state_dict(self) -> dict:
        return {"history": list(self.history), "mechanism": self.mechanism()}

    def load_state_dict(self, state: dict) -> None:
        self.history = state["history"]


@pytest.fixture
def accountant_class(monkeypatch):
    if not INSTALLED:
        package, module, names = types.ModuleType("opacus"), types.ModuleType("opacus.accountants"), {}
        module.IAccountant = StandIn
        module.register_accountant = lambda name, cls, force=False: names.update({name: cls})
        package.accountants = module
        monkeypatch.setitem(sys.modules, "opacus", package)
        monkeypatch.setitem(sys.modules, "opacus.accountants", module)
        monkeypatch.delitem(sys.modules, "dptoolkit.accounting._opacus_accountant", raising=False)
    from dptoolkit.accounting.opacus import Accountant

    yield Accountant
    if not INSTALLED:
        sys.modules.pop("dptoolkit.accounting._opacus_accountant", None)


def test_steps_are_merged_and_counted(accountant_class):
    accountant = accountant_class()
    assert accountant.get_epsilon(1e-5) == 0 and len(accountant) == 0
    for noise in (1.0, 1.0, 1.0, 2.0, 1.0):
        accountant.step(noise_multiplier=noise, sample_rate=0.1)
    assert accountant.history == [(1.0, 0.1, 3), (2.0, 0.1, 1), (1.0, 0.1, 1)]
    assert len(accountant) == 5 and accountant.mechanism() == "dptoolkit"
    accountant.history = [(1.0, 0.01, 1000)]
    expected = account(Repeated(Subsampled(Gaussian(1.0), "poisson", 0.01), 1000)).epsilon(1e-5)
    assert accountant.get_epsilon(delta=1e-5, eps_error=0.01) == expected
    assert str(accountant.guarantee.adjacency) == "zero-out"


def test_a_state_is_saved_and_read(accountant_class):
    one, other = accountant_class(), accountant_class()
    one.step(noise_multiplier=1.5, sample_rate=0.2)
    one.get_optimizer_hook_fn(0.2)(types.SimpleNamespace(noise_multiplier=1.5, accumulated_iterations=3))
    other.load_state_dict(one.state_dict())
    assert other.history == [(1.5, 0.2, 1), (1.5, 0.2, 1, 3)] and other.get_epsilon(1e-5) == one.get_epsilon(1e-5)


def test_accumulated_batches_count_a_record_as_often_as_it_is_sampled(accountant_class):
    """Four batches of a quarter: Opacus 1.6 says rate 1, as if each record were in one of them, and epsilon 6.58."""
    accountant = accountant_class()
    hook = accountant.get_optimizer_hook_fn(0.25)
    for _ in range(2):
        hook(types.SimpleNamespace(noise_multiplier=1.0, accumulated_iterations=4))
    assert accountant.history == [(1.0, 0.25, 2, 4)] and len(accountant) == 2
    assert accountant.guarantee.event.events[0] == Repeated(SampledGroup(1.0, 0.25, 4), 2)
    as_if_disjoint = account(Repeated(Gaussian(1.0), 2)).epsilon(1e-5)
    assert accountant.get_epsilon(1e-5) > 2 * as_if_disjoint
    # Known neighbours reach it, so the smaller number is false.
    assert accountant.guarantee.bounds(1e-5).lower > 2 * as_if_disjoint


@pytest.mark.parametrize(("noise", "rate"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 1.1), (1.0, -0.1), (1.0, math.nan)])
def test_bad_steps_are_refused_and_not_counted(accountant_class, noise, rate):
    accountant = accountant_class()
    with pytest.raises(InvalidValue, match="noise_multiplier|sample_rate"):
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    assert accountant.history == []


def test_ends(accountant_class):
    accountant = accountant_class()
    accountant.step(noise_multiplier=1.0, sample_rate=0.0)
    assert accountant.get_epsilon(0.0) == 0
    accountant.step(noise_multiplier=0.0, sample_rate=1.0)
    assert accountant.get_epsilon(1e-5) == math.inf


def test_without_opacus_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(MissingDependency, match=r"pip install 'dptoolkit\[opacus\]'"):
        from dptoolkit.accounting.opacus import Accountant  # noqa: F401
    from dptoolkit.accounting import opacus

    with pytest.raises(AttributeError, match="Acountant"):
        opacus.Acountant  # noqa: B018


@pytest.mark.skipif(not INSTALLED, reason="opacus is not installed: pip install 'dptoolkit[opacus]'")
def test_opacus_own_accountants_are_close():
    """Their PRV accountant's upper bound is looser by its error of 0.01, their RDP accountant's by more."""
    from opacus.accountants import PRVAccountant, RDPAccountant, create_accountant

    ours = create_accountant("dptoolkit")
    ours.history = [(1.0, 0.01, 1000), (1.5, 0.02, 100)]
    for theirs, looser in ((PRVAccountant(), 0.03), (RDPAccountant(), 0.5)):
        theirs.history = ours.history
        assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5) <= ours.get_epsilon(1e-5) + looser
