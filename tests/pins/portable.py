"""Pins that are the same on every platform: what seeds, ledgers and model files of users depend on."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

from dptoolkit import audit, losses, models, solvers
from dptoolkit.accounting import Ledger
from dptoolkit.errors import DpToolkitError
from tests.pins import cases

FILE = Path(__file__).with_name("portable.json")
# Solvers whose presets have numbers that come from sums, products and square roots alone, which every processor rounds
# in the same way; the others take logarithms.
_EXACT = ("dp_ight", "dp_dual_averaging", "dp_sgd_ht", "dp_scsg_ht", "dp_svrg_ht", "dp_frank_wolfe", "peeling_iht")
# Logarithms and calibrated noises agree to so many digits whatever the platform.
_DIGITS = 6


def settings() -> dict[str, Any]:
    """Names and defaults of every solver's settings, which its fingerprint hashes."""
    found = {}
    for name in solvers.PRIVATE:
        fields = dataclasses.fields(solvers.settings_class(name))
        found[name] = {
            f.name: "required" if f.default is dataclasses.MISSING else str(f.default)
            for f in sorted(fields, key=lambda f: f.name)
        }
    return found


def fingerprints() -> dict[str, Any]:
    """Fingerprints of presets at noise that is an exact number."""
    plans = {name: audit.presets.plan(name, 1.0, 1e-6) for name in _EXACT}
    return {name: plan.with_noise(*([0.25] * len(plan.releases))).fingerprint for name, plan in plans.items()}


def events() -> dict[str, Any]:
    """Events of every preset, tight and published."""
    found = {}
    for name in solvers.PRIVATE:
        for published in (False, True):
            try:
                plan = audit.presets.plan(name, 1.0, 1e-6, published=published)
            except DpToolkitError:
                continue
            found[f"{name}, {'published' if published else 'tight'}"] = _rounded(plan.event.to_dict())
    return found


def layouts() -> dict[str, Any]:
    """The names in the JSON of plans, models and ledgers, with the kind of each value."""
    X, y = cases.data("dense", "small")
    calls: dict[str, dict[str, Any]] = {
        "two": {"solver": "dp_ight", "classes": [0, 1], "sparsity": 3, "steps": 2, "step_size": 1.0},
        "several": {"solver": "dp_pipeline", "classes": [0, 1, 2]},
        "each": {"solver": "dp_ight", "classes": [0, 1, 2], "sparsity": 3, "steps": 2, "step_size": 1.0},
    }
    ledger = Ledger(20.0, 1e-4, allow_seeds=True)
    found = {}
    for name, own in calls.items():
        arguments = {"task": "classification", "row_norm": 1.0, "epsilon": 2.0, "delta": 1e-5, "rng": 1, **own}
        model = models.fit(X, y, ledger=ledger, **arguments)
        with tempfile.TemporaryDirectory() as folder:
            models.save(model, Path(folder) / "model.json")
            found[f"model, {name}"] = _kinds(json.loads((Path(folder) / "model.json").read_text(encoding="utf-8")))
    found["ledger"] = _kinds(json.loads(ledger.to_json()))
    found["plan"] = _kinds(json.loads(audit.presets.plan("dp_scsg_ht", 1.0, 1e-6).to_json()))
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _kinds(value: Any) -> Any:
    """A JSON value with its names, the kinds of its numbers and texts, and the kinds of a list's entries."""
    if isinstance(value, dict):
        return {key: _kinds(part) for key, part in sorted(value.items())}
    if isinstance(value, list):
        kinds = [_kinds(part) for part in value]
        return [kind for k, kind in enumerate(kinds) if kind not in kinds[:k]]
    return "number" if type(value) in (int, float) else type(value).__name__


def portable() -> dict[str, Any]:
    """All of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "losses": {name: loss.id for name, loss in losses.LOSSES.items()}, "settings": settings(),
            "fingerprints": fingerprints(), "events": events(), "layouts": layouts(),
        }  # fmt: skip


def written() -> str:
    """As the file holds them."""
    return json.dumps(portable(), indent=1, sort_keys=True) + "\n"
