"""A pair for Frank-Wolfe where gradients depend on the weights: a control coordinate saturates the record's residual.

A label flip moves a logistic gradient by the row, half of what the bound allows at large weights. Two records that have
the same entry on a control coordinate and opposite entries on all others, with the same label, move all other scores by
twice their residual. Other records push the control coordinate's weight up, and with it both residuals. Vertices of the
other coordinates stay tied. With an intercept that is the control coordinate, and zero rows of either label hold it.

The selections that show the record also move the weights away from the control coordinate, and those that take the
control coordinate show nothing. So what can be shown has an optimum, which is below the guarantee: for weights that lie
on many coordinates no record moves the scores by all that is charged, see LIMITATIONS.md. Selections of v and -v that
cancel change nothing about it. Whatever vertex tells the records apart by the whole range has opposite margins on them,
so the sum of their margins comes from the control coordinate alone, and with a sum of 0 the residuals add up to half of
what is charged at large weights. tests/audit/test_frank_wolfe_limit.py computes the best order of selections in a
model of the weights; that is an argument, not a proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dptoolkit.adjacency import Adjacency
from dptoolkit.audit.pair import Counted
from dptoolkit.audit.theory.replay import noise_scale
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

# Designs that are tried.
PUSHES, PULLS = (0.0, 1.0, 2.5, 4.0, 6.0), (0.0, -0.5, -1.0, -1.5, -2.0)


class Control(NamedTuple):
    """In noise scales of the first selection: the ``push`` of the control coordinate, the ``pull`` of all others.

    A negative pull is that of records of the other label, which moves the odds to where rounds together leak most.
    """

    push: float
    pull: float


def applies(plan: Plan) -> bool:
    """Whether there is room for it, and residuals depend on the weights or an intercept takes part."""
    s = plan.settings
    useful = s.fit_intercept or not s.loss_row.saturates
    room = plan.n >= 2 and s.width(plan.d) >= 2
    return useful and room and s.law == "gumbel" and plan.adjacency is Adjacency.REPLACE_ONE


def datasets(plan: Plan, design: Control, labels: tuple[float, float]) -> tuple[Counted, Counted]:
    """The two datasets of a design; ``labels`` are those with the largest and with the smallest residual."""
    s, (low, high) = plan.settings, labels
    bound, n = s.feature_bound, plan.n
    unit = float(np.abs(s.loss_row.residual(np.zeros(1), np.array([high])))[0]) * bound * s.l1_radius / n
    unit /= float(noise_scale(plan, np.zeros((1, 1, s.width(plan.d)))).ravel()[0])
    pulling = min(n - 1, round(abs(design.pull) / (2 * unit)))
    others = np.full(plan.d, bound)
    rows, ys, counts = [others.copy(), -others, others.copy(), 0 * others], [low, low, low, high], [0, 0, pulling, 0]
    if design.pull < 0:
        ys[2] = high
    rest = n - 1 - pulling
    if s.fit_intercept:
        own = unit * s.bounds.level / bound
        up = round(min(1.0, 0.5 + design.push / (2 * rest * own)) * rest) if rest else 0
        rows, ys, counts = [*rows, 0 * others], [*ys, low], [*counts[:3], up, rest - up]
    else:
        rows[1][0], rows[2][0] = bound, 0.0
        wanted = design.push / unit
        pushing = min(rest, round(wanted))
        rows[3][0] = bound
        rows, ys, counts = [*rows, 0 * others], [*ys, low], [*counts[:3], pushing, rest - pushing]
    first, second = ([1, 0, *counts[2:]], [0, 1, *counts[2:]])
    return _dataset(rows, ys, first), _dataset(rows, ys, second)


def _dataset(rows: list[Array], labels: list[float], counts: list[int]) -> Counted:
    kept = [i for i, count in enumerate(counts) if count > 0]
    return Counted(np.array(rows)[kept], np.array(labels)[kept], np.array(counts)[kept])
