"""``dptoolkit evaluate``: how good a fitted model is on records with labels."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import json_text, say
from dptoolkit.cli.tables import check_labels, read_for_model, table_arguments

_NOT_PRIVATE = "Computed from these records without noise, so not private for the people in them."


def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="file that dptoolkit fit wrote")
    table_arguments(parser)


def _evaluate(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import models

    model = models.load(args.model)
    table = read_for_model(args, model, needs_labels=True)
    if model.classes is not None:
        check_labels(table, model.classes.tolist(), "of the model")
    if args.label is None and table.columns is not None and (model.columns or {}).get("label") is None:
        chosen = shlex.quote(str(table.columns.label))
        say(f"note: the label is --label {chosen} (the only column that is not a feature of the model).")
    measure = _classification if model.classes is not None else _regression
    scores = {"records": len(table.y)} | measure(model, table.X, table.y)
    budget = {} if model.guarantee.asked_delta is None else _budget(model)
    if args.json:
        return json_text(scores | budget | {"note": _NOT_PRIVATE}), FINE
    rows = [f"{name.replace('_', ' '):<18} {_number(value)}" for name, value in (scores | budget).items()]
    return "\n".join([*rows, "", _NOT_PRIVATE]), FINE


def _budget(model: Any) -> dict[str, Any]:
    delta = model.guarantee.asked_delta
    return {"epsilon": model.guarantee.epsilon(delta), "delta": delta}


def _classification(model: Any, X: Any, y: Any) -> dict[str, Any]:
    import numpy as np

    from dptoolkit.models.fitting import codes

    truth = codes(y, model.classes).astype(int)
    predictions = model.predict(X)
    shares = model.probabilities(X)[np.arange(len(truth)), truth]
    return {
        "accuracy": float((predictions == model.classes[truth]).mean()),
        "largest_class": float(np.bincount(truth).max() / len(truth)),
        "log_loss": float(-np.log(np.maximum(shares, np.finfo(float).tiny)).mean()),
    }


def _regression(model: Any, X: Any, y: Any) -> dict[str, Any]:
    import numpy as np

    error = model.predict(X) - y
    spread = float(np.square(y - y.mean()).sum())
    scores = {"rmse": float(np.sqrt(np.square(error).mean())), "mean_error": float(np.abs(error).mean())}
    return scores | ({"r2": 1 - float(np.square(error).sum()) / spread} if spread > 0 else {})


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


COMMAND = Command(
    "Measure the accuracy of a model on records with labels.",
    """\
  dptoolkit evaluate model.json test.csv
  dptoolkit evaluate model.json test.svm --json""",
    _evaluate_arguments,
    _evaluate,
    takes_long=True,
)
