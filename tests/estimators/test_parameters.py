"""Parameters of estimators: written once, shown by the constructor, the docstring and scikit-learn alike."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass

import pytest
from sklearn.base import clone

from dptoolkit import estimators
from dptoolkit.estimators import base, linear
from dptoolkit.estimators.parameters import documented, parameter
from tests.estimators.cases import CLASSIFIERS, REGRESSORS, SEARCHES, name

ALL = [*CLASSIFIERS, *REGRESSORS, SEARCHES[0]]


def sections(text):
    """The sections of a docstring by title, and "" for what comes first."""
    parts = re.split(r"\n\n(\w+)\n-+\n", text.strip())
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def faults(text, names):
    """What is wrong with a numpydoc list of these names."""
    heads = [line for line in text.splitlines() if not line.startswith(" ")]
    wrong = [] if [head.split(" : ")[0] for head in heads] == list(names) else [f"{heads} instead of {names}"]
    wrong += [head for head in heads if not re.fullmatch(r"\w+ : [\w\"][^:]*", head) or head.endswith(".")]
    for body in re.split(r"^\S.*\n", text, flags=re.MULTILINE)[1:]:
        words = " ".join(body.split())
        if not re.match(r'["A-Z]', words) or not words.endswith("."):
            wrong.append(f"no full sentence: {words!r}")
    return wrong + [line for line in text.splitlines() if len(line) > 120]


@pytest.mark.parametrize("estimator", ALL, ids=name)
def test_the_docstring_describes_every_parameter_and_attribute(estimator):
    kind = type(estimator)
    found = sections(kind.__doc__)
    assert list(found) == ["", "Parameters", "Attributes", "Privacy"]
    assert faults(found["Parameters"], inspect.signature(kind).parameters) == []
    assert faults(found["Attributes"], kind._attributes()) == []
    assert "Public: n, d, " in " ".join(found["Privacy"].split())
    assert ("classes_" in kind._attributes()) == (estimator not in REGRESSORS)


def test_a_bad_docstring_would_be_found():
    good = "one : int, default 1\n    The first one.\ntwo : str\n    The second."
    assert faults(good, ["one", "two"]) == []
    for bad in (good.replace("The first", "the first"), good.replace("one.", "one"), good.replace("two :", "two"),
                good.replace("int", "The int: it counts"), good.removesuffix("    The second.")):  # fmt: skip
        assert faults(bad, ["one", "two"]), bad
    assert faults(good, ["two", "one"])


@pytest.mark.parametrize("estimator", ALL, ids=name)
def test_the_constructor_keeps_what_it_is_given(estimator):
    kind = type(estimator)
    markers = {key: object() for key in inspect.signature(kind).parameters}
    made = kind(**markers)
    assert made.get_params(deep=False) == markers and list(inspect.signature(kind).parameters) == list(markers)
    assert clone(estimator).get_params(deep=False).keys() == markers.keys()


def descriptions(source):
    """The descriptions of parameters that a source spells out."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "parameter"]
    return [call.args[0].value for call in named if isinstance(call.args[0], ast.Constant)]


def test_no_parameter_is_written_twice():
    twice = "a = parameter('One.', default=1)\nb = parameter('One.', default=2)"
    assert descriptions(twice) == ["One.", "One."]
    texts = descriptions(inspect.getsource(linear) + inspect.getsource(base))
    assert len(texts) > 15 and len(set(texts)) == len(texts)
    # An estimator is its method, its bounds and its task. One of them needs other words for a bound.
    leaves = [kind for kind in vars(linear).values() if isinstance(kind, type) and kind.__module__ == linear.__name__
              and kind.__name__.startswith("Private")]  # fmt: skip
    own = {kind.__name__: list(inspect.get_annotations(kind)) for kind in leaves}
    assert len(own) == 9 and {key: names for key, names in own.items() if names} == {
        "PrivateSparseClassifier": ["row_norm"]
    }


def test_every_estimator_names_a_solver_of_its_task():
    for estimator in (*CLASSIFIERS, *REGRESSORS):
        offered = estimators.linear.PrivateClassifier._task if estimator in CLASSIFIERS else "regression"
        assert all(offered in base.SOLVERS[solver].tasks for solver in estimator._solvers)


def test_documented_writes_what_the_fields_say():
    @documented
    @dataclass(kw_only=True)
    class Example:
        """An example."""

        size: int | None = parameter("The size of it.", default=None)
        shape: object = parameter("Its shape.", kind="str")

        @classmethod
        def _attributes(cls):
            return {"area_": ("float", "Its area.")}

        @classmethod
        def _privacy(cls):
            return "It touches no data."

    assert Example.__doc__ == (
        "An example.\n\nParameters\n----------\nsize : int or None, default None\n    The size of it.\nshape : str\n"
        "    Its shape.\n\nAttributes\n----------\narea_ : float\n    Its area.\n\nPrivacy\n-------\n"
        "It touches no data.\n"
    )
