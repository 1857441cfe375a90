"""Shared and Key_Shared: all chunks of a message go to one consumer, even if consumers join or leave."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.dispatch.support import HIGH, LEDGER, LOW, consumer, got, key_shared, positions, run_of, shared

from pybroker.dispatch.chunks.chunked_messages import ChunkedMessages
from pybroker.dispatch.consumer_state import AUTO_SPLIT, ConsumerState, KeySharedOptions
from pybroker.dispatch.dispatcher import AssignInput, Dispatcher
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.dispatch.pending_acks import PendingAcks
from pybroker.dispatch.shared import SharedDispatcher
from pybroker.model.chunk import Chunk
from pybroker.model.position import Position

Got = list[tuple[str, list[int]]]


def chunked(entry_ids: Sequence[int], texts: str, key_hash: int = LOW) -> AssignInput:
    """Return one entry per letter: a digit is that chunk of a message of four, a letter is a whole message."""
    run = run_of(entry_ids, key_hashes=[key_hash] * len(entry_ids))
    run.chunks = [Chunk(b"u", int(text), 4) if text.isdigit() else None for text in texts]
    return run


def read(dispatcher: Dispatcher, texts: str, first: int = 0, key_hash: int = LOW) -> Got:
    """Assign the entries of a new read."""
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay is None
    deliveries = dispatcher.assign(plan, chunked(range(first, first + len(texts)), texts, key_hash))
    dispatcher.check_invariants()
    return got(deliveries)


def read_again(dispatcher: Dispatcher, stored: str) -> Got:
    """Assign the waiting entries again, from a topic that contains the entries `stored`."""
    plan = dispatcher.next_read()
    assert plan is not None
    assert plan.replay is not None
    entry_ids = [position.entry_id for position in plan.replay]
    deliveries = dispatcher.assign(plan, chunked(entry_ids, "".join(stored[each] for each in entry_ids)))
    dispatcher.check_invariants()
    return got(deliveries)


def shared_pair(permits: int = 100) -> tuple[SharedDispatcher, ConsumerState, ConsumerState]:
    dispatcher = shared(max_round_robin_entries=1)
    a, b = consumer("a"), consumer("b")
    for each in (a, b):
        dispatcher.add_consumer(each)
        dispatcher.flow(each, permits)
    return dispatcher, a, b


def test_chunks_go_to_one_shared_consumer_and_the_entries_between_them_go_round() -> None:
    dispatcher, _, _ = shared_pair()
    assert read(dispatcher, "0x1yz23") == [
        ("a", [0]),
        ("b", [1]),
        ("a", [2]),
        ("a", [3]),
        ("b", [4]),
        ("a", [5]),
        ("a", [6]),
    ]
    assert read(dispatcher, "x", 7) == [("a", [7])]


def test_chunks_wait_for_their_consumer_while_others_get_what_comes_behind_them() -> None:
    dispatcher, a, _ = shared_pair(permits=1)
    dispatcher.flow(dispatcher.consumers[1], 10)
    assert read(dispatcher, "0x12y") == [("a", [0]), ("b", [1]), ("b", [4])]
    assert dispatcher.replay_entry_count == 2
    assert read(dispatcher, "3", 5) == [], "nobody reads again what nobody can take"
    assert dispatcher.flow(a, 10)
    assert read_again(dispatcher, "0x12y3") == [("a", [2]), ("a", [3]), ("a", [5])]
    assert dispatcher.replay_entry_count == 0


def test_a_chunk_that_comes_while_earlier_ones_wait_does_not_overtake_them() -> None:
    dispatcher, a, b = shared_pair(permits=1)
    dispatcher.flow(b, 10)
    assert read(dispatcher, "01") == [("a", [0])]
    plan = dispatcher.next_read()
    assert plan is not None
    assert dispatcher.flow(a, 10)
    assert got(dispatcher.assign(plan, chunked([2], "2"))) == []
    assert read_again(dispatcher, "012") == [("a", [1]), ("a", [2])]


def test_when_the_consumer_leaves_all_chunks_go_to_one_other() -> None:
    dispatcher, a, b = shared_pair(permits=2)
    c = consumer("c")
    dispatcher.add_consumer(c)
    assert read(dispatcher, "012") == [("a", [0]), ("a", [1])]
    dispatcher.remove_consumer(a)
    dispatcher.flow(b, 100)
    dispatcher.flow(c, 100)
    again = read_again(dispatcher, "012") + read(dispatcher, "3", 3)
    assert {name for name, _ in again} == {"b"}
    assert [entry for _, entries in again for entry in entries] == [0, 1, 2, 3]


def test_given_back_chunks_go_together_to_whoever_takes_the_first() -> None:
    dispatcher, a, _ = shared_pair()
    assert {name for name, _ in read(dispatcher, "0123")} == {"a"}
    dispatcher.redeliver(a, positions(0, 1, 2, 3))
    again = read_again(dispatcher, "0123")
    assert len({name for name, _ in again}) == 1
    assert [entry for _, entries in again for entry in entries] == [0, 1, 2, 3]


def test_one_chunk_that_is_given_back_returns_to_the_consumer_that_has_the_others() -> None:
    dispatcher, a, _ = shared_pair()
    read(dispatcher, "0123")
    dispatcher.redeliver(a, positions(2))
    assert read_again(dispatcher, "0123") == [("a", [2])]


def test_chunks_that_wait_are_forgotten_when_they_are_acknowledged_or_the_cursor_moves() -> None:
    dispatcher, _, b = shared_pair(permits=1)
    dispatcher.flow(b, 10)
    read(dispatcher, "0123")
    assert dispatcher.replay_entry_count == 3
    dispatcher.acked(LEDGER, [1])
    dispatcher.acked_up_to(Position(LEDGER, 2))
    assert dispatcher.replay_entry_count == 1
    dispatcher.reset()
    assert dispatcher.replay_entry_count == 0
    dispatcher.check_invariants()


def key_shared_with(options: KeySharedOptions = AUTO_SPLIT) -> tuple[KeySharedDispatcher, ConsumerState, ConsumerState]:
    """`a` has all hashes; `b`, which gets the lower half, has not joined yet."""
    dispatcher = key_shared()
    a, b = (ConsumerState(name, 0, 0, None, options) for name in "ab")
    dispatcher.add_consumer(a)
    dispatcher.flow(a, 100)
    return dispatcher, a, b


def join(dispatcher: KeySharedDispatcher, newcomer: ConsumerState) -> None:
    dispatcher.add_consumer(newcomer)
    dispatcher.flow(newcomer, 100)
    dispatcher.check_invariants()


def test_a_key_stays_until_its_message_is_whole_and_drains_then() -> None:
    dispatcher, a, b = key_shared_with()
    assert read(dispatcher, "01") == [("a", [0, 1])]
    join(dispatcher, b)
    assert read(dispatcher, "2x3y", 2) == [("a", [2, 3, 4, 5])]
    assert read(dispatcher, "z", 6) == []
    assert read(dispatcher, "w", 7, HIGH) == [("a", [7])]
    dispatcher.acked(LEDGER, range(6))
    assert dispatcher.has_unblocked
    assert read_again(dispatcher, "012x3yz") == [("b", [6])]
    assert (len(dispatcher.draining), a.draining_hashes_cleared_total) == (0, 1)


def test_a_message_that_is_given_back_in_part_counts_as_unfinished() -> None:
    dispatcher, a, b = key_shared_with()
    assert read(dispatcher, "0123") == [("a", [0, 1, 2, 3])]
    dispatcher.redeliver(a, positions(1))
    join(dispatcher, b)
    assert read_again(dispatcher, "0123") == [("a", [1])]
    assert read(dispatcher, "x", 4) == [], "it drains now"


def test_a_chunk_that_is_given_back_after_its_key_moved_returns_to_the_others() -> None:
    dispatcher, a, b = key_shared_with()
    assert read(dispatcher, "0123") == [("a", [0, 1, 2, 3])]
    join(dispatcher, b)
    dispatcher.redeliver(a, positions(1))
    assert read_again(dispatcher, "0123") == [("a", [1])]
    dispatcher.acked(LEDGER, range(4))
    assert read(dispatcher, "x", 4) == [("b", [4])]


def test_out_of_order_delivery_keeps_chunks_together_too() -> None:
    dispatcher, _, b = key_shared_with(KeySharedOptions(None, True))
    assert read(dispatcher, "01") == [("a", [0, 1])]
    join(dispatcher, b)
    assert read(dispatcher, "23", 2) == [("a", [2, 3])]
    assert read(dispatcher, "x", 4) == [("b", [4])]


def test_a_key_moves_when_its_consumer_gives_the_unfinished_message_up() -> None:
    for give_up in ("ack", "redeliver", "leave"):
        dispatcher, a, b = key_shared_with()
        read(dispatcher, "01")
        join(dispatcher, b)
        if give_up == "ack":
            dispatcher.acked(LEDGER, [0, 1])
            assert read(dispatcher, "23", 2) == [("b", [2, 3])]
        elif give_up == "redeliver":
            dispatcher.redeliver(a, None)
            assert read_again(dispatcher, "01") == [("b", [0, 1])]
            assert read(dispatcher, "23", 2) == [("b", [2, 3])]
        else:
            dispatcher.remove_consumer(a)
            assert read_again(dispatcher, "01") == [("b", [0, 1])]


def test_chunks_that_waited_at_a_kept_key_go_where_it_belongs_when_it_is_given_up() -> None:
    dispatcher, a, b = key_shared_with()
    a.permits = 2
    assert read(dispatcher, "01x") == [("a", [0, 1])]
    join(dispatcher, b)
    dispatcher.acked(LEDGER, [0, 1])
    assert dispatcher.has_unblocked
    assert read_again(dispatcher, "01x") == [("b", [2])]


def test_messages_of_the_past_are_not_remembered() -> None:
    pending = PendingAcks()
    messages = ChunkedMessages(pending)
    c = consumer()
    for index in range(1000):
        pending.add(c, LEDGER, [index], [1])
        messages.delivered(Chunk(b"%d" % index, 0, 2), c, Position(LEDGER, index))
        pending.remove(LEDGER, [index])
    assert len(messages) <= 100
    assert messages.holder(b"999") is None
