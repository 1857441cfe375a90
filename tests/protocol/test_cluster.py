"""Two brokers of one cluster share topics: lookups, redirects, unload, transfer, split, lost sessions, on modelled servers."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar
from tests.support.modelled_cluster import ClusterBroker, ModelledCluster, modelled_cluster
from tests.support.raw_client import RawClient
from tests.support.waiting import until

from pybroker.cluster.bundles import hash_position
from pybroker.wire import pulsar_api_pb2 as pb

TOPIC = "persistent://public/default/orders"
ADMIN = "/admin/v2/persistent/public/default/orders"
NAMESPACE = "/admin/v2/namespaces/public/default"
LOOKUP = "/lookup/v2/topic/persistent/public/default/orders"
TIMEOUT_MS = 20_000


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _rest(url: str, method: str, body: object, *, follows: bool) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    for _ in range(5):
        request = urllib.request.Request(url, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=20) as answer:
                text = answer.read().decode()
                is_json = text.startswith(("{", "[", '"'))
                return answer.status, json.loads(text) if is_json else text or None
        except urllib.error.HTTPError as error:
            if error.code != 307:
                return error.code, json.loads(error.read())["reason"]
            url = error.headers["location"]
            if not follows:
                return 307, url
    raise AssertionError("redirected in a circle")


async def rest(
    broker: ClusterBroker, method: str, path: str, body: object = None, *, follows: bool = True
) -> tuple[int, Any]:
    """Return status and JSON, or the location of a redirect that is not followed."""
    url = f"{broker.registered.web_service_url}{path}"
    return await asyncio.to_thread(_rest, url, method, body, follows=follows)


def _looked_up(url: str, topic: str, **fields: Any) -> dict[str, Any]:
    client = RawClient(url)
    try:
        client.connect()
        return client.request(pb.BaseCommand.LOOKUP, topic=topic, **fields)
    finally:
        client.close()


async def look_up(broker: ClusterBroker, topic: str = TOPIC, **fields: Any) -> dict[str, Any]:
    return await asyncio.to_thread(_looked_up, broker.registered.broker_service_url, topic, **fields)


@asynccontextmanager
async def connected(broker: ClusterBroker) -> AsyncIterator[pulsar.Client]:
    client = pulsar.Client(
        broker.registered.broker_service_url,
        operation_timeout_seconds=20,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        yield client
    finally:
        await asyncio.to_thread(client.close)


def owner(cluster: ModelledCluster, topic: str = TOPIC) -> ClusterBroker:
    found = [each for each in cluster.brokers if topic in each.service.loaded.persistent]
    assert len(found) == 1, f"{len(found)} brokers have loaded {topic}"
    return found[0]


def test_lookups_lead_to_the_owner() -> None:
    asyncio.run(_lookups_lead_to_the_owner())


async def _lookups_lead_to_the_owner() -> None:
    async with modelled_cluster() as cluster:
        leader, other = cluster.brokers
        cluster.chosen = 1
        urls = [each.registered.broker_service_url for each in cluster.brokers]
        asked = await look_up(other)
        assert (asked["response"], asked["brokerServiceUrl"]) == ("Redirect", urls[0])
        assert not asked.get("authoritative", False)
        asked = await look_up(leader)
        assert (asked["response"], asked["brokerServiceUrl"], asked["authoritative"]) == ("Redirect", urls[1], True)
        asked = await look_up(other, authoritative=True)
        assert (asked["response"], asked["brokerServiceUrl"], asked["authoritative"]) == ("Connect", urls[1], True)
        asked = await look_up(leader)
        assert (asked["response"], asked["brokerServiceUrl"], asked["authoritative"]) == ("Connect", urls[1], True)
        # The listeners of the owner's document.
        asked = await look_up(leader, advertised_listener_name="inside")
        assert asked["brokerServiceUrl"] == "pulsar://inside:1"
        asked = await look_up(leader, advertised_listener_name="outside")
        assert (asked["error"], asked["message"]) == ("MetadataError", "the broker do not have outside listener")
        assert await rest(leader, "GET", f"{LOOKUP}?listenerName=outside") == (
            500,
            "the broker do not have outside listener",
        )
        status, found = await rest(leader, "GET", LOOKUP)
        assert (status, found["brokerUrl"], found["nativeUrl"]) == (200, urls[1], urls[1])
        document = json.loads((await cluster.tree.values.get(_bundle_path(other))).value)  # type: ignore[union-attr]
        document.pop("pybrokerSession")
        assert document == {
            "nativeUrl": urls[1],
            "httpUrl": other.registered.web_service_url,
            "disabled": False,
            "advertisedListeners": {"inside": {"brokerServiceUrl": "pulsar://inside:1"}},
        }
        # A broker without the bundle refuses its topics.
        refused = await asyncio.to_thread(_opened_producer, urls[0])
        assert refused["error"] == "ServiceNotReady"
        text = f"for topic ({TOPIC}) not served by this instance:{leader.registered.broker_id}. Please redo the lookup."
        assert text in refused["message"]


def _opened_producer(url: str) -> dict[str, Any]:
    client = RawClient(url)
    try:
        client.connect()
        return client.request(pb.BaseCommand.PRODUCER, topic=TOPIC, producer_id=1)
    finally:
        client.close()


def _bundle_path(broker: ClusterBroker) -> str:
    ownership = broker.service.ownership
    assert ownership is not None
    paths = [each.path for each in ownership.owned_bundles() if each.namespace.tenant == "public"]
    assert len(paths) == 1
    return paths[0]


def test_rest_calls_are_redirected_to_the_owner() -> None:
    asyncio.run(_rest_calls_are_redirected())


async def _rest_calls_are_redirected() -> None:
    async with modelled_cluster() as cluster:
        leader, other = cluster.brokers
        cluster.chosen = 1
        location = await rest(other, "PUT", ADMIN, follows=False)
        assert location == (307, f"{leader.registered.web_service_url}{ADMIN}?authoritative=false")
        location = await rest(leader, "PUT", f"{ADMIN}?x=1&authoritative=false", follows=False)
        assert location == (307, f"{other.registered.web_service_url}{ADMIN}?x=1&authoritative=true")
        assert await rest(other, "PUT", ADMIN) == (204, None)
        assert owner(cluster) is other
        for broker in cluster.brokers:
            status, stats = await rest(broker, "GET", f"{ADMIN}/stats")
            assert (status, stats["ownerBroker"]) == (200, other.registered.broker_id)
            assert await rest(broker, "GET", f"{NAMESPACE}/topics") == (200, [TOPIC])
            assert await rest(broker, "PUT", f"{ADMIN}/subscription/one") in (
                (204, None),
                (409, "Subscription already exists for topic"),
            )
            assert await rest(broker, "GET", f"{ADMIN}/subscriptions") == (200, ["one"])
            owned = f"/admin/v2/brokers/c1/{other.registered.broker_id}/ownedNamespaces"
            status, bundles = await rest(broker, "GET", owned)
            assert status == 200
            assert sum(name.startswith("public/default/") for name in bundles) == 1
        status, reason = await rest(leader, "GET", "/admin/v2/persistent/public/absent/orders/stats")
        assert (status, reason) == (404, "Namespace not found")
        status, bundle = await rest(leader, "GET", f"{LOOKUP}/bundle")
        unload = f"{NAMESPACE}/{bundle}/unload"
        assert await rest(leader, "PUT", unload, follows=False) == (
            307,
            f"{other.registered.web_service_url}{unload}?authoritative=true",
        )
        assert await rest(leader, "PUT", unload) == (204, None)
        assert await rest(leader, "PUT", unload, follows=False) == (204, None), (
            "without an owner there is nothing to do"
        )
        assert await rest(leader, "DELETE", ADMIN) == (204, None)
        assert await rest(other, "GET", f"{NAMESPACE}/topics") == (200, [])


def test_unload_transfer_and_split_keep_clients_and_messages() -> None:
    asyncio.run(_moves())


async def _moves() -> None:
    async with modelled_cluster() as cluster, connected(cluster.brokers[1]) as client:
        consumer = await asyncio.to_thread(client.subscribe, TOPIC, "one")
        producer = await asyncio.to_thread(client.create_producer, TOPIC)
        received = 0

        async def exchange() -> None:
            nonlocal received
            await asyncio.to_thread(producer.send, str(received).encode())
            number = -1
            while number < received:  # the client may have lost its last acknowledgement, which it sends with a delay
                message = await asyncio.to_thread(consumer.receive, TIMEOUT_MS)
                number = int(message.data().decode())
                await asyncio.to_thread(consumer.acknowledge, message)
            assert number == received
            received += 1

        await exchange()
        assert owner(cluster) is cluster.brokers[0]
        _, bundle = await rest(cluster.brokers[0], "GET", f"{LOOKUP}/bundle")
        for destination in (1, 0, 1):
            broker = cluster.brokers[destination]
            path = f"{NAMESPACE}/{bundle}/unload?destinationBroker={broker.registered.broker_id}"
            assert await rest(cluster.brokers[0], "PUT", path) == (204, None)
            assert broker.service.ownership is not None
            assert any(str(each.range) == bundle for each in broker.service.ownership.owned_bundles())
            await exchange()
            assert owner(cluster) is broker
        assert await rest(cluster.brokers[0], "PUT", f"{NAMESPACE}/{bundle}/unload?destinationBroker=nowhere:1") == (
            409,
            "The destination broker nowhere:1 is not running. Running brokers: "
            + ", ".join(sorted(each.registered.broker_id for each in cluster.brokers)),
        )
        before = cluster.brokers[1].service.loaded.persistent[TOPIC]
        assert await rest(cluster.brokers[0], "PUT", f"{NAMESPACE}/{bundle}/split") == (204, None)
        assert cluster.brokers[1].service.loaded.persistent[TOPIC] is before, "clients do not notice a split"
        await exchange()
        _, part = await rest(cluster.brokers[1], "GET", f"{LOOKUP}/bundle")
        assert part != bundle
        for broker in cluster.brokers:
            assert await rest(broker, "PUT", f"{NAMESPACE}/unload") == (204, None)
            await exchange()


def test_lost_session_closes_topics_and_another_broker_serves_them() -> None:
    asyncio.run(_lost_session())


async def _lost_session() -> None:
    async with modelled_cluster() as cluster, connected(cluster.brokers[0]) as client:
        one, two = cluster.brokers
        consumer = await asyncio.to_thread(client.subscribe, TOPIC, "one", consumer_type=pulsar.ConsumerType.Shared)
        producer = await asyncio.to_thread(client.create_producer, TOPIC)
        await asyncio.to_thread(producer.send, b"before")
        message = await asyncio.to_thread(consumer.receive, TIMEOUT_MS)
        await asyncio.to_thread(consumer.acknowledge, message)
        assert owner(cluster) is one
        cluster.chosen = 1
        one.store.lose()
        await until(lambda: not one.service.loaded.persistent)
        status, reason = await rest(one, "GET", f"{ADMIN}/stats")
        assert status == 500, reason
        status, explained = await rest(one, "GET", f"{ADMIN}/explain")
        assert (status, [each["code"] for each in explained["findings"]]) == (200, ["bundle-not-served"])
        await one.store.end_past_sessions()
        one.store.renew()
        await asyncio.to_thread(producer.send, b"after")
        received = await asyncio.to_thread(consumer.receive, TIMEOUT_MS)
        if received.data() == b"before":  # its acknowledgement had no receipt yet
            received = await asyncio.to_thread(consumer.receive, TIMEOUT_MS)
        assert received.data() == b"after"
        assert owner(cluster) is two
        await until(lambda: _is_healthy(one))


def _is_healthy(broker: ClusterBroker) -> bool:
    ownership = broker.service.ownership
    assert ownership is not None
    return any(each.namespace.tenant == "pulsar" for each in ownership.owned_bundles())


def test_partitions_of_several_owners_answer_as_one_topic() -> None:
    asyncio.run(_partitions())


async def _partitions() -> None:
    async with modelled_cluster() as cluster:
        one, two = cluster.brokers
        assert await rest(one, "PUT", f"{ADMIN}/partitions", 4) == (204, None)
        for index in range(4):
            name = f"{TOPIC}-partition-{index}"
            cluster.chosen = hash_position(name) >> 31
            await look_up(cluster.brokers[cluster.chosen], name, authoritative=True)
        assert {hash_position(f"{TOPIC}-partition-{index}") >> 31 for index in range(4)} == {0, 1}
        assert await rest(two, "PUT", f"{ADMIN}/subscription/one") == (204, None)
        assert {len(each.service.loaded.persistent) for each in cluster.brokers} == {2}
        for broker in cluster.brokers:
            status, stats = await rest(broker, "GET", f"{ADMIN}/partitioned-stats")
            assert status == 200, stats
            owners = {name: each["ownerBroker"] for name, each in stats["partitions"].items()}
            assert len(owners) == 4
            assert set(owners.values()) == {each.registered.broker_id for each in cluster.brokers}
            assert sorted(stats["subscriptions"]) == ["one"]
            assert await rest(broker, "GET", f"{ADMIN}/subscriptions") == (200, ["one"])
            assert (await rest(broker, "GET", f"{ADMIN}/partitioned-internalStats"))[0] == 200
            properties = {"from": broker.registered.broker_id}
            path = f"{ADMIN}/subscription/one/properties"
            assert await rest(broker, "PUT", path, properties) == (204, None)
            assert await rest(broker, "GET", path) == (200, properties)
            assert await rest(broker, "POST", f"{ADMIN}/subscription/one/skip_all") == (204, None)
        assert await rest(one, "PUT", f"{ADMIN}/unload") == (204, None)
        assert not any(each.service.loaded.persistent for each in cluster.brokers)
        # New partitions have the subscription at each of their owners.
        assert await rest(two, "POST", f"{ADMIN}/partitions", 6) == (204, None)
        for broker in cluster.brokers:
            for index in (4, 5):
                path = f"/admin/v2/persistent/public/default/orders-partition-{index}/subscriptions"
                assert await rest(broker, "GET", path) == (200, ["one"])
        assert await rest(one, "POST", f"{NAMESPACE}/clearBacklog") == (204, None)
        assert await rest(two, "DELETE", f"{ADMIN}/partitions") == (204, None)
        assert await rest(one, "GET", f"{NAMESPACE}/topics") == (200, [])


MESSAGES = 400
PARTITIONS = 6


def test_killed_owner_loses_no_receipted_message() -> None:
    asyncio.run(_killed_owner())


async def _killed_owner() -> None:
    async with modelled_cluster(3) as cluster:
        one, two, three = cluster.brokers
        assert await rest(one, "PUT", f"{ADMIN}/partitions", PARTITIONS) == (204, None)
        for index in range(PARTITIONS):
            name = f"{TOPIC}-partition-{index}"
            await look_up(cluster.brokers[hash_position(name) % 3], name, authoritative=True)
        urls = ",".join(each.registered.broker_service_url for each in cluster.brokers).replace(",pulsar://", ",")
        client = pulsar.Client(
            urls, operation_timeout_seconds=30, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        shared, keyed = await asyncio.to_thread(_subscribe, client)
        producer = await asyncio.to_thread(
            client.create_producer, TOPIC, block_if_queue_full=True, send_timeout_millis=0
        )
        receipted: set[str] = set()

        def stored(text: str, result: pulsar.Result) -> None:
            assert result == pulsar.Result.Ok
            receipted.add(text)

        def publish(first: int) -> None:
            for number in range(first, first + MESSAGES):
                text = f"{number % 7}/{number}"
                producer.send_async(
                    text.encode(), lambda result, _, text=text: stored(text, result), partition_key=text[0]
                )

        await asyncio.to_thread(publish, 0)
        await until(lambda: bool(receipted))
        loads = {each: len(each.service.loaded.persistent) for each in cluster.brokers}
        assert sum(loads.values()) == PARTITIONS
        victim = max((two, three), key=lambda each: loads[each])
        assert loads[victim]
        cluster.chosen = 0
        await victim.kill()
        await asyncio.to_thread(publish, MESSAGES)
        await victim.store.end_past_sessions()
        await asyncio.to_thread(producer.flush)
        assert len(receipted) == 2 * MESSAGES
        for consumer in (shared, keyed):
            received = await asyncio.to_thread(_drained, consumer, receipted)
            for key in range(7):
                numbers = [int(text[2:]) for text in dict.fromkeys(received) if text.startswith(f"{key}/")]
                if consumer is keyed:
                    assert numbers == sorted(numbers), f"the order of key {key} is broken"
        assert (
            sum(len(each.service.loaded.persistent) for each in (one, two, three) if each is not victim) == PARTITIONS
        )
        await asyncio.to_thread(client.close)


def _subscribe(client: pulsar.Client) -> tuple[pulsar.Consumer, pulsar.Consumer]:
    return (
        client.subscribe(TOPIC, "shared", consumer_type=pulsar.ConsumerType.Shared),
        client.subscribe(TOPIC, "keyed", consumer_type=pulsar.ConsumerType.KeyShared),
    )


def _drained(consumer: pulsar.Consumer, wanted: set[str]) -> list[str]:
    """Receive until all `wanted` messages have arrived."""
    received: list[str] = []
    missing = set(wanted)
    while missing:
        message = consumer.receive(TIMEOUT_MS)
        received.append(message.data().decode())
        missing.discard(received[-1])
        consumer.acknowledge(message)
    return received
