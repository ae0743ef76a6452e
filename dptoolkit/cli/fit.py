"""``dptoolkit fit``: a private model from a file, written to a file."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import check_apart, json_text
from dptoolkit.cli.plan import solver_options
from dptoolkit.cli.progress import stage
from dptoolkit.cli.tables import Table, read_table, table_arguments
from dptoolkit.errors import InvalidValue

# Arguments of a solver that get no option from its signature: the command has its own options for them, or sets them.
_OWN = ("epsilon", "delta", "adjacency", "calibration", "loss", "classes")


def fit_arguments(parser: argparse.ArgumentParser, needs_out: bool = True) -> None:
    """The options of every command that fits models."""
    table_arguments(parser)
    parser.add_argument("--out", required=needs_out, metavar="FILE", help="where the model is written")
    parser.add_argument("--task", required=True, help="classification or regression")
    parser.add_argument("--epsilon", type=float, required=True, help="the budget of the whole fit")
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5; must be well below 1/n")
    parser.add_argument("--adjacency", default="replace-one", help="replace-one (default) or zero-out")
    parser.add_argument("--solver", help="dp-ight, dp-frank-wolfe, ...; --help after it lists its own options")
    labels = "the public labels; default: those found, which are public then"
    parser.add_argument("--classes", type=float, nargs="+", metavar="LABEL", help=labels)
    width = "the public number of columns; default: those found, with a warning"
    parser.add_argument("--n-features", type=int, metavar="D", help=width)
    parser.add_argument("--ledger", metavar="FILE", help="charge this ledger, or be refused by it, before the fit")
    parser.add_argument("--seed", type=int, help="make the fit reproducible, and so not a release")


def solver_arguments(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """The options of the solver on the command line, or of the default one."""
    task, solver = (_value(line, option) for option in ("--task", "--solver"))
    own: list[tuple[str, Any, str]] = []
    # The error for an unknown solver or task is raised when the command runs, so that --help still works.
    with contextlib.suppress(InvalidValue):
        own = solver_options(chosen_solver(task or "classification", solver))
    group = parser.add_argument_group(f"options of {solver or 'the default solver'}")
    for name, kind, text in own:
        if name not in _OWN:
            group.add_argument(
                "--" + name.replace("_", "-"), dest=name, type=kind, default=argparse.SUPPRESS,
                metavar=kind.__name__.upper(), help=text,
            )  # fmt: skip
    if "row_norm" not in {name for name, _, _ in own}:
        text = "Public L2 bound of a row."
        group.add_argument("--row-norm", type=float, default=argparse.SUPPRESS, metavar="FLOAT", help=text)


def _value(line: Sequence[str], option: str) -> str | None:
    """The value of an option on a command line that is not parsed yet."""
    for position, token in enumerate(line):
        if token.startswith(option + "="):
            return token.partition("=")[2]
        if token == option and position + 1 < len(line):
            return line[position + 1]
    return None


def chosen_solver(task: str, solver: str | None) -> str:
    """The name of the solver that the options ask for."""
    from dptoolkit.models import routes

    return routes.solver_name(task, solver)


def _fit(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import models
    from dptoolkit.models import files

    name = chosen_solver(args.task, args.solver)
    check_apart("out", args.out, DATA=args.data, ledger=args.ledger)
    files.check_writable("out", args.out)
    ledger = opened_ledger(args.ledger)
    table = read_table(args, args.n_features)
    options = chosen_options(args, name)
    stage(f"{name} on {table.X.shape[0]:,} rows of {table.X.shape[1]:,} features")
    model = models.fit(
        table.X, table.y, task=args.task, solver=name, classes=args.classes, epsilon=args.epsilon, delta=args.delta,
        adjacency=args.adjacency, rng=args.seed, ledger=ledger, feature_names=table.names, **options,
    )  # fmt: skip
    model = noted_width(model, args, table)
    stage("writing")
    models.save(model, args.out)
    return (json_text(model_record(model, args.out)) if args.json else model_text(model, args.out)), FINE


def chosen_options(args: argparse.Namespace, solver: str) -> dict[str, Any]:
    """The solver's own options that were given."""
    names = {option for option, _, _ in solver_options(solver)} | {"row_norm"}
    return {key: value for key, value in vars(args).items() if key in names - set(_OWN)}


def noted_width(model: Any, args: argparse.Namespace, table: Table) -> Any:
    """The model, whose guarantee says so if its number of columns was read from the data."""
    from dptoolkit.models.notes import WIDTH_NOTE

    return model.with_notes(WIDTH_NOTE) if args.n_features is None and table.names is None else model


def opened_ledger(path: str | None) -> Any:
    """The ledger in a file; None if none is named. A new one would have no budget, and refuse nothing."""
    from dptoolkit.accounting import Ledger

    if path is None:
        return None
    if not Path(path).is_file():
        repair = "Make it with dptoolkit.accounting.Ledger.open(path, epsilon, delta)."
        raise invalid("ledger", path, "the file of a ledger with its budget", repair)
    return Ledger.open(path)


def model_record(model: Any, out: str) -> dict[str, Any]:
    """What ``--json`` prints about a model."""
    classes = None if model.classes is None else model.classes.tolist()
    return {
        "out": out, "task": model.task, "solver": model.solver, "n": model.plan.n, "d": model.n_features,
        "classes": classes, "features_used": int(model.coef.any(axis=0).sum()), "steps": model.steps,
        "plan": model.plan.to_dict(), "guarantee": model.guarantee.to_dict(),
    }  # fmt: skip


def model_text(model: Any, out: str) -> str:
    """What is printed about a model."""
    outlook = "" if model.plan.outlook is None else f"{model.plan.outlook}\n\n"
    return f"{str(model)[1:-1]}\n\n{model.guarantee}\n\n{outlook}The model is in {out}"


COMMAND = Command(
    "Fit a private model to a file, and write it to a file.",
    """\
  dptoolkit fit data.svm --task classification --epsilon 2 --delta 1e-5 --row-norm 1 --out model.json
  dptoolkit fit data.svm --task classification --epsilon 2 --classes -1 1 --n-features 47236 --out model.json
  dptoolkit fit data.svm --task classification --epsilon 2 --solver dp-ight --sparsity 100 --row-norm 1 --out model.json
  dptoolkit fit data.csv --task regression --epsilon 2 --row-norm 1 --label-bound 1 --ledger budget.ledger --out m.json
  dptoolkit fit data.svm --solver dp-ight --help""",
    fit_arguments, _fit, solver_arguments, takes_long=True,
)  # fmt: skip
