"""What the Java client writes with each of its schemas is read as columns, and it reads what is encoded here.

Needs Java 17 and the class path that the `baseline` script resolved (`tests/support/java.py`).
"""

from __future__ import annotations

import json
import pathlib
import subprocess
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from pulsar.schema import BytesSchema
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.support.java import java_command
from tests.tables.test_typed_topics import register, rows, source

from pybroker.client.access import Access
from pybroker.columns.values.encoding.value_encoder import value_encoder
from pybroker.columns.values.key_values import sides
from pybroker.reading.read_options import SourceOptions
from pybroker.reading.transports.bulk_source import BulkSource

pytestmark = [pytest.mark.long, pytest.mark.java]

__all__ = ["source"]

PROGRAM = pathlib.Path(__file__).with_name("JavaSchemas.java")
MOMENT = datetime(2001, 9, 9, 1, 46, 40, 5000, tzinfo=UTC)
ORDER = {
    "id": 2**40,
    "name": "é\n",
    "colour": "BLUE",
    "item": {"sku": "x", "count": 3},
    "items": [{"sku": "x", "count": 3}],
    "prices": {"k": 1.5},
    "raw": b"\xff\0",
    "ok": None,
}
WRITTEN: dict[str, Any] = {
    "BOOLEAN": True,
    "INT8": -1,
    "INT16": -2,
    "INT32": -3,
    "INT64": -(2**63),
    "FLOAT": 0.5,
    "DOUBLE": 0.1,
    "STRING": "é",
    "DATE": date(1969, 12, 31),
    "TIME": MOMENT,
    "TIMESTAMP": MOMENT,
    "INSTANT": MOMENT,
    "LOCAL_DATE": date(2001, 9, 9),
    "LOCAL_TIME": 86_399_999_999_999,
    "LOCAL_DATE_TIME": MOMENT.replace(tzinfo=None),
}


def run(broker: BrokerProcess, prefix: str, what: str) -> str:
    command = java_command(PROGRAM, broker.url, prefix, what)
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(broker: BrokerProcess) -> str:
    """Of the topics that the Java client has written."""
    name = "persistent://public/default/java-"
    run(broker, name, "write")
    return name


@pytest.mark.parametrize("kind", WRITTEN)
def test_primitive_values_are_one_column(prefix: str, source: BulkSource, kind: str) -> None:
    assert rows(source, prefix + kind) == [{"value": WRITTEN[kind]}]


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_records_are_rows(prefix: str, source: BulkSource, kind: str) -> None:
    (row,) = rows(source, prefix + kind)
    assert row == {name: ORDER[name] for name in row}
    assert set(row) == set(ORDER)


@pytest.mark.parametrize("kind", ["PROTOBUF", "PROTOBUF_NATIVE"])
def test_protobuf_messages_are_rows(prefix: str, source: BulkSource, kind: str) -> None:
    assert rows(source, prefix + kind) == [{"seconds": 7, "nanos": 0}]


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_key_values_are_two_columns(prefix: str, source: BulkSource, encoding: str) -> None:
    item = {"sku": "x", "count": 3}
    assert rows(source, f"{prefix}KEY_VALUE-{encoding}") == [
        {"key": "k", "value": item},
        {"key": "gone", "value": None},
    ]


ITEM = pa.struct([("sku", pa.string()), ("count", pa.int32())])
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("colour", pa.string()),
        ("item", ITEM),
        ("items", pa.list_(ITEM)),
        ("prices", pa.map_(pa.string(), pa.float64())),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
    ]
)
BACK: dict[str, tuple[pa.RecordBatch, str]] = {
    "INT32": (pa.record_batch({"value": pa.array([-3])}), "-3"),
    "STRING": (pa.record_batch({"value": ["é"]}), "é"),
    "INSTANT": (pa.record_batch({"value": [MOMENT]}), "2001-09-09T01:46:40.005Z"),
    "LOCAL_DATE_TIME": (pa.record_batch({"value": [MOMENT.replace(tzinfo=None)]}), "2001-09-09T01:46:40.005"),
    "AVRO": (pa.RecordBatch.from_pylist([ORDER], schema=COLUMNS), "1099511627776 é| BLUE x 3 {k=1.5} -1 null"),
    "JSON": (pa.RecordBatch.from_pylist([ORDER], schema=COLUMNS), "1099511627776 é| BLUE x 3 {k=1.5} -1 null"),
    "KEY_VALUE-INLINE": (pa.record_batch({"key": ["k"], "value": [{"sku": "x", "count": 3}]}), "k x"),
    "KEY_VALUE-SEPARATED": (pa.record_batch({"key": ["k"], "value": [{"sku": "x", "count": 3}]}), "k x"),
}


@pytest.fixture(scope="module")
def read_by_java(broker: BrokerProcess, prefix: str) -> dict[str, str]:
    """What it reads of topics of the same schemas that are written from columns here."""
    back = prefix.replace("java-", "back-")
    source = BulkSource(SourceOptions(Access(broker.url, broker.http_url), patience_s=20))
    client = new_client(broker.url)
    for kind, (batch, _) in BACK.items():
        info = source.schema(prefix + kind)
        assert info is not None
        if info.type == "KEY_VALUE":
            definition = json.dumps({"key": "", "value": json.loads(sides(info)[1].data)})
        else:
            definition = info.data.decode()
        register(broker, back + kind, info.type, definition, **info.properties)
        payloads, keys = value_encoder(list(batch.schema), info).encode(batch)
        producer = client.create_producer(back + kind, schema=BytesSchema())
        producer.send(payloads[0].as_py(), partition_key=None if keys is None else keys[0].as_py().decode())
        producer.close()
    client.close()
    source.close()
    return dict(line.split("=", 1) for line in run(broker, back, "read").splitlines())


@pytest.mark.parametrize("kind", BACK)
def test_the_java_client_reads_what_is_encoded_here(kind: str, read_by_java: dict[str, str]) -> None:
    assert read_by_java[kind] == BACK[kind][1]
