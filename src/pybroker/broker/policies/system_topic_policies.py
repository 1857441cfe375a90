"""Topic policies that are stored in the system topic `__change_events` of each namespace, as Java brokers store them.

Used with ledgers on BookKeeper. When a topic of a namespace first needs its policies, the broker reads the whole system
topic, as a client of the cluster, and then follows it. After an error, a new reader starts; meanwhile the former policies
apply.

A message has all policies of a topic, and the last message applies. So a change begins with the last message of the
system topic. The broker publishes the changed policies with the position of that message as their base, and reads its own
message back. If another broker has published policies of the same topic in between, no broker applies the message
(`topic_policy_table.py`), and this broker repeats the change with the new policies. Java brokers apply all messages, until
the repeated one replaces them.

Limits: at most `MAX_NAMESPACES` namespaces have readers. Above, readers of namespaces without loaded topics are
stopped, longest unused first.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from pybroker.broker.policies.policy_events import (
    InvalidEvent,
    PolicyEvent,
    StoredPolicies,
    decode_event,
    encode_event,
    event_key,
    event_properties,
    event_schema,
)
from pybroker.broker.policies.topic_policy_table import NO_POLICIES, TopicPolicyTable
from pybroker.client.access import AccessRefused
from pybroker.client.client import TopicSchema
from pybroker.client.consuming.message_consumer import MessageConsumer
from pybroker.client.failures import ClientError, RequestTimedOut
from pybroker.client.producing.entry_producer import EntryId, Producer, ProducerSettings, ProducerState, open_producer
from pybroker.client.pulsar_client import PulsarClient
from pybroker.errors import AdminError, BrokerError, ServiceNotReady, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.metadata_store import values_at
from pybroker.metadata.stored_document import decoded_or_logged
from pybroker.metadata.topic_policies_store import Change, TopicPoliciesStore
from pybroker.model import system_topics
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import TopicPolicies, copy_of, to_pulsar_topic_policies
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.runtime.tasks import TaskOwner
from pybroker.waiting.keyed_lock import KeyedLock
from pybroker.wire.compression import DamagedPayload
from pybroker.wire.entry_builder import build_entry

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.lifecycle.loaded_topics import LoadedTopics

MAX_NAMESPACES = 1_000
RETRY_DELAY_S = 1.0
READ_BACK_TIMEOUT_S = 30.0
"""Maximum wait of a change until this broker has read its message back."""
LAST_MESSAGE_TIMEOUT_S = 5.0
"""Maximum wait for a last message that the topic reports but does not deliver."""
CATCH_UP_TIMEOUT_S = 30.0
"""Maximum wait of a change until this broker has read the system topic to its end."""
MAX_ATTEMPTS = 20
"""Number of publications of one change, if other brokers change the policies of the same topic at the same time. One of
these brokers succeeds each time."""

_FAILURES = (BrokerError, ClientError, AccessRefused, OSError)

Notify = Callable[[TopicName, TopicPolicies | None], None]


class SystemTopicPolicies(TopicPoliciesStore):
    """Store of topic policies in system topics. `notify` is called with the changed policies of each topic."""

    def __init__(
        self,
        broker_context: BrokerContext,
        loaded: LoadedTopics,
        notify: Notify,
        client: Callable[[], PulsarClient],
    ) -> None:
        self._broker_context = broker_context
        self._loaded = loaded
        self._notify = notify
        self.client = client
        """Returns the broker's client of its cluster. Raises AccessRefused."""
        self._namespaces: dict[NamespaceName, _Namespace] = {}  # the longest unused first
        self._changing: KeyedLock[TopicName] = KeyedLock()
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        while self._namespaces:
            await self._namespaces.popitem()[1].close()

    # --- the interface

    async def get(self, topic: TopicName) -> TopicPolicies:
        namespace = await self._read(topic)
        return TopicPolicies() if namespace is None else copy_of((namespace.table.local(topic) or NO_POLICIES).policies)

    async def in_force(self, topic: TopicName) -> TopicPolicies:
        namespace = await self._read(topic)
        return TopicPolicies() if namespace is None else copy_of(namespace.table.in_force(topic))

    async def update(self, topic: TopicName, change: Change) -> None:
        async with self._changing.held(topic):
            namespace = await self._read(topic)
            if namespace is None:
                raise AdminError(
                    412, f"topic {topic} cannot have policies: it is a system topic, or its namespace is being deleted"
                )
            for _ in range(MAX_ATTEMPTS):
                await self._catch_up(namespace, topic)
                if await self._change(namespace, topic, change):
                    return
        raise AdminError(
            409,
            f"The policies of topic {topic} were not changed, because other brokers change them at the same time: try again",
        )

    async def _change(self, namespace: _Namespace, topic: TopicName, change: Change) -> bool:
        """Apply `change` to the policies of the topic, and publish the result. Return False if brokers do not apply it,
        because another broker has published policies first.
        """
        current, base = namespace.table.local(topic) or NO_POLICIES, namespace.table.base_of(topic)
        policies = copy_of(current.policies)
        change(policies)
        with namespace.applied_events(topic) as applied:
            return await self._publish(namespace, topic, current.changed(policies), base=base) in applied

    async def delete(self, topic: TopicName) -> None:
        async with self._changing.held(topic):
            namespace = await self._read(topic)
            if namespace is None:
                return
            await self._catch_up(namespace, topic)
            if namespace.table.local(topic) is not None:
                await self._publish(namespace, topic, None)
            if namespace.table.of_all_clusters(topic) is not None:
                await self._publish(namespace, topic, None, is_global=True)

    # --- namespaces

    def namespace_changed(self, namespace: NamespaceName) -> None:
        """Handle a change of the namespace: if it is being deleted or does not exist, stop the reader of its system
        topic.
        """
        reading = self._namespaces.get(namespace)
        if reading is not None and not self._exists(namespace):
            del self._namespaces[namespace]
            self._broker_context.tasks.start(reading.close(), f"topic policies of {namespace}")

    def _exists(self, namespace: NamespaceName) -> bool:
        policies = self._broker_context.resources.namespace(namespace)
        return policies is not None and not policies.deleted

    async def _read(self, topic: TopicName) -> _Namespace | None:
        if system_topics.is_system_topic(topic) or not self._exists(topic.namespace):
            return None
        self._require_open(topic)
        namespace = self._namespaces.pop(topic.namespace, None)
        if namespace is None:
            await self._forget_unused()
            namespace = self._namespaces.pop(topic.namespace, None) or _Namespace(topic.namespace, self)
        self._namespaces[topic.namespace] = namespace
        await namespace.is_read.wait()
        self._require_open(topic)
        return namespace

    def _require_open(self, topic: TopicName) -> None:
        """Refuse to read policies while the broker stops. A new reader would wait for a broker that does not answer."""
        if self._is_closed:
            raise ServiceNotReady(
                f"the policies of topic {topic} cannot be read: the broker is stopping. Look the topic up again"
            )

    async def _forget_unused(self) -> None:
        if len(self._namespaces) < MAX_NAMESPACES:
            return
        used = {topic.name.namespace for topic in self._loaded.all() if not system_topics.is_system_topic(topic.name)}
        unused = next((name for name, each in self._namespaces.items() if name not in used and each.is_idle), None)
        if unused is not None:
            await self._namespaces.pop(unused).close()

    async def _catch_up(self, namespace: _Namespace, topic: TopicName) -> None:
        try:
            await namespace.catch_up()
        except (TimeoutError, *_FAILURES) as error:
            reason = error if str(error) else f"no answer within {CATCH_UP_TIMEOUT_S:g} s"
            raise StoreError(
                f"the policies of topic {topic} cannot be changed, because topic {namespace.topic} cannot be read: {reason}"
            ) from error

    async def _publish(
        self,
        namespace: _Namespace,
        topic: TopicName,
        document: dict[str, object] | None,
        *,
        is_global: bool = False,
        base: Position | None = None,
    ) -> Position:
        """Publish an event, and read it back. Return its position."""
        try:
            value = None if document is None else encode_event(topic, document, self.cluster)
        except (TypeError, ValueError) as error:
            raise AdminError(
                412, f"The policies of topic {topic} cannot be stored in topic {namespace.topic}: {error}"
            ) from error
        try:
            key = event_key(topic, is_global=is_global)
            return await namespace.publish(key, value, is_global=is_global, base=base)
        except TimeoutError:
            raise StoreError(
                f"It is unknown whether the policies of topic {topic} were changed: the change could not be read "
                f"from topic {namespace.topic} within {READ_BACK_TIMEOUT_S:g} s. The change may take effect later: "
                "read the policies before you repeat the request"
            ) from None
        except _FAILURES as error:
            raise StoreError(
                f"the policies of topic {topic} cannot be written to topic {namespace.topic}: {error}"
            ) from error

    # --- for the namespaces

    @property
    def cluster(self) -> str:
        return self._broker_context.runtime.config.cluster_name

    @property
    def broker_context(self) -> BrokerContext:
        return self._broker_context

    def changed(self, namespace: _Namespace, topic: TopicName) -> None:
        self._notify(topic, namespace.table.in_force(topic))

    async def documents(self, namespace: NamespaceName) -> dict[str, tuple[TopicName, TopicPolicies]]:
        """Return the topic policies that are in the metadata store, not in the system topic, by the path of the document.
        `pybroker metadata import` and brokers with local ledgers store them there. Raises StoreError.
        """
        store = self._broker_context.metadata_store
        parent = f"{metadata_paths.TOPIC_POLICIES}/{namespace}"
        found = {}
        async for (domain, segment), stored in values_at(store, parent, 2):
            path = f"{parent}/{domain}/{segment}"
            policies = decoded_or_logged(store, path, stored.value, TopicPolicies)
            if policies is not None:
                found[path] = (metadata_paths.topic_of_segment(namespace, domain, segment), policies)
        return found


class _Namespace:
    """Reader and writer of one namespace's system topic."""

    def __init__(self, name: NamespaceName, owner: SystemTopicPolicies) -> None:
        self.topic = system_topics.change_events(name)
        self.table = TopicPolicyTable()
        self.is_read = asyncio.Event()
        self._name = name
        self._owner = owner
        self._reader: MessageConsumer | None = None
        """Set while the broker follows the system topic."""
        self._applied: dict[TopicName, set[Position]] = {}
        self._progress = asyncio.Event()
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()
        self._sequence_ids = itertools.count()
        self._users = 0
        self._is_failing = self._is_closed = False
        self._tasks = TaskOwner("topic policies")
        self._tasks.start(self._follow(), f"read {self.topic}")

    @property
    def is_idle(self) -> bool:
        return self.is_read.is_set() and not self._users

    async def close(self) -> None:
        self._is_closed = True
        await self._tasks.close()
        self._progress.set()
        self.is_read.set()  # callers that wait continue with the policies so far: the namespace is being deleted
        if self._producer is not None:
            await self._producer.close()

    # --- reading

    async def _follow(self) -> None:
        while True:
            try:
                await self._read_all()
            except _FAILURES as error:
                if not self._is_failing:
                    self._is_failing = True
                    logs.warning("topic_policies.not_read", topic=self.topic, error=str(error))
                self._owner.namespace_changed(self._name)
            await asyncio.sleep(RETRY_DELAY_S)

    async def _read_all(self) -> None:
        """Read all events, then follow the topic until an error. Raises one of `_FAILURES`."""
        async with await self._owner.client().reader(str(self.topic), read_compacted=True) as reader:
            table = TopicPolicyTable()
            while table.read_up_to < (last := await _last_position(reader)):
                try:
                    await self._receive(table, reader, LAST_MESSAGE_TIMEOUT_S)
                except RequestTimedOut:
                    table.read_up_to = last  # compaction has removed the last messages, which were deletions
            await self._adopt_documents(table)
            before, self.table = self.table, table
            if self._is_failing:
                self._is_failing = False
                logs.info("topic_policies.read", topic=self.topic, policies=len(table))
            if self.is_read.is_set():
                for topic in dict.fromkeys((*before.topics(), *table.topics())):
                    if before.in_force(topic) != table.in_force(topic):
                        self._owner.changed(self, topic)
            self.is_read.set()
            self._reader = reader
            self._progress.set()
            try:
                while True:
                    event = await self._receive(table, reader)
                    if event is not None:
                        self._owner.changed(self, event.topic)
            finally:
                self._reader = None

    async def _receive(
        self, table: TopicPolicyTable, reader: MessageConsumer, timeout_s: float | None = None
    ) -> PolicyEvent | None:
        """Apply the next message. Return its event, or None if it is not a valid event. Raises one of `_FAILURES`."""
        event = None
        try:
            message = await reader.receive(timeout_s)
        except DamagedPayload as damage:
            logs.warning("topic_policies.event_skipped", topic=self.topic, position="", reason=str(damage))
            return None
        position = Position(message.id.ledger_id, message.id.entry_id)
        try:
            event = decode_event(self._name, message.key or "", message.value, message.properties)
        except InvalidEvent as invalid:
            logs.warning(
                "topic_policies.event_skipped", topic=self.topic, position=str(message.id), reason=str(invalid)
            )
        else:
            if not table.apply(event, position):
                logs.info("topic_policies.change_outdated", topic=event.topic, position=str(position))
            elif not event.is_global and event.topic in self._applied:
                self._applied[event.topic].add(position)
        table.read_up_to = position
        self._progress.set()
        return event

    async def _adopt_documents(self, table: TopicPolicyTable) -> None:
        """Move policies from the metadata store (of a broker with local ledgers, or of an import) to the system topic,
        unless the system topic has policies for the same topic. Raises one of `_FAILURES`.
        """
        store = self._owner.broker_context.metadata_store
        try:
            for path, (topic, policies) in (await self._owner.documents(self._name)).items():
                if table.local(topic) is None:
                    document = to_pulsar_topic_policies(policies)
                    await self._send(
                        event_key(topic), encode_event(topic, document, self._owner.cluster), is_global=False
                    )
                    table.apply(PolicyEvent(topic, False, StoredPolicies(policies, document)))
                await store.delete(path)
        except (StoreError, TypeError, ValueError) as error:
            logs.warning("topic_policies.not_adopted", namespace=self._name, error=str(error))

    # --- writing

    async def publish(
        self, key: str, value: bytes | None, *, is_global: bool, base: Position | None = None
    ) -> Position:
        """Publish an event and wait until it has been read back. Return its position. Raises TimeoutError, and one of
        `_FAILURES`.
        """
        async with self._used():
            stored = Position(*await self._send(key, value, is_global=is_global, base=base))
            async with asyncio.timeout(READ_BACK_TIMEOUT_S):
                await self._read_to(stored)
        return stored

    async def catch_up(self) -> None:
        """Wait until the events that are stored now have been read. Raises TimeoutError, and one of `_FAILURES`."""
        async with self._used(), asyncio.timeout(CATCH_UP_TIMEOUT_S):
            while self._reader is None:
                await self._next_progress()
            last = await _last_position(self._reader)
            with suppress(TimeoutError):  # Compaction has removed the last messages, which were deletions.
                async with asyncio.timeout(LAST_MESSAGE_TIMEOUT_S):
                    await self._read_to(last)

    async def _read_to(self, position: Position) -> None:
        while self.table.read_up_to < position:
            await self._next_progress()

    async def _next_progress(self) -> None:
        if self._is_closed:
            raise ServiceNotReady(
                f"the broker does not read topic {self.topic} any more: the broker is stopping, or the namespace is being deleted"
            )
        self._progress.clear()
        await self._progress.wait()

    @contextmanager
    def applied_events(self, topic: TopicName) -> Iterator[set[Position]]:
        """Collect the positions of the events of `topic` that are read and applied in this context. At most one context
        for each topic.
        """
        self._applied[topic] = set()
        try:
            yield self._applied[topic]
        finally:
            del self._applied[topic]

    async def _send(self, key: str, value: bytes | None, *, is_global: bool, base: Position | None = None) -> EntryId:
        async with self._opening:
            if self._producer is None or self._producer.state in {ProducerState.FAILED, ProducerState.CLOSED}:
                schema = event_schema()
                settings = ProducerSettings(
                    schema=TopicSchema(
                        int(schema.type), schema.data, dict(schema.properties), name=self.topic.local_name
                    )
                )
                self._producer = await open_producer(self._owner.client(), self.topic, settings)
                self._sequence_ids = itertools.count(self._producer.last_sequence_id + 1)
            producer = self._producer
            sequence_id = next(self._sequence_ids)
            entry = build_entry(
                producer.name,
                sequence_id,
                self._owner.broker_context.runtime.clock.wall_ms(),
                value,
                key=key,
                properties=event_properties(base),
                replicate_to=() if is_global else (self._owner.cluster,),
                schema_version=producer.schema_version,
            )
            receipt = await producer.send(entry, sequence_id)
        return await receipt

    @asynccontextmanager
    async def _used(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1


async def _last_position(reader: MessageConsumer) -> Position:
    """Return the position of the last message in the topic. Raises one of `_FAILURES`."""
    return max(Position(each.ledger_id, each.entry_id) for each in (await reader.last_message_ids()).values())
