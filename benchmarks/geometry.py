"""The server's geometry at 10 to 10,000 classes, against the forms in which it is usually written, in turns.

    python benchmarks/geometry.py [--classes 10,100,1000,10000] [--dim 512] [--threads 1] [--large] [--kinds]

A step of FedPAGR's refinement, of 5: a loop over pairs, autograd on the matrix of all cosines, ours.  An iteration of
the Thomson solver, of 100: all differences at once, ours; at more than 1,000 classes its forces alone.  A step of
FedTGP's server with a batch of 10: autograd with torch.optim, ours.  First all must give the same.  Naive forms are
left out where they would take minutes or gigabytes; with ``--large`` they are taken a size further.  Memory is the
process's peak so far.

``--kinds`` is a second table, of ours alone: ``spread`` prototypes are random directions, of which few pairs are above
the margin; ``crowded`` ones are near one common direction, as those of a young model, and all pairs are.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from measure import Table, Work, in_turns, ratio, seconds
from torch import Tensor

from protea import Prototypes, geometry
from protea.core.process_memory import peak_memory
from protea.core.trainable_prototypes import TrainablePrototypes, train_prototypes

WEIGHT, MARGIN, LR = 0.5, 0.3, 0.01  # of FedPAGR
POINTS, BATCH = 100, 10  # of FedTGP's server, in an epoch
REFINE, SOLVE = 5, 100  # steps


def prototypes(classes: int, dim: int, crowded: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(classes, dim, generator=generator) + (3.0 if crowded else 0.0), dim=1)


def refined(start: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Steps of SGD by autograd."""
    point = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([point], lr=LR, momentum=0.9)
    for _ in range(REFINE):
        optimizer.zero_grad()
        loss(F.normalize(point, dim=1)).backward()
        optimizer.step()
    return F.normalize(point.detach(), dim=1)


def pair_loop(start: Tensor) -> Tensor:
    def loss(u: Tensor) -> Tensor:
        value = (1 - (start * u).sum(1)).sum()
        for i in range(len(u)):
            for j in range(len(u)):
                if i != j:
                    value = value + WEIGHT * (u[i] @ u[j] - MARGIN).clamp(min=0)
        return value

    return refined(start, loss)


def gram(start: Tensor) -> Tensor:
    def loss(u: Tensor) -> Tensor:
        above = (u @ u.T - MARGIN).clamp(min=0)
        return (1 - (start * u).sum(1)).sum() + WEIGHT * (above.sum() - above.diagonal().sum())

    return refined(start, loss)


def differences(x: Tensor) -> Tensor:
    """Forces from all differences, (classes, classes, dim) numbers."""
    away = x.unsqueeze(1) - x
    squares = away.square().sum(2)
    squares.fill_diagonal_(torch.inf)
    return (away / squares.unsqueeze(2)).sum(1)


def solve(start: Tensor) -> Tensor:
    """ProtoNorm's Algorithm 1, as it is written."""
    x, velocity, lr = start, torch.zeros_like(start), 0.1
    for step in range(1, SOLVE + 1):
        velocity = 0.9 * velocity + lr * differences(x)
        x = F.normalize(x + velocity, dim=1)
        lr *= 0.95 if step % 10 == 0 else 1
    return x


def tgp_autograd(module: TrainablePrototypes, points: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for rows in torch.randperm(len(points)).split(BATCH):
        away = torch.cdist(points[rows], module())
        value = F.cross_entropy(-(away + F.one_hot(labels[rows], away.shape[1])), labels[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def forms(classes: int, dim: int, large: bool) -> dict[str, tuple[int, dict[str, Work]]]:
    """By what they do, the number of steps and the forms; ours is last."""
    start, further = prototypes(classes, dim), 10 if large else 1
    sent = [Prototypes(start, torch.ones(classes))]

    def ours() -> Tensor:
        return geometry.refine(start, sent, weight=WEIGHT, margin=MARGIN, steps=REFINE, lr=LR)

    refine: dict[str, Work] = {}
    if classes <= 30 * further:
        refine["pair loop"] = lambda: pair_loop(start)
        torch.testing.assert_close(pair_loop(start), ours(), atol=1e-5, rtol=1e-4)
    if classes <= 1000 * further:
        refine["gram autograd"] = lambda: gram(start)
        torch.testing.assert_close(gram(start), ours(), atol=1e-5, rtol=1e-4)
    thomson: dict[str, Work] = {}
    if classes <= 100 * further:
        thomson["differences"] = lambda: solve(start)
        torch.testing.assert_close(
            solve(start), geometry.align(start, steps=SOLVE, tol=0).vectors, atol=1e-3, rtol=1e-3
        )
    whole = classes <= 1000
    thomson["ours"] = lambda: geometry.align(start, steps=SOLVE, tol=0) if whole else geometry.forces(start)
    found = {"fedpagr": (REFINE, refine | {"ours": ours}), "thomson": (SOLVE if whole else 1, thomson)}
    if classes <= 1000:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            plain = TrainablePrototypes(classes, dim)
            points, labels = torch.randn(POINTS, dim), torch.randint(classes, (POINTS,))
        own = copy.deepcopy(plain)

        def by_us() -> None:
            train_prototypes(own, points, labels, 1.0, 1, BATCH, LR)

        def by_autograd() -> None:
            tgp_autograd(plain, points, labels)

        for work in (by_us, by_autograd):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                work()
        torch.testing.assert_close(own(), plain(), atol=1e-4, rtol=1e-3)
        found["fedtgp"] = (POINTS // BATCH, {"autograd": by_autograd, "ours": by_us})
    return found


def compare(sizes: list[int], dim: int, large: bool) -> Table:
    table = Table(step=10, classes=9, form=16, ms=12, over_ours=11, peak_GB=9)
    for classes in sizes:
        for step, (count, works) in forms(classes, dim, large).items():
            once = sum(seconds(work) for work in works.values())
            taken = in_turns(works, max(3, min(30, int(2 / once))))
            for form, each in taken.items():
                ms = 1000 * median(each) / count
                table.add(step, classes, form, ms, ratio(each, taken["ours"], 0), peak_memory() / 1e9)
    return table


def kinds(sizes: list[int], dim: int) -> Table:
    """Ours by kind of prototypes; ``refine sparse 5`` looks at all pairs first, then only at what moved."""
    table = Table(classes=9, prototypes=12, work=17, ms_per_step=13, peak_GB=9)
    for classes in sizes:
        for kind in ("spread", "crowded"):
            start = prototypes(classes, dim, kind == "crowded")
            for name, (work, steps) in works(start).items():
                tries = [seconds(work)]
                while len(tries) < 3 and sum(tries) < 1:
                    tries.append(seconds(work))
                table.add(classes, kind, name, 1000 * min(tries) / steps, peak_memory() / 1e9)
    return table


def works(start: Tensor) -> dict[str, tuple[Work, int]]:
    """What to measure, each with its number of steps."""
    sent = [Prototypes(start, torch.ones(len(start)))]

    def refine(pairs: geometry.Pairs, steps: int) -> tuple[Work, int]:
        return lambda: geometry.refine(start, sent, weight=WEIGHT, margin=MARGIN, steps=steps, pairs=pairs), steps

    return {
        "margins": (lambda: geometry.margins(start), 1),
        "energy": (lambda: geometry.energy(start), 1),
        "align": (lambda: geometry.forces(start), 1),
        "refine dense": refine("dense", 1),
        "refine sparse": refine("sparse", 1),
        "refine sparse 5": refine("sparse", 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", default="10,100,1000,10000")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--kinds", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = [int(size) for size in options.classes.split(",")]
    compare(sizes, options.dim, options.large).keep("geometry", vars(options))
    if options.kinds:
        kinds(sizes, options.dim).keep("geometry-kinds", vars(options))


if __name__ == "__main__":
    main()
