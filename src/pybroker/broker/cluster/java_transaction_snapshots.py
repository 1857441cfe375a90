"""Transaction buffer snapshots for Java brokers, in the system topic `__transaction_buffer_snapshot` of a namespace.

A Java broker that loads a topic reads the topic's last snapshot and then the transaction markers after the snapshot.
Without a snapshot, a Java broker treats the topic as free of transactions and delivers all messages, including aborted
messages.

pybroker recovers a topic without this system topic. For Java brokers, it publishes one snapshot per topic before it
stores the topic's first transactional message. The snapshot lists no aborted transactions and ends at the last message
of that time. A Java broker that takes over the topic therefore reads all later markers and delivers no aborted message,
provided that its transaction coordinators are enabled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.client.access import AccessRefused
from pybroker.client.failures import ClientError
from pybroker.errors import BrokerError, StoreError
from pybroker.model.names import PERSISTENT, TopicName
from pybroker.model.position import Position
from pybroker.model.system_topics import BUFFER_SNAPSHOTS, is_system_topic

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.client.pulsar_client import PulsarClient

_PRESENT = b"\x02"
"""Avro's branch index of the non-null type in a union of null and a type."""
_NO_ITEMS = b"\x00"


class JavaTransactionSnapshots:
    """Publisher of the snapshots. Exists only if the broker shares its ledger store with Java brokers."""

    client: Callable[[], PulsarClient] | None = None
    """Client of the broker's own cluster, because another broker can own the system topic; None for a standalone broker."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._publishing = asyncio.Lock()

    async def announce(self, topic: TopicName, last: Position) -> None:
        """Publish a snapshot of `topic` that covers all messages up to `last`. None of these messages may belong to a
        transaction. Raises StoreError.
        """
        if is_system_topic(topic):
            return
        name = TopicName(PERSISTENT, topic.namespace, BUFFER_SNAPSHOTS)
        try:
            async with self._publishing:
                await self._publish(name, encode_snapshot(topic, last), str(topic))
        except (BrokerError, ClientError, AccessRefused) as error:
            raise StoreError(
                f"the transaction snapshot of {topic}, which Java brokers read, cannot be published: {error}"
            ) from error

    async def _publish(self, name: TopicName, value: bytes, key: str) -> None:
        if self.client is None:
            await (await self._topics.get(name, may_create=True)).internal_producer().publish(value, key=key)
            return
        async with await self.client().producer(str(name), batching=False) as producer:
            await producer.send(value, key=key)


def encode_snapshot(topic: TopicName, last: Position) -> bytes:
    """Encode Pulsar's TransactionBufferSnapshot as Avro: aborted transactions (none), entry id, ledger id, topic
    name.
    """
    name = str(topic).encode()
    position = _long(last.entry_id) + _long(last.ledger_id)
    return b"".join((_PRESENT, _NO_ITEMS, position, _PRESENT, _long(len(name)), name))


def _long(number: int) -> bytes:
    """Encode an Avro `long`: zigzag, then seven bits per byte."""
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
