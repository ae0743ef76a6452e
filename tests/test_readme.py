"""The README is run: its Python blocks, its commands, and what both print.

``python tests/test_readme.py`` writes what they print now into the README; read the difference before you keep it.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dptoolkit import cli
from dptoolkit.accounting import METHODS

PATH = Path(__file__).resolve().parent.parent / "README.md"
README = PATH.read_text(encoding="utf-8")
# Each Python block with the text block that follows it, each command with what follows it.
EXAMPLE = re.compile(r"(```python\n(.*?)```\n\n```text\n)(.*?)(?=```)", re.DOTALL)
COMMAND = re.compile(r"(```console\n\$ dptoolkit ([^\n]*)\n)(.*?)(?=```)", re.DOTALL)


def _printed(work: Callable[[], object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        work()
    return out.getvalue()


def _python(code: str) -> str:
    return _printed(lambda: exec(compile(code, "README.md", "exec"), {}))


def _command(line: str) -> str:
    return _printed(lambda: cli.main(shlex.split(line)))


def test_it_opens_with_the_two_commands():
    assert re.match(r"# dptoolkit\n\n```sh\nmake demo [^\n]*\nmake test [^\n]*\n```\n", README)


def test_every_block_is_one_that_is_run():
    assert len(EXAMPLE.findall(README)) == README.count("```python") > 0
    assert len(COMMAND.findall(README)) == README.count("```console") > 0


@pytest.mark.parametrize(("_", "code", "shown"), EXAMPLE.findall(README), ids=["account", "ledger", "fit", "audit"])
def test_python_prints_what_is_shown(_, code, shown):
    assert _python(code) == shown != ""


@pytest.mark.parametrize(("_", "line", "shown"), COMMAND.findall(README), ids=["bracket", "calibrate", "compare"])
def test_a_command_prints_what_is_shown(_, line, shown):
    assert _command(line) == shown != ""


def test_the_table_of_methods_is_complete():
    (table,) = re.findall(r"^## Methods\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(METHODS)


def test_links_and_paths_lead_somewhere(root):
    links = re.findall(r"\]\(([^)]+)\)", README)
    files = re.findall(r"^\| `([^`]*/[^`]*)`", README, re.MULTILINE)
    assert links
    assert files
    assert [path for path in (*links, *files) if not (root / path).exists()] == []


if __name__ == "__main__":
    text = EXAMPLE.sub(lambda block: block[1] + _python(block[2]), README)
    PATH.write_text(COMMAND.sub(lambda block: block[1] + _command(block[2]), text), encoding="utf-8")
