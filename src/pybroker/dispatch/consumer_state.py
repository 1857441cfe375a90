"""What dispatch knows of one attached consumer.

Owned by the dispatcher that it was added to, which alone changes the counts; `writable` is set by whoever watches the
peer's outbound buffer. `peer` belongs to the caller and is never looked at here.
"""

from __future__ import annotations

from math import ceil

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.model.position import Position

# Weight of the past in the moving average of messages per entry: the average follows a change of batch size in some ten
# reads.
_AVERAGE_DECAY = 0.9


class KeySharedOptions:
    """What a consumer of a Key_Shared subscription asks for.

    `ranges` are inclusive (start, end) of mode STICKY, as the wire has them; None in mode AUTO_SPLIT.
    """

    __slots__ = ("allow_out_of_order_delivery", "ranges")

    def __init__(self, ranges: list[tuple[int, int]] | None, allow_out_of_order_delivery: bool) -> None:
        self.ranges = ranges
        self.allow_out_of_order_delivery = allow_out_of_order_delivery


AUTO_SPLIT = KeySharedOptions(None, False)
"""What clients ask for when they say nothing."""


class ConsumerState:
    """One consumer: its permits and what it holds.

    Invariants: `unacked_messages` is what the pending acks hold for this consumer. While `blocked`, it was at the limit
    and has not come down to half since. Permits may be negative: an entry is sent whole while there is at least one.
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
        """`max_unacked_messages` 0 means no limit. A lower `priority_level` is served first."""
        self.name = name
        self.priority_level = priority_level
        self.max_unacked_messages = max_unacked_messages
        self.peer = peer
        self.key_shared = key_shared
        """Looked at by Key_Shared only."""
        self.permits = 0
        self.unacked_messages = 0
        self.blocked = False
        self.writable = True
        self.messages_per_entry = 0.0
        """Moving average, 0 before the first delivery."""
        self.redelivered_messages = 0
        """Messages taken back from this consumer to be sent again, since it connected."""
        self.draining_hashes_cleared_total = 0
        """Hashes that this consumer drained since it connected."""
        self.read_position_when_joining: Position | None = None
        """Classic Key_Shared: where the cursor stood when it came; None once it gets everything."""

    def can_take(self) -> bool:
        """Whether an entry may be sent to it now."""
        return self.permits > 0 and self.writable and not self.blocked

    def blocked_reason(self) -> BlockedReason:
        """What keeps entries from it, when it cannot take one."""
        if self.blocked:
            return BlockedReason.UNACKED_CONSUMER
        return BlockedReason.NO_PERMITS if self.permits <= 0 else BlockedReason.CONNECTION_FULL

    def affordable_entries(self) -> int:
        """How many entries the permits will probably pay for, judged by the batches that it got lately."""
        return self.permits if self.messages_per_entry <= 1.0 else ceil(self.permits / self.messages_per_entry)

    def spend(self, message_count: int, entry_count: int) -> None:
        """Use permits for `entry_count` entries that hold `message_count` messages to be acknowledged."""
        self.permits -= message_count
        average = message_count / entry_count
        if self.messages_per_entry:
            average = self.messages_per_entry * _AVERAGE_DECAY + average * (1 - _AVERAGE_DECAY)
        self.messages_per_entry = average

    def hold(self, message_count: int) -> None:
        """Count messages that this consumer has to acknowledge, and block it at its limit."""
        self.unacked_messages += message_count
        if 0 < self.max_unacked_messages <= self.unacked_messages:
            self.blocked = True

    def limit_unacked(self, max_unacked_messages: int) -> bool:
        """Another limit holds from now on; True when that unblocked it: it goes on below the limit, not only at half of it."""
        was_blocked = self.blocked
        self.max_unacked_messages = max_unacked_messages
        self.blocked = 0 < max_unacked_messages <= self.unacked_messages
        return was_blocked and not self.blocked

    def release(self, message_count: int) -> bool:
        """Count messages that it acknowledged; True when that unblocked it."""
        self.unacked_messages -= message_count
        assert self.unacked_messages >= 0, "more acknowledged than delivered"
        if self.blocked and self.unacked_messages <= self.max_unacked_messages // 2:
            self.blocked = False
            return True
        return False

    def take_back(self, message_count: int) -> None:
        """Count messages that it gave back to be sent again.

        That unblocks it below the limit, not at half of it: a full consumer which waits for just the messages it gave
        back would otherwise wait for ever.
        """
        self.release(message_count)
        self.redelivered_messages += message_count
        self.blocked = 0 < self.max_unacked_messages <= self.unacked_messages
