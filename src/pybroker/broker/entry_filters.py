"""Entry filters: code of the operator that decides, entry by entry, what a subscription's consumers get to see.

The configuration names them (`entryFilterNames`), as `module:Class` or as an entry point of the group
`pybroker.entry_filters`. They are made once, when the broker starts, and asked in that order for every entry that is about to
be dispatched; the first one that does not accept decides. They run on the event loop, so they must be quick and must not wait
for anything.

What must hold: a rejected entry is acknowledged and never delivered; one that is to be looked at later, or whose filter fails,
stays unacknowledged and is asked about again after a while. With one active consumer nothing overtakes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pybroker import logs
from pybroker.config import ConfigError
from pybroker.dispatch.dispatcher import AssignInput, ReadPlan
from pybroker.model.position import Position
from pybroker.wire.entry_metadata import message_metadata

if TYPE_CHECKING:
    from pybroker.broker.subscription import Subscription
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
    """What a filter gets to see: one stored entry, which may be a batch, and whom it is for."""

    def __init__(self, subscription: Subscription, position: Position, payload: bytes) -> None:
        self.topic = str(subscription.topic.name)
        self.subscription = subscription.name
        self.subscription_properties = subscription.cursor.properties
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


def load_filters(names: Sequence[str]) -> tuple[EntryFilter, ...]:
    """Make the filters of these names. Raises ConfigError."""
    return tuple(_load(name) for name in names)


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


class FilterChain:
    """The filters at work on one subscription, which owns it."""

    def __init__(self, subscription: Subscription, filters: tuple[EntryFilter, ...]) -> None:
        self._subscription = subscription
        self._filters = filters
        self._has_failed = False
        self.is_waiting = False
        """With one active consumer: whether the next entry is to be looked at later, so that nothing is read."""

    def passed(self, plan: ReadPlan, entries: AssignInput) -> AssignInput:
        """Those of the entries that go out now; the others are taken care of."""
        verdicts = [
            self.verdict(FilteredEntry(self._subscription, Position(entries.ledger_id, entry_id), payload))
            for entry_id, payload in zip(entries.entry_ids, entries.payloads, strict=True)
        ]
        if not self._count(verdicts, entries):
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
            self._acknowledge(entries.ledger_id, rejected)
        return entries.rows([index for index, verdict in enumerate(verdicts) if verdict is Verdict.ACCEPT])

    def verdict(self, entry: FilteredEntry) -> Verdict:
        """What they make of an entry; one that fails is logged once."""
        try:
            for each in self._filters:
                verdict = each.judge(entry)
                if verdict is not Verdict.ACCEPT:
                    return verdict
        except Exception as error:  # noqa: BLE001  (code of others)
            if not self._has_failed:
                self._has_failed = True
                logs.error("entry_filter.failed", topic=entry.topic, subscription=entry.subscription, exc_info=error)
            return Verdict.RESCHEDULE
        return Verdict.ACCEPT

    def _count(self, verdicts: list[Verdict], entries: AssignInput) -> bool:
        """Count messages by verdict; whether any of them is not accepted."""
        counters = self._subscription.counters
        for verdict, message_count in zip(verdicts, entries.message_counts, strict=True):
            counters.filter_processed += message_count
            if verdict is Verdict.REJECT:
                counters.filter_rejected += message_count
            elif verdict is Verdict.RESCHEDULE:
                counters.filter_rescheduled += message_count
            else:
                counters.filter_accepted += message_count
        return any(verdict is not Verdict.ACCEPT for verdict in verdicts)

    def _acknowledge(self, ledger_id: int, entry_ids: list[int]) -> None:
        subscription = self._subscription
        assert subscription.dispatcher is not None
        subscription.cursor.state.acknowledge(ledger_id, entry_ids)
        subscription.dispatcher.acked(ledger_id, entry_ids)
        subscription.cursor.changed(None)
        subscription.tell_if_at_end()

    def _stop_at(self, position: Position) -> None:
        self._subscription.cursor.read_position = position
        self.is_waiting = True
        self._subscription.service.call_later(RESCHEDULE_S, self._go_on)

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

        self._subscription.service.call_later(RESCHEDULE_S, give_back)


def _of(entries: AssignInput, verdicts: list[Verdict], wanted: Verdict) -> list[int]:
    return [entries.entry_ids[index] for index, verdict in enumerate(verdicts) if verdict is wanted]
