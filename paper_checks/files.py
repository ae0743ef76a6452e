"""Data sets that papers use and ``dptoolkit.datasets`` does not know: where their files are, and how they are read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FILES = {"pneumoniamnist": "pneumoniamnist/pneumoniamnist.npz"}


def path(name: str, data_home: str | None) -> Path:
    """The file of a data set, in the folder that was named or in DPTOOLKIT_DATA."""
    return Path(data_home or os.environ.get("DPTOOLKIT_DATA", "")).expanduser() / FILES[name]


def chest_x_rays(data_home: str | None) -> tuple[Array, Array]:
    """The 5,232 images of PneumoniaMNIST's parts "train" and "val", as rows of 784 pixels in [0, 1], and the labels."""
    parts = ("train", "val")
    with np.load(path("pneumoniamnist", data_home)) as arrays:
        images = np.concatenate([arrays[f"{part}_images"] for part in parts])
        labels = np.concatenate([arrays[f"{part}_labels"] for part in parts])
    # 255 is the largest byte, so the division is public.
    return images.reshape(len(images), -1) / 255.0, labels.ravel().astype(float)
