"""Producers of the broker itself: for system topics (one message at a time), and for REST requests (several messages).

The topic does not list these producers, so limits and statistics ignore them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pybroker.broker.limits.publish_rate_limit import PublishWaiter
from pybroker.broker.limits.publish_throttle import PublishThrottle
from pybroker.broker.publishing.internal_publisher import Publisher
from pybroker.broker.publishing.producer import Producer
from pybroker.broker.publishing.publish_checks import rows
from pybroker.broker.topic.topic_base import TopicBase
from pybroker.errors import BrokerError, NotAllowedError, TooManyRequests
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.wire.entry_builder import build_entry

MAX_RUN_ENTRIES = 256
"""Maximum number of messages passed to the topic per event loop iteration."""
RATE_DEADLINE_S = 30.0
"""Longest wait of REST messages for a publish rate."""

_PRODUCER_ID = 0


class InternalProducer(Publisher):
    """Producer for messages of the broker. The caller publishes one message at a time."""

    def __init__(self, topic: TopicBase) -> None:
        broker_context = topic.broker_context
        self._topic = topic
        self._producer = Producer(
            topic.producer_registry.remove,
            _PRODUCER_ID,
            broker_context.producer_names.new(),
            False,
            0,
            self,
            {},
            broker_context.runtime.clock.wall_ms(),
        )
        self._sequence_id = 0
        self._awaited: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self._awaited.cancel()

    async def publish(
        self,
        payload: bytes | None,
        *,
        key: str = "",
        replicate_to: Sequence[str] = (),
        schema_version: bytes = b"",
    ) -> Position:
        """Publish a message, and return its position when the message is durable. `payload`: None for a message without
        value. `replicate_to`: clusters to which the message is replicated; empty for the default. Raises BrokerError if
        the message is not stored.
        """
        assert self._awaited.done(), "one message at a time"
        entry = build_entry(
            self._producer.name,
            self._sequence_id,
            self._topic.runtime.clock.wall_ms(),
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
        self._awaited = asyncio.get_running_loop().create_future()
        self._topic.publish(self._producer, run)
        return await self._awaited

    def _answer(self, sequence_id: int, answer: Position | BrokerError) -> None:
        if self._awaited.done() or sequence_id != self._sequence_id - 1:
            return
        if isinstance(answer, BrokerError):
            self._awaited.set_exception(answer)
        else:
            self._awaited.set_result(answer)


class EntryPublish(Publisher):
    """Publishes the messages of one REST request to one topic. Single use."""

    def __init__(self, topic: TopicBase, entries: Sequence[bytes]) -> None:
        self._topic = topic
        self._entries = entries
        broker_context = topic.broker_context
        # A unique name, so that its sequence ids are not compared with sequence ids of another producer.
        self._producer = Producer(
            topic.producer_registry.remove,
            _PRODUCER_ID,
            broker_context.producer_names.new(),
            False,
            0,
            self,
            {},
            broker_context.runtime.clock.wall_ms(),
        )
        self._left: Sequence[int] = range(len(entries))  # not yet passed to the topic
        self._handed = 0  # number of entries that were passed to the topic
        self._answers: list[Position | BrokerError | None] = [None] * len(entries)
        self._unanswered = len(entries)
        self._all_answered = asyncio.Event()

    async def run(self) -> list[Position | BrokerError]:
        """Publish all entries. Return, for each entry, its durable position or its error."""
        self._refuse_too_large()
        try:
            async with asyncio.timeout(RATE_DEADLINE_S):
                await self._publish_all()
        except TimeoutError:
            late = TooManyRequests(
                f"the publish rate of {self._topic.name} did not permit the message within {RATE_DEADLINE_S:g} s"
            )
            for index in self._left[self._handed :]:
                self._answer(index, late)
        if self._unanswered:
            await self._all_answered.wait()
        return [answer for answer in self._answers if answer is not None]

    def _refuse_too_large(self) -> None:
        limit = self._topic.runtime.config.max_message_size
        for index in self._left:
            if len(self._entries[index]) > limit:
                self._answer(index, NotAllowedError(f"Exceed maximum message size of {limit} bytes (maxMessageSize)"))
        self._left = [index for index in self._left if self._answers[index] is None]

    async def _publish_all(self) -> None:
        while self._handed < len(self._left):
            run = self._run(self._left[self._handed : self._handed + MAX_RUN_ENTRIES])
            throttle = self._topic.publish_throttle
            admitted = len(run.payloads) if throttle is None else throttle.admit(run)
            if throttle is not None and not admitted:
                await _Turn().wait_for(throttle)
                continue
            if admitted < len(run.payloads):
                run = rows(run, range(admitted))
            self._handed += admitted
            self._topic.publish(self._producer, run)
            await asyncio.sleep(0)

    def _run(self, indexes: Sequence[int]) -> SendRun:
        run = SendRun(_PRODUCER_ID)
        run.payloads += [self._entries[index] for index in indexes]
        run.sequence_ids += indexes
        run.highest_sequence_ids += [0] * len(indexes)
        run.message_counts += [1] * len(indexes)
        run.size_bytes = sum(map(len, run.payloads))
        return run

    def _answer(self, sequence_id: int, answer: Position | BrokerError) -> None:
        assert self._answers[sequence_id] is None, "answered twice"
        self._answers[sequence_id] = answer
        self._unanswered -= 1
        if not self._unanswered:
            self._all_answered.set()


class _Turn(PublishWaiter):
    def __init__(self) -> None:
        self._has_come = asyncio.Event()

    async def wait_for(self, throttle: PublishThrottle) -> None:
        row = throttle.wait(self)
        try:
            await self._has_come.wait()
        finally:
            row.leave(self)

    def publish_again(self) -> None:
        self._has_come.set()
