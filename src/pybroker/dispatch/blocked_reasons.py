"""Reasons why a subscription or consumer receives no entries."""

from __future__ import annotations

from enum import Enum


class BlockedReason(Enum):
    """Reason why a subscription is blocked; the value describes it."""

    CLOSED = "the subscription is being closed or deleted"
    NO_CONSUMER = "no consumer is connected"
    CONSUMERS = "no consumer can receive an entry"
    STARTING = "a new active consumer waits for the end of the failover delay"
    NO_PERMITS = (
        "no consumer has permits: clients request more messages when they have processed the messages in their queues"
    )
    CONNECTION_FULL = "the consumers with permits do not read from their connections"
    UNACKED_CONSUMER = "consumers have reached their limit of unacknowledged messages"
    UNACKED_SUBSCRIPTION = "the subscription has reached its limit of unacknowledged messages"
    UNACKED_BROKER = (
        "the broker has reached its limit of unacknowledged messages, and this subscription exceeds its share"
    )
    LOOK_AHEAD = "the look-ahead buffer of waiting entries is full"
    FILTER = "an entry filter has deferred the next entry"
    RATE = "a dispatch rate is used up"
    TRANSACTION = "an open transaction blocks all entries from its first message on"
    CURSOR_STATE = "the acknowledgements of the subscription are too large to be stored"
    MEMORY = "the memory budget is used up (brokerMemoryLimitMB): the subscription waits in the queue for memory"
    READING = "entries are being read from the store"
    READ_FAILED = "entries cannot be read; the read is retried"
    AT_END = "every entry was sent"


class Stall:
    """A period without delivery: its blocked reason, and since when the reason applies."""

    __slots__ = ("blocked_reason", "since_ms")

    def __init__(self, blocked_reason: BlockedReason, since_ms: float) -> None:
        """`since_ms`: start of the stall in milliseconds of the monotonic clock."""
        self.blocked_reason = blocked_reason
        self.since_ms = since_ms
