"""Every method that the contracts hold for: all that are registered, all their variants, and one plugged in.

A method's own tests are one group, so that they find its reference run (contract.py) in the process that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, cast

import pytest
from consensus import Consensus

from protea import Method
from protea.config import registry

FEW = {"server_epochs": 2, "server_steps": 3, "actp_epochs": 3, "anchor_steps": 5, "steps": 5}  # at most


def light(method: Method[Any, Any]) -> Method[Any, Any]:
    """The same method with few steps on the server: what contracts ask does not depend on their number."""
    own = [field.name for field in fields(method) if field.name in FEW]
    return replace(method, **{name: min(getattr(method, name), FEW[name]) for name in own})


def suited(method: Method[Any, Any]) -> Method[Any, Any]:
    """The same method with a scale that fits the toy: those of papers belong to 512 dimensions, and diverge in 16."""
    scale = getattr(method, "scale", 0.0)
    return replace(cast(Any, method), scale=10.0) if scale > 30 else method


def methods() -> dict[str, Method[Any, Any]]:
    found: dict[str, Method[Any, Any]] = {"consensus": Consensus()}
    for name in registry.table("methods"):
        kind = registry.find("methods", name)
        found[name] = in_a_plain_clone(kind())
        found |= {
            f"{name}@{variant}": suited(in_a_plain_clone(kind(**fields)))
            for variant, fields in kind.variants.items()
            if fields
        }
    return found


def in_a_plain_clone(method: Method[Any, Any]) -> Method[Any, Any]:
    """The same method with an encoder of texts that needs no extra; those with one have tests of their own."""
    return method if method.needs.text_encoder is None else replace(cast(Any, method), encoder="words")


def variants(found: dict[str, Method[Any, Any]]) -> dict[str, Method[Any, Any]]:
    """Those that have other fields than their method."""
    return {name: method for name, method in found.items() if "@" in name}


def parameters(
    found: dict[str, Method[Any, Any]], *, by_day: Callable[[str], bool] = lambda name: "@" not in name
) -> pytest.MarkDecorator:
    """Parametrize a test by these methods; those whose names are not for the day, as variants, are for the night."""
    return pytest.mark.parametrize(
        "method",
        [
            pytest.param(
                method,
                id=name,
                marks=[
                    pytest.mark.xdist_group(name.partition("@")[0]),
                    *([] if by_day(name) else [pytest.mark.nightly]),
                ],
            )
            for name, method in found.items()
        ],
    )


def every_variant(found: dict[str, Method[Any, Any]]) -> pytest.MarkDecorator:
    """Parametrize a test by the variants among these methods, by day too."""
    return parameters(variants(found), by_day=found.__contains__)


FULL = methods()
METHODS = {name: light(method) for name, method in FULL.items()}
PLAIN = {name: method for name, method in METHODS.items() if "@" not in name}
every_method = parameters(METHODS)
