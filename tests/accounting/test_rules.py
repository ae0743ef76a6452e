"""Every elementary event has one row, and no other place asks for its kind."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest

from dptoolkit.accounting import (
    ApproxDp,
    BestOf,
    Composed,
    DiscreteGaussian,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NoisyMax,
    ObjectivePerturbation,
    PureDp,
    RandomizedResponse,
    RandomRounds,
    Repeated,
    SampledGroup,
    ShiftedZCdp,
    Subsampled,
    TruncatedPoisson,
    TwoSidedGeometric,
    ZCdp,
    account,
)
from dptoolkit.accounting.events import EVENTS
from dptoolkit.accounting.rules import RULES, EventRules, rules_of
from dptoolkit.accounting.structure import scaled, words
from dptoolkit.errors import UnsupportedEvent

PACKAGE = Path(__file__).resolve().parents[2] / "dptoolkit"
STRUCTURE = {Subsampled, Repeated, Composed, RandomRounds, BestOf}
EXAMPLES = [
    Gaussian(2.0), Laplace(3.0), TwoSidedGeometric(0.5, 3), DiscreteGaussian(2.0, 3), RandomizedResponse(0.7, 4),
    ExponentialMechanism(0.5), NoisyMax(0.5), PureDp(0.5), ApproxDp(0.5, 1e-6), ZCdp(0.05),
    ObjectivePerturbation(2.0, 0.2), ObjectivePerturbation(2.0, 0.2, True, "zero-out"), SampledGroup(2.0, 0.1, 3),
    MixtureOfGaussians(2.0, (0.0, 1.0, 3.0), (0.7, 0.2, 0.1)), TruncatedPoisson(2.0, 0.3, 20, 5),
    TruncatedPoisson(2.0, 0.3, 20, 5, "replace-one"), ShiftedZCdp(0.05, 0.01),
]  # fmt: skip
ORDERS = np.array([1.01, 1.5, 2.0, 7.3, 64.0])


def test_every_elementary_event_has_a_row():
    assert set(RULES) == set(EVENTS.values()) - STRUCTURE
    assert {type(event) for event in EXAMPLES} == set(RULES)


@pytest.mark.parametrize("event", EXAMPLES, ids=str)
def test_the_columns_of_a_row_agree(event):
    """rho and the pure epsilon bound the Renyi divergence, and the attained pair lies below the dominating one."""
    own = rules_of(event)
    if own.renyi is not None:
        divergence = own.renyi(event, ORDERS)
        if own.rho is not None:
            assert np.all(divergence <= own.rho(event) * ORDERS * (1 + 1e-12))
        if own.pure is not None:
            assert np.all(divergence <= own.pure(event) * (1 + 1e-12))
    if own.dominating is not None and own.attained is not None:
        x = np.linspace(0, 2, 50)
        assert np.all(own.attained(event).above(x) <= own.dominating(event).above(x) + 1e-15)
    assert len(words(event)) == 3 and type(event).__name__ in words(event)[0]


@pytest.mark.parametrize("event", EXAMPLES, ids=str)
def test_less_noise_is_less_private(event):
    assert scaled(event, 1.0) == event
    here, worse = (account(scaled(event, factor)).epsilon(1e-4) for factor in (1.0, 2.0))
    assert worse > here
    assert account(scaled(event, 0.0)).epsilon(1e-4) == pytest.approx(0.0, abs=1e-300)
    if not isinstance(event, (SampledGroup, TruncatedPoisson)):
        assert scaled(Repeated(Subsampled(event, "poisson", 0.5), 3), 2.0) == Repeated(
            Subsampled(scaled(event, 2.0), "poisson", 0.5), 3
        )


def test_an_event_without_a_row_is_refused_in_words():
    class Foreign(Event):
        """Somebody else's."""

    event = Foreign()
    assert rules_of(event).pure is None and isinstance(rules_of(event), EventRules)
    for method in (None, "pld", "rdp", "zcdp", "gaussian"):
        with pytest.raises(UnsupportedEvent, match="must"):
            account(event, method).epsilon(1e-5)
    with pytest.raises(UnsupportedEvent, match="must"):
        scaled(event, 2.0)
    assert account(event).rho == math.inf


def kinds_asked(source: str) -> set[str]:
    """Elementary events whose kind the source asks for, by isinstance or by comparing types."""
    elementary = {cls.__name__ for cls in RULES}
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            found |= {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            found |= {n.attr for n in ast.walk(node.args[1]) if isinstance(n, ast.Attribute)}
    return found & elementary


def test_nobody_else_asks_what_kind_an_elementary_event_is():
    """What differs from event to event is a column: an isinstance elsewhere is a second place to forget."""
    for folder in ("accounting", "audit", "cli"):
        for path in (PACKAGE / folder).rglob("*.py"):
            assert kinds_asked(path.read_text(encoding="utf-8")) == set(), path
    assert kinds_asked("isinstance(part, (Gaussian, acc.Laplace)) or isinstance(x, Subsampled)") == {
        "Gaussian",
        "Laplace",
    }
