"""Training steps of htcnn1 to htcnn8: written out by hand, by Client.fit, and by plain autograd, in turns, one thread.

    python benchmarks/step.py [--batches 10,32] [--steps N] [--turns N] [--members 1,2,...]

By hand: the operators of torch's backward pass called one after another for this architecture, pooling before ReLU,
weights of linear layers updated by the product that is their gradient (``W.addmm_``), in the better of two memory
layouts.  It is what could be had without autograd, not a design.  All three train on FedProto's loss and first have to
give the same weights after 20 steps.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from measure import Table, in_turns, ratio
from target import setting
from torch import Tensor, nn

from protea import Client
from protea.core.rng import Streams
from protea.runs.prepare import prepare

PULL, LR = 10.0, 0.01
aten = torch.ops.aten


class ByHand:
    """Forward and backward of convolutions, linear layers and a linear head."""

    def __init__(self, model: Any, memory_format: torch.memory_format) -> None:
        layers, self.memory_format = list(model.body.modules()), memory_format
        self.convs = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
        for conv in self.convs:
            conv.weight.data = conv.weight.data.contiguous(memory_format=memory_format)
        self.linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.head = model.head

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, prototypes: Tensor) -> None:
        x = x.contiguous(memory_format=self.memory_format)
        seen = []  # of each convolution: its input, its output, where the largest were, and these after ReLU
        for conv in self.convs:
            out = F.conv2d(x, conv.weight, conv.bias)
            pooled, places = aten.max_pool2d_with_indices(out, [2, 2], [2, 2])
            seen.append((x, out, places, pooled.relu_()))
            x = pooled
        inputs = [x.flatten(1)]
        for linear in self.linears:
            inputs.append(torch.addmm(linear.bias, inputs[-1], linear.weight.t()).relu_())
        z = inputs[-1]
        slope = torch.addmm(self.head.bias, z, self.head.weight.t()).softmax(1)
        slope[torch.arange(len(y)), y] -= 1
        slope = back(self.head, z, slope.div_(len(y)))
        slope.add_(z - prototypes[y], alpha=2 * PULL / z.numel())
        for linear, given, output in zip(self.linears[::-1], inputs[-2::-1], inputs[:0:-1], strict=True):
            slope = back(linear, given, aten.threshold_backward(slope, output, 0))
        slope = slope.view(seen[-1][3].shape)
        for conv, (given, out, places, after) in zip(self.convs[::-1], seen[::-1], strict=True):
            slope = aten.threshold_backward(slope, after, 0).contiguous(memory_format=self.memory_format)
            slope = aten.max_pool2d_with_indices_backward(slope, out, [2, 2], [2, 2], [0, 0], [1, 1], False, places)
            wanted = [conv is not self.convs[0], True, True]
            slope, weight, bias = aten.convolution_backward(
                slope, given, conv.weight, [conv.out_channels], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted
            )
            conv.weight.add_(weight, alpha=-LR)
            conv.bias.add_(bias, alpha=-LR)


def back(linear: nn.Linear, given: Tensor, slope: Tensor) -> Tensor:
    """The slope of what was given to the layer, whose weights are updated."""
    earlier = slope @ linear.weight
    linear.weight.addmm_(slope.t(), given, alpha=-LR)
    linear.bias.add_(slope.sum(0), alpha=-LR)
    return earlier


class Subject:
    """One client, and copies of its model that are trained in the other ways."""

    def __init__(self, client: Client, batch: int, steps: int) -> None:
        self.client, self.batch, self.rounds = client, batch, 0
        self.data = client.train.only(torch.arange(batch * steps) % len(client.train))
        self.x, self.y = self.data.batch(torch.arange(len(self.data)))
        self.prototypes = torch.randn(client.classes, client.dim, generator=torch.Generator().manual_seed(0)).relu()
        self.plain = copy.deepcopy(client.model)
        self.hands = {
            name: ByHand(copy.deepcopy(client.model), memory_format)
            for name, memory_format in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last))
        }

    def loss(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        z = model.features(x)
        return F.cross_entropy(model.head(z), y) + PULL * F.mse_loss(z, self.prototypes[y])

    def by_protea(self, watch: Callable[[Tensor, Tensor], object] = lambda x, y: None) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            watch(x, y)
            return self.loss(self.client.model, x, y)

        self.rounds += 1
        self.client.begin(self.rounds, self.client.rng.at("round", self.rounds))
        self.client.fit(loss, data=self.data)

    def by_autograd(self) -> None:
        self._autograd([(self.x[rows], self.y[rows]) for rows in self._rows()])

    def by_hand(self, memory_format: str) -> None:
        for rows in self._rows():
            self.hands[memory_format].step(self.x.index_select(0, rows), self.y[rows], self.prototypes)

    @torch.no_grad()
    def check(self) -> float:
        """The largest difference of any weight after the same batches, as a share of the largest weight."""
        batches: list[tuple[Tensor, Tensor]] = []
        with torch.enable_grad():
            self.by_protea(lambda x, y: batches.append((x.clone(), y.clone())))
            self._autograd(batches)
        for hand in self.hands.values():
            for x, y in batches:
                hand.step(x, y, self.prototypes)
        expected = list(self.plain.parameters())
        found = [list(self.client.model.parameters())]
        found += [
            [p for layer in (*hand.convs, *hand.linears, hand.head) for p in layer.parameters()]
            for hand in self.hands.values()
        ]
        away = [(a - b).abs().max() / b.abs().max() for other in found for a, b in zip(other, expected, strict=True)]
        return float(torch.stack(away).max())

    def _rows(self) -> tuple[Tensor, ...]:
        return torch.randperm(len(self.y)).split(self.batch)

    def _autograd(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        optimizer = torch.optim.SGD(self.plain.parameters(), lr=LR, foreach=True)
        self.plain.train()
        for x, y in batches:
            value = self.loss(self.plain, x, y)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", default="10,32")
    parser.add_argument("--members", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        model=8, batch=7, differ=10, ms_by_hand=12, memory_format=15, protea_over_hand=18, autograd_over_hand=20,
        autograd_over_protea=22,
    )  # fmt: skip
    for batch in map(int, options.batches.split(",")):
        experiment = setting(
            "fedproto", rounds=options.turns + 1, samples=8000, clients=8, batch=batch, lr=LR, alpha=100
        )
        factory = prepare(experiment)
        for number in map(int, options.members.split(",")):
            client = factory(number - 1, Streams(1).at("client", number - 1))
            differ = Subject(copy.deepcopy(client), batch, 20).check()
            if not differ < 1e-3:
                raise SystemExit(f"htcnn{number}, batch {batch}: weights differ by {differ:.2g} after 20 steps.")
            subject = Subject(client, batch, options.steps)
            works = {"protea": subject.by_protea, "autograd": subject.by_autograd}
            works |= {memory_format: partial(subject.by_hand, memory_format) for memory_format in subject.hands}
            seconds = in_turns(works, options.turns + 1)
            memory_format = min(subject.hands, key=lambda name, seconds=seconds: median(seconds[name]))
            hand, own, auto = seconds[memory_format], seconds["protea"], seconds["autograd"]
            each = 1000 * median(hand) / options.steps
            table.add(
                f"htcnn{number}",
                batch,
                differ,
                each,
                memory_format,
                ratio(own, hand),
                ratio(auto, hand),
                ratio(auto, own),
            )
    table.keep("step", vars(options))


if __name__ == "__main__":
    main()
