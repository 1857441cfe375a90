"""One compaction of one topic: reads the previous compacted view and all later entries, twice, and writes the next
view.

Operation: the first pass determines the remaining messages, the second writes them into a new ledger, with at most one
append in flight. Then that ledger is sealed, and one change of the managed ledger info makes it the view. Concurrency:
on the event loop, in slices; a single entry that is large (or large after decompression) in a thread. Failure: after
any error, the old view stays and the new ledger is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pybroker.compaction.messages import opening_cost
from pybroker.compaction.stored_entry import CompactedEntry, format_in
from pybroker.compaction.survivors import Survivors
from pybroker.compaction.view import read_view
from pybroker.errors import LedgerFenced, NotAllowedError, StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun, LedgerStore
from pybroker.managed_ledger.info.managed_ledger_info import CompactedInfo
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.memory.broker_memory import Holding, Memory
from pybroker.model.position import Position
from pybroker.runtime.clock import Clock
from pybroker.runtime.time_slices import BackgroundSlices

READ_ENTRIES = 1000
READ_BYTES = 1024 * 1024
WRITE_BYTES = 256 * 1024
BUFFERS_BYTES = 2 * READ_BYTES + WRITE_BYTES
"""The buffers of reads and writes. The compaction waits for this memory before it begins."""
THREAD_COST_BYTES = 128 * 1024
"""An entry with a larger uncompressed size is decoded in a thread, because it would block the event loop for too long.
"""

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Progress:
    """Progress of one compaction over both passes."""

    read_entries: int = 0
    read_bytes: int = 0
    written_entries: int = 0
    written_bytes: int = 0
    removed_messages: int = 0
    key_count: int = 0
    write_latencies_ms: list[float] = field(default_factory=list)


class Compactor:
    """One compaction of one topic, for a single run."""

    def __init__(
        self,
        ledger: ManagedLedger,
        store: LedgerStore,
        clock: Clock,
        memory: Memory,
        *,
        keeps_messages_without_key: bool,
        read_timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._memory = memory
        self._room = Holding(memory, memory.compaction)
        self._read_timeout_s = read_timeout_s
        self._survivors = Survivors(keeps_messages_without_key=keeps_messages_without_key)
        self.progress = Progress()
        self._slices = BackgroundSlices(clock)
        self._drops = 0  # how often the view had been deleted at the start

    async def run(self, end: Position) -> None:
        """Compact all entries of the topic up to and including `end`, an existing entry. Raises StoreError, also when
        the compacted view is deleted meanwhile, and NotAllowedError if the keys need too much memory.
        """
        try:
            await self._room.wait(self, BUFFERS_BYTES)
            await self._run(end)
        finally:
            self._room.close()

    async def _run(self, end: Position) -> None:
        self._drops = self._ledger.compacted_drops
        before = self._ledger.compacted
        await self._each(before, end, self._survivors.note)
        self.progress.key_count = self._survivors.key_count
        self.progress.removed_messages = self._survivors.removed_messages
        ledger_id = await self._ledger.begin_compacted(self._drops, end)
        try:
            writer = _Writer(self._store, self._clock, ledger_id, self.progress)
            await self._write(before, end, writer)
            summary = await self._store.seal(ledger_id)
            view = CompactedInfo(ledger_id, summary.entry_count, summary.size_bytes, (end.ledger_id, end.entry_id))
            await self._ledger.replace_compacted(before, view)
        except BaseException:
            self._ledger.discard_compacted(ledger_id)
            raise

    async def _write(self, before: CompactedInfo | None, end: Position, writer: _Writer) -> None:
        async for entries in self._read(before, end):
            for entry in entries:
                payload = await self._timed(self._survivors.kept, entry)
                if payload is not None:
                    writer.add(entry.position, payload, entry.message_count)
                    if writer.waiting_bytes >= WRITE_BYTES:
                        await writer.flush()
        await writer.flush()

    async def _each(
        self, before: CompactedInfo | None, end: Position, act: Callable[[Position, bytes], object]
    ) -> None:
        async for entries in self._read(before, end):
            for entry in entries:
                await self._timed(act, entry)

    async def _timed(self, act: Callable[[Position, bytes], _Result], entry: CompactedEntry) -> _Result:
        cost_bytes = opening_cost(entry.payload)
        if cost_bytes >= THREAD_COST_BYTES:
            self._count_room(cost_bytes)
            return await asyncio.to_thread(act, entry.position, entry.payload)
        if self._slices.has_ended():
            await self._slices.next()
        return act(entry.position, entry.payload)

    async def _read(self, before: CompactedInfo | None, end: Position) -> AsyncIterator[list[CompactedEntry]]:
        """Yield all entries up to `end`, in order: the previous view, then the entries since."""
        position = self._ledger.ledgers.first_position
        if before is not None:
            index = 0
            while index < before.entries:
                async with asyncio.timeout(self._read_timeout_s):
                    entries = await read_view(self._store, before, index, READ_ENTRIES, READ_BYTES)
                index += len(entries)
                self._count(entries)
                yield entries
            position = Position(before.horizon[0], before.horizon[1] + 1)
        while (position := self._ledger.ledgers.normalize(position)) <= end:
            async with asyncio.timeout(self._read_timeout_s):
                entries = await self._read_tail(position, end)
            position = Position(position.ledger_id, entries[-1].position.entry_id + 1)
            self._count(entries)
            yield self._without_hidden(entries)

    async def _read_tail(self, position: Position, end: Position) -> list[CompactedEntry]:
        max_entries = READ_ENTRIES
        if position.ledger_id == end.ledger_id:
            max_entries = min(max_entries, end.entry_id + 1 - position.entry_id)
        run = await self._ledger.read(position, max_entries, READ_BYTES)
        return [
            CompactedEntry(Position(run.ledger_id, run.first_entry_id + index), payload, run.message_counts[index])
            for index, payload in enumerate(run.payloads)
        ]

    def _without_hidden(self, entries: list[CompactedEntry]) -> list[CompactedEntry]:
        is_hidden = self._ledger.read_limit.is_hidden
        return [entry for entry in entries if not is_hidden(entry.position)]

    def _count(self, entries: list[CompactedEntry]) -> None:
        if self._ledger.compacted_drops != self._drops:
            raise LedgerFenced(
                f"the compaction of managed ledger {self._ledger.name} was stopped, because the compacted view was deleted "
                "meanwhile"
            )
        self._require_room()
        self.progress.read_entries += len(entries)
        self.progress.read_bytes += sum(len(entry.payload) for entry in entries)

    def _count_room(self, opened_bytes: int) -> None:
        """Count the memory of the compaction while an entry of `opened_bytes` is decoded."""
        # The decoded form of an entry is released before the next one.
        self._room.count(BUFFERS_BYTES + self._survivors.size_bytes + opened_bytes)

    def _require_room(self) -> None:
        self._count_room(THREAD_COST_BYTES)
        noted_bytes, most_bytes = self._survivors.size_bytes, self._memory.compaction.most_bytes
        if noted_bytes > most_bytes:
            raise NotAllowedError(
                f"the compaction needs {noted_bytes >> 20} MiB of memory for {self._survivors.key_count} "
                f"keys, but may use only {most_bytes >> 20} MiB: increase brokerMemoryLimitMB, or delete "
                "unneeded keys by messages without a payload"
            )


class _Writer(AppendListener):
    """Appends to the ledger that becomes the view."""

    def __init__(self, store: LedgerStore, clock: Clock, ledger_id: int, progress: Progress) -> None:
        self._store = store
        self._format = format_in(store)
        self._clock = clock
        self._ledger_id = ledger_id
        self._progress = progress
        self._payloads: list[bytes] = []
        self._message_counts: list[int] = []
        self._written: asyncio.Future[None] | None = None
        self.waiting_bytes = 0

    def add(self, position: Position, payload: bytes, message_count: int) -> None:
        stored = self._format.encode(position, payload)
        self._payloads.append(stored)
        self._message_counts.append(message_count)
        self.waiting_bytes += len(stored)

    async def flush(self) -> None:
        """Return once everything added is durable. Raises StoreError."""
        if not self._payloads:
            return
        progress, started_ms = self._progress, self._clock.monotonic_ms()
        run = AppendRun(
            self,
            self._ledger_id,
            progress.written_entries,
            self._payloads,
            self._message_counts,
            self.waiting_bytes,
            None,
        )
        self._written = asyncio.get_running_loop().create_future()
        self._store.append(run)
        await self._written
        progress.written_entries += len(run.payloads)
        progress.written_bytes += run.size_bytes
        progress.write_latencies_ms.append(self._clock.monotonic_ms() - started_ms)
        self._payloads, self._message_counts, self.waiting_bytes = [], [], 0

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        written = self._written
        if written is None or written.done():  # the waiter was cancelled
            return
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
