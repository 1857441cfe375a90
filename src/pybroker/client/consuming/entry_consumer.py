"""Consumers and readers that return stored entries without decoding them.

A consumer is attached to one topic or partition over one connection. When the connection ends, the consumer raises
ConnectionLost, and its owner opens another consumer at the last position. A window in bytes limits the buffered
entries: the consumer sends permits for about one window, and stops reading from the socket above two windows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from pybroker.client.client import Client
from pybroker.client.client_connection import Connection, ConnectionUser
from pybroker.client.consuming.flow_window import FlowWindow
from pybroker.client.consuming.subscribing import subscribe_command
from pybroker.client.failures import ClientError, ConnectionLost, RequestTimedOut
from pybroker.client.frames import ReceivedEntry
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, LATEST, Position, from_wire
from pybroker.runtime import logs
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.replies import frame

WINDOW_BYTES = 8 * 1024 * 1024
_MASK_64 = (1 << 64) - 1

Command = pb.BaseCommand
SubType = pb.CommandSubscribe.SubType


@dataclass(frozen=True)
class Subscribing:
    """The parameters of a SUBSCRIBE command."""

    subscription: str
    kind: pb.CommandSubscribe.SubType = SubType.Exclusive
    start: Position | None = None
    """Start of a reader, inclusive. None: a durable subscription, which has its own cursor."""
    is_from_earliest: bool = True
    """Whether a new durable subscription starts at the first message."""
    may_create_topic: bool = False
    read_compacted: bool = False
    window_bytes: int = WINDOW_BYTES


@dataclass(frozen=True)
class Ends:
    """The end of a topic and the mark-delete position of a subscription, at one moment."""

    last: Position | None
    """The position of the last entry; None if the topic has no entry."""
    mark_delete: Position | None
    """The mark-delete position of the subscription.

    Its entry id is -1 at the start of a ledger. None if the broker does not report it.
    """


class Consumer(ConnectionUser):
    """A consumer or reader of stored entries. Created by `open_consumer`."""

    def __init__(self, client: Client, topic: TopicName, subscribing: Subscribing, connection: Connection) -> None:
        self.topic = topic
        self._client = client
        self._subscribing = subscribing
        self._connection = connection
        self._consumer_id = next(connection.ids)
        self._received: deque[ReceivedEntry] = deque()
        self._received_bytes = 0
        self._window = FlowWindow(subscribing.window_bytes)
        self._arrived = asyncio.Event()
        self._failure: ConnectionLost | None = None
        self._is_paused = False
        self.is_at_end = False
        """The topic is terminated, and this was its last entry."""

    # --- reading

    async def receive(self, timeout_s: float) -> list[ReceivedEntry]:
        """Return all buffered entries, or wait for the next entry. Raises RequestTimedOut, or ConnectionLost after the
        last buffered entry.
        """
        while not self._received:
            if self._failure is not None:
                raise self._failure
            if (permits := self._window.due()) > 0:
                self._flow(permits)
            await self._arrival(timeout_s)
        entries = [*self._received]
        self._received.clear()
        self._received_bytes = 0
        self._window.consumed(entries)
        if self._is_paused:
            self._is_paused = False
            self._connection.resume_reading()
        if (permits := self._window.due()) > 0:
            self._flow(permits)
        return entries

    async def receive_one(self, timeout_s: float) -> ReceivedEntry:
        """Request a single entry with one permit, and return it. Raises RequestTimedOut or ConnectionLost."""
        self._flow(1)
        while not self._received:
            if self._failure is not None:
                raise self._failure
            await self._arrival(timeout_s)
        return self._received.popleft()

    async def _arrival(self, timeout_s: float) -> None:
        self._arrived.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"no entry of topic {self.topic} arrived within {timeout_s:g} s: the broker is slow or cannot be reached"
            ) from None

    def _flow(self, permits: int) -> None:
        command = Command(type=Command.FLOW)
        command.flow.consumer_id = self._consumer_id
        command.flow.messagePermits = permits
        self._connection.write(frame(command))

    # --- the cursor

    async def ends(self) -> Ends:
        command = Command(type=Command.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id = self._consumer_id
        answer = (await self._connection.request(command)).getLastMessageIdResponse
        last = from_wire(answer.last_message_id.ledgerId, answer.last_message_id.entryId)
        mark_delete = None
        if answer.HasField("consumer_mark_delete_position"):
            stands = answer.consumer_mark_delete_position
            mark_delete = from_wire(stands.ledgerId, stands.entryId)
        return Ends(last if last.entry_id >= 0 else None, mark_delete)

    async def acknowledge_up_to(self, position: Position) -> None:
        command = Command(type=Command.ACK)
        command.ack.consumer_id = self._consumer_id
        command.ack.ack_type = pb.CommandAck.Cumulative
        command.ack.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id)
        await self._connection.request(command)

    async def seek(self, position: Position | None = None, *, publish_time_ms: int | None = None) -> None:
        """Move the cursor to `position`, or to the first entry that was published at `publish_time_ms` (milliseconds
        since 1970) or later. The broker then closes this consumer.
        """
        command = Command(type=Command.SEEK)
        command.seek.consumer_id = self._consumer_id
        if position is not None:
            command.seek.message_id.ledgerId = position.ledger_id & _MASK_64
            command.seek.message_id.entryId = position.entry_id & _MASK_64
        if publish_time_ms is not None:
            command.seek.message_publish_time = publish_time_ms
        await self._connection.request(command)

    # --- life

    async def subscribe(self) -> None:
        wanted = self._subscribing
        command = subscribe_command(
            self.topic,
            wanted.subscription,
            wanted.kind,
            self._consumer_id,
            wanted.start,
            is_from_earliest=wanted.is_from_earliest,
            read_compacted=wanted.read_compacted,
        )
        command.subscribe.force_topic_creation = wanted.may_create_topic
        self._connection.consumers[self._consumer_id] = self
        try:
            await self._connection.request(command)
        except BaseException:
            self._connection.detach_consumer(self._consumer_id)
            raise

    async def close(self) -> None:
        """Close the consumer. A durable subscription remains."""
        self._connection.consumers.pop(self._consumer_id, None)
        self._received.clear()
        if self._is_paused:
            self._is_paused = False
            self._connection.resume_reading()
        if self._failure is not None:
            return
        self._failure = ConnectionLost(f"the consumer of {self.topic} is closed")
        command = Command(type=Command.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self._consumer_id
        try:
            await self._connection.request(command)
        except (ClientError, BrokerError) as error:
            logs.debug("client.consumer_not_closed", topic=self.topic, reason=error)

    async def unsubscribe(self) -> None:
        """Delete the subscription. It must have no other consumer."""
        command = Command(type=Command.UNSUBSCRIBE)
        command.unsubscribe.consumer_id = self._consumer_id
        await self._connection.request(command)

    # --- callbacks of the connection

    def received(self, event: pb.BaseCommand | ReceivedEntry) -> None:
        if isinstance(event, ReceivedEntry):
            self._received.append(event)
            self._received_bytes += len(event.data)
            if self._received_bytes > 2 * self._subscribing.window_bytes and not self._is_paused:
                self._is_paused = True
                self._connection.pause_reading()
            self._arrived.set()
        elif event.type == Command.CLOSE_CONSUMER:
            self.lost(
                ConnectionLost(
                    f"the broker closed the consumer of {self.topic}: the topic is moving to another broker, or the "
                    "subscription was reset"
                )
            )
        elif event.type == Command.REACHED_END_OF_TOPIC:
            self.is_at_end = True

    def lost(self, error: ConnectionLost) -> None:
        if self._failure is None:
            self._failure = error
        self._arrived.set()


async def open_consumer(client: Client, topic: TopicName, subscribing: Subscribing) -> Consumer:
    async def attempt() -> Consumer:
        consumer = Consumer(client, topic, subscribing, await client.connection_for(topic))
        await consumer.subscribe()
        return consumer

    return await client.retried(attempt)


START_OF_TOPIC = EARLIEST
END_OF_TOPIC = LATEST
