"""Consumers, and those who want to be, whose connection is just ending."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from tests.clients.conftest import until
from tests.support.broker_process import BrokerProcess
from tests.support.memory_broker import MemoryBroker
from tests.support.raw_client import Type, connected

from pybroker.broker.topic.topic import Topic

TOPIC = "persistent://public/default/t"
MESSAGES, MESSAGE_BYTES = 20, 1 << 20  # more than the sockets of both sides hold


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")).running_well() as process:
        yield process


def sent_to(process: BrokerProcess) -> int:
    """How many messages have been written for the consumer."""
    stats = json.loads(process.get("/admin/v2/persistent/public/default/t/stats"))
    return int(stats["subscriptions"]["sub"]["msgOutCounter"])


def test_a_consumer_whose_connection_cannot_end_as_its_client_reads_nothing_holds_no_place(
    process: BrokerProcess,
) -> None:
    """Its connection is closed with much to be written still: who comes for its place gets it, and nobody is held up."""
    with connected(process) as leaving, connected(process) as coming:
        assert leaving.subscribe(TOPIC, consumer_id=1)["type"] == "SUCCESS"
        coming.open_producer(TOPIC)
        for number in range(MESSAGES):
            coming.send_message(1, number, b"x" * MESSAGE_BYTES)
        assert {coming.reply()["type"] for _ in range(MESSAGES)} == {"SEND_RECEIPT"}
        leaving.stop_reading()
        leaving.send(Type.FLOW, consumer_id=1, messagePermits=MESSAGES)
        until(lambda: sent_to(process) > 0)
        leaving.send_bytes(b"\xff" * 8)
        said = coming.subscribe(TOPIC, consumer_id=1)
        assert said["type"] == "SUCCESS", said
        assert process.get("/admin/v2/brokers/health") == "ok"
        leaving.read_again()


async def test_one_who_is_cancelled_just_when_the_turn_comes_leaves_in_peace(
    broker: MemoryBroker, topic: Topic
) -> None:
    async def wait_for_turn() -> None:
        async with topic.subscription_lock("s", "being made"):
            raise AssertionError("it was cancelled")

    async with topic.subscription_lock("s", "being held by this test"):
        waiting = asyncio.ensure_future(wait_for_turn())
        await broker.until(lambda: broker.service.broker_context.waiting.subscriptions.count == 1)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert broker.service.broker_context.waiting.subscriptions.count == 0
    async with topic.subscription_lock("s", "being made"):
        pass
