"""Sessions of consumers and readers: each message is a text, and each text of the client is an acknowledgement or another
command.

In push mode, at most `receiverQueueSize` messages are unacknowledged; in pull mode the client requests messages with
`permit`. While the client does not read, or the session is over its share of memory, no message is taken from the
consumer, which then requests no further messages of the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from websockets.frames import CloseCode

from pybroker.client.consuming.message_consumer import EndOfTopic
from pybroker.client.failures import ClientError
from pybroker.client.message import Message, MessageId
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName
from pybroker.runtime import logs
from pybroker.websocket import json_forms
from pybroker.websocket.json_forms import ConsumerCommand, Unreadable
from pybroker.websocket.session import Session
from pybroker.websocket.unacknowledged import Unacknowledged
from pybroker.wire.compression import DamagedPayload

if TYPE_CHECKING:
    from pybroker.client.consuming.message_consumer import MessageConsumer
    from pybroker.runtime.runtime import Runtime
    from pybroker.websocket.dead_letter_producer import DeadLetterProducer
    from pybroker.websocket.session_parameters import ConsumerParameters
    from pybroker.websocket.topic_pattern import PatternTopics
    from pybroker.websocket.websocket_connection import WebSocketConnection

MAX_MESSAGES_AT_ONCE = 64
"""Messages that are sent without yielding to the event loop."""
MAX_UNACKED_IN_PULL_MODE = 50_000
MAX_PERMITS = 1 << 31
CHECKS_PER_ACK_TIMEOUT = 4
AT_END_INTERVAL_S = 1.0
"""Interval of checks after the last message of a terminated topic, whose cursor may be reset."""


class ConsumerSession(Session):
    """The session of a consumer."""

    kind: ClassVar[str] = "consumer"

    def __init__(
        self,
        runtime: Runtime,
        connection: WebSocketConnection,
        topic: str,
        consumer: MessageConsumer,
        parameters: ConsumerParameters,
        dead_letters: DeadLetterProducer | None = None,
        pattern: PatternTopics | None = None,
    ) -> None:
        super().__init__(runtime, connection, topic, consumer)
        self.parameters = parameters
        self.messages_delivered = 0
        self.bytes_delivered = 0
        self.messages_acked = 0
        self._consumer = consumer
        self._dead_letters = dead_letters
        self._pattern = pattern
        limit = MAX_UNACKED_IN_PULL_MODE if parameters.is_pull_mode else parameters.max_pending_messages
        self._unacked = Unacknowledged(parameters.ack_timeout_s, limit)
        self._permits = 0  # in pull mode
        self._acks: list[Message] = []  # of the texts since `handled_some`
        self._is_unsubscribed = False

    @property
    def subscription(self) -> str:
        return self._consumer.subscription

    @property
    def unacked_messages(self) -> int:
        return len(self._unacked)

    def other_work(self) -> list[Callable[[], Awaitable[None]]]:
        workers: list[Callable[[], Awaitable[None]]] = [self._deliver]
        if self.parameters.ack_timeout_s > 0:
            workers.append(self._redeliver_overdue)
        if self._pattern is not None:
            workers.append(partial(self._pattern.follow, self._consumer))
        return workers

    # --- out -----------------------------------------------------------------------------------------------------------

    def _free_slots(self) -> int:
        if self.parameters.is_pull_mode:
            return self._permits
        return self.parameters.max_pending_messages - len(self._unacked)

    def _obstacle(self) -> str:
        if self._free_slots() <= 0:
            if self.parameters.is_pull_mode:
                return "a permit of the client (pullMode=true)"
            return (
                f"acknowledgements of the client: {len(self._unacked)} messages are unacknowledged (receiverQueueSize)"
            )
        if not self.connection.is_writable:
            return "the client to read from the connection"
        if self._runtime.memory.websockets.stops(self):
            return "memory: the session has used up its share (brokerMemoryLimitMB)"
        return ""

    async def _deliver(self) -> None:
        while True:
            while obstacle := self._obstacle():
                await self.wait_for(obstacle)
            self.continues()
            try:
                messages = await self._consumer.receive_some(min(self._free_slots(), MAX_MESSAGES_AT_ONCE))
            except EndOfTopic:
                await asyncio.sleep(AT_END_INTERVAL_S)
                continue
            except DamagedPayload as error:  # it stays unacknowledged
                logs.warning("websocket.message_skipped", topic=self.topic, reason=error)
                continue
            except ClientError:
                if self._is_unsubscribed:
                    return
                raise
            for message in messages:
                await self._deliver_one(message)
            self.account()
            await asyncio.sleep(0)

    async def _deliver_one(self, message: Message) -> None:
        letters = self._dead_letters
        if letters is not None and message.redelivery_count > letters.max_redeliver_count:
            await letters.store(message)
            await self._consumer.ack(message)
            return
        self.connection.send_text(json_forms.delivered_message(message))
        self.messages_delivered += 1
        self.bytes_delivered += len(message.value or b"")
        if self.parameters.is_pull_mode:
            self._permits -= 1
        self._unacked.sent(message, self._now_s())

    async def _redeliver_overdue(self) -> None:
        while True:
            await asyncio.sleep(self.parameters.ack_timeout_s / CHECKS_PER_ACK_TIMEOUT)
            for topic, message_id in self._unacked.take_overdue(self._now_s()):
                self._consumer.nack(Message(message_id, topic, None), 0.0)
            self.wake()

    def _now_s(self) -> float:
        return self._runtime.clock.monotonic_ms() / 1000

    # --- in ------------------------------------------------------------------------------------------------------------

    def binary_received(self) -> None:
        self.connection.close(CloseCode.UNSUPPORTED_DATA, "binary frames are not commands: send JSON in a text frame")

    async def handle(self, text: bytes) -> None:
        try:
            await self._command(json_forms.command_of(text))
        except Unreadable as error:
            self.connection.close(CloseCode.INVALID_DATA, f"Failed to de-serialize from JSON: {error}")

    async def handled_some(self) -> None:
        if self._acks:
            acks, self._acks = self._acks, []
            await self._consumer.ack(*acks)
            self.messages_acked += len(acks)
        self.wake()

    async def _command(self, command: ConsumerCommand) -> None:
        match command.type:
            case "permit":
                if command.permitMessages is None:
                    raise Unreadable(json_forms.CANNOT_READ_JSON, "the permit has no permitMessages")
                self._permits = min(self._permits + max(0, command.permitMessages), MAX_PERMITS)
            case "unsubscribe":
                await self._unsubscribe()
            case "isEndOfTopic":
                self.connection.send_text(json_forms.end_of_topic(is_at_end=self._consumer.is_at_end))
            case "negativeAcknowledge":
                # The broker redelivers a message only to its current consumer, so other ids have no effect.
                if (found := self._unacked.take(json_forms.decoded_id(command.messageId))) is not None:
                    topic, message_id = found
                    self._consumer.nack(Message(message_id, topic, None))
            case _:
                if (message := self._answered(command)) is not None:
                    self._acks.append(message)

    def _answered(self, command: ConsumerCommand) -> Message | None:
        """Return the message of an acknowledgement, of which only id and topic are known; None if the id is of no topic
        of this consumer, or of no message.
        """
        message_id = json_forms.decoded_id(command.messageId)
        found = self._unacked.take(message_id)
        if found is not None:
            topic, message_id = found
            return Message(message_id, topic, None)
        if not self._is_possible(message_id):
            return None
        for topic in self._consumer.topics:  # the id of another session, or acknowledged twice
            if TopicName.parse(topic).partition_index == message_id.partition:
                return Message(message_id, topic, None) if self._is_of_one_topic() else None
        return None

    def _is_possible(self, message_id: MessageId) -> bool:
        """Whether a message can have this id. Clients may send any numbers, such as a batch of 2**31 messages."""
        if message_id.ledger_id < 0 or message_id.entry_id < 0:  # as in `earliest`
            return False
        most = self._runtime.config.max_messages_in_batch
        return message_id.batch_size <= 1 or 0 <= message_id.batch_index < message_id.batch_size <= most

    def _is_of_one_topic(self) -> bool:
        return len({TopicName.parse(topic).partitioned_name for topic in self._consumer.topics}) == 1

    async def _unsubscribe(self) -> None:
        await self.handled_some()
        self._is_unsubscribed = True
        try:
            await self._consumer.unsubscribe()
        except (ClientError, BrokerError) as error:
            self.fail(error)


class ReaderSession(ConsumerSession):
    """The session of a reader. The client acknowledges messages only to get more of them."""

    kind = "reader"

    async def _command(self, command: ConsumerCommand) -> None:
        if command.type == "isEndOfTopic":
            self.connection.send_text(json_forms.end_of_topic(is_at_end=self._consumer.is_at_end))
        else:
            self._unacked.take_oldest()
