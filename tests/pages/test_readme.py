"""The README is run: its Python blocks, its commands, and what both print.

``python tests/pages/test_readme.py`` writes what they print now into the README; read the difference before you keep
it.
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

PATH = Path(__file__).resolve().parents[2] / "README.md"
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


def test_the_two_commands_follow_what_it_is_and_a_picture():
    words, picture = r"# dptoolkit\n\n(?:[^#`]|`dptoolkit`)*", r"!\[[^\]]+\]\(docs/\w+\.png\)\n\n"
    assert re.match(words + picture + r"```sh\nmake demo [^\n]*\nmake test [^\n]*\n```\n", README)


def test_it_is_short():
    words = re.sub(r"```.*?```", "", README, flags=re.DOTALL).split()
    assert len(words) < 700


def test_every_block_is_one_that_is_run():
    assert len(EXAMPLE.findall(README)) == README.count("```python") > 0
    assert len(COMMAND.findall(README)) == README.count("```console") > 0


@pytest.mark.parametrize(("_", "code", "shown"), EXAMPLE.findall(README), ids=["fit", "audit", "account"])
def test_python_prints_what_is_shown(_, code, shown):
    assert _python(code) == shown != ""


@pytest.mark.parametrize(("_", "line", "shown"), COMMAND.findall(README), ids=["compare"])
def test_a_command_prints_what_is_shown(_, line, shown):
    assert _command(line) == shown != ""


def test_the_table_of_methods_is_complete(root):
    page = (root / "docs" / "accounting.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^## Methods\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`[a-z-]+`(?:, `[a-z-]+`)*) \|", table, re.MULTILINE)
    assert re.findall(r"`([a-z-]+)`", " ".join(rows)) == list(METHODS)


def test_links_and_paths_lead_somewhere(root):
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert [path for path in links if not (root / path).exists()] == []


if __name__ == "__main__":
    text = EXAMPLE.sub(lambda block: block[1] + _python(block[2]), README)
    PATH.write_text(COMMAND.sub(lambda block: block[1] + _command(block[2]), text), encoding="utf-8")
