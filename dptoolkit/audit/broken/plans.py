"""Faults made from plans of our own solvers, whose noise is changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit.accounting.events import POISSON, WITHOUT_REPLACEMENT
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import pairs
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.broken.mechanisms import halves, plan_of
from dptoolkit.audit.pair import Counted, Pair
from dptoolkit.audit.theory.likelihood import Projection
from dptoolkit.solvers._peeling import peel
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

Rng = np.random.Generator


def _half(plan: Plan) -> Plan:
    return plan.with_noise(factor=0.5)


def _ight(**arguments: Any) -> Plan:
    settings = {"n": 50, "d": 4, "sparsity": 2, "steps": 10, "step_size": 1.0, "epsilon": 2.0, "loss": "squared"}
    return plan_of("dp_ight", **{**settings, "grad_norm": 1.0, **arguments})


def _frank_wolfe(**arguments: Any) -> Plan:
    return plan_of("dp_frank_wolfe", n=20, d=2, loss="logistic", l1_radius=1.0, steps=1, epsilon=2.0, feature_bound=1.0,
                 **arguments)  # fmt: skip


def _vertex_pair() -> Pair:
    """One record raises the scores of one half of the vertices and lowers the others, by all that the range allows."""
    X, zeros = np.vstack([np.ones((1, 2)), np.zeros((19, 2))]), np.zeros(19)
    first, second = (X, np.append(1.0, zeros)), (X, np.append(0.0, zeros))
    return Pair(first, second, Adjacency.REPLACE_ONE, "a label flips, all other rows are zero")


def _label_pair() -> Pair:
    """One label flips: the mean gradient at zero moves along that record's row and along the intercept."""
    X, y = np.vstack([np.eye(1, 4), np.zeros((2, 4))]), np.array([0.0, 0.0, 1.0])
    other_y, counts = np.array([1.0, 0.0, 1.0]), np.array([1, 25, 24])
    along = {"final": Projection(-np.array([1.0, 0.0, 0.0, 0.0, 1.0]))}
    return Pair(Counted(X, y, counts), Counted(X, other_y, counts), Adjacency.REPLACE_ONE, "a label flips", along)


def _sgd(sampling: str) -> Plan:
    return plan_of("dp_sgd_ht", n=20, d=2, loss="squared", sparsity=2, steps=4, step_size=1.0, batch_size=10,
                 epsilon=4.0, grad_norm=1.0, sampling=sampling)  # fmt: skip


@dataclass(frozen=True)
class _Peel:
    """One round of a peeling plan on the vector that it thresholds."""

    plan: Plan

    def __call__(self, vector: Array, rng: Rng) -> Array:
        return peel(vector, self.plan, rng)


def _peel_pair(plan: Plan) -> Pair:
    """Two entries near 1 swap places, each moving by all that a record can move it."""
    change, (choice, values) = plan.releases[0].sensitivity / 2, plan.releases

    def ratio(outputs: Array) -> Array:
        value = outputs.sum(axis=1) - 1
        sign = np.where(outputs[:, 0] != 0, 1.0, -1.0)
        return np.asarray(sign * (change / choice.scale + change * value / values.scale**2))

    first = 1 + halves(change / 2)
    return Pair(first, first[::-1].copy(), plan.adjacency, "two entries swap places", {"final": ratio}, records=False)


def solver_faults() -> tuple[Broken, ...]:
    """Faults made from plans of our solvers, whose noise is not the one that is claimed."""
    ight, small, one = _ight(), _ight(epsilon=0.1, steps=1, d=2), _ight(steps=1)
    half_sensitivity = _ight(adjacency=Adjacency.ZERO_OUT)
    free, joint = (
        _ight(loss="logistic", grad_norm=None, row_norm=1.0, steps=1, sparsity=4, fit_intercept=column)
        for column in (False, True)
    )
    choice, narrow = _frank_wolfe(), _frank_wolfe(adjacency=Adjacency.ZERO_OUT)
    fixed_size, poisson = _sgd(WITHOUT_REPLACEMENT), _sgd(POISSON)
    round_ = plan_of("peeling_iht", n=20, d=2, sparsity=1, steps=1, step_size=1.0, radius=1.0, epsilon=3.0,
                   feature_bound=1.0, label_bound=1.0)  # fmt: skip
    coordinate, batches = pairs.dp_ight(ight), pairs.dp_sgd_ht(fixed_size)
    vertex, swap = _vertex_pair(), _peel_pair(round_)
    # Where batches are drawn no pair is tight for the whole profile (see ``trials_for``).
    steps: dict[str, Any] = {"adversary": "iterates", "trials": 4_000}
    return (
        Broken("dp_ight: half the noise", "Noisy gradients with half of the planned noise.",
               _half(ight), coordinate, ight.guarantee, ight),
        Broken("dp_ight: no 2 of replace-one", "The sensitivity of a mean when a record is replaced is taken to be "
               "G/n, not 2G/n.",
               half_sensitivity, coordinate, half_sensitivity.guarantee, ight),
        Broken("dp_ight: count ignored", "Ten steps with the noise of one, charged once.",
               ight.with_noise(one.noise), coordinate, one.guarantee, ight),
        Broken("dp_ight: epsilon under the root", "The noise is proportional to 1/sqrt(epsilon) instead of 1/epsilon.",
               small.with_noise(math.sqrt(0.1) * small.noise), pairs.dp_ight(small), small.guarantee, small,
               arguments={"power_against": 3.0}),
        Broken("dp_ight: intercept not charged", "The intercept's column is added after rows were bounded, and the "
               "noise is for the rows alone.",
               joint.with_noise(free.noise), _label_pair(), joint.guarantee, joint,
               arguments={"power_against": 1.4}),
        Broken("dp_frank_wolfe: half the noise", "Noisy vertices with half of the planned noise.",
               _half(choice), vertex, choice.guarantee, choice),
        Broken("dp_frank_wolfe: sensitivity for range", "Noise for what one score moves by; two scores move apart "
               "twice as far.",
               narrow, vertex, narrow.guarantee, choice),
        Broken("dp_sgd_ht: half the noise", "Noisy batch gradients with half of the planned noise.",
               _half(fixed_size), batches, fixed_size.guarantee, fixed_size, arguments=steps),
        Broken("dp_sgd_ht: fixed batches as Poisson", "Batches of a fixed size are accounted for as Poisson samples, "
               "whose neighbours lack a record.",
               fixed_size.with_noise(poisson.noise), batches, poisson.guarantee, fixed_size, arguments=steps),
        Broken("peeling_iht: half the noise", "Choice and values with half of the planned noise.",
               _Peel(_half(round_)), swap, round_.guarantee, _Peel(round_)),
        Broken("peeling_iht: exact selection", "The values have noise, the choice of the support has none.",
               _Peel(round_.with_noise(0.0, round_.releases[1].scale)), swap, round_.guarantee, _Peel(round_)),
    )  # fmt: skip
