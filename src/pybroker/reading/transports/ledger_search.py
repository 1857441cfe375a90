"""Search for the ledgers of a topic between two positions, because the binary protocol does not list ledgers.

The function `entry_at(position)` returns the first entry at or after `position`, which must exist. A ledger with a
successor never changes, so its end is cached. The search makes one call per ledger and one per halving of its length.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pybroker.client.frames import ReceivedEntry
from pybroker.model.position import Position
from pybroker.reading.positions import Place

EntryAt = Callable[[Position], Awaitable[ReceivedEntry]]
BEHIND_A_LEDGER = (1 << 62) - 1
"""An entry id that is higher than all entry ids of any ledger."""
FIRST_GUESS = 1 << 12


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """The part of one ledger between two positions."""

    ledger_id: int
    first_entry_id: int
    end_entry_id: int
    entry_bytes: int
    """Size of one entry, as an estimate for the other entries of the ledger."""


@dataclass(frozen=True, slots=True)
class _KnownLedger:
    end_entry_id: int
    next: Place
    """The first entry of the next ledger."""
    next_bytes: int


class LedgerEnds:
    """The known ends of ledgers of one topic. Only a ledger with a successor is listed, because its end is final."""

    MAX_LEDGERS = 100_000

    def __init__(self) -> None:
        self._known: dict[int, _KnownLedger] = {}

    def get(self, ledger_id: int) -> _KnownLedger | None:
        return self._known.get(ledger_id)

    def put(self, ledger_id: int, known: _KnownLedger) -> None:
        if len(self._known) >= self.MAX_LEDGERS:
            self._known.pop(next(iter(self._known)))
        self._known[ledger_id] = known


async def find_ledgers(
    begin: Place, stop: Place, last: Position, entry_at: EntryAt, known: LedgerEnds
) -> list[LedgerSpan]:
    """Return the parts of ledgers with entries from `begin` to `stop` (exclusive). `last`: the position of the topic's
    last entry; `stop` must not be beyond the position after it. `entry_at` reads the first entry at or after a
    position. `known`: a cache of the ends of ledgers, to which this function adds the ends that it finds.
    """
    spans: list[LedgerSpan] = []
    if begin >= stop:
        return spans
    entry = await entry_at(Position(begin.ledger_id, begin.entry_id))
    place, size_bytes = Place(entry.ledger_id, entry.entry_id), len(entry.data)
    while place < stop:
        ledger_id = place.ledger_id
        if ledger_id == last.ledger_id:
            end = last.entry_id + 1
            if stop.ledger_id == ledger_id:
                end = min(end, stop.entry_id)
            spans.append(LedgerSpan(ledger_id, place.entry_id, end, size_bytes))
            break
        found = known.get(ledger_id)
        if found is None:
            found = await _look(place, entry_at)
            known.put(ledger_id, found)
        end = found.end_entry_id
        if stop.ledger_id == ledger_id:
            end = min(end, stop.entry_id)
        if end > place.entry_id:
            spans.append(LedgerSpan(ledger_id, place.entry_id, end, size_bytes))
        place, size_bytes = found.next, found.next_bytes
    return spans


async def _look(place: Place, entry_at: EntryAt) -> _KnownLedger:
    ledger_id = place.ledger_id
    following = await entry_at(Position(ledger_id, BEHIND_A_LEDGER))
    if following.ledger_id == ledger_id:
        raise ValueError(
            f"the entries of ledger {ledger_id} cannot be found: the broker returned entry {following.ledger_id}:"
            f"{following.entry_id}, whose id is larger than the largest possible id. Check the version of the broker"
        )
    # Invariant: the entry before `low` exists; none exists at or after `high`.
    low = place.entry_id + 1
    high: int | None = None
    step = FIRST_GUESS
    while high is None or low < high:
        asked = low + step if high is None else (low + high) // 2
        found = await entry_at(Position(ledger_id, asked))
        if found.ledger_id == ledger_id:
            low = found.entry_id + 1
            step *= 2
        else:
            high = asked
    return _KnownLedger(low, Place(following.ledger_id, following.entry_id), len(following.data))
