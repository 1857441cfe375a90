"""The in-memory stores of an embedded broker, which survive its crashes and can simulate a full disk.

Invariant: a copy shares no state with the original, which may still be written to.
"""

from __future__ import annotations

from pathlib import Path

from pybroker.broker_assembly import Stores
from pybroker.disk.disk import Disk, SpaceFigures
from pybroker.errors import StorageFull
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.ledgers.memory_store import MemoryCursorStore, MemoryLedgerStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.wire.broker_entry_metadata import entry_time_ms

NO_SPACE = "the disk is full (a fault of a test)"


class Fullness:
    """The simulated state of the disk, shared by a test's faults and the stores."""

    def __init__(self) -> None:
        self.is_full = False


class FillableLedgerStore(MemoryLedgerStore):
    """A ledger store in memory that rejects appends while the simulated disk is full."""

    fullness: Fullness

    def refusal(self) -> str | None:
        return NO_SPACE if self.fullness.is_full else None

    def append(self, run: AppendRun) -> None:
        if self.fullness.is_full:
            raise StorageFull(NO_SPACE)
        super().append(run)


class FillableDisk(Disk):
    """A disk that reports no free space while the simulated disk is full."""

    def __init__(self, fullness: Fullness) -> None:
        self._fullness = fullness

    def space(self, directory: Path) -> SpaceFigures | None:
        figures = super().space(directory)
        return figures._replace(free_bytes=0) if figures is not None and self._fullness.is_full else figures


class MemoryStores:
    """The stored data of an embedded broker, kept over its restarts."""

    def __init__(self, fullness: Fullness) -> None:
        self._fullness = fullness
        self.metadata = MemoryMetadataStore()
        self.ledgers = FillableLedgerStore(entry_time_ms)
        self.ledgers.fullness = fullness
        self.cursors = MemoryCursorStore()

    def stores(self) -> Stores:
        return Stores(self.metadata, self.ledgers, self.cursors)

    def copied(self) -> MemoryStores:
        copy = MemoryStores(self._fullness)
        copy.metadata = self.metadata.copied()
        copy.ledgers = self.ledgers.copied()
        copy.ledgers.fullness = self._fullness
        copy.cursors = self.cursors.copied()
        return copy
