"""The whole round loop on a pretended accelerator: a tensor that is on the wrong device is an error here too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import toy
from accelerator import DEVICE, Accelerator, DeviceError, There
from every import PLAIN, parameters

from protea import Client, Method, SplitModel
from protea.config.sections import Evaluation
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.server import Server
from protea.core.training import Training
from protea.engines.inline import Inline
from protea.federation.jobs import Job, Reply, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan


class Posted(Inline):
    """Nothing travels that is on a device."""

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        for job in jobs:
            assert not any(isinstance(tensor, There) for tensor in job.down.values())
        replies = super().map(jobs, watch)
        for reply in replies:
            if reply.error is not None:
                raise AssertionError(reply.error)
            assert not any(isinstance(tensor, There) for tensor in reply.up.values()), "a reply is on the device"
        return replies


def moved(model: SplitModel) -> SplitModel:
    return model.to(DEVICE)


def make(architecture: str = "smallest") -> SplitModel:
    return moved(toy.make(architecture))


def build(id: int, streams: Streams, **options: Any) -> Client:
    """The toy federation's client, on the device."""
    client = toy.build(id, streams, **options)
    parts = ("train", "validation", "test", "public", "shared_test")
    for part in parts:
        setattr(client, part, Samples(toy.BLOBS, getattr(client, part).index, device=DEVICE))
    client.model, client.make, client.device = moved(client.model), make, DEVICE
    return client


def server() -> Server:
    public = Samples(toy.BLOBS, toy.PUBLIC, device=DEVICE)
    names = toy.BLOBS.names
    return Server(toy.CLASSES, toy.DIM, Streams(7).at("server"), public=public, make=make, device=DEVICE, names=names)


@pytest.fixture
def accelerator() -> Iterator[None]:
    with Accelerator():
        yield


def lines(method: Method[Any, Any], there: bool) -> list[dict[str, Any]]:
    """All numbers of two rounds, the shared test set and the server's model included, and a look at the prototypes."""
    options = {"same_architecture": method.needs.same_architecture, "training": Training(batch=32, lr=0.05)}
    worker = toy.worker(method, partial(build if there else toy.build, **options))
    test = Samples(toy.BLOBS, toy.TEST, device=DEVICE if there else "cpu")
    plan = FederationPlan(clients=2, rounds=2, evaluation=Evaluation(shared=1))
    loop = Federation(method, Posted(worker), server() if there else toy.server(), plan, test=test)
    found = [line for record in loop.run() for line in record.lines()]
    for line in found:
        line.pop("cost", None)
    shown = loop.look()
    assert shown and not any(isinstance(tensor, There) for tensor in shown.values())
    kept, _ = loop.server.memory.flat()
    return [*found, {name: tensor.tolist() for name, tensor in kept.items()}]


@parameters(PLAIN)
def test_a_round_on_a_device_gives_the_numbers_of_the_cpu(
    method: Method[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A CPU has a fused Adam, whose last digits are others.
    monkeypatch.setattr("protea.core.training._kernels", lambda parameters: {"fused": False, "foreach": True})
    expected = lines(method, there=False)
    with Accelerator():
        assert lines(method, there=True) == expected


@pytest.mark.usefixtures("accelerator")
def test_the_pretended_device_refuses_what_real_ones_refuse() -> None:
    here, there = torch.ones(3), torch.ones(3, device=DEVICE)
    assert there.device == DEVICE and (there + 1).device == DEVICE and there.cpu().device.type == "cpu"
    assert (2 * there + torch.tensor(1.0)).tolist() == [3.0, 3.0, 3.0]  # a single number may be anywhere
    with pytest.raises(DeviceError, match="on the device and on the CPU"):
        here + there
    with pytest.raises(DeviceError, match="no float64"):
        there.double()
