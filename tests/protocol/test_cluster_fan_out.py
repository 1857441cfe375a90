"""REST calls that need all owners of a cluster, on modelled servers: lists, publishing, transaction coordinators."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pulsar
from tests.protocol.test_cluster import ADMIN, NAMESPACE, TIMEOUT_MS, TOPIC, connected, look_up, rest
from tests.support.modelled_cluster import ModelledCluster, modelled_cluster, run_on_uvloop

from pybroker.cluster.bundles import hash_position
from pybroker.cluster.load_balance.load_report import BundleFigures, LoadReport
from pybroker.cluster.membership.registration import Registration
from pybroker.model.names import TopicName
from pybroker.transactions.coordinators import partition_of

NON_PERSISTENT = "/admin/v2/non-persistent/public/default"
TRANSACTIONS = "/admin/v3/transactions"
PARTITIONS = 4


async def _divide(cluster: ModelledCluster, names: list[str]) -> None:
    """Give the first half of the hashes to the first broker, the second one to the other."""
    for name in names:
        cluster.chosen = hash_position(name) >> 31
        await look_up(cluster.brokers[cluster.chosen], name, authoritative=True)
    assert {hash_position(name) >> 31 for name in names} == {0, 1}


def test_non_persistent_topics_of_all_brokers_are_listed() -> None:
    run_on_uvloop(_non_persistent())


async def _non_persistent() -> None:
    async with modelled_cluster() as cluster, connected(cluster.brokers[1]) as client:
        names = [f"non-persistent://public/default/orders-{number}" for number in range(8)]
        await _divide(cluster, names)
        producers = [await asyncio.to_thread(client.create_producer, name) for name in names]
        assert {len(each.service.loaded.non_persistent) for each in cluster.brokers} != {0, 8}
        assert await rest(cluster.brokers[0], "PUT", ADMIN) == (204, None)
        for broker in cluster.brokers:
            assert await rest(broker, "GET", NON_PERSISTENT) == (200, names)
            assert await rest(broker, "GET", f"{NAMESPACE}/topics?mode=NON_PERSISTENT") == (200, names)
            assert await rest(broker, "GET", f"{NAMESPACE}/topics?mode=ALL") == (200, sorted([TOPIC, *names]))
            assert await rest(broker, "GET", f"{NAMESPACE}/topics") == (200, [TOPIC])
            _, bundles = await rest(broker, "GET", f"{NAMESPACE}/bundles")
            boundaries = bundles["boundaries"]
            found: list[str] = []
            for lower, upper in pairwise(boundaries):
                status, listed = await rest(broker, "GET", f"{NON_PERSISTENT}/{lower}_{upper}")
                assert status == 200
                found += listed
            assert sorted(found) == names
        for producer in producers:
            await asyncio.to_thread(producer.close)
        # Without owners, nothing is loaded for the list.
        assert await rest(cluster.brokers[0], "PUT", f"{NAMESPACE}/unload") == (204, None)
        assert await rest(cluster.brokers[1], "GET", NON_PERSISTENT) == (200, [])


def test_messages_over_rest_reach_partitions_of_all_brokers() -> None:
    run_on_uvloop(_publishing())


async def _publishing() -> None:
    async with modelled_cluster() as cluster, connected(cluster.brokers[0]) as client:
        one, two = cluster.brokers
        assert await rest(one, "PUT", f"{ADMIN}/partitions", PARTITIONS) == (204, None)
        await _divide(cluster, [f"{TOPIC}-partition-{index}" for index in range(PARTITIONS)])
        consumer = await asyncio.to_thread(client.subscribe, TOPIC, "one")
        published = set()
        for broker in cluster.brokers:
            prefix = broker.registered.broker_id
            messages = [{"payload": f"{prefix}/{number}", "key": f"k{number % 5}"} for number in range(20)]
            messages += [{"payload": f"{prefix}/n{number}"} for number in range(PARTITIONS)]
            status, answer = await rest(
                broker, "POST", "/topics/persistent/public/default/orders", {"messages": messages}
            )
            assert status == 200, answer
            results = answer["messagePublishResults"]
            assert [each["errorCode"] for each in results] == [0] * len(messages)
            # The results are in the order of the messages, with the partition last.
            partitions = [int(each["messageId"].rpartition(":")[2]) for each in results]
            assert sorted(partitions[20:]) == list(range(PARTITIONS))
            assert partitions[:5] == partitions[5:10] == partitions[10:15], "a key has one partition"
            published |= {each["payload"] for each in messages}
            for index in range(PARTITIONS):
                path = f"/topics/persistent/public/default/orders/partitions/{index}"
                status, answer = await rest(broker, "POST", path, {"messages": [{"payload": f"{prefix}/p{index}"}]})
                assert (status, answer["messagePublishResults"][0]["errorCode"]) == (200, 0)
                published.add(f"{prefix}/p{index}")
        received = await asyncio.to_thread(_received, consumer, len(published))
        assert received == published
        assert {len(each.service.loaded.persistent) for each in cluster.brokers} == {2}
        # A body that is invalid stores nothing anywhere.
        body = {"messages": [{"payload": "x", "sequenceId": -1} for _ in range(PARTITIONS)]}
        assert (await rest(two, "POST", "/topics/persistent/public/default/orders", body))[0] == 400
        # Messages to a broker that does not answer are refused one by one; the others are stored.
        await two.kill()
        body = {"messages": [{"payload": f"after/{number}"} for number in range(PARTITIONS)]}
        status, answer = await rest(one, "POST", "/topics/persistent/public/default/orders", body)
        assert status == 200
        codes = [each["errorCode"] for each in answer["messagePublishResults"]]
        assert sorted(codes) == [0, 0, 1, 1]


def _received(consumer: pulsar.Consumer, count: int) -> set[str]:
    found: set[str] = set()
    while len(found) < count:
        message = consumer.receive(TIMEOUT_MS)
        found.add(message.data().decode())
        consumer.acknowledge(message)
    return found


def test_coordinators_of_all_brokers_are_listed_with_their_statistics() -> None:
    run_on_uvloop(_coordinators())


async def _coordinators() -> None:
    async with modelled_cluster(transaction_coordinator_enabled=True) as cluster:
        await rest(
            cluster.brokers[0],
            "PUT",
            "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions",
            16,
        )
        names = [str(partition_of(number)) for number in range(16)]
        await _divide(cluster, names)
        for number, name in enumerate(names):
            await cluster.brokers[hash_position(name) >> 31].service.transactions.connect(number)
        urls = [cluster.brokers[hash_position(name) >> 31].registered.broker_service_url for name in names]
        expected: Any = [{"id": number, "brokerServiceUrl": url} for number, url in enumerate(urls)]
        for broker in cluster.brokers:
            assert await rest(broker, "GET", f"{TRANSACTIONS}/coordinators") == (200, expected)
            status, stats = await rest(broker, "GET", f"{TRANSACTIONS}/coordinatorStats")
            assert (status, list(stats)) == (200, [str(number) for number in range(16)])
            assert await rest(broker, "GET", f"{TRANSACTIONS}/slowTransactions/0") == (200, {})


def test_hottest_bundle_of_all_brokers_is_split_at_its_owner() -> None:
    run_on_uvloop(_hottest())


async def _hottest() -> None:
    async with modelled_cluster() as cluster:
        one, two = cluster.brokers
        await look_up(one, TOPIC, authoritative=True)
        assert one.service.ownership is not None
        bundle = one.service.ownership.bundle_of(TopicName.parse(TOPIC))
        report = LoadReport(bundles={str(bundle): BundleFigures(byte_rate_in=10.0, topic_count=1)}, measured_ms=1)
        two.service.membership = SimpleNamespace(  # type: ignore[assignment]
            registrations={"one": Registration(one.registered, report)}
        )
        status, location = await rest(two, "PUT", f"{NAMESPACE}/HOT/split", follows=False)
        assert status == 307
        assert location.startswith(f"{one.registered.web_service_url}{NAMESPACE}/{bundle.range}/split?")
        assert await rest(two, "PUT", f"{NAMESPACE}/HOT/split") == (204, None)
        two.service.membership = None
        _, found = await rest(two, "GET", f"{NAMESPACE}/bundles")
        middle = bundle.range.lower + (bundle.range.upper - bundle.range.lower) // 2
        assert f"0x{middle:08x}" in found["boundaries"]
