"""Pages of unacknowledged messages: how much is looked at between two pauses, however much there is; and their cursors."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.recording_peer import RecordingPeer
from tests.unit.broker.one_topic import one_topic

from pybroker.broker.inspection.hashes import draining_page
from pybroker.broker.inspection.pages import (
    ENTRIES_PER_STEP,
    START,
    BadCursor,
    Place,
    Steps,
    cursor_text,
    cursor_values,
)
from pybroker.broker.inspection.unacked import Candidates, Wanted, candidates
from pybroker.dispatch.key_shared_dispatcher import KeySharedDispatcher
from pybroker.model.position import Position

LEDGERS, ENTRIES = 4, 25_000


class Counted(dict[int, object]):
    """A ledger's holds that count how often they are asked."""

    asked = 0

    def get(self, key: int, default: object = None) -> object:
        Counted.asked += 1
        return super().get(key, default)


async def test_a_filter_looks_at_a_bounded_number_of_entries_at_a_time_and_a_page_without_one_at_its_own() -> None:
    async with one_topic() as topic:
        subscription = await topic.subscription()
        consumer = topic.consumer(subscription, RecordingPeer(), "Key_Shared")
        dispatcher = subscription.dispatcher
        assert isinstance(dispatcher, KeySharedDispatcher)
        pending = dispatcher.pending
        for ledger_id in range(LEDGERS):
            hashes = [entry_id % 1000 + 1 for entry_id in range(ENTRIES)]
            pending.add(consumer.state, ledger_id, range(ENTRIES), [1] * ENTRIES, hashes, 5)
            pending._by_ledger[ledger_id] = Counted(pending._by_ledger[ledger_id])  # type: ignore[assignment]
        steps = candidates(subscription, Wanted(sticky_hash=77), START, 100)
        most = 0
        while True:
            before = Counted.asked
            try:
                next(steps)
            except StopIteration as done:
                found: Candidates = done.value
                break
            most = max(most, Counted.asked - before)
        assert most <= ENTRIES_PER_STEP
        assert Counted.asked == LEDGERS * ENTRIES
        assert (len(found.entries), found.total) == (100, LEDGERS * ENTRIES // 1000)
        assert {each.sticky_hash for each in found.entries} == {77}

        Counted.asked = 0
        after = Place(Position(2, 100))
        found = _made(candidates(subscription, Wanted(), after, 100))
        assert [each.position for each in found.entries] == [Position(2, 101 + index) for index in range(100)]
        assert found.total == LEDGERS * ENTRIES
        assert Counted.asked <= 102

        dispatcher.draining.drain(consumer.state, 77, LEDGERS * ENTRIES // 1000, None, 6)
        Counted.asked = 0
        (row,), total = _made(draining_page(dispatcher, -1, 10))
        assert (row.sticky_hash, row.draining.since_ms, total) == (77, 6, 1)
        assert row.positions == [Position(0, 76 + 1000 * index) for index in range(10)]
        # The look ends where enough was found.
        assert Counted.asked < ENTRIES
        dispatcher.draining.clear()
        pending._by_ledger.clear()
        pending.total_messages = dispatcher.unacked_messages = consumer.state.unacked_messages = 0


def _made(steps: Steps[Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def test_a_cursor_is_taken_by_the_list_that_gave_it_and_no_other() -> None:
    text = cursor_text("unacked", 5, -1, 1 << 40)
    assert cursor_values("unacked", text, 3) == [5, -1, 1 << 40]
    for kind, wrong, count in (
        ("unacked", text, 2),
        ("delayed", text, 3),
        ("unacked", "", 3),
        ("unacked", "é", 3),
        ("unacked", text + "A", 3),
        ("unacked", text[:-1], 3),
        ("unacked", "WyJ1bmFja2VkIiwiMSIsMSwxXQ", 3),
        ("unacked", "W1tbW1tbW1tbW1tb" * 500, 3),
    ):
        with pytest.raises(BadCursor):
            cursor_values(kind, wrong, count)
