"""Sources ``datasets`` and ``flwr-datasets``: from memory and from folders of this machine, dealt out as by Flower."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from wanted import extra

from protea import Data
from protea.config.experiment import experiment_from_table, experiment_to_toml
from protea.config.sections import Split
from protea.core.errors import ConfigError, DataError
from protea.data import Dataset, OfSource, Texts, federate
from protea.data.sources.flower_datasets import FlowerDatasets
from protea.data.sources.hugging_face import HuggingFace

datasets: Any = pytest.importorskip("datasets", reason="lacking: extra datasets")

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (20, 6, 6), np.uint8)
LABELS = [row % 4 for row in range(20)]
NAMES = ["cat", "dog", "eel", "fox"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache that ends with the test, and no hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    yield


def pictures(rows: slice = slice(0, 20)) -> Any:
    images = [Image.fromarray(picture) for picture in PICTURES[rows]]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_dict({"image": images, "label": LABELS[rows]}, features)


def test_images_with_their_parts_and_names_of_classes_come_from_memory_and_from_a_folder(tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": pictures(slice(0, 15)), "test": pictures(slice(15, 20))})
    both.save_to_disk(tmp_path / "kept")
    both["train"].save_to_disk(tmp_path / "one")
    for source in (HuggingFace(both), HuggingFace(str(tmp_path / "kept"))):
        data = source.load()
        assert data.x.shape == (20, 1, 6, 6) and np.array_equal(data.x[:, 0].numpy(), PICTURES)  # type: ignore[union-attr, index]
        assert (data.y.tolist(), data.names, data.tests) == (LABELS, tuple(NAMES), 5)
    assert HuggingFace(str(tmp_path / "kept"), test="").load().tests == 0
    data = HuggingFace(str(tmp_path / "one"), size=3, mode="RGB").load()
    assert data.x.shape == (15, 3, 3, 3) and data.tests == 0  # type: ignore[union-attr]


def test_folders_of_tables_and_of_images_are_read(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    both = datasets.Dataset.from_dict(
        {"text": ["good", "bad", "so"], "label": ["yes", "no", "no"], "who": ["n", "s", "n"]}
    )
    both.to_parquet(tmp_path / "tables" / "train.parquet")
    both.select([0]).to_parquet(tmp_path / "tables" / "test.parquet")
    data = HuggingFace(str(tmp_path / "tables"), key="who", inputs=("text",)).load()
    assert isinstance(data.x, Texts) and [data.x[row] for row in range(4)] == ["good", "bad", "so", "good"]
    assert data.names == ("no", "yes") and data.tests == 1
    assert data.keys is not None and data.keys.tolist() == [0, 1, 0, 0] and data.key_names == ("n", "s")
    for name, picture in zip(NAMES, PICTURES, strict=False):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.fromarray(picture).save(tmp_path / "images" / name / "0.png")
    data = HuggingFace(str(tmp_path / "images")).load()
    assert data.x.shape == (4, 1, 6, 6) and data.names == tuple(NAMES)  # type: ignore[union-attr]


def test_numbers_come_as_rows_or_column_by_column() -> None:
    rows = datasets.Dataset.from_dict({"z": [[1.0, 2.0], [3.0, 4.0]], "label": [3, 5]})
    assert HuggingFace(rows).load().x.tolist() == [[1, 2], [3, 4]]  # type: ignore[union-attr]
    table = datasets.Dataset.from_dict({"a": [1, 2], "b": [0.5, 1.5], "label": [0, 1]})
    data = HuggingFace(table, inputs=("a", "b")).load()
    assert data.x.tolist() == [[1, 0.5], [2, 1.5]] and data.x.dtype == torch.float32  # type: ignore[union-attr]
    cubes = datasets.Dataset.from_dict(
        {"x": PICTURES[:2, None].tolist(), "label": [0, 1]},
        datasets.Features({"x": datasets.Array3D((1, 6, 6), "uint8"), "label": datasets.Value("int64")}),
    )
    assert np.array_equal(HuggingFace(cubes).load().x.numpy()[:, 0], PICTURES[:2])  # type: ignore[union-attr]


def test_what_does_not_fit_is_refused_with_what_to_say(tmp_path: Path) -> None:
    def refused(source: HuggingFace) -> str:
        with pytest.raises((DataError, ConfigError)) as error:
            source.load()
        return str(error.value)

    def made(**columns: list[Any]) -> Any:
        return datasets.Dataset.from_dict(columns)

    assert "no column 'lable'" in refused(HuggingFace(pictures(), label="lable"))
    assert "no part 'trian'" in refused(HuggingFace(pictures(), train="trian"))
    assert "no part 'dev'" in refused(HuggingFace(pictures(), test="dev"))
    assert "which are the inputs?" in refused(HuggingFace(made(a=["x"], b=["y"], label=[0])))
    assert "column z has rows of different lengths" in refused(HuggingFace(made(z=[[1, 2], [3]], label=[0, 1])))
    assert "sample 1 has no text" in refused(HuggingFace(made(text=["a", None], label=[0, 1])))
    assert "sample 1 has no label" in refused(HuggingFace(made(text=["a", "b"], label=[0, None])))
    assert "or values are missing" in refused(HuggingFace(made(a=[1, None], label=[0, 1]), ("a",)))
    hidden = (
        pictures().cast_column("label", datasets.Value("int64")).remove_columns("label").add_column("label", [-1] * 20)
    )
    hidden = hidden.cast_column("label", datasets.ClassLabel(names=NAMES))
    assert "some samples have no class (-1)" in refused(HuggingFace(hidden))
    mixed = datasets.Dataset.from_dict(
        {"image": [Image.new("L", (4, 4)), Image.new("L", (5, 4))], "label": [0, 1]},
        datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    assert "Set size to scale" in refused(HuggingFace(mixed))
    assert "There is no ./nowhere" in refused(HuggingFace("./nowhere"))
    assert "cannot be read by datasets" in refused(HuggingFace("no-such-name-anywhere"))  # nobody is asked
    assert "expected is a folder" in refused(HuggingFace(3))


def test_files_whose_reader_could_run_code_are_not_read(tmp_path: Path) -> None:
    import tarfile

    (tmp_path / "web").mkdir()
    with tarfile.open(tmp_path / "web" / "train.tar", "w") as packed:
        (tmp_path / "0.txt").write_text("x")
        packed.add(tmp_path / "0.txt", "0.txt")
    with pytest.raises(DataError, match=r"is of the kind webdataset.  Read are parquet, arrow"):
        HuggingFace(str(tmp_path / "web")).load()
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')")
    with pytest.raises(DataError, match="cannot be read by datasets"):
        HuggingFace(str(tmp_path / "script")).load()
    assert not (tmp_path / "made").exists()


# Flower's partitioners


def shares(data: Dataset, clients: int) -> list[list[int]]:
    found = federate(data, clients, OfSource(), seed=1, split=Split(test=0.2, validation=0.0))
    return [sorted(found.rows(client).tolist()) for client in range(clients)]


def test_partitions_are_those_of_flowers_own_federated_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    extra("flwr-datasets")
    from flwr_datasets import FederatedDataset
    from flwr_datasets.partitioner import DirichletPartitioner

    many = datasets.Dataset.from_dict(
        {"z": [[float(row)] for row in range(200)], "label": [row % 4 for row in range(200)]}
    )
    both = datasets.DatasetDict({"train": many, "test": many.select(range(10))})
    options = {"num_partitions": 4, "partition_by": "label", "alpha": 0.5, "min_partition_size": 5}
    theirs = FederatedDataset(dataset="memory", partitioners={"train": DirichletPartitioner(**options)})
    monkeypatch.setattr("flwr_datasets.federated_dataset.datasets.load_dataset", lambda **_: both)
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    data = FlowerDatasets(both, partitioner="DirichletPartitioner", options=options).load()
    assert data.tests == 10 and isinstance(data.x, torch.Tensor)
    ours = [sorted(data.x[rows, 0].tolist()) for rows in shares(data, 4)]
    assert ours == [sorted(value for (value,) in theirs.load_partition(client)["z"][:]) for client in range(4)]
    given = FlowerDatasets(both, partitioner=DirichletPartitioner(**options))
    assert shares(given.load(), 4) == shares(given.load(), 4) == shares(data, 4)


def test_a_partitioner_may_leave_samples_out_and_go_by_a_column() -> None:
    extra("flwr-datasets")
    table = datasets.Dataset.from_dict(
        {"z": [[float(row)] for row in range(12)], "label": [0, 1] * 6, "who": ["n"] * 5 + ["s"] * 7}
    )
    asked = FlowerDatasets(
        table, ("z",), partitioner="NaturalIdPartitioner", options={"partition_by": "who"}, shuffle=0
    )
    assert [len(rows) for rows in shares(asked.load(), 2)] == [5, 7]
    sizes = {"partition_sizes": [3, 4]}
    with pytest.warns(UserWarning, match="smaller than the size of the dataset"):
        data = FlowerDatasets(table, ("z",), partitioner="SizePartitioner", options=sizes, shuffle=0).load()
    assert data.x.flatten().tolist() == [0, 1, 2, 3, 4, 5, 6]  # type: ignore[union-attr]


def test_wrong_words_about_partitioners_are_refused(tmp_path: Path) -> None:
    extra("flwr-datasets")

    def refused(**settings: Any) -> str:
        with pytest.raises(ConfigError) as error:
            FlowerDatasets(pictures(), **settings).load()
        return str(error.value)

    assert "Did you mean IidPartitioner?" in refused(partitioner="IidPartitoner")
    assert "no partitioner 'VerticalSizePartitioner'" in refused(partitioner="VerticalSizePartitioner")
    assert "with the options number = 3" in refused(options={"number": 3})
    assert "cannot deal out this set" in refused(
        partitioner="DirichletPartitioner", options={"num_partitions": 2, "partition_by": "lable", "alpha": 1.0}
    )
    assert "key is set" in refused(key="label")
    data = FlowerDatasets(datasets.DatasetDict(train=pictures(), test=pictures()), options={"num_partitions": 3}).load()
    with pytest.raises(ConfigError, match=r"Set data.pool=train"):
        federate(data, 3, OfSource(), seed=1, pool="all")


def test_a_file_can_say_all_this(tmp_path: Path) -> None:
    extra("flwr-datasets")
    pictures().save_to_disk(tmp_path / "kept")
    options = {"num_partitions": 4}
    source = {"kind": "flwr-datasets", "path": str(tmp_path / "kept"), "options": options, "test": ""}
    table = {"clients": 4, "data": {"source": source, "partition": "source"}}
    experiment = experiment_from_table(table, "here")
    assert isinstance(experiment.data, Data) and experiment.data.source.options == options
    text = experiment_to_toml(experiment)
    assert f"path = {json.dumps(str(tmp_path / 'kept'))}" in text and "num_partitions = 4" in text
    assert len(experiment.data.source.load()) == 20
