"""Flower's grid, changed so that nobody waits for a reply that is never complete."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import InflatableObject, get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import HttpGrid

from protea.engines.flower.codec import BROKEN, fetch, hand_over
from protea.engines.flower.notices import Notices

LOST = (httpx.HTTPError, OSError)  # what talking to a SuperLink that is gone, or was started anew, may raise
PULL = 0.05  # seconds that an announced reply is waited for, before others are looked for
UNASKED = 1.0  # seconds without a notice after which the SuperLink is asked for replies all the same


class PatientGrid(HttpGrid):
    """A grid on which nobody waits for a reply that is never complete.

    A node that dies while it sends a reply leaves one that is announced and never complete; Flower would wait two
    hours for the rest, and meanwhile take no other.  Here one request asks which replies were announced, and each of
    these is fetched by a thread of its own.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.limit = 2**31  # most bytes of a reply
        self.notices: Notices | None = None  # of the door, if there is one
        self.keys: dict[int, bytes] = {}  # public keys of nodes, by id
        self.asked = 0.0  # when the SuperLink was last asked for replies
        self.fetched: queue.Queue[tuple[str, Message | Exception]] = queue.Queue()
        self.busy: set[str] = set()  # messages whose replies are being fetched
        self.pushed: dict[str, Message] = {}  # that were not answered yet

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        ids = [str(identity or "") for identity in super().push_messages(messages)]
        self.pushed |= {identity: message for identity, message in zip(ids, messages, strict=True) if identity}
        return ids

    def _try_push_messages(self, run_id: int, messages: Iterable[Message]) -> list[str]:
        """Announce messages, and hand over what they consist of."""
        objects: dict[str, InflatableObject] = {}
        request = PushAppMessagesRequest()
        for message in messages:
            request.messages_list.append(message_to_proto(remove_content_from_message(message)))
            request.message_object_trees.append(get_object_tree(message))
            objects |= get_all_nested_objects(message)
        if self.notices is not None:  # first, since it can be asked for as soon as it is there
            for each in request.messages_list:
                key = self.keys.get(each.metadata.dst_node_id)
                self.notices.replies.expect(each.metadata.message_id, key)
        told = self._runtime_client.PushMessages(request)
        push = make_push_object_fn_protobuf(self._runtime_client.PushObject, self.node, run_id, told.session_id)
        hand_over(objects, push, told.objects_to_push)
        if self.notices is not None:
            for each in request.messages_list:
                if (key := self.keys.get(each.metadata.dst_node_id)) is not None:
                    self.notices.message_for(key)
        return list(told.message_ids)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Give the replies to these messages that are complete by now."""
        wanted, found = set(message_ids), []
        self.pushed = {identity: message for identity, message in self.pushed.items() if identity in wanted}
        if self.notices is not None:
            self.notices.replies.forget_others(wanted)
        if (waiting := wanted - self.busy) and self._worth_asking():
            told = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=waiting))
            for announced, tree in zip(told.messages_list, told.message_object_trees, strict=True):
                identity = str(announced.metadata.reply_to_message_id)
                self.busy.add(identity)
                message = message_from_proto(announced)
                threading.Thread(target=self._fetch, args=(identity, message, tree), daemon=True).start()
        with suppress(queue.Empty):
            while self.busy:
                identity, result = self.fetched.get(timeout=PULL)
                self.busy.discard(identity)
                if isinstance(result, LOST):
                    raise result
                if identity not in wanted or identity not in self.pushed:
                    continue
                if isinstance(result, Exception):
                    why = f"its reply cannot be read: {type(result).__name__}."
                    result = Message(Error(code=BROKEN, reason=why), reply_to=self.pushed[identity])
                found.append(result)
        return found

    def _worth_asking(self) -> bool:
        """Whether a reply may have come since the SuperLink was last asked; wait a little for one."""
        came = self.notices is None or self.notices.until_reply(0.0 if self.busy else PULL)
        if came or time.monotonic() > self.asked + UNASKED:
            self.asked = time.monotonic()
            return True
        return False

    def _fetch(self, identity: str, announced: Message, tree: ObjectTree) -> None:
        """Fetch a reply, and tell the SuperLink that it may forget it, also one that cannot be read."""
        try:
            self.fetched.put((identity, self._complete(announced, tree)))
        except Exception as error:  # for whoever asked
            self.fetched.put((identity, error))
        request = ConfirmMessageReceivedRequest(
            node=self.node, run_id=self.run.run_id, message_object_id=announced.metadata.message_id
        )
        with suppress(Exception):  # nothing depends on it, and the connection may be closed by now
            self._runtime_client.ConfirmMessageReceived(request)

    def _complete(self, announced: Message, tree: ObjectTree) -> Message:
        if announced.has_error():
            return announced
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, self.run.run_id)
        content = fetch(tree, lambda part: pull_objects([part], pull)[part], self.limit)
        return make_message(metadata=announced.metadata, content=content)
