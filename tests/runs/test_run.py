"""The run as an object: round by round, from its directory, and what it has learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from night import by_night
from wanted import extra

import protea
from protea import STOP, Checkpoint, Data, Engine, Evaluation, Experiment, Models, Observer, Run
from protea.core.errors import ConfigError, DataError
from protea.core.training import Training
from protea.federation.jobs import Reply
from protea.federation.record import Cost, Record
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP
from protea.methods.local import Local

SMALL = Experiment(
    rounds=4,
    clients=3,
    method=FedProto(),
    data=Data(samples=300),
    models=Models(family="tiny_mlp", dim=16),
    training=Training(batch=30),
    engine=Engine("inline"),
    checkpoint=Checkpoint(every=2),
)
DIGIT = torch.zeros(5, 1, 8, 8)


def learned(run: Run) -> list[Record]:
    """All records but for what a round took."""
    return [replace(record, cost=Cost()) for record in run.records]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(SMALL, tmp_path_factory.mktemp("runs") / "ended")
    run.finish()
    yield run


def test_every_step_is_a_round_and_one_may_leave_and_come_back(ended: Run):
    run, seen = Run(SMALL), []
    for record in run:
        seen.append(record.round)
        if record.round == 2:
            break
    assert seen == [1, 2] and not run.ended and [record.round for record in run.records] == [1, 2]
    for record in run:
        seen.append(record.round)
        assert record.accuracy is not None and 0 <= record.accuracy <= 1
    assert seen == [1, 2, 3, 4] and run.ended and list(run) == []
    assert learned(run) == learned(ended)


def test_the_same_experiment_goes_on_in_its_directory(tmp_path: Path, ended: Run):
    path = tmp_path / "run"
    with Run(SMALL, path) as first:
        for record in first:
            if record.round == 3:
                break
    assert not first.ended
    again = Run(SMALL, path)
    assert [record.round for record in again] == [3, 4]  # from the checkpoint of round 2
    assert learned(again) == learned(ended) == learned(protea.load(path))


def test_another_experiment_is_refused_and_nothing_is_touched(ended: Run):
    assert ended.directory is not None
    before = ended.directory.metrics_path.read_bytes()
    with pytest.raises(ConfigError, match=r"This is not the experiment of .*seed is 2, 1 there"):
        Run(replace(SMALL, seed=2), ended.directory.path)
    assert ended.directory.metrics_path.read_bytes() == before


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = Run(replace(SMALL, rounds=1))
    run.finish()
    assert list(tmp_path.iterdir()) == [] and run.client(0).model.name == "tiny_mlp"


@pytest.mark.parametrize(
    ("method", "engine", "family"),
    [
        (FedProto(), "inline", "tiny_mlp"),
        (FedTGP(server_epochs=2), "processes", "tiny5"),
        (Local(), "inline", "tiny_mlp"),
        *by_night(
            (FedProto(), "inline", "tiny5"),
            (Local(), "inline", "tiny5"),
            (FedProto(), "processes", "tiny5"),
            (FedTGP(server_epochs=2), "inline", "tiny5"),
            (Local(), "processes", "tiny5"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__.lower(),
)
def test_what_was_learned_is_the_same_here_and_from_the_directory(
    method: protea.Method, engine: str, family: str, tmp_path: Path
):
    models = Models(family, dim=16)
    experiment = replace(SMALL, rounds=2, method=method, models=models, engine=Engine(engine, workers=2))
    x = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    run = Run(experiment, tmp_path / "run")
    first = next(iter(run))
    early = run.predict(x, client=1)  # after one round, which no checkpoint has
    assert first.round == 1 and early.shape == (7, 10)
    run.finish()
    alone, loaded = Run(experiment), protea.load(tmp_path / "run")
    alone.finish()
    late = run.predict(x, client=1)
    assert not torch.equal(early, late)
    for other in (alone, loaded):
        assert torch.equal(late, other.predict(x, client=1))
        assert torch.equal(late, other.predict(x.numpy(), client=1))
        for name, tensor in run.client(2).model.state_dict().items():
            assert torch.equal(tensor, other.client(2).model.state_dict()[name])
        ours, theirs = run.prototypes, other.prototypes
        assert (ours is None) == (theirs is None) == isinstance(method, Local)
        if ours is not None and theirs is not None:
            assert torch.equal(ours.vectors, theirs.vectors)
    assert late.dtype == torch.float32 and torch.allclose(late.sum(1), torch.ones(7))
    assert not run.client(1).model.training


def test_a_run_that_was_interrupted_has_the_models_of_its_checkpoint(tmp_path: Path, ended: Run):
    with Run(SMALL, tmp_path / "run") as run:
        for record in run:
            if record.round == 3:
                break
    loaded = protea.load(tmp_path / "run")
    assert [record.round for record in loaded.records] == [1, 2, 3]
    two = Run(replace(SMALL, rounds=4))
    for record in two:
        if record.round == 2:
            break
    assert torch.equal(loaded.predict(DIGIT, client=0), two.predict(DIGIT, client=0))
    early = Run(replace(SMALL, checkpoint=Checkpoint(every=4)), tmp_path / "early")
    next(iter(early))
    early.close()
    with pytest.raises(
        ConfigError, match=r"has no checkpoint, so there are no models in it.  They are written every 4"
    ):
        protea.load(tmp_path / "early").client(0)


def test_rules_answer_differently_and_unknown_ones_are_named(ended: Run):
    x = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    by = {rule: ended.predict(x, client=0, rule=rule) for rule in ("method", "head", "local_prototypes", "head_own")}
    assert not torch.equal(by["method"], by["head"])
    own = ended.client(0).client.own_classes
    assert (by["head_own"][:, ~own] == 0).all() and (by["head"][:, ~own] > 0).any()
    with pytest.raises(ConfigError, match=r"Client 0 has no rule 'heads'.  Did you mean head\?"):
        ended.predict(x, client=0, rule="heads")


def test_the_confusion_matrix_has_the_hits_of_the_record(ended: Run):
    for client in range(3):
        matrix, record = ended.client(client).confusion(), ended.records[-1]
        line = next(each for each in record.clients if each.client == client)
        assert matrix.shape == (10, 10) and int(matrix.sum()) == line.parts["test"].samples
        assert int(matrix.trace()) == line.parts["test"].hits["method"]


def test_what_cannot_be_predicted_is_said(ended: Run):
    with pytest.raises(
        DataError, match=r"Samples of shape \(3, 3\) were given; the clients of this run have \(1, 8, 8\)"
    ):
        ended.predict(torch.zeros(2, 3, 3), client=0)
    with pytest.raises(ConfigError, match=r"There is no client 3: this run has those from 0 to 2"):
        ended.client(3)
    assert ended.predict(np.zeros((2, 8, 8), np.float32), client=0).shape == (2, 10)  # grey, without channels
    assert ended.predict(torch.zeros(0, 1, 8, 8), client=0).shape == (0, 10)
    with pytest.raises(ConfigError, match="This run has not begun: there are no models"):
        Run(SMALL).client(0)


def test_bytes_of_images_are_normalised_as_in_training(ended: Run):
    bytes_ = torch.randint(256, (3, 1, 8, 8), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    as_floats = (bytes_.float() / 255 - 0.5) / 0.5
    assert torch.allclose(ended.predict(bytes_, client=1), ended.predict(as_floats, client=1), atol=1e-6)


def test_tables_have_a_row_for_each_round_and_each_client(ended: Run):
    extra("pandas")
    rounds, clients = ended.table(), ended.table(clients=True)
    assert list(rounds["round"]) == [1, 2, 3, 4] and rounds["accuracy"].iloc[-1] == ended.records[-1].accuracy
    assert len(clients) == 12 and set(clients["client"]) == {0, 1, 2}
    last = clients[clients["round"] == 4].set_index("client")["accuracy"]
    weights = [len(ended.client(i).client.test or ()) for i in range(3)]
    assert sum(last[i] * n for i, n in enumerate(weights)) / sum(weights) == pytest.approx(rounds["accuracy"].iloc[-1])


def test_the_result_is_typed_and_tells_the_gain_over_local(ended: Run):
    result, local = ended.result, Run(replace(SMALL, method=Local())).finish()
    assert result.method == "fedproto" and result.accuracy == result.by_rule["method"].weighted
    assert set(result.clients) == {0, 1, 2} and result.rounds[0] in (1, 2, 3, 4)
    gain = result.gain_over(local)
    assert gain.mean == pytest.approx(result.accuracy - local.accuracy) and gain.paired
    assert gain.client(1).mean == pytest.approx(result.clients[1] - local.clients[1])
    assert gain.better + gain.worse + gain.neither == 3 and gain.low <= gain.mean <= gain.high
    assert result.gain == {}  # nothing stands beside it
    other = Run(replace(SMALL, method=Local(), seed=7)).finish()
    with pytest.raises(ConfigError, match="do not answer the same test samples"):
        result.gain_over(other)
    assert protea.load(ended.directory.path).result.summary == result.summary  # type: ignore[union-attr]


class Diary(Observer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.replies = 0

    def started(self, run: Run) -> None:
        self.lines.append(f"started after {len(run.records)}")

    def replied(self, reply: Reply) -> None:
        self.replies += 1

    def round(self, record: Record) -> None:
        self.lines.append(f"round {record.round}")

    def ended(self, run: Run) -> None:
        self.lines.append("ended" if run.ended else "left")


def test_observers_are_told_in_order(tmp_path: Path):
    diary = Diary()
    with Run(SMALL, tmp_path / "run", observers=[diary]) as run:
        next(iter(run))
    Run(SMALL, tmp_path / "run", observers=[diary]).finish()
    assert diary.lines == [
        "started after 0", "round 1", "left", "started after 0", "round 1", "round 2", "round 3", "round 4", "ended"
    ]  # fmt: skip
    assert diary.replies == 6 + 4 * 6 + 3  # train and evaluate in each round, and the shared test set in the last


def test_stop_ends_a_run_early_and_cleanly(tmp_path: Path):
    run = Run(SMALL, tmp_path / "run", observers=[lambda record: STOP if record.round == 3 else None])
    assert [record.round for record in run] == [1, 2, 3] and run.ended
    loaded = protea.load(tmp_path / "run")
    assert loaded.ended and loaded.result.summary["rounds"] == 3
    assert loaded.predict(DIGIT, client=0).shape == (5, 10)  # a checkpoint of round 3 was written
    assert torch.equal(loaded.predict(DIGIT, client=0), run.predict(DIGIT, client=0))


def test_a_run_without_a_directory_that_failed_cannot_go_on():
    def fail(record: Record) -> None:
        raise RuntimeError("no luck")

    run = Run(SMALL, observers=[fail])
    with pytest.raises(RuntimeError, match="no luck"):
        run.finish()
    with pytest.raises(ConfigError, match=r"This run has failed, and keeps nothing on disk.*Make a new one"):
        run.step()


def test_a_run_is_read_while_another_goes_on_with_it(tmp_path: Path):
    with Run(SMALL, tmp_path / "run") as run:
        steps, reader = iter(run), None
        for expected in (1, 2):
            next(steps)
            reader = reader or protea.load(tmp_path / "run")
            assert [record.round for record in reader.records] == list(range(1, expected + 1))
        assert reader is not None and not reader.ended
        assert reader.predict(DIGIT, client=0).shape == (5, 10)  # of the checkpoint of round 2
        with pytest.raises(ConfigError, match="is being written by another process"):
            reader.step()


def test_what_is_no_run_is_not_loaded(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no config.toml"):
        protea.load(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        Run(SMALL, tmp_path)


def test_evaluation_settings_survive_being_loaded(tmp_path: Path):
    experiment = replace(SMALL, rounds=1, evaluation=Evaluation(snapshots=0, protocol="final"))
    Run(experiment, tmp_path / "run").finish()
    assert protea.load(tmp_path / "run").experiment.evaluation == experiment.evaluation


def test_looking_at_a_run_changes_nothing(tmp_path: Path):
    rare = replace(SMALL, rounds=8, clients=4, fraction=0.25, evaluation=Evaluation(every=8, snapshots=0))
    Run(rare, tmp_path / "whole").finish()
    path = tmp_path / "looked-at"
    with Run(rare, path) as first:
        for record in first:
            if record.round == 4:
                break
    again = protea.load(path)
    for _ in again:  # most clients were met before the checkpoint only
        for client in range(4):
            assert again.predict(DIGIT, client=client).shape == (5, 10)
    assert learned(again) == learned(protea.load(tmp_path / "whole"))
    for client in range(4):
        assert torch.equal(again.predict(DIGIT, client), protea.load(tmp_path / "whole").predict(DIGIT, client))


def test_a_run_in_memory_that_was_closed_keeps_its_models_and_is_over():
    with Run(SMALL) as run:
        run.step()
    assert run.predict(DIGIT, client=0).shape == (5, 10) and len(run.records) == 1
    with pytest.raises(ConfigError, match=r"This run was closed after round 1, and keeps nothing on disk"):
        run.step()


def test_one_observer_that_fails_does_not_silence_the_others():
    class Fails(Observer):
        def round(self, record: Record) -> None:
            raise RuntimeError("no luck")

        def ended(self, run: Run) -> None:
            raise RuntimeError("nor at the end")

    before, after = Diary(), Diary()
    with pytest.raises(RuntimeError, match="no luck") as caught:
        Run(SMALL, observers=[before, Fails(), after]).finish()
    assert before.lines == after.lines == ["started after 0", "round 1", "left"]
    assert "nor at the end" in caught.value.__notes__[0]


@pytest.mark.parametrize("chosen", [[0, 0], [99], [], None])
def test_a_sampler_that_chooses_nonsense_is_named(chosen: object):
    @dataclass(frozen=True)
    class Odd:
        def __call__(self, clients: object, count: int, round: int, rng: object) -> object:
            return chosen

    with pytest.raises(ConfigError, match=r"sampler Odd chose .* in round 1; expected is a list of 3 different"):
        Run(replace(SMALL, sampler=Odd())).step()


def test_what_is_of_the_wrong_kind_is_refused_at_once(ended: Run):
    with pytest.raises(ConfigError, match=r"A run is of an Experiment; found 'exp.toml'"):
        Run("exp.toml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"observers has 3; expected are objects of protea.Observer, or functions"):
        Run(SMALL, observers=[3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"There is no client 'a'"):
        ended.client("a")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"A client has no part 'tst'.  Did you mean test\?"):
        ended.client(0).confusion("tst")  # type: ignore[arg-type]
