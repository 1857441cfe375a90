"""The snapshot of a topic's transactions that Java brokers read."""

from __future__ import annotations

from io import BytesIO

from fastavro import parse_schema, schemaless_reader

from pybroker.broker.cluster.java_transaction_snapshots import encode_snapshot
from pybroker.model.names import TopicName
from pybroker.model.position import Position

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
