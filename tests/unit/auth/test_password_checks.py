"""Password hashes run in threads, few at once, fair among addresses, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.support import credentials

from pybroker.auth.authentication import AuthenticationService, RemoteClient
from pybroker.auth.basic_provider import BasicProvider
from pybroker.auth.password_checks import FAILURES_AT_ONCE, CheckLimits, PasswordChecks
from pybroker.config import BrokerConfig
from pybroker.errors import AuthenticationError, TooManyRequests
from pybroker.runtime.clock import Clock

LIMITS = CheckLimits(concurrent=2, pending=100, pending_per_address=50, failures_per_s=1000, timeout_s=10)


class Hashes:
    """Hashes that run until the test releases them; records threads and concurrency."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.threads: set[int] = set()
        self.at_once = 0
        self.most_at_once = 0
        self.order: list[str] = []
        self._lock = threading.Lock()

    def compute(self, name: str, is_right: bool = True) -> bool:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
            self.order.append(name)
        self.go_on.wait(10)
        with self._lock:
            self.at_once -= 1
        return is_right


async def until_running(checks: PasswordChecks, running: int, waiting: int) -> None:
    async with asyncio.timeout(10):
        while (checks.running, checks.waiting) != (running, waiting):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_hashes_run_beside_the_loop_few_at_once_and_the_honest_one_is_next() -> None:
    checks, hashes = PasswordChecks(LIMITS, Clock()), Hashes()
    async with asyncio.TaskGroup() as group:
        for number in range(16):
            group.create_task(checks.check("flood", "", lambda number=number: hashes.compute(f"x{number}")))  # type: ignore[misc]
        await until_running(checks, 2, 14)
        honest = group.create_task(checks.check("flood", "alice", lambda: hashes.compute("alice")))
        elsewhere = group.create_task(checks.check("quiet", "bob", lambda: hashes.compute("bob")))
        await until_running(checks, 2, 16)
        hashes.go_on.set()
    assert honest.result()
    assert elsewhere.result()
    assert max(hashes.order.index("alice"), hashes.order.index("bob")) <= 4
    assert hashes.most_at_once == 2
    assert threading.get_ident() not in hashes.threads
    assert (checks.running, checks.waiting) == (0, 0)


async def test_the_queue_and_the_wait_are_bounded() -> None:
    checks, hashes = (
        PasswordChecks(LIMITS._replace(concurrent=1, pending_per_address=1, timeout_s=0.05), Clock()),
        Hashes(),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(checks.check("a", "", lambda: hashes.compute("x")))
        await until_running(checks, 1, 0)
        waiting = group.create_task(refused(checks, hashes))
        await until_running(checks, 1, 1)
        with pytest.raises(TooManyRequests, match="too many"):
            await checks.check("a", "", lambda: hashes.compute("z"))
        assert "in time" in await waiting
        assert checks.waiting == 0
        hashes.go_on.set()
    assert hashes.order == ["x"]


async def refused(checks: PasswordChecks, hashes: Hashes) -> str:
    with pytest.raises(TooManyRequests) as caught:
        await checks.check("a", "", lambda: hashes.compute("y"))
    return str(caught.value)


async def test_who_goes_away_counts_until_its_hash_is_done() -> None:
    checks, hashes = PasswordChecks(LIMITS._replace(concurrent=1), Clock()), Hashes()
    running = asyncio.create_task(checks.check("a", "", lambda: hashes.compute("x")))
    waiting = asyncio.create_task(checks.check("a", "", lambda: hashes.compute("y")))
    await until_running(checks, 1, 1)
    running.cancel()
    waiting.cancel()
    await asyncio.wait([running, waiting])
    assert (checks.running, checks.waiting) == (1, 0)
    hashes.go_on.set()
    assert await checks.check("a", "", lambda: hashes.compute("z"))
    assert hashes.most_at_once == 1
    assert hashes.order == ["x", "z"]


async def test_an_address_with_too_many_failures_waits_and_others_do_not() -> None:
    checks, hashes = PasswordChecks(LIMITS._replace(failures_per_s=0.001, timeout_s=0.05), Clock()), Hashes()
    hashes.go_on.set()
    for _ in range(FAILURES_AT_ONCE):
        assert not await checks.check("a", "", lambda: hashes.compute("wrong", False))
    with pytest.raises(TooManyRequests):
        await checks.check("a", "", lambda: hashes.compute("late", False))
    assert await checks.check("b", "", lambda: hashes.compute("honest"))
    assert "late" not in hashes.order


async def test_clients_that_come_at_once_with_the_same_password_cost_one_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    verify = BasicProvider.verify

    def counted(provider: BasicProvider, user: str, password: str) -> bool:
        hashed.append(password)
        return verify(provider, user, password)

    monkeypatch.setattr(BasicProvider, "verify", counted)
    service = AuthenticationService(
        BrokerConfig(
            authentication_enabled=True,
            authentication_providers=("basic",),
            basic_auth_conf=str(credentials.htpasswd(tmp_path, alice="secret")),
            basic_auth_max_pending_checks_per_ip=5,
        )
    )
    client = RemoteClient("a")
    found = await asyncio.gather(*(service.authenticate("basic", b"alice:secret", client) for _ in range(100)))
    assert {each.role for each in found} == {"alice"}
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            await service.authenticate("basic", b"alice:wrong", client)
    assert hashed == ["secret", "wrong"]
