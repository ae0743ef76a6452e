"""Neighbouring datasets for audits: for every private solver the worst pair we know, made from its plan."""

from __future__ import annotations

from dptoolkit.audit.pair import Counted, Pair, counted, grouped, strongest
from dptoolkit.audit.pairs._admm import dp_admm
from dptoolkit.audit.pairs._federated import dp_fed_gd_ht, dp_fed_sgd_ht
from dptoolkit.audit.pairs._frank_wolfe import dp_frank_wolfe, selection
from dptoolkit.audit.pairs._ight import dp_dual_averaging, dp_ight, dp_sgd_ht, natural
from dptoolkit.audit.pairs._knowledge_transfer import knowledge_transfer
from dptoolkit.audit.pairs._multinomial_frank_wolfe import dp_multinomial_frank_wolfe
from dptoolkit.audit.pairs._objective_perturbation import objective_perturbation
from dptoolkit.audit.pairs._peeling import peeling_iht
from dptoolkit.audit.pairs._pipeline import dp_pipeline
from dptoolkit.audit.pairs._scsg import dp_scsg_ht, dp_svrg_ht
from dptoolkit.audit.pairs._sparsifier import sparsifier
from dptoolkit.audit.pairs._two_stage import two_stage

__all__ = [
    "Counted", "Pair", "counted", "dp_admm", "dp_dual_averaging", "dp_fed_gd_ht", "dp_fed_sgd_ht", "dp_frank_wolfe",
    "dp_ight", "dp_multinomial_frank_wolfe", "dp_pipeline", "dp_scsg_ht", "dp_sgd_ht", "dp_svrg_ht", "grouped",
    "knowledge_transfer", "natural", "objective_perturbation", "peeling_iht", "selection", "sparsifier", "strongest",
    "two_stage",
]  # fmt: skip
