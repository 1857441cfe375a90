"""Settings that are changed at run time: effective at once, stored, and undone."""

from __future__ import annotations

import pytest

from pybroker.cluster.dynamic_configuration import DynamicConfiguration
from pybroker.config import BrokerConfig, ConfigError, KeyInfo, Value
from pybroker.errors import AdminError, StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.memory_metadata_store import MemoryMetadataStore

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


@pytest.mark.parametrize("key", ["brokerServicePort", "nonesuch"])
async def test_what_cannot_be_changed_is_refused_and_changes_nothing(key: str) -> None:
    config = BrokerConfig()
    dynamic = DynamicConfiguration(config, MemoryMetadataStore())
    for refuse in (dynamic.set(key, "1"), dynamic.unset(key)):
        with pytest.raises(AdminError, match="non-dynamic configuration") as refused:
            await refuse
        assert refused.value.status == 412
    assert (config, dynamic.overrides()) == (BrokerConfig(), {})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("loadBalancerLoadSheddingStrategy", "true"),  # dynamic in Pulsar, without effect here
        ("replicationStartAt", "earliest"),  # the same, and unknown here
        (KEY, "many"),
        (KEY, "0"),
        ("logLevel", "loud"),
    ],
)
async def test_what_has_no_effect_is_kept_as_it_is_and_reported_now_and_at_each_start(
    key: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, config, told = MemoryMetadataStore(), BrokerConfig(), list[KeyInfo]()
    dynamic = DynamicConfiguration(config, store)
    dynamic.listen(told.append)
    for other in (dynamic, DynamicConfiguration(config, store)):
        caplog.clear()
        await (dynamic.set(key, text) if other is dynamic else other.load())
        assert (config, other.overrides(), told) == (BrokerConfig(), {key: text}, [])
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert [record.fields["key"] for record in warnings] == [key]  # type: ignore[attr-defined]
    await dynamic.unset(key)
    assert (dynamic.overrides(), await other_overrides(store)) == ({}, {})


async def other_overrides(store: MemoryMetadataStore) -> dict[str, str]:
    """Return the overrides that a new broker finds."""
    restarted = DynamicConfiguration(BrokerConfig(), store)
    await restarted.load()
    return restarted.overrides()


async def test_a_value_that_does_not_fit_in_place_of_one_that_did_leaves_what_was_there_at_the_start() -> None:
    config, told = BrokerConfig(max_concurrent_lookup_request=9), list[int]()
    dynamic = DynamicConfiguration(config, MemoryMetadataStore())
    dynamic.listen(lambda _: told.append(config.max_concurrent_lookup_request))
    for text in ("7", "many", "none", "8"):
        await dynamic.set(KEY, text)
    assert told == [7, 9, 8]
    await dynamic.set(KEY, "many")
    await dynamic.unset(KEY)
    assert config.max_concurrent_lookup_request == 9


async def test_who_needs_more_than_a_type_is_asked_first() -> None:
    def refuse(value: Value) -> None:
        raise ConfigError(f"{value} is too much")

    config = BrokerConfig()
    dynamic = DynamicConfiguration(config, MemoryMetadataStore())
    dynamic.check(KEY, refuse)
    await dynamic.set(KEY, "7")
    assert (config, dynamic.overrides()) == (BrokerConfig(), {KEY: "7"})


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
    await store.put(metadata_paths.DYNAMIC_CONFIGURATION, stored)
    dynamic = DynamicConfiguration(config, store)
    await dynamic.load()
    assert config == BrokerConfig(max_concurrent_topic_load_request=3)
    assert len(dynamic.overrides()) == 3


async def test_overrides_that_cannot_be_read_stop_the_start() -> None:
    store = MemoryMetadataStore()
    await store.put(metadata_paths.DYNAMIC_CONFIGURATION, b"[]")
    with pytest.raises(StoreError, match="cannot be read"):
        await DynamicConfiguration(BrokerConfig(), store).load()
