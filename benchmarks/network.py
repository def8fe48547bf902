"""What a round over a network costs beyond the training: seconds, memory, bytes.

    python benchmarks/network.py [rounds] [--against COMMIT]

The three hospitals of ``examples/hospital``, each with its processes, over TLS on this machine.  Their training takes
some hundredths of a second, so that a round is almost all overhead.  The evaluation of a round travels with the
training of the next one: it takes no time of its own but in the last round.  Between each site and the server stands a
relay that counts bytes, as they would be on a cable.  Memory is resident, read from /proc (Linux).  The last line is
JSON; its bytes are those of one site in one round.

With ``--against`` the same is measured first by the code of a former commit, unpacked to a folder that is removed
again, and both are shown side by side: seconds of another day say little on a machine that others use too.
c32ee13~1 is the last one with a SuperNode at each site.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from protea.engines.flower.programs import free_port

ROOT = Path(__file__).parents[1]
SITES = ("north", "south", "coast")
PROTEA = [sys.executable, "-c", "from protea.cli.app import main; main()"]
SETTLED, IDLE = 20.0, 60.0  # seconds that a site waits before it counts as idle, and that are then counted


class Relay:
    """Passes bytes on to a port of this machine, and counts them."""

    def __init__(self, port: int) -> None:
        self.target, self.up, self.down = port, 0, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.socket.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            for source, sink, name in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pump, args=(source, sink, name), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        try:
            while block := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + len(block))
                sink.sendall(block)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()


def main(rounds: str = "10", against: str = "", commit: str = "") -> None:
    if against not in ("", "--against") or bool(against) != bool(commit):
        raise SystemExit(f"{against} {commit} is not understood.  Type: network.py [rounds] [--against COMMIT]")
    before = measured_at(commit, int(rounds)) if commit else None
    numbers = measured(ROOT, int(rounds))
    if before is not None:
        print(f"{commit} / now:")
        for name in ("train_s", "evaluate_s", "round_s", "coordinator_mb", "site_mb", "bytes_up", "bytes_down"):
            quotient = f"{before[name] / numbers[name]:.1f}" if numbers[name] > 0.01 else "no step of its own any more"
            print(f"  {name:<16}{before[name]:>10g} {numbers[name]:>10.3g}   {quotient}")
    print(json.dumps(numbers))


def measured_at(commit: str, rounds: int) -> dict[str, float]:
    """Measure the code of a former commit."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "former.tar"
        run("git", "-C", ROOT, "archive", "--output", archive, commit)
        shutil.unpack_archive(archive, Path(folder) / "former", filter="data")
        print(f"--- {commit}", flush=True)
        found = measured(Path(folder) / "former", rounds)
        print("--- now", flush=True)
        return found


def measured(code: Path, rounds: int) -> dict[str, float]:
    """Play a federation by the code in a folder, print what it took, and give the numbers of the last line."""
    work = Path(tempfile.mkdtemp())
    parties: list[subprocess.Popen[bytes]] = []
    former, os.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH"), str(code)
    try:
        os.chdir(work)  # Python looks for modules in the current folder first
        return measure(work, rounds, parties, code / "examples" / "hospital")
    finally:
        for party in parties:
            party.terminate()
            party.wait()
        os.environ["PYTHONPATH"] = former or ""
        os.chdir(ROOT)
        shutil.rmtree(work)


def measure(work: Path, rounds: int, parties: list[subprocess.Popen[bytes]], hospital: Path) -> dict[str, float]:
    directory, port = work / "federation", free_port()
    for site in SITES:
        shutil.copytree(hospital / site, work / site)
    run(sys.executable, hospital / "deal.py", *(work / site for site in SITES))
    names = ["--classes", "malignant,benign", "--sites", ",".join(SITES)]
    sizes = ["--dim", "32", "--rounds", rounds, "--quorum", "3", "--tls", "localhost", "--port", port]
    run(*PROTEA, "federation", "init", directory, *names, *sizes)
    relays = {site: Relay(port) for site in SITES}
    for site in SITES:
        run(*PROTEA, "site", "check", directory / "bundles" / f"{site}.protea", "--dir", work / site)
        redirect(work / site / "bundle" / "bundle.json", relays[site].port)

    joined = {site: start(work, parties, site, "site", "join", "--dir", work / site) for site in SITES[:2]}
    server = start(work, parties, "server", "federation", "serve", directory, "--listen", "127.0.0.1")
    until(lambda: b"south has come" in (work / "server.log").read_bytes())
    until(lambda: b"north has come" in (work / "server.log").read_bytes())
    time.sleep(SETTLED)
    before, started = relays["south"].up + relays["south"].down, time.monotonic()
    time.sleep(IDLE)
    idle = (relays["south"].up + relays["south"].down - before) / (time.monotonic() - started)

    joined["coast"] = start(work, parties, "coast", "site", "join", "--dir", work / "coast")
    metrics = directory / "run" / "metrics.jsonl"
    until(lambda: done(metrics) >= 1)
    first, began = {site: (relay.up, relay.down) for site, relay in relays.items()}, time.monotonic()
    until(lambda: done(metrics) >= rounds - 1, 600)
    took = time.monotonic() - began
    memory = {"coordinator": tree(server.pid)} | {site: tree(party.pid) for site, party in joined.items()}
    counted = {site: (relay.up - first[site][0], relay.down - first[site][1]) for site, relay in relays.items()}
    server.wait()

    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = [line["cost"]["seconds"] for line in lines if line["kind"] == "round"][1:]
    seconds = [{**each, "round": sum(each.values())} for each in seconds]
    print(f"seconds of a round, median of {len(seconds)} (min to max):")
    for step in ("train", "evaluate", "server", "round"):
        values = [each.get(step, 0.0) for each in seconds]
        print(f"  {step:<10}{median(values):8.2f}  ({min(values):.2f} to {max(values):.2f})")
    print(f"of the last one, whose evaluation is a message of its own: {seconds[-1]['evaluate']:.2f}")
    print("resident memory, MB:")
    for party, parts in memory.items():
        print(f"  {party:<12}{sum(parts.values()):6.0f}  " + ", ".join(f"{n} {mb:.0f}" for n, mb in parts.items()))
    print(f"bytes on the wire of a site, by round ({took / (rounds - 2):.1f} s each), and what our messages have:")
    audit = {
        site: [json.loads(line) for line in (work / site / "audit.jsonl").read_text().splitlines()] for site in SITES
    }
    for site in SITES:
        up, down = (count / (rounds - 2) for count in counted[site])
        own = [line for line in audit[site] if line["round"] == 2]
        said, numbers = sum(line["bytes"] for line in own), sum(line["numbers"] for line in own)
        print(f"  {site:<8} up {up:8.0f}  down {down:8.0f}  messages up {said:6.0f}  of which tensors {numbers:6.0f}")
    print(f"bytes of a site that waits, by second: {idle:.0f}")
    ups, downs = zip(*counted.values(), strict=True)
    numbers = {f"{step}_s": round_to(median(each[step] for each in seconds)) for step in ("train", "evaluate", "round")}
    numbers["coordinator_mb"] = round_to(sum(memory.pop("coordinator").values()))
    numbers["site_mb"] = round_to(median(sum(parts.values()) for parts in memory.values()))
    numbers["bytes_up"], numbers["bytes_down"] = (round_to(median(all_) / (rounds - 2)) for all_ in (ups, downs))
    return numbers | {"idle": round_to(idle), "load": round_to(os.getloadavg()[0])}


def round_to(value: float) -> float:
    return float(f"{value:.3g}") if value < 100 else float(round(value))


def redirect(file: Path, port: int) -> None:
    invitation = json.loads(file.read_text())
    file.write_text(json.dumps({**invitation, "address": f"localhost:{port}"}))


def start(work: Path, parties: list[subprocess.Popen[bytes]], name: str, *arguments: object) -> subprocess.Popen[bytes]:
    with (work / f"{name}.log").open("wb") as log:
        party = subprocess.Popen([*PROTEA, *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT)
    parties.append(party)
    return party


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def until(what: Callable[[], object], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def done(metrics: Path) -> int:
    return metrics.read_text().count('"kind": "round"') if metrics.exists() else 0


def tree(root: int) -> dict[str, float]:
    """Megabytes of a process and those that it started."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            pages = int((folder / "statm").read_text().split()[1])
        except (OSError, ValueError):
            continue
        if root in (int(folder.name), parent):
            name = next((word for word in line if word.startswith("flower-")), "")
            name = name or ("main" if int(folder.name) == root else "client process")
            found[name] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
