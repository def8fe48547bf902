"""How much faster a round of text clients is where frozen layers are computed once, measured in turns.

    python benchmarks/texts.py [texts] [rounds]

For each depth a client trains with outputs of its frozen layers kept, and beside it one whose encoder computes them at
each step.  The texts are made up, 128 tokens long.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch
import torch.nn.functional as F

from protea.models import Member, build
from protea.models.hf import FrozenView
from protea.training import Training

SAID = "the patient was admitted with chest pain and fever, treated for pneumonia and discharged in stable condition"
WORDS = SAID.split()


def main(texts: str = "64", rounds: str = "5") -> None:
    torch.set_num_threads(1)
    count = int(texts)
    made = [" ".join(WORDS[(i + k) % len(WORDS)] for k in range(140)) for i in range(count)]
    y = torch.arange(count) % 3
    print(f"{'layers that train':<20}{'once s':>10}{'each time s':>13}{'ratio':>8}")
    for layers in (0, 2, 4):
        model = build(Member("hf:minilm", {"train_layers": layers}), shape=(), classes=3, dim=64, adapter="linear")
        view = model.view
        assert isinstance(view, FrozenView)
        x = view(made)
        seconds: dict[str, list[float]] = {"once": [], "each": []}
        optimizer = Training().make_optimizer(model.parameters(), 0.001)
        for _ in range(int(rounds)):
            for kind in seconds:
                started = time.perf_counter()
                for rows in torch.arange(count).split(8):
                    seen = x[rows] if kind == "once" else view([made[i] for i in rows.tolist()])
                    optimizer.zero_grad()
                    F.cross_entropy(model(seen), y[rows]).backward()
                    optimizer.step()
                seconds[kind].append(time.perf_counter() - started)
        once, each = (median(seconds[kind]) for kind in ("once", "each"))
        print(f"{layers:<20}{once:>10.2f}{each:>13.2f}{each / once:>8.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
