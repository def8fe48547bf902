"""Writing a model's folder, and reading it again."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from protea.core.client import EVALUATION_BATCH
from protea.core.errors import CheckpointError, ConfigError, DataError, PluginError, ProteaError
from protea.core.files import FileSum, read_sealed, sync_folder, write_bytes, write_json, write_sealed, write_text
from protea.core.message import Named
from protea.core.shell import quoted
from protea.data.new_samples import NewSamples
from protea.runs.model_folder.card import load_script, model_card
from protea.runs.model_folder.contents import Contents
from protea.runs.model_folder.preparation import Preparation
from protea.runs.model_folder.program import TensorProgram, to_pt2
from protea.runs.model_folder.reading import TOKENIZER
from protea.runs.predictions import Predictions

FORMAT = 1
ABOUT = "model.json"
LARGE = 1 << 24  # bytes of a file that is packed as it is: weights hardly shrink, and an encoder has many


def is_model_folder(path: Path) -> bool:
    """Return whether a path is a folder that :func:`write_folder` wrote, or looks like one."""
    return (path / ABOUT).is_file() and not (path / "config.toml").exists()


def refuse_taken(path: Path) -> None:
    """Raise :class:`ConfigError`, before any work, unless a folder and a .zip of this name can be made."""
    for each in (path, zip_of(path)):
        if each.exists():
            raise ConfigError(
                f"{each} exists already; it is left as it is.  Choose another name: --to {quoted(f'{path}-2')}"
            )
    parent = path.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"--to {path}: there is no folder {parent}.  Make it first: mkdir -p {quoted(parent)}")
    if not os.access(parent, os.W_OK):
        raise ConfigError(f"--to {path}: {parent} cannot be written to.  Choose another place.")


def zip_of(path: Path) -> Path:
    """Return the name of the .zip that lies beside a folder."""
    return path.with_name(f"{path.name}.zip")


def write_folder(contents: Contents, path: Path) -> Path:
    """Write the folder and, beside it, a .zip of it; return the latter.  Both are whole or not there."""
    refuse_taken(path)
    partial, packed = path.with_name(f".{path.name}.partial"), path.with_name(f".{path.name}.zip.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
        partial.mkdir()
        _fill(partial, contents)
        with zipfile.ZipFile(packed, "w") as archive:
            for file in sorted(partial.iterdir()):
                kind = zipfile.ZIP_STORED if file.stat().st_size > LARGE else zipfile.ZIP_DEFLATED
                archive.write(file, f"{path.name}/{file.name}", kind)
        partial.rename(path)
        packed.replace(zip_of(path))
        sync_folder(path.absolute().parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.  Choose another place: --to DIR") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            packed.unlink(missing_ok=True)
    return zip_of(path)


def _fill(folder: Path, contents: Contents) -> None:
    program, weights = contents.program, contents.weights
    own = {f"model.{name}" for name in weights}
    constants = {name: tensor for name, tensor in program.values.items() if name not in own}
    write_bytes(folder / "weights.safetensors", save(weights))
    write_bytes(folder / "constants.safetensors", save(constants))
    write_json(folder / "program.json", program.to_table())
    write_bytes(folder / "program.pt2", to_pt2(contents.exported))
    texts = contents.origin.preparation.texts
    if texts is not None and texts.encoder is not None:
        write_text(folder / TOKENIZER, texts.tokenizer)
    if contents.onnx is not None:
        write_bytes(folder / "model.onnx", contents.onnx)
    if contents.prototypes:
        write_bytes(folder / "prototypes.safetensors", save(contents.prototypes))
    write_text(folder / "load.py", load_script(contents))
    write_text(folder / "README.md", model_card(contents))
    files = {file.name: asdict(FileSum.of(file)) for file in sorted(folder.iterdir())}
    write_sealed(folder / ABOUT, {**_about(contents), "files": files})
    sync_folder(folder)


def _about(contents: Contents) -> dict[str, Any]:
    origin = contents.origin
    return {
        "format": FORMAT,
        "made": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "who": origin.who,
        "method": origin.method,
        "round": contents.round,
        "classes": list(origin.classes),
        "rule": {"name": contents.rule, "words": contents.rule_words, "note": contents.note},
        "preparation": origin.preparation.to_table(),
        "architecture": {"name": contents.architecture, "parameters": contents.parameters, "dim": contents.dim},
        "samples": contents.samples,
        "accuracy": {rule: {"right": right, "of": of} for rule, (right, of) in contents.accuracy.items()},
        "privacy": list(origin.privacy),
        "settings": {name: str(value) for name, value in origin.settings.items()},
        "largest_difference": contents.difference,
        "torch": torch.__version__,
    }


@dataclass(frozen=True)
class ModelFolder:
    """A model's folder, read and checked; nothing in it is run but operations that Protea knows."""

    path: Path
    about: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> ModelFolder:
        """Open a folder; raise :class:`ConfigError` if it is none, or a file in it is not as it was written."""
        if path.suffix == ".zip" and path.is_file():
            raise ConfigError(f"{path} is packed.  Unpack it first: python -m zipfile -e {path} .")
        if not is_model_folder(path):
            raise ConfigError(f"{path} is not a model's folder: it has no {ABOUT}.  Make one: protea export-model RUN")
        try:
            about = read_sealed(path / ABOUT)
        except CheckpointError as error:
            raise _damaged(path, str(error)) from error
        if about.get("format") != FORMAT:
            raise ConfigError(f"{path} has format {about.get('format')}; this version of Protea reads {FORMAT}.")
        for name, known in about["files"].items():
            if Path(name).name != name:
                raise _damaged(path, f"{ABOUT} names a file {name!r} that is not in the folder.")
            try:
                found = asdict(FileSum.of(path / name))
            except OSError as error:
                raise _damaged(path, f"{name} cannot be read: {error.strerror}.") from error
            if found != known:
                raise _damaged(path, f"{name} is not as it was written.")
        return cls(path, about)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.about["classes"])

    @property
    def rule(self) -> str:
        """The name of the rule by which the folder answers."""
        return str(self.about["rule"]["name"])

    @cached_property
    def preparation(self) -> Preparation:
        """What is done to new samples before the model sees them."""
        with _naming(self.path):
            found = Preparation.from_table(self.about["preparation"])
            if found.texts is None or found.texts.encoder is None:
                return found
            content = (self.path / TOKENIZER).read_text(encoding="utf-8")
            return found.of_texts(replace(found.texts, tokenizer=content))

    @cached_property
    def program(self) -> TensorProgram:
        """The model and its rule."""
        with _naming(self.path):
            weights = {f"model.{name}": tensor for name, tensor in self._tensors("weights").items()}
            table = json.loads((self.path / "program.json").read_text(encoding="utf-8"))
            return TensorProgram.from_table(table, {**weights, **self._tensors("constants")})

    def _tensors(self, name: str) -> Named:
        return load((self.path / f"{name}.safetensors").read_bytes())

    def predict(self, x: Tensor | Sequence[str], told: Callable[[int], object] = lambda done: None) -> Tensor:
        """Return class probabilities, float32 ``(samples, classes)``, of samples as numbers of a file, or as texts."""
        parts, program, texts = [torch.zeros(0, len(self.classes))], self.program, self.preparation.texts
        if isinstance(x, Tensor) != (texts is None):
            raise DataError(f"{self.path}: this model takes {'numbers' if texts is None else 'texts'}.")
        with _naming(self.path):
            for start in range(0, len(x), EVALUATION_BATCH):
                some = x[start : start + EVALUATION_BATCH]
                batch = some if isinstance(some, Tensor) or texts is None else texts(some)
                assert isinstance(batch, Tensor)
                parts.append(program(batch.to(self.preparation.dtype)))
                if parts[-1].shape != (len(batch), len(self.classes)):
                    raise ConfigError(
                        f"the program gives {tuple(parts[-1].shape)}, not one probability for each class."
                    )
                told(start + len(batch))
        return torch.cat(parts)

    def predictions(self, samples: NewSamples, told: Callable[[int], object] = lambda done: None) -> Predictions:
        """Answer new samples that :meth:`Preparation.read` has read."""
        return Predictions(samples, self.predict(samples.x, told), self.classes)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn whatever a folder's content leads to into an error that names the folder."""
    try:
        yield
    except PluginError:
        raise
    except (ProteaError, OSError, ValueError, RuntimeError, TypeError, KeyError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is damaged or was changed: {why}\n  Export the model again, or unpack its .zip anew.")
