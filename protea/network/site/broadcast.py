"""What the coordinator last sent to be evaluated with: kept, so that a site can answer as it was evaluated.

state/broadcast.safetensors    the tensors of the last evaluation, and its round
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from protea.core.errors import CheckpointError, PayloadError
from protea.core.files import write_bytes
from protea.core.message import parse_tensors
from protea.core.method import Method
from protea.core.payload import unpack
from protea.federation.jobs import Job

NAME = "broadcast.safetensors"


def keep_broadcast(job: Job, state: Path) -> None:
    """Write what came with a job to evaluate."""
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in job.down.items()}
    write_bytes(state / NAME, save(tensors, metadata={"about": json.dumps({"round": job.round})}))


def kept_broadcast(method: Method[Any, Any], state: Path, round: int, device: str) -> tuple[bool, Any]:
    """Return whether the broadcast of the evaluation after ``round`` is there, and the broadcast, which may be None.

    That of an earlier round does not count: the model has been trained since.
    """
    path = state / NAME
    if not path.exists():
        return False, None
    try:
        named, about = parse_tensors(path.read_bytes(), "about")
        if json.loads(about)["round"] != round:
            return False, None
        return True, unpack(method.down, {name: tensor.to(device) for name, tensor in named.items()})
    except (OSError, ValueError, KeyError, TypeError, PayloadError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}  Delete it; the classifier then answers.") from error
