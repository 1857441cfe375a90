"""Planted bugs of transactions: at coordinators, in what topics show, and in what subscriptions hold."""

from __future__ import annotations

import pytest

from pybroker.broker.delivery.acknowledgement import Acknowledged
from pybroker.broker.delivery.subscription_transactions import SubscriptionTransactions
from pybroker.broker.transactions import transaction_recovery
from pybroker.broker.transactions.transaction_buffer import TransactionBuffer
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher, ReadPlan
from pybroker.managed_ledger.max_read_position import ReadLimit
from pybroker.managed_ledger.pending_transaction_acks import Groups, Parts, PendingTransactionAcks
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnAction, TxnId
from pybroker.transactions.coordinator import Coordinator
from pybroker.transactions.coordinator_state import CoordinatorState
from pybroker.transactions.log_positions import LogPositions
from pybroker.transactions.participant_notification import Endings, Participant


def readers_see_open_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadLimit, "readable", lambda self, position, max_entries: max_entries)


def aborted_messages_are_not_hidden(patch: pytest.MonkeyPatch) -> None:
    ended = TransactionBuffer.ended

    def as_committed(self: TransactionBuffer, txn: TxnId, action: TxnAction, marker: Position | None) -> None:
        ended(self, txn, TxnAction.COMMIT, marker)

    patch.setattr(TransactionBuffer, "ended", as_committed)


def markers_are_delivered(patch: pytest.MonkeyPatch) -> None:
    ended = TransactionBuffer.ended

    def passed(self: TransactionBuffer, txn: TxnId, action: TxnAction, marker: Position | None) -> None:
        ended(self, txn, action, None)
        if marker is not None:
            self._reached(marker, 1)

    patch.setattr(TransactionBuffer, "ended", passed)


def nothing_of_a_buffer_is_read_again(patch: pytest.MonkeyPatch) -> None:
    async def nothing(buffer: TransactionBuffer, *_: object) -> int:
        return 0

    patch.setattr(transaction_recovery, "_replay", nothing)


def a_commit_forgets_what_it_acknowledged(patch: pytest.MonkeyPatch) -> None:
    end = SubscriptionTransactions._end

    async def aborted(self: SubscriptionTransactions, txn: TxnId, action: TxnAction) -> None:
        await end(self, txn, TxnAction.ABORT)

    patch.setattr(SubscriptionTransactions, "_end", aborted)


def an_abort_acknowledges(patch: pytest.MonkeyPatch) -> None:
    end = SubscriptionTransactions._end

    async def committed(self: SubscriptionTransactions, txn: TxnId, action: TxnAction) -> None:
        await end(self, txn, TxnAction.COMMIT)

    patch.setattr(SubscriptionTransactions, "_end", committed)


def an_abort_gives_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubscriptionTransactions, "_let_go", lambda self, hold: None)


def what_is_held_is_delivered(patch: pytest.MonkeyPatch) -> None:
    def passed(
        self: SubscriptionTransactions, plan: ReadPlan, entries: AssignInput, dispatcher: Dispatcher
    ) -> AssignInput:
        return entries

    patch.setattr(SubscriptionTransactions, "passed", passed)


def two_transactions_hold_one_message(patch: pytest.MonkeyPatch) -> None:
    def never(
        self: PendingTransactionAcks, txn: TxnId, up_to: Position | None, groups: Groups, parts: Parts
    ) -> Position | None:
        return None

    patch.setattr(PendingTransactionAcks, "conflict", never)


def what_is_acknowledged_is_taken_again(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: SubscriptionTransactions, what: Acknowledged) -> Position | None:
        return None

    patch.setattr(SubscriptionTransactions, "_acknowledged_before", nothing)


def the_last_that_takes_part_is_not_told(patch: pytest.MonkeyPatch) -> None:
    begin = Endings.begin

    def but_one(self: Endings, txn_id: TxnId, action: TxnAction, participants: list[Participant]) -> None:
        begin(self, txn_id, action, participants[:-1] if len(participants) > 1 else participants)

    patch.setattr(Endings, "begin", but_one)


def time_never_ends_a_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_time_out_at", lambda self, transaction, due_ms: None)


def an_open_transaction_is_lost_from_the_log(patch: pytest.MonkeyPatch) -> None:
    """Its place is given up when another one ends."""
    ended = LogPositions.ended

    def and_the_oldest(self: LogPositions, least: int) -> None:
        ended(self, least)
        for other in list(self._places)[:1]:
            ended(self, other)

    patch.setattr(LogPositions, "ended", and_the_oldest)


def ids_of_transactions_begin_anew_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    all_applied = CoordinatorState.all_applied

    def and_forget(self: CoordinatorState) -> None:
        all_applied(self)
        self.last_least = max(self._live, default=0)

    patch.setattr(CoordinatorState, "all_applied", and_forget)
