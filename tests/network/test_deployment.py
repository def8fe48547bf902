"""The engine over a real SuperLink and nodes in processes of their own, on loopback."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import every
import pytest
from contract import play
from night import by_night

pytest.importorskip("flwr", reason="lacking: extra flower")

import warm_flower
from waiting import until

from protea.core.files import write_text
from protea.engines.flower.engine import Deployment, Flower
from protea.engines.inline import Inline
from protea.filters.secure_sum import SecureSum
from protea.methods.fedproto import FedProto

pytestmark = pytest.mark.xdist_group("deployment")

# One with public data and a model on the server, two rounds at one node; all else for the night.
METHODS = [(1, 2, "fedprotokd")]
METHODS += by_night(*((2, 3, name) for name in ("fedprotokd", "local", "fedproto", "fedtgp", "fedpagr", "lg_fedavg")))


@pytest.fixture(scope="module")
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    found = Deployment(request.param)
    yield found
    found.close()


@pytest.mark.parametrize(("deployment", "rounds", "name"), METHODS, indirect=["deployment"])
def test_it_equals_the_inline_engine_to_the_bit(name: str, rounds: int, deployment: Deployment) -> None:
    method = every.METHODS[name]
    there = play(method, lambda plan: Flower(plan, deployment=deployment), rounds=rounds)
    assert there == play(method, rounds=rounds)


@pytest.mark.parametrize("deployment", by_night(2), indirect=True)
def test_secure_sums_equal_those_of_the_inline_engine_to_the_bit(deployment: Deployment) -> None:
    """Three more messages each way in a round, over a SuperLink and two nodes."""
    filters = (SecureSum(),)
    there = play(
        FedProto(),
        lambda plan: Flower(replace(plan, filters=filters), deployment=deployment),
        rounds=2,
        filters=filters,
        fraction=1.0,
    )
    here = play(
        FedProto(), lambda plan: Inline(replace(plan, filters=filters)), rounds=2, filters=filters, fraction=1.0
    )
    assert there == here


@pytest.mark.parametrize("cold", [False, *by_night(True)], ids=["warm", "cold"])
def test_flowers_program_ends_with_the_process_that_started_it(cold: bool, tmp_path: Path) -> None:
    """That is killed, and has no chance to end it."""
    starter = warm_flower.Begun(deploy, tmp_path / "program", cold=cold)
    until(lambda: (tmp_path / "program").exists() or not starter.is_alive())
    program = int((tmp_path / "program").read_text())
    assert alive(program)
    starter.kill()
    until(lambda: not alive(program))


def deploy(told: Path) -> None:
    """Start Flower's program, write down which process it is, and wait."""
    found = Deployment(1)
    assert found.link.program is not None
    write_text(told, str(found.link.program.process.pid))
    signal.pause()


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
