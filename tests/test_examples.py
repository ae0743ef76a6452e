"""The examples run: audits of other people's code and their programs; those that need a package say which."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_loop_of_dp_sgd():
    """The right loop passes with a false-alarm probability of 1e-6; both faults are found."""
    found = example("audit_dpsgd").reports(1_500)
    assert [report.violated for report in found.values()] == [False, True, True]
    assert all("an accountant, for its rate" in str(report) for report in found.values())


def test_opendp():
    pytest.importorskip("opendp", reason="opendp is not installed: pip install 'dptoolkit[peers]'")
    found = example("audit_opendp").reports(2_000)
    assert not any(report.violated for report in found.values())
    assert all("OpenDP's privacy map" in str(report) for report in found.values())


def test_diffprivlib():
    pytest.importorskip(
        "diffprivlib.mechanisms", reason="diffprivlib cannot be imported: see dptoolkit[peers]", exc_type=ImportError
    )
    module = example("audit_diffprivlib")
    from dptoolkit import audit

    report = audit.audit(module.laplace, (1.0, 0.0), audit.PureClaim(1.0), trials=2_000, alpha=1e-6)
    assert not report.violated


@pytest.mark.parametrize("name", ["opendp", "diffprivlib"])
def test_absent_peers_are_named(name, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    assert example(f"audit_{name}").main(*([[]] if name == "opendp" else [])) == 2
    assert f"{name} cannot be imported" in capsys.readouterr().err


def test_a_program_for_dp_accounting(monkeypatch):
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    module = example("dp_accounting_training")
    monkeypatch.setattr(module, "STEPS", 20)
    ours, theirs = module.Accountant(), module.PLDAccountant(value_discretization_interval=1e-3)
    assert module.spent(2.0, ours) == pytest.approx(module.spent(2.0, theirs), rel=1e-3)
    assert "Laplace" in str(ours.guarantee)


@pytest.mark.slow
def test_a_program_for_dp_accounting_calibrates():
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    module = example("dp_accounting_training")
    assert module.noise() == pytest.approx(module.noise(module.PLDAccountant), rel=2e-3)


@pytest.mark.filterwarnings("ignore")
def test_a_training_with_opacus():
    pytest.importorskip("torch", reason="torch is not installed: pip install 'dptoolkit[opacus]'")
    pytest.importorskip("opacus", reason="opacus is not installed: pip install 'dptoolkit[opacus]'")
    engine, accuracy = example("opacus_training").train(2.0, 1e-5, 1)
    assert len(engine.accountant) == 10 and engine.accountant.mechanism() == "dptoolkit"
    assert 1.9 < engine.get_epsilon(1e-5) <= 2.0 and accuracy > 0.6


def test_absent_opacus_is_named(monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    assert example("opacus_training").main([]) == 2
    assert "opacus cannot be imported" in capsys.readouterr().err
