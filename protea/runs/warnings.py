"""Warnings about a run whose numbers suggest that something went wrong, as sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from protea.config.words import Protocol
from protea.evaluation.protocols import accuracy_on_test, accuracy_on_validation, report
from protea.federation.record import Record

NEAR = 0.01  # differences in accuracy up to this count as none
ONE_ANSWER = 0.9  # of public samples with the same answer of the teacher, from which on it has collapsed
COLLAPSED = 0.01  # distance between global prototypes, as a share of the spread within a class
MATTERS = 0.005  # differences in accuracy from which on it matters which round is reported


def warnings(records: Sequence[Record], majority: float | None, names: Sequence[str]) -> dict[str, str]:
    """Find what looks wrong in the records of a run: one sentence for each kind of warning.

    ``majority`` is the accuracy of always answering a client's commonest class; ``names`` are those of the classes.
    """
    scored = [record for record in records if record.test]
    if not scored:
        return {}
    last = scored[-1]
    found = {
        "at majority": at_majority(last, majority),
        "never answered": nobody_answers(last, names),
        "collapsed": collapsed(last),
        "out of proportion": out_of_proportion(records),
        "one answer": one_answer(last),
        **{f"server {name}": doubt for name, doubt in not_falling(records).items()},
    }
    return {kind: warning for kind, warning in found.items() if warning is not None}


def undecided(records: Sequence[Record], protocol: Protocol) -> dict[str, str]:
    """Warn if held-out samples are too few to choose a round, and not the last one was chosen, though it matters.

    Rounds whose validation accuracy is less than a standard error below the best cannot be told from it.
    """
    chosen = report(records, "validation") if protocol == "validation" else None
    if chosen is None:
        return {}
    (round,) = chosen.rounds
    best = next(record for record in records if record.round == round)
    samples = sum(each.parts["validation"].samples for each in best.clients if "validation" in each.parts)
    highest, own = accuracy_on_validation(best), accuracy_on_test(best)
    latest = next(record for record in reversed(records) if record.test)
    if not samples or highest is None or own is None or latest is best:
        return {}
    share = (highest * samples + 2) / (samples + 4)  # Agresti and Coull: one that is all right is not certain
    error = math.sqrt(share * (1 - share) / (samples + 4))
    alike = [
        record
        for record in records
        if record.judged == best.judged and (accuracy_on_validation(record) or 0.0) >= highest - error
    ]
    found = [accuracy for record in alike if (accuracy := accuracy_on_test(record)) is not None]
    if max(found) - min(found) < MATTERS:
        return {}
    last = accuracy_on_test(latest)
    return {
        "undecided": f"{samples} validation samples cannot choose a round: {len(alike)} rounds are within one standard "
        f"error ({100 * error:.1f} points) of round {round}, which is reported with {own:.1%}.  On test samples these "
        f"rounds have {min(found):.1%} to {max(found):.1%}, the last one {last:.1%}.  Hold out more "
        f'(data.split.validation), or choose none: evaluation.protocol = "last5".'
    }


def about_names(names: Sequence[str], read: bool) -> dict[str, str]:
    """Warn if the method reads the names of classes, and these are mere numbers.

    >>> list(about_names(["0", "1"], read=True)), about_names(["cat", "dog"], read=True)
    (['names'], {})
    """
    numbers = [name for name in names if name.strip().isdecimal()]
    if not read or not numbers:
        return {}
    which = "All classes" if len(numbers) == len(names) else f"{len(numbers)} of {len(names)} classes"
    return {
        "names": f"{which} have numbers for names ({numbers[0]}, ...), and this method makes prototypes of the meaning "
        f"of names.  Give names in the data source, or a file of texts: method.descriptions."
    }


def at_majority(last: Record, majority: float | None) -> str | None:
    """Warn if always answering a client's commonest class would reach the same accuracy."""
    accuracy = last.accuracy
    if majority is None or accuracy is None or accuracy > majority + NEAR:
        return None
    return (
        f"Accuracy in round {last.round} is {accuracy:.1%}; always answering a client's commonest class has "
        f"{majority:.1%}.  Nothing was learned beyond that: try more rounds, another training.lr, or look at the "
        f"accuracy by head."
    )


def nobody_answers(last: Record, names: Sequence[str]) -> str | None:
    """Warn of classes that no client ever predicts, though there are test samples of them."""
    if not last.classes:
        return None
    pairs = zip(last.classes["samples"], last.classes["answers"], strict=True)
    missing = [names[c] for c, (samples, answers) in enumerate(pairs) if samples and not answers]
    if not missing:
        return None
    shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    return f"In round {last.round} no client answered {shown}, though there are test samples of it."


def collapsed(last: Record) -> str | None:
    """Warn if all global prototypes lie at one point."""
    lie = last.geometry
    if lie is None or lie.apart is None or lie.intra is None or lie.apart > COLLAPSED * lie.intra:
        return None
    return (
        f"Global prototypes lie at one point: none is more than {lie.apart:.2g} from the first, where samples of a "
        f"class are {lie.intra:.2g} from their prototype."
    )


def out_of_proportion(records: Sequence[Record]) -> str | None:
    """Warn of clients whose uploads filters changed in half of their rounds or more, while those of most others passed.

    Filters that give all clients the same vectors change everybody's, which says nothing.
    """
    odd = Counter(
        client for record in records if 2 * len(record.changed) < len(record.participants) for client in record.changed
    )
    rounds = Counter(client for record in records for client in record.participants)
    often = sorted(client for client, times in odd.items() if times > 1 and 2 * times >= rounds[client])
    if not often:
        return None
    shown = ", client ".join(f"{client} ({odd[client]} of {rounds[client]} rounds)" for client in often[:5])
    return (
        f"Class vectors were out of proportion to those of the others, and were changed by limits.bound or a filter, "
        f"of client {shown}{' and others' if len(often) > 5 else ''}.  Look at what it sends: docs/robustness.md."
    )


def one_answer(last: Record) -> str | None:
    """Warn of a teacher of public samples that gives nearly all of them the same answer."""
    share = last.values.get("teacher_commonest")
    if share is None or share < ONE_ANSWER:
        return None
    return (
        f"What the clients tell the server of public samples is one class for {share:.0%} of them: the server learns "
        f"that answer, and clients study it.  Average probabilities (method.teacher=probabilities, where there is "
        f"such a field), train longer before the first upload, or give clients more samples."
    )


def not_falling(records: Sequence[Record]) -> dict[str, str]:
    """Warn of losses of the server that are not finite, or no lower at the end than when they first appeared."""
    found = {}
    for name, now in records[-1].values.items():
        if now is None:
            found[name] = f"The server's {name} is not a number: it has diverged.  Try a smaller learning rate there."
        values = [value for record in records if (value := record.values.get(name)) is not None]
        if now is not None and name.endswith("loss") and len(values) >= 5 and values[-1] >= values[0]:
            found[name] = (
                f"The server's {name} did not fall: {values[0]:.3g} at first, {values[-1]:.3g} in the last round."
            )
            if (bound := records[-1].values.get(f"{name}_bound")) is not None:
                found[name] += f"  With these uploads nothing could bring it below {bound:.3g}."
    return found
