"""Recovery of a topic's transactions when the topic is loaded: the last snapshot, then the entries after it.

A topic that never had a transaction has no snapshot, and no entries are read. A topic with transactions of Java
coordinators gets its cursor `pulsar.transactions` at its first load by a pybroker.
"""

from __future__ import annotations

import asyncio

from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.errors import DamagedEntries, NoSuchLedger, StoreError
from pybroker.ledgers.ledger_store import EntryRun
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.info.managed_ledger_info import TRANSACTIONS_CURSOR
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.read_ahead import READ_AHEAD_BYTES, READ_AHEAD_ENTRIES
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.runtime.clock import Clock
from pybroker.wire.transaction_metadata import of_transaction

RESTORE_ON_LOOP_BYTES = 16 * 1024
"""A larger snapshot is restored in a thread. It has hundreds of open transactions; 10,000 of them take 90 ms."""
_SLICE_MS = 1.0
_SLICE_ENTRIES = 64  # entries between two checks of the clock


class Progress:
    """Number of entries that were read again, and their approximate total."""

    __slots__ = ("all_entries", "entries")

    def __init__(self) -> None:
        self.entries = self.all_entries = 0


async def recover(
    ledger: ManagedLedger, clock: Clock, max_open: int, progress: Progress | None = None
) -> TransactionBuffer | None:
    """Return the transaction buffer, or None for a topic that never had a transaction. `max_open`: maximum number of
    open transactions (0: no limit). On failure, close the ledger and raise StoreError.
    """
    cursor = ledger.cursors.get(TRANSACTIONS_CURSOR)
    if cursor is None:
        return None
    records, cursor.stored_delayed = cursor.stored_delayed, []
    try:
        started_ms = clock.monotonic_ms()
        buffer = await _restored(records[-1], max_open) if records else TransactionBuffer(max_open)
        # No snapshot was written before a crash: transactions began at the cursor.
        start = max(buffer.up_to, cursor.mark_delete_position)
        buffer.up_to = start
        replayed = await _replay(buffer, ledger, clock, start, progress or Progress())
        buffer.recovered()
    except BaseException:
        await ledger.close()
        raise
    buffer.forget_ledgers(ledger.ledgers.has_ledger)
    took_ms = round(clock.monotonic_ms() - started_ms, 1)
    logs.info(
        "transactions.recovered",
        managed_ledger=ledger.name,
        open=len(buffer.open),
        replayed=replayed,
        took_ms=took_ms,
    )
    return buffer


async def adopt(ledgers: ManagedLedgerFactory, ledger: ManagedLedger, start: Position) -> None:
    """Create the cursor `pulsar.transactions` at `start`, for a topic with transactions of Java coordinators. `recover`
    then reads the entries after `start`. Raises StoreError.
    """
    first = ledger.ledgers.first_position
    mark = min(max(start, Position(first.ledger_id, -1)), ledger.ledgers.last_position)
    await ledgers.create_cursor(ledger, TRANSACTIONS_CURSOR, mark, {})
    logs.info("transactions.adopted", managed_ledger=ledger.name, behind=mark)


async def _restored(record: bytes, max_open: int) -> TransactionBuffer:
    if len(record) < RESTORE_ON_LOOP_BYTES:
        return TransactionBuffer.restore(record, max_open)
    return await asyncio.to_thread(TransactionBuffer.restore, record, max_open)


async def _replay(
    buffer: TransactionBuffer, ledger: ManagedLedger, clock: Clock, behind: Position, progress: Progress
) -> int:
    position, entries = Position(behind.ledger_id, behind.entry_id + 1), 0
    progress.all_entries = ledger.ledgers.entries_after(behind)
    slice_ends_ms = clock.monotonic_ms() + _SLICE_MS
    while ledger.ledgers.has_entry(position := ledger.ledgers.normalize(position)):
        try:
            run = await ledger.read_if_there(position, READ_AHEAD_ENTRIES, READ_AHEAD_BYTES)
        except DamagedEntries as damage:
            position = _behind(ledger, position, damage.last_entry_id, damage)
            continue
        except NoSuchLedger as damage:
            position = _behind(ledger, position, ledger.ledgers.entry_count_of(position.ledger_id) - 1, damage)
            continue
        if run is None:
            continue  # The entry was trimmed.
        for index in range(len(run.payloads)):
            note_stored(buffer, run, index)
            if index % _SLICE_ENTRIES == 0 and clock.monotonic_ms() >= slice_ends_ms:
                await asyncio.sleep(0)
                slice_ends_ms = clock.monotonic_ms() + _SLICE_MS
        progress.entries = entries = entries + len(run.payloads)
        position = Position(run.ledger_id, run.first_entry_id + len(run.payloads))
    return entries


def note_stored(buffer: TransactionBuffer, run: EntryRun, index: int) -> None:
    position = Position(run.ledger_id, run.first_entry_id + index)
    found = of_transaction(run.payloads[index])
    if found is None:
        buffer.passed(position, 1)
    elif found.ends is not None:
        buffer.ended(found.txn, found.ends, position)
    else:
        buffer.found(found.txn, position, 1, found.publish_time_ms, found.producer_name)


def _behind(ledger: ManagedLedger, first: Position, last_entry_id: int, damage: StoreError) -> Position:
    """Return the position after unreadable entries.

    If these contained the end of a transaction, it stays open here until its coordinator ends it again, or until the
    low-water mark passes it.
    """
    last = Position(first.ledger_id, max(last_entry_id, first.entry_id))
    logs.error("transactions.entries_skipped", managed_ledger=ledger.name, first=first, last=last, error=str(damage))
    return Position(last.ledger_id, last.entry_id + 1)
