"""What befalls the machine under the managed ledger's model: when the disk fails, and a metadata store that fails with it.

Both ask one `Faults` before each operation, so "at the n-th operation from now" reaches every moment at which a process can
die. What must hold: what the metadata store has answered survives, what it has not may be there or not.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

from tests.support.fault_disk import FaultDisk, PartialWrite

from pybroker.errors import AppendUnknown, LedgerFenced, StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun, LedgerSummary
from pybroker.local_store.local_store import LocalStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION, Versioned

_WRITES = {"write", "write_durably", "create", "truncate", "commit"}
_METADATA = Path("metadata")


class Faults:
    """What will go wrong, and when. Owned by one life of the process; `on_crash` hears of the end."""

    def __init__(self, on_crash: Callable[[], None]) -> None:
        self._on_crash = on_crash
        self.crash_after: int | None = None
        self.write_error_after: int | None = None
        self.is_full = False
        self.kept_bytes = 0  # of a write that finds no room
        self.read_errors = 0
        self.metadata_errors = 0
        self.has_refused = False  # some write, in this life: what is refused from then on has a reason
        self.failed_reads = 0
        self.disk: FaultDisk | None = None

    def __call__(self, operation: str, name: str) -> None:
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after < 0:
                self.crash_after = None
                self._on_crash()
                assert self.disk is not None
                self.disk.cut_power()
        if operation == "metadata_write" and self.metadata_errors:
            self.metadata_errors -= 1
            self.has_refused = True
            raise OSError(errno.EIO, "metadata fails")
        if operation == "read" and name.endswith(".ledger") and self.read_errors:
            self.read_errors -= 1
            self.failed_reads += 1
            raise OSError(errno.EIO, "read fails")
        if operation in _WRITES and self.is_full:
            self.has_refused = True
            raise PartialWrite(errno.ENOSPC, kept_bytes=self.kept_bytes)
        if operation in {"write", "write_durably", "sync"} and self.write_error_after is not None:
            self.write_error_after -= 1
            if self.write_error_after < 0:
                self.write_error_after = None
                raise OSError(errno.EIO, "write fails")


class SlowMetadata(MemoryMetadataStore):
    """Takes effect some time after the call and answers some time after that. `values` outlive the process."""

    def __init__(self, disk: FaultDisk, values: dict[str, Versioned], delay_s: Callable[[], float]) -> None:
        super().__init__()
        self._values = values
        self._disk = disk
        self._delay_s = delay_s

    async def get(self, path: str) -> Versioned | None:
        await self._step("metadata_read")
        return await super().get(path)

    async def values_below(self, path: str, after: str, limit: int) -> list[tuple[str, Versioned]]:
        await self._step("metadata_read")
        return await super().values_below(path, after, limit)

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        await self._step("metadata_write")
        version = await super().put(path, value, expected_version)
        await self._answer()
        return version

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        await self._step("metadata_write")
        existed = await super().delete(path, expected_version)
        await self._answer()
        return existed

    async def _step(self, operation: str) -> None:
        await asyncio.sleep(self._delay_s())
        try:
            self._disk.step(operation, _METADATA)
        except OSError as error:
            raise StoreError(str(error)) from error

    async def _answer(self) -> None:
        await asyncio.sleep(self._delay_s())
        try:
            self._disk.step("metadata_answer", _METADATA)
        except OSError as error:
            raise StoreError(str(error)) from error


class UncertainStore(LocalStore):
    """Stores a part of a run, or nothing of it, and reports an unknown outcome, as a store on other machines may do."""

    lost_answers = 0
    """The number of following runs whose answers are lost."""
    stored_count = 0
    """The entries that are stored, of such a run."""

    def append(self, run: AppendRun) -> None:
        if not hasattr(self, "_behind"):
            self._behind: dict[int, list[AppendRun]] = {}
            self._decided: dict[int, asyncio.Event] = {}
        if run.ledger_id in self._behind:
            self._behind[run.ledger_id].append(run)
        elif run.ledger_id in self._decided:
            asyncio.get_running_loop().call_soon(_complete, run, LedgerFenced("an earlier append is unknown"))
        elif self.lost_answers:
            count = min(self.stored_count, len(run.payloads))
            if count:
                super().append(run.divided(count, (_Prefix(self, run), None))[0])
            else:
                asyncio.get_running_loop().call_soon(self.lose, run)
            run.context.stored_count = count  # type: ignore[attr-defined]
            self.lost_answers -= 1
            self._behind[run.ledger_id] = []
            self._decided[run.ledger_id] = asyncio.Event()
        else:
            super().append(run)

    def _complete_runs(self, runs: list[AppendRun], error: StoreError | None) -> None:
        for run in runs:
            if isinstance(run.context, _Prefix):
                run.listener = run.context  # not earlier: the store keeps the order of runs by listener
        super()._complete_runs(runs, error)

    def lose(self, run: AppendRun) -> None:
        _complete(run, AppendUnknown("the answer is lost"))
        for later in self._behind.pop(run.ledger_id):
            _complete(later, LedgerFenced("an earlier append is unknown"))
        self._decided[run.ledger_id].set()

    async def seal(self, ledger_id: int) -> LedgerSummary:
        decided = getattr(self, "_decided", {}).get(ledger_id)
        if decided is not None:
            await decided.wait()
        return await super().seal(ledger_id)


def _complete(run: AppendRun, error: StoreError) -> None:
    run.listener.append_completed([run], error)


class _Prefix(AppendListener):
    """Receives the result of the first entries of a run."""

    def __init__(self, store: UncertainStore, run: AppendRun) -> None:
        self._store = store
        self._run = run

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        if error is not None:
            self._run.context.stored_count = 0  # type: ignore[attr-defined]
        self._store.lose(self._run)
