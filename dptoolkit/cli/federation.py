"""``dptoolkit federated agree | join | server | client``: one federated fit on several machines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.cli.command import FINE
from dptoolkit.cli.output import check_apart, json_text, say, stage
from dptoolkit.errors import InvalidValue

FORMAT = "dptoolkit-federated-1"
SOLVER = "dp-fed-sgd-ht (default) or dp-fed-gd-ht"
LABELS = "the two labels of a binary loss, the positive one last; default 0 1"
SHARES = "shares of the clients in the average; default: of their numbers of records"
NOISE = "secure or fast noise of every client; default: that of dptoolkit fit"
_LOG = "folder for what Flower prints; default: nowhere"


# --- agree ---------------------------------------------------------------------------------------------


def _agree_arguments(parser: argparse.ArgumentParser) -> None:
    sizes = "public number of records of every client"
    parser.add_argument("--sizes", type=int, nargs="+", required=True, metavar="N", help=sizes)
    parser.add_argument("--n-features", type=int, required=True, metavar="D", help="public number of columns")
    parser.add_argument("--out", required=True, metavar="FILE", help="file to which the terms are written")
    parser.add_argument("--solver", default="dp-fed-sgd-ht", help=SOLVER)
    parser.add_argument("--weights", type=float, nargs="+", metavar="SHARE", help=SHARES)
    parser.add_argument("--randomness", metavar="KIND", help=NOISE)


def _agree(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import federated
    from dptoolkit.models import files

    files.check_writable("out", args.out)
    name = args.solver.replace("-", "_")
    terms = federated.agree(
        name, sizes=args.sizes, d=args.n_features, weights=args.weights, randomness=args.randomness,
        **solver_options(args),
    )  # fmt: skip
    with files.replaced(args.out) as path:
        path.write_text(terms.to_json(), encoding="utf-8")
    plan = terms.plan
    if args.json:
        return json_text({"out": args.out, "run": terms.run} | described(plan, plan.guarantees, plan.guarantee)), FINE
    return f"{plan}\n\nThe terms of run {terms.run} are in {args.out}. Send this file to all clients.", FINE


# --- join ----------------------------------------------------------------------------------------------


def _join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("terms", metavar="TERMS", help="the terms, a file that dptoolkit federated agree wrote")
    parser.add_argument("data", metavar="DATA", help="LIBSVM text, the records of this client")
    parser.add_argument("--client", type=int, required=True, metavar="I", help="number of this client, from 0")
    parser.add_argument("--folder", required=True, help="folder to make, for this run alone; it holds records and key")
    parser.add_argument("--ledger", metavar="FILE", help="ledger that is charged before the first round is answered")
    parser.add_argument("--label-values", type=float, nargs=2, metavar="LABEL", help=LABELS)
    parser.add_argument("--seed", type=int, help="make the noise reproducible, and so not private")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="refuse a file that unpacks to more, default 2 GiB")


def _join(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit.datasets import read_libsvm
    from dptoolkit.federated import ClientFolder

    terms = _terms(args.terms)
    if args.ledger is not None and not Path(args.ledger).is_file():
        repair = f"Make it with dptoolkit ledger new {args.ledger} --epsilon E --delta D."
        raise invalid("ledger", args.ledger, "the file of a ledger with its budget", repair)
    if args.ledger is not None and args.seed is not None:
        repair = "Whoever guesses the seed can take the noise off again, so such a fit is not a release."
        raise invalid("seed", args.seed, "left out with --ledger", repair)
    stage(f"reading {Path(args.data).name}")
    limit = {} if args.max_bytes is None else {"max_bytes": args.max_bytes}
    X, y = read_libsvm(args.data, terms.d, **limit)
    values = None if args.label_values is None else tuple(args.label_values)
    try:
        client = ClientFolder.create(
            args.folder, terms, args.client, X, y, label_values=values, ledger=args.ledger, rng=args.seed
        )
    except InvalidValue as problem:
        words = str(problem)
        raise InvalidValue(f"{args.data}: {words}" if words.startswith(("X", "y")) else words) from None
    if args.json:
        return json_text({"folder": args.folder, "client": args.client, "run": terms.run} | client.plan.to_dict()), FINE
    ending = f"The folder {args.folder} is for run {terms.run} alone. Nothing is charged before its first round."
    return f"{client.plan}\n\n{ending}", FINE


# --- server --------------------------------------------------------------------------------------------


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("terms", metavar="TERMS", help="the terms, a file that dptoolkit federated agree wrote")
    parser.add_argument("--out", required=True, metavar="FILE", help="file to which the model is written")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at, default 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="port to listen at, default any that is free")
    wait = "seconds until all clients must have appeared, default 300"
    parser.add_argument("--wait", type=float, default=300.0, metavar="SECONDS", help=wait)
    timeout = "seconds that a round may take, default 300"
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help=timeout)
    files = "PEM files of the server's certificate, its key and the authority; needed for other machines"
    parser.add_argument("--certificates", nargs=3, metavar="FILE", help=files)
    parser.add_argument("--log", metavar="FOLDER", help=_LOG)


def _server(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit.federated import flower
    from dptoolkit.models import files

    check_apart("out", args.out, TERMS=args.terms)
    files.check_writable("out", args.out)
    _terms(args.terms)
    words: list[str] = []
    flower.serve(
        args.terms, host=args.host, port=args.port, wait=args.wait, timeout=args.timeout,
        certificates=args.certificates, log=args.log, say=_teller(args),
        keep=lambda result: words.append(written(args, result)),
    )  # fmt: skip
    return words[0], FINE


# --- client --------------------------------------------------------------------------------------------


def _client_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the client's folder, which dptoolkit federated join made")
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="address of the server")
    authority = "PEM file of the authority that signed the server's certificate; needed for other machines"
    parser.add_argument("--authority", metavar="FILE", help=authority)
    parser.add_argument("--log", metavar="FOLDER", help=_LOG)
    again = "take part although the run is over, for a server that has lost its model; nothing is charged again"
    parser.add_argument("--again", action="store_true", help=again)


def _client(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit.federated import flower

    count = flower.attend(
        args.folder, args.server, authority=args.authority, log=args.log, say=_teller(args), again=args.again
    )
    if args.json:
        return json_text({"folder": args.folder, "rounds": count}), FINE
    return f"The run is over: {count} rounds were answered.", FINE


# --- what several of them need -------------------------------------------------------------------------


def _teller(args: argparse.Namespace) -> Callable[[str], None]:
    """Shows the words that a user waits for, such as the server's address, also where there is no terminal."""
    return (lambda words: None) if args.quiet else say


def _terms(path: str) -> Any:
    from dptoolkit.federated import Terms

    return Terms.read(path)


def solver_options(args: argparse.Namespace) -> dict[str, Any]:
    """The solver's own arguments on the command line."""
    from dptoolkit.federated.fit import described_parameters

    names = {parameter.name for parameter, _ in described_parameters(args.solver.replace("-", "_"))}
    return {key: value for key, value in vars(args).items() if key in names}


def written(args: argparse.Namespace, result: Any) -> str:
    """Write the model to the file of ``--out``; the text that says so."""
    from dptoolkit.models import files

    record = _model(result) | described(result.plan, result.guarantees, result.guarantee)
    with files.replaced(args.out) as path:
        path.write_text(json_text(record), encoding="utf-8")
    return json_text({"out": args.out} | record) if args.json else f"{result}\n\nThe model is in {args.out}"


def _model(result: Any) -> dict[str, Any]:
    flat = result.coef.ravel()
    places = flat.nonzero()[0]
    intercept = result.intercept if isinstance(result.intercept, float) else result.intercept.tolist()
    coef = {"shape": list(result.coef.shape), "places": places.tolist(), "values": flat[places].tolist()}
    return {"format": FORMAT, "coef": coef, "intercept": intercept}


def described(plan: Any, guarantees: Any, guarantee: Any) -> dict[str, Any]:
    """The plan and its guarantees, for JSON."""
    own = [one.to_dict() for one in guarantees]
    return {"plan": plan.to_dict(), "guarantees": own, "guarantee": guarantee.to_dict()}


ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "agree": _agree_arguments,
    "join": _join_arguments,
    "server": _server_arguments,
    "client": _client_arguments,
}
RUN: dict[str, Callable[[argparse.Namespace], tuple[str, int]]] = {
    "agree": _agree,
    "join": _join,
    "server": _server,
    "client": _client,
}
