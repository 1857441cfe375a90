"""Classic mode: a new consumer waits until all entries read before it joined are acknowledged."""

from __future__ import annotations

from tests.unit.dispatch.support import HIGH, LEDGER, LOW, Feed, consumer, key_shared, positions

from pybroker.dispatch.consumer_state import ConsumerState, KeySharedOptions
from pybroker.dispatch.key_shared_classic import ClassicKeySharedDispatcher
from pybroker.model.position import Position


def classic() -> ClassicKeySharedDispatcher:
    dispatcher = key_shared(classic=True)
    assert isinstance(dispatcher, ClassicKeySharedDispatcher)
    return dispatcher


def join(dispatcher: ClassicKeySharedDispatcher, name: str, read_position: int, first_unacked: int) -> ConsumerState:
    joining = consumer(name)
    dispatcher.mark_delete_moved(Position(LEDGER, first_unacked))
    joining.read_position_when_joining = Position(LEDGER, read_position)
    dispatcher.add_consumer(joining)
    dispatcher.flow(joining, 1000)
    return joining


def test_a_newcomer_gets_nothing_until_everything_before_it_is_acknowledged() -> None:
    dispatcher = classic()
    join(dispatcher, "old", 0, 0)
    feed = Feed(dispatcher, 4, key_hashes=(LOW, HIGH))
    assert feed.pump() == [("old", [0, 1, 2, 3])]
    new = join(dispatcher, "new", 4, 0)
    assert dispatcher.recently_joined() == [(new, Position(LEDGER, 4))]
    feed.entry_count = 8
    assert feed.pump() == [("old", [5, 7])]
    for entry_id in (0, 2, 3):
        dispatcher.acked(LEDGER, [entry_id])
    assert not dispatcher.mark_delete_moved(Position(LEDGER, 1))
    assert feed.pump() == [], "not even of keys that nobody holds"
    dispatcher.acked(LEDGER, [1])
    assert dispatcher.mark_delete_moved(Position(LEDGER, 5))
    assert new.read_position_when_joining is None
    assert feed.pump() == [("new", [4, 6])]
    dispatcher.check_invariants()


def test_a_newcomer_waits_for_nothing_when_all_is_acknowledged_or_it_is_alone() -> None:
    dispatcher = classic()
    first = join(dispatcher, "first", 7, 3)
    assert first.read_position_when_joining is None
    second = join(dispatcher, "second", 7, 7)
    assert second.read_position_when_joining is None
    assert dispatcher.recently_joined() == []


def test_what_others_gave_back_goes_to_the_newcomer_when_it_lies_before_its_position() -> None:
    dispatcher = classic()
    join(dispatcher, "a", 0, 0)
    b = join(dispatcher, "b", 0, 0)
    feed = Feed(dispatcher, 4, key_hashes=(LOW, HIGH))
    feed.pump()
    join(dispatcher, "c", 4, 0)  # takes the lower half of b's
    feed.entry_count = 6
    assert feed.pump() == [("a", [5])]
    dispatcher.redeliver(b, positions(0))
    assert feed.pump() == [], "the key is still with b"
    dispatcher.redeliver(b, None)
    assert feed.pump() == [("c", [0, 2])]
    dispatcher.check_invariants()


def test_the_oldest_position_holds_for_all_newcomers() -> None:
    dispatcher = classic()
    join(dispatcher, "a", 0, 0)
    feed = Feed(dispatcher, 2, key_hashes=(HIGH, HIGH))
    feed.pump()
    b = join(dispatcher, "b", 2, 0)
    feed.entry_count, feed.key_hashes = 4, (LOW,)
    assert feed.pump() == []
    c = join(dispatcher, "c", 4, 0)
    assert feed.pump() == [], "2 and 3 lie before c's position, not before b's"
    dispatcher.acked(LEDGER, [0, 1])
    assert dispatcher.mark_delete_moved(Position(LEDGER, 2))
    assert dispatcher.recently_joined() == [(c, Position(LEDGER, 4))]
    assert b.read_position_when_joining is None
    assert feed.pump() == [("c", [2, 3])]
    dispatcher.check_invariants()


def test_who_is_left_alone_waits_for_nobody() -> None:
    dispatcher = classic()
    a = join(dispatcher, "a", 0, 0)
    feed = Feed(dispatcher, 2, key_hashes=(LOW,))
    feed.pump()
    b = join(dispatcher, "b", 2, 0)
    feed.entry_count = 4
    assert feed.pump() == []
    assert dispatcher.remove_consumer(a).wake
    assert b.read_position_when_joining is None
    assert feed.pump() == [("b", [0, 1, 2, 3])]


def test_sticky_and_out_of_order_consumers_do_not_wait() -> None:
    for options in ([KeySharedOptions(None, True)] * 2, [KeySharedOptions([(n, n)], False) for n in (1, 2)]):
        dispatcher = classic()
        for each in options:
            joining = ConsumerState("c", 0, 0, None, each)
            joining.read_position_when_joining = Position(LEDGER, 9)
            dispatcher.add_consumer(joining)
        assert dispatcher.recently_joined() == []


def test_a_reset_and_the_last_leaver_end_the_wait() -> None:
    dispatcher = classic()
    join(dispatcher, "a", 0, 0)
    Feed(dispatcher, 2, key_hashes=(LOW,)).pump()
    b = join(dispatcher, "b", 2, 0)
    dispatcher.reset()
    assert b.read_position_when_joining is None
    dispatcher.check_invariants()
