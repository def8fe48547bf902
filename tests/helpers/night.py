"""Cases that are for ``make nightly`` only: the default run has a sample of them."""

from __future__ import annotations

import pytest


def by_night(*cases: object) -> list[object]:
    """Mark values of a parameter; a tuple has values of several."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]
