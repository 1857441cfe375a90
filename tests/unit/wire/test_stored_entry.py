"""The Python routine for stored entries, and the readers of single fields, against the shared vectors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from tests.support.stored_entries import (
    ALL,
    BATCH_ERRORS,
    OPEN_BATCHES,
    READABLE,
    UNREADABLE,
    VECTORS,
    StoredEntryVector,
)
from tests.unit.wire.support import MAX_BATCH_MESSAGES, MAX_FIELDS, MAX_MESSAGE_BYTES, frame, send
from tests.vectors.generate import vectors

from pybroker.errors import ChecksumError, NotAllowedError, ProtocolViolation
from pybroker.model.events import SendRefused, SendRun
from pybroker.wire import entry_metadata
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.broker_entry_metadata import broker_metadata, entry_time_ms, without_broker_metadata
from pybroker.wire.commands import Decoder
from pybroker.wire.compression import DamagedPayload, decompress
from pybroker.wire.entry_view import entry_view
from pybroker.wire.stored_entry import is_checksum_wrong, messages_of_batch, split_entry

BAD_VALUES = frozenset({"bad_message_count", "missing_field", "bad_chunk"})
"""Errors of metadata that protobuf parses: absent or out-of-range values."""

any_entry = pytest.mark.parametrize("vector", ALL, ids=str)
readable_entry = pytest.mark.parametrize("vector", READABLE, ids=str)
open_batch = pytest.mark.parametrize("vector", OPEN_BATCHES, ids=str)


def key_of(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> str | None:
    return metadata.partition_key if metadata.HasField("partition_key") else None


def shown(single: pb.SingleMessageMetadata, value: bytes) -> dict[str, Any]:
    return {
        "value": None if single.null_value else value.hex(),
        "key": key_of(single),
        "ordering_key": single.ordering_key.hex() if single.HasField("ordering_key") else None,
        "properties": [[pair.key, pair.value] for pair in single.properties],
        "event_time_ms": single.event_time,
        "sequence_id": single.sequence_id if single.HasField("sequence_id") else 7,
        "is_compacted_out": single.compacted_out,
    }


def test_vectors_are_what_the_generator_writes() -> None:
    """Compressed bytes depend on the version of the codec."""
    stored = json.loads(VECTORS.read_text(encoding="utf-8"))
    generated = vectors()
    assert [each["name"] for each in generated] == [each["name"] for each in stored]
    for new, old in zip(generated, stored, strict=True):
        if "compressed" in new["name"]:
            new["entry"] = old["entry"]
        assert new == old


@any_entry
def test_entry_is_split_into_metadata_and_payload(vector: StoredEntryVector) -> None:
    if vector.error in UNREADABLE:
        with pytest.raises(ProtocolViolation):
            split_entry(vector.entry)
        return
    metadata, payload = split_entry(vector.entry)
    assert entry_metadata.metadata_span(vector.entry) == vector.span
    assert payload == vector.entry[vector.span[1] :]
    is_chunk = metadata.HasField("uuid") and metadata.num_chunks_from_msg > 1
    assert vector.fields == {
        "producer_name": metadata.producer_name,
        "sequence_id": metadata.sequence_id,
        "publish_time_ms": metadata.publish_time,
        "event_time_ms": metadata.event_time,
        "deliver_at_ms": metadata.deliver_at_time,
        "key": key_of(metadata),
        "ordering_key": metadata.ordering_key.hex() if metadata.HasField("ordering_key") else None,
        "properties": [[pair.key, pair.value] for pair in metadata.properties],
        "compression": metadata.compression,
        "uncompressed_bytes": metadata.uncompressed_size,
        "message_count": metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None,
        "is_encrypted": bool(metadata.encryption_keys),
        "is_marker": metadata.HasField("marker_type"),
        "is_null_value": metadata.null_value,
        "chunk": [metadata.chunk_id, metadata.num_chunks_from_msg] if is_chunk else None,
    }


@readable_entry
def test_payload_is_opened_or_damaged(vector: StoredEntryVector) -> None:
    metadata, payload = split_entry(vector.entry)
    if vector.error == "damaged_payload":
        with pytest.raises(DamagedPayload):
            decompress(metadata.compression, payload, metadata.uncompressed_size)
    elif vector.payload is not None:
        assert decompress(metadata.compression, payload, metadata.uncompressed_size) == vector.payload


@open_batch
def test_batch_yields_its_messages_in_front_of_an_error(vector: StoredEntryVector) -> None:
    assert vector.payload is not None
    found = []
    is_damaged = False
    try:
        for single, start, end in messages_of_batch(vector.payload, vector.fields["message_count"]):
            assert end - start == single.payload_size
            found.append(shown(single, vector.payload[start:end]))
    except (DamagedPayload, DecodeError):
        is_damaged = True
    assert is_damaged == (vector.error in BATCH_ERRORS)
    # Only the bulk readers count the messages that the bytes can hold, and detect missing fields that protobuf ignores.
    if vector.error not in {"too_many_messages", "missing_batch_field"}:
        assert found == vector.messages


@readable_entry
def test_checksum_is_compared(vector: StoredEntryVector) -> None:
    assert is_checksum_wrong(vector.entry) == (vector.checksum == "wrong")


@readable_entry
def test_broker_entry_metadata_is_read(vector: StoredEntryVector) -> None:
    added = broker_metadata(vector.entry)
    assert vector.broker == {"timestamp_ms": added.timestamp_ms, "index": added.index}
    assert entry_time_ms(vector.entry) == (added.timestamp_ms or vector.fields["publish_time_ms"])


@readable_entry
def test_readers_of_single_fields_agree_with_the_whole_metadata(vector: StoredEntryVector) -> None:
    entry, fields, span = vector.entry, vector.fields, vector.span
    assert entry_metadata.publish_time_ms(entry) == fields["publish_time_ms"]
    assert entry_metadata.deliver_at_ms(entry) == fields["deliver_at_ms"]
    assert entry_metadata.is_batch(entry) == (fields["message_count"] is not None)
    assert entry_metadata.is_marker(entry) == fields["is_marker"]
    assert entry_metadata.is_encrypted(entry) == fields["is_encrypted"]
    if vector.error == "bad_message_count":
        with pytest.raises(ProtocolViolation):
            entry_metadata.message_count(entry, *span)
    else:
        assert entry_metadata.message_count(entry, *span) == (fields["message_count"] or 1)
    if vector.error not in BAD_VALUES:
        chunk = entry_metadata.chunk_of(entry)
        assert (chunk and [chunk.chunk_id, chunk.chunk_count]) == fields["chunk"]
        is_counted = not fields["is_marker"] and fields["chunk"] is None
        origin = (fields["producer_name"], fields["sequence_id"])
        assert entry_metadata.stored_sequence_id(entry) == (origin if is_counted else None)
        key = fields["key"] and fields["key"].encode()
        ordering_key = fields["ordering_key"] and bytes.fromhex(fields["ordering_key"])
        assert entry_metadata.sticky_key(entry) == (ordering_key or key or b"%s-%d" % (origin[0].encode(), origin[1]))


@any_entry
def test_readers_of_single_fields_take_unreadable_metadata(vector: StoredEntryVector) -> None:
    for reader in (
        entry_metadata.publish_time_ms,
        entry_metadata.deliver_at_ms,
        entry_metadata.is_marker,
        entry_metadata.is_encrypted,
        entry_metadata.chunk_of,
        entry_metadata.stored_sequence_id,
        entry_metadata.sticky_key,
        broker_metadata,
        entry_time_ms,
    ):
        reader(vector.entry)


@any_entry
def test_view_of_an_entry_shows_its_messages_or_its_problem(vector: StoredEntryVector) -> None:
    view = entry_view(vector.entry, None if vector.error is None else (), 1 << 20)
    # The view of a single message does not open its payload.
    finds = UNREADABLE | BATCH_ERRORS
    is_encrypted_batch = vector.is_batch and vector.fields["is_encrypted"]
    if vector.error in finds or is_encrypted_batch:
        assert view.problem
        return
    assert not view.problem
    if vector.is_batch and vector.error is None:
        keys = [
            bytes.fromhex(each["ordering_key"]) if each["ordering_key"] else (each["key"] or "").encode()
            for each in vector.messages
        ]
        assert [each.key or b"" for each in view.messages] == keys
        assert [each.size_bytes for each in view.messages] == [
            len(each["value"] or "") // 2 for each in vector.messages
        ]


@any_entry
def test_send_of_the_entry_is_accepted_or_refused(vector: StoredEntryVector) -> None:
    """A broker receives the entry without broker metadata, and compares the checksum first."""
    decoder = Decoder()
    decoder.accept_messages(MAX_MESSAGE_BYTES, MAX_BATCH_MESSAGES, MAX_FIELDS)
    entry = without_broker_metadata(vector.entry)
    received = frame(send(1, 7), entry)
    if vector.error in {"metadata_too_long", "bad_message_count"}:
        try:
            events = decoder.feed(received)
        except ProtocolViolation:
            return
        # the checksum of a truncated entry is wrong
        assert [type(event) for event in events] == [SendRefused]
        assert isinstance(events[0], SendRefused)
        assert isinstance(events[0].error, ChecksumError)
        return
    (event,) = decoder.feed(received)
    if vector.checksum == "wrong" or vector.error == "too_many_messages":
        assert isinstance(event, SendRefused)
        assert isinstance(event.error, ChecksumError if vector.checksum == "wrong" else NotAllowedError)
        return
    assert isinstance(event, SendRun)
    assert event.payloads == [entry]
    if vector.is_readable:
        assert event.message_counts == [vector.fields["message_count"] or 1]
        assert event.has_markers == vector.fields["is_marker"]
