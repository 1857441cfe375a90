"""The whole broker's figures below `/admin/v2/broker-stats`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.admin.server import measure_health
from pybroker.runtime.tasks import TaskOwner

TOPIC = "persistent://public/default/t"
BASE = "/broker-stats"


def without_own_topics() -> AbstractAsyncContextManager[MemoryBroker]:
    """Start a broker that loads no `__change_events`, which with ledgers on BookKeeper would be in its figures, too."""
    return memory_broker(system_topic_enabled=False)


async def busy_topic(broker: MemoryBroker) -> None:
    """Ten messages in ten seconds, all delivered."""
    topic = await broker.topic(TOPIC)
    peer = RecordingPeer()
    await broker.consumer(topic, "s", peer)
    await broker.end_window(60)
    await broker.publish(topic, 10)
    await broker.until(lambda: len(peer.delivered) == 10)
    broker.producer(topic, RecordingPeer())
    await broker.end_window(10)


async def test_topics_stand_below_namespace_bundle_and_domain() -> None:
    async with without_own_topics() as broker:
        await busy_topic(broker)
        await broker.topic("persistent://public/default/other")
        tree = (await broker.rest("GET", f"{BASE}/topics")).json
        (bundles,) = tree.values()
        topics = {name: stats for domains in bundles.values() for name, stats in domains["persistent"].items()}
        assert set(topics) == {TOPIC, "persistent://public/default/other"}
        stats = topics[TOPIC]
        assert (stats["msgInCount"], stats["msgOutCount"], stats["msgRateIn"], stats["producerCount"]) == (10, 10, 1, 1)
        subscription = stats["subscriptions"]["s"]
        assert (subscription["msgBacklog"], subscription["type"], subscription["unackedMessages"]) == (10, "Shared", 10)
        assert subscription["consumers"][0]["consumerName"] == "c"
        assert stats["publishers"][0]["producerName"] == "p"
        operations = (await broker.rest("GET", f"{BASE}/bookieops")).json
        assert set(operations["public/default"]) == set(topics)
        assert set(operations["public/default"][TOPIC].values()) == {0}


async def test_without_topics_the_trees_are_empty() -> None:
    async with memory_broker() as broker:
        for what in ("topics", "bookieops"):
            assert (await broker.rest("GET", f"{BASE}/{what}")).json == {}


async def test_the_load_report_sums_up_bundles_and_measures_the_machine() -> None:
    async with without_own_topics() as broker:
        await busy_topic(broker)
        report = (await broker.rest("GET", f"{BASE}/load-report")).json
        found = [report[name] for name in ("numTopics", "numBundles", "numConsumers", "numProducers", "msgRateIn")]
        assert found == [1, 1, 1, 1, 1]
        (bundle,) = report["bundles"]
        assert bundle.startswith("public/default/0x")
        assert report["lastStats"][bundle]["topics"] == 1
        assert report["webServiceUrl"] == "http://127.0.0.1:8080"
        assert set(report["cpu"]) == {"usage", "limit"}
        assert report["cpu"]["limit"] >= 100
        assert 0 < report["memory"]["usage"] < report["memory"]["limit"]
        assert 0 <= report["maxResourceUsage"] <= 1
        assert report["loadReportType"] == "LocalBrokerData"


async def test_metrics_come_in_groups_with_what_they_are_about() -> None:
    async with without_own_topics() as broker:
        await busy_topic(broker)
        groups = (await broker.rest("GET", f"{BASE}/metrics")).json
        by_metric = {group["dimensions"].get("metric"): group["metrics"] for group in groups}
        assert by_metric["broker_connection"]["brk_active_connections"] == 0
        assert by_metric["broker_health"] == {"brk_health": -1}
        assert set(by_metric["loadBalancing"]) >= {"brk_lb_cpu_usage", "brk_lb_memory_usage"}
        # Nothing was loaded in the last window.
        assert by_metric["pulsar_topic_load_times"]["brk_topic_load_time_mean_ms"] == "NaN"
        (ledgers,) = [group for group in groups if "namespace" in group["dimensions"]]
        assert ledgers["dimensions"] == {"namespace": "public/default/persistent"}
        assert ledgers["metrics"]["brk_ml_AddEntrySucceed"] == 10
        assert ledgers["metrics"]["brk_ml_NumberOfMessagesInBacklog"] == 10


async def test_what_only_a_java_broker_has_is_empty_or_refused() -> None:
    async with memory_broker() as broker:
        assert (await broker.rest("GET", f"{BASE}/mbeans")).json == []
        allocator = (await broker.rest("GET", f"{BASE}/allocator-stats/ml-cache")).json
        assert (allocator["directArenas"], allocator["usedDirectMemory"]) == ([], 0)
        assert (await broker.rest("GET", f"{BASE}/allocator-stats/other")).status == 406
        refused = await broker.rest("GET", f"{BASE}/broker-resource-availability/public/default")
        assert refused.status == 409


@pytest.mark.parametrize("is_well", [True, False])
async def test_the_health_metric_says_what_the_last_check_found(is_well: bool) -> None:
    async with memory_broker() as broker:
        broker.service.presence.ready = is_well
        tasks = TaskOwner("test")
        tasks.start(measure_health(broker.service, 3600), "health")
        await broker.until(lambda: broker.service.runtime.stats.is_healthy is not None)
        await tasks.close()
        broker.service.presence.ready = True
        groups = (await broker.rest("GET", f"{BASE}/metrics")).json
        found = [group["metrics"] for group in groups if group["dimensions"].get("metric") == "broker_health"]
        assert found == [{"brk_health": int(is_well)}]
