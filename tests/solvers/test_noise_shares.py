"""Adaptive noise covers what one record moves at every public iterate, to the ends of double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pairs import likelihood
from dptoolkit.kernels import iht
from dptoolkit.kernels import stochastic as kernel
from dptoolkit.losses import logistic_diameter
from dptoolkit.solvers.batches import noise_shares, share_at
from tests.statistics import rejected

FAR = (1e3, 1e4, 1e5, 1e150, 1e300, math.inf, math.nan)
ENDS = (0.0, 5e-324, 1e-200, 39.999, 40.0, 40.0 * (1 + 1e-15), 40.001, 41.0, *FAR)
SETTINGS = {"adaptive": True, "loss": "logistic", "grad_norm": None, "sampling": None}
RELATIONS = [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT]


def shares(row_norm, relation):
    return noise_shares(SETTINGS | {"row_norm": row_norm}, relation)


def needed(radius, relation):
    """What one record can move at this radius, over what it can move anywhere."""
    if relation is Adjacency.ZERO_OUT:
        return 1.0 if math.isnan(radius) else float(expit(radius))
    return logistic_diameter(radius) / 2


def in_sgd(table, norm):
    return float(kernel.share_at(*table, norm))


def in_iht(table, norm):
    return float(iht.share_at(*table, norm))


LOOK_UPS = [share_at, in_sgd, in_iht]


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


def test_the_audits_noise_is_the_solvers():
    """Audits of the likelihood look the same noise up, for many weights at once."""
    table = shares(2.0, Adjacency.REPLACE_ONE)
    for radius in ENDS:
        w = np.array([[radius / 2.0, 0.0]])
        with np.errstate(over="ignore"):
            norm = float(np.linalg.norm(w))
        assert likelihood.share_of(table, w)[0] == share_at(table, norm)


def test_shares_grow_and_end_with_all():
    for relation in RELATIONS:
        table, _ = shares(1.0, relation)
        assert (np.diff(table) >= 0).all() and table[0] == 0.5 and table[-1] == 1.0
