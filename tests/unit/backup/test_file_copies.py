"""Copies of files: content, checksum, rate."""

from pathlib import Path

import pytest
from crc32c import crc32c

from pybroker.backup.backup_layout import BackupError
from pybroker.backup.file_copies import CHUNK_BYTES, FileCopier, RateLimit, write_durably


class Counted:
    """Progress that counts."""

    def __init__(self) -> None:
        self.bytes = 0

    def begin(self, total_bytes: int, what: str) -> None:
        raise AssertionError("copies do not begin an operation")

    def copied(self, size_bytes: int) -> None:
        self.bytes += size_bytes


class Clock:
    """Time that passes only during a sleep."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, duration_s: float) -> None:
        assert duration_s > 0
        self.now_s += duration_s


def copier() -> FileCopier:
    clock = Clock()
    return FileCopier(RateLimit(None, lambda: clock.now_s, clock.sleep), Counted())


def test_grown_file_is_continued_and_cut(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    content = bytes(range(256)) * (CHUNK_BYTES // 128)
    source.write_bytes(content)
    crc = copier().copy(source, target, 0, 1000, 0)
    assert target.read_bytes() == content[:1000]
    assert crc == crc32c(content[:1000])
    target.write_bytes(content[:1000] + b"of an interrupted copy" * 200_000)
    crc = copier().copy(source, target, 1000, len(content), crc)
    assert target.read_bytes() == content
    assert crc == crc32c(content) == copier().checksum(target, 0, len(content), 0)
    assert target.stat().st_mode & 0o077 == 0


def test_short_source_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(BackupError, match="has only 3 bytes, although 4 bytes are expected"):
        copier().copy(tmp_path / "source", tmp_path / "target", 0, 4, 0)


def test_rate_limit_spreads_copies_over_time() -> None:
    clock = Clock()
    rate = RateLimit(1000, lambda: clock.now_s, clock.sleep)
    for _ in range(10):
        rate.spend(500)
    assert clock.now_s == pytest.approx(104.5)  # the last piece has started
    clock.now_s += 100
    rate.spend(500)
    assert clock.now_s == pytest.approx(204.5), "unused time does not count"


def test_small_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"one")
    write_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
