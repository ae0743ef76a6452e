"""``dptoolkit plan``: what a private fit would release, with how much noise, before there are any data."""

from __future__ import annotations

import argparse
import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.cli.bounds import OPTIONS, bounds_arguments, bounds_options
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import in_shell, json_text
from dptoolkit.errors import InvalidValue

_WORDS = {"true": True, "yes": True, "false": False, "no": False}
# Arguments of a solver that get no option from its signature: commands have their own options for them, or set them.
_OWN = ("epsilon", "delta", "adjacency", "calibration", "loss", "classes")
# The delta of commands without --delta.
DELTA = 1e-5


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    solver = "solver, such as dp_ight; --help after it lists its options"
    parser.add_argument("name", nargs="?", metavar="SOLVER", help=solver)
    parser.add_argument("--solver", help="the same as SOLVER, as in dptoolkit fit")
    task = "classification or regression; plans what dptoolkit fit does with the same options"
    parser.add_argument("--task", help=task)


def _more_arguments(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """The options of the solver on the command line; with --task they are those of ``fit``."""
    task, name = value_of(line, "--task"), _named_solver(line)
    if task is not None:
        _size_arguments(parser)
        parser.add_argument("--epsilon", type=float, required=True, help="budget of the whole fit")
        parser.add_argument("--delta", type=float, default=DELTA, help="default 1e-5; must be well below 1/n")
        parser.add_argument("--adjacency", default="replace-one", help="replace-one (default) or zero-out")
        parser.add_argument("--classes", nargs="+", metavar="LABEL", help="public class labels; default: two classes")
        parser.add_argument("--randomness", metavar="KIND", help="secure or fast noise; default: that of dptoolkit fit")
        route_arguments(parser, task, name)
    elif name is not None:
        _direct_arguments(parser, name, line)


def _direct_arguments(parser: argparse.ArgumentParser, name: str, line: Sequence[str]) -> None:
    """The options of a solver are the arguments of its plan."""
    try:
        parameters = _parameters(solver_name(name))
    except InvalidValue as problem:
        # An unknown solver has no options to complain about, and --help works without one.
        if {"-h", "--help"} & set(line):
            return
        raise InvalidValue(in_shell(str(problem), {"name": "SOLVER"})) from None
    _size_arguments(parser)
    parser.add_argument("--randomness", metavar="KIND", help="secure or fast noise; default: fast")
    for (parameter, _), (option, kind, text) in zip(parameters, solver_options(solver_name(name)), strict=True):
        if option in OPTIONS:
            continue
        own: dict[str, Any] = (
            {"default": DELTA, "help": f"{text} Default: 1e-05."}
            if option == "delta"
            else {"default": argparse.SUPPRESS, "required": parameter.default is inspect.Parameter.empty, "help": text}
        )
        parser.add_argument(
            "--" + option.replace("_", "-"), dest=option, type=kind, metavar=kind.__name__.upper(), **own
        )
    if any(parameter.name in OPTIONS for parameter, _ in parameters):
        bounds_arguments(parser)


def _size_arguments(parser: argparse.ArgumentParser) -> None:
    for size, text in (("n", "Number of records."), ("d", "Number of features.")):
        parser.add_argument(f"--{size}", type=int, required=True, metavar="INT", help=text)


def _named_solver(line: Sequence[str]) -> str | None:
    """The solver on a command line that is not parsed yet: after --solver, or the first word that is no option's value.

    A word that is the name of a solver is recognised even after options.
    """
    from dptoolkit import solvers

    named = value_of(line, "--solver")
    known = next((word for word in line if solver_name(word) in solvers.PRIVATE), None)
    first = line[0] if line and not line[0].startswith("-") else None
    return named or known or first


def value_of(line: Sequence[str], option: str) -> str | None:
    """The value of an option on a command line that is not parsed yet."""
    for position, token in enumerate(line):
        if token.startswith(option + "="):
            return token.partition("=")[2]
        if token == option and position + 1 < len(line):
            return line[position + 1]
    return None


def route_arguments(parser: argparse.ArgumentParser, task: str | None, solver: str | None) -> None:
    """The options of the solver that fits a task, or of the default one."""
    own: list[tuple[str, Any, str]] = []
    # The error for an unknown solver or task is raised when the command runs, so that --help still works.
    with contextlib.suppress(InvalidValue):
        own = solver_options(chosen_solver(task or "classification", solver))
    group = parser.add_argument_group(f"options of {solver or 'the default solver'}")
    for name, kind, text in own:
        if name not in (*_OWN, *OPTIONS):
            group.add_argument(
                "--" + name.replace("_", "-"), dest=name, type=kind, default=argparse.SUPPRESS,
                metavar=kind.__name__.upper(), help=text,
            )  # fmt: skip
    if any(name in OPTIONS for name, _, _ in own):
        bounds_arguments(group)
    if "row_norm" not in {name for name, _, _ in own}:
        text = "Public L2 bound of a row."
        group.add_argument("--row-norm", type=float, default=argparse.SUPPRESS, metavar="FLOAT", help=text)


def chosen_solver(task: str, solver: str | None) -> str:
    """The name of the solver that the options ask for."""
    from dptoolkit.models import routes

    return routes.solver_name(task, solver)


def refuse_classes(args: argparse.Namespace) -> None:
    """Refuse --classes where labels are numbers."""
    if args.task == "regression" and args.classes is not None:
        raise InvalidValue(f"--classes {' '.join(args.classes)}: must be left out for regression.")


def chosen_options(args: argparse.Namespace, solver: str) -> dict[str, Any]:
    """The solver's own options that were given."""
    names = {option for option, _, _ in solver_options(solver)} | {"row_norm"}
    own = {key: value for key, value in vars(args).items() if key in names - set(_OWN)}
    return own | bounds_options(own)


def solver_name(text: str) -> str:
    """The name of a solver, which may have dashes on the command line."""
    return text.replace("-", "_")


def _help(parameter: inspect.Parameter, text: str) -> str:
    # argparse takes a percent sign for a format.
    words = text.replace("%", "%%")
    return words if parameter.default in (inspect.Parameter.empty, None) else f"{words} Default: {parameter.default}."


def _parameters(name: str) -> list[tuple[inspect.Parameter, str]]:
    from dptoolkit import solvers
    from dptoolkit.solvers.frame.settings import keywords

    kind = solvers.settings_class(name)
    entries = [(p, kind.__dataclass_fields__[p.name].metadata) for p in keywords(kind)]
    return [(p, entry["text"]) for p, entry in entries if entry.get("shell", True)]


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
    if args.name is not None and args.solver is not None:
        raise invalid("solver", args.solver, "left out beside SOLVER", "One name is enough.")
    plan = _direct_plan(args) if args.task is None else _task_plan(args)
    return (json_text(_record(plan)) if args.json else str(plan)), FINE


def _direct_plan(args: argparse.Namespace) -> Any:
    from dptoolkit import solvers
    from dptoolkit.models import routes

    solver = args.solver or args.name
    if solver is None:
        raise invalid("solver", None, "given", "For example dptoolkit plan dp_ight --help, or --task classification.")
    own = ("command", "json", "solver", "name", "task")
    given = {key: value for key, value in vars(args).items() if key not in own}
    arguments = routes.declared_bounds(given | bounds_options(given), args.d, None)
    return solvers.plan(solver_name(solver), **arguments)


def _task_plan(args: argparse.Namespace) -> Any:
    from dptoolkit import models

    solver = chosen_solver(args.task, args.solver or args.name)
    refuse_classes(args)
    return models.plan(
        args.n, args.d, task=args.task, solver=solver, classes=None if args.classes is None else len(set(args.classes)),
        epsilon=args.epsilon, delta=args.delta, adjacency=args.adjacency, randomness=args.randomness,
        **chosen_options(args, solver),
    )  # fmt: skip


def _record(plan: Any) -> dict[str, Any]:
    return plan.to_dict() | {"guarantee": plan.guarantee.to_dict()}


COMMAND = Command(
    "Show what a private fit would release and with how much noise; needs no data.",
    """\
  dptoolkit plan --task classification --n 9000 --d 500 --epsilon 1
  dptoolkit plan --task classification --n 9000 --d 16 --epsilon 1 --bounds age=18:99 bmi=10:80 '*=0:1'
  dptoolkit plan --task regression --n 9000 --d 500 --epsilon 1 --row-norm 1 --label-bound 1
  dptoolkit plan dp_ight --help
  dptoolkit plan dp_ight --n 9000 --d 500 --loss logistic --sparsity 20 --steps 50 --row-norm 1 --epsilon 1 --delta 1e-6
  dptoolkit plan peeling_iht --n 9000 --d 500 --sparsity 5 --steps 9 --step-size 1 --radius 1 --feature-bound 1 \\
      --label-bound 1 --epsilon 1 --delta 1e-6 --json""",
    _plan_arguments,
    _plan,
    _more_arguments,
)
