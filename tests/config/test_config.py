"""Experiments in TOML and in Python: what is read, what is written, and what is refused with which words."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy

import protea
from protea import Data, Experiment, Method, Needs
from protea.config import registry
from protea.config.experiment import (
    experiment_from_table,
    experiment_to_toml,
    load_experiment,
    method_label,
)
from protea.config.families import Models
from protea.config.sections import Checkpoint, Engine, Evaluation
from protea.config.toml import override, to_table
from protea.core.errors import ConfigError, PluginError
from protea.core.shell import install_hint
from protea.core.training import Training
from protea.data import Arrays, Augment, Split
from protea.data.partition.file import PartitionFile
from protea.data.sources.csv_table import Csv
from protea.data.sources.flower_datasets import FlowerDatasets
from protea.data.sources.folder import Folder
from protea.data.sources.hugging_face import HuggingFace
from protea.data.sources.npz import Npz
from protea.data.sources.pfllib import PFLlib
from protea.engines.inline import Inline
from protea.engines.processes.engine import Processes
from protea.federation.played import method_of
from protea.methods.fedproto import FedProto
from protea.methods.local import Local

HERE = "test_config"


def again(experiment: Experiment, folder: Path) -> Experiment:
    """Written to a file and read back."""
    path = folder / "exp.toml"
    path.write_text(experiment_to_toml(experiment), encoding="utf-8")
    return load_experiment(path)


def read(text: str, *changes: str) -> Experiment:
    return experiment_from_table(override(tomllib.loads(text), changes), "exp.toml")


def suiting(method: Method[Any, Any]) -> Experiment:
    """An experiment that has all that the method needs."""
    same = method.needs.same_architecture or method.needs.same_head
    models = Models(family="tiny_mlp" if same else "tiny5", server="tiny_mlp", dim=16)
    return Experiment(method=method, models=models, data=Data(public=20))


def every_method() -> dict[str, Method[Any, Any]]:
    found = {}
    for name in registry.table("methods"):
        kind = registry.find("methods", name)
        found |= {name: kind()} | {f"{name}@{v}": kind(**fields) for v, fields in kind.variants.items()}
    return found


# TOML in and out


@pytest.mark.parametrize(("name", "method"), every_method().items(), ids=every_method())
def test_every_method_and_variant_comes_back_from_its_file(name: str, method: Method[Any, Any], tmp_path: Path):
    assert again(suiting(method), tmp_path) == suiting(method)
    table = to_table(suiting(method)) | {"method": name}
    assert experiment_from_table(table).method == method


SOURCES = {
    "csv": Csv("a b.csv.gz", "label", key="site", features=("x", "y"), standardise=True, delimiter=";"),
    "folder": Folder("images", size=32, mode="L"),
    "npz": Npz("d:\\data.npz", tokens=True),
    "pfllib": PFLlib("dataset/Cifar10"),
    "datasets": HuggingFace("folder of a set", inputs=("image",), label="kind", size=32, mode="L"),
    "flwr-datasets": FlowerDatasets("folder", partitioner="DirichletPartitioner", options={"alpha": 0.1}),
}
PARTITIONS = {"file": PartitionFile("partition.json")}


@pytest.mark.parametrize("name", sorted(registry.table("sources").keys() - {"arrays"}))
def test_every_source_that_a_file_can_hold_comes_back(name: str, tmp_path: Path):
    source = SOURCES.get(name) or registry.find("sources", name)()
    experiment = Experiment(data=Data(source=source))
    assert again(experiment, tmp_path) == experiment
    assert to_table(experiment)["data"]["source"]["kind"] == name


@pytest.mark.parametrize("name", registry.table("partitions"))
def test_every_partition_comes_back(name: str, tmp_path: Path):
    partition = PARTITIONS.get(name) or registry.find("partitions", name)()
    experiment = Experiment(data=Data(partition=partition))
    assert again(experiment, tmp_path) == experiment
    assert to_table(experiment)["data"]["partition"]["kind"] == name


def test_an_experiment_with_every_setting_changed_comes_back(tmp_path: Path):
    experiment = Experiment(
        rounds=3, clients=7, fraction=0.5, seed=-2, device="cpu", failures="skip", min_replies=2,
        method=FedProto(pull=2.5, taken="before", answer="local"),
        data=Data(pool="all", public=5, split=Split(test=0.5, validation=0.0), augment=Augment(crop=2), seed=9),
        models=Models(members=("tiny_cnn", {"name": "mlp", "hidden": [8, 4], "head": [3]}), dim=4, server="mlp"),
        training=Training(optimizer="adam", lr=1e-3, schedule="cosine"),
        evaluation=Evaluation(every=5, when="before"),
        engine=Engine("inline", workers=3, threads=2),
        checkpoint=Checkpoint(every=4, keep=2),
    )  # fmt: skip
    assert again(experiment, tmp_path) == experiment


def test_an_empty_file_is_the_default_experiment():
    assert read("") == Experiment()


def test_arrays_of_a_script_are_not_written_and_their_absence_is_named(tmp_path: Path):
    source = Arrays(np.zeros((4, 2)), [np.int64(0), 1, 0, 1], names=["no", "yes"])
    text = experiment_to_toml(Experiment(data=Data(source=source)))
    assert 'kind = "arrays"' in text and "yes" in text
    with pytest.raises(ConfigError, match=r"data\.source\.x is missing"):
        read(text)


def test_a_label_names_the_variant_that_the_fields_are():
    assert method_label(FedProto()) == "fedproto"
    assert method_label(FedProto(**FedProto.variants["htfllib"])) == "fedproto@htfllib"
    assert method_label(FedProto(pull=3.0)) == "fedproto"


# Words that stand for tables, and changes on the command line


def test_a_word_stands_for_a_table():
    short = read('method = "fedproto@htfllib"\nengine = "inline"\n[data]\nsource = "digits"\npartition = "iid"')
    long = read(
        '[method]\nname = "fedproto"\ntaken = "during"\nmissing = "drop"\n[engine]\nname = "inline"\n'
        '[data]\nsource = { kind = "digits" }\npartition = { kind = "iid" }'
    )
    assert short == long


def test_a_setting_beside_a_variant_wins():
    method = read('method = { name = "fedproto@paper", pull = 4.0 }').method
    assert (method.pull, method.average) == (4.0, "literal")


MLP = {"name": "mlp", "hidden": [8]}


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("rounds=3", "rounds", 3),
        ("fraction=1", "fraction", 1.0),
        ("method.pull=2", "method.pull", 2.0),
        ("method.pull=1e-3", "method.pull", 0.001),
        ("method=local", "method", Local()),
        ("data.split.stratify=false", "data.split.stratify", False),
        ("data.partition.alpha=5", "data.partition.alpha", 5.0),
        ("data.seed=4", "data.seed", 4),
        ("models.family=cnn4", "models.family", "cnn4"),
        ('models.members=["cnn4", {name="mlp", hidden=[8]}]', "models.members", ("cnn4", MLP)),
        ("engine=inline", "engine", Engine("inline")),
        ("engine.threads=2", "engine.threads", 2),
    ],
)
def test_a_change_is_read_as_toml_where_it_can_be(change: str, path: str, value: object):
    found: Any = read('method = "fedproto"\n[data]\npartition = "dirichlet"', change)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value and type(found) is type(value)


def test_later_changes_win_and_the_given_table_stays_as_it_is():
    table = {"method": {"name": "fedproto", "pull": 1.0}}
    assert override(table, ["method.pull=2", "method.pull=3"]) == {"method": {"name": "fedproto", "pull": 3}}
    assert table == {"method": {"name": "fedproto", "pull": 1.0}}


def test_another_method_drops_the_settings_of_the_former_and_the_same_keeps_them():
    text = '[method]\nname = "fedproto"\npull = 3.0'
    assert read(text, "method.name=local").method == Local()
    assert read(text, "method.name=fedproto").method == FedProto(pull=3.0)
    assert read(text, "method.name=fedproto@htfllib").method.pull == 10.0
    assert read(text, "method.name=local", "method.name=fedproto", "method.pull=4").method.pull == 4.0


def test_another_engine_keeps_threads():
    assert read("engine = { threads = 2 }", "engine.name=inline").engine == Engine("inline", threads=2)


# What is refused


NAMES = {
    "round = 3": "round is not a setting.\n  Did you mean rounds?",
    "training.momentun = 0.9": "training.momentun is not a setting of training.\n  Did you mean training.momentum?",
    'data.sorce = "digits"': "data.sorce is not a setting of data.\n  Did you mean data.source?",
    'data.source = "digit"': "data.source.kind: 'digit' is not among the sources.  Did you mean digits?",
    'data.source = "digits@small"': "digits has no variant 'small'.  There is: none.",
    'data.partition = "dirichlett"': "data.partition.kind: 'dirichlett' is not among the partitions.  Did you mean di",
    'data.partition = { kind = "shards", alpha = 1 }': "data.partition.alpha is not a setting of shards.",
    'method = "fedprotto"': "method.name: 'fedprotto' is not among the methods.  Did you mean fedproto?",
    'method = "fedproto@htflib"': "fedproto has no variant 'htflib'.  Did you mean htfllib?",
    'method = { name = "fedproto", pul = 1 }': "method.pul is not a setting of fedproto.\n  Did you mean method.pull?",
    'models.family = "htcn8"': "'htcn8' is neither a family of models nor an architecture.  Did you mean htcnn8?",
    'models.members = ["tiny_cn"]': "'tiny_cn' is not an architecture.  Did you mean tiny_cnn?",
    "models.members = [{ hidden = [3] }]": "{'hidden': [3]} names no architecture.  Write it as { name = ",
    'models.server = "tiny_cn"': "'tiny_cn' is not an architecture.  Did you mean tiny_cnn?",
    'evaluation.rules = ["blend"]': "evaluation.rules[0].name: 'blend' is not among the rules: it stands for a rule "
    "that every run has.  To let it answer, set evaluation.answer=blend.",
    'engine = "inlin"': "'inlin' is not among the engines.  Did you mean inline?",
}
VALUES = {
    'rounds = "3"': "rounds = '3': input should be a valid integer.",
    "rounds = 2.0": "rounds = 2.0: input should be a valid integer.",
    "rounds = true": "rounds = True: input should be a valid integer.",
    "rounds = 2024-01-01": "rounds = datetime.date(2024, 1, 1): input should be a valid integer.",
    "rounds = 0": "rounds = 0: input should be greater than 0.",
    "fraction = 1.5": "fraction = 1.5: input should be less than or equal to 1.",
    "training.lr = nan": "training.lr = nan: input should be a finite number.",
    'device = "gpu"': "device = 'gpu': input should be 'auto', 'cpu', 'cuda' or 'mps'.",
    "models.members = 3": "models.members = 3: input should be a valid tuple.",
    'method = { name = "fedproto", answer = "blend" }': (
        "method.answer = 'blend': input should be 'global', 'local' or 'head'.  To let the rule blend of all runs "
        "answer, set evaluation.answer=blend."
    ),
    'method = { name = "fedproto", pull = "much" }': "method.pull = 'much': input should be a valid number.",
    'method = { name = "fedproto", pull = -1 }': "method.pull = -1: input should be greater than or equal to 0.",
    'data.partition = { kind = "shards", shards_per_client = [2] }': "data.partition.shards_per_client = [2]: input",
    'data.source = { kind = "csv", path = "a.csv" }': "data.source.label is missing.  It has: path, label, key (",
    "data = 3": "data must be a table of settings; found 3.",
    "method = 3": 'method must say which one by name = "...".  There is: ',
}
TOGETHER = {
    'method = "lg_fedavg"\nmodels.family = "htc4"': "lg_fedavg needs heads that are all the same; "
    "models.family=htc4 has heads of different shape.  Use a family that differs in its bodies only, such as htfe8",
    'method = "lg_fedavg"\nmodels.members = ["mlp", { name = "mlp", head = [9] }]': "lg_fedavg needs heads that "
    "are all the same; models.members has heads of different shape.",
    f'method = "{HERE}:Averages"': "averages needs models that are all the same; models.family=tiny5 has "
    "several kinds.  Set models.family to one architecture, such as cnn4.",
    f'method = "{HERE}:Public"': "public needs public data, and data.public is 0.  Set, for example, data.public=500.",
    f'method = "{HERE}:Serves"': "serves needs a model on the server.  Set, for example, models.server=",
    "min_replies = 3\nfraction = 0.2": "min_replies is 3, but only 2 of 10 clients take part in a round.  "
    "Lower min_replies, or raise fraction.",
}
PLUG_INS = {
    f'method = {{ name = "{HERE}:Own", puls = 2 }}': "method.puls is not a setting of own.\n"
    "  Did you mean method.pulls?  It has: pulls (default 1).",
    f'method = {{ name = "{HERE}:Own", pulls = 1.5 }}': "method.pulls = 1.5: input should be a valid integer",
    f'method = "{HERE}:Owns"': f"method.name: methods '{HERE}:Owns': module {HERE} has no 'Owns'.",
    'method = "no_such.x:Own"': "method.name: methods 'no_such.x:Own': no module 'no_such' to import.  It is looked "
    "for beside the experiment file and where Python looks; install its package, or set PYTHONPATH to the folder it "
    "is in.",
    'method = "os:getcwd"': "method.name: os:getcwd is not a frozen dataclass, as all methods are.",
    'method = "protea.data:Iid"': "method is Iid(), which is not derived from protea.Method.",
    'method = ":Own"': "method.name: ':Own' is not among the methods.",
}
BAD = NAMES | VALUES | TOGETHER | PLUG_INS


@pytest.mark.parametrize(("text", "complaint"), BAD.items(), ids=BAD)
def test_a_bad_file_is_refused_in_words_that_help(text: str, complaint: str):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(f"exp.toml: {complaint}")


def test_a_split_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(ConfigError, match=r"test = 0\.6 and validation = 0\.5 leave nothing to train on"):
        read("data.split = { test = 0.6, validation = 0.5 }")


def test_names_that_are_not_found_are_plugin_errors():
    for text in ('method = "x"', 'data.source = "x"', 'models.family = "x"', 'engine = "x"', 'method = "x.y:Z"'):
        with pytest.raises(PluginError):
            read(text)


def test_alone_is_no_method_and_no_plug_in_can_be_called_so(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        PluginError, match="'alone' is not among the methods: it stands for any method with each client"
    ):
        read('method = "alone"')
    point = EntryPoint("alone", f"{HERE}:Own", "protea.methods")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "protea.methods" else [])
    with pytest.raises(PluginError, match=f"The plug-in {HERE}:Own needs another name"):
        registry.find("methods", "alone")
    assert "alone" not in registry.table.__wrapped__("methods")


def test_protection_needs_held_out_samples():
    with pytest.raises(ConfigError, match=r"data\.split\.validation is 0\.  Set, for example"):
        read("protect = true\ndata.split.validation = 0.0")


@pytest.mark.parametrize(
    ("text", "label"),
    [("", "fedproto"), ("alone = true", "fedproto alone"), ("protect = true", "fedproto protected"),
     ('method = "fedtgp@code"\nalone = true\nprotect = true', "fedtgp@code alone protected")],
)  # fmt: skip
def test_how_a_method_is_played_is_in_its_name(text: str, label: str):
    experiment = read(text)
    assert experiment.label == method_label(method_of(experiment)) == label


def test_a_change_without_a_value_is_refused():
    for change in ("rounds", "=3", ""):
        with pytest.raises(ConfigError, match=r"Write setting=value, such as method\.pull=1"):
            override({}, [change])


def test_a_file_that_is_not_there_or_not_toml_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"exp\.toml does not exist.*examples/digits\.toml is one to start from"):
        load_experiment(tmp_path / "exp.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_experiment(tmp_path)
    for content in (b"rounds 3", b"rounds = 3\nrounds = 4", b"\xff\xfe"):
        (tmp_path / "exp.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"exp\.toml is not a TOML file"):
            load_experiment(tmp_path / "exp.toml")


def test_what_a_method_needs_can_be_given():
    assert read(f'method = "{HERE}:Averages"\nmodels.family = "mlp"').method == Averages()
    assert read(f'method = "{HERE}:Public"\ndata.public = 1').method == Public()
    assert read(f'method = "{HERE}:Serves"\nmodels.server = "mlp"').method == Serves()
    assert read('method = "lg_fedavg"\nmodels.members = ["mlp", "tiny_cnn"]').models.members == ("mlp", "tiny_cnn")


OBJECT = "expected is an object of a frozen dataclass, such as"


@pytest.mark.parametrize(
    ("experiment", "complaint"),
    [
        (Experiment(rounds=-1), "rounds = -1: input should be greater than 0."),
        (Experiment(rounds="3"), "rounds = '3': input should be a valid integer."),
        (Experiment(training=Training(lr=0.0)), "training.lr = 0.0: input should be greater than 0."),
        (Experiment(data=Data(split=Split(stratify=2))), "data.split.stratify = 2: input should be a valid boolean."),
        (Experiment(data=Data(source=Csv("a", label=3))), "data.source.label = 3: input should be a valid string."),
        (Experiment(models=Models(family="tiny6")), "'tiny6' is neither a family of models nor an architecture."),
        (Experiment(method=FedProto(pull=-1.0)), "method.pull = -1.0: input should be greater than or equal to 0."),
        (Experiment(method="fedproto"), f"method is 'fedproto'; {OBJECT} FedProto()."),
        (Experiment(method=FedProto), f"method is <class 'protea.methods.fedproto.FedProto'>; {OBJECT} FedProto()."),
        (Experiment(models="tiny5"), f"models is 'tiny5'; {OBJECT} Models()."),
        (Experiment(data={"public": 3}), f"data is {{'public': 3}}; {OBJECT} Data()."),
        (
            Experiment(training=Evaluation()),
            f"training is {Evaluation()!r}; {OBJECT} Training().",
        ),
        (Experiment(fraction=0.1, min_replies=2), "min_replies is 2, but only 1 of 10 clients take part in a round."),
    ],
)
def test_an_experiment_made_in_python_is_checked_as_strictly_before_any_work(experiment: Experiment, complaint: str):
    with pytest.raises(ConfigError) as caught:
        protea.run(experiment)
    assert str(caught.value).startswith(f"experiment: {complaint}")


def test_a_method_that_is_no_dataclass_is_refused():
    class Plain(Method[None, None]): ...

    with pytest.raises(ConfigError, match=OBJECT):
        Experiment(method=Plain()).check()


def test_a_device_that_is_not_there_is_named():
    device = next(name for name in ("mps", "cuda") if not there(name))
    with pytest.raises(ConfigError, match=f"device is '{device}', which torch does not find.*Set device=cpu or auto"):
        protea.run(Experiment(device=device))


def there(device: str) -> bool:
    import torch

    return torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available()


def test_a_plug_in_comes_back_from_its_file(tmp_path: Path):
    experiment = Experiment(method=Own(pulls=4))
    assert again(experiment, tmp_path) == experiment
    assert method_label(experiment.method) == "own"
    assert replace(experiment, method=Own()) != experiment


@dataclass(frozen=True)
class Own(Method[None, None]):
    pulls: int = 1


@dataclass(frozen=True)
class Averages(Local):
    needs = Needs(same_architecture=True)


@dataclass(frozen=True)
class Public(Local):
    needs = Needs(public_data=True)


@dataclass(frozen=True)
class Serves(Local):
    needs = Needs(server_model=True)


def test_a_table_that_names_no_kind_is_of_the_default_one():
    assert read("method.pull = 2.0").method == FedProto(pull=2.0)
    assert read("data.partition.alpha = 0.5").data.partition.alpha == 0.5


def test_the_order_of_changes_does_not_matter():
    table = {"method": {"name": "fedproto", "pull": 5.0}}
    changes = ["method.pull=3", "method.name=fedproto@paper"]
    for order in (changes, changes[::-1]):
        method = experiment_from_table(override(table, order)).method
        assert method.pull == 3 and method.average == "literal"


def test_an_infinite_setting_survives_the_way_to_the_file_and_back(tmp_path):
    """JSON has no infinity, but TOML has."""
    experiment = replace(Experiment(), method=FedProto(pull=float("inf")))
    (tmp_path / "exp.toml").write_text(experiment_to_toml(experiment))
    assert load_experiment(tmp_path / "exp.toml") == experiment


@pytest.mark.parametrize("engine", [Inline, Processes])
@pytest.mark.parametrize("setting", ["address", "gpus"])
def test_settings_of_a_cluster_are_refused_by_engines_without_one(engine: Any, setting: str):
    settings = Engine(engine.__name__.lower(), workers=1, **{setting: {"address": "auto", "gpus": 1}[setting]})
    with pytest.raises(ConfigError, match=rf"engine\.{setting} is set, and engine\.name={settings.name} has no use"):
        engine(toy.plan(Local(), toy.build, seed=1), settings)


def test_an_engine_whose_extra_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    for module in [name for name in sys.modules if name.startswith("protea.engines.ray")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError, match=re.escape(f"needs Ray, which is not installed.  Type: {install_hint('ray')}")
    ):
        read('engine = "ray"')
