"""Waits of a topic that end when this broker gives up the topic's bundle."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from pybroker.errors import ServiceNotReady, TopicNotFound

if TYPE_CHECKING:
    from pybroker.broker.context.topic_ownership import TopicOwnership
    from pybroker.model.names import TopicName

Result = TypeVar("Result")
SERVED_CHECK_S = 0.1
"""Interval at which a waiting topic checks that this broker still owns its bundle."""


async def while_served(ownership: TopicOwnership | None, topic: TopicName, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, a step of loading `topic` or of publishing to it, and return the result of `work`.

    The result is returned in the event loop iteration in which `work` completes. Raises ServiceNotReady or
    TopicNotFound if this broker gives up the bundle of `topic` before that. Without this check, a deadlock is possible:
    the release of the bundle waits for the topic, and `work` may need a system topic of the same bundle.
    """
    if ownership is None:
        return await work
    loop, served = asyncio.get_running_loop(), ownership
    refusal: ServiceNotReady | TopicNotFound | None = None
    timer: asyncio.TimerHandle

    def check() -> None:
        nonlocal refusal, timer
        try:
            served.require_served(topic)
        except (ServiceNotReady, TopicNotFound) as error:
            refusal = error
            limit.reschedule(0)  # now
        else:
            timer = loop.call_later(SERVED_CHECK_S, check)

    timer = loop.call_later(SERVED_CHECK_S, check)
    try:
        async with asyncio.timeout(None) as limit:
            return await work
    except TimeoutError:
        if refusal is not None:
            raise refusal from None
        raise
    finally:
        timer.cancel()
