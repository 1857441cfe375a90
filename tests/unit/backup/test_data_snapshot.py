"""Data snapshots of a local store: content of one moment, one at a time, renewal, expiry, failures."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pybroker.backup.data_snapshot import DataSnapshots, SnapshotInUse, remove_earlier_snapshots
from pybroker.config import BrokerConfig
from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendListener, AppendRun
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.runtime.clock import Clock
from pybroker.runtime.runtime import Runtime

OPTIONS = LocalStoreOptions(direct_io=False, journal_file_bytes=1 << 17, reserve_bytes=1 << 16, read_threads=1)


class SetClock(Clock):
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def monotonic_ms(self) -> float:
        return self.now_ms


class Listener(AppendListener):
    """Waits for appends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def append_completed(self, runs: list[AppendRun], error: StoreError | None) -> None:
        assert error is None
        self.ended.set()


@dataclass
class Stores:
    """A store with metadata, and the snapshots of both."""

    directory: Path
    store: LocalStore
    metadata: SqliteMetadataStore
    snapshots: DataSnapshots
    clock: SetClock


def no_failure(error: BaseException) -> None:
    raise AssertionError(error)


@asynccontextmanager
async def opened(directory: Path, config: BrokerConfig | None = None) -> AsyncIterator[Stores]:
    store = await LocalStore.open(directory, OPTIONS, no_failure)
    metadata = await SqliteMetadataStore.open(directory / "metadata.db")
    clock = SetClock()
    runtime = Runtime(config or BrokerConfig(), clock=clock)
    snapshots = DataSnapshots(directory, store, metadata, runtime)
    try:
        yield Stores(directory, store, metadata, snapshots, clock)
    finally:
        await snapshots.close()
        await metadata.close()
        await store.close()


async def test_second_snapshot_is_refused_until_release(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        first = await stores.snapshots.create()
        with pytest.raises(SnapshotInUse, match=f"Data snapshot {first.snapshot_id} exists"):
            await stores.snapshots.create()
        assert not await stores.snapshots.release("other")
        assert await stores.snapshots.release(first.snapshot_id)
        assert not first.directory.exists()
        second = await stores.snapshots.create()
        assert second.lineage == first.lineage
        assert second.snapshot_id != first.snapshot_id


async def test_concurrent_requests_get_one_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        results = await asyncio.gather(*(stores.snapshots.create() for _ in range(4)), return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["DataSnapshot", *["SnapshotInUse"] * 3]


async def test_renewal_moves_expiry(tmp_path: Path) -> None:
    async with opened(tmp_path, BrokerConfig(data_snapshot_timeout_seconds=100)) as stores:
        snapshot = await stores.snapshots.create()
        assert stores.snapshots.remaining_ms(snapshot) == 100_000
        stores.clock.now_ms += 99_000
        assert stores.snapshots.renew(snapshot.snapshot_id) is snapshot
        assert stores.snapshots.renew("other") is None
        assert stores.snapshots.remaining_ms(snapshot) == 100_000
        stores.clock.now_ms += 100_001
        assert stores.snapshots.remaining_ms(snapshot) == 0


async def test_metadata_waits_while_it_is_paused(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        async with stores.metadata.paused():
            writing = asyncio.create_task(stores.metadata.put("/a", b"1"))
            reading = asyncio.create_task(stores.metadata.get("/a"))
            await asyncio.sleep(0.05)
            assert not writing.done()
            assert not reading.done()
        assert await writing == 0
        found = await reading
        assert found is not None
        assert found.value == b"1"


async def test_links_keep_deleted_ledger(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        ledger_id = await stores.store.create_ledger()
        listener = Listener()
        stores.store.append(AppendRun(listener, ledger_id, 0, [b"payload"], [1], 7, None))
        await listener.ended.wait()
        snapshot = await stores.snapshots.create()
        await stores.store.delete_ledger(ledger_id)
        await stores.store.checkpoint()
        name = f"{ledger_id:020d}.ledger"
        assert not (tmp_path / "ledgers" / name).exists()
        assert b"payload" in (snapshot.directory / "ledgers" / name).read_bytes()


async def test_failed_snapshot_leaves_nothing_and_metadata_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, BrokerConfig(data_snapshot_pause_timeout_ms=20)) as stores:
        released = asyncio.Event()
        checkpoints = 0

        async def slow_checkpoint() -> bool:
            nonlocal checkpoints
            checkpoints += 1
            if checkpoints == 2:  # the one during the pause
                await released.wait()
            return True

        monkeypatch.setattr(stores.store, "checkpoint", slow_checkpoint)
        with pytest.raises(StoreError, match="longer than dataSnapshotPauseTimeoutMs"):
            await stores.snapshots.create()
        assert await stores.metadata.put("/a", b"1") == 0
        assert list((tmp_path / "snapshots").iterdir()) == []
        released.set()
        await stores.snapshots.create()


async def test_store_without_checkpoints_takes_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as stores:

        async def no_checkpoint() -> bool:
            return False

        monkeypatch.setattr(stores.store, "checkpoint", no_checkpoint)
        with pytest.raises(StoreError, match="has failed to write to its disk"):
            await stores.snapshots.create()


async def test_full_disk_refuses_snapshot_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as stores:
        monkeypatch.setattr(stores.store, "refusal", lambda: "no space left")
        with pytest.raises(StoreError, match=r"no disk space \(no space left\).*Free disk space"):
            await stores.snapshots.create()


def test_start_removes_earlier_snapshots(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "left" / "ledgers").mkdir(parents=True)
    remove_earlier_snapshots(tmp_path)
    remove_earlier_snapshots(tmp_path)
    assert not (tmp_path / "snapshots").exists()
