"""The client against a real ZooKeeper whose connections are cut, frozen and refused, and whose process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from tests.support.frame_proxy import FrameProxy, frame_proxy
from tests.support.waiting import until

from pybroker.zookeeper import (
    ClientOptions,
    ConnectionLoss,
    CreateMode,
    NodeEvent,
    NotSent,
    ServerAddresses,
    SessionEvent,
    SessionState,
    ZooKeeperClient,
)
from pybroker.zookeeper.errors import NoAuth, TooLarge
from pybroker.zookeeper.operations import CREATOR_ACL

TIMEOUT_MS = 2000


@pytest.fixture
async def proxy(chroot: ServerAddresses) -> AsyncIterator[FrameProxy]:
    async with frame_proxy(*chroot.servers[0]) as started:
        yield started


class Recorded:
    """A client with all events of its session and of one recursive watch."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.client = client
        self.session: list[SessionEvent] = []
        self.nodes: list[NodeEvent] = []
        client.listen(self.session.append)


@pytest.fixture
async def recorded(proxy: FrameProxy, chroot: ServerAddresses) -> AsyncIterator[Recorded]:
    addresses = ServerAddresses((("127.0.0.1", proxy.port),), chroot.chroot)
    client = ZooKeeperClient(addresses, ClientOptions(session_timeout_ms=TIMEOUT_MS))
    await client.start(30)
    yield Recorded(client)
    await client.close()


@pytest.fixture
async def direct(chroot: ServerAddresses) -> AsyncIterator[ZooKeeperClient]:
    client = ZooKeeperClient(chroot, ClientOptions(session_timeout_ms=10_000))
    await client.start(30)
    yield client
    await client.close()


async def test_cut_connection_is_taken_up_again_with_session_and_watches(
    recorded: Recorded, direct: ZooKeeperClient, proxy: FrameProxy
) -> None:
    client = recorded.client
    watch = client.watch("/w", recorded.nodes.append, is_recursive=True)
    await watch.added
    await client.create("/own", b"", CreateMode.EPHEMERAL)
    session_id = client.session_id
    proxy.cut()
    await until(lambda: SessionEvent.RECONNECTED in recorded.session)
    assert recorded.session == [SessionEvent.SUSPENDED, SessionEvent.RECONNECTED]
    assert client.session_id == session_id
    assert await direct.exists("/own") is not None
    await direct.create("/w/a", b"", makes_parents=True)
    await until(lambda: len(recorded.nodes) == 2)
    assert [event.path for event in recorded.nodes] == ["/w", "/w/a"]


async def test_frozen_connection_loses_the_session_by_the_client_own_clock_first(
    recorded: Recorded, direct: ZooKeeperClient, proxy: FrameProxy
) -> None:
    client = recorded.client
    await client.create("/own", b"", CreateMode.EPHEMERAL)
    existed: list[bool] = []

    def note(event: SessionEvent) -> None:
        if event is SessionEvent.LOST:
            assert not client.holds_session()
            existed.append(True)

    client.listen(note)
    proxy.freeze()
    waiting = asyncio.ensure_future(client.get("/own"))
    await until(lambda: SessionEvent.LOST in recorded.session)
    with pytest.raises((ConnectionLoss, NotSent)):
        await waiting
    assert client.state is SessionState.LOST
    proxy.thaw()
    await until(lambda: SessionEvent.RENEWED in recorded.session)
    assert client.holds_session()

    async def is_gone() -> bool:
        return await direct.exists("/own") is None

    for _ in range(200):
        if await is_gone():
            break
        await asyncio.sleep(0.05)
    assert await is_gone(), "the ephemeral node of the lost session"
    assert existed == [True]


async def test_requests_wait_for_a_refusing_server_and_fail_as_not_sent(
    proxy: FrameProxy, chroot: ServerAddresses
) -> None:
    addresses = ServerAddresses((("127.0.0.1", proxy.port),), chroot.chroot)
    client = ZooKeeperClient(addresses, ClientOptions(session_timeout_ms=10_000, operation_timeout_ms=300))
    await client.start(30)
    proxy.refuse()
    await until(lambda: client.state is SessionState.SUSPENDED)
    with pytest.raises(NotSent, match="not sent to ZooKeeper within 300 ms"):
        await client.create("/late", b"")
    waiting = asyncio.ensure_future(client.create("/soon", b""))
    await asyncio.sleep(0)
    await proxy.start()
    with suppress(NotSent):
        await waiting
        assert await client.exists("/soon") is not None
    assert await client.exists("/late") is None
    await client.close()
    with pytest.raises(NotSent, match="closed"):
        await client.get("/soon")


async def test_server_that_does_not_answer_is_reported_after_the_deadline(proxy: FrameProxy) -> None:
    proxy.freeze()
    client = ZooKeeperClient(
        ServerAddresses((("127.0.0.1", proxy.port),)), ClientOptions(session_timeout_ms=TIMEOUT_MS)
    )
    with pytest.raises(ConnectionLoss, match="the server does not answer"):
        await client.start(1.5)


async def test_other_server_is_tried(chroot: ServerAddresses) -> None:
    async with frame_proxy(*chroot.servers[0]) as gone:
        await gone.close()
        addresses = ServerAddresses((("127.0.0.1", gone.port), *chroot.servers), chroot.chroot)
        client = ZooKeeperClient(addresses, ClientOptions(session_timeout_ms=TIMEOUT_MS))
        await client.start(30)
        assert await client.children("/") == []
        await client.close()


async def test_only_the_digest_identity_that_created_a_node_may_change_it(chroot: ServerAddresses) -> None:
    own = ClientOptions(session_timeout_ms=10_000, credentials=(("digest", b"broker:secret"),), acl=CREATOR_ACL)
    client = ZooKeeperClient(chroot, own)
    await client.start(30)
    await client.create("/private", b"1")
    without_credentials = ZooKeeperClient(chroot, ClientOptions(session_timeout_ms=10_000))
    await without_credentials.start(30)
    with pytest.raises(NoAuth):
        await without_credentials.set("/private", b"2")
    again = ZooKeeperClient(chroot, own)
    await again.start(30)
    assert (await again.set("/private", b"2")).version == 1
    for each in (client, without_credentials, again):
        await each.close()


async def test_value_above_the_limit_is_refused_without_a_request(recorded: Recorded) -> None:
    with pytest.raises(TooLarge):
        await recorded.client.create("/large", bytes(1 << 20))
    assert await recorded.client.exists("/large") is None
    assert recorded.session == []


async def test_answer_above_the_limit_fails_alone(chroot: ServerAddresses, direct: ZooKeeperClient) -> None:
    await direct.create("/large", bytes(500_000))
    await direct.create("/small", b"s")
    client = ZooKeeperClient(chroot, ClientOptions(session_timeout_ms=10_000, max_answer_bytes=10_000))
    await client.start(30)
    large, small = await asyncio.gather(client.get("/large"), client.get("/small"), return_exceptions=True)
    assert isinstance(large, TooLarge)
    assert isinstance(small, tuple)
    assert small[0] == b"s"
    await client.close()


async def test_removed_watch_reports_nothing(recorded: Recorded, direct: ZooKeeperClient) -> None:
    watch = recorded.client.watch("/", recorded.nodes.append, is_recursive=False)
    await watch.added
    await direct.create("/a", b"")
    await until(lambda: recorded.nodes)
    assert recorded.nodes == [NodeEvent(recorded.nodes[0].type.CHILDREN_CHANGED, "/")]
    watch.remove()
    recorded.nodes.clear()
    await direct.create("/b", b"")
    await recorded.client.sync("/")
    assert recorded.nodes == []
