"""The server: it averages the messages of all clients, in the order of their numbers, and thresholds the average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dptoolkit._validate import invalid
from dptoolkit.federated.client import Message, check_weights
from dptoolkit.solvers.engine.initial import NOTHING, Start


class Server:
    """The averaged model, round after round.

    Parameters
    ----------
    weights : sequence of float
        The shares of the clients in the average.
    width : int
        The number of weights, intercepts included.
    free : int
        The number of weights that the threshold may drop; the intercepts follow them.
    sparsity : int
        The number of weights that are kept.
    start : tuple of ndarray, optional
        The first model, as (support, values); by default all weights are 0.

    Privacy
    -------
    It sees messages alone, which are releases of their clients: what it computes from them costs nothing.
    """

    def __init__(self, weights: Sequence[float], width: int, free: int, sparsity: int, start: Start = NOTHING) -> None:
        self.weights, self.width, self.free, self.sparsity = tuple(weights), width, free, sparsity
        self.round, self.model = 0, start

    def combine(self, messages: Sequence[Message]) -> Start:
        """The model after the next round, as (support, values), from one message of every client.

        Messages may come in any order; sums are taken in that of the clients' numbers, so that the last bits do not
        depend on who was quick. A round with a missing, doubled, late or misshapen message is refused, and changes
        nothing: an average over the others would be another algorithm.

        Parameters
        ----------
        messages : sequence of Message
            The replies of this round.

        Returns
        -------
        tuple of ndarray
            (support, values): the ``sparsity`` largest weights of the average, and the intercepts. Of equal weights the
            first are kept.
        """
        from dptoolkit.kernels.threshold import largest

        expected = self.round + 1
        by_client: dict[int, Message] = {}
        for message in messages:
            if not message.is_numbered:
                raise invalid("messages", "one without the numbers of a client and a round", "one of every client")
            if message.client in by_client:
                raise invalid("messages", f"two of client {message.client}", "one of every client")
            if not 0 <= message.client < len(self.weights):
                raise invalid("messages", f"one of client {message.client}", f"of {len(self.weights)} clients")
            if message.round != expected:
                what = f"one of client {message.client} for round {message.round}"
                raise invalid("messages", what, f"for round {expected}")
            by_client[message.client] = message
        absent = sorted(set(range(len(self.weights))) - set(by_client))
        if absent:
            raise invalid("messages", f"none of client {', '.join(map(str, absent))}", "one of every client")
        total = np.zeros(self.width)
        for i, share in enumerate(self.weights):
            one = by_client[i]
            support, values = check_weights(f"message of client {i}", one.support, one.values, self.width)
            total[support] += share * values
        kept = largest(total[: self.free], self.sparsity)
        places = np.concatenate([kept, np.arange(self.free, self.width)])
        places = places[total[places] != 0].astype(np.int64)
        self.round, self.model = expected, (places, total[places])
        return self.model
