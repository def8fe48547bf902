"""How much faster a round of text clients is where frozen layers are computed once, measured in turns.

    python benchmarks/texts.py [texts] [rounds]

For each depth a client trains with outputs of its frozen layers kept, and beside it one whose encoder computes them at
each step.  The texts are made up, 128 tokens long.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from measure import Table, in_turns, ratio
from torch import Tensor
from torch.optim import SGD

from protea.config.families import Member, Models
from protea.core.split_model import SplitModel
from protea.models.hf import FrozenView
from protea.models.maker import ModelMaker

SAID = "the patient was admitted with chest pain and fever, treated for pneumonia and discharged in stable condition"
WORDS = SAID.split()


def main(texts: str = "64", rounds: str = "5") -> None:
    torch.set_num_threads(1)
    count = int(texts)
    made = [" ".join(WORDS[(i + k) % len(WORDS)] for k in range(140)) for i in range(count)]
    y = torch.arange(count) % 3

    def epoch(kind: str, model: SplitModel, view: FrozenView, optimizer: SGD, x: Tensor) -> None:
        for rows in torch.arange(count).split(8):
            seen = x[rows] if kind == "once" else view([made[i] for i in rows.tolist()])
            optimizer.zero_grad()
            F.cross_entropy(model(seen), y[rows]).backward()
            optimizer.step()

    maker = ModelMaker(Models(dim=64, adapter="linear"), (), 3)
    table = Table(layers_that_train=18, once_s=10, each_time_s=13, ratio=8)
    for layers in (0, 2, 4):
        model = maker.build(Member("hf:minilm", {"train_layers": layers}))
        view = model.view
        assert isinstance(view, FrozenView)
        optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.001, foreach=True)
        given = (model, view, optimizer, view(made))
        seconds = in_turns({kind: partial(epoch, kind, *given) for kind in ("once", "each")}, int(rounds))
        once, each = seconds["once"], seconds["each"]
        table.add(layers, median(once), median(each), ratio(each, once, 0))
    table.keep("texts", {"texts": count, "rounds": int(rounds)})


if __name__ == "__main__":
    main(*sys.argv[1:])
