"""The command itself: its help and version, without waiting for torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest
import typer
from night import by_night
from typed import Command
from wanted import extra

import protea
from protea.cli import described
from protea.cli.app import COMMANDS, app
from protea.cli.listing import LISTS

QUICK = [
    *(["--help"], ["--version"], ["no-such-command"], ["list", "methods"], ["doctor"]),
    *([name, "--help"] for name in ("run", "resume", "show", "sweep", "reproduce")),
]


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    code = f"""
import sys
sys.argv = ["protea", *{arguments}]
from protea.cli.app import main
try:
    main()
except SystemExit:
    heavy = [name for name in ("torch", "numpy", "scipy", "sklearn", "pydantic", "flwr") if name in sys.modules]
    sys.exit(", ".join(heavy) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["plug-ins", "families", *by_night("tables", "table needs")])
def test_lists_say_what_the_classes_say(what: str) -> None:
    """``protea list`` reads a file, so that it need not import torch; ``make lists`` writes it."""
    if what == "plug-ins":  # among them engines that need extras
        extra("ray")
        extra("flower")
    found = described.PARTS[what]()
    assert json.loads(described.STORED.read_text())[what] == found, "Type: make lists"


def test_list_without_a_word_says_what_there_is_to_list(typed: Command) -> None:
    said = typed("list")
    assert said.code == 0
    assert set(re.findall(r"[a-z]+", said.out.partition("Type")[0].removeprefix("There are lists of "))) == set(LISTS)


def test_the_version_is_that_of_the_package(typed: Command) -> None:
    assert typed("--version").lines == [f"protea {protea.__version__}"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    found = group.get_command(click.Context(group), name)
    assert found is not None and found.help is not None
    assert " ".join(found.help.split()).startswith(COMMANDS[name][1])


def test_every_command_is_listed_and_a_misspelt_one_is_named_once(typed: Command) -> None:
    listed = typed("--help").out
    assert all(f" {name} " in listed for name in COMMANDS)
    said = typed("cmpare")
    assert said.code == 2 and said.err.count("Did you mean 'compare'?") == 1


def test_completion_knows_the_names() -> None:
    code = "import sys; from protea.cli.app import main; main(); sys.exit('torch' in sys.modules)"
    given = {"_PROTEA_COMPLETE": "complete_bash", "COMP_WORDS": "protea rep", "COMP_CWORD": "1", "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv = ['protea']; {code}"],
        capture_output=True, text=True, env=given, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["report", "reproduce"], done.stderr
