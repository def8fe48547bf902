"""Seconds per step and memory of the server's geometry at 100, 1,000 and 10,000 classes.

    python benchmarks/geometry.py [classes,classes,...] [dim] [threads]

Two kinds of prototypes: ``spread`` are random directions, of which few pairs are above the margin; ``crowded`` are
near one common direction, as those of a young model, and all pairs are.  ``refine sparse 5`` is a refinement of five
steps, per step: the first looks at all pairs, the later ones only at what moved.  Memory is the process's peak so far.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from protea import Prototypes, geometry


def prototypes(classes: int, dim: int, crowded: bool) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(classes, dim, generator=generator) + (3.0 if crowded else 0.0), dim=1)


def measure(work: Callable[[], object], steps: int = 1) -> tuple[float, float]:
    """Seconds per step, the least of three tries if that is soon done; and gigabytes at the process's peak."""
    tries: list[float] = []
    while len(tries) < 3 and sum(tries) < 1:
        started = time.perf_counter()
        work()
        tries.append(time.perf_counter() - started)
    return min(tries) / steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def works(start: Tensor) -> dict[str, tuple[Callable[[], object], int]]:
    """What to measure, each with its number of steps."""
    sent = [Prototypes(start, torch.ones(len(start)))]

    def refine(pairs: geometry.Pairs, steps: int) -> tuple[Callable[[], object], int]:
        return lambda: geometry.refine(start, sent, weight=0.5, margin=0.3, steps=steps, pairs=pairs), steps

    return {
        "margins": (lambda: geometry.margins(start), 1),
        "energy": (lambda: geometry.energy(start), 1),
        "align": (lambda: geometry.forces(start), 1),
        "refine dense": refine("dense", 1),
        "refine sparse": refine("sparse", 1),
        "refine sparse 5": refine("sparse", 5),
    }


def main(sizes: str = "100,1000,10000", dim: str = "512", threads: str = "1") -> None:
    torch.set_num_threads(int(threads))
    print(f"{'classes':>8}  {'prototypes':<11}{'':<16}{'s per step':>12}{'peak GB':>10}")
    for classes in map(int, sizes.split(",")):
        for kind in ("spread", "crowded"):
            for name, (work, steps) in works(prototypes(classes, int(dim), kind == "crowded")).items():
                seconds, peak = measure(work, steps)
                print(f"{classes:>8}  {kind:<11}{name:<16}{seconds:>12.4f}{peak:>10.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
