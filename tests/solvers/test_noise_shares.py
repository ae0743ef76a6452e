"""Adaptive noise covers what one record moves at every public iterate, to the ends of double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from dptoolkit import losses
from dptoolkit.adjacency import Adjacency
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.kernels import threshold
from dptoolkit.losses import logistic_diameter
from dptoolkit.solvers.noise import NoiseLaw, gradient_law
from tests.statistics import rejected

FAR = (1e3, 1e4, 1e5, 1e150, 1e300, math.inf, math.nan)
ENDS = (0.0, 5e-324, 1e-200, 39.999, 40.0, 40.0 * (1 + 1e-15), 40.001, 41.0, *FAR)
RELATIONS = [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT]


def shares(row_norm, relation):
    law = gradient_law(1.0, losses.get("logistic"), row_norm, relation is Adjacency.ZERO_OUT)
    return law.shares, law.places


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
    law, weights = NoiseLaw(3.0, *table), np.array([[radius / 2.0, 0.0] for radius in ENDS])
    with np.errstate(over="ignore"):
        found, norms = law.at(weights), np.linalg.norm(weights, axis=1)
    assert found.tolist() == [3.0 * look_up(table, float(norm)) for norm in norms]
    assert law.at(weights[3]) == found[3] and isinstance(law.at(weights[3]), float)


def test_shares_grow_and_end_with_all():
    for relation in RELATIONS:
        table, _ = shares(1.0, relation)
        assert (np.diff(table) >= 0).all() and table[0] == 0.5 and table[-1] == 1.0
