"""Indexes of sealed ledgers that were used lately, bounded by the points that they hold."""

from __future__ import annotations

from collections import OrderedDict

from pybroker.local_store.segments.ledger_location import LedgerLocation


class IndexCache:
    """The least recently used index is evicted first. A single index may be larger than the limit."""

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._points = 0
        self._places: OrderedDict[int, LedgerLocation] = OrderedDict()

    def get(self, ledger_id: int) -> LedgerLocation | None:
        place = self._places.get(ledger_id)
        if place is not None:
            self._places.move_to_end(ledger_id)
        return place

    def put(self, ledger_id: int, place: LedgerLocation) -> None:
        self.drop(ledger_id)
        self._places[ledger_id] = place
        self._points += _cost(place)
        while self._points > self._max_points and len(self._places) > 1:
            self._points -= _cost(self._places.popitem(last=False)[1])

    def drop(self, ledger_id: int) -> None:
        place = self._places.pop(ledger_id, None)
        if place is not None:
            self._points -= _cost(place)


def _cost(place: LedgerLocation) -> int:
    return len(place.index) + 4  # the objects around a small index weigh more than its points
