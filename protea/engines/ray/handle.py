"""An actor as the engine sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from protea.core.errors import CheckpointError
from protea.core.files import write_bytes
from protea.engines.ray.actor import WorkerActor


class ActorHandle:
    """One actor, as the engine sees it."""

    def __init__(self, gpus: float) -> None:
        make: Any = ray.remote(WorkerActor)
        self.remote = make.options(num_cpus=1, num_gpus=gpus, max_restarts=0, scheduling_strategy="SPREAD").remote()
        self.node = ""
        self.asked: list[Any] = []  # what it has not answered
        self.dead = False
        self.why = "is gone"

    def tell(self, verb: str, *what: object) -> Any:
        """Begin a call of one of its methods.  That the actor is gone is noticed when it should answer."""
        self.asked.append(getattr(self.remote, verb).remote(*what))
        return self.asked[-1]

    def ask(self, verb: str, *what: object) -> Any:
        """Call one of its methods, and give the answer; an error of Ray's if this call or one before it failed."""
        self.tell(verb, *what)
        asked, self.asked = self.asked, []
        return ray.get(asked)[-1]

    def hear(self) -> bytes | None:
        asked, self.asked = self.asked, []
        try:
            answer: bytes = ray.get(asked)[-1]
        except RayError as error:
            self.why = words(error)
            return None
        return answer

    def alive(self) -> bool:
        try:
            return bool(self.ask("process"))
        except RayError:
            return False

    def give(self, job: bytes) -> None:
        self.tell("job", job)

    def save(self, directory: Path) -> None:
        """Fetch the states of all its clients, one after another, so that one at a time is in memory."""
        try:
            for name in self.ask("save"):
                write_bytes(directory / name, self.ask("fetch", name))
        except RayError as error:
            self.dead = not isinstance(error, RayTaskError)  # or it lives, and says what went wrong
            raise CheckpointError(f"save: an actor {words(error)}") from error

    def load(self, directory: Path) -> None:
        try:
            self.ask("load")
        except RayError as error:
            raise CheckpointError(f"load: an actor {words(error)}") from error

    def bury(self) -> str:
        self.stop()
        return self.why

    def stop(self) -> None:
        self.dead = True
        if ray.is_initialized():
            ray.kill(self.remote)


def words(error: Exception) -> str:
    """Say what became of an actor, in a few of the many words that Ray has for it."""
    if isinstance(error, RayTaskError):
        return f"failed: {error.cause!r}"
    lines = [line for line in str(error).splitlines() if line.startswith("The actor is dead because")]
    reason = lines[-1].removeprefix("The actor is dead because").strip() if lines else "it does not answer"
    return f"was lost: {reason.rstrip('.')}"
