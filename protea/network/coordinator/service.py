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
from protea.core.errors import ConfigError, PayloadError
from protea.core.files import hold_lock, write_json
from protea.engines.flower.door import DoorLimits
from protea.engines.flower.grid import Carrier, Network, NodeInfo
from protea.engines.flower.link import Link
from protea.engines.messages import readable
from protea.federation.jobs import Reply
from protea.federation.loop import Federation, QuorumError
from protea.federation.record import Record
from protea.network.coordinator.directory import CoordinatorDirectory, Invited
from protea.network.coordinator.run import CoordinatedRun
from protea.network.coordinator.status import Guest, Show, Status, told
from protea.network.trust import keys
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
        self.status = Status(self.task)
        self.kept: dict[str, Any] = {}  # the status as status.json has it
        self.given_up: set[int] = set()  # absent sites that rounds no longer wait for
        self.tries = 0  # of the current round, which had too few replies each time
        self.loop: Federation | None = None  # the current round loop
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
            network = Network(
                self.carrier or self._link(),
                place=lambda client: client,
                name=self._who,
                deadline=self.task.deadline,
                limit=in_bytes(self.task.limits.upload),
                sign=self.directory.signer,
                hello={"task": self.task.mark()},
            )
            with closing(network):
                setup.network = network
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
                self.tries += 1
                self.refusals.update(error.refused)
                for client in error.refused:
                    self.status.sites[client].refused += 1
                pause = min(PAUSE * 2 ** min(self.tries, 10), LONGEST)
                self._tell(f"{error}  The round is begun anew in {pause:g} s.")
                time.sleep(pause)

    def _link(self) -> Link:
        """Make the SuperLink.  With TLS, its certificate is renewed to name every address it is reached at."""
        directory, limits = self.directory, None
        if directory.guests.tls:
            limits = DoorLimits.of(in_bytes(self.task.limits.upload), max(MANY, len(directory.guests.sites)))
            wide = self.listen in ("0.0.0.0", "::")
            keys.renew_server(
                directory.path / "keys", [directory.guests.host, *keys.HERE, *([] if wide else [self.listen])]
            )
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
        while True:
            sites = self._register(network)
            loop.clients = len(sites)
            network.meet()
            out = [number for number in range(len(sites)) if sites[number].removed or loop.ledger.quarantined(number)]
            here = [number for number in sorted(network.online) if number not in out]
            self.given_up -= set(here)
            invited = [number for number in range(len(sites)) if number not in out]
            missing = [number for number in invited if number not in here and number not in self.given_up]
            enough = bool(here) and participants(len(here), self.task.fraction) >= self.task.quorum
            if enough and (not missing or time.monotonic() > end):
                for number in missing:
                    self.given_up.add(number)
                    self._tell(f"{sites[number].name} is not there; rounds go on without it until it comes.")
                self.status.doing = "training"
                self._see(network, sites)
                return here
            names = ", ".join(sites[number].name for number in invited if number not in here)
            self.status.doing = (
                f"waiting for {names or 'sites to be invited'} ({len(here)} of {self.task.quorum} there)"
            )
            self._see(network, sites)
            time.sleep(0.5)

    def _all_there(self, loop: Federation, network: Network) -> bool:
        """Whether every site that the next round would wait for is connected, and these are enough."""
        network.meet()
        sites = self.directory.guests.sites
        out = [number for number, site in enumerate(sites) if site.removed or loop.ledger.quarantined(number)]
        wanted = [number for number in range(len(sites)) if number not in {*out, *self.given_up}]
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
            if connected != guest.connected:
                guest.connected = connected
                self._tell(f"{guest.name} has {'come' if connected else 'gone'}.")
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
        self.status.sites[numbers[0]].model = readable(str(model))[:80]
        return numbers[0]

    # Calls of the run, which the coordinator observes

    def started(self, run: Run) -> None:
        self.status.round = run.records[-1].round if run.records else 0

    def replied(self, reply: Reply) -> None:
        guest = self.status.sites[reply.client]
        guest.said = "answered" if reply.error is None else reply.error.strip().splitlines()[0][:200]
        self._tell()

    def round(self, record: Record) -> None:
        self.tries = 0
        self.refusals.clear()
        self.status.round, self.status.accuracy = record.round, record.accuracy
        for client in record.refused:
            self.status.sites[client].refused += 1
        for each in record.clients:
            if each.accuracy is not None:
                self.status.sites[each.client].accuracy = each.accuracy
            if each.gain is not None:
                self.status.sites[each.client].gain = each.gain
        for client, why in record.failures.items():
            self._tell(f"Left out, {self.status.sites[client].name}: {why.strip().splitlines()[0]}")
        accuracy = "" if record.accuracy is None else f", accuracy {100 * record.accuracy:.1f} %"
        took = sum(record.cost.seconds.values())
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
