"""Commands as a user types them, and a small experiment to type them for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

DIGITS = """
rounds = 3
clients = 3
method = "fedproto"
engine = "inline"
[data]
source = "digits"
samples = 300
[models]
family = "tiny_mlp"
dim = 16
[training]
batch = 64
"""


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Command = Callable[..., Said]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``typed("run", "exp.toml")`` is ``protea run exp.toml``, in this process."""
    from protea.cli import app  # here, since all runs read this file

    def call(*words: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["protea", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            app.main()
        return Said(int(end.value.code or 0), *capsys.readouterr())

    return call
