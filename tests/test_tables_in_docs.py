"""The pages for people who come with numbers from elsewhere name only what there is, and what they say of it holds."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import pytest
import typer
from sklearn.datasets import load_digits

import protea
from protea.cli import app
from protea.config import registry
from protea.config.experiment import Experiment, experiment_from_table, load_experiment, method_label
from protea.config.families import FAMILIES, Member, Models
from protea.config.sections import Data, Engine, Evaluation, Split, participants
from protea.config.toml import override, settings_from_table
from protea.config.words import Protocol
from protea.core.errors import ConfigError
from protea.data.partition.algorithms import pathological
from protea.evaluation.rules import NAMES
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP
from protea.runs.reader import RunReader

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDE, WHY = DOCS / "from-htfllib.md", DOCS / "why-numbers-differ.md"
PAGES = [GUIDE, WHY]

# All of HtFLlib's command line, and what PFLlib has besides.
THEIRS = """
-go -dev -did -data -ncl -m -lbs -lr -ld -ldg -gr -tc -ls -algo -jr -rjr -nc -pv -t -eg -sfn -ab -fd -vs -ml -mfn -fs
-cdr -tsr -ssr -ts -tth -lam -nd -glr -hd -se -al -bt -mlr -Ts -Te -slr -mart -GPath -prompt -sbs -gbs -mu -sfd -mdb
-mqb -wu
-dlg -dlgg -bnpc -nnc -ften -K -lrp -M -itk -alk -sg -pls -tau -fte -dlr -L -lf -et -s -p -mo -klw
"""
FLAGS = THEIRS.split()
GROUPS = {"method": "methods", "data.partition": "partitions", "data.source": "sources"}
PLACEHOLDERS = {
    "a.b=c", "package.module:factory", "exp.toml", "fedtgp.toml", "samples.npz", "start/client-000.safetensors",
    "start/client-001.safetensors", "start/server.safetensors", "memory/NAME/...", "SplitModel.state_dict()",
}  # fmt: skip


def small(**changes: Any) -> Experiment:
    """Three clients, digits, two rounds."""
    return replace(
        Experiment(
            rounds=2,
            clients=3,
            method=FedTGP(server_epochs=2),
            data=Data(samples=200),
            models=Models(family="tiny_mlp", dim=16),
            engine=Engine(name="inline"),
            evaluation=Evaluation(shared="last"),
        ),
        **changes,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("guide") / "runs" / "first"
    protea.run(small(), directory)
    return directory


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def spans(page: Path) -> Iterator[str]:
    """What stands in backticks; in the guide not what is in the first column, which is the other libraries'."""
    for line in prose(page).splitlines():
        if page == GUIDE and line.startswith("|"):
            line = line.split("|", 2)[2]
        yield from re.findall(r"`([^`]+)`", line)


def commands(page: Path) -> list[str]:
    found = [span for span in spans(page) if span.startswith("protea ")]
    for block in blocks(page, "sh"):
        found += re.findall(r"protea [^;|&#\n]+", block.replace("\\\n", " "))
    return found


def names() -> set[str]:
    """Every name that an experiment file may have as a value."""
    found = {*FAMILIES, *NAMES, *get_args(Protocol)}
    for group in ("methods", "architectures", "sources", "partitions", "engines"):
        found |= set(registry.table(group))
    for name in registry.table("methods"):
        found |= {f"{name}@{variant}" for variant in registry.find("methods", name).variants}
    return found


def words(value: object) -> Iterator[str]:
    """Every key in a record, and its kind."""
    if isinstance(value, dict):
        yield from value
        yield str(value.get("kind"))
        for inner in value.values():
            yield from words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from words(inner)


def recorded(run: Path) -> set[str]:
    """Every name that a run leaves: files, folders, and what is in them."""
    reader = RunReader.read(run)
    records = [
        reader.summary,
        [line for record in reader.rounds for line in record.lines()],
        reader.data.line(),
        json.loads((run / "partition.json").read_text()),
    ]
    return {path.name for path in run.iterdir()} | set(words(records))


def bases(path: str) -> list[dict[str, Any]]:
    """Experiments in one of which a setting must exist: one for each kind that may have it."""
    for head, group in GROUPS.items():
        if path.startswith(f"{head}."):
            kinds = sorted(set(registry.table(group)) - {"arrays"})
            needed = {
                "npz": {"path": "x"},
                "csv": {"path": "x", "label": "y"},
                "folder": {"path": "x"},
                "file": {"path": "x"},
            }
            tag = "name" if head == "method" else "kind"
            tables_of = [{tag: kind, **needed.get(kind, {})} for kind in kinds]
            return [{"method": t} if head == "method" else {"data": {head.split(".")[1]: t}} for t in tables_of]
    return [{}]


def has(settings: object, path: list[str]) -> bool:
    if not path:
        return True
    known = {f.name: f for f in fields(settings)} if is_dataclass(settings) else {}
    if path[0] not in known:
        return False
    if path[1:] == [known[path[0]].metadata.get("tag")]:
        return True
    return has(getattr(settings, path[0]), path[1:])


def is_setting(span: str) -> bool:
    """Whether ``a.b`` is a setting; with ``= c``, whether it takes that value."""
    path, equals, value = (part.strip() for part in span.partition("="))
    for base in bases(path):
        try:
            changed = override(base, [f"{path}={value}"] if equals else [])
            if has(settings_from_table(Experiment, changed, "page"), path.split(".")):
                return True
        except ConfigError:
            continue
    return False


def is_member(span: str) -> bool:
    """An entry of ``models.members``: a table, or a name with its source."""
    if not span.startswith(("{", "torchvision:", "timm:")):
        return False
    entry = tomllib.loads(f"value = {span}")["value"] if span.startswith("{") else span
    return ":" in Member.of(entry).architecture or Member.of(entry).architecture in registry.table("architectures")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_on_the_page_exists(page: Path, run: Path):
    known = names() | recorded(run) | PLACEHOLDERS
    files = {str(path.relative_to(ROOT)) for path in [*(ROOT / "examples").iterdir(), *(ROOT / "tests").rglob("*.py")]}
    lost = []
    for span in spans(page):
        flag = page == GUIDE and span.split()[0] in FLAGS
        if flag or span.startswith("protea ") or span in known | files or is_member(span) or is_setting(span):
            continue
        lost.append(span)
    assert not lost, lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_the_page_can_be_typed(page: Path, tmp_path: Path):
    group: Any = typer.main.get_command(app.app)
    example = (ROOT / "examples" / "digits.toml").read_text(encoding="utf-8")
    for path in (tmp_path / "exp.toml", tmp_path / "runs" / "a" / "config.toml"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example, encoding="utf-8")
    for text in blocks(GUIDE, "toml"):
        (tmp_path / "fedtgp.toml").write_text(text, encoding="utf-8")
    assert commands(page)
    for command in commands(page):
        name, *rest = shlex.split(command)[1:]
        assert name in group.commands, command
        asked = group.get_command(click.Context(group), name)
        given = asked.make_context(name, rest).params if rest else {}
        if "config_file" in given:
            file = given["config_file"]
            path = ROOT / file if (ROOT / file).exists() else tmp_path / file
            load_experiment(path, given.get("changes") or [])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_on_the_page_leads_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        place = page.parent / path if path else page
        assert place.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], target


def test_every_experiment_on_the_pages_can_be_read():
    for page in PAGES:
        for text in blocks(page, "toml"):
            experiment_from_table(tomllib.loads(text), page.name)


def test_the_worked_example_is_what_its_flags_say():
    text, *_ = blocks(GUIDE, "toml")
    experiment = experiment_from_table(tomllib.loads(text))
    assert (experiment.method.pull, experiment.method.server_epochs, experiment.method.threshold) == (10, 100, 100)
    assert (experiment.method.server_batch, experiment.method.server_lr) == (10, 0.01)
    assert (experiment.rounds, experiment.clients, experiment.fraction) == (1000, 20, 1.0)
    assert (experiment.training.epochs, experiment.training.batch, experiment.training.lr) == (1, 10, 0.01)
    assert (experiment.models.family, experiment.models.dim) == ("htfe8", 512)
    assert method_label(experiment.method) == "fedtgp@code"


def test_every_flag_of_both_libraries_is_in_the_guide():
    theirs = " ".join(line.split("|")[1] for line in prose(GUIDE).splitlines() if line.startswith("|"))
    assert not set(FLAGS) - set(re.findall(r"`(-\w+)`", theirs))


def test_every_family_and_method_is_in_the_guide():
    found = {span.partition("@")[0] for span in spans(GUIDE)}
    assert not set(registry.table("methods")) - {"fedloo"} - found  # Protea's own, which nobody comes from
    assert (
        not set(FAMILIES) - {"tiny5", "fedpagr5", "minilm3", "clinicalbert3"} - found
    )  # these two are not of any code that users come from


def test_a_split_of_htfllib_is_brought_along(tmp_path: Path):
    """Its files: for each client one of training and one of test samples, each a pickled dict."""
    digits = load_digits()
    x, y = (digits.images[:120, None] / 8 - 1).astype(np.float32), digits.target[:120]
    parts = {"train": [range(40), range(50, 90)], "test": [range(40, 50), range(90, 120)]}
    for part, rows in parts.items():
        (tmp_path / "set" / part).mkdir(parents=True)
        for client, own in enumerate(rows):
            np.savez_compressed(tmp_path / "set" / part / f"{client}.npz", data={"x": x[own], "y": y[own]})  # type: ignore[arg-type]
    (text,) = [block for block in blocks(GUIDE, "toml") if 'kind = "pfllib"' in block]
    data = tomllib.loads(text)["data"]
    data["source"]["path"] = str(tmp_path / "set")
    table = {
        "rounds": 1,
        "clients": 2,
        "method": "local",
        "engine": "inline",
        "data": data,
        "models": {"family": "tiny_mlp", "dim": 16},
    }
    protea.run(experiment_from_table(table), tmp_path / "run")
    described = RunReader.read(tmp_path / "run").data.clients
    for client in range(2):
        for part, rows in parts.items():
            assert getattr(described[client], part) == np.bincount(y[rows[client]], minlength=10).tolist()


def test_accuracies_of_a_run_as_a_list(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(run.parent.parent)
    script = next(block for block in blocks(GUIDE, "python") if "accuracies" in block)
    found: dict[str, Any] = {}
    exec(compile(script, GUIDE.name, "exec"), found)
    assert found["accuracies"] == [record.accuracy for record in RunReader.read(run).rounds]
    assert len(found["accuracies"]) == 2


def test_evaluation_before_training_is_that_after_the_round_before():
    """So HtFLlib's place of evaluation changes no number but the first and the last."""
    experiment = small(rounds=3, method=FedProto())
    after, before = (
        [record.accuracy for record in protea.Run(replace(experiment, evaluation=Evaluation(when=when)))]
        for when in ("after", "before")
    )
    assert before[1:] == after[:-1]
    assert before[0] != after[0]


def test_rules_of_one_run_differ_though_the_models_are_the_same():
    """A classifier and prototypes of one model answer differently; without validation samples the last round counts."""
    experiment = small(method=FedProto(), data=Data(samples=200, split=Split(validation=0.0)))
    summary = protea.run(experiment).summary
    assert summary["test"]["method"] == summary["test"]["global_prototypes"] != summary["test"]["head"]
    assert summary["made"]["protocol"] == "final"


def test_fractions_of_clients_are_rounded():
    assert (participants(10, 0.15), int(10 * 0.15)) == (2, 1)


def test_the_iid_split_of_pfllib_is_uneven():
    labels = np.repeat(np.arange(10), 180)
    sizes = [len(p) for p in pathological(labels, 10, classes_per_client=10, seed=1, dialect="pfllib")]
    assert 0.4 < sizes[-1] / 1800 < 0.5 and max(sizes[:-1]) < 180


def test_every_test_that_a_page_names_is_there():
    root = Path(__file__).parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
    named = {(page.name, path) for page in pages for path in re.findall(r"\btests/[\w/]+\.py\b", page.read_text())}
    assert named and {(page, path) for page, path in named if not (root / path).is_file()} == set()
