"""The terms of a federation: the public file from which the server and every client make the same plan."""

from __future__ import annotations

import functools
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit._validate import invalid, one_of, unheard
from dptoolkit.accounting.ledger.journal import parse
from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.federated import fit
from dptoolkit.federated.plan import FederatedPlan
from dptoolkit.solvers.frame.plan import Plan
from dptoolkit.solvers.frame.secure import noise_kind, secured

FORMAT = "dptoolkit-federation-1"
_FIELDS = {
    "run": str, "solver": str, "sizes": list, "d": int, "randomness": str, "arguments": dict, "fingerprint": str,
}  # fmt: skip


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Within the block, what a file's content leads to is one error that starts with ``what``."""
    try:
        yield
    except InvalidValue as problem:
        words = str(problem)
        raise InvalidValue(words if words.startswith(what) else f"{what} {words}") from None
    except DpToolkitError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as problem:
        raise InvalidValue(f"{what} must be a file as dptoolkit federated wrote it. {problem}") from None


@dataclass(frozen=True)
class Terms:
    """What all participants of one run agree on; there are no data in it.

    Attributes
    ----------
    run : str
        A random name of the run. A second run has another name, is charged again and draws other noise.
    solver : str
        "dp_fed_sgd_ht" or "dp_fed_gd_ht".
    sizes : tuple of int
        The public number of records of every client.
    d : int
        The number of features.
    weights : tuple of float or None
        The shares of the clients in the average.
    randomness : str
        The noise of all clients, "secure" or "fast".
    arguments : mapping
        The solver's arguments.
    fingerprint : str
        That of the plan: whoever makes another plan of the same terms, with another version for example, takes no part.
    source : str, default "terms:"
        Where they were read, for errors.
    """

    run: str
    solver: str
    sizes: tuple[int, ...]
    d: int
    weights: tuple[float, ...] | None
    randomness: str
    arguments: Mapping[str, Any]
    fingerprint: str
    source: str = field(default="terms:", compare=False, repr=False)

    @functools.cached_property
    def plan(self) -> FederatedPlan:
        """The plan, calibrated here: no noise is taken from the file.

        Privacy
        -------
        Touches no data.
        """
        own: dict[str, Any] = {"weights": self.weights, "randomness": self.randomness, **self.arguments}
        with readable(self.source):
            made = fit.plan(self.solver, sizes=self.sizes, d=self.d, **own)
        if made.fingerprint != self.fingerprint:
            repair = "Use the version of dptoolkit that wrote the terms at all participants."
            raise invalid("terms", "another plan than the one that was agreed on", "made by the same program", repair)
        return made

    def to_json(self) -> str:
        """The file's text."""
        record = {
            "format": FORMAT, "run": self.run, "solver": self.solver, "sizes": list(self.sizes), "d": self.d,
            "weights": None if self.weights is None else list(self.weights), "randomness": self.randomness,
            "arguments": dict(self.arguments), "fingerprint": self.fingerprint,
        }  # fmt: skip
        return json.dumps(record, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, what: str = "terms:") -> Terms:
        """The terms in a file's text; errors start with ``what``."""
        wanted = f"must be the terms of a federation, with format {FORMAT!r}."
        record = parse(text, f"{what} {wanted}")
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise InvalidValue(f"{what} {wanted}")
        for name, kind in _FIELDS.items():
            if type(record.get(name)) is not kind:
                raise InvalidValue(f"{what} {name} is missing or not of its type.")
        weights = record.get("weights")
        if weights is not None and type(weights) is not list:
            raise InvalidValue(f"{what} weights is missing or not of its type.")
        with readable(what):
            solver = one_of("solver", record["solver"], fit.PRIVATE)
        return cls(
            record["run"], solver, tuple(record["sizes"]), record["d"], None if weights is None else tuple(weights),
            record["randomness"], record["arguments"], record["fingerprint"], what,
        )  # fmt: skip

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Terms:
        """The terms in a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise invalid("terms", str(path), "a file that dptoolkit federated agree wrote", f"{problem}.") from None
        return cls.from_json(text, f"{path}:")


def agree(
    name: str, *, sizes: Sequence[int], d: int, weights: Any = None, randomness: str | None = None, **arguments: Any
) -> Terms:
    """Terms for a new run, made without any data.

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
        The noise of all clients; None is that of a fit without a seed.
    **arguments : Any
        The solver's own arguments.

    Returns
    -------
    Terms
        To be written to a file that everybody gets.

    Privacy
    -------
    Touches no data.
    """
    if math.isinf(float(arguments.get("epsilon") or 0.0)):
        raise invalid("epsilon", arguments["epsilon"], "finite", "A client sends no message without noise.")
    noise = noise_kind(randomness, None)
    made = fit.plan(name, sizes=sizes, d=d, weights=weights, randomness=noise, **arguments)
    # Arguments as JSON holds them; what follows from them is computed again by everybody.
    asked = fit.settings_of(name, arguments).to_dict()
    own = json.loads(json.dumps({key: asked[key] for key in arguments}, default=_as_list))
    shares = None if weights is None else tuple(float(weight) for weight in weights)
    return Terms(secrets.token_hex(16), name, made.sizes, made.d, shares, noise, own, made.fingerprint)


def _as_list(value: Any) -> Any:
    return np.asarray(value).tolist()


def plan_with_noise(terms: Terms, number: int, scales: Sequence[float]) -> Plan:
    """The plan of one client with noise that it has calibrated before, which takes seconds and is not done again.

    ``scales`` are those of ``noise_scales``.
    """
    settings = fit.settings_of(terms.solver, dict(terms.arguments))
    try:
        with unheard():
            bare = replace(settings, epsilon=math.inf, calibration="tight").plan(terms.sizes[number], terms.d)
    except DpToolkitError as problem:
        raise InvalidValue(f"terms: {problem}") from None
    own: Any = bare.settings
    own = replace(own, epsilon=float(settings.epsilon), calibration=settings.calibration)
    releases = tuple(replace(one, scale=scale) for one, scale in zip(bare.releases, scales, strict=True))
    return secured(Plan(own, bare.n, bare.d, releases), terms.randomness)


def noise_scales(terms: Terms, number: int) -> list[float]:
    """The calibrated noise of one client, before what secure noise adds to it."""
    with unheard():
        plan = fit.settings_of(terms.solver, dict(terms.arguments)).plan(terms.sizes[number], terms.d)
    return [release.scale for release in plan.releases]
