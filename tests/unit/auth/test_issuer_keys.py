"""Keys of an issuer: when they are fetched, kept and dropped, and what waits for a fetch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.identity_provider import new_key, public_jwk

from pybroker.auth.openid import issuer_keys
from pybroker.auth.openid.issuer_keys import DISCOVERY_PATH, FAILURE_PAUSE_S, IssuerKeys, KeyTimes
from pybroker.auth.openid.json_download import DownloadFailed, url_problem
from pybroker.errors import AuthenticationError, TooManyRequests
from pybroker.runtime.clock import Clock
from pybroker.runtime.tasks import TaskOwner

ISSUER = "https://idp.example/realm"
KEYS_URL = "https://idp.example/keys"
TIMES = KeyTimes(refresh_s=100, expiry_s=200, unknown_key_s=30)


class ManualClock(Clock):
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_ms(self) -> float:
        return self.now_s * 1000


class World:
    """An issuer's keys, with a clock and a network that the test controls."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tasks = TaskOwner("test")
        self.fetches = 0
        self.key_ids = ["a"]
        self.discovery: dict[str, object] = {"issuer": ISSUER, "jwks_uri": KEYS_URL}
        self.failure: Exception | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.keys = IssuerKeys(ISSUER, TIMES, self.url_problem, self.download, self.clock, self.tasks)

    @staticmethod
    def url_problem(url: str) -> str:
        return url_problem(url, requires_https=True)

    async def download(self, url: str) -> dict[str, object]:
        await self.may_go_on.wait()
        if self.failure is not None:
            raise self.failure
        if url == ISSUER + DISCOVERY_PATH:
            return self.discovery
        assert url == KEYS_URL
        self.fetches += 1
        return {"keys": [public_jwk(new_key("ES256"), each, "ES256") for each in self.key_ids]}

    async def has(self, key_id: str) -> bool:
        try:
            await self.keys.key(key_id)
        except AuthenticationError:
            return False
        return True

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert not len(self.tasks)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    yield found
    await found.tasks.close()


async def test_tokens_that_arrive_at_once_share_one_fetch(world: World) -> None:
    assert await asyncio.gather(*(world.has("a") for _ in range(50))) == [True] * 50
    assert world.fetches == 1
    assert await world.has("a")
    assert world.fetches == 1


async def test_old_keys_are_used_while_new_ones_are_fetched(world: World) -> None:
    assert await world.has("a")
    world.clock.now_s += TIMES.refresh_s
    world.key_ids = ["b"]
    world.may_go_on.clear()
    assert await world.has("a")
    world.may_go_on.set()
    await world.settle()
    assert await world.has("b")
    assert not await world.has("a")
    assert world.fetches == 2


async def test_keys_expire_when_they_cannot_be_fetched_again(world: World) -> None:
    assert await world.has("a")
    world.failure = DownloadFailed("unreachable")
    world.clock.now_s += TIMES.expiry_s - 1
    assert await world.has("a")
    await world.settle()
    world.clock.now_s += 1 + FAILURE_PAUSE_S
    with pytest.raises(AuthenticationError, match="cannot be fetched at the moment"):
        await world.keys.key("a")


async def test_unknown_key_id_fetches_keys_only_when_they_are_old_enough(world: World) -> None:
    assert await world.has("a")
    world.key_ids = ["a", "b"]
    for _ in range(10):
        assert not await world.has("b")
    assert world.fetches == 1
    world.clock.now_s += TIMES.unknown_key_s
    assert await world.has("b")
    assert not await world.has("c")
    assert world.fetches == 2


async def test_failed_fetch_is_repeated_after_a_pause_only(world: World) -> None:
    world.failure = DownloadFailed("unreachable")
    assert not await world.has("a")
    world.failure = None
    assert not await world.has("a")
    assert world.fetches == 0
    world.clock.now_s += FAILURE_PAUSE_S
    assert await world.has("a")


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": ISSUER + "/", "jwks_uri": KEYS_URL},
        {"jwks_uri": KEYS_URL},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": 5},
        {"issuer": ISSUER, "jwks_uri": "http://idp.example/keys"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
    ],
)
async def test_wrong_discovery_document_is_refused(world: World, discovery: dict[str, object]) -> None:
    world.discovery = discovery
    assert not await world.has("a")
    assert world.fetches == 0


async def test_number_of_waiting_tokens_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuer_keys, "MAX_WAITERS", 2)
    world.may_go_on.clear()
    waiting = [asyncio.ensure_future(world.has("a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await world.keys.key("a")
    world.may_go_on.set()
    assert await asyncio.gather(*waiting) == [True, True]


async def test_cancelled_client_does_not_end_the_fetch_of_others(world: World) -> None:
    world.may_go_on.clear()
    first, second = (asyncio.ensure_future(world.has("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    world.may_go_on.set()
    assert await second
