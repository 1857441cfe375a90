"""Conversion of the documents of metadata layout 2, whole or not at all, whatever interrupts it."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from tests.support.cut_states import MODES, PowerCut, make
from tests.support.earlier_metadata import CONVERTED, EARLIER, write_layout_2
from tests.support.recorded_disk import RecordedDisk

from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.metadata.document_layout import converted_documents
from pybroker.metadata.metadata_store import PAGE_VALUES
from pybroker.metadata.partitioned_topics import PartitionedTopics
from pybroker.metadata.resource_groups import ResourceGroups
from pybroker.metadata.resources import Resources
from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore
from pybroker.model.names import NamespaceName, TopicName

NAME, MARK = "metadata.db", "metadata.end"


async def contents(directory: Path, disk: Disk | None = None) -> dict[str, bytes]:
    store = await SqliteMetadataStore.open(directory / NAME, disk, directory / MARK)
    try:
        return {path: found.value for path, found in await store.values_below("/", "", 1000)}
    finally:
        await store.close()


async def test_every_document_is_converted_once_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pybroker")
    write_layout_2(tmp_path / NAME, EARLIER)
    for times in (1, 0):
        assert await contents(tmp_path) == CONVERTED
        assert [record.message for record in caplog.records].count("metadata.converted") == times
        caplog.clear()
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


async def test_many_schemas_are_converted_page_by_page(tmp_path: Path) -> None:
    names = [f"t/ns/topic-{number:05}/{0:020}" for number in range(2 * PAGE_VALUES + 1)]
    write_layout_2(tmp_path / NAME, {f"/schemas/{name}": name.encode() for name in names})
    store = await SqliteMetadataStore.open(tmp_path / NAME)
    found = await store.values_below("/", "", 10 * PAGE_VALUES)
    await store.close()
    assert [(path, value.value) for path, value in found] == [
        (f"/pybroker/schemas/{name}", name.encode()) for name in names
    ]


async def test_versions_of_moved_documents_stay(tmp_path: Path) -> None:
    write_layout_2(tmp_path / NAME, EARLIER)
    store = await SqliteMetadataStore.open(tmp_path / NAME)
    versions = {path: found.version for path, found in await store.values_below("/", "", 1000)}
    await store.close()
    new, changed = "/admin/local-policies/t/moved", "/admin/local-policies/t/ns"
    assert (versions.pop(new), versions.pop(changed)) == (0, 4)
    assert set(versions.values()) == {3}


async def test_an_unreadable_map_of_failure_domains_stays_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/admin/clusters/standalone/failure-domains"
    for value in (b"{", b"[]", b"5", b'{"a":"\xff"}', b"[" * 100_000):
        (tmp_path / NAME).unlink(missing_ok=True)
        write_layout_2(tmp_path / NAME, {path: value})
        assert await contents(tmp_path) == {path: value}
        assert "metadata.document_not_converted" in [record.message for record in caplog.records]
        caplog.clear()


def test_documents_of_the_current_layout_are_not_changed() -> None:
    rows = {path: (value, 3) for path, value in CONVERTED.items() if "+" not in path}
    conversion = converted_documents(rows)
    assert conversion.removed == []
    assert {path: value for path, (value, _) in conversion.written.items()}.items() <= CONVERTED.items()


async def test_converted_documents_are_read_by_their_owners(tmp_path: Path) -> None:
    write_layout_2(tmp_path / NAME, {path: value for path, value in EARLIER.items() if "unreadable" not in path})
    store = await SqliteMetadataStore.open(tmp_path / NAME)
    resources, groups, partitioned = Resources(store), ResourceGroups(store), PartitionedTopics(store)
    for part in (resources, groups, partitioned):
        await part.load()
    namespaces = [NamespaceName("t", name) for name in ("moved", "ns", "plain")]
    assert resources.tenants() == ["t"]
    assert resources.namespaces("t") == namespaces
    found = [resources.namespace(namespace) for namespace in namespaces]
    assert [each.migrated for each in found if each is not None] == [True, False, False]
    assert resources.local_policies(namespaces[1]).namespaceAntiAffinityGroup == "g"
    assert groups.names() == ["a/b", "größe L"]
    assert partitioned.get(TopicName.parse("persistent://t/ns/a b~+c")) is not None
    await store.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_conversion_that_is_cut_off_anywhere_is_repeated(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "run"
    root.mkdir()
    write_layout_2(root / NAME, EARLIER)
    disk = RecordedDisk(root)
    assert await contents(root, disk) == CONVERTED
    layouts: set[int] = set()
    for cut in range(disk.begin, len(disk.events) + 1):
        state = tmp_path / "state"
        make(PowerCut(disk.events, cut).state(mode, Random(cut)), root, state)
        with closing(sqlite3.connect(state / NAME)) as connection:
            layouts |= set(*connection.execute("PRAGMA user_version"))
        assert await contents(state) == CONVERTED, (mode, cut)
        shutil.rmtree(state)
    assert layouts == {2, 3}


async def test_a_full_disk_leaves_the_earlier_layout(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def open_database(self, path: Path) -> sqlite3.Connection:
            connection = super().open_database(path)
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
            connection.execute("PRAGMA cache_size = 1")
            return connection

    many = {f"/admin/topic-policies/t/ns/persistent/{number}": b"x" * 3000 for number in range(200)}
    write_layout_2(tmp_path / NAME, {**EARLIER, **many, "/admin/clusters/c/failure-domains": _many_domains()})
    with pytest.raises(StoreError, match="full"):
        await contents(tmp_path, FullDisk())
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert len(await contents(tmp_path)) > len(many)


def _many_domains() -> bytes:
    return json.dumps({f"{number:05}": {"brokers": ["b" * 500]} for number in range(1000)}).encode()


async def test_lost_changes_of_an_earlier_layout_are_detected(tmp_path: Path) -> None:
    """The conversion must not count as one of the commits that were answered."""
    store = await SqliteMetadataStore.open(tmp_path / "other.db", mark=tmp_path / MARK)
    for number in range(7):
        await store.put("/x", b"%d" % number)
    await store.close()
    write_layout_2(tmp_path / NAME, EARLIER, commits=7)  # One more was answered: that of the creation.
    with pytest.raises(StoreError, match="contains only 7 of 8 confirmed transactions"):
        await contents(tmp_path)
    with pytest.raises(StoreError, match="contains only 7 of 8 confirmed transactions"):
        await contents(tmp_path)
