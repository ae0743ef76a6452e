"""The pins: each section is a function that returns texts by name. Everything goes through the public surface.

Two exceptions: what an audit runs is found by the name of its class, wherever its module is, and work is counted with
``benchmarks.suite.counts``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from dptoolkit import accounting, audit, datasets, losses, mechanisms, models, plots, solvers, tuning
from dptoolkit.accounting import Adjacency, Ledger, account, calibrate, composition, gaussian, rdp, rounds, zcdp
from dptoolkit.errors import DpToolkitError
from tests.pins import cases

Pins = dict[str, str]
ROOT = Path(__file__).resolve().parents[2]
_ADVERSARIES = ("final", "support", "iterates", "releases", "step")
# What differs from run to run: times, places in memory, and the random name of a ledger's file.
_CHANGING = re.compile(r"0x[0-9a-f]{6,}|\(?[\d,.]+ trials a second\)?|\b\d+\.\d+ s(econds)?\b|seconds +[\d.]+")


def canonical(value: Any) -> Any:
    """The value as JSON, exact to the last bit; names of classes are left out, since they may be renamed."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OUS":
            return canonical(value.tolist())
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:24]}"
    if sparse.issparse(value):
        form = value.tocsr()
        return [list(form.shape), *(canonical(part) for part in (form.data, form.indices, form.indptr))]
    if isinstance(value, (bool, np.bool_, str, type(None), int, np.integer)):
        return value if isinstance(value, (str, type(None))) else int(value)
    if isinstance(value, (float, np.floating)):
        return float(value).hex()
    if isinstance(value, Mapping):
        return {str(key): canonical(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: canonical(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [canonical(part) for part in value]
    return _CHANGING.sub("?", repr(value))


def text(value: Any) -> str:
    return json.dumps(canonical(value), sort_keys=True)


def digest(value: Any) -> str:
    return hashlib.sha256(text(value).encode()).hexdigest()[:24]


def attempt(make: Callable[[], Any], show: Callable[[Any], str]) -> str:
    """What ``make`` gives, or the type of its error: that something is refused is pinned too."""
    try:
        return show(make())
    except DpToolkitError as problem:
        return f"refused: {type(problem).__name__}"


def find(name: str, package: str) -> Any:
    """The class of this name, in whichever module of the package it is defined."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        spec = importlib.util.find_spec(module.name)
        if spec is not None and spec.origin and re.search(rf"^class {name}\b", Path(spec.origin).read_text(), re.M):
            return getattr(importlib.import_module(module.name), name)
    raise LookupError(f"{package} has no class {name}")


# --- plans ----------------------------------------------------------------------------------------------------


def _plan_text(plan: Any) -> str:
    return text({
        "fingerprint": plan.fingerprint, "event": plan.event.to_dict(), "json": digest(plan.to_json()),
        "print": digest(str(plan)), "repr": digest(repr(plan)), "epsilon": plan.guarantee.epsilon(1e-6),
    })  # fmt: skip


def plans() -> Pins:
    """Fingerprint, event, JSON and print of every preset and of every solver's plan, tight and published."""
    pins: Pins = {}
    for name in solvers.PRIVATE:
        for epsilon, delta in ((1.0, 1e-6), (6.0, 1e-5)):
            for published in (False, True):
                key = f"preset {name} {epsilon:g} {'published' if published else 'tight'}"
                pins[key] = attempt(
                    lambda n=name, p=published, e=epsilon, d=delta: audit.presets.plan(n, e, d, published=p), _plan_text
                )
        for note, more in {"": {}, **cases.VARIANTS.get(name, {})}.items():
            for kind in ("replace-one", "zero-out"):
                for calibration in ("tight", "published"):
                    arguments = cases.BUDGET | cases.SOLVERS[name] | more
                    arguments = {"adjacency": kind, "calibration": calibration} | arguments
                    make = lambda n=name, a=arguments: solvers.plan(n, n=120, d=12, **a)  # noqa: E731
                    pins[f"plan {name}, {note}, {kind}, {calibration}"] = attempt(make, _plan_text)
            pins |= _sized(name, note, more)
    return pins


def _sized(name: str, note: str, more: dict[str, Any]) -> Pins:
    """Plans for more records, so that the rules for steps, sizes and penalties leave their smallest values."""
    pins: Pins = {}
    for n, d in ((5000, 300), (300_000, 40)):
        for epsilon in (0.5, 8.0):
            arguments = cases.BUDGET | cases.SOLVERS[name] | more | {"epsilon": epsilon}
            make = lambda a=arguments, n=n, d=d: solvers.plan(name, n=n, d=d, **a).to_dict()  # noqa: E731
            pins[f"plan {name}, {note}, {n} x {d}, {epsilon:g}"] = attempt(make, text)
    return pins


# --- weights --------------------------------------------------------------------------------------------------


class _Draws(np.random.PCG64):
    """A bit generator of our own: a fit draws from it directly, so that its place afterwards tells what was drawn."""


def _result_text(result: Any) -> str:
    return f"{digest([result.coef, result.intercept])} {digest(result.history)} {digest(str(result.guarantee))}"


def _fits(name: str, X: Any, y: Any, arguments: dict[str, Any]) -> dict[str, str]:
    solver, labels = getattr(solvers, name), cases.targets(arguments, y, X)

    def drawn() -> str:
        generator = np.random.Generator(_Draws(5))
        result = solver(X, labels, rng=generator, **arguments)
        return f"{digest([result.coef, result.intercept])} {digest(generator.bit_generator.state['state'])}"

    def many() -> Any:
        own = {key: value for key, value in arguments.items() if key not in ("trace", "diagnostics")}
        first = solvers.plan(name, n=X.shape[0], d=X.shape[1], **own)
        second = solvers.plan(name, n=X.shape[0], d=X.shape[1], **own | {"epsilon": 3.0})
        return solvers.fit_many([first, second], X, labels, seeds=[11, 12])

    return {
        "fit": attempt(lambda: solver(X, labels, rng=7, **arguments), _result_text),
        "fit_many": attempt(many, lambda plans: " ".join(_result_text(one) for results in plans for one in results)),
        "draws": attempt(drawn, str),
    }


def weights() -> Pins:
    """Weights, history, guarantee and draws of every private solver: one fit, many, and where its stream ends."""
    pins: Pins = {}
    for size in cases.SIZES:
        for layout in cases.LAYOUTS:
            X, y = cases.data(layout, size)
            for name, own in cases.SOLVERS.items():
                for kind, value in _fits(name, X, y, cases.BUDGET | own).items():
                    pins[f"{name}, {layout}, {size}, {kind}"] = value
                if size == "small":
                    pins |= _variants(name, layout, X, y)
    return pins


def _variants(name: str, layout: str, X: Any, y: Any) -> Pins:
    pins: Pins = {}
    for note, more in {"trace": {"trace": True, "diagnostics": True}, **cases.VARIANTS.get(name, {})}.items():
        arguments = cases.BUDGET | cases.SOLVERS[name] | more
        for kind, value in _fits(name, X, y, arguments).items():
            pins[f"{name}, {layout}, {note}, {kind}"] = value
    return pins


def plain() -> Pins:
    """Weights of the solvers without privacy."""
    pins: Pins = {}
    steps = {"loss": "logistic", "sparsity": 4, "step_size": 0.5}
    calls: dict[str, dict[str, Any]] = {
        "ight": {**steps, "steps": 20},
        "sgd_ht": {**steps, "steps": 20, "batch_size": 16, "rng": 3},
        "svrg_ht": {**steps, "epochs": 3, "batch_size": 16, "rng": 3},
        "scsg_ht": {**steps, "epochs": 3, "batch_size": 16, "snapshot_size": 64, "rng": 3},
        "frank_wolfe": {"loss": "logistic", "l1_radius": 3.0, "steps": 50},
        "admm": {"loss": "logistic", "weight": 0.01, "rho": 0.1, "steps": 10},
    }
    for layout in cases.LAYOUTS:
        X, y = cases.data(layout, "small")
        for name, arguments in calls.items():
            make = lambda n=name, a=arguments, X=X, y=y: getattr(solvers, n)(X, y, **a)  # noqa: E731
            pins[f"{name}, {layout}"] = attempt(make, lambda r: digest([r.coef, r.intercept, r.history]))
    return pins


# --- audits ---------------------------------------------------------------------------------------------------


def trials() -> Pins:
    """What an audit runs: outputs of a few trials for every adversary, on the worst pairs and on large data."""
    target, streams = find("PlanTarget", "dptoolkit.audit"), find("Streams", "dptoolkit.audit")
    pins: Pins = {}

    def outputs(plan: Any, pair: Any, adversary: str, count: int) -> Any:
        bits = (np.arange(count) % 3 == 0).astype(np.int8)
        return target(plan, pair, adversary).run(bits, 5, streams(1, "pins"))

    for name in solvers.PRIVATE:
        for published in (False, True):
            try:
                plan = audit.presets.plan(name, 1.0, 1e-6, published=published)
            except DpToolkitError:
                continue
            pair = getattr(audit.pairs, name)(plan)
            kind = "published" if published else "tight"
            pins[f"pair of {name}, {kind}"] = digest([_records(pair.first), _records(pair.second)])
            for adversary in _ADVERSARIES:
                make = lambda p=plan, q=pair, a=adversary: outputs(p, q, a, 7)  # noqa: E731
                pins[f"{name}, {kind}, {adversary}"] = attempt(make, digest)
    for size in cases.SIZES:
        for layout in cases.LAYOUTS:
            X, y = cases.data(layout, size)
            others = 1 - y
            for name, own in cases.SOLVERS.items():
                arguments = cases.BUDGET | own
                plan = solvers.plan(name, n=X.shape[0], d=X.shape[1], **arguments)
                one, two = (cases.targets(arguments, labels, X) for labels in (y, np.append(others[:1], y[1:])))
                make = lambda p=plan, X=X, a=one, b=two: outputs(p, audit.Pair((X, a), (X, b)), "final", 3)  # noqa: E731
                pins[f"{name}, {layout}, {size}"] = attempt(make, digest)
    return pins


def _records(dataset: Any) -> Any:
    """A dataset of a pair: (X, y), or distinct records and their counts."""
    return [getattr(dataset, name) for name in ("X", "y", "counts")] if hasattr(dataset, "counts") else list(dataset)


def audits() -> Pins:
    """Reports of short audits."""
    pins: Pins = {}
    for name in solvers.PRIVATE:
        plan = audit.presets.plan(name, 2.0, 1e-5)
        for mode in ("fixed", "sequential"):
            report = audit.audit(plan, audit.presets.pair(plan), trials=400, rng=1, n_jobs=1, mode=mode)
            pins[f"{name}, {mode}"] = text({k: value for k, value in report.to_dict().items() if k != "seconds"})
    return pins


# --- accounting -----------------------------------------------------------------------------------------------


def accounts() -> Pins:
    """Epsilons, deltas and calibrated noises of a grid of events, by every method, and of the public formulas."""
    pins: Pins = {}
    hexed: Callable[[Any], str] = lambda value: float(value).hex()  # noqa: E731
    for name, event in cases.events().items():
        pins[f"{name}, dict"] = text(event.to_dict())
        for method in (None, *accounting.METHODS):
            for delta in cases.DELTAS:
                make = lambda e=event, m=method, d=delta: account(e, m).epsilon(d)  # noqa: E731
                pins[f"epsilon of {name} at {delta:g} by {method}"] = attempt(make, hexed)
        for epsilon in cases.EPSILONS:
            make = lambda e=event, x=epsilon: account(e).delta(x)  # noqa: E731
            pins[f"delta of {name} at {epsilon:g}"] = attempt(make, hexed)
        pins[f"rho of {name}"] = attempt(lambda e=event: account(e).rho, hexed)
        pins[f"print of {name}"] = attempt(lambda e=event: str(account(e)), digest)
        pins[f"group of {name}"] = attempt(lambda e=event: account(e).group(3).epsilon(1e-5), hexed)
        pins[f"bounds of {name}"] = attempt(lambda e=event: account(e).bounds(1e-5), text)
    for name, (make_event, epsilon, delta) in cases.calibrations().items():
        pins[f"noise of {name}"] = attempt(lambda m=make_event, e=epsilon, d=delta: calibrate(m, e, d), hexed)
    return pins | _formulas()


def _formulas() -> Pins:
    orders = np.array([1.5, 2.0, 8.0, 64.0])
    return {
        "zcdp.to_epsilon": text([zcdp.to_epsilon(rho, d) for rho in (1e-4, 0.02, 1.0, 30.0) for d in cases.DELTAS]),
        "zcdp.from_epsilon": text([zcdp.from_epsilon(e, d) for e in cases.EPSILONS for d in cases.DELTAS]),
        "gaussian.delta": text([gaussian.delta(mu, e) for mu in (0.01, 0.5, 3.0) for e in cases.EPSILONS]),
        "gaussian.mu": text([gaussian.mu(e, d) for e in cases.EPSILONS for d in cases.DELTAS]),
        "composition.advanced": text([composition.advanced(0.05, count, 1e-6) for count in (1, 7, 90)]),
        "composition.optimal": text([composition.optimal(0.05, count, 1e-6) for count in (1, 7, 90)]),
        "rdp.gaussian": text(rdp.gaussian(1.7, orders)),
        "rdp.subsampled_gaussian": text(
            [rdp.subsampled_gaussian(1.7, 0.02, orders, scheme) for scheme in ("poisson", "without-replacement")]
        ),
        "rounds": text(
            [rounds.geometric_tail(0.9, 12), rounds.rdp(rdp.gaussian(5.0, orders), orders, rounds.Geometric(0.9))]
        ),
    }


# --- models and files -----------------------------------------------------------------------------------------


def _model_text(model: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        models.save(model, path)
        return path.read_text(encoding="utf-8") + digest(models.load(path).coef)


def model_files() -> Pins:
    """JSON of models of every solver and task, their predictions, and ledgers."""
    X, y = cases.data("csr", "small")
    bounds = {"row_norm": 1.0}
    several = y + (np.asarray(X[:, [1]].todense()).ravel() > 0.5)
    pins: Pins = {}
    for name in sorted({*solvers.PRIVATE} - {"knowledge_transfer", "sparsifier", "dp_multinomial_frank_wolfe"}):
        more = {key: cases.SOLVERS[name][key] for key in ("sparsity", "batch_size", "epochs", "snapshot_size", "blocks",
                "radius", "steps", "step_size") if key in cases.SOLVERS[name]}  # fmt: skip
        common = {"solver": name, "epsilon": 2.0, "delta": 1e-5, "rng": 4, **more}
        calls = {
            "two": (y, {"task": "classification", "classes": [0, 1], **bounds}),
            "three": (several, {"task": "classification", "classes": [0, 1, 2], **bounds}),
            "numbers": (1.5 * y - 0.7, {"task": "regression", "label_bound": 1.0, **bounds}),
        }
        for kind, (labels, own) in calls.items():
            make = lambda t=labels, a=common | own: models.fit(X, t, **a)  # noqa: E731
            pins[f"model {name}, {kind}"] = attempt(make, _model_text)
            pins[f"predictions {name}, {kind}"] = attempt(make, lambda model: digest(model.predict(X)))
    return pins | _ledgers(X, y)


def _ledgers(X: Any, y: Any) -> Pins:
    ledger = Ledger(20.0, 1e-4, allow_seeds=True)
    for name in ("dp_ight", "dp_frank_wolfe", "dp_sgd_ht", "objective_perturbation"):
        getattr(solvers, name)(X, y, rng=1, ledger=ledger, **cases.BUDGET | cases.SOLVERS[name])
    models.fit(X, y, task="classification", classes=[0, 1], row_norm=1.0, epsilon=1.0, rng=2, ledger=ledger)
    ledger.spend(accounting.Laplace(30.0), label="a count")
    again = Ledger.from_json(ledger.to_json())
    return {"ledger": ledger.to_json(), "print of a ledger": str(ledger), "ledger, read": digest(again.to_json())}


def tunings() -> Pins:
    """A private choice among candidates."""
    X, y = cases.data("csr", "small")
    arguments = cases.BUDGET | {"loss": "logistic", "row_norm": 1.0, "steps": 6, "step_size": 1.0}
    found = tuning.tune("dp_ight", [{"sparsity": 2}, {"sparsity": 6}], X, y, rng=3, **arguments)
    plan = found.plan
    return {"model": _result_text(found.model), "choice": text([found.choice, found.score]),
            "guarantee": digest(str(found.guarantee)), "plan": digest([str(plan), plan.event.to_dict()])}  # fmt: skip


def estimators() -> Pins:
    """Weights, predictions, files and parameters of every estimator."""
    from dptoolkit import estimators as house

    X, y = cases.data("csr", "small")
    several, numbers = y + (np.asarray(X[:, [1]].todense()).ravel() > 0.5), 1.5 * y - 0.7
    bounds = {"row_norm": 1.0, "feature_bound": 1.0, "label_bound": 1.0, "random_state": 5, "epsilon": 3.0}
    pins: Pins = {}
    for name in house.__all__:
        kind = getattr(house, name)
        if not name.endswith(("Classifier", "Regressor")):
            continue
        parameters = {key: bounds[key] for key in bounds if key in inspect.signature(kind).parameters}
        labels = {"two": y, "three": several} if name.endswith("Classifier") else {"numbers": numbers}
        for note, target in labels.items():
            model = kind(**parameters).fit(X, target)
            found = [model.coef_, model.intercept_, model.predict(X), str(model.guarantee_)]
            more = [model.predict_proba(X)] if hasattr(model, "predict_proba") else []
            pins[f"{name}, {note}"] = digest(found + more)
        pins[f"{name}, parameters"] = _signature(kind)
    return pins


# --- the shell and the surface --------------------------------------------------------------------------------


def shell() -> Pins:
    """Help of every command and the output of some lines, with the files that they write."""
    from dptoolkit import cli

    os.environ["COLUMNS"] = "120"

    def run(line: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code: Any = cli.main(line.split())
            except SystemExit as end:
                code = end.code
        return _CHANGING.sub("?", f"{code}\n{out.getvalue()}\n{err.getvalue()}")

    here, pins = Path.cwd(), {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.chdir(folder)
            for name, content in cases.shell_files():
                Path(name).write_text(content)
            ledger = Ledger(5.0, 1e-5)
            ledger.spend(accounting.Gaussian(3.0), label="a mean")
            Path("ledger.json").write_text(ledger.to_json())
            pins["--help"] = run("--help")
            for command in cli.COMMANDS:
                pins[f"{command} --help"] = run(f"{command} --help")
            for name in solvers.PRIVATE:
                pins[f"plan {name} --help"] = run(f"plan {name} --help")
            for line in cases.SHELL:
                pins[line] = re.sub(r'"seconds": [\d.e-]+', "?", run(line))
            for name in cases.WRITTEN:
                pins[name] = Path(name).read_text() if Path(name).is_file() else "absent"
        finally:
            os.chdir(here)
    return pins


def _signature(value: Any) -> str:
    """Names, kinds and defaults; annotations are left out, since they name classes that may be renamed."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "?"
    blank = inspect.Parameter.empty
    shown = (f"{p.kind.name} {p.name}" + ("" if p.default is blank else f"={p.default!r}") for p in parameters)
    return _CHANGING.sub("?", ", ".join(shown))


def surface() -> Pins:
    """Signatures of public functions, and of classes with their public methods and fields."""
    from dptoolkit import estimators as house

    pins: Pins = {}
    for package in (accounting, audit, audit.pairs, datasets, house, mechanisms, models, plots, solvers, tuning):
        for name in sorted(getattr(package, "__all__", [])):
            value = getattr(package, name)
            if inspect.ismodule(value):
                continue
            key = f"{package.__name__}.{name}"
            pins[key] = _signature(value) if callable(value) else text(value if isinstance(value, tuple) else "")
            for member, inner in vars(value).items() if isinstance(value, type) else ():
                if not member.startswith("_"):
                    pins[f"{key}.{member}"] = _signature(getattr(inner, "__func__", inner)) if callable(
                        getattr(inner, "__func__", inner)) else type(inner).__name__  # fmt: skip
    for module in (composition, gaussian, rdp, rounds, zcdp):
        for name, value in sorted(vars(module).items()):
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                pins[f"{module.__name__}.{name}"] = _signature(value)
    pins["losses"] = text({name: loss.id for name, loss in losses.LOSSES.items()})
    pins["adjacency"] = text([str(kind) for kind in Adjacency])
    return pins


# --- work -----------------------------------------------------------------------------------------------------


def work() -> Pins:
    """Entries of X that every solver reads, by kernel, and what a second fit compiles: nothing."""
    from benchmarks.suite import counts

    pins: Pins = {}
    for size in cases.SIZES:
        X, y = cases.data("csr", size)
        for name, own in cases.SOLVERS.items():
            arguments = cases.BUDGET | own
            labels = cases.targets(arguments, y, X)
            getattr(solvers, name)(X, labels, rng=1, **arguments)
            with counts.counted() as found:
                getattr(solvers, name)(X, labels, rng=2, **arguments)
            pins[f"{name}, {size}"] = text(dict(found.entries) | {"compilations": found.compilations})
    return pins


_COMPILED = """
import json, warnings
warnings.simplefilter("ignore")
from numba.core import event
from tests.pins import cases
from dptoolkit import solvers
found, who = {}, [""]
class Listener(event.Listener):
    def on_start(self, announced):
        pass
    def on_end(self, announced):
        function = announced.data["dispatcher"].py_func
        if function.__module__.startswith("dptoolkit."):
            found[who[0]].append(function.__module__ + "." + function.__qualname__ + str(announced.data["args"]))
event.register("numba:compile", Listener())
for size in cases.SIZES:
    for layout in cases.LAYOUTS:
        X, y = cases.data(layout, size)
        for name, own in cases.SOLVERS.items():
            who[0] = f"{name}, {layout}, {size}"
            found[who[0]] = []
            arguments = cases.BUDGET | own
            getattr(solvers, name)(X, cases.targets(arguments, y, X), rng=1, **arguments)
print(json.dumps(found))
"""


def compilations() -> Pins:
    """Which kernels a new process with an empty cache compiles for which types, fit after fit."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", _COMPILED], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return {name: f"{len(found)} {digest(sorted(found))}" for name, found in json.loads(done.stdout).items()}


SECTIONS: dict[str, Callable[[], Pins]] = {
    "surface": surface, "plans": plans, "accounts": accounts, "weights": weights, "plain": plain, "trials": trials,
    "audits": audits, "models": model_files, "tunings": tunings, "estimators": estimators, "shell": shell,
    "work": work, "compilations": compilations,
}  # fmt: skip
