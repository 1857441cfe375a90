"""Errors of a start if `checkpoint.db` and the other files do not belong together: no new store replaces existing
entries.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.faults import FaultyStore, faulty_store
from tests.unit.local_store.stores import DIRECTORY, SMALL, open_store, read_all

from pybroker.errors import StoreError
from pybroker.local_store.checkpoint.checkpoint_rows import row_checksum
from pybroker.local_store.segments.segment_tail import UnknownEntries
from pybroker.local_store.segments.segment_writer import SegmentWriter, segment_path
from pybroker.storage_format.segment_layout import LedgerExtent, SegmentIndex

TABLE = DIRECTORY / "checkpoint.db"
LEDGERS = DIRECTORY / "ledgers"


async def stopped() -> tuple[FaultDisk, int]:
    """The disk of a store that was closed in order, and its one ledger."""
    it = await faulty_store()
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"a" * 1000)
    await it.store.close()
    return it.disk.after_kill(), ledger_id


def change_table(disk: FaultDisk, statement: str) -> None:
    connection = disk.open_database(TABLE)
    connection.execute(statement)
    connection.close()


def remove(disk: FaultDisk) -> None:
    disk.unlink(TABLE)


def empty(disk: FaultDisk) -> None:
    remove(disk)
    disk.open_database(TABLE).close()


def contents(disk: FaultDisk, name_start: str = "") -> dict[Path, bytes]:
    return {path: bytes(content.cached) for path, content in disk._names.items() if path.name.startswith(name_start)}


def forget_facts(disk: FaultDisk) -> None:
    change_table(disk, "DELETE FROM facts")


@pytest.mark.parametrize(
    ("lose", "what"), [(remove, "is missing"), (empty, "is empty"), (forget_facts, "has an empty table of facts")]
)
@pytest.mark.parametrize("rest", ["ledgers", "journal", "all"])
async def test_store_without_facts_is_refused_with_remedy(
    lose: Callable[[FaultDisk], None], what: str, rest: str
) -> None:
    disk, _ = await stopped()
    lose(disk)
    for directory in (LEDGERS, DIRECTORY / "journal"):
        for name in disk.list_names(directory):
            if rest not in (directory.name, "all"):
                disk.unlink(directory / name)
    before = contents(disk)
    for _ in range(2):  # the first refusal has not created the missing data
        with pytest.raises(
            StoreError, match=f"checkpoint.db {what}, but /data contains .* files, .*Restore checkpoint.*move"
        ):
            await FaultyStore(disk).open()
        assert contents(disk) == before


async def test_store_that_lost_one_fact_is_refused() -> None:
    disk, _ = await stopped()
    change_table(disk, "DELETE FROM facts WHERE name = 'sequence'")
    with pytest.raises(StoreError, match=r"checkpoint\.db is damaged: the values sequence are missing"):
        await FaultyStore(disk).open()


async def test_file_of_unknown_ledger_shows_that_table_is_older() -> None:
    """Its id would be given again: ids are reserved by a transaction before they are given."""
    disk, ledger_id = await stopped()
    file = disk.open_for_write(segment_path(LEDGERS, 70_000))
    SegmentWriter(file, 70_000, LedgerExtent(0, 0, 0, 0), SegmentIndex(), syncs_slices=False).write([b"new"], [1])
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"checkpoint\.db is older than the ledgers: it does not contain ledger 70000"
        ):
            await FaultyStore(disk).open()
    disk.unlink(segment_path(LEDGERS, 70_000))
    again = await FaultyStore(disk).open()
    assert again.store.is_id_given(ledger_id)
    made = await again.store.create_ledger()
    assert not again.store.is_id_given(made), "it is of this run"
    assert await read_all(again.store, ledger_id) == [b"a" * 1000]
    await again.store.close()


async def test_impossible_ledger_file_name_is_refused() -> None:
    disk, _ = await stopped()
    disk.open_for_write(LEDGERS / f"{'9' * 20}.ledger")
    with pytest.raises(StoreError, match=r"99999\.ledger contains a ledger id above"):
        await FaultyStore(disk).open()


async def test_segment_beyond_table_and_journal_stops_start_unchanged() -> None:
    """The table and the journal are put back from a copy that is older than the segment."""
    it = await faulty_store()
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"first")
    assert await it.store._checkpointer.run()
    old = it.disk.after_kill()
    databases = contents(old, TABLE.name)
    it = await FaultyStore(old).open()
    ledger_id = await it.store.create_ledger()
    await it.append(ledger_id, 0, b"second")
    assert await it.store._checkpointer.run()
    await it.append(ledger_id, 1, b"third")
    await it.store.close()
    disk = it.disk.after_kill()
    extent = LedgerExtent(0, 0, 0, 0)
    for path, data in databases.items():
        disk.open_for_write(path).truncate(0)
        disk.open_for_write(path).write_at((data,), 0, durable=True)
    change_table(disk, f"INSERT INTO unsealed VALUES ({', '.join(map(str, _row(ledger_id, extent)))})")
    # As in an earlier version, which recorded less about the journal.
    change_table(disk, "DELETE FROM facts WHERE name = 'is_journal_made'")
    for name in disk.list_names(DIRECTORY / "journal"):
        disk.unlink(DIRECTORY / "journal" / name)
    name = segment_path(Path(), ledger_id).name
    before = disk.read_whole(name)
    with pytest.raises(UnknownEntries, match=rf"{name} is damaged at offset \d+: entry {ledger_id}:0 exists"):
        await FaultyStore(disk).open()
    assert disk.read_whole(name) == before


def _row(ledger_id: int, extent: LedgerExtent) -> tuple[int, ...]:
    values = (ledger_id, extent.end_offset, extent.entry_count, extent.message_count, extent.size_bytes)
    return (*values, row_checksum(*values))


async def test_names_are_certain_since_first_synced_journal() -> None:
    """A ledger that a power cut may bring back without its name stays such a one, whatever runs come behind."""
    disk, ids = FaultDisk(), []
    for is_synced in (True, False, False, True, True):
        store, _ = await open_store(disk, replace(SMALL, sync_data=is_synced))
        ids.append(await store.create_ledger())
        certain = [store.is_name_certain(ledger_id) for ledger_id in ids]
        assert (
            certain == ([True], [False] * 2, [False] * 3, [False] * 3 + [True], [False] * 3 + [True] * 2)[len(ids) - 1]
        )
        if is_synced:
            await store.close()
        survivor = disk.after_kill()
        await store.close()
        disk = survivor


async def test_names_are_uncertain_without_journal_mode() -> None:
    disk, ledger_id = await stopped()
    change_table(disk, "DELETE FROM facts WHERE name = 'first_named_ledger_id'")
    for _ in range(2):
        store, _ = await open_store(disk)
        assert not store.is_name_certain(ledger_id)
        assert store.is_name_certain(await store.create_ledger())
        await store.close()
        disk = disk.after_kill()
