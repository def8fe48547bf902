"""The headline numbers of a run, and how they were made."""

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
from protea.federation.record import Record
from protea.runs import warnings


def summarise(experiment: Experiment, records: list[Record], data: Federated) -> dict[str, Any]:
    """The headline numbers of a run, beside the majority predictor's."""
    settings = experiment.evaluation
    majority: float | None = data.majority()
    if math.isnan(data.majority()) or (settings.clients == "participants" and experiment.fraction < 1):
        majority = None  # accuracy is of some clients only
    return summary(experiment.method, settings, records, data.dataset.names, majority)


def summary(
    method: Any, settings: Evaluation, records: list[Record], names: Sequence[str], majority: float | None = None
) -> dict[str, Any]:
    """The headline numbers and how they were made; ``majority`` is what answering the commonest class would give."""
    main = headline(records, settings.protocol)
    protocols = {name: found for name in get_args(Protocol) if (found := report(records, name)) is not None}
    last = next((record for record in reversed(records) if record.shared or record.server), None)
    return {
        "method": method_label(method),
        "rounds": records[-1].round if records else 0,
        "accuracy": main.test["method"].weighted if main else None,
        "made": made(main, settings),
        "test": {rule: asdict(score) for rule, score in main.test.items()} if main else {},
        "protocols": {name: asdict(found) for name, found in protocols.items()},
        "shared": {rule: asdict(score) for rule, score in last.shared.items()} if last else {},
        "server": last.server if last else {},
        "shared_round": last.round if last else None,  # which both are of
        "majority": majority,
        "bytes_up": records[-1].total_up if records else 0,
        "bytes_down": records[-1].total_down if records else 0,
        "failures": sum(len(record.failures) for record in records),
        "refused": dict(Counter(client for record in records for client in record.refused)),  # times, by client
        "warnings": warnings.warnings(records, majority, names),
        "cost": {
            "seconds": sum(sum(record.cost.seconds.values()) for record in records),
            "memory": max((record.cost.memory for record in records), default=0),
        },
    }


def made(main: Reported | None, settings: Evaluation) -> dict[str, Any]:
    """How the headline accuracy was made: two numbers compare only if all but the rounds are the same."""
    return {
        "rule": "method",
        "scope": SCOPES["own"],
        "weighting": WEIGHTINGS["weighted"],
        "protocol": main.protocol if main else settings.protocol,
        "rounds": main.rounds if main else [],
        "clients": settings.clients,
        "when": settings.when,
        "every": settings.every,
    }
