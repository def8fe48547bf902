"""How the weights of convolutions lie in memory: as torch has them, or with the channels last.

Which is faster depends on architecture, samples, batch and machine, and the numbers differ in their last digits.  So
``models.channels_last = "auto"`` is settled before a run begins, by timing some steps of both ways in turns, and what
came of it is part of the run's settings.  It is also kept for this machine, where one question has one answer for good.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from protea.devices import threads
from protea.models.families import Member
from protea.models.maker import Maker
from protea.models.split import SplitModel

SMALL = 500  # numbers of an image, below which the question is not worth asking
GAIN = 1.05  # by which channels last must be faster
TRIES = 8  # of each way
LIMIT = 1.0  # seconds of trying, after which two tries are enough


def settle(make: Maker, batch: int) -> tuple[str, ...]:
    """The architectures of these models that have the channels last: those given, or else those that are faster so."""
    given = make.models.channels_last
    if given != "auto":
        return given
    if make.device != "cpu" or len(make.shape) != 3 or math.prod(make.shape) < SMALL:
        return ()
    plain = replace(make, models=replace(make.models, channels_last=()))
    further = () if make.models.server is None else (Member.of(make.models.server),)
    kinds: dict[str, Member] = {}
    for member in (*make.members, *further):
        kinds.setdefault(member.architecture, member)
    return tuple(sorted(name for name, member in kinds.items() if _answer(plain, member, batch)))


def _answer(make: Maker, member: Member, batch: int) -> bool:
    """Whether channels last is faster, as found now or earlier on this machine."""
    what = [member.architecture, dict(member.keywords), make.shape, make.models.dim, batch]
    where = [torch.__version__, torch.backends.cpu.get_cpu_capability(), platform.node()]
    path = folder() / hashlib.blake2b(json.dumps([what, where], default=str).encode(), digest_size=16).hexdigest()
    with suppress(OSError):
        return path.read_text() == "channels last"
    found = _faster(make, member, batch)
    with suppress(OSError):  # a folder that cannot be written: the answer holds for this run
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:  # another process may have been sooner, and then its answer holds
            file.write("channels last" if found else "plain")
    with suppress(OSError):
        return path.read_text() == "channels last"
    return found


def folder() -> Path:
    """Where answers are kept: ``$PROTEA_LAYOUTS``, or below ``~/.cache/protea``."""
    own = os.environ.get("PROTEA_LAYOUTS")
    return Path(own).expanduser() if own else Path.home() / ".cache" / "protea" / "layouts"


def _faster(make: Maker, member: Member, batch: int) -> bool:
    last = replace(make.models, channels_last=(member.architecture,))
    with threads(1), torch.random.fork_rng(devices=[]):  # nothing of this may change what a run draws
        models = [each(member) for each in (make, replace(make, models=last))]
        if not any(isinstance(part, nn.Conv2d) for part in models[0].modules()):
            return False
        x, y = torch.randn(max(2, batch), *make.shape), torch.zeros(max(2, batch), dtype=torch.int64)
        seconds: list[list[float]] = [[], []]
        for model in models:
            _step(model, x, y)  # the first is slow
        while len(seconds[0]) < TRIES and not (len(seconds[0]) >= 2 and sum(map(sum, seconds)) > LIMIT):
            for model, own in zip(models, seconds, strict=True):
                own.append(_step(model, x, y))
    return min(seconds[0]) > GAIN * min(seconds[1])  # whatever else goes on here only ever adds


def _step(model: SplitModel, x: torch.Tensor, y: torch.Tensor) -> float:
    started = time.perf_counter()
    F.cross_entropy(model(x), y).backward()
    seconds = time.perf_counter() - started
    model.zero_grad()
    return seconds
