"""Rows of a damaged checkpoint.db: every readable one is found, and of the others it is known of which cursors they are."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from pybroker.disk.disk import Disk
from pybroker.local_store.checkpoint.checkpoint_table import CheckpointTable, CursorChange, TableChange
from pybroker.storage_format.segment_layout import LedgerExtent
from pybroker.tools.salvaged_table import SalvagedTable

PAGE_BYTES = 4096
CURSORS = 40
PAGE_STEP = 5
FLIPPED_BITS = 25
SNAPSHOT_BYTES = 24  # of the header of a cursor's record


class Stored(NamedTuple):
    """A table's files, and its rows by cursor and number."""

    data: bytes
    log: bytes
    rows: dict[tuple[str, int], bytes]


def change(number: int, seed: int) -> tuple[CursorChange, int]:
    """A snapshot and some records behind it, one of them so long that its end is on pages of its own."""
    chance = random.Random(seed)
    snapshot = (number, b"\1\0" + chance.randbytes(chance.choice((SNAPSHOT_BYTES, 300))))
    deltas = [(number + 1 + index, b"\1\1" + chance.randbytes(size)) for index, size in enumerate((40, 200, 5000))]
    cursor_id = f"/managed-ledgers/public/default/persistent/topic-{seed % CURSORS:02}/a sub#1.1"
    return CursorChange(cursor_id, False, snapshot, deltas, number + 3), number + 4


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    path = tmp_path_factory.mktemp("table") / "checkpoint.db"
    table = CheckpointTable(Disk(), path, "")
    table.check()
    number = 1
    for commit in range(2):
        changes = []
        for cursor in range(CURSORS):
            made, number = change(number, commit * CURSORS + cursor)
            changes.append(made)
        facts = {"sequence": commit + 5, "first_generation": 2, "cursor_number": number, "ledger_id": 7, "is_clean": 0}
        extents = {ledger_id: LedgerExtent(100, 10, 10, 60 + commit) for ledger_id in range(1, 7)}
        table.commit(TableChange({**facts, "version": 2, "first_named_ledger_id": 1}, extents=extents, cursors=changes))
    with closing(sqlite3.connect(path)) as reader:
        rows = {
            (cursor_id, number): data
            for table_name in ("snapshots", "deltas")
            for cursor_id, number, data in reader.execute(f"SELECT cursor_id, number, data FROM {table_name}")
        }
        yield Stored(path.read_bytes(), path.with_name("checkpoint.db-wal").read_bytes(), rows)
    table.abandon()


def in_one_file(stored: Stored, directory: Path) -> bytes:
    """The same without a log: there is one version of each page."""
    path = directory / "checkpoint.db"
    path.write_bytes(stored.data)
    path.with_name("checkpoint.db-wal").write_bytes(stored.log)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def found_rows(table: SalvagedTable) -> dict[tuple[str, int], bytes]:
    return {
        (cursor_id, number): data
        for cursor_id, rows in table.cursors.items()
        for (number, _), data in rows.records.items()
    }


def test_undamaged_table_is_read_as_sqlite_reads_it(stored: Stored) -> None:
    table = SalvagedTable(stored.data, stored.log)
    assert stored.rows.items() <= found_rows(table).items()
    assert table.lost == []
    assert table.facts["sequence"] == 6
    assert table.extents == {ledger_id: LedgerExtent(100, 10, 10, 61) for ledger_id in range(1, 7)}
    assert table.has_all_extents
    for cursor_id, rows in table.cursors.items():
        snapshot, deltas = rows.stored()
        assert snapshot is not None
        assert [snapshot, *deltas] == sorted(
            (number, data) for (of, number), data in stored.rows.items() if of == cursor_id
        )


def test_damaged_page_loses_no_row_of_another_page_and_its_cursors_are_known(stored: Stored, tmp_path: Path) -> None:
    content = in_one_file(stored, tmp_path)
    lost_some = 0
    for page in range(0, len(content) // PAGE_BYTES, PAGE_STEP):
        damaged = bytearray(content)
        damaged[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = random.Random(page).randbytes(PAGE_BYTES)
        table = SalvagedTable(bytes(damaged), b"")
        found = found_rows(table)
        lost = {key for key in stored.rows if key not in found}
        assert len(lost) < len(stored.rows) / 4, page
        assert all(table.may_lack(cursor_id) for cursor_id, _ in lost), page
        is_narrow = bool(lost) and None not in (table.lost_records, *(end for span in table.lost for end in span))
        if is_narrow:
            # Below an inner page are those of several pages.
            assert sum(map(table.may_lack, table.cursors)) < CURSORS / 2, page
        lost_some += is_narrow
        assert found.items() <= stored.rows.items(), page
    assert lost_some


def test_flipped_bits_lose_only_their_own_rows(stored: Stored, tmp_path: Path) -> None:
    content = in_one_file(stored, tmp_path)
    chance = random.Random(5)
    for _ in range(FLIPPED_BITS):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        table = SalvagedTable(bytes(damaged), b"")
        found = found_rows(table)
        lost = {key for key in stored.rows if key not in found}
        assert len(lost) <= 1
        assert all(table.may_lack(cursor_id) for cursor_id, _ in lost)
        assert found.items() <= stored.rows.items()


def test_damaged_frame_of_the_log_loses_only_its_own_rows(stored: Stored) -> None:
    chance = random.Random(6)
    for _ in range(FLIPPED_BITS):
        damaged = bytearray(stored.log)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        table = SalvagedTable(stored.data, bytes(damaged))
        found = found_rows(table)
        lost = {key for key in stored.rows if key not in found}
        assert len(lost) <= 1
        assert all(table.may_lack(cursor_id) for cursor_id, _ in lost)
