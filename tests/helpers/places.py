"""A coordinator's directory and sites with handwritten digits, made in no time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from protea.config import registry
from protea.core.message import Named
from protea.engines.messages import job_to_bytes, joined, parted
from protea.federation.jobs import Job, JobKind
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.directory import Site
from protea.network.task import new_task
from protea.network.trust.bundles import open_bundle
from protea.network.trust.signatures import SEAL

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

MODEL = """
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU())
"""

DATA = """
    x, y = load_digits(return_X_y=True)
    return x[:150].astype("float32") / 16, y[:150]
"""


def code(model: str = MODEL, data: str = DATA) -> str:
    """A ``site.py`` whose two functions have these bodies."""
    imports = "import numpy as np\nimport torch\nfrom digits import load_digits\nfrom torch import nn\n"
    return f"{imports}\n\ndef model():{model}\n\ndef data():{data}"


def base(path: Path, *changes: str, tls: bool = True, **settings: Any) -> CoordinatorDirectory:
    """A federation of digits, with no site yet."""
    table = {"classes": list(CLASSES), "rounds": 4, "models": {"dim": 16}, **settings}
    return CoordinatorDirectory.create(path, new_task(table, list(changes)), "localhost", 8443, tls)


ALL = f"""min_samples_per_class = 1
counts = "exact"
report = "full"
methods = {json.dumps(list(registry.table("methods")))}
[refused]
"method.taken" = []
"""  # a policy that changes nothing that leaves, and refuses nothing


def site(path: Path, bundle: Path, python: str | None = None, settings: str = "", policy: str | None = None) -> Site:
    """A site's directory, complete but for a policy where none is given.

    Its secret seed is that of its name, so that a test sees the same numbers each time.
    """
    path.mkdir(parents=True, exist_ok=True)
    give_seed(path, path.name)
    (path / "site.py").write_text(code() if python is None else python)
    (path / "site.toml").write_text('device = "cpu"\n' + settings)
    if policy is not None:
        (path / "policy.toml").write_text(policy)
    open_bundle(bundle, path / "bundle")
    return Site(path)


def give_seed(path: Path, word: str) -> None:
    """Put a seed into a site's directory."""
    (path / "seed").write_text(hashlib.blake2b(word.encode(), digest_size=32).hexdigest())
    (path / "seed").chmod(0o600)


def job(task: JobKind, round: int, client: int = 0, down: Named | None = None) -> bytes:
    """One job as a coordinator sends it, but for the signature."""
    return joined([job_to_bytes(Job(task, round, client, down or {}))])


def asked(task: JobKind, round: int, client: int = 0) -> Job:
    """A job that came with nothing."""
    return Job(task, round, client)


def only(answer: bytes) -> bytes:
    """The reply in an answer to one job, without the site's signature where it has one."""
    (part,) = parted(answer)
    return unsigned(part)


def unsigned(part: bytes) -> bytes:
    """A reply, or a job, without a signature before it: it begins with the length of its header."""
    return part if int.from_bytes(part[:8], "little") < len(part) else part[SEAL:]
