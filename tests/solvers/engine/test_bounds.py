"""Adaptive noise covers what one record moves at every public iterate, to the ends of double precision."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from dptoolkit import losses, solvers
from dptoolkit.adjacency import Adjacency
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.kernels import threshold
from dptoolkit.losses import logistic_diameter, squared_diameter
from dptoolkit.solvers.engine.bounds import NoiseLaw, gradient_law
from dptoolkit.solvers.frame.outlook import HopelessPlanWarning
from tests.statistics import rejected

FAR = (1e3, 1e4, 1e5, 1e150, 1e300, math.inf, math.nan)
ENDS = (0.0, 5e-324, 1e-200, 39.999, 40.0, 40.0 * (1 + 1e-15), 40.001, 41.0, *FAR)
RELATIONS = [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT]


def shares(row_norm, relation):
    noise_at = gradient_law(1.0, losses.get("logistic"), row_norm, relation is Adjacency.ZERO_OUT)
    return noise_at.shares, noise_at.places


def needed(radius, relation):
    """What one record can move at this radius, over what it can move anywhere."""
    if relation is Adjacency.ZERO_OUT:
        return 1.0 if math.isnan(radius) else float(expit(radius))
    return logistic_diameter(radius) / 2


def in_sgd(table, norm):
    return float(kernel.share_at(*table, norm))


def in_iht(table, norm):
    return float(threshold.share_at(*table, norm))


def in_python(table, norm):
    return float(NoiseLaw(1.0, *table).share(norm))


LOOK_UPS = [in_python, in_sgd, in_iht]


def covers(look_up, table, row_norm, norm, relation):
    assert look_up(table, norm) >= needed(row_norm * norm, relation)


@pytest.mark.parametrize("look_up", LOOK_UPS)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("radius", ENDS)
def test_shares_at_the_ends(radius, relation, look_up):
    for row_norm in (1e-140, 0.3, 1.0, 1e140):
        covers(look_up, shares(row_norm, relation), row_norm, radius / row_norm, relation)


@pytest.mark.parametrize("look_up", LOOK_UPS)
@pytest.mark.parametrize("relation", RELATIONS)
@given(st.floats(0, 60) | st.floats(0, 1e300) | st.integers(0, 700).map(lambda i: i / 16), st.floats(1e-3, 1e3))
def test_shares_everywhere(look_up, relation, radius, row_norm):
    """Also on the grid itself, where a rounding of |w| must not look up the entry before."""
    covers(look_up, shares(row_norm, relation), row_norm, radius / row_norm, relation)


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_a_table_that_stops_is_seen(look_up):
    """The table as it once was, ended at radius 40: too small by 1.35 % beyond."""
    table, places = shares(1.0, Adjacency.REPLACE_ONE)
    stopped = table[:-1], places
    covers(look_up, stopped, 1.0, 39.0, Adjacency.REPLACE_ONE)
    for norm in (41.0, 1e300, math.inf, math.nan):
        rejected(covers, look_up, stopped, 1.0, norm, Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_the_noise_of_many_weights_is_that_of_each(look_up):
    """Audits look the noise up for many weights at once; it is the solvers', the compiled ones' too."""
    table = shares(2.0, Adjacency.REPLACE_ONE)
    noise_at, weights = NoiseLaw(3.0, *table), np.array([[radius / 2.0, 0.0] for radius in ENDS])
    with np.errstate(over="ignore"):
        found = noise_at(weights)
    assert found.tolist() == [3.0 * look_up(table, math.hypot(*w)) for w in weights]
    assert noise_at(weights[3]) == found[3] and isinstance(noise_at(weights[3]), float)


def test_shares_grow_and_end_with_all():
    for relation in RELATIONS:
        table, _ = shares(1.0, relation)
        assert (np.diff(table) >= 0).all() and table[0] == 0.5 and table[-1] == 1.0


# --- bounded labels and margins -----------------------------------------------------------------------------

MARGIN, LABEL = 0.5, 2.0


def squared_law(row_norm, relation, margin=MARGIN, label=LABEL):
    return gradient_law(1.0, losses.get("squared"), row_norm, relation is Adjacency.ZERO_OUT, margin, label)


def squared_needed(radius, relation, margin=MARGIN, label=LABEL):
    if relation is Adjacency.ZERO_OUT:
        return (label + min(margin, math.inf if math.isnan(radius) else radius)) / (label + margin)
    return squared_diameter(radius, margin, label) / (2 * (label + margin))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("radius", ENDS)
@pytest.mark.parametrize(("margin", "label"), [(0.5, 2.0), (1e140, 1e-140), (1e-140, 1e140), (1e-140, 1e-140)])
def test_squared_shares_at_the_ends(radius, relation, margin, label):
    for row_norm in (1e-140, 0.3, 1e140):
        noise_at = squared_law(row_norm, relation, margin, label)
        share = noise_at.share(radius * margin / row_norm)
        assert share >= squared_needed(radius * margin, relation, margin, label) * (1 - 1e-15)


@pytest.mark.parametrize("look_up", LOOK_UPS)
@pytest.mark.parametrize("relation", RELATIONS)
@given(st.floats(0, 60) | st.floats(0, 1e300) | st.integers(0, 700).map(lambda i: i / 32), st.floats(1e-3, 1e3))
def test_squared_shares_everywhere(look_up, relation, radius, row_norm):
    noise_at = squared_law(row_norm, relation)
    needed_here = squared_needed(radius, relation)
    assert look_up((noise_at.shares, noise_at.places), radius / row_norm) >= needed_here
    # The grid's sixteenth of a margin bound is what is given away.
    assert look_up((noise_at.shares, noise_at.places), radius / row_norm) <= needed_here * 1.02


def test_a_squared_table_in_the_wrong_unit_is_seen():
    """Radii in units of 1 instead of the margin bound: too little noise from the first entry on."""
    right, wrong = (squared_law(norm, Adjacency.REPLACE_ONE) for norm in (1.0, MARGIN))
    radius = 1.0
    assert right.share(radius) >= squared_needed(radius, Adjacency.REPLACE_ONE) > wrong.share(radius)


@pytest.mark.parametrize("size", [1, 10_000], ids=["compiled", "step by step"])
@pytest.mark.parametrize("row_norm", [1e60, 1e69])
def test_weights_whose_squares_underflow_have_a_norm(row_norm, size):
    """Weights near margin_bound / row_norm have squares that are 0 in doubles, and the noise at 0 is too little."""
    margin, label = 1e-105, 1e-108
    bounds = {"loss": "squared", "row_norm": row_norm, "margin_bound": margin, "label_bound": label}
    arguments = bounds | {"sparsity": 3, "steps": 4, "step_size": 100 / row_norm / row_norm, "epsilon": 8.0}
    X = np.zeros((6 * size, 3))
    X[:, 0] = row_norm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HopelessPlanWarning)
        plan = solvers.plan("dp_ight", n=len(X), d=3, delta=1e-3, **arguments)
        found = solvers.dp_ight(X, np.full(len(X), label), delta=1e-3, rng=0, trace=1, **arguments)
    norms = [math.hypot(*values) for _, _, values in found.history["iterates"]][:-1]
    assert min(norms) > 0 and max(norms) ** 2 == 0
    for norm, scale in zip(norms, found.history["noise_scale"][1:], strict=True):
        assert scale / plan.noise >= squared_needed(row_norm * norm, Adjacency.REPLACE_ONE, margin, label)
        assert plan.settings.noise_law(plan)(np.array([norm, 0.0])) == scale
