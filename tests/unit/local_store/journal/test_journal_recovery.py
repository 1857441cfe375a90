"""Valid batches after a crash, and the result of their records."""

from typing import Any

import pytest

from pybroker.local_store.journal.journal_recovery import BatchOrder, DamagedJournal, Replay, Replayed, scan_file
from pybroker.storage_format.fields import LayoutError
from pybroker.storage_format.journal_layout import (
    FILE_HEADER_BYTES,
    CursorRecord,
    FileHeader,
    LedgerRecord,
    RecordType,
    align,
    encode_append,
    encode_batch_header,
    encode_cursor_record,
    encode_file_header,
    encode_ledger_record,
)
from pybroker.storage_format.segment_layout import LedgerExtent

FILE = FileHeader(generation=7, salt=99)


def journal(bodies: list[bytes], first_sequence: int = 0, file: FileHeader = FILE) -> bytearray:
    data = bytearray(encode_file_header(file))
    for number, body in enumerate(bodies):
        data.extend(bytes(align(len(data)) - len(data)))
        data += encode_batch_header(file, first_sequence + number, 1, body) + body
    return data


def created(ledger_id: int) -> bytes:
    return encode_ledger_record(LedgerRecord(RecordType.LEDGER_CREATED, ledger_id))


def deleted(ledger_id: int) -> bytes:
    return encode_ledger_record(LedgerRecord(RecordType.LEDGER_DELETED, ledger_id))


def append(ledger_id: int, first_entry_id: int, *payloads: bytes) -> bytes:
    parts: list[Any] = []
    encode_append(parts, ledger_id, first_entry_id, list(payloads), [2] * len(payloads))
    return b"".join(parts)


def replay_of(body: bytes, extents: dict[int, LedgerExtent] | None = None) -> Replay:
    data = bytes(journal([body]))
    replay = Replay(extents or {})
    for batch in scan_file(data, 7).batches:
        replay.apply("file", memoryview(data), batch)
    return replay


def test_all_whole_batches_are_found_and_old_bytes_behind_them_are_not() -> None:
    data = journal([b"a", b"bb" * 600])
    end = align(len(data))
    old = journal([b"old"] * 5, file=FileHeader(3, 5))
    data.extend(bytes(end - len(data)))
    scanned = scan_file(bytes(data + old[FILE_HEADER_BYTES:]), 7)
    assert [batch.sequence for batch in scanned.batches] == [0, 1]
    assert (scanned.end_offset, scanned.later_offset) == (end, None)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_batch_does_not_count(cut: int) -> None:
    data = journal([b"first", b"x" * 30])
    scanned = scan_file(bytes(data[:-cut]), 7)
    assert [batch.sequence for batch in scanned.batches] == [0]
    assert scanned.later_offset is None


def test_a_whole_batch_behind_a_broken_one_is_found() -> None:
    data = journal([b"first", b"second", b"third"])
    data[FILE_HEADER_BYTES + 512 + 40] ^= 1
    scanned = scan_file(bytes(data), 7)
    assert [batch.sequence for batch in scanned.batches] == [0]
    assert scanned.later_offset == FILE_HEADER_BYTES + 1024


def test_a_batch_forged_inside_a_payload_is_not_found() -> None:
    forged = FileHeader(7, salt=1)  # a client cannot know the salt
    inner = encode_batch_header(forged, 5, 1, b"x") + b"x"
    data = journal([b"first", bytes(512 - 36) + inner])
    data[FILE_HEADER_BYTES + 512] ^= 1
    assert scan_file(bytes(data), 7).later_offset is None


def test_the_header_of_another_generation_is_refused() -> None:
    with pytest.raises(LayoutError, match="the header belongs to journal file 7, not to 8"):
        scan_file(bytes(journal([])), 8)


def test_batches_that_the_checkpoint_covers_are_left_out() -> None:
    order = BatchOrder(2, is_synced=True)
    live = order.live_batches("7", scan_file(bytes(journal([b"a", b"b", b"c", b"d"])), 7))
    assert [batch.sequence for batch in live] == [2, 3]
    assert order.next_sequence == 4


def test_the_next_file_goes_on_where_one_stops() -> None:
    order = BatchOrder(0, is_synced=True)
    order.live_batches("7", scan_file(bytes(journal([b"a", b"b"])), 7))
    second = FileHeader(8, 1)
    live = order.live_batches("8", scan_file(bytes(journal([b"c"], 2, second)), 8))
    assert [batch.sequence for batch in live] == [2]


def test_a_missing_batch_between_files_is_damage_with_a_synced_journal() -> None:
    order = BatchOrder(0, is_synced=True)
    order.live_batches("7", scan_file(bytes(journal([b"a"])), 7))
    with pytest.raises(DamagedJournal, match=r"8 is damaged at offset 4096: batches before 2 .* batch 1 was expected"):
        order.live_batches("8", scan_file(bytes(journal([b"c"], 2, FileHeader(8, 1))), 8))


def test_a_broken_batch_before_a_whole_one_is_damage_with_a_synced_journal() -> None:
    data = journal([b"first", b"second", b"third"])
    data[FILE_HEADER_BYTES + 512 + 40] ^= 1
    with pytest.raises(
        DamagedJournal, match="offset 4608: no complete batch at this offset, but a complete batch at offset 5120"
    ):
        BatchOrder(0, is_synced=True).live_batches("7", scan_file(bytes(data), 7))


def test_without_sync_everything_behind_a_broken_batch_is_dropped() -> None:
    data = journal([b"first", b"second", b"third"])
    data[FILE_HEADER_BYTES + 512 + 40] ^= 1
    order = BatchOrder(0, is_synced=False)
    assert [batch.sequence for batch in order.live_batches("7", scan_file(bytes(data), 7))] == [0]
    assert order.live_batches("8", scan_file(bytes(journal([b"d"], 1, FileHeader(8, 1))), 8)) == []
    assert order.next_sequence == 1


def test_entries_go_behind_the_committed_extent() -> None:
    extent = LedgerExtent(end_offset=500, entry_count=10, message_count=10, size_bytes=99)
    replay = replay_of(append(4, 10, b"a", b"b") + append(4, 12, b"c"), {4: extent})
    replayed = replay.take()
    (ledger,) = replayed.ledgers.values()
    assert [bytes(payload) for payload in ledger.payloads] == [b"a", b"b", b"c"]
    assert ledger.message_counts == [2, 2, 2]
    assert replayed.created_ledgers == []
    assert replay.take() == Replayed()
    assert (replay.entry_count, replay.size_bytes) == (3, 3)


def test_the_next_file_goes_on_behind_what_was_taken() -> None:
    replay = replay_of(created(4) + append(4, 0, b"a", b"b"))
    replay.take()
    data = bytes(journal([append(4, 2, b"c")]))
    (batch,) = scan_file(data, 7).batches
    replay.apply("file", memoryview(data), batch)
    assert list(map(bytes, replay.take().ledgers[4].payloads)) == [b"c"]


def test_a_created_ledger_exists_even_when_it_is_empty() -> None:
    replay = replay_of(created(4))
    assert replay.take().created_ledgers == [4]
    assert replay.max_ledger_id == 4


def test_entries_of_a_deleted_ledger_are_dropped_and_counted() -> None:
    replay = replay_of(created(4) + append(4, 0, b"a", b"b") + deleted(4) + created(5) + append(5, 0, b"c"))
    replayed = replay.take()
    assert list(replayed.ledgers) == [5]
    assert replayed.created_ledgers == [4, 5]
    assert replayed.deleted_ledgers == {4}
    assert replay.dropped_entry_count == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (append(4, 0, b"a"), "entries of ledger 4, but neither"),
        (created(4) + append(4, 1, b"a"), "entry 4:1, but the next entry of this ledger must be 4:0"),
        (
            created(4) + append(4, 0, b"a") + append(4, 0, b"a"),
            "entry 4:0, but the next entry of this ledger must be 4:1",
        ),
        (created(4) + created(4), "the creation of ledger 4, which already exists"),
        (b"\x09\0\0\0\0\0\0\0", "unknown type 9"),
    ],
)
def test_records_that_contradict_what_is_stored_are_damage(body: bytes, reason: str) -> None:
    with pytest.raises(DamagedJournal, match=reason):
        replay_of(body)


def test_cursor_records_are_kept_in_order() -> None:
    records = [CursorRecord(RecordType.CURSOR_DELTA, "c", number, b"%d" % number) for number in (4, 5)]
    replay = replay_of(b"".join(encode_cursor_record(record) for record in records))
    assert replay.take().cursor_records == records
    assert replay.max_cursor_number == 5
