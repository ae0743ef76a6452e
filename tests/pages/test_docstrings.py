"""Docstrings have the form of numpydoc, and say of every parameter what the signature says.

The test reads every docstring of the package with sections, and asks the functions and classes of the reference
(docs/api.md) for a section about their parameters. Each rule has a planted fault below that breaks it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dptoolkit", "paper_checks", "benchmarks", "examples")

# In the order in which a docstring has them.
ORDER = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Privacy", "Notes", "References", "Examples")
LISTS = ("Parameters", "Attributes", "Returns", "Yields", "Raises")
ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(, \*{0,2}\w+)*) : (?P<type>.+)")

# The words of a type besides names of classes (Plan, scipy.sparse.csr_array) and choices ({"a", "b"}).
WORDS = {
    "int", "float", "str", "bool", "None", "bytes", "callable", "list", "tuple", "dict", "set", "type", "array",
    "array-like", "ndarray", "sparse", "matrix", "sequence", "mapping", "iterable", "iterator", "path-like",
    "file-like", "object", "dtype", "Any", "of", "or", "to", "shape",
}  # fmt: skip
CLASS = re.compile(r"([a-z_]\w*\.)*(_?[A-Z]\w*|ndarray|csr_array|csc_array|sparray|spmatrix)")


class Entry(NamedTuple):
    """A parameter or an attribute as the docstring states it; ``default`` is None where none is stated."""

    names: list[str]
    type: str
    default: str | None


class Section(NamedTuple):
    """A section: its name and its lines."""

    name: str
    lines: list[str]


def sections(doc: str) -> tuple[list[Section], list[str]]:
    """The sections of a docstring, and what is wrong with its headings."""
    lines, found, faults = doc.splitlines(), [Section("", [])], []
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        is_rule = re.fullmatch(r"-{3,}", below.strip()) is not None
        if i and re.match(r"\s*-{3,}", line) and lines[i - 1].strip() in ORDER:
            continue
        if line.strip() in ORDER:
            if line != line.strip():
                faults.append(f"{line.strip()}: the heading is indented")
            if below != "-" * len(line.strip()):
                faults.append(f"{line.strip()}: the line below must have as many dashes as the heading has letters")
            if i and lines[i - 1].strip():
                faults.append(f"{line.strip()}: the line above must be empty")
            found.append(Section(line.strip(), []))
        else:
            if is_rule:
                faults.append(f"{line.strip()}: no section of numpydoc")
            found[-1].lines.append(line)
    return found, faults


def is_type(text: str) -> bool:
    """Whether the text names a type, in words or as an annotation, and is no sentence."""
    plain = re.sub(r"""\{[^{}]*\}|"[^"]*"|'[^']*'""", " ", text)
    plain = re.sub(r"shape \([\w ,+*-]*\)|^\([\w ,+*-]*\)(?= array)", " ", plain)
    words = re.split(r"[\s,|()\[\]]+", plain.strip())
    return bool(text.strip()) and all(w in WORDS or w == "..." or CLASS.fullmatch(w) for w in words if w)


def entries(section: Section) -> tuple[list[Entry], list[str]]:
    """The entries of a section that is a list, and what is wrong with them."""
    found, faults = [], []
    lines = section.lines[: len("\n".join(section.lines).rstrip().splitlines())]
    for i, line in enumerate(lines):
        if line.startswith("    ") or not line.strip():
            continue
        if not (i + 1 < len(lines) and lines[i + 1].startswith("    ")):
            faults.append(f"{line}: no description below it")
        match = ENTRY.fullmatch(line)
        if match is None and section.name in ("Parameters", "Attributes"):
            faults.append(f"{line}: must be 'name : type'")
            continue
        names, text = (match["names"].split(", "), match["type"]) if match else ([], line)
        kind, is_given, default = text.partition(", default ")
        if not is_type(kind.removesuffix(", optional")):
            faults.append(f"{line}: the type slot must hold a type")
        found.append(Entry(names, kind, default if is_given else None))
    if not lines or not lines[0].strip() or lines[0].startswith(" "):
        faults.append(f"{section.name}: must begin with an entry")
    return found, faults


def is_literal(text: str) -> bool:
    """Whether the text is a plain value of Python, such as 2, "a" or None."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def says_default(entry: Entry, parameter: inspect.Parameter) -> bool:
    """Whether the docstring states the default of the signature, or that there is none."""
    if parameter.default is parameter.empty or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return entry.default is None and not entry.type.endswith("optional")
    value = parameter.default
    if isinstance(value, Enum):
        value = str(value)
    with_contents = isinstance(value, float) or is_literal(repr(value))
    if entry.default is None:
        # A default that is no plain value, such as a marker for "not given", need not be shown.
        return entry.type.endswith(", optional") and not with_contents
    if with_contents and is_literal(entry.default):
        return bool(ast.literal_eval(entry.default) == value)
    return not with_contents or entry.default == repr(value)


def described(parts: list[Section]) -> list[Entry]:
    """What the docstring says of parameters; a dataclass may list its fields as attributes."""
    own = [part for part in parts if part.name == "Parameters"] or [p for p in parts if p.name == "Attributes"]
    return [entry for part in own for entry in entries(part)[0]]


def written_names(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """The parameters as numpydoc writes them, stars included, without ``self``."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = signature.parameters.items()
    return {stars.get(p.kind, "") + name: p for name, p in parameters if name not in ("self", "cls")}


def parameter_faults(parts: list[Section], signature: inspect.Signature) -> list[str]:
    """Where names, order and defaults differ from the signature's."""
    stated = described(parts)
    names = [name for entry in stated for name in entry.names]
    parameters = written_names(signature)
    if set(names) - set(parameters) and not any(part.name == "Parameters" for part in parts):
        names = [name for name in names if name in parameters]
    if names != list(parameters):
        return [f"Parameters: {', '.join(names)}; the signature has {', '.join(parameters)}"]
    pairs = [(entry, name) for entry in stated for name in entry.names if name in parameters]
    return [
        f"{name} : {entry.type}: the default differs from the signature's {parameters[name].default!r}"
        for entry, name in pairs
        if not says_default(entry, parameters[name])
    ]


def form_faults(doc: str, signature: inspect.Signature | None = None) -> list[str]:
    """What is wrong with the form of one docstring."""
    parts, faults = sections(doc)
    names = [part.name for part in parts[1:]]
    if names != sorted(set(names), key=ORDER.index):
        faults.append(f"sections: {', '.join(names)}; each once, in the order {', '.join(ORDER)}")
    for part in parts[1:]:
        if not "".join(part.lines).strip():
            faults.append(f"{part.name}: is empty")
        elif part.name in LISTS:
            faults += entries(part)[1]
        elif part.name == "Privacy" and part.lines[0].startswith(" "):
            faults.append("Privacy: the text must not be indented")
    if signature is not None and "Parameters" in names:
        faults += parameter_faults(parts, signature)
    return faults


# --- the package ---------------------------------------------------------------------------------------------


def module_names() -> Iterator[tuple[str, Path]]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    for path in sorted(paths):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, str, inspect.Signature | None]]:
    """(name, docstring, signature) of functions, classes and methods; classes have theirs from the reference."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, ast.get_docstring(node) or "", None
            yield from definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, ast.get_docstring(node) or "", read_signature(node)


def read_signature(node: ast.FunctionDef) -> inspect.Signature:
    """The signature as written; defaults that are names count as any."""
    header = ast.FunctionDef(name="f", args=node.args, body=[ast.Pass()], decorator_list=[], returns=None)
    names = ast.unparse(ast.fix_missing_locations(header))
    arguments = ast.parse(names).body[0].args  # type: ignore[attr-defined]
    kinds, empty = inspect.Parameter, inspect.Parameter.empty
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [empty] * (len(positional) - len(arguments.defaults)) + [_value(d) for d in arguments.defaults]
    found = [kinds(a.arg, kinds.POSITIONAL_OR_KEYWORD, default=d) for a, d in zip(positional, defaults, strict=True)]
    if arguments.vararg:
        found.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(kinds(argument.arg, kinds.KEYWORD_ONLY, default=empty if default is None else _value(default)))
    if arguments.kwarg:
        found.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return node


def package_faults() -> dict[str, list[str]]:
    found = {}
    for module, path in module_names():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        places = [("", ast.get_docstring(tree) or "", None), *definitions(tree)]
        for name, doc, signature in places:
            if faults := form_faults(doc, signature):
                found[f"{module}:{name}"] = faults
    return found


def test_every_docstring_has_the_form_of_numpydoc() -> None:
    assert package_faults() == {}


# --- the reference -------------------------------------------------------------------------------------------

DIRECTIVE = re.compile(r"^\.\. auto(module|class|function):: (\S+)", re.MULTILINE)


def resolve(name: str) -> Any:
    module, _, last = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ImportError:
        return getattr(importlib.import_module(module), last)


def reference() -> Iterator[tuple[str, Any, Any]]:
    """(name, function or class, the class around it) of everything that docs/api.md shows."""
    for kind, name in DIRECTIVE.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8")):
        thing = resolve(name)
        own = [k for k, v in vars(thing).items() if getattr(v, "__module__", "") == name and not k.startswith("_")]
        names = getattr(thing, "__all__", own) if kind == "module" else [""]
        for inner in names:
            found = getattr(thing, inner) if inner else thing
            place = f"{name}.{inner}" if inner else name
            yield place, found, None
            for method, function in vars(found).items() if inspect.isclass(found) else ():
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{place}.{method}", function, found


def is_documented_above(name: str, home: Any) -> bool:
    """Whether a class above documents this method, whose parameters are then the same."""
    above = [vars(base)[name] for base in home.__mro__[1:] if name in vars(base)] if home is not None else []
    return any("Parameters" in [part.name for part in sections(inspect.getdoc(f) or "")[0]] for f in above)


def is_protocol(kind: Any) -> bool:
    """Whether a class only says what others must have."""
    return bool(getattr(kind, "_is_protocol", False))


def thing_faults(place: str, thing: Any, home: Any) -> list[str]:
    """What is wrong with one function or class of the reference; its parameters must be described."""
    if not callable(thing) or (inspect.isclass(thing) and issubclass(thing, (Enum, Exception))) or is_protocol(home):
        return []
    doc, signature = inspect.getdoc(thing) or "", inspect.signature(thing)
    if not written_names(signature) or is_documented_above(place.rpartition(".")[2], home):
        return []
    if inspect.isclass(thing) and (inspect.isabstract(thing) or is_protocol(thing)):
        return []
    parts, faults = sections(doc)[0], form_faults(doc, signature)
    if not described(parts):
        faults.append(f"no section Parameters for {', '.join(written_names(signature))}")
    elif inspect.isclass(thing):
        faults += [fault for fault in parameter_faults(parts, signature) if fault not in faults]
    return faults


def reference_faults() -> dict[str, list[str]]:
    found = {place: thing_faults(place, thing, home) for place, thing, home in reference()}
    return {place: faults for place, faults in found.items() if faults}


def test_everything_in_the_reference_describes_its_parameters() -> None:
    assert reference_faults() == {}


# --- planted faults ------------------------------------------------------------------------------------------


def example(a: Any, b: int = 2, **options: Any) -> None:
    """Words.

    Parameters
    ----------
    a : array-like of shape (n, d) or None
        Words.
    b : int, default 2
        Words.
    **options : float
        Words.

    Returns
    -------
    dict of str to float
        Words.

    Raises
    ------
    ValueError
        If it is wrong.

    Privacy
    -------
    Words.
    """


def test_a_good_docstring_has_no_faults() -> None:
    assert form_faults(inspect.getdoc(example) or "", inspect.signature(example)) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("a : array-like of shape (n, d) or None\n    Words.", "a : the rows of the data, as they are.", "type slot"),
        ("a : array-like of shape (n, d) or None", "a : whatever was given", "type slot"),
        ("a : array-like of shape (n, d) or None\n    Words.", "a : int", "no description"),
        ("a : array-like", "c : array-like", "the signature has a, b"),
        ("b : int, default 2", "b : int", "default differs"),
        ("b : int, default 2", "b : int, default 3", "default differs"),
        ("b : int, default 2\n    Words.\n", "", "the signature has a, b"),
        ("**options", "options", "the signature has a, b"),
        ("b : int, default 2", "b (int)", "must be 'name : type'"),
        ("dict of str to float", "The result.", "type slot"),
        ("ValueError\n    If it is wrong.", "ValueError", "no description"),
        ("Privacy\n-------\nWords.", "Privacy\n-------", "is empty"),
        ("Privacy\n-------\nWords.", "Privacy\n-------\n    Words.", "must not be indented"),
        ("Privacy\n-------\nWords.", "Privacy\n------ Words.", "as many dashes"),
        ("Privacy\n-------\nWords.", "Privacy\nWords.", "as many dashes"),
        ("\nPrivacy\n-------", "Privacy\n-------", "line above"),
        ("Privacy\n-------", "    Privacy\n    -------", "heading is indented"),
        ("Privacy\n-------", "Secrets\n-------", "no section of numpydoc"),
        ("Raises\n------\nValueError\n    If it is wrong.\n\nPrivacy\n-------\nWords.",
         "Privacy\n-------\nWords.\n\nRaises\n------\nValueError\n    If it is wrong.", "in the order"),
    ],
)  # fmt: skip
def test_a_fault_of_form_is_noticed(old: str, new: str, fault: str) -> None:
    doc = inspect.getdoc(example) or ""
    assert old in doc
    found = form_faults(doc.replace(old, new), inspect.signature(example))
    assert any(fault in words for words in found), found


@pytest.mark.parametrize("text", [
    "int", "float or None", "str | None", '{"tight", "published"}', "Plan or callable", "(n, d) array", "list[float]",
    "numpy.random.Generator", "array-like of shape (n_rows,)", "dict of str to (float, float)", "tuple of int",
])  # fmt: skip
def test_types_are_types(text: str) -> None:
    assert is_type(text)


@pytest.mark.parametrize("text", ["a Plan, or any callable", "of epsilon_lower", "the seed", "how many trials", ""])
def test_sentences_are_no_types(text: str) -> None:
    assert not is_type(text)


class Above:
    def method(self, a: int) -> None:
        """Words.

        Parameters
        ----------
        a : int
            Words.
        """


class Below(Above):
    def method(self, a: int) -> None:
        """Other words."""

    def own(self, a: int) -> None:
        """Words without a section."""


@dataclass
class Fields:
    """Words.

    Attributes
    ----------
    a : int
        Words.
    b : int
        Words, without the default.
    """

    a: int
    b: int = 1


def test_the_reference_asks_for_parameters() -> None:
    assert thing_faults("Below.method", Below.method, Below) == []
    assert thing_faults("Below.own", Below.own, Below) == ["no section Parameters for a"]
    (fault,) = thing_faults("Fields", Fields, None)
    assert "default differs" in fault
    assert len(list(reference())) > 150
