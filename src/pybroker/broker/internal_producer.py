"""The broker as a producer to its own topics: one message at a time, each awaited until it is durable.

It is not among its topic's producers, so no limit counts it and no stats list it. A topic has one at most, for as long as it is
loaded: whoever publishes to a topic by it sees to it that there is one message at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pybroker.broker.peer import Peer
from pybroker.broker.producer import Producer
from pybroker.broker.topic import Topic
from pybroker.dispatch.dispatcher import Delivery
from pybroker.errors import BrokerError
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.wire.entry_builder import build_entry

_PRODUCER_ID = 0


class InternalProducer(Peer):
    """Owned by its topic. Its receipts come back as the position that `publish` returns."""

    address = ""
    client_version = ""
    role = None

    def __init__(self, topic: Topic) -> None:
        service = topic.service
        self._topic = topic
        self._producer = Producer(
            topic, _PRODUCER_ID, service.new_producer_name(), False, 0, self, {}, service.clock.wall_ms()
        )
        self._sequence_id = 0
        self._answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._answer.cancel()

    @staticmethod
    def of(topic: Topic) -> InternalProducer:
        """The one of `topic`."""
        if topic.internal_producer is None:
            topic.internal_producer = InternalProducer(topic)
        return topic.internal_producer

    async def publish(
        self,
        payload: bytes | None,
        *,
        key: str = "",
        replicate_to: Sequence[str] = (),
        schema_version: bytes = b"",
    ) -> Position:
        """Where the message is stored, durably. Raises BrokerError when it is not."""
        assert self._answer.done(), "one message at a time"
        entry = build_entry(
            self._producer.name,
            self._sequence_id,
            self._topic.service.clock.wall_ms(),
            payload,
            key=key,
            replicate_to=replicate_to,
            schema_version=schema_version,
        )
        run = SendRun(_PRODUCER_ID)
        run.sequence_ids.append(self._sequence_id)
        run.highest_sequence_ids.append(0)
        run.message_counts.append(1)
        run.payloads.append(entry)
        run.size_bytes = len(entry)
        self._sequence_id += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._topic.publish(self._producer, run)
        return await self._answer

    def send_receipts(
        self,
        producer_id: int,
        sequence_ids: list[int],
        highest_sequence_ids: list[int],
        ledger_id: int,
        first_entry_id: int,
        size_bytes: int,
    ) -> None:
        if self._is_awaited(sequence_ids):
            self._answer.set_result(Position(ledger_id, first_entry_id))

    def send_errors(self, producer_id: int, sequence_ids: list[int], error: BrokerError, size_bytes: int) -> None:
        if self._is_awaited(sequence_ids):
            self._answer.set_exception(error)

    def _is_awaited(self, sequence_ids: list[int]) -> bool:
        """Not so when whoever published has given up waiting, and perhaps published another one since."""
        return not self._answer.done() and sequence_ids == [self._sequence_id - 1]

    def send_messages(self, consumer_id: int, delivery: Delivery, consumer_epoch: int, partition: int) -> None:
        raise AssertionError("a producer consumes nothing")

    def send_ack_response(self, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        raise AssertionError("a producer acknowledges nothing")

    def close_producer(self, producer_id: int) -> None:
        """Not attached, so nobody is to be told."""

    def close_consumer(self, consumer_id: int) -> None:
        """There is none."""

    def active_consumer_changed(self, consumer_id: int, is_active: bool) -> None:
        """There is none."""

    def reached_end_of_topic(self, consumer_id: int) -> None:
        """There is none."""

    async def is_alive(self) -> bool:
        return True
