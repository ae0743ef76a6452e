"""Neighbouring datasets for audits: for every private solver the worst pair we know, made from its plan."""

from __future__ import annotations

from dptoolkit.audit.pairs.crossing import dp_scsg_ht, dp_svrg_ht
from dptoolkit.audit.pairs.multinomial import dp_multinomial_frank_wolfe
from dptoolkit.audit.pairs.pair import Counted, Pair, counted, grouped, strongest
from dptoolkit.audit.pairs.peeling import peeling_iht
from dptoolkit.audit.pairs.perturbed import objective_perturbation
from dptoolkit.audit.pairs.pipeline import dp_pipeline
from dptoolkit.audit.pairs.selection import dp_frank_wolfe, selection
from dptoolkit.audit.pairs.sparsify import sparsifier
from dptoolkit.audit.pairs.splitting import dp_admm
from dptoolkit.audit.pairs.stages import two_stage
from dptoolkit.audit.pairs.thresholding import dp_dual_averaging, dp_ight, dp_sgd_ht, natural
from dptoolkit.audit.pairs.transfer import knowledge_transfer

__all__ = [
    "Counted", "Pair", "counted", "dp_admm", "dp_dual_averaging", "dp_frank_wolfe", "dp_ight",
    "dp_multinomial_frank_wolfe", "dp_pipeline", "dp_scsg_ht", "dp_sgd_ht", "dp_svrg_ht", "grouped",
    "knowledge_transfer", "natural", "objective_perturbation", "peeling_iht", "selection", "sparsifier", "strongest",
    "two_stage",
]  # fmt: skip
