"""A user's own arrays in a NumPy .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from protea.core.errors import DataError, nearest
from protea.data import convert, files
from protea.data.dataset import Dataset
from protea.data.new_samples import NewSamples, SampleForm, read_in_form

FIELDS = ("x", "y", "names", "keys", "x_test", "y_test", "keys_test")


@dataclass(frozen=True)
class Npz:
    """A file with inputs ``x`` and labels ``y``, and if wanted ``names`` of the classes, ``keys`` and a test part.

    ``x`` and ``y`` may be all that ``Arrays`` takes.  Pickled objects are never read.
    """

    path: str
    tokens: bool = False

    def load(self) -> Dataset:
        fields = self.fields()
        names = fields.pop("names", None)
        return convert.to_dataset(**fields, names=None if names is None else names.tolist(), tokens=self.tokens)

    def read_new(self, path: Path, form: SampleForm) -> NewSamples:
        """Read new samples; where the run's own file names its classes, labels that are numbers count through these."""
        with np.load(files.user_path(self.path), allow_pickle=False) as own:
            return read_in_form(path, form, counted="names" in own.files)

    def fields(self, needed: Sequence[str] = ("x", "y")) -> dict[str, Any]:
        """Read the arrays of the file by name; raise :class:`DataError` for names that mean nothing here.

        Those in ``needed`` must be there.
        """
        path = files.user_path(self.path)
        if path.is_file() and not zipfile.is_zipfile(path) and path.suffix != ".npy":
            raise DataError(f"{path} is damaged or not an .npz file.  Save with numpy.savez(path, x=..., y=...).")
        try:
            with path.open("rb") as file:
                stored = np.load(file, allow_pickle=False)
                if isinstance(stored, np.ndarray):
                    raise DataError(f"{path} is a single array.  Save with numpy.savez(path, x=..., y=...).")
                for name in stored.files:
                    if name not in FIELDS:
                        raise DataError(f"{path} has a field {name!r}.  {nearest(name, FIELDS)}")
                fields = {name: stored[name] for name in stored.files}
        except ValueError as error:
            raise DataError(
                f"{path} holds pickled objects or is not an .npz file ({error}).\n"
                f"  Pickles can run any code and are never read.  Save arrays of numbers or of str:\n"
                f"  numpy.savez(path, x=..., y=...)"
            ) from error
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} is damaged or not an .npz file: {error}.") from error
        if missing := [name for name in needed if name not in fields]:
            raise DataError(
                f"{path} has no field {missing[0]!r}.  It needs {' and '.join(needed)}: "
                f"numpy.savez(path, x=..., y=...)."
            )
        return fields
