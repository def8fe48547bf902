"""The engine over real SuperLink and SuperNode processes on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import every
import pytest
from contract import play, reference
from night import by_night

pytest.importorskip("flwr", reason="lacking: extra flower")

from parties import until

from protea.engines.flower.engine import Deployment, Flower

pytestmark = pytest.mark.xdist_group("deployment")

# One with public data and a model on the server, at one node; the others, and two nodes, for the night.
METHODS = [(1, "fedprotokd")]
METHODS += by_night(*((2, name) for name in ("fedprotokd", "local", "fedproto", "fedtgp", "fedpagr", "lg_fedavg")))


@pytest.fixture(scope="module")
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    found = Deployment(request.param)
    yield found
    found.close()


@pytest.mark.parametrize(("deployment", "name"), METHODS, indirect=["deployment"])
def test_it_equals_the_inline_engine_to_the_bit(name: str, deployment: Deployment) -> None:
    method = every.METHODS[name]
    assert play(method, lambda plan: Flower(plan, deployment=deployment)) == reference(method)


def test_flowers_programs_end_with_the_process_that_started_them() -> None:
    """It is killed, and has no chance to end them."""
    code = """
import time
from protea.engines.flower.engine import Deployment
found = Deployment(1)
print(found.link.program.process.pid, found.nodes[0].program.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        programs = [int(word) for word in starter.stdout.readline().split()]
        starter.kill()
    assert len(programs) == 2
    until(lambda: not any(alive(program) for program in programs))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
