"""New samples are brought into the very form that a run was trained on, or refused with what is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protea.core.errors import DataError
from protea.data import Arrays
from protea.data.new_samples import SampleForm, label_numbers, read_new_samples
from protea.data.sources.csv_table import Csv
from protea.data.sources.digits import Digits
from protea.data.sources.folder import Folder
from protea.data.sources.mimic import MimicBHC
from protea.data.sources.npz import Npz

TABLE = """patient,age,pressure,group,diagnosis
p1,30,120,a,ill
p2,50,140,a,well
p3,70,100,b,well
p4,20,110,b,ill
"""
NUMBERS = SampleForm(("ill", "well"), (2,), torch.float32)
GREY = SampleForm(tuple("0123456789"), (1, 8, 8), torch.uint8)
COLOUR = SampleForm(("cat", "dog"), (3, 4, 6), torch.uint8)
TEXTS = SampleForm(("bad", "good"), (), torch.uint8, texts=True)


@pytest.fixture
def table(tmp_path: Path) -> Csv:
    (tmp_path / "train.csv").write_text(TABLE)
    features = ("pressure", "age")
    return Csv(str(tmp_path / "train.csv"), "diagnosis", key="patient", features=features, standardise=True)


def put(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


# Tables


def test_rows_of_the_training_table_come_back_as_they_were_trained_on(tmp_path: Path, table: Csv):
    found, own = read_new_samples(Path(table.path), table, NUMBERS), table.load()
    assert isinstance(found.x, torch.Tensor) and isinstance(own.x, torch.Tensor)
    assert torch.equal(found.x, own.x) and found.labels is not None and torch.equal(found.labels, own.y)
    assert (found.keys, found.key) == (["p1", "p2", "p3", "p4"], "patient")


def test_columns_are_found_by_name_and_standardised_by_the_training_table(tmp_path: Path, table: Csv):
    path = put(tmp_path, "new.csv", "age,pressure\n50,140\n30,120\n")
    found, own = read_new_samples(path, table, NUMBERS), table.load()
    assert isinstance(found.x, torch.Tensor) and isinstance(own.x, torch.Tensor)
    assert torch.equal(found.x, own.x[[1, 0]]) and found.labels is None
    assert (found.keys, found.key) == (["0", "1"], "index")


def test_one_row_is_enough_and_may_be_packed(tmp_path: Path, table: Csv):
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress(b"age,pressure\n50,140\n"))
    assert len(read_new_samples(tmp_path / "new.csv.gz", table, NUMBERS)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age\n50\n", "has no column 'pressure', which this run was trained on"),
        ("age,presure\n50,140\n", "no column 'pressure'.*Did you mean presure"),
        ("age,pressure,height\n50,140,180\n", "has a column 'height', which the table of this run has not"),
        ("age,pressure\n50,high\n", "line 2, column 'pressure': 'high' is not a number"),
        ("age,pressure\n50,\n", "line 2, column 'pressure': the value is missing"),
        ("age,pressure,diagnosis\n50,140,dead\n", "the label 'dead' is not a class of this run.  It has: ill, well"),
        ("age,pressure\n", "has no rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, table: Csv, text: str, said: str):
    with pytest.raises(DataError, match=said):
        read_new_samples(put(tmp_path, "new.csv", text), table, NUMBERS)


def test_columns_that_the_run_did_not_use_may_stay(tmp_path: Path, table: Csv):
    path = put(tmp_path, "new.csv", "group,age,pressure\na,50,140\n")
    assert len(read_new_samples(path, table, NUMBERS)) == 1


def test_rows_that_lack_something_are_left_out_where_the_run_does_so_and_the_others_keep_their_numbers(tmp_path: Path):
    source = Csv(str(put(tmp_path, "train.csv", "a,y\n1,u\n2,v\n")), "y", missing="drop")
    found = read_new_samples(
        put(tmp_path, "new.csv", "a\n1\nnan\n3\n"), source, SampleForm(("u", "v"), (1,), torch.float32)
    )
    assert (found.keys, found.left_out) == (["0", "2"], 1)


def test_texts_come_from_their_column_and_other_columns_do_not_matter(tmp_path: Path):
    source = Csv(str(put(tmp_path, "train.csv", "note,y\nfine,good\n")), "y", text="note")
    found = read_new_samples(put(tmp_path, "new.csv", "id,note,y\n7,so so,bad\n"), source, TEXTS)
    assert found.x == ["so so"] and found.labels is not None and found.labels.tolist() == [0]
    with pytest.raises(DataError, match="no column 'note'"):
        read_new_samples(put(tmp_path, "other.csv", "text\nsecret words\n"), source, TEXTS)


def test_texts_for_a_run_on_a_public_set_are_in_the_column_text(tmp_path: Path):
    from protea.data.sources.public_texts import Trec

    path = put(tmp_path, "new.csv", "text,label\nwho?,good\n")
    found = read_new_samples(path, Trec(), TEXTS)
    assert found.x == ["who?"] and found.labels is not None and found.labels.tolist() == [1]


def test_what_names_the_disposition_is_cut_out_of_new_notes_too(tmp_path: Path):
    path = put(tmp_path, "new.csv", 'text\n"Came. Discharge Disposition: Home\n\nLeft."\n')
    assert "Home" not in str(read_new_samples(path, MimicBHC(), TEXTS).x)
    assert "Home" in str(read_new_samples(path, MimicBHC(strip=False), TEXTS).x)


# Arrays


def test_arrays_of_bytes_and_floats(tmp_path: Path):
    images = np.arange(128, dtype=np.uint8).reshape(2, 8, 8)
    np.savez(tmp_path / "bytes.npz", x=images, y=[3, 9])
    np.savez(tmp_path / "floats.npz", x=(images / 127.5 - 1).astype(np.float32))
    found = read_new_samples(tmp_path / "bytes.npz", Digits(), GREY)
    assert isinstance(found.x, torch.Tensor) and found.x.shape == (2, 1, 8, 8) and found.x.dtype == torch.uint8
    assert found.labels is not None and found.labels.tolist() == [3, 9]
    found = read_new_samples(tmp_path / "floats.npz", Digits(), GREY)
    assert isinstance(found.x, torch.Tensor) and found.x.shape == (2, 1, 8, 8) and found.labels is None


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path):
    def refused(form: SampleForm = GREY, **fields: object) -> str:
        np.savez(tmp_path / "new.npz", **{name: np.asarray(value) for name, value in fields.items()})  # type: ignore[arg-type]
        with pytest.raises(DataError) as error:
            read_new_samples(tmp_path / "new.npz", Digits(), form)
        return str(error.value)

    images = np.zeros((2, 8, 8), np.uint8)
    assert "has no field 'x'.  It needs x" in refused(y=[1, 2])
    assert "2 inputs but 1 labels" in refused(x=images, y=[1])
    assert "labels run from 1 to 10; the run has 10 classes, from 0 to 9" in refused(x=images, y=[1, 10])
    assert "must run from -1 to 1" in refused(x=np.full((1, 8, 8), 255, np.float32))
    assert "sample 1 holds a value that is not finite" in refused(x=np.array([[0.0] * 2, [np.nan, 0]]), form=NUMBERS)
    assert "3 channels; this run was trained on grey images of 8 x 8 pixels" in refused(
        x=np.zeros((2, 8, 8, 3), np.uint8)
    )
    assert "28 x 28 pixels; the run was trained on 8 x 8.  Add --resize" in refused(x=np.zeros((2, 28, 28), np.uint8))
    assert "samples are of shape (3,)" in refused(x=np.zeros((2, 3)), form=NUMBERS)


def test_images_in_arrays_are_scaled_if_asked(tmp_path: Path):
    np.savez(tmp_path / "new.npz", x=np.full((2, 28, 28), 7, np.uint8))
    form = SampleForm(GREY.names, GREY.shape, GREY.dtype, resize=True)
    found = read_new_samples(tmp_path / "new.npz", Digits(), form)
    assert isinstance(found.x, torch.Tensor) and found.x.shape == (2, 1, 8, 8) and (found.x == 7).all()


def test_labels_that_are_numbers_mean_what_they_meant_in_training(tmp_path: Path):
    """Without names the labels themselves are the classes; with names they count through these."""
    x = np.zeros((2, 2), np.float32)
    np.savez(tmp_path / "new.npz", x=x, y=[7, 5])
    form = SampleForm(("5", "7"), (2,), torch.float32)
    found = read_new_samples(tmp_path / "new.npz", Arrays(x, [5, 7]), form)
    assert found.labels is not None and found.labels.tolist() == [1, 0]
    np.savez(tmp_path / "train.npz", x=x, y=[0, 1], names=["5", "7"])
    np.savez(tmp_path / "new.npz", x=x, y=[1, 0])
    found = read_new_samples(tmp_path / "new.npz", Npz(str(tmp_path / "train.npz")), form)
    assert found.labels is not None and found.labels.tolist() == [1, 0]
    np.savez(tmp_path / "new.npz", x=x, y=[0, 1], names=["7", "5"], keys=["a", "b"])  # its own names come first
    found = read_new_samples(tmp_path / "new.npz", Npz(str(tmp_path / "train.npz")), form)
    assert found.labels is not None and found.labels.tolist() == [1, 0] and found.keys == ["a", "b"]


def test_tokens_stay_whole_numbers(tmp_path: Path):
    np.savez(tmp_path / "new.npz", x=np.array([[1, 2, 3]]))
    found = read_new_samples(
        tmp_path / "new.npz", Arrays([[0, 0, 0]], [0], tokens=True), SampleForm(("0",), (3,), torch.int64)
    )
    assert isinstance(found.x, torch.Tensor) and found.x.dtype == torch.int64


def test_labels_by_name():
    assert label_numbers(np.array(["b", "a"]), ["a", "b"], "x").tolist() == [1, 0]
    assert label_numbers([1.0, 0.0], ["a", "b"], "x", counted=True).tolist() == [1, 0]
    with pytest.raises(DataError, match="class names or whole numbers"):
        label_numbers([0.5], ["a", "b"], "x")


# Folders of images


def picture(path: Path, size: tuple[int, int] = (6, 4), mode: str = "RGB", colour: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour if mode == "L" else (colour, 0, 0)).save(path)


def test_images_lie_flat_or_in_a_folder_for_each_class(tmp_path: Path):
    picture(tmp_path / "flat" / "b.png", colour=9)
    picture(tmp_path / "flat" / "a.png")
    found = read_new_samples(tmp_path / "flat", Folder("train"), COLOUR)
    assert (found.keys, found.key, found.labels) == (["a.png", "b.png"], "file", None)
    assert isinstance(found.x, torch.Tensor) and found.x.shape == (2, 3, 4, 6) and found.x[1, 0, 0, 0] == 9
    picture(tmp_path / "classes" / "dog" / "1.png")
    picture(tmp_path / "classes" / "cat" / "1.png")
    found = read_new_samples(tmp_path / "classes", Folder("train"), COLOUR)
    assert found.keys == [str(Path("cat/1.png")), str(Path("dog/1.png"))]
    assert found.labels is not None and found.labels.tolist() == [0, 1]


def test_images_are_read_as_the_folder_of_the_run_is(tmp_path: Path):
    """Grey, and scaled to a square of 8 pixels: to the bit what the source itself gives."""
    rng = np.random.default_rng(0)
    (tmp_path / "cat").mkdir()
    Image.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8)).save(tmp_path / "cat" / "1.png")
    source = Folder(str(tmp_path), size=8, mode="L")
    found = read_new_samples(tmp_path / "cat", source, SampleForm(("cat",), (1, 8, 8), torch.uint8))
    own = source.load().x
    assert isinstance(found.x, torch.Tensor) and isinstance(own, torch.Tensor) and torch.equal(found.x, own)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no images"):
        read_new_samples(tmp_path / "empty", Digits(), GREY)
    with pytest.raises(DataError, match=r"folder of images, and this run was trained on samples of shape \(2,\)"):
        read_new_samples(tmp_path / "empty", Arrays([[0, 0]], [0]), NUMBERS)
    picture(tmp_path / "big" / "a.png", (28, 20), "L")
    with pytest.raises(DataError, match=r"a.png is 28 x 20 pixels; the run was trained on 8 x 8.  Add --resize"):
        read_new_samples(tmp_path / "big", Digits(), GREY)
    picture(tmp_path / "pets" / "horse" / "a.png")
    with pytest.raises(DataError, match=r"the label 'horse' is not a class of this run.  It has: cat, dog"):
        read_new_samples(tmp_path / "pets", Digits(), COLOUR)
    picture(tmp_path / "pets" / "b.png")
    with pytest.raises(DataError, match="Put all into folders, one for each class, or none"):
        read_new_samples(tmp_path / "pets", Digits(), COLOUR)


def test_other_files_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="There is no"):
        read_new_samples(tmp_path / "nothing.csv", Digits(), GREY)
    with pytest.raises(DataError, match="is neither a table"):
        read_new_samples(put(tmp_path, "new.txt", ""), Digits(), GREY)
    with pytest.raises(DataError, match="whose columns have no names"):
        read_new_samples(put(tmp_path, "new.csv", "a\n1\n"), Digits(), GREY)
    with pytest.raises(DataError, match=r"is not a table.  This run was trained on"):
        read_new_samples(put(tmp_path, "new.npz", ""), Csv("train.csv", "y"), NUMBERS)
