"""The topic with the state of an effectively-once sink (notes topic), beginning with the last complete batch.

The topic is in the namespace of the target topic. The cursor of its subscription `sink` is at the last complete batch:
the broker keeps later notes, and earlier notes are subject to the namespace's retention.
"""

from __future__ import annotations

import secrets
import time

from pybroker.client.client import Client
from pybroker.client.consuming.entry_consumer import START_OF_TOPIC, Consumer, Subscribing, open_consumer
from pybroker.client.producing.entry_producer import Producer, ProducerSettings, open_producer
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.spark.writer.sink_notes import SinkState
from pybroker.wire.entry_builder import build_entry
from pybroker.wire.entry_metadata import metadata_span

SUBSCRIPTION = "sink"
PATIENCE_S = 30.0


def notes_topic(topic: TopicName, sink_id: str) -> TopicName:
    whole = topic.partitioned_name
    return TopicName(whole.domain, whole.namespace, f"{whole.local_name}-sink-{sink_id}")


class SinkLog:
    """Reads and writes the notes of one sink."""

    def __init__(self, client: Client, topic: TopicName, sink_id: str) -> None:
        self._client = client
        self._name = notes_topic(topic, sink_id)
        self._producer: Producer | None = None
        self._sequence_id = 0

    async def start(self) -> Position:
        """Create the notes topic and its subscription if needed. Return the position at which the tasks begin to read the
        notes. The driver calls this before a batch.
        """
        (self._name, *_) = await self._client.partitions(self._name, may_create=True)
        subscribing = Subscribing(SUBSCRIPTION, may_create_topic=True)
        consumer = await open_consumer(self._client, self._name, subscribing)
        try:
            stands = (await consumer.ends()).mark_delete
        finally:
            await consumer.close()
        return START_OF_TOPIC if stands is None else Position(stands.ledger_id, stands.entry_id + 1)

    async def read(self, start: Position) -> SinkState:
        state = SinkState()
        subscribing = Subscribing(f"notes-{secrets.token_hex(6)}", start=start)
        reader = await open_consumer(self._client, self._name, subscribing)
        try:
            await self._fold(reader, start, state)
        finally:
            await reader.close()
        return state

    async def _fold(self, reader: Consumer, start: Position, state: SinkState) -> None:
        last = (await reader.ends()).last
        if last is None or last < start:
            return
        while True:
            for entry in await reader.receive(PATIENCE_S):
                position = Position(entry.ledger_id, entry.entry_id)
                if position >= start:
                    state.fold(entry.data[metadata_span(entry.data)[1] :])
                if position >= last:
                    return

    async def open(self, name: str, patience_s: float) -> None:
        """Open a producer with this name, which only one producer at a time can use. Wait at most `patience_s` seconds for
        an earlier producer with this name to close, so that all notes of that producer are stored.
        """
        settings = ProducerSettings(name=name, busy_patience_s=patience_s)
        self._producer = await open_producer(self._client, self._name, settings)
        self._sequence_id = self._producer.last_sequence_id

    async def write(self, note: bytes) -> Position:
        assert self._producer is not None
        self._sequence_id += 1
        entry = build_entry(self._producer.name, self._sequence_id, int(time.time() * 1000), note)
        receipt = await self._producer.send(entry, self._sequence_id)
        stored = await receipt
        return Position(stored.ledger_id, stored.entry_id)

    async def keep_from(self, position: Position) -> None:
        """Acknowledge all notes before `position`, so that retention may delete them."""
        if position.entry_id < 1:
            return  # The previous entry id is unknown here; the next batch releases these notes.
        consumer = await open_consumer(self._client, self._name, Subscribing(SUBSCRIPTION))
        try:
            await consumer.acknowledge_up_to(Position(position.ledger_id, position.entry_id - 1))
        finally:
            await consumer.close()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()
