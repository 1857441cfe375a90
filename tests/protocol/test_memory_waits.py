"""Clients and HTTP requests that take more memory than there is: they wait, each for itself, and get everything in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import crc32c
import pytest
from tests.support.async_client import AsyncClient, Type, binary_port
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.raw_client import encode, frame
from tests.support.rest import call

from pybroker.broker.lifecycle.topic_directory import TopicDirectory
from pybroker.model.names import NamespaceName
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/t"


class Lists:
    """In place of the directory's lists: one of 600 KB each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.at_once = 0
        self.most_at_once = 0
        self._names = [f"persistent://public/default/{number:030}" for number in range(10_000)]
        monkeypatch.setattr(TopicDirectory, "list", self._list)

    async def _list(self, *_: object, **__: Any) -> list[str]:
        self.made += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return list(self._names)


def stop_reading(client: AsyncClient) -> None:
    client._reading.cancel()


def read_on(client: AsyncClient) -> None:
    client._reading = asyncio.ensure_future(client._read())


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_asks_for_many_lists_and_reads_none_has_few_in_memory_and_gets_all_once_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lists = Lists(monkeypatch)
    async with memory_broker(max_outbound_bytes_per_connection=1_000_000) as broker, binary_port(broker) as port:
        client, other = await port.connect(), await port.connect()
        memory = broker.service.runtime.memory
        stop_reading(client)
        for _ in range(50):
            client.ask(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default")
        connection = next(iter(port._listener.context.connections))
        await broker.until(lambda: not connection.is_writable)
        await turns()
        assert lists.made < 40, "what the sockets of this machine hold, and two"
        assert connection.unsent_bytes < 2_500_000
        assert memory.lists.used_bytes == memory.lists.waiting == 0
        answer = await other.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default")
        assert len(answer["topics"]) == 10_000
        read_on(client)
        for _ in range(50):
            assert len((await client.next())["topics"]) == 10_000


async def test_lists_beyond_the_memory_for_them_wait_and_are_answered_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = Lists(monkeypatch)
    async with memory_broker() as broker, binary_port(broker) as port:
        memory = broker.service.runtime.memory
        monkeypatch.setattr(TopicDirectory, "expected_bytes", lambda *_: memory.lists.floor_bytes)
        memory.lists.limit_to(memory.lists.floor_bytes)
        clients = [await port.connect() for _ in range(5)]
        asked = [
            (client, client.ask(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default"))
            for client in clients
            for _ in range(4)
        ]
        for client, request_id in asked:
            assert len((await client.answer(request_id))["topics"]) == 10_000
        assert (lists.made, lists.most_at_once) == (20, 1)
        assert memory.budget.used_bytes == memory.lists.takers == 0


async def test_a_list_that_waits_too_long_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_broker(topic_load_timeout_seconds=0) as broker, binary_port(broker) as port:
        memory, client = broker.service.runtime.memory, await port.connect()
        memory.lists.limit_to(memory.lists.floor_bytes)
        taken = await memory.take(memory.lists, "others", memory.lists.floor_bytes)
        answer = await client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default")
        assert answer["error"] == "TooManyRequests"
        assert "brokerMemoryLimitMB" in answer["message"]
        memory.give_back(memory.lists, taken)
        answer = await client.request(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default")
        assert answer["type"] == "GET_TOPICS_OF_NAMESPACE_RESPONSE"


async def test_what_is_watched_counts_and_is_refused_when_there_is_no_memory() -> None:
    async with memory_broker() as broker, binary_port(broker) as port:
        memory, client = broker.service.runtime.memory, await port.connect()
        await broker.topic(TOPIC)
        fields = {"namespace": "public/default", "topics_pattern": "persistent://public/default/.*"}
        watched = await client.request(Type.WATCH_TOPIC_LIST, watcher_id=1, **fields)
        assert watched["topic"] == [TOPIC]
        held_bytes = memory.lists.used_bytes
        assert held_bytes > 0
        await broker.topic(TOPIC + "2")
        await broker.until(lambda: memory.lists.used_bytes == 2 * held_bytes)
        memory.lists.limit_to(memory.lists.used_bytes + 16 * 1024)
        refused = await client.request(
            Type.WATCH_TOPIC_LIST,
            watcher_id=2,
            namespace="public/default",
            topics_pattern="persistent://public/default/t",
        )
        assert refused["error"] == "NotAllowedError"
        assert "request the list of topics" in refused["message"]
        await client.request(Type.WATCH_TOPIC_LIST_CLOSE, watcher_id=1)
        assert memory.lists.used_bytes == 0


async def stats(broker: MemoryBroker) -> dict[str, Any]:
    answer = await broker.rest("GET", "/persistent/public/default/t/stats")
    return dict(answer.json)


async def test_a_publisher_that_waits_for_memory_is_shown_and_goes_on_once_others_are_answered() -> None:
    async with memory_broker() as broker, binary_port(broker) as port:
        await broker.topic(TOPIC)
        memory = broker.service.runtime.memory
        client, other = await port.connect(), await port.connect()
        for each, name in ((client, "held"), (other, "other")):
            await each.request(Type.PRODUCER, topic=TOPIC, producer_id=1, producer_name=name)

        async def publish(each: AsyncClient, sequence_id: int) -> None:
            each._writer.write(frame(encode(Type.SEND, producer_id=1, sequence_id=sequence_id), _message(sequence_id)))
            assert (await each.next())["type"] == "SEND_RECEIPT"

        others_bytes = memory.publishes.most_bytes
        memory.follow(memory.publishes.count(others_bytes))
        await publish(client, 0)
        shown = {each["producerName"]: each for each in (await stats(broker))["publishers"]}
        assert shown["held"]["waitsForMemory"]["forMillis"] >= 0
        assert "waitsForMemory" not in shown["other"]
        page = (await asyncio.to_thread(call, f"http://127.0.0.1:{broker.port}/metrics")).text
        assert 'pybroker_memory_waiting{cluster="standalone",part="publishes"} 1\n' in page
        memory.follow(memory.publishes.count(-others_bytes))
        await publish(other, 0)
        await publish(client, 1)
        shown = {each["producerName"]: each for each in (await stats(broker))["publishers"]}
        assert "waitsForMemory" not in shown["held"]


async def test_internal_stats_say_why_nothing_is_delivered_and_since_when() -> None:
    async with memory_broker() as broker:
        topic = await broker.topic(TOPIC)
        await topic.subscription("s", True, True, {})
        cursors = (await broker.rest("GET", "/persistent/public/default/t/internalStats")).json["cursors"]
        assert cursors["s"]["stall"]["blockedReason"] == "NO_CONSUMER"
        assert cursors["s"]["stall"]["reason"] == "no consumer is connected"
        assert cursors["s"]["stall"]["forMillis"] >= 0


def _message(sequence_id: int) -> bytes:
    header = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1).SerializeToString()
    rest = len(header).to_bytes(4, "big") + header + b"x"
    return b"\x0e\x01" + crc32c.crc32c(rest).to_bytes(4, "big") + rest


def test_an_unknown_list_is_expected_to_be_small() -> None:
    directory = TopicDirectory(None, None, None)  # type: ignore[arg-type]
    assert directory.expected_bytes(NamespaceName("public", "default")) == 16 * 1024
