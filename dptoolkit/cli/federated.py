"""``dptoolkit federated``: one private model from several clients, in this process or on several machines."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptoolkit._validate import invalid, one_of
from dptoolkit.cli import federation
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import check_apart, json_text, stage
from dptoolkit.cli.plan import flag, value_of
from dptoolkit.errors import DpToolkitError, InvalidValue

SOLVERS = ("dp_fed_sgd_ht", "dp_fed_gd_ht")
DELTA = 1e-5


WHAT = {
    "run": "fit all clients in this process",
    "agree": "write the terms of a run on several machines",
    "join": "make the folder of one client",
    "server": "run the server of the terms",
    "client": "take part with a client's folder",
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    words = "; ".join(f"{name}: {text}" for name, text in WHAT.items())
    parser.add_argument("what", metavar="WHAT", help=f"{words}. Each has its own help.")


def _more_arguments(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """The options of what is to be done; those of ``run`` if that is not said."""
    what = next((token for token in line if not token.startswith("-")), "run")
    if what in federation.ARGUMENTS:
        federation.ARGUMENTS[what](parser)
    else:
        _run_arguments(parser)
    if what in ("run", "agree") or what not in WHAT:
        _solver_arguments(parser, line)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", nargs="+", help="LIBSVM text, one file for every client")
    parser.add_argument("--out", metavar="FILE", help="file to which the model is written")
    parser.add_argument("--plan", action="store_true", help="say what would be released, and fit nothing")
    parser.add_argument("--solver", default="dp-fed-sgd-ht", help=federation.SOLVER)
    width = "public number of columns; if omitted, read from the files, with a warning"
    parser.add_argument("--n-features", type=int, metavar="D", help=width)
    parser.add_argument("--label-values", type=float, nargs=2, metavar="LABEL", help=federation.LABELS)
    parser.add_argument("--weights", type=float, nargs="+", metavar="SHARE", help=federation.SHARES)
    books = "one ledger for every client, in the order of DATA; all are charged before the fit, or none"
    parser.add_argument("--ledgers", nargs="+", metavar="FILE", help=books)
    parser.add_argument("--seed", type=int, help="make the fit reproducible, and so not a release")
    parser.add_argument("--randomness", metavar="KIND", help=federation.NOISE)
    parser.add_argument("--max-bytes", type=int, metavar="N", help="refuse a file that unpacks to more, default 2 GiB")


def _solver_arguments(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """The options of the solver on the command line, or of the default one."""
    given = value_of(line, "--solver") or SOLVERS[0]
    name = given.replace("-", "_")
    if name not in SOLVERS:
        if {"-h", "--help"} & set(line):
            return
        raise InvalidValue(f"--solver {given}: must be dp-fed-sgd-ht or dp-fed-gd-ht.")
    from dptoolkit.federated.fit import described_parameters

    group = parser.add_argument_group(f"options of {name.replace('_', '-')}")
    for parameter, text in described_parameters(name):
        if parameter.name == "initial":
            continue
        words = text.replace("%", "%%")
        own: dict[str, Any] = {"default": argparse.SUPPRESS, "required": parameter.default is inspect.Parameter.empty}
        if parameter.name == "delta":
            own, words = {"default": DELTA}, f"{words} Default: {DELTA:g}."
        elif parameter.default not in (inspect.Parameter.empty, None):
            words = f"{words} Default: {parameter.default}."
        kind = _kind(str(parameter.annotation))
        option = "--" + parameter.name.replace("_", "-")
        group.add_argument(option, dest=parameter.name, type=kind, metavar=kind.__name__.upper(), help=words, **own)


def _kind(annotation: str) -> Any:
    kinds = (("bool", flag), ("int", int), ("float", float))
    return next((kind for word, kind in kinds if word in annotation), str)


def _federated(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import federated
    from dptoolkit.models import files

    one_of("what", args.what, tuple(WHAT))
    if args.what in federation.RUN:
        return federation.RUN[args.what](args)
    name = args.solver.replace("-", "_")
    if args.out is None and not args.plan:
        raise invalid("out", None, "given", "It is where the model is written; or use --plan.")
    if not args.plan:
        for path in (*args.data, *(args.ledgers or ())):
            check_apart("out", args.out, DATA=path)
        files.check_writable("out", args.out)
    _check_disjoint(args.data)
    ledgers = _ledgers(args)
    options = federation.solver_options(args)
    clients = [_client(path, args) for path in args.data]
    try:
        if args.plan:
            sizes, widths = [X.shape[0] for X, _ in clients], {X.shape[1] for X, _ in clients}
            if len(widths) > 1:
                raise invalid("n_features", None, f"given where files have {sorted(widths)} columns")
            plan = federated.plan(name, sizes=sizes, d=widths.pop(), weights=args.weights, **options)
            return (
                json_text(federation.described(plan, plan.guarantees, plan.guarantee)) if args.json else str(plan)
            ), FINE
        stage(f"{name} on {len(clients)} clients")
        result = getattr(federated, name)(
            clients, weights=args.weights, label_values=None if args.label_values is None else tuple(args.label_values),
            rng=args.seed, randomness=args.randomness, ledgers=ledgers, **options,
        )  # fmt: skip
    except DpToolkitError as problem:
        raise _with_files(problem, args) from None
    return federation.written(args, result), FINE


def _check_disjoint(paths: Sequence[str]) -> None:
    """Refuse one file for two clients, as the worst client's guarantee is not that of a record which both release."""
    seen: set[Path] = set()
    for path in paths:
        if (place := Path(path).resolve()) in seen:
            raise invalid("DATA", path, "given once", "A record of two clients has both of their events composed.")
        seen.add(place)


def _client(path: str, args: argparse.Namespace) -> tuple[Any, Any]:
    from dptoolkit.datasets import read_libsvm

    stage(f"reading {Path(path).name}")
    limit = {} if args.max_bytes is None else {"max_bytes": args.max_bytes}
    X, y = read_libsvm(path, args.n_features, **limit)
    return X, y


def _ledgers(args: argparse.Namespace) -> list[Any] | None:
    from dptoolkit.accounting import Ledger

    if args.ledgers is None:
        return None
    if args.seed is not None:
        repair = "Whoever guesses the seed can take the noise off again, so such a fit is not a release."
        raise invalid("seed", args.seed, "left out with --ledgers", repair)
    for path in args.ledgers:
        if not Path(path).is_file():
            repair = f"Make it with dptoolkit ledger new {path} --epsilon E --delta D."
            raise invalid("ledgers", path, "the file of a ledger with its budget", repair)
    return [Ledger.open(path) for path in args.ledgers]


def _with_files(problem: DpToolkitError, args: argparse.Namespace) -> DpToolkitError:
    """The same error with files in place of the numbers of clients and ledgers."""
    words = str(problem)
    for name, paths in (("clients", args.data), ("ledgers", args.ledgers or ())):
        for i, path in enumerate(paths):
            words = words.replace(f"{name}[{i}]", str(path))
    return type(problem)(words)


COMMAND = Command(
    "Fit one private model to the records of several clients, each with its own noise and guarantee.",
    """\
  dptoolkit federated run a.svm b.svm c.svm --loss logistic --label-values -1 1 --n-features 20 --sparsity 5 \\
      --rounds 10 --local-steps 5 --step-size 1 --grad-norm 1 --rate 0.1 --epsilon 4 --out model.json
  dptoolkit federated run a.svm b.svm --solver dp-fed-gd-ht --loss squared --n-features 20 --sparsity 5 --rounds 10 \\
      --local-steps 1 --step-size 1 --grad-norm 1 --epsilon 4 --ledgers a.ledger b.ledger --out model.json
  dptoolkit federated agree --sizes 400 150 --n-features 20 --loss squared --sparsity 5 --rounds 10 --local-steps 5 \\
      --step-size 1 --grad-norm 1 --rate 0.1 --epsilon 4 --out terms.json
  dptoolkit federated join terms.json a.svm --client 0 --folder a --ledger a.ledger
  dptoolkit federated server terms.json --port 9092 --out model.json
  dptoolkit federated client a --server 127.0.0.1:9092
  dptoolkit federated run --solver dp-fed-gd-ht --help""",
    _arguments, _federated, _more_arguments, takes_long=True,
)  # fmt: skip
