"""Each operation of the store, with the connection lost at each of its frames, before the server and after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
from tests.support.frame_proxy import Direction, FrameProxy, frame_proxy
from tests.zookeeper.conftest import make_chroot

from pybroker.errors import BadVersionError, UnknownOutcome
from pybroker.metadata.metadata_store import NOT_EXISTING, Delete, Put, Versioned
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.zookeeper import ClientOptions, ServerAddresses

_numbers = count()
MAX_FRAMES = 20
PING = (-2).to_bytes(4, "big", signed=True)

Act = Callable[[ZooKeeperMetadataStore, ZooKeeperMetadataStore], Awaitable[None]]


async def put_new(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    assert await store.put("/a/b/c", b"1", NOT_EXISTING) == 0
    assert await direct.get("/a/b/c") == Versioned(b"1", 0)


async def put_over_inner_node(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    await direct.put("/a/b", b"x")
    version = await store.put("/a", b"1", NOT_EXISTING)
    assert await direct.get("/a") == Versioned(b"1", version)


async def put_at_version(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    await direct.put("/a", b"1")
    assert await store.put("/a", b"2", 0) == 1
    with pytest.raises(BadVersionError):
        await store.put("/a", b"3", 0)
    assert await direct.get("/a") == Versioned(b"2", 1)


async def put_at_any_version(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    await store.put("/a", b"1")
    version = await store.put("/a", b"2")
    assert await direct.get("/a") == Versioned(b"2", version)


async def delete(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    await direct.put("/a", b"1")
    assert await store.delete("/a", 0)
    assert await direct.get("/a") is None
    assert not await store.delete("/a")


async def delete_value_with_children(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    await direct.put("/a", b"1")
    await direct.put("/a/b", b"1")
    assert await store.delete("/a")
    assert await direct.get("/a") is None
    assert await direct.get("/a/b") == Versioned(b"1", 0)


async def delete_tree(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    for path in ("/t", "/t/a", "/t/a/b", "/t2"):
        await direct.put(path, b"1")
    await store.delete_tree("/t")
    assert await direct.children("/") == ["t2"]


async def change_together(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    await direct.put("/a", b"1")
    await direct.put("/b", b"1")
    assert await store.change_together([Put("/a", b"2", 0), Put("/x/y", b"1", NOT_EXISTING), Delete("/b", 0)]) == [
        1,
        0,
        None,
    ]
    assert await direct.values_of(["/a", "/x/y", "/b"]) == [Versioned(b"2", 1), Versioned(b"1", 0), None]


async def session_values(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    assert await store.put_for_session("/s/own", b"1") == 0
    with pytest.raises(BadVersionError):
        await store.put_for_session("/s/own", b"1")
    first = await store.create_sequential("/q/-", b"", for_session=True)
    assert await store.create_sequential("/q/-", b"", for_session=True) > first


async def reads(store: ZooKeeperMetadataStore, direct: ZooKeeperMetadataStore) -> None:
    for path in ("/r/a", "/r/b/c"):
        await direct.put(path, b"1")
    assert await store.get("/r/a") == Versioned(b"1", 0)
    assert await store.children("/r") == ["a", "b"]
    assert await store.values_of(["/r/a", "/none"]) == [Versioned(b"1", 0), None]
    assert [path for path, _ in await store.values_below("/r", "", 10)] == ["/r/a", "/r/b/c"]
    assert [segments async for segments, _ in store.values_at("/r", 2)] == [["b", "c"]]
    await store.sync()


ACTS = [
    put_new,
    put_over_inner_node,
    put_at_version,
    put_at_any_version,
    delete,
    delete_value_with_children,
    delete_tree,
    change_together,
    session_values,
    reads,
]


class CutOnce:
    """Cuts at one frame of a direction, counted without pings."""

    def __init__(self, direction: Direction, index: int) -> None:
        self._direction = direction
        self._left = index
        self.has_cut = False

    def __call__(self, direction: Direction, body: bytes) -> bool:
        is_counted = direction is self._direction and not body.startswith(PING)
        if not is_counted or self.has_cut:
            return False
        self.has_cut = self._left == 0
        self._left -= 1
        return self.has_cut


@pytest.fixture
async def proxy(chroot: ServerAddresses) -> AsyncIterator[FrameProxy]:
    async with frame_proxy(*chroot.servers[0]) as started:
        yield started


@pytest.mark.parametrize("direction", list(Direction), ids=lambda direction: direction.value)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_operation_has_its_result_if_connection_is_lost_at_any_frame(
    act: Act, direction: Direction, proxy: FrameProxy, chroot: ServerAddresses
) -> None:
    """One writer, so that the outcome can always be told."""
    options = ClientOptions(session_timeout_ms=10_000)
    for index in range(MAX_FRAMES):
        chroot_of_cut = f"{chroot.chroot}-{next(_numbers)}"
        direct_addresses = ServerAddresses(chroot.servers, chroot_of_cut)
        await make_chroot(direct_addresses)
        direct = await ZooKeeperMetadataStore.open(direct_addresses, options, 30)
        proxied = ServerAddresses((("127.0.0.1", proxy.port),), chroot_of_cut)
        store = await ZooKeeperMetadataStore.open(proxied, options, 30)
        cut = proxy.cut_at = CutOnce(direction, index)
        try:
            await act(store, direct)
            assert store.holds_session()
        finally:
            proxy.cut_at = None
            await store.close()
            await direct.close()
        if not cut.has_cut:
            assert index > 0
            return
    raise AssertionError(f"the operation has more than {MAX_FRAMES} frames")


async def test_put_reports_unknown_outcome_if_value_changed_after_lost_answer(
    proxy: FrameProxy, chroot: ServerAddresses
) -> None:
    options = ClientOptions(session_timeout_ms=10_000)
    direct = await ZooKeeperMetadataStore.open(chroot, options, 30)
    store = await ZooKeeperMetadataStore.open(ServerAddresses((("127.0.0.1", proxy.port),), chroot.chroot), options, 30)
    await direct.put("/a", b"1")
    cut = CutOnce(Direction.ANSWER, 0)

    writing: list[asyncio.Task[int]] = []

    def cut_and_write(direction: Direction, body: bytes) -> bool:
        """Let the other writer change the value before the store can read it back."""
        is_cut = cut(direction, body)
        if is_cut:
            proxy.freeze()
            writing.append(asyncio.ensure_future(direct.put("/a", b"3")))
            writing[0].add_done_callback(lambda _: proxy.thaw())
        return is_cut

    proxy.cut_at = cut_and_write
    with pytest.raises(UnknownOutcome, match="/a"):
        await store.put("/a", b"2", 0)
    assert await writing[0] == 2
    assert await store.get("/a") == Versioned(b"3", 2)
    await store.close()
    await direct.close()
