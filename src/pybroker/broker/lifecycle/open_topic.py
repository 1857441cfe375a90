"""Acting on a topic that somebody may be closing: whoever comes then waits until it is closed, and starts over with a fresh one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pybroker.errors import TooManyRequests, TopicFenced

if TYPE_CHECKING:
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.runtime.runtime import Runtime

Result = TypeVar("Result")


async def on_open_topic(
    runtime: Runtime,
    find: Callable[[], Awaitable[TopicBase]],
    action: Callable[[TopicBase], Awaitable[Result]],
) -> Result:
    """The result of `action` on the topic that `find` gives; both again, on a fresh topic, when that one was being closed.

    `find` waits until the topic is closed. Raises what both raise, and TooManyRequests for a topic that was closed again and
    again until the deadline of those who wait for a subscription.
    """
    ends_ms = runtime.clock.monotonic_ms() + runtime.config.subscription_turn_timeout_seconds * 1000
    while True:
        topic = await find()
        try:
            return await action(topic)
        except TopicFenced as fenced:
            if runtime.clock.monotonic_ms() >= ends_ms:
                raise TooManyRequests(f"topic {topic.name} is closed again and again, try again") from fenced
