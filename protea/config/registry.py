"""From a name in an experiment file to the class it stands for.

Names are looked up in the built-in table, then among installed entry points (``protea.methods``, ``protea.sources``,
and so on: one group for each table below), and last as ``package.module:name``.  Nothing is imported before it is asked
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from protea.config.words import ALONE, RULES
from protea.core.errors import PluginError, nearest

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "methods": {
        "local": "protea.methods.local:Local",
        "fedloo": "protea.methods.fedloo:FedLOO",
        "fedsaf": "protea.methods.fedsaf:FedSAF",
        "fedpagr": "protea.methods.fedpagr:FedPAGR",
        "fedprotokd": "protea.methods.fedprotokd:FedProtoKD",
        "protonorm": "protea.methods.protonorm:ProtoNorm",
        "fedorgp": "protea.methods.fedorgp:FedORGP",
        "fedsa": "protea.methods.fedsa:FedSA",
        "fedtsp": "protea.methods.fedtsp:FedTSP",
        "fedplvm": "protea.methods.fedplvm:FedPLVM",
        "fedtgp": "protea.methods.fedtgp:FedTGP",
        "fedproto": "protea.methods.fedproto:FedProto",
        "fedproc": "protea.methods.fedproc:FedProc",
        "fedpcl": "protea.methods.fedpcl:FedPCL",
        "fedhp": "protea.methods.fedhp:FedHP",
        "feddistill": "protea.methods.feddistill:FedDistill",
        "fedl2g": "protea.methods.fedl2g:FedL2G",
        "fedgh": "protea.methods.fedgh:FedGH",
        "lg_fedavg": "protea.methods.lg_fedavg:LGFedAvg",
        "fedgen": "protea.methods.fedgen:FedGen",
        "fml": "protea.methods.fml:FML",
        "fedkd": "protea.methods.fedkd:FedKD",
        "fedmrl": "protea.methods.fedmrl:FedMRL",
        "fedmd": "protea.methods.fedmd:FedMD",
        "fedpkd": "protea.methods.fedpkd:FedPKD",
        "fed2pkd": "protea.methods.fed2pkd:Fed2PKD",
        "fedavg": "protea.methods.fedavg:FedAvg",
        "fedprox": "protea.methods.fedprox:FedProx",
        "feduv": "protea.methods.feduv:FedUV",
        "fednh": "protea.methods.fednh:FedNH",
    },
    "engines": {
        "inline": "protea.engines.inline:Inline",
        "processes": "protea.engines.processes.engine:Processes",
        "ray": "protea.engines.ray.engine:Ray",
        "flower": "protea.engines.flower.engine:Flower",
    },
    "sources": {
        "digits": "protea.data.sources.digits:Digits",
        "fashion-mnist": "protea.data.sources.idx:FashionMNIST",
        "mnist": "protea.data.sources.idx:MNIST",
        "cifar10": "protea.data.sources.cifar:CIFAR10",
        "cifar100": "protea.data.sources.cifar:CIFAR100",
        "tiny-imagenet": "protea.data.sources.tiny_imagenet:TinyImageNet",
        "flowers102": "protea.data.sources.flowers102:Flowers102",
        "spiral": "protea.data.sources.spiral:Spiral",
        "arrays": "protea.data.sources.arrays:Arrays",
        "npz": "protea.data.sources.npz:Npz",
        "folder": "protea.data.sources.folder:Folder",
        "csv": "protea.data.sources.csv_table:Csv",
        "pfllib": "protea.data.sources.pfllib:PFLlib",
        "datasets": "protea.data.sources.hugging_face:HuggingFace",
        "flwr-datasets": "protea.data.sources.flower_datasets:FlowerDatasets",
        "banking77": "protea.data.sources.public_texts:Banking77",
        "clinc150": "protea.data.sources.public_texts:Clinc150",
        "trec": "protea.data.sources.public_texts:Trec",
        "ohsumed": "protea.data.sources.public_texts:Ohsumed",
        "mtsamples": "protea.data.sources.public_texts:MTSamples",
        "mimic-iv-ext-bhc": "protea.data.sources.mimic:MimicBHC",
    },
    "optimizers": {
        "sgd": "protea.core.training:SGD",
        "adam": "protea.core.training:Adam",
        "adamw": "protea.core.training:AdamW",
    },
    "samplers": {"uniform": "protea.federation.sampling:Uniform"},
    "filters": {
        "clip": "protea.filters.clip:Clip",
        "noise": "protea.filters.noise:Noise",
        "quantize": "protea.filters.quantize:Quantize",
        "bound": "protea.filters.bound:Bound",
        "median": "protea.filters.centres:Median",
        "trimmed": "protea.filters.centres:Trimmed",
        "geometric_median": "protea.filters.centres:GeometricMedian",
        "multi_krum": "protea.filters.multi_krum:MultiKrum",
        "cosine": "protea.filters.cosine:Cosine",
        "secure_sum": "protea.filters.secure_sum:SecureSum",
    },
    "rules": {},
    "metrics": {},
    "trackers": {
        "tensorboard": "protea.cli.trackers:TensorBoard",
        "mlflow": "protea.cli.trackers:MLflow",
        "wandb": "protea.cli.trackers:WeightsAndBiases",
    },
    "partitions": {
        "iid": "protea.data.partition.schemes:Iid",
        "dirichlet": "protea.data.partition.schemes:Dirichlet",
        "pathological": "protea.data.partition.schemes:Pathological",
        "shards": "protea.data.partition.schemes:Shards",
        "quantity": "protea.data.partition.schemes:Quantity",
        "by-key": "protea.data.partition.schemes:ByKey",
        "source": "protea.data.partition.schemes:OfSource",
        "file": "protea.data.partition.file:PartitionFile",
    },
    "architectures": {
        "cnn4": "protea.models.cnn:cnn4",
        "cnn": "protea.models.cnn:cnn",
        "htcnn1": "protea.models.cnn:htcnn1",
        "htcnn2": "protea.models.cnn:htcnn2",
        "htcnn3": "protea.models.cnn:htcnn3",
        "htcnn4": "protea.models.cnn:htcnn4",
        "htcnn5": "protea.models.cnn:htcnn5",
        "htcnn6": "protea.models.cnn:htcnn6",
        "htcnn7": "protea.models.cnn:htcnn7",
        "htcnn8": "protea.models.cnn:htcnn8",
        "resnet4": "protea.models.resnet:resnet4",
        "resnet6": "protea.models.resnet:resnet6",
        "resnet8": "protea.models.resnet:resnet8",
        "resnet10": "protea.models.resnet:resnet10",
        "resnet18": "protea.models.resnet:resnet18",
        "resnet34": "protea.models.resnet:resnet34",
        "resnet50": "protea.models.resnet:resnet50",
        "resnet101": "protea.models.resnet:resnet101",
        "resnet152": "protea.models.resnet:resnet152",
        "mlp": "protea.models.mlp:mlp",
        "mlp5": "protea.models.mlp:mlp5",
        "random_features": "protea.models.mlp:random_features",
        "googlenet": "protea.models.vision:googlenet",
        "mobilenet_v2": "protea.models.vision:mobilenet_v2",
        "shufflenet_v2_x1_0": "protea.models.vision:shufflenet_v2_x1_0",
        "efficientnet_b0": "protea.models.vision:efficientnet_b0",
        "bag": "protea.models.text:bag",
        "textcnn": "protea.models.text:textcnn",
        "bilstm": "protea.models.text:bilstm",
        "tiny_mlp": "protea.models.tiny:tiny_mlp",
        "tiny_cnn": "protea.models.tiny:tiny_cnn",
        "tiny_resnet": "protea.models.tiny:tiny_resnet",
        "tiny_separable": "protea.models.tiny:tiny_separable",
        "tiny_mixer": "protea.models.tiny:tiny_mixer",
    },
}


RESERVED: Mapping[str, Mapping[str, str]] = {  # names that no plug-in may have, and what they stand for
    "methods": {ALONE: "any method with each client in a federation of its own.  Set alone=true, or --beside alone"},
    "rules": {name: f"a rule that every run has.  To let it answer, set evaluation.answer={name}" for name in RULES},
}


@cache
def table(group: str) -> Mapping[str, str]:
    """Return all names of a group, each with the ``module:name`` it stands for; built-ins win over plug-ins.

    >>> table("samplers")["uniform"]
    'protea.federation.sampling:Uniform'
    """
    return {**_plugged(group, reserved=False), **BUILT_IN[group]}


def _plugged(group: str, reserved: bool) -> dict[str, str]:
    """Return the plug-ins whose name is reserved, or those whose name is not."""
    points = entry_points(group=f"protea.{group}")
    return {point.name: point.value for point in points if (point.name in RESERVED.get(group, {})) is reserved}


def find(group: str, name: str) -> Any:
    """Import the class or function called ``name``; ``package.module:name`` names one that is in no table."""
    if name in RESERVED.get(group, {}):
        taken = _plugged(group, reserved=True).get(name)
        whose = f"  The plug-in {taken} needs another name." if taken else ""
        raise PluginError(f"{name!r} is not among the {group}: it stands for {RESERVED[group][name]}.{whose}")
    path = table(group).get(name, name)
    module, _, attribute = path.partition(":")
    if not module or not attribute or module.startswith("."):
        raise PluginError(f"{name!r} is not among the {group}.  {nearest(name, table(group))}")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise PluginError(
            f"{group} {name!r}: no module {error.name!r} to import.  It is looked for beside the experiment "
            f"file and where Python looks; install its package, or set PYTHONPATH to the folder it is in."
        ) from error
    except AttributeError as error:
        hint = "  It is of a script: give it its experiment, protea.resume(directory, experiment)."
        raise PluginError(
            f"{group} {name!r}: module {module} has no {attribute!r}.{hint if module == '__main__' else ''}"
        ) from error


def default(group: str, name: str) -> Callable[[], Any]:
    """Return a function that makes a plug-in with its default settings; it is imported only when that is called."""
    return lambda: find(group, name)()


def name_of(group: str, kind: type) -> str:
    """Return the name by which :func:`find` finds ``kind``.

    >>> name_of("methods", find("methods", "fedproto"))
    'fedproto'
    """
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, value in table(group).items() if value == path), path)


def plugin_names(group: str, plugins: Iterable[object]) -> tuple[str, ...]:
    """The short name of each plug-in: the one it is registered under, else that of its class in lower case."""
    names = [(name_of(group, type(plugin)), type(plugin).__name__.lower()) for plugin in plugins]
    return tuple(short if ":" in name else name for name, short in names)
