"""Transactional acknowledgements of one subscription, and the entries that are parked because of them.

Pending transaction acks are stored with the cursor (`managed_ledger/pending_transaction_acks.py`). A message with a
pending ack stays assigned to its consumer. If its entry is read again, it is parked here. A commit acknowledges the
message; an abort redelivers it with a higher redelivery count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pybroker.broker.delivery.acknowledgement import Acknowledged, PartOfBatch, receipt, refuse
from pybroker.broker.delivery.parked_entries import ParkedEntries
from pybroker.broker.delivery.stages import Stage
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan, Redelivery
from pybroker.errors import (
    BrokerError,
    NotAllowedError,
    StoreError,
    TooManyRequests,
    TransactionConflict,
    TransactionNotFound,
)
from pybroker.managed_ledger.pending_transaction_acks import Hold
from pybroker.model import ack_set
from pybroker.model.hashing import key_hash
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.runtime import logs
from pybroker.runtime.tasks import completion
from pybroker.wire.entry_metadata import sticky_key

if TYPE_CHECKING:
    from pybroker.broker.context.topic_context import TopicContext
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.managed_ledger.managed_cursor import ManagedCursor, PersistDone
    from pybroker.model.events import Ack

SLICE_ENTRIES = 5000
"""Maximum number of entries that the dispatcher processes in one event loop iteration."""

Settle = Callable[[Acknowledged, "PersistDone"], object]


class SubscriptionTransactions(Stage):
    """Adds and ends pending transaction acks, and parks entries with such acks when they are read."""

    def __init__(
        self,
        topic: TopicContext,
        name: str,
        cursor: ManagedCursor,
        settle: Settle,
        dispatcher: Callable[[], Dispatcher | None],
        apply: Callable[[Redelivery], None],
        in_use: Callable[[], None],
    ) -> None:
        """`settle` applies an acknowledgement and calls back when it is durable. `apply` redelivers entries. `in_use`
        is called before the first pending ack, unless the cursor was loaded with pending acks.
        """
        self._topic = topic
        self._name = name
        self._cursor = cursor
        self._settle = settle
        self._dispatcher = dispatcher
        self._apply = apply
        self._in_use = in_use
        self.is_in_use = bool(cursor.state.held)
        """Whether the subscription has had pending acks since it was loaded."""
        self._parked = ParkedEntries()
        self.first_seen: dict[TxnId, tuple[int, str]] = {}
        """First acknowledgement of each transaction since the load: time in milliseconds since 1970, and consumer name."""

    # --- acknowledgements --------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, ack: Ack, txn: TxnId, what: Acknowledged) -> None:
        """Add the acknowledgement `what` as a pending ack of the transaction `txn`. The client receives ACK_RESPONSE
        when the pending ack is durable, or with an error if the pending ack is refused.
        """
        topic = self._topic
        refused = self._refused_before(txn) or topic.broker_context.taking_part(
            txn, consumer.peer.principal, str(topic.name), self._name
        )
        if refused is None:
            refused = self.hold(txn, what)
        if refused is None:
            if txn in self._cursor.state.held.open:
                self.first_seen.setdefault(txn, (self._topic.runtime.clock.wall_ms(), consumer.name))
            self._not_waited_for(what)
            self._cursor.changed(receipt(consumer, ack))
        else:
            refuse(consumer, ack, refused)

    def _not_waited_for(self, what: Acknowledged) -> None:
        """Remove entries with a pending ack from the consumer's unacknowledged message count, so that a transaction
        with more messages than the limit does not block itself.
        """
        dispatcher = self._dispatcher()
        if dispatcher is None:
            return
        held, state = self._cursor.state.held, self._cursor.state
        can_move = False
        for ledger_id, entry_ids in what.groups:
            can_move = dispatcher.set_unacked(ledger_id, entry_ids, 0) or can_move
        for position, _, count in what.parts:
            words = state.ack_set_of(*position)
            left = ack_set.full(count) if words is None else ack_set.left_of(count, words)
            left &= ~held.parts_of(position.ledger_id).get(position.entry_id, 0)
            can_move = dispatcher.set_unacked(position.ledger_id, [position.entry_id], left.bit_count()) or can_move
        self._apply(Redelivery(rewind=False, wake=can_move))

    def hold(self, txn: TxnId, what: Acknowledged) -> BrokerError | None:
        """Add a pending ack without storing it. If the pending ack is refused, for example because of a conflict with
        another acknowledgement, add nothing and return the error.
        """
        held, state = self._cursor.state.held, self._cursor.state
        if (refused := self._refused_before(txn)) is not None:
            return refused
        limit = self._topic.runtime.config.max_open_transactions_per_topic
        if 0 < limit <= len(held.open) and txn not in held.open:
            return TooManyRequests(
                f"{limit} open transactions have pending acks of the subscription, the maximum: commit or abort "
                "some (maxOpenTransactionsPerTopic)"
            )
        done = self._acknowledged_before(what)
        if done is not None:
            return self._conflict(txn, done, "which is acknowledged")
        what = self._existing(what)
        found = held.conflict(txn, *what)
        if found is not None:
            return self._conflict(txn, found, "in pending ack status")
        if what != Acknowledged():
            if not self.is_in_use:
                self.is_in_use = True
                self._in_use()
            held.hold(txn, *what)
            state.held_changed()
        return None

    def _refused_before(self, txn: TxnId) -> BrokerError | None:
        if not self._cursor.is_durable:
            return NotAllowedError(
                f"Subscription {self._name} is not durable, so it does not support acknowledgements in "
                "transactions: use a durable subscription"
            )
        if self._cursor.state.held.has_ended(txn):
            return TransactionNotFound(f"Transaction {txn} has ended. Please use a new transaction to acknowledge")
        return None

    def _conflict(self, txn: TxnId, position: Position, why: str) -> TransactionConflict:
        return TransactionConflict(
            f"[{self._topic.name}][{self._name}] Transaction:{txn} try to ack message:{position} {why}."
        )

    def _acknowledged_before(self, what: Acknowledged) -> Position | None:
        state, ledgers = self._cursor.state, self._cursor.ledger.ledgers
        if what.up_to is not None and ledgers.floor(what.up_to) <= state.mark_delete_position and not what.parts:
            return what.up_to
        for ledger_id, entry_ids in what.groups:
            first = min(entry_ids)
            if len(entry_ids) == 1:
                if state.is_deleted(ledger_id, first):
                    return Position(ledger_id, first)
                continue
            if not ledgers.has_ledger(ledger_id):
                return Position(ledger_id, first)
            deleted = state.deleted_in(ledger_id)
            for entry_id in entry_ids:
                if entry_id <= ledgers.entry_count_of(ledger_id) and entry_id in deleted:
                    return Position(ledger_id, entry_id)
        for position, words, count in what.parts:
            if state.is_deleted(*position):
                return position
            left = state.ack_set_of(*position)
            asked = ack_set.full(count) & ~ack_set.left_of(count, words)
            if left is not None and asked & ~ack_set.left_of(count, left):
                return position
        return None

    def _existing(self, what: Acknowledged) -> Acknowledged:
        ledgers = self._cursor.ledger.ledgers
        up_to = None if what.up_to is None or what.up_to > ledgers.last_position else ledgers.floor(what.up_to)
        groups = []
        for ledger_id, entry_ids in what.groups:
            end = ledgers.entry_count_of(ledger_id)
            existing = [entry_id for entry_id in entry_ids if 0 <= entry_id < end]
            if existing:
                groups.append((ledger_id, existing))
        parts = [part for part in what.parts if ledgers.has_entry(part.position)]
        return Acknowledged(up_to, tuple(groups), tuple(parts))

    # --- ends --------------------------------------------------------------------------------------------------------

    async def end(self, txn: TxnId, action: TxnAction, low_water_mark: int) -> None:
        """Commit or abort the pending acks of the transaction. Durable on return. An unknown transaction is not an
        error.

        `low_water_mark`: all transactions of the same coordinator with this or a lower id have ended, so their
        remaining pending acks are aborted. Raises BrokerError: the caller must retry.
        """
        held = self._cursor.state.held
        await self._end(txn, action)
        late = held.raise_low_water_mark(txn.most, low_water_mark)
        failure: BrokerError | None = None
        for each in late:
            logs.warning(
                "transaction.late_acknowledgements",
                topic=self._topic.name,
                subscription=self._name,
                transaction=str(each),
                action="aborted",
            )
            try:
                await self._end(each, TxnAction.ABORT)
            except BrokerError as error:
                failure = error  # The other entries are released; the failure is reported once.
        if failure is not None:
            raise failure

    async def _end(self, txn: TxnId, action: TxnAction) -> None:
        state = self._cursor.state
        hold = state.held.open.get(txn)
        if hold is not None and action is TxnAction.COMMIT and hold.entry_count > SLICE_ENTRIES:
            await self._forgotten_by_dispatcher(hold)
        hold = state.held.end(txn)
        if state.held.has_changes:
            state.held_changed()
        self.first_seen.pop(txn, None)
        try:
            if hold is None:
                # The record of an earlier end may not be durable yet.
                await self._cursor.persist()
                return
            stored, done = completion()
            if action is TxnAction.COMMIT:
                # One record contains both the end and its acknowledgements.
                parts = [PartOfBatch(*part) for part in hold.left_parts]
                self._settle(Acknowledged(hold.up_to, hold.groups, parts), done)
                self._parked.forget(hold)
            else:
                self._cursor.changed(done)
                self._let_go(hold)
            await stored
        except StoreError as error:
            raise error.answer(f"the end of transaction {txn} cannot be stored: ") from error

    def _let_go(self, hold: Hold) -> None:
        steps = self._sent_again(hold)
        if next(steps, None) is not None:
            self._topic.tasks.start(_exhaust(steps), f"abort on {self._name}")

    def _sent_again(self, hold: Hold) -> Iterator[int]:
        """Return the entries of an aborted transaction to the dispatcher, in slices. Yield the size of each slice in
        entries.
        """
        state, dispatcher = self._cursor.state, self._dispatcher()
        for of, plan, key_hashes in list(self._parked.take(hold)):
            if of is dispatcher:
                of.put_back(plan, key_hashes)
        if dispatcher is None or dispatcher.individual is None:
            if dispatcher is not None:  # The dispatcher rewinds once: all entries follow in order.
                self._apply(dispatcher.take_back(()))
            return
        groups = [(ledger_id, list(bitmap - state.deleted_in(ledger_id))) for ledger_id, bitmap in hold.entries.items()]
        groups += [(each.ledger_id, [each.entry_id]) for each in hold.parts if not state.is_deleted(*each)]
        count = 0
        for ledger_id, entry_ids in groups:
            for start in range(0, len(entry_ids), SLICE_ENTRIES):
                part = entry_ids[start : start + SLICE_ENTRIES]
                if count >= SLICE_ENTRIES:
                    yield count
                    count = 0
                    # Some may have been acknowledged since.
                    part = [entry_id for entry_id in part if not state.is_deleted(ledger_id, entry_id)]
                dispatcher = self._dispatcher()
                if dispatcher is not None and dispatcher.individual is not None:
                    self._apply(dispatcher.take_back([(ledger_id, part)]))
                count += len(part)

    async def _forgotten_by_dispatcher(self, hold: Hold) -> None:
        """Remove the entries of a committing transaction from the dispatcher, in slices. Their acks stay pending until
        then, so no consumer receives the entries.
        """
        for ledger_id, bitmap in [*hold.entries.items()]:
            entry_ids = list(bitmap)
            for start in range(0, len(entry_ids), SLICE_ENTRIES):
                if (dispatcher := self._dispatcher()) is not None:
                    dispatcher.acked(ledger_id, entry_ids[start : start + SLICE_ENTRIES])
                await asyncio.sleep(0)

    # --- delivery ----------------------------------------------------------------------------------------------------

    def passed(self, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher) -> AssignInput:
        """Park entries with pending transaction acks, so that no consumer receives them. Return the remaining entries."""
        held = self._cursor.state.held
        if not held:
            if self._parked:
                self._parked.clear()
            return entries
        whole = held.among(entries.ledger_id, entries.entry_ids)
        masks = held.parts_of(entries.ledger_id)
        if not whole and not masks:
            return entries
        kept, ack_sets = [], list(entries.ack_sets or [None] * len(entries.entry_ids))
        for index, entry_id in enumerate(entries.entry_ids):
            mask = masks.get(entry_id, 0)
            if mask and entry_id not in whole:
                count, words = entries.message_counts[index], ack_sets[index]
                left = (ack_set.full(count) if words is None else ack_set.left_of(count, words)) & ~mask
                if left:
                    ack_sets[index] = ack_set.to_words(left)
                    kept.append(index)
                    continue
            elif entry_id not in whole:
                kept.append(index)
                continue
            hashed = key_hash(sticky_key(entries.payloads[index])) if dispatcher.needs_key_hashes else 0
            self._parked.add(dispatcher, plan, Position(entries.ledger_id, entry_id), hashed)
        passed = entries.rows(range(len(entries.entry_ids)))
        passed.ack_sets = ack_sets if any(words is not None for words in ack_sets) else None
        return passed if len(kept) == len(ack_sets) else passed.rows(kept)


async def _exhaust(steps: Iterator[int]) -> None:
    await asyncio.sleep(0)
    for _ in steps:
        await asyncio.sleep(0)
