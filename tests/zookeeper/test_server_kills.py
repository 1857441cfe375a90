"""A real ZooKeeper that is killed and restarted while brokers use it, with connections cut and frozen: answers stay true."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
from tests.support.frame_proxy import FrameProxy, frame_proxy
from tests.support.shared_caches import Caches, RandomChanges
from tests.support.waiting import until
from tests.support.zookeeper_server import ZooKeeperServer, zookeeper_server

from pybroker.errors import BadVersionError, StoreError, UnknownOutcome
from pybroker.metadata.broker_identity import BROKERS_PATH, BrokerIdentity
from pybroker.metadata.metadata_store import NOT_EXISTING
from pybroker.metadata.session_report import SessionEvent
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.zookeeper import ClientOptions, ServerAddresses, ZooKeeperClient

KILLS = 2
MANY_KILLS = 50
SESSION_MS = 2000
SEED = 290
NAMES = ("one", "two")


class KilledBroker:
    """The shared metadata of one broker: caches, id, and a value that it alone counts up."""

    def __init__(self, name: str, store: ZooKeeperMetadataStore, proxy: FrameProxy) -> None:
        self.name = name
        self.store = store
        self.proxy = proxy
        self.caches = Caches(store)
        self.identity = BrokerIdentity(store, name, f"directory of {name}", {})
        self.answered = -1
        self.lost_sessions: list[int] = []
        self._session_id = 0
        store.listen(self._session_changed)

    @property
    def session_id(self) -> int:
        report = self.store.session_report
        return report.session_id

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            assert not self.store.holds_session()
            self.lost_sessions.append(self._session_id)
        self._session_id = self.session_id

    async def load(self) -> None:
        await self.caches.load()
        await self.identity.claim(30)
        self._session_id = self.session_id

    async def count_up(self) -> None:
        """Put the next number at the known version: it must be accepted, because no other writer exists."""
        path, known = f"/counted/{self.name}", self.answered
        value = str(known + 1).encode()
        try:
            version = await self.store.put(path, value, NOT_EXISTING if known < 0 else known)
        except UnknownOutcome:
            found = await self.store.get(path)
            assert found is None or found.version in (known, known + 1)
            self.answered = -1 if found is None else found.version
        else:
            assert version == known + 1
            self.answered = version


@asynccontextmanager
async def broker(name: str, address: ServerAddresses) -> AsyncIterator[KilledBroker]:
    async with frame_proxy(*address.servers[0]) as proxy:
        proxied = ServerAddresses((("127.0.0.1", proxy.port),))
        options = ClientOptions(session_timeout_ms=SESSION_MS, operation_timeout_ms=5000)
        store = await ZooKeeperMetadataStore.open(proxied, options, 30)
        started = KilledBroker(name, store, proxy)
        await started.load()
        try:
            yield started
        finally:
            await started.identity.close()
            await started.caches.refresher.close()
            await store.close()


async def repeat(act: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await act()
        except BadVersionError:
            raise  # a wrong answer
        except StoreError:
            pass  # unreachable, or an outcome that cannot be told
        await asyncio.sleep(0.01)


async def disturb(proxies: list[FrameProxy], chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.1, 0.6))
        proxy = chance.choice(proxies)
        if chance.random() < 0.6:
            proxy.cut()
            continue
        proxy.freeze()
        try:
            await asyncio.sleep(chance.choice([0.3, 2.5]))
        finally:
            proxy.thaw()


def restart(server: ZooKeeperServer) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.long)])
async def test_killed_server_and_lost_connections_leave_no_wrong_answer_and_no_stale_cache(kills: int) -> None:
    chance = random.Random(SEED)
    with zookeeper_server() as server:
        address = ServerAddresses.parse(server.address)
        async with AsyncExitStack() as stack:
            brokers = [await stack.enter_async_context(broker(name, address)) for name in NAMES]
            await brokers[0].caches.resources.bootstrap("c1")
            stop = asyncio.Event()
            acts = [each.count_up for each in brokers]
            acts += [RandomChanges(each.caches, chance).step for each in brokers]
            working = [asyncio.ensure_future(repeat(act, stop)) for act in acts]
            disturbing = asyncio.ensure_future(disturb([each.proxy for each in brokers], chance))
            for _ in range(kills):
                before = [each.answered for each in brokers]
                await until(partial(_all_above, brokers, before), 0.01)
                await asyncio.to_thread(restart, server)
            disturbing.cancel()
            await asyncio.wait([disturbing])
            for each in brokers:
                each.proxy.thaw()
            stop.set()
            await asyncio.gather(*working)
            await until(lambda: all(each.store.holds_session() for each in brokers), 0.05)
            await _require_rest(address, brokers)


def _all_above(brokers: list[KilledBroker], before: list[int]) -> bool:
    return all(each.answered > answered + 2 for each, answered in zip(brokers, before, strict=True))


def _is_at_rest(each: KilledBroker) -> bool:
    return not each.caches.refresher.pending


async def _require_rest(address: ServerAddresses, brokers: list[KilledBroker]) -> None:
    direct = ZooKeeperClient(address, ClientOptions(session_timeout_ms=10_000))
    await direct.start(30)
    store = await ZooKeeperMetadataStore.open(address, ClientOptions(session_timeout_ms=10_000), 30)
    fresh = Caches(store)
    await fresh.load()
    for each in brokers:
        await each.store.sync()
        await until(partial(_is_at_rest, each), 0.01)
        assert each.caches.content() == fresh.content()
        value, stat = await direct.get(f"/counted/{each.name}")
        assert int(value) == stat.version >= each.answered
        async with asyncio.timeout(30):
            while await _owner(direct, each) != each.session_id:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert each.session_id not in each.lost_sessions
        assert each.identity.conflict == ""
    await fresh.refresher.close()
    await store.close()
    await direct.close()


async def _owner(direct: ZooKeeperClient, each: KilledBroker) -> int:
    stat = await direct.exists(f"{BROKERS_PATH}/{each.name}")
    return 0 if stat is None else stat.ephemeral_owner
