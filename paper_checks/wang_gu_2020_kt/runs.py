"""Short runs for Wang and Gu 2020: post-processing, and the convergence of teacher and student."""

from __future__ import annotations

import numpy as np

from dptoolkit import datasets
from paper_checks.findings import Finding, upper_bound
from paper_checks.measure import iterate_errors, linear_convergence, post_processing
from paper_checks.seeds import Rng


def lemma_2_7(rng: Rng, gain: float) -> Finding:
    """delta(1) after random maps of the outcomes, against delta(1) before."""
    rows = []
    for repetition in range(5):
        ratio, _ = post_processing(rng("random laws", repetition=repetition), gain)
        rows.append((f"laws {repetition}: largest delta after / before", 1.0, ratio))
    return upper_bound(rows)


def convergence(rng: Rng, step_size: float, tolerance: float) -> Finding:
    """Teacher on private rows, student on answers with a little noise, both plain hard thresholding."""
    curves = []
    for repetition in range(3):
        draw = rng("transfer", repetition=repetition)
        private = datasets.make_transfer(n=800, d=1000, sparsity=10, rng=draw)
        public = draw.uniform(-1, 1, (800, 1000))
        truth = np.asarray(private.truth)
        answers = public @ truth + 0.1 * draw.standard_normal(800)
        for name, X, y in (("teacher", np.asarray(private.X), private.y), ("student", public, answers)):
            curves.append((f"{name} {repetition}", iterate_errors(X, np.asarray(y), truth, 20, 60, step_size)))
    return linear_convergence(curves, tolerance)
