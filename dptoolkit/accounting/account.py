"""``account``: what the release that an event describes guarantees."""

from __future__ import annotations

from dptoolkit._validate import invalid, one_of
from dptoolkit.accounting.events import Event, adjacency_of, as_event
from dptoolkit.accounting.guarantee import Guarantee
from dptoolkit.accounting.methods import METHODS
from dptoolkit.adjacency import Adjacency


def account(event: Event, method: str | None = None, *, adjacency: Adjacency | str | None = None) -> Guarantee:
    """The guarantee of what ``event`` says was released.

    Parameters
    ----------
    event : what was released.
    method : None for the tightest sound bound, or one of "gaussian", "pld", "rdp", "zcdp", "bounded-range", "optimal",
        "advanced", "basic" to force one, for comparison.
    adjacency : the neighbouring relation that the noise multipliers are stated for. Sampling and objective perturbation
        fix it; a contradiction raises.

    Privacy
    -------
    Touches no data. The bound holds under adaptive composition, for the adjacency of the event.
    """
    as_event("event", event)
    if method is not None:
        one_of("method", method, tuple(METHODS))
    fixed = adjacency_of(event)
    relation = None if adjacency is None else Adjacency.parse(adjacency)
    if fixed is not None and relation is not None and fixed is not relation:
        raise invalid(
            "adjacency", str(relation), f"'{fixed}', which the event fixes",
            "Give its Subsampled or ObjectivePerturbation the adjacency you mean.",
        )
    return Guarantee(event, method, relation or fixed)
