"""Python files run in a process of their own in which Protea cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUN = """
import runpy, sys
sys.modules["protea"] = None
try:
    import protea
except ImportError:
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_without_protea(script: Path, *arguments: Path) -> list[str]:
    """What a script prints, line by line."""
    command = [sys.executable, "-I", "-W", "ignore", "-c", RUN, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")  # nor does torch complain of the file
    return done.stdout.splitlines()
