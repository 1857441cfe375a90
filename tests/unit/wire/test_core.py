"""The compiled core and the pure Python functions give the same results; without the core, the Python functions run."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES, ack, flow, frame, ids, message, metadata, metadatas, send

from pybroker.model.chunk import Chunk
from pybroker.wire import core, entry_columns
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.commands import MAX_SMALL_COMMANDS, Decoder
from pybroker.wire.entry_metadata import chunk_of, deliver_at_ms, entry_message_count, is_marker

needs_compiler = pytest.mark.skipif(core.COMPILED is None, reason="the core of wire is not compiled here")
COMPILED: Any = core.COMPILED
MAX_FRAME_BYTES = 1 << 20
MAX_BATCH_MESSAGES = 1000


@pytest.mark.parametrize(("value", "is_pure"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_environment_selects_pure_python(value: str, is_pure: bool) -> None:
    code = "from pybroker.wire import core; print(core.COMPILED is None, core.IMPLEMENTATION, core.CRC32C)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {core.PURE_PYTHON_VARIABLE: value},
        check=True,
        capture_output=True,
        text=True,
    )
    if is_pure:
        assert done.stdout == "True python library\n"
    else:
        assert done.stdout.split()[0] == str(not_built())


def not_built() -> bool:
    try:
        from pybroker.wire import _core  # noqa: F401
    except ImportError:
        return True
    return False


# --- checksum ----------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("checksum", ["checksum", "software_checksum"])
def test_checksum_equals_the_library_for_every_length_and_alignment(checksum: str) -> None:
    data = bytes((7 * index + (index >> 8)) & 0xFF for index in range(40_000))
    lengths = [*range(70), 255, 256, 767, 768, 769, 1023, 1024, 1536, 4095, 12_287, 12_288, 12_289, 25_000, 39_000]
    for start in (0, 1, 7):
        for length in lengths:
            part = data[start : start + length]
            assert getattr(COMPILED, checksum)(part, 0) == crc32c(part)
            assert getattr(COMPILED, checksum)(part, 12345) == crc32c(part, 12345)


# --- received frames ---------------------------------------------------------------------------------------------------


@needs_compiler
@EXAMPLES
@given(ids, st.lists(ids, min_size=1, max_size=5), st.integers(0, 9), ids)
def test_scan_sends_takes_all_usual_frames_of_a_producer(
    producer_id: int, sequence_ids: list[int], count: int, highest: int
) -> None:
    fields = {"num_messages_in_batch": count} if count else {}
    payload = bytes(6 * count)
    messages = [message(metadata(**fields), payload) for _ in sequence_ids]
    optional = {"highest_sequence_id": highest, "num_messages": count} if highest else {}
    stream = b"".join(
        frame(send(producer_id, each, **optional), entry) for each, entry in zip(sequence_ids, messages, strict=True)
    )
    other = frame(send(producer_id ^ 1, 5), message(metadata()))
    size_bytes, *found = COMPILED.scan_sends(b"ab" + stream + other, 2, MAX_FRAME_BYTES, MAX_BATCH_MESSAGES)
    lists = (sequence_ids, [highest] * len(sequence_ids), [count or 1] * len(sequence_ids), messages)
    assert size_bytes == len(stream)
    assert found == [producer_id, sum(map(len, messages)), *lists]


ORDINARY = send(1, 2)
UNUSUAL_SENDS = {
    "chunk": frame(send(1, 2, is_chunk=True), message(metadata())),
    "transaction": frame(send(1, 2, txnid_least_bits=1), message(metadata())),
    "unknown field": frame(send(1, 2).SerializeToString()[:-2] + b"\x48\x01", message(metadata())),
    "wrong checksum": frame(ORDINARY, message(metadata(), checksum="bad")),
    "no checksum": frame(ORDINARY, message(metadata(), checksum="none")),
    "marker": frame(ORDINARY, message(metadata(marker_type=20))),
    "batch too large": frame(ORDINARY, message(metadata(num_messages_in_batch=1001), bytes(10_000))),
    "batch too large for its bytes": frame(ORDINARY, message(metadata(num_messages_in_batch=2), bytes(11))),
    "empty batch": frame(ORDINARY, message(metadata(num_messages_in_batch=0))),
    "no message": frame(ORDINARY),
    "metadata too long": frame(ORDINARY, message(b"", struct.pack(">I", 99) + b"x" * 20)),
    "malformed metadata": frame(ORDINARY, message(b"\x58", b"payload")),
    "no sequence id": frame(b"\x08\x06\x32\x02\x08\x01", message(metadata())),
    "wrong length of the command": frame(b"\x08\x06\x32\x05\x08\x01\x10\x02", message(metadata())),
}


@needs_compiler
@pytest.mark.parametrize("name", UNUSUAL_SENDS)
def test_scan_sends_leaves_unusual_frames_to_python(name: str) -> None:
    if name == "metadata too long":
        body = struct.pack(">I", 99) + b"x" * 20
        data = frame(ORDINARY, struct.pack(">HI", 0x0E01, crc32c(body)) + body)
    else:
        data = UNUSUAL_SENDS[name]
    assert COMPILED.scan_sends(data, 0, MAX_FRAME_BYTES, MAX_BATCH_MESSAGES) is None


@needs_compiler
def test_scanners_need_a_complete_frame_within_the_limit() -> None:
    scans: list[tuple[bytes, Callable[[bytes, int, int], Any]]] = [
        (
            frame(ORDINARY, message(metadata())),
            lambda data, pos, limit: COMPILED.scan_sends(data, pos, limit, MAX_BATCH_MESSAGES),
        ),
        (frame(ack(3, (5, 6))), lambda data, pos, limit: COMPILED.scan_acks(data, pos, limit, 10)),
        (frame(flow(3, 1000)), COMPILED.scan_flow),
    ]
    for data, scan in scans:
        assert scan(data, 0, len(data) - 4) is not None
        assert scan(data, 0, len(data) - 5) is None
        assert all(scan(data[:end], 0, MAX_FRAME_BYTES) is None for end in range(len(data)))
        assert scan(data, len(data), MAX_FRAME_BYTES) is None
        with pytest.raises(ValueError, match="position"):
            scan(data, len(data) + 1, MAX_FRAME_BYTES)
        with pytest.raises(ValueError, match="position"):
            scan(data, -1, MAX_FRAME_BYTES)


@needs_compiler
def test_scan_acks_groups_consecutive_entries_of_a_ledger() -> None:
    acks = [ack(3, (5, 1), (5, 2)), ack(3, (5, 3), (6, 1)), ack(3, (5, 4))]
    stream = b"".join(map(frame, acks))
    groups = [(5, [1, 2, 3]), (6, [1]), (5, [4])]
    assert COMPILED.scan_acks(stream + frame(ack(4, (5, 5))), 0, MAX_FRAME_BYTES, 10) == (len(stream), 3, 3, groups)
    first = len(frame(acks[0]))
    assert COMPILED.scan_acks(stream, 0, MAX_FRAME_BYTES, 1) == (first, 1, 3, [(5, [1, 2])])
    assert COMPILED.scan_acks(stream, 0, MAX_FRAME_BYTES, 0) is None


@needs_compiler
@pytest.mark.parametrize(
    "command",
    [
        ack(3),
        ack(3, (5, 1), ack_type=pb.CommandAck.Cumulative),
        ack(3, (5, 1), request_id=1),
        ack(3, (5, 1), txnid_least_bits=1),
        ack(3, (5, 1), validation_error=pb.CommandAck.ChecksumMismatch),
        ack(3, message_id=[pb.MessageIdData(ledgerId=5, entryId=1, ack_set=[1])]),
    ],
    ids=["without id", "cumulative", "receipt", "transaction", "validation error", "part of a batch"],
)
def test_scan_acks_leaves_unusual_commands_to_python(command: pb.BaseCommand) -> None:
    assert COMPILED.scan_acks(frame(command), 0, MAX_FRAME_BYTES, 10) is None


@pytest.mark.parametrize("scanner", [None, pytest.param(core.COMPILED, marks=needs_compiler)])
def test_decoder_yields_after_the_limit_of_small_commands(scanner: Any) -> None:
    decoder = Decoder(scanner)
    decoder.accept_messages(MAX_FRAME_BYTES, MAX_BATCH_MESSAGES, 1000)
    events: list[Any] = []
    events += decoder.feed(b"".join(frame(ack(3, (5, entry))) for entry in range(MAX_SMALL_COMMANDS + 7)))
    assert [event.groups for event in events] == [[(5, list(range(MAX_SMALL_COMMANDS)))]]
    assert decoder.has_more
    events[:] = decoder.feed(b"")
    assert [event.groups for event in events] == [[(5, list(range(MAX_SMALL_COMMANDS, MAX_SMALL_COMMANDS + 7)))]]
    assert not decoder.has_more


# --- columns of entries ------------------------------------------------------------------------------------------------

COLUMNS: list[tuple[str, Callable[[bytes], Any]]] = [
    ("key_hashes", entry_columns.entry_key_hash),
    ("deliver_at_times", deliver_at_ms),
    ("message_counts", entry_message_count),
    ("markers", is_marker),
    ("chunks", chunk_of),
]
prefixes = st.sampled_from([b"", b"", b"\x0e\x02\0\0\0\0", b"\x0e\x02\0\0\0\x03abc", b"\x0e\x02\0\0\xff\xff", b"\x0e"])
entries = st.one_of(
    st.builds(
        lambda prefix, fields, kind: prefix + message(fields, checksum=kind),
        prefixes,
        metadatas,
        st.sampled_from(["good", "none"]),
    ),
    st.builds(
        lambda prefix, garbage: prefix + message(garbage),
        prefixes,
        st.one_of(
            st.binary(max_size=40),
            st.lists(
                st.sampled_from(
                    [
                        b"\x58",
                        b"\x98\x01",
                        b"\xa0\x01",
                        b"\xd2\x01",
                        b"\x32\x01k",
                        b"\x0a\x01p",
                        b"\x10",
                        b"\x05",
                        b"\x88\x01\x01",
                        b"\x92\x01\x02o",
                        b"\xff",
                    ]
                ),
                max_size=8,
            ).map(b"".join),
        ),
    ),
    st.binary(max_size=30),
)


@needs_compiler
@EXAMPLES
@given(st.lists(entries, max_size=6))
@example([message(metadata(marker_type=20)), message(metadata(uuid="u", chunk_id=1, num_chunks_from_msg=3))])
@example(
    [message(metadata(partition_key="a2V5", partition_key_b64_encoded=True)), message(metadata(ordering_key=b"o"))]
)
def test_columns_equal_those_of_python(found: list[bytes]) -> None:
    for name, decide in COLUMNS:
        assert getattr(COMPILED, name)(decide, found) == [decide(entry) for entry in found], name


@needs_compiler
def test_python_decides_unusual_entries_only() -> None:
    asked: list[bytes] = []

    def decide(entry: bytes) -> int:
        asked.append(entry)
        return 7

    usual = message(metadata(partition_key="k"))
    of_java = message(metadata(partition_key="k", partition_key_b64_encoded=False))
    unusual = message(metadata(partition_key="k", partition_key_b64_encoded=True))
    assert COMPILED.key_hashes(decide, [usual, unusual, of_java])[1] == 7
    assert asked == [unusual]


@needs_compiler
def test_column_stops_with_the_error_of_python() -> None:
    def fail(entry: bytes) -> int:
        raise LookupError(entry)

    with pytest.raises(LookupError):
        COMPILED.key_hashes(fail, [b""])


@needs_compiler
def test_column_survives_a_list_that_shrinks() -> None:
    found = [b"", b"", b""]

    def shrink(_entry: bytes) -> int:
        found.clear()
        return 1

    assert COMPILED.key_hashes(shrink, found) == [1]


def test_selected_columns_return_one_value_per_entry() -> None:
    due = message(metadata(deliver_at_time=99, num_messages_in_batch=3, partition_key="k"))
    chunk = message(metadata(uuid="u", chunk_id=1, num_chunks_from_msg=3))
    assert entry_columns.deliver_at_times_ms([due, chunk]) == [99, 0]
    assert entry_columns.message_counts([due, chunk]) == [3, 1]
    assert entry_columns.markers([due, message(metadata(marker_type=20))]) == [False, True]
    assert entry_columns.chunks([due, chunk]) == [None, Chunk(b"u", 1, 3)]
    assert entry_columns.key_hashes([due]) == [entry_columns.entry_key_hash(due)]


# --- arguments ---------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("scan_sends", ("", 0, 1, 1)),
        ("scan_acks", (bytearray(20), 0, 1, 1)),
        ("scan_sends", (b"", 0, 1)),
        ("scan_sends", (b"", 0.0, 1, 1)),
        ("scan_flow", ("", 0, 1)),
        ("send_receipts", (1, (1,), [0], 1, 1)),
        ("send_receipts", (1, ["1"], [0], 1, 1)),
        ("messages", (1, 1, "a", [b""], None, None, -1, -1)),
        ("messages", (1, 1, [1], (b"",), None, None, -1, -1)),
        ("messages", (1, 1, [1], [bytearray()], None, None, -1, -1)),
        ("messages", (1, 1, [1], [b""], 5, None, -1, -1)),
        ("messages", (1, 1, [1], [b""], None, [5], -1, -1)),
        ("messages", (1, 1, [1], [b""], None, [["5"]], -1, -1)),
        ("key_hashes", (len, (b"",))),
        ("pack_ledger_add", (b"", 1, 1, 1, 1, "")),
    ],
)
def test_wrong_types_are_errors(function: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        getattr(COMPILED, function)(*arguments)


@needs_compiler
def test_missing_list_elements_are_errors() -> None:
    wrong: list[tuple[Any, ...]] = [([1, 2], [b""], None, None), ([1], [b""], [], None), ([1], [b""], None, [])]
    for lists in wrong:
        with pytest.raises(IndexError):
            COMPILED.messages(1, 1, *lists, -1, -1)


@needs_compiler
def test_functions_release_all_that_they_allocate() -> None:
    entries_found = [message(metadata(partition_key="k"), b"x" * 100), b"", message(metadata(uuid="u"))]
    batch = message(metadata(num_messages_in_batch=2), bytes(50))
    stream = b"".join(frame(send(300, 1 << 40), each) for each in (entries_found[0], batch))
    acks = frame(ack(300, (1 << 40, 1 << 41), (1 << 42, 5))) * 3
    large = [b"x" * (16 * 1024), b"y", b"z" * (16 * 1024)]
    sequence_ids, epochs = [1 << 40, 1 << 41], 1 << 40
    wrong: list[tuple[Any, ...]] = [([1], [5], None, None), ([1, 2], [b""], None, None), ([1], [b""], None, [["x"]])]

    def call_all() -> None:
        COMPILED.scan_sends(stream, 0, MAX_FRAME_BYTES, MAX_BATCH_MESSAGES)
        COMPILED.scan_acks(acks, 0, MAX_FRAME_BYTES, 10)
        COMPILED.scan_flow(frame(flow(300, 70_000)), 0, MAX_FRAME_BYTES)
        COMPILED.send_receipts(300, sequence_ids, sequence_ids, 1 << 40, 1 << 40)
        COMPILED.messages(300, 1 << 40, range(3), large, [0, 1, 300], [None, [1 << 40], []], epochs, 300)
        for arguments in wrong:
            try:  # pytest.raises keeps frames until the next garbage collection
                COMPILED.messages(1, 1, *arguments, -1, -1)
            except (TypeError, IndexError):
                pass
        for name, decide in COLUMNS:
            getattr(COMPILED, name)(decide, entries_found)
        COMPILED.unpack_ledger_entry(COMPILED.pack_ledger_add(b"", 1, 1, 0, 99, b"payload")[4:], 1, 1)
        COMPILED.scan_ledger_answers(struct.pack(">IIiqq", 24, 0x02010000, 0, 1 << 40, 1 << 40), 100)
        COMPILED.checksum(large[0], 0)

    for _ in range(100):
        call_all()
    before = sys.getallocatedblocks()
    for _ in range(300):
        call_all()
    assert sys.getallocatedblocks() - before < 150
