"""Command line: python -m paper_checks [paper|claim|item ...] [--tier TIER] [--list] [--resume] [--workers N]."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# ``dptoolkit check`` sets the name under which this program speaks.
_NAME = os.environ.get("PAPER_CHECKS_NAME", "paper_checks")


def _say(message: object) -> None:
    """One line on stderr; where nobody reads it, it is lost, and the exit code is kept."""
    with contextlib.suppress(OSError):
        print(f"{_NAME}: {' '.join(str(message).split())}", file=sys.stderr, flush=True)


def _say_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(f"warning: {message}")


try:
    from dptoolkit.cli.output import is_stop, write
    from dptoolkit.errors import ClusterError, MissingDependency
    from paper_checks.claims import BadClaims, Paper, selected
    from paper_checks.files import alone
    from paper_checks.pages import write_pages
    from paper_checks.progress import Progress
    from paper_checks.records import Record
    from paper_checks.report import as_json, list_json, listing, table
    from paper_checks.run import TIERS, Settings, Unit, run, units
    from paper_checks.store import Store
except KeyboardInterrupt:
    # Loading takes a second, in which Ctrl-C may come.
    _say("stopped.")
    sys.exit(_INTERRUPTED)
except ImportError as problem:
    # A compiled module that is being loaded turns Ctrl-C into an ImportError.
    if isinstance(problem.__cause__ or problem.__context__, KeyboardInterrupt):
        _say("stopped.")
        sys.exit(_INTERRUPTED)
    _say(problem)
    sys.exit(2)

ROOT = Path(__file__).parent
OUT = "report/papers"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("paper_checks", description="Papers' claims against what is true.")
    parser.add_argument(
        "paper", nargs="*", help="papers (a folder, or IGHT, KT, LASSO, SHT, LEC), claims or items; default: all"
    )
    parser.add_argument("--list", action="store_true", help="list all claims and verdicts without checking them")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--tier", choices=TIERS, default="fast", help="fast (default), full (minutes) or slow (hours)")
    parser.add_argument("--data", metavar="FOLDER", help="folder of data sets outside the package")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="number of processes (default 1)")
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the workers of a Dask scheduler, such as tcp://host:8786"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all measured items (default 0)")
    parser.add_argument("--out", metavar="FOLDER", default=OUT, help=f"folder of the reports (default {OUT})")
    parser.add_argument("--resume", action="store_true", help="continue an earlier run that is saved in --out")
    return parser


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """0 if every verdict is the expected one, 1 if one has changed, 2 for bad input, 130 if stopped by Ctrl-C."""
    arguments = _parser().parse_args(argv)
    found: dict[Unit, tuple[Record, float]] = {}
    try:
        settings = _settings(arguments)
        papers = selected(root, arguments.paper)
        if arguments.list:
            write(list_json(papers) if arguments.json else listing(papers, settings.data_home))
            return 0
        for line in _left_out(papers, arguments.paper, settings.tier):
            _say(line)
        if not units(papers, settings.tier):
            return 2
        _check_folder(arguments.out)
        with alone(Path(arguments.out)):
            _collect(found, root, papers, settings, arguments)
        return _told(found, papers, settings, arguments)
    except (BadClaims, ClusterError, MissingDependency) as problem:
        _say(problem)
        return 2
    except KeyboardInterrupt:
        return _stopped(found, arguments)
    except Exception as problem:
        if is_stop(problem):
            return _stopped(found, arguments)
        # An exit code of 1 says that a claim has changed; a defect or a full disk says nothing about claims.
        if os.environ.get("DPTOOLKIT_TRACEBACK"):
            raise
        if isinstance(problem, OSError) and problem.errno in _FULL:
            _say(f"--out {arguments.out}: {problem.strerror}. Make room and go on with --resume.")
            return 2
        _say(f"unexpected {type(problem).__name__}: {problem}. Set DPTOOLKIT_TRACEBACK=1 to see where.")
        return 2


def _stopped(found: dict[Unit, tuple[Record, float]], arguments: argparse.Namespace) -> int:
    """Print what is finished. Whoever started this may pass the signal on, so it is ignored from here on."""
    _ignore_interrupts()
    if found:
        write(_text(list(found.values()), arguments.json))
    _say(f"stopped. {len(found)} results are kept; go on with --resume.")
    return _INTERRUPTED


def _told(
    found: dict[Unit, tuple[Record, float]], papers: list[Paper], settings: Settings, arguments: argparse.Namespace
) -> int:
    """Write and print what was found; 1 if a verdict has changed. A reader of stdout that has left is no error."""
    rows = [found[unit] for unit in units(papers, settings.tier)]
    records = [record for record, _ in rows]
    write_pages(Path(arguments.out), records, papers, settings, arguments.paper)
    write(_text(rows, arguments.json))
    _say(f"wrote {Path(arguments.out) / 'report.html'}")
    return 0 if all(record["as_expected"] for record in records) else 1


def _left_out(papers: list[Paper], names: list[str], tier: str) -> Iterator[str]:
    """Why claims and items that were asked for by name are not checked: they are not judged, or need another tier."""
    for paper in papers:
        run_here = {unit.id for unit in units([paper], tier)}
        for item in paper.items:
            if item.id in names and item.id not in run_here:
                yield f"{item.id}: {_needs(item.tier) if item.judged else f'is not judged: {item.pending}'}."
        for claim in paper.claims:
            if {claim.id, claim.item} & set(names) and claim.id not in run_here:
                yield f"{claim.id}: {_needs(min((point.tier for point in claim.points), key=TIERS.index))}."


def _needs(tier: str) -> str:
    """What to type for a tier. ``dptoolkit check`` has a flag for the full one and none for the slow one."""
    if _NAME == "paper_checks":
        return f"is checked with --tier {tier}"
    return "is checked with --full" if tier == "full" else f"is checked by python -m paper_checks --tier {tier}"


def _check_folder(out: str) -> None:
    """Refuse a folder that cannot be written to before the work, not after it."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as problem:
        raise BadClaims(f"--out {out}: must be a folder that can be written to ({problem.strerror}).") from None


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.workers < 1:
        raise BadClaims(f"--workers {arguments.workers}: must be at least 1.")
    if arguments.data is not None and not Path(arguments.data).is_dir():
        raise BadClaims(f"--data {arguments.data}: must be a folder that exists.")
    if arguments.scheduler is not None and arguments.workers != 1:
        raise BadClaims(f"--workers {arguments.workers}: must be left out where --scheduler is given.")
    return Settings(arguments.tier, arguments.seed, arguments.data, arguments.workers, arguments.scheduler)


def _collect(
    found: dict[Unit, tuple[Record, float]], root: Path, papers: list[Paper], settings: Settings,
    arguments: argparse.Namespace,
) -> None:  # fmt: skip
    """Fill ``found`` unit by unit, so that what is finished is there when the run is stopped."""
    store = Store(Path(arguments.out) / "results", root, settings.seed, settings.data_home)
    progress = Progress(len(units(papers, settings.tier)))
    try:
        for unit, record, seconds in run(root, papers, settings, store, arguments.resume):
            found[unit] = record, seconds
            progress.step(unit.name)
    finally:
        progress.close()


def _text(rows: list[tuple[Record, float]], as_records: bool) -> str:
    records = [record for record, _ in rows]
    return as_json(records) if as_records else table(records, sum(seconds for _, seconds in rows))


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    warnings.showwarning = _say_warning
    sys.exit(main())
