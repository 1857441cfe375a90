"""What a replay makes of an entry, and which sequence ids it gives."""

import pytest
from crc32c import crc32c

from pybroker.pipelines.replay import ENTRY_BITS, rewritten, sequence_id_of
from pybroker.reading.entry_source import ReadingFailed
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.entry_builder import build_entry
from pybroker.wire.stored_entry import split_entry


def test_sequence_ids_rise_along_a_topic_and_are_the_same_in_every_run() -> None:
    places = [(1, 0), (1, 1), (1, (1 << ENTRY_BITS) - 1), (2, 0), (1 << 30, 7)]
    ids = [sequence_id_of(*place) for place in places]
    assert ids == sorted(set(ids))
    assert max(ids) < 1 << 63


@pytest.mark.parametrize("place", [(1, 1 << ENTRY_BITS), (1 << (63 - ENTRY_BITS), 0)])
def test_a_place_without_sequence_id_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(ReadingFailed, match="cannot be replayed"):
        sequence_id_of(*place)


def test_a_rewritten_entry_is_the_same_message_of_another_producer() -> None:
    entry = build_entry(
        "origin",
        7,
        1000,
        b"payload",
        key="k",
        properties={"a": "1"},
        event_time_ms=5,
        schema_version=b"\0\3",
        replicate_to=["c"],
    )
    metadata, payload = split_entry(entry)
    again, rest = split_entry(rewritten(metadata, payload, "replay-x-0", 99, b"\0\1", 2000))
    assert (again.producer_name, again.sequence_id, again.schema_version, again.publish_time) == (
        "replay-x-0",
        99,
        b"\0\1",
        2000,
    )
    assert (rest, again.partition_key, again.event_time, list(again.replicate_to)) == (b"payload", "k", 5, [])
    assert [(pair.key, pair.value) for pair in again.properties] == [("a", "1")]


def test_the_checksum_is_that_of_the_new_entry_and_the_time_may_stay() -> None:
    metadata, payload = split_entry(build_entry("origin", 7, 1000, b"payload"))
    data = rewritten(metadata, payload, "p", 1, b"", 0)
    assert int.from_bytes(data[2:6], "big") == crc32c(data[6:])
    again = split_entry(data)[0]
    assert again.publish_time == 1000
    assert not again.HasField("schema_version")


def test_what_belongs_to_a_transaction_or_to_replication_does_not_go_along() -> None:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, txnid_least_bits=3, txnid_most_bits=4, replicated_from="other"
    )
    again = split_entry(rewritten(metadata, b"", "q", 2, b"", 0))[0]
    assert not again.HasField("txnid_least_bits")
    assert not again.HasField("replicated_from")
