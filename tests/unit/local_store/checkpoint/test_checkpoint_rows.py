"""Damage in `checkpoint.db` leads to an error with a text: never to an older state, or to a cursor that looks new."""

import sqlite3
from pathlib import Path
from random import Random

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.faults import FaultyStore, faulty_store
from tests.unit.local_store.stores import DIRECTORY

from pybroker.disk.disk import Disk
from pybroker.errors import StoreError
from pybroker.local_store.checkpoint.checkpoint_rows import SCHEMA, first_version_checksum, schema_version
from pybroker.local_store.checkpoint.checkpoint_table import (
    NAMES_NOT_CERTAIN,
    CheckpointTable,
    CursorChange,
    DamagedCursor,
    Facts,
    TableChange,
)
from pybroker.local_store.segments.segment_writer import segment_path
from pybroker.storage_format.segment_layout import LedgerExtent

FIRST_VERSION_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS unsealed(
    ledger_id INTEGER PRIMARY KEY, end_offset INTEGER NOT NULL, entry_count INTEGER NOT NULL,
    message_count INTEGER NOT NULL, size_bytes INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots(
    cursor_id TEXT PRIMARY KEY, number INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS deltas(
    cursor_id TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY(cursor_id, number)) WITHOUT ROWID;
"""
CURSORS = [f"/managed-ledgers/public/default/persistent/topic-{number}/sub#{number}.1" for number in range(120)]
Loaded = tuple[tuple[int, bytes] | None, list[tuple[int, bytes]]]


def opened(path: Path) -> tuple[CheckpointTable, list[str]]:
    """Open the table like a start, beside ledgers."""
    table = CheckpointTable(Disk(), path, "2 segment files")
    try:
        table.load_facts("2 segment files")
        return table, table.check()
    except BaseException:
        table.close()
        raise


def fill(path: Path) -> tuple[dict[str, Loaded], Facts, dict[int, LedgerExtent]]:
    """Return the content of a table of several pages."""
    random = Random(1)
    table = CheckpointTable(Disk(), path, "")
    facts = {"version": 2, "sequence": 7, "first_generation": 3, "cursor_number": 900, "ledger_id": 2001, "is_clean": 1}
    extents = {number: LedgerExtent(number * 100, number, number, number * 90) for number in range(1, 120)}
    for part in range(2):  # the second pass replaces most rows
        changes = [
            CursorChange(cursor_id, False, (number + part, random.randbytes(random.choice((20, 90, 3000)))), [], 0)
            if number % 4
            else CursorChange(cursor_id, False, None, [(number + part, b"delta %d" % number)], 0)
            for number, cursor_id in enumerate(CURSORS)
        ]
        table.commit(TableChange(dict(facts), dict(extents), [5, 6], changes))
    extents.pop(5)
    extents.pop(6)
    stored = {cursor_id: table.load_cursor(cursor_id) for cursor_id in (*CURSORS, "nobody")}
    found = table.load_facts(""), table.load_extents()
    assert table.check() == []
    table.close()
    return stored, *found


def opened_or_text(path: Path) -> tuple[CheckpointTable, list[str]] | str:
    try:
        return opened(path)
    except StoreError as error:
        return str(error)


def loaded_or_text(table: CheckpointTable, cursor_id: str) -> Loaded | str:
    try:
        return table.load_cursor(cursor_id)
    except DamagedCursor as error:
        return str(error)


@pytest.mark.parametrize(("seed", "count"), [(2, 100), pytest.param(3, 1500, marks=pytest.mark.long)])
def test_any_flipped_bit_is_refused_or_harmless(seed: int, count: int, tmp_path: Path) -> None:
    stored, facts, extents = fill(tmp_path / "sound.db")
    sound = (tmp_path / "sound.db").read_bytes()
    path = tmp_path / "checkpoint.db"
    outcomes = {"refused": 0, "cursor": 0, "nothing": 0}
    random = Random(seed)
    for _ in range(count):
        damaged = bytearray(sound)
        damaged[random.randrange(len(sound))] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        found = opened_or_text(path)
        if isinstance(found, str):
            assert "checkpoint.db" in found
            outcomes["refused"] += 1
            continue
        table, told = found
        assert (table.load_facts(""), table.load_extents()) == (facts, extents)
        for cursor_id, wanted in stored.items():
            got = loaded_or_text(table, cursor_id)
            assert got == wanted or ([cursor_id] == told and cursor_id in got)
        outcomes["cursor" if told else "nothing"] += 1
        table.close()
    assert min(outcomes.values()) > 0, outcomes


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "UPDATE digests SET row_count = row_count + 1 WHERE name = 'snapshots'",
            "rows of snapshots are lost or changed",
        ),
        ("UPDATE digests SET row_sum = row_sum + 1 WHERE name = 'deltas'", "rows of deltas are older than"),
        ("DELETE FROM digests WHERE name = 'unsealed'", "the digest of unsealed is missing"),
        ("UPDATE snapshots SET cursor_id = 'other' WHERE number = 8", "wrong checksum of snapshots row 'other'"),
        ("UPDATE unsealed SET end_offset = 0 WHERE ledger_id = 9", "wrong checksum of unsealed row 9"),
        ("UPDATE facts SET value = 0 WHERE name = 'sequence'", "wrong checksum of fact sequence"),
        ("DELETE FROM facts WHERE name = 'version'", "the values version are missing"),
        ("DROP TRIGGER deltas_insert", "other columns than in version 2: deltas_insert"),
    ],
)
def test_lost_or_changed_rows_are_reported(statement: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.db"
    fill(path)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=f"checkpoint.db is damaged: .*{reason}"):
        opened(path)


async def test_damaged_row_costs_only_its_cursor(caplog: pytest.LogCaptureFixture) -> None:
    it = await faulty_store()
    for cursor_id in ("a", "b", "c"):
        it.store.append_delta(cursor_id, b"delta", None)
    await it.store.flush()
    assert await it.store._checkpointer.run()
    it.store._table._connection.execute("BEGIN")
    it.store._table._connection.execute("UPDATE deltas SET data = x'32' WHERE cursor_id = 'b'")
    it.store._table._connection.execute("COMMIT")
    again = await it.again()
    assert again.store.stats().damaged_cursors == 1
    (record,) = (record for record in caplog.records if record.message == "checkpoint.cursor_damaged")
    assert record.fields["cursor"] == "b"  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(
            DamagedCursor, match=r"checkpoint\.db is damaged: the state of cursor b has a wrong checksum"
        ):
            await again.store.load("b")
        for cursor_id in ("a", "c"):
            assert await again.store.load(cursor_id) == (None, [b"delta"])
    assert again.store.stats().damaged_cursors == 1
    await again.store.delete("b")  # as if its topic were deleted: then no damage is left
    assert await again.store._checkpointer.run()
    third = await again.again()
    assert third.store.stats().damaged_cursors == 0
    assert await third.store.load("b") == (None, [])
    await third.store.close()


async def test_cursor_with_missing_rows_is_not_treated_as_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = await faulty_store()
    it.store.append_delta("a", b"delta", None)
    await it.store.flush()
    assert await it.store._checkpointer.run()
    it = await it.again()
    it.store._table._connection.execute("DELETE FROM deltas")
    for _ in range(2):
        with pytest.raises(DamagedCursor, match="the state of cursor a is missing"):
            await it.store.load("a")
    assert await it.store.load("new") == (None, [])
    assert (caplog.messages.count("checkpoint.cursor_damaged"), it.store.stats().damaged_cursors) == (1, 1)
    await it.store.close()


def first_version(path: Path) -> None:
    """Create a table of format version 1."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(FIRST_VERSION_SCHEMA)
    rows: dict[str, list[tuple[object, ...]]] = {
        "facts": [("version", 1), ("sequence", 7), ("first_generation", 3), ("cursor_number", 9), ("ledger_id", 1001)],
        "unsealed": [(4, 500, 5, 6, 400)],
        "snapshots": [("a", 3, b"snapshot")],
        "deltas": [("a", 4, b"delta"), ("b", 5, b"delta")],
    }
    rows["facts"].append(("is_clean", 0))
    for table, found in rows.items():
        for row in found:
            places = ", ".join("?" * (len(row) + 1))
            connection.execute(f"INSERT INTO {table} VALUES ({places})", (*row, first_version_checksum(*row)))
    connection.close()


def test_table_of_first_version_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.db"
    first_version(path)
    for _ in range(2):
        table, damaged = opened(path)
        assert damaged == []
        assert table.load_facts("") == Facts(2, 7, 3, 9, 1001, 0, 0, NAMES_NOT_CERTAIN)
        assert table.load_extents() == {4: LedgerExtent(500, 5, 6, 400)}
        assert table.load_cursor("a") == ((3, b"snapshot"), [(4, b"delta")])
        assert table.load_cursor("b") == (None, [(5, b"delta")])
        assert schema_version(table._connection) == 2
        table.close()


def test_damaged_table_of_first_version_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.db"
    first_version(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE snapshots SET number = 2")
    before = connection.serialize()
    for _ in range(2):
        with pytest.raises(
            StoreError,
            match=r"checkpoint\.db is damaged: row 'a' of table snapshots has a wrong checksum, .* not converted",
        ):
            opened(path)
    assert sorted(row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE sql NOT NULL")) == sorted(
        {"facts", "unsealed", "snapshots", "deltas"}
    )
    assert len(before) == len(connection.serialize())
    connection.close()


async def test_conversion_without_space_changes_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    first_version(tmp_path / "checkpoint.db")
    disk = FaultDisk()
    disk.open_for_write(DIRECTORY / "checkpoint.db").write_at(
        ((tmp_path / "checkpoint.db").read_bytes(),), 0, durable=True
    )
    disk.open_for_write(segment_path(DIRECTORY / "ledgers", 4)).write_at((bytes(500),), 0, durable=True)

    def full(operation: str, name: str) -> None:
        if operation == "commit":
            raise OSError(28, "No space left on device")

    disk.plan = full
    with pytest.raises(StoreError, match="No space left"):
        await FaultyStore(disk).open()
    disk.plan = None
    again = await FaultyStore(disk.after_kill()).open()
    assert await again.store.load("b") == (None, [b"delta"])
    assert await again.store.create_ledger() == 1001
    await again.store.close()


def test_stored_schema_equals_definition(tmp_path: Path) -> None:
    table = CheckpointTable(Disk(), tmp_path / "checkpoint.db", "")
    found = dict(table._connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL").fetchall())
    assert found == SCHEMA
    table.close()
