"""Settings that are changed by REST act on the running broker, each of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.support.memory_broker import MemoryBroker, memory_broker, stored_subscription
from tests.support.recording_peer import RecordingPeer

from pybroker.broker.entry_filters import EntryFilter, FilteredEntry, Verdict
from pybroker.config import KeyInfo, Value, ValueType, format_value
from pybroker.config.dynamic import dynamic_keys

CONFIGURATION = "/brokers/configuration"


class Nothing(EntryFilter):
    """Lets nothing pass."""

    def judge(self, entry: FilteredEntry) -> Verdict:
        return Verdict.REJECT


@pytest.fixture
def log_level() -> Iterator[None]:
    level = logging.getLogger("pybroker").level
    yield
    logging.getLogger("pybroker").setLevel(level)


async def put(broker: MemoryBroker, key: str, value: str) -> None:
    answer = await broker.rest("POST", f"{CONFIGURATION}/{key}/{quote(value, safe='')}")
    assert answer == (200, ""), (key, value)


def another(info: KeyInfo) -> Value:
    """A value that fits and is not the default."""
    if info.key == "entryFilterNames":
        return (f"{__name__}:{Nothing.__name__}",)
    if info.choices:
        return next(choice for choice in info.choices if choice != info.default)
    match info.type:
        case ValueType.BOOL:
            return not info.default
        case ValueType.INT | ValueType.OPTIONAL_INT | ValueType.FLOAT:
            assert info.default is None or isinstance(info.default, int | float)
            more = (info.default or 0) + 1
            fits = info.maximum is None or more <= info.maximum
            return more if fits else info.minimum
        case ValueType.LIST:
            assert isinstance(info.default, tuple)
            return info.default[:1] if len(info.default) > 1 else ("other",)
        case _:
            return f"{info.default}x"


@pytest.mark.parametrize("key", dynamic_keys())
@pytest.mark.usefixtures("log_level")
async def test_every_dynamic_key_is_set_shown_and_taken_back(broker: MemoryBroker, key: str) -> None:
    topic = await broker.topic("t")
    await broker.consumer(topic, "s", RecordingPeer())
    info = dynamic_keys()[key]
    before = (await broker.rest("GET", f"{CONFIGURATION}/runtime")).json
    wanted = format_value(another(info))
    await put(broker, key, wanted)
    shown = "*****" if info.secret else wanted
    assert (await broker.rest("GET", f"{CONFIGURATION}/values")).json == {key: shown}
    changed = (await broker.rest("GET", f"{CONFIGURATION}/runtime")).json
    assert {name for name in changed if changed[name] != before[name]} == {key}
    assert getattr(broker.service.runtime.config, info.field) == another(info)
    assert await broker.publish(topic, 1)
    assert await broker.rest("DELETE", f"{CONFIGURATION}/{key}") == (200, "")
    assert (await broker.rest("GET", f"{CONFIGURATION}/runtime")).json == before


async def test_names_that_can_be_changed_are_listed(broker: MemoryBroker) -> None:
    names = (await broker.rest("GET", CONFIGURATION)).json
    assert "dispatchThrottlingRatePerTopicInMsg" in names
    assert "brokerServicePort" not in names


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "brokerServicePort/1", 412),
        ("POST", "nonesuch/1", 412),
        ("DELETE", "brokerServicePort", 412),
        ("POST", "maxConcurrentLookupRequest/1/2", 404),
        ("POST", "maxConcurrentLookupRequest", 405),
    ],
)
async def test_what_cannot_be_changed_is_refused(broker: MemoryBroker, method: str, path: str, status: int) -> None:
    assert (await broker.rest(method, f"{CONFIGURATION}/{path}")).status == status
    assert (await broker.rest("GET", f"{CONFIGURATION}/values")).json == {}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("maxConcurrentLookupRequest", "many"),
        ("entryFilterNames", "nothing:nowhere"),
        ("loadBalancerSheddingEnabled", "x"),
        ("managedLedgerForceRecovery", "true"),
    ],
)
async def test_what_pulsar_takes_is_kept_and_what_is_in_force_stays_shown(
    broker: MemoryBroker, key: str, text: str
) -> None:
    before = (await broker.rest("GET", f"{CONFIGURATION}/runtime")).json
    assert key in (await broker.rest("GET", CONFIGURATION)).json
    await put(broker, key, text)
    assert (await broker.rest("GET", f"{CONFIGURATION}/values")).json == {key: text}
    assert (await broker.rest("GET", f"{CONFIGURATION}/runtime")).json == before
    assert await broker.rest("DELETE", f"{CONFIGURATION}/{key}") == (200, "")
    assert (await broker.rest("GET", f"{CONFIGURATION}/values")).json == {}


async def test_default_policies_reach_loaded_topics(broker: MemoryBroker) -> None:
    topic = await broker.topic("t")
    consumer = await broker.consumer(topic, "s", RecordingPeer())
    assert topic.shared.dispatch_rate_limit is None
    await put(broker, "dispatchThrottlingRatePerTopicInMsg", "5")
    await broker.until(lambda: topic.shared.dispatch_rate_limit is not None)
    await broker.rest("DELETE", f"{CONFIGURATION}/dispatchThrottlingRatePerTopicInMsg")
    await broker.until(lambda: topic.shared.dispatch_rate_limit is None)
    await put(broker, "dispatchThrottlingRateInMsg", "5")
    await broker.until(lambda: stored_subscription(consumer.subscription).throttle is not None)
    limit = broker.service.broker_context.dispatch_rate_limit
    await put(broker, "allowAutoSubscriptionCreation", "false")
    assert broker.service.broker_context.dispatch_rate_limit is limit  # What it has counted stays.
    await broker.until(lambda: not topic.policies.auto_subscription_creation.allowAutoSubscriptionCreation)


async def test_an_entry_filter_is_asked_on_subscriptions_that_exist(broker: MemoryBroker) -> None:
    topic, peer = await broker.topic("t"), RecordingPeer()
    await broker.consumer(topic, "s", peer)
    await broker.publish(topic, 1)
    await broker.until(lambda: len(peer.delivered) == 1)
    await put(broker, "entryFilterNames", f"{__name__}:{Nothing.__name__}")
    await broker.publish(topic, 1)
    await broker.until(lambda: topic.subscriptions["s"].counters.filter_rejected == 1)
    await broker.rest("DELETE", f"{CONFIGURATION}/entryFilterNames")
    await broker.publish(topic, 1)
    await broker.until(lambda: len(peer.delivered) == 2)


async def test_a_namespace_gets_as_many_bundles_as_is_said_now(broker: MemoryBroker) -> None:
    await put(broker, "defaultNumberOfNamespaceBundles", "6")
    await broker.rest("PUT", "/namespaces/public/six")
    assert (await broker.rest("GET", "/namespaces/public/six/bundles")).json["numBundles"] == 6


async def test_a_smaller_cache_lets_go_at_once(broker: MemoryBroker) -> None:
    topic = await broker.topic("t")
    await broker.consumer(topic, "s", RecordingPeer())  # Somebody reads at the end.
    for _ in range(3):
        await broker.publish(topic, 1)
    cache = broker.service.ledgers.cache
    assert cache.entry_count == 3
    await put(broker, "managedLedgerCacheSizeMB", "0")
    assert cache.entry_count <= 1


async def test_idle_ledgers_are_closed_as_is_said_now(broker: MemoryBroker) -> None:
    await put(broker, "managedLedgerInactiveLedgerRolloverTimeSeconds", "3")
    assert broker.service.ledgers.resources.limits.inactive_rollover_ms == 3000


@pytest.mark.usefixtures("log_level")
async def test_the_level_of_the_log_follows(broker: MemoryBroker) -> None:
    await put(broker, "logLevel", "error")
    assert logging.getLogger("pybroker").level == logging.ERROR


async def test_limits_of_the_broker_hold_from_the_next_request_on(broker: MemoryBroker) -> None:
    await put(broker, "httpRequestsFailOnUnknownPropertiesEnabled", "true")
    body = {"allowedClusters": ["standalone"], "colour": "red"}
    assert (await broker.rest("PUT", "/tenants/acme", body)).status == 400
    await put(broker, "httpRequestsFailOnUnknownPropertiesEnabled", "false")
    assert (await broker.rest("PUT", "/tenants/acme", body)).status == 204


async def test_a_superuser_is_made_and_unmade() -> None:
    async with memory_broker() as broker:
        authorization = broker.service.broker_context.authorization
        authorization.enabled = True
        assert not await authorization.may_all("new")
        await broker.service.dynamic.set("superUserRoles", "boss,new")
        assert await authorization.may_all("new")
        await broker.service.dynamic.unset("superUserRoles")
        assert not await authorization.may_all("new")
