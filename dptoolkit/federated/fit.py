"""Federated fits in one process: the reference for engines that run clients elsewhere."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dptoolkit import marks, progress
from dptoolkit._validate import invalid, one_of, whole
from dptoolkit.accounting import Guarantee, Ledger
from dptoolkit.accounting.report import as_html
from dptoolkit.data import Rows
from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.federated.client import Client, Key, Member
from dptoolkit.federated.cnn_settings import DpFedGdHtCnn, DpFedSgdHtCnn
from dptoolkit.federated.plan import (
    FederatedPlan,
    FederationGuarantee,
    check_sizes,
    client_table,
    plan_of,
    worst,
)
from dptoolkit.federated.server import Server
from dptoolkit.federated.settings import DERIVED, DpFedGdHt, DpFedSgdHt
from dptoolkit.solvers.frame.fit import is_secure, noise_source, stated
from dptoolkit.solvers.frame.run import trace_interval
from dptoolkit.solvers.frame.secure import FAST, noise_kind
from dptoolkit.solvers.frame.settings import build, keywords
from dptoolkit.types import Array

_KINDS: dict[str, Any] = {kind.solver: kind for kind in (DpFedSgdHt, DpFedGdHt, DpFedSgdHtCnn, DpFedGdHtCnn)}
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
        "dp_fed_sgd_ht" or "dp_fed_gd_ht"; for the paper's network "dp_fed_sgd_ht_cnn" or "dp_fed_gd_ht_cnn".
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
        if name in DERIVED | kind.fixed:
            allowed = ", ".join(p.name for p in _own_parameters(kind))
            raise TypeError(f"{kind.solver}() got an unexpected argument {name!r}. It takes {allowed}.")
    return build(kind, arguments)


def _own_parameters(kind: Any) -> list[inspect.Parameter]:
    return [parameter for parameter in keywords(kind) if parameter.name not in DERIVED | kind.fixed]


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
    settings, clients = _settings(kind, arguments), pairs_of(clients)
    data = checked_data(clients, settings.validated_rows, lambda y, n: settings.labels(y, n, label_values), n_features)
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
    server = Server(plan.weights, first.width(plan.d), first.free(plan.d), plan.sparsity, first.start())
    w, history = all_rounds(server, members, first.rounds, every)
    coef, intercept = first.model(w)
    guarantees = tuple(stated(one.guarantee, source, void) for one, void in zip(plan.clients, is_void, strict=True))
    return FederatedResult(coef, intercept, guarantees, worst(guarantees, plan.delta), plan, history)


def all_rounds(server: Server, members: Sequence[Member], rounds: int, every: int) -> tuple[Array, dict[str, Any]]:
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


def checked_data(
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


def pairs_of(clients: Any) -> list[tuple[Any, Any]]:
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
        shown = (
            repr(str(default)) if default is not None and not isinstance(default, (bool, int, float)) else repr(default)
        )
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
dp_fed_sgd_ht_cnn = _private(DpFedSgdHtCnn)
dp_fed_gd_ht_cnn = _private(DpFedGdHtCnn)
