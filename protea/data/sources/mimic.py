"""Where patients go from hospital, told from their notes: MIMIC-IV-Ext-BHC, for those who have it.

Aali et al., PhysioNet 2024, https://doi.org/10.13026/41et-8342; the labels are those of MIMIC-IV
(Johnson et al., 2023).  Nothing here repeats what a note says: errors name a file, a line and a
column, and no more.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from protea.core.errors import DataError
from protea.core.ranges import Fraction
from protea.core.rng import Streams
from protea.data import convert, files
from protea.data.dataset import Dataset
from protea.data.new_samples import NewSamples, SampleForm, read_in_form
from protea.data.sources.csv_table import LONGEST
from protea.data.texts import Texts

CLASSES = ("Home", "Home Health", "SNF", "Rehab", "Expired", "Other")
LINKS = ("note_id", "subject_id", "hadm_id")
PLACES = {
    "HOME": "Home",
    "HOME HEALTH CARE": "Home Health",
    "SKILLED NURSING FACILITY": "SNF",
    "REHAB": "Rehab",
    "DIED": "Expired",
}

TAG = r"<[A-Z][A-Z /]+>"
NEXT = rf"{TAG}|\b(?i:discharge\ \w+|facility|follow-?up\ instructions)[ ]*:"  # what may follow on the same line
SAID = rf"""
    \s* (?:(?!{NEXT})[^\n])*                                                # the first line is the answer
    (?:\n (?!\s*?(?:\n|\Z)) (?![ \t]*[A-Z][^\n:]*:) (?:(?!{NEXT})[^\n])+)*  # more, until a blank line or a heading
"""
DISPOSITION = re.compile(
    rf"""
    [<Dd]  # a first letter that is known makes the search five times as fast
    (?: (?<=<) (?i:discharge\ disposition>) (?s:(?!{TAG}).)*
      | (?<=[Dd]) (?i:ischarge\ disposition)[ ]*: {SAID} (?:\s*\b(?i:facility)[ ]*: {SAID})?  # some have one
    )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class MimicBHC:
    """Notes with one of six discharge dispositions, as FedPAGR has them; keys are patients.

    ``notes`` is of MIMIC-IV-Ext-BHC, ``admissions`` of MIMIC-IV, and ``discharges`` of
    MIMIC-IV-Note, which only says of which admission a note is; each is a .csv or .csv.gz.  Notes
    without a discharge location are left out.  ``strip`` cuts out the section that names the
    disposition.  A part ``held_out`` of the patients, drawn by ``seed``, is the test part.
    """

    notes: str = "mimic-iv-bhc.csv"
    admissions: str = "hosp/admissions.csv.gz"
    discharges: str = "note/discharge.csv.gz"
    strip: bool = True
    held_out: Fraction = 0.3
    seed: int = 1

    def load(self) -> Dataset:
        notes, discharges = files.user_path(self.notes), files.user_path(self.discharges)
        where = dispositions(files.user_path(self.admissions))
        admission = {note: (subject, stay) for _, (note, subject, stay) in rows(discharges, LINKS)}
        texts: dict[int, str] = {}
        labels: list[str] = []
        patients: list[str] = []
        for line, (note, text) in rows(notes, ("note_id", "input")):
            if note not in admission:
                raise DataError(f"{notes}, line {line}, column 'note_id': {discharges} has no such note.")
            subject, stay = admission[note]
            if note.partition("-")[0] != subject:
                raise DataError(
                    f"{notes}, line {line}, column 'note_id': {discharges} has another patient for the note."
                )
            if not text.strip():
                raise DataError(f"{notes}, line {line}, column 'input': the note is empty.")
            if (subject, stay) in where:
                texts[len(labels)] = DISPOSITION.sub("", text) if self.strip else text
                labels.append(where[subject, stay])
                patients.append(subject)
        if not labels:
            raise DataError(
                f"{notes}: no note is of an admission for which {self.admissions} has a discharge_location."
            )
        keys = convert.number_keys(patients)
        order = Streams(self.seed).at("mimic").numpy("held out").permutation(int(keys.max()) + 1)
        held = np.isin(keys.numpy(), order[: round(self.held_out * len(order))])
        last = np.argsort(held, kind="stable")  # test rows are last
        y, names = convert.to_labels(np.array(labels)[last], CLASSES)
        found = Texts.of(texts.pop(row) for row in last.tolist())  # each is let go once it is packed
        return Dataset(found, y, names, int(held.sum()), keys[last])

    def read_new(self, path: Path, form: SampleForm) -> NewSamples:
        """Read new notes in the column ``text`` of a table; what names the disposition is cut out of these too."""
        found = read_in_form(path, form)
        if not self.strip:
            return found
        return replace(found, x=[DISPOSITION.sub("", text) for text in found.x if isinstance(text, str)])


def dispositions(path: Path) -> dict[tuple[str, str], str]:
    """Read the disposition of each admission, by patient and admission; those without one are left out."""
    columns = ("subject_id", "hadm_id", "discharge_location")
    return {
        (subject, stay): PLACES.get(place.strip().upper(), "Other")
        for _, (subject, stay, place) in rows(path, columns)
        if place.strip()
    }


def rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of these columns, and the line each row begins on; row by row, as the files are large."""
    csv.field_size_limit(LONGEST)
    line = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            for name in columns:
                if name not in header:  # which others there are is not said: without a header they are a note
                    raise DataError(
                        f"{path} has no column {name!r}.  Expected a header line with {', '.join(columns)}."
                    )
            places = [header.index(name) for name in columns]
            line = reader.line_num
            for row in reader:
                if row and len(row) != len(header):
                    raise DataError(f"{path}, line {line + 1}: {len(row)} cells where the header has {len(header)}.")
                if row:
                    yield line + 1, [row[place] for place in places]
                line = reader.line_num
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path}, after line {line}: what follows is not a table in UTF-8 text.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path}, after line {line}: damaged or cut short.  Get it again.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
