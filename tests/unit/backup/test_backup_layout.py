"""The files of a backup directory: damage is detected, and a copy plan covers exactly the new bytes."""

from contextlib import suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from pybroker.backup.backup_layout import (
    BACKUP_FORMAT,
    BackupError,
    BackupHead,
    CopiedLedger,
    Manifest,
    StoredDatabase,
    decode_checked,
    decode_ledger_lines,
    encode_checked,
    encode_ledger_line,
    ledgers_without_file,
    plan_copies,
    point_name,
    read_head,
    read_manifest,
    restore_points,
    unused_ledgers,
)

PATH = Path("manifest.json")
MANIFEST = Manifest(
    BACKUP_FORMAT, "l", 1_700_000_000_000, "1", [StoredDatabase("metadata.db", 7, 1)], [CopiedLedger(3, 9, 4)]
)
copied_ledgers = st.builds(
    CopiedLedger, st.integers(0, 5), st.integers(1, 1 << 40), st.integers(min_value=0, max_value=(1 << 32) - 1)
)


def test_manifest_survives_encoding() -> None:
    assert decode_checked(encode_checked(MANIFEST), Manifest, PATH) == MANIFEST
    assert MANIFEST.size_bytes == 16


@given(st.data())
def test_changed_byte_of_manifest_is_damage(data: st.DataObject) -> None:
    encoded = bytearray(encode_checked(MANIFEST))
    position = data.draw(st.integers(0, len(encoded) - 2))  # the last byte is a line feed
    encoded[position] ^= data.draw(st.integers(1, 255))
    with suppress(BackupError):  # not for a changed case of a digit of the checksum
        assert decode_checked(bytes(encoded), Manifest, PATH) == MANIFEST


@given(st.integers(0, 200))
def test_truncated_manifest_is_damage(length: int) -> None:
    encoded = encode_checked(MANIFEST)
    if length < len(encoded) - 1:
        with pytest.raises(BackupError, match="damaged"):
            decode_checked(encoded[:length], Manifest, PATH)


def test_later_format_names_the_remedy() -> None:
    with pytest.raises(
        BackupError, match="has format 2, but this pybroker supports only format 1: use the pybroker version"
    ):
        decode_checked(encode_checked(BackupHead(BACKUP_FORMAT + 1, "l")), BackupHead, PATH)


@given(st.lists(copied_ledgers, max_size=8), st.data())
def test_torn_ledger_lines_contain_only_recorded_copies(records: list[CopiedLedger], data: st.DataObject) -> None:
    encoded = b"".join(map(encode_ledger_line, records))
    torn = encoded[: data.draw(st.integers(0, len(encoded)))]
    complete = torn.count(b"\n")
    expected = {record.ledger: record for record in records[:complete]}
    found = decode_ledger_lines(torn)
    # A line whose line feed alone is missing is complete, too.
    assert found in (expected, {record.ledger: record for record in records[: complete + 1]})
    # A later run ends the torn line and appends.
    later = CopiedLedger(9, 1, 1)
    assert decode_ledger_lines(torn + b"\n" + encode_ledger_line(later)) == {**found, 9: later}


@given(
    st.dictionaries(st.integers(0, 9), st.binary(min_size=0, max_size=40)),
    st.dictionaries(st.integers(0, 9), st.integers(0, 60)),
    st.dictionaries(st.integers(0, 9), st.integers(1, 60)),
)
def test_copy_plan_covers_valid_bytes_once(
    files: dict[int, bytes], end_offsets: dict[int, int], before: dict[int, int]
) -> None:
    sizes = {ledger_id: len(content) for ledger_id, content in files.items()}
    copied = {
        ledger_id: CopiedLedger(ledger_id, length, crc32c(files.get(ledger_id, b"")[:length]))
        for ledger_id, length in before.items()
    }
    needed = {ledger_id: end_offsets.get(ledger_id, size) for ledger_id, size in sizes.items()}
    is_short = any(length > sizes[ledger_id] for ledger_id, length in needed.items())
    is_behind = any(length and before.get(ledger_id, 0) > length for ledger_id, length in needed.items())
    if is_short or is_behind:
        with pytest.raises(BackupError):
            plan_copies(sizes, end_offsets, copied)
        return
    tasks, unchanged = plan_copies(sizes, end_offsets, copied)
    result = {
        each.ledger: CopiedLedger(
            each.ledger, each.length, crc32c(files[each.ledger][each.offset : each.length], each.crc)
        )
        for each in tasks
    } | {each.ledger: each for each in unchanged}
    assert result == {
        ledger_id: CopiedLedger(ledger_id, length, crc32c(files[ledger_id][:length]))
        for ledger_id, length in needed.items()
        if length
    }
    assert all(task.offset < task.length for task in tasks)


def test_row_of_deleted_ledger_is_found() -> None:
    assert ledgers_without_file({1: 10}, {1: 10, 2: 5, 3: 0}) == [2]


def test_ledger_of_no_restore_point_is_unused() -> None:
    assert unused_ledgers([MANIFEST], [3, 4, 5]) == [4, 5]


def test_names_of_restore_points_sort_by_time(tmp_path: Path) -> None:
    names = [point_name(time_ms, "0123456789abcdef") for time_ms in (1_700_000_000_007, 999_000_000_000)]
    assert names == ["20231114T221320.007Z-01234567", "20010828T120000.000Z-01234567"]
    assert restore_points(tmp_path) == []
    for name in (*names, names[0] + ".partial", "other"):
        (tmp_path / "restore-points" / name).mkdir(parents=True)
        (tmp_path / "restore-points" / name / "manifest.json").touch()
    (tmp_path / "restore-points" / "20231114T221321.000Z-01234567").mkdir()  # without a manifest
    assert restore_points(tmp_path) == sorted(names)


def test_manifest_with_other_paths_is_refused(tmp_path: Path) -> None:
    point = tmp_path / "restore-points" / "20231114T221320.007Z-01234567"
    point.mkdir(parents=True)
    databases = [StoredDatabase("metadata.db", 1, 1), StoredDatabase("../../.ssh/authorized_keys", 1, 1)]
    manifest = Manifest(BACKUP_FORMAT, "l", 1, "1", databases, [])
    (point / "manifest.json").write_bytes(encode_checked(manifest))
    with pytest.raises(BackupError, match="its list of databases is not"):
        read_manifest(tmp_path, point.name)


def test_directory_without_head_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"is not a backup directory: backup\.json is missing"):
        read_head(tmp_path)
