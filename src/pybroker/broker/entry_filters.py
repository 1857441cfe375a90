"""Entry filters: code of the operator that decides, entry by entry, what a subscription's consumers get to see.

The configuration names them (`entryFilterNames`), as `module:Class` or as an entry point of the group
`pybroker.entry_filters`; where `allowOverrideEntryFilters` is set, policies name others in their place. Each is made once, and they
are asked in that order for every entry that is about to be dispatched; the first one that does not accept decides. They run on the
event loop, so they must be quick and must not wait for anything.

What must hold: a rejected entry is acknowledged and never delivered; one that is to be looked at later, or whose filter fails,
stays unacknowledged and is asked about again after a while. With one active consumer nothing overtakes it. On non-persistent topics
what is not accepted is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pybroker import logs
from pybroker.broker import acknowledgement
from pybroker.config import ConfigError
from pybroker.dispatch.dispatcher import AssignInput, ReadPlan
from pybroker.model.position import Position
from pybroker.model.system_topics import is_system_topic
from pybroker.wire.entry_metadata import message_metadata

if TYPE_CHECKING:
    from pybroker.broker.subscription import Subscription
    from pybroker.broker.subscription_base import SubscriptionBase
    from pybroker.broker.topic_base import TopicBase
    from pybroker.wire.pulsar_api_pb2 import MessageMetadata

ENTRY_POINT_GROUP = "pybroker.entry_filters"
RESCHEDULE_S = 1.0
"""After how long an entry is looked at again."""


class Verdict(Enum):
    """What a filter makes of an entry."""

    ACCEPT = "accept"
    REJECT = "reject"
    RESCHEDULE = "reschedule"


class FilteredEntry:
    """What a filter gets to see: one entry, which may be a batch, and whom it is for."""

    def __init__(self, subscription: SubscriptionBase, position: Position, payload: bytes) -> None:
        self.topic = str(subscription.topic.name)
        self.subscription = subscription.name
        self.subscription_properties = subscription.properties
        self.position = position
        self.payload = payload
        """As it is stored: metadata and message."""

    @cached_property
    def metadata(self) -> MessageMetadata:
        """The metadata that the producer gave the entry. Raises ProtocolViolation when it does not parse."""
        return message_metadata(self.payload)


class EntryFilter(ABC):
    """Base class of filters; made without arguments."""

    @abstractmethod
    def judge(self, entry: FilteredEntry) -> Verdict:
        """Whether consumers get `entry`. What this raises counts as RESCHEDULE."""


class _Missing(EntryFilter):
    """Stands for a filter that a policy names and that is not there any more: it accepts nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def judge(self, entry: FilteredEntry) -> Verdict:
        raise LookupError(f"the entry filter {self._name} is not available")


class AvailableFilters:
    """The filters that there are, one object for each name. Owned by the broker service.

    Policies may name those of the configuration and those that are installed as entry points, and nothing else: code of others is
    run for whoever may set policies.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        """Raises ConfigError."""
        self._made: dict[str, EntryFilter] = {}
        self.configured: tuple[EntryFilter, ...] = ()
        """What is asked where no policy says otherwise."""
        self.configure(configured)

    def configure(self, names: Sequence[str]) -> None:
        """Use these from now on. Raises ConfigError, and then leaves all as it was."""
        self.configured = tuple(self._filter(name) for name in names)
        self._names = frozenset(names)

    def has(self, name: str) -> bool:
        """Whether a policy may name it."""
        if name not in self._names and name not in _entry_point_names():
            return False
        try:
            return not isinstance(self._filter(name), _Missing)
        except ConfigError as error:
            logs.error("entry_filter.not_loaded", name=name, error=str(error))
            return False

    def of(self, topic: TopicBase) -> tuple[EntryFilter, ...]:
        """Those that are asked for `topic`; none for topics of the broker itself."""
        if is_system_topic(topic.name):
            return ()
        if not topic.surroundings.config.allow_override_entry_filters:
            return self.configured
        return tuple(map(self._available, topic.policies.entry_filter_names))

    def _available(self, name: str) -> EntryFilter:
        if not self.has(name):
            self._made[name] = _Missing(name)
        return self._made[name]

    def _filter(self, name: str) -> EntryFilter:
        if name not in self._made:
            self._made[name] = _load(name)
        return self._made[name]


@cache
def _entry_point_names() -> frozenset[str]:
    """Looked up once: it reads what every installed package says of itself."""
    return frozenset(entry_points(group=ENTRY_POINT_GROUP).names)


def check_names(names: Sequence[str]) -> None:
    """Raises ConfigError when one of them cannot be loaded."""
    for name in names:
        _load(name)


def _load(name: str) -> EntryFilter:
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            loaded: Any = getattr(import_module(module), attribute)
        else:
            loaded = next(iter(entry_points(group=ENTRY_POINT_GROUP, name=name))).load()
        made = loaded()
    except StopIteration:
        raise ConfigError(f"entryFilterNames: no entry point {name} in the group {ENTRY_POINT_GROUP}") from None
    except Exception as error:
        raise ConfigError(f"entryFilterNames: {name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, EntryFilter):
        raise ConfigError(f"entryFilterNames: {name} is no {EntryFilter.__module__}.{EntryFilter.__name__}")
    return made


class FilterJury:
    """What the filters make of the messages of one subscription, which owns it."""

    def __init__(self, subscription: SubscriptionBase, filters: tuple[EntryFilter, ...]) -> None:
        self.filters = filters
        self._judged = subscription
        self._has_failed = False

    def accepted(self, payloads: list[bytes], message_counts: list[int]) -> tuple[list[bytes], list[int]]:
        """Those of the messages, which are not stored, that go out: what is not accepted now cannot be looked at later."""
        position = Position(0, 0)
        verdicts = [self.verdict(FilteredEntry(self._judged, position, payload)) for payload in payloads]
        if not self._count(verdicts, message_counts):
            return payloads, message_counts
        kept = [index for index, verdict in enumerate(verdicts) if verdict is Verdict.ACCEPT]
        return [payloads[index] for index in kept], [message_counts[index] for index in kept]

    def verdict(self, entry: FilteredEntry) -> Verdict:
        """What they make of an entry; one that fails is logged once."""
        try:
            for each in self.filters:
                verdict = each.judge(entry)
                if verdict is not Verdict.ACCEPT:
                    return verdict
        except Exception as error:  # noqa: BLE001  (code of others)
            if not self._has_failed:
                self._has_failed = True
                logs.error("entry_filter.failed", topic=entry.topic, subscription=entry.subscription, exc_info=error)
            return Verdict.RESCHEDULE
        return Verdict.ACCEPT

    def _count(self, verdicts: list[Verdict], message_counts: list[int]) -> bool:
        """Count messages by verdict; whether any of them is not accepted."""
        counters = self._judged.counters
        for verdict, message_count in zip(verdicts, message_counts, strict=True):
            counters.filter_processed += message_count
            if verdict is Verdict.REJECT:
                counters.filter_rejected += message_count
            elif verdict is Verdict.RESCHEDULE:
                counters.filter_rescheduled += message_count
            else:
                counters.filter_accepted += message_count
        return any(verdict is not Verdict.ACCEPT for verdict in verdicts)


class FilterChain(FilterJury):
    """The filters at work on one subscription that stores its messages, which owns it."""

    def __init__(self, subscription: Subscription, filters: tuple[EntryFilter, ...]) -> None:
        super().__init__(subscription, filters)
        self._subscription = subscription
        self.is_waiting = False
        """With one active consumer: whether the next entry is to be looked at later, so that nothing is read."""

    def passed(self, plan: ReadPlan, entries: AssignInput) -> AssignInput:
        """Those of the entries that go out now; the others are taken care of."""
        verdicts = [
            self.verdict(FilteredEntry(self._subscription, Position(entries.ledger_id, entry_id), payload))
            for entry_id, payload in zip(entries.entry_ids, entries.payloads, strict=True)
        ]
        if not self._count(verdicts, entries.message_counts):
            return entries
        dispatcher = self._subscription.dispatcher
        assert dispatcher is not None
        if Verdict.RESCHEDULE in verdicts and dispatcher.active_consumer is not None:
            first = verdicts.index(Verdict.RESCHEDULE)
            self._stop_at(Position(entries.ledger_id, entries.entry_ids[first]))
            verdicts = verdicts[:first]
        else:
            later = _of(entries, verdicts, Verdict.RESCHEDULE)
            if later:
                self._look_again(plan, [Position(entries.ledger_id, entry_id) for entry_id in later])
        rejected = _of(entries, verdicts, Verdict.REJECT)
        if rejected:
            acknowledgement.acknowledge_for_all(self._subscription, entries.ledger_id, rejected)
        return entries.rows([index for index, verdict in enumerate(verdicts) if verdict is Verdict.ACCEPT])

    def _stop_at(self, position: Position) -> None:
        self._subscription.cursor.read_position = position
        self.is_waiting = True
        self._subscription.surroundings.call_later(RESCHEDULE_S, self._go_on)

    def _go_on(self) -> None:
        self.is_waiting = False
        self._subscription.wake()

    def _look_again(self, plan: ReadPlan, positions: list[Position]) -> None:
        """As if the read had not brought them: the dispatcher asks for them again, unless the cursor went back meanwhile."""
        dispatcher = self._subscription.dispatcher
        assert dispatcher is not None
        later = ReadPlan(len(positions), plan.max_bytes, positions, plan.epoch)

        def give_back() -> None:
            dispatcher.give_back(later)
            self._subscription.wake()

        self._subscription.surroundings.call_later(RESCHEDULE_S, give_back)


def _of(entries: AssignInput, verdicts: list[Verdict], wanted: Verdict) -> list[int]:
    return [entries.entry_ids[index] for index, verdict in enumerate(verdicts) if verdict is wanted]
