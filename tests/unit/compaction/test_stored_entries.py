"""Compaction reads the shared vectors of stored entries."""

from __future__ import annotations

import pytest
from tests.support.stored_entries import ALL, BATCH_ERRORS, UNREADABLE, StoredEntryVector

from pybroker.compaction.messages import Batch, Marker, Single, Whole, read_entry, with_messages
from pybroker.wire.compression import decompress
from pybroker.wire.stored_entry import messages_of_batch, split_entry

LENIENT = frozenset({"missing_field", "missing_batch_field", "bad_chunk", "bad_message_count"})


def key_of(message: dict[str, str | None]) -> bytes | None:
    return None if message["key"] is None else message["key"].encode()


@pytest.mark.parametrize("vector", [each for each in ALL if each.error not in LENIENT], ids=str)
def test_compaction_reads_keys_and_leaves_unreadable_entries_whole(vector: StoredEntryVector) -> None:
    content = read_entry(vector.entry)
    if vector.error in UNREADABLE | BATCH_ERRORS or (vector.is_batch and vector.fields["is_encrypted"]):
        assert isinstance(content, Whole)
    elif vector.fields["is_marker"]:
        assert isinstance(content, Marker)
    elif not vector.is_batch:
        assert isinstance(content, Single)
        assert content.key == (vector.fields["key"] and vector.fields["key"].encode())
        assert bool(content.chunk_uuid) == (vector.fields["chunk"] is not None)
    else:
        assert isinstance(content, Batch)
        messages = list(content.messages)
        assert [each.key for each in messages] == [key_of(each) for each in vector.messages]
        assert [each.is_removed for each in messages] == [each["is_compacted_out"] for each in vector.messages]
        assert [each.is_tombstone for each in messages] == [not each["value"] for each in vector.messages]


@pytest.mark.parametrize("vector", [each for each in ALL if each.is_batch and each.error is None], ids=str)
def test_batch_without_one_message_has_a_compacted_out_message_in_its_place(vector: StoredEntryVector) -> None:
    content = read_entry(vector.entry)
    if isinstance(content, Whole):
        assert vector.fields["is_encrypted"]
        return
    assert isinstance(content, Batch)
    count = len(vector.messages)
    metadata, payload = split_entry(with_messages(vector.entry, content, [index > 0 for index in range(count)]))
    opened = decompress(metadata.compression, payload, metadata.uncompressed_size)
    messages = [(single, opened[start:end]) for single, start, end in messages_of_batch(opened, count)]
    assert [single.compacted_out for single, _ in messages] == [
        not index or each["is_compacted_out"] for index, each in enumerate(vector.messages)
    ]
    assert [value.hex() for _, value in messages][1:] == [each["value"] or "" for each in vector.messages][1:]
