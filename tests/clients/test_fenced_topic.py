"""Somebody else writes the stored document of a topic while an official client publishes to it and consumes from it."""

from __future__ import annotations

import asyncio

import pulsar
from tests.clients.conftest import new_client
from tests.support.async_client import binary_port
from tests.support.memory_broker import memory_broker
from tests.support.waiting import until

from pybroker.cluster.advertised_addresses import AdvertisedAddresses, BoundPorts
from pybroker.managed_ledger.rollover import LedgerLimits
from pybroker.metadata import metadata_paths
from pybroker.model.names import TopicName

NAME = "persistent://public/default/fenced"
COUNT = 300
KEPT = {"default_retention_time_in_minutes": -1, "default_retention_size_in_mb": -1}


def publish(url: str, sent: list[str]) -> None:
    client = new_client(url)
    producer = client.create_producer(NAME, batching_enabled=False, block_if_queue_full=True)
    for number in range(COUNT):
        producer.send(str(number).encode())
        sent.append(str(number))
    client.close()


def consume(url: str, count: int) -> set[str]:
    """Until so many different messages have come, whose acknowledgements are receipted."""
    client = new_client(url)
    consumer = client.subscribe(NAME, "s", initial_position=pulsar.InitialPosition.Earliest)
    got: set[str] = set()
    while len(got) < count:
        message = consumer.receive(30_000)
        got.add(message.data().decode())
        consumer.acknowledge(message)
    client.close()
    return got


def read_all(url: str, count: int) -> list[str]:
    client = new_client(url)
    reader = client.create_reader(NAME, pulsar.MessageId.earliest)
    read = [reader.read_next(30_000).data().decode() for _ in range(count)]
    assert not reader.has_message_available()
    client.close()
    return read


async def test_a_topic_whose_document_another_writes_is_loaded_again_and_loses_and_doubles_nothing() -> None:
    limits = LedgerLimits(max_entries_per_ledger=20, min_rollover_ms=0)
    async with memory_broker(limits, **KEPT) as broker, binary_port(broker) as port:  # type: ignore[arg-type]
        service, path = broker.service, metadata_paths.managed_ledger(TopicName.parse(NAME))
        ports = BoundPorts(port.port, None, broker.port, None)
        service.presence.addresses = AdvertisedAddresses(service.runtime.config, ports, "127.0.0.1")
        url = f"pulsar://127.0.0.1:{port.port}"
        sent: list[str] = []
        consuming = asyncio.ensure_future(asyncio.to_thread(consume, url, COUNT))
        publishing = asyncio.ensure_future(asyncio.to_thread(publish, url, sent))
        metadata, fenced = service.ledgers.metadata, 0
        for part in range(1, 4):
            await until(lambda part=part: len(sent) >= COUNT * part // 5, 0.005, 60)  # type: ignore[misc]
            topic = await broker.topic(NAME)
            found = await metadata.get(path)
            assert found is not None
            await metadata.put(path, found.value + b" ", found.version)
            await until(lambda topic=topic: topic.ledger.is_closed, 0.005, 60)  # type: ignore[misc]
            fenced += topic.ledger.document.is_fenced
        await publishing
        assert fenced == 3
        assert await consuming == set(map(str, range(COUNT)))
        assert await asyncio.to_thread(read_all, url, COUNT) == [str(number) for number in range(COUNT)]
