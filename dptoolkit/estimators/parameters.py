"""Parameters of estimators, each written once: its type, default and description stand in one field of a dataclass.

scikit-learn reads the parameters of an estimator from the signature of its constructor, which must only store them.
That is the constructor that a dataclass has. ``documented`` writes the docstring from the same fields.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import MISSING, Field, field, fields
from typing import Any, Protocol, TypeVar

_INDENT: dict[str, Any] = {"width": 116, "initial_indent": "    ", "subsequent_indent": "    "}
_ATTRIBUTES: dict[str, tuple[str, str]] = {
    "guarantee_": ("Guarantee", "What the fit guarantees, computed from what it released."),
    "plan_": ("Plan or JointPlan", "What the fit released, and with which noise."),
    "model_": ("dptoolkit.models.Model", "The model that the estimator predicts with."),
    "coef_": (
        "array",
        "The weights of the features. Where ``model_.preparations`` holds a preparation, they apply to rows that were "
        "prepared in that way; predictions of the estimator do that.",
    ),
    "intercept_": ("float or array", "The intercept; 0 for a model without one."),
    "classes_": ("array", "The class labels, sorted."),
    "n_features_in_": ("int", "The number of features of the fit."),
    "feature_names_in_": ("array of str", "The names of the features, if X has them."),
    "n_iter_": ("int", "The number of iterations; for one fit per class, the largest of them."),
}


class _Describes(Protocol):
    """A class that says what its docstring needs besides the parameters."""

    @classmethod
    def _attributes(cls) -> dict[str, tuple[str, str]]: ...

    @classmethod
    def _privacy(cls) -> str: ...


Class = TypeVar("Class", bound=type[_Describes])


def parameter(text: str, *, default: Any = MISSING, kind: str | None = None) -> Any:
    """A field that is a parameter of an estimator.

    Parameters
    ----------
    text : str
        Its description, in full sentences.
    default : object, optional
        Its default value; without one the parameter is required.
    kind : str or None, default None
        The type in the docstring, if the annotation does not say it.
    """
    return field(default=default, metadata={"text": text, "kind": kind})


def documented(kind: Class) -> Class:
    """The class with a docstring that lists its parameters, attributes and what is private, after its own sentences."""
    parts = [
        inspect.cleandoc(kind.__doc__ or ""),
        _section("Parameters", [_entry(f.name, _type(f), f.metadata["text"]) for f in _parameters(kind)]),
        _section("Attributes", [_entry(name, *words) for name, words in kind._attributes().items()]),
        _section("Privacy", [textwrap.fill(kind._privacy(), 116)]),
    ]
    kind.__doc__ = "\n\n".join(parts) + "\n"
    return kind


def attributes(*names: str, **own: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """(type, description) of the attributes of a fitted estimator: those of every estimator by name, and its own."""
    return own | {name: _ATTRIBUTES[name] for name in names or _ATTRIBUTES}


def _parameters(kind: Any) -> list[Field[Any]]:
    return [entry for entry in fields(kind) if entry.init]


def _section(title: str, entries: list[str]) -> str:
    return "\n".join([title, "-" * len(title), *entries])


def _entry(name: str, kind: str, text: str) -> str:
    return f"{name} : {kind}\n{textwrap.fill(text, **_INDENT)}"


def _type(entry: Field[Any]) -> str:
    """The type of a parameter in words, and its default."""
    words = entry.metadata["kind"] or str(entry.type).replace(" | ", " or ")
    if entry.default is MISSING:
        return str(words)
    default = f'"{entry.default}"' if isinstance(entry.default, str) else repr(entry.default)
    return f"{words}, default {default}"
