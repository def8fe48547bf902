"""Which replies are waited for, so that the front door lets sites announce these and nothing else.

Flower's SuperLink keeps whatever a node announces: messages that answer nothing, addressed to the coordinator or to the
node itself; one answer again and again, each time with other parts; parts that contain each other twice, level by
level, so that a few kilobytes unroll to as many objects as its memory holds.  A site that was invited could fill it so.
Here an announcement passes if it answers a message that was sent to that very site, and is shaped as ours are; of two
different ones to the same message the first counts.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Collection

from flwr.proto.fleet_pb2 import PushMessagesRequest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from protea.core.errors import PayloadError
from protea.engines.flower.codec import FOREIGN, records_of


class ExpectedReplies:
    """The messages that wait for a reply, with the public key of the site that each was sent to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[str, bytes | None] = {}  # by the message's id; None: whoever has it may answer
        self.announced: dict[str, bytes] = {}  # checksum of what was announced, by the id of the message it answers

    def expect(self, message: str, key: bytes | None) -> None:
        """Let the site of this key answer a message."""
        with self.lock:
            self.waiting[message] = key

    def forget_others(self, messages: Collection[str]) -> None:
        """Wait for replies to these messages only."""
        with self.lock:
            self.waiting = {each: key for each, key in self.waiting.items() if each in messages}
            self.announced = {each: what for each, what in self.announced.items() if each in messages}

    def waits_for(self, announcement: bytes, key: bytes, limit: int) -> bool:
        """Return whether what the site of this key announces is waited for.

        :class:`PayloadError` for anything but one reply of ours, of ``limit`` bytes at most.
        """
        answers, checksum = read(announcement, limit)
        with self.lock:
            if answers not in self.waiting or self.waiting[answers] not in (None, key):
                return False
            return self.announced.setdefault(answers, checksum) == checksum


def read(announcement: bytes, limit: int) -> tuple[str, bytes]:
    """Give the id of the message that a reply answers, and a checksum of the reply and its list of parts."""
    try:
        request = PushMessagesRequest.FromString(announcement)
    except DecodeError as error:
        raise PayloadError(FOREIGN) from error
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise PayloadError(FOREIGN)
    message, tree = request.messages_list[0], request.message_object_trees[0]
    about = message.metadata
    if about.src_node_id != request.node.node_id or not about.reply_to_message_id or tree.object_id != about.message_id:
        raise PayloadError(FOREIGN)
    if not message.HasField("error"):
        records_of(tree, limit)
    elif tree.children:
        raise PayloadError(FOREIGN)
    parts = (message.SerializeToString(deterministic=True), tree.SerializeToString(deterministic=True))
    return about.reply_to_message_id, hashlib.sha256(b"".join(parts)).digest()
