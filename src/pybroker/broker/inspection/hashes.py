"""Key hashes of a Key_Shared subscription: the consumer of a key, draining hashes, and waiting entries, sorted by hash."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from pybroker.broker.inspection.pages import ENTRIES_PER_STEP, Steps, pieces_of
from pybroker.model.hashing import key_hash
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.draining_hashes import DrainingHash
    from pybroker.dispatch.selectors.hash_selector import HashRange
    from pybroker.dispatch.views import KeyOrderView

MAX_POSITIONS_SHOWN = 10
"""Maximum number of listed unacknowledged positions per hash."""


class HashOfKey(NamedTuple):
    """State of one hash. `draining`: a previous consumer holds unacknowledged messages. `listed`: number of waiting
    entries in memory. More entries may wait from `parked_from` on.
    """

    sticky_hash: int
    owner: ConsumerState | None
    draining: DrainingHash | None
    listed: int
    waits_since_ms: int | None
    parked_from: Position | None

    @property
    def state(self) -> str:
        if self.draining is not None:
            return "draining"
        if self.owner is None:
            return "unowned"
        return "waiting" if self.listed or self.parked_from is not None else "owned"


def hash_of_key(key_order: KeyOrderView, key: bytes) -> int:
    """Return the sticky key hash of `key`."""
    return key_order.owners.selector.sticky_hashes([key_hash(key)])[0]


def look_up(key_order: KeyOrderView, sticky_hash: int) -> HashOfKey:
    owner = key_order.owners.selector.owner(sticky_hash)
    draining = key_order.draining.of(sticky_hash)
    if draining is not None and draining.consumer is owner:
        # The hash has moved back to its draining consumer, and the dispatcher removes it with the next entry.
        draining = None
    waiting = key_order.waiting.waiting.get(sticky_hash)
    parked = key_order.parked
    return HashOfKey(
        sticky_hash,
        owner,
        draining,
        0 if waiting is None else waiting.count,
        None if waiting is None else int(waiting.since_ms) or None,
        parked.from_position(sticky_hash) if sticky_hash in parked else None,
    )


def range_around(key_order: KeyOrderView, at: HashOfKey) -> HashRange | None:
    """Return the hash range that contains the hash `at` and belongs to its consumer; None if the hash has no consumer.
    Slow with a thousand consumers, because the ranges of all consumers are computed.
    """
    ranges = [] if at.owner is None else key_order.owners.selector.ranges().get(at.owner, [])
    index = bisect_right(ranges, (at.sticky_hash, 1 << 62)) - 1
    if index < 0 or not ranges[index][0] <= at.sticky_hash <= ranges[index][1]:
        return None
    return ranges[index]


class DrainingRow(NamedTuple):
    """A draining hash, its next consumer, and the first entries that must be acknowledged."""

    sticky_hash: int
    draining: DrainingHash
    new_owner: ConsumerState | None
    positions: list[Position]


def draining_page(key_order: KeyOrderView, after: int, limit: int) -> Steps[tuple[list[DrainingRow], int]]:
    """Return up to `limit` draining hashes greater than `after`, in ascending order, and the total number of draining
    hashes.
    """
    draining = key_order.draining
    hashes = sorted(each for each in draining.hashes() if each > after)[:limit]
    yield
    positions: dict[int, list[Position]] = {each: [] for each in hashes}
    missing = {each: min(MAX_POSITIONS_SHOWN, shown.unacked_entries) for each in hashes if (shown := draining.of(each))}
    for ledger_id, entry_ids, holds in pieces_of(key_order.pending) if missing else ():
        for entry_id in entry_ids:
            hold = holds.get(entry_id)
            if hold is None or hold[2] not in missing:
                continue
            sticky_hash = hold[2]
            if draining.holder(sticky_hash) is not hold[0]:
                continue
            positions[sticky_hash].append(Position(ledger_id, entry_id))
            missing[sticky_hash] -= 1
            if not missing[sticky_hash]:
                del missing[sticky_hash]
        if not missing:
            break
        yield
    owner = key_order.owners.selector.owner
    rows = []
    for sticky_hash in hashes:
        shown = draining.of(sticky_hash)
        if shown is not None:  # else it has been freed since
            rows.append(DrainingRow(sticky_hash, shown, owner(sticky_hash), positions[sticky_hash]))
    return rows, len(draining)


class WaitingRow(NamedTuple):
    """Waiting entries of one hash, and the consumer that blocks them."""

    at: HashOfKey
    filler: ConsumerState | None


def waiting_page(key_order: KeyOrderView, after: int, limit: int) -> Steps[tuple[list[WaitingRow], int]]:
    replay, parked = key_order.waiting, key_order.parked
    waiting = {*replay.waiting, *parked.hashes}
    yield
    rows = []
    for index, sticky_hash in enumerate(sorted(each for each in waiting if each > after)[:limit]):
        if index % ENTRIES_PER_STEP == 0:
            yield
        at = look_up(key_order, sticky_hash)
        if at.listed or at.parked_from is not None:  # else they have been sent since
            rows.append(WaitingRow(at, replay.filler_of(sticky_hash)))
    return rows, len(waiting)
