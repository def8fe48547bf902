"""A round of FedProto by fluke and by Flower's Ray simulation against a round by Protea, measured in turns.

    python benchmarks/peers.py [--peers fluke,flower] [--samples 4000] [--rounds 4] [--folder DIR]

Each peer runs in an environment of its own, made from the package index in ``--folder`` if it is not there yet (a
temporary folder if none is given); one that cannot be installed is left out.  Both sides have the same clients with
the same samples, batch, learning rate and loss, and every client is evaluated in every round.

fluke: one process, the network htcnn2 for all clients, samples dealt out evenly, since it has one architecture only
and evaluates only clients that have class 0.  It takes prototypes while it trains and answers by the client's own, and
so does Protea here.  Flower: a ClientApp with the eight networks of htcnn8, Dirichlet 0.1, one actor per core.  The
peers answer by one rule, Protea by six, as it always does.  Accuracies are shown: they have to agree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from measure import Table, of_totals, ratio, seconds
from target import setting

from protea import Experiment
from protea.clients.factory import ClientFactory
from protea.data.partition.schemes import Iid
from protea.engines.processes.pool import cores
from protea.federation.record import Record
from protea.methods.fedproto import FedProto
from protea.runs.prepare import prepare
from protea.runs.simulation import federation, open_engine

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"  # the build for CPUs; a range brings gigabytes
PACKAGES = {"fluke": "fluke-fl==0.8.1", "flower": "flwr[simulation]==1.41.0"}
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
    "PYTHONPATH": str(HERE / "peer"),
}


def environment(peer: str, folder: Path) -> Path | None:
    """The Python of the peer's environment, made if need be; None if it cannot be."""
    python = folder / peer / "bin" / "python"
    name = re.split(r"\W*[\[=]", PACKAGES[peer])[0]
    ask = [python, "-c", f"from importlib.metadata import version; version({name!r})"]
    if not python.exists() or subprocess.run(ask, capture_output=True, check=False).returncode:
        print(f"{peer}: making its environment, which takes minutes", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder / peer], check=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", TORCH, PACKAGES[peer]], check=False)
        if done.returncode:
            print(f"{peer} cannot be installed here, and is left out.")
            return None
    return python


def experiment(peer: str, samples: int, rounds: int) -> Experiment:
    """Of Protea, to do as the peer does."""
    found = setting("fedproto", rounds=rounds, samples=samples, family="htcnn2" if peer == "fluke" else "htcnn8")
    if peer == "fluke":
        method = FedProto(taken="during", answer="local")
        found = replace(found, method=method, data=replace(found.data, partition=Iid()))
    return found


def write(factory: ClientFactory, path: Path) -> None:
    """Samples of all clients, as Protea's clients see them."""
    arrays = {}
    for client, share in enumerate(factory.data.shares):
        for name, rows in (("", share.train), ("_test", share.test)):
            own = factory.samples(rows)
            x, y = own.batch(torch.arange(len(own)))
            arrays |= {f"{client}/x{name}": x.numpy(), f"{client}/y{name}": y.numpy()}
    np.savez(path, **arrays)


class Peer:
    """A process that plays a round when it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.accuracy = process, 0.0
        self.hear("ready")

    def hear(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise RuntimeError("it ended")

    def play(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.accuracy = json.loads(self.hear("round"))["accuracy"]


@contextmanager
def started(python: Path, script: str, given: dict[str, object], folder: Path) -> Iterator[Peer]:
    more = QUIET | {"FLWR_HOME": str(folder / "flwr")}
    if script.startswith("flower"):
        more["OMP_NUM_THREADS"] = "1"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [python, HERE / "peer" / script, json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | more, cwd=folder,
        )  # fmt: skip
        try:
            yield Peer(process)
        except RuntimeError as error:
            raise RuntimeError((folder / "log").read_text()[-2000:]) from error
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def compared(peer: str, python: Path, samples: int, rounds: int) -> tuple[list[float], list[float], float, float]:
    """Seconds of the peer's rounds and of ours, and both accuracies after the last."""
    ours = experiment(peer, samples, rounds)
    factory, own, theirs, records = prepare(ours), list[float](), list[float](), list[Record]()
    given: dict[str, object] = {
        "clients": ours.clients, "batch": ours.training.batch, "lr": ours.training.lr, "pull": ours.method.pull,
        "threads": cores(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name, closing(open_engine(ours, factory)) as engine:
        folder = Path(name)
        write(factory, folder / "data.npz")
        with started(
            python,
            f"{peer}_fedproto.py",
            given | {"data": str(folder / "data.npz"), "scratch": str(folder / "ray")},
            folder,
        ) as other:
            run = federation(ours, factory, engine).run()
            for _ in range(rounds):
                theirs.append(seconds(other.play))
                own.append(seconds(lambda: records.append(next(run))))
            return theirs, own, other.accuracy, records[-1].test["method"].weighted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="fluke,flower")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="of the environments; a temporary one if not given")
    options = parser.parse_args()
    table = Table(
        peer=8, peer_s=9, protea_s=10, peer_over_protea=18, totals=9, accuracy_peer=15, accuracy_protea=17
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        for peer in options.peers.split(","):
            python = environment(peer, (options.folder or Path(temporary)).absolute())
            if python is None:
                continue
            try:
                theirs, own, accuracy, our_accuracy = compared(peer, python, options.samples, options.rounds)
            except RuntimeError as error:
                print(f"{peer} could not be run: {error}")
                continue
            both = ratio(theirs, own), of_totals(theirs, own)
            table.add(peer, median(theirs[1:]), median(own[1:]), *both, accuracy, our_accuracy)
    table.keep("peers", vars(options))


if __name__ == "__main__":
    main()
