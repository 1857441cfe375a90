"""How a stream gets on: its first offset, the next one within limits, the tasks between two, and progress that others see.

Free of Spark; `source.py` is its way in. Runs on the driver, in one process for as long as the query runs.
What must hold: the tasks of a batch follow from its two offsets alone, so that a batch that is planned again is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pybroker import logs
from pybroker.model.names import TopicName
from pybroker.reading.entry_source import ReadingFailed, TopicMissing
from pybroker.reading.places import Place, TopicPlan
from pybroker.spark.admission import Limits, admit, entry_count, until
from pybroker.spark.cuts import TopicRange, cut, grouped, split_size
from pybroker.spark.offsets import EARLIEST, LATEST, BoundKind, Bounds, Offsets, TopicOffset, from_json, to_json
from pybroker.spark.planning import Planner

Document = Mapping[str, Any]


class StreamProgress:
    """The state of one stream on the driver. What it keeps between calls is only what saves work or says what was told already."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._target: dict[str, Place] | None = None
        self._shown: dict[str, Place] = {}

    def initial(self) -> dict[str, Any]:
        """Where a new query begins."""
        options = self._planner.options
        starting = options.starting or Bounds(LATEST)
        topics = self._topics()
        if not options.waits_for_topic:
            starting.require_known("option startingOffsets", topics)
        starts = self._planner.starts(topics, starting)
        for topic, start in starts.items():
            self._show(topic, start.place)
        return to_json(starts)

    def freeze(self) -> None:
        """From now on read up to what there is at this moment, and no further."""
        topics = self._topics()
        plans = self._planner.source.plans([(topic, None, None) for topic in topics])
        self._target = {plan.topic: plan.end for plan in plans}

    def latest(self, start: Document, limits: Limits) -> Document:
        """Up to where the next batch reads; `start` itself when there is nothing to read."""
        try:
            return self._latest(start, limits)
        except TopicMissing:
            if self._planner.options.fail_on_data_loss:
                raise
            return self._latest(start, limits)  # deleted between two questions; now it is not in the list any more

    def _latest(self, start: Document, limits: Limits) -> Document:
        self.commit(
            start
        )  # Spark has committed what lies before it, and tells that of the last batch of a run nobody else
        before = from_json(start)
        topics = self._topics(before)
        gone = sorted(set(before) - set(topics))
        for topic in gone:
            self._planner.lost(topic, ("the topic is not there any more",))
        if self._target is not None:
            topics = [topic for topic in topics if topic in self._target or topic in before]
        begun = {**before, **self._new_starts([topic for topic in topics if topic not in before])}
        plans = self._plans(topics, begun)
        ends = admit(plans, limits)
        sizes = [until(plan, end) for plan, end in zip(plans, ends, strict=True)]
        size_bytes = split_size(sizes, self._planner.options.split_bytes, self._planner.options.min_partitions)
        after = {topic: begun[topic].settled() for topic in topics}
        is_changed = bool(gone) or len(after) > len(before)
        for plan, end in zip(sizes, ends, strict=True):
            begin = begun[plan.topic].place
            if end > begin and (entry_count(plan) or end.ledger_id > begin.ledger_id):
                after[plan.topic] = TopicOffset(end, begun_at=begin, ranges=cut(plan, size_bytes))
                is_changed = True
        return to_json(after) if is_changed else start

    def report_latest(self) -> dict[str, Any]:
        """The end of everything, for those who look at how far behind the query is."""
        topics = self._planner.find_topics()[0]
        plans = self._planner.source.plans([(topic, None, None) for topic in topics])
        return to_json({plan.topic: TopicOffset(plan.end) for plan in plans})

    def tasks(self, start: Document, end: Document) -> list[tuple[TopicRange, ...]]:
        """What each task of the batch between two offsets reads."""
        before, after = from_json(start), from_json(end)
        ranges: list[TopicRange] = []
        for topic in sorted(after):
            ranges += self._ranges(topic, before.get(topic), after[topic])
        return grouped(ranges, self._planner.options.split_bytes)

    def commit(self, end: Document) -> None:
        """Everything before `end` was read for good. A broker that cannot be told now is told after a later batch."""
        for topic, offset in from_json(end).items():
            try:
                self._show(topic, offset.place)
            except ReadingFailed as error:
                logs.warning("spark.progress_not_shown", topic=topic, reason=str(error))

    def _topics(self, known: Collection[str] = ()) -> list[str]:
        """Those that are there. A missing one is an error unless it is waited for, or was there before, which others judge."""
        topics, missing = self._planner.find_topics()
        if missing and not known and not self._planner.options.waits_for_topic:
            raise missing[0]
        return topics

    def _new_starts(self, topics: Sequence[str]) -> Offsets:
        """Topics and partitions that came later are read from their beginning, so that nothing of them is missed."""
        starting = self._planner.options.starting
        bounds = Bounds(EARLIEST)
        if starting is not None:
            by_topic = {topic: starting.of(topic) for topic in topics if self._is_named(starting, topic)}
            otherwise = starting.otherwise if starting.otherwise.kind is BoundKind.TIME else EARLIEST
            bounds = Bounds(otherwise, by_topic)
        starts = self._planner.starts(topics, bounds)
        for topic, start in starts.items():
            self._show(topic, start.place)
        return starts

    @staticmethod
    def _is_named(bounds: Bounds, topic: str) -> bool:
        return topic in bounds.by_topic or str(TopicName.parse(topic).partitioned_name) in bounds.by_topic

    def _plans(self, topics: Sequence[str], begun: Offsets) -> list[TopicPlan]:
        return self._planner.plans(
            (topic, begun[topic].place, self._end_of(topic, begun[topic].place)) for topic in topics
        )

    def _end_of(self, topic: str, start: Place) -> Place | None:
        """Where reading of the topic ends for now; None: with its last entry."""
        ends = []
        if self._target is not None:
            ends.append(self._target.get(topic, start))
        bound = self._planner.options.ending.of(topic)
        if bound.kind is BoundKind.TIME:
            ends.append(self._planner.source.place_at_time(topic, bound.time_ms))
        return max(min(ends), start) if ends else None

    def _ranges(self, topic: str, before: TopicOffset | None, after: TopicOffset) -> list[TopicRange]:
        if after.begun_at is None or (before is not None and before.place == after.place):
            return []
        begin = TopicOffset(after.begun_at) if before is None else before
        if begin.place == after.begun_at:
            ranges: Sequence[Any] = after.ranges
        else:
            # Offsets that do not follow each other: somebody has edited the checkpoint, or batches were joined.
            plan = self._planner.plans([(topic, begin.place, after.place)])[0]
            ranges = cut(plan, self._planner.options.split_bytes)
        first_index = begin.batch_index
        return [
            TopicRange(topic, one, first_index if Place(one.ledger_id, one.first_entry_id) == begin.place else 0)
            for one in ranges
        ]

    def _show(self, topic: str, place: Place) -> None:
        if self._shown.get(topic) != place:
            self._planner.show_progress(topic, place)
            self._shown[topic] = place
