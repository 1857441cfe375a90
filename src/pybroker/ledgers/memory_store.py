"""LedgerStore and CursorStore in memory: for tests, and for brokers without durable data.

Order and completion are as in the local store: completions come by `call_soon`, one call for everything that was
appended before it, each listener with its runs in one list.
"""

from __future__ import annotations

import asyncio
from typing import Self

from pyroaring import BitMap

from pybroker.errors import LedgerFenced, NoSuchLedger, StoreError
from pybroker.ledgers.cursor_store import CursorDone, CursorOwner, CursorStore
from pybroker.ledgers.ledger_store import (
    AppendListener,
    AppendRun,
    EntryRun,
    LedgerIndex,
    LedgerPoint,
    LedgerPurpose,
    LedgerStore,
    LedgerSummary,
    LedgerTotals,
)
from pybroker.ledgers.live_ledger import LedgerState, LiveLedger
from pybroker.model.position import Position
from pybroker.storage_format.segment_layout import PublishTimeOf, no_publish_time


class MemoryLedgerStore(LedgerStore, LedgerIndex):
    """Ledgers in memory, which live as long as this object."""

    def __init__(self, publish_time_of: PublishTimeOf = no_publish_time) -> None:
        self._publish_time_of = publish_time_of
        self._ledgers: dict[int, LiveLedger] = {}
        self._next_ledger_id = 1
        self._waiting: list[tuple[AppendRun, StoreError | None]] = []

    def copied(self) -> Self:
        """Return a store with a copy of the contents, as a process finds them after a crash. The copy includes
        unconfirmed appends.
        """
        copy = type(self)(self._publish_time_of)
        copy._ledgers = {ledger_id: ledger.copied() for ledger_id, ledger in self._ledgers.items()}  # noqa: SLF001
        copy._next_ledger_id = self._next_ledger_id  # noqa: SLF001
        return copy

    @property
    def index(self) -> LedgerIndex:
        return self

    async def create_ledger(
        self,
        purpose: LedgerPurpose = LedgerPurpose.ENTRIES,
        owner: str = "",
        compacted_up_to: Position | None = None,
    ) -> int:
        ledger_id = self._next_ledger_id
        self._next_ledger_id += 1
        self._ledgers[ledger_id] = LiveLedger(ledger_id, publish_time_of=self._publish_time_of)
        return ledger_id

    def append(self, run: AppendRun) -> None:
        ledger = self._ledgers.get(run.ledger_id)
        error = None
        if ledger is None or ledger.state is not LedgerState.OPEN:
            error = LedgerFenced(f"ledger {run.ledger_id} accepts no more entries")
        else:
            assert run.first_entry_id == ledger.next_entry_id, "entry ids of a ledger have no gaps"
            ledger.next_entry_id += len(run.payloads)
            ledger.buffer.payloads += run.payloads
            ledger.buffer.message_counts += run.message_counts
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._complete)
        self._waiting.append((run, error))

    def read_buffered(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun | None:
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.read_buffered(first_entry_id, max_entries, max_bytes)

    async def read(self, ledger_id: int, first_entry_id: int, max_entries: int, max_bytes: int) -> EntryRun:
        found = self._ledger(ledger_id).read_buffered(first_entry_id, max_entries, max_bytes)
        if found is None:
            raise StoreError(f"entry {ledger_id}:{first_entry_id} does not exist: the ledger ends before this entry")
        return found

    async def totals_before(self, ledger_id: int, entry_id: int) -> LedgerTotals:
        return self._ledger(ledger_id).totals_before(entry_id)

    async def message_count_of(self, ledger_id: int, entry_ids: BitMap) -> int:
        return self._ledger(ledger_id).buffered_message_count_of(entry_ids)

    async def publish_time_span(self, ledger_id: int, publish_time_ms: int) -> tuple[int, int]:
        return self._ledger(ledger_id).publish_time_span(publish_time_ms)

    async def points(self, ledger_id: int, spacing_bytes: int) -> list[LedgerPoint]:
        return []

    async def seal(self, ledger_id: int) -> LedgerSummary:
        ledger = self._ledger(ledger_id)
        if ledger.state is LedgerState.OPEN:
            ledger.set_state(LedgerState.FENCED)
        await asyncio.sleep(0)  # pending completions come first
        ledger.set_state(LedgerState.SEALED)
        return ledger.summary()

    async def recover(self, ledger_id: int) -> LedgerSummary:
        return await self.seal(ledger_id)

    async def delete_ledger(self, ledger_id: int) -> None:
        self._ledgers.pop(ledger_id, None)

    def is_own(self, ledger_id: int) -> bool:
        return True  # no other process can own it

    async def list_ledgers(self) -> list[int]:
        return sorted(self._ledgers)

    async def flush(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        self._complete()

    def _ledger(self, ledger_id: int) -> LiveLedger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return ledger

    def _complete(self) -> None:
        waiting, self._waiting = self._waiting, []
        by_listener: dict[tuple[AppendListener, StoreError | None], list[AppendRun]] = {}
        for run, error in waiting:
            by_listener.setdefault((run.listener, error), []).append(run)
        for (listener, error), runs in by_listener.items():
            listener.append_completed(runs, error)


class MemoryCursorStore(CursorStore):
    """Cursors in memory, which live as long as this object."""

    def __init__(self) -> None:
        self._cursors: dict[str, tuple[bytes | None, list[bytes]]] = {}
        self._owners: dict[str, CursorOwner] = {}

    def copied(self) -> MemoryCursorStore:
        """Return a store with a copy of the stored states, as a process finds them after a crash."""
        copy = MemoryCursorStore()
        copy._cursors = {cursor_id: (snapshot, list(deltas)) for cursor_id, (snapshot, deltas) in self._cursors.items()}
        return copy

    async def load(self, cursor_id: str) -> tuple[bytes | None, list[bytes]]:
        snapshot, deltas = self._cursors.get(cursor_id, (None, []))
        return snapshot, list(deltas)

    def attach(self, cursor_id: str, owner: CursorOwner) -> None:
        self._owners[cursor_id] = owner

    async def detach(self, cursor_id: str, *, is_changed: bool = False) -> None:
        owner = self._owners.pop(cursor_id, None)
        if owner is not None and (is_changed or self._cursors.get(cursor_id, (None, []))[1]):
            self._cursors[cursor_id] = (owner.snapshot(), [])

    def append_delta(self, cursor_id: str, delta: bytes, done: CursorDone | None) -> None:
        self._cursors.setdefault(cursor_id, (None, []))[1].append(delta)
        if done is not None:
            asyncio.get_running_loop().call_soon(done, None)

    async def delete(self, cursor_id: str) -> None:
        self._cursors.pop(cursor_id, None)
        self._owners.pop(cursor_id, None)
