"""A site's launcher: ``protea site join`` starts the client process of a site, and watches over it.

The client process talks to the server and trains (:mod:`protea.network.site.process`).  If it is killed, it is started
anew and goes on from what is on disk.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from protea.core import errors
from protea.core.errors import ConfigError, ProteaError
from protea.core.files import hold_lock
from protea.network.site.gains import gain_words, gains_of
from protea.network.site.progress import SiteProgress, read_progress

PATIENCE = 600.0  # seconds that a site keeps trying while the server refuses it
LAST = 5.0  # seconds for the last answer to be sent before the client process is stopped
SHORT = 10.0  # seconds: a process that ends sooner probably will end so again
TRIES = 3  # such early ends in a row before giving up
FAILED = 3  # exit code of a client process that has said why it cannot begin
DAY = 86_400.0  # seconds between looks at what ends soon
SERVE = "import sys; from protea.network.site.process import serve; serve(*sys.argv[1:])"

Tell = Callable[[str], None]


def join(path: Path, tell: Tell) -> None:
    """Take part in a federation until it ends or this process is interrupted; ``tell`` is called with news."""
    invitation = _invitation(path)
    taken = f"{path} takes part already, in another process.  Stop that one first."
    with hold_lock(path / ".lock", taken):
        (path / "ended").unlink(missing_ok=True)
        (path / "flower" / "connection.json").unlink(missing_ok=True)
        tell(f"Site {invitation['site']} connects to {invitation['address']}.  Stop with Ctrl-C; nothing is lost.")
        client = ClientProcess(path)
        try:
            watch(client, path, tell)
        finally:
            client.stop()


def _invitation(path: Path) -> Mapping[str, Any]:
    """Read as whom a site connects, and where; whether it can be trusted is looked at by the client process."""
    for needed in ("site.py", "site.toml"):
        if not (path / needed).is_file():
            raise ConfigError(f"{path} is not a site's directory: it has no {needed}.  Make one: protea site init")
    file = path / "bundle" / "bundle.json"
    if not file.is_file():
        raise ConfigError(
            f"{path} has no bundle yet.  Give the one that the coordinator sent: protea site check BUNDLE"
        )
    try:
        found: Mapping[str, Any] = json.loads(file.read_bytes())
        return {"site": str(found["site"]), "address": str(found["address"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error!r}.  Open the bundle again: protea site check BUNDLE"
        ) from None


def watch(client: ClientProcess, path: Path, tell: Tell) -> None:
    """Keep the client process running until the federation ends, and tell of connections and of what was sent."""
    screen, ends, shown = ConnectionNews(path, tell), -DAY, read_progress(path)
    followed = [News(path / "audit.jsonl", news_of, tell), News(gains_of(path), gain_words, tell)]
    while not (path / "ended").exists():
        if not client.alive:
            screen.refuse_failed(client.process.returncode)
            client.restart(tell)
        screen.look()
        if time.monotonic() > ends + DAY:
            ends = time.monotonic()
            for each in ending(path):
                tell(f"Warning: {each}")
        for news in followed:
            news.tell_more()
        shown = tell_progress(path, shown, tell)
        time.sleep(0.2)
    client.end()
    for news in followed:
        news.tell_more()
    tell_progress(path, shown, tell)
    tell(f"The coordinator has ended the federation.  The trained model is in {path / 'state'}.")


def ending(path: Path, today: dt.date | None = None) -> list[str]:
    """Return a warning for what ends within 30 days: the authority's certificate, and this site's policy."""
    from protea.network.trust.ends import SOON, warnings  # cryptography takes a while to import

    found, today = [], today or dt.datetime.now(dt.UTC).date()
    authority, policy = path / "bundle" / "ca.crt", path / "policy.toml"
    with suppress(OSError, ConfigError):  # the client process tells what cannot be read
        now = dt.datetime.combine(today, dt.time(), dt.UTC)
        found += warnings({"The certificate of this federation's authority": authority}, now)
    if found:
        found.append("Ask the coordinator for a new bundle: protea federation invite DIRECTORY --renew")
    with suppress(OSError, ValueError, RecursionError):
        last = tomllib.loads(policy.read_text("utf-8")).get("expires")
        if isinstance(last, dt.date) and last - today < SOON:
            found.append(f"{policy}: nothing leaves after {last}, its last day.  Agree anew, and set another date.")
    return found


def tell_progress(path: Path, shown: SiteProgress | None, tell: Tell) -> SiteProgress | None:
    """Tell how far the site is, and how accurate, if that is not what was told last; give what is told now."""
    now = read_progress(path)
    if now is not None and now != shown:
        tell(now.words())
    return now


class News:
    """A file of JSON lines that grows: what is added is told in words, what was there before is not."""

    def __init__(self, file: Path, words: Callable[[Mapping[str, Any]], str], tell: Tell) -> None:
        self.file, self.words, self.tell = file, words, tell
        self.seen = file.stat().st_size if file.exists() else 0  # bytes

    def tell_more(self) -> None:
        """Tell what was written since this was last called."""
        if not self.file.exists() or self.file.stat().st_size <= self.seen:
            return
        with self.file.open("rb") as file:
            file.seek(self.seen)
            whole, end, _ = file.read().rpartition(b"\n")  # what follows is a line still being written
        for line in audit_lines(whole):
            self.tell(self.words(line))
        self.seen += len(whole + end)


def audit_lines(text: bytes) -> Iterator[dict[str, Any]]:
    """Read lines of an audit; one that was not written to its end says nothing."""
    for line in text.splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def news_of(line: Mapping[str, Any]) -> str:
    """Tell what a line of the audit log says."""
    if "policy" in line:
        return f"Refused in round {line['round']}: {line['asked']}.  {line['policy']}  {line['words']}"
    if "words" in line:
        return f"Not answered: {line['words']}"
    return f"Sent in round {line['round']}: {line['task']}, {line['bytes']:,} bytes, {line['blake2b']}"


def refuse_for_ever(log: str) -> None:
    """Raise if these words are of an error that trying again will not mend, such as a wrong certificate."""
    if re.search("certificate (is not yet valid|has expired)", log, re.IGNORECASE):
        raise ProteaError(
            "By this machine's clock the server's certificate is not valid yet, or no longer.  Look at the clock "
            f"first: date.  If it is right, the coordinator's is wrong; tell them.  The words of the connection:\n{log}"
        )
    if re.search(
        "certificate.verify.failed|wrong.version.number", log, re.IGNORECASE
    ):  # other errors, as a lost connection, may go away
        raise ProteaError(
            "The server's certificate is not one of this federation's: either the bundle is of another federation, or "
            f"another server answers at that address.  The words of the connection:\n{log}"
        )


def hint_of(words: str) -> str:
    """Tell why the server may not let this site in, by the words of its refusal."""
    if found := re.search(r"by another clock; here it is ([\d:T+-]{1,40})", words):
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        return (
            f"The server does not let this site in: its clock says {found[1]}, the one of this machine {now}.  Set the "
            f"one that is wrong (here: timedatectl set-ntp true); trying again."
        )
    return "The server does not let this site in.  Maybe it does not know its key yet; trying again."


class ConnectionNews:
    """What the client process writes down of its connection, told when it changes."""

    def __init__(self, path: Path, tell: Tell) -> None:
        self.file, self.tell = path / "flower" / "connection.json", tell
        self.state = ""
        self.refused: float | None = None  # since when the server has not let this site in

    def read(self) -> tuple[str, str]:
        """Give the state of the connection, and words about it."""
        try:
            found = json.loads(self.file.read_bytes())
            return str(found["state"]), str(found["words"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", ""

    def refuse_failed(self, code: int) -> None:
        """Raise what the client process has raised before it could begin, if that is why it ended."""
        state, words = self.read()
        if code == FAILED and state == "failed":
            kind, _, why = words.partition(": ")
            raise getattr(errors, kind, ProteaError)(why)

    def look(self) -> None:
        """Tell if the connection has changed; raise if it will never be."""
        state, words = self.read()
        if state == "impossible":
            refuse_for_ever(words)
        if state == "refused" and self.refused is not None and time.monotonic() > self.refused + PATIENCE:
            raise ProteaError(
                f"The server has not let this site in for {PATIENCE:g} s.  It may have been removed from the "
                f"federation.  Ask the coordinator.  The server's words:\n{words}"
            )
        if state == self.state:
            return
        self.state = state
        if state == "connected":
            self.refused = None
            self.tell("Connected.")
        elif state == "refused":
            self.refused = self.refused or time.monotonic()
            self.tell(hint_of(words))
        elif state == "away":
            self.tell("The server cannot be reached; trying again.")


class ClientProcess:
    """The client process of a site, started, restarted and stopped from the process that watches over it."""

    def __init__(self, path: Path) -> None:
        self.path, self.short = path, 0
        self.log = path / "flower" / "client.log"
        self.log.parent.mkdir(exist_ok=True)
        self.log.parent.chmod(0o700)
        self._start()

    def _start(self) -> None:
        self.started = time.monotonic()
        with self.log.open("ab") as log:
            self.start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVE, str(self.path), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self.process.poll() is None

    def restart(self, tell: Tell) -> None:
        """Start the process anew; raise :class:`ProteaError` if it has ended at once several times in a row."""
        self.short = self.short + 1 if time.monotonic() < self.started + SHORT else 0
        with self.log.open("rb") as file:
            file.seek(self.start)
            words = "\n".join(file.read().decode(errors="replace").strip().splitlines()[-12:])
        if self.short >= TRIES:
            raise ProteaError(f"The client process ends as soon as it is started.  The end of {self.log}:\n{words}")
        tell(f"The client process ended ({self.process.returncode}); it is started anew.  {words}")
        self._start()

    def end(self) -> None:
        """Wait for the end of a process that has been told of it, but not for ever."""
        try:
            self.process.wait(LAST)
        except subprocess.TimeoutExpired:
            self.stop()

    def stop(self) -> None:
        """Stop the process if it runs: it tells the server that it leaves, if it can."""
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(LAST)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
