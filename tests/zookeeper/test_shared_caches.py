"""Caches of two brokers on one ZooKeeper: they end equal, whatever both change and however often connections are lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.support.frame_proxy import FrameProxy, frame_proxy
from tests.support.shared_caches import Caches, RandomChanges
from tests.support.waiting import until

from pybroker.errors import StoreError
from pybroker.metadata import metadata_paths
from pybroker.metadata.resource_groups import ResourceGroupChange
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.model.names import NamespaceName, TopicName
from pybroker.model.policies import NamespacePolicies
from pybroker.zookeeper import ClientOptions, ServerAddresses

SEED = 29


@asynccontextmanager
async def caches_of(addresses: ServerAddresses, proxy: FrameProxy) -> AsyncIterator[Caches]:
    proxied = ServerAddresses((("127.0.0.1", proxy.port),), addresses.chroot)
    store = await ZooKeeperMetadataStore.open(proxied, ClientOptions(session_timeout_ms=2000), 30)
    caches = Caches(store)
    await caches.load()
    try:
        yield caches
    finally:
        await caches.refresher.close()
        await store.close()


async def test_change_by_one_broker_reaches_the_other(chroot: ServerAddresses) -> None:
    async with (
        frame_proxy(*chroot.servers[0]) as proxy,
        caches_of(chroot, proxy) as one,
        caches_of(chroot, proxy) as two,
    ):
        await one.resources.bootstrap("c1")
        namespace = NamespaceName("public", "default")
        await until(lambda: two.resources.namespace(namespace) is not None)

        def set_ttl(policies: NamespacePolicies) -> None:
            policies.message_ttl_in_seconds = 5

        await one.resources.update_namespace(namespace, set_ttl)
        await one.groups.put("g", ResourceGroupChange(publishRateInMsgs=7))
        await one.dynamic.set("brokerShutdownTimeoutMs", "123")
        await one.partitioned.create(TopicName.parse("persistent://public/default/a%2Fb"), 3)
        await until(lambda: two.content() == one.content())
        assert two.content()["dynamic"] == {"brokerShutdownTimeoutMs": "123"}


async def test_damaged_document_is_reported_and_harms_no_other(
    chroot: ServerAddresses, caplog: pytest.LogCaptureFixture
) -> None:
    async with frame_proxy(*chroot.servers[0]) as proxy, caches_of(chroot, proxy) as one:
        await one.resources.bootstrap("c1")
        broken, sound = NamespaceName("public", "default"), NamespaceName("pulsar", "system")
        await one.store.put(metadata_paths.policies(broken), b"{not JSON")
        await one.store.put(metadata_paths.partitioned_topic(TopicName.parse("persistent://public/default/t")), b"[")
        await one.store.put(metadata_paths.resource_group("g"), b"\xff")
        await one.store.put(metadata_paths.DYNAMIC_CONFIGURATION, b"7")
        await until(lambda: "metadata.document_unreadable" in caplog.text and one.refresher.pending == 0)
        assert one.resources.namespace(broken) is not None, "the former policies stay in force"
        assert one.resources.namespace(sound) is not None
        async with caches_of(chroot, proxy) as two:
            assert two.resources.namespace(broken) is None
            assert two.resources.namespace(sound) is not None
            with pytest.raises(StoreError, match="/admin/policies/public/default"):
                await two.resources.update_namespace(broken, lambda policies: None)


async def disturb(proxies: list[FrameProxy], source: random.Random) -> None:
    """Cut, refuse and freeze connections until cancelled; some freezes outlast the session."""
    while True:
        await asyncio.sleep(source.uniform(0.05, 0.3))
        proxy = source.choice(proxies)
        kind = source.random()
        if kind < 0.6:
            proxy.cut()
        elif kind < 0.8:
            proxy.refuse()
            await asyncio.sleep(source.uniform(0, 0.3))
            await proxy.start()
        else:
            proxy.freeze()
            await asyncio.sleep(source.choice([0.1, 0.5, 2.5]))
            proxy.thaw()


@pytest.mark.parametrize("changes", [100, pytest.param(1000, marks=pytest.mark.long)])
async def test_random_changes_with_lost_connections_end_in_equal_caches(chroot: ServerAddresses, changes: int) -> None:
    source = random.Random(SEED)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(frame_proxy(*chroot.servers[0]))
        second = await stack.enter_async_context(frame_proxy(*chroot.servers[0]))
        one = await stack.enter_async_context(caches_of(chroot, first))
        two = await stack.enter_async_context(caches_of(chroot, second))
        await one.resources.bootstrap("c1")
        await until(lambda: two.resources.cluster("c1") is not None)
        disturbing = asyncio.ensure_future(disturb([first, second], source))
        unknown = 0
        brokers = [RandomChanges(one, source), RandomChanges(two, source)]
        for _ in range(changes // 2):
            results = await asyncio.gather(*(broker.step() for broker in brokers), return_exceptions=True)
            for result in results:
                if isinstance(result, StoreError):
                    unknown += 1  # the answer was lost and the value has changed since
                elif isinstance(result, BaseException):
                    raise result
        disturbing.cancel()
        await asyncio.wait([disturbing])
        for proxy in (first, second):
            proxy.thaw()
            if proxy.is_refusing:
                await proxy.start()
        await until(lambda: one.store.holds_session() and two.store.holds_session())
        await asyncio.gather(one.store.sync(), two.store.sync())
        await until(lambda: one.refresher.pending == two.refresher.pending == 0)
        await until(lambda: one.content() == two.content())
        fresh_address = ServerAddresses(chroot.servers, chroot.chroot)
        store = await ZooKeeperMetadataStore.open(fresh_address, ClientOptions(session_timeout_ms=10_000), 30)
        fresh = Caches(store)
        for cache in (fresh.resources, fresh.partitioned, fresh.groups, fresh.dynamic):
            await cache.load()
        assert one.content() == fresh.content()
        assert unknown < changes / 4
        await store.close()
