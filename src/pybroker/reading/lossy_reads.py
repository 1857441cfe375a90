"""An entry source that continues after damaged or lost entries, and logs their number.

Invariant: a readable entry is omitted only if damage is on both sides of it within one search step. Only `DataLoss` is
skipped, never a timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pybroker.reading.entry_source import DataLoss, EntrySource, TopicMissing
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.columns.entry_run import EntryRun
    from pybroker.columns.values.value_schema import SchemaInfo
    from pybroker.reading.positions import EntryRange, Place, TopicPlan

_PROBED_ONE_BY_ONE = 16
"""Number of entries after damage that are tried one by one. Then the search step doubles, so a completely lost ledger
costs about twenty requests.
"""


class LossyReads(EntrySource):
    """Reads from the entry source `source` and omits lost entries. `close` does not close `source`."""

    leaves_out_entries = True

    def __init__(self, source: EntrySource) -> None:
        self._source = source

    def read(self, entries: EntryRange) -> Iterator[EntryRun]:
        """Yield these entries in order, without damaged and lost ones. Raises ReadingFailed for all other errors."""
        rest = entries
        while rest.first_entry_id < rest.end_entry_id:
            try:
                for run in self._source.read(rest):
                    rest = replace(rest, first_entry_id=run.end_entry_id)
                    yield run
                return
            except DataLoss as loss:
                behind = self._behind(rest, loss)
                logs.warning(
                    "reading.entries_lost",
                    topic=rest.topic,
                    ledger_id=rest.ledger_id,
                    first_entry_id=rest.first_entry_id,
                    entries=behind - rest.first_entry_id,
                    lost=str(loss),
                )
                rest = replace(rest, first_entry_id=behind)

    def _behind(self, rest: EntryRange, loss: DataLoss) -> int:
        lost, end = rest.first_entry_id, rest.end_entry_id
        if isinstance(loss, TopicMissing):
            return end
        step = 1
        probed = lost + 1
        while probed < end and not self._is_left(rest, probed):
            lost = probed
            if probed - rest.first_entry_id >= _PROBED_ONE_BY_ONE:
                step *= 2
            probed += step
        left = min(probed, end)
        # The step may have skipped readable entries.
        while left - lost > 1:
            middle = (lost + left) // 2
            if self._is_left(rest, middle):
                left = middle
            else:
                lost = middle
        return left

    def _is_left(self, rest: EntryRange, entry_id: int) -> bool:
        try:
            for _ in self._source.read(replace(rest, first_entry_id=entry_id, end_entry_id=entry_id + 1)):
                pass
        except DataLoss:
            return False
        return True

    # Delegated to the source.

    def partitions(self, topic: str) -> list[str]:
        return self._source.partitions(topic)

    def topics(self, namespace: str) -> list[str]:
        return self._source.topics(namespace)

    def plan(self, topic: str, start: Place | None = None, end: Place | None = None) -> TopicPlan:
        return self._source.plan(topic, start, end)

    def plans(self, asked: Sequence[tuple[str, Place | None, Place | None]]) -> list[TopicPlan]:
        return self._source.plans(asked)

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place:
        return self._source.place_at_time(topic, publish_time_ms)

    def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo | None:
        return self._source.schema(topic, version)

    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        self._source.show_progress(topic, subscription, place)

    def close(self) -> None: ...
