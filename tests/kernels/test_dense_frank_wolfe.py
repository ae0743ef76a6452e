"""The dense Frank-Wolfe kernel: compiled, uncompiled and specified steps are the same, however the noise is cut."""

from __future__ import annotations

import numpy as np
import pytest

from dptoolkit import losses, solvers
from dptoolkit.kernels import frank_wolfe as kernel
from dptoolkit.kernels import reference
from dptoolkit.solvers.engine import vertex_paths

LOSSES = {"logistic": {}, "huber": {}, "squared": {"label_bound": 1.0}, "hinge": {}}


def fit(loss, law="gumbel", steps=15, **more):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 5)), np.arange(9) % 2
    X[3] = 0.0
    arguments = {"l1_radius": 3.0, "feature_bound": 1.0, "epsilon": 3.0, "delta": 1e-6} | LOSSES[loss] | more
    return X, y, solvers.dp_frank_wolfe(X, y, loss=loss, steps=steps, law=law, rng=7, **arguments)


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_are_those_of_the_chosen_vertices(loss):
    X, y, result = fit(loss)
    w, _ = reference.textbook_path(np.clip(X, -1, 1), y, losses.get(loss), 3.0, result.history["vertices"])
    np.testing.assert_allclose(result.coef, w, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("law", ["gumbel", "laplace"])
@pytest.mark.parametrize("loss", LOSSES)
def test_compiled_is_uncompiled(loss, law, monkeypatch):
    _, _, one = fit(loss, law)
    monkeypatch.setattr(kernel, "dense_steps", kernel.dense_steps.py_func)
    _, _, two = fit(loss, law)
    np.testing.assert_array_equal(one.history["vertices"], two.history["vertices"])
    np.testing.assert_allclose(one.history["noise_scale"], two.history["noise_scale"], rtol=1e-14)


@pytest.mark.parametrize("at_once", [1, 10, 47, 10_000])
def test_noise_may_be_drawn_in_parts(at_once, monkeypatch):
    _, _, one = fit("logistic")
    monkeypatch.setattr(vertex_paths, "_LARGEST_DRAW", at_once)
    _, _, two = fit("logistic")
    np.testing.assert_array_equal(one.coef, two.coef)


@pytest.mark.parametrize("norm", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_limits_are_those_of_the_plan(loss, norm):
    for label in (None, 0.4) if loss in ("huber", "hinge") else (1.0,):
        plan = solvers.plan("dp_frank_wolfe", n=9, d=5, loss=loss, l1_radius=3.0, steps=4, epsilon=1.0, delta=1e-6,
                            feature_bound=0.7, label_bound=label)  # fmt: skip
        limit = kernel.residual_limit(losses.get(loss).id, 0.7 * norm, np.inf if label is None else label)
        expected = plan.settings.noise_law(plan).at_norm(norm)
        assert plan.noise * min(0.7 * limit / plan.settings.lipschitz, 1.0) == pytest.approx(expected, rel=1e-14)
