"""What all parties agree on: read, written, and refused before any work."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load
from sklearn.datasets import load_digits

from protea.config.registry import find
from protea.config.registry import table as plugged
from protea.core.errors import ConfigError, ProteaError
from protea.methods.fedproto import FedProto
from protea.methods.fedtgp import FedTGP
from protea.network import task as tasks
from protea.network.task import Task, new_task, parse_task, read_public_inputs, task_to_toml

SMALL = Task(("cat", "dog"))
SHARED = {"classes": ["cat", "dog"]}


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        parse_task(text, "task.toml")
    return str(refusal.value)


def test_what_is_not_said_has_a_value() -> None:
    task = parse_task('classes = ["cat", "dog"]', "task.toml")
    assert task == SMALL and task.method == FedProto() and task.quorum == 2 and task.evaluation.shared == "never"


def impossible(method: str) -> bool:
    needs = find("methods", method)().needs
    return bool(needs.same_architecture or needs.public_labels)


@pytest.mark.parametrize("method", sorted(filter(impossible, plugged("methods"))))
def test_methods_that_cannot_be_between_sites_are_refused(method: str) -> None:
    table = {**SHARED, "shape": [1, 8, 8], "method": {"name": method}}
    with pytest.raises(ConfigError, match=r"sites bring their own|Set method\.public_epochs=0"):
        new_task(table, [])


def test_fedmd_without_labels_of_public_samples_is_possible() -> None:
    new_task({**SHARED, "shape": [1, 8, 8], "method": {"name": "fedmd", "public_epochs": 0}}, [])


@pytest.mark.parametrize("method", sorted(set(plugged("methods")) - set(filter(impossible, plugged("methods")))))
def test_a_task_is_read_as_it_was_written(method: str, tmp_path: Path) -> None:
    table = {**SHARED, "shape": [1, 8, 8], "method": {"name": method}, "models": {"server": "mlp"}}
    task = new_task(table, ["rounds=7", "deadline=12.5", "training.lr=0.003", "limits.upload=1MB"])
    (tmp_path / "task.toml").write_text(task_to_toml(task))
    again = tasks.load_task(tmp_path / "task.toml")
    assert again == task and again.mark() == task.mark() and task_to_toml(again) == task_to_toml(task)
    assert (task.rounds, task.deadline, task.training.lr, task.shape) == (7, 12.5, 0.003, (1, 8, 8))


CHANGES = [
    *(
        'classes=["dog", "cat"]',
        "rounds=51",
        "fraction=0.5",
        "quorum=3",
        "deadline=1.0",
        "late=3.0",
        "patience=61.0",
        "seed=2",
    ),
    *("shape=[8]", "method.pull=2.0", "models.dim=64", "training.lr=0.02", "evaluation.every=2", "limits.norm=10.0"),
    *('filters=["clip"]', "protect=true"),
]


def test_the_mark_changes_with_any_setting() -> None:
    assert {change.partition("=")[0].partition(".")[0] for change in CHANGES} == {f.name for f in fields(Task)}
    marks = [new_task(SHARED, [change]).mark() for change in CHANGES]
    assert len({SMALL.mark(), *marks}) == len(CHANGES) + 1
    assert new_task(SHARED, []).mark() == SMALL.mark()


def test_the_mark_does_not_depend_on_how_a_task_is_written() -> None:
    text = '[method]\nname = "fedproto"\n[models]\ndim = 128'
    assert parse_task('# ours\nrounds = 50\nclasses = ["cat", "dog"]\n' + text, "task.toml").mark() == SMALL.mark()


WRONG = {
    "no classes": ("", "classes is missing"),
    "one class": ('classes = ["cat"]', "two or more different names; found ['cat']"),
    "a class twice": ('classes = ["cat", "cat"]', "two or more different names"),
    "classes by number": ("classes = 3", "classes"),
    "no rounds": ('classes = ["a", "b"]\nrounds = 0', "rounds"),
    "no quorum": ('classes = ["a", "b"]\nquorum = 0', "quorum"),
    "a deadline below zero": ('classes = ["a", "b"]\ndeadline = -1', "deadline"),
    "a fraction above one": ('classes = ["a", "b"]\nfraction = 1.5', "fraction"),
    "a name that is nearly right": ('classes = ["a", "b"]\nround = 3', "Did you mean rounds?"),
    "a setting of a method that is nearly right": (
        'classes = ["a", "b"]\n[method]\nname = "fedproto"\npul = 3',
        "Did you mean method.pull?",
    ),
    "a setting of training that is nearly right": ('classes = ["a", "b"]\n[training]\nlrr = 3', "training.lr?"),
    "a method that is nearly right": ('classes = ["a", "b"]\nmethod = "fedprot"', "Did you mean fedproto?"),
    "a size that is none": ('classes = ["a", "b"]\n[limits]\nupload = "much"', "is no size"),
    "a size beyond any machine": (
        f'classes = ["a", "b"]\n[limits]\nupload = "{"9" * 400}kB"',
        "more than a machine has",
    ),
    "no TOML": ("classes = [", "task.toml is not a TOML file"),
    "models that must be the same": (
        'classes = ["a", "b"]\nmethod = "fedproc@original"',
        "the method needs models that are all the same, and sites bring their own",
    ),
    "a server without a model": (
        'classes = ["a", "b"]\nmethod = "fedpkd"\nshape = [8]',
        "Set models.server to an architecture",
    ),
    "public data of no shape": (
        'classes = ["a", "b"]\nmethod = "fedpkd"\n[models]\nserver = "mlp"',
        "Set it: shape = [1, 28, 28]",
    ),
    "a server that makes a model of no shape": (
        'classes = ["a", "b"]\nmethod = "lg_fedavg"',
        "the method makes a model on the server",
    ),
    "answers of single samples": (
        'classes = ["a", "b"]\n[evaluation]\nshared = "last"',
        'evaluation.shared must be "never"',
    ),
    "features of single samples": ('classes = ["a", "b"]\n[evaluation]\nsnapshots = 1', "a site shows no features"),
    "sites that train alone": (
        'classes = ["a", "b"]\nalone = true',
        "a site that trains alone needs no network",
    ),
    "an evaluation before": ('classes = ["a", "b"]\n[evaluation]\nwhen = "before"', 'must be "after"'),
}


@pytest.mark.parametrize(("text", "complaint"), WRONG.values(), ids=WRONG)
def test_a_task_that_cannot_run_is_refused(text: str, complaint: str) -> None:
    words = refused(text)
    assert complaint in words and "task.toml" in words


def test_a_file_that_is_no_text_or_is_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_bytes(b'classes = ["\xff", "b"]')
    for name in ("task.toml", "other.toml"):
        with pytest.raises(ConfigError, match=f"{name} cannot be read"):
            tasks.load_task(tmp_path / name)


def test_what_a_coordinator_types_is_checked_as_a_file_is() -> None:
    assert new_task(SHARED, ["method.name=fedtgp", "rounds=3"]).method == FedTGP()
    with pytest.raises(ConfigError, match=r"command line: round (.|\n)*Did you mean rounds"):
        new_task(SHARED, ["round=3"])


def test_public_inputs_are_stored_as_models_see_them(tmp_path: Path) -> None:
    images = load_digits().images[:20]
    np.save(tmp_path / "floats.npy", images.astype(np.float32))
    np.save(tmp_path / "bytes.npy", images.astype(np.uint8))
    content, shape = read_public_inputs(tmp_path / "floats.npy")
    assert shape == [8, 8] and np.array_equal(load(content)["x"].numpy(), images.astype(np.float32))
    content, shape = read_public_inputs(tmp_path / "bytes.npy")
    assert shape == [1, 8, 8]
    assert np.array_equal(load(content)["x"][:, 0].numpy(), images.astype(np.uint8))


def test_public_inputs_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "number.npy", np.float32(3))
    np.save(tmp_path / "row.npy", np.zeros(5, np.float32))
    np.save(tmp_path / "none.npy", np.zeros((0, 5), np.float32))
    np.save(tmp_path / "nan.npy", np.full((2, 5), np.nan, np.float32))
    np.save(tmp_path / "names.npy", np.array([["a"], ["b"]]))
    np.save(tmp_path / "pickled.npy", np.array([[{}], [{}]], object), allow_pickle=True)
    np.savez(tmp_path / "many.npy", a=np.zeros((2, 5)))
    (tmp_path / "many.npy.npz").rename(tmp_path / "many.npy")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("x,y\n1,2\n")
    found = sorted(path.name for path in tmp_path.iterdir())
    assert len(found) == 9
    for name in [*found, "missing.npy"]:
        with pytest.raises(ProteaError):
            read_public_inputs(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [
        "method.name=os:system",
        "method.name=protea.methods.fedproto:FedProto",
        'models.members=[{name="torch.hub:load", source="local"}]',
        "models.server=torchvision:resnet18",
        "models.family=package.module:factory",
    ],
)
def test_a_task_cannot_bring_code_to_a_site(change: str) -> None:
    """A name of the form module:name would be imported, and called, wherever the task is read."""
    table = {"classes": ["a", "b"], "method": {"name": "fedproto"}}
    with pytest.raises(ConfigError, match="it cannot bring code to others"):
        new_task(table, [change])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("models.dim = 2000000000", "models.dim: 2,000,000,000; at most 65,536"),
        ("training.epochs = 1000000000000", "training.epochs"),
        ("training.batch = 1000000000000", "training.batch"),
        ("rounds = 1000000000000", "rounds"),
        ("deadline = inf", "deadline"),
        ("deadline = nan", "deadline"),
        ("late = inf", "late"),
        ("late = -1", "late"),
        ("patience = 1e300", "patience"),
        ("limits.norm = inf", r"limits\.norm"),
    ],
)
def test_numbers_by_which_it_would_never_end_are_refused_by_name(line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_task(f'classes = ["cat", "dog"]\n{line}', "task.toml")


@pytest.mark.parametrize("name", ["\\u001b[2Jcat", "cat\\n", "\\u202etac", "", "c" * 201])
def test_class_names_that_would_write_on_a_screen_are_refused(name: str) -> None:
    assert "no name that a screen can show" in refused(f'classes = ["{name}", "dog"]')


def test_tables_that_are_nested_too_deep_are_refused_and_do_not_end_the_process() -> None:
    assert "nested too deep" in refused(f"a = {'[' * 100_000}")
