"""Reasons why a subscription or consumer receives no entries."""

from __future__ import annotations

from enum import Enum


class BlockedReason(Enum):
    """Reason why a subscription is blocked; the value describes it."""

    CLOSED = "the subscription is being closed or deleted"
    NO_CONSUMER = "no consumer is connected"
    CONSUMERS = "no consumer can take an entry"
    STARTING = "a consumer that has just become the active one waits until the one before is surely done"
    NO_PERMITS = "no consumer has room for more messages: clients ask for more when they have processed what they hold"
    CONNECTION_FULL = "the consumers with room for more do not read from their connections"
    UNACKED_CONSUMER = "consumers hold as many unacknowledged messages as they may"
    UNACKED_SUBSCRIPTION = "the subscription holds as many unacknowledged messages as it may"
    UNACKED_BROKER = (
        "the broker holds as many unacknowledged messages as it may, and this subscription more than its share"
    )
    LOOK_AHEAD = "as many entries as may wait for consumers that cannot take them, or for keys that others hold"
    FILTER = "an entry filter has put the next entry off"
    RATE = "a dispatch rate is used up"
    TRANSACTION = "an open transaction: nothing from its first message on is delivered until it has ended"
    MEMORY = "others have what memory there is (brokerMemoryLimitMB): it waits for its turn"
    READING = "entries are being read from the store"
    READ_FAILED = "entries cannot be read; it is tried again"
    AT_END = "every entry was sent"


class Stall:
    """A blocked reason and the time since when it holds."""

    __slots__ = ("blocked_reason", "since_ms")

    def __init__(self, blocked_reason: BlockedReason, since_ms: float) -> None:
        """Create the stall. `since_ms` is monotonic."""
        self.blocked_reason = blocked_reason
        self.since_ms = since_ms
