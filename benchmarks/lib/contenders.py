"""What a user of a table would pick: our default, other private packages, and models without privacy for scale.

Private methods get the same public bounds and the same (epsilon, delta). Each uses its defaults. DP-SGD has none, and
uses the best of four settings on the tables that had influence on constants (``SGD_SETTINGS``). A method returns a
function from rows to labels.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.lib.tables import Table
from dptoolkit.data.column_bounds import ColumnBounds

DELTA = 1e-5
Predict = Callable[[Any], Any]
# (learning rate, rows of a batch, epochs); gradients are clipped to 1. The first was best on a9a and clinic.
SGD_SETTINGS = ((4.0, 1024, 20), (1.0, 256, 10), (1.0, 1024, 20), (0.25, 256, 10))


def ours(table: Table, epsilon: float, seed: int, adjacency: str = "replace-one") -> Predict:
    """dptoolkit's default, from bounds and budget alone."""
    from dptoolkit import models

    model = models.fit(
        table.X, table.y, task="classification", classes=tuple(range(table.classes)),
        bounds=(table.lower, table.upper), epsilon=epsilon, delta=DELTA, rng=seed, adjacency=adjacency,
    )  # fmt: skip
    return model.predict


def zero_out(table: Table, epsilon: float, seed: int) -> Predict:
    """The same where neighbours differ by leaving out one record's contribution: as near as DP-EBM's and Opacus'."""
    return ours(table, epsilon, seed, "zero-out")


def _scaled(table: Table) -> Callable[[Any], Any]:
    return ColumnBounds.of((table.lower, table.upper), table.X.shape[1]).scaled


def diffprivlib(table: Table, epsilon: float, seed: int) -> Predict:
    """diffprivlib's logistic regression, with delta = 0, on columns scaled by the bounds."""
    from diffprivlib.models import LogisticRegression

    scaled = _scaled(table)
    norm = float(np.sqrt(table.X.shape[1]))
    model = LogisticRegression(epsilon=epsilon, data_norm=norm, max_iter=1000, random_state=seed)
    model.fit(scaled(table.X), table.y)
    return lambda rows: model.predict(scaled(rows))


def boosting(table: Table, epsilon: float, seed: int) -> Predict:
    """interpret's differentially private explainable boosting machine, for two classes."""
    privacy = importlib.import_module("interpret.privacy")
    bounds = np.column_stack([table.lower, table.upper])
    model = privacy.DPExplainableBoostingClassifier(
        epsilon=epsilon, delta=DELTA, privacy_bounds=bounds, random_state=seed, n_jobs=1,
        feature_types=["continuous"] * table.X.shape[1],
    )  # fmt: skip
    model.fit(table.X, table.y.astype(int))
    return model.predict


def sgd(table: Table, epsilon: float, seed: int, setting: tuple[float, int, int] = SGD_SETTINGS[0]) -> Predict:
    """DP-SGD by Opacus on a linear model, on columns scaled by the bounds."""
    import torch
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rate, batch, epochs = setting
    scaled = _scaled(table)
    X, y = (torch.tensor(part) for part in (scaled(table.X).astype(np.float32), table.y.astype(np.int64)))
    linear = torch.nn.Linear(X.shape[1], table.classes)
    optimizer = torch.optim.SGD(linear.parameters(), lr=rate)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=min(batch, len(y)))
    model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=linear, optimizer=optimizer, data_loader=loader, target_epsilon=epsilon, target_delta=DELTA,
        epochs=epochs, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(epochs):
        for rows, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
    with torch.no_grad():
        weights, offset = linear.weight.numpy().T.copy(), linear.bias.numpy().copy()
    return lambda rows: (scaled(rows) @ weights + offset).argmax(axis=1)


def logistic(table: Table, epsilon: float, seed: int) -> Predict:
    """scikit-learn's logistic regression on standardised columns; not private."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    predict: Predict = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(table.X, table.y).predict
    return predict


def trees(table: Table, epsilon: float, seed: int) -> Predict:
    """scikit-learn's histogram gradient boosting; not private."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    predict: Predict = HistGradientBoostingClassifier(random_state=seed).fit(table.X, table.y).predict
    return predict


ZERO_OUT = "dptoolkit, zero-out"
PRIVATE = {"dptoolkit": ours, ZERO_OUT: zero_out, "diffprivlib": diffprivlib, "DP-EBM": boosting, "Opacus": sgd}
OPEN = {"logistic regression": logistic, "boosted trees": trees}


def takes(method: str, n: int, d: int, classes: int) -> bool:
    """Whether a method is run: DP-EBM is for two classes, and slow on hundreds of columns; Opacus is slow."""
    if method == "DP-EBM":
        return classes == 2 and d <= 200
    return method != "Opacus" or n <= 50_000
