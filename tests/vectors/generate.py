"""Write `stored_entries.json`, the test vectors of all parsers of stored entries.

    python -m tests.vectors.generate

The entries are encoded here field by field from the definition of the format, without the code that the vectors test. A
vector has these members; `tests/support/stored_entries.py` loads them:

    name            unique
    entry           the stored bytes, hexadecimal
    error           why the entry cannot be read, null if it can: a name of `ScanError` in lower case, or `damaged_payload`
    broker          timestamp_ms and index of BrokerEntryMetadata; null for the entries that cannot be read
    checksum        none, right or wrong; null for the entries that cannot be read
    metadata        start and end of MessageMetadata in the entry; null when they are unknown
    fields          the fields of MessageMetadata; null when they are unknown
    payload         the uncompressed payload, hexadecimal; null when it is encrypted, damaged or unknown
    messages        the messages in front of the error, if there is one
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.block
import snappy
import zstandard
from crc32c import crc32c

VECTORS = Path(__file__).with_name("stored_entries.json")
CODECS = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}
PUBLISH_TIME_MS = 1_700_000_000_000
BROKER_TIME_MS = 1_700_000_000_005
Vector = dict[str, Any]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def piece(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def size(value: int) -> bytes:
    return value.to_bytes(4, "big")


def pair(field: int, name: str, value: str) -> bytes:
    return piece(field, piece(1, name.encode()) + piece(2, value.encode()))


REQUIRED = piece(1, b"producer") + number(2, 7) + number(3, PUBLISH_TIME_MS)
"""producer_name, sequence_id, publish_time."""
UNKNOWN = (
    number(1000, 1 << 63) + varint(1001 << 3 | 1) + bytes(8) + varint(1002 << 3 | 5) + bytes(4) + piece(1003, b"?")
)
"""Fields of all wire types that no parser knows."""


def fields(**differing: object) -> Vector:
    """The fields of `REQUIRED`, changed by `differing`."""
    return {
        "producer_name": "producer",
        "sequence_id": 7,
        "publish_time_ms": PUBLISH_TIME_MS,
        "event_time_ms": 0,
        "deliver_at_ms": 0,
        "key": None,
        "ordering_key": None,
        "properties": [],
        "compression": 0,
        "uncompressed_bytes": 0,
        "message_count": None,
        "is_encrypted": False,
        "is_marker": False,
        "is_null_value": False,
        "chunk": None,
        **differing,
    }


def message(value: bytes | None, **differing: object) -> Vector:
    return {
        "value": None if value is None else value.hex(),
        "key": None,
        "ordering_key": None,
        "properties": [],
        "event_time_ms": 0,
        "sequence_id": 7,
        "is_compacted_out": False,
        **differing,
    }


def checked(body: bytes, *, wrong_by: int = 0) -> bytes:
    return b"\x0e\x01" + size(crc32c(body) ^ wrong_by) + body


def behind_broker_metadata(entry: bytes, encoded: bytes) -> bytes:
    return b"\x0e\x02" + size(len(encoded)) + encoded + entry


def body_of(metadata: bytes, payload: bytes) -> bytes:
    return size(len(metadata)) + metadata + payload


def vector(
    name: str,
    metadata: bytes,
    payload: bytes,
    known: Vector,
    messages: list[Vector],
    *,
    stored: bytes | None = None,
    opened: bytes | None = None,
    broker: tuple[bytes, int | None, int | None] | None = None,
    checksum: str = "right",
    error: str | None = None,
    is_opened: bool = True,
) -> Vector:
    """`stored` is the payload as it is stored, if it differs; `broker` is BrokerEntryMetadata, its timestamp and index."""
    stored = payload if stored is None else stored
    body = body_of(metadata, stored)
    entry = body if checksum == "none" else checked(body, wrong_by=int(checksum == "wrong"))
    timestamp_ms = index = None
    if broker is not None:
        entry = behind_broker_metadata(entry, broker[0])
        timestamp_ms, index = broker[1:]
    end = len(entry) - len(stored)
    return {
        "name": name,
        "entry": entry.hex(),
        "error": error,
        "broker": {"timestamp_ms": timestamp_ms, "index": index},
        "checksum": checksum,
        "metadata": [end - len(metadata), end],
        "fields": known,
        "payload": payload.hex() if is_opened else None,
        "messages": messages,
    }


def unreadable(name: str, entry: bytes, error: str) -> Vector:
    """An entry without readable metadata."""
    absent = dict.fromkeys(("broker", "checksum", "metadata", "fields", "payload"))
    return {"name": name, "entry": entry.hex(), "error": error, **absent, "messages": []}


def whole_entries() -> Iterator[Vector]:
    value = b"value"
    simple = [message(value)]
    yield vector("plain", REQUIRED, value, fields(), simple)
    yield vector("plain without checksum", REQUIRED, value, fields(), simple, checksum="none")
    yield vector("wrong checksum", REQUIRED, value, fields(), simple, checksum="wrong")
    added = number(1, BROKER_TIME_MS) + number(2, 41)
    both = (added, BROKER_TIME_MS, 41)
    yield vector("broker entry metadata", REQUIRED, value, fields(), simple, broker=both)
    yield vector(
        "broker entry metadata without checksum", REQUIRED, value, fields(), simple, broker=both, checksum="none"
    )
    yield vector("broker index 0", REQUIRED, value, fields(), simple, broker=(number(2, 0), None, 0))
    yield vector("broker timestamp only", REQUIRED, value, fields(), simple, broker=(number(1, 5), 5, None))
    yield vector(
        "unknown broker fields", REQUIRED, value, fields(), simple, broker=(UNKNOWN + added, BROKER_TIME_MS, 41)
    )
    yield vector("empty broker entry metadata", REQUIRED, value, fields(), simple, broker=(b"", None, None))
    yield vector(
        "malformed broker entry metadata", REQUIRED, value, fields(), simple, broker=(added + b"\x10\xff", None, None)
    )
    yield vector("empty payload", REQUIRED, b"", fields(), [message(b"")])
    null = REQUIRED + number(25, 1)
    yield vector("null value", null, b"", fields(is_null_value=True), [message(None)])
    of_application = piece(6, b"key") + piece(18, b"order") + pair(4, "a", "1") + pair(4, "b", "") + number(12, 12)
    own = {"key": "key", "ordering_key": b"order".hex(), "properties": [["a", "1"], ["b", ""]], "event_time_ms": 12}
    yield vector("key and properties", REQUIRED + of_application, value, fields(**own), [message(value, **own)])
    yield vector("deliver at", REQUIRED + number(19, 99), value, fields(deliver_at_ms=99), simple)
    yield vector("unknown fields", UNKNOWN + REQUIRED + UNKNOWN, value, fields(), simple)
    text = "x" * 2000
    large = REQUIRED + pair(4, "large", text)
    properties = [["large", text]]
    yield vector(
        "metadata over 1 KiB", large, value, fields(properties=properties), [message(value, properties=properties)]
    )
    yield vector("marker", REQUIRED + number(20, 21), b"", fields(is_marker=True), [])
    highest = piece(1, b"producer") + number(2, (1 << 63) - 1) + number(3, PUBLISH_TIME_MS)
    last = (1 << 63) - 1
    yield vector("largest sequence id", highest, value, fields(sequence_id=last), [message(value, sequence_id=last)])
    keys = piece(13, piece(1, b"name") + piece(2, b"data key")) + piece(15, bytes(12))
    yield vector("encrypted", REQUIRED + keys, b"\x93" * 32, fields(is_encrypted=True), [], is_opened=False)
    known = fields(is_encrypted=True, message_count=2)
    yield vector("encrypted batch", REQUIRED + keys + number(11, 2), b"\x93" * 32, known, [], is_opened=False)
    chunk = REQUIRED + piece(26, b"producer-7") + number(27, 3) + number(28, 12) + number(29, 1)
    yield vector("chunk", chunk, b"part", fields(chunk=[1, 3]), [])
    only = REQUIRED + piece(26, b"producer-7") + number(27, 1) + number(28, 5) + number(29, 0)
    yield vector("message in one chunk", only, value, fields(), simple)
    for codec, compressed in compressions(value * 20):
        metadata = REQUIRED + number(8, CODECS[codec]) + number(9, 100)
        known = fields(compression=CODECS[codec], uncompressed_bytes=100)
        yield vector(f"compressed by {codec}", metadata, value * 20, known, [message(value * 20)], stored=compressed)


def compressions(payload: bytes) -> Iterator[tuple[str, bytes]]:
    yield "lz4", lz4.block.compress(payload, store_size=False)
    yield "zlib", zlib.compress(payload)
    yield "zstd", zstandard.ZstdCompressor().compress(payload)
    yield "snappy", snappy.compress(payload)


def single(value: bytes, encoded: bytes = b"", value_bytes: int | None = None) -> bytes:
    metadata = encoded + number(3, len(value) if value_bytes is None else value_bytes)
    return size(len(metadata)) + metadata + value


REMOVED = single(b"", number(4, 1))
FIRST = single(b"one", number(8, 7) + piece(2, b"k1") + pair(1, "n", "v"))
SECOND = single(b"two!", number(8, 8) + piece(7, b"order") + number(5, 12))
THREE = FIRST + SECOND + single(b"", number(8, 9))
OF_FIRST = message(b"one", key="k1", properties=[["n", "v"]])
OF_SECOND = message(b"two!", sequence_id=8, ordering_key=b"order".hex(), event_time_ms=12)
OF_THREE = [OF_FIRST, OF_SECOND, message(b"", sequence_id=9)]


def batch(
    name: str, payload: bytes, count: int, messages: list[Vector], error: str | None = None, **options: Any
) -> Vector:
    metadata = REQUIRED + number(11, count)
    return vector(name, metadata, payload, fields(message_count=count), messages, error=error, **options)


def batches() -> Iterator[Vector]:
    yield batch("batch", THREE, 3, OF_THREE)
    yield batch("batch of one", FIRST, 1, [OF_FIRST])
    added = number(2, 43)
    yield batch("batch with broker entry metadata", THREE, 3, OF_THREE, broker=(added, None, 43))
    yield batch("batch without checksum", THREE, 3, OF_THREE, checksum="none")
    null = single(b"", number(8, 8) + piece(2, b"k1") + number(9, 1))
    yield batch("batch with null value", FIRST + null, 2, [OF_FIRST, message(None, key="k1", sequence_id=8)])
    same = single(b"x", number(8, 7))
    yield batch("batch of identical metadata", same * 3, 3, [message(b"x")] * 3)
    yield batch("batch with unknown fields", single(b"x", UNKNOWN + number(8, 7)), 1, [message(b"x")])
    gone = message(b"", is_compacted_out=True)
    yield batch("batch with a compacted-out message", FIRST + REMOVED + SECOND, 3, [OF_FIRST, gone, OF_SECOND])
    yield batch("batch with a compacted-out message first", REMOVED + SECOND, 2, [gone, OF_SECOND])
    yield batch("batch of compacted-out messages", REMOVED * 3, 3, [gone] * 3)
    yield batch("batch with bytes behind its messages", THREE + b"more", 3, OF_THREE)
    for codec, compressed in compressions(THREE):
        metadata = REQUIRED + number(8, CODECS[codec]) + number(9, len(THREE)) + number(11, 3)
        known = fields(compression=CODECS[codec], uncompressed_bytes=len(THREE), message_count=3)
        yield vector(f"batch compressed by {codec}", metadata, THREE, known, OF_THREE, stored=compressed)


def truncated_entries() -> Iterator[Vector]:
    added = number(1, BROKER_TIME_MS) + number(2, 41)
    entry = behind_broker_metadata(checked(body_of(REQUIRED, b"")), added)
    ends = {
        "nothing": 0,
        "broker magic, first byte": 1,
        "broker magic": 2,
        "broker size, first bytes": 4,
        "broker size": 6,
        "broker fields, all but one byte": 6 + len(added) - 1,
        "broker fields": 6 + len(added),
        "checksum magic, first byte": 7 + len(added),
        "checksum magic": 8 + len(added),
        "checksum, first bytes": 10 + len(added),
        "checksum": 12 + len(added),
        "metadata size, first bytes": 14 + len(added),
        "metadata size": 16 + len(added),
        "metadata, first byte": 17 + len(added),
        "metadata, all but one byte": len(entry) - 1,
    }
    for name, end in ends.items():
        yield unreadable(f"truncated behind {name}", entry[:end], "metadata_too_long")
    yield unreadable(
        "truncated behind nine bytes without broker metadata", entry[6 + len(added) :][:9], "metadata_too_long"
    )
    body = body_of(REQUIRED, b"")
    yield unreadable("truncated size without checksum", body[:3], "metadata_too_long")
    whole = vector("", REQUIRED, b"value", fields(), [message(b"valu")], checksum="right")
    cut = {"name": "truncated within the payload", "entry": whole["entry"][:-2], "checksum": "wrong"}
    yield {**whole, **cut, "payload": b"valu".hex()}


def truncated_batches() -> Iterator[Vector]:
    first, second = len(FIRST), len(SECOND)
    ends = {
        "nothing": (0, 0),
        "the size of the first metadata, first bytes": (2, 0),
        "the size of the first metadata": (4, 0),
        "the first metadata, first byte": (5, 0),
        "the first metadata": (first - 3, 0),
        "the first value, all but one byte": (first - 1, 0),
        "the first message": (first, 1),
        "the size of the second metadata, all but one byte": (first + 3, 1),
        "the size of the second metadata": (first + 4, 1),
        "the second value, all but one byte": (first + second - 1, 1),
    }
    for name, (end, readable) in ends.items():
        count = 2
        error = "too_many_messages" if count * 6 > end else "batch_too_short"
        messages = [OF_FIRST][:readable]
        yield batch(f"batch truncated behind {name}", (FIRST + SECOND)[:end], count, messages, error)
    yield batch("batch of one message less than it claims", THREE, 4, OF_THREE, "batch_too_short")


def oversized() -> Iterator[Vector]:
    body = body_of(REQUIRED, b"value")
    most = 0xFFFF_FFFF
    yield unreadable("oversized broker size", b"\x0e\x02" + size(most) + checked(body), "metadata_too_long")
    longer = size(len(REQUIRED) + 6) + REQUIRED + b"value"
    yield unreadable("metadata one byte longer than the entry", checked(longer), "metadata_too_long")
    yield unreadable("oversized metadata size", checked(size(most) + REQUIRED), "metadata_too_long")
    yield unreadable("oversized metadata size without checksum", size(most) + REQUIRED, "metadata_too_long")
    padding = b"x" * 20
    for name, item in {
        "oversized size of a message's metadata": size(most) + padding,
        "message's metadata one byte longer than the batch": size(len(padding) + 1) + padding,
        "value one byte longer than the batch": single(b"value", value_bytes=6),
        "oversized value": single(b"value", value_bytes=(1 << 31) - 1),
        "negative value size": single(b"value", value_bytes=-1),
        "value size of 32 bits that is negative": single(b"value", value_bytes=most),
    }.items():
        yield batch(f"batch with {name}", FIRST + item, 2, [OF_FIRST], "batch_too_short")
    yield batch("batch of more messages than its bytes can hold", FIRST, 1_000_000, [], "too_many_messages")
    yield batch("batch of 0 messages", FIRST, 0, [], "bad_message_count")
    yield batch("batch of -1 messages", FIRST, -1, [], "bad_message_count")
    for codec, compressed in compressions(b"value" * 20):
        claims = {"one byte more": 101, "4 GiB": most}
        if codec in {"lz4", "snappy"}:  # `decompress` cuts the data of the other codecs at the claimed size.
            claims["one byte less"] = 99
        for name, claimed in claims.items():
            metadata = REQUIRED + number(8, CODECS[codec]) + number(9, claimed)
            known = fields(compression=CODECS[codec], uncompressed_bytes=claimed)
            title = f"compressed by {codec}, claims {name}"
            yield vector(title, metadata, b"", known, [], stored=compressed, error="damaged_payload", is_opened=False)


def malformed() -> Iterator[Vector]:
    for name, metadata in {
        "field longer than the metadata": REQUIRED + b"\x32\x05key",
        "number without end": REQUIRED + b"\x60\xff",
        "number of eleven bytes": REQUIRED + b"\x60" + b"\xff" * 10 + b"\x01",
        "tag without value": REQUIRED + b"\x60",
        "wire type 7": REQUIRED + b"\x67\x00",
    }.items():
        yield unreadable(f"metadata with {name}", checked(body_of(metadata, b"value")), "malformed_metadata")
    for name, encoded in {
        "field longer than the metadata": b"\x12\x05key",
        "number without end": b"\x18\xff",
        "wire type 7": b"\x1f\x00",
    }.items():
        item = size(len(encoded)) + encoded + bytes(8)
        title = f"batch with a message whose metadata has a {name}"
        yield batch(title, FIRST + item, 2, [OF_FIRST], "malformed_batch_metadata")
    yield batch(
        "batch with a message without size",
        FIRST + size(2) + number(8, 8) + bytes(8),
        2,
        [OF_FIRST],
        "missing_batch_field",
    )
    for name, metadata, known in (
        ("producer name", number(2, 7) + number(3, PUBLISH_TIME_MS), {"producer_name": ""}),
        ("sequence id", piece(1, b"producer") + number(3, PUBLISH_TIME_MS), {"sequence_id": 0}),
        ("publish time", piece(1, b"producer") + number(2, 7), {"publish_time_ms": 0}),
        ("any field", b"", {"producer_name": "", "sequence_id": 0, "publish_time_ms": 0}),
    ):
        yield vector(f"metadata without {name}", metadata, b"value", fields(**known), [], error="missing_field")
    for name, chunk_id in (("number is not below the count", 3), ("number is negative", -1)):
        chunk = REQUIRED + piece(26, b"producer-7") + number(27, 3) + number(28, 12) + number(29, chunk_id)
        yield vector(f"chunk whose {name}", chunk, b"part", fields(chunk=[chunk_id, 3]), [], error="bad_chunk")


def vectors() -> list[Vector]:
    sources = (whole_entries, batches, truncated_entries, truncated_batches, oversized, malformed)
    return [each for source in sources for each in source()]


def main() -> None:
    lines = ",\n".join(json.dumps(each) for each in vectors())
    VECTORS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
