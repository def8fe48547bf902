"""What a report says in words: its title, and what a reader must know before he reads on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from protea.config.words import PROTOCOLS, RULES
from protea.federation.privacy import in_words, worst
from protea.report import groups
from protea.runs.inert import inert_pulls
from protea.runs.reader import RunReader, unwell
from protea.runs.settings_diff import words_of

MOST = 4  # methods, or data sets, that a title names
ODD = 0.05  # a difference of accuracies from which on somebody will ask
FEW = 200  # test samples of all clients, below which single ones can be seen in the headline


def title(runs: Sequence[RunReader]) -> str:
    """``fedproto, fedtgp, local on digits, 10 clients, Dirichlet 0.1``."""
    configs = [run.config for run in runs]
    methods = words_of(distinct(run.method for run in runs), MOST)
    sources = several((source(config["data"]["source"]) for config in configs), "data sets")
    clients = several((str(config["clients"]) for config in configs), "numbers of")
    partitions = several((partition(config["data"]["partition"]) for config in configs), "partitions")
    return f"{methods} on {sources}, {clients} clients, {partitions}"


def question(runs: Sequence[RunReader]) -> str:
    """The rest of what was run, in a sentence."""
    configs = [run.config for run in runs]
    rounds = several((str(config["rounds"]) for config in configs), "numbers of")
    families = several((family(run) for run in runs), "families of models")
    seeds = distinct(run.seed for run in runs)
    return f"{rounds} rounds, {families}, {'seeds' if len(seeds) > 1 else 'seed'} {span(seeds)}."


def family(run: RunReader) -> str:
    """How many architectures the clients have, and the family these are of."""
    models, kinds = run.config["models"], {client.architecture for client in run.data.clients}
    name = "own list" if models.get("members") else str(models["family"])
    return f"{len(kinds)} architectures ({name})" if len(kinds) > 1 else f"one architecture ({name})"


def source(table: Any) -> str:
    """The kind of a data source, and its file or folder where it has one."""
    if not isinstance(table, dict):
        return str(table)
    where = [str(value) for value in table.values() if isinstance(value, str) and "/" in value]
    return " ".join([str(table.get("kind", "own data")), *where[:1]])


def partition(table: Any) -> str:
    """``Dirichlet 0.1`` of a table that chooses a kind: its name, and its numbers."""
    if not isinstance(table, dict):
        return str(table)
    kind = str(table.get("kind", "given"))
    numbers = [f"{v:g}" for v in table.values() if isinstance(v, int | float) and not isinstance(v, bool)]
    name = "IID" if kind == "iid" else kind.replace("_", " ").capitalize()
    return " ".join([name, *numbers])


def several(values: Iterable[str], what: str) -> str:
    """The values, or how many there are where they are many."""
    found = distinct(values)
    return " / ".join(found) if len(found) <= MOST else f"{len(found)} {what}"


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in order of appearance."""
    return list(dict.fromkeys(values))


def span(seeds: Sequence[int]) -> str:
    """``1 to 5`` of whole numbers without a gap, else all of them."""
    found = sorted(set(seeds))
    if len(found) > 2 and found[-1] - found[0] == len(found) - 1:
        return f"{found[0]} to {found[-1]}"
    return words_of(found, 8)


def notices(runs: Sequence[RunReader], found: Sequence[dict[str, Any]]) -> list[str]:
    """Runs that have not ended, and for each group what its runs warn of."""
    by_label = {each["label"]: [runs[index] for index in each["runs"]] for each in found}
    return [*unfinished(runs), *noisy(by_label), *unwell(by_label), *inert_pulls(runs)]


def remarks(
    runs: Sequence[RunReader], found: Sequence[dict[str, Any]], comparison: Mapping[str, Any] | None
) -> list[str]:
    """Sentences that explain numbers at which a reader may wonder: each once, in the words of the first run."""
    whose: dict[str, list[str]] = {}  # by sentence: what holds for several methods is said once
    for group in found:
        ended = [runs[index] for index in group["runs"] if runs[index].summary is not None]
        for text in (text for run in ended[:1] for text in surprises(run)):
            whose.setdefault(text, []).append(group["label"])
    told = [text if len(names) == len(found) else f"{', '.join(names)}: {text}" for text, names in whose.items()]
    for each in (comparison or {}).get("gains", []):
        over = each.get("over")
        if over is not None and over["high"] < 0:
            told.append(
                f"{each['label']} is worse than {(comparison or {})['against']} by {-100 * over['mean']:.1f} points, "
                "and not by chance: on these data, with these settings, it costs accuracy."
            )
    return told


def surprises(run: RunReader) -> Iterator[str]:
    """What is odd about the headline of a run that has ended."""
    summary, last = run.ended, run.scored[-1] if run.scored else None
    accuracy, test = summary.get("accuracy"), summary.get("test", {})
    if accuracy is None:
        return
    better = max((rule for rule in test if rule != "method"), key=lambda rule: test[rule]["weighted"], default=None)
    if better is not None and test[better]["weighted"] > accuracy + ODD:
        yield (
            f"by another rule ({RULES.get(better, better)}) the same models reach {test[better]['weighted']:.1%}, "
            f"where the method's own has {accuracy:.1%}. What a model knows and how it answers are two things: see the "
            "table of rules below."
        )
    if last is not None and last.accuracy is not None and abs(last.accuracy - accuracy) > ODD / 2:
        rounds = span(summary["made"]["rounds"])
        yield (
            f"the headline is of round {rounds}, {PROTOCOLS.get(summary['made']['protocol'], 'as chosen')}; the last "
            f"round has {last.accuracy:.1%}."
        )
    if run.data.clients and 0 < (samples := sum(sum(each.test) for each in run.data.clients)) < FEW:
        yield f"there are {samples} test samples in all, so one of them is {1 / samples:.1%}."


def noisy(by_label: Mapping[str, Sequence[RunReader]]) -> list[str]:
    """For each group whose uploads have noise, what that gives: a guarantee, or none."""
    found = []
    for label, runs in by_label.items():
        told = worst(run.rounds[-1].privacy for run in runs if run.rounds)
        if told is not None:
            found.append(f"{label}: privacy: {in_words(told)}.")
    return found


def unfinished(runs: Sequence[RunReader]) -> list[str]:
    """One sentence on all runs that have no end."""
    open_ = [(name, run) for name, run in zip(groups.names(runs), runs, strict=True) if run.summary is None]
    if not open_:
        return []
    if len(open_) == 1:
        name, run = open_[0]
        return [f"{name} {state(run)}. Its numbers are those of its latest evaluation."]
    each = words_of([f"{name} {state(run)}" for name, run in open_], 8)
    return [f"{len(open_)} of {len(runs)} runs are not complete: {each}. Means are over those that are, if any."]


def state(run: RunReader) -> str:
    """How far a run came that has no end."""
    done = run.rounds[-1].round if run.rounds else 0
    verb = "failed after" if (run.path / "error.txt").is_file() else "has not ended:"
    return f"{verb} round {done} of {run.config.get('rounds', '?')}"
