"""Every method that the contracts hold for: all that are registered, all their variants, and one plugged in.

A method's own tests are one group, so that they find its reference run (contract.py) in the process that made it.
"""

from __future__ import annotations

from typing import Any

import pytest
from consensus import Consensus

from protea import Method
from protea.config import registry


def methods() -> dict[str, Method[Any, Any]]:
    found: dict[str, Method[Any, Any]] = {"consensus": Consensus()}
    for name in registry.table("methods"):
        kind = registry.find("methods", name)
        found[name] = kind()
        found |= {f"{name}@{variant}": kind(**fields) for variant, fields in kind.variants.items() if fields}
    return found


def parameters(found: dict[str, Method[Any, Any]], *, variants: bool = False) -> pytest.MarkDecorator:
    """Parametrize a test by these methods; variants are left for the night unless this says otherwise."""
    return pytest.mark.parametrize(
        "method",
        [
            pytest.param(
                method,
                id=name,
                marks=[
                    pytest.mark.xdist_group(name.partition("@")[0]),
                    *([pytest.mark.nightly] if "@" in name and not variants else []),
                ],
            )
            for name, method in found.items()
        ],
    )


METHODS = methods()
PLAIN = {name: method for name, method in METHODS.items() if "@" not in name}
every_method = parameters(METHODS)
every_variant = parameters(METHODS, variants=True)
