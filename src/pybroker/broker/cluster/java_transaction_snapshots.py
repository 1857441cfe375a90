"""Snapshots of transactions for Java brokers, in the system topic `__transaction_buffer_snapshot` of the namespace.

When a Java broker loads a topic, it reads the last snapshot of that topic and then the markers behind it; a topic without a
snapshot counts as one without transactions, of which all messages are delivered. This broker finds the state of a topic without
them. It publishes one snapshot for each topic, before the first message of a transaction is stored: without aborted
transactions, up to the last message at that time. So a Java broker that takes the topic over reads all later markers, and
delivers no aborted message, if its transaction coordinators are enabled.
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
"""Of a union of null and a type, in Avro."""
_NO_ITEMS = b"\x00"


class JavaTransactionSnapshots:
    """Owned by the broker service, on stores that Java brokers share."""

    client: Callable[[], PulsarClient] | None = None
    """The broker's client of its cluster, because another broker can own the system topic; None without other brokers."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._publishing = asyncio.Lock()

    async def announce(self, topic: TopicName, last: Position) -> None:
        """Publish a snapshot of `topic`, whose messages up to `last` are of no transaction. Raises StoreError."""
        if is_system_topic(topic):
            return
        name = TopicName(PERSISTENT, topic.namespace, BUFFER_SNAPSHOTS)
        try:
            async with self._publishing:
                await self._publish(name, encode_snapshot(topic, last), str(topic))
        except (BrokerError, ClientError, AccessRefused) as error:
            raise StoreError(f"the snapshot of {topic} for Java brokers cannot be published: {error}") from error

    async def _publish(self, name: TopicName, value: bytes, key: str) -> None:
        if self.client is None:
            await (await self._topics.get(name, may_create=True)).internal_producer().publish(value, key=key)
            return
        async with await self.client().producer(str(name), batching=False) as producer:
            await producer.send(value, key=key)


def encode_snapshot(topic: TopicName, last: Position) -> bytes:
    """Return Pulsar's TransactionBufferSnapshot as Avro: aborts, entry id and ledger id of the position, name of the topic."""
    name = str(topic).encode()
    position = _long(last.entry_id) + _long(last.ledger_id)
    return b"".join((_PRESENT, _NO_ITEMS, position, _PRESENT, _long(len(name)), name))


def _long(number: int) -> bytes:
    """Encode as Avro does: zigzag, then seven bits in each byte."""
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
