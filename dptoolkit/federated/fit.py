"""Federated fits in one process: the reference for engines that run clients elsewhere."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dptoolkit import marks, progress
from dptoolkit._validate import flag, invalid, one_of, whole
from dptoolkit.accounting import Guarantee, Ledger
from dptoolkit.accounting.events import POISSON
from dptoolkit.accounting.report import as_html
from dptoolkit.data import Rows
from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.federated.client import Client, Key, Member
from dptoolkit.federated.plan import (
    FederatedPlan,
    FederationGuarantee,
    check_sizes,
    client_table,
    plan_of,
    shares,
    worst,
)
from dptoolkit.federated.server import Server
from dptoolkit.federated.settings import DERIVED, ITERATIVE, DpFedGdHt, DpFedSgdHt, FedSgdHt
from dptoolkit.mechanisms.randomness import Source
from dptoolkit.solvers.engine.initial import start_of
from dptoolkit.solvers.frame.fit import is_secure, noise_source, stated
from dptoolkit.solvers.frame.run import trace_interval
from dptoolkit.solvers.frame.secure import FAST, noise_kind
from dptoolkit.solvers.frame.settings import build, keywords
from dptoolkit.types import Array

_KINDS = {kind.solver: kind for kind in (DpFedSgdHt, DpFedGdHt)}
# The names of the private solvers.
PRIVATE = tuple(_KINDS)


@dataclass(frozen=True, repr=False)
class FederatedResult:
    """A model that several clients fitted together.

    Attributes
    ----------
    coef : ndarray
        The weights of the features.
    intercept : float or ndarray
        The intercept; 0 without one.
    guarantees : tuple of Guarantee, or None
        One guarantee per client; None without privacy.
    guarantee : FederationGuarantee or None
        The worst of them; None without privacy.
    plan : FederatedPlan or None
        What every client released; None without privacy.
    history : dict
        Public facts of the run: "iterates", if requested, has (round, support, values) of the server's models.
    """

    coef: Array
    intercept: float | Array
    guarantees: tuple[Guarantee, ...] | None
    guarantee: FederationGuarantee | None
    plan: FederatedPlan | None
    history: dict[str, Any]

    def __repr__(self) -> str:
        head = f"<FederatedResult: {int(np.count_nonzero(self.coef)):,} of {self.coef.size:,} coefficients are not zero"
        return f"{head}; not private>" if self.plan is None else f"{head};\n {self.plan!r}>"

    def __str__(self) -> str:
        if self.plan is None or self.guarantees is None or self.guarantee is None:
            return repr(self)
        clients = client_table(self.plan.clients, self.guarantees, self.plan.weights, self.plan.delta)
        return "\n\n".join([repr(self), clients, str(self.guarantee)])

    def _repr_html_(self) -> str:
        return as_html(str(self))


def plan(
    name: str, *, sizes: Sequence[int], d: int, weights: Any = None, randomness: str | None = None, **arguments: Any
) -> FederatedPlan:
    """The plan of a private federated fit, made without any data: noise, event and guarantee of every client.

    Parameters
    ----------
    name : str
        "dp_fed_sgd_ht" or "dp_fed_gd_ht".
    sizes : sequence of int
        The number of records of every client, which is public.
    d : int
        The number of features, which is public.
    weights : sequence of float or None, default None
        The clients' shares in the average; by default their shares of all records.
    randomness : {"secure", "fast"} or None, default None
        The noise of the clients; see the solver. None is "fast".
    **arguments : Any
        The solver's own arguments, without clients and those of a run (rng, ledgers, ...).

    Returns
    -------
    FederatedPlan
        What every client would release. ``print`` shows it as tables.

    Privacy
    -------
    Touches no data.
    """
    kind = _KINDS[one_of("name", name, tuple(_KINDS))]
    noise = FAST if randomness is None else noise_kind(randomness, None)
    return plan_of(_settings(kind, arguments), check_sizes(sizes), whole("d", d, low=1), weights, noise)


def settings_of(name: str, arguments: dict[str, Any]) -> Any:
    """The settings that all clients of a private solver share."""
    return _settings(_KINDS[one_of("name", name, PRIVATE)], arguments)


def _settings(kind: Any, arguments: dict[str, Any]) -> Any:
    """The settings of every client; fields that follow from others are no arguments."""
    for name in arguments:
        if name in DERIVED:
            allowed = ", ".join(p.name for p in _own_parameters(kind))
            raise TypeError(f"{kind.solver}() got an unexpected argument {name!r}. It takes {allowed}.")
    return build(kind, arguments)


def _own_parameters(kind: Any) -> list[inspect.Parameter]:
    return [parameter for parameter in keywords(kind) if parameter.name not in DERIVED]


def described_parameters(name: str) -> list[tuple[inspect.Parameter, str]]:
    """The settings of a private solver, each with its description."""
    kind = _KINDS[one_of("name", name, tuple(_KINDS))]
    return [(p, kind.__dataclass_fields__[p.name].metadata["text"]) for p in _own_parameters(kind)]


# --- a private fit -------------------------------------------------------------------------------------


def fit(
    kind: Any,
    clients: Any,
    arguments: dict[str, Any],
    *,
    weights: Any = None,
    label_values: Any = None,
    n_features: int | None = None,
    rng: Any = None,
    randomness: str | None = None,
    ledgers: Any = None,
    trace: Any = False,
) -> FederatedResult:
    """One private federated fit: every client's data are checked, all ledgers are charged, then rounds begin.

    Privacy
    -------
    The event of a client is that of its plan, which is made without data. Its ledger is charged before its data are
    used; if one ledger refuses, nobody is charged. A fit that fails later stays charged.
    """
    settings, clients = _settings(kind, arguments), _pairs(clients)
    data = _data(clients, settings.validated_rows, lambda y, n: settings.labels(y, n, label_values), n_features)
    # Where no noise is asked for there is none to make secure.
    noise = noise_kind(randomness, rng) if randomness or not math.isinf(settings.epsilon) else FAST
    plan = plan_of(settings, [rows.shape[0] for rows, _ in data], data[0][0].shape[1], weights, noise)
    every = trace_interval(trace)
    is_void = [marks.is_marked(X, y) for X, y in clients]
    books = _ledgers(ledgers, len(data))
    # A ledger that does not allow seeds refuses one, and noise in doubles alike.
    source = [
        noise_source(rng, ledger, is_secure=is_secure(one)) for ledger, one in zip(books, plan.clients, strict=True)
    ][0]
    # Without noise there is nothing to protect, and batches are those of the solver without privacy.
    owner = plan.fingerprint if plan.is_private else ""
    members = [
        Client(i, plan.clients[i], *data[i], Key.of(source, f"{owner} {i}"), books[i], is_void[i])
        for i in range(len(data))
    ]
    _reserve_all(members)
    first = plan.settings
    server = Server(plan.weights, first.width(plan.d), first.free(plan.d), plan.sparsity, start_of(first.initial))
    w, history = _rounds(server, members, first.rounds, every)
    coef, intercept = first.model(w)
    guarantees = tuple(stated(one.guarantee, source, void) for one, void in zip(plan.clients, is_void, strict=True))
    return FederatedResult(coef, intercept, guarantees, worst(guarantees, plan.delta), plan, history)


def _rounds(server: Server, members: Sequence[Member], rounds: int, every: int) -> tuple[Array, dict[str, Any]]:
    """The weights of the last model, and the history."""
    iterates: list[tuple[int, Any, Array]] = []
    for number, _ in enumerate(progress.steps(rounds), 1):
        support, values = server.combine([member.reply(number, *server.model) for member in members])
        if every and (number % every == 0 or number == rounds):
            iterates.append((number, support, values))
    w = np.zeros(server.width)
    w[server.model[0]] = server.model[1]
    history: dict[str, Any] = {"rounds": rounds}
    return w, history | {"iterates": iterates} if every else history


def _data(
    clients: Sequence[tuple[Any, Any]],
    rows_of: Callable[..., Rows],
    labels_of: Callable[[Any, int], Array],
    n_features: int | None,
) -> list[tuple[Rows, Array]]:
    """Checked rows and labels of every client, all of one width; an error names the client."""
    found: list[tuple[Rows, Array]] = []
    for i, (X, y) in enumerate(clients):
        try:
            rows = rows_of(X, n_features)
            found.append((rows, labels_of(y, rows.shape[0])))
        except InvalidValue as problem:
            raise InvalidValue(f"clients[{i}]: {problem}") from None
        d = found[0][0].shape[1]
        if rows.shape[1] != d:
            repair = "All clients have the same features; n_features adds columns of zeros."
            raise invalid(f"clients[{i}]: X.shape", rows.shape, f"(rows, {d}), as wide as that of clients[0]", repair)
    return found


def _pairs(clients: Any) -> list[tuple[Any, Any]]:
    """(X, y) of every client."""
    if not isinstance(clients, (list, tuple)) or not clients:
        what = clients if isinstance(clients, (list, tuple)) else type(clients).__name__
        raise invalid("clients", what, "a list of (X, y), at least one")
    found = []
    for i, client in enumerate(clients):
        try:
            X, y = client
        except (TypeError, ValueError):
            raise invalid(f"clients[{i}]", type(client).__name__, "a tuple (X, y)") from None
        found.append((X, y))
    return found


def _ledgers(ledgers: Any, count: int) -> list[Ledger | None]:
    if ledgers is None:
        return [None] * count
    if not isinstance(ledgers, (list, tuple)) or len(ledgers) != count:
        what = f"{len(ledgers)} of them" if isinstance(ledgers, (list, tuple)) else type(ledgers).__name__
        raise invalid("ledgers", what, f"None or a list of {count}, one Ledger for every client")
    for i, ledger in enumerate(ledgers):
        if ledger is not None and not isinstance(ledger, Ledger):
            raise invalid(f"ledgers[{i}]", ledger, "a dptoolkit.accounting.Ledger or None")
    return list(ledgers)


def _reserve_all(members: Sequence[Client]) -> None:
    """Charge every client's ledger; if one refuses, the others get theirs back and nothing is charged."""
    for member in members:
        try:
            member.reserve()
        except BaseException as problem:
            for earlier in members[: member.number]:
                earlier.cancel()
            if not isinstance(problem, DpToolkitError):
                raise
            raise type(problem)(f"ledgers[{member.number}]: {problem}") from None


# --- the public functions ------------------------------------------------------------------------------

_CLIENTS = (
    "clients : list of tuple\n    One pair (X, y) per client: an (n_i, d) array or sparse matrix with one row per "
    "record, and their n_i labels."
)
_RUN_PARAMETERS = """weights : sequence of float or None, default None
    The clients' shares in the average, scaled to add up to 1; by default their shares of all records. Public.
label_values : (float, float) or None, default None
    The two labels of a binary loss if they are not 0 and 1, the positive one last. A public convention.
n_features : int or None, default None
    Public number of features: a narrower X gets columns of zeros, a wider one is refused.
rng : None, int or numpy.random.Generator, default None
    Fresh entropy, a seed or a Generator. Every client draws from a stream of its own, which depends on the seed, the
    plan and the client's number. Never publish a seeded fit: whoever guesses the seed can remove the noise.
randomness : {"secure", "fast"} or None, default None
    "secure" makes every client draw its batches and its noise, exact in every digit, from a cryptographic generator of
    its own; it takes no ``rng``. "fast" draws noise in doubles. See docs/secure-noise.md.
ledgers : list of Ledger or None, default None
    One ledger, or None, for every client. All are charged before any data are used; if one refuses, none is charged.
trace : bool or int, default False
    True keeps the server's model of every round, a number k that of every k-th and of the last, in
    history["iterates"] as (round, support, values). The models are released anyway."""
_RETURNS = """Returns
-------
FederatedResult
    The model, one guarantee for every client and the worst of them, the plan, and public facts of the run."""
_RUN = ("weights", "label_values", "n_features", "rng", "randomness", "ledgers", "trace")


def _describe(name: str) -> Iterator[str]:
    for parameter, text in described_parameters(name):
        default = parameter.default
        shown = repr(str(default)) if default is not None and not isinstance(default, (bool, float)) else repr(default)
        ending = "" if default is inspect.Parameter.empty else f", default {shown}"
        yield f"{parameter.name} : {parameter.annotation}{ending}"
        yield textwrap.fill(text, 112, initial_indent="    ", subsequent_indent="    ")


def _private(kind: Any) -> Callable[..., FederatedResult]:
    """The public function of a client's settings: their fields are its keywords."""

    def solve(clients: Any, **arguments: Any) -> FederatedResult:
        run = {name: arguments.pop(name) for name in _RUN if name in arguments}
        return fit(kind, clients, arguments, **run)

    own, frame = _own_parameters(kind), inspect.signature(fit).parameters
    parameters = [frame["clients"], *own, *(frame[name] for name in _RUN)]
    solve.__name__ = solve.__qualname__ = kind.solver
    solve.__module__ = __name__
    solve.__signature__ = inspect.Signature(parameters, return_annotation="FederatedResult")  # type: ignore[attr-defined]
    summary, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    lines = ["Parameters", "----------", _CLIENTS, *_describe(kind.solver), _RUN_PARAMETERS]
    solve.__doc__ = "\n\n".join([summary, "\n".join(lines), _RETURNS, rest])
    return solve


dp_fed_sgd_ht = _private(DpFedSgdHt)
dp_fed_gd_ht = _private(DpFedGdHt)


# --- without privacy -----------------------------------------------------------------------------------


class _Silent(NamedTuple):
    """Stands for a plan, of which a run without noise asks nothing else."""

    noise: float = 0.0


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
    pairs = _pairs(clients)
    data = _data(pairs, settings.validated_rows, lambda y, n: settings.labels(y, n, label_values), n_features)
    d, every, source = data[0][0].shape[1], trace_interval(trace), Source.of(rng)
    members = []
    for i, (rows, y) in enumerate(data):
        own: Any = settings.resolved(rows.shape[0], d)
        make = partial(own.bind, _Silent(), rows, y)
        members.append(Member(i, own, d, make, Key.of(source, f" {i}")))
    sizes = [rows.shape[0] for rows, _ in data]
    server = Server(shares(weights, sizes), settings.width(d), settings.free(d), sparsity)
    w, history = _rounds(server, members, rounds, every)
    return FederatedResult(*settings.model(w), None, None, None, history)
