"""Mechanisms known to be wrong, each with the claim its author would make and, where there is one, its correct twin.

They measure the auditor: it must catch every one of them, and pass every twin. Errors of this kind were all found in
published code. Those named after a solver are plans whose noise was changed, run by the solver's own production code.
"""

from __future__ import annotations

from dptoolkit.audit.broken.fault import Broken, Finding
from dptoolkit.audit.broken.mechanisms import BATCHES, CHOICES, RANDOMNESS, SELECTIONS, SUMS
from dptoolkit.audit.broken.plans import solver_faults

__all__ = ["BROKEN", "Broken", "Finding"]

BROKEN: dict[str, Broken] = {
    fault.name: fault for fault in (*SUMS, *RANDOMNESS, *CHOICES, *SELECTIONS, *BATCHES, *solver_faults())
}
