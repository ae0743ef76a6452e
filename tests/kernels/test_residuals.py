"""Every compiled copy of a loss is the row of losses.py; a loss without a branch gives what is not a number."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptoolkit import losses
from dptoolkit.kernels import dual, frank_wolfe, secure_steps, stochastic, threshold
from tests.statistics import rejected

INF = math.inf
# Where branches meet: corners of Huber's loss and of the hinge, both signs of zero, overflow.
CORNERS = (0.0, -0.0, 0.5, 1.0, -0.5, -1.0, 1.5, 2.0, 5e-324, 40.0, -40.0, 800.0, -800.0, 1e300, -1e300, INF, -INF)
MARGINS = st.one_of(st.sampled_from(CORNERS), st.floats(-3, 3), st.floats(allow_nan=False))
# (loss id, margin, label) -> the residual, by each compiled function that has the losses in it.
COPIES = {
    "threshold.residual": threshold.residual,
    "threshold.clipped_residual": lambda i, m, y: threshold.clipped_residual(i, m, y, INF, INF),
    "threshold.mean_residuals": lambda i, m, y: one_row(i, m, y),
    "dual.residual": dual.residual,
    "frank_wolfe.residual": frank_wolfe.residual,
    "stochastic.residual": stochastic.residual,
    "secure_steps.residual": secure_steps.residual,
    "stochastic.clipped_residual": lambda i, m, y: stochastic.clipped_residual(i, m, y, INF, INF),
    "stochastic.residual_change": lambda i, m, y: changed(i, m, y),
}
# Everything that is not a row of one margin: before the first id, softmax, after the last.
UNKNOWN = [-1, losses.get("softmax").id, max(loss.id for loss in losses.LOSSES.values()) + 1, 99]


def one_row(loss, margin, y):
    out = np.zeros(1)
    threshold.mean_residuals(loss, np.array([margin]), np.array([y]), INF, np.zeros(0), out)
    return out[0]


def changed(loss, margin, y):
    """The change from the margin 0, put back on top of the residual there."""
    change = stochastic.residual_change(loss, margin, 0.0, y, INF, INF)
    return change + stochastic.residual(loss, 0.0, y)


def agrees(copy, row, margin, y):
    with np.errstate(over="ignore"):
        wanted = float(row.residual(np.array([margin]), np.array([y]))[0])
    assert copy(row.id, margin, y) == pytest.approx(wanted, rel=1e-13, abs=1e-15, nan_ok=True)


@pytest.mark.parametrize("name", losses.SCALAR)
@pytest.mark.parametrize("copy", COPIES)
def test_every_copy_is_the_row(copy, name):
    row = losses.get(name)
    labels = st.sampled_from((0.0, 1.0)) if row.task == losses.BINARY else st.floats(-50, 50)

    @given(MARGINS, labels)
    def check(margin, y):
        agrees(COPIES[copy], row, margin, y)

    check()


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("copy", COPIES)
def test_an_unknown_loss_is_not_a_number(copy, unknown):
    for margin in (0.0, 0.7, -3.0, 1e300):
        assert math.isnan(COPIES[copy](unknown, margin, 1.0))


def test_a_copy_that_lacks_a_branch_is_seen():
    """The broken twin: what has no branch of its own is taken for the squared loss."""

    def without(loss, margin, y):
        return margin - y

    agrees(without, losses.get("squared"), 0.3, 1.0)
    for name in ("logistic", "huber", "hinge"):
        rejected(agrees, without, losses.get(name), 5.3, 1.0)


@pytest.mark.parametrize("name", losses.SCALAR)
@given(st.floats(0, 60) | st.sampled_from((0.0, INF)), st.floats(0, 50) | st.just(INF))
def test_limits_are_those_of_the_row(name, margin, label):
    row = losses.get(name)
    wanted = row.residual_limit(margin, label)
    assert frank_wolfe.residual_limit(row.id, margin, label) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("name", losses.SCALAR)
@given(st.floats(-3, 3) | st.sampled_from((0.0, 40.0, -40.0, 1e300)), st.sampled_from((0.0, 1.0)))
def test_bends_are_those_of_the_row(name, margin, y):
    """Also at the corners of Huber's loss and of the hinge, but for the side that they belong to."""
    row, at = losses.get(name), np.array([margin])
    bend = dual.bend(row.id, float(row.residual(at, np.array([y]))[0]))
    beside = [row.curvature(at + step, np.array([y]), False)[0] for step in (-1e-9, 0.0, 1e-9)]
    assert any(bend == pytest.approx(one, rel=1e-12, abs=1e-9) for one in beside)


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_the_bend_of_an_unknown_loss_is_not_a_number(unknown):
    assert math.isnan(dual.bend(unknown, 0.5))


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_the_limit_of_an_unknown_loss_is_not_a_number(unknown):
    assert math.isnan(frank_wolfe.residual_limit(unknown, 1.0, 1.0))


@pytest.mark.parametrize("kernel", [threshold, frank_wolfe, stochastic, dual], ids=lambda module: module.__name__)
def test_ids_and_widths_are_the_tables(kernel):
    ids = SimpleNamespace(**{name.upper(): losses.get(name).id for name in losses.SCALAR})
    assert {key: getattr(kernel, key) for key in vars(ids)} == vars(ids)
    assert kernel._WIDTH == losses.HINGE_WIDTH
    assert len({row.id for row in losses.LOSSES.values()}) == len(losses.LOSSES)
