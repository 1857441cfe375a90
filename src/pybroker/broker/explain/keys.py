"""Findings about blocked keys of a Key_Shared subscription, and the consumers that block them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from heapq import nlargest
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker.broker.explain import actions
from pybroker.broker.explain.consumers import IDS_LISTED, consumer_of, reference
from pybroker.broker.explain.known_keys import known_keys
from pybroker.broker.explain.steps import LISTED, PIECE, counted, cut, duration, for_long
from pybroker.dispatch.views import KeyOrderView
from pybroker.model.finding_evidence import key_text
from pybroker.model.findings import Code, Finding
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.dispatch.consumer_state import ConsumerState
    from pybroker.dispatch.pending_acks import PendingAcks


class WaitingHash(NamedTuple):
    """Waiting entries of one key hash: their number, whether more are parked, and the start of the wait (milliseconds
    since 1970).
    """

    sticky_hash: int
    entries: int
    has_more: bool
    since_ms: int | None


class HeldBack:
    """Blocked entries of a Key_Shared subscription, by cause and key hash."""

    def __init__(self) -> None:
        self.for_consumers: Counter[ConsumerState] = Counter()
        """Number of blocked entries per consumer that cannot receive them. Parked entries of a hash count as one."""
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
        """Return the draining hashes whose previous or next consumer is one of `consumers`, and the number of blocked
        entries of each recently joined consumer among `consumers`.

        The number of entries for each consumer that cannot receive messages now is always included, even if the
        consumer is not in `consumers`.
        """
        found = HeldBack()
        found.for_consumers = self.for_consumers
        found.newcomers = Counter({each: entries for each, entries in self.newcomers.items() if each in consumers})
        for each in self.draining:
            holder, owner = (
                key_order.draining.holder(each.sticky_hash),
                key_order.owners.selector.owner(each.sticky_hash),
            )
            if holder in consumers or owner in consumers:
                found.draining.append(each)
        return found


def held_back(key_order: KeyOrderView, only: int | None = None) -> Generator[None, None, HeldBack]:
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
    """Return findings about draining hashes and hashes without a consumer. With the Key_Shared rules before Pulsar 4.0
    (classic mode), also about new consumers that wait until earlier messages are acknowledged.
    """
    findings: list[Finding] = []
    if found.draining:
        findings += yield from _of_draining(subscription, key_order, found.draining)
    if found.without_owner:
        findings.append((yield from _without_owner(subscription, key_order, found.without_owner)))
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
    keys = yield from known_keys(subscription.cursor.ledger, key_order, ids)
    unacked = 0
    holders: dict[ConsumerState, None] = {}
    for index, each in enumerate(hashes):
        state = key_order.draining.of(each.sticky_hash)
        if state is not None:  # else the hash has been freed since
            unacked += state.unacked_messages
            holders[state.consumer] = None
        if index % PIECE == PIECE - 1:
            yield
    shown: list[dict[str, Any]] = []
    first: tuple[WaitingHash, ConsumerState] | None = None
    for each in listed:
        holder = key_order.draining.holder(each.sticky_hash)
        if holder is None or holder is not draining.get(each.sticky_hash):
            continue  # The hash has been freed since.
        first = first or (each, holder)
        drain = _drain(key_order, each.sticky_hash, holder, ids.get(each.sticky_hash, []))
        shown.append(_shown(each) | keys.get(each.sticky_hash, {}) | drain)
    if first is None:
        return []
    _, holder = first
    clock = subscription.runtime.clock
    since_ms = min((each.since_ms for each in hashes if each.since_ms is not None), default=None)
    oldest_ms = min((each["oldestDelivered"] for each in shown if each["oldestDelivered"] is not None), default=None)
    age = "" if oldest_ms is None else f" (oldest: {duration(max(0, clock.wall_ms() - oldest_ms))} ago)"
    moved = (
        "before the key moved to another consumer" if len(hashes) == 1 else "before these keys moved to other consumers"
    )
    who = f"consumer {holder.name} has" if len(holders) == 1 else f"{len(holders):,} consumers have"
    more = max(0, len(hashes) - len(shown))
    return [
        Finding(
            Code.KEY_DRAINS,
            f"{_blocked(shown[0], len(hashes))}: {who} not acknowledged {counted(unacked, 'message')} received {moved}{age};"
            f" {_amount_of_all(hashes)}{for_long(since_ms, clock)}.",
            since_ms=since_ms,
            evidence={"hashes": shown, "moreHashes": more},
            actions=(
                actions.explain_consumer(consumer_of(holder)),
                actions.show_draining_hashes(subscription),
                actions.disconnect(consumer_of(holder)),
            ),
            more_command=actions.show_draining_hashes(subscription).command if more else "",
        )
    ]


def _blocked(row: Mapping[str, Any], hashes: int) -> str:
    """Return a text that lists the known blocked keys of a hash. Several keys can share a hash."""
    if hashes > 1:
        return f"Keys of {hashes:,} hashes are blocked"
    keys = [key_text(each) for each in row.get("keys", ())]
    if len(keys) == 1:
        return f"Key {cut(keys[0])} is blocked"
    if keys:
        others = len(keys) - 1 + int(row.get("moreKeys", 0))
        return f"Key {cut(keys[0])} and {counted(others, 'other key')} with the same hash are blocked"
    return f"The key with hash {row['hash']} is blocked"


def _drain(key_order: KeyOrderView, sticky_hash: int, holder: ConsumerState, ids: list[Position]) -> dict[str, Any]:
    owner, draining = key_order.owners.selector.owner(sticky_hash), key_order.draining.of(sticky_hash)
    return {
        "from": reference(consumer_of(holder)),
        "to": None if owner is None else reference(consumer_of(owner)),
        "unackedMessages": 0 if draining is None else draining.unacked_messages,
        "oldestDelivered": min(
            (each for position in ids if (each := key_order.pending.delivered_ms(position)) is not None), default=None
        ),
        "drainsSince": None if draining is None else draining.since_ms or None,
        "blockedAttempts": 0 if draining is None else draining.blocked_attempts,
        "messageIds": [str(position) for position in ids],
    }


def _without_owner(
    subscription: Subscription, key_order: KeyOrderView, hashes: list[WaitingHash]
) -> Generator[None, None, Finding]:
    listed = nlargest(LISTED, hashes, key=lambda each: each.entries)
    since_ms = min((each.since_ms for each in hashes if each.since_ms is not None), default=None)
    keys = yield from known_keys(subscription.cursor.ledger, key_order, {each.sticky_hash: () for each in listed})
    shown = [_shown(each) | keys.get(each.sticky_hash, {}) for each in listed]
    ranges = "its hash is" if len(hashes) == 1 else "these hashes are"
    more = max(0, len(hashes) - len(listed))
    return Finding(
        Code.HASH_WITHOUT_OWNER,
        f"{_blocked(shown[0], len(hashes))}: {ranges} outside the hash ranges of all connected consumers;"
        f" {_amount_of_all(hashes)}{for_long(since_ms, subscription.runtime.clock)}.",
        since_ms=since_ms,
        evidence={"hashes": shown, "moreHashes": more},
        actions=(actions.show_subscriptions(subscription.topic.name),),
        more_command=actions.show_waiting(subscription).command if more else "",
    )


def _newcomers(subscription: Subscription, key_order: KeyOrderView, newcomers: Mapping[ConsumerState, int]) -> Finding:
    first = max(newcomers, key=lambda each: newcomers[each])
    position = key_order.newcomers_wait_at[first]
    unacked = subscription.cursor.first_unacked_position
    return Finding(
        Code.NEWCOMER_WAITS,
        f"Consumer {first.name} joined when the subscription had read up to {position}. It receives no later messages"
        f" until all earlier messages are acknowledged; the first unacknowledged entry is {unacked}.",
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
    """Return, for each hash in `hashes`, the positions of the first few entries that its consumer has not acknowledged.
    `hashes`: the consumer of each hash.
    """
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
