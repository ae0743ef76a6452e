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

from dptoolkit import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n?^```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#:]+)(?:#[^)]*)?\)")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run_and_print_what_the_page_says(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected, printed in run_page(page.read_text()):
        assert printed == (expected or "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(page.read_text()):
        assert (page.parent / match["target"]).exists(), match["target"]


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


@pytest.mark.parametrize("page", console_pages(), ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, expected, printed in run_console(page.read_text(), {"__name__": "docs"}):
        place = 0
        for line in expected:
            place = printed.find(line, place)
            assert place >= 0, f"{command}\nshould print\n{line}\nbut prints\n{printed}"


def test_a_wrong_number_in_a_page_is_noticed() -> None:
    assert run_page("```python\nprint(2)\n```\n```text\n3\n```\n") == [("3\n", "2\n")]


def test_every_algorithm_has_a_page() -> None:
    assert {"index", "dp_ight", "dp_frank_wolfe", "sparsifier", "multinomial", "peeling", "accounting", "utility",
            "objective_perturbation", "two_stage", "knowledge_transfer", "dp_admm",
            "pitfalls"} <= {page.stem for page in PAGES}  # fmt: skip


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
