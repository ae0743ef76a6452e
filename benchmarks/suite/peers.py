"""Other packages on the same input, where they are installed and accept it; those that are missing are named."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from benchmarks.lib.problems import Problem
from benchmarks.lib.race import turns
from benchmarks.suite import shapes
from benchmarks.suite.cases import arguments
from dptoolkit import solvers
from dptoolkit.accounting import Gaussian, Repeated, Subsampled, calibrate

Row = dict[str, Any]
# Distribution and the module that must import.
PEERS = {
    "scikit-learn": "sklearn.linear_model", "skglm": "skglm", "diffprivlib": "diffprivlib.models",
    "dp-accounting": "dp_accounting", "prv-accountant": "prv_accountant",
}  # fmt: skip
DELTA = 1e-5
# Rate and number of Poisson-sampled steps that are calibrated to (1, 1e-5).
GRID = ((0.01, 1000), (0.001, 10_000), (0.05, 500))
_FRESH = itertools.count(1)


def installed() -> dict[str, str]:
    """The version of every peer, or why it cannot be used."""
    return {name: _state(name, module) for name, module in PEERS.items()}


def _state(name: str, module: str) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
    try:
        importlib.import_module(module)
    except Exception as problem:
        return f"{version}, which does not import here: {problem.__class__.__name__}"
    return version


def usable(name: str) -> bool:
    """Whether it is there and imports."""
    return installed()[name][:1].isdigit() and "not import" not in installed()[name]


# --- models -------------------------------------------------------------------------------------------


def models(home: str | None, quick: bool) -> Iterator[Row]:
    """Seconds and test error of logistic models: ours, private, beside theirs, most of which are not."""
    for shape in ("rcv1_sub", "small") if quick else ("rcv1_sub", "a9a", "small"):
        problem = shapes.load(shape, home, quick)
        rivals = dict(_ours(problem)) | dict(_theirs(problem))
        coefs: dict[str, Any] = {}

        def keeping(name: str, fit: Callable[[], Any], coefs: dict[str, Any] = coefs) -> Callable[[], None]:
            return lambda: coefs.__setitem__(name, fit())

        times = turns({name: keeping(name, fit) for name, fit in rivals.items()}, 1 if quick else 3)
        for name, one in times.items():
            coef = np.ravel(coefs[name])
            yield {
                "shape": problem.name, "model": name, "cpu": one.cpu, "majority": problem.plain,
                "error": problem.error(np.asarray(problem.X_test @ coef)), "features": int(np.count_nonzero(coef)),
            }  # fmt: skip


def _ours(problem: Problem) -> Iterator[tuple[str, Callable[[], Any]]]:
    X, y = problem.X, problem.y

    def coefficients(name: str, epsilon: float) -> Any:
        return getattr(solvers, name)(X, y, rng=0, **arguments(name, X.shape, epsilon)).coef

    for name in ("dp_frank_wolfe", "dp_ight", "objective_perturbation"):
        for epsilon in (1.0, 100.0):
            yield f"{name}, epsilon {epsilon:g}", partial(coefficients, name, epsilon)


def _theirs(problem: Problem) -> Iterator[tuple[str, Callable[[], Any]]]:
    X, y, n = problem.X, problem.y, problem.X.shape[0]
    if usable("scikit-learn"):
        from sklearn.linear_model import LogisticRegression

        ridge: dict[str, Any] = {"C": 1 / (n * 1e-3), "fit_intercept": False, "max_iter": 1000}
        yield "scikit-learn lbfgs, l2 as ours, not private", lambda: LogisticRegression(**ridge).fit(X, y).coef_
        lasso = LogisticRegression(solver="liblinear", C=1.0, fit_intercept=False, **_l1())
        yield "scikit-learn liblinear, L1, not private", lambda: lasso.fit(X, y).coef_
    if usable("skglm"):
        from skglm import SparseLogisticRegression

        sparse = SparseLogisticRegression(alpha=1.0 / n, fit_intercept=False)
        yield "skglm, L1, not private", lambda: sparse.fit(X, 2 * y - 1).coef_
    if usable("diffprivlib") and isinstance(X, np.ndarray):
        from diffprivlib.models import LogisticRegression as Private

        model = Private(epsilon=1.0, data_norm=1.0, C=1 / (n * 1e-3), fit_intercept=False)
        yield "diffprivlib, epsilon 1", lambda: model.fit(X, y).coef_


def _l1() -> dict[str, Any]:
    """How this version of scikit-learn is told to use an L1 penalty."""
    from sklearn import __version__

    major, minor = (int(part) for part in __version__.split(".")[:2])
    return {"l1_ratio": 1.0} if (major, minor) >= (1, 8) else {"penalty": "l1"}


# --- accounting ---------------------------------------------------------------------------------------


def accounting(quick: bool) -> Iterator[Row]:
    """Noise multipliers for (1, 1e-5): ours, dp_accounting's PLD at the same tolerance, prv_accountant's search.

    Ours is the best of several; each of theirs, which take seconds, is asked once, and the slowest for one setting.
    """
    rivals = {"dptoolkit": _our_noise, "dp-accounting": _google_noise, "prv-accountant": _prv_noise}
    for k, (rate, steps) in enumerate(GRID[: 1 if quick else None]):
        for name, search in rivals.items():
            if name == "dptoolkit" or (usable(name) and not (name == "prv-accountant" and (quick or k > 0))):
                seconds = []
                for _ in range(5 if name == "dptoolkit" else 1):
                    began = time.process_time()
                    noise = search(rate, steps)
                    seconds.append(time.process_time() - began)
                yield {"rate": rate, "steps": steps, "package": name, "noise": noise, "cpu": seconds}


def _our_noise(rate: float, steps: int) -> float:
    """A delta that was not asked for before, so that nothing is remembered."""
    delta = DELTA * (1 - 1e-12 * next(_FRESH))
    return calibrate(lambda noise: Repeated(Subsampled(Gaussian(noise), "poisson", rate), steps), 1.0, delta)


def _google_noise(rate: float, steps: int) -> float:
    import dp_accounting as peer

    def event(noise: float) -> Any:
        return peer.SelfComposedDpEvent(peer.PoissonSampledDpEvent(rate, peer.GaussianDpEvent(noise)), steps)

    return float(
        peer.calibrate_dp_mechanism(
            lambda: peer.pld.PLDAccountant(value_discretization_interval=1e-4), event, 1.0, DELTA, tol=1e-5
        )
    )


def _prv_noise(rate: float, steps: int) -> float:
    from prv_accountant.dpsgd import find_noise_multiplier

    return float(
        find_noise_multiplier(
            sampling_probability=rate, num_steps=steps, target_epsilon=1.0, target_delta=DELTA, eps_error=0.01
        )
    )
