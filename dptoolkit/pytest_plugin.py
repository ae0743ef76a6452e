"""A pytest fixture for audits: a test that finds a violation fails, and its message is the audit's report.

    def test_my_mechanism(assert_private):
        assert_private(my_mechanism, (first, second), claim)

Nothing of dptoolkit is loaded until a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def assert_private() -> Callable[..., Any]:
    """``dptoolkit.audit.assert_private``, whose violations are failures with the report as their message."""
    from dptoolkit import audit
    from dptoolkit.errors import PrivacyViolation

    def check(mechanism: Any, pair: Any, claim: Any = None, **arguments: Any) -> Any:
        try:
            return audit.assert_private(mechanism, pair, claim, **arguments)
        except PrivacyViolation as violation:
            pytest.fail(str(violation.report), pytrace=False)

    return check
