"""Batches read exactly what producers sent, in every way of reading and however they are cut."""

import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.errors import PySparkException
from tests.clients.conftest import admin, new_client, path_of, until
from tests.spark.sent import Sent, assert_same, publish, read
from tests.support.broker_process import BrokerProcess

from pybroker.spark import register
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("mode", ["segment", "bulk", "broker"])
def test_every_way_of_reading_gives_what_was_sent(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str, mode: str
) -> None:
    sent = publish(client, topic, 500) + publish(client, topic, 50, 500, batched=False)
    rows = read(spark, broker, topic, readMode=mode).load().collect()
    assert_same(rows, sent)
    assert [row["value"] for row in rows[:3]] == [each.value for each in sent[:3]]


def test_every_number_of_splits_gives_the_same_rows(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    sent = publish(client, topic, 400, batching_max_messages=7)
    for min_partitions in (1, 3, 20):
        frame = read(spark, broker, topic, minPartitions=min_partitions).load()
        assert frame.rdd.getNumPartitions() >= min_partitions
        assert_same(frame.collect(), sent)


def test_partitions_of_topics_and_patterns_are_read_together(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    admin(broker, "PUT", path_of(topic) + "-p/partitions", 2)
    sent = [each for part in range(2) for each in publish(client, f"{topic}-p-partition-{part}", 30)]
    other = publish(client, topic + "-q", 10)
    assert_same(read(spark, broker, topic + "-p").load().collect(), sent)
    pattern = topic.rpartition("/")[2] + "-[pq]"
    assert_same(read(spark, broker, topic, topicsPattern=pattern).load().collect(), sent + other)


def test_declared_columns_are_the_projection(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    sent = publish(client, topic, 20)
    rows = read(spark, broker, topic).schema("__ledgerId bigint, __key binary").load().collect()
    assert [(row["__ledgerId"], row["__key"]) for row in rows] == [(each.message_id[0], each.key) for each in sent]
    frame = read(spark, broker, topic, includeColumns="*,__entryId,__batchIndex").load()
    assert frame.columns[-2:] == ["__entryId", "__batchIndex"]
    assert [row["__entryId"] for row in frame.collect()] == [each.message_id[1] for each in sent]


def test_places_and_times_are_borders(spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    sent = publish(client, topic, 100, batching_max_messages=10)
    ledger_id, entry_id, _, batch_index = sent[34].message_id
    text = json.dumps({"v": 1, "t": {topic: {"l": ledger_id, "e": entry_id, "b": batch_index}}})
    assert_same(read(spark, broker, topic, startingOffsets=text).load().collect(), sent[34:])
    assert_same(read(spark, broker, topic, endingOffsets=text).load().collect(), sent[:34])
    scala = json.dumps({topic: [byte - 256 if byte > 127 else byte for byte in serialised(sent[34])]})
    assert_same(read(spark, broker, topic, startingOffsets=scala).load().collect(), sent[34:])
    assert read(spark, broker, topic, startingTime="4102444800000").load().count() == 0
    assert_same(read(spark, broker, topic, startingTime="1", endingTime="4102444800000").load().collect(), sent)


def test_what_is_wrong_is_said_in_words_without_a_secret(spark: Any, broker: BrokerProcess, topic: str) -> None:
    for options, text in [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"path": "x"}, "option topic"),
        ({}, "404"),
        ({"readMode": "segment", "pulsar.client.authParams": "token:hush-hush"}, ""),
    ]:
        with pytest.raises(PySparkException) as refused:
            read(spark, broker, topic + "-missing", **options).load().collect()
        assert text in str(refused.value)
        assert "hush-hush" not in str(refused.value)


def test_a_trimmed_start_is_told_with_what_was_asked_and_found(spark: Any, topic: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).running() as broker:
        client = new_client(broker.url)
        first = publish(client, topic, 10, batched=False)
        admin(broker, "PUT", path_of(topic) + "/unload")
        publish(client, topic, 10, 10, batched=False)
        admin(broker, "DELETE", path_of(topic) + "/truncate")
        left = publish(client, topic, 5, 20)
        ledger_id = first[0].message_id[0]
        text = json.dumps({"v": 1, "t": {topic: {"l": ledger_id, "e": 3}}})
        with pytest.raises(PySparkException, match=f"{ledger_id}:3"):
            read(spark, broker, topic, startingOffsets=text).load().collect()
        rows = read(spark, broker, topic, startingOffsets=text, failOnDataLoss="false").load().collect()
        assert {each.value for each in left} <= {bytes(row["value"]) for row in rows}
        client.close()


def test_tables_describe_topics(spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 100, batched=False)
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
    )
    messages = [consumer.receive(10_000) for _ in range(10)]
    for index in (0, 1, 5):
        consumer.acknowledge(messages[index])
    until(lambda: consumer_is_told(broker, topic))

    where = {"service.url": broker.url, "admin.url": broker.http_url}

    def table(name: str) -> Any:
        return spark.read.format(name).options(**where, topic=topic).load().collect()[0]

    assert spark.read.format(register(spark)).options(**where, topic=topic).load().count() == 100
    assert (table("pulsar-topics")["entryCount"], table("pulsar-topics")["subscriptionCount"]) == (100, 1)
    assert (table("pulsar-ledgers")["entryCount"], table("pulsar-ledgers")["messageCount"]) == (100, 100)
    shown = table("pulsar-subscriptions")
    assert (shown["subscription"], shown["markDeleteEntryId"], shown["ackedRangeCount"]) == ("s", 1, 1)
    assert [(each["fromEntryId"], each["toEntryId"]) for each in shown["ackedRanges"]] == [(4, 5)]
    assert shown["unackedMessages"] > 0
    consumer.close()


def test_topic_is_a_view_in_sql_and_create_table_names_it(
    spark: Any, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, 10)
    options = f"OPTIONS (`service.url` '{broker.url}', `admin.url` '{broker.http_url}', topic '{topic}')"
    spark.sql(f"CREATE TEMPORARY VIEW some_orders USING pulsar {options}")
    assert spark.sql("SELECT count(*) FROM some_orders").collect()[0][0] == 10
    with pytest.raises(PySparkException, match="Use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE orders USING pulsar {options}")


def serialised(sent: Sent) -> bytes:
    ledger_id, entry_id, partition, batch_index = sent.message_id
    return pb.MessageIdData(
        ledgerId=ledger_id, entryId=entry_id, partition=partition, batch_index=batch_index
    ).SerializeToString()


def consumer_is_told(broker: BrokerProcess, topic: str) -> bool:
    cursor = admin(broker, "GET", path_of(topic) + "/internalStats").json["cursors"]["s"]
    return bool(cursor["totalNonContiguousDeletedMessagesRange"] == 1)
