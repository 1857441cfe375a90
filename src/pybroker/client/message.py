"""Messages as callers see them, and their ids. Tuples with names, since there is one for each message: frozen dataclasses take ten
times as long to make (`python -m benchmarks.transactions --clients`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class MessageId(NamedTuple):
    """Where a message is stored. Ids of one partition are in the order of its messages."""

    ledger_id: int
    """-1, as the entry id: deduplication knew the message already."""
    entry_id: int
    partition: int = -1
    """-1: of a topic without partitions."""
    batch_index: int = -1
    """-1: not in a batch."""
    batch_size: int = 0
    first_chunk: tuple[int, int] | None = None
    """Ledger and entry id of the first part of a message that came in parts; the id itself is that of the last one."""

    def __str__(self) -> str:
        return ":".join(str(part) for part in self[:4])


EARLIEST = MessageId(-1, -1)
"""In front of the first message."""
LATEST = MessageId((1 << 63) - 1, (1 << 63) - 1)
"""Behind the last message."""


_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class Message(NamedTuple):
    """A message that came. Times are Unix times in milliseconds; 0: not said."""

    id: MessageId
    topic: str
    """The partition, where there are any."""
    value: bytes | None
    """None: there is no value for its key any more."""
    key: str | None = None
    """As it is on the wire: base64 where `is_key_encoded`."""
    is_key_encoded: bool = False
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    publish_time_ms: int = 0
    event_time_ms: int = 0
    producer_name: str = ""
    sequence_id: int = 0
    redelivery_count: int = 0
    schema_version: bytes = b""


class OutgoingMessage(NamedTuple):
    """A message to be sent; see `Message`."""

    value: bytes | None
    key: str | None = None
    is_key_encoded: bool = False
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    event_time_ms: int = 0
    deliver_at_ms: int = 0
    """Not delivered before that on Shared subscriptions; such a message is never in a batch."""
    sequence_id: int | None = None
    """None: the one after the message before. Given ones have to rise."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in a batch."""
        properties = sum(len(name) + len(text) + 8 for name, text in self.properties.items())
        return len(self.value or b"") + len(self.key or "") + len(self.ordering_key or b"") + properties + 32
