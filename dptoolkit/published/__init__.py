"""The noise constants of five papers on sparse private learning, as printed, with what they really give.

One module a paper. Every function takes public parameters and returns a ``Published``: the printed noise in
absolute scales, the printed guarantee, its side conditions as evaluated numbers, and the event to charge.

    >>> from dptoolkit.accounting import published
    >>> printed = published.ight_remark_5_3(n=1000, steps=50, grad_norm=1.0, epsilon=4.0, delta=1e-5)
    >>> printed.status, round(printed.true_epsilon(), 2), round(1 / printed.ratio, 2)
    ('false', 4.84, 1.18)
"""

from dptoolkit.published.khanna_2023 import (
    lasso_frank_wolfe,
    max_abs_scaling,
    multinomial,
    sparsifier,
    sparsifier_count,
)
from dptoolkit.published.liang_2023 import (
    fed_sgd_ht_section_6_4,
    scsg_ht_theorem_5_1,
    scsg_lemma_charge,
    sgd_ht_theorem_4_1,
    tensorflow_noise,
)
from dptoolkit.published.record import WASTE, Budget, Condition, Published
from dptoolkit.published.ties import column_pair, favoured, tie_pair
from dptoolkit.published.wang_gu_2019 import (
    ight_corollary_5_6,
    ight_corollary_5_8,
    ight_remark_5_3,
    ight_remark_5_3_simple,
    ight_theorem_5_2,
)
from dptoolkit.published.wang_gu_2020 import (
    flip_eigenvalue,
    kt_corollary_4_7,
    kt_lemma_2_6,
    kt_theorem_4_3,
    support_flip,
    transfer_regularization,
)
from dptoolkit.published.wang_lecture import (
    heavy_tailed_change,
    lecture_dp_iht,
    lecture_dp_iht_constant,
    lecture_frank_wolfe,
    lecture_heavy_tailed_iht,
    lecture_peeling,
    objective_perturbation,
    objective_perturbation_pure,
)

__all__ = [
    "WASTE", "Budget", "Condition", "Published", "column_pair", "favoured", "fed_sgd_ht_section_6_4", "flip_eigenvalue",
    "heavy_tailed_change", "ight_corollary_5_6", "ight_corollary_5_8", "ight_remark_5_3", "ight_remark_5_3_simple",
    "ight_theorem_5_2", "kt_corollary_4_7", "kt_lemma_2_6", "kt_theorem_4_3", "lasso_frank_wolfe",
    "lecture_dp_iht", "lecture_dp_iht_constant", "lecture_frank_wolfe", "lecture_heavy_tailed_iht",
    "lecture_peeling", "max_abs_scaling", "multinomial", "objective_perturbation",
    "objective_perturbation_pure", "scsg_ht_theorem_5_1", "scsg_lemma_charge", "sgd_ht_theorem_4_1",
    "sparsifier", "sparsifier_count", "support_flip", "tensorflow_noise", "tie_pair", "transfer_regularization",
]  # fmt: skip
