"""``dptoolkit audit``: attack a solver on its worst pair, or any function on a pair from a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

from dptoolkit._validate import invalid
from dptoolkit.cli.command import CHECK_FAILED, FINE, Command
from dptoolkit.cli.output import check_apart, check_writable, json_text, write
from dptoolkit.cli.plan import solver_name


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solver", metavar="SOLVER", help="such as dp_ight; or MODULE:FUNCTION (dataset, rng) -> output")
    parser.add_argument("--pair", metavar="FILE", help="for a FUNCTION: .npz of first, second or first_X, first_y, ...")
    parser.add_argument(
        "--family",
        choices=("any", "gaussian"),
        help="for a FUNCTION: test only (epsilon, delta), or Gaussian noise, in far fewer trials",
    )
    parser.add_argument(
        "--neighbours",
        choices=("checked", "as given"),
        help='for a FUNCTION: "as given" does not check that exactly one record differs',
    )
    parser.add_argument("--source", default="", help="who makes the claim, for the report")
    together = "K records change together, default 1; --epsilon and --delta stay those of one record"
    parser.add_argument("--group", type=int, default=1, metavar="K", help=together)
    parser.add_argument("--epsilon", type=float, required=True, help="claimed epsilon")
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    parser.add_argument("--published", action="store_true", help="use the paper's noise, and test the paper's claim")
    parser.add_argument("--adversary", help="for a SOLVER, what is seen: final (default), support, iterates, ...")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="run time, default 10")
    length.add_argument("--trials", type=int, help="number of fits")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the lower bound; default 0.95")
    parser.add_argument("--sequential", action="store_true", help="stop as soon as the claim is refuted")
    parser.add_argument("--seed", type=int, default=0, help="seed of the trials, default 0")
    parser.add_argument("--resume", metavar="FILE", help="save the trials to this file, and continue from it")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="run on the workers of a Dask scheduler")
    parser.add_argument("--report", metavar="FILE", help="also write an HTML page with the trade-off curve")


def _audit(args: argparse.Namespace) -> tuple[str, int]:
    _refuse_file(args.solver)
    from dptoolkit import audit
    from dptoolkit.audit import run

    _check_files(args)
    target = _named_function(args) if ":" in args.solver else _preset(args)
    seconds = 10.0 if args.seconds is None and args.trials is None else args.seconds
    try:
        report = audit.audit(
            target.mechanism, target.pair, target.claim, trials=args.trials, seconds=seconds, delta=target.delta,
            confidence=args.confidence, mode=run.SEQUENTIAL if args.sequential else run.FIXED,
            adversary=args.adversary or "final",
            rng=args.seed, resume=args.resume, progress=sys.stderr.isatty() and not args.quiet, source=target.source,
            neighbours=args.neighbours or "checked", scheduler=args.scheduler,
        )  # fmt: skip
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_resume_hint(args.resume)) from None
    epsilon = target.computed
    note = f"\nWhat this noise gives: epsilon {epsilon:.4g} at delta {args.delta:g}" if args.published else ""
    extra = {} if epsilon is None else {"epsilon_computed": epsilon}
    text = json_text(report.to_dict() | extra) if args.json else f"{report}{note}"
    if args.report:
        try:
            report.to_html(args.report)
        except OSError:
            # For example a full disk: print the result anyway.
            write(text)
            raise
    return text, CHECK_FAILED if report.violated else FINE


def _refuse_file(name: str) -> None:
    """Refuse a file at once: an audit runs a program many times, and a model is what one run gave."""
    if ":" not in name and (Path(name).is_file() or Path(name).suffix == ".json"):
        repair = "An audit trains again and again; dptoolkit show MODEL prints a model's solver and guarantee."
        raise invalid("solver", name, "the name of a solver, or MODULE:FUNCTION, and not a file", repair)


class _Target(NamedTuple):
    """The mechanism, pair and claim of an audit, who makes the claim, and the epsilon that the noise really gives.

    ``delta`` is the one at which epsilons are compared.
    """

    mechanism: Any
    pair: Any
    claim: Any
    source: str
    computed: float | None
    delta: float


def _preset(args: argparse.Namespace) -> _Target:
    """The preset of one of our solvers."""
    from dptoolkit.audit import pairs, presets
    from dptoolkit.audit.claims import as_claim

    for name in ("pair", "family", "neighbours"):
        if getattr(args, name):
            repair = "It has its own pair and claim; this is for MODULE:FUNCTION."
            raise invalid(name, getattr(args, name), "left out for a solver", repair)
    plan = presets.plan(solver_name(args.solver), args.epsilon, args.delta, published=args.published)
    pair, epsilon = presets.pair(plan), plan.guarantee.epsilon(args.delta)
    source = args.source or ("the paper" if args.published else "the plan's own account")
    if args.group == 1:
        return _Target(plan, pair, presets.claim(plan), source, epsilon, args.delta)
    if args.published:
        raise invalid("group", args.group, "1 with --published", "A paper's claim is about one record.")
    group, source = plan.guarantee.group(args.group), f"{source} for groups of {args.group}"
    whole = pairs.grouped(pair, args.group)
    return _Target(plan, whole, as_claim(group), source, group.epsilon(args.delta), args.delta)


def _named_function(args: argparse.Namespace) -> _Target:
    """Somebody's function, imported by name, on the two datasets of a file."""
    from dptoolkit.accounting import ApproxDp, Gaussian, account, gaussian
    from dptoolkit.audit import GaussianClaim
    from dptoolkit.audit.claims import as_claim
    from dptoolkit.audit.files import load_function, load_pair

    if args.published:
        raise invalid("published", True, "left out for MODULE:FUNCTION", "It is for this project's own solvers.")
    if args.adversary:
        repair = "An adversary sees all that the function returns: let it return more, or less."
        raise invalid("adversary", args.adversary, "left out for MODULE:FUNCTION", repair)
    if not args.pair:
        raise invalid("pair", None, "given for MODULE:FUNCTION", "An .npz file of two neighbouring datasets.")
    pair = load_pair(args.pair, args.group)
    claim, source = as_claim((args.epsilon, args.delta)), args.source or "the command line"
    mu, delta = 0.0, args.delta
    if args.family == "gaussian":
        if args.delta == 0:
            repair = "Gaussian noise has no epsilon at delta 0."
            raise invalid("delta", args.delta, "> 0 with --family gaussian", repair)
        mu = gaussian.mu(args.epsilon, args.delta)
        claim = GaussianClaim(mu)
    if args.group > 1:
        # What is claimed for one record says this much about a group, as it does for our own solvers.
        group = account(Gaussian(1 / mu) if mu else ApproxDp(args.epsilon, args.delta)).group(args.group)
        whole = args.group * args.epsilon
        delta = delta if mu else group.delta(whole)
        claim = as_claim(group if mu else (whole, delta))
        source += f" for groups of {args.group}"
    return _Target(load_function(args.solver), pair, claim, source, None, delta)


def _check_files(args: argparse.Namespace) -> None:
    """Refuse files that cannot be written before the first trial."""
    check_apart("report", args.report, resume=args.resume, pair=args.pair)
    check_apart("resume", args.resume, pair=args.pair)
    if args.report:
        from dptoolkit import plots

        plots.require()
        check_writable("report", args.report)
    if args.resume:
        check_writable("resume", args.resume)


def _resume_hint(resume: str | None) -> str:
    if resume is None:
        return "No trial was saved: with --resume FILE they are, and the same command continues from there."
    if not Path(resume).exists():
        return f"No trial was finished, so {resume} holds none."
    return f"The finished trials are in {resume}: the same command continues from there."


COMMAND = Command(
    "Attack a solver on its worst pair, or a function on your pair; exit code 1 if the claim is refuted.",
    """\
  dptoolkit audit dp_ight --epsilon 1 --seconds 30
  dptoolkit audit dp_ight --epsilon 4 --published --adversary gradients --report audit.html
  dptoolkit audit dp_frank_wolfe --epsilon 4 --adversary releases --trials 100000 --json
  dptoolkit audit dp_ight --epsilon 0.5 --group 4
  dptoolkit audit mymodule:train --pair pair.npz --epsilon 1 --delta 1e-5""",
    _audit_arguments, _audit, takes_long=True, draws=True,
)  # fmt: skip
