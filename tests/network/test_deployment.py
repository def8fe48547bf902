"""The engine over real SuperLink and SuperNode processes on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_methods import play

pytest.importorskip("flwr", reason="the extra flower is not installed")

from protea import plugins
from protea.engines.flower.engine import Deployment, Flower
from protea.engines.inline import Inline
from protea.method import Method

pytestmark = pytest.mark.xdist_group("deployment")

METHODS = ("local", "fedproto", "fedtgp", "fedpagr", "fedprotokd", "lg_fedavg")


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    found = Deployment(2)
    yield found
    found.close()


@pytest.mark.parametrize("name", METHODS)
def test_it_equals_the_inline_engine_to_the_bit(name: str, deployment: Deployment, tmp_path: Path) -> None:
    method: Method[Any, Any] = plugins.find("methods", name)()
    over = play(method, lambda worker: Flower(worker, deployment=deployment), tmp_path / "flower", fraction=0.75)
    assert over == play(method, Inline, tmp_path / "inline", fraction=0.75)
