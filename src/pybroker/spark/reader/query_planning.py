"""Query planning on the driver: finds the topics, the start and end of each, and lost entries.

Used for batches and streams. Independent of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pybroker.model.names import TopicName
from pybroker.reading.entry_source import DataLoss, EntrySource, TopicMissing
from pybroker.reading.plans import PlanRequest
from pybroker.reading.positions import Place, TopicPlan
from pybroker.runtime import logs
from pybroker.spark.option_text import InvalidOptions
from pybroker.spark.reader.cuts import TopicRange, cut, grouped, split_size
from pybroker.spark.reader.offsets import EARLIEST, Bound, BoundKind, Bounds, TopicOffset
from pybroker.spark.reader.reader_options import MAX_TOPICS, ReadOptions

WAIT_BETWEEN_LOOKS_S = 5.0
DELETED = "the topic has been deleted"
MANY_NAMES = 8
"""From this number of topics of one namespace on, the planner lists the namespace in one request."""


class Planner:
    """Plans a query by requests to an entry source. Stateless between calls."""

    def __init__(self, source: EntrySource, options: ReadOptions) -> None:
        self.source = source
        self.options = options

    def find_topics(self) -> tuple[list[str], list[TopicMissing]]:
        """Return the sorted full names of all topics and partitions to read, and an error for each missing topic: a
        topic that does not exist although an option contains its name.
        """
        choice = self.options.choice
        missing: list[TopicMissing] = []
        if choice.pattern:
            found = {topic for topic in self._listed(choice.namespace) if choice.matches(topic)}
        else:
            found = set(self._named_topics(choice.topics, missing))
        if len(found) > MAX_TOPICS:
            raise InvalidOptions(
                f"{choice} matches {len(found)} topics, but one query can read at most {MAX_TOPICS}: use several queries"
            )
        return sorted(found), missing

    def topics_once_there(self, sleep: Callable[[float], None] = time.sleep) -> list[str]:
        """Return all topics to read.

        With the option `waitingForNonExistedTopic`, wait until all topics whose names are in the options exist, or until
        at least one topic matches the pattern in the options. Otherwise, report missing topics as `require_found`
        does.
        """
        waited_s = 0.0
        while True:
            topics, missing = self.find_topics()
            if not self.options.waits_for_topic:
                self.require_found(topics, missing)
                return topics
            if topics and not missing:
                return topics
            if waited_s % 60 < WAIT_BETWEEN_LOOKS_S:
                logs.info("spark.topic_awaited", topic=str(self.options.choice), waited_s=int(waited_s))
            sleep(WAIT_BETWEEN_LOOKS_S)
            waited_s += WAIT_BETWEEN_LOOKS_S

    def require_found(self, topics: Sequence[str], missing: Sequence[TopicMissing]) -> None:
        """Raise the first error of `missing` if failOnDataLoss is set or `topics` is empty. Otherwise log a warning for
        each error. The arguments are the results of `find_topics`: existing topics, and an error for each missing topic.
        """
        if missing and (self.options.fail_on_data_loss or not topics):
            raise missing[0]
        for error in missing:
            logs.warning("spark.topic_missing", topic=error.topic, reason=str(error))

    def starts(self, topics: Sequence[str], bounds: Bounds) -> dict[str, TopicOffset]:
        """Return the start of each topic according to `bounds`. For a topic that does not exist any more, raise DataLoss, or
        log a warning and omit the topic (see `lost`).
        """
        asked = {topic: bounds.of(topic) for topic in topics}
        unplaced = [topic for topic in topics if asked[topic].kind in {BoundKind.EARLIEST, BoundKind.LATEST}]
        plans = {plan.topic: plan for plan in self.plans([(topic, None, None) for topic in unplaced])}
        starts = {}
        for topic, bound in asked.items():
            if topic in plans:
                starts[topic] = TopicOffset(
                    plans[topic].first if bound.kind is BoundKind.EARLIEST else plans[topic].end
                )
            elif bound.kind is BoundKind.PLACE:
                starts[topic] = TopicOffset(bound.place, bound.batch_index)
            elif bound.kind is BoundKind.TIME and (place := self.place_at_time(topic, bound.time_ms)) is not None:
                starts[topic] = TopicOffset(place)
        return starts

    def place_at_time(self, topic: str, publish_time_ms: int) -> Place | None:
        """Return the position of the first entry with this publish time or a later one; the end of the topic if there is
        none. If the topic was deleted meanwhile, raise DataLoss, or log a warning and return None (see `lost`).
        """
        try:
            return self.source.place_at_time(topic, publish_time_ms)
        except TopicMissing:
            self.lost(topic, (DELETED,))
            return None

    def plans(self, asked: Iterable[PlanRequest]) -> list[TopicPlan]:
        """Return a plan, the available entries to read, for each topic that exists. For deleted topics and for gaps in
        topics, raise DataLoss or log a warning (see `lost`).
        """
        plans, deleted = self.plans_of_existing(asked)
        for topic in deleted:
            self.lost(topic, (DELETED,))
        for plan in plans:
            if plan.lost:
                self.lost(plan.topic, plan.lost)
        return plans

    def plans_of_existing(self, asked: Iterable[PlanRequest]) -> tuple[list[TopicPlan], list[str]]:
        left, deleted = list(asked), list[str]()
        while True:
            try:
                return self.source.plans(left), deleted
            except TopicMissing as error:
                existing = [one for one in left if one[0] != error.topic]
                if len(existing) == len(left):
                    raise
                left = existing
                deleted.append(error.topic)

    def lost(self, topic: str, reasons: Sequence[str]) -> None:
        """Handle lost entries of a topic: raise DataLoss if failOnDataLoss is set, else log a warning."""
        text = "; ".join(reason.removeprefix(f"{topic}: ") for reason in reasons[:5]) + (
            f"; and {len(reasons) - 5} more gaps" if len(reasons) > 5 else ""
        )
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"messages of topic {topic} are lost: {text}. Start a new query at the remaining messages "
                "(startingOffsets), or continue this query without the lost messages (failOnDataLoss=false)"
            )
        logs.warning("spark.entries_lost", topic=topic, lost=text)

    def show_progress(self, topic: str, place: Place) -> None:
        """Move the cursor of the subscription that shows the query's progress to `place`. Does nothing without such a
        subscription.
        """
        subscription = self.options.subscription_of(topic)
        if subscription is not None:
            self.source.show_progress(topic, subscription, place)

    def _named_topics(self, names: Sequence[str], missing: list[TopicMissing]) -> Iterable[str]:
        by_namespace: dict[str, list[str]] = {}
        for name in names:
            by_namespace.setdefault(str(TopicName.parse(name).namespace), []).append(name)
        for namespace, named in by_namespace.items():
            listed: dict[str, list[str]] = {}
            if len(named) >= MANY_NAMES:
                for topic in self._listed(namespace):
                    listed.setdefault(str(TopicName.parse(topic).partitioned_name), []).append(topic)
                    listed.setdefault(topic, [topic])
            for name in named:
                try:
                    # Request each topic that is not listed: the list omits partitions that are not created yet.
                    yield from listed.get(name) or self.source.partitions(name)
                except TopicMissing as error:
                    missing.append(error)

    def _listed(self, namespace: str) -> list[str]:
        try:
            return self.source.topics(namespace)
        except TopicMissing:
            return []


def plan_batch(planner: Planner) -> list[tuple[TopicRange, ...]]:
    options = planner.options
    topics = planner.topics_once_there()
    starting = options.starting or Bounds(EARLIEST)
    _require_known(options, topics)
    starts = planner.starts(topics, starting)
    ends = {topic: end for topic in starts if (end := _end(planner, topic)) is not None}
    plans = planner.plans((topic, starts[topic].place, end.place) for topic, end in ends.items())
    size_bytes = split_size(plans, options.split_bytes, options.min_partitions)
    ranges = []
    for plan in plans:
        _require_reached(planner, plan, ends[plan.topic])
        ranges += trimmed_ranges(plan, size_bytes, starts[plan.topic], ends[plan.topic])
    return grouped(ranges, size_bytes)


class End:
    """The end of the read of a topic: a position between entries (None: the current end), and a batch index in the last
    entry.
    """

    __slots__ = ("place", "until")

    def __init__(self, bound: Bound | None = None, place: Place | None = None) -> None:
        self.until: tuple[Place, int] | None = None
        self.place = place
        if bound is not None and bound.kind is BoundKind.PLACE:
            self.place = bound.place
            if bound.batch_index:
                self.place = Place(bound.place.ledger_id, bound.place.entry_id + 1)
                self.until = (bound.place, bound.batch_index)


def trimmed_ranges(plan: TopicPlan, size_bytes: int, start: TopicOffset, end: End | None = None) -> list[TopicRange]:
    """Divide the planned entries of a topic into ranges of about `size_bytes`. If `start` or `end` is within a batch, the
    batch indexes of the first or last range exclude the messages before `start` or after `end`. `end` None: read the
    last entry completely.
    """
    ranges = []
    for one in cut(plan, size_bytes):
        first = Place(one.ledger_id, one.first_entry_id)
        last = Place(one.ledger_id, one.end_entry_id - 1)
        from_index = start.batch_index if first == start.place else 0
        until = end.until if end is not None else None
        until_index = until[1] if until is not None and last == until[0] else -1
        ranges.append(TopicRange(plan.topic, one, from_index, until_index))
    return ranges


def _end(planner: Planner, topic: str) -> End | None:
    bound = planner.options.ending.of(topic)
    if bound.kind is BoundKind.TIME:
        place = planner.place_at_time(topic, bound.time_ms)
        return None if place is None else End(place=place)
    return End(bound)


def _require_reached(planner: Planner, plan: TopicPlan, end: End) -> None:
    """Report a loss if a requested end is after the last entry: the entries in between are lost, or never existed."""
    if end.until is not None or (
        end.place is not None and planner.options.ending.of(plan.topic).kind is BoundKind.PLACE
    ):
        assert end.place is not None
        if end.place > plan.end and plan.end.entry_id < end.place.entry_id:
            planner.lost(plan.topic, (f"requested up to {_text(end.place)}, found up to {_text(plan.end)}",))


def _require_known(options: ReadOptions, topics: Sequence[str]) -> None:
    named: Mapping[str, Bounds | None] = {"startingOffsets": options.starting, "endingOffsets": options.ending}
    for option, bounds in named.items():
        if bounds is not None:
            bounds.require_known(f"option {option}", topics)


def _text(place: Place) -> str:
    return f"{place.ledger_id}:{place.entry_id}"
