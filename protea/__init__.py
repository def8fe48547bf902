"""Prototype-based federated learning across different models and different data."""

from protea import geometry, losses
from protea.client import Client
from protea.method import Method, Needs, Upload
from protea.models.split import SplitModel
from protea.payload import Payload
from protea.prototypes import Prototypes
from protea.server import Server
from protea.weights import Weights

from protea.config import Data, Experiment  # isort: skip  (its default method imports the names above)
from protea.experiment import Result, resume, rounds, run  # isort: skip

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
