"""Messages of non-persistent topics go to consumers that can take them now, and are counted if there is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.dispatch.support import consumer, sticky_consumer

from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.key_shared_dispatcher import KeySharedSettings
from pybroker.dispatch.non_persistent_dispatcher import (
    ExclusiveNonPersistentDispatcher,
    FailoverNonPersistentDispatcher,
    KeySharedNonPersistentDispatcher,
    NonPersistentDispatcher,
    SharedNonPersistentDispatcher,
)
from pybroker.errors import ConsumerAssignError, ConsumerBusy


def attached(dispatcher: NonPersistentDispatcher, name: str = "c", permits: int = 0, level: int = 0) -> ConsumerState:
    state = consumer(name, priority_level=level)
    dispatcher.add_consumer(state)
    state.permits = permits
    return state


def sent(
    dispatcher: NonPersistentDispatcher, counts: Sequence[int], hashes: Sequence[int] | None = None
) -> dict[str, list[int]]:
    """Publish entries with these message counts. Return the received indexes of the run, by consumer."""
    payloads = [bytes([index]) for index in range(len(counts))]
    deliveries = dispatcher.assign(payloads, list(counts), hashes)
    for each in deliveries:
        assert (each.ledger_id, set(each.entry_ids)) == (0, {0}), "every message has the id 0:0"
        assert len(each.entry_ids) == len(each.payloads) == len(each.message_counts)
        assert each.message_count == sum(each.message_counts)
    return {each.consumer.name: [payload[0] for payload in each.payloads] for each in deliveries}


def key_shared() -> KeySharedNonPersistentDispatcher:
    """The first consumer has all hashes, the second one takes the lower half."""
    return KeySharedNonPersistentDispatcher(KeySharedSettings(0, 0, 0))


def every_type() -> list[NonPersistentDispatcher]:
    return [
        ExclusiveNonPersistentDispatcher(),
        FailoverNonPersistentDispatcher("non-persistent://t/n/t", None),
        SharedNonPersistentDispatcher(),
        key_shared(),
    ]


@pytest.mark.parametrize("dispatcher", every_type(), ids=lambda each: each.kind)
def test_an_entry_is_sent_whole_while_there_is_a_permit_and_the_rest_is_dropped(
    dispatcher: NonPersistentDispatcher,
) -> None:
    state = attached(dispatcher, permits=5)
    assert sent(dispatcher, [2, 2, 10, 1, 3], [1] * 5) == {"c": [0, 1, 2]}
    assert state.permits == -9
    assert dispatcher.dropped_messages == 4
    assert sent(dispatcher, [1], [1]) == {}
    assert dispatcher.dropped_messages == 5


@pytest.mark.parametrize("dispatcher", every_type(), ids=lambda each: each.kind)
def test_a_consumer_whose_connection_is_full_gets_nothing(dispatcher: NonPersistentDispatcher) -> None:
    state = attached(dispatcher, permits=5)
    state.writable = False
    assert sent(dispatcher, [1, 2], [1, 2]) == {}
    assert (state.permits, dispatcher.dropped_messages) == (5, 3)
    state.writable = True
    assert sent(dispatcher, [1], [1]) == {"c": [0]}


def test_an_exclusive_subscription_takes_one_consumer() -> None:
    dispatcher = ExclusiveNonPersistentDispatcher()
    first = attached(dispatcher)
    with pytest.raises(ConsumerBusy):
        dispatcher.add_consumer(consumer("other"))
    dispatcher.remove_consumer(first)
    assert dispatcher.active_consumer is None
    assert attached(dispatcher, "other") is dispatcher.active_consumer


def test_failover_goes_to_the_best_level_at_once() -> None:
    dispatcher = FailoverNonPersistentDispatcher("non-persistent://t/n/t", None)
    attached(dispatcher, "late", permits=9, level=1)
    assert sent(dispatcher, [1]) == {"late": [0]}
    better = attached(dispatcher, "better", permits=9, level=0)
    assert sent(dispatcher, [1]) == {"better": [0]}
    dispatcher.remove_consumer(better)
    assert sent(dispatcher, [1]) == {"late": [0]}


def test_failover_of_partitions_spreads_over_the_consumers() -> None:
    by_partition = []
    for partition in range(3):
        dispatcher = FailoverNonPersistentDispatcher(f"non-persistent://t/n/t-partition-{partition}", partition)
        for name in "ab":
            attached(dispatcher, name)
        assert dispatcher.active_consumer is not None
        by_partition.append(dispatcher.active_consumer.name)
    assert by_partition == ["a", "b", "a"]


def test_shared_goes_round_entry_by_entry_and_to_the_next_level_when_the_better_one_is_out_of_permits() -> None:
    dispatcher = SharedNonPersistentDispatcher()
    attached(dispatcher, "one", permits=4)
    attached(dispatcher, "two", permits=4)
    attached(dispatcher, "three", permits=2, level=1)
    assert sent(dispatcher, [1] * 12) == {"one": [0, 2, 4, 6], "two": [1, 3, 5, 7], "three": [8, 9]}
    assert dispatcher.dropped_messages == 2
    dispatcher.check_invariants()


def test_key_shared_drops_what_the_owner_of_a_hash_cannot_take() -> None:
    dispatcher = key_shared()
    attached(dispatcher, "upper", permits=9)
    attached(dispatcher, "lower", permits=1)
    assert sent(dispatcher, [1, 1, 1, 1], [1, 40_000, 2, 50_000]) == {"lower": [0], "upper": [1, 3]}
    assert dispatcher.dropped_messages == 1


def test_a_hash_that_nobody_owns_is_dropped() -> None:
    dispatcher = key_shared()
    state = sticky_consumer("s", (0, 99))
    dispatcher.add_consumer(state)
    state.permits = 9
    assert sent(dispatcher, [1, 2], [50, 100]) == {"s": [0]}
    assert (dispatcher.dropped_messages, dispatcher.owners.mode) == (2, "STICKY")


def test_key_shared_consumers_agree_on_mode_flag_and_ranges() -> None:
    dispatcher = key_shared()
    dispatcher.add_consumer(sticky_consumer("s", (0, 99)))
    for other, refusal in (
        (consumer("auto"), ConsumerBusy),
        (ConsumerState("flag", 0, 0, None, KeySharedOptions([(200, 300)], True)), ConsumerBusy),
        (sticky_consumer("overlap", (50, 150)), ConsumerAssignError),
    ):
        with pytest.raises(refusal):
            dispatcher.add_consumer(other)
        dispatcher.check_invariants()
        assert len(dispatcher.consumers) == 1


def test_when_all_have_left_the_next_one_brings_its_own_mode() -> None:
    dispatcher = key_shared()
    first = sticky_consumer("s", (0, 99))
    dispatcher.add_consumer(first)
    dispatcher.remove_consumer(first)
    attached(dispatcher, "auto", permits=1)
    assert (dispatcher.owners.mode, dispatcher.owners.allows_out_of_order_delivery) == ("AUTO_SPLIT", False)
    assert sent(dispatcher, [1], [60_000]) == {"auto": [0]}
