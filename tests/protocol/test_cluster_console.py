"""The console's calls about a cluster, on modelled servers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pulsar
import pytest
from tests.protocol.test_cluster import ADMIN, NAMESPACE, TOPIC, connected, look_up, rest
from tests.support.modelled_cluster import ModelledCluster, modelled_cluster, run_on_uvloop

from pybroker.admin.console import broker_parts
from pybroker.admin.console.broker_parts import BrokerParts, checked_page
from pybroker.admin.console.cluster_table import ClusterTable
from pybroker.cluster.bundles import hash_position
from pybroker.cluster.load_balance.load_report import LoadReport
from pybroker.cluster.membership.registration import Registration

BASE = "/admin/v3/console/cluster"


def test_console_lists_brokers_and_bundles_and_acts_at_any_broker() -> None:
    run_on_uvloop(_console())


async def _console() -> None:
    async with modelled_cluster(has_membership=True) as cluster:
        one, two = cluster.brokers
        status, shown = await rest(two, "GET", BASE)
        assert (status, shown["isShared"], shown["own"]) == (200, True, two.registered.broker_id)
        assert shown["leader"] == one.registered.broker_id
        assert [each["id"] for each in shown["brokers"]] == sorted(
            each.registered.broker_id for each in cluster.brokers
        )
        assert all(each["isPybroker"] and each["usagePercent"] >= 0 for each in shown["brokers"])
        assert await rest(one, "PUT", ADMIN) == (204, None)
        bundle = str((await rest(one, "GET", "/lookup/v2/topic/persistent/public/default/orders/bundle"))[1])

        async def owner() -> str | None:
            status, page = await rest(two, "GET", f"{BASE}/bundles?search=public/default%20{bundle}")
            assert status == 200
            (row,) = page["bundles"]
            assert row["range"] == bundle
            return row["owner"]  # type: ignore[no-any-return]

        for destination in (two, one, two):
            broker_id = destination.registered.broker_id
            path = f"{BASE}/public/default/{bundle}/unload?destinationBroker={broker_id}"
            assert await rest(one, "PUT", path, follows=False) == (204, None)
            assert await owner() == broker_id
            for broker in cluster.brokers:
                found = (await rest(broker, "GET", f"{BASE}/owner/persistent/public/default/orders"))[1]
                url = destination.registered.web_service_url
                assert found == {"isHere": broker is destination, "broker": broker_id, "webUrl": url}
        assert await rest(one, "PUT", f"{BASE}/public/default/{bundle}/unload", follows=False) == (204, None)
        assert await owner() is None
        await look_up(one, TOPIC)
        assert await rest(one, "PUT", f"{BASE}/public/default/{bundle}/split", follows=False) == (204, None)
        assert (await rest(two, "GET", f"{BASE}/bundles?search=public/default%20{bundle}"))[1]["matching"] == 0
        status, _ = await rest(one, "PUT", f"{BASE}/public/default/{bundle}/split")
        assert status == 412, "the bundle does not exist any more"
        assert (await rest(one, "GET", f"{NAMESPACE}/topics"))[1] == [TOPIC]
        assert (await rest(one, "GET", f"{BASE}/bundles?limit=0"))[0] == 400


TOPICS = "/admin/v3/console/topics"
STUCK = "/admin/v3/explain"


def test_topics_and_stuck_topics_of_all_brokers_are_listed_at_any_broker() -> None:
    run_on_uvloop(_topics_of_all())


async def _divided(cluster: ModelledCluster, client: pulsar.Client) -> dict[str, str]:
    """Create topics with one message and no consumer at both brokers. Return the owner of each."""
    names = [f"persistent://public/default/orders-{number}" for number in range(8)]
    owners: dict[str, str] = {}
    for name in names:
        cluster.chosen = hash_position(name) >> 31
        await look_up(cluster.brokers[cluster.chosen], name, authoritative=True)
        owners[name] = cluster.brokers[cluster.chosen].registered.broker_id
        consumer = await asyncio.to_thread(client.subscribe, name, "billing")
        await asyncio.to_thread(consumer.close)
        producer = await asyncio.to_thread(client.create_producer, name)
        await asyncio.to_thread(producer.send, b"m")
        await asyncio.to_thread(producer.close)
    assert len(set(owners.values())) == 2
    return owners


async def _topics_of_all() -> None:
    async with modelled_cluster() as cluster, connected(cluster.brokers[1]) as client:
        live = "non-persistent://public/default/live"
        cluster.chosen = hash_position(live) >> 31
        await look_up(cluster.brokers[cluster.chosen], live, authoritative=True)
        producer = await asyncio.to_thread(client.create_producer, live)
        owners = await _divided(cluster, client)
        one, two = (each.registered.broker_id for each in cluster.brokers)
        owners[live] = (one, two)[hash_position(live) >> 31]
        for broker in cluster.brokers:
            status, shown = await rest(broker, "GET", TOPICS)
            assert status == 200
            assert {each["name"]: each["broker"] for each in shown["topics"]} == owners
            assert all(each["loaded"] for each in shown["topics"])
            assert shown["sums"]["backlog"] == 8
            assert shown["own"] == broker.registered.broker_id
            assert [(each["id"], each["isPybroker"], each["problem"]) for each in shown["brokers"]] == [
                (each, True, "") for each in sorted((one, two))
            ]
            of_one = [each for each in owners if owners[each] == one]
            filtered = (await rest(broker, "GET", f"{TOPICS}?broker={one}&sort=broker"))[1]
            assert [each["name"] for each in filtered["topics"]] == sorted(of_one)
            assert filtered["matching"] == len(of_one)
            local = (await rest(broker, "GET", f"{TOPICS}?local=true&loaded=true"))[1]
            own = [each for each in owners if owners[each] == broker.registered.broker_id]
            assert [each["name"] for each in local["topics"]] == sorted(own)
            assert "brokers" not in local
            stuck = (await rest(broker, "GET", STUCK))[1]
            assert {each["topic"]: each["broker"] for each in stuck["topics"]} == {
                name: found for name, found in owners.items() if name != live
            }
            assert {each["finding"]["code"] for each in stuck["topics"]} == {"no-consumers"}
            page = (await rest(broker, "GET", f"{STUCK}?broker={two}&offset=1&limit=2"))[1]
            assert {each["broker"] for each in page["topics"]} == {two}
            assert (await rest(broker, "GET", f"{STUCK}?local=true"))[1]["matching"] == len([*own]) - (live in own)
        await asyncio.to_thread(producer.close)


def test_lists_name_brokers_that_do_not_answer_and_java_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_parts, "PROBE_S", 0.2)
    run_on_uvloop(_missing_brokers())


async def _missing_brokers() -> None:
    async with modelled_cluster() as cluster, connected(cluster.brokers[0]) as client:
        owners = await _divided(cluster, client)
        one, two = cluster.brokers
        other = two.registered.broker_id
        own = sorted(name for name, found in owners.items() if found == one.registered.broker_id)
        parts = BrokerParts(one.service)
        found = (await rest(one, "GET", TOPICS))[1]
        assert len(found["topics"]) == 8
        # A broker with a smaller limit sends so many rows, and the list states that topics are missing.
        assert one.service.ownership is not None
        (part,) = await parts.ask(one.service.ownership, 1)
        assert (len(part.topics), part.is_cut) == (1, True)
        # A Java broker has no route for other brokers; its bundles are known.
        one.service.membership = SimpleNamespace(  # type: ignore[assignment]
            registrations={other: Registration(two.registered, LoadReport())}, report=lambda: None
        )
        (part,) = await BrokerParts(one.service).ask(one.service.ownership, 100)
        assert (part.is_pybroker, part.topics) == (False, ())
        assert "is a Java broker" in part.problem
        merged = await ClusterTable(one.service, one.process.http.console.table).current()
        rows = [row for found in merged.table.namespaces.values() for row in found]
        assert {row.name: row.broker for row in rows} == owners
        assert sorted(row.name for row in rows if row.is_loaded) == own
        one.service.membership = None
        # A broker that was killed.
        await two.kill()
        table = ClusterTable(one.service, one.process.http.console.table)
        for _ in range(2):
            (part,) = (await table.current()).parts
            assert (part.broker.broker_id, part.problem) == (other, "does not respond")


@pytest.mark.parametrize("topic", ["orders", "persistent://public/default"])
def test_page_of_another_broker_with_an_invalid_topic_name_is_refused(topic: str) -> None:
    page = {"topics": [[topic, True]], "stuck": [], "findings": [], "is_cut": False, "has_more": False}
    with pytest.raises(ValueError, match="is not a topic name"):
        checked_page(page)
