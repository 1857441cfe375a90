"""Ledgers are found by looking at single entries, whatever their lengths and gaps."""

from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.frames import ReceivedEntry
from pybroker.model.position import Position
from pybroker.reading.positions import Place
from pybroker.reading.transports.ledger_search import LedgerEnds, find_ledgers


class Topic:
    """A topic whose ledgers have these entries."""

    def __init__(self, ledgers: dict[int, list[int]]) -> None:
        self.places = sorted(Place(ledger, entry) for ledger, entries in ledgers.items() for entry in entries)
        self.looks = 0

    async def entry_at(self, position: Position) -> ReceivedEntry:
        self.looks += 1
        found = next(place for place in self.places if place >= position)
        return ReceivedEntry(1, *found, 0, bytes(10))


ledgers = st.dictionaries(
    st.integers(1, 40), st.sets(st.integers(0, 20_000), min_size=1, max_size=8).map(sorted), min_size=1, max_size=6
)


@given(ledgers, st.data())
async def test_every_ledger_is_found_with_its_first_and_last_entry(
    held: dict[int, list[int]], data: st.DataObject
) -> None:
    topic = Topic(held)
    last = Position(*topic.places[-1])
    begin = data.draw(st.sampled_from(topic.places))
    stop = data.draw(st.sampled_from([*topic.places, Place(last.ledger_id, last.entry_id + 1)]))
    known = LedgerEnds()
    spans = await find_ledgers(begin, stop, last, topic.entry_at, known)
    expected = [
        (ledger, min(inside), max(entry for entry in entries if Place(ledger, entry) < stop))
        for ledger, entries in sorted(held.items())
        if (inside := [entry for entry in entries if begin <= Place(ledger, entry) < stop])
    ]
    assert [(span.ledger_id, span.first_entry_id) for span in spans] == [each[:2] for each in expected]
    for span, (ledger, _, last_entry) in zip(spans, expected, strict=True):
        # Up to the asked place, or what the ledger has: a marker may stand in between.
        limit = stop.entry_id if ledger == stop.ledger_id else max(held[ledger]) + 1
        assert last_entry < span.end_entry_id <= limit
    before = topic.looks
    assert await find_ledgers(begin, stop, last, topic.entry_at, known) == spans
    assert topic.looks - before <= 1


async def test_the_looks_grow_with_the_logarithm_of_a_ledgers_length() -> None:
    topic = Topic({1: list(range(50_000)), 2: [0]})
    await find_ledgers(Place(1, 0), Place(2, 1), Position(2, 0), topic.entry_at, LedgerEnds())
    assert topic.looks < 30
