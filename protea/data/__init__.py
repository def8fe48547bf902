"""Data sets, how clients come to have them, and how clients see them."""

from protea.config.sections import Split
from protea.core.augment import Augment
from protea.core.samples import Samples
from protea.data.dataset import Dataset
from protea.data.federate import federate
from protea.data.federated import Federated
from protea.data.partition.file import PartitionFile, load_partition
from protea.data.partition.schemes import ByKey, Dirichlet, Iid, OfSource, Partition, Pathological, Quantity, Shards
from protea.data.partition.split import Share
from protea.data.sources.arrays import Arrays
from protea.data.sources.csv_table import Csv
from protea.data.sources.folder import Folder
from protea.data.sources.npz import Npz
from protea.data.sources.pfllib import PFLlib
from protea.data.texts import Texts

__all__ = [
    "Arrays",
    "Augment",
    "ByKey",
    "Csv",
    "Dataset",
    "Dirichlet",
    "Federated",
    "Folder",
    "Iid",
    "Npz",
    "OfSource",
    "PFLlib",
    "Partition",
    "PartitionFile",
    "Pathological",
    "Quantity",
    "Samples",
    "Shards",
    "Share",
    "Split",
    "Texts",
    "federate",
    "load_partition",
]
