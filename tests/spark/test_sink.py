"""What Spark writes is what official clients, and Spark, read."""

from typing import Any

import pulsar
import pytest
from pyspark.errors import PySparkException
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.spark import register

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    register(spark)
    return spark


def write(frame: Any, broker: BrokerProcess, **options: str) -> None:
    frame.write.format("pulsar").mode("append").option("service.url", broker.url).options(**options).save()


def received(
    broker: BrokerProcess, topic: str, count: int, convert: Any = lambda message: message, **options: Any
) -> list[Any]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    consumer = client.subscribe(topic, "check", initial_position=pulsar.InitialPosition.Earliest, **options)
    found = [convert(consumer.receive(20_000)) for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    client.close()
    return found


def test_rows_come_with_key_event_time_and_properties(session: Any, broker: BrokerProcess, topic: str) -> None:
    frame = session.range(1000).selectExpr(
        "cast(concat('v', id) as binary) as value",
        "concat('k', id % 10) as __key",
        "timestamp_millis(1700000000000 + id) as __eventTime",
        "map('id', cast(id as string)) as __messageProperties",
        "cast('order' as binary) as __orderingKey",
    )
    write(frame, broker, topic=topic, compressionType="zstd")
    found = {message.properties()["id"]: message for message in received(broker, topic, 1000)}
    assert len(found) == 1000
    for number, message in found.items():
        assert message.data() == b"v" + number.encode()
        assert message.partition_key() == f"k{int(number) % 10}"
        assert message.event_timestamp() == 1700000000000 + int(number)
        assert message.ordering_key() == "order"


def test_keys_go_to_one_partition_and_all_partitions_are_used(session: Any, broker: BrokerProcess, topic: str) -> None:
    path = topic.replace("persistent://", "persistent/")
    assert call(f"{broker.http_url}/admin/v2/{path}/partitions", "PUT", body=4).status == 204
    frame = session.range(4000).selectExpr("cast(id as string) as value", "cast(id % 100 as string) as __key")
    write(frame, broker, topic=topic)
    where: dict[str, set[str]] = {}
    for message in received(broker, topic, 4000):
        where.setdefault(message.partition_key(), set()).add(message.topic_name())
    assert len(where) == 100
    assert all(len(each) == 1 for each in where.values())
    assert len(set.union(*where.values())) == 4


def test_several_columns_become_a_record_that_clients_decode(session: Any, broker: BrokerProcess, topic: str) -> None:
    frame = session.range(100).selectExpr("id", "concat('n', id) as name", "id * 0.5D as half")
    write(frame, broker, topic=topic)
    schema = pulsar.schema.AvroSchema(None, schema_definition=_definition(broker, topic))
    found = received(broker, topic, 100, convert=pulsar.Message.value, schema=schema)
    rows = sorted((each["id"], each["name"], each["half"]) for each in found)
    assert rows == [(index, f"n{index}", index * 0.5) for index in range(100)]


def _definition(broker: BrokerProcess, topic: str) -> Any:
    import json

    path = topic.replace("persistent://", "")
    answer = call(f"{broker.http_url}/admin/v2/schemas/{path}/schema", "GET").json
    assert answer["type"] == "AVRO"
    return json.loads(answer["data"])


def test_each_row_may_name_its_topic(session: Any, broker: BrokerProcess, topic: str) -> None:
    frame = session.range(60).selectExpr("cast(id as string) as value", f"concat('{topic}-', id % 3) as __topic")
    write(frame, broker)
    for part in range(3):
        found = sorted(int(message.data()) for message in received(broker, f"{topic}-{part}", 20))
        assert found == [index for index in range(60) if index % 3 == part]


def test_a_stream_is_written_batch_by_batch(session: Any, broker: BrokerProcess, topic: str, tmp_path: Any) -> None:
    for index in range(3):
        session.range(index * 100, index * 100 + 100).write.mode("append").parquet(str(tmp_path / "in"))
    stream = session.readStream.schema("id long").option("maxFilesPerTrigger", "2").parquet(str(tmp_path / "in"))
    query = (
        stream.selectExpr("cast(id as string) as value")
        .writeStream.format("pulsar")
        .option("service.url", broker.url)
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None
    assert sorted(int(message.data()) for message in received(broker, topic, 300)) == list(range(300))


def test_a_job_that_writes_exactly_once_and_is_repeated_has_written_once(
    session: Any, broker: BrokerProcess, topic: str
) -> None:
    once = {"topic": topic, "delivery": "exactly-once", "jobId": topic.rpartition("/")[2], "admin.url": broker.http_url}
    write(session.range(0, 200, 1, 2).selectExpr("cast(id as string) as value"), broker, **once)
    write(session.range(0, 200, 1, 3).selectExpr("cast(id as string) as value"), broker, **once)
    assert sorted(int(message.data()) for message in received(broker, topic, 200)) == list(range(200))
    sink = call(f"{broker.http_url}/admin/v3/transactions/sinks/{once['jobId']}").json
    assert (sink["lastBatch"], sink["openTransactionCount"]) == (0, 0)


@pytest.mark.parametrize(
    ("options", "sql", "text"),
    [
        ({"delivery": "exactly-once", "jobId": "j"}, "select 'a' as value", "admin.url"),
        ({"delivery": "maybe"}, "select 'a' as value", "delivery"),
        ({"topik": "x"}, "select 'a' as value", "did you mean topic"),
        ({}, "select 'a' as value, current_timestamp() as __publishTime", "drop the column"),
        ({}, "select 'a' as value, 1 as __key", "__key"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_to_do(
    session: Any, broker: BrokerProcess, topic: str, options: dict[str, str], sql: str, text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        write(session.sql(sql), broker, topic=topic, **options)


def test_a_broker_that_cannot_be_reached_fails_the_write_and_no_secret_is_told(session: Any, topic: str) -> None:
    frame = session.sql("select 'a' as value")
    writer = frame.write.format("pulsar").mode("append").option("topic", topic)
    writer = writer.option("service.url", "pulsar://127.0.0.1:1").option("pulsar.client.operationTimeoutMs", "500")
    with pytest.raises(PySparkException, match="cannot be reached") as caught:
        writer.option("pulsar.client.authParams", "token:very-secret").save()
    assert "very-secret" not in str(caught.value)
