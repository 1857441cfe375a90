"""The durable log of one coordinator, on a managed ledger: append, read all, and trim.

The order of the log is the order of the `append` calls. The cursor stays at the lowest position that is still needed
(`log_positions.py`), and whole ledgers before the cursor are trimmed.

A full disk refuses an append without any effect. Any other failure ends this log: later appends are refused too,
`failed` is called once, and the owner reads everything again from a newly opened log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pybroker.errors import LedgerFenced, StoreError
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.retention import RetentionLimits
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.transactions.log_positions import LogPositions, PlaceKey
from pybroker.transactions.records import Kind, Record, decode, encode

if TYPE_CHECKING:
    from pybroker.ledgers.ledger_store import AppendRun
    from pybroker.managed_ledger.factory import ManagedLedgerFactory
    from pybroker.managed_ledger.managed_cursor import ManagedCursor
    from pybroker.managed_ledger.managed_ledger import ManagedLedger

CURSOR = "transaction.subscription"
"""Name of the log's cursor, as in Pulsar."""
READ_AT_ONCE = 256
_READ_BYTES = 1 << 20
_ENDED = (Kind.COMMITTED, Kind.ABORTED)

WholeOf = Callable[[PlaceKey], Record | None]
"""None when the transaction or mark has ended."""


class TransactionLog(ManagedLedgerListener):
    """Open log of one coordinator, until `close` or the first failure."""

    def __init__(self, managed: ManagedLedger, cursor: ManagedCursor, whole_of: WholeOf) -> None:
        self.managed = managed
        self.cursor = cursor
        self.failed: Callable[[StoreError], None] | None = None
        """Called once, when the log has failed; set by the owner."""
        self.appended = 0
        self._whole_of = whole_of
        self._places = LogPositions()
        self._failure: StoreError | None = None
        self._last: asyncio.Future[None] | None = None

    @staticmethod
    async def open(
        ledgers: ManagedLedgerFactory, path: str, apply: Callable[[Record], object], whole_of: WholeOf
    ) -> TransactionLog:
        """Open or create the log at `path`, and call `apply` with all records in order. Raises StoreError.

        `whole_of` returns the complete record of a transaction or sink that must be written again.
        """
        managed = await ledgers.open(path)
        try:
            cursor = managed.cursors.get(CURSOR)
            if cursor is None:
                first = managed.ledgers.first_position
                cursor = await ledgers.create_cursor(managed, CURSOR, Position(first.ledger_id, -1), {})
            log = TransactionLog(managed, cursor, whole_of)
            await log._replay(apply)
        except BaseException:
            await managed.close()
            raise
        managed.listen(log)
        managed.retention = RetentionLimits()  # Set only now, so that nothing is trimmed before.
        log._let_go()
        return log

    async def _replay(self, apply: Callable[[Record], object]) -> None:
        self.cursor.rewind()
        while (position := self.cursor.next_entry()) is not None:
            run = self.cursor.read_cached(position, READ_AT_ONCE, _READ_BYTES)
            if run is None:
                run = await self.cursor.read(READ_AT_ONCE, _READ_BYTES)
            else:
                await asyncio.sleep(0)  # A log that is completely in memory must not block the loop.
            if run is None:
                continue
            for offset, payload in enumerate(run.payloads):
                record = decode(payload)
                apply(record)
                self._note(record, Position(run.ledger_id, run.first_entry_id + offset))

    # --- appending -----------------------------------------------------------------------------------------------------

    def append(self, record: Record) -> asyncio.Future[None]:
        """Append `record`. Return a future that completes when the record is durable, or fails with the error that
        ended the log. Raises StoreError, without appending, if the log has failed before.
        """
        if self._failure is not None:
            raise self._failure
        payload = encode(record)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.managed.append([payload], [1], len(payload), (record, durable))
        self.appended += 1
        self._last = durable
        return durable

    async def written(self) -> None:
        """Wait until all earlier records are durable. Raises StoreError."""
        if self._last is not None:
            await asyncio.shield(self._last)

    def entries_added(self, runs: list[AppendRun]) -> None:
        for run in runs:
            record, durable = _context(run)
            self._note(record, Position(run.ledger_id, run.first_entry_id))
            if not durable.done():
                durable.set_result(None)
        self._let_go()
        self._write_again()

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        for run in runs:
            _, durable = _context(run)
            if not durable.done():
                durable.set_exception(error)
                durable.exception()  # mark as retrieved: there may be no waiter
        self._fail(error)

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        raise AssertionError(
            "the ledger split an append to the transaction log, although each append has only one entry"
        )

    def fenced(self, error: LedgerFenced) -> None:
        self._fail(error)

    def _fail(self, error: StoreError) -> None:
        if self._failure is None:
            self._failure = error
            if self.failed is not None:
                self.failed(error)

    # --- trimming ------------------------------------------------------------------------------------------

    def _note(self, record: Record, position: Position) -> None:
        if record.kind in (Kind.NEW, Kind.WHOLE):
            # The later record of an end that arrives during the write removes this position again.
            self._places.stands(record.least, position)
        elif record.kind in _ENDED:
            self._places.ended(record.least)
        elif record.kind in (Kind.TOGETHER, Kind.SINK):
            self._places.stands(record.sink, position)
            if record.forgets:
                self._places.ended(record.forgets)
        elif record.kind is Kind.SINK_GONE:
            self._places.ended(record.sink)

    def _let_go(self) -> None:
        last = self.managed.last_confirmed
        if last.entry_id < 0:
            return
        needed = self._places.needed_from(last)
        if self.cursor.state.mark_delete_to(self.managed.ledgers.previous_position(needed)):
            self.cursor.changed(None)

    def _write_again(self) -> None:
        for key in self._places.to_write_again(self.cursor.backlog_entries):
            record = self._whole_of(key)
            if record is None:
                self._places.given_up(key)
                continue
            try:
                self.append(record)
            except StoreError as error:  # The disk is full: the log is longer for a while.
                self._places.given_up(key)
                logs.warning("transaction_log.trim_failed", managed_ledger=self.managed.name, error=str(error))

    async def close(self) -> None:
        """Accept no more records; pending appends fail. Errors are logged."""
        self._fail(LedgerFenced(f"{self.managed.name} is closed"))
        try:
            await self.managed.close()
        except StoreError as error:
            logs.error("transaction_log.close_failed", managed_ledger=self.managed.name, error=str(error))


def _context(run: AppendRun) -> tuple[Record, asyncio.Future[None]]:
    context = run.context
    assert isinstance(context, tuple)
    return context
