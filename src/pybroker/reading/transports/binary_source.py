"""Reading over the binary protocol, which all Pulsar brokers support, including Apache Pulsar.

The protocol reports the first and last entry of a topic, but not its ledgers. This module finds their boundaries by
probing: a reader positioned after the end of a ledger receives the first entry of the next ledger, and a binary search
finds the end. Boundaries of all but the last ledger never change, so they are cached.

Brokers send neither markers nor messages of aborted transactions, so such entries are gaps. If the last entries of a
ledger are missing, the reader checks the ledger again before it reports a loss: ledgers are trimmed as a whole.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pybroker.client.access import Access, AccessRefused
from pybroker.client.background import BackgroundClient
from pybroker.client.client import Client
from pybroker.client.consuming.entry_consumer import Consumer, Subscribing, open_consumer
from pybroker.client.failures import ClientError, ConnectionLost, RequestTimedOut
from pybroker.client.frames import ReceivedEntry
from pybroker.columns.entry_run import EntryRun
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.errors import BrokerError, TopicNotFound
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, Position
from pybroker.model.system_topics import is_system_topic
from pybroker.reading.entry_source import DataLoss, EntrySource, ReadingFailed, TopicMissing
from pybroker.reading.positions import EntryRange, Place, PlannedLedger, TopicPlan
from pybroker.reading.transports.ledger_search import LedgerEnds, find_ledgers
from pybroker.reading.wire_schemas import schema_info
from pybroker.wire.stored_entry import is_checksum_wrong

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RUN_BYTES = 4 * 1024 * 1024
NO_ENTRY_ID = 1 << 32
"""An entry id that is higher than all entry ids of any ledger."""
QUIET_S = 2.0
"""Time without an entry after which the reader requests the position of its cursor."""

Result = TypeVar("Result")


class BinarySource(EntrySource):
    """An entry source over the binary protocol. It connects at its first use."""

    leaves_out_entries = True  # because of markers

    def __init__(self, access: Access, patience_s: float | None = None) -> None:
        """`patience_s` is how long to wait for an entry, or for a restarting broker, in seconds. Default: the operation
        timeout.
        """
        self._access = access
        self._patience_s = access.operation_timeout_s if patience_s is None else patience_s
        self._background: BackgroundClient | None = None
        self._idle: list[Client] = []
        """Idle clients for reads; at most as many as there were nested reads."""
        self._ends: dict[str, LedgerEnds] = {}

    def close(self) -> None:
        self._idle.clear()
        if self._background is not None:
            self._background.close()
            self._background = None

    @property
    def _client(self) -> BackgroundClient:
        if self._background is None or not self._background.is_usable:
            self._idle.clear()
            self._background = BackgroundClient(self._access)
        return self._background

    def _do(self, what: str, work: Coroutine[Any, Any, Result], topic: str = "") -> Result:
        try:
            return self._client.run(work)
        except TopicNotFound as error:
            text = f"{what} over {self._access.service_url}: the topic does not exist ({error})"
            raise TopicMissing(text, topic) from error
        except ReadingFailed:
            raise
        except (ClientError, BrokerError, AccessRefused) as error:
            raise ReadingFailed(f"{what} over {self._access.service_url} failed: {error}") from error

    # --- topics

    def partitions(self, topic: str) -> list[str]:
        name = TopicName.parse(topic)
        found = self._do(f"looking up the partitions of {name}", self._client.client.partitions(name), topic)
        return [str(each) for each in found]

    def topics(self, namespace: str) -> list[str]:
        found = self._do(f"listing the topics of {namespace}", self._client.client.topics(namespace))
        return sorted(topic for topic in found if not is_system_topic(TopicName.parse(topic)))

    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
        name = TopicName.parse(topic).partitioned_name
        found = self._do(f"asking for the schema of {name}", self._client.client.schema(name, version))
        return None if found is None else schema_info(found)

    # --- places

    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        return self._do(f"planning {topic}", self._plan(TopicName.parse(topic), start, end), topic)

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        searching = self._place_at_time(TopicName.parse(topic), publish_time_ms)
        return self._do(f"searching {topic} by time", searching, topic)

    async def _plan(self, topic: TopicName, start: Place | None, end: Place | None) -> TopicPlan:
        client = self._client.client
        async with self._reader(topic, EARLIEST) as reader:
            ends = await reader.ends()
            first = await self._first(reader, ends.last)
        name = str(topic)
        if ends.last is None or first is None:
            # In an empty topic, first and end are the same position. It must be in an existing ledger: callers store
            # it, and with ledger 0 all later entries would count as lost.
            mark = ends.mark_delete
            place = end or start or (Place(0, 0) if mark is None else Place(mark.ledger_id, mark.entry_id + 1))
            lost = () if start is None or start >= place else (_lost(name, start, place, place),)
            return TopicPlan(name, start or place, place, place, (), lost)
        last_end = Place(ends.last.ledger_id, ends.last.entry_id + 1)
        stop = last_end if end is None or end > last_end else end
        begin = first if start is None else start
        lost = (_lost(name, begin, stop, first),) if begin < first and begin < stop else ()
        begin = max(begin, first)

        async def entry_at(position: Position) -> ReceivedEntry:
            async with self._reader(topic, position) as probing:
                return await probing.receive_one(client.access.operation_timeout_s)

        known = self._ends.setdefault(name, LedgerEnds())
        spans = await find_ledgers(begin, stop, ends.last, entry_at, known)
        ledgers = tuple(
            PlannedLedger(
                span.ledger_id,
                span.first_entry_id,
                span.end_entry_id,
                (span.end_entry_id - span.first_entry_id) * span.entry_bytes,
                -1,
                span.ledger_id != ends.last.ledger_id,
            )
            for span in spans
        )
        return TopicPlan(name, start if start is not None else first, stop, first, ledgers, lost)

    async def _first(self, reader: Consumer, last: Position | None) -> Place | None:
        if last is None:
            return None
        entry = await reader.receive_one(self._access.operation_timeout_s)
        return Place(entry.ledger_id, entry.entry_id)

    async def _place_at_time(self, topic: TopicName, publish_time_ms: int) -> Place:
        subscribing = _reading(EARLIEST)
        client = self._client.client
        mover = await open_consumer(client, topic, subscribing)
        try:
            await mover.seek(publish_time_ms=publish_time_ms)
        finally:
            await mover.close()
        # A seek closes the consumers of the cursor; a reader's cursor waits until they return.
        found = await open_consumer(client, topic, subscribing)
        try:
            ends = await found.ends()
        finally:
            await found.close()
        if ends.mark_delete is None:
            raise ClientError(
                f"the broker does not report which position in topic {topic} belongs to a time: start at a position instead "
                "of a time"
            )
        return Place(ends.mark_delete.ledger_id, ends.mark_delete.entry_id + 1)

    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        # Each read has its own connection: its consumer pauses the connection while the caller processes earlier entries. The
        # caller may meanwhile request a plan, a schema or another range (for example earlier chunks of a message).
        background = self._client
        client = self._idle.pop() if self._idle else background.another()
        reading = _RangeReading(client, entries, self._patience_s)
        try:
            while (run := self._do(f"reading {_named(entries)}", reading.next_run(), entries.topic)) is not None:
                yield run
        finally:
            if background.is_usable:
                background.run(reading.close())
                self._idle.append(client)

    @asynccontextmanager
    async def _reader(self, topic: TopicName, start: Position) -> AsyncIterator[Consumer]:
        consumer = await open_consumer(self._client.client, topic, _reading(start))
        try:
            yield consumer
        finally:
            await consumer.close()

    # --- progress

    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        what = f"seeking the subscription {subscription} of {topic}"
        self._do(what, self._show_progress(TopicName.parse(topic), subscription, place), topic)

    async def _show_progress(self, topic: TopicName, subscription: str, place: Place) -> None:
        consumer = await open_consumer(self._client.client, topic, Subscribing(subscription))
        try:
            stands = (await consumer.ends()).mark_delete
            if stands is not None and (stands.ledger_id, stands.entry_id + 1) >= place:
                return
            if place.entry_id > 0:
                await consumer.acknowledge_up_to(Position(place.ledger_id, place.entry_id - 1))
            elif place.ledger_id > 0:
                # The last entry id of the previous ledger is unknown here.
                await consumer.seek(Position(place.ledger_id, 0))
        finally:
            await consumer.close()


class _RangeReading:
    def __init__(self, client: Client, entries: EntryRange, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._entries = entries
        self._topic = TopicName.parse(entries.topic)
        self._next = entries.first_entry_id
        self._end = entries.end_entry_id  # readers receive no entry from here to the end of the range
        self._consumer: Consumer | None = None
        self._waiting: list[ReceivedEntry] = []
        self._is_done = entries.first_entry_id >= entries.end_entry_id

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
            self._consumer = None

    async def next_run(self) -> EntryRun | None:
        while not self._is_done or self._waiting:
            if not self._waiting:
                await self._receive()
            elif (run := self._take_run()) is not None:
                return run
        return None

    async def _receive(self) -> None:
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            try:
                if self._consumer is None:
                    self._consumer = await self._attach()
                received = [] if self._next >= self._end else await self._received(self._consumer)
                break
            except ConnectionLost:
                if time.monotonic() > give_up_at:
                    raise
                await self.close()
        for entry in received:
            if (entry.ledger_id, entry.entry_id) < (self._entries.ledger_id, self._next):
                continue  # some brokers treat the start as exclusive and send earlier entries, or repeat entries
            if (entry.ledger_id, entry.entry_id) >= (self._entries.ledger_id, self._end):
                await self._ended_before(entry)
                return
            self._waiting.append(entry)
            self._next = entry.entry_id + 1
        if self._next >= self._end:
            self._is_done = True

    async def _received(self, consumer: Consumer) -> list[ReceivedEntry]:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return await consumer.receive(min(QUIET_S, self._timeout_s))
            except RequestTimedOut:
                if await self._is_passed(consumer):
                    self._is_done = True
                    return []
                if time.monotonic() > deadline:
                    raise RequestTimedOut(
                        f"entry {self._entries.ledger_id}:{self._next} did not arrive within "
                        f"{self._timeout_s:g} s, although the broker reports that it exists: the broker is "
                        "slow. No entry was skipped; try again"
                    ) from None

    async def _is_passed(self, consumer: Consumer) -> bool:
        """Return whether the cursor is after the range. The broker acknowledges the markers that it reaches."""
        if self._next > 0:
            await consumer.acknowledge_up_to(Position(self._entries.ledger_id, self._next - 1))
        stands = (await consumer.ends()).mark_delete
        return stands is not None and stands >= (self._entries.ledger_id, self._end - 1)

    async def _attach(self) -> Consumer:
        consumer = await open_consumer(
            self._client, self._topic, _reading(Position(self._entries.ledger_id, self._next))
        )
        last = (await consumer.ends()).last
        if last is None or last < (self._entries.ledger_id, self._entries.end_entry_id - 1):
            if await self._is_stored_to_its_end():
                self._end = self._next
                if last is not None and last.ledger_id == self._entries.ledger_id:
                    self._end = max(self._end, last.entry_id + 1)
                return consumer
            await consumer.close()
            found = "no entry" if last is None else f"entries only up to {last.ledger_id}:{last.entry_id}"
            raise DataLoss(
                f"{_named(self._entries)} cannot be read: the topic has {found}. The topic was truncated, or deleted and created "
                "again"
            )
        return consumer

    async def _is_stored_to_its_end(self) -> bool:
        """Return whether the last entry of the range is stored, although GET_LAST_MESSAGE_ID returned an earlier entry,
        because the range ends with markers or aborted messages.

        Opens a cursor after all entries of the ledger: the broker moves its mark-delete position to the last stored
        entry of the ledger. The consumer requests no entries, so the cursor stays there.
        """
        ledger_id = self._entries.ledger_id
        behind = Subscribing(_reader_name(), start=Position(ledger_id, NO_ENTRY_ID), is_from_earliest=False)
        consumer = await open_consumer(self._client, self._topic, behind)
        try:
            stands = (await consumer.ends()).mark_delete
        finally:
            await consumer.close()
        # Apache Pulsar does not adjust such a position, except after the end of the topic: then it returns the
        # requested one.
        return (
            stands is not None
            and stands.ledger_id == ledger_id
            and self._entries.end_entry_id <= stands.entry_id + 1 < NO_ENTRY_ID
        )

    async def _ended_before(self, beyond: ReceivedEntry) -> None:
        """Handle `beyond`, an entry after the range that arrived before the last entry of the range. Raises DataLoss
        unless the missing entries are markers or aborted messages.
        """
        self._is_done = True
        if self._next >= self._end:
            return
        if beyond.ledger_id == self._entries.ledger_id:
            return  # the ledger exists, so the entries in between are markers
        await self.close()
        if await self._is_stored_to_its_end():
            return
        start = Position(self._entries.ledger_id, 0)
        consumer = await open_consumer(self._client, self._topic, _reading(start))
        try:
            found = await consumer.receive_one(self._timeout_s)
        finally:
            await consumer.close()
        if found.ledger_id != self._entries.ledger_id:
            raise DataLoss(
                f"{_named(self._entries)} cannot be read: entries from {self._entries.ledger_id}:{self._next} on are lost. The "
                f"first entry that still exists is {found.ledger_id}:{found.entry_id}"
            )

    def _take_run(self) -> EntryRun | None:
        first = self._waiting[0].entry_id
        count = 0
        size_bytes = 0
        for entry in self._waiting:
            if entry.entry_id != first + count or (count and size_bytes + len(entry.data) > RUN_BYTES):
                break
            _check(entry, self._entries.topic)
            count += 1
            size_bytes += len(entry.data)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        lengths = np.fromiter((len(entry.data) for entry in taken), np.int64, count)
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)[:-1]))
        return EntryRun(self._entries.ledger_id, first, b"".join([entry.data for entry in taken]), starts, lengths)


def _check(entry: ReceivedEntry, topic: str) -> None:
    """Verify the checksum, if the producer set one. Brokers refuse entries with a wrong checksum, so the entry was
    damaged later.
    """
    if is_checksum_wrong(entry.data):
        raise ClientError(
            f"entry {entry.ledger_id}:{entry.entry_id} of topic {topic} arrived with a wrong checksum: read it again"
        )


def _reading(start: Position) -> Subscribing:
    return Subscribing(_reader_name(), start=start)


def _reader_name() -> str:
    return f"reader-{secrets.token_hex(8)}"


def _named(entries: EntryRange) -> str:
    return (
        f"{entries.ledger_id}:{entries.first_entry_id} to {entries.ledger_id}:{entries.end_entry_id} of {entries.topic}"
    )


def _lost(topic: str, asked: Place, asked_end: Place, first: Place) -> str:
    return (
        f"{topic}: requested {asked.ledger_id}:{asked.entry_id} to {asked_end.ledger_id}:{asked_end.entry_id}, "
        f"the first available entry is {first.ledger_id}:{first.entry_id}"
    )
