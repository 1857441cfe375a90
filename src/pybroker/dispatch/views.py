"""Read-only views of a dispatcher's state for statistics and `explain`.

A dispatcher has a property for each view (such as `Dispatcher.individual`), which is None if its type does not track
these values. Code outside this package uses views and never the class of a dispatcher. Views are live: after yielding
to the event loop, get the view again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pybroker.dispatch.chunks.chunked_messages import ChunkedMessages
from pybroker.dispatch.chunks.parked_chunks import ParkedChunks
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.draining_hashes import DrainingHashes
from pybroker.dispatch.key_shared.hash_owners import HashOwners
from pybroker.dispatch.key_shared.keyed_redelivery import KeyedReplay
from pybroker.dispatch.key_shared.parked_hashes import ParkedHashes
from pybroker.dispatch.look_ahead import ChunkLookAhead, LookAhead
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.redelivery_queue import RedeliveryCounts
from pybroker.dispatch.selectors.sticky_ranges import StickyRangesSelector
from pybroker.dispatch.shared_redelivery import BoundReplay
from pybroker.model.position import Position


class InOrderView(Protocol):
    """Exclusive and Failover subscriptions, with one active consumer that receives all entries in order."""

    @property
    def ranges(self) -> StickyRangesSelector | None:
        """The hash ranges of the active consumer; entries of other hashes are skipped. None without ranges."""

    def delivered_ms(self, position: Position) -> int | None:
        """Return the approximate time in milliseconds since 1970 at which the entry at `position` was delivered; None
        if it is unknown.
        """

    def first_delivered_after(self, time_ms: int) -> Position | None: ...


class IndividualView(Protocol):
    """Shared and Key_Shared subscriptions, with several consumers and individual acknowledgements."""

    redelivery_counts: RedeliveryCounts
    unacked_messages: int

    @property
    def pending(self) -> PendingAcks: ...

    @property
    def chunked(self) -> ChunkedMessages: ...

    @property
    def max_unacked_messages(self) -> int:
        """The limit of unacknowledged messages of the whole subscription; 0 means no limit."""

    @property
    def replay_entry_count(self) -> int: ...

    def chunks_beside(self, consumer: ConsumerState, position: Position) -> list[Position]: ...


class ChunkOrderView(IndividualView, Protocol):
    """Shared subscriptions: the chunks that wait for the consumer of their message's first chunk."""

    @property
    def waiting(self) -> BoundReplay: ...

    @property
    def parked_chunks(self) -> ParkedChunks: ...

    @property
    def holds_chunks_back(self) -> bool: ...

    def bound_entries(self) -> dict[ConsumerState, int]: ...

    def look_ahead(self) -> ChunkLookAhead: ...


class KeyOrderView(IndividualView, Protocol):
    """Key_Shared subscriptions: the owners of the key hashes, and the entries that wait for each hash."""

    draining: DrainingHashes
    owners: HashOwners
    consumers: list[ConsumerState]

    @property
    def waiting(self) -> KeyedReplay: ...

    @property
    def parked(self) -> ParkedHashes: ...

    @property
    def newcomers_wait_at(self) -> Mapping[ConsumerState, Position]:
        """In classic mode (as before Pulsar 4.0), the position before which each consumer of `recently_joined` may
        receive entries: the lowest position in `recently_joined`, the same for each of them. Empty in other modes.
        """

    @property
    def look_ahead_entry_limit(self) -> int | None:
        """The number of entries in the look-ahead buffer at which the dispatcher reads no new entries; None without
        such a limit.
        """

    def recently_joined(self) -> list[tuple[ConsumerState, Position]]:
        """In classic mode (as before Pulsar 4.0), return the new consumers, each with the cursor's read position when
        it joined. A consumer is new until all entries before this position are acknowledged. Empty in other modes.
        """

    def place(self, sticky_hash: int) -> ConsumerState | None:
        """Return the consumer that may receive entries of this sticky key hash; None while the hash drains or has no
        owner.
        """

    def is_full(self) -> bool:
        """Return whether the look-ahead buffer is full, so that the dispatcher reads no new entries."""

    def look_ahead(self, max_hashes: int) -> LookAhead: ...
