"""The snapshot of a topic's transactions that Java brokers read."""

from __future__ import annotations

from io import BytesIO

import pytest
from fastavro import parse_schema, schemaless_reader, schemaless_writer

from pybroker.broker.cluster.java_snapshot_format import InvalidSnapshot, encode_snapshot, start_behind
from pybroker.model.names import TopicName
from pybroker.model.position import EARLIEST, Position

_LONGS = ("ledgerId", "entryId", "txnIdLeastBits", "txnIdMostBits")
SCHEMA = parse_schema(
    {
        "type": "record",
        "name": "TransactionBufferSnapshot",
        "fields": [
            {
                "name": "aborts",
                "type": [
                    "null",
                    {
                        "type": "array",
                        "items": {
                            "type": "record",
                            "name": "AbortTxnMetadata",
                            "fields": [{"name": name, "type": "long"} for name in sorted(_LONGS)],
                        },
                    },
                ],
            },
            {"name": "maxReadPositionEntryId", "type": "long"},
            {"name": "maxReadPositionLedgerId", "type": "long"},
            {"name": "topicName", "type": ["null", "string"]},
        ],
    }
)


def test_snapshot_is_avro_with_position_and_without_aborted_transactions() -> None:
    topic = TopicName.parse("persistent://public/default/" + "t" * 100)
    encoded = encode_snapshot(topic, Position(1 << 40, -1))
    assert schemaless_reader(BytesIO(encoded), SCHEMA, None) == {
        "aborts": [],
        "maxReadPositionLedgerId": 1 << 40,
        "maxReadPositionEntryId": -1,
        "topicName": str(topic),
    }


def snapshot(aborts: list[dict[str, int]] | None, last: Position) -> bytes:
    """Return the snapshot as a Java broker writes it."""
    found = BytesIO()
    document = {
        "aborts": aborts,
        "maxReadPositionLedgerId": last.ledger_id,
        "maxReadPositionEntryId": last.entry_id,
        "topicName": "persistent://public/default/t",
    }
    schemaless_writer(found, SCHEMA, document)
    return found.getvalue()


@pytest.mark.parametrize("position", [Position(0, -1), Position(7, 100), Position(1 << 62, 1 << 40)])
def test_transactions_begin_behind_a_snapshot_without_aborted_ones(position: Position) -> None:
    assert start_behind(snapshot([], position)) == position
    assert start_behind(snapshot(None, position)) == position
    topic = TopicName.parse("persistent://public/default/t")
    assert start_behind(encode_snapshot(topic, position)) == position


def test_messages_of_aborted_transactions_can_be_anywhere() -> None:
    aborted = [dict.fromkeys(_LONGS, number) for number in range(1, 4)]
    assert start_behind(snapshot(aborted, Position(7, 100))) == EARLIEST
    assert start_behind(snapshot([], Position(-1, -1))) == EARLIEST


@pytest.mark.parametrize("value", [b"\x07", b"{}", b"\x00", b"\x02\x00\x80"])
def test_value_that_is_no_snapshot_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidSnapshot):
        start_behind(value)
