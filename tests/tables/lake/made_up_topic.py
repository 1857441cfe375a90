"""A topic that is a rule instead of a broker: its rows follow from their places, so what a table should hold is known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pybroker.lake.lake_pipeline import Planner
from pybroker.reading.positions import EntryRange, Place, PlannedLedger, TopicPlan

HOUR_MICROS = 3_600_000_000
START_MICROS = 1_700_000_000_000_000
SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("__topic", pa.string()),
        pa.field("__publishTime", pa.timestamp("us", tz="UTC")),
        pa.field("__eventTime", pa.timestamp("us", tz="UTC")),
        pa.field("__ledgerId", pa.int64()),
        pa.field("__entryId", pa.int64()),
    ]
)
ENTRY_BYTES = 1000


@dataclass(frozen=True)
class MadeUpReading:
    """One row for each entry; hours change every `entries_an_hour` entries, every seventh row has no event time."""

    schema: pa.Schema = SCHEMA
    entries_an_hour: int = 40
    value_bytes: int = 10

    def rows(self, entries: Sequence[EntryRange]) -> Iterator[pa.RecordBatch]:
        for part in entries:
            ids = range(part.first_entry_id, part.end_entry_id)
            times = [START_MICROS + entry_id // self.entries_an_hour * HOUR_MICROS for entry_id in ids]
            columns = {
                "value": pa.array([value_of(part.ledger_id, i).ljust(self.value_bytes) for i in ids], pa.binary()),
                "__topic": pa.array([part.topic] * len(ids), pa.string()),
                "__publishTime": pa.array(times, pa.timestamp("us", tz="UTC")),
                "__eventTime": pa.array(
                    [None if i % 7 == 0 else t for i, t in zip(ids, times, strict=True)], pa.timestamp("us", tz="UTC")
                ),
                "__ledgerId": pa.array([part.ledger_id] * len(ids), pa.int64()),
                "__entryId": pa.array(list(ids), pa.int64()),
            }
            arrays = [
                columns[f.name] if f.name in columns else pa.array([i % 100 for i in ids]).cast(f.type)
                for f in self.schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def value_of(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d" % (ledger_id, entry_id)


@dataclass
class MadeUpPlanner(Planner):
    """Topics with ledgers of so many entries each; tests add to them."""

    ledgers: dict[str, dict[int, int]] = field(default_factory=lambda: {"persistent://t/n/a": {3: 60, 5: 40}})
    present_reading: MadeUpReading = field(default_factory=MadeUpReading)
    new_names: dict[str, str] = field(default_factory=dict)

    def topics(self) -> list[str]:
        return sorted(self.ledgers)

    def first_places(self, topics: Sequence[str]) -> dict[str, Place]:
        return {topic: self.first_place(topic) for topic in topics}

    def first_place(self, topic: str) -> Place:
        return Place(min(self.ledgers[topic]), 0)

    def plan(self, positions: Mapping[str, Place]) -> list[TopicPlan]:
        return [self._plan(topic, place) for topic, place in positions.items()]

    def _plan(self, topic: str, start: Place) -> TopicPlan:
        ledgers = []
        for ledger_id, count in sorted(self.ledgers[topic].items()):
            first = start.entry_id if ledger_id == start.ledger_id else 0
            if ledger_id >= start.ledger_id and first < count:
                ledgers.append(
                    PlannedLedger(ledger_id, first, count, (count - first) * ENTRY_BYTES, count - first, True)
                )
        last = max(self.ledgers[topic])
        end = Place(last, self.ledgers[topic][last])
        return TopicPlan(topic, start, max(start, end), self.first_place(topic), tuple(ledgers))

    def reading(self, topics: Sequence[str]) -> MadeUpReading:
        return self.present_reading

    def renames(self) -> dict[str, str]:
        return self.new_names

    def expected(self) -> list[tuple[str, int, int]]:
        """Topic, ledger and entry of each row."""
        return sorted(
            (topic, ledger_id, entry_id)
            for topic, ledgers in self.ledgers.items()
            for ledger_id, count in ledgers.items()
            for entry_id in range(count)
        )
