"""Entry filters: operator code that decides for each entry whether a subscription's consumers receive it.

`entryFilterNames` names them as `module:Class` or as an entry point of the group `pybroker.entry_filters`. With
`allowOverrideEntryFilters`, policies can name others. Filters run in the configured order, and the first one that does
not accept decides. They run on the event loop, so they must not block.

Invariants: a rejected entry is acknowledged and never delivered. An entry that is rescheduled, or whose filter raises
an exception, stays unacknowledged and is filtered again later; with one active consumer, no entry overtakes it. On
non-persistent topics, an entry that is not accepted is dropped.
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
    """The decision about an entry."""

    ACCEPT = "accept"
    REJECT = "reject"
    RESCHEDULE = "reschedule"


class FilteredEntry:
    """One entry, which may be a batch."""

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
        """The message metadata. Raises ProtocolViolation if it is invalid."""
        return message_metadata(self.payload)


class EntryFilter(ABC):
    """Base class of filters. The broker calls the constructor without arguments."""

    @abstractmethod
    def judge(self, entry: FilteredEntry) -> Verdict:
        """Decide about `entry`. An exception counts as RESCHEDULE."""


class _Missing(EntryFilter):
    """Replaces a filter that cannot be loaded any more. It accepts nothing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def judge(self, entry: FilteredEntry) -> Verdict:
        raise LookupError(f"the entry filter {self._name} is not available")


class AvailableFilters:
    """The filters that policies may name: those of the configuration and installed entry points. Any other name is
    refused, because a client that may set policies could otherwise run arbitrary code.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._made: dict[str, EntryFilter] = {}
        self.configured: tuple[EntryFilter, ...] = ()
        """For topics without a policy."""
        self.configure(configured)

    def configure(self, names: Sequence[str]) -> None:
        """Replace the configured filters. Raises ConfigError and then changes nothing."""
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
        """Return the filters that a policy names; for None, the configured ones."""
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
    """Cached, because this reads the metadata of all installed packages."""
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
        raise ConfigError(f"entryFilterNames: no entry point {name} in the group {ENTRY_POINT_GROUP}") from None
    except Exception as error:
        raise ConfigError(f"entryFilterNames: {name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, EntryFilter):
        raise ConfigError(f"entryFilterNames: {name} is not a {EntryFilter.__module__}.{EntryFilter.__name__}")
    return made
