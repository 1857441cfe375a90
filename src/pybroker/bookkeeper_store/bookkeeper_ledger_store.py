"""Stores the ledgers of topics on BookKeeper.

Operation: each ledger that this process created has a writer; appends are pipelined to the bookies. An append is stored
when an ack quorum of bookies has it and all earlier ones. When the writer fails, appends in flight end as unknown, and
`seal` decides them.

Memory: an entry in flight is held until it is confirmed. Together, all ledgers send at most `max_in_flight_bytes`;
later runs wait in the order of their appends. The broker's memory budget counts the bytes in flight as writes.

Limitations: the store knows no message counts, publish times or sizes of parts of ledgers; it has no local files.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError, DigestType, LedgerMetadata, LedgerReader
from pybroker.bookkeeper.errors import InvalidMetadata, LedgerClosed, NoSuchLedger, WrongKey
from pybroker.bookkeeper_store.bookie_watch import BookieWatch
from pybroker.bookkeeper_store.documents.ledger_custom import custom_metadata
from pybroker.bookkeeper_store.documents.stored_views import metadata_text
from pybroker.bookkeeper_store.naming_limit import NamingLimit
from pybroker.bookkeeper_store.open_ledger import OpenLedger, notify, refused
from pybroker.bookkeeper_store.orphans.orphaned_ledgers import OrphanedLedgers
from pybroker.bookkeeper_store.store_errors import read_error, store_error
from pybroker.errors import StoreError
from pybroker.ledgers.bookie_report import SLOW_APPEND_MS, AppendWait, BookiesReport, ClientStatistics, OperationTimes
from pybroker.ledgers.ledger_store import (
    AppendRun,
    EntryRun,
    LedgerDescription,
    LedgerPurpose,
    LedgerStore,
    LedgerSummary,
)
from pybroker.memory.broker_memory import Memory
from pybroker.model.counters import Buckets
from pybroker.model.position import Position

_COUNTERS = (
    "ledgers_created",
    "ledgers_sealed",
    "ledgers_recovered",
    "ledgers_deleted",
    "entries_added",
    "entries_read",
)
COMPACTED_PASSWORD = b""
"""Java brokers create and open compacted ledgers with an empty password and CRC32 digests, whatever their configuration says."""
ADD, READ, CREATE, RECOVER, DELETE = "ADD_ENTRY", "READ_ENTRY", "LEDGER_CREATE", "LEDGER_RECOVER", "LEDGER_DELETE"
"""Pulsar's names of operations."""
MAX_READERS = 10_000
"""Maximum number of cached readers of sealed ledgers."""


class BookKeeperLedgerStore(LedgerStore):
    """A ledger store on the bookies of one cluster. Owns the BookKeeper client."""

    def __init__(
        self,
        client: BookKeeperClient,
        memory: Memory,
        message_counts_of: Callable[[list[bytes]], list[int]],
        *,
        max_entry_bytes: int,
        max_in_flight_bytes: int | None = None,
        naming: NamingLimit,
    ) -> None:
        """`message_counts_of` returns the number of messages in each entry; it never raises. Entries larger than
        `max_entry_bytes` are refused.
        """
        self._naming = naming
        self.orphans: OrphanedLedgers | None = None
        self.client = client
        self._memory = memory
        self._message_counts_of = message_counts_of
        self._max_entry_bytes = max_entry_bytes
        self._max_in_flight_bytes = memory.writes.most_bytes if max_in_flight_bytes is None else max_in_flight_bytes
        self._in_flight_bytes = self._in_flight_entries = 0
        self._open: dict[int, OpenLedger] = {}
        self._queue: deque[OpenLedger] = deque()
        """One item for each unsent run, in the order of the appends."""
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._times = {name: OperationTimes() for name in (ADD, READ, CREATE, RECOVER, DELETE)}
        self._monotonic_ms = client.clock.monotonic_ms
        self.watch = BookieWatch(client.pool, client.registry, client.options.quorums.ensemble_size, client.clock)

    # --- the condition of bookies and appends ------------------------------------------------------------------------

    @property
    def copy_count(self) -> int:
        return self.client.options.quorums.write_quorum

    def bookies(self) -> BookiesReport:
        return self.watch.report()

    def append_wait(self, ledger_id: int) -> AppendWait | None:
        opened = self._open.get(ledger_id)
        since_ms = None if opened is None else opened.oldest_sent_ms
        if opened is None or since_ms is None or self._monotonic_ms() - since_ms < SLOW_APPEND_MS:
            return None
        quorum = self.client.options.quorums.ack_quorum
        return AppendWait(ledger_id, opened.unconfirmed_entries, since_ms, opened.writer.ensemble, quorum)

    def histograms(self) -> dict[str, Buckets]:
        return {"bookkeeper_append_ms": self._times[ADD].succeeded}

    def client_statistics(self) -> ClientStatistics:
        pool = self.client.pool
        return ClientStatistics(self._times, self._in_flight_entries, pool.ensemble_change_count, pool.quarantine_count)

    @contextmanager
    def _measured(self, operation: str) -> Iterator[None]:
        times, started_ms = self._times[operation], self._monotonic_ms()
        try:
            yield
        except BookKeeperError:
            times.failed.add(self._monotonic_ms() - started_ms)
            raise
        times.succeeded.add(self._monotonic_ms() - started_ms)

    @property
    def has_pulsar_layout(self) -> bool:
        return True

    # --- appending ---------------------------------------------------------------------------------------------------

    async def create_ledger(
        self,
        purpose: LedgerPurpose = LedgerPurpose.ENTRIES,
        owner: str = "",
        compacted_up_to: Position | None = None,
    ) -> int:
        opened = OpenLedger(self._ended, self._naming.now())
        is_compacted = purpose is LedgerPurpose.COMPACTED
        try:
            with self._measured(CREATE):
                writer = await self.client.create_ledger(
                    custom_metadata(purpose, owner, self._naming.mark, compacted_up_to),
                    opened,
                    digest_type=DigestType.CRC32 if is_compacted else None,
                    password=COMPACTED_PASSWORD if is_compacted else None,
                )
        except BookKeeperError as error:
            raise store_error(error) from error
        opened.writer = writer
        opened.reader = self.client.reader_of(writer)
        self._open[writer.ledger_id] = opened
        self._counts["ledgers_created"] += 1
        return writer.ledger_id

    async def described(self, ledger_ids: Sequence[int]) -> dict[int, LedgerDescription]:
        try:
            return {
                ledger_id: LedgerDescription(metadata.last_entry_id + 1, metadata.length_bytes, metadata_text(metadata))
                async for ledger_id, metadata in self.client.metadata_of_all(ledger_ids)
                if not isinstance(metadata, InvalidMetadata)
            }
        except BookKeeperError as error:
            raise store_error(error) from error

    def may_be_named(self, ledger_id: int) -> bool:
        opened = self._open.get(ledger_id)
        return opened is not None and self._naming.allows(opened.created)

    def append(self, run: AppendRun) -> None:
        opened = self._open.get(run.ledger_id)
        if opened is None:
            asyncio.get_running_loop().call_soon(notify, [run], refused(run))
            return
        if max(map(len, run.payloads)) > self._max_entry_bytes:
            raise StoreError(
                f"The entry cannot be stored: it is larger than {self._max_entry_bytes} bytes, the maximum of the bookies. Send "
                "smaller messages or batches"
            )
        opened.accept(run)
        if self._queue or self._in_flight_bytes >= self._max_in_flight_bytes or opened.writer.error is not None:
            opened.unsent.append(run)
            self._queue.append(opened)
            if opened.writer.error is not None:
                asyncio.get_running_loop().call_soon(self._send_unsent)
        else:
            self._send(opened, run)

    def _send(self, opened: OpenLedger, run: AppendRun) -> None:
        opened.send(run, self._monotonic_ms())
        self._in_flight_entries += len(run.payloads)
        self._count_in_flight(run.size_bytes)

    def _ended(self, runs: list[AppendRun], sent_ms: list[float], is_stored: bool) -> None:
        times, now_ms, entry_count = self._times[ADD], self._monotonic_ms(), 0
        buckets = times.succeeded if is_stored else times.failed
        for run, since_ms in zip(runs, sent_ms, strict=True):
            entry_count += len(run.payloads)
            buckets.add(now_ms - since_ms, len(run.payloads))
        if is_stored:
            self._counts["entries_added"] += entry_count
        self._in_flight_entries -= entry_count
        self._count_in_flight(-sum(run.size_bytes for run in runs))
        if self._queue:
            asyncio.get_running_loop().call_soon(self._send_unsent)

    def _count_in_flight(self, size_bytes: int) -> None:
        self._in_flight_bytes += size_bytes
        self._memory.follow(self._memory.writes.count(size_bytes))

    def _send_unsent(self) -> None:
        """Send waiting runs. Waiting runs of a failed writer end as unknown, like the runs in front of them."""
        queue = self._queue
        while queue and (self._in_flight_bytes < self._max_in_flight_bytes or queue[0].writer.error is not None):
            opened = queue.popleft()
            if not opened.unsent:
                continue  # They ended with their writer.
            if opened.writer.error is not None:
                opened.fail_unsent()
            else:
                self._send(opened, opened.unsent.popleft())

    # --- reading -----------------------------------------------------------------------------------------------------

    def read_buffered(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        return None

    async def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        reader = await self._reader(ledger_id)
        if first_entry_id > reader.last_readable:
            raise StoreError(
                f"entry {ledger_id}:{first_entry_id} does not exist: the last entry of the ledger is {reader.last_readable}"
            )
        try:
            with self._measured(READ):
                entries = await reader.read(first_entry_id, max_entries, max_bytes)
        except BookKeeperError as error:
            raise read_error(error, ledger_id, first_entry_id) from error
        payloads = [entry.payload for entry in entries]
        self._counts["entries_read"] += len(payloads)
        return EntryRun(ledger_id, first_entry_id, payloads, self._message_counts_of(payloads))

    async def _reader(self, ledger_id: int) -> LedgerReader:
        opened = self._open.get(ledger_id)
        if opened is not None:
            writer = opened.writer
            if opened.reader_changes != writer.ensemble_change_count:
                opened.reader_changes = writer.ensemble_change_count
                opened.reader.renewed(self.client.metadata_of(writer))
            opened.reader.confirmed(writer.last_confirmed)
            return opened.reader
        reader = self._readers.get(ledger_id)
        if reader is None:
            try:
                reader = await self._opened(ledger_id)
            except BookKeeperError as error:
                raise store_error(error) from error
            self._keep(reader)
        return reader

    async def _opened(self, ledger_id: int) -> LedgerReader:
        try:
            return await self.client.open_ledger(ledger_id)
        except WrongKey:
            return await self.client.open_ledger(ledger_id, COMPACTED_PASSWORD)

    def _keep(self, reader: LedgerReader) -> None:
        self._readers[reader.ledger_id] = reader
        if len(self._readers) > MAX_READERS:
            self._readers.popitem(last=False)

    # --- closing and deleting ----------------------------------------------------------------------------------------

    async def seal(self, ledger_id: int) -> LedgerSummary:
        opened = self._open.get(ledger_id)
        if opened is None:
            return await self.recover(ledger_id)
        await _all_sent(opened)
        try:
            metadata = await self.client.close_ledger(opened.writer)
        except NoSuchLedger as error:
            if opened.writer.last_confirmed >= 0:
                raise store_error(error) from error
            # It was deleted as orphaned, because its name came late. It was fenced before, so no entry was stored.
            self._open.pop(ledger_id, None)
            return LedgerSummary(ledger_id, 0, 0, 0)
        except BookKeeperError as error:
            raise store_error(error) from error
        self._counts["ledgers_sealed"] += 1
        if self._open.pop(ledger_id, None) is not None:
            opened.reader.renewed(metadata)
            self._keep(opened.reader)
        return _summary(ledger_id, metadata)

    async def recover(self, ledger_id: int) -> LedgerSummary:
        try:
            with self._measured(RECOVER):
                reader = await self.client.recover_ledger(ledger_id)
        except BookKeeperError as error:
            raise store_error(error) from error
        self._counts["ledgers_recovered"] += 1
        self._keep(reader)
        return _summary(ledger_id, reader.metadata)

    async def delete_ledger(self, ledger_id: int) -> None:
        opened = self._open.get(ledger_id)
        if opened is not None:
            await _all_sent(opened)
            opened.writer.end(LedgerClosed(f"Ledger {ledger_id} is deleted."))
            await opened.writer.drained()
            self._open.pop(ledger_id, None)
        try:
            with self._measured(DELETE):
                await self.client.delete_ledger(ledger_id)
        except BookKeeperError as error:
            raise store_error(error) from error
        self._readers.pop(ledger_id, None)
        self._counts["ledgers_deleted"] += 1

    async def list_ledgers(self) -> list[int]:
        """Return the ids of all ledgers of the cluster, including ledgers of other applications."""
        try:
            return await self.client.list_ledgers()
        except BookKeeperError as error:
            raise store_error(error) from error

    async def flush(self) -> None:
        for opened in list(self._open.values()):
            await opened.stored_so_far()

    def figures(self) -> dict[str, float]:
        counts: dict[str, float] = {f"bookkeeper_{name}": count for name, count in self._counts.items()}
        counts["bookkeeper_in_flight_bytes"] = self._in_flight_bytes
        counts["bookkeeper_in_flight_entries"] = self._in_flight_entries
        counts["bookkeeper_waiting_runs"] = len(self._queue)
        now_ms = self._monotonic_ms()
        sent_ms = [since_ms for each in self._open.values() if (since_ms := each.oldest_sent_ms) is not None]
        counts["bookkeeper_oldest_append_seconds"] = (now_ms - min(sent_ms)) / 1000 if sent_ms else 0
        counts["bookkeeper_slow_ledgers"] = sum(now_ms - each >= SLOW_APPEND_MS for each in sent_ms)
        return counts if self.orphans is None else {**counts, **self.orphans.figures()}

    async def close(self) -> None:
        """Close the connections. Ledgers that are open for writing are not closed; their next owner recovers them."""
        await self.watch.close()
        await self.client.close()


async def _all_sent(opened: OpenLedger) -> None:
    while opened.unsent and opened.writer.error is None:
        with suppress(StoreError):  # The listeners of the appends receive the error.
            await opened.stored_so_far()


def _summary(ledger_id: int, metadata: LedgerMetadata) -> LedgerSummary:
    return LedgerSummary(ledger_id, metadata.last_entry_id + 1, None, metadata.length_bytes)
