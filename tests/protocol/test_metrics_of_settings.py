"""Metrics that show what was set over REST: resource groups, properties of topics as labels, the metadata store."""

from __future__ import annotations

import asyncio
import urllib.request

from tests.support.memory_broker import MemoryBroker, memory_broker
from tests.support.recording_peer import RecordingPeer

from pybroker.metadata.measured import MeasuredMetadataStore
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore
from pybroker.model.names import TopicName
from pybroker.runtime.clock import Clock
from pybroker.runtime.slow_operations import SlowOperations

TOPIC = "persistent://public/default/t"
GROUP = {"publishRateInMsgs": 100_000, "publishRateInBytes": 1_000_000_000, "dispatchRateInMsgs": 7}


async def page(broker: MemoryBroker) -> dict[str, float]:
    """Every sample, by name and labels."""

    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    lines = (await asyncio.to_thread(get)).splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


async def test_what_a_resource_group_allows_and_what_it_uses_is_shown() -> None:
    async with memory_broker() as broker:
        before = await page(broker)
        assert not any("resource_group" in name for name in before)
        assert (await broker.rest("PUT", "/resourcegroups/g", GROUP)).status == 204
        assert (await broker.rest("PUT", "/resourcegroups/g", {"dispatchRateInMsgs": 70_000})).status == 204
        assert (await broker.rest("POST", "/namespaces/public/default/resourcegroup/g")).status == 204
        topic = await broker.topic(TOPIC)
        peer = RecordingPeer()
        await broker.consumer(topic, "s", peer)
        await broker.end_window(1)
        await broker.publish(topic, 3)
        await broker.until(lambda: len(peer.delivered) == 3)
        await broker.end_window(1)
        assert (await broker.rest("DELETE", "/namespaces/public/default/resourcegroup")).status == 204
        await broker.publish(topic, 5)
        await broker.end_window(1)
        shown = await page(broker)

    def value(metric: str, done: str = "") -> float:
        label = f',MonitoringClass="{done}"' if done else ""
        return shown[f'pulsar_resource_group_{metric}_total{{cluster="standalone",ResourceGroup="g"{label}}}']

    assert (value("calculated_messages_quota", "Publish"), value("calculated_messages_quota", "Dispatch")) == (1e5, 7e4)
    assert (value("calculated_bytes_quota", "Publish"), value("calculated_bytes_quota", "Dispatch")) == (1e9, -1)
    assert (value("messages_used", "Publish"), value("messages_used", "Dispatch")) == (3, 3)
    assert value("bytes_used", "Publish") == value("bytes_used", "Dispatch") > 3 * 80
    assert (value("updates"), value("namespace_registers"), value("namespace_unregisters")) == (1, 1, 1)


async def test_properties_that_the_namespace_names_are_labels_of_a_topic_and_its_subscriptions() -> None:
    async with memory_broker(expose_custom_topic_metric_labels_enabled=True) as broker:
        keys = ["team", "le", "no label", "absent"]
        path = "/namespaces/public/default/allowedTopicPropertyKeysForMetrics"
        assert (await broker.rest("POST", path, keys)).status == 204
        await broker.service.partitioned_operations.create(
            TopicName.parse("persistent://public/default/p"), 1, {"team": 'a "b"'}
        )
        await broker.topic("persistent://public/default/p-partition-0")
        properties = {"team": "red", "le": "1", "no label": "x", "secret": "s"}
        assert (await broker.rest("PUT", "/persistent/public/default/t", properties)).status == 204
        topic = await broker.topic(TOPIC)
        await broker.consumer(topic, "s", RecordingPeer())
        shown = await page(broker)
    begin = f'cluster="standalone",namespace="public/default",topic="{TOPIC}",team="red"'
    assert f"pulsar_rate_in{{{begin}}}" in shown
    assert f'pulsar_subscription_back_log{{{begin},subscription="s"}}' in shown
    assert any('p-partition-0",team="a \\"b\\""' in name for name in shown)
    assert not any("secret" in name or "no label" in name for name in shown)


async def test_operations_of_the_metadata_store_are_shown_when_they_are_measured() -> None:
    async with memory_broker() as broker:
        store = MeasuredMetadataStore(MemoryMetadataStore(), Clock(), SlowOperations(Clock(), 0))
        await store.put("/a", b"123")
        broker.service.metadata_store = store
        shown = await page(broker)
    labels = 'cluster="standalone",name="metadata-store"'
    assert shown[f'pulsar_metadata_store_ops_latency_ms_count{{{labels},type="put",status="success"}}'] == 1
    assert shown[f'pulsar_metadata_store_ops_latency_ms_bucket{{{labels},type="get",status="fail",le="+Inf"}}'] == 0
    assert shown[f"pulsar_metadata_store_put_bytes_total{{{labels}}}"] == 3
