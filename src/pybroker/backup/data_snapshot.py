"""Data snapshots: the content of a running broker's data directory at one moment.

Operation: a checkpoint moves all durable data to segment files and `checkpoint.db`. Then the metadata store is paused.
During the pause, read transactions fix the content of both databases, and each segment file gets a hard link in
`snapshots/<id>/`. After the pause, the databases are copied. Segment files only grow, and a hard link outlives the
deletion of the original file.

Invariant: the snapshot equals the state after a clean stop, with all data that was confirmed before the request.
Metadata does not change between the mark of the checkpoint and the last link, and a ledger is deleted only when
metadata no longer needs it.

Limits: one snapshot at a time. It is removed when it is released, or `dataSnapshotTimeoutSeconds` after its last
renewal. A snapshot fails if the pause exceeds `dataSnapshotPauseTimeoutMs`.

Concurrency: runs on the event loop; files are linked and copied in threads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pybroker.backup.backup_layout import DATABASES, LEDGERS
from pybroker.config import BrokerConfig
from pybroker.disk.database import SQLITE_FAILURES, DatabaseSnapshot
from pybroker.errors import BadVersionError, StoreError
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.segments.segment_writer import parse_segment_name
from pybroker.local_store.store_directories import StoreDirectories
from pybroker.metadata.metadata_paths import BACKUP_LINEAGE
from pybroker.metadata.metadata_store import NOT_EXISTING
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime
from pybroker.runtime.tasks import TaskOwner

Result = TypeVar("Result")
SNAPSHOTS = "snapshots"
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class SnapshotInUse(StoreError):
    """Another data snapshot exists."""


@dataclass(slots=True)
class DataSnapshot:
    """One data snapshot. `lineage` identifies the history of the data; a restored data directory gets a new lineage."""

    snapshot_id: str
    directory: Path
    lineage: str
    created_ms: int
    paused_ms: float
    """Duration of the pause of the metadata store, in milliseconds."""
    expires_ms: float
    """Expiry time by the monotonic clock."""


class DataSnapshots:
    """Manager of the data snapshots of one data directory."""

    def __init__(self, directory: Path, store: LocalStore, metadata: SqliteMetadataStore, runtime: Runtime) -> None:
        self._directory = directory
        self._store = store
        self._metadata = metadata
        self._runtime = runtime
        self._config: BrokerConfig = runtime.config
        self._tasks = TaskOwner("data-snapshots")
        self._creating = asyncio.Lock()
        self.current: DataSnapshot | None = None

    async def create(self) -> DataSnapshot:
        """Create a data snapshot. Raises SnapshotInUse if one exists, StoreError if its files cannot be created."""
        if self._creating.locked() or self.current is not None:
            raise SnapshotInUse(self._in_use_text())
        async with self._creating:
            snapshot_id = f"{self._runtime.random.getrandbits(64):016x}"
            directory = self._directory / SNAPSHOTS / snapshot_id
            start_ms = self._runtime.clock.monotonic_ms()
            try:
                snapshot = await self._create(snapshot_id, directory)
            except BaseException as error:
                await self._tasks.run_to_end(asyncio.to_thread(_remove, directory), "remove")
                if isinstance(error, (OSError, *SQLITE_FAILURES)):
                    raise StoreError(_failure_text(directory, error)) from error
                raise
            self.current = snapshot
        took_ms = self._runtime.clock.monotonic_ms() - start_ms
        logs.info(
            "data_snapshot.created", snapshot=snapshot_id, took_ms=round(took_ms), paused_ms=round(snapshot.paused_ms)
        )
        self._tasks.start(self._expire(snapshot), "expire")
        return snapshot

    def renew(self, snapshot_id: str) -> DataSnapshot | None:
        """Restart the expiry time of a snapshot. Return None if it does not exist."""
        snapshot = self.current
        if snapshot is None or snapshot.snapshot_id != snapshot_id:
            return None
        snapshot.expires_ms = self._expiry_ms()
        return snapshot

    async def release(self, snapshot_id: str) -> bool:
        snapshot = self.current
        if snapshot is None or snapshot.snapshot_id != snapshot_id:
            return False
        await self._remove(snapshot)
        logs.info("data_snapshot.released", snapshot=snapshot_id)
        return True

    async def close(self) -> None:
        await self._tasks.close()
        if self.current is not None:
            await self._remove(self.current)

    def remaining_ms(self, snapshot: DataSnapshot) -> float:
        return max(0.0, snapshot.expires_ms - self._runtime.clock.monotonic_ms())

    async def _create(self, snapshot_id: str, directory: Path) -> DataSnapshot:
        if (reason := self._store.refusal()) is not None:
            raise StoreError(
                f"The broker cannot make a checkpoint for the snapshot, because it has no disk space ({reason}). "
                "Free disk space, then try again"
            )
        lineage = await self._lineage()
        ledgers = StoreDirectories.below(self._directory).ledgers
        copied = directory / LEDGERS
        linked = await self._in_thread(_link_files, ledgers, copied, frozenset())
        # A first checkpoint, so that the one during the pause has little to write.
        await self._checkpoint(None)
        clock = self._runtime.clock
        with ExitStack() as opened:
            async with self._metadata.paused():
                start_ms = clock.monotonic_ms()
                await self._checkpoint(self._config.data_snapshot_pause_timeout_ms / 1000)
                created_ms = clock.wall_ms()
                databases = {}
                for name in DATABASES:
                    databases[name] = await self._in_thread(DatabaseSnapshot, self._directory / name)
                    opened.callback(databases[name].close)
                await self._in_thread(_link_files, ledgers, copied, linked)
                paused_ms = clock.monotonic_ms() - start_ms
            for name, database in databases.items():
                await self._in_thread(database.copy_to, directory / name)
        return DataSnapshot(snapshot_id, directory, lineage, created_ms, paused_ms, self._expiry_ms())

    async def _checkpoint(self, timeout_s: float | None) -> None:
        # In a separate task: a checkpoint must not be cancelled, and without disk space it does not end.
        is_made: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def make() -> None:
            result = await self._store.checkpoint()
            if not is_made.done():
                is_made.set_result(result)

        self._tasks.start(make(), "checkpoint")
        try:
            if await asyncio.wait_for(is_made, timeout_s):
                return
        except TimeoutError:
            raise StoreError(
                f"No snapshot was taken, because its checkpoint took longer than dataSnapshotPauseTimeoutMs "
                f"({self._config.data_snapshot_pause_timeout_ms} ms), during which metadata requests wait. "
                "Try again when the broker has less load, or increase the timeout"
            ) from None
        raise StoreError(
            "No snapshot was taken, because the broker is stopping or has failed to write to its disk. The log of the broker has "
            "the reason"
        )

    async def _lineage(self) -> str:
        found = await self._metadata.get(BACKUP_LINEAGE)
        if found is None:
            lineage = f"{self._runtime.random.getrandbits(128):032x}"
            try:
                await self._metadata.put(BACKUP_LINEAGE, lineage.encode(), NOT_EXISTING)
            except BadVersionError:
                return await self._lineage()
            return lineage
        return found.value.decode()

    async def _in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run `work` in a thread. A cancelled caller still waits for the end of `work`, because the caller then removes
        the directory.
        """
        return await self._tasks.run_to_end(asyncio.to_thread(work, *arguments), "files")

    async def _expire(self, snapshot: DataSnapshot) -> None:
        while self.current is snapshot and (remaining_ms := self.remaining_ms(snapshot)):  # noqa: ASYNC110 - renewals move it
            await asyncio.sleep(remaining_ms / 1000)
        if self.current is snapshot:
            await self._remove(snapshot)
            logs.warning("data_snapshot.expired", snapshot=snapshot.snapshot_id)

    async def _remove(self, snapshot: DataSnapshot) -> None:
        self.current = None
        await asyncio.to_thread(_remove, snapshot.directory)

    def _expiry_ms(self) -> float:
        return self._runtime.clock.monotonic_ms() + self._config.data_snapshot_timeout_seconds * 1000

    def _in_use_text(self) -> str:
        if self.current is None:
            return "Another data snapshot is being taken. Retry when it is complete"
        return (
            f"Data snapshot {self.current.snapshot_id} exists, and only one can exist at a time. It expires in"
            f" {self.remaining_ms(self.current) / 1000:.0f} s unless its backup renews it. To remove the snapshot now, use"
            f" DELETE /admin/v3/data-snapshots/{self.current.snapshot_id}"
        )


def remove_earlier_snapshots(directory: Path) -> None:
    """Remove data snapshots that an earlier run of the broker left in its data directory. Blocking."""
    _remove(directory / SNAPSHOTS)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _link_files(source: Path, target: Path, linked: AbstractSet[str]) -> frozenset[str]:
    """Update `target` so that it contains links to exactly the segment files in `source`. `linked`: the existing
    links.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    present = {entry.name for entry in os.scandir(source) if parse_segment_name(entry.name) is not None}
    found = set(linked & present)
    for name in linked - present:
        (target / name).unlink()
    for name in present - linked:
        try:
            (target / name).hardlink_to(source / name)
        except FileNotFoundError:
            continue  # deleted meanwhile
        found.add(name)
    return frozenset(found)


def _failure_text(directory: Path, error: BaseException) -> str:
    advice = ""
    if isinstance(error, OSError) and error.errno in _NO_LINKS:
        advice = ". The file system of the data directory has no hard links: use its own snapshots instead"
    return f"the data snapshot in {directory} failed: {error}{advice}"
