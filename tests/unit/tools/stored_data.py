"""A data directory with two topics, as a kill leaves it and as an orderly stop does."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.local_store.stores import FilesAtOnce

from pybroker.errors import StoreError
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.local_store.data_directory import DataDirectoryLock
from pybroker.local_store.local_store import LocalStore
from pybroker.local_store.store_environment import StoreEnvironment
from pybroker.local_store.store_options import LocalStoreOptions
from pybroker.managed_ledger.cache.entry_cache import EntryCache
from pybroker.managed_ledger.factory import ManagedLedgerFactory
from pybroker.managed_ledger.ledger_listener import ManagedLedgerListener
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.managed_ledger.shared_resources import LedgerResources
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.runtime.clock import Clock
from pybroker.tools.data_files import opened
from pybroker.tools.dump import Dump
from pybroker.tools.stored_state import Finding
from pybroker.tools.verify import Verifier
from pybroker.wire.entry_metadata import publish_time_ms
from pybroker.wire.pulsar_api_pb2 import MessageMetadata

OPTIONS = LocalStoreOptions(direct_io=False, journal_file_bytes=1 << 20, checkpoint_max_bytes=1 << 30)
TOPICS = ("/managed-ledgers/public/default/persistent/orders", "/managed-ledgers/public/default/persistent/logs")


def message(number: int, size_bytes: int = 300) -> bytes:
    metadata = MessageMetadata(producer_name="a producer", sequence_id=number, publish_time=1_000_000 + number)
    metadata.partition_key = f"key-{number}"
    data = metadata.SerializeToString()
    return len(data).to_bytes(4, "big") + data + bytes([number % 251]) * size_bytes


class _Topic(ManagedLedgerListener):
    """Waits for what it appended."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger
        self.appended = 0
        self.stored = asyncio.Semaphore(0)
        ledger.listen(self)

    async def append(self, count: int, size_bytes: int) -> None:
        payloads = [message(self.appended + number, size_bytes) for number in range(count)]
        self.appended += count
        self.ledger.append(payloads, [1] * count, sum(map(len, payloads)), None)
        await self.stored.acquire()

    def entries_added(self, runs: list[AppendRun]) -> None:
        self.stored.release()

    def split_context(self, context: object, entry_count: int) -> tuple[object, object]:
        raise AssertionError("these stores know the outcome of every append")

    def fenced(self, error: StoreError) -> None:
        raise AssertionError("nobody else writes here") from error

    def append_failed(self, runs: list[AppendRun], error: StoreError) -> None:
        raise AssertionError from error


async def _written(cursor: ManagedCursor) -> None:
    done = asyncio.get_running_loop().create_future()
    cursor.changed(done.set_result)
    assert await done is None


def _never(error: BaseException) -> None:
    raise AssertionError from error


async def _make(directory: Path, killed: Path) -> None:
    DataDirectoryLock(directory).release()
    # Two runs, so that there are sealed ledgers, a checkpoint and a journal behind it.
    for run in range(2):
        metadata = await SqliteMetadataStore.open(directory / "metadata.db")
        around = StoreEnvironment(threads=FilesAtOnce())
        store = await LocalStore.open(directory, OPTIONS, _never, around, publish_time_ms)
        runtime = LedgerResources(store, EntryCache(0), LedgerLimits(), Clock(), 5, publish_time_ms)
        factory = ManagedLedgerFactory(runtime, store, metadata)
        topics = [_Topic(await factory.open(path)) for path in TOPICS]
        for number, topic in enumerate(topics):
            if run == 0:
                await factory.create_cursor(topic.ledger, "a sub", topic.ledger.last_confirmed, {"who": "me"})
            await topic.append(80, 300 + 2000 * number)
            cursor = topic.ledger.cursors["a sub"]
            cursor.state.acknowledge(topic.ledger.current_ledger_id, range(3, 40, 2))
            await _written(cursor)
        if run == 1:
            assert await store._checkpointer.run()
            for topic in topics:
                await topic.append(10, 500)
                cursor = topic.ledger.cursors["a sub"]
                cursor.state.acknowledge(topic.ledger.current_ledger_id, [60, 62])
                await _written(cursor)
            shutil.copytree(directory, killed)
        await factory.close()
        await store.close()
        await metadata.close()


def make(root: Path) -> tuple[Path, Path]:
    """The directory after an orderly stop, and as it was when the process was killed."""
    stopped, killed = root / "stopped", root / "killed"
    asyncio.run(_make(stopped, killed))
    return stopped, killed


def verify(directory: Path) -> list[Finding]:
    findings: list[Finding] = []
    with opened(directory) as files:
        Verifier(files, findings.append, lambda done, total: None).run()
    return findings


def damages(directory: Path) -> list[Finding]:
    return [finding for finding in verify(directory) if finding.is_damage]


def content(directory: Path) -> list[dict[str, Any]]:
    """All that is stored, as the dump sees it."""
    with opened(directory) as files:
        return json.loads(json.dumps(list(Dump(files, None, with_payloads=True).items())))  # type: ignore[no-any-return]


def file_bytes(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@contextmanager
def flipped(path: Path, offset: int, bit: int = 0) -> Iterator[None]:
    """The file with one bit flipped, for as long as the block runs."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes((data[offset] ^ 1 << bit,)))
    try:
        yield
    finally:
        path.write_bytes(data)
