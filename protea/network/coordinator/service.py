"""The coordinator's service: it plays the rounds of a federation by the usual round loop, with sites as clients."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from protea.config.sections import participants
from protea.config.units import in_bytes
from protea.core.errors import CheckpointError, ConfigError, PayloadError
from protea.core.files import hold_lock, write_json
from protea.engines.flower.admission import DoorLimits
from protea.engines.flower.grid import Carrier, Network, NodeInfo
from protea.engines.flower.link import Link
from protea.engines.messages import readable
from protea.federation.jobs import Job, Reply
from protea.federation.loop import Federation, QuorumError
from protea.federation.record import Record
from protea.network.coordinator.certificates import Certificates
from protea.network.coordinator.directory import CoordinatorDirectory, Invited
from protea.network.coordinator.ledger import NAME as LEDGER
from protea.network.coordinator.ledger import LedgerEntry, add_entry
from protea.network.coordinator.run import CoordinatedRun
from protea.network.coordinator.status import Guest, Show, Status, told
from protea.network.trust.keys import HERE
from protea.network.trust.signatures import SignedAnswer, holds, unsealed
from protea.runs.observers import Observer
from protea.runs.run import Run

PAUSE, LONGEST = 1.0, 60.0  # seconds before a round with too few replies is repeated: at first, at most
MANY = 16  # sites that the door has room for at least; others may be invited while it is open
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Coordinator(Observer):
    """The coordinator of a federation: it plays the rounds, and shows which sites take part."""

    def __init__(
        self, directory: CoordinatorDirectory, show: Show, listen: str | None = None, carrier: Carrier | None = None
    ) -> None:
        self.directory, self.show, self.task, self.carrier = directory, show, directory.task, carrier
        guests = directory.guests
        self.listen = listen or ("0.0.0.0" if guests.tls else "127.0.0.1")
        if not guests.tls and self.listen not in LOOPBACK:
            raise ConfigError(
                f"Without TLS, sites are not told apart and anybody can read along: {self.listen} is refused.  "
                f"Make the federation with protea federation init --tls HOST."
            )
        if self.task.method.needs.public_data and directory.public is None:
            raise ConfigError(
                f"The method needs public data, and {directory.path} has no public.safetensors.  "
                f"Make the federation with protea federation init --public FILE."
            )
        self.mark = self.task.mark()
        self.certificates: Certificates | None = None  # of a server with TLS
        self.status = Status(self.task)
        self.kept: dict[str, Any] = {}  # the status as status.json has it
        self.given_up: set[int] = set()  # absent sites that rounds no longer wait for
        self.loop: Federation | None = None  # the current round loop
        self.run: Run | None = None  # the current try at the rounds that are left
        self.setup: CoordinatedRun | None = None
        self.refusals: Counter[int] = Counter()  # by site, in failed tries of the current round, which are in no record

    def serve(self) -> dict[str, Any]:
        """Play all rounds that are left, and return the summary of the run."""
        path = self.directory.path / "run"
        taken = f"{path} is being written by another process.  Wait, or stop that one."
        with hold_lock(self.directory.path / ".lock", taken):
            setup = CoordinatedRun(self.directory, self.task, self._roster)
            run = Run(setup, path)
            if run.ended:
                return run.result.summary
            if run.directory is not None and not run.directory.begun:
                setup.refuse_outdated_bundles()
            carrier = self.carrier or self._link()  # which makes certificates anew
            network = Network(
                carrier,
                place=lambda client: client,
                name=self._who,
                deadline=self.task.deadline,
                late=self.task.late,
                quorum=self.task.quorum,
                limit=in_bytes(self.task.limits.upload),
                sign=self.directory.signer,
                opened=self._opened,
                hello=self._hello(),
            )
            self._tell("The server is up.")
            with closing(network):
                setup.network, self.setup = network, setup
                numbers = self._finish(setup, path)
        self.status.doing = "ended"
        self._tell("All rounds are done.")
        return numbers

    def _finish(self, setup: CoordinatedRun, path: Path) -> dict[str, Any]:
        """Play the rounds; repeat one that got too few replies, after a pause that doubles with every try."""
        while True:
            try:
                return Run(setup, path, observers=[self]).finish().summary
            except QuorumError as error:
                self.status.tries += 1
                self.refusals.update(error.refused)
                for client in error.refused:
                    self.status.sites[client].refused += 1
                pause = min(PAUSE * 2 ** min(self.status.tries, 10), LONGEST)
                self._tell(f"{error}  The round is begun anew in {pause:g} s.")
                time.sleep(pause)

    def _link(self) -> Link:
        """Make the SuperLink.  With TLS, its certificate is renewed to name every address it is reached at."""
        directory, limits = self.directory, None
        if directory.guests.tls:
            limits = DoorLimits.of(in_bytes(self.task.limits.upload), max(MANY, len(directory.guests.sites)))
            wide = self.listen in ("0.0.0.0", "::")
            hosts = [directory.guests.host, *HERE, *([] if wide else [self.listen])]
            self.certificates = Certificates(directory.path / "keys", hosts)
            self.certificates.renew()
        port, folder = directory.guests.port, directory.path / "flower"
        return Link(folder, self.listen, port, directory.tls, directory.site_keys, limits)

    def _roster(self, loop: Federation, network: Network) -> list[int]:
        """Wait until enough sites are connected for a round, and return their numbers.

        Missing sites are waited for as long as the task's ``patience``, once; then rounds go on without them.
        """
        if self.loop is not loop:
            self.loop = loop  # a new loop, which does not know the refusals of failed tries
            loop.ledger.refusals.update(self.refusals)
            loop.all_there = lambda: self._all_there(loop, network)
        self.status.round = loop.server.round
        end = time.monotonic() + self.task.patience
        self._renew_certificates(network)
        while True:
            sites = self._register(network)
            loop.clients = len(sites)
            network.meet()
            out = [number for number in range(len(sites)) if sites[number].removed or loop.ledger.quarantined(number)]
            here = [number for number in sorted(network.online) if number not in out]
            self.given_up = (self.given_up - set(here)) | network.punctuality.late
            invited = [number for number in range(len(sites)) if number not in out]
            missing = [number for number in invited if number not in here and number not in self.given_up]
            enough = bool(here) and participants(len(here), self.task.fraction) >= self.task.quorum
            if enough and (not missing or time.monotonic() > end):
                for number in missing:
                    self.given_up.add(number)
                    self._tell(f"{sites[number].name} is not there; rounds go on without it until it comes.")
                self.status.doing = "training"
                self._see(network, sites)
                return self._without_resting(here, network)
            names = ", ".join(sites[number].name for number in invited if number not in here)
            self.status.doing = (
                f"waiting for {names or 'sites to be invited'} ({len(here)} of {self.task.quorum} there)"
            )
            self._see(network, sites)
            time.sleep(0.5)

    def _without_resting(self, here: list[int], network: Network) -> list[int]:
        """Leave out the sites that sit out a round for having been late, if enough are left."""
        resting = network.punctuality.next_round(here)
        found = [number for number in here if number not in resting]
        enough = bool(found) and participants(len(found), self.task.fraction) >= self.task.quorum
        return found if enough else here

    def _all_there(self, loop: Federation, network: Network) -> bool:
        """Whether every site that the next round would wait for is connected, and these are enough."""
        network.meet()
        sites = self.directory.guests.sites
        out = [number for number, site in enumerate(sites) if site.removed or loop.ledger.quarantined(number)]
        late = network.punctuality.late
        wanted = [number for number in range(len(sites)) if number not in {*out, *self.given_up, *late}]
        here = [number for number in network.online if number not in out]
        enough = bool(here) and participants(len(here), self.task.fraction) >= self.task.quorum
        return enough and all(number in here for number in wanted)

    def _register(self, network: Network) -> tuple[Invited, ...]:
        """Read the list of invited sites, and register their keys so that the server admits these and no others."""
        sites = self.directory.guests.sites
        self._guests(sites)
        link = network.carrier
        if isinstance(link, Link) and link.tls is not None and link.keys != self.directory.site_keys:
            link.keys = self.directory.site_keys  # first: a connection that is lost meanwhile is made anew with them
            with network.connected():
                link.register(link.keys)
        self._see(network, sites)
        return sites

    def _guests(self, sites: Sequence[Invited]) -> None:
        """Bring the status up to date with the list of invited sites."""
        for site in sites[len(self.status.sites) :]:
            self.status.sites.append(Guest(site.name))
        for guest, site in zip(self.status.sites, sites, strict=True):
            guest.removed = site.removed

    def _see(self, network: Network, sites: Sequence[Invited]) -> None:
        """Bring the status up to date with who is connected, and report every change."""
        for number, guest in enumerate(self.status.sites):
            connected = number in network.online
            late = number in network.punctuality.late
            if (connected, late) != (guest.connected, guest.late):
                words = "is late; rounds go on without it until it answers" if late else "has gone"
                guest.connected, guest.late = connected, late
                self._tell(f"{guest.name} {'has come' if connected else words}.")
        strangers = {node: why for node, (why, _) in network.strangers.items()}
        for node in strangers.keys() - self.status.strangers.keys():
            self._tell(f"A node was turned away: {strangers[node]}")
        self.status.strangers = strangers
        self._tell()

    def _who(self, node: NodeInfo, about: Mapping[str, Any]) -> int:
        """Return the number of the site that a connected node is; raise :class:`PayloadError` if it is none of them.

        ``about`` is what the node says of itself: the name of its site and of its model.
        """
        sites = self.directory.guests.sites
        name, model = about.get("site"), about.get("model")
        numbers = [number for number, site in enumerate(sites) if site.name == name and not site.removed]
        if not numbers:
            raise PayloadError(f"a node says that it is {str(name)[:80]!r}, which was not invited.")
        key = sites[numbers[0]].key
        if key is not None and node.public_key != key.encode():
            raise PayloadError(f"a node says that it is {name!r}, and has another key than that site.")
        self._guests(sites)
        self.status.sites[numbers[0]].model = shown = readable(str(model)).replace("\n", " ")[:80]
        if self.setup is not None:
            self.setup.models[numbers[0]] = shown
        return numbers[0]

    def _hello(self) -> dict[str, Any]:
        """Return what sites are told when they are asked who they are: the task, and the newest certificate."""
        newest = {} if self.certificates is None else {"ca": self.certificates.authority}
        return {"task": self.mark, **newest}

    def _renew_certificates(self, network: Network) -> None:
        """Make certificates anew before they end, while sites are connected; tell of those that cannot be."""
        if self.certificates is None:
            return
        if self.certificates.renewed():
            self._tell("The server's certificate was made anew, before its end.")
            if isinstance(network.carrier, Link):
                network.carrier.take_certificates()
        now = self.certificates.warnings()
        for each in now:
            if each not in self.status.warnings:
                self._tell(f"Warning: {each}")
        self.status.warnings = now

    def _opened(self, job: Job, part: bytes) -> bytes:
        """Return a site's answer once its signature holds, and is in the ledger; :class:`PayloadError` if not."""
        site, signature, answer = self.directory.guests.sites[job.client], b"", part
        if site.key is not None:
            signature, answer = unsealed(part)
        said = SignedAnswer.of(self.mark, site.name, job.task, job.round, answer)
        if site.key is not None and not holds(said.text, signature, site.key.encode()):
            raise PayloadError(f"an answer came that {site.name} has not signed.")
        path = self.directory.path / "run" / LEDGER
        try:
            add_entry(path, LedgerEntry.of(said, job.client, answer, signature, site.key or ""))
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be written: {error.strerror}.\n  Nothing that was complete is lost.  Put that right "
                f"(free space, permissions), then: protea federation serve {self.directory.path}"
            ) from error
        return answer

    # Calls of the run, which the coordinator observes

    def started(self, run: Run) -> None:
        self.run = run
        if run.records:
            last = run.records[-1]
            self.status.round = last.round
            self.status.bytes_up, self.status.bytes_down = last.total_up, last.total_down

    def replied(self, reply: Reply) -> None:
        guest = self.status.sites[reply.client]
        error = None if reply.error is None else reply.error.strip().splitlines()[0][:200]
        guest.said = "answered" if error is None else error if self.setup is None else self.setup.named(error)
        self._tell()

    def round(self, record: Record) -> None:
        status, took = self.status, sum(record.cost.seconds.values())
        if self.run is not None and self.setup is not None:
            self.setup.describe_anew(self.run)
        self.refusals.clear()
        status.round, status.tries, status.seconds, status.ended = record.round, 0, took, time.time()
        status.bytes_up, status.bytes_down = record.total_up, record.total_down
        status.accuracy = record.accuracy
        status.loss = status.loss if record.loss is None else record.loss
        for client in record.refused:
            self.status.sites[client].refused += 1
        for each in record.clients:
            if each.accuracy is not None:
                self.status.sites[each.client].accuracy = each.accuracy
            if each.gain is not None:
                self.status.sites[each.client].gain = each.gain
        for client, why in record.failures.items():
            name, first = self.status.sites[client].name, why.strip().splitlines()[0]
            self._tell(f"Left out, {name}: {first.removeprefix(f'{name}, ')}")
        accuracy = "" if record.accuracy is None else f", accuracy {100 * record.accuracy:.1f} %"
        self._tell(
            f"Round {record.round} of {self.task.rounds}{accuracy}, {len(record.participants)} sites, {took:.1f} s"
        )

    def _tell(self, news: str | None = None) -> None:
        """Show the status, with a line of news if there is one, and keep it for pages that follow it."""
        now = told(self.status)
        if now != self.kept:
            self.kept = now
            with suppress(OSError):  # a full disk stops the run where it writes its records, with what to do
                write_json(self.directory.path / "status.json", now)
        self.show(self.status, news)


def serve(path: Path, show: Show, listen: str | None = None) -> dict[str, Any]:
    """Serve the federation in a directory to its end."""
    return Coordinator(CoordinatorDirectory.open(path), show, listen).serve()
