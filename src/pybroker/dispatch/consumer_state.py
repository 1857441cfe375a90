"""State of one connected consumer of a subscription: permits and unacknowledged messages.

Only the dispatcher changes the counts. The connection sets `writable`. The broker's object for the consumer is in
`peer`, which this package does not use.
"""

from __future__ import annotations

from math import ceil

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.model.position import Position

# Weight of earlier values in the moving average of messages per entry, which adapts to a new batch size within about
# ten reads.
_AVERAGE_DECAY = 0.9


class KeySharedOptions:
    """Options of a Key_Shared consumer.

    `ranges` are inclusive (start, end) pairs in mode STICKY; None in mode AUTO_SPLIT.
    """

    __slots__ = ("allow_out_of_order_delivery", "ranges")

    def __init__(self, ranges: list[tuple[int, int]] | None, allow_out_of_order_delivery: bool) -> None:
        self.ranges = ranges
        self.allow_out_of_order_delivery = allow_out_of_order_delivery


AUTO_SPLIT = KeySharedOptions(None, False)


class ConsumerState:
    """State of one consumer of a subscription.

    Invariants: `unacked_messages` is the sum of this consumer's pending acks. A consumer that reaches its limit is
    `blocked` until the count falls to half of the limit. Permits may be negative, because an entry is sent whole while
    at least one permit is left.
    """

    __slots__ = (
        "blocked",
        "draining_hashes_cleared_total",
        "key_shared",
        "max_unacked_messages",
        "messages_per_entry",
        "name",
        "peer",
        "permits",
        "priority_level",
        "read_position_when_joining",
        "redelivered_messages",
        "unacked_messages",
        "writable",
    )

    def __init__(
        self,
        name: str,
        priority_level: int,
        max_unacked_messages: int,
        peer: object,
        key_shared: KeySharedOptions = AUTO_SPLIT,
    ) -> None:
        """`max_unacked_messages`: 0 means no limit. Consumers with a lower `priority_level` are served first."""
        self.name = name
        self.priority_level = priority_level
        self.max_unacked_messages = max_unacked_messages
        self.peer = peer
        self.key_shared = key_shared
        """Used by Key_Shared only."""
        self.permits = 0
        self.unacked_messages = 0
        self.blocked = False
        self.writable = True
        self.messages_per_entry = 0.0
        """Moving average of the messages per entry; 0 before the first delivery."""
        self.redelivered_messages = 0
        """Since the consumer connected."""
        self.draining_hashes_cleared_total = 0
        """Since the consumer connected."""
        self.read_position_when_joining: Position | None = None
        """Classic Key_Shared: the cursor's read position when the consumer joined; None once it receives all entries."""

    def can_take(self) -> bool:
        return self.permits > 0 and self.writable and not self.blocked

    def blocked_reason(self) -> BlockedReason:
        """Return the reason why the consumer receives nothing. Call only for a consumer that cannot receive entries."""
        if self.blocked:
            return BlockedReason.UNACKED_CONSUMER
        return BlockedReason.NO_PERMITS if self.permits <= 0 else BlockedReason.CONNECTION_FULL

    def affordable_entries(self) -> int:
        """Return an estimate of the number of entries that the permits cover, from the sizes of recent batches; 0 if
        the consumer can take none.
        """
        if self.permits <= 0 or not self.writable or self.blocked:
            return 0
        return self.permits if self.messages_per_entry <= 1.0 else ceil(self.permits / self.messages_per_entry)

    def spend(self, message_count: int, entry_count: int) -> None:
        self.permits -= message_count
        average = message_count / entry_count
        if self.messages_per_entry:
            average = self.messages_per_entry * _AVERAGE_DECAY + average * (1 - _AVERAGE_DECAY)
        self.messages_per_entry = average

    def hold(self, message_count: int) -> None:
        """Add delivered messages to the consumer's unacknowledged messages. Block the consumer if it reaches its limit."""
        self.unacked_messages += message_count
        if 0 < self.max_unacked_messages <= self.unacked_messages:
            self.blocked = True

    def limit_unacked(self, max_unacked_messages: int) -> bool:
        """Set the limit of unacknowledged messages; 0 means no limit. Return True if this unblocks the consumer: its
        number of unacknowledged messages is below the new limit.
        """
        was_blocked = self.blocked
        self.max_unacked_messages = max_unacked_messages
        self.blocked = 0 < max_unacked_messages <= self.unacked_messages
        return was_blocked and not self.blocked

    def release(self, message_count: int) -> bool:
        """Subtract acknowledged messages from the unacknowledged messages. Return True if this unblocked the consumer,
        which happens at half of its limit.
        """
        self.unacked_messages -= message_count
        assert self.unacked_messages >= 0, "more acknowledged than delivered"
        if self.blocked and self.unacked_messages <= self.max_unacked_messages // 2:
            self.blocked = False
            return True
        return False

    def take_back(self, message_count: int) -> None:
        """Subtract messages that are returned for redelivery from the unacknowledged messages.

        Unlike `release`, unblock the consumer as soon as it is below its limit: a consumer that must receive exactly
        these messages again would otherwise stay blocked.
        """
        self.release(message_count)
        self.redelivered_messages += message_count
        self.blocked = 0 < self.max_unacked_messages <= self.unacked_messages
