"""At-least-once delivery: all rows of a task are stored when `finish` returns.

Independent of Spark. An event loop in a background thread sends entries while the task encodes the next rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from pybroker.client.access import AccessRefused
from pybroker.client.background import BackgroundClient
from pybroker.client.client import Client
from pybroker.client.failures import ClientError
from pybroker.client.producing.entry_producer import EntryId, Producer, ProducerSettings, open_producer
from pybroker.client.producing.packing import PackedEntry, Packing, only_message, pack_large
from pybroker.columns.packed_columns import MessageColumns
from pybroker.columns.packer import (
    METADATA_ALLOWANCE_BYTES,
    BatchLimits,
    EntryMaker,
    RowBatch,
    grouped_by_key,
    row_batches,
)
from pybroker.columns.partition_routing import partitions_of
from pybroker.columns.values.encoding.value_encoder import value_encoder
from pybroker.columns.values.value_schema import ValueEncoder
from pybroker.errors import BrokerError, InvalidTopicName
from pybroker.model.names import TopicName
from pybroker.model.txn_id import TxnId
from pybroker.reading.wire_schemas import schema_info, topic_schema
from pybroker.spark.writer.sink_options import MURMUR3, WriteOptions
from pybroker.spark.writer.sink_rows import by_topic, messages, payload_fields, split

PENDING_BYTES = 64 * 1024 * 1024
"""Limit of unanswered bytes, over all partitions of a topic."""
LEAST_PENDING_BYTES = 1024 * 1024
MAX_OPEN_PARTITIONS = 4096
"""Limit per task. Each partition has a producer on a broker."""


Result = TypeVar("Result")


class WriteFailed(Exception):
    """Rows could not be sent. The text gives the reason and the topic, and never contains a secret."""


@dataclass
class Written:
    """Counters of the rows that one task has written."""

    rows: int = 0
    entries: int = 0
    skipped_rows: int = 0
    """Rows that an earlier attempt has already stored."""
    doubled_rows: int = 0
    """Upper bound of rows that an earlier attempt has also stored, in another order or in another task."""
    topics: list[str] = field(default_factory=list)


@dataclass
class Destination:
    """A topic to write to, with its partitions and schema."""

    name: TopicName
    partitions: list[TopicName]
    encoder: ValueEncoder
    in_turn: int
    """The partition of the next rows without a key."""


class PartitionSender:
    """Sends row batches to one partition, at least once, under a producer name that the broker assigns."""

    def __init__(self, producer: Producer, options: WriteOptions, txn: TxnId | None = None) -> None:
        """`txn`: the transaction of all entries, which already contains the partition as a participant."""
        self.producer = producer
        self.next_sequence_id = 0
        self._txn = txn
        self._failure: BaseException | None = None
        self._maker = EntryMaker(producer.name, options.compression, producer.schema_version, txn)

    async def send(self, batches: Sequence[RowBatch], written: Written) -> None:
        """Send `batches` after all earlier ones, and count their rows and entries in `written`. Returns when the producer
        has capacity for more.
        """
        now_ms = int(time.time() * 1000)
        for batch in batches:
            for receipt in await self.send_entries(batch, self.next_sequence_id, now_ms, written):
                receipt.add_done_callback(self._answered)
            self.next_sequence_id += batch.message_count
            written.rows += batch.message_count

    async def send_entries(
        self, batch: RowBatch, sequence_id: int, now_ms: int, written: Written
    ) -> list[asyncio.Future[EntryId]]:
        """Send `batch` as one entry. A row that is too large for an entry is sent in chunks, one entry for each. Add the
        entries to the count in `written`. Return one future for each entry, which completes when the entry is stored.
        """
        receipts = []
        for entry in self._entries(batch, sequence_id, now_ms):
            receipts.append(
                await self.producer.send(
                    entry.data,
                    entry.sequence_id,
                    highest_sequence_id=entry.highest_sequence_id,
                    message_count=entry.message_count,
                    is_chunk=entry.is_chunk,
                    txn=self._txn,
                )
            )
            written.entries += 1
        return receipts

    def _entries(self, batch: RowBatch, sequence_id: int, now_ms: int) -> Iterable[PackedEntry]:
        producer = self.producer
        if len(batch.payload) <= producer.max_message_bytes - METADATA_ALLOWANCE_BYTES:
            data = self._maker.entry(batch, sequence_id, now_ms)
            return [PackedEntry(data, sequence_id, sequence_id + batch.message_count - 1, batch.message_count)]
        message = only_message(batch.payload)
        packing = Packing(producer.name, self._maker.compression, producer.schema_version)
        return pack_large(packing, message, sequence_id, now_ms, producer.max_message_bytes, self._txn)

    def _answered(self, receipt: asyncio.Future[EntryId]) -> None:
        """Record the first failure of an entry. (The producer does not report the refusal of an entry in a
        transaction.)
        """
        failure = None if receipt.cancelled() else receipt.exception()
        if failure is not None and self._failure is None:
            self._failure = failure

    async def finish(self, written: Written) -> None:
        await self.producer.flush()
        await asyncio.sleep(0)  # callbacks of the last receipts run
        if self._failure is not None:
            raise self._failure
        await self.producer.close()


class TopicWriter:
    """The writer of one task: `write` for each record batch, `finish` once, `close` in any case."""

    def __init__(self, options: WriteOptions, task: int) -> None:
        """`task` is the number of the Spark task. It selects the partition for rows without a key."""
        self._options = options
        self._task = task
        self._background = BackgroundClient(options.access)
        self._destinations: dict[str, Destination] = {}
        self._senders: dict[TopicName, PartitionSender] = {}
        self.written = Written()

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        for topic, rows in by_topic(batch, self._options.topic):
            destination = self._destination(topic, batch.schema)
            encoded = messages(rows, destination.encoder)
            partitions = partitions_of(
                encoded.keys,
                len(encoded),
                len(destination.partitions),
                destination.in_turn,
                is_murmur=self._options.hashing == MURMUR3,
            )
            destination.in_turn += 1
            for partition, part in split(encoded, partitions).items():
                self._send(destination, destination.partitions[partition], part)

    def finish(self) -> Written:
        self.written.topics = sorted(self._destinations)
        for name, sender in self._senders.items():
            self._do(f"writing to {name}", sender.finish(self.written))
        return self.written

    def close(self) -> None:
        self._background.close()

    def _send(self, destination: Destination, partition: TopicName, rows: MessageColumns) -> None:
        sender = self._senders.get(partition)
        if sender is None:
            if len(self._senders) >= MAX_OPEN_PARTITIONS:
                raise WriteFailed(
                    f"one task writes to more than {MAX_OPEN_PARTITIONS} topics and partitions: "
                    "repartition the rows by topic before they are written"
                )
            sender = self._do(f"writing to {partition}", self._open(destination, partition))
            self._senders[partition] = sender
        limits = BatchLimits(
            self._options.batch_messages,
            self._options.batch_bytes,
            sender.producer.max_message_bytes - METADATA_ALLOWANCE_BYTES,
            self._options.batches_by_key,
        )
        if limits.by_key:
            rows = grouped_by_key(rows)
        batches = list(row_batches(rows, limits, sender.next_sequence_id))
        self._do(f"writing to {partition}", sender.send(batches, self.written))

    async def _open(self, destination: Destination, partition: TopicName) -> PartitionSender:
        return PartitionSender(await self.open_producer(destination, partition, ""), self._options)

    async def open_producer(
        self, destination: Destination, partition: TopicName, name: str, *, resends: bool = True
    ) -> Producer:
        """Open a producer with the given name, or with a name that the broker assigns if `name` is empty. Without
        `resends`, a lost connection makes unanswered entries fail instead of sending them again.
        """
        settings = ProducerSettings(
            name=name,
            schema=topic_schema(destination.encoder.schema, destination.name.local_name),
            max_pending_bytes=max(LEAST_PENDING_BYTES, PENDING_BYTES // len(destination.partitions)),
            send_timeout_s=self._options.send_timeout_s,
            busy_patience_s=self._options.send_timeout_s if name else 0,
            resends=resends,
        )
        return await open_producer(self.client, partition, settings)

    @property
    def client(self) -> Client:
        return self._background.client

    def _destination(self, topic: str, schema: pa.Schema) -> Destination:
        found = self._destinations.get(topic)
        if found is None:
            fields = payload_fields(schema, self._options.topic)
            try:
                name = TopicName.parse(topic)
            except InvalidTopicName as error:
                raise WriteFailed(f"the column __topic contains an invalid topic name: {error}") from error
            found = self._do(f"looking up {name}", self._look_up(name, fields))
            self._destinations[topic] = found
        return found

    async def _look_up(self, name: TopicName, fields: list[pa.Field]) -> Destination:
        partitions = await self.client.partitions(name, may_create=True)
        existing = await self.client.schema(name.partitioned_name)
        info = None if existing is None else schema_info(existing)
        try:
            encoder = value_encoder(fields, info, new=self._options.schema_type, name=_record_name(name))  # type: ignore[arg-type]
        except ValueError as error:
            raise WriteFailed(f"the DataFrame cannot be written to topic {name}: {error}") from error
        return Destination(name, partitions, encoder, self._task)

    def _do(self, operation: str, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._background.run(work)
        except (ClientError, BrokerError, AccessRefused) as error:
            raise WriteFailed(f"{operation} over {self._options.access.service_url} failed: {error}") from error


def _record_name(name: TopicName) -> str:
    text = "".join(each if each.isascii() and each.isalnum() else "_" for each in name.partitioned_name.local_name)
    return text if text[:1].isalpha() else f"t_{text}"
