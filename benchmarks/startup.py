"""How long it takes until a run gives its first job to a worker, beyond ``import torch``: fresh processes, in turns.

    python benchmarks/startup.py [turns] [EXPERIMENT.toml] [A.B=C ...]

From the start of ``protea run`` to the moment when the engine, whose workers are ready, gets its first jobs.  At most 3
seconds are allowed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from statistics import median

from measure import Table

LIMIT = 3.0  # seconds
TORCH = "import time, torch; print('at', time.time(), flush=True)"
RUN = """
import sys, time
from protea.engines.processes.forkserver import start_forkserver
start_forkserver()  # as protea/__main__.py does
from protea.config import registry
from protea.cli.app import main
def first(self, jobs, watch=None):
    print("at", time.time(), flush=True)
    sys.exit()
registry.find("engines", "processes").map = first
main()
"""


def until(code: str, *arguments: str) -> float:
    """Seconds from the start of a Python process to when it says where it is."""
    started = time.time()
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    said = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("at ")]
    if not said:
        raise SystemExit(f"It never got there:\n{done.stdout}{done.stderr}")
    return float(said[0]) - started


def main(turns: str = "5", path: str = "examples/digits.toml", *changes: str) -> None:
    found: dict[str, list[float]] = {"torch": [], "run": []}
    for _ in range(int(turns) + 1):
        with tempfile.TemporaryDirectory() as folder:
            found["torch"].append(until(TORCH))
            found["run"].append(until(RUN, "run", path, "--out", f"{folder}/run", *changes))
    torch, run = (median(found[kind][1:]) for kind in ("torch", "run"))  # the first ones read from disk
    beyond = median(b - a for a, b in list(zip(found["torch"], found["run"], strict=True))[1:])
    table = Table(import_torch_s=16, first_job_s=13, ratio=8, beyond_s=10, limit_s=9, kept=6)
    table.add(torch, run, run / torch, beyond, LIMIT, "yes" if beyond <= LIMIT else "no")
    table.keep("startup", {"turns": int(turns), "experiment": path, "changes": list(changes)})


if __name__ == "__main__":
    main(*sys.argv[1:])
