"""Retry of an operation whose topic is being closed, on the newly loaded topic."""

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
    """Run `action` on the topic that `find` returns. If that topic is being closed, call `find` and `action` again.
    Raises the errors of both, and TooManyRequests after `subscriptionTurnTimeoutSeconds`.
    """
    ends_ms = runtime.clock.monotonic_ms() + runtime.config.subscription_turn_timeout_seconds * 1000
    while True:
        topic = await find()
        try:
            return await action(topic)
        except TopicFenced as fenced:
            if runtime.clock.monotonic_ms() >= ends_ms:
                raise TooManyRequests(
                    f"topic {topic.name} was closed during each attempt to open it: try again"
                ) from fenced
