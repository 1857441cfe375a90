"""Effectively-once delivery: finds and skips the rows that an earlier attempt of the task has stored.

The producer name consists of sink id, query and task. The sequence id of a row is batch << 32 | its number among the
rows of this task for that partition. `sink_notes` describes the topic with the state of the sink (notes topic).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from crc32c import crc32c

from pybroker.client.background import BackgroundClient
from pybroker.client.failures import ClientError
from pybroker.client.producing.entry_producer import Producer
from pybroker.columns.packer import EntryMaker, RowBatch
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.spark.writer.sink_log import SinkLog
from pybroker.spark.writer.sink_notes import (
    MAX_ROWS,
    Resumption,
    Share,
    SinkState,
    Writer,
    claim_note,
    complete_note,
    sent_note,
)
from pybroker.spark.writer.sink_options import WriteOptions
from pybroker.spark.writer.topic_writer import Destination, PartitionSender, TopicWriter, WriteFailed, Written

SEGMENT_ENTRIES = 64
SEGMENT_BYTES = 4 * 1024 * 1024
"""Maximum size of a segment: entries that are buffered until their common note is durable."""


Result = TypeVar("Result")


@dataclass(frozen=True)
class OncePlan:
    """Information that the driver passes to the tasks of a batch."""

    notes_from: Position


class OnceSender(PartitionSender):
    """Sends those rows of a task to one partition that are not stored yet."""

    def __init__(self, writer: OnceWriter, destination: Destination, partition: TopicName) -> None:
        self._txn = None
        self._writer = writer
        self._destination = destination
        self._partition = partition
        self._share = Share(writer.who.batch, writer.task, str(partition))
        self._segment: list[RowBatch] = []
        self._segment_bytes = 0
        self._resumption = Resumption([], -1)
        self._is_proven = False
        """Whether the topic has proved that it deduplicates."""
        self.next_sequence_id = writer.who.first_sequence_id

    async def attach(self) -> None:
        """Open the producer under the latest name that an earlier attempt of the task used for this partition, or under
        the task's first name. Find the rows that are stored. Raises WriteFailed if later batches are stored.
        """
        noted = self._writer.state.shares.get(self._share, [])
        generation = noted[-1].generation if noted else 0
        last_row = await self._attach(generation)
        self._resumption = Resumption(noted, last_row)

    async def _attach(self, generation: int) -> int:
        name = self._writer.name_of(generation)
        self.producer: Producer = await self._writer.open_producer(self._destination, self._partition, name)
        self._maker = EntryMaker(self.producer.name, self._writer.options.compression, self.producer.schema_version)
        self._generation = generation
        last = self.producer.last_sequence_id
        first = self._writer.who.first_sequence_id
        self._is_proven = self._is_proven or last >= 0
        if last >= first + MAX_ROWS:
            await self.producer.close()
            raise WriteFailed(
                f"batch {self._share.batch} cannot be written to topic {self._partition}, because later batches of this query are "
                "already stored: the checkpoint of the query may be an older copy. To write the batches again, use another sinkId"
            )
        return max(last - first, -1)

    async def send(self, batches: Sequence[RowBatch], written: Written) -> None:
        for batch in batches:
            first_row = self.next_sequence_id - self._writer.who.first_sequence_id
            end_row = first_row + batch.message_count
            if end_row > MAX_ROWS:
                raise WriteFailed(
                    f"a task has more than {MAX_ROWS} rows for topic {self._partition} in one batch: use more tasks"
                )
            self.next_sequence_id += batch.message_count
            written.rows += batch.message_count
            if not self._resumption.is_over and not self._segment:
                if self._resumption.is_stored(end_row, crc32c(batch.payload)):
                    written.skipped_rows += batch.message_count
                    continue
                await self._leave_what_is_stored(written)
            self._segment.append(batch)
            self._segment_bytes += len(batch.payload)
            if len(self._segment) >= SEGMENT_ENTRIES or self._segment_bytes >= SEGMENT_BYTES:
                await self._send_segment(written)

    async def finish(self, written: Written) -> None:
        await self._send_segment(written)
        await self.producer.flush()
        await self.producer.close()
        written.doubled_rows += self._resumption.unmatched_rows  # other tasks have these rows now

    async def _leave_what_is_stored(self, written: Written) -> None:
        """Stop skipping rows, because the next row is not stored, or the rows have another order. Continue after the
        stored rows, under a new producer name if needed.
        """
        found = self._resumption
        written.doubled_rows += found.doubled_rows
        if not found.needs_new_name:
            return
        logs.warning(
            "sink.plan_changed",
            topic=self._partition,
            batch=self._share.batch,
            task=self._share.task,
            rows_twice_at_most=found.doubled_rows,
            reason="an earlier attempt of this batch sent other rows to this partition, or the same rows in another order",
        )
        generation = self._generation
        last_row = 0
        while last_row >= 0:  # A name with stored rows of this batch that are not noted cannot be used.
            await self.producer.close()
            generation += 1
            last_row = await self._attach(generation)

    async def _send_segment(self, written: Written) -> None:
        if not self._segment:
            return
        segment, self._segment, self._segment_bytes = self._segment, [], 0
        rows = sum(batch.message_count for batch in segment)
        sequence_id = self.next_sequence_id - rows
        first_row = row = sequence_id - self._writer.who.first_sequence_id
        entries: list[tuple[int, int]] = []
        for batch in segment:
            row += batch.message_count
            entries.append((row, crc32c(batch.payload)))
        await self._writer.log.write(sent_note(self._writer.who, self._share, self._generation, first_row, entries))
        now_ms = int(time.time() * 1000)
        for batch in segment:
            highest = sequence_id + batch.message_count - 1
            await self.send_entries(batch, sequence_id, now_ms, written)
            if not self._is_proven:
                await self._prove(highest)
            sequence_id += batch.message_count

    async def _prove(self, highest: int) -> None:
        await self.producer.flush()
        await self.producer.close()
        row = await self._attach(self._generation)
        if row != highest - self._writer.who.first_sequence_id:
            await self.producer.close()
            raise WriteFailed(
                f"the topic {self._partition} does not deduplicate messages: enable deduplication "
                "(brokerDeduplicationEnabled, or the deduplication policy of namespace or topic), or use "
                "delivery=at-least-once"
            )


class OnceWriter(TopicWriter):
    """Writes the rows of one task of one batch."""

    def __init__(self, options: WriteOptions, task: int, who: Writer, plan: OncePlan) -> None:
        super().__init__(options, task)
        assert options.topic is not None
        self.options = options
        self.task = task
        self.who = who
        self.log = SinkLog(self.client, TopicName.parse(options.topic), options.sink_id)
        self.state = SinkState()
        self._plan = plan

    def start(self) -> bool:
        """Read the state of the sink. Return False if the whole batch is already stored. Raises WriteFailed, and
        SinkFenced if another query or a later run of this query writes with the sink id.
        """
        return self._do(f"reading the notes of the sink {self.options.sink_id}", self._start())

    async def _start(self) -> bool:
        # Take the producer name first: it ends an earlier attempt of this task, so that all its notes are stored.
        await self.log.open(f"{self.name_of(0)}.notes", self.options.send_timeout_s)
        state = await self.log.read(self._plan.notes_from)
        if not state.knows(self.who):
            await self.log.write(claim_note(self.who, takes_over=self.options.takes_over))
            state = await self.log.read(self._plan.notes_from)
        state.admit(self.who, self.options.sink_id)
        self.state = state
        return not state.is_complete(self.who)

    def skip(self, batch: pa.RecordBatch) -> None:
        self.written.rows += batch.num_rows
        self.written.skipped_rows += batch.num_rows

    def name_of(self, generation: int) -> str:
        base = f"{self.options.sink_id}.{self.who.query[:8]}.{self.task}"
        return base if not generation else f"{base}.{generation}"

    async def _open(self, destination: Destination, partition: TopicName) -> PartitionSender:
        sender = OnceSender(self, destination, partition)
        await sender.attach()
        return sender

    def finish(self) -> Written:
        written = super().finish()
        self._do("closing the sink's notes", self.log.close())
        return written


def plan_batch(options: WriteOptions) -> OncePlan:
    """Create the topic with the sink's state (notes topic) if needed. Return the position from which the tasks read it.
    The driver calls this before the tasks of a batch. Raises WriteFailed.
    """

    async def plan(background: BackgroundClient, topic: TopicName) -> OncePlan:
        return OncePlan(await SinkLog(background.client, topic, options.sink_id).start())

    return _on_the_driver(options, plan)


def complete_batch(options: WriteOptions, who: Writer, tasks: int, rows: int) -> None:
    """Record that a batch is complete, so that later attempts skip it. The driver calls this after all tasks succeeded.
    Raises WriteFailed, and SinkFenced if another query or a later run of this query writes with the sink id.
    """

    async def complete(background: BackgroundClient, topic: TopicName) -> None:
        log = SinkLog(background.client, topic, options.sink_id)
        start = await log.start()
        state = await log.read(start)
        state.admit(who, options.sink_id)
        if state.is_complete(who):
            return
        await log.open(f"{options.sink_id}.{who.query[:8]}.driver", options.send_timeout_s)
        position = await log.write(complete_note(who, tasks, rows, state.runs))
        await log.close()
        await log.keep_from(position)

    _on_the_driver(options, complete)


def _on_the_driver(
    options: WriteOptions, work: Callable[[BackgroundClient, TopicName], Coroutine[Any, Any, Result]]
) -> Result:
    assert options.topic is not None
    background = BackgroundClient(options.access)
    try:
        return background.run(work(background, TopicName.parse(options.topic)))
    except (ClientError, BrokerError, ValueError) as error:
        raise WriteFailed(
            f"the state of the sink {options.sink_id}, which is stored next to the topic {options.topic}, cannot "
            f"be read or written: {error}"
        ) from error
    finally:
        background.close()
