"""Our bytes in Flower's records, and back.

One message of ours is one record of Flower's, or a few if it is large.  So it travels as three objects, of which only
the record itself has to be fetched.  Nothing decodes it but our own reader, which bounds and checks what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from flwr.app import ConfigRecord, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import InflatableObject, get_object_id
from flwr.supercore.inflatable.inflatable_utils import push_objects

from protea.core.errors import PayloadError

RECORD, FIELD, NUMBER = "protea", "message", "part"
PART = 4 * 2**20  # most bytes of our message in one record
BROKEN = 1000  # code of an error: a reply came that cannot be read
ROOM = 1024  # bytes beside our own that a record may have
FOREIGN = "a message arrived that is not one of Protea's."

Pull = Callable[[str], bytes]  # from the id of an object to its bytes
Push = Callable[[str, bytes], None]  # sends the bytes of the object with an id


def parts_of(size: int) -> int:
    """Give the number of records that a message of ``size`` bytes has."""
    return max(1, -(-size // PART))


def wrap(message: bytes) -> RecordDict:
    """Put a message of ours into records of Flower's."""
    starts = range(0, max(len(message), 1), PART)
    parts = [ConfigRecord({FIELD: message[at : at + PART], NUMBER: k}) for k, at in enumerate(starts)]  # all different
    return RecordDict({_name(k): part for k, part in enumerate(parts)})


def unwrap(content: RecordDict, limit: int) -> bytes:
    """Take our message out of records; :class:`PayloadError` for any other records, or more than ``limit`` bytes."""
    parts = []
    for k in range(len(content)):
        record = content.get(_name(k))
        if not isinstance(record, ConfigRecord) or record.keys() != {FIELD, NUMBER} or record[NUMBER] != k:
            raise PayloadError(FOREIGN)
        if not isinstance(part := record[FIELD], bytes):
            raise PayloadError(FOREIGN)
        parts.append(part)
    if not parts:
        raise PayloadError(FOREIGN)
    if (size := sum(map(len, parts))) > limit:
        raise PayloadError(f"a message of {size:,} bytes arrived; {limit:,} at most were expected.")
    return b"".join(parts)


def records_of(tree: ObjectTree, limit: int) -> list[str]:
    """Give the ids of the records of a message of ours, of which no part is there twice.

    :class:`PayloadError` for a tree of anything else, or of more records than ``limit`` bytes need.
    """
    records = [each.object_id for below in tree.children for each in below.children]
    deep = any(each.children for below in tree.children for each in below.children)
    if len(tree.children) != 1 or deep or not records:
        raise PayloadError(FOREIGN)
    if len(records) > parts_of(limit) or len(set(records)) < len(records):
        raise PayloadError(
            f"a message of {len(records):,} parts arrived, {len(set(records)):,} of them different; "
            f"{parts_of(limit):,} different ones at most were expected."
        )
    return records


def fetch(tree: ObjectTree, pull: Pull, limit: int) -> RecordDict:
    """Get the content of a message whose objects are those of ``tree``.

    The records are fetched one by one, in their order, and no more of them than ``limit`` bytes need.
    :class:`PayloadError` for a tree that is not of a message of ours, and for an object that is not what it is called.
    """
    records = records_of(tree, limit)
    found, size = RecordDict(), 0
    for k, identity in enumerate(records):
        content = pull(identity)
        size += len(content)
        if size > limit + (k + 1) * ROOM:
            raise PayloadError(f"a message of more than {limit:,} bytes arrived.")
        if get_object_id(content) != identity:
            raise PayloadError("a part of a message arrived that is not the one that was announced.")
        found[_name(k)] = _record(content)
    return found


def hand_over(
    objects: dict[str, InflatableObject], push: Callable[[str, bytes], None], wanted: Collection[str]
) -> None:
    """Send those objects of messages that are ``wanted``, the records last.

    Who has fetched the records has all, and says so; what came after that would be refused.
    """
    records = {identity for identity, each in objects.items() if isinstance(each, ConfigRecord)}
    for some in (set(wanted) - records, set(wanted) & records):
        if some:
            push_objects(objects, push, object_ids_to_push=some, keep_objects=True)


def _record(content: bytes) -> ConfigRecord:
    try:
        return ConfigRecord.inflate(content)
    except Exception as error:  # Flower has many kinds for what it cannot read
        raise PayloadError(FOREIGN) from error


def _name(k: int) -> str:
    return RECORD if k == 0 else f"{RECORD}.{k}"
