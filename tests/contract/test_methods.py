"""What holds for every method, on every engine.

All of it is asked of each method.  A variant is the same class with other fields.  It is asked what these can change:
that it learns, that poor clients do not spoil it, and that it goes on in other processes from what was saved.  The rest
of it is for the night.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from contract import (
    Backwards,
    Forgetful,
    Short,
    builder,
    holding_out,
    play,
    reference,
    reference_run,
    resumed,
    workers,
)
from every import FULL, METHODS, every_method, every_variant, parameters

from protea.cli.described import paper
from protea.config.registry import BUILT_IN, find
from protea.config.sections import Evaluation
from protea.core.method import Method
from protea.core.payload import pack, unpack
from protea.core.rng import Streams
from protea.data.partition.split import Share
from protea.methods.fedgh import FedGH
from protea.methods.fedproto import FedProto


@every_method
def test_it_is_the_same_in_other_processes(method: Method[Any, Any]) -> None:
    assert play(method, workers(2)) == reference(method)


@pytest.mark.parametrize("count", [1, 3])
@parameters({name: METHODS[name] for name in ("fedproto", "fedtgp", "fedpkd")})
def test_it_does_not_matter_how_many_processes_there_are(method: Method[Any, Any], count: int) -> None:
    assert play(method, workers(count)) == reference(method)


@parameters({name: METHODS[name] for name in ("fedproto", "fedtgp", "fedpkd")})
def test_it_repeats_itself_whoever_finishes_first(method: Method[Any, Any]) -> None:
    assert play(method, Backwards) == reference(method)


@every_method
def test_it_can_answer_by_the_blend(method: Method[Any, Any]) -> None:
    found, plain = (
        [line for record in holding_out(method, answer=name)[0] for line in record.lines()]
        for name in ("blend", "method")
    )
    for line, usual in zip(found, plain, strict=True):
        for part in ("test", "validation", "shared"):
            if by_rule := line.get(part):
                assert by_rule["method"] == by_rule["blend"] == usual[part]["blend"]
                assert {**by_rule, "method": 0} == {**usual[part], "method": 0}


@every_method
def test_clients_may_finish_in_any_order_and_wait_on_disk(
    method: Method[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference(method)
    monkeypatch.setattr("protea.clients.mapped_tensors.LARGE", 0)
    assert play(method, Short) == expected


@every_method
def test_another_seed_gives_another_run(method: Method[Any, Any]) -> None:
    a, b = (toy.worker(method, builder(method), seed).client(0).model.state_dict() for seed in (1, 2))
    assert any(not torch.equal(a[name], b[name]) for name in a)


@every_method
def test_it_holds_no_state(method: Method[Any, Any]) -> None:
    with pytest.raises(FrozenInstanceError):
        method.prototypes_so_far = torch.zeros(1)  # type: ignore[attr-defined]
    for field in fields(method):  # type: ignore[arg-type]
        assert isinstance(getattr(method, field.name), bool | int | float | str | tuple | type(None))


@every_method
def test_it_survives_a_missing_reply(method: Method[Any, Any]) -> None:
    result = play(method, Forgetful, rounds=2, fraction=1.0, failures="skip")
    first = result["records"][0]
    assert first["failures"] == {2: "client 2 did not answer"}
    assert result["records"][-1]["round"] == 2


@parameters(METHODS, by_day=METHODS.__contains__)
def test_it_survives_clients_with_next_to_nothing(method: Method[Any, Any]) -> None:
    """One sample in all; one class; no test samples; classes that nobody else has."""
    rows = [(toy.BLOBS.y == c).nonzero().squeeze(1) for c in range(toy.CLASSES)]
    none = rows[0][:0]
    poor = [Share(rows[0][:1], none, none), Share(rows[1][:9], none, rows[1][9:12])]
    poor += [Share(torch.cat([rows[3][:17], rows[4][:1]]), none, rows[5][:2]), toy.SHARES[3]]

    def build(id: int, streams: Streams) -> Any:
        return builder(method)(id, streams, share=poor[id])

    result = play(method, build=build, rounds=2, fraction=1.0)
    assert [line["accuracy"] for line in result["records"] if line["kind"] == "round"][-1] is not None
    for values in result["server"].values():
        assert torch.isfinite(torch.tensor(values, dtype=torch.float64)).all()


@every_method
def test_payloads_pack_and_unpack_unchanged_and_share_no_memory(method: Method[Any, Any]) -> None:
    worker, server = toy.worker(method, builder(method), seed=7), toy.server()
    method.start_server(server)
    client = worker.client(0)
    client.begin(1, Streams(7))
    up = method.local_update(client, method.broadcast(server, 0))
    flat = pack(up)
    if up is None:
        assert flat == {} and unpack(method.up, flat) is None
        return
    again = pack(unpack(method.up, flat))
    assert flat.keys() == again.keys()
    for name, tensor in flat.items():
        assert torch.equal(tensor, again[name]) and tensor.dtype == again[name].dtype
    before = {name: tensor.clone() for name, tensor in flat.items()}
    with torch.no_grad():
        for module in [client.model, *(m for m in client.memory.values() if isinstance(m, torch.nn.Module))]:
            for parameter in module.parameters():
                parameter.add_(1.0)
    for name, tensor in flat.items():
        assert torch.equal(tensor, before[name]), f"{name} shares memory with a live model"


@every_method
def test_bytes_counted_are_the_bytes_of_what_travels(method: Method[Any, Any]) -> None:
    run = reference_run(method)
    assert [n for r in run.records for n in (r.bytes_down, r.bytes_up)] == run.travelled


@every_variant(FULL)
def test_it_learns_blobs_above_chance(method: Method[Any, Any]) -> None:
    rounds = 8 if isinstance(method, FedGH | FedProto) else 5
    evaluation = Evaluation(every=rounds, shared="never", local_prototypes=False)
    records = play(method, rounds=rounds, fraction=1.0, evaluation=evaluation)["records"]
    last = [line for line in records if line["kind"] == "round"][-1]
    assert last["accuracy"] > 0.6  # three classes each: 1/3 by chance


@every_method
def test_it_resumes_exactly(method: Method[Any, Any], tmp_path: Path) -> None:
    run = reference_run(method)
    assert resumed(run, method, tmp_path) == run.left


@every_variant(METHODS)
def test_it_resumes_exactly_in_other_processes(method: Method[Any, Any], tmp_path: Path) -> None:
    run = reference_run(method)
    assert resumed(run, method, tmp_path, workers(2)) == run.left


@pytest.mark.parametrize("name", BUILT_IN["methods"])
def test_lists_and_docs_have_it(name: str) -> None:
    """Its paper stands in the second paragraph of its file, in the form that ``protea list methods`` reads."""
    method = find("methods", name)
    assert method.family in {"alone", "class vectors", "weights", "second model", "public data"}
    assert method.exchanges != "-"
    assert (paper(method) == "-") == (name in {"local", "fedloo"})  # the baseline, and our own
    page = (Path(__file__).parents[2] / "docs/methods" / f"{name}.md").read_text()
    missing = [field.name for field in fields(method) if f"`{field.name}`" not in page]
    missing += [variant for variant in method.variants if f"{name}@{variant}" not in page]
    assert not missing, f"docs/methods/{name}.md does not name {missing}"
