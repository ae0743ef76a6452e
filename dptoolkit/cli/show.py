"""``dptoolkit show``: what is in the file of a model."""

from __future__ import annotations

import argparse
from typing import Any

from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="file that dptoolkit fit or an estimator's save wrote")
    parser.add_argument("--top", type=int, default=20, metavar="K", help="number of weights to show, default 20")


def _show(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import models

    model = models.load(args.model)
    return (json_text(_record(model)) if args.json else model.summary(args.top)), FINE


def _record(model: Any) -> dict[str, Any]:
    """Everything that a program may want to know about a model; all weights that are not 0, the largest first."""
    from dptoolkit.models import model as words

    names = words.names_of(model)
    return {
        "task": model.task, "solver": model.solver, "n": model.plan.n, "d": model.n_features, "steps": model.steps,
        "classes": None if model.classes is None else model.classes.tolist(),
        "label": None if model.columns is None else model.columns["label"],
        "weights": {names[j]: dict(zip(words.rows_of(model), model.coef[:, j].tolist(), strict=True))
                    for j in words.largest(model)},
        "intercept": dict(zip(words.rows_of(model), model.intercept.tolist(), strict=True)),
        "guarantee": model.guarantee.to_dict(), "methods": words.methods(model),
    }  # fmt: skip


COMMAND = Command(
    "Print the weights of a model by name, its guarantee, and a sentence for a methods section.",
    """\
  dptoolkit show model.json
  dptoolkit show model.json --top 5
  dptoolkit show model.json --json""",
    _show_arguments,
    _show,
)
