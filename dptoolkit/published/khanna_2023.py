"""Khanna, Lu and Raff 2023, "Sparse private LASSO logistic regression".

Frank-Wolfe on an L1 ball: every round selects a vertex by its score plus Laplace noise. Replacing a record
moves each score by at most 2 lambda L / n, up at a vertex where it moves down at the opposite one, so the
RANGE of the change is 4 lambda L / n and one round is (range / scale)-DP. The proof charges a quarter of
that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from dptoolkit._validate import flag, positive, real, whole
from dptoolkit.accounting.events import (
    Composed,
    Event,
    ExponentialMechanism,
    Gaussian,
    NoisyMax,
    PureDp,
    Repeated,
    TwoSidedGeometric,
)
from dptoolkit.adjacency import Adjacency
from dptoolkit.published.record import Budget, Condition, EventAt, Published, below, log_inverse, sensitivity
from dptoolkit.published.ties import column_pair, tie_pair

_PAPER = "Khanna, Lu and Raff 2023, {}"
NO_PRIVACY = Gaussian(0.0)


def lasso_frank_wolfe(
    n: int, steps: int, l1_radius: float, lipschitz: float, epsilon: float, delta: float,
    adjacency: str | Adjacency = Adjacency.REPLACE_ONE, rounds: int | None = None,
) -> Published:  # fmt: skip
    """Algorithm 1: Laplace scale lambda L sqrt(8 T log(1/delta)) / (n epsilon) on every vertex score.

    ``rounds`` selections are made: the printed loop makes steps - 1, the code in the appendix makes steps.
    The tie pair needs a linear loss in two dimensions, which the stated class contains.
    """
    unit = positive("l1_radius", l1_radius) * positive("lipschitz", lipschitz) / whole("n", n, low=1)
    scale = unit * math.sqrt(8 * whole("steps", steps, low=1) * log_inverse(delta)) / positive("epsilon", epsilon)
    adjacency = Adjacency.parse(adjacency)
    count = steps - 1 if rounds is None else whole("rounds", rounds)
    one = 2 * sensitivity(unit, adjacency) / scale
    return selections(
        "Private LASSO, Algorithm 1", _PAPER.format("Algorithm 1"), {"score": scale},
        Budget(epsilon, delta), adjacency, one, count, tied=2,
    )  # fmt: skip


def multinomial(
    n: int,
    steps: int,
    classes: int,
    features: int,
    l1_radius: float,
    lipschitz: float,
    epsilon: float,
    delta: float,
) -> Published:
    """Algorithm 3: Laplace scale lambda L K sqrt(8 T log(K/delta)) / (n epsilon); p selections per iteration.

    One record moves every column, and every column is a selection, so there are p (T - 1) of them. An entry
    of the gradient is at most 1 whatever ``lipschitz`` (2 in the paper) says. The tie pair moves two rows in
    opposite directions, as the softmax can. For two classes all four vertices move; for more, a column of the
    gradient sums to zero over the classes, so vertices that do not move are never far behind: ``column_pair``.
    """
    k, p = whole("classes", classes, low=2), whole("features", features, low=1)
    entry = positive("l1_radius", l1_radius) / whole("n", n, low=1)
    root = math.sqrt(8 * whole("steps", steps, low=2) * (math.log(k) + log_inverse(delta)))
    scale = entry * positive("lipschitz", lipschitz) * k * root / positive("epsilon", epsilon)
    one, rounds = 4 * entry / scale, p * (steps - 1)
    record = selections(
        "Multinomial private LASSO, Theorem 5", _PAPER.format("Theorem 5"), {"score": scale},
        Budget(epsilon, delta), Adjacency.REPLACE_ONE, one, rounds, tied=2,
    )  # fmt: skip
    if k == 2:
        return record
    # Half of the other records are of class 1 and half of class 2, at weights where all of them are misclassified.
    others = entry * (n - 1) / 2 / scale
    return replace(record, attains=partial(_tied_columns, k, one, others, rounds))


def selections(
    name: str, source: str, scales: dict[str, float], claim: Budget, adjacency: Adjacency,
    epsilon_round: float, rounds: int, tied: int, conditions: tuple[Condition, ...] = (),
) -> Published:  # fmt: skip
    """``rounds`` Laplace selections, each epsilon_round-DP; repaired by Gumbel noise of the same scale."""
    return Published(
        name, source, scales, claim, adjacency,
        releases=partial(_laplace_rounds, epsilon_round, rounds),
        attains=partial(_tied_rounds, tied, epsilon_round, rounds),
        repaired=partial(_gumbel_rounds, epsilon_round, rounds), conditions=conditions,
    )  # fmt: skip


def _laplace_rounds(epsilon: float, rounds: int, factor: float) -> Event:
    return Repeated(NoisyMax(epsilon / factor, "laplace"), rounds)


def _tied_rounds(tied: int, epsilon: float, rounds: int, factor: float) -> Event:
    return Repeated(tie_pair(tied, epsilon / factor), rounds)


def _tied_columns(classes: int, epsilon: float, others: float, rounds: int, factor: float) -> Event:
    return Repeated(column_pair(classes, epsilon / factor, others / factor), rounds)


def _gumbel_rounds(epsilon: float, rounds: int, factor: float) -> Event:
    return Repeated(ExponentialMechanism(epsilon / factor), rounds)


def sparsifier_count(lower: float, upper: float, epsilon: float, rounded: bool = False) -> Published:
    """Algorithm 2: noise P(k) ~ exp(-epsilon |k| / (upper - lower)) on a count clipped to [lower, upper].

    Integer noise hides an integer count. A clipping bound that is not an integer stays visible in the
    fractional part of the output, unless the sum is ``rounded``; then the count moves by round(upper) -
    round(lower).
    """
    rounded = flag("rounded", rounded)
    low, high = real("lower", lower, low=0.0), real("upper", upper, low=0.0)
    scale = positive("upper - lower", high - low) / positive("epsilon", epsilon)
    span = round(high) - round(low)
    whole_bounds = low == round(low) and high == round(high)
    event_at = partial(_noisy_count, scale, span) if rounded or whole_bounds else _no_privacy
    return Published(
        "Sparsifier, private count", _PAPER.format("Algorithm 2"), {"count": scale}, Budget(epsilon, 0.0),
        Adjacency.REPLACE_ONE, releases=event_at, attains=event_at,
        conditions=(below("alpha < beta", low, high),),
        missing=(
            Condition("alpha is an integer", low, round(low), low == round(low)),
            Condition("beta is an integer", high, round(high), high == round(high)),
        ),
    )  # fmt: skip


def sparsifier(
    n: int, steps: int, l1_radius: float, lipschitz: float, lower: float, upper: float,
    epsilon_count: float, epsilon_model: float, delta: float, rounded: bool = False, as_coded: bool = False,
) -> Published:  # fmt: skip
    """Theorem 3: the count at epsilon_count and Algorithm 1 at epsilon_model add up to their sum.

    ``as_coded`` is the program in the appendix, whose line 58 computes the count again without the noise: the
    number of nonzeros in the output is then a function of the data alone.
    """
    as_coded = flag("as_coded", as_coded)
    count = sparsifier_count(lower, upper, epsilon_count, rounded)
    model = lasso_frank_wolfe(n, steps, l1_radius, lipschitz, epsilon_model, delta)
    parts = (_no_privacy if as_coded else count.releases, model.releases)
    truth = (_no_privacy if as_coded else count.releases, model.attains or _no_privacy)
    return Published(
        "Sparsifier, Theorem 3", _PAPER.format("Theorem 3"), {**count.scales, **model.scales},
        Budget(epsilon_count + epsilon_model, delta), Adjacency.REPLACE_ONE,
        releases=partial(_together, parts), attains=partial(_together, truth),
        repaired=partial(_together, (count.releases, model.repaired or _no_privacy)),
        conditions=count.conditions, missing=count.missing,
    )  # fmt: skip


def max_abs_scaling(n: int, ordinary: float) -> tuple[float, float]:
    """(real, promised) change of a logistic gradient entry at 0 when features are scaled by their maximum.

    n - 1 records have |x_j| = ordinary and the labels that pull entry j down; one record has x_j = 1.
    Replacing it by an ordinary one divides the feature by ``ordinary`` for everybody. The noise promises 2/n.
    """
    size, n = real("ordinary", ordinary, low=0.0, high=1.0, open_low=True), whole("n", n, low=2)
    before = 0.5 * (1 + (n - 1) * size) / n
    return 0.5 - before, 2 / n


def _noisy_count(scale: float, span: int, factor: float) -> Event:
    return TwoSidedGeometric(span / (scale * factor), span) if span else PureDp(0.0)


def _no_privacy(factor: float) -> Event:
    return NO_PRIVACY


def _together(parts: tuple[EventAt, ...], factor: float) -> Event:
    return Composed(*(part(factor) for part in parts))
