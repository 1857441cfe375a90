"""Messages and message ids. Named tuples, because creating a frozen dataclass takes ten times as long."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class MessageId(NamedTuple):
    """The id of a message. Ids of one partition sort in message order."""

    ledger_id: int
    """-1, like the entry id, if deduplication has dropped the message."""
    entry_id: int
    partition: int = -1
    """-1 for a topic without partitions."""
    batch_index: int = -1
    """-1 for a message outside a batch."""
    batch_size: int = 0
    first_chunk: tuple[int, int] | None = None
    """Ledger id and entry id of the first chunk. The id itself is the id of the last chunk."""

    def __str__(self) -> str:
        return ":".join(str(part) for part in self[:4])


EARLIEST = MessageId(-1, -1)
LATEST = MessageId((1 << 63) - 1, (1 << 63) - 1)


_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class EncryptionKey(NamedTuple):
    """The key of an encrypted message, itself encrypted with the public key of a receiver."""

    name: str
    value: bytes
    metadata: Mapping[str, str] = _NO_PROPERTIES


class Encryption(NamedTuple):
    """How a message was encrypted and compressed."""

    keys: tuple[EncryptionKey, ...]
    param: bytes = b""
    """The initialization vector."""
    algorithm: str | None = None
    compression: int = 0
    """The compression of the message inside the encryption: a number of the protocol's `CompressionType`."""
    uncompressed_bytes: int = 0
    batch_size: int | None = None
    """The number of messages of the encrypted batch; None for a message outside a batch."""
    is_decrypted: bool = False
    """Whether the client has decrypted the message. A batch that is still encrypted is one message."""


class Message(NamedTuple):
    """A received message. Times are Unix times in milliseconds; 0 means not set."""

    id: MessageId
    topic: str
    """The partition, if the topic is partitioned."""
    value: bytes | None
    """None deletes the value of the key, for compacted topics."""
    key: str | None = None
    """The key as sent by the producer: base64 text if `is_key_encoded`."""
    is_key_encoded: bool = False
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    publish_time_ms: int = 0
    event_time_ms: int = 0
    producer_name: str = ""
    sequence_id: int = 0
    redelivery_count: int = 0
    schema_version: bytes = b""
    encryption: Encryption | None = None
    """Set for a message that its producer has encrypted."""


class OutgoingMessage(NamedTuple):
    """A message to send. For its fields see `Message`."""

    value: bytes | None
    key: str | None = None
    is_key_encoded: bool = False
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    event_time_ms: int = 0
    deliver_at_ms: int = 0
    """Earliest delivery time on Shared subscriptions. Such a message is never batched."""
    sequence_id: int | None = None
    """None: the previous id plus one. Explicit ids must increase."""
    replicate_to: tuple[str, ...] = ()
    """The clusters that get the message; empty: those of the namespace. Such a message is never batched."""
    encryption: Encryption | None = None
    """Set if `value` is encrypted already. Such a message is neither batched nor compressed by the client."""

    @property
    def size_bytes(self) -> int:
        properties = sum(len(name) + len(text) + 8 for name, text in self.properties.items())
        return len(self.value or b"") + len(self.key or "") + len(self.ordering_key or b"") + properties + 32
