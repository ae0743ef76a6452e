"""``dptoolkit audit``: attack a solver on its worst pair."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dptoolkit._validate import invalid
from dptoolkit.cli.command import CHECK_FAILED, FINE, Command
from dptoolkit.cli.output import check_writable, json_text, write


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solver", metavar="SOLVER", help="dp_ight, dp_frank_wolfe, ...; see docs/audit.md")
    parser.add_argument("--epsilon", type=float, required=True, help="the budget of the fit")
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    parser.add_argument("--published", action="store_true", help="the paper's noise, tested for the paper's claim")
    parser.add_argument("--adversary", default="final", help="what is seen: final (default), support, iterates, ...")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="how long, default 10")
    length.add_argument("--trials", type=int, help="how many fits")
    parser.add_argument("--confidence", type=float, default=0.95, help="of the lower bound, default 0.95")
    parser.add_argument("--sequential", action="store_true", help="stop as soon as the claim is refuted")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--resume", metavar="FILE", help="keep the trials there; go on from it after a kill")
    parser.add_argument("--report", metavar="FILE", help="also write a page with the trade-off curve")


def _audit(args: argparse.Namespace) -> tuple[str, int]:
    from dptoolkit import audit
    from dptoolkit.audit import presets, run

    _check_files(args)
    plan = presets.plan(args.solver, args.epsilon, args.delta, published=args.published)
    seconds = 10.0 if args.seconds is None and args.trials is None else args.seconds
    try:
        report = audit.audit(
            plan, presets.pair(plan), presets.claim(plan), trials=args.trials, seconds=seconds, delta=args.delta,
            confidence=args.confidence, mode=run.SEQUENTIAL if args.sequential else run.FIXED, adversary=args.adversary,
            rng=args.seed, resume=args.resume, progress=sys.stderr.isatty() and not args.quiet,
        )  # fmt: skip
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_resume_hint(args.resume)) from None
    computed = plan.guarantee.epsilon(args.delta)
    note = f"\nWhat this noise gives: epsilon {computed:.4g} at delta {args.delta:g}" if args.published else ""
    text = json_text(report.to_dict() | {"epsilon_computed": computed}) if args.json else f"{report}{note}"
    if args.report:
        try:
            report.to_html(args.report)
        except OSError:
            # For example a full disk: print the result anyway.
            write(text)
            raise
    return text, CHECK_FAILED if report.violated else FINE


def _check_files(args: argparse.Namespace) -> None:
    """Refuse files that cannot be written before the first trial."""
    if args.report:
        from dptoolkit import plots

        plots.require()
        check_writable("report", args.report)
    if args.resume:
        check_writable("resume", args.resume)
    if args.report and args.resume and Path(args.report).resolve() == Path(args.resume).resolve():
        raise invalid("report", args.report, "another file than that of --resume", "It would overwrite the trials.")


def _resume_hint(resume: str | None) -> str:
    if resume is None:
        return "No trial was kept: with --resume FILE they are, and the same command goes on from there."
    if not Path(resume).exists():
        return f"No trial was finished, so none is in {resume}."
    return f"The finished trials are in {resume}: the same command goes on from there."


COMMAND = Command(
    "Attack a solver on its worst pair; exit code 1 if the claim is refuted.",
    """\
  dptoolkit audit dp_ight --epsilon 1 --seconds 30
  dptoolkit audit dp_ight --epsilon 4 --published --adversary gradients --report audit.html
  dptoolkit audit dp_frank_wolfe --epsilon 4 --adversary releases --trials 100000 --json""",
    _audit_arguments, _audit, takes_long=True, draws=True,
)  # fmt: skip
