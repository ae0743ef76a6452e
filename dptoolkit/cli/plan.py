"""``dptoolkit plan``: what a private fit would release, with how much noise, before there are any data."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from typing import Any

from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text
from dptoolkit.errors import InvalidValue

# A solver whose plan takes the arguments of another one but for some.
_LIKE = {"dp_svrg_ht": ("dp_scsg_ht", ("snapshot_size",))}
_WORDS = {"true": True, "yes": True, "false": False, "no": False}


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solver", metavar="SOLVER", help="dp_ight, dp_frank_wolfe, ...; --help after it lists its own")


def _solver_arguments(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """The options of the solver on the command line are the arguments of its plan."""
    name = next((token for token in line if not token.startswith("-")), "")
    try:
        parameters = _parameters(name)
    except InvalidValue:
        # Told when the plan is made, unless --help was asked for.
        return
    for parameter in parameters:
        is_needed = parameter.default is inspect.Parameter.empty
        kind = _kind(str(parameter.annotation))
        parser.add_argument(
            "--" + parameter.name.replace("_", "-"), dest=parameter.name, type=kind, required=is_needed,
            default=argparse.SUPPRESS, metavar=kind.__name__.upper(), help=_help(parameter),
        )  # fmt: skip


def _help(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return "needed"
    return "optional" if parameter.default is None else f"default {parameter.default}"


def _parameters(name: str) -> list[inspect.Parameter]:
    from dptoolkit import solvers

    source, left_out = _LIKE.get(name, (name, ()))
    found = inspect.signature(solvers.plan_function(source)).parameters.values()
    return [parameter for parameter in found if parameter.name not in left_out]


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

    given = {key: value for key, value in vars(args).items() if key not in ("command", "json", "solver")}
    # A name that is not known has no options of its own, so that n and d may be missing.
    made = solvers.plan(args.solver, **({"n": 1, "d": 1} | given))
    return (json_text(_record(made)) if args.json else str(made)), FINE


def _record(made: Any) -> dict[str, Any]:
    releases = [
        {"query": r.query, "noise": r.law, "sensitivity": r.sensitivity, "scale": r.scale, "count": r.count}
        for r in made.releases
    ]
    return {
        "solver": made.solver, "n": made.n, "d": made.d, "adjacency": str(made.adjacency),
        "calibration": made.calibration, "settings": {key: _plain(value) for key, value in made.settings.items()},
        "releases": releases, "guarantee": made.guarantee.to_dict(),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


COMMAND = Command(
    "What a private fit would release, with how much noise: no data are needed.",
    """\
  dptoolkit plan dp_ight --help
  dptoolkit plan dp_ight --n 9000 --d 500 --loss logistic --sparsity 20 --steps 50 --row-norm 1 --epsilon 1 --delta 1e-6
  dptoolkit plan peeling_iht --n 9000 --d 500 --sparsity 5 --steps 9 --step-size 1 --radius 1 --feature-bound 1 \\
      --label-bound 1 --epsilon 1 --delta 1e-6 --json""",
    _plan_arguments, _plan, _solver_arguments,
)  # fmt: skip
