"""Random walks of clients and administrators over one subscription; and bugs, planted, that they find."""

from __future__ import annotations

import pytest
from tests.fuzz.single_messages_model import walk
from tests.support.planting import Plant, found_by_walk

from pybroker.broker.delivery import single_messages
from pybroker.broker.delivery.acknowledgement import PartOfBatch
from pybroker.broker.delivery.delayed_delivery import DelayedDelivery
from pybroker.dispatch.delayed.changed_delays import ChangedDelays
from pybroker.dispatch.multi_consumer import MultiConsumerDispatcher
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.model.position import Position

SEEDS = 6
STEPS = 60


async def walk_many() -> None:
    for seed in range(SEEDS):
        await walk(seed, STEPS)


async def test_single_messages_equal_model() -> None:
    await walk_many()


def acknowledged_entries_stay_with_their_consumer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MultiConsumerDispatcher, "acked", lambda self, ledger_id, entry_ids: False)


def transactions_hold_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(single_messages, "require_unheld", lambda subscription, position, bits: None)


def one_message_acknowledges_the_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(single_messages, "PartOfBatch", lambda position, left, count: PartOfBatch(position, [], count))


def what_is_sent_again_is_taken_from_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingAcks, "take_back", lambda self, consumer, ledger_id, entry_ids: ([], []))


def a_changed_time_counts_in_the_index_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangedDelays, "applied", lambda self, ledger_id, entry_ids, due_times_ms: due_times_ms)


def acknowledged_entries_stay_delayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DelayedDelivery, "forget", lambda self, ledger_id, entry_ids: None)


def what_somebody_holds_may_be_put_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingAcks, "holder", lambda self, position: None)


def a_time_is_changed_and_nobody_wakes(patch: pytest.MonkeyPatch) -> None:
    async def only_noted(self: DelayedDelivery, position: Position, due_ms: int) -> None:
        self._changed.set(position, due_ms)
        self._has_changed = True

    patch.setattr(DelayedDelivery, "change", only_noted)


@pytest.mark.parametrize(
    "plant",
    [
        acknowledged_entries_stay_with_their_consumer,
        transactions_hold_nothing,
        one_message_acknowledges_the_batch,
        what_is_sent_again_is_taken_from_nobody,
        a_changed_time_counts_in_the_index_only,
        acknowledged_entries_stay_delayed,
        what_somebody_holds_may_be_put_off,
        a_time_is_changed_and_nobody_wakes,
    ],
)
async def test_model_finds_mutant(plant: Plant) -> None:
    with found_by_walk(plant):
        await walk_many()
