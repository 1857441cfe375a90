"""What a broker times is due when its clock is advanced, while official clients are connected."""

import json
import threading
import time
import urllib.request
from datetime import timedelta

import pulsar
import pytest
from tests.embedding.conftest import Connect

from pybroker.embedding import BrokerThread, embed, embed_in_thread

NOTHING_MS = 150
HOUR = timedelta(hours=1)


def admin(broker: BrokerThread, method: str, path: str, body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{broker.admin_url}/admin/v2/{path}", data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def backlog(broker: BrokerThread, topic: str, subscription: str) -> int:
    stats = admin(broker, "GET", f"persistent/public/default/{topic}/stats")
    assert isinstance(stats, dict)
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def receives_nothing(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(NOTHING_MS)
    except pulsar.Timeout:
        return True
    return False


def test_a_delayed_message_comes_when_its_time_has_come_and_not_before(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t")
    for _ in range(2):  # The second time a client's clock is an hour behind.
        producer.send(b"later", deliver_after=HOUR)
        broker.clock.advance(minutes=59, seconds=59)
        assert receives_nothing(consumer)
        broker.clock.advance(seconds=1)
        message = consumer.receive(30_000)
        assert message.data() == b"later"
        consumer.acknowledge(message)


def test_messages_that_become_due_in_one_advance_come_in_the_order_of_their_times(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=False)
    for hours in (3, 1, 2):
        producer.send(b"%d" % hours, deliver_after=hours * HOUR)
    broker.clock.advance(hours=4)
    assert [consumer.receive(30_000).data() for _ in range(3)] == [b"1", b"2", b"3"]


def test_what_lives_too_long_is_expired_when_advance_returns(broker: BrokerThread, client: pulsar.Client) -> None:
    admin(broker, "POST", "namespaces/public/default/messageTTL", 3600)
    client.subscribe("t", "s").close()
    producer = client.create_producer("t")
    producer.send(b"old")
    broker.clock.advance(minutes=50)
    producer.send(b"young")
    assert backlog(broker, "t", "s") == 2
    broker.clock.advance(minutes=20)
    assert backlog(broker, "t", "s") == 1


def test_a_topic_that_nobody_uses_is_gone_when_advance_returns(broker: BrokerThread, client: pulsar.Client) -> None:
    client.create_producer("t").close()
    assert admin(broker, "GET", "persistent/public/default") == ["persistent://public/default/t"]
    broker.clock.advance(minutes=5)
    assert admin(broker, "GET", "persistent/public/default") == []


def test_a_backlog_that_is_too_old_stops_producers_when_advance_returns(connect: Connect) -> None:
    with embed_in_thread(preciseTimeBasedBacklogQuotaCheck=True) as broker:
        client = connect(broker.service_url)
        quota = {"limitTime": 600, "policy": "producer_exception"}
        admin(broker, "POST", "namespaces/public/default/backlogQuota?backlogQuotaType=message_age", quota)
        client.subscribe("t", "s").close()
        producer = client.create_producer("t")
        producer.send(b"old")
        producer.close()
        broker.clock.advance(minutes=5)
        client.create_producer("t").close()
        broker.clock.advance(minutes=10)
        with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
            client.create_producer("t")


def test_retained_messages_are_deleted_when_their_time_is_over(connect: Connect) -> None:
    settings = {"managedLedgerMaxEntriesPerLedger": 1, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
    with embed_in_thread(**settings) as broker:  # type: ignore[arg-type]
        client = connect(broker.service_url)
        admin(
            broker,
            "POST",
            "namespaces/public/default/retention",
            {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1},
        )
        producer = client.create_producer("t")
        for _ in range(3):
            producer.send(b"kept for an hour")
        entries = "persistent/public/default/t/internalStats"
        broker.clock.advance(minutes=50)
        before = admin(broker, "GET", entries)
        broker.clock.advance(minutes=20)
        after = admin(broker, "GET", entries)
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        assert before["numberOfEntries"] == 3
        assert after["numberOfEntries"] < 3


def test_a_dispatch_rate_gives_what_its_time_allows(broker: BrokerThread, client: pulsar.Client) -> None:
    rate = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600}
    admin(broker, "POST", "namespaces/public/default/subscriptionDispatchRate", rate)
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=False)
    for _ in range(6):
        producer.send(b"x")
    received = 0
    while not receives_nothing(consumer):
        received += 1
    assert received < 6
    broker.clock.advance(hours=4)
    for _ in range(6 - received):
        consumer.receive(30_000)


def test_a_connected_client_is_not_thrown_out_by_a_jump(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t")
    connected = {id(line) for line in broker.embedded._lines()}
    broker.clock.advance(days=3)
    assert {id(line) for line in broker.embedded._lines()} == connected
    producer.send(b"still there")
    assert consumer.receive(30_000).data() == b"still there"


def test_time_that_several_threads_advance_adds_up(broker: BrokerThread) -> None:
    before_ms, began_s = broker.clock.now_ms(), time.monotonic()
    threads = [threading.Thread(target=broker.clock.advance, kwargs={"hours": 1}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed_ms = broker.clock.now_ms() - before_ms
    most_ms = 8 * 3_600_000 + (time.monotonic() - began_s) * 1000 + 10
    assert 8 * 3_600_000 <= passed_ms <= most_ms


def test_time_goes_on_while_the_broker_is_down_and_never_back(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    client.create_producer("t").send(b"later", deliver_after=HOUR)
    broker.crash()
    broker.clock.advance(hours=1)
    broker.restart()
    assert consumer.receive(30_000).data() == b"later"
    with pytest.raises(ValueError, match="moved back"):
        broker.clock.advance(hours=-1)
    with pytest.raises(ValueError, match="moved back"):
        broker.clock.advance(milliseconds=float("nan"))
    for days in (float("inf"), 40_000):
        with pytest.raises(ValueError, match="hundred years"):
            broker.clock.advance(days=days)


async def test_what_is_checked_from_time_to_time_is_checked_from_the_start_on() -> None:
    async with embed() as broker:
        checks = broker.broker.service.maintenance.quota_check_duration_s
        await broker.clock.advance(hours=1)
        assert checks.count >= 50


async def test_on_its_callers_loop_advance_is_awaited() -> None:
    async with embed() as broker:
        before = broker.clock.now()
        await broker.clock.advance(HOUR, minutes=30)
        assert broker.clock.now() - before >= timedelta(hours=1, minutes=30)
