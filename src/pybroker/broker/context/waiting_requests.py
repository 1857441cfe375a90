"""Limits of requests that wait for a topic or subscription: their number in the broker, and the time of each wait.

Above a limit (`maxWaitingTopicRequests`, `maxWaitingSubscriptionRequests`, `topicLoadTimeoutSeconds`,
`subscriptionTurnTimeoutSeconds`), or a client's fair share of it, a request fails with TooManyRequests. After a wait,
the caller must look up all objects again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pybroker.config import BrokerConfig
from pybroker.errors import TooManyRequests
from pybroker.runtime import logs
from pybroker.waiting.request_holder import ASKING
from pybroker.waiting.wait_limit import WaitLimit, WaitRefused, WaitTimedOut


class WaitingRequests:
    """Counter of waiting requests, with a fair share for each client."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.topics = WaitLimit("maxWaitingTopicRequests")
        self.subscriptions = WaitLimit("maxWaitingSubscriptionRequests")
        """Requests that wait for a subscription's lock, on all topics together."""

    @asynccontextmanager
    async def wait(self, reason: str) -> AsyncIterator[None]:
        """Count the request as waiting for the duration of this context. `reason` says why the request waits, such as
        "topic T is being loaded". Raises TooManyRequests at the limit, and after `topicLoadTimeoutSeconds`.
        """
        config = self._config
        timeout_s = config.topic_load_timeout_seconds
        try:
            async with self.topics.waiting(ASKING.get(), config.max_waiting_topic_requests, timeout_s):
                yield
        except WaitRefused as refusal:
            raise TooManyRequests(f"{reason}, and the request cannot wait: {refusal}. Try again") from None
        except WaitTimedOut:
            logs.warning("topic.load_timeout", reason=reason)
            raise TooManyRequests(
                f"{reason}, and the request has waited for {timeout_s} s (topicLoadTimeoutSeconds): try again"
            ) from None
