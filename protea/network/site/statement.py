"""What a site's people must know before they agree, in plain words: who may ask what, and what leaves."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from protea.config import registry
from protea.config.units import format_bytes
from protea.federation.privacy import in_words
from protea.network.site.check import Trial
from protea.network.site.directory import Site
from protea.network.site.peers import peer_warnings
from protea.network.site.policy import Policy
from protea.network.site.refusals import listed

FEW = 20  # samples: a mean of fewer is still close to each of them
SAFE = Policy()
SOON = 30  # days

REPORTS = {
    "none": "Nothing.  The site answers that it tells nothing, and sends no training loss either.",
    "accuracy": "For each way of answering, how many of the site's test and validation samples were answered right, "
    "of all classes together.  Nothing by class, and nothing about a single sample.",
    "full": "For each way of answering and each class: samples, right answers, answers; how certain the answers were, "
    "in 15 bins; how far apart the classes lie.  Classes and bins with too few samples are left out.",
}
HIDDEN = "that it is there"
KEYS_AND_SHARES = "  Keys and shares for the secure sum, some 115 bytes a round for each site, are not counted."
COUNTS = {
    "exact": "as they are",
    "rounded": "to the nearest ten",
    "hidden": "not at all: only whether a class is there",
}


@dataclass(frozen=True)
class ClassRow:
    """One class of the task at this site."""

    name: str
    samples: int  # for training
    told: str  # how many the coordinator is told
    held_back: str  # why it does not leave; empty if it does


@dataclass(frozen=True)
class Finding:
    """One result of an audit: what an attack on what would leave finds out."""

    subject: str  # a class, or what else was attacked
    attack: str
    result: str
    verdict: str
    needs_model: bool = False  # that verdict takes an attacker who has this site's trained model, which never leaves


@dataclass(frozen=True)
class Statement:
    """All that ``protea site check`` says."""

    trial: Trial
    today: dt.date
    coordinator: str  # where it is reached
    warnings: list[str]
    classes: list[ClassRow]
    counts: str  # how numbers of samples are told
    evaluation: str
    rounds: int
    evaluations: int
    asked: list[tuple[str, str]]  # what the coordinator may ask: thing, and what it is
    policy: list[tuple[str, str]]  # setting as written, and where
    policy_file: str
    privacy: str  # what noise guarantees, or that it guarantees nothing
    audit: Sequence[Finding] | None = None  # None: none was made
    leaking: Sequence[str] = ()  # classes that leave as one sample's vector, or that the audit found to leak

    @property
    def bytes_per_round(self) -> int:
        """Bytes of the messages of a round with evaluation."""
        return sum(self.trial.sizes.values())

    @property
    def bytes_in_all(self) -> int:
        """Bytes of all messages, if every round is played and evaluated as the task says."""
        each = dict(self.trial.sizes)
        evaluated = self.evaluations * each.pop("evaluate", 0)
        return self.rounds * sum(each.values()) + evaluated


def make_statement(
    site: Site, trial: Trial, audit: Sequence[Finding] | None = None, today: dt.date | None = None
) -> Statement:
    """Put into words what a trial round showed, and what the site's policy says."""
    task, file, today = site.task, site.policy, today or dt.date.today()
    evaluations = sum(task.evaluation.due(round, task.rounds) for round in range(1, task.rounds + 1))
    unwritten = "" if file.exists else ", which does not exist: the safe defaults hold.  Write one: protea site init"
    return Statement(
        trial,
        today,
        site.bundle.invitation.address,
        [*audit_warnings(audit or ()), *warnings(site, trial, today)],
        [class_row(site, trial, name, count) for name, count in site.class_counts.items()],
        COUNTS[site.policy.policy.counts],
        evaluation_words(site),
        task.rounds,
        0 if site.report == "none" else evaluations,
        list(asked(site)),
        [policy_line(site, each.name) for each in fields(Policy) if getattr(file.policy, each.name) not in ({}, ())],
        f"{file.path}{unwritten}",
        privacy_words(trial, task.rounds),
        audit,
        leaking(site, trial, audit or ()),
    )


def evaluation_words(site: Site) -> str:
    """Say what evaluation replies tell."""
    gain = "  And how much better the site is than with a model that it trains alone, to a tenth of a point."
    told = site.settings.beside and site.policy.policy.gain and site.report != "none"
    return REPORTS[site.report] + gain * told


def leaking(site: Site, trial: Trial, audit: Sequence[Finding]) -> list[str]:
    """Name the classes, and what else was audited, of which it is known that they should not leave like this."""
    alone = [name for name, count in site.class_counts.items() if name in trial.told and count == 1]
    found = [each.subject for each in audit if each.verdict == "leaks" and not each.needs_model]
    return list(dict.fromkeys([*alone, *found]))


def policy_line(site: Site, setting: str) -> tuple[str, str]:
    """Give a setting of the policy as it would be written, and where it is."""
    number = site.policy.line(setting).number
    return site.policy.value(setting), "default" if number is None else f"line {number}"


def class_row(site: Site, trial: Trial, name: str, count: int) -> ClassRow:
    """Say what becomes of one class."""
    number = trial.told.get(name, 0)
    words = {"exact": str(number), "rounded": f"about {number}", "hidden": HIDDEN}
    how = HIDDEN if number == 1 < count else words[site.policy.policy.counts]  # some methods tell no more themselves
    if name in trial.told:
        return ClassRow(name, count, how, "")
    if not count:
        return ClassRow(name, 0, "", "the site has no training samples of it")
    if count < site.policy.policy.min_samples_per_class:
        return ClassRow(name, count, "", f"fewer than {site.policy.policy.min_samples_per_class} training samples")
    return ClassRow(name, count, "", "the method sends no vector of it")


def asked(site: Site) -> Iterator[tuple[str, str]]:
    """Yield what the coordinator may ask of this site."""
    task = site.task
    filters = registry.plugin_names("filters", task.filters)
    name = registry.name_of("methods", type(task.method))
    yield "train", f"{task.rounds} rounds of {name}, with {task.method.exchanges}"
    yield "evaluate", "its model on its own test and validation samples" if site.report != "none" else "no: refused"
    yield "filters on what leaves", listed(filters) or "none: it leaves as the method made it"
    yield "nothing else", "no samples, no features or answers of single samples, no weights but what the method sends"


def warnings(site: Site, trial: Trial, today: dt.date) -> Iterator[str]:
    """Yield what somebody should think about before this site takes part, the gravest first."""
    policy, task = site.policy.policy, site.task
    sent = {name: count for name, count in site.class_counts.items() if name in trial.told}
    if one := [name for name, count in sent.items() if count == 1]:
        yield (
            f"{listed(one)}: one training sample is behind what leaves, so that the vector is this sample's own.  Set "
            f"min_samples_per_class = {SAFE.min_samples_per_class} in policy.toml."
        )
    if few := [f"{name} ({count})" for name, count in sent.items() if 1 < count < FEW]:
        yield f"{listed(few)}: few training samples are behind a vector that leaves; it is close to each of them."
    if task.method.public_map:
        name = registry.name_of("methods", type(task.method))
        yield (
            f"{name} sends means by a map that everybody has: whoever receives one needs no model to find out whether "
            f"a record is behind it.  See how well that goes with this site's records: protea site check --audit.  "
            f"More samples behind each mean (method.least), or noise, make it harder."
        )
    if site.settings.seed == "task":
        yield (
            'site.toml has seed = "task": whoever knows the task can rebuild this site\'s untrained model, and search '
            "for samples whose features fit what leaves.  Remove that line."
        )
    if trial.fixed:
        yield (
            "model() begins with the same weights each time, pretrained ones or by a seed in site.py.  Who has them "
            "can compute features as this site does before its first training."
        )
    if not trial.told and task.method.up is not type(None):
        yield (
            f"The method sends {task.method.exchanges}, not class vectors: no class can be kept back, and what such "
            f"numbers tell of single samples is harder to say."
        )
    if "before" not in policy.refused.get("method.taken", []):
        yield 'The policy lets a task ask for prototypes by the model before its training (refused."method.taken").'
    if policy.counts == "exact":
        yield 'The number of training samples of each class leaves exactly.  Set counts = "rounded" in policy.toml.'
    if site.report == "full":
        yield "Evaluation replies tell right answers by class, and how certain answers were."
    if task.quorum < 3:
        yield (
            f"Rounds count with {task.quorum} sites (quorum): of two who share a mean, each can compute what the "
            f"other sent."
        )
    yield from peer_warnings(site)
    if not site.bundle.invitation.tls:
        yield "The federation is not encrypted; it is for trials on one machine."
    if policy.expires is not None and policy.expires < today + dt.timedelta(days=SOON):
        yield f"The policy ends on {policy.expires}; from the next day on this site refuses everything."
    if trial.privacy is None:
        yield "No noise is added: nothing that leaves is differentially private."
    elif not trial.privacy.formal:
        yield f"{in_words(trial.privacy)}."


def audit_warnings(found: Sequence[Finding]) -> Iterator[str]:
    """Yield, for each verdict that is not good, what an audit found, the worst first."""
    for verdict, words in (
        ("leaks", "The audit found that it leaks"),
        ("watch", "The audit says that it is to be watched"),
    ):
        named = [f"{each.subject} ({each.attack})" for each in found if each.verdict == verdict]
        if named:
            yield f"{words}: {listed(list(dict.fromkeys(named)))}.  See the audit below."


def privacy_words(trial: Trial, rounds: int) -> str:
    """Say what noise guarantees of what leaves, in one round and in all."""
    if trial.privacy is None:
        return "None: no noise is added."
    if trial.cost is None:
        return f"{in_words(trial.privacy)}."
    return f"After one round, {in_words(trial.privacy)}.  After all {rounds} rounds, epsilon {trial.cost:.3g}."


def size_words(statement: Statement) -> str:
    """Say how many bytes leave."""
    each = ", ".join(f"{task} {format_bytes(count)}" for task, count in statement.trial.sizes.items())
    return (
        f"{format_bytes(statement.bytes_per_round)} in a round ({each}), {format_bytes(statement.bytes_in_all)} in "
        f"{statement.rounds} rounds.{KEYS_AND_SHARES if statement.trial.summed else ''}"
    )
