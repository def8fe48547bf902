"""MIMIC-IV-Ext-BHC, from files in its format with made-up patients; and that their words stay where they are."""

from __future__ import annotations

import csv
import gzip
import io
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import protea
from protea import Data, Experiment
from protea.cli.app import app
from protea.config.families import Models
from protea.config.sections import Engine
from protea.core.errors import ConfigError, DataError
from protea.core.training import Training
from protea.data import ByKey, Dataset, Dirichlet, Split, federate
from protea.data.partition.schemes import Partition
from protea.data.sources.mimic import CLASSES, DISPOSITION, MimicBHC
from protea.data.texts import Texts

MARK = "xylophonic"  # a word of every note
LOCATIONS = ("HOME", "HOME HEALTH CARE", "SKILLED NURSING FACILITY", "REHAB", "DIED", "HOSPICE", "")
ENDS = (*CLASSES, None)  # what each location means
PATIENTS, STAYS = 28, 2
NOTES = ("note_id", "input", "target", "input_tokens", "target_tokens")
ADMISSIONS = ("subject_id", "hadm_id", "admittime", "discharge_location")
DISCHARGES = ("note_id", "subject_id", "hadm_id", "note_type", "note_seq", "text")


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def stays() -> list[tuple[int, int, int, str]]:
    """Patient, admission, number of the note, and where it ended: patients come back once."""
    return [
        (19_900_000 + patient, 29_900_000 + 10 * patient + stay, 20 + stay, LOCATIONS[(patient + 3 * stay) % 7])
        for patient in range(PATIENTS)
        for stay in range(STAYS)
    ]


def note(patient: int, location: str) -> str:
    named = location.title() or "Unknown"
    return (
        f"<SEX> F <CHIEF COMPLAINT> {MARK}, number {patient}\n<DISCHARGE DISPOSITION> {named}\nFacility: \n___\n"
        f"<DISCHARGE DIAGNOSIS> word{location.lower()[:3]}"
    )


@pytest.fixture
def mimic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MimicBHC:
    """The source, its files written."""
    physionet = tmp_path / "physionet"
    monkeypatch.setenv("PROTEA_DATA", str(physionet))
    monkeypatch.setenv("PROTEA_VIEWS", str(tmp_path / "views"))
    ids = [(f"{patient}-DS-{number}", patient, stay, location) for patient, stay, number, location in stays()]
    notes = [(id, note(patient, location), f"{MARK} course", 9, 9) for id, patient, _, location in ids]
    table(physionet / "mimic-iv-bhc.csv", NOTES, notes)
    table(
        physionet / "hosp/admissions.csv.gz",
        ADMISSIONS,
        [(patient, stay, "2180-05-06", location) for _, patient, stay, location in ids],
    )
    discharges = [(id, patient, stay, "DS", 2, f'{MARK} "quoted",\n\nall of it') for id, patient, stay, _ in ids]
    table(physionet / "note/discharge.csv.gz", DISCHARGES, [*discharges, ("1-DS-1", 1, 5, "DS", 2, MARK)])
    return MimicBHC()


def texts(data: Dataset) -> list[str]:
    assert isinstance(data.x, Texts)
    return list(data.x.take(torch.arange(len(data))))


def whose(data: Dataset, rows: Sequence[int]) -> set[int]:
    assert data.keys is not None
    return set(data.keys[torch.tensor(rows)].tolist())


def test_notes_get_the_disposition_of_their_admission(mimic: MimicBHC) -> None:
    data = mimic.load()
    assert data.names == ("Home", "Home Health", "SNF", "Rehab", "Expired", "Other")
    assert len(data) == sum(bool(location) for *_, location in stays()) == 48
    expected = {
        f"number {patient}\n<DISCHARGE DIAGNOSIS> word{location.lower()[:3]}": ENDS[LOCATIONS.index(location)]
        for patient, _, _, location in stays()
    }
    for text, label in zip(texts(data), data.y.tolist(), strict=True):
        assert expected[text.removeprefix(f"<SEX> F <CHIEF COMPLAINT> {MARK}, ")] == CLASSES[label]


def test_patients_are_in_the_training_part_or_in_the_test_part(mimic: MimicBHC) -> None:
    data = mimic.load()
    first = len(data) - data.tests
    train, test = whose(data, range(first)), whose(data, range(first, len(data)))
    assert not train & test
    assert (len(train), len(test)) == (20, 8)  # 30 % of 28 patients
    same, other, none = (replace(mimic, **new).load() for new in ({}, {"seed": 2}, {"held_out": 0.0}))
    assert texts(same) == texts(data) and texts(other) != texts(data) and none.tests == 0


def test_the_answer_stays_in_the_text_if_it_is_asked_for(mimic: MimicBHC) -> None:
    assert not any("DISPOSITION" in text or "Hospice" in text for text in texts(mimic.load()))
    assert sum("Hospice" in text for text in texts(replace(mimic, strip=False).load())) == 8


@pytest.mark.parametrize(
    ("note", "left"),
    [
        ("a <DISCHARGE DISPOSITION> Home <DISCHARGE DIAGNOSIS> b", "a <DISCHARGE DIAGNOSIS> b"),
        ("a <DISCHARGE DISPOSITION> Extended Care Facility: ___ <DISCHARGE CONDITION> b", "a <DISCHARGE CONDITION> b"),
        ("a <DISCHARGE DISPOSITION> Expired", "a "),
        ("a\nDischarge Disposition:\nHome\n \nDischarge Diagnosis:\nb", "a\n\n \nDischarge Diagnosis:\nb"),
        ("a\nDischarge Disposition:\nCare\n \nFacility:\n___\n \nDischarge Plan:\nb", "a\n\n \nDischarge Plan:\nb"),
        ("a\nDischarge Disposition: Home with services: daily\nof a nurse\n\nb", "a\n\n\nb"),
        ("a\ndischarge disposition:\r\nHome\r\n\r\nb", "a\n\n\r\nb"),
        ("a\nDischarge Disposition:\nHome\nMental Status: clear", "a\n\nMental Status: clear"),
        ("a Discharge Disposition: Home Discharge Condition: good", "a Discharge Condition: good"),
        ("a\nDischarge Disposition:\n\nDischarge Diagnosis:\nb", "a\nDischarge Diagnosis:\nb"),
        ("a Discharge Disposition: Home", "a "),
        ("Her disposition: cheerful.  Discharge Diagnosis: b", "Her disposition: cheerful.  Discharge Diagnosis: b"),
    ],
)  # fmt: skip
def test_the_section_that_names_the_answer_is_cut_out(note: str, left: str) -> None:
    assert DISPOSITION.sub("", note) == left


@pytest.mark.parametrize("partition", [ByKey(), Dirichlet(alpha=0.5, by_key=True)])
def test_a_patient_is_with_one_client_only_and_in_one_part(mimic: MimicBHC, partition: Partition) -> None:
    data = federate(mimic.load(), 3, partition, seed=1, split=Split(test=0.2, validation=0, by_key=True))
    parts = [rows.tolist() for share in data.shares for rows in (share.train, share.test)] + [data.test.tolist()]
    held = [whose(data.dataset, rows) for rows in parts if rows]
    assert sum(map(len, held)) == len(set.union(*held)) == 28


# Nothing that a note says is written anywhere


def small(source: MimicBHC, **engine: Any) -> Experiment:
    size = {"buckets": 50, "width": 8, "length": 12}
    models = ({"name": "bag", **size}, {"name": "textcnn", **size, "filters": 4})
    return Experiment(
        rounds=2,
        clients=3,
        data=Data(
            source=source,
            partition=Dirichlet(alpha=1.0, by_key=True),
            split=Split(test=0.2, validation=0.0, by_key=True),
        ),
        models=Models(members=models, dim=4),
        training=Training(batch=8),
        engine=Engine(**engine),
    )


def found_in(folder: Path, words: Sequence[str]) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if any(word.encode() in path.read_bytes() for word in words)]


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_run_writes_nothing_of_the_notes(
    mimic: MimicBHC,
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    get_temp_dir()  # which multiprocessing keeps for good; it must not be the one that is gone after this test
    with tempfile.TemporaryDirectory(prefix="p") as short:  # sockets of processes have short names only
        monkeypatch.setattr("tempfile.tempdir", short)
        result = protea.run(small(mimic, name=engine, workers=2), tmp_path / "run")
        assert not any(path.is_file() for path in Path(short).rglob("*"))  # the processes' copy is gone
        monkeypatch.undo()
    assert len(result.records) == 2
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output
    words = [MARK, "-DS-"]
    assert found_in(tmp_path / "physionet", words[1:])  # the search does find
    for folder in ("run", "views"):
        assert found_in(tmp_path / folder, words) == []
    told = "".join([*capfd.readouterr(), shown.output, caplog.text, str(result.summary)])
    assert not any(word in told for word in words)


def edited(path: Path, old: str, new: str) -> None:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert old.encode() in content
    content = content.replace(old.encode(), new.encode("latin-1"), 1)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


BHC, STAY, LINK = "mimic-iv-bhc.csv", "hosp/admissions.csv.gz", "note/discharge.csv.gz"


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (BHC, ",".join(NOTES) + "\r\n", "", "has no column 'note_id'.  Expected a header line with note_id, input"),
        (BHC, "input,", "inputs,", "has no column 'input'"),
        (LINK, "hadm_id", "stay_id", "has no column 'hadm_id'"),
        (STAY, "discharge_location", "location", "has no column 'discharge_location'"),
        (BHC, f"{MARK} course,9", f"{MARK} course,9,9", "line 2: 6 cells where the header has 5"),
        (BHC, "19900000-DS-20", "19900000-DS-99", "line 2, column 'note_id': .*discharge.csv.gz has no such note"),
        (
            LINK,
            "19900000-DS-20,19900000",
            "19900000-DS-20,19900001",
            "line 2, column 'note_id': .* has another patient",
        ),
        (BHC, f'"{note(19_900_000, "HOME")}"', " ", "line 2, column 'input': the note is empty"),
        (BHC, f"{MARK} course", f'"{MARK}" course', "after line 1: what follows is not a table in UTF-8"),
        (BHC, f"{MARK} course", f"\xff{MARK} course", "what follows is not a table in UTF-8"),
        (LINK, f'{MARK} ""quoted""', f'{MARK} "quoted"', "what follows is not a table in UTF-8"),
    ],
)
def test_errors_name_a_place_and_never_what_stands_there(
    mimic: MimicBHC, tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    edited(tmp_path / "physionet" / file, old, new)
    with pytest.raises(DataError, match=message) as error:
        mimic.load()
    chain: BaseException | None = error.value
    while chain is not None:
        told = str(chain)
        assert MARK not in told and "-DS-" not in told and "number" not in told
        chain = chain.__cause__
    assert str(tmp_path / "physionet" / BHC) in str(error.value) or file in str(error.value)


def test_files_that_are_cut_short_or_not_there_are_named(mimic: MimicBHC, tmp_path: Path) -> None:
    path = tmp_path / "physionet" / LINK
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"discharge.csv.gz, after line \d+: damaged or cut short"):
        mimic.load()
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"discharge.csv.gz, after line 0: damaged or cut short"):
        mimic.load()
    path.unlink()
    with pytest.raises(DataError, match=r"There is no note/discharge.csv.gz"):
        mimic.load()
    path.mkdir()
    with pytest.raises(DataError, match=r"discharge.csv.gz cannot be read"):
        mimic.load()


def test_notes_without_any_disposition_are_no_data(mimic: MimicBHC, tmp_path: Path) -> None:
    table(tmp_path / "physionet" / STAY, ADMISSIONS, [(19_900_000, 29_900_000, "2180-05-06", "")])
    with pytest.raises(DataError, match=r"no note is of an admission for which .* has a discharge_location"):
        mimic.load()


def test_an_experiment_that_would_mix_patients_is_refused(mimic: MimicBHC) -> None:
    experiment = small(mimic)
    mixed = replace(experiment, data=replace(experiment.data, partition=Dirichlet(alpha=1.0)))
    with pytest.raises(ConfigError, match=r"dirichlet with by_key=true"):
        protea.run(mixed)
    shared = replace(experiment, data=replace(experiment.data, public=5))
    with pytest.raises(ConfigError, match=r"set data.public=0"):
        protea.run(shared)
