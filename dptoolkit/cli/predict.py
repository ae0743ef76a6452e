"""``dptoolkit predict``: predictions of a fitted model for new records."""

from __future__ import annotations

import argparse
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.output import check_apart, in_one_line, json_text, say
from dptoolkit.cli.tables import listed, read_for_model, table_arguments


def _predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="file that dptoolkit fit wrote")
    table_arguments(parser)
    parser.add_argument("--probabilities", action="store_true", help="print the probability of every class")
    parser.add_argument("--out", metavar="FILE", help="write the predictions to this file")


def _predict(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import models
    from dptoolkit.models import files

    if args.out is not None:
        check_apart("out", args.out, MODEL=args.model, DATA=args.data)
        files.check_writable("out", args.out)
    model = models.load(args.model)
    if args.probabilities and model.classes is None:
        raise invalid("probabilities", None, "left out for a regression model", "It predicts numbers, not classes.")
    table = read_for_model(args, model, needs_labels=False)
    answers = model.probabilities(table.X) if args.probabilities else model.predict(table.X)
    if args.probabilities and model.classes is not None and not args.json and not args.quiet:
        say(f"note: one column per class, in this order: {listed(model.classes.tolist())}.")
    text = json_text(_record(model, answers, args.probabilities)) if args.json else "\n".join(map(_line, answers))
    if args.out is None:
        return text, FINE
    with files.replaced(args.out) as file:
        file.write_text(text + "\n", encoding="utf-8")
    return "", FINE


def _record(model: Any, answers: Any, probabilities: bool) -> dict[str, Any]:
    key = "probabilities" if probabilities else "predictions"
    classes = None if model.classes is None else model.classes.tolist()
    return {"task": model.task, "classes": classes, key: answers.tolist()}


def _line(entry: Any) -> str:
    """One record's answer, with all digits; probabilities with blanks between them."""
    values = entry.tolist()
    return " ".join(map(_word, values if isinstance(values, list) else [values]))


def _word(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else in_one_line(value)


COMMAND = Command(
    "Predictions of a fitted model for new records, with or without labels; one line per record.",
    """\
  dptoolkit predict model.json new.csv
  dptoolkit predict model.json new.svm --probabilities --out probabilities.txt""",
    _predict_arguments,
    _predict,
    takes_long=True,
)
