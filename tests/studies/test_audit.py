"""The audit finds leaks that were planted, passes what is safe, and attacks what really left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protea
from protea import Client, Data, Engine, Experiment, Method, Models, Observer, Prototypes, Run, Server, Upload
from protea.clients.builder import FunctionBuilder
from protea.clients.plan import WorkerPlan
from protea.config import registry
from protea.config.attack import Attack
from protea.config.families import Member
from protea.config.sections import Checkpoint, Split
from protea.core.errors import ConfigError, PayloadError
from protea.core.payload import pack, unpack
from protea.core.rng import Streams
from protea.core.samples import Samples
from protea.core.training import Training
from protea.data import Dataset, Share
from protea.data.sources.digits import Digits
from protea.federation.jobs import Reply
from protea.filters.base import Filter, Passage, arrive_all
from protea.filters.clip import Clip
from protea.filters.quantize import Quantize
from protea.filters.secure_sum import SecureSum
from protea.methods.feddistill import FedDistill
from protea.methods.fedloo import FedLOO
from protea.methods.fedmd import FedMD
from protea.methods.fedpagr import FedPAGR
from protea.methods.fedproto import FedProto
from protea.methods.local import Local
from protea.models.maker import ModelMaker
from protea.studies.audit import AuditFinding, AuditResult, Rehearsal, Thresholds, attack, findings, subject_of_run
from protea.studies.audit.attack import silent
from protea.studies.audit.separation import separation, true_positives
from protea.studies.audit.shadows import half, likelihood_ratio
from protea.studies.audit.verdict import thresholds_from


@pytest.fixture
def thorough() -> None:
    """Inputs are reconstructed in as many steps as an audit takes: this test looks at them."""


@pytest.fixture(autouse=True)
def hasty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "thorough" not in request.fixturenames:
        monkeypatch.setattr("protea.studies.audit.inversion.STEPS", 5)


@cache
def digits() -> Dataset:
    return Digits().load()


def rows_of(label: int, start: int, count: int) -> torch.Tensor:
    """Some images of a digit, in an order of chance: in the file those of one writer stand together."""
    rows = (digits().y == label).nonzero().squeeze(1)
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(label))][start : start + count]


def share(train: dict[int, int], held_out: int = 20) -> Share:
    """So many training samples of each digit, and as many others of each for test and validation."""
    return Share(
        torch.cat([rows_of(label, 0, count) for label, count in train.items()]),
        torch.cat([rows_of(label, 60, held_out) for label in train]),
        torch.cat([rows_of(label, 60 + held_out, held_out) for label in train]),
    )


def rehearsal(
    method: Method[Any, Any],
    parts: Share,
    training: Training | None = None,
    filters: tuple[Filter, ...] = (),
    dim: int = 32,
    seed: int = 1,
    dataset: Dataset | None = None,
) -> Rehearsal:
    """A client with these digits and a small network, and the server of a federation that has no other."""
    dataset = dataset or digits()
    make = ModelMaker(Models("tiny_mlp", dim=dim), dataset.shape, dataset.classes)

    def build(id: int, streams: Streams) -> Client:
        with streams.default("model"):
            model = make(Member("tiny_mlp"))
        train, validation, test = (Samples(dataset, rows) for rows in (parts.train, parts.validation, parts.test))
        return Client(
            id, model, train, dataset.classes, dim, streams, training or Training(batch=10, lr=0.05), validation, test,
            make=make,
        )  # fmt: skip

    server = Server(dataset.classes, dim, Streams(seed).at("server"), make=make)
    method.start_server(server)

    def aggregate(server: Server, reply: Reply) -> None:
        at = Passage(0, reply.round, method.up, dataset.classes, dim, server.rng)
        method.aggregate(server, [Upload(0, unpack(method.up, arrive_all(filters, reply.up, at)), reply.samples)])

    plan = WorkerPlan(method, FunctionBuilder(build), seed, filters=filters)
    return Rehearsal("the client", plan, 0, server, aggregate, dataset, parts, reports=True)


def audited(method: Method[Any, Any], parts: Share, rounds: int = 1, shadows: int = 0, **more: Any) -> AuditResult:
    return attack(rehearsal(method, parts, **more).subject(rounds, silent), shadows=shadows)


def of(
    found: AuditResult | Sequence[AuditFinding], label: str, attack: str, knowledge: str | None = None
) -> AuditFinding:
    """The one finding of an attack, by an attacker who knows this."""
    rows = found.findings if isinstance(found, AuditResult) else found
    (one,) = [
        each for each in rows if (each.label, each.attack) == (label, attack) and knowledge in (None, each.knowledge)
    ]
    return one


# Planted leaks


@pytest.mark.usefixtures("thorough")
def test_the_record_of_a_one_sample_class_is_found_if_prototypes_are_taken_before_training_from_a_known_seed():
    found = audited(FedProto(taken="before"), share({0: 1, 1: 20, 2: 20}))

    linked = of(found, "0", "linkage", "first weights")
    assert (linked.number, linked.verdict) == (1, "leaks") and "exactly" in linked.words
    assert of(found, "0", "counts").verdict == "leaks"
    assert found.classes["0"] == "leaks" and found.verdict == "leaks"
    assert any("the model before the round's training" in note for note in found.notes)
    inverted = of(found, "0", "inversion", "first weights")
    assert inverted.number is not None and inverted.number > 0.6  # the image itself, nearly
    assert of(found, "1", "linkage", "first weights").verdict == "safe"


def test_with_a_secret_seed_nobody_has_the_first_weights():
    subject = replace(
        rehearsal(FedProto(taken="before"), share({0: 1, 1: 20, 2: 20})).subject(1, silent), seed_known=False
    )
    found = attack(subject, shadows=0)
    assert "first weights" not in {each.knowledge for each in found.findings}
    assert any("secret seed" in note for note in found.notes)


def test_an_overfitted_model_tells_who_was_in_its_training():
    """Labels of chance, so that there is nothing to learn but the samples themselves; it has learned these."""
    chance = torch.randint(2, (1797,), generator=torch.Generator().manual_seed(0))
    random = replace(digits(), y=chance)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(1))
    parts = Share(order[:40], order[40:80], order[80:120])
    often = Training(batch=5, lr=0.1, epochs=20)
    found = audited(FedProto(), parts, rounds=2, dataset=random, training=often, shadows=4)

    plain = [of(found, label, "membership", "client's model") for label in "01"]
    assert {each.verdict for each in plain} == {"leaks"} and min(each.number or 0 for each in plain) > 0.9
    assert all(each.low is not None and each.low > 0.7 for each in plain)
    whole = of([each for each in found.findings if each.measure == "AUC"], "", "shadows")
    assert whole.verdict == "leaks" and whole.number is not None and whole.number > 0.9
    told = of([each for each in found.findings if each.measure == "true positives"], "", "shadows")
    assert told.verdict == "leaks" and told.number is not None and told.number > 0.3
    assert found.classes == {"0": "leaks", "1": "leaks"}


def test_replies_on_one_test_sample_tell_of_that_sample():
    parts = share({0: 20, 1: 20, 2: 20})
    alone = replace(parts, test=torch.cat([rows_of(0, 100, 1), rows_of(1, 100, 3), rows_of(2, 100, 9)]))
    found = [each for each in audited(FedProto(), alone).findings if each.measure == "test samples"]
    assert {each.label: (each.number, each.verdict) for each in found} == {
        "0": (1, "leaks"), "1": (3, "watch"), "2": (9, "safe"),
    }  # fmt: skip


# What is safe


@pytest.mark.usefixtures("thorough")
def test_large_classes_and_a_model_that_does_not_overfit_are_safe():
    found = audited(FedProto(), share(dict.fromkeys(range(3), 60), held_out=50), shadows=4)
    assert not [each for each in found.findings if each.verdict != "safe"]
    assert found.classes == {"0": "safe", "1": "safe", "2": "safe"} and found.verdict == "safe"
    everything = {"counts", "linkage", "membership", "shadows", "inversion", "labels", "replies"}
    assert {each.attack for each in found.findings} == everything
    assert {each.knowledge for each in found.findings} >= {"own model", "first weights", "client's model"}


def test_thresholds_are_the_users():
    strict = thresholds_from(["samples=61", "auc_watch=0.4"])
    assert strict == Thresholds(samples=61, auc_watch=0.4)
    parts = share(dict.fromkeys(range(3), 60), held_out=50)
    rows = findings(rehearsal(FedProto(), parts).subject(1, silent), strict, shadows=0)
    assert {each.verdict for each in rows if each.attack == "counts"} == {"leaks"}
    with pytest.raises(ConfigError, match=r"(?s)auc_leak is not a setting.*Did you mean auc_leaks"):
        thresholds_from(["auc_leak=1"])
    with pytest.raises(ConfigError, match="auc_leaks"):
        thresholds_from(["auc_leaks=2"])


# What left, by method and filter


def test_counts_that_do_not_leave_are_not_told():
    found = audited(FedPAGR(), share({0: 3, 1: 20, 2: 20}))
    sizes = {each.label: (each.number, each.verdict) for each in found.findings if each.attack == "counts"}
    assert sizes == {"0": (1, "watch"), "1": (1, "safe"), "2": (1, "safe")}
    assert any("features of length 1" in note for note in found.notes)
    (told,) = [each for each in found.findings if each.attack == "labels" and each.measure == "samples told"]
    assert told.number == 43 and "exactly: 43" in told.words


def test_vectors_that_are_mean_scores_are_known_as_such():
    found = audited(FedDistill(taken="after"), share({0: 10, 1: 10, 2: 10}))
    assert any("class means of the class scores" in note for note in found.notes)
    assert of(found, "0", "membership", "client's model").number is not None


def test_a_map_that_all_parties_have_needs_no_model_and_all_rounds_count():
    """FedLOO sends another part of a class's samples in each round, five at least: of 20 samples four means leave."""
    found = audited(FedLOO(), share({0: 4, 1: 20}), rounds=4)
    assert {each.knowledge for each in found.findings} == {"uploads", "replies"}
    held, sent = of(found, "0", "counts"), of(found, "1", "counts")
    assert held.number is None and "No vector left" in held.words
    assert (sent.number, sent.verdict) == (20, "safe") and "behind 4 vectors" in sent.words
    assert of(found, "1", "inversion").number is not None
    assert found.presence == {"1": [1, 2, 3, 4]}


def test_filters_apply_before_the_attack_and_are_read_as_the_receiver_reads_them():
    filters = (Clip(0.5), Quantize("int8"))
    subject = rehearsal(FedProto(), share({0: 10, 1: 10}), filters=filters).subject(1, silent)
    last = subject.departures[-1]
    assert "vectors~int8" in last.up
    sent = subject.sent(last.up, 1)
    assert sent is not None and sent.present.tolist()[:3] == [True, True, False]
    assert sent.vectors.norm(dim=1).max() <= 0.51
    shadow = attack(subject, shadows=2)  # whose uploads pass the same filters
    assert of(shadow, "0", "shadows").number is not None


class Noisy(Filter):
    """Nothing of a vector is left."""

    def leave(self, up: Any, at: Passage) -> Any:
        return {**up, "vectors": torch.randn(up["vectors"].shape, generator=at.rng.generator("noise"))}


@pytest.mark.usefixtures("thorough")
def test_vectors_that_are_means_of_nothing_known_are_called_so():
    found = audited(FedProto(), share({0: 20, 1: 20, 2: 20}), filters=(Noisy(),))
    assert any("no class means by any map" in note for note in found.notes)
    assert {each.verdict for each in found.findings if each.attack in ("linkage", "inversion")} == {"safe"}


class Sealed(Filter):
    """What nobody can open alone."""

    def leave(self, up: Any, at: Passage) -> Any:
        return {"sealed": torch.zeros(3)}

    def arrive(self, up: Any, at: Passage) -> Any:
        raise PayloadError("it is sealed.")


def test_what_the_receiver_cannot_read_is_not_attacked_and_that_is_said():
    played = rehearsal(FedProto(), share({0: 20, 1: 20}), filters=(Sealed(),))
    found = attack(replace(played, aggregate=lambda server, reply: None).subject(1, silent), shadows=0)
    assert any("cannot read it (it is sealed.)" in note for note in found.notes)
    assert {each.attack for each in found.findings if each.number is not None} == {"labels", "replies"}


@pytest.mark.parametrize("name", ["fedavg", "lg_fedavg"])
def test_methods_without_class_vectors_are_audited_by_their_replies_alone(name: str):
    method = registry.find("methods", name)()
    found = audited(method, share({0: 20, 1: 20}))
    assert any("sends no class vectors" in note and "no sign of safety" in note for note in found.notes)
    assert found.classes == {"0": "watch", "1": "watch"} and "Not attacked" in of(found, "0", "counts", "uploads").words
    assert {each.attack for each in found.findings if each.number is not None} == {"labels", "replies"}


def test_the_same_subject_has_the_same_findings():
    parts = share({0: 10, 1: 10})
    assert audited(FedProto(), parts, shadows=2).findings == audited(FedProto(), parts, shadows=2).findings


# Runs

SMALL = Experiment(
    rounds=4,
    clients=3,
    data=Data(samples=300),
    models=Models("tiny_mlp", dim=16),
    training=Training(batch=16),
    checkpoint=Checkpoint(every=1, keep=2),
    engine=Engine("inline"),
)


class Overheard(Observer):
    """What clients really sent, as somebody on the wire hears it."""

    def __init__(self) -> None:
        self.uploads: dict[tuple[int, int], dict[str, torch.Tensor]] = {}

    def replied(self, reply: Reply) -> None:
        if reply.samples:
            self.uploads[reply.client, reply.round] = reply.up


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Overheard]:
    path, overheard = tmp_path_factory.mktemp("audit") / "run", Overheard()
    Run(SMALL, path, observers=[overheard]).finish()
    return path, overheard


@pytest.mark.parametrize("rounds", [1, 4])
def test_what_is_attacked_is_what_left_bit_by_bit(small: tuple[Path, Overheard], rounds: int):
    path, overheard = small
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    subject = subject_of_run(path, 1, rounds, silent)
    assert [each.round for each in subject.departures] == list(range(5 - rounds, 5))
    for each in subject.departures:
        sent = overheard.uploads[1, each.round]
        assert sent.keys() == each.up.keys() and all(torch.equal(sent[name], each.up[name]) for name in sent)
    assert any("bit by bit" in sentence for sentence in subject.attacked)
    assert subject.members == len(protea.load(path).client(1).client.train)
    assert len(subject.records) == 1797 and {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_under_a_secure_sum_there_is_nothing_to_read_in_one_upload(tmp_path: Path):
    """Attacked is the upload under its mask, not the keys that leave with the training."""
    Run(replace(SMALL, filters=(SecureSum(),)), tmp_path / "run").finish()
    subject = subject_of_run(tmp_path / "run", 1, 2, silent)
    assert {tensor.dtype for each in subject.departures for tensor in each.up.values()} == {torch.int64}
    found = attack(subject, shadows=2)
    assert any("leaves under a mask" in note and "not audited" in note for note in found.notes)
    assert "safe" not in found.classes.values()  # nobody has tried
    assert {each.attack for each in found.findings if each.number is not None} <= {"labels", "replies"}
    assert any(each.words.startswith("No number of training samples") for each in found.findings)


@pytest.mark.parametrize("more", [{"protect": True}, {"attack": Attack("backdoor", (0,))}], ids=["protect", "backdoor"])
def test_rules_beside_the_built_in_ones_are_no_hindrance(tmp_path: Path, more: dict[str, Any]):
    """A client that is protected answers by ``alone`` too, and beside a backdoor by ``triggered``."""
    run = replace(SMALL, data=replace(SMALL.data, split=Split(0.2, 0.2)), rounds=1, **more)
    Run(run, tmp_path / "run").finish()
    found = attack(subject_of_run(tmp_path / "run", 1, 1, silent), shadows=0)
    assert [each for each in found.findings if each.measure == "test samples"]


def test_without_a_name_the_client_with_the_smallest_class_is_audited(small: tuple[Path, Overheard]):
    path, _ = small
    subject = subject_of_run(path, None, 1, silent)
    counts = [protea.load(path).client(id).client.train.counts(10) for id in range(3)]
    smallest = [int(each[each > 0].min()) for each in counts]
    assert smallest[subject.client] == min(smallest)


def test_a_run_that_cannot_be_audited_says_why(small: tuple[Path, Overheard], tmp_path: Path):
    path, _ = small
    with pytest.raises(ConfigError, match="no client 3: this run has those from 0 to 2"):
        subject_of_run(path, 3, 1, silent)
    with pytest.raises(ConfigError, match="is not a run directory"):
        subject_of_run(tmp_path, None, 1, silent)
    begun = Run(replace(SMALL, checkpoint=Checkpoint(every=4)), tmp_path / "begun")
    begun.step()
    begun.close()
    with pytest.raises(ConfigError, match="has no checkpoint, so nobody knows what left"):
        subject_of_run(tmp_path / "begun", None, 1, silent)
    network = tmp_path / "network"
    network.mkdir()
    (network / "config.toml").write_text("quorum = 2\n")
    with pytest.raises(ConfigError, match=r"at its sites.*protea audit SITE"):
        subject_of_run(network, None, 1, silent)
    Run(replace(SMALL, rounds=2, method=Local()), tmp_path / "local").finish()
    nothing = attack(subject_of_run(tmp_path / "local", 0, 1, silent), shadows=0)
    assert any("sends no class vectors but nothing" in note for note in nothing.notes)


def test_a_method_that_sends_answers_on_public_samples_is_named_as_not_attacked(tmp_path: Path):
    experiment = replace(SMALL, rounds=1, method=FedMD(), data=Data(samples=300, public=40))
    Run(experiment, tmp_path / "run").finish()
    found = attack(subject_of_run(tmp_path / "run", 0, 1, silent), shadows=0)
    assert any("FedMD sends no class vectors" in note for note in found.notes)


# Numbers worked out by hand


def test_separation_of_three_members_from_four_others():
    """Of 3 x 4 pairs the member is above in 4 + 3 + 1; it ties in one.  One of three is above all others."""
    members, others = np.array([9.0, 3.0, 1.0]), np.array([0.0, 1.0, 2.0, 3.5])
    found = separation(members, others, np.random.default_rng(0))
    assert found is not None and found.auc == pytest.approx((4 + 3 + 1 + 0.5) / 12)
    assert found.tpr == true_positives(members, others) == pytest.approx(1 / 3)
    assert found.low < 0.5 < found.auc < found.high <= 1  # three members prove nothing
    assert separation(members, others[:2], np.random.default_rng(0)) is None


def test_many_members_above_all_others_are_certain():
    found = separation(np.arange(50.0) + 100, np.arange(80.0), np.random.default_rng(0), groups=10)
    assert found is not None and (found.auc, found.tpr) == (1, 1) and found.low > 0.85


def test_halves_complement_each_other():
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    for pair in (0, 1):
        first, second = half(labels, 2 * pair), half(labels, 2 * pair + 1)
        assert torch.equal(first, ~second) and int(first[:3].sum()) in (1, 2)


def test_the_likelihood_ratio_of_a_score_between_two_normal_distributions():
    """In shadows with the record 3 and 5, without it -1 and 1; so means 4 and 0, both of variance 2.

    A score of 4 is a member's by 4^2 / (2 * 2) = 4 in logs.
    """
    near = torch.tensor([[3.0], [5.0], [-1.0], [1.0]], dtype=torch.float64)
    inside = torch.tensor([[True], [True], [False], [False]])
    found = likelihood_ratio(torch.tensor([4.0], dtype=torch.float64), near, inside, torch.tensor([0]))
    assert math.isclose(found.item(), 4.0)


def test_what_leaves_shares_no_memory_with_what_is_kept(small: tuple[Path, Overheard]):
    subject = subject_of_run(small[0], 0, 1, silent)
    kept = {name: t.clone() for name, t in subject.departures[-1].up.items()}
    attack(subject, shadows=2)
    assert all(torch.equal(kept[name], t) for name, t in subject.departures[-1].up.items())
    assert isinstance(subject.sent(kept, 1), Prototypes) and pack(subject.sent(kept, 1)).keys() == kept.keys()
