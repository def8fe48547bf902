"""Which architectures train faster with the channels last: the table in ``protea/core/steps/memory_format.py``.

    python benchmarks/memory_format.py                # every architecture with convolutions, 32 x 32 and batch 10
    python benchmarks/memory_format.py --batch 32 --tries 3

Both ways are timed in turns, several times over; the ratio is the median.  One thread, as in a worker process.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from measure import Table

from protea.config import registry
from protea.config.families import Member, Models
from protea.core.errors import ConfigError
from protea.core.steps.memory_format import GAIN, time_both
from protea.models.maker import ModelMaker


def ratio(architecture: str, shape: tuple[int, ...], batch: int, tries: int) -> float | None:
    """Return seconds of a training step in torch's own format over seconds with the channels last: the median of tries.

    ``None`` is for an architecture without convolutions.
    """
    maker, member = ModelMaker(Models(dim=512), shape, 10), Member(architecture)
    x, y = torch.randn(batch, *shape), torch.arange(batch) % 10
    found = []
    for _ in range(tries):
        seconds = time_both(lambda last: maker.with_memory_format(member, channels_last=last), x, y)
        if seconds is None:
            return None
        found.append(seconds[0] / seconds[1])
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--skip", default="", help="architectures to leave out, such as resnet101,resnet152")
    options = parser.parse_args()
    table, ratios = Table(architecture=22, side=5, ratio=8), dict[str, list[float]]()
    skipped = options.skip.split(",")
    for architecture in (name for name in registry.table("architectures") if name not in skipped):
        for shape in ((1, 28, 28), (3, 32, 32)):
            try:
                found = ratio(architecture, shape, options.batch, options.tries)
            except ConfigError:
                continue  # it reads texts, needs an extra, or takes no images of this size
            if found is not None:
                ratios.setdefault(architecture, []).append(found)
                table.add(architecture, shape[-1], found)
    print("channels last:", *sorted(name for name, each in ratios.items() if statistics.geometric_mean(each) > GAIN))
    table.keep("memory_format", {"batch": options.batch, "tries": options.tries, "skip": options.skip})


if __name__ == "__main__":
    main()
