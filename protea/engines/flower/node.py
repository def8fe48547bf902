"""A SuperNode, and this process as its client side."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from protea.core.errors import ProteaError
from protea.engines.flower.codec import unwrap, wrap
from protea.engines.flower.programs import Program, free_port
from protea.engines.flower.tasks import heartbeat, make_secret, taker, worker

POLL = 0.1  # seconds between looks for a message, at a process on the same machine
LIMIT = 2**31  # bytes of a message that are looked at; it comes from a server that the site has chosen to trust

Handle = Callable[[str, bytes], bytes]  # from what is asked ("hello", "job") and the bytes of it to those of the answer


class Node:
    """A SuperNode that connects to the SuperLink at ``superlink``; with ``ca`` over TLS, as the owner of ``key``.

    It opens no port to the outside; its client side talks to it on this machine.
    """

    def __init__(self, folder: Path, superlink: str, ca: Path | None = None, key: Path | None = None) -> None:
        self.folder, self.superlink, self.ca, self.key = folder, superlink, ca, key
        self.port = free_port()
        self.start()

    def start(self) -> None:
        secret = make_secret(self.folder)
        arguments = ["--superlink", self.superlink, "--host", "127.0.0.1", "--port", str(self.port)]
        arguments += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        arguments += ["--insecure"] if self.ca is None else ["--root-certificates", str(self.ca)]
        arguments += [] if self.key is None else ["--auth-supernode-private-key", str(self.key)]
        self.program = Program("flower-supernode", arguments, self.folder)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.program.stop()


def attend(address: str, folder: Path, handle: Handle) -> None:
    """Answer the messages of the node at ``address``, one after another, for ever."""
    with closing(taker(address, folder)) as client:
        while True:
            with suppress(httpx.HTTPError):  # the node is not up yet, or was started anew
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                if found.HasField("task"):
                    try:
                        work(address, found.token, handle)
                    except httpx.HTTPError:
                        raise
                    except Exception:  # Flower has many kinds for what it cannot read, and anybody may send that
                        traceback.print_exc()  # the node gives such a message up after a while
                    continue
            time.sleep(POLL)


def work(address: str, token: str, handle: Handle) -> None:
    """Answer one message.  Whatever happens, an answer is sent: a node that gets none stands still for ever."""
    with closing(worker(address, token)) as client:
        pulse = heartbeat(client)
        pulse.start()
        try:
            message, context, _, _ = pull_task_input(client)
            push_message(client, answered(message, handle), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        finally:
            pulse.stop()


def answered(message: Message, handle: Handle) -> Message:
    """Give what is sent back: an answer, or an error that says why there is none."""
    try:
        kind = message.metadata.message_type.rpartition(".")[2]
        content: RecordDict = wrap(handle(kind, unwrap(message.content, LIMIT)))
    except ProteaError as problem:
        return refusal(message, str(problem))
    except Exception as error:
        return refusal(message, f"{type(error).__name__}: {error}")
    return Message(content, reply_to=message)


def refusal(message: Message, why: str) -> Message:
    """Give the error that answers a message."""
    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=why[:10_000]), reply_to=message)
