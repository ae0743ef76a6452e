"""An e-process against a whole privacy profile: wealth that can hardly grow unless the claim is false.

For any event A and eps >= 0 a true claim has P_1(A) - e^eps P_0(A) <= delta(eps), and the same with the worlds swapped.
With a fair secret bit that is a bet: stake on "bit is first and A", pay on "bit is second and A". Wealth is a mixture
of such bets at many thresholds and epsilons, weighted by what would have grown fastest on the PAST trials. A player of
fair games cannot expect to grow rich: P(wealth ever reaches 1/alpha) <= alpha if the claim is true, at any stopping
time (Ville). So the process may be watched and stopped, and bets, thresholds and attack learned on the way.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from dptoolkit.audit.claims import Claim
from dptoolkit.audit.statistics import coin_log_wealth
from dptoolkit.types import Array

# The modes of an audit: it ends after a number of trials or seconds, or as soon as it has its evidence.
FIXED, SEQUENTIAL = "fixed", "sequential"

_QUANTILES = np.array([0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.94, 0.97, 0.99, 0.997])
# Shares of the claimed epsilon at which bets are placed.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Rounds of learning and their step size: larger steps overshoot where the worlds are far apart.
_ROUNDS, _SPEED = 100, 10.0
# Bets start from this many imagined trials of a mechanism with about twice the claim's total variation.
_IMAGINED, _TWICE = 500.0, 1.9
_LOOKS = 4096
# The first trials teach the first attack and bets, which are learned again whenever the trials have doubled: an attack
# from the outputs of at most MEMORY trials, bets from the scores of at most LESSONS.
FIRST, MEMORY, LESSONS = 100, 20_000, 500_000


@lru_cache(maxsize=64)
def _bet_table(edges: int, epsilons: tuple[float, ...], deltas: tuple[float, ...]) -> Array:
    """(bets, cells) returns of unit stakes, never negative; cell 2c + b is score bin c with bit b.

    The first bet keeps the money. A bet on an event A loses everything if A happens and the bit is "second"; a
    threshold guess loses everything if it is wrong.
    """
    bins = np.arange(edges + 1)
    table: list[Array] = [np.ones(2 * (edges + 1))]
    for edge in range(edges):
        above = bins > edge
        guess = np.stack([~above, above], axis=1).reshape(-1)
        table.append(np.where(guess, 2 / (1 + deltas[0]), 0.0))
        for eps, delta in zip(epsilons, deltas, strict=True):
            if delta < 1:
                table += [_event_bet(above, 1, eps, delta), _event_bet(~above, 0, eps, delta)]
    returns = np.array(table)
    # The cache returns the same array to the next audit of this claim, so it must not be changed.
    returns.setflags(write=False)
    return returns


def _event_bet(event: NDArray[np.bool_], world: int, epsilon: float, delta: float) -> Array:
    """1 + stake (X - delta) with X = 2 [bit is world, A] - 2 e^eps [bit is not, A], at the largest stake."""
    payoff = np.zeros((len(event), 2))
    payoff[event, world], payoff[event, 1 - world] = 2.0, -2.0 * math.exp(epsilon)
    return (1 + (payoff - delta) / (2 * math.exp(epsilon) + delta)).reshape(-1)


def _fastest(returns: Array, counts: Array) -> Array:
    """Weights that nearly maximise the mean log return over ``counts`` of cells, by exponentiated gradients.

    Cover's own iteration is the case of speed 1; where returns are close to 1 it hardly moves.
    """
    weights = np.full(len(returns), 1 / len(returns))
    share = counts / counts.sum()
    for _ in range(_ROUNDS):
        weights = weights * np.exp(np.clip(_SPEED * (returns @ (share / (weights @ returns)) - 1), -20, 20))
        weights /= weights.sum()
    return weights


def _imagined(counts: Array, variation: float) -> Array:
    """The probabilities of the cells if scores were Gaussian with about twice the claim's total variation.

    ``counts`` gives the sizes of the bins. Any assumption is valid here, as it is fixed before the trials it is for.
    """
    size = counts.reshape(-1, 2).sum(axis=1)
    quantile = np.clip((np.cumsum(size) - 0.5 * size) / size.sum(), 1e-6, 1 - 1e-6)
    mu = 2 * float(ndtri((1 + min(_TWICE * variation, 0.9)) / 2))
    first = expit(mu * ndtri(quantile) * math.sqrt(1 + mu * mu / 4))
    return np.stack([size * (1 - first), size * first], axis=1).reshape(-1) / size.sum()


class Wealth:
    """The wealth of a player who bets against a claim, trial by trial."""

    def __init__(self, claim: Claim, alpha: float) -> None:
        self._target = -math.log(alpha)
        self._variation = min(claim.delta(0.0), 1.0)
        reference = claim.reference_delta or 1e-5
        top = claim.epsilon(0.0) if claim.reference_delta == 0 else claim.epsilon(reference)
        self._epsilons = tuple(share * (top if math.isfinite(top) else 1.0) for share in _SHARES)
        self._deltas = tuple(min(claim.delta(e), 1.0) for e in self._epsilons)
        self._edges: Array | None = None
        self._factors = np.zeros(0)
        self._portfolio = 0.0
        self._wins = self._games = 0
        # Log wealth now, and when it first reached 1/alpha: both are stopping times, so exp of either is an e-value.
        self.log_now = self.log_crossing = 0.0
        self.crossed_at: int | None = None

    @property
    def bets(self) -> tuple[Array, Array]:
        """Edges of the bins of scores, and log returns by cell, 2 * bin + bit, of the bets now placed."""
        assert self._edges is not None
        return self._edges, self._factors

    def learn(self, scores: Array, bits: NDArray[np.int8]) -> None:
        """Choose thresholds and weights for the coming trials from past ones."""
        edges = np.unique(np.quantile(scores, _QUANTILES, method="nearest"))
        returns = _bet_table(len(edges), self._epsilons, self._deltas)
        counts = np.bincount(_cells(scores, bits, edges), minlength=returns.shape[1]).astype(float)
        # After few trials much of the money is kept out of the bets, and no cell is taken to be impossible.
        caution = min(1.0, 6.0 / math.sqrt(len(scores) + _IMAGINED))
        thought = counts + _IMAGINED * _imagined(counts, self._variation) + 1 / len(counts)
        weights = (1 - caution) * _fastest(returns, thought)
        weights[0] += caution
        self._edges, self._factors = edges, np.log(np.maximum(weights @ returns, 1e-300))

    def bet(self, scores: Array, bits: NDArray[np.int8], correct: NDArray[np.bool_]) -> Array:
        """Play these trials; returns log wealth at the times looked at. ``correct``: which guesses were right."""
        assert self._edges is not None
        # Checking the wealth at some of the times only is as valid, and saves most of the work on long blocks.
        times = np.unique(np.linspace(0, len(scores) - 1, _LOOKS).astype(int)) if len(scores) else np.zeros(0, int)
        portfolio = self._portfolio + np.cumsum(self._factors[_cells(scores, bits, self._edges)])[times]
        games = self._games + 1 + times
        wins = self._wins + np.cumsum(correct, dtype=np.int64)[times]
        coin = coin_log_wealth(wins, games, (1 + self._variation) / 2)
        # At the start half of the money was put on each of the two strategies, so wealth is the mean of theirs.
        path = np.logaddexp(portfolio, coin) - math.log(2)
        if len(path):
            self.log_now, crossed = float(path[-1]), path >= self._target
            if self.crossed_at is None and crossed.any():
                self.log_crossing = float(path[np.argmax(crossed)])
                self.crossed_at = int(games[np.argmax(crossed)])
            self._portfolio, self._games, self._wins = float(portfolio[-1]), int(games[-1]), int(wins[-1])
        return path


def _cells(scores: Array, bits: NDArray[np.int8], edges: Array) -> NDArray[np.int64]:
    return np.asarray(2 * np.searchsorted(edges, scores, side="right") + bits, dtype=np.int64)
