"""The fuzzer of ``make fuzz``, for a few thousand cases; and that it sees what it is there to see."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch as safetensors
import torch
import toy
from every import light
from night import by_night
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
pytest.importorskip("resource")  # Windows has none

from fuzz import payloads as fuzzer
from protea import Client, Prototypes
from protea.clients.state_files import load_client, load_server, save_client
from protea.core.errors import CheckpointError
from protea.core.message import Named
from protea.core.rng import Streams


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Sequence[fuzzer.Target]:
    """Messages and files of every method; servers take few steps, after which they send and keep the same in kind."""
    methods = {name: light(method) for name, method in fuzzer.methods().items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzzer, "methods", lambda: methods)
        return list(fuzzer.targets(tmp_path_factory.mktemp("fuzz")))


def test_what_is_real_is_accepted(targets: Sequence[fuzzer.Target]) -> None:
    assert {target.name for target in targets} >= {"fedproto-up", "fedsa-down", "fedproc@original-up", "fml-client"}
    for target in targets:
        for seed in target.seeds:
            target.feed(seed)


@pytest.mark.parametrize("cases", [1000, *by_night(30_000)])
def test_no_spoilt_message_or_file_does_harm(targets: Sequence[fuzzer.Target], cases: int, tmp_path: Path) -> None:
    found = fuzzer.fuzz(targets, range(cases), seed=2, failures=tmp_path / "failures")
    assert found.failures == []
    outcomes: Counter[str] = Counter()
    for (_, outcome), count in found.outcomes.items():
        outcomes[outcome] += count
    assert outcomes["accepted"] > cases / 30 and outcomes["refused"] > cases / 2  # both sides are tried


def test_a_case_is_a_function_of_seed_and_number(targets: Sequence[fuzzer.Target]) -> None:
    for number in range(200):
        assert fuzzer.case(targets, 3, number) == fuzzer.case(targets, 3, number)
    assert fuzzer.case(targets, 3, 0)[1] != fuzzer.case(targets, 4, 0)[1]


def test_a_missing_check_is_found_and_kept_for_replay(
    targets: Sequence[fuzzer.Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prototypes, "check", lambda self, classes, dim: None)
    ups = [target for target in targets if target.name == "fedproto-up"]
    found = fuzzer.fuzz(ups, range(300), seed=1, failures=tmp_path)
    assert found.failures
    kept = sorted(tmp_path.glob("fedproto-up-*.bin"))
    assert len(kept) == len(found.failures) == found.outcomes["fedproto-up", "FAILED"]
    with pytest.raises((fuzzer.BadError, RuntimeError)):
        ups[0].feed(kept[0].read_bytes())


def test_a_hang_and_another_error_are_failures(
    targets: Sequence[fuzzer.Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forever(message: bytes) -> None:
        while True:
            pass

    def wrong(message: bytes) -> None:
        torch.zeros(2)[5]

    monkeypatch.setattr(fuzzer, "SECONDS", 0.05)
    assert fuzzer.judged(replace(targets[0], feed=forever), b"") == "hang"
    assert fuzzer.judged(replace(targets[0], feed=wrong), b"").startswith("IndexError")


def test_memory_beyond_the_bound_is_a_failure(
    targets: Sequence[fuzzer.Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzer, "BOUND", -1)
    assert "memory" in fuzzer.fuzz(targets, range(1), 1, tmp_path).failures[0]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file of a client's state: three numbers, a margin, a small module, prototypes; and its model."""
    client = toy.build(0, Streams(1))
    client.memory.update(numbers=torch.arange(3), margin=2.5, net=nn.Linear(2, 1))
    client.memory["known"] = Prototypes(torch.tensor([[1.0], [0.0]]), torch.tensor([4.0, 0.0]))
    save_client(client, tmp_path)
    return tmp_path


def load(folder: Path) -> Client:
    client = toy.build(0, Streams(2))
    client.memory.update(net=nn.Linear(2, 1), stale=1)
    load_client(client, folder)
    return client


def test_a_whole_file_comes_back(saved: Path) -> None:
    memory = load(saved).memory
    assert memory.keys() == {"numbers", "margin", "net", "known"} and memory["margin"] == 2.5
    assert memory["known"].vectors.tolist() == [[1.0], [0.0]]


INDEX = {"numbers": "tensor", "margin": {"value": 2.5}, "net": "module", "known": "Prototypes"}
DAMAGE: dict[str, Callable[[Named, dict[str, Any]], object]] = {
    "unknown kind": lambda named, index: index.update(known="Pickled"),
    "a kind that is no word": lambda named, index: index.update(known=["Prototypes"]),
    "value that is none": lambda named, index: index.update(margin={"value": None}),
    "value and more": lambda named, index: index.update(margin={"value": 1, "more": 1}),
    "a slash": lambda named, index: index.update({"a/b": {"value": 1}}),
    "tensor that is missing": lambda named, index: named.pop("memory/numbers/"),
    "tensor that nobody names": lambda named, index: index.pop("numbers"),
    "tensor of no part": lambda named, index: named.update(other=torch.ones(1)),
    "module that was not made": lambda named, index: index.update(new="module"),
    "weights of another shape": lambda named, index: named.update({"memory/net/bias": torch.ones(2)}),
    "weights of another dtype": lambda named, index: named.update({"memory/net/bias": torch.ones(1).double()}),
    "weights that are missing": lambda named, index: named.pop("memory/net/bias"),
    "a payload that does not fit": lambda named, index: named.update({"memory/known/counts": torch.ones(9)}),
    "a payload of complex numbers": lambda named, index: named.update({"memory/known/counts": torch.ones(2) + 1j}),
    "a model of another shape": lambda named, index: named.update({"model/head.bias": torch.ones(7)}),
    "no model": lambda named, index: [named.pop(name) for name in [*named] if name.startswith("model/")],
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused(saved: Path, damage: Callable[[Named, dict[str, Any]], object]) -> None:
    path, index = saved / "client-000.safetensors", dict(INDEX)
    named = safetensors.load(path.read_bytes())
    damage(named, index)
    path.write_bytes(safetensors.save(named, metadata={"memory": json.dumps(index)}))
    with pytest.raises(CheckpointError, match=r"client-000.safetensors cannot be read"):
        load(saved)


@pytest.mark.parametrize("text", ["", "[]", "3", "[" * 100_000, '{"numbers": "tensor", "numbers": "tensor"}'])
def test_a_damaged_index_is_refused(saved: Path, text: str) -> None:
    path = saved / "client-000.safetensors"
    path.write_bytes(safetensors.save(safetensors.load(path.read_bytes()), metadata={"memory": text}))
    with pytest.raises(CheckpointError, match=r"client-000.safetensors cannot be read"):
        load(saved)


def test_a_server_has_no_model_in_its_file(tmp_path: Path) -> None:
    content = safetensors.save({"model/head.bias": torch.ones(1)}, metadata={"memory": "{}"})
    (tmp_path / "server.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"'head\.bias'"):
        load_server(toy.server(), tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_server(toy.server(), tmp_path / "nowhere")


# Files: bundles, tasks, keys, requests, records, checkpoints


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Sequence[fuzzer.Target]:
    pytest.importorskip("flwr", reason="lacking: extra flower")
    from fuzz.files import targets

    return list(targets(tmp_path_factory.mktemp("files")))


def test_real_files_are_accepted(files: Sequence[fuzzer.Target]) -> None:
    kinds = {"bundle", "task", "site-key", "public-key", "certificate", "invitation", "request", "chain", "ledger"}
    assert {target.name for target in files} == kinds | {"partition", "state", "metrics"}
    for target in files:
        for seed in target.seeds:
            target.feed(seed)


@pytest.mark.parametrize("cases", [400, *by_night(20_000)])
def test_no_spoilt_file_does_harm(files: Sequence[fuzzer.Target], cases: int, tmp_path: Path) -> None:
    found = fuzzer.fuzz(files, range(cases), seed=3, failures=tmp_path / "failures")
    assert found.failures == []
    assert len({name for name, outcome in found.outcomes if outcome == "refused"}) == len(files)
