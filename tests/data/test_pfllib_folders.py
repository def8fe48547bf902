"""Folders of PFLlib and HtFLlib as a source: every client has its own samples, and its own test samples."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digits import load_digits

import protea
from protea import Data, Engine, Experiment, Models
from protea.config.sections import Split
from protea.core.errors import ConfigError, DataError
from protea.data import Dirichlet, OfSource, PFLlib, federate
from protea.data.sources import pfllib

DIGITS = load_digits()
X, Y = (DIGITS.images[:120, None] / 8 - 1).astype(np.float32), DIGITS.target[:120]
PARTS = {"train": [range(40), range(50, 90)], "test": [range(40, 50), range(90, 120)]}


def save(path: Path, **fields: Any) -> None:
    """Write a file as the scripts of both libraries do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, data=np.array(fields, object))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, rows in PARTS.items():
        for client, own in enumerate(rows):
            save(tmp_path / "Digits" / part / f"{client}.npz", x=X[own], y=Y[own])
    return tmp_path / "Digits"


def test_every_client_has_its_own_samples_and_its_own_test_samples(folder: Path) -> None:
    data = PFLlib(str(folder)).load()
    assert data.names == tuple("0123456789") and data.tests == 0 and len(data) == 120
    found = federate(data, 2, OfSource(), seed=1, split=Split(validation=0.0))
    for client in range(2):
        for part in ("train", "test"):
            rows = found.rows(client, part)  # type: ignore[arg-type]
            torch.testing.assert_close(data.x[rows], torch.from_numpy(X[PARTS[part][client]]))
            assert data.y[rows].tolist() == Y[PARTS[part][client]].tolist()
        assert len(found.rows(client, "validation")) == 0
    assert len(found.test) == 40  # everybody's test samples, as in these libraries


def test_validation_samples_are_training_samples_of_the_client(folder: Path) -> None:
    found = federate(PFLlib(str(folder)).load(), 2, OfSource(), seed=1, split=Split(test=0.5, validation=0.25))
    assert [len(found.rows(client, "validation")) for client in range(2)] == [10, 10]
    assert [len(found.rows(client, "test")) for client in range(2)] == [10, 30]
    assert not set(found.rows(0, "validation").tolist()) & set(found.rows(0, "test").tolist())


def test_the_samples_can_be_dealt_out_anew(folder: Path) -> None:
    found = federate(PFLlib(str(folder)).load(), 3, Dirichlet(alpha=1.0), seed=1)
    assert sum(len(found.rows(client)) for client in range(3)) == 120
    with pytest.raises(ConfigError, match=r"the source has 2 clients; the experiment has 3.  Set clients=2"):
        federate(PFLlib(str(folder)).load(), 3, OfSource(), seed=1)


def test_a_run_on_a_folder_is_repeated_and_resumed_by_its_partition(folder: Path, tmp_path: Path) -> None:
    experiment = Experiment(
        rounds=1, clients=2, data=Data(source=PFLlib(str(folder)), partition=OfSource()),
        models=Models("tiny_mlp", dim=16), engine=Engine("inline"),
    )  # fmt: skip
    run = protea.Run(experiment, tmp_path / "run")
    run.finish()
    again = protea.load(tmp_path / "run")
    assert torch.equal(again.predict(torch.from_numpy(X[:5]), client=0), run.predict(torch.from_numpy(X[:5]), client=0))
    assert 'kind = "source"' in (tmp_path / "run" / "config.toml").read_text()


def test_how_many_classes_there_are_is_in_the_configuration(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"num_clients": 2, "num_classes": 12}))
    assert PFLlib(str(folder)).load().classes == 12
    (folder / "config.json").write_text("[]")
    assert PFLlib(str(folder)).load().classes == 10


def test_texts_cut_into_tokens_and_plain_arrays_are_read(tmp_path: Path) -> None:
    for part, first in (("train", 1), ("test", 5)):
        rows = np.empty((2, 2), object)
        rows[:] = [[[first, 2, 3], 3], [[first + 1, 0, 0], 1]]
        save(tmp_path / "texts" / part / "0.npz", x=rows, y=np.array([0, 1]))
        (tmp_path / "plain" / part).mkdir(parents=True)
        np.savez(tmp_path / "plain" / part / "0.npz", x=np.ones((2, 3), np.float32), y=np.array([0, 1]))
    data = PFLlib(str(tmp_path / "texts")).load()
    assert data.x.dtype == torch.int64 and data.x.tolist() == [[1, 2, 3], [2, 0, 0], [5, 2, 3], [6, 0, 0]]  # type: ignore[union-attr]
    assert PFLlib(str(tmp_path / "plain")).load().shape == (3,)


def test_what_does_not_belong_is_refused_by_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path = folder) -> str:
        with pytest.raises(DataError) as error:
            PFLlib(str(source)).load()
        return str(error.value)

    first = folder / "train" / "0.npz"
    good = first.read_bytes()
    for fields, why in (
        ({"x": X[:3], "y": Y[:2]}, "x has the shape (3, 1, 8, 8) and y (2,)"),
        ({"x": X[:3]}, "does not hold a dictionary of x and y"),
        ({"x": X[:3], "y": np.array(["a", "b", "c"])}, "array of type 'U1'"),
        ({"x": X[:3], "y": Y[:3] + 0.5}, "a whole number for each"),
        ({"x": X[:3, :, :4], "y": Y[:3]}, "has inputs of shape"),
        ({"x": [[1.0], [2.0]], "y": [0, 1]}, "x is no array of numbers"),
    ):
        save(first, **fields)
        assert why in refused() and str(folder) in refused()
    np.savez(first, data=X)
    assert "without labels" in refused()
    np.savez(first, other=X)
    assert "holds other.npy.  Expected is one array, data" in refused()
    first.write_bytes(good[:-40])
    assert "damaged" in refused()
    first.write_bytes(good)
    with monkeypatch.context() as patched:
        patched.setattr(pfllib, "LARGEST", 1000)
        assert "more than 1,000" in refused()
    (folder / "test" / "1.npz").rename(folder / "test" / "2.npz")
    assert "test has no 1.npz" in refused()
    (folder / "test" / "2.npz").unlink()
    (folder / "train" / "1.npz").unlink()
    (folder / "test" / "x.npz").write_bytes(b"")
    assert "test has x.npz" in refused()
    assert "has no folder train" in refused(tmp_path)


def test_a_file_that_would_run_code_is_refused(folder: Path, tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return Path.mkdir, (tmp_path / "made",)

    save(folder / "train" / "0.npz", x=X[:2], y=Y[:2], z=Runs())
    with pytest.raises(DataError, match=r"0\.npz \(data\) names pathlib.*nothing was run"):
        PFLlib(str(folder)).load()
    assert not (tmp_path / "made").exists()
    with zipfile.ZipFile(folder / "train" / "0.npz") as packed:
        assert packed.namelist() == ["data.npy"]
