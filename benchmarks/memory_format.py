"""Which architectures train faster with the channels last: the table in ``protea/core/steps/memory_format.py``.

    python benchmarks/memory_format.py                # every architecture with convolutions, 32 x 32 and batch 10
    python benchmarks/memory_format.py --batch 32 --tries 3

Both formats are timed in turns, several times over, and the fastest step of each counts.  One thread, as in a worker
process.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from measure import Table

from protea.config import registry
from protea.config.families import Member, Models
from protea.core.errors import ConfigError
from protea.core.steps.memory_format import GAIN, time_both
from protea.models.maker import ModelMaker


def ratio(architecture: str, shape: tuple[int, ...], batch: int, tries: int, limit: float) -> float | None:
    """Return seconds of a training step in torch's own format over seconds with the channels last.

    Both are the fastest of at least ``tries`` tries and ``limit`` seconds: whatever else the machine does only ever
    adds.  ``None`` is for an architecture without convolutions.
    """
    maker, member = ModelMaker(Models(dim=512), shape, 10), Member(architecture)
    x, y = torch.randn(batch, *shape), torch.arange(batch) % 10
    found: list[tuple[float, float]] = []
    end = time.monotonic() + limit
    while len(found) < tries or time.monotonic() < end:
        seconds = time_both(lambda last: maker.with_memory_format(member, channels_last=last), x, y)
        if seconds is None:
            return None
        found.append(seconds)
    return min(plain for plain, _ in found) / min(last for _, last in found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="at least, for each architecture and size")
    parser.add_argument("--skip", default="", help="architectures to leave out, such as resnet101,resnet152")
    options = parser.parse_args()
    table, ratios = Table(architecture=22, side=5, ratio=8), dict[str, list[float]]()
    skipped = options.skip.split(",")
    for architecture in (name for name in registry.table("architectures") if name not in skipped):
        for shape in ((1, 28, 28), (3, 32, 32)):
            try:
                found = ratio(architecture, shape, options.batch, options.tries, options.seconds)
            except ConfigError:
                continue  # it reads texts, needs an extra, or takes no images of this size
            if found is not None:
                ratios.setdefault(architecture, []).append(found)
                table.add(architecture, shape[-1], found)
    print("channels last:", *sorted(name for name, each in ratios.items() if statistics.geometric_mean(each) > GAIN))
    table.keep(
        "memory_format",
        {"batch": options.batch, "tries": options.tries, "seconds": options.seconds, "skip": options.skip},
    )


if __name__ == "__main__":
    main()
