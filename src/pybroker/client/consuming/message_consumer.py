"""Consumers and readers of messages, on one topic, its partitions, or several topics."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence

from pybroker.client.client import Client, ClientPart
from pybroker.client.client_transactions import Transaction
from pybroker.client.consuming.partition_consumer import PartitionConsumer, Receiver, Receiving
from pybroker.client.failures import ClientError, RequestTimedOut
from pybroker.client.message import EARLIEST, LATEST, Message, MessageId
from pybroker.model.names import TopicName
from pybroker.wire.compression import DamagedPayload


class EndOfTopic(ClientError):
    """All topics are terminated, and the caller has received all their messages."""


class MessageConsumer(Receiver, ClientPart):
    """A consumer of messages. An asynchronous context manager; a caller that does not use `async with` must call
    `close`. Created by `open_message_consumer`.
    """

    def __init__(self, client: Client, settings: Receiving) -> None:
        self.subscription = settings.subscription
        self._client = client
        self._settings = settings
        self._partitions: dict[str, PartitionConsumer] = {}
        self._queue: deque[tuple[PartitionConsumer, Message | DamagedPayload]] = deque()
        self._changed = asyncio.Event()
        self._is_closed = False
        client.parts[self] = None

    async def attach(self, topics: Iterable[TopicName]) -> None:
        """Read further topics and their partitions. Topics that the consumer already reads are skipped.

        After an error, the consumer reads the topics before the failed one, and possibly some partitions of the failed
        one.
        """
        for topic in topics:
            partitions = await self._client.partitions(topic, may_create=True)
            _require_one(len(partitions), self._settings.start)
            for partition in partitions:
                if str(partition) in self._partitions:
                    continue
                consumer = PartitionConsumer(self._client, partition, self._settings, self)
                await consumer.attach()
                self._partitions[str(partition)] = consumer

    @property
    def is_active(self) -> bool:
        """Whether this consumer is the active consumer of at least one partition. Always true for Shared and
        Key_Shared.
        """
        return any(each.is_active for each in self._partitions.values())

    @property
    def is_at_end(self) -> bool:
        """Whether all topics are terminated and the broker has sent all their messages."""
        return all(each.is_at_end for each in self._partitions.values())

    @property
    def topics(self) -> list[str]:
        """The topics and partitions that this consumer reads."""
        return list(self._partitions)

    # --- receiving

    async def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message. Raises RequestTimedOut, EndOfTopic, or the error that ended the consumer. An entry
        that cannot be decoded raises DamagedPayload once, and stays unacknowledged.
        """
        if not self._queue:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrival()
            except TimeoutError:
                raise RequestTimedOut(
                    f"no message of subscription {self.subscription} arrived within {timeout_s:g} s"
                ) from None
        consumer, item = self._queue.popleft()
        consumer.taken(item)
        if isinstance(item, DamagedPayload):
            raise item
        return item

    async def _arrival(self) -> None:
        while not self._queue:
            if self._is_closed:
                raise ClientError(f"the consumer of subscription {self.subscription} is closed: create a new consumer")
            failure = next((each.failure for each in self._partitions.values() if each.failure is not None), None)
            if failure is not None:
                raise failure
            if self.is_at_end:
                raise EndOfTopic(
                    f"subscription {self.subscription} has no more messages, because the topic is terminated"
                )
            self._changed.clear()
            await self._changed.wait()

    async def receive_some(self, max_messages: int, timeout_s: float | None = None) -> list[Message]:
        messages = [await self.receive(timeout_s)]
        while len(messages) < max_messages and self._queue and isinstance(self._queue[0][1], Message):
            consumer, item = self._queue.popleft()
            assert isinstance(item, Message)
            consumer.taken(item)
            messages.append(item)
        return messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield all messages. Ends only at the end of a terminated topic."""
        while True:
            try:
                message = await self.receive()
            except EndOfTopic:
                return
            yield message

    # --- acknowledging

    async def ack(
        self, *messages: Message, wants_receipt: bool = False, transaction: Transaction | None = None
    ) -> None:
        """Acknowledge messages. With `wants_receipt` or a transaction, wait for the broker's response and raise its
        error.

        With a transaction, raises TransactionConflict if a message is already acknowledged, by any client or open
        transaction, even by this one.
        """
        by_partition: dict[PartitionConsumer, list[MessageId]] = {}
        for message in messages:
            by_partition.setdefault(self._partition_of(message), []).append(message.id)
        for partition, ids in by_partition.items():
            work = partition.acknowledge(ids, wants_receipt=wants_receipt, transaction=transaction)
            await (work if transaction is None else transaction.do(work))

    async def ack_cumulative(
        self, message: Message, *, wants_receipt: bool = False, transaction: Transaction | None = None
    ) -> None:
        """Acknowledge a message and all earlier messages of its partition. `wants_receipt` and `transaction` as in
        `ack`. The broker rejects this on Shared and Key_Shared, and the caller receives the error only if it waits for
        the response.
        """
        partition = self._partition_of(message)
        work = partition.acknowledge(
            [message.id], is_cumulative=True, wants_receipt=wants_receipt, transaction=transaction
        )
        await (work if transaction is None else transaction.do(work))

    def nack(self, message: Message, delay_s: float | None = None) -> None:
        """Request redelivery of a message after `delay_s` seconds (default: `nack_delay_s`)."""
        delay_s = self._settings.nack_delay_s if delay_s is None else delay_s
        self._partition_of(message).negatively_acknowledge(message.id, delay_s)

    def _partition_of(self, message: Message) -> PartitionConsumer:
        partition = self._partitions.get(message.topic)
        if partition is None:
            raise ClientError(
                f"the message cannot be acknowledged here: it belongs to topic {message.topic}, and this consumer of "
                f"subscription {self.subscription} does not read that topic"
            )
        return partition

    def redeliver_all(self) -> None:
        for each in self._partitions.values():
            each.redeliver_all()

    # --- the cursor

    async def seek(self, message_id: MessageId | None = None, *, publish_time_ms: int | None = None) -> None:
        """Move the cursor of each topic to a message, to EARLIEST or LATEST, or to the first message that was published
        at `publish_time_ms` (milliseconds since 1970) or later. The id of a message requires a consumer of one topic
        without partitions.
        """
        if (message_id is None) == (publish_time_ms is None):
            raise ClientError("seek needs either a message id or a time")
        _require_one(len(self._partitions), message_id)
        for each in self._partitions.values():
            await each.seek(message_id, publish_time_ms)

    async def last_message_ids(self) -> dict[str, MessageId]:
        return {topic: await each.last_message_id() for topic, each in self._partitions.items()}

    async def has_more(self) -> bool:
        if self._queue:
            return True
        for each in self._partitions.values():
            if await each.has_more():
                return True
        return bool(self._queue)

    # --- the end

    async def unsubscribe(self) -> None:
        for each in self._partitions.values():
            await each.unsubscribe()
        await self.close()

    async def close(self) -> None:
        """Close the consumer. The broker delivers its unacknowledged messages to other consumers, or to the next
        consumer that connects.
        """
        self._client.parts.pop(self, None)
        await self.client_closed()
        for each in self._partitions.values():
            await each.close()

    async def client_closed(self) -> None:
        self._is_closed = True
        self._queue.clear()
        self._changed.set()
        for each in self._partitions.values():
            each.stop()

    # --- callbacks of partitions

    def came(self, consumer: PartitionConsumer, messages: Iterable[Message | DamagedPayload]) -> None:
        self._queue.extend((consumer, each) for each in messages)
        self._changed.set()

    def dropped(self, consumer: PartitionConsumer) -> int:
        kept = [item for item in self._queue if item[0] is not consumer]
        count = len(self._queue) - len(kept)
        self._queue = deque(kept)
        return count

    def changed(self) -> None:
        self._changed.set()


def _require_one(partitions: int, message_id: MessageId | None) -> None:
    if partitions > 1 and message_id not in (None, EARLIEST, LATEST):
        raise ClientError(
            f"the message id {message_id} belongs to one partition, but the topic has {partitions} partitions: "
            "give the partition as the topic"
        )


async def open_message_consumer(client: Client, topics: Sequence[TopicName], settings: Receiving) -> MessageConsumer:
    consumer = MessageConsumer(client, settings)
    try:
        await consumer.attach(topics)
    except BaseException:
        await consumer.close()
        raise
    return consumer
