"""A cluster in memory: topics made of ledgers with entries of one size, which a test lets grow, trims and deletes."""

from __future__ import annotations

from collections.abc import Iterator

from pybroker.columns.entry_run import EntryRun
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.model.names import TopicName
from pybroker.reading.entry_source import EntrySource, TopicMissing
from pybroker.reading.positions import EntryRange, Place, PlannedLedger, TopicPlan

ENTRY_BYTES = 1000


class FakeSource(EntrySource):
    """Plans as a broker would. Entry `e` of ledger `l` was published at `1000 * l + e`."""

    def __init__(self) -> None:
        self.ledgers: dict[str, dict[int, int]] = {}  # topic: ledger id: entries
        self.gone: dict[str, dict[int, int]] = {}
        self.partition_counts: dict[str, int] = {}
        self.progress: dict[tuple[str, str], Place] = {}

    def grow(self, topic: str, ledger_id: int, entries: int) -> str:
        name = str(TopicName.parse(topic))
        ledgers = self.ledgers.setdefault(name, {})
        ledgers[ledger_id] = ledgers.get(ledger_id, 0) + entries
        return name

    def trim(self, topic: str, ledger_id: int) -> None:
        name = str(TopicName.parse(topic))
        self.gone.setdefault(name, {})[ledger_id] = self.ledgers[name].pop(ledger_id)

    def delete(self, topic: str) -> None:
        del self.ledgers[str(TopicName.parse(topic))]

    def partitions(self, topic: str) -> list[str]:
        count = self.partition_counts.get(topic)
        if count:
            return [str(TopicName.parse(topic).partition(index)) for index in range(count)]
        self._of(topic)
        return [topic]

    def topics(self, namespace: str) -> list[str]:
        return sorted(topic for topic in self.ledgers if str(TopicName.parse(topic).namespace) == namespace)

    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        ledgers = self._of(topic)
        ids = sorted(ledgers)
        filled = [number for number in ids if ledgers[number]] or ids
        first, last = Place(ids[0], 0), Place(filled[-1], ledgers[filled[-1]])
        begin, stop = start or first, min(end or last, last)
        planned = []
        for number in ids:
            low = begin.entry_id if number == begin.ledger_id else (0 if number > begin.ledger_id else ledgers[number])
            high = stop.entry_id if number == stop.ledger_id else (ledgers[number] if number < stop.ledger_id else 0)
            high = min(high, ledgers[number])
            if low < high:
                size = ENTRY_BYTES * (high - low)
                planned.append(PlannedLedger(number, low, high, size, high - low, number != ids[-1]))
        lost = []
        for number, count in sorted(self.gone.get(topic, {}).items()):
            low = begin.entry_id if number == begin.ledger_id else 0
            if begin.ledger_id <= number < stop.ledger_id and low < count:
                lost.append(
                    f"asked from {begin.ledger_id}:{begin.entry_id}, entries {number}:{low} to {number}:{count} are gone"
                )
        return TopicPlan(topic, begin, stop, first, tuple(planned), tuple(lost))

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        for number, count in sorted(self._of(topic).items()):
            entry_id = max(publish_time_ms - 1000 * number, 0)
            if entry_id < count:
                return Place(number, entry_id)
        return self.plan(topic).end

    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        raise NotImplementedError

    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
        return None

    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        before = self.progress.get((topic, subscription), place)
        self.progress[topic, subscription] = max(before, place)

    def close(self) -> None:
        pass

    def _of(self, topic: str) -> dict[int, int]:
        if topic not in self.ledgers:
            raise TopicMissing(f"{topic} is not there", topic)
        return self.ledgers[topic]
