"""A user's own data: arrays, .npz, folders of images, tables."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import TensorDataset

from protea.core.errors import DataError
from protea.data import Arrays, Federated, Share
from protea.data.gaps import fill_gaps
from protea.data.new_samples import SampleForm
from protea.data.sources.csv_table import Csv
from protea.data.sources.folder import Folder
from protea.data.sources.npz import Npz


def test_images_are_brought_to_channels_first() -> None:
    y = [0, 1]
    image = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    first = Arrays(image, y).load().x
    last = Arrays(image.transpose(0, 2, 3, 1), y).load().x
    assert first.shape == (2, 3, 4, 5)
    assert torch.equal(first, last)
    assert first.is_contiguous() and last.is_contiguous()
    assert Arrays(image[:, 0], y).load().x.shape == (2, 1, 4, 5)
    assert Arrays(torch.from_numpy(image), torch.tensor(y)).load().x.dtype == torch.uint8
    with pytest.raises(DataError, match=r"Images of shape \(7, 4, 5\)"):
        Arrays(np.zeros((2, 7, 4, 5), np.uint8), y).load()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, bool])
def test_features_become_float32(dtype: type) -> None:
    data = Arrays(np.eye(2).astype(dtype), [0, 1]).load()
    assert data.x.dtype == torch.float32
    assert data.x.tolist() == [[1, 0], [0, 1]]


def test_tokens_stay_integers() -> None:
    assert Arrays([[5, 6], [7, 8]], [0, 1], tokens=True).load().x.dtype == torch.int64


@pytest.mark.parametrize(
    ("labels", "names", "codes", "classes"),
    [
        (["dog", "cat", "dog"], None, [1, 0, 1], ("cat", "dog")),
        (np.array(["dog", "cat", "dog"], dtype=object), None, [1, 0, 1], ("cat", "dog")),
        ([10, 2, 10], None, [1, 0, 1], ("2", "10")),
        (["10", "2", "10"], None, [1, 0, 1], ("2", "10")),
        ([1.0, 0.0, 1.0], None, [1, 0, 1], ("0", "1")),
        ([True, False, True], None, [1, 0, 1], ("0", "1")),
        ([2, 0, 2], ["a", "b", "c"], [2, 0, 2], ("a", "b", "c")),
        (["c", "a", "c"], ["c", "b", "a"], [0, 2, 0], ("c", "b", "a")),
    ],
)
def test_labels_may_be_numbers_or_names(
    labels: Any, names: list[str] | None, codes: list[int], classes: tuple[str, ...]
) -> None:
    data = Arrays(np.zeros((3, 2)), labels, names=names).load()
    assert (data.y.tolist(), data.names) == (codes, classes)
    assert data.y.dtype == torch.int64


def test_a_torch_data_set_is_gathered() -> None:
    x, y = torch.rand(4, 2), torch.tensor([0, 1, 1, 0])
    data = Arrays(TensorDataset(x, y)).load()
    assert torch.equal(data.x, x)
    assert torch.equal(data.y, y)


def test_a_test_part_and_keys_come_along() -> None:
    data = Arrays(
        np.zeros((3, 2)),
        ["b", "a", "b"],
        np.ones((2, 2)),
        ["a", "c"],
        keys=["z", "x", "z"],
        keys_test=["x", "y"],
    ).load()
    assert (len(data), data.tests, data.names) == (5, 2, ("a", "b", "c"))
    assert data.y.tolist() == [1, 0, 1, 0, 2]
    assert data.keys is not None
    assert data.keys.tolist() == [2, 0, 2, 0, 1]


ZEROS = np.zeros((2, 2))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Arrays(ZEROS), "needs labels"),
        (Arrays(ZEROS, [0]), "2 inputs but 1 labels"),
        (Arrays(ZEROS, [0, 1], ZEROS), "needs labels"),
        (Arrays(ZEROS, [0, 1], np.zeros((2, 3)), [0, 1]), "must be the same"),
        (Arrays(ZEROS, [0, 1], keys=[1]), "2 inputs but 1 keys"),
        (Arrays(ZEROS, [0, 1], keys=[[1], [2]]), "Keys of type"),
        (Arrays(ZEROS, [0.5, 1]), "expected whole numbers or names"),
        (Arrays(ZEROS, [[0], [1]]), r"Labels of shape \(2, 1\)"),
        (Arrays(ZEROS, ["a", "b"], names=["a"]), "The label 'b' is not among the classes a"),
        (Arrays(ZEROS, [0, 2], names=["a", "b"]), "Labels run from 0 to 2"),
        (Arrays([["a"], ["b"]], [0, 1]), "expected numbers"),
        (Arrays([[np.nan], [1.0]], [0, 1]), "Input 0 holds a value that is not finite"),
        (Arrays([1, 2, 3]), "are not pairs"),
        (Arrays([(np.zeros(2), 0), (np.zeros(3), 1)]), "different shapes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(source: Arrays, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source.load()


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    x = np.arange(4 * 6 * 6, dtype=np.uint8).reshape(4, 6, 6)
    np.savez(path, x=x[:3], y=np.array(["b", "a", "b"]), x_test=x[3:], y_test=np.array(["a"]))
    data = Npz(str(path)).load()
    assert data.x.shape == (4, 1, 6, 6)
    assert (data.y.tolist(), data.names, data.tests) == ([1, 0, 1, 0], ("a", "b"), 1)
    np.savez(path, x=x, y=np.array([1, 0, 1, 1]), names=np.array(["no", "yes"]), keys=np.array([5, 5, 9, 9]))
    data = Npz(str(path)).load()
    assert data.names == ("no", "yes")
    assert data.keys is not None
    assert data.keys.tolist() == [0, 0, 1, 1]


def write(content: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(content)

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda path: np.savez(path, x=ZEROS, y=np.array(["a", None], dtype=object)),
            "holds pickled objects",
        ),
        (lambda path: np.savez(path, x=ZEROS), "has no field 'y'"),
        (lambda path: np.savez(path, x=ZEROS, y=[0, 1], xtest=ZEROS), r"'xtest'.  Did you mean x_test\?"),
        (write(b"nothing of the kind"), "damaged or not an .npz file"),
        (write(b"PK\x03\x04 but no zip"), "damaged or not an .npz file"),
        (write(b""), "damaged or not an .npz file"),
    ],
)
def test_npz_that_cannot_be_read_is_refused(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "own.npz")
    with pytest.raises(DataError, match=message):
        Npz(str(tmp_path / "own.npz")).load()


def test_a_single_array_is_not_an_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "own.npy", ZEROS)
    with pytest.raises(DataError, match="is a single array"):
        Npz(str(tmp_path / "own.npy")).load()


def picture(path: Path, grey: int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, grey).save(path)


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    picture(tmp_path / "dog/1.png", 10)
    picture(tmp_path / "cat/2.PNG", 20)
    picture(tmp_path / "cat/1.png", 30)
    (tmp_path / "cat/notes.txt").write_text("not an image")
    data = Folder(str(tmp_path)).load()
    assert data.x.shape == (3, 3, 4, 6)
    assert data.x[:, 0, 0, 0].tolist() == [30, 20, 10]
    assert (data.y.tolist(), data.names, data.tests) == ([0, 0, 1], ("cat", "dog"), 0)
    assert Folder(str(tmp_path), size=8, mode="L").load().x.shape == (3, 1, 8, 8)


def test_folders_for_training_and_test(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/b/1.png"):
        picture(tmp_path / name, 0)
    data = Folder(str(tmp_path)).load()
    assert (data.y.tolist(), data.tests) == ([0, 1, 1], 1)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no"):
        Folder(str(tmp_path / "none")).load()
    with pytest.raises(DataError, match="has no images"):
        Folder(str(tmp_path)).load()
    picture(tmp_path / "a/1.png", 0)
    with pytest.raises(DataError, match="is not a folder"):
        Folder(str(tmp_path / "a/1.png")).load()
    picture(tmp_path / "a/2.png", 0, size=(9, 9))
    with pytest.raises(DataError, match=r"2.png is 9 x 9 pixels, .*1.png is 6 x 4"):
        Folder(str(tmp_path)).load()
    (tmp_path / "a/2.png").write_bytes((tmp_path / "a/1.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"2.png cannot be read as an image"):
        Folder(str(tmp_path)).load()


TABLE = "age,weight,ward,outcome\n40,80.5,B,ill\n60, 60,A,well\n50,70,B,ill\n"


@pytest.mark.parametrize("packed", [True, False])
def test_a_table(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("own.csv.gz" if packed else "own.csv")
    path.write_bytes(gzip.compress(TABLE.encode()) if packed else b"\xef\xbb\xbf" + TABLE.encode())
    data = Csv(str(path), label="outcome", key="ward").load()
    assert data.x.tolist() == [[40, 80.5], [60, 60], [50, 70]]
    assert (data.y.tolist(), data.names) == ([0, 1, 0], ("ill", "well"))
    assert data.keys is not None
    assert data.keys.tolist() == [1, 0, 1]
    assert Csv(str(path), label="ward", features=("age",)).load().x.tolist() == [[40], [60], [50]]


def test_a_table_standardised(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a;b;y\n1;5;0\n3;5;1\n")
    data = Csv(str(tmp_path / "own.csv"), label="y", standardise=True, delimiter=";").load()
    assert data.x.tolist() == [[-1, 0], [1, 0]]  # a column that never changes stays 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.replace("50,70", "50,"), "line 4, column 'weight': the value is missing"),
        (TABLE.replace("50,70", "NA,70"), "line 4, column 'age': the value is missing"),
        (TABLE.replace("B,ill\n60", ",ill\n60"), "line 2, column 'ward': the value is missing"),
        (TABLE.replace("50,70", "fifty,70"), "line 4, column 'age': 'fifty' is not a number"),
        (TABLE.replace("50,70", "inf,70"), "'inf' is not a finite number"),
        (TABLE.replace("50,70", "70"), "line 4: 3 cells where the header has 4"),
        (TABLE.replace("outcome", "outcomes"), r"no column 'outcome'.  Did you mean outcomes\?"),
        (TABLE.replace("age", "weight"), "two columns called 'weight'"),
        ("age,ward,outcome\n", "has no rows"),
        ("", "has no rows"),
        ("ward,outcome\nA,ill\n", "nothing to learn from"),
        ('ward,outcome\n"A,ill\n', "is not a table"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        Csv(str(tmp_path / "own.csv"), label="outcome", key="ward").load()


def test_a_table_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes(b"a,y\n\xff,1\n")
    with pytest.raises(DataError, match="is not a table in utf-8"):
        Csv(str(tmp_path / "own.csv"), label="y", encoding="utf-8").load()


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_delimiter_and_encoding_are_guessed(tmp_path: Path, mark: str, encoding: str) -> None:
    text = 'größe,"breite; cm|",ward,outcome\n1,2,A,krank\n3,4,B,gesünder\n'
    lines = [mark.join(cells) for cells in csv.reader(text.splitlines())]
    lines[0] = lines[0].replace("breite; cm|", '"breite; cm|"')
    (tmp_path / "own.csv").write_bytes("\n".join(lines).encode(encoding))
    data = Csv(str(tmp_path / "own.csv"), label="outcome", key="ward").load()
    assert data.x.tolist() == [[1, 2], [3, 4]] and set(data.names) == {"krank", "gesünder"}


def test_how_a_table_is_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(TABLE.replace(",", ";"))
    source = Csv(str(tmp_path / "own.csv"), label="outcome", drop=("ward",))
    assert source.how_read() == "own.csv is read as utf-8, its columns parted by ';' (delimiter and encoding guessed)."
    given = replace(source, delimiter=";", encoding="latin-1")
    assert given.how_read() == "own.csv is read as latin-1, its columns parted by ';'."


def test_columns_are_left_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(TABLE)
    source = Csv(str(tmp_path / "own.csv"), label="outcome", drop=("ward", "age"))
    assert source.load().x.tolist() == [[80.5], [60], [70]]
    form = SampleForm(("ill", "well"), (1,), torch.float32, False, False)
    assert torch.as_tensor(source.read_new(tmp_path / "own.csv", form).x).tolist() == [[80.5], [60], [70]]
    with pytest.raises(DataError, match=r"has no column 'wards'.  Did you mean ward\?"):
        replace(source, drop=("wards",)).load()


def test_a_label_column_that_names_no_classes_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n % 3},{n + 0.5}\n" for n in range(40))
    (tmp_path / "own.csv").write_text("id,kind,price\n" + rows)
    assert Csv(str(tmp_path / "own.csv"), label="kind").load().classes == 3
    with pytest.raises(DataError, match="label column 'price' has 40 different values in 40 rows"):
        Csv(str(tmp_path / "own.csv"), label="price").load()


WARDS = "age,ward,smokes,state\n60,B,none,ill\n40,A,yes,well\n,A,,ill\n50,C,yes,well\n"


def test_a_column_of_words_becomes_a_feature_for_each_value(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(WARDS.replace("\n,A,,", "\n30,A,none,"))
    data = Csv(str(tmp_path / "own.csv"), label="state").load()
    assert isinstance(data.x, Tensor)  # age, ward A, B, C, smokes none, yes
    assert data.x.tolist() == [[60, 0, 1, 0, 1, 0], [40, 1, 0, 0, 0, 1], [30, 1, 0, 0, 1, 0], [50, 0, 0, 1, 0, 1]]
    said = Csv(str(tmp_path / "own.csv"), label="state").how_read()
    assert "Categories, a feature for each value: ward (3 values), smokes (2 values)." in said


def test_values_that_are_named_are_features_in_that_order_whatever_a_site_has(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("stage,state\n2,ill\n1,well\n9,well\n")
    data = Csv(str(tmp_path / "own.csv"), label="state", categories={"stage": ("3", "2", "1")}).load()
    assert isinstance(data.x, Tensor)
    assert data.x.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_values_of_test_rows_alone_are_no_features(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("ward,part,state\nA,train,ill\nB,train,well\nC,test,ill\n")
    data = Csv(str(tmp_path / "own.csv"), label="state", split="part").load()
    assert isinstance(data.x, Tensor)
    assert data.x.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_a_column_of_names_is_no_category(tmp_path: Path) -> None:
    rows = "".join(f"{i},name{i},{'ab'[i % 2]}\n" for i in range(24))
    (tmp_path / "own.csv").write_text(f"age,who,state\n{rows}")
    with pytest.raises(
        DataError, match=r"column 'who' holds words, 24 different ones in 24 rows.*\n.*drop = \['who'\]"
    ):
        Csv(str(tmp_path / "own.csv"), label="state").load()


def test_each_client_fills_in_by_the_medians_of_its_own_training_samples(tmp_path: Path) -> None:
    rows = [("", "a"), ("1", "a"), ("3", "a"), ("9", "a"), ("", "b"), ("10", "b"), ("30", "b"), ("90", "b")]
    lines = "".join(f"{age},{ward},{'well' if i % 2 else 'ill'}\n" for i, (age, ward) in enumerate(rows))
    (tmp_path / "own.csv").write_text(f"age,ward,state\n{lines}")
    source = Csv(str(tmp_path / "own.csv"), label="state", key="ward", missing="impute")
    shares = tuple(Share(torch.tensor(t), torch.tensor([], dtype=torch.int64), torch.tensor(s))
                   for t, s in (([1, 2, 3], [0]), ([5, 6], [4, 7])))  # fmt: skip
    data = source.load()
    assert data.gaps and source.mixes_records and "2 of 8 rows lack something" in source.how_read()
    found = fill_gaps(Federated(data, shares, torch.tensor([], dtype=torch.int64), torch.tensor([0, 4, 7])))
    assert isinstance(found.dataset.x, Tensor) and found.fills is not None
    assert found.dataset.x.flatten().tolist() == [3, 1, 3, 9, 10, 10, 30, 90]  # 90 is a test sample
    assert found.fills.tolist() == [[3], [10]] and not found.dataset.gaps


def test_standardised_columns_leave_out_what_is_missing_and_categories(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(WARDS)
    source = Csv(str(tmp_path / "own.csv"), label="state", standardise=True, missing="impute", drop=("ward",))
    data = source.load()
    assert isinstance(data.x, Tensor)
    deviation = (200 / 3) ** 0.5
    torch.testing.assert_close(data.x[[0, 1, 3], 0], torch.tensor([10, -10, 0]) / deviation)
    assert data.x[2, 0].isnan() and data.x[:, 1:].tolist() == [[1, 0], [0, 1], [0, 0], [0, 1]]
