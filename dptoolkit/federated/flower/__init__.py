"""Federations on several machines, with Flower: a SuperLink at the server, a SuperNode at every client.

``serve`` and ``attend`` start these programs, as ``dptoolkit federated server`` and ``dptoolkit federated client`` do;
``apps`` has what Flower runs on them. It needs the extra ``dptoolkit[flower]``.
"""

from __future__ import annotations

from dptoolkit.federated.flower.processes import attend, serve

__all__ = ["attend", "serve"]
