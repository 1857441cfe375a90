"""The owner of each key hash of a Key_Shared subscription, in the mode (AUTO_SPLIT or STICKY) that its consumers
requested.

The first consumer sets the mode and whether out-of-order delivery is allowed. Both stay until the last consumer
disconnects.
"""

from __future__ import annotations

from pybroker.dispatch.consumer_state import AUTO_SPLIT, ConsumerState, KeySharedOptions
from pybroker.dispatch.selectors.auto_split import AutoSplitSelector
from pybroker.dispatch.selectors.consistent_hash import ConsistentHashSelector
from pybroker.dispatch.selectors.hash_selector import HashSelector
from pybroker.dispatch.selectors.sticky_ranges import StickyRangesSelector
from pybroker.errors import ConsumerBusy


def new_selector(ring_points: int, options: KeySharedOptions) -> HashSelector:
    """Return an empty selector, which will assign hashes to consumers in the mode of `options`. `ring_points`: points
    of each consumer on the hash ring of AUTO_SPLIT; if 0, AUTO_SPLIT divides hash ranges instead of using a ring.
    """
    if options.ranges is not None:
        return StickyRangesSelector()
    return ConsistentHashSelector(ring_points) if ring_points else AutoSplitSelector()


class HashOwners:
    """Mode, out-of-order flag and hash selector of one subscription. The dispatcher reports every consumer that joins
    or leaves.

    Invariant: every connected consumer has requested this mode and this flag.
    """

    def __init__(self, ring_points: int) -> None:
        self._ring_points = ring_points
        self._options = AUTO_SPLIT
        self.selector = new_selector(ring_points, AUTO_SPLIT)

    @property
    def mode(self) -> str:
        return "AUTO_SPLIT" if self._options.ranges is None else "STICKY"

    @property
    def allows_out_of_order_delivery(self) -> bool:
        return self._options.allow_out_of_order_delivery

    def add(self, consumer: ConsumerState, *, is_first: bool) -> list[ConsumerState]:
        """Assign hashes to `consumer`. Return the consumers that lost hashes. `is_first`: no other consumer is
        connected, so `consumer` determines the mode and the out-of-order flag. Raises ConsumerBusy if a later consumer
        requests another mode or flag, ConsumerAssignError for invalid ranges.
        """
        if is_first:
            self._options = consumer.key_shared
            self.selector = new_selector(self._ring_points, self._options)
        else:
            self._require_same(consumer.key_shared)
        return self.selector.add(consumer)

    def remove(self, consumer: ConsumerState) -> None:
        self.selector.remove(consumer)

    def _require_same(self, asked: KeySharedOptions) -> None:
        if (asked.ranges is None) != (self._options.ranges is None):
            raise ConsumerBusy(
                f"The connected consumers of the subscription use Key_Shared mode {self.mode}: connect with this mode"
            )
        if asked.allow_out_of_order_delivery != self.allows_out_of_order_delivery:
            allowed = "allowed" if self.allows_out_of_order_delivery else "not allowed"
            raise ConsumerBusy(
                f"Out-of-order delivery is {allowed} for the connected consumers of the subscription: connect with the same "
                "allowOutOfOrderDelivery"
            )
