"""``dptoolkit tune``: a private choice among settings of a solver, from a file, within one budget."""

from __future__ import annotations

import argparse
from typing import Any

from dptoolkit._validate import invalid
from dptoolkit.cli import output
from dptoolkit.cli.bounds import OPTIONS, with_indicators
from dptoolkit.cli.command import FINE, Command
from dptoolkit.cli.fit import (
    announce,
    fit_arguments,
    found_classes,
    model_record,
    model_text,
    noted,
    opened_ledger,
    solver_arguments,
)
from dptoolkit.cli.output import json_text, stage
from dptoolkit.cli.plan import chosen_options, chosen_solver, refuse_classes, solver_options
from dptoolkit.cli.tables import Table, classes_of, read_table


def _tune_arguments(parser: argparse.ArgumentParser) -> None:
    fit_arguments(parser, needs_out=False)
    settings = 'settings of one candidate, such as "steps=5 step_size=1"; may be repeated'
    parser.add_argument("--candidate", action="append", default=[], metavar="SETTINGS", help=settings)
    values = "a setting and its values, such as steps=5,10; all combinations are candidates"
    parser.add_argument("--grid", action="append", default=[], metavar="SETTING", help=values)
    parser.add_argument("--plan", action="store_true", help="print what the choice would cost, without making it")
    expected = "mean number of runs; default: two per candidate"
    parser.add_argument("--expected-runs", type=float, metavar="RUNS", help=expected)
    law = "distribution of the number of runs: logarithmic (default) or geometric"
    parser.add_argument("--law", default="logarithmic", help=law)
    share = "share of the rows that is held out for scores; default 0.2"
    parser.add_argument("--validation", type=float, default=0.2, metavar="SHARE", help=share)
    bound = "for regression: bound to which labels are clipped in scores; default: the label bound"
    parser.add_argument("--score-bound", type=float, metavar="BOUND", help=bound)


def _tune(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit.models import files
    from dptoolkit.solvers.frame.secure import noise_kind
    from dptoolkit.tuning import models as choosing

    name = chosen_solver(args.task, args.solver)
    refuse_classes(args)
    candidates = _candidates(args, name)
    if args.out is None and not args.plan:
        raise invalid("out", None, "given", "It is where the model is written; or use --plan.")
    if not args.plan:
        output.check_apart("out", args.out, DATA=args.data, ledger=args.ledger)
        files.check_writable("out", args.out)
    ledger = opened_ledger(args)
    table = read_table(args, args.n_features)
    options = with_indicators(chosen_options(args, name), table)
    found, classes = found_classes(args, table), classes_of(args.classes)
    terms = choosing.terms_of(args) | {"randomness": noise_kind(args.randomness, args.seed, "seed")}
    if args.plan:
        return _planned(args, table, name, candidates, classes, terms, options), FINE

    def said(search: Any) -> None:
        plan = search.plan
        if ledger is not None:
            ledger.check(plan.event, adjacency=args.adjacency)
        announce(args, table, found)
        if not args.quiet:
            output.say(search.advice)
        stage(f"{plan.runs.mean:.3g} runs expected of {search.solver_name} on {plan.training:,} rows")

    choice = choosing.choose(
        table.X, table.y, candidates, task=args.task, solver=name, classes=classes, adjacency=args.adjacency,
        rng=args.seed, ledger=ledger, feature_names=table.names, terms=terms, announce=said, **options,
    )  # fmt: skip
    model = noted(choice.model, args, table)
    stage("writing")
    files.save(model, args.out)
    settings = candidates[choice.number]
    if args.json:
        record = {"candidates": candidates, "chosen": settings, "score": choice.score, "price": choice.plan.price}
        return json_text(model_record(model, args.out) | record), FINE
    winner = ", ".join(f"{key}={value}" for key, value in settings.items())
    head = f"Chosen of {len(candidates)} candidates: {winner}; score {choice.score:.3g} with noise"
    return f"{head}\n{model_text(model, args.out)}", FINE


def _planned(
    args: argparse.Namespace, table: Table, name: str, candidates: list[dict[str, Any]], labels: list[Any] | None,
    terms: dict[str, Any], options: dict[str, Any],
) -> str:  # fmt: skip
    """The cost of a choice, as text; the data are read for their size and, without --classes, for the set of labels."""
    from dptoolkit.models import fitting, routes
    from dptoolkit.tuning import models as choosing

    is_classes = args.task == "classification"
    classes = len(fitting.class_set(table.y, labels)) if is_classes else None
    n, d = table.X.shape
    options = routes.declared_bounds(options, d, table.names)
    search = choosing.search(candidates, task=args.task, solver=name, n=n, d=d, classes=classes,
                             adjacency=args.adjacency, terms=terms, options=options)  # fmt: skip
    plan = search.plan
    if args.json:
        record = {"solver": search.solver_name, "n": n, "d": d, "candidates": candidates, "price": plan.price,
                  "expected_runs": plan.runs.mean, "run_epsilon": plan.run_epsilon, "chance": plan.chance,
                  "rule_for": list(search.ruled), "guarantee": plan.guarantee.to_dict()}  # fmt: skip
        return json_text(record)
    return f"{plan}\n\n{search.rule}"


def _candidates(args: argparse.Namespace, solver: str) -> list[dict[str, Any]]:
    """The candidates of --candidate, and all combinations of --grid."""
    from dptoolkit.tuning import grid

    # Bounds of columns are no setting to choose among.
    kinds = {name: kind for name, kind, _ in solver_options(solver) if name not in OPTIONS}
    candidates = [dict(_setting(word, kinds, "candidate", word) for word in text.split()) for text in args.candidate]
    columns: dict[str, list[Any]] = {}
    for text in args.grid:
        name, sign, values = text.partition("=")
        pairs = [_setting(f"{name}{sign}{value}", kinds, "grid", text) for value in values.split(",")]
        columns.setdefault(name, []).extend(pairs)
    if columns:
        candidates += [dict(chosen.values()) for chosen in grid(**columns)]
    if not candidates or not all(candidates):
        repair = 'For example --candidate "steps=5 step_size=1", once per candidate, or --grid steps=5,10.'
        raise invalid("candidate", args.candidate, "at least one setting with its value", repair)
    return candidates


def _setting(word: str, kinds: dict[str, Any], option: str, typed: str) -> tuple[str, Any]:
    """(name, value) of name=value, of the type that the solver declares; ``typed`` is what the option was given."""
    from dptoolkit.tuning.models import SHARED

    name, sign, text = word.partition("=")
    name = name.replace("-", "_")
    if name not in kinds or not sign:
        # In quotes, as settings are typed without the dashes of flags.
        names = ", ".join(repr(name) for name in kinds if name not in SHARED)
        raise invalid(option, typed, "setting=value", f"Settings are {names}.")
    try:
        return name, kinds[name](text)
    except (ValueError, argparse.ArgumentTypeError):
        raise invalid(name, text, f"of type {kinds[name].__name__}") from None


COMMAND = Command(
    "Choose among settings privately, within one budget, and write the chosen model to a file.",
    """\
  dptoolkit tune data.svm --task classification --epsilon 2 --solver dp-ight --row-norm 1 --plan \\
      --grid step_size=1,4 --grid steps=5,10
  dptoolkit tune data.svm --task classification --epsilon 2 --solver dp-ight --row-norm 1 --out model.json \\
      --candidate "steps=5 step_size=1" --candidate "steps=10 step_size=4"
  dptoolkit tune data.csv --task regression --epsilon 2 --row-norm 1 --label-bound 1 --grid sparsity=5,9 --out m""",
    _tune_arguments, _tune, solver_arguments, takes_long=True,
)  # fmt: skip
