"""What a user can type: paths as a shell reads them, and the command that installs an extra here."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib import util
from pathlib import Path

ROOT = Path(__file__).parents[2]  # of a clone: the folder of pyproject.toml


def quoted(path: Path | str) -> str:
    """Write a path as one word of a command line.

    >>> quoted("runs/a"), quoted("my runs/a")
    ('runs/a', "'my runs/a'")
    """
    return shlex.quote(str(path))


def install_hint(extra: str) -> str:
    """Give the command that adds an extra to the Protea that runs now, as it was installed: a clone or a package."""
    return install_command(f"protea[{extra}]" if not (ROOT / "pyproject.toml").is_file() else f"-e {_clone(extra)}")


def install_command(what: str) -> str:
    """Give the command that installs something where this Python looks; ``what`` is quoted where it has brackets."""
    what = what if what.startswith("-e ") else quoted(what)
    tool = _tool()
    if tool is not None:
        return f"{tool} {what}"
    here = Path(sys.executable).parent
    if util.find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install --python {quoted(sys.executable)} {what}"
    found = shutil.which("pip")
    mine = found is not None and Path(found).parent == here  # else it would install elsewhere
    return f"pip install {what}" if mine else f"{quoted(sys.executable)} -m pip install {what}"


def _clone(extra: str) -> str:
    """Name a clone with an extra: ``'.[ray]'`` within it."""
    return quoted(f".[{extra}]" if Path.cwd() == ROOT else f"{ROOT}[{extra}]")


def _tool() -> str | None:
    """Give the command of a tool that keeps each program in an environment of its own, if that is where this is."""
    parts = Path(sys.prefix).parts
    if "pipx" in parts:
        return "pipx install --force"
    return "uv tool install" if {"uv", "tools"} <= {*parts} else None
