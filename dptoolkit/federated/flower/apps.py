"""What Flower runs: a ServerApp, which is a ``Coordinator``, and a ClientApp, which opens a ``ClientFolder``.

Flower starts a new process for every message to a client. So all that a client knows is in its folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dptoolkit.errors import DpToolkitError, InvalidValue
from dptoolkit.federated.client import Message
from dptoolkit.federated.folder import ClientFolder, Request
from dptoolkit.federated.rounds import REFUSED, Answer, Coordinator
from dptoolkit.federated.terms import Terms

# The names of the parts of a message, and Flower's kind of message.
_FACTS, _MODEL, _KIND = "facts", "model", "train"
# Seconds that clients wait for the end until the model is kept, and between two looks.
KEEP, _POLL = 60.0, 0.1


def _content(facts: dict[str, Any], support: Any, values: Any) -> Any:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = ArrayRecord({"support": Array(np.asarray(support)), "values": Array(np.asarray(values))})
    return RecordDict({_FACTS: ConfigRecord(facts), _MODEL: arrays})


def _facts(content: Any) -> tuple[dict[str, Any], Any, Any]:
    """(facts, support, values) of a message; InvalidValue for one that is not ours."""
    try:
        arrays = content[_MODEL]
        return dict(content[_FACTS]), arrays["support"].numpy(), arrays["values"].numpy()
    except Exception:
        # NumPy unpacks what somebody else has sent, and raises whatever its bytes lead to.
        raise InvalidValue("A message of another program: must be one of a dptoolkit federation.") from None


# --- the client ----------------------------------------------------------------------------------------


def answer(content: Any, folder: str) -> Any:
    """The content of the reply to a message.

    Privacy
    -------
    A reply has the weights of ``ClientFolder.answer``, or the words of a refusal, which depend on the request and on
    the rounds that were answered. An unexpected error is named by its type alone, as its words might show a record.
    """
    nothing = np.zeros(0, dtype=np.int64), np.zeros(0)
    number = -1
    try:
        client = ClientFolder(folder)
        number = client.number
        facts, support, values = _facts(content)
        run, fingerprint, asked = (facts.get(name) for name in ("run", "plan", "round"))
        message = client.answer(Request(str(run), str(fingerprint), asked, support, values))  # type: ignore[arg-type]
    except DpToolkitError as problem:
        return _content({"client": number, "round": 0, "problem": f"{problem}"}, *nothing)
    except Exception as problem:
        words = f"unexpected {type(problem).__name__} at the client"
        return _content({"client": number, "round": 0, "problem": words}, *nothing)
    return _content({"client": message.client, "round": message.round, "problem": ""}, message.support, message.values)


def client_app() -> Any:
    """Flower's ClientApp; the node's setting ``folder`` is the folder of its client."""
    from flwr.app import Message as Envelope
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Any, context: Any) -> Any:
        return Envelope(answer(message.content, str(context.node_config.get("folder", ""))), reply_to=message)

    return app


# --- the server ----------------------------------------------------------------------------------------


class GridTransport:
    """A ``Transport`` by Flower's Grid: messages are pushed, and replies pulled by the messages that they answer."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> Collection[int]:
        """See ``Transport``."""
        return list(self._grid.get_node_ids())

    def send(self, requests: Sequence[tuple[int, Request]], seconds: float) -> list[str | None]:
        """See ``Transport``."""
        from flwr.app import Message as Envelope

        envelopes = []
        for node, request in requests:
            facts = {"run": request.run, "plan": request.fingerprint, "round": request.round}
            content = _content(facts, request.support, request.values)
            envelopes.append(Envelope(content=content, dst_node_id=node, message_type=_KIND, ttl=max(seconds, 10.0)))
        names = [name or None for name in self._grid.push_messages(envelopes)]
        return names or [None] * len(requests)

    def receive(self, names: Collection[str]) -> list[Answer]:
        """See ``Transport``; the sender of an error need not be the node that was asked, so it is not looked at."""
        return [self._answer(one) for one in self._grid.pull_messages(list(names))]

    @staticmethod
    def _answer(envelope: Any) -> Answer:
        name = str(envelope.metadata.reply_to_message_id)
        if envelope.has_error():
            return Answer(name, problem=f"{envelope.error.reason or 'no reason'} (Flower's code {envelope.error.code})")
        try:
            facts, support, values = _facts(envelope.content)
            message = Message(facts["client"], facts["round"], support, values)
            if not message.is_numbered:
                raise KeyError
        except (KeyError, InvalidValue):
            return Answer(name, problem=f"{REFUSED}it has sent a message of another program")
        if facts.get("problem"):
            return Answer(name, problem=f"{REFUSED}{facts['problem']}")
        return Answer(name, message)


def server_app() -> Any:
    """Flower's ServerApp; the run's settings are ``terms`` and ``outcome``, two files, ``wait`` and ``timeout``."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        settings = context.run_config
        fit(grid, str(settings["terms"]), str(settings["outcome"]), float(settings["wait"]), float(settings["timeout"]))

    return app


def fit(grid: Any, terms_file: str, outcome: str, wait: float, timeout: float) -> None:
    """Run all rounds, and write the weights, or why there are none, to the file ``outcome``.

    Weights are written before clients are told that the run is over, and the program that started this one has time to
    keep them: it makes the file OUTCOME.kept, and finds OUTCOME.over when clients have been told.
    """

    def keep(weights: Any) -> None:
        places = np.flatnonzero(weights)
        # Doubles are written as hexadecimal text, to the last bit.
        values = [float(value).hex() for value in weights[places]]
        _write(outcome, {"status": "completed", "places": places.tolist(), "values": values})
        deadline = time.monotonic() + KEEP
        while time.monotonic() < deadline and not os.path.exists(f"{outcome}.kept"):
            time.sleep(_POLL)

    try:
        terms = Terms.read(terms_file)
        Coordinator(terms.run, terms.plan, GridTransport(grid), wait=wait, timeout=timeout, keep=keep).fit()
    except BaseException as problem:
        words = (
            str(problem) if isinstance(problem, DpToolkitError) else f"unexpected {type(problem).__name__}: {problem}"
        )
        # Weights that are there stay, whatever goes wrong with the last words to the clients.
        if not os.path.exists(outcome):
            _write(outcome, {"status": "failed", "problem": words})
        raise
    finally:
        _write(f"{outcome}.over", {})


def _write(path: str, record: dict[str, Any]) -> None:
    draft = Path(f"{path}.new")
    draft.write_text(json.dumps(record), encoding="utf-8")
    os.replace(draft, path)
