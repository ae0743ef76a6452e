"""Federated hard thresholding: clients train on their own records, and a server averages the models they send.

``dp_fed_sgd_ht`` and ``dp_fed_gd_ht`` are private, ``fed_sgd_ht`` is not; ``plan`` makes the plan of a private fit
without any data. Each client adds its own noise, so its guarantee holds against the server too. ``ClientFolder``
is a client on its own disk, and ``Coordinator`` the server of clients that are elsewhere.
"""

from __future__ import annotations

from dptoolkit.federated.client import Client, Message
from dptoolkit.federated.fit import (
    FederatedResult,
    dp_fed_gd_ht,
    dp_fed_gd_ht_cnn,
    dp_fed_sgd_ht,
    dp_fed_sgd_ht_cnn,
    plan,
)
from dptoolkit.federated.folder import ClientFolder, Request
from dptoolkit.federated.plain import fed_sgd_ht, fed_sgd_ht_cnn
from dptoolkit.federated.plan import FederatedPlan
from dptoolkit.federated.rounds import Answer, Coordinator, Transport
from dptoolkit.federated.server import Server
from dptoolkit.federated.terms import Terms, agree

__all__ = [
    "Answer", "Client", "ClientFolder", "Coordinator", "FederatedPlan", "FederatedResult", "Message", "Request",
    "Server", "Terms", "Transport", "agree", "dp_fed_gd_ht", "dp_fed_gd_ht_cnn", "dp_fed_sgd_ht",
    "dp_fed_sgd_ht_cnn", "fed_sgd_ht", "fed_sgd_ht_cnn", "plan",
]  # fmt: skip
