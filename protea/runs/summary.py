"""The summary of a run: its headline numbers, and by which rule, samples and rounds they were computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from protea.config.experiment import Experiment, method_label
from protea.config.sections import Evaluation
from protea.config.words import SCOPES, WEIGHTINGS, Protocol
from protea.data import Federated
from protea.evaluation.protocols import Reported, headline, report
from protea.federation.played import method_of
from protea.federation.privacy import in_words
from protea.federation.record import Record
from protea.runs import warnings
from protea.runs.steps import epoch_steps, mean_steps


def summarise(experiment: Experiment, records: list[Record], data: Federated) -> dict[str, Any]:
    """Summarise a simulation, with the accuracy of the majority-class predictor on the same test samples."""
    settings = experiment.evaluation
    majority: float | None = data.majority()
    if math.isnan(data.majority()) or (settings.clients == "participants" and experiment.fraction < 1):
        majority = None  # the accuracy is of some clients only, and does not compare
    plan = experiment.training
    by_client = {
        client: plan.epochs * epoch_steps(len(share.train), plan.batch, plan.last)
        for client, share in enumerate(data.shares)
    }
    steps = mean_steps(by_client, records)
    return summary(method_of(experiment), settings, records, data.dataset.names, majority, steps)


def summary(
    method: Any,
    settings: Evaluation,
    records: list[Record],
    names: Sequence[str],
    majority: float | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """Compute the content of ``summary.json`` from the records of a run.

    ``names`` are those of the classes; ``majority`` is the accuracy of always answering a client's commonest class;
    ``steps`` are the SGD steps of a client on its own samples, which a federation over a network does not know.
    """
    main = headline(records, settings.protocol)
    protocols = {name: found for name in get_args(Protocol) if (found := report(records, name)) is not None}
    last = next((record for record in reversed(records) if record.shared or record.server), None)
    return {
        "method": method_label(method),
        "rounds": records[-1].round if records else 0,
        "steps": steps,  # of SGD, of a client on its own samples, mean over clients
        "accuracy": main.test["method"].weighted if main else None,
        **honest(records, main),
        "made": made(main, settings),
        "test": {rule: asdict(score) for rule, score in main.test.items()} if main else {},
        "protocols": {name: asdict(found) for name, found in protocols.items()},
        "shared": {rule: asdict(score) for rule, score in last.shared.items()} if last else {},
        "server": last.server if last else {},
        "shared_round": last.round if last else None,  # the round of both
        "majority": majority,
        "bytes_up": records[-1].total_up if records else 0,
        "bytes_down": records[-1].total_down if records else 0,
        "failures": sum(len(record.failures) for record in records),
        "refused": dict(Counter(client for record in records for client in record.refused)),  # how often, by client
        **privacy_of(records),
        "warnings": {
            **warnings.warnings(records, majority, names),
            **warnings.undecided(records, settings.protocol),
            **warnings.about_names(names, method.needs.text_encoder is not None),
        },
        "cost": {
            "seconds": sum(sum(record.cost.seconds.values()) for record in records),
            "memory": max((record.cost.memory for record in records), default=0),
        },
    }


def privacy_of(records: Sequence[Record]) -> dict[str, Any]:
    """Tell what holds for the privacy of all clients after the last round; nothing where nothing is noisy."""
    if not records or (found := records[-1].privacy) is None:
        return {}
    return {"privacy": {**found.line(), "formal": found.formal, "words": in_words(found)}}


def honest(records: Sequence[Record], main: Reported | None) -> dict[str, float]:
    """Return the accuracy of honest clients in the reported rounds, as ``honest``; nothing for runs without an attack.

    The rounds are those that are reported for all clients.
    """
    found = [each.honest for each in records if main and each.round in main.rounds and each.honest is not None]
    return {"honest": math.fsum(found) / len(found)} if found else {}


def made(main: Reported | None, settings: Evaluation) -> dict[str, Any]:
    """Describe how the headline accuracy was computed: two runs compare only if all but ``rounds`` is the same."""
    return {
        "rule": settings.answer,
        "scope": SCOPES["own"],
        "weighting": WEIGHTINGS["weighted"],
        "protocol": main.protocol if main else settings.protocol,
        "rounds": main.rounds if main else [],
        "clients": settings.clients,
        "when": settings.when,
        "every": settings.every,
    }
