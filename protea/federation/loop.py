"""The round loop.  Read this file first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from protea.config.sections import participants
from protea.core.devices import torch_threads
from protea.core.errors import ClientError, PayloadError, ProteaError
from protea.core.message import Named
from protea.core.method import Method
from protea.core.payload import pack, unpack
from protea.core.process_memory import peak_memory
from protea.core.samples import Samples
from protea.core.server import Server
from protea.evaluation.client_side import serve
from protea.evaluation.examination import Snapshot
from protea.evaluation.scores import ClientScores, finite
from protea.evaluation.server_side import Judged, Together
from protea.federation.faults import Absence, draw_absences
from protea.federation.jobs import Job, JobEngine, JobKind, Reply, Watch, ignore
from protea.federation.ledger import Ledger
from protea.federation.plan import FederationPlan
from protea.federation.privacy import Privacy, worst
from protea.federation.record import ClientRecord, Cost, Record, accuracy_without
from protea.federation.round import Reader, Round
from protea.federation.sampling import sample
from protea.federation.secure_round import SecureRound
from protea.federation.uploads import Accepted, Inspection, by_client, refuse_infinite
from protea.filters.secure_sum import secure_sum_of

WHY: dict[Absence, str] = {
    "dropped out": "dropped out",
    "late": "was late",
    "quarantined": "is in quarantine",
    "spent": "has spent its privacy budget",
}
GROUP = 64  # clients whose answers on the shared test set are in memory at once


class QuorumError(ClientError):
    """A round that got fewer usable uploads than it needs, or any failure where none is allowed.

    ``refused`` are the clients whose upload was not what the method declares.
    """

    def __init__(self, message: str, refused: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.refused = list(refused)


class Federation:
    """The round loop: a method, played by a server and by the clients that an engine reaches.

    :meth:`run` yields one :class:`Record` for each round.
    """

    def __init__(
        self,
        method: Method[Any, Any],
        engine: JobEngine,
        server: Server,
        plan: FederationPlan,
        *,
        test: Samples | None = None,  # the test set on which all clients and the server's model are evaluated
        roster: Callable[[], Sequence[int]]
        | None = None,  # called before every round: the clients within reach; None = all
        watch: Watch = ignore,  # called with every reply as soon as it arrives
        named: Callable[[str], str] = str,  # puts names in the place of numbers in what is said of clients
    ) -> None:
        self.method, self.engine, self.server, self.plan = method, engine, server, plan
        self.test, self.roster, self.watch, self.named = test, roster, watch, named
        self.inspection = Inspection(method, server, plan.limits, plan.filters)
        self.secure = secure_sum_of(plan.filters)
        self.ledger = Ledger(plan.limits.quarantine)
        self.clients = plan.clients  # a federation over a network may grow
        self.here: Sequence[int] = range(plan.clients)  # clients within reach in this round
        self.chosen: Sequence[int] = ()  # the participants of the last round
        self.ahead: Round | None = None  # the next round, if its clients were asked to train already
        self.all_there: Callable[[], bool] = lambda: True  # whether the next round can begin without waiting
        self.started = False
        self.peaks: dict[int, int] = {}  # peak memory of worker processes in bytes, by process id

    def recall(self, records: Sequence[Record]) -> None:
        """Restore the ledger of bytes and refusals from the records of earlier rounds, before a run is resumed."""
        self.ledger = Ledger.of(records, self.plan.limits.quarantine)

    def start(self) -> None:
        """Let the method initialise the server's memory; called again, do nothing."""
        if not self.started:
            self.started, self.server.rounds = True, self.plan.rounds
            with self._on_server("start"):
                self.method.start_server(self.server)

    def run(self) -> Iterator[Record]:
        """Run rounds ``server.round + 1 .. rounds`` and yield one record for each."""
        while not self.done:
            yield self.play_round()

    @property
    def done(self) -> bool:
        """Whether all rounds were played, or no client has anything left of its privacy budget."""
        spent = bool(self.ledger.privacy) and all(map(self.ledger.spent, range(self.clients)))
        return spent or self.server.round >= self.plan.rounds

    def play_round(self) -> Record:
        """Play one round: choose clients, let them train, aggregate their uploads, evaluate."""
        self.start()
        self.server.round += 1
        this, self.ahead = self.ahead or self._choose(), None
        if self.plan.evaluation.when == "before":
            self._evaluate(this)
        self._train(this)
        self._aggregate(this)
        if self.plan.evaluation.when == "after":
            if self._goes_ahead():
                self._evaluate_and_go_ahead(this)
            else:
                self._evaluate(this)
        return self._recorded(this)

    # The steps of a round, in order

    def _choose(self) -> Round:
        """Begin a round: find the clients within reach, sample participants, and draw which of these are absent."""
        server = self.server
        self.here = range(self.clients) if self.roster is None else self.roster()
        self.chosen = chosen = self._sample()
        absent = draw_absences(self.plan.faults, chosen, self.clients, server.rng.at("round", server.round))
        absent |= {client: "quarantined" for client in chosen if self.ledger.quarantined(client)}
        absent |= {client: "spent" for client in chosen if self.ledger.spent(client)}
        settings = self.plan.evaluation
        judged = Judged(server.classes, server.dim, settings.rules, settings.metrics, self.plan.single_answers)
        return Round(chosen, absent, judged)

    def _train(self, this: Round) -> None:
        """Let the participants train.  Clients that sent nothing at all are not evaluated in this round either."""
        if not this.trained:
            with this.clock("train"):
                this.jobs = self._jobs("train", this.asked)
                this.replies = self._ask(this.jobs)
        self._note_absent(this.jobs, this.replies)
        self.ledger.note_privacy(this.replies)

    def _collect(self, this: Round) -> Accepted:
        """Check the uploads; those of a secure sum come in further steps, and as one."""
        if self.secure is None:
            with this.clock("server"), self._on_server("aggregate"):
                return self.inspection.accept(this.jobs, by_client(this.replies), this.absent)
        with this.clock("sum"), self._on_server("sum"):
            found = SecureRound(self.inspection, self.secure, this, lambda jobs: self._ask(jobs, ignore)).collect()
        self._note_absent(this.sum_jobs, this.sum_replies)
        return found

    def _aggregate(self, this: Round) -> None:
        """Check the uploads, and let the method aggregate those that are what it declares."""
        found = self._collect(this)
        with this.clock("server"), self._on_server("aggregate"):
            self._refuse_too_few(found, this.absent)
            if found.uploads:
                seen = self.inspection.together(found.uploads)
                this.changed = [new.client for old, new in zip(found.uploads, seen, strict=True) if new is not old]
                self.method.aggregate(self.server, seen)
                refuse_infinite(self.server)
        this.failures |= found.failures
        this.refused = found.refused
        self.ledger.count_refusals([client for client in this.chosen if client not in this.absent], found.refused)

    def _evaluate(self, this: Round) -> None:
        """Evaluate, in the rounds that are due, clients on their own samples and all models on the shared test set."""
        server, settings, judged = self.server, self.plan.evaluation, this.judged
        clients = self.here if settings.clients == "all" else this.chosen
        with this.clock("evaluate"):
            if settings.due(server.round, self.plan.rounds):
                self._judge("evaluate", clients, judged, this.failures)
                with self._on_server("evaluate"):
                    judged.known = self.method.global_prototypes(server)
                    if self.test is not None:
                        judged.server = serve(self.method, server, self.test)
            if self.test is not None and settings.shared_due(server.round, self.plan.rounds):
                judged.together = Together(self.test.y.cpu(), server.classes, settings.rules)
                for start in range(0, len(clients), GROUP):
                    self._judge("answer", clients[start : start + GROUP], judged.together, this.failures)

    def _goes_ahead(self) -> bool:
        """Whether this round is evaluated together with the training of the next one, in one message to each client."""
        round, last, settings = self.server.round, self.plan.rounds, self.plan.evaluation
        due = round < last and not self.done and self.test is None and settings.due(round, last)
        return due and getattr(self.engine, "several_jobs", False) and self.all_there()

    def _evaluate_and_go_ahead(self, this: Round) -> None:
        """Evaluate this round, and train the next: clients do both, one after the other, before they answer.

        The server is as it was after this round until the next one is played.
        """
        server, judged = self.server, this.judged
        jobs = self._jobs("evaluate", self.here if self.plan.evaluation.clients == "all" else this.chosen)
        with this.clock("evaluate"), self._on_server("evaluate"):
            judged.known = self.method.global_prototypes(server)
        server.round += 1
        self.ahead = ahead = self._choose()
        with ahead.clock("train"):
            ahead.jobs = self._jobs("train", ahead.asked)
            reader = Reader(server.round - 1, judged, self.watch)
            replies = self._ask([*jobs, *ahead.jobs], reader.watch)
        ahead.trained = True
        server.round -= 1
        asked = {job.client for job in jobs}
        for reply in replies:
            if reply.client in asked:  # its evaluation comes first, then what it trained
                asked.remove(reply.client)
                self._take(reply, reader, judged, this.failures)
            else:
                ahead.replies.append(reply)

    def _recorded(self, this: Round) -> Record:
        """Build the record of a finished round."""
        server, judged, clients, bad = self.server, this.judged, self._clients(this), self.plan.attackers
        return Record(
            round=server.round,
            participants=this.chosen,
            loss=this.loss,
            test=judged.scores("test"),
            validation=judged.scores("validation"),
            classes=judged.by_class(),
            mistakes=judged.mistakes(),
            shared=judged.shared(),
            server=judged.server,
            geometry=judged.geometry(),
            values={name: finite(value) for name, value in server.memory.items() if isinstance(value, float)},
            bytes_up=sum(reply.size for reply in [*this.replies, *this.sum_replies]),
            bytes_down=sum(job.size for job in [*this.jobs, *this.sum_jobs]),
            total_up=self.ledger.up.total(),
            total_down=self.ledger.down.total(),
            failures={client: self.named(why) for client, why in this.failures.items()},
            refused=this.refused,
            absent={client: str(why) for client, why in this.absent.items()},
            cost=Cost(this.clock.seconds, self.memory),
            clients=clients,
            metrics=judged.metrics("test"),
            validation_metrics=judged.metrics("validation"),
            privacy=worst(self.ledger.privacy.values()),
            honest=accuracy_without(clients, bad) if bad else None,
            changed=this.changed,
            train=judged.train(),
        )

    # Parts of these steps

    def _sample(self) -> list[int]:
        """Sample this round's participants among the clients within reach, in ascending order."""
        rng, count = self.server.rng.at("round", self.server.round), participants(len(self.here), self.plan.fraction)
        return sample(self.plan.sampler, self.here, count, self.server.round, rng)

    def _jobs(self, task: JobKind, clients: Sequence[int]) -> list[Job]:
        """Make a job for each client.  Clients that are sent the very same object share one packed copy of it."""
        jobs, last, packed = [], None, pack(None)
        with self._on_server("broadcast"):
            for client in clients:
                down = self.method.broadcast(self.server, client)
                if down is not last:
                    last, packed = down, pack(down)
                jobs.append(Job(task, self.server.round, client, packed))
        return jobs

    def _ask(self, jobs: Sequence[Job], watch: Watch | None = None) -> list[Reply]:
        """Run the jobs on the engine, and note the peak memory of the processes that replied."""
        replies = self.engine.map(jobs, watch or self.watch)
        self.peaks |= {reply.process: reply.memory for reply in replies if reply.process}
        return replies

    def _note_absent(self, jobs: Sequence[Job], replies: Sequence[Reply]) -> None:
        """Count the bytes of jobs and replies, and leave clients that sent nothing out of the rest of the round."""
        away = {reply.client for reply in replies if reply.away}
        self.here = [client for client in self.here if client not in away] if away else self.here
        self.ledger.count_bytes(jobs, replies)

    def _refuse_too_few(self, found: Accepted, absent: Mapping[int, Absence]) -> None:
        """Raise :class:`QuorumError` if a client failed and that stops the run, or if too few uploads are usable."""
        if found.failures and self.plan.failures == "stop":
            raise QuorumError(self.named(next(iter(found.failures.values()))), found.refused)
        if found.clients < self.plan.min_replies:
            reasons = [
                *([found.short] if found.short else []),
                *found.failures.values(),
                *(f"client {client} {WHY[why]}." for client, why in absent.items()),
            ]
            raise QuorumError(
                f"round {self.server.round}: {found.clients} usable replies came, {self.plan.min_replies} are "
                f"needed ({self.plan.quota}).  " + self.named("  ".join(reasons)),
                found.refused,
            )

    def _judge(self, task: JobKind, clients: Sequence[int], judge: Judged | Together, failures: dict[int, str]) -> None:
        """Evaluate clients: give each good reply to the judge, and note in ``failures`` why others are not used.

        Replies are parsed as they arrive, while other clients are still at work, and counted in the order of clients,
        so that sums of floats do not depend on timing.
        """
        reader = Reader(self.server.round, judge, self.watch)
        for reply in self._ask(self._jobs(task, clients), reader.watch):
            self._take(reply, reader, judge, failures)

    def _take(self, reply: Reply, reader: Reader, judge: Judged | Together, failures: dict[int, str]) -> None:
        """Give a good reply to the judge, or note why it is not used."""
        found = reader.found(reply)
        if not isinstance(found, ProteaError):
            judge.take(reply.client, found)
            return
        why = str(found)
        if isinstance(found, PayloadError):
            why = f"client {reply.client}, round {self.server.round}: its evaluation cannot be used: {why}"
        if self.plan.failures == "stop":
            raise ClientError(why) from found
        failures.setdefault(reply.client, why)

    def _clients(self, this: Round) -> list[ClientRecord]:
        """Build a record for each client that was asked to train or was evaluated, ordered by client."""
        scores, answers = this.judged.clients(), by_client(this.replies)
        found = {client: ClientRecord(**vars(each), client=client) for client, each in scores.items()}
        for job in this.jobs:
            client, replies = job.client, answers.get(job.client, [])
            losses = [finite(reply.metrics["loss"]) for reply in replies if "loss" in reply.metrics]
            found[client] = ClientRecord(
                **vars(scores.get(client, ClientScores())),
                client=client,
                bytes=self.ledger.bytes_of(client, [job, *this.sum_jobs], [*replies, *this.sum_replies]),
                loss=losses[0] if losses else None,
                privacy=next((told for reply in replies if (told := Privacy.read(reply.metrics)) is not None), None),
            )
        return [found[client] for client in sorted(found)]

    @property
    def memory(self) -> int:
        """The sum of the peak memory of this process and of all worker processes that have replied, in bytes."""
        return sum((self.peaks | {os.getpid(): peak_memory()}).values())

    @contextmanager
    def _on_server(self, purpose: str) -> Iterator[None]:
        """Run a server hook of the method, whose random draws come from a stream like ``server/round/12/aggregate``."""
        with torch_threads(self.plan.threads), self.server.rng.at("round", self.server.round).default(purpose):
            yield

    # Beside the rounds

    def prototypes(self) -> Any:
        """Return the global prototypes as they are now; ``None`` for methods that have none."""
        with self._on_server("look"):
            return self.method.global_prototypes(self.server)

    def look(self) -> Named:
        """Collect what a report draws: global and local prototypes as they are now, and the features of some clients.

        The keys are ``global.NAME``, ``CLIENT.NAME``, and ``server.NAME`` for what the method shows of its server.
        """
        server, found = self.server, Named()
        if (known := self.prototypes()) is not None:
            found = {f"global.{name}": tensor for name, tensor in pack(known).items()}
        with self._on_server("look"):
            found |= {f"server.{name}": tensor.cpu() for name, tensor in self.method.shown(server).items()}
        clients = self.here if self.plan.evaluation.clients == "all" else self.chosen
        for reply in self._ask(self._jobs("look", clients), ignore):
            try:
                if reply.error is None and (shown := unpack(Snapshot, reply.up)) is not None:
                    shown.check(server.classes, server.dim)
            except PayloadError:
                continue  # a picture without it is better than none
            whole = reply.client in clients[: self.plan.evaluation.features]
            parts = {name: t for name, t in reply.up.items() if whole or name.startswith("prototypes")}
            found |= {f"{reply.client}.{name}": tensor for name, tensor in parts.items()}
        return found
