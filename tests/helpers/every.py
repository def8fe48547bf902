"""Every method the contracts hold for: all that are registered, all their variants, and one plugged in."""

from __future__ import annotations

from typing import Any

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


METHODS = methods()
