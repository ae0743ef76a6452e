"""``Accountant``: an accountant for Opacus, so that a training with it changes one line.

    from dptoolkit.accounting.opacus import Accountant

    engine = opacus.PrivacyEngine()
    engine.accountant = Accountant()  # the one line

Then ``engine.make_private``, ``make_private_with_epsilon``, ``get_epsilon`` and checkpoints use it. It is registered by
the name "dptoolkit", so that after the import ``PrivacyEngine(accountant="dptoolkit")`` does the same.

Opacus is the extra ``dptoolkit[opacus]`` and is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dptoolkit._validate import missing

if TYPE_CHECKING:
    from dptoolkit.accounting._opacus_accountant import Accountant as Accountant

__all__ = ["Accountant"]


def __getattr__(name: str) -> Any:
    """``Accountant`` on first use, because its base class is Opacus'."""
    if name != "Accountant":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import opacus.accountants  # noqa: F401
    except ImportError:
        raise missing("opacus", "opacus", "for its accountant") from None
    from dptoolkit.accounting._opacus_accountant import Accountant

    return Accountant
