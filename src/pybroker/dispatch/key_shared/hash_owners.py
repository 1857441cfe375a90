"""Who owns which hash of a Key_Shared subscription, in the mode that its connected consumers have asked for.

Mode and out-of-order flag are those of the first consumer, and belong to the connected consumers: when all are gone, the
next one brings its own. What happens to the entries of a hash that moves is for the dispatcher to say.
"""

from __future__ import annotations

from pybroker.dispatch.consumer_state import AUTO_SPLIT, ConsumerState, KeySharedOptions
from pybroker.dispatch.selectors.auto_split import AutoSplitSelector
from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.dispatch.selectors.hash_selector import HashSelector
from pybroker.dispatch.selectors.sticky_ranges import StickyRangesSelector
from pybroker.errors import ConsumerBusy


def new_selector(ring_points: int, options: KeySharedOptions) -> HashSelector:
    """The selector of the mode that a first consumer asks for.

    `ring_points` of each consumer; 0: AUTO_SPLIT by ranges that are halved instead of a ring.
    """
    if options.ranges is not None:
        return StickyRangesSelector()
    return ConsistentHashSelector(ring_points) if ring_points else AutoSplitSelector()


class HashOwners:
    """Owned by its dispatcher, which tells of every consumer that comes or goes.

    Invariant: every connected consumer has asked for this mode and this flag.
    """

    def __init__(self, ring_points: int) -> None:
        self._ring_points = ring_points
        self._options = AUTO_SPLIT
        self.selector = new_selector(ring_points, AUTO_SPLIT)

    @property
    def mode(self) -> str:
        """As the protocol and the stats name it."""
        return "AUTO_SPLIT" if self._options.ranges is None else "STICKY"

    @property
    def allows_out_of_order_delivery(self) -> bool:
        return self._options.allow_out_of_order_delivery

    def add(self, consumer: ConsumerState, *, is_first: bool) -> list[ConsumerState]:
        """Give `consumer` its hashes; the consumers that lost some to it.

        Raises ConsumerBusy for another mode or flag than the connected ones', ConsumerAssignError for its ranges.
        """
        if is_first:
            self._options = consumer.key_shared
            self.selector = new_selector(self._ring_points, self._options)
        else:
            self._require_same(consumer.key_shared)
        return self.selector.add(consumer)

    def remove(self, consumer: ConsumerState) -> None:
        """Its hashes go to others."""
        self.selector.remove(consumer)

    def _require_same(self, asked: KeySharedOptions) -> None:
        if (asked.ranges is None) != (self._options.ranges is None):
            raise ConsumerBusy(f"Subscription is of Key_Shared mode {self.mode} while its consumers are connected")
        if asked.allow_out_of_order_delivery != self.allows_out_of_order_delivery:
            allowed = "allowed" if self.allows_out_of_order_delivery else "not allowed"
            raise ConsumerBusy(f"Out-of-order delivery is {allowed} for the connected consumers of the subscription")
