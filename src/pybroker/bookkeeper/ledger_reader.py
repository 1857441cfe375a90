"""Reads of a ledger: single entries with fallback to other replicas, batches, and read-ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from pybroker.bookkeeper.bookie_connection import ReadResult
from pybroker.bookkeeper.bookie_pool import BookiePool
from pybroker.bookkeeper.errors import (
    DAMAGED,
    OK,
    UNREACHABLE,
    BookKeeperError,
    DamagedEntry,
    EntryUnavailable,
    InvalidAnswer,
    NoSuchEntry,
    NoSuchLedger,
    error_of,
)
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.bookkeeper.protocol.entry_format import Entry, EntryFormat
from pybroker.bookkeeper.protocol.frames import LAST_ENTRY, batch_entries

_MISSING = frozenset({NoSuchEntry.code, NoSuchLedger.code})
_FIRST_GUESS_BYTES = 64 * 1024
"""The assumed size of an entry before the first one is received: a low guess reads large entries in vain."""
_ENTRY_HEAD_BYTES = 64
"""Upper bound of the bytes in front of the payload of an entry in a batch."""


class LedgerReader:
    """Reader of one ledger up to `last_readable`: the last entry of a closed ledger, or the last entry of an open
    ledger that is known to be confirmed.
    """

    def __init__(
        self, format_: EntryFormat, metadata: LedgerMetadata, pool: BookiePool, options: BookKeeperOptions
    ) -> None:
        self.ledger_id = format_.ledger_id
        self.metadata = metadata
        self.last_readable = -1
        self._format = format_
        self._pool = pool
        self._options = options
        self._without_batches: set[str] = set()
        self._average_bytes = _FIRST_GUESS_BYTES
        self.renewed(metadata)

    def renewed(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        if metadata.state is LedgerState.CLOSED:
            self.last_readable = metadata.last_entry_id
        else:
            self.last_readable = max(self.last_readable, metadata.last_segment.first_entry_id - 1)

    def confirmed(self, entry_id: int) -> None:
        """Make entries up to `entry_id` readable, because the writer of the ledger has confirmed them."""
        if self.metadata.state is not LedgerState.CLOSED:
            self.last_readable = max(self.last_readable, entry_id)

    async def read_last_confirmed(self) -> int:
        """Ask the bookies for the last confirmed entry of an open ledger, and return its id; -1 if there is none. The
        writer may have confirmed later entries. For a closed ledger, return its last entry. Raises EntryUnavailable if
        no bookie responds.
        """
        if self.metadata.state is LedgerState.CLOSED:
            return self.last_readable
        reads = [
            self._pool.connection(each).read(self.ledger_id, LAST_ENTRY) for each in self.metadata.last_segment.ensemble
        ]
        heard = False
        for read in reads:
            code, body = await read
            if code == OK:
                try:
                    self.confirmed(self._format.unpack(body, None).last_confirmed)
                except DamagedEntry:
                    continue
            heard = heard or code == OK or code in _MISSING
        if not heard:
            raise EntryUnavailable(
                f"The last entry of ledger {self.ledger_id} is unknown, because none of its bookies responds."
            )
        return self.last_readable

    async def read(self, first_entry_id: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Return entries from `first_entry_id` on: at least one, at most `max_entries`, and about `max_bytes` of
        payload. The result ends in front of an entry that cannot be read.

        Raises NoSuchEntry (also after `last_readable`), DamagedEntry (no replica has valid bytes), EntryUnavailable.
        """
        last = min(first_entry_id + max_entries - 1, self.last_readable)
        if not 0 <= first_entry_id <= last:
            raise NoSuchEntry(
                f"Ledger {self.ledger_id} has no entry {first_entry_id}: its last entry is {self.last_readable}."
            )
        quorums = self.metadata.quorums
        if self._options.use_batch_reads and first_entry_id < last and quorums.write_quorum == quorums.ensemble_size:
            entries = await self._read_batch(first_entry_id, last, max_bytes)
            if entries:
                return entries
        return await self._read_singly(first_entry_id, last, max_bytes)

    async def read_entry(self, entry_id: int) -> Entry:
        """Return one entry, which may be after `last_readable`. Raises NoSuchEntry, DamagedEntry, EntryUnavailable."""
        return await self._finish(entry_id, *self._begin(entry_id))

    async def entries(self, first_entry_id: int, max_bytes: int) -> AsyncIterator[Entry]:
        """Yield all entries from `first_entry_id` to `last_readable`. While the caller processes entries, the next ones
        are read: about `max_bytes` of payload at once. Raises an ExceptionGroup with the error of a failed `read`.
        """
        next_entry_id = first_entry_id
        async with asyncio.TaskGroup() as group:
            ahead = None
            try:
                while next_entry_id <= self.last_readable:
                    read = ahead or group.create_task(
                        self.read(next_entry_id, self._options.max_batch_entries, max_bytes)
                    )
                    entries, ahead = await read, None
                    next_entry_id += len(entries)
                    if next_entry_id <= self.last_readable:
                        ahead = group.create_task(self.read(next_entry_id, self._options.max_batch_entries, max_bytes))
                    for entry in entries:
                        yield entry
            finally:
                if ahead is not None:
                    ahead.cancel()

    def _replicas(self, entry_id: int) -> list[str]:
        ensemble = self.metadata.segment_of(entry_id).ensemble
        size, count = len(ensemble), self.metadata.quorums.write_quorum
        return self._pool.in_order_of_health([ensemble[(entry_id + i) % size] for i in range(count)])

    def _begin(self, entry_id: int) -> tuple[list[str], asyncio.Future[ReadResult]]:
        replicas = self._replicas(entry_id)
        return replicas, self._pool.connection(replicas[0]).read(self.ledger_id, entry_id)

    async def _finish(self, entry_id: int, replicas: list[str], read: asyncio.Future[ReadResult]) -> Entry:
        """Await the first read, and ask the other replicas if it has no valid entry."""
        codes: list[int] = []
        for number, bookie_id in enumerate(replicas):
            if number > 0:
                read = self._pool.connection(bookie_id).read(self.ledger_id, entry_id)
            code, body = await read
            if code == OK:
                try:
                    entry = self._format.unpack(body, entry_id)
                except DamagedEntry:
                    code = DAMAGED
                else:
                    self._pool.works(bookie_id)
                    return entry
            codes.append(code)
        raise self._failure(entry_id, replicas, codes)

    def _failure(self, entry_id: int, replicas: list[str], codes: list[int]) -> BookKeeperError:
        name = f"Entry {entry_id} of ledger {self.ledger_id}"
        if all(code in _MISSING for code in codes):
            return NoSuchEntry(f"{name} does not exist on its bookies {', '.join(replicas)}.")
        texts = ", ".join(
            f"{each}: {type(error_of(code, '')).__name__}" for each, code in zip(replicas, codes, strict=True)
        )
        if DAMAGED in codes and UNREACHABLE not in codes:
            return DamagedEntry(f"{name} has no valid replica ({texts}).")
        return EntryUnavailable(f"{name} cannot be read now ({texts}).")

    async def _read_singly(self, first_entry_id: int, last: int, max_bytes: int) -> list[Entry]:
        """Read with several requests in flight, as many as their estimated size allows."""
        entries: list[Entry] = []
        reading: deque[tuple[list[str], asyncio.Future[ReadResult]]] = deque()
        received_bytes, next_entry_id = 0, first_entry_id
        while True:
            if entries:
                self._average_bytes = received_bytes // len(entries)
            while (
                next_entry_id <= last
                and len(reading) < self._options.max_concurrent_reads
                and (not reading or received_bytes + (len(reading) + 1) * self._average_bytes <= max_bytes)
            ):
                reading.append(self._begin(next_entry_id))
                next_entry_id += 1
            if not reading:
                return entries
            try:
                entry = await self._finish(first_entry_id + len(entries), *reading.popleft())
            except BookKeeperError:
                if not entries:
                    raise
                return entries
            entries.append(entry)
            received_bytes += len(entry.payload)
            if received_bytes >= max_bytes:
                return entries

    async def _read_batch(self, first_entry_id: int, last: int, max_bytes: int) -> list[Entry]:
        """Read a batch from one bookie. Return an empty list if the first entry must be read singly."""
        segments = self.metadata.segments
        behind = next((each.first_entry_id for each in segments if each.first_entry_id > first_entry_id), last + 1)
        replicas = [each for each in self._replicas(first_entry_id) if each not in self._without_batches]
        if not replicas:
            return []
        count = min(last + 1, behind) - first_entry_id
        options = self._options
        code, body = await self._pool.connection(replicas[0]).batch_read(
            self.ledger_id,
            first_entry_id,
            min(count, options.max_batch_entries),
            min(max_bytes + _ENTRY_HEAD_BYTES, options.max_batch_bytes),
        )
        if code != OK:
            if code not in _MISSING:
                self._without_batches.add(replicas[0])
            return []
        entries: list[Entry] = []
        try:
            for stored in batch_entries(body)[:count]:
                entries.append(self._format.unpack(stored, first_entry_id + len(entries)))
        except (DamagedEntry, InvalidAnswer):
            pass  # The entries before it are valid; it is read again from all replicas.
        if entries:
            self._pool.works(replicas[0])
        return entries
