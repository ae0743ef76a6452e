"""The shape of the tree: who imports whom, and that docs/architecture.md says so.

``python tests/test_architecture.py`` rewrites the import graph on that page.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from dptoolkit.losses import LOSSES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
GRAPH = re.compile(r"(<!-- import graph -->\n```text\n).*?(```\n)", re.DOTALL)
# A place on the page: `file.py` `function`, or `file.py` `Class.method`.
PLACE = re.compile(r"`([\w/]+\.py)` `([\w.]+)`")


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the package by its name."""
    names = {}
    for path in sorted((root / "dptoolkit").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


class _Imports(ast.NodeVisitor):
    """What a module imports when it runs, early or late; imports for type checkers alone are left out."""

    def __init__(self, known: dict[str, Path]) -> None:
        self.known, self.names = known, set[str]()

    def visit_If(self, node: ast.If) -> None:
        for child in node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else [*node.body, *node.orelse]:
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self._add(full if full in self.known else node.module or "")

    def _add(self, name: str) -> None:
        while name and name not in self.known:
            name = name.rpartition(".")[0]
        if name:
            self.names.add(name)


def imports(source: str, known: dict[str, Path]) -> set[str]:
    """The modules of ours that this source imports."""
    visitor = _Imports(known)
    visitor.visit(ast.parse(source))
    return visitor.names


@cache
def module_graph() -> dict[str, set[str]]:
    """What every module imports, also inside functions."""
    known = modules()
    return {name: imports(path.read_text(encoding="utf-8"), known) - {name} for name, path in known.items()}


def package(module: str) -> str:
    """The room of the house that a module belongs to: the first folder or file below dptoolkit."""
    return ".".join(module.split(".")[:2])


def package_graph(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """What every room imports of the others."""
    rooms: dict[str, set[str]] = {}
    for module, others in graph.items():
        room = package(module)
        rooms.setdefault(room, set()).update(package(other) for other in others)
    # The package itself holds its version and lazy names alone, and everybody may ask for those.
    return {room: others - {room, "dptoolkit"} for room, others in rooms.items() if room != "dptoolkit"}


def order(graph: dict[str, set[str]]) -> list[str]:
    """The nodes, each after what it imports; CycleError if there is no such order."""
    return list(TopologicalSorter({node: sorted(graph[node]) for node in sorted(graph)}).static_order())


def drawing(rooms: dict[str, set[str]]) -> str:
    """One line per room, after all rooms that it imports."""
    short = lambda room: room.removeprefix("dptoolkit.")  # noqa: E731
    width = max(len(short(room)) for room in rooms)
    lines = [f"{short(room):<{width}}  {', '.join(sorted(map(short, rooms[room])))}".rstrip() for room in order(rooms)]
    return "\n".join(lines) + "\n"


def test_modules_have_no_cycles_not_even_by_late_imports():
    order(module_graph())


def test_packages_have_no_cycles():
    order(package_graph(module_graph()))


def test_a_cycle_would_be_found():
    with pytest.raises(CycleError):
        order({"a": {"b"}, "b": {"a"}})
    known = {"dptoolkit": ROOT, "dptoolkit.data": ROOT}
    late = "def f():\n    from dptoolkit.data import Rows\n"
    assert imports(late, known) == {"dptoolkit.data"}
    typed = "if TYPE_CHECKING:\n    from dptoolkit.data import Rows\n"
    assert imports(typed, known) == set()


def test_kernels_import_nothing_of_ours_but_kernels():
    for module, others in module_graph().items():
        if package(module) == "dptoolkit.kernels":
            assert {package(other) for other in others} <= {"dptoolkit.kernels", "dptoolkit"}, module


def test_accounting_stands_alone():
    """Pictures are drawn on request alone, by a room that imports nothing but words for errors."""
    below = {"dptoolkit.accounting", "dptoolkit.adjacency", "dptoolkit.errors", "dptoolkit._validate", "dptoolkit"}
    below |= {"dptoolkit.plots", "dptoolkit.types"}
    for module, others in module_graph().items():
        if package(module) == "dptoolkit.accounting":
            assert {package(other) for other in others} <= below, module


def test_the_specification_of_kernels_is_not_production_code():
    users = [m for m, others in module_graph().items() if "dptoolkit.kernels.reference" in others]
    assert users == []


def loss_questions(source: str, names: set[str]) -> list[str]:
    """Comparisons with the name of a loss."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in names
    ]


def test_nobody_else_asks_which_loss_it_is():
    names = set(LOSSES)
    assert loss_questions("if loss.name in ('hinge', 'softmax') or x: pass", names)
    for module, path in modules().items():
        if module != "dptoolkit.losses" and package(module) != "dptoolkit.kernels":
            assert loss_questions(path.read_text(encoding="utf-8"), names) == [], module


def outside(source: str) -> list[str]:
    """Private names and kernels of ours that a source outside the package imports or reads."""
    known, tree = modules(), ast.parse(source)
    names = [name for name in imports(source, known) if name.startswith("dptoolkit.kernels") or "._" in name]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dptoolkit"):
            names += [alias.name for alias in node.names if alias.name.startswith("_")]
        elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in OF_TUPLES:
            names += [ast.unparse(node)] if ast.unparse(node.value) != "self" else []
    return [name for name in names if not name.startswith("_")]


# Public methods of named tuples, whose names begin with _ so that no field has them.
OF_TUPLES = ("_asdict", "_fields", "_replace")
# It counts what kernels read, which no public function does.
INSIDE = {ROOT / "benchmarks" / "suite" / "counts.py"}


def test_benchmarks_and_paper_checks_use_the_public_surface():
    assert all(outside(path.read_text(encoding="utf-8")) for path in INSIDE)
    assert outside("from dptoolkit.kernels import threshold") and outside("solvers.base._cache.clear()")
    for folder in ("benchmarks", "paper_checks"):
        for path in set((ROOT / folder).rglob("*.py")) - INSIDE:
            text = path.read_text(encoding="utf-8")
            assert outside(text) == [] and "mock" not in text, path


def test_long_files_say_why():
    """A file of more than 500 lines has a reason at its top: a line of its docstring that begins with "Long"."""
    for path in (ROOT / "dptoolkit").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 500:
            assert re.search(r"^Long ", ast.get_docstring(ast.parse(text)) or "", re.MULTILINE), path


def test_the_page_shows_the_imports():
    found = GRAPH.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    expected = found.group(1) + drawing(package_graph(module_graph())) + found.group(2)
    assert found.group(0) == expected, "run: python tests/test_architecture.py"


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Names of functions, classes and methods, and of what is assigned at the top of a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + t.id for t in targets if isinstance(t, ast.Name))


def test_every_place_on_the_page_exists():
    places = PLACE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(places) > 20
    for file, name in places:
        tree = ast.parse((ROOT / "dptoolkit" / file).read_text(encoding="utf-8"))
        assert name in set(definitions(tree)), f"{file}: {name}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    new = GRAPH.sub(lambda m: m.group(1) + drawing(package_graph(module_graph())) + m.group(2), text)
    PAGE.write_text(new, encoding="utf-8")
    sys.exit(0)
