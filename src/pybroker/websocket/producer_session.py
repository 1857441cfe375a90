"""A producer session: each text is a message, and each message is answered with an acknowledgement or an error."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pybroker.client.failures import ClientError
from pybroker.errors import BrokerError, TopicTerminatedError
from pybroker.websocket import json_forms
from pybroker.websocket.json_forms import CANNOT_READ_JSON, UNKNOWN, Unreadable
from pybroker.websocket.publish_latency import PublishLatency
from pybroker.websocket.session import Session

if TYPE_CHECKING:
    from pybroker.client.message import EncryptionKey, MessageId, OutgoingMessage
    from pybroker.client.producing.message_producer import MessageProducer
    from pybroker.runtime.runtime import Runtime
    from pybroker.websocket.websocket_connection import WebSocketConnection

PENDING_BYTES = 300
"""Approximate memory of an unanswered message without its content."""


class ProducerSession(Session):
    """The session of a producer. Messages of one partition are stored in the order of their texts."""

    kind = "producer"

    def __init__(
        self,
        runtime: Runtime,
        connection: WebSocketConnection,
        topic: str,
        producer: MessageProducer,
        max_pending_messages: int,
        encryption_keys: tuple[EncryptionKey, ...] = (),
    ) -> None:
        super().__init__(runtime, connection, topic, producer)
        self.messages_sent = 0
        self.bytes_sent = 0
        self.messages_failed = 0
        self.latency = PublishLatency()
        self._producer = producer
        self._max_pending_messages = max_pending_messages
        self._encryption_keys = encryption_keys
        self._pending = 0
        self._pending_bytes = 0

    @property
    def name(self) -> str:
        return self._producer.name

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def binary_received(self) -> None:
        self._refuse(CANNOT_READ_JSON, "binary frames are not messages: send JSON in a text frame", None)

    async def handle(self, text: bytes) -> None:
        try:
            now_ms = self._runtime.clock.wall_ms()
            message, context = json_forms.outgoing_message(text, now_ms, self._encryption_keys)
        except Unreadable as error:
            self._refuse(error.code, str(error), error.context)
            return
        while self._pending >= self._max_pending_messages:
            await self.wait_for(f"the receipts of {self._pending} messages")
        self.continues()
        await self._submit(message, context)

    async def _submit(self, message: OutgoingMessage, context: str | None) -> None:
        size_bytes = message.size_bytes + PENDING_BYTES
        self._pending += 1
        self._pending_bytes += size_bytes
        started_ms = self._runtime.clock.monotonic_ms()
        try:
            receipt = await self._producer.submit(message)
        except (ClientError, BrokerError) as error:
            self._answered(size_bytes)
            self._failed(error, context)
            return
        receipt.add_done_callback(partial(self._stored, len(message.value or b""), size_bytes, context, started_ms))

    def _stored(
        self,
        value_bytes: int,
        size_bytes: int,
        context: str | None,
        started_ms: float,
        receipt: asyncio.Future[MessageId],
    ) -> None:
        if receipt.cancelled():
            self._answered(size_bytes)
            return
        error = receipt.exception()
        if error is None:
            self.messages_sent += 1
            self.bytes_sent += value_bytes
            self.latency.add(self._runtime.clock.monotonic_ms() - started_ms)
            self.connection.send_text(json_forms.stored_ack(receipt.result(), context))
        else:
            assert isinstance(error, Exception)
            self._failed(error, context)
        self._answered(size_bytes)

    def _answered(self, size_bytes: int) -> None:
        self._pending -= 1
        self._pending_bytes -= size_bytes
        self.account()
        self.wake()

    def _failed(self, error: Exception, context: str | None) -> None:
        self._refuse(UNKNOWN, str(error), context)
        failure = self._producer.failure
        if failure is not None and not isinstance(failure, TopicTerminatedError):
            self.fail(failure)  # the client opens a new session, which may succeed

    def _refuse(self, code: int, text: str, context: str | None) -> None:
        self.messages_failed += 1
        self.connection.send_text(json_forms.failed_ack(code, text, context))
