"""Waits of a topic that end when its broker gives up the topic's bundle."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.broker.context import while_served as module
from pybroker.broker.context.while_served import while_served
from pybroker.errors import ServiceNotReady
from pybroker.model.names import TopicName

TOPIC = TopicName.parse("persistent://public/default/t")


class Ownership:
    """Serves the topic for a number of checks."""

    def __init__(self, checks: int) -> None:
        self.checks = checks

    def require_served(self, topic: TopicName) -> None:
        assert topic == TOPIC
        self.checks -= 1
        if self.checks < 0:
            raise ServiceNotReady("not served by this instance")

    async def settled(self, topic: TopicName) -> None:
        """Nothing is being acquired."""

    def holds_session(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERVED_CHECK_S", 0.001)


async def test_wait_ends_when_bundle_is_given_up() -> None:
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ServiceNotReady, match="not served"):
        await while_served(Ownership(checks=2), TOPIC, wait())
    assert ended.is_set()


async def test_result_is_returned_while_topic_is_served_and_checks_end() -> None:
    ownership = Ownership(checks=1_000_000)

    async def wait() -> str:
        while ownership.checks > 999_998:  # noqa: ASYNC110 (the test counts checks)
            await asyncio.sleep(0)
        return "done"

    assert await while_served(ownership, TOPIC, wait()) == "done"
    checks = ownership.checks
    await asyncio.sleep(0.01)
    assert ownership.checks == checks


async def test_error_and_timeout_of_the_work_are_raised_unchanged() -> None:
    async def fail() -> None:
        raise TimeoutError("of the work")

    for ownership in (None, Ownership(checks=1)):
        with pytest.raises(TimeoutError, match="of the work"):
            await while_served(ownership, TOPIC, fail())


async def test_standalone_broker_waits_without_checks() -> None:
    assert await while_served(None, TOPIC, asyncio.sleep(0.01, "done")) == "done"
