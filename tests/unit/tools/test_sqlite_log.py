"""A log of SQLite is damaged where a frame is wrong that others follow."""

import sqlite3
from pathlib import Path

import pytest

from pybroker.tools.sqlite_log import find_log_damage

HEADER_BYTES = 32
FRAME_BYTES = 24 + 4096


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """Several committed transactions; the connection is open, so that the log is not written back."""
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE facts(name TEXT)")
    for number in range(5):
        connection.execute("INSERT INTO facts VALUES (?)", (str(number),))
    data = (tmp_path / "a.db-wal").read_bytes()
    connection.close()
    assert (len(data) - HEADER_BYTES) % FRAME_BYTES == 0
    assert len(data) > 5 * FRAME_BYTES
    return data


def test_a_log_as_it_is_written_is_sound(log: bytes) -> None:
    assert find_log_damage(log) is None
    assert find_log_damage(b"") is None
    assert find_log_damage(log[: 3 * FRAME_BYTES]) is None


def test_a_flip_in_a_frame_that_others_follow_is_damage_at_that_frame(log: bytes) -> None:
    second = HEADER_BYTES + FRAME_BYTES
    for offset in (*range(second, second + 24), second + 100, second + FRAME_BYTES - 1):
        data = bytearray(log)
        data[offset] ^= 16
        assert find_log_damage(bytes(data)) == second, offset


def test_a_flip_in_the_header_is_damage(log: bytes) -> None:
    for offset in range(HEADER_BYTES):
        data = bytearray(log)
        data[offset] ^= 1
        assert find_log_damage(bytes(data)) == 0


def test_a_torn_last_frame_is_what_a_crash_leaves(log: bytes) -> None:
    data = bytearray(log)
    data[-1] ^= 1
    assert find_log_damage(bytes(data)) is None
    assert find_log_damage(log[:-100]) is None


def test_frames_of_an_earlier_use_of_the_file_are_the_end(log: bytes) -> None:
    older = bytearray(log)
    older[HEADER_BYTES + 2 * FRAME_BYTES + 8] ^= 1  # another salt, in this frame and all behind it
    for offset in range(HEADER_BYTES + 3 * FRAME_BYTES + 8, len(log), FRAME_BYTES):
        older[offset] ^= 1
    assert find_log_damage(bytes(older)) is None


def test_any_frames_of_the_last_transaction_may_be_torn(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE facts(name TEXT)")
    begin = (tmp_path / "a.db-wal").stat().st_size
    connection.execute("INSERT INTO facts VALUES (zeroblob(20000))")
    data = bytearray((tmp_path / "a.db-wal").read_bytes())
    connection.close()
    assert len(data) - begin > 3 * FRAME_BYTES
    for offset in range(begin + 24 + 512, len(data), FRAME_BYTES):
        torn = bytearray(data)
        torn[offset : offset + 512] = bytes(range(256)) * 2  # a sector of an earlier use
        assert find_log_damage(bytes(torn)) is None
    data[begin - 1] ^= 1
    assert find_log_damage(bytes(data)) is not None, "the transaction before it was committed"
