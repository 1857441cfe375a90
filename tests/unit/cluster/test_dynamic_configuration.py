"""Settings that are changed at run time: in force at once, stored, and taken back."""

from __future__ import annotations

import pytest

from pybroker.cluster.dynamic_configuration import DynamicConfiguration
from pybroker.config import BrokerConfig, ConfigError, KeyInfo, Value
from pybroker.errors import AdminError, StoreError
from pybroker.metadata import paths
from pybroker.metadata.memory import MemoryMetadataStore

KEY = "maxConcurrentLookupRequest"


class FailingStore(MemoryMetadataStore):
    async def put(self, path: str, value: bytes, expected_version: int = -1) -> int:
        raise StoreError("the disk is gone")


async def test_a_change_is_in_force_told_and_there_again_after_a_restart() -> None:
    store, config, told = MemoryMetadataStore(), BrokerConfig(), list[str]()
    dynamic = DynamicConfiguration(config, store)
    dynamic.listen(lambda key: told.append(f"{key.key}={config.max_concurrent_lookup_request}"))
    await dynamic.set(KEY, " 7 ")
    assert config.max_concurrent_lookup_request == 7
    assert dynamic.overrides() == {KEY: " 7 "}
    again = BrokerConfig(max_concurrent_lookup_request=9)
    restarted = DynamicConfiguration(again, store)
    await restarted.load()
    assert again.max_concurrent_lookup_request == 7
    await restarted.unset(KEY)
    assert (again.max_concurrent_lookup_request, restarted.overrides()) == (9, {})
    assert told == [f"{KEY}=7"]


async def test_a_key_that_was_changed_twice_goes_back_to_what_it_was_at_the_start() -> None:
    config = BrokerConfig(max_concurrent_lookup_request=9)
    dynamic = DynamicConfiguration(config, MemoryMetadataStore())
    for text in ("7", "8"):
        await dynamic.set(KEY, text)
    await dynamic.unset(KEY)
    await dynamic.unset(KEY)
    assert config.max_concurrent_lookup_request == 9


@pytest.mark.parametrize(
    ("key", "text", "status"),
    [
        ("brokerServicePort", "1", 412),
        ("nonesuch", "1", 412),
        ("loadBalancerSheddingEnabled", "true", 412),  # dynamic in Pulsar, without effect here
        (KEY, "many", 400),
        (KEY, "0", 400),
        ("logLevel", "loud", 400),
    ],
)
async def test_what_cannot_be_changed_is_refused_and_changes_nothing(key: str, text: str, status: int) -> None:
    config = BrokerConfig()
    dynamic = DynamicConfiguration(config, MemoryMetadataStore())
    with pytest.raises(AdminError) as refused:
        await dynamic.set(key, text)
    assert refused.value.status == status
    assert (config, dynamic.overrides()) == (BrokerConfig(), {})


async def test_who_needs_more_than_a_type_is_asked_first() -> None:
    def refuse(value: Value) -> None:
        raise ConfigError(f"{value} is too much")

    config = BrokerConfig()
    dynamic = DynamicConfiguration(config, MemoryMetadataStore())
    dynamic.check(KEY, refuse)
    with pytest.raises(AdminError, match="7 is too much"):
        await dynamic.set(KEY, "7")
    assert config == BrokerConfig()


async def test_a_change_that_is_not_stored_is_not_in_force() -> None:
    config, told = BrokerConfig(), list[KeyInfo]()
    dynamic = DynamicConfiguration(config, FailingStore())
    dynamic.listen(told.append)
    with pytest.raises(StoreError):
        await dynamic.set(KEY, "7")
    assert (config, dynamic.overrides(), told) == (BrokerConfig(), {}, [])


async def test_a_stored_override_that_fits_no_more_is_left_alone() -> None:
    store, config = MemoryMetadataStore(), BrokerConfig()
    stored = b'{"brokerServicePort":"1","maxConcurrentLookupRequest":"many","maxConcurrentTopicLoadRequest":"3"}'
    await store.put(paths.DYNAMIC_CONFIGURATION, stored)
    dynamic = DynamicConfiguration(config, store)
    await dynamic.load()
    assert config == BrokerConfig(max_concurrent_topic_load_request=3)
    assert len(dynamic.overrides()) == 3


async def test_overrides_that_cannot_be_read_stop_the_start() -> None:
    store = MemoryMetadataStore()
    await store.put(paths.DYNAMIC_CONFIGURATION, b"[]")
    with pytest.raises(StoreError, match="cannot be read"):
        await DynamicConfiguration(BrokerConfig(), store).load()
