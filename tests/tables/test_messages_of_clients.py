"""What official clients have sent, as columns: what an official reader sees, field by field and message id by message id."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.broker_process import BrokerProcess

from pybroker.client.access import Access
from pybroker.columns.bad_records import BadRecords, CryptoFailureAction, UndecryptableEntry
from pybroker.columns.message_columns import METADATA_TYPES, VALUE
from pybroker.encryption.payload_encryption import PrivateKeyFiles
from pybroker.reading.message_batches import MessageReader, MessageReading
from pybroker.reading.positions import EntryRange
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.transports.bulk_source import BulkSource

CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
ALL = MessageReading(columns=(VALUE, *METADATA_TYPES))


def rows_of(
    broker: BrokerProcess, topic: str, reading: MessageReading = ALL, cut_entries: int = 1 << 40
) -> list[dict[str, Any]]:
    rows = []
    with closing(BulkSource(SourceOptions(Access(broker.url, broker.http_url), patience_s=20))) as source:
        reader = MessageReader(source, reading)
        for each in source.plan(topic).ledgers:
            for first in range(each.first_entry_id, each.end_entry_id, cut_entries):
                end = min(first + cut_entries, each.end_entry_id)
                for batch in reader.read(EntryRange(topic, each.ledger_id, first, end)):
                    batch.validate(full=True)
                    rows += batch.to_pylist()
    return rows


def seen_by_reader(client: pulsar.Client, topic: str, **options: Any) -> list[dict[str, Any]]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **options)
    found = []
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=10_000)
        found.append(
            {
                "value": message.data(),
                "__key": message.partition_key().encode() if message.partition_key() else None,
                "__topic": topic,
                "__messageId": message.message_id().serialize(),
                "__publishTime": in_utc(message.publish_timestamp()),
                "__eventTime": in_utc(message.event_timestamp()) if message.event_timestamp() else None,
                "__messageProperties": message.properties(),
                "__orderingKey": message.ordering_key().encode() if message.ordering_key() else None,
                "__producerName": message.producer_name(),
                "__ledgerId": message.message_id().ledger_id(),
                "__entryId": message.message_id().entry_id(),
                "__batchIndex": message.message_id().batch_index(),
            }
        )
    reader.close()
    return found


def in_utc(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def same_columns(rows: list[dict[str, Any]], seen: list[dict[str, Any]]) -> None:
    assert [{**row, "__messageProperties": dict(row["__messageProperties"])} for row in rows] == [
        {**row, **expected} for row, expected in zip(rows, seen, strict=True)
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("is_batched", [True, False], ids=["batched", "single"])
def test_columns_are_what_an_official_reader_sees(
    broker: BrokerProcess, client: pulsar.Client, topic: str, codec: str, is_batched: bool
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=is_batched, batching_max_publish_delay_ms=50, compression_type=CODECS[codec]
    )
    for number in range(40):
        fields: dict[str, object] = {}
        if number % 2:
            fields["partition_key"] = f"key-{number}"
        if number % 3 == 0:
            fields["event_timestamp"] = 1_700_000_000_000 + number
        if number % 5 == 0:
            fields["ordering_key"] = f"order-{number}"
        fields["properties"] = {f"name-{each}": f"value-{number}" for each in range(number % 4)}
        producer.send_async(b"%d" % number * (number + 1), lambda *_: None, **fields)
    producer.flush()
    producer.close()
    rows = rows_of(broker, topic)
    same_columns(rows, seen_by_reader(client, topic))
    assert [row["value"] for row in rows] == [b"%d" % number * (number + 1) for number in range(40)]
    assert {row["__batchIndex"] >= 0 for row in rows} == {is_batched}
    assert [row["__sequenceId"] for row in rows] == list(range(40))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_chunks_of_the_official_client_are_one_message_for_every_cut(
    broker: BrokerProcess, client: pulsar.Client, topic: str, codec: str
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=False, chunking_enabled=True, compression_type=CODECS[codec]
    )
    large = random.Random(1).randbytes(11 << 20)
    for body in (b"before", large, b"after"):
        producer.send(body, partition_key="k", properties={"a": "b"})
    producer.close()
    rows = rows_of(broker, topic)
    same_columns(rows, seen_by_reader(client, topic))
    assert [len(row["value"]) for row in rows] == [6, 11 << 20, 5]
    assert rows[1]["__entryId"] == 3
    assert rows_of(broker, topic, cut_entries=1) == rows


@pytest.fixture
def new_key(tmp_path: Path) -> Callable[[str], tuple[str, str]]:
    """Files with the public and the private key of a new pair."""

    def make(name: str) -> tuple[str, str]:
        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public_path, private_path = tmp_path / f"{name}.public.pem", tmp_path / f"{name}.private.pem"
        pem = serialization.Encoding.PEM
        public_path.write_bytes(private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
        private_path.write_bytes(
            private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return str(public_path), str(private_path)

    return make


@pytest.mark.parametrize("is_batched", [True, False], ids=["batched", "chunked"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_encrypted_messages_are_opened_with_the_private_key_or_treated_as_asked(
    broker: BrokerProcess,
    client: pulsar.Client,
    topic: str,
    new_key: Callable[[str], tuple[str, str]],
    codec: str,
    is_batched: bool,
) -> None:
    public, private = new_key("right")
    keys = pulsar.CryptoKeyReader(public, private)
    options: dict[str, object] = {"batching_max_publish_delay_ms": 50} if is_batched else {"chunking_enabled": True}
    producer = client.create_producer(
        topic,
        batching_enabled=is_batched,
        compression_type=CODECS[codec],
        encryption_key="app",
        crypto_key_reader=keys,
        **options,
    )
    sent = [b"one", b"two", b"three"] if is_batched else [b"one", random.Random(2).randbytes(6 << 20), b"three"]
    for body in sent:
        producer.send_async(body, lambda *_: None, partition_key="k")
    producer.flush()
    producer.close()

    for files in (PrivateKeyFiles(private), PrivateKeyFiles(by_name={"app": private})):
        rows = rows_of(broker, topic, replace(ALL, private_keys=files))
        assert [row["value"] for row in rows] == sent
    same_columns(rows, seen_by_reader(client, topic, crypto_key_reader=keys))
    assert rows_of(broker, topic, replace(ALL, private_keys=files), cut_entries=1) == rows

    _, wrong = new_key("wrong")
    for files in (  # type: ignore[assignment]
        None,
        PrivateKeyFiles(wrong),
        PrivateKeyFiles(by_name={"other": private}),
        PrivateKeyFiles("/none.pem"),
    ):
        closed = replace(ALL, private_keys=files)
        with pytest.raises(UndecryptableEntry, match="cryptoFailureAction") as caught:
            rows_of(broker, topic, closed)
        assert "PRIVATE KEY" not in str(caught.value)
        assert rows_of(broker, topic, replace(closed, crypto_failure_action=CryptoFailureAction.DISCARD)) == []
    consumed = rows_of(broker, topic, replace(ALL, crypto_failure_action=CryptoFailureAction.CONSUME))
    assert len(consumed) == len({row["__entryId"] for row in rows}) + (0 if is_batched else 1)
    assert all(row["__batchIndex"] == -1 and row["value"] not in sent for row in consumed)


def test_null_values_and_schema_versions_of_a_compacting_producer_are_seen(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=pulsar.schema.StringSchema(), batching_enabled=True)
    producer.send("x", partition_key="a")
    producer.close()
    (row,) = rows_of(broker, topic, replace(ALL, bad_records=BadRecords.NULL))
    assert row["__schemaVersion"] == (0).to_bytes(8, "big")
    assert row["value"] == b"x"
