"""Public sets of texts, read from small tables in their layouts."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from protea.config.registry import find
from protea.core.errors import DataError
from protea.data import files
from protea.data.dataset import Dataset
from protea.data.sources.public_texts import Banking77, Clinc150, MTSamples, Ohsumed, Trec
from protea.data.texts import Texts


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for data, and no other."""
    monkeypatch.setenv("PROTEA_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(files, "SYSTEM", tmp_path / "system")
    return tmp_path


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def said(data: Dataset) -> list[tuple[str, str]]:
    assert isinstance(data.x, Texts)
    return [(data.x[row], data.names[label]) for row, label in enumerate(data.y.tolist())]


@pytest.mark.parametrize("name", ["banking77.csv", "banking77.csv.gz"])
def test_banking77(data_folder: Path, name: str) -> None:
    lines = ("split,label,text", "test,lost,Where is it?", 'train,late,"Well, when?"', "train,lost,It is gone")
    write(data_folder / "text" / name, *lines)
    data = Banking77().load()
    assert said(data) == [("Well, when?", "late"), ("It is gone", "lost"), ("Where is it?", "lost")]
    assert (data.tests, data.names, data.keys) == (1, ("late", "lost"), None)


def test_trec_asks_for_coarse_kinds(data_folder: Path) -> None:
    write(
        data_folder / "system/text/trec.csv.gz",
        "split,label,fine_label,text",
        "train,HUM,HUM:ind,Who ?",
        "test,LOC,LOC:city,Where ?",
    )
    data = Trec().load()
    assert said(data) == [("Who ?", "HUM"), ("Where ?", "LOC")] and data.tests == 1


def test_ohsumed_has_the_names_of_diseases(data_folder: Path) -> None:
    lines = (
        "split,label,label_name,doc_id,text",
        'train,C23,"Pathological Conditions, Signs and Symptoms",0001,Fever.',
    )
    write(data_folder / "text/ohsumed_single_23.csv.gz", *lines, "test,C04,Neoplasms,0002,Growth.")
    data = Ohsumed().load()
    assert data.names == ("Neoplasms", "Pathological Conditions, Signs and Symptoms")
    assert said(data)[1] == ("Growth.", "Neoplasms") and data.tests == 1


CLINC = [
    f"{split},{label},{domain},{text}"
    for split, label, domain, text in (
        ("split", "label", "domain", "text"),
        ("oos_test", "oos", "oos", "a"),
        ("test", "timer", "utility", "b"),
        ("oos_train", "oos", "oos", "c"),
        ("val", "pin", "banking", "d"),
        ("train", "timer", "utility", "e"),
        ("oos_val", "oos", "oos", "f"),
    )
]


def test_clinc150_trains_on_validation_rows_and_leaves_out_what_is_out_of_scope(data_folder: Path) -> None:
    write(data_folder / "text/clinc150.csv.gz", *CLINC)
    data = Clinc150().load()
    assert said(data) == [("d", "pin"), ("e", "timer"), ("b", "timer")]
    assert (data.tests, data.names) == (1, ("pin", "timer"))


def test_clinc150_with_what_is_out_of_scope(data_folder: Path) -> None:
    write(data_folder / "text/clinc150.csv.gz", *CLINC)
    data = Clinc150(out_of_scope=True).load()
    assert said(data)[:4] == [("c", "oos"), ("d", "pin"), ("e", "timer"), ("f", "oos")]
    assert (data.tests, data.names) == (2, ("oos", "pin", "timer"))


def reports(data_folder: Path) -> None:
    count = {"Letters": 1, "Urology": 3, "Neurology": 2}
    labels = [label for label, times in count.items() for _ in range(times)]
    lines = [f"{90 + row},{label},{label}|Surgery,a name,,report {row}" for row, label in enumerate(labels)]
    write(
        data_folder / "text/mtsamples_single.csv.gz",
        "sample_id,label,all_specialties,sample_name,description,text",
        *lines,
    )


def test_mtsamples_leaves_out_rare_specialties(data_folder: Path) -> None:
    reports(data_folder)
    data = MTSamples(least=2).load()
    assert said(data) == [
        *((f"report {row}", "Urology") for row in (1, 2, 3)),
        *((f"report {row}", "Neurology") for row in (4, 5)),
    ]
    assert data.keys is not None
    assert (data.tests, data.names, data.keys.tolist()) == (0, ("Neurology", "Urology"), [0, 1, 2, 3, 4])


def test_mtsamples_of_which_all_are_rare_are_refused(data_folder: Path) -> None:
    reports(data_folder)
    with pytest.raises(DataError, match="None of the 3 classes is left: the largest has 3 samples"):
        MTSamples().load()
    with pytest.raises(ValidationError):
        TypeAdapter(MTSamples).validate_python({"least": 0})


@pytest.mark.parametrize(
    ("name", "file", "columns"),
    [
        ("banking77", "banking77.csv", "split, label, text"),
        ("clinc150", "clinc150.csv", "split, label, text"),
        ("trec", "trec.csv", "split, label, text"),
        ("ohsumed", "ohsumed_single_23.csv", "split, label_name, text"),
        ("mtsamples", "mtsamples_single.csv", "sample_id, label, text"),
    ],
)
def test_a_set_that_is_not_here_is_described(data_folder: Path, name: str, file: str, columns: str) -> None:
    with pytest.raises(DataError) as error:
        find("sources", name)().load()
    told = str(error.value)
    assert told.startswith(f"{file} is not on this machine") and told.endswith(f"the columns {columns}.")
    for place in (data_folder, data_folder / "home/.cache/protea", data_folder / "system"):
        assert str(place / "text") in told


def test_a_table_with_other_columns_is_refused(data_folder: Path) -> None:
    write(data_folder / "text/trec.csv", "split,labels,text", "train,HUM,Who ?")
    with pytest.raises(DataError, match=r"trec.csv has no column 'label'"):
        Trec().load()
