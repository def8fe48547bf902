"""The software and hardware that a run was made with, and the name of its directory."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from protea.config import registry
from protea.config.experiment import Experiment, experiment_to_toml
from protea.config.search_path import own_folders
from protea.core.files import unused_path


def run_path(parent: Path, experiment: Experiment) -> Path:
    """Choose a new directory, such as ``runs/digits-fedproto-s1-4f2a``: data, method, seed, hash of all settings."""
    text = experiment_to_toml(experiment)
    source = registry.name_of("sources", type(experiment.data.source)).rpartition(":")[2].lower()
    mark = hashlib.blake2b(text.encode(), digest_size=2).hexdigest()
    return unused_path(parent, f"{source}-{experiment.label.replace(' ', '-')}-s{experiment.seed}-{mark}")


def environment(place: str, threads: int) -> dict[str, Any]:
    """Collect the content of ``environment.json``; ``place`` is the torch device."""
    packages = ("protea", "torch", "numpy", "scikit-learn", "safetensors")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "device": place,
        "threads": threads,
        "versions": {name: version(name) for name in packages},
        "commit": commit(),
        **({"folders": folders} if (folders := own_folders()) else {}),  # of modules that the experiment names
    }


def commit() -> str | None:
    """Return the Git commit of the working tree that this code is in; None if it is in none."""
    try:
        ask = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        found = subprocess.run(ask, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return None
    return found.stdout.strip() or None
