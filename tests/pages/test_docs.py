"""Every python block of docs/*.md runs, and prints exactly the text block that follows it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import default_errors
from dptoolkit import cli, solvers
from paper_checks import __main__ as paper_checks
from paper_checks.verdict import VERDICTS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("decisions/*.md")])
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n?^```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#:]+)(?:#[^)]*)?\)")


# Pages whose commands or audits take seconds; their numbers are checked by ``make check-full``.
LONG_EXAMPLES, LONG_COMMANDS = {"audit"}, {"papers"}


def cases(pages: list[Path], long: set[str]) -> list[Any]:
    """Pages as cases of a test, by name; those that take long are slow."""
    return [
        pytest.param(page, id=page_name(page), marks=[pytest.mark.slow] * (page_name(page) in long)) for page in pages
    ]


def page_name(page: Path) -> str:
    """The page's path below docs, without its ending."""
    return page.relative_to(DOCS).with_suffix("").as_posix()


def run_page(text: str) -> list[tuple[str | None, str]]:
    """(expected, printed) of every block; blocks of a page share their names, as a reader's session would."""
    names: dict[str, Any] = {"__name__": "docs"}
    results = []
    for match in BLOCK.finditer(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match["code"], "docs block", "exec", dont_inherit=True), names)
        results.append((match["output"], printed.getvalue()))
    return results


@pytest.mark.filterwarnings("ignore::dptoolkit.solvers.HopelessPlanWarning")
@pytest.mark.parametrize("page", cases(PAGES, LONG_EXAMPLES))
def test_examples_run_and_print_what_the_page_says(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected, printed in run_page(page.read_text()):
        assert printed == (expected or "")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text()):
        assert (page.parent / match["target"]).exists(), match["target"]


HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ANCHOR = re.compile(r"\]\((?P<target>[^)#:]*\.md)?#(?P<anchor>[^)]*)\)")
LINKED = [*sorted(DOCS.rglob("*.md")), *(DOCS.parent / name for name in ("README.md", "LIMITATIONS.md"))]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as Sphinx and forges make them."""
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def lost_anchors(page: Path, text: str) -> list[str]:
    """Links to headings that do not exist."""
    found = []
    for match in ANCHOR.finditer(text):
        other = (page.parent / match["target"]).read_text() if match["target"] else text
        found += [] if match["anchor"] in anchors(other) else [match[0]]
    return found


def test_links_to_headings_lead_somewhere() -> None:
    assert {page.name: lost for page in LINKED if (lost := lost_anchors(page, page.read_text()))} == {}
    assert lost_anchors(DOCS / "index.md", "## A, b\n[x](#a-b) [y](#c) [z](audit.md#groups) [z](audit.md#gruops)") == [
        "](#c)",
        "](audit.md#gruops)",
    ]


BENCHMARK = re.compile(r"python -m (benchmarks(?:\.\w+)*)([^`\n]*)`")
# What a benchmark says in its source if it cannot run without real data.
NEEDS_DATA = re.compile(r'"--data( or --rows)? is needed"|"--data".*required=True')


def commands_without_data(text: str) -> list[str]:
    """Commands of benchmarks that stop at once, because they do not say where the data are."""
    found = []
    for module, options in BENCHMARK.findall(text):
        path = DOCS.parent / module.replace(".", "/")
        source = (path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__main__.py").read_text()
        if NEEDS_DATA.search(source) and not re.search("--data|--rows", options):
            found.append(module + options)
    return found


def test_commands_of_benchmarks_say_where_the_data_are() -> None:
    assert {page.name: lost for page in LINKED if (lost := commands_without_data(page.read_text()))} == {}
    assert commands_without_data("`python -m benchmarks.league --x` `python -m benchmarks.objective`") == [
        "benchmarks.league --x"
    ]


# Items of paper_checks, as pages name them.
ITEM = re.compile(r"\b(?:IGHT|KT|LASSO|SHT|LEC)-[A-Z0-9][\w.]*\w")


def unknown_items(text: str) -> list[str]:
    """Items that no claims file has."""
    files = (DOCS.parent / "paper_checks").glob("*/claims.toml")
    known = set(re.findall(r'^(?:id|item) = "(.*)"$', "\n".join(map(Path.read_text, files)), re.MULTILINE))
    return sorted(set(ITEM.findall(text)) - known)


def test_items_of_papers_that_pages_name_exist() -> None:
    assert {page.name: lost for page in LINKED if (lost := unknown_items(page.read_text()))} == {}
    assert unknown_items("IGHT-F1a, KT-4.7p, IGHT-F9z.") == ["IGHT-F9z"]


def test_the_first_check_of_the_page_on_papers_prints_what_is_shown(capsys, tmp_path, monkeypatch) -> None:
    # The command of the shell starts another process, whose output is not seen here.
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "papers.md").read_text()
    ((command, shown),) = re.findall(r"^\$ dptoolkit check ([^\n]*)\n```\n\n```text\n(.*?)^```", page, re.M | re.DOTALL)
    assert paper_checks.main(command.split()) == 0
    assert shown in capsys.readouterr().out


def test_the_page_on_papers_has_every_verdict_with_its_meaning() -> None:
    text = (DOCS / "papers.md").read_text()
    assert [word for word, entry in VERDICTS.items() if f"| {word} | {entry.meaning} |\n" not in text] == []


def test_the_page_on_choosing_has_the_solvers_of_its_benchmark() -> None:
    measured = (DOCS / "choosing.md").read_text().partition("## Measured\n")[2]
    assert re.findall(r"^\| `(\w+)` \|", measured, re.MULTILINE) == list(default_errors.SOLVERS)


CONSOLE = re.compile(r"^```(?P<kind>python|console)\n(?P<text>.*?)^```\n", re.MULTILINE | re.DOTALL)


def console_pages() -> list[Path]:
    return [page for page in PAGES if "```console\n" in page.read_text()]


def run_console(text: str, names: dict[str, Any]) -> Iterator[tuple[str, list[str], str]]:
    """(command, lines that it must print in this order, what it printed); python blocks are run in between."""
    for match in CONSOLE.finditer(text):
        if match["kind"] == "python":
            exec(compile(match["text"], "docs block", "exec", dont_inherit=True), names)
            continue
        for part in re.split(r"^\$ dptoolkit ", match["text"], flags=re.MULTILINE)[1:]:
            command, *expected = part.splitlines()
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                cli.main(shlex.split(command))
            yield command, expected, printed.getvalue()


# As in a shell, where warnings are printed.
@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize("page", cases(console_pages(), LONG_COMMANDS))
def test_commands_print_what_the_page_says(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, expected, printed in run_console(page.read_text(), {"__name__": "docs"}):
        place = 0
        for line in expected:
            place = printed.find(line, place)
            assert place >= 0, f"{command}\nshould print\n{line}\nbut prints\n{printed}"


def test_a_wrong_number_in_a_page_is_noticed() -> None:
    assert run_page("```python\nprint(2)\n```\n```text\n3\n```\n") == [("3\n", "2\n")]


def test_every_private_solver_has_a_page_of_its_name() -> None:
    pages = {page.stem for page in PAGES}
    assert set(solvers.PRIVATE) <= pages
    assert not set(solvers.PRIVATE) <= pages - {"dp_scsg_ht"}


ROOMS = ["data", "data.store", "solvers", "audit", "mechanisms", "models", "tuning", "estimators", "datasets"]
ROOMS += ["audit.probes", "federated"]
RECORDS = {"X", "y", "clients", "rows", "data", "pair", "pairs", "mechanism", "scores", "value"}


def public_callables(room: str) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """(name, function, what it is defined in) of every public function and method of a room."""
    module = importlib.import_module(f"dptoolkit.{room}")
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", own):
        thing = getattr(module, name)
        if inspect.isfunction(thing):
            yield f"{room}.{name}", thing, (inspect.getmodule(thing),)
        for method, function in inspect.getmembers(thing, inspect.isfunction) if inspect.isclass(thing) else ():
            if function.__module__.startswith("dptoolkit"):
                yield f"{room}.{name}.{method}", function, (thing, inspect.getmodule(function))


def states_privacy(thing: Any) -> bool:
    return "\nPrivacy\n-------\n" in f"\n{inspect.getdoc(thing)}"


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_done_with_records_says_what_it_means_for_their_privacy(room: str) -> None:
    silent = [
        name
        for name, function, homes in public_callables(room)
        if RECORDS & set(inspect.signature(function).parameters) and not name.rpartition(".")[2].startswith("_")
        if not any(map(states_privacy, (function, *homes)))
    ]
    assert silent == []
