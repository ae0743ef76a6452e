"""Faults of one client of a federation: of its noise, its batches and its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dptoolkit import federated
from dptoolkit.accounting.events import WITHOUT_REPLACEMENT
from dptoolkit.adjacency import Adjacency
from dptoolkit.audit import layout, pairs
from dptoolkit.audit.broken.fault import Broken
from dptoolkit.audit.pair import Pair
from dptoolkit.audit.theory.likelihood import Projection
from dptoolkit.data import check_rows
from dptoolkit.federated.client import Client, Key
from dptoolkit.solvers.engine.initial import NOTHING
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.types import Array

Rng = np.random.Generator
FRESH, ONCE, LATE = "fresh", "once", "late"


def _plan(name: str = "dp_fed_sgd_ht", **arguments: Any) -> Plan:
    """What the client of a small federation sends in one round."""
    settings: dict[str, Any] = {
        "loss": "squared", "grad_norm": 1.0, "step_size": 1.0, "sparsity": 2, "rounds": 1, "local_steps": 4,
        "epsilon": 4.0, "delta": 1e-5,
    }  # fmt: skip
    if name == "dp_fed_sgd_ht":
        settings |= {"rate": 0.5, "sampling": WITHOUT_REPLACEMENT}
    return federated.plan(name, sizes=[20], d=4, **{**settings, **arguments}).attacked()


@dataclass(frozen=True)
class _Steps:
    """One client's local steps, written out for clipped gradients of the squared loss; returns all its iterates.

    ``noise`` is "fresh" in every step, or drawn "once" for all of them, or it comes "late", after the threshold, where
    it is added to the weights that were kept.
    """

    plan: Plan
    noise: str = FRESH

    def __call__(self, data: Any, rng: Rng) -> Array:
        X, y = data
        settings: Any = self.plan.settings
        b, d, w = settings.batch_size, self.plan.d, layout.start(self.plan)
        iterates, noise = [], np.zeros(d)
        for t in range(settings.steps):
            batch = rng.permutation(len(y))[: round(b)]
            if t == 0 or self.noise != ONCE:
                noise = self.plan.noise * rng.standard_normal(d)
            gradients = (X[batch] @ w - y[batch])[:, None] * X[batch]
            norms = np.maximum(np.linalg.norm(gradients, axis=1), 1e-300)
            gradients *= np.minimum(1.0, settings.grad_norm / norms)[:, None]
            mean = gradients.sum(axis=0) / b
            w = w - settings.step_size * (mean if self.noise == LATE else mean + noise)
            kept = np.argsort(-np.abs(w), kind="stable")[: settings.sparsity]
            support = np.zeros(d, dtype=bool)
            support[kept] = True
            w = np.where(support, w - settings.step_size * noise if self.noise == LATE else w, 0.0)
            iterates.append(w)
        return np.concatenate(iterates)


@dataclass(frozen=True)
class _Sum:
    """The message of a client whose gradients do not change with the weights, and of which it keeps all: a sum."""

    plan: Plan
    batch: str = FRESH

    def __call__(self, data: Any, rng: Rng) -> Array:
        X, y = data
        settings: Any = self.plan.settings
        steps, size = settings.steps, round(settings.batch_size)
        gradients = -np.sign(y)[:, None] * settings.grad_norm * X
        draws = rng.random((steps if self.batch == FRESH else 1, len(y)))
        batches = np.argpartition(draws, size - 1, axis=1)[:, :size]
        means = gradients[batches].sum(axis=1) / settings.batch_size
        noise = self.plan.noise * rng.standard_normal((steps, self.plan.d))
        return np.asarray(-settings.step_size * (np.broadcast_to(means, noise.shape) + noise).sum(axis=0))


@dataclass(frozen=True)
class _TwoClients:
    """The difference of the messages of two clients of ``dp_fed_gd_ht``, whose keys are the same or not."""

    plan: Plan
    same_key: bool

    def __call__(self, data: Any, rng: Rng) -> Array:
        keys = [rng.integers(2**62)] * 2 if self.same_key else rng.integers(2**62, size=2).tolist()
        messages = []
        for (X, y), key in zip((data, (np.zeros_like(data[0]), np.zeros_like(data[1]))), keys, strict=True):
            client = Client(0, self.plan, check_rows(X), y, Key(np.random.default_rng(key)))
            client.reserve()
            message = client.reply(1, *NOTHING)
            w = np.zeros(self.plan.d)
            w[message.support] = message.values
            messages.append(w)
        return np.asarray(messages[0] - messages[1])


def _scored(plan: Plan, pair: Pair, score: Callable[[Array], Array]) -> Pair:
    """The datasets of a pair written out, with a score of another output."""
    datasets = pair.first.expand(), pair.second.expand()
    return Pair(*datasets, plan.adjacency, pair.description, {"final": score})


@dataclass(frozen=True)
class _Spread:
    """How much the steps of the first weight differ from each other."""

    plan: Plan

    def __call__(self, outputs: Array) -> Array:
        path = outputs.reshape(len(outputs), -1, self.plan.d)[:, :, 0]
        start = np.full((len(path), 1), layout.start(self.plan)[0])
        return np.asarray(np.ptp(np.diff(np.hstack([start, path]), axis=1), axis=1))


def _support_pair(plan: Plan) -> Pair:
    """One record on the first feature or on the second; all others are zero, so that it alone decides the support."""
    X, y = np.zeros((plan.n, plan.d)), np.zeros(plan.n)
    X[0, 0], y[0] = 1.0, 1e6
    other = X.copy()
    other[0] = np.roll(X[0], 1)
    direction = np.zeros(plan.d)
    direction[:2] = 1.0, -1.0

    def score(outputs: Array) -> Array:
        first = np.abs(outputs.reshape(len(outputs), -1, plan.d)[:, 0])
        return np.asarray((first > 0) @ direction)

    return Pair((X, y), (other, y), plan.adjacency, "one record on another feature", {"final": score})


def federated_faults() -> tuple[Broken, ...]:
    """Faults of a client: too little noise, noise or batches that are not fresh, noise too late, a shared key."""
    plan, poisson = _plan(), _plan(sampling="poisson")
    zeroed = _plan(sampling="poisson", adjacency=Adjacency.ZERO_OUT)
    worst, coins = pairs.dp_fed_sgd_ht(plan), pairs.dp_fed_sgd_ht(poisson)
    trace: dict[str, Any] = {"adversary": "iterates", "trials": 4_000}
    # Many steps on small batches: who is in one of fresh batches is seldom in the next.
    rare = _plan(rate=0.1, local_steps=400, epsilon=1.5, sparsity=4)
    choosing = _plan(local_steps=1, sparsity=1)
    at_zero: Any = replace(choosing.settings, initial=None)
    single = replace(choosing, settings=at_zero)
    full = _plan("dp_fed_gd_ht", local_steps=1, sparsity=4)
    given: dict[str, Any] = {"trials": 4_000, "power": None}
    return (
        Broken("dp_fed_sgd_ht: half the noise", "A client's noisy batch gradients with half of the planned noise.",
               plan.with_noise(factor=0.5), worst, plan.guarantee, plan, arguments=trace),
        Broken("dp_fed_sgd_ht: no 2 of replace-one", "A client's sensitivity is taken to be C/b where a record is "
               "replaced, as an accountant for added records has it.",
               poisson.with_noise(zeroed.noise), coins, poisson.guarantee, poisson, arguments=trace),
        Broken("dp_fed_sgd_ht: one noise for all steps", "A client draws its noise once a round and uses it in every "
               "local step.",
               _Steps(plan, noise=ONCE), _scored(plan, worst, _Spread(plan)), plan.guarantee,
               _Steps(plan), arguments=given),
        Broken("dp_fed_sgd_ht: one batch for all steps", "A client draws its batch once a round, and accounts for a "
               "fresh one in every local step.",
               _Sum(rare, batch=ONCE), _scored(rare, pairs.dp_fed_sgd_ht(rare), Projection(-np.eye(1, 4)[0])),
               rare.guarantee, _Sum(rare), arguments=given),
        Broken("dp_fed_sgd_ht: noise after the threshold", "A client adds noise to the weights that it kept, which "
               "exact gradients chose.",
               _Steps(single, noise=LATE), _support_pair(single), single.guarantee, _Steps(single), arguments=given),
        Broken("dp_fed_gd_ht: one key for two clients", "Two clients derive their noise from one seed, and it cancels "
               "in the difference of their messages.",
               _TwoClients(full, True), _label_pair(full), full.guarantee, _TwoClients(full, False), arguments=given),
    )  # fmt: skip


def _label_pair(plan: Plan) -> Pair:
    """One label changes its sign; all other records are zero."""
    X, y = np.zeros((plan.n, plan.d)), np.zeros(plan.n)
    X[0, 0], y[0] = 1.0, 1e6
    other = y.copy()
    other[0] = -y[0]
    towards = Projection(np.eye(1, plan.d)[0])
    return Pair((X, y), (X, other), plan.adjacency, "one label changes its sign", {"final": towards})
