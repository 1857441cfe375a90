"""Reasons to pause reading from a connection, as a bit set. Reading resumes when no bit is set."""

from __future__ import annotations

from typing import Protocol

# Integers, because enum operators are too slow on this path.
BUDGET = 1  # used its share of this event loop iteration
PENDING_PUBLISHES = 2  # maxPendingPublishRequestsPerConnection
PUBLISH_MEMORY = 4  # maxMessagePublishBufferSizeInMB, broker-wide
OUTBOUND = 8  # the client does not read
REQUESTS = 16  # maxConcurrentRequestsPerConnection
PUBLISH_RATE = 32  # a message waits for a publish rate
MANY_IDS = 64  # processes a long id list of an ACK or REDELIVER
STOP = 128  # the broker is stopping
IN_WORDS = {
    PENDING_PUBLISHES: "the connection has reached its limit of unanswered messages (maxPendingPublishRequestsPerConnection)",
    PUBLISH_MEMORY: "the broker has reached its limit of unanswered messages (maxMessagePublishBufferSizeInMB)",
    OUTBOUND: "the client does not read the answers to its requests",
    REQUESTS: "the connection has reached its limit of concurrent requests (maxConcurrentRequestsPerConnection)",
    PUBLISH_RATE: "the client exceeds a publish rate",
    STOP: "the broker is stopping",
}
WAITS = REQUESTS | PUBLISH_RATE  # these can last longer than the timeout of a liveness PING


class Readable(Protocol):
    """The part of a transport that starts and stops reading."""

    def is_closing(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class ReadPauses:
    """The reasons why the broker does not read from a connection.

    Invariant: an open transport reads exactly while `reasons` is 0.
    """

    __slots__ = ("_transport", "reasons")

    def __init__(self, transport: Readable) -> None:
        self._transport = transport
        self.reasons = 0

    def add(self, reason: int) -> None:
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self.reasons |= reason

    def remove(self, reason: int) -> None:
        if self.reasons & reason:
            self.reasons &= ~reason
            if not self.reasons and not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def in_words(self) -> str | None:
        """The text of the first current reason that is listed in `IN_WORDS`; None if there is none."""
        return next((words for reason, words in IN_WORDS.items() if self.reasons & reason), None)
