"""Progress of a stream: its first offset, the next offset, tasks, and the progress subscription.

Runs on the driver, in one process for the duration of the query. Independent of Spark.

Invariant: the tasks of a batch depend only on its two offsets, so a batch that is planned again is identical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pybroker.client.failures import ClientError
from pybroker.model.names import TopicName
from pybroker.reading.plans import PlanRequest
from pybroker.reading.positions import Place, TopicPlan
from pybroker.runtime import logs
from pybroker.spark.reader.admission import Limits, admit, entry_count, until
from pybroker.spark.reader.cuts import TopicRange, cut, grouped, split_size
from pybroker.spark.reader.offsets import EARLIEST, LATEST, BoundKind, Bounds, Offsets, TopicOffset, from_json, to_json
from pybroker.spark.reader.query_planning import DELETED, Planner

Document = Mapping[str, Any]


class StreamProgress:
    """The state of one stream on the driver."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._target: dict[str, Place] | None = None
        self._shown: dict[str, Place] = {}

    def initial(self) -> dict[str, Any]:
        options = self._planner.options
        starting = options.starting or Bounds(LATEST)
        topics, missing = self._planner.find_topics()
        if not options.waits_for_topic:
            self._planner.require_found(topics, missing)
            starting.require_known("option startingOffsets", topics)
        starts = self._planner.starts(topics, starting)
        for topic, start in starts.items():
            self._show(topic, start.place)
        return to_json(starts)

    def freeze(self) -> None:
        """Limit the query to the messages that are stored now (`Trigger.AvailableNow`)."""
        plans, _ = self._planner.plans_of_existing((topic, None, None) for topic in self._planner.find_topics()[0])
        self._target = {plan.topic: plan.end for plan in plans}

    def latest(self, start: Document, limits: Limits, *, is_committed: bool = True) -> Document:
        """Return the end offset of the next micro-batch, without deleted topics. Return `start` if there is nothing to
        read.

        `is_committed`: all messages before `start` were processed. The progress is then reported as in `commit`, which
        Spark may not have called for the last batch before a restart.
        """
        if is_committed:
            self.commit(start)
        before = from_json(start)
        topics = self._planner.find_topics()[0]
        for topic in sorted(set(before) - set(topics)):
            self._planner.lost(topic, (DELETED,))
        if self._target is not None:
            topics = [topic for topic in topics if topic in self._target or topic in before]
        begun = {**before, **self._new_starts([topic for topic in topics if topic not in before])}
        plans = self._plans([topic for topic in topics if topic in begun], begun)
        ends = admit(plans, limits)
        sizes = [until(plan, end) for plan, end in zip(plans, ends, strict=True)]
        size_bytes = split_size(sizes, self._planner.options.split_bytes, self._planner.options.min_partitions)
        after = {plan.topic: begun[plan.topic].settled() for plan in plans}
        is_changed = set(after) != set(before)
        for plan, end in zip(sizes, ends, strict=True):
            begin = begun[plan.topic].place
            if end > begin and (entry_count(plan) or end.ledger_id > begin.ledger_id):
                after[plan.topic] = TopicOffset(end, begun_at=begin, ranges=cut(plan, size_bytes))
                is_changed = True
        return to_json(after) if is_changed else start

    def report_latest(self) -> dict[str, Any]:
        topics = self._planner.find_topics()[0]
        plans, _ = self._planner.plans_of_existing((topic, None, None) for topic in topics)
        return to_json({plan.topic: TopicOffset(plan.end) for plan in plans})

    def tasks(self, start: Document, end: Document) -> list[tuple[TopicRange, ...]]:
        before, after = from_json(start), from_json(end)
        ranges: list[TopicRange] = []
        for topic in sorted(after):
            ranges += self._ranges(topic, before.get(topic), after[topic])
        return grouped(ranges, self._planner.options.split_bytes)

    def commit(self, end: Document) -> None:
        """Move the cursors of the subscription that shows the query's progress to `end`, because all messages before it
        were processed. If the broker does not answer, a later batch repeats the move.
        """
        for topic, offset in from_json(end).items():
            try:
                self._show(topic, offset.place)
            except ClientError as error:
                logs.warning("spark.progress_not_shown", topic=topic, reason=str(error))

    def _new_starts(self, topics: Sequence[str]) -> Offsets:
        """Return the starts of new topics and partitions: their beginning by default, so that no message is missed."""
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
        asked: list[PlanRequest] = []
        for topic in topics:
            start = begun[topic].place
            ends = [] if self._target is None else [self._target.get(topic, start)]
            bound = self._planner.options.ending.of(topic)
            if bound.kind is BoundKind.TIME:
                place = self._planner.place_at_time(topic, bound.time_ms)
                if place is None:
                    continue
                ends.append(place)
            asked.append((topic, start, max(min(ends), start) if ends else None))
        return self._planner.plans(asked)

    def _ranges(self, topic: str, before: TopicOffset | None, after: TopicOffset) -> list[TopicRange]:
        if after.begun_at is None or (before is not None and before.place == after.place):
            return []
        begin = TopicOffset(after.begun_at) if before is None else before
        if begin.place > after.place:
            return []  # PySpark before 4.2 may request the end before the start of a query that begins at the end.
        if begin.place == after.begun_at:
            ranges: Sequence[Any] = after.ranges
        else:
            # The offsets are not consecutive: the checkpoint was edited, or batches were joined.
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
