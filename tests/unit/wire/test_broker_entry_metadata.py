"""The broker's prefix of an entry is found again, and the rest is read as before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.support import EXAMPLES, connected_decoder, frame, message, metadata, metadatas, send

from pybroker.model.events import SendRun
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.broker_entry_metadata import (
    NOTHING_ADDED,
    BrokerEntryMetadata,
    broker_metadata,
    entry_time_ms,
    with_broker_metadata,
    without_broker_metadata,
)
from pybroker.wire.entry_metadata import (
    chunk_of,
    deliver_at_ms,
    is_batch,
    is_encrypted,
    is_marker,
    message_metadata,
    metadata_span,
    publish_time_ms,
    sticky_key,
)

numbers = st.none() | st.integers(0, 2**63 - 1)


@EXAMPLES
@given(metadatas, st.binary(max_size=20), st.sampled_from(["good", "none"]), numbers, numbers)
def test_it_is_found_again_and_changes_nothing_behind_it(
    fields: pb.MessageMetadata, payload: bytes, checksum: str, timestamp_ms: int | None, index: int | None
) -> None:
    sent = message(fields, payload, checksum)
    entry = with_broker_metadata(sent, timestamp_ms, index)
    assert without_broker_metadata(entry) == sent
    assert without_broker_metadata(sent) is sent
    assert broker_metadata(entry) == BrokerEntryMetadata(timestamp_ms, index)
    assert broker_metadata(sent) == NOTHING_ADDED
    assert entry[metadata_span(entry)[1] :] == payload
    assert message_metadata(entry) == message_metadata(sent)
    for read in (is_batch, is_encrypted, is_marker, publish_time_ms, deliver_at_ms, chunk_of, sticky_key):
        assert read(entry) == read(sent)
    assert entry_time_ms(entry) == (timestamp_ms or publish_time_ms(sent))
    assert is_marker(sent) == fields.HasField("marker_type")


def test_it_is_written_as_protobuf_writes_it() -> None:
    fields = pb.BrokerEntryMetadata(broker_timestamp=1_700_000_000_000, index=7).SerializeToString()
    expected = b"\x0e\x02" + len(fields).to_bytes(4, "big") + fields + b"entry"
    assert with_broker_metadata(b"entry", 1_700_000_000_000, 7) == expected


@given(st.binary(max_size=40))
def test_any_bytes_have_a_time_and_an_index_or_none(data: bytes) -> None:
    for entry in (data, b"\x0e\x02" + data, b"\x0e\x02\0\0\0\x04" + data):
        broker_metadata(entry)
        assert entry_time_ms(entry) >= 0
        assert entry.endswith(without_broker_metadata(entry))


@pytest.mark.parametrize(("marker_type", "payload"), [(None, b"\xa0\x01" * 9), (10, b""), (21, b"\xa0")])
def test_a_run_says_whether_markers_are_in_it(marker_type: int | None, payload: bytes) -> None:
    fields = metadata() if marker_type is None else metadata(marker_type=marker_type)
    plain = frame(send(1, 1), message(metadata(), b"text"))
    (run,) = connected_decoder().feed(plain + frame(send(1, 2), message(fields, payload)) + plain)
    assert isinstance(run, SendRun)
    assert run.has_markers == (marker_type is not None)
