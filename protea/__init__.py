"""Prototype-based federated learning across different models and different data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protea.config.experiment import Experiment
    from protea.config.families import Models
    from protea.config.sections import Checkpoint, Data, Engine, Evaluation, Faults, Limits, Split
    from protea.core import geometry, losses
    from protea.core.client import Client
    from protea.core.method import Method, Needs, Upload
    from protea.core.payload import Payload
    from protea.core.prototypes import Prototypes
    from protea.core.server import Server
    from protea.core.split_model import SplitModel
    from protea.core.training import Training
    from protea.core.weights import Weights
    from protea.engines.scripted import Scripted
    from protea.filters.base import Filter
    from protea.runs.observers import STOP, Observer
    from protea.runs.result import Result
    from protea.runs.run import Run, load, resume, run

__version__ = "0.2.0"

__all__ = [
    "STOP",
    "Checkpoint",
    "Client",
    "Data",
    "Engine",
    "Evaluation",
    "Experiment",
    "Faults",
    "Filter",
    "Limits",
    "Method",
    "Models",
    "Needs",
    "Observer",
    "Payload",
    "Prototypes",
    "Result",
    "Run",
    "Scripted",
    "Server",
    "Split",
    "SplitModel",
    "Training",
    "Upload",
    "Weights",
    "geometry",
    "load",
    "losses",
    "resume",
    "run",
]

_PLACES = {
    "config.experiment": ["Experiment"],
    "config.families": ["Models"],
    "config.sections": ["Checkpoint", "Data", "Engine", "Evaluation", "Faults", "Limits", "Split"],
    "core.client": ["Client"],
    "core.method": ["Method", "Needs", "Upload"],
    "core.payload": ["Payload"],
    "core.prototypes": ["Prototypes"],
    "core.server": ["Server"],
    "core.split_model": ["SplitModel"],
    "core.training": ["Training"],
    "core.weights": ["Weights"],
    "engines.scripted": ["Scripted"],
    "filters.base": ["Filter"],
    "runs.observers": ["STOP", "Observer"],
    "runs.result": ["Result"],
    "runs.run": ["Run", "load", "resume", "run"],
}
_PLACE = {name: f"protea.{module}" for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: most commands need few of them, and importing torch takes seconds."""
    if name in ("geometry", "losses"):
        return import_module(f"protea.core.{name}")
    if name not in _PLACE:
        raise AttributeError(f"module 'protea' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_PLACE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
