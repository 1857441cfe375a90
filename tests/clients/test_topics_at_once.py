"""Clients that make, load and lose topics at once: whoever can be served by waiting gets in, and nobody runs into a time-out."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pulsar
import pytest
from tests.clients.conftest import admin, new_client, path_of
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared
PARTITIONS = 3

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that makes partitioned topics, and loads few at once."""
    settings = {
        "allowAutoTopicCreationType": "partitioned",
        "defaultNumPartitions": str(PARTITIONS),
        "maxConcurrentTopicLoadRequest": "5",
        "forceDeleteNamespaceAllowed": "true",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running_well() as process:
        yield process


def at_once(count: int, work: Callable[[int], Result]) -> list[Result]:
    """What `work` returns of each of `count` threads that begin together."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_clients_that_name_one_new_partitioned_topic_at_once_all_get_it(broker: BrokerProcess, topic: str) -> None:
    def use(index: int) -> int:
        with contextlib.closing(new_client(broker.url)) as client:
            client.subscribe(topic, f"sub-{index}", initial_position=EARLIEST)
            return len(client.get_topic_partitions(topic))

    assert at_once(20, use) == [PARTITIONS] * 20


def test_more_topics_than_are_loaded_at_once_are_all_served(broker: BrokerProcess, topic: str) -> None:
    def use(index: int) -> str:
        with contextlib.closing(new_client(broker.url)) as client:
            for each in range(4):
                name = f"{topic}-{index}-{each}"
                client.subscribe(name, "sub", initial_position=EARLIEST)
                client.create_producer(name).send(b"x")
        return "served"

    assert at_once(12, use) == ["served"] * 12


def test_replicas_that_make_their_topic_and_go_on_at_409_can_use_it(broker: BrokerProcess, topic: str) -> None:
    def use(_: int) -> tuple[int, int]:
        made = call(f"{broker.http_url}/admin/v2{path_of(topic)}/partitions", "PUT", body=6)
        grown = call(f"{broker.http_url}/admin/v2{path_of(topic)}/partitions", "POST", body=8)
        assert grown.status == 204
        with contextlib.closing(new_client(broker.url)) as client:
            client.subscribe(topic, "sub", consumer_type=SHARED)
            client.create_producer(topic).send(b"x")
            return made.status, len(client.get_topic_partitions(topic))

    found = at_once(8, use)
    assert sorted(status for status, _ in found) == [204] + [409] * 7
    assert {partitions for _, partitions in found} == {8}


def test_a_namespace_that_goes_leaves_no_topic_that_takes_messages(broker: BrokerProcess) -> None:
    for attempt in range(8):
        namespace = f"public/gone-{attempt}"
        admin(broker, "PUT", f"/namespaces/{namespace}")

        def make(_: int, namespace: str = namespace) -> pulsar.Client | None:
            client = new_client(broker.url)
            try:
                client.create_producer(f"persistent://{namespace}/t").send(b"x")
            except pulsar.TopicNotFound:
                client.close()
                return None
            return client

        with ThreadPoolExecutor(2) as pool:
            making = pool.submit(make, 0)
            deleted = call(f"{broker.http_url}/admin/v2/namespaces/{namespace}", "DELETE")
            client = making.result()
        assert (deleted.status, client is None) in {(204, True), (409, False)}
        admin(broker, "PUT" if client is None else "GET", f"/namespaces/{namespace}")
        topics = call(f"{broker.http_url}/admin/v2/persistent/{namespace}").json
        assert bool(topics) is (client is not None)
        if client is not None:
            client.close()


def test_nothing_is_stored_twice_when_its_topic_is_unloaded_under_load(broker: BrokerProcess, topic: str) -> None:
    admin(broker, "PUT", path_of(topic))
    results: list[pulsar.Result] = []
    with contextlib.closing(new_client(broker.url)) as client:
        producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        consumer = client.subscribe(topic, "sub", initial_position=EARLIEST)
        for index in range(2000):
            producer.send_async(b"%d" % index, lambda result, _: results.append(result))
            if index % 500 == 250:
                admin(broker, "PUT", f"{path_of(topic)}/unload")
        producer.flush()
        producer.close()
        consumer.close()
    assert results == [pulsar.Result.Ok] * 2000
    stats = call(f"{broker.http_url}/admin/v2{path_of(topic)}/internalStats").json
    assert sum(ledger["entries"] for ledger in stats["ledgers"][:-1]) + stats["currentLedgerEntries"] == 2000


def test_a_topic_that_is_terminated_refuses_its_producers_and_nobody_times_out(
    broker: BrokerProcess, topic: str
) -> None:
    def use(index: int) -> str:
        name = f"{topic}-{index}"
        admin(broker, "PUT", path_of(name))
        results: list[pulsar.Result] = []
        client = new_client(broker.url)
        producer = client.create_producer(name, batching_enabled=False, block_if_queue_full=True)
        for number in range(200):
            producer.send_async(b"%d" % number, lambda result, _: results.append(result))
            if number == 100:
                admin(broker, "POST", f"{path_of(name)}/terminate")
        with contextlib.suppress(pulsar.PulsarException):
            producer.flush()
        with contextlib.suppress(pulsar.AlreadyClosed):  # Its last producer is.
            client.close()
        return "timed out" if pulsar.Result.Timeout in results else f"{len(results)} answered"

    assert at_once(4, use) == ["200 answered"] * 4
