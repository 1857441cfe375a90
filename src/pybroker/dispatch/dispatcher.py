"""Contract between a subscription and its dispatcher, which decides which consumer receives which entry.

The subscription calls the dispatcher on the event loop's thread:

1. `next_read()` returns a plan, or None while no consumer can take an entry. At most one plan is active.
2. The subscription reads exactly the plan's `replay` positions, or from its cursor's read position, which it
   advances past the entries read. It drops entries that were deleted before the read finished.
3. `assign(plan, run)` takes the entries of one ledger in order, once per ledger of the plan, and returns the
   deliveries to send. **Every entry passed in is accounted for**: the dispatcher delivers it, or keeps it and
   requests it in a later plan. If a read fails or ends early, the subscription assigns the entries it has and
   then calls `give_back(plan)`.
4. If `Redelivery.rewind` is set, the subscription moves its cursor's read position back to just after the
   mark-delete position. The dispatcher has already forgotten the entries it kept. If a read is active, its plan
   becomes void (`is_void`): when it finishes, the subscription drops its entries and rewinds again, because the
   read may have advanced the cursor.
5. The subscription starts again at step 1 after a method returned True, after `Redelivery.wake`, after `writable` of
   a consumer became True, and after entries were appended.
6. The subscription runs two timers, at most one of each. After `Redelivery.start_later`, it calls `start()` when
   `activeConsumerFailoverDelayTimeMillis` have passed; nothing is dispatched until then. If `has_unblocked` is True
   after acknowledgements, redelivery or a change of consumers, it starts again at step 1 after
   `keySharedUnblockingIntervalMs`, so that many releases cause one attempt.
7. For a plan with `scan`, the subscription reads up to `max_entries` from that position among entries that the
   cursor has passed, except delayed ones (`delayed`). It assigns them and reports its progress with `scanned`. If a
   plan needs new entries and the cursor has none, the subscription calls `next_scan` for other work.
8. Only types with `needs_key_hashes` or `keeps_chunks_together` receive key hashes or chunks.

Entries travel as columns: ids, payloads and counts are parallel sequences of one ledger. A column that is None has the
default value in every row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.views import ChunkOrderView, IndividualView, InOrderView, KeyOrderView
from pybroker.model import ack_set
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position


class ReadPlan:
    """A read that the dispatcher requests from the subscription. With `replay`: of the entries at these positions
    (ascending). With `scan`: of the entries from this position up to the cursor's read position. With neither: of up to
    `max_entries` entries from the cursor's read position.
    """

    __slots__ = ("epoch", "max_bytes", "max_entries", "replay", "scan")

    def __init__(
        self,
        max_entries: int,
        max_bytes: int,
        replay: list[Position] | None,
        epoch: object,
        scan: Position | None = None,
    ) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.replay = replay
        self.epoch = epoch
        self.scan = scan


class AssignInput:
    """Entries of one ledger that the subscription has read, in ascending order, without deleted ones.

    `ack_sets[i]`: the words of the ack set of a partly acknowledged batch. `key_hashes[i]`: the `key_hash` of the
    entry's sticky key, for dispatchers that need it. `chunks[i]`: set for a chunk of a large message; `chunks` is None
    if there are none or the dispatcher does not use them.
    """

    __slots__ = ("ack_sets", "chunks", "entry_ids", "key_hashes", "ledger_id", "message_counts", "payloads")

    def __init__(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        payloads: list[bytes],
        message_counts: list[int],
        ack_sets: list[list[int] | None] | None = None,
        key_hashes: list[int] | None = None,
        chunks: list[Chunk | None] | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.payloads = payloads
        self.message_counts = message_counts
        self.ack_sets = ack_sets
        self.key_hashes = key_hashes
        self.chunks = chunks

    def rows(self, indexes: Sequence[int]) -> AssignInput:
        return AssignInput(
            self.ledger_id,
            [self.entry_ids[index] for index in indexes],
            [self.payloads[index] for index in indexes],
            [self.message_counts[index] for index in indexes],
            None if self.ack_sets is None else [self.ack_sets[index] for index in indexes],
            None if self.key_hashes is None else [self.key_hashes[index] for index in indexes],
            None if self.chunks is None else [self.chunks[index] for index in indexes],
        )

    def unacked_counts(self) -> list[int]:
        if self.ack_sets is None:
            return self.message_counts
        return [
            message_count if words is None else ack_set.count(words)
            for message_count, words in zip(self.message_counts, self.ack_sets, strict=True)
        ]


class Delivery:
    """Entries of one ledger to send to one consumer, in this order.

    `message_count` is the cost in permits: all messages, without the messages of a batch that are already acknowledged.
    """

    __slots__ = (
        "ack_sets",
        "consumer",
        "entry_ids",
        "ledger_id",
        "message_count",
        "message_counts",
        "payloads",
        "redelivery_counts",
    )

    def __init__(
        self,
        consumer: ConsumerState,
        ledger_id: int,
        entry_ids: Sequence[int],
        payloads: list[bytes],
        message_counts: list[int],
        message_count: int,
        redelivery_counts: list[int] | None,
        ack_sets: list[list[int] | None] | None,
    ) -> None:
        self.consumer = consumer
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.payloads = payloads
        self.message_counts = message_counts
        self.message_count = message_count
        self.redelivery_counts = redelivery_counts
        self.ack_sets = ack_sets


class Redelivery:
    """Actions that the dispatcher requests from the subscription, after a redelivery or a change of consumers.

    `rewind`: move the cursor's read position back. `notices`: notify these consumers whether they are active, in this
    order. `wake`: start reading. `start_later`: call `start()` after the failover delay.
    """

    __slots__ = ("notices", "rewind", "start_later", "wake")

    def __init__(
        self,
        rewind: bool,
        wake: bool,
        start_later: bool = False,
        notices: Sequence[tuple[ConsumerState, bool]] = (),
    ) -> None:
        self.rewind = rewind
        self.wake = wake
        self.start_later = start_later
        self.notices = notices


class Dispatcher(ABC):
    """Decides which consumers receive the entries of one subscription, which owns the dispatcher."""

    kind: ClassVar[str]
    """The name of the subscription type in stats and in the protocol."""

    needs_key_hashes: bool = False
    """Whether this type needs `AssignInput.key_hashes`."""

    keeps_chunks_together: ClassVar[bool] = False
    """Whether this type needs `AssignInput.chunks`."""

    follows_mark_delete: ClassVar[bool] = False
    """Whether the subscription must call `mark_delete_moved`."""

    def __init__(self, redelivery_counts: RedeliveryCounts) -> None:
        self.consumers: list[ConsumerState] = []
        self.redelivery_counts = redelivery_counts
        self.unacked_messages = 0
        """Unacknowledged messages of all consumers; 0 for types that do not track unacknowledged messages."""
        self.blocked = False
        """Whether the subscription's limit of unacknowledged messages blocks dispatch."""
        self.has_unblocked = False
        """Whether blocked entries have become deliverable and no read was planned since."""
        self.looks_ahead = False
        """Whether the look-ahead buffer may have entries, or entries may be parked: True from the first such entry on."""
        self.now_ms = 0
        """The current time in milliseconds since 1970, set by the subscription before each `assign`; for display only.
        """
        # Replaced at every rewind, which makes all earlier plans void.
        self._epoch = object()

    def is_void(self, plan: ReadPlan) -> bool:
        """Return whether the cursor was rewound after this plan was made. The subscription must then drop the entries
        of the plan, which will be read again.
        """
        return plan.epoch is not self._epoch

    # --- views: each is None unless the type tracks these things -----------------------------------------------------

    @property
    def in_order(self) -> InOrderView | None:
        return None

    @property
    def individual(self) -> IndividualView | None:
        return None

    @property
    def chunk_order(self) -> ChunkOrderView | None:
        return None

    @property
    def key_order(self) -> KeyOrderView | None:
        return None

    @property
    def has_parked(self) -> bool:
        """Whether entries are parked: the subscription must read them again later."""
        return False

    @property
    def look_ahead_size_bytes(self) -> int:
        """The approximate size of the look-ahead buffer: memory of entries that were read and cannot be delivered yet."""
        return 0

    def limit_look_ahead(self, size_bytes: int) -> None:  # noqa: B027 - most types keep nothing that could be limited
        """Set the size limit of the look-ahead buffer, at most to the configured limit. Entries in the buffer are not
        dropped.
        """

    # --- the contract ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def replay_entry_count(self) -> int: ...

    @property
    def redelivery_entry_count(self) -> int:
        return 0

    @property
    @abstractmethod
    def active_consumer(self) -> ConsumerState | None:
        """The consumer that receives all entries; None for Shared and Key_Shared."""

    @abstractmethod
    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Add a connected consumer, which has no permits yet. Return the actions that the subscription must carry out.
        Raises ConsumerBusy if the consumer is refused; the dispatcher is then unchanged.
        """

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Remove a consumer that disconnects. Return the actions that the subscription must carry out. The
        unacknowledged entries of the consumer go to other consumers, or to the next consumer that connects.
        """

    @abstractmethod
    def flow(self, consumer: ConsumerState, permits: int) -> bool:
        """Add permits (in messages) of a FLOW command. Return True if `consumer` can receive entries now."""

    @abstractmethod
    def next_read(self) -> ReadPlan | None:
        """Return the next read for the subscription, or None if no consumer can receive an entry."""

    def next_scan(self) -> ReadPlan | None:
        """Return a plan that reads only entries that the cursor has passed, for a subscription whose cursor is at the
        end of the topic. Return None if no entries must be read again.
        """
        return None

    def scanned(self, plan: ReadPlan, up_to: Position, *, is_at_end: bool) -> None:
        """Report the progress of a scan (a plan whose `scan` is not None): all its entries before `up_to` were assigned.
        `is_at_end`: the scan has reached the cursor's read position.
        """
        raise NotImplementedError(f"the {self.kind} dispatcher plans no scans")

    @abstractmethod
    def blocked_reason(self) -> BlockedReason: ...

    @abstractmethod
    def give_back(self, plan: ReadPlan) -> None:
        """Report that the read for `plan` did not return all entries. The dispatcher plans the missing entries again."""

    def put_back(self, plan: ReadPlan, key_hashes: Sequence[int]) -> None:
        """Report that no entry at the positions `plan.replay` was delivered. The dispatcher plans these positions again.
        `key_hashes`: the key hash at each position, if the dispatcher needs key hashes.
        """
        self.give_back(plan)

    @abstractmethod
    def assign(self, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        """Assign the entries that were read for `plan` to consumers. The caller must send every returned delivery."""

    @abstractmethod
    def acked(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        """Record acknowledged entries; unknown ids are ignored. Return True if this may unblock dispatch."""

    @abstractmethod
    def acked_partly(self, ledger_id: int, entry_id: int, unacked_messages: int) -> bool:
        """Record that some messages of a batch were acknowledged, also by open transactions. `unacked_messages`: the
        number of messages of the batch that are still unacknowledged. Return True if this may unblock dispatch.
        """

    def set_unacked(self, ledger_id: int, entry_ids: Sequence[int], unacked_messages: int) -> bool:
        """Call `acked_partly` for several entries with the same number of unacknowledged messages. With 0, the entries
        remain pending acks of their consumer. Return True if this may unblock dispatch.
        """
        can_move = False
        for entry_id in entry_ids:
            can_move = self.acked_partly(ledger_id, entry_id, unacked_messages) or can_move
        return can_move

    @abstractmethod
    def acked_up_to(self, position: Position) -> bool:
        """Record that all entries up to and including `position` are acknowledged. Return True if dispatch can
        continue.
        """

    @abstractmethod
    def redeliver(self, consumer: ConsumerState, positions: Sequence[Position] | None) -> Redelivery:
        """Redeliver the entries at `positions` that `consumer` has not acknowledged; None: all its unacknowledged
        entries. Return the actions that the subscription must carry out.
        """

    @abstractmethod
    def take_back(self, groups: Sequence[tuple[int, Sequence[int]]]) -> Redelivery: ...

    @abstractmethod
    def reset(self) -> None:
        """Forget all deliveries and redelivery counts after a seek, skip or clear of the cursor. The caller rewinds the
        cursor.
        """

    def limit_unacked(self, max_of_consumer: int, max_in_all: int) -> bool:
        """Set the limits of unacknowledged messages of each consumer and of the subscription; 0 means no limit. Return
        True if dispatch can continue.
        """
        return False

    def start(self) -> Redelivery:
        return Redelivery(rewind=False, wake=False)

    def mark_delete_moved(self, first_unacked: Position) -> bool:
        """Record that all entries before `first_unacked` are acknowledged. Return True if this may unblock dispatch."""
        return False

    @abstractmethod
    def check_invariants(self) -> None:
        """Assert the invariants. Slow, for tests."""
