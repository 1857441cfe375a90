"""Append and read of one topic's endless stream of entries, kept in numbered ledgers.

Operation: `append` numbers entries at once and hands them to the store; `append_completed` comes back when they are durable, and
only then do they exist for readers. The next ledger is made before it is needed, in the background: appends never wait for it.

Failure: when the store refuses an append, everything numbered after it in that ledger is refused too. The ledger is sealed at its
last durable entry, and appends go on in a new one; until that is ready, appends are answered with the error.

Invariants: `last_confirmed` never moves back; entry ids of a ledger have no gaps; the ledger list in the metadata store names a
ledger before its first append.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pybroker import logs
from pybroker.errors import LedgerFenced, StoreError
from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.model.position import Position
from pybroker.storage.ledger_store import AppendListener, AppendRun, EntryRun

if TYPE_CHECKING:
    from pybroker.managed_ledger.factory import ManagedLedgerFactory


class ManagedLedgerListener(ABC):
    """The topic above: told about its appends, in order."""

    @abstractmethod
    def entries_added(self, runs: list[AppendRun]) -> None:
        """These entries are durable and visible to cursors."""

    @abstractmethod
    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        """These entries are not stored."""


class ManagedLedger(AppendListener):
    """Owned by the factory, under its name; used by one topic."""

    def __init__(self, name: str, factory: ManagedLedgerFactory, ledgers: LedgerList, ledger_id: int) -> None:
        """`ledger_id` is a new, empty ledger, the last one of `ledgers`."""
        self.name = name
        self.ledgers = ledgers
        self.cursors: dict[str, ManagedCursor] = {}
        self.metadata_version = 0
        self.cursor_serial = 0
        self.is_write_failed = False
        self.is_closed = False
        self.pending_entries = 0
        self.entries_added_total = 0
        self.bytes_added_total = 0
        self._factory = factory
        self._store = factory.store
        self._cache = factory.cache
        self._listener: ManagedLedgerListener | None = None
        self._ledger_id = ledger_id
        self._next_entry_id = 0
        self._ledger_bytes = 0
        self._ledger_opened_ms = factory.clock.monotonic_ms()
        self._is_rolling = False

    def listen(self, listener: ManagedLedgerListener) -> None:
        """From now on `listener` is told about appends."""
        self._listener = listener

    # --- positions ---------------------------------------------------------------------------------------------------

    @property
    def current_ledger_id(self) -> int:
        return self._ledger_id

    @property
    def last_confirmed(self) -> Position:
        """The last entry that readers may see; before the first one of the newest ledger when there is none."""
        return self.ledgers.last_position

    @property
    def size_bytes(self) -> int:
        """Payload bytes of all entries that exist."""
        return self.ledgers.size_bytes

    def message_count_at_hand(self, position: Position) -> int:
        """How many messages the entry holds; 0 when it is not in memory or does not exist."""
        if not self.ledgers.has_entry(position):
            return 0
        run = self.read_cached(position, 1, 0)
        return 0 if run is None else run.message_counts[0]

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, payloads: list[bytes], message_counts: list[int], size_bytes: int, context: object) -> None:
        """Store entries; the listener is told about the run. Raises LedgerFenced when closed or after a failed write."""
        if self.is_closed or self.is_write_failed:
            raise LedgerFenced(f"{self.name} takes no appends now, try again")
        run = AppendRun(self, self._ledger_id, self._next_entry_id, payloads, message_counts, size_bytes, context)
        count = len(payloads)
        self._next_entry_id += count
        self._ledger_bytes += size_bytes
        self.pending_entries += count
        self._store.append(run)
        if not self._is_rolling and (
            self._next_entry_id >= self._factory.limits.max_entries_per_ledger
            or self._ledger_bytes >= self._factory.limits.max_bytes_per_ledger
        ):
            self._roll_if_due()

    def _roll_if_due(self) -> None:
        limits = self._factory.limits
        age_ms = self._factory.clock.monotonic_ms() - self._ledger_opened_ms
        # By size always; by entries only once the ledger is old enough, so that small messages do not make many ledgers.
        if self._ledger_bytes >= limits.max_bytes_per_ledger or age_ms >= limits.min_rollover_ms:
            self._roll()

    def _roll(self) -> None:
        self._is_rolling = True
        self._factory.tasks.start(self._roll_over(), f"roll {self.name}")

    async def _roll_over(self) -> None:
        """Make the next ledger, switch to it, and seal the one before."""
        try:
            ledger_id = await self._store.create_ledger()
            if self.is_closed:
                return
            old_ledger_id = self._ledger_id
            self.ledgers.add_ledger(ledger_id)
            await self._factory.save(self)
            self._ledger_id = ledger_id
            self._next_entry_id = 0
            self._ledger_bytes = 0
            self._ledger_opened_ms = self._factory.clock.monotonic_ms()
            self.is_write_failed = False
            self.ledgers.close_ledger(await self._store.seal(old_ledger_id))
            await self._factory.save(self)
        except StoreError as error:
            logs.error("ledger.rollover_failed", managed_ledger=self.name, error=str(error))
        finally:
            self._is_rolling = False

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        listener = self._listener
        assert listener is not None
        entries = sum(len(run.payloads) for run in runs)
        self.pending_entries -= entries
        if error is not None:
            self.is_write_failed = True
            if not self._is_rolling and not self.is_closed:
                logs.error("append.failed", managed_ledger=self.name, ledger_id=self._ledger_id, error=str(error))
                self._roll()
            listener.append_failed(runs, error)
            return
        keep = bool(self.cursors)
        for run in runs:
            self.ledgers.added(run.ledger_id, len(run.payloads), run.message_count, run.size_bytes)
            self.bytes_added_total += run.size_bytes
            if keep:
                self._cache.insert(run)
        self.entries_added_total += entries
        listener.entries_added(runs)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _readable(self, position: Position, max_entries: int) -> int:
        """How many of `max_entries` entries from `position` on exist in its ledger."""
        return min(max_entries, self.ledgers.entry_count_of(position.ledger_id) - position.entry_id)

    def read_cached(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun | None:
        """Entries from `position` on, of one ledger, if they are in memory."""
        count = self._readable(position, max_entries)
        assert count > 0, f"{self.name} has no entry {position}"
        ledger_id, entry_id = position
        return self._cache.read(ledger_id, entry_id, count, max_bytes) or self._store.read_buffered(
            ledger_id, entry_id, count, max_bytes
        )

    async def read(self, position: Position, max_entries: int, max_bytes: int) -> EntryRun:
        """Entries from `position` on, of one ledger, from wherever they are. Raises StoreError."""
        count = self._readable(position, max_entries)
        if count <= 0:
            raise StoreError(f"{self.name} has no entry {position}")
        return await self._store.read(position.ledger_id, position.entry_id, count, max_bytes)

    # --- cursors and life --------------------------------------------------------------------------------------------

    def cursor_dirty(self, cursor: ManagedCursor) -> None:
        """The flush timer will write `cursor`."""
        self._factory.cursor_dirty(cursor)

    async def close(self) -> None:
        """Take no more appends, write what cursors have left. Entries stay."""
        if self.is_closed:
            return
        self.is_closed = True
        for cursor in self.cursors.values():
            await cursor.close()
        for ledger_id in self.ledgers.open_ledger_ids():
            self.ledgers.close_ledger(await self._store.seal(ledger_id))
        await self._factory.save(self)
        self._factory.forget(self)
