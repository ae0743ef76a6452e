"""A few seconds of tests of one thing: ``make quick T=dp_ight``, or ``python -m tests.quick dp_ight``.

    python -m tests.quick                        the names to choose from
    python -m tests.quick dp_ight [pytest options]
    python -m tests.quick --costs times.jsonl    renew tests/costs.json from a run with DPTOOLKIT_TEST_TIMES=times.jsonl

A name is a private solver (its own tests, and the cases of other tests that name it), a folder or file of ``tests``,
or a path. Cases are taken one per test, cheapest first, then the second ones, and so on, until a few seconds of
processor time are planned; ``costs.json`` has the tests that cost more than a little. Hypothesis draws three examples.
Slow tests are left out. The choice depends on names and recorded costs alone, so the same tests run every time.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
COSTS = HERE / "costs.json"
# Seconds of processor time: of what is run, of a test that is listed nowhere, and of the cheapest one that is listed.
BUDGET, CHEAP, LISTED = 4.0, 0.01, 0.05
# Where tests of one solver are looked for; reading other folders takes longer than it brings.
PLACES = ("solvers", "kernels", "audit/pairs")


def subjects() -> dict[str, Path]:
    """Folders and files of the tests, by name: accounting, cli, losses, ..."""
    folders = {path.name: path for path in HERE.iterdir() if any(path.glob("**/test_*.py"))}
    return folders | {path.stem.removeprefix("test_"): path for path in sorted(HERE.glob("test_*.py"))}


def solver_modules() -> dict[str, str]:
    """Private solvers, each with the name of its file: dp_ight is in _ight."""
    from dptoolkit import solvers

    return {name: solvers.settings_class(name).__module__.rpartition(".")[2].strip("_") for name in solvers.PRIVATE}


def files_of_solver(name: str, module: str) -> list[Path]:
    """The files whose name or text has the solver in it, and those that go through all private solvers."""
    found = []
    for path in sorted(path for place in PLACES for path in (HERE / place).rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path.stem == f"test_{module}" or re.search(rf"\b{name}\b|\bPRIVATE\b", text):
            found.append(path)
    return found


def cost(test: str, costs: dict[str, float]) -> float:
    """Of one case of a test, in seconds."""
    return costs.get(test, CHEAP)


def chosen(names: list[str], costs: dict[str, float], budget: float = BUDGET) -> list[str]:
    """Of these tests one case each, cheapest first, then a second one, until the budget is used up."""
    rounds: dict[int, list[str]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for name in names:
        test = name.partition("[")[0]
        rounds[seen[test]].append(name)
        seen[test] += 1
    picked, spent = [], 0.0
    for number in sorted(rounds):
        for name in sorted(rounds[number], key=lambda name: cost(name.partition("[")[0], costs)):
            spent += cost(name.partition("[")[0], costs)
            if spent > budget:
                return picked
            picked.append(name)
    return picked


class Quick:
    """A plugin of pytest that leaves out what is not about the solver, what is slow, and what is beyond the budget."""

    def __init__(self, solver: str | None, module: str | None) -> None:
        self.solver, self.module, self.words = solver, module, ""

    def _about(self, item: object) -> bool:
        if self.solver is None:
            return True
        path, _, case = str(item.nodeid).partition("::")  # type: ignore[attr-defined]
        if Path(path).stem == f"test_{self.module}" or re.search(rf"(?<![a-z_]){self.solver}(?![a-z_])", case):
            return True
        code = item.function.__code__  # type: ignore[attr-defined]
        return self.solver in code.co_names or any(c == self.solver for c in code.co_consts)

    def pytest_collection_modifyitems(self, config: object, items: list) -> None:
        about = [item for item in items if self._about(item) and not item.get_closest_marker("skip")]
        costs = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
        picked = set(chosen([item.nodeid for item in about], costs))
        self.words = f"{len(picked)} of {len(about)} tests"
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in picked])  # type: ignore[attr-defined]
        items[:] = [item for item in items if item.nodeid in picked]

    def pytest_terminal_summary(self, terminalreporter: object) -> None:
        terminalreporter.write_line(f"quick: {self.words}; the others run with make test")  # type: ignore[attr-defined]


def choices() -> str:
    """The names, in two lines."""
    return f"solvers: {', '.join(solver_modules())}\nsubjects: {', '.join(sorted(subjects()))}"


def unknown(name: str) -> str:
    """One line about a name that is none."""
    names = [*solver_modules(), *subjects()]
    near = difflib.get_close_matches(name, names, 3)
    hint = f"did you mean {' or '.join(near)}? The choices: " if near else "the choices: "
    return f"T={name}: must be a solver, a folder or file of tests/, or a path; {hint}{', '.join(sorted(names))}"


def write_costs(path: str) -> None:
    """Keep what costs at least LISTED seconds per case, compilation left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, seconds, compiling = json.loads(line)
        found[name.partition("[")[0]].append(max(0.0, seconds - compiling))
    costs = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    costs = {test: seconds for test, seconds in costs.items() if test not in found}
    costs |= {test: round(sorted(each)[len(each) // 2], 2) for test, each in found.items()}
    costs = {test: seconds for test, seconds in sorted(costs.items()) if seconds >= LISTED}
    COSTS.write_text(json.dumps(costs, indent=0) + "\n", encoding="utf-8")
    print(f"{len(costs)} tests cost {LISTED} s or more per case: {COSTS.relative_to(HERE.parent)}")


def run(name: str, options: list[str]) -> int:
    """Run the tests of that name."""
    modules, folders = solver_modules(), subjects()
    if name in modules:
        paths, plugin = files_of_solver(name, modules[name]), Quick(name, modules[name])
    elif name in folders:
        paths, plugin = [folders[name]], Quick(None, None)
    elif Path(name.partition("::")[0]).exists():
        paths, plugin = [Path(name)], Quick(None, None)
    else:
        print(unknown(name), file=sys.stderr)
        return 2
    os.environ["HYPOTHESIS_PROFILE"] = "quick"
    import pytest

    # The names of solvers had to be looked up before pytest began, which it would warn of.
    quiet = ["-q", "--no-header", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*quiet, *map(str, paths), *options], plugins=[plugin]))


def main(arguments: list[str]) -> int:
    """The command line."""
    if not arguments or arguments[0] in ("", "help", "-h", "--help"):
        print(choices())
        return 0
    if arguments[0] == "--costs":
        write_costs(arguments[1])
        return 0
    return run(arguments[0], arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
