"""The layout of a run's outputs as one row of numbers, which has the same length for every run of a plan."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.run import Trace, Trials
from dptoolkit.types import Array


class Epochs(NamedTuple):
    """The releases of many runs of a variance-reduced solver, by trial and epoch.

    counts (trials, epochs): the inner steps; snapshots (trials, epochs, width): the noisy snapshot gradients; iterates
    (trials, epochs, most, width): the weights after each of the first inner steps, the last repeated to the end.
    """

    counts: Array
    snapshots: Array
    iterates: Array


def width(plan: Plan) -> int:
    """The number of weights."""
    return plan.settings.width(plan.d)


def start(plan: Plan) -> Array:
    """The weights that a run starts from: its initial model, or zeros."""
    weights = np.zeros(width(plan))
    for place, weight in getattr(plan.settings, "initial", None) or ():
        weights[place] = weight
    return weights


def is_reduced(plan: Plan) -> bool:
    """Whether a variance-reduced solver is planned."""
    return bool(plan.settings.has_epochs)


def most_inner_steps(plan: Plan) -> int:
    """How many inner steps of an epoch an adversary looks at.

    All steps if their number is fixed, three times the mean if it is random. Ignoring the later steps only weakens the
    adversary, so the audit stays valid; longer rows would cost memory for rare epochs.
    """
    steps: int = plan.settings.shape(plan.n).usual_steps
    return steps


def epochs_row(plan: Plan, trace: Trace) -> Array:
    """The row of a variance-reduced run: numbers of inner steps, snapshot gradients, iterates."""
    assert trace.iterates is not None
    counts, most = trace.history["inner_steps"], most_inner_steps(plan)
    # The weights before the first step are zero; an epoch without steps repeats the weights before it.
    weights = np.vstack([np.zeros((1, trace.iterates.shape[1])), trace.iterates])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    places = starts[:, None] + np.minimum(np.arange(1, most + 1)[None, :], np.asarray(counts)[:, None])
    return np.concatenate([counts, trace.history["snapshots"].ravel(), weights[places].ravel()])


def epochs_rows(trials: Trials) -> Array:
    """``epochs_row`` of many runs."""
    assert trials.counts is not None and trials.releases is not None and trials.iterates is not None
    count = len(trials.counts)
    parts = trials.counts, trials.releases, trials.iterates
    return np.concatenate([part.reshape(count, math.prod(part.shape[1:])) for part in parts], axis=1)


def read_epochs(plan: Plan, rows: Array) -> Epochs:
    """``epochs_row`` of many trials, taken apart."""
    epochs, most, d = plan.settings.epochs, most_inner_steps(plan), width(plan)
    counts, snapshots, iterates = np.split(rows, [epochs, epochs + epochs * d], axis=1)
    return Epochs(counts, snapshots.reshape(-1, epochs, d), iterates.reshape(-1, epochs, most, d))
