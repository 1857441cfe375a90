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
import pytest
from tests.support.cluster_brokers import FixedRegistry
from tests.support.modelled_cluster import ClusterBroker, ModelledCluster, modelled_cluster, run_on_uvloop
from tests.support.raw_client import RawClient
from tests.support.waiting import until

from pybroker.client import connect
from pybroker.cluster.bundles import hash_position
from pybroker.metadata.cache_refresh import CacheRefresher
from pybroker.model.names import TopicName
from pybroker.transactions.coordinators import DEFAULT_COORDINATORS, partition_of
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


def _asked(url: str, command: pb.BaseCommand.Type, **fields: Any) -> dict[str, Any]:
    client = RawClient(url)
    try:
        client.connect()
        return client.request(command, **fields)
    finally:
        client.close()


async def look_up(broker: ClusterBroker, topic: str = TOPIC, **fields: Any) -> dict[str, Any]:
    url = broker.registered.broker_service_url
    return await asyncio.to_thread(_asked, url, pb.BaseCommand.LOOKUP, topic=topic, **fields)


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
    run_on_uvloop(_lookups_lead_to_the_owner())


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


def test_new_tenant_and_namespace_are_known_before_the_broker_is_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheRefresher, "keep", lambda *_: None)  # the brokers are never notified
    run_on_uvloop(_new_namespaces_are_known())


async def _new_namespaces_are_known() -> None:
    async with modelled_cluster() as cluster:
        leader, other = cluster.brokers
        tenant = {"adminRoles": [], "allowedClusters": ["c1"]}
        assert await rest(leader, "PUT", "/admin/v2/tenants/new", tenant) == (204, None)
        assert await rest(other, "PUT", "/admin/v2/namespaces/new/one") == (204, None)
        assert await rest(leader, "GET", "/admin/v2/persistent/new/one") == (200, [])
        assert await rest(leader, "PUT", "/admin/v2/namespaces/new/two") == (204, None)
        url, topic = other.registered.broker_service_url, "persistent://new/two/orders"
        answer = await asyncio.to_thread(_asked, url, pb.BaseCommand.PARTITIONED_METADATA, topic=topic)
        assert answer["response"] == "Success"
        assert await rest(leader, "PUT", "/admin/v2/namespaces/new/three") == (204, None)
        answer = await asyncio.to_thread(_asked, url, pb.BaseCommand.LOOKUP, topic="persistent://new/three/orders")
        assert answer["response"] == "Redirect"
        answer = await asyncio.to_thread(_asked, url, pb.BaseCommand.LOOKUP, topic="persistent://new/absent/orders")
        assert (answer["error"], answer["message"]) == ("TopicNotFound", "Namespace not found")


def test_rest_calls_are_redirected_to_the_owner() -> None:
    run_on_uvloop(_rest_calls_are_redirected())


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
            _, places = await rest(broker, "GET", "/admin/v2/brokers/internal-configuration")
            assert places["ledgersRootPath"] == "/ledgers"
            status, _ = await rest(broker, "DELETE", "/admin/v2/bookies/racks-info/bookie:3181")
            assert status == 404
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


def test_rest_calls_without_a_leader_reach_the_chosen_broker() -> None:
    run_on_uvloop(_rest_calls_without_a_leader())


async def _rest_calls_without_a_leader() -> None:
    """Each broker chooses the other one, which must not choose again."""
    async with modelled_cluster() as cluster:
        one, other = cluster.brokers
        for each, chosen in ((one, other), (other, one)):
            assert each.service.ownership is not None
            registry = each.service.ownership.registry
            assert isinstance(registry, FixedRegistry)
            registry.leader_id = ""
            registry.choose = lambda _bundle, chosen=chosen: chosen.registered  # type: ignore[misc]
        assert (await rest(one, "PUT", ADMIN))[0] == 204


def test_unload_transfer_and_split_keep_clients_and_messages() -> None:
    run_on_uvloop(_moves())


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


def test_leader_moves_a_bundle_of_a_java_broker_without_a_destination_in_the_redirect() -> None:
    run_on_uvloop(_java_owner())


async def _java_owner() -> None:
    """A Java broker sends an unload with a destination to the leader: such a redirect would never end."""
    java = {"nativeUrl": "pulsar://java:6650", "httpUrl": "http://java:8080", "disabled": False}
    async with modelled_cluster() as cluster:
        leader, other = cluster.brokers
        _, bundle = await rest(leader, "GET", f"{LOOKUP}/bundle")
        await leader.store.put(f"/namespace/public/default/{bundle}", json.dumps(java).encode())
        path = f"{NAMESPACE}/{bundle}/unload"
        for each in cluster.brokers:
            with_destination = f"{path}?destinationBroker={other.registered.broker_id}"
            status, location = await rest(each, "PUT", with_destination, follows=False)
            assert status == 307, location
            query = (
                "authoritative=true"
                if each is leader
                else f"destinationBroker={other.registered.broker_id.replace(':', '%3A')}&authoritative=false"
            )
            assert location == f"http://java:8080{path}?{query}"
        assert leader.service.ownership is not None
        assert leader.service.ownership.registry.assigned == {  # type: ignore[attr-defined]
            f"public/default/{bundle}": other.registered.broker_id
        }


def test_lost_session_closes_topics_and_another_broker_serves_them() -> None:
    run_on_uvloop(_lost_session())


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


def test_closing_after_a_lost_session_leaves_topics_of_the_next_session() -> None:
    run_on_uvloop(_renewed_session())


async def _renewed_session() -> None:
    """A topic takes long to close, and meanwhile the next session serves the bundle again."""
    async with modelled_cluster() as cluster, connected(cluster.brokers[0]) as client:
        one = cluster.brokers[0]
        producers = [await asyncio.to_thread(client.create_producer, name) for name in (TOPIC, f"{TOPIC}-2")]
        loaded = one.service.loaded.persistent
        slow, before = loaded[f"{TOPIC}-2"], loaded[TOPIC]
        close, may_close, is_closed = slow.close, asyncio.Event(), asyncio.Event()

        async def close_late() -> None:
            await may_close.wait()
            await close()
            is_closed.set()

        slow.close = close_late  # type: ignore[method-assign]
        one.store.lose()
        await one.store.end_past_sessions()
        one.store.renew()
        await asyncio.to_thread(producers[0].send, b"after")
        again = loaded[TOPIC]
        assert again is not before
        may_close.set()
        await is_closed.wait()
        for _ in range(10):
            await asyncio.to_thread(producers[0].send, b"still")
            await asyncio.to_thread(producers[1].send, b"again")
        assert loaded[TOPIC] is again


def test_topic_that_waits_for_its_closing_is_loaded_again() -> None:
    run_on_uvloop(_waiting_topic())


async def _waiting_topic() -> None:
    """After a lost session, topics are fenced at once, and closed some at a time."""
    async with modelled_cluster() as cluster, connected(cluster.brokers[0]) as client:
        one = cluster.brokers[0]
        producer = await asyncio.to_thread(client.create_producer, TOPIC)
        await asyncio.to_thread(producer.send, b"before")
        fenced = one.service.loaded.persistent[TOPIC]
        fenced.fence()
        await asyncio.to_thread(producer.send, b"after")
        assert one.service.loaded.persistent[TOPIC] is not fenced
        await one.service.topics.unload(fenced)
        await asyncio.to_thread(producer.send, b"later")


def _is_healthy(broker: ClusterBroker) -> bool:
    ownership = broker.service.ownership
    assert ownership is not None
    return any(each.namespace.tenant == "pulsar" for each in ownership.owned_bundles())


def test_partitions_of_several_owners_answer_as_one_topic() -> None:
    run_on_uvloop(_partitions())


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
    run_on_uvloop(_killed_owner())


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


def test_producer_during_acquisition_of_its_bundle_waits_for_it() -> None:
    run_on_uvloop(_during_acquisition())


async def _during_acquisition() -> None:
    async with modelled_cluster() as cluster:
        one, two = cluster.brokers
        ownership = one.service.ownership
        assert ownership is not None
        created = asyncio.Event()
        pause = one.store.pause
        bundle = ownership.bundle_of(TopicName.parse(TOPIC))

        async def late() -> None:
            """The response to the creation of the document comes late."""
            if await cluster.tree.values.get(bundle.path) is not None:
                await created.wait()

        one.store.pause = late
        acquiring = asyncio.create_task(look_up(one, authoritative=True))
        while (found := await look_up(two))["response"] != "Connect":
            pass
        assert found["brokerServiceUrl"] == one.registered.broker_service_url
        assert not acquiring.done()
        opening = asyncio.create_task(asyncio.to_thread(_opened_producer, found["brokerServiceUrl"]))
        await asyncio.sleep(0.2)
        created.set()
        one.store.pause = pause
        assert (await opening)["type"] == "PRODUCER_SUCCESS"
        await acquiring


def test_former_owner_of_transaction_coordinator_leads_clients_to_new_lookup() -> None:
    run_on_uvloop(_moved_coordinator())


async def _moved_coordinator() -> None:
    async with modelled_cluster(transaction_coordinator_enabled=True) as cluster:
        one, two = cluster.brokers
        topic = str(partition_of(0))
        await look_up(one, topic, authoritative=True)
        raw = RawClient(one.registered.broker_service_url)
        await asyncio.to_thread(raw.connect)
        await asyncio.to_thread(raw.request, pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
        opened = await asyncio.to_thread(raw.request, pb.BaseCommand.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
        assert "error" not in opened
        async with connect(one.registered.broker_service_url) as client:
            for _ in range(DEFAULT_COORDINATORS):  # of each coordinator
                await (await client.transaction()).abort()
            _, bundle = await rest(one, "GET", f"/lookup/v2/topic/{topic.replace('://', '/')}/bundle")
            path = f"/admin/v2/namespaces/pulsar/system/{bundle}/unload?destinationBroker={two.registered.broker_id}"
            assert await rest(one, "PUT", path) == (204, None)
            # The Java client looks a coordinator up again after this error only.
            refused = await asyncio.to_thread(raw.request, pb.BaseCommand.NEW_TXN, tc_id=0, txn_ttl_seconds=60_000)
            assert refused["error"] == "TransactionCoordinatorNotFound"
            for _ in range(DEFAULT_COORDINATORS):
                await (await client.transaction()).abort()
        raw.close()


def test_lookup_that_leads_to_killed_owner_is_parked_until_another_owner() -> None:
    run_on_uvloop(_parked_lookup())


async def _parked_lookup() -> None:
    async with modelled_cluster(max_concurrent_requests_per_connection=2) as cluster:
        one, two = cluster.brokers
        lookups = one.service.cluster_lookups
        assert lookups is not None
        await look_up(two, authoritative=True)
        killed_url = two.registered.broker_service_url
        assert (await look_up(one))["brokerServiceUrl"] == killed_url
        await asyncio.sleep(0.2)  # a probe that `kill` would leave half open
        assert not lookups.parked, "the owner accepts connections"
        await two.kill()
        cluster.chosen = 0
        while True:  # until a probe has failed, lookups lead to the killed broker
            asked = asyncio.create_task(look_up(one))
            await until(lambda asked=asked: lookups.parked or asked.done(), 0.01)  # type: ignore[misc]
            if not asked.done():
                break
            assert asked.result()["brokerServiceUrl"] == killed_url
        # Parked lookups do not count as unanswered requests, so the connection continues.
        busy = RawClient(one.registered.broker_service_url)
        await asyncio.to_thread(busy.connect)
        for number in range(3):
            busy.send(pb.BaseCommand.LOOKUP, topic=TOPIC, request_id=100 + number)
        await until(lambda: lookups.parked == 4, 0.01)
        answer = await asyncio.to_thread(busy.request, pb.BaseCommand.PARTITIONED_METADATA, topic=TOPIC)
        assert answer["type"] == "PARTITIONED_METADATA_RESPONSE"
        busy.close()
        await until(lambda: lookups.parked == 1, 0.01)
        dynamic = one.service.dynamic
        await dynamic.set("maxParkedLookups", "1")
        assert (await look_up(one))["brokerServiceUrl"] == killed_url, "answered at once, above the limit"
        await dynamic.set("maxParkedLookups", "2")
        await dynamic.set("parkedLookupTimeoutMs", "1")
        assert (await look_up(one))["brokerServiceUrl"] == killed_url, "answered after its time-out"
        await two.store.end_past_sessions()
        found = await asked
        assert (found["response"], found["brokerServiceUrl"]) == ("Connect", one.registered.broker_service_url)
        assert not lookups.parked


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
