"""The recovery of a ledger whose writer has ended or must be stopped: fence the ledger, find its last entry, close it.

1. The state in the metadata changes from OPEN to IN_RECOVERY, so that the writer cannot change the ensemble any more.
2. Bookies are fenced until no entry can be confirmed any more. Their last entries show up to which entry all are
   confirmed.
3. Later entries are searched one by one, a few ahead, and twice as many after each that is found: mostly one entry or
   none is found, and a broker that takes over many topics must not load the bookies with needless reads. Each found
   entry is written back to its write set.
4. The state in the metadata changes to CLOSED. Ensembles that changed during the recovery are stored with this change,
   not earlier.

Several clients may recover a ledger at the same time: the first change to CLOSED decides for all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import NamedTuple

from pybroker.bookkeeper.bookie_connection import ReadResult
from pybroker.bookkeeper.bookie_pool import BookiePool
from pybroker.bookkeeper.errors import (
    DAMAGED,
    OK,
    DamagedEntry,
    EntryUnavailable,
    MetadataConflict,
    NoSuchEntry,
    NoSuchLedger,
    WrongKey,
)
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from pybroker.bookkeeper.ledger_reader import LedgerReader
from pybroker.bookkeeper.ledger_writer import EnsembleRecorder, LedgerWriter
from pybroker.bookkeeper.metadata_store import LedgerMetadataStore
from pybroker.bookkeeper.metadata_updates import VersionedMetadata, read_metadata, update_metadata
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.bookkeeper.protocol.entry_format import DigestType, Entry, EntryFormat
from pybroker.bookkeeper.protocol.frames import FENCE, HIGH_PRIORITY, LAST_ENTRY
from pybroker.bookkeeper.quorums import EntrySearch, FenceCoverage, Verdict
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

_FENCED_READ = FENCE | HIGH_PRIORITY
FIRST_READS = 2
"""Entries that are searched at first: the last entry is mostly unconfirmed, and the one after it is missing."""


class _Found(NamedTuple):
    entry: Entry
    stored: bytes


class _EnsemblesInMemory(EnsembleRecorder):
    """Ensembles of a recovery, which are stored in the metadata when the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.metadata = metadata

    async def record(self, first_entry_id: int, ensemble: tuple[str, ...]) -> None:
        self.metadata = self.metadata.with_ensemble(first_entry_id, ensemble)


class LedgerRecovery:
    """One recovery of one ledger; call `run`."""

    def __init__(
        self,
        ledger_id: int,
        password: bytes,
        store: LedgerMetadataStore,
        pool: BookiePool,
        options: BookKeeperOptions,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self._format = EntryFormat(ledger_id, DigestType.CRC32C, password)
        self._ledger_id = ledger_id
        self._password = password
        self._store = store
        self._pool = pool
        self._options = options
        self._clock = clock
        self._tasks = tasks

    async def run(self) -> VersionedMetadata:
        """Recover the ledger, and return its metadata, which is then closed.

        Raises EntryUnavailable while too few bookies answer; NoSuchLedger, WrongKey, MetadataUnknown, InvalidMetadata;
        and errors that end a writer, such as NotEnoughBookies. The recovery can be repeated.
        """
        while True:
            found = await read_metadata(self._store, self._ledger_id)
            if found.metadata.password != self._password:
                raise WrongKey(f"The password of ledger {self._ledger_id} is wrong.")
            self._format = EntryFormat(self._ledger_id, found.metadata.digest_type, self._password)
            known = await self._mark(found)
            if known.metadata.state is LedgerState.CLOSED:
                return known
            try:
                return await self._recover(known)
            except MetadataConflict:
                logs.info("ledger.recovery_restarted", ledger=self._ledger_id)

    async def _mark(self, known: VersionedMetadata) -> VersionedMetadata:
        def change(found: LedgerMetadata) -> LedgerMetadata | None:
            return found.in_recovery() if found.state is LedgerState.OPEN else None

        return await update_metadata(self._store, self._ledger_id, known, change, self._options, self._clock)

    async def _recover(self, known: VersionedMetadata) -> VersionedMetadata:
        metadata = known.metadata
        last_confirmed = await self._fence(metadata)
        recorder = _EnsemblesInMemory(metadata)
        start = metadata.last_segment.first_entry_id
        # The writer's first entry is the entry after the last confirmed one, which may be inside of the segment.
        position = replace(metadata, segments=(replace(metadata.last_segment, first_entry_id=last_confirmed + 1),))
        writer = LedgerWriter(self._format, position, self._pool, recorder, self._options, self._tasks)
        last, length_bytes = last_confirmed, None
        reading: deque[tuple[list[str], list[asyncio.Future[ReadResult]]]] = deque()
        next_entry_id = last_confirmed + 1
        reads_ahead = min(FIRST_READS, self._options.max_concurrent_recovery_reads)
        while True:
            while len(reading) < reads_ahead:
                reading.append(self._begin_search(metadata, next_entry_id))
                next_entry_id += 1
            found = await self._search(metadata, last + 1, *reading.popleft())
            if found is None:
                break
            reads_ahead = min(2 * reads_ahead, self._options.max_concurrent_recovery_reads)
            while writer.refusal() is not None and writer.error is None:
                await writer.drained()
            if writer.error is not None:
                raise writer.error
            writer.append_recovered(found.entry, found.stored)
            last, length_bytes = last + 1, found.entry.length_bytes
        await writer.drained()
        if writer.error is not None:
            raise writer.error
        assert writer.last_confirmed == last, "all entries found were written back"
        if length_bytes is None:
            length_bytes = await self._length_up_to(metadata, last)
        logs.info("ledger.recovered", ledger=self._ledger_id, last_entry=last, recovered=last - last_confirmed)
        assert last >= start - 1
        return await self._close(known, recorder.metadata.closed(last, length_bytes))

    async def _fence(self, metadata: LedgerMetadata) -> int:
        """Fence the bookies of the last ensemble. Return the last entry that is known to be confirmed."""
        coverage = FenceCoverage(metadata.quorums)
        last_confirmed = metadata.last_segment.first_entry_id - 1
        ensemble = metadata.last_segment.ensemble
        waiting = {self._fenced_read(bookie_id, LAST_ENTRY): index for index, bookie_id in enumerate(ensemble)}
        while waiting and not coverage.is_covered():
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                index = waiting.pop(each)
                code, body = each.result()
                if code == OK:
                    try:
                        last_confirmed = max(last_confirmed, self._format.unpack(body, None).last_confirmed)
                    except DamagedEntry:
                        continue  # Not counted: the bookie is fenced, but its last confirmed entry is unreadable.
                elif code == WrongKey.code:
                    raise WrongKey(f"The password of ledger {self._ledger_id} is wrong (bookie {ensemble[index]}).")
                elif code not in {NoSuchEntry.code, NoSuchLedger.code}:
                    continue
                coverage.fenced(index)
        if not coverage.is_covered():
            raise EntryUnavailable(
                f"Ledger {self._ledger_id} cannot be recovered now, because too few of its bookies "
                f"{', '.join(ensemble)} respond."
            )
        return last_confirmed

    def _fenced_read(self, bookie_id: str, entry_id: int) -> asyncio.Future[ReadResult]:
        connection = self._pool.connection(bookie_id)
        return connection.read(self._ledger_id, entry_id, _FENCED_READ, self._format.master_key)

    def _begin_search(
        self, metadata: LedgerMetadata, entry_id: int
    ) -> tuple[list[str], list[asyncio.Future[ReadResult]]]:
        ensemble = metadata.last_segment.ensemble
        write_set = metadata.quorums.write_sets()[entry_id % metadata.quorums.ensemble_size]
        replicas = [ensemble[index] for index in write_set]
        return replicas, [self._fenced_read(each, entry_id) for each in replicas]

    async def _search(
        self, metadata: LedgerMetadata, entry_id: int, replicas: list[str], reads: list[asyncio.Future[ReadResult]]
    ) -> _Found | None:
        """Return the entry if it is part of the ledger; None if the ledger ends in front of it.

        Raises EntryUnavailable.
        """
        search = EntrySearch(metadata.quorums)
        waiting = set(reads)
        while search.verdict is Verdict.OPEN:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                code, body = each.result()
                if code == OK:
                    try:
                        return _Found(self._format.unpack(body, entry_id), body)
                    except DamagedEntry:
                        code = DAMAGED
                search.answered(code)
        if search.verdict is Verdict.MISSING:
            return None
        raise EntryUnavailable(
            f"Ledger {self._ledger_id} cannot be recovered now, because too few of the bookies "
            f"{', '.join(replicas)} report whether entry {entry_id} exists."
        )

    async def _length_up_to(self, metadata: LedgerMetadata, entry_id: int) -> int:
        if entry_id < 0:
            return 0
        reader = LedgerReader(self._format, metadata, self._pool, self._options)
        return (await reader.read_entry(entry_id)).length_bytes

    async def _close(self, known: VersionedMetadata, closed: LedgerMetadata) -> VersionedMetadata:
        def change(found: LedgerMetadata) -> LedgerMetadata | None:
            if found.state is LedgerState.CLOSED:
                return None  # Another recovery was faster, or the answer to this change was lost.
            if found.segments != known.metadata.segments:
                raise MetadataConflict(f"Another client changed the ensembles of ledger {self._ledger_id}.")
            return replace(
                found,
                segments=closed.segments,
                state=LedgerState.CLOSED,
                last_entry_id=closed.last_entry_id,
                length_bytes=closed.length_bytes,
            )

        return await update_metadata(self._store, self._ledger_id, known, change, self._options, self._clock)
