"""Federated fits without privacy: nothing is clipped, unless asked for, and no noise is drawn."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

from dptoolkit._validate import flag
from dptoolkit.accounting.events import POISSON
from dptoolkit.federated.client import Key, Member
from dptoolkit.federated.cnn_settings import FedSgdHtCnn
from dptoolkit.federated.fit import FederatedResult, all_rounds, checked_data, pairs_of
from dptoolkit.federated.plan import shares
from dptoolkit.federated.server import Server
from dptoolkit.federated.settings import ITERATIVE, FedSgdHt
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.frame.run import trace_interval


class _Silent(NamedTuple):
    """Stands for a plan, of which a run without noise asks nothing else."""

    noise: float = 0.0
    secure: None = None


def fed_sgd_ht(
    clients: Any,
    *,
    loss: str,
    sparsity: int,
    rounds: int,
    local_steps: int,
    step_size: float,
    rate: float,
    sampling: str = POISSON,
    threshold: str = ITERATIVE,
    classes: int | None = None,
    fit_intercept: bool = False,
    weights: Any = None,
    label_values: Any = None,
    n_features: int | None = None,
    rng: Any = None,
    trace: bool | int = False,
) -> FederatedResult:
    """Federated stochastic hard thresholding without privacy: ``dp_fed_sgd_ht`` without clipping and without noise.

    Parameters
    ----------
    clients : list of tuple
        One pair (X, y) per client.
    loss : str
        As for ``dp_fed_sgd_ht``, and so are all others.
    sparsity : int
        Number of features that are kept; for softmax the number of weights.
    rounds : int
        Number of rounds.
    local_steps : int
        Number of steps of a client in a round.
    step_size : float
        Length of a local step.
    rate : float
        Share of a client's records in a batch.
    sampling : str, default "poisson"
        "poisson" or "without-replacement".
    threshold : str, default "iterative"
        "iterative" or "server".
    classes : int or None, default None
        Number of classes, for softmax.
    fit_intercept : bool, default False
        Add a column of ones.
    weights : sequence of float or None, default None
        The clients' shares in the average; by default their shares of all records.
    label_values : (float, float) or None, default None
        The two labels of a binary loss if they are not 0 and 1, the positive one last.
    n_features : int or None, default None
        Number of features.
    rng : None, int or numpy.random.Generator, default None
        Fresh entropy, a seed or a Generator, from which batches are drawn.
    trace : bool or int, default False
        Which of the server's models to keep in history["iterates"].

    Returns
    -------
    FederatedResult
        The model; its guarantees and its plan are None.

    Privacy
    -------
    NOT private: no record is bounded and no noise is drawn, so one record can change the whole model.
    """
    settings = FedSgdHt(
        loss=loss,
        sparsity=sparsity,
        rounds=rounds,
        local_steps=local_steps,
        step_size=step_size,
        rate=rate,
        sampling=sampling,
        threshold=threshold,
        classes=classes,
        fit_intercept=flag("fit_intercept", fit_intercept),
    )
    return _open_fit(settings, clients, weights, label_values, n_features, rng, trace)


def _open_fit(
    settings: Any, clients: Any, weights: Any, label_values: Any, n_features: int | None, rng: Any, trace: Any
) -> FederatedResult:
    """A fit without noise.

    Privacy
    -------
    NOT private.
    """
    pairs = pairs_of(clients)
    data = checked_data(pairs, settings.validated_rows, lambda y, n: settings.labels(y, n, label_values), n_features)
    d, every, source = data[0][0].shape[1], trace_interval(trace), Source.of(rng)
    members = []
    for i, (rows, y) in enumerate(data):
        own: Any = settings.resolved(rows.shape[0], d)
        make = partial(own.bind, _Silent(), rows, y)
        members.append(Member(i, own, d, make, Key.of(source, f" {i}")))
    sizes = [rows.shape[0] for rows, _ in data]
    first: Any = members[0].settings
    server = Server(shares(weights, sizes), settings.width(d), settings.free(d), settings.sparsity, first.start())
    w, history = all_rounds(server, members, settings.rounds, every)
    coef, intercept = settings.model(w)
    return FederatedResult(coef, intercept, None, None, None, history)


def fed_sgd_ht_cnn(
    clients: Any,
    *,
    sparsity: int,
    rounds: int,
    local_steps: int,
    step_size: float,
    rate: float,
    grad_norm: float = math.inf,
    sampling: str = POISSON,
    threshold: str = ITERATIVE,
    initial_seed: int = 0,
    weights: Any = None,
    rng: Any = None,
    trace: bool | int = False,
) -> FederatedResult:
    """Federated learning of the paper's network without privacy: ``dp_fed_sgd_ht_cnn`` without noise.

    Parameters
    ----------
    clients : list of tuple
        One pair (X, y) per client: images of 784 pixels, and their classes.
    sparsity : int
        Number of the 44,426 weights that are kept.
    rounds : int
        Number of rounds.
    local_steps : int
        Number of steps of a client in a round.
    step_size : float
        Length of a local step.
    rate : float
        Share of a client's records in a batch.
    grad_norm : float, default inf
        The L2 norm to which each record's gradient is clipped; by default none is.
    sampling : str, default "poisson"
        "poisson" or "without-replacement".
    threshold : str, default "iterative"
        "iterative" or "server".
    initial_seed : int, default 0
        Seed of the weights to start from.
    weights : sequence of float or None, default None
        The clients' shares in the average; by default their shares of all records.
    rng : None, int or numpy.random.Generator, default None
        Fresh entropy, a seed or a Generator, from which batches are drawn.
    trace : bool or int, default False
        Which of the server's models to keep in history["iterates"].

    Returns
    -------
    FederatedResult
        The model; its guarantees and its plan are None.

    Privacy
    -------
    NOT private: no noise is drawn.
    """
    settings = FedSgdHtCnn(
        sparsity=sparsity,
        rounds=rounds,
        local_steps=local_steps,
        step_size=step_size,
        rate=rate,
        grad_norm=grad_norm,
        sampling=sampling,
        threshold=threshold,
        initial_seed=initial_seed,
    )
    return _open_fit(settings, clients, weights, None, None, rng, trace)
