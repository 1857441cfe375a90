"""A consumer of one topic or partition. It reattaches after a lost connection, and passes messages to its owner.

Invariants: messages of an ended connection are dropped, because the broker sends them again; only messages that the
caller has acknowledged are acknowledged at the broker.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pybroker.client.client import Client, TopicSchema
from pybroker.client.client_connection import Connection, ConnectionUser
from pybroker.client.client_transactions import Transaction
from pybroker.client.consuming.acknowledged import EntriesOfParts, PartlyAcknowledged, ack_set
from pybroker.client.consuming.delayed_events import DelayedEvents
from pybroker.client.consuming.flow_window import FlowWindow, messages_of
from pybroker.client.consuming.subscribing import subscribe_command
from pybroker.client.consuming.unpacking import MAX_CHUNKED_MESSAGES, ChunkedMessages, EncryptedMessage, unpack
from pybroker.client.failures import ClientError, ConnectionLost, may_attach_later
from pybroker.client.frames import Event, ReceivedEntry
from pybroker.client.message import EARLIEST, LATEST, Message, MessageId
from pybroker.client.reconnect_delay import ReconnectDelay
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName
from pybroker.runtime import logs
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload
from pybroker.wire.replies import frame

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from pybroker.client.message_crypto import MessageCrypto

Command = pb.BaseCommand
SubType = pb.CommandSubscribe.SubType
MESSAGE_BYTES = 100
"""Approximate size of a queued message without its content."""
FIRST_PERMITS = 4
"""Permits of a consumer with `queue_bytes` until it knows the size of a message."""
_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Receiving:
    """The options of a message consumer or reader."""

    subscription: str
    kind: pb.CommandSubscribe.SubType = SubType.Exclusive
    name: str = ""
    start: MessageId | None = None
    """Start of a reader. None: a subscription with its own cursor."""
    is_start_inclusive: bool = True
    """Whether a reader receives the message `start` itself."""
    is_durable: bool = True
    """Whether the cursor of a subscription outlives its last consumer. A reader is never durable."""
    is_from_earliest: bool = False
    """Whether a new subscription starts at the first message instead of after the last."""
    read_compacted: bool = False
    priority_level: int = 0
    key_ranges: tuple[tuple[int, int], ...] = ()
    """Hash ranges of a Key_Shared consumer, both ends inclusive. Empty: the broker assigns hashes."""
    is_out_of_order_allowed: bool = False
    schema: TopicSchema | None = None
    properties: dict[str, str] = field(default_factory=dict)
    queue_messages: int = 1000
    """Maximum number of messages requested or buffered, per partition."""
    queue_bytes: int = 0
    """Approximate limit of the bytes requested or buffered, per partition; at least one message is requested. 0: only
    `queue_messages` is the limit.
    """
    nack_delay_s: float = 60.0
    crypto: MessageCrypto | None = None
    """The keys that decrypt messages. The next two fields are for messages that cannot be decrypted."""
    takes_encrypted: bool = False
    """Receive encrypted messages as they are. Otherwise `receive` raises EncryptedMessage for each."""
    discards_encrypted: bool = False
    """Acknowledge encrypted messages instead of raising EncryptedMessage."""
    keeps_batch_bits: bool = False
    """Acknowledge single messages of a batch, for brokers with `acknowledgmentAtBatchIndexLevelEnabled`. Otherwise an
    entry is acknowledged when all its messages are.
    """

    def __post_init__(self) -> None:
        if self.queue_messages < 1:
            raise ValueError(
                f"queue_messages={self.queue_messages}: the queue must have room for at least 1 message, "
                "because the client could not receive a message otherwise"
            )


class Receiver(ABC):
    """The interface of the owner of partition consumers. Calls come from the event loop and must not raise."""

    @abstractmethod
    def came(self, consumer: PartitionConsumer, messages: Iterable[Message | DamagedPayload]) -> None:
        """Queue received messages."""

    @abstractmethod
    def dropped(self, consumer: PartitionConsumer) -> int: ...

    @abstractmethod
    def changed(self) -> None:
        """Handle a change of a partition consumer: it failed, reached the end of its topic, or became active or
        inactive.
        """


class PartitionConsumer(ConnectionUser):
    """A consumer of one partition. Its owner calls `attach` first."""

    def __init__(self, client: Client, topic: TopicName, settings: Receiving, owner: Receiver) -> None:
        self.topic = topic
        self.failure: Exception | None = None
        self.is_at_end = False
        self.is_active = True
        self._client = client
        self._settings = settings
        self._owner = owner
        self._connection: Connection | None = None
        self._consumer_id = -1
        self._is_closed = False
        self._is_seeking = False
        self._is_ack_due = False
        self._is_ordered = settings.kind in (SubType.Exclusive, SubType.Failover)
        self._epoch = 0  # Number of requests to redeliver all messages.
        self._partly = PartlyAcknowledged()
        self._chunked = ChunkedMessages()
        self._entries_of_parts = EntriesOfParts()
        self._used_permits = 0
        self._window: FlowWindow | None = None
        self._last_taken: MessageId | None = None
        self._from_ms = 0  # For a reader: the target of the last seek to a time, until the next message.
        self._is_before_time = False  # messages before that time are skipped
        self._nacks: list[tuple[float, tuple[int, int]]] = []
        self._nack_timer: asyncio.TimerHandle | None = None
        self._delayed: DelayedEvents | None = None
        if settings.crypto is not None:
            self._delayed = DelayedEvents(settings.crypto, client.tasks, self._handle)

    # --- attaching

    async def attach(self) -> None:
        await self._client.retried(self._attach_once)

    async def _attach_once(self) -> None:
        connection = await self._client.connection_for(self.topic)
        consumer_id = next(connection.ids)
        connection.consumers[consumer_id] = self
        try:
            await connection.request(self._subscribe_command(consumer_id))
            if self._is_closed:
                raise ConnectionLost(f"the consumer of {self.topic} is closed")
            if consumer_id not in connection.consumers:
                raise connection.failure or ConnectionLost(
                    f"the broker closed the new consumer of {self.topic} immediately: the broker's log has the reason"
                )
        except BaseException:
            connection.detach_consumer(consumer_id)  # the broker may have attached it, and it would block others
            raise
        self._connection, self._consumer_id = connection, consumer_id
        self._used_permits = 0
        self._is_before_time = self._last_taken is None
        if self._settings.queue_bytes:
            self._window = FlowWindow(
                self._settings.queue_bytes, first_permits=FIRST_PERMITS, max_permits=self._settings.queue_messages
            )
            self._flow(self._window.due())
        else:
            self._flow(self._settings.queue_messages)

    def _subscribe_command(self, consumer_id: int) -> pb.BaseCommand:
        wanted = self._settings
        start = wanted.start
        if start is not None or not wanted.is_durable:
            start = self._last_taken or start  # the cursor of the previous connection is gone
        command = subscribe_command(
            self.topic,
            wanted.subscription,
            wanted.kind,
            consumer_id,
            None if start is None else start.first_chunk or (start.ledger_id, start.entry_id),
            is_from_earliest=wanted.is_from_earliest,
            read_compacted=wanted.read_compacted,
        )
        request = command.subscribe
        request.durable = wanted.is_durable and wanted.start is None
        request.priority_level = wanted.priority_level
        if self._is_ordered:
            request.consumer_epoch = self._epoch
        if wanted.name:
            request.consumer_name = wanted.name
        if wanted.schema is not None:
            request.schema.CopyFrom(wanted.schema.to_wire())
        for name, text in wanted.properties.items():
            request.metadata.add(key=name, value=text)
        if wanted.kind == SubType.Key_Shared:
            meta = request.keySharedMeta
            meta.keySharedMode = pb.STICKY if wanted.key_ranges else pb.AUTO_SPLIT
            meta.allowOutOfOrderDelivery = wanted.is_out_of_order_allowed
            for first, last in wanted.key_ranges:
                meta.hashRanges.add(start=first, end=last)
        return command

    def _attach_again(self, reason: Exception) -> None:
        if self._connection is None or self._is_closed:
            return
        self._connection = None
        self._chunked.clear()
        self._nacks.clear()  # the broker redelivers all messages anyway
        if self._delayed is not None:
            self._delayed.clear()
        self._owner.dropped(self)
        logs.info("client.consumer_lost", topic=self.topic, subscription=self._settings.subscription, reason=reason)
        self._client.tasks.start(self._keep_attaching(), f"consumer {self.topic}")

    async def _keep_attaching(self) -> None:
        delay = ReconnectDelay(random.random())
        while not self._is_closed:
            try:
                await self._attach_once()
                return
            except (ClientError, BrokerError, ValueError) as error:
                if not may_attach_later(error):
                    self.failure = error
                    self._owner.changed()
                    return
                await asyncio.sleep(delay.next_s())

    # --- callbacks of the connection

    def received(self, event: pb.BaseCommand | ReceivedEntry) -> None:
        if isinstance(event, pb.BaseCommand) and event.type == Command.CLOSE_CONSUMER:
            self._attach_again(
                ConnectionLost(
                    "the broker closed it: the topic is moving to another broker, or the subscription was reset"
                )
            )
        elif self._delayed is None:
            self._handle(event, ())
        else:
            self._delayed.received(event)

    def _handle(self, event: Event, data_keys: Sequence[AESGCM]) -> None:
        if isinstance(event, ReceivedEntry):
            self._came(event, data_keys)
        elif event.type == Command.REACHED_END_OF_TOPIC:
            self.is_at_end = True
            self._owner.changed()
        elif event.type == Command.ACTIVE_CONSUMER_CHANGE:
            self.is_active = event.active_consumer_change.is_active
            self._owner.changed()

    def lost(self, error: ConnectionLost) -> None:
        self._attach_again(error)

    def _came(self, entry: ReceivedEntry, data_keys: Sequence[AESGCM]) -> None:
        is_stale = (
            0 <= entry.epoch < self._epoch
        )  # sent before the request to redeliver all; the broker sends it again in order
        try:
            chunked = ChunkedMessages() if is_stale else self._chunked
            given_up_count = chunked.given_up_count
            unpacked = unpack(
                entry,
                str(self.topic),
                self.topic.partition_index,
                chunked,
                takes_encrypted=self._settings.takes_encrypted,
                data_keys=data_keys,
            )
        except DamagedPayload as error:
            if is_stale:
                self._use(1)
                return
            if isinstance(error, EncryptedMessage) and self._settings.discards_encrypted:
                self._discard(entry)
                return
            if not isinstance(error, EncryptedMessage):
                logs.warning("client.message_damaged", topic=self.topic, reason=error)
            self._owner.came(self, [error])
            return
        if is_stale:
            self._use(unpacked.permits)
            return
        if chunked.given_up_count > given_up_count:
            reason = f"more than {MAX_CHUNKED_MESSAGES} chunked messages are incomplete; the oldest arrives again with a redelivery"
            logs.warning("client.message_given_up", topic=self.topic, reason=reason)
        messages = [each for each in unpacked.messages if not self._is_seeking and not self._is_behind(each)]
        if unpacked.chunk_entries:
            self._entries_of_parts.keep(unpacked.chunk_entries)
        self._use(unpacked.permits - len(messages))
        if messages:
            self._owner.came(self, messages)

    def _discard(self, entry: ReceivedEntry) -> None:
        """Acknowledge an entry that the caller does not receive."""
        if self._connection is not None:
            command = Command(type=Command.ACK)
            command.ack.consumer_id = self._consumer_id
            command.ack.ack_type = pb.CommandAck.Individual
            command.ack.validation_error = pb.CommandAck.DecryptionError
            command.ack.message_id.add(ledgerId=entry.ledger_id, entryId=entry.entry_id)
            self._connection.write(frame(command))
        self._use(messages_of(entry.data))

    def _is_behind(self, message: Message) -> bool:
        """Whether the message is in front of the requested start, because the broker begins with a whole entry."""
        if self._settings.start is None:
            return False
        if self._last_taken is not None:
            return _place(message.id) <= _place(self._last_taken)
        if not self._settings.is_start_inclusive and _is_up_to(message.id, self._settings.start):
            return True
        self._is_before_time = self._is_before_time and message.publish_time_ms < self._from_ms
        return self._is_before_time

    def taken(self, item: Message | DamagedPayload) -> None:
        """Record that the caller has received `item`, which frees capacity for another message."""
        if isinstance(item, Message):
            self._last_taken = item.id
            if self._settings.start is not None and not self._is_ack_due:
                self._is_ack_due = True
                asyncio.get_running_loop().call_soon(self._acknowledge_taken)
        self._use(1, size_of(item))

    def _acknowledge_taken(self) -> None:
        """Acknowledge the messages that a reader has received. The broker reports the end of a terminated topic only
        without backlog.
        """
        self._is_ack_due = False
        last = self._last_taken
        if last is None or self._connection is None:
            return
        command = Command(type=Command.ACK)
        command.ack.ack_type = pb.CommandAck.Cumulative
        command.ack.consumer_id = self._consumer_id
        self._put(command.ack, last, is_cumulative=True, in_transaction=False)
        self._connection.write(frame(command))

    def _use(self, permits: int, size_bytes: int = 0) -> None:
        if self._window is not None:
            self._window.consumed_messages(permits, size_bytes)
            if self._connection is not None and (due := self._window.due()) > 0:
                self._flow(due)
            return
        self._used_permits += permits
        if self._used_permits * 2 >= self._settings.queue_messages and self._connection is not None:
            used, self._used_permits = self._used_permits, 0
            self._flow(used)

    def _flow(self, permits: int) -> None:
        if self._connection is not None:
            command = Command(type=Command.FLOW)
            command.flow.consumer_id = self._consumer_id
            command.flow.messagePermits = permits
            self._connection.write(frame(command))

    # --- acknowledging

    async def acknowledge(
        self,
        message_ids: Iterable[MessageId],
        *,
        is_cumulative: bool = False,
        wants_receipt: bool = False,
        transaction: Transaction | None = None,
    ) -> None:
        """Acknowledge messages. With `wants_receipt` or a transaction, wait for the broker's response and raise its
        error.

        Otherwise an acknowledgement may be lost with the connection, and the broker delivers the message again.
        """
        command = Command(type=Command.ACK)
        ack = command.ack
        ack.ack_type = pb.CommandAck.Cumulative if is_cumulative else pb.CommandAck.Individual
        if transaction is not None:
            await transaction.subscription_takes_part(str(self.topic), self._settings.subscription)
            ack.txnid_most_bits, ack.txnid_least_bits = transaction.id
        for message_id in message_ids:
            self._put(ack, message_id, is_cumulative=is_cumulative, in_transaction=transaction is not None)
        if not ack.message_id:
            return
        connection = self._connection
        if connection is None:
            if wants_receipt or transaction is not None:
                raise ConnectionLost(
                    f"the acknowledgement for topic {self.topic} was not sent, because the consumer is not connected; "
                    "the broker will deliver unacknowledged messages again"
                )
            return
        ack.consumer_id = self._consumer_id
        if wants_receipt or transaction is not None:
            await connection.request(command)
        else:
            connection.write(frame(command))

    def _put(self, ack: pb.CommandAck, message_id: MessageId, *, is_cumulative: bool, in_transaction: bool) -> None:
        at = (message_id.ledger_id, message_id.entry_id)
        bits: list[int] = []
        if message_id.batch_size > 1 and (in_transaction or self._settings.keeps_batch_bits):
            bits = ack_set(message_id, is_cumulative=is_cumulative)
            bits = bits if any(bits) else []
        elif is_cumulative:
            at = self._partly.up_to(message_id)
        elif not self._partly.is_whole(message_id):
            return
        if is_cumulative:
            self._entries_of_parts.drop_up_to(at)
        for ledger_id, entry_id in [at] if is_cumulative else self._entries_of_parts.take(at):
            data = ack.message_id.add(ledgerId=ledger_id, entryId=entry_id & _MASK_64)
            if bits:
                data.ack_set.extend(bits)
                data.batch_size = message_id.batch_size

    # --- redelivery

    def negatively_acknowledge(self, message_id: MessageId, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        at = (message_id.ledger_id, message_id.entry_id)
        for each in self._entries_of_parts.take(at):
            heapq.heappush(self._nacks, (due, each))
        if self._nack_timer is None or self._nack_timer.when() > due:
            if self._nack_timer is not None:
                self._nack_timer.cancel()
            self._nack_timer = loop.call_at(due, self._redeliver_due)

    def _redeliver_due(self) -> None:
        loop = asyncio.get_running_loop()
        due: dict[tuple[int, int], None] = {}
        while self._nacks and self._nacks[0][0] <= loop.time():
            due[heapq.heappop(self._nacks)[1]] = None
        self._nack_timer = loop.call_at(self._nacks[0][0], self._redeliver_due) if self._nacks else None
        if due and self._is_ordered:
            # Redelivery of a single entry would break the order, so the broker sends all again. Queued messages would
            # be duplicates.
            self.redeliver_all()
        elif due and self._connection is not None:  # after reattaching, all are redelivered anyway
            self._redeliver(due)

    def _redeliver(self, positions: Iterable[tuple[int, int]]) -> None:
        assert self._connection is not None
        command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        command.redeliverUnacknowledgedMessages.consumer_id = self._consumer_id
        if self._is_ordered:
            command.redeliverUnacknowledgedMessages.consumer_epoch = self._epoch
        for ledger_id, entry_id in positions:
            command.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=ledger_id, entryId=entry_id)
        self._connection.write(frame(command))

    def redeliver_all(self) -> None:
        """Request redelivery of all unacknowledged messages, and drop received messages that the caller has not
        taken.
        """
        self._chunked.clear()
        self._nacks.clear()
        if self._is_ordered:
            self._epoch += 1
        self._drop_messages()
        if self._connection is not None:
            self._redeliver(())

    def _drop_messages(self) -> None:
        """Drop received messages that the caller has not taken."""
        waiting = 0 if self._delayed is None else self._delayed.drop_entries()
        self._use(self._owner.dropped(self) + waiting)

    # --- the cursor

    async def last_message_id(self) -> MessageId:
        """Return the id of the last message in the topic; EARLIEST if there is none."""
        command = Command(type=Command.GET_LAST_MESSAGE_ID)

        async def ask() -> pb.BaseCommand:
            connection = self._require_connection()
            command.getLastMessageId.consumer_id = self._consumer_id
            return await connection.request(command)

        last = (await self._client.retried(ask)).getLastMessageIdResponse.last_message_id
        if last.entryId >> 63:
            return EARLIEST
        return MessageId(last.ledgerId, last.entryId, self.topic.partition_index, last.batch_index)

    async def has_more(self) -> bool:
        last = await self.last_message_id()
        if last == EARLIEST:
            return False
        taken = self._last_taken
        if taken is None:
            start = self._settings.start
            return start != LATEST and (start is None or last[:2] >= start[:2])
        if last[:2] != taken[:2]:
            return last[:2] > taken[:2]
        return taken.batch_size > 0 and taken.batch_index < taken.batch_size - 1

    async def seek(self, message_id: MessageId | None, publish_time_ms: int | None) -> None:
        """Move the cursor to a message, or to the first message that was published at `publish_time_ms` (milliseconds
        since 1970) or later. Drop queued messages.
        """
        command = Command(type=Command.SEEK)

        async def ask() -> pb.BaseCommand:
            connection = self._require_connection()
            command.seek.consumer_id = self._consumer_id
            if message_id is not None:
                command.seek.message_id.ledgerId = message_id.ledger_id & _MASK_64
                command.seek.message_id.entryId = message_id.entry_id & _MASK_64
            if publish_time_ms is not None:
                command.seek.message_publish_time = publish_time_ms
            return await connection.request(command)

        self._is_seeking = True  # messages received meanwhile are obsolete, or come again
        self._last_taken = None
        self._from_ms = publish_time_ms or 0
        self._partly.clear()
        if self._settings.start is not None:
            self._settings = replace(self._settings, start=message_id or EARLIEST)
        try:
            await self._client.retried(ask)
        finally:
            self._is_seeking = False
            self.is_at_end = False
            self._drop_messages()

    def _require_connection(self) -> Connection:
        if self.failure is not None:
            raise self.failure
        if self._connection is None:
            raise ConnectionLost(
                f"the consumer of topic {self.topic} is not connected to a broker at present: try again"
            )
        return self._connection

    # --- the end

    async def unsubscribe(self) -> None:
        command = Command(type=Command.UNSUBSCRIBE)
        connection = self._require_connection()
        command.unsubscribe.consumer_id = self._consumer_id
        await connection.request(command)

    def stop(self) -> None:
        self._is_closed = True
        if self._delayed is not None:
            self._delayed.stop()
        if self._nack_timer is not None:
            self._nack_timer.cancel()

    async def close(self) -> None:
        self.stop()
        connection, self._connection = self._connection, None
        if connection is None or connection.consumers.pop(self._consumer_id, None) is None:
            return
        command = Command(type=Command.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self._consumer_id
        try:
            await connection.request(command)
        except (ClientError, BrokerError) as error:
            logs.debug("client.consumer_not_closed", topic=self.topic, reason=error)


def _place(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.ledger_id, message_id.entry_id, message_id.batch_index


def _is_up_to(message_id: MessageId, start: MessageId) -> bool:
    """Whether the message is `start` or an earlier one. A start without a batch index means the whole batch."""
    if start.batch_index < 0:
        return message_id[:2] <= start[:2]
    return _place(message_id) <= _place(start)


def size_of(item: Message | DamagedPayload) -> int:
    """Return the approximate bytes of a queued message."""
    if not isinstance(item, Message):
        return 0
    properties = sum(len(name) + len(text) for name, text in item.properties.items())
    return len(item.value or b"") + len(item.key or "") + properties + MESSAGE_BYTES
