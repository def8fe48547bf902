"""What holds for every method, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from every import METHODS

from protea.cli.listing import paper
from protea.clients.offload import OffloadedStore
from protea.clients.plan import WorkerPlan
from protea.clients.worker import Worker
from protea.config.registry import BUILT_IN, find
from protea.config.sections import Engine
from protea.core.method import Method
from protea.core.payload import nbytes, pack, unpack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.data.partition.split import Share
from protea.engines.inline import Inline
from protea.engines.processes.engine import Processes
from protea.federation.jobs import Job, JobEngine, Reply, Watch, ignore
from protea.federation.loop import Federation
from protea.federation.plan import FederationPlan
from protea.methods.fedgh import FedGH

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
ENGINES: dict[str, Callable[[WorkerPlan], JobEngine]] = {
    "inline": Inline,
    **{f"{n} workers": lambda plan, n=n: Processes(plan, Engine(workers=n)) for n in (1, 2, 3)},
}


class Backwards(Inline):
    """Runs the jobs in the opposite order, as a busy machine might."""

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        return list(reversed([self.worker.run(job) for job in sorted(jobs, key=lambda job: -job.client)]))


class Short(Inline):
    """All clients are moved to disk after every job, with all their tensors."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.store = OffloadedStore(plan.make_client, full=float("inf"))
        super().__init__(Worker(plan, self.store))

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        replies = super().map(jobs, watch)
        for id, client in self.worker.clients.items():
            self.store.offload(id)
            assert not any(tensor.untyped_storage().resizable() for tensor in client.tensors() if tensor.numel())
        return replies


class Forgetful(Inline):
    """Client 2 never answers in round 1."""

    def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
        replies = super().map(jobs, watch)
        if jobs[0].round == 1 and jobs[0].task == "train":
            return [Reply(2, r.round, error="client 2 did not answer") if r.client == 2 else r for r in replies]
        return replies


def builder(method: Method[Any, Any]) -> Callable[..., Any]:
    return partial(toy.build, same_architecture=method.needs.same_architecture)


def play(
    method: Method[Any, Any],
    make: Callable[[WorkerPlan], JobEngine],
    folder: Path,
    *,
    build: Callable[..., Any] | None = None,
    rounds: int = 2,
    **options: Any,
) -> dict[str, Any]:
    """All that a run leaves: its records but for cost, and every tensor of server and clients."""
    engine = make(toy.plan(method, build or builder(method), seed=7))
    server = toy.server()
    loop = Federation(
        method,
        engine,
        server,
        FederationPlan(clients=toy.CLIENTS, rounds=rounds, **options),
        test=Samples(toy.BLOBS, toy.TEST),
    )
    records = [line for record in loop.run() for line in record.lines()]
    for line in records:
        line.pop("cost", None)
    folder.mkdir(exist_ok=True)
    engine.save(folder)
    engine.close()
    tensors, index = server.memory.flat()
    states = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {
        "records": records,
        "server": {k: t.tolist() for k, t in tensors.items()},
        "index": index,
        **states,
    }


@pytest.mark.xdist_group("engines")
@every_method
def test_it_is_the_same_in_every_engine(method: Method[Any, Any], tmp_path: Path) -> None:
    found = {name: play(method, make, tmp_path / name, fraction=0.75) for name, make in ENGINES.items()}
    assert len(found["inline"]) >= 3 + 3  # records, server, index, and at least three clients
    for name, result in found.items():
        assert result == found["inline"], name


@every_method
def test_it_repeats_itself(method: Method[Any, Any], tmp_path: Path) -> None:
    assert play(method, Inline, tmp_path / "a") == play(method, Inline, tmp_path / "b")


@every_method
def test_it_does_not_matter_who_finishes_first(method: Method[Any, Any], tmp_path: Path) -> None:
    assert play(method, Inline, tmp_path / "a") == play(method, Backwards, tmp_path / "b")


@every_method
def test_clients_may_wait_on_disk(method: Method[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protea.clients.mapped_tensors.LARGE", 0)
    assert play(method, Inline, tmp_path / "a") == play(method, Short, tmp_path / "b")


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
def test_it_survives_a_missing_reply(method: Method[Any, Any], tmp_path: Path) -> None:
    result = play(method, Forgetful, tmp_path / "run", failures="skip")
    first = result["records"][0]
    assert first["failures"] == {2: "client 2 did not answer"}
    assert result["records"][-1]["round"] == 2


@every_method
def test_it_survives_clients_with_next_to_nothing(method: Method[Any, Any], tmp_path: Path) -> None:
    """One sample in all; one class; no test samples; classes that nobody else has."""
    rows = [(toy.BLOBS.y == c).nonzero().squeeze(1) for c in range(toy.CLASSES)]
    none = rows[0][:0]
    poor = [Share(rows[0][:1], none, none), Share(rows[1][:9], none, rows[1][9:12])]
    poor += [Share(torch.cat([rows[3][:17], rows[4][:1]]), none, rows[5][:2]), toy.SHARES[3]]

    def build(id: int, streams: Streams) -> Any:
        return builder(method)(id, streams, share=poor[id])

    result = play(method, Inline, tmp_path / "run", build=build)
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
    seen: list[int] = []

    class Tally(Inline):
        def map(self, jobs: list[Job], watch: Watch = ignore) -> list[Reply]:
            replies = super().map(jobs, watch)
            if jobs[0].task == "train":
                seen.append(sum(nbytes(job.down) for job in jobs))
                seen.append(sum(sum(t.numel() * t.element_size() for t in r.up.values()) for r in replies))
            return replies

    engine = Tally(toy.worker(method, builder(method), seed=7))
    records = list(Federation(method, engine, toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=2)).run())
    assert [n for r in records for n in (r.bytes_down, r.bytes_up)] == seen


@every_method
def test_it_learns_blobs_above_chance(method: Method[Any, Any], tmp_path: Path) -> None:
    rounds = 16 if method == FedGH() else 8  # its head learns from a few prototypes a round, once each
    records = play(method, Inline, tmp_path / "run", rounds=rounds)["records"]
    last = [line for line in records if line["kind"] == "round"][-1]
    assert last["accuracy"] > 0.6  # three classes each: 1/3 by chance


@every_method
def test_it_resumes_exactly(method: Method[Any, Any], tmp_path: Path) -> None:
    from protea.runs import checkpoint

    def federation(rounds: int) -> Federation:
        engine = Inline(toy.worker(method, builder(method), seed=7))
        return Federation(
            method, engine, toy.server(), FederationPlan(clients=toy.CLIENTS, rounds=rounds, fraction=0.5)
        )

    straight = federation(4)
    whole = [r.lines() for r in straight.run()]
    checkpoint.save(tmp_path / "straight", straight)

    first = federation(4)
    steps = first.run()
    two = [next(steps), next(steps)]
    parts = [r.lines() for r in two]
    checkpoint.save(tmp_path / "broken", first)
    second = federation(4)
    start = checkpoint.newest(tmp_path / "broken")
    assert start is not None
    checkpoint.load(start, second)
    second.recall(two)
    assert second.server.round == 2
    parts += [r.lines() for r in second.run()]
    checkpoint.save(tmp_path / "broken", second)

    for lines in (*whole, *parts):
        for line in lines:
            line.pop("cost", None)
    assert whole == parts
    a, b = (checkpoint.complete(tmp_path / name)[-1] for name in ("straight", "broken"))
    assert {p.name: p.read_bytes() for p in a.iterdir()} == {p.name: p.read_bytes() for p in b.iterdir()}


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
