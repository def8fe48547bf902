"""Our bytes in Flower's records, and back.

One message of ours is one array of Flower's: that is cut into chunks on its way, and never
decoded by anything but our own reader, which bounds and checks what it reads.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from protea.core.errors import PayloadError

RECORD, ARRAY, KIND = "protea", "message", "protea.safetensors"


def wrap(message: bytes) -> RecordDict:
    """Put a message of ours into a record of Flower's."""
    return RecordDict({RECORD: ArrayRecord({ARRAY: Array("uint8", (len(message),), KIND, message)})})


def unwrap(content: RecordDict, limit: int) -> bytes:
    """Take our message out of a record; :class:`PayloadError` for any other record, or more than ``limit`` bytes."""
    record = content.get(RECORD) if content.keys() == {RECORD} else None
    array = record.get(ARRAY) if isinstance(record, ArrayRecord) and record.keys() == {ARRAY} else None
    if not isinstance(array, Array) or array.stype != KIND:
        raise PayloadError("a message arrived that is not one of Protea's.")
    if len(array.data) > limit:
        raise PayloadError(f"a message of {len(array.data):,} bytes arrived; {limit:,} at most were expected.")
    return array.data
