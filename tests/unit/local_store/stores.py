"""Helpers of the store tests: a recording listener, small options, and a store on a fault disk."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from pathlib import Path

from tests.support.fault_disk import FaultDisk, InlineExecutor

from pybroker.errors import StoreError
from pybroker.ledgers.cursor_store import CursorOwner
from pybroker.ledgers.ledger_store import AppendListener, AppendRun, LedgerStore
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.runtime.threads import Threads

DIRECTORY = Path("/data")
# The timeout for events that are certain, on a machine with any load.
PATIENCE_S = 60
SMALL = LocalStoreOptions(
    journal_file_bytes=64 << 10,
    max_batch_bytes=8 << 10,
    checkpoint_retry_s=0.001,
    checkpoint_max_bytes=1 << 40,
    space_poll_s=0.001,
)


class Listener(AppendListener):
    """Records every call, and lets a test wait for the completion of its appends."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[AppendRun], StoreError | None]] = []
        self.open_runs = 0
        self.changed = asyncio.Event()

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        self.calls.append((runs, error))
        self.open_runs -= len(runs)
        self.changed.set()

    def append(self, store: LedgerStore, ledger_id: int, first_entry_id: int, payloads: list[bytes]) -> AppendRun:
        run = AppendRun(self, ledger_id, first_entry_id, payloads, [1] * len(payloads), sum(map(len, payloads)), None)
        self.open_runs += 1
        store.append(run)
        return run

    async def settled(self) -> None:
        while self.open_runs:
            self.changed.clear()
            await self.changed.wait()

    @property
    def errors(self) -> list[StoreError]:
        return [error for _, error in self.calls if error is not None]


class FilesAtOnce(Threads):
    """Journal files are created and freed synchronously, so that the directory of an idle store can be copied."""

    def pool(self, name: str, count: int = 1, *, niceness: int = 0) -> Executor:
        return InlineExecutor() if name == "journal-files" else super().pool(name, count, niceness=niceness)


class Owner(CursorOwner):
    """A cursor whose state is the sum of its deltas."""

    def __init__(self, state: bytes = b"") -> None:
        self.state = state

    def snapshot(self) -> bytes:
        return self.state


async def open_store(disk: FaultDisk, options: LocalStoreOptions = SMALL) -> tuple[LocalStore, list[BaseException]]:
    """Return a store and the list of its fatal errors."""
    fatal: list[BaseException] = []
    return await LocalStore.open(DIRECTORY, options, fatal.append, StoreEnvironment(disk)), fatal


async def has_space(store: LedgerStore) -> None:
    """Return whether appends are accepted."""
    while store.refusal():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def read_all(store: LedgerStore, ledger_id: int, max_bytes: int = 1 << 20) -> list[bytes]:
    """Seal the ledger and read all of its entries."""
    summary = await store.recover(ledger_id)
    found: list[bytes] = []
    while len(found) < summary.entry_count:
        run = await store.read(ledger_id, len(found), 1000, max_bytes)
        assert (run.ledger_id, run.first_entry_id) == (ledger_id, len(found))
        assert len(run.payloads) == len(run.message_counts) > 0
        found += run.payloads
    return found
