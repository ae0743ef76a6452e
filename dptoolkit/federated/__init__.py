"""Federated hard thresholding: clients train on their own records, and a server averages the models they send.

``dp_fed_sgd_ht`` and ``dp_fed_gd_ht`` are private, ``fed_sgd_ht`` is not; ``plan`` makes the plan of a private fit
without any data. Each client adds its own noise, so its guarantee holds against the server too.
"""

from __future__ import annotations

from dptoolkit.federated.client import Client, Message
from dptoolkit.federated.fit import FederatedResult, dp_fed_gd_ht, dp_fed_sgd_ht, fed_sgd_ht, plan
from dptoolkit.federated.plan import FederatedPlan
from dptoolkit.federated.server import Server

__all__ = [
    "Client", "FederatedPlan", "FederatedResult", "Message", "Server", "dp_fed_gd_ht", "dp_fed_sgd_ht", "fed_sgd_ht",
    "plan",
]  # fmt: skip
