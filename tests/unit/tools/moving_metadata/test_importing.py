"""Import into memory and SQLite: plans, interruptions at each write, and brokers that change documents meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.moved_documents import CLUSTER, LEFT, MOVED, content, export, put_all

from pybroker.errors import StoreError
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.metadata.metadata_store import ANY_VERSION, Change, MetadataStore
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.tools.moving_metadata import importing
from pybroker.tools.moving_metadata.export_file import FileRefused
from pybroker.tools.moving_metadata.importing import Action, Difference, Import, Outcome


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened: MetadataStore = MemoryMetadataStore()
    if request.param == "sqlite":
        opened = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    yield opened
    await opened.close()


@pytest.fixture
async def exported(tmp_path: Path) -> Path:
    source = MemoryMetadataStore()
    await put_all(source, MOVED | LEFT)
    await export(source, tmp_path / "exported")
    return tmp_path / "exported"


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


class Planned:
    """The reported actions."""

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}

    def __call__(self, path: str, action: Action) -> None:
        self.actions[path] = action


async def run(
    store: MetadataStore, file: Path, difference: Difference = Difference.REFUSE, *, is_pruning: bool = False
) -> tuple[Outcome, dict[str, Action]]:
    """Import, if nothing differs, and return the plan."""
    planned = Planned()
    with file.open("rb") as opened:
        task = Import(store, opened, CLUSTER, difference, is_pruning, lambda _: None)
        outcome = await task.planned(planned)
        if not outcome.different:
            await task.perform()
            remaining = await task.remaining(lambda path, action: None)
            assert (remaining.created, remaining.replaced, remaining.deleted) == (0, 0, 0)
    return outcome, planned.actions


async def test_everything_is_created_once_and_exports_again_as_the_same_file(
    store: MetadataStore, exported: Path, tmp_path: Path
) -> None:
    outcome, _ = await run(store, exported)
    assert outcome == Outcome(created=len(MOVED))
    assert await content(store) == MOVED
    for path in LEFT:
        assert await store.get(path) is None
    await export(store, tmp_path / "again")
    assert bytes_of(tmp_path / "again") == bytes_of(exported)
    versions = [await store.get(path) for path in MOVED]
    assert (await run(store, exported))[0] == Outcome(equal=len(MOVED))
    assert [await store.get(path) for path in MOVED] == versions


async def test_differences_are_refused_kept_or_replaced(store: MetadataStore, exported: Path) -> None:
    other = {"/admin/policies/t": b'{"adminRoles":["x"]}', "/admin/policies/mine": b"{}"}
    own = {
        "/admin/clusters/c1": b'{"serviceUrl":"http://new:8080"}',
        "/admin/partitioned-topics/pulsar/system/persistent/x": b'{"partitions":16}',
    }
    await put_all(store, other | own)
    before = await content(store)
    outcome, actions = await run(store, exported)
    assert outcome.different == 1
    assert actions["/admin/policies/t"] is Action.DIFFERENT
    assert actions["/admin/policies/mine"] is Action.ONLY_IN_STORE
    assert await content(store) == before
    outcome, _ = await run(store, exported, Difference.KEEP)
    assert (outcome.kept, outcome.created) == (2, len(MOVED) - 2)
    assert await content(store) == MOVED | other | own
    outcome, _ = await run(store, exported, Difference.REPLACE)
    assert (outcome.replaced, outcome.kept, outcome.only_in_store) == (1, 1, 1)
    assert await content(store) == MOVED | own | {"/admin/policies/mine": b"{}"}
    outcome, actions = await run(store, exported, Difference.REPLACE, is_pruning=True)
    assert actions["/admin/policies/mine"] is Action.DELETE
    assert await content(store) == MOVED | own


class Interrupted(Exception):
    pass


class Stopping(MemoryMetadataStore):
    """Fails each change after `changes` of them."""

    changes = 0

    def _count(self) -> None:
        if self.changes == 0:
            raise Interrupted
        self.changes -= 1

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        self._count()
        return await super().put(path, value, expected_version)

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        self._count()
        return await super().change_together(changes)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> bool:
        self._count()
        return await super().delete(path, expected_version)


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_interrupted_at_each_write_the_same_command_completes_it(
    exported: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_DOCUMENTS", size)
    store = Stopping()
    store.changes = 2
    await put_all(store, {"/admin/policies/old": b"{}", "/admin/policies/t": b"{}"})
    interruptions = 0
    while True:
        store.changes = 1
        try:
            await run(store, exported, Difference.REPLACE, is_pruning=True)
        except Interrupted:
            interruptions += 1
            namespaces = [path for path in await content(store) if path.count("/") == 4 and "/policies/" in path]
            assert not namespaces or "/admin/local-policies/t/n" in await content(store)
            continue
        break
    assert interruptions >= (len(MOVED) if size == 1 else 5)
    assert await content(store) == MOVED


class Busy(MemoryMetadataStore):
    """A broker changes a document between the comparison and the write, `times` times."""

    times = 0

    async def _meanwhile(self) -> None:
        if self.times:
            self.times -= 1
            await super().put("/admin/policies/t", f'{{"adminRoles":["{self.times}"]}}'.encode())

    async def put(self, path: str, value: bytes, expected_version: int = ANY_VERSION) -> int:
        await self._meanwhile()
        return await super().put(path, value, expected_version)

    async def change_together(self, changes: Sequence[Change]) -> list[int | None]:
        await self._meanwhile()
        return await super().change_together(changes)


async def test_document_that_a_broker_creates_meanwhile_is_not_overwritten(exported: Path) -> None:
    store = Busy()
    store.times = 1
    await run(store, exported)
    assert await content(store) == MOVED | {"/admin/policies/t": b'{"adminRoles":["0"]}'}


async def test_documents_that_brokers_change_all_the_time_end_the_import(exported: Path) -> None:
    store = Busy()
    store.times = 1000
    with pytest.raises(StoreError, match="being changed by a broker: repeat the command"):
        await run(store, exported, Difference.REPLACE)


async def test_large_values_are_moved_and_too_large_ones_refused_for_zookeeper(tmp_path: Path, exported: Path) -> None:
    large = {"/pybroker/topic-policies/t/n/persistent/x": b"\x00" * 1_000_000}
    source, target = MemoryMetadataStore(), MemoryMetadataStore()
    await put_all(source, large)
    await export(source, tmp_path / "large")
    await run(target, tmp_path / "large")
    assert await content(target) == large
    await put_all(source, {"/pybroker/topic-policies/t/n/persistent/y": b"\x00" * 1_048_000})
    await export(source, tmp_path / "large")

    class Shared(MemoryMetadataStore):
        @property
        def is_shared(self) -> bool:
            return True

    refusing = Shared()
    with pytest.raises(FileRefused, match="persistent/y has 1048000 bytes"):
        await run(refusing, tmp_path / "large")
    assert await content(refusing) == {}


async def test_interrupted_export_keeps_the_earlier_file(exported: Path) -> None:
    before = bytes_of(exported)

    class Failing(MemoryMetadataStore):
        async def values_of(self, paths: Sequence[str]) -> Any:
            raise StoreError("unreachable")

    source = Failing()
    await put_all(source, MOVED)
    with pytest.raises(StoreError, match="unreachable"):
        await export(source, exported)
    assert bytes_of(exported) == before
    assert not exported.with_name("exported.partial").exists()
    assert exported.stat().st_mode & 0o077 == 0  # noqa: ASYNC240
