"""Key_Shared: the blocked keys with the consumers that block them, and the consumer of one key.

The blocked entries are examined hash by hash (several keys may share one), each in its state at that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import IDS_LISTED, consumer_of, reference
from pybroker.broker.explain.steps import LISTED, PIECE, counted, for_long
from pybroker.dispatch.views import KeyOrderView
from pybroker.model.findings import Code, Finding
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.pending_acks import PendingAcks


class WaitingHash(NamedTuple):
    """The entries of one hash that no consumer may receive now: listed entries, whether there are more, and since when."""

    sticky_hash: int
    entries: int
    has_more: bool
    since_ms: int | None


class HeldBack:
    """The blocked entries of a Key_Shared subscription, by cause."""

    def __init__(self) -> None:
        self.for_consumers: Counter[ConsumerState] = Counter()
        """Listed entries of consumers that cannot receive them, and one for parked entries."""
        self.newcomers: Counter[ConsumerState] = Counter()
        self.draining: list[WaitingHash] = []
        self.without_owner: list[WaitingHash] = []

    def add(self, key_order: KeyOrderView, hash_: WaitingHash) -> None:
        place = key_order.place(hash_.sticky_hash)
        if place is None:
            is_draining = key_order.draining.holder(hash_.sticky_hash) is not None
            (self.draining if is_draining else self.without_owner).append(hash_)
        elif place in key_order.newcomers_wait_at:
            self.newcomers[place] += max(1, hash_.entries)
        elif not place.can_take():
            self.for_consumers[place] += max(1, hash_.entries)

    def because_of(self, consumers: Collection[ConsumerState], key_order: KeyOrderView) -> HeldBack:
        """Return the part that these consumers block for others or wait for themselves, and all entries that are listed for single
        consumers.
        """
        found = HeldBack()
        found.for_consumers = self.for_consumers
        found.newcomers = Counter({each: entries for each, entries in self.newcomers.items() if each in consumers})
        found.draining = [each for each in self.draining if key_order.draining.holder(each.sticky_hash) in consumers]
        return found


def held_back(key_order: KeyOrderView, only: int | None = None) -> Generator[None, None, HeldBack]:
    """Return the blocked entries, of all hashes or of one."""
    found = HeldBack()
    waiting, parked = key_order.waiting.waiting, key_order.parked
    hashes = list({*waiting, *parked.hashes}) if only is None else [only]
    for index, sticky_hash in enumerate(hashes):
        listed = waiting.get(sticky_hash)
        has_more = sticky_hash in parked
        if listed is not None or has_more:
            entries = 0 if listed is None else listed.count
            since_ms = None if listed is None or not listed.since_ms else int(listed.since_ms)
            found.add(key_order, WaitingHash(sticky_hash, entries, has_more, since_ms))
        if index % PIECE == PIECE - 1:
            yield
    return found


def of_hashes(
    subscription: Subscription, key_order: KeyOrderView, found: HeldBack
) -> Generator[None, None, list[Finding]]:
    """Report draining hashes, hashes without an owner, and new consumers that wait."""
    findings: list[Finding] = []
    if found.draining:
        findings += yield from _of_draining(subscription, key_order, found.draining)
    if found.without_owner:
        findings.append(_without_owner(subscription, found.without_owner))
    newcomers = {state: entries for state, entries in found.newcomers.items() if state in key_order.newcomers_wait_at}
    if newcomers:
        findings.append(_newcomers(subscription, key_order, newcomers))
    return findings


def _of_draining(
    subscription: Subscription, key_order: KeyOrderView, hashes: list[WaitingHash]
) -> Generator[None, None, list[Finding]]:
    listed = nlargest(LISTED, hashes, key=lambda each: each.entries)
    yield
    draining = {
        each.sticky_hash: holder
        for each in listed
        if (holder := key_order.draining.holder(each.sticky_hash)) is not None
    }
    ids = yield from held_ids(key_order.pending, draining)
    shown: list[dict[str, Any]] = []
    first: tuple[WaitingHash, ConsumerState] | None = None
    for each in listed:
        holder = key_order.draining.holder(each.sticky_hash)
        if holder is None or holder is not draining.get(each.sticky_hash):
            continue  # drained meanwhile
        first = first or (each, holder)
        shown.append(_shown(each) | _drain(key_order, each.sticky_hash, holder, ids.get(each.sticky_hash, [])))
    if first is None:
        return []
    waiting, holder = first
    owner = key_order.owners.selector.owner(waiting.sticky_hash)
    clock = subscription.runtime.clock
    since_ms = min((each.since_ms for each in hashes if each.since_ms is not None), default=None)
    to = "no consumer" if owner is None else f"consumer {owner.name}"
    held = counted(int(shown[0]["unackedMessages"]), "message")
    which = (
        f"Hash {waiting.sticky_hash} drains"
        if len(hashes) == 1
        else f"{len(hashes):,} hashes drain, most messages wait for hash {waiting.sticky_hash}"
    )
    return [
        Finding(
            Code.KEY_DRAINS,
            f"{which}: consumer {holder.name} has not acknowledged {held} that it received before the hash moved to {to}:"
            f" {_amount_of_all([waiting])}{for_long(waiting.since_ms, clock)}.",
            since_ms=since_ms,
            evidence={"hashes": shown, "moreHashes": max(0, len(hashes) - len(shown))},
            actions=(
                actions.explain_consumer(consumer_of(holder)),
                actions.show_draining_hashes(subscription),
                actions.disconnect(consumer_of(holder)),
            ),
        )
    ]


def _drain(key_order: KeyOrderView, sticky_hash: int, holder: ConsumerState, ids: list[Position]) -> dict[str, Any]:
    owner, draining = key_order.owners.selector.owner(sticky_hash), key_order.draining.of(sticky_hash)
    return {
        "from": reference(consumer_of(holder)),
        "to": None if owner is None else reference(consumer_of(owner)),
        "unackedMessages": 0 if draining is None else draining.unacked_messages,
        "drainsSince": None if draining is None else draining.since_ms or None,
        "blockedAttempts": 0 if draining is None else draining.blocked_attempts,
        "messageIds": [str(position) for position in ids],
    }


def _without_owner(subscription: Subscription, hashes: list[WaitingHash]) -> Finding:
    listed = nlargest(LISTED, hashes, key=lambda each: each.entries)
    since_ms = min((each.since_ms for each in hashes if each.since_ms is not None), default=None)
    most = listed[0]
    which = f"Hash {most.sticky_hash} has" if len(hashes) == 1 else f"{len(hashes):,} hashes have"
    return Finding(
        Code.HASH_WITHOUT_OWNER,
        f"{which} no consumer that asked for it: {_amount_of_all(hashes)}{for_long(since_ms, subscription.runtime.clock)}"
        " until one does.",
        since_ms=since_ms,
        evidence={"hashes": [_shown(each) for each in listed], "moreHashes": max(0, len(hashes) - len(listed))},
    )


def _newcomers(subscription: Subscription, key_order: KeyOrderView, newcomers: Mapping[ConsumerState, int]) -> Finding:
    first = max(newcomers, key=lambda each: newcomers[each])
    position = key_order.newcomers_wait_at[first]
    unacked = subscription.cursor.first_unacked_position
    return Finding(
        Code.NEWCOMER_WAITS,
        f"Consumer {first.name} joined when the subscription had read up to {position}, and receives no later entries"
        f" until all earlier ones are acknowledged; the first unacknowledged entry is {unacked}.",
        since_ms=consumer_of(first).connected_since_ms,
        evidence={
            "consumers": [
                reference(consumer_of(each)) | {"waitingEntries": newcomers[each]} for each in list(newcomers)[:LISTED]
            ],
            "moreConsumers": max(0, len(newcomers) - LISTED),
            "waitsFor": str(position),
            "firstUnacked": str(unacked),
        },
    )


def held_ids(
    pending: PendingAcks, hashes: Mapping[int, ConsumerState]
) -> Generator[None, None, dict[int, list[Position]]]:
    """The first few entries of each of these hashes that its consumer holds."""
    ids: dict[int, list[Position]] = {sticky_hash: [] for sticky_hash in hashes}
    looked_at = 0
    for consumer in set(hashes.values()):
        wanted = {sticky_hash for sticky_hash, holder in hashes.items() if holder is consumer}
        for ledger_id, entry_ids, _ in pending.deliveries(consumer):
            for entry_id in entry_ids:
                looked_at += 1
                if not looked_at % (5 * PIECE):
                    yield
                hold = pending.hold(Position(ledger_id, entry_id))
                if hold is not None and hold[0] is consumer and hold[2] in wanted:
                    ids[hold[2]].append(Position(ledger_id, entry_id))
                    if len(ids[hold[2]]) >= IDS_LISTED:
                        wanted.discard(hold[2])
            if not wanted:
                break
    return {sticky_hash: sorted(set(found)) for sticky_hash, found in ids.items()}


def _shown(each: WaitingHash) -> dict[str, Any]:
    shown: dict[str, Any] = {"hash": each.sticky_hash, "waitingEntries": each.entries, "since": each.since_ms}
    if each.has_more:
        shown["hasMore"] = True
    return shown


def _amount_of_all(hashes: Collection[WaitingHash]) -> str:
    more = "more than " if any(each.has_more for each in hashes) else ""
    return f"{more}{counted(sum(each.entries for each in hashes), 'entry waits', 'entries wait')}"
