"""The network of Liang et al. 2023, Table 6, on 28 x 28 images: its weights, its scores and its clipped gradients.

    conv(1, 6, 5x5), ReLU, max-pool 2; conv(6, 16, 5x5), ReLU, max-pool 2; dense 256-120, ReLU; 120-84, ReLU; 84-10

The table shows one max-pool and a view of 64 entries; its first dense layer takes 256, which needs the second pool.
PyTorch is imported on use. Weights are one flat vector of doubles, layer by layer, a layer's biases after its weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptoolkit._validate import missing, whole
from dptoolkit.data import Rows
from dptoolkit.federated.softmax import SoftmaxSteps
from dptoolkit.solvers._sgd import Batches
from dptoolkit.solvers.engine.initial import Start
from dptoolkit.types import Array

# The shapes of the weights of every layer; biases are as many as the first number.
LAYERS = ((6, 1, 5, 5), (16, 6, 5, 5), (120, 256), (84, 120), (10, 84))
SIDE, CLASSES = 28, 10
PIXELS = SIDE * SIDE
SIZE = sum(math.prod(shape) + shape[0] for shape in LAYERS)
# Where the biases of the last layer begin.
LAST_BIASES = SIZE - CLASSES
# Records whose gradients are in memory at a time.
_CHUNK = 512
# Gradients are clipped to a little less than their bound, which covers the rounding of their norms.
_MARGIN = 1 - 1e-5


def needs_torch() -> Any:
    """The module torch, or an error that says how to install it."""
    try:
        import torch
    except ImportError:
        raise missing("torch", "torch", "for the federated network") from None
    return torch


def initial_weights(seed: int = 0) -> Array:
    """The weights to start from, drawn by PyTorch's default law: uniform up to 1/sqrt(inputs of a unit).

    At zero weights all gradients but those of the last biases vanish, so a network cannot start there.

    Parameters
    ----------
    seed : int, default 0
        A public seed.

    Privacy
    -------
    Touches no data: the seed is public.
    """
    rng = np.random.default_rng(whole("initial_seed", seed))
    parts = []
    for shape in LAYERS:
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        parts += [rng.uniform(-bound, bound, math.prod(shape)), rng.uniform(-bound, bound, shape[0])]
    return np.concatenate(parts)


def tensors(weights: Any) -> Iterator[tuple[Any, Any]]:
    """(weights, biases) of every layer, as views of a flat tensor."""
    place = 0
    for shape in LAYERS:
        size = math.prod(shape)
        yield weights[place : place + size].reshape(shape), weights[place + size : place + size + shape[0]]
        place += size + shape[0]


def layer_outputs(weights: Any, images: Any) -> tuple[list[Any], list[Any]]:
    """(inputs, outputs before the ReLU) of every layer, for a flat tensor of weights and (records, pixels)."""
    torch = needs_torch()
    act, pool = torch.nn.functional.relu, torch.nn.functional.max_pool2d
    inputs, outputs = [images.reshape(-1, 1, SIDE, SIDE)], []
    for number, (w, b) in enumerate(tensors(weights)):
        is_image = number < 2
        layer = torch.nn.functional.conv2d if is_image else torch.nn.functional.linear
        outputs.append(layer(inputs[-1], w, b))
        after = act(outputs[-1])
        inputs.append(pool(after, 2).flatten(1) if number == 1 else pool(after, 2) if is_image else after)
    return inputs[:-1], outputs


def scores(weights: Array, X: Any) -> Array:
    """The scores of the ten classes, (records, 10); the largest is the prediction.

    Parameters
    ----------
    weights : (44426,) array
        The weights, which are ``coef`` of a fit.
    X : (n, 784) array
        Images, scaled as those of the fit were.

    Privacy
    -------
    A model is public: what is computed from it and from other images gives nothing away about the records of the fit.
    """
    torch = needs_torch()
    flat, parts = torch.as_tensor(np.asarray(weights), dtype=torch.float32), []
    with torch.no_grad():
        for first in range(0, len(X), 4 * _CHUNK):
            images = torch.as_tensor(np.asarray(X[first : first + 4 * _CHUNK]), dtype=torch.float32)
            parts.append(layer_outputs(flat, images)[1][-1].numpy())
    return np.concatenate(parts).astype(np.float64)


def clipped_sum(weights: Array, images: Any, labels: Any, bound: float) -> Array:
    """The sum over records of cross-entropy gradients, each clipped to ``bound`` as ONE vector over all layers.

    One backward pass gives the gradients of every record's loss in the outputs of the layers. With a layer's inputs
    they make up a record's gradient, whose norm is known without forming it for dense layers.

    Privacy
    -------
    NOT private: noise is added by the steps. One record adds a vector of norm at most ``bound``: the vectors that are
    added have the norms that were computed, in double precision, up to rounding, which the margin covers. Records do
    not share statistics, and a gradient that is not finite counts as 0.
    """
    torch = needs_torch()
    flat = torch.as_tensor(weights, dtype=torch.float32)
    inputs, outputs = layer_outputs(flat.requires_grad_(), images)
    loss = torch.nn.functional.cross_entropy(outputs[-1], labels, reduction="sum")
    deltas = torch.autograd.grad(loss, outputs)
    with torch.no_grad():
        parts = [_parts(torch, a, z) for a, z in zip(inputs, deltas, strict=True)]
        norms = sum(squares for _, _, squares in parts).sqrt()
        factors = torch.clamp(_MARGIN * bound / norms, max=1.0)
        bad = ~torch.isfinite(norms) | ~torch.isfinite(factors) | (norms <= 0)
        factors = torch.where(bad, torch.zeros_like(factors), factors)
        total = []
        for first, second, _ in parts:
            # A record without a factor must not enter as 0 times infinity.
            first = torch.where(bad.reshape(-1, *[1] * (first.dim() - 1)), torch.zeros_like(first), first)
            second = torch.where(bad.reshape(-1, *[1] * (second.dim() - 1)), torch.zeros_like(second), second)
            if first.dim() == 3:
                total += [torch.einsum("n,nij->ij", factors, first), torch.einsum("n,ni->i", factors, second)]
            else:
                scaled = factors[:, None] * first
                total += [scaled.T @ second, scaled.sum(0)]
        return np.asarray(torch.cat([one.flatten() for one in total]).numpy())


def _parts(torch: Any, a: Any, delta: Any) -> tuple[Any, Any, Any]:
    """What a layer's gradients are made of, in doubles, and their squared norms.

    Dense layers: (delta, input), of which a record's gradient is the outer product. Convolutions: the gradients
    themselves and those of the biases.
    """
    if a.dim() == 2:
        delta, a = delta.double(), a.double()
        own = (delta**2).sum(1)
        return delta, a, own * (a**2).sum(1) + own
    patches = torch.nn.functional.unfold(a, 5)
    flat = delta.flatten(2)
    gradients, biases = torch.bmm(flat, patches.transpose(1, 2)).double(), flat.double().sum(2)
    return gradients, biases, (gradients**2).sum((1, 2)) + (biases**2).sum(1)


class CnnSteps(SoftmaxSteps):
    """Hard thresholding of the network's weights, on dense rows of pixels and one-hot labels.

    Privacy
    -------
    As ``SoftmaxSteps``, whose steps these are: the noise is on all weights, those outside the support included.
    """

    def __init__(self, rows: Rows, labels: Array, bound: float, iteration: Batches, noise: float, start: Start) -> None:
        super().__init__(rows, labels, None, iteration, noise, start)
        self.bound, self.shape, self.free = bound, (SIZE, 1), SIZE
        torch = needs_torch()
        # NumPy's maximum of one-hot labels is the class.
        self._images = torch.as_tensor(rows.matrix, dtype=torch.float32)
        self._classes = torch.as_tensor(labels.argmax(axis=1))

    def mean_gradient(self, weights: Array, batch: NDArray[np.int64] | None) -> Array:
        """See ``SoftmaxSteps``; sums are taken in doubles."""
        size = len(self.labels) if batch is None else self.iteration.batch_size
        places = np.arange(len(self.labels)) if batch is None else batch
        total = np.zeros(SIZE)
        for first in range(0, len(places), _CHUNK):
            part = places[first : first + _CHUNK]
            total += clipped_sum(weights, self._images[part], self._classes[part], self.bound)
        return total / size

    def diagnose(self, weights: Array, history: Any) -> dict[str, Any]:
        """The mean loss of the records; NOT private."""
        torch = needs_torch()
        found = torch.as_tensor(scores(weights, self.rows.matrix))
        return {"objective": float(torch.nn.functional.cross_entropy(found, self._classes))}
