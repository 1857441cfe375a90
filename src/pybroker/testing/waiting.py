"""Functions that wait for an expected state. On timeout the error shows the actual state.

The consumer may be any object with a `receive` like that of the official client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pybroker.testing.broker import TestBroker

LOOK_S = 0.01
LONGEST_LOOK_S = 0.2


class Receiver(Protocol):
    """A consumer of the official client."""

    def receive(self, timeout_millis: int) -> Any: ...


class AsyncReceiver(Protocol):
    """A consumer of the official asyncio client."""

    def receive(self) -> Awaitable[Any]: ...


def _not_met(expected: int, found: int, topic: str, subscription: str, timeout_s: float) -> AssertionError:
    there = "the subscription does not exist" if found < 0 else f"it is {found}"
    return AssertionError(f"backlog of {subscription!r} on {topic} is not {expected} within {timeout_s} s: {there}")


def wait_for_backlog(
    broker: TestBroker, topic: str, subscription: str, count: int = 0, *, timeout_s: float = 10
) -> None:
    """Wait until exactly `count` messages of the subscription are unacknowledged. Raises AssertionError on timeout."""
    ends_s, look_s = time.monotonic() + timeout_s, LOOK_S
    while (found := broker.backlog(topic, subscription)) != count:
        if time.monotonic() >= ends_s:
            raise _not_met(count, found, topic, subscription, timeout_s)
        time.sleep(look_s)
        look_s = min(LONGEST_LOOK_S, look_s * 1.5)


async def wait_for_backlog_async(
    broker: TestBroker, topic: str, subscription: str, count: int = 0, *, timeout_s: float = 10
) -> None:
    """Wait, on the event loop, until exactly `count` messages of the subscription are unacknowledged. Raises
    AssertionError on timeout.
    """
    ends_s, look_s = time.monotonic() + timeout_s, LOOK_S
    while (found := await asyncio.to_thread(broker.backlog, topic, subscription)) != count:
        if time.monotonic() >= ends_s:
            raise _not_met(count, found, topic, subscription, timeout_s)
        await asyncio.sleep(look_s)
        look_s = min(LONGEST_LOOK_S, look_s * 1.5)


def _too_few(count: int, messages: list[Any], timeout_s: float, error: BaseException) -> AssertionError:
    contents = [message.data() for message in messages]
    return AssertionError(
        f"{count} messages were expected within {timeout_s} s, but {len(messages)} arrived: {contents!r} ({error!r})"
    )


def received(consumer: Receiver, count: int = 1, *, acknowledge: bool = True, timeout_s: float = 10) -> list[Any]:
    """Receive the next `count` messages of a consumer or reader of the official client, and acknowledge them. Raises
    AssertionError with the received messages if fewer messages arrive within `timeout_s` seconds.
    """
    ends_s = time.monotonic() + timeout_s
    messages: list[Any] = []
    receive: Any = getattr(consumer, "receive", None) or consumer.read_next  # type: ignore[attr-defined]  # a reader has that
    while len(messages) < count:
        try:
            message = receive(max(1, int((ends_s - time.monotonic()) * 1000)))
        except Exception as error:
            if type(error).__name__ != "Timeout":
                raise
            raise _too_few(count, messages, timeout_s, error) from None
        messages.append(message)
        if acknowledge and hasattr(consumer, "acknowledge"):
            consumer.acknowledge(message)
    return messages


async def received_async(
    consumer: AsyncReceiver, count: int = 1, *, acknowledge: bool = True, timeout_s: float = 10
) -> list[Any]:
    """Receive the next `count` messages of a consumer of the official asyncio client, and acknowledge them. Raises
    AssertionError with the received messages if fewer messages arrive within `timeout_s` seconds.
    """
    messages: list[Any] = []
    try:
        async with asyncio.timeout(timeout_s):
            while len(messages) < count:
                message = await consumer.receive()
                messages.append(message)
                if acknowledge and hasattr(consumer, "acknowledge"):
                    await consumer.acknowledge(message)
    except TimeoutError as error:
        raise _too_few(count, messages, timeout_s, error) from None
    return messages
