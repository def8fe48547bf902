"""Prototype-based federated learning across different models and different data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protea import geometry, losses
    from protea.client import Client
    from protea.config import Data, Experiment
    from protea.experiment import Result, resume, rounds, run
    from protea.method import Method, Needs, Upload
    from protea.models.split import SplitModel
    from protea.payload import Payload
    from protea.prototypes import Prototypes
    from protea.server import Server
    from protea.weights import Weights

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Data",
    "Experiment",
    "Method",
    "Needs",
    "Payload",
    "Prototypes",
    "Result",
    "Server",
    "SplitModel",
    "Upload",
    "Weights",
    "geometry",
    "losses",
    "resume",
    "rounds",
    "run",
]

_PLACES = {
    "client": ["Client"],
    "config": ["Data", "Experiment"],
    "experiment": ["Result", "resume", "rounds", "run"],
    "method": ["Method", "Needs", "Upload"],
    "models.split": ["SplitModel"],
    "payload": ["Payload"],
    "prototypes": ["Prototypes"],
    "server": ["Server"],
    "weights": ["Weights"],
}
_PLACE = {name: f"protea.{module}" for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for: most of the command line needs little of it, and torch takes seconds."""
    if name in ("geometry", "losses"):
        return import_module(f"protea.{name}")
    if name not in _PLACE:
        raise AttributeError(f"module 'protea' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_PLACE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
