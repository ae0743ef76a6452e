"""Liang, Tong, Ding, Pan and Bi 2023, "Stochastic privacy-preserving methods for nonconvex sparse learning".

Batches of fixed size without replacement, neighbours by replacing a record, Gaussian noise on batch
gradients. Both theorems rest on a bound for subsampled Renyi divergence that has side conditions, which are
evaluated here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from dptoolkit._validate import invalid, one_of, positive, real, whole
from dptoolkit.accounting import rdp, rounds
from dptoolkit.accounting._numeric import crossing
from dptoolkit.accounting.events import (
    POISSON,
    WITHOUT_REPLACEMENT,
    Composed,
    Event,
    Gaussian,
    RandomRounds,
    Repeated,
    Subsampled,
)
from dptoolkit.accounting.rounds import Geometric
from dptoolkit.adjacency import Adjacency
from dptoolkit.published.record import (
    Budget,
    Condition,
    Published,
    at_least,
    at_most,
    guaranteed_epsilon,
    log_inverse,
)

_PAPER = "Liang et al. 2023, {}"
# Lemma 3.2 needs this much noise (variance per squared sensitivity) before its formula holds.
_LEAST_VARIANCE = 1.5


def sgd_ht_theorem_4_1(
    n: int, batch_size: int, steps: int, grad_norm: float, epsilon: float, delta: float
) -> Published:
    """Variance 40 a l^2 T / (n^2 epsilon) with the order a = 1 + 2 log(1/delta) / epsilon.

    The lower bound is the pair where all other records equal the replaced one: a batch then differs exactly
    when the record is drawn, which is the pair of Poisson sampling with the same noise per sensitivity.
    """
    b = _batch("batch_size", batch_size, whole("n", n, low=1))
    order = 1 + 2 * log_inverse(delta) / positive("epsilon", epsilon)
    scale = positive("grad_norm", grad_norm) * math.sqrt(40 * order * whole("steps", steps, low=1) / epsilon) / n
    multiplier = scale * b / (2 * grad_norm)
    return Published(
        "DP-SGD-HT, Theorem 4.1", _PAPER.format("Theorem 4.1"), {"gradient": scale}, Budget(epsilon, delta),
        Adjacency.REPLACE_ONE,
        releases=partial(_batches, WITHOUT_REPLACEMENT, b / n, multiplier, steps),
        attains=partial(_batches, POISSON, b / n, multiplier, steps),
        conditions=(
            _order_condition(order, b / n, multiplier),
            at_least("10 b^2 a T / (n^2 epsilon) >= 1.5", multiplier**2, _LEAST_VARIANCE),
        ),
    )  # fmt: skip


# The orders that TensorFlow Privacy's script for DP-SGD tries.
_TF_ORDERS = (*(1 + k / 10 for k in range(1, 100)), *range(12, 64))


def fed_sgd_ht_section_6_4(
    batch_size: float, rate: float, steps: int, grad_norm: float, epsilon: float, delta: float
) -> Published:
    """The noise of Section 6.4, which names TensorFlow Privacy's accountant and prints no formula.

    The noise multiplier z, per clipping norm, is the smallest for which that accountant states epsilon for ``steps``
    batches that hold each record with probability ``rate``: Poisson sampling, a record added or removed, moments, and
    the classical conversion. A coordinate of the mean of ``batch_size`` gradients gets z grad_norm / batch_size.
    The paper's own neighbours have a record replaced (Definitions 1 and 3) and its batches have a fixed size, so that
    the sensitivity is twice the clipping norm: ``releases`` is that reading, and ``conditions`` has both.
    """
    share = real("rate", rate, low=0.0, high=1.0, open_low=True)
    count = whole("steps", steps, low=1)
    multiplier = tensorflow_noise(share, count, positive("epsilon", epsilon), delta)
    scale = multiplier * positive("grad_norm", grad_norm) / positive("batch_size", batch_size)
    program = _epsilon(Repeated(Subsampled(Gaussian(multiplier), POISSON, share), count), delta)
    paper = _epsilon(_batches(WITHOUT_REPLACEMENT, share, multiplier / 2, count, 1.0), delta)
    return Published(
        "DP-FedSGD-HT, Section 6.4", _PAPER.format("Section 6.4 with TensorFlow Privacy's noise"),
        {"gradient": scale}, Budget(epsilon, delta), Adjacency.REPLACE_ONE,
        releases=partial(_batches, WITHOUT_REPLACEMENT, share, multiplier / 2, count),
        attains=partial(_batches, POISSON, share, multiplier / 2, count),
        conditions=(
            at_most("epsilon as TensorFlow Privacy reads it (Poisson batches, zero-out) <= claimed", program, epsilon),
            at_most("epsilon by the paper's definitions (fixed batches, replace-one) <= claimed", paper, epsilon),
        ),
    )  # fmt: skip


@lru_cache
def tensorflow_noise(rate: float, steps: int, epsilon: float, delta: float) -> float:
    """The noise per clipping norm at which TensorFlow Privacy's accountant of that time states (epsilon, delta).

    Its epsilon is the smallest over its orders a of steps * (Renyi divergence of order a) + log(1/delta) / (a - 1).
    """
    orders, cost = np.array(_TF_ORDERS), log_inverse(delta)

    def excess(log_noise: float) -> float:
        divergence = rdp.subsampled_gaussian(math.exp(log_noise), rate, orders)
        return float(np.min(steps * divergence + cost / (orders - 1))) - epsilon

    low, high = math.log(0.05), math.log(0.05)
    while excess(high) > 0:
        low, high = high, high + 1.0
    if low == high:
        raise invalid("epsilon", epsilon, "smaller for this rate and number of steps", "It needs hardly any noise.")
    return math.exp(crossing(excess, low, high, relative=0.0, absolute=1e-9)[1])


@lru_cache
def _epsilon(event: Event, delta: float) -> float:
    return guaranteed_epsilon(event, delta)


def scsg_ht_theorem_5_1(
    n: int, batch_size: int, snapshot_size: int, epochs: int, grad_norm: float, epsilon: float, delta: float,
    option: str = "I", split: str = "printed", tail_factor: float | None = None, formula: str = "proof",
) -> Published:  # fmt: skip
    """Variances 160 v (snapshot) and 40 v (inner step), v = 2 C B l^2 a J / (b n^2 epsilon) by its proof.

    The paper prints v in two different forms: formula "proof" is the one in the proof, in Remark 5.2 and in the printed
    conditions; "statement" is the one in the theorem, 2 C B^2 a J / (b n^2 epsilon), which does not depend on how large
    a gradient is.

    option "I" draws the number of inner steps from Geometric(B/(B+b)), with C = ``tail_factor`` (by default the
    smallest that the paper admits) and a for delta/2; "II" makes B/b steps, with C = 1 and a for delta.

    split "swapped" gives the snapshot 40 v and the inner step 160 v, which the proof and the printed conditions need: a
    snapshot moves by 2l/B and an inner step by 4l/b. The lower bound is that of the snapshots alone, which a linear
    loss reaches.
    """
    one_of("formula", formula, ("proof", "statement"))
    run = _Scsg(n, batch_size, snapshot_size, epochs, grad_norm, epsilon, delta, option, tail_factor, formula)
    scales = run.scales(one_of("split", split, tuple(_SPLITS)))
    return Published(
        f"DP-SCSG-HT, Theorem 5.1 (option {option}, {split} split, v of the {formula})",
        _PAPER.format("Theorem 5.1"),
        scales,
        Budget(epsilon, delta),
        Adjacency.REPLACE_ONE,
        releases=partial(run.event, *run.multipliers(split)),
        attains=partial(_batches, POISSON, snapshot_size / n, run.multipliers(split)[0], epochs),
        conditions=run.conditions(),
        missing=(at_most("20/s1 + 80/s2 <= 1, the charge of Lemma 3.2", scsg_lemma_charge(split), 1.0),),
    )


def scsg_lemma_charge(split: str) -> float:
    """Renyi divergence of a step by the paper's own Lemma 3.2, over what the proof says it is.

    Lemma 3.2 charges 20 a l^2 / (n^2 variance) for a snapshot and 80 a l^2 / (n^2 variance) for an inner
    step.
    """
    snapshot, inner = _SPLITS[one_of("split", split, tuple(_SPLITS))]
    return 20 / snapshot + 80 / inner


_SPLITS = {"printed": (160.0, 40.0), "swapped": (40.0, 160.0)}


@dataclass(frozen=True)
class _Scsg:
    """The parameters of Theorem 5.1 and what follows from them."""

    n: int
    batch_size: int
    snapshot_size: int
    epochs: int
    grad_norm: float
    epsilon: float
    delta: float
    option: str
    tail_factor: float | None
    formula: str

    def __post_init__(self) -> None:
        _batch("batch_size", self.batch_size, whole("n", self.n, low=1))
        _batch("snapshot_size", self.snapshot_size, self.n)
        whole("epochs", self.epochs, low=1)
        positive("grad_norm", self.grad_norm)
        positive("epsilon", self.epsilon)
        one_of("option", self.option, ("I", "II"))
        if self.option == "II" and self.snapshot_size % self.batch_size:
            raise invalid("snapshot_size", self.snapshot_size, "a multiple of batch_size for option 'II'")

    @property
    def constant(self) -> float:
        if self.option == "II":
            return 1.0
        if self.tail_factor is None:
            return rounds.published_factor(self.epochs, self.delta)
        return real("tail_factor", self.tail_factor, low=1.0)

    @property
    def order(self) -> float:
        log_term = log_inverse(self.delta if self.option == "II" else self.delta / 2)
        return 1 + 2 * log_term / self.epsilon

    def scales(self, split: str) -> dict[str, float]:
        inside = 2 * self.constant * self.snapshot_size * self.order * self.epochs / (self.batch_size * self.epsilon)
        size = self.grad_norm if self.formula == "proof" else math.sqrt(self.snapshot_size)
        unit = size * math.sqrt(inside) / self.n
        snapshot, inner = _SPLITS[split]
        return {"snapshot": math.sqrt(snapshot) * unit, "inner": math.sqrt(inner) * unit}

    def multipliers(self, split: str) -> tuple[float, float]:
        scales = self.scales(split)
        snapshot = scales["snapshot"] * self.snapshot_size / (2 * self.grad_norm)
        return snapshot, scales["inner"] * self.batch_size / (4 * self.grad_norm)

    def conditions(self) -> tuple[Condition, ...]:
        # The printed inequalities are Lemma 3.2's with the noise of the swapped split and the v of the proof.
        snapshot, inner = replace(self, formula="proof").multipliers("swapped")
        checks = [
            _order_condition(self.order, self.snapshot_size / self.n, snapshot),
            at_least("20 a C B b J / (n^2 epsilon) >= 1.5", inner**2, _LEAST_VARIANCE),
        ]
        if self.option == "I":
            per_epoch = -math.expm1(math.log1p(-self.delta / 2) / self.epochs)
            tail = rounds.chernoff_tail(self.constant)
            checks.append(at_most("exp(-(C - 1 - log C)) <= 1 - (1 - delta/2)^(1/J)", tail, per_epoch))
        return tuple(checks)

    def event(self, snapshot: float, inner: float, factor: float) -> Event:
        step = _batch_event(WITHOUT_REPLACEMENT, self.batch_size / self.n, inner * factor)
        if self.option == "I":
            gamma = self.snapshot_size / (self.snapshot_size + self.batch_size)
            steps: Event = Repeated(RandomRounds(step, Geometric(gamma)), self.epochs)
        else:
            steps = Repeated(step, self.epochs * self.snapshot_size // self.batch_size)
        start = _batch_event(WITHOUT_REPLACEMENT, self.snapshot_size / self.n, snapshot * factor)
        return Composed(Repeated(start, self.epochs), steps)


def _order_condition(order: float, rate: float, multiplier: float) -> Condition:
    return at_most("a <= log(1 / (rate (1 + z^2)))", order, -math.log(rate * (1 + multiplier**2)))


def _batches(scheme: str, rate: float, multiplier: float, steps: int, factor: float) -> Event:
    return Repeated(_batch_event(scheme, rate, multiplier * factor), steps)


def _batch_event(scheme: str, rate: float, multiplier: float) -> Event:
    return Subsampled(Gaussian(multiplier), scheme, rate)


def _batch(name: str, value: int, n: int) -> int:
    size = whole(name, value, low=1)
    if size > n:
        raise invalid(name, value, f"<= n={n}")
    return size
