"""Transaction buffer snapshots that Java brokers read and write, in system topics of a namespace.

A Java broker that loads a topic reads its last snapshot, and then the transaction markers after the snapshot. Without a
snapshot, it delivers all messages, also aborted ones. pybroker recovers its own transactions without these topics, but
publishes one snapshot per topic in `__transaction_buffer_snapshot` before it stores the topic's first transactional
message. So a Java broker that takes over the topic reads all later markers, if its transaction coordinators are
enabled.

Snapshots of Java brokers, also in `__transaction_buffer_snapshot_indexes`, show which topics may have transactions of
Java coordinators. As they do not contain the positions of aborted messages, the topic's entries are read again
(`transaction_recovery.py`).

At most `MAX_NAMESPACES` namespaces are remembered; the longest unused one is read again when it is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.broker.cluster.java_snapshot_format import InvalidSnapshot, encode_snapshot, start_behind
from pybroker.broker.context.while_served import while_served
from pybroker.client.access import AccessRefused
from pybroker.client.failures import ClientError, RequestTimedOut
from pybroker.client.message import EARLIEST as FIRST_MESSAGE
from pybroker.errors import BrokerError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.model.names import PERSISTENT, NamespaceName, TopicName
from pybroker.model.position import EARLIEST, Position
from pybroker.model.system_topics import BUFFER_SNAPSHOT_INDEXES, BUFFER_SNAPSHOTS, is_system_topic
from pybroker.runtime import logs
from pybroker.wire.compression import DamagedPayload

if TYPE_CHECKING:
    from pybroker.broker.context.topic_ownership import TopicOwnership
    from pybroker.broker.lifecycle.topic_manager import Topics
    from pybroker.client.pulsar_client import PulsarClient
    from pybroker.managed_ledger.factory import ManagedLedgerFactory

MAX_NAMESPACES = 1_000
LAST_MESSAGE_TIMEOUT_S = 5.0
"""How long a reading waits for a message that the topic reports and does not deliver."""
_FAILURES = (BrokerError, ClientError, AccessRefused, OSError)


class JavaTransactionSnapshots:
    """Publisher and reader of the snapshots. Exists only if the broker shares its ledger store with Java brokers."""

    client: Callable[[], PulsarClient] | None = None
    """Client of the broker's own cluster, because another broker can own the system topic; None for a standalone broker."""
    ownership: TopicOwnership | None = None
    """None for a standalone broker."""

    def __init__(self, topics: Topics, ledgers: ManagedLedgerFactory) -> None:
        self._topics = topics
        self._ledgers = ledgers
        self._publishing = asyncio.Lock()
        self._read: dict[TopicName, _ReadSnapshots] = {}  # the longest unused first

    # --- for Java brokers --------------------------------------------------------------------------------------------

    async def announce(self, topic: TopicName, last: Position) -> None:
        """Publish a snapshot which states that no message of `topic` up to the position `last` belongs to a
        transaction. Raises StoreError.
        """
        if is_system_topic(topic):
            return
        name = TopicName(PERSISTENT, topic.namespace, BUFFER_SNAPSHOTS)
        try:
            async with self._publishing:
                await while_served(self.ownership, topic, self._publish(name, encode_snapshot(topic, last), str(topic)))
        except (BrokerError, ClientError, AccessRefused) as error:
            raise StoreError(
                f"the transaction snapshot of topic {topic}, which Java brokers read, cannot be published: {error}"
            ) from error

    async def _publish(self, name: TopicName, value: bytes, key: str) -> None:
        if self.client is None:
            await (await self._topics.get(name, may_create=True)).internal_producer().publish(value, key=key)
            return
        async with await self.client().producer(str(name), batching=False) as producer:
            await producer.send(value, key=key)

    # --- from Java brokers -------------------------------------------------------------------------------------------

    async def start_of(self, topic: TopicName) -> Position | None:
        """Return the position after which `topic` may have messages of transactions of Java coordinators; None if it
        has no such messages. Raises StoreError.
        """
        if self.client is None or is_system_topic(topic):
            return None
        starts = [await self._start_in(name, topic) for name in _snapshot_topics(topic.namespace)]
        return min((start for start in starts if start is not None), default=None)

    async def _start_in(self, name: TopicName, topic: TopicName) -> Position | None:
        if not await self._ledgers.exists(metadata_paths.managed_ledger(name)):
            self._read.pop(name, None)
            return None
        assert self.client is not None
        found = self._read.pop(name, None)
        if found is None:
            found = _ReadSnapshots(name)
        self._read[name] = found
        if len(self._read) > MAX_NAMESPACES:
            del self._read[next(iter(self._read))]
        try:
            await while_served(self.ownership, topic, found.read_now(self.client))
        except _FAILURES as error:
            raise StoreError(
                f"topic {topic} cannot be loaded, because the transaction snapshots that Java brokers stored in topic {name} "
                f"cannot be read: {error}"
            ) from error
        return found.starts.get(str(topic))


class _ReadSnapshots:
    """Snapshots of one system topic."""

    def __init__(self, name: TopicName) -> None:
        self.starts: dict[str, Position] = {}
        """By the name of the topic."""
        self._name = name
        self._last = FIRST_MESSAGE
        self._lock = asyncio.Lock()
        self._begun = self._last_complete = 0  # numbers of readings

    async def read_now(self, client: Callable[[], PulsarClient]) -> None:
        """Wait until all snapshots that were published before this call have been read. Raises the errors of the
        cluster client.
        """
        begun_before = self._begun
        async with self._lock:
            if self._last_complete > begun_before:
                return
            self._begun += 1
            await self._read(client)
            self._last_complete = self._begun

    async def _read(self, client: Callable[[], PulsarClient]) -> None:
        async with await client().reader(str(self._name), self._last, read_compacted=True) as reader:
            while await reader.has_more():
                try:
                    message = await reader.receive(LAST_MESSAGE_TIMEOUT_S)
                except RequestTimedOut:
                    return  # compaction has removed the last messages, which were deletions
                except DamagedPayload as damage:
                    raise StoreError(
                        f"a transaction snapshot of a Java broker in the topic {self._name} is damaged: {damage}"
                    ) from damage
                self._take(message.key or "", message.value)
                self._last = message.id

    def _take(self, key: str, value: bytes | None) -> None:
        if not value:
            self.starts.pop(key, None)
            return
        if self._name.local_name == BUFFER_SNAPSHOT_INDEXES:
            self.starts[key] = EARLIEST
            return
        try:
            self.starts[key] = start_behind(value)
        except InvalidSnapshot as error:
            self.starts[key] = EARLIEST
            logs.warning("transactions.java_snapshot_invalid", topic=key, error=str(error))


def _snapshot_topics(namespace: NamespaceName) -> list[TopicName]:
    return [TopicName(PERSISTENT, namespace, name) for name in (BUFFER_SNAPSHOTS, BUFFER_SNAPSHOT_INDEXES)]
