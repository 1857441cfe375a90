"""Failed reads of one subscription: the number of consecutive failures, the reason, and the time of the next attempt.

Invariant: while `count` is 0, the last read succeeded and there is nothing to report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.errors import StoreError

REMEDY = "; autoSkipNonRecoverableData=true goes on behind it, so does skipping by hand"
"""How an operator ends a permanent failure."""


class FailedReads:
    """Owned by its subscription."""

    def __init__(self, topic: TopicContext, subscription: str) -> None:
        self._topic = topic
        self._subscription = subscription
        self.count = 0
        """The number of consecutive failures."""
        self.reason = ""
        """Why the last of them did."""

    def failed(self, error: StoreError, *, is_lasting: bool) -> float:
        """One more, of which the first is logged; in how many seconds the next try is due."""
        self.count += 1
        self.reason = str(error)
        if self.count == 1:
            remedy = REMEDY if is_lasting else ""
            logs.error("read.failed", topic=self._topic.name, subscription=self._subscription, error=f"{error}{remedy}")
        return self._topic.broker_context.read_retry_delay_s(self.count)

    def succeeded(self) -> None:
        self.count = 0
        self.reason = ""
