"""Frames, entries and metadata: known bytes, every split, and hostile input."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.bookkeeper.bookkeeper_pb2 import Response
from pybroker.bookkeeper.errors import (
    BadRequest,
    BookKeeperError,
    DamagedEntry,
    InvalidAnswer,
    InvalidMetadata,
    WrongKey,
)
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment, decode_metadata
from pybroker.bookkeeper.ledger_paths import ledger_id_of, ledger_path
from pybroker.bookkeeper.protocol.entry_format import DigestType, Entry, EntryFormat
from pybroker.bookkeeper.protocol.frames import (
    ADD,
    BATCH_READ,
    FENCE,
    READ,
    Answer,
    AnswerReader,
    add_request,
    batch_entries,
    batch_read_request,
    read_request,
)
from pybroker.bookkeeper.protocol.messages_v3 import (
    ExplicitLac,
    FrameReader,
    Operation,
    auth_payload,
    auth_request,
    decode_response,
    require_accepted,
    require_tls_started,
    result_of,
    start_tls_request,
)
from pybroker.bookkeeper.quorums import Quorums
from pybroker.wire.core import COMPILED, Core

LIMIT = 100_000
DIGESTS = list(DigestType)


def answer(operation: int, code: int, ledger_id: int, entry_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">IIiqq", 24 + len(body), 2 << 24 | operation << 16, code, ledger_id, entry_id) + body


STREAM = b"".join(
    (
        answer(ADD, 0, 7, 1),
        answer(READ, 0, 7, 1, b"x" * 40),
        answer(ADD, 104, 7, 2),
        answer(READ, 2, 7, 9),
        answer(BATCH_READ, 0, 7, 3, struct.pack(">q", 5) + b"batch"),
        answer(ADD, 0, 8, 1 << 40),
    )
)
ANSWERS = [
    Answer(ADD, 0, 7, 1, -1, b""),
    Answer(READ, 0, 7, 1, -1, b"x" * 40),
    Answer(ADD, 104, 7, 2, -1, b""),
    Answer(READ, 2, 7, 9, -1, b""),
    Answer(BATCH_READ, 0, 7, 3, 5, b"batch"),
    Answer(ADD, 0, 8, 1 << 40, -1, b""),
]


def test_requests_have_the_documented_bytes() -> None:
    key = bytes(range(20))
    assert add_request(key, b"entry", 2) == struct.pack(">II", 29, 0x02010002) + key + b"entry"
    assert read_request(5, 6) == struct.pack(">IIqq", 20, 0x02020000, 5, 6)
    assert read_request(5, -1, FENCE, key) == struct.pack(">IIqq", 40, 0x02020001, 5, -1) + key
    assert batch_read_request(5, 6, 7, 8, 9) == struct.pack(">IIqqqiq", 40, 0x02070000, 5, 6, 7, 8, 9)


@pytest.mark.parametrize("compiled", [None, COMPILED])
def test_answers_are_read_whole(compiled: Core | None) -> None:
    assert AnswerReader(LIMIT, compiled).feed(STREAM) == ANSWERS


@pytest.mark.parametrize("size", [1, 2, 3, 5, 27, 28, 29, 64])
def test_answers_are_read_in_pieces(size: int) -> None:
    reader = AnswerReader(LIMIT)
    found = [each for at in range(0, len(STREAM), size) for each in reader.feed(STREAM[at : at + size])]
    assert found == ANSWERS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_answers_are_read_with_any_cuts(cuts: list[int]) -> None:
    reader = AnswerReader(LIMIT)
    ends = [0, *sorted(cuts), len(STREAM)]
    found = [each for a, b in pairwise(ends) for each in reader.feed(STREAM[a:b])]
    assert found == ANSWERS


@pytest.mark.parametrize("size", [0, 23, LIMIT + 1, 0xFFFFFFFF])
def test_wrong_size_is_refused_before_the_frame_is_there(size: int) -> None:
    with pytest.raises(InvalidAnswer):
        AnswerReader(LIMIT).feed(struct.pack(">I", size))


@given(st.binary(max_size=300), st.integers(1, 40))
def test_random_bytes_raise_invalid_answer_only(data: bytes, size: int) -> None:
    reader = AnswerReader(LIMIT)
    try:
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
    except InvalidAnswer:
        pass


@given(st.integers(0, len(STREAM) - 1), st.integers(0, 255), st.integers(0, len(STREAM)))
def test_mutated_and_cut_streams_raise_invalid_answer_only(at: int, byte: int, end: int) -> None:
    data = bytearray(STREAM)
    data[at] = byte
    try:
        for each in AnswerReader(LIMIT).feed(bytes(data[:end])):
            batch_entries(each[-1])
    except InvalidAnswer:
        pass


@pytest.mark.skipif(COMPILED is None, reason="the core of wire is not compiled here")
@given(st.integers(0, len(STREAM) - 1), st.integers(0, 255), st.lists(st.integers(0, len(STREAM)), max_size=4))
def test_compiled_core_reads_the_same_answers_of_mutated_streams(at: int, byte: int, cuts: list[int]) -> None:
    data = bytearray(STREAM * 2)
    data[at] = byte
    ends = [0, *sorted(cuts), len(data)]
    pieces = [bytes(data[a:b]) for a, b in pairwise(ends)]
    assert answers_of(AnswerReader(LIMIT), pieces) == answers_of(AnswerReader(LIMIT, None), pieces)


def answers_of(reader: AnswerReader, pieces: list[bytes]) -> list[tuple[int, ...] | str]:
    found: list[Any] = []
    try:
        for piece in pieces:
            found += reader.feed(piece)
    except InvalidAnswer as error:
        found.append(str(error))
    return found


@given(st.lists(st.binary(max_size=20), max_size=5), st.binary(max_size=8))
def test_batches_are_split_or_refused(entries: list[bytes], rest: bytes) -> None:
    body = b"".join(struct.pack(">I", len(each)) + each for each in entries)
    assert batch_entries(body) == entries
    try:
        batch_entries(body + rest)
    except InvalidAnswer:
        pass


@pytest.mark.parametrize("digest_type", DigestType)
def test_packed_add_is_the_request_of_the_packed_entry(digest_type: DigestType) -> None:
    format_ = EntryFormat(7, digest_type, b"secret")
    entry = (9, 5, 1000, b"payload")
    assert format_.pack_add(*entry) == add_request(format_.master_key, format_.pack(*entry))


@pytest.mark.parametrize("digest_type", DIGESTS)
def test_entry_is_read_as_it_was_packed(digest_type: DigestType) -> None:
    format_ = EntryFormat(3, digest_type, b"secret")
    stored = format_.pack(5, 4, 1000, b"payload")
    assert format_.unpack(stored, 5) == (5, 4, 1000, b"payload")
    assert format_.unpack(stored, None).entry_id == 5
    assert format_.master_key == hashlib.sha1(b"ledgersecret").digest()
    with pytest.raises(DamagedEntry):
        format_.unpack(stored, 6)
    with pytest.raises(DamagedEntry):
        EntryFormat(4, digest_type, b"secret").unpack(stored, 5)


@pytest.mark.parametrize("digest_type", [each for each in DIGESTS if each is not DigestType.DUMMY])
@given(data=st.data())
def test_changed_entry_is_never_accepted(digest_type: DigestType, data: st.DataObject) -> None:
    format_ = EntryFormat(3, digest_type, b"")
    stored = bytearray(format_.pack(5, 4, 1000, b"payload"))
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedEntry):
        format_.unpack(bytes(stored), 5)


@pytest.mark.parametrize("digest_type", DIGESTS)
@given(stored=st.binary(max_size=100))
def test_random_entry_raises_damaged_entry_only(digest_type: DigestType, stored: bytes) -> None:
    try:
        EntryFormat(3, digest_type, b"").unpack(stored, 5)
    except DamagedEntry:
        pass


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.skipif(COMPILED is None, reason="the core of wire is not compiled here")
@given(
    data=st.data(),
    ids=st.tuples(st.integers(0, 9), st.integers(-2, 9), st.integers(-2, 99)),
    payload=st.binary(max_size=60),
)
def test_compiled_core_equals_python(data: st.DataObject, ids: tuple[int, int, int], payload: bytes) -> None:
    compiled = EntryFormat(3, DigestType.CRC32C, b"secret")
    python = EntryFormat(3, DigestType.CRC32C, b"secret", None)
    fields = data.draw(st.tuples(INT64, INT64, INT64))
    assert compiled.pack_add(*fields, payload) == python.pack_add(*fields, payload)
    stored = bytearray(python.pack(*ids, payload))
    if data.draw(st.booleans()):
        del stored[data.draw(st.integers(0, len(stored))) :]
    if stored and data.draw(st.booleans()):
        stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1
    entry_id = data.draw(st.one_of(st.just(ids[0]), st.none(), st.integers(0, 9)))
    assert unpacked(compiled, bytes(stored), entry_id) == unpacked(python, bytes(stored), entry_id)


def unpacked(format_: EntryFormat, stored: bytes, entry_id: int | None) -> Entry | str:
    try:
        return format_.unpack(stored, entry_id)
    except DamagedEntry as error:
        return str(error)


@pytest.mark.parametrize("digest_type", DIGESTS)
@given(record=st.binary(max_size=50))
def test_explicit_last_confirmed_is_verified(digest_type: DigestType, record: bytes) -> None:
    format_ = EntryFormat(3, digest_type, b"")
    assert format_.unpack_last_confirmed(format_.pack_last_confirmed(7)) == 7
    try:
        format_.unpack_last_confirmed(record)
    except DamagedEntry:
        pass


METADATA = LedgerMetadata(
    Quorums(3, 2, 2),
    DigestType.CRC32C,
    b"secret" * 10,
    (Segment(0, ("a:1", "b:1", "c:1")), Segment(10, ("a:1", "d:1", "c:1"))),
    LedgerState.CLOSED,
    20,
    1234,
    99,
    {"application": b"pulsar"},
    7,
)


def test_metadata_is_read_as_it_was_written() -> None:
    assert decode_metadata(METADATA.encode()) == METADATA
    assert METADATA.encode().startswith(b"BookieMetadataFormatVersion\t3\n")


def test_unknown_fields_of_metadata_survive_a_change() -> None:
    head, body = METADATA.encode().split(b"\n", 1)
    assert body[0] == len(body) - 2 & 0x7F | 0x80, "a size of two bytes"
    body = body[2:] + b"\xfa\x01\x03new"
    found = decode_metadata(head + b"\n" + bytes((len(body) & 0x7F | 0x80, len(body) >> 7)) + body)
    assert decode_metadata(found.closed(21, 2000).encode()).unknown == b"\xfa\x01\x03new"


@given(st.data())
def test_damaged_metadata_raise_invalid_metadata_only(data: st.DataObject) -> None:
    value = bytearray(METADATA.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(value)))
    for each in (bytes(value), bytes(value[:end])):
        try:
            decode_metadata(each).encode()
        except InvalidMetadata:
            pass


def test_metadata_with_a_bookie_name_that_is_not_utf8_are_invalid() -> None:
    name = METADATA.segments[0].ensemble[0].encode()
    with pytest.raises(InvalidMetadata, match="not UTF-8"):
        decode_metadata(METADATA.encode().replace(name, b"\x80" + name[1:]))


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "00/0000/L0000"),
        (15, "00/0000/L0015"),
        ((1 << 31) - 2, "21/4748/L3646"),
        ((1 << 31) - 1, "000/0000/0021/4748/L3647"),
        (9_999_999_999, "000/0000/0099/9999/L9999"),
        (10_000_000_000, "000/0000/0100/0000/L0000"),
        ((1 << 63) - 1, "922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_paths_are_those_of_java(ledger_id: int, path: str) -> None:
    assert ledger_path(ledger_id) == path
    assert ledger_id_of(path) == ledger_id


def test_other_nodes_are_no_ledgers() -> None:
    others = ("00/0000", "idgen/ID-1", "00/0000/L00015", "available/x", "99/9999/L9999", "000/0000/0000/0000/L0015")
    assert [ledger_id_of(each) for each in (*others, "999/9999/9999/9999/L9999")] == [None] * 7


def test_error_classes_have_one_base() -> None:
    assert issubclass(InvalidAnswer, BookKeeperError)
    assert issubclass(InvalidMetadata, BookKeeperError)


def response(number: int) -> bytes:
    message = Response()
    message.header.version, message.header.operation, message.header.txn_id = 3, Operation.READ_LAC, number
    message.status = 0
    message.read_lac.status, message.read_lac.ledger_id, message.read_lac.last_entry_body = 0, 7, b"entry"
    body: bytes = message.SerializeToString()
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_answers_of_version_3_are_read_in_pieces(size: int) -> None:
    stream, reader = response(1) + response(2), FrameReader(LIMIT)
    bodies = [body for at in range(0, len(stream), size) for body in reader.feed(stream[at : at + size])]
    assert [decode_response(each).header.txn_id for each in bodies] == [1, 2]
    assert result_of(decode_response(bodies[0]), Operation.READ_LAC, 7) == ExplicitLac(b"", b"entry")
    with pytest.raises(InvalidAnswer):
        result_of(decode_response(bodies[0]), Operation.READ_LAC, 8)
    with pytest.raises(InvalidAnswer):
        result_of(decode_response(bodies[0]), Operation.FORCE, 7)


@given(st.data())
def test_damaged_answers_of_version_3_raise_invalid_answer_only(data: st.DataObject) -> None:
    stream = bytearray(response(1))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        for body in FrameReader(LIMIT).feed(bytes(stream[: data.draw(st.integers(0, len(stream)))])):
            result_of(decode_response(body), Operation.READ_LAC, 7)
    except InvalidAnswer:
        pass


def test_messages_of_the_handshake() -> None:
    assert start_tls_request(7).hex() == "0000000b" + "0a06080310091807" + "d20600"
    assert auth_request(1, b"x").endswith(b"\x0a\x04sasl\x12\x01x")


def _answer(operation: int, status: int = 0) -> Response:
    answer = Response(status=status)
    answer.header.version, answer.header.operation, answer.header.txn_id = 3, operation, 1
    return answer


def test_refused_handshakes_are_errors() -> None:
    require_tls_started(_answer(9))
    assert auth_payload(_answer(5)) == b""
    require_accepted(_answer(7, 403))
    refusals: list[tuple[Callable[[Response], object], Response, type[BookKeeperError]]] = [
        (require_tls_started, _answer(9, 404), BadRequest),
        (require_tls_started, _answer(5), InvalidAnswer),
        (auth_payload, _answer(5, 502), WrongKey),
        (auth_payload, _answer(9), InvalidAnswer),
        (require_accepted, _answer(7, 502), WrongKey),
    ]
    for check, answer, error in refusals:
        with pytest.raises(error):
            check(answer)
