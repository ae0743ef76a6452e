"""``dptoolkit plan``: what a private fit would release, with how much noise, before there are any data."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from typing import Any

from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text
from dptoolkit.errors import InvalidValue

_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solver", metavar="SOLVER", help="dp_ight, dp_frank_wolfe, ...; --help after it lists its own")


def _solver_arguments(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """The options of the solver on the command line are the arguments of its plan."""
    name = solver_name(next((token for token in line if not token.startswith("-")), ""))
    try:
        parameters = _parameters(name)
    except InvalidValue:
        # An unknown solver has no options to complain about, and --help works without one.
        if not name or {"-h", "--help"} & set(line):
            return
        raise
    for size, text in (("n", "Number of records."), ("d", "Number of features.")):
        parser.add_argument(f"--{size}", type=int, required=True, metavar="INT", help=text)
    for (parameter, _), (option, kind, text) in zip(parameters, solver_options(name), strict=True):
        parser.add_argument(
            "--" + option.replace("_", "-"), dest=option, type=kind, default=argparse.SUPPRESS,
            required=parameter.default is inspect.Parameter.empty, metavar=kind.__name__.upper(), help=text,
        )  # fmt: skip


def solver_name(text: str) -> str:
    """The name of a solver, which may have dashes on the command line."""
    return text.replace("-", "_")


def _help(parameter: inspect.Parameter, text: str) -> str:
    # argparse takes a percent sign for a format.
    words = text.replace("%", "%%")
    return words if parameter.default in (inspect.Parameter.empty, None) else f"{words} Default: {parameter.default}."


def _parameters(name: str) -> list[tuple[inspect.Parameter, str]]:
    from dptoolkit import solvers
    from dptoolkit.solvers.settings import keywords

    kind = solvers.settings_class(name)
    return [(p, kind.__dataclass_fields__[p.name].metadata["text"]) for p in keywords(kind)]


def solver_options(name: str) -> list[tuple[str, Any, str]]:
    """(name, type, help) of every argument of a solver."""
    return [(p.name, _kind(str(p.annotation)), _help(p, text)) for p, text in _parameters(name)]


def _kind(annotation: str) -> Any:
    """How the text of an option becomes a value, by the type that the argument is declared with."""
    for word, kind in (("bool", flag), ("int", int), ("float", float)):
        if word in annotation:
            return kind
    return str


def flag(text: str) -> bool:
    """yes or no."""
    if text.lower() not in _WORDS:
        raise argparse.ArgumentTypeError(f"must be yes or no, not {text!r}")
    return _WORDS[text.lower()]


def _plan(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import solvers

    arguments = {key: value for key, value in vars(args).items() if key not in ("command", "json", "solver")}
    plan = solvers.plan(solver_name(args.solver), **arguments)
    return (json_text(_record(plan)) if args.json else str(plan)), FINE


def _record(plan: Any) -> dict[str, Any]:
    return plan.to_dict() | {"guarantee": plan.guarantee.to_dict()}


COMMAND = Command(
    "What a private fit would release, with how much noise: no data are needed.",
    """\
  dptoolkit plan dp_ight --help
  dptoolkit plan dp_ight --n 9000 --d 500 --loss logistic --sparsity 20 --steps 50 --row-norm 1 --epsilon 1 --delta 1e-6
  dptoolkit plan peeling_iht --n 9000 --d 500 --sparsity 5 --steps 9 --step-size 1 --radius 1 --feature-bound 1 \\
      --label-bound 1 --epsilon 1 --delta 1e-6 --json""",
    _plan_arguments, _plan, _solver_arguments,
)  # fmt: skip
