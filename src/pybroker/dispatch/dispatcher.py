"""The contract between a subscription and the rule that says which consumer gets which entry.

How a subscription works with it, all on the event loop's thread:

1. `next_read()` says what to read, or None while nobody can take anything. At most one plan is out at a time.
2. The subscription reads. From a plan with `replay` it reads exactly those positions, else from its cursor's read
   position on, which it advances past what it has read. It drops what is deleted by the time the read is done.
3. `assign(plan, run)` takes one ledger's entries in order, as often as the plan spans ledgers, and returns what to send
   to whom. **Every entry handed in is taken care of**: delivered, or kept by the dispatcher and asked for again by a
   later plan. A read that fails or ends early gives the plan back with `give_back(plan)` after it assigned what it has.
4. Whenever `Redelivery.rewind` says so, the subscription sets its cursor's read position back to just after
   mark-delete. The dispatcher has then forgotten what it kept, and a read that was under way is void: when it is done,
   `is_void(plan)` says so, the subscription drops the entries and rewinds its cursor once more, since the read may have
   advanced it. Nobody has to cancel the read.
5. After anything that returns True, or `Redelivery.wake`, there may be something to do: start again at 1. So it is
   after `writable` of a consumer became True and after new entries were appended.
6. Two timers are run by the subscription, one of each at a time. After `Redelivery.start_later` it calls `start()` when
   `activeConsumerFailoverDelayTimeMillis` have passed; until then nothing is dispatched. When `has_unblocked` is True
   after acknowledgements, redelivery or a change of consumers, it starts again at 1 when `keySharedUnblockingIntervalMs`
   have passed, so that many releases make one try.
7. A plan with `scan` reads from that position on what the cursor has passed, up to `max_entries`, without what waits for its
   time (`delayed`), assigns it, and tells with `scanned` how far that was. Where a plan is for the cursor's entries and
   there are none, `next_scan` says whether there is something else to do.
8. Types with `needs_key_hashes` or `keeps_chunks_together` want those columns of their entries; for the others nobody
   computes them.

Columns instead of objects: ids, payloads and counts travel as parallel sequences of one ledger; a column that is None
stands for the usual value in every row. A run that goes whole to one consumer is passed on without touching its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pybroker.dispatch.blocked_reasons import BlockedReason
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.replay_queue import RedeliveryCounts
from pybroker.dispatch.views import ChunkOrderView, IndividualView, InOrderView, KeyOrderView
from pybroker.model import ack_set
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position


class ReadPlan:
    """What to read next: exactly `replay` (rising), or up to `max_entries` from the cursor's read position on.

    With `scan`: from there on, of what the cursor has passed.
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
    """Entries of one ledger, rising, none of them deleted; `ack_sets[i]`: the words of a partly acknowledged batch.

    `key_hashes[i]` is `model.hashing.key_hash` of the entry's sticky key, for dispatchers that need it. `chunks[i]` says
    which entries are parts of a larger message; None when none is, and for dispatchers that do not look at it.
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
        """These rows alone."""
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
        """How many messages of each entry are to be acknowledged: all but those of a batch that are already."""
        if self.ack_sets is None:
            return self.message_counts
        return [
            message_count if words is None else ack_set.count(words)
            for message_count, words in zip(self.message_counts, self.ack_sets, strict=True)
        ]


class Delivery:
    """Entries of one ledger to send to one consumer, in this order.

    `message_count` is what the delivery cost in permits: all messages but those of a batch that are acknowledged
    already.
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
    """What a subscription has to do when entries are to be sent again, or consumers changed.

    Rewind its cursor; tell consumers whether they are active (`notices`, in this order); start the pump; or call
    `start()` later.
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
    """Assigns the entries of one subscription to its consumers. The subscription owns it, as long as its type lasts.

    `redelivery_counts` outlives it: when the last consumer is gone and the next one brings another type, the
    subscription hands the counts to the new dispatcher.
    """

    kind: ClassVar[str]
    """The subscription type as stats and the protocol name it."""

    needs_key_hashes: bool = False
    """Whether `AssignInput.key_hashes` must be given."""

    keeps_chunks_together: ClassVar[bool] = False
    """Whether `AssignInput.chunks` must be given."""

    follows_mark_delete: ClassVar[bool] = False
    """Whether `mark_delete_moved` must be called."""

    def __init__(self, redelivery_counts: RedeliveryCounts) -> None:
        self.consumers: list[ConsumerState] = []
        self.redelivery_counts = redelivery_counts
        self.unacked_messages = 0
        """Messages delivered and not acknowledged, over all consumers; 0 for types that do not track them."""
        self.blocked = False
        """Whether the subscription as a whole is stopped by its limit of unacknowledged messages."""
        self.has_unblocked = False
        """Whether entries that were held back can go now, and no read was planned since."""
        self.now_ms = 0
        """The time, as the subscription says it before each `assign`; only to be shown."""
        # A new object with every rewind: no plan of before, nor of another dispatcher, is ever taken for one of now.
        self._epoch = object()

    def is_void(self, plan: ReadPlan) -> bool:
        """Whether the cursor was rewound since the plan was made: its entries are read again, nobody gets them now."""
        return plan.epoch is not self._epoch

    # --- views: each is None unless the type tracks these things -----------------------------------------------------

    @property
    def in_order(self) -> InOrderView | None:
        """The deliveries of the one active consumer."""
        return None

    @property
    def individual(self) -> IndividualView | None:
        """Entries that are delivered and acknowledged individually."""
        return None

    @property
    def chunk_order(self) -> ChunkOrderView | None:
        """Chunks that wait for the consumer of their message."""
        return None

    @property
    def key_order(self) -> KeyOrderView | None:
        """Hashes of keys and their owners."""
        return None

    @property
    def has_parked(self) -> bool:
        """Whether entries wait that the dispatcher reads again later."""
        return False

    @property
    def look_ahead_size_bytes(self) -> int:
        """The approximate memory of entries that wait while entries behind them are delivered."""
        return 0

    def limit_look_ahead(self, size_bytes: int) -> None:  # noqa: B027 - most types keep nothing that could be limited
        """Limit that memory. The configured limit stays the maximum; entries that are listed already stay listed."""

    # --- the contract ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def replay_entry_count(self) -> int:
        """Number of entries that wait to be sent: entries to be redelivered, and entries that were read but could not
        be sent."""

    @property
    def redelivery_entry_count(self) -> int:
        """Number of these entries that a consumer has already received."""
        return 0

    @property
    @abstractmethod
    def active_consumer(self) -> ConsumerState | None:
        """The one consumer that gets entries; None for types that serve several, and when there is none."""

    @abstractmethod
    def add_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Attach `consumer`, which has no permits yet. Raises ConsumerBusy, and nothing of it remains then."""

    @abstractmethod
    def remove_consumer(self, consumer: ConsumerState) -> Redelivery:
        """Detach `consumer`; what it did not acknowledge goes to others now, or to whoever comes next."""

    @abstractmethod
    def flow(self, consumer: ConsumerState, permits: int) -> bool:
        """Add permits (in messages); True when `consumer` can take entries now."""

    @abstractmethod
    def next_read(self) -> ReadPlan | None:
        """What to read for the consumers as they are now; None when none of them can take an entry."""

    def next_scan(self) -> ReadPlan | None:
        """What to read when the cursor has nothing more; None: nothing."""
        return None

    def scanned(self, plan: ReadPlan, up_to: Position, *, is_at_end: bool) -> None:
        """Everything in front of `up_to` that the plan's scan was to find was assigned; `is_at_end`: the cursor reads on there."""
        raise NotImplementedError(f"{self.kind} plans no scans")

    @abstractmethod
    def blocked_reason(self) -> BlockedReason:
        """Why `next_read` gave nothing."""

    @abstractmethod
    def give_back(self, plan: ReadPlan) -> None:
        """The plan's read did not give all it asked for: what of it was not delivered is asked for again."""

    def put_back(self, plan: ReadPlan, key_hashes: Sequence[int]) -> None:
        """Positions that a read brought and nobody was given, perhaps long ago, are asked for again.

        `key_hashes` of each, where the type needs them.
        """
        self.give_back(plan)

    @abstractmethod
    def assign(self, plan: ReadPlan, run: AssignInput) -> list[Delivery]:
        """Decide who gets the entries that were read for `plan`. The caller sends every delivery that is returned."""

    @abstractmethod
    def acked(self, ledger_id: int, entry_ids: Sequence[int]) -> bool:
        """Entries were acknowledged whole, by whomever; unknown ones are fine. True when somebody can move again."""

    @abstractmethod
    def acked_partly(self, ledger_id: int, entry_id: int, unacked_messages: int) -> bool:
        """Of a batch `unacked_messages` are left (0: those that transactions hold). True when somebody can move again."""

    def set_unacked(self, ledger_id: int, entry_ids: Sequence[int], unacked_messages: int) -> bool:
        """Of each of these entries so many messages are still to be acknowledged by whoever holds it, 0 for none: it is done with
        them, and they stay its own until they are acknowledged, or taken back. True when somebody can move again."""
        can_move = False
        for entry_id in entry_ids:
            can_move = self.acked_partly(ledger_id, entry_id, unacked_messages) or can_move
        return can_move

    @abstractmethod
    def acked_up_to(self, position: Position) -> bool:
        """Everything up to and including `position` is deleted (cumulative ack, expiry, skip). True as above."""

    @abstractmethod
    def redeliver(self, consumer: ConsumerState, positions: Sequence[Position] | None) -> Redelivery:
        """`consumer` wants `positions` again; None: everything that it did not acknowledge."""

    @abstractmethod
    def take_back(self, groups: Sequence[tuple[int, Sequence[int]]]) -> Redelivery:
        """These entries, whole ones by ledger, are to be sent again, whoever holds them; the others are not touched."""

    @abstractmethod
    def reset(self) -> None:
        """The cursor was moved on purpose (seek, clear): forget what was delivered and its counts, keep the consumers.

        The caller rewinds its cursor itself.
        """

    def limit_unacked(self, max_of_consumer: int, max_in_all: int) -> bool:
        """Other limits of unacknowledged messages hold from now on, 0 for none. True when somebody can move again."""
        return False

    def start(self) -> Redelivery:
        """The wait after `Redelivery.start_later` is over."""
        return Redelivery(rewind=False, wake=False)

    def mark_delete_moved(self, first_unacked: Position) -> bool:
        """Everything in front of `first_unacked` is acknowledged. True when somebody can move again."""
        return False

    @abstractmethod
    def check_invariants(self) -> None:
        """Assert what must hold between calls; slow, for tests."""
