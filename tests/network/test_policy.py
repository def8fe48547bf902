"""A site's policy: what it says by default, what it refuses and by which line, and what of an answer it lets go."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
import torch

from protea.cli.site_files import new_policy
from protea.config import registry
from protea.core.clusters import Clusters
from protea.core.errors import ConfigError, PayloadError, PolicyError
from protea.core.message import Named
from protea.core.payload import unpack
from protea.core.prototypes import Prototypes
from protea.core.rng import Streams
from protea.engines.messages import reply_from_bytes
from protea.evaluation.counts import Counts
from protea.evaluation.examination import Examination, FeatureSpace
from protea.evaluation.server_side import Judged
from protea.federation.jobs import Job, JobKind, Reply
from protea.federation.privacy import REASONS, Privacy
from protea.filters.base import Passage
from protea.methods.fedgen import FedGen
from protea.methods.fedplvm import ClustersAndModel
from protea.methods.fedproto import FedProto
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.directory import Site
from protea.network.site.policy import CLASS_VECTORS, NAME, Policy, PolicyFile, read_policy
from protea.network.site.process import refuse_by_policy
from protea.network.site.refusals import expiry, refusals, sends_class_vectors
from protea.network.site.release import PolicyRelease
from protea.network.site.service import SiteService
from protea.network.task import Task, new_task

ONE_RARE = """
    x, y = load_digits(return_X_y=True)
    keep = (y != 9) | (np.cumsum(y == 9) == 1)
    x, rows = x.astype("float32") / 16, keep[:300].nonzero()[0]
    return x[rows], y[rows], x[300:400], y[300:400]
"""  # of the nine there is one sample


def task(**settings: Any) -> Task:
    return new_task({"classes": ["healthy", "ill", "rare"], "rounds": 10, "models": {"dim": 2}, **settings}, [])


def policy(tmp_path: Path, text: str) -> PolicyFile:
    (tmp_path / NAME).write_text(text)
    return read_policy(tmp_path / NAME)


def complaints(
    file: PolicyFile, task: Task, counts: Mapping[str, int] | None = None, today: dt.date | None = None
) -> list[tuple[int | None, str]]:
    """The line of each refusal, and why."""
    return [(file.line(each.setting).number, each.why) for each in refusals(file, task, counts, today)]


# The file


def test_what_init_writes_is_the_safe_default(tmp_path: Path) -> None:
    found = policy(tmp_path, new_policy(dt.date(2026, 1, 31)))
    assert found.policy == Policy(expires=dt.date(2027, 1, 31))
    assert (found.policy.min_samples_per_class, found.policy.counts, found.policy.report) == (5, "rounded", "accuracy")


def test_a_missing_policy_is_the_safe_default_and_says_so(tmp_path: Path) -> None:
    found = read_policy(tmp_path / NAME)
    assert found.policy == Policy() and not found.exists
    assert found.cite("counts") == f'{tmp_path / NAME} (there is no such file), safe default: counts = "rounded"'


def test_methods_that_are_allowed_by_default_send_class_vectors_by_trained_models() -> None:
    kinds = {name: registry.find("methods", name) for name in registry.BUILT_IN["methods"]}
    alike = {
        name for name, kind in kinds.items() if sends_class_vectors(kind.up) and not kind().needs.same_architecture
    }
    others = {
        "fedpcl",  # in the first round it sends prototypes of untrained models
        "fedl2g",  # in warm-up it sends gradients of untrained models
        "fedplvm",  # its clusters are of fewer samples than a class has
        "fedtsp",  # its server needs an encoder of texts, also where a site tries a task
    }
    assert alike - set(CLASS_VECTORS) == others
    assert set(CLASS_VECTORS) <= alike and not sends_class_vectors(FedGen.up)


def test_no_setting_of_these_methods_makes_a_site_send_its_model() -> None:
    """FedProc's original also averages whole models: no task can have it, whatever the policy says."""
    names = {name: [each.name for each in fields(registry.find("methods", name))] for name in CLASS_VECTORS}
    assert [name for name in names if "share_weights" in names[name]] == ["fedproc"]
    with pytest.raises(ConfigError, match="needs models that are all the same"):
        task(method={"name": "fedproc", "share_weights": True})


def test_every_setting_knows_its_line(tmp_path: Path) -> None:
    text = """# a comment
counts = "exact"  # agreed on 3 May

methods = [
    "fedproto",
    "local",
]
[at_most]
"training.epochs" = 3
"filters.clip.norm" = 1.5
"""
    found = policy(tmp_path, text)
    numbers = {name: line.number for name, line in found.lines.items()}
    assert numbers == {
        "counts": 2, "methods": 4, "at_most": 8, "at_most.training.epochs": 9, "at_most.filters.clip.norm": 10,
    }  # fmt: skip
    assert found.cite("counts").endswith('policy.toml, line 2: counts = "exact"  # agreed on 3 May')
    assert found.value("counts") == 'counts = "exact"'  # what a coordinator may read
    assert found.line("max_rounds").number is None and found.line("max_rounds").text == "max_rounds = 100"


WRONG = {
    "an unknown setting": ("count = 3", r"line 1: count = 3: count is not a setting.*\n.*Did you mean counts"),
    "a word that is none": ('\ncounts = "about"', r"line 2: .*counts = 'about'.*'exact', 'rounded' or 'hidden'"),
    "no samples": ("min_samples_per_class = 0", r"line 1: .*min_samples_per_class = 0.*greater than 0"),
    "half a sample": ("min_samples_per_class = 4.5", r"line 1: .*valid integer"),
    "a size that is none": ('max_upload = "big"', r"line 1: .*no size; write a number and a unit, such as 500MB"),
    "a date that is none": ('expires = "soon"', r"line 1: .*valid date"),
    "a method that is none": ('methods = ["fedprto"]', r"line 1: .*no method 'fedprto'.  Did you mean fedproto"),
    "no method": ("methods = []", r"line 1: .*no method is allowed at all"),
    "a filter that is none": ('filters = ["klip"]', r"line 1: .*no filter 'klip'.  Did you mean clip"),
    "a rule about nothing": (
        '[refused]\n"method.takn" = ["before"]',
        r"line 2: .*no task has such a setting.*method.taken",
    ),
    "a rule without quotes": ('[refused]\nmethod.taken = ["before"]', r"line 2: (.|\n)*in quotes"),
    "a value, not a list": ('[refused]\n"method.taken" = "before"', r"line 2: .*must be a list of values"),
    "a bound that is no number": ('[at_most]\n"training.lr" = "small"', r"line 2: .*a number is needed"),
    "a bound that is never passed": ('[at_least]\n"quorum" = nan', r"line 2: .*a number is needed"),
    "a bound without end": ('[at_most]\n"training.epochs" = inf', r"line 2: .*a number is needed"),
    "a bound of a word": ('[at_most]\n"method.taken" = 3', r"line 2: .*is a word, which has no bounds"),
    "a value that it never has": (
        '[refused]\n"method.taken" = ["befor"]',
        r'line 2: .*"befor" is no value of it.*Did you mean before',
    ),
    "yes as a word": (
        '[refused]\n"protect" = ["true"]',
        r'line 2: .*"true" is no value of it, and would refuse nothing',
    ),
    "a value of no method": (
        '[refused]\n"method.taken" = ["x"]',
        r'line 2: .*"x" is no value of it, and would refuse nothing\.  There is: (after|before|during)(, (?!\1)\w+)*\.',
    ),
    "a rate that is a word": ('[refused]\n"training.lr" = ["high"]', r"line 2: .*would refuse nothing"),
    "a rule about a table": ('[refused]\n"training.dp" = [1]', r"line 2: .*a table of settings.*training.dp.noise"),
    "a bound of yes and no": ('[at_most]\n"protect" = 1', r"line 2: .*is no number, which has no bounds"),
    "a bound of a size": ('[at_most]\n"limits.upload" = 3', r"line 2: .*is no number, which has no bounds"),
    "bounds that no task keeps": (
        '[at_least]\n"quorum" = 5\n[at_most]\n"quorum" = 3',
        r"line 4: .*must be 5 at least by \[at_least\]",
    ),
    "a bound of hundreds of digits": (
        f'[at_most]\n"training.epochs" = {"9" * 400}',
        r"a number of 1329 bits; whole numbers have 64 at most",
    ),
    "a list, not a table": ('refused = ["before"]', r"line 1: .*should be an object"),
    "a word for yes": ('prepared_alone = "yes"', r"line 1: .*valid boolean"),
    "full, but no counts": (
        'counts = "hidden"\nreport = "full"',
        r'line 2: .*Set report = "accuracy", or counts = "exact"',
    ),
    "no TOML": ("counts = ]", r"cannot be read: .*line 1"),
    "twice the same": ("max_rounds = 1\nmax_rounds = 2\n", r"cannot be read: .*line 2"),
}


@pytest.mark.parametrize(("text", "complaint"), WRONG.values(), ids=WRONG)
def test_a_policy_that_is_none_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        policy(tmp_path, text)


def test_a_policy_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'counts = "\xff"')
    with pytest.raises(ConfigError, match=r"policy.toml cannot be read"):
        read_policy(tmp_path / NAME)


# What it refuses of a task


def test_the_default_allows_a_usual_task(tmp_path: Path) -> None:
    assert complaints(read_policy(tmp_path / NAME), task(), {"healthy": 50, "ill": 9, "rare": 1}) == []


REFUSED = {
    "a method": ('methods = ["local"]', {}, 1, 'method.name = "fedproto", which sends prototypes.  To allow it, add'),
    "rounds": ("\nmax_rounds = 9", {}, 2, "The task has 10 rounds"),
    "a filter that is missing": ('filters = ["clip"]', {}, 1, 'does not have the filter "clip"'),
    "a value": ("", {"method": {"name": "fedtgp", "taken": "before"}}, None, 'The task has method.taken = "before"'),
    "too little": ("[at_least]\nquorum = 3", {}, 2, "The task has quorum = 2"),
    "too much": ('[at_most]\n"training.epochs" = 3', {"training": {"epochs": 4}}, 2, "training.epochs = 4"),
    "too long vectors": (
        '[at_most]\n"filters.clip.norm" = 1',
        {"filters": [{"name": "clip", "norm": 0.5}, {"name": "clip", "norm": 5.0}]},
        2,
        "filters.clip.norm = 5.0",
    ),
    "noise that is not there": (
        '[at_least]\n"filters.noise.noise" = 2',
        {"filters": ["clip"]},
        2,
        "The task has no filters.noise.noise, so that it keeps no bound",
    ),
    "a budget without end": (
        '[at_most]\n"filters.noise.budget.epsilon" = 4',
        {"filters": [{"name": "noise", "budget": {"delta": 1e-6}}]},
        2,
        "The task has no filters.noise.budget.epsilon",
    ),
    "a budget too large": (
        '[at_most]\n"filters.noise.budget.epsilon" = 4',
        {"filters": [{"name": "noise", "budget": {"epsilon": 9.0}}]},
        2,
        "The task has filters.noise.budget.epsilon = 9.0",
    ),
    "training without noise": ('[at_least]\n"training.dp.noise" = 1', {}, 2, "The task has no training.dp.noise"),
    "means of few": ("", {"method": {"name": "fedloo", "least": 2}}, None, "method.least = 2: means of so few"),
}


@pytest.mark.parametrize(("text", "settings", "line", "why"), REFUSED.values(), ids=REFUSED)
def test_what_it_forbids_is_refused_by_its_line(
    tmp_path: Path, text: str, settings: dict[str, Any], line: int | None, why: str
) -> None:
    ((number, words),) = complaints(policy(tmp_path, text), task(**settings))
    assert number == line and why in words


def test_bounds_that_a_task_keeps_or_that_are_about_another_method_refuse_nothing(tmp_path: Path) -> None:
    file = policy(tmp_path, '[at_most]\n"method.least" = 9\n"filters.noise.budget.epsilon" = 4\n')  # FedLOO has least
    kept = {"name": "noise", "budget": {"epsilon": 4.0}}
    assert complaints(file, task(filters=[kept])) == []


def test_the_safe_default_of_what_is_refused_is_lifted_by_its_name_only(tmp_path: Path) -> None:
    before = task(method={"name": "fedtgp", "taken": "before"})
    for text in ("[refused]\n", '[refused]\n"method.average" = ["literal"]\n'):
        file = policy(tmp_path, text)
        assert complaints(file, before) == [(None, 'The task has method.taken = "before".')]
        assert 'safe default: refused.method.taken = ["before"]' in file.cite("refused.method.taken")
    assert complaints(policy(tmp_path, '[refused]\n"method.taken" = []\n'), before) == []


def test_small_classes_of_a_method_that_sends_weights_are_a_reason_to_refuse(tmp_path: Path) -> None:
    file, asked = policy(tmp_path, 'methods = ["lg_fedavg"]'), task(method={"name": "lg_fedavg"}, shape=[2])
    ((number, words),) = complaints(file, asked, {"healthy": 50, "ill": 9, "rare": 1})
    assert number is None and "rare: fewer training samples than that, and lg_fedavg sends heads" in words
    assert complaints(file, asked, {"healthy": 50, "ill": 9, "rare": 0}) == []


def test_a_site_with_small_classes_only_has_nothing_to_send(tmp_path: Path) -> None:
    file, few = read_policy(tmp_path / NAME), {"healthy": 4, "ill": 4, "rare": 0}
    assert "this site has nothing to send" in complaints(file, task(), few)[0][1]
    assert complaints(file, task(method={"name": "local"}), few) == []


def test_a_policy_holds_on_its_last_day_and_not_after(tmp_path: Path) -> None:
    file = policy(tmp_path, "expires = 2026-03-01")
    assert expiry(file, dt.date(2026, 3, 1)) is None
    assert complaints(file, task(), today=dt.date(2026, 3, 2)) == [
        (1, "Today is 2026-03-02.  Agree anew, and set another date.")
    ]


# What it lets go


def release(file: PolicyFile, *counts: int) -> PolicyRelease:
    named = dict(zip(("healthy", "ill", "rare"), counts, strict=True))
    return PolicyRelease(file, lambda: named, file.policy.report)


def passage(kind: type[Any] = FedProto.up) -> Passage:
    return Passage(client=1, round=3, kind=kind, classes=3, dim=2, rng=Streams(0))


def test_small_clusters_and_clusters_of_small_classes_stay_at_home(tmp_path: Path) -> None:
    rows = Clusters(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 0, 1, 2]), torch.tensor([4.0, 26, 37, 3]))
    up, at = ClustersAndModel(rows, None).flat(), passage(ClustersAndModel)
    found = release(policy(tmp_path, ""), 30, 37, 3)
    left = found.withhold(up, at)
    assert left["clusters.classes"].tolist() == [0, 1] and left["clusters.counts"].tolist() == [26, 37]
    assert left["clusters.vectors"].tolist() == [[2, 3], [4, 5]]
    assert found.upload(left, at)["clusters.counts"].tolist() == [30, 40]
    with pytest.raises(PolicyError, match="min_samples_per_class = 5"):
        found.upload(up, at)


def upload(*counts: float) -> Named:
    """Prototypes of three classes at (1, 1), (2, 2) and (3, 3)."""
    vectors = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    return Prototypes(vectors, torch.tensor(counts, dtype=torch.float32)).flat()


def test_small_classes_become_absent(tmp_path: Path) -> None:
    found = release(read_policy(tmp_path / NAME), 50, 4, 5).withhold(upload(50, 4, 5), passage())
    left = Prototypes.from_flat(found)
    assert left.present.tolist() == [True, False, True] and left.vectors.tolist() == [[1, 1], [0, 0], [3, 3]]


def test_a_method_that_hides_counts_cannot_hide_that_they_are_small(tmp_path: Path) -> None:
    found = release(read_policy(tmp_path / NAME), 50, 4, 5).withhold(upload(1, 1, 1), passage())
    assert found["counts"].tolist() == [1, 0, 1]


def test_a_mean_of_few_samples_of_a_large_class_is_kept_back_too(tmp_path: Path) -> None:
    found = release(read_policy(tmp_path / NAME), 50, 50, 50).withhold(upload(50, 4, 6), passage())
    assert found["counts"].tolist() == [50, 0, 6]


@pytest.mark.parametrize(
    ("how", "told", "samples"), [("exact", [57, 0, 5], 62), ("rounded", [60, 0, 10], 60), ("hidden", [1, 0, 1], 1)]
)
def test_counts_are_told_as_the_policy_says(tmp_path: Path, how: str, told: list[int], samples: int) -> None:
    own = release(policy(tmp_path, f'counts = "{how}"'), 57, 0, 5)
    found = own.upload(upload(57, 0, 5), passage())
    assert found["counts"].tolist() == told and len(found["vectors"]) == 2
    assert own.reply(Reply(1, 3, found, 62, {"loss": 0.1})).samples == samples


def test_exact_counts_in_another_tensor_are_refused(tmp_path: Path) -> None:
    own, heads = release(read_policy(tmp_path / NAME), 57, 23, 5), passage(FedGen.up)
    up = {"head.tensors.weight": torch.ones(3, 2), "labels": torch.tensor([57.0, 23.0, 5.0])}
    with pytest.raises(PolicyError, match=r'client 1, round 3: the site\'s policy has counts = "rounded"'):
        own.upload(own.withhold(up, heads), heads)
    assert own.refusals[0].why == "labels tells exactly how many samples each class has."


def test_what_was_made_with_small_classes_is_refused_where_they_cannot_be_taken_out(tmp_path: Path) -> None:
    own = release(read_policy(tmp_path / NAME), 57, 23, 4)
    with pytest.raises(PolicyError, match="min_samples_per_class = 5"):
        own.withhold({"head.tensors.weight": torch.ones(3, 2), "labels": torch.ones(3)}, passage(FedGen.up))


def test_a_large_upload_is_refused(tmp_path: Path) -> None:
    own = release(policy(tmp_path, 'max_upload = "30B"'), 50, 50, 50)
    with pytest.raises(PolicyError, match='max_upload = "30B"'):
        own.upload(upload(50, 50, 50), passage())
    assert own.refusals[0].cited.endswith('line 1: max_upload = "30B"')


def test_a_filter_that_brings_a_class_back_is_caught_in_the_last_step(tmp_path: Path) -> None:
    own = release(read_policy(tmp_path / NAME), 50, 4, 50)
    with pytest.raises(PolicyError, match="min_samples_per_class"):
        own.upload(upload(50, 4, 50), passage())


def examination(*samples: int) -> Examination:
    """Two rules on test samples of three classes; half of each class is answered right, and always by class 0."""
    counts = torch.tensor([samples, samples])
    certain = torch.zeros(2, 3, 15, dtype=torch.float64)
    certain[:, 0, 14], certain[:, 0, 3] = sum(samples) - 1, 1
    tally = Counts(counts, counts // 2, counts, certain)
    space = FeatureSpace(torch.ones(3), torch.tensor(1.0), torch.tensor(1.0))
    return Examination(torch.tensor([0, 1]), {"test": tally}, space)


@pytest.mark.parametrize(("how", "told"), [("exact", (32, 16)), ("rounded", (30, 15)), ("hidden", (100, 50))])
def test_a_report_of_accuracy_has_no_classes(tmp_path: Path, how: str, told: tuple[int, int]) -> None:
    own = release(policy(tmp_path, f'counts = "{how}"'), 50, 50, 50)
    found = own.evaluation(examination(20, 10, 2))
    assert found.flat().keys() == {"rules", "totals.test.samples", "totals.test.hits"}
    assert (found.totals["test"].samples[0].item(), found.totals["test"].hits[0].item()) == told
    judged = Judged(3, 2)
    judged.take(1, judged.read(found.flat()))
    score = judged.scores("test")["method"]
    assert (score.weighted, score.uniform) == (0.5, 0.5)
    assert (score.balanced, score.macro_f1, score.calibration) == (None, None, None)
    assert judged.by_class() == {} and judged.geometry() is None
    record = judged.clients()[1].parts["test"]
    assert record.samples == told[0] and record.classes == {} and record.accuracy() == 0.5


def test_sites_that_tell_more_and_less_are_scored_together() -> None:
    judged, whole = Judged(3, 2), examination(20, 10, 2)
    judged.take(0, judged.read(whole.flat()))
    told = {"rules": torch.tensor([0, 1]), "totals.test.samples": torch.tensor([8, 8])}
    judged.take(1, judged.read({**told, "totals.test.hits": torch.tensor([8, 0])}))
    score = judged.scores("test")["method"]
    assert (score.weighted, score.uniform, score.balanced) == (24 / 40, 0.75, 0.5)
    for wrong in (torch.tensor([9, 0]), torch.tensor([-1, 0]), torch.tensor([8.0, 0.0]), torch.tensor([8])):
        with pytest.raises(PayloadError, match=r"[Tt]otals"):
            judged.read({**told, "totals.test.hits": wrong})


def test_a_full_report_leaves_out_small_classes_and_lonely_answers(tmp_path: Path) -> None:
    own = release(policy(tmp_path, 'report = "full"\ncounts = "exact"'), 50, 50, 4)
    found = own.evaluation(examination(20, 10, 2))
    tally = found.tallies["test"][0]
    assert (tally.samples.tolist(), tally.hits.tolist()) == ([20, 10, 0], [10, 5, 0])
    assert tally.certain[0].nonzero().flatten().tolist() == [14]  # the bin with one answer is gone
    assert found.space is not None and found.space.margins.tolist() == [1, 1, 0]
    Judged(3, 2).read(found.flat())


def test_too_few_test_samples_are_not_reported_on(tmp_path: Path) -> None:
    assert release(read_policy(tmp_path / NAME), 50, 50, 50).evaluation(examination(2, 2, 0)).flat().keys() == {"rules"}


def test_no_report_tells_nothing_and_no_loss(tmp_path: Path) -> None:
    own = release(policy(tmp_path, 'report = "none"'), 50, 50, 50)
    assert own.evaluation(examination(20, 10, 2)).flat()["rules"].tolist() == []
    assert own.reply(Reply(1, 3, {}, 60, {"loss": 0.1})).metrics == {}
    for spent in (Privacy(2.0, 1e-5, spent=True), Privacy(why=REASONS[3])):  # which nothing of the data says
        told = own.reply(Reply(1, 3, {}, 60, {"loss": 0.1, **spent.metrics()})).metrics
        assert Privacy.read(told) == spent and "loss" not in told


# At a site


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base")


def rare_site(tmp_path: Path, base: CoordinatorDirectory, settings: str = "", policy: str | None = None) -> Site:
    """A site with one sample of the nine."""
    return places.site(tmp_path / "site", base.invite("north"), places.code(data=ONE_RARE), settings, policy)


def ask(service: SiteService, base: CoordinatorDirectory, what: JobKind, round: int = 1) -> Reply:
    return reply_from_bytes(places.only(service.handle("job", base.signer("job", places.job(what, round)))))


def test_a_class_with_one_sample_is_not_sent(tmp_path: Path, base: CoordinatorDirectory) -> None:
    service = SiteService(rare_site(tmp_path, base))
    assert service.site.class_counts["nine"] == 1
    sent = ask(service, base, "train")
    assert sent.up["counts"][9] == 0 and sent.up["vectors"].shape == (9, 16)
    assert set(sent.up["counts"][:9].tolist()) <= {20.0, 30.0, 40.0} and sent.samples % 10 == 0
    (line,) = service.audit.lines()
    assert line["held_back"] == ["nine"] and line["bytes"] > line["numbers"] == 9 * 16 * 4 + 40
    assert ask(service, base, "evaluate").up.keys() >= {"rules", "totals.test.hits"}


def test_a_tasks_filters_cannot_bring_it_back(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", filters=[{"name": "clip", "norm": 0.1}, {"name": "quantize", "to": "int8"}])
    sent = ask(SiteService(rare_site(tmp_path, base)), base, "train")
    assert sent.up["vectors~int8"].shape == (9, 16) and sent.up["counts"][9] == 0


def test_the_coordinators_of_methods_take_what_is_left(tmp_path: Path) -> None:
    """The absent class is one that the site does not have, to every method that is allowed by default."""
    from protea.network.site.check import trial

    for name in CLASS_VECTORS:
        base = places.base(tmp_path / name / "base", f"method.name={name}", "shape=[64]")
        found = trial(rare_site(tmp_path / name, base).path)
        assert "nine" not in found.classes and ("eight" in found.classes or name in ("local", "fedloo"))


def test_what_the_policy_forbids_is_refused_when_joining_and_in_the_audit_log(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    site = rare_site(tmp_path, base, policy="# ours\nmax_rounds = 3  # Dr. Mustermann agreed\n")
    with pytest.raises(PolicyError, match=r"policy.toml, line 2: max_rounds = 3  # Dr. M.*\n +The task has 4 rounds"):
        refuse_by_policy(site)
    service = SiteService(site)
    with pytest.raises(PolicyError) as told:
        ask(service, base, "train")
    assert str(told.value) == "site north: its policy has max_rounds = 3, and does not allow this task."
    joining, asked = service.audit.lines()
    assert [line["asked"] for line in (joining, asked)] == ["join", "train"]
    for line in (joining, asked):
        assert line["task"] == "refused" and line["policy"].endswith("line 2: max_rounds = 3  # Dr. Mustermann agreed")
        assert "The task has 4 rounds" in line["words"] and line["tensors"] == {}
    assert not any((site.path / "state").iterdir())  # nothing was trained


def test_an_upload_that_is_refused_leaves_the_site_as_it_was(tmp_path: Path, base: CoordinatorDirectory) -> None:
    site = rare_site(tmp_path, base, policy='max_upload = "100B"\n')
    service = SiteService(site)
    first = service.worker.worker.client(0).model.state_dict()
    before = {name: tensor.clone() for name, tensor in first.items()}
    sent = ask(service, base, "train")
    assert sent.error is not None and 'policy has max_upload = "100B"' in sent.error and sent.up == {}
    assert [line["task"] for line in service.audit.lines()] == ["refused", "train"]
    after = service.worker.worker.client(0).model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_an_answer_that_was_kept_under_a_laxer_policy_does_not_leave(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    site = rare_site(tmp_path, base, policy=places.ALL)
    assert ask(SiteService(site), base, "train").up["counts"][9] == 1
    (site.path / NAME).write_text("")
    with pytest.raises(PolicyError, match="min_samples_per_class = 5"):
        ask(SiteService(Site(site.path)), base, "train")


def test_report_false_in_site_toml_is_stricter_than_the_policy(tmp_path: Path, base: CoordinatorDirectory) -> None:
    service = SiteService(rare_site(tmp_path, base, "report = false\n", places.ALL))
    assert ask(service, base, "train").metrics == {} and ask(service, base, "evaluate").up == {}


def test_a_policy_that_expires_in_the_middle_stops_the_site(
    tmp_path: Path, base: CoordinatorDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SiteService(rare_site(tmp_path, base, policy=f"expires = {dt.date.today()}\n"))
    assert ask(service, base, "train").error is None

    class Tomorrow(dt.date):
        @classmethod
        def today(cls) -> dt.date:  # type: ignore[override]
            return dt.date(2999, 1, 1)

    monkeypatch.setattr("protea.network.site.refusals.dt.date", Tomorrow)
    with pytest.raises(PolicyError, match="expires = "):
        ask(service, base, "train", 2)


def test_the_upload_of_every_kind_is_still_what_it_was_where_everything_may_leave(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base")
    service = SiteService(rare_site(tmp_path, base, policy=places.ALL))
    sent = ask(service, base, "train")
    assert sent.up["counts"].tolist() == list(map(float, service.site.class_counts.values()))
    found = unpack(Examination, ask(service, base, "evaluate").up)
    assert found is not None and found.tallies.keys() == {"test", "validation"} and found.totals == {}


def test_verify_reads_the_very_bytes(tmp_path: Path) -> None:
    own, job = release(read_policy(tmp_path / NAME), 57, 23, 40), Job("evaluate", 3, 1)
    own.verify(job, Reply(1, 3, own.evaluation(examination(20, 10, 2)).flat()), passage())
    with pytest.raises(PolicyError, match='report = "accuracy"'):
        own.verify(job, Reply(1, 3, examination(20, 10, 2).flat()), passage())
    job = Job("train", 3, 1)
    good = own.reply(Reply(1, 3, own.upload(upload(57, 23, 40), passage()), 120))
    own.verify(job, good, passage())
    with pytest.raises(PolicyError, match='counts = "rounded"'):
        own.verify(job, Reply(1, 3, upload(57, 23, 41), 120), passage())
