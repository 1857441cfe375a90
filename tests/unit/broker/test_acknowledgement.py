"""What an acknowledgement does is decided from what the client says and what the ledger knows, before anything changes."""

from __future__ import annotations

from tests.support.recording_peer import RecordingPeer
from tests.unit.broker.one_topic import ack_of, one_topic

from pybroker.broker.delivery.acknowledgement import Acknowledged, AckReceipt, PartOfBatch, decided
from pybroker.config import BrokerConfig
from pybroker.errors import PersistenceError, StoreError
from pybroker.model.ack_set import full, to_words
from pybroker.model.events import Ack, PartialAck
from pybroker.model.position import Position

MAX_IN_BATCH = 1000
CONFIG = BrokerConfig(max_messages_in_batch=MAX_IN_BATCH, acknowledgment_at_batch_index_level_enabled=True)


def partial_ack(position: Position, ack_set: list[int], batch_size: int, *, is_cumulative: bool = False) -> Ack:
    ack = Ack(1)
    ack.is_cumulative = is_cumulative
    ack.partials = [PartialAck(position.ledger_id, position.entry_id, ack_set, batch_size)]
    return ack


async def test_deciding_changes_nothing() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        positions = await one.publish(3)
        each = decided(ack_of(*positions), subscription.cursor, CONFIG)
        assert list(each.groups) == [(position.ledger_id, [position.entry_id]) for position in positions]
        up_to = decided(ack_of(positions[1], is_cumulative=True), subscription.cursor, CONFIG)
        assert up_to == Acknowledged(positions[1])
        assert subscription.backlog_entries == 3


async def test_of_a_batch_the_entry_itself_says_how_many_messages_it_holds() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        [position] = await one.publish(1, messages_each=10)
        claimed = decided(partial_ack(position, [0b1], 3), subscription.cursor, CONFIG)
        assert claimed.parts == [PartOfBatch(position, [0b1], 10)]


async def test_who_claims_a_giant_batch_of_an_entry_that_left_memory_is_held_to_its_words_and_to_the_limit() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        elsewhere = Position(10**6, 0)
        for words, batch_size, count in (
            ([1], 10**9, 64),
            ([1], 0, 64),
            ([1], 5, 5),
            ([1] * 10_000, 10**9, MAX_IN_BATCH),
        ):
            ack = partial_ack(elsewhere, words, batch_size)
            [part] = decided(ack, subscription.cursor, CONFIG).parts
            assert part.message_count == count


def partial_acks(position: Position, *ack_sets: list[int], batch_size: int = 100) -> Ack:
    ack = Ack(1)
    ack.partials = [PartialAck(position.ledger_id, position.entry_id, words, batch_size) for words in ack_sets]
    return ack


def all_but(*indexes: int, count: int = 100) -> list[int]:
    return to_words(full(count) & ~sum(1 << index for index in indexes))


async def test_messages_of_one_batch_one_after_the_other_are_one_part_of_it() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        first, second = await one.publish(2, messages_each=100)
        ack = partial_acks(first, *(all_but(index) for index in range(0, 100, 3)))
        [part] = decided(ack, subscription.cursor, CONFIG).parts
        assert part == PartOfBatch(first, all_but(*range(0, 100, 3)), 100)
        ack.partials += partial_acks(second, all_but(0), all_but(99)).partials
        ack.partials += partial_acks(first, all_but(1), all_but(2)).partials
        places = [(each.position, each.ack_set) for each in decided(ack, subscription.cursor, CONFIG).parts]
        assert places == [(first, part.ack_set), (second, all_but(0, 99)), (first, all_but(1, 2))]
        whole = decided(partial_acks(first, *map(all_but, range(100))), subscription.cursor, CONFIG)
        subscription.settle(whole)
        assert subscription.cursor.state.is_deleted(*first)
        assert subscription.backlog_entries == 1


async def test_a_message_of_a_batch_that_is_named_twice_stays_two_parts_so_that_a_transaction_sees_it() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        [position] = await one.publish(1, messages_each=100)
        ack = partial_acks(position, all_but(1), all_but(2), all_but(1, 3), all_but(4))
        sets = [each.ack_set for each in decided(ack, subscription.cursor, CONFIG).parts]
        assert sets == [all_but(1, 2), all_but(1, 3, 4)]


async def test_what_says_something_else_of_the_batch_is_a_part_of_its_own() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        elsewhere = Position(10**6, 0)
        ack = partial_acks(elsewhere, [0b10], [0b01], batch_size=2)
        ack.partials += partial_acks(elsewhere, [0b011], batch_size=3).partials
        ack.partials += partial_acks(elsewhere, [0b110, 0], batch_size=3).partials
        found = [(each.ack_set, each.message_count) for each in decided(ack, subscription.cursor, CONFIG).parts]
        assert found == [([], 2), ([0b011], 3), ([0b110, 0], 3)]


async def test_a_part_of_a_batch_up_to_which_all_is_acknowledged_leaves_that_batch_alone_without_its_index() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        positions = await one.publish(3, messages_each=2)
        ack = partial_ack(positions[2], [0b10], 2, is_cumulative=True)
        whole = decided(ack, subscription.cursor, CONFIG.replace(acknowledgment_at_batch_index_level_enabled=False))
        assert whole == Acknowledged(positions[1], (), ())
        assert subscription.settle(whole) == 2
        parts = decided(ack, subscription.cursor, CONFIG)
        assert subscription.settle(parts) == 0
        assert subscription.cursor.state.ack_set_of(*positions[2]) == [0b10]


async def test_an_empty_cumulative_acknowledgement_does_nothing() -> None:
    async with one_topic() as one:
        subscription = await one.subscription()
        nothing = decided(ack_of(is_cumulative=True), subscription.cursor, CONFIG)
        assert nothing == Acknowledged()
        assert subscription.settle(nothing) == 0


def test_a_receipt_says_whether_the_acknowledgement_is_stored() -> None:
    peer = RecordingPeer()
    AckReceipt(peer, 1, 7).stored(None)
    AckReceipt(peer, 1, 8).stored(StoreError("the disk is gone"))
    assert peer.ack_responses[0] == (7, None)
    request_id, error = peer.ack_responses[1]
    assert request_id == 8
    assert isinstance(error, PersistenceError)
    assert "not stored: the disk is gone" in str(error)
