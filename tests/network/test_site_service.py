"""What a site answers, what it never answers, and what it writes down about that."""

from __future__ import annotations

import hashlib
import json
import traceback
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
import torch

from protea.clients import durable
from protea.core.errors import ClientError, PayloadError
from protea.core.message import Named, from_bytes, to_bytes
from protea.core.prototypes import Prototypes
from protea.engines.messages import joined, parted, reply_from_bytes, reply_to_bytes
from protea.evaluation.scores import ClientScores
from protea.evaluation.server_side import Judged
from protea.federation.jobs import JobKind
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.audit import Audit
from protea.network.site.directory import Site
from protea.network.site.join import news_of
from protea.network.site.service import SiteService, discreet, without_secrets
from protea.network.trust.keys import Signer

SECRET = "Erika Mustermann"


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base")


@pytest.fixture
def site(tmp_path: Path, base: CoordinatorDirectory) -> Site:
    base.invite("south")
    return places.site(tmp_path / "north", base.invite("north"), policy=places.ALL)  # client 1


@pytest.fixture
def service(site: Site) -> SiteService:
    return SiteService(site)


def ask(
    service: SiteService, base: CoordinatorDirectory, task: JobKind, round: int, down: Named | None = None
) -> bytes:
    return service.handle("job", base.signer("job", places.job(task, round, 1, down)))


def lines(service: SiteService) -> list[dict[str, Any]]:
    return [] if not service.audit.path.exists() else list(service.audit.lines())


def kept(site: Site) -> dict[str, bytes]:
    """Every file of the site's state."""
    return {str(path): path.read_bytes() for path in (site.path / "state").rglob("*") if path.is_file()}


# What it answers


def test_a_signed_hello_is_answered(service: SiteService, base: CoordinatorDirectory) -> None:
    answer = service.handle("hello", base.signer("hello", to_bytes({}, task=base.task.mark())))
    assert from_bytes(answer) == ({}, {"site": "north", "model": "site.py:Sequential"})


def test_signed_jobs_are_answered(service: SiteService, base: CoordinatorDirectory) -> None:
    trained = reply_from_bytes(places.only(ask(service, base, "train", 1)))
    assert (trained.client, trained.round, trained.error) == (1, 1, None) and trained.samples == len(
        service.site.share.train
    )
    prototypes = Prototypes.from_flat(trained.up)
    prototypes.check(10, 16)
    assert prototypes.present.all()
    down = {"vectors": prototypes.vectors, "counts": prototypes.counts}
    judged = Judged(10, 16)
    reply = reply_from_bytes(places.only(ask(service, base, "evaluate", 1, down)))
    judged.take(reply.client, judged.read(reply.up))
    assert 0 < judged.scores("test")["method"].weighted <= 1
    assert len(judged.examined[1].of("test")["method"]) == len(service.site.share.test)


def test_several_jobs_in_one_message_are_answered_in_their_order(
    service: SiteService, base: CoordinatorDirectory
) -> None:
    parts = [places.only(places.job(task, 1, 1)) for task in ("train", "evaluate")]
    answers = parted(service.handle("job", base.signer("job", joined(parts))))
    assert [bool(reply_from_bytes(places.unsigned(each)).metrics) for each in answers] == [True, False] and len(
        lines(service)
    ) == 2


def test_nothing_of_this_machine_is_in_an_answer(service: SiteService, base: CoordinatorDirectory) -> None:
    reply = reply_from_bytes(places.only(ask(service, base, "train", 1)))
    assert (reply.process, reply.memory) == (0, 0) and reply.metrics.keys() == {"loss"}


def test_a_job_asked_twice_is_answered_with_the_same_bytes_and_trained_once(
    service: SiteService, site: Site, base: CoordinatorDirectory
) -> None:
    first = ask(service, base, "train", 1)
    state = kept(site)
    assert ask(service, base, "train", 1) == first  # with the same seconds
    assert ask(SiteService(Site(site.path)), base, "train", 1) == first  # also by another process
    assert kept(site) == state
    assert [line["blake2b"] for line in lines(service)] == [lines(service)[0]["blake2b"]] * 3  # each time it left


def test_the_end_is_noted(service: SiteService, site: Site, base: CoordinatorDirectory) -> None:
    service.handle("end", base.signer("end", to_bytes({}, round=base.task.rounds)))
    assert site.ended.exists() and lines(service)[0]["task"] == "end"


# What it never answers


def refused(service: SiteService, kind: str, message: bytes, complaint: str) -> None:
    """Refused, noted, and nothing trained or ended."""
    before, state = len(lines(service)), kept(service.site)
    with pytest.raises(PayloadError, match=complaint) as refusal:
        service.handle(kind, message)
    assert kept(service.site) == state and not service.site.ended.exists()
    noted = lines(service)[before:]
    assert [line["task"] for line in noted] == ["refused"]
    assert noted[0]["blake2b"] == hashlib.blake2b(str(refusal.value).encode(), digest_size=16).hexdigest()


def test_what_is_not_signed_by_the_coordinator_is_refused(service: SiteService, base: CoordinatorDirectory) -> None:
    other = Signer(Signer.make())
    hello, job, end = to_bytes({}, task=base.task.mark()), places.job("train", 1, 1), to_bytes({}, round=4)
    for kind, message in (("hello", hello), ("job", job), ("end", end)):
        good = base.signer(kind, message)
        for wrong in (message, other(kind, message), good[:-1], good + b"0", good[:70], b"", good[:-1] + b"\xff"):
            refused(service, kind, wrong, "coordinator has not signed")


@pytest.mark.parametrize("task", ["look", "answer"])
def test_features_and_answers_of_single_samples_never_leave(
    service: SiteService, base: CoordinatorDirectory, task: JobKind
) -> None:
    ask(service, base, "train", 1)
    refused(service, "job", base.signer("job", places.job(task, 1, 1)), f"does not do what was asked of it: {task}")
    both = joined([places.only(places.job(each, 1, 1)) for each in ("look", "train")])
    refused(service, "job", base.signer("job", both), "does not do what was asked")


@pytest.mark.parametrize("client", [0, 2, 99])
def test_a_job_of_another_site_is_refused(service: SiteService, base: CoordinatorDirectory, client: int) -> None:
    refused(
        service,
        "job",
        base.signer("job", places.job("train", 1, client)),
        f"client 1; a job for client {client} came",
    )


@pytest.mark.parametrize("round", [0, 5, 10**6])
def test_a_round_that_the_task_does_not_have_is_refused(
    service: SiteService, base: CoordinatorDirectory, round: int
) -> None:
    refused(service, "job", base.signer("job", places.job("train", round, 1)), f"round {round} came; the task has 4")


def test_a_round_before_the_first_is_no_job(service: SiteService, base: CoordinatorDirectory) -> None:
    refused(
        service, "job", base.signer("job", joined([to_bytes({}, task="train", round=-1, client=1)])), "not as agreed"
    )


def test_a_round_that_is_kept_no_longer_is_an_error_that_says_so(
    service: SiteService, site: Site, base: CoordinatorDirectory
) -> None:
    for round in (1, 2, 3, 4):
        ask(service, base, "train", round)
    state = kept(site)
    other = {"vectors": torch.ones(10, 16), "counts": torch.ones(10)}  # not what was asked the first time
    reply = reply_from_bytes(places.only(ask(service, base, "train", 2, other)))
    assert reply.error is not None and "kept no longer" in reply.error and reply.up == {} and kept(site) == state


def test_a_coordinator_with_another_task_is_refused(service: SiteService, base: CoordinatorDirectory) -> None:
    for about in ({"task": "0" * 32}, {}, {"task": None}):
        refused(
            service,
            "hello",
            base.signer("hello", to_bytes({}, **about)),
            r"another task.*protea federation invite --renew",
        )


def test_no_message_passes_for_one_of_another_kind(service: SiteService, base: CoordinatorDirectory) -> None:
    """What a message asks for is signed with it: whoever carries it cannot change that."""
    hello, job = (
        base.signer("hello", to_bytes({}, task=base.task.mark())),
        base.signer("job", places.job("train", 1, 1)),
    )
    end = base.signer("end", to_bytes({}, round=4))
    refused(service, "end", hello, "has not signed")
    refused(service, "end", base.signer("end", to_bytes({}, round=3)), "does not name the last round")
    for kind, message in (("hello", end), ("end", job), ("hello", job), ("job", hello), ("job", end), ("train", job)):
        refused(service, kind, message, "has not signed")
    refused(service, "train", base.signer("train", b""), "asks for nothing a site does: 'train'")


def test_rubble_that_is_signed_is_refused(service: SiteService, base: CoordinatorDirectory) -> None:
    for rubble in (b"x", bytes(100), joined([b"x"]), joined([b""]), to_bytes({})):
        for kind in ("hello", "job", "end"):
            refused(
                service,
                kind,
                base.signer(kind, rubble),
                "arrived|another task|not as agreed|last round|cannot be read",
            )


# What it writes down


def test_every_message_that_left_is_in_the_audit(service: SiteService, base: CoordinatorDirectory) -> None:
    sent = [
        ("hello", 0, service.handle("hello", base.signer("hello", to_bytes({}, task=base.task.mark())))),
        *(
            (task, round, places.only(ask(service, base, task, round)))
            for round in (1, 2)
            for task in ("train", "evaluate")
        ),
    ]
    found = [json.loads(line) for line in service.audit.path.read_text().splitlines()]
    assert len(found) == len(sent) == 5
    for line, (task, round, message) in zip(found, sent, strict=True):
        assert (line["task"], line["round"], line["bytes"]) == (task, round, len(message))
        assert line["blake2b"] == hashlib.blake2b(message, digest_size=16).hexdigest()
        tensors, _ = from_bytes(message)
        assert line["tensors"] == {n: {"shape": list(t.shape), "dtype": str(t.dtype)} for n, t in tensors.items()}
        assert line["numbers"] == sum(t.numel() * t.element_size() for t in tensors.values())
    assert found[1]["tensors"].keys() == {"vectors", "counts"} and found[1]["numbers"] == 680


def test_what_cannot_be_written_down_does_not_leave(
    service: SiteService, site: Site, base: CoordinatorDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(service, base, "train", 1)
    path = service.audit.path
    path.rename(path.with_suffix(".old"))
    path.mkdir()  # nothing can be appended here
    for kind, message in (
        ("hello", base.signer("hello", to_bytes({}, task=base.task.mark()))),
        ("job", base.signer("job", places.job("train", 2, 1))),
        ("job", b"not signed"),
    ):
        with pytest.raises(ClientError) as problem:
            service.handle(kind, message)
        assert str(problem.value) == "site north: IsADirectoryError; its own log says more."
        assert str(site.path) not in "".join(traceback.format_exception_only(problem.value))
    path.rmdir()
    assert reply_from_bytes(places.only(ask(service, base, "train", 2))).error is None


def test_a_full_disk_is_called_by_its_name(
    service: SiteService, base: CoordinatorDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device", str(service.site.path))

    monkeypatch.setattr(durable, "save_client", full)
    with pytest.raises(ClientError, match=r"^site north: its disk is full\.$"):
        ask(service, base, "train", 1)
    assert news_of(lines(service)[-1]) == "Not answered: site north: its disk is full."


def test_an_audit_goes_on_after_a_process_was_killed_in_the_middle_of_a_line(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    audit.write("train", 1, to_bytes({}, number=1))
    whole = audit.path.read_bytes()
    audit.path.write_bytes(whole + whole[:30])
    audit.write("train", 2, to_bytes({}, number=2))
    assert [line["round"] for line in audit.lines()] == [1, 2]
    assert audit.path.read_bytes().startswith(whole + whole[:30] + b"\n")  # what was there is left as it is


# What an error says


def failing(tmp_path: Path, base: CoordinatorDirectory, body: str) -> SiteService:
    """A site whose model fails in training."""
    model = (
        "\n    class Own(nn.Linear):\n"
        "        def forward(self, x):\n"
        "            if self.training and len(x) > 5:\n"
        f"                {body}\n"
        "            return super().forward(x)\n"
        "    return Own(64, 24)\n"
    )
    return SiteService(places.site(tmp_path / "failing", base.invite("west"), places.code(model=model)))


RAISES = [
    (f"raise ValueError('could not read {SECRET}')", "ValueError"),
    (f"raise ValueError('first\\\\n{SECRET}: last')", "ValueError"),
    ("raise ValueError('first\\\\nMustermann: last')", "ValueError"),
    (f"raise ValueError('{SECRET} ' * 2000)", "an error"),
    (f"raise __import__('json').JSONDecodeError('bad', '{SECRET}', 1)", "JSONDecodeError"),
    ("open('/no/such/file/of/patients')", "FileNotFoundError"),
    ("x @ torch.ones(3, 3)", "RuntimeError"),
]


@pytest.mark.parametrize(("body", "kind"), RAISES)
def test_an_error_says_its_kind_and_nothing_of_the_data(
    tmp_path: Path, base: CoordinatorDirectory, capfd: pytest.CaptureFixture[str], body: str, kind: str
) -> None:
    service = failing(tmp_path, base, body)
    answer = places.only(service.handle("job", base.signer("job", places.job("train", 1, 0))))
    reply = reply_from_bytes(answer)
    assert reply.error == f"client 0, round 1: {kind}; the site's own log says more."
    for secret in (SECRET, "Mustermann", "Traceback", "site.py", str(tmp_path), "patients"):
        assert secret.encode() not in answer
    assert kind in (written := capfd.readouterr().err) or SECRET in written  # its own log has it
    (line,) = lines(service)
    assert line["blake2b"] == hashlib.blake2b(answer, digest_size=16).hexdigest()


def test_a_failed_training_may_be_asked_again(tmp_path: Path, base: CoordinatorDirectory) -> None:
    service = failing(tmp_path, base, "raise ValueError if not hasattr(nn, 'mended') else 0")
    assert reply_from_bytes(places.only(service.handle("job", base.signer("job", places.job("train", 1, 0))))).error
    assert not (service.site.path / "state" / "client-000" / "000001").exists()


def test_what_fails_outside_a_training_says_no_more(
    site: Site, base: CoordinatorDirectory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Data that have gone, a disk that is full, a state that was damaged."""
    (site.path / "site.py").write_text(places.code(data=f"\n    raise OSError('/mnt/{SECRET}.csv')\n"))
    with pytest.raises(ClientError) as problem:
        ask(SiteService(Site(site.path)), base, "train", 1)
    assert str(problem.value) == "site north: ConfigError; its own log says more."
    assert SECRET in capfd.readouterr().err

    (site.path / "site.py").write_text(places.code())
    service = SiteService(Site(site.path))
    ask(service, base, "train", 1)

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_bytes", full)
        with pytest.raises(ClientError, match=r"^site north: its disk is full.$"):
            ask(service, base, "train", 2)

    (path,) = site.path.glob("state/client-001/000001/*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    reply = reply_from_bytes(places.only(ask(SiteService(Site(site.path)), base, "train", 2)))
    assert reply.error is not None and "(a file) cannot be read" in reply.error and str(site.path) not in reply.error


def test_what_protea_itself_says_is_kept_but_for_names_of_files() -> None:
    words = "client 1, round 2: the loss became nan at step 3 (lr 0.1, model site.py:Sequential)."
    assert without_secrets(words, "") == words
    assert without_secrets("/base/x/state cannot be read: C:\\data is gone.", "") == (
        "(a file) cannot be read: (a file) is gone."
    )


def test_a_good_answer_is_discreet_already_the_second_time(service: SiteService, base: CoordinatorDirectory) -> None:
    answer = places.only(ask(service, base, "train", 1))
    assert reply_to_bytes(discreet(reply_from_bytes(answer))) == answer


# A site that does not report


def test_a_site_that_does_not_report_gives_an_evaluation_without_anything(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    site = places.site(tmp_path / "quiet", base.invite("quiet"), settings="report = false\n")
    service = SiteService(site)
    service.handle("job", base.signer("job", places.job("train", 1, 0)))
    answer = places.only(service.handle("job", base.signer("job", places.job("evaluate", 1, 0))))
    reply = reply_from_bytes(answer)
    assert (reply.up, reply.samples, reply.metrics, reply.error) == ({}, 0, {}, None)
    judged = Judged(10, 16)
    judged.take(reply.client, judged.read(reply.up))
    assert judged.scores("test") == {} and judged.by_class() == {} and judged.clients() == {0: ClientScores()}
    assert judged.geometry() is None
    assert lines(service)[-1]["tensors"] == {} and lines(service)[-1]["bytes"] == len(answer)
