"""Planning of a pipeline's reads: topics by name or pattern, their starts, and the entries after a position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pybroker.client.failures import ClientError
from pybroker.lake.lake_pipeline import Planner
from pybroker.lake.workers import RowReading
from pybroker.model.topic_patterns import TopicsPattern
from pybroker.reading.entry_source import DataLoss, EntrySource
from pybroker.reading.positions import Place, TopicPlan
from pybroker.runtime import logs

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True)
class TopicSelection:
    """Topics by name, or all topics of a namespace that match a pattern (by full name without partition)."""

    names: tuple[str, ...] = ()
    namespace: str = ""
    pattern: str = ""
    start: str | int = EARLIEST
    """`earliest`, `latest`, or milliseconds since 1970, for topics without a position in the table."""
    skips_loss: bool = False
    """Whether to continue after lost entries, which are logged with their ranges. Otherwise the pipeline stops."""


class SourcePlanner(Planner):
    """Determines topics and entries with an EntrySource, which it owns."""

    def __init__(
        self,
        source: EntrySource,
        selection: TopicSelection,
        make_reading: Callable[[EntrySource, Sequence[str]], tuple[RowReading, dict[str, str]]],
    ) -> None:
        self._source = source
        self._selection = selection
        self._make_reading = make_reading
        self._renames: dict[str, str] = {}
        self._shown: dict[str, Place] = {}
        self._pattern = TopicsPattern.parse(selection.pattern) if selection.pattern else None

    def topics(self) -> list[str]:
        if self._pattern is not None:
            pattern = self._pattern
            return sorted(t for t in self._source.topics(self._selection.namespace) if pattern.matches(t))
        return sorted({partition for name in self._selection.names for partition in self._source.partitions(name)})

    def first_places(self, topics: Sequence[str]) -> dict[str, Place]:
        start = self._selection.start
        if isinstance(start, int):
            return {topic: self._source.place_at_time(topic, start) for topic in topics}
        plans = self._source.plans([(topic, None, None) for topic in topics])
        return {plan.topic: plan.end if start == LATEST else plan.first for plan in plans}

    def plan(self, positions: Mapping[str, Place]) -> list[TopicPlan]:
        plans = self._source.plans([(topic, place, None) for topic, place in positions.items()])
        lost = [(plan.topic, sentence) for plan in plans for sentence in plan.lost]
        if lost and not self._selection.skips_loss:
            shown = "; ".join(sentence for _, sentence in lost[:5])
            raise DataLoss(
                f"entries after the table's positions are lost: {shown}. Continue without them with --on-data-loss skip. "
                "To prevent such losses, use longer retention, or a subscription that holds the backlog (--progress-subscription)"
            )
        for topic, sentence in lost:
            logs.warning("lake.entries_lost", topic=topic, lost=sentence)
        return plans

    def reading(self, topics: Sequence[str]) -> RowReading:
        reading, self._renames = self._make_reading(self._source, topics)
        return reading

    def renames(self) -> dict[str, str]:
        return self._renames

    def show_progress(self, subscription: str, positions: Mapping[str, Place]) -> None:
        """Move the cursor of the durable `subscription` of each topic to its position. The subscription's backlog is
        then the pipeline's backlog, and the broker retains it. A failure is only logged; the next commit tries again.
        """
        for topic, place in positions.items():
            if self._shown.get(topic) == place:
                continue
            try:
                self._source.show_progress(topic, subscription, place)
            except ClientError as error:
                logs.warning("lake.progress_not_shown", topic=topic, subscription=subscription, error=str(error))
                continue
            self._shown[topic] = place

    def close(self) -> None:
        self._source.close()
