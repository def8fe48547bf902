"""Data sets, how clients come to have them, and how clients see them."""

from protea.config.sections import Split
from protea.core.augment import Augment
from protea.core.samples import Samples
from protea.data.dataset import Dataset
from protea.data.federate import federate
from protea.data.federated import Federated
from protea.data.partition.file import PartitionFile
from protea.data.partition.schemes import ByKey, Dirichlet, Iid, Pathological, Quantity, Shards
from protea.data.partition.split import Share
from protea.data.sources.arrays import Arrays

__all__ = [
    "Arrays",
    "Augment",
    "ByKey",
    "Dataset",
    "Dirichlet",
    "Federated",
    "Iid",
    "PartitionFile",
    "Pathological",
    "Quantity",
    "Samples",
    "Shards",
    "Share",
    "Split",
    "federate",
]
