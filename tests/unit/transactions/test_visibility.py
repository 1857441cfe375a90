"""What readers may see: in front of the limit, and not what is hidden, against looking at every entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from pybroker.managed_ledger.ledger_list import LedgerList
from pybroker.managed_ledger.max_read_position import ReadLimit, without_ledgers
from pybroker.model.position import Position

SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=4)


@given(SIZES, st.data())
def test_the_last_visible_entry_is_the_one_that_looking_at_all_finds(sizes: list[int], data: st.DataObject) -> None:
    ledgers = LedgerList()
    for ledger_id, size in enumerate(sizes):
        ledgers.add_ledger(ledger_id)
        if size:
            ledgers.added(ledger_id, size, size, size)
    entries = [Position(ledger_id, entry_id) for ledger_id, size in enumerate(sizes) for entry_id in range(size)]
    read_limit = ReadLimit()
    hidden = data.draw(st.sets(st.sampled_from(entries))) if entries else set()
    read_limit.limit = data.draw(st.sampled_from([None, *entries]))
    read_limit.hidden = {
        ledger_id: BitMap([each.entry_id for each in hidden if each.ledger_id == ledger_id])
        for ledger_id in range(len(sizes))
    }
    seen = [each for each in entries if each not in hidden and (read_limit.limit is None or each < read_limit.limit)]
    found = read_limit.last_visible(ledgers)
    assert found == (seen[-1] if seen else Position(0, -1))
    for position in entries:
        count = read_limit.readable(position, 5)
        within = [each for each in entries if read_limit.limit is None or each < read_limit.limit]
        assert (count > 0) == (position in within)
        run = [Position(position.ledger_id, position.entry_id + index) for index in range(count)]
        assert all(read_limit.limit is None or each < read_limit.limit for each in run)
    for ledger_id, size in enumerate(sizes):
        ids = range(size)
        assert set(read_limit.hidden_among(ledger_id, ids)) == {p.entry_id for p in hidden if p.ledger_id == ledger_id}


def test_ledgers_that_are_gone_take_what_is_said_of_them_along() -> None:
    assert without_ledgers({1: BitMap([1]), 2: BitMap([2])}, [1]) == {2: BitMap([2])}
