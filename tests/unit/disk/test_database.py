"""The common functions of both databases of a data directory, on SQLite itself and on a disk with faults."""

import errno
import sqlite3
from pathlib import Path

import pytest
from tests.support.fault_disk import FaultDisk
from tests.unit.local_store.faults import fails

from pybroker.disk.database import empty_log, failure_text, lacks_space, log_of, page_damage, transaction
from pybroker.disk.disk import Disk
from pybroker.errors import StoreError

PATH = Path("/data/some.db")


def values_of(connection: sqlite3.Connection) -> list[int]:
    return [value for (value,) in connection.execute("SELECT value FROM one ORDER BY value")]


def insert_and_fail(connection: sqlite3.Connection) -> None:
    with transaction(connection):
        connection.execute("INSERT INTO one VALUES (2)")
        raise StoreError("refused")


def with_table(disk: Disk, path: Path) -> sqlite3.Connection:
    connection = disk.open_database(path)
    connection.execute("CREATE TABLE one(value INTEGER)")
    return connection


def test_a_database_is_opened_for_durable_commits(tmp_path: Path) -> None:
    connection = Disk().open_database(tmp_path / "some.db")
    found = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "fullfsync")
    ]
    assert found == ["wal", 2, 1]
    assert (tmp_path / "some.db").stat().st_mode & 0o777 == 0o600
    connection.close()


def test_a_transaction_is_stored_whole_or_rolled_back() -> None:
    connection = with_table(FaultDisk(), PATH)
    with transaction(connection):
        connection.execute("INSERT INTO one VALUES (1)")
    with pytest.raises(StoreError, match="refused"):
        insert_and_fail(connection)
    assert not connection.in_transaction
    assert values_of(connection) == [1]
    connection.close()


@pytest.mark.parametrize(("number", "is_full"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_commit_that_fails_is_rolled_back_and_reports_a_full_disk(number: int, is_full: bool) -> None:
    disk = FaultDisk()
    connection = with_table(disk, PATH)
    disk.plan = fails(number, "commit")
    with pytest.raises(sqlite3.OperationalError) as raised, transaction(connection):
        connection.execute("INSERT INTO one VALUES (1)")
    disk.plan = None
    assert lacks_space(raised.value) == is_full
    assert failure_text(raised.value).startswith("the disk is full (") == is_full
    assert values_of(connection) == []
    connection.close()


def test_close_keeps_the_log_unless_it_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with_table(Disk(), path).close()
    assert log_of(path).stat().st_size > 0
    connection = Disk().open_database(path)
    assert empty_log(connection) == ""
    connection.close()
    assert not log_of(path).exists()


def test_a_log_in_use_or_on_a_failing_disk_is_kept_with_a_reason(tmp_path: Path) -> None:
    connection = with_table(Disk(), tmp_path / "some.db")
    connection.execute("PRAGMA busy_timeout = 0")
    reader = sqlite3.connect(tmp_path / "some.db", isolation_level=None)
    reader.execute("BEGIN")
    assert values_of(reader) == []
    connection.execute("INSERT INTO one VALUES (1)")
    assert empty_log(connection) == "the database is in use"
    reader.close()
    connection.close()
    disk = FaultDisk()
    connection = with_table(disk, PATH)
    disk.plan = fails(errno.EIO, "write", suffix=PATH.name)
    assert "I/O error" in empty_log(connection)
    disk.plan = None
    connection.close()


@pytest.mark.parametrize("with_indexes", [False, True])
def test_damaged_pages_are_reported_in_one_line(tmp_path: Path, with_indexes: bool) -> None:
    path = tmp_path / "some.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE one(value INTEGER, text TEXT)")
    connection.executemany("INSERT INTO one VALUES (?, ?)", [(number, "x" * 1000) for number in range(100)])
    assert page_damage(connection, with_indexes=with_indexes) == ""
    connection.close()
    data = bytearray(path.read_bytes())
    data[39] = 5  # the number of free pages
    path.write_bytes(data)
    connection = sqlite3.connect(path, isolation_level=None)
    found = page_damage(connection, max_findings=3, with_indexes=with_indexes)
    assert "size is 0 but should be 5" in found
    assert "\n" not in found
    connection.close()
