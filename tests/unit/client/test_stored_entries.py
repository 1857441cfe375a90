"""The client unpacks the shared vectors of stored entries."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.stored_entries import ALL, StoredEntryVector

from pybroker.client.consuming.unpacking import ChunkedMessages, EncryptedMessage, unpack
from pybroker.client.frames import ReceivedEntry
from pybroker.client.message import Message
from pybroker.wire.compression import DamagedPayload

LENIENT = frozenset({"missing_field", "missing_batch_field", "bad_chunk"})
"""Errors that protobuf objects do not show. Brokers refuse the entries, or scanners report them."""


def shown(message: Message) -> dict[str, Any]:
    return {
        "value": None if message.value is None else message.value.hex(),
        "key": message.key,
        "ordering_key": None if message.ordering_key is None else message.ordering_key.hex(),
        "properties": [list(pair) for pair in message.properties.items()],
        "event_time_ms": message.event_time_ms,
        "sequence_id": message.sequence_id,
        "is_compacted_out": False,
    }


@pytest.mark.parametrize("vector", [each for each in ALL if each.error not in LENIENT], ids=str)
def test_client_unpacks_the_messages_of_an_entry(vector: StoredEntryVector) -> None:
    received = ReceivedEntry(0, 3, 5, 0, vector.entry)
    if vector.fields and vector.fields["is_encrypted"]:
        with pytest.raises(EncryptedMessage):
            unpack(received, "t", -1, ChunkedMessages())
    elif vector.error == "bad_message_count" and vector.fields["message_count"] == 0:
        assert not unpack(received, "t", -1, ChunkedMessages()).messages
    elif vector.error is not None:
        with pytest.raises(
            DamagedPayload,
            match=r"^entry 3:5 of topic t |^the batch 3:5 of topic t |payload|after decompression|cannot hold",
        ):
            unpack(received, "t", -1, ChunkedMessages())
    elif not vector.fields["is_marker"]:  # brokers do not send markers
        messages = unpack(received, "t", -1, ChunkedMessages()).messages
        assert [shown(each) for each in messages] == [each for each in vector.messages if not each["is_compacted_out"]]
