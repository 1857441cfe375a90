"""Clusters' documents, brokers, quotas and what is not served, over real HTTP: statuses, bodies and what they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker

ISOLATION: dict[str, Any] = {
    "namespaces": ["public/iso.*"],
    "primary": ["127.*"],
    "secondary": ["other"],
    "auto_failover_policy": {
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
        "policy_type": "min_available",
    },
}
EAST = "/clusters/east"
QUOTA = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100000.0,
    "bandwidthOut": 300000.0,
    "memory": 80.0,
    "dynamic": True,
}


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker() as running:
        assert (await running.rest("PUT", EAST, {})).status == 200
        yield running


async def test_peers_are_clusters_that_exist_and_others_than_the_cluster_itself(broker: MemoryBroker) -> None:
    assert await broker.rest("GET", f"{EAST}/peers") == (200, "")
    assert (await broker.rest("POST", f"{EAST}/peers", ["standalone"])).status == 204
    assert (await broker.rest("GET", f"{EAST}/peers")).json == ["standalone"]
    assert (await broker.rest("GET", EAST)).json["peerClusterNames"] == ["standalone"]
    assert (await broker.rest("POST", f"{EAST}/peers", ["nowhere"])).status == 412
    assert (await broker.rest("POST", f"{EAST}/peers", ["east"])).status == 412
    assert (await broker.rest("POST", "/clusters/nowhere/peers", [])).status == 404
    assert (await broker.rest("GET", "/clusters/nowhere/peers")).status == 404
    assert (await broker.rest("POST", f"{EAST}/peers", [])).status == 204
    assert (await broker.rest("GET", f"{EAST}/peers")).json == []


async def test_a_broker_is_in_one_failure_domain_at_most(broker: MemoryBroker) -> None:
    domains = f"{EAST}/failureDomains"
    assert (await broker.rest("GET", domains)).json == {}
    assert (await broker.rest("POST", f"{domains}/d%2F1", {"brokers": ["a:1", "b:1"]})).status == 204
    assert (await broker.rest("POST", f"{domains}/d2", {"brokers": ["b:1"]})).status == 409
    assert (await broker.rest("POST", f"{domains}/d%2F1", {"brokers": ["a:1"]})).status == 204
    assert (await broker.rest("POST", f"{domains}/d2", {"brokers": ["b:1"]})).status == 204
    assert (await broker.rest("GET", domains)).json == {"d/1": {"brokers": ["a:1"]}, "d2": {"brokers": ["b:1"]}}
    assert (await broker.rest("GET", f"{domains}/d2")).json == {"brokers": ["b:1"]}
    assert (await broker.rest("DELETE", f"{domains}/d2")).status == 200
    assert (await broker.rest("DELETE", f"{domains}/d2")).status == 404
    assert (await broker.rest("GET", f"{domains}/d2")).status == 404
    assert (await broker.rest("POST", "/clusters/nowhere/failureDomains/d", {})).status == 412
    assert (await broker.rest("POST", f"{domains}/d")).status == 400


async def test_isolation_policies_are_kept_and_say_which_of_them_mean_this_broker(broker: MemoryBroker) -> None:
    policies = f"{EAST}/namespaceIsolationPolicies"
    assert (await broker.rest("GET", policies)).status == 404
    assert (await broker.rest("POST", f"{policies}/p1", ISOLATION)).status == 204
    second = {**ISOLATION, "namespaces": ["n2"], "primary": ["127"], "secondary": ["127.*"]}
    assert (await broker.rest("POST", f"{policies}/p2", {**second, "unload_scope": "sideways"})).status == 204
    assert (await broker.rest("GET", policies)).json == {"p1": ISOLATION, "p2": second}
    assert (await broker.rest("GET", f"{policies}/p1")).json == ISOLATION
    assert (await broker.rest("GET", f"{policies}/brokers/127.0.0.1:8080")).json == {
        "brokerName": "127.0.0.1:8080",
        "policyName": "p2",
        "namespaceRegex": ["public/iso.*", "n2"],
        "primary": False,
    }
    assert (await broker.rest("DELETE", EAST)).status == 412
    for name in ("p1", "p2", "p2"):
        assert (await broker.rest("DELETE", f"{policies}/{name}")).status == 204
    assert (await broker.rest("GET", policies)).json == {}
    nobody = {"brokerName": "127.0.0.1:8080", "namespaceRegex": [], "primary": False}
    assert (await broker.rest("GET", f"{policies}/brokers")).json == [nobody]
    assert (await broker.rest("GET", f"{policies}/p1")).status == 404
    assert (await broker.rest("DELETE", EAST)).status == 204


@pytest.mark.parametrize(
    "change",
    [
        {"namespaces": []},
        {"primary": []},
        {"primary": ["("]},
        {"primary": ["(?=a)b"]},
        {"auto_failover_policy": None},
        {"auto_failover_policy": {"policy_type": "min_available", "parameters": {}}},
        {"auto_failover_policy": {"policy_type": "best", "parameters": {"min_limit": "1", "usage_threshold": "1"}}},
    ],
)
async def test_an_isolation_policy_that_cannot_be_meant_is_refused(broker: MemoryBroker, change: Any) -> None:
    answer = await broker.rest("POST", f"{EAST}/namespaceIsolationPolicies/p", {**ISOLATION, **change})
    assert answer.status == 400
    assert answer.json["reason"].startswith("Invalid format of input policy data. policy: p")


async def test_isolated_brokers_of_a_cluster_without_policies_are_not_found(broker: MemoryBroker) -> None:
    for path in ("brokers", "brokers/one:8080"):
        answer = await broker.rest("GET", f"{EAST}/namespaceIsolationPolicies/{path}")
        assert (answer.status, answer.json["reason"]) == (
            404,
            "NamespaceIsolationPolicies for cluster east does not exist",
        )


async def test_an_expression_that_is_made_to_take_for_ever_does_not(broker: MemoryBroker) -> None:
    policy = {**ISOLATION, "primary": ["(a+)+b"]}
    assert (await broker.rest("POST", f"{EAST}/namespaceIsolationPolicies/p", policy)).status == 204
    path = f"{EAST}/namespaceIsolationPolicies/brokers/{'a' * 200}"
    assert (await broker.rest("GET", path)).json["namespaceRegex"] == []


async def test_where_a_cluster_moved_is_kept(broker: MemoryBroker) -> None:
    path = f"{EAST}/migrate"
    assert (await broker.rest("GET", path)).status == 404
    urls = {"serviceUrl": "http://x:1", "brokerServiceUrl": "pulsar://x:2"}
    assert (await broker.rest("POST", f"{path}?migrated=true", urls)).status == 200
    assert (await broker.rest("GET", path)).json == {"migrated": True, "migratedClusterUrl": {**urls, "empty": False}}
    assert (await broker.rest("POST", f"{path}?migrated=false", {})).status == 200
    assert (await broker.rest("GET", path)).json == {"migrated": False, "migratedClusterUrl": {"empty": True}}
    assert (await broker.rest("POST", "/clusters/nowhere/migrate", urls)).status == 404
    assert (await broker.rest("POST", path)).status == 400


async def test_a_cluster_that_is_made_again_has_nothing_of_the_former_one(broker: MemoryBroker) -> None:
    await broker.rest("POST", f"{EAST}/failureDomains/d", {"brokers": ["a:1"]})
    await broker.rest("POST", f"{EAST}/migrate", {})
    assert (await broker.rest("DELETE", EAST)).status == 204
    assert (await broker.rest("PUT", EAST, {})).status == 200
    assert (await broker.rest("GET", f"{EAST}/failureDomains")).json == {}
    assert (await broker.rest("GET", f"{EAST}/migrate")).status == 404


async def test_the_bundles_of_loaded_topics_are_owned(broker: MemoryBroker) -> None:
    path = "/brokers/standalone/127.0.0.1:8080/ownedNamespaces"
    await broker.topic("t")
    owned = (await broker.rest("GET", path)).json
    assert owned["public/default/0x80000000_0xc0000000"] == {
        "broker_assignment": "shared",
        "is_controlled": False,
        "is_active": True,
    }
    assert (await broker.rest("GET", "/brokers/standalone/other:1/ownedNamespaces")).status == 404


async def test_a_broker_tells_where_its_metadata_is(broker: MemoryBroker) -> None:
    shown = (await broker.rest("GET", "/brokers/internal-configuration")).json
    assert shown["metadataStoreUrl"] == shown["zookeeperServers"]
    assert shown["ledgersRootPath"] == "/managed-ledgers"


async def test_health_may_be_asked_of_this_broker_by_its_id(broker: MemoryBroker) -> None:
    assert await broker.rest("GET", "/brokers/health?brokerId=127.0.0.1:8080") == (200, "ok")
    assert (await broker.rest("GET", "/brokers/health?brokerId=other:1")).status == 404


async def test_a_broker_is_stopped_by_whoever_runs_it(broker: MemoryBroker) -> None:
    assert (await broker.rest("POST", "/brokers/shutdown")).status == 405
    asked = asyncio.Event()
    broker.service.request_stop = asked.set
    assert (await broker.rest("POST", "/brokers/shutdown?maxConcurrentUnloadPerSec=10")).status == 204
    assert broker.service.handovers_per_s == 10
    assert asked.is_set()


async def test_quotas_have_a_default_and_one_for_each_bundle(broker: MemoryBroker) -> None:
    own = "/resource-quotas/public/default/0x00000000_0x40000000"
    assert (await broker.rest("GET", "/resource-quotas")).json == QUOTA
    assert (await broker.rest("GET", own)).json == QUOTA
    assert (await broker.rest("DELETE", own)).status == 404
    assert (await broker.rest("POST", own, {"msgRateIn": 10, "dynamic": False})).status == 204
    nothing = dict.fromkeys(("msgRateIn", "msgRateOut", "bandwidthIn", "bandwidthOut", "memory"), 0.0)
    assert (await broker.rest("GET", own)).json == {**nothing, "msgRateIn": 10.0, "dynamic": False}
    assert (await broker.rest("DELETE", own)).status == 204
    assert (await broker.rest("POST", "/resource-quotas", {"memory": 1})).status == 204
    assert (await broker.rest("GET", own)).json == {**nothing, "memory": 1.0, "dynamic": True}
    assert (await broker.rest("POST", "/resource-quotas")).status == 204
    assert (await broker.rest("GET", "/resource-quotas")).json == QUOTA
    assert (await broker.rest("GET", "/resource-quotas/public/default/0x00000000_0x50000000")).status == 412
    assert (await broker.rest("POST", "/resource-quotas", [1])).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/bookies/racks-info/b:3181", 404),
        ("GET", "/worker/cluster", 409),
        ("GET", "/worker-stats/metrics", 409),
        ("GET", "/functions/public/default", 409),
        ("DELETE", "/worker/cluster", 409),
    ],
)
async def test_what_is_not_served_says_why(broker: MemoryBroker, method: str, path: str, status: int) -> None:
    answer = await broker.rest(method, path)
    assert answer.status == status
    assert answer.json["reason"]


async def test_rack_of_bookie_cannot_be_changed(broker: MemoryBroker) -> None:
    answer = await broker.rest("POST", "/bookies/racks-info/b:3181?group=g")
    assert answer.status == (404 if broker.service.ledgers.store.bookies() is None else 405)
    assert "b:3181" in answer.json["reason"]


async def test_there_are_no_bookies(broker: MemoryBroker) -> None:
    assert (await broker.rest("GET", "/bookies/all")).json == {"bookies": []}
    assert (await broker.rest("GET", "/bookies/racks-info")).json == {}


async def test_a_client_that_asks_too_often_is_told_so() -> None:
    async with memory_broker(http_requests_limit_enabled=True, http_requests_max_per_second=2.0) as broker:
        statuses = [(await broker.rest("GET", "/clusters")).status for _ in range(6)]
        assert statuses[:2] == [200, 200]
        assert statuses[-1] == 429
