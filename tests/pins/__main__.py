"""Pins: what the program computes, to the last bit, so that a change of its shape can be shown to change nothing else.

    python -m tests.pins --write pins.json            # before
    python -m tests.pins --check pins.json            # after: exit code 0 if all is the same, 1 if not
    python -m tests.pins --check pins.json plans weights
    python -m tests.pins --check pins.json --but surface shell
    python -m tests.pins --write-portable             # the small part that the tests compare on every platform

This is a developer's tool for changes that must not change a result: moves, renames, splits. A pins file holds
fingerprints and events of plans, weights of every private solver (dense and CSR, small and large, one fit, many, audit
trials), epsilons and calibrated noises, JSON of models, plans and ledgers, output of the shell, signatures, counted
work and compilations; ``--list`` says which section holds what. It goes through the public surface alone, so that the
same tool runs before and after. Numbers of the last bit depend on processor, NumPy, SciPy and Numba: a file is compared
on the machine that wrote it and is not kept in the repository. All sections take about two minutes on one core.

What is the same on every platform is in ``portable.json`` and is held by ``test_portable.py``. Where a change of it is
meant, ``--write-portable`` writes it anew, and the CHANGELOG says what no longer repeats: a fit from a seed draws other
noise as soon as its plan's fingerprint is another one.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SHOWN, _WIDTH = 15, 400


def _environment() -> None:
    """One thread of BLAS, and compiled kernels in a folder named by what is in them, before NumPy and Numba load."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # Neither a user's data folder nor the width of the terminal may show.
    os.environ.pop("DPTOOLKIT_DATA", None)
    kernels = b"".join(path.read_bytes() for path in sorted((ROOT / "dptoolkit" / "kernels").glob("*.py")))
    name = hashlib.sha256(kernels).hexdigest()[:16]
    os.environ["NUMBA_CACHE_DIR"] = str(ROOT / ".numba_cache" / name / "pins")
    warnings.simplefilter("ignore")


def _platform() -> dict[str, str]:
    import numba
    import numpy
    import scipy

    versions = {module.__name__: str(module.__version__) for module in (numpy, scipy, numba)}
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def _collected(names: list[str]) -> dict[str, dict[str, str]]:
    from tests.pins.sections import SECTIONS

    found = {}
    for name in names:
        start = time.perf_counter()
        found[name] = SECTIONS[name]()
        refused = sum(value.startswith("refused") for value in found[name].values())
        seconds = time.perf_counter() - start
        words = f"{name}: {len(found[name])} pins, of which {refused} are refusals, {seconds:.0f} s"
        print(words, file=sys.stderr, flush=True)
    return found


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """What is gone, new or other, one text each."""
    lines = [f"- {key}: gone" for key in old if key not in new] + [f"+ {key}: new" for key in new if key not in old]
    for key in old:
        if key in new and old[key] != new[key]:
            changed = difflib.unified_diff(old[key].splitlines(), new[key].splitlines(), "before", "now", "", "", 0, "")
            words = "\n    ".join(line[:_WIDTH] for line in list(changed)[2:8])
            lines.append(f"! {key}\n    {words}")
    return lines


def _check(before: dict[str, Any], names: list[str]) -> int:
    if before["platform"] != _platform():
        print(f"pins of another platform: {before['platform']}, here {_platform()}", file=sys.stderr)
        return 2
    failed = 0
    for name in names:
        lines = differences(before["pins"].get(name, {}), _collected([name])[name])
        failed += len(lines)
        for line in lines[:_SHOWN]:
            print(f"{name}: {line}", flush=True)
        if len(lines) > _SHOWN:
            print(f"{name}: and {len(lines) - _SHOWN:,} more")
    print(f"{failed:,} differences" if failed else "all pins hold")
    return 1 if failed else 0


def main() -> int:
    _environment()
    from tests.pins import portable
    from tests.pins.sections import SECTIONS

    parser = argparse.ArgumentParser(prog="python -m tests.pins", description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", metavar="FILE", help="write the pins of this tree")
    what.add_argument("--check", metavar="FILE", help="compare this tree with the pins in a file")
    what.add_argument("--write-portable", action="store_true", help="write portable.json, which the tests compare")
    what.add_argument("--list", action="store_true", help="say which sections there are")
    parser.add_argument("sections", nargs="*", help="these sections; all by default")
    parser.add_argument("--but", nargs="+", default=[], metavar="SECTION", help="all sections but these")
    options = parser.parse_args()
    unknown = {*options.sections, *options.but} - {*SECTIONS}
    if unknown:
        parser.error(f"sections {', '.join(sorted(unknown))}: must be among {', '.join(SECTIONS)}")
    names = [name for name in options.sections or SECTIONS if name not in options.but]
    if options.list:
        print("\n".join(f"{name}: {(make.__doc__ or '').strip()}" for name, make in SECTIONS.items()))
        return 0
    if options.write_portable:
        portable.FILE.write_text(portable.written(), encoding="utf-8")
        return 0
    if options.check:
        return _check(json.loads(Path(options.check).read_text(encoding="utf-8")), names)
    record = {"platform": _platform(), "pins": _collected(names)}
    Path(options.write).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
