"""A broker with as little memory as there can be: what comes at once waits, and all of it is answered."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric
from tests.support.rest import call

TOPIC = "persistent://public/default/large"
MESSAGE_BYTES = 4_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("little")
    with BrokerProcess(directory, {"brokerMemoryLimitMB": "100"}).running_well() as running:
        yield running


def test_all_who_look_at_large_messages_or_list_topics_at_once_are_answered(broker: BrokerProcess) -> None:
    admin = f"{broker.http_url}/admin/v2"
    assert call(f"{admin}/persistent/public/default/many/partitions", "PUT", body=300).status == 204
    client = pulsar.Client(broker.url)
    try:
        client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(b"x" * MESSAGE_BYTES)
        client.create_producer("persistent://public/default/many").send(b"loads all of them")

        def look(number: int) -> int:
            if number % 2:
                return len(call(f"{admin}/persistent/public/default").json)
            with urllib.request.urlopen(f"{admin}/persistent/public/default/large/subscription/s/position/1") as answer:
                return len(answer.read())

        with ThreadPoolExecutor(20) as threads:
            found = list(threads.map(look, range(40)))
        assert set(found[::2]) == {MESSAGE_BYTES}
        assert set(found[1::2]) == {301}
        for part in ("views", "documents"):
            until_metric(broker, lambda waits: waits > 0, "pybroker_memory_waits_total", part=part)
        for part in ("requests", "views", "documents", "lists"):  # all parts that do not keep anything
            until_metric(broker, lambda used_bytes: used_bytes == 0, "pybroker_memory_used_bytes", part=part)
    finally:
        client.close()
