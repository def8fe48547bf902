"""Filters hold on every engine: the same numbers, bytes as sent, and the method none the wiser."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import toy
from contract import Make, play, workers
from night import by_night

from protea import Filter, Method
from protea.clients.plan import WorkerPlan
from protea.config.sections import Evaluation
from protea.engines.inline import Inline
from protea.federation.jobs import JobEngine
from protea.filters.clip import Clip
from protea.filters.noise import Noise
from protea.filters.quantize import Quantize
from protea.methods.fedavg import FedAvg
from protea.methods.feddistill import FedDistill
from protea.methods.fedpkd import FedPKD
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP
from protea.methods.local import Local

FILTERS: dict[str, tuple[Filter, ...]] = {
    "clip": (Clip(norm=0.5),),
    "float16": (Quantize("float16"),),
    "int8 after clip": (Clip(norm=2.0), Quantize("int8")),
    "int8 after noise": (Noise(clip=5.0, noise=0.02), Quantize("int8")),
}
AT_THE_END = Evaluation(every=5, shared="never", local_prototypes=False)
METHODS: list[Method[Any, Any]] = [FedProto(), FedTGP(server_epochs=3), FedDistill(), FedPKD(), FedAvg(), Local()]


def filtered(make: Make, filters: tuple[Filter, ...], plan: WorkerPlan) -> JobEngine:
    return make(toy.plan(plan.method, plan.builder, plan.seed, filters=filters))


@pytest.mark.parametrize(
    ("method", "filters"),
    [
        *((METHODS[0], filters) for filters in FILTERS.values()),
        *((method, FILTERS["int8 after clip"]) for method in METHODS[1:]),
        *by_night(*((method, FILTERS[name]) for method in METHODS[1:] for name in ("clip", "float16"))),
    ],
    ids=lambda value: "-".join(
        type(each).__name__.lower() for each in (value if isinstance(value, tuple) else [value])
    ),
)
def test_engines_agree_on_what_was_filtered(method: Method[Any, Any], filters: tuple[Filter, ...]):
    here = play(method, partial(filtered, Inline, filters), filters=filters)
    assert play(method, partial(filtered, workers(2), filters), filters=filters) == here


@pytest.mark.parametrize("method", METHODS[:3], ids=lambda method: type(method).__name__.lower())
def test_bytes_are_counted_as_sent(method: Method[Any, Any]):
    def sent(filters: tuple[Filter, ...]) -> int:
        make = partial(filtered, Inline, filters)
        found = play(method, make, rounds=2, fraction=1.0, filters=filters, evaluation=AT_THE_END)
        return sum(line["bytes_up"] for line in found["records"] if line["kind"] == "round")

    plain = sent(())
    assert sent((Clip(norm=0.5),)) == plain
    counts = 4 * toy.CLASSES * toy.CLIENTS * 2  # bytes of the counts of all classes, from every client in two rounds
    assert sent((Quantize("float16"),)) == (plain - counts) // 2 + counts
    assert (plain - counts) // 4 + counts < sent((Quantize("int8"),)) < plain  # and a scale for each row


def test_a_method_learns_through_filters_as_without():
    def accuracy(filters: tuple[Filter, ...]) -> float:
        make = partial(filtered, Inline, filters)
        found = play(FedProto(), make, rounds=5, fraction=1.0, filters=filters, evaluation=AT_THE_END)
        return [line for line in found["records"] if line["kind"] == "round"][-1]["accuracy"]

    plain = accuracy(())
    assert plain > 0.6
    for filters in FILTERS.values():
        assert accuracy(filters) > plain - 0.15
