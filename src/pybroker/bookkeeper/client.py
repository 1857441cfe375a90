"""The BookKeeper client: creates, opens, recovers, closes and deletes ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from pybroker.bookkeeper.bookie_choice import Chance
from pybroker.bookkeeper.bookie_connection import OpenTransport
from pybroker.bookkeeper.bookie_pool import BookiePool, open_tcp
from pybroker.bookkeeper.errors import (
    BookKeeperError,
    InvalidMetadata,
    LedgerClosed,
    LedgerExists,
    MetadataUnknown,
    NoSuchLedger,
    WrongKey,
)
from pybroker.bookkeeper.inspection.copies import EntryCopies, read_copies
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from pybroker.bookkeeper.ledger_reader import LedgerReader
from pybroker.bookkeeper.ledger_recovery import LedgerRecovery
from pybroker.bookkeeper.ledger_writer import AppendListener, LedgerWriter, StoredEnsembles
from pybroker.bookkeeper.metadata_store import BookieRegistry, LedgerMetadataStore
from pybroker.bookkeeper.metadata_updates import VersionedMetadata, read_metadata, update_metadata
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.bookkeeper.protocol.entry_format import DigestType, EntryFormat
from pybroker.bookkeeper.protocol.messages_v3 import BookieSpace
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

_TOKEN_BITS = 62
_METADATA_READS_AT_ONCE = 100


class Randomness(Chance, Protocol):
    """A source of randomness, such as `random.Random`."""

    def getrandbits(self, k: int, /) -> int: ...


class BookKeeperClient:
    """A client of one cluster of bookies. Owns the connections; `close` ends them, and writers then report their
    pending entries as unknown.
    """

    def __init__(
        self,
        store: LedgerMetadataStore,
        registry: BookieRegistry,
        options: BookKeeperOptions,
        *,
        chance: Randomness,
        clock: Clock,
        open_transport: OpenTransport = open_tcp,
    ) -> None:
        self._store = store
        self.registry = registry
        self.options = options
        self._chance = chance
        self.clock = clock
        self._tasks = TaskOwner("bookkeeper")
        self.pool = BookiePool(registry, options, self._chance, clock, self._tasks, open_transport)

    async def create_ledger(
        self,
        custom: Mapping[str, bytes] | None = None,
        listener: AppendListener | None = None,
        *,
        digest_type: DigestType | None = None,
        password: bytes | None = None,
    ) -> LedgerWriter:
        """Create a ledger with the custom metadata `custom`, and return its writer. Without a `listener`, append entries
        with the writer's `add`. The defaults of `digest_type` and `password` are in the client's `options`. Raises
        NotEnoughBookies, and MetadataUnknown, after which an empty ledger may exist.
        """
        options = self.options
        while True:
            ledger_id = await self._store.new_ledger_id()
            ensemble = self.pool.choose(options.quorums.ensemble_size)
            metadata = LedgerMetadata(
                options.quorums,
                options.digest_type if digest_type is None else digest_type,
                options.password if password is None else password,
                (Segment(0, tuple(ensemble)),),
                created_ms=self.clock.wall_ms(),
                custom=dict(custom or {}),
                token=self._chance.getrandbits(_TOKEN_BITS),
            )
            try:
                known = await self._create(ledger_id, metadata)
            except LedgerExists:
                continue
            return self._writer(ledger_id, known, listener)

    async def _create(self, ledger_id: int, metadata: LedgerMetadata) -> VersionedMetadata:
        """Store the metadata of a new ledger. After an unknown outcome, the token in the stored metadata shows whether
        this call wrote it.
        """
        deadline_ms = self.clock.monotonic_ms() + self.options.metadata_timeout_ms
        while True:
            try:
                return VersionedMetadata(metadata, await self._store.create(ledger_id, metadata.encode()))
            except MetadataUnknown:
                if self.clock.monotonic_ms() >= deadline_ms:
                    raise
                await asyncio.sleep(self.options.metadata_retry_ms / 1000)
            except LedgerExists:
                found = await read_metadata(self._store, ledger_id)
                if found.metadata.token != metadata.token:
                    raise
                return found

    def _writer(self, ledger_id: int, known: VersionedMetadata, listener: AppendListener | None) -> LedgerWriter:
        recorder = StoredEnsembles(self._store, ledger_id, known, self.options, self.clock)
        metadata = known.metadata
        format_ = EntryFormat(ledger_id, metadata.digest_type, metadata.password)
        return LedgerWriter(format_, metadata, self.pool, recorder, self.options, self._tasks, listener)

    async def close_ledger(self, writer: LedgerWriter) -> LedgerMetadata:
        """Refuse further entries, wait for entries in flight, and close the ledger permanently. Idempotent.

        The returned metadata decides about entries whose result is unknown: entries up to `last_entry_id` are stored,
        later ones are not. This also holds if another client has recovered the ledger. Raises MetadataUnknown,
        NoSuchLedger, and the errors of `LedgerRecovery.run`; the results then stay unknown. Raises BookKeeperError if
        another client closed the ledger without entries that were reported as stored.
        """
        writer.end(LedgerClosed(f"Ledger {writer.ledger_id} was closed by its writer."))
        await writer.drained()
        ledger_id, recorder = writer.ledger_id, writer.recorder
        assert isinstance(recorder, StoredEnsembles), "the writer of an open ledger"

        def change(found: LedgerMetadata) -> LedgerMetadata | None:
            if found.state is not LedgerState.OPEN:
                return None
            return found.closed(writer.last_confirmed, writer.confirmed_length_bytes)

        known = await update_metadata(self._store, ledger_id, recorder.known, change, self.options, self.clock)
        if known.metadata.state is LedgerState.IN_RECOVERY:
            known = await self._recovery(ledger_id, known.metadata.password).run()
        if known.metadata.last_entry_id < writer.last_confirmed:
            raise BookKeeperError(
                f"The store has lost entries: another client closed ledger {ledger_id} at entry "
                f"{known.metadata.last_entry_id}, although entry {writer.last_confirmed} was stored."
            )
        return known.metadata

    async def open_ledger(self, ledger_id: int, password: bytes | None = None) -> LedgerReader:
        """Return a reader of a ledger that another client may be writing; the ledger is not recovered. Raises
        NoSuchLedger, WrongKey.
        """
        known = await read_metadata(self._store, ledger_id)
        return self._reader(ledger_id, known.metadata, password)

    def metadata_of(self, writer: LedgerWriter) -> LedgerMetadata:
        assert isinstance(writer.recorder, StoredEnsembles), "the writer of an open ledger"
        return writer.recorder.known.metadata

    def reader_of(self, writer: LedgerWriter) -> LedgerReader:
        """Return a reader of the writer's ledger. The caller must report confirmed entries and changed metadata to the
        reader (`confirmed`, `renewed`).
        """
        metadata = self.metadata_of(writer)
        return self._reader(writer.ledger_id, metadata, metadata.password)

    async def renew(self, reader: LedgerReader) -> None:
        """Read the metadata of the reader's ledger again, to see entries and ensembles that were added."""
        reader.renewed((await read_metadata(self._store, reader.ledger_id)).metadata)

    def read_copies(self, reader: LedgerReader, first_entry_id: int, last_entry_id: int) -> AsyncIterator[EntryCopies]:
        """Read every copy of the entries in a range, to find missing, damaged and different copies."""
        metadata = reader.metadata
        format_ = EntryFormat(reader.ledger_id, metadata.digest_type, metadata.password)
        return read_copies(format_, metadata, self.pool, self.options, first_entry_id, last_entry_id)

    async def recover_ledger(self, ledger_id: int, password: bytes | None = None) -> LedgerReader:
        """Fence and close the ledger unless it is closed already, and return a reader. Raises the errors of
        `LedgerRecovery.run`.
        """
        known = await self._recovery(ledger_id, self.options.password if password is None else password).run()
        return self._reader(ledger_id, known.metadata, password)

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Read the metadata of a ledger. Raises NoSuchLedger, InvalidMetadata, MetadataUnknown."""
        return (await read_metadata(self._store, ledger_id)).metadata

    async def metadata_of_all(
        self, ledger_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, LedgerMetadata | InvalidMetadata]]:
        """Yield the id and metadata of each ledger, in order; the error InvalidMetadata if the metadata cannot be
        decoded. Ledgers that do not exist are skipped. Raises MetadataUnknown.
        """
        for start in range(0, len(ledger_ids), _METADATA_READS_AT_ONCE):
            some = ledger_ids[start : start + _METADATA_READS_AT_ONCE]
            try:
                async with asyncio.TaskGroup() as group:
                    reads = [group.create_task(self._metadata_or_none(each)) for each in some]
            except* MetadataUnknown as errors:
                raise MetadataUnknown(str(errors.exceptions[0])) from errors
            for ledger_id, read in zip(some, reads, strict=True):
                if (found := read.result()) is not None:
                    yield ledger_id, found

    async def _metadata_or_none(self, ledger_id: int) -> LedgerMetadata | InvalidMetadata | None:
        try:
            return await self.ledger_metadata(ledger_id)
        except InvalidMetadata as error:
            return error
        except NoSuchLedger:
            return None

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete the ledger's metadata; bookies free its space later. Unknown ids are ignored. Raises MetadataUnknown."""
        try:
            await self._store.delete(ledger_id)
        except NoSuchLedger:
            pass

    async def list_ledgers(self) -> list[int]:
        return await self._store.list_ledgers()

    def ledger_pages(self) -> AsyncIterator[list[int]]:
        """Yield the ids of all ledgers of the cluster in pages, ascending. Raises MetadataUnknown."""
        return self._store.ledger_pages()

    async def bookie_space(self, bookie_id: str) -> BookieSpace:
        """Return the free and total space of a bookie's disks. Raises BookieUnavailable and other errors of the bookie."""
        async with self.pool.connected_v3(bookie_id) as connection:
            return await connection.space()

    async def close(self) -> None:
        self.pool.close()
        for _ in range(2):  # callbacks of pending requests, then of the writers that they end
            await asyncio.sleep(0)
        await self._tasks.close()

    def _reader(self, ledger_id: int, metadata: LedgerMetadata, password: bytes | None) -> LedgerReader:
        if metadata.password != (self.options.password if password is None else password):
            raise WrongKey(f"The password of ledger {ledger_id} is wrong.")
        format_ = EntryFormat(ledger_id, metadata.digest_type, metadata.password)
        return LedgerReader(format_, metadata, self.pool, self.options)

    def _recovery(self, ledger_id: int, password: bytes) -> LedgerRecovery:
        return LedgerRecovery(ledger_id, password, self._store, self.pool, self.options, self.clock, self._tasks)
