"""What the live page draws of the runs that a reader chose: the content of a report, as far as it is asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protea.federation.record import Record
from protea.report import compared, groups
from protea.report.content import details, rounded, together, totals
from protea.runs.directory import RunDirectory
from protea.runs.follower import RunFollower
from protea.runs.gain import is_local
from protea.runs.reader import RunReader
from protea.watch.collection import Collection
from protea.watch.places import mark_of
from protea.watch.rows import refusals

Plain = dict[str, Any]

FULL = 12  # runs that are sent with every rule, score and setting; of more, the headline's course alone
KEPT = 4  # runs whose clients are kept in memory
SLOW = 40  # ended runs beyond which nobody waits for intervals of gains: protea compare has them


class LiveContent:
    """Makes the content; what takes long is kept until the files it came from change."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._followers: dict[Path, RunFollower] = {}
        self._details: dict[Path, tuple[object, Plain]] = {}
        self._drawn: dict[Path, tuple[RunReader, bool, Plain]] = {}
        self._grouped: tuple[list[RunReader], list[Plain], list[Plain]] = ([], [], [])
        self._compared: tuple[object, Plain | None] = (None, None)
        self._used = threading.Lock()

    def of(self, marks: Sequence[str], shown: str | None) -> Plain:
        """The content of some runs.

        Clients, classes and prototypes are those of the run ``shown``; else of the first that has a round and goes on,
        or of the first that has a round.
        """
        with self._used:
            chosen = [self.collection.runs[mark] for mark in dict.fromkeys(marks) if mark in self.collection.runs]
            if not chosen:
                return {"version": self.collection.version, "runs": [], "marks": []}
            known = [mark_of(run.path) for run in chosen]
            begun = [place for place, run in enumerate(chosen) if run.rounds]
            going = [place for place in begun if chosen[place].summary is None]
            index = known.index(shown) if shown in known else next(iter(going or begun), 0)
            drawn = [self._course(run, len(chosen) <= FULL or place == index) for place, run in enumerate(chosen)]
            drawn[index]["details"] = self._detailed(chosen[index])
            watched = {run.path for run in self.collection.runs.values()}
            self._drawn = {path: each for path, each in self._drawn.items() if path in watched}
            grouped, differ = self._grouping(chosen)
            found = together(chosen, grouped, drawn, differ, self._comparison(chosen, differ))
            named = zip(found["runs"], chosen, strict=True)
            log = [{"run": run["name"], **each} for run, reader in named for each in refusals(reader)]
            log.sort(key=lambda each: -int(each["round"]))
            return {**found, "version": self.collection.version, "marks": known, "shown": index, "refusals": log[:200]}

    def _grouping(self, runs: Sequence[RunReader]) -> tuple[list[Plain], list[Plain]]:
        """The groups of runs and what differs that should not: as before while no settings are new and no run ends."""
        before = self._grouped[0]
        if len(before) != len(runs) or any(unlike(run, other) for run, other in zip(runs, before, strict=True)):
            self._grouped = (list(runs), groups.of(runs), groups.differences(runs))
        return [dict(group) for group in self._grouped[1]], self._grouped[2]

    def _course(self, run: RunReader, full: bool) -> Plain:
        """The totals of a run, as they were before if it has not changed: most of many runs have not."""
        before = self._drawn.get(run.path)
        if before is None or before[0] is not run or before[1] != full:
            self._drawn[run.path] = before = (run, full, self._totals(run, full))
        return dict(before[2])

    def _totals(self, run: RunReader, full: bool) -> Plain:
        told = totals(run)
        if not full:
            told |= {"config": {}, "environment": {}, "rules": ["method"], "light": True}
            course = {part: told["scores"][part].get("method", {}) for part in told["scores"]}
            told["scores"] = {part: {"method": {"weighted": each.get("weighted", [])}} for part, each in course.items()}
        return told

    def _detailed(self, light: RunReader) -> Plain:
        """Clients, classes and prototypes of a run, with each client's state and gain."""
        follower = self._followers.pop(light.path, None) or RunFollower(light.path)
        self._followers[light.path] = follower  # the latest used is the last
        for old in list(self._followers)[:-KEPT]:
            del self._followers[old]
            self._details.pop(old, None)
        run = follower.read()
        snapshots = tuple(RunDirectory(run.path).snapshots())
        reference = self._reference(run)
        mark = (id(run), snapshots, None if reference is None else (reference.path, len(reference.rounds)))
        before = self._details.get(run.path)
        if before is None or before[0] != mark:
            told = {**details(run, tsne=False), "states": states(run, reference)}
            self._details[run.path] = before = (mark, told)
        return before[1]

    def _reference(self, run: RunReader) -> RunReader | None:
        """A run of training alone on the same split and seed, among all that are watched."""
        if is_local(run.method) or run.split is None:
            return None
        others = [each for each in self.collection.runs.values() if is_local(each.method) and each.seed == run.seed]
        return next((each for each in others if each.split == run.split), None)

    def _comparison(self, runs: Sequence[RunReader], differ: list[Plain]) -> Plain | None:
        ended = [run for run in runs if run.summary is not None]
        if len(runs) > 1 and not differ and len(ended) > SLOW:
            return {"why": f"More than {SLOW} ended runs are chosen.  For the table of methods: protea compare"}
        mark = ([(run.path, id(run.summary)) for run in runs], differ)
        if self._compared[0] != mark:
            self._compared = (mark, compared.comparison(runs, differ))
        return self._compared[1]


def unlike(run: RunReader, before: RunReader) -> bool:
    """Whether more is new in a run than further rounds; before its first one its partition may be missing."""
    same = run.config is before.config and run.summary is before.summary and bool(run.rounds) == bool(before.rounds)
    return not same


def states(run: RunReader, reference: RunReader | None) -> list[Plain]:
    """Each client as it is now: what it did in the latest round, its latest accuracy, and its gain over training alone.

    The gain is that of the latest round in which both runs were evaluated, without an interval.
    """
    last = run.rounds[-1] if run.rounds else None
    every = [(record.round, each) for record in run.rounds for each in record.clients]
    latest = {each.client: (round, each.accuracy) for round, each in every if each.accuracy is not None}
    sent = {each.client: each.bytes.total_up + each.bytes.total_down for _, each in every if each.bytes}
    gains, refused = gains_now(run, reference), Counter(client for record in run.rounds for client in record.refused)
    found = []
    for client in run.data.clients:
        number, (when, accuracy) = client.client, latest.get(client.client, (None, None))
        found.append(
            {
                "client": number,
                "name": client.site or f"client {number}",
                "model": client.architecture,
                "samples": sum(client.train),
                "state": state_of(number, last),
                "accuracy": rounded(accuracy),
                "evaluated": when,
                "gain": rounded(gains.get(number)),
                "sent": sent.get(number, 0),
                "refused": refused[number],
            }
        )
    return found


def state_of(client: int, last: Record | None) -> str:
    """What became of a client in the latest round."""
    if last is None:
        return "waiting"
    if client in last.refused:
        return "refused"
    if client in last.failures:
        return "failed"
    if client in last.absent:
        return last.absent[client].strip().splitlines()[0][:80] if last.absent[client].strip() else "absent"
    return "trained" if client in last.participants else "not asked"


def gains_now(run: RunReader, reference: RunReader | None) -> dict[int, float]:
    """By client, its accuracy minus that in a run of training alone, in the latest round that both evaluated."""
    if reference is None:
        return {}
    rounds = {record.round for record in run.scored} & {record.round for record in reference.scored}
    if not rounds:
        return {}
    theirs = {each.client: each.accuracy for each in reference.clients_in([max(rounds)])}
    (common,) = [record for record in run.rounds if record.round == max(rounds)]
    ours = {each.client: each.accuracy for each in common.clients}
    return {
        client: accuracy - other
        for client, accuracy in ours.items()
        if accuracy is not None and (other := theirs.get(client)) is not None
    }
