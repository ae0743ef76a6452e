"""Rows and labels that obey public bounds: validation, clipping, and rows that are prepared once."""

from __future__ import annotations

from dptoolkit.data.grids import Grids
from dptoolkit.data.rows import (
    Rows,
    check_classes,
    check_label_values,
    check_labels,
    check_rows,
    clip_entries,
    clip_rows,
    joint_norm,
    kernel_arrays,
    prepare,
    product,
    stored,
    unit_rows,
    with_intercept,
)

__all__ = [
    "Grids", "Rows", "check_classes", "check_label_values", "check_labels", "check_rows", "clip_entries", "clip_rows",
    "joint_norm", "kernel_arrays", "prepare", "product", "stored", "unit_rows", "with_intercept",
]  # fmt: skip
