"""replay, key-skew, schema-audit and dlq-triage on a real broker, as the command line runs them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

from pybroker.cli import main

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_FINDINGS = 0, 1, 2, 3


class Order(Record):
    number = Integer()
    name = String()


def pipeline(broker: BrokerProcess, name: str, *options: str) -> int:
    return main(["pipeline", name, "--admin-url", broker.http_url, "--service-url", broker.url, *options])


def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def enable_deduplication(broker: BrokerProcess, topic: str) -> None:
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    assert call(f"{broker.http_url}{path}/deduplicationEnabled", "POST", body=True).status == 204


def received(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    messages = []
    while reader.has_message_available():
        messages.append(reader.read_next(timeout_millis=5000))
    reader.close()
    return messages


def view(message: pulsar.Message) -> tuple[object, ...]:
    return message.data(), message.partition_key(), message.properties(), message.event_timestamp()


def send_mixed(client: pulsar.Client, topic: str, count: int) -> None:
    """Batches, single messages, chunks, keys, properties and all that."""
    batching = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=7, compression_type=pulsar.CompressionType.ZSTD
    )
    for number in range(count):
        batching.send_async(b"batched %d" % number, None, partition_key=f"k{number % 5}", properties={"n": str(number)})
    batching.flush()
    batching.close()
    single = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    single.send(b"alone", event_timestamp=12345)
    single.send(b"large" * 1_500_000)
    single.close()


def test_a_replay_is_the_same_messages_in_their_order_and_a_second_run_adds_none(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    send_mixed(client, topic, 100)
    target = topic + "-again"
    client.create_producer(target).close()
    enable_deduplication(broker, target)
    for entries in (20, 0):
        assert pipeline(broker, "replay", "--topic", topic, "--target", target, "--json") == EXIT_OK
        assert (shown(capsys)["entries"] > 0) == (entries > 0)
        assert [view(each) for each in received(client, target)] == [view(each) for each in received(client, topic)]


def test_a_replay_that_was_cut_off_goes_on_and_nothing_is_there_twice(
    own_broker: BrokerProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client = new_client(own_broker.url)
    client.subscribe(topic, "keeps-it").close()
    send_mixed(client, topic, 200)
    target = topic + "-again"
    client.create_producer(target).close()
    enable_deduplication(own_broker, target)
    options = ("--topic", topic, "--target", target)
    addresses = ("--admin-url", own_broker.http_url, "--service-url", own_broker.url)
    command = [sys.executable, "-m", "pybroker", "pipeline", "replay", *addresses, *options, "--max-rate", "100"]
    with subprocess.Popen(command) as run:
        while len(received(client, target)) < 40:
            assert run.poll() is None
        run.kill()
    own_broker.kill()
    own_broker.start()
    assert pipeline(own_broker, "replay", *options, "--json") == EXIT_OK
    assert json.loads(capsys.readouterr().out)["skipped_as_done"] > 0
    assert [view(each) for each in received(client, target)] == [view(each) for each in received(client, topic)]
    client.close()


def test_schemas_are_registered_with_the_target_and_versions_follow(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, schema=AvroSchema(Order))
    for number in range(10):
        producer.send(Order(number=number, name=f"n{number}"))
    producer.close()
    target = topic + "-typed"
    assert pipeline(broker, "replay", "--topic", topic, "--target", target, "--allow-duplicates") == EXIT_OK
    consumer = client.subscribe(target, "s", schema=AvroSchema(Order), initial_position=pulsar.InitialPosition.Earliest)
    assert [consumer.receive(5000).value().number for _ in range(10)] == list(range(10))
    consumer.close()


def test_only_the_time_range_is_replayed_partition_by_partition(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    target = topic + "-part"
    for name in (topic, target):
        path = name.replace("persistent://", "/admin/v2/persistent/")
        assert call(f"{broker.http_url}{path}/partitions", "PUT", body=3).status == 204
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(30):
        producer.send(b"before", partition_key=str(number))
    time.sleep(0.01)
    start_ms = int(time.time() * 1000)
    wanted = [producer.send(b"%d" % number, partition_key=str(number)) for number in range(30)]
    assert len(wanted) == 30
    options = ("--topic", topic, "--target", target, "--from", str(start_ms), "--allow-duplicates")
    assert pipeline(broker, "replay", *options) == EXIT_OK
    assert sorted(message.data() for message in received(client, target)) == sorted(b"%d" % n for n in range(30))
    for index in range(3):
        name = f"-partition-{index}"
        assert {m.partition_key() for m in received(client, target + name)} <= {
            m.partition_key() for m in received(client, topic + name)
        }


def test_a_target_that_does_not_deduplicate_is_refused_unless_duplicates_are_allowed(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"x")
    client.create_producer(topic + "-plain").close()
    assert pipeline(broker, "replay", "--topic", topic, "--target", topic + "-plain") == EXIT_USAGE
    assert "does not deduplicate" in capsys.readouterr().err
    assert pipeline(broker, "replay", "--topic", topic, "--target", topic + "-none") == EXIT_USAGE
    assert "does not exist" in capsys.readouterr().err
    assert not received(client, topic + "-plain")


def test_a_dry_run_writes_nothing(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_producer(topic).send(b"x")
    assert pipeline(broker, "replay", "--topic", topic, "--target", topic + "-dry", "--dry-run", "--json") == EXIT_OK
    (plan,) = shown(capsys)["topics"]
    assert (plan["topic"], plan["entries"]) == (topic, 1)
    assert not [name for name in topics(broker) if name.endswith("-dry")]


def topics(broker: BrokerProcess) -> list[str]:
    found: list[str] = call(f"{broker.http_url}/admin/v2/persistent/public/default", "GET").json
    return found


def test_a_hot_key_is_found_with_its_consumer(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(300):
        producer.send_async(b"12345", None, partition_key="hot" if number % 3 else f"k{number}")
    producer.flush()
    assert pipeline(broker, "key-skew", "--topic", topic, "--consumers", "4", "--json") == EXIT_FINDINGS
    found = shown(capsys)
    hot = found["hotKeys"][0]
    assert (hot["key"], hot["messages"], hot["bytes"], found["messages"], found["exact"]) == (
        "hot",
        200,
        1000,
        300,
        True,
    )
    assert found["consumers"][0]["consumer"] == hot["consumer"]
    assert sum(each["messages"] for each in found["consumers"]) == 300


def test_keys_are_laid_on_the_hashes_of_the_consumers_that_there_are(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The owner that is told is the consumer that gets the key."""
    consumers = {
        name: client.subscribe(topic, "ks", consumer_name=name, consumer_type=pulsar.ConsumerType.KeyShared)
        for name in ("a", "b")
    }
    producer = client.create_producer(topic, batching_enabled=False)
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        producer.send(b"x", partition_key=key)
    got: dict[str, str] = {}
    for name, consumer in consumers.items():
        while True:
            try:
                message = consumer.receive(1000)
            except pulsar.Timeout:
                break
            got[message.partition_key()] = name
    assert pipeline(broker, "key-skew", "--topic", topic, "--subscription", "ks", "--json", "--limit", "20") == EXIT_OK
    told = {each["key"]: each["consumer"].split()[0] for each in shown(capsys)["hotKeys"]}
    assert told == got
    assert set(got) == set(keys)


def test_an_audit_tells_versions_and_what_cannot_be_read(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_producer(topic).send(b"\xff\xff\xff")  # before there was a schema
    producer = client.create_producer(topic, schema=AvroSchema(Order))
    for number in range(5):
        producer.send(Order(number=number, name="n"))
    assert pipeline(broker, "schema-audit", "--topic", topic, "--json") == EXIT_FINDINGS
    (audit,) = shown(capsys)["topics"]
    assert audit["latestSchemaType"] == "AVRO"
    without, first = audit["versions"]
    assert (without["version"], without["messages"], sum(without["unreadable"].values())) == (None, 1, 1)
    assert (first["version"], first["messages"], first["unreadable"], first["unreadableByLatest"]) == (0, 5, {}, {})


def test_dead_letters_are_grouped_by_reason_origin_and_key(
    broker: BrokerProcess, client: pulsar.Client, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(1, topic + "-DLQ", "keeper")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=policy,
    )
    dead = client.subscribe(topic + "-DLQ", "watch")
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(3):
        producer.send(b"bad", partition_key="k", properties={"exception": f"boom {number % 2}"})
    letters = 0
    deadline = time.monotonic() + 30
    while letters < 3 and time.monotonic() < deadline:
        try:
            consumer.negative_acknowledge(consumer.receive(100))
        except pulsar.Timeout:
            pass
        try:
            dead.acknowledge(dead.receive(100))
            letters += 1
        except pulsar.Timeout:
            pass
    assert letters == 3
    assert pipeline(broker, "dlq-triage", "--topic", topic + "-DLQ", "--json") == EXIT_OK
    found = shown(capsys)
    assert {group["reason"]: group["messages"] for group in found["byReason"]} == {"boom 0": 2, "boom 1": 1}
    assert [(group["origin"], group["messages"]) for group in found["byOrigin"]] == [(topic, 3)]
    assert found["byReason"][0]["samples"]


@pytest.mark.parametrize("name", ["replay", "key-skew", "schema-audit", "dlq-triage"])
def test_wrong_options_and_absent_topics_are_a_line_and_a_code(
    broker: BrokerProcess, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--target", "other", "--allow-duplicates") if name == "replay" else ()
    assert pipeline(broker, name, "--topic", "no-such-topic", *more) == EXIT_FAILED
    assert "no-such-topic" in capsys.readouterr().err
    assert pipeline(broker, name, "--topic", "t", "--from", "yesterday", *more) == EXIT_USAGE
    with pytest.raises(SystemExit) as ended:
        pipeline(broker, name, "--topic", "t", "--auth-params", "s3cret", *more)
    assert ended.value.code == EXIT_USAGE
    error = capsys.readouterr().err
    assert "yesterday" in error
    assert "s3cret" not in error
