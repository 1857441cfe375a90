"""A topic's entries in memory, read in runs of a chosen size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.unit.columns.entries import run_of

from pybroker.columns.entry_run import EntryRun
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.reading.entry_source import DataLoss, EntrySource
from pybroker.reading.positions import EntryRange, Place, PlannedLedger, TopicPlan


class MemoryEntries(EntrySource):
    """One topic: ledgers by their id, each a list of entries from 0 on."""

    def __init__(self, ledgers: Mapping[int, list[bytes]], run_entries: int = 3) -> None:
        self.ledgers = dict(ledgers)
        self.run_entries = run_entries
        self.entries_read = 0

    def partitions(self, topic: str) -> list[str]:
        return [topic]

    def topics(self, namespace: str) -> list[str]:
        raise NotImplementedError

    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        first = Place(min(self.ledgers), 0)
        last = max(self.ledgers)
        start = max(start or first, first)
        end = min(end or Place(last, len(self.ledgers[last])), Place(last, len(self.ledgers[last])))
        planned = []
        for ledger_id, entries in sorted(self.ledgers.items()):
            begin = start.entry_id if ledger_id == start.ledger_id else 0
            stop = min(end.entry_id, len(entries)) if ledger_id == end.ledger_id else len(entries)
            if start.ledger_id <= ledger_id <= end.ledger_id and begin < stop:
                size = sum(map(len, entries[begin:stop]))
                planned.append(PlannedLedger(ledger_id, begin, stop, size, -1, is_sealed=True))
        return TopicPlan(topic, start, end, first, tuple(planned))

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        raise NotImplementedError

    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        stored = self.ledgers.get(entries.ledger_id, [])
        if entries.end_entry_id > len(stored):
            raise DataLoss("gone")
        for first in range(entries.first_entry_id, entries.end_entry_id, self.run_entries):
            end = min(first + self.run_entries, entries.end_entry_id)
            self.entries_read += end - first
            yield run_of(stored[first:end], entries.ledger_id, first)

    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
        return None

    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""
