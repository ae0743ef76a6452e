"""A training with Opacus whose epsilon is computed by dptoolkit: one line differs from the program without it.

    python examples/opacus_training.py --epsilon 2 --epochs 3

A linear classifier on made-up data. It needs opacus and PyTorch: pip install 'dptoolkit[opacus]'.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any


def train(epsilon: float, delta: float, epochs: int, seed: int = 0) -> tuple[Any, float]:
    """(the privacy engine after the training, the accuracy)."""
    import torch
    from opacus import PrivacyEngine

    from dptoolkit.accounting.opacus import Accountant

    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2_000, 10, generator=generator)
    labels = (features[:, :3].sum(dim=1) > 0).long()
    model = torch.nn.Linear(10, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels), batch_size=200)

    engine = PrivacyEngine()
    engine.accountant = Accountant()  # <- the one line
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=delta,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for batch, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
    accuracy = float((model(features).argmax(dim=1) == labels).float().mean())
    return engine, accuracy


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args(arguments)
    try:
        engine, accuracy = train(options.epsilon, options.delta, options.epochs)
    except ImportError as problem:
        print(f"opacus cannot be imported ({problem}): pip install 'dptoolkit[opacus]'", file=sys.stderr)
        return 2
    print(f"accuracy {accuracy:.3f} after {len(engine.accountant)} steps")
    print(f"epsilon {engine.get_epsilon(options.delta):.4f} at delta {options.delta:g}\n")
    print(engine.accountant.guarantee)
    print(f"\n{engine.accountant.guarantee.sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
