"""``dptoolkit fit``: a private model from a file, written to a file."""

from __future__ import annotations

import argparse
import math
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.cli.bounds import with_indicators
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import check_apart, json_text, say, stage
from dptoolkit.cli.plan import chosen_options, chosen_solver, refuse_classes, route_arguments, value_of
from dptoolkit.cli.tables import Table, check_labels, classes_of, fit_table_arguments, listed, read_table
from dptoolkit.errors import InvalidValue


def fit_arguments(parser: argparse.ArgumentParser, needs_out: bool = True) -> None:
    """The options of every command that fits models."""
    fit_table_arguments(parser)
    parser.add_argument("--out", required=needs_out, metavar="FILE", help="file for the model")
    parser.add_argument("--task", required=True, help="classification or regression")
    parser.add_argument("--epsilon", type=float, required=True, help="budget of the whole fit")
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5; must be well below 1/n")
    parser.add_argument("--adjacency", default="replace-one", help="replace-one (default) or zero-out")
    parser.add_argument("--solver", help="solver, such as dp-ight; --help after it lists its options")
    labels = "public class labels; if omitted, labels found in the file are published"
    parser.add_argument("--classes", nargs="+", metavar="LABEL", help=labels)
    width = "public number of columns; if omitted, read from the file, with a warning"
    parser.add_argument("--n-features", type=int, metavar="D", help=width)
    parser.add_argument("--ledger", metavar="FILE", help="ledger to charge before the fit; it may refuse")
    parser.add_argument("--seed", type=int, help="make the fit reproducible, for tests; never publish such a model")
    noise = "secure or fast; default: secure, and fast with --seed; see docs/secure-noise.md"
    parser.add_argument("--randomness", metavar="KIND", help=noise)


def solver_arguments(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """The options of the solver on the command line, or of the default one."""
    route_arguments(parser, value_of(line, "--task"), value_of(line, "--solver"))


def _fit(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import models
    from dptoolkit.models import files

    name = chosen_solver(args.task, args.solver)
    refuse_classes(args)
    check_apart("out", args.out, DATA=args.data, ledger=args.ledger)
    files.check_writable("out", args.out)
    ledger = opened_ledger(args)
    table = read_table(args, args.n_features)
    options, found = with_indicators(chosen_options(args, name), table), found_classes(args, table)
    check_plan(args, table, name, found, options, ledger)
    announce(args, table, found)
    classes = classes_of(args.classes)
    stage(f"{name} on {table.X.shape[0]:,} rows of {table.X.shape[1]:,} features")
    model = models.fit(
        table.X, table.y, task=args.task, solver=name, classes=classes, epsilon=args.epsilon, delta=args.delta,
        adjacency=args.adjacency, rng=args.seed, randomness=args.randomness, ledger=ledger, feature_names=table.names,
        **options,
    )  # fmt: skip
    model = noted(model, args, table)
    stage("writing")
    models.save(model, args.out)
    return (json_text(model_record(model, args.out)) if args.json else model_text(model, args.out)), FINE


def found_classes(args: argparse.Namespace, table: Table) -> list[Any]:
    """The labels in the file that a fit without --classes publishes; none if they are declared, or not classes."""
    from dptoolkit.models import fitting

    if args.task != "classification":
        return []
    if args.classes is not None:
        check_labels(table, classes_of(args.classes), "of --classes")
        return []
    try:
        return list(fitting.class_set(table.y, None).tolist())
    except InvalidValue as problem:
        if not str(problem).startswith("y="):
            raise
        # The library's words name its own arguments.
        bound = f"hold text or integers, at most {fitting.MOST_CLASSES} different ones, or be declared with --classes"
        another = "Use" if table.columns is None else "Choose another --label, or use"
        reason = f"All labels are published with the model. {another} --task regression."
        raise InvalidValue(f"{_label(args, table)}: must {bound}. {reason}") from None


def _label(args: argparse.Namespace, table: Table) -> str:
    """The column of labels, as the command line names it."""
    if table.columns is None:
        return "the labels"
    default = " (the last column)" if args.label is None else ""
    return f"--label {shlex.quote(str(table.columns.label))}{default}"


def check_plan(
    args: argparse.Namespace, table: Table, solver: str, found: list[Any], options: dict[str, Any], ledger: Any
) -> None:
    """Refuse options with which no fit can be planned or paid for, before anything is said or used."""
    from dptoolkit import models
    from dptoolkit.models import routes
    from dptoolkit.solvers.frame.secure import FAST, noise_kind

    (n, d), count = table.X.shape, len(found or set(args.classes or ()))
    kind = noise_kind(args.randomness, args.seed, "seed")
    # Where no noise is asked for there is none to make secure.
    is_plain = args.randomness is None and math.isinf(args.epsilon)
    with warnings.catch_warnings():
        # The fit gives the same warnings.
        warnings.simplefilter("ignore")
        plan = models.plan(
            n, d, task=args.task, solver=solver, classes=count or None, epsilon=args.epsilon, delta=args.delta,
            adjacency=args.adjacency, randomness=FAST if is_plain else kind,
            **routes.declared_bounds(options, d, table.names),
        )  # fmt: skip
    if ledger is not None:
        ledger.check(plan.event, adjacency=plan.adjacency)


def announce(args: argparse.Namespace, table: Table, found: list[Any]) -> None:
    """Say on stderr, before the fit, what the command line left open and the file decides."""
    if table.columns is not None and args.label is None:
        say(f"note: the label is {_label(args, table)}.")
    if found:
        say(
            "warning: no --classes: the labels in the file will be published as the classes of the model: "
            f"{listed(found)}. One record can add a label; give --classes to declare them."
        )


def noted(model: Any, args: argparse.Namespace, table: Table) -> Any:
    """The model with how its table is read; its guarantee says so if the number of columns was read from the data."""
    from dptoolkit.models.notes import WIDTH_NOTE

    if table.columns is not None:
        return replace(model, columns=table.columns.to_dict())
    return model.with_notes(WIDTH_NOTE) if args.n_features is None else model


def opened_ledger(args: argparse.Namespace) -> Any:
    """The ledger of --ledger, None if none is named. A new one would have no budget, and refuse nothing."""
    from dptoolkit.accounting import Ledger

    path = args.ledger
    if path is None:
        return None
    if args.seed is not None:
        repair = "Whoever guesses the seed can remove the noise, so such a fit must not be published."
        raise invalid("seed", args.seed, "left out with --ledger", repair)
    if not Path(path).is_file():
        repair = f"Make it with dptoolkit ledger new {path} --epsilon E --delta D."
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
    "Fit a private model to a data file, and write it to a file.",
    """\
  dptoolkit fit patients.csv --task classification --label outcome --classes no yes --epsilon 2 --out model.json \\
      --drop id --categories sex=female,male --missing bmi=25 --bounds age=18:99 bmi=10:80
  dptoolkit fit data.svm --task classification --epsilon 2 --classes -1 1 --n-features 47236 --out model.json
  dptoolkit fit data.svm --task classification --epsilon 2 --solver dp-ight --sparsity 100 --row-norm 1 --out model.json
  dptoolkit fit data.csv --task regression --epsilon 2 --row-norm 1 --label-bound 1 --ledger budget.ledger --out m.json
  dptoolkit fit data.svm --solver dp-ight --help""",
    fit_arguments, _fit, solver_arguments, takes_long=True,
)  # fmt: skip
