"""Entry filters: code of the operator that decides which entries a subscription delivers to its consumers.

`entryFilterNames` lists the filters, as `module:Class` or as an entry point of the group `pybroker.entry_filters`. With
`allowOverrideEntryFilters`, policies can select other filters. The first filter in order that does not return ACCEPT
decides. Filters run on the event loop, so they must not block.

A rejected entry is acknowledged and never delivered. A rescheduled entry stays unacknowledged and is filtered again
later; with one active consumer, later entries wait for it. On non-persistent topics, each entry that is not accepted is
dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pybroker.config import ConfigError
from pybroker.model.position import Position
from pybroker.runtime import logs
from pybroker.wire.entry_metadata import message_metadata

if TYPE_CHECKING:
    from pybroker.wire.pulsar_api_pb2 import MessageMetadata

ENTRY_POINT_GROUP = "pybroker.entry_filters"


class Verdict(Enum):
    """Decision of a filter about an entry."""

    ACCEPT = "accept"
    REJECT = "reject"
    RESCHEDULE = "reschedule"


class FilteredEntry:
    """Input of a filter: one entry, which may be a batch of messages."""

    def __init__(
        self, topic: str, subscription: str, properties: Mapping[str, str], position: Position, payload: bytes
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.subscription_properties = properties
        self.position = position
        self.payload = payload

    @cached_property
    def metadata(self) -> MessageMetadata:
        """Decoded message metadata. Raises ProtocolViolation."""
        return message_metadata(self.payload)


class EntryFilter(ABC):
    """Base class of entry filters. The broker calls the constructor without arguments."""

    @abstractmethod
    def judge(self, entry: FilteredEntry) -> Verdict:
        """Decide whether `entry` is delivered. An exception counts as RESCHEDULE."""


class _Missing(EntryFilter):
    def __init__(self, name: str) -> None:
        self._name = name

    def judge(self, entry: FilteredEntry) -> Verdict:
        raise LookupError(
            f"the entry filter {self._name} is not loaded by this broker, so no entry is delivered: add it to "
            "entryFilterNames, or remove it from the policies of the topic and its namespace"
        )


class AvailableFilters:
    """Filters that policies may select: the configured filters and the installed entry points.

    Other names are rejected, because policies could otherwise run arbitrary code.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._made: dict[str, EntryFilter] = {}
        self.configured: tuple[EntryFilter, ...] = ()
        """Filters of topics without a filter policy."""
        self.configure(configured)

    def configure(self, names: Sequence[str]) -> None:
        """Replace the configured filters. Raises ConfigError; the previous filters then stay in use."""
        self.configured = tuple(self._filter(name) for name in names)
        self._names = frozenset(names)

    def has(self, name: str) -> bool:
        if name not in self._names and name not in _entry_point_names():
            return False
        try:
            return not isinstance(self._filter(name), _Missing)
        except ConfigError as error:
            logs.error("entry_filter.not_loaded", name=name, error=str(error))
            return False

    def of(self, names: Iterable[str] | None) -> tuple[EntryFilter, ...]:
        """Return the filters with these names; for None, the configured filters. For an unknown name, the result
        contains a filter that reschedules all entries.
        """
        return self.configured if names is None else tuple(map(self._available, names))

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
    return frozenset(entry_points(group=ENTRY_POINT_GROUP).names)


def check_names(names: Sequence[str]) -> None:
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
        raise ConfigError(
            f"entryFilterNames: the entry filter {name} is not installed (no entry point of this name in the group "
            f"{ENTRY_POINT_GROUP})"
        ) from None
    except Exception as error:
        raise ConfigError(
            f"entryFilterNames: the entry filter {name} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, EntryFilter):
        raise ConfigError(
            f"entryFilterNames: {name} is not an entry filter: its class must extend "
            f"{EntryFilter.__module__}.{EntryFilter.__name__}"
        )
    return made
