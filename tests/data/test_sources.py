"""Public data sets, read from small files in their official layouts."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat  # type: ignore[import-untyped]

from protea.config.registry import BUILT_IN, find
from protea.core.errors import DataError
from protea.data import files
from protea.data.sources.cifar import CIFAR10, CIFAR100
from protea.data.sources.csv_table import Csv
from protea.data.sources.digits import Digits
from protea.data.sources.flowers102 import Flowers102
from protea.data.sources.idx import FILES, MNIST, FashionMNIST
from protea.data.sources.spiral import Spiral
from protea.data.sources.tiny_imagenet import TinyImageNet
from protea.data.texts import Texts


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for data, and no other; nothing is asked from anybody."""
    monkeypatch.setenv("PROTEA_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(files, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(files, "fetch", offline)
    return tmp_path


def offline(remote: object, folder: object) -> None:
    raise DataError("offline")


def picture(path: Path, color: tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path, quality=100)


def test_every_source_can_be_named() -> None:
    for name in BUILT_IN["sources"]:
        assert hasattr(find("sources", name), "load")


def test_digits() -> None:
    data = Digits().load()
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == torch.uint8
    assert (int(data.x.min()), int(data.x.max())) == (0, 255)
    assert data.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_spiral_arms() -> None:
    data = Spiral(noise=0.0).load()
    assert data.x.shape == (30_000, 2)
    assert data.x.dtype == torch.float32
    assert data.classes == 6
    radius = data.x.norm(dim=1).reshape(6, 5000)
    torch.testing.assert_close(radius[:, [0, -1]], torch.tensor([[1.0, 10.0]] * 6))
    # class k = 1 begins at angle pi/3 and ends at 2 pi/3; sine comes first
    torch.testing.assert_close(data.x[[5000, 9999]], torch.tensor([[3**0.5 / 2, 0.5], [5 * 3**0.5, -5.0]]))
    assert torch.equal(Spiral(seed=3).load().x, Spiral(seed=3).load().x)
    assert not torch.equal(Spiral(seed=3).load().x, Spiral(seed=4).load().x)


def write_idx(folder: Path, packed: bool) -> None:
    folder.mkdir(parents=True)
    for name, (first, samples) in zip(FILES, ((0, 6), (0, 6), (100, 2), (4, 2)), strict=True):
        shape = (samples, 28, 28) if "images" in name else (samples,)
        content = np.zeros(shape, np.uint8)
        content += np.arange(first, first + samples, dtype=np.uint8).reshape(-1, *[1] * (len(shape) - 1))
        raw = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content.tobytes()
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(raw) if packed else raw)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("source", "folder"), [(FashionMNIST(), "fashion-mnist"), (MNIST(), "MNIST/raw")])
def test_idx_files(data_folder: Path, source: MNIST | FashionMNIST, folder: str, packed: bool) -> None:
    write_idx(data_folder / folder, packed)
    data = source.load()
    assert data.x.shape == (8, 1, 28, 28)
    assert data.tests == 2
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
    assert data.x[:, 0, 3, 3].tolist() == [0, 1, 2, 3, 4, 5, 100, 101]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "cut short"),
        (lambda raw: raw[:6], "cut short"),
        (lambda raw: b"", "begins with nothing"),
        (lambda raw: b"\0\0\x0d" + raw[3:], "begins with 00 00 0d 03"),
        (lambda raw: raw[:4] + struct.pack(">I", 5) + raw[8 : -28 * 28], r"images are \(5, 28, 28\)"),
    ],
)
def test_damaged_idx_files_are_refused(data_folder: Path, damage: object, message: str) -> None:
    write_idx(data_folder / "mnist", packed=False)
    path = data_folder / "mnist" / FILES[0]
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        MNIST().load()


def test_a_missing_data_set_says_which_files_go_where(data_folder: Path) -> None:
    with pytest.raises(DataError, match=rf"Put {FILES[0]}, .* into {data_folder}/fashion-mnist"):
        FashionMNIST().load()


def record(*labels: int, pixel: int) -> bytes:
    return bytes(labels) + bytes([pixel]) * 1024 + bytes([pixel + 1]) * 1024 + bytes([pixel + 2]) * 1024


def test_cifar10_binary(data_folder: Path) -> None:
    folder = data_folder / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(record(number, pixel=10 * number))
    (folder / "test_batch.bin").write_bytes(record(9, pixel=90) + record(0, pixel=91))
    data = CIFAR10().load()
    assert data.y.tolist() == [1, 2, 3, 4, 5, 9, 0]
    assert data.tests == 2
    assert data.x.shape == (7, 3, 32, 32)
    assert data.x[1, :, 31, 0].tolist() == [20, 21, 22]
    assert data.names == tuple("0123456789")
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert CIFAR10().load().names == tuple("abcdefghij")

    (folder / "data_batch_3.bin").write_bytes(record(3, pixel=0)[:-5])
    with pytest.raises(DataError, match=r"data_batch_3.bin is damaged or cut short: 3068 bytes"):
        CIFAR10().load()
    (folder / "data_batch_3.bin").write_bytes(record(10, pixel=0))
    with pytest.raises(DataError, match=r"data_batch_3.bin is damaged: it has a label 10"):
        CIFAR10().load()


def test_cifar100_binary_takes_the_fine_label(data_folder: Path) -> None:
    folder = data_folder / "cifar100/cifar-100-binary"
    folder.mkdir(parents=True)
    (folder / "train.bin").write_bytes(record(7, 42, pixel=1) + record(19, 99, pixel=2))
    (folder / "test.bin").write_bytes(record(0, 5, pixel=3))
    data = CIFAR100().load()
    assert data.y.tolist() == [42, 99, 5]
    assert data.tests == 1
    assert data.x[2, :, 0, 0].tolist() == [3, 4, 5]


def test_tiny_imagenet(data_folder: Path) -> None:
    folder = data_folder / "tiny-imagenet-200"
    for id, color in (("n02", (255, 0, 0)), ("n01", (0, 255, 0))):
        for number in range(2):
            picture(folder / f"train/{id}/images/{id}_{number}.JPEG", color)
    picture(folder / "val/images/val_0.JPEG", (255, 0, 0))
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t32\t44\t62\n")
    (folder / "words.txt").write_text("n01\tgoldfish\nn99\tother\n")
    data = TinyImageNet().load()
    assert data.x.shape == (5, 3, 64, 64)
    assert data.y.tolist() == [0, 0, 1, 1, 1]
    assert data.names == ("goldfish", "n02")
    assert data.tests == 1
    assert data.x[4, :, 30, 30].tolist() == data.x[2, :, 30, 30].tolist()

    (folder / "val/images/val_0.JPEG").write_bytes(b"\xff\xd8 broken")
    with pytest.raises(DataError, match=r"val_0.JPEG cannot be read as an image"):
        TinyImageNet().load()
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t32\t44\t62\n")
    with pytest.raises(DataError, match="has n03, for which train/ has no folder"):
        TinyImageNet().load()
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\n")
    with pytest.raises(DataError, match="expected a file and a class"):
        TinyImageNet().load()


def test_flowers102(data_folder: Path) -> None:
    folder = data_folder / "flowers102"
    for number in range(1, 5):
        picture(folder / f"jpg/image_{number:05d}.jpg", (60 * number, 0, 0), size=(90, 70))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[77, 1, 102, 5]], np.uint8)})
    savemat(folder / "setid.mat", {"trnid": [[3]], "valid": [[1]], "tstid": [[2, 4]]})
    data = Flowers102().load()
    assert data.x.shape == (4, 3, 64, 64)
    assert data.y.tolist() == [101, 76, 0, 4]
    assert data.tests == 2
    assert data.classes == 102
    reds = data.x[:, 0, 32, 32].tolist()
    assert np.allclose(reds, [180, 60, 120, 240], atol=3)
    assert Flowers102(size=16).load().shape == (3, 16, 16)

    savemat(folder / "setid.mat", {"trnid": [[3]], "valid": [[1]], "tstid": [[2, 5]]})
    with pytest.raises(DataError, match=r"names images 1 to 5; imagelabels.mat has 4"):
        Flowers102().load()
    (folder / "setid.mat").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="is damaged"):
        Flowers102().load()


TEXTS = (
    "part,said,about,who\n"
    'final,"Rain, they say",weather,bo\n'
    "fit,A goal,sport,al\n"
    "check,Snow,weather,al\n"
    'fit,"Two\nlines",sport,cy\n'
)


def test_a_table_of_texts(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(TEXTS)
    data = Csv(str(tmp_path / "own.csv"), label="about", text="said", key="who").load()
    assert isinstance(data.x, Texts)
    assert list(data.x.take(torch.arange(4))) == ["Rain, they say", "A goal", "Snow", "Two\nlines"]
    assert (data.y.tolist(), data.names, data.tests, data.shape) == ([1, 0, 1, 0], ("sport", "weather"), 0, ())
    assert data.keys is not None and data.keys.tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize(
    ("test", "tests", "first"),
    [
        (("final",), 1, "A goal"),
        (("final", "check"), 2, "A goal"),
        (("fit",), 2, "Rain, they say"),
        ((), 0, "Rain, they say"),
    ],
)
def test_a_column_says_which_rows_are_for_testing(
    tmp_path: Path, test: tuple[str, ...], tests: int, first: str
) -> None:
    (tmp_path / "own.csv").write_text(TEXTS)
    data = Csv(str(tmp_path / "own.csv"), label="about", text="said", split="part", test=test).load()
    assert isinstance(data.x, Texts)
    assert (data.tests, data.x[0]) == (tests, first)
    assert data.y.bincount().tolist() == [2, 2]


def test_a_table_of_numbers_may_have_a_test_part_too(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,part,y\n1,test,0\n2,train,1\n3,train,0\n")
    data = Csv(str(tmp_path / "own.csv"), label="y", split="part").load()
    assert isinstance(data.x, torch.Tensor)
    assert (data.x.tolist(), data.y.tolist(), data.tests) == ([[2], [3], [1]], [1, 0, 0], 1)


def test_a_table_in_another_encoding(tmp_path: Path) -> None:
    path = str(tmp_path / "own.csv")
    Path(path).write_bytes("said,about\nGrüße,hi\n".encode("latin-1"))
    data = Csv(path, label="about", text="said", encoding="latin-1").load()
    assert isinstance(data.x, Texts) and data.x[0] == "Grüße"
    with pytest.raises(DataError, match=r'byte 13 does not fit.\n  .*encoding = "latin-1"'):
        Csv(path, label="about", text="said", encoding="utf-8").load()
    with pytest.raises(DataError, match="there is no encoding 'latin-one'"):
        Csv(path, label="about", text="said", encoding="latin-one").load()


def test_rows_that_lack_something_are_refused_or_left_out(tmp_path: Path) -> None:
    path = str(tmp_path / "own.csv")
    Path(path).write_text(TEXTS.replace("A goal", "").replace("weather,al", ",al"))
    with pytest.raises(DataError, match=r'line 3, column \'said\': the value is missing.\n.*missing = "drop"'):
        Csv(path, label="about", text="said").load()
    data = Csv(path, label="about", text="said", missing="drop").load()
    assert isinstance(data.x, Texts)
    assert list(data.x.take(torch.arange(2))) == ["Rain, they say", "Two\nlines"]
    Path(path).write_text("said,about\n,sport\n")
    with pytest.raises(DataError, match="has no row in which nothing is missing"):
        Csv(path, label="about", text="said", missing="drop").load()


def test_texts_and_numbers_at_once_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "own.csv")
    Path(path).write_text(TEXTS)
    for source in (
        Csv(path, label="about", text="said", features=("who",)),
        Csv(path, label="about", text="said", standardise=True),
    ):
        with pytest.raises(DataError, match=r"are texts \('said'\) or numbers"):
            source.load()
    with pytest.raises(DataError, match=r"no column 'parts'"):
        Csv(path, label="about", text="said", split="parts").load()
