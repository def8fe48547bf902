"""Which number of a run is compared: by which rule, on which samples, of which rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protea.config.words import LOWER_IS_BETTER, MEASURES, PROTOCOLS, SCOPES, WEIGHTINGS
from protea.core.errors import ConfigError, nearest
from protea.federation.record import Record
from protea.runs.reader import RunReader
from protea.runs.settings_diff import who


@dataclass(frozen=True)
class ComparedNumber:
    """Which of a run's numbers is compared: see docs/evaluation.md."""

    rule: str
    scope: str
    weighting: str  # over clients; accuracy and own metrics on the clients' own samples have a choice
    protocol: str
    measure: str  # a built-in one, or the name of a metric of the user's own

    @property
    def built_in(self) -> bool:
        """Whether it is a share of samples or an error between 0 and 1; a metric of the user's own may be anything."""
        return self.measure in MEASURES

    def of(self, record: Record) -> float | None:
        """The number in a round's record, if it is there."""
        if self.scope == "server":
            return record.server.get(self.rule)
        if self.scope != "own":
            shared = record.shared.get(self.rule)
            return None if shared is None else shared.ensemble if self.scope == "ensemble" else shared.clients
        if not self.built_in:
            metric = record.metrics.get(self.measure)
            return None if metric is None else float(getattr(metric, self.weighting))
        score = record.test.get(self.rule)
        return None if score is None else float(getattr(score, self.weighting if self.by_accuracy else self.measure))

    @property
    def by_accuracy(self) -> bool:
        """Whether the number is an accuracy."""
        return self.measure == "accuracy"

    @property
    def of_samples(self) -> bool:
        """Whether the number is the share of the clients' own test samples that are answered right."""
        return self.scope == "own" and self.by_accuracy and self.weighting == "weighted"

    def rules(self, record: Record) -> list[str]:
        """The rules by which a round's record has numbers of this kind."""
        if self.scope == "own":
            return list(record.test)
        return list(record.server if self.scope == "server" else record.shared)

    def rounds(self, run: RunReader) -> list[int]:
        """The rounds that the protocol reports.  Where it looks for the best one, it goes by the method's own rule."""
        found = run.ended["protocols"].get(self.protocol)
        return found["rounds"] if found else []

    def reported(self, run: RunReader) -> float | None:
        """The run's number: the mean over the reported rounds; None if one of them has none."""
        chosen = self.rounds(run)
        values = [value for each in run.rounds if each.round in chosen and (value := self.of(each)) is not None]
        return math.fsum(values) / len(values) if values and len(values) == len(chosen) else None

    @property
    def lower_is_better(self) -> bool:
        """Whether smaller values of the measure are better, as of an error."""
        return self.measure in LOWER_IS_BETTER

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is as good as the target, or better."""
        return value <= target if self.lower_is_better else value >= target


def choose_number(
    runs: Sequence[RunReader],
    rule: str | None,
    scope: str,
    weighting: str | None,
    protocol: str | None,
    measure: str,
    anyway: bool = False,
) -> ComparedNumber:
    """The number to compare; what was not asked for is as in the runs' own headline."""
    refuse_unknown(scope, SCOPES, "--scope")
    refuse_unknown(measure, [*MEASURES, *_own_metrics(runs)], "--measure")
    if weighting is not None:
        refuse_unknown(weighting, WEIGHTINGS, "--weighting")
    if protocol is not None:
        refuse_unknown(protocol, PROTOCOLS, "--protocol")
    if scope != "own" and measure != "accuracy":
        raise ConfigError(f"--scope {scope} has the accuracy alone, not {measure}.  Leave out --measure.")
    own_metric = measure not in MEASURES
    if own_metric and rule not in (None, "method"):
        raise ConfigError(f"--measure {measure} is of the method's own answers.  Leave out --rule {rule}.")
    if weighting == "uniform" and (scope != "own" or not (own_metric or measure == "accuracy")):
        what = f"--scope {scope}" if scope != "own" else f"--measure {measure}"
        raise ConfigError(f"{what} is not weighted over clients.  Leave out --weighting.")
    if protocol is None:
        # Clients answer the shared test set in the last round, and in others only if they were told to.
        protocol = "final" if scope in ("ensemble", "shared") else _headline(runs, anyway)
    return ComparedNumber(
        rule or ("head" if scope == "server" else "method"), scope, weighting or "weighted", protocol, measure
    )


def refuse_unknown(value: str, names: Iterable[str], option: str) -> None:
    """Refuse a value that an option does not have."""
    names = list(names)
    if value not in names:
        raise ConfigError(f"{option} is {value!r}.  {nearest(value, names)}")


def _own_metrics(runs: Sequence[RunReader]) -> list[str]:
    """The metrics of the users' own that all runs have."""
    each = [dict.fromkeys(name for record in run.rounds for name in record.metrics) for run in runs]
    return [name for name in each[0] if all(name in names for names in each)]


def _headline(runs: Sequence[RunReader], anyway: bool) -> str:
    """The protocol that all runs report by; ``anyway``, the first one that all have numbers of."""
    found = [str(run.ended["made"]["protocol"]) for run in runs]
    if len(set(found)) == 1:
        return found[0]
    common = [name for name in PROTOCOLS if all(name in run.ended["protocols"] for run in runs)]
    if anyway and common:
        return common[0]
    raise ConfigError(
        f"The runs report by different protocols: {who(found, runs)}.\n"
        f"  All have numbers of these.  Choose one: --protocol {'|'.join(common)}"
    )
