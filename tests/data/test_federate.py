"""From a data set to shares: pools, the public set, the global test set, and the file that keeps it all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from protea.clients.factory import ClientFactory
from protea.config.families import Models
from protea.config.registry import BUILT_IN, find
from protea.core.errors import ConfigError, DataError
from protea.data import (
    Arrays,
    ByKey,
    Dataset,
    Dirichlet,
    Federated,
    Iid,
    PartitionFile,
    Pathological,
    Share,
    Split,
    federate,
)
from protea.data.federate import refuse_shared_keys
from protea.data.partition.schemes import Partition


def toy(samples: int = 200, classes: int = 4, tests: int = 40, keys: bool = False) -> Dataset:
    whose = torch.arange(samples) % 10 if keys else None
    names = tuple(map(str, range(classes)))
    return Dataset(torch.rand(samples, 3), torch.arange(samples) % classes, names, tests, whose)


def every_row(data: Federated) -> list[int]:
    shared = [data.rows(client) for client in range(len(data.shares))]
    return torch.cat([*shared, data.public]).tolist()


def test_the_training_pool_leaves_the_sources_test_part_to_all() -> None:
    data = federate(toy(), 5, Iid(), seed=1, public=20)
    assert sorted(every_row(data)) == list(range(160))
    assert data.test.tolist() == list(range(160, 200))
    assert len(data.public) == 20


def test_merged_parts_are_tested_on_the_clients_test_rows() -> None:
    data = federate(toy(), 5, Iid(), seed=1, pool="all")
    assert sorted(every_row(data)) == list(range(200))
    assert data.test.tolist() == sorted(torch.cat([share.test for share in data.shares]).tolist())
    assert len(data.test) == 40


def test_a_source_without_test_part_is_tested_the_same_way() -> None:
    data = federate(toy(tests=0), 5, Iid(), seed=1)
    assert sorted(every_row(data)) == list(range(200))
    assert set(data.test.tolist()) == {row for share in data.shares for row in share.test.tolist()}


def test_the_seed_settles_everything() -> None:
    one, same, other = (federate(toy(), 5, Dirichlet(), seed=seed, public=10) for seed in (1, 1, 2))
    assert every_row(one) == every_row(same)
    assert every_row(one) != every_row(other)


def test_public_rows_are_drawn_before_clients_get_theirs() -> None:
    few, many = (federate(toy(), clients, Iid(), seed=1, public=10) for clients in (2, 8))
    assert few.public.tolist() == many.public.tolist()


@pytest.mark.parametrize("public", [160, -1])
def test_a_public_set_of_everything_is_refused(public: int) -> None:
    with pytest.raises(ConfigError, match="there are 160 samples"):
        federate(toy(), 5, Iid(), seed=1, public=public)


def test_keys_reach_the_partition_and_the_split() -> None:
    data = federate(toy(tests=0, keys=True), 5, ByKey(), seed=1, split=Split(by_key=True, test=0.5, validation=0))
    assert data.dataset.keys is not None
    for share in data.shares:
        train, test = (set(data.dataset.keys[rows].tolist()) for rows in (share.train, share.test))
        assert len(train) == len(test) == 1
        assert not train & test


def test_keys_that_are_not_there_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="by-key: this source does not say"):
        federate(toy(), 5, ByKey(), seed=1)
    with pytest.raises(ConfigError, match="dirichlet, by_key: this source does not say"):
        federate(toy(), 5, Dirichlet(by_key=True), seed=1)
    with pytest.raises(ConfigError, match="split: by_key is set"):
        federate(toy(), 5, Iid(), seed=1, split=Split(by_key=True))


BY_KEY = Split(test=0.3, validation=0.2, by_key=True)


def visits(patients: int = 40, tests: int = 0, apart: bool = True) -> Dataset:
    """Three samples of each patient in a row; ``apart`` is whether the test part has patients of its own."""
    rows = torch.arange(3 * patients)
    whose = rows // 3 if apart else rows % patients
    return Dataset(torch.rand(len(rows), 2), whose % 4, tuple("abcd"), tests, whose)


def patients(data: Federated, *rows: torch.Tensor) -> set[int]:
    assert data.dataset.keys is not None
    return set(data.dataset.keys[torch.cat(rows)].tolist())


@pytest.mark.parametrize("partition", [ByKey(), Dirichlet(alpha=0.5, by_key=True)])
@pytest.mark.parametrize("tests", [0, 30])
def test_no_patient_is_both_learned_from_and_judged_on(partition: Partition, tests: int) -> None:
    data = federate(visits(tests=tests), 4, partition, seed=1, split=BY_KEY)
    train = patients(data, *(share.train for share in data.shares))
    judged = patients(data, data.test, *(part for share in data.shares for part in (share.validation, share.test)))
    assert train and judged and not train & judged
    assert train | judged == set(range(40))


@pytest.mark.parametrize(
    ("dataset", "partition", "public", "words"),
    [
        (
            visits(),
            Iid(),
            0,
            "also what clients are judged on: set data.partition to by-key, or to dirichlet with by_key",
        ),
        (visits(), Dirichlet(), 0, "also what clients are judged on"),
        (visits(), ByKey(), 10, "also in the public set: set data.public=0"),
        (visits(), Dirichlet(by_key=True), 10, "also in the public set"),
        (visits(tests=30, apart=False), ByKey(), 0, "also in the source's own test part: set data.pool=all"),
    ],
)
def test_a_patient_in_two_places_is_refused(dataset: Dataset, partition: Partition, public: int, words: str) -> None:
    with pytest.raises(ConfigError, match=r"split.by_key is set") as error:
        federate(dataset, 4, partition, seed=1, split=BY_KEY, public=public)
    assert words in str(error.value)
    federate(dataset, 4, partition, seed=1, public=public)  # whose keys nobody asked about


def test_all_places_that_share_patients_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        federate(visits(tests=30, apart=False), 4, Iid(), seed=1, split=BY_KEY, public=10)
    assert str(error.value).count("also") == 3


def test_a_patient_in_the_public_set_and_judged_on_is_refused() -> None:
    none, keys = torch.empty(0, dtype=torch.int64), torch.tensor([0, 1, 1])
    dataset = Dataset(torch.zeros(3, 1), torch.tensor([0, 1, 1]), ("a", "b"), keys=keys)
    shares = (Share(torch.tensor([0]), none, torch.tensor([1])),)
    refuse_shared_keys(Federated(dataset, shares, public=none, test=torch.tensor([1])))
    with pytest.raises(ConfigError, match="1 are also in the public set"):
        refuse_shared_keys(Federated(dataset, shares, public=torch.tensor([2]), test=torch.tensor([1])))


def test_one_sample_of_each_patient_may_be_public() -> None:
    dataset = Dataset(torch.rand(60, 2), torch.arange(60) % 4, tuple("abcd"), keys=torch.arange(60))
    assert len(federate(dataset, 4, Iid(), seed=1, split=BY_KEY, public=10).public) == 10


def test_merged_parts_keep_patients_apart() -> None:
    data = federate(visits(tests=30, apart=False), 4, ByKey(), seed=1, split=BY_KEY, pool="all")
    assert not patients(data, *(share.train for share in data.shares)) & patients(data, data.test)


def test_a_partition_file_is_held_to_by_key_too(tmp_path: Path) -> None:
    for partition, name in ((ByKey(), "good.json"), (Iid(), "bad.json")):
        split = BY_KEY if name == "good.json" else None
        federate(visits(), 4, partition, seed=1, split=split).save_partition(tmp_path / name)
    federate(visits(), 4, PartitionFile(str(tmp_path / "good.json")), seed=1, split=BY_KEY)
    with pytest.raises(ConfigError, match="also what clients are judged on"):
        federate(visits(), 4, PartitionFile(str(tmp_path / "bad.json")), seed=1, split=BY_KEY)


def test_class_counts_and_the_majority_predictor() -> None:
    y = torch.tensor([0, 0, 1, 0, 1, 1, 1, 1, 0, 0])
    dataset = Dataset(torch.zeros(10, 1), y, ("a", "b"))
    none = torch.empty(0, dtype=torch.int64)
    rows = [none.new_tensor(part) for part in ([0, 1, 2], [3], [4], [5, 6], [], [7, 8, 9])]
    data = Federated(dataset, (Share(*rows[:3]), Share(*rows[3:])), public=none, test=none)
    assert data.class_counts().tolist() == [[3, 2], [2, 3]]
    assert data.class_counts("train").tolist() == [[2, 1], [0, 2]]
    assert data.majority() == pytest.approx(1 / 4)  # client 0 answers a to one b; client 1 answers b to b, a, a


def test_the_majority_predictor_without_test_rows_is_nan() -> None:
    data = federate(toy(), 5, Iid(), seed=1, split=Split(test=0, validation=0))
    assert np.isnan(data.majority())


def test_cifar10_of_fedtgp_is_three_quarters_majority() -> None:
    dataset = Dataset(torch.zeros(60_000, 1), torch.arange(60_000) % 10, tuple("0123456789"), tests=10_000)
    partition = Dirichlet(alpha=0.1, dialect="pfllib")
    data = federate(dataset, 20, partition, seed=1, pool="all", split=Split(test=0.25, validation=0))
    counts = data.class_counts()
    assert 100 * float(counts.max(1).values.sum() / counts.sum()) == pytest.approx(74.21, abs=0.005)
    assert 100 * data.majority() == pytest.approx(74.21, abs=0.1)  # stratified, so nearly the same
    assert counts[17].tolist() == [0, 3175, 0, 0, 0, 0, 0, 0, 0, 0]


def test_a_saved_partition_is_read_back(tmp_path: Path) -> None:
    data = federate(toy(), 5, Pathological(), seed=3, public=10)
    data.save_partition(tmp_path / "partition.json")
    again = federate(toy(), 5, PartitionFile(str(tmp_path / "partition.json")), seed=99)
    assert every_row(again) == every_row(data)
    assert again.test.tolist() == data.test.tolist()
    assert again.made == data.made
    assert data.made["partition"] == {
        "kind": "pathological",
        "classes_per_client": 2,
        "dialect": "protea",
        "balanced": False,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["partition.json"]


def test_a_partition_file_can_be_called_like_any_partition(tmp_path: Path) -> None:
    data = federate(toy(tests=0), 5, Iid(), seed=3)
    data.save_partition(tmp_path / "partition.json")
    given = PartitionFile(str(tmp_path / "partition.json"))
    parts = given(toy().y.numpy(), 5, 0, None)
    assert [part.tolist() for part in parts] == [sorted(data.rows(client).tolist()) for client in range(5)]
    with pytest.raises(ConfigError, match="is for 5 clients"):
        given(toy().y.numpy(), 4, 0, None)


def change(content: dict[str, Any], **new: Any) -> dict[str, Any]:
    return {**content, **new}


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: change(c, samples=7), "was made for 7 samples; this data set has 200"),
        (lambda c: change(c, public=[c["clients"][0]["train"][0]]), "is given out 2 times"),
        (lambda c: change(c, public=[200]), "there is no row 200"),
        (lambda c: change(c, public=[-1]), "public.0"),
        (lambda c: change(c, test=c["clients"][0]["train"]), "both in the global test set and among those"),
        (lambda c: change(c, clients=[]), "at least one training sample"),
        (lambda c: change(c, clients=[{"train": [0]}]), r"clients.0.validation"),
        (lambda c: change(c, format="other"), "format"),
        (lambda c: change(c, class_counts=[[1]]), "was made for other data"),
        (lambda c: "no json", "is not a partition file"),
    ],
)
def test_a_partition_file_that_makes_no_sense_is_refused(tmp_path: Path, edit: Any, message: str) -> None:
    path = tmp_path / "partition.json"
    federate(toy(), 5, Iid(), seed=3).save_partition(path)
    edited = edit(json.loads(path.read_text()))
    path.write_text(edited if isinstance(edited, str) else json.dumps(edited))
    with pytest.raises(DataError, match=message):
        federate(toy(), 5, PartitionFile(str(path)), seed=3)


def test_a_partition_file_for_other_clients_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    with pytest.raises(DataError, match="cannot be read"):
        federate(toy(), 5, PartitionFile(str(path)), seed=3)
    federate(toy(), 5, Iid(), seed=3).save_partition(path)
    with pytest.raises(ConfigError, match=r"is for 5 clients; the experiment has 4"):
        federate(toy(), 4, PartitionFile(str(path)), seed=3)


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN["partitions"] if kind != "file"])
def test_every_partition_can_be_named_and_made_from_its_defaults(kind: str) -> None:
    partition = TypeAdapter(find("partitions", kind)).validate_python({})
    clients = 10 if kind == "source" else 5  # the toy's keys name ten
    assert len(federate(toy(keys=True), clients, partition, seed=0).shares) == clients


def test_settings_out_of_range_are_refused_at_the_edge() -> None:
    for settings in ({"alpha": 0}, {"alpha": "small"}, {"dialect": "other"}, {"least": 0}):
        with pytest.raises(ValidationError):
            TypeAdapter(Dirichlet).validate_python(settings)
    with pytest.raises(ValidationError):
        TypeAdapter(Split).validate_python({"test": 1.0})


def test_only_so_many_samples_are_used() -> None:
    dataset = Dataset(torch.zeros(50, 2), torch.arange(50) % 5, tuple("abcde"), tests=10)
    small = federate(dataset, 4, Iid(), seed=1, samples=20)
    used = torch.cat([small.rows(client) for client in range(4)])
    assert len(used.unique()) == 20 and used.max() < 40
    assert len(small.test) == 10
    with pytest.raises(ConfigError, match=r"data.samples is 41, but there are only 40"):
        federate(dataset, 4, Iid(), seed=1, samples=41)


def test_clients_are_called_by_their_keys() -> None:
    y, keys = [0, 1] * 6, ["south"] * 4 + ["north"] * 4 + ["coast"] * 4
    dataset = Arrays(np.zeros((12, 2), np.float32), y, keys=keys).load()
    assert federate(dataset, 3, ByKey(), seed=1).client_names() == ["coast", "north", "south"]
    two = federate(dataset, 2, ByKey(), seed=1).client_names()
    assert sorted(str(name).count(" + ") for name in two) == [0, 1]
    assert federate(dataset, 3, Iid(), seed=1).client_names() == [None] * 3
    numbers = Arrays(np.zeros((12, 2), np.float32), y, keys=[4] * 6 + [7] * 6).load()
    assert federate(numbers, 2, ByKey(), seed=1).client_names() == [None] * 2
    factory = ClientFactory(federate(dataset, 3, ByKey(), seed=1), models=Models(family="tiny_mlp", dim=4))
    assert [each["site"] for each in factory.describe()["clients"]] == ["coast", "north", "south"]
