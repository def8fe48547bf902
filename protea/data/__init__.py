"""Data sets, how clients come to have them, and how clients see them."""

from protea.data.augment import Augment
from protea.data.dataset import Dataset
from protea.data.federate import federate
from protea.data.federated import Federated
from protea.data.partition_file import Given
from protea.data.samples import Samples
from protea.data.schemes import ByKey, Dirichlet, Iid, Pathological, Quantity, Shards
from protea.data.sources.arrays import Arrays
from protea.data.split import Share, Split

__all__ = [
    "Arrays",
    "Augment",
    "ByKey",
    "Dataset",
    "Dirichlet",
    "Federated",
    "Given",
    "Iid",
    "Pathological",
    "Quantity",
    "Samples",
    "Shards",
    "Share",
    "Split",
    "federate",
]
