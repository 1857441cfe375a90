"""Planted bugs that one client alone can meet, in what is stored, counted, answered or delivered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from pybroker.broker.delivery.consumer import Consumer
from pybroker.broker.delivery.delayed_alarm import DelayedAlarm
from pybroker.broker.delivery.delayed_delivery import DelayedDelivery
from pybroker.broker.delivery.subscription import Subscription
from pybroker.dispatch.consumer_state import ConsumerState
from pybroker.dispatch.delayed.delayed_entries import DelayedIndex
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.errors import BrokerError
from pybroker.managed_ledger.cursor_state import CursorState
from pybroker.managed_ledger.managed_cursor import ManagedCursor
from pybroker.managed_ledger.managed_ledger import ManagedLedger
from pybroker.model.events import SendRun
from pybroker.model.position import Position
from pybroker.server.connection import Connection
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import replies


def an_answer_to_an_ack_is_lost(patch: pytest.MonkeyPatch) -> None:
    send, numbers = Connection.send_ack_response, count()

    def most(self: Connection, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        if next(numbers) % 4:
            send(self, consumer_id, request_id, error)

    patch.setattr(Connection, "send_ack_response", most)


def an_ack_is_answered_twice(patch: pytest.MonkeyPatch) -> None:
    send = Connection.send_ack_response

    def twice(self: Connection, consumer_id: int, request_id: int, error: BrokerError | None) -> None:
        send(self, consumer_id, request_id, error)
        send(self, consumer_id, request_id, error)

    patch.setattr(Connection, "send_ack_response", twice)


def receipts_come_in_another_order(patch: pytest.MonkeyPatch) -> None:
    def backwards(self: Connection, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        self._published(len(run.sequence_ids), run.size_bytes)
        for index in reversed(range(len(run.sequence_ids))):
            ids, highs = [run.sequence_ids[index]], [run.highest_sequence_ids[index]]
            self.send(replies.send_receipts(run.producer_id, ids, highs, ledger_id, first_entry_id + index))

    patch.setattr(Connection, "send_receipts", backwards)


def receipts_name_the_first_place_of_a_run(patch: pytest.MonkeyPatch) -> None:
    def of_the_first(self: Connection, run: SendRun, ledger_id: int, first_entry_id: int) -> None:
        self._published(len(run.sequence_ids), run.size_bytes)
        for sequence_id, high in zip(run.sequence_ids, run.highest_sequence_ids, strict=True):
            self.send(replies.send_receipts(run.producer_id, [sequence_id], [high], ledger_id, first_entry_id))

    patch.setattr(Connection, "send_receipts", of_the_first)


def statistics_are_answered_with_a_success(patch: pytest.MonkeyPatch) -> None:
    send = Connection.send

    def changed(self: Connection, data: bytes) -> None:
        command = pb.BaseCommand.FromString(data[8:]) if data[8:10] == b"\x08\x1a" else None
        if command is not None and command.type == pb.BaseCommand.CONSUMER_STATS_RESPONSE:
            data = replies.success(command.consumerStatsResponse.request_id)
        send(self, data)

    patch.setattr(Connection, "send", changed)


def a_backlog_counts_what_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ManagedCursor, "backlog_entries", property(lambda self: self.ledger.ledgers.entry_count))


def an_ack_takes_the_next_entry_along(patch: pytest.MonkeyPatch) -> None:
    acknowledge = CursorState.acknowledge

    def and_one_more(self: CursorState, ledger_id: int, entry_ids: Sequence[int]) -> int:
        return acknowledge(self, ledger_id, [*entry_ids, max(entry_ids) + 1])

    patch.setattr(CursorState, "acknowledge", and_one_more)


def a_cumulative_ack_takes_the_next_entry_along(patch: pytest.MonkeyPatch) -> None:
    mark_delete_to = CursorState.mark_delete_to

    def and_one_more(self: CursorState, position: Position) -> int:
        return mark_delete_to(self, Position(position.ledger_id, position.entry_id + 1))

    patch.setattr(CursorState, "mark_delete_to", and_one_more)


def who_leaves_keeps_what_it_holds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MultiConsumerDispatcher, "_take_back_all", lambda self, consumer: None)


def more_permits_wake_nobody(patch: pytest.MonkeyPatch) -> None:
    def flow(self: MultiConsumerDispatcher, consumer: ConsumerState, permits: int) -> bool:
        had_some = consumer.permits > 0
        consumer.permits += permits
        return had_some and consumer.can_take()

    patch.setattr(MultiConsumerDispatcher, "flow", flow)


def a_reader_leaves_its_subscription_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscription, "drop_if_unused", lambda self: None)


def delayed_messages_are_not_delayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedDelivery, "passed", lambda self, plan, entries, dispatcher: entries)


def nobody_rings_when_it_is_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedAlarm, "_ring", lambda self: None)


def what_is_due_is_not_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedIndex, "take_due", lambda self, cutoff_ms, max_entries: [])


def a_terminated_topic_takes_more(patch: pytest.MonkeyPatch) -> None:
    async def terminate(self: ManagedLedger) -> Position:
        return self.last_confirmed

    patch.setattr(ManagedLedger, "terminate", terminate)


def messages_are_sent_with_the_payload_of_their_neighbour(patch: pytest.MonkeyPatch) -> None:
    deliver = Consumer.deliver

    def mixed(self: Consumer, delivery: Any, now_ms: int, *, has_chunks: bool) -> None:
        if len(delivery.payloads) > 1:
            delivery.payloads = [*delivery.payloads[1:], delivery.payloads[0]]
        deliver(self, delivery, now_ms, has_chunks=has_chunks)

    patch.setattr(Consumer, "deliver", mixed)


def the_rest_of_a_batch_comes_whole_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CursorState, "ack_sets_in", lambda self, ledger_id, first_entry_id, count: None)
